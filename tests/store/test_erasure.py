"""Erasure: after `delete` no file of a store holds the conversation's content."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, SQLiteStore
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.content import blocks
from holdfast.server.shapes import CreateRequest
from tests.server_host_program import host_of
from tests.waiting import until

MARK = "planted-7731"


def files_with(folder: Path, mark: str = MARK) -> list[str]:
    """Return the names of the files with a text. Another process reads them: reading a store's
    file here would release SQLite's locks on it."""
    process = subprocess.run(
        ["grep", "-rlaF", mark, str(folder)], capture_output=True, text=True, check=False
    )
    return sorted(Path(line).name for line in process.stdout.splitlines())


def large() -> str:
    """Return a result that the store keeps as a blob."""
    return f"{MARK} " * 20_000


def fill(store: SQLiteStore, id: str) -> None:
    """Write every kind of content: messages, a prompt, results, a blob, a timer, a posted command,
    notes, a title."""
    script = [("large", {}), f"{MARK} answer"]
    agent = Agent(ScriptedLLM(script), [large], system_prompt=f"{MARK} prompt")
    with Conversation(agent, store, id) as conversation:
        conversation.send_message(f"{MARK} message")
        conversation.run()
        conversation.schedule(f"{MARK} timer", every=3600)
    store.post(id, Send(blocks(f"{MARK} posted")))


def test_after_delete_no_file_of_an_open_store_holds_the_content(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        fill(store, f"{MARK}-id")
        with Conversation(Agent(ScriptedLLM(["hi"])), store, "other") as other:
            other.send_message("hello")
        assert files_with(tmp_path) == ["s.db-wal"]
        store.delete(f"{MARK}-id")
        assert files_with(tmp_path) == []
        assert len(store.read("other")) == 1


def test_content_that_was_moved_into_the_file_is_overwritten_there(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        fill(store, "a")
    assert files_with(tmp_path) == ["s.db"]
    with SQLiteStore(tmp_path / "s.db") as store:
        store.delete("a")
        assert files_with(tmp_path) == []


def test_a_reader_delays_only_the_log_and_the_next_delete_empties_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        fill(store, "a")
        reader = sqlite3.connect(tmp_path / "s.db")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        store.delete("a")  # it does not wait for the reader
        assert files_with(tmp_path) == ["s.db-wal"]
        reader.close()
        fill(store, "b")
        store.delete("b")
        assert files_with(tmp_path) == []


def test_events_that_a_fork_shares_stay_until_the_fork_is_deleted(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(Agent(ScriptedLLM(["hi"])), store, "a") as conversation:
            conversation.send_message(f"{MARK} shared")
            conversation.run()
            conversation.fork(id="b").close()
        store.delete("a")
        assert files_with(tmp_path) != []
        store.delete("b")
        assert files_with(tmp_path) == []


def test_a_fork_before_a_message_outlives_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(Agent(ScriptedLLM(["hi", "hi"])), store, "a") as conversation:
            conversation.send_message("kept")
            until_here = conversation.run().last_seq
            conversation.send_message(f"{MARK} regretted")
            conversation.run()
            conversation.fork(until_here, id="b").close()
        store.delete("a")
        assert files_with(tmp_path) == []
        assert [event.seq for event in store.read("b")] == list(
            range(1, until_here + 2)
        )  # and the title is gone


@pytest.mark.slow
def test_a_server_leaves_nothing_of_a_removed_conversation_but_the_answer_under_its_key(
    tmp_path: Path,
) -> None:
    with host_of(tmp_path) as host:
        command = ("terminal", {"command": f"echo {MARK} > file"})
        with LocalRuntime() as runtime:
            prompt = f"{MARK} prompt"
            script = ScriptedLLM([command, f"{MARK} answer"])
            agent = Agent(script, runtime.all_tools, system_prompt=prompt)
            form, tools = form_of(agent), tools_of(agent)
        request = CreateRequest(agent=form.mapping, tools=tools, id="a", undo=True)
        host.create("default", request, "key")
        host.execute("default", "a", Send(blocks(f"{MARK} message")), "command-key")
        host.run("default", "a")
        until(lambda: host.status("default", "a") == "finished")
        assert "file" in files_with(tmp_path)  # the workspace; snapshots are compressed
        assert list(tmp_path.rglob("~undo/*.git"))
        host.delete("default", "a")
        assert files_with(tmp_path) == []
        assert not list(tmp_path.rglob("~undo/*.git"))
