"""Plain answers of Chat Completions, and plain events of its streams. `plain` describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.answer import AnswerDetails
from holdfast.content import ToolCall
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import chat_details, think_tags
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.chat_hosts import ChatRules
from holdfast.llm.wires.openai_common import TokenCounts, TokenDetails, usage_of
from holdfast.llm.wires.plain import Nothing, Plain, Tokens, decode, has_repeated_id


class _Counts(TokenCounts):
    input_tokens: Tokens = msgspec.field(default=0, name="prompt_tokens")
    output_tokens: Tokens = msgspec.field(default=0, name="completion_tokens")
    input_details: TokenDetails | None = msgspec.field(default=None, name="prompt_tokens_details")
    output_details: TokenDetails | None = msgspec.field(
        default=None, name="completion_tokens_details"
    )


class _Function(Plain):
    name: str
    arguments: str


class _Call(Plain):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int = 0


class _Message(Plain):
    role: str = ""
    content: str | None = None
    tool_calls: list[_Call] | None = None
    refusal: None = None
    annotations: Nothing | None = None


class _Choice(Plain):
    message: _Message
    finish_reason: Literal["stop", "tool_calls", "length"]
    index: Literal[0] = 0
    logprobs: None = None


class _Answer(Plain):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1, max_length=1)]
    id: str = ""
    model: str = ""
    usage: _Counts | None = None
    object: Literal["chat.completion"] = "chat.completion"
    created: int = 0
    service_tier: str | None = None
    system_fingerprint: str | None = None
    obfuscation: str | None = None  # of an event of the stream that the answer came in


_decoder = msgspec.json.Decoder(_Answer)


class _FunctionPiece(Plain):
    name: str | None = None
    arguments: str = ""


class _CallPiece(Plain):
    index: int
    function: _FunctionPiece
    id: str | None = None
    type: str | None = None


class _Piece(Plain):
    content: str | None = None
    tool_calls: Annotated[list[_CallPiece], msgspec.Meta(max_length=1)] | None = None
    role: str | None = None
    refusal: None = None
    reasoning_content: None = None
    reasoning: None = None


class _ChoicePiece(Plain):
    delta: _Piece
    index: Literal[0] = 0
    finish_reason: str | None = None
    logprobs: None = None


class ChatEvent(Plain):
    """An event of a plain stream: a piece of the text or of a call's arguments, the first event,
    the finish or the token counts."""

    choices: Annotated[list[_ChoicePiece], msgspec.Meta(max_length=1)]
    id: str = ""
    model: str = ""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = 0
    system_fingerprint: str | None = None
    service_tier: str | None = None
    usage: dict[str, Any] | None = None
    obfuscation: str | None = None


events = msgspec.json.Decoder(ChatEvent)


def read(data: bytes, name: str, rules: ChatRules) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    choice = answer.choices[0]
    text = choice.message.content or ""
    if rules.think_tags and think_tags.split(text)[1] != text:
        return None
    calls: list[ToolCall] = []
    for call in choice.message.tool_calls or ():
        calls.append(read_call(call.function.name, call.function.arguments, call.id))
    if len(calls) > 1 and has_repeated_id(calls):
        return None
    counts, reason = answer.usage or _NO_COUNTS, choice.finish_reason
    usage = usage_of(counts)
    if counts.total_tokens > counts.input_tokens + counts.output_tokens:
        usage = chat_details.with_thinking(usage, counts.total_tokens, answer.model)
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
        details=_details(answer) if answer.service_tier or answer.system_fingerprint else None,
    )


def _details(answer: _Answer) -> AnswerDetails:
    made_by = answer.system_fingerprint
    return AnswerDetails(
        service_tier=answer.service_tier or "",
        provider_details={"system_fingerprint": made_by} if made_by else {},
    )


_NO_COUNTS = _Counts()
