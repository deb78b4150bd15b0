"""Checks of requests, and of errors by status. Each raises `CheckFailed`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.content import (
    AudioContent,
    EmbeddedResource,
    FileContent,
    ImageContent,
    Message,
    ResourceLink,
    TextContent,
    ToolResult,
)
from holdfast.errors import ConfigurationError, LLMError
from holdfast.llm.completion import Completion
from holdfast.testing.wires import mutations
from holdfast.testing.wires.exchanges import RecordedExchange, RecordedResponse
from holdfast.testing.wires.framing import Framing
from holdfast.testing.wires.mutations import contains, leaves
from holdfast.testing.wires.reading import Reader, as_call, decode, text_message, turn

_LONG = 64  # characters; shorter ids need not be in the next request


def check_return(reader: Reader, exchange: RecordedExchange, limit: int = 0) -> None:
    """Check that the next request contains the parts of the answer that the provider needs."""
    for response in exchange.responses:
        answer = reader.read(response)
        if isinstance(answer, LLMError):
            continue
        reader.begin("the request after the recorded answer")
        again = Completion.from_json(answer.to_json())  # by way of the journal
        request = decode(
            reader.request([text_message("Hello."), again, *turn(again)], answer.model)
        )
        expected_parts = [*exchange.carried, *_taken_back(exchange, response)]
        for value in expected_parts:
            if not contains(request, value):
                reader.fail(f"{value!r} of the answer is not in it: {json.dumps(request)}")
        for call in answer.calls:
            for value in (call.name, call.provider_id):
                if value and not contains(request, value):
                    reader.fail(f"the call's {value!r} is not in it: {json.dumps(request)}")


def _taken_back(exchange: RecordedExchange, response: RecordedResponse) -> Iterator[str]:
    """Yield the signatures and encrypted data of the answer that the recorded next request
    contains: long texts without spaces."""
    if exchange.following is None:
        return

    def is_long(text: str) -> bool:
        return len(text) >= _LONG and not any(char.isspace() for char in text)

    if response.is_stream:
        body: Any = [event.value for event in Framing.of(response.body).events]
    else:
        body = response.body
    before = leaves(exchange.request.get("body"), is_long)
    yield from sorted((leaves(body, is_long) & leaves(exchange.following, is_long)) - before)


def check_requests(reader: Reader, exchange: RecordedExchange, limit: int = 0) -> None:
    """Check that requests are JSON, and that a history always gives the same bytes. A longer
    history must begin with the bytes of a shorter one."""
    answers = [reader.read(response) for response in exchange.responses]
    items: list[Any] = [text_message("Hello, wörld \U0001f600.")]
    lengths = [1]
    model = ""
    for answer in answers:
        if isinstance(answer, Completion):
            items += [answer, *turn(answer)]
            lengths.append(len(items))
            model = answer.model
    for stream in (False, True):
        shorter = b""
        for length in lengths:
            reader.begin(f"the request of {length} messages")
            body = reader.request(items[:length], model, stream)
            if body != reader.request(items[:length], model, stream):
                reader.fail("the same history gives other bytes")
            try:
                decode(body)
            except ValueError as error:
                reader.fail(f"it is not JSON ({error}): {body!r}", error)
            fragment = reader.fragments(items[:length], model)[-1]
            end = body.rfind(fragment)
            if end < 0:
                reader.fail(f"it does not contain the last message as encoded: {fragment!r}")
            if not body.startswith(shorter):
                reader.fail(
                    "it does not begin with the bytes of the shorter history, so no provider finds"
                    f" it in its cache: {shorter!r} and {body!r}"
                )
            shorter = body[: end + len(fragment)]


# --- the wire alone ---


def check_calls(reader: Reader) -> None:
    """Check that ids of calls are legal and unique in a request, and that a call and its result
    have the same id."""
    wire = reader.wire
    hostile = ("", "call_1", "call_1", "x" * 500, "a b", "é", "toolu_1", "functions.f:0", '"\\\n')
    for id in hostile:
        reader.begin(f"the id {id[:20]!r}")
        call = as_call("f", {"a": 1}, id)
        legal = wire.call_id(call)
        if not isinstance(cast(object, legal), str) or wire.call_id(call) != legal:
            reader.fail(f"`call_id` gives {legal!r}, and not always the same text")
        if legal and wire.call_id(as_call("f", {}, legal)) != legal:
            reader.fail(f"`call_id` changes the id {legal!r}, which it made itself")
    items: list[Any] = [text_message("Hello.")]
    names = iter(range(1000))
    for id in hostile:
        call = as_call(f"kit_{next(names)}_f", {"a": [1, "é"]}, id)
        answer = Completion("", calls=(call,), wire=wire.name)
        items += [answer, (call, ToolResult((TextContent("out"),)))]
    reader.begin("a request with ids of all kinds")
    request = decode(reader.request(items))
    for number in range(len(hostile)):
        if not contains(request, f"kit_{number}_f"):
            reader.fail(f"call {number} is not in it: {json.dumps(request)}")
    if wire.call_id(as_call("f", {}, "call_1")):
        _check_pairs(reader)


def _check_pairs(reader: Reader) -> None:
    """Check that two calls with the same provider id, in two answers, get different ids, and that
    their results have these ids."""
    wire = reader.wire
    first, second = (as_call("f", {"n": n}, "call_1") for n in (1, 2))
    reader.begin("two answers whose calls have one id")
    fragments = reader.fragments(
        [
            text_message("Hello."),
            Completion("", calls=(first,), wire=wire.name),
            (first, ToolResult((TextContent("one"),))),
            Completion("", calls=(second,), wire=wire.name),
            (second, ToolResult((TextContent("two"),))),
        ]
    )
    texts = [leaves(decode(b"[" + fragment + b"]"), lambda _: True) for fragment in fragments]
    ids = [texts[place] & texts[place + 1] for place in (1, 3)]
    if not ids[0] - ids[1] or not ids[1] - ids[0]:
        reader.fail(f"the calls and their results cannot be told apart: {fragments!r}")


_PICTURE = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00"
    b"\x1f\x15\xc4\x89"
)
_BLOCKS = (
    *(TextContent("text"), TextContent(""), ImageContent(_PICTURE), AudioContent(b"RIFF")),
    *(FileContent(b"%PDF-1.4", "application/pdf", name="a.pdf"), FileContent(b"a", "text/plain")),
    FileContent(url="https://example.com/a.png"),
    FileContent(file_id="file-1", mime_type="application/pdf"),
    *(ResourceLink("file:///a"), EmbeddedResource({"uri": "file:///a", "text": "t"})),
)


def check_content(reader: Reader) -> None:
    """Check that every kind of content gives JSON in a message and in a result, or a
    `ConfigurationError`."""
    call = as_call("f", {"a": "é"}, "call_1")
    invalid = msgspec.structs.replace(call, arguments={}, raw="{", invalid="It is not JSON.")
    for block in _BLOCKS:
        answer = Completion("So.", calls=(call, invalid), wire=reader.wire.name)
        result = ToolResult((block,))
        wrong = ToolResult((block,), is_error=True)
        for items in (
            [Message((block,))],
            [
                text_message("Hello."),
                answer,
                (call, result),
                (invalid, wrong),
                text_message("More."),
            ],
            [text_message("Hello."), text_message("Be brief.", "system"), Message((block, block))],
        ):
            reader.begin(f"a request with {type(block).__name__}")
            try:
                decode(reader.request(items))
            except ConfigurationError:
                continue
            except Exception as error:
                reader.fail(f"it cannot be made: {error!r}", error)


_PARAMETERS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "max_output_tokens": 7,
    "seed": 1,
    "stop": ["x"],
    "reasoning_effort": "low",
    "reasoning_budget": 100,
    "parallel_tool_calls": True,
    "response_format": {"type": "json_object"},
    "prompt_caching": True,
    "cache_key": "k",
    "extra_body": {mutations.UNKNOWN: 1},
    "host": "example.com",
}


def check_head(reader: Reader) -> None:
    """Check that the wire accepts each parameter or raises `ConfigurationError`, and that the path
    and the headers are text."""
    wire = reader.wire
    fragments = reader.fragments([text_message("Hello.")])
    for name, value in _PARAMETERS.items():
        reader.begin(f"a request with {name}")
        try:
            head = wire.head("m", "", (), {name: value}, {})
        except ConfigurationError:
            continue
        except Exception as error:
            reader.fail(f"`head` raised {error!r}, not ConfigurationError", error)
        body = decode(wire.body(head, fragments, False))
        if name == "extra_body" and body.get(mutations.UNKNOWN) != 1:
            reader.fail("`extra_body` is not merged in")
    reader.begin("the path and the headers")
    for stream in (False, True):
        path = wire.path("a/model", stream)
        if not path.startswith("/"):
            reader.fail(f"the path is {path!r}, which does not begin with '/'")
    if "secret" in json.dumps(wire.headers("")) or "secret" not in json.dumps(
        wire.headers("secret-key")
    ):
        reader.fail("the headers carry the key if, and only if, there is one")


# Status -> the class of its error, unless the provider's own code says something else.
_STATUSES: dict[int, type[LLMError]] = {
    400: errors.BadRequest,
    401: errors.AuthenticationError,
    403: errors.PermissionDenied,
    404: errors.ModelNotFound,
    408: errors.LLMTimeout,
    413: errors.ContextTooLong,
    422: errors.BadRequest,
    429: errors.RateLimited,
    500: errors.ServerError,
    502: errors.ServerError,
    503: errors.ServerError,
    529: errors.Overloaded,
}
_ERROR_BODIES = (
    *(b"", b"{}", b"[]", b"null", b"5", b"slow down", b"<html><body>Bad gateway</body></html>"),
    *(b"\xff\xfe\x00", b'{"error":null}', b'{"error":[]}', b'{"error":{"code":{},"type":5}}'),
    *(b'{"error":{"message":"no"}}', b'{"error":"no"}', b'{"message":NaN}', b"[" * 100_000),
    b'{"error":{"message":"\\ud800"}}',
)


def check_errors(reader: Reader) -> None:
    """Check that each status gives an error of its class with `status` and `retry_after`, with any
    body."""
    for status, kind in _STATUSES.items():
        for body in _ERROR_BODIES:
            error = reader.read(
                RecordedResponse(_text(body), status), f"status {status}, {body[:30]!r}"
            )
            assert isinstance(error, LLMError)
            if not isinstance(error, kind):
                reader.fail(f"the error is {type(error).__name__}, not {kind.__name__}")
            if error.status != status:
                reader.fail(f"the error's status is {error.status}")
    for value, seconds in (("7", 7.0), ("0", 0.0), ("x", None), ("-1", None), ("nan", None)):
        response = RecordedResponse("", 429, {"Retry-After": value})
        error = reader.read(response, f"Retry-After: {value}")
        assert isinstance(error, LLMError)
        if error.retry_after != seconds and not (seconds is None and error.retry_after == 0):
            reader.fail(f"retry_after is {error.retry_after}, not {seconds}")


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
