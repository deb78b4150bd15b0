"""Condensation of a conversation: automatic, after the provider refused a request, and on request."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolResult,
)
from holdfast import events as ev
from holdfast.agent.condenser import Condensed
from holdfast.agent.condensers import LLMCondenser, Pipeline, ToolOutputCondenser, WindowCondenser
from holdfast.agent.condensers.summary import HEADING
from holdfast.agent.view import View
from holdfast.commands import Condense, decode, encode
from holdfast.content import Usage
from holdfast.conversation.condensations import Condensations
from holdfast.conversation.replay import replay, requests
from holdfast.conversation.totals import totals
from holdfast.errors import ConfigurationError, ContextTooLong, RateLimited
from holdfast.llm import Completion
from tests import forks
from tests.agent.test_condensers import judge
from tests.paths import REPO

S = ConversationStatus
NONE = Limits(steps=None)


def note(n: int) -> str:
    """Looks something up."""
    return f"note {n}: " + "some words of what was found " * 60


def worker(steps: int, last: str = "Done.") -> Any:
    """Return a script that calls `note` that many times, then stops, and calls it once more for
    each message."""
    count = [0]

    def answer(request: Any) -> Any:
        count[0] += 1
        return ("note", {"n": count[0]}) if count[0] <= steps else last

    return answer


def condensations(conversation: Conversation) -> list[ev.HistoryCondensed]:
    return [event for event in conversation.get_history() if isinstance(event, ev.HistoryCondensed)]


def legal(llm: ScriptedLLM) -> None:
    for request in llm.requests:
        judge("openai_chat", request.json)


# --- automatic ---


class Facts:
    """A model that works for many steps in one window, and a summarizer that keeps the lines that
    are marked as facts."""

    def __init__(self, steps: int, window: int) -> None:
        self.steps, self.window = steps, window
        self.step = 0
        self.most = 0
        self.llm = ScriptedLLM(self.answer)
        self.notes = ScriptedLLM(self.summarise)

    def answer(self, request: Any) -> Any:
        self.most = max(self.most, len(request.body) // 4)
        if len(request.body) // 4 > self.window:
            raise ContextTooLong("It does not fit.")
        self.step += 1
        if self.step > self.steps:
            return "Done."
        if self.step % 5 == 0:
            return [("note", {"n": self.step}), ("note", {"n": -self.step}), ("note", {"n": 0})]
        return [f"step {self.step}", ("note", {"n": self.step})]

    def summarise(self, request: Any) -> str:
        facts = sorted(set(re.findall(r"FACT-\d+", request.text)))
        return "## Decisions and facts\n" + "\n".join(facts)

    def note(self, n: int) -> str:
        """Looks something up."""
        return (
            f"FACT-{n} " if n % 100 == 0 and n > 0 else ""
        ) + "some words of what was found " * (20 + abs(n) % 60)


@pytest.mark.slow
def test_a_run_of_2000_steps_stays_within_its_window_and_its_facts_survive() -> None:
    run = Facts(2000, 20_000)
    condenser = Pipeline([ToolOutputCondenser(), LLMCondenser(run.notes)], at=16_000)
    with Conversation(Agent(run.llm, [run.note], condenser=condenser, limits=NONE)) as conversation:
        conversation.send_message("Find the FACT-0 of it all.")
        assert conversation.run().status is S.FINISHED
        events = conversation.get_history()
        condensation_events = condensations(conversation)
    assert run.most <= 16_000 * 1.02, "it went over where it begins"
    assert not [event for event in events if isinstance(event, ev.ErrorRecorded)]
    assert 20 < len(condensation_events) < 400, "the cached prefix is broken too often"
    for request in run.llm.requests[:: len(run.llm.requests) // 60]:
        judge("openai_chat", request.json)
    last = run.llm.requests[-1]
    facts = {f"FACT-{n}" for n in range(0, 2000, 100)}
    assert [fact for fact in facts if fact not in last.body.decode()] == []
    assert last.messages[1]["content"] == "Find the FACT-0 of it all."
    assert replay(events).same


def test_it_is_condensed_well_below_where_it_begins_and_the_beginning_of_requests_stays() -> None:
    llm = ScriptedLLM(worker(120))
    with Conversation(
        Agent(llm, [note], condenser=WindowCondenser(at=8000, to=0.4), limits=NONE)
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        events = condensations(conversation)
        assert replay(conversation.get_history(), conversation.agent).same
    sizes = [len(request.body) // 4 for request in llm.requests]
    drops = [(before, after) for before, after in itertools.pairwise(sizes) if after < before]
    assert len(drops) == len(events) >= 5
    assert all(after <= 8000 * 0.4 * 1.1 for _, after in drops)
    broken = sum(
        not later.body.startswith(earlier.body[:-2])
        for earlier, later in itertools.pairwise(llm.requests)
    )
    assert broken == len(events), "a prefix was broken without need"
    legal(llm)


def test_where_nothing_can_be_left_out_it_is_not_tried_at_every_step() -> None:
    attempts: list[int] = []

    class Nothing:
        at = 1000

        def condense(self, journal: Sequence[ev.AnyEvent], *_: Any) -> None:
            attempts.append(len(journal))

    with Conversation(
        Agent(ScriptedLLM(worker(20)), [note], condenser=Nothing(), limits=NONE)
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        events = condensations(conversation)
        assert len(attempts) == len(events) < 20
        assert {event.failed for event in events} == {"nothing can be left out"}
        assert replay(conversation.get_history()).same


def test_where_it_begins_at_nothing_it_still_comes_to_an_end() -> None:
    with Conversation(
        Agent(ScriptedLLM(worker(5)), [note], condenser=WindowCondenser(at=2), limits=NONE)
    ) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert conversation.wait(30) is S.FINISHED
        assert 0 < len(condensations(conversation)) <= 7


def test_a_condenser_that_fails_does_not_stop_the_run_before_the_provider_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = ScriptedLLM(lambda request: RateLimited("later"))
    with Conversation(
        Agent(ScriptedLLM(worker(30)), [note], condenser=LLMCondenser(notes, at=4000), limits=NONE)
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert {event.failed for event in condensations(conversation)} == {"RateLimited: later"}
    assert "the condenser failed" in caplog.text


def test_what_a_summary_took_is_counted_and_limits_mind_it() -> None:
    notes = ScriptedLLM(
        lambda request: Completion("## Goal\ngo", usage=Usage(5000, 100), cost=0.25, model="notes")
    )
    store = MemoryStore()
    with Conversation(
        Agent(ScriptedLLM(worker(12)), [note], condenser=LLMCondenser(notes, at=4000)), store, "c"
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        events = condensations(conversation)
        assert [(event.usage, event.cost, event.model) for event in events] == [
            (Usage(5000, 100), 0.25, "notes")
        ] * len(events)
        answers = sum(
            (event.usage for event in state.events if isinstance(event, ev.AssistantReplied)),
            Usage(),
        )
        assert state.usage == sum((event.usage for event in events), answers)
        assert state.cost == 0.25 * len(events) > 0
        assert state.steps == 13
        own = totals(store, "c").own
        assert (own.usage, own.cost, own.steps) == (state.usage, state.cost, 13)
    limits = Limits(tokens=5000 + 4000 * 4)
    with Conversation(
        Agent(
            ScriptedLLM(worker(50)), [note], condenser=LLMCondenser(notes, at=4000), limits=limits
        )
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().error.error == "LimitExceeded"  # type: ignore[union-attr]


def test_the_provider_that_refuses_is_believed() -> None:
    """The provider's window is smaller than the one that the condenser knows."""

    def answer(request: Any) -> Any:
        if len(request.body) > 20_000:
            raise ContextTooLong("It does not fit.")
        return work(request)

    work = worker(40)
    llm = ScriptedLLM(answer)
    with Conversation(
        Agent(
            llm,
            [note],
            condenser=Pipeline([ToolOutputCondenser(), WindowCondenser()], at=10**6),
            limits=NONE,
        )
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert replay(conversation.get_history()).same
    legal(llm)


# --- truncated outputs ---


def test_what_was_cut_is_read_through_a_tool_whole_also_what_only_the_store_has(
    tmp_path: Path,
) -> None:
    text = "".join(f"line {n}\n" for n in range(5000))
    pieces: list[str] = []

    def big() -> ToolResult:
        """Prints much."""
        return ToolResult(text)

    def answer(request: Any) -> Any:
        if request.number == 0:
            return ("big", {})
        if request.number < 14:
            return ("note", {"n": request.number})
        last = request.messages[-1]
        if request.number == 14:
            cut = next(
                message["content"]
                for message in request.messages
                if "read_output(" in str(message.get("content"))
            )
            call_id, offset = re.search(
                r'read_output\(call_id="([\d.]+)", offset=(\d+)\)', cut
            ).groups()  # type: ignore[union-attr]
            pieces.append(cut[: int(offset)])
            return ("read_output", {"call_id": call_id, "offset": int(offset)})
        more = re.search(r"go on with offset=(\d+)\]$", last["content"])
        pieces.append(last["content"].rpartition("\n[")[0] if more else last["content"])
        return (
            ("read_output", {"call_id": call_ids[0], "offset": int(more[1])}) if more else "Read."
        )

    with SQLiteStore(tmp_path / "s.db", "process") as store:
        agent = Agent(
            ScriptedLLM(answer),
            [big, note],
            condenser=ToolOutputCondenser(at=8000),
            output_limit=11_000,
            limits=NONE,
        )
        assert agent.tools.exists("read_output")
        with Conversation(agent, store, "c") as conversation:
            conversation.send_message("go")
            call_ids = ["4.0"]
            state = conversation.run()
            assert state.answer == "Read.", (state.answer, state.error)
            assert condensations(conversation)[0].trimmed["4.0"] == 400
            assert replay(conversation.get_history(), agent).same
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"call_id": "9.9"}, "No call '9.9'"),
        ({"call_id": "4.0", "offset": 10**9}, "offset takes"),
        ({"call_id": "4.0", "offset": -1}, "offset takes"),
    ],
)
def test_what_cannot_be_read_is_told_to_the_model(given: dict[str, Any], problem: str) -> None:
    llm = ScriptedLLM([("note", {"n": 1}), ("read_output", given), "ok"])
    with Conversation(Agent(llm, [note], condenser=ToolOutputCondenser())) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "ok"
    assert problem in llm.requests[2].text


