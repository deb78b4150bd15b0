"""One attempt of a call: validation, timeout, and classification of its outcome.

`ToolManager` makes calls of attempts.
"""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

from holdfast.content import ErrorInfo, TextContent, ToolResult
from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.results import as_result, clean
from holdfast.tools.tool import RetryPolicy, Tool

StartThread = Callable[[Callable[[], None], str], object]

_LONGEST_MESSAGE = 10_000  # characters of an exception's message that a model is shown
_LOOK = 0.05  # seconds between two looks whether the user has answered, once the time would be over
# seconds before a retry, however often the delay was doubled, and however long the service asks for
_LONGEST_WAIT = 60.0


def start_thread(work: Callable[[], None], name: str) -> object:
    """Run `work` on a daemon thread in the present contextvars context."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name=name, daemon=True)
    thread.start()
    return thread


def _called(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    found = tool.call(arguments, context)
    return as_result(tool.name, context.complete(_whole(found)) if tool.is_async else found)


async def _whole(work: Any) -> Any:
    """Await a callback's coroutine. A `SystemExit` becomes a `ToolError`, because it would end
    the shared loop."""
    try:
        return await work
    except SystemExit as error:
        raise ToolError(
            f"The callback called sys.exit({error.code!r}).", retryable=False
        ) from error


def checked(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments validated and converted for the tool. Raises `ToolError`."""
    try:
        found = tool.validate(arguments)
        if any(
            type(value) in (dict, list) for value in found.values()
        ):  # the journal's own; a callback may change what it is given
            found = deepcopy(found)
        return found
    except ToolError:
        raise
    except Exception as error:  # the tool's own schema or types; trying again would not help
        raise ToolError(
            f"{tool.name!r} was not run: {_said(error)}", retryable=False, max_retries=0
        ) from error


def attempt(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, start: StartThread
) -> ToolResult:
    """Call the tool once with checked arguments. Raises `ToolError` for any exception of the
    tool."""
    try:
        if (
            tool.timeout is not None and tool.isolation is None
        ):  # an isolated one keeps its timeout itself, and can end the work
            return _within(tool, arguments, context, start)
        return _called(tool, arguments, context)
    except ToolError:
        raise
    except Exception as error:
        raise _classified(tool.name, error) from error


def failed(error: ToolError) -> ToolResult:
    """Return an error as a result for the model."""
    text = clean(str(error))
    info = ErrorInfo(error.error_type, text, error.retryable, error.max_retries, error.backoff)
    return ToolResult((TextContent(text),), None, {}, True, info)


def _classified(name: str, error: Exception) -> ToolError:
    """Return a callback's exception as a `ToolError`, classified by type and status code, never
    by words in its message."""
    message = f"{name!r} failed: {_said(error)}"
    kind = (
        "timeout"
        if isinstance(error, TimeoutError)
        else _BY_STATUS.get(_status_of(error)) or _by_type(error)
    )
    found = ToolTimeout(message) if isinstance(error, TimeoutError) else ToolError(message, kind)
    found.retry_after = _retry_after(error)
    return found


def _said(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # a message that cannot be made must not hide the failure
        text = "(its message cannot be shown)"
    return (
        f"{type(error).__name__}:"
        f" {text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + '...'}"
    )


# HTTP status -> error type; requests, httpx, urllib and their kin hang it on the error or on its
# response.
_BY_STATUS = {
    401: "authentication",
    403: "authentication",
    404: "not_found",
    408: "timeout",
    410: "not_found",
    429: "rate_limit",
    502: "network",
    503: "network",
    504: "timeout",
}


def _status_of(error: Exception) -> int:
    for place in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            found = getattr(place, name, None)
            if isinstance(found, int):
                return found
    return 0


def _retry_after(error: Exception) -> float | None:
    """Return the seconds that a service asks to wait, from the error or its response's header;
    None if absent."""
    given: Any = getattr(error, "retry_after", None)
    if given is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        given = headers.get("retry-after") if hasattr(headers, "get") else None
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _by_type(error: Exception) -> str:
    # By name, so that nothing is imported: the timeouts of subprocess, multiprocessing, psutil,
    # gRPC and HTTP libraries, and the broken connections of the latter, are not the builtin ones.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "TimeoutExpired",
        "DeadlineExceeded",
    }:
        return "timeout"
    if isinstance(error, ConnectionError) or kinds & {
        "ConnectionError",
        "TransportError",
        "gaierror",
        "URLError",
    }:
        return "network"
    if isinstance(error, PermissionError):
        return "authentication"
    return "not_found" if isinstance(error, FileNotFoundError) else "internal"


def wait_before_retry(tool: Tool, error: ToolError, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt, None for no further attempt.

    An effect that may have happened is repeated only if the tool's configuration allows it.
    """
    if not error.retryable:
        return None
    if not tool.annotations.repeatable and tool.retry is None:
        return None  # its effect may have happened
    policy = tool.retry or RetryPolicy(error.max_retries, error.backoff)
    if attempt > policy.max_retries:
        return None
    asked = error.retry_after or 0.0
    if asked > _LONGEST_WAIT:
        return None
    if policy.backoff == "none":
        return asked
    delay = policy.delay * (2 ** min(attempt - 1, 30) if policy.backoff == "exponential" else 1)
    # Jitter, so that a hundred conversations that failed together do not come back together.
    delay = min(delay, _LONGEST_WAIT) * random.uniform(0.5, 1.0)
    return asked + min(delay, 1.0) if asked else delay


def _within(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, start_thread: StartThread
) -> ToolResult:
    """Call the tool under its timeout, on a thread of its own.

    A callback that ignores its cancellation is left running, and the error says so.
    """
    timeout = cast(float, tool.timeout)
    token = Cancellation()
    inner = context.with_cancellation(token)
    done = threading.Event()
    outcome: list[ToolResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_called(tool, arguments, inner))
        except BaseException as error:
            outcome.append(error)
        done.set()

    forget = context.cancelled.add_callback(token.cancel)
    try:
        start_thread(work, f"holdfast-call-{context.call_id}")
        finished = _done_within(done, timeout, inner)
    except BaseException:  # Ctrl-C: this thread no longer waits, so the call should end
        token.cancel()
        raise
    finally:
        forget()
    if not finished:
        token.cancel()
        # One that heeds `cancelled` gets the moment it needs to clean up.
        stopped = done.wait(1.0)
        left = "" if stopped else " It did not stop when asked to and may still be running."
        error = ToolTimeout(
            f"{tool.name!r} did not answer within {timeout:g} s and was given up.{left}"
        )
        if not stopped and not tool.annotations.repeatable:
            error.retryable = (
                False  # whatever its `retry` says: two at once is not what it asked for
            )
        raise error
    found = outcome[0]
    if isinstance(found, BaseException):
        raise found
    return found


def _done_within(done: threading.Event, timeout: float, context: ToolContext) -> bool:
    """Wait `timeout` seconds, not counting questions to the user. Returns True if the call has
    ended."""
    began, left = time.monotonic(), timeout
    while not done.wait(left):
        asked, asking = context.asked_for()
        left = timeout + asked - (time.monotonic() - began)
        if asking:
            left = max(left, _LOOK)
        elif left <= 0:
            return False
    return True
