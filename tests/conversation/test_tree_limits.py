"""Budgets of trees: each call reserves its part before it begins, so that racing children never
spend more than the budget."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
    Tool,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.risk import Risk
from holdfast.content import ToolCall, Usage
from holdfast.errors import ConfigurationError, Fenced
from holdfast.llm.completion import Completion
from holdfast.store import Amount, Batch, Budget, Reservation, Settlement, Shortage, Store, Summary
from holdfast.tools.hooks import Hook
from tests import forks
from tests.model_server import ModelServer, Request, calls, text
from tests.waiting import until

NOW = 1_000_000.0


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore()
        if request.param == "memory"
        else SQLiteStore(tmp_path / "store.db", "process")
    ) as backend:
        yield backend


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def delegating(child: Agent) -> Callable[..., str]:
    def delegate(context: ToolContext) -> str:
        with context.spawn(child, "go") as conversation:
            state = conversation.run()
            return state.answer if state.error is None else json.dumps(state.error.details)

    return delegate


# --- the store's part ---


def want(
    key: str, amount: Amount, *roots: str, since: float = NOW, now: float = NOW
) -> Reservation:
    return Reservation(key, roots or ("root",), amount, since, now)


def test_a_store_holds_an_amount_in_all_budgets_or_in_none(store: Store) -> None:
    outer, inner = store.acquire("outer"), store.acquire("inner")
    store.bound(outer, Budget("outer", steps=10))
    store.bound(inner, Budget("inner", steps=2))
    roots = ("inner", "outer")
    assert store.reserve(inner, want("inner#1", Amount(2), *roots)) is None
    assert store.reserve(inner, want("inner#2", Amount(1), *roots)) == Shortage(
        "inner", "steps", 2, 2, True
    )
    assert store.reserve(outer, want("outer#1", Amount(8), "outer")) is None, (
        "nothing of the refused one is held"
    )
    store.settle([Settlement("inner#1", Amount(1)), Settlement("outer#1", Amount())])
    assert store.reserve(inner, want("inner#3", Amount(2), *roots)) == Shortage(
        "inner", "steps", 1, 2, False
    )
    assert store.reserve(outer, want("outer#2", Amount(9), "outer")) is None


def test_what_somebody_held_who_lost_the_lease_is_spent(store: Store) -> None:
    root, child = store.acquire("root"), store.acquire("child")
    store.bound(root, Budget("root", tokens=100))
    assert store.reserve(child, want("child#1", Amount(1, 60))) is None
    assert store.reserve(root, want("root#1", Amount(1, 50))) == Shortage(
        "root", "tokens", 60, 100, True
    )
    store.release(child)
    assert store.reserve(root, want("root#2", Amount(1, 50))) == Shortage(
        "root", "tokens", 60, 100, False
    )
    store.settle([Settlement("child#1", Amount(1, 10))])
    assert store.reserve(root, want("root#3", Amount(1, 41))) == Shortage(
        "root", "tokens", 60, 100, False
    ), "it stays spent"
    with pytest.raises(Fenced):
        store.reserve(child, want("child#2", Amount(1, 1)))


def test_seconds_are_those_in_which_anybody_is_at_work(store: Store) -> None:
    root = store.acquire("root")
    store.bound(root, Budget("root", seconds=25))
    for since, now in ((0.0, 10.0), (5.0, 12.0), (100.0, 110.0)):  # 12 seconds, then 10 others
        assert (
            store.reserve(root, want(f"root#{now}", Amount(1), since=NOW + since, now=NOW + now))
            is None
        )
    shortage = store.reserve(root, want("root#x", Amount(1), since=NOW + 100, now=NOW + 113))
    assert shortage == Shortage("root", "seconds", 25, 25, False)


def test_a_budget_is_known_to_whoever_opens_a_child_and_gone_with_its_root(store: Store) -> None:
    with Conversation(
        Agent(
            ScriptedLLM([("delegate", {}), "done"]),
            [delegating(Agent(ScriptedLLM(["hi"])))],
            tree_limits=Limits(7),
        ),
        store,
        "root",
    ) as root:
        root.send_message("go")
        root.run()
    lease = store.acquire("root.4.0")
    assert lease.budgets == (Budget("root", steps=7),)
    store.release(lease)
    store.delete("root")
    assert store.acquire("root.4.0").budgets == ()
    assert store.acquire("root").budgets == ()


# --- races ---


@pytest.mark.slow
def test_a_hundred_children_race_for_thirty_calls_and_the_server_sees_no_more(store: Store) -> None:
    def answer(request: Request) -> Any:
        if "root" in request.messages[0]["content"]:
            return calls(*[("delegate", {})] * 100)
        time.sleep(0.02)  # so that many are under way at once
        return text("an answer")

    with ModelServer(answer) as server:
        llm = LLM("mock", base_url=server.url)
        tool = delegating(Agent(llm, system_prompt="child"))
        agent = Agent(
            llm, [tool], system_prompt="root", parallel_calls=100, tree_limits=Limits(steps=31)
        )
        with Conversation(agent, store, "tree") as root:
            root.send_message("go")
            state = root.run()
        assert len(server.requests) == 31
    texts = results(root)
    assert texts.count("an answer") == 30
    problems = {json.dumps(json.loads(one), sort_keys=True) for one in texts if one != "an answer"}
    assert problems == {
        json.dumps(
            {
                "type": "steps",
                "value": 31,
                "limit": 31,
                "source": "The tree of conversation 'tree'",
            },
            sort_keys=True,
        )
    }
    assert state.status is ConversationStatus.ERROR
    assert state.error is not None
    assert state.error.error == "LimitExceeded"
    assert root.replay(agent).same


RACER = """
import sys
from holdfast import *
path, url, parts = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
import threading
child = Agent(LLM("mock", base_url=url), system_prompt="child")
store = SQLiteStore(path, "process")
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
def race(id):
    with Conversation(child, store, id) as conversation:
        conversation.send_message("once more")
        conversation.run()
