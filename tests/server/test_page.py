"""Tests of the page at `/`, in a real headless Chromium over a real server. Tests that need a
Chromium are skipped without one."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ImageContent,
    Limits,
    LocalRuntime,
    ScriptedLLM,
    ToolResult,
)
from holdfast import events as ev
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.answer import AnswerDetails, Citation, ServerToolCall, TextPart
from holdfast.content import TextContent, ToolCall, Usage
from holdfast.llm.completion import Completion
from holdfast.server.openai import publish
from holdfast.server.page import POLICY, files
from holdfast.tools.preset.asking import register_asking_tools
from tests import vendor
from tests.agent_servers import Serving
from tests.browser import CHROMIUM, SKIP, Browser, Page
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=SKIP)


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


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
    agent = Agent(ScriptedLLM(["At your service."], stream=True), system_prompt="You help.")
    with Serving(tmp_path / "server", agents={"helper": publish("helper", agent)}) as serving:
        yield serving


def talk(
    server: Any,
    id: str,
    script: list[Any],
    *,
    runtime: bool = False,
    message: str = "",
    start: bool = True,
    undo: bool = False,
    **options: Any,
) -> str:
    """Start a conversation whose model gives these answers, and return its path. With `runtime` it
    has a workspace's tools."""
    tools = LocalRuntime().tools if runtime else []
    agent = Agent(ScriptedLLM(script, stream=True), tools, **options)
    declared = tools_of(agent)
    modules = {tool.name: tool.module for tool in declared if tool.module}
    form = form_of(agent)
    body = {
        "id": id,
        "agent": form.mapping,
        "secrets": form.secrets,
        "tools": [json.loads(tool.to_json()) for tool in declared],
        "tool_module_qualnames": modules,
        "questions": True,
        "deltas": True,
        "undo": undo,
    }
    reply = server.ask("POST", "/api/conversations", body)
    assert reply.status == 201, reply
    if start:
        server.ask("POST", f"/api/conversations/{id}/start")
    if message:
        server.ask("POST", f"/api/conversations/{id}/messages", {"text": message})
    return f"/api/conversations/{id}"


def open_page(browser: Browser, server: Any, id: str = "", key: str = "", **options: Any) -> Page:
    """Open the page with a key, at a conversation."""
    url = f"http://127.0.0.1:{server.port}"
    page = browser.open(f"{url}/#/c/{id}" if id else f"{url}/", **options)
    page.log_in(key or getattr(server, "key", KEY))
    return page


def journal(server: Any, id: str) -> list[dict[str, Any]]:
    return server.ask("GET", f"/api/conversations/{id}/events?limit=1000").json["events"]


# --- the files ---


def test_the_files_need_no_key_and_their_policy_lets_nothing_else_in(server: Serving) -> None:
    for path, file in files().items():
        reply = server.ask("GET", path, key=None)
        assert (reply.status, reply.body) == (200, file.body)
        packed = server.ask("GET", path, key=None, Accept_Encoding="br, gzip")
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == file.body
        assert packed.headers["etag"] != reply.headers["etag"]
        assert packed.headers["vary"] == "Accept-Encoding"
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert server.ask("GET", path, key=None, If_None_Match=reply.headers["etag"]).status == 304
    assert server.ask("GET", "/page/", key=None).status == 401
    assert server.ask("GET", "/page/__init__.py", key=None).status == 401
    assert server.ask("POST", "/", key=None).status == 405
    for part in ("unsafe-inline", "unsafe-eval", "*", "http:", "https:"):
        assert part not in POLICY


def test_the_files_are_light_and_bring_nothing_from_elsewhere() -> None:
    served = files()
    assert sum(len(file.compressed) for file in served.values()) <= 250 * 1000
    own = {path: file for path, file in served.items() if "/vendor/" not in path}
    assert sum(len(file.body) for file in own.values()) < 200 * 1024
    for path, file in own.items():
        text = file.body.decode()
        # Indentation is removed, which must not change a text.
        code = [re.sub(r"\"[^\"]*\"|/[^/ ]+/\w*", "", line) for line in text.splitlines()]
        assert all(line.count("`") % 2 == 0 for line in code), path
        assert not re.findall(
            r"""(?:src|href|from|import|url\()\s*[=(]?\s*["']?https?:""",
            text.replace("http://www.w3.org/2000/svg", ""),
        ), path
        for sink in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
        ):
            assert sink not in text, (path, sink)
    page = served["/"].body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", page)
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', page):
        assert path in served
    for path, file in own.items():
        for name in re.findall(r'(?:from |import\()"\./([\w./-]+)"', file.body.decode()):
            assert f"/page/{name}" in served, (path, name)


@pytest.mark.slow
def test_the_vendored_files_are_those_of_the_pinned_packages() -> None:
    try:
        contents = vendor.make()
    except OSError as error:
        pytest.skip(str(error))
    assert {path.name: path.read_bytes() for path in vendor.FOLDER.iterdir()} == contents


def test_the_page_knows_the_vendored_grammars() -> None:
    grammars = re.search(r'GRAMMARS = new Set\("([\w ]+)"', files()["/page/code.js"].body.decode())
    assert grammars is not None
    assert sorted(grammars[1].split()) == sorted(vendor.LANGUAGES)
    licences = (vendor.FOLDER / vendor.LICENCES).read_text()
    for package in vendor.PACKAGES:
        assert f"{package.name} {package.version} ({package.licence})" in licences


def test_colours_are_told_apart_in_both_themes() -> None:
    """Check the contrast of WCAG 2.2 AA: 4.5 to 1 for text."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        if len(digits) == 3:
            digits = "".join(2 * one for one in digits)
        parts = [int(digits[index : index + 2], 16) / 255 for index in (0, 2, 4)]
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = files()["/page/page.css"].body.decode()
    light, dark = [
        dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", part))
        for part in re.findall(r":root\s*\{(.*?)\}", style, re.S)
    ][:2]
    pairs = [
        (ink, ground)
        for ink in ("ink", "dim", "link", "bad", "warn", "good")
        for ground in ("bg", "card", "sunk")
    ]
    kinds = [name for name in light if name.startswith("c-")]
    inks = [name for name in light if name.startswith("ink") and name != "ink"]
    assert len(kinds) == 8
    assert len(inks) == 6
    pairs += [(ink, ground) for ink in kinds for ground in ("sunk", "add", "remove")]
    pairs += [(ink, ground) for ink in kinds for ground in ("add-word", "remove-word")]
    pairs += [(ink, ground) for ink in inks for ground in ("sunk", "add", "remove", "user")]
    pairs += [("ink", "add-word"), ("ink", "remove-word"), ("dim", "add"), ("dim", "remove")]
    pairs += [
        ("on-main", "main"),
        ("ink", "add"),
        ("ink", "remove"),
        ("ink", "user"),
        ("dim", "user"),
        ("bg", "warn"),
        ("bg", "bad"),
    ]
    for theme in (light, {**light, **dark}):
        for ink, ground in pairs:
            bright, dull = sorted((luminance(theme[ink]), luminance(theme[ground])), reverse=True)
            assert (bright + 0.05) / (dull + 0.05) >= 4.5, (ink, ground, theme[ink], theme[ground])


# --- the API for it ---


def test_the_servers_own_page_may_use_it_and_pages_from_elsewhere_may_not(server: Serving) -> None:
    own = f"http://127.0.0.1:{server.port}"
    assert server.ask("GET", "/api/conversations", Origin=own).status == 200
    for origin in (
        "http://127.0.0.1:1",
        "http://evil.example",
        f"{own}.evil.example",
        "null",
        f"ftp://127.0.0.1:{server.port}",
    ):
        assert server.ask("GET", "/api/conversations", Origin=origin).status == 403, origin


def test_a_conversation_is_made_with_an_agent_of_the_servers(server: Serving) -> None:
    [agent] = server.ask("GET", "/api/agents").json["agents"]
    assert agent == {"name": "helper", "model": agent["model"], "tools": []}
    created = server.ask(
        "POST", "/api/agents/helper/conversations", {"id": "mine"}, Idempotency_Key="k1"
    )
    assert (created.status, created.json["id"]) == (201, "mine")
    assert (
        server.ask(
            "POST", "/api/agents/helper/conversations", {"id": "mine"}, Idempotency_Key="k1"
        ).json
        == created.json
    )
    assert server.ask("POST", "/api/agents/nobody/conversations", {}).status == 404
    assert server.ask("GET", "/api/conversations/mine", key=server.other).status == 404


def family(server: Any) -> str:
    """Start a conversation that gives work to another, whose call waits for approval, and return
    the child's id."""
    clerk = Agent(
        ScriptedLLM([("terminal", {"command": "echo done"}), "Filed."]),
        [t for t in LocalRuntime().tools if t.name == "terminal"],
        confirm="always",
    )
    path = talk(
        server,
        "lead",
        [("delegate", {"agent": "clerk", "task": "File it."}), "It is filed."],
        message="Go.",
        delegates={"clerk": clerk},
    )

    def child_id() -> str:
        items = server.ask("GET", f"{path}/children").json["items"]
        return items[0]["id"] if items and items[0]["status"] == "waiting_for_confirmation" else ""

    return until(child_id)


