"""Questions of tool calls at a real terminal: a form, an address to visit and the name of the
asker. Also `tell answer`, `show`, and a command without a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from holdfast.conversation import ConversationState
from tests.cli import test_commands as test_cli
from tests.cli.test_commands import Typist, conversation_options, holdfast, options, terminal
from tests.model_server import ModelServer, calls, text
from tests.paths import REPO

REPO = REPO
FORM = """{
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "description": "As in your passport."},
        "size": {"type": "string", "enum": ["s", "m", "l"], "enumNames": ["small", "medium", "large"]},
        "count": {"type": "integer", "default": 3},
        "gift": {"type": "boolean"},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["bag", "card"]}},
        "pin": {"type": "string", "format": "password"},
    },
    "required": ["name", "size", "gift", "pin"],
}"""

# The command with an MCP server and with two tools that ask the user.
PROGRAM = f"""
import sys
import holdfast.cli.build as build
from holdfast import Agent, ToolContext
from holdfast.cli import main

FORM = {FORM}

def order(context: ToolContext) -> str:
    '''Orders.'''
    return f"got {{context.ask('What do you' + chr(10) + 'want?', FORM, asker='shop' + chr(27) + '[31m')}}"

def visit(context: ToolContext) -> str:
    '''Logs in.'''
    return f"got {{context.ask('Please log in.', url='https://login.example/x', asker='bank')}}"

def agent_in(place, llm, tools, settings, *more):
    servers = {{"srv": {{"command": sys.executable, "args": [{str(REPO / "tests/data/mcp_asking_server.py")!r}]}}}}
    return Agent(llm, [*tools, order, visit], mcp_servers=servers)

build.agent_in = agent_in
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def program(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(test_cli, "HOLDFAST", [sys.executable, str(path)])


def store_options(folder: Path) -> list[str]:
    """Return the options for the conversation `one` in the store of the folder."""
    return conversation_options(folder / "s.db", "one")


def decisions(folder: Path) -> list[ev.DecisionMade]:
    """Return the decision events of the conversation."""
    with SQLiteStore(folder / "s.db", read_only=True) as store:
        return [event for event in store.read("one") if isinstance(event, ev.DecisionMade)]


def last_result(server: ModelServer) -> str:
    """Return the last tool result that the model received."""
    return server.requests[-1].messages[-1]["content"]


@contextmanager
def chatting(server: ModelServer, folder: Path) -> Iterator[Typist]:
    """Start a chat and send it one message."""
    with terminal("chat", *options(server, folder), *store_options(folder)) as typist:
        typist.sees("> ")
        typist.types("go\r")
        yield typist


@pytest.mark.slow
def test_a_form_of_an_mcp_server_is_filled_in_field_by_field(tmp_path: Path) -> None:
    with (
        ModelServer([calls(("srv__ask", {"message": "Who are you?"})), text("Done.")]) as server,
        chatting(server, tmp_path) as typist,
    ):
        assert "srv receives the values that you fill in" in typist.sees(
            r"srv asks: Who are you\?[\s\S]*Name \(text\): "
        )
        typist.types("Ada\r")
        typist.sees(r'Colour \(text\) \["green"\]: ')
        typist.types("\r")
        assert '{"name": "Ada", "colour": "green"}' in typist.sees(r"Send this to srv\? \[y,n,e\] ")
        typist.types("y\r")
        typist.sees(r"Done\.[\s\S]*> ")
        typist.types("/exit\r")
        assert typist.leaves() == 0
        assert last_result(server) == "accept: name='Ada' colour='green'"


@pytest.mark.slow
def test_types_choices_defaults_and_secrets_are_asked_for_until_they_fit(tmp_path: Path) -> None:
    with (
        ModelServer([calls(("order", {})), text("Done.")]) as server,
        chatting(server, tmp_path) as typist,
    ):
        output = typist.sees(r"name \(text\): ")
        assert re.search(r"shop\S+ asks: What do you", output)
        assert "shop\x1b" not in output  # a name cannot control the terminal
        assert re.search(r"^\S*  want\?", output, re.MULTILINE)
        assert "As in your passport." in output
        for keys, then in [
            ("\r", r"name is required[\s\S]*name \(text\): "),
            ("A\r", r"too short[\s\S]*name \(text\): "),
            ("Ada\r", r"1  small \(\"s\"\)[\s\S]*size \(one of these\): "),
            ("7\r", r"not one of the choices[\s\S]*size \(one of these\): "),
            ("2\r", r"count \(whole number\) \[3\]: "),
            ("some\r", r"not a whole number[\s\S]*count .*: "),
            ("\r", r"gift \(y or n\): "),
            ("y\r", r"1  bag[\s\S]*extras \(several, separated by commas\) \[optional\]: "),
            ("1, card\r", r"pin \(secret\): "),
            ("planted-7a61\r", r"\{.*\"pin\": \"\*\*\*\"\}[\s\S]*\[y,n,e\] "),
            ("y\r", r"Done\.[\s\S]*> "),
        ]:
            typist.types(keys)
            typist.sees(then)
        typist.types("\x04")
        assert typist.leaves() == 0
        values = {
            "name": "Ada",
            "size": "m",
            "count": 3,
            "gift": True,
            "extras": ["bag", "card"],
            "pin": "planted-7a61",
        }
        assert last_result(server) == f"got {values}"
        assert decisions(tmp_path)[-1].arguments == {**values, "pin": "***"}
        assert "planted-7a61" not in typist.output


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["/decline\r", "\x04"])
def test_a_form_can_be_declined(tmp_path: Path, keys: str) -> None:
    with (
        ModelServer([calls(("order", {})), text("Done.")]) as server,
        chatting(server, tmp_path) as typist,
    ):
        typist.sees(r"name \(text\): ")
        typist.types(keys)
        typist.sees(r"declined[\s\S]*Done\.[\s\S]*> ")
        assert last_result(server) == "got None"


