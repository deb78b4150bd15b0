"""Plain answers: text, calls and token counts, and nothing else.

Most answers are plain. Exact types decode one in a third of the time that the general readers take,
which accept any content in any form. Each wire has a module with the types of its plain answers:
any other field, type or order makes an answer one for the wire's general reader.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep

T = TypeVar("T")

# A number of tokens. `answers.count` accepts other numbers, too.
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Nothing = tuple[()]  # an empty list


class Plain(msgspec.Struct, forbid_unknown_fields=True):
    """An object that has no field beyond those of its class."""


def decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Return a plain answer, or None if the data is anything else."""
    try:
        answer = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if too_deep(data, MAX_DOCUMENT_DEPTH) else answer
