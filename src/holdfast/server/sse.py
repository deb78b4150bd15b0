"""Server-sent events. `Stream` sends a conversation's journal, from any event on, to readers that
may be slow or reconnect. `TurnStream` sends a turn to the client that waits for it.

A `Stream` buffers no events. Events that the reader's socket does not accept yet stay in the feed
and in the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from holdfast.server.guard import RequestRefused
from holdfast.server.service import wait_for_disconnect

if TYPE_CHECKING:
    from holdfast.server.feed import Feed, FeedReader
    from holdfast.server.service import Service
    from holdfast.server.shapes import EventFrame, TransientNote

PING = 10.0  # seconds of silence after which a comment keeps the stream alive
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # makes nginx forward events without buffering
]


class Stream(Response):
    """The response that streams the events after `after_seq`. An ASGI application."""

    def __init__(
        self,
        service: Service,
        feed: Feed,
        key_id: str,
        after_seq: int,
        alive: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._service = service
        self._feed = feed
        self._key_id = key_id
        self._after = after_seq
        self._alive = alive
        self._pump: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        service = self._service
        service.check_open()
        with service.usage.stream(self._key_id):
            reader = self._feed.subscribe(asyncio.get_running_loop())
            self._pump = asyncio.ensure_future(self._run(reader, send))
            disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
            service.streams.add(self)
            try:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await asyncio.wait((self._pump, disconnected), return_when=asyncio.FIRST_COMPLETED)
                error = self._pump.done() and not self._pump.cancelled() and self._pump.exception()
                if error:  # the reader reconnects and then receives the error
                    raise error
                if not disconnected.done():
                    self.end()
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                service.streams.discard(self)
                self.end()
                disconnected.cancel()
                reader.close()

    def end(self) -> None:
        """Stop sending and end the response normally."""
        if self._pump is not None:
            self._pump.cancel()

    async def _run(self, reader: FeedReader, send: Any) -> None:
        clock = asyncio.get_running_loop().time
        ping = self._service.ping
        checked = -ping
        while True:
            # Also while many events are pending: a client that reads is alive.
            if clock() - checked >= ping:
                checked = clock()
                try:
                    await self._alive()
                except RequestRefused:
                    return  # the key was revoked; the reader learns this when it reconnects
            frames, notes, ended = await reader.next(self._after, ping)
            if frames or notes:
                count, last = len(frames), frames[-1].seq if frames else self._after
                body = encode(frames, notes)
                frames = notes = ()  # frees the memory while a slow reader blocks the send
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._after = last
                self._service.metrics.events += count
            elif not ended:
                await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
            if ended:
                return


def encode(frames: Sequence[EventFrame], notes: Sequence[TransientNote] = ()) -> bytes:
    """Encode events, with their seq as id, and notes without an id, each note after the event that
    it follows. A reader that reconnects names its last event, never a note."""
    newest = frames[-1].seq if frames else 0
    pending, parts = deque(notes), list[bytes]()
    for frame in frames:
        while pending and (newest if (after := pending[0].after) is None else after) < frame.seq:
            parts.append(_encoded_note(pending.popleft()))
        parts.append(
            b"id: %d\nevent: %b\ndata: %b\n\n" % (frame.seq, _word(frame.type), frame.data)
        )
    return b"".join([*parts, *map(_encoded_note, pending)])


def _encoded_note(note: TransientNote) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (_word(note.kind), note.data)


def _word(type: str) -> bytes:
    # An event of a newer version may have a type with any characters.
    return type.encode() if type.isidentifier() and type.isascii() else b"unknown"


class TurnStream(StreamingResponse):
    """Server-sent events of a turn for which a client waits. `leave`, which is idempotent, is
    awaited in the end.

    A client may be gone before its stream begins. Then the generator of the events is never
    entered, so that it cannot end the client's wait itself.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        leave: Callable[[], Awaitable[None]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        headers = {**(headers or {}), "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._leave()))
