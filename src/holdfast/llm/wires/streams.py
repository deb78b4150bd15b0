"""The base of all wires' stream parsers: bytes to events, events to JSON, deltas to the
listener."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse, LLMError, StreamInterrupted
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import MISSHAPEN, decode, whole
from holdfast.llm.wires.sse import EventReader


class StreamParser:
    """A parser of one streamed answer, which may be cut into chunks anywhere.

    A wire defines how an event changes the answer (`_process`), when the answer is complete
    (`finished`), and the answer itself (`_answer`). `_process` appends deltas to `_deltas`.
    Callbacks run only after the whole event has been processed.
    """

    __slots__ = ("_content_after_finish", "_deltas", "_events", "done")

    def __init__(self) -> None:
        self._events = EventReader()
        self._deltas: list[Delta] = []
        self._content_after_finish = False  # True if content came with the finish or after it
        self.done = False  # True if nothing more can follow

    @property
    def finished(self) -> bool:
        """True if the answer is complete. More data may follow that is not needed or only counts
        tokens."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """True if the answer is finished, and no content came with the finish or after it (see
        `wires.Parser`)."""
        return self.finished and not self._content_after_finish

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        """Process one event. An exception of `lenient.MISSHAPEN` means that the event has an
        unexpected shape."""
        raise NotImplementedError

    def _answer(self) -> Completion:
        """Return the finished answer. An exception of `lenient.MISSHAPEN` means that the answer
        has an unexpected shape."""
        raise NotImplementedError

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Parse some bytes and pass the resulting deltas to `on_delta`. Raises the error that
        the stream reports, or `BadResponse`."""
        for name, data in self._events.feed(chunk):
            self._event(name, data)
            if self._deltas:
                self._content_after_finish = self.finished
                deltas, self._deltas = self._deltas, []
                if on_delta is not None:
                    for delta in deltas:
                        on_delta(delta)

    def finish(self) -> Completion:
        """Return the answer. Raises `StreamInterrupted` if the stream ended before the answer
        was complete."""
        if not self.done:
            try:
                for name, data in self._events.rest():
                    self._event(name, data)
            except BadResponse:  # the last event was truncated
                if self.finished and not self.closed:
                    raise StreamInterrupted(
                        "The stream ended within a piece of the answer."
                    ) from None
        if not self.finished:
            raise StreamInterrupted("The stream ended before the answer was complete.")
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
                f"The stream's answer has an unexpected shape ({error!r})."
            ) from error

    def _event(self, name: bytes, data: bytes) -> None:
        if self.done or not data.strip():
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            value = decode(data)
        except ValueError:
            raise BadResponse(
                f"The stream has an event that is not JSON: {_excerpt(data)}"
            ) from None
        if not isinstance(value, dict):
            raise BadResponse(f"The stream has an event that is not an object: {_excerpt(data)}")
        event = cast("dict[str, Any]", value)
        try:
            if (
                event.get("error")
                or name == b"error"
                or event.get("object") == "error"
                or event.get("type") == "error"
            ):
                raise reported_error(event)
            self._process(name, event)
        except LLMError:
            raise
        except MISSHAPEN as error:
            raise BadResponse(
                f"The stream has an event of an unexpected shape: {_excerpt(data)}"
            ) from error


def _excerpt(data: bytes) -> str:
    return shorten(data[:5000].decode("utf-8", "replace"))
