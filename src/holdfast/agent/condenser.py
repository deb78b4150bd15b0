"""The interface between an agent and its condenser, which shortens the agent's conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import ContextTooLong
from holdfast.events import AnyEvent
from holdfast.llm.completion import Completion
from holdfast.tools import Cancellation
from holdfast.tools.arguments import is_number, is_whole, wrong

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.agent.condensers.condenser_input import CondenserInput


class Condensed(msgspec.Struct, frozen=True):
    """The parts of a conversation that a model is no longer shown.

    Attributes:
        hidden: Seqs of the hidden messages and answers; the results of an answer's calls are
            hidden with the answer.
        summary: The text that replaces the hidden events, at the place of the first of them; ""
            for none.
        trimmed: The number of characters that are still shown of a result, by call id.
        usage: Tokens of the model calls that the condensation needed.
        cost: US dollars of these model calls; None if unknown.
        model: The model of these calls.
        replaced: The places of earlier summaries that this one replaces; other earlier summaries
            stay.
        compaction: The provider's form of the history (`LLM.compact`), for models that can read it;
            None for none. Nothing is hidden from other models.
    """

    hidden: tuple[int, ...] = ()
    summary: str = ""
    trimmed: dict[str, int] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    replaced: tuple[int, ...] = ()
    compaction: Completion | None = None


class Condenser(Protocol):
    """The type of `Agent(condenser=)`.

    The conversation calls the condenser when a provider refuses a request as too long, and in
    `Conversation.condense`. The call is made on the conversation's thread with no lock held, and
    may take its time. Optional members:

    - `at`: The request size from which the condenser runs before the provider refuses, in tokens or
      as a share of the model's context window.
    - `tools`: Tools that the agent gets with the condenser.
    - `shorten(work)`: Called instead of `condense`, with the view and its sizes
      (`agent.condensers.CondenserInput`). The shipped condensers use this method. Calls of
      `work.llm`, and of another model through `work.lend(llm)`, are counted in any case.
    """

    def condense(
        self, journal: Sequence[AnyEvent], reason: ContextTooLong, cancelled: Cancellation
    ) -> Condensed | None:
        """Return the parts to leave out of the next request; None if nothing can be left out.
        `reason` is the failure of the last request. The answer is written to the journal and the
        model is called again, up to three times for one answer."""
        ...


def ask(condenser: Any, work: CondenserInput) -> Condensed | None:
    """Return the answer of a condenser of either kind. Errors of the condenser propagate."""
    shorten = getattr(condenser, "shorten", None)
    if shorten is not None:
        return shorten(work)
    return condenser.condense(work.journal, work.reason, work.cancelled)


def is_condenser(value: Any) -> bool:
    """Return True if the object has a method `shorten` or `condense`."""
    return callable(getattr(value, "shorten", None)) or callable(getattr(value, "condense", None))


def check_begin(who: str, at: Any, to: Any) -> None:
    """Raise `ConfigurationError` for an invalid `at` or `to`."""
    if at is not None and not is_whole(at, 1) and not (is_number(at) and 0 < at <= 1):
        form = "a share of the window such as 0.8, a number of tokens, or None"
        raise wrong(f"{who}: at", form, at)
    if not is_number(to) or not 0 < to < 1:
        raise wrong(f"{who}: to", "a share of at, above 0 and below 1", to)


def trigger_of(agent: Agent) -> int | None:
    """Return the request size in tokens from which the agent's condenser runs. Return None if the
    condenser has no such size, or if `at` is a share of an unknown context window."""
    at: Any = getattr(agent.condenser, "at", None)
    if not is_number(at) or at > 1:
        return int(at) if is_number(at) else None
    window = window_of(agent.llm)
    return None if window is None else int(window * at)


def window_of(llm: Any) -> int | None:
    """Return the maximum number of tokens of a request to a model; None if unknown. For a composite
    the minimum over its models is returned."""
    models = getattr(llm, "models", None)
    if isinstance(models, Mapping):
        windows = map(window_of, cast("Mapping[str, Any]", models).values())
        return min((window for window in windows if window is not None), default=None)
    info = getattr(llm, "info", None)
    if info is None or not info.context_window:
        return None if info is None else info.max_input_tokens
    room = info.context_window - int(llm.parameters().get("max_output_tokens") or 0)
    return min(room, info.max_input_tokens) if info.max_input_tokens else room
