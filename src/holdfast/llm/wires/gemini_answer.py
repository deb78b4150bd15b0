"""Reading of Gemini answers: a plain answer, or the candidate assembled from a stream."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, Usage
from holdfast.errors import BadRequest, BadResponse, ContentFiltered
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.failures import reported_error, shorten
from holdfast.llm.wires.lenient import bad_answer, count, read_answer

NAME = "gemini"

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_STOP_REASONS = {
    "STOP": "stop",
    "FINISH_REASON_UNSPECIFIED": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
# The model tried to call a tool and failed. Without a call, its output is not an answer. A retry
# often succeeds.
_BROKEN_CALLS = {
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MALFORMED_RESPONSE",
}
# A candidate's fields beside its content. They are kept for clients that show sources; only the
# content is sent back to the API.
METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata")

# Function names begin with a letter or an underscore. A tool name that begins with a digit or a
# dash gets an underscore in front. A name that already looks so gets one more, so the mapping stays
# invertible.
_NEEDS_UNDERSCORE = re.compile(r"_*[0-9-]")
_HAS_UNDERSCORE = re.compile(r"_+[0-9-]")


class Candidate(msgspec.Struct, rename="camel"):
    """An answer in the API's form, with `content` and metadata as JSON."""

    content: msgspec.Raw = NO_NATIVE
    finish_reason: Any = None
    finish_message: Any = ""
    grounding_metadata: msgspec.Raw = NO_NATIVE
    citation_metadata: msgspec.Raw = NO_NATIVE
    url_context_metadata: msgspec.Raw = NO_NATIVE


class _Answer(msgspec.Struct, rename="camel"):
    candidates: list[Candidate] | None = None
    usage_metadata: Any = None
    model_version: Any = ""
    response_id: Any = ""
    prompt_feedback: Any = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    """Parse a plain answer.

    Raises the error that the answer reports, `ContentFiltered` for a blocked prompt, or
    `BadResponse` for anything else.
    """
    return read_answer(data, _answers, _read, "a Gemini response")


def _read(answer: _Answer, data: bytes) -> Completion:
    if answer.error:
        raise reported_error(answer.error)
    candidate = answer.candidates[0] if answer.candidates else None
    if candidate is None and not block_reason(answer.prompt_feedback):
        raise bad_answer("a Gemini response: it has no candidates", data)
    return completion_of(
        candidate or Candidate(),
        answer.usage_metadata,
        answer.response_id,
        answer.model_version,
        answer.prompt_feedback,
    )


def completion_of(
    candidate: Candidate, usage: Any, id: Any, model: Any, feedback: Any
) -> Completion:
    """Return a completion from a candidate, plain or assembled from a stream. Raises the same
    errors as `parse`."""
    content, parts = _parts(candidate.content)
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    seen: set[str] = set()
    kept: list[dict[str, Any]] = []
    needs_native = rebuilt = False
    for part in parts:
        called: Any = part.get("functionCall")
        if called is not None:
            calls.append(_call(called, seen))
            # The API would refuse arguments of another type in a later request.
            if not isinstance(called.get("args"), dict | None):
                arguments = (
                    {"invalid_json": calls[-1].raw} if calls[-1].invalid else calls[-1].arguments
                )
                part, rebuilt = {**part, "functionCall": {**called, "args": arguments}}, True
            needs_native = needs_native or any(
                value and key not in ("name", "args", "id") for key, value in called.items()
            )
        elif not any(part.values()):  # empty, and the API refuses empty parts
            rebuilt = True
            continue
        text: Any = part.get("text") or ""
        if not isinstance(text, str):
            raise BadResponse(f"The answer has text that is not a string: {_excerpt(_json(part))}")
        if text and part.get("thought"):
            reasoning.append(text)
        elif text:
            texts.append(text)
            needs_native = needs_native or bool(calls)  # text after a call
        if not needs_native and len(part) > (called is not None) + ("text" in part):
            needs_native = any(
                value and key not in ("text", "functionCall") for key, value in part.items()
            )
        if not part.keys() - {"thoughtSignature", "thought"}:
            part, rebuilt = {"text": "", **part}, True  # the API refuses a signature alone
        kept.append(part)
    native_content = candidate.content
    if needs_native and (rebuilt or content.get("role") != "model"):
        native_content = msgspec.Raw(_json({**content, "role": "model", "parts": kept}))
    stop = _stop_reason(candidate, bool(calls), bool(kept), feedback)
    return Completion(
        "".join(texts),
        "".join(reasoning),
        tuple(calls),
        read_usage(usage),
        stop,
        model if isinstance(model, str) else "",
        NAME,
        _native(native_content if needs_native else NO_NATIVE, candidate, kept),
        id if isinstance(id, str) else "",
    )


