"""Elements shared by OpenAI's two wires: headers, messages, content parts, token counts, cache
keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, cast

import msgspec

from holdfast.content import Content, EmbeddedResource, ImageContent, TextContent, Usage
from holdfast.llm.wires import protocol
from holdfast.llm.wires.answers import as_dict, count
from holdfast.llm.wires.calls import digest, wire_name
from holdfast.llm.wires.content_parts import Part, media_of, written_type
from holdfast.llm.wires.plain import Plain, Tokens
from holdfast.llm.wires.protocol import Names, Parameters, Tools

# The longest item id, call id of Responses, and cache key, in characters: "string too long.
# Expected a string with maximum length 64".
MAX_ID_CHARS = 64

# xAI counts its prices in these: "1 USD = 10 billion ticks".
_TICKS_PER_USD = 10_000_000_000

_PARALLEL = {"parallel_tool_calls": "parallel_tool_calls"}

_json = msgspec.json.Encoder().encode


def headers(api_key: str) -> dict[str, str]:
    return {**protocol.JSON_HEADERS, **({"Authorization": f"Bearer {api_key}"} if api_key else {})}


def system(text: str) -> bytes:
    return _json({"role": "system", "content": text})


def user(content: Sequence[Content], part: Callable[[Content], Part]) -> bytes:
    """Encode text alone as a str, which every server accepts; any other content as parts."""
    if all(isinstance(block, TextContent) for block in content):
        texts = [cast(TextContent, block).text for block in content]
        return _json({"role": "user", "content": "\n".join(texts)})
    return _json({"role": "user", "content": [part(block) for block in content]})


def picture(block: Content) -> str:
    """Return a picture, alone or in a resource, as a data URL; "" for any other block."""
    media = media_of(block) if isinstance(block, ImageContent | EmbeddedResource) else None
    if media is None or not (media.kind == "image" or isinstance(block, ImageContent)):
        return ""
    return f"data:{written_type(block, media)};base64,{media.data}"


def document(block: Content) -> Part | None:
    """Return the name and data of a PDF file in a resource, under the keys of both APIs."""
    media = media_of(block) if isinstance(block, EmbeddedResource) else None
    if media is None or media.mime_type != "application/pdf":
        return None
    title = str(cast(EmbeddedResource, block).resource.get("uri") or "").rpartition("/")[2]
    return {"filename": title or "file.pdf", "file_data": media.data_url}


def read_usage(counts: Any, input_word: str, output_word: str) -> Usage:
    """Return token counts, zero where they are missing. `input_word` and `output_word` are the
    API's words for both directions. Servers that count reasoning separately from the output, such
    as xAI's, reveal it by the total."""
    if not isinstance(counts, dict):
        return Usage()
    usage = cast("dict[str, Any]", counts)
    # Mistral also writes prompt_token_details.
    input_details = as_dict(
        usage.get(f"{input_word}_tokens_details") or usage.get(f"{input_word}_token_details")
    )
    output_details = as_dict(usage.get(f"{output_word}_tokens_details"))
    return usage_of(
        TokenCounts(
            count(usage, f"{input_word}_tokens"),
            count(usage, f"{output_word}_tokens"),
            count(usage, "total_tokens"),
            TokenDetails(
                count(input_details, "cached_tokens") or _first_count(usage, _CACHED),
                count(input_details, "cache_write_tokens"),
                count(input_details, _CACHE_CREATION) or count(usage, _CACHE_CREATION),
                audio_tokens=count(input_details, "audio_tokens"),
                image_tokens=count(input_details, "image_tokens"),
            ),
            TokenDetails(
                # The second name is Perplexity's.
                reasoning_tokens=count(output_details, "reasoning_tokens")
                or count(usage, "reasoning_tokens"),
                audio_tokens=count(output_details, "audio_tokens"),
                image_tokens=count(output_details, "image_tokens"),
            ),
        )
    )


