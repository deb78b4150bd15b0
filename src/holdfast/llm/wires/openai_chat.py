"""Requests of the Chat Completions wire, spoken by OpenAI and by most other servers.

Beyond text and calls, a provider receives back only these parts of its own answers, from `native`:

- extra fields of `tool_calls` entries (thought signatures in `extra_content`)
- `reasoning_details`
- the reasoning text of answers that called tools; DeepSeek and gpt-oss servers require it until
  the turn is over, and refuse it afterwards
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import AudioContent, Content, EmbeddedResource, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.llm.providers import maker
from holdfast.llm.wires import openai_chat_answers as answers
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
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
from holdfast.llm.wires.requests import join_body, set_parameters
from holdfast.tools import styles

name = answers.NAME
bound = False
headers = common.headers
system = common.system
parse = answers.parse
stream = answers.ChatStream
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_PARAMETERS = {key: key for key in ("temperature", "top_p", "stop", "seed", "reasoning_effort")}
# Azure is not listed: it accepts a cache key only for OpenAI's models, and a deployment's name need
# not reveal its model.
_CACHING_HOSTS = ("api.openai.com",)
_ASSISTANT = b'{"role":"assistant"'
# Follows an answer from another provider that ended in a pause.
_CONTINUE_MESSAGE = b'{"role":"user","content":"Go on."}'
# OpenAI deprecated max_tokens, and its reasoning models refuse it. Few other servers know the new
# name.
_MAX_COMPLETION_TOKENS_MODELS = re.compile(r"(.*/)?(o\d|gpt-5|codex|chatgpt)", re.IGNORECASE)


def path(model: str, stream: bool) -> str:
    """Return the path after the base URL's path."""
    return "/chat/completions"


def family(model: str, host: str) -> str:
    """Return the rules for call ids: `openai`, `mistral`, or "" if none are known."""
    if host.endswith(".mistral.ai"):
        return "mistral"
    if host.endswith(("api.openai.com", ".openai.azure.com")):
        return "openai"
    model_maker = maker(model)
    return model_maker if model_maker in ("openai", "mistral") else ""


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call. Mistral requires exactly 9 letters and digits, OpenAI at most 40
    characters. A legal id is returned unchanged."""
    id = wire_id(call)
    if family == "mistral":
        return id if len(id) == 9 and id.isascii() and id.isalnum() else digest(id)[:9]
    return "call_" + digest(id)[:32] if family == "openai" and len(id) > 40 else id


# --- fragments ---


def user(content: Sequence[Content]) -> bytes:
    """Encode a user message. Text alone becomes a str, which every server accepts; pictures,
    sound and PDF files become parts."""
    return common.user(content, _part)


def _part(block: Content) -> Part:
    url = common.picture(block)
    if url:
        return _picture_part(url)
    file = common.document(block)
    if file:
        return {"type": "file", "file": file}
    if isinstance(block, AudioContent):
        kind = block.mime_type.rpartition("/")[2].removeprefix("x-")
        sound = {"data": media(block)[1], "format": "mp3" if kind == "mpeg" else kind}
        return {"type": "input_audio", "input_audio": sound}
    return {"type": "text", "text": as_text(block)}


def _picture_part(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def assistant(
    text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names, family: str = ""
) -> bytes:
    """Encode an answer of the model, with the required parts of its `native` form."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    native_message: dict[str, Any] = _decoder.decode(native) if native else {}
    if isinstance(native_message.get("content"), list):
        message["content"] = native_message["content"]
    if native_message.get("reasoning_details"):
        message["reasoning_details"] = native_message["reasoning_details"]
    if isinstance(native_message.get("audio"), dict) and native_message["audio"].get("id"):
        message["audio"] = {"id": native_message["audio"]["id"]}
    if calls:
        for key in answers.REASONING_KEYS:
            if native_message.get(key):
                message[key] = native_message[key]
        entries: list[Any] = native_message.get("tool_calls") or []
        if len(entries) != len(calls):
            entries = [{} for _ in calls]
        message["tool_calls"] = [
            _call(call, entry, names) for call, entry in zip(calls, entries, strict=True)
        ]
    return _json(message)


