"""`holdfast tell` and `holdfast show --follow`: the shell controls a conversation that another
process runs."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, Hook, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.cli import main
from holdfast.conversation import ConversationState
from holdfast.errors import StoreError
from holdfast.tools.hooks import Deny
from tests import forks
from tests.cli.test_commands import (
    HOLDFAST,
    command,
    conversation_options,
    environment,
    holdfast,
    options,
    terminal,
)
from tests.model_server import ModelServer, Request, calls, text
from tests.paths import DATA
from tests.waiting import until

TWO = calls(("terminal", {"command": "touch a"}), ("terminal", {"command": "touch b"}))


def store_options(folder: Path) -> list[str]:
    """Return the options for the conversation `one` in the store of the folder."""
    return conversation_options(folder / "s.db", "one")


def state(folder: Path) -> ConversationState:
    """Return the state of the conversation `one`."""
    with SQLiteStore(folder / "s.db", read_only=True) as store:
        return ConversationState("one", store.read("one"))


def run_in_process(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in this process. Only the process that runs the conversation has to be
    another one."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(arguments)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def tell(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `holdfast tell` for the conversation `one`."""
    return run_in_process("tell", str(folder / "s.db"), "one", *words, stdin=stdin)


@contextmanager
def background_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command in the background, and kill it at the end if it still runs."""
    process = forks.Popen(
        [*HOLDFAST, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def server_with_waiting_calls(folder: Path, *answers: object) -> Iterator[ModelServer]:
    """Run a model server and a run on it that ends with calls that wait."""
    with ModelServer(answers) as server:
        assert (
            holdfast(
                "run",
                "x",
                *options(server, folder),
                *store_options(folder),
                "--confirm",
                "terminal",
            ).returncode
            == 3
        )
        yield server


def call_has_started(folder: Path) -> bool:
    """Return whether a tool call has started. The file may exist before it is a store."""
    try:
        return any(isinstance(event, ev.ToolCallStarted) for event in state(folder).events)
    except StoreError:
        return False


# --- while a process runs the conversation ---


@pytest.mark.slow
def test_send_pause_resume_and_interrupt_reach_the_process_that_drives(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def answer(request: Request) -> object:
        last = request.messages[-1]
        if last["content"] == "x":
            return command(f"until [ -e {go} ]; do sleep 0.02; done")
        return (
            command("sleep 600")
            if last["content"] == "sleep"
            else text(f"Heard {last['content']}.")
        )

    with (
        ModelServer(answer) as server,
        background_command("run", "x", *options(server, tmp_path), *store_options(tmp_path)) as run,
    ):
        until(lambda: call_has_started(tmp_path))
        paused = tell(tmp_path, "pause", "--wait", "10")
        assert (paused.returncode, paused.stderr) == (0, "")
        assert re.fullmatch(r"posted: pause\ndone: event \d+\n", paused.stdout)
        go.touch()
        steered = tell(tmp_path, "send", "-", "--wait", "10", stdin="sleep")
        assert (steered.returncode, steered.stderr) == (0, "")
        assert state(tmp_path).status == "paused"
        assert tell(tmp_path, "resume", "--wait", "10").returncode == 0
        until(
            lambda: (
                '"sleep 600"' in str(server.requests[-1].messages)
                or len(state(tmp_path).pending_calls) == 1
            )
        )
        until(lambda: bool(state(tmp_path).pending_calls))
        assert tell(tmp_path, "interrupt", "--wait", "10").returncode == 0
        until(lambda: not state(tmp_path).pending_calls)
        assert tell(tmp_path, "send", "the", "end").returncode == 0
        assert tell(tmp_path, "resume").returncode == 0
        out, err = run.communicate(timeout=120)
        assert (run.returncode, out.splitlines()[-1]) == (0, "Heard the end.")
        assert f"continue with: holdfast tell {tmp_path}/s.db one resume" in err


@pytest.mark.slow
def test_a_call_that_waits_in_a_terminal_is_approved_from_the_shell(tmp_path: Path) -> None:
    with ModelServer([command("touch ran"), text("Done.")]) as server:
        arguments = [
            "--no-stream",
            *options(server, tmp_path),
            *store_options(tmp_path),
            "--confirm",
            "terminal",
        ]
        with terminal("chat", *arguments) as typist:
            typist.sees("> ")
            typist.types("go\r")
            typist.sees(r"\[y,n,e,a,q\] ")
            ended = holdfast("tell", str(tmp_path / "s.db"), "one", "approve", "--wait", "10")
            assert ended.returncode == 0
            assert re.match(
                r"posted: approve \d+\.0 \(arguments [0-9a-f]{12}\)\ndone: event \d+\n",
                ended.stdout,
            )
            typist.sees("decided elsewhere: approved by user")
            typist.sees("> ")
            typist.types("\x04")
            assert typist.leaves() == 0
        assert "Done." in typist.output
    assert (tmp_path / "ran").exists()


# --- while no process runs the conversation ---


@pytest.mark.slow
def test_what_is_posted_while_nobody_drives_is_done_when_it_is_opened(tmp_path: Path) -> None:
    with server_with_waiting_calls(
        tmp_path, command("touch wrong"), text("Done."), text("Hello.")
    ) as server:
        late = tell(
            tmp_path, "approve", "--arguments", '{"command": "touch right"}', "--wait", "0.2"
        )
        assert (late.returncode, late.stdout.count("posted: approve")) == (1, 1)
        assert (
            late.stderr
            == "holdfast: not done within 0.2 s. The command stays posted; the process that drives the"
            " conversation, or the next one that opens it, carries it out.\n"
        )
        assert tell(tmp_path, "send", "hello", "--key", "once").returncode == 0
        again = tell(tmp_path, "send", "hello", "--key", "once", "--wait", "0.1")
        assert (again.returncode, again.stdout) == (
            1,
            "dropped: another command was posted under the key 'once' before\n",
        )
        opened = holdfast("chat", *options(server, tmp_path), *store_options(tmp_path))
        assert opened.returncode == 0
        assert [m["content"] for m in server.requests[1].messages if m["role"] == "user"] == [
            "x",
            "hello",
        ]
        ended = tell(tmp_path, "send", "hello", "--key", "once", "--wait", "0")
        assert (ended.returncode, "done: event" in ended.stdout) == (0, True)
    assert ((tmp_path / "wrong").exists(), (tmp_path / "right").exists()) == (False, True)
    assert '"touch right"' in run_in_process("show", str(tmp_path / "s.db")).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "otherwise"),
    [
        (["reject", "no"], "approved by user"),
        (["reject", "no"], "rejected by user: first"),
        (["approve"], "rejected by user: first"),
        (["approve"], "approved with other arguments by user"),
    ],
)
def test_a_call_that_was_decided_otherwise_is_told(
    tmp_path: Path, words: list[str], otherwise: str
) -> None:
    """The inbox has an earlier decision about the same call."""
    winner = {"approved": ["approve"], "rejected": ["reject", "first"]}[otherwise.split()[0]]
    if "other arguments" in otherwise:
        winner += ["--arguments", '{"command": "touch other"}']
    with server_with_waiting_calls(tmp_path, command("touch ran"), text("Done.")) as server:
        assert tell(tmp_path, *winner).returncode == 0
        with background_command(
            "tell", str(tmp_path / "s.db"), "one", *words, "--wait", "15"
        ) as late:
            assert late.stdout is not None
            assert late.stdout.readline().startswith(f"posted: {words[0]}")
            assert (
                holdfast("chat", *options(server, tmp_path), *store_options(tmp_path)).returncode
                == 0
            )
            out, err = late.communicate(timeout=120)
            assert (late.returncode, out) == (1, "")
            assert re.fullmatch(
                rf"holdfast: not done: the call was {otherwise} \(event \d+\)\.?\n", err
            )


@pytest.mark.slow
def test_several_waiting_calls_are_listed_and_one_is_chosen(tmp_path: Path) -> None:
    with server_with_waiting_calls(tmp_path, TWO, text("Done.")) as server:
        unclear = tell(tmp_path, "approve")
        pending = state(tmp_path).pending_confirmations
        assert (unclear.returncode, unclear.stdout, unclear.stderr.count("\n")) == (2, "", 1)
        for call in pending:
            assert (
                f"{call.call.id} terminal {json.dumps(call.call.arguments)} (arguments"
                f" {call.arguments_hash[:12]})" in unclear.stderr
            )
        assert tell(tmp_path, "reject", pending[0].call.id, "not", "this").returncode == 0
        assert tell(tmp_path, "approve", pending[1].call.id).returncode == 0
        assert (
            holdfast("chat", *options(server, tmp_path), *store_options(tmp_path)).returncode == 0
        )
        results = [
            message["content"]
            for message in server.requests[1].messages
            if message["role"] == "tool"
        ]
        assert "not this" in results[0]
    assert ((tmp_path / "a").exists(), (tmp_path / "b").exists()) == (False, True)
    output = run_in_process("show", str(tmp_path / "s.db")).stdout
    assert "  rejected: $ touch a, by user: not this" in output.splitlines()
    assert "  approved: $ touch b, by user" in output.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["approve", "9.9"], "'9.9' does not wait"),
        (["approve", "--arguments", "{"], "--arguments: That is not JSON"),
        (["approve", "--arguments", "[]"], "a JSON object"),
        (
            ["approve", "--arguments", '{"command": "a", "command": "b"}'],
            "'command' appears twice",
        ),
        (
            ["approve", "--arguments", '{"command": "a", "x": [{"y": 1, "y": 1}]}'],
            "'y' appears twice",
        ),
        (["approve", "--arguments", '{"commnd": "x"}'], "command"),
        (["approve", "5.0", "more"], "one call"),
        (["reject", "--arguments", "{}"], "--arguments is for approve only"),
        (["send"], "the text"),
        (["send", " "], "empty"),
        (["send", "-"], "empty"),
        (["pause", "now"], "takes no text"),
        (["stop"], "'stop'"),
        (["pause", "--wait", "long"], "--wait"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_posted(
    waits: Path, words: list[str], reason: str
) -> None:
    ended = tell(waits, *words, stdin="\n")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n"), ended.stderr[:10]) == (
        2,
        "",
        1,
        "holdfast: ",
    )
    assert reason in ended.stderr
    with sqlite3.connect(waits / "s.db") as db:
        assert db.execute("SELECT count(*) FROM inbox").fetchone() == (0,)
    db.close()


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a conversation with a call that waits."""
    folder = tmp_path_factory.mktemp("waits")
    with server_with_waiting_calls(folder, command("touch\tran \x1b[2J")):
        return folder


