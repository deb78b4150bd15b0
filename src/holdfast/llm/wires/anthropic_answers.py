"""Answers of Anthropic's Messages wire, plain and streamed. Both end in `_completion`, so their
results cannot differ."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from holdfast.errors import BadResponse, ContentFiltered
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires import anthropic_details as details
from holdfast.llm.wires import anthropic_plain
from holdfast.llm.wires.answers import GAP, CompletionBuilder, as_dict, read_answer
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, decode, join_surrogates
from holdfast.llm.wires.plain import as_json
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
    "compaction": "pause",  # the history was summarised, and the answer is still to come
}
_TEXT_KEYS = {"type", "text"}
_CALL_KEYS = {"type", "id", "name", "input", "caller"}


class _RawMessage(msgspec.Struct):
    content: Raw


_messages = msgspec.json.Decoder(dict[str, Any])
_raw_messages = msgspec.json.Decoder(_RawMessage)


def parse(data: bytes) -> Completion:
    return anthropic_plain.read(data, NAME) or parse_any(data)


def parse_any(data: bytes) -> Completion:
    """Return the completion of an answer with any content, as `parse` does."""
    return read_answer(data, _messages, _read, "a message")


def _read(message: dict[str, Any], data: bytes) -> Completion:
    if message.get("error") or message.get("type") == "error":
        raise reported_error(decode(data))
    blocks: Any = message.pop("content", None)
    if not isinstance(blocks, list) or not all(type(one) is dict for one in cast(Any, blocks)):
        raise TypeError("its content is not a list of blocks")
    return _completion(message, cast("list[dict[str, Any]]", blocks), data)


class _About(NamedTuple):
    model: Any
    id: Any


def _completion(
    message: dict[str, Any], blocks: list[dict[str, Any]], data: bytes = b""
) -> Completion:
    """Return a completion from a message and its blocks, plain or assembled from a stream. `data`
    is the plain answer's JSON."""
    builder = CompletionBuilder()
    thoughts = builder.thoughts
    groups: list[list[str]] = []  # texts of neighbouring blocks
    length, gap = 0, True
    for block in blocks:
        kind: Any = block["type"]
        if kind == "text":
            text: str = block["text"]
            if text:
                if gap:
                    length += len(GAP) if groups else 0
                    groups.append([])
                gap = False
                groups[-1].append(text)
                builder.needs_native |= bool(builder.calls)
                builder.covers(block, _TEXT_KEYS)
                details.add_citations(builder, block, length)
                length += len(text)
            continue
        gap = True
        if kind == "tool_use":
            builder.add_call(str(block.get("name") or ""), block.get("input"), block.get("id"))
            builder.needs_native |= not is_default_caller(block.get("caller"))
            builder.covers(block, _CALL_KEYS)
            continue
        builder.needs_native = True
        if kind == "thinking" and block["thinking"]:
            thoughts += (GAP, block["thinking"]) if thoughts else (block["thinking"],)
    texts = ["".join(group) for group in groups]
    builder.texts.append(GAP.join(texts))
    stop: Any = message.get("stop_reason")
    reason = _STOP_REASONS.get(stop) or str(stop or "stop")
    if reason == "content_filter":
        why = details.refusal(message)
        if not texts and not builder.calls:
            why = f" ({shorten(why)})" if why else ""
            raise ContentFiltered(f"The model refused to answer{why}.", code="refusal")
        builder.detail("refusal", why or "The model refused to answer.")
    details.add_parts(builder, texts)
    details.add_details(builder, message, blocks)
    about = _About(message.get("model"), message.get("id"))
    usage = details.usage(message.get("usage"))
    raw = _raw_messages.decode(data).content if data and builder.needs_native else None
    return builder.build(NAME, usage, reason, about, blocks, raw)


_START_KEYS = {"usage", "content"}  # the keys of the first event that are read on their own
_DELTA_KEYS = {"type", "delta", "usage"}  # those of a `message_delta`


class MessagesStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `stop_reason` has arrived in `message_delta`. `message_stop`
    says that nothing more follows, but does not by itself complete the answer.
    """

    _piece_decoder = anthropic_plain.events

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}  # the message without its blocks and its usage
        self._blocks: list[_StreamedBlock] = []
        self._open: dict[int, _StreamedBlock] = {}  # server's index -> last block begun at it
        self._calls = 0
        self._usage: dict[str, Any] = {}
        self._has_text = False
        self._gap_pending = False  # True if another block followed some text
        self._thinking_block: _StreamedBlock | None = None  # the last block with thoughts

    def _answer(self) -> Completion:
        message = {**self._message, "usage": clean_texts(self._usage)}
        blocks = [block.finish() for block in self._blocks]
        plain = anthropic_plain.read(as_json({**message, "content": blocks}), NAME)
        return plain or _completion(message, blocks)

    def _add_piece(self, event: anthropic_plain.MessagesEvent) -> Delta | None:
        piece, block = event.delta, self._open.get(event.index)
        if piece is None or block is None or event.type != "content_block_delta":
            return None
        if event.error or event.object == "error":
            return None
        if piece.text and piece.type == "text_delta" and block.kind == "text":
            if self._gap_pending:
                return None
            self._has_text = True
            block.pieces.setdefault("text", []).append(piece.text)
            return Delta("text", piece.text)
        if piece.partial_json and piece.type == "input_json_delta" and block.number is not None:
            block.pieces.setdefault("input", []).append(piece.partial_json)
            return Delta("tool", piece.partial_json, block.number)
        return None

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            self._delta(self._open[event["index"]], event["delta"])
        elif kind == "content_block_start":
            self._begin_block(event["index"], clean_texts(event["content_block"]))
        elif kind == "message_delta":
            self._about(event.get("delta"))
            self._about({key: event[key] for key in event if key not in _DELTA_KEYS})
            self.finished = self._message.get("stop_reason") is not None
            _merge_counts(self._usage, event.get("usage"))
        elif kind == "message_start":
            if self._blocks:
                raise BadResponse("The stream has a second answer within the first.")
            message: dict[str, Any] = event["message"]
            self._about({key: message[key] for key in message if key not in _START_KEYS})
            _merge_counts(self._usage, message.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def _about(self, fields: dict[str, Any] | None) -> None:
        """Merge fields of the message that have a value."""
        for key, value in clean_texts(fields or {}).items():
            if value is not None and value != "":
                self._message[key] = value

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
            self._emit("tool", arguments, block.number, str(start.get("name") or ""))

    def _delta(self, block: _StreamedBlock, delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                text = block.add("text", delta["text"])
                if text and block.kind == "text":
                    self._text(text)
            case "input_json_delta":
                piece = block.add("input", delta["partial_json"])
                if piece and block.number is not None:
                    self._emit("tool", piece, block.number)
            case "thinking_delta":
                text = block.add("thinking", delta["thinking"])
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
        self._emit("text", GAP + text if self._gap_pending and self._has_text else text)
        self._has_text = True
        self._gap_pending = False

    def _think(self, block: _StreamedBlock, text: str) -> None:
        new = self._thinking_block is not None and self._thinking_block is not block
        self._emit("reasoning", GAP + text if new else text)
        self._thinking_block = block


class _StreamedBlock:
    """A content block that is still arriving: its first form, and the pieces of its long texts."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = dict(start)
        self.kind = start["type"]
        self.pieces: dict[str, list[str]] = {}
        self.number: int | None = None  # position among the calls, if the block is a call

    def add(self, key: str, piece: str) -> str:
        if not isinstance(piece, str):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
            raise TypeError(f"a piece of {key} that is not text")
        self.pieces.setdefault(key, []).append(piece)
        return piece

    def finish(self) -> dict[str, Any]:
        """Return the block in the form of a plain answer."""
        block: dict[str, Any] = clean_texts(self.start)
        for key, pieces in self.pieces.items():
            text = "".join(pieces)
            if key != "input":
                block[key] = join_surrogates((block.get(key) or "") + text)
            elif text.strip():
                text = join_surrogates(text)
                try:
                    value: Any = _decoder.decode(text)
                except ValueError:
                    value = None
                if not isinstance(value, dict):  # a call's text gives `read_call` the reason
                    value = {"invalid_json": text} if self.number is None else text
                block["input"] = value
        return block


def _join(old: Any, new: Any) -> Any:
    """Join strings and lists of a streamed piece of an unknown kind; replace other values."""
    if new is None:
        return old
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return [*cast("list[Any]", old), *cast("list[Any]", new)]
    return new


def _merge_counts(usage: dict[str, Any], new: dict[str, Any] | None) -> None:
    """Merge later counts, which are totals and so replace earlier ones, zeros too. Not every event
    repeats all of them."""
    for key, value in as_dict(new).items():
        if isinstance(value, dict):
            usage[key] = inner = dict(as_dict(usage.get(key)))
            _merge_counts(inner, cast("dict[str, Any]", value))
        elif value is not None:
            usage[key] = value


def is_default_caller(caller: Any) -> bool:
    """Return True if the model itself called a tool, not code that it runs."""
    return not caller or caller == {"type": "direct"}
