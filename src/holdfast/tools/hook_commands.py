"""Hooks that run a command: JSON on stdin, JSON on stdout, a time limit, and no process left
behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import IO, Any, cast

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.context import ToolContext
from holdfast.tools.hooks import Failed, Hook, Place, Said
from holdfast.tools.results import clean

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin"
_MOST = 1_000_000  # bytes that a command may print
_REASON = 10_000  # characters of its standard error that are told
_DENIED = 2  # the exit code that says no; a shell's and Python's own failures have others
# seconds in which what it printed must be read once it has ended: who left its group may hold the
# pipe open
_DRAIN = 0.2
_POLL = 0.02  # seconds between two looks where no pidfd tells of its end

# How variables are called that hold secrets.
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|dsn|cookie", re.IGNORECASE)


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """Return the secret values of a command's own environment, recognized by the names of the
    variables."""
    return [value for name, value in env.items() if _SECRET.search(name)]


def command_of(hook: Hook) -> Callable[[dict[str, Any], ToolContext, Place], Said | None]:
    """Return the hook's command as a function that runs it and returns its answer."""

    def asked(told: dict[str, Any], context: ToolContext, place: Place) -> Said | None:
        code, out, err = _run(hook, msgspec.json.encode(told), context)
        said = clean(err.decode("utf-8", "replace").strip())[:_REASON]
        if code == _DENIED:
            if not place.denies:
                raise Failed(f"failed: there is nothing to deny here: {said}")
            return Said(said)
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise Failed(f"failed: the command {how}{f': {said}' if said else ''}")
        return _answer(out, place) if out.strip() else None

    return asked


def _answer(out: bytes, place: Place) -> Said:
    """Return the answer that a hook command printed. Raises `Failed`."""
    if too_deep(out):
        raise Failed(f"failed: what the command printed is nested deeper than {MAX_DEPTH} levels")
    try:
        found = msgspec.json.decode(out)
    except ValueError as error:
        raise Failed(f"failed: what the command printed is no JSON: {error}") from error
    known = (
        *(("deny",) if place.denies else ()),
        *(("context",) if place.adds else ()),
        *place.keys,
    )
    if not isinstance(found, dict):
        raise Failed(
            f"failed: the command printed a JSON {type(found).__name__}; it takes an object"
        )
    answer = cast("dict[str, Any]", found)
    for key in answer:
        if key not in known:
            raise Failed(
                f"failed: the command said {key[:80]!r}; here it may say:"
                f" {', '.join(known) or 'nothing'}"
            )
    for key in ("deny", "context", "text"):
        if not isinstance(answer.get(key, ""), str):
            raise Failed(f"failed: the command said {key}, which takes a text")
    changes = {key: answer[key] for key in place.keys if key in answer}
    change: Any = None
    if len(changes) > 1 and "calls" not in changes:
        raise Failed(f"failed: the command said {' and '.join(changes)}; it takes one of them")
    if "result" in changes:
        try:
            change = msgspec.convert(changes["result"], ToolResult)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise Failed(f"failed: result takes what a ToolResult is in JSON: {error}") from error
    elif "arguments" in changes:
        change = changes["arguments"]
        if not isinstance(change, dict):
            raise Failed("failed: the command said arguments, which takes an object")
    elif changes:
        change = changes  # what it means, the place knows
    deny = answer.get("deny")
    return Said(None if deny is None else clean(deny), clean(answer.get("context", "")), change)


def _run(hook: Hook, told: bytes, context: ToolContext) -> tuple[int, bytes, bytes]:
    """Run the command. Returns its exit code, stdout and stderr. Raises `Failed`,
    `ToolCancelled`."""
    context.cancelled.raise_if_set()
    deadline = time.monotonic() + hook.timeout
    workdir: Any = getattr(context.runtime, "workdir", None)
    try:
        process = subprocess.Popen(
            list(hook.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=os.fspath(workdir) if isinstance(workdir, str | PathLike) else None,
            env={**_environment(), **hook.env, **context.process_environment()},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Failed(f"failed: the command could not be started: {error}") from error
    waker, woken = socket.socketpair()
    waker.setblocking(False)

    def wake() -> None:
        with contextlib.suppress(OSError):
            waker.send(b"\0")

    forget = context.cancelled.add_callback(wake)
    try:
        out, err = _talk(process, told, woken, deadline, hook.timeout, context)
    finally:
        forget()
        _end(process)
        waker.close()
        woken.close()
    return process.returncode, out, err


def _talk(
    process: subprocess.Popen[bytes],
    told: bytes,
    woken: socket.socket,
    deadline: float,
    timeout: float,
    context: ToolContext,
) -> tuple[bytes, bytes]:
    """Write the request to stdin, and read stdout and stderr until the command has ended."""
    stdin, stdout, stderr = (
        cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
    )
    found: dict[Any, bytearray] = {stdout: bytearray(), stderr: bytearray()}
    left = memoryview(told)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        pidfd = _pidfd(process.pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
            selector.register(pidfd, selectors.EVENT_READ)
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        open_pipes, ended = 2, False
        while open_pipes:
            wait = deadline - time.monotonic()
            if wait <= 0:
                if ended:
                    break
                raise Failed(f"failed: the command did not answer within {timeout:g} s")
            ready = [
                key.fileobj
                for key, _ in selector.select(
                    wait if pidfd is not None or ended else min(wait, _POLL)
                )
            ]
            if context.cancelled:
                raise ToolCancelled("The hook was cancelled.")
            if stdin in ready:
                try:
                    left = left[os.write(stdin.fileno(), left[:65536]) :]
                except OSError:  # it does not want to hear more
                    left = left[:0]
                if not left:
                    selector.unregister(stdin)
                    stdin.close()
            for pipe in (stdout, stderr):
                if pipe in ready:
                    data = os.read(pipe.fileno(), 65536)
                    found[pipe] += data
                    if not data:
                        selector.unregister(pipe)
                        open_pipes -= 1
                    if len(found[stdout]) > _MOST:
                        raise Failed(f"failed: the command printed more than {_MOST:,} bytes")
                    del found[stderr][4 * _REASON :]
            if not ended and (pidfd in ready if pidfd is not None else _over(process.pid)):
                ended = True
                deadline = min(deadline, time.monotonic() + _DRAIN)
                if pidfd is not None:
                    selector.unregister(pidfd)
        if not ended and not _wait(process.pid, deadline, woken, context):
            raise Failed(f"failed: the command did not end within {timeout:g} s")
    return bytes(found[stdout]), bytes(found[stderr])


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, or too many files
        return None


def _over(pid: int) -> bool:
    """Return True if the process has ended. It stays a zombie, so its group id is not reused
    yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _wait(pid: int, deadline: float, woken: socket.socket, context: ToolContext) -> bool:
    """Wait for a process that has closed its output but still runs. Returns True if it ended in
    time."""
    pause = 0.0005
    while not _over(pid):
        if context.cancelled:
            raise ToolCancelled("The hook was cancelled.")
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _POLL)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the process group, then reap the process.

    The order matters: until the process is reaped, its group id cannot be reused.
    """
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _environment() -> dict[str, str]:
    """Return the minimal environment of a command. No variable of this process, and so no
    secret, reaches a command unless it is configured."""
    found = {"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        user = pwd.getpwuid(os.getuid())
        found.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    except KeyError:  # a container may run under a user id that has no entry
        pass
    return found
