"""Answers of the Chat Completions wire, plain and streamed. Both end in `_completion`, so their
results cannot differ."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires.answers import (
    CompletionBuilder,
    as_dict,
    bad_answer,
    has_other_keys,
    read_answer,
)
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient_json import clean_texts, join_surrogates
from holdfast.llm.wires.openai_common import read_usage
from holdfast.llm.wires.streams import StreamParser

NAME = "openai_chat"

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_STOP_REASONS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
    "sensitive": "content_filter",
}
# OpenRouter, DeepSeek, Zhipu and vLLM: the server broke off its answer.
_BROKEN_OFF = {"error", "insufficient_system_resource", "network_error", "abort"}
REASONING_KEYS = ("reasoning_content", "reasoning")
_MESSAGE_KEYS = {"role", "content", "tool_calls", "refusal"}
# Keys of an answer without calls that a completion's fields cover.
_TEXT_MESSAGE_KEYS = _MESSAGE_KEYS | set(REASONING_KEYS)
_CALL_KEYS = {"index", "id", "type", "function"}
_FUNCTION_KEYS = {"name", "arguments"}


class _Choice(msgspec.Struct):
    message: msgspec.Raw = NO_NATIVE
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    id: Any = ""
    model: Any = ""
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """Parse a plain answer. Raises the error that the answer reports, or `BadResponse` for
    anything else."""
    return read_answer(data, _answers, _read, "a chat completion")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    if not answer.choices:
        raise bad_answer("a chat completion: it has no choices", data)
    choice = answer.choices[0]
    message: Any = _decoder.decode(choice.message)
    if not isinstance(message, dict):
        raise bad_answer("a chat completion: it has no message", data)
    fields = cast("dict[str, Any]", message)
    return _completion(answer, fields, choice.finish_reason, choice.message)


def _completion(
    answer: _Answer, message: dict[str, Any], finish_reason: Any, raw: msgspec.Raw | None = None
) -> Completion:
    """Return a completion from a message, plain or assembled from a stream. `raw` is the JSON of
    `message`, if available."""
    builder = CompletionBuilder()
    text, reasoning = _text_and_reasoning(message)
    builder.texts.append(text)
    builder.thoughts.append(reasoning)
    entries: list[Any] = message.get("tool_calls") or []
    if not isinstance(entries, list):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
        raise BadResponse(
            f"The answer's tool calls are not a list: {shorten(_json(entries).decode())}"
        )
    needs_native = isinstance(message.get("content"), list) or has_other_keys(
        message, _MESSAGE_KEYS if entries else _TEXT_MESSAGE_KEYS
    )
    for entry in entries:
        item = as_dict(entry)
        function: Any = item.get("function")
        if not isinstance(function, dict):
            raise BadResponse(
                f"The answer has an invalid tool call: {shorten(_json(entry).decode())}"
            )
        called = cast("dict[str, Any]", function)
        builder.add_call(
            str(called.get("name") or ""), called.get("arguments"), item.get("id") or ""
        )
        needs_native = (
            needs_native
            or has_other_keys(item, _CALL_KEYS)
            or has_other_keys(called, _FUNCTION_KEYS)
        )
    builder.needs_native = needs_native
    word = str(finish_reason or "stop")
    if word in _BROKEN_OFF:
        raise ServerError(f"The provider broke off its answer (finish_reason {word!r}).")
    native = NO_NATIVE
    if needs_native:
        native = msgspec.Raw(_json(message)) if raw is None else raw.copy()
    usage = read_usage(answer.usage, "prompt", "completion")
    return builder.build(NAME, usage, _STOP_REASONS.get(word, word), answer, native)


def _text_and_reasoning(message: dict[str, Any]) -> tuple[str, str]:
    content: Any = message.get("content")
    reasoning = ""
    for key in REASONING_KEYS:
        if not reasoning and isinstance(message.get(key), str):
            reasoning = message[key]
    if isinstance(content, list):  # Mistral sends text and thinking as parts
        parts = cast("list[Any]", content)
        reasoning = reasoning or "".join([_texts(as_dict(part).get("thinking")) for part in parts])
        content = _texts(parts)
    refusal: Any = message.get("refusal")
    text = content if isinstance(content, str) else ""
    return text or (refusal if isinstance(refusal, str) else ""), reasoning


def _texts(parts: Any) -> str:
    found = [as_dict(part) for part in cast("list[Any]", parts if isinstance(parts, list) else [])]
    return "".join([str(part["text"]) for part in found if part.get("text")])


# --- streams ---


class ChatStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `finish_reason` has arrived; a chunk with the token counts may
    follow. `[DONE]` alone does not complete it, because proxies also write it after an interrupted
    stream. Nor is `[DONE]` required, because some servers never send it.
    """

    __slots__ = ("_about", "_calls", "_content", "_extra", "_finish", "_reasoning", "_refusal")

    def __init__(self) -> None:
        super().__init__()
        self._about = _Answer()
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: dict[str, list[str]] = {}  # server's key -> pieces
        self._calls: list[_StreamedCall] = []
        self._extra: dict[str, Any] = {}
        self._finish: Any = None

    def _answer(self) -> Completion:
        content = join_surrogates("".join(self._content)) or None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._refusal:
            message["refusal"] = join_surrogates("".join(self._refusal))
        for key, pieces in self._reasoning.items():
            message[key] = join_surrogates("".join(pieces))
        if self._calls:
            message["tool_calls"] = clean_texts([call.entry() for call in self._calls])
        message.update(clean_texts(self._extra))
        return _completion(self._about, message, self._finish)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        about = self._about
        about.id = event.get("id") or about.id
        about.model = event.get("model") or about.model
        about.usage = event.get("usage") or about.usage
        for choice in event.get("choices") or ():
            if choice.get("index"):  # another alternative (n > 1); the first is the answer
                continue
            delta = choice.get("delta") or choice.get("message")
            if delta:
                self._delta(delta)
            if choice.get("finish_reason"):
                self._finish = choice["finish_reason"]
                self.finished = True

    def _delta(self, delta: dict[str, Any]) -> None:
        has_reasoning = False
        for key, value in delta.items():
            if not value or key == "role":
                continue
            if key == "content":
                if isinstance(value, str):
                    self._content.append(value)
                    self._deltas.append(Delta("text", join_surrogates(value)))
                else:
                    self._parts(value)
            elif key in REASONING_KEYS and isinstance(value, str):
                self._reasoning.setdefault(key, []).append(value)
                if not has_reasoning:  # some servers send it under both keys
                    has_reasoning = True
                    self._deltas.append(Delta("reasoning", join_surrogates(value)))
            elif key == "tool_calls":
                for piece in value:
                    self._call_piece(piece)
            elif key == "refusal":
                self._refusal.append(value)
                self._deltas.append(Delta("text", join_surrogates(value)))
            else:
                merge(self._extra, key, value)

    def _parts(self, parts: Any) -> None:
        """Read content in parts, the form in which Mistral streams its thinking."""
        for part in cast("list[Any]", parts if isinstance(parts, list) else []):
            item = as_dict(part)
            thinking = "".join(str(piece.get("text", "")) for piece in item.get("thinking") or ())
            if thinking:
                self._delta({"reasoning": thinking})
            if item.get("text"):
                self._delta({"content": item["text"]})

    def _call_piece(self, piece: dict[str, Any]) -> None:
        """Add a piece of a tool call. The `index` identifies the call; without an index, a new
        id begins a new call."""
        index = piece.get("index")
        function: dict[str, Any] = piece.get("function") or {}
        id, name = piece.get("id") or "", function.get("name") or ""
        call = None
        for earlier in reversed(self._calls):
            if index is None or earlier.index == index:
                call = earlier
                break
        # A new id with a name begins a new call even at an old index, because Gemini's servers
        # number all calls of a batch 0. A new id alone does not: vLLM once invented one for every
        # piece.
        if call is None or (id and name and call.id and id != call.id):
            call = _StreamedCall(len(self._calls), index, id)
            self._calls.append(call)
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = _json(arguments).decode()
        first = call.add(id, name, arguments)
        if len(piece) > 2:  # more than index and function
            _merge_others(call.extra, piece, _CALL_KEYS)
        if len(function) > 1:
            _merge_others(call.function, function, _FUNCTION_KEYS)
        if arguments or first:
            self._deltas.append(Delta("tool", arguments, call.number, call.name if first else ""))


