"""Canonical names and the names that model APIs allow."""

from __future__ import annotations

import re

_ALLOWED = re.compile(
    r"[a-zA-Z0-9_-]{1,64}"
)  # OpenAI's rule for function names; Anthropic's is wider
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")


def wire_name(name: str) -> str:
    """The name under which a model API is told of a tool: a pure function of the canonical name.

    `server.tool` becomes `server__tool`; what is still not `[a-zA-Z0-9_-]{1,64}` is replaced or
    cut, with a hash so that two names stay two.
    """
    if _ALLOWED.fullmatch(name):
        return name
    plain = name.replace(".", "__")
    if _ALLOWED.fullmatch(plain):
        return plain
    from hashlib import sha256  # 3 ms of import that few names need

    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{_FORBIDDEN.sub('_', plain)[:55]}_{digest}"
