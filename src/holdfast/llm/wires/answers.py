"""The reading of answers on all wires: decoding, token counts, and the parts of a completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, LLMError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.failures import excerpt
from holdfast.llm.wires.lenient_json import MISSHAPEN, clean_texts, decode, join_surrogates
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep

T = TypeVar("T")

GAP = "\n\n"  # separates texts around another block, and thoughts

_json = msgspec.json.Encoder().encode


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
            data = _json(clean_texts(decode(data)))
            value = decoder.decode(data)
        return make(value, data)
    except LLMError:
        raise
    except MISSHAPEN as error:
        raise bad_answer(description, data, error) from None


def bad_answer(description: str, data: bytes, error: Exception | None = None) -> BadResponse:
    """Return the error for an answer that does not match `description`."""
    detail = f" ({error!r})" if type(error) in (AttributeError, KeyError, TypeError) else ""
    return BadResponse(f"The answer is not {description}{detail}: {excerpt(data)}")


def count(counts: Any, key: str) -> int:
    """Return the number of tokens under `key`, or 0 if there is no valid number."""
    value: Any = as_dict(counts).get(key)
    return int(value) if isinstance(value, int | float) and 0 < value < 2**63 else 0


def as_dict(value: Any) -> dict[str, Any]:
    """Return a decoded value if it is an object, or else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def has_other_keys(fields: dict[str, Any], known: set[str]) -> bool:
    """Return True if an object has a value under a key that is not `known`."""
    # A loop, because this runs for each part of an answer and a generator costs more.
    for key in fields:  # noqa: SIM110
        if key not in known and fields[key]:
            return True
    return False


class CompletionBuilder:
    """The parts of one answer, collected for a `Completion`."""

    __slots__ = ("_ids", "calls", "needs_native", "texts", "thoughts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
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

    def build(
        self, wire: str, usage: Usage, stop_reason: str, about: Any, native: msgspec.Raw
    ) -> Completion:
        """Return the completion. `about` has the `model` and the `id` of the answer. A stop for
        calls is reported as such. `native` is kept only if it is needed."""
        model, id = about.model, about.id
        return Completion(
            join_surrogates("".join(self.texts)),
            join_surrogates("".join(self.thoughts)),
            tuple(self.calls),
            usage,
            "tool_calls" if stop_reason == "stop" and self.calls else join_surrogates(stop_reason),
            join_surrogates(model) if isinstance(model, str) else "",
            wire,
            native if self.needs_native else NO_NATIVE,
            join_surrogates(id) if isinstance(id, str) else "",
        )
