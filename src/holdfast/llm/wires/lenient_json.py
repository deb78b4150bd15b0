"""A lenient decoder for the JSON of models and their servers, which may be slightly invalid."""

from __future__ import annotations

from math import isfinite
from typing import Any, cast

import msgspec

# The exceptions that JSON of an unexpected shape causes. They also cover text that cannot be
# encoded, and numbers or nesting without limit.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()


def decode(data: bytes | str) -> Any:
    """Return the value of a JSON text. Control characters in strings, NaN (as None) and half
    surrogate pairs are accepted; the latter come from servers that cut UTF-16 text into pieces.
    Raises `ValueError` for any other invalid JSON."""
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        import json

        try:
            return json.loads(
                data, strict=False, parse_constant=lambda _: None, parse_float=_finite
            )
        except (ValueError, RecursionError):
            raise error from None  # msgspec's message is clearer


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


def encode(value: Any) -> bytes:
    """Return a decoded value as JSON, its half surrogate pairs replaced."""
    try:
        return _json(value)
    except UnicodeEncodeError:
        return _json(clean_texts(value))


def join_surrogates(text: str) -> str:
    """Return text with split surrogate pairs joined, and U+FFFD for half a pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_texts(value: Any) -> Any:
    """Return a decoded value with `join_surrogates` applied to all its texts: nearly always the
    value itself, which can be encoded."""
    try:
        _json(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return _with_clean_texts(value)
    return value


def _with_clean_texts(value: Any) -> Any:
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        return {
            join_surrogates(key): _with_clean_texts(item)
            for key, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_with_clean_texts(item) for item in cast("list[Any]", value)]
    return value
