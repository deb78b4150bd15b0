"""What the stream parsers of all wires share: events out of bytes, JSON out of events, deltas to whoever listens."""

from __future__ import annotations

from typing import Any, cast

from holdfast.errors import BadResponse, LLMError, StreamInterrupted
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import decode
from holdfast.llm.wires.sse import EventReader


class StreamParser:
    """Reads one streamed answer, cut into chunks anywhere. A wire says what an event adds (`_take`), when the answer is complete
    (`finished`) and what it is then (`_answer`).

    `_take` puts what is to be told into `_told`: callbacks run when the event has been taken in whole.
    """

    __slots__ = ("_events", "_told", "done")

    def __init__(self) -> None:
        self._events = EventReader()
        self._told: list[Delta] = []
        self.done = False  # nothing more is to come

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; there may be more to come that is not needed, or only counts tokens."""
        raise NotImplementedError

    def _take(self, name: bytes, found: dict[str, Any]) -> None:
        """Take in one event. `AttributeError`, `KeyError`, `TypeError` and `ValueError` mean that it is of another shape."""
        raise NotImplementedError

    def _answer(self) -> Completion:
        """The answer, once it is finished."""
        raise NotImplementedError

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Take in some bytes, and tell `on_delta` what they say. Raises the error that the stream reports, or `BadResponse`."""
        for name, data in self._events.feed(chunk):
            self._event(name, data)
            if self._told:
                told, self._told = self._told, []
                if on_delta is not None:
                    for delta in told:
                        on_delta(delta)

    def finish(self) -> Completion:
        """The answer. Raises `StreamInterrupted` if the stream ended before it was complete."""
        if not self.done:
            try:
                for name, data in self._events.rest():
                    self._event(name, data)
            except BadResponse:
                pass  # a last event that was cut off
        if not self.finished:
            raise StreamInterrupted("The stream ended before the answer was complete: what came is not a whole answer.")
        return self._answer()

    def _event(self, name: bytes, data: bytes) -> None:
        if self.done or not data.strip():
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            found = decode(data)
        except (ValueError, RecursionError):
            raise BadResponse(f"The stream has an event that is not JSON: {_shown(data)}") from None
        if not isinstance(found, dict):
            raise BadResponse(f"The stream has an event that is no object: {_shown(data)}")
        event = cast("dict[str, Any]", found)
        if event.get("error") or name == b"error" or event.get("object") == "error" or event.get("type") == "error":
            raise reported_error(event)
        try:
            self._take(name, event)
        except LLMError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadResponse(f"The stream has an event of another shape: {_shown(data)}") from error


def _shown(data: bytes) -> str:
    return shorten(data.decode("utf-8", "replace"))
