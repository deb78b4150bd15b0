"""The redaction of a server's secrets, which no error, log or repr may show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

Redact = Callable[[str], str]

_URL = re.compile(r"\b(?:https?|wss?)://[^\s'\"<>]+", re.IGNORECASE)
# Matches a token after its scheme, but not the words that follow "Bearer" in a sentence.
_BEARER = re.compile(r"\b(bearer\s+)(?=[^\s'\"]*\d|[^\s'\"]{20})[\w.~+/=-]{8,}", re.IGNORECASE)
# Shorter secrets are left alone, because they occur as words of any message.
_MIN_SECRET_CHARS = 4
# From this length on, a secret is removed inside words too; a shorter one only as a whole word.
MIN_PARTIAL_CHARS = 8


def url_without_secrets(text: str) -> str:
    """Return a URL without user, password, query and fragment."""
    bare = re.split(r"[?#]", text, maxsplit=1)[0]
    return re.sub(r"^([A-Za-z]+://)[^/]*@", r"\1", bare)


def redaction(secrets: Iterable[str]) -> Redact:
    """Return a function that removes secrets from a text: `secrets`, all bearer tokens, and from
    each URL the user, password, query and fragment."""
    spellings = {
        spelling
        for value in secrets
        for spelling in (value, quote(value, safe=""))
        if len(value) >= _MIN_SECRET_CHARS
    }
    patterns = [
        re.escape(one) if len(one) >= MIN_PARTIAL_CHARS else rf"(?<!\w){re.escape(one)}(?!\w)"
        for one in sorted(spellings, key=len, reverse=True)
    ]
    secret = re.compile("|".join(patterns)) if patterns else None

    def redact(text: str) -> str:
        text = _URL.sub(lambda match: url_without_secrets(match[0]), text)
        if secret is not None:
            text = secret.sub("***", text)
        return _BEARER.sub(r"\1***", text)

    return redact
