"""The limits on JSON from outside, the same on every Python version and recursion limit."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

# Levels of arrays and objects in a value: a tool's arguments, a result. Protobuf's parsers stop at
# 100 as well. The interpreter's own limit varies. On Python 3.13 json and msgspec read 10,000
# levels, on 3.11 fewer than 1,000, less the caller's frames.
MAX_DEPTH = 100

# Levels in a document that contains such values: a request, a model's answer, a conversation's
# state.
MAX_DOCUMENT_DEPTH = MAX_DEPTH + 28

# Levels in an event of a journal, or in a part of one. Its free-form parts may have 200.
MAX_STORED_DEPTH = 228

# A string, also an unterminated one. Possessive, since a failed match would try every split of a
# long string.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_OTHER = bytes(set(range(256)) - set(b"[]{}"))
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STEP = {ord("["): 1, ord("]"): -1}
_ROUNDS = 8  # levels of most documents
# A string, or the text between two strings.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"]++', re.DOTALL)


def too_deep(data: bytes | str, limit: int = MAX_DEPTH) -> bool:
    """Return True if JSON text is nested deeper than `limit` levels. Never recurses; malformed
    text is left to the decoder."""
    if len(data) <= limit:
        return False
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    if data.count(b"[") + data.count(b"{") <= limit:  # nearly always
        return False
    brackets = _STRING.sub(b"", data).translate(_AS_BRACKETS, _OTHER)
    removed = 0
    # each round removes the innermost level, at the speed of memory
    while brackets and removed < min(limit, _ROUNDS):
        brackets = brackets.replace(b"[]", b"")
        removed += 1
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > limit - removed


def too_many(body: bytes, most: int) -> bool:
    """Return True if a JSON text has more than `most` values. Strings are skipped only if a
    count of the whole text exceeds the limit."""
    if separators(body) <= most:
        return False
    count = 0
    for token in _TOKENS.finditer(body):
        text = token.group()
        count += 1 if text.startswith(b'"') else separators(text)
        # Twice, because a member of an object may count as two strings.
        if count > 2 * most:
            return True
    return False


def separators(text: bytes) -> int:
    """Return the number of commas and brackets, which is about that of values."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


@overload
def decode_json(data: bytes | str, *, limit: int = ...) -> Any: ...
@overload
def decode_json(data: bytes | str, type: type[T], limit: int = ...) -> T: ...
def decode_json(data: bytes | str, type: Any = Any, limit: int = MAX_DOCUMENT_DEPTH) -> Any:
    """Return the object of a JSON text from outside. Raises `msgspec.DecodeError` (a `ValueError`),
    also for a text that is nested deeper than `limit` levels."""
    if too_deep(data, limit):
        raise msgspec.ValidationError(f"JSON is nested deeper than {limit} levels")
    return msgspec.json.decode(data, type=type)
