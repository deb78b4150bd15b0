"""JSON as models and their servers write it, where that is not quite JSON."""

from __future__ import annotations

from typing import Any, cast

import msgspec

_decoder = msgspec.json.Decoder()


def decode(data: bytes | str) -> Any:
    """What JSON text says. Also takes control characters within strings, NaN (as None), and half surrogate pairs, which servers
    send that cut UTF-16 text into pieces. Raises `ValueError` for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        import json

        try:
            return json.loads(data, strict=False, parse_constant=_nothing)
        except (ValueError, RecursionError):
            raise error from None  # msgspec's words are the plainer ones


def whole(text: str) -> str:
    """Text whose surrogate pairs came in two pieces, put together; a half that stayed alone becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(value: Any) -> Any:
    """A decoded value with all its texts made `whole`, so that it can be encoded again."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {whole(key): clean(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [clean(item) for item in cast("list[Any]", value)]
    return value


def _nothing(_: str) -> None:
    return None
