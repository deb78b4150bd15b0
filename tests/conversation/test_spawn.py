"""Conversations that a call spawns: their ids, their owner, their end, and that a repeated call
finds them again."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from holdfast.commands import Send
from holdfast.conversation.totals import totals
from holdfast.errors import ConfigurationError, ConversationBusy
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.shapes import CreateRequest, ToolForm
from holdfast.store import Amount, Budget, Reservation, Settlement, Shortage, Store
from holdfast.store.salvage import salvage
from holdfast.store.transfer import export_conversation, import_conversations
from holdfast.tools.tool import RetryPolicy
from tests import forks
from tests.model_server import ModelServer, Request, calls, text
from tests.waiting import until


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore()
        if request.param == "memory"
        else SQLiteStore(tmp_path / "store.db", "process")
    ) as backend:
        yield backend


def child_agent(**more: Any) -> Agent:
    return Agent(ScriptedLLM(lambda request: f"did {request.text}"), **more)


def run(
    store: Store, tool: Callable[..., Any], *calls: Any, id: str = "root", **more: Any
) -> Conversation:
    """Return a conversation at rest whose model made these calls of `tool` in one answer."""
    conversation = Conversation(
        Agent(ScriptedLLM([list(calls), "done"]), [tool], **more), store, id
    )
    conversation.send_message("go")
    conversation.run()
    return conversation


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def test_a_child_has_an_id_of_its_call_and_says_whose_it_is(store: Store) -> None:
    def delegate(context: ToolContext) -> str:
        ids: list[str] = []
        for name in ("", "", "left"):
            with context.spawn(child_agent(), "a task", name=name) as child:
                ids.append(child.id)
                assert child.run().answer == "did a task"
                assert child.spawned_by == context.idempotency_key
        return " ".join(ids)

    with run(store, delegate, ("delegate", {})) as root:
        assert results(root) == ["root.4.0 root.4.0-2 root.4.0-left"]
        assert {child.id for child in root.children} == {"root.4.0", "root.4.0-2", "root.4.0-left"}
        assert {child.spawned_by for child in store.list(spawned_by="root")} == {"root:4.0"}
        assert store.list(["root.4.0"])[0].spawner == "root"
        heads = [
            event.spawned_by
            for event in store.read("root.4.0")
            if isinstance(event, ev.AgentConfigured)
        ]
        assert heads == ["root:4.0"]
        assert totals(store, "root").whole.steps == 2 + 3
        assert store.list(spawned_by="roo") == store.list(spawned_by="root.4.0") == []


@pytest.mark.slow
def test_children_of_children_are_spawned_from_several_threads_without_a_deadlock(
    store: Store,
) -> None:
    def tree(depth: int, context: ToolContext) -> int:
        if depth == 0:
            return 1
        llm = ScriptedLLM([("tree", {"depth": depth - 1}), lambda request: request.text])
        numbers: list[int] = []

        def work(name: str) -> None:
            agent = Agent(
                ScriptedLLM([("tree", {"depth": depth - 1}), lambda request: request.text]), [tree]
            )
            with context.spawn(agent, "go", name=name) as child:
                child.start_thread()
                child.wait(30)
                numbers.append(int(child.state.answer))

        threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert llm.requests == []
        return sum(numbers)

    with run(store, tree, ("tree", {"depth": 3})) as root:
        assert results(root) == ["27"]
    assert len(store.list()) == 1 + 3 + 9 + 27


def test_a_tool_waits_for_a_child_but_a_child_does_not_wait_for_what_it_came_of(
    store: Store,
) -> None:
    roots: list[Conversation] = []

    def wait_for_root() -> str:
        try:
            roots[0].wait()
        except ConversationBusy:
            return "refused"
        return "waited"

    def delegate(context: ToolContext) -> str:
        with context.spawn(
            Agent(
                ScriptedLLM([("wait_for_root", {}), lambda request: request.text]), [wait_for_root]
            ),
            "go",
        ) as child:
            return child.run().answer

    with Conversation(Agent(ScriptedLLM([("delegate", {}), "done"]), [delegate]), store) as root:
        roots.append(root)
        root.send_message("go")
        root.run()
        assert results(root) == ["refused"]


def test_an_attempt_that_is_repeated_gets_the_same_child(store: Store) -> None:
    requests: list[str] = []

    def flaky(context: ToolContext) -> str:
        child = context.spawn(
            Agent(ScriptedLLM(lambda request: requests.append(request.text) or "answer")), "once"
        )
        if context.attempt == 1:
            raise ConnectionError("the network is gone")
        return f"{child.id} {child.run().answer} {len(child.get_history())}"

    tool = Tool(
        "flaky",
        "Fails once.",
        flaky,
        annotations=ToolAnnotations(idempotent=True),
        retry=RetryPolicy(2, "none"),
    )
    with run(store, tool, ("flaky", {})) as root:  # pyright: ignore[reportArgumentType]
        assert results(root) == ["root.4.0 answer 5"]
    assert requests == ["once"]


def test_a_child_of_an_earlier_call_is_opened_by_its_id_and_of_another_conversation_it_is_not(
    store: Store,
) -> None:
    def delegate(id: str, context: ToolContext) -> str:
        with context.spawn(child_agent(), "first", id=id) as child:
            child.send_message("more")
            return child.run().answer

    with Conversation(child_agent(), store, "nobodys") as other:
        other.send_message("hi")
        other.run()
    calls = [
        ("delegate", {"id": "worker"}),
        ("delegate", {"id": "worker"}),
        ("delegate", {"id": "nobodys"}),
        ("delegate", {"id": "a/b"}),
    ]
    with Conversation(Agent(ScriptedLLM([*calls, "done"]), [delegate]), store, "root") as root:
        root.send_message("go")
        root.run()
        first, second, third, fourth = results(root)
    assert first == "did more"
    assert second == "did more"
    assert "'nobodys' exists, and was not spawned by a call" in third
    assert "takes no '/'" in fourth
    assert [event.text for event in store.read("worker") if isinstance(event, ev.MessageAdded)] == [
        "first",
        "more",
        "more",
    ]


def test_children_end_with_their_parent_unless_they_are_detached(store: Store) -> None:
    began = threading.Event()
    children: list[Conversation] = []

    def block(context: ToolContext) -> str:
        began.set()
        context.cancelled.wait(60)
        return "stopped"

    def begin(context: ToolContext) -> str:
        for detached in (False, True):
            child = context.spawn(
                Agent(ScriptedLLM([("block", {}), "on"]), [block]),
                "go",
                name=f"d{int(detached)}",
                detached=detached,
            )
            child.start_thread()
            children.append(child)
        return "begun"

    root = run(store, begin, ("begin", {}))
    assert began.wait(30)
    until(lambda: all(child.state.pending_calls for child in children))
    assert root.hosting.children_busy
    root.interrupt()  # it has no effect on a conversation at rest
    assert [child.status for child in children] == [
        ConversationStatus.RUNNING,
        ConversationStatus.RUNNING,
    ]
    root.close()
    assert [child.status for child in children] == [
        ConversationStatus.CLOSED,
        ConversationStatus.RUNNING,
    ]
    children[1].close()


@pytest.mark.slow
def test_an_interrupt_ends_a_child_that_a_call_waits_for(store: Store) -> None:
    answered = threading.Event()

    def slow(request: Any) -> str:
        answered.set()
        return "never"

    def delegate(context: ToolContext) -> str:
        child = context.spawn(Agent(ScriptedLLM(slow, delay=60)), "go")
        return child.run().status.value

    with Conversation(
        Agent(ScriptedLLM([("delegate", {}), "done"]), [delegate]), store, "root"
    ) as root:
        root.start_thread()
        root.send_message("go")
        until(
            lambda: (
                store.list(spawned_by="root")
                and store.list(spawned_by="root")[0].status == "running"
            )
        )
        root.interrupt()
        until(lambda: results(root))
        assert results(root) == ["paused"]
    assert not answered.is_set()


def test_closing_cuts_off_a_child_and_it_goes_on_when_it_is_opened_again(store: Store) -> None:
    def delegate(context: ToolContext) -> str:
        child = context.spawn(Agent(ScriptedLLM(["never"], delay=60)), "go")
        return child.run().status.value

    root = Conversation(Agent(ScriptedLLM([("delegate", {}), "done"]), [delegate]), store, "root")
    root.start_thread()
    root.send_message("go")
    until(
        lambda: (
            store.list(spawned_by="root") and store.list(spawned_by="root")[0].status == "running"
        )
    )
    root.close()
    with Conversation(child_agent(), store, "root.4.0") as child:
        assert child.run().answer == "did go"
        assert child.spawned_by == "root:4.0"


def test_a_call_that_is_of_no_conversation_spawns_nothing() -> None:
    with pytest.raises(ConfigurationError, match="not of a conversation"):
        ToolContext().spawn(child_agent())


def test_whose_child_it_is_goes_with_export_import_and_salvage_and_not_with_a_fork(
    tmp_path: Path,
) -> None:
    def delegate(context: ToolContext) -> str:
        with context.spawn(child_agent(), "x") as child:
            child.run()
            with child.fork(id="fork") as fork:
                return fork.spawned_by

    path = tmp_path / "store.db"
    with SQLiteStore(path, "process") as store, MemoryStore() as other:
        with run(store, delegate, ("delegate", {})) as root:
            assert results(root) == [""]
        assert store.list(["fork"])[0].spawned_by == ""
        import_conversations(other, export_conversation(store, "root.4.0"))
        assert [one.id for one in other.list(spawned_by="root")] == ["root.4.0"]
    with SQLiteStore(path, read_only=True) as store:
        assert [one.id for one in store.list(spawned_by="root")] == ["root.4.0"]
    assert {one.summary.id: one.summary.spawned_by for one in salvage(path).conversations}[
        "root.4.0"
    ] == "root:4.0"


PROGRAM = """
import os, sys
from holdfast import *
path, log, how = sys.argv[1:]

