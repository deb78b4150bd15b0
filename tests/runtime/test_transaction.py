"""Changes of several files: all or none, also after a SIGKILL between any two system calls."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RuntimeFault
from holdfast.runtime import LocalRuntime, transaction
from tests.runtime.test_patches import listing, v4a

PATCH = v4a(
    *("*** Update File: a", "@@", "-one", "+ONE"),
    *("*** Delete File: b",),
    *("*** Add File: new/folder/c", "+c"),
    *("*** Update File: d", "*** Move to: moved/d", "@@", "-x", "+y"),
)
CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "mkdir", "rmdir")


def fill(work: Path) -> None:
    work.mkdir()
    for name, text in (("a", "one\n"), ("b", "two\n"), ("d", "x\n")):
        (work / name).write_text(text)
    os.chmod(work / "a", 0o640)


def apply_until(work: Path, number: int, act: Callable[[], object]) -> int:
    """Apply the patch in a child process that calls `act` in place of the system call with this
    number; return the child's status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                act()
            return real(*arguments, **options)

        return call

    try:
        with LocalRuntime(work) as runtime:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            runtime.files.apply_patch(PATCH)
        os._exit(0)
    except RuntimeFault:
        os._exit(3)
    except BaseException:
        os._exit(4)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(28, "No space left on device")


AFTER: dict[str, bytes | None] = {
    "a": b"ONE\n",
    "moved": None,
    "moved/d": b"y\n",
    "new": None,
    "new/folder": None,
    "new/folder/c": b"c\n",
}
BEFORE: dict[str, bytes | None] = {"a": b"one\n", "b": b"two\n", "d": b"x\n"}


@pytest.mark.slow
@pytest.mark.parametrize("act", [kill, fail])
def test_a_patch_that_ends_at_any_system_call_changes_all_files_or_none(
    tmp_path: Path, act: Callable[[], object]
) -> None:
    outcomes: list[bool] = []
    for number in range(1, 1000):
        work = tmp_path / str(number)
        fill(work)
        status = apply_until(work, number, act)
        if act is fail:
            assert os.waitstatus_to_exitcode(status) in (0, 3), number
        with LocalRuntime(work):
            contents = listing(work)
        assert contents in (BEFORE, AFTER), (number, contents)
        assert stat.S_IMODE((work / "a").stat().st_mode) == 0o640
        outcomes.append(contents == AFTER)
        if act is fail:
            assert outcomes[-1] == (status == 0), number
        if status == 0 and (act is kill or number > 150):
            break
    assert outcomes[-1]
    assert outcomes.count(False) > 20


def test_changes_of_a_living_process_are_not_taken_back(tmp_path: Path) -> None:
    work = tmp_path / "work"
    fill(work)
    staged, go_on = threading.Event(), threading.Event()
    real = transaction._make

    def make(step: Any) -> None:
        staged.set()
        go_on.wait(30)
        real(step)

    with LocalRuntime(work) as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "_make", make)
        thread = threading.Thread(target=runtime.files.apply_patch, args=(PATCH,))
        thread.start()
        assert staged.wait(30)
        with LocalRuntime(work):
            assert (work / transaction.RECORDS).exists()
        go_on.set()
        thread.join(30)
    assert listing(work) == AFTER


@pytest.mark.slow
def test_a_file_that_was_changed_after_the_kill_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = tmp_path / "work"
    fill(work)
    number = 1
    while (work / "a").read_text() == "one\n":  # until the first file has changed
        shutil.rmtree(work)
        fill(work)
        assert os.WIFSIGNALED(apply_until(work, number, kill))
        number += 1
    (work / "a").write_text("edited by hand\n")
    with LocalRuntime(work):
        pass
    assert listing(work) == {**BEFORE, "a": b"edited by hand\n"}
    assert "changed since" in caplog.text


def test_a_forged_record_reaches_nothing(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    fill(work)
    outside.write_text("safe")
    ids = [outside.stat().st_ino, outside.stat().st_mtime_ns]
    own = [(work / "a").stat().st_ino, (work / "a").stat().st_mtime_ns]
    records = work / transaction.RECORDS
    records.mkdir(parents=True)
    for number, step in enumerate(
        (
            {"path": str(outside), "staged": ".outside.0.tmp", "backup": "", "new": ids},
            {"path": str(work / "a"), "staged": "", "backup": "../outside", "old": ids},
            {"path": str(work / "a"), "staged": ".a.0.tmp", "backup": ".b.0.tmp", "new": own},
        )
    ):
        line = json.dumps({"steps": [step], "made": []})
        (records / f"{number}.json").write_text(f"{line}\n{line}\n")
    (records / "junk").write_bytes(b"\xff\n\n")
    os.mkfifo(records / "fifo")
    with LocalRuntime(work):
        assert outside.read_text() == "safe"
        assert {k: v for k, v in listing(work).items() if k in BEFORE} == {**BEFORE}
