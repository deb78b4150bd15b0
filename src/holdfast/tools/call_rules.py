"""The rules of a manager's calls: hooks around them, and limits by patterns of tool names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ToolError
from holdfast.tools.arguments import wrong
from holdfast.tools.concurrency import ConcurrencyLimits
from holdfast.tools.context import ToolContext
from holdfast.tools.hooks import Hook, Hooks
from holdfast.tools.names import RUN_CODE
from holdfast.tools.overflow import Overflow
from holdfast.tools.running import error_result
from holdfast.tools.tool import Tool


class CallRules(NamedTuple):
    """The rules of a manager's calls: hooks, limits by name pattern, pinned definitions."""

    hooks: tuple[Hook, ...]
    concurrency: dict[str, int]
    result_limit: dict[str, int]
    pinned: bool


class RuledCalls:
    """Calls under the rules of a manager, which its variants share. `rules` are as configured;
    `is_limited` is True if there are limits."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        concurrency: Mapping[str, int] | int | None,
        result_limit: Mapping[str, int] | int | None,
        result_dir: str | Path | None,
        pinned: bool,
    ) -> None:
        calls = _patterns("concurrency", concurrency or {})
        lengths = _patterns("result_limit", result_limit or {})
        self.rules = CallRules(tuple(hooks), calls, lengths, pinned)
        self.hooks = Hooks(self.rules.hooks) if hooks else None
        self.is_limited = bool(calls or lengths)
        self._concurrency = ConcurrencyLimits(calls) if calls else None
        self._overflow = Overflow(lengths, result_dir) if lengths else None

    def make(
        self,
        tool: Tool,
        call: ToolCall,
        context: ToolContext,
        attempts: Callable[[Tool, dict[str, Any], ToolContext], ToolResult],
        hooks: Hooks | None,
    ) -> ToolResult:
        """Make the attempts of a call within hooks and limits. Raises `ToolError`."""
        changed = call
        added: list[str] = []
        if hooks is not None:
            answer = hooks.before(call, context, added)
            if isinstance(answer, ToolResult):
                return hooks.with_context(answer, added) if added else answer
            changed = answer
        # a script holds no place: its calls take theirs, and would wait for it
        limits = None if call.name == RUN_CODE else self._concurrency
        with nullcontext() if limits is None else limits.hold(call.name, context.cancelled):
            try:
                result = attempts(tool, changed.arguments, context)
            except ToolError as error:
                if hooks is None:
                    raise
                result = error_result(error)
        if hooks is not None:
            if changed is not call:
                result = hooks.with_arguments(result, changed)
            result = hooks.after(changed, result, context)
        result = self.shown(call, result)
        return hooks.with_context(result, added) if hooks is not None and added else result

    def shown(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Return the result of a call within the limit of its length."""
        limits = self._overflow
        return result if limits is None else limits.shown(call.name, call.id, result)


def failed(error: ToolError, hooks: Hooks | None) -> ToolResult:
    """Return the result for an error, marked with the hook that caused it."""
    return error_result(error) if hooks is None else hooks.marked(error_result(error), error)


def _patterns(argument: str, limit: Any) -> dict[str, int]:
    if isinstance(limit, Mapping):
        return dict(cast("Mapping[str, int]", limit))
    if isinstance(limit, int) and not isinstance(limit, bool):
        return {"*": limit}
    form = "a number, or a mapping of name patterns to numbers"
    raise wrong(f"ToolManager: {argument}", form, limit)
