"""Hooks that run a command: JSON on stdin, JSON on stdout, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from tempfile import TemporaryFile
from typing import IO, Any, cast

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.context import ToolContext
from holdfast.tools.environment import CancelWakeup, has_ended, minimal_environment, open_pidfd
from holdfast.tools.hook_answers import HookAnswer, HookFailed, HookPlace
from holdfast.tools.results import clean

_MAX_OUTPUT_BYTES = 1_000_000
_MAX_REASON_CHARS = 10_000  # of stderr, in a reason or error
# The exit code of a denial. Failures of a shell or of Python have other codes.
_DENY_EXIT_CODE = 2
# Between two checks of the output's size, and for the end where there is no pidfd.
_POLL_SECONDS = 0.02

# Names of variables that hold secrets.
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|dsn|cookie", re.IGNORECASE)


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """Return the secret values of a command's own environment, recognized by their names."""
    return [value for name, value in env.items() if _SECRET.search(name)]


def command_of(
    command: Sequence[str], timeout: float, env: Mapping[str, str]
) -> Callable[[dict[str, Any], ToolContext, HookPlace], HookAnswer | None]:
    """Return a hook's command as a function that runs it and returns its answer. `timeout` is in
    seconds; `env` is added to the minimal environment."""
    argv = list(command)

    def run(request: dict[str, Any], context: ToolContext, place: HookPlace) -> HookAnswer | None:
        code, out, err = _run(argv, timeout, env, msgspec.json.encode(request), context)
        reason = clean(err.decode("utf-8", "replace").strip())[:_MAX_REASON_CHARS]
        if code == _DENY_EXIT_CODE:
            if not place.denies:
                raise HookFailed(f"failed: there is nothing to deny here: {reason}")
            return HookAnswer(reason)
        if code:
            end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise _failed(f"{end}: {reason}" if reason else end)
        return _parse_answer(out, place) if out.strip() else None

    return run


def _parse_answer(out: bytes, place: HookPlace) -> HookAnswer:
    """Return the answer that a hook command printed. Raises `Failed`."""
    if too_deep(out):
        raise HookFailed(f"failed: the command's output is nested deeper than {MAX_DEPTH} levels")
    try:
        found = msgspec.json.decode(out)
    except ValueError as error:
        raise HookFailed(f"failed: the command's output is not JSON: {error}") from error
    permitted = [*(["deny"] * place.denies), *(["context"] * place.adds), *place.keys]
    if not isinstance(found, dict):
        raise _failed(f"printed a JSON {type(found).__name__}; it must print an object")
    answer = cast("dict[str, Any]", found)
    for key in answer:
        if key not in permitted:
            allowed = ", ".join(permitted) or "none"
            raise _failed(f"printed the key {key[:80]!r}; permitted here: {allowed}")
    for key in ("deny", "context", "text"):
        if not isinstance(answer.get(key, ""), str):
            raise _failed(f"printed {key}, which takes a string")
    changes = {key: answer[key] for key in place.keys if key in answer}
    if len(changes) > 1 and "calls" not in changes:
        raise _failed(f"printed {' and '.join(changes)}; only one is permitted")
    change: Any = changes or None  # interpreted by the place
    if "result" in changes:
        try:
            change = msgspec.convert(changes["result"], ToolResult)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise _failed(f"printed result, which takes a ToolResult as JSON: {error}") from error
    elif "arguments" in changes:
        change = changes["arguments"]
        if not isinstance(change, dict):
            raise _failed("printed arguments, which takes an object")
    deny = answer.get("deny")
    added = clean(answer.get("context", ""))
    return HookAnswer(None if deny is None else clean(deny), added, change)


def _failed(problem: str) -> HookFailed:
    return HookFailed(f"failed: the command {problem}")


def _run(
    argv: list[str], timeout: float, env: Mapping[str, str], request: bytes, context: ToolContext
) -> tuple[int, bytes, bytes]:
    """Return the command's exit code, stdout, stderr. Raises `HookFailed`, `ToolCancelled`."""
    context.cancelled.raise_if_set()
    deadline = time.monotonic() + timeout
    workdir: Any = getattr(context.runtime, "workdir", None)
    with contextlib.ExitStack() as stack:
        # Files, not pipes: nobody has to read or write while the command runs, and a process that
        # has left the group cannot keep the hook waiting.
        # No name leads to them, so that not even a kill -9 leaves the request behind.
        stdin, stdout, stderr = (
            stack.enter_context(TemporaryFile("w+b", buffering=0, prefix="holdfast-hook-"))
            for _ in range(3)
        )
        stdin.write(request)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=os.fspath(workdir) if isinstance(workdir, str | PathLike) else None,
                env={**minimal_environment(), **env, **context.process_environment()},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _failed(f"could not be started: {error}") from error
        stack.callback(_kill_group, process)
        wakeup = CancelWakeup()
        stack.callback(wakeup.close)
        stack.callback(context.cancelled.add_callback(wakeup))
        pidfd = open_pidfd(process.pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
        watched = [wakeup.reader] if pidfd is None else [wakeup.reader, pidfd]
        while not has_ended(process.pid):
            left = deadline - time.monotonic()
            if left <= 0:
                raise _failed(f"did not answer within {timeout:g} s")
            _check_size(stdout)
            if os.fstat(stderr.fileno()).st_size > _MAX_OUTPUT_BYTES:
                os.ftruncate(stderr.fileno(), 4 * _MAX_REASON_CHARS)
            select.select(watched, (), (), min(left, _POLL_SECONDS))
            if context.cancelled:
                raise ToolCancelled("The hook was cancelled.")
        _kill_group(process)
        _check_size(stdout)
        out = os.pread(stdout.fileno(), _MAX_OUTPUT_BYTES, 0)
        err = os.pread(stderr.fileno(), 4 * _MAX_REASON_CHARS, 0)
        return process.returncode, out, err


def _check_size(output: IO[bytes]) -> None:
    if os.fstat(output.fileno()).st_size > _MAX_OUTPUT_BYTES:
        raise _failed(f"printed more than {_MAX_OUTPUT_BYTES:,} bytes")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the process group, then reap the process. The order matters: until the
    process is reaped, its group id cannot be reused."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
