"""The two ends of a transport of this package, in the form that the mcp package uses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

import anyio

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

# Ten times the largest result seen so far, and still small enough for the memory of a process.
MAX_MESSAGE_BYTES = 256 * 1024 * 1024


class UnreadableMessage(ValueError):
    """The error for a text from a server that is not a message. `text` is the whole text."""

    def __init__(self, reason: str, text: bytes) -> None:
        super().__init__(reason)
        self.text = text


class StreamEnd:
    """The base of both ends, which makes them async context managers."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.aclose()


class Inbox(StreamEnd):
    """Messages from a server until `end`: an async iterator. `on_end()` is called when the server
    ends before the reader closes, `on_empty()` when no message waits any more."""

    def __init__(
        self, on_end: Callable[[], None], on_empty: Callable[[], None] = lambda: None
    ) -> None:
        self._items: deque[SessionMessage | Exception] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._over = False  # True if one of the two sides has ended
        self._on_end = on_end
        self._on_empty = on_empty

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: SessionMessage | Exception) -> None:
        """Add a message. An exception stands for a text that is not a message."""
        if not self._over:
            self._items.append(item)
            self._wake()

    def end(self) -> None:
        """Mark the end: no further message will come."""
        if not self._over:
            self._over = True
            self._wake()
            # After the reader, which still finds the last messages.
            asyncio.get_running_loop().call_soon(self._on_end)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._items:
            if self._over:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        item = self._items.popleft()
        if not self._items:
            self._on_empty()
        return item

    async def aclose(self) -> None:
        """Close the reader's side and drop later messages; the server has not ended."""
        self._items.clear()
        self._over = True
        self._wake()
        self._on_empty()


class Outbox(StreamEnd):
    """Messages to a server. `deliver(message)` raises if only that message failed."""

    def __init__(self, deliver: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Deliver a message. Raises anyio's `ClosedResourceError` after `aclose`."""
        if self._closed:
            raise anyio.ClosedResourceError
        await self._deliver(item)

    async def aclose(self) -> None:
        self._closed = True
