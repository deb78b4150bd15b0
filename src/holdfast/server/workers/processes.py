"""Worker processes as the server has them: started by a fork server, which tells how each ended, and which is started anew if it dies."""

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

_ENDING = 10.0  # seconds from a SIGKILL to the fork server's word that the process is gone
_LAST = 10.0  # seconds for the fork server to end with all that is left


class Process:
    """A worker process. `channel` is this side of its socket, `folder` its own, which goes with it. `status` is how it ended, as `Popen.returncode`."""

    def __init__(self, owner: Processes, home: _ForkServer, number: int, channel: socket.socket, folder: Path) -> None:
        self.channel = channel
        self.folder = folder
        self.number = number
        self.pid = 0
        self.status: int | None = None
        self.ended = threading.Event()
        self._owner = owner
        self._home = home

    def kill(self) -> None:
        """SIGKILL it and its process group, if it lives."""
        if not self.ended.is_set():
            self._home.kill(self.number)

    def end(self, seconds: float = 0.5) -> int | None:
        """Wait `seconds` for its end, and see to it then. Returns its status, None if that is not known. The folder stays until `forget`."""
        if not self.ended.wait(seconds):
            self.kill()
            if not self.ended.wait(_ENDING):
                _log.error("worker process %d could not be ended", self.pid)
        return self.status

    def forget(self) -> None:
        """Let go of the socket and the folder. Idempotent."""
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.forget(self)


class Processes:
    """`memory`: the address space, in bytes, of a worker, 0 for no limit. The fork server is started here and now, in the background. Thread-safe."""

    def __init__(self, memory: int = 0) -> None:
        self._memory = memory
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._number = 0
        self._living: dict[int, Process] = {}
        self._closed = False
        self._home = _ForkServer()

    def start(self) -> Process:
        """A new worker, which waits for what it is to do. Raises `StoreError` if there can be none."""
        try:
            with self._lock:
                if self._closed:
                    raise StoreError("This server is closing.")
                if self._home.gone.is_set():
                    _log.error("the fork server of workers was gone, and is started again")
                    self._home.close()
                    self._home = _ForkServer()
                home = self._home
                self._number += 1
                number = self._number
            folder = Path(tempfile.mkdtemp(prefix="worker-", dir=home.folder))
            ours, theirs = socket.socketpair()
            process = Process(self, home, number, ours, folder)
            with theirs:
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

    def forget(self, process: Process) -> None:
        """A process that has ended is not counted any more."""
        with self._lock:
            self._living.pop(process.number, None)

    def pids(self) -> list[int]:
        """Those of the workers that live."""
        with self._lock:
            return [process.pid for process in self._living.values() if process.pid and not process.ended.is_set()]

    @property
    def folder(self) -> str:
        """Where the workers' folders are."""
        return self._home.folder

    @property
    def pid(self) -> int:
        """The fork server's."""
        return self._home.pid

    def close(self) -> None:
        """End the fork server and what it has started. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            self._closed = True
            home = self._home
        home.close()


class _ForkServer:
    """One fork server process, and the thread that hears what it tells. Its folder is removed by it, or here."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="holdfast-workers-")
        self.gone = threading.Event()
        self._lock = threading.Lock()
        self._workers: dict[int, Process] = {}
        self._control, theirs = socket.socketpair()
        path = [entry for entry in cast("list[Any]", sys.path) if isinstance(entry, str)]
        with theirs:
            # -P: the folder of its file would come first on its path.
            self._process = subprocess.Popen(
                [sys.executable, "-P", forkserver.__file__, str(theirs.fileno()), str(os.getpid()), self.folder, *path],
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

    def fork(self, process: Process, channel: int, memory: int) -> None:
        """Have a worker forked with that socket."""
        with self._lock:
            self._workers[process.number] = process
            if self.gone.is_set():
                raise BrokenPipeError("the fork server has ended")
            socket.send_fds(self._control, [ORDER.pack(FORK, process.number, memory)], [channel])

    def kill(self, number: int) -> None:
        """Have a worker killed, if it lives."""
        try:
            with self._lock:
                self._control.sendall(ORDER.pack(KILL, number, 0))
        except OSError:  # the fork server is gone, and its workers with it
            pass

    def _listen(self) -> None:
        received = b""
        try:
            while more := self._control.recv(1 << 12):
                received += more
                while len(received) >= REPORT.size:
                    what, number, value = REPORT.unpack(received[: REPORT.size])
                    received = received[REPORT.size :]
                    self._told(what, number, value)
        except OSError:
            pass
        with self._lock:
            self.gone.set()
            left = list(self._workers.values())
            self._workers.clear()
        for process in left:  # the kernel kills them
            process.status = -signal.SIGKILL
            process.ended.set()

    def _told(self, what: int, number: int, value: int) -> None:
        with self._lock:
            process = self._workers.pop(number, None) if what == ENDED else self._workers.get(number)
        if process is not None and what == BORN:
            process.pid = value
        elif process is not None:
            process.status = value
            process.ended.set()

    def close(self) -> None:
        """End it, and wait for that."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        said = b""
        try:
            _, said = self._process.communicate(timeout=_LAST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        if said:
            _log.error("the fork server of workers failed: %s", said[-2000:].decode(errors="replace"))
        self._thread.join()
        self._control.close()
        shutil.rmtree(self.folder, ignore_errors=True)
