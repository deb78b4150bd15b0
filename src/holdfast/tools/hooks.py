"""Hooks around tool calls, which may change or deny them.

Hooks on an agent's other places are the same `Hook` and run through the same function `ask`.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools import hook_answers
from holdfast.tools.arguments import (
    check_model,
    is_async,
    is_number,
    refuse_async,
    require,
    wrong,
)
from holdfast.tools.context import ToolContext
from holdfast.tools.hook_answers import FORMATS, HOOK_POINTS, PLACES, HookAnswer, HookFailed
from holdfast.tools.hook_verdicts import agent_of, prompt_of
from holdfast.tools.patterns import name_fits
from holdfast.tools.results import as_result, clean

_log = logging.getLogger("holdfast.tools")

# The key in a result's meta of the arguments with which a hook replaced the model's.
ARGUMENTS = "holdfast/arguments"
# The key in a result's meta of the hook that denied the call or withheld its result, and whether
# the hook failed.
HOOK = "holdfast/hook"


class Deny(msgspec.Struct, frozen=True):
    """A hook's return value that stops the operation. The stopped party sees the `reason`."""

    reason: str = ""


class Add(msgspec.Struct, frozen=True):
    """A hook's return value that adds a text for the model."""

    text: str


class Hook(msgspec.Struct, frozen=True):
    """A guard of one place in an agent. A hook is a function `before` something happens, one
    `after` it, or both. Instead of functions it may be a `command`, a model with a `prompt`, or an
    `agent`.

    A function is given as such or as text, `module:name`. `on` is the place: `tool`, `model`,
    `message`, `stop`, `condensation`, `start` or `end`. Only `tool` and `model` have an `after`.

    On `tool` the hook applies to the tools whose canonical names match the pattern `tools` (`*`:
    all; `srv.*`: those of a server). `before(call, context)` returns None (continue), a dict (other
    arguments), or a `ToolResult` (the answer; the tool does not run).
    `after(call, result, context)` returns None or another result.

    Both may return `Deny(reason)`, `Add(text)`, or a tuple of an `Add` and a change. Both run once
    for a call, not once for each attempt, on the call's thread.

    The arguments and return values of the other places are in `docs/how-to/hooks.md`.

    A `command` is a list of arguments, run without a shell. The command reads JSON and prints JSON,
    with a minimal environment plus `env`. `format` gives the form of that JSON and the meaning of
    the exit code: Holdfast's own, or that of Claude Code or OpenHands. For the latter two,
    `matcher` selects the tools for which the command runs, by that system's names and rules.

    With a `prompt` alone, a model judges by this rule: `llm`, or the agent's own. An `agent` (an
    `Agent` without an output type) works in a child conversation, with its tools, and hands over
    its verdict. Each answers with a `hook_verdicts.HookVerdict`.

    `when` is the side at which these three run: "before", "after" or "both". `timeout` is in
    seconds; by default 30 for a command, 60 for a prompt, 300 for an agent. `name` identifies the
    hook in the journal; the default is the name of the function or command, `prompt` or `agent`.

    A guard must not fail open: a hook that raises, cannot be imported or returns another type
    denies.
    """

    before: Callable[..., Any] | str | None = None
    after: Callable[..., Any] | str | None = None
    tools: str = "*"
    on: str = "tool"
    command: Sequence[str] = ()
    when: str = "before"
    timeout: float | None = None
    env: Mapping[str, str] = MappingProxyType({})
    name: str = ""
    prompt: str = ""
    llm: Any = None
    agent: Any = None
    format: str = "holdfast"
    matcher: str = ""

    @property
    def is_function(self) -> bool:
        """True for a hook with functions; all others are described the situation as JSON."""
        return self.before is not None or self.after is not None


class BoundHook(NamedTuple):
    """One side of a hook with its function resolved. With `by_json` the function takes the JSON
    description of the situation, the context and the place."""

    name: str
    on: str
    when: str
    tools: str
    function: Callable[..., Any]
    place: hook_answers.HookPlace
    by_json: bool