@pytest.mark.slow
def test_an_address_is_shown_with_who_asks_and_ctrl_c_pauses(tmp_path: Path) -> None:
    script = [calls(("visit", {})), calls(("visit", {})), text("Done.")]
    with ModelServer(script) as server, chatting(server, tmp_path) as typist:
        assert "if you trust bank" in typist.sees(
            r"bank asks: Please log in\.[\s\S]*https://login.example/x[\s\S]*\[y,n\] "
        )
        typist.types("\x03")
        typist.sees(r"paused[\s\S]*> ")
        typist.types("\r")
        typist.sees(r"bank asks[\s\S]*\[y,n\] ")
        typist.types("y\r")
        typist.sees(r"Done\.[\s\S]*> ")
        assert last_result(server) == "got {}"


@pytest.mark.slow
def test_another_shell_answers_and_show_tells_of_it(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")

    def tell(*words: str) -> subprocess.CompletedProcess[str]:
        return holdfast("tell", store, "one", *words)

    with (
        ModelServer([calls(("order", {})), text("Done.")]) as server,
        chatting(server, tmp_path) as typist,
    ):
        typist.sees(r"name \(text\): ")
        with SQLiteStore(store, read_only=True) as reader:
            [(_, question)] = ConversationState("one", reader.read("one")).pending_questions
        history = holdfast("show", store)
        assert f"asks you: {question.id} What do you" in history.stdout
        assert "with a form: name, size, count, gift, extras, pin" in history.stdout
        assert f"tell {store} one answer '{question.id}' JSON" in history.stderr
        refused = tell("answer", question.id, '{"name": "Ada"}')
        assert (refused.returncode, "size is required" in refused.stderr) == (2, True)
        assert "not a question's id" in tell("answer", "4.0", "{}").stderr
        values = '{"name": "Ada", "size": "l", "gift": false, "pin": "planted-7a61"}'
        answered = tell("answer", values, "--wait", "20")
        assert (answered.returncode, answered.stdout.split("\n")[0]) == (
            0,
            f"posted: answer {question.id}",
        )
        typist.sees(r"The question no longer waits for an answer[\s\S]*> ")
        assert "'size': 'l'" in last_result(server)
        late = tell("decline", "later")
        assert (late.returncode, "asks a question" in late.stderr) == (2, True)
    history = holdfast("show", store)
    assert "asks: What do you" in history.stdout
    assert (
        'answered by user: {"name":"Ada","size":"l","count":3,"gift":false,"pin":"***"}'
        in history.stdout
    )


@pytest.mark.slow
def test_without_a_terminal_every_question_is_declined(tmp_path: Path) -> None:
    with ModelServer([calls(("order", {})), text("Done.")]) as server:
        ended = holdfast("run", "go", *options(server, tmp_path), *store_options(tmp_path))
        assert ended.returncode == 0, ended.stderr
        assert last_result(server) == "got None"
    assert decisions(tmp_path) == []


@pytest.mark.slow
def test_run_asks_on_a_terminal(tmp_path: Path) -> None:
    with ModelServer([calls(("visit", {})), text("Done.")]) as server:
        with terminal("run", "go", *options(server, tmp_path)) as typist:
            typist.sees(r"\[y,n\] ")
            typist.types("n\r")
            typist.sees("Done")
            assert typist.leaves() == 0
        assert last_result(server) == "got None"
