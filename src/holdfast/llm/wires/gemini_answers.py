"""The reading of one answer of Gemini, plain or assembled from a stream."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast import errors
from holdfast.answer import TextPart
from holdfast.content import ToolCall
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import answers, gemini_plain
from holdfast.llm.wires.calls import wire_input
from holdfast.llm.wires.failures import excerpt, reported_error, shorten
from holdfast.llm.wires.gemini_details import read_details, read_usage
from holdfast.llm.wires.gemini_messages import name_from_wire
from holdfast.llm.wires.lenient_json import encode

WIRE_NAME = "gemini"

_STOP_REASONS = {
    "": "stop",
    "STOP": "stop",
    "FINISH_REASON_UNSPECIFIED": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
            *("MODEL_ARMOR", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
        ),
        "content_filter",
    ),
}
# The model tried to call a tool and failed. Without a call, its output is not an answer. A retry
# often succeeds.
_BROKEN_CALLS = {
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MALFORMED_RESPONSE",
}
# Ends without a known reason. With an empty content there is no answer, and a retry may give one.
_UNEXPLAINED = {"OTHER", "NO_IMAGE", "IMAGE_OTHER"}
_CALL_KEYS = {"name", "args", "id"}
_PART_KEYS = {"text", "functionCall"}


class _RawCandidate(msgspec.Struct):
    content: Raw


class _RawAnswer(msgspec.Struct):
    candidates: list[_RawCandidate]


class _Origin(msgspec.Struct):
    """The model and the id of an answer."""

    model: Any
    id: Any


_answers = msgspec.json.Decoder(dict[str, Any])
_raw_answers = msgspec.json.Decoder(_RawAnswer)


def read_answer(data: bytes) -> Completion:
    """Return the completion of one answer."""
    return gemini_plain.read(data, WIRE_NAME) or read_any(data)


def read_any(data: bytes) -> Completion:
    """Return the completion of an answer with any content, as `read_answer` does."""
    return answers.read_answer(data, _answers, _read, "a Gemini response")


def _read(answer: dict[str, Any], data: bytes) -> Completion:
    if answer.get("error"):
        raise reported_error(answer["error"])
    candidates = cast("list[dict[str, Any]]", answer.get("candidates") or [])
    if type(candidates) is not list or not all(type(one) is dict for one in candidates):
        raise answers.bad_answer("a Gemini response", data)
    if not candidates and not block_reason(answer.get("promptFeedback")):
        raise answers.bad_answer("a Gemini response: it has no candidates", data)
    candidate = candidates[0] if candidates else {}
    content, parts = _parts(candidate.get("content"))
    builder = answers.CompletionBuilder()
    native_parts, starts = _add_parts(builder, parts)
    reason = _stop_reason(answer, candidate, bool(builder.calls), bool(native_parts))
    read_details(builder, answer, candidate, parts, starts, reason == "content_filter")
    native = NO_NATIVE
    if builder.needs_native:
        if native_parts == parts and content.get("role") == "model":
            body = bytes(_raw_answers.decode(data).candidates[0].content)
        else:
            body = encode({**content, "role": "model", "parts": native_parts})
        native = Raw(b'{"content":%b}' % body)
    origin = _Origin(answer.get("modelVersion"), answer.get("responseId"))
    usage = read_usage(answer.get("usageMetadata"))
    return builder.build(WIRE_NAME, usage, reason, origin, None, native)


def _parts(value: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if value is None:
        return {}, []
    content = cast("dict[str, Any]", value if isinstance(value, dict) else {"parts": "none"})
    parts = cast("list[dict[str, Any]]", content.get("parts") or [])
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        raise errors.BadResponse(f"The answer has an invalid content: {excerpt(encode(value))}")
    return content, parts


def _add_parts(
    builder: answers.CompletionBuilder, parts: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Add texts, thoughts and calls. Return the parts to send back, and the offset of each part
    with text, by its index."""
    native_parts: list[dict[str, Any]] = []
    starts: dict[int, int] = {}
    groups: list[str] = []  # texts with something else between them
    length, continues = 0, False
    for index, part in enumerate(parts):
        function_call: Any = part.get("functionCall")
        if function_call is not None:
            call = _add_call(builder, function_call)
            # The API would refuse arguments of another type in a later request.
            if not isinstance(function_call.get("args"), dict | None):
                part = {**part, "functionCall": {**function_call, "args": wire_input(call)}}
            builder.covers(function_call, _CALL_KEYS)
        elif not any(part.values()):  # empty, and the API refuses empty parts
            continue
        text: Any = part.get("text") or ""
        if not isinstance(text, str):
            raise answers.bad_part("text that is not a string", part)
        if text and part.get("thought"):
            builder.thoughts.append(text)
        elif text:
            starts[index] = length
            length += len(text)
            builder.texts.append(text)
            builder.needs_native |= bool(builder.calls)  # text after a call
            if continues:
                groups[-1] += text
            else:
                groups.append(text)
            continues = True
        if part.get("thought") or (not text and part.keys() - {"text", "thoughtSignature"}):
            continues = False
        builder.covers(part, _PART_KEYS)
        if not part.keys() - {"thoughtSignature", "thought"}:
            part = {"text": "", **part}  # the API refuses a signature alone
        native_parts.append(part)
    if len(groups) > 1:
        for text in groups:
            builder.detail("parts", TextPart(text))
    return native_parts, starts


