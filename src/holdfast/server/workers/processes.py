"""Worker processes from the server's point of view. A fork server starts them and reports how
each ended. A fork server that dies is restarted."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, cast

from holdfast.errors import StoreError
from holdfast.processes import OwnerProcess
from holdfast.runtime.environment import child_environment
from holdfast.server.workers import forkserver
from holdfast.server.workers.forkserver import BORN, ENDED, FORK, KILL, ORDER, REPORT

_log = logging.getLogger("holdfast")

_KILL_SECONDS = 10.0  # limit from a SIGKILL to the fork server's report of the end
_CLOSE_SECONDS = 10.0  # limit for the fork server to end itself and all workers


class WorkerProcess:
    """A worker process. `channel` is the server's side of its socket. `folder` belongs to the
    worker and is removed with it. `status` is the exit status (see `Popen.returncode`)."""

    def __init__(
        self, owner: WorkerProcesses, home: _ForkServer, number: int, channel: socket.socket
    ) -> None:
        self.channel = channel
        self.folder = Path(tempfile.mkdtemp(prefix="worker-", dir=home.folder))
        self.number = number
        self.pid = 0
        self.status: int | None = None
        self.ended = threading.Event()
        self._owner = owner
        self.home = home

    def kill(self) -> None:
        """Send SIGKILL to the worker and its process group, if it is alive."""
        if not self.ended.is_set():
            self.home.kill(self.number)

    def end(self, seconds: float = 0.5) -> int | None:
        """Wait `seconds` for the worker's end, then kill it. Return its status, or None if
        unknown. The folder stays until `forget`."""
        if not self.ended.wait(seconds):
            self.kill()
            if not self.ended.wait(_KILL_SECONDS):
                _log.error("worker process %d could not be killed", self.pid)
        return self.status

    def forget(self) -> None:
        """Close the socket and remove the folder. Idempotent."""
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.forget(self)


class WorkerProcesses:
    """The worker processes of a server. Thread-safe.

    `memory` is the limit of a worker's address space in bytes, 0 for none. The constructor
    starts the fork server in the background.
    """

    def __init__(self, memory: int = 0) -> None:
        self._memory = memory
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._number = 0
        self._living: dict[int, WorkerProcess] = {}
        self._closed = False
        self.home = _ForkServer()

    def start(self) -> WorkerProcess:
        """Start a worker, which waits for its first request. Raises `StoreError` if that fails."""
        try:
            with self._lock:
                if self._closed:
                    raise StoreError("This server is closing.")
                if self.home.ended.is_set():
                    _log.error("the workers' fork server has died and is restarted")
                    self.home.close()
                    self.home = _ForkServer()
                home = self.home
                self._number += 1
                number = self._number
            ours, theirs = socket.socketpair()
            with theirs:
                process = WorkerProcess(self, home, number, ours)
                try:
                    home.fork(process, theirs.fileno(), self._memory)
                except OSError:
                    process.forget()
                    raise
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"No worker process could be started: {error}") from error
        with self._lock:
            self._living[number] = process
        return process

    def forget(self, process: WorkerProcess) -> None:
        """Remove an ended process from the count."""
        with self._lock:
            self._living.pop(process.number, None)

    def pids(self) -> list[int]:
        with self._lock:
            living = [one for one in self._living.values() if not one.ended.is_set()]
        return [process.pid for process in living if process.pid]

    def close(self) -> None:
        """End the fork server and all workers. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            home = self.home
        home.close()


class _ForkServer:
    """One fork server process and the thread that reads its reports. Its folder is removed by
    the process or by `close`."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="holdfast-workers-")
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._workers: dict[int, WorkerProcess] = {}
        self._control, theirs = socket.socketpair()
        path = [entry for entry in cast("list[Any]", sys.path) if isinstance(entry, str)]
        with theirs:
            # -P keeps the folder of the script off sys.path.
            script = [sys.executable, "-P", forkserver.__file__]
            self._process = subprocess.Popen(
                [*script, str(theirs.fileno()), str(os.getpid()), self.folder, *path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=child_environment(Path("/"), None),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._listen, name="holdfast-workers", daemon=True)
        self._thread.start()

    def fork(self, process: WorkerProcess, channel: int, memory: int) -> None:
        with self._lock:
            self._workers[process.number] = process
            if self.ended.is_set():
                raise BrokenPipeError("the fork server has ended")
            socket.send_fds(self._control, [ORDER.pack(FORK, process.number, memory)], [channel])

    def kill(self, number: int) -> None:
        try:
            with self._lock:
                self._control.sendall(ORDER.pack(KILL, number, 0))
        except OSError:  # the fork server and its workers are gone
            pass

    def _listen(self) -> None:
        received = b""
        try:
            while more := self._control.recv(1 << 12):
                received += more
                while len(received) >= REPORT.size:
                    event, number, value = REPORT.unpack(received[: REPORT.size])
                    received = received[REPORT.size :]
                    self._handle_report(event, number, value)
        except OSError:
            pass
        with self._lock:
            self.ended.set()
            remaining = list(self._workers.values())
            self._workers.clear()
        for process in remaining:  # the kernel kills the workers of a dead fork server
            process.status = -signal.SIGKILL
            process.ended.set()

    def _handle_report(self, event: int, number: int, value: int) -> None:
        with self._lock:
            process = self._workers.get(number)
            if event == ENDED:
                self._workers.pop(number, None)
        if process is not None and event == BORN:
            process.pid = value
        elif process is not None:
            process.status = value
            process.ended.set()

    def close(self) -> None:
        """End the fork server and wait for its end."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        errors = b""
        try:
            _, errors = self._process.communicate(timeout=_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        if errors:
            text = errors[-2000:].decode(errors="replace")
            _log.error("the workers' fork server failed: %s", text)
        self._thread.join()
        self._control.close()
        shutil.rmtree(self.folder, ignore_errors=True)
