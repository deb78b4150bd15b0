"""The memory tools: notes are stored whole and found again, and no link, race or kill leads out
of their folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import (
    Agent,
    Conversation,
    LocalRuntime,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    ToolManager,
    ToolRegistry,
    ToolResult,
)
from holdfast.agent.serial_form import tools_of
from holdfast.errors import ToolError
from holdfast.tools.preset.memory import Notes, make_memory, memory_index, register_memory_tools
from tests import forks
from tests.leftovers import Owned


def tools(folder: Path) -> ToolManager:
    return ToolManager(make_memory(folder))


def write(
    manager: ToolManager, path: str, text: str = "", action: str = "write", old: str = ""
) -> ToolResult:
    return manager.run(
        ToolCall("1", "memory_write", {"path": path, "text": text, "action": action, "old": old})
    )


def read_text(manager: ToolManager, **arguments: object) -> str:
    return ask(manager, **arguments).text


def ask(manager: ToolManager, **arguments: object) -> ToolResult:
    return manager.run(ToolCall("1", "memory_read", arguments))


def test_notes_are_written_read_found_changed_and_deleted(tmp_path: Path) -> None:
    memory = tools(tmp_path / "notes")
    assert read_text(memory) == "There are no notes yet."
    assert not (tmp_path / "notes").exists(), "it is made when it is first written to"
    assert (
        write(memory, "build.md", "# How to build\nmake all\n").text == "Wrote build.md (24 bytes)."
    )
    assert write(memory, "people/ada.md", "Likes tabs.").text == "Wrote people/ada.md (11 bytes)."
    assert read_text(memory).splitlines() == [
        "- build.md (24 bytes): How to build",
        "- people/ada.md (11 bytes): Likes tabs.",
    ]
    assert read_text(memory, path="people/ada.md") == "Likes tabs."
    assert read_text(memory, path="build.md", offset=15) == "make all\n"
    assert read_text(memory, search="TABS") == "people/ada.md:1: Likes tabs."
    assert read_text(memory, search="ada") == "people/ada.md: its name"
    assert read_text(memory, search="xyz") == "No note has 'xyz'."
    write(memory, "people/ada.md", "And tea.", "append")
    assert read_text(memory, path="people/ada.md") == "Likes tabs.\nAnd tea."
    write(memory, "new.md", "Begun.", "append")
    write(memory, "people/ada.md", "coffee", "replace", "tea")
    assert read_text(memory, path="./people//ada.md") == "Likes tabs.\nAnd coffee."
    assert write(memory, "people/ada.md", action="delete").text == "Deleted people/ada.md."
    assert not (tmp_path / "notes/people").exists(), "a folder goes with its last note"
    assert sorted(os.listdir(tmp_path / "notes")) == [".lock", "build.md", "new.md"]


@pytest.mark.parametrize(
    ("path", "action", "problem"),
    [
        ("", "write", "is not the path of a note"),
        ("../x", "write", "is not the path of a note"),
        ("a/../../x", "write", "is not the path of a note"),
        ("/etc/passwd", "write", "is not the path of a note"),
        ("a\0b", "write", "is not the path of a note"),
        ("a\\b", "write", "is not the path of a note"),
        ("a\nb", "write", "is not the path of a note"),
        (".ssh/key", "write", "is hidden"),
        ("a/.lock", "delete", "is hidden"),
        ("x" * 101, "write", "too long"),
        ("/".join("abcdefghi"), "write", "too long"),
        ("\ud800", "write", "cannot be the name of a file"),
        ("none.md", "delete", "There is no note"),
        ("none.md", "replace", "There is no note"),
        ("none/none.md", "replace", "There is no note"),
        ("there.md/x", "write", "is not a folder of notes"),
        ("folder", "write", "not a note"),
        ("folder", "delete", "not a note"),
        ("there.md", "replace", "occurs 0 times"),
    ],
)
def test_what_is_no_note_is_refused_with_a_reason(
    tmp_path: Path, path: str, action: str, problem: str
) -> None:
    memory = tools(tmp_path / "notes")
    write(memory, "there.md", "x")
    write(memory, "folder/in.md", "x")
    result = write(memory, path, "text", action, "old")
    assert result.is_error
    assert problem in result.text
    assert sorted(os.listdir(tmp_path)) == ["notes"]


def test_no_link_leads_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.md").write_text("hunter2")
    memory = tools(tmp_path / "notes")
    write(memory, "a.md", "x")
    (tmp_path / "notes/link.md").symlink_to(secret / "key.md")
    (tmp_path / "notes/folder").symlink_to(secret)
    os.mkfifo(tmp_path / "notes/pipe.md")
    for path in ("link.md", "folder/key.md", "pipe.md", "folder"):
        assert ask(memory, path=path).is_error
        for action in ("write", "append", "replace", "delete"):
            assert write(memory, path, "x", action, "hunter2").is_error, (path, action)
    assert read_text(memory) == "- a.md (1 bytes): x"
    assert read_text(memory, search="hunter2") == "No note has 'hunter2'."
    assert (secret / "key.md").read_text() == "hunter2"
    (tmp_path / "notes/.lock").unlink()
    (tmp_path / "notes/.lock").symlink_to(secret / "key.md")
    assert write(memory, "b.md", "x").is_error
    assert (secret / "key.md").read_text() == "hunter2"


SWAPPER = """
import os, sys
at, secret = sys.argv[1:]
real, kept, link = f"{at}/notes/f", f"{at}/kept", f"{at}/link"
print("ready", flush=True)
while True:
    os.symlink(secret, link)
    os.rename(real, kept)
    os.rename(link, real)
    os.unlink(real)
    os.rename(kept, real)
