"""The first process of an isolated call: it forks the worker that runs the callback, supervises the
worker, and ends everything that the worker started.

A bare Python starts this file by its path (`child.py PARENT_PID CHANNEL_FD SYS_PATH...`). Nothing
of Holdfast is imported before the fork. There are two processes because a callback may hold the
interpreter's lock for ever, and then no watching thread could run. The first process runs no user
code. The first process waits for the worker's end, for the parent's end (stdin closes) or for
SIGTERM, and then kills all remaining processes.
"""

import os
import select
import signal
import sys
import time

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

# True while the worker imports the callback's module. An isolated call made meanwhile would import
# the same module again, without end.
importing_callback = False


def prctl(option: int, value: int) -> None:
    """Call Linux's `prctl`; do nothing on other systems."""
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int]:
    """Return the living descendants of this process, which is the subreaper of orphans."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name in parentheses may contain spaces and parentheses itself.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # the process ended meanwhile
                continue
            if fields[0] not in b"ZX":
                parents[int(name)] = int(fields[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {os.getpid()})


def end(worker: int, alive: bool) -> None:
    """SIGKILL the worker and its descendants until none is left, for at most 2 seconds."""
    deadline = time.monotonic() + 2.0
    if alive or not LINUX:  # other systems can find only the worker's process group
        try:
            os.killpg(worker, signal.SIGKILL)
        except OSError:  # the group is gone, or does not exist yet
            pass
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no child is left, and so no grandchild
            return
        for pid in descendants() if LINUX else [worker] if alive else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone meanwhile; the loop checks again
                pass
        time.sleep(0.001)


def watch(worker: int, signals: int) -> int:
    """Wait until the worker ends or must end, and kill the remaining processes. Return the exit
    status: 128 + the signal's number after a signal, as in a shell."""
    poll = select.poll()
    poll.register(0, 0)  # only a hang-up: the parent writes nothing
    poll.register(signals, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        ended_pid, status = os.waitpid(worker, os.WNOHANG)
        if ended_pid:
            end(worker, False)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if 0 in ready or (signals in ready and signal.SIGTERM in os.read(signals, 64)):
            end(worker, True)
            return 128 + signal.SIGKILL


def ignore(number: int, frame: object) -> None:
    """Do nothing: the interpreter has written the signal's number to the wake-up pipe already."""


def main() -> None:
    """Fork the worker and supervise it."""
    global importing_callback
    parent, channel, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's mask was inherited
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # stdin does not close if another child of the parent holds a copy of its other end.
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    supervisor = os.getpid()
    if os.getppid() != parent:
        return
    worker = os.fork()
    if worker:
        os.close(channel)
        os._exit(watch(worker, signals))
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for fd in (signals, wake):
        os.close(fd)
    empty_input = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty_input, 0)
    os.close(empty_input)
    sys.argv[:] = [""]
    sys.path[:] = path
    importing_callback = True
    from holdfast.tools.isolation.worker import work

    work(channel)


if __name__ == "__main__":
    main()
