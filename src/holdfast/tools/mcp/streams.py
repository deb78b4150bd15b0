"""The two ends that the mcp package reads from and writes to. Made here for the transports that we speak ourselves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

LONGEST_MESSAGE = 256 * 1024 * 1024  # bytes; a result ten times the largest that we have seen, and no more than a process can bear


class Unreadable(ValueError):
    """A text from a server that is no message: `text` in whole, and the reason as the message."""

    def __init__(self, reason: str, text: bytes) -> None:
        super().__init__(reason)
        self.text = text


class _End:
    """What both ends need to be used in `async with`."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.aclose()


class Inbox(_End):
    """Messages from a server, in order, until `end`. `taken()` is called when the last waiting one was taken."""

    def __init__(self, taken: Callable[[], None] = lambda: None) -> None:
        self._items: deque[SessionMessage | Exception] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._closed = False
        self._taken = taken

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: SessionMessage | Exception) -> None:
        """Hand over a message, or what is none, as the exception that says so."""
        if not self._ended.is_set() and not self._closed:
            self._items.append(item)
            self._wake()

    def end(self) -> None:
        """No more will come."""
        self._ended.set()
        self._wake()

    async def ended(self) -> None:
        """Wait until no more will come."""
        await self._ended.wait()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def receive(self) -> SessionMessage | Exception:
        """The next one. Raises anyio's `EndOfStream` after the last."""
        while not self._items:
            if self._ended.is_set() or self._closed:
                raise anyio.EndOfStream
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        item = self._items.popleft()
        if not self._items:
            self._taken()
        return item

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Close the reader's side; later messages are dropped. `ended` waits on: the server has not ended."""
        self._items.clear()
        self._closed = True
        self._wake()
        self._taken()


class Outbox(_End):
    """Messages to a server: `send` awaits `deliver(message)`, which raises what only that message failed by."""

    def __init__(self, deliver: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._deliver = deliver
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Deliver it. Raises anyio's `ClosedResourceError` after `aclose`."""
        if self._closed:
            raise anyio.ClosedResourceError
        await self._deliver(item)

    async def aclose(self) -> None:
        """No more will be sent."""
        self._closed = True
