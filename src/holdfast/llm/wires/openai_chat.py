"""The OpenAI Chat Completions wire, spoken by OpenAI and by most other servers: requests and errors.

Answers are read in `openai_chat_answer`, streams in `openai_chat_stream`. What goes back to a provider with its own answers, beyond text and calls, is only what
`native` has: `tool_calls` entries verbatim (thought signatures in `extra_content`), `reasoning_details`, and the reasoning text of
answers that called tools, which DeepSeek and gpt-oss servers want until the turn is over, and refuse after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import AudioContent, Content, ImageContent, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError, LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import Head, Names, Parser
from holdfast.llm.wires import openai_chat_answer as answer
from holdfast.llm.wires.blocks import as_text, base64, result_text
from holdfast.llm.wires.calls import wire_arguments, wire_id, wire_name
from holdfast.llm.wires.failures import http_error

name = answer.NAME
bound = False
parse = answer.parse

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_json = _encoder.encode

# Parameters that go into the body under their own names.
_PLAIN = ("temperature", "top_p", "stop", "seed", "reasoning_effort", "response_format")
# OpenAI deprecated max_tokens, and its reasoning models refuse it; hardly another server knows the new name.
_NEW_MAX = re.compile(r"(.*/)?(o\d|gpt-5|codex|chatgpt)", re.IGNORECASE)


def path(model: str, stream: bool) -> str:
    """Behind the base URL's path."""
    return "/chat/completions"


def headers(api_key: str) -> dict[str, str]:
    """The headers of every request; a server without keys gets none."""
    found = {"Content-Type": "application/json", "Accept": "*/*"}
    if api_key:
        found["Authorization"] = f"Bearer {api_key}"
    return found


# --- fragments ---------------------------------------------------------------------------------------


def system(text: str) -> bytes:
    """A system message."""
    return _json({"role": "system", "content": text})


def user(content: Sequence[Content]) -> bytes:
    """A user message. Text alone goes as a str, which every server takes; pictures and sound as parts."""
    if all(isinstance(block, TextContent) for block in content):
        return _json({"role": "user", "content": "\n".join([cast(TextContent, block).text for block in content])})
    return _json({"role": "user", "content": [_part(block) for block in content]})


def _part(block: Content) -> dict[str, Any]:
    if isinstance(block, ImageContent):
        return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{base64(block.data)}"}}
    if isinstance(block, AudioContent):
        kind = block.mime_type.rpartition("/")[2].removeprefix("x-")
        return {"type": "input_audio", "input_audio": {"data": base64(block.data), "format": "mp3" if kind == "mpeg" else kind}}
    return {"type": "text", "text": as_text(block)}


def assistant(text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names) -> bytes:
    """An answer of the model, with what must go back of its `native` form."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    own: dict[str, Any] = _decoder.decode(native) if native else {}
    if isinstance(own.get("content"), list):
        message["content"] = own["content"]
    if own.get("reasoning_details"):
        message["reasoning_details"] = own["reasoning_details"]
    if isinstance(own.get("audio"), dict) and own["audio"].get("id"):
        message["audio"] = {"id": own["audio"]["id"]}
    if calls:
        for key in answer.REASONING:
            if own.get(key):
                message[key] = own[key]
        message["tool_calls"] = [_call(call, names) for call in calls]
        entries: list[Any] = own.get("tool_calls") or []
        if len(entries) == len(calls):
            for number, call in enumerate(calls):
                if not call.invalid and entries[number].get("id") == call.provider_id:
                    message["tool_calls"][number] = entries[number]
    return _json(message)


def _call(call: ToolCall, names: Names) -> dict[str, Any]:
    function = {"name": wire_name(call.name, names), "arguments": wire_arguments(call)}
    return {"id": wire_id(call), "type": "function", "function": function}


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """A tool message for each call: text, which is all that the role takes. Pictures follow in a user message."""
    parts: list[dict[str, Any]] = []
    found: list[bytes] = []
    for call, result in batch:
        found.append(_json({"role": "tool", "tool_call_id": wire_id(call), "content": result_text(result)}))
        pictures = [_part(block) for block in result.content if isinstance(block, ImageContent)]
        if pictures:
            parts.append({"type": "text", "text": f"Returned by {call.name} (call {wire_id(call)}):"})
            parts += pictures
    if parts:
        found.append(_json({"role": "user", "content": parts}))
    return b",".join(found)


# --- requests ----------------------------------------------------------------------------------------


def head(model: str, system_prompt: str, tools: Sequence[ToolDefinition], parameters: Mapping[str, Any], names: Names) -> Head:
    """All of a request but its messages.

    `max_output_tokens` is sent as `max_completion_tokens` to OpenAI's and Azure's hosts and for models named o1, o3, gpt-5, ...;
    as `max_tokens` otherwise. `extra_body` comes last and replaces what is of the same name, but its `tools` stand behind ours.
    """
    body: dict[str, Any] = {"model": model}
    if parameters.get("reasoning_budget") is not None:
        raise ConfigurationError(
            "LLM: reasoning_budget cannot be said on the wire openai_chat. Give reasoning_effort, or extra_body in the server's own words."
        )
    for key in _PLAIN:
        if parameters.get(key) is not None:
            body[key] = parameters[key]
    limit = parameters.get("max_output_tokens")
    if limit is not None:
        host = str(parameters.get("host", ""))
        new = host == "api.openai.com" or host.endswith(".openai.azure.com") or _NEW_MAX.match(model)
        body["max_completion_tokens" if new else "max_tokens"] = limit
    if tools:
        from holdfast.tools import styles

        body["tools"] = [styles.openai_chat(tool, wire_name(tool.name, names)) for tool in tools]
        if parameters.get("parallel_tool_calls") is not None:  # refused by OpenAI where there are no tools
            body["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    options = {"include_usage": True, **extra.get("stream_options", {})}
    own = extra.get("tools")
    if isinstance(own, list | tuple):  # tools that the provider runs itself stand beside ours
        body["tools"] = [*body.get("tools", ()), *cast("Sequence[Any]", own)]
    body.update((key, value) for key, value in extra.items() if key not in ("stream_options", "tools"))
    prefix = _json(body)[:-1] + b',"messages":['
    if system_prompt:
        prefix += system(system_prompt)
    return Head(prefix, not system_prompt, b"]}", b'],"stream":true,"stream_options":' + _json(options) + b"}")


def body(head: Head, fragments: Sequence[bytes], stream: bool) -> bytes:
    """A request: one copy of its bytes, whatever their number."""
    suffix = head.stream_suffix if stream else head.suffix
    if not fragments:
        return head.prefix + suffix
    parts = list(fragments)
    parts[-1] += suffix
    if head.first:
        parts[0] = head.prefix + parts[0]
    else:
        parts.insert(0, head.prefix)
    return b",".join(parts)


# --- answers -----------------------------------------------------------------------------------------


def stream() -> Parser:
    """A parser for one streamed answer."""
    from holdfast.llm.wires.openai_chat_stream import ChatStream

    return ChatStream()


def error(status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = "") -> LLMError:
    """The error that a response of another status than 200 means. Header names are in lower case."""
    return http_error(status, headers, body, url, model)
