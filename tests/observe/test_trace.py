"""Tests of the trace of a run from its journals, and of the files that show it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, ToolCall, ToolResult
from holdfast import events as ev
from holdfast.content import ErrorInfo, TextContent, Usage
from holdfast.errors import ConversationNotFound
from holdfast.observe.trace import RunTrace, make_trace, trace
from holdfast.observe.trace_picture import Timeline, trace_html, trace_svg
from holdfast.store import Summary

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "</title><script>alert(1)</script>\x1b[31m\u202e\ud800&\"'"


class JournalWriter:
    """A journal that a test writes, with times in seconds after its beginning."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def add(self, kind: Any, after: float, **fields: Any) -> JournalWriter:
        seq = len(self.events) + 1
        at = BEGIN + timedelta(seconds=after)
        self.events.append(kind(seq=seq, id=f"{seq}", timestamp=at, **fields))
        return self

    def trace(self, limit: int = 2000) -> RunTrace:
        summary = Summary("c", last_seq=len(self.events))
        return make_trace(summary, lambda _: self.events, lambda _: [], limit=limit)


def spans(run_trace: RunTrace) -> list[tuple[Any, ...]]:
    return [
        (one.kind, one.name, one.start, round(one.seconds, 3), one.seq) for one in run_trace.spans
    ]


def answered(journal: JournalWriter, after: float, *calls: ToolCall, **fields: Any) -> None:
    journal.add(ev.AssistantReplied, after, calls=calls, model="m", **fields)


def test_models_tools_and_waits_are_spans_and_lead_to_their_events() -> None:
    journal = JournalWriter()
    journal.add(ev.MessageAdded, 0, content=(TextContent("go"),))
    answered(journal, 3, ToolCall("2.0", "shell", {"command": "ls -l"}), duration=2.0)
    journal.add(ev.DecisionMade, 3, call_id="2.0", decision="ask")
    journal.add(ev.DecisionMade, 63, call_id="2.0", decision="approve", by="user")
    journal.add(ev.ToolCallStarted, 63, call_id="2.0")
    failed = ToolResult.failure("no", "timeout")
    journal.add(ev.ToolCallFinished, 64, call_id="2.0", result=failed, duration=1.0)
    run_trace = journal.trace()
    assert spans(run_trace) == [
        ("message", "you", 0.0, 0.0, 1),
        ("model", "m", 1.0, 2.0, 2),
        ("wait", "shell", 3.0, 60.0, 3),
        ("tool", "shell", 63.0, 1.0, 5),
    ]
    assert run_trace.spans[3].title == "ls -l"
    assert run_trace.spans[3].error == "timeout"


def test_what_has_not_ended_runs_until_the_last_event() -> None:
    journal = JournalWriter()
    answered(journal, 1, ToolCall("1.0", "a"), ToolCall("1.1", "b"))
    journal.add(ev.ToolCallStarted, 1, call_id="1.0")
    journal.add(ev.DecisionMade, 2, call_id="1.1", decision="ask")
    journal.add(ev.StatusChanged, 5, status="waiting_for_confirmation")
    running = [(one.kind, one.seconds) for one in journal.trace().spans if one.running]
    assert running == [("tool", 4.0), ("wait", 3.0)]


def test_events_that_are_damaged_unknown_or_about_nothing_known_break_nothing() -> None:
    journal = JournalWriter()
    journal.add(ev.DamagedEvent, 0, reason="its bytes are lost")
    journal.add(ev.UnknownEvent, 1, original_type="new", raw=b"{}")
    journal.add(ev.ToolCallFinished, 2, call_id="9.9", result=ToolResult("x"))
    journal.add(ev.ToolCallStarted, 3, call_id="8.8")
    strange = ToolResult("x", meta={"diff": 7, "holdfast/child": [1], "exitCode": "no"})
    journal.add(ev.ToolCallFinished, 4, call_id="8.8", result=strange)
    journal.add(ev.StatusChanged, -99, status="running")  # a clock that was set back
    run_trace = journal.trace()
    assert run_trace.damaged == 1
    assert [one.name for one in run_trace.spans] == ["damaged event", "unknown"]
    assert "1 events cannot be read" in trace_html(run_trace)


