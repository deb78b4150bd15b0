"""The process of one isolated call, as it begins: it forks the worker that runs the callback,
watches over it, and ends all that it started.

Started by its path with a bare Python (`child.py PARENT_PID CHANNEL_FD SYS_PATH...`); imports
nothing of ours until it has forked. Two processes, since a callback may hold the interpreter's lock
for ever, in which no watching thread could run. This one holds no user code: it waits for its
worker's end, for its parent's (stdin closes) or for SIGTERM, and then kills what is left.
"""

import os
import select
import signal
import sys
import time

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>

importing_callback = (
    False  # while it is, an isolated call would import the same module again, and so on without end
)


def prctl(option: int, value: int) -> None:
    """Linux's `prctl`; nothing elsewhere."""
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int]:
    """The living processes that came from this one. It is the reaper of its orphans, so that none
    of them gets away."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name, in parentheses, may itself hold spaces and parentheses.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if fields[0] not in b"ZX":
                parents[int(name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def end(worker: int, alive: bool) -> None:
    """SIGKILL the worker and what it has started, until nothing is left. A fork bomb may outrun
    it."""
    deadline = time.monotonic() + 2.0
    if alive or not LINUX:  # a process group is all that can be found of it elsewhere
        try:
            os.killpg(worker, signal.SIGKILL)
        except OSError:  # gone, or not yet a group of its own
            pass
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no child, and so no grandchild
            return
        for pid in descendants() if LINUX else [worker] if alive else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone meanwhile; the loop looks again
                pass
        time.sleep(0.001)


def watch(worker: int, signals: int) -> int:
    """Wait until the worker ends, or is to; end what is left; the exit status to leave with, 128 +
    the signal as in a shell."""
    poll = select.poll()
    poll.register(0, 0)  # only a hang-up: the parent writes nothing
    poll.register(signals, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        found, status = os.waitpid(worker, os.WNOHANG)
        if found:
            end(worker, False)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if 0 in ready or (signals in ready and signal.SIGTERM in os.read(signals, 64)):
            end(worker, True)
            return 128 + signal.SIGKILL


def noted(number: int, frame: object) -> None:
    """A signal's handler: its number is in the wake-up pipe already."""


def main() -> None:
    """Fork the worker and watch over it."""
    global importing_callback
    parent, channel, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, noted)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's mask was inherited
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(
        PR_SET_PDEATHSIG, signal.SIGTERM
    )  # where another child of the parent has a copy of our stdin's other end, it does not close
    here = os.getpid()
    if os.getppid() != parent:
        return
    worker = os.fork()
    if worker:
        os.close(channel)
        os._exit(watch(worker, signals))
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != here:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for fd in (signals, wake):
        os.close(fd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv[:] = [""]
    sys.path[:] = path
    importing_callback = True
    from holdfast.tools.isolation.worker import work

    work(channel)


if __name__ == "__main__":
    main()
