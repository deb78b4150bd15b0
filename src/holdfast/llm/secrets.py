"""Secrets among a model's arguments, and their removal from texts that are shown or stored."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

# The shortest value treated as a secret, in characters. Shorter ones ("test", "EMPTY") are
# placeholders for local servers. They also occur as words in messages, which redaction would
# garble. No provider issues keys this short.
MIN_SECRET_CHARS = 8

REDACTED = "***"

# Headers that callers set and that are never secret. Any other header of a caller may be.
_PUBLIC_HEADERS = {
    *("accept", "accept-language", "anthropic-beta", "anthropic-version", "content-type"),
    *("http-referer", "openai-beta", "referer", "user-agent", "x-title"),
}
_PUBLIC_QUERY_KEYS = {"alt", "api-version"}


def argument_secrets(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the secrets among an `LLM`'s arguments: its credentials and the proxy's password."""
    values = credentials_of(arguments)
    proxy = urlsplit(arguments["proxy"] or "")
    if proxy.password:
        pair = f"{unquote(proxy.username or '')}:{unquote(proxy.password)}"
        values += [proxy.password, unquote(proxy.password), basic(pair)]
    return worth_hiding(values)


def credentials_of(arguments: Mapping[str, Any]) -> list[str]:
    """Return the credentials among an `LLM`'s arguments, however short: the key, headers, the base
    URL's query."""
    headers: Mapping[str, str] = arguments["headers"] or {}
    values = credentials(arguments["api_key"])
    for name, value in headers.items():
        if name.lower() not in _PUBLIC_HEADERS:
            values += credentials(value)
    query = urlsplit(arguments["base_url"] or "").query
    hidden = [part for part in query.split("&") if not _is_public(part)]
    values += [part.partition("=")[2] or part for part in hidden]
    values += [value for name, value in parse_qsl(query) if name not in _PUBLIC_QUERY_KEYS]
    return [value for value in values if value]


def credentials(header: str) -> list[str]:
    """Return the credentials in a header's value: the value without its scheme word (`Bearer`),
    and the decoded pair of Basic credentials."""
    value = header.strip()
    scheme, _, rest = value.partition(" ")
    values = [rest.strip() if scheme.isalpha() and rest.strip() else value]
    if scheme.lower() == "basic":
        try:
            pair = a2b_base64(rest).decode()
        except ValueError:
            return values
        values += [pair, pair.partition(":")[2]]
    return values


def basic(pair: str) -> str:
    """Return `user:password` encoded as Basic credentials."""
    return b2a_base64(pair.encode(), newline=False).decode()


def worth_hiding(values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct secrets and their JSON-escaped forms, longest first. Values too short
    to be a secret are left out."""
    forms: set[str] = set()
    for secret in values:
        if len(secret) >= MIN_SECRET_CHARS:
            forms |= {secret, msgspec.json.encode(secret).decode()[1:-1]}
    return tuple(sorted(forms, key=len, reverse=True))


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return `text` without the secrets and without prefixes of them. Messages are cut to a
    length, which can leave a prefix."""
    for secret in secrets:
        if secret[:MIN_SECRET_CHARS] in text:
            for end in range(min(len(secret), len(text)), MIN_SECRET_CHARS - 1, -1):
                text = text.replace(secret[:end], REDACTED)
    return text


def redact_bytes(data: bytes, secrets: Sequence[str]) -> bytes:
    """Return `data` without the secrets."""
    for secret in secrets:
        data = data.replace(secret.encode(), REDACTED.encode())
    return data


def holds_secret(text: str, secrets: Sequence[str]) -> bool:
    """Return True if `text` holds a secret or the beginning of one."""
    return any(secret[:MIN_SECRET_CHARS] in text for secret in secrets)


def redact_url(url: object) -> str:
    """Return a URL for display: without credentials and without its query values."""
    text = str(url)
    scheme, mark, rest = text.partition("://")
    # Cut up to the last @ of the whole text. A password that was not percent-encoded may hold a /
    # or a ?.
    rest = (rest if mark else text).rpartition("@")[2]
    rest, fragment, _ = rest.partition("#")
    return f"{scheme}://{redact_path(rest)}{fragment}" if mark else redact_path(rest) + fragment


def redact_path(path: str) -> str:
    """Return a path for display: without its query values."""
    path, mark, query = path.partition("?")
    parts: list[str] = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        hidden = f"{name}={REDACTED}" if equals else REDACTED
        parts.append(part if _is_public(part) else hidden)
    return path + mark + "&".join(parts)


def _is_public(part: str) -> bool:
    return not part or part.partition("=")[0] in _PUBLIC_QUERY_KEYS
