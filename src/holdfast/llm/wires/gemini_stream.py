"""The Gemini wire, streamed in chunks of parts. The result equals that of a plain answer."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import StreamInterrupted
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires.failures import reported_error
from holdfast.llm.wires.gemini_answer import (
    METADATA,
    Candidate,
    block_reason,
    completion_of,
    name_from_wire,
)
from holdfast.llm.wires.lenient import clean, decode, read_answer, whole
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser

_json = msgspec.json.Encoder().encode

_MAX_STRAY_LINES = 1000  # more than any error has


_lists = msgspec.json.Decoder(list[Any])


def parse_chunks(data: bytes) -> Completion:
    """Parse a stream without `alt=sse`, which is a JSON array of all chunks. Raises the same errors
    as `gemini_answer.parse`."""
    return read_answer(data, _lists, _read_chunks, "a Gemini response")


def _read_chunks(chunks: list[Any], data: bytes) -> Completion:
    parser = GeminiStream()
    parser.feed(b"".join([b"data: %b\n\n" % _json(clean(chunk)) for chunk in chunks]))
    return parser.finish()


class GeminiStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when a `finishReason` has arrived. There is no end mark, and some
    models send STOP in every chunk, so content after it belongs to the answer. Pieces of text
    are joined, but never with one that has a signature.
    """

    __slots__ = (
        "_call_count",
        "_feedback",
        "_finish_reason",
        "_id",
        "_message",
        "_metadata",
        "_model",
        "_parts",
        "_pieces",
        "_reader",
        "_thought",
        "_usage",
    )

    def __init__(self) -> None:
        super().__init__()
        self._events = self._reader = _Reader()
        self._parts: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # pieces of the current text part
        self._thought = False  # True if the current text part is a thought
        self._call_count = 0  # number of calls so far
        self._metadata: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._finish_reason: Any = None
        self._message: Any = ""
        self._feedback: Any = None
        self._id: Any = ""
        self._model: Any = ""

    @property
    def finished(self) -> bool:
        """True if the answer is complete or the prompt was blocked."""
        return self._finish_reason is not None or self._feedback is not None

    def finish(self) -> Completion:
        """Return the answer. A failing stream may end in an error as bare JSON, and that error
        is raised."""
        try:
            return super().finish()
        except StreamInterrupted:
            error = self._reader.error()
            if error is None:
                raise
        raise reported_error(error)

    def _answer(self) -> Completion:
        self._close_text()
        content: dict[str, Any] = {"parts": self._parts, "role": "model"}
        metadata = [
            _raw(self._metadata[key]) if key in self._metadata else NO_NATIVE for key in METADATA
        ]
        candidate = Candidate(_raw(content), self._finish_reason, self._message, *metadata)
        return completion_of(candidate, self._usage, self._id, self._model, self._feedback)

    def _event(self, name: bytes, data: bytes) -> None:
        if data[:1] == b"[" and data.strip() != b"[DONE]":
            # An error may come as an array, as it does for a failed request.
            try:
                items: Any = clean(decode(data))
            except (ValueError, RecursionError):  # `clean` raises RecursionError
                items = None
            if isinstance(items, list):
                for item in cast("list[Any]", items):
                    super()._event(name, _json(item))
                return
        super()._event(name, data)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        usage = event.get("usageMetadata")
        if usage:
            # Keep the last count of each kind, because intermediate chunks leave some out.
            self._usage.update(usage)
        if event.get("modelVersion"):
            self._model = event["modelVersion"]
        if event.get("responseId"):
            self._id = event["responseId"]
        if block_reason(event.get("promptFeedback")):
            self._feedback = event["promptFeedback"]
        for candidate in event.get("candidates") or ():
            if candidate.get("index"):
                # Another alternative (candidateCount > 1). The first one is the answer.
                continue
            content = candidate.get("content")
            if content:
                for part in content.get("parts") or ():
                    self._part(part)
            for key in METADATA:
                if candidate.get(key):
                    self._metadata[key] = _merge_metadata(self._metadata.get(key), candidate[key])
            reason = candidate.get("finishReason")
            if (
                reason
                and reason != "FINISH_REASON_UNSPECIFIED"
                and self._finish_reason in (None, "STOP")
            ):
                self._finish_reason = reason
            if candidate.get("finishMessage"):
                self._message = candidate["finishMessage"]

    def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        thought = bool(part.get("thought"))
        if text:
            self._deltas.append(Delta("reasoning" if thought else "text", whole(text)))
        if text is not None and len(part) == 1 + ("thought" in part):
            if text:
                if thought is not self._thought:
                    self._close_text()
                    self._thought = thought
                self._pieces.append(text)
            return
        self._close_text()
        self._parts.append(part)
        called = part.get("functionCall")
        if called is not None:
            name = name_from_wire(called.get("name") or "")
            self._deltas.append(
                Delta(
                    "tool", _json(clean(called.get("args") or {})).decode(), self._call_count, name
                )
            )
            self._call_count += 1

    def _close_text(self) -> None:
        """Complete the text part that is still arriving."""
        if self._pieces:
            text = {"text": whole("".join(self._pieces))}
            self._parts.append({**text, "thought": True} if self._thought else text)
            self._pieces = []


class _Reader(EventReader):
    """An event reader that also keeps lines outside of any event. Some servers end a failing
    stream with the error as bare JSON."""

    __slots__ = ("_stray",)

    def __init__(self) -> None:
        super().__init__()
        self._stray: list[bytes] = []

    def error(self) -> Any:
        """Return the error object that the kept lines form, or None."""
        try:
            value: Any = decode(b"\n".join(self._stray)) if self._stray else None
        except (ValueError, RecursionError):
            return None
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        return cast("Any", value) if isinstance(value, dict) and "error" in value else None

    def _read_line(self, line: bytes) -> None:
        if line[:1] in b'{[ "]}' and len(self._stray) < _MAX_STRAY_LINES:
            self._stray.append(line)
        super()._read_line(line)


def _raw(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(_json(value))
    except UnicodeEncodeError:
        return msgspec.Raw(_json(clean(value)))


def _merge_metadata(old: Any, new: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata merged with that of another chunk, key by key. New list items are
    appended, because each chunk cites its own sources."""
    merged: dict[str, Any] = dict(old or {})
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, list) and isinstance(value, list):
            items = cast("list[Any]", value)
            merged[key] = [*before, *[item for item in items if item not in before]]
        else:
            merged[key] = value
    return merged
