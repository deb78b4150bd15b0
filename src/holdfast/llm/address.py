"""Where a model is asked for: the base URL and the name that is sent, from what a caller wrote."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError

# provider -> base URL. A model of another provider needs a base_url.
PROVIDERS = {"openai": "https://api.openai.com/v1"}
_OPENAI = re.compile(r"(gpt-|o\d|chatgpt-|codex-|ft:gpt-)", re.IGNORECASE)


def resolve(model: str, base_url: str | None) -> tuple[str, str]:
    """(base URL without a slash at its end, model name as it is sent).

    The rule: a provider's name before a slash (`openai/gpt-5`) is taken off where the request goes to that provider's own
    address. To any other address a name is sent exactly as it was given, since routers and local servers have slashes in theirs.
    Without `base_url`, names that begin as OpenAI's do go to OpenAI; for others there is no address to guess.

    Raises `ConfigurationError` naming `model` or `base_url`.
    """
    provider, slash, name = model.partition("/")
    if base_url is None:
        if slash and provider in PROVIDERS and name:
            return PROVIDERS[provider], name
        if not slash and _OPENAI.match(model):
            return PROVIDERS["openai"], model
        raise ConfigurationError(
            f"LLM: base_url is needed for the model {model!r}: the address of a server that speaks OpenAI's Chat Completions, "
            "such as 'https://openrouter.ai/api/v1' or 'http://localhost:8000/v1'. Only OpenAI's own models (gpt-*, o1, o3, ..., "
            "openai/*) have a known one."
        )
    takes = f"LLM: base_url takes an address such as 'https://api.example.com/v1', not {shown(base_url)!r}"
    try:
        parts = urlsplit(base_url.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{takes} ({error}).") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in base_url.strip()):
        raise ConfigurationError(f"{takes}.")
    if parts.username is not None:
        raise ConfigurationError("LLM: base_url takes no user and password; give the key as api_key, or use headers.")
    if parts.fragment:
        raise ConfigurationError(f"{takes}: it has a fragment.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    known = slash and provider in PROVIDERS and parts.hostname == urlsplit(PROVIDERS[provider]).hostname
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{query}", name if known and name else model


def shown(url: object) -> str:
    """A URL for a message: without credentials."""
    text = str(url)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text.rpartition("@")[2]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
