"""Requests that ask a provider for the input tokens of a completion, made from that completion's
body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import BadResponse, ConfigurationError
from holdfast.llm.wires.failures import excerpt
from holdfast.llm.wires.protocol import TEXT_SUFFIX, Wire

_VERTEX_HOST = "aiplatform.googleapis.com"
# The parameters that the endpoints accept. Both refuse others, such as the output limit.
_ANTHROPIC_KEYS = (
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"),
    *("cache_control", "context_management", "mcp_servers", "speed"),
)
_RESPONSES_KEYS = (
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
    *("reasoning", "text", "truncation", "conversation", "previous_response_id", "personality"),
)
_VERTEX_KEYS = ("contents", "systemInstruction", "tools", "generationConfig")

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_counts = msgspec.json.Decoder(dict[str, Any])


def count_request(wire: Wire, model: str, host: str, body: bytes) -> tuple[str, bytes]:
    """Return the path, relative to the base URL's, and the body of the request that counts the
    tokens of a completion with this `body`. Raises `ConfigurationError` for a wire whose API has
    no such request."""
    make = _REQUESTS.get(wire.name.removesuffix(TEXT_SUFFIX))
    if make is None:
        raise ConfigurationError(
            f"count_tokens: the wire {wire.name} has no request that counts tokens. The usage of an"
            " answer has the exact number afterwards; holdfast.agent.tokens estimates it before."
        )
    return make(wire, model, host, body)


def _anthropic(wire: Wire, model: str, host: str, body: bytes) -> tuple[str, bytes]:
    return "/messages/count_tokens", _only(body, _ANTHROPIC_KEYS)


def _responses(wire: Wire, model: str, host: str, body: bytes) -> tuple[str, bytes]:
    return "/responses/input_tokens", _only(body, _RESPONSES_KEYS)


def _gemini(wire: Wire, model: str, host: str, body: bytes) -> tuple[str, bytes]:
    """Vertex AI takes the request's own fields. The Gemini API counts the prompt and the tools only
    inside a whole request, which names its model."""
    path = wire.path(model, False).rpartition(":")[0]
    if host.endswith(_VERTEX_HOST):
        return f"{path}:countTokens", _only(body, _VERTEX_KEYS)
    name = _json(model if "/" in model else f"models/{model}")
    request = {"model": msgspec.Raw(name), **_fields.decode(body)}
    return f"{path}:countTokens", _json({"generateContentRequest": request})


def _only(body: bytes, keys: tuple[str, ...]) -> bytes:
    fields = _fields.decode(body)
    return _json({key: fields[key] for key in keys if key in fields})


_REQUESTS: dict[str, Callable[[Wire, str, str, bytes], tuple[str, bytes]]] = {
    "anthropic_messages": _anthropic,
    "gemini": _gemini,
    "openai_responses": _responses,
}


def read_count(data: bytes) -> int:
    """Return the number of tokens in an answer. Raises `BadResponse`."""
    try:
        fields = _counts.decode(data)
    except ValueError:
        fields = {}
    tokens = fields.get("input_tokens", fields.get("totalTokens"))
    # Vertex AI leaves out a count of zero, and answers a request that it misread in the same way.
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise BadResponse(f"The answer is not a token count: {excerpt(data)}.")
    return tokens
