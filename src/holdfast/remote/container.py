"""`ContainerRuntime`: an agent server in a container, started and ended with this object."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from holdfast.conversation.observer import Observing
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.remote.workspace import RemoteWorkspace
from holdfast.runtime.sandbox.settings import Mount, check_mounts
from holdfast.temporary import TemporaryFolder

_log = logging.getLogger("holdfast.remote")

_PORT = 8765  # of the server inside a container that has a network of its own
_WORKSPACE = "main"  # the id of the workspace that `workdir` is
_WORKDIR = "/workspace"  # its folder inside
_STORE = "/tmp/holdfast.db"
_READY = re.compile(r"Serving agents at http://\S+:(\d+)\.")
_ASK_SECONDS = 30.0  # seconds for a short command of the engine
_END_SECONDS = 20.0  # seconds for the server to end by itself; it takes 13 at most
_LINES = 20  # the last lines of output that an error quotes


class ContainerCommand(msgspec.Struct, frozen=True):
    """The container to run.

    Attributes:
        name: Its name, unique on this machine.
        image: The image, as the engine writes it.
        workdir: The folder of this machine that is the workspace inside; None for a new one.
        scratch: A private folder of this machine for temporary files inside. Apptainer alone
            needs it.
        mounts: More files and folders of this machine that are visible inside.
        options: More arguments of the engine's run command.
        server_options: More arguments of `holdfast serve`.
        user: The user and group ids of this process.
    """

    name: str
    image: str
    workdir: Path | None = None
    scratch: Path | None = None
    mounts: tuple[Mount, ...] = ()
    options: tuple[str, ...] = ()
    server_options: tuple[str, ...] = ()
    user: tuple[int, int] = (0, 0)


class Engine(msgspec.Struct, frozen=True):
    """The command lines of a container engine.

    Attributes:
        run: Returns the arguments that run a container in the foreground, with its standard
            input connected.
        port: The arguments that print the published address, before the container's name; empty
            if the container shares this machine's network.
        remove: The arguments that end and remove a container, before its name; empty if the
            container ends with the process of `run`.
    """

    run: Callable[[ContainerCommand], list[str]]
    port: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def mount_option(mount: Mount) -> str:
    """Return the value of `--mount`, in the form of CSV that all engines read."""
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.target}"]
    fields += [] if mount.writable else ["ro"]
    quoted = [f'"{f.replace(chr(34), chr(34) * 2)}"' if set(f) & set(',"\n') else f for f in fields]
    return ",".join(quoted)


def _serve(container: ContainerCommand, *listening: str) -> list[str]:
    arguments = ["serve", "--supervised", *listening, "--store", _STORE]
    if container.workdir is not None:
        arguments += ["--workspace", f"{_WORKSPACE}={_WORKDIR}"]
    return [*arguments, *container.server_options]


def _mounts(container: ContainerCommand) -> list[str]:
    mounts = list(container.mounts)
    if container.workdir is not None:
        mounts.append(Mount(str(container.workdir), _WORKDIR, writable=True))
    return [word for mount in mounts for word in ("--mount", mount_option(mount))]


def _oci_run(container: ContainerCommand, *user: str) -> list[str]:
    """Return the arguments that docker and podman share. The container's capabilities are
    dropped, and its port is open to this machine alone."""
    return [
        *("run", "--rm", "--interactive", "--init", "--name", container.name),
        *("--publish", f"127.0.0.1::{_PORT}"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "2048"),
        # Files in the workdir belong to this user, not to the image's.
        *(user if container.workdir is not None else ()),
        *_mounts(container),
        *container.options,
        *("--entrypoint", "holdfast", container.image),
        *_serve(container, "--listen", f"0.0.0.0:{_PORT}", "--insecure"),
    ]


def _docker_run(container: ContainerCommand) -> list[str]:
    uid, gid = container.user
    return _oci_run(container, "--user", f"{uid}:{gid}")


def _podman_run(container: ContainerCommand) -> list[str]:
    uid, gid = container.user
    # Without root, podman maps this user to root of the container, unless told otherwise.
    keep = ("--userns", "keep-id") if uid else ()
    return _oci_run(container, *keep, "--user", f"{uid}:{gid}")


def _apptainer_run(container: ContainerCommand) -> list[str]:
    # --containall: its own /tmp, home, processes and environment. The network is this machine's.
    return [
        *("exec", "--containall", "--writable-tmpfs", "--workdir", str(container.scratch)),
        *_mounts(container),
        *container.options,
        container.image,
        "holdfast",
        *_serve(container, "--listen", "127.0.0.1:0"),
    ]


ENGINES = {
    "docker": Engine(_docker_run, ("port",), ("rm", "--force")),
    "podman": Engine(_podman_run, ("port",), ("rm", "--force")),
    "apptainer": Engine(_apptainer_run),
}


class ContainerRuntime(RemoteWorkspace):
    """An agent server in a new container, and a working directory there.

    Equivalent to a `RemoteWorkspace` of a `holdfast serve` that runs in the container. Give its
    tools to an agent of this process, or give it to a `RemoteConversation`, whose loop then runs in
    the container too.

    The constructor starts the container and returns when the server answers. `close`, or any end of
    this process, ends the container and removes it, with its conversations and all files outside of
    `workdir`.

    The server's key reaches the container only through standard input, so that neither the engine
    nor a command in the container can read it. The engines docker and podman publish the server's
    port only to this machine, and must run here.

    Raises `ConfigurationError` (a `ValueError`), which names the invalid argument, before anything
    is started. Raises `RuntimeFault` with the last lines of output if the container does not start.

    Args:
        image: An image that has bash and the command `holdfast`, with its `server` extra. The
            repository's `Containerfile` makes one.
        engine: The program that runs it, from this process's PATH. With apptainer the container
            shares this machine's network.
        workdir: An existing folder that is the working directory inside, `/workspace`. None makes
            one in the container.
        mounts: More files and folders of this machine that are visible in the container.
        options: More arguments of the engine's run command, such as `["--memory", "4g"]`.
        server_options: More arguments of `holdfast serve`, such as `["--allow-tools", "acme.*"]`.
        start_timeout: Seconds until the server must answer, with the time to fetch the image.
        timeout: Seconds for a request (see `RemoteWorkspace`).
        observer: Adds its trace headers to each request (`holdfast.observe.Telemetry`).
    """

    def __init__(
        self,
        image: str,
        engine: Literal["docker", "podman", "apptainer"] = "docker",
        *,
        workdir: str | os.PathLike[str] | None = None,
        mounts: Sequence[Mount] = (),
        options: Sequence[str] = (),
        server_options: Sequence[str] = (),
        start_timeout: float = 300.0,
        timeout: float = 60.0,
        observer: Observing = None,
    ) -> None:
        if engine not in ENGINES:
            engines = ", ".join(ENGINES)
            raise ConfigurationError(
                f"ContainerRuntime: engine takes one of {engines}, not {engine!r}."
            )
        # An image that looks like an option would change the command line.
        if not isinstance(image, str) or not image.strip() or image.startswith("-"):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"ContainerRuntime: image takes its name, not {image!r}.")
        if not start_timeout > 0:
            raise ConfigurationError(
                "ContainerRuntime: start_timeout takes seconds, more than 0, not"
                f" {start_timeout!r}."
            )
        folder = None if workdir is None else Path(os.path.realpath(os.path.expanduser(workdir)))
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                f"ContainerRuntime: workdir takes an existing folder, not {os.fspath(folder)!r}."
            )
        program = shutil.which(engine)
        if program is None:
            others = ", ".join(name for name in ENGINES if name != engine)
            raise ConfigurationError(
                f"ContainerRuntime: there is no program {engine!r} in PATH. Install it, or name"
                f" another engine ({others})."
            )
        container_mounts = check_mounts(mounts)
        scratch = None if ENGINES[engine].port else TemporaryFolder("holdfast-container-")
        command = ContainerCommand(
            name=f"holdfast-{os.urandom(6).hex()}",
            image=image,
            workdir=folder,
            scratch=scratch and scratch.path,
            mounts=container_mounts,
            options=_texts("options", options),
            server_options=_texts("server_options", server_options),
            user=(os.getuid(), os.getgid()),
        )
        key = f"hf_{os.urandom(32).hex()}"
        self.container = command.name
        self._running = _Container(program, ENGINES[engine], command, scratch)
        try:
            port = self._running.start(key, start_timeout)
            id = None if folder is None else _WORKSPACE
            url = f"http://127.0.0.1:{port}"
            super().__init__(url, key, id=id, timeout=timeout, observer=observer)
        except BaseException:
            self._running.stop()
            raise
        self.keep()  # it goes with the container

    def close(self) -> None:
        """End the container, which removes everything in it. Idempotent; does nothing in a forked
        child. Work that runs there is interrupted."""
        if self.link.owner.here:
            super().close()
            self._running.stop()

    def __enter__(self) -> ContainerRuntime:
        return self

    def __repr__(self) -> str:
        return f"ContainerRuntime({self.container!r}, url={self.url!r})"


def _texts(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of an argument. Raises `ConfigurationError` for anything else."""
    values = cast("Sequence[Any]", texts)
    if isinstance(values, str) or not all(isinstance(one, str) for one in values):
        raise ConfigurationError(f"ContainerRuntime: {name} takes a list of str, not {values!r}.")
    return tuple(values)


