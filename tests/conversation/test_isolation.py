"""Children with a folder of their own: a git worktree or a copy. The parent takes over their
changes or drops them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, LocalRuntime, ScriptedLLM, load_agent
from holdfast import events as ev
from holdfast.agent.agents_files import load_sub_agents
from holdfast.agent.delegation import Delegates
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime.own_folder import OwnFolder
from holdfast.tools import Tool, ToolManager
from tests import forks

CHILD = "top.4.0"
KINDS = pytest.mark.parametrize("kind", ["worktree", "copy"])


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "a.txt").write_text("".join(f"line {n}\n" for n in range(20)))
    (folder / "src" / "b.txt").write_text("b\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def runtime(repository: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(repository) as backend:
        yield backend


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": command}


def give(task: str = "go", **more: Any) -> tuple[str, dict[str, Any]]:
    return "delegate", {"agent": "worker", "task": task, **more}


def settle(how: str, *ids: str) -> tuple[str, dict[str, Any]]:
    return f"delegate_{how}", {"ids": list(ids or [CHILD])}


def lead(runtime: LocalRuntime, kind: Any, script: Any, *work: Any) -> Agent:
    worker = Agent(ScriptedLLM([*work, "I did it."]), runtime.tools)
    delegates = Delegates({"worker": worker}, isolation=kind)
    return Agent(ScriptedLLM(script), runtime.tools, delegates=delegates)


def run(agent: Agent, store: Any = None) -> list[str]:
    with Conversation(agent, store, id="top") as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
        return [
            event.result.text
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        ]


def folders(folder: Path) -> list[str]:
    place = folder / ".holdfast" / "children"
    return sorted(path.name for path in place.glob("*") if path.is_dir())


EDIT = "sed -i 's/line 5/LINE 5/' a.txt; echo new > src/c.txt; rm src/b.txt; pwd"


@pytest.mark.slow
@KINDS
def test_changes_come_back_as_a_patch_that_is_taken_over(
    repository: Path, runtime: LocalRuntime, kind: str
) -> None:
    look = shell("cat a.txt | sed -n 6p; ls src; git status --short")
    report, before, applied, after = run(
        lead(runtime, kind, [give(), look, settle("apply"), look, "done"], shell(EDIT))
    )
    assert report.startswith(
        "I did it.\n\nIt worked in a folder of its own. Its changes of 3 files"
    )
    assert "-line 5\n+LINE 5\n" in report
    assert report.endswith(f"[worker: conversation {CHILD}]")
    assert before.startswith("line 5\nb.txt\n[")
    assert applied == f"{CHILD}: its changes are in your folder: a.txt, src/b.txt, src/c.txt."
    assert after.startswith("LINE 5\nc.txt\n M a.txt\n D src/b.txt\n?? src/c.txt\n")
    assert folders(repository) == []


@pytest.mark.slow
def test_the_rules_of_calls_hold_in_a_folder_of_its_own(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    class Remote(Tool):
        tool_type = "mcp_tool"

    tools = ToolManager(
        [*runtime.tools, Remote("srv.look", "Look.", lambda: "x")],
        result_limit={"terminal": 300},
        result_dir=tmp_path / "long",
        concurrency=3,
        pins=tmp_path / "pins.json",
    )
    worker = Agent(ScriptedLLM([shell("seq 1 5000"), "I did it."]), tools)
    agent = Agent(
        ScriptedLLM([give(), "done"]),
        runtime.tools,
        delegates=Delegates({"worker": worker}, isolation="copy"),
    )
    run(agent)
    [output_file] = (tmp_path / "long").iterdir()
    assert "\n5000\n" in output_file.read_text()
    moved = worker.tools.with_other_tools([Remote("srv.look", "Look elsewhere.", lambda: "x")])
    assert list(moved.held) == ["srv.look"]
    assert moved.rules == tools.rules


@KINDS
def test_changes_are_dropped(repository: Path, runtime: LocalRuntime, kind: str) -> None:
    _, dropped, again = run(
        lead(runtime, kind, [give(), settle("drop"), settle("apply"), "done"], shell(EDIT))
    )
    assert dropped == f"{CHILD}: its changes and its folder are gone."
    assert again == f"{CHILD}: no changes wait."
    assert folders(repository) == []
    assert git(repository, "status", "--short") == ""


@KINDS
def test_a_folder_without_changes_is_removed(
    repository: Path, runtime: LocalRuntime, kind: str
) -> None:
    [report] = run(lead(runtime, kind, [give(), "done"], shell("ls")))
    assert report == f"I did it.\n[worker: conversation {CHILD}]"
    assert folders(repository) == []


@KINDS
def test_a_dirty_folder_is_given_as_it_is(
    repository: Path, runtime: LocalRuntime, kind: str
) -> None:
    (repository / "a.txt").write_text("changed\n")
    (repository / "src" / "b.txt").unlink()
    (repository / "new.txt").write_text("new\n")
    report, _ = run(
        lead(
            runtime,
            kind,
            [give(), settle("apply"), "done"],
            shell("git status --short > status.txt; cat a.txt new.txt; echo more >> new.txt"),
        )
    )
    assert "Its changes of 2 files" in report
    assert (repository / "new.txt").read_text() == "new\nmore\n"
    assert (repository / "a.txt").read_text() == "changed\n"
    status = (repository / "status.txt").read_text().splitlines()
    assert {" M a.txt", " D src/b.txt", "?? new.txt"} <= set(status)


@pytest.mark.slow
@KINDS
def test_two_children_work_at_once_and_both_changes_are_merged(
    repository: Path, runtime: LocalRuntime, kind: str
) -> None:
    def work(request: Any) -> Any:
        task = next(one["content"] for one in request.messages if one["role"] == "user")
        if request.messages[-1]["role"] == "user":
            return shell(f"sed -i 's/^line {task}$/LINE {task}/' a.txt")
        return "done"

    worker = Agent(ScriptedLLM(work), runtime.tools)
    script = [[give("2"), give("15")], settle("apply", "top.4.0", "top.4.1"), "done"]
    delegates: Any = Delegates({"worker": worker}, isolation=kind)  # pyright: ignore[reportArgumentType]: a parameter of the test
    results = run(Agent(ScriptedLLM(script), runtime.tools, delegates=delegates))
    lines = (repository / "a.txt").read_text().splitlines()
    assert (lines[2], lines[15]) == ("LINE 2", "LINE 15"), results
    assert folders(repository) == []


def test_a_conflict_changes_nothing_and_keeps_the_folder(
    repository: Path, runtime: LocalRuntime
) -> None:
    mine = shell("sed -i 's/line 5/mine/' a.txt")
    _, _, failed, dropped = run(
        lead(
            runtime,
            "copy",
            [give(), mine, settle("apply"), settle("drop"), "done"],
            shell(EDIT),
        )
    )
    assert "does not fit" in failed
    assert "Its folder is still there." in failed
    assert "gone" in dropped
    assert (repository / "src" / "b.txt").exists()
    assert not (repository / "src" / "c.txt").exists()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("echo mine > src/c.txt", "echo theirs > src/c.txt"),
        ("echo mine > src/b.txt", "rm src/b.txt"),
        ("rm a.txt", "echo more >> a.txt"),
        ("ln -s a.txt link", "ln -s src link"),
    ],
)
def test_what_both_changed_is_named_and_nothing_is_taken_over(
    repository: Path, runtime: LocalRuntime, mine: str, theirs: str
) -> None:
    script = [give(), shell(mine), settle("apply"), "done"]
    _, _, failed = run(lead(runtime, "copy", script, shell(f"{theirs}; echo x > other.txt")))
    assert "Nothing was taken over:" in failed
    assert not (repository / "other.txt").exists()


def test_files_that_are_no_text_links_and_modes_are_taken_over(
    repository: Path, runtime: LocalRuntime
) -> None:
    (repository / "old.bin").write_bytes(b"\0old")
    (repository / "latin.txt").write_bytes(b"caf\xe9\n")
    work = shell(
        r"printf '\0new' > old.bin; printf '\0\1' > new.bin; ln -s a.txt link; chmod +x a.txt;"
        r" printf 'th\351\n' >> latin.txt; echo x > 'with space.txt'; echo y > 'ü.txt'; echo c >> src/b.txt; chmod +x src/b.txt"
    )
    report, applied = run(lead(runtime, "copy", [give(), settle("apply"), "done"], work))
    assert "Changed, and not text: a.txt, latin.txt, link, new.bin, old.bin" in report
    assert (repository / "old.bin").read_bytes() == b"\0new"
    assert (repository / "new.bin").read_bytes() == b"\0\1"
    assert (repository / "latin.txt").read_bytes() == b"caf\xe9\nth\xe9\n"
    assert os.readlink(repository / "link") == "a.txt"
    assert os.access(repository / "a.txt", os.X_OK)
    assert (repository / "with space.txt").read_text() == "x\n", applied
    assert (repository / "ü.txt").read_text() == "y\n"
    assert (repository / "src" / "b.txt").read_text() == "b\nc\n"
    assert os.access(repository / "src" / "b.txt", os.X_OK)


def test_a_file_takes_the_place_of_a_folder_and_the_reverse(
    repository: Path, runtime: LocalRuntime
) -> None:
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    work = folder.workdir
    (work / "src" / "b.txt").unlink()
    (work / "src").rmdir()
    (work / "src").write_text("now a file\n")
    (work / "a.txt").unlink()
    (work / "a.txt" / "deep").mkdir(parents=True)
    (work / "a.txt" / "deep" / "c.txt").write_text("c\n")
    assert folder.apply() == ["a.txt", "a.txt/deep/c.txt", "src", "src/b.txt"]
    assert (repository / "src").read_text() == "now a file\n"
    assert (repository / "a.txt" / "deep" / "c.txt").read_text() == "c\n"


@pytest.mark.parametrize("mine", ["src/mine.txt", "new"])
def test_what_stands_in_the_way_is_a_conflict(
    repository: Path, runtime: LocalRuntime, mine: str
) -> None:
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    work = folder.workdir
    (work / "src" / "b.txt").unlink()
    (work / "src").rmdir()
    (work / "src").write_text("now a file\n")
    (work / "new" / "deep").mkdir(parents=True)
    (work / "new" / "deep" / "c.txt").write_text("c\n")
    (work / "a.txt").write_text("changed\n")
    (repository / mine).write_text("mine\n")
    for _ in range(2):
        with pytest.raises(RuntimeFault, match=r"Nothing was taken over: (src|new/deep/c\.txt) "):
            folder.apply()
    assert (repository / "a.txt").read_text() != "changed\n"
    assert (repository / "src" / "b.txt").exists()
    assert folder.exists


def test_a_failure_of_writing_is_told_and_the_next_call_goes_on(
    repository: Path, runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    (folder.workdir / "new.txt").write_text("new\n")
    folder.changes()  # replaces files of its own

    def fail(path: Path, target: Path) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        with pytest.raises(RuntimeFault, match="the disk is full"):
            folder.apply()
    assert {path.name for path in repository.glob("[!.]*")} == {"a.txt", "src"}
    assert list(repository.glob(".*.tmp")) == []
    assert folder.apply() == ["new.txt"]


def test_private_files_stay_private(repository: Path, runtime: LocalRuntime) -> None:
    for name in ("key.der", "merged.txt"):
        (repository / name).write_bytes(b"\0key" if name == "key.der" else b"1\n2\n3\n4\n5\n6\n")
        (repository / name).chmod(0o600)
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    work = folder.workdir
    (work / "key.der").write_bytes(b"\0new")
    (work / "new.key").write_text("key")
    (work / "new.key").chmod(0o640)
    (work / "merged.txt").write_text("1\n2\n3\n4\n5\nsix\n")
    (work / "merged.txt").chmod(0o755)
    (repository / "merged.txt").write_text("one\n2\n3\n4\n5\n6\n")
    folder.apply()
    modes = {path.name: path.stat().st_mode & 0o777 for path in repository.glob("*.*")}
    assert modes["key.der"] == 0o600
    assert modes["new.key"] == 0o640
    assert modes["merged.txt"] == 0o700
    assert (repository / "merged.txt").read_text() == "one\n2\n3\n4\n5\nsix\n"


def test_a_text_with_a_byte_order_mark_is_taken_over(
    repository: Path, runtime: LocalRuntime
) -> None:
    (repository / "bom.txt").write_text("\ufeffa\nb\n")
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    (folder.workdir / "bom.txt").write_text("\ufeffa\nc\n")
    assert folder.apply() == ["bom.txt"]
    assert (repository / "bom.txt").read_text() == "\ufeffa\nc\n"


def test_a_worktree_needs_a_repository_with_a_commit(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    with LocalRuntime(folder) as runtime:
        [refused] = run(lead(runtime, "worktree", [give(), "done"]))
        assert "needs a git repository" in refused
        assert "Use isolation='copy' there." in refused
        git(folder, "init", "-q")
        [refused] = run(lead(runtime, "worktree", [give(), "done"]))
        assert "has no commit yet" in refused
    assert folders(folder) == []


def test_a_copy_needs_no_repository_and_git_does_not_leave_it(tmp_path: Path) -> None:
    folder = tmp_path / "outer" / "plain"
    folder.mkdir(parents=True)
    git(tmp_path / "outer", "init", "-q")
    (folder / "a.txt").write_text("a\n")
    work = shell("git rev-parse --show-toplevel > top.txt; echo b >> a.txt")
    with LocalRuntime(folder) as runtime:
        report, _ = run(lead(runtime, "copy", [give(), settle("apply"), "done"], work))
        with Conversation(lead(runtime, "copy", ["x"]), id="other") as conversation:
            assert conversation.children == []
    assert (folder / "a.txt").read_text() == "a\nb\n"
    assert (folder / "top.txt").read_text() == ""
    assert "Its changes of 2 files" in report


def test_a_worktree_of_a_folder_below_the_top(repository: Path) -> None:
    with LocalRuntime(repository / "src") as runtime:
        work = shell("echo more >> b.txt; echo x > ../outside.txt; basename $PWD")
        report, _ = run(lead(runtime, "worktree", [give(), settle("apply"), "done"], work))
    assert "Changed outside of the work folder, and not taken over: outside.txt" in report
    assert (repository / "src" / "b.txt").read_text() == "b\nmore\n"
    assert not (repository / "outside.txt").exists()
    assert len(folders(repository / "src")) == 1


@pytest.mark.parametrize("more", ["", "; echo c > c.txt"])
def test_what_is_never_taken_over_is_reported_and_kept(
    repository: Path, runtime: LocalRuntime, more: str
) -> None:
    work = shell(f"git init -q vendor; echo x > vendor/f; truncate -s 12M model.bin{more}")
    report, applied, dropped = run(
        lead(runtime, "copy", [give(), settle("apply"), settle("drop"), "done"], work)
    )
    assert "not taken over: model.bin, vendor/" in report
    assert "is kept for what is not taken over" in applied
    assert (repository / "c.txt").exists() is bool(more)
    assert dropped == f"{CHILD}: its changes and its folder are gone."


def test_a_sandboxed_runtime_is_refused() -> None:
    class Sandboxed:
        tools: list[Any] = []

    worker = Agent(ScriptedLLM(["x"]))
    agent = Agent(
        ScriptedLLM([give(), "done"]), delegates=Delegates({"worker": worker}, isolation="copy")
    )
    for runtime in (None, Sandboxed()):
        with Conversation(agent.replace(llm=ScriptedLLM([give(), "done"])), runtime=runtime) as one:
            one.send_message("go")
            one.run()
            [result] = [e for e in one.get_history() if isinstance(e, ev.ToolCallFinished)]
            assert "needs a LocalRuntime" in result.result.text


@pytest.mark.slow
@KINDS
def test_a_resumed_child_has_its_folder_until_its_changes_are_settled(
    repository: Path, runtime: LocalRuntime, kind: str
) -> None:
    more = give("more", resume=CHILD)
    work = [shell("echo one > one.txt"), "first", shell("ls; echo two > two.txt"), "second"]
    results = run(lead(runtime, kind, [give(), more, settle("apply"), more, "done"], *work))
    assert "Its changes of 2 files" in results[1]
    assert (repository / "one.txt").exists()
    assert results[3].startswith("I did it.")
    assert folders(repository) == []


def test_a_background_child_has_a_folder_of_its_own(
    repository: Path, runtime: LocalRuntime
) -> None:
    collect = ("delegate_collect", {"ids": [CHILD]})
    script = [give(background=True), collect, settle("apply"), "done"]
    _, collected, applied = run(lead(runtime, "worktree", script, shell(EDIT)))
    assert "Its changes of 3 files" in collected
    assert "its changes are in your folder" in applied
    assert folders(repository) == []


def test_a_long_patch_is_cut_and_kept_in_a_file(repository: Path, runtime: LocalRuntime) -> None:
    work = shell("seq 1 10000 > numbers.txt")
    report, _ = run(lead(runtime, "copy", [give(), shell("true"), "done"], work))
    assert len(report) < 25_000
    path = report.split("The whole patch is in ")[1].split(".\n")[0].split("\n")[0].rstrip(".")
    assert "+10000\n" in (repository / path).read_text()


def test_a_folder_whose_making_was_cut_short_is_made_anew(
    repository: Path, runtime: LocalRuntime
) -> None:
    folder = OwnFolder(runtime, "x")
    folder.make("worktree")
    (folder.workdir / "left.txt").write_text("left")
    home = repository / ".holdfast" / "children" / folders(repository)[0]
    (home / "ready").unlink()
    again = OwnFolder(runtime, "x")
    assert not again.exists
    again.make("worktree")
    assert not (again.workdir / "left.txt").exists()
    again.drop()


def test_what_a_child_commits_and_stashes_is_in_its_own_repository(
    repository: Path, runtime: LocalRuntime
) -> None:
    git(repository, "config", "core.worktree", str(repository))
    git(repository, "config", "remote.origin.url", "https://example.org/x.git")
    git(repository, "tag", "v1")
    (repository / "a.txt").write_text("not committed\n")
    git(repository, "status")  # writes the index
    files = {path: path.read_bytes() for path in (repository / ".git").rglob("*") if path.is_file()}
    folder = OwnFolder(runtime, "x")
    folder.make("worktree")
    work = folder.workdir
    assert git(work, "status", "--short") == " M a.txt\n"
    (work / "src" / "b.txt").write_text("new\n")
    git(work, "stash")
    git(work, "checkout", "-q", "-b", "topic")
    git(work, "stash", "pop")
    git(work, "commit", "-qam", "second")
    assert git(work, "log", "--format=%s", "v1..topic") == "second\n"
    assert git(work, "config", "remote.origin.url") == "https://example.org/x.git\n"
    folder.apply()
    assert (repository / "src" / "b.txt").read_text() == "new\n"
    now = {path: path.read_bytes() for path in (repository / ".git").rglob("*") if path.is_file()}
    assert now == files


@pytest.mark.parametrize("how", ["bare", "worktree", "shallow", "sha256"])
def test_a_worktree_of_an_unusual_repository(tmp_path: Path, how: str) -> None:
    source, place = tmp_path / "source", tmp_path / "project"
    source.mkdir()
    kind = ["--object-format=sha256"] if how == "sha256" else []
    git(source, "init", "-q", "-b", "main", *kind)
    for text in ("one\n", "two\n"):
        (source / "a.txt").write_text(text)
        git(source, "add", "-A")
        git(source, "commit", "-q", "-m", text)
    if how == "shallow":
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{source}", str(place))
    elif how == "sha256":
        place = source
    else:
        git(source, "config", "core.bare", "true" if how == "bare" else "false")
        git(source, "worktree", "add", "-q", str(place))
    with LocalRuntime(place) as runtime:
        folder = OwnFolder(runtime, "x")
        folder.make("worktree")
        assert git(folder.workdir, "status", "--short") == ""
        assert git(folder.workdir, "log", "--format=%s").split()[0] == "two"
        (folder.workdir / "a.txt").write_text("three\n")
        git(folder.workdir, "commit", "-qam", "three")
        assert folder.apply() == ["a.txt"]


def test_an_application_that_was_cut_short_is_completed(
    repository: Path, runtime: LocalRuntime
) -> None:
    folder = OwnFolder(runtime, "x")
    folder.make("copy")
    for name in ("a.txt", "new.txt"):
        (folder.workdir / name).write_text("same\n")
    (folder.workdir / "src" / "b.txt").unlink()
    (repository / "new.txt").write_text("same\n")
    (repository / "src" / "b.txt").unlink()
    assert folder.apply() == ["a.txt", "new.txt", "src/b.txt"]
    assert (repository / "a.txt").read_text() == "same\n"


def test_a_link_in_the_place_of_the_folders_is_refused(
    repository: Path, runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repository / ".holdfast").symlink_to(tmp_path / "elsewhere")
    [refused] = run(lead(runtime, "copy", [give(), "done"]))
    assert "is not a folder" in refused
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_hooks_of_a_repository_do_not_run(repository: Path, runtime: LocalRuntime) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch $HOME/ran ran\n")
    hook.chmod(0o755)
    folder = OwnFolder(runtime, "x")
    folder.make("worktree")
    assert not (folder.workdir / "ran").exists()
    folder.drop()


def test_the_filters_of_a_repository_do_not_run(
    repository: Path, runtime: LocalRuntime, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    config = repository / ".git" / "config"
    command = f"sh -c 'touch {ran}; cat'"
    config.write_text(
        f'{config.read_text()}[filter "x"]\n\tclean = "{command}"\n\tsmudge = "{command}"\n'
    )
    (repository / ".gitattributes").write_text("* filter=x\n")
    (repository / "new.txt").write_text("new\n")
    folder = OwnFolder(runtime, "x")
    folder.make("worktree")
    assert (folder.workdir / "new.txt").read_text() == "new\n"
    assert (folder.workdir / "src" / "b.txt").read_text() == "b\n"
    folder.drop()
    assert not ran.exists()


def test_missing_objects_are_not_fetched(
    repository: Path, runtime: LocalRuntime, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    config = repository / ".git" / "config"
    config.write_text(
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = x\n"
        f'[remote "x"]\n\turl = "ext::touch {ran}"\n\tpromisor = true\n'
        '[protocol "ext"]\n\tallow = always\n'
    )
    (repository / ".git" / "refs" / "heads" / "main").write_text(f"{'1' * 40}\n")
    with pytest.raises(RuntimeFault):
        OwnFolder(runtime, "x").make("worktree")
    assert not ran.exists()


def test_a_repository_whose_files_are_elsewhere_is_refused(
    repository: Path, runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "private.txt").write_text("private\n")
    git(repository, "config", "core.worktree", str(tmp_path))
    with pytest.raises(RuntimeFault, match=r"core\.worktree"):
        OwnFolder(runtime, "x").make("worktree")
    assert folders(repository) == []


@pytest.mark.slow
def test_an_open_store_is_not_copied(repository: Path) -> None:
    from holdfast import SQLiteStore

    with SQLiteStore(repository / "store.db") as store, LocalRuntime(repository) as runtime:
        [report] = run(lead(runtime, "copy", [give(), "done"], shell("ls")), store)
        assert report.startswith("I did it.\n[")
        folder = OwnFolder(runtime, "x")
        folder.make("copy")
        names = {path.name for path in folder.workdir.iterdir()}
        assert "a.txt" in names
        assert "store.db" not in names


PROGRAM = """
import os, signal, sys
from pathlib import Path
from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, SQLiteStore
from holdfast.agent.delegation import Delegates

