"""The reading of Gemini's streams: chunks, which are parts of one answer, put together."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires import answers, gemini_plain
from holdfast.llm.wires.failures import reported_error
from holdfast.llm.wires.gemini_answers import block_reason, read_answer
from holdfast.llm.wires.gemini_messages import name_from_wire
from holdfast.llm.wires.lenient_json import clean_texts, decode, encode, join_surrogates
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser

_json = msgspec.json.Encoder().encode
_chunk_lists = msgspec.json.Decoder(list[Any])

_MAX_STRAY_LINES = 100_000  # more than any answer has that comes as one JSON document
_READ_KEYS = {"candidates", "usageMetadata", "promptFeedback", "error"}
_CONTENT_KEYS = {"content", "index", "finishReason"}
_VALUES = {"stringValue", "numberValue", "boolValue", "nullValue"}
# A step of a JSON path (RFC 9535): `.name`, `[0]`, `['name']` or `["name"]`.
_STEP = re.compile(
    r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""", re.DOTALL
)


def read_chunks(data: bytes) -> Completion:
    """Return the completion of a stream that came as a JSON array of all its chunks."""
    return answers.read_answer(data, _chunk_lists, _read_chunks, "a Gemini response")


def _read_chunks(chunks: list[Any], data: bytes) -> Completion:
    parser = GeminiStream()
    parser.feed(_as_events(chunks))
    return parser.finish()


def _as_events(chunks: list[Any]) -> bytes:
    return b"".join([b"data: %b\n\n" % encode(chunk) for chunk in chunks])


