"""`holdfast run --json` and `--quiet`, completion scripts in real shells, `--continue`, and unknown
ids."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import SQLiteStore
from tests.cli.test_commands import HOLDFAST, command, holdfast, options
from tests.model_server import ModelServer, text

pytestmark = pytest.mark.slow


def lines(output: str) -> list[dict[str, Any]]:
    """Decode each line of the output as JSON."""
    return [json.loads(line) for line in output.splitlines()]


def test_json_is_the_journal_and_a_result(tmp_path: Path) -> None:
    with ModelServer([command("echo hi"), text("Say \x1b[31mhi.")]) as server:
        store_options = ["--store", str(tmp_path / "s.db")]
        ended = holdfast("run", "greet", "--json", *options(server, tmp_path), *store_options)
    assert (ended.returncode, ended.stderr) == (0, "")
    *events, result = lines(ended.stdout)
    with SQLiteStore(tmp_path / "s.db", read_only=True) as store:
        (one,) = store.list()
        journal = [json.loads(event.to_json()) for event in store.read(one.id)]
    assert [event["type"] for event in events] == [event["type"] for event in journal]
    assert events == journal
    assert "\x1b" not in ended.stdout
    assert result["type"] == "result"
    assert (result["id"], result["status"], result["exit_code"]) == (one.id, "finished", 0)
    assert result["answer"] == "Say \x1b[31mhi."
    assert (result["steps"], result["error"], result["waiting"]) == (2, None, [])
    assert result["usage"]["input_tokens"] == 20  # ten for each of two answers


def test_json_tells_of_calls_that_wait_and_of_errors(tmp_path: Path) -> None:
    with ModelServer([command("echo hi"), (401, {}, {"error": {"message": "no"}})]) as server:
        arguments = ["--json", *options(server, tmp_path), "--retries", "1"]
        waits = holdfast("run", "greet", "--confirm", "terminal", *arguments)
        fails = holdfast("run", "greet", *arguments)
    result = lines(waits.stdout)[-1]
    assert (waits.returncode, result["exit_code"]) == (3, 3)
    assert result["status"] == "waiting_for_confirmation"
    (call,) = result["waiting"]
    assert (call["name"], call["arguments"]) == ("terminal", {"command": "echo hi"})
    result = lines(fails.stdout)[-1]
    assert (fails.returncode, result["status"]) == (1, "error")
    assert "401" in result["error"]["message"]
    assert fails.stderr.count("\n") == 1


def test_quiet_is_the_answer_alone(tmp_path: Path) -> None:
    with ModelServer([command("echo hi"), text("Forty-two.\n")]) as server:
        ended = holdfast("run", "count", "--quiet", *options(server, tmp_path))
        both = holdfast("run", "count", "--quiet", "--json", *options(server, tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Forty-two.\n\n", "")
    assert both.returncode == 2
    assert "give one of them" in both.stderr


def test_an_unknown_id_is_refused_and_continue_takes_the_latest(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "s.db")]
    with ModelServer([text("One."), text("Two."), text("Three.")]) as server:
        arguments = [*options(server, tmp_path), *store]
        nothing = holdfast("run", "hi", "--continue", *arguments)
        assert (nothing.returncode, "s.db" in nothing.stderr) == (2, True)
        assert not (tmp_path / "s.db").exists()
        SQLiteStore(tmp_path / "s.db").close()
        nothing = holdfast("run", "hi", "--continue", *arguments)
        assert (nothing.returncode, "no conversation" in nothing.stderr) == (2, True)
        refused = holdfast("run", "hi", "--id", "typo", *arguments)
        assert (refused.returncode, "--new --id typo" in refused.stderr) == (2, True)
        for id in ("first", "second"):
            assert holdfast("run", "hi", "--new", "--id", id, *arguments).returncode == 0
        assert holdfast("run", "more", "--continue", *arguments).returncode == 0
        assert len(server.requests) == 3
    with SQLiteStore(tmp_path / "s.db", read_only=True) as opened:
        steps = {one.id: one.last_seq for one in opened.list()}
    assert set(steps) == {"first", "second"}
    assert steps["second"] > steps["first"]


@pytest.mark.parametrize(
    ("words", "near"), [(["rnu", "x"], "did you mean run?"), (["nothing"], "the commands are run,")]
)
def test_a_mistyped_command_is_named(words: list[str], near: str) -> None:
    ended = holdfast(*words)
    assert (ended.returncode, near in ended.stderr) == (2, True)
    assert ended.stderr.count("\n") == 1


def complete_in_bash(script: Path, *words: str) -> list[str]:
    """Return the completions that bash offers for the words."""
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _holdfast;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-c", program, "bash", str(script), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not ended.stderr
    return ended.stdout.split()


def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    script = tmp_path / "holdfast.bash"
    script.write_text(holdfast("completion", "bash").stdout)
    assert complete_in_bash(script, "holdfast", "sh") == ["show"]
    assert complete_in_bash(script, "holdfast", "run", "--quie") == ["--quiet"]
    assert complete_in_bash(script, "holdfast", "run", "--sandbox", "r") == ["require"]
    assert "--quiet" not in complete_in_bash(script, "holdfast", "chat", "--")
    assert complete_in_bash(script, "holdfast", "run", "file") == []  # bash completes files itself


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_scripts(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(holdfast("completion", shell).stdout)
    subprocess.run([shell, "-n", str(script)], check=True)


def test_chat_needs_prompt_toolkit_for_its_box_alone(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['prompt_toolkit'] = None; sys.modules['rich'] = None;"
        " from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    assert HOLDFAST
    with ModelServer([text("Hi.")]) as server:
        ended = subprocess.run(
            [sys.executable, "-c", program, "chat", *options(server, tmp_path)],
            input="hello\n",
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ended.returncode, "Hi." in ended.stdout) == (0, True), ended.stderr
