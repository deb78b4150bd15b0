"""Checks of answers: parsing, streaming, mutations and additions. Each raises `CheckFailed`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from holdfast.answer import AnswerDetails
from holdfast.content import Usage
from holdfast.errors import LLMError
from holdfast.llm.completion import Completion, Delta
from holdfast.testing.wires import mutations
from holdfast.testing.wires.exchanges import RecordedExchange, RecordedResponse
from holdfast.testing.wires.framing import Framing, StreamEvent
from holdfast.testing.wires.mutations import covers
from holdfast.testing.wires.reading import Outcome, Reader, cut, decode, text_message, turn

T = TypeVar("T")

_SIZES = (1, 2, 3, 7, 11, 64)  # sizes of the pieces of a stream in bytes
_TAIL = 160  # bytes at the end of a stream; the stream is truncated at each of them


def check_reading(reader: Reader, exchange: RecordedExchange, limit: int = 0) -> None:
    """Check that the wire reads every recorded form of the answer as expected."""
    for response in exchange.responses:
        form = "streamed" if response.is_stream else "plain"
        outcome = reader.read(response, f"the recorded answer, {form}")
        _compare(reader, exchange.expected, outcome)
        if isinstance(outcome, Completion):
            check_form(reader, outcome)


def _compare(reader: Reader, expected: Mapping[str, Any] | None, outcome: Outcome) -> None:
    expected_fields = {} if expected is None else dict(expected)
    error: Mapping[str, Any] | None = expected_fields.pop("error", None)
    if isinstance(outcome, LLMError):
        if expected is not None and error is None:
            reader.fail(f"an answer is expected, and the wire raised {outcome!r}")
        for name, value in (error or {}).items():
            actual = type(outcome).__name__ if name == "type" else getattr(outcome, name)
            if actual != value:
                reader.fail(f"the error's {name} is {actual!r}, not {value!r} ({outcome!r})")
        return
    if error is not None:
        reader.fail(f"an error is expected, and the wire read the answer {outcome.text!r}")
    for name, value in expected_fields.items():
        actual = _as_data(getattr(outcome, name))
        if not covers(actual, value):
            reader.fail(f"{name} is {actual!r}, not {value!r}")


def _as_data(value: Any) -> Any:
    """Return a value of an answer as JSON, under the names of its attributes."""
    if isinstance(value, msgspec.Raw):
        return decode(bytes(value)) if value else None
    if isinstance(value, msgspec.Struct):
        fields = {name: _as_data(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return fields if tag is None else {"type": tag, **fields}
    if isinstance(value, dict):
        return {key: _as_data(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [_as_data(item) for item in cast("Sequence[Any]", value)]
    return msgspec.to_builtins(value)


def check_form(reader: Reader, answer: Completion) -> None:
    """Check that an answer is a legal `Completion` that the journal can store and the wire can
    send back."""
    for name in ("text", "reasoning", "stop_reason", "model", "response_id"):
        if not isinstance(getattr(answer, name), str):
            reader.fail(f"{name} is {getattr(answer, name)!r}, not a str")
    if answer.wire != reader.wire.name:
        reader.fail(f"the answer's wire is {answer.wire!r}, not {reader.wire.name!r}")
    for name in Usage.__struct_fields__:
        count: object = getattr(answer.usage, name)
        if type(count) is not int or not 0 <= count < 2**65:
            reader.fail(f"usage.{name} is {count!r}, not a number of tokens")
    ids = [call.provider_id for call in answer.calls if call.provider_id]
    if len(set(ids)) != len(ids):
        reader.fail(f"two calls have one id: {ids}")
    if any(call.id for call in answer.calls):
        reader.fail("a call has an `id`, which the conversation assigns; use `provider_id`")
    try:
        encoded = answer.to_json()
        again = Completion.from_json(encoded)
        reader.wire.assistant(answer.text, answer.calls, answer.native, {})
        request = reader.request([text_message("Hello."), again, *turn(again)], answer.model)
        decode(request)
    except Exception as error:
        reader.fail(f"the answer cannot be journaled and sent back: {error!r}", error)
    if again.to_json() != encoded:
        reader.fail(f"the answer changes in the journal: {encoded!r} becomes {again.to_json()!r}")


def check_streamed(reader: Reader, exchange: RecordedExchange, limit: int = 0) -> None:
    """Check that the plain and the streamed form of an answer give the same `Completion`."""
    plain, streamed = (
        reader.read(response, "the recorded answer") for response in exchange.responses
    )
    _same(reader, plain, streamed, "the streamed answer differs from the plain one")


def check_cuts(reader: Reader, exchange: RecordedExchange, limit: int = 0) -> None:
    """Check that a stream gives the same answer and the same deltas at any size of its pieces and
    with every kind of line end."""
    for response in _streams(exchange):
        deltas: list[Delta] = []
        whole = reader.stream([response.data], "the whole stream", deltas.append)
        if isinstance(whole, Completion):
            _check_deltas(reader, whole, deltas)
        framing = Framing.of(response.body)
        texts = {"": response.data, ", lines ending in CRLF": framing.render(end="\r\n")}
        if framing.is_sse:
            texts[", lines ending in CR"] = framing.render(end="\r")
        for name, data in texts.items():
            for size in (*_SIZES, len(data)):
                deltas = []
                doing = f"the stream in pieces of {size}{name}"
                outcome = reader.stream(cut(data, size), doing, deltas.append)
                _same(reader, whole, outcome, "the answer differs from that of the whole stream")
                if isinstance(outcome, Completion):
                    _check_deltas(reader, outcome, deltas)


def _check_deltas(reader: Reader, answer: Completion, deltas: Sequence[Delta]) -> None:
    for kind, whole in (("text", answer.text), ("reasoning", answer.reasoning)):
        joined = "".join(delta.text for delta in deltas if delta.kind == kind)
        if joined != whole:
            reader.fail(f"the {kind} deltas are {joined!r} together, and the answer has {whole!r}")
    for index, call in enumerate(answer.calls):
        pieces = [delta for delta in deltas if delta.kind == "tool" and delta.index == index]
        if [delta.name for delta in pieces[:1]] != [call.name]:
            reader.fail(f"call {index} has no first delta with its name {call.name!r}")
        joined = "".join(delta.text for delta in pieces)
        if not call.invalid and decode(joined.encode() or b"{}") != call.arguments:
            reader.fail(f"the deltas of call {index} are {joined!r} together: {call.arguments!r}")


def check_truncation(reader: Reader, exchange: RecordedExchange, limit: int) -> None:
    """Check that a truncated stream gives an error or the whole answer, never a shorter one."""
    for response in _streams(exchange):
        data = response.data
        whole = reader.stream([data], "the whole stream")
        if isinstance(whole, LLMError):
            continue
        end = max(0, len(data) - _TAIL)
        places = [*_sample(range(end), limit), *range(end, len(data))]
        for place in places:
            outcome = reader.stream([data[:place]], f"the first {place} of {len(data)} bytes")
            if isinstance(outcome, Completion):
                _same(reader, whole, outcome, "a part of the stream is another answer", _COUNTS)


def check_mutations(reader: Reader, exchange: RecordedExchange, limit: int) -> None:
    """Check that every mutation of an answer gives a legal answer or an `LLMError`."""
    for response in exchange.responses:
        if response.status != 200:
            _check_error_bodies(reader, response, limit)
            continue
        changes = [*_sample(list(_changes(response)), limit), *_deep(response)]
        if response.is_stream:
            changes += list(_reordered(Framing.of(response.body), limit // 8))
        for make in changes:
            data, what = make()
            if response.is_stream:
                outcome = reader.stream([data], what)
            else:
                outcome = reader.plain(data, what)
            if isinstance(outcome, Completion):
                check_form(reader, outcome)


_Change = Callable[[], tuple[bytes, str]]


def _changes(response: RecordedResponse) -> Iterator[_Change]:
    """Yield the mutations of an answer. Of a stream, only the first and the last value of each
    shape are mutated."""
    if not response.is_stream:
        for path in mutations.paths(response.body):
            for number in range(mutations.number_of_wrong(path)):
                yield partial(_plain_change, response.body, path, number)
        return
    framing = Framing.of(response.body)
    first: dict[object, tuple[int, mutations.Path]] = {}
    last: dict[object, tuple[int, mutations.Path]] = {}
    for position, event in enumerate(framing.events):
        for path in mutations.paths(event.value) if event.value is not None else ():
            key = mutations.shape(event.value, path)
            first.setdefault(key, (position, path))
            last[key] = (position, path)
    for position, path in dict.fromkeys([*first.values(), *last.values()]):
        for number in range(mutations.number_of_wrong(path)):
            yield partial(_event_change, framing, position, path, number)


def _plain_change(body: Any, path: mutations.Path, number: int) -> tuple[bytes, str]:
    text, what = mutations.wrong_text(body, path, number)
    return text.encode("utf-8", "surrogatepass"), what


def _event_change(
    framing: Framing, position: int, path: mutations.Path, number: int
) -> tuple[bytes, str]:
    event = framing.events[position]
    text, what = mutations.wrong_text(event.value, path, number)
    replacement = framing.replaced(position, StreamEvent(text, event.fields))
    return framing.render(replacement), f"event {position}: {what}"


def _deep(response: RecordedResponse) -> Iterator[_Change]:
    for text in (mutations.DEEP, '{"a":' * 100_000):
        if response.is_stream:
            framing = Framing.of(response.body)
            data = framing.render([StreamEvent(text)])
        else:
            data = text.encode()
        yield lambda data=data: (data, "nesting without end")


def _check_error_bodies(reader: Reader, response: RecordedResponse, limit: int) -> None:
    """Check that every mutation of a recorded error gives an `LLMError`."""
    if isinstance(response.body, str):
        return
    for change in _sample(list(_changes(response)), limit):
        data, what = change()
        mutated = msgspec.structs.replace(response, body=data.decode("utf-8", "replace"))
        reader.read(mutated, what)


def _reordered(framing: Framing, limit: int) -> Iterator[_Change]:
    """Yield streams with events that are missing, repeated or in another order."""
    chance = random.Random(0)
    for position in _sample(range(len(framing.events)), limit):
        event = framing.events[position]
        orders = {
            "missing": framing.replaced(position),
            "there twice": framing.replaced(position, event, event),
            "the last one": [*framing.replaced(position), event],
        }
        for what, events in orders.items():
            yield lambda events=events, what=what, position=position: (
                framing.render(events),
                f"event {position} is {what}",
            )
    for number in range(min(limit, 20)):
        events = chance.sample(framing.events, len(framing.events))
        yield lambda events=events, number=number: (
            framing.render(events),
            f"the events in order {number} by chance",
        )


def check_additions(reader: Reader, exchange: RecordedExchange, limit: int) -> None:
    """Check that unknown fields, unknown events, comments and other spellings of the JSON change
    nothing."""
    for response in exchange.responses:
        if response.status != 200:
            continue
        whole = reader.read(response)
        if response.is_stream:
            for data, what in _stream_additions(Framing.of(response.body), exchange, limit):
                outcome = reader.stream([data], what)
                _same(reader, whole, outcome, "the answer changes", _DETAILS)
            continue
        for value, what in _sample(list(mutations.added_fields(response.body)), limit):
            outcome = reader.plain(mutations.dump(value).encode(), what)
            _same(reader, whole, outcome, "the answer changes", _DETAILS)
        for text, what in mutations.other_texts(response.body):
            outcome = reader.plain(text.encode("utf-8", "surrogatepass"), what)
            _same(reader, whole, outcome, "the answer changes")


def _stream_additions(
    framing: Framing, exchange: RecordedExchange, limit: int
) -> Iterator[tuple[bytes, str]]:
    events = framing.events
    unknown = StreamEvent(mutations.dump(mutations.UNKNOWN_EVENT))
    if framing.is_sse:
        unknown = msgspec.structs.replace(unknown, fields=(f"event: {mutations.UNKNOWN}",))
        text = framing.render()
        yield b": comment\n\n" + text.replace(b"\n\n", b"\n\n: comment\n\n"), "comments"
        yield text.replace(b"\n\n", b"\n\n\n\n"), "empty lines"
        yield b"retry: 10\nid: 1\n" + text, "fields `retry` and `id`"
        yield b"\n".join(_without_space(line) for line in text.split(b"\n")), "no space after data:"
        yield b"\xef\xbb\xbf" + text, "a byte order mark"
        yield text.rstrip(b"\n"), "no line end at the end"
    else:
        yield framing.render(end="\n\n"), "empty lines"
        yield framing.render(end=" \n"), "spaces at the ends of lines"
        yield framing.render().rstrip(b"\n"), "no line end at the end"
    for position in _sample(range(len(events)), limit // 4):
        yield (
            framing.render(framing.replaced(position, unknown, events[position])),
            f"an unknown event before event {position}",
        )
    added = (
        (position, value, what)
        for position, event in enumerate(events)
        if event.value is not None
        for value, what in mutations.added_fields(event.value)
    )
    for position, value, what in _sample(list(added), limit):
        event = StreamEvent(mutations.dump(value), events[position].fields)
        yield framing.render(framing.replaced(position, event)), f"event {position}: {what}"
    for one, other in exchange.swaps:
        swapped = list(events)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        yield framing.render(swapped), f"events {one} and {other} in the other order"
    if not framing.is_sse:
        return
    for position in _sample(range(len(events)), limit // 8):
        if events[position].value is None:
            continue
        for text, what in mutations.other_texts(events[position].value):
            event = StreamEvent(text, events[position].fields)
            yield framing.render(framing.replaced(position, event)), f"event {position} {what}"


def _without_space(line: bytes) -> bytes:
    return b"data:" + line[6:] if line.startswith(b"data: ") else line


# --- comparison ---

_COUNTS = ("usage", "details", "response_id", "model")  # may follow the content of a stream
_DETAIL_FIELDS = AnswerDetails.__struct_fields__
_DETAILS = ("native", "provider_details")  # contain unknown fields


def _same(
    reader: Reader, one: Outcome, other: Outcome, problem: str, ignored: Iterable[str] = ()
) -> None:
    if isinstance(one, LLMError) or isinstance(other, LLMError):
        if type(one) is not type(other):
            reader.fail(f"{problem}: {one!r}\n{other!r}")
        return
    for name in Completion.__struct_fields__:
        if name in ignored:
            continue
        values = [getattr(each, name) for each in (one, other)]
        if name == "details":
            values = [_without(each or AnswerDetails(), ignored) for each in values]
        mine, theirs = (mutations.without_unknown(_as_data(each)) for each in values)
        if mine != theirs:
            reader.fail(f"{problem}: {name} is {theirs!r}, not {mine!r}")


def _without(details: AnswerDetails, ignored: Iterable[str]) -> dict[str, Any]:
    """Return the fields of details that are not ignored."""
    return {name: getattr(details, name) for name in _DETAIL_FIELDS if name not in ignored}


def _sample(items: Sequence[T], limit: int) -> list[T]:
    """Return at most `limit` items, taken evenly from all."""
    if len(items) <= limit:
        return list(items)
    return [items[number * len(items) // limit] for number in range(limit)]


def _streams(exchange: RecordedExchange) -> list[RecordedResponse]:
    return [response for response in exchange.responses if response.is_stream]