def _parts(raw: msgspec.Raw) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a content and its parts. An answer may have neither."""
    found: Any = _decoder.decode(raw) if raw else None
    if found is None:
        return {}, []
    content = cast("dict[str, Any]", found if isinstance(found, dict) else {"parts": "none"})
    parts: Any = content.get("parts") or []
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) for part in cast("list[Any]", parts)
    ):
        raise BadResponse(f"The answer has an invalid content: {_excerpt(bytes(raw))}")
    return content, cast("list[dict[str, Any]]", parts)


def _call(value: Any, seen: set[str]) -> ToolCall:
    called = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    name: Any = called.get("name")
    if (
        not isinstance(name, str)
        or not name
        or called.get("partialArgs")
        or called.get("willContinue")
    ):
        raise BadResponse(
            f"The answer has an invalid or partial function call: {_excerpt(_json(value))}"
        )
    id: Any = called.get("id")
    id = id if isinstance(id, str) and id not in seen else ""  # each result must find its call
    seen.add(id)
    args: Any = called.get("args")
    if isinstance(args, dict):
        return ToolCall("", name_from_wire(name), cast("dict[str, Any]", args), id)
    return read_call(name_from_wire(name), args, id)


def _native(
    native_content: msgspec.Raw, candidate: Candidate, kept: list[dict[str, Any]]
) -> msgspec.Raw:
    """Return `{"content": ...}` with the metadata present, or nothing if a completion's fields
    hold everything."""
    metadata = zip(
        METADATA,
        (candidate.grounding_metadata, candidate.citation_metadata, candidate.url_context_metadata),
        strict=True,
    )
    metadata_fields = [
        b',"%b":%b' % (key.encode(), bytes(value))
        for key, value in metadata
        if bytes(value) not in (b"", b"{}", b"null")
    ]
    if not native_content:
        if not metadata_fields:
            return NO_NATIVE
        native_content = msgspec.Raw(_json({"parts": kept, "role": "model"}))
    return msgspec.Raw(b'{"content":%b%b}' % (bytes(native_content), b"".join(metadata_fields)))


def _stop_reason(candidate: Candidate, calls: bool, parts: bool, feedback: Any) -> str:
    """Return the stop reason. Raises for an end that leaves no usable answer."""
    finish = candidate.finish_reason if isinstance(candidate.finish_reason, str) else ""
    blocked = block_reason(feedback)
    if blocked and not parts:
        raise ContentFiltered(
            f"The provider's content filter stopped the prompt: {blocked}",
            code=blocked.partition(":")[0],
        )
    explanation = shorten(str(candidate.finish_message or "no reason given"))
    if finish == "MISSING_THOUGHT_SIGNATURE" and not calls:
        raise BadRequest(
            f"The provider misses a thought signature in the conversation: {explanation}",
            code=finish,
        )
    if not calls and (finish in _BROKEN_CALLS or (finish == "OTHER" and not parts)):
        raise BadResponse(
            f"The model broke off its answer (finishReason {finish}): {explanation}", code=finish
        )
    reason = _STOP_REASONS.get(finish, finish or "stop")
    if calls and (
        reason == "stop" or finish in _BROKEN_CALLS or finish == "MISSING_THOUGHT_SIGNATURE"
    ):
        return "tool_calls"
    return "content_filter" if blocked and reason == "stop" else reason


def block_reason(feedback: Any) -> str:
    """Return the reason that a prompt was blocked, or "" if it was not."""
    found = cast("dict[str, Any]", feedback if isinstance(feedback, dict) else {})
    reason = found.get("blockReason")
    message = found.get("blockReasonMessage")
    return f"{reason}: {shorten(str(message))}" if reason and message else str(reason or "")


def read_usage(counts: Any) -> Usage:
    """Return token counts, zero where they are missing. The API counts thoughts separately from
    the candidate, and results of server tools separately from the prompt."""
    if not isinstance(counts, dict):
        return Usage()
    usage = cast("dict[str, Any]", counts)
    thoughts = count(usage, "thoughtsTokenCount")
    return Usage(
        count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount"),
        count(usage, "candidatesTokenCount") + thoughts,
        count(usage, "cachedContentTokenCount"),
        0,
        thoughts,
    )


def name_to_wire(name: str) -> str:
    """Return a tool's wire name as a function name, with an underscore before a digit or dash."""
    return "_" + name if _NEEDS_UNDERSCORE.match(name) else name


def name_from_wire(name: str) -> str:
    """Return the tool's wire name for a function name: the inverse of `name_to_wire`. Also
    removes the namespace `default_api.`, which models sometimes write."""
    if name[:12] in ("default_api.", "default_api:"):
        name = name[12:]
    return name[1:] if _HAS_UNDERSCORE.match(name) else name


def _excerpt(data: bytes) -> str:
    return shorten(data.decode("utf-8", "replace"))
