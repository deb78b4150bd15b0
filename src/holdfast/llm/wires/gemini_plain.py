"""Plain answers of Gemini, and plain events of its streams. `plain` describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.answer import AnswerDetails
from holdfast.content import ToolCall, Usage
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires.gemini_messages import name_from_wire
from holdfast.llm.wires.plain import Plain, Tokens, decode, has_repeated_id

_STOP_REASONS = {"STOP": "stop", "MAX_TOKENS": "length"}


class _Plain(Plain, rename="camel"):
    pass


class _Call(_Plain):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    args: dict[str, Any] = {}
    id: str | None = None


class _Part(_Plain):
    text: str | None = None
    function_call: _Call | None = None


class _Content(_Plain):
    parts: Annotated[list[_Part], msgspec.Meta(min_length=1)]
    role: Literal["model"]


class _Candidate(_Plain):
    content: _Content
    finish_reason: Literal["STOP", "MAX_TOKENS"]
    index: Literal[0] = 0


class _Modality(_Plain):
    modality: Literal["TEXT"]
    token_count: Tokens = 0


class _Counts(_Plain):
    prompt_token_count: Tokens = 0
    candidates_token_count: Tokens = 0
    thoughts_token_count: Tokens = 0
    cached_content_token_count: Tokens = 0
    total_token_count: Tokens = 0
    prompt_tokens_details: list[_Modality] = []
    candidates_tokens_details: list[_Modality] = []
    cache_tokens_details: list[_Modality] = []
    service_tier: str = ""


class _Answer(_Plain):
    candidates: Annotated[list[_Candidate], msgspec.Meta(min_length=1, max_length=1)]
    usage_metadata: _Counts
    model: str = msgspec.field(default="", name="modelVersion")
    id: str = msgspec.field(default="", name="responseId")


_decoder = msgspec.json.Decoder(_Answer)


class _TextPiece(_Plain):
    text: str = ""
    thought: bool = False


class _ContentPiece(_Plain):
    parts: Annotated[list[_TextPiece], msgspec.Meta(max_length=1)] = []
    role: str = "model"


class _CandidatePiece(_Plain):
    content: _ContentPiece
    finish_reason: str | None = None
    index: Literal[0] = 0


class GeminiEvent(_Plain):
    """An event of a plain stream: a piece of the text or of the thoughts, or the finish."""

    candidates: Annotated[list[_CandidatePiece], msgspec.Meta(min_length=1, max_length=1)]
    usage_metadata: dict[str, Any] | None = None
    model_version: str = ""
    response_id: str = ""
    create_time: str = ""


events = msgspec.json.Decoder(GeminiEvent)


def read(data: bytes, name: str) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    candidate = answer.candidates[0]
    text, calls = "", list[ToolCall]()
    for place, part in enumerate(candidate.content.parts):
        function_call = part.function_call
        if function_call is not None:
            if part.text is not None:
                return None
            calls.append(
                ToolCall(
                    "",
                    name_from_wire(function_call.name),
                    function_call.args,
                    function_call.id or "",
                )
            )
        elif place:  # text after a call, or two texts
            return None
        else:
            text = part.text or ""
    if len(calls) > 1 and has_repeated_id(calls):
        return None
    counts, reason = answer.usage_metadata, _STOP_REASONS[candidate.finish_reason]
    tier = counts.service_tier
    usage = Usage(
        counts.prompt_token_count,
        counts.candidates_token_count + counts.thoughts_token_count,
        counts.cached_content_token_count,
        0,
        counts.thoughts_token_count,
    )
    return Completion(
        text,
        "",
        tuple(calls),
        usage,
        "tool_calls" if reason == "stop" and calls else reason,
        answer.model,
        name,
        NO_NATIVE,
        answer.id,
        details=AnswerDetails(service_tier=tier) if tier else None,
    )
