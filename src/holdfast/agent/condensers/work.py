"""What a condenser works on: all that a model is shown now, in pieces that stay whole, with their
tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.condenser import Condensed
from holdfast.agent.planning import without_plan
from holdfast.agent.tokens import Sizes
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ContextTooLong
from holdfast.tools import Cancellation


class Piece(msgspec.Struct, frozen=True):
    """What is hidden whole or not at all: a message, or an answer with the results of all its
    calls. `tokens` are those of all of it, `sizes` of each result. A `summary` is what stands for
    earlier pieces; `seq` is then its place."""

    seq: int
    event: ev.Message | ev.Assistant
    tokens: int
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()
    sizes: tuple[int, ...] = ()
    summary: bool = False

    @property
    def from_user(self) -> bool:
        """Whether the user said it."""
        return (
            isinstance(self.event, ev.Message) and self.event.sender == "user" and not self.summary
        )


class Work:
    """A conversation whose next request is to have at most `target` of its `tokens`. `limit` is how
    many are too many.

    `llm` is the agent's model, `instructions` are what somebody who asked for it wants to be
    minded, `reason` says why it is to be done.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        total: int,
        limit: int,
        target: int,
        llm: Any = None,
        instructions: str = "",
        reason: ContextTooLong | None = None,
        cancelled: Cancellation | None = None,
        journal: Callable[[], Sequence[ev.AnyEvent]] = tuple,
    ) -> None:
        self.pieces = tuple(pieces)
        self.tokens = total
        self.limit = limit
        self.target = target
        self.llm = llm
        self.instructions = instructions
        self.reason = reason or ContextTooLong("The conversation is to be shortened.")
        self.cancelled = (
            Cancellation() if cancelled is None else cancelled
        )  # one that is not raised is false
        self._journal = journal

    @cached_property
    def journal(self) -> Sequence[ev.AnyEvent]:
        """All events so far, read when they are asked for."""
        return self._journal()

    @cached_property
    def hideable(self) -> tuple[Piece, ...]:
        """What may be hidden, in order: not the first message unless it is large, not the user's
        last one, and not the last answer and what came behind it, which the model has not answered
        yet. Earlier summaries are not among them."""
        last_user = max(
            (index for index, piece in enumerate(self.pieces) if piece.from_user), default=-1
        )
        last_answer = max(
            (i for i, piece in enumerate(self.pieces) if isinstance(piece.event, ev.Assistant)),
            default=len(self.pieces),
        )
        first = (
            0
            if self.pieces
            and self.pieces[0].from_user
            and self.pieces[0].tokens <= self.target // 4
            else -1
        )
        return tuple(
            [
                piece
                for index, piece in enumerate(self.pieces[:last_answer])
                if index not in (first, last_user) and not piece.summary
            ]
        )

    @property
    def summaries(self) -> tuple[Piece, ...]:
        """Those that stand for what was hidden earlier."""
        return tuple([piece for piece in self.pieces if piece.summary])

    def without(self, pieces: Collection[Piece], summary: str, **more: Any) -> Condensed:
        """What hides these, with one summary for them and for what the summaries stand for that are
        there."""
        places = tuple([piece.seq for piece in self.summaries])
        hidden = tuple(sorted({piece.seq for piece in pieces}.union(places)))
        return Condensed(hidden, summary, replaced=places, **more)

    def after(self, found: Condensed) -> Work:
        """What is left when that is done, for the next condenser."""
        gone = {*found.hidden, *found.replaced}
        place = min(gone, default=0)
        kept: list[Piece] = []
        total = self.tokens
        for piece in self.pieces:
            if piece.seq in gone:
                total -= piece.tokens
                if piece.seq == place and found.summary:
                    said = ev.Message(
                        seq=place,
                        id="",
                        timestamp=ev.EPOCH,
                        content=(TextContent(found.summary),),
                        sender="holdfast",
                    )
                    kept.append(Piece(place, said, tokens.text(found.summary), summary=True))
                    total += kept[-1].tokens
                continue
            if any(call.id in found.trimmed for call, _ in piece.results):
                sizes = tuple(
                    [
                        (
                            min(size, tokens.trimmed(found.trimmed[call.id]))
                            if call.id in found.trimmed
                            else size
                        )
                        for (call, _), size in zip(piece.results, piece.sizes, strict=True)
                    ]
                )
                saved = sum(piece.sizes) - sum(sizes)
                piece = msgspec.structs.replace(piece, sizes=sizes, tokens=piece.tokens - saved)
                total -= saved
            kept.append(piece)
        return Work(
            kept,
            total,
            self.limit,
            self.target,
            self.llm,
            self.instructions,
            self.reason,
            self.cancelled,
            lambda: self.journal,
        )


def pieces_of(items: Sequence[Any], sizes: Sizes, summaries: Collection[str]) -> list[Piece]:
    """The pieces of a transcript's items. `summaries` are the ids of the journal's
    condensations."""
    found: list[Piece] = []
    index, end = 0, len(items)
    while index < end:
        item = items[index]
        index += 1
        if isinstance(item, ev.Assistant):
            results: list[tuple[ToolCall, ToolResult]] = []
            while index < end and type(items[index]) is tuple:
                results.append(items[index])
                index += 1
            each = tuple([sizes.worth(sizes.results.get(call.id, 0)) for call, _ in results])
            own = sizes.worth(sizes.said.get(item.seq, 0))
            found.append(Piece(item.seq, item, own + sum(each), tuple(results), each))
        elif item.sender == "holdfast" and item.id in summaries:
            told = msgspec.structs.replace(item, content=(TextContent(without_plan(item.text)),))
            found.append(Piece(item.seq, told, sizes.worth(tokens.text(item.text)), summary=True))
        else:
            found.append(Piece(item.seq, item, sizes.worth(sizes.said.get(item.seq, 0))))
    return found
