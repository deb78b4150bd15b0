"""The state of a fleet as OpenTelemetry metrics (`holdfast[otel]`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from holdfast.errors import StoreError
from holdfast.fleet.backend import FleetBackend
from holdfast.fleet.status import FleetStatus, fleet_status

_FRESH_SECONDS = 1.0  # the gauges of one collection share one look into the database

_GAUGES: dict[str, tuple[str, str, Callable[[FleetStatus], float]]] = {
    "holdfast.fleet.workers": ("{worker}", "Workers that serve", lambda one: one.serving),
    "holdfast.fleet.leases": ("{conversation}", "Open conversations", lambda one: one.leases),
    "holdfast.fleet.running": ("{conversation}", "Driven now", lambda one: one.running),
    "holdfast.fleet.waiting": ("{conversation}", "Waiting wakes", lambda one: one.queue.waiting),
    "holdfast.fleet.oldest_wake": (
        "s",
        "Age of the oldest waiting wake",
        lambda one: one.queue.oldest_seconds,
    ),
    "holdfast.fleet.rate": ("{conversation}/s", "Runs that ended", lambda one: one.rate),
    "holdfast.fleet.poisoned": (
        "{conversation}",
        "Runs ended because they killed workers, by the workers that live",
        lambda one: sum(worker.counts.poisoned for worker in one.workers),
    ),
}


class FleetMetrics:
    """Gauges of a fleet, read from its database when a reader collects them.

    Args:
        backend: The fleet's backend.
        queue: One queue alone; None for all.
        provider: The meter provider; None for the process's own.
    """

    def __init__(
        self,
        backend: FleetBackend,
        queue: str | None = None,
        provider: MeterProvider | None = None,
    ) -> None:
        self._backend = backend
        self._queue = queue
        self._status: FleetStatus | None = None
        self._looked_at = float("-inf")
        meter = metrics.get_meter("holdfast", meter_provider=provider)
        for name, (unit, text, value) in _GAUGES.items():
            meter.create_observable_gauge(name, [self._observer(value)], unit, text)

    def _observer(
        self, value: Callable[[FleetStatus], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            status = self._look()
            return [] if status is None else [Observation(value(status))]

        return observe

    def _look(self) -> FleetStatus | None:
        if time.monotonic() - self._looked_at > _FRESH_SECONDS:
            self._looked_at = time.monotonic()
            try:
                self._status = fleet_status(self._backend, self._queue)
            except StoreError:
                self._status = None  # no value is better than an old one
        return self._status
