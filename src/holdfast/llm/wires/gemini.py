"""Requests of the Gemini wire (`generateContent`), spoken by Google's Gemini API and by Vertex AI.

An answer that holds more than text and calls is sent back as exactly the content that came. Gemini
signs its thoughts, and Gemini 3 refuses a history in which a signature is lost or moved to another
part.

`base_url` is `https://generativelanguage.googleapis.com/v1beta`, or for Vertex AI, which
requires an OAuth token (`headers={"Authorization": "Bearer ..."}`)::

    https://{region}-aiplatform.googleapis.com/v1/projects/{project}/locations/{region}/publishers/google
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from holdfast.content import Content, EmbeddedResource, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import gemini_answers as answers
from holdfast.llm.wires.calls import wire_name
from holdfast.llm.wires.content_parts import (
    Part,
    as_text,
    caption,
    media,
    result_text,
    with_mentions,
)
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import Names, RequestHead
from holdfast.llm.wires.requests import join_body, no_family, set_parameters
from holdfast.tools import styles

name = answers.NAME
bound = True  # a host refuses the signatures of another
family = no_family
parse = answers.parse
stream = answers.GeminiStream
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

# Gemini 3 refuses a call of the current turn without a signature. Google's documentation of thought
# signatures gives this substitute for calls of another model, on Gemini API and Vertex AI alike.
# Older models need no signature but also receive it, because a fragment is not bound to one model.
_NO_SIGNATURE = "skip_thought_signature_validator"

_USER = b'{"role":"user"'
# The API requires requests to begin and end with a user's content. The beginning may have been
# condensed away, and an answer from another provider may end in a pause.
_OPENING_MESSAGE = b'{"role":"user","parts":[{"text":"(what came before is not shown)"}]}'
_CONTINUE_MESSAGE = b'{"role":"user","parts":[{"text":"Go on."}]}'

_FULL_NAMES = ("models/", "tunedModels/", "publishers/", "projects/", "endpoints/")
_MEDIA_TYPES = ("image/", "audio/", "video/", "application/pdf")
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")

# Parameter -> its name in `generationConfig`.
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_output_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
_LEVELS = {
    "none": "MINIMAL",
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
# Tokens, for models before Gemini 3, which have no levels. 24576 is the limit of 2.5 Flash.
_BUDGET_TOKENS = {
    "none": 0,
    "minimal": 512,
    "low": 2048,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_MIN_PRO_BUDGET_TOKENS = 128  # tokens; 2.5 Pro cannot turn thinking off


def path(model: str, stream: bool) -> str:
    """Return the path after the base URL's path. A model's full name (`models/...`,
    `tunedModels/...`, `publishers/...`) is used unchanged."""
    full = model if model.startswith(_FULL_NAMES) else f"models/{model}"
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/{quote(full, safe='/-._~@:')}:{method}"


def headers(api_key: str) -> dict[str, str]:
    """Return the headers of every request. Without a key, no key header is sent, because Vertex
    AI takes a token instead."""
    key = {"x-goog-api-key": api_key} if api_key else {}
    return {"Content-Type": "application/json", "Accept": "*/*", **key}


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call if the model assigned one. Calls without ids are matched by their
    order."""
    return call.provider_id


# --- fragments ---


def system(text: str) -> bytes:
    """Encode a system message between others as a user message marked as such, because the API
    accepts none there."""
    return _content([{"text": f"<system>\n{text}\n</system>"}])


def user(content: Sequence[Content]) -> bytes:
    """Encode a user message: text, pictures, sound, and resources of kinds that the models can
    read, such as PDF."""
    parts = [_media_part(block) or {"text": as_text(block)} for block in content]
    return _content(parts or [{"text": ""}])


def _content(parts: list[Part]) -> bytes:
    return _json({"role": "user", "parts": parts})


def _media_part(block: Content) -> Part | None:
    """Return a block as inline data, or None if the API accepts no such data."""
    kind, data = media(block)
    if isinstance(block, EmbeddedResource):
        accepted = kind.startswith(_MEDIA_TYPES)
    else:
        accepted = bool(kind or data)
    return {"inlineData": {"mimeType": kind, "data": data}} if accepted else None


class _CallShape(msgspec.Struct):
    name: str = ""
    id: Any = ""


class _PartShape(msgspec.Struct, rename="camel"):
    function_call: _CallShape | None = None
    thought_signature: Any = None


class _ContentShape(msgspec.Struct):
    parts: list[_PartShape] = []


class _Native(msgspec.Struct):
    content: msgspec.Raw


_natives = msgspec.json.Decoder(_Native)
_content_shapes = msgspec.json.Decoder(_ContentShape)


def assistant(
    text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names, family: str = ""
) -> bytes:
    """Encode an answer of the model. The content is sent back verbatim if its calls still have the
    same names and ids.

    Without `native`, or if its calls are not the answer's, a new content is built from text and
    calls. The first call then carries the documented substitute for a missing signature.
    """
    if native:
        content = _natives.decode(native).content
        parts = _content_shapes.decode(content).parts
        native_calls = [part.function_call for part in parts if part.function_call]
        if len(native_calls) == len(calls):
            same = all(
                one.name == _name(call, names) and (one.id or "") == call.provider_id
                for one, call in zip(native_calls, calls, strict=True)
            )
            signed = not calls or any(part.thought_signature for part in parts)
            if same and signed:
                return bytes(content) if parts else b""
            return _renamed(content, calls, names, signed)
    new_parts: list[dict[str, Any]] = [{"text": text}] if text else []
    for call in calls:
        part: dict[str, Any] = {"functionCall": _function_call(call, names)}
        if call is calls[0]:
            part["thoughtSignature"] = _NO_SIGNATURE
        new_parts.append(part)
    return _json({"role": "model", "parts": new_parts}) if new_parts else b""


