"""Tests of timers on an agent server: set over HTTP, fired for parked conversations, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
)
from holdfast import events as ev
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import CancelTimer, Pause, Schedule, Send
from holdfast.content import TextContent
from holdfast.conversation.conversation import random_id
from holdfast.conversation.firing import fire_resting
from holdfast.errors import ConfigurationError, NotFound
from holdfast.events import AnyEvent
from holdfast.server.host import Host
from holdfast.server.notifying_store import NotifyingStore
from holdfast.server.records import store_id
from holdfast.server.shapes import CreateRequest
from holdfast.store import Batch, RestingConversation
from holdfast.tools.preset.waiting import register_waiting_tools
from tests.agent_servers import Serving
from tests.server_host_program import host_of
from tests.waiting import until

T = "default"
HOUR = timedelta(hours=1)
TICK = (TextContent("tick"),)


class Clock:
    """A clock that is ahead of the real one by `ahead`."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(tmp_path: Path, clock: Clock) -> Iterator[Host]:
    with host_of(tmp_path, now=clock) as running:
        yield running


def create(host: Host, *script: Any, id: str = "a", **more: Any) -> None:
    agent = Agent(ScriptedLLM(list(script)), **more)
    form = form_of(agent)
    host.create(T, CreateRequest(id=id, agent=form.mapping, tools=tools_of(agent)))


def events(host: Host, kind: type[Any], id: str = "a") -> list[Any]:
    return [event for event in host.read(T, id) if isinstance(event, kind)]


def park(host: Host, id: str = "a") -> None:
    host._scheduler.conversations.park(store_id(T, id), force=True)
    assert not host.get(T, id).open


def rested(host: Host, answer: str, id: str = "a") -> None:
    until(lambda: host.state(T, id).answer == answer and host.status(T, id) == "finished", answer)


def test_a_parked_conversation_runs_when_its_timer_is_due(host: Host, clock: Clock) -> None:
    create(host, "one")
    host.execute(T, "a", Schedule(TICK, "t", every=3600))
    park(host)
    host.tend()
    assert events(host, ev.MessageAdded) == []
    clock.ahead = HOUR
    for _ in range(3):
        host.tend()
    rested(host, "one")
    until(lambda: not host._records.driven())
    park(host)
    clock.ahead = 2 * HOUR
    host.tend()
    until(lambda: len(events(host, ev.AssistantReplied)) == 2)
    assert [one.text for one in events(host, ev.MessageAdded)] == ["tick"] * 2
    assert len(events(host, ev.TimerFired)) == 2


def test_a_started_conversation_that_is_parked_runs_too(host: Host, clock: Clock) -> None:
    create(host, "one")
    host.start(T, "a")
    host.execute(T, "a", Schedule(TICK, "t", every=3600))
    park(host)
    clock.ahead = HOUR
    host.tend()
    rested(host, "one")
    assert host.get(T, "a").started


def test_an_open_conversation_runs_too(host: Host, clock: Clock) -> None:
    create(host, "one")
    host.execute(T, "a", Schedule(TICK, "t", every=3600))
    assert host.get(T, "a").open
    clock.ahead = HOUR
    host.tend()
    rested(host, "one")


def test_a_paused_conversation_gets_the_message_and_stays_paused(host: Host, clock: Clock) -> None:
    create(host, "one")
    host.execute(T, "a", Schedule(TICK, "t", every=3600))
    host.execute(T, "a", Pause())
    park(host)
    clock.ahead = HOUR
    host.tend()
    until(lambda: events(host, ev.MessageAdded))
    until(lambda: not host._records.driven())
    assert host.status(T, "a") == "paused"
    host.run(T, "a")
    rested(host, "one")


