"""Plain answers of the Responses API, and the pieces of its streams. `plain` describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.answer import AnswerDetails
from holdfast.content import ToolCall
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import responses_details
from holdfast.llm.wires.calls import read_call
from holdfast.llm.wires.openai_common import TokenCounts, TokenDetails, usage_of
from holdfast.llm.wires.plain import Nothing, Plain, Tokens, decode, has_repeated_id


class _Counts(TokenCounts):
    input_tokens: Tokens = msgspec.field(default=0, name="input_tokens")
    output_tokens: Tokens = msgspec.field(default=0, name="output_tokens")
    input_details: TokenDetails | None = msgspec.field(default=None, name="input_tokens_details")
    output_details: TokenDetails | None = msgspec.field(default=None, name="output_tokens_details")


class _Text(Plain, tag_field="type", tag="output_text"):
    text: str
    annotations: Nothing | None = None
    logprobs: Nothing | None = None


class _Message(Plain, tag_field="type", tag="message"):
    content: Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=1)]
    role: Literal["assistant"]
    id: str | None = None
    status: str | None = None


class _Call(Plain, tag_field="type", tag="function_call"):
    call_id: Annotated[str, msgspec.Meta(min_length=1)]
    name: str
    arguments: str
    id: str | None = None
    status: Literal["completed"] | None = None


class _Answer(msgspec.Struct):
    """The fields of `responses_answers.ResponseFields`. The others repeat the request."""

    status: Literal["completed"]
    output: list[_Message | _Call]
    id: str = ""
    model: str = ""
    usage: _Counts | None = None
    error: None = None
    service_tier: str | None = None
    moderation: None = None
    content_filters: Nothing | None = None
    conversation: None = None
    incomplete_details: None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    background: bool | None = None


_decoder = msgspec.json.Decoder(_Answer)


class ResponsesEvent(msgspec.Struct, gc=False):
    """The fields of an event that matter for a piece of a text or of a call's arguments."""

    type: str = ""
    delta: Any = None
    output_index: int | None = None
    sequence_number: Any = None
    error: Any = None
    object: Any = None


events = msgspec.json.Decoder(ResponsesEvent)


def read(data: bytes, name: str) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    text, calls = "", list[ToolCall]()
    for place, item in enumerate(answer.output):
        if type(item) is _Call:
            calls.append(read_call(item.name, item.arguments, item.call_id))
        elif type(item) is _Message and not place:
            text = item.content[0].text
        else:  # text after a call, or two texts
            return None
    if len(calls) > 1 and has_repeated_id(calls):
        return None
    return Completion(
        text,
        "",
        tuple(calls),
        usage_of(answer.usage or _NO_COUNTS),
        "tool_calls" if calls else "stop",
        answer.model,
        name,
        NO_NATIVE,
        answer.id,
        details=_details(answer),
    )


def _details(answer: _Answer) -> AnswerDetails | None:
    tier, others = answer.service_tier or "", dict[str, Any]()
    for name in responses_details.KEPT_FIELDS:
        if value := getattr(answer, name):
            others[name] = value
    if not (tier or others):
        return None
    return AnswerDetails(service_tier=tier, provider_details=others)


_NO_COUNTS = _Counts()
