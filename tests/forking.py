"""A process that has imported Holdfast and forks once for each program of `tests.forks`.

The command `python -m tests.forking DESCRIPTOR` starts the process. The descriptor is a socket. A
request on it brings the standard streams of a program and a second socket. The program reads its
command, variables and folder from the second socket. This process writes the process id of the
program, and later its exit status, to the same socket.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
import traceback
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

NUMBER = struct.Struct("=i")
# Modules that the programs of most tests import. The process skips modules of missing packages.
PRELOADED = (
    "holdfast.cli.acp",
    "holdfast.cli.chat",
    "holdfast.cli.demo",
    "holdfast.cli.live_console",
    "holdfast.cli.remote",
    "holdfast.cli.run",
    "holdfast.cli.serve",
    "holdfast.cli.server",
    "holdfast.cli.show",
    "holdfast.cli.talk",
    "holdfast.cli.tell",
    "holdfast.cli.tools",
    "holdfast.cli.transfer",
    "holdfast.fleet",
    "holdfast.runtime.builtin",
    "holdfast.server.app",
    "holdfast.store.sqlite",
    "holdfast.tools.mcp.connection",
    "holdfast.tools.untrusted",
    "holdfast.serve.mcp",
    "holdfast.store.postgres",
    "holdfast.testing",
    "a2a.helpers",
    "a2a.server.request_handlers",
    "a2a.server.routes",
    "a2a.server.tasks",
    "anyio._backends._asyncio",
    "encodings.idna",
    "markdown_it",
    "mcp.server.mcpserver",
    "psycopg",
    "rich.markdown",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "yaml",
)
# Prefixes of the variables that an interpreter or the loader reads when it starts.
READ_AT_START = ("PYTHON", "LC_", "LANG", "MALLOC", "LD_")
RUN_AT_START = frozenset({"sitecustomize", "usercustomize"})


def variables_read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads when it starts, without `PYTHONPATH`."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(READ_AT_START) and name != "PYTHONPATH" and value
    }


def number(status: socket.socket) -> int:
    """Read a number from the socket. Raises `RuntimeError` if the forking process has ended."""
    data = status.recv(NUMBER.size, socket.MSG_WAITALL)
    if len(data) < NUMBER.size:
        raise RuntimeError("The forking process has ended.")
    return NUMBER.unpack(data)[0]


def main() -> None:
    """Import the modules of most programs, and fork for each request until the requests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise a collection in a fork copies every page
    status = serve(control)
    if status is not None:
        Program(status).run()


