"""Tests of the trace tab of the page in a real Chromium, and of the routes that it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, ScriptedLLM, ToolResult
from holdfast import events as ev
from holdfast.content import ToolCall, Usage
from tests.agent_servers import Serving
from tests.browser import CHROMIUM, SKIP, Browser, Page
from tests.server.test_page import open_page, talk
from tests.waiting import until

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=SKIP)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def browser(chromium: Browser, server: Serving) -> Iterator[Browser]:
    """Yield the browser, and close its tabs before the server ends."""
    yield chromium
    chromium.close_tabs()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "server").mkdir()
    with Serving(tmp_path / "server") as serving:
        yield serving


def work(server: Any) -> str:
    """Make a finished conversation that wrote a file, changed it twice, failed once and delegated.
    Returns its path."""
    clerk = Agent(ScriptedLLM(["It is filed."]))
    script = [
        [
            ("write_file", {"path": "a.py", "content": "x = 1\ny = 2\n"}),
            ("terminal", {"command": "exit 3"}),
        ],
        ("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 10"}),
        ("delegate", {"agent": "clerk", "task": "File <it>."}),
        ("edit_file", {"path": "a.py", "old": "x = 10", "new": "x = 11"}),
        "Done.",
    ]
    path = talk(server, "lead", script, runtime=True, message="Go.", delegates={"clerk": clerk})
    until(lambda: server.ask("GET", path).json["status"] == "finished", seconds=60)
    return path


def open_trace(page: Page) -> None:
    page.click("[role=tab]", "Trace")
    page.wait(".waterfall .row")


def test_the_trace_and_the_statistics_name_only_ids_that_a_client_knows(server: Serving) -> None:
    path = work(server)
    trace = server.ask("GET", f"{path}/trace").json
    assert trace["conversations"][0]["id"] == "lead"
    assert trace["conversations"][1]["relation"] == "child"
    (child,) = [span for span in trace["spans"] if span.get("child")]
    assert child["child"] == trace["conversations"][1]["id"]
    assert {span["kind"] for span in trace["spans"]} == {"message", "model", "tool", "child"}
    assert [span["error"] for span in trace["spans"] if "error" in span] == ["exit code 3"]
    assert len(server.ask("GET", f"{path}/trace?limit=3").json["spans"]) == 3
    assert server.ask("GET", f"{path}/trace?limit=9999").status == 422
    both = server.ask("GET", f"{path}/stats").json["conversations"]
    assert [one["id"] for one in both] == [one["id"] for one in trace["conversations"]]
    assert both[0]["steps"] == 5
    for what in ("trace", "stats"):
        assert server.ask("GET", f"{path}/{what}", key=server.other).status == 404
        child_path = f"/api/conversations/{child['child']}/{what}"
        assert server.ask("GET", child_path).status == 200
        assert server.ask("GET", child_path, key=server.other).status == 404


def test_a_conversation_without_events_has_an_empty_trace(server: Serving) -> None:
    path = talk(server, "new", ["hi"], start=False)
    trace = server.ask("GET", f"{path}/trace").json
    assert [one["id"] for one in trace["conversations"]] == ["new"]
    assert trace.get("spans", []) == []
    assert server.ask("GET", f"{path}/stats").json["conversations"][0]["steps"] == 0


@needs_chromium
def test_a_run_is_drawn_and_leads_to_its_events(browser: Browser, server: Serving) -> None:
    work(server)
    page = open_page(browser, server, "lead")
    open_trace(page)
    rows = page.run("[...document.querySelectorAll('.waterfall .row')].map(one => one.textContent)")
    assert any(row.startswith("tool terminal") and "failed: exit code 3" in row for row in rows)
    assert sum(row.startswith("model") for row in rows) == 6
    assert "tokens" in page.text(".charts").lower()
    # All edits of a file are one diff.
    diff = page.text(".trace .file")
    assert "+x = 11" in diff
    assert "x = 10" not in diff
    assert "1 changed file, +2" in page.text(".trace")
    page.click(".waterfall .row", "exit 3")
    page.until("document.activeElement.closest('.entry')?.innerText.includes('exit 3')")
    # A child's span leads into the child's log.
    page.click(".waterfall .row", "It is filed.")
    page.until("location.hash.startsWith('#/c/lead.')")
    page.until("document.activeElement.closest('.entry')?.innerText.includes('It is filed.')")
    assert page.faults() == []


HOLD_EVENTS = """
window.released = new Promise((done) => (window.release = done));
const real = window.fetch;
window.fetch = async (path, given) => {
    if (path.includes("/events?")) await window.released;
    return real(path, given);
};
"""


@needs_chromium
def test_a_row_that_is_clicked_while_the_log_loads_leads_to_its_event(
    browser: Browser, server: Serving
) -> None:
    work(server)
    page = open_page(browser, server)
    page.wait("#list", "Go.")
    page.run(HOLD_EVENTS)
    page.run("location.hash = '#/c/lead'")
    open_trace(page)
    page.click(".waterfall .row", "exit 3")
    page.run("release()")
    page.until("document.activeElement.closest('.entry')?.innerText.includes('exit 3')")


def forked(server: Any) -> None:
    """Fork "lead" twice, and one of the forks."""
    work(server)
    for origin, id in (("lead", "second"), ("lead", "third"), ("second", "inner")):
        reply = server.ask("POST", f"/api/conversations/{origin}/fork", {"id": id, "seq": 5})
        assert reply.status == 201


def test_forks_and_forks_of_forks_are_in_the_trace_and_listed(server: Serving) -> None:
    forked(server)
    trace = server.ask("GET", "/api/conversations/lead/trace").json
    forks = [one for one in trace["conversations"] if one.get("relation") == "fork"]
    rows = [(one["id"], one["parent"], one["parentSeq"], one["depth"]) for one in forks]
    expected = [("second", "lead", 5, 1), ("inner", "second", 5, 2), ("third", "lead", 5, 1)]
    assert rows == expected
    items = server.ask("GET", "/api/conversations/lead/forks").json["items"]
    assert [(one["id"], one["parent"]) for one in items] == [one[:2] for one in expected]
    assert server.ask("GET", "/api/conversations/inner/forks").json["items"] == []
    assert server.ask("GET", "/api/conversations/lead/forks", key=server.other).status == 404
    # A fork that was removed is not shown.
    assert server.ask("DELETE", "/api/conversations/third").status == 204
    items = server.ask("GET", "/api/conversations/lead/forks").json["items"]
    assert [one["id"] for one in items] == ["second", "inner"]


@needs_chromium
def test_the_forks_are_in_the_pictures_of_the_page(browser: Browser, server: Serving) -> None:
    forked(server)
    page = open_page(browser, server, "lead")
    open_trace(page)
    rows = "[...document.querySelectorAll('.trace tbody tr')].map(one => one.innerHTML)"
    page.until(f"{rows}.filter(one => one.includes('fork at event 5: ')).length === 3")
    page.click("[role=tab]", "Tree")
    page.wait("ul.tree ul.tree a[href='#/c/inner']")
    sums = "[...document.querySelectorAll('#tab-body [data-sums]')].map(one => one.innerText)"
    page.until(f"{sums}.length === 4 && {sums}.every(one => one.includes('step'))")
    # A fork that is made in the meantime comes into both.
    reply = server.ask("POST", "/api/conversations/lead/fork", {"id": "late", "seq": 2})
    assert reply.status == 201
    page.wait("#tab-body a[href='#/c/late']")
    page.click("[role=tab]", "Trace")
    page.until(f"{rows}.filter(one => one.includes('#/c/late')).length === 1")
    assert page.faults() == []


@needs_chromium
def test_the_rows_are_walked_with_the_keyboard(browser: Browser, server: Serving) -> None:
    work(server)
    page = open_page(browser, server, "lead")
    open_trace(page)
    page.run("document.querySelector('.waterfall').focus()")
    for key, row in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("End", None)):
        page.run(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown',"
            f" {{key: {json.dumps(key)}, bubbles: true}}))"
        )
        at = page.run("Number(document.activeElement.dataset.row)")
        assert at == row if row is not None else at > 5
    page.press("Enter")
    page.until("!!document.activeElement.closest('.entry')")


@needs_chromium
def test_the_trace_follows_a_run(browser: Browser, server: Serving) -> None:
    script = [("terminal", {"command": "until [ -e go ]; do sleep 0.05; done"}), "Done."]
    path = talk(server, "slow", script, runtime=True, message="Go.")
    page = open_page(browser, server, "slow")
    open_trace(page)
    page.wait(".waterfall .row", "running")
    # An element that is drawn anew keeps the focus.
    for selector in (".waterfall", ".waterfall .row"):
        page.run(
            f"(document.querySelector({selector!r}).focus(),"
            "document.querySelector('.waterfall').setAttribute('data-old', ''))"
        )
        page.until("!document.querySelector('.waterfall').hasAttribute('data-old')")
        assert page.run(f"document.activeElement.matches({selector!r})")
    # A row that is drawn anew between press and release is clicked.
    place = page.place(".waterfall .row", "Go.")
    page.run("document.querySelector('.waterfall').setAttribute('data-old', '')")
    page.mouse("mousePressed", place)
    page.until("!document.querySelector('.waterfall').hasAttribute('data-old')")
    page.mouse("mouseReleased", place)
    page.until("document.activeElement.closest('.entry')?.innerText.includes('Go.')")
    workspace = server.ask("GET", path).json["workspace"]
    reply = server.ask(
        "POST",
        f"/api/workspaces/{workspace}/tools/terminal",
        {"arguments": {"command": "touch go"}},
    )
    assert reply.status == 200
    page.wait(".waterfall .row", "Done.")
    assert not page.run("document.querySelector('.waterfall').innerText.includes('running')")


@needs_chromium
def test_ten_thousand_events_are_few_rows_and_hostile_text_is_text(
    browser: Browser, server: Serving
) -> None:
    path = talk(server, "long", ["ok"], start=False)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    evil = "<img src=x onerror=alert(1)>\u202e"
    events: list[Any] = []

    def add(kind: Any, **fields: Any) -> None:
        seq = len(events) + 1
        at = began + timedelta(seconds=seq)
        events.append(kind(seq=seq, id=f"{seq}", timestamp=at, **fields))

    while len(events) < 9_990:
        seq = len(events) + 1
        call = ToolCall(f"{seq}.0", evil if seq == 1 else "look", {"path": evil})
        add(ev.AssistantReplied, calls=(call,), model=evil, usage=Usage(seq, 5), duration=0.5)
        add(ev.ToolCallStarted, call_id=call.id)
        add(ev.ToolCallFinished, call_id=call.id, result=ToolResult("x"), duration=0.2)
    server.host.chats.append("default", "long", events)
    trace = server.ask("GET", f"{path}/trace").json
    assert len(trace["spans"]) == 2000
    assert trace["leftOut"] == 6660 - 2000
    assert len(trace["points"]) <= 400
    page = open_page(browser, server, "long")
    open_trace(page)
    assert page.run("document.querySelectorAll('.waterfall .row').length") < 120
    assert page.run("document.querySelectorAll('.waterfall img').length") == 0
    assert "\\u{202e}" in page.text(".waterfall")
    page.run("document.querySelector('.waterfall').scrollTop = 1e9")
    page.until("!!document.querySelector('[data-row=\"1999\"]')")
    assert page.run("document.querySelectorAll('.waterfall .row').length") < 120
    assert page.faults() == []