# --- on request ---


def chatty(turns: int, condenser: Any, store: Any = None, **more: Any) -> Conversation:
    conversation = Conversation(
        Agent(ScriptedLLM(lambda request: "word " * 50), condenser=condenser), store, "c", **more
    )
    for n in range(turns):
        conversation.send_message(f"message {n}")
        assert conversation.run().status is S.FINISHED
    return conversation


def test_a_conversation_at_rest_is_condensed_at_once_with_the_instructions_given() -> None:
    notes = ScriptedLLM(["## Goal\nnotes"])
    with chatty(6, LLMCondenser(notes)) as conversation:
        conversation.condense("Keep the names.")
        request, outcome = condensations(conversation)
        assert (request.request, request.hidden) == ("Keep the names.", ())
        assert outcome.summary == f"{HEADING}\n\n## Goal\nnotes"
        assert outcome.request is None
        assert "Keep the names." in notes.requests[0].text
        assert conversation.status is S.FINISHED, "nothing runs for it"
        conversation.send_message("and now?")
        conversation.run()
        texts = [message["content"] for message in conversation.agent.llm.requests[-1].messages[1:]]  # type: ignore[attr-defined]
        assert texts[:2] == ["message 0", outcome.summary]
        assert texts[-1] == "and now?"
        assert "message 5" in texts
        assert len(texts) < 9
        assert replay(conversation.get_history()).same


