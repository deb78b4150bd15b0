"""A store whose -wal was removed: opening or checking it reports the loss of acknowledged
events."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool
from holdfast.cli import main
from holdfast.errors import StoreError
from holdfast.store.check import check
from tests import forks

PROGRAM = """
import os, signal, sys
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
store = SQLiteStore(sys.argv[1])
conversation = Conversation(Agent(ScriptedLLM(["one", "two"])), store, "a")
conversation.send_message("hello")
conversation.run()
{rest}
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_kill(path: Path, rest: str = "") -> None:
    """Run a conversation in a process that is killed."""
    ended = forks.run(
        [sys.executable, "-c", PROGRAM.format(rest=rest), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr


def lose(path: Path) -> None:
    """Remove the -wal and its index."""
    Path(f"{path}-wal").unlink()
    Path(f"{path}-shm").unlink(missing_ok=True)


def owners(path: Path) -> list[Path]:
    return sorted(Path(f"{path}-owners").iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a conversation that was closed cleanly."""
    path = tmp_path / "store.db"
    with (
        SQLiteStore(path) as store,
        Conversation(Agent(ScriptedLLM(["zero"])), store, "a") as conversation,
    ):
        conversation.send_message("first")
        conversation.run()
    return path


@pytest.mark.slow
def test_a_killed_process_whose_log_stays_loses_nothing(path: Path) -> None:
    run_and_kill(path)
    assert check(path).sound
    with SQLiteStore(path) as store:
        assert len(store.read("a")) > 6


@pytest.mark.slow
def test_a_lost_log_is_told_by_check_and_keeps_a_store_from_being_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_and_kill(path)
    backup = path.with_name("kept-wal")
    shutil.copy(f"{path}-wal", backup)
    lose(path)
    report = check(path)
    assert not report.sound
    (problem,) = report.problems
    assert "-wal" in problem
    assert "conversation 'a'" in problem
    (owner,) = owners(path)
    with pytest.raises(StoreError, match="-wal") as caught:
        SQLiteStore(path)
    assert str(owner) in str(caught.value)
    with caplog.at_level(logging.WARNING, "holdfast"), SQLiteStore(path, read_only=True) as store:
        assert store.read("a")
    assert "-wal" in caplog.text
    shutil.move(backup, f"{path}-wal")  # nothing was written, so it fits again
    with SQLiteStore(path) as store:
        assert len(store.read("a")) > 6
    assert check(path).sound


@pytest.mark.slow
def test_whoever_takes_the_loss_goes_on_with_what_is_there(path: Path) -> None:
    run_and_kill(path)
    lose(path)
    owners(path)[0].unlink()
    with (
        SQLiteStore(path) as store,
        Conversation(Agent(ScriptedLLM(["on"])), store, "a") as conversation,
    ):
        assert [event.type for event in conversation.get_history()].count("assistant") == 1
        conversation.send_message("go on")
        assert conversation.run().status == "finished"
    assert check(path).sound


@pytest.mark.slow
def test_a_store_that_was_in_its_log_alone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    run_and_kill(path)
    lose(path)
    with pytest.raises(StoreError, match="-wal"):
        SQLiteStore(path)
    try:
        assert not check(path).sound
    except StoreError as error:
        assert "-wal" in str(error)  # noqa: PT017


@pytest.mark.slow
def test_a_lost_conversation_is_told_and_a_deleted_one_is_not(path: Path) -> None:
    more = (
        "with Conversation(Agent(ScriptedLLM(['x'])), store, 'b') as other:\n   "
        " other.send_message('hello')\n"
    )
    run_and_kill(path, f"{more}conversation.close()\nstore.delete('b')")
    assert check(path).sound
    SQLiteStore(path).close()
    run_and_kill(path, f"{more}    os.kill(os.getpid(), signal.SIGKILL)")
    lose(path)
    report = check(path)
    assert not report.sound
    assert "-wal" in report.problems[0]


def test_the_command_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_and_kill(path)
    lose(path)
    assert main(["check", "--json", str(path)]) != 0
    report = json.loads(capsys.readouterr().out)
    assert not report["sound"]
    assert "-wal" in report["problems"][0]


def test_a_log_that_is_removed_under_an_open_store_is_noticed_and_nothing_is_lost(
    path: Path,
) -> None:
    with (
        SQLiteStore(path) as store,
        Conversation(Agent(ScriptedLLM(["one", "two"])), store, "a") as conversation,
    ):
        conversation.send_message("hello")
        conversation.run()
        before = len(conversation.get_history())
        os.unlink(f"{path}-wal")
        store._writer._checked_at = 0.0  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]: it looks now and then
        with pytest.raises(StoreError, match="-wal"):
            conversation.send_message("again")
    with SQLiteStore(path) as store:
        assert len(store.read("a")) == before
    assert check(path).sound


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_run_does_not_finish_in_a_store_that_was_removed_a_moment_before(
    path: Path, suffix: str
) -> None:
    """The store looks at its files now and then, and always before the end of a run."""

    def remove() -> str:
        os.unlink(f"{path}{suffix}")
        return "Removed."

    model = ScriptedLLM([("remove", {}), "Done."])
    agent = Agent(model, [Tool("remove", "Remove the store.", remove)])
    with SQLiteStore(path) as store:
        conversation = Conversation(agent, store, "a")
        conversation.send_message("Go.")
        with pytest.raises(StoreError, match="removed or replaced"):
            conversation.run()
        with suppress(StoreError):
            conversation.close()
