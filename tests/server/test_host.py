"""Tests of the host of an agent server: real SQLite files, real threads, a real `kill -9`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import LLM, Agent, Hook, LocalRuntime, ScriptedLLM, Tool, ToolResult
from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm, form_of, tools_of
from holdfast.commands import Answer, Approve, Claim, Interrupt, Pause, Reject, Resume, Return, Send
from holdfast.conversation.hosting import Hosting
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationNotFound,
    NotPending,
    StoreError,
    ToolValidationError,
    TooMany,
)
from holdfast.server.agents import Agents
from holdfast.server.host import Host
from holdfast.server.lifecycle import Lifecycle
from holdfast.server.limits import Bounds
from holdfast.server.local_conversation import LocalConversation
from holdfast.server.policy import Policy
from holdfast.server.records import ConversationRecord, Records
from holdfast.server.shapes import CreateRequest, ForkRequest, SecretsRequest, ToolsRequest
from holdfast.server.workers.worker_conversation import WorkerConversation
from tests import forks
from tests.leftovers import Owned
from tests.model_server import ModelServer, Request, calls, text
from tests.paths import REPO
from tests.server_host_program import host_of
from tests.waiting import until

T = "default"


def request(agent: Agent, **more: Any) -> CreateRequest:
    form = form_of(agent)
    return CreateRequest(agent=form.mapping, secrets=form.secrets, tools=tools_of(agent), **more)


def saying(*script: Any, tools: Any = (), **more: Any) -> CreateRequest:
    return request(Agent(ScriptedLLM(list(script)), tools=list(tools)), **more)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with host_of(tmp_path) as running:
        yield running


def finished(host: Host, id: str, tenant: str = T, status: str = "finished") -> None:
    until(lambda: host.status(tenant, id) == status, f"{id} {status}")


def types(host: Host, id: str, tenant: str = T) -> list[str]:
    return [event.type for event in host.read(tenant, id)]


def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


# --- made, listed, removed ---


def test_a_conversation_is_created_started_asked_and_answered(host: Host) -> None:
    created = host.create(T, saying("hi there", id="a"))
    assert (created.id, created.status, created.workspace) == ("a", "idle", "")
    assert host.start(T, "a") == "idle"
    host.execute(T, "a", Send("hello"))
    finished(host, "a")
    state = host.state(T, "a")
    assert (state.id, state.answer) == ("a", "hi there")
    info = host.get(T, "a")
    assert (info.title, info.last_seq, info.started, info.open) == (
        "hello",
        state.last_seq,
        True,
        True,
    )


def test_a_message_to_one_that_was_not_started_waits_until_it_is_run(host: Host) -> None:
    host.create(T, saying("one", "two", id="a"))
    host.execute(T, "a", Send("hello"))
    assert types(host, "a") == ["message"]
    assert host.run(T, "a") in ("running", "finished")
    finished(host, "a")
    # until then a message belongs to the run that is about to end
    until(lambda: not host._records.driven())
    host.execute(T, "a", Send("more"))
    assert host.status(T, "a") == "finished"
    host.run(T, "a")
    until(lambda: host.state(T, "a").answer == "two")


def test_a_run_with_nothing_to_do_leaves_no_message_to_be_answered(host: Host) -> None:
    host.create(T, saying("one", id="a"))
    for answered in (False, True):
        if answered:
            host.run(T, "a")
            finished(host, "a")
            until(lambda: not host._records.driven())
        before = types(host, "a")
        assert host.run(T, "a") == ("finished" if answered else "idle")
        assert (host._records.driven(), host.get(T, "a").driven) == ([], False)
        host.execute(T, "a", Send("hello"))
        assert not host._scheduler.pool.busy("a")
        assert types(host, "a") == [*before, "message"]


@pytest.mark.parametrize("how", ["run", "start"])
def test_what_is_told_to_run_is_in_the_journal_before_a_thread_is_free(
    tmp_path: Path, how: str
) -> None:
    gate = threading.Event()

    def answer(model_request: Request) -> Any:
        gate.wait(30)
        return text("done")

    with ModelServer(answer) as server, host_of(tmp_path, max_running=1) as host:
        try:
            for id in ("a", "b"):
                host.create(T, request(Agent(LLM("m", base_url=server.url)), id=id))
                host.execute(T, id, Send("go"))
                assert not host.get(T, id).driven
                assert getattr(host, how)(T, id) == "running"
                # the state that a host finds after a kill
                assert host.status(T, id) == "running"
                assert (T, id) in host._records.driven()
                assert host.get(T, id).driven
                until(lambda: server.requests)
            assert len(server.requests) == 1
        finally:
            gate.set()
        for id in ("a", "b"):
            finished(host, id)


def test_a_run_that_comes_as_a_drive_ends_is_driven(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, ended, go_on = Hosting.advance, threading.Event(), threading.Event()

    def slow(conversation: Hosting, *arguments: Any) -> Any:
        status = advance(conversation, *arguments)
        ended.set()
        go_on.wait(30)
        return status

    host.create(T, saying("one", "two", id="a"))
    host.execute(T, "a", Send("first"))
    monkeypatch.setattr(Hosting, "advance", slow)
    try:
        host.run(T, "a")
        assert ended.wait(30)
        host.execute(T, "a", Send("second"))
        assert host.run(T, "a") == "running"
    finally:
        go_on.set()
    until(lambda: host.state(T, "a").answer == "two", "the second run")
    until(lambda: not host._records.driven())


def test_a_close_withdraws_a_run_that_waits_until_the_conversation_is_open(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_agent, opening, go_on = Agents.open, threading.Event(), threading.Event()

    def slow(agents: Agents, id: str) -> Any:
        opening.set()
        assert go_on.wait(30)
        return open_agent(agents, id)

    def run() -> None:
        try:
            host.run(T, "a")
        except Conflict as error:
            refused.append(error)

    refused: list[Conflict] = []
    host.create(T, saying("one", id="a"))
    host.execute(T, "a", Send("go"))
    host.close(T, "a")
    monkeypatch.setattr(Agents, "open", slow)
    threads = [threading.Thread(target=run), threading.Thread(target=host.close, args=(T, "a"))]
    threads[0].start()
    assert opening.wait(30)
    threads[1].start()
    entries = host._scheduler.conversations._conversations
    until(lambda: entries["a"].closing)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert "closed" in str(refused)
    assert types(host, "a") == ["message"]
    assert host._records.driven() == []


WAITING_HOOK = """
import time
from pathlib import Path

