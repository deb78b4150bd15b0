"""The OpenAI Chat Completions wire, streamed. The result equals that of a plain answer."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires.lenient import clean, whole
from holdfast.llm.wires.openai_chat_answer import completion_of
from holdfast.llm.wires.streams import StreamParser

_encoder = msgspec.json.Encoder()

# Strings that each delta repeats in full. All others arrive in pieces.
_REPEATED_KEYS = {
    "role",
    "id",
    "type",
    "format",
    "name",
    "signature",
    "encrypted_content",
    "thought_signature",
}


class ChatStream(StreamParser):
    """A parser of one streamed answer.

    An answer is complete when its `finish_reason` has arrived. `[DONE]` alone does not complete
    it, because proxies also write it after an interrupted stream. Nor is `[DONE]` required,
    because some servers never send it.
    """

    __slots__ = (
        "_calls",
        "_content",
        "_extra",
        "_finish",
        "_id",
        "_model",
        "_reasoning",
        "_refusal",
        "_usage",
    )

    def __init__(self) -> None:
        super().__init__()
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: dict[str, list[str]] = {}  # server's key -> pieces
        self._calls: list[_Call] = []
        self._extra: dict[str, Any] = {}
        self._finish: Any = None
        self._usage: Any = None
        self._id: Any = ""
        self._model: Any = ""

    @property
    def finished(self) -> bool:
        """True if the answer is complete. A chunk with the token counts may still follow."""
        return self._finish is not None

    def _answer(self) -> Completion:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": whole("".join(self._content)) or None,
        }
        if self._refusal:
            message["refusal"] = whole("".join(self._refusal))
        for key, pieces in self._reasoning.items():
            message[key] = whole("".join(pieces))
        if self._calls:
            message["tool_calls"] = clean([call.entry() for call in self._calls])
        message.update(clean(self._extra))
        return completion_of(message, self._finish, self._usage, self._id, self._model)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        if event.get("id"):
            self._id = event["id"]
        if event.get("model"):
            self._model = event["model"]
        if event.get("usage"):
            self._usage = event["usage"]
        for choice in event.get("choices") or ():
            if choice.get("index"):  # another alternative (n > 1); the first is the answer
                continue
            delta = choice.get("delta") or choice.get("message")
            if delta:
                self._delta(delta)
            if choice.get("finish_reason"):
                self._finish = choice["finish_reason"]

    def _delta(self, delta: dict[str, Any]) -> None:
        has_reasoning = False
        for key, value in delta.items():
            if not value or key == "role":
                continue
            if key == "content":
                if isinstance(value, str):
                    self._content.append(value)
                    self._deltas.append(Delta("text", whole(value)))
                else:
                    self._parts(value)
            elif key in ("reasoning_content", "reasoning") and isinstance(value, str):
                self._reasoning.setdefault(key, []).append(value)
                if not has_reasoning:  # some servers send it under both keys
                    has_reasoning = True
                    self._deltas.append(Delta("reasoning", whole(value)))
            elif key == "tool_calls":
                for piece in value:
                    self._piece(piece)
            elif key == "refusal":
                self._refusal.append(value)
                self._deltas.append(Delta("text", whole(value)))
            else:
                merge(self._extra, key, value)

    def _parts(self, parts: Any) -> None:
        """Read content in parts, the form in which Mistral streams its thinking."""
        for part in parts if isinstance(parts, list) else ():  # pyright: ignore[reportUnknownVariableType]: a server's JSON
            item = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
            thinking = "".join(str(piece.get("text", "")) for piece in item.get("thinking") or ())
            if thinking:
                self._delta({"reasoning": thinking})
            if item.get("text"):
                self._delta({"content": item["text"]})

    def _piece(self, piece: dict[str, Any]) -> None:
        """Add a piece of a tool call. The `index` identifies the call; without an index, a new
        id begins a new call."""
        index = piece.get("index")
        function: dict[str, Any] = piece.get("function") or {}
        id, name = piece.get("id") or "", function.get("name") or ""
        call = next(
            (call for call in reversed(self._calls) if index is None or call.index == index), None
        )
        # A new id with a name begins a new call even at an old index, because Gemini's servers
        # number all calls of a batch 0. A new id alone does not: vLLM once invented one for every
        # piece.
        if call is None or (id and name and call.id and id != call.id):
            call = _Call(len(self._calls), index, id)
            self._calls.append(call)
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = _encoder.encode(arguments).decode()
        first = call.add(id, name, arguments, piece, function)
        if arguments or first:
            self._deltas.append(Delta("tool", arguments, call.number, call.name if first else ""))


class _Call:
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

    def add(
        self, id: str, name: str, arguments: str, piece: dict[str, Any], function: dict[str, Any]
    ) -> bool:
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
        if len(piece) > 2:  # more than index and function
            for key, value in piece.items():
                if value and key not in ("index", "id", "type", "function"):
                    merge(self.extra, key, value)
        if len(function) > 1:
            for key, value in function.items():
                if value and key not in ("name", "arguments"):
                    merge(self.function, key, value)
        return first

    def entry(self) -> dict[str, Any]:
        """Return the call in the form of a plain answer."""
        function = {"name": self.name, "arguments": "".join(self.arguments), **self.function}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


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
            place = _position_of(items, value)
            if place is None:
                items.append(value)
            else:
                for name, inner in value.items():
                    merge(items[place], name, inner)
    else:
        into[key] = new


def _position_of(items: list[Any], value: Any) -> int | None:
    """Return the position of the item that a piece continues: the last with the same index and
    type. A piece without an index is an item of its own."""
    if not isinstance(value, dict) or "index" not in value:
        return None
    piece = cast("dict[str, Any]", value)
    for place in range(len(items) - 1, -1, -1):
        item: Any = items[place]
        if isinstance(item, dict):
            known = cast("dict[str, Any]", item)
            if known.get("index") == piece["index"] and known.get("type") == piece.get("type"):
                return place
    return None
