"""The Messages wire, streamed in pieces of content blocks. The result equals that of a plain
answer."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires.anthropic_messages_answer import GAP, completion_of
from holdfast.llm.wires.lenient import clean, whole
from holdfast.llm.wires.streams import StreamParser

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()


class MessagesStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `stop_reason` has arrived in `message_delta`. `message_stop`
    says that nothing more follows, but does not by itself complete the answer.
    """

    __slots__ = (
        "_blocks",
        "_calls",
        "_details",
        "_gap_pending",
        "_has_text",
        "_id",
        "_model",
        "_open",
        "_stop",
        "_thinking_block",
        "_usage",
    )

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[_Block] = []
        # Server's index -> the last block that began at it.
        self._open: dict[int, _Block] = {}
        self._calls = 0
        self._stop: Any = None
        self._details: Any = None
        self._usage: dict[str, Any] = {}
        self._id: Any = ""
        self._model: Any = ""
        # True after some text, and True if another block followed that text.
        self._has_text = False
        self._gap_pending = False
        self._thinking_block: _Block | None = None  # the last block with thoughts

    @property
    def finished(self) -> bool:
        """True if the answer is complete."""
        return self._stop is not None

    def _answer(self) -> Completion:
        blocks = [block.whole() for block in self._blocks]
        return completion_of(blocks, self._stop, self._details, self._usage, self._id, self._model)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            self._delta(self._open[event["index"]], event["delta"])
        elif kind == "content_block_start":
            self._begin_block(event["index"], clean(event["content_block"]))
        elif kind == "message_delta":
            delta: dict[str, Any] = clean(event.get("delta") or {})
            self._stop = delta.get("stop_reason") or self._stop
            self._details = delta.get("stop_details") or self._details
            _merge_counts(self._usage, event.get("usage"))
        elif kind == "message_start":
            if self._blocks:
                raise BadResponse("The stream has a second answer within the first.")
            message: dict[str, Any] = clean(event["message"])
            self._id = message.get("id")
            self._model = message.get("model")
            _merge_counts(self._usage, message.get("usage"))
        elif kind == "message_stop":
            self.done = True

    def _begin_block(self, index: int, start: dict[str, Any]) -> None:
        block = _Block(start)
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
            arguments = start.get("input")
            self._deltas.append(
                Delta(
                    "tool",
                    _json(arguments).decode() if arguments else "",
                    block.number,
                    str(start.get("name") or ""),
                )
            )

    def _delta(self, block: _Block, delta: dict[str, Any]) -> None:
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
                    self._deltas.append(Delta("tool", whole(piece), block.number))
            case "thinking_delta":
                text = delta["thinking"]
                block.add("thinking", text)
                if text and block.kind == "thinking":
                    self._think(block, text)
            case "signature_delta":
                block.start["signature"] = delta["signature"]
            case "citations_delta":
                block.start["citations"] = [
                    *(block.start.get("citations") or ()),
                    delta["citation"],
                ]
            case _:  # compaction_delta, and any future kind
                for key, value in delta.items():
                    if key != "type":
                        block.start[key] = _join(block.start.get(key), value)

    def _text(self, text: str) -> None:
        self._deltas.append(
            Delta("text", whole(GAP + text if self._gap_pending and self._has_text else text))
        )
        self._has_text = True
        self._gap_pending = False

    def _think(self, block: _Block, text: str) -> None:
        new = self._thinking_block is not None and self._thinking_block is not block
        self._deltas.append(Delta("reasoning", whole(GAP + text if new else text)))
        self._thinking_block = block


class _Block:
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

    def whole(self) -> dict[str, Any]:
        """Return the block in the form of a plain answer. Arguments that are not an object stay
        text, so that `read_call` can give the reason."""
        block = dict(self.start)
        for key, pieces in self.pieces.items():
            text = "".join(pieces)
            if key != "input":
                block[key] = whole((block.get(key) or "") + text)
            elif text.strip():
                block["input"] = _object(whole(text), self.number is not None)
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
            usage[key] = inner = (
                dict(cast("dict[str, Any]", inner)) if isinstance(inner, dict) else {}
            )
            _merge_counts(inner, cast("dict[str, Any]", value))
        elif value:
            usage[key] = value