"""


def test_a_folder_that_is_swapped_for_a_link_meanwhile_lets_nothing_out(tmp_path: Path) -> None:
    """Another process replaces the folder of the notes with a link, again and again."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.md").write_text("hunter2")
    memory = tools(tmp_path / "notes")
    write(memory, "f/x.md", "note")
    args = [sys.executable, "-c", SWAPPER, str(tmp_path), str(secret)]
    with forks.Popen(args, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        assert swapper.stdout.readline()
        try:
            texts, end = {read_text(memory, path="f/x.md")}, time.monotonic() + 20.0
            for n in range(1_000_000):
                texts.add(read_text(memory, path="f/x.md"))
                if (len(texts) > 1 and n > 1000) or time.monotonic() > end:
                    break
            for n in range(300):
                write(memory, "f/x.md", f"note {n}", "replace", "note")
                write(memory, "f/x.md", "hunter", "replace", "hunter2")
        finally:
            swapper.kill()
    assert len(texts) > 1, "it was swapped"
    assert not any("hunter2" in text for text in texts)
    assert (secret / "x.md").read_text() == "hunter2"
    assert os.listdir(secret) == ["x.md"]


@pytest.mark.slow
def test_sizes_are_bounded(tmp_path: Path) -> None:
    memory = tools(tmp_path / "notes")
    assert write(memory, "a.md", "x" * 256 * 1024).text == "Wrote a.md (262,144 bytes)."
    assert "a note has at most" in write(memory, "a.md", "y", "append").text
    assert "a note has at most" in write(memory, "b.md", "é" * 256 * 1024).text
    (tmp_path / "notes/big.md").write_bytes(b"x" * 10_000_000)
    (tmp_path / "notes/latin.md").write_bytes(b"caf\xe9")
    assert "more than" in read_text(memory, path="big.md")
    assert "not UTF-8" in read_text(memory, path="latin.md")
    assert "(cannot be read)" in read_text(memory)
    for n in range(996):
        (tmp_path / f"notes/{n}.md").write_text("word")
    assert not write(memory, "last.md", "x").is_error
    assert "which is the maximum" in write(memory, "more.md", "x").text
    assert not write(memory, "last.md", "changed").is_error, "a note that is there may change"
    assert len(read_text(memory)) < 21_000
    assert len(read_text(memory, search="word").splitlines()) == 101
    assert "\n- and " in memory_index(tmp_path / "notes", 500)
    assert len(memory_index(tmp_path / "notes", 500)) < 700


PROGRAM = """
import sys
from holdfast import ToolManager
from holdfast.tools.preset.memory import make_memory
memory = ToolManager(make_memory(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
n = 0
while n < int(sys.argv[3]):
    assert not memory.call("memory_write", {"path": "log.md", "text": f"{sys.argv[2]} {n}", "action": "append"}).is_error
    n += 1
"""


def start(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    args = [sys.executable, "-c", PROGRAM, str(folder), name, str(count)]
    process = forks.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_several_agents_write_to_one_note_and_nothing_is_lost(tmp_path: Path) -> None:
    writers = [start(tmp_path / "notes", name, 30) for name in "abc"]
    for process in writers:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    lines = (tmp_path / "notes/log.md").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {n}" for name in "abc" for n in range(30))


@pytest.mark.slow
def test_after_kill_9_a_note_is_whole_and_the_folder_is_free(tmp_path: Path) -> None:
    process = start(tmp_path / "notes", "a", 1_000_000)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    log, memory = tmp_path / "notes/log.md", tools(tmp_path / "notes")
    while not (log.exists() and log.read_text().count("\n") > 20):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    lines = log.read_text().splitlines()
    assert lines == [f"a {n}" for n in range(len(lines))]
    (tmp_path / "notes/.0123.tmp").write_text("what a killed writer left")
    assert not write(memory, "log.md", "after", "append").is_error
    assert sorted(os.listdir(tmp_path / "notes")) == [".lock", "log.md"]


@pytest.mark.slow
def test_without_a_folder_the_notes_are_in_the_runtimes(tmp_path: Path) -> None:
    script = [
        ("memory_write", {"path": "a.md", "text": "x"}),
        ("memory_read", {"path": "a.md"}),
        "Done.",
    ]
    with LocalRuntime(tmp_path) as runtime:
        agent = Agent(ScriptedLLM(script), register_memory_tools(ToolRegistry()))
        with Conversation(agent, runtime=runtime) as conversation:
            conversation.send_message("Go.")
            state = conversation.run()
    assert [event.result.text for event in state.events if event.type == "toolResult"] == [
        "Wrote a.md (1 bytes).",
        "x",
    ]
    assert (tmp_path / ".holdfast/memory/a.md").read_text() == "x"
    result = ToolManager(make_memory()).run(ToolCall("1", "memory_read", {}), ToolContext())
    assert result.is_error
    assert "make_memory(folder)" in result.text


def test_the_runtimes_folder_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret/memory").mkdir(parents=True)
    (tmp_path / "work/.holdfast").symlink_to(tmp_path / "secret")
    with LocalRuntime(tmp_path / "work") as runtime:
        manager = ToolManager(make_memory())
        for name, arguments in (
            ("memory_write", {"path": "a.md", "text": "x"}),
            ("memory_read", {}),
        ):
            result = manager.run(ToolCall("1", name, arguments), ToolContext(runtime=runtime))
            assert result.is_error
            assert "is a link or not a folder" in result.text
    assert os.listdir(tmp_path / "secret/memory") == []


def test_an_agent_server_makes_them_by_their_module() -> None:
    forms = tools_of(Agent(ScriptedLLM([]), register_memory_tools()))
    assert [(form.name, form.module, form.annotations.read_only) for form in forms] == [
        ("memory_read", "holdfast.tools.preset.memory", True),
        ("memory_write", "holdfast.tools.preset.memory", False),
    ]


@pytest.mark.slow
def test_no_file_is_left_open(tmp_path: Path) -> None:
    memory = tools(tmp_path / "notes")
    write(memory, "a/b.md", "x")
    before = Owned()
    for _ in range(20):
        write(memory, "a/b.md", "x")
        write(memory, "../x", "x")
        write(memory, "a/b.md/c", "x")
        read_text(memory, path="a/none.md")
        read_text(memory, path="none/none.md")
        read_text(memory)
        read_text(memory, search="x")
        write(memory, "a/b.md", action="delete")
    assert before.new() == []


def test_folders_that_are_named_like_what_is_unfinished_stay_and_harm_nothing(
    tmp_path: Path,
) -> None:
    notes = Notes(tmp_path)
    (tmp_path / ".x.tmp").mkdir()
    assert notes.write("a.md", "one").startswith("Wrote")
    (tmp_path / "other" / ".lock").mkdir(parents=True)
    with pytest.raises(ToolError, match="cannot be changed"):
        Notes(tmp_path / "other").write("a.md", "one")