def test_only_the_longest_spans_and_those_that_failed_are_kept() -> None:
    journal = JournalWriter()
    for number in range(50):
        answered(journal, number, ToolCall(f"{len(journal.events) + 1}.0", "t"), duration=0.001)
        id = f"{len(journal.events)}.0"
        journal.add(ev.ToolCallStarted, number, call_id=id)
        error = ErrorInfo("timeout", "") if number == 7 else None
        result = ToolResult("x", is_error=number == 7, error=error)
        journal.add(ev.ToolCallFinished, number, call_id=id, result=result, duration=number / 100)
    run_trace = journal.trace(limit=4)
    assert run_trace.left_out == 96
    assert [round(one.seconds, 2) for one in run_trace.spans] == [0.07, 0.47, 0.48, 0.49]


def test_points_have_tokens_costs_and_the_share_of_the_window() -> None:
    journal = JournalWriter()
    for number in range(1000):
        usage = Usage(1000 * (number + 1), 10, 500)
        journal.add(
            ev.AssistantReplied, number, model="gpt-5", usage=usage, cost=0.01, duration=0.1
        )
    run_trace = journal.trace()
    assert len(run_trace.points) <= 400
    assert sum(point.steps for point in run_trace.points) == 1000
    last = run_trace.points[-1]
    assert (last.seq, last.input_tokens, round(last.total_cost, 2)) == (1000, 1_000_000, 10.0)
    assert run_trace.window is not None
    assert last.context == pytest.approx(1_000_010 / run_trace.window)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store with a conversation that spawned one that spawned one, and a fork."""
    leaf = Agent(ScriptedLLM(["leaf"]), description="leaf")
    middle = Agent(
        ScriptedLLM([[("delegate", {"agent": "leaf", "task": "go"})], "middle"]),
        delegates={"leaf": leaf},
    )
    root = Agent(
        ScriptedLLM([[("delegate", {"agent": "middle", "task": "File <it>."})], "root"]),
        delegates={"middle": middle},
    )
    with (
        SQLiteStore(tmp_path / "store.db", "process") as store,
        Conversation(root, store, "root") as conversation,
    ):
        conversation.send_message("Find out")
        conversation.run()
        conversation.fork(2).close()
    return tmp_path / "store.db"


def test_children_are_below_their_calls_and_forks_in_the_tree(path: Path) -> None:
    with SQLiteStore(path, read_only=True) as store:
        run_trace = trace(store, "root")
        with pytest.raises(ConversationNotFound, match="nobody"):
            trace(store, "nobody")
    relations = [(one.relation, one.depth, one.parent) for one in run_trace.conversations]
    assert relations[0] == ("", 0, "")
    assert relations[1] == ("child", 1, "root")
    assert relations[2] == ("child", 2, run_trace.conversations[1].id)
    assert (relations[3], run_trace.conversations[3].parent_seq) == (("fork", 1, "root"), 2)
    nested = [(one.kind, one.depth, one.conversation) for one in run_trace.spans]
    children = [at for at, one in enumerate(nested) if one[0] == "child"]
    for at in children:
        assert nested[at + 1][1:] == (nested[at][1] + 1, nested[at][2] + 1)
    assert len(children) == 2


def test_a_fork_of_a_fork_is_below_it_with_its_own_sums(path: Path) -> None:
    agent = Agent(ScriptedLLM(["again"]))
    with SQLiteStore(path, "process") as store:
        for origin, id in (("root", "second"), ("second", "inner")):
            with Conversation(agent, store, origin) as one:
                one.fork(3, id=id).close()
        with Conversation(agent, store, "inner") as inner:
            inner.send_message("go on")
            inner.run()
        conversations = trace(store, "root").conversations
        drawn = trace_html(trace(store, "root")), trace_svg(trace(store, "root"))
    forks = [one for one in conversations if one.relation == "fork"]
    assert [(one.depth, one.parent) for one in forks] == [(1, "root"), (1, "root"), (2, "second")]
    assert [(one.id, one.steps) for one in forks[1:]] == [("second", 0), ("inner", 1)]
    for picture in drawn:
        assert "fork at event 2:" in picture
        assert "inner" in picture


def test_a_circle_of_parents_ends() -> None:
    one, two = Summary("a", spawned_by="b:1.0"), Summary("b", spawned_by="a:1.0")
    below = {"a": [two], "b": [one]}
    run_trace = make_trace(one, lambda _: [], lambda parent: below[parent])
    assert [one.id for one in run_trace.conversations] == ["a", "b"]


def test_the_time_in_which_nothing_runs_is_short(path: Path) -> None:
    journal = JournalWriter()
    answered(journal, 10, duration=10.0)
    answered(journal, 40_000, duration=10.0)
    line = Timeline(journal.trace().spans, 100.0)
    assert line.place(0) == 0
    assert 45 < line.place(10) < line.place(39_990) < 55
    assert line.place(40_000) == pytest.approx(100)
    assert Timeline([], 100.0).place(5) == 0


# --- the files ---


def hostile() -> RunTrace:
    journal = JournalWriter()
    journal.add(ev.MessageAdded, 0, content=(TextContent(HOSTILE),))
    answered(journal, 1, ToolCall("2.0", "x", {"command": HOSTILE}), text=HOSTILE, cost=0.01)
    journal.add(ev.ToolCallStarted, 1, call_id="2.0")
    diff = f"--- {HOSTILE}\n+++ {HOSTILE}\n@@ -0,0 +1,1 @@\n+{HOSTILE}\n"
    result = ToolResult("x", meta={"diff": diff})
    journal.add(ev.ToolCallFinished, 2, call_id="2.0", result=result, duration=1.0)
    journal.add(ev.ErrorRecorded, 3, error=HOSTILE, message=HOSTILE)
    return journal.trace()


def test_an_image_is_well_formed_and_shows_hostile_text_as_text() -> None:
    text = trace_svg(hostile())
    root = ET.fromstring(text)
    assert {node.tag.rpartition("}")[2] for node in root.iter()} <= {
        *("svg", "style", "rect", "text", "g", "title", "path", "polyline")
    }
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\u202e" in text


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("form", [trace_svg, trace_html])
def test_a_file_needs_no_network_and_no_script(form: Any, path: Path) -> None:
    with SQLiteStore(path, read_only=True) as store:
        pages = [form(hostile()), form(trace(store, "root")), form(JournalWriter().trace())]
    for text in pages:
        tags = Tags(text)
        assert not {"script", "link", "img", "iframe", "object", "image", "use", "a"} & {
            *tags.names
        }
        assert not [name for name in tags.attributes if name.startswith("on") or "href" in name]
        assert not re.search(r"url\(|@import|https?:(?!//www\.w3\.org/2000/svg)", text)
        text.encode()


def test_ten_thousand_events_are_drawn_in_a_bounded_file() -> None:
    journal = JournalWriter()
    while len(journal.events) < 10_000:
        id = f"{len(journal.events) + 1}.0"
        answered(journal, len(journal.events), ToolCall(id, "t"), usage=Usage(9, 9), duration=0.5)
        journal.add(ev.ToolCallStarted, len(journal.events), call_id=id)
        journal.add(
            ev.ToolCallFinished, len(journal.events), call_id=id, result=ToolResult("x" * 300)
        )
    text = trace_svg(journal.trace())
    assert text.count("<g><title>") == 2000
    assert len(text) < 1_500_000


def test_a_scripts_calls_are_nested() -> None:
    journal = JournalWriter()
    answered(journal, 1, ToolCall("1.0", "run_code"))
    journal.add(ev.ToolCallStarted, 1, call_id="1.0")
    journal.add(ev.CodeCallsMade, 1, call_id="1.0", calls=(ToolCall("1.0.1", "read"),))
    journal.add(ev.ToolCallStarted, 1, call_id="1.0.1")
    journal.add(ev.ToolCallFinished, 2, call_id="1.0.1", result=ToolResult("x"), duration=1.0)
    journal.add(ev.ToolCallFinished, 3, call_id="1.0", result=ToolResult("x"), duration=2.0)
    assert [(one.name, one.depth) for one in journal.trace().spans] == [
        ("m", 0),
        ("run_code", 0),
        ("read", 1),
    ]
