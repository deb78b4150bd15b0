"""Reading of Chat Completions answers: a plain answer, or the message assembled from a stream."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import bad_answer, count, read_answer

NAME = "openai_chat"

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_STOP_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
# OpenRouter, DeepSeek, Zhipu and vLLM: the server broke off its answer.
_BROKEN_OFF = {"error", "insufficient_system_resource", "network_error", "abort"}
_MESSAGE_KEYS = {"role", "content", "tool_calls", "refusal"}
REASONING = ("reasoning_content", "reasoning")
_CALL_KEYS = {"index", "id", "type", "function"}


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
    """Parse a plain answer. Raises the error that the answer reports, or `BadResponse` for
    anything else."""
    return read_answer(data, _answers, _read, "a chat completion")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    if not answer.choices:
        raise bad_answer("a chat completion: it has no choices", data)
    choice = answer.choices[0]
    message: Any = _decoder.decode(choice.message)
    if not isinstance(message, dict):
        raise bad_answer("a chat completion: it has no message", data)
    return completion_of(
        cast("dict[str, Any]", message),
        choice.finish_reason,
        answer.usage,
        answer.id,
        answer.model,
        choice.message,
    )


def completion_of(
    message: dict[str, Any],
    finish_reason: Any,
    usage: Any,
    id: Any,
    model: Any,
    raw: msgspec.Raw | None = None,
) -> Completion:
    """Return a completion from a message's parts, plain or assembled from a stream."""
    text, reasoning = _text_and_reasoning(message)
    entries: list[Any] = message.get("tool_calls") or []
    if not isinstance(entries, list):  # pyright: ignore[reportUnnecessaryIsInstance]: a server's JSON
        raise BadResponse(
            f"The answer's tool calls are not a list: {shorten(_json(entries).decode())}"
        )
    calls: list[ToolCall] = []
    seen: set[str] = set()
    needs_native = any(
        value and key not in _MESSAGE_KEYS and (entries or key not in REASONING)
        for key, value in message.items()
    )
    for entry in entries:
        item = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        if not isinstance(item.get("function"), dict):
            raise BadResponse(
                f"The answer has an invalid tool call: {shorten(_json(entry).decode())}"
            )
        id_given = item.get("id") or ""
        # A repeated id is dropped, because each result must find its call.
        provider_id = id_given if isinstance(id_given, str) and id_given not in seen else ""
        seen.add(provider_id)
        function: dict[str, Any] = item["function"]
        calls.append(
            read_call(str(function.get("name") or ""), function.get("arguments"), provider_id)
        )
        needs_native = needs_native or any(
            value and key not in _CALL_KEYS for key, value in item.items()
        )
        needs_native = needs_native or any(
            value and key not in ("name", "arguments") for key, value in function.items()
        )
    needs_native = needs_native or isinstance(message.get("content"), list)
    return Completion(
        text,
        reasoning,
        tuple(calls),
        read_usage(usage),
        _stop_reason(finish_reason, bool(calls)),
        model if isinstance(model, str) else "",
        NAME,
        (msgspec.Raw(_json(message)) if raw is None else raw.copy()) if needs_native else NO_NATIVE,
        id if isinstance(id, str) else "",
    )


def _text_and_reasoning(message: dict[str, Any]) -> tuple[str, str]:
    content: Any = message.get("content")
    reasoning = next(
        (message[key] for key in REASONING if isinstance(message.get(key), str) and message[key]),
        "",
    )
    if isinstance(content, list):  # Mistral sends text and thinking as parts
        parts = cast("list[Any]", content)
        reasoning = reasoning or "".join(_texts(part.get("thinking")) for part in _objects(parts))
        content = _texts(parts)
    refusal: Any = message.get("refusal")
    return (content if isinstance(content, str) else "") or (
        refusal if isinstance(refusal, str) else ""
    ), reasoning


def _texts(parts: Any) -> str:
    return "".join(str(part["text"]) for part in _objects(parts) if part.get("text"))


def _objects(parts: Any) -> list[dict[str, Any]]:
    return (
        [part for part in cast("list[Any]", parts) if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )


def _stop_reason(finish_reason: Any, calls: bool) -> str:
    word = str(finish_reason or "stop")
    if word in _BROKEN_OFF:
        raise ServerError(f"The provider broke off its answer (finish_reason {word!r}).")
    reason = _STOP_REASONS.get(word, word)
    return "tool_calls" if reason == "stop" and calls else reason


def read_usage(counts: Any) -> Usage:
    """Return token counts, zero where they are missing. xAI counts reasoning separately from the
    output, which its total reveals."""
    if not isinstance(counts, dict):
        return Usage()
    usage = cast("dict[str, Any]", counts)
    details: Any = usage.get("prompt_tokens_details")
    input_tokens, output_tokens = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    reasoning_tokens = count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning_tokens and (
        reasoning_tokens > output_tokens
        or count(usage, "total_tokens") == input_tokens + output_tokens + reasoning_tokens
    ):
        output_tokens += reasoning_tokens
    # The second name is DeepSeek's.
    cached = count(details, "cached_tokens") or count(usage, "prompt_cache_hit_tokens")
    return Usage(
        input_tokens, output_tokens, cached, count(details, "cache_write_tokens"), reasoning_tokens
    )
