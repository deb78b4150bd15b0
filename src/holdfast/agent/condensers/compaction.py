"""`CompactionCondenser`: the provider compacts the history into a form of its own."""

from __future__ import annotations

import logging
from typing import Any, cast

import msgspec

from holdfast.agent.condenser import Condensed, ask, check_begin, is_condenser
from holdfast.agent.condensers.condenser_input import CondenserInput
from holdfast.agent.condensers.summary import LLMCondenser
from holdfast.errors import BadResponse, ConfigurationError, ContextTooLong, LLMError, ModelNotFound
from holdfast.llm.completion import Completion
from holdfast.llm.wires.answers import holds_compaction
from holdfast.tools.arguments import wrong

_log = logging.getLogger("holdfast")

# The statuses with which servers answer a request for something that they do not offer.
_NOT_OFFERED = (404, 405, 501)


class CompactionCondenser(msgspec.Struct, frozen=True):
    """A condenser that lets the agent's provider compact the history (`LLM.compact`).

    The provider keeps the user's messages and encrypts the other facts that its model needs. Only
    its own models can read the result. A model of another provider is sent the whole history, which
    the `notes` of its first answer mention.

    `otherwise` is asked in its place if the model's API offers no compaction, or if the history is
    already too long for one. A warning in the log says so.

    Args:
        otherwise: A condenser; None for an `LLMCondenser`.
        at: See `WindowCondenser`.
        to: The share of `at` that `otherwise` shrinks the request to. The provider decides about
            the size of its compaction.
    """

    otherwise: Any = None
    at: int | float | None = 0.8
    to: float = 0.5

    def __post_init__(self) -> None:
        check_begin("CompactionCondenser", self.at, self.to)
        if self.otherwise is not None and not is_condenser(self.otherwise):
            form = "a condenser, or None for an LLMCondenser"
            raise wrong("CompactionCondenser: otherwise", form, self.otherwise)

    @property
    def tools(self) -> tuple[Any, ...]:
        """Tools that the agent gets with `otherwise`."""
        return tuple(getattr(self.otherwise, "tools", ()))

    def shorten(self, work: CondenserInput) -> Condensed | None:
        """Return the provider's compaction; None if it has nothing to compact. See `Condenser`.
        Raises `LLMError`."""
        if not any(piece.is_answer for piece in work.pieces):
            return None
        try:
            answer = _compact(work)
        except (ConfigurationError, ContextTooLong, LLMError) as error:
            offered = not isinstance(error, ConfigurationError | ModelNotFound)
            offered = offered and getattr(error, "status", None) not in _NOT_OFFERED
            if work.cancelled or (offered and not isinstance(error, ContextTooLong)):
                raise
            _log.warning("%s", error)
            return ask(LLMCondenser() if self.otherwise is None else self.otherwise, work)
        if not holds_compaction(answer.native):
            raise BadResponse(f"{work.llm.model!r} was asked for a compaction and returned none.")
        cost = work.llm.cost(answer.usage) if answer.cost is None else answer.cost
        return Condensed(
            usage=answer.usage, cost=cost, model=answer.model or work.llm.model, compaction=answer
        )


def _compact(work: CondenserInput) -> Completion:
    """Return the provider's compaction. Raises `ConfigurationError` if there is no way to ask for
    one, and `LLMError`."""
    compact: Any = getattr(work.llm, "compact", None)
    if compact is None or work.transcript is None or work.head is None:
        name = getattr(work.llm, "model", work.llm)
        raise ConfigurationError(
            f"CompactionCondenser: {name!r} has no compaction by its provider."
        )
    return cast(
        Completion,
        compact(
            work.transcript,
            head=work.head,
            instructions=work.instructions,
            cancelled=work.cancelled,
        ),
    )
