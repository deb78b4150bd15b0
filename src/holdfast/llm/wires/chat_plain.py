"""Plain answers of Chat Completions. `plain` describes them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.llm.completion import Completion
from holdfast.llm.wires import chat_details, think_tags
from holdfast.llm.wires.answers import CompletionBuilder
from holdfast.llm.wires.chat_hosts import ChatRules
from holdfast.llm.wires.openai_common import TokenCounts, TokenDetails, usage_of
from holdfast.llm.wires.plain import Nothing, Plain, Tokens, decode


class _Counts(TokenCounts):
    sent: Tokens = msgspec.field(default=0, name="prompt_tokens")
    received: Tokens = msgspec.field(default=0, name="completion_tokens")
    sent_details: TokenDetails | None = msgspec.field(default=None, name="prompt_tokens_details")
    received_details: TokenDetails | None = msgspec.field(
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


_decoder = msgspec.json.Decoder(_Answer)


def read(data: bytes, name: str, rules: ChatRules) -> Completion | None:
    """Return the completion of a plain answer, or None if the answer is not plain."""
    answer = decode(data, _decoder)
    if answer is None:
        return None
    choice = answer.choices[0]
    text = choice.message.content or ""
    if rules.think_tags and think_tags.split(text)[1] != text:
        return None
    builder = CompletionBuilder()
    builder.texts.append(text)
    for call in choice.message.tool_calls or ():
        builder.add_call(call.function.name, call.function.arguments, call.id)
    if answer.service_tier:
        builder.detail("service_tier", answer.service_tier)
    if answer.system_fingerprint:
        builder.detail("provider_details", {"system_fingerprint": answer.system_fingerprint})
    counts = answer.usage or _NO_COUNTS
    usage = chat_details.with_thinking(usage_of(counts), counts.total_tokens, answer.model)
    return builder.build(name, usage, choice.finish_reason, answer, None, None)


_NO_COUNTS = _Counts()