class _StreamedCall:
    """A tool call that is still arriving."""

    __slots__ = ("arguments", "extra", "function", "id", "index", "name", "number")

    def __init__(self, number: int, index: Any, id: str) -> None:
        self.number = number
        self.index = index
        self.id = id
        self.name = ""
        self.arguments: list[str] = []
        self.extra: dict[str, Any] = {}
        self.function: dict[str, Any] = {}

    def add(self, id: str, name: str, arguments: str) -> bool:
        """Add a piece. Return True if it was the first with a name."""
        first = bool(name) and not self.name
        self.id = self.id or id
        if first:
            self.name = name
        elif name and name != self.name and not self.arguments:
            # A name in pieces. Servers that repeat a name repeat it in full.
            self.name += name
        if arguments:
            self.arguments.append(arguments)
        return first

    def entry(self) -> dict[str, Any]:
        """Return the call in the form of a plain answer."""
        function = {"name": self.name, "arguments": "".join(self.arguments), **self.function}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


# Strings that each delta repeats in full. All others arrive in pieces.
_REPEATED_KEYS = {
    *("role", "id", "type", "format", "name"),
    *("signature", "encrypted_content", "thought_signature"),
}


def _merge_others(into: dict[str, Any], piece: dict[str, Any], known: set[str]) -> None:
    for key, value in piece.items():
        if value and key not in known:
            merge(into, key, value)


def merge(into: dict[str, Any], key: str, new: Any) -> None:
    """Add a piece to a key of a streamed object, in place: strings are joined, objects are
    merged, and lists are merged by `index`."""
    old = into.get(key)
    if type(old) is not type(new):
        if new is not None:
            into[key] = new
    elif isinstance(old, str) and key not in _REPEATED_KEYS:
        # Drop the second reference to the text; otherwise each piece copies all of it.
        into[key] = None
        old += new
        into[key] = old
    elif isinstance(old, dict):
        for name, value in cast("dict[str, Any]", new).items():
            merge(cast("dict[str, Any]", old), name, value)
    elif isinstance(old, list):
        items = cast("list[Any]", old)
        for value in cast("list[Any]", new):
            item = _continued_item(items, value)
            if item is None:
                items.append(value)
            else:
                for name, inner in value.items():
                    merge(item, name, inner)
    else:
        into[key] = new


def _continued_item(items: list[Any], value: Any) -> dict[str, Any] | None:
    """Return the item that a piece continues: the last with the same index and type. A piece
    without an index is an item of its own."""
    piece = as_dict(value)
    if "index" not in piece:
        return None
    for item in map(as_dict, reversed(items)):
        if item and item.get("index") == piece["index"] and item.get("type") == piece.get("type"):
            return item
    return None