class GeminiStream(StreamParser):
    """A parser of one streamed answer, which it puts together as a plain one and then reads.

    An answer is complete when a `finishReason` has arrived. There is no end mark, and some
    models send STOP in every chunk, so content after it belongs to the answer. Pieces of text
    are joined, but never with one that has a signature.
    """

    _piece_decoder = gemini_plain.events

    def __init__(self) -> None:
        self._reader = _StrayLineReader()
        super().__init__(self._reader)
        self._response: dict[str, Any] = {}  # the answer in the API's form, without its candidate
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # pieces of the current text part
        self._is_thought = False  # True if the current text part is a thought
        self._call_count = 0  # number of calls so far
        self._open_call: _OpenCall | None = None
        self._usage: dict[str, Any] = {}

    def finish(self) -> Completion:
        """Return the answer. An answer as plain JSON instead of events is read too, like an error
        that ends a failing stream as bare JSON."""
        try:
            return super().finish()
        except errors.StreamInterrupted:
            document = self._reader.document()
            if not document:
                raise
        for item in document:
            if "error" in item:
                raise reported_error(item)
        self.feed(_as_events(document), self._on_delta)
        return super().finish()

    def _answer(self) -> Completion:
        self._close_text()
        if self._open_call is not None:
            if self._candidate.get("finishReason") in (None, "STOP"):
                raise errors.StreamInterrupted("The stream ended within a function call.")
            self._open_call.cut()
        content = {"parts": self._parts, "role": "model"}
        candidate = {**self._candidate, "content": content}
        answer = {**self._response, "candidates": [candidate], "usageMetadata": self._usage}
        return read_answer(encode(answer))

    def _event(self, name: bytes, data: bytes) -> None:
        if data[:1] == b"[" and data.strip() != b"[DONE]":
            # An error may come as an array, as it does for a failed request.
            try:
                items: Any = clean_texts(decode(data))
            except (ValueError, RecursionError):  # `clean` raises RecursionError
                items = None
            if isinstance(items, list):
                for item in cast("list[Any]", items):
                    super()._event(name, _json(item))
                return
        super()._event(name, data)

    def _add_piece(self, event: gemini_plain.GeminiEvent) -> Delta | None:
        candidate = event.candidates[0]
        piece = candidate.content.parts[0] if candidate.content.parts else None
        if piece is None or not piece.text or candidate.finish_reason:
            return None
        if piece.thought is not self._is_thought:
            return None
        if event.usage_metadata:
            self._usage.update(event.usage_metadata)
        if event.model_version:
            self._response["modelVersion"] = event.model_version
        if event.response_id:
            self._response["responseId"] = event.response_id
        if event.create_time:
            self._response["createTime"] = event.create_time
        self._pieces.append(piece.text)
        return Delta("reasoning" if piece.thought else "text", piece.text)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        usage = event.get("usageMetadata")
        if usage:
            # Keep the last count of each kind, because intermediate chunks leave some out.
            self._usage.update(usage)
        feedback = event.get("promptFeedback")
        if feedback:
            self._response["promptFeedback"] = feedback
            self.finished = self.finished or bool(block_reason(feedback))
        for key, value in event.items():
            if value and key not in _READ_KEYS:
                self._response[key] = value
        for candidate in event.get("candidates") or ():
            if not candidate.get("index"):  # others are alternatives (candidateCount > 1)
                self._read_candidate(candidate)

    def _read_candidate(self, candidate: dict[str, Any]) -> None:
        content: Any = candidate.get("content") or {}
        for part in content.get("parts") or ():
            self._part(part)
        ours = self._candidate
        for key, value in candidate.items():
            if key in _CONTENT_KEYS or value in (None, "", {}, []):
                continue
            merge = _MERGED.get(key)
            if merge is not None and isinstance(value, dict):
                value = merge(answers.as_dict(ours.get(key)), cast("dict[str, Any]", value))
            ours[key] = value
        reason = candidate.get("finishReason")
        if reason and reason != "FINISH_REASON_UNSPECIFIED":
            if ours.get("finishReason") in (None, "STOP"):
                ours["finishReason"] = reason
            self.finished = True

    def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        thought = bool(part.get("thought"))
        if text:
            self._emit("reasoning" if thought else "text", text)
        if text is not None and len(part) == 1 + ("thought" in part):
            if text:
                if thought is not self._is_thought:
                    self._close_text()
                    self._is_thought = thought
                self._pieces.append(text)
            return
        self._close_text()
        function_call = part.get("functionCall")
        if function_call is None:
            self._parts.append(part)
        else:
            self._call(part, function_call)

    def _call(self, part: dict[str, Any], function_call: dict[str, Any]) -> None:
        """Add a call, or a piece of a call with streamed arguments. The first piece has the name;
        the last one lacks `willContinue`."""
        open_call = self._open_call
        if open_call is None or function_call.get("name"):
            self._close_call()
            if not (function_call.get("partialArgs") or function_call.get("willContinue")):
                self._parts.append(part)
                self._emit_call(function_call.get("name"), function_call.get("args") or {})
                return
            open_call = self._open_call = _OpenCall(part, function_call)
            self._parts.append(open_call.part)
            name = name_from_wire(function_call.get("name") or "")
            self._deltas.append(Delta("tool", "", self._call_count, name))
        else:
            open_call.add(part, function_call)
        if not function_call.get("willContinue"):
            self._close_call()

    def _close_call(self) -> None:
        if self._open_call is not None:
            self._emit_call("", self._open_call.function_call["args"])
            self._open_call = None

    def _emit_call(self, name: Any, arguments: Any) -> None:
        text = _json(clean_texts(arguments)).decode()
        delta = Delta("tool", text, self._call_count, name_from_wire(name or ""))
        self._deltas.append(delta)
        self._call_count += 1

    def _close_text(self) -> None:
        if self._pieces:
            text = {"text": join_surrogates("".join(self._pieces))}
            self._parts.append({**text, "thought": True} if self._is_thought else text)
            self._pieces = []


class _OpenCall:
    """A call whose arguments arrive in pieces, each with the JSON path of a value (Vertex AI with
    `streamFunctionCallArguments`). Pieces of a string are joined."""

    def __init__(self, part: dict[str, Any], function_call: dict[str, Any]) -> None:
        self.function_call: dict[str, Any] = {"args": {}}
        self.part: dict[str, Any] = {"functionCall": self.function_call}
        self._unfinished: set[str] = set()  # paths of strings that continue
        self.add(part, function_call)

    def add(self, part: dict[str, Any], function_call: dict[str, Any]) -> None:
        self.part.update((key, part[key]) for key in part if key != "functionCall")
        for key in function_call.keys() - {"args", "partialArgs", "willContinue"}:
            self.function_call[key] = function_call[key]
        self.function_call["args"].update(function_call.get("args") or {})
        for piece in function_call.get("partialArgs") or ():
            self._add_value(piece)

    def _add_value(self, piece: dict[str, Any]) -> None:
        path = piece["jsonPath"]
        keys = [key for key in piece if key in _VALUES]
        if keys:
            value = None if keys[0] == "nullValue" else piece[keys[0]]
            self._set(path, value, path in self._unfinished)
        if piece.get("willContinue"):
            self._unfinished.add(path)
        else:
            self._unfinished.discard(path)

    def _set(self, path: str, value: Any, append: bool) -> None:
        steps = _steps(path)
        place: Any = self.function_call["args"]
        for step, following in pairwise(steps):
            inner = _value_at(place, step, path)
            if inner is None:
                inner = place[step] = cast("Any", [] if type(following) is int else {})
            place = inner
        before = _value_at(place, steps[-1], path)
        joins = append and isinstance(before, str) and isinstance(value, str)
        place[steps[-1]] = before + value if joins else value

    def cut(self) -> None:
        """Leave the arguments as invalid JSON text, because the rest of them is missing."""
        self.function_call["args"] = encode(self.function_call["args"])[:-1].decode()


