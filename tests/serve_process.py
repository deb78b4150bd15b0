"""`holdfast serve` in a process of its own. A test may kill it, and start it again on the same port
and files."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import RemoteWorkspace
from tests import forks
from tests.agent_servers import Reply

KEY = "hf_key-of-the-tests-0123456789"


class ServeProcess:
    """A server process: `with ServeProcess(folder) as server: RemoteWorkspace(server.url, KEY)`.

    `library` is a folder of modules that the server can import. A `fresh` server is an interpreter
    of its own, whose variables and command are in `/proc`.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        library: Path | None = None,
        env: dict[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.folder = folder
        self.store: Path | None = folder / "s.db"  # None: the value of the environment
        self.log = folder / "serve.log"
        self.port = 0
        self.pid = 0
        self._arguments = ("--rate", "0", *arguments)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
        }
        if library is not None:
            inherited["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(library), inherited.get("PYTHONPATH")))
            )
        self._start = subprocess.Popen if fresh else forks.Popen
        self._env = {**inherited, "HOLDFAST_SERVER_KEY": KEY, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ServeProcess:
        command = [
            sys.executable,
            "-m",
            "holdfast.cli",
            "serve",
            "--listen",
            f"127.0.0.1:{self.port}",
            *([] if self.store is None else ["--store", str(self.store)]),
        ]
        begins = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = self._start(
                [*command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self.folder,
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + 90
        while not (
            address := re.search(
                r"Serving agents at http://127\.0\.0\.1:(\d+)\.", self.output()[begins:]
            )
        ):
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.01)
        self.port = int(address[1])
        return self

    def kill(self) -> None:
        """Kill the process with `kill -9`."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)

    def output(self) -> str:
        """Return the output of the server."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def memory(self) -> int:
        """Return the bytes of the process's private memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # pyright: ignore[reportOptionalSubscript]

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = KEY, **headers: str
    ) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
            if key is not None:
                sent_headers["Authorization"] = f"Bearer {key}"
            connection.request(
                method, path, None if body is None else json.dumps(body), sent_headers
            )
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def workspace(self, **options: Any) -> RemoteWorkspace:
        return RemoteWorkspace(self.url, KEY, **options)

    def __enter__(self) -> ServeProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
