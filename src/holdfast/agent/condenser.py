"""The seam between an agent and whatever shortens its conversations: when it is asked, what with,
and what it may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import ConfigurationError, ContextTooLong
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.agent.condensers.work import Work


class Condensed(msgspec.Struct, frozen=True):
    """What a model is shown no more: the messages and answers (with their calls' results) of these
    seqs. `summary` stands for them, where the first of them stood; "" for nothing. Earlier
    summaries stay, but those that stand at the places `replaced`. Of the results in `trimmed`, by
    call id, it is shown that many characters.

    `usage` and `cost` (US dollars, None if not known) are those of the model calls that it took, by
    `model`.
    """

    hidden: tuple[int, ...] = ()
    summary: str = ""
    trimmed: dict[str, int] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    replaced: tuple[int, ...] = ()


class Condenser(Protocol):
    """What an `Agent(condenser=)` is. It is asked on the conversation's thread, with no lock held,
    and may take its time.

    It is asked when a provider refuses a request as too long, and by `Conversation.condense`. What
    it may have besides:

    - `at`: from which size of a request on it is asked before the provider refuses: tokens, or a
      share of the model's context window.
    - `tools`: what the agent gets with it.
    - `shorten(work)` in place of `condense`: it is handed the view with its sizes
      (`agent.condensers.Work`), as the shipped ones are.
    """

    def condense(
        self, journal: Sequence[AnyEvent], reason: ContextTooLong, cancelled: Cancellation
    ) -> Condensed | None:
        """What to leave out of the next request, whose last one failed for `reason`; None if
        nothing can be. The journal is written to with it, and the model asked again, up to three
        times for one answer."""
        ...


def ask(condenser: Any, work: Work) -> Condensed | None:
    """What a condenser of either kind makes of a conversation. Raises what it raises."""
    shorten = getattr(condenser, "shorten", None)
    return (
        shorten(work)
        if shorten is not None
        else condenser.condense(work.journal, work.reason, work.cancelled)
    )


def is_condenser(found: Any) -> bool:
    """Whether it can be asked."""
    return callable(getattr(found, "shorten", None)) or callable(getattr(found, "condense", None))


def check_begin(who: str, at: Any, to: Any) -> None:
    """Raises `ConfigurationError` for an `at` or a `to` that is none."""
    number = isinstance(at, int | float) and not isinstance(at, bool)
    if at is not None and not (number and (0 < at <= 1 or (isinstance(at, int) and at > 1))):
        raise ConfigurationError(
            f"{who}: at takes a share of the window such as 0.8, a number of tokens, or None, not"
            f" {at!r}."
        )
    if not isinstance(to, int | float) or isinstance(to, bool) or not 0 < to < 1:
        raise ConfigurationError(
            f"{who}: to takes a share of where it begins, above 0 and below 1, not {to!r}."
        )


def trigger_of(agent: Agent) -> int | None:
    """The tokens of a request from which on the agent's condenser is asked; None if it is not, as
    where it is a share of a window that is not known."""
    at = getattr(agent.condenser, "at", None)
    if at is None or isinstance(at, bool) or not isinstance(at, int | float):
        return None
    if at > 1:
        return int(at)
    window = window_of(agent.llm)
    return None if window is None else int(window * at)


def window_of(llm: Any) -> int | None:
    """The tokens that a request to a model may have; of a composite, to the smallest of its models.
    None where it is not known."""
    models = getattr(llm, "models", None)
    if isinstance(models, Mapping):
        windows = [
            found
            for model in cast("Mapping[str, Any]", models).values()
            if (found := window_of(model)) is not None
        ]
        return min(windows) if windows else None
    info = getattr(llm, "info", None)
    if info is None or not info.context_window:
        return None if info is None else info.max_input_tokens
    room = info.context_window - int(llm.parameters().get("max_output_tokens") or 0)
    return min(room, info.max_input_tokens) if info.max_input_tokens else room
