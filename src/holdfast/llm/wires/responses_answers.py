"""Answers of the Responses API. Plain and streamed answers both end in `completion`, so their
results cannot differ."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.answer import TextPart
from holdfast.errors import BadResponse, ContentFiltered, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import answers, responses_details, responses_plain
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.failures import reported_error
from holdfast.llm.wires.responses_calls import CLIENT_CALLS, is_for_client

NAME = "openai_responses"

_items = msgspec.json.Decoder(list[dict[str, Any]])

# The keys of an item that a completion's text and calls cover, or that carry no information.
_MESSAGE_KEYS = {"id", "type", "role", "status", "content"}
_PART_KEYS = {"type", "text"}
_CALL_KEYS = {"id", "type", "status", "call_id", "name", "arguments"}
_NO_ARGUMENTS = "The arguments are not valid JSON: they end, unfinished, at byte 0."
_CUT_OFF = "The provider cut the call off before it was complete."
_PHASES = {"commentary": "commentary", "final_answer": "final"}


class ResponseFields(msgspec.Struct):
    """The fields of a response."""

    id: Any = ""
    model: Any = ""
    status: Any = None
    output: Raw = NO_NATIVE
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None
    service_tier: Any = None
    moderation: Any = None
    content_filters: Any = None
    conversation: Any = None
    metadata: Any = None
    previous_response_id: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    background: Any = None


_answers = msgspec.json.Decoder(ResponseFields)
_FIELDS = [name for name in ResponseFields.__struct_fields__ if name != "output"]


def answer_of(response: dict[str, Any]) -> ResponseFields:
    """Return the fields of a decoded response, without its output."""
    fields: dict[str, Any] = {name: response.get(name) for name in _FIELDS}
    return ResponseFields(**fields)


def parse(data: bytes) -> Completion:
    return responses_plain.read(data, NAME) or parse_any(data)


def parse_any(data: bytes) -> Completion:
    """Return the completion of an answer with any content, as `parse` does."""
    return answers.read_answer(data, _answers, _read, "a response")


def _read(answer: ResponseFields, data: bytes) -> Completion:
    check_status(answer)
    if not answer.output:
        raise answers.bad_answer("a response: it has no output", data)
    return completion(answer, _items.decode(answer.output), answer.output)


def check_status(answer: ResponseFields) -> None:
    """Raise the error of an answer that failed, was cancelled, or is not there yet."""
    status = answer.status
    if answer.error or status == "failed":
        message = "the answer failed, without a reason given"
        raise reported_error(answer.error or {"code": "server_error", "message": message})
    if status == "cancelled":
        raise ServerError("The provider cancelled its answer.")
    if status in ("queued", "in_progress"):
        pending = BadResponse(
            f"The provider answers in the background (status {status!r}): give the LLM"
            " background=True, which waits for the answer, or leave background out of extra_body."
        )
        pending.retryable = False
        raise pending


def completion(
    answer: ResponseFields, items: list[dict[str, Any]], raw: Raw | None = None
) -> Completion:
    """Return a completion from an answer's items, plain or assembled from a stream. `raw` is their
    JSON, if available. Raises `ContentFiltered` for an answer that was filtered before its first
    word."""
    builder = answers.CompletionBuilder()
    reader = _Reader(builder, items, str(answer.model))
    for item in items:
        reader.read(item)
    reader.finish()
    responses_details.read_response(answer, builder)
    reason = _stop_reason(answer, builder)
    if raw is not None and b"\n" in bytes(raw):
        # OpenAI indents its answers. The journal does not need the white space.
        raw = Raw(msgspec.json.format(bytes(raw), indent=-1))
    usage = common.read_usage(answer.usage, "input", "output")
    return builder.build(NAME, usage, reason, answer, items, raw)


class _Reader:
    """A reader of an answer's items, one after the other."""

    def __init__(
        self, builder: answers.CompletionBuilder, items: list[dict[str, Any]], model: str
    ) -> None:
        self._builder = builder
        self._model = model
        self._outputs = responses_details.outputs_of(items)
        self._answered = set(self._outputs.by_id)
        self._parts: list[TextPart] = []
        self._length = 0  # characters of the text so far
        self._messages = 0
        self._thoughts: list[str] = []

    def read(self, item: dict[str, Any]) -> None:
        builder, kind = self._builder, item.get("type", "message")
        if kind == "message" and item.get("role") in ("user", "developer", "system"):
            builder.needs_native = True  # kept by a compaction; it is no text of the model
        elif kind == "message":
            self._read_message(item)
        elif kind == "function_call":
            function_name: Any = item.get("name")
            if not isinstance(function_name, str):
                raise answers.bad_part("an invalid tool call", item)
            id, arguments = item.get("call_id") or item.get("id") or "", item.get("arguments")
            call = builder.add_call(function_name, arguments, id)
            if item.get("status") == "incomplete" and not arguments:
                # Cut off before the first argument, which differs from having no arguments.
                builder.calls[-1] = msgspec.structs.replace(call, invalid=_NO_ARGUMENTS)
            builder.covers(item, _CALL_KEYS)
        elif kind == "reasoning":
            self._thoughts += thoughts_of(item)
            builder.needs_native |= bool(item.get("encrypted_content") or item.get("content"))
        else:
            builder.needs_native = True
            if is_for_client(item, self._answered, self._model):
                self._read_client_call(item)
            else:
                responses_details.read_server_call(item, self._outputs, builder)

    def finish(self) -> None:
        builder = self._builder
        builder.thoughts.append(answers.GAP.join(self._thoughts))
        builder.texts.append(answers.GAP.join([part.text for part in self._parts]))
        if len(self._parts) > 1 or any(part.phase for part in self._parts):
            builder.details["parts"] = list(self._parts)

    def _read_message(self, item: dict[str, Any]) -> None:
        builder, texts = self._builder, message_texts(item)
        content = answers.as_list(item.get("content"))
        builder.needs_native |= bool(self._messages or builder.calls or len(texts) > 1)
        self._messages += 1
        builder.covers(item, _MESSAGE_KEYS)
        text = "".join(texts)
        offset = self._length + (len(answers.GAP) if text and self._parts else 0)
        if text:
            phase = responses_details.text_of(item.get("phase"))
            self._parts.append(TextPart(text, _PHASES.get(phase, "")))
            self._length = offset + len(text)
        for part, part_text in zip(content, texts, strict=False):
            builder.covers(part, _PART_KEYS)
            responses_details.read_annotations(part, offset, builder)
            responses_details.read_logprobs(part, builder)
            offset += len(part_text)
            if part.get("type") == "refusal":
                refusal = responses_details.text_of(part.get("refusal"))
                both = [builder.details.get("refusal", ""), refusal]
                builder.detail("refusal", answers.GAP.join(filter(None, both)))

    def _read_client_call(self, item: dict[str, Any]) -> None:
        builder, kind = self._builder, CLIENT_CALLS[item["type"]]
        tool_name: Any = kind.tool or item.get("name")
        if not isinstance(tool_name, str):
            raise answers.bad_part("an invalid tool call", item)
        call = builder.add_call(tool_name, kind.arguments(item), item.get(kind.id_key))
        changes: dict[str, Any] = {"provider_kind": item["type"]}
        if item.get("status") == "incomplete":
            changes |= {"arguments": {}, "raw": call.raw_arguments, "invalid": _CUT_OFF}
        builder.calls[-1] = msgspec.structs.replace(call, **changes)


