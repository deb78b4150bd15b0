"""`holdfast chat` with its input box, on an emulated terminal screen (pyte)."""

from __future__ import annotations

import json
import os
import re
import select
import stat
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from tests.cli.test_agents_command import agents
from tests.cli.test_commands import Typist, command, options, terminal
from tests.model_server import ModelServer, Request, Stall, Stream, calls, sse, text
from tests.waiting import until

pyte = pytest.importorskip("pyte")
pytest.importorskip("prompt_toolkit")
pytest.importorskip("rich")

pytestmark = pytest.mark.slow

MARKDOWN = """# Results

Some **bold** words, and [a link](https://example.org/x).

| name | size |
|------|------|
| a.py | 12   |

```python
def f():

    return 1
```

1. one

2. two
"""


class Screen:
    """The screen of a terminal and its keyboard."""

    def __init__(self, typist: Typist) -> None:
        self.typist = typist
        self._screen = pyte.HistoryScreen(100, 30, history=500)
        self._screen.write_process_input = typist.types  # replies to cursor position requests
        self._stream = pyte.Stream(self._screen)
        self._fed = 0

    def rows(self) -> list[list[Any]]:
        """Return the cells of all rows, including those that have scrolled off the screen."""
        self._stream.feed(self.typist.output[self._fed :])
        self._fed = len(self.typist.output)
        above, visible = self._screen.history.top, self._screen.buffer
        return [
            [row[at] for at in range(100)] for row in [*above, *map(visible.__getitem__, range(30))]
        ]

    @property
    def lines(self) -> list[str]:
        """Return the text of each row that is not empty."""
        lines = ["".join(cell.data for cell in row).rstrip() for row in self.rows()]
        return [line for line in lines if line]

    def shows(self, pattern: str, within: float = 60.0) -> list[str]:
        """Wait until the screen matches the pattern, and return its lines."""
        until = time.monotonic() + within
        while not re.search(pattern, "\n".join(self.lines)):
            if time.monotonic() > until or not self.typist._read(until - time.monotonic()):
                raise AssertionError(f"{pattern!r} is not on the screen: " + "\n".join(self.lines))
        return self.lines

    def types(self, keys: str) -> None:
        self.typist.types(keys)


@contextmanager
def chat(server: ModelServer, folder: Path, *more: str) -> Iterator[Screen]:
    """Start a chat with the input box, and wait until it is ready."""
    arguments = [*options(server, folder), "--store", str(folder / "s.db"), "--no-undo", *more]
    env = {"HOLDFAST_PLAIN": "", "HOME": str(folder / "home"), "XDG_STATE_HOME": ""}
    with terminal("chat", *arguments, **env) as typist:
        screen = Screen(typist)
        screen.shows(r"(?m)^>$")
        screen.shows(r"\| no sandbox$|…$")
        yield screen


@contextmanager
def starting(server: ModelServer, folder: Path, *more: str) -> Iterator[Screen]:
    """Start a chat that shows its prompt and waits for its attachment. `finish_start` writes the
    attachment."""
    os.mkfifo(folder / "file.txt")
    arguments = [*options(server, folder), "--no-undo", "--attach", str(folder / "file.txt"), *more]
    env = {"HOLDFAST_PLAIN": "", "HOME": str(folder / "home"), "XDG_STATE_HOME": ""}
    with terminal("chat", *arguments, **env) as typist:
        screen = Screen(typist)
        screen.shows(r"(?m)^>$(?s:.*)starting")
        yield screen


def finish_start(folder: Path) -> None:
    """Write the attachment that a chat of `starting` waits for."""
    (folder / "file.txt").write_text("attached")


def leaves(screen: Screen) -> int:
    """Press Ctrl-D and return the exit code."""
    screen.types("\x04")
    return screen.typist.leaves()


def user_messages(folder: Path) -> list[str]:
    """Return the texts of the user's messages in the only conversation of the store."""
    with SQLiteStore(folder / "s.db", read_only=True) as store:
        (one,) = store.list()
        return [
            event.text
            for event in store.read(one.id)
            if isinstance(event, ev.MessageAdded) and event.sender == "user"
        ]


def answer_stream(content: str, delay: float = 0.0) -> Stream:
    """Return an event stream that pauses for `delay` seconds between its events."""
    pieces = [f"{piece}\n\n" for piece in sse(text(content)).split("\n\n") if piece]
    return Stream([piece.encode() for piece in pieces], delay)


