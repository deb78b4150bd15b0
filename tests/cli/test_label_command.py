"""Titles and tags from the shell: `holdfast tell rename`, `tag` and `untag`, and `holdfast list
--tag`."""

from __future__ import annotations

import io
import json
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
from holdfast.cli import main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Make a store with the conversations `one` and `two`."""
    path = tmp_path / "s.db"
    with SQLiteStore(path) as store:
        for id in ("one", "two"):
            with Conversation(Agent(ScriptedLLM([])), store, id) as conversation:
                conversation.send_message(f"hello {id}")
    return str(path)


def open_conversation(file: str, id: str) -> None:
    """Open a conversation, which executes its posted commands."""
    with SQLiteStore(file) as store, Conversation(Agent(ScriptedLLM([])), store, id) as c:
        c.hosting.open()


def test_labels_are_set_from_the_shell_and_listed(file: str) -> None:
    for id, *words in (
        ("one", "rename", "Ticket", "12"),
        ("one", "tag", "bug", "customer=acme & sons"),
        ("two", "tag", "bug", "new"),
        ("two", "untag", "new"),
    ):
        ended = run("tell", file, id, *words)
        assert (ended.returncode, ended.stdout) == (0, "posted: label\n")
        open_conversation(file, id)
    listing = run("list", file, "--tag", "bug", "--tag", "customer=acme & sons")
    [line] = listing.stdout.splitlines()[1:]
    assert line.startswith("one ")
    assert line.endswith("Ticket 12 [bug] [customer=acme & sons]")
    lines = run("list", file, "--tag", "bug", "--json").stdout.splitlines()
    assert {item["id"]: item["tags"] for item in map(json.loads, lines)} == {
        "one": ["bug", "customer=acme & sons"],
        "two": ["bug"],
    }
    assert "with the tag none" in run("list", file, "--tag", "none").stderr
    assert "(label: Ticket 12)" in run("show", file, "one").stdout
    assert "(label: -new)" in run("show", file, "two").stdout


@pytest.mark.parametrize("words", [["tag"], ["tag", ""], ["rename"], ["tag", "x" * 101]])
def test_labels_that_make_no_sense_are_one_line_and_post_nothing(
    file: str, words: list[str]
) -> None:
    ended = run("tell", file, "one", *words)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    open_conversation(file, "one")
    with SQLiteStore(file) as store:
        assert [event.type for event in store.read("one")] == ["message"]
