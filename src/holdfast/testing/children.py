"""Child processes by `os.fork`: each runs one function, writes its output to a file, and leaves
nothing behind."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import IO, Any, NoReturn, cast

import msgspec

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError
from holdfast.testing.watched_store import Task, Watched

_MAX_OUTPUT_CHARS = 10_000  # of the end of a child's output


class ChildExit(msgspec.Struct, frozen=True):
    """The end of a child: `code` as in `subprocess` (negative: the signal) and the end of its
    output.

    `late` is True if the child was killed at the deadline. `group` is its process group if
    processes are left in it, else 0.
    """

    code: int
    output: str
    late: bool = False
    group: int = 0


class Forks:
    """A context manager that runs `work(given)` in one child after another, forked from this
    process.

    A fork copies one thread, and every lock in its present state. If this process has other
    threads, the children are therefore forked from a fresh interpreter, which must be able to
    import `work`. Raises `ConfigurationError` if it cannot.
    """

    def __init__(self, work: Watched, deadline: float) -> None:
        self._work = work
        self._deadline = deadline
        self._server: subprocess.Popen[bytes] | None = None
        if threading.active_count() > 1:
            self._start_server()
        else:
            work.prepare()

    def run(self, task: Task, output: Path) -> ChildExit:
        """Run one child to its end or the deadline. Its output goes to the file `output`."""
        server = self._server
        if server is None:
            return fork(self._work, task, output, self._deadline)
        _send(server.stdin, (task, output))
        try:
            return _receive(server.stdout)
        except EOFError:
            raise AssertionError(
                f"The process that forks children ended with {server.wait()}."
            ) from None

    def _start_server(self) -> None:
        others = [repr(one.name) for one in threading.enumerate()]
        others.remove(repr(threading.current_thread().name))
        why = (
            f"This process has other threads ({', '.join(others)}), so it cannot fork, and a fresh"
            f" interpreter cannot import {self._work!r}"
        )
        what = "Give module-level functions of an importable module, or end the threads first."
        pickled = io.BytesIO()
        try:
            _Pickler(pickled).dump(self._work)
        except Exception as error:
            raise ConfigurationError(f"{why}: {error}. {what}") from error
        program = (
            "import sys; sys.path[:] = eval(sys.argv[1]); from holdfast.testing.children import"
            " serve; serve()"
        )
        arguments, pipe = [sys.executable, "-c", program, repr(sys.path)], subprocess.PIPE
        self._server = server = subprocess.Popen(arguments, stdin=pipe, stdout=pipe)
        try:
            _send(server.stdin, (pickled.getvalue(), self._deadline))
            error = _receive(server.stdout)
        except (OSError, EOFError):
            error = "it did not start"
        if error:
            self.close()
            raise ConfigurationError(f"{why}: {error}. {what}")

    def close(self) -> None:
        """End the forking interpreter, if there is one. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            cast(IO[bytes], server.stdin).close()
            server.wait()
            cast(IO[bytes], server.stdout).close()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fork(work: Watched, task: Task, output: Path, deadline: float) -> ChildExit:
    """Run one child; see `Forks.run`. The calling process must have a single thread."""
    output.touch()
    with warnings.catch_warnings():
        # Python 3.12 warns of native threads, such as numpy's, which handle forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _child(work, task, output)
    ended, late = (0, 0), False  # the pid and the status, once the child has ended
    try:
        until, pause = time.monotonic() + deadline, 0.0005
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                late = True
                os.kill(pid, signal.SIGQUIT)  # makes the child dump its stack
                time.sleep(0.2)
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)
    finally:
        if not ended[0]:
            end_group(pid)
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
    group = pid if _is_group(pid) else 0
    return ChildExit(os.waitstatus_to_exitcode(ended[1]), end_of(output), late, group)


def end_of(output: Path) -> str:
    """Return the end of a child's output, without blank lines around it."""
    with output.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * _MAX_OUTPUT_CHARS))  # a character has at most 4 bytes
        text = file.read().decode(errors="replace").strip()
    if len(text) <= _MAX_OUTPUT_CHARS and size <= 4 * _MAX_OUTPUT_CHARS:
        return text
    return f"(only the last {_MAX_OUTPUT_CHARS:,} characters)\n{text[-_MAX_OUTPUT_CHARS:]}"


def end_group(group: int) -> None:
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _child(work: Watched, task: Task, output: Path) -> NoReturn:
    """Run the child, which shares only memory with its parent: neither output nor hooks."""
    code = 1
    try:
        _set_up_child(output)
        work(task)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]: as multiprocessing's forks do
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _set_up_child(output: Path) -> None:
    os.setsid()  # distinguishes processes that it leaves behind from the parent's
    file = open(output, "w", buffering=1, errors="replace")  # noqa: SIM115
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    # The old ones are neither flushed nor closed: the parent writes their buffers.
    sys.stdout = sys.stderr = file
    faulthandler.register(signal.SIGQUIT, file, all_threads=True)
    # Else a test runner's hooks would collect errors that are never read.
    sys.excepthook, sys.unraisablehook, threading.excepthook = (
        sys.__excepthook__,
        sys.__unraisablehook__,
        threading.__excepthook__,
    )
    for name in (None, *logging.root.manager.loggerDict):
        logging.getLogger(name).handlers.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()  # pyright: ignore[reportPrivateUsage]
    gc.freeze()  # a collection would touch, and so copy, inherited memory


# --- the forking interpreter, for a process with threads ---


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, FunctionType | type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__!r} belongs to __main__, which is another module in each process"
            )
        return NotImplemented


def serve() -> None:
    """Serve as the forking interpreter, until stdin ends."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    pickled, deadline = _receive(commands)
    try:
        work: Watched = pickle.loads(pickled)
        work.prepare()
    except Exception as error:
        _send(answers, describe_error(error))
        return
    _send(answers, "")
    while True:
        try:
            task, output = _receive(commands)
        except EOFError:
            return
        _send(answers, fork(work, task, output, deadline))


def _send(file: IO[bytes] | None, what: object) -> None:
    assert file is not None
    pickle.dump(what, file)
    file.flush()


def _receive(file: IO[bytes] | None) -> Any:
    assert file is not None
    return pickle.load(file)
