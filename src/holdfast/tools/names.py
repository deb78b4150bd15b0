"""Canonical tool names and the names that model APIs accept."""

from __future__ import annotations

import re

# The key in a result's meta of the canonical names of the tools that a search found.
FOUND_TOOLS = "holdfast/tools"

RUN_CODE = "run_code"  # the tool of `Agent(code=)`

# OpenAI's rule for function names; Anthropic's is wider.
_ALLOWED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, which are separated by spaces."""
    return frozenset(text.split())


def wire_name(name: str) -> str:
    """Return the name of a tool in model APIs, a pure function of the canonical name. `server.tool`
    becomes `server__tool`. A name that is then still not `[a-zA-Z0-9_-]{1,64}` has characters
    replaced or is cut. A hash keeps such names distinct."""
    if _ALLOWED.fullmatch(name):
        return name
    plain = name.replace(".", "__")
    if _ALLOWED.fullmatch(plain):
        return plain
    from hashlib import sha256  # costs 3 ms of import, and few names need it

    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{_FORBIDDEN.sub('_', plain)[:55]}_{digest}"
