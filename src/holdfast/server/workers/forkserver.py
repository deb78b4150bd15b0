"""The fork server: a process with one thread and Holdfast in memory, of which each worker is a
fork; it watches over them and ends them.

Started by its path with a bare Python (`forkserver.py CONTROL_FD PARENT_PID FOLDER SYS_PATH...`),
by a server that may have threads already: it is a new program, and inherits none of them. It holds
no code of clients. A worker's orphans are the worker's own; when it dies they come here, and are
ended. When the server is gone (the control socket ends), so are, a moment later, all workers,
whatever these have started, `FOLDER`, and this process. When this process is killed, the kernel
kills the workers.
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import time

# Server to fork server: what to do, which worker, a number. FORK brings the worker's socket along.
ORDER = struct.Struct("!BIQ")
FORK, KILL = 1, 2
# Back: what happened, which worker, its pid or exit status (negative: the signal).
REPORT = struct.Struct("!BIq")
BORN, ENDED = 1, 2


def serve(control: socket.socket, parent: int, workers: "dict[int, int]") -> None:
    """Fork and watch until the server is gone. `workers` are their pids, and the server's numbers
    of them."""
    signals, wake = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _noted)
    here = os.getpid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(signals, select.POLLIN)
    while os.getppid() == parent:
        ready = dict(poll.poll())
        if signals in ready:
            os.read(signals, 4096)
            _reap(workers, control)
        if control.fileno() not in ready:
            continue
        data, channels, _, _ = socket.recv_fds(control, ORDER.size, 1)
        if len(data) < ORDER.size:  # so few bytes come whole, or it is the end
            break
        order, number, value = ORDER.unpack(data)
        if order == KILL:
            for pid in [pid for pid, known in workers.items() if known == number]:
                _kill(pid)
            continue
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if not pid:
            try:
                control.close()
                signal.set_wakeup_fd(-1)
                os.close(signals)
                os.close(wake)
                _become(channels[0], here, value)
            finally:
                os._exit(71)
        os.close(channels[0])
        if pid > 0:
            workers[pid] = number
            _report(control, BORN, number, pid)
        else:
            _report(control, ENDED, number, 72)


def _become(channel: int, parent: int, memory: int) -> None:
    """In a new worker: a session of its own, a limit, no signals of others'; then its work, from
    which nothing returns."""
    import resource

    from holdfast.tools.isolation.child import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(71)
    for number in (
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGTERM,
    ):  # what is ignored here would be by commands
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold secrets
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # where memory runs out, it is to be a worker that goes
    except OSError:
        pass
    sys.argv[:] = [""]
    from holdfast.server.workers.worker import work

    work(channel)


def _noted(number: int, frame: object) -> None:
    """A signal's handler: its number is in the wake-up pipe already."""


def _report(control: socket.socket, what: int, number: int, value: int) -> None:
    try:
        control.sendall(REPORT.pack(what, number, value))
    except OSError:  # the server is gone, as the next look at the socket will say
        pass


def _reap(workers: "dict[int, int]", control: socket.socket) -> None:
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        pid = found.si_pid
        number = workers.pop(pid, None)
        if number is not None:
            _kill(pid)  # its group, as long as its number cannot be another's
        _, status = os.waitpid(pid, 0)
        if number is not None:
            _sweep(workers)
            _report(control, ENDED, number, os.waitstatus_to_exitcode(status))


def _sweep(workers: "dict[int, int]") -> None:
    """End what a dead worker has left, whatever session or environment it has. All children here
    that are no workers are that."""
    deadline = time.monotonic() + 2.0  # a fork bomb may outrun this
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(pid) for pid in file.read().split()]
        except OSError:  # no Linux, or one without that file
            return
        left = [pid for pid in left if pid not in workers]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)  # its children come here next
            except OSError:
                pass
        time.sleep(0.001)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not have its group yet
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _few_arenas() -> None:
    """Have glibc's malloc reserve no 64 MB of address space for each thread: it would count against
    a worker's limit."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if sys.platform == "linux" and mallopt is not None:
        mallopt(-8, 1)  # M_ARENA_MAX


def main() -> None:
    """Import, fork, and leave nothing behind."""
    control, parent, folder = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server's end is what ends it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.path[:] = sys.argv[4:]
    from holdfast.server.workers.rehearsal import rehearse
    from holdfast.tools.isolation.child import PR_SET_CHILD_SUBREAPER, end, prctl

    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a dead worker leaves comes here
    workers: dict[int, int] = {}
    rehearse()
    _few_arenas()
    gc.collect()
    gc.freeze()  # or the workers' first collections would copy every page
    try:
        serve(control, parent, workers)
    finally:
        for pid in workers:
            _kill(pid)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            end(0, False)
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