def _value_at(place: Any, step: str | int, path: str) -> Any:
    """Return the value of a step, or None. A list grows by the step after its last."""
    if isinstance(step, str) and isinstance(place, dict):
        return cast("dict[str, Any]", place).get(step)
    if isinstance(step, int) and isinstance(place, list):
        values = cast("list[Any]", place)
        if step == len(values):
            values.append(None)
        if step < len(values):
            return values[step]
    raise answers.bad_part("a piece of arguments that does not fit the others", path)


def _steps(path: str) -> list[str | int]:
    """Return the names and indexes of a JSON path. Raises `BadResponse` for any other."""
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            break
        name, index, *quoted = match.groups()
        unquoted = re.sub(r"\\(.)", r"\1", quoted[0] or quoted[1] or "", flags=re.DOTALL)
        steps.append(int(index) if index else name or unquoted)
        at = match.end()
    if path[:1] != "$" or at != len(path) or not steps:
        raise answers.bad_part("a piece of arguments with an invalid JSON path", path)
    return steps


class _StrayLineReader(EventReader):
    """An event reader that also keeps lines outside of any event. Some servers end a failing
    stream with the error as bare JSON, and some answer with an array of all chunks."""

    def __init__(self) -> None:
        super().__init__()
        self._stray: list[bytes] = []

    def document(self) -> list[dict[str, Any]]:
        """Return the objects that the kept lines form, and forget the lines."""
        lines, self._stray = self._stray, []
        try:
            value: Any = decode(b"\n".join(lines)) if lines else None
        except (ValueError, RecursionError):
            return []
        items = cast("list[Any]", value if isinstance(value, list) else [value])
        return items if all(isinstance(item, dict) for item in items) else []

    def _read_line(self, line: bytes) -> None:
        if line[:1] in b'{[ "]},' and len(self._stray) < _MAX_STRAY_LINES:
            self._stray.append(line)
        super()._read_line(line)


def _merge_metadata(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge the metadata of another chunk. Lists grow, because each chunk names its own sources.
    The sources of a support are found again in the longer list."""
    merged = dict(old)
    if isinstance(new.get("groundingChunks"), list):
        sources = list(answers.as_list(merged.get("groundingChunks")))
        places: list[int] = []
        for source in answers.as_list(new["groundingChunks"]):
            if source not in sources:
                sources.append(source)
            places.append(sources.index(source))
        supports = answers.as_list(new.get("groundingSupports"))
        moved = [_move_support(answers.as_dict(support), places) for support in supports]
        new = {**new, "groundingChunks": sources, "groundingSupports": moved}
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(before, list) and isinstance(value, list):
            items = cast("list[Any]", value)
            merged[key] = [*before, *[item for item in items if item not in before]]
        else:
            merged[key] = value
    return merged


def _move_support(support: dict[str, Any], places: list[int]) -> dict[str, Any]:
    indices = answers.as_list(support.get("groundingChunkIndices"))
    valid_indexes = range(len(places))
    moved = [places[one] if type(one) is int and one in valid_indexes else one for one in indices]
    return {**support, "groundingChunkIndices": moved}


def _merge_logprobs(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Append the tokens of another chunk."""
    merged = dict(old)
    for key, value in new.items():
        before: Any = merged.get(key)
        lists = isinstance(before, list) and isinstance(value, list)
        merged[key] = [*before, *value] if lists else value
    return merged


_MERGED = {
    "groundingMetadata": _merge_metadata,
    "citationMetadata": _merge_metadata,
    "urlContextMetadata": _merge_metadata,
    "logprobsResult": _merge_logprobs,
}
