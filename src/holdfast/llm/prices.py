"""The cost of tokens, from the price table in the `genai-prices` package, without the network.

Importing the package takes 150 ms and 27 MB (pydantic, an HTTP client for its updater, a table of
2300 models). The import therefore waits for the first question about a model that can have a list
price. A model's prices are then compiled once, and each later question takes microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast.content import Usage
from holdfast.llm.providers import ALIASES, COMPATIBLE, PROVIDERS, is_local

if TYPE_CHECKING:
    from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice


def own_prices(prices: Mapping[str, float]) -> Callable[[Usage], float]:
    """Return the function that computes a call's cost in USD by prices per million tokens, as
    `LLM(prices=)` takes them."""

    def per_token(kind: str) -> _Tiers | None:
        return ((0, prices[kind] / 1e6),) if kind in prices else None

    free = ((0, 0.0),)
    table = _Prices(
        input=per_token("input") or free,
        output=per_token("output") or free,
        cached=per_token("cached"),
        written=per_token("written"),
        written_1h=per_token("written_1h"),
        input_audio=per_token("input_audio"),
        input_image=per_token("input_image"),
        reasoning=per_token("reasoning"),
        output_audio=per_token("output_audio"),
        output_image=per_token("output_image"),
        request=prices.get("request", 0.0),
    )
    return table.cost_of


def cost(usage: Usage, model: str, base_url: str = "") -> float | None:
    """Return the cost of `usage` of `model` in USD, by the table's current price. Return None for a
    model that is not in the table or is served on this machine or local network. `usage` must be of
    one model call, because its size selects the price tier of long requests."""
    price_list = _prices(model, base_url)
    if not price_list:
        return None
    prices = price_list[0][1] if len(price_list) == 1 else _current(price_list)
    return prices.cost_of(usage)


OWN_PRICES = (
    *("input", "output", "cached", "written", "written_1h"),
    *("input_audio", "input_image", "reasoning", "output_audio", "output_image"),
    "request",
)
"""The kinds of `LLM(prices=)`: USD per million tokens, and per request."""

_PER_CALL = {"input_mtok", "output_mtok", "input_text_mtok", "output_text_mtok", "requests_kcount"}


# Prices in USD per token by a request's number of input tokens, ordered by size:
# ((0, base), (200_000, more), ...).
_Tiers = tuple[tuple[int, float], ...]


class _Prices(msgspec.Struct, frozen=True):
    """One model's prices. A kind of token whose price is None is charged as the kind that
    contains it."""

    input: _Tiers
    output: _Tiers
    cached: _Tiers | None
    written: _Tiers | None
    written_1h: _Tiers | None
    input_audio: _Tiers | None
    input_image: _Tiers | None
    reasoning: _Tiers | None
    output_audio: _Tiers | None
    output_image: _Tiers | None
    request: float  # USD for each request

    def cost_of(self, usage: Usage) -> float:
        size = usage.input_tokens
        cached = usage.cached_input_tokens
        cache_writes, hour = usage.cache_write_tokens, usage.cache_write_1h_tokens
        # Cached sound and pictures are counted with the cached tokens: no usage tells them apart.
        fresh = max(0, size - cached - cache_writes)
        audio = min(usage.input_audio_tokens, fresh)
        image = min(usage.input_image_tokens, fresh - audio)
        if self.written_1h is None:
            hour = 0
        input_parts = (
            (self.cached, cached),
            (self.written, max(0, cache_writes - hour)),
            (self.written_1h, hour),
            (self.input_audio, audio),
            (self.input_image, image),
        )
        output_parts = (
            (self.reasoning, usage.reasoning_tokens),
            (self.output_audio, usage.output_audio_tokens),
            (self.output_image, usage.output_image_tokens),
        )
        total = self.request
        for base, whole, parts in (
            (self.input, size, input_parts),
            (self.output, usage.output_tokens, output_parts),
        ):
            priced = [(tiers, count) for tiers, count in parts if tiers is not None]
            plain = max(0, whole - sum([count for _, count in priced]))
            for tiers, count in ((base, plain), *priced):
                total += count * _price_at(tiers, size)
        return total


def _price_at(tiers: _Tiers, size: int) -> float:
    price = tiers[0][1]
    for start, higher in tiers[1:]:
        if size > start:
            price = higher
    return price


_PriceList = tuple[tuple["ConditionalPrice | None", _Prices], ...]


def _current(price_list: _PriceList) -> _Prices:
    """Return the last prices whose condition (a first day, hours of the day) holds now, as
    `genai_prices.types.ModelInfo.get_prices` does."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    for condition, prices in reversed(price_list):
        if condition is None or condition.constraint is None or condition.constraint.active(now):
            return prices
    return price_list[0][1]


@lru_cache(maxsize=1024)
def _prices(model: str, base_url: str) -> _PriceList:
    if base_url and is_local(urlsplit(base_url).hostname or ""):
        return ()
    entry = _find(model, base_url)
    if entry is None:
        return ()
    prices: list[tuple[ConditionalPrice | None, ModelPrice]]
    if isinstance(entry.prices, list):
        prices = [(each, each.prices) for each in entry.prices]
    else:
        prices = [(None, entry.prices)]
    if any(vars(price) and not _PER_CALL & vars(price).keys() for _, price in prices):
        return ()  # priced by the minute or the page
    return _compile_all(prices)


def _compile_all(prices: Sequence[tuple[ConditionalPrice | None, ModelPrice]]) -> _PriceList:
    return tuple([(condition, _compile(vars(price))) for condition, price in prices])


def _compile(price: dict[str, Any]) -> _Prices:
    def per_token(key: str, otherwise: str = "") -> _Tiers | None:
        value = price.get(f"{key}_mtok")
        value = price.get(f"{otherwise}_mtok") if value is None else value
        if value is None:
            return None
        tiers = [(0, getattr(value, "base", value))]
        tiers += [(tier.start, tier.price) for tier in getattr(value, "tiers", ())]
        return tuple([(start, float(each) / 1e6) for start, each in tiers])

    free = ((0, 0.0),)
    return _Prices(
        input=per_token("input", "input_text") or free,
        output=per_token("output", "output_text") or free,
        cached=per_token("cache_read"),
        written=per_token("cache_write"),
        written_1h=per_token("cache_write_1h"),
        input_audio=per_token("input_audio"),
        input_image=per_token("input_image"),
        reasoning=per_token("output_reasoning"),
        output_audio=per_token("output_audio"),
        output_image=per_token("output_image"),
        request=float(price.get("requests_kcount") or 0) / 1000,
    )


def _find(model: str, base_url: str) -> ModelInfo | None:
    """Look a model up: by the serving address, the provider in the name, the name alone."""
    from genai_prices.data_snapshot import get_snapshot

    prefix, slash, name = model.partition("/")
    host = urlsplit(base_url).hostname
    addresses = {**PROVIDERS, **COMPATIBLE}.items()
    provider_id = next(
        (id for id, url in addresses if host and urlsplit(url).hostname == host), None
    )
    tries: list[tuple[str, str | None, str | None]] = [(model, None, base_url)] if base_url else []
    tries += [(model, provider_id, None)] if provider_id else []
    tries += [(name, ALIASES.get(prefix, prefix), None)] if slash else []
    tries += [(model, None, None), (model.rpartition("/")[2], None, None)]
    for ref, provider, url in tries:
        try:
            return get_snapshot().find_provider_model(ref, None, provider, url)[1]
        except LookupError:
            continue
    return None
