"""`ToolManager`: one agent's action space. It knows its tools by name, tells models of them, and runs their calls."""

from __future__ import annotations

import contextvars
import difflib
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

from holdfast.content import ErrorInfo, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolNotFound, ToolTimeout
from holdfast.events import ToolDefinition
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.names import wire_name
from holdfast.tools.results import as_result, clean
from holdfast.tools.tool import Callback, RetryPolicy, Tool

StartThread = Callable[[Callable[[], None], str], object]
ToolLike = Tool | Callback

_SHOWN = 40  # names in the answer to an unknown one; some agents have hundreds
_LONGEST_MESSAGE = 10_000  # characters of an exception's message that a model is shown
_LONGEST_WAIT = 60.0  # seconds before a retry, however often the delay was doubled


def _start_thread(work: Callable[[], None], name: str) -> object:
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name=name, daemon=True)
    thread.start()
    return thread


class ToolManager:
    """The tools of one agent. Thread-safe: tools may be registered while conversations run and are seen at the next model call.

    Takes tools or plain functions (as `Tool.from_function`). Raises `ConfigurationError` for two tools of one name.
    """

    def __init__(self, tools: Iterable[ToolLike] = ()) -> None:
        self._lock = threading.Lock()
        self._tools: dict[str, Tool] = {}  # replaced whole at every change, so that readers need no lock
        self._canonical: dict[str, str] = {}
        self._definitions: tuple[ToolDefinition, ...] | None = None
        if isinstance(tools, str | Tool) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"tools takes a list of Tool objects or functions, not {tools!r}.")
        for tool in tools:
            self.register(tool)

    # --- the set ---

    def register(self, tool: ToolLike) -> Tool:
        """Add a tool. Raises `ConfigurationError` if its name is taken (`unregister` first to replace one) or it cannot be
        described to a model."""
        found = _as_tool(tool)
        _ = found.input_schema  # made now: a signature that cannot be described is the caller's to hear of, not a run's
        with self._lock:
            if found.name in self._tools:
                raise ConfigurationError(f"tools has two tools named {found.name!r}. Names are unique within an agent.")
            wire = wire_name(found.name)
            if wire in self._canonical:
                raise ConfigurationError(
                    f"tools has {self._canonical[wire]!r} and {found.name!r}, which model APIs would see under one name, {wire!r}."
                )
            self._tools = {**self._tools, found.name: found}
            self._canonical = {**self._canonical, wire: found.name}
            self._definitions = None
        return found

    def unregister(self, name: str) -> Tool:
        """Take a tool out and return it. Raises `ToolNotFound`."""
        with self._lock:
            found = self._tools.get(name)
            if found is None:
                raise self._not_found(name)
            self._tools = {key: tool for key, tool in self._tools.items() if key != name}
            self._canonical = {wire: key for wire, key in self._canonical.items() if key != name}
            self._definitions = None
        return found

    def list_tools(self, category: str | None = None, tool_type: str | None = None) -> list[Tool]:
        """The tools, in the order of their registration; of one category or type if given."""
        return [
            tool
            for tool in self._tools.values()
            if (category is None or tool.category == category) and (tool_type is None or tool.tool_type == tool_type)
        ]

    def get(self, name: str) -> Tool:
        """The tool of that canonical (or wire) name. Raises `ToolNotFound`, which names the nearest one."""
        found = self._tools.get(name) or self._tools.get(self._canonical.get(name, ""))
        if found is None:
            raise self._not_found(name)
        return found

    def exists(self, name: str) -> bool:
        """Whether there is a tool of that canonical name."""
        return name in self._tools

    def get_schema(self, name: str) -> dict[str, Any]:
        """The input schema of a tool. Raises `ToolNotFound`."""
        return self.get(name).input_schema

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model is told: made once, and the same object until the set changes."""
        while (found := self._definitions) is None:
            tools = self._tools
            # Not under the lock: a schema is made from the user's own types, by their code.
            made = tuple([ToolDefinition(tool.name, tool.description, tool.input_schema, wire_name(tool.name)) for tool in tools.values()])
            with self._lock:
                if self._definitions is None and self._tools is tools:
                    self._definitions = made
        return found

    # --- calls ---

    def call(self, name: str, arguments: dict[str, Any] | None = None, context: ToolContext | None = None) -> ToolResult:
        """Run a tool once and return its result, also one that says it failed. Raises `ToolError` if there is none."""
        return self._attempt(self.get(name), arguments or {}, context or ToolContext(), _start_thread)

    def run(
        self,
        call: ToolCall,
        context: ToolContext | None = None,
        before_attempt: Callable[[int], None] | None = None,
        start_thread: StartThread = _start_thread,
    ) -> ToolResult:
        """Run a model's call to a result: never raises for what the tool or the model did wrong, but tells the model.

        A failure is tried again as the tool's `retry` says, or by the error's own policy if the tool is `read_only` or `idempotent`.
        `before_attempt(n)` is called before the second and every further attempt; what it raises ends the call.
        """
        context = context if context is not None else ToolContext(call_id=call.id)
        try:
            if call.invalid:
                raise ToolError(f"{call.name!r} was not run: {call.invalid}", "validation")
            tool = self._tools.get(call.name)
            if tool is None:
                raise self._not_found(call.name)
        except ToolError as error:
            return failed(error)
        while True:
            try:
                return self._attempt(tool, call.arguments, context, start_thread)
            except ToolError as error:
                wait = _wait_before_retry(tool, error, context.attempt)
                if wait is None or context.cancelled:
                    return failed(error)
                if context.cancelled.wait(wait):
                    return failed(ToolCancelled(f"{call.name!r} was cancelled while waiting to be tried again after: {error}"))
            context.attempt += 1
            if before_attempt is not None:
                before_attempt(context.attempt)

    def _attempt(self, tool: Tool, arguments: dict[str, Any], context: ToolContext, start_thread: StartThread) -> ToolResult:
        try:
            checked = tool.validate(arguments)
        except ToolError:
            raise
        except Exception as error:  # the tool's own schema or types; trying again would not help
            raise ToolError(f"{tool.name!r} was not run: {_said(error)}", retryable=False, max_retries=0) from error
        try:
            if tool.timeout is not None:
                return _within(tool, checked, context, start_thread)
            return as_result(tool.name, tool.call(checked, context))
        except ToolError:
            raise
        except Exception as error:
            raise _classified(tool.name, error) from error

    def _not_found(self, name: str) -> ToolNotFound:
        names = list(self._tools)
        near = difflib.get_close_matches(name.lower(), [known.lower() for known in names], 1)
        hint = f" Did you mean {next(known for known in names if known.lower() == near[0])!r}?" if near else ""
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ToolNotFound(f"Unknown tool {name!r}.{hint} This agent has: {', '.join(names[:_SHOWN]) or 'no tools'}{more}.")


def _as_tool(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    if callable(tool):
        return Tool.from_function(tool)
    raise ConfigurationError(f"tools takes Tool objects or functions, not {tool!r}.")


def failed(error: ToolError) -> ToolResult:
    """An error as the result that tells the model of it."""
    text = clean(str(error))
    info = ErrorInfo(error.error_type, text, error.retryable, error.max_retries, error.backoff)
    return ToolResult((TextContent(text),), None, {}, True, info)


def _classified(name: str, error: Exception) -> ToolError:
    """Whatever a callback raised, by its type and status code, never by words in its message."""
    message = f"{name!r} failed: {_said(error)}"
    if isinstance(error, TimeoutError):
        return ToolTimeout(message)
    return ToolError(message, _BY_STATUS.get(_status_of(error)) or _by_type(error))


def _said(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # a message that cannot be made must not hide the failure
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + '...'}"


# HTTP status -> error type; requests, httpx, urllib and their kin hang it on the error or on its response.
_BY_STATUS = {
    401: "authentication", 403: "authentication", 404: "not_found", 408: "timeout", 410: "not_found", 429: "rate_limit",
    502: "network", 503: "network", 504: "timeout",
}  # fmt: skip


def _status_of(error: Exception) -> int:
    for place in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            found = getattr(place, name, None)
            if isinstance(found, int):
                return found
    return 0


def _by_type(error: Exception) -> str:
    # By name, so that no HTTP library is imported: their timeouts and broken connections are not the builtin ones.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"Timeout", "TimeoutException"}:
        return "timeout"
    if isinstance(error, ConnectionError) or kinds & {"ConnectionError", "TransportError", "gaierror", "URLError"}:
        return "network"
    if isinstance(error, PermissionError):
        return "authentication"
    return "not_found" if isinstance(error, FileNotFoundError) else "internal"


def _wait_before_retry(tool: Tool, error: ToolError, attempt: int) -> float | None:
    """Seconds to wait before the next attempt, None for no further one. An effect that may have happened is not repeated unasked."""
    if not error.retryable:
        return None
    policy = tool.retry
    if policy is None:
        if not tool.annotations.repeatable:
            return None
        policy = RetryPolicy(error.max_retries, error.backoff)
    if attempt > policy.max_retries:
        return None
    if policy.backoff == "none":
        return 0.0
    delay = policy.delay * (2 ** min(attempt - 1, 30) if policy.backoff == "exponential" else 1)
    # Jitter, so that a hundred conversations that failed together do not come back together.
    return min(delay, _LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _within(tool: Tool, arguments: dict[str, Any], context: ToolContext, start_thread: StartThread) -> ToolResult:
    """A call under its tool's timeout, on a thread of its own. A callback that ignores its cancellation is left behind, and said so."""
    timeout = cast(float, tool.timeout)
    token = Cancellation()
    inner = context.with_cancellation(token)
    done = threading.Event()
    outcome: list[ToolResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(as_result(tool.name, tool.call(arguments, inner)))
        except BaseException as error:
            outcome.append(error)
        done.set()

    forget = context.cancelled.add_callback(token.cancel)
    try:
        start_thread(work, f"holdfast-call-{context.call_id}")
        finished = done.wait(timeout)
    except BaseException:  # Ctrl-C: this thread no longer waits, so the call should end
        token.cancel()
        raise
    finally:
        forget()
    if not finished:
        token.cancel()
        # One that heeds `cancelled` gets the moment it needs to clean up.
        left = "" if done.wait(1.0) else " It did not stop when asked to and may still be running."
        raise ToolTimeout(f"{tool.name!r} did not answer within {timeout:g} s and was given up.{left}")
    found = outcome[0]
    if isinstance(found, BaseException):
        raise found
    return found
