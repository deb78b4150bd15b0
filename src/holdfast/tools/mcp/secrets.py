"""What of a server's configuration no error, log or repr may show, and how it is taken out of a
text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

if TYPE_CHECKING:
    from holdfast.tools.mcp.config import Server

Redact = Callable[[str], str]

_URL = re.compile(r"\b(?:https?|wss?)://[^\s'\"<>]+", re.IGNORECASE)
# A token after its scheme; not the words that follow "Bearer" in a sentence.
_BEARER = re.compile(r"\b(bearer\s+)(?=[^\s'\"]*\d|[^\s'\"]{20})[\w.~+/=-]{8,}", re.IGNORECASE)
_SHORTEST, _LONG = (
    4,
    8,
)  # characters: shorter values are words of any message, and below the second only whole words are taken out


def bare_url(text: str) -> str:
    """A URL without user, password, query and fragment."""
    bare = re.split(r"[?#]", text, maxsplit=1)[0]
    return re.sub(r"^([A-Za-z]+://)[^/]*@", r"\1", bare)


def redaction(server: Server) -> Redact:
    """What takes out of a text the values of this server's `env` and `headers` and of its URL's
    query, all tokens, and of each URL what may be secret."""
    found = {
        form
        for value in _secrets(server)
        for form in (value, quote(value, safe=""))
        if len(value) >= _SHORTEST
    }
    forms = [
        re.escape(form) if len(form) >= _LONG else rf"(?<!\w){re.escape(form)}(?!\w)"
        for form in sorted(found, key=len, reverse=True)
    ]
    secret = re.compile("|".join(forms)) if forms else None

    def redact(text: str) -> str:
        text = _URL.sub(lambda match: bare_url(match[0]), text)
        if secret is not None:
            text = secret.sub("***", text)
        return _BEARER.sub(r"\1***", text)

    return redact


def _secrets(server: Server) -> Iterator[str]:
    from holdfast.tools.mcp.config import Http

    if isinstance(server, Http):
        with contextlib.suppress(ValueError):  # no address, as the connection will say
            parts = urlsplit(server.url)
            yield from (unquote(parts.username or ""), unquote(parts.password or ""))
            for name, value in parse_qsl(
                parts.query, keep_blank_values=True
            ):  # a query may be a key alone
                yield value or name
        for value in server.headers.values():
            yield value
            yield value.partition(" ")[2].strip()  # the token without its scheme
        return
    for value in server.env.values():
        yield value
        yield from (
            line for line in map(str.strip, value.splitlines()) if len(line) >= _LONG
        )  # a text is shown on one line
