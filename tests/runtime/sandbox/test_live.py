"""`LiveBox`: boxes whose first process was taken over, and boxes that are closed early."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import pytest

from holdfast import SandboxedRuntime
from holdfast.errors import RuntimeFault
from holdfast.runtime import processes
from holdfast.runtime.command_host import NetworkLog
from holdfast.runtime.sandbox import mechanisms
from holdfast.runtime.sandbox.live import LiveBox
from holdfast.runtime.sandbox.settings import BoxSettings
from holdfast.tools.launch import Launch
from tests.leftovers import Owned
from tests.waiting import until

# The first process of a box, written by an attacker: it reports a start and then sends `{what}`.
HOSTILE = """
import os, signal, time
os.write(0, b"ready 0\\nwaiting 0\\n")
os.read(0, 100)
os.write(0, b"started 0\\n")
time.sleep(0.1)
{what}
time.sleep(60)
"""


class Hostile:
    """A mechanism and its launcher whose boxes run an attacker's program."""

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


def test_session_0_is_no_command_s() -> None:
    """Session 0 has the kernel's threads, and in a container the processes that were started
    from outside."""
    assert processes.of_commands((0,), "no such mark") == []


def test_each_line_of_a_box_has_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several lines that arrived at once, the second one once had no sender. The signals to
    pid 0 that ended its command went to this process's own group."""
    hostile = Hostile('os.write(0, b"ended 0\\nwaiting 0\\nended 0\\n" * 3)')
    monkeypatch.setattr(mechanisms, "MECHANISMS", (hostile,))
    pids: list[int] = []
    begin = LiveBox._begin  # pyright: ignore[reportPrivateUsage]

    def noted(box: LiveBox, number: int) -> int:
        pids.append(begin(box, number))
        if pids[-1] <= 0:
            raise RuntimeFault("a command without a pid")  # which this test must not signal
        return pids[-1]

    monkeypatch.setattr(LiveBox, "_begin", noted)
    with SandboxedRuntime(mechanism="hostile") as runtime:
        runtime.run_command("true", 5)
    assert pids[0] > 0


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
    codes: list[object] = []

    def run(name: str) -> None:
        result = runtime.run_command("true", timeout=0.3, conversation_id=name)
        codes.append(result.meta["exitCode"])

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert codes == [137, 137]
    assert ends(runtime.close)


@pytest.mark.slow
def test_a_conversation_that_is_closed_while_its_box_starts_keeps_nobody_waiting() -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    with SandboxedRuntime(mechanism="bubblewrap") as first:
        first.run_command(":")  # makes the things that a process makes once
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
    owned.wait_until_released()


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


@pytest.fixture(params=[mechanism.name for mechanism in mechanisms.MECHANISMS])
def runtime(request: pytest.FixtureRequest) -> Generator[SandboxedRuntime]:
    [entry] = [one for one in mechanisms.MECHANISMS if one.name == request.param]
    if problem := entry.missing():
        pytest.skip(problem)
    with SandboxedRuntime(mechanism=entry.name) as runtime:
        yield runtime


def test_variables_of_the_locale_are_carried_changed_and_removed(runtime: SandboxedRuntime) -> None:
    """The waiting bash itself has the first ones."""
    command = 'echo "${LANG-none} ${LC_ALL-none}"'
    assert runtime.run_command(command).text.startswith("C.UTF-8 none")
    runtime.run_command("export LANG=C LC_ALL=POSIX")
    assert runtime.run_command(command).text.startswith("C POSIX")
    runtime.run_command("unset LANG LC_ALL")
    assert runtime.run_command(command).text.startswith("none none")


def test_a_command_gets_no_signal_ignored(runtime: SandboxedRuntime) -> None:
    assert runtime.run_command("bash -c trap").text.startswith("(no output)")
    assert "trap -- '' SIGPIPE" in runtime.run_command("trap '' PIPE; bash -c trap").text


@pytest.mark.slow
def test_a_box_lives_on_when_the_process_that_waits_for_a_command_is_killed() -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    kill = "sleep 0.3; touch killed; kill -9 -1"
    with SandboxedRuntime(mechanism="bubblewrap") as runtime:
        runtime.run_command(f"touch /tmp/kept; setsid bash -c '{kill}' >/dev/null 2>&1 &")
        until(lambda: (runtime.workdir / "killed").exists())
        time.sleep(0.2)
        output = runtime.run_command("ls /tmp/kept").text
        assert output.startswith("/tmp/kept\n[exit code 0]"), output


@pytest.mark.slow
def test_the_process_that_waits_for_a_command_has_no_way_to_the_owner() -> None:
    """Commands can take this process over through /proc. Only the first process has the way to
    the owner, and commands cannot take that one over."""
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    look = (
        "sleep 0.5; for p in /proc/[0-9]*; do echo $p $(readlink $p/fd/*); done > new; mv new fds"
    )
    with SandboxedRuntime(mechanism="bubblewrap") as runtime:
        runtime.run_command(f"setsid bash -c '{look}' >/dev/null 2>&1 &")
        until(lambda: (runtime.workdir / "fds").exists())
        lines = (runtime.workdir / "fds").read_text().splitlines()
    assert len(lines) >= 3
    assert [line.split()[0] for line in lines if "socket:" in line] == ["/proc/1"]