folder, store, kind, how = sys.argv[1:]

def work(request):
    done = sum(one["role"] == "assistant" for one in request.messages)
    if not done:
        return ("write_file", {"path": "one.txt", "content": "one"})
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return [None, ("write_file", {"path": "two.txt", "content": "two"}), "did it"][done]

script = [("delegate", {"agent": "worker", "task": "go"}), ("delegate_apply", {"ids": ["top.4.0"]})]

def answer(request):
    done = sum(one["role"] == "assistant" for one in request.messages)
    return [*script, "done"][done]

with LocalRuntime(folder) as runtime:
    worker = Agent(ScriptedLLM(work), runtime.tools)
    delegates = Delegates({"worker": worker}, isolation=kind)
    agent = Agent(ScriptedLLM(answer), runtime.tools, delegates=delegates)
    with Conversation(agent, SQLiteStore(store), "top") as conversation:
        if not conversation.get_history():
            conversation.send_message("go")
        print(conversation.run().status)
"""


@pytest.mark.slow
@KINDS
def test_a_killed_child_finds_its_folder_again(repository: Path, tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(how: str) -> subprocess.CompletedProcess[str]:
        arguments = [str(program), str(repository), str(tmp_path / "store.db"), kind, how]
        return forks.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )

    assert start("kill").returncode == -signal.SIGKILL
    assert len(folders(repository)) == 1
    again = start("go")
    assert again.stdout == "finished\n", again.stderr
    assert (repository / "one.txt").read_text() == "one"
    assert (repository / "two.txt").read_text() == "two"
    assert folders(repository) == []


# --- settings ---


def test_the_tools_for_changes_come_with_isolation_alone(runtime: LocalRuntime) -> None:
    def tools(agent: Agent) -> set[str]:
        return {tool.name for tool in agent.tools.list_tools() if "delegate_" in tool.name}

    plain = tools(lead(runtime, None, []))
    assert tools(lead(runtime, "copy", [])) - plain == {"delegate_apply", "delegate_drop"}
    with pytest.raises(ConfigurationError, match="isolation"):
        lead(runtime, "branch", [])


def test_isolation_in_files(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "w.md").write_text("---\nname: w\nisolation: worktree\n---\nYou work.\n")
    (folder / "x.md").write_text("---\nname: x\nisolation: cloud\n---\nYou work.\n")
    agents = load_sub_agents(tmp_path)
    assert {name: one.isolation for name, one in agents.items()} == {"w": "worktree"}
    model = {"use": "scripted", "parameters": {"script": []}}
    form = {
        "model": model,
        "delegates": {"a": {"model": model}, "b": {"prompt": "P.", "isolation": "worktree"}},
        "delegation": {"isolation": "copy"},
    }
    agent = load_agent(form)
    for one in (agent, Agent.from_json(agent.to_json())):
        assert one.delegates is not None
        kinds = [one.delegates.isolation_of(name) for name in ("a", "b")]
        assert kinds == ["copy", "worktree"]