threads = [threading.Thread(target=race, args=(id,)) for id in parts]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
store.close()
"""


@pytest.mark.slow
def test_processes_over_one_file_race_and_the_server_sees_no_more(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def answer(request: Request) -> Any:
        if "root" in request.messages[0]["content"]:
            return calls(*[("delegate", {})] * 100)
        return text("an answer")

    with ModelServer(answer) as server:
        llm = LLM("mock", base_url=server.url)

        def delegate(context: ToolContext) -> str:  # no user can be asked in a child
            with context.spawn(Agent(llm, system_prompt="child"), "go") as child:
                return child.id

        with SQLiteStore(path, "process") as store:
            agent = Agent(
                llm,
                [delegate],
                system_prompt="root",
                tree_limits=Limits(steps=31),
                limits=Limits(steps=1),
            )
            with Conversation(agent, store, "tree") as root:
                root.send_message("go")
                root.run()
                ids = results(root)
        command = [sys.executable, "-c", RACER, str(path), server.url]
        racers = [
            forks.Popen(
                [*command, ",".join(ids[at::4])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for at in range(4)
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.communicate("go\n", timeout=120)
            assert racer.returncode == 0
        assert len(server.requests) == 31
    with SQLiteStore(path, read_only=True) as store:
        statuses = [one.status for one in store.list(spawned_by="tree")]
    assert (statuses.count("finished"), statuses.count("error")) == (30, 70)


KILLED = """
import sys
from holdfast import *
path, url = sys.argv[1:]
llm = LLM("mock", base_url=url)
def delegate(context: ToolContext) -> str:
    with context.spawn(Agent(llm, system_prompt="child"), "go") as child:
        state = child.run()
        return state.answer or "refused"
tool = Tool("delegate", "Delegate.", delegate, annotations=ToolAnnotations(idempotent=True), parallel=True)
agent = Agent(llm, [tool], system_prompt="root", parallel_calls=20, tree_limits=Limits(steps=31))
with SQLiteStore(path) as store, Conversation(agent, store, "tree") as root:
    if not root.get_history():
        root.send_message("go")
    root.run()
    print(*[event.result.text for event in root.get_history() if event.type == "toolResult"])