def test_a_waiting_run_is_woken_on_the_server(host: Host, clock: Clock) -> None:
    wait = ("wait_until", {"note": "look", "minutes": 60})
    create(host, wait, "It is green.", tools=register_waiting_tools())
    host.execute(T, "a", Send("Watch the build."))
    host.run(T, "a")
    until(lambda: host.timers(T, "a") and host.status(T, "a") == "idle")
    until(lambda: not host._records.driven())
    park(host)
    clock.ahead = HOUR
    host.tend()
    rested(host, "It is green.")
    assert host.timers(T, "a") == ()


def test_timers_outlive_the_server(tmp_path: Path, clock: Clock) -> None:
    with host_of(tmp_path, now=clock) as host:
        create(host, "one")
        host.execute(T, "a", Schedule(TICK, "t", every=3600))
    clock.ahead = HOUR
    with host_of(tmp_path, now=clock) as host:
        host.tend()
        rested(host, "one")


def test_a_server_that_died_after_the_ring_leaves_the_run_to_the_next(
    tmp_path: Path, clock: Clock
) -> None:
    with host_of(tmp_path, now=clock) as host:
        create(host, "one")
        host.execute(T, "a", Schedule(TICK, "t", every=3600))
        park(host)
        clock.ahead = HOUR
        host._scheduler.pool.close(1.0)  # no run is left
        host._scheduler._ring()
        assert not host.get(T, "a").open, "it is not opened for that"
        assert [one.text for one in events(host, ev.MessageAdded)] == ["tick"]
        assert events(host, ev.AssistantReplied) == []
    with host_of(tmp_path, now=clock) as host:
        host.recover()
        rested(host, "one")
        assert len(events(host, ev.TimerFired)) == 1


@pytest.mark.slow
def test_a_conversation_in_a_process_of_its_own_runs_too(tmp_path: Path, clock: Clock) -> None:
    with host_of(tmp_path, now=clock, isolation="process") as host:
        create(host, "one")
        host.execute(T, "a", Schedule(TICK, "t", every=3600))
        assert [one.id for one in host.timers(T, "a")] == ["t"]
        park(host)
        clock.ahead = HOUR
        host.tend()
        rested(host, "one")
        assert host._store.next_due() is not None


def test_events_that_the_store_fires_reach_the_listeners(tmp_path: Path) -> None:
    notices: list[tuple[str, list[str]]] = []
    with SQLiteStore(tmp_path / "store.db") as inner:
        store = NotifyingStore(inner, lambda name, events: notices.append((name, kinds(events))))
        at = datetime.now(UTC) + HOUR
        for id in ("a", "b"):
            with Conversation(Agent(ScriptedLLM([])), store, id) as conversation:
                conversation.schedule("tick", at=at)
        notices.clear()

        def fire(resting: RestingConversation) -> Batch | None:
            return fire_resting(resting, random_id) if resting.id == "a" else None

        assert len(store.ring(at, fire=fire)) == 2
        assert notices == [("a", ["timerFired", "message", "status"])]
        assert kinds(store.read("a"))[-3:] == notices[0][1]
        assert store.list(waiting=True)[0].id == "b"


def kinds(events: Sequence[AnyEvent]) -> list[str]:
    return [event.type for event in events]


def test_many_timers_at_once_fire_once_each(host: Host, clock: Clock) -> None:
    ids = [f"c{n}" for n in range(20)]
    for id in ids:
        create(host, "one", id=id)
        host.execute(T, id, Schedule(TICK, "t", every=3600))
        park(host, id)
    clock.ahead = HOUR
    host.tend()
    host.tend()
    for id in ids:
        rested(host, "one", id)
        assert len(events(host, ev.TimerFired, id)) == 1


def test_deleting_a_conversation_ends_its_timers(host: Host, clock: Clock) -> None:
    create(host, "one")
    host.execute(T, "a", Schedule(TICK, "t", every=3600))
    host.delete(T, "a")
    clock.ahead = HOUR
    host.tend()
    assert host._store.next_due() is None


def test_commands_of_timers_are_refused_as_in_a_conversation(host: Host) -> None:
    create(host)
    with pytest.raises(NotFound, match="has no timer 'x'"):
        host.execute(T, "a", CancelTimer("x"))


