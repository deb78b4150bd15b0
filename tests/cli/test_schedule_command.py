"""`holdfast schedule`: timers from the shell."""

from __future__ import annotations

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
from holdfast.cli import main
from holdfast.timers import Timer

HOUR = timedelta(hours=1)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Make a store with the conversation `one`."""
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store, Conversation(Agent(ScriptedLLM(["one"])), store, "one") as c:
        c.send_message("hello")
    return str(path)


def timers(file: str) -> tuple[Timer, ...]:
    """Open the conversation, which executes its posted commands, and return its timers."""
    with SQLiteStore(file) as store, Conversation(Agent(ScriptedLLM(["one"])), store, "one") as c:
        c.hosting.open()
        return c.timers


def test_timers_are_set_listed_and_cancelled_from_the_shell(file: str) -> None:
    assert "There are no timers." in run("schedule", file, "one", "list").stderr
    at = (datetime.now(UTC) + HOUR).isoformat()
    ended = run("schedule", file, "one", "add", "Look", "again.", "--at", at, "--name", "look")
    assert (ended.returncode, ended.stdout) == (0, "posted: set look\n")
    cron = ["--cron", "0 9 * * mon-fri", "--timezone", "Europe/Berlin", "--misfire", "skip"]
    assert run("schedule", file, "one", "add", "Report.", *cron, "--name", "r").returncode == 0
    assert run("schedule", file, "one", "add", "Tick.", "--every", "3600").returncode == 0
    pending = timers(file)
    assert {one.text for one in pending} == {"Look again.", "Report.", "Tick."}
    listed = run("schedule", file, "one", "list").stdout
    assert " look (once, misfire once) Look again.\n" in listed
    assert " r (cron 0 9 * * mon-fri Europe/Berlin, misfire skip) Report.\n" in listed
    assert "(every 3600 s, misfire once) Tick.\n" in listed
    assert run("schedule", file, "one", "cancel", "look").stdout == "posted: cancel look\n"
    assert "look" not in {one.id for one in timers(file)}


def test_a_timer_is_shown_with_the_conversation(file: str) -> None:
    run("schedule", file, "one", "add", "Tick.", "--every", "3600", "--name", "t")
    timers(file)
    run("schedule", file, "one", "cancel", "t")
    timers(file)
    output = run("show", file, "one").stdout
    assert "(timer t, due " in output
    assert "(timer t was cancelled)" in output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["add", "Tick."], "one of at, every and cron"),
        (["add", "--every", "60"], "nothing"),
        (["add", "Tick.", "--every", "59"], "a number of seconds from 60"),
        (["add", "Tick.", "--at", "2020-01-01T00:00Z"], "is past"),
        (["add", "Tick.", "--at", "tomorrow"], "such as '2026-11-23T09:00'"),
        (["add", "Tick.", "--at", "2099-01-01T00:00"], "no time zone"),
        (["add", "Tick.", "--cron", "daily"], "five fields"),
        (["add", "Tick.", "--cron", "0 9 * * *", "--timezone", "Nowhere"], "unknown time zone"),
        (["cancel"], "one timer's id"),
        (["cancel", "none"], "has no timer 'none'; it has none"),
        (["list", "--every", "60"], "takes no --at"),
    ],
)
def test_a_wrong_command_says_what_is_wrong_and_posts_nothing(
    file: str, words: list[str], problem: str
) -> None:
    ended = run("schedule", file, "one", *words)
    assert ended.returncode == 2
    assert problem in " ".join(ended.stderr.split())
    with SQLiteStore(file) as store:
        assert store.list(waiting=True) == []


def test_a_command_under_one_key_is_posted_once(file: str) -> None:
    words = ["schedule", file, "one", "add", "Tick.", "--every", "60", "--key", "k"]
    assert run(*words).stdout.startswith("posted")
    assert run(*words).stdout.startswith("dropped")
    assert len(timers(file)) == 1