def ask(
    bound: BoundHook,
    context: ToolContext,
    describe: Callable[..., dict[str, Any]],
    fits: Callable[[Any], bool],
    *subject: Any,
) -> HookAnswer:
    """Return the answer of a hook. Raises `HookFailed`, and the `ToolError` of a function.

    Args:
        bound: The hook's side.
        context: The context that a function receives as its last argument.
        describe: Makes the JSON for a command or a model from the `subject`.
        fits: Returns True if a value is a valid change at this place.
        subject: The arguments of a function.
    """
    try:
        if bound.by_json:
            at = {"on": bound.on, "when": bound.when, "conversation_id": context.conversation_id}
            answer = bound.function({**at, **describe(*subject)}, context, bound.place)
        else:
            answer = bound.function(*subject, context)
    except (ToolError, HookFailed):
        raise
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():  # Ctrl-C
            raise
        raise HookFailed(f"failed: {type(error).__name__}") from error
    except (Exception, SystemExit) as error:
        raise HookFailed(f"failed: {describe_error(error)}") from error
    if answer is None:
        return hook_answers.NOTHING
    place = bound.place
    deny, add, change = None, "", None
    for part in cast("tuple[Any, ...]", answer) if type(answer) is tuple else (answer,):
        if isinstance(part, HookAnswer):
            deny, add, change = part
        elif isinstance(part, Deny) and place.denies and isinstance(part.reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            deny = clean(part.reason)
        elif isinstance(part, Add) and place.adds and isinstance(part.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            add = clean(part.text)
        elif part is not None:
            change = part
    if change is not None and not fits(change):
        raise HookFailed(f"returned {cast('type[Any]', type(change)).__name__}")
    return HookAnswer(deny, add, change)


def bind(hooks: Sequence[Hook], on: str, when: str) -> list[BoundHook]:
    """Return the sides of hooks that apply at this place, in the order in which they run."""
    place = PLACES.get((on, when))
    if place is None:
        return []
    bound: list[BoundHook] = []
    for hook, name in zip(hooks, hook_names(hooks), strict=True):
        if hook.on != on:
            continue
        target = hook.before if when == "before" else hook.after
        if target is not None:
            function = _function(target)
        elif not hook.is_function and hook.when in (when, "both"):
            function = _json_function(hook, name)
        else:
            continue
        bound.append(BoundHook(name, on, when, hook.tools, function, place, target is None))
    return bound if when == "before" else bound[::-1]


def _json_function(hook: Hook, name: str) -> Callable[..., Any]:
    """Return the function that asks a hook's command, model or agent."""
    if hook.command:
        from holdfast.tools.hook_commands import command_of

        return command_of(name, hook.command, hook.timeout, hook.env, hook.format, hook.matcher)
    if hook.agent is not None:
        return agent_of(name, hook.agent, hook.prompt, hook.timeout)
    return prompt_of(name, hook.prompt, hook.llm, hook.timeout)


def hook_names(hooks: Sequence[Hook]) -> list[str]:
    """Return the name of each hook for messages and the journal. Names are unique."""
    names: list[str] = []
    for hook in hooks:
        kind = "prompt" if hook.agent is None else "agent"
        program = hook.command[0].rpartition("/")[2] if hook.command else ""
        name = hook.name or program or _name(hook.before or hook.after or kind)
        candidates = (name, *[f"{name}-{number}" for number in range(2, len(hooks) + 1)])
        names.append(next(unique for unique in candidates if unique not in names))
    return names


def check(hooks: Sequence[Any], who: str = "") -> None:
    """Raise `ConfigurationError` if `hooks` is not a list of valid hooks."""
    if isinstance(hooks, Hook | str) or not isinstance(hooks, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise wrong(f"{who}hooks", "a list of Hook(...)", hooks)
    for hook in hooks:
        if isinstance(hook, Hook):
            _check_hook(hook)
        has_action = isinstance(hook, Hook) and (
            hook.is_function or hook.command or hook.prompt or hook.agent is not None
        )
        if not has_action:
            form = (
                "Hook(before=..., after=..., tools=...) with at least one of the two, or a command,"
                " a prompt or an agent"
            )
            raise wrong(f"{who}hooks", form, hook)


def _check_hook(hook: Any) -> None:
    argv, env = hook.command, hook.env
    if not isinstance(hook.tools, str):
        raise ConfigurationError(
            f"Hook: tools takes one pattern of tool names, such as 'git.*', not {hook.tools!r}; use"
            " a Hook for each."
        )
    require("Hook", hook, ("on", hook.on in HOOK_POINTS, f"one of {', '.join(HOOK_POINTS)}"))
    if hook.tools != "*" and hook.on != "tool":
        raise ConfigurationError(f"Hook: tools is for a hook on tool, not on {hook.on}.")
    for function in (hook.before, hook.after):
        if function is not None and not isinstance(function, str) and not callable(function):
            raise ConfigurationError(
                f"Hook: before and after take a function or 'module:name', not {function!r}."
            )
        refuse_async("Hook: before and after", function)
    has_after = hook.after is not None or (not hook.is_function and hook.when != "before")
    if has_after and (hook.on, "after") not in PLACES:
        raise ConfigurationError(f"Hook: on {hook.on!r} there is no after; give before.")
    is_list = isinstance(argv, Sequence) and not isinstance(argv, str)
    parts = cast("Sequence[Any]", argv) if is_list else ()
    seconds = hook.timeout is None or (is_number(hook.timeout) and 0 < hook.timeout < 1e6)
    require(
        "Hook",
        hook,
        ("when", hook.when in ("before", "after", "both"), "'before', 'after' or 'both'"),
        (
            "command",
            is_list and all(isinstance(one, str) and "\0" not in one for one in parts),
            "a list of arguments, such as ['python3', 'guard.py']",
        ),
        ("timeout", seconds, "seconds above 0"),
        ("name", isinstance(hook.name, str), "a str"),
        ("prompt", isinstance(hook.prompt, str), "a text"),
        ("format", hook.format in FORMATS, f"one of {', '.join(FORMATS)}"),
        ("matcher", _is_matcher(hook.matcher, hook.format), "names or a regular expression"),
    )
    kinds = (hook.is_function, len(parts) > 0, bool(hook.prompt) or hook.agent is not None)
    if sum(kinds) > 1:
        raise ConfigurationError(
            "Hook: a hook has either a command, or before and after, or a prompt or an agent; use a"
            " Hook for each."
        )
    _check_judge(hook)
    if hook.format != FORMATS[0] and (not argv or hook.on == "model"):
        raise ConfigurationError(
            f"Hook: format {hook.format!r} is for a command, and has no event for the place model."
        )
    if argv and not argv[0]:
        raise ConfigurationError(
            "Hook: command takes a list of arguments whose first is a program, not ''."
        )
    pairs = cast("Mapping[Any, Any]", env).items() if isinstance(env, Mapping) else [("", "")]
    if not all(
        isinstance(name, str)
        and isinstance(value, str)
        and name
        and "=" not in name
        and "\0" not in name + value
        for name, value in pairs
    ):
        raise ConfigurationError("Hook: env takes a mapping of names to strings.")


def _is_matcher(matcher: Any, format: str) -> bool:
    if not matcher or matcher == "*":
        return matcher in ("", "*")
    try:
        re.compile(matcher.strip("/"))
    except (TypeError, AttributeError, re.error, RecursionError, OverflowError):
        return False
    return format != FORMATS[0]


def _check_judge(hook: Any) -> None:
    """Check the model and the agent of a hook."""
    if hook.llm is not None and (not hook.prompt or hook.agent is not None):
        raise ConfigurationError("Hook: llm is the model that judges by a prompt; give both.")
    check_model("Hook: llm", hook.llm)
    if hook.agent is None:
        return
    is_agent = callable(getattr(hook.agent, "replace", None)) and hasattr(hook.agent, "hooks")
    if not is_agent or isinstance(hook.agent, type):
        raise wrong("Hook: agent", "an Agent", hook.agent)
    if hook.agent.output is not None:
        raise ConfigurationError(
            "Hook: agent takes an Agent without an output type, because its output is the verdict."
        )


class Hooks:
    """The hooks of tool calls. `before` runs from the first to the last, `after` in reverse order.
    `redact` removes secrets from the texts of hooks."""

    def __init__(self, hooks: Sequence[Hook], redact: Callable[[str], str] = str) -> None:
        check(hooks)
        for hook in hooks:
            if hook.on != "tool":
                raise ConfigurationError(
                    f"ToolManager: hooks takes hooks on tool; a hook on {hook.on} belongs to the"
                    " agent: Agent(hooks=...)."
                )
        self.hooks = tuple(hooks)
        self._before = bind(self.hooks, "tool", "before")
        self._after = bind(self.hooks, "tool", "after")
        self._redact = redact

    def before(
        self, call: ToolCall, context: ToolContext, added: list[str]
    ) -> ToolCall | ToolResult:
        """Run the hooks before a call. Returns the call with its final arguments, or the result
        that stands in for running the call. Texts to append to the result go to `added`. Raises
        `ToolError` for a denied call."""
        for bound in _matching(self._before, call.name):
            answer = self._ask(bound, "was not run", context, _copy(call))
            if answer.add:
                added.append(answer.add)
            if isinstance(answer.change, ToolResult):
                return as_result(call.name, answer.change)
            if answer.change is not None:
                _check_json(call.name, bound.name, answer.change)
                call = msgspec.structs.replace(call, arguments=answer.change, raw="")
        return call

    def after(self, call: ToolCall, result: ToolResult, context: ToolContext) -> ToolResult:
        """Return the final result of a call. Raises `ToolError` if a hook withholds it."""
        for bound in _matching(self._after, call.name):
            outcome = "was run, but its result is held back"
            answer = self._ask(bound, outcome, context, _copy(call), result)
            if answer.change is not None:
                result = as_result(call.name, answer.change)
            if answer.add:
                result = self.with_context(result, [answer.add])
        return result

    def marked(self, result: ToolResult, error: ToolError) -> ToolResult:
        """Return the error's result, with the name of the hook that caused it in `meta`."""
        if not isinstance(error, Refused):
            return result
        mark = {"name": error.hook, "failed": error.failed}
        return msgspec.structs.replace(result, meta={**result.meta, HOOK: mark})

    def with_arguments(self, result: ToolResult, call: ToolCall) -> ToolResult:
        """Return the result with the arguments of a call that a hook changed."""
        return msgspec.structs.replace(result, meta={**result.meta, ARGUMENTS: call.arguments})

    def with_context(self, result: ToolResult, texts: Sequence[str]) -> ToolResult:
        """Return the result with more texts appended. Structured content without other content is
        first written out as text."""
        content = result.content
        if not content and result.structured_content is not None:
            content = (TextContent(msgspec.json.encode(result.structured_content).decode()),)
        return msgspec.structs.replace(
            result, content=(*content, *[TextContent(text) for text in texts])
        )

    def _ask(
        self, bound: BoundHook, outcome: str, context: ToolContext, call: ToolCall, *results: Any
    ) -> HookAnswer:
        # Before the call a hook may also change its arguments.
        changes = ToolResult if results else (dict, ToolResult)
        try:
            answer = ask(
                bound, context, _describe_call, lambda it: isinstance(it, changes), call, *results
            )
        except HookFailed as error:
            text, failure = f"its hook {bound.name} {error}", error
        else:
            if answer.deny is None:
                return answer._replace(add=self._redact(answer.add)) if answer.add else answer
            why = f": {answer.deny}" if answer.deny else ""
            text, failure = f"its hook {bound.name} denied it{why}", None
        message = self._redact(f"{call.name!r} {outcome}: {text}")
        raise Refused(message, bound.name, failure is not None) from failure


def _matching(hooks: Iterable[BoundHook], name: str) -> Iterator[BoundHook]:
    return (bound for bound in hooks if bound.tools == "*" or name_fits(name, bound.tools))


def _describe_call(call: ToolCall, result: ToolResult | None = None) -> dict[str, Any]:
    description = {"call": {"id": call.id, "name": call.name, "arguments": call.arguments}}
    return description if result is None else {**description, "result": result}


class Refused(ToolError):
    """A call that a hook denied, or whose result a hook withheld. `failed` is True if the hook
    itself failed."""

    def __init__(self, message: str, hook: str = "", failed: bool = False) -> None:
        super().__init__(clean(message), retryable=False)
        self.hook = hook
        self.failed = failed


def _copy(call: ToolCall) -> ToolCall:
    """Return the call with copied arguments, because a hook must not change the journal's."""
    nested = any(type(value) in (dict, list) for value in call.arguments.values())
    arguments = deepcopy(call.arguments) if nested else dict(call.arguments)
    return msgspec.structs.replace(call, arguments=arguments)


def _check_json(tool: str, hook: str, arguments: Any) -> None:
    """Raise `Refused` for arguments that JSON cannot represent, which no journal can hold."""
    try:
        msgspec.json.decode(msgspec.json.encode(arguments))
        if msgspec.to_builtins(arguments, str_keys=True) != arguments:
            raise TypeError("some of their values do not exist in JSON")
    except (TypeError, ValueError) as error:
        raise Refused(
            f"{tool!r} was not run: its hook {hook} gave arguments that are not JSON: {error}.",
            hook,
            True,
        ) from None


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    return str(getattr(target, "__qualname__", target)).rpartition("<locals>.")[2]


def _function(target: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a hook's function. A function that cannot be imported is replaced by one that raises,
    and so denies."""
    if not isinstance(target, str):
        return target
    module, _, qualname = target.partition(":")
    try:
        function: Any = import_module(module)
        for part in qualname.split("."):
            function = getattr(function, part)
        if not callable(function):
            raise TypeError(f"{target} is not a function")
        if is_async(function):
            raise TypeError(f"{target} is async")
        return function
    except Exception as error:
        reason = f"it cannot be imported ({describe_error(error)})"
        _log.error("The hook %s cannot run and denies everything: %s", target, reason)

        def deny(*_: Any) -> Any:
            raise RuntimeError(reason)

        return deny
