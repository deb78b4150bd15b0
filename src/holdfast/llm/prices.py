"""What tokens cost, from the price table that the `genai-prices` package carries. Never asks the network."""

from __future__ import annotations

from holdfast.content import Usage


def cost(usage: Usage, model: str, base_url: str = "") -> float | None:
    """What `usage` of `model` costs in USD, by the table's price of today; None when the table does not know the model."""
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    tokens = Tokens(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
    )
    provider, slash, name = model.partition("/")
    # By the address that serves it, by the provider in its name, then by the name alone: from the surest to the likeliest.
    tries: list[tuple[str, str | None, str | None]] = [(model, None, base_url)] if base_url else []
    tries += [(name, provider, None)] if slash else []
    tries += [(model, None, None), (model.rpartition("/")[2], None, None)]
    for ref, provider_id, url in tries:
        try:
            if url is not None:
                return float(calc_price(tokens, ref, provider_api_url=url).total_price)
            return float(calc_price(tokens, ref, provider_id=provider_id).total_price)
        except (LookupError, ValueError):
            continue
    return None