def note(text):
    with open(log, "a") as file:
        file.write(text + "\\n")

def effect() -> str:
    note("effect")
    return "done"

def after(request):
    note("asked")
    if how == "die":
        os.kill(os.getpid(), 9)
    return "child is done"

def delegate(context: ToolContext) -> str:
    child = Agent(ScriptedLLM(lambda request: ("effect", {}) if len(request.messages) == 2 else after(request)), [effect])
    with context.spawn(child, "go") as conversation:
        return conversation.run().answer

tool = Tool("delegate", "Delegate.", delegate, annotations=ToolAnnotations(idempotent=True))
root = Agent(ScriptedLLM(lambda request: ("delegate", {}) if len(request.messages) == 2 else "all " + request.text), [tool])
with SQLiteStore(path) as store, Conversation(root, store, "root") as conversation:
    if not conversation.get_history():
        conversation.send_message("go")
    print(conversation.run().answer)
"""


@pytest.mark.slow
def test_after_kill_9_the_repeated_call_gets_the_same_child_with_all_that_it_did(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store.db"), str(tmp_path / "log")]
    died = forks.run([*command, "die"], capture_output=True, text=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    lived = forks.run([*command, "live"], capture_output=True, text=True, timeout=60, check=False)
    assert lived.stdout.strip() == "all child is done", lived.stderr
    assert (tmp_path / "log").read_text().split() == ["effect", "asked", "asked"]
    with SQLiteStore(tmp_path / "store.db", read_only=True) as store:
        assert [one.id for one in store.list(spawned_by="root")] == ["root.4.0"]


def test_a_childs_journal_is_replayed_the_same(store: Store) -> None:
    agent = child_agent()

    def delegate(context: ToolContext) -> str:
        with context.spawn(agent, "x") as child:
            child.run()
            return str(child.replay(agent).same)

    with run(store, delegate, ("delegate", {})) as root:
        assert results(root) == ["True"]
        assert root.replay().same


SERVED = """
from holdfast import LLM, Agent, ToolContext, tool

