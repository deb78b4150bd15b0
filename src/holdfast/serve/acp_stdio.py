"""The Agent Client Protocol over standard input and output."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, cast

from acp.agent.connection import AgentSideConnection

from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep
from holdfast.serve.acp import ACPAgent
from holdfast.serve.acp_modes import Mode
from holdfast.serve.acp_session import OpenPlace
from holdfast.serve.stdio import LineChannel, StdioStreams
from holdfast.store import Store

_LINGER_SECONDS = 0.5  # for answers to requests right before the input's end


def over_stdio(open_place: OpenPlace, store: Store, wire: StdioStreams, mode: Mode = "ask") -> int:
    """Serve one client on a wire that the caller has claimed, until it closes its end or a signal
    comes. Returns the number of the signal, or 0. New sessions begin in `mode`."""
    return asyncio.run(_serve(open_place, store, wire, mode))


async def _serve(open_place: OpenPlace, store: Store, wire: StdioStreams, mode: Mode) -> int:
    loop, ended = asyncio.get_running_loop(), [0]
    agent = ACPAgent(open_place, store, mode)
    transport = _Wire(wire)
    connection = AgentSideConnection(
        cast("Any", agent), transport, listening=False, use_unstable_protocol=True
    )
    listening = asyncio.ensure_future(connection.listen())

    def end(number: int) -> None:
        ended[0] = ended[0] or number
        listening.cancel()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
    try:
        with suppress(asyncio.CancelledError, OSError):
            await listening
    finally:
        await connection.close()
        await asyncio.to_thread(agent.close)
    return ended[0]


class _Wire:
    """JSON-RPC messages on a wire. A line that is not a message is answered with an error. A
    message that the library could not read, such as an answer whose id is a list, is left out."""

    def __init__(self, wire: StdioStreams) -> None:
        self._channel = LineChannel(wire)
        self._lines: AsyncGenerator[bytes] = self._channel.lines()
        self._unanswered = 0

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end."""
        with suppress(OSError):  # the client has gone
            async for line in self._lines:
                if not line.strip():
                    continue
                message, code = _message(line)
                if code:
                    text = "Parse error" if code == -32700 else "Invalid request"
                    error = {"code": code, "message": text}
                    await self._write({"jsonrpc": "2.0", "id": None, "error": error})
                elif message is not None:
                    self._unanswered += "method" in message and "id" in message
                    return message
            deadline = asyncio.get_running_loop().time() + _LINGER_SECONDS
            while self._unanswered and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message. Raises `ConnectionError` if the client has gone."""
        self._unanswered -= "method" not in message
        await self._write(message)

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            await self._channel.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ConnectionError("The client has gone.") from error

    async def close(self) -> None:
        self._channel.close()


def _message(line: bytes) -> tuple[dict[str, Any] | None, int]:
    """Return the message in a line, and the code of the error that answers a line without one."""
    if too_deep(line, MAX_DOCUMENT_DEPTH):
        return None, -32600
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None, -32700
    if not isinstance(message, dict):
        return None, -32600
    fields = cast("dict[str, Any]", message)
    id, method, error = fields.get("id"), fields.get("method"), fields.get("error")
    if method is None:
        fits = isinstance(id, int | str) and isinstance(error, dict | None)
        return (fields if fits else None), (0 if "result" in fields or error else -32600)
    return fields, 0 if isinstance(method, str) and isinstance(
        id, int | float | str | None
    ) else -32600
