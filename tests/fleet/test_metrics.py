"""Tests of `FleetMetrics`: the gauges are those of `fleet_status`, and no gauge exists while
nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Conversation, MemoryStore
from holdfast.fleet import Bell, TableBackend, Worker
from tests.fleet_program import Effects, post
from tests.waiting import until

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from holdfast.fleet import metrics


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    monkeypatch.setattr(metrics, "_FRESH_SECONDS", 0.0)
    opened = InMemoryMetricReader()
    yield opened
    opened.shutdown()


def gauges(reader: InMemoryMetricReader) -> dict[str, float]:
    """Collect, and return the values by name, without the common prefix."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name.removeprefix("holdfast.fleet."): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


def test_the_gauges_show_workers_conversations_and_the_queue(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    backend = TableBackend()
    store = MemoryStore(bell=Bell(backend))
    effects = Effects(tmp_path / "effects")
    agent = effects.agent()
    metrics.FleetMetrics(backend, provider=MeterProvider([reader]))
    post(store, "a", [("hold", {})], "1")
    post(store, "b", [], "1")
    before = gauges(reader)
    assert before.pop("oldest_wake") >= 0
    names = ("workers", "leases", "running", "rate", "poisoned")
    assert before == {**dict.fromkeys(names, 0), "waiting": 2}

    def opened(id: str) -> Conversation:
        return Conversation(agent, store, id)

    with Worker(store, opened, backend, concurrency=1) as worker:
        until(lambda: effects.lines("holds"))
        worker.tend()
        while_held = gauges(reader)
        assert (while_held["workers"], while_held["leases"], while_held["running"]) == (1, 1, 1)
        assert while_held["waiting"] == 1, "there is room for one at a time"
        assert while_held["oldest_wake"] > 0
        (tmp_path / "effects" / "open").touch()
        until(lambda: {one.status for one in store.list(["a", "b"])} == {"finished"})
        until(lambda: not any(backend.stats()[:3]))
        worker.tend()
        at_end = gauges(reader)
        assert (at_end["leases"], at_end["running"], at_end["waiting"]) == (0, 0, 0)
        assert at_end["rate"] == pytest.approx(0.2), "two runs in the last ten seconds"
    assert gauges(reader)["workers"] == 0
    store.close()
    backend.close()


def test_a_database_that_does_not_answer_gives_no_values(reader: InMemoryMetricReader) -> None:
    backend = TableBackend()
    metrics.FleetMetrics(backend, provider=MeterProvider([reader]))
    assert gauges(reader)["waiting"] == 0
    backend.close()
    assert gauges(reader) == {}


def test_a_queue_has_gauges_of_its_own(reader: InMemoryMetricReader) -> None:
    backend = TableBackend()
    metrics.FleetMetrics(backend, queue="night", provider=MeterProvider([reader]))
    backend.wake("a")
    backend.wake("b", queue="night")
    assert gauges(reader)["waiting"] == 1
    backend.close()
