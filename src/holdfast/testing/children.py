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
from pathlib import Path
from types import FunctionType
from typing import IO, Any, NoReturn, Protocol, cast

import msgspec

from holdfast.errors import ConfigurationError

_MAX_OUTPUT_CHARS = 10_000  # of the end of a child's output


class ChildFunction(Protocol):
    """The function of a child."""

    def prepare(self) -> None:
        """Do once, in the forking process, the work that every child would have to repeat."""
        ...

    def __call__(self, task: Any, /) -> None:
        """Run in the child."""
        ...


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

    def __init__(self, work: ChildFunction, deadline: float) -> None:
        self._work = work
        self._deadline = deadline
        self._server: _Forker | None = None
        if threading.active_count() > 1:
            self._server = _Forker(work, deadline)
        else:
            work.prepare()

    def run(self, task: msgspec.Struct, output: Path) -> ChildExit:
        """Run one child and return when it has ended, at the latest after the deadline. Its
        output goes to the file `output`."""
        if self._server is None:
            return fork(self._work, task, output, self._deadline)
        return self._server.run(task, output)

    def close(self) -> None:
        """End the forking interpreter, if there is one. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fork(work: ChildFunction, task: msgspec.Struct, output: Path, deadline: float) -> ChildExit:
    """Run one child; see `Forks.run`. The calling process must have a single thread."""
    output.touch()
    with warnings.catch_warnings():
        # Python 3.12 warns of native threads, such as numpy's, which handle forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _child(work, task, output)
    status: int | None = None
    late = False
    try:
        until, pause = time.monotonic() + deadline, 0.0005
        while (status := _exit_status(pid)) is None:
            if time.monotonic() > until:
                late = True
                os.kill(pid, signal.SIGQUIT)  # makes the child dump its stack
                time.sleep(0.2)
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)
    finally:
        if status is None:
            end_group(pid)
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
    group = pid if _is_group(pid) else 0
    return ChildExit(os.waitstatus_to_exitcode(status), end_of(output), late, group)


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
    """Kill a process group, if there is one, with SIGKILL."""
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass


def _is_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the group exists
        pass
    return True


def _exit_status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return status if ended else None


def _child(work: ChildFunction, task: msgspec.Struct, output: Path) -> NoReturn:
    """Run the child from start to end. It shares only memory with its parent: neither output nor
    hooks nor exit handlers."""
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
    # Else a test runner's hooks would collect errors that nobody reads.
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


class _Forker:
    """A fresh interpreter that forks the children. Raises `ConfigurationError` if it cannot import
    `work`."""

    def __init__(self, work: ChildFunction, deadline: float) -> None:
        others = [repr(one.name) for one in threading.enumerate()]
        others.remove(repr(threading.current_thread().name))
        why = (
            f"This process has other threads ({', '.join(others)}), so it cannot fork, and a fresh"
            f" interpreter cannot import {work!r}"
        )
        what = "Give module-level functions of an importable module, or end the threads first."
        pickled = io.BytesIO()
        try:
            _Pickler(pickled).dump(work)
        except Exception as error:
            raise ConfigurationError(f"{why}: {error}. {what}") from error
        program = (
            "import sys; sys.path[:] = eval(sys.argv[1]); from holdfast.testing.children import"
            " serve; serve()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, repr(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        try:
            _send(self._requests, (pickled.getvalue(), deadline))
            error = _receive(self._answers)
        except (OSError, EOFError):
            error = "it did not start"
        if error:
            self.close()
            raise ConfigurationError(f"{why}: {error}. {what}")

    def run(self, task: msgspec.Struct, output: Path) -> ChildExit:
        _send(self._requests, (task, output))
        try:
            return _receive(self._answers)
        except EOFError:
            raise AssertionError(
                f"The process that forks children ended with {self._process.wait()}."
            ) from None

    def close(self) -> None:
        self._requests.close()
        self._process.wait()
        self._answers.close()


def serve() -> None:
    """Serve as the forking interpreter: run a child for each request and answer with its end,
    until stdin ends."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    pickled, deadline = _receive(commands)
    try:
        work: ChildFunction = pickle.loads(pickled)
        work.prepare()
    except Exception as error:
        _send(answers, f"{type(error).__name__}: {error}")
        return
    _send(answers, "")
    while True:
        try:
            task, output = _receive(commands)
        except EOFError:
            return
        _send(answers, fork(work, task, output, deadline))


def _send(file: IO[bytes], what: object) -> None:
    pickle.dump(what, file)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    return pickle.load(file)
