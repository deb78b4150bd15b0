"""`LiveBox`: boxes whose first process has been taken over, and boxes that are closed early."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from holdfast import SandboxedRuntime
from holdfast.errors import RuntimeFault
from holdfast.runtime.command_host import NetworkLog
from holdfast.runtime.sandbox import mechanisms
from holdfast.runtime.sandbox.settings import BoxSettings
from holdfast.tools.launch import Launch
from tests.leftovers import Owned

# The first process of a box, written by an attacker: it reports a start, and then sends `{what}`.
HOSTILE = """
import os, signal, time
os.write(0, b"ready 0\\n")
os.read(0, 100)
os.write(0, b"started 0\\n")
time.sleep(0.1)
{what}
time.sleep(60)
"""


class Hostile:
    """A mechanism, and its launcher, whose boxes run an attacker's program."""

    name = "hostile"

    def __init__(self, what: str) -> None:
        self._program = HOSTILE.format(what=what)

    def missing(self) -> str:
        return ""

    def refuses(self, box: BoxSettings) -> str:
        return ""

    def home(self, private: Path) -> str:
        return "/"

    def launcher(self, box: BoxSettings) -> Hostile:
        return self

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        return Launch([sys.executable, "-I", "-S", "-c", self._program], env)

    def limit(self, first_pid: int) -> None:
        pass

    def share(self, folder: Path) -> None:
        pass

    def take_connections(self) -> NetworkLog:
        return NetworkLog()

    def close(self) -> None:
        pass


def ends(work: Callable[[], object], seconds: float = 20) -> bool:
    """Return True if the work ends in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize(
    "what",
    [
        "while True: os.write(0, b'x\\n' * 1000)",
        "while True: os.write(0, b'A' * 4096)",
        "os.write(0, b'ended zz\\n')",
        "os.write(0, b'ended')",
        "os.write(0, b'started 0\\n')",
        "pass",
    ],
)
def test_a_box_that_was_taken_over_harms_its_own_conversation_alone(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(mechanisms, "MECHANISMS", (Hostile(what),))
    runtime = SandboxedRuntime(mechanism="hostile")
    found: list[object] = []

    def run(name: str) -> None:
        result = runtime.run_command("true", timeout=0.3, conversation_id=name)
        found.append(result.meta["exitCode"])

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [137, 137]
    assert ends(runtime.close)


@pytest.mark.slow
def test_a_conversation_that_is_closed_while_its_box_starts_keeps_nobody_waiting() -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    with SandboxedRuntime(mechanism="bubblewrap") as first:
        first.run_command(":")  # makes what a process makes once
    owned = Owned()
    moments = random.Random(5)
    surprises: list[BaseException] = []
    with SandboxedRuntime(mechanism="bubblewrap", command_timeout=5) as runtime:

        def run(name: str) -> None:
            try:
                runtime.run_command("sleep 0.02", conversation_id=name)
            except RuntimeFault:
                pass
            except BaseException as error:
                surprises.append(error)

        for number in range(40):
            name = str(number)
            thread = threading.Thread(target=run, args=(name,), daemon=True)
            thread.start()
            time.sleep(moments.random() * 0.03)
            runtime.close_conversation(name)
            thread.join(20)
            assert not thread.is_alive()
    assert surprises == []
    owned.gone()


def test_a_runtime_that_is_closed_while_boxes_start_keeps_nobody_waiting() -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    moments = random.Random(7)
    for _ in range(10):
        runtime = SandboxedRuntime(mechanism="bubblewrap", command_timeout=5)
        surprises: list[BaseException] = []

        def run(
            name: str,
            runtime: SandboxedRuntime = runtime,
            surprises: list[BaseException] = surprises,
        ) -> None:
            try:
                runtime.run_command("sleep 0.02", conversation_id=name)
            except RuntimeFault:
                pass
            except BaseException as error:
                surprises.append(error)

        threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in "ab"]
        for thread in threads:
            thread.start()
        time.sleep(moments.random() * 0.03)
        assert ends(runtime.close)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert surprises == []


def test_the_memory_of_a_box_s_first_process_is_closed_to_commands() -> None:
    """The control is another process of the box, whose memory is open."""
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    program = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "for pid in (child.pid, 1):\n"
        "    for path in (f'/proc/{pid}/mem', f'/proc/{pid}/task/{pid}/mem'):\n"
        "        try: open(path, 'r+b').close(); print('open')\n"
        "        except OSError: print('closed')\n"
        "child.kill()\n"
    )
    with SandboxedRuntime(mechanism="bubblewrap") as runtime:
        runtime.write_file("program.py", program)
        text = runtime.run_command("/usr/bin/python3 program.py").text
    assert text.split()[:4] == ["open", "open", "closed", "closed"]
