"""How risky a call is: `Risk`, what an analyzer is asked with, and the analyzer's protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, cast, overload

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.tools import Cancellation, ToolAnnotations
from holdfast.tools.results import clean

Level = Literal["low", "medium", "unknown", "high"]

# From the least to the most. Nothing is known to be harmful about an unknown one, and nothing to be
# harmless: policies treat it as high.
LEVELS: Mapping[str, int] = {"low": 0, "medium": 1, "unknown": 2, "high": 3}

_REASON = 400  # characters of a reason that are kept: it may quote what a model wrote

_log = logging.getLogger("holdfast")


class Risk(msgspec.Struct, frozen=True):
    """How risky a call is, why, and which analyzer says so: `by`.

    "low" reads, or adds what can be taken back; "medium" changes the working directory or runs the
    project's own code; "high" destroys, reaches beyond, sends out, or hides what it does; "unknown"
    could not be told, which is treated as high. `usage`, `cost` (US dollars) and `model` are those
    of the model calls that it took to say so.
    """

    level: Level
    reason: str = ""
    by: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""

    @property
    def rank(self) -> int:
        """0 for low to 3 for high."""
        return LEVELS[self.level]


class ShellState(msgspec.Struct, frozen=True):
    """The state of the shell that a command would run in, where it differs from a new one.

    Args:
        cwd: Its present folder; "" for the working directory. exported: Environment variables that
        earlier commands set, with their values; "" for one that they unset.
    """

    cwd: str = ""
    exported: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


def _no_calls() -> Sequence[ToolCall]:
    return ()


class Surroundings(msgspec.Struct, frozen=True):
    """The facts beside the call itself that an analyzer may need.

    Args:
        conversation_id: The conversation's id. annotations: The tool's annotations, None if there
        is no such tool. A tool of a remote server that is not trusted has the defaults,
            which are the worst.
        tool_type: The tool's type. workdir: The runtime's folder, "" if it has none. llm: The
        agent's model. said: Gives what the user last said. cancelled: Ends work that takes its
        time. shell: The state of the conversation's shell. before: The calls of the same answer
        that run before this one. They may change the shell and the files. history: Gives the calls
        that ran earlier in the same shell, if the runtime does not know the state of its shell.
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
    history: Callable[[], Sequence[ToolCall]] = _no_calls


class SecurityAnalyzer(Protocol):
    """Says how risky a call is before a policy decides. Asked once for each different call of an
    answer, on the conversation's thread, with no lock held. Frozen: one analyzer serves many
    conversations."""

    def assess(self, call: ToolCall, about: Surroundings) -> Risk | None:
        """The risk of a call, whose `id` is not given yet; None if this analyzer has nothing to say
        of such a call. If it raises, the risk is unknown."""
        ...


@overload
def assessed(analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings) -> Risk: ...
@overload
def assessed(
    analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings, *, may_pass: Literal[True]
) -> Risk | None: ...
def assessed(
    analyzer: SecurityAnalyzer, call: ToolCall, about: Surroundings, *, may_pass: bool = False
) -> Risk | None:
    """What an analyzer says of a call. One that fails does not make a call harmless: its risk is
    unknown; so it is if it says nothing, unless it `may_pass`."""
    name = name_of(analyzer)
    try:
        found: Any = analyzer.assess(apart(call, analyzer), about)
    except Exception as error:
        _log.warning("the security analyzer %s failed: %s", name, type(error).__name__)
        return Risk("unknown", shown(f"the analyzer failed: {type(error).__name__}: {error}"), name)
    if found is None:
        return None if may_pass else Risk("unknown", "no analyzer knows such calls", name)
    if (
        not isinstance(found, Risk)
        or found.level not in LEVELS
        or not isinstance(cast(Any, found.reason), str)
    ):
        return Risk("unknown", shown(f"the analyzer answered {found!r}, which is no risk"), name)
    by: Any = found.by
    return msgspec.structs.replace(
        found, reason=shown(found.reason), by=shown(by) if isinstance(by, str) and by else name
    )


def apart(call: ToolCall, guard: object) -> ToolCall:
    """The call with arguments of its own: what the model asked for is not a guard's to change, and
    those of Holdfast do not."""
    if type(guard).__module__.startswith("holdfast.agent."):
        return call
    return msgspec.structs.replace(
        call, arguments={key: _apart(value) for key, value in call.arguments.items()}
    )


def _apart(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return deepcopy(value)


def name_of(analyzer: object) -> str:
    """What an analyzer is called in journals: its `name`, or its class's."""
    found: Any = getattr(analyzer, "name", "")
    return found if isinstance(found, str) and found else type(analyzer).__name__


def shown(text: str) -> str:
    """A reason as it is kept: no half characters, and not longer than a reason is."""
    text = clean(text)
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