"""


@pytest.mark.slow
def test_after_kill_9_in_the_middle_of_twenty_children_no_call_goes_beyond_the_budget(
    tmp_path: Path,
) -> None:
    stuck = threading.Event()

    def answer(request: Request) -> Any:
        if "root" in request.messages[0]["content"]:
            return calls(*[("delegate", {})] * 20)
        if not stuck.is_set():
            stuck.wait(60)
        return text("fine")

    with ModelServer(answer) as server:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "store.db"), server.url]
        first = forks.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: len(server.requests) == 21)
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        stuck.set()
        second = forks.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert second.returncode == 0, second.stderr
        assert len(server.requests) == 31, (
            "21 of the first process, whose 20 that broke off are spent, and 10 of the second"
        )
    assert sorted(second.stdout.split()) == ["fine"] * 10 + ["refused"] * 10


# --- estimates ---


class Counted(ScriptedLLM):
    """A model whose answers take up to 50 tokens, at a dollar for a thousand."""

    def parameters(self) -> dict[str, Any]:
        return {"max_output_tokens": 50}

    def cost(self, usage: Usage) -> float | None:
        return (usage.input_tokens + usage.output_tokens) / 1000


class Long(Counted):
    """A model like `Counted`, with answers of up to 500 tokens."""

    def parameters(self) -> dict[str, Any]:
        return {"max_output_tokens": 500}


def completion(answer: str, input_tokens: int, output_tokens: int) -> Completion:
    return Completion(answer, usage=Usage(input_tokens, output_tokens))


@pytest.mark.parametrize(
    ("limits", "kind"), [(Limits(tokens=400), "tokens"), (Limits(cost=0.4), "cost")]
)
def test_tokens_and_cost_are_reserved_by_an_estimate_and_settled_by_usage(
    store: Store, limits: Limits, kind: str
) -> None:
    llm = Counted(
        [completion("one", 100, 10), completion("two", 110, 20), completion("three", 1, 1)]
    )
    with Conversation(Agent(llm, system_prompt="x", tree_limits=limits), store) as root:
        state = root.state
        for number in range(3):
            root.send_message(f"question {number}")
            state = root.run()
    # The first two calls spend 110 and 130. The third would read about 120 of the remaining 160,
    # and may write 50.
    assert len(llm.requests) == 2
    assert state.error is not None
    assert state.error.details["type"] == kind
    assert state.error.details["value"] == pytest.approx(240 if kind == "tokens" else 0.24)
    assert "may take" in state.error.message


def test_what_is_not_known_of_a_model_is_said_when_the_agent_is_made() -> None:
    with pytest.raises(
        ConfigurationError,
        match="tree_limits has tokens, but the maximum length of an answer of 'scripted' is not known",
    ):
        Agent(ScriptedLLM([]), tree_limits=Limits(tokens=100))
    with pytest.raises(
        ConfigurationError, match="tree_limits has a cost, but the price of 'm' is not known"
    ):
        Agent(
            LLM("m", base_url="http://127.0.0.1:9/v1", max_output_tokens=5),
            tree_limits=Limits(cost=1),
        )
    with pytest.raises(ConfigurationError, match="tree_limits takes Limits"):
        Agent(ScriptedLLM([]), tree_limits=5)  # type: ignore[arg-type]


def test_a_child_whose_model_cannot_be_estimated_is_refused_where_tokens_are_bounded(
    store: Store,
) -> None:
    tool = delegating(Agent(ScriptedLLM(["hi"])))
    with Conversation(
        Agent(Counted([("delegate", {}), "done"]), [tool], tree_limits=Limits(tokens=10_000)), store
    ) as root:
        root.send_message("go")
        root.run()
        assert (
            "spawn: the tree has a budget of tokens, but the maximum length of an answer of 'scripted'"
            in results(root)[0]
        )


def test_a_nested_budget_counts_in_all_that_it_stands_in(store: Store) -> None:
    inner = Agent(
        ScriptedLLM([("delegate", {})] * 5),
        [delegating(Agent(ScriptedLLM(lambda _: "leaf")))],
        tree_limits=Limits(steps=3),
    )
    outer = Agent(
        ScriptedLLM([("delegate", {}), "done"]), [delegating(inner)], tree_limits=Limits(steps=50)
    )
    with Conversation(outer, store, "outer") as root:
        root.send_message("go")
        assert root.run().answer == "done"
        assert json.loads(results(root)[0])["source"] == "The tree of conversation 'outer.4.0'"
    lease = store.acquire("outer")
    assert store.reserve(lease, want("outer#x", Amount(50), "outer")) == Shortage(
        "outer", "steps", 5, 50, False
    )


def test_a_call_that_a_provider_refused_is_not_spent(store: Store) -> None:
    with ModelServer([(400, {}, {"error": {"message": "no"}}), text("yes")]) as server:
        agent = Agent(LLM("mock", base_url=server.url), tree_limits=Limits(steps=1))
        with Conversation(agent, store) as root:
            root.send_message("go")
            assert root.run().status is ConversationStatus.ERROR
            assert root.run().answer == "yes"


def test_a_larger_budget_lets_the_tree_go_on_and_what_is_spent_stays_so(store: Store) -> None:
    llm = ScriptedLLM(lambda request: request.text)
    for steps, answered in ((2, 2), (2, 0), (3, 1), (None, 1)):
        before = len(llm.requests)
        with Conversation(
            Agent(llm, tree_limits=None if steps is None else Limits(steps=steps)), store, "root"
        ) as root:
            for _ in range(3 if steps else 1):
                root.send_message("go")
                root.run()
        assert len(llm.requests) - before == answered


# --- waiting for room ---


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupt", "pause", "close", "room"])
def test_a_conversation_that_waits_for_room_follows_its_commands(store: Store, how: str) -> None:
    free, busy = threading.Event(), threading.Event()
    children: dict[str, Conversation] = {}

    def hold(_: Any) -> Any:
        busy.set()
        free.wait(60)
        return completion("held", 10, 10)

    def begin(context: ToolContext) -> str:
        for name, script in (("first", [hold]), ("second", [completion("room", 10, 10)])):
            children[name] = context.spawn(
                Agent(Long(script), system_prompt="x"), "go", name=name, detached=True
            )
            children[name].start_thread()
            assert busy.wait(30)
        return "begun"

    # The root's answer may take some 100 tokens, and each child's some 520, of which it uses
    # 20.
    llm = Counted([("begin", {}), "x"])
    root = Conversation(
        Agent(
            llm, [begin], system_prompt="x", tree_limits=Limits(tokens=900), limits=Limits(steps=1)
        ),
        store,
    )
    try:
        root.send_message("go")
        root.run()
        second = children["second"]
        until(lambda: any(isinstance(event, ev.AgentConfigured) for event in second.get_history()))
        assert second.wait(0.3) is ConversationStatus.RUNNING
        if how == "room":
            free.set()
            assert second.wait(30) is ConversationStatus.FINISHED
        elif how == "close":
            second.close()
            assert second.status is ConversationStatus.CLOSED
        else:
            getattr(second, how)()
            assert second.wait(30) is ConversationStatus.PAUSED
    finally:
        free.set()
        for child in children.values():
            child.close()
        root.close()


def test_a_condensers_model_calls_are_reserved_too(store: Store) -> None:
    from holdfast.agent.condensers import LLMCondenser

    llm = Counted(
        lambda request: completion(
            "a summary" if re.search("summar", request.body.decode(), re.I) else "an answer", 20, 10
        )
    )
    agent = Agent(
        llm, system_prompt="x", condenser=LLMCondenser(), tree_limits=Limits(tokens=100_000)
    )
    with Conversation(agent, store, "root") as root:
        for number in range(6):
            root.send_message(f"question {number} " + "words " * 50)
            root.run()
        root.condense()
        used = root.state.usage
    lease = store.acquire("root")
    short = store.reserve(lease, want("root#x", Amount(0, 100_001)))
    assert short is not None
    assert short.value == used.input_tokens + used.output_tokens, "each call once"


# --- reserved with the previous append ---


def test_an_append_holds_an_amount_with_its_events_or_says_that_there_is_no_room(
    store: Store,
) -> None:
    root = store.acquire("root")
    store.bound(root, Budget("root", steps=2))

    def note(seq: int, key: str, steps: int, *settled: Settlement) -> bool:
        event = ev.NoteRecorded(
            seq=seq, id=f"e{seq}", timestamp=datetime.now(UTC), about="x:y", text="z"
        )
        return store.append(
            root,
            Batch(
                [event],
                Summary("root", "idle", "", seq),
                settlements=settled,
                reservation=want(key, Amount(steps)),
            ),
        )

    assert note(1, "root#1", 2)
    assert not note(2, "root#2", 1), "the event is written all the same"
    assert note(3, "root#3", 1, Settlement("root#1", Amount(1))), (
        "what is settled with it makes room first"
    )
    assert len(store.read("root")) == 3
    assert store.reserve(root, want("root#4", Amount(1))) == Shortage("root", "steps", 2, 2, True)


def steps_remain(store: Store, steps: int) -> bool:
    """Return True if exactly that many steps remain and none is reserved."""
    lease = store.acquire("root")
    exact = (
        store.reserve(lease, want("root#a", Amount(steps))) is None
        and store.reserve(lease, want("root#b", Amount(1))) is not None
    )
    store.settle([Settlement("root#a", Amount())])
    store.release(lease)
    return exact


def looking(then: Callable[[ToolContext], object] = lambda _: None) -> Callable[..., str]:
    def look(context: ToolContext) -> str:
        then(context)
        return "nothing here"

    return look


def test_a_step_after_calls_needs_no_transaction_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    reserve = store.reserve
    monkeypatch.setattr(
        store,
        "reserve",
        lambda lease, reservation: keys.append(reservation.key) or reserve(lease, reservation),
    )
    script: list[Any] = [("look", {}), [("look", {}), ("look", {})], ("look", {}), "done"]
    with Conversation(
        Agent(ScriptedLLM(script), [looking()], tree_limits=Limits(steps=9)), store, "root"
    ) as root:
        root.send_message("go")
        assert root.run().answer == "done"
    monkeypatch.undo()
    assert len(keys) == 1, "the first"
    assert steps_remain(store, 5)


@pytest.mark.parametrize(
    "how", ["pause", "interrupt", "close", "limit", "budget", "error", "message"]
)
def test_what_is_held_for_a_step_that_does_not_follow_is_given_back(store: Store, how: str) -> None:
    roots: list[Conversation] = []

    def act(_: ToolContext) -> None:
        if how in ("pause", "interrupt"):
            getattr(roots[0], how)()
        elif how == "close":
            threading.Thread(target=roots[0].close).start()
            until(lambda: roots[0].status is ConversationStatus.CLOSED)
        elif how == "message":
            roots[0].send_message("and this")

    def contribute(_: Any) -> None:
        if how == "error" and len(llm.requests) == 1:
            raise RuntimeError("no")

    llm = ScriptedLLM([("look", {}), "done"])
    agent = Agent(
        llm,
        [looking(act)],
        tree_limits=Limits(steps=1 if how == "budget" else 9),
        limits=Limits(steps=1 if how == "limit" else 9),
        hooks=[Hook(before=lambda *_: contribute(_), on="model")],
    )
    root = Conversation(agent, store, "root")
    roots.append(root)
    with root:
        root.send_message("go")
        state = root.run()
    ended = {"limit": "LimitExceeded", "budget": "LimitExceeded", "error": "HookDenied"}
    assert (state.error.error if state.error else "") == ended.get(how, "")
    assert len(llm.requests) == (2 if how == "message" else 1)
    assert steps_remain(store, {"message": 7, "budget": 0}.get(how, 8))


def test_who_is_paused_before_a_step_holds_nothing(store: Store) -> None:
    with Conversation(
        Agent(
            ScriptedLLM([("look", {}), "done"]),
            [looking(lambda _: root.pause())],
            tree_limits=Limits(9),
        ),
        store,
        "root",
    ) as root:
        root.send_message("go")
        root.start_thread()
        assert root.wait(30) is ConversationStatus.PAUSED
        lease = store.acquire("other")
        until(lambda: store.reserve(lease, want("other#1", Amount(8))) is None)


def test_whoever_asks_a_model_before_the_step_does_not_wait_for_what_that_one_holds(
    store: Store,
) -> None:
    replies: list[str] = []

    def contribute(situation: Any) -> list[Any]:
        replies.append(situation.llm.completion("x" * 8000).text)
        return []

    def answer(request: Any) -> Completion:
        if "xxxx" in request.text:
            return completion("a", 10, 10)
        first = len(request.messages) == 2
        return (
            Completion("", calls=(ToolCall("", "look", {}),), usage=Usage(10, 10))
            if first
            else completion("done", 10, 10)
        )

    # The question beside the steps may take some 2,700 tokens, and a step more than 500.
    agent = Agent(Long(answer), [looking()], system_prompt="x", tree_limits=Limits(tokens=2950))
    object.__setattr__(agent, "contributors", (contribute,))
    with Conversation(agent, store, "root") as root:
        root.send_message("go")
        root.start_thread()
        assert root.wait(30) is ConversationStatus.FINISHED
    assert replies == ["a", "a"]


# --- any setting, in any order ---


def test_whoever_may_take_over_is_estimated_too(store: Store) -> None:
    endless = Agent(ScriptedLLM([]))
    between = Agent(Counted([]), handoffs={"endless": endless})
    with pytest.raises(
        ConfigurationError,
        match="tree_limits has tokens, but the maximum length of an answer of 'scripted' is not known",
    ):
        Agent(Counted([]), handoffs={"between": between}, tree_limits=Limits(tokens=100))
    root = Agent(
        Counted([("delegate", {}), "done"]),
        [delegating(between)],
        tree_limits=Limits(tokens=10_000),
    )
    with Conversation(root, store) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert (
            "spawn: the tree has a budget of tokens, but the maximum length of an answer"
            in results(conversation)[0]
        )


def test_an_agent_that_cannot_be_estimated_asks_nothing_in_a_bounded_tree(store: Store) -> None:
    with Conversation(
        Agent(Counted(["hi"]), tree_limits=Limits(tokens=10_000)), store, "root"
    ) as root:
        root.send_message("go")
        root.run()
    lease = store.acquire("child")
    store.append(lease, Batch([], Summary("child")))
    event = ev.MessageAdded(seq=1, id="m", timestamp=datetime.now(UTC), content=())
    store.append(
        lease,
        Batch(
            [event],
            Summary(
                "child",
                last_seq=1,
                created=event.timestamp,
                updated=event.timestamp,
                spawned_by="root:4.0",
            ),
        ),
    )
    store.release(lease)
    with Conversation(Agent(ScriptedLLM(lambda _: "never")), store, "child") as child:
        child.send_message("go")
        state = child.run()
        assert state.error is not None
        assert state.error.error == "ConfigurationError"
        assert "give it max_output_tokens" in state.error.message
    # A handoff to such an agent is refused, with a note.
    front = Agent(
        Counted([("handoff", {"agent": "endless"}), "I go on."]),
        handoffs={"endless": Agent(ScriptedLLM([]))},
    )
    with Conversation(front, store, "child") as child:
        child.send_message("go")
        assert child.run().answer == "I go on."


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [
        (
            [(0, 0), (100, 100), (0, 110)],
            110,
        ),  # a root whose tool prepares for long, then its child, then the root again
        ([(0, 10), (20, 30), (40, 50), (5, 45)], 50),
        ([(0, 10), (20, 30), (25, 28)], 20),
        (
            [(1000, 1000), (1000, 4610), (1000, 1020)],
            20,
        ),  # the clock was an hour ahead for one call
        ([(5000, 5010), (1400, 1420), (1400, 1430)], 40),  # and was set back by one
    ],
)
def test_seconds_are_the_union_of_what_is_told(
    store: Store, stretches: list[tuple[float, float]], seconds: float
) -> None:
    root = store.acquire("root")
    store.bound(root, Budget("root", seconds=10_000))
    for number, (since, now) in enumerate(stretches):
        assert (
            store.reserve(
                root, want(f"root#{number}", Amount(), "root", since=NOW + since, now=NOW + now)
            )
            is None
        )
    store.bound(root, Budget("root", seconds=0.5))
    since, now = stretches[-1]
    shortage = store.reserve(
        root, want("root#x", Amount(), "root", since=NOW + since, now=NOW + now)
    )
    assert shortage == Shortage("root", "seconds", seconds, 0.5, False)


def test_a_condenser_that_asked_in_vain_hides_no_other_usage(store: Store) -> None:
    class Vain:
        def shorten(self, work: Any) -> None:
            work.llm.completion("please summarise")

    class Judge:
        def assess(self, call: ToolCall, about: Any) -> Risk:
            return Risk("low", "ok", "judge", Usage(3000, 0), 0.0, "m")

    def script(request: Any) -> Completion:
        if "please" in request.text:
            return completion("s", 3000, 0)
        if request.messages[-1]["role"] == "user":
            return Completion("", calls=(ToolCall("", "noop", {}),), usage=Usage(10, 0))
        return completion("done", 10, 0)

    def noop() -> str:
        """Nothing."""
        return "n"

    agent = Agent(
        Counted(script),
        [noop],
        condenser=Vain(),
        security=Judge(),
        tree_limits=Limits(steps=None, tokens=100_000),
    )
    with Conversation(agent, store, "root") as root:
        root.send_message("a")
        root.run()
        root.condense()
        root.send_message("b")
        root.run()
    lease = store.acquire("root")
    shortage = store.reserve(lease, want("root#x", Amount(0, 10**9), "root"))
    assert shortage is not None
    assert shortage.value == 2 * 3020 + 3000


@pytest.mark.parametrize("asks", ["nobody", "the agent's model", "another model"])
@pytest.mark.parametrize("used", [False, True], ids=["dropped", "used"])
def test_a_condensation_is_counted_once_in_a_trees_budget(
    store: Store, asks: str, used: bool
) -> None:
    summarizing, go_on = threading.Event(), threading.Event()

    class Own:
        def shorten(self, work: Any) -> Condensed:
            if asks == "the agent's model":
                work.llm.completion("please summarise")
            elif asks == "another model":  # the maximum length of its answers is unknown
                work.lend(ScriptedLLM([completion("s", 3000, 0)])).completion("please summarise")
            summarizing.set()
            assert used or go_on.wait(30)
            return Condensed((work.pieces[0].seq,), "s", usage=Usage(3000, 0), model="m")

    agent = Agent(
        Counted(lambda request: completion("s", 3000 if "please" in request.text else 10, 0)),
        condenser=Own(),
        tree_limits=Limits(steps=None, tokens=100_000),
    )
    with Conversation(agent, store, "root") as root:
        root.send_message("a")
        root.run()
        if used:
            root.condense()
        else:
            root.start_thread()
            root.condense()
            assert summarizing.wait(30)
            root.interrupt()
            go_on.set()
            until(lambda: root.state.usage.input_tokens > 10)
        assert root.state.usage.input_tokens == 3010
    lease = store.acquire("root")
    shortage = store.reserve(lease, want("root#x", Amount(0, 10**9), "root"))
    assert shortage is not None
    assert shortage.value == 3010


def test_a_full_nested_budget_keeps_nobody_outside_of_it_waiting(store: Store) -> None:
    started, finished, waits = threading.Event(), threading.Event(), threading.Event()
    waited: list[bool] = []

    def slow(request: Any) -> str:
        started.set()
        waited.append(finished.wait(20))
        return "slow"

    first, quick = Agent(ScriptedLLM(slow)), Agent(ScriptedLLM(lambda _: "quick"))

    def sub(context: ToolContext, which: str) -> str:
        """Answer in one of two children within the nested budget."""
        if which == "second":
            assert started.wait(30)
            waits.set()
        with context.spawn(first if which == "first" else quick, "t") as child:
            return child.run().answer

    calls_of = [("sub", {"which": "first"}), ("sub", {"which": "second"})]
    nested = Agent(
        ScriptedLLM([calls_of, "ok"]),
        [Tool.from_function(sub, parallel=True)],
        tree_limits=Limits(steps=2),
        parallel_calls=4,
    )

    def outer(context: ToolContext, which: str) -> str:
        """Answer through the nested tree and a child beside it."""
        if which == "beside":
            assert waits.wait(30)
            until(lambda: root.hosting.journal.spending.line._waiting)  # type: ignore[union-attr]
        with context.spawn(nested if which == "nested" else quick, "t") as child:
            answer = child.run().answer
            if which == "beside":
                finished.set()
            return answer

    root_calls = [("outer", {"which": "nested"}), ("outer", {"which": "beside"})]
    lead = Agent(
        ScriptedLLM([root_calls, "ok"]),
        [Tool.from_function(outer, parallel=True)],
        tree_limits=Limits(steps=100),
        parallel_calls=4,
    )
    with Conversation(lead, store) as root:
        root.send_message("go")
        root.run()
        assert waited == [True], "whoever was outside of it was asked before it was through"


@pytest.mark.parametrize(
    ("answer", "tokens", "cost"),
    [
        (Completion("x", usage=Usage(100, 100), cost=-5.0), 200, 0.2),
        (Completion("x", usage=Usage(-9000, 10), cost=0.1), 10, 0.1),
        (Completion("x", usage=Usage(10, 10), cost=float("nan")), 20, 0.02),
        (Completion("x", usage=Usage(10, 10), cost=float("inf")), 20, 0.02),
    ],
)
def test_an_answer_gives_no_budget_back(
    store: Store, answer: Completion, tokens: int, cost: float
) -> None:
    with Conversation(
        Agent(Counted(lambda _: answer), tree_limits=Limits(tokens=5000, cost=3.0)), store, "root"
    ) as root:
        root.send_message("go")
        state = root.run()
        assert state.status is ConversationStatus.FINISHED
        assert state.usage.input_tokens >= 0
    lease = store.acquire("root")
    short = [
        store.reserve(lease, want(f"root#{n}", amount, "root"))
        for n, amount in enumerate((Amount(0, 10**9), Amount(0, 0, 10**12)))
    ]
    assert [one and one.value for one in short] == [tokens, pytest.approx(cost)]


@pytest.mark.parametrize(
    "limits",
    [
        {"cost": float("inf")},
        {"cost": 1e11},
        {"seconds": float("inf")},
        {"tokens": 10**30},
        {"cost": float("nan")},
    ],
)
def test_a_bound_that_no_budget_holds_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"Limits: {next(iter(limits))} takes"):
        Limits(**limits)


def test_what_a_tools_model_makes_is_metered_too(store: Store) -> None:
    class Other(Counted):
        def replace(self, **more: Any) -> Counted:
            return Counted([completion("x", 70, 7)])

    def ask(context: ToolContext) -> str:
        """Ask another model."""
        return context.llm.replace(model="other").completion("what?").text

    with Conversation(
        Agent(Other([("ask", {}), "done"]), [ask], tree_limits=Limits(tokens=100_000)),
        store,
        "root",
    ) as root:
        root.send_message("go")
        assert root.run().answer == "done"
        assert results(root) == ["x"]
        took = root.state.usage.input_tokens + root.state.usage.output_tokens
    lease = store.acquire("root")
    shortage = store.reserve(lease, want("root#x", Amount(0, 10**9), "root"))
    assert shortage is not None
    assert shortage.value == took  # the tool's model call is included, once
