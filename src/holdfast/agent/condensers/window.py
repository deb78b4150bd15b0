"""`WindowCondenser`: the model is shown the first message and the last ones."""

from __future__ import annotations

import msgspec

from holdfast.agent.condenser import Condensed, check_begin
from holdfast.agent.condensers.condenser_input import CondenserInput, Piece
from holdfast.tools.arguments import is_whole, wrong

NOTE = "[Earlier messages and answers were left out here to save room.]"


class WindowCondenser(msgspec.Struct, frozen=True):
    """A condenser that hides the oldest messages and answers.

    The first message, the user's last message, and everything that the model has not answered yet
    always stay. Earlier summaries stay.

    Args:
        keep: The maximum number of last messages and answers (with their results) that stay;
            None for as many as fit.
        at: The request size from which the condenser runs: a number of tokens, or a share of the
            model's context window. None: only when the provider refuses or on
            `Conversation.condense`.
        to: The share of `at` that the request shrinks to. A low share rarely breaks the
            provider's cached prefix.
    """

    keep: int | None = None
    at: int | float | None = 0.8
    to: float = 0.5

    def __post_init__(self) -> None:
        check_begin("WindowCondenser", self.at, self.to)
        check_keep("WindowCondenser", self.keep)

    def shorten(self, work: CondenserInput) -> Condensed | None:
        """Return the pieces to hide, or None. See `Condenser`."""
        hidden = oldest(work, work.target, self.keep)
        if not hidden:
            return None
        before = [piece.event.text for piece in work.summaries]
        summaries = [text.removesuffix(f"\n\n{NOTE}") for text in before if text and text != NOTE]
        return work.without(hidden, "\n\n".join([*summaries, NOTE]))


def oldest(work: CondenserInput, target: int, keep: int | None = None) -> list[Piece]:
    """Return the oldest pieces to hide. Without them a request has at most `target` tokens. All
    pieces before the last `keep` are included."""
    hidden: list[Piece] = []
    total = work.tokens
    outside = {piece.seq for piece in work.pieces[:-keep]} if keep is not None else set[int]()
    for piece in work.hideable:
        if total <= target and piece.seq not in outside:
            break
        hidden.append(piece)
        total -= piece.tokens
    return hidden


def check_keep(who: str, keep: int | None) -> None:
    """Raise `ConfigurationError` for an invalid `keep`."""
    if keep is not None and not is_whole(keep, 1):
        raise wrong(f"{who}: keep", "a whole number from 1 or None", keep)
