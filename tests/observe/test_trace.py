"""The trace of a run from its journals, and the files that show it."""

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


class Written:
    """A journal written by hand, at seconds after its beginning."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def add(self, kind: Any, after: float, **fields: Any) -> Written:
        seq = len(self.events) + 1
        at = BEGIN + timedelta(seconds=after)
        self.events.append(kind(seq=seq, id=f"{seq}", timestamp=at, **fields))
        return self

    def trace(self, limit: int = 2000) -> RunTrace:
        summary = Summary("c", last_seq=len(self.events))
        return make_trace(summary, lambda _: self.events, lambda _: [], limit=limit)


def spans(found: RunTrace) -> list[tuple[Any, ...]]:
    return [(one.kind, one.name, one.start, round(one.seconds, 3), one.seq) for one in found.spans]


def answered(written: Written, after: float, *calls: ToolCall, **fields: Any) -> None:
    written.add(ev.AssistantReplied, after, calls=calls, model="m", **fields)


def test_models_tools_and_waits_are_spans_and_lead_to_their_events() -> None:
    written = Written()
    written.add(ev.MessageAdded, 0, content=(TextContent("go"),))
    answered(written, 3, ToolCall("2.0", "shell", {"command": "ls -l"}), duration=2.0)
    written.add(ev.DecisionMade, 3, call_id="2.0", decision="ask")
    written.add(ev.DecisionMade, 63, call_id="2.0", decision="approve", by="user")
    written.add(ev.ToolCallStarted, 63, call_id="2.0")
    failed = ToolResult.failure("no", "timeout")
    written.add(ev.ToolCallFinished, 64, call_id="2.0", result=failed, duration=1.0)
    found = written.trace()
    assert spans(found) == [
        ("message", "you", 0.0, 0.0, 1),
        ("model", "m", 1.0, 2.0, 2),
        ("wait", "shell", 3.0, 60.0, 3),
        ("tool", "shell", 63.0, 1.0, 5),
    ]
    assert found.spans[3].title == "ls -l"
    assert found.spans[3].error == "timeout"


def test_what_has_not_ended_runs_until_the_last_event() -> None:
    written = Written()
    answered(written, 1, ToolCall("1.0", "a"), ToolCall("1.1", "b"))
    written.add(ev.ToolCallStarted, 1, call_id="1.0")
    written.add(ev.DecisionMade, 2, call_id="1.1", decision="ask")
    written.add(ev.StatusChanged, 5, status="waiting_for_confirmation")
    running = [(one.kind, one.seconds) for one in written.trace().spans if one.running]
    assert running == [("tool", 4.0), ("wait", 3.0)]


def test_events_that_are_damaged_unknown_or_about_nothing_known_break_nothing() -> None:
    written = Written()
    written.add(ev.DamagedEvent, 0, reason="its bytes are lost")
    written.add(ev.UnknownEvent, 1, original_type="new", raw=b"{}")
    written.add(ev.ToolCallFinished, 2, call_id="9.9", result=ToolResult("x"))
    written.add(ev.ToolCallStarted, 3, call_id="8.8")
    strange = ToolResult("x", meta={"diff": 7, "holdfast/child": [1], "exitCode": "no"})
    written.add(ev.ToolCallFinished, 4, call_id="8.8", result=strange)
    written.add(ev.StatusChanged, -99, status="running")  # a clock that was set back
    found = written.trace()
    assert found.damaged == 1
    assert [one.name for one in found.spans] == ["damaged event", "unknown"]
    assert "1 events cannot be read" in trace_html(found)


def test_only_the_longest_spans_and_those_that_failed_are_kept() -> None:
    written = Written()
    for number in range(50):
        answered(written, number, ToolCall(f"{len(written.events) + 1}.0", "t"), duration=0.001)
        id = f"{len(written.events)}.0"
        written.add(ev.ToolCallStarted, number, call_id=id)
        error = ErrorInfo("timeout", "") if number == 7 else None
        result = ToolResult("x", is_error=number == 7, error=error)
        written.add(ev.ToolCallFinished, number, call_id=id, result=result, duration=number / 100)
    found = written.trace(limit=4)
    assert found.left_out == 96
    assert [round(one.seconds, 2) for one in found.spans] == [0.07, 0.47, 0.48, 0.49]


def test_points_have_tokens_costs_and_the_share_of_the_window() -> None:
    written = Written()
    for number in range(1000):
        usage = Usage(1000 * (number + 1), 10, 500)
        written.add(
            ev.AssistantReplied, number, model="gpt-5", usage=usage, cost=0.01, duration=0.1
        )
    found = written.trace()
    assert len(found.points) <= 400
    assert sum(point.steps for point in found.points) == 1000
    last = found.points[-1]
    assert (last.seq, last.input_tokens, round(last.total_cost, 2)) == (1000, 1_000_000, 10.0)
    assert found.window is not None
    assert last.context == pytest.approx(1_000_010 / found.window)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a conversation that spawned one that spawned one, and a fork."""
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
        found = trace(store, "root")
        with pytest.raises(ConversationNotFound, match="nobody"):
            trace(store, "nobody")
    shown = [(one.relation, one.depth, one.parent) for one in found.conversations]
    assert shown[0] == ("", 0, "")
    assert shown[1] == ("child", 1, "root")
    assert shown[2] == ("child", 2, found.conversations[1].id)
    assert (shown[3], found.conversations[3].parent_seq) == (("fork", 1, "root"), 2)
    nested = [(one.kind, one.depth, one.conversation) for one in found.spans]
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
        found = trace(store, "root").conversations
        drawn = trace_html(trace(store, "root")), trace_svg(trace(store, "root"))
    forks = [one for one in found if one.relation == "fork"]
    assert [(one.depth, one.parent) for one in forks] == [(1, "root"), (1, "root"), (2, "second")]
    assert [(one.id, one.steps) for one in forks[1:]] == [("second", 0), ("inner", 1)]
    for picture in drawn:
        assert "fork at event 2:" in picture
        assert "inner" in picture


