"""Tests of `JournalSuite`: a folder of journals as regression tests, with one entry for each
change."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.agent.delegation import Delegates
from holdfast.cli import main
from holdfast.errors import ConfigurationError
from holdfast.store.transfer import export_conversation
from holdfast.testing.suite import JournalSuite


def look(what: str) -> str:
    """Looks."""
    return f"{what}: green"


def helper(prompt: str = "You help.", script: Sequence[Any] = ("Helped.",)) -> Agent:
    return Agent(ScriptedLLM(script), system_prompt=prompt)


def make(script: Sequence[Any] = (), prompt: str = "Look.", **more: Any) -> Agent:
    return Agent(ScriptedLLM(script), [Tool.from_function(look)], system_prompt=prompt, **more)


def record(store: SQLiteStore, agent: Agent, id: str, *messages: str) -> None:
    with Conversation(agent, store, id) as conversation:
        for message in messages or ("Which colour?",):
            conversation.send_message(message)
            conversation.run().raise_for_status()


LOOKS = [("look", {"what": "door"}), "Green."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a store of two conversations, and one of them as an export in a folder
    below it."""
    with SQLiteStore(tmp_path / "two.db") as store:
        record(store, make(LOOKS), "one")
        record(store, make(LOOKS), "two")
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "one.jsonl").write_bytes(b"".join(export_conversation(store, "one")))
    (tmp_path / "README.txt").write_text("Not a journal.")
    return tmp_path


