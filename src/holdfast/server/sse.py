"""Server-sent events: a conversation's journal as it grows, from any event on, to a reader who may
be slow, go away or come back.

A stream holds no events: what the reader's socket does not take yet stays in the feed, and in the
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from holdfast.server.guard import Refused
from holdfast.server.service import gone

if TYPE_CHECKING:
    from holdfast.server.feed import Feed, Reader
    from holdfast.server.service import Service
    from holdfast.server.shapes import Frame, Note

PING = 10.0  # seconds of silence after which a comment tells that the stream lives
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # nginx: pass on what comes as it comes
]


class Stream(Response):
    """The answer that is the events after `after_seq`. An ASGI app."""

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
            left = asyncio.ensure_future(gone(receive))
            service.streams.add(self)
            try:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await asyncio.wait((self._pump, left), return_when=asyncio.FIRST_COMPLETED)
                broken = self._pump.done() and not self._pump.cancelled() and self._pump.exception()
                if broken:  # the reader comes again, and is told what it is
                    raise broken
                if not left.done():
                    self.end()
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                service.streams.discard(self)
                self.end()
                left.cancel()
                reader.close()

    def end(self) -> None:
        """Send no more, and end the answer as one that is whole."""
        if self._pump is not None:
            self._pump.cancel()

    async def _run(self, reader: Reader, send: Any) -> None:
        clock = asyncio.get_running_loop().time
        ping = self._service.ping
        told = -ping
        while True:
            if clock() - told >= ping:  # whoever reads is alive, also while much is to be read
                told = clock()
                try:
                    await self._alive()
                except Refused:  # the key was taken back; who comes again is told
                    return
            frames, notes, ended = await reader.next(self._after, ping)
            if frames or notes:
                count, last = len(frames), frames[-1].seq if frames else self._after
                body = encode(frames, notes)
                frames = notes = ()  # a slow reader keeps us here for long
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._after = last
                self._service.metrics.events += count
            elif not ended:
                await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
            if ended:
                return


def encode(frames: Sequence[Frame], notes: Sequence[Note] = ()) -> bytes:
    """Events with their seq as id, then notes without one: a reader that comes again names the last
    event, never a note."""
    parts = [
        b"id: %d\nevent: %b\ndata: %b\n\n" % (frame.seq, _word(frame.type), frame.data)
        for frame in frames
    ]
    parts += [b"event: %b\ndata: %b\n\n" % (_word(note.kind), note.data) for note in notes]
    return b"".join(parts)


def _word(type: str) -> bytes:
    # A newer version's type is whatever the journal says.
    return type.encode() if type.isidentifier() and type.isascii() else b"unknown"
