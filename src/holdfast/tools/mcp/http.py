"""The HTTP client of a connection to an MCP server, and the older SSE transport.

The contents of a request (headers, tokens, the message) are for one origin. Redirects to another
origin are not followed, as in the mcp package's transport for streamable HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from mcp.shared.message import SessionMessage

from holdfast.error_text import describe_error
from holdfast.tools.mcp.config import Http
from holdfast.tools.mcp.http_bodies import ACCEPTED_ENCODINGS, BoundedBody
from holdfast.tools.mcp.message_filter import parse_message
from holdfast.tools.mcp.streams import MAX_MESSAGE_BYTES, Inbox, Outbox
from holdfast.tools.trace_headers import trace_headers


class Trace:
    """The HTTP outcome of one call's requests.

    The transport turns every HTTP failure into one JSON-RPC error. However, the transport sends
    each request in the caller's context, so the HTTP hooks that write this trace run in that
    context too.
    """

    __slots__ = ("failure", "status")

    def __init__(self) -> None:
        self.status = 0  # HTTP status of the last response
        self.failure: Exception | None = None  # the error of a request that got no response


trace_of_call: ContextVar[Trace | None] = ContextVar("holdfast_mcp_trace", default=None)


async def _note_status(response: httpx2.Response) -> None:
    trace = trace_of_call.get()
    if trace is not None and not response.extensions.get("holdfast"):
        trace.status = response.status_code


async def _trace(request: httpx2.Request) -> None:
    # The mcp package puts the trace context into the message, but not into the headers.
    for name, value in trace_headers().items():
        request.headers.setdefault(name, value)


def _note_failure(error: Exception) -> None:
    trace = trace_of_call.get()
    if trace is not None:
        trace.failure = error


def _stream_error(error: httpx2.TransportError) -> Exception:
    """Return the error that ends one stream, not the MCP connection."""
    _note_failure(error)
    return httpx2.StreamError(describe_error(error))


class _Contained(httpx2.AsyncHTTPTransport):
    """A transport that keeps the failure of one request from failing the others.

    The mcp package's transport would end all other requests on the connection too. While
    `connected()`, `_Contained` answers a failed request with a JSON-RPC error instead. Before that,
    a failure belongs to the connection.
    """

    def __init__(self, connected: Callable[[], bool]) -> None:
        # No limit: by default, a call that waits too long for one of 100 connections fails.
        super().__init__(trust_env=False, limits=httpx2.Limits())
        self._connected = connected

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        contained = request.method == "POST" and self._connected()
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            if not contained:
                raise
            _note_failure(error)
            failure = {"code": -32000, "message": describe_error(error)}
            body = {"jsonrpc": "2.0", "id": None, "error": failure}
            return httpx2.Response(503, json=body, extensions={"holdfast": True}, request=request)
        response.request = request
        response.stream = BoundedBody(response, _stream_error if contained else lambda error: error)
        return response


def http_client(
    server: Http, timeout: float, auth: httpx2.Auth | None, connected: Callable[[], bool]
) -> httpx2.AsyncClient:
    """Return the HTTP client of one connection, which reads no proxy and no .netrc."""
    return httpx2.AsyncClient(
        headers={"accept-encoding": ACCEPTED_ENCODINGS, **server.headers},
        auth=auth,
        # `call_timeout` limits the time of a call; reading itself has no limit.
        timeout=httpx2.Timeout(timeout, read=None),
        transport=_Contained(connected),
        trust_env=False,
        event_hooks={"request": [_trace], "response": [_note_status]},
    )


# --- SSE (2024-11-05) ---

# Replaces the mcp package's SSE transport, which reads events of at most 1 MB. That transport does
# not report an undelivered message to the message's caller.


@contextlib.asynccontextmanager
async def sse(
    http: httpx2.AsyncClient, url: str, on_end: Callable[[], None]
) -> AsyncGenerator[tuple[Inbox, Outbox]]:
    """Connect to an SSE server. `on_end()` is called when its stream ends. Raises
    `httpx2.HTTPError`, or `ValueError` if the server does not speak MCP."""
    inbox = Inbox(on_end)
    endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        try:
            async with http.sse(url, max_event_size=MAX_MESSAGE_BYTES) as events:
                events.response.raise_for_status()
                async for event in events:
                    _take(event, url, inbox, endpoint)
            raise httpx2.RemoteProtocolError("the event stream ended")
        except (httpx2.HTTPError, httpx2.SSEError, ValueError) as error:
            if endpoint.done():
                inbox.end()
            else:
                endpoint.set_exception(error)

    async def send(message: SessionMessage) -> None:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        response = await http.post(
            await endpoint, content=text, headers={"content-type": "application/json"}
        )
        response.raise_for_status()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        try:
            await endpoint
            yield inbox, Outbox(send)
        finally:
            if not endpoint.done():
                endpoint.cancel()
            elif not endpoint.cancelled():
                endpoint.exception()  # mark as retrieved; `await endpoint` above has raised it
            group.cancel_scope.cancel()


def _take(event: Any, url: str, inbox: Inbox, endpoint: asyncio.Future[str]) -> None:
    if event.event == "endpoint":
        address = urljoin(url, event.data)
        here, there = httpx2.URL(url), httpx2.URL(address)
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            raise ValueError(
                f"the server wants messages sent to another origin, {there.scheme}://{there.host}"
            )
        if not endpoint.done():
            endpoint.set_result(address)
    elif event.event == "message" and event.data:
        inbox.put(parse_message(event.data))
