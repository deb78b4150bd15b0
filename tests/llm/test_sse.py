"""An event stream gives the same events wherever its bytes are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.llm.wires.sse import EventReader
from tests.samples import examples

Events = list[tuple[bytes, bytes]]

LINES = (
    *(b'data: {"a":1}', b"data:x", b"data: ", b"data: [DONE]", b"data: data: event: "),
    *(b"event: ping", b"event:x ", b"event: ", b": a comment", b"id: 3", b"retry: 3"),
    *(b"", b"", b"", b"\xef\xbb\xbfdata: 1", b'error: {"a":1}', b'{"a":1}'),
)
STREAMS = st.lists(st.sampled_from(LINES), min_size=1, max_size=10)
ENDS = st.sampled_from([b"\n", b"\n", b"\n\n", b"\r\n", b"\r"])


def parse(chunks: list[bytes]) -> Events:
    reader = EventReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + reader.rest()


@given(STREAMS, st.data())
@settings(max_examples=examples(1000), deadline=None)
def test_a_stream_read_at_once_gives_the_events_of_single_bytes(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join([line + data.draw(ENDS) for line in lines])
    cut = data.draw(st.integers(0, len(stream)))
    one_by_one = parse([stream[at : at + 1] for at in range(len(stream))])
    assert parse([stream]) == one_by_one
    assert parse([stream[:cut], stream[cut:]]) == one_by_one


def test_plain_events_are_read_with_and_without_names() -> None:
    assert parse([b"data: 1\n\ndata: 2\n\ndata: 3"]) == [(b"", b"1"), (b"", b"2"), (b"", b"3")]
    stream = b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\nevent: c\n"
    assert parse([stream]) == [(b"a", b"1"), (b"b", b"2")]
    assert parse([b"data: 1\n\ndata: 2\ndata: 3\n\n"]) == [(b"", b"1"), (b"", b"2\n3")]


def test_an_event_without_data_and_one_with_two_lines_are_not_taken_for_two_events() -> None:
    assert parse([b"event: a\n\nevent: b\ndata: 1\ndata: 2\n\n"]) == [(b"b", b"1\n2")]