def wait(message, context):
    folder = Path(message.text)
    (folder / "asked").touch()
    while not (folder / "open").exists():
        time.sleep(0.005)
"""


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_requests_do_not_wait_for_the_hook_that_a_run_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    library, gate = tmp_path / "library", tmp_path / "gate"
    library.mkdir()
    gate.mkdir()
    (library / "hf_waiting.py").write_text(WAITING_HOOK)
    monkeypatch.syspath_prepend(str(library))
    refused: list[Conflict] = []

    def run() -> None:
        try:
            host.run(T, "a")
        except Conflict as error:
            refused.append(error)

    with host_of(tmp_path, policy=Policy(["hf_waiting"]), isolation=isolation) as host:
        agent = Agent(ScriptedLLM(["done"]), hooks=[Hook("hf_waiting:wait", on="message")])
        host.create(T, request(agent, id="a"))
        send = threading.Thread(target=host.execute, args=(T, "a", Send(str(gate)), "key"))
        send.start()
        try:
            until(lambda: (gate / "asked").exists())
            hook_began = threading.Event()
            finish = LocalConversation if isolation == "thread" else WorkerConversation
            original = finish.finish_inbox

            def finish_inbox(live: Any) -> None:
                hook_began.set()
                original(live)

            monkeypatch.setattr(finish, "finish_inbox", finish_inbox)
            runs = threading.Thread(target=run)
            runs.start()
            assert hook_began.wait(30)
            time.sleep(0.1)  # the run waits for the hook by now
            others = [
                threading.Thread(
                    target=host.set_secrets,
                    args=(T, "a", SecretsRequest(secrets={"NAME": "value-of-it"})),
                ),
                threading.Thread(target=host.close, args=(T, "a")),
            ]
            for other in others:
                other.start()
                other.join(30)
                assert not other.is_alive()
            runs.join(30)
            assert "closed" in str(refused)
        finally:
            (gate / "open").touch()
        send.join(30)
        assert types(host, "a") == ["message"]


@pytest.mark.slow
def test_the_records_know_of_a_run_that_begins_as_another_ends(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, ending, go_on, gate = (
        Records.end_run,
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def slow(records: Records, record: ConversationRecord) -> ConversationRecord:
        ending.set()
        go_on.wait(30)
        return end(records, record)

    def answer(model_request: Request) -> Any:
        if len([message for message in model_request.messages if message["role"] == "user"]) > 1:
            gate.wait(30)
        return text("done")

    with ModelServer(answer) as server:
        host.create(T, request(Agent(LLM("m", base_url=server.url)), id="a"))
        host.execute(T, "a", Send("first"))
        monkeypatch.setattr(Records, "end_run", slow)
        second = threading.Thread(target=host.run, args=(T, "a"))
        try:
            host.run(T, "a")
            assert ending.wait(30)
            host.execute(T, "a", Send("second"))
            second.start()
            second.join(0.3)  # it waits for the event that ends it, or else has ended
            go_on.set()
            second.join()
            until(lambda: len(server.requests) == 2)
            until(lambda: host.stats()["running"] == 1)
            assert host._records.driven() == [(T, "a")]
        finally:
            go_on.set()
            gate.set()
        finished(host, "a")
        until(lambda: not host._records.driven())


def test_creating_again_under_the_same_key_makes_no_second_one(host: Host, tmp_path: Path) -> None:
    creation = saying("hi")
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(host.create(T, creation, "key")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.id for answer in answers}) == 1
    assert len(host.list(T).items) == 1
    with pytest.raises(Conflict, match="idempotency key"):
        host.create(T, saying("something else"), "key")
    host.shutdown()
    with host_of(tmp_path) as again:
        assert again.create(T, creation, "key") == answers[0]


def test_an_id_that_is_taken_is_a_conflict_within_its_tenant_alone(host: Host) -> None:
    host.create(T, saying("hi", id="a"))
    host.create("acme", saying("hi", id="a"))
    with pytest.raises(Conflict, match="'a' already exists"):
        host.create(T, saying("hi", id="a"))


def test_a_journal_of_someone_else_in_the_store_is_never_taken_over(host: Host) -> None:
    store = host._store
    lease = store.acquire("a")
    from datetime import UTC, datetime

    from holdfast.content import TextContent
    from holdfast.store import Batch, Summary

    store.append(
        lease,
        Batch(
            [
                ev.MessageAdded(
                    seq=1, id="1", timestamp=datetime.now(UTC), content=(TextContent("mine"),)
                )
            ],
            Summary("a", last_seq=1),
        ),
    )
    store.release(lease)
    with pytest.raises(Conflict):
        host.create(T, saying("hi", id="a"))
    with pytest.raises(ConversationNotFound):
        host.read(T, "a")


@pytest.mark.slow
@pytest.mark.parametrize("id", ["a/b", "..", ".", "a b", "x" * 129, "a\n", "é"])
def test_ids_that_could_be_a_path_or_anothers_are_refused(host: Host, id: str) -> None:
    with pytest.raises(ConfigurationError, match="takes an id"):
        host.create(T, saying("hi", id=id))
    with pytest.raises(ConfigurationError):
        host.workspaces.create(T, id)
    with pytest.raises(ConversationNotFound), host.workspace(T, id):
        pass


def test_one_tenant_sees_nothing_of_another(host: Host) -> None:
    host.create("acme", saying("hi", id="a"))
    host.workspaces.create("acme", "w")
    attempts: list[Callable[[], Any]] = [
        lambda: host.get(T, "a"),
        lambda: host.state(T, "a"),
        lambda: host.read(T, "a"),
        lambda: host.status(T, "a"),
        lambda: host.start(T, "a"),
        lambda: host.run(T, "a"),
        lambda: host.close(T, "a"),
        lambda: host.delete(T, "a"),
        lambda: host.execute(T, "a", Send("x")),
        lambda: host.output(T, "a", "1.0"),
        lambda: host.feed(T, "a"),
        lambda: host.fork(T, "a", ForkRequest()),
        lambda: host.set_tools(T, "a", ToolsRequest(tools=[])),
        lambda: host.execute(T, "a", Approve("", "")),
        lambda: host.get(T, "acme/a"),
        lambda: host.workspaces.delete(T, "w"),
        lambda: host.create(T, saying("hi", workspace="w")),
    ]
    for attempt in attempts:
        with pytest.raises(ConversationNotFound):
            attempt()
    assert host.list(T).items == []
    with pytest.raises(ConversationNotFound), host.workspace(T, "w"):
        pass


@pytest.mark.slow
def test_listing_goes_in_pages_the_newest_first_and_by_status(host: Host) -> None:
    for number in range(25):
        host.create(T, saying("hi", id=f"c{number}"))
        host.create("acme", saying("hi", id=f"c{number}"))
    host.run(T, "c3")
    for id in ("c3", "c20"):
        host.execute(T, id, Send("hello"))
        host.run(T, id)
        finished(host, id)
    ids: list[str] = []
    cursor = None
    while True:
        page = host.list(T, None, cursor, 10)
        ids += [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert ids == [f"c{number}" for number in reversed(range(25))]
    assert [item.id for item in host.list(T, "finished", limit=1).items] == ["c20"]
    second = host.list(T, "finished", host.list(T, "finished", limit=1).next, 1)
    assert ([item.id for item in second.items], second.next) == (["c3"], None)
    assert len(host.list(T, "idle").items) == 23
    assert len(host.list(T, "idle", limit=5).items) == 5
    assert host.list("acme", "finished").items == []
    for bad in (lambda: host.list(T, "nonsense"), lambda: host.list(T, cursor="x")):
        with pytest.raises(ConfigurationError):
            bad()


def test_deleting_cuts_off_what_runs_and_leaves_nothing(host: Host, tmp_path: Path) -> None:
    with LocalRuntime() as runtime:
        creation = saying(
            ("terminal", {"command": "echo $$ > pid; sleep 600"}), tools=runtime.tools, id="a"
        )
    created = host.create(T, creation)
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    folder = tmp_path / "workspaces" / T / created.workspace
    pid = int(until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip()))
    host.delete(T, "a")
    until(lambda: not Path(f"/proc/{pid}").exists(), "the command's end")
    assert not folder.exists()
    assert (host.list(T).items, host._store.list()) == ([], [])
    with pytest.raises(ConversationNotFound):
        host.get(T, "a")
    assert host.create(T, creation).id == "a"
    assert host.state(T, "a").last_seq == 0


def test_a_fork_shares_events_and_workspace_and_has_its_own_way(host: Host) -> None:
    host.create(T, saying("one", "two", id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("hello"))
    finished(host, "a")
    fork = ForkRequest(seq=1, id="b")
    created = host.fork(T, "a", fork, "key")
    assert host.fork(T, "a", fork, "key") == created
    with pytest.raises(Conflict):
        host.fork(T, "a", fork)
    with pytest.raises(ConfigurationError, match="seq"):
        host.fork(T, "a", ForkRequest(seq=99, id="c"))
    assert types(host, "b") == ["message", "label"]
    assert (host.get(T, "b").parent, host.get(T, "b").parent_seq) == ("a", 1)
    host.delete(T, "a")
    host.run(T, "b")
    finished(host, "b")
    other = form_of(Agent(ScriptedLLM(["another"])))
    host.fork(T, "b", ForkRequest(id="c", agent=other.mapping, seq=1))
    host.run(T, "c")
    until(lambda: host.state(T, "c").answer == "another")


def test_a_fork_or_a_removal_that_was_broken_off_heals(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.create(T, saying("one", id="a"))
    host.execute(T, "a", Send("hello"))

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> Any:
        raise Killed

    monkeypatch.setattr(host._records, "mark_complete", killed)
    monkeypatch.setattr(Lifecycle, "_remove", killed)
    with pytest.raises(Killed):
        host.fork(T, "a", ForkRequest(id="b"), "key")
    host.close(T, "a")
    with pytest.raises(Killed):
        host.delete(T, "a")
    monkeypatch.undo()
    host.shutdown()
    with host_of(tmp_path) as again:
        assert again.list(T).items == []
        assert again._store.list() == []
        again.create(T, saying("one", id="b"))


# --- tools and clients ---


def offered(host: Host, id: str) -> Any:
    return until(lambda: host.state(T, id).offers, "an offer")[0]


@pytest.fixture
def greeter() -> Iterator[ModelServer]:
    """Run a model that greets once, even if it was interrupted."""

    def answer(model_request: Request) -> Any:
        return (
            text("done")
            if model_request.messages[-1]["role"] == "tool"
            else calls(("greet", {"name": "you"}))
        )

    with ModelServer(answer) as server:
        yield server


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_tool_of_the_client_is_offered_claimed_and_answered(
    tmp_path: Path, greeter: ModelServer, isolation: str
) -> None:
    with host_of(tmp_path, isolation=isolation) as host:
        _offered_claimed_and_answered(host, greeter)


def _offered_claimed_and_answered(host: Host, greeter: ModelServer) -> None:
    tool = Tool.from_function(lambda name: "", name="greet")
    created = host.create(T, request(Agent(LLM("m", base_url=greeter.url), tools=[tool]), id="a"))
    assert [(tool.name, tool.executor) for tool in created.tools] == [("greet", "client")]
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    call = offered(host, "a").call
    until(lambda: host.stats()["running"] == 0)
    assert host.status(T, "a") == "running"
    host.execute(T, "a", Claim(call.id, "me"))
    host.execute(T, "a", Claim(call.id, "me"))
    with pytest.raises(Conflict, match="claimed by 'me'"):
        host.execute(T, "a", Claim(call.id, "you"))
    host.close(T, "a")
    assert not host.get(T, "a").open  # parked, and still the client's
    host.start(T, "a")
    host.execute(T, "a", Return(call.id, "me", ToolResult(content="hello you")))
    finished(host, "a")
    assert host.output(T, "a", call.id).content[0].text == "hello you"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_client_that_is_gone_has_its_claim_settled_and_one_that_is_heard_of_keeps_it(
    tmp_path: Path,
) -> None:
    now = [0.0]
    with host_of(tmp_path, clock=lambda: now[0], claim_timeout=100.0, client_grace=30.0) as host:
        tool = Tool.from_function(lambda name: "", name="greet")
        for id in ("lost", "kept", "never"):
            host.create(T, saying(("greet", {"name": "you"}), "done", tools=[tool], id=id))
            host.start(T, id)
            host.execute(T, id, Send("go"))
            call = offered(host, id).call
            if id != "never":
                host.execute(T, id, Claim(call.id, f"client-{id}"))

        def pass_time(steps: int) -> None:
            for _ in range(steps):
                now[0] += 10.0
                host.claims.note_alive(T, "client-kept")
                host.claims.note_alive("acme", "client-lost")  # another tenant's
                host.tend()

        # One step more than the grace, because a claim may be noticed at the next one.
        pass_time(5)
        finished(host, "lost")
        (result,) = [
            event for event in host.read(T, "lost") if isinstance(event, ev.ToolCallFinished)
        ]
        assert result.result.error is not None
        assert result.result.error.type == "unknown"
        assert "gone" in result.result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
        assert host.state(T, "kept").offers[0].runner == "client-kept"
        assert host.state(T, "never").offers[0].runner == ""
        pass_time(8)
        finished(host, "never")
        assert host.state(T, "kept").offers
        assert host.stats()["client_calls"] == 1


def test_a_claim_has_its_tools_timeout_also_after_a_restart_and_then_anew(tmp_path: Path) -> None:
    now = [0.0]
    tool = Tool.from_function(lambda name: "", name="greet", timeout=20.0)
    with host_of(tmp_path, clock=lambda: now[0]) as host:
        host.create(T, saying(("greet", {"name": "you"}), "done", tools=[tool], id="a"))
        host.start(T, "a")
        host.execute(T, "a", Send("go"))
        host.execute(T, "a", Claim(offered(host, "a").call.id, "me"))
        now[0] += 15.0
        host.claims.note_alive(T, "me")
        host.tend()
        assert host.state(T, "a").offers
    with host_of(tmp_path, clock=lambda: now[0]) as host:
        host.recover()
        until(lambda: host.stats()["client_calls"] == 1)
        now[0] += 15.0
        host.claims.note_alive(T, "me")
        host.tend()
        assert host.state(T, "a").offers
        now[0] += 6.0
        host.claims.note_alive(T, "me")
        host.tend()
        # its script begins anew, and offers the next call at once
        until(lambda: "toolResult" in types(host, "a"))
        results = [event for event in host.read(T, "a") if isinstance(event, ev.ToolCallFinished)]
        assert results[0].result.error is not None
        assert results[0].result.error.type == "timeout"


def test_tools_come_and_go_in_the_middle_of_a_conversation(host: Host) -> None:
    one, two = Tool.from_function(greet), Tool.from_function(greet, name="two")
    host.create(T, saying("first", "second", "third", tools=[one], id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("hello"))
    finished(host, "a")
    forms = tools_of(Agent(ScriptedLLM([]), tools=[one, two]))
    info = host.set_tools(T, "a", ToolsRequest(tools=forms))
    assert [tool.name for tool in info.tools] == ["greet", "two"]
    host.execute(T, "a", Send("again"))
    until(lambda: host.state(T, "a").answer == "second")
    host.close(T, "a")
    host.start(T, "a")
    host.set_tools(T, "a", ToolsRequest(tools=forms[1:]))
    host.execute(T, "a", Send("once more"))
    finished(host, "a")
    heads = [
        [tool.name for tool in event.tools]
        for event in host.read(T, "a")
        if isinstance(event, ev.AgentConfigured)
    ]
    assert heads[0] == ["greet"]
    assert heads[1] == ["greet", "two"]
    assert heads[-1] == ["two"]
    assert [tool.name for tool in host.get(T, "a").tools] == ["two"]


def test_where_clients_may_run_nothing_a_call_of_theirs_alone_fails(host: Host) -> None:
    tool = Tool.from_function(lambda name: "", name="greet")
    created = host.create(
        T, saying(("greet", {"name": "you"}), "done", tools=[tool], id="a", client_tools=False)
    )
    assert created.tools[0].executor == "unavailable"
    assert created.tools[0].warning
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    finished(host, "a")
    assert host.state(T, "a").answer == "done"


def test_a_confirmed_call_runs_once_it_is_approved(host: Host) -> None:
    with LocalRuntime() as runtime:
        agent = Agent(
            ScriptedLLM(
                [
                    [("terminal", {"command": "echo one"}), ("terminal", {"command": "echo two"})],
                    "done",
                ]
            ),
            tools=runtime.tools,
            confirm=["terminal"],
        )
        host.create(T, request(agent, id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    finished(host, "a", status="waiting_for_confirmation")
    first, second = host.state(T, "a").pending_confirmations
    with pytest.raises(Conflict, match="other arguments"):
        host.execute(T, "a", Approve(first.call.id, second.arguments_hash))
    host.execute(T, "a", Approve(first.call.id, "", {"command": "echo other"}), "k")
    host.execute(T, "a", Approve(first.call.id, "", {"command": "echo other"}), "k")
    host.execute(T, "a", Reject("", "no"))
    finished(host, "a")
    assert "other" in host.output(T, "a", first.call.id).content[0].text  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(NotPending, match="waits for a decision"):
        host.execute(T, "a", Approve("", ""))


def test_a_key_stands_for_one_command_and_what_did_not_fit_does_not_fit_again(host: Host) -> None:
    host.create(T, saying("hi", id="a"))
    host.create(T, saying("hi", id="b"))
    host.execute(T, "a", Send("one", "e1"), "k")
    host.execute(T, "a", Send("one", "e1"), "k")
    host.execute(T, "b", Send("another", "e1"), "k")
    for other in (Send("two", "e1"), Pause()):
        with pytest.raises(Conflict, match="'k' was used for another request"):
            host.execute(T, "a", other, "k")
    assert types(host, "a").count("message") == types(host, "b").count("message") == 1
    for _ in range(2):
        with pytest.raises(NotPending, match=r"'9\.9' is not open"):
            host.execute(T, "a", Claim("9.9", "c"), "claim")


def test_a_decision_reads_no_journal(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [[("greet", {"name": str(number)}) for number in range(3)], "done"]
    agent = Agent(ScriptedLLM(script), [greet], confirm="always")
    host.create(T, request(agent, id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    counts: list[int] = []
    for name in ("read", "tail"):
        method = getattr(host._store, name)

        def counted(*arguments: Any, method: Any = method) -> Any:
            events = method(*arguments)
            counts.append(len(events))
            return events

        monkeypatch.setattr(host._store, name, counted)
    finished(host, "a", status="waiting_for_confirmation")
    counts.clear()
    host.execute(T, "a", Reject(host.state(T, "a").pending_confirmations[0].call.id, "no"))
    counts.clear()  # the test itself has read the state
    host.execute(T, "a", Reject("", "no"))
    assert counts == []
    finished(host, "a")


def test_a_decision_under_a_key_is_about_the_calls_that_waited_then(host: Host) -> None:
    script = [
        [("greet", {"name": "a"}), ("greet", {"name": "b"})],
        ("greet", {"name": "c"}),
        "done",
    ]
    host.create(T, request(Agent(ScriptedLLM(script), [greet], confirm="always"), id="a"))
    for _ in range(2):
        with pytest.raises(NotPending, match="No call waits"):
            host.execute(T, "a", Approve("", ""), "k")
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    finished(host, "a", status="waiting_for_confirmation")
    first = host.state(T, "a").pending_confirmations[0].call.id
    for _ in range(2):
        with pytest.raises(ToolValidationError, match="name"):
            host.execute(T, "a", Approve(first, "", {"name": 1}), "wrong")
    with pytest.raises(Conflict, match="'k' was used for another request"):
        host.execute(T, "a", Reject(""), "k")
    with pytest.raises(NotPending, match="No call waits"):  # the same answer as the first time
        host.execute(T, "a", Approve("", ""), "k")
    host.execute(T, "a", Reject(""), "now")
    until(lambda: len(host.state(T, "a").pending_confirmations) == 1)
    host.execute(T, "a", Reject(""), "now")
    with pytest.raises(Conflict):
        host.execute(T, "a", Approve("", ""), "now")
    assert len(host.state(T, "a").pending_confirmations) == 1, (
        "the one that came later was not asked about"
    )


# --- opening and parking ---


@pytest.mark.slow
def test_many_that_ask_for_a_parked_one_at_once_open_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.server import agents

    openings: list[Any] = []
    live = agents.LocalConversation

    def counted(*arguments: Any) -> Any:
        openings.append(1)
        time.sleep(0.05)
        return live(*arguments)

    monkeypatch.setattr(agents, "LocalConversation", counted)
    with host_of(tmp_path) as host:
        host.create(T, saying(*["hi"] * 200, id="a"))
        gate = threading.Barrier(100)

        def ask(number: int) -> None:
            gate.wait()
            host.execute(T, "a", Send(f"message {number % 50}"), key=f"key {number % 50}")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(openings) == 1
        assert types(host, "a") == ["message"] * 50


@pytest.mark.slow
def test_what_rests_is_parked_and_costs_no_thread_and_comes_back(tmp_path: Path) -> None:
    now = [0.0]
    before = Owned()
    with host_of(tmp_path, clock=lambda: now[0], idle=60.0) as host:
        with LocalRuntime() as runtime:
            tools = runtime.tools
        for id in ("a", "b"):
            host.create(
                T, saying(("terminal", {"command": "echo hi"}), "one", "two", tools=tools, id=id)
            )
            host.start(T, id)
            host.execute(T, id, Send("hello"))
            finished(host, id)
        until(lambda: host.stats()["running"] == 0)
        now[0] += 61.0
        host.tend()
        now[0] += 61.0
        host.tend()
        assert (host.stats()["open"], host.stats()["workspaces"]) == (0, 0)
        until(lambda: host.stats()["threads"] == 0, "the pool's end", seconds=20.0)
        threads = [
            name for name in before.new() if name.startswith("holdfast") and "timer" not in name
        ]
        assert threads == []
        host.execute(T, "a", Send("again"))
        until(lambda: host.status(T, "a") == "finished" and host.state(T, "a").steps >= 3)
    before.wait_until_released()


def test_at_most_so_many_are_open_and_the_one_that_rests_longest_goes_first(tmp_path: Path) -> None:
    with host_of(tmp_path, max_running=1, bounds=Bounds(open=2)) as host:
        for number in range(4):
            host.create(T, saying("hi", id=f"c{number}"))
            host.execute(T, f"c{number}", Send("hello"))
        assert [number for number in range(4) if host.get(T, f"c{number}").open] == [2, 3]
        with (
            host._scheduler.conversations.use("c0"),
            host._scheduler.conversations.use("c1"),
            pytest.raises(TooMany, match="2 conversations"),
        ):
            host.execute(T, "c2", Send("hello"))
        host.execute(T, "c2", Send("hello"))


def test_an_agent_that_cannot_be_made_is_told_and_harms_nobody(tmp_path: Path) -> None:
    agent = Agent(LLM("m", base_url="http://127.0.0.1:9/v1", api_key="${MODEL_KEY}"))
    with host_of(tmp_path, variables={"MODEL_KEY": "sk"}) as host:
        host.create(T, request(agent, id="a"))
        host.create(T, saying("fine", id="b"))
        with pytest.raises(ConfigurationError, match="OTHER"):
            host.create(T, request(Agent(LLM("gpt-5", api_key="${OTHER}")), id="c"))
        with pytest.raises(ConfigurationError):
            host.create(
                T, CreateRequest(agent={"system_prompt": {"file": "/etc/passwd"}, "model": "m"})
            )
        assert len(host.list(T).items) == 2
        host.execute(T, "a", Send("hello"))
        host.execute(T, "b", Send("hello"))
        host.close(T, "a")
        host._records.set_driven(host._records.find(T, "a"), 2)
        host._records.set_driven(host._records.find(T, "b"), 2)
        lease = host._store.acquire("a")
        host._store.release(lease)
    with host_of(tmp_path) as host:  # without the variable
        host._store.post("a", Send("more"))
        host.recover()
        error = until(lambda: host.get(T, "a").error, "an error")
        assert "MODEL_KEY" in error
        with pytest.raises(ConfigurationError, match="MODEL_KEY"):
            host.execute(T, "a", Send("hello"))
        assert host.read(T, "a")
        host.start(T, "b")
        finished(host, "b")


def test_a_servers_key_goes_to_nobody_but_the_models_own_provider(tmp_path: Path) -> None:
    with host_of(tmp_path, variables={"OPENAI_API_KEY": "sk-of-the-server"}) as host:
        host.create("acme", request(Agent(LLM("gpt-5", api_key="${OPENAI_API_KEY}"))))
        for form in (
            {
                "model": {
                    "name": "gpt-5",
                    "api_key": "${OPENAI_API_KEY}",
                    "base_url": "http://127.0.0.1:9/v1",
                }
            },
            {
                "model": {
                    "name": "gpt-5",
                    "api_key": "${OPENAI_API_KEY}",
                    "proxy": "http://127.0.0.1:9",
                }
            },
            {"model": {"name": "gpt-5"}, "system_prompt": "say ${OPENAI_API_KEY}"},
            {
                "model": {"name": "ollama/llama3", "api_key": "${OPENAI_API_KEY}"}
            },  # on this machine, where any program may listen
            {
                "model": {"name": "groq/llama-3.3-70b-versatile", "api_key": "${OPENAI_API_KEY}"}
            },  # another provider's
            {
                "model": {
                    "name": "gpt-5",
                    "api_key": "x",
                    "base_url": "http://127.0.0.1:9/${OPENAI_API_KEY}",
                }
            },
        ):
            with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
                host.create("acme", CreateRequest(agent=form))


def test_a_key_of_a_name_of_its_own_is_for_the_provider_that_the_operator_says(
    tmp_path: Path,
) -> None:
    variables = {
        "TEAM": "sk-of-the-server",
        "groq:TEAM": "sk-of-the-server",
        "ollama:TEAM": "sk-of-the-server",
    }
    with host_of(tmp_path, variables=variables) as host:
        host.create("acme", request(Agent(LLM("groq/llama-3.3-70b-versatile", api_key="${TEAM}"))))
        for name in ("gpt-5", "ollama/llama3"):
            with pytest.raises(ConfigurationError, match="TEAM"):
                host.create(
                    "acme", CreateRequest(agent={"model": {"name": name, "api_key": "${TEAM}"}})
                )


def test_a_fork_tells_no_secret_of_what_it_was_forked_from(tmp_path: Path) -> None:
    model = {"name": "gpt-5", "api_key": "${secret_1}"}
    with host_of(tmp_path) as host:
        host.create(
            T,
            CreateRequest(
                id="a", agent={"model": model}, secrets={"secret_1": "sk-planted-secret"}
            ),
        )
        for agent in ({"model": {**model, "base_url": "http://127.0.0.1:9/v1"}}, {"model": model}):
            with pytest.raises(ConfigurationError, match="secret_1"):
                host.fork(T, "a", ForkRequest(agent=agent))
        host.fork(
            T,
            "a",
            ForkRequest(id="b", agent={"model": model}, secrets={"secret_1": "sk-another-secret"}),
        )
        host.fork(T, "b", ForkRequest(id="c"))  # unchanged


@pytest.mark.parametrize(
    "shown",
    [
        {"system_prompt": "${secret_1}"},
        {"system_prompt_extensions": ["say ${secret_1:-it}"]},
        {"microagents": ["$${${secret_1}"]},
        {"tools": {"builtin": ["${secret_1}"]}},
        {"model": {"name": "gpt-5", "extra_body": {"user": "${secret_1}"}}},
    ],
)
def test_a_secret_stands_nowhere_where_it_would_be_shown(
    tmp_path: Path, shown: dict[str, Any]
) -> None:
    with host_of(tmp_path) as host:
        with pytest.raises(ConfigurationError, match="field that is shown"):
            host.create(
                T,
                CreateRequest(
                    agent={"model": "gpt-5", **shown}, secrets={"secret_1": "sk-planted-secret"}
                ),
            )
        host.create(T, CreateRequest(agent={"model": "gpt-5", "system_prompt": "say $${secret_1}"}))


def test_secrets_are_nowhere_in_clear(tmp_path: Path) -> None:
    with ModelServer(lambda _: text("hi")) as server, host_of(tmp_path) as host:
        agent = Agent(LLM("m", base_url=server.url, api_key="sk-planted-secret"))
        creation = request(agent, id="a")
        host.create(T, creation, "key")
        host.start(T, "a")
        host.execute(T, "a", Send("hello"))
        finished(host, "a")
        assert server.requests[0].headers["authorization"] == "Bearer sk-planted-secret"
        for text_form in (
            repr(creation),
            repr(host._records.find(T, "a")),
            repr(host),
            str(host.get(T, "a")),
            host.state(T, "a").to_json().decode(),
        ):
            assert "sk-planted" not in text_form
        # A client that writes a key into the field of a name must not get it stored in clear.
        host.create(
            T,
            CreateRequest(agent={"model": {"name": "gpt-5", "api_key": "sk-planted-too"}}, id="b"),
            "another key",
        )
        for file in tmp_path.rglob("*"):
            if file.is_file():
                assert b"sk-planted" not in file.read_bytes(), file


# --- the feed ---


def collect(host: Host, id: str, last: int, after: int = 0) -> list[int]:
    async def read() -> list[int]:
        seqs: list[int] = []
        with host.feed(T, id).subscribe(asyncio.get_running_loop()) as reader:
            at = after
            while at < last:
                batch = await asyncio.wait_for(reader.next(at), 30)
                seqs += [frame.seq for frame in batch.frames]
                at = seqs[-1] if seqs else at
        return seqs

    return asyncio.run(read())


@pytest.mark.slow
def test_readers_get_each_event_once_in_order_wherever_they_begin(host: Host) -> None:
    host.create(T, saying("hi", id="a"))
    model_called = threading.Event()

    def ask() -> None:
        for number in range(300):
            host.execute(T, "a", Send(f"message {number}"))
            model_called.set()

    thread = threading.Thread(target=ask)
    thread.start()
    model_called.wait(30)
    results: list[list[int]] = []
    readers = [
        threading.Thread(target=lambda after=after: results.append(collect(host, "a", 300, after)))
        for after in (0, 0, 7, 200)
    ]
    for reader in readers:
        reader.start()
    for reader in (thread, *readers):
        reader.join(60)
    assert sorted(map(len, results)) == [100, 293, 300, 300]
    assert all(seqs == list(range(seqs[0], 301)) for seqs in results)
    assert collect(host, "a", 300) == list(range(1, 301))
    assert host.stats()["readers"] == 0


@pytest.mark.slow
def test_slow_readers_hold_nothing_and_hold_up_nobody(host: Host) -> None:
    host.create(T, saying("hi", id="a"))

    async def read() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        feed = host.feed(T, "a")
        slow = [feed.subscribe(loop) for _ in range(200)]
        for reader in slow:  # each waits once, gets the first event, and then makes no progress
            assert (await reader.next(0, 0.0)).frames == []
        with feed.subscribe(loop) as fast:
            asking = loop.run_in_executor(
                None, lambda: [host.execute(T, "a", Send("x" * 1000)) for _ in range(600)]
            )
            seqs: list[int] = []
            while len(seqs) < 600:
                seqs += [
                    frame.seq for frame in (await asyncio.wait_for(fast.next(len(seqs)), 30)).frames
                ]
            await asking
            ring_size = len(feed._ring)
            seqs_read: list[int] = []
            while len(seqs_read) < 600:
                page = (await slow[0].next(len(seqs_read), limit=600)).frames
                assert sum(len(frame.data) for frame in page) < 200_000
                seqs_read += [frame.seq for frame in page]
            assert seqs_read == list(range(1, 601))
            assert [frame.seq for frame in (await slow[1].next(590)).frames] == list(
                range(591, 601)
            )
        for reader in slow:
            reader.close()
        return seqs, ring_size

    seqs, ring_size = asyncio.run(read())
    assert seqs == list(range(1, 601))
    assert ring_size == 256


def test_a_reader_that_waits_is_told_of_the_end_and_of_its_time(host: Host) -> None:
    host.create(T, saying("hi", id="a"))
    host.execute(T, "a", Send("hello"))

    async def read() -> None:
        loop = asyncio.get_running_loop()
        with (
            host.feed(T, "a").subscribe(loop) as reader,
            host.feed(T, "a").subscribe(loop) as other,
        ):
            batch = await reader.next(1, 0.05)
            assert (batch.frames, batch.notes, batch.ended) == ([], [], False)
            waiting = [asyncio.ensure_future(one.next(1, 30)) for one in (reader, other)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await loop.run_in_executor(None, host.delete, T, "a")
            assert (await waiting[0]).ended

    asyncio.run(read())


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_deltas_of_an_answer_are_transient_notes(tmp_path: Path, isolation: str) -> None:
    with host_of(tmp_path, isolation=isolation) as host:
        host.create(
            T, request(Agent(ScriptedLLM(["streamed answer"], stream=True)), id="a", deltas=True)
        )
        host.start(T, "a")
        notes = asyncio.run(notes_of_a_run(host))
    assert "".join(note["text"] for kind, note in notes if kind == "delta") == "streamed answer"


async def notes_of_a_run(host: Host) -> list[tuple[str, Any]]:
    notes: list[tuple[str, Any]] = []
    loop = asyncio.get_running_loop()
    with host.feed(T, "a").subscribe(loop) as reader:
        asking = loop.run_in_executor(None, host.execute, T, "a", Send("hello"))
        at = 0
        while host.status(T, "a") != "finished" or at < len(host.read(T, "a")):
            batch = await asyncio.wait_for(reader.next(at), 30)
            notes += [(note.kind, json.loads(note.data)) for note in batch.notes]
            if batch.frames:
                at = batch.frames[-1].seq
        await asking
    return notes


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_question_waits_for_its_answer_and_progress_is_a_transient_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "asking_parts.py").write_text(
        "from holdfast import ToolContext, tool\n\n"
        "@tool\n"
        "def travel(context: ToolContext) -> str:\n"
        "    context.report_progress('packing')\n"
        "    form = {'type': 'object', 'properties': {'city': {'type': 'string'}}}\n"
        "    return str(context.ask('Where to?', form))\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    policy = Policy(["asking_parts"], entry_points=False)
    with host_of(tmp_path, isolation=isolation, policy=policy) as host:
        script = [{"name": "travel", "arguments": {}}, "done"]
        creation = request(Agent(ScriptedLLM(script)), id="a", questions=True)
        form = {**creation.agent, "tools": {"builtin": ["travel"]}}
        tools = [ToolForm(name="travel", input_schema={"type": "object"}, module="asking_parts")]
        host.create(T, msgspec.structs.replace(creation, agent=form, tools=tools))
        host.start(T, "a")

        async def answered() -> list[tuple[str, Any]]:
            loop = asyncio.get_running_loop()
            notes = loop.create_task(notes_of_a_run(host))

            def answer() -> None:
                questions = until(
                    lambda: [
                        event.question
                        for event in host.read(T, "a")
                        if isinstance(event, ev.DecisionMade) and event.question is not None
                    ]
                )
                host.execute(T, "a", Answer(questions[0].id, {"city": "Ghent"}))

            await loop.run_in_executor(None, answer)
            return await notes

        notes = asyncio.run(asyncio.wait_for(answered(), 40))
        (result,) = [one for one in host.read(T, "a") if isinstance(one, ev.ToolCallFinished)]
        assert "Ghent" in result.result.text
    assert [note["message"] for kind, note in notes if kind == "progress"] == ["packing"]


# --- restarts ---


def test_a_run_that_a_shutdown_cut_off_goes_on_and_a_paused_one_stays_paused(
    tmp_path: Path,
) -> None:
    release = threading.Event()

    def answer(model_request: Request) -> Any:
        release.wait(30)
        return text("done")

    with ModelServer(answer) as server:
        agent = Agent(LLM("m", base_url=server.url, api_key="sk"))
        with host_of(tmp_path) as host:
            for id in ("started", "run", "paused", "parked"):
                host.create(T, request(agent, id=id))
                host.execute(T, id, Send("go"))
                host.run(T, id) if id == "run" else host.start(T, id)
                finished(host, id, status="running")
            until(lambda: len(server.requests) == 4)
            host.execute(T, "paused", Pause())
            host.execute(T, "paused", Interrupt())
            host.close(T, "parked")
        release.set()
        with host_of(tmp_path) as host:
            host.recover()
            finished(host, "started")
            finished(host, "run")
            assert (host.status(T, "paused"), host.status(T, "parked")) == ("paused", "running")
            until(lambda: host.stats()["recovering"] == 0)
            assert not host.get(T, "parked").open
            host.execute(T, "paused", Resume())
            finished(host, "paused")
            host.run(T, "parked")
            finished(host, "parked")
            until(lambda: set(host._records.driven()) == {(T, "started"), (T, "paused")})


@pytest.mark.slow
def test_a_killed_host_is_followed_by_one_that_finishes_all(tmp_path: Path) -> None:
    count, steps = 10, 6

    def answer(model_request: Request) -> Any:
        count_done = sum(1 for message in model_request.messages if message["role"] == "tool")
        if count_done == steps:
            return text("done")
        return calls(("terminal", {"command": f"echo {count_done} >> effects; sleep 0.05"}))

    program = REPO / "tests" / "server_host_program.py"
    conversations = [("default" if number % 2 else "acme", f"c{number}") for number in range(count)]
    with ModelServer(answer) as server:
        child = forks.Popen(
            [sys.executable, str(program), str(tmp_path), server.url, str(count)],
            stdout=subprocess.PIPE,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"asked\n"
            until(lambda: len(server.requests) >= 2 * count, "progress", seconds=60)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]
        with host_of(tmp_path) as host:
            running = [
                item.id
                for tenant in ("default", "acme")
                for item in host.list(tenant, "running").items
            ]
            assert running
            host.recover()
            for tenant, id in conversations:
                finished(host, id, tenant)
            for tenant, id in conversations:
                state = host.state(tenant, id)
                assert state.answer == "done"
                effects = (
                    (tmp_path / "workspaces" / tenant / host.get(tenant, id).workspace / "effects")
                    .read_text()
                    .split()
                )
                assert len(effects) == len(set(effects)), f"{id}: a command was repeated: {effects}"
                unknown = [
                    event
                    for event in state.events
                    if isinstance(event, ev.ToolCallFinished) and event.result.is_error
                ]
                assert len(effects) >= steps - len(unknown)


@pytest.mark.slow
def test_what_another_process_posts_to_a_parked_one_is_heard(host: Host) -> None:
    host.create(T, saying("one", "two", id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("hello"))
    finished(host, "a")
    until(lambda: host.stats()["running"] == 0)
    assert host._scheduler.conversations.park("a")
    host._store.post("a", Send("from elsewhere"))
    until(lambda: host.state(T, "a").steps == 2)


# --- workspaces ---


def test_a_workspace_is_a_private_folder_that_stays_while_it_is_used(
    host: Host, tmp_path: Path
) -> None:
    id = host.workspaces.create(T)
    with pytest.raises(Conflict):
        host.workspaces.create(T, id)
    folder = tmp_path / "workspaces" / T / id
    assert folder.stat().st_mode & 0o777 == 0o700
    with host.workspace(T, id) as runtime:
        runtime.write_file("a.txt", "hello")
        with pytest.raises(Conflict, match="in use"):
            host.workspaces.delete(T, id)
    with LocalRuntime() as other:
        creation = saying(
            ("terminal", {"command": "cat a.txt"}), "done", tools=other.tools, id="a", workspace=id
        )
    host.create(T, creation)
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    finished(host, "a")
    assert "hello" in host.state(T, "a").to_json().decode()
    with pytest.raises(Conflict, match="in use"):
        host.workspaces.delete(T, id)
    host.close(T, "a")
    host.workspaces.delete(T, id)
    assert list((tmp_path / "workspaces" / T).iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"workspace .* was deleted"):
        host.execute(T, "a", Send("more"))
    host.delete(T, "a")


def test_bounds_are_told_by_their_names(tmp_path: Path) -> None:
    bounds = Bounds(conversations=1, workspaces=1, tools=1, tools_bytes=2000, agent_bytes=2000)
    with host_of(tmp_path, bounds=bounds) as host:
        host.workspaces.create(T)
        host.workspaces.create("acme")
        one, two = Tool.from_function(greet), Tool.from_function(greet, name="two")
        attempts: dict[str, Callable[[], Any]] = {
            "workspaces": lambda: host.workspaces.create(T),
            "tools": lambda: host.create(T, saying("hi", tools=[one, two])),
            "tools_bytes": lambda: host.create(
                T, saying("hi", tools=[Tool.from_function(greet, description="x" * 3000)])
            ),
            "agent_bytes": lambda: host.create(T, saying("x" * 3000)),
        }
        for bound, attempt in attempts.items():
            with pytest.raises(TooMany) as caught:
                attempt()
            assert caught.value.bound == bound
        host.create(T, saying("hi"))
        with pytest.raises(TooMany, match="conversations"):
            host.create(T, saying("hi"))


@pytest.mark.slow
def test_one_store_has_one_server(host: Host, tmp_path: Path) -> None:
    from holdfast.server.records import Records
    from holdfast.server.sealing import Seal

    with pytest.raises(StoreError, match="Another server"):
        host_of(tmp_path)
    Records(
        tmp_path / "store.db.server.db", Seal.of_file(tmp_path / "server.key")
    ).close()  # keys are stored beside it


@pytest.mark.slow
def test_after_shutdown_everything_says_so_and_nothing_is_left(tmp_path: Path) -> None:
    before = Owned()
    host = host_of(tmp_path)
    host.create(T, saying("hi", id="a"))
    host.start(T, "a")
    host.execute(T, "a", Send("go"))
    host.shutdown()
    host.shutdown()
    with pytest.raises(StoreError, match="clos"):
        host.execute(T, "a", Send("more"))
    before.wait_until_released()


@pytest.mark.parametrize("removed", ["store.db", "store.db.server.db"])
def test_a_host_whose_files_were_removed_says_so(tmp_path: Path, removed: str) -> None:
    with host_of(tmp_path) as host:
        host.create(T, saying("hi", id="a"))
        host.check()
        (tmp_path / removed).rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="was removed or replaced"):
            host.check()
        with pytest.raises(StoreError, match="was removed or replaced"):
            host.create(T, saying("hi", id="b"))
        (tmp_path / "elsewhere").rename(tmp_path / removed)
        host.create(T, saying("hi", id="c"))
