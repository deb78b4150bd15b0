"""Answers of the Messages wire, plain and streamed. Both end in `_completion`, so their results
cannot differ."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.content import Usage
from holdfast.errors import BadResponse, ContentFiltered
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires.answers import (
    GAP,
    CompletionBuilder,
    as_dict,
    count,
    has_other_keys,
    read_answer,
)
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, decode, encode, join_surrogates
from holdfast.llm.wires.streams import StreamParser

NAME = "anthropic_messages"

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()
_blocks = msgspec.json.Decoder(list[dict[str, Any]])

_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "pause",
}
_TEXT_KEYS = {"type", "text"}
_CALL_KEYS = {"type", "id", "name", "input", "caller"}


class _Answer(msgspec.Struct):
    type: Any = ""
    id: Any = ""
    model: Any = ""
    content: msgspec.Raw = NO_NATIVE
    stop_reason: Any = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """Parse a plain answer. Raises the error that the answer reports, `ContentFiltered` for a
    refusal without content, or `BadResponse`."""
    return read_answer(data, _answers, _read, "a message")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error or answer.type == "error":
        raise reported_error(decode(data))
    blocks = _blocks.decode(answer.content)  # a missing content is empty and so fails to decode
    return _completion(answer, blocks, answer.content)


def _completion(
    answer: _Answer, blocks: list[dict[str, Any]], raw: msgspec.Raw | None = None
) -> Completion:
    """Return a completion from a message's blocks, plain or assembled from a stream. `raw` is the
    JSON of `blocks`, if available."""
    builder = CompletionBuilder()
    texts, thoughts = builder.texts, builder.thoughts
    needs_native = False
    gap = False
    for block in blocks:
        kind: Any = block["type"]
        if kind == "text":
            text: str = block["text"]
            if text:
                texts += (GAP, text) if gap and texts else (text,)
                gap = False
                needs_native = (
                    needs_native or bool(builder.calls) or has_other_keys(block, _TEXT_KEYS)
                )
            continue
        gap = True
        if kind == "tool_use":
            builder.add_call(str(block.get("name") or ""), block.get("input"), block.get("id"))
            needs_native = (
                needs_native
                or not is_default_caller(block.get("caller"))
                or has_other_keys(block, _CALL_KEYS)
            )
            continue
        needs_native = True
        if kind == "thinking" and block["thinking"]:
            thoughts += (GAP, block["thinking"]) if thoughts else (block["thinking"],)
    builder.needs_native = needs_native
    reason = _STOP_REASONS.get(answer.stop_reason) or str(answer.stop_reason or "stop")
    if reason == "content_filter" and not texts and not builder.calls:
        details = as_dict(answer.stop_details)
        parts = [str(details[key]) for key in ("category", "explanation") if details.get(key)]
        why = f" ({shorten(': '.join(parts))})" if parts else ""
        raise ContentFiltered(f"The model refused to answer{why}.", code="refusal")
    native = NO_NATIVE
    if needs_native:
        native = msgspec.Raw(encode(blocks)) if raw is None else raw.copy()
    return builder.build(NAME, _usage(answer.usage), reason, answer, native)


def is_default_caller(caller: Any) -> bool:
    """Return True if a block's `caller` has the default meaning: the model itself."""
    return not caller or caller == {"type": "direct"}


def _usage(counts: Any) -> Usage:
    """Return token counts. The API's `input_tokens` leave out tokens read from or written to the
    cache."""
    usage = as_dict(counts)
    read = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    reasoning = count(usage.get("output_tokens_details"), "thinking_tokens")
    sent, received = count(usage, "input_tokens"), count(usage, "output_tokens")
    return Usage(sent + read + written, received, read, written, reasoning)


# --- streams ---


class MessagesStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `stop_reason` has arrived in `message_delta`. `message_stop`
    says that nothing more follows, but does not by itself complete the answer.
    """

    __slots__ = (
        *("_about", "_blocks", "_calls", "_gap_pending", "_has_text"),
        *("_open", "_thinking_block", "_usage"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._about = _Answer()
        self._blocks: list[_StreamedBlock] = []
        # Server's index -> the last block that began at it.
        self._open: dict[int, _StreamedBlock] = {}
        self._calls = 0
        self._usage: dict[str, Any] = {}
        # True after some text, and True if another block followed that text.
        self._has_text = False
        self._gap_pending = False
        self._thinking_block: _StreamedBlock | None = None  # the last block with thoughts

    def _answer(self) -> Completion:
        self._about.usage = self._usage
        return _completion(self._about, [block.finish() for block in self._blocks])

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type")
        about = self._about
        if kind == "content_block_delta":
            self._delta(self._open[event["index"]], event["delta"])
        elif kind == "content_block_start":
            self._begin_block(event["index"], clean_texts(event["content_block"]))
        elif kind == "message_delta":
            delta: dict[str, Any] = clean_texts(event.get("delta") or {})
            about.stop_reason = delta.get("stop_reason") or about.stop_reason
            about.stop_details = delta.get("stop_details") or about.stop_details
            self.finished = about.stop_reason is not None
            _merge_counts(self._usage, event.get("usage"))
        elif kind == "message_start":
            if self._blocks:
                raise BadResponse("The stream has a second answer within the first.")
            message: dict[str, Any] = clean_texts(event["message"])
            about.id, about.model = message.get("id"), message.get("model")
            _merge_counts(self._usage, message.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def _begin_block(self, index: int, start: dict[str, Any]) -> None:
        block = _StreamedBlock(start)
        self._blocks.append(block)
        self._open[index] = block
        kind: Any = start["type"]
        if kind == "text":
            if start.get("text"):
                self._text(start["text"])
            return
        self._gap_pending = True
        if kind == "thinking" and start.get("thinking"):
            self._think(block, start["thinking"])
        elif kind == "tool_use":
            block.number = self._calls
            self._calls += 1
            arguments = _json(start["input"]).decode() if start.get("input") else ""
            name = str(start.get("name") or "")
            self._deltas.append(Delta("tool", arguments, block.number, name))

    def _delta(self, block: _StreamedBlock, delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                text = delta["text"]
                block.add("text", text)
                if text and block.kind == "text":
                    self._text(text)
            case "input_json_delta":
                piece = delta["partial_json"]
                block.add("input", piece)
                if piece and block.number is not None:
                    self._deltas.append(Delta("tool", join_surrogates(piece), block.number))
            case "thinking_delta":
                text = delta["thinking"]
                block.add("thinking", text)
                if text and block.kind == "thinking":
                    self._think(block, text)
            case "signature_delta":
                block.start["signature"] = delta["signature"]
            case "citations_delta":
                citations = block.start.get("citations") or ()
                block.start["citations"] = [*citations, delta["citation"]]
            case _:  # compaction_delta, and any future kind
                for key, value in delta.items():
                    if key != "type":
                        block.start[key] = _join(block.start.get(key), value)

    def _text(self, text: str) -> None:
        gap = GAP if self._gap_pending and self._has_text else ""
        self._deltas.append(Delta("text", join_surrogates(gap + text)))
        self._has_text = True
        self._gap_pending = False

    def _think(self, block: _StreamedBlock, text: str) -> None:
        new = self._thinking_block is not None and self._thinking_block is not block
        self._deltas.append(Delta("reasoning", join_surrogates(GAP + text if new else text)))
        self._thinking_block = block


class _StreamedBlock:
    """A content block that is still arriving: its first form, and the pieces of its long texts."""

    __slots__ = ("kind", "number", "pieces", "start")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = dict(start)
        self.kind = start["type"]
        self.pieces: dict[str, list[str]] = {}
        self.number: int | None = None  # position among the calls, if the block is a call

    def add(self, key: str, piece: str) -> None:
        if not isinstance(piece, str):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
            raise TypeError(f"a piece of {key} that is not text")
        pieces = self.pieces.get(key)
        if pieces is None:
            self.pieces[key] = [piece]
        else:
            pieces.append(piece)

    def finish(self) -> dict[str, Any]:
        """Return the block in the form of a plain answer. Arguments that are not an object stay
        text, so that `read_call` can give the reason."""
        block = dict(self.start)
        for key, pieces in self.pieces.items():
            text = "".join(pieces)
            if key != "input":
                block[key] = join_surrogates((block.get(key) or "") + text)
            elif text.strip():
                block["input"] = _object(join_surrogates(text), self.number is not None)
        return block


def _object(text: str, call: bool) -> Any:
    try:
        value: Any = _decoder.decode(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return text if call else {"invalid_json": text}


def _join(old: Any, new: Any) -> Any:
    """Return the value of a block's key after a piece of an unknown kind. Strings and lists are
    joined; other values are replaced."""
    if new is None:
        return old
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return [*cast("list[Any]", old), *cast("list[Any]", new)]
    return new


def _merge_counts(usage: dict[str, Any], new: dict[str, Any] | None) -> None:
    """Merge later counts into earlier ones, except for nulls and zeros, because not every event
    repeats the cached counts."""
    for key, value in (new or {}).items():
        if isinstance(value, dict):
            inner: Any = usage.get(key)
            usage[key] = inner = dict(as_dict(inner))
            _merge_counts(inner, cast("dict[str, Any]", value))
        elif value:
            usage[key] = value
