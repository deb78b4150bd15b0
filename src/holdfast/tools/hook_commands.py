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
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import IO, Any, cast

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.context import ToolContext
from holdfast.tools.hook_answers import Failed, HookPlace, Said
from holdfast.tools.results import clean

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin"
_MAX_OUTPUT_BYTES = 1_000_000
_MAX_REASON_CHARS = 10_000  # of stderr, in a reason or error
# The exit code of a denial. Failures of a shell or of Python have other codes.
_DENY_EXIT_CODE = 2
# The time to read the remaining output once the command has ended: a process that left the group
# may hold the pipe open.
_DRAIN_SECONDS = 0.2
_POLL_SECONDS = 0.02  # between two checks for the end, where there is no pidfd

# Names of variables that hold secrets.
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|dsn|cookie", re.IGNORECASE)


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """Return the secret values of a command's own environment, recognized by the names of the
    variables."""
    return [value for name, value in env.items() if _SECRET.search(name)]


def command_of(
    command: Sequence[str], timeout: float, env: Mapping[str, str]
) -> Callable[[dict[str, Any], ToolContext, HookPlace], Said | None]:
    """Return a hook's command as a function that runs it and returns its answer.

    `timeout` is in seconds; `env` is added to the minimal environment.
    """
    argv = list(command)

    def run(request: dict[str, Any], context: ToolContext, place: HookPlace) -> Said | None:
        code, out, err = _run(argv, timeout, env, msgspec.json.encode(request), context)
        reason = clean(err.decode("utf-8", "replace").strip())[:_MAX_REASON_CHARS]
        if code == _DENY_EXIT_CODE:
            if not place.denies:
                raise Failed(f"failed: there is nothing to deny here: {reason}")
            return Said(reason)
        if code:
            end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise Failed(f"failed: the command {end}{f': {reason}' if reason else ''}")
        return _parse_answer(out, place) if out.strip() else None

    return run


def _parse_answer(out: bytes, place: HookPlace) -> Said:
    """Return the answer that a hook command printed. Raises `Failed`."""
    if too_deep(out):
        raise Failed(f"failed: the command's output is nested deeper than {MAX_DEPTH} levels")
    try:
        found = msgspec.json.decode(out)
    except ValueError as error:
        raise Failed(f"failed: the command's output is not JSON: {error}") from error
    permitted = (
        *(("deny",) if place.denies else ()),
        *(("context",) if place.adds else ()),
        *place.keys,
    )
    if not isinstance(found, dict):
        raise Failed(
            f"failed: the command printed a JSON {type(found).__name__}; it must print an object"
        )
    answer = cast("dict[str, Any]", found)
    for key in answer:
        if key not in permitted:
            raise Failed(
                f"failed: the command printed the key {key[:80]!r}; permitted here:"
                f" {', '.join(permitted) or 'none'}"
            )
    for key in ("deny", "context", "text"):
        if not isinstance(answer.get(key, ""), str):
            raise Failed(f"failed: the command printed {key}, which takes a string")
    changes = {key: answer[key] for key in place.keys if key in answer}
    change: Any = None
    if len(changes) > 1 and "calls" not in changes:
        raise Failed(f"failed: the command printed {' and '.join(changes)}; only one is permitted")
    if "result" in changes:
        try:
            change = msgspec.convert(changes["result"], ToolResult)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise Failed(
                f"failed: the command printed result, which takes a ToolResult as JSON: {error}"
            ) from error
    elif "arguments" in changes:
        change = changes["arguments"]
        if not isinstance(change, dict):
            raise Failed("failed: the command printed arguments, which takes an object")
    elif changes:
        change = changes  # interpreted by the place
    deny = answer.get("deny")
    return Said(None if deny is None else clean(deny), clean(answer.get("context", "")), change)


def _run(
    argv: list[str], timeout: float, env: Mapping[str, str], request: bytes, context: ToolContext
) -> tuple[int, bytes, bytes]:
    """Run the command. Returns its exit code, stdout and stderr. Raises `Failed`,
    `ToolCancelled`."""
    context.cancelled.raise_if_set()
    deadline = time.monotonic() + timeout
    workdir: Any = getattr(context.runtime, "workdir", None)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=os.fspath(workdir) if isinstance(workdir, str | PathLike) else None,
            env={**_environment(), **env, **context.process_environment()},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Failed(f"failed: the command could not be started: {error}") from error
    waker, wakeup = socket.socketpair()
    waker.setblocking(False)

    def wake() -> None:
        with contextlib.suppress(OSError):
            waker.send(b"\0")

    remove_callback = context.cancelled.add_callback(wake)
    try:
        out, err = _communicate(process, request, wakeup, deadline, timeout, context)
    finally:
        remove_callback()
        _kill_group(process)
        waker.close()
        wakeup.close()
    return process.returncode, out, err


def _communicate(
    process: subprocess.Popen[bytes],
    request: bytes,
    wakeup: socket.socket,
    deadline: float,
    timeout: float,
    context: ToolContext,
) -> tuple[bytes, bytes]:
    """Write the request to stdin, and read stdout and stderr until the command has ended."""
    stdin, stdout, stderr = (
        cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
    )
    output: dict[Any, bytearray] = {stdout: bytearray(), stderr: bytearray()}
    unsent = memoryview(request)
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
        selector.register(wakeup, selectors.EVENT_READ)
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
                    wait if pidfd is not None or ended else min(wait, _POLL_SECONDS)
                )
            ]
            if context.cancelled:
                raise ToolCancelled("The hook was cancelled.")
            if stdin in ready:
                try:
                    unsent = unsent[os.write(stdin.fileno(), unsent[:65536]) :]
                except OSError:  # the command has closed its stdin
                    unsent = unsent[:0]
                if not unsent:
                    selector.unregister(stdin)
                    stdin.close()
            for pipe in (stdout, stderr):
                if pipe in ready:
                    data = os.read(pipe.fileno(), 65536)
                    output[pipe] += data
                    if not data:
                        selector.unregister(pipe)
                        open_pipes -= 1
                    if len(output[stdout]) > _MAX_OUTPUT_BYTES:
                        raise Failed(
                            f"failed: the command printed more than {_MAX_OUTPUT_BYTES:,} bytes"
                        )
                    del output[stderr][4 * _MAX_REASON_CHARS :]
            if not ended and (pidfd in ready if pidfd is not None else _has_ended(process.pid)):
                ended = True
                deadline = min(deadline, time.monotonic() + _DRAIN_SECONDS)
                if pidfd is not None:
                    selector.unregister(pidfd)
        if not ended and not _wait_for_end(process.pid, deadline, wakeup, context):
            raise Failed(f"failed: the command did not end within {timeout:g} s")
    return bytes(output[stdout]), bytes(output[stderr])


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, or too many open files
        return None


def _has_ended(pid: int) -> bool:
    """Return True if the process has ended. It stays a zombie, so its group id is not reused
    yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _wait_for_end(pid: int, deadline: float, wakeup: socket.socket, context: ToolContext) -> bool:
    """Wait for a process that has closed its output but still runs. Returns True if it ended in
    time."""
    pause = 0.0005
    while not _has_ended(pid):
        if context.cancelled:
            raise ToolCancelled("The hook was cancelled.")
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _POLL_SECONDS)
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
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
    env = {"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        user = pwd.getpwuid(os.getuid())
        env.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    except KeyError:  # in a container the user id may have no entry
        pass
    return env