class TokenDetails(Plain):
    """The counts within the tokens of one direction, under OpenAI's names."""

    cached_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    cache_creation_input_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    audio_tokens: Tokens = 0
    image_tokens: Tokens = 0
    text_tokens: Tokens = 0
    accepted_prediction_tokens: Tokens = 0
    rejected_prediction_tokens: Tokens = 0


class TokenCounts(Plain):
    """The token counts of an answer. Each API has its own names for the counts of both
    directions."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    total_tokens: Tokens = 0
    input_details: TokenDetails | None = None
    output_details: TokenDetails | None = None


_NO_DETAILS = TokenDetails()


def usage_of(counts: TokenCounts) -> Usage:
    """Return the usage of token counts."""
    input_details = counts.input_details or _NO_DETAILS
    output_details = counts.output_details or _NO_DETAILS
    input_tokens, output_tokens = counts.input_tokens, counts.output_tokens
    reasoning = output_details.reasoning_tokens
    if reasoning:
        separate = counts.total_tokens == input_tokens + output_tokens + reasoning
        if reasoning > output_tokens or separate:
            output_tokens += reasoning
    return Usage(
        input_tokens,
        output_tokens,
        input_details.cached_tokens,
        input_details.cache_write_tokens or input_details.cache_creation_input_tokens,
        reasoning,
        input_audio_tokens=input_details.audio_tokens,
        output_audio_tokens=output_details.audio_tokens,
        input_image_tokens=input_details.image_tokens,
        output_image_tokens=output_details.image_tokens,
    )


_CACHE_CREATION = "cache_creation_input_tokens"
# The names of DeepSeek, Mistral, Moonshot and LiteLLM for the cached tokens beside the details.
_CACHED = (
    *("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens"),
    "cache_read_input_tokens",
)


def stated_cost(counts: dict[str, Any]) -> float | None:
    """Return the price in USD that OpenRouter (`cost`), Perplexity (`cost.total_cost`), DeepInfra
    (`estimated_cost`) or xAI (`cost_in_usd_ticks`) states, or None."""
    cost = counts.get("cost")
    places = (cost, as_dict(cost).get("total_cost"), counts.get("estimated_cost"))
    stated = next((value for value in map(_price, places) if value is not None), None)
    if stated is not None and counts.get("is_byok") is True:
        # `cost` is OpenRouter's fee; the upstream provider charges the user's own key.
        upstream = _price(as_dict(counts.get("cost_details")).get("upstream_inference_cost"))
        return None if upstream is None else stated + upstream
    ticks = count(counts, "cost_in_usd_ticks")
    return ticks / _TICKS_PER_USD if stated is None and ticks else stated


def _price(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < inf else None


def _first_count(usage: dict[str, Any], names: Sequence[str]) -> int:
    return next((tokens for name in names if (tokens := count(usage, name))), 0)


def with_reasoning(usage: Usage, tokens: int) -> Usage:
    """Return token counts with reasoning that neither count includes."""
    return msgspec.structs.replace(
        usage,
        output_tokens=usage.output_tokens + tokens,
        reasoning_tokens=usage.reasoning_tokens + tokens,
    )


def cache_key(parameters: Parameters, hosts: tuple[str, ...]) -> dict[str, str]:
    """Return `prompt_cache_key` if the host has one of these endings and caching is on."""
    key = str(parameters.get("cache_key") or "")
    is_enabled = key and parameters.get("prompt_caching") is not False
    if not is_enabled or not str(parameters.get("host")).endswith(hosts):
        return {}
    return {"prompt_cache_key": key if len(key) <= MAX_ID_CHARS else digest(key)}


def with_name(schema: Mapping[str, Any]) -> dict[str, Any]:
    return dict(schema) if schema.get("name") else {**schema, "name": "answer"}


def tool_fields(
    tools: Tools, parameters: Parameters, names: Names, style: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Return the tools of a request in the API's style. `parallel_tool_calls` is only sent with
    tools, because OpenAI refuses the setting alone."""
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": [style(tool, wire_name(tool.name, names)) for tool in tools]}
    return fields | protocol.set_parameters(parameters, _PARALLEL)
