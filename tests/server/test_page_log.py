"""Tests of the log of the page at `/`: Markdown, code, changes, groups of calls, current activity,
and decisions; in a real headless Chromium over a real server."""

from __future__ import annotations

import base64
import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.security import RiskRules
from holdfast.agent.serial_form import form_of
from holdfast.content import ImageContent, TextContent, ToolCall, ToolResult
from holdfast.llm.client import LLM
from tests.agent_servers import Serving
from tests.browser import CHROMIUM, SKIP, Browser, Page
from tests.model_server import ModelServer, Stall
from tests.paths import SHARED
from tests.server.test_page import PICTURE, journal, open_page, talk
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=SKIP),
]
TRAJECTORIES = SHARED / "trajectories"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def browser(chromium: Browser, server: Serving) -> Iterator[Browser]:
    yield chromium
    chromium.close_tabs()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "server").mkdir()
    with Serving(tmp_path / "server") as serving:
        yield serving


def page_with_answer(
    browser: Browser, server: Serving, markdown: str, selector: str = ".answer .text"
) -> Page:
    """Open the page at a conversation with this answer."""
    talk(server, "c", [markdown], message="Say it.")
    page = open_page(browser, server, "c")
    page.wait(selector)
    return page


def texts(page: Page, selector: str) -> list[str]:
    return page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.innerText)"
    )


def count(page: Page, selector: str) -> int:
    return page.run(f"document.querySelectorAll({json.dumps(selector)}).length")


# --- Markdown ---

MARKDOWN = """\
# First

Some *emphasis*, **strong**, ~~struck~~ and `code`.

## Second

1. one
2. two
   - nested
   - [x] done
   - [ ] open

> quoted

| name | value |
|------|------:|
| a    | 1     |

***
"""


def test_markdown_is_commonmark_with_tables_and_task_lists(
    browser: Browser, server: Serving
) -> None:
    page = page_with_answer(browser, server, MARKDOWN)
    assert texts(page, ".text h3") == ["First"]
    assert texts(page, ".text h4") == ["Second"]
    for tag, content in {
        "em": "emphasis",
        "strong": "strong",
        "del": "struck",
        "code": "code",
    }.items():
        assert texts(page, f".text {tag}") == [content]
    assert texts(page, ".text ol > li > ul > li")[0] == "nested"
    assert page.run(
        "[...document.querySelectorAll('.text .task .box')].map(one => one.ariaLabel)"
    ) == ["done", "open"]
    assert texts(page, ".text blockquote p") == ["quoted"]
    assert texts(page, ".text td") == ["a", "1"]
    assert count(page, ".text td.right") == 1
    assert count(page, ".text hr") == 1
    assert page.faults() == []


HOSTILE = (
    "[a](javascript:window.pwned=1) [b](data:text/html,x) [c](vbscript:x) [d](JaVaScRiPt:x)\n\n"
    "![e](http://127.0.0.1:9/e.png) ![f](https://evil.example/f.png) ![g](data:image/svg+xml;base64,AAAA)\n\n"
    "<img src='http://127.0.0.1:9/h.png' onerror='window.pwned=1'><script>window.pwned=1</script>\n\n"
    "<javascript:window.pwned=1> [bank.example](https://evil.example/login) [x]: javascript:1\n\n"
    "[ref] [label][ref]\n\n[ref]: javascript:window.pwned=1\n"
)