def _call(call: ToolCall, entry: dict[str, Any], names: Names) -> dict[str, Any]:
    """Return a call with the extra fields of its `entry`, such as signatures. Its id is that of
    its result. Its arguments are the entry's own text if that is JSON."""
    wire_call: dict[str, Any] = {**entry} or {
        "id": "",
        "type": "function",
        "function": {"name": wire_name(call.name, names)},
    }
    wire_call["id"] = wire_id(call)
    wire_call.setdefault("type", "function")
    wire_call["function"] = {**wire_call["function"], "arguments": wire_arguments(call)}
    return wire_call


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """Encode a tool message with text for each call, because the role accepts only text. Pictures
    follow in a user message.

    PDF files are not sent. A server without file support would refuse the conversation from then
    on, because of a file that a tool returned.
    """
    picture_parts: list[Part] = []
    messages: list[bytes] = []
    for call, result in batch:
        id = wire_id(call)
        pictures = [common.picture(block) for block in result.content]
        if any(pictures):
            picture_parts.append({"type": "text", "text": caption(call.name, id)})
            picture_parts += [_picture_part(url) for url in pictures if url]
            kinds = [
                str(block.resource["mimeType"])
                if url and isinstance(block, EmbeddedResource)
                else ""
                for block, url in zip(result.content, pictures, strict=True)
            ]
            result = with_mentions(result, kinds)
        messages.append(_json({"role": "tool", "tool_call_id": id, "content": result_text(result)}))
    if picture_parts:
        messages.append(_json({"role": "user", "content": picture_parts}))
    return b",".join(messages)


# --- requests ---


class ChatHead(RequestHead, frozen=True):
    """A request head. `closed` is True if the server refuses a request that ends in an answer of
    the model."""

    closed: bool = False


def head(
    model: str,
    system_prompt: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    names: Names,
) -> RequestHead:
    """Return all of a request except its messages.

    `max_output_tokens` is sent as `max_completion_tokens` to OpenAI's and Azure's hosts and for
    models named o1, o3, gpt-5, ...; otherwise as `max_tokens`. `cache_key` is sent only to
    OpenAI. `extra_body` is merged last and replaces entries of the same name, except that its
    `tools` are appended to the agent's. `stream_options` None in `extra_body` omits the stream
    options.
    """
    if parameters.get("reasoning_budget") is not None:
        raise ConfigurationError(
            "LLM: reasoning_budget is not supported on the wire openai_chat. Give reasoning_effort,"
            " or extra_body with the server's own parameter."
        )
    body: dict[str, Any] = {"model": model, **set_parameters(parameters, _PARAMETERS)}
    form: Mapping[str, Any] | None = parameters.get("response_format")
    if form is not None:
        body["response_format"] = (
            {**form, "json_schema": common.with_name(form["json_schema"])}
            if form.get("json_schema")
            else form
        )
    host = str(parameters.get("host", ""))
    limit = parameters.get("max_output_tokens")
    if limit is not None:
        new_name = (
            host == "api.openai.com"
            or host.endswith(".openai.azure.com")
            or _MAX_COMPLETION_TOKENS_MODELS.match(model)
        )
        body["max_completion_tokens" if new_name else "max_tokens"] = limit
    if tools:
        body["tools"] = [styles.openai_chat(tool, wire_name(tool.name, names)) for tool in tools]
        if parameters.get("parallel_tool_calls") is not None:
            # OpenAI refuses this setting without tools, so it is only sent here.
            body["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    body.update(common.cache_key(parameters, _CACHING_HOSTS))
    extra = dict(parameters.get("extra_body") or {})
    options: Any = extra.pop("stream_options", {})
    if isinstance(options, Mapping):
        options = {"include_usage": True, **cast("Mapping[str, Any]", options)}
    extra_tools = extra.pop("tools", None)
    if isinstance(extra_tools, list | tuple):  # the provider's built-in tools follow the agent's
        body["tools"] = [*body.get("tools", ()), *cast("Sequence[Any]", extra_tools)]
    body.update(extra)
    prefix = _json(body)[:-1] + b',"messages":['
    if system_prompt:
        prefix += system(system_prompt)
    streamed = (
        b'],"stream":true}'
        if options is None
        else b'],"stream":true,"stream_options":' + _json(options) + b"}"
    )
    return ChatHead(prefix, not system_prompt, b"]}", streamed, family(model, host) == "mistral")


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return the bytes of a request."""
    must_close = isinstance(head, ChatHead) and head.closed and fragments
    if must_close and fragments[-1].startswith(_ASSISTANT):
        fragments = [*fragments, _CONTINUE_MESSAGE]
    return join_body(head, fragments, stream)