class _Container:
    """A container and the process of the engine that is connected to it."""

    def __init__(
        self,
        program: str,
        engine: Engine,
        command: ContainerCommand,
        scratch: TemporaryFolder | None,
    ) -> None:
        self._program = program
        self._engine = engine
        self._command = command
        self._scratch = scratch
        self._lines = deque[str](maxlen=_LINES)
        self._port = 0  # of the server as its own line says it
        self._ready = threading.Event()  # set at the end of the output, too
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="holdfast-container", daemon=True)
        self._ending = False
        self._lock = threading.Lock()

    def start(self, key: str, seconds: float) -> int:
        """Run the container and return its server's port on this machine. Raises
        `RuntimeFault`."""
        deadline = time.monotonic() + seconds
        arguments = self._engine.run(self._command)
        try:
            # The engine's client needs this process's environment; no container inherits it. A
            # session of its own keeps a Ctrl-C from it.
            self._process = subprocess.Popen(
                [self._program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise RuntimeFault(f"{self._program} could not be started: {error}.") from error
        self._reader.start()
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended already; the output says why
            self._process.stdin.write(f"{key}\n".encode())
            self._process.stdin.flush()
        self._ready.wait(seconds)
        if not self._port:
            how = "ended" if self._ready.is_set() else f"did not answer within {seconds:g} s"
            raise RuntimeFault(
                f"The container of {self._command.image!r} {how}.{self._output_text()}"
            )
        return self._find_port(max(1.0, deadline - time.monotonic()))

    def _find_port(self, seconds: float) -> int:
        if not self._engine.port:
            return self._port
        command = *self._engine.port, self._command.name, f"{_PORT}/tcp"
        try:
            done = self._ask(command, min(seconds, _ASK_SECONDS))
        except subprocess.TimeoutExpired as error:
            raise RuntimeFault(f"The engine did not answer: {error}.") from None
        match = re.search(r":(\d+)\s*$", done.stdout, re.MULTILINE)
        if match is None:
            text = (done.stderr or done.stdout).strip()
            raise RuntimeFault(f"The container's port was not published: {text or 'no output'}.")
        return int(match[1])

    def _ask(self, arguments: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a short command of the engine. Raises `subprocess.TimeoutExpired`."""
        return subprocess.run(
            [self._program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )

    def _read(self) -> None:
        """Keep the output's last lines, and watch for the server's line, on a thread."""
        assert self._process is not None
        assert self._process.stdout is not None
        for data in self._process.stdout:
            line = data.decode(errors="replace").rstrip()
            self._lines.append(line)
            _log.debug("container %s: %s", self._command.name, line)
            if not self._port and (match := _READY.search(line)):
                self._port = int(match[1])
                self._ready.set()
        if self._port and not self._ending:
            _log.warning("the container %s ended.%s", self._command.name, self._output_text())
        self._ready.set()

    def _output_text(self) -> str:
        text = "\n".join(line for line in self._lines if line)
        return f" Its last lines:\n{text}" if text else " It wrote nothing."

    def stop(self) -> None:
        """End the container. Idempotent."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()  # the server ends with its standard input
            try:
                self._process.wait(_END_SECONDS if self._port else 1.0)
            except subprocess.TimeoutExpired:
                self._kill(self._process)
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
        if self._scratch is not None:
            self._scratch.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if self._engine.remove:
            with suppress(subprocess.TimeoutExpired, OSError):
                self._ask((*self._engine.remove, self._command.name), _ASK_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
