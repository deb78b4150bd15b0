"""The fork server: a single-threaded process with Holdfast in memory, which forks, watches and ends
the workers.

The server starts this file by its path with a bare Python
(`forkserver.py CONTROL_FD PARENT_PID FOLDER SYS_PATH...`). The fork server is a new program, so it
inherits none of the server's threads. No code of clients runs in it.

A worker adopts its own orphaned processes. When the worker dies, the fork server adopts them and
kills them. When the server is gone (the control socket ends), the fork server kills all workers and
everything that they started, removes `FOLDER`, and exits. When the fork server itself is killed,
the kernel kills the workers.
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import time

# Server to fork server: the order, the worker's number, and a value. FORK also passes the worker's
# socket.
ORDER = struct.Struct("!BIQ")
FORK, KILL = 1, 2
# Fork server to server: the event, the worker's number, its pid or exit status (negative: the
# signal).
REPORT = struct.Struct("!BIq")
BORN, ENDED = 1, 2


def serve(control: socket.socket, parent: int, workers: "dict[int, int]") -> None:
    """Fork and watch workers until the server is gone. `workers` maps pids to its numbers."""
    signals, wake = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _ignore_signal)
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
        if len(data) < ORDER.size:
            break  # a short message arrives whole, so this is the end of the stream
        order, number, value = ORDER.unpack(data)
        if order == KILL:
            for pid in [pid for pid, worker in workers.items() if worker == number]:
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
    """Set up a new worker with its own session, memory limit and signal handlers, then do its
    work. Does not return."""
    import resource

    from holdfast.tools.isolation.child import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(71)
    # Commands that the worker starts would inherit ignored signals.
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain secrets
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # makes the kernel kill a worker first when memory runs out
    except OSError:
        pass
    sys.argv[:] = [""]
    from holdfast.server.workers.worker import work

    work(channel)


def _ignore_signal(number: int, frame: object) -> None:
    """Handle SIGCHLD. The wake-up pipe already contains the signal, so there is nothing to do."""


def _report(control: socket.socket, event: int, number: int, value: int) -> None:
    try:
        control.sendall(REPORT.pack(event, number, value))
    except OSError:  # the server is gone, which the next read of the socket shows
        pass


def _reap(workers: "dict[int, int]", control: socket.socket) -> None:
    while True:
        try:
            exit_info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if exit_info is None:
            return
        pid = exit_info.si_pid
        number = workers.pop(pid, None)
        if number is not None:
            _kill(pid)  # also its group, before the pid can be reused
        _, status = os.waitpid(pid, 0)
        if number is not None:
            _sweep(workers)
            _report(control, ENDED, number, os.waitstatus_to_exitcode(status))


def _sweep(workers: "dict[int, int]") -> None:
    """Kill the processes that a dead worker left, in any session and with any environment. All
    children of this process that are not workers are such processes."""
    deadline = time.monotonic() + 2.0  # a fork bomb may outrun this
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:  # not Linux, or a kernel without this file
            return
        orphans = [pid for pid in children if pid not in workers]
        if not orphans:
            return
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)  # this process adopts its children next
            except OSError:
                pass
        time.sleep(0.001)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the process may not have its own group yet
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _few_arenas() -> None:
    """Limit glibc's malloc to one arena. Otherwise each thread reserves 64 MB of address space,
    which counts against a worker's limit."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if sys.platform == "linux" and mallopt is not None:
        mallopt(-8, 1)  # M_ARENA_MAX


def main() -> None:
    """Import, fork, and leave nothing behind."""
    control, parent, folder = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the end of the server ends this process
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.path[:] = sys.argv[4:]
    from holdfast.server.workers.preloading import preload
    from holdfast.tools.isolation.child import PR_SET_CHILD_SUBREAPER, end, prctl

    prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopt the orphans of dead workers
    workers: dict[int, int] = {}
    preload()
    _few_arenas()
    gc.collect()
    gc.freeze()  # otherwise each worker's first collection would copy every memory page
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
