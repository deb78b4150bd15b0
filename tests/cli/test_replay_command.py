"""`holdfast replay`: it runs the conversations of a store or an export again, and reports how
today's code or another agent differs."""

from __future__ import annotations

import re
import sqlite3
import zlib
from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast.cli import main
from tests.cli.test_commands import ESCAPE, command, holdfast, options, terminal
from tests.model_server import ModelServer, text

AGENTS = """
from holdfast import Agent, ScriptedLLM
from holdfast.llm import LLM
from holdfast.runtime import LocalRuntime

def same():
    where = "You work in the folder {folder}. Paths are relative to it."
    return Agent(LLM("m", base_url="http://127.0.0.1:9/v1"), LocalRuntime("{folder}").tools, system_prompt_extensions=[where])

def other():
    return Agent(LLM("n", base_url="http://127.0.0.1:9/v1"), system_prompt="Answer in \\x1b[31mLatin.")

class Kept:
    agent = other()

def broken():
    raise RuntimeError("not\\ntoday")

def wants(something):
    return other()

text = "no agent"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store `s.db` with two conversations, and agents that replay them."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "agents.py").write_text(AGENTS.replace("{folder}", str(folder)))
    (folder / "exits.py").write_text("raise SystemExit(5)")
    with ModelServer([command("echo hello"), text("Done."), text("Hello.")]) as server:
        for id, task in (("alpha", "do it"), ("beta", "hello")):
            ended = holdfast(
                "run",
                task,
                *options(server, folder),
                "--store",
                str(folder / "s.db"),
                "--new",
                "--id",
                id,
            )
            assert ended.returncode == 0
    return folder


def copy_with_edit(folder: Path, into: Path, id: str, before: bytes, after: bytes) -> None:
    """Copy the store, and replace bytes in the events of a conversation."""
    with SQLiteStore(folder / "s.db", read_only=True):
        into.write_bytes((folder / "s.db").read_bytes())
    with sqlite3.connect(into) as db:
        number = db.execute("SELECT number FROM conversations WHERE id = ?", (id,)).fetchone()[0]
        rows = db.execute("SELECT key, data FROM events WHERE key >> 32 = ?", (number,)).fetchall()
        updates = [
            (zlib.crc32(new := data.replace(before, after)), new, key)
            for key, data in rows
            if before in data
        ]
        assert updates
        db.executemany("UPDATE events SET crc = ?, data = ? WHERE key = ?", updates)
    db.close()


@pytest.mark.slow
def test_what_was_recorded_today_is_the_same_today(folder: Path) -> None:
    ended = holdfast("replay", str(folder / "s.db"))
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == [
        "alpha: same, 2 model requests, 2 of them compared byte by byte",
        "beta: same, 1 model request, 1 of them compared byte by byte",
    ]
    assert ended.stderr == "2 conversations.\n"
    one = holdfast("replay", str(folder / "s.db"), "al")
    assert (one.returncode, one.stdout.count("\n"), one.stderr) == (0, 1, "")


@pytest.mark.slow
def test_an_export_is_replayed_as_the_store_is(folder: Path, tmp_path: Path) -> None:
    exported = tmp_path / "all.jsonl"
    assert holdfast("export", str(folder / "s.db"), "-o", str(exported)).returncode == 0
    whole, store = holdfast("replay", str(exported)), holdfast("replay", str(folder / "s.db"))
    assert (whole.returncode, sorted(whole.stdout.splitlines())) == (
        0,
        sorted(store.stdout.splitlines()),
    )
    one = holdfast("replay", str(exported), "bet")
    assert (one.returncode, one.stdout) == (
        0,
        "beta: same, 1 model request, 1 of them compared byte by byte\n",
    )
    assert holdfast("replay", str(exported), "gamma").returncode == 2


@pytest.mark.slow
def test_an_agent_that_would_ask_the_same_is_the_same(folder: Path) -> None:
    ended = holdfast("replay", str(folder / "s.db"), "--agent", "agents:same", cwd=folder)
    assert (ended.returncode, ended.stdout.count(": same, ")) == (0, 2)


@pytest.mark.slow
def test_another_agent_is_told_apart_in_lines(folder: Path) -> None:
    for name in ("agents:other", "agents:Kept.agent"):
        ended = holdfast("replay", str(folder / "s.db"), "alpha", "--agent", name, cwd=folder)
        assert ended.returncode == 1
        lines = ended.stdout.splitlines()
        assert re.fullmatch(r"alpha: differs at request 1, event 4 of \d+:", lines[0])
        assert lines[1:4] == ["  model:", "  - m", "  + n"]
        assert "  +Answer in ^[[31mLatin." in lines
        assert "  tool 'terminal':" in lines
    both = holdfast("replay", str(folder / "s.db"), "--agent", "agents:other", cwd=folder)
    assert (both.returncode, both.stderr) == (1, "2 conversations, 2 of them differ.\n")


@pytest.mark.slow
def test_what_another_version_made_otherwise_is_one_of_several(
    folder: Path, tmp_path: Path
) -> None:
    store_path = tmp_path / "s.db"
    copy_with_edit(folder, store_path, "alpha", b'"text":"do it"', b'"text":"do so"')
    ended = holdfast("replay", str(store_path))
    assert ended.returncode == 1
    assert "beta: same" in ended.stdout
    assert re.search(r"^alpha: differs at request 1, event 4 of \d+:$", ended.stdout, re.MULTILINE)
    assert '+   "content": "do so"' in ended.stdout
    assert ended.stderr == "2 conversations, 1 of them differs.\n"


@pytest.mark.slow
def test_a_damaged_conversation_is_told_and_the_others_are_replayed(
    folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "s.db"
    copy_with_edit(folder, damaged, "alpha", b"do it", b"do so")
    with sqlite3.connect(damaged) as db:
        db.execute("UPDATE events SET crc = crc + 1 WHERE instr(data, CAST('do so' AS BLOB))")
    db.close()
    ended = holdfast("replay", str(damaged))
    assert (ended.returncode, ended.stdout.count("same")) == (1, 1)
    assert ended.stderr.startswith("holdfast: alpha: ")


@pytest.mark.slow
def test_differences_are_coloured_on_a_terminal_only(folder: Path) -> None:
    arguments = ["replay", str(folder / "s.db"), "alpha", "--agent", "agents:other"]
    with terminal(*arguments, PYTHONPATH=str(folder)) as typist:
        assert typist.leaves() == 1
    assert f"{ESCAPE}[31m  - m{ESCAPE}[0m" in typist.output
    assert f"{ESCAPE}[32m  + n{ESCAPE}[0m" in typist.output
    with terminal(*arguments, PYTHONPATH=str(folder), NO_COLOR="1") as typist:
        assert typist.leaves() == 1
    assert not re.search(r"\x1b\[[0-9;]*m", typist.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.db"], "does not exist"),
        (["..", "gamma"], "is a folder"),
        (["agents.py"], "neither a store nor the output of `holdfast export`: line"),
        (["s.db", "gamma"], "'gamma'"),
        (["s.db", "--agent", "agents"], "MODULE:NAME"),
        (["s.db", "--agent", "no_such_module:agent"], "no_such_module"),
        (["s.db", "--agent", "agents:nobody"], "nobody"),
        (["s.db", "--agent", "agents:text"], "is a str"),
        (["s.db", "--agent", "agents:broken"], "RuntimeError: not today"),
        (["s.db", "--agent", "agents:wants"], "something"),
        (["s.db", "--agent", "exits:agent"], "SystemExit: 5"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_exit_2(
    folder: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert main(["replay", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[:10]) == ("", 1, "holdfast: ")
    assert message in err


@pytest.mark.slow
def test_an_empty_file_is_neither_a_store_nor_an_export(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for file in (str(tmp_path / "empty.jsonl"), "/dev/null"):
        for name in ("replay", "check", "show"):
            ended = holdfast(name, file)
            assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    with SQLiteStore(tmp_path / "s.db"):
        pass
    ended = holdfast("replay", str(tmp_path / "s.db"))
    assert (ended.returncode, "no conversation" in ended.stderr) == (0, True)