@tool
def delegate(url: str, context: ToolContext) -> str:
    with context.spawn(Agent(LLM("mock", base_url=url), system_prompt="child"), "go") as child:
        return child.run().status.value
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_on_a_server_children_are_the_tenants_share_the_budget_and_go_with_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Any
) -> None:
    (tmp_path / "spawning_parts.py").write_text(SERVED)
    monkeypatch.syspath_prepend(str(tmp_path))

    def answer(request: Request) -> Any:
        child = "child" in request.messages[0]["content"]
        return text("hi") if child else calls(*[("delegate", {"url": server.url})] * 4)

    store = SQLiteStore(tmp_path / "store.db")
    records = Records(tmp_path / "records.db", Seal(b"0" * 32))
    policy = Policy(["spawning_parts"])
    with (
        ModelServer(answer) as server,
        Host(
            store, records, HostSettings(policy=policy, root=tmp_path, isolation=isolation)
        ) as host,
    ):
        form = form_of(
            Agent(LLM("mock", base_url=server.url, api_key="x"), tree_limits=Limits(steps=4))
        )
        schema = {"type": "object", "properties": {"url": {"type": "string"}}}
        tools = [ToolForm(name="delegate", input_schema=schema, module="spawning_parts")]
        agent = {**form.mapping, "tools": {"builtin": ["delegate"]}}
        host.create("acme", CreateRequest(id="a", agent=agent, secrets=form.secrets, tools=tools))
        host.start("acme", "a")
        host.execute("acme", "a", Send((TextContent("go"),)))
        until(lambda: host.status("acme", "a") == "error")
        children = store.list(spawned_by="acme/a")
        assert sorted(one.id for one in children) == [f"acme/a.4.{number}" for number in range(4)]
        assert sorted(one.status for one in children) == [
            "error",
            "finished",
            "finished",
            "finished",
        ]
        assert len(server.requests) == 4
        host.delete("acme", "a")
        assert store.list() == []


