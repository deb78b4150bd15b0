"""`--ask`: the agent asks the user at a real terminal, from another shell, without a terminal, and
on an agent server."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from tests.cli.test_commands import conversation_options, holdfast, options, terminal
from tests.cli.test_tell_command import background_command, state, tell
from tests.model_server import ModelServer, calls, text
from tests.waiting import until

ASK = calls(("ask_user", {"question": "Which colour?", "options": ["red", "green"], "timeout": 60}))


def store_options(folder: Path) -> list[str]:
    """Return the options for the conversation `one` in the store of the folder."""
    return conversation_options(folder / "s.db", "one")


def last_result(server: ModelServer) -> str:
    """Return the last tool result that the model received."""
    return server.requests[-1].messages[-1]["content"]


@pytest.mark.slow
def test_the_user_answers_at_the_terminal(tmp_path: Path) -> None:
    with (
        ModelServer([ASK, text("Green it is.")]) as server,
        terminal("chat", "--ask", *options(server, tmp_path), *store_options(tmp_path)) as typist,
    ):
        typist.sees("> ")
        typist.types("paint\r")
        typist.sees(
            r"ask_user asks: Which colour\?[\s\S]*1  red[\s\S]*2  green[\s\S]*Answer \(one of"
            r" these\): "
        )
        typist.types("2\r")
        typist.sees(r"Send this to ask_user\? \[y,n,e\] ")
        typist.types("y\r")
        typist.sees(r"Green it is\.[\s\S]*> ")
        typist.types("/exit\r")
        assert typist.leaves() == 0
        assert last_result(server) == "The user answers: green"


@pytest.mark.slow
def test_without_a_terminal_the_model_is_told_that_nobody_can_be_asked(tmp_path: Path) -> None:
    with ModelServer([ASK, text("Then red.")]) as server:
        ended = holdfast(
            "run", "paint", "--ask", *options(server, tmp_path), *store_options(tmp_path)
        )
        assert ended.returncode == 0, ended.stderr
        assert last_result(server).startswith("Nobody can be asked here")
        assert " --ask" in ended.stderr
    with SQLiteStore(tmp_path / "s.db", read_only=True) as store:
        assert not any(isinstance(event, ev.DecisionMade) for event in store.read("one"))


@pytest.mark.slow
def test_another_shell_answers_and_sends_what_is_seen_after_the_answer(tmp_path: Path) -> None:
    with (
        ModelServer([ASK, text("Red it is.")]) as server,
        terminal(
            "run", "paint", "--ask", *options(server, tmp_path), *store_options(tmp_path)
        ) as typist,
    ):
        typist.sees(r"Answer \(one of these\): ")
        assert tell(tmp_path, "send", "not too bright", "--wait", "20").returncode == 0
        assert state(tmp_path).pending_questions
        assert tell(tmp_path, "answer", '{"answer": "red"}', "--wait", "20").returncode == 0
        typist.sees(r"Red it is\.")
        assert typist.leaves() == 0
        last = server.requests[-1].messages
        assert [(one["role"], one["content"]) for one in last[-2:]] == [
            ("tool", "The user answers: red"),
            ("user", "not too bright"),
        ]


@pytest.mark.slow
def test_messages_from_another_shell_are_in_the_next_request_behind_the_results_of_what_runs(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    wait = [
        ("terminal", {"command": f"echo {number}; until [ -e {go} ]; do sleep 0.02; done"})
        for number in range(1)
    ]
    with (
        ModelServer([calls(*wait, ("list_files", {"path": "."})), text("Heard.")]) as server,
        background_command("run", "x", *options(server, tmp_path), *store_options(tmp_path)) as run,
    ):
        until(
            lambda: len(server.requests) == 1 and (tmp_path / "s.db").exists() and _runs(tmp_path)
        )
        for number in range(3):
            assert tell(tmp_path, "send", f"steer {number}", "--wait", "20").returncode == 0
        go.touch()
        out, _ = run.communicate(timeout=120)
        assert out.splitlines()[-1] == "Heard."
        roles = [
            (one["role"], one["content"])
            for one in server.requests[1].messages
            if one["role"] in ("user", "tool")
        ]
        assert [role for role, _ in roles] == ["user", "tool", "tool", "user", "user", "user"]
        assert [content for _, content in roles[-3:]] == ["steer 0", "steer 1", "steer 2"]


def _runs(folder: Path) -> bool:
    """Return whether the conversation has started a tool call."""
    from holdfast.errors import StoreError

    try:
        return any(isinstance(event, ev.ToolCallStarted) for event in state(folder).events)
    except StoreError:
        return False