def _function_call(call: ToolCall, names: Names) -> dict[str, Any]:
    function_call: dict[str, Any] = {
        "name": _name(call, names),
        "args": {"invalid_json": call.raw} if call.invalid else call.arguments,
    }
    if call.provider_id:
        function_call["id"] = call.provider_id
    return function_call


def _renamed(raw: msgspec.Raw, calls: Sequence[ToolCall], names: Names, signed: bool) -> bytes:
    """Return a content whose calls have the names and ids of their results. A model may call a
    tool that does not exist, or use one id for two calls."""
    content: Any = _decoder.decode(raw)
    entries = [part for part in content["parts"] if part.get("functionCall")]
    for part, call in zip(entries, calls, strict=True):
        part["functionCall"]["name"] = _name(call, names)
        part["functionCall"].pop("id", None)
        if call.provider_id:
            part["functionCall"]["id"] = call.provider_id
    if not signed:
        entries[0]["thoughtSignature"] = _NO_SIGNATURE
    return _json(content)


def _name(call: ToolCall, names: Names) -> str:
    return answers.name_to_wire(wire_name(call.name, names))


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """Encode one `functionResponse` for each call, all in one content, because the API counts them.

    Pictures and sound follow in a content of their own. Only Gemini 3 accepts them within the
    response, and beside it they break the count. The response is `{"output": ...}` or `{"error":
    ...}`: the text, or the structured content of a result that has nothing else.
    """
    responses: list[Part] = []
    media_parts: list[Part] = []
    for call, result in batch:
        name, id = _name(call, names), call.provider_id
        output: Any = result.structured_content
        if result.content or output is None:
            parts = [_media_part(block) for block in result.content]
            if any(parts):
                media_parts.append({"text": caption(name, id)})
                media_parts += [part for part in parts if part]
                kinds = [part["inlineData"]["mimeType"] if part else "" for part in parts]
                result = with_mentions(result, kinds)
            output = result_text(result)
        outcome = {"error" if result.is_error else "output": output}
        response: Part = {"name": name, "response": outcome}
        if id:
            response["id"] = id
        responses.append({"functionResponse": response})
    return _content(responses) + (b"," + _content(media_parts) if media_parts else b"")


# --- requests ---


def head(
    model: str,
    system_prompt: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    names: Names,
) -> RequestHead:
    """Return all of a request except its messages.

    Tools' schemas are sent unchanged (`parametersJsonSchema`). `extra_body` is merged last. Objects
    present on both sides (`generationConfig`, its `thinkingConfig`, `toolConfig`) are merged,
    `tools` are appended to the agent's, and all other entries replace those of the same name. With
    a `cachedContent` in it, the system prompt and tools are left to the cache, because the API
    refuses them beside it.

    Raises `ConfigurationError` for settings that the API does not support.
    """
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    if "contents" in extra:
        raise ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'contents'."
        )
    if parameters.get("parallel_tool_calls") is False:
        raise ConfigurationError(
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
            value = _merged(cast("dict[str, Any]", ours), cast("dict[str, Any]", value))
        body[key] = value
    if b'"streamFunctionCallArguments":true' in _json(extra.get("toolConfig")):
        raise ConfigurationError(
            "LLM: streamFunctionCallArguments in extra_body is not supported. Without it, arguments"
            " arrive whole."
        )
    prefix = _json(body)[:-1] + (b',"contents":[' if body else b'"contents":[')
    return RequestHead(prefix, True, b"]}", b"]}")


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = {**ours, **theirs}
    for key in ours.keys() & theirs.keys() & {"thinkingConfig"}:
        merged[key] = {**ours[key], **(theirs[key] or {})}
    return merged


def _generation_config(model: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    config = set_parameters(parameters, _PARAMETERS)
    seed = parameters.get("seed")
    if seed is not None and not -(2**31) <= seed < 2**31:
        raise ConfigurationError(f"LLM: seed takes a number of 32 bits for Gemini, not {seed}.")
    form: Mapping[str, Any] = parameters.get("response_format") or {}
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


def _version(model: str) -> tuple[int, int]:
    found = _VERSION.search(model)
    # A name without a number, such as gemini-flash-latest, belongs to a new model.
    return (int(found[1]), int(found[2] or 0)) if found else (9, 0)


def _thinking_config(model: str, effort: str) -> dict[str, Any]:
    """Return a thinking level, or for models before Gemini 3 a budget. A level that the model
    lacks becomes the nearest one that it has."""
    if effort not in _LEVELS:
        raise ConfigurationError(
            f"LLM: reasoning_effort takes one of {', '.join(_LEVELS)} for Gemini, not {effort!r}."
        )
    version = _version(model)
    if version < (3, 0):
        min_budget = _MIN_PRO_BUDGET_TOKENS if "pro" in model else 0
        return _budget_config(max(_BUDGET_TOKENS[effort], min_budget))
    level = _LEVELS[effort]
    if level == "MINIMAL" and not ("flash" in model and version < (3, 7)):
        # Pro models and Flash from 3.7 on lack this level.
        level = "LOW"
    if level == "MEDIUM" and version == (3, 0) and "pro" in model:  # has only LOW and HIGH
        level = "HIGH"
    return {"thinkingLevel": level, "includeThoughts": True}


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return the bytes of a request."""
    parts = list(fragments)
    if parts and not parts[-1].startswith(_USER):
        parts.append(_CONTINUE_MESSAGE)
    if parts and not parts[0].startswith(_USER):
        parts.insert(0, _OPENING_MESSAGE)
    return join_body(head, parts, stream)