def _add_call(builder: answers.CompletionBuilder, value: Any) -> ToolCall:
    function_call = answers.as_dict(value)
    raw_name: Any = function_call.get("name")
    is_partial = function_call.get("partialArgs") or function_call.get("willContinue")
    if not isinstance(raw_name, str) or not raw_name or is_partial:
        raise answers.bad_part("an invalid or partial function call", value)
    name, id = name_from_wire(raw_name), function_call.get("id")
    args: Any = function_call.get("args")
    if not isinstance(args, dict):
        return builder.add_call(name, args, id)
    call = msgspec.structs.replace(builder.add_call(name, None, id), arguments=args)
    builder.calls[-1] = call
    return call


def _stop_reason(
    answer: dict[str, Any], candidate: dict[str, Any], calls: bool, parts: bool
) -> str:
    """Return the stop reason. Raises for an end that leaves no usable answer."""
    value: Any = candidate.get("finishReason")
    finish = value if isinstance(value, str) else ""
    filter_reason = block_reason(answer.get("promptFeedback"))
    if filter_reason and not parts:
        raise errors.ContentFiltered(
            f"The provider's content filter stopped the prompt: {filter_reason}",
            code=filter_reason.partition(":")[0],
        )
    broken = finish in _BROKEN_CALLS
    unsigned = finish == "MISSING_THOUGHT_SIGNATURE"
    if not calls and (broken or unsigned or (finish in _UNEXPLAINED and not parts)):
        kind, problem = (
            errors.BadResponse,
            f"The model broke off its answer (finishReason {finish})",
        )
        if unsigned:
            kind, problem = (
                errors.BadRequest,
                "The provider misses a thought signature in the conversation",
            )
        explanation = shorten(str(candidate.get("finishMessage") or "no reason given"))
        raise kind(f"{problem}: {explanation}", code=finish)
    reason = _STOP_REASONS.get(finish, finish)
    if calls and (reason == "stop" or broken or unsigned):
        return "tool_calls"
    return "content_filter" if filter_reason and reason == "stop" else reason


def block_reason(feedback: Any) -> str:
    """Return the reason that a prompt was blocked for, with the explanation; "" if it was not."""
    fields = answers.as_dict(feedback)
    reason, message = fields.get("blockReason"), fields.get("blockReasonMessage")
    return f"{reason}: {shorten(str(message))}" if reason and message else str(reason or "")
