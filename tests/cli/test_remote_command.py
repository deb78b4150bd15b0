"""`--server`: run, chat, show, list and tell use an agent server in a separate process, which some
tests kill."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import RemoteConversation, RemoteWorkspace
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from tests import forks
from tests.cli.test_commands import HOLDFAST, command, environment, holdfast, terminal
from tests.cli.test_live_chat import Screen
from tests.cli.test_serve import _certificate
from tests.cli.test_tell_command import run_in_process
from tests.model_server import ModelServer, Request, calls, sse, text
from tests.waiting import until

KEY = "hf_test_5d1c0a77e2b94f6c8a3d"
MODEL_KEY = "sk-planted-90c4"
SANDBOXED = {"plain": False, "boxed": True}


class AgentServer:
    """A `holdfast serve` process. After `kill`, `start` uses the same port again."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.url = ""
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> AgentServer:
        listen = self.url.partition("://")[2] or "127.0.0.1:0"
        words = [
            "serve",
            "--listen",
            listen,
            "--store",
            str(self.folder / "agents.db"),
            *self._arguments,
        ]
        env = environment(HOLDFAST_SERVER_KEY=KEY, SERVERS_OWN=MODEL_KEY)
        self._process = forks.Popen(
            [*HOLDFAST, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"Serving agents at (\S+)\. ", line):
                self.url = match[1]
                return self
        raise AssertionError("the server ended")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __enter__(self) -> AgentServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    """Run an agent server that all tests of this module share."""
    with AgentServer(tmp_path_factory.mktemp("server"), "--variable", "SERVERS_OWN") as running:
        yield running


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the keys of the server and of the model for the command."""
    monkeypatch.setenv("HOLDFAST_SERVER_KEY", KEY)
    monkeypatch.delenv("HOLDFAST_MODEL", raising=False)
    monkeypatch.delenv("HOLDFAST_BASE_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_API_KEY", MODEL_KEY)


def options(server: AgentServer, model: ModelServer, id: str) -> list[str]:
    """Return the options for a new conversation on the server."""
    return ["--server", server.url, "--model", "m", "--base-url", model.url, "--new", "--id", id]


def env(**more: str) -> dict[str, str]:
    """Return the variables of the command, with the keys."""
    return {"HOLDFAST_SERVER_KEY": KEY, "HOLDFAST_API_KEY": MODEL_KEY, **more}


@contextmanager
def background_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command in the background, and kill it at the end if it still runs."""
    process = forks.Popen(
        [*HOLDFAST, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env()),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def show(server: AgentServer, id: str) -> list[dict[str, Any]]:
    """Return the events of a conversation on the server."""
    return [
        json.loads(line)
        for line in run_in_process("show", "--server", server.url, id, "--json").stdout.splitlines()
    ]


def call_started(server: AgentServer, id: str) -> Callable[[], bool]:
    """Return a function that reports whether a call has started on the server."""

    def has_started() -> bool:
        return any(event["type"] == "toolCallStarted" for event in show(server, id))

    return has_started


# --- run ---


@pytest.mark.slow
def test_a_run_on_a_server_shows_what_a_local_one_does(server: AgentServer, tmp_path: Path) -> None:
    answers = [command("echo hi > made; cat made"), text("It says hi."), text("Again.")]
    with ModelServer(answers) as here:
        local = run_in_process(
            "run", "say hi", "--model", "m", "--base-url", here.url, "--workdir", str(tmp_path)
        )
    with ModelServer(answers) as model:
        remote = run_in_process(
            "run", "say hi", *options(server, model, "same"), "--workspace", "shared"
        )
        assert model.requests[0].headers["authorization"] == f"Bearer {MODEL_KEY}"
        # The conversation has a model and a key.
        again = run_in_process("run", "once more", "--server", server.url, "--id", "same")
    assert (local.returncode, remote.returncode, again.returncode) == (0, 0, 0)
    times = re.compile(r"\d+(\.\d+)? m?s")
    assert times.sub("T", remote.stdout.lstrip("\n")) == times.sub("T", local.stdout)
    assert remote.stderr.splitlines()[:2] == [
        "New conversation 'same'.",
        f"on {server.url}, in the workspace shared",
    ]
    assert (
        remote.stderr.splitlines()[-1]
        == f"continue with: holdfast chat --server {server.url} --id same"
    )
    assert again.stdout == "\n> once more\n\nAgain.\n"
    assert [path.read_text() for path in server.folder.glob("agents.db.workspaces/**/made")] == [
        "hi\n"
    ]


@pytest.mark.slow
def test_a_fork_that_nobody_drives_is_not_listed_as_running(server: AgentServer) -> None:
    with (
        ModelServer([command("sleep 600")]) as model,
        background_command("run", "wait", *options(server, model, "driven")),
    ):
        until(call_started(server, "driven"))
        with (
            RemoteWorkspace(server.url, KEY) as workspace,
            RemoteConversation(None, workspace, "driven") as conversation,
        ):
            conversation.fork(id="forked").detach()
        listed = run_in_process("list", "--server", server.url).stdout.splitlines()
        assert [line for line in listed if line.startswith("driven ") and " running  " in line]
        assert [
            line
            for line in listed
            if line.startswith("forked ") and " running (not driven) " in line
        ]
        assert run_in_process("show", "--server", server.url, "forked").stdout.startswith(
            "forked, running (not driven): wait"
        )
        assert run_in_process("show", "--server", server.url, "driven").stdout.startswith(
            "driven, running: wait"
        )


@pytest.mark.slow
def test_the_models_key_is_nowhere_in_clear_and_may_be_the_servers_own(server: AgentServer) -> None:
    with ModelServer([text("One."), text("Two.")]) as model:
        assert run_in_process("run", "x", *options(server, model, "sealed")).returncode == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("HOLDFAST_API_KEY")
            with_key_name = run_in_process(
                "run", "x", *options(server, model, "named"), "--model-key-name", "SERVERS_OWN"
            )
            unknown = run_in_process(
                "run", "x", *options(server, model, "unknown"), "--model-key-name", "OTHER"
            )
        assert [request.headers["authorization"] for request in model.requests] == [
            f"Bearer {MODEL_KEY}"
        ] * 2
    assert with_key_name.returncode == 0
    assert (unknown.returncode, unknown.stderr) == (
        2,
        (
            "holdfast: --model-key-name: the server has no such variable; `holdfast serve"
            " --variable NAME` gives it one\n"
        ),
    )
    files = [path for path in server.folder.rglob("*") if path.is_file()]
    assert files
    assert [path.name for path in files if MODEL_KEY.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_a_call_that_waits_is_listed_and_decided_from_another_shell(server: AgentServer) -> None:
    with ModelServer(
        [
            calls(("terminal", {"command": "echo 1"}), ("terminal", {"command": "echo 2"})),
            text("Done."),
        ]
    ) as model:
        ended = run_in_process(
            "run", "x", *options(server, model, "waits"), "--confirm", "terminal"
        )
        assert ended.returncode == 3
        tell = ["tell", "--server", server.url, "waits"]
        assert (
            f"approve with: holdfast tell --server {server.url} waits approve CALL\n"
            in ended.stderr
        )
        listed = run_in_process("list", "--server", server.url, "--status", "waiting")
        assert [line.split()[:2] for line in listed.stdout.splitlines()] == [
            ["ID", "STATUS"],
            ["waits", "waiting_for_confirmation"],
        ]
        several = run_in_process(*tell, "approve")
        assert (several.returncode, "several calls wait" in several.stderr) == (2, True)
        call = re.findall(r"(\d+\.\d)  \$ echo", ended.stderr)
        first = run_in_process(*tell, "approve", call[0], "--wait", "20")
        assert (
            first.returncode,
            first.stdout.splitlines()[0][:11],
            "done: event" in first.stdout,
        ) == (0, "posted: app", True)
        second = run_in_process(*tell, "reject", call[1], "not", "that")
        assert (second.returncode, "The server continues the conversation." in second.stderr) == (
            0,
            True,
        )
        rest = run_in_process("show", server.url, "waits", "--until-rest")
        assert (
            rest.returncode,
            "rejected: $ echo 2, by user: not that" in rest.stdout,
            "Done." in rest.stdout,
        ) == (0, True, True)
        none = run_in_process(*tell, "approve")
        assert (none.returncode, none.stderr) == (
            2,
            "holdfast: no call of 'waits' waits for a decision: the conversation is finished\n",
        )


@pytest.mark.slow
def test_somebody_at_the_terminal_allows_all_calls_of_a_tool(server: AgentServer) -> None:
    answers = [command("echo one"), command("echo two"), text("Done.")]
    with ModelServer(answers) as model:
        with terminal(
            "run",
            "x",
            "--no-stream",
            *options(server, model, "allowed"),
            "--confirm",
            "terminal",
            **env(),
        ) as typist:
            typist.sees(r"\[y,n,e,a,q\] ")
            typist.types("a\r")
            assert typist.leaves() == 0
        assert typist.output.count("[y,n,e,a,q] ") == 1
    decided = [
        event
        for event in show(server, "allowed")
        if event["type"] == "decision" and event["decision"] == "approve"
    ]
    assert [event.get("reason", "") for event in decided] == [
        "",
        "the user allowed all calls of terminal",
    ]


@pytest.mark.slow
def test_ctrl_c_pauses_there_and_a_message_steers(server: AgentServer) -> None:
    def answer(request: Request) -> object:
        messages = [message["content"] for message in request.messages if message["role"] == "user"]
        return sse(command("sleep 600") if messages == ["x"] else text("Heard: stop that."))

    with (
        ModelServer(answer) as model,
        terminal("run", "x", *options(server, model, "pauses"), **env()) as typist,
    ):
        typist.sees("sleep 600")
        until(call_started(server, "pauses"))
        typist.types("\x03")
        typist.sees("message to steer")
        assert (
            run_in_process("list", "--server", server.url, "--status", "paused").stdout.count(
                "pauses"
            )
            == 1
        )
        typist.types("stop that\r")
        assert typist.leaves() == 0
    assert typist.output.count("Heard: stop that.") == 1


@pytest.mark.slow
def test_a_chat_streams_and_takes_a_line_while_it_works(
    server: AgentServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    def answer(request: Request) -> object:
        last = request.messages[-1]["content"]
        return sse(
            command(f"until [ -e {go} ]; do sleep 0.02; done")
            if last == "first"
            else text(f"Heard {last}.")
        )

    with (
        ModelServer(answer) as model,
        terminal("chat", *options(server, model, "talk"), **env()) as typist,
    ):
        typist.sees("> ")
        typist.types("first\r")
        until(call_started(server, "talk"))
        typist.types("second\r")
        until(lambda: any("second" in json.dumps(event) for event in show(server, "talk")))
        go.touch()
        typist.sees("Heard second.")
        typist.sees("> ")
        typist.types("/status\r")
        typist.sees("talk: finished, model m, ")
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_a_chat_goes_on_with_another_model_where_it_made_the_agent(server: AgentServer) -> None:
    with (
        ModelServer([text("One."), text("Two.")]) as model,
        terminal("chat", *options(server, model, "changed"), **env()) as typist,
    ):
        typist.sees("> ")
        typist.types("first\r")
        typist.sees("One.")
        typist.sees("> ")
        typist.types("/model openai/bigger\r")
        typist.sees("model openai/bigger")
        typist.sees("> ")
        typist.types("second\r")
        typist.sees("Two.")
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0
        assert [request.json["model"] for request in model.requests] == ["m", "openai/bigger"]
    with terminal("chat", "--server", server.url, "--id", "changed", **env()) as typist:
        typist.sees("> ")
        typist.types("/model m\r")
        typist.sees("did not make the conversation's agent, so its model stays.")
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_leaving_does_not_stop_what_ran_before(server: AgentServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with (
        ModelServer(until_there(go, "Done.")) as model,
        background_command("run", "x", *options(server, model, "joined")) as run,
    ):
        until(call_started(server, "joined"))
        with terminal("chat", "--server", server.url, "--id", "joined", **env()) as typist:
            typist.sees("leaving does not stop it")
            typist.sees("continuing joined")
            typist.process.terminate()
            assert typist.leaves() == 143
        go.touch()
        out, err = run.communicate(timeout=120)
    assert (run.returncode, out.splitlines()[-1]) == (0, "Done."), err


# --- a server that is killed ---

GONE = "waiting for the agent server, which cannot be reached now"


def until_there(path: Path, end: str) -> Callable[[Request], object]:
    """Return a model function: it calls a command that waits for a file, and then answers `end`."""
    waits = command(f"until [ -e {path} ]; do sleep 0.02; done")
    return lambda request: waits if request.messages[-1]["role"] == "user" else text(end)


def says(process: subprocess.Popen[str], words: str) -> None:
    """Wait until `words` appear on stderr of the process."""
    assert process.stderr is not None
    assert any(words in line for line in process.stderr), f"{words!r} was not said"


@pytest.mark.slow
def test_run_and_show_wait_for_a_server_that_is_killed_and_go_on(tmp_path: Path) -> None:
    with (
        AgentServer(tmp_path) as server,
        ModelServer(until_there(tmp_path / "go", "It went on.")) as model,
    ):
        with background_command("run", "x", *options(server, model, "lives")) as run:
            until(call_started(server, "lives"))
            with background_command(
                "show", "--server", server.url, "lives", "--until-rest"
            ) as watching:
                assert watching.stdout is not None
                assert any("> x" in line for line in watching.stdout)
                server.kill()
                says(run, GONE)
                says(watching, GONE)
                server.start()
                out, err = run.communicate(timeout=120)
                assert (run.returncode, out.splitlines()[-1]) == (0, "It went on."), err
                output, err = watching.communicate(timeout=120)
                assert (watching.returncode, output.count("It went on.")) == (0, 1), err
        events = show(server, "lives")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


@pytest.mark.slow
def test_ctrl_c_leaves_a_server_that_is_gone(tmp_path: Path) -> None:
    with (
        AgentServer(tmp_path) as server,
        ModelServer(until_there(tmp_path / "go", "At last.")) as model,
    ):
        with terminal("run", "x", *options(server, model, "left"), **env()) as typist:
            until(call_started(server, "left"))
            server.kill()
            typist.sees(GONE)
            typist.types("\x03")
            assert typist.leaves() == 130
        assert "The pause could not be sent" in typist.output
        assert f"continue with: holdfast chat --server {server.url} --id left" in typist.output
        server.start()  # ends the processes that the killed server left, and continues
        until(
            lambda: any(
                event["type"] == "assistant" and event.get("text") == "At last."
                for event in show(server, "left")
            )
        )


# --- list, and options that do not fit ---


@pytest.mark.slow
def test_list_shows_a_store_and_a_server_alike(server: AgentServer, tmp_path: Path) -> None:
    with ModelServer([text("Yes."), text("No.")] * 2) as model:
        for id in ("list-a", "list-b"):
            assert run_in_process("run", f"task {id}", *options(server, model, id)).returncode == 0
            store = [
                "--model",
                "m",
                "--base-url",
                model.url,
                "--workdir",
                str(tmp_path),
                "--store",
                str(tmp_path / "s.db"),
                "--new",
                "--id",
                id,
            ]
            assert run_in_process("run", f"task {id}", *store).returncode == 0
    for place in (["--server", server.url], [str(tmp_path / "s.db")]):
        one = run_in_process("list", *place, "--limit", "1")
        assert (one.returncode, [line.split()[0] for line in one.stdout.splitlines()]) == (
            0,
            ["ID", "list-b"],
        )
        assert re.search(
            r"list-b +finished +5 +\d{4}-\d\d-\d\d \d\d:\d\d +task list-b\n", one.stdout
        )
        assert "There are more" in one.stderr
        entries = [
            json.loads(line)
            for line in run_in_process(
                "list", *place, "--json", "--status", "fin"
            ).stdout.splitlines()
        ]
        assert [entry["id"] for entry in entries if entry["id"].startswith("list-")] == [
            "list-b",
            "list-a",
        ]
        assert {entry["status"] for entry in entries} == {"finished"}
        assert run_in_process("list", *place, "--status", "stuck").stdout == ""


@pytest.mark.slow
def test_a_chat_with_a_server_goes_on_with_another_conversation(
    server: AgentServer, tmp_path: Path
) -> None:
    pytest.importorskip("prompt_toolkit")
    call = calls(("terminal", {"command": "pwd > seen; cat seen"}))
    with ModelServer([text("Hello from one."), call, text("Seen."), text("Back in one.")]) as model:
        first = holdfast("run", "First", *options(server, model, "goes-one"), **env())
        assert first.returncode == 0, first.stderr
        words = [*options(server, model, "goes-two"), "--confirm", "always"]
        variables = env(HOLDFAST_PLAIN="", HOME=str(tmp_path / "home"), XDG_STATE_HOME="")
        with terminal("chat", *words, **variables) as typist:
            screen = Screen(typist)
            screen.shows(r"(?m)^>$")
            screen.types("Look\r")
            screen.shows(r"\[y")
            screen.types("a\r")
            screen.shows(r"Seen\.")
            screen.types("/resume goes-o\r")
            screen.shows(r"continuing goes-one")
            screen.shows(r"Hello from one\.")
            screen.types("Again\r")
            screen.shows(r"Back in one\.")
            screen.types("/resume\r")
            screen.shows(r"arrow keys")
            screen.types("\x1b")
            screen.shows(r"(?m)^>$")
            screen.types("/resume goes-x\r")
            screen.shows(r"there is no other conversation 'goes-x'")
            screen.types("\x04")
            assert typist.leaves() == 0
            assert "--id goes-one" in "\n".join(screen.lines)
    output = holdfast("show", "--server", server.url, "goes-one", **env()).stdout
    assert "Back in one." in output
    assert (
        "Back in one." not in holdfast("show", "--server", server.url, "goes-two", **env()).stdout
    )


@pytest.mark.slow
def test_a_chat_stays_when_its_server_goes_and_says_what_it_cannot_do(tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    (tmp_path / "server").mkdir()
    with (
        AgentServer(tmp_path / "server", "--variable", "SERVERS_OWN") as server,
        ModelServer([text("One."), text("Two.")]) as model,
    ):
        variables = env(HOLDFAST_PLAIN="", HOME=str(tmp_path / "home"), XDG_STATE_HOME="")
        with terminal("chat", *options(server, model, "c"), **variables) as typist:
            screen = Screen(typist)
            screen.shows(r"Ctrl-D leaves")
            screen.types("/approve\r")
            screen.shows(r"No call waits for you\.")
            screen.types("/continue\r")
            screen.shows(r"Nothing to continue: the agent is idle\.")
            screen.types("Hello\r")
            screen.shows(r"One\.(?![\s\S]*thinking)")  # the turn has ended
            server.kill()
            screen.types("/fork\r")
            screen.shows(r"may not know of this line: /fork")
            screen.types("Are you there?\r")
            screen.shows(r"may not know of this line: Are you|Not sent: the agent server")
            server.start()
            screen.shows(r"server is back")
            screen.types("Again\r")
            screen.shows(r"Two\.")
            screen.types("\x04")
            assert typist.leaves() == 0


@pytest.mark.slow
@pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)
def test_a_sandbox_on_the_server_is_asked_for(server: AgentServer, tmp_path: Path) -> None:
    store = server.folder / "agents.db"
    script = [calls(("terminal", {"command": f"ls {store}"})), text("Done.")] * 2
    with ModelServer(script) as model:
        boxed = [*options(server, model, "boxed"), "--sandbox", "require"]
        for words in (options(server, model, "plain"), boxed):
            ran = holdfast("run", "Look", *words, **env())
            assert ran.returncode == 0, ran.stderr
    outputs = {id: holdfast("show", "--server", server.url, id, **env()).stdout for id in SANDBOXED}
    assert {id: "No such file or directory" in text for id, text in outputs.items()} == SANDBOXED
    with ModelServer([text("no")]) as model:
        words = [*options(server, model, "plain"), "--sandbox", "require"]
        words.remove("--new")
        ran = holdfast("run", "Look", *words, **env())
    assert ran.returncode == 2, ran.stderr
    assert "'plain' exists, and its commands run without a sandbox" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["run", "x", "--server", "SERVER", "--workdir", "."],
            2,
            "--workdir cannot be combined with --server: it is a folder of this machine",
        ),
        (
            ["run", "x", "--server", "SERVER", "--store", "a.db"],
            2,
            "--store cannot be combined with --server: it is a file of this machine",
        ),
        (
            ["run", "x", "--server", "SERVER", "--env", "HOME"],
            2,
            "--env cannot be combined with --server: it passes on a variable of this machine",
        ),
        (
            ["run", "x", "--server", "SERVER", "--sandbox", "off"],
            2,
            "--sandbox cannot be combined with --server: the server decides, unless it is require",
        ),
        (
            ["run", "x", "--workspace", "w"],
            2,
            "--workspace is for an agent server; name the server with --server URL",
        ),
        (["run", "x", "--server", "localhost:1"], 2, "Did you mean http://localhost:1?"),
        (["run", "x", "--server", "SERVER", "--id", "a b"], 2, "--id takes up to 128 letters"),
        (["run", "x", "--server", "SERVER"], 2, "no model was given"),
        (
            [
                "run",
                "x",
                "--server",
                "SERVER",
                "--model",
                "m",
                "--base-url",
                "http://x",
                "--confirm",
                "shell",
            ],
            2,
            "The tools are: terminal",
        ),
        (
            ["show", "--server", "SERVER", "nosuch"],
            2,
            "there is no conversation 'nosuch' on http://",
        ),
        (
            ["tell", "--server", "SERVER", "nosuch", "pause"],
            2,
            "there is no conversation 'nosuch' on http://",
        ),
        (["list", "--server", "SERVER/below"], 2, "/below is not an agent server's address"),
        (["list", "--server", "ftp://x"], 2, "--server takes an agent server's address such as"),
        (["list", "--server", "SERVER", "--status", "x"], 2, "--status takes one of idle, running"),
        (
            ["list", "--server", "SERVER", "--server-key-file", "/nope"],
            2,
            "--server-key-file '/nope' cannot be read: No such file",
        ),
        (["list", "/nope.db"], 2, "the store '/nope.db' does not exist"),
        (["list", "--store", "/nope.db"], 2, "the store '/nope.db' does not exist"),
        (["show", "x", "--store=/nope.db"], 2, "the store '/nope.db' does not exist"),
        (["list", "--store"], 2, "argument --store: expected one argument"),
        (["list", "--store", "a.db", "--server", "SERVER"], 2, "--store and --server each name"),
        (
            ["list", "--server", "http://127.0.0.1:9"],
            1,
            "Connection refused. Is the server running? `holdfast serve` starts one.",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    server: AgentServer, arguments: list[str], code: int, words: str
) -> None:
    ended = run_in_process(*[word.replace("SERVER", server.url) for word in arguments])
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended.stderr
    assert words in ended.stderr
    assert ended.stderr.startswith("holdfast: ")


def test_a_missing_and_a_wrong_key_are_told_apart_and_a_file_has_one(
    server: AgentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_KEY", "wrong")
    wrong = run_in_process("list", "--server", server.url)
    assert (wrong.returncode, "does not know this key" in wrong.stderr) == (2, True)
    monkeypatch.delenv("HOLDFAST_SERVER_KEY")
    missing = run_in_process("chat", "--server", server.url)
    assert (
        missing.returncode,
        "no key for the agent server was found. Set HOLDFAST_SERVER_KEY" in missing.stderr,
    ) == (2, True)
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert (
        run_in_process(
            "list", "--server", server.url, "--server-key-file", str(tmp_path / "key")
        ).returncode
        == 0
    )


@pytest.mark.slow
def test_a_conversation_keeps_what_it_was_made_with(server: AgentServer) -> None:
    with ModelServer([text("One."), text("Two.")]) as model:
        assert run_in_process("run", "x", *options(server, model, "keeps")).returncode == 0
        for more, words in (
            (["--confirm", "always"], "--confirm is for a new conversation"),
            (["--model", "other"], "--model: 'keeps' has the model 'm'"),
            (["--workspace", "w"], "--workspace: 'keeps' works in 'w-"),
        ):
            refused = run_in_process("run", "y", "--server", server.url, "--id", "keeps", *more)
            assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
        arguments = [word for word in options(server, model, "keeps") if word != "--new"]
        same = run_in_process("run", "y", *arguments)
        assert (
            same.returncode,
            "keeps keeps its agent: --base-url has no effect." in same.stderr,
        ) == (0, True)


def test_a_workspace_of_a_run_that_was_refused_is_not_left_behind(server: AgentServer) -> None:
    def there() -> set[Path]:
        # The pattern excludes the tenant's own folder, which stays.
        return set(server.folder.glob("agents.db.workspaces/*/*"))

    before = there()
    with ModelServer([]) as model:
        assert (
            run_in_process(
                "run", "x", *options(server, model, "refused"), "--confirm", "shell"
            ).returncode
            == 2
        )
        assert (
            run_in_process(
                "run", "x", *options(server, model, "refused"), "--model-key-name", "OTHER"
            ).returncode
            == 2
        )
    assert there() == before


@pytest.mark.slow
def test_tls_is_trusted_or_its_failure_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = _certificate(tmp_path)
    with AgentServer(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        refused = run_in_process("list", "--server", server.url)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "SSL_CERT_FILE=FILE names the certificates to trust" in refused.stderr
        plain = run_in_process("list", "--server", server.url.replace("https", "http"))
        assert (plain.returncode, plain.stderr.count("\n")) == (1, 1), plain.stderr
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert run_in_process("list", "--server", server.url).returncode == 0


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Run a web server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (200, b"<html>Hello</html>", 1, "cannot be read by this Holdfast"),
        (200, b'{"conversations": []}', 1, "Is it an agent server of another version?"),
        (
            404,
            b"Not Found",
            2,
            "is not an agent server's address, or the server has another version",
        ),
        (500, b"Oops", 1, "answered 500: Oops"),
    ],
)
def test_what_is_no_agent_server_or_another_version_is_said_to_be(
    status: int, body: bytes, code: int, words: str
) -> None:
    with answering(status, body) as url:
        for arguments in (
            ["list", url],
            ["show", url, "x"],
            ["run", "x", "--server", url, "--model", "m"],
        ):
            ended = run_in_process(*arguments)
            assert (ended.returncode, ended.stderr.count("\n"), words in ended.stderr) == (
                code,
                1,
                True,
            ), ended.stderr


@pytest.mark.slow
def test_a_client_needs_nothing_of_the_server_extra(server: AgentServer) -> None:
    program = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'anyio'): sys.modules[name] = None\n"
        "from holdfast.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with ModelServer([text("Yes.")]) as model:
        words = ["run", "x", *options(server, model, "bare")]
        ended = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            env=environment(**env()),
            timeout=60,
        )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "Yes."), ended.stderr


@pytest.mark.slow
def test_a_key_is_no_argument() -> None:
    for name in ("run", "chat", "show", "list", "tell"):
        page = holdfast(name, "--help").stdout
        assert "--server URL" in page
        assert "HOLDFAST_SERVER_KEY" in page
        assert "--server-key " not in page
