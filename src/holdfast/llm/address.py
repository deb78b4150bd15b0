"""Resolution of a model name and an optional base URL to an `Address`: the URL, the name to
send, the wire and the provider."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.llm import providers
from holdfast.llm.providers import ALIASES, COMPATIBLE, PROVIDERS, find_provider
from holdfast.llm.secrets import redact_url


class Address(msgspec.Struct, frozen=True):
    """The endpoint of a model and the protocol spoken there."""

    base_url: str  # without a trailing slash
    model: str  # the model name to send
    wire: str  # one of `wires.WIRES`
    provider: str  # the provider's id in the models.dev table, such as "groq"; "" if unknown


# LiteLLM's prefix for a model behind its proxy. `settings.parameters` gives its meaning.
LITELLM_PROXY = "litellm_proxy/"

# Google's own list of models prefixes names with "models/".
_NAME_PATTERNS = {
    "openai": re.compile(r"(gpt-|o\d|chatgpt-|codex-|ft:gpt-|ft:o\d)", re.IGNORECASE),
    "anthropic": re.compile(r"claude-", re.IGNORECASE),
    "google": re.compile(r"(models/)?(gemini|gemma)-", re.IGNORECASE),
}
# OpenAI's reasoning models use Responses, which returns their reasoning for the next request. Chat
# Completions drops it between tool calls.
_REASONING_MODELS = re.compile(
    r"(ft:)?(o[1-9]|codex-|computer-use|gpt-(?!35)([5-9]|[1-9]\d)(?=[.:-]|$))", re.IGNORECASE
)
_CHAT_ONLY_MODELS = re.compile(
    r"-chat|audio|search-preview|realtime|transcribe|-tts|image|^o1-(mini|preview)", re.IGNORECASE
)

_ENDINGS = {
    "/chat/completions": "openai_chat",
    "/responses": "openai_responses",
    "/messages": "anthropic_messages",
}
_GEMINI_ENDING = re.compile(r"/models/[^/]+:(generateContent|streamGenerateContent)$")

# The table's name of a provider's SDK (an npm package) -> its wire. All other SDKs are
# OpenAI-compatible.
_WIRES_OF_SDKS = {
    "@ai-sdk/anthropic": "anthropic_messages",
    "@ai-sdk/google": "gemini",
    "@ai-sdk/openai": "openai_responses",
}


def locate(model: str, base_url: str | None, wire: str | None = None) -> Address:
    """Return the address of `model`. Raises `ConfigurationError` naming `model` or `base_url`.

    Without `base_url`, `provider/name` resolves to that provider's address; provider ids are those
    of models.dev. A table is loaded for every provider except OpenAI, Anthropic and Google. A bare
    name resolves to OpenAI, Anthropic or Google by its first letters.

    With `base_url`, requests go to that address, which may end in the full path of a wire. A
    provider prefix is removed from the name only if the address is that provider's own. Any other
    address receives the name unchanged, because routers and local servers use slashes in their
    model names. The prefix `litellm_proxy/` is always removed.

    `wire` overrides the wire derived from the address and the name.
    """
    if base_url is not None:
        return _at_address(model.removeprefix(LITELLM_PROXY) or model, base_url, wire)
    needed = f"LLM: base_url is needed for the model {model!r}"
    if model.startswith(LITELLM_PROXY):
        raise ConfigurationError(
            f"{needed}: the address of the LiteLLM proxy, such as 'http://localhost:4000'."
        )
    prefix, slash, name = model.partition("/")
    provider = ALIASES.get(prefix, prefix)
    if not slash or prefix == "models":
        name = model.removeprefix("models/")
        candidates = (each for each, pattern in _NAME_PATTERNS.items() if pattern.match(model))
        provider = next(candidates, "")
        if not provider:
            makers = providers.makers_of(model)
            example = f"{makers[0] if makers else 'groq'}/{model}"
            maker, colon, rest = model.partition(":")  # as other libraries write it
            if colon and rest and (maker in {*PROVIDERS, *ALIASES} or find_provider(maker)):
                example = f"{maker}/{rest}"
            raise ConfigurationError(
                f"{needed}: the address of a server, such as 'https://openrouter.ai/api/v1' or"
                f" 'http://localhost:8000/v1'. Or name the provider before a slash, such as"
                f" {example!r}. Only the names of OpenAI, Anthropic and Google (gpt-*, o1, o3, ...,"
                " claude-*, gemini-*) identify their provider."
            )
    if not name:
        raise ConfigurationError(
            f"LLM: model needs a name after the provider's, such as 'openai/gpt-5', not {model!r}."
        )
    if provider in PROVIDERS:
        return Address(PROVIDERS[provider], name, wire or _own_wire(provider, name), provider)
    entry = find_provider(provider)
    if entry is None and provider not in COMPATIBLE:
        raise ConfigurationError(f"{needed}: {_unknown_provider(provider)}")
    # "nvidia/nemotron-..." and "openrouter/auto" are whole model names.
    sent_model = model if entry and model in entry.models else name
    npm, api = entry.sdk_and_address(sent_model) if entry else ("", "")
    api = api or COMPATIBLE.get(provider, "")
    if not api:
        raise ConfigurationError(
            f"{needed}: {provider} needs an SDK of its own. Give base_url if it also has an"
            f" OpenAI-compatible address, or use LiteLLM({model!r}) of the holdfast[litellm] extra."
        )
    if "{" in api:
        raise ConfigurationError(
            f"{needed}: each customer of {provider} has a separate address of the form {api!r}."
        )
    path, ending = _split_ending(api)
    wire = wire or ending or _WIRES_OF_SDKS.get(npm, "openai_chat")
    return Address(path, sent_model, wire, provider)


def _unknown_provider(provider: str) -> str:
    from difflib import get_close_matches

    names = [*PROVIDERS, *ALIASES, *COMPATIBLE, *providers.provider_ids()]
    matches = get_close_matches(provider.lower(), names, 1)
    suggestion = f" Did you mean '{matches[0]}/...'?" if matches else ""
    return (
        f"the provider {provider!r} is unknown.{suggestion} Without base_url the part before the"
        " slash is a provider's name, such as openai, anthropic, google, groq, mistral, deepseek"
        " or openrouter."
    )


def split_url(url: str) -> SplitResult | None:
    """Return the parts of a URL with its host in ASCII (IDNA), or None if the URL is malformed.
    `urlsplit`'s own errors quote parts of the URL, which may hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        if parts.hostname and not parts.hostname.isascii():
            user, at, place = parts.netloc.rpartition("@")
            host, colon, port = place.partition(":")
            parts = parts._replace(netloc=f"{user}{at}{host.encode('idna').decode()}{colon}{port}")
    except ValueError:
        return None
    return parts


