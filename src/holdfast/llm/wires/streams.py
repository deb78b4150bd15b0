"""What the stream parsers of all wires share: events out of bytes, JSON out of events, deltas to
whoever listens."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse, LLMError, StreamInterrupted
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import MISSHAPEN, decode, whole
from holdfast.llm.wires.sse import EventReader


class StreamParser:
    """Reads one streamed answer, cut into chunks anywhere. A wire says what an event adds
    (`_take`), when the answer is complete (`finished`) and what it is then (`_answer`).

    `_take` puts what is to be told into `_told`: callbacks run when the event has been taken in
    whole.
    """

    __slots__ = ("_events", "_late", "_told", "done")

    def __init__(self) -> None:
        self._events = EventReader()
        self._told: list[Delta] = []
        self._late = False  # whether content came with the finish or behind it
        self.done = False  # nothing more is to come

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; there may be more to come that is not needed, or only
        counts tokens."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether it is finished, and no content came with the finish or behind it (see
        `wires.Parser`)."""
        return self.finished and not self._late

    def _take(self, name: bytes, found: dict[str, Any]) -> None:
        """Take in one event. Any of `lenient.MISSHAPEN` means that it is of another shape."""
        raise NotImplementedError

    def _answer(self) -> Completion:
        """The answer, once it is finished. Any of `lenient.MISSHAPEN` means that it is none."""
        raise NotImplementedError

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Take in some bytes, and tell `on_delta` what they say. Raises the error that the stream
        reports, or `BadResponse`."""
        for name, data in self._events.feed(chunk):
            self._event(name, data)
            if self._told:
                self._late = self.finished
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
            except BadResponse:  # a last event that was cut off
                if self.finished and not self.closed:
                    raise StreamInterrupted(
                        "The stream ended in the midst of a piece of the answer."
                    ) from None
        if not self.finished:
            raise StreamInterrupted(
                "The stream ended before the answer was complete: what came is not a whole answer."
            )
        try:
            answer = self._answer()
            labels = (answer.stop_reason, answer.model, answer.response_id)
            if all(map(str.isascii, labels)):
                return answer
            stop, model, id = map(whole, labels)
            return msgspec.structs.replace(answer, stop_reason=stop, model=model, response_id=id)
        except LLMError:
            raise
        except MISSHAPEN as error:
            raise BadResponse(
                f"The stream came to an answer of another shape ({error!r})."
            ) from error

    def _event(self, name: bytes, data: bytes) -> None:
        if self.done or not data.strip():
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            found = decode(data)
        except ValueError:
            raise BadResponse(f"The stream has an event that is not JSON: {_shown(data)}") from None
        if not isinstance(found, dict):
            raise BadResponse(f"The stream has an event that is no object: {_shown(data)}")
        event = cast("dict[str, Any]", found)
        try:
            if (
                event.get("error")
                or name == b"error"
                or event.get("object") == "error"
                or event.get("type") == "error"
            ):
                raise reported_error(event)
            self._take(name, event)
        except LLMError:
            raise
        except MISSHAPEN as error:
            raise BadResponse(
                f"The stream has an event of another shape: {_shown(data)}"
            ) from error


def _shown(data: bytes) -> str:
    return shorten(data[:5000].decode("utf-8", "replace"))
