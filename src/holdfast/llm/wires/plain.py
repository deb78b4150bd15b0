"""Plain answers: text, calls and token counts, and nothing else.

Most answers are plain. Exact types decode one in a third of the time of the general readers, which
accept any content in any form. Each wire has a module with the types of its plain answers. An
answer with any other field, type or order goes to the wire's general reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.content import ToolCall
from holdfast.llm.wires.lenient_json import encode
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep

T = TypeVar("T")

# A number of tokens. `answers.count` accepts other numbers, too.
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Nothing = tuple[()]  # an empty list


# gc=False: decoded JSON makes no cycles, and a stream has thousands of pieces.
class Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An object that has no field beyond those of its class."""


def decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Return a plain answer, or None if the data is anything else."""
    try:
        answer = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    flat = data.count(b"[") + data.count(b"{") <= MAX_DOCUMENT_DEPTH  # nearly always
    return answer if flat or not too_deep(data, MAX_DOCUMENT_DEPTH) else None


def as_json(answer: dict[str, Any]) -> bytes:
    """Return the JSON of a streamed answer, for the reader of plain answers. Return b"", which is
    not a plain answer, for a number that JSON libraries refuse."""
    try:
        return encode(answer)
    except OverflowError:
        return b""


def has_repeated_id(calls: Sequence[ToolCall]) -> bool:
    """Return True if two calls have the same id, of which the general readers drop one."""
    ids = [call.provider_id for call in calls if call.provider_id]
    return len(set(ids)) < len(ids)