def test_what_calls_spawned_is_removed_with_their_conversation_and_answers_for_no_other_one(
    store: Store,
) -> None:
    requests: list[str] = []
    leaf = Agent(
        ScriptedLLM(lambda request: requests.append(request.text) or f"secret of: {request.text}")
    )

    def below(task: str, context: ToolContext) -> str:
        with context.spawn(leaf, task) as child:
            return child.run().answer

    middle = Agent(
        ScriptedLLM(
            lambda request: (
                ("below", {"task": request.text})
                if request.messages[-1]["role"] == "user"
                else request.text
            )
        ),
        [below],
    )

    def delegate(task: str, context: ToolContext) -> str:
        with context.spawn(middle, task) as child:
            return child.run().answer

    for task in ("Alice's salary", "the moon"):
        with run(store, delegate, ("delegate", {"task": task}), id="talk") as root:
            assert results(root) == [f"secret of: {task}"]
        assert sorted(one.id for one in store.list()) == ["talk", "talk.4.0", "talk.4.0.4.0"]
        store.delete("talk")
        assert store.list() == []
        assert store.read("talk.4.0") == []
    assert requests == ["Alice's salary", "the moon"]


def test_a_child_that_somebody_holds_outlives_its_conversation_as_nobodys(store: Store) -> None:
    children: list[Conversation] = []

    def begin(context: ToolContext) -> str:
        children.append(context.spawn(child_agent(), "go", detached=True))
        return children[-1].run().answer

    with run(store, begin, ("begin", {}), id="talk"):
        pass
    store.delete("talk")
    try:
        assert [(one.id, one.spawned_by) for one in store.list()] == [("talk.4.0", "")]
        with run(store, begin, ("begin", {}), id="talk") as again:
            assert "was not spawned by a call" in results(again)[0]
        children[0].send_message("more")
        assert children[0].run().answer == "did more"
        assert store.list(spawned_by="talk") == []
    finally:
        children[0].close()


def test_removed_with_its_budget_a_child_that_is_held_settles_in_none(store: Store) -> None:
    root, child = store.acquire("root"), store.acquire("child")
    store.bound(root, Budget("root", tokens=100))
    assert store.reserve(child, Reservation("child#1", ("root",), Amount(1, 60), 0.0, 0.0)) is None
    store.release(root)
    store.delete("root")
    root = store.acquire("root")
    store.bound(root, Budget("root", tokens=100))
    store.settle([Settlement("child#1", Amount(1, 50))])
    assert store.reserve(
        root, Reservation("root#0", ("root",), Amount(1, 101), 0.0, 0.0)
    ) == Shortage("root", "tokens", 0, 100)
    assert store.reserve(root, Reservation("root#1", ("root",), Amount(1, 100), 0.0, 0.0)) is None


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_no_call_on_a_server_spawns_a_conversation_that_a_client_made(
    tmp_path: Path, isolation: Any
) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    records = Records(tmp_path / "records.db", Seal(b"0" * 32))

    def answer(request: Request) -> Any:
        last = request.messages[-1]
        return (
            text("I am Bob's")
            if "Bob" in str(last)
            else (
                text("done")
                if last["role"] == "tool"
                else calls(("delegate", {"agent": "f", "task": "private"}))
            )
        )

    with (
        ModelServer(answer) as server,
        Host(
            store, records, HostSettings(policy=Policy([]), root=tmp_path, isolation=isolation)
        ) as host,
    ):
        llm = LLM("mock", base_url=server.url, api_key="x")
        for id, agent in (
            ("talk.4.0", Agent(llm)),
            ("talk", Agent(llm, delegates={"f": Agent(llm)})),
        ):
            form = form_of(agent)
            host.create("acme", CreateRequest(id=id, agent=form.mapping, secrets=form.secrets))
        host.start("acme", "talk")
        host.execute("acme", "talk", Send((TextContent("go"),)))
        until(lambda: host.status("acme", "talk") == "finished")
        result = next(
            event.result
            for event in host.state("acme", "talk").events
            if isinstance(event, ev.ToolCallFinished)
        )
        assert result.is_error
        assert "was not spawned by a call" in result.text
        assert host.get("acme", "talk.4.0").last_seq == 0
        host.start("acme", "talk.4.0")
        host.execute("acme", "talk.4.0", Send((TextContent("hi, Bob here"),)))
        until(lambda: host.status("acme", "talk.4.0") == "finished")
        host.delete("acme", "talk")
        assert host.get("acme", "talk.4.0").status == "finished"
