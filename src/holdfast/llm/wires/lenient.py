"""A lenient reader for the JSON of models and their servers, which may be slightly invalid or of
an unexpected shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from holdfast.errors import BadResponse, LLMError
from holdfast.llm.wires.failures import shorten
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep

T = TypeVar("T")
A = TypeVar("A")

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()

# The exceptions that JSON of an unexpected shape causes. They also cover text that cannot be
# encoded, and numbers or nesting without limit.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def read_answer(
    data: bytes, decoder: msgspec.json.Decoder[T], make: Callable[[T, bytes], A], description: str
) -> A:
    """Return `make(decoded data, data)`. The data may be any JSON that the lenient `decode`
    accepts.

    Raises `BadResponse` for data that does not match `description`. An `LLMError` from `make`
    passes through.
    """
    if too_deep(data, MAX_DOCUMENT_DEPTH):
        raise BadResponse(
            f"The answer is nested deeper than {MAX_DOCUMENT_DEPTH} levels; no tool call or text"
            " needs that."
        )
    try:
        try:
            value = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = _encoder.encode(clean(decode(data)))
            value = decoder.decode(data)
        return make(value, data)
    except LLMError:
        raise
    except MISSHAPEN as error:
        raise bad_answer(description, data, error) from None


def bad_answer(description: str, data: bytes, error: Exception | None = None) -> BadResponse:
    """Return the error for an answer that does not match `description`, with an excerpt of the
    answer."""
    detail = f" ({error!r})" if type(error) in (AttributeError, KeyError, TypeError) else ""
    return BadResponse(
        f"The answer is not {description}{detail}:"
        f" {shorten(data[:5000].decode('utf-8', 'replace'))}"
    )


def count(counts: Any, key: str) -> int:
    """Return the number of tokens under `key`, or 0 if there is no valid number."""
    value: Any = cast("dict[str, Any]", counts).get(key) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and 0 < value < 2**63 else 0


def decode(data: bytes | str) -> Any:
    """Return the value of a JSON text, leniently.

    Accepts control characters within strings, NaN (as None), and half surrogate pairs, which
    come from servers that cut UTF-16 text into pieces. Raises `ValueError` for any other invalid
    JSON.
    """
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        import json

        try:
            return json.loads(data, strict=False, parse_constant=_to_none)
        except (ValueError, RecursionError):
            raise error from None  # msgspec's message is clearer


def whole(text: str) -> str:
    """Return text whose split surrogate pairs are joined. A half without a partner becomes
    U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(value: Any) -> Any:
    """Return a decoded value with `whole` applied to all its texts, so that it can be encoded
    again."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {whole(key): clean(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [clean(item) for item in cast("list[Any]", value)]
    return value


def _to_none(_: str) -> None:
    return None
