"""Tests of temporary folders: removed with their owner, swept after its death, and never taken from
another process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.temporary import MARKER, TemporaryFolder, sweep

OWNER = """
import sys, time
from holdfast import LocalRuntime
runtime = LocalRuntime()
for line in sys.argv[1:]:
    runtime.run_command(line)
print(runtime.terminal.outputs.parent, flush=True)
time.sleep(300)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def owner(*commands: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a process with a runtime in a temporary folder, which has run commands. Returns both."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, *commands], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(*commands: str) -> Path:
    """Kill such a process, and return its folder."""
    process, folder = owner(*commands)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert folder.is_dir()
    return folder


@pytest.mark.slow
def test_the_next_start_removes_what_a_killed_process_left(root: Path) -> None:
    empty = killed()
    used = killed("seq 1 200000", "cd /")
    assert list((used / "output").iterdir())
    process, living = owner()  # the next start of a program
    try:
        assert not empty.exists()
        assert not used.exists()
        assert living.is_dir()
    finally:
        process.kill()
        process.communicate()


def test_somebodys_work_stays_and_is_named_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = killed("echo precious > work.txt")
    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            assert sweep(str(root)) == []
    assert (folder / "workdir" / "work.txt").read_text() == "precious\n"
    assert len([record for record in caplog.records if str(folder) in record.getMessage()]) == 1
    (folder / "workdir" / "work.txt").unlink()
    assert sweep(str(root)) == [folder]


def test_a_living_owners_folder_is_never_touched_however_old(root: Path) -> None:
    process, folder = owner("seq 1 200000")
    try:
        for path in (folder, folder / MARKER, folder / "output"):
            os.utime(path, (0, 0))
        assert sweep(str(root)) == []
        assert list((folder / "output").iterdir())
    finally:
        process.kill()
        process.communicate()
    assert sweep(str(root)) == [folder]


def test_a_command_that_outlives_its_killed_runtime_does_not_keep_the_folder(root: Path) -> None:
    folder = killed("setsid sleep 5 > /dev/null 2>&1 &")
    assert sweep(str(root)) == [folder]


def test_what_has_no_marker_of_ours_is_never_touched(root: Path) -> None:
    foreign = {
        "no marker": lambda f: (f / "file").write_text("x"),
        "an empty marker": lambda f: (f / MARKER).touch(),
        "another's marker": lambda f: (f / MARKER).write_text("something else\n\n"),
        "half a marker": lambda f: (f / MARKER).write_text("holdfast temporary folder\nwork"),
        "a link": lambda f: (f / MARKER).symlink_to(root / "target"),
        "a pipe": lambda f: os.mkfifo(f / MARKER),
        "a folder": lambda f: (f / MARKER).mkdir(),
    }
    (root / "target").write_text("holdfast temporary folder\n\n")
    for name, make in foreign.items():
        folder = root / f"holdfast-{name}"
        folder.mkdir()
        make(folder)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARKER).write_text("holdfast temporary folder\n\n")
    (root / "holdfast-link").symlink_to(elsewhere)
    (root / "holdfast-file").write_text("x")
    before = sorted(str(path) for path in root.rglob("*"))
    assert sweep(str(root)) == []
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_two_processes_that_sweep_at_once_remove_each_folder_once(root: Path) -> None:
    folders = [TemporaryFolder() for _ in range(40)]
    for folder in folders:
        (folder.path / "output").mkdir()
        os.close(folder._lock)  # the kernel does so for an owner that was killed
        folder._lock = os.open(os.devnull, os.O_RDONLY)
    program = (
        "import sys, os; from holdfast.temporary import sweep; print('ready', flush=True);"
        " sys.stdin.readline(); print(len(sweep(sys.argv[1])), flush=True)"
    )
    sweepers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for sweeper in sweepers:
        assert sweeper.stdout is not None
        sweeper.stdout.readline()
    for sweeper in sweepers:
        assert sweeper.stdin is not None
        sweeper.stdin.write("\n")
        sweeper.stdin.flush()
    counts = [int(sweeper.communicate()[0]) for sweeper in sweepers]
    assert sum(counts) == 40
    assert list(root.iterdir()) == []
    for folder in folders:
        folder.close()


def test_a_folder_made_while_others_sweep_is_never_lost(root: Path) -> None:
    program = (
        "import sys; from holdfast.temporary import sweep; print(flush=True)\nwhile True: assert"
        " sweep(sys.argv[1]) == []"
    )
    sweeper = subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE)
    try:
        assert sweeper.stdout is not None
        sweeper.stdout.readline()
        for _ in range(300):
            folder = TemporaryFolder()
            assert (folder.path / MARKER).read_bytes()
            folder.close()
            assert not folder.path.exists()
        assert sweeper.poll() is None
    finally:
        sweeper.kill()
        sweeper.communicate()
