"""The input of a condenser: the view of a conversation in pieces, each with its tokens."""

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
from holdfast.answer import COMPACTION
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ContextTooLong
from holdfast.llm.transcript import Transcript
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation


class Piece(msgspec.Struct, frozen=True):
    """A unit of a conversation that is hidden as a whole: a message, or an answer with its
    `results` (calls with their results). `seq` is that of the event, or the place of a summary."""

    seq: int
    event: ev.MessageAdded | ev.AssistantReplied
    tokens: int
    """The tokens of the event and its results."""
    results: tuple[tuple[ToolCall, ToolResult], ...] = ()
    sizes: tuple[int, ...] = ()
    """The tokens of each result."""
    summary: bool = False
    """True if the piece is a summary of earlier pieces."""

    @property
    def is_answer(self) -> bool:
        """True if the piece is an answer of the model."""
        return isinstance(self.event, ev.AssistantReplied)

    @property
    def from_user(self) -> bool:
        """True if the piece is a message of the user."""
        event = self.event
        return isinstance(event, ev.MessageAdded) and event.sender == "user" and not self.summary


def _as_it_is(llm: Any) -> Any:
    return llm


class CondenserInput(ObjectStruct, dict=True):
    """A conversation to shorten.

    Args:
        pieces: The pieces that the model is shown now, in order.
        tokens: The tokens of the next request.
        limit: The number of tokens at which a request is too long.
        target: The maximum number of tokens of the next request.
        llm: The agent's model.
        instructions: The wishes of the caller of `Conversation.condense`.
        reason: The error that made the condensation necessary.
        cancelled: Ends long work of a condenser.
        read_journal: Returns all events so far.
        transcript: The next request, without its head; None if it is unknown. Do not change it.
        head: The event with the head of the next request.
        lend: Returns another model than the agent's in a form that counts its calls.
    """

    pieces: Sequence[Piece]
    tokens: int
    limit: int
    target: int
    llm: Any = None
    instructions: str = ""
    reason: ContextTooLong = ContextTooLong("The conversation must be shortened.")
    cancelled: Cancellation = msgspec.field(default_factory=Cancellation)
    read_journal: Callable[[], Sequence[ev.AnyEvent]] = tuple[ev.AnyEvent]
    transcript: Transcript | None = None
    head: ev.AgentConfigured | None = None
    lend: Callable[[Any], Any] = _as_it_is

    @cached_property
    def journal(self) -> Sequence[ev.AnyEvent]:
        """All events so far, read on first access."""
        return self.read_journal()

    @cached_property
    def hideable(self) -> tuple[Piece, ...]:
        """The pieces that may be hidden, in order. Excluded are a first message that is not large,
        the user's last message, and earlier summaries. The last answer and the later pieces, which
        the model has not answered yet, are excluded too."""
        by_user = [n for n, piece in enumerate(self.pieces) if piece.from_user]
        answers = [n for n, piece in enumerate(self.pieces) if piece.is_answer]
        positions = by_user[-1:]
        if by_user[:1] == [0] and self.pieces[0].tokens <= self.target // 4:
            positions.append(0)
        before = enumerate(self.pieces[: answers[-1] if answers else None])
        return tuple([piece for n, piece in before if n not in positions and not piece.summary])

    @property
    def summaries(self) -> tuple[Piece, ...]:
        """The pieces that are summaries of earlier pieces."""
        return tuple([piece for piece in self.pieces if piece.summary])

    def without(self, pieces: Collection[Piece], summary: str, **more: Any) -> Condensed:
        """Return a `Condensed` that hides these pieces behind one summary. The summary also
        replaces all existing summaries."""
        places = tuple([piece.seq for piece in self.summaries])
        hidden = tuple(sorted({piece.seq for piece in pieces}.union(places)))
        return Condensed(hidden, summary, replaced=places, **more)

    def after(self, condensed: Condensed) -> CondenserInput:
        """Return the work that remains after `condensed` is applied, for the next condenser."""
        if condensed.compaction is not None:
            size = len(condensed.compaction.native) // tokens.BYTES_PER_TOKEN
            rest = self.tokens - sum([piece.tokens for piece in self.pieces]) + size
            return msgspec.structs.replace(self, pieces=(), tokens=max(0, rest))
        hidden_seqs = {*condensed.hidden, *condensed.replaced}
        place = min(hidden_seqs, default=0)
        remaining: list[Piece] = []
        total = self.tokens
        for piece in self.pieces:
            if piece.seq in hidden_seqs:
                total -= piece.tokens
                if piece.seq == place and condensed.summary:
                    text = (TextContent(condensed.summary),)
                    message = ev.MessageAdded(
                        seq=place, id="", timestamp=ev.EPOCH, content=text, sender="holdfast"
                    )
                    remaining.append(
                        Piece(place, message, tokens.text(condensed.summary), summary=True)
                    )
                    total += remaining[-1].tokens
                continue
            sizes = list(piece.sizes)
            for n, (call, _) in enumerate(piece.results):
                if call.id in condensed.trimmed:
                    sizes[n] = min(sizes[n], tokens.of_trimmed(condensed.trimmed[call.id]))
            if saved := sum(piece.sizes) - sum(sizes):
                piece_tokens = piece.tokens - saved
                piece = msgspec.structs.replace(piece, sizes=tuple(sizes), tokens=piece_tokens)
                total -= saved
            remaining.append(piece)
        return msgspec.structs.replace(
            self, pieces=tuple(remaining), tokens=total, read_journal=lambda: self.journal
        )


def pieces_of(items: Sequence[Any], sizes: Sizes, summaries: Collection[str]) -> list[Piece]:
    """Return the pieces of a transcript's items. `summaries` are the ids of the journal's
    condensations. Of a history that the provider has compacted, only the pieces after the
    compaction are returned, since hiding the others would change nothing."""
    pieces: list[Piece] = []
    begin = None if sizes.compaction is None else sizes.compaction.seq
    own: set[int] = set()  # the seqs of compactions that are no answers
    index, end = 0, len(items)
    while index < end:
        item = items[index]
        index += 1
        if type(item) is ev.AssistantReplied and item.stop_reason == COMPACTION:
            own.add(item.seq)
        elif type(item) is ev.MessageAdded and item.seq in own:
            continue  # the note that follows
        elif isinstance(item, ev.AssistantReplied):
            results: list[tuple[ToolCall, ToolResult]] = []
            while index < end and type(items[index]) is tuple:
                results.append(items[index])
                index += 1
            each = tuple([sizes.worth(sizes.results.get(call.id, 0)) for call, _ in results])
            alone = sizes.worth(sizes.messages.get(item.seq, 0))
            pieces.append(Piece(item.seq, item, alone + sum(each), tuple(results), each))
        elif item.sender == "holdfast" and item.id in summaries:
            text = (TextContent(without_plan(item.text)),)
            without = msgspec.structs.replace(item, content=text)
            worth = sizes.worth(tokens.text(item.text))
            pieces.append(Piece(item.seq, without, worth, summary=True))
        else:
            pieces.append(Piece(item.seq, item, sizes.worth(sizes.messages.get(item.seq, 0))))
        if type(item) is ev.AssistantReplied and item.seq == begin:
            pieces = []
    return pieces
