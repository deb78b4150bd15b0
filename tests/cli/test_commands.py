"""The `holdfast` command as a separate process, with pipes, a real terminal and a model server on
loopback."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import SQLiteStore
from tests import forks
from tests.model_server import Drop, ModelServer, Request, Stall, Stream, calls, sse, text
from tests.waiting import until

HOLDFAST = [sys.executable, "-m", "holdfast.cli"]
KEY = "hf-planted-7a61"
ESCAPE = "\x1b"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without the variables that the command reads, plus `more`.
    The sandbox is off as in all tests (`tests/conftest.py`)."""
    excluded = ("OPENAI_API_KEY", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in excluded
        and (not name.startswith("HOLDFAST_") or name in ("HOLDFAST_SANDBOX", "HOLDFAST_PLAIN"))
    }
    return {**variables, "TERM": "xterm-256color", **more}


def holdfast(
    *arguments: str, stdin: str = "", cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and return the result."""
    return forks.run(
        [*HOLDFAST, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**env),
        timeout=120,
        check=False,
    )


class Typist:
    """A user at a terminal, who reads its output and types."""

    program: list[str] | None = None  # None means `HOLDFAST`

    def __init__(self, *arguments: str, **env: str) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = forks.Popen(
            [*(self.program or HOLDFAST), *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(**env),
            terminal=True,
        )
        os.close(slave)
        self.output = ""
        self._mark = 0

    def sees(self, pattern: str) -> str:
        """Wait until `pattern` appears after the last match, and return the output between them."""
        deadline = time.monotonic() + 60
        while not (match := re.compile(pattern).search(self.output, self._mark)):
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0 or not self._read(seconds_left):
                raise AssertionError(f"{pattern!r} did not appear in {self.output[self._mark :]!r}")
        before = self.output[self._mark : match.end()]
        self._mark = match.end()
        return before

    def types(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def leaves(self) -> int:
        """Read to the end of the output and return the exit code. Raises AssertionError if the
        command does not end."""
        deadline = time.monotonic() + 60
        while self._read(30):  # a chat that does not end may redraw its clock forever
            assert time.monotonic() < deadline, f"it stays: {self.output[-2000:]!r}"
        return self.process.wait(30)

    def _read(self, timeout: float) -> bool:
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: no process has the terminal open any more
            return False
        self.output += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal(*arguments: str, **env: str) -> Iterator[Typist]:
    """Run the command at a terminal, and kill it at the end if it still runs."""
    typist = Typist(*arguments, **env)
    try:
        yield typist
    finally:
        if typist.process.poll() is None:
            typist.process.kill()
            typist.process.wait()
        os.close(typist.master)


def options(server: ModelServer, folder: Path) -> list[str]:
    """Return the options for the model server and the working directory."""
    return ["--model", "m", "--base-url", server.url, "--workdir", str(folder)]


def conversation_options(store: Path, id: str) -> list[str]:
    """Return the options for the conversation `id`, and `--new` if the store does not exist."""
    return ["--store", str(store), *([] if store.exists() else ["--new"]), "--id", id]


def command(line: str) -> dict[str, Any]:
    """Return an answer that calls the terminal tool."""
    return calls(("terminal", {"command": line}))


# --- help, versions, wrong arguments ---


LOADING = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast.cli.arguments":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["--version"]
runpy.run_module("holdfast.cli", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_while_the_command_loads_prints_no_traceback() -> None:
    command = [sys.executable, "-c", LOADING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_without_arguments_it_teaches() -> None:
    alone, with_help = holdfast(), holdfast("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, with_help.stdout, "")
    for word in (
        "holdfast run",
        "HOLDFAST_MODEL",
        "OPENAI_API_KEY",
        "NO_COLOR",
        "exit codes",
        "demo",
    ):
        assert word in with_help.stdout
    assert max(len(line) for line in with_help.stdout.splitlines()) <= 80


def test_every_exit_code_is_in_the_help() -> None:
    from holdfast.cli.exit_codes import MEANINGS, Exit

    assert set(MEANINGS) == set(Exit)
    help = holdfast("--help").stdout
    for code in Exit:
        assert re.search(rf"^  {code.value} +\S", help, re.MULTILINE)


def test_it_tells_its_version() -> None:
    assert re.match(r"holdfast \d+\.\d+", holdfast("--version").stdout)


def test_the_help_loads_neither_the_model_nor_the_tools() -> None:
    program = (
        "import sys; from holdfast.cli import main; main(['--help']);print([m for m in ('msgspec',"
        " 'pydantic', 'http.client', 'sqlite3', 'logging', 'subprocess') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["run"], "task"),
        (["run", "x", "--max-steps", "0", "--model", "m"], "--max-steps"),
        (["run", "x", "--retries", "many", "--model", "m"], "--retries"),
        (["run", "x", "--modle", "m"], "unknown option --modle (did you mean --model?)"),
        (["serve", "--port", "8000"], "unknown option --port. See: holdfast serve"),
        (["run", "x"], "HOLDFAST_MODEL"),
        (["run", " ", "--model", "gpt-5-mini"], "the task is empty"),
        (["run", "-", "--model", "gpt-5-mini"], "standard input is empty"),
        (["run", "x", "--model", "gpt-5-mini"], "OPENAI_API_KEY"),
        (["run", "x", "--model", "qwen3"], "--base-url"),
        (["run", "x", "--model", "m", "--base-url", "nonsense"], "--base-url"),
        (
            ["run", "x", "--model", "m", "--base-url", "https://api.example.com/v1"],
            "no API key for api.example.com",
        ),
        (["run", "x", "--model", "gpt-5-mini", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (
            [
                "run",
                "x",
                "--model",
                "m",
                "--base-url",
                "http://localhost:9/v1",
                "--workdir",
                "/nowhere/at/all",
            ],
            "--workdir",
        ),
        (
            [
                "run",
                "x",
                "--model",
                "m",
                "--base-url",
                "http://localhost:9/v1",
                "--env",
                "NO_SUCH_NAME",
            ],
            "NO_SUCH_NAME",
        ),
        (
            ["run", "x", "--model", "m", "--base-url", "http://localhost:9/v1", "--id", "one"],
            "--store",
        ),
        (
            [
                "run",
                "x",
                "--model",
                "m",
                "--base-url",
                "http://localhost:9/v1",
                "--store",
                "/nowhere/at/all.db",
            ],
            "/nowhere/at/all.db",
        ),
        (
            [
                "chat",
                "--model",
                "m",
                "--base-url",
                "http://localhost:9/v1",
                "--system-prompt-file",
                "/nowhere",
            ],
            "--system-prompt-file",
        ),
        (["show"], "FILE"),
        (["show", "/nowhere/at/all.db"], "does not exist"),
    ],
)
def test_a_wrong_argument_is_one_clear_line_and_exit_2(arguments: list[str], message: str) -> None:
    ended = holdfast(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.startswith("holdfast: ")
    assert ended.stderr.count("\n") == 1


# --- run ---


@pytest.mark.slow
def test_a_piped_run_is_plain_text_and_shows_every_step(tmp_path: Path) -> None:
    answers = [
        command("printf 'one\\ntwo\\n'; exit 3"),
        calls(("write_file", {"path": "a.txt", "content": "hello\n"})),
        text("Done."),
    ]
    with ModelServer(answers) as server:
        ended = holdfast("run", "Say", "hello", *options(server, tmp_path))
    assert ended.returncode == 0
    assert ESCAPE not in ended.stdout + ended.stderr
    assert "\r" not in ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "> Say hello"
    assert "$ printf 'one\\ntwo\\n'; exit 3" in lines
    assert "  two" in lines
    assert any(line.startswith("  exit 3, ") for line in lines)
    assert "write_file a.txt" in lines
    assert "  +hello" in lines
    assert lines[-1] == "Done."
    assert re.fullmatch(r"3 steps, .* m?s, 30 tokens in, 15 out\n", ended.stderr)
    assert (tmp_path / "a.txt").read_text() == "hello\n"


@pytest.mark.slow
def test_the_task_may_come_from_standard_input(tmp_path: Path) -> None:
    with ModelServer([text("ok")]) as server:
        assert (
            holdfast(
                "run", "-", *options(server, tmp_path), stdin="first line\nsecond line\n"
            ).returncode
            == 0
        )
        assert server.requests[0].messages[-1]["content"] == "first line\nsecond line\n"


@pytest.mark.slow
def test_model_and_address_come_from_the_environment_and_options_come_first(tmp_path: Path) -> None:
    with ModelServer([text("ok"), text("ok")]) as server:
        env = {
            "HOLDFAST_MODEL": "from-env",
            "HOLDFAST_BASE_URL": server.url,
            "HOLDFAST_API_KEY": KEY,
        }
        assert holdfast("run", "x", "--workdir", str(tmp_path), **env).returncode == 0
        assert (
            holdfast(
                "run",
                "x",
                "--workdir",
                str(tmp_path),
                "--model",
                "m",
                "--api-key-env",
                "MINE",
                MINE="mine",
                **env,
            ).returncode
            == 0
        )
        assert [request.json["model"] for request in server.requests] == ["from-env", "m"]
        assert [request.headers["authorization"] for request in server.requests] == [
            f"Bearer {KEY}",
            "Bearer mine",
        ]


@pytest.mark.slow
def test_openais_key_is_sent_to_nobody_else(tmp_path: Path) -> None:
    with ModelServer([text("ok")]) as server:
        assert holdfast("run", "x", *options(server, tmp_path), OPENAI_API_KEY=KEY).returncode == 0
        assert KEY not in str(server.requests[0].headers)
    refused = holdfast(
        "run", "x", "--model", "m", "--base-url", "https://api.example.com/v1", OPENAI_API_KEY=KEY
    )
    assert refused.returncode == 2
    assert "is sent to OpenAI only" in refused.stderr


@pytest.mark.slow
def test_commands_see_the_path_but_no_secret_unless_it_is_named(tmp_path: Path) -> None:
    secrets = {
        "HOLDFAST_API_KEY": KEY,
        "MY_TOKEN": KEY,
        "DB_PASSWORD": KEY,
        "SOMETHING": KEY,
        "https_proxy": f"http://me:{KEY}@localhost:9",
        "NAMED_SECRET": "told",
    }
    store = tmp_path / "s.db"
    with ModelServer([command("env"), text("ok")]) as server:
        arguments = [
            *options(server, tmp_path),
            "--env",
            "NAMED_SECRET",
            "--store",
            str(store),
            "--full",
        ]
        ended = holdfast("run", "x", *arguments, LC_TIME="C.UTF-8", **secrets)
        messages = str(server.requests[1].messages)
    assert ended.returncode == 0
    assert KEY not in ended.stdout + ended.stderr + messages
    assert KEY.encode() not in store.read_bytes()
    assert "NAMED_SECRET=told" in messages
    assert "LC_TIME=C.UTF-8" in messages
    assert f"PATH={os.environ['PATH']}" in messages


@pytest.mark.slow
def test_what_a_model_or_a_tool_writes_cannot_control_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "evil.txt").write_text("\x1b]0;title\x07\x9b31m hidden \u202e reversed\n")
    answers = [
        calls(("read_file", {"path": "evil.txt", "note\x1b[2J": "x\x1b[2J"})),
        text("\x1b[2Jcleared\x07 \x9d0;t"),
    ]
    with ModelServer(answers) as server:
        ended = holdfast("run", "\x1b[31mtask", *options(server, tmp_path), FORCE_COLOR="1")
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout + ended.stderr)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", without_colours)
    assert "^[[2Jcleared^G" in ended.stdout
    assert "^[[31mtask" in ended.stdout


@pytest.mark.slow
def test_force_color_colours_a_pipe_and_no_color_wins(tmp_path: Path) -> None:
    with ModelServer([command("true"), text("ok")] * 2) as server:
        forced = holdfast("run", "x", *options(server, tmp_path), FORCE_COLOR="1")
        none = holdfast("run", "x", *options(server, tmp_path), FORCE_COLOR="1", NO_COLOR="1")
    assert ESCAPE + "[1m$ true" in forced.stdout
    assert ESCAPE not in none.stdout + none.stderr
    assert not re.search(r"\x1b\[[^m]*[A-HJKSTfhl]", forced.stdout), (
        "colours, but no cursor movement"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            (
                401,
                {},
                {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}},
            ),
            "key",
        ),
        (
            (
                404,
                {},
                {"error": {"message": "The model 'm' does not exist", "code": "model_not_found"}},
            ),
            "does not exist",
        ),
        ((400, {}, {"error": {"message": "no tools here"}}), "no tools here"),
        (Drop(), "127.0.0.1"),
    ],
    ids=["wrong key", "unknown model", "bad request", "dropped"],
)
def test_a_model_that_cannot_answer_is_one_line_and_exit_1(
    tmp_path: Path, response: Any, message: str
) -> None:
    with ModelServer(lambda request: response) as server:
        ended = holdfast(
            "run", "x", "--retries", "0", *options(server, tmp_path), HOLDFAST_API_KEY=KEY
        )
    assert ended.returncode == 1
    assert message in ended.stderr
    assert re.fullmatch(r"holdfast: .+\n", ended.stderr)
    assert KEY not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_refused_port_is_told_with_its_address(tmp_path: Path) -> None:
    with ModelServer() as server:
        arguments = options(server, tmp_path)
    ended = holdfast("run", "x", "--retries", "0", *arguments)
    assert ended.returncode == 1
    assert re.fullmatch(rf"holdfast: .*127\.0\.0\.1:{server.port}.*\n", ended.stderr)


@pytest.mark.slow
def test_the_step_limit_is_exit_3(tmp_path: Path) -> None:
    with ModelServer(lambda request: command("true")) as server:
        ended = holdfast("run", "x", "--max-steps", "2", *options(server, tmp_path))
    assert ended.returncode == 3
    assert "stopped at the limit of 2 steps. --max-steps sets the limit." in ended.stderr
    assert len(server.requests) == 2


@pytest.mark.slow
def test_a_system_prompt_file_is_the_system_prompt(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer in Latin.")
    with ModelServer([text("ita")]) as server:
        assert (
            holdfast(
                "run", "x", *options(server, tmp_path), "--system-prompt-file", str(prompt)
            ).returncode
            == 0
        )
        assert server.requests[0].messages[0]["content"].startswith("Answer in Latin.")
        assert str(tmp_path) in server.requests[0].messages[0]["content"]


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    with ModelServer(lambda request: command("echo step")) as server:
        process = forks.Popen(
            [*HOLDFAST, "run", "x", *options(server, tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"> x\n"
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""
        process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_it_cleanly_and_ends_its_commands(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    store, started = tmp_path / "s.db", tmp_path / "started"
    answers = [command(f"echo $$ > {started}; sleep 600"), text("ok")]
    with ModelServer(answers) as server:
        process = forks.Popen(
            [
                *HOLDFAST,
                "run",
                "x",
                *options(server, tmp_path),
                "--store",
                str(store),
                "--new",
                "--id",
                "one",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        until(lambda: started.exists() and started.read_text().strip() != "")
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in out + err
    assert "continue with: holdfast chat --store" in err
    assert not Path(f"/proc/{started.read_text().strip()}").exists()
    assert not Path(f"{store}-owners").exists(), "the lease was given back"
    # An interrupt is a request to stop, which is kept. A termination is not: the run would go on.
    assert (
        json.loads(holdfast("show", str(store), "--json").stdout.splitlines()[0])["type"]
        == "message"
    )
    with sqlite3.connect(store) as db:
        status = db.execute("SELECT status FROM conversations").fetchone()[0]
    db.close()
    assert status == ("paused" if number == signal.SIGINT else "running")


@pytest.mark.slow
@pytest.mark.parametrize(("debug", "traceback"), [("", False), ("1", True)])
def test_a_bug_is_one_line_and_says_how_to_get_the_traceback(debug: str, traceback: bool) -> None:
    program = (
        "import sys; from holdfast.cli import demo, main; demo.Console = None;"
        " sys.exit(main(['demo']))"
    )
    env = environment(HOLDFAST_DEBUG=debug)
    ended = forks.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (70, "")
    assert ended.stderr.splitlines()[-1].startswith("holdfast: internal error: TypeError:")
    assert ("Traceback" in ended.stderr, "HOLDFAST_DEBUG=1" in ended.stderr) == (
        traceback,
        not traceback,
    )


@pytest.mark.slow
def test_streams_that_are_closed_or_full_are_no_traceback() -> None:
    shell = f"{shlex.join(HOLDFAST)} demo"
    for redirection, code in (("<&- >&- 2>&-", 0), (">/dev/full", 1)):
        ended = subprocess.run(
            ["sh", "-c", f"{shell} {redirection}"],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert ended.returncode == code
        assert "Traceback" not in ended.stderr
    assert "No space left" in ended.stderr


# --- stores: run, chat, show ---


@pytest.mark.slow
def test_a_conversation_in_a_store_goes_on_and_is_shown(tmp_path: Path) -> None:
    store = str(tmp_path / "agents.db")
    with ModelServer([command("echo first"), text("One."), text("Two.")]) as server:
        first = holdfast("run", "do one thing", *options(server, tmp_path), "--store", store)
        match = re.search(r"^continue with: holdfast (chat .*)$", first.stderr, re.MULTILINE)
        assert match
        second = holdfast(*shlex.split(match[1]), stdin="and another\n")
        assert (first.returncode, second.returncode) == (0, 0)
        assert [m["role"] for m in server.requests[2].messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
    assert "do one thing" not in second.stdout, "what was shown before is not shown again"
    assert second.stdout.splitlines()[-3:] == ["> and another", "", "Two."]
    history = holdfast("show", store)
    assert history.returncode == 0
    for line in ("> do one thing", "$ echo first", "  first", "One.", "> and another", "Two."):
        assert line in history.stdout.splitlines()
    events = [json.loads(line) for line in holdfast("show", store, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["type"] for event in events} >= {
        "message",
        "assistant",
        "toolResult",
        "status",
        "agent",
    }


@pytest.mark.slow
def test_show_lists_the_conversations_if_there_are_several(tmp_path: Path) -> None:
    store = str(tmp_path / "agents.db")
    with ModelServer([text("A."), text("B.")]) as server:
        for id in ("alpha", "beta"):
            assert (
                holdfast(
                    "run",
                    f"task of {id}",
                    *options(server, tmp_path),
                    "--store",
                    store,
                    "--new",
                    "--id",
                    id,
                ).returncode
                == 0
            )
    listed = holdfast("show", store)
    assert listed.returncode == 0
    assert re.search(r"^beta +finished +5 .* task of beta$", listed.stdout, re.MULTILINE)
    assert re.search(r"^alpha +finished +5 .* task of alpha$", listed.stdout, re.MULTILINE)
    assert [
        json.loads(line)["id"] for line in holdfast("show", store, "--json").stdout.splitlines()
    ] == ["beta", "alpha"]
    assert "B." in holdfast("show", store, "be").stdout.splitlines()
    unknown = holdfast("show", store, "gamma")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "'gamma'" in unknown.stderr


@pytest.mark.slow
def test_show_makes_no_file_and_touches_none_that_is_not_a_store(tmp_path: Path) -> None:
    assert holdfast("show", str(tmp_path / "none.db")).returncode == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("hello")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    for name in ("empty.db", "text.db", "other.db", "."):
        before = (tmp_path / name).read_bytes() if name != "." else b""
        ended = holdfast("show", str(tmp_path / name))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert name == "." or (tmp_path / name).read_bytes() == before


@pytest.mark.slow
def test_a_conversation_that_somebody_else_drives_is_not_touched(tmp_path: Path) -> None:
    with ModelServer() as server, SQLiteStore(tmp_path / "s.db") as store:
        store.acquire("one")
        ended = holdfast(
            "run",
            "x",
            *options(server, tmp_path),
            "--new",
            *conversation_options(tmp_path / "s.db", "one"),
        )
    assert ended.returncode == 1
    assert f"process {os.getpid()}" in ended.stderr
    assert server.requests == []


@pytest.mark.slow
def test_each_piped_line_is_a_message_and_the_last_ones_end_is_the_exit_code(
    tmp_path: Path,
) -> None:
    with ModelServer([text("One."), text("Two.")]) as server:
        lines = "first\n\n/status\n/nonsense\nsecond\n/exit\nnever said\n"
        ended = holdfast("chat", *options(server, tmp_path), "--retries", "0", stdin=lines)
        assert (ended.returncode, len(server.requests)) == (0, 2)
    output_lines = [line for line in ended.stdout.splitlines() if line]
    assert [line for line in output_lines if not line.startswith("model m")] == [
        "> first",
        "One.",
        "> second",
        "Two.",
    ]
    assert "finished, model m, 1 step" in ended.stderr
    assert "Unknown command /nonsense" in ended.stderr
    with ModelServer([text("One."), (401, {}, "who?")]) as server:
        assert holdfast("chat", *options(server, tmp_path), stdin="first\nsecond\n").returncode == 1


@pytest.mark.slow
def test_a_chat_goes_on_with_another_model_and_names_it_in_the_command_that_continues(
    tmp_path: Path,
) -> None:
    lines = "first\n/ask What?\n/model openai/bigger\nsecond\n/model\n"
    with ModelServer([text("One."), text("Aside."), text("Two.")]) as server:
        store = ("--store", str(tmp_path / "s.db"))
        ended = holdfast("chat", *options(server, tmp_path), *store, stdin=lines)
        assert ended.returncode == 0, ended.stderr
        models = [request.json["model"] for request in server.requests]
        assert models == ["m", "m", "openai/bigger"]
    assert "(aside) Aside." in ended.stdout
    assert "model openai/bigger" in ended.stderr
    # This is part of the command that continues the conversation.
    assert "--model openai/bigger" in ended.stderr


# --- demo ---


@pytest.mark.slow
def test_the_demo_passes_and_leaves_nothing(tmp_path: Path) -> None:
    ended = holdfast("demo", TMPDIR=str(tmp_path))
    assert ended.returncode == 0
    assert ESCAPE not in ended.stdout
    for line in ("  -    first = number * size", "  +    first = (number - 1) * size"):
        assert line in ended.stdout.splitlines()
    outcomes = re.findall(r"^  exit (\d+), ", ended.stdout, re.MULTILINE)
    assert outcomes == ["1", "0"]
    assert "--model gpt-5-mini" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_does_not_claim_what_did_not_happen(tmp_path: Path) -> None:
    """The edit of the file tool is undone before the demo runs the tests."""
    program = (
        "import sys; from holdfast.cli import demo, main; from pathlib import Path\nreal ="
        " demo._passes\ndef meddled(folder, env):\n    path = folder / 'shop/paging.py';"
        " path.write_text(path.read_text().replace(demo.FIXED, demo.BROKEN))\n    return"
        " real(folder, env)\ndemo._passes = meddled; sys.exit(main(['demo']))"
    )
    ended = forks.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "the tests fail after the change" in ended.stderr


@pytest.mark.slow
def test_the_demo_in_a_terminal_is_coloured() -> None:
    with terminal("demo", "--fast") as typist:
        assert typist.leaves() == 0
    assert re.search(r"\x1b\[32m  \+    first = \(number - 1\) \* size\x1b\[0m", typist.output)
    assert "Checked" in typist.output


# --- a terminal ---


def stream_bodies(*answers: dict[str, Any]) -> list[str]:
    """Return each answer as the body of an event stream."""
    return [sse(answer) for answer in answers]


@pytest.mark.slow
def test_a_streamed_answer_is_shown_live_and_once(tmp_path: Path) -> None:
    stream = sse(text("Hello there, how are you?"), size=6)
    half = stream.index("data: ", stream.index("Hello"))
    may_continue = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield stream[:half].encode()
        assert may_continue.wait(15)
        yield stream[half:].encode()

    with (
        ModelServer([Stream(pieces())]) as server,
        terminal("run", "x", *options(server, tmp_path)) as typist,
    ):
        typist.sees("Hello")
        may_continue.set()
        assert typist.leaves() == 0
    assert typist.output.count("Hello") == 1
    assert typist.output.count("you?") == 1
    assert "1 step, " in typist.output


@pytest.mark.slow
def test_the_status_line_is_gone_in_the_end(tmp_path: Path) -> None:
    answers = stream_bodies(command("sleep 0.6; echo slept"), text("Done."))
    with ModelServer(answers) as server, terminal("run", "x", *options(server, tmp_path)) as typist:
        typist.sees(r"\$ sleep 0.6; echo slept 0\.\d\d? s")
        assert typist.leaves() == 0
    last = typist.output.rstrip("\r\n").split("\r\n")
    visible = [re.sub(r"\x1b\[[0-9;]*m", "", line.rpartition("\x1b[K")[2]) for line in last]
    assert [line for line in visible if "sleep" in line] == ["$ sleep 0.6; echo slept"]
    assert "thinking" not in "".join(visible)


@pytest.mark.slow
def test_ctrl_c_pauses_and_enter_resumes(tmp_path: Path) -> None:
    with (
        ModelServer([Stall(), sse(text("Back again."))]) as server,
        terminal("run", "x", *options(server, tmp_path)) as typist,
    ):
        typist.sees("thinking")
        typist.types("\x03")
        typist.sees(r"paused \(interrupted\)")
        typist.sees(r"Ctrl-C again to close: ")
        typist.types("\r")
        typist.sees("Back again.")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_a_message_typed_after_ctrl_c_steers(tmp_path: Path) -> None:
    with ModelServer([Stall(), sse(text("Right away."))]) as server:
        with terminal("run", "x", *options(server, tmp_path)) as typist:
            typist.sees("thinking")
            typist.types("\x03")
            typist.sees("to close: ")
            typist.types("do it otherwise\r")
            typist.sees("Right away.")
            assert typist.leaves() == 0
        assert [m["content"] for m in server.requests[1].messages[1:]] == ["x", "do it otherwise"]
    assert typist.output.count("do it otherwise") == 1


@pytest.mark.slow
def test_the_second_ctrl_c_closes(tmp_path: Path) -> None:
    started = tmp_path / "started"
    store = ["--store", str(tmp_path / "s.db")]
    answers = stream_bodies(command(f"touch {started}; sleep 600"))
    with (
        ModelServer(answers) as server,
        terminal("run", "x", *options(server, tmp_path), *store) as typist,
    ):
        until(started.exists)
        typist.types("\x03")
        typist.sees("to close: ")
        typist.types("\x03")
        typist.sees("continue with: holdfast chat")
        assert typist.leaves() == 130
    assert "Traceback" not in typist.output


@pytest.mark.slow
def test_a_terminal_that_goes_away_closes_it(tmp_path: Path) -> None:
    started, store = tmp_path / "started", tmp_path / "s.db"
    answers = stream_bodies(command(f"echo $$ > {started}; sleep 600"))
    with ModelServer(answers) as server:
        typist = Typist("run", "x", *options(server, tmp_path), "--store", str(store))
        until(lambda: started.exists() and started.read_text().strip() != "")
        os.close(typist.master)
        assert typist.process.wait(30) == 129
    assert not Path(f"/proc/{started.read_text().strip()}").exists()
    assert not Path(f"{store}-owners").exists()


@pytest.mark.slow
def test_a_chat_takes_what_is_typed_while_the_agent_works(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def answer(request: Request) -> Any:
        last = request.messages[-1]
        if last["content"] == "wait":
            return sse(command(f"until [ -e {go} ]; do sleep 0.02; done"))
        return sse(text(f"Heard: {last['content']}."))

    conversation = conversation_options(tmp_path / "s.db", "one")
    with (
        ModelServer(answer) as server,
        terminal("chat", *options(server, tmp_path), *conversation) as typist,
    ):
        typist.sees("> ")
        typist.types("wait\r")
        typist.sees(r"\$ until")
        typist.types("hurry up\r")
        with SQLiteStore(tmp_path / "s.db") as store:
            until(lambda: "hurry up" in str(store.read("one")))
        go.touch()
        typist.sees("Heard: hurry up.")
        typist.sees("> ")
        typist.types("/status\r")
        typist.sees("finished, model m, 2 steps")
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_a_chat_pauses_and_resumes(tmp_path: Path) -> None:
    with (
        ModelServer([Stall(), sse(text("Here."))]) as server,
        terminal("chat", *options(server, tmp_path)) as typist,
    ):
        typist.sees("> ")
        typist.types("hello\r")
        typist.sees("thinking")
        until(lambda: server.requests, "the request that stalls")
        typist.types("\x03")
        typist.sees("paused: Enter continues")
        typist.sees("> ")
        typist.types("/continue\r")
        typist.sees("Here.")
        typist.sees("> ")
        typist.types("\x03")
        typist.sees("leaves")
        typist.sees("> ")
        typist.types("\x03")
        assert typist.leaves() == 130


@pytest.mark.slow
def test_a_chat_outlives_errors_and_tells_each(tmp_path: Path) -> None:
    answers = [(401, {}, "first refusal"), (401, {}, "second refusal"), sse(text("Here."))]
    with ModelServer(answers) as server, terminal("chat", *options(server, tmp_path)) as typist:
        for line, expected in (
            ("one", "first refusal"),
            ("two", "second refusal"),
            ("/continue", "Here."),
        ):
            typist.sees("> ")
            typist.types(f"{line}\r")
            typist.sees(expected)
        typist.sees("> ")
        typist.types("\x04")
        assert typist.leaves() == 0


@pytest.mark.slow
def test_no_color_and_a_dumb_terminal_get_plain_text(tmp_path: Path) -> None:
    with ModelServer(
        [*stream_bodies(command("true"), text("ok")), command("true"), text("ok")]
    ) as server:
        with terminal("run", "x", *options(server, tmp_path), NO_COLOR="1") as typist:
            assert typist.leaves() == 0
        assert not re.search(r"\x1b\[[0-9;]*m", typist.output)
        with terminal("run", "x", *options(server, tmp_path), "--no-stream", TERM="dumb") as typist:
            assert typist.leaves() == 0
        assert ESCAPE not in typist.output


@pytest.mark.slow
def test_a_retry_is_told_while_it_is_waited_for(tmp_path: Path) -> None:
    with ModelServer([(503, {}, "busy"), text("here")]) as server:
        ended = holdfast("run", "hello", "--no-stream", *options(server, tmp_path))
    assert ended.returncode == 0
    assert re.search(r"Trying again in \d+\.\d s \(1 of 5\)", ended.stderr)


@pytest.mark.slow
def test_a_server_that_wants_a_key_is_told_of_with_where_to_put_it(tmp_path: Path) -> None:
    with ModelServer([(401, {}, {"error": {"message": "Who are you?"}})] * 2) as server:
        without_key = holdfast("run", "x", *options(server, tmp_path))
        with_key = holdfast("run", "x", *options(server, tmp_path), HOLDFAST_API_KEY="short")
    assert (without_key.returncode, with_key.returncode) == (1, 1)
    assert (
        "The provider says: Who are you? No key was sent: set HOLDFAST_API_KEY"
        in without_key.stderr
    )
    assert "No key" not in with_key.stderr
