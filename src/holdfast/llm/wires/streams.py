"""The base of all wires' stream parsers: bytes to events, events to JSON, deltas to the
listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, cast

import msgspec

from holdfast.errors import BadResponse, LLMError, StreamInterrupted
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.wires.failures import excerpt, reported_error
from holdfast.llm.wires.lenient_json import MISSHAPEN, decode, join_surrogates
from holdfast.llm.wires.sse import EventReader

_strict_decode = msgspec.json.Decoder().decode
# After so many pieces that are not the wire's usual ones, the fast read is not tried again.
_MOST_MISSES = 3


class AnswerFilter(Protocol):
    """A change of a streamed answer: of its deltas as they pass, and of the finished answer."""

    def delta(self, delta: Delta, on_delta: OnDelta) -> object: ...
    def answer(self, answer: Completion, on_delta: OnDelta | None) -> Completion: ...


def feed_piece(parser: StreamParser, chunk: bytes, on_delta: OnDelta | None) -> bool:
    """Feed some bytes to a parser. Returns False if they cannot be read, but the answer was
    complete before them."""
    try:
        parser.feed(chunk, on_delta)
    except BadResponse:
        if not parser.closed:
            raise
        return False
    return True


class StreamParser:
    """A parser of one streamed answer, which may be cut into chunks anywhere.

    A wire defines how an event changes the answer (`_process`) and the answer itself (`_answer`).
    In both, an exception of `MISSHAPEN` means that the JSON has an unexpected shape. `_process`
    emits deltas; callbacks run only after the whole event has been processed.

    Most events are another piece of the text, or of a call's arguments. A wire may define their
    exact type (`_piece_decoder`), which is decoded in a fraction of the time, and what such a piece
    changes (`_add_piece`). Any other event is one for `_process`.
    """

    _piece_decoder: ClassVar[msgspec.json.Decoder[Any] | None] = None

    def __init__(self, events: EventReader | None = None) -> None:
        self._events = events or EventReader()
        self._deltas: list[Delta] = []
        self._content_after_finish = False  # True if content came with the finish or after it
        self._on_delta: OnDelta | None = None  # the last listener
        # True if the answer is complete. Data may follow that is not needed or only counts tokens.
        self.finished = False
        self.done = False  # True if nothing more can follow
        self.filter: AnswerFilter | None = None
        self._reported: LLMError | None = None  # the error that an event reported
        self._misses = 0  # reads with an event that `_piece_decoder` could not decode

    @property
    def closed(self) -> bool:
        """True if the answer is finished, and no content came with the finish or after it. Only
        token counts can follow.

        Some servers mark every piece as final. Their answers are `finished` from the first piece
        on and never `closed`; they end where the bytes end.
        """
        return self.finished and not self._content_after_finish

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        raise NotImplementedError

    def _add_piece(self, event: Any) -> Delta | None:
        """Add an event of the type of `_piece_decoder` to the answer, and return its delta.
        Return None, and change nothing, for an event that is no piece."""
        raise NotImplementedError

    def _answer(self) -> Completion:
        raise NotImplementedError

    def _emit(
        self, kind: Literal["text", "reasoning", "tool"], text: str, index: int = 0, name: str = ""
    ) -> None:
        self._deltas.append(Delta(kind, join_surrogates(text), index, name))

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Parse some bytes and pass the resulting deltas to `on_delta`. Raises the error that
        the stream reports, or `BadResponse`."""
        self._on_delta = on_delta
        events = self._events.feed(chunk)
        if not events:
            return
        tell: Callable[[Delta], object] | None = on_delta
        if on_delta is not None and self.filter is not None:
            tell = partial(self.filter.delta, on_delta=on_delta)
        for (name, data), piece in zip(events, self._decode_pieces(events), strict=True):
            if piece is not None and not self.finished and not self.done:
                delta = self._add_piece(piece)
                if delta is not None:
                    if tell is not None:
                        tell(delta)
                    continue
            self._event(name, data)
            if self._deltas:
                self._content_after_finish = self.finished
                deltas, self._deltas = self._deltas, []
                if tell is not None:
                    for delta in deltas:
                        tell(delta)

    def _decode_pieces(self, events: list[tuple[bytes, bytes]]) -> Sequence[Any]:
        """Return the events as `_piece_decoder` decodes them, all in one call; None for each event
        if any of them has another form."""
        if self._piece_decoder is not None and self._misses < _MOST_MISSES:
            lines = [data for name, data in events if name != b"error"]
            end = [None] if lines[-1:] == [b"[DONE]"] else []
            if end:
                lines.pop()
            try:
                pieces = self._piece_decoder.decode_lines(b"\n".join(lines))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._misses += 1
            else:
                if len(pieces) + len(end) == len(events):
                    return pieces + end
        return [None] * len(events)

    def finish(self) -> Completion:
        """Return the answer after the bytes have ended. Raises `StreamInterrupted` if the answer is
        incomplete."""
        try:
            for name, data in self._events.rest():
                self._event(name, data)
        except BadResponse as error:
            if error is self._reported:
                raise
            if self.finished and not self.closed:  # the last event was truncated
                raise StreamInterrupted("The stream ended within a piece of the answer.") from None
        if not self.finished:
            raise StreamInterrupted("The stream ended before the answer was complete.")
        try:
            answer = self._answer()
        except LLMError:
            raise
        except MISSHAPEN as error:
            raise BadResponse(
                f"The stream's answer has an unexpected shape ({error!r})."
            ) from error
        return answer if self.filter is None else self.filter.answer(answer, self._on_delta)

    def raise_reported(self) -> None:
        """Raise the error of a last event that lacks its blank line, if it reports one."""
        try:
            for name, data in self._events.rest():
                self._event(name, data)
        except LLMError as error:
            if error is self._reported:
                raise

    def _event(self, name: bytes, data: bytes) -> None:
        if self.done:
            return
        try:
            value: Any = _strict_decode(data)
        except (ValueError, RecursionError):
            text = data.strip()
            if not text:
                return
            if text == b"[DONE]":
                self.done = True
                return
            try:
                value = decode(data)
            except ValueError:
                raise BadResponse(
                    f"The stream has an event that is not JSON: {excerpt(data)}"
                ) from None
        if type(value) is not dict:
            raise BadResponse(f"The stream has an event that is not an object: {excerpt(data)}")
        event = cast("dict[str, Any]", value)
        get = event.get
        try:
            failed = name == b"error" or get("error") or get("object") == "error"
            if failed or get("type") == "error":
                raise reported_error(event)
            self._process(name, event)
        except LLMError as error:
            self._reported = error
            raise
        except MISSHAPEN as error:
            raise BadResponse(
                f"The stream has an event of an unexpected shape: {excerpt(data)}"
            ) from error
