"""`--plan`: the plan at a real terminal, in a pipe and in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConversationState, SQLiteStore
from holdfast.agent.planning import FIRST_PROMPT, MAKE, TOOL_PROMPT
from holdfast.cli import main
from tests.agent.test_planning import plan, plan_marks
from tests.cli.test_commands import command, holdfast, options, stream_bodies, terminal
from tests.cli.test_confirm_command import decisions, store_options
from tests.model_server import ModelServer, calls, text

PROMPT = r"\[y,n,e,q\] "


def plan_call(*words: str) -> dict[str, Any]:
    """Return an answer that calls the plan tool with these steps."""
    return calls(plan(*words))


def state(folder: Path) -> ConversationState:
    """Return the state of the conversation `one`."""
    with SQLiteStore(folder / "s.db", read_only=True) as store:
        return ConversationState("one", store.read("one"))


@pytest.mark.slow
def test_a_plan_is_drawn_as_it_changes_in_a_pipe_and_shown_at_the_end(tmp_path: Path) -> None:
    answers = [plan_call("Read it!", "Fix it"), plan_call("Read it.", "Fix it!"), text("Done.")]
    with ModelServer(answers) as server:
        ended = holdfast("run", "x", "--plan", *options(server, tmp_path), *store_options(tmp_path))
        assert TOOL_PROMPT in str(server.requests[0].messages[0])
    assert ended.returncode == 0, ended.stderr
    block = [
        "plan: 0 of 2 steps done",
        "  [>] 1. Read it",
        "  [ ] 2. Fix it",
        "plan: 1 of 2 steps done",
        "  [x] 1. Read it",
        "  [>] 2. Fix it",
    ]
    assert [line for line in ended.stdout.splitlines() if line.startswith(("plan", "  ["))] == block
    assert "\x1b" not in ended.stdout
    assert f"--store {tmp_path}/s.db --id one --model m --base-url" in ended.stderr
    assert "--plan tool" in ended.stderr
    output_lines = holdfast("show", str(tmp_path / "s.db"), "one").stdout.splitlines()
    assert output_lines[-5:-1] == [
        "plan: 1 of 2 steps done",
        "  [x] 1. Read it",
        "  [>] 2. Fix it",
        "",
    ]
    lines = [
        json.loads(line)
        for line in holdfast("show", str(tmp_path / "s.db"), "one", "--json").stdout.splitlines()
    ]
    [*_, last] = [line["result"] for line in lines if line["type"] == "toolResult"]
    assert last["meta"] == {"holdfast/plan": True}
    assert last["structuredContent"]["steps"][1] == {"step": "Fix it", "state": "in_progress"}


@pytest.mark.slow
def test_without_a_terminal_a_plan_that_waits_is_drawn_and_can_be_approved(tmp_path: Path) -> None:
    with ModelServer(
        [command("touch early"), plan_call("Touch it"), command("touch late"), text("Done.")]
    ) as server:
        ended = holdfast(
            "run", "x", "--plan", "first", *options(server, tmp_path), *store_options(tmp_path)
        )
        assert FIRST_PROMPT in str(server.requests[0].messages[0])
        assert (ended.returncode, (tmp_path / "early").exists()) == (3, False)
        assert "plan: 0 of 1 steps done\n  [ ] 1. Touch it\n" in ended.stdout
        assert MAKE in ended.stdout
        assert '"steps"' not in ended.stdout + ended.stderr
        output = holdfast("show", str(tmp_path / "s.db"), "one").stdout
        assert "a plan\nplan: 0 of 1 steps done\n  [ ] 1. Touch it\n" in output
        assert holdfast("tell", str(tmp_path / "s.db"), "one", "approve").returncode == 0
        again = holdfast(
            "chat", "--plan", "first", *options(server, tmp_path), *store_options(tmp_path)
        )
        assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "Done.")
    assert (tmp_path / "late").exists()


@pytest.mark.slow
def test_at_a_terminal_a_plan_is_changed_rejected_and_approved(tmp_path: Path) -> None:
    answers = stream_bodies(
        plan_call("Touch a", "Touch b"),
        plan_call("Touch c", "Touch d"),
        command("touch late"),
        plan_call("Touch C.", "e"),
        text("Done."),
    )
    with ModelServer(answers) as server:
        with terminal(
            "run", "x", "--plan", "first", *options(server, tmp_path), *store_options(tmp_path)
        ) as typist:
            output = typist.sees(PROMPT)
            assert "Approve this plan? the plan is to be approved" in output
            assert "[ ] 1. Touch a" in output
            assert (
                "[y] approve this plan, [n] reject it, [e] change its steps, [q] leave it waiting"
                in output
            )
            assert '"steps"' not in output
            typist.types("n\r")
            typist.sees("Why")
            typist.types("Other letters.\r")
            typist.sees("Touch c")
            typist.sees(PROMPT)
            typist.types("a\r")
            typist.sees("Unknown answer")
            typist.sees(PROMPT)
            typist.types("e\r")
            typist.sees("Enter: done")
            typist.sees("Change")
            typist.types("1 Touch C\r")
            typist.sees(r"\[ \] 1. Touch C")
            typist.sees("Change")
            typist.types("7 no\r")
            typist.sees("There is no step 7")
            typist.types("-2\r")
            typist.sees("plan: 0 of 1 steps done")
            typist.sees("Change")
            typist.types("\r")
            typist.sees(PROMPT)
            typist.types("y\r")
            output = typist.sees("the plan has other steps than the one that was approved")
            assert "touch late" in output
            typist.sees(r"\[ \] 2. e")
            typist.sees(PROMPT)
            typist.types("y\r")
            typist.sees("Done.")
            assert typist.leaves() == 0
        assert "Other letters." in str(server.requests[1].messages)
    assert (tmp_path / "late").exists()
    assert plan_marks(state(tmp_path)) == ["Touch C.", "e"]
    assert [(decision, by) for decision, by, _ in decisions(tmp_path)] == [
        ("ask", "planning"),
        ("reject", "user"),
        ("ask", "planning"),
        ("approve", "user"),
        ("ask", "planning"),
        ("approve", "user"),
    ]


@pytest.mark.slow
def test_going_on_with_a_conversation_shows_what_is_left_of_its_plan(tmp_path: Path) -> None:
    with ModelServer([plan_call("Read it.", "Fix it!"), text("Half."), text("More.")]) as server:
        holdfast("run", "x", "--plan", *options(server, tmp_path), *store_options(tmp_path))
        ended = holdfast(
            "chat", "--plan", *options(server, tmp_path), *store_options(tmp_path), stdin="go on\n"
        )
    assert ended.stdout.startswith("plan: 1 of 2 steps done\n  [x] 1. Read it\n  [>] 2. Fix it\n")


def test_what_the_option_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--plan", "Fix it", "--workdir", str(tmp_path)]) == 2
    assert (
        "--plan: takes no value or the word first, not 'Fix it'; write the task before --plan"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_on_a_server_a_plan_waits_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", reason="the server extra is not installed")
    from tests.cli import test_remote_command as remote

    for name, value in remote.env().items():
        monkeypatch.setenv(name, value)
    answers = [
        command("touch early"),
        plan_call("Touch it"),
        command("touch late; ls"),
        plan_call("Touch it."),
        text("Done."),
    ]
    with ModelServer(answers) as model, remote.AgentServer(tmp_path) as server:
        arguments = remote.options(server, model, "one")
        ended = remote.run_in_process("run", "x", "--plan", "first", *arguments)
        assert (ended.returncode, "[ ] 1. Touch it" in ended.stdout) == (3, True)
        arguments.remove("--new")
        again = remote.run_in_process("chat", "--plan", *arguments)
        assert (
            again.returncode,
            "--plan is for a new conversation; 'one' keeps its own setting" in again.stderr,
        ) == (2, True)
        assert (
            remote.run_in_process(
                "tell", "--server", server.url, "one", "approve", "--wait", "20"
            ).returncode
            == 0
        )
        output = remote.run_in_process(
            "show", "--server", server.url, "one", "--follow", "--until-rest"
        ).stdout
    assert [line for line in output.splitlines() if line.startswith("plan:")][
        -1
    ] == "plan: 1 of 1 steps done"
    assert "late" in output
    assert "early\n" not in output.replace("touch early\n", "")


@pytest.mark.slow
def test_a_run_goes_on_until_its_goal_is_reached(tmp_path: Path) -> None:
    script = [text("Done."), command("echo x > report"), text("Now it is.")]
    with ModelServer(script) as server:
        place = ("run", "write the report", *options(server, tmp_path), "--confirm", "never")
        ended = holdfast(*place, "--goal", "There is a report.", "--goal-check", "cat report")
        assert "There is a report." in server.requests[0].messages[0]["content"]
    assert ended.returncode == 0, ended.stderr
    assert "Now it is." in ended.stdout
    assert "ended with the exit code 1" in ended.stdout + ended.stderr
    with ModelServer([text("Done.")] * 9) as server:
        place = ("run", "go", *options(server, tmp_path), "--confirm", "never")
        missed = holdfast(*place, "--goal-check", "false")
    assert missed.returncode != 0
