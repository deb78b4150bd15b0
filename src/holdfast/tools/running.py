"""The attempts of a call: validation, timeout, retries, and classification of the outcome."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

from holdfast.content import ErrorInfo, TextContent, ToolResult
from holdfast.error_text import describe_error
from holdfast.errors import ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.names import word_set
from holdfast.tools.policy import RetryPolicy
from holdfast.tools.results import as_result, clean, cut
from holdfast.tools.schema import TOO_DEEP, validation_error

if TYPE_CHECKING:
    from holdfast.tools.secrets import Secrets
    from holdfast.tools.tool import Tool

StartThread = Callable[[Callable[[], None], str], object]

_MUTABLE = (dict, list)
_MAX_MESSAGE_CHARS = 10_000  # of an exception's message, shown to the model
_POLL_SECONDS = 0.05  # between two checks for the user's answer after the timeout
# The limit of a retry's delay, after doubling or by request of the service.
_MAX_RETRY_SECONDS = 60.0


def start_thread(work: Callable[[], None], name: str) -> object:
    """Run `work` on a daemon thread in the present contextvars context."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name=name, daemon=True)
    thread.start()
    return thread


def _call_tool(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    value = tool.call(arguments, context)
    if not tool.is_async:
        return as_result(tool.name, value)

    async def work() -> Any:
        try:
            return await value
        except SystemExit as error:  # would end the loop
            raise ToolError(
                f"The callback called sys.exit({error.code!r}).", retryable=False
            ) from error

    return as_result(tool.name, context.complete(work()))


def checked_arguments(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments validated and converted for the tool. Raises `ToolError`."""
    try:
        values = tool.validate(arguments)
        for value in values.values():
            if value.__class__ in _MUTABLE:
                # The values belong to the journal, and a callback may change its arguments.
                return deepcopy(values)
        return values
    except ToolError:
        raise
    except RecursionError:  # of a call that no model wrote, and no journal holds
        raise validation_error(tool.name, tool.input_schema, [TOO_DEEP]) from None
    except Exception as error:  # of the tool's schema or types, which a retry cannot repair
        raise ToolError(
            f"{tool.name!r} was not run: {cut(describe_error(error), _MAX_MESSAGE_CHARS)}",
            retryable=False,
            max_retries=0,
        ) from error


def run_once(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    """Validate the arguments and call the tool once. Raises `ToolError`."""
    context.cancelled.raise_if_set()  # a hook or a wait may have taken long
    return attempt(tool, checked_arguments(tool, arguments), context, start_thread)


def run_attempts(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext,
    start: StartThread = start_thread,
    before_attempt: Callable[[int], None] | None = None,
) -> ToolResult:
    """Validate the arguments and call the tool until an attempt succeeds or none is permitted.
    `before_attempt(n)` is called before the second and every further attempt. Raises `ToolError`,
    and what `before_attempt` and `context.confirm` raise."""
    while True:
        try:
            context.cancelled.raise_if_set()  # a hook or a wait may have taken long
            checked = checked_arguments(tool, arguments)
            if context.confirm is not None:
                context.confirm()
            return attempt(tool, checked, context, start)
        except ToolError as error:
            wait = wait_before_retry(tool, error, context.attempt)
            if wait is None or context.cancelled:
                raise
            if context.cancelled.wait(wait):
                raise ToolCancelled(
                    f"{tool.name!r} was cancelled while waiting to be tried again after: {error}"
                ) from error
        context.attempt += 1
        if before_attempt is not None:
            before_attempt(context.attempt)


def attempt(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, start: StartThread
) -> ToolResult:
    """Call the tool once with checked arguments. Raises `ToolError` for any exception. Secrets of
    the conversation are masked in both."""
    secrets = context.secrets
    if secrets is None:
        return _attempt(tool, arguments, context, start)
    try:
        return secrets.mask_result(_attempt(tool, arguments, context, start))
    except ToolError as error:
        raise secrets.mask_error(error) from error.__cause__


def _attempt(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, start: StartThread
) -> ToolResult:
    try:
        # An isolated tool enforces its timeout itself, by killing its process.
        if tool.timeout is not None and tool.isolation is None:
            return _call_within_timeout(tool, arguments, context, start)
        return _call_tool(tool, arguments, context)
    except ToolError:
        raise
    except Exception as error:
        raise _classify(tool.name, error, context.secrets) from error


def error_result(error: ToolError) -> ToolResult:
    """Return an error as a result for the model."""
    text = clean(str(error) or describe_error(error))
    info = ErrorInfo(error.error_type, text, error.retryable, error.max_retries, error.backoff)
    return ToolResult((TextContent(text),), None, {}, True, info)


def _classify(name: str, error: Exception, secrets: Secrets | None = None) -> ToolError:
    """Return an exception as a `ToolError`, classified by type and status, never by words."""
    text = describe_error(error)
    if secrets is not None:
        text = secrets.mask(text)
    message = f"{name!r} failed: {cut(text, _MAX_MESSAGE_CHARS)}"
    if isinstance(error, TimeoutError):
        classified = ToolTimeout(message)
    else:
        places = (error, getattr(error, "response", None))
        codes = (
            getattr(place, name, None)
            for place in places
            for name in ("status_code", "status", "code")
        )
        status = next((code for code in codes if isinstance(code, int)), 0)
        classified = ToolError(message, ERROR_TYPE_OF_STATUS.get(status) or _by_type(error))
    classified.retry_after = _retry_after(error)
    return classified


# Error types by HTTP status. requests, httpx, urllib and others store the status in the error or in
# its response.
ERROR_TYPE_OF_STATUS = {
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


def _retry_after(error: Exception) -> float | None:
    """Return the seconds that a service asks to wait; None if absent."""
    value: Any = getattr(error, "retry_after", None)
    if value is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        value = headers.get("retry-after") if hasattr(headers, "get") else None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


# By name, to import nothing: subprocess, multiprocessing, psutil, gRPC and HTTP libraries have
# their own timeout errors, and HTTP libraries their own connection errors.
_TIMEOUTS = word_set("Timeout TimeoutError TimeoutException TimeoutExpired DeadlineExceeded")
_CONNECTION_ERRORS = word_set("ConnectionError TransportError gaierror URLError")


def _by_type(error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _TIMEOUTS:
        return "timeout"
    if isinstance(error, ConnectionError) or kinds & _CONNECTION_ERRORS:
        return "network"
    if isinstance(error, PermissionError):
        return "authentication"
    return "not_found" if isinstance(error, FileNotFoundError) else "internal"


def wait_before_retry(tool: Tool, error: ToolError, attempt: int) -> float | None:
    """Return the seconds to wait before the next attempt, None for no further attempt. An effect
    that may have happened is repeated only if the tool's configuration allows it."""
    policy = tool.retry or RetryPolicy(error.max_retries, error.backoff)
    requested = error.retry_after or 0.0
    if (
        not error.retryable
        or (tool.retry is None and not tool.annotations.repeatable)
        or attempt > policy.max_retries
        or requested > _MAX_RETRY_SECONDS
    ):
        return None
    if policy.backoff == "none":
        return requested
    delay = policy.delay * (2 ** min(attempt - 1, 30) if policy.backoff == "exponential" else 1)
    # Jitter: a hundred conversations that failed together must not retry together.
    from random import uniform  # few programs retry, and it takes 1 ms to import

    delay = min(delay, _MAX_RETRY_SECONDS) * uniform(0.5, 1.0)
    return requested + min(delay, 1.0) if requested else delay


def _call_within_timeout(
    tool: Tool, arguments: dict[str, Any], context: ToolContext, start_thread: StartThread
) -> ToolResult:
    """Call the tool under its timeout, on a new thread. A callback that ignores its cancellation is
    left running, and the error says so."""
    timeout = cast(float, tool.timeout)
    token = Cancellation()
    inner = context.with_cancellation(token)
    done = threading.Event()
    outcome: list[ToolResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_call_tool(tool, arguments, inner))
        except BaseException as error:
            outcome.append(error)
        done.set()

    forget = context.cancelled.add_callback(token.cancel)
    try:
        start_thread(work, f"holdfast-call-{context.call_id}")
        finished = _wait_for_call(done, timeout, inner)
    except BaseException:  # Ctrl-C: no caller waits for the call any more, so it should end
        token.cancel()
        raise
    finally:
        forget()
    if not finished:
        token.cancel()
        # A callback that honours `cancelled` gets a second to clean up.
        stopped = done.wait(1.0)
        note = "" if stopped else " It did not stop when asked to and may still be running."
        error = ToolTimeout(
            f"{tool.name!r} did not answer within {timeout:g} s and was given up.{note}"
        )
        if not stopped and not tool.annotations.repeatable:
            # Whatever its `retry` says: a retry would run beside the first attempt.
            error.retryable = False
        raise error
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def _wait_for_call(done: threading.Event, timeout: float, context: ToolContext) -> bool:
    """Wait `timeout` seconds, not counting questions. Return True if the call has ended."""
    began, remaining = time.monotonic(), timeout
    while not done.wait(remaining):
        question_seconds, asking = context.asked_for()
        remaining = timeout + question_seconds - (time.monotonic() - began)
        if asking:
            remaining = max(remaining, _POLL_SECONDS)
        elif remaining <= 0:
            return False
    return True
