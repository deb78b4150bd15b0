"""Workers that drive the conversations of one store, in any processes and on any machines."""

from __future__ import annotations

from holdfast.fleet.backend import (
    Bell,
    FleetBackend,
    Handler,
    Place,
    Placement,
    QueueStats,
    Room,
    Serving,
    Wake,
    place_by_id,
)
from holdfast.fleet.registry import Registry, WorkerCounts, WorkerEntry
from holdfast.fleet.table import TableBackend
from holdfast.fleet.worker import Worker

__all__ = [
    "Bell",
    "FleetBackend",
    "Handler",
    "Place",
    "Placement",
    "QueueStats",
    "Registry",
    "Room",
    "Serving",
    "TableBackend",
    "Wake",
    "Worker",
    "WorkerCounts",
    "WorkerEntry",
    "place_by_id",
]
