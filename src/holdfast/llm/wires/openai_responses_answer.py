"""Reading of Responses answers: a plain answer, or the items assembled from a stream."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, ContentFiltered, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import bad_answer, clean, count, read_answer, whole

NAME = "openai_responses"

_json = msgspec.json.Encoder().encode
_items = msgspec.json.Decoder(list[dict[str, Any]])

_STOP_REASONS = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
# The keys of an item that a completion's text and calls cover, or that carry no information.
_MESSAGE_KEYS = {"id", "type", "role", "status", "content"}
_PART_KEYS = {"type", "text"}
_CALL_KEYS = {"id", "type", "status", "call_id", "name", "arguments"}
# Items that request something other than a function call from the client.
_CLIENT_REQUESTS = {
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
    "mcp_approval_request",
}


class _Answer(msgspec.Struct):
    id: Any = ""
    model: Any = ""
    status: Any = None
    output: msgspec.Raw = NO_NATIVE
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """Parse a plain answer. Raises the error that the answer reports, or `BadResponse` for an
    incomplete answer."""
    return read_answer(data, _answers, _read, "a response")


def _read(answer: _Answer, data: bytes) -> Completion:
    check_status(answer.status, answer.error)
    if not answer.output:
        raise bad_answer("a response: it has no output", data)
    items = _items.decode(answer.output)
    return completion_of(
        items,
        answer.status,
        answer.incomplete_details,
        answer.usage,
        answer.id,
        answer.model,
        answer.output,
    )


def check_status(status: Any, error: Any) -> None:
    """Raise an error for an answer that failed, was cancelled, or is not ready yet."""
    if error or status == "failed":
        raise reported_error(
            error
            or {"code": "server_error", "message": "the answer failed, without a reason given"}
        )
    if status == "cancelled":
        raise ServerError("The provider cancelled its answer.")
    if status in ("queued", "in_progress"):
        pending = BadResponse(
            f"The provider answers in the background (status {status!r}), which is not supported:"
            " leave out background."
        )
        pending.retryable = False
        raise pending


def completion_of(
    items: list[dict[str, Any]],
    status: Any,
    details: Any,
    usage: Any,
    id: Any,
    model: Any,
    raw: msgspec.Raw | None = None,
) -> Completion:
    """Return a completion from an answer's items, plain or assembled from a stream. `raw` is their
    JSON, if available.

    Raises `ContentFiltered` for an answer that was filtered before its first word. Raises
    `BadResponse`, `ValueError`, `TypeError` or `AttributeError` for items of an unexpected
    shape.
    """
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    seen: set[str] = set()
    client_requests: list[dict[str, Any]] = []
    needs_native = has_message = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            needs_native = _read_message(item, texts) or needs_native or has_message or bool(calls)
            has_message = True
        elif kind == "function_call":
            calls.append(_read_call(item, seen))
            needs_native = needs_native or any(
                value and key not in _CALL_KEYS for key, value in item.items()
            )
        elif kind == "reasoning":
            reasoning += thoughts(item)
            needs_native = needs_native or bool(
                item.get("encrypted_content") or item.get("content")
            )
        else:
            needs_native = True
            if kind in _CLIENT_REQUESTS or (
                kind == "tool_search_call" and item.get("execution") == "client"
            ):
                client_requests.append(item)
    reason = "tool_calls" if calls else "stop"
    if status == "incomplete":
        incomplete_reason: Any = (
            cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
        )
        # The answer was cut off, for whatever reason, so it is never reported as complete.
        reason = (
            _STOP_REASONS.get(str(incomplete_reason), str(incomplete_reason))
            if incomplete_reason
            else "length"
        )
        if reason == "content_filter" and not calls and not any(texts):
            raise ContentFiltered(
                "The provider's content filter stopped the answer before it said anything."
            )
    elif status and status != "completed":
        reason = str(status)
    elif client_requests and not calls:
        answered = {
            item.get("call_id") for item in items if str(item.get("type")).endswith("_output")
        }
        reason = next(
            (str(item["type"]) for item in client_requests if item.get("call_id") not in answered),
            reason,
        )
    return Completion(
        whole("".join(texts)),
        whole("\n\n".join(reasoning)),
        tuple(calls),
        read_usage(usage),
        reason,
        whole(model) if isinstance(model, str) else "",
        NAME,
        _native(items, raw) if needs_native else NO_NATIVE,
        whole(id) if isinstance(id, str) else "",
    )


def _native(items: list[dict[str, Any]], raw: msgspec.Raw | None) -> msgspec.Raw:
    if raw is None:
        try:
            return msgspec.Raw(_json(items))
        except UnicodeEncodeError:  # half surrogate pairs
            return msgspec.Raw(_json(clean(items)))
    data = bytes(raw)
    # OpenAI indents its answers. The journal does not need the white space.
    return msgspec.Raw(msgspec.json.format(data, indent=-1) if b"\n" in data else data)


def _read_message(item: dict[str, Any], texts: list[str]) -> bool:
    """Append a message's texts to `texts`. Return True if the message holds more than these. A
    refusal is text, as in Chat Completions."""
    needs_native = any(value and key not in _MESSAGE_KEYS for key, value in item.items())
    content: Any = item.get("content")
    if isinstance(content, str):
        texts.append(content)
        return needs_native
    parts = cast("list[dict[str, Any]]", content or [])
    for part in parts:
        text = part.get("text", "")
        if part.get("type") == "refusal":
            text = part.get("refusal") or ""
        if not isinstance(text, str):
            raise BadResponse(
                f"The answer has text that is not a string: {_excerpt(_json(clean(part)))}"
            )
        texts.append(text)
        needs_native = needs_native or any(
            value and key not in _PART_KEYS for key, value in part.items()
        )
    return needs_native or len(parts) > 1


def _read_call(item: dict[str, Any], seen: set[str]) -> ToolCall:
    name: Any = item.get("name")
    if not isinstance(name, str):
        raise BadResponse(f"The answer has an invalid tool call: {_excerpt(_json(clean(item)))}")
    raw_id: Any = item.get("call_id") or item.get("id") or ""
    # A repeated id is dropped, because each result must find its call.
    provider_id = whole(raw_id) if isinstance(raw_id, str) and raw_id not in seen else ""
    seen.add(provider_id)
    call = read_call(whole(name), item.get("arguments"), provider_id)
    if item.get("status") == "incomplete" and not item.get("arguments"):
        # Cut off before the first argument, which differs from having no arguments.
        return msgspec.structs.replace(
            call, invalid="The arguments are not valid JSON: they end, unfinished, at byte 0."
        )
    return call


def message_text(item: dict[str, Any]) -> str:
    """Return all text of a message item."""
    texts: list[str] = []
    _read_message(item, texts)
    return "".join(texts)


def thoughts(item: dict[str, Any]) -> list[str]:
    """Return the readable texts of a reasoning item: its summaries, or the reasoning itself,
    which open models show."""
    for key in ("summary", "content"):
        texts = [
            str(part["text"])
            for part in cast("list[dict[str, Any]]", item.get(key) or [])
            if part.get("text")
        ]
        if texts:
            return texts
    return []


def read_usage(counts: Any) -> Usage:
    """Return token counts, zero where they are missing. If reasoning was counted separately from
    the output, the total reveals it."""
    if not isinstance(counts, dict):
        return Usage()
    usage = cast("dict[str, Any]", counts)
    details: Any = usage.get("input_tokens_details")
    input_tokens, output_tokens = count(usage, "input_tokens"), count(usage, "output_tokens")
    reasoning_tokens = count(usage.get("output_tokens_details"), "reasoning_tokens")
    if reasoning_tokens and (
        reasoning_tokens > output_tokens
        or count(usage, "total_tokens") == input_tokens + output_tokens + reasoning_tokens
    ):
        output_tokens += reasoning_tokens
    return Usage(
        input_tokens,
        output_tokens,
        count(details, "cached_tokens"),
        count(details, "cache_write_tokens"),
        reasoning_tokens,
    )


def _excerpt(data: bytes) -> str:
    return shorten(data.decode("utf-8", "replace"))
