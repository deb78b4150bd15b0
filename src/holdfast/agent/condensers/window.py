"""`WindowCondenser`: the model is shown the first message and the last ones."""

from __future__ import annotations

import msgspec

from holdfast.agent.condenser import Condensed, check_begin
from holdfast.agent.condensers.work import Piece, Work
from holdfast.errors import ConfigurationError

NOTE = "[Earlier messages and answers were left out here to save room.]"


class WindowCondenser(msgspec.Struct, frozen=True):
    """Hides what is oldest. It begins at `at` (tokens, or a share of the model's context window;
    None: only when the provider refuses, or when somebody asks for it) and goes down to the share
    `to` of that, so that it is seldom that a provider's cached prefix is broken.

    `keep`: how many of the last messages and answers (with their results) stay at most; None: as
    many as there is room for. The first message, the user's last one, and what the model has not
    answered yet stay in any case. A summary that stands from earlier stays.
    """

    keep: int | None = None
    at: int | float | None = 0.8
    to: float = 0.5

    def __post_init__(self) -> None:
        check_begin("WindowCondenser", self.at, self.to)
        check_keep("WindowCondenser", self.keep)

    def shorten(self, work: Work) -> Condensed | None:
        """See `Condenser`."""
        hidden = oldest(work, work.target, self.keep)
        if not hidden:
            return None
        before = [piece.event.text for piece in work.summaries]
        told = [text for text in before if text and text != NOTE]
        return work.without(
            hidden, "\n\n".join([*(text.removesuffix(f"\n\n{NOTE}") for text in told), NOTE])
        )


def oldest(work: Work, target: int, keep: int | None = None) -> list[Piece]:
    """The oldest pieces without which a request has at most `target` tokens, and at least all but
    the last `keep` pieces."""
    hidden: list[Piece] = []
    left = work.tokens
    outside: set[int] = (
        set()
        if keep is None
        else {id(piece) for piece in work.pieces[: max(0, len(work.pieces) - keep)]}
    )
    for piece in work.hideable:
        if left <= target and id(piece) not in outside:
            break
        hidden.append(piece)
        left -= piece.tokens
    return hidden


def check_keep(who: str, keep: int | None) -> None:
    """Raises `ConfigurationError` for a `keep` that is none."""
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        raise ConfigurationError(f"{who}: keep takes a whole number from 1 or None, not {keep!r}.")