def test_hostile_markdown_makes_no_script_no_request_and_no_false_link(
    browser: Browser, server: Serving
) -> None:
    page = page_with_answer(browser, server, HOSTILE)
    assert page.run("window.pwned") is None
    hrefs = page.run("[...document.querySelectorAll('.text a')].map(one => one.href)")
    assert all(href.startswith(("http://", "https://")) for href in hrefs), hrefs
    assert "bank.example (evil.example)" in page.text(".text")
    assert count(page, ".text img, .text script") == 0
    page.run("new Promise(done => setTimeout(done, 100))")
    urls = [
        event["params"]["request"]["url"]
        for event in page.browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert not [url for url in urls if f":{server.port}/" not in url and url[:5] != "data:"], urls
    assert page.faults() == []


LEFT = "parseInt([...document.querySelectorAll('.answer button')].at(-1).innerText.match(/\\d+/))"


@pytest.mark.parametrize("piece", ["*", "[", "![", "- a\n", "> "], ids=lambda piece: repr(piece))
def test_a_long_text_of_one_sign_is_bounded(browser: Browser, server: Serving, piece: str) -> None:
    many = piece * (700_000 // len(piece))
    page = page_with_answer(browser, server, f"before\n\n{many}", ".answer button")
    page.wait(".answer button", "Show more")
    assert count(page, "*") < 10_000
    assert page.run("document.querySelector('.answer').innerText.length") < 100_000
    before = page.run(LEFT)
    page.click(".answer button", "Show more")
    page.until(f"{LEFT} < {before}")
    assert page.faults() == []


def test_an_answer_that_streams_keeps_its_finished_blocks(
    browser: Browser, server: Serving
) -> None:
    page = open_page(browser, server)
    same = page.run("""
        import("/page/markdown.js").then(({ GrowingMarkdown, markdown }) => {
            const text = "# One\\n\\ntwo **three**\\n\\n- a\\n- b\\n\\n```python\\nx = 1\\n\\ny = 2\\n```\\n\\nlast [a](https://b.example)";
            const growing = new GrowingMarkdown();
            let first = null, kept = true;
            for (let end = 1; end <= text.length; end++) {
                growing.show(text.slice(0, end));
                if (end === 12) first = growing.node.firstChild;
                if (end > 12) kept = kept && growing.node.firstChild === first;
            }
            const whole = document.createElement("div");
            whole.append(...markdown(text));
            return [kept, growing.node.innerText === whole.innerText, whole.querySelectorAll("li").length];
        })""")
    assert same == [True, True, 2]


# --- code and changes ---


def test_code_has_colours_line_numbers_and_a_button_that_copies(
    browser: Browser, server: Serving
) -> None:
    code = 'def f(x):\n    """Doc."""\n    return x  # same\n\nprint(f(1))'
    page = page_with_answer(browser, server, f"```python\n{code}\n```\n\n```nolanguage\na\n```")
    page.wait(".text .c-word", "def")
    page.wait(".text .c-comment", "# same")
    assert texts(page, ".text pre code") == [code, "a"]
    assert texts(page, ".text .numbers") == ["1\n2\n3\n4\n5"]
    page.browser.ask(
        "Browser.grantPermissions",
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        browserContextId=page.context,
    )
    page.run("document.querySelector('.text .copy').click()")
    page.wait(".text .copy", "Copied")
    assert page.run("navigator.clipboard.readText()") == code
    page.run("document.querySelector('.answer > header .copy').click()")
    page.until("navigator.clipboard.readText().then(text => text.startsWith('```python'))")
    assert page.faults() == []


def test_long_code_is_shown_whole_and_coloured_in_part(browser: Browser, server: Serving) -> None:
    code = "\n".join(f"x{number} = 'text {number}'" for number in range(5_000))
    long = "y = '" + "z" * 100_000 + "'"
    page = page_with_answer(
        browser, server, f"```python\n{code[:25_000]}\n```\n\n```python\n{long}\n```"
    )
    page.wait(".text .c-string", "text 0")
    assert texts(page, ".text pre code")[0].strip() == code[:25_000].strip()
    assert count(page, ".text .c-string") < 2_000
    assert page.faults() == []


def test_changes_show_the_words_that_changed(browser: Browser, server: Serving) -> None:
    script = [
        (
            "write_file",
            {"path": "a.py", "content": "def f(one):\n    return one + 1\n\n\nx = f(1)\n"},
        ),
        ("edit_file", {"path": "a.py", "old": "return one + 1", "new": "return one + 2"}),
        "Done.",
    ]
    talk(server, "c", script, runtime=True, message="Go.")
    page = open_page(browser, server, "c")
    page.wait(".answer", "Done.")
    edit = '[aria-label^="Call edit_file"]'
    assert texts(page, f"{edit} .result .remove .changed") == ["1"]
    assert texts(page, f"{edit} .result .add .changed") == ["2"]
    page.wait(f"{edit} .result .add .c-word", "return")
    assert page.run(
        f"[...document.querySelectorAll('{edit} .result [data-place]')].map(one => one.dataset.place)"
    )[:3] == ["1 1 ", "2   ", "  2 "]
    page.click(f"{edit} .head")
    page.wait(f"{edit} .given .add", "return one + 2")
    assert page.faults() == []


def test_a_unified_diff_is_read_by_its_counts(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    diff = (
        "--- a/x.sql\n+++ b/x.sql\n@@ -1,3 +1,3 @@\n select 1;\n--- old comment\n+-- new comment\n"
        " select 2;\n--- /dev/null\n+++ b/y\n@@ -0,0 +1 @@\n+++ plus\n"
    )
    rows = page.run(
        f"import('/page/diff.js').then(({{ diff }}) => [...diff({json.dumps(diff)})"
        ".querySelectorAll('.line')].map(one => [one.className, one.textContent]))"
    )
    assert rows == [
        ["line place", "+++ b/x.sql"],
        ["line place", "@@ -1,3 +1,3 @@"],
        ["line", " select 1;"],
        ["line remove", "--- old comment"],
        ["line add", "+-- new comment"],
        ["line", " select 2;"],
        ["line place", "+++ b/y"],
        ["line place", "@@ -0,0 +1 @@"],
        ["line add", "+++ plus"],
    ]


# --- output of programs ---


def pieces(page: Page, output: str) -> list[list[str]]:
    """Return the pieces of a program's output on the page: their classes and texts."""
    return page.run(
        f"import('/page/ansi.js').then(({{ terminal }}) => terminal({json.dumps(output)}).map(one =>"
        " [one.className ?? '', one.textContent ?? one]))"
    )


def test_colours_of_a_terminal(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    assert pieces(page, "plain") == [["", "plain"]]
    assert pieces(page, "\x1b[31mred\x1b[0m \x1b[1;92mgreen\x1b[39m bold\x1b[m.") == [
        ["ink1", "red"],
        ["", " "],
        ["bold ink2", "green"],
        ["bold", " bold"],
        ["", "."],
    ]
    assert pieces(page, "\x1b[38;5;196mcube\x1b[38;2;0;0;250mtrue\x1b[48:5:2mground") == [
        ["ink1", "cube"],
        ["ink4", "true"],
        ["ink4 ground2", "ground"],
    ]
    # neither concealed nor in the colour of its background
    assert pieces(page, "\x1b[8mhidden\x1b[0m\x1b[31;41msame") == [
        ["", "hidden"],
        ["ground1", "same"],
    ]
    assert pieces(page, "10 %\r\x1b[32m99 %\r\n\x1b]0;title\x07\x1b[2Kdone \u202e") == [
        ["ink2", "99 %\n"],
        ["ink2", "done \\u{202e}"],
    ]


PROGRAMS = {
    "ls": ["ls", "--color=always", "-l", "/"],
    "grep": ["grep", "--color=always", "-n", "root", "/etc/passwd"],
    "git": [
        *("git", "--no-pager", "-c", "color.ui=always"),
        *("diff", "--no-index", "/etc/hostname", "/etc/hosts"),
    ],
    "ruff": ["ruff", "--version"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_of_programs_in_a_terminal_has_no_escape_left(
    browser: Browser, server: Serving, name: str
) -> None:
    if shutil.which(PROGRAMS[name][0]) is None:
        pytest.skip(f"there is no {name} here")
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    subprocess.run(
        PROGRAMS[name],
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        stderr=secondary,
        env=environment,
        check=False,
        timeout=120,
    )
    os.close(secondary)
    output = b""
    try:
        while len(output) < 30_000 and (data := os.read(primary, 4096)):
            output += data
    except OSError:  # the end of a terminal's output
        pass
    os.close(primary)
    page = open_page(browser, server)
    parts = pieces(page, output.decode(errors="replace"))
    shown_text = "".join(one[1] for one in parts)
    assert shown_text.strip()
    assert "\x1b" not in shown_text
    assert "u{1b}" not in shown_text


# --- a log to work from ---

READING = [
    *(("read_file", {"path": name}) for name in ("a.txt", "b.txt", "a.txt")),
    ("grep", {"pattern": "x"}),
    ("glob", {"pattern": "*.txt"}),
]
FILES = ("terminal", {"command": "echo xa > a.txt; echo xb > b.txt"})


def test_calls_that_only_read_are_one_line_and_grouped(browser: Browser, server: Serving) -> None:
    script = [
        FILES,
        *READING,
        ("terminal", {"command": "echo out; (exit 3)"}),
        *READING[:1],
        "Done.",
    ]
    talk(server, "c", script, runtime=True, message="Go.")
    page = open_page(browser, server, "c")
    page.wait(".answer", "Done.")
    # a streamed answer may be shown a frame before the entries above it
    page.wait(".group > .head", "Read 2 files, searched 2 times")
    page.wait('[aria-label^="Call terminal, failed"] .ended', "exit code 3")
    assert len(texts(page, ".group > .head")) == 1
    assert count(page, ".folded:not([hidden])") == 0
    assert page.text('[aria-label^="Call terminal, failed"] .ended').strip() == "exit code 3"
    # a single one is a line that opens
    single = '.entry:not(.group) > [aria-label^="Call read_file"]'
    assert count(page, f"{single} .result") == 0
    page.click(f"{single} .head")
    page.wait(f"{single} pre.code", "xa")
    assert texts(page, f"{single} .numbers") == []
    page.click(".group > .head")
    page.until("document.querySelectorAll('[aria-label^=\"Call read_file\"]').length === 4")
    page.wait('[aria-label^="Call glob"] .title', "*.txt")
    page.click(".group > .head")
    page.until("document.querySelectorAll('[aria-label^=\"Call read_file\"]').length === 1")
    # all calls as lines, and back
    page.run("document.activeElement.blur()")
    page.press("c")
    page.until("!document.querySelector('#log .call.done .output')")
    page.click("#collapse", "Show results")
    page.wait('[aria-label^="Call terminal"] .output', "out")
    # a search opens the group
    page.press("f")
    page.fill("#find", "b.txt")
    page.click(".found button", "read_file")
    page.wait('[aria-label^="Call read_file"] .title', "b.txt")
    assert page.faults() == []


def test_the_output_of_a_running_command_is_seen(
    browser: Browser, server: Serving, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = f"until test -e {go}; do sleep 0.05; done"
    command = f"printf '\\033[32mfirst\\033[0m\\n'; {wait}; echo last"
    talk(server, "c", [("terminal", {"command": command}), "Done."], runtime=True)
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    server.ask("POST", "/api/conversations/c/messages", {"text": "Go."})
    page.wait(".call.running pre.progress .ink2", "first")
    page.wait(".now", "Running terminal $ printf")
    seconds = "parseInt(document.querySelector('.call.running [data-since]').textContent)"
    page.until(f"{seconds} >= 0")
    page.until(f"{seconds} > {page.run(seconds)}")  # it is a clock
    go.touch()
    page.wait(".answer", "Done.")
    assert count(page, ".progress") == 0
    page.until("document.querySelector('.now').hidden")
    assert page.faults() == []


def test_waiting_for_the_model_and_retries_are_seen(browser: Browser, server: Serving) -> None:
    limited = (429, {"retry-after": "60"}, {"error": {"message": "Slow down."}})
    with ModelServer([Stall(3), limited]) as model:
        form = form_of(Agent(LLM("m", api_key="k", base_url=model.url, max_retries=4)))
        body = {"id": "c", "agent": form.mapping, "secrets": form.secrets, "deltas": True}
        assert server.ask("POST", "/api/conversations", body).status == 201
        server.ask("POST", "/api/conversations/c/start")
        page = open_page(browser, server, "c")
        page.wait("#facts", "idle")
        server.ask("POST", "/api/conversations/c/messages", {"text": "Hi"})
        page.wait(".now", "Waiting for the model, 1 s")
        page.wait(".now", " s (2 of 4): RateLimited: ")
        assert page.text(".now").startswith("Retrying in ")
        assert "Slow down." in page.text(".now")
        page.click("#controls button", "Stop")
        page.until("document.querySelector('.now').hidden")
        assert page.faults() == []


def status(server: Serving, seq: int, name: Any, reason: str = "") -> None:
    event = ev.StatusChanged(
        seq=seq, id=f"s{seq}", timestamp=datetime.now(UTC), status=name, reason=reason
    )
    server.host.chats.append("default", "c", [event])


def test_an_answer_that_broke_off_stays_as_it_was_shown(browser: Browser, server: Serving) -> None:
    server.make("c", ["x"])
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    until(lambda: server.host.stats()["readers"] == 1)
    status(server, 1, "running")
    page.until("/running|at rest/.test(document.querySelector('#facts').textContent)")
    note = json.dumps({"kind": "text", "text": "It **begins** and"}).encode()
    server.host._feeds.note("c", "delta", lambda: note)
    page.wait("#live .text", "It begins and")
    status(server, 2, "paused", "interrupted")
    page.wait("#live .broken", "broken off")
    assert page.text("#live .text") == "It begins and"
    assert page.faults() == []


# --- decisions ---

APPROVALS = [("terminal", {"command": f"echo {number}"}) for number in range(5)]


def test_a_request_is_shown_once_and_all_are_approved_together(
    browser: Browser, server: Serving
) -> None:
    path = talk(server, "c", [APPROVALS, "Done."], runtime=True, confirm="always", message="Go.")
    page = open_page(browser, server, "c")
    page.wait("#decide .all", "5 calls wait for you")
    assert texts(page, "#decide .row .title") == ["$ echo 3", "$ echo 4"]
    assert count(page, "#log .decision") == 0  # the request is in the card alone
    page.click("#decide button", "Approve all")
    page.until("document.querySelectorAll('#dialog .command').length === 5")
    # a decision that another user makes meanwhile stays
    [first, *_] = [event for event in journal(server, "c") if event["type"] == "decision"]
    refusal = {"callId": first["callId"], "reason": "No."}
    assert server.ask("POST", f"{path}/reject", refusal).status == 200
    page.click("#dialog button", "Approve all 5")
    page.wait(".answer", "Done.")
    decided = [event["decision"] for event in journal(server, "c") if event["type"] == "decision"]
    assert sorted(decided) == ["approve"] * 4 + ["ask"] * 5 + ["reject"]
    assert page.run("document.querySelector('#decide').hidden")


# Presses the button of the remaining card as soon as it is drawn, as a second click does.
PRESS_THE_NEXT = """new MutationObserver(() => {
    const cards = document.querySelectorAll("#decide .card");
    if (cards.length !== 1) return;
    window.pressed = true;
    cards[0].querySelector("button.primary").click();
}).observe(document.querySelector("#decide"), {childList: true})"""


def test_no_press_decides_the_call_that_takes_the_place_of_another(
    browser: Browser, server: Serving
) -> None:
    path = talk(
        server, "c", [APPROVALS[:2], "Done."], runtime=True, confirm="always", message="Go."
    )
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "echo 1")
    page.run(PRESS_THE_NEXT)
    page.click("#decide .card:last-child button", "Approve")
    page.until("window.pressed")
    page.wait("#decide .card", "echo 0")
    page.click("#decide .card button", "Reject")  # a moment later the card can be decided
    page.wait(".answer", "Done.")
    decided = [event["decision"] for event in journal(server, "c") if event["type"] == "decision"]
    assert decided == ["ask", "ask", "approve", "reject"]
    assert server.ask("GET", path).status == 200
    assert page.faults() == []


def test_a_key_that_is_held_down_decides_one_call(browser: Browser, server: Serving) -> None:
    path = talk(
        server, "c", [APPROVALS[:2], "Done."], runtime=True, confirm="always", message="Go."
    )
    page = open_page(browser, server, "c")
    page.wait("#decide .card button:enabled", "Approve")
    page.run("document.querySelector('#decide .card button.primary').focus()")
    first = next(event for event in journal(server, "c") if event["type"] == "decision")
    refusal = {"callId": first["callId"], "reason": "No."}
    assert server.ask("POST", f"{path}/reject", refusal).status == 200
    page.until("document.querySelectorAll('#decide .card').length === 1")
    page.wait("#decide .card button:enabled", "Approve")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "decide"
    page.press("Tab")
    page.until("document.activeElement.matches('#decide .card button')")
    page.run("document.querySelector('#decide .card button.primary').focus()")
    page.press("Enter")
    page.wait(".answer", "Done.")
    decided = [event["decision"] for event in journal(server, "c") if event["type"] == "decision"]
    assert decided == ["ask", "ask", "reject", "approve"]
    assert page.faults() == []


def test_a_tool_is_allowed_until_the_user_asks_to_be_asked_again(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", [*APPROVALS, "Done."], runtime=True, confirm="always", message="Go.")
    page = open_page(browser, server, "c")
    page.click("#decide button", "Always allow terminal")
    page.wait(".answer", "Done.")
    decisions = [event for event in journal(server, "c") if event["type"] == "decision"]
    assert [event["decision"] for event in decisions] == ["ask", "approve"] * 5
    assert [event.get("reason", "") for event in decisions if event["decision"] == "approve"] == [
        "",
        *["The user allows this tool in this conversation."] * 4,
    ]
    page.click("#decide .allowed button", "terminal")
    page.until("document.querySelector('#decide').hidden")
    assert page.faults() == []


def test_calls_of_high_risk_are_shown_though_their_tool_is_allowed(
    browser: Browser, server: Serving
) -> None:
    script = [APPROVALS[0], ("terminal", {"command": "rm -rf /"}), "Done."]
    talk(server, "c", script, runtime=True, confirm="always", security=RiskRules(), message="Go.")
    page = open_page(browser, server, "c")
    page.click("#decide button", "Always allow terminal")
    page.wait("#decide .card", "rm -rf /")
    page.wait("#decide .risk.high")
    page.click("#decide button", "Reject")
    page.wait(".answer", "Done.")


def test_arguments_of_the_model_and_of_the_approver_are_both_shown(
    browser: Browser, server: Serving
) -> None:
    script = [("terminal", {"command": "echo harm now"}), "Done."]
    talk(server, "c", script, runtime=True, confirm="always", message="Go.")
    page = open_page(browser, server, "c")
    page.click("#decide button", "Review")
    page.fill("#arguments", '{"command": "echo good now"}')
    page.click("#dialog button", "Approve with these")
    page.wait(".answer", "Done.")
    assert texts(page, ".edited .line") == ["-echo harm now", "+echo good now"]
    assert texts(page, ".edited .changed") == ["harm", "good"]
    assert page.text("#log .call .head .title") == "$ echo good now"
    assert page.faults() == []


# --- sizes, pictures, whole runs ---


def test_font_sizes_do_not_compound(browser: Browser, server: Serving) -> None:
    markdown = (
        "- `code` in\n  - a list\n    > `code`\n\n[`x`](https://a.example)\n\n```\na\nb\nc\nd\n```"
    )
    talk(server, "c", [markdown, FILES, *READING, "Done."], runtime=True, message="Go.")
    page = open_page(browser, server, "c")
    page.wait(".answer pre.code")
    server.ask("POST", "/api/conversations/c/messages", {"text": "Go on."})
    page.wait(".answer", "Done.")
    page.run("document.querySelectorAll('#log .head').forEach(one => one.click())")
    sizes = page.run(
        "[...document.querySelectorAll('#log *')].map(one => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 12
    code = page.run(
        "[...document.querySelectorAll('#log code, #log pre')].map(one => getComputedStyle(one).fontSize)"
    )
    assert len(set(code)) <= 2, set(code)  # messages of the user are in the text's size


def test_pictures_of_results_open_in_full_size(browser: Browser, server: Serving) -> None:
    server.make("c")
    call = ToolCall("1.0", "chart", {})
    base: dict[str, Any] = {"timestamp": datetime.now(UTC)}
    result = ToolResult((ImageContent(PICTURE, "image/png"), TextContent("A chart.")))
    data = base64.b64encode(PICTURE).decode()
    events: list[ev.AnyEvent] = [
        ev.AssistantReplied(
            seq=1, id="1", text=f"![own](data:image/png;base64,{data})", calls=(call,), **base
        ),
        ev.ToolCallFinished(seq=2, id="2", call_id="1.0", result=result, **base),
    ]
    server.host.chats.append("default", "c", events)
    page = open_page(browser, server, "c")
    page.wait(".result .picture img")
    page.until("[...document.querySelectorAll('#log img')].every(one => one.naturalWidth === 1)")
    assert page.run("[...document.querySelectorAll('#log img')].map(one => one.alt)") == [
        "own",
        "picture",
    ]
    page.click(".result .picture")
    page.wait(".result .picture.large")
    assert page.faults() == []


@pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="the recorded runs are not here")
@pytest.mark.parametrize("name", ["pydicom-1256", "sqlfluff-2419", "astroid-1333"])
def test_recorded_runs_are_rendered(browser: Browser, server: Serving, name: str) -> None:
    """Check that each event of a real run can be seen, without an error and without much in the
    document."""
    [path] = TRAJECTORIES.glob(f"*{name}.json")
    run = json.loads(path.read_text())
    now = datetime.now(UTC)
    events: list[ev.AnyEvent] = [
        ev.MessageAdded(seq=1, id="m", timestamp=now, content=(TextContent(run["task"]),))
    ]
    for turn in run["turns"]:
        message = (turn["response"] or {"choices": [{"message": {}}]})["choices"][0]["message"]
        seq = len(events) + 1
        calls = tuple(
            ToolCall(f"{seq}.{index}", "terminal", {"command": one["command"]})
            for index, one in enumerate(turn["tool_outputs"])
        )
        events.append(
            ev.AssistantReplied(
                seq=seq,
                id=f"a{seq}",
                timestamp=now,
                text=message.get("content") or "",
                reasoning=message.get("reasoning_content") or "",
                calls=calls,
            )
        )
        for call, one in zip(calls, turn["tool_outputs"], strict=True):
            meta = {"exitCode": one["returncode"]}
            result = ToolResult((TextContent(one["output"] or "(no output)"),), meta=meta)
            seq = len(events) + 1
            events.append(
                ev.ToolCallFinished(
                    seq=seq, id=f"r{seq}", timestamp=now, call_id=call.id, result=result
                )
            )
    server.make("c")
    server.host.chats.append("default", "c", events)
    page = open_page(browser, server, "c")
    page.wait(".answer")
    failed = sum(one["returncode"] != 0 for turn in run["turns"] for one in turn["tool_outputs"])
    marked = page.run(
        "(async () => { const failed = new Set(), scroller = document.querySelector('#scroller');"
        " const look = () => document.querySelectorAll('.call.failed').forEach(one =>"
        " failed.add(one.dataset.call));"
        " scroller.scrollTop = scroller.scrollHeight;"
        " for (let left = 3000; left > 0; left--) { look(); if (scroller.scrollTop <= 0) break;"
        " scroller.scrollTop -= 400; await new Promise(requestAnimationFrame); }"
        " await new Promise(requestAnimationFrame); look(); return failed.size; })()"
    )
    assert marked == failed
    assert count(page, "*") < 10_000
    assert page.faults() == []
