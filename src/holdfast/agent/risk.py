"""The risk of a call: `Risk`, the inputs of an analyzer, and the analyzer protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, overload

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.error_text import describe_error
from holdfast.runtime.confinement import Confinement
from holdfast.tools import Cancellation, ToolAnnotations
from holdfast.tools.results import clean

Level = Literal["low", "medium", "unknown", "high"]

# In ascending order. An unknown risk may be harmful or harmless: policies treat it as high.
LEVELS: Mapping[str, int] = {"low": 0, "medium": 1, "unknown": 2, "high": 3}

_MAX_REASON_CHARS = 400  # a reason may quote a model's long output

_log = logging.getLogger("holdfast")


class Risk(msgspec.Struct, frozen=True):
    """The assessed risk of a call.

    Attributes:
        level: The level. A "low" call reads, or adds something that can be taken back. A "medium"
            call changes the working directory or runs the project's own code. A "high" call
            destroys, reaches beyond the working directory, sends data out, or hides its effect. An
            "unknown" call could not be assessed and counts as high.
        reason: The reason for the level.
        by: The name of the analyzer.
        usage: Tokens of the model calls that the assessment needed.
        cost: US dollars of these calls; None if unknown.
        model: The model of these calls.
    """

    level: Level
    reason: str = ""
    by: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""

    @property
    def rank(self) -> int:
        """The level as a number: 0 for low to 3 for high."""
        return LEVELS[self.level]


class ShellState(msgspec.Struct, frozen=True):
    """The state of the shell in which a command would run, where it differs from a new shell. `cwd`
    is its folder, "" for the working directory; `exported` are the environment variables that
    earlier commands set, "" for one that they unset."""

    cwd: str = ""
    exported: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Surroundings(msgspec.Struct, frozen=True):
    """Facts beside the call itself that an analyzer may need.

    Args:
        conversation_id: The conversation's id.
        annotations: The tool's annotations; None for an unknown tool. A tool of an untrusted
            remote server has the defaults, which assume the worst.
        tool_type: The tool's type.
        workdir: The runtime's working directory, or "".
        llm: The agent's model.
        said: Returns the user's last message.
        cancelled: Ends long work of an analyzer.
        shell: The state of the conversation's shell.
        before: The calls of the same answer that run before this one, and may change the shell and
            the files.
        history: Returns the earlier calls in the same shell, if the runtime does not know the
            state of its shell.
        confinement: The bounds of the sandbox in which the tool works; None without one.
    """

    conversation_id: str = ""
    annotations: ToolAnnotations | None = None
    tool_type: str = ""
    workdir: str = ""
    llm: Any = None
    said: Callable[[], str] = str
    cancelled: Cancellation = msgspec.field(default_factory=Cancellation)
    shell: ShellState = ShellState()
    before: Sequence[ToolCall] = ()
    history: Callable[[], Sequence[ToolCall]] = tuple[ToolCall]
    confinement: Confinement | None = None


class SecurityAnalyzer(Protocol):
    """An analyzer that assesses the risk of a call before a policy decides. The loop consults the
    analyzer once for each different call of an answer, on the conversation's thread, with no lock
    held. Analyzers are frozen: one serves many conversations."""

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """Return the risk of a call, which has no `id` yet; None if the analyzer does not cover
        such calls. If this method raises, the risk is unknown."""
        ...


@overload
def assess_call(analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings) -> Risk: ...
@overload
def assess_call(
    analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings, *, may_pass: Literal[True]
) -> Risk | None: ...
def assess_call(
    analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings, *, may_pass: bool = False
) -> Risk | None:
    """Return an analyzer's risk for a call. An analyzer that fails does not make a call harmless:
    the risk is then unknown. The same holds for an answer of None, unless the analyzer
    `may_pass`."""
    name = analyzer_name(analyzer)
    try:
        risk: Any = analyzer.assess(isolated_call(call, analyzer), about)
    except Exception as error:
        _log.warning("the security analyzer %s failed: %s", name, type(error).__name__)
        problem = f"failed: {describe_error(error)}"
        return Risk("unknown", bounded_reason(f"the analyzer {problem}"), name)
    if risk is None:
        return None if may_pass else Risk("unknown", "no analyzer covers such calls", name)
    reason: Any = getattr(risk, "reason", None)
    if not isinstance(risk, Risk) or risk.level not in LEVELS or not isinstance(reason, str):
        problem = f"answered {risk!r}, which is not a Risk"
        return Risk("unknown", bounded_reason(f"the analyzer {problem}"), name)
    by: Any = risk.by
    by = bounded_reason(by) if isinstance(by, str) and by else name
    return msgspec.structs.replace(risk, reason=bounded_reason(reason), by=by)


def isolated_call(call: ToolCall, guard: object) -> ToolCall:
    """Return the call with a copy of its arguments, which a custom guard may not change. Guards of
    Holdfast do not change arguments and get the call itself."""
    if type(guard).__module__.startswith("holdfast.agent."):
        return call
    return msgspec.structs.replace(call, arguments=deepcopy(call.arguments))


def analyzer_name(analyzer: object) -> str:
    """Return the name of an analyzer in journals: its `name`, or its class's."""
    name: Any = getattr(analyzer, "name", "")
    return name if isinstance(name, str) and name else type(analyzer).__name__


def bounded_reason(text: str) -> str:
    """Return a reason without lone surrogates, cut to the maximum length."""
    text = clean(text)
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 1]}…"