def test_what_a_call_spawned_is_read_and_decided_by_its_tenant_alone(server: Serving) -> None:
    child = family(server)
    path = f"/api/conversations/{child}"
    info = server.ask("GET", path).json
    assert (info["spawnedBy"].split(":")[0], info["status"]) == ("lead", "waiting_for_confirmation")
    question = next(event for event in journal(server, child) if event["type"] == "decision")
    for what in ("", "/events", "/children", "/state", "/services"):
        assert server.ask("GET", f"{path}{what}").status == 200
        assert server.ask("GET", f"{path}{what}", key=server.other).status == 404
    body = {"callId": question["callId"], "argumentsHash": question["argumentsHash"]}
    assert server.ask("POST", f"{path}/approve", body, key=server.other).status == 404
    assert server.ask("POST", f"{path}/approve", {**body, "argumentsHash": "0" * 64}).status == 409
    assert server.ask("POST", f"{path}/messages", {"text": "x"}).status == 422
    assert server.ask("DELETE", path).status == 404
    assert server.ask("POST", f"{path}/approve", body).status == 200
    until(lambda: server.ask("GET", "/api/conversations/lead").json["status"] == "finished")
    assert server.ask("DELETE", "/api/conversations/lead").status == 204
    assert server.ask("GET", path).status == 404


# --- access ---


@pytest.mark.slow
@needs_chromium
def test_a_key_is_asked_for_and_kept_in_its_tab_alone(browser: Browser, server: Serving) -> None:
    page = browser.open(server.server.url)
    page.fill("#key", "not-the-key")
    page.press("Enter")
    page.wait("#dialog .bad", "does not accept this key")
    page.press("Escape")  # there is no way around it
    page.wait("#key")
    page.log_in(server.key)
    assert page.run("sessionStorage.getItem('holdfast.key')") == server.key
    assert server.key not in page.run(
        "JSON.stringify(localStorage) + document.cookie + location.href"
    )
    page.go(server.server.url)
    page.wait("#list")
    assert not page.run("document.querySelector('#dialog').open")
    other = browser.open(server.server.url, shared=page.context)
    other.wait("#key")
    page.click("#leave")
    page.wait("#key")
    assert page.run("sessionStorage.getItem('holdfast.key')") is None
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_a_key_that_is_taken_back_is_asked_for_again_and_nothing_is_lost(
    browser: Browser, server: Serving
) -> None:
    path = talk(server, "c", ["one", "two"], message="first")
    second = server.keys.create("default")
    page = open_page(browser, server, "c", second)
    page.wait(".answer", "one")
    server.keys.revoke(
        next(key.id for key in server.keys.list() if key.id not in _ids(server, second))
    )
    page.wait("#dialog .bad", "no longer accepts this key")
    server.ask("POST", f"{path}/messages", {"text": "meanwhile"})
    page.log_in(server.key)
    page.wait(".answer", "two")
    assert page.run("document.querySelectorAll('.message.user').length") == 2


def _ids(server: Serving, but: str) -> set[str]:
    """Return the ids of all keys but one."""
    from hashlib import sha256

    digest = sha256(but.encode()).hexdigest()
    return {key.id for key in server.keys.list() if not digest.startswith(key.id)}


# --- display ---


@pytest.mark.slow
@needs_chromium
def test_what_is_said_and_done_comes_as_it_happens(browser: Browser, server: Serving) -> None:
    script = [
        "Hello **you**.\n\n- one\n- two\n\n```python\nprint(1)\n```",
        [
            (
                "plan",
                {
                    "steps": [
                        {"step": "Look", "state": "done"},
                        {"step": "Mend", "state": "in_progress"},
                    ]
                },
            )
        ],
        ("terminal", {"command": "printf '\\033[31mred\\033[0m and \\007bell\\n'; seq 1 60"}),
        ("write_file", {"path": "a.py", "content": "x = 1\n"}),
        ("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 2"}),
        "Done.",
    ]
    talk(server, "c", script, runtime=True, planning="tool")
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    page.fill("#composer-text", "Hi there")
    page.press("Enter")
    page.wait(".message.user", "Hi there")
    page.wait(".answer strong", "you")
    page.wait(".answer li", "two")
    page.wait(".answer pre.code", "print(1)")
    assert page.run("document.querySelector('#composer-text').value") == ""
    page.fill("#composer-text", "Mend it")
    page.click("#composer button", "Send")
    page.wait(".answer", "Done.")
    output = page.text('[aria-label^="Call terminal"] .output')
    assert output.startswith("red and ")
    assert "\x1b" not in output
    assert "lines …" in output
    page.click('[aria-label^="Call terminal"] .head')
    page.until(
        'document.querySelector(\'[aria-label^="Call terminal"] .result'
        " .output').innerText.includes('\\n30\\n')"
    )
    assert page.text('[aria-label^="Call edit_file"] .diff .add').strip() == "+x = 2"
    assert page.text('[aria-label^="Call edit_file"] .diff .remove').strip() == "-x = 1"
    page.wait("#panel .plan .in_progress", "Mend")
    page.wait("#panel", "1 of 2 steps done")
    page.wait("#facts", "tokens")
    assert "Agent: Done." in page.run("document.querySelector('#told').textContent")
    page.click("[role=tab]", "About")
    page.wait("#panel", "scripted")
    assert page.faults() == []


def transfer(page: Page, event: str, files: dict[str, tuple[str, bytes]], words: str = "") -> None:
    """Paste or drop files by name, each with its type and its bytes, and perhaps a text."""
    statements = [
        f"data.items.add(new File([new Uint8Array({list(data)})], {json.dumps(name)},"
        f" {{type: {json.dumps(kind)}}}));"
        for name, (kind, data) in files.items()
    ]
    if words:
        statements.append(f"data.setData('text/plain', {json.dumps(words)});")
    field = "clipboardData" if event == "paste" else "dataTransfer"
    kind = "ClipboardEvent" if event == "paste" else "DragEvent"
    page.run(
        f"(() => {{ const data = new DataTransfer(); {' '.join(statements)}"
        " document.querySelector('#composer-text').dispatchEvent(new"
        f" {kind}({json.dumps(event)}, {{{field}: data, bubbles: true, cancelable: true}})); }})()"
    )


