"""Answers of the Responses wire, plain and streamed. Both end in `_completion`, so their results
cannot differ."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse, ContentFiltered, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires.answers import (
    GAP,
    CompletionBuilder,
    as_dict,
    bad_answer,
    has_other_keys,
    read_answer,
)
from holdfast.llm.wires.failures import excerpt, reported_error
from holdfast.llm.wires.lenient_json import encode, join_surrogates
from holdfast.llm.wires.openai_common import read_usage
from holdfast.llm.wires.streams import StreamParser

NAME = "openai_responses"

_items = msgspec.json.Decoder(list[dict[str, Any]])

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
    _check_status(answer)
    if not answer.output:
        raise bad_answer("a response: it has no output", data)
    return _completion(answer, _items.decode(answer.output), answer.output)


def _check_status(answer: _Answer) -> None:
    """Raise an error for an answer that failed, was cancelled, or is not ready yet."""
    status = answer.status
    if answer.error or status == "failed":
        message = "the answer failed, without a reason given"
        raise reported_error(answer.error or {"code": "server_error", "message": message})
    if status == "cancelled":
        raise ServerError("The provider cancelled its answer.")
    if status in ("queued", "in_progress"):
        pending = BadResponse(
            f"The provider answers in the background (status {status!r}), which is not supported:"
            " leave out background."
        )
        pending.retryable = False
        raise pending


def _completion(
    answer: _Answer, items: list[dict[str, Any]], raw: msgspec.Raw | None = None
) -> Completion:
    """Return a completion from an answer's items, plain or assembled from a stream. `raw` is their
    JSON, if available. Raises `ContentFiltered` for an answer that was filtered before its first
    word."""
    builder = CompletionBuilder()
    thoughts: list[str] = []
    client_requests: list[dict[str, Any]] = []
    needs_native = has_message = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            texts, has_more = _message_texts(item)
            builder.texts += texts
            needs_native = needs_native or has_more or has_message or bool(builder.calls)
            has_message = True
        elif kind == "function_call":
            _add_call(builder, item)
            needs_native = needs_native or has_other_keys(item, _CALL_KEYS)
        elif kind == "reasoning":
            thoughts += _thoughts(item)
            needs_native = needs_native or bool(
                item.get("encrypted_content") or item.get("content")
            )
        else:
            needs_native = True
            if kind in _CLIENT_REQUESTS or (
                kind == "tool_search_call" and item.get("execution") == "client"
            ):
                client_requests.append(item)
    builder.thoughts.append(GAP.join(thoughts))
    builder.needs_native = needs_native
    reason = _stop_reason(answer, builder)
    if reason == "stop" and client_requests and not builder.calls:
        answered = {
            item.get("call_id") for item in items if str(item.get("type")).endswith("_output")
        }
        open_types = [
            str(item["type"]) for item in client_requests if item.get("call_id") not in answered
        ]
        reason = open_types[0] if open_types else reason
    usage = read_usage(answer.usage, "input", "output")
    native = _native(items, raw) if needs_native else NO_NATIVE
    return builder.build(NAME, usage, reason, answer, native)


def _stop_reason(answer: _Answer, builder: CompletionBuilder) -> str:
    if answer.status != "incomplete":
        complete = not answer.status or answer.status == "completed"
        return "stop" if complete else str(answer.status)
    # The answer was cut off, for whatever reason, so it is never reported as complete.
    reason = str(as_dict(answer.incomplete_details).get("reason") or "length")
    if reason == "content_filter" and not builder.calls and not any(builder.texts):
        raise ContentFiltered(
            "The provider's content filter stopped the answer before it said anything."
        )
    return "length" if reason in ("max_output_tokens", "max_tokens") else reason


def _native(items: list[dict[str, Any]], raw: msgspec.Raw | None) -> msgspec.Raw:
    if raw is None:
        return msgspec.Raw(encode(items))
    data = bytes(raw)
    # OpenAI indents its answers. The journal does not need the white space.
    return msgspec.Raw(msgspec.json.format(data, indent=-1) if b"\n" in data else data)


def _message_texts(item: dict[str, Any]) -> tuple[list[str], bool]:
    """Return a message's texts, and True if the message holds more than these. A refusal is text,
    as in Chat Completions."""
    has_more = has_other_keys(item, _MESSAGE_KEYS)
    content: Any = item.get("content")
    if isinstance(content, str):
        return [content], has_more
    texts: list[str] = []
    for part in cast("list[dict[str, Any]]", content or []):
        text = part.get("text", "")
        if part.get("type") == "refusal":
            text = part.get("refusal") or ""
        if not isinstance(text, str):
            raise BadResponse(f"The answer has text that is not a string: {excerpt(encode(part))}")
        texts.append(text)
        has_more = has_more or has_other_keys(part, _PART_KEYS)
    return texts, has_more or len(texts) > 1


def _add_call(builder: CompletionBuilder, item: dict[str, Any]) -> None:
    name: Any = item.get("name")
    if not isinstance(name, str):
        raise BadResponse(f"The answer has an invalid tool call: {excerpt(encode(item))}")
    id = item.get("call_id") or item.get("id") or ""
    call = builder.add_call(name, item.get("arguments"), id)
    if item.get("status") == "incomplete" and not item.get("arguments"):
        # Cut off before the first argument, which differs from having no arguments.
        invalid = "The arguments are not valid JSON: they end, unfinished, at byte 0."
        builder.calls[-1] = msgspec.structs.replace(call, invalid=invalid)


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return the readable texts of a reasoning item: its summaries, or the reasoning itself,
    which open models show."""
    for key in ("summary", "content"):
        parts = cast("list[dict[str, Any]]", item.get(key) or [])
        texts = [str(part["text"]) for part in parts if part.get("text")]
        if texts:
            return texts
    return []