def serve(control: socket.socket) -> socket.socket | None:
    """Fork for each request. Returns the socket of the request in each fork, and None in the parent
    after the last request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not control:
                    pid, status = running.pop(key.fd)
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    _, ended = os.waitpid(pid, 0)
                    with status, suppress(OSError):  # the reader may have closed the socket
                        status.sendall(NUMBER.pack(ended))
                    continue
                data, descriptors, *_ = socket.recv_fds(control, 1, 4)
                if not data:
                    return None
                status = socket.socket(fileno=descriptors.pop())
                pid = os.fork()
                if not pid:
                    for place, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, place)
                    for other in (control, *(other for _, other in running.values())):
                        other.close()
                    break
                for descriptor in descriptors:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                running[watched] = pid, status
                ready.register(watched, selectors.EVENT_READ)
                with suppress(OSError):
                    status.sendall(NUMBER.pack(pid))
            else:
                continue
            break
    os.closerange(3, status.fileno())
    os.closerange(status.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    return status


class Program:
    """The program that a fork runs. `status` brings the command, the variables, the folder, and
    whether the program has a terminal."""

    def __init__(self, status: socket.socket) -> None:
        with status:
            length = number(status)
            request = json.loads(status.recv(length, socket.MSG_WAITALL))
        self.command: list[str] = request["command"]
        self.env: dict[str, str] = request["env"]
        self.folder: str = request["folder"]
        if request["terminal"]:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def run(self) -> None:
        """Run the program in place of this one, and exit with its exit code."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(self.folder)
        kind = self.command[1]
        first = {"-m": self.folder, "-c": ""}.get(kind, os.path.dirname(os.path.realpath(kind)))
        added = [path for path in self.env.get("PYTHONPATH", "").split(os.pathsep) if path]
        if not self._may_stay([first or self.folder, *added]):
            os.execve(sys.executable, self.command, self.env)
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [first, *added, *(path for path in sys.path[1:] if path not in own)]
        os.environ.clear()
        os.environ.update(self.env)
        time.tzset()
        tempfile.tempdir = None
        sys.orig_argv[:] = self.command
        sys.stdin, sys.stdout, sys.stderr = map(_stream, (sys.stdin, sys.stdout, sys.stderr))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        try:
            self._run_code(kind)
            code = 0
        except SystemExit as end:
            code = _exit_code(end.code)
        except BaseException as error:
            code = _report(error)
        _end(code)

    def _may_stay(self, folders: list[str]) -> bool:
        """Return whether a fresh interpreter would read the same variables and find the same
        modules. It searches `folders` before all others."""
        if variables_read_at_start(self.env) != variables_read_at_start(os.environ):
            return False
        for folder in folders:
            with suppress(OSError):
                for entry in os.listdir(folder):
                    name = entry.partition(".")[0]
                    if name in RUN_AT_START or _hides(os.path.join(folder, entry), name):
                        return False
        return True

    def _run_code(self, kind: str) -> None:
        program = types.ModuleType("__main__")
        names = program.__dict__
        names["__annotations__"] = {}
        names["__builtins__"] = sys.modules["builtins"]
        sys.modules["__main__"] = program
        if kind == "-m":
            sys.argv = [kind, *self.command[3:]]
            runpy._run_module_as_main(self.command[2])
        elif kind == "-c":
            sys.argv = [kind, *self.command[3:]]
            exec(compile(self.command[2], "<string>", "exec", dont_inherit=True), names)
        else:
            sys.argv = self.command[1:]
            names |= {"__file__": kind, "__cached__": None}
            exec(compile(Path(kind).read_bytes(), kind, "exec", dont_inherit=True), names)


def _hides(path: str, name: str) -> bool:
    """Return whether an import of `name` would find `path` and not the module that is imported."""
    module = sys.modules.get(name)
    if module is None:
        return False
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__init__.py")):
        return False  # a regular module comes before a folder without code, such as site/
    folder = os.path.dirname(path)
    files = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return not any(
        os.path.dirname(file or "").startswith(os.path.realpath(folder)) for file in files
    )


def _stream(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a new standard stream, as an interpreter makes it for the present descriptor."""
    name = stream.name  # such as <stdin>
    number = ("<stdin>", "<stdout>", "<stderr>").index(name)
    whole = number == 0 or not stream.write_through  # PYTHONUNBUFFERED is not set
    buffer = open(number, "wb" if number else "rb", -1 if whole else 0, closefd=False)  # noqa: SIM115
    (buffer.raw if whole else buffer).name = name
    text_stream = io.TextIOWrapper(
        buffer,
        stream.encoding,
        stream.errors,
        "\n",
        line_buffering=whole and (number == 2 or os.isatty(number)),
        write_through=not whole,
    )
    text_stream.mode = "w" if number else "r"
    return text_stream


def _exit_code(code: object) -> int:
    """Return the exit code for the code of a SystemExit, and print a code that is not a number."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """Print an uncaught error and return the exit code. An interrupt has the negative number of its
    signal."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _end(code: int) -> NoReturn:
    """Exit as an interpreter does, but leave freeing the memory to the system. An interpreter needs
    more time to free it than most programs run."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            print(f"Exception ignored in: {stream!r}", file=sys.stderr)
            print(*traceback.format_exception_only(error), sep="", end="", file=sys.stderr)
            code = 120
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