def _own_wire(provider: str, name: str) -> str:
    if provider != "openai":
        return "gemini" if provider == "google" else "anthropic_messages"
    reasons = _REASONING_MODELS.match(name) and not _CHAT_ONLY_MODELS.search(name)
    return "openai_responses" if reasons else "openai_chat"


def _at_address(model: str, base_url: str, wire: str | None) -> Address:
    parts = _validate(base_url)
    path, ending = _split_ending(parts.path)
    provider = providers.provider_of_parts(parts)
    if provider in PROVIDERS and not path:  # a maker's bare host, whose API has a fixed path
        path = urlsplit(PROVIDERS[provider]).path
    url = f"{parts.scheme}://{parts.netloc}{path}"
    sent_model = _model_to_send(model, provider)
    wire = wire or ending
    if not wire and provider in PROVIDERS:
        is_compatible = provider == "google" and "/openai" in path
        wire = "openai_chat" if is_compatible else _own_wire(provider, sent_model)
    elif not wire and provider and provider not in COMPATIBLE:
        entry = find_provider(provider)
        npm, api = entry.sdk_and_address(sent_model) if entry else ("", "")
        wire = _WIRES_OF_SDKS.get(npm) if api.rstrip("/") == url else None
    query = f"?{parts.query}" if parts.query else ""
    return Address(url + query, sent_model, wire or "openai_chat", provider)


def _validate(base_url: str) -> SplitResult:
    url = redact_url(base_url)
    takes = f"LLM: base_url takes an address such as 'https://api.example.com/v1', not {url!r}"
    parts = split_url(base_url.strip())
    if "@" in base_url and (parts is None or parts.username is not None):
        raise ConfigurationError(
            "LLM: base_url takes no user and password; give the key as api_key, or use headers."
        )
    is_http = parts is not None and parts.scheme in ("http", "https") and parts.hostname
    if parts is None or not is_http or len(base_url.split()) > 1:  # white space within
        raise ConfigurationError(f"{takes}.")
    if not (parts.path + parts.query).isascii():
        raise ConfigurationError(
            f"{takes}: its path is not ASCII. Percent-encode it (urllib.parse.quote)."
        )
    if parts.fragment:
        raise ConfigurationError(f"{takes}: remove the fragment.")
    return parts


def _split_ending(path: str) -> tuple[str, str]:
    """Return a path or URL without its wire ending, and the wire of that ending or ""."""
    path = path.rstrip("/")
    for ending, wire in _ENDINGS.items():
        if path.endswith(ending):
            return path.removesuffix(ending).rstrip("/"), wire
    gemini_ending = _GEMINI_ENDING.search(path)
    return (path[: gemini_ending.start()], "gemini") if gemini_ending else (path, "")


def _model_to_send(model: str, provider: str) -> str:
    prefix, slash, name = model.partition("/")
    if provider == "google" and prefix == "models" and name:
        return name
    if not slash or not name or not provider or ALIASES.get(prefix, prefix) != provider:
        return model
    if provider in PROVIDERS:
        return name
    entry = find_provider(provider)
    return model if entry and model in entry.models else name