@pytest.mark.slow
def test_every_journal_below_a_folder_is_replayed_and_no_file_is_touched(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with JournalSuite(folder) as suite:
        assert list(map(str, suite)) == ["below/one.jsonl:one", "two.db:one", "two.db:two"]
        report = suite.replay(make())
        assert report.same
        assert [one.requests for one in report.outcomes] == [2, 2, 2]
        suite[0].check()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_one_change_in_many_journals_is_told_once(folder: Path) -> None:
    with JournalSuite(folder) as suite:
        report = suite.replay(make(prompt="Look twice."))
        assert not report.same
        [(text, journals)] = report.changes.items()
        assert "-Look." in text
        assert "+Look twice." in text
        assert len(journals) == 3
        assert str(report).count("+Look twice.") == 1
        assert "at request 1, event 4 of two.db:two" in str(report)
        with pytest.raises(AssertionError, match=r"two\.db:two does not replay the same"):
            suite[2].check(make(prompt="Look twice."))


@pytest.mark.parametrize("journal", [0, 1])
def test_it_can_be_parametrised(folder: Path, journal: int) -> None:
    JournalSuite(folder)[journal].check(make())


def damaged_event(path: Path, seq: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET data = ? WHERE key & 0xFFFFFFFF = ?", (b"{broken", seq))
    db.close()


@pytest.mark.slow
def test_what_cannot_be_read_is_named_and_the_rest_is_replayed(folder: Path) -> None:
    export = (folder / "below" / "one.jsonl").read_bytes()
    lines = export.splitlines(keepends=True)
    (folder / "cut.jsonl").write_bytes(b"".join(lines[:3]))
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "newer.jsonl").write_bytes(export.replace(b'"version":1', b'"version":9', 1))
    (folder / "other.jsonl").write_bytes(b'{"a": 1}\n')
    (folder / "text.db").write_text("no database")
    for name, version in (("newer.db", 99), ("spoilt.db", None)):
        (folder / name).write_bytes((folder / "two.db").read_bytes())
        if version is not None:
            with sqlite3.connect(folder / name) as db:
                db.execute(f"PRAGMA user_version = {version}")
            db.close()
    damaged_event(folder / "spoilt.db", 3)
    report = JournalSuite(folder).replay()
    by_journal = {one.journal: one for one in report.outcomes}
    assert not report.same
    for name, reason in {
        "cut.jsonl:one": "the lines end after 2 of",
        "empty.jsonl": "the file is empty",
        "newer.jsonl": "line 1: it was exported in version 9 by a newer Holdfast",
        "other.jsonl": "line 1: this is not the header",
        "text.db": "it is no SQLite store",
        "newer.db": "was written by a newer Holdfast (format 99",
        "spoilt.db:one": "event 3",
        "spoilt.db:two": "event 3",
    }.items():
        assert by_journal[name].outcome == "unreadable", name
        assert reason in by_journal[name].reason
        assert f"{name} cannot be read: " in str(report)
    assert {one.outcome for name, one in by_journal.items() if "two.db" in name} == {"same"}


def test_events_of_a_newer_version_are_named(folder: Path) -> None:
    path = folder / "below" / "one.jsonl"
    lines = path.read_bytes().splitlines()
    header = msgspec.json.decode(lines[0])
    header["events"] += 1
    new = {"type": "hologram", "seq": header["events"], "time": "2026-01-01T00:00:00Z"}
    path.write_bytes(b"\n".join([*map(msgspec.json.encode, (header,)), *lines[1:], b""]))
    with path.open("ab") as file:
        file.write(msgspec.json.encode(new) + b"\n")
    outcome = JournalSuite(path).replay().outcomes[0]
    assert outcome.outcome == "same", outcome
    assert outcome.notes == ("events of a newer version: hologram",)


@pytest.mark.slow
def test_a_child_is_compared_with_the_agent_that_was_delegated_to(tmp_path: Path) -> None:
    def spawns(context: ToolContext) -> str:
        """Spawns."""
        with context.spawn(helper("You were spawned."), "Help.") as child:
            return child.run().answer

    def parent(script: Sequence[Any] = (), prompt: str = "You help.") -> Agent:
        team = Delegates({"helper": (helper(prompt), "Helps.")})
        return make(script, delegates=team).replace(
            tools=[Tool.from_function(look), Tool.from_function(spawns)]
        )

    script = [("delegate", {"agent": "helper", "task": "Help."}), ("spawns", {}), "Done."]
    with SQLiteStore(tmp_path / "s.db") as store:
        record(store, parent(script), "p")
    with JournalSuite(tmp_path) as suite:
        report = suite.replay(parent())
        assert report.same, str(report)
        by_name = {one.journal: one for one in report.outcomes}
        [spawned] = [one for one in report.outcomes if one.notes]
        assert "spawned by no delegation of this agent" in spawned.notes[0]
        assert len(by_name) == 3
        replayed = suite.replay(parent(prompt="You hinder."))
        [(text, [child])] = [*replayed.changes.items()]
        assert "+You hinder." in text
        assert child.journal != "s.db:p"
        assert child.journal != spawned.journal


@pytest.mark.slow
def test_code_mode_handoffs_and_condensation_replay(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    with SQLiteStore(tmp_path / "s.db") as store:
        coded = [("run_code", {"code": "print(await look(what='door'))"}), "Done."]
        record(store, make(coded, code=True), "code")
        other = make(["Mine now."], "The other.")
        handed = [("handoff", {"agent": "other"}), "Never."]
        record(store, make(handed, handoffs={"other": (other, "Other.")}), "handoff")
        many = [*[("look", {"what": str(n)}) for n in range(30)], "Done."]
        condenser = WindowCondenser(keep=4, at=400)
        record(store, make(many, condenser=condenser, stuck=None), "condensed")
        assert any(isinstance(one, ev.HistoryCondensed) for one in store.read("condensed"))
        assert any(isinstance(one, ev.CodeCallsMade) for one in store.read("code"))
    with JournalSuite(tmp_path) as suite:
        report = suite.replay()
        assert report.same, str(report)
        assert len(report.outcomes) == 3
        assert all(one.requests == one.hashed for one in report.outcomes)
        by_id = {one.id: one for one in suite}
        by_id["handoff"].check(make(handoffs={"other": (make(prompt="The other."), "Other.")}))
        outcome = by_id["handoff"].replay(
            make(handoffs={"other": (make(prompt="Another."), "Other.")})
        )
        assert outcome.difference is not None
        assert outcome.difference.request == 2
        assert "+Another." in outcome.difference.text


@pytest.mark.slow
def test_the_command_replays_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("3 journals, 6 model requests in ")
    (folder / "agents_here.py").write_text(
        "from holdfast import Agent, ScriptedLLM\n"
        "agent = Agent(ScriptedLLM([]), system_prompt='Other.')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["replay", str(folder), "--agent", "agents_here:agent"]) == 1
    out = capsys.readouterr().out
    assert out.count("+Other.") == 1
    assert "3 of them differ first in this:" in out
    assert main(["replay", str(folder), "one"]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_folder_without_journals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no store"):
        JournalSuite(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no file or folder"):
        JournalSuite(tmp_path / "nothing")
