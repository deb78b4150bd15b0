"""Hooks that run a command: JSON on stdin, JSON on stdout, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from os import PathLike
from typing import IO, Any, cast

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ToolCancelled
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.context import ToolContext
from holdfast.tools.environment import CancelWakeup, has_ended, minimal_environment, open_pidfd
from holdfast.tools.hook_answers import FORMATS, HookAnswer, HookFailed, HookPlace
from holdfast.tools.hook_formats import DENY_EXIT_CODE, FOREIGN, HookOutput, note_failure
from holdfast.tools.launch import Launcher, PlainLauncher, start
from holdfast.tools.results import clean

_MAX_OUTPUT_BYTES = 1_000_000
_MAX_REASON_CHARS = 10_000  # of stderr, in a reason or error
_TIMEOUT = 30.0  # seconds, unless the hook has its own
_POLL_SECONDS = 0.02  # between two checks for the end, where there is no pidfd
_DRAIN_SECONDS = 0.2  # for the rest of the output after the end

# Names of variables that hold secrets.
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|dsn|cookie", re.IGNORECASE)


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """Return the secret values of a command's own environment, recognized by their names."""
    return [value for name, value in env.items() if _SECRET.search(name)]


def command_of(
    name: str,
    command: Sequence[str],
    timeout: float | None,
    env: Mapping[str, str],
    format: str = FORMATS[0],
    matcher: str = "",
) -> Callable[[dict[str, Any], ToolContext, HookPlace], HookAnswer | None]:
    """Return a hook's command as a function that runs it and returns its answer.

    Args:
        name: The hook's name in the journal.
        command: The program and its arguments.
        timeout: Seconds until the command must have ended; None for 30.
        env: Variables beside the minimal environment.
        format: The form of the command's input and output, one of `FORMATS`.
        matcher: The tools for which it runs, in the other system's form.
    """
    argv, seconds = list(command), _TIMEOUT if timeout is None else timeout
    foreign = FOREIGN.get(format)

    def run(request: dict[str, Any], context: ToolContext, place: HookPlace) -> HookAnswer | None:
        if foreign is not None:
            folder = _folder(context.runtime) or os.getcwd()
            answers: list[HookAnswer] = []
            for foreign_request in foreign.requests(request, folder, matcher):
                variables = {**foreign.variables(foreign_request, folder), **env}
                with _transcript_file(foreign.transcript(request), context) as path:
                    data = msgspec.json.encode({**foreign_request, **path})
                    ran = HookOutput(*_run(argv, seconds, variables, data, context))
                if ran.code not in (0, DENY_EXIT_CODE):
                    note_failure(ran, context, name)
                elif answer := foreign.answer(ran, request, place, context, name):
                    if answer.deny is not None:
                        return answer
                    answers.append(answer)
            added = "\n".join([one.add for one in answers if one.add])
            return HookAnswer(None, added, answers[-1].change) if answers else None
        code, out, err = _run(argv, seconds, env, msgspec.json.encode(request), context)
        reason = clean(err.decode("utf-8", "replace").strip())[:_MAX_REASON_CHARS]
        if code == DENY_EXIT_CODE:
            if not place.denies:
                raise HookFailed(f"failed: there is nothing to deny here: {reason}")
            return HookAnswer(reason)
        if code:
            end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise _failed(f"{end}: {reason}" if reason else end)
        return _parse_answer(out, place) if out.strip() else None

    return run


def _parse_answer(out: bytes, place: HookPlace) -> HookAnswer:
    """Return the answer that a hook command printed. Raises `HookFailed`."""
    if too_deep(out):
        raise HookFailed(f"failed: the command's output is nested deeper than {MAX_DEPTH} levels")
    try:
        output = msgspec.json.decode(out)
    except ValueError as error:
        raise HookFailed(f"failed: the command's output is not JSON: {error}") from error
    permitted = [*(["deny"] * place.denies), *(["context"] * place.adds), *place.keys]
    if not isinstance(output, dict):
        raise _failed(f"printed a JSON {type(output).__name__}; it must print an object")
    answer = cast("dict[str, Any]", output)
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