def test_a_conversation_on_a_thread_is_condensed_there_and_wait_waits_for_it() -> None:
    running, go = threading.Event(), threading.Event()

    def slow(request: Any) -> str:
        running.set()
        assert go.wait(30)
        return "notes"

    with chatty(6, LLMCondenser(ScriptedLLM(slow))) as conversation:
        conversation.start_thread()
        conversation.condense()
        assert running.wait(30)
        conversation.wait(0.01)
        assert len(condensations(conversation)) == 1
        go.set()
        assert conversation.wait(30) is S.FINISHED
        assert condensations(conversation)[-1].summary.endswith("notes")


def test_messages_that_arrive_meanwhile_are_not_hidden_and_are_answered(tmp_path: Path) -> None:
    running, go = threading.Event(), threading.Event()

    def slow(request: Any) -> str:
        running.set()
        assert go.wait(30)
        return "notes"

    with (
        SQLiteStore(tmp_path / "s.db", "process") as store,
        chatty(6, LLMCondenser(ScriptedLLM(slow)), store) as conversation,
    ):
        conversation.start_thread()
        conversation.condense()
        assert running.wait(30)
        senders = [
            threading.Thread(target=conversation.send_message, args=(f"late {n}",))
            for n in range(5)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(30)
        go.set()
        assert conversation.wait(30) is S.FINISHED
        llm: Any = conversation.agent.llm
        texts = [message["content"] for message in llm.requests[-1].messages]
        assert {f"late {n}" for n in range(5)} <= set(texts)
        assert f"{HEADING}\n\nnotes" in texts
        assert replay(conversation.get_history(), conversation.agent).same


def test_asked_for_in_mid_run_it_is_done_before_the_next_request() -> None:
    def note_and_ask(n: int) -> str:
        """Looks something up."""
        if n == 4:
            conversation.condense()  # during a call, a condensation has to wait
        return note(n)

    work = worker(6)

    def answer(request: Any) -> Any:
        reply = work(request)
        return ("note_and_ask", {"n": reply[1]["n"]}) if isinstance(reply, tuple) else reply

    llm = ScriptedLLM(answer)
    agent = Agent(llm, [note_and_ask], condenser=WindowCondenser(2))
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        kinds = [event.type for event in conversation.get_history()]
        start = kinds.index("condensation")
        assert kinds[start : start + 4] == [
            "condensation",
            "toolResult",
            "condensation",
            "assistant",
        ]
        assert replay(conversation.get_history(), agent).same
    legal(llm)


def test_it_can_be_asked_for_through_the_inbox_by_another_process(tmp_path: Path) -> None:
    command = Condense("Mind the tests.")
    assert decode(encode(command)) == command
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        chatty(6, WindowCondenser(2), store).close()
        program = (
            "import sys; from holdfast import SQLiteStore; from holdfast.commands import Condense;"
            " SQLiteStore(sys.argv[1]).post('c', Condense('Mind the tests.'))"
        )
        forks.run([sys.executable, "-c", program, str(tmp_path / "s.db")], check=True)
        with Conversation(
            Agent(ScriptedLLM(["hello"]), condenser=WindowCondenser(2)), store, "c"
        ) as conversation:
            conversation.send_message("go on")
            conversation.run()
            events = condensations(conversation)
            assert [event.request for event in events] == ["Mind the tests.", None]
            assert events[1].hidden


def test_while_paused_it_waits_and_an_interrupt_ends_it() -> None:
    with chatty(6, WindowCondenser(2)) as conversation:
        conversation.pause()
        conversation.condense()
        assert len(condensations(conversation)) == 1
        conversation.send_message("more")
        conversation.run()
        assert condensations(conversation)[-1].hidden
    running = threading.Event()

    class Slow:
        def condense(self, journal: Any, reason: Any, cancelled: Any) -> Condensed | None:
            running.set()
            assert cancelled.wait(30)
            return Condensed((1,), "too late")

    with chatty(6, Slow()) as conversation:
        conversation.start_thread()
        conversation.condense()
        assert running.wait(30)
        conversation.interrupt()
        assert conversation.wait(30) is S.FINISHED
        assert [event.failed for event in condensations(conversation)] == ["", "interrupted"]


def test_without_a_condenser_it_cannot_be_asked_for() -> None:
    with Conversation(Agent(ScriptedLLM([]))) as conversation:
        with pytest.raises(ConfigurationError, match="the agent has no condenser"):
            conversation.condense()
        with pytest.raises(ConfigurationError, match="instructions takes a str"):
            conversation.condense(5)  # type: ignore[arg-type]
        assert conversation.get_history() == []


def test_an_agent_without_a_condenser_that_goes_on_says_so(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        with chatty(3, WindowCondenser(2), store) as conversation:
            conversation.pause()
            conversation.condense()
        with Conversation(Agent(ScriptedLLM(["hello"])), store, "c") as conversation:
            conversation.send_message("go on")
            assert conversation.run().answer == "hello"
            assert condensations(conversation)[-1].failed == "the agent has no condenser"


# --- forks, replays, old journals ---


def test_a_fork_before_it_has_all_and_one_after_it_what_is_left(tmp_path: Path) -> None:
    with (
        SQLiteStore(tmp_path / "s.db", "process") as store,
        chatty(6, WindowCondenser(2), store) as conversation,
    ):
        seq_of_request = conversation.state.last_seq + 1
        conversation.condense()
        texts: dict[str, list[Any]] = {}
        for name, seq in (
            ("before", seq_of_request - 1),
            ("asked", seq_of_request),
            ("after", seq_of_request + 1),
        ):
            llm = ScriptedLLM(["in the fork"])
            with conversation.fork(seq, Agent(llm, condenser=WindowCondenser(2)), name) as fork:
                fork.send_message("and here?")
                assert fork.run().status is S.FINISHED
                texts[name] = [message["content"] for message in llm.requests[0].messages[1:]]
                assert replay(fork.get_history()).same
        assert len(texts["before"]) == 13
        assert len(texts["after"]) < 8
        assert texts["asked"][:2] == texts["after"][:2], (
            "what was asked for before the fork is done there"
        )
        assert [request.body for request in requests(conversation.get_history())] == [
            r.body for r in conversation.agent.llm.requests
        ]  # type: ignore[attr-defined]


def test_a_reopened_conversation_makes_the_same_requests_to_the_last_byte(tmp_path: Path) -> None:
    bodies: list[list[bytes]] = []
    for reopened in (False, True):
        llm = ScriptedLLM(worker(10**9))
        agent = Agent(
            llm,
            [note],
            condenser=Pipeline([ToolOutputCondenser(), WindowCondenser()], at=6000),
            limits=Limits(steps=25),
        )
        with SQLiteStore(tmp_path / f"{reopened}.db", "process") as store:
            conversation = Conversation(
                agent, store, "c", new_id=iter(f"id{n}" for n in range(10**6)).__next__
            )
            conversation.send_message("go")
            for _ in range(3):
                assert conversation.run().status is S.ERROR  # the limit of steps
                if reopened:
                    last_seq = conversation.state.last_seq
                    conversation.close()
                    conversation = Conversation(
                        agent,
                        store,
                        "c",
                        new_id=iter(f"id{n}" for n in range(last_seq * 10, 10**6)).__next__,
                    )
            conversation.close()
            assert replay(store.read("c")).same
        bodies.append(
            [re.sub(rb'"prompt_cache_key":"[^"]*"', b"", request.body) for request in llm.requests]
        )
    assert bodies[0] == bodies[1]


def test_an_old_journal_loads_unchanged() -> None:
    old = '{"type":"condensation","seq":4,"id":"x","timestamp":"1970-01-01T00:00:00Z","hidden":[1,2],"summary":"s"}'
    event = ev.decode(old)
    assert isinstance(event, ev.HistoryCondensed)
    assert event == ev.HistoryCondensed(
        seq=4, id="x", timestamp=ev.EPOCH, hidden=(1, 2), summary="s"
    )
    assert json.loads(ev.encode(event)) == json.loads(old), "what is not said is not written"


# --- kill -9 ---

PROGRAM = """
import os, signal, sys, time
from holdfast import Agent, Conversation, Limits, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.agent.condensers import LLMCondenser
from tests.conversation.test_condensing import note, worker

where = sys.argv[1]

def summarise(request):
    if where == "within":
        print("within", flush=True)
        time.sleep(60)
    return "notes"

class Store(SQLiteStore):
    def append(self, lease, batch):
        super().append(lease, batch)
        if where == "after" and any(isinstance(event, ev.HistoryCondensed) and event.hidden for event in batch.events):
            print("after", flush=True)
            time.sleep(60)

agent = Agent(ScriptedLLM(worker(40)), [note], condenser=LLMCondenser(ScriptedLLM(summarise), at=4000))
conversation = Conversation(agent, Store("s.db"), "c")
conversation.send_message("go")
conversation.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["within", "after"])
def test_a_kill_in_the_midst_of_a_condensation_or_right_behind_it_loses_and_repeats_nothing(
    where: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    child = forks.Popen(
        [sys.executable, "-c", PROGRAM, where],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == where
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with SQLiteStore(tmp_path / "s.db") as store:
        prefix = store.read("c")
        condensed = [event for event in prefix if isinstance(event, ev.HistoryCondensed)]
        assert len(condensed) == (where == "after")
        notes, llm = ScriptedLLM(lambda request: "notes"), ScriptedLLM(worker(3))
        with Conversation(
            Agent(llm, [note], condenser=LLMCondenser(notes, at=4000)), store, "c"
        ) as conversation:
            assert conversation.run().status is S.FINISHED
            events = conversation.get_history()
            assert events[: len(prefix)] == prefix
            assert isinstance(
                events[len(prefix)], ev.AgentConfigured | ev.HistoryCondensed | ev.AssistantReplied
            )
            first = next(event for event in events if isinstance(event, ev.HistoryCondensed))
            assert first.summary == f"{HEADING}\n\nnotes"
            assert first.summary in [message["content"] for message in llm.requests[0].messages]
            assert replay(events).same
        legal(llm)
        calls = [event.call_id for event in events if isinstance(event, ev.ToolCallStarted)]
        assert len(calls) == len(set(calls)), "a call was run twice"
        assert View.of(events).ready().items


@pytest.mark.slow
def test_the_command_line_asks_for_it_and_shows_what_came_of_it(tmp_path: Path) -> None:
    holdfast = [sys.executable, "-m", "holdfast.cli"]
    with SQLiteStore(tmp_path / "s.db", "process") as store:
        chatty(6, WindowCondenser(2), store).close()
        condense = forks.run(
            [*holdfast, "tell", str(tmp_path / "s.db"), "c", "condense", "Mind", "it."],
            capture_output=True,
            text=True,
        )
        assert condense.returncode == 0, condense.stderr
        assert "posted: condense" in condense.stdout + condense.stderr
        with Conversation(
            Agent(ScriptedLLM([]), condenser=WindowCondenser(2)), store, "c"
        ) as conversation:
            conversation.start_thread()
            conversation.hosting.drain_inbox()
            assert conversation.wait(30) is S.FINISHED
            assert [event.request for event in condensations(conversation)] == ["Mind it.", None]
    show = forks.run(
        [*holdfast, "show", str(tmp_path / "s.db"), "c"], capture_output=True, text=True
    )
    assert "requested: a shorter view for the model, keeping Mind it." in show.stdout
    assert "left out of the model's view from here on" in show.stdout


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2],
        {"hidden": [1]},
        Condensed(None),  # type: ignore[arg-type]
        Condensed((), trimmed={"4.0": "many"}),  # type: ignore[dict-item]
        Condensed((1,), summary=5),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_result_of_a_condenser_is_recorded_once(answer: Any) -> None:
    attempts: list[object] = []

    class Malformed:
        at = 10**9

        def shorten(self, work: Any) -> Any:
            attempts.append(work)
            return answer

    agent = Agent(ScriptedLLM(worker(3)), [note], condenser=Malformed(), limits=NONE)
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        conversation.run()
        conversation.condense()
        conversation.send_message("Again.")
        conversation.run()
        [request, outcome] = condensations(conversation)
    assert request.request == ""
    assert outcome.failed
    assert not outcome.hidden
    assert len(attempts) == 1


def test_an_error_at_rest_that_nothing_records_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Condensations, "condense", broken)
    agent = Agent(ScriptedLLM(["Done."]), condenser=WindowCondenser())
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        conversation.run()
        with pytest.raises(RuntimeError, match="broken"):
            conversation.condense()
        assert isinstance(conversation.failure, RuntimeError)
