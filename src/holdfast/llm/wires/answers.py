"""The reading of answers on all wires: decoding, token counts, and the parts of a completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from holdfast.answer import AnswerDetails
from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, LLMError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.failures import excerpt
from holdfast.llm.wires.lenient_json import MISSHAPEN, clean_texts, decode, encode, join_surrogates
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep

T = TypeVar("T")

GAP = "\n\n"  # separates texts around another block, and thoughts


def read_answer(
    data: bytes,
    decoder: msgspec.json.Decoder[T],
    make: Callable[[T, bytes], Completion],
    description: str,
) -> Completion:
    """Return `make(decoded data, data)`. The data may be any JSON that the lenient `decode`
    accepts. Raises `BadResponse` for data that does not match `description`."""
    if too_deep(data, MAX_DOCUMENT_DEPTH):
        raise BadResponse(
            f"The answer is nested deeper than {MAX_DOCUMENT_DEPTH} levels; no tool call or text"
            " needs that."
        )
    try:
        try:
            value = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = msgspec.json.encode(clean_texts(decode(data)))
            value = decoder.decode(data)
        return make(value, data)
    except LLMError:
        raise
    except MISSHAPEN as error:
        raise bad_answer(description, data, error) from None


def bad_answer(description: str, data: bytes, error: Exception | None = None) -> BadResponse:
    detail = f" ({error!r})" if type(error) in (AttributeError, KeyError, TypeError) else ""
    return BadResponse(f"The answer is not {description}{detail}: {excerpt(data)}")


def bad_part(description: str, part: Any) -> BadResponse:
    return BadResponse(f"The answer has {description}: {excerpt(encode(part))}")


def count(counts: dict[str, Any], key: str) -> int:
    """Return the number of tokens under `key`, or 0 if there is no valid number."""
    value = counts.get(key)
    if value is True or not isinstance(value, int | float):
        return 0
    return int(value) if 0 < value < 2**63 else 0


def as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


class _Part(msgspec.Struct):
    """The fields of an item or a block that show a compaction."""

    type: Any = None
    content: Any = None
    encrypted_content: Any = None


_parts = msgspec.json.Decoder(list[_Part])


def holds_compaction(native: Raw) -> bool:
    """Return True if the provider has compacted the history into a part of this native form. One
    that failed has no content and replaces nothing."""
    if b'"compaction"' not in bytes(native):
        return False
    try:
        parts = _parts.decode(native)
    except msgspec.DecodeError:
        return False
    kinds = [part.type for part in parts if part.content or part.encrypted_content]
    return "compaction" in kinds


_TUPLES = {"parts", "citations", "server_calls", "media", "logprobs", "filters", "runs"}


class CompletionBuilder:
    """The parts of one answer, collected for a `Completion`."""

    __slots__ = ("_ids", "calls", "details", "needs_native", "texts", "thoughts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.details: dict[str, Any] = {}  # the fields of `AnswerDetails` that have a value
        self.needs_native = False  # True if the answer holds more than text and calls
        self._ids: set[str] = set()

    def add_call(self, name: str, arguments: Any, id: Any) -> ToolCall:
        """Add a call and return it. A repeated id is dropped, because each result must find its
        call."""
        provider_id = join_surrogates(id) if isinstance(id, str) and id not in self._ids else ""
        self._ids.add(provider_id)
        call = read_call(join_surrogates(name), arguments, provider_id)
        self.calls.append(call)
        return call

    def detail(self, name: str, value: Any) -> None:
        """Set a field of `AnswerDetails`, or append to it if it is a tuple there. An empty value is
        left out."""
        if value in (None, "", {}):
            return
        if name in _TUPLES:
            self.details.setdefault(name, []).append(value)
        else:
            self.details[name] = value

    def _details(self) -> AnswerDetails:
        fields: dict[str, Any] = dict(self.details)
        for name in _TUPLES & fields.keys():
            fields[name] = tuple(fields[name])
        return AnswerDetails(**fields)

    def covers(self, fields: dict[str, Any], known_keys: set[str]) -> None:
        """Note that the completion covers the `known_keys` of an object. A value under any other
        key needs the native form."""
        for key in fields:
            if key not in known_keys and fields[key]:
                self.needs_native = True

    def build(
        self, wire: str, usage: Usage, stop_reason: str, about: Any, form: Any, raw: Raw | None
    ) -> Completion:
        """Return the completion. `about` has the `model` and the `id` of the answer. `form` is the
        native form, and `raw` its JSON, if available. A stop for calls is reported as such."""
        model, id, native = about.model, about.id, NO_NATIVE
        if self.needs_native:
            native = Raw(encode(form)) if raw is None else raw.copy()
        return Completion(
            join_surrogates("".join(self.texts)),
            join_surrogates("".join(self.thoughts)),
            tuple(self.calls),
            usage,
            "tool_calls" if stop_reason == "stop" and self.calls else join_surrogates(stop_reason),
            join_surrogates(model) if isinstance(model, str) else "",
            wire,
            native,
            join_surrogates(id) if isinstance(id, str) else "",
            details=self._details() if self.details else None,
        )