def test_a_pasted_text_of_several_lines_is_one_message(tmp_path: Path) -> None:
    with ModelServer([text("Read.")]) as server, chat(server, tmp_path) as screen:
        screen.types("\x1b[200~first line\nsecond line\nthird\x1b[201~")
        screen.shows(r"> first line\n  second line\n  third")
        assert not server.requests
        screen.types("\r")
        screen.shows(r"Read\.")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == ["first line\nsecond line\nthird"]


def test_a_long_pasted_text_is_sent_whole_and_shown_in_part(tmp_path: Path) -> None:
    pasted = "\n".join(f"line {number}" for number in range(1, 201))
    with ModelServer([text("Read.")]) as server, chat(server, tmp_path) as screen:
        screen.types(f"\x1b[200~{pasted}\x1b[201~")
        screen.shows(r"line 200")
        screen.types("\r")
        screen.shows(r"Read\.")
        screen.shows(r"  line 19\n  … \(181 more lines\)\n")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == [pasted]


SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "prompt_toolkit":
            time.sleep(1)

sys.meta_path.insert(0, Slow())
"""

WORK = "holdfast.cli.talk"  # a module that loads while the user types


def test_a_message_entered_before_the_box_is_there_is_sent(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    env = {"HOLDFAST_PLAIN": "", "HOME": str(tmp_path / "home"), "XDG_STATE_HOME": ""}
    env["PYTHONPATH"] = str(tmp_path / "slow")
    with ModelServer([text("Read.")]) as server:
        arguments = [*options(server, tmp_path), "--store", str(tmp_path / "s.db"), "--no-undo"]
        with terminal("chat", *arguments, **env) as typist:
            before = termios.tcgetattr(typist.master)
            until(lambda: not termios.tcgetattr(typist.master)[0] & termios.ICRNL, "keys are kept")
            # The input box is not there yet.
            assert not select.select([typist.master], [], [], 0)[0]
            typist.types("hello\r")
            screen = Screen(typist)
            screen.shows(r"Read\.")
            assert leaves(screen) == 0
            assert termios.tcgetattr(typist.master) == before
    assert user_messages(tmp_path) == ["hello"]


def test_what_was_typed_before_a_start_that_fails_is_shown(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW.replace("prompt_toolkit", WORK))
    env = {"HOLDFAST_PLAIN": "", "HOME": str(tmp_path / "home"), "XDG_STATE_HOME": ""}
    env |= {"PYTHONPATH": str(tmp_path / "slow"), "COLUMNS": "80"}
    with terminal("chat", "--model", "m", "--store", str(tmp_path), **env) as typist:
        screen = Screen(typist)
        screen.shows(r"(?m)^>$")
        screen.types("a long message\rand another")
        screen.shows(r"Not sent: a long message\n")
        screen.shows(r"Not sent: and another\n")
        screen.shows(r"holdfast: ")
        assert typist.leaves() != 0


@pytest.mark.parametrize("newline", ["\n", "\x1b\r", "\\\r"])
def test_three_keys_begin_a_line_of_the_same_message(tmp_path: Path, newline: str) -> None:
    with ModelServer([text("Read.")]) as server, chat(server, tmp_path) as screen:
        screen.types(f"one{newline}two\r")
        screen.shows(r"Read\.")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == ["one\ntwo"]


def test_markdown_is_rendered_as_it_streams_and_addresses_stay_visible(tmp_path: Path) -> None:
    with (
        ModelServer([answer_stream(MARKDOWN, 0.002)]) as server,
        chat(server, tmp_path) as screen,
    ):
        screen.types("show me\r")
        screen_text = "\n".join(screen.shows(r"2 two"))
        assert "Some bold words, and a link (https://example.org/x)." in screen_text
        assert "**" not in screen_text
        assert "```" not in screen_text
        assert re.search(r"name +size", screen_text)
        assert re.search(
            r"def f\(\):\n +return 1", screen_text
        )  # the blank line did not end the block
        assert re.search(r"1 one\n", screen_text)
        assert screen_text.count("Results") == 1
        assert leaves(screen) == 0


def test_what_is_typed_while_output_comes_is_not_mixed_with_it(tmp_path: Path) -> None:
    words = " ".join(f"word{n}" for n in range(60))
    with (
        ModelServer([answer_stream(words, 0.02), text("Then this.")]) as server,
        chat(server, tmp_path) as screen,
    ):
        screen.types("go\r")
        screen.shows(r"word3")
        for key in "a draft":
            screen.types(key)
            time.sleep(0.05)
        screen.shows(r"(?m)^> a draft$")
        lines = screen.shows(r"word59")
        assert words in " ".join(line.strip() for line in lines)  # complete and in order
        screen.shows(r"(?m)^> a draft$")
        screen.types("\r")
        screen.shows(r"Then this\.")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == ["go", "a draft"]


def test_a_message_entered_while_a_command_runs_reaches_the_next_step(tmp_path: Path) -> None:
    answers = [command("until [ -e go ]; do sleep 0.02; done; echo ran"), text("Understood.")]
    with ModelServer(answers) as server, chat(server, tmp_path) as screen:
        screen.types("start\r")
        screen.shows(r"until \[ -e go")
        screen.types("also this\r")
        screen.shows(r"> also this")
        until = time.monotonic() + 60
        while len(user_messages(tmp_path)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        (tmp_path / "go").touch()
        screen.shows(r"Understood\.")
        contents = [message["content"] for message in server.requests[1].messages]
        assert "also this" in json.dumps(contents)
        assert leaves(screen) == 0


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_escape_and_control_c_stop_the_agent_and_enter_continues(tmp_path: Path, key: str) -> None:
    with (
        ModelServer([Stall(30), text("Again.")]) as server,
        chat(server, tmp_path) as screen,
    ):
        screen.types("begin\r")
        screen.shows(r"thinking")
        until(lambda: server.requests, "the request that stalls")
        screen.types("kept draft")
        screen.shows(r"> kept draft")
        screen.types(key)
        screen.shows(r"paused: Enter continues")
        screen.shows(r"(?m)^> kept draft$")  # the keys stop the agent and keep the draft
        screen.types("\x15\r")
        screen.shows(r"Again\.")
        assert leaves(screen) == 0


def test_a_question_sets_a_draft_aside_and_gives_it_back(tmp_path: Path) -> None:
    ask = calls(("ask_user", {"question": "Which colour?", "timeout": 60}))
    with (
        ModelServer([Stall(0.7), ask, text("Green it is."), text("Done.")]) as server,
        chat(server, tmp_path, "--ask") as screen,
    ):
        screen.types("paint\r")
        screen.types("a dra")
        screen.shows(r"asks: Which colour\?")
        screen.shows(r"(?m)Answer.*: *$")
        screen.types("green\r")
        screen.shows(r"Send this to ask_user\? \[y,n,e\]")
        screen.types("y\r")
        screen.shows(r"Green it is\.")
        screen.shows(r"(?m)^> a dra$")
        screen.types("ft\r")
        screen.shows(r"Done\.")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == ["paint", "a draft"]
    history = (tmp_path / "home/.local/state/holdfast/chat_history").read_text()
    assert "+a draft" in history
    assert "green" not in history
    assert "+a dra\n" not in history  # the draft had not been sent at that time


def test_calls_are_approved_in_the_box_and_edited_arguments_are_prefilled(tmp_path: Path) -> None:
    with (
        ModelServer([command("echo one > f"), text("Written.")]) as server,
        chat(server, tmp_path, "--confirm", "terminal") as screen,
    ):
        screen.types("write\r")
        screen.shows(r"(?m)^\[y,n,e,a,q\]")
        screen.types("e\r")
        screen.shows(r'Arguments \(empty: back\): \{"command": "echo one > f"')
        screen.types("\x01\x0b" + '{"command": "echo two > f"}' + "\r")
        screen.shows(r"Written\.")
        assert leaves(screen) == 0
    assert (tmp_path / "f").read_text() == "two\n"


def test_a_sub_agents_question_and_call_are_asked_in_the_box(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        results = [one["content"] for one in request.messages if one["role"] == "tool"]
        if "You are the worker." in str(request.messages[0]["content"]):
            ask = calls(("ask_user", {"question": "Which colour?"}))
            steps = [ask, command("echo one > f"), text(f"Learnt: {results[:1]}")]
            reply = steps[len(results)]
        elif results:
            reply = text(f"The worker ended. {results[-1]}")
        else:
            reply = calls(("delegate", {"agent": "worker", "task": "Paint."}))
        return sse(reply) if request.json.get("stream") else reply

    team = agents(tmp_path, "ask_user, terminal")
    with (
        ModelServer(answer) as server,
        chat(server, tmp_path, "--ask", "--confirm", "terminal", *team) as screen,
    ):
        screen.types("paint\r")
        screen.shows(r"The sub-agent \S+ asks you:(?s:.*)ask_user asks: Which colour\?")
        screen.shows(r"(?m)Answer.*: *$")
        screen.types("green\r")
        screen.shows(r"Send this to ask_user\? \[y,n,e\]")
        screen.types("y\r")
        screen.shows(r"The sub-agent \S+ waits for you:(?s:.*)\$ echo one > f")
        screen.shows(r"(?m)^\[y,n,e,a,q\]")
        screen.types("y\r")
        screen.shows(r"The worker ended\.(?s:.*)green")
        assert leaves(screen) == 0
    assert (tmp_path / "f").read_text() == "one\n"


def test_commands_files_and_models_are_completed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "report.txt").touch()
    with ModelServer([text("Read.")]) as server, chat(server, tmp_path) as screen:
        screen.types("/det")
        screen.shows(r"/detach +attach nothing after all")
        screen.types("\t\r")
        screen.shows(r"Nothing is attached")
        screen.types("see @folder/re")
        screen.shows(r"report\.txt")
        screen.types("\t")
        screen.shows(r"> see @folder/report\.txt")
        screen.types("\r now\r")
        screen.shows(r"Read\.")
        screen.types("/modl\r")
        screen.shows(r"Unknown command /modl\. Did you mean /model\?")
        assert leaves(screen) == 0
    assert user_messages(tmp_path) == ["see @folder/report.txt now"]


def test_the_history_is_private_and_comes_back(tmp_path: Path) -> None:
    with ModelServer([text("One."), text("Two.")]) as server:
        with chat(server, tmp_path, "--id", "h", "--new") as screen:
            screen.types("the first message\r")
            screen.shows(r"One\.")
            assert leaves(screen) == 0
        history = tmp_path / "home/.local/state/holdfast/chat_history"
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        with chat(server, tmp_path, "--id", "h") as screen:
            screen_text = "\n".join(screen.lines)
            assert "the first message" in screen_text  # the last turn
            assert "One." in screen_text
            screen.types("\x1b[A")
            screen.shows(r"(?m)^> the first message$")
            screen.types("\r")
            screen.shows(r"Two\.")
            assert leaves(screen) == 0


def test_a_fork_goes_on_and_the_original_stays(tmp_path: Path) -> None:
    with ModelServer([text("One."), text("Two.")]) as server, chat(server, tmp_path) as screen:
        screen.types("first\r")
        screen.shows(r"One\.")
        screen.types("/fork\r")
        screen.shows(r"stays unchanged")
        screen.types("second\r")
        screen.shows(r"Two\.")
        assert leaves(screen) == 0
    with SQLiteStore(tmp_path / "s.db", read_only=True) as store:
        texts: list[Any] = [
            [e.text for e in store.read(one.id) if isinstance(e, ev.MessageAdded)]
            for one in store.list()
        ]
    assert sorted(texts) == [["first"], ["first", "second"]]


def test_a_killed_terminal_ends_the_chat_and_keeps_the_conversation(tmp_path: Path) -> None:
    with ModelServer([text("One.")]) as server, chat(server, tmp_path) as screen:
        screen.types("first\r")
        screen.shows(r"One\.")
        screen.typist.process.terminate()
        assert screen.typist.leaves() == 143
    assert user_messages(tmp_path) == ["first"]


def test_what_is_typed_while_the_chat_starts_is_the_first_message(tmp_path: Path) -> None:
    with ModelServer([text("Hello.")]) as server, starting(server, tmp_path) as screen:
        screen.types("hi\r")
        screen.shows(r"> hi\n")
        finish_start(tmp_path)
        screen.shows(r"Hello\.")
        assert "\n".join(screen.lines).count("> hi") == 1
        assert leaves(screen) == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_a_chat_that_starts_can_be_left(tmp_path: Path, key: str) -> None:
    with ModelServer([]) as server, starting(server, tmp_path) as screen:
        screen.types(key)
        if key == "\x03":
            screen.shows("leaving")
        finish_start(tmp_path)
        assert screen.typist.leaves() == 0


def test_a_chat_that_cannot_start_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with ModelServer([]) as server, starting(server, tmp_path, "--id", "x") as screen:
        assert not termios.tcgetattr(screen.typist.master)[3] & termios.ECHO
        finish_start(tmp_path)
        assert screen.typist.leaves() == 2
        assert termios.tcgetattr(screen.typist.master)[3] & termios.ECHO
        assert screen.lines[0].startswith("holdfast: --id names a conversation in a store")
        assert not any(line.startswith((">", "starting")) for line in screen.lines)