# --- streams ---

_TEXT = {"response.output_text.delta", "response.refusal.delta"}
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


class ResponseStream(StreamParser):
    """A parser of one streamed answer.

    The answer's items are those of the `response.output_item.done` events, which all servers
    send. OpenAI's encrypted items are taken from there, as its own client does; the last event
    has them encrypted anew. The items of the last event are used only if there are more of them.
    """

    __slots__ = ("_calls", "_items", "_places_with_deltas", "_reasoning_place", "_response")

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[tuple[int, str], dict[str, Any]] = {}  # (place, id) -> item
        self._calls: dict[Any, int] = {}  # place -> the call's number
        self._places_with_deltas: set[Any] = set()  # places for which deltas arrived
        self._reasoning_place: Any = None  # place of the last piece of reasoning
        self._response: dict[str, Any] = {}  # the response of the last event

    def _answer(self) -> Completion:
        get = self._response.get
        answer = _Answer(
            id=get("id"),
            model=get("model"),
            status=get("status"),
            usage=get("usage"),
            error=get("error"),
            incomplete_details=get("incomplete_details"),
        )
        _check_status(answer)
        items = [item for _, item in sorted(self._items.items(), key=lambda entry: entry[0][0])]
        last: Any = get("output")
        if isinstance(last, list) and len(cast("list[Any]", last)) > len(items):
            items = cast("list[dict[str, Any]]", last)
        places = self._places_with_deltas
        if len(items) < len(places) and any(
            isinstance(place, int) and place >= len(items) for place in places
        ):
            raise BadResponse("The stream ended without an item whose pieces it had sent.")
        return _completion(answer, items)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        if kind in _TEXT:
            self._piece("text", event)
        elif kind == "response.function_call_arguments.delta":
            place = event.get("output_index")
            if place in self._calls:  # otherwise the whole item will carry the arguments
                self._places_with_deltas.add(place)
                self._deltas.append(Delta("tool", _text(event), self._calls[place]))
        elif kind in _REASONING:
            indexes = ("output_index", "summary_index", "content_index")
            self._begin_reasoning(tuple([event.get(index) for index in indexes]))
            self._piece("reasoning", event)
        elif kind == "response.output_item.added":
            if event["item"].get("type") == "function_call":
                self._begin_call(event.get("output_index"), event["item"])
        elif kind == "response.output_item.done":
            self._finish_item(event)
        elif kind in _ENDS:
            self._end(_ENDS[kind], event["response"])

    def _piece(self, kind: Any, event: dict[str, Any]) -> None:
        text = _text(event)
        self._places_with_deltas.add(event.get("output_index"))
        if text:
            self._deltas.append(Delta(kind, text))

    def _begin_reasoning(self, place: tuple[Any, ...]) -> None:
        """Separate pieces of reasoning that stand at different places."""
        if self._reasoning_place not in (None, place):
            self._deltas.append(Delta("reasoning", GAP))
        self._reasoning_place = place

    def _begin_call(self, place: Any, item: dict[str, Any]) -> None:
        """Emit a delta for a call that begins, with the arguments that are already present."""
        number = self._calls[place] = len(self._calls)
        arguments = _arguments(item)
        if arguments:
            self._places_with_deltas.add(place)
        self._deltas.append(
            Delta("tool", arguments, number, join_surrogates(str(item.get("name") or "")))
        )

    def _finish_item(self, event: dict[str, Any]) -> None:
        """Keep a whole item, and emit deltas for content that no earlier delta carried."""
        item = cast("dict[str, Any]", event["item"])
        index = event.get("output_index")
        place = index if isinstance(index, int) else len(self._items)
        self._items[place, str(item.get("id") or len(self._items))] = item
        kind = item.get("type")
        if kind == "function_call":
            if index not in self._calls:
                self._begin_call(index, item)
            elif index not in self._places_with_deltas and _arguments(item):
                self._deltas.append(Delta("tool", _arguments(item), self._calls[index]))
        elif index not in self._places_with_deltas:
            text = "".join(_message_texts(item)[0]) if kind == "message" else ""
            thought = GAP.join(_thoughts(item)) if kind == "reasoning" else ""
            if text:
                self._deltas.append(Delta("text", join_surrogates(text)))
            if thought:
                self._begin_reasoning((index, None, None))
                self._deltas.append(Delta("reasoning", join_surrogates(thought)))
        self._places_with_deltas.add(index)

    def _end(self, status: str, response: dict[str, Any]) -> None:
        reported: Any = response.get("status")
        if status == "completed" and reported in _ENDS.values():  # vLLM names every end "completed"
            status = reported
        self._response = {**response, "status": status}
        self.finished = self.done = True


def _text(event: dict[str, Any]) -> str:
    text = event["delta"]
    if not isinstance(text, str):
        raise TypeError("a delta that is not text")
    return join_surrogates(text)


def _arguments(item: dict[str, Any]) -> str:
    arguments: Any = item.get("arguments")
    return join_surrogates(arguments) if isinstance(arguments, str) else ""
