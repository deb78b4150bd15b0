"""What stands around calls: hooks that may change or deny them, and caps on how many run at once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.results import as_result

_log = logging.getLogger("holdfast.tools")

ARGUMENTS = "holdfast/arguments"  # the key of a result's meta under which arguments stand that a hook put in place of the model's

Before = Callable[[ToolCall, ToolContext], Any]
After = Callable[[ToolCall, ToolResult, ToolContext], Any]


class Hook(msgspec.Struct, frozen=True):
    """A function before each call of the tools whose canonical names fit the pattern `tools` (`*`: all; `srv.*`: those of a server), one after
    it, or both. Each is a function or, as text, `module:name`.

    `before(call, context)` returns None (go on), a dict (other arguments), or a `ToolResult` (the answer; the tool is not run). `after(call,
    result, context)` returns None or another result. What guards must not fail open: if `before` raises or cannot be imported the call is
    denied, and if `after` does its result is held back. Both run once for a call, whatever its attempts, on the call's thread.
    """

    before: Before | str | None = None
    after: After | str | None = None
    tools: str = "*"


class Hooks:
    """An agent's hooks, in their order: `before` from the first to the last, `after` the other way round."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        for hook in hooks:
            if isinstance(hook, Hook) and not isinstance(hook.tools, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(
                    f"Hook: tools takes one pattern of tool names, such as 'git.*', not {hook.tools!r}; use a Hook for each."
                )
            if not isinstance(hook, Hook) or not (hook.before or hook.after):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(f"hooks takes Hook(before=..., after=..., tools=...) with at least one of the two, not {hook!r}.")
        self.given = hooks
        self._before = [(hook.tools, *_function(hook.before)) for hook in hooks if hook.before is not None]
        self._after = [(hook.tools, *_function(hook.after)) for hook in reversed(hooks) if hook.after is not None]

    def before(self, call: ToolCall, context: ToolContext) -> ToolCall | ToolResult:
        """The call with the arguments that it is to have, or its answer without running it. Raises `ToolError` for a denied one."""
        for pattern, name, function in self._before:
            if fnmatchcase(call.name, pattern):
                found = _asked(f"{call.name!r} was not run: its hook {name}", function, _copy(call), context)
                if isinstance(found, ToolResult):
                    return as_result(call.name, found)
                if isinstance(found, dict):
                    _check_json(call.name, name, found)
                    call = msgspec.structs.replace(call, arguments=cast("dict[str, Any]", found), raw="")
                elif found is not None:
                    raise ToolError(f"{call.name!r} was not run: its hook {name} returned {type(found).__name__}.", retryable=False)
        return call

    def after(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
        """The result as it is to be told. Raises `ToolError` if it may not be."""
        for pattern, name, function in self._after:
            if fnmatchcase(call.name, pattern):
                found = _asked(
                    f"{call.name!r} was run, but its result is held back: its hook {name}", function, _copy(call), result, context
                )
                if isinstance(found, ToolResult):
                    result = as_result(call.name, found)
                elif found is not None:
                    raise ToolError(
                        f"{call.name!r} was run, but its result is held back: its hook {name} returned {type(found).__name__}.",
                        retryable=False,
                    )
        return result


def _copy(call: ToolCall) -> ToolCall:
    """The call with arguments of its own: the journal's are not a hook's to change."""
    return msgspec.structs.replace(call, arguments=deepcopy(call.arguments))


def _check_json(tool: str, hook: str, arguments: Any) -> None:
    """What JSON cannot say could not be journaled once the effect has happened."""
    try:
        msgspec.json.decode(msgspec.json.encode(arguments))
        if msgspec.to_builtins(arguments, str_keys=True) != arguments:
            raise TypeError("there are values in them that JSON has not")
    except (TypeError, ValueError) as error:
        raise ToolError(f"{tool!r} was not run: its hook {hook} gave arguments that are not JSON: {error}.", retryable=False) from None


def _asked(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(f"{what} failed: {type(error).__name__}: {error}", retryable=False) from error


def _function(given: Callable[..., Any] | str) -> tuple[str, Callable[..., Any]]:
    """A name for messages and the function; one that raises for what cannot be imported."""
    if not isinstance(given, str):
        if not callable(given):
            raise ConfigurationError(f"Hook: before and after take a function or 'module:name', not {given!r}.")
        return str(getattr(given, "__qualname__", given)), given
    module, _, qualname = given.partition(":")
    try:
        found: Any = import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{given} is no function")
    except Exception as error:
        reason = f"it cannot be imported ({type(error).__name__}: {error})"
        _log.error("the hook %s guards nothing and lets nothing through: %s", given, reason)

        def deny(*_: Any) -> Any:
            raise RuntimeError(reason)

        return given, deny
    return given, found


class Cap:
    """At most so many calls at once. The others wait for their turn, in order."""

    def __init__(self, calls: int) -> None:
        self._lock = threading.Lock()
        self._free = calls
        self._waiting: deque[threading.Event] = deque()

    def enter(self, cancelled: Cancellation) -> None:
        """Wait for a place. Raises `ToolCancelled`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        forget = cancelled.add_callback(turn.set)
        try:
            turn.wait()
        except BaseException:  # Ctrl-C
            if not self._gone(turn):
                self.leave()
            raise
        finally:
            forget()
        if self._gone(turn):
            raise ToolCancelled("The call was cancelled while it waited for its turn.")

    def _gone(self, turn: threading.Event) -> bool:
        """Give up a turn that has not come; whether it had not."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        return False

    def leave(self) -> None:
        """Give the place to whoever waits longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Caps:
    """An agent's caps by pattern: a call takes a place of each that its tool's name fits, always in the same order."""

    def __init__(self, concurrency: Mapping[str, int]) -> None:
        for pattern, calls in concurrency.items():
            if not isinstance(calls, int) or isinstance(calls, bool) or calls < 1:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(f"concurrency takes a number of calls from 1 for {pattern!r}, not {calls!r}.")
        self.given = dict(concurrency)
        self._caps = [(pattern, Cap(calls)) for pattern, calls in sorted(concurrency.items())]

    def enter(self, name: str, cancelled: Cancellation) -> list[Cap]:
        """Take the places that a call needs. Raises `ToolCancelled`."""
        taken: list[Cap] = []
        try:
            for pattern, cap in self._caps:
                if fnmatchcase(name, pattern):
                    cap.enter(cancelled)
                    taken.append(cap)
        except BaseException:
            for cap in taken:
                cap.leave()
            raise
        return taken
