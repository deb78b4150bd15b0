"""Undo of files: the changes of calls are reverted exactly, and the changes of others stay."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, LocalRuntime, SandboxedRuntime, ScriptedLLM, SQLiteStore
from holdfast.content import ToolResult
from holdfast.conversation.undo import FileUndo
from holdfast.errors import ConfigurationError, Conflict
from holdfast.runtime import environment, snapshots
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.tools import ToolAnnotations, tool
from tests.samples import examples


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def runtime(work: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(work) as runtime:
        yield runtime


@pytest.fixture
def undo(tmp_path: Path) -> FileUndo:
    return FileUndo(tmp_path / "undo")


def listing(folder: Path) -> dict[str, Any]:
    """Return each entry below a folder by path: its kind, or its executable bit and content, or
    its target."""
    entries: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(folder))
        if stat.S_ISLNK(mode):
            entries[name] = ("link", os.readlink(path))
        elif stat.S_ISDIR(mode):
            entries[name] = "folder"
        else:
            content = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            entries[name] = (stat.S_IMODE(mode) & 0o100, content)
    return entries


def run_commands(
    runtime: LocalRuntime | SandboxedRuntime, undo: FileUndo | None, *commands: str, **options: Any
) -> Conversation:
    """Return a conversation that has run these commands, each after a message of its own."""
    script: list[Any] = []
    for command in commands:
        script += [("terminal", {"command": command}), "done"]
    agent = Agent(ScriptedLLM(script), runtime.tools)
    conversation = Conversation(agent, undo=undo, runtime=runtime, **options)
    for command in commands:
        conversation.send_message(command)
        conversation.run().raise_for_status()
    return conversation


def messages(conversation: Conversation) -> list[int]:
    events = conversation.get_history()
    return [one.seq for one in events if one.type == "message"]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_rewind_puts_files_back_and_forks_there(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    (work / "a").write_text("1")
    (work / "gone").write_text("2")
    os.chmod(work / "gone", 0o600)
    commands = ["echo one > b", "rm gone; echo x >> a; mkdir -p d/e; echo c > d/e/f; ln -s a l"]
    with run_commands(runtime, undo, *commands) as conversation:
        second = messages(conversation)[1]
        fork, files = conversation.rewind(second - 1)
        with fork:
            assert fork.get_history()[: second - 1] == conversation.get_history()[: second - 1]
            assert fork.id != conversation.id
    assert set(files.changed) == {"a", "gone", "d/e/f", "l"}
    assert files.kept == files.failed == files.without_snapshot == ()
    assert files.outside == {"terminal": 1}
    assert "Not undone: what these calls did outside" in str(files)
    assert sorted(os.listdir(work)) == ["a", "b", "gone"]
    assert (work / "a").read_text() == "1"
    assert stat.S_IMODE((work / "gone").stat().st_mode) == 0o600


def test_a_fork_can_be_rewound_further(runtime: LocalRuntime, work: Path, undo: FileUndo) -> None:
    with run_commands(runtime, undo, "echo 1 > a", "echo 2 > a", "echo 3 > a") as conversation:
        first, second, third = messages(conversation)
        with conversation.rewind(third - 1).conversation as fork:
            assert (work / "a").read_text() == "2\n"
            with fork.rewind(second - 1).conversation as again:
                assert (work / "a").read_text() == "1\n"
                with again.rewind(first - 1).conversation:
                    assert os.listdir(work) == []


def test_files_that_others_changed_are_left_and_named(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    with run_commands(runtime, undo, "echo 1 > a; echo 1 > b") as conversation:
        (work / "a").write_text("by hand")
        (work / "mine").write_text("by hand")
        files = conversation.rewind(0).files
    assert files.changed == ("b",)
    assert files.kept == ("a",)
    assert "left alone" in str(files)
    assert sorted(os.listdir(work)) == ["a", "mine"]


def test_what_a_user_changed_between_two_calls_stays(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    script: list[Any] = [("terminal", {"command": "echo 1 > a"}), "done"] * 2
    with Conversation(Agent(ScriptedLLM(script), runtime.tools), undo=undo) as conversation:
        for _ in range(2):
            conversation.send_message("go")
            conversation.run()
            (work / "user").write_text(str(len(conversation.get_history())))
        conversation.rewind(0)
    assert os.listdir(work) == ["user"]


def test_nothing_is_put_back_through_a_link(
    runtime: LocalRuntime, work: Path, tmp_path: Path, undo: FileUndo
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("host")
    (work / "d").mkdir()
    (work / "d" / "f").write_text("1")
    with run_commands(runtime, undo, "rm -r d") as conversation:
        (work / "d").symlink_to(outside)
        files = conversation.rewind(0).files
    assert files.failed == ("d/f",)
    assert (outside / "f").read_text() == "host"


def test_two_conversations_on_one_folder_undo_their_own_work(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    with (
        run_commands(runtime, undo, "echo 1 > a; echo 1 > both") as one,
        run_commands(runtime, undo, "echo 2 > b; echo 2 > both") as other,
    ):
        files = one.rewind(0).files
        assert (files.changed, files.kept) == (("a",), ("both",))
        files = other.rewind(0).files
        assert set(files.changed) == {"b", "both"}
    assert listing(work) == {"both": (0, sha256(b"1\n").hexdigest())}


def test_ignored_large_and_nested_files_are_not_undone_and_named(
    runtime: LocalRuntime, work: Path, tmp_path: Path
) -> None:
    (work / ".gitignore").write_text("*.log\n")
    undo = FileUndo(tmp_path / "undo", max_file_bytes=1000)
    commands = "echo 1 > a; echo 1 > x.log; head -c 2000 /dev/zero > large; git init -q inner;"
    with run_commands(runtime, undo, f"{commands} echo 1 > inner/f") as conversation:
        files = conversation.rewind(0).files
    assert files.changed == ("a",)
    assert files.left_out == ("inner/", "large")
    assert "inner/, large: not in the snapshots" in str(files)
    assert sorted(os.listdir(work)) == [".gitignore", "inner", "large", "x.log"]


def test_the_projects_repository_is_untouched(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    def git(*words: str) -> None:
        config = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *config, *words], cwd=work, check=True, capture_output=True)

    git("init", "-q")
    (work / "a.txt").write_bytes(b"1\r\n")
    (work / ".gitattributes").write_text("*.txt text eol=lf filter=evil ident\n")
    git("-c", "core.safecrlf=false", "commit", "-q", "--allow-empty", "-m", "1")
    git("config", "filter.evil.clean", f"touch {work}/evil; cat")
    before = listing(work / ".git")
    with run_commands(runtime, undo, "printf '2\\r\\n' > a.txt") as conversation:
        conversation.rewind(0)
    assert (work / "a.txt").read_bytes() == b"1\r\n"
    assert listing(work / ".git") == before
    assert not (work / "evil").exists()


def test_read_only_calls_take_no_snapshot(
    runtime: LocalRuntime, tmp_path: Path, undo: FileUndo
) -> None:
    script: list[Any] = [("glob", {"pattern": "*"}), "done"]
    with Conversation(Agent(ScriptedLLM(script), runtime.tools), undo=undo) as conversation:
        conversation.send_message("look")
        conversation.run()
    assert not (tmp_path / "undo").exists()


def test_tools_of_every_kind_are_watched_and_named(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    @tool(annotations=ToolAnnotations(open_world=False))
    def inner() -> str:
        """Write."""
        (work / "inner").write_text("x")
        return ""

    @tool
    def mail() -> ToolResult:
        """Write and send."""
        (work / "mail").write_text("x")
        return ToolResult.failure("not sent")

    script: list[Any] = [("inner", {}), ("mail", {}), ("mail", {}), "done"]
    agent = Agent(ScriptedLLM(script), [*runtime.tools, inner, mail])
    with Conversation(agent, undo=undo) as conversation:
        conversation.send_message("go")
        conversation.run()
        files = conversation.rewind(0).files
    assert set(files.changed) == {"inner", "mail"}
    assert files.outside == {"mail": 2}
    assert os.listdir(work) == []


def test_a_call_that_was_killed_is_undone(tmp_path: Path, work: Path, undo: FileUndo) -> None:
    path = tmp_path / "agent.db"
    child = os.fork()
    if not child:
        try:
            with SQLiteStore(path) as store, LocalRuntime(work) as runtime:
                script: list[Any] = [("terminal", {"command": "echo 1 > a; kill -9 $PPID"})]
                agent = Agent(ScriptedLLM(script), runtime.tools)
                with Conversation(agent, store, "c", undo=undo) as conversation:
                    conversation.send_message("go")
                    conversation.run()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (work / "a").exists()
    with SQLiteStore(path) as store, LocalRuntime(work) as runtime:
        agent = Agent(ScriptedLLM(["done"]), runtime.tools)
        with Conversation(agent, store, "c", undo=undo) as conversation:
            conversation.run()
            assert conversation.rewind(0).files.changed == ("a",)
    assert os.listdir(work) == []


def test_calls_without_a_snapshot_are_named(
    runtime: LocalRuntime, work: Path, undo: FileUndo, tmp_path: Path
) -> None:
    for number in range(3):
        (work / str(number)).write_text("")
    with run_commands(runtime, FileUndo(tmp_path / "u", max_files=2), "echo 1 > a") as conversation:
        files = conversation.fork(undo=undo).rewind(0).files
    assert len(files.without_snapshot) == 1
    assert files.changed == ()
    assert (work / "a").exists()


def test_rewind_refuses_a_running_conversation_and_one_without_undo(
    runtime: LocalRuntime, undo: FileUndo
) -> None:
    with (
        run_commands(runtime, None, "true") as conversation,
        pytest.raises(ConfigurationError, match="keeps no snapshots"),
    ):
        conversation.rewind(0)
    script: list[Any] = [("terminal", {"command": "sleep 30"})]
    with Conversation(Agent(ScriptedLLM(script), runtime.tools), undo=undo) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        with pytest.raises(Conflict, match="interrupt"):
            conversation.rewind(0)
        conversation.interrupt()


def test_what_undo_needs_is_said_when_the_conversation_is_made(
    runtime: LocalRuntime, work: Path, undo: FileUndo, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(ScriptedLLM([]), runtime.tools)
    with pytest.raises(ConfigurationError, match="outside of it"):
        Conversation(agent, undo=FileUndo(work / "undo"))
    with pytest.raises(ConfigurationError, match="not NoneType"):
        Conversation(Agent(ScriptedLLM([])), undo=undo)
    monkeypatch.setattr(environment, "_DEFAULT_PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match="Undo needs git"):
        Conversation(agent, undo=undo)


@pytest.mark.slow
def test_old_snapshots_are_dropped_beyond_the_bound(work: Path, tmp_path: Path) -> None:
    place = snapshots.Snapshots(tmp_path / "u", work, 1000, 10**6, 300_000)
    noise = random.Random(1)
    for number in range(52):
        (work / "a").write_bytes(noise.randbytes(20_000))
        place.take(f"{number:02}/before")
    size = sum(one.stat().st_size for one in (tmp_path / "u").rglob("*") if one.is_file())
    assert size < 400_000
    assert place.load("00/before") is None
    assert place.load("51/before") is not None


def test_a_folder_of_many_files_is_put_back_from_a_pack(
    runtime: LocalRuntime, work: Path, undo: FileUndo
) -> None:
    for number in range(300):
        (work / str(number)).write_bytes(b"x" * (number % 280) * number)
    before = listing(work)
    with run_commands(runtime, undo, "rm 1* ; echo new > 299") as conversation:
        files = conversation.rewind(0).files
    assert listing(work) == before
    assert len(files.changed) == 112


@pytest.mark.skipif(not MECHANISMS, reason="no sandbox here")
def test_a_box_is_undone_too_and_leads_no_write_outside(
    work: Path, tmp_path: Path, undo: FileUndo
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("host")
    (work / "d").mkdir()
    (work / "d" / "f").write_text("1")
    with SandboxedRuntime(work, workdir_inside="/work") as runtime:
        command = f"echo 2 > d/f; echo 2 > a; rm -r d; ln -s {outside} d"
        with run_commands(runtime, undo, command) as conversation:
            files = conversation.rewind(0).files
    assert set(files.changed) == {"a", "d", "d/f"}
    assert (work / "d" / "f").read_text() == "1"
    assert (outside / "f").read_text() == "host"
    assert sorted(os.listdir(work)) == ["d"]


NAMES = ["a", "b", "d/x", "d/y", "d/e/z", "f/g", "sü ß", "tab\tx"]


def random_command(chance: random.Random) -> str:
    name, other = (f"'{chance.choice(NAMES)}'" for _ in range(2))
    return chance.choice(
        [
            f'mkdir -p "$(dirname {name})"; echo {chance.random()} > {name}',
            f"echo {chance.random()} >> {name}",
            f"rm -rf {name}",
            f'mkdir -p "$(dirname {other})"; mv {name} {other}',
            f"chmod +x {name}",
            f"chmod -x {name}",
            f"rm -f {name}; ln -s {other} {name}",
            f'mkdir -p "$(dirname {name})/empty/{chance.randrange(3)}"',
            "rm -rf d",
            f"rm -rf {name}; mkdir -p {name}/inner; echo 1 > {name}/inner/file",
            f"head -c 3000 /dev/urandom > {name}",
            "rmdir d/empty/* d/empty f/empty",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(examples(40)))
def test_after_any_commands_every_earlier_state_comes_back(
    seed: int, runtime: LocalRuntime, work: Path, undo: FileUndo, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        subprocess.run(
            ["bash", "-c", random_command(chance)], cwd=work, capture_output=True, check=False
        )
    states: list[dict[str, Any]] = []
    script: list[Any] = []
    for _ in range(6):
        script += [("terminal", {"command": random_command(chance)}), "done"]
    with Conversation(Agent(ScriptedLLM(script), runtime.tools), undo=undo) as conversation:
        for _ in range(6):
            states.append(listing(work))
            conversation.send_message("go")
            conversation.run().raise_for_status()
        seqs = messages(conversation)
        final = tmp_path / "final"
        shutil.copytree(work, final, symlinks=True)
        for number in sorted(range(6), reverse=chance.random() < 0.5):
            shutil.rmtree(work)
            shutil.copytree(final, work, symlinks=True)
            rewound = conversation.rewind(seqs[number] - 1)
            rewound.conversation.close()
            assert listing(work) == states[number], (seed, number, rewound.files)
            assert not rewound.files.kept


def test_a_store_in_the_work_folder_is_neither_read_nor_put_back(tmp_path: Path) -> None:
    """Reading the store here would release SQLite's locks on it, so that another process could
    remove its log."""
    workdir = tmp_path / "work"
    workdir.mkdir()
    path = workdir / "store.db"
    script = [("terminal", {"command": "echo 1 > a"}), "done"]
    with LocalRuntime(workdir) as runtime, SQLiteStore(path) as store:
        agent = Agent(ScriptedLLM(script), runtime.tools)
        undo = FileUndo(tmp_path / "snapshots")
        with Conversation(agent, store, "a", undo=undo) as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == "done"
            with SQLiteStore(path) as other:  # closing it removes the log if no process has locks
                assert other.read("a")
            conversation.send_message("more")
            assert [one.id for one in store.list()] == ["a"]
            snapshot = undo.place(runtime).take()
    assert {"store.db", "store.db-wal"} <= set(snapshot.left_out)
