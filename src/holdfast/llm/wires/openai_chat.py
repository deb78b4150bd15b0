"""The OpenAI Chat Completions wire, spoken by OpenAI and by most other servers: requests, plain answers, errors.

Streams are in `openai_chat_stream`. What goes back to a provider with its own answers, beyond text and calls, is only what
`native` has: `tool_calls` entries verbatim (thought signatures in `extra_content`), `reasoning_details`, and the reasoning text of
answers that called tools, which DeepSeek and gpt-oss servers want until the turn is over, and refuse after it.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import AudioContent, Content, EmbeddedResource, ImageContent, ResourceLink, TextContent, ToolCall, ToolResult, Usage
from holdfast.errors import BadResponse, LLMError, ServerError
from holdfast.events import ToolDefinition
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import Head, Names, Parser
from holdfast.llm.wires.calls import read_call, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.failures import http_error, reported_error, shorten
from holdfast.llm.wires.lenient import clean, decode

name = "openai_chat"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_json = _encoder.encode

# Parameters that go into the body under their own names.
_PLAIN = ("temperature", "top_p", "stop", "seed", "reasoning_effort", "response_format")
# OpenAI deprecated max_tokens, and its reasoning models refuse it; hardly another server knows the new name.
_NEW_MAX = re.compile(r"(.*/)?(o\d|gpt-5|codex|chatgpt)", re.IGNORECASE)
_STOP_REASONS = {
    "stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop",
    "tool_calls": "tool_calls", "function_call": "tool_calls", "tool_use": "tool_calls",
    "length": "length", "max_tokens": "length", "model_length": "length",
    "content_filter": "content_filter", "sensitive": "content_filter",
}  # fmt: skip
# OpenRouter, DeepSeek, Zhipu, vLLM: the server broke off, whatever came before.
_BROKEN = {"error", "insufficient_system_resource", "network_error", "abort"}
_BASIC = {"role", "content", "tool_calls", "refusal"}
_REASONING = ("reasoning_content", "reasoning")
_CALL = {"index", "id", "type", "function"}


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
        return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{_base64(block.data)}"}}
    if isinstance(block, AudioContent):
        kind = block.mime_type.rpartition("/")[2].removeprefix("x-")
        return {"type": "input_audio", "input_audio": {"data": _base64(block.data), "format": "mp3" if kind == "mpeg" else kind}}
    return {"type": "text", "text": _as_text(block)}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _as_text(block: Content) -> str:
    """A block for a place that takes only text."""
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return ""
        case AudioContent():
            return f"[{block.mime_type}, {len(block.data)} bytes, not shown]"
        case ResourceLink():
            return f"[{block.name or 'resource'}: {block.uri}]"
        case EmbeddedResource():
            text = block.resource.get("text")
            return text if isinstance(text, str) else f"[resource {block.resource.get('uri', '')}, not shown]"


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
        for key in _REASONING:
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


def tool(call: ToolCall, result: ToolResult, names: Names) -> bytes:
    """The answer to one call: text, which is all that the role takes. Pictures follow by `after_tools`."""
    texts = [_as_text(block) for block in result.content if not isinstance(block, ImageContent)]
    pictures = len(result.content) - len(texts)
    text = "\n".join(texts)
    if not text and not result.content and result.structured_content is not None:
        text = _json(result.structured_content).decode()
    if not text and result.is_error:
        text = f"Error: {result.error.message if result.error and result.error.message else 'the tool failed without saying why.'}"
    if not text:
        text = f"({pictures} image{'s' if pictures > 1 else ''}, shown below)" if pictures else "(no output)"
    return _json({"role": "tool", "tool_call_id": wire_id(call), "content": text})


def after_tools(batch: Sequence[tuple[ToolCall, ToolResult]]) -> bytes:
    """The pictures of a batch, in a user message; b"" if there are none."""
    parts: list[dict[str, Any]] = []
    for call, result in batch:
        pictures = [_part(block) for block in result.content if isinstance(block, ImageContent)]
        if pictures:
            parts.append({"type": "text", "text": f"Returned by {call.name} (call {wire_id(call)}):"})
            parts += pictures
    return _json({"role": "user", "content": parts}) if parts else b""


# --- requests ----------------------------------------------------------------------------------------


def head(model: str, system_prompt: str, tools: Sequence[ToolDefinition], parameters: Mapping[str, Any], names: Names) -> Head:
    """All of a request but its messages.

    `max_output_tokens` is sent as `max_completion_tokens` to OpenAI's and Azure's hosts and for models named o1, o3, gpt-5, ...;
    as `max_tokens` otherwise. `extra_body` comes last and replaces what is of the same name.
    """
    body: dict[str, Any] = {"model": model}
    for key in _PLAIN:
        if parameters.get(key) is not None:
            body[key] = parameters[key]
    limit = parameters.get("max_output_tokens")
    if limit is not None:
        host = str(parameters.get("host", ""))
        new = host == "api.openai.com" or host.endswith(".openai.azure.com") or _NEW_MAX.match(model)
        body["max_completion_tokens" if new else "max_tokens"] = limit
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": wire_name(tool.name, names), "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in tools
        ]
        if parameters.get("parallel_tool_calls") is not None:  # refused by OpenAI where there are no tools
            body["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    options = {"include_usage": True, **extra.get("stream_options", {})}
    body.update((key, value) for key, value in extra.items() if key != "stream_options")
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


class _Choice(msgspec.Struct):
    message: msgspec.Raw = NO_NATIVE
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    id: Any = ""
    model: Any = ""
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """A plain answer. Raises the error that it reports, or `BadResponse` for what is no answer."""
    try:
        try:
            answer = _answers.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = _json(clean(decode(data)))
            answer = _answers.decode(data)
        if answer.error:
            raise reported_error(answer.error)
        if not answer.choices:
            raise BadResponse(f"The answer has no choices: {shorten(data.decode('utf-8', 'replace'))}")
        message: Any = _decoder.decode(answer.choices[0].message)
    except BadResponse:
        raise
    except ValueError:  # from either decoder
        raise BadResponse(f"The answer is not a chat completion: {shorten(data.decode('utf-8', 'replace'))}") from None
    if not isinstance(message, dict):
        raise BadResponse(f"The answer has no message: {shorten(data.decode('utf-8', 'replace'))}")
    return completion_of(
        cast("dict[str, Any]", message), answer.choices[0].finish_reason, answer.usage, answer.id, answer.model, answer.choices[0].message
    )


def completion_of(message: dict[str, Any], finish: Any, usage: Any, id: Any, model: Any, raw: msgspec.Raw | None = None) -> Completion:
    """A completion of a message's parts, plain or put together from a stream."""
    text, reasoning = _text_and_reasoning(message)
    entries: list[Any] = message.get("tool_calls") or []
    calls: list[ToolCall] = []
    seen: set[str] = set()
    more = any(value and key not in _BASIC and (entries or key not in _REASONING) for key, value in message.items())
    for entry in entries:
        item = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if not isinstance(item.get("function"), dict):
            raise BadResponse(f"The answer has a tool call that is none: {shorten(_json(entry).decode())}")
        id_given = item.get("id") or ""
        provider_id = id_given if isinstance(id_given, str) and id_given not in seen else ""  # a result must find its call
        seen.add(provider_id)
        function: dict[str, Any] = item["function"]
        calls.append(read_call(str(function.get("name") or ""), function.get("arguments"), provider_id))
        more = more or any(value and key not in _CALL for key, value in item.items())
        more = more or any(value and key not in ("name", "arguments") for key, value in function.items())
    more = more or isinstance(message.get("content"), list)
    return Completion(
        text,
        reasoning,
        tuple(calls),
        read_usage(usage),
        _stop_reason(finish, bool(calls)),
        model if isinstance(model, str) else "",
        name,
        (msgspec.Raw(_json(message)) if raw is None else raw.copy()) if more else NO_NATIVE,
        id if isinstance(id, str) else "",
    )


