"""Tests of the page when it begins, finds, browses and reports conversations: in a real headless
Chromium over real servers. Tests that need a Chromium are skipped without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from holdfast import Agent, ScriptedLLM
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.server.openai import publish
from holdfast.server.runtimes import WorkspaceRuntimes
from tests import forks
from tests.agent_servers import Serving
from tests.browser import Browser, Page
from tests.model_server import ModelServer, text
from tests.serve_process import KEY, ServeProcess
from tests.server.test_page import chromium, journal, needs_chromium, open_page, talk
from tests.waiting import until

__all__ = ["chromium"]

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    yield chromium
    chromium.close_tabs()


@pytest.fixture
def server(tmp_path: Path, browser: Browser) -> Iterator[Serving]:
    """Run a server, and close the browser's tabs before it ends."""
    (tmp_path / "server").mkdir()
    agent = Agent(ScriptedLLM(["At your service."] * 3, stream=True))
    with Serving(tmp_path / "server", agents={"helper": publish("helper", agent)}) as serving:
        yield serving
        browser.close_tabs()


@contextmanager
def newcomers_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run `holdfast serve` as at its first start. Yields the link that it prints, and its log."""
    log = folder / "serve.log"
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
    }
    with log.open("wb") as out:
        process = forks.Popen(
            [sys.executable, "-m", "holdfast.cli", "serve", "--listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=inherited,
            cwd=folder,
        )
    try:
        link = re.compile(r"To sign in, open (\S+)\nServing")
        until(lambda: link.search(log.read_text()) is not None)
        yield link.findall(log.read_text())[0], log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def begin(page: Page, text: str) -> None:
    page.wait("#begin-text")  # a field that is not visible yet takes no text
    page.fill("#begin-text", text)
    page.click("#begin button", "Begin")


def choose(page: Page, selector: str, value: str) -> None:
    page.until(f"!!document.querySelector({json.dumps(selector)})")
    page.run(
        f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value ="
        f" {json.dumps(value)}; one.dispatchEvent(new Event('change')); one.dispatchEvent(new"
        " Event('input')); })()"
    )


def ready(page: Page) -> None:
    """Wait until the start page shows the options of the server."""
    page.until("document.querySelectorAll('#begin .choices input').length > 3")


# --- from the start of a server to a running conversation ---


def test_a_newcomer_begins_with_two_fields_and_one_click(browser: Browser, tmp_path: Path) -> None:
    with newcomers_server(tmp_path) as (link, log):
        key = unquote(link.partition("#key=")[2])
        page = browser.open(link)
        page.until("location.hash !== '' && !location.href.includes('key')")
        ready(page)
        assert not page.run("document.querySelector('#dialog').open")
        assert page.run("history.length") <= 2
        # The two fields, and the click.
        page.fill("#begin-key", "sk-0123456789-of-a-newcomer")
        begin(page, "Say hello")
        page.wait(".message.user", "Say hello")
        page.until("/^#.c./.test(location.hash)")
        storage = page.run("JSON.stringify([localStorage, document.cookie, location.href])")
        assert key not in storage
        assert "sk-0123456789" not in storage
        url = link.partition("/#")[0]
        options = page.run(
            f"fetch('{url}/api/models', {{headers: {{Authorization: 'Bearer {key}'}}}})"
            ".then(one => one.text())"
        )
        assert json.loads(options)["models"][0]["key"] is True
        assert "sk-0123456789" not in options
        assert page.faults() == []
        browser.close_tabs()
    assert log.read_text().count(key) == 2  # the notice and the link, at the first start
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != log:
            assert key.encode() not in file.read_bytes(), file
            assert b"sk-0123456789" not in file.read_bytes(), file


def test_a_local_model_answers_and_is_remembered_with_its_key(
    browser: Browser, tmp_path: Path
) -> None:
    answers = [text("Good day."), text("Again."), text("Once more.")]
    with ModelServer(answers) as model, ServeProcess(tmp_path) as server:
        page = browser.open(f"{server.url}/#key={KEY}")
        ready(page)
        page.fill("#begin-model", "my/model")
        page.wait("#begin-advice", "the address is needed")  # its maker is not known
        page.fill("#begin-address", model.url)
        page.until("!document.querySelector('#begin-advice .bad')")
        page.fill("#begin-key", "key-of-the-model")
        begin(page, "Hello?")
        page.wait(".answer", "Good day.")
        assert model.requests[0].headers["authorization"] == "Bearer key-of-the-model"
        assert model.requests[0].json["model"] == "my/model"
        page.press("Escape")
        page.press("n")
        page.wait("#begin-advice", "its key is on the server")
        assert page.run("document.querySelector('#begin-model').value") == "my-model"
        begin(page, "And now?")  # one field is enough
        page.wait(".answer", "Again.")
        assert model.requests[1].headers["authorization"] == "Bearer key-of-the-model"
        page.press("Escape")
        page.press("n")
        page.wait("#begin-advice", "its key is on the server")
        page.fill("#begin-key", "another-key")  # goes to the address that is stored
        begin(page, "With another key?")
        page.wait(".answer", "Once more.")
        assert model.requests[2].headers["authorization"] == "Bearer another-key"
        page.press("Escape")
        page.press("n")
        page.wait("#begin-advice", "its key is on the server")
        page.fill("#begin-model", "gpt-5-mini")  # its key is never sent to another model's address
        page.wait("#begin-advice", "from openai")
        assert page.run("document.querySelector('#begin-address').value") == ""
        assert page.faults() == []
        browser.close_tabs()


def test_agents_of_the_operator_come_first_and_a_draft_stays(
    browser: Browser, server: Serving
) -> None:
    page = open_page(browser, server)
    page.wait("#begin-agent", "helper")
    assert page.run("document.querySelector('#begin-agent').value") == "helper"
    assert page.run("document.querySelector('#begin-own').hidden")
    page.fill("#begin-text", "Half a thought")
    page.run("window.before = true; location.reload()")
    page.until("!window.before")
    page.until("document.querySelector('#begin-text')?.value === 'Half a thought'")
    page.wait("#begin-agent", "helper")
    page.press("Enter")
    page.click("#begin button", "Begin")
    page.wait(".answer", "At your service.")
    page.press("Escape")
    page.press("n")
    page.until("document.querySelector('#begin-text').value === ''")
    assert page.faults() == []


def test_what_is_wrong_is_said_where_it_is(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    ready(page)
    choose(page, "#begin-agent", "")
    page.click("#begin button", "Begin")
    page.wait("#begin-wrong", "Write what shall be done.")
    begin(page, "Go")
    page.wait("#begin-wrong", "This model needs a key.")
    page.fill("#begin-model", "nonesuch")
    page.wait("#begin-advice .bad", "the address is needed")
    page.click("#begin button", "Begin")
    page.wait("#begin-wrong", "the address is needed")
    page.fill("#begin-model", "ollama/qwen3")
    page.until("document.querySelector('#begin-key-part').hidden")
    page.click("#begin summary")
    page.fill("#begin-folder", "no such folder")
    page.click("#begin button", "Begin")
    page.wait("#begin-wrong", "There is no folder no such folder.")
    page.click("#begin-wrong button", "Create it")
    page.wait("#begin-wrong", "workspace takes an id")
    page.fill("#begin-folder", "notes")
    page.click("#begin button", "Begin")
    page.click("#begin-wrong button", "Create it")
    page.wait(".message.user", "Go")
    (item,) = server.ask("GET", "/api/conversations").json["items"]
    assert item["workspace"] == "notes"
    # The folder of last time does not exist any more.
    server.ask("DELETE", f"/api/conversations/{item['id']}")
    assert server.ask("DELETE", "/api/workspaces/notes").status == 204
    page.go(server.server.url)
    page.run("window.before = true; location.reload()")
    page.until("!window.before")
    page.wait("#begin-wrong", "notes of last time does not exist any more")
    assert page.faults() == []


BOXED = "document.querySelector('#begin-boxed')"


@pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)
def test_a_sandbox_is_chosen_remembered_and_seen(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    ready(page)
    page.click("#begin summary")
    page.wait("#begin-sandbox", "without a sandbox")
    page.click("#begin-boxed")
    page.wait("#begin-sandbox", "in a sandbox (")
    choose(page, "#begin-agent", "")
    page.fill("#begin-model", "ollama/qwen3")
    page.until("document.querySelector('#begin-key-part').hidden")
    begin(page, "Go")
    page.wait(".message.user", "Go")
    page.click("[role=tab]", "About")
    page.wait("#panel dd", "commands run in one")
    # The next one begins with the same choice, also one with an agent of the operator.
    page.go(f"{server.server.url}/#/new")
    page.run("window.before = true; location.reload()")
    page.until("!window.before")
    ready(page)
    page.until(f"{BOXED}.checked && !{BOXED}.disabled")
    choose(page, "#begin-agent", "helper")
    begin(page, "Hello")
    page.wait(".message.user", "Hello")
    ids = [one["id"] for one in server.ask("GET", "/api/conversations").json["items"]]
    infos = [server.ask("GET", f"/api/conversations/{id}").json for id in ids]
    assert [one["sandboxed"] for one in infos] == [True, True]
    assert page.faults() == []


@pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)
@pytest.mark.parametrize("required", [True, False])
def test_a_sandbox_that_is_required_or_cannot_be_made_is_no_choice(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    if not required:
        monkeypatch.setattr("holdfast.runtime.sandbox.mechanisms.MECHANISMS", ())
    with Serving(tmp_path, runtimes=WorkspaceRuntimes(sandboxed=required)) as server:
        page = open_page(chromium, server)
        ready(page)
        page.click("#begin summary")
        notice = "The operator requires it." if required else "No sandbox can be made there."
        page.wait("#begin-sandbox", notice)
        assert page.run(f"[{BOXED}.checked, {BOXED}.disabled]") == [required, True]
        assert page.faults() == []
        chromium.close_tabs()


def test_the_choices_reach_the_agent(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server)
    ready(page)
    choose(page, "#begin-agent", "")
    page.fill("#begin-model", "ollama/qwen3")
    page.until("document.querySelector('#begin-key-part').hidden")
    page.click("#begin summary")
    page.wait("#begin-sandbox", "without a sandbox")
    assert not page.run("document.querySelector('#begin-boxed').checked")
    for tool in ("terminal", "plan"):
        page.click(f"#begin-tool-{tool}")
    choose(page, "#begin-confirm", "always")
    page.click("#begin-undo")
    begin(page, "Go")
    page.wait(".message.user", "Go")
    (item,) = server.ask("GET", "/api/conversations").json["items"]
    info = server.ask("GET", f"/api/conversations/{item['id']}").json
    names = [tool["name"] for tool in info["tools"]]
    assert names == ["read_file", "write_file", "edit_file", "glob", "grep", "ask_user"]
    page.go(f"{server.server.url}/#/new")
    page.run("window.before = true; location.reload()")
    page.until("!window.before")
    ready(page)
    assert page.run(
        "['terminal', 'plan', 'files'].map(one => document.querySelector('#begin-tool-' +"
        " one).checked)"
    ) == [False, False, True]
    assert page.run("document.querySelector('#begin-confirm').value") == "always"
    assert page.run("document.querySelector('#begin-model').value") == "ollama/qwen3"


def test_a_server_that_is_killed_makes_one_conversation(browser: Browser, tmp_path: Path) -> None:
    with ModelServer([text("Good day.")]) as model, ServeProcess(tmp_path) as server:
        form = {"model": {"name": "m", "base_url": model.url, "api_key": "k"}}
        assert server.ask("PUT", "/api/models/mine", form).status == 204
        page = browser.open(f"{server.url}/#key={KEY}")
        ready(page)
        page.wait("#begin-advice", "its key is on the server")
        # The server makes the conversation and dies before the page hears of it.
        page.run(
            "(() => { const real = fetch; window.fetch = async (path, given) => { const found ="
            " await real(path, given); if (given?.method === 'POST' && path ==="
            " '/api/conversations') { window.fetch = real; throw new TypeError(); } return found;"
            " }; })()"
        )
        begin(page, "Once")
        page.wait("#begin-wrong", "The server does not answer.")
        server.kill()
        page.click("#begin button", "Begin")
        page.until("document.querySelector('#begin-wrong').innerText.includes('not answer')")
        assert page.run("document.querySelector('#begin-text').value") == "Once"
        server.start()
        page.click("#begin button", "Begin")
        page.wait(".answer", "Good day.")
        assert len(server.ask("GET", "/api/conversations").json["items"]) == 1
        browser.close_tabs()


# --- the key ---


def test_a_link_with_a_wrong_key_asks_for_another(browser: Browser, server: Serving) -> None:
    page = browser.open(f"{server.server.url}/#key=hf_wrong-key-of-another-server")
    page.wait("#dialog .bad", "no longer accepts this key")
    assert "hf_wrong" not in page.run("location.href + JSON.stringify(sessionStorage)")
    page.log_in(server.key)
    page.wait("#begin-agent", "helper")
    page.run(f"location.hash = '#key={server.other}'")  # a link in an open tab
    page.until("!location.href.includes('key')")
    assert page.run("sessionStorage.getItem('holdfast.key')") == server.other


def test_a_sign_in_link_closes_the_dialog_that_asks_for_a_key(
    browser: Browser, server: Serving
) -> None:
    page = browser.open(server.server.url)
    page.wait("#key")
    page.run(f"location.hash = '#key={server.key}'")
    page.wait("#begin-agent", "helper")
    assert not page.run("document.querySelector('#dialog').open")


HOLD_ANSWERS = """
window.released = new Promise((done) => (window.release = done));
const real = window.fetch;
window.held = 0;
window.fetch = async (path, given) => {
    const answer = await real(path, given);
    if (!given.headers.Authorization.endsWith(OLD_KEY) || answer.status !== STATUS) return answer;
    const body = await answer.text();
    window.held++;
    await window.released;
    return new Response(body, { status: answer.status });
};
"""

ASK_EVERY_SECOND = """
if (Date.now() - (window.asked ?? 0) > 1000) {
    window.asked = Date.now();
    document.querySelector("#status").onchange();
}
window.held > 0;
"""


@pytest.mark.parametrize("status", [200, 401])
def test_an_answer_to_an_earlier_key_neither_signs_out_nor_is_shown(
    browser: Browser, server: Serving, status: int
) -> None:
    talk(server, "secret-of-the-first", ["one"])
    page = browser.open(f"{server.server.url}/#key={server.key}")
    page.wait("#list", "secret-of-the-first")
    page.run(HOLD_ANSWERS.replace("OLD_KEY", json.dumps(server.key)).replace("STATUS", str(status)))
    if status == 401:
        server.keys.revoke(next(key.id for key in server.keys.list() if key.tenant == "default"))
    page.until(ASK_EVERY_SECOND)
    page.run(f"location.hash = '#key={server.other}'")
    page.until("!document.querySelector('#list').innerText.includes('secret')")
    page.run("new Promise((done) => { release(); setTimeout(done, 300); })")
    assert page.run("sessionStorage.getItem('holdfast.key')") == server.other
    assert not page.run("document.querySelector('#dialog').open")
    assert "secret" not in page.text("#list")


def test_a_key_is_remembered_only_if_the_user_says_so(browser: Browser, server: Serving) -> None:
    page = browser.open(server.server.url)
    page.fill("#key", server.key)
    page.click("#key-stay")
    page.click("#dialog button", "Enter")
    page.wait("#begin")
    other = browser.open(server.server.url, shared=page.context)
    other.wait("#begin")
    other.click("#remember")
    assert server.key not in other.run("JSON.stringify(localStorage)")
    third = browser.open(server.server.url, shared=page.context)
    third.wait("#key")
    third.log_in(server.key)
    third.click("#remember")
    third.until(f"localStorage.getItem('holdfast.key') === {json.dumps(server.key)}")
    third.click("#leave")
    third.wait("#key")
    assert third.run("localStorage.getItem('holdfast.key')") is None


# --- forks ---


def test_a_fork_continues_with_a_message_in_place_of_another(
    browser: Browser, server: Serving
) -> None:
    talk(server, "c", ["one", "two", "three"], message="first")
    page = open_page(browser, server, "c")
    page.wait(".answer", "one")
    page.run("document.querySelector('.message .fork').click()")
    page.click("#fork-instead")
    assert page.run("document.querySelector('#fork-text').value") == "first"
    page.fill("#fork-text", "first, but better")
    page.click("#dialog button", "Fork")
    page.until("location.hash.startsWith('#/c/') && location.hash !== '#/c/c'")
    page.wait(".answer", "one")
    fork = page.run("decodeURIComponent(location.hash.slice(4))")
    messages = [event for event in journal(server, fork) if event["type"] == "message"]
    assert [event["content"][0]["text"] for event in messages] == ["first, but better"]
    page.wait(".item.fork-1")
    rows = page.run("[...document.querySelectorAll('.item')].map(one => one.dataset.id)")
    assert rows == ["c", fork]  # below its origin, although it is newer
    page.run("location.hash = '#/c/c'")
    page.wait("#facts", "finished")
    page.run(
        "document.querySelector('#panel').hidden && document.querySelector('#panel-open').click()"
    )
    page.click("[role=tab]", "Tree")
    page.wait(".tree li", "forked at event")
    page.wait(".tree li", "1 step ·")
    page.run("document.querySelector('.answer .fork').click()")
    page.click("#dialog button", "Fork")  # is at rest
    page.until("location.hash !== '#/c/c'")
    page.wait(".answer", "one")
    assert page.faults() == []


# --- files ---


def test_files_are_browsed_shown_and_downloaded(
    browser: Browser, server: Serving, tmp_path: Path
) -> None:
    talk(server, "c", ["one"], runtime=True)
    workspace = server.ask("GET", "/api/conversations/c").json["workspace"]
    evil = "<img src=x onerror=window.pwned=1>.txt"
    folder = server.host.workspaces.check("default", workspace)
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("print('hello')\n")
    (folder / evil).write_text("evil")
    (folder / "big.bin").write_bytes(b"\0" * 2_000_000)
    page = open_page(browser, server, "c")
    page.click("[role=tab]", "About")
    page.click("#panel button", "Files")
    page.wait("#dialog", evil)
    page.wait("#dialog", "big.bin")
    page.click("#dialog .found button", "src/")
    page.click("#dialog .found button", "a.py")
    page.wait("#dialog pre", "print('hello')")
    downloads = tmp_path / "downloads"
    browser.ask(
        "Browser.setDownloadBehavior",
        behavior="allow",
        downloadPath=str(downloads),
        browserContextId=page.context,
    )
    page.click("#dialog button", "Download")
    saved = downloads / "a.py"
    until(lambda: saved.exists() and saved.read_text() == "print('hello')\n")
    page.click("#dialog .crumbs button", workspace)
    page.click("#dialog .found button", "big.bin")
    page.wait("#dialog", "too large to be shown")
    page.press("Escape")
    server.ask("POST", "/api/conversations/c/messages", {"text": "Hi"})
    page.wait(".answer", "one")
    page.click("#panel button", "Export")
    until(lambda: (downloads / "c.jsonl").exists())
    head = until(lambda: (downloads / "c.jsonl").read_text().partition("\n")[0])
    assert json.loads(head)["id"] == "c"
    assert page.run("window.pwned") is None
    assert page.faults() == []


# --- finding ---


def test_contents_of_all_conversations_are_searched(browser: Browser, server: Serving) -> None:
    talk(server, "c", ["The giraffe is in the zoo."], message="Where?")
    talk(server, "d", ["No animal here."], message="What?")
    page = open_page(browser, server)
    page.wait(".item", "Where?")
    page.fill("#search", "GIRAFFE")
    page.press("Enter")
    page.wait("#dialog .hit", "The giraffe is in the zoo.")
    page.wait("#dialog", "2 conversations")
    page.click("#dialog .hit")
    page.wait(".answer", "giraffe")
    page.until("document.activeElement?.dataset.seq > 0")
    assert page.faults() == []


# --- reports ---


def test_waiting_conversations_are_counted_in_the_title_and_told(
    browser: Browser, server: Serving
) -> None:
    page = browser.open(server.server.url)
    origin = server.server.url
    browser.ask(
        "Browser.grantPermissions",
        origin=origin,
        permissions=["notifications"],
        browserContextId=page.context,
    )
    page.log_in(server.key)
    page.wait("#begin")
    page.run(
        "(() => { window.told = []; window.Notification = class { static permission = 'granted';"
        " constructor(title, given) { told.push(`${title}: ${given.body}`); } };"
        " document.hasFocus = () => false; })()"
    )
    page.click("#notify")
    page.until("document.querySelector('#notify').checked")
    before = page.run("document.querySelector('link[rel=icon]').href")
    talk(
        server,
        "c",
        [("terminal", {"command": "true"}), "Done."],
        runtime=True,
        message="Go.",
        confirm="always",
    )
    page.until("document.title === '(1) Holdfast'")
    page.until("told.join() === 'A conversation waits for you: Go.'")
    assert page.run("document.querySelector('link[rel=icon]').href") != before
    page.run("location.hash = '#/c/c'")
    page.click("#decide button", "Approve")
    page.wait(".answer", "Done.")
    page.until("!document.title.startsWith('(')")
    assert page.run("document.querySelector('link[rel=icon]').href") == before
    assert page.faults() == []


def test_a_toast_is_dismissed_and_covers_no_decision(browser: Browser, server: Serving) -> None:
    talk(
        server,
        "c",
        [("terminal", {"command": f"echo {'long ' * 80}"}), "Done."],
        runtime=True,
        message="Go.",
        confirm="always",
    )
    for width, height in ((1280, 800), (390, 700)):
        page = open_page(browser, server, "c", width=width, height=height)
        page.wait("#decide .card")
        page.run(
            "import('/page/dom.js').then(({toast}) => { for (let n = 0; n < 4; n++) toast('A long"
            " message. '.repeat(30), true); })"
        )
        page.wait(".toast")
        assert page.run(
            "(() => { const a = document.querySelector('#toasts').getBoundingClientRect(), b ="
            " document.querySelector('#decide').getBoundingClientRect(); return a.bottom <= b.top;"
            " })()"
        )
        page.click(".toast button")
        page.until("document.querySelectorAll('.toast').length === 3")


def test_two_browsers_begin_at_once(browser: Browser, server: Serving) -> None:
    pages = [open_page(browser, server) for _ in range(2)]
    for page in pages:
        page.wait("#begin-agent", "helper")
        page.fill("#begin-text", "Both")
    for page in pages:
        page.click("#begin button", "Begin")
    for page in pages:
        page.wait(".answer", "At your service.")
    assert len(server.ask("GET", "/api/conversations").json["items"]) == 2
    assert pages[0].run("location.hash") != pages[1].run("location.hash")


def test_it_begins_on_a_phone(browser: Browser, server: Serving) -> None:
    page = open_page(browser, server, width=360, height=640, touch=True)
    page.click("#new-open")
    page.wait("#begin-agent", "helper")
    assert page.run("document.documentElement.scrollWidth") <= 360
    page.click("#begin .back")
    page.wait("#list")
    page.click("#new-open")
    begin(page, "Hello")
    page.wait(".answer", "At your service.")
    assert page.faults() == []
