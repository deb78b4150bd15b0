"""Secrets among a model's arguments, and their removal from texts that are shown or stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

# The shortest value treated as a secret, in characters. Shorter ones ("test", "EMPTY") are
# placeholders for local servers. They also occur as words in messages, which redaction would
# garble. No provider issues keys this short.
LEAST = 8

BLOT = "***"

# Headers that callers set and that are never secret. Any other header of a caller may be.
_PUBLIC = frozenset(
    (
        "accept",
        "accept-language",
        "anthropic-beta",
        "anthropic-version",
        "content-type",
        "http-referer",
        "openai-beta",
        "referer",
        "user-agent",
        "x-title",
    )
)
_PUBLIC_QUERY = frozenset(("alt", "api-version"))


def secrets(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the secrets among an `LLM`'s arguments: its credentials and the proxy's password."""
    held = credentials_of(given)
    proxy = urlsplit(given["proxy"] or "")
    if proxy.password:
        pair = f"{unquote(proxy.username or '')}:{unquote(proxy.password)}"
        held += [proxy.password, unquote(proxy.password), basic(pair)]
    return worth_hiding(held)


def credentials_of(given: Mapping[str, Any]) -> list[str]:
    """Return the credentials among an `LLM`'s arguments, however short: the key, headers, the base
    URL's query."""
    headers: Mapping[str, str] = given["headers"] or {}
    held = credentials(given["api_key"])
    for name, value in headers.items():
        if name.lower() not in _PUBLIC:
            held += credentials(value)
    query = urlsplit(given["base_url"] or "").query
    if query:
        held += [part.partition("=")[2] or part for part in query.split("&") if not _public(part)]
        held += [value for name, value in parse_qsl(query) if name not in _PUBLIC_QUERY]
    return [value for value in held if value]


def credentials(header: str) -> list[str]:
    """Return the credentials in a header's value: the value without its scheme word (`Bearer`),
    and the decoded pair of Basic credentials."""
    value = header.strip()
    scheme, _, rest = value.partition(" ")
    held = [rest.strip() if scheme.isalpha() and rest.strip() else value]
    if scheme.lower() == "basic":
        from base64 import b64decode

        try:
            pair = b64decode(rest).decode()
        except ValueError:
            return held
        held += [pair, pair.partition(":")[2]]
    return held


def basic(pair: str) -> str:
    """Return `user:password` encoded as Basic credentials."""
    from base64 import b64encode

    return b64encode(pair.encode()).decode()


def worth_hiding(held: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct secrets and their JSON-escaped forms, longest first. Values too short
    to be a secret are left out."""
    found: set[str] = set()
    for secret in held:
        if len(secret) >= LEAST:
            found |= {secret, msgspec.json.encode(secret).decode()[1:-1]}
    return tuple(sorted(found, key=len, reverse=True))


def blot(text: str, secrets: Sequence[str]) -> str:
    """Return `text` without the secrets and without prefixes of them. Messages are cut to a
    length, which can leave a prefix."""
    for secret in secrets:
        if secret[:LEAST] in text:
            for end in range(min(len(secret), len(text)), LEAST - 1, -1):
                text = text.replace(secret[:end], BLOT)
    return text


def blot_data(data: bytes, secrets: Sequence[str]) -> bytes:
    """Return `data` without the secrets."""
    for secret in secrets:
        data = data.replace(secret.encode(), BLOT.encode())
    return data


def holds_one(text: str, secrets: Sequence[str]) -> bool:
    """Return True if `text` holds a secret or the beginning of one."""
    return any(secret[:LEAST] in text for secret in secrets)


def shown(url: object) -> str:
    """Return a URL for display: without credentials and without its query values."""
    text = str(url)
    scheme, mark, rest = text.partition("://")
    # Cut up to the last @ of the whole text. A password that was not percent-encoded may hold a /
    # or a ?.
    rest = (rest if mark else text).rpartition("@")[2]
    rest, fragment, _ = rest.partition("#")
    return f"{scheme}://{shown_path(rest)}{fragment}" if mark else shown_path(rest) + fragment


def shown_path(path: str) -> str:
    """Return a path for display: without its query values."""
    path, mark, query = path.partition("?")
    parts = [
        part if _public(part) else f"{part.partition('=')[0]}={BLOT}" if "=" in part else BLOT
        for part in query.split("&")
    ]
    return path + mark + "&".join(parts) if mark else path


def _public(part: str) -> bool:
    return not part or part.partition("=")[0] in _PUBLIC_QUERY