def _text_and_reasoning(message: dict[str, Any]) -> tuple[str, str]:
    content: Any = message.get("content")
    reasoning = next((message[key] for key in _REASONING if isinstance(message.get(key), str) and message[key]), "")
    if isinstance(content, list):  # Mistral: text and thinking as parts
        parts = cast("list[Any]", content)
        reasoning = reasoning or "".join(_texts(part.get("thinking")) for part in _objects(parts))
        content = _texts(parts)
    return (content if isinstance(content, str) else "") or message.get("refusal") or "", reasoning


def _texts(parts: Any) -> str:
    return "".join(str(part["text"]) for part in _objects(parts) if part.get("text"))


def _objects(parts: Any) -> list[dict[str, Any]]:
    return [part for part in cast("list[Any]", parts) if isinstance(part, dict)] if isinstance(parts, list) else []


def _stop_reason(finish: Any, calls: bool) -> str:
    if finish in _BROKEN:
        raise ServerError(f"The provider broke off its answer (finish_reason {finish!r}).")
    reason = _STOP_REASONS.get(finish, str(finish or "stop"))
    return "tool_calls" if reason == "stop" and calls else reason


def read_usage(found: Any) -> Usage:
    """Token counts, zero where there are none. xAI counts reasoning beside the output rather than in it: its total shows that."""
    if not isinstance(found, dict):
        return Usage()
    usage = cast("dict[str, Any]", found)
    details = cast("dict[str, Any]", usage.get("prompt_tokens_details") or {})
    given = _count(usage, "prompt_tokens")
    made = _count(usage, "completion_tokens")
    thought = _count(cast("dict[str, Any]", usage.get("completion_tokens_details") or {}), "reasoning_tokens")
    if thought and (thought > made or _count(usage, "total_tokens") == given + made + thought):
        made += thought
    cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens")  # the latter is DeepSeek's
    return Usage(given, made, cached, _count(details, "cache_write_tokens"), thought)


def _count(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key)
    return int(value) if isinstance(value, int | float) else 0


def stream() -> Parser:
    """A parser for one streamed answer."""
    from holdfast.llm.wires.openai_chat_stream import StreamParser

    return StreamParser()


def error(status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = "") -> LLMError:
    """The error that a response of another status than 200 means. Header names are in lower case."""
    return http_error(status, headers, body, url, model)
