"""The Gemini wire (`generateContent`), spoken by Google's Gemini API and by Vertex AI.

An answer that holds more than text and calls is sent back verbatim. Gemini signs its thoughts, and
Gemini 3 refuses a history in which a signature is lost or moved to another part.

`base_url` is `https://generativelanguage.googleapis.com/v1beta`, or for Vertex AI, which requires
an OAuth token (`headers={"Authorization": "Bearer ..."}`)::

https://{region}-aiplatform.googleapis.com/v1/projects/{project}/locations/{region}/publishers/google

Messages are in `gemini_messages`, answers in `gemini_answers`, `gemini_details` and
`gemini_stream`. The rest of a request is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from holdfast import errors
from holdfast.llm.completion import Completion
from holdfast.llm.wires import gemini_messages, protocol
from holdfast.llm.wires.calls import wire_name
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.gemini_answers import WIRE_NAME, read_answer
from holdfast.llm.wires.gemini_messages import assistant, call_id, family, results, system, user
from holdfast.llm.wires.gemini_stream import GeminiStream, read_chunks
from holdfast.llm.wires.protocol import Names, Parameters, RequestHead, Tools
from holdfast.tools import styles

__all__ = ["assistant", "call_id", "family", "results", "system", "user"]

name = WIRE_NAME
bound = True  # a host refuses the signatures of another
stream = GeminiStream
error = http_error

_json = msgspec.json.Encoder().encode

_FULL_NAMES = ("models/", "tunedModels/", "publishers/", "projects/", "endpoints/")

# Parameter -> its name in `generationConfig`.
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_output_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
# Effort -> the level, and for models before Gemini 3, which have no levels, the budget in tokens.
# 24576 is the limit of 2.5 Flash.
_EFFORTS = {
    "none": ("MINIMAL", 0),
    "minimal": ("MINIMAL", 512),
    "low": ("LOW", 2048),
    "medium": ("MEDIUM", 8192),
    "high": ("HIGH", 24576),
    "xhigh": ("HIGH", 24576),
    "max": ("HIGH", 24576),
}
_THINKING_AMOUNTS = {"thinkingBudget", "thinkingLevel"}
_MIN_PRO_BUDGET_TOKENS = 128  # tokens; 2.5 Pro cannot turn thinking off


def path(model: str, stream: bool) -> str:
    """Return the path. A full name (`models/...`, `publishers/...`) is used unchanged."""
    full = model if model.startswith(_FULL_NAMES) else f"models/{model}"
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/{quote(full, safe='/-._~@:')}:{method}"


def headers(api_key: str) -> dict[str, str]:
    return {**protocol.JSON_HEADERS, **({"x-goog-api-key": api_key} if api_key else {})}


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its messages.

    Tools' schemas are sent unchanged (`parametersJsonSchema`). `extra_body` is merged last. Objects
    present on both sides (`generationConfig`, its `thinkingConfig`, `toolConfig`) are merged, and
    `tools` are appended to the agent's. All other entries replace those of the same name. With a
    `cachedContent`, the system prompt and tools are left to the cache, because the API refuses both
    beside it.

    Raises `ConfigurationError` for settings that the API does not support.
    """
    extra: Parameters = parameters.get("extra_body") or {}
    if "contents" in extra:
        raise errors.ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'contents'."
        )
    if parameters.get("parallel_tool_calls") is False:
        raise errors.ConfigurationError(
            "LLM: parallel_tool_calls=False is not supported by Gemini, which has no such setting;"
            " leave it out."
        )
    body: dict[str, Any] = {}
    if "cachedContent" not in extra:
        if system_prompt:
            body["systemInstruction"] = {"parts": [{"text": system_prompt}]}
        if tools:
            declarations = [styles.gemini(tool, wire_name(tool.name, names)) for tool in tools]
            body["tools"] = [{"functionDeclarations": declarations}]
    config = _generation_config(model, parameters)
    if config:
        body["generationConfig"] = config
    for key, value in extra.items():
        ours = body.get(key)
        if key == "tools" and isinstance(ours, list) and isinstance(value, list):
            value = [*cast("list[Any]", ours), *cast("list[Any]", value)]
        elif isinstance(ours, dict) and isinstance(value, dict):
            value = _merge(cast("dict[str, Any]", ours), cast("dict[str, Any]", value))
        body[key] = value
    prefix = _json(body)[:-1] + (b',"contents":[' if body else b'"contents":[')
    return RequestHead(prefix, stream_suffix=b"]}")


def _merge(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Merge two objects of one name, and likewise their `thinkingConfig`. The API refuses a budget
    and a level together, so a level in `theirs` replaces a budget in `ours`, and the reverse."""
    fields = {**ours, **theirs}
    thinking, other = ours.get("thinkingConfig"), theirs.get("thinkingConfig")
    if isinstance(thinking, dict) and isinstance(other, dict):
        config = cast("dict[str, Any]", thinking)
        if other.keys() & _THINKING_AMOUNTS:
            config = {key: config[key] for key in config if key not in _THINKING_AMOUNTS}
        fields["thinkingConfig"] = {**config, **cast("dict[str, Any]", other)}
    return fields


def _generation_config(model: str, parameters: Parameters) -> dict[str, Any]:
    config = protocol.set_parameters(parameters, _PARAMETERS)
    seed = parameters.get("seed")
    if seed is not None and not -(2**31) <= seed < 2**31:
        raise errors.ConfigurationError(
            f"LLM: seed takes a number of 32 bits for Gemini, not {seed}."
        )
    form: Parameters = parameters.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
        if form["type"] == "json_schema":
            config["responseJsonSchema"] = form["json_schema"]["schema"]
    budget, effort = parameters.get("reasoning_budget"), parameters.get("reasoning_effort")
    if budget is not None:
        config["thinkingConfig"] = _budget_config(budget)
    elif effort is not None:
        config["thinkingConfig"] = _thinking_config(model.lower(), effort)
    return config


def _budget_config(tokens: int) -> dict[str, Any]:
    # The API refuses `includeThoughts` together with a budget of 0.
    return {"thinkingBudget": tokens, "includeThoughts": True} if tokens else {"thinkingBudget": 0}


def _thinking_config(model: str, effort: str) -> dict[str, Any]:
    """Return the nearest thinking level that the model has, or before Gemini 3 a budget."""
    if effort not in _EFFORTS:
        raise errors.ConfigurationError(
            f"LLM: reasoning_effort takes one of {', '.join(_EFFORTS)} for Gemini, not {effort!r}."
        )
    level, budget = _EFFORTS[effort]
    version = gemini_messages.version(model)
    if version < (3, 0):
        return _budget_config(max(budget, _MIN_PRO_BUDGET_TOKENS if "pro" in model else 0))
    if level == "MINIMAL" and not ("flash" in model and version < (3, 7)):
        # Pro models and Flash from 3.7 on lack this level.
        level = "LOW"
    if level == "MEDIUM" and version == (3, 0) and "pro" in model:  # has only LOW and HIGH
        level = "HIGH"
    return {"thinkingLevel": level, "includeThoughts": True}


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    return protocol.join_body(head, gemini_messages.in_order(fragments), stream)


def parse(data: bytes) -> Completion:
    """Parse a plain answer, or a stream without `alt=sse`: a JSON array of all chunks."""
    return read_chunks(data) if data.lstrip()[:1] == b"[" else read_answer(data)
