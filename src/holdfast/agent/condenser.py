"""The seam between an agent and whatever shortens its conversations: told when a request did not fit, it says what to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.errors import ContextTooLong
from holdfast.events import AnyEvent
from holdfast.tools import Cancellation


class Condensed(msgspec.Struct, frozen=True):
    """What a model is shown no more: the messages and answers (with their calls' results) of these seqs. `summary` stands for them, where
    the first of them stood; "" for nothing."""

    hidden: tuple[int, ...]
    summary: str = ""


class Condenser(Protocol):
    """What an `Agent(condenser=)` is. It is asked on the conversation's thread, with no lock held, and may take its time."""

    def condense(self, journal: Sequence[AnyEvent], reason: ContextTooLong, cancelled: Cancellation) -> Condensed | None:
        """What to leave out of the next request, whose last one failed for `reason`; None if nothing can be. The journal is written
        to with it, and the model asked again, up to three times for one answer."""
        ...
