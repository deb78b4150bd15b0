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

_REASONS = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
# The keys of an item that a completion's text and calls cover, or that carry no information.
_MESSAGE = {"id", "type", "role", "status", "content"}
_PART = {"type", "text"}
_CALL = {"id", "type", "status", "call_id", "name", "arguments"}
# Items that request something other than a function call from the client.
_ASKS = {
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
    asks: list[dict[str, Any]] = []
    more = said = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            more = _read_message(item, texts) or more or said or bool(calls)
            said = True
        elif kind == "function_call":
            calls.append(_read_call(item, seen))
            more = more or any(value and key not in _CALL for key, value in item.items())
        elif kind == "reasoning":
            reasoning += thoughts(item)
            more = more or bool(item.get("encrypted_content") or item.get("content"))
        else:
            more = True
            if kind in _ASKS or (kind == "tool_search_call" and item.get("execution") == "client"):
                asks.append(item)
    reason = "tool_calls" if calls else "stop"
    if status == "incomplete":
        said_why: Any = (
            cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
        )
        # The answer was cut off, for whatever reason, so it is never reported as complete.
        reason = _REASONS.get(str(said_why), str(said_why)) if said_why else "length"
        if reason == "content_filter" and not calls and not any(texts):
            raise ContentFiltered(
                "The provider's content filter stopped the answer before it said anything."
            )
    elif status and status != "completed":
        reason = str(status)
    elif asks and not calls:
        answered = {
            item.get("call_id") for item in items if str(item.get("type")).endswith("_output")
        }
        reason = next(
            (str(item["type"]) for item in asks if item.get("call_id") not in answered), reason
        )
    return Completion(
        whole("".join(texts)),
        whole("\n\n".join(reasoning)),
        tuple(calls),
        read_usage(usage),
        reason,
        whole(model) if isinstance(model, str) else "",
        NAME,
        _native(items, raw) if more else NO_NATIVE,
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
    more = any(value and key not in _MESSAGE for key, value in item.items())
    content: Any = item.get("content")
    if isinstance(content, str):
        texts.append(content)
        return more
    parts = cast("list[dict[str, Any]]", content or [])
    for part in parts:
        text = part.get("text", "")
        if part.get("type") == "refusal":
            text = part.get("refusal") or ""
        if not isinstance(text, str):
            raise BadResponse(
                f"The answer has text that is not a string: {_shown(_json(clean(part)))}"
            )
        texts.append(text)
        more = more or any(value and key not in _PART for key, value in part.items())
    return more or len(parts) > 1


def _read_call(item: dict[str, Any], seen: set[str]) -> ToolCall:
    name: Any = item.get("name")
    if not isinstance(name, str):
        raise BadResponse(f"The answer has an invalid tool call: {_shown(_json(clean(item)))}")
    given: Any = item.get("call_id") or item.get("id") or ""
    # A repeated id is dropped, because each result must find its call.
    provider_id = whole(given) if isinstance(given, str) and given not in seen else ""
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
        found = [
            str(part["text"])
            for part in cast("list[dict[str, Any]]", item.get(key) or [])
            if part.get("text")
        ]
        if found:
            return found
    return []


def read_usage(found: Any) -> Usage:
    """Return token counts, zero where they are missing. If reasoning was counted separately from
    the output, the total reveals it."""
    if not isinstance(found, dict):
        return Usage()
    usage = cast("dict[str, Any]", found)
    details: Any = usage.get("input_tokens_details")
    given, made = count(usage, "input_tokens"), count(usage, "output_tokens")
    thought = count(usage.get("output_tokens_details"), "reasoning_tokens")
    if thought and (thought > made or count(usage, "total_tokens") == given + made + thought):
        made += thought
    return Usage(
        given, made, count(details, "cached_tokens"), count(details, "cache_write_tokens"), thought
    )


def _shown(data: bytes) -> str:
    return shorten(data.decode("utf-8", "replace"))
