"""`--confirm`: a user at a real terminal decides which calls run. Without a terminal the command
reports the calls that wait."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from holdfast.cli import main
from holdfast.cli.render import as_json, whole
from holdfast.commands import Approve
from holdfast.content import ToolCall
from holdfast.conversation import ConversationState
from tests.cli.test_commands import (
    ESCAPE,
    command,
    conversation_options,
    holdfast,
    options,
    stream_bodies,
    terminal,
)
from tests.model_server import ModelServer, calls, sse, text

PROMPT = r"\[y,n,e,a,q\] "


def store_options(folder: Path) -> list[str]:
    """Return the options for the conversation `one` in the store of the folder."""
    return conversation_options(folder / "s.db", "one")


def events(folder: Path) -> list[ev.AnyEvent]:
    """Return the events of the conversation `one`."""
    with SQLiteStore(folder / "s.db", read_only=True) as store:
        return store.read("one")


def decisions(folder: Path) -> list[tuple[str, str, str]]:
    """Return the decision, the decider and the reason of each decision."""
    return [
        (event.decision, event.by, event.reason)
        for event in events(folder)
        if isinstance(event, ev.DecisionMade)
    ]


def status(folder: Path) -> str:
    """Return the status of the conversation."""
    return ConversationState("one", events(folder)).status.value


def results(server: ModelServer, number: int) -> list[str]:
    """Return the tool results that the model received in a request."""
    return [
        message["content"]
        for message in server.requests[number].messages
        if message["role"] == "tool"
    ]


# --- calls that need confirmation ---


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shell", "'shell'"),
        ("termnal", "Did you mean 'terminal'?"),
        ("terminal,nope", "'nope'"),
        ("", "tool names"),
        (",", "tool names"),
    ],
)
def test_an_unknown_tool_is_named_with_those_there_are(
    tmp_path: Path, what: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--workdir", str(tmp_path)]
    assert main(["run", "x", *model, "--confirm", what, *store_options(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert "terminal, terminal_input, read_file" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_a_terminal_it_ends_with_what_waits_and_how_to_approve_it(tmp_path: Path) -> None:
    answers = [
        calls(
            ("read_file", {"path": "."}),
            ("terminal", {"command": "touch ran"}),
            ("terminal", {"command": "touch too"}),
        )
    ]
    with ModelServer([*answers, text("Done.")]) as server:
        ended = holdfast(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        )
        assert (ended.returncode, len(server.requests)) == (3, 1)
        assert not (tmp_path / "ran").exists()
        store = tmp_path / "s.db"
        call = re.search(r"^  (\d+\.1)  \$ touch ran$", ended.stderr, re.MULTILINE)
        assert call
        assert "2 calls left waiting for confirmation" in ended.stderr
        assert f"approve with: holdfast tell {store} one approve CALL\n" in ended.stderr
        assert (
            f"continue with: holdfast chat --store {store} --id one --model m --base-url"
            f" {server.url} --confirm terminal" in ended.stderr
        )
        assert "is a directory" in ended.stdout, "what need not be asked for ran at once"
        # No call was decided: the chat reports both again. Then both are decided.
        again = holdfast("chat", *options(server, tmp_path), *store_options(tmp_path))
        assert (again.returncode, "2 calls left waiting" in again.stderr) == (3, True)
        assert holdfast("tell", str(store), "one", "approve", call[1]).returncode == 0
        assert (
            holdfast("chat", *options(server, tmp_path), *store_options(tmp_path)).returncode == 3
        )
        assert ((tmp_path / "ran").exists(), (tmp_path / "too").exists()) == (True, False)
        assert holdfast("tell", str(store), "one", "reject", "one is enough").returncode == 0
        last = holdfast("chat", *options(server, tmp_path), *store_options(tmp_path))
        assert (last.returncode, last.stdout.splitlines()[-1]) == (0, "Done.")
        assert "one is enough" in results(server, 1)[2]
    assert not (tmp_path / "too").exists()


@pytest.mark.slow
def test_without_a_store_it_is_told_that_nothing_is_kept(tmp_path: Path) -> None:
    with ModelServer([command("touch ran")]) as server:
        ended = holdfast("run", "x", *options(server, tmp_path), "--confirm", "always")
    assert (ended.returncode, (tmp_path / "ran").exists()) == (3, False)
    assert "--store FILE" in ended.stderr


# --- the question ---


@pytest.mark.slow
def test_yes_runs_the_call_and_no_tells_the_model_why(tmp_path: Path) -> None:
    answers = stream_bodies(command("echo one > a"), command("echo two > b"), text("I see."))
    with ModelServer(answers) as server:
        with terminal(
            "run", "x", *options(server, tmp_path), "--confirm", "always", *store_options(tmp_path)
        ) as typist:
            typist.sees("waiting for you")
            output = typist.sees(PROMPT)
            assert "$ echo one > a" in output
            assert "every call needs confirmation" in output
            assert (
                "[y] run it, [n] reject, [e] edit, [a] run this and all later calls of terminal,"
                " [q] leave it waiting" in output
            )
            assert not (tmp_path / "a").exists()
            typist.types("\r")
            typist.sees("run it")
            typist.sees(PROMPT)
            typist.types("perhaps\r")
            typist.sees("Unknown answer")
            typist.sees(PROMPT)
            typist.types("y\r")
            typist.sees(r"\$ echo two > b")
            typist.sees(PROMPT)
            typist.types("n\r")
            typist.sees("Why")
            typist.types("not now\r")
            typist.sees("I see.")
            assert typist.leaves() == 0
        assert "not now" in results(server, 2)[1]
    assert ((tmp_path / "a").exists(), (tmp_path / "b").exists()) == (True, False)
    ask = ("ask", "policy", "every call needs confirmation")
    assert decisions(tmp_path) == [
        ask,
        ("approve", "user", ""),
        ask,
        ("reject", "user", "not now"),
    ]
    output = holdfast("show", str(tmp_path / "s.db")).stdout
    for line in (
        "  waits for you: $ echo one > a (every call needs confirmation)",
        "  approved: $ echo one > a, by user",
        "  rejected: $ echo two > b, by user: not now",
        "waiting for you",
    ):
        assert line in output.splitlines()


@pytest.mark.slow
def test_all_later_calls_of_a_tool_run_unasked(tmp_path: Path) -> None:
    first = calls(
        ("terminal", {"command": "touch a"}),
        ("terminal", {"command": "touch b"}),
        ("write_file", {"path": "w", "content": ""}),
    )
    answers = stream_bodies(first, command("touch c"), text("Done."))
    with (
        ModelServer(answers) as server,
        terminal("run", "x", *options(server, tmp_path), "--confirm", "always") as typist,
    ):
        assert "(2 more after this)" in typist.sees(PROMPT)
        typist.types("a\r")
        assert "write_file" in typist.sees(PROMPT)
        assert (
            (tmp_path / "a").exists(),
            (tmp_path / "b").exists(),
            (tmp_path / "w").exists(),
        ) == (True, True, False)
        typist.types("yes\r")
        typist.sees("Done.")
        assert typist.leaves() == 0
    assert (tmp_path / "c").exists()
    assert len(re.findall(PROMPT, typist.output)) == 2


@pytest.mark.slow
def test_a_call_is_shown_whole_and_without_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\nsecond\n")
    long = "\n".join(f"echo {number} # {'x' * 200}" for number in range(60))
    sneaky = "echo hi\x1b[2K\x1b[1A\r# \u202egnp\u202c \u200bend"
    writes = ("write_file", {"path": "a.txt", "content": "first\n2nd\x1b[31m\n"})
    edits = ("edit_file", {"path": "a.txt", "old": "first\nsecond", "new": "first\nthird"})
    answers = stream_bodies(
        calls(("terminal", {"command": f"{long}\n{sneaky}", "timeout": 5}), writes, edits),
        text("ok"),
    )
    arguments = [*options(server := ModelServer(answers), tmp_path), "--confirm", "always"]
    with server, terminal("run", "x", *arguments, COLUMNS="80", NO_COLOR="1") as typist:
        output = typist.sees(PROMPT)
        whole = output[output.index("May this run?") :].replace("\r\n", "\n")
        assert all(f"echo {number} # {'x' * 200}" in whole for number in range(60))
        assert "echo hi^[[2K^[[1A^M# \\u202egnp\\u202c \\u200bend" in whole
        assert "  timeout: 5" in whole
        typist.types("n\r\r")
        output = typist.sees(PROMPT)
        assert re.search(
            r"  path: a.txt\r\n  replaces the present content:\r\n.*\n   first\r\n  -second\r\n "
            r" \+2nd\^\[\[31m\r\n",
            output,
        )
        typist.types("n\r\r")
        assert re.search(
            r"edit_file\r\n  path: a.txt\r\n   first\r\n  -second\r\n  \+third\r\n",
            typist.sees(PROMPT),
        )
        typist.types("n\r\r")
        assert typist.leaves() == 0
    assert not re.search("[\x00-\x06\x0b\x0c\x0e-\x1a\x7f-\x9f\u200b\u202e]", typist.output)


def test_what_differs_in_line_ends_alone_is_shown() -> None:
    def lines(name: str, before: str | None = None, **arguments: Any) -> list[str]:
        return [line.text for line in whole(ToolCall("2.0", name, arguments), lambda path: before)]

    assert lines("edit_file", path="a", old="x\r\n", new="x\n")[2:] == ["  -x^M", "  +x", "   "]
    assert lines("edit_file", path="a", old="x\n", new="x")[2:] == ["   x", "  -"]
    assert lines("write_file", "x", path="a", content="x")[2:] == [
        "  replaces the present content:",
        "  (no change)",
    ]
    assert lines("write_file", path="a", content="x\ny\n", **{"mode\x1b": " \u202e"}) == [
        "write_file",
        "  path: a",
        '  mode^[: " \\u202e"',
        "  +x",
        "  +y",
    ]
    assert (
        as_json({"ä\x7f": "日\x9b\u200b\U000e0041\n"})
        == '{"ä\\u007f": "日\\u009b\\u200b\\udb40\\udc41\\n"}'
    )
    assert lines("other", text="a\nb", flag=True, none=None) == [
        "other",
        "  text:",
        "    a",
        "    b",
        "  flag: true",
        "  none: null",
    ]


@pytest.mark.slow
def test_arguments_are_edited_and_asked_for_again_until_they_fit(tmp_path: Path) -> None:
    answers = stream_bodies(command("touch wrong; printf '\x1b'"), text("ok"))
    with ModelServer(answers) as server:
        with terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
            INPUTRC="/dev/null",
        ) as typist:
            typist.sees(PROMPT)
            typist.types("e\r")
            assert "touch wrong; printf '\\u001b'" in typist.sees(r'Arguments.*\{"command": ".*"\}')
            typist.types("}\r")
            typist.sees("That is not JSON")
            typist.sees(r"Arguments.*\}\}")
            typist.types('\x15{"command": "a", "command": "b"}\r')
            typist.sees("'command' appears twice")
            typist.sees("Arguments")
            typist.types('\x15{"commnd": "x"}\r')
            typist.sees("command")
            typist.sees("Arguments")
            typist.types("\x15\r")  # an empty line returns to the question
            typist.sees(PROMPT)
            assert not any(decision == "approve" for decision, _, _ in decisions(tmp_path))
            typist.types("e\r")
            typist.sees("Arguments.*wrong")
            typist.types('\x15{"command": "touch right"}\r')
            typist.sees("ok")
            assert typist.leaves() == 0
        assert "touch right" in results(server, 1)[0], "the model is told"
    assert ((tmp_path / "wrong").exists(), (tmp_path / "right").exists()) == (False, True)
    assert (
        'with other arguments: {"command":"touch right"}'
        in holdfast("show", str(tmp_path / "s.db")).stdout
    )


@pytest.mark.slow
def test_ctrl_d_leaves_it_waiting_and_chat_asks_again(tmp_path: Path) -> None:
    answers = stream_bodies(command("touch ran"), text("Done."))
    with ModelServer(answers) as server:
        arguments = [*options(server, tmp_path), "--confirm", "terminal", *store_options(tmp_path)]
        with terminal("run", "x", *arguments) as typist:
            typist.sees(PROMPT)
            typist.types("\x04")
            typist.sees(rf"approve with: holdfast tell {tmp_path}/s.db one approve \d+\.0")
            typist.sees(rf"continue with: holdfast chat --store {tmp_path}/s.db --id one")
            assert typist.leaves() == 3
        assert status(tmp_path) == "waiting_for_confirmation"
        arguments.remove("--new")
        with terminal("chat", *arguments) as typist:
            assert "$ touch ran" in typist.sees(PROMPT)
            typist.types("q\r")
            assert typist.leaves() == 3
        with terminal("chat", *arguments) as typist:
            typist.sees(PROMPT)
            assert not (tmp_path / "ran").exists()
            typist.types("y\r")
            typist.sees("Done.")
            typist.sees("> ")
            typist.types("\x04")
            assert typist.leaves() == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_ctrl_c_pauses_and_the_call_still_waits_after_that(tmp_path: Path) -> None:
    answers = stream_bodies(command("touch ran"), text("Done."))
    with (
        ModelServer(answers) as server,
        terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        ) as typist,
    ):
        typist.sees(PROMPT)
        typist.types("\x03")
        typist.sees("to close: ")
        assert status(tmp_path) == "paused"
        typist.types("\r")
        assert "$ touch ran" in typist.sees(PROMPT)
        assert status(tmp_path) == "waiting_for_confirmation"
        typist.types("n\r")
        typist.sees("Why")
        typist.types("\x03")
        typist.sees("to close: ")
        typist.types("\x03")
        assert typist.leaves() == 130
    assert "Traceback" not in typist.output
    assert not (tmp_path / "ran").exists()
    assert [decision for decision, _, _ in decisions(tmp_path)] == ["ask"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_at_the_prompt_ends_it_and_the_call_waits(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with (
        ModelServer(stream_bodies(command("touch ran"))) as server,
        terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        ) as typist,
    ):
        typist.sees(PROMPT)
        typist.process.send_signal(number)
        assert typist.leaves() == code
    assert "Traceback" not in typist.output
    assert (status(tmp_path), (tmp_path / "ran").exists()) == ("waiting_for_confirmation", False)
    assert not Path(f"{tmp_path}/s.db-owners").exists()


@pytest.mark.slow
def test_what_was_typed_before_the_question_is_no_answer_to_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    answers = stream_bodies(
        command(f"until [ -e {go} ]; do sleep 0.02; done"),
        calls(("write_file", {"path": "w", "content": ""})),
        text("ok"),
    )
    with (
        ModelServer(answers) as server,
        terminal("run", "x", *options(server, tmp_path), "--confirm", "write_file") as typist,
    ):
        typist.sees("until")
        typist.types("y\r")
        time.sleep(0.1)  # the key is in the terminal's buffer
        go.touch()
        typist.sees(PROMPT)
        time.sleep(0.2)
        assert not (tmp_path / "w").exists()
        typist.types("y\r")
        assert typist.leaves() == 0
    assert (tmp_path / "w").exists()


@pytest.mark.slow
def test_in_a_chat_another_line_is_a_message_and_approves_nothing(tmp_path: Path) -> None:
    answers = stream_bodies(command("touch ran"), text("Fine."))
    with ModelServer(answers) as server:
        with terminal(
            "chat", *options(server, tmp_path), "--confirm", "terminal", *store_options(tmp_path)
        ) as typist:
            typist.sees("> ")
            typist.types("go\r")
            typist.sees(PROMPT)
            typist.types("yes please do run it\r")
            typist.sees("approves nothing")
            typist.sees(PROMPT)
            typist.types("/status\r")
            typist.sees("waiting for confirmation, model m")
            typist.sees(PROMPT)
            assert (status(tmp_path), (tmp_path / "ran").exists()) == (
                "waiting_for_confirmation",
                False,
            )
            typist.types("n\r\r")
            typist.sees("Fine.")
            typist.sees("> ")
            typist.types("/exit\r")
            assert typist.leaves() == 0
        messages = [
            message["content"]
            for message in server.requests[1].messages
            if message["role"] == "user"
        ]
        assert messages == ["go", "yes please do run it"]
    assert typist.output.count("yes please do run it") == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_decision_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    answers = stream_bodies(command("touch ran"), text("Done."))
    with (
        ModelServer(answers) as server,
        terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        ) as typist,
    ):
        typist.sees(PROMPT)
        with SQLiteStore(tmp_path / "s.db") as store:
            pending = ConversationState("one", store.read("one")).pending_confirmations[0]
            store.post(
                "one",
                Approve(pending.call.id, pending.arguments_hash, by="Ada", reason="looks fine"),
            )
        typist.sees("decided elsewhere: approved by Ada: looks fine")  # without a key press
        assert typist.leaves() == 0
    assert "Done." in typist.output  # before or after the decision
    assert "Traceback" not in typist.output
    assert [decision for decision, _, _ in decisions(tmp_path)] == ["ask", "approve"]
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "prompt"), [("ye", ""), ("n\r", "no reason"), ("e\r", "Arguments")]
)
def test_what_was_begun_to_be_typed_is_dropped_when_it_is_decided_elsewhere(
    tmp_path: Path, typed: str, prompt: str
) -> None:
    answers = stream_bodies(command("touch ran"), command("touch too"), text("Done."))
    with (
        ModelServer(answers) as server,
        terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        ) as typist,
    ):
        typist.sees(PROMPT)
        typist.types(typed)
        typist.sees(prompt or typed)
        assert holdfast("tell", str(tmp_path / "s.db"), "one", "reject", "not this").returncode == 0
        typist.sees("decided elsewhere: rejected by user: not this")
        assert "touch too" in typist.sees(PROMPT)
        typist.types("y\r")
        typist.sees("Done.")
        assert typist.leaves() == 0
    assert "Traceback" not in typist.output
    assert [decision for decision, _, _ in decisions(tmp_path)] == [
        "ask",
        "reject",
        "ask",
        "approve",
    ]
    assert ((tmp_path / "ran").exists(), (tmp_path / "too").exists()) == (False, True)


@pytest.mark.slow
def test_a_pause_from_elsewhere_ends_the_question_and_a_resume_asks_it_again(
    tmp_path: Path,
) -> None:
    with (
        ModelServer(stream_bodies(command("touch ran"), text("Done."))) as server,
        terminal(
            "run",
            "x",
            *options(server, tmp_path),
            "--confirm",
            "terminal",
            *store_options(tmp_path),
        ) as typist,
    ):
        typist.sees(PROMPT)
        assert (
            holdfast("tell", str(tmp_path / "s.db"), "one", "pause", "--wait", "10").returncode == 0
        )
        typist.sees("paused from elsewhere")
        assert holdfast("tell", str(tmp_path / "s.db"), "one", "resume").returncode == 0
        typist.sees(PROMPT)
        typist.types("y\r")
        typist.sees("Done.")
        assert typist.leaves() == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_dumb_terminal_asks_in_plain_text(tmp_path: Path) -> None:
    with (
        ModelServer([command("touch ran"), text("Done.")]) as server,
        terminal(
            "run",
            "x",
            "--no-stream",
            *options(server, tmp_path),
            "--confirm",
            "always",
            TERM="dumb",
        ) as typist,
    ):
        typist.sees(PROMPT)
        typist.types("y\r")
        assert typist.leaves() == 0
    assert ESCAPE not in typist.output
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_where_input_cannot_edit_lines_the_arguments_are_typed_anew(tmp_path: Path) -> None:
    """A module that fails to import hides readline from Python."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "readline.py").write_text("raise ImportError")
    with ModelServer(stream_bodies(command("touch wrong"), text("Done."))) as server:
        arguments = [*options(server, tmp_path), "--confirm", "terminal"]
        with terminal(
            "run",
            "x",
            *arguments,
            PYTHONPATH=f"{hidden}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        ) as typist:
            typist.sees(PROMPT)
            typist.types("e\n")
            typist.sees(re.escape(json.dumps({"command": "touch wrong"})))
            typist.sees("New arguments")
            typist.types('{"command": "touch right"}\n')
            typist.sees("Done.")
            assert typist.leaves() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hidden", "right"]


@pytest.mark.slow
def test_the_status_line_says_who_is_waited_for_while_others_run(tmp_path: Path) -> None:
    first = calls(
        ("terminal", {"command": "sleep 0.7"}), ("write_file", {"path": "w", "content": ""})
    )
    with (
        ModelServer([sse(first), sse(text("ok"))]) as server,
        terminal("run", "x", *options(server, tmp_path), "--confirm", "write_file") as typist,
    ):
        typist.sees(r"sleep 0\.7; 1 call waiting for you")
        typist.sees(PROMPT)
        typist.types("y\r")
        assert typist.leaves() == 0


# --- confirmation by risk ---


@pytest.mark.slow
def test_risky_calls_are_asked_about_with_their_risk_and_why(tmp_path: Path) -> None:
    answers = stream_bodies(
        calls(("terminal", {"command": "ls"}), ("terminal", {"command": "rm -rf ../other"})),
        text("I see."),
    )
    with (
        ModelServer(answers) as server,
        terminal(
            "run", "x", *options(server, tmp_path), "--confirm", "risky", *store_options(tmp_path)
        ) as typist,
    ):
        output = typist.sees(PROMPT)
        assert "high risk: rm deletes a path outside of the working directory: ../other" in output
        typist.types("q\r")
        assert typist.leaves() == 3
    assert [(one[0], one[1]) for one in decisions(tmp_path)] == [
        ("allow", "analyzer:rules"),
        ("ask", "analyzer:rules"),
    ]
    output = holdfast("show", str(tmp_path / "s.db")).stdout
    assert "  allowed: $ ls [low risk], by analyzer:rules: ls only reads" in output.splitlines()
    assert (
        "  high risk: rm deletes a path outside of the working directory: ../other"
        in output.splitlines()
    )
