"""Observers of conversations: `Telemetry` (OpenTelemetry), `JsonLog`, and `stats`, which reads a
store. Each is active only if it is passed to a conversation or called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.observe.log import JsonLog
    from holdfast.observe.telemetry import Telemetry

__all__ = ["JsonLog", "Telemetry"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    room = {"JsonLog": "log", "Telemetry": "telemetry"}.get(name)
    if room is None:
        raise AttributeError(f"module 'holdfast.observe' has no attribute {name!r}")
    public = globals()[name] = getattr(import_module(f"holdfast.observe.{room}"), name)
    return public