def test_a_circle_of_parents_ends() -> None:
    one, two = Summary("a", spawned_by="b:1.0"), Summary("b", spawned_by="a:1.0")
    below = {"a": [two], "b": [one]}
    found = make_trace(one, lambda _: [], lambda parent: below[parent])
    assert [one.id for one in found.conversations] == ["a", "b"]


def test_the_time_in_which_nothing_runs_is_short(path: Path) -> None:
    written = Written()
    answered(written, 10, duration=10.0)
    answered(written, 40_000, duration=10.0)
    line = Timeline(written.trace().spans, 100.0)
    assert line.place(0) == 0
    assert 45 < line.place(10) < line.place(39_990) < 55
    assert line.place(40_000) == pytest.approx(100)
    assert Timeline([], 100.0).place(5) == 0


# --- the files ---


def hostile() -> RunTrace:
    written = Written()
    written.add(ev.MessageAdded, 0, content=(TextContent(HOSTILE),))
    answered(written, 1, ToolCall("2.0", "x", {"command": HOSTILE}), text=HOSTILE, cost=0.01)
    written.add(ev.ToolCallStarted, 1, call_id="2.0")
    diff = f"--- {HOSTILE}\n+++ {HOSTILE}\n@@ -0,0 +1,1 @@\n+{HOSTILE}\n"
    result = ToolResult("x", meta={"diff": diff})
    written.add(ev.ToolCallFinished, 2, call_id="2.0", result=result, duration=1.0)
    written.add(ev.ErrorRecorded, 3, error=HOSTILE, message=HOSTILE)
    return written.trace()


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
        self.found: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("form", [trace_svg, trace_html])
def test_a_file_needs_no_network_and_no_script(form: Any, path: Path) -> None:
    with SQLiteStore(path, read_only=True) as store:
        found = [form(hostile()), form(trace(store, "root")), form(Written().trace())]
    for text in found:
        tags = Tags(text)
        assert not {"script", "link", "img", "iframe", "object", "image", "use", "a"} & {
            *tags.found
        }
        assert not [name for name in tags.attributes if name.startswith("on") or "href" in name]
        assert not re.search(r"url\(|@import|https?:(?!//www\.w3\.org/2000/svg)", text)
        text.encode()


def test_ten_thousand_events_are_drawn_in_a_bounded_file() -> None:
    written = Written()
    while len(written.events) < 10_000:
        id = f"{len(written.events) + 1}.0"
        answered(written, len(written.events), ToolCall(id, "t"), usage=Usage(9, 9), duration=0.5)
        written.add(ev.ToolCallStarted, len(written.events), call_id=id)
        written.add(
            ev.ToolCallFinished, len(written.events), call_id=id, result=ToolResult("x" * 300)
        )
    text = trace_svg(written.trace())
    assert text.count("<g><title>") == 2000
    assert len(text) < 1_500_000


def test_a_scripts_calls_are_nested() -> None:
    written = Written()
    answered(written, 1, ToolCall("1.0", "run_code"))
    written.add(ev.ToolCallStarted, 1, call_id="1.0")
    written.add(ev.CodeCallsMade, 1, call_id="1.0", calls=(ToolCall("1.0.1", "read"),))
    written.add(ev.ToolCallStarted, 1, call_id="1.0.1")
    written.add(ev.ToolCallFinished, 2, call_id="1.0.1", result=ToolResult("x"), duration=1.0)
    written.add(ev.ToolCallFinished, 3, call_id="1.0", result=ToolResult("x"), duration=2.0)
    assert [(one.name, one.depth) for one in written.trace().spans] == [
        ("m", 0),
        ("run_code", 0),
        ("read", 1),
    ]