@pytest.mark.slow
def test_what_is_not_there_or_does_not_wait_is_told(tmp_path: Path, waits: Path) -> None:
    missing = run_in_process("tell", str(tmp_path / "none.db"), "one", "pause")
    assert (missing.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "'two'" in run_in_process("tell", str(waits / "s.db"), "two", "pause").stderr
    with ModelServer([text("Done.")]) as server:
        assert (
            holdfast("run", "x", *options(server, tmp_path), *store_options(tmp_path)).returncode
            == 0
        )
    nothing = tell(tmp_path, "reject", "because")
    assert (
        nothing.returncode,
        "no call of 'one' waits for a decision: the conversation is finished" in nothing.stderr,
    ) == (2, True)
    idle = tell(tmp_path, "interrupt", "--wait", "5")
    assert (
        idle.returncode,
        "nothing to wait for: the conversation is finished" in idle.stderr,
    ) == (0, True)


@pytest.mark.slow
def test_standard_input_that_is_no_text_is_told(waits: Path) -> None:
    shell = f"printf '\\377' | {shlex.join(HOLDFAST)} tell {waits}/s.db one send -"
    ended = subprocess.run(
        ["sh", "-c", shell],
        capture_output=True,
        text=True,
        env=environment(PYTHONIOENCODING="utf-8:strict"),
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (
        2,
        "holdfast: the text on standard input is not UTF-8\n",
    )


@pytest.mark.slow
def test_a_signal_ends_a_tell_that_waits(waits: Path) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with background_command(
            "tell", str(waits / "s.db"), "one", "send", "hello", "--wait", "60"
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (code, "")
        with background_command("tell", str(waits / "s.db"), "one", "send", "-") as process:
            until(lambda pid=process.pid, number=number: handles(pid, number))
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
            assert (process.returncode, err) == (code, "")


def handles(pid: int, *numbers: signal.Signals) -> bool:
    """Return whether the process has installed handlers for these signals and SIGTERM."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and all(
        int(caught[1], 16) >> number - 1 & 1 for number in (*numbers, signal.SIGTERM)
    )


# --- show ---


@pytest.mark.slow
def test_show_tells_what_waits_and_how_to_approve_it(waits: Path) -> None:
    history = holdfast("show", str(waits / "s.db"))
    assert history.returncode == 0
    assert re.search(
        r'^waiting for you: \d+\.0 terminal \{"command": "touch\\tran \\u001b\[2J"\}$',
        history.stdout,
        re.MULTILINE,
    )
    assert re.search(
        rf"^approve with: holdfast tell {waits}/s.db one approve \d+\.0$",
        history.stderr,
        re.MULTILINE,
    )
    assert "\x1b" not in history.stdout


def test_show_at_an_event_is_the_conversation_as_it_was(waits: Path) -> None:
    last = state(waits).last_seq
    for at in (0, 3, last):
        then = run_in_process(
            "show", str(waits / "s.db"), "one", "--at", str(at), "--json"
        ).stdout.splitlines()
        assert len(then) == at
    output_lines = run_in_process("show", str(waits / "s.db"), "--at", "2").stdout.splitlines()
    assert output_lines[0] == f"one, running at event 2 of {last}: x"
    beyond = run_in_process("show", str(waits / "s.db"), "--at", str(last + 1))
    assert (beyond.returncode, beyond.stdout, f"0 to {last}" in beyond.stderr) == (2, "", True)
    assert run_in_process("show", str(waits / "s.db"), "--at", "1", "--follow").returncode == 2


def test_show_only_reads(tmp_path: Path) -> None:
    """`show` does not migrate an older store; a command that writes does."""
    before = (DATA / "store_v1.db").read_bytes()
    (tmp_path / "s.db").write_bytes(before)
    assert holdfast("show", str(tmp_path / "s.db")).returncode == 0
    assert (tmp_path / "s.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


@pytest.mark.slow
def test_follow_shows_what_another_process_does_as_it_comes(tmp_path: Path) -> None:
    def answer(request: Request) -> object:
        return (
            command("echo again")
            if len(request.messages) < 4
            else text(f"Heard {request.messages[-1]['content']}.")
        )

    with ModelServer(answer) as server:
        assert (
            holdfast(
                "run", "first", *options(server, tmp_path), *store_options(tmp_path)
            ).returncode
            == 0
        )
        with (
            background_command("show", str(tmp_path / "s.db"), "one", "--follow") as follow,
            background_command(
                "show", str(tmp_path / "s.db"), "one", "--follow", "--json"
            ) as lines,
        ):
            assert follow.stdout is not None
            assert lines.stdout is not None
            while "$ echo again" not in follow.stdout.readline():
                pass
            assert (
                holdfast(
                    "chat", *options(server, tmp_path), *store_options(tmp_path), stdin="second\n"
                ).returncode
                == 0
            )
            while "Heard second." not in follow.stdout.readline():
                pass
            events = [json.loads(lines.stdout.readline()) for _ in range(state(tmp_path).last_seq)]
            assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
            for process, number, code in (
                (follow, signal.SIGINT, 130),
                (lines, signal.SIGTERM, 143),
            ):
                process.send_signal(number)
                _, err = process.communicate(timeout=120)
                assert (process.returncode, err) == (code, "")


@pytest.mark.slow
def test_until_rest_ends_with_the_run_and_a_closed_pipe_ends_at_once(tmp_path: Path) -> None:
    go = tmp_path / "go"
    answers = [command(f"until [ -e {go} ]; do sleep 0.02; done"), text("Done.")]
    with (
        ModelServer(answers) as server,
        background_command("run", "x", *options(server, tmp_path), *store_options(tmp_path)) as run,
    ):
        until(lambda: call_has_started(tmp_path))
        store = str(tmp_path / "s.db")
        with (
            background_command("show", store, "one", "--until-rest") as follow,
            background_command("show", store, "one", "--follow") as piped,
        ):
            assert follow.stdout is not None
            assert piped.stdout is not None
            while "until" not in piped.stdout.readline():
                pass
            while "until" not in follow.stdout.readline():
                pass
            piped.stdout.close()
            assert piped.wait(15) == 141, "though nothing came that could be written"
            piped.stdout = None
            go.touch()
            out, _ = follow.communicate(timeout=120)
            assert (follow.returncode, "Done." in out, "2 steps" in out) == (0, True, True)
        run.communicate(timeout=120)


def refuses(message: Any, context: Any) -> Any:
    return Deny("not this") if "bad" in message.text else f"[checked] {message.text}"


@pytest.mark.parametrize(
    ("words", "code", "pattern"),
    [
        ("hello", 0, "done: event"),
        ("the key is 0123456789-token", 0, "done: event"),
        ("something bad", 1, "not done: a hook refused the message: .*not this"),
    ],
)
def test_a_message_that_is_masked_changed_or_refused_is_recognised(
    tmp_path: Path, words: str, code: int, pattern: str
) -> None:
    agent = Agent(ScriptedLLM(["One.", "Two."]), hooks=[Hook(refuses, on="message")])
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(agent, store, "one", secrets={"KEY": "0123456789-token"}) as conversation,
    ):
        conversation.send_message("hi")
        conversation.start_thread()
        ended = holdfast("tell", str(tmp_path / "s.db"), "one", "--wait", "20", "send", words)
    assert ended.returncode == code
    assert re.search(pattern, ended.stdout + ended.stderr)
    assert "stays posted" not in ended.stderr


def test_a_question_aside_is_answered_by_the_process_that_drives(tmp_path: Path) -> None:
    agent = Agent(ScriptedLLM(["hello", "I said hello."]))
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(agent, store, id="one") as conversation,
    ):
        conversation.send_message("hi")
        early = tell(tmp_path, "ask", "Well?")
        conversation.run()
        ended = tell(tmp_path, "ask", "What did", "you do?")
        failed = tell(tmp_path, "ask", "And?")
        history = run_in_process("show", str(tmp_path / "s.db"), "one")
    assert (early.returncode, "not asked anything yet" in early.stderr) == (1, True)
    assert (ended.returncode, ended.stdout) == (0, "posted: ask\nI said hello.\n")
    assert (failed.returncode, "LLMError" in failed.stderr) == (1, True)
    assert tell(tmp_path, "ask", " ").returncode == 2
    assert "(aside: What did you do?)" in history.stdout
    assert "(aside) I said hello." in history.stdout


def test_a_question_aside_that_nobody_answers_ends_in_time(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        agent = Agent(ScriptedLLM(["hello"]))
        with Conversation(agent, store, id="one") as conversation:
            conversation.send_message("hi")
            conversation.run()
        ended = tell(tmp_path, "ask", "Well?", "--wait", "0.1")
        assert (ended.returncode, "not done within" in ended.stderr) == (1, True)
        with Conversation(Agent(ScriptedLLM(["late"])), store, id="one") as conversation:
            conversation.hosting.open()
            answers = until(
                lambda: [e for e in store.read("one") if isinstance(e, ev.AsideAnswered)]
            )
            assert [event.text for event in answers] == ["late"]


# --- another model ---


def test_use_changes_the_model_and_an_unknown_name_is_refused_with_the_known_ones(
    tmp_path: Path,
) -> None:
    agent = Agent(ScriptedLLM(["own"], "own"), models={"fast": ScriptedLLM(["fast"], "fast")})
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        Conversation(agent, store, "one") as conversation,
    ):
        conversation.send_message("hi")
        used = tell(tmp_path, "use", "#fast", "--wait", "30")
        assert (used.returncode, used.stderr) == (0, "")
        assert re.fullmatch(r"posted: use #fast\ndone: event \d+\n", used.stdout)
        unknown = tell(tmp_path, "use", "slow", "--wait", "30")
        assert unknown.returncode == 1
        assert "no agent or model 'slow'. It has: main, #fast." in unknown.stderr
        assert conversation.run().answer == "fast"
    assert tell(tmp_path, "use").returncode == 2
    assert tell(tmp_path, "use", "#fast", "#slow").returncode == 2
