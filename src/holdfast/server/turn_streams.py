"""The answer to a request that streams a turn which has begun already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse


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