@contextlib.contextmanager
def _transcript_file(lines: bytes, context: ToolContext) -> Generator[dict[str, str]]:
    """Yield the path of a file with these lines, as a part of a request. Yield an empty part for no
    lines, and for a box, where the file would not be visible."""
    launcher: Any = getattr(context.runtime, "launcher", None)
    if not lines or not isinstance(launcher, PlainLauncher | None):
        yield {}
        return
    with tempfile.NamedTemporaryFile(prefix="holdfast-transcript-", suffix=".jsonl") as file:
        file.write(lines)
        file.flush()
        yield {"transcript_path": file.name}


def _failed(problem: str) -> HookFailed:
    return HookFailed(f"failed: the command {problem}")


def _folder(runtime: Any) -> str | None:
    """Return the work folder of a runtime as its commands see it; None if it has none."""
    boxed = isinstance(getattr(runtime, "launcher", None), Launcher)
    workdir: Any = getattr(runtime, "workdir_visible" if boxed else "workdir", None)
    return os.fspath(workdir) if isinstance(workdir, str | PathLike) else None


def _run(
    argv: list[str], timeout: float, env: Mapping[str, str], request: bytes, context: ToolContext
) -> tuple[int, bytes, bytes]:
    """Return the command's exit code, stdout, stderr. Raises `HookFailed`, `ToolCancelled`."""
    context.cancelled.raise_if_set()
    deadline = time.monotonic() + timeout
    runtime: Any = context.runtime
    # A sandboxed runtime starts hooks in a box, which has another home folder.
    launcher: Any = getattr(runtime, "launcher", None)
    boxed = isinstance(launcher, Launcher)
    home = {"HOME": runtime.home} if boxed and runtime.home else {}
    try:
        # Pipes, not files: the request may hold secrets, and a process that outlives the command
        # could fill a disk.
        process = start(
            launcher if boxed else PlainLauncher(),
            argv,
            cwd=_folder(runtime),
            env={**minimal_environment(), **home, **env, **context.process_environment()},
            stdin=subprocess.PIPE,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise _failed(f"could not be started: {error}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(_kill_group, process)
        wakeup = CancelWakeup()
        stack.callback(wakeup.close)
        stack.callback(context.cancelled.add_callback(wakeup))
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(wakeup.reader, selectors.EVENT_READ)
        pidfd = open_pidfd(process.pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
            selector.register(pidfd, selectors.EVENT_READ)
        out, err = _communicate(process, request, selector, pidfd, deadline, timeout, context)
    return process.returncode, out, err


def _communicate(
    process: subprocess.Popen[bytes],
    request: bytes,
    selector: selectors.BaseSelector,
    pidfd: int | None,
    deadline: float,
    timeout: float,
    context: ToolContext,
) -> tuple[bytes, bytes]:
    """Write the request to stdin, and read stdout and stderr until the command has ended."""
    stdin, stdout, stderr = (
        cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout, process.stderr)
    )
    os.set_blocking(stdin.fileno(), False)
    selector.register(stdin, selectors.EVENT_WRITE)
    output: dict[Any, bytearray] = {stdout: bytearray(), stderr: bytearray()}
    for pipe in output:
        selector.register(pipe, selectors.EVENT_READ)
    unsent, open_pipes, ended = memoryview(request), 2, False
    while open_pipes or not ended:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 and ended:
            break  # a process that has left the group keeps the output open
        if seconds_left <= 0:
            raise _failed(f"did not answer within {timeout:g} s")
        ready = [
            key.fileobj
            for key, _ in selector.select(
                seconds_left if pidfd is not None else min(seconds_left, _POLL_SECONDS)
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
        for pipe in (pipe for pipe in output if pipe in ready):
            data = os.read(pipe.fileno(), 65536)
            output[pipe] += data
            if not data:
                selector.unregister(pipe)
                open_pipes -= 1
        if len(output[stdout]) > _MAX_OUTPUT_BYTES:
            raise _failed(f"printed more than {_MAX_OUTPUT_BYTES:,} bytes")
        del output[stderr][4 * _MAX_REASON_CHARS :]
        if not ended and has_ended(process.pid):
            ended = True
            deadline = min(deadline, time.monotonic() + _DRAIN_SECONDS)
            if pidfd is not None:
                selector.unregister(pidfd)
    return bytes(output[stdout]), bytes(output[stderr])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the process group, then reap the process. The order matters: until the
    process is reaped, its group id cannot be reused."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
