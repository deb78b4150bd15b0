"""The forms of an agent's arguments, and its analyzer of risks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from holdfast.agent.condenser import is_condenser
from holdfast.agent.confirmation import ConfirmationPolicy
from holdfast.agent.limits import Limits
from holdfast.agent.risk import SecurityAnalyzer
from holdfast.agent.stuck import StuckDetector
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool, ToolManager
from holdfast.tools.arguments import is_model, is_whole, wrong


def analyzer_of(analyzer: Any, guard: ConfirmationPolicy | None) -> SecurityAnalyzer | None:
    """Return the given analyzer, or the standard one if the policy needs one."""
    if analyzer is None:
        if not getattr(guard, "needs_risk", False):
            return None
        for one in (guard, *getattr(guard, "policies", ())):
            if callable(getattr(one, "assess", None)):  # such as LLMJudge(policy=...)
                return cast("SecurityAnalyzer", one)
        from holdfast.agent.security import standard  # a large package, for some policies alone

        return standard()
    if isinstance(analyzer, type) or not callable(getattr(analyzer, "assess", None)):
        form = "an object with a method assess, such as holdfast.agent.security.standard(), or None"
        raise wrong("Agent: security", form, analyzer)
    return analyzer


# The arguments whose value has one simple form: the check, and the form for messages.
_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "llm": (is_model, "an LLM (or ScriptedLLM)"),
    "tools": (
        lambda one: (
            isinstance(one, ToolManager)
            or (isinstance(one, Iterable) and not isinstance(one, str | bytes | dict | Tool))
        ),
        "a list of Tool objects or functions, or a ToolManager",
    ),
    "condenser": (
        lambda one: one is None or (not isinstance(one, type) and is_condenser(one)),
        "an object with a method condense",
    ),
    "system_prompt": (lambda one: one is None or isinstance(one, str), "a str or None"),
    "system_prompt_extensions": (
        lambda one: not isinstance(one, str) and all(isinstance(item, str) for item in one),
        "a list of str",
    ),
    "description": (lambda one: isinstance(one, str), "a text"),
    "limits": (lambda one: isinstance(one, Limits), "Limits(...)"),
    "parallel_calls": (lambda one: is_whole(one, 1), "a whole number from 1"),
    "output_limit": (lambda one: is_whole(one, 1000), "a number of characters from 1,000"),
    "planning": (lambda one: one in (None, "tool", "first"), '"tool", "first" or None'),
    "output_rounds": (lambda one: is_whole(one, 1), "a whole number from 1"),
    "goal": (
        lambda one: one is None or callable(getattr(one, "verdict", None)),
        "Goal(...) or None",
    ),
    "stop_denials": (lambda one: is_whole(one, 1), "a whole number from 1"),
    "stuck": (lambda one: isinstance(one, StuckDetector | None), "StuckDetector(...) or None"),
    "tree_limits": (lambda one: isinstance(one, Limits | None), "Limits(...) or None"),
}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first argument of a wrong form."""
    servers = arguments["mcp_servers"]
    if servers is not None and not isinstance(servers, Mapping):
        is_path = isinstance(servers, str | os.PathLike)
        hint = " A file is read by the caller: mcp_servers=json.loads(Path(...).read_text())."
        raise ConfigurationError(
            "Agent: mcp_servers takes a mapping of server ids to servers, not a"
            f" {type(servers).__name__}.{hint if is_path else ''}"
        )
    for name, (fits, form) in _FORMS.items():
        value = arguments[name]
        if not fits(value):
            hint = ""
            if name == "llm" and isinstance(value, str):
                hint = f" Give LLM({value!r})."
            elif name == "tools" and hasattr(value, "get_tools"):
                hint = " Give its tools: tools=runtime.tools."
            raise wrong(f"Agent: {name}", form, value, hint)