@pytest.mark.slow
@needs_chromium
def test_files_are_chosen_pasted_dropped_and_sent_with_a_message(
    browser: Browser, server: Serving, tmp_path: Path
) -> None:
    talk(server, "c", ["Seen.", "And again."])
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    (tmp_path / "notes").write_text("Grüezi")
    (tmp_path / "blob").write_bytes(b"\xff\x00")
    (tmp_path / "empty.pdf").touch()
    node = page.ask("Runtime.evaluate", expression="document.querySelector('#files')")["result"]
    page.ask(
        "DOM.setFileInputFiles",
        files=[str(tmp_path / name) for name in ("notes", "blob", "empty.pdf")],
        objectId=node["objectId"],
    )
    page.wait("#attached li", "notes")
    page.wait("#toasts", "blob: The type of this file is unknown.")
    page.wait("#toasts", "empty.pdf: The file is empty.")
    transfer(page, "paste", {"image.png": ("image/png", PICTURE)})
    page.wait("#attached li", "image.png")
    transfer(
        page, "drop", {"a.pdf": ("application/pdf", b"%PDF"), "b.pdf": ("application/pdf", b"b")}
    )
    page.wait("#attached li", "b.pdf")
    transfer(page, "paste", {"copy.png": ("image/png", PICTURE)}, "copied from an office program")
    page.click('[aria-label="Remove b.pdf"]')
    page.until("document.querySelectorAll('#attached li').length === 3")
    page.run("location.hash = '#/'")  # the files wait until the user comes back
    page.run("location.hash = '#/c/c'")
    page.wait("#attached li", "a.pdf")
    page.wait("#facts", "idle")
    page.fill("#composer-text", "Look at these")
    page.press("Enter")
    page.wait(".answer", "Seen.")
    page.until("document.querySelector('#attached').hidden")
    page.wait(".message.user", "file a.pdf (application/pdf, 4 bytes)")
    page.until("!!document.querySelector('.message.user img')")
    messages = [event for event in journal(server, "c") if event["type"] == "message"]
    assert messages[0]["content"] == [
        {"type": "file", "data": "R3LDvGV6aQ==", "mimeType": "text/plain", "name": "notes"},
        {
            "type": "file",
            "data": base64.b64encode(PICTURE).decode(),
            "mimeType": "image/png",
            "name": "image.png",
        },
        {"type": "file", "data": "JVBERg==", "mimeType": "application/pdf", "name": "a.pdf"},
        {"type": "text", "text": "Look at these"},
    ]
    transfer(page, "drop", {"c.txt": ("text/plain", b"c")})  # a message of a file alone
    page.wait("#attached li", "c.txt")
    page.click("#composer button", "Send")
    page.wait(".answer", "And again.")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_files_of_a_message_that_was_not_accepted_stay_attached(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", ["Seen."])
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    transfer(page, "drop", {"a.txt": ("text/plain", b"a")})
    page.wait("#attached li", "a.txt")
    page.run(
        "(() => { const real = fetch; window.fetch = (path, given) => given?.method === 'POST' &&"
        " path.endsWith('/messages') ? (window.fetch = real, Promise.reject(new TypeError())) :"
        " real(path, given); })()"
    )
    page.fill("#composer-text", "Look")
    page.press("Enter")
    page.wait("#toasts", "The server does not answer.")
    assert page.text("#attached li").startswith("a.txt")
    page.press("Enter")
    page.wait(".answer", "Seen.")
    page.until("document.querySelector('#attached').hidden")
    assert [event["type"] for event in journal(server, "c")].count("message") == 1
    size = "new File([new ArrayBuffer(20000001)], 'big.pdf', {type: 'application/pdf'})"
    page.run(
        f"(() => {{ const data = new DataTransfer(); data.items.add({size});"
        " document.querySelector('#talk').dispatchEvent(new DragEvent('drop', {dataTransfer: data,"
        " bubbles: true, cancelable: true})); })()"
    )
    page.wait("#toasts", "big.pdf: A message may have files of 20 MB together.")


@pytest.mark.slow
@needs_chromium
def test_a_command_that_failed_has_no_tick_and_a_new_file_no_line_too_many(
    browser: Browser, server: Serving
) -> None:
    script = [
        ("terminal", {"command": "(exit 3)"}),
        ("write_file", {"path": "a.py", "content": "x = 1\ny = 2\n"}),
        ("write_file", {"path": "empty", "content": ""}),
        ("edit_file", {"path": "a.py", "old": "y = 2\n", "new": ""}),
        "Done.",
    ]
    talk(server, "c", script, runtime=True, message="Go")
    page = open_page(browser, server, "c")
    page.wait(".answer", "Done.")
    assert page.text('[aria-label^="Call terminal"] .mark') == "✗"
    assert page.text('[aria-label^="Call write_file"] .mark') == "✓"
    marks = page.run("[...document.querySelectorAll('.call .mark')].map((mark) => mark.innerText)")
    assert marks == ["✗", "✓", "✓", "✓"]
    for number in range(1, 4):
        page.run(f"document.querySelectorAll('.call .head')[{number}].click()")
        page.until(f"document.querySelectorAll('.call')[{number}].querySelector('.given') !== null")
    given_lines = (
        "[...document.querySelectorAll('.call .given')].map((one) =>"
        " [...one.querySelectorAll('.diff .line')].map((line) => line.innerText.trim()))"
    )
    assert page.run(given_lines) == [["+x = 1", "+y = 2"], [], ["-y = 2"]]
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_sources_refusals_and_what_the_provider_made_are_shown(
    browser: Browser, server: Serving
) -> None:
    details = AnswerDetails(
        parts=(TextPart("I look.", "commentary"), TextPart("It is so.", "final")),
        citations=(
            Citation("https://example.org/a", "A source", "so it is"),
            Citation("javascript:alert(1)", "A trap"),
        ),
        server_calls=(ServerToolCall("web_search", "s1", {"query": "so"}, [{"url": "u"}]),),
        media=(ImageContent(PICTURE, "image/png"),),
        refusal="I would rather not.",
    )
    answer = Completion("I look.\n\nIt is so.", details=details)
    with Conversation(Agent(ScriptedLLM([answer]))) as local:
        local.send_message("Is it so?")
        state = local.run()
    path = talk(server, "c", [], start=False)
    reply = server.ask("PUT", f"{path}/state", json.loads(state.to_json()))
    assert reply.status == 200, reply
    page = open_page(browser, server, "c")
    page.wait(".answer", "It is so.")
    assert page.text(".answer .text.dim") == "I look."
    assert page.run("[...document.querySelectorAll('.sources a')].map((a) => [a.href, a.rel])") == [
        ["https://example.org/a", "noopener noreferrer"]
    ]
    assert "A trap" in page.text(".sources")
    assert "Refused: I would rather not." in page.text(".answer")
    assert "web_search, run by the provider" in page.text(".answer")
    assert page.run("document.querySelectorAll('.answer img').length") == 1
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_an_answer_is_seen_while_it_is_written(browser: Browser, server: Serving) -> None:
    server.make("c", ["x"])
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    id = "c"
    until(lambda: server.host.stats()["readers"] == 1)

    def note(kind: str, text: str) -> None:
        server.host._feeds.note(
            id, "delta", lambda: json.dumps({"kind": kind, "text": text}).encode()
        )

    server.host.chats.append(
        "default",
        "c",
        [ev.StatusChanged(seq=1, id="s", timestamp=datetime.now(UTC), status="running")],
    )
    page.until("/running|at rest/.test(document.querySelector('#facts').textContent)")
    note("reasoning", "Hmm")
    note("text", "It is **go")
    page.wait("#live .text", "It is **go")
    note("text", "od**.")
    page.wait("#live .text strong", "good")
    page.wait("#live .reasoning")
    note("restart", "")
    page.until("document.querySelector('#live').hidden")


@pytest.mark.slow
@needs_chromium
def test_a_pause_leaves_the_streaming_answer_and_an_interrupt_ends_it(
    browser: Browser, server: Serving
) -> None:
    page = open_page(browser, server)
    texts = page.run("""
        import("/page/fold.js").then(({ Fold }) => {
            const fold = new Fold(), said = [];
            const piece = (text) => (fold.note("delta", { kind: "text", text }), said.push(fold.live?.text ?? null));
            const status = (seq, name, reason) => (
                fold.take([{ type: "status", seq, id: `${seq}`, timestamp: "2026-01-01T00:00:00Z", status: name, reason }]),
                said.push(fold.live?.text ?? null));
            status(1, "running", "");
            fold.note("delta", { kind: "applause", text: "clap" }); // of a newer server
            said.push(fold.live);
            piece("Hel");
            status(2, "paused", "");
            piece("lo.");
            status(3, "paused", "interrupted");
            return said;
        })""")
    assert texts == [None, None, "Hel", "Hel", "Hello.", None]


@pytest.mark.slow
@needs_chromium
def test_what_comes_is_shown_in_every_tab_and_once(browser: Browser, server: Serving) -> None:
    talk(server, "c", ["one", "two"])
    first = open_page(browser, server, "c")
    second = open_page(browser, server, "c")
    first.wait("#facts", "idle")
    second.wait("#facts", "idle")
    first.fill("#composer-text", "from the first")
    first.press("Enter")
    for page in (first, second):
        page.wait(".answer", "one")
    second.fill("#composer-text", "from the second")
    second.press("Enter")
    for page in (first, second):
        page.wait(".answer", "two")
        assert page.run(
            "[...document.querySelectorAll('.message.user pre')].map(one => one.innerText)"
        ) == [
            "from the first",
            "from the second",
        ]


@pytest.mark.slow
@needs_chromium
def test_the_list_is_searched_filtered_and_kept_up(browser: Browser, server: Serving) -> None:
    for number in range(5):
        talk(server, f"c{number}", ["ok"], message=f"Question about subject {number}")
    page = open_page(browser, server)
    page.until("document.querySelectorAll('.item').length === 5")
    page.wait(".item .chip", "finished")
    page.fill("#search", "subject 3")
    page.until("document.querySelectorAll('.item').length === 1")
    page.fill("#search", "")
    page.until("document.querySelectorAll('.item').length === 5")
    page.run(
        "(() => { const one = document.querySelector('#status'); one.value = 'running';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    page.wait("#list", "No conversation matches")
    page.run(
        "(() => { const one = document.querySelector('#status'); one.value = '';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.querySelectorAll('.item').length === 5")
    talk(server, "late", ["ok"], message="A late one")
    page.wait(".item", "A late one")


# --- actions ---


@pytest.mark.slow
@needs_chromium
def test_a_call_is_approved_with_other_arguments_bound_to_what_was_seen(
    browser: Browser, server: Serving
) -> None:
    talk(
        server,
        "c",
        [("terminal", {"command": "echo harm", "timeout": 20}), "ok"],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "terminal")
    assert "waits for your approval" in page.run("document.querySelector('#alert').textContent")
    page.run(
        "window.sent = []; const real = fetch; window.fetch = (url, given) => { sent.push([url,"
        " given.body]); return real(url, given); }"
    )
    page.press("a")
    page.wait("#dialog", "Approve")
    page.fill("#arguments", '{"command": "echo"')
    page.click("#dialog button", "Approve")
    page.wait("#arguments-wrong", "not JSON")
    page.fill("#arguments", '{"command": "echo good", "command": "echo bad"}')
    page.click("#dialog button", "Approve")
    page.wait("#arguments-wrong", "twice")
    page.fill("#arguments", '{"command": "echo good"}')
    page.click("#dialog button", "Approve with these")
    page.wait(".answer", "ok")
    events = journal(server, "c")
    question, approved = [event for event in events if event["type"] == "decision"]
    assert (approved["decision"], approved["arguments"], approved["argumentsHash"]) == (
        "approve",
        {"command": "echo good"},
        question["argumentsHash"],
    )
    [body] = [json.loads(body) for url, body in page.run("sent") if url.endswith("/approve")]
    assert body["argumentsHash"] == question["argumentsHash"]
    assert (
        "good"
        in next(event for event in events if event["type"] == "toolResult")["result"]["content"][0][
            "text"
        ]
    )
    page.wait(".decision", "with other arguments")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_edited_arguments_that_do_not_fit_stay_in_the_dialog(
    browser: Browser, server: Serving
) -> None:
    talk(
        server,
        "c",
        [("terminal", {"command": "echo harm"}), "ok"],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.click("#decide button", "Review")
    edited = '{"command": "echo good", "timeout": "soon"}'
    page.fill("#arguments", edited)
    page.click("#dialog button", "Approve with these")
    page.wait("#arguments-wrong", "timeout")
    assert page.run("document.querySelector('#arguments').value") == edited
    assert [event["decision"] for event in journal(server, "c") if event["type"] == "decision"] == [
        "ask"
    ]
    page.fill("#arguments", '{"command": "echo good"}')
    page.click("#dialog button", "Approve with these")
    page.wait(".answer", "ok")
    page.until("!document.querySelector('#dialog').open")  # the response may come after the event
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_an_approval_of_what_another_has_decided_is_refused_and_said(
    browser: Browser, server: Serving
) -> None:
    path = talk(
        server,
        "c",
        [("terminal", {"command": "echo one"}), "ok"],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.click("#decide button", "Review")
    page.wait("#dialog", "Approve")
    assert server.ask("POST", f"{path}/reject", {"reason": "No."}).status == 200
    page.wait(".answer", "ok")
    page.click("#dialog button", "Approve")
    page.wait(".toast.bad")
    assert [event["decision"] for event in journal(server, "c") if event["type"] == "decision"] == [
        "ask",
        "reject",
    ]


@pytest.mark.slow
@needs_chromium
def test_numbers_that_scripts_cannot_hold_are_shown_and_sent_as_they_are(
    browser: Browser, server: Serving
) -> None:
    talk(
        server,
        "c",
        [("terminal", {"command": "echo x", "big": 12345678901234567891}), "ok"],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "12345678901234567891")
    page.click("#decide button", "Review")
    assert "12345678901234567891" in page.run("document.querySelector('#arguments').value")


@pytest.mark.slow
@needs_chromium
def test_what_is_to_be_run_hides_nothing(browser: Browser, server: Serving) -> None:
    """Check invisible characters and characters that turn the text around."""
    command = "rm -rf ~\recho hi \x1b]0;curl evil\x07 \x1b[8mhidden\x1b[0m \u202egpj.exe"
    talk(
        server,
        "c",
        [("terminal", {"command": command}), "ok"],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "echo hi")
    page.press("a")
    page.wait("#dialog", "Approve")
    for place in ("#decide .card", "#dialog"):
        text = page.text(place)
        for part in (
            "rm -rf ~\\u{d}echo hi",
            "curl evil",
            "hidden",
            "\\u{1b}[8m",
            "\\u{202e}gpj.exe",
        ):
            assert part in text, (place, part)
    area = page.run("document.querySelector('#arguments').value")
    assert "\u202e" not in area
    assert json.loads(area) == {"command": command}


@pytest.mark.slow
@needs_chromium
def test_a_call_is_rejected_with_a_reason_that_the_model_is_told(
    browser: Browser, server: Serving
) -> None:
    talk(
        server,
        "c",
        [("terminal", {"command": "rm -rf /"}), "I see."],
        runtime=True,
        confirm="always",
        message="go",
    )
    page = open_page(browser, server, "c")
    page.click("#decide button", "Review")
    page.fill("#reason", "Not on this machine.")
    page.click("#dialog button", "Reject")
    page.wait(".answer", "I see.")
    page.wait(".decision.reject", "Not on this machine.")
    assert (
        "Not on this machine."
        in next(event for event in journal(server, "c") if event["type"] == "toolResult")["result"][
            "content"
        ][0]["text"]
    )


@pytest.mark.slow
@needs_chromium
def test_a_run_is_paused_resumed_and_stopped(browser: Browser, server: Serving) -> None:
    path = talk(
        server,
        "c",
        [
            ("terminal", {"command": "sleep 2"}),
            "rested",
            ("terminal", {"command": "sleep 600"}),
            "never",
        ],
        runtime=True,
    )
    page = open_page(browser, server, "c")
    page.wait("#facts", "idle")
    server.ask("POST", f"{path}/messages", {"text": "go"})
    page.click("#controls button", "Pause")
    page.wait("#facts", "paused")
    page.click("#controls button", "Resume")
    page.wait(".answer", "rested")
    page.fill("#composer-text", "again")
    page.press("Enter")
    page.wait(".call.running", "sleep 600")
    page.click("#controls button", "Stop")
    page.wait("#facts", "paused")
    page.wait(".call.failed", "sleep 600")
    assert page.faults() == []


def ask_in(server: Serving, question: dict[str, Any]) -> None:
    """Start the conversation `c`, in which a call has a question for the user."""
    agent = Agent(ScriptedLLM([("ask_user", question), "Thanks."]), register_asking_tools())
    declared = tools_of(agent)
    body = {
        "id": "c",
        "agent": form_of(agent).mapping,
        "tools": [json.loads(tool.to_json()) for tool in declared],
        "questions": True,
        "tool_module_qualnames": {tool.name: tool.module for tool in declared},
    }
    assert server.ask("POST", "/api/conversations", body).status == 201
    server.ask("POST", "/api/conversations/c/start")
    server.ask("POST", "/api/conversations/c/messages", {"text": "go"})


@pytest.mark.slow
@needs_chromium
def test_a_refused_answer_stays_in_its_form(browser: Browser, server: Serving) -> None:
    ask_in(server, {"question": "Which city?"})
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "Which city?")
    page.fill("#decide textarea", "Ghent")
    # The server refuses the answer, after the page has drawn other events.
    refuse = (
        "new Response(JSON.stringify({error: {type: 'X', message: 'Refused.'}}), {status: 422})"
    )
    page.run(
        "(() => { const real = fetch; window.fetch = (url, given) => url.endsWith('/answer') ?"
        f" new Promise((resolve) => {{ window.refuse = () => resolve({refuse}); }}) : real(url,"
        " given); })()"
    )
    page.click("#decide button", "Answer")
    page.until("!!window.refuse")
    server.ask("POST", "/api/conversations/c/messages", {"text": "By the way"})
    page.wait(".message", "By the way")
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.run("window.refuse()")
    page.wait(".toast.bad", "Refused.")
    assert page.run("document.querySelector('#decide textarea').value") == "Ghent"


@pytest.mark.slow
@needs_chromium
def test_a_fork_of_a_running_conversation_is_not_shown_as_running(
    browser: Browser, server: Serving
) -> None:
    path = talk(
        server, "c", [("terminal", {"command": "sleep 600"}), "done"], runtime=True, message="go"
    )
    until(lambda: any(event["type"] == "toolCallStarted" for event in journal(server, "c")))
    forked = server.ask("POST", f"{path}/fork", {"id": "f"})
    assert forked.status == 201, forked
    items = {item["id"]: item for item in server.ask("GET", "/api/conversations").json["items"]}
    assert {id: (item["status"], item["driven"]) for id, item in items.items()} == {
        "c": ("running", True),
        "f": ("running", False),
    }
    page = open_page(browser, server, "f")
    page.wait("#facts", "at rest")
    page.wait(".item", "at rest")
    page.click("#controls button", "Resume")
    page.wait("#controls button", "Stop")
    page.until("!document.querySelector('#facts').textContent.includes('at rest')")
    assert server.ask("GET", "/api/conversations/f").json["driven"]
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_a_question_is_answered_by_the_form_of_its_schema(
    browser: Browser, server: Serving
) -> None:
    ask_in(server, {"question": "Which city?", "options": ["Ghent", "Bruges"]})
    page = open_page(browser, server, "c")
    page.wait("#decide .card", "Which city?")
    assert "Waiting for the model" not in page.text("#main")
    page.until("!!document.querySelector('#decide select, #decide input, #decide textarea')")
    page.run(
        "(() => { const one = document.querySelector('#decide select'); if (one) one.value ="
        " [...one.options].find(two => two.text === 'Bruges').value; else"
        " document.querySelector('#decide input, #decide textarea').value = 'Bruges'; })()"
    )
    page.click("#decide button", "Answer")
    page.wait(".answer", "Thanks.")
    assert "Bruges" in json.dumps(
        next(event for event in journal(server, "c") if event["type"] == "toolResult")
    )
    page.until("document.querySelector('#decide').hidden")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_another_model_or_agent_is_chosen_by_its_name(browser: Browser, server: Serving) -> None:
    fast = ScriptedLLM(["fast"], "fast")
    talk(server, "c", ["one"], message="first", models={"fast": fast})
    page = open_page(browser, server, "c")
    page.wait(".answer", "one")
    page.click("[role=tab]", "About")
    page.run("window.prompt = () => '#slow'")
    page.click("#panel button", "Model…")
    page.wait("body", "It has: main, #fast. This server publishes: helper.")
    page.run("window.prompt = () => '#fast'")
    page.click("#panel button", "Model…")
    until(lambda: "note" in [event["type"] for event in journal(server, "c")])
    page.wait("#log", "from the next step on: main#fast")
    server.ask("POST", "/api/conversations/c/messages", {"text": "second"})
    page.wait("#log", "#fast: fast, 1 tools")
    page.wait("body", "2 steps")


@pytest.mark.slow
@needs_chromium
def test_a_conversation_is_forked_from_an_event(browser: Browser, server: Serving) -> None:
    talk(server, "c", ["one", "two"], message="first")
    page = open_page(browser, server, "c")
    page.wait(".answer", "one")
    page.run("document.querySelector('.answer .fork').click()")
    page.wait("#dialog", "Continue from event")
    page.press("Enter")
    page.until("location.hash.startsWith('#/c/') && location.hash !== '#/c/c'")
    page.wait(".answer", "one")
    page.click("[role=tab]", "Tree")
    page.wait("#panel", "Forked at event")
    page.click("#panel a", "c")
    page.until("location.hash === '#/c/c'")


@pytest.mark.slow
@needs_chromium
def test_a_rewind_puts_the_files_back(browser: Browser, server: Serving) -> None:
    write_call = ("write_file", {"path": "note.md", "content": "now"})
    talk(server, "c", [write_call, "Done."], runtime=True, undo=True, message="Write it.")
    page = open_page(browser, server, "c")
    page.wait(".answer", "Done.")
    page.run("document.querySelector('.message .fork').click()")
    page.click("#dialog button", "Rewind files too")
    page.wait("#toasts", "Files put back: 1.")
    page.until("location.hash.startsWith('#/c/') && location.hash !== '#/c/c'")
    talk(server, "d", ["Done."], message="Go.")
    page = open_page(browser, server, "d")
    page.wait(".answer", "Done.")
    page.run("document.querySelector('.answer .fork').click()")
    page.click("#dialog button", "Rewind files too")
    page.wait("#dialog .bad", "keeps no snapshots")


@pytest.mark.slow
@needs_chromium
def test_a_question_aside_and_labels_are_shown(browser: Browser, server: Serving) -> None:
    place = talk(server, "c", ["One.", "I said <b>one</b>."], message="Go.")
    page = open_page(browser, server, "c")
    page.wait(".answer", "One.")
    assert server.ask("POST", f"{place}/ask", {"question": "What did you do?"}).status < 300
    page.wait("#log", "Asked aside")
    page.wait("#log", "What did you do?")
    page.wait("#log", "I said <b>one</b>.")
    server.ask("POST", f"{place}/labels", {"title": "One thing", "add": ["bug"]})
    page.wait("#log", "title: One thing; tags: bug")
    page.wait("#list .chip", "bug")
    page.click("[role=tab]", "About")
    page.run("window.prompt = () => 'Dates'")
    page.click("#panel button", "Title…")
    page.wait("#title", "Dates")
    page.run("window.prompt = () => '-bug, customer=acme'")
    page.click("#panel button", "Tags…")
    page.wait("#panel", "customer=acme")
    assert server.ask("GET", place).json["tags"] == ["customer=acme"]
    page.fill("#search", "ACME")
    page.wait("#list .name", "Dates")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_the_tree_is_walked_and_a_child_is_decided(browser: Browser, server: Serving) -> None:
    child = family(server)
    page = open_page(browser, server, "lead")
    page.click("[role=tab]", "Tree")
    page.wait("#panel .tree", "waiting for you")
    page.click("#panel .tree a")
    page.until(f"location.hash === '#/c/{child}'")
    page.wait("#reader", "spawned")
    page.wait("#decide .card", "echo done")
    page.click("#decide button", "Approve")
    page.wait(".answer", "Filed.")
    page.click("#reader a", "lead")
    page.wait(".answer", "It is filed.")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_timers_are_set_seen_and_cancelled(browser: Browser, server: Serving) -> None:
    talk(server, "t", ["one"])
    page = open_page(browser, server, "t")
    page.click("[role=tab]", "Timers")
    page.fill("#panel [name=text]", "Look <b>again</b>.")
    page.fill("#panel [name=cron]", "0 9 * * tue")
    page.click("#panel button", "Set the timer")
    page.wait("#panel .tree", "0 9 * * tue")
    page.wait("#panel .tree", "again")
    [timer] = server.ask("GET", "/api/conversations/t/timers").json["timers"]
    assert timer["cron"] == "0 9 * * tue"
    assert timer["content"] == [{"type": "text", "text": "Look <b>again</b>."}]
    # The text being typed stays when the timers change, and the timer that was set is gone.
    assert page.run("document.querySelector('#panel [name=text]').value") == ""
    page.fill("#panel [name=text]", "half wri")
    assert (
        server.ask("POST", "/api/conversations/t/timers", {"text": "another", "every": 3600}).status
        < 300
    )
    page.wait("#panel .tree", "another")
    typed = "document.querySelector('#panel [name=text]')"
    assert page.run(f"{typed}.value") == "half wri"
    assert page.run(f"document.activeElement === {typed}")
    page.click("#panel .tree button", "Cancel")
    page.until("document.querySelectorAll('#panel .tree li').length === 1")
    page.click("#panel .tree button", "Cancel")
    page.until("!document.querySelector('#panel .tree li')")
    assert server.ask("GET", "/api/conversations/t/timers").json["timers"] == []
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_tools_are_seen_with_source_schema_and_health_and_called_by_hand(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", ["hello"], runtime=True, message="go")
    page = open_page(browser, server, "c")
    page.wait(".answer", "hello")
    page.click("[role=tab]", "Tools")
    page.wait("#panel .tool", "holdfast.runtime")
    page.click("#panel button", "Check health")
    page.wait("#panel", "use no services")
    before = len(journal(server, "c"))
    page.click("#panel .tool summary", "grep")
    page.click("#panel .tool summary", "Schema")
    page.wait("#panel .tool pre", '"pattern"')
    page.click("#panel .tool[open] button", "by hand")
    page.wait("#dialog", "This tool only reads")
    page.run(
        "(() => { const one = [...document.querySelectorAll('#dialog [name=pattern]')][0];"
        " one.value = 'needle'; })()"
    )
    page.click("#dialog button", "Call")
    page.wait("#dialog .result pre")
    page.press("Escape")
    page.click("#panel .tool summary", "grep")
    page.click("#panel .tool summary", "terminal")
    page.click("#panel .tool[open] button", "by hand")
    page.wait("#dialog", "may change files or data")
    assert page.run(
        "[...document.querySelectorAll('#dialog button')].find(one => one.innerText ==="
        " 'Call').disabled"
    )
    page.run("document.querySelector('#dialog [name=command]').value = 'echo by-hand'")
    page.click("#hand-sure")
    page.click("#dialog button", "Call")
    page.wait("#dialog .result pre", "by-hand")
    assert page.run(
        "[...document.querySelectorAll('#dialog button')].find(one => one.innerText ==="
        " 'Call').disabled"
    )
    assert len(journal(server, "c")) == before  # it is no part of the conversation
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_new_conversations_begin_with_an_agent_of_the_server_or_a_pasted_one(
    browser: Browser, server: Serving
) -> None:
    page = open_page(browser, server)
    page.press("n")
    page.wait("#begin-agent", "helper")
    page.fill("#begin-text", "Good day")
    page.click("#begin button", "Begin")
    page.wait(".answer", "At your service.")
    page.press("Escape")
    page.press("n")
    page.click("#begin button", "As JSON")
    page.wait("#which")
    page.run(
        "(() => { const one = document.querySelector('#which'); one.value = '';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    page.fill("#agent", '{"model": nonsense}')
    page.click("#dialog button", "Begin")
    page.wait("#dialog .bad", "not JSON")
    page.fill("#agent", json.dumps(form_of(Agent(ScriptedLLM(["Pasted."]))).mapping))
    page.fill("#first", "And you?")
    page.click("#dialog button", "Begin")
    page.wait(".answer", "Pasted.")
    assert page.faults() == []


# --- hostile content ---

EVIL = (
    "<img src=x onerror=\"window.pwned='img'\"><script>window.pwned='script'</script><svg"
    " onload=\"window.pwned='svg'\"></svg><a href=\"javascript:window.pwned='a'\">x</a>"
    " [click](javascript:window.pwned='md') [data](data:text/html,<script>1</script>)"
    " ![p](https://evil.example/p.png) https://ok.example/<script> </pre></code><iframe"
    " srcdoc='<script>parent.pwned=1</script>'></iframe> `<b>` **<i>x</i>** {{7*7}} ${7*7}"
    " \u202e\u2066\x1b]0;title\x07\x1b[31mred \x00"
)


@pytest.mark.slow
@needs_chromium
def test_nothing_that_a_model_or_a_tool_says_becomes_more_than_text(
    browser: Browser, server: Serving
) -> None:
    server.make("c")
    now = datetime.now(UTC)
    base: dict[str, Any] = {"timestamp": now}
    call = ToolCall(
        "3.0", EVIL[:120], {EVIL: EVIL, "command": EVIL, "path": "../../x", "content": EVIL}
    )
    question = ev.Question(
        id="3.1?1",
        message=EVIL,
        schema={"properties": {EVIL: {"type": "string", "title": EVIL, "enum": [EVIL, "b"]}}},
        asker=EVIL,
    )
    visit = ev.Question(id="3.1?2", message=EVIL, url="javascript:window.pwned='q'", asker=EVIL)
    meta = {
        "diff": f"--- a\n+++ b\n@@ -1 +1 @@\n-{EVIL}\n+{EVIL}",
        "holdfast/child": {"id": f"x/{EVIL}"},
        "holdfast/plan": True,
    }
    picture = {
        "type": "image",
        "data": "PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+",
        "mimeType": "image/svg+xml",
    }
    result = ToolResult.from_json(
        json.dumps(
            {
                "content": [
                    {"type": "text", "text": EVIL},
                    picture,
                    {"type": "resource_link", "uri": "javascript:window.pwned='r'", "name": EVIL},
                    {"type": "resource", "resource": {"uri": EVIL, "text": EVIL}},
                    {"type": "audio", "data": "AAAA", "mimeType": EVIL},
                ],
                "meta": meta,
                "isError": True,
                "error": {"type": EVIL, "message": EVIL},
            }
        )
    )
    plan = ToolResult((), {"steps": [{"step": EVIL, "state": EVIL}]}, {"holdfast/plan": True})
    events: list[ev.AnyEvent] = [
        ev.AgentConfigured(
            seq=1,
            id="1",
            system_prompt=EVIL,
            model=EVIL,
            name=EVIL,
            tools=(ev.ToolDefinition(EVIL, EVIL, {"properties": {EVIL: {}}}),),
            **base,
        ),
        ev.MessageAdded(seq=2, id="2", content=(TextContent(EVIL),), sender=EVIL, **base),
        ev.AssistantReplied(
            seq=3,
            id="3",
            text=EVIL,
            reasoning=EVIL,
            calls=(
                call,
                ToolCall("3.1", "plan", {}),
                ToolCall("3.2", EVIL, {"a": EVIL}),
                ToolCall("3.3", "plan", {}),
            ),
            model=EVIL,
            **base,
        ),
        ev.DecisionMade(
            seq=4, id="4", call_id="3.0", decision="ask", by=EVIL, reason=EVIL, risk=EVIL, **base
        ),
        ev.DecisionMade(seq=5, id="5", call_id="3.1", decision="ask", question=question, **base),
        ev.DecisionMade(seq=6, id="6", call_id="3.1", decision="ask", question=visit, **base),
        ev.ToolCallFinished(seq=7, id="7", call_id="3.0", result=result, **base),
        ev.ToolCallFinished(seq=8, id="8", call_id="3.3", result=plan, **base),
        ev.DecisionMade(
            seq=9,
            id="9",
            call_id="3.2",
            decision="ask",
            by=EVIL,
            reason=EVIL,
            risk=EVIL,
            arguments_hash=EVIL,
            **base,
        ),
        ev.ErrorRecorded(seq=10, id="10", error=EVIL, message=EVIL, **base),
        ev.NoteRecorded(seq=11, id="11", about=EVIL, text=EVIL, **base),
        ev.HistoryCondensed(seq=12, id="12", hidden=(2,), summary=EVIL, **base),
        ev.MessageAdded(
            seq=13, id="13", content=(TextContent(EVIL),), sender="holdfast", about=EVIL, **base
        ),
        ev.StatusChanged(seq=14, id="14", status="paused", reason=EVIL, **base),
    ]
    server.host.chats.append("default", "c", events)
    page = open_page(browser, server, "c")
    page.wait(".entry.error")
    page.wait("#decide .card")
    page.run("document.querySelectorAll('.head, summary').forEach(one => one.click())")
    page.run("document.querySelectorAll('a').forEach(one => one.target || one.click())")
    page.run("location.hash = '#/c/c'")
    page.wait(".entry.error")
    for tab in ("tree", "tools", "about", "plan"):
        page.run(f"document.querySelector('#tab-{tab}').click()")
        page.run("new Promise(done => setTimeout(done, 60))")
        page.run("document.querySelectorAll('summary').forEach(one => one.click())")
    page.wait("#panel .plan li")
    page.run("document.activeElement.blur()")
    page.press("a")
    page.wait("#dialog", "Approve")
    page.run("new Promise(done => setTimeout(done, 300))")
    assert page.run("window.pwned") is None
    assert (
        page.run(
            "document.querySelectorAll('iframe, object, embed, script:not([src]), #talk img,"
            " #dialog img, #talk svg, #panel svg, #dialog svg, base, style').length"
        )
        == 0
    )
    links = page.run("[...document.querySelectorAll('a')].map(one => one.href)")
    assert not [link for link in links if not link.startswith(("http://", "https://"))], links
    assert (
        page.run(
            "[...document.querySelectorAll('*')].flatMap(one => [...one.attributes]).filter(one =>"
            " one.name.startsWith('on')).length"
        )
        == 0
    )
    text = page.run("document.querySelector('#log').textContent")
    assert "<script>" in text  # unchanged
    for hidden in ("\u202e", "\u2066", "\x1b", "\x00"):
        assert hidden not in text
    assert "\\u{202e}" in text  # made visible
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_a_title_and_an_id_that_are_hostile_are_text_in_the_list(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", ["ok"], message=EVIL)
    page = open_page(browser, server)
    page.wait(".item", "<img src=x")
    page.run("location.hash = '#/c/' + encodeURIComponent('<img src=x onerror=pwned=1>')")
    page.wait("#facts .bad")
    page.run("location.hash = '#/c/%E0%A4%A'")
    page.wait("#facts .bad")
    assert page.run("window.pwned") is None
    assert page.run("document.querySelectorAll('#side img, #bar img').length") == 0


@pytest.mark.slow
@needs_chromium
def test_the_policy_holds_in_the_browser(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    assert (
        page.run(
            "new Promise(done => { const one = document.createElement('script'); try { one.text ="
            " 'window.pwned = 1'; document.body.append(one); } catch {} setTimeout(() =>"
            " done(window.pwned), 50); })"
        )
        is None
    )
    assert (
        page.run(
            "(() => { try { document.body.innerHTML = '<p>x'; return 'taken'; } catch { return"
            " 'refused'; } })()"
        )
        == "refused"
    )
    assert page.run("fetch('http://127.0.0.1:9/').then(() => 'went', () => 'refused')") == "refused"


# --- keys and sizes ---


@pytest.mark.slow
@needs_chromium
def test_everything_is_reached_with_the_keyboard(browser: Browser, server: Serving) -> None:
    talk(server, "one", ["first"], message="about one")
    talk(
        server,
        "two",
        [("terminal", {"command": "echo hi"}), "second"],
        runtime=True,
        confirm="always",
        message="about two",
    )
    page = open_page(browser, server)
    page.wait(".item", "about two")
    page.run("document.activeElement.blur(); document.body.focus()")
    page.press("Tab")
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().top") >= 0
    order: list[str] = []
    for _ in range(8):
        page.press("Tab")
        order.append(
            page.run(
                "document.activeElement.id || document.activeElement.className ||"
                " document.activeElement.tagName"
            )
        )
    assert order[:5] == ["A", "help-open", "new-open", "search", "status"], order
    assert "item" in order[5]
    page.run("document.activeElement.blur()")
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.press("Escape")
    page.press("j")
    page.until("location.hash.startsWith('#/c/')")
    page.run("location.hash = '#/c/two'")
    page.wait("#decide .card")
    page.press("a")
    page.wait("#dialog", "Approve")
    inside = True
    for _ in range(12):
        page.press("Tab")
        inside = inside and page.run(
            "document.activeElement === document.body ||"
            " !!document.activeElement.closest('#dialog')"
        )
    assert inside  # a dialog keeps the focus
    page.press("Escape")
    assert not page.run("document.querySelector('#dialog').open")
    page.run("document.activeElement.blur()")
    page.press("?")
    page.wait("#dialog", "Keyboard")
    page.run("document.querySelector('#singles').click()")
    page.press("Escape")
    page.press("n")
    # single letters can be turned off
    assert not page.run("document.querySelector('#dialog').open")
    page.press("?", "Shift")
    page.run("localStorage.clear()")
    page.press("m")
    assert page.run("document.activeElement.id") == "composer-text"
    page.press("n")
    assert page.run("document.activeElement.value") == "n"  # a letter in a field is a letter
    page.press("Escape")
    page.run("document.querySelector('#tab-plan').focus()")
    page.press("ArrowRight")
    assert (
        page.run("document.activeElement.id + document.activeElement.getAttribute('aria-selected')")
        == "tab-tracetrue"
    )
    assert (
        page.run(
            "[...document.querySelectorAll('button, a, input, select, textarea')].filter(one =>"
            " one.checkVisibility() && !(one.innerText.trim() || one.ariaLabel ||"
            " one.labels?.length || one.title || one.placeholder)).length"
        )
        == 0
    )
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_it_is_readable_on_a_phone_and_in_the_dark(browser: Browser, server: Serving) -> None:
    long = "A line that is long enough to be broken " * 6 + "x" * 200
    talk(
        server,
        "c",
        [
            long
            + "\n\n```\n"
            + "y" * 400
            + "\n```\n\n| a | b |\n|---|---|\n| "
            + "z" * 90
            + " | c |",
            ("terminal", {"command": "echo " + "w" * 300}),
            "ok",
        ],
        runtime=True,
        confirm="always",
        message=long,
    )
    until(lambda: server.host.status("default", "c") == "finished")
    server.ask("POST", "/api/conversations/c/messages", {"text": "on"})
    page = open_page(browser, server, width=360, height=740, touch=True, dark=True)
    page.wait(".item")
    assert not page.run("document.querySelector('#main').checkVisibility()")
    page.click(".item")
    page.wait("#decide .card")
    assert not page.run("document.querySelector('#side').checkVisibility()")

    def fits() -> None:
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert (
            page.run(
                "document.querySelector('#scroller').scrollWidth -"
                " document.querySelector('#scroller').clientWidth"
            )
            <= 0
        )
        wide = page.run(
            "[...document.querySelectorAll('button, input, textarea, .entry, .card,"
            " dialog')].filter(one => one.checkVisibility() && one.getBoundingClientRect().right >"
            " 361).map(one => one.outerHTML.slice(0, 100))"
        )
        assert wide == []

    fits()
    page.click("#decide button", "Review")
    page.wait("#dialog", "Approve")
    fits()
    page.press("Escape")
    page.click("#panel-open")
    page.wait("#panel [role=tab]")
    fits()
    page.press("Escape")
    page.click("#back")
    page.wait(".item")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    light = browser.open(server.server.url).run("getComputedStyle(document.body).backgroundColor")
    brightness = [
        sum(int(one) for one in re.findall(r"\d+", colour)[:3]) for colour in (dark, light)
    ]
    assert brightness[0] < 150 < 600 < brightness[1]


def long_journal(count: int) -> list[ev.AnyEvent]:
    """Return `count` events like those of an agent: answers, calls, results."""
    begin = datetime(2026, 11, 21, 9, tzinfo=UTC)
    events: list[ev.AnyEvent] = [
        ev.MessageAdded(seq=1, id="m", timestamp=begin, content=(TextContent("The long task."),))
    ]
    while len(events) < count:
        seq = len(events) + 1
        at = begin + timedelta(seconds=seq)
        call = ToolCall(f"{seq}.0", "terminal", {"command": f"make part-{seq}"})
        usage = Usage(1000, 50)
        text = f"Step {seq}: I look at **part {seq}** and go on with `make`."
        events.append(
            ev.AssistantReplied(
                seq=seq,
                id=f"a{seq}",
                timestamp=at,
                text=text,
                calls=(call,),
                usage=usage,
                cost=0.001,
                based_on=seq - 1,
            )
        )
        events.append(ev.ToolCallStarted(seq=seq + 1, id=f"s{seq}", timestamp=at, call_id=call.id))
        output = "\n".join(f"building {seq} {line} ..." for line in range(seq % 30))
        events.append(
            ev.ToolCallFinished(
                seq=seq + 2,
                id=f"r{seq}",
                timestamp=at,
                call_id=call.id,
                result=ToolResult(output, None, {"exitCode": 0}),
                duration=0.5,
            )
        )
    return events[:count]


@pytest.mark.slow
@needs_chromium
def test_ten_thousand_events_are_few_elements(browser: Browser, server: Serving) -> None:
    talk(server, "c", ["The last word."], start=False, limits=Limits(steps=100_000))
    server.host.chats.append("default", "c", long_journal(9_997))
    server.ask("POST", "/api/conversations/c/start")
    page = open_page(browser, server, "c")
    page.wait(".entry", "Step 9")
    page.until("document.querySelector('#facts').innerText.includes('steps')")
    assert page.run("document.querySelectorAll('*').length") < 5_000
    assert (
        page.run(
            "document.querySelector('#scroller').scrollHeight -"
            " document.querySelector('#scroller').scrollTop -"
            " document.querySelector('#scroller').clientHeight"
        )
        < 5
    )
    page.run("document.querySelector('#scroller').scrollTop = 0")
    page.wait(".message.user", "The long task.")
    assert page.run("document.querySelectorAll('*').length") < 5_000
    page.wait("#latest")
    server.ask("POST", "/api/conversations/c/messages", {"text": "And now?"})
    page.wait("#latest", "new")  # a reader keeps the position
    assert page.run("document.querySelector('#scroller').scrollTop") < 300
    page.press("f")
    page.fill("#find", "part-5000")
    page.click(".found button", "part-5000")
    page.wait(".call", "part-5000")
    page.click("#latest")
    page.wait(".answer", "The last word.")
    assert page.faults() == []


@pytest.mark.slow
@needs_chromium
def test_text_that_arrives_at_the_moment_of_a_scroll_does_not_undo_it(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", ["line\n\n" * 300], message="Go.")
    page = open_page(browser, server, "c")
    page.wait(".answer", "line")
    top = page.run(
        "import('/page/log.js').then(({ Log }) => {"
        " const log = new Log({}), scroller = document.querySelector('#scroller');"
        " log.toBottom();"
        " const bottom = scroller.scrollTop;"
        " scroller.scrollTop = 10;"
        " log.live({ text: 'more', reasoning: '', calls: [] });"
        " return [bottom, scroller.scrollTop]; })"
    )
    assert top[0] > 1000
    assert top[1] == 10


@pytest.mark.slow
@needs_chromium
def test_it_comes_again_when_the_server_does(browser: Browser, tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as server:
        talk(server, "c", ["before", "after"], message="one")
        page = open_page(browser, server, "c")
        page.wait(".answer", "before")
        page.fill("#composer-text", "a draft")
        server.kill()
        page.wait("#banner", "Reconnecting")
        server.start()
        page.until("document.querySelector('#banner').hidden")
        server.ask("POST", "/api/conversations/c/messages", {"text": "two"})
        page.wait(".message.user", "two")
        page.until("document.querySelectorAll('.message.user').length === 2")
        assert page.run("document.querySelector('#composer-text').value") == "a draft"
        assert page.faults() == []