# --- HTTP ---


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[Serving]:
    with Serving(tmp_path, now=clock) as serving:
        agent = form_of(Agent(ScriptedLLM(["one", "two"])))
        created = serving.ask("POST", "/api/conversations", {"id": "a", "agent": agent.mapping})
        assert created.status == 201
        yield serving


def listed(server: Serving) -> list[dict[str, Any]]:
    return server.ask("GET", "/api/conversations/a/timers").json["timers"]


def test_timers_are_set_listed_and_cancelled_over_http(server: Serving) -> None:
    path = "/api/conversations/a/timers"
    assert listed(server) == []
    for body in (
        {"text": "Write the report.", "timer": "r", "cron": "0 9 * * *", "timezone": "Asia/Tokyo"},
        {"content": [{"type": "text", "text": "later"}], "timer": "e", "every": 1e6},
    ):
        assert server.ask("POST", path, body).status == 200
    report, later = listed(server)
    assert report["due"].endswith("T00:00:00Z")
    del report["due"], later["due"]
    assert report == {
        "id": "r",
        "content": [{"type": "text", "text": "Write the report."}],
        "cron": "0 9 * * *",
        "timezone": "Asia/Tokyo",
        "setSeq": 1,
    }
    assert later["every"] == 1e6
    assert server.ask("POST", f"{path}/cancel", {"timer": "r"}).status == 200
    assert [one["id"] for one in listed(server)] == ["e"]
    unknown = server.ask("POST", f"{path}/cancel", {"timer": "r"})
    assert (unknown.status, unknown.error) == (404, "NotFound")
    assert server.ask("GET", "/api/conversations/b/timers").status == 404


def test_a_request_under_one_key_sets_one_timer(server: Serving) -> None:
    for _ in range(3):
        body = {"text": "tick", "every": 60}
        path = "/api/conversations/a/timers"
        assert server.ask("POST", path, body, Idempotency_Key="k").status == 200
    assert len(listed(server)) == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"text": "tick"}, "one of at, every and cron"),
        ({"every": 60}, "either content"),
        ({"text": "tick", "every": 1}, "60 seconds or more"),
        ({"text": "tick", "every": "often"}, "every"),
        ({"text": "tick", "at": "2020-01-01T00:00Z"}, "is past"),
        ({"text": "tick", "at": "soon"}, "such as"),
        ({"text": "tick", "at": "2099-01-01T00:00", "timezone": "Nowhere/City"}, "unknown time zone"),
        ({"text": "tick", "cron": "bad"}, "five fields"),
        ({"text": "tick", "every": 60, "misfire": "twice"}, "misfire"),
        ({"text": "tick", "every": 60, "timer": "x" * 201}, "timer"),
        ({"text": "x" * 20_000, "every": 60}, "10,000"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_by_its_problem(
    server: Serving, body: dict[str, Any], problem: str
) -> None:
    reply = server.ask("POST", "/api/conversations/a/timers", body)
    assert reply.status in (400, 422)
    assert problem in reply.json["error"]["message"]
    assert listed(server) == []
    assert server.store.read(store_id(T, "a")) == []


def test_a_remote_conversation_has_timers(server: Serving, clock: Clock) -> None:
    workspace = RemoteWorkspace(server.server.url, server.key)
    with RemoteConversation(None, workspace, "a") as c:
        at = datetime.now(UTC) + HOUR
        c.schedule("tick", at=at, id="t")
        name = c.schedule("tock", every=timedelta(days=2))
        assert [(one.id, one.text) for one in c.timers] == [("t", "tick"), (name, "tock")]
        assert c.timers[0].due == at
        c.cancel_timer(name)
        with pytest.raises(NotFound, match="has no timer"):
            c.cancel_timer(name)
        with pytest.raises(ConfigurationError, match="is past"):
            c.schedule("tick", at=datetime.now(UTC) - HOUR)
        clock.ahead = HOUR
        server.host.tend()
        until(lambda: c.state.answer == "one")
