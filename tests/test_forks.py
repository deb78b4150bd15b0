"""A program that is forked does what it does in an interpreter of its own (`tests/forks.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forks, samples
from tests.waiting import until

SHOWN = """
import os, sys
print(sys.argv, sys.orig_argv, sys.path, __name__, sorted(globals()), os.getcwd())
print(sorted(os.environ.items()))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream, stream.errors, stream.line_buffering, stream.isatty(), stream.newlines)
print(os.getsid(0), sorted(os.listdir("/proc/self/fd")), file=sys.stderr)
print(sys.stdin.read())
"""
ENDS = {
    "at its end": "",
    "with a code": "raise SystemExit(7)",
    "with a large code": "raise SystemExit(300)",
    "with words": "raise SystemExit('no')",
    "with an error": "1 / 0",
    "with an error of a function": "def f():\n    raise ValueError('x')\nf()",
    "with a mistake": "1 +",
    "by an interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "by a kill": "import os; os.kill(os.getpid(), 9)",
    "by a signal": "import os; os.kill(os.getpid(), 15)",
    "at once": "import os; os._exit(3)",
    "after a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('last'))).start()",
    "with an exit function": "import atexit; atexit.register(print, 'last')",
    "with a full disk": "import sys; sys.stdout = sys.__stdout__ = open('/dev/full', 'w'); print(1)",
}


def both(command: list[str], **options: Any) -> list[tuple[int, str, str]]:
    """Return how the program ended, what it printed, and its errors: as a fork, and not."""
    found: list[tuple[int, str, str]] = []
    for start in (forks.run, subprocess.run):
        ended = start(
            [sys.executable, *command], capture_output=True, text=True, timeout=60, **options
        )
        found.append((ended.returncode, ended.stdout, ended.stderr))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_it_finds_the_same_surroundings(kind: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    command = {"-c": ["-c", SHOWN], "-m": ["-m", "shown"], "file": ["shown.py"]}[kind]
    env = {**os.environ, "ONE": "1", "PYTHONPATH": str(tmp_path / "more")}
    forked, fresh = both([*command, "a", "-b"], cwd=tmp_path, env=env, input="typed\n")
    assert forked == fresh
    assert forked[0] == 0
    assert "typed" in forked[1]


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_it_ends_the_same_way(end: str) -> None:
    forked, fresh = both(["-c", ENDS[end]])
    assert forked == fresh


@pytest.mark.slow
def test_modules_of_its_folder_and_variables_of_the_start_come_first(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("here = True")
    for options in (
        {"cwd": tmp_path},
        {"env": {**os.environ, "PYTHONPATH": str(tmp_path)}},
    ):
        forked, fresh = both(["-c", "import yaml; print(yaml.here)"], **options)
        assert forked == fresh == (0, "True\n", "")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONHASHSEED": "1"}
    program = "import sys; print(sys.stdout.encoding, hash('a'))"
    forked, fresh = both(["-c", program], env=env)
    assert forked == fresh


@pytest.mark.skipif(samples.full(), reason="nothing is forked")
def test_it_is_a_fork_that_imports_nothing_again(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()  # as `make docs` makes it: it does not hide the module `site`
    program = "import sys; print('holdfast.server.app' in sys.modules)"
    for folder in (forks.REPO, tmp_path):
        command = [sys.executable, "-c", program]
        assert forks.run(command, capture_output=True, cwd=folder).stdout == b"True\n"


def test_it_is_waited_for_and_ended_like_any_process(tmp_path: Path) -> None:
    program = "import sys, time; print('begun', flush=True); time.sleep(60)"
    with forks.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
        assert process.poll() == -signal.SIGTERM
        process.kill()  # which is nothing to a process that has ended
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run([sys.executable, "-c", program], capture_output=True, timeout=0.01)
    with pytest.raises(subprocess.CalledProcessError):
        forks.run([sys.executable, "-c", "raise SystemExit(1)"], check=True)
    with pytest.raises(FileNotFoundError):
        forks.run([sys.executable, "-c", ""], cwd=tmp_path / "none")
    assert forks.run(["sh", "-c", "exit 4"]).returncode == 4


def test_a_terminal_is_its_own_and_interrupts_it() -> None:
    ours, theirs = os.openpty()
    program = "import sys, time; print(sys.stdin.isatty()); time.sleep(60)"
    process = forks.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, terminal=True
    )
    os.close(theirs)
    output = b""
    while not output.endswith(b"\n"):  # the text and its line end may come one after the other
        output += os.read(ours, 100)
    assert output == b"True\r\n"
    os.write(ours, b"\x03")
    until(lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGINT
    os.close(ours)
