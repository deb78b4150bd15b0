"""Finding and ending of a command's processes, in any process group or session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

# Every process of a command inherits this variable. It finds processes that left the command's
# session (`setsid`, daemons).
MARK = "HOLDFAST_SHELL"
# Every process of a conversation's call inherits this variable. It finds the processes that a
# killed owner left behind.
OWNER = "HOLDFAST_OWNER"

_HAS_PROC = sys.platform == "linux"


class Process(NamedTuple):
    """One living process; `started` is in clock ticks since boot."""

    pid: int
    group: int
    session: int
    started: int


def _living() -> Iterator[tuple[Process, int]]:
    """Yield the living processes and the pids of their parents, from /proc."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command's name, in parentheses, may contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if fields and fields[0] not in b"ZX":  # a zombie is dead; its parent will reap it
            ids = (int(name), int(fields[2]), int(fields[3]), int(fields[19]))
            yield Process(*ids), int(fields[1])


def _environment(pid: int) -> bytes:
    """Return a process's variables, each between two NULs; empty for another user's process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read()
    except OSError:
        return b""


def of_commands(sessions: Collection[int], mark: str) -> list[Process]:
    """Return the living processes of the sessions and process groups with these leaders' pids, and
    those with the mark. A process has the mark if its variable `MARK` begins with `mark`."""
    # 0 is the session of threads of the kernel, and of processes from outside of a container.
    sessions = {one for one in sessions if one > 0}
    if not _HAS_PROC:
        return _from_ps(sessions)
    assignment = f"\0{MARK}={mark}".encode()
    return [
        process
        for process, _ in _living()
        if process.session in sessions
        or process.group in sessions
        or assignment in _environment(process.pid)
    ]


def _from_ps(sessions: Collection[int]) -> list[Process]:
    # Without /proc: the descendants that are still connected, and the process groups. A session's
    # id is that of its first group.
    rows = _ps("-A", "-o", "pid=,ppid=,pgid=,stat=")
    family = {pid: pid for pid in sessions}
    by_pid: dict[int, Process] = {}
    grown = True
    while grown:
        grown = False
        for row in rows:
            pid, parent, group = map(int, row[:3])
            session = family.get(pid) or family.get(parent) or family.get(group)
            if row[3][0] != "Z" and pid not in by_pid and session is not None:
                family[pid] = session
                by_pid[pid] = Process(pid, group, session, sys.maxsize)
                grown = True
    return list(by_pid.values())


def _ps(*arguments: str) -> list[list[str]]:
    command = ["ps", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line.split(None, 3) for line in result.stdout.splitlines()]


def send(processes: Collection[Process], number: int) -> None:
    """Send a signal to each process, and to each of their process groups. Signalling the groups
    reaches processes that are born meanwhile."""
    own = (os.getpgrp(), 0)
    for group in {p.group for p in processes}.difference(own):
        with suppress(OSError):  # it ended, or belongs to another user now
            os.killpg(group, number)
    _send_to_each([p for p in processes if p.group in own], number)


def _send_to_each(processes: Collection[Process], number: int) -> None:
    for process in processes:
        with suppress(OSError):
            os.kill(process.pid, number)


def kill(
    find: Callable[[], list[Process]], signal_all: Callable[[list[Process], int], None] = send
) -> bool:
    """Send SIGKILL to the processes that `find` returns, until it returns none. Return False if
    some are left after 20 rounds. A fork bomb may outrun the loop."""
    for attempt in range(20):
        remaining = find()
        if not remaining:
            return True
        signal_all(remaining, signal.SIGKILL)
        # A killed process stays visible until the kernel has removed it; wait a moment, longer each
        # time.
        time.sleep(min(0.001 * 2**attempt, 0.05))
    return False


def of_owners(marks: Iterable[str], ours: bool = False) -> list[Process]:
    """Return the living processes that carry one of the marks in `OWNER`, with their descendants
    and sessions. The current process and its ancestors are excluded, and without `ours` its
    descendants too. A mark is random, so a reused pid is never mistaken for an owned process."""
    if not _HAS_PROC:
        return [process for process in _marked_by_ps(marks) if process.pid not in _ancestry()]
    assignments = [f"\0{OWNER}={mark}\0".encode() for mark in marks]
    every: dict[int, Process] = {}
    parents: dict[int, int] = {}
    carriers: set[int] = set()
    for process, parent in _living():
        every[process.pid], parents[process.pid] = process, parent
        environment = _environment(process.pid)
        if any(mark in environment for mark in assignments):
            carriers.add(process.pid)
    # This process and its descendants are spared: it may carry the mark itself, as a program that
    # the dead owner's agent ran.
    spared = _ancestry()
    if not ours:
        spared |= _descendants({os.getpid()}, parents)
    carriers -= spared
    led = {process.pid for process in every.values() if process.session in carriers}
    return [every[pid] for pid in _descendants(carriers | led, parents) - spared if pid in every]


def _descendants(pids: set[int], parents: Mapping[int, int]) -> set[int]:
    pids = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def _marked_by_ps(marks: Iterable[str]) -> list[Process]:
    assignments = [f" {OWNER}={mark} " for mark in marks]
    return [
        Process(int(pid), int(group), int(group), sys.maxsize)
        for pid, group, state, *command in _ps("axeww", "-o", "pid=,pgid=,stat=,command=")
        if state[0] != "Z" and any(mark in f" {''.join(command)} " for mark in assignments)
    ]


def _ancestry() -> set[int]:
    ancestors, pid = {0, 1}, os.getpid()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            pid = os.getppid()
    return ancestors


def end_owned(marks: Iterable[str], ours: bool = False) -> bool:
    """Send SIGKILL to the processes that a dead owner left running; return True if none is left.
    See `of_owners`. Set `ours` if the owner was a child of this process."""
    marks = list(marks)
    # One by one: a group may contain processes of others.
    return kill(lambda: of_owners(marks, ours), _send_to_each)