def _stop_reason(answer: ResponseFields, builder: answers.CompletionBuilder) -> str:
    if answer.status != "incomplete":
        if builder.details.get("refusal"):
            return "refusal"
        complete = not answer.status or answer.status == "completed"
        return "stop" if complete else str(answer.status)
    # The answer was cut off, so it is never reported as complete.
    reason = str(answers.as_dict(answer.incomplete_details).get("reason") or "length")
    has_content = builder.calls or any(builder.texts)
    has_content = has_content or builder.details.get("refusal") or builder.details.get("media")
    if reason == "content_filter" and not has_content:
        raise ContentFiltered(
            "The provider's content filter stopped the answer before it said anything."
        )
    return "length" if reason in ("max_output_tokens", "max_tokens") else reason


def message_texts(item: dict[str, Any]) -> list[str]:
    """Return the text of each part of a message; "" for a refusal, which is no answer."""
    content: Any = item.get("content")
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in cast("list[dict[str, Any]]", content or []):
        text: Any = "" if part.get("type") == "refusal" else part.get("text", "")
        if not isinstance(text, str):
            raise answers.bad_part("text that is not a string", part)
        texts.append(text)
    return texts


def thoughts_of(item: dict[str, Any]) -> list[str]:
    """Return a reasoning item's summaries, or the reasoning itself, which open models show."""
    for key in ("summary", "content"):
        parts = cast("list[dict[str, Any]]", item.get(key) or [])
        texts = [str(part["text"]) for part in parts if part.get("text")]
        if texts:
            return texts
    return []
