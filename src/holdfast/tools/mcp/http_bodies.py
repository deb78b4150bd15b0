"""The bodies of an MCP server's HTTP responses, bounded before the mcp package decodes them on the
loop thread."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable

import httpx2
import mcp_types
import msgspec

from holdfast.nesting import separators, too_many
from holdfast.tools.mcp.message_filter import MAX_VALUES
from holdfast.tools.mcp.streams import MAX_MESSAGE_BYTES

# The content codings that requests accept. The HTTP client's own decoders have no limit: a
# megabyte can become a gigabyte at once.
ACCEPTED_ENCODINGS = "gzip, deflate"
_PIECE_BYTES = 256 * 1024  # are decompressed at once
# Commas and brackets of a message. Those in texts count, too, so that the limit is higher than that
# of other transports.
_MAX_SEPARATORS = 4 * MAX_VALUES
_EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")  # the last bytes of an event


class _Request(msgspec.Struct):
    id: int | str | None = None


class _Answer(msgspec.Struct):
    id: int | str | msgspec.Raw | None = None
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, without its compression.

    Each message of it has a bounded number of bytes and values. A JSON body that answers a request
    is passed on whole. A body that exceeds the bounds, or has the id of another request, is
    replaced by an error of its own request.

    Args:
        response: The response, whose stream is replaced by this object.
        failed: Called with the error of a body that breaks off. Returns the error to raise.
    """

    def __init__(
        self, response: httpx2.Response, failed: Callable[[httpx2.TransportError], Exception]
    ) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner = response.stream
        self._failed = failed
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._events = kind == "text/event-stream"
        request = response.request
        self._request_id = _request_id(request) if kind == "application/json" else None
        self._encoding = response.headers.pop("content-encoding", "identity").strip().lower()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            if self._request_id is None:
                async for chunk in self._bounded():
                    yield chunk
            else:
                try:
                    body = b"".join([chunk async for chunk in self._bounded()])
                except _Refused as error:
                    body = _failure(self._request_id, str(error))
                else:
                    body = _answer_to(self._request_id, body)
                yield body
        except httpx2.TransportError as error:
            raise self._failed(error) from error

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _bounded(self) -> AsyncIterator[bytes]:
        size = values = 0  # of the present message
        last = b""
        async for chunk in self._plain():
            begin = 0
            if self._events:
                joined = last + chunk
                ends = [joined.rfind(end) + len(end) for end in _EVENT_ENDS if end in joined]
                begin = max(0, max(ends, default=0) - len(last))
                last = joined[-3:]
            size = (0 if begin else size) + len(chunk) - begin
            values = (0 if begin else values) + separators(chunk[begin:])
            if size > MAX_MESSAGE_BYTES:
                raise _Refused(f"it has more than {MAX_MESSAGE_BYTES:,} bytes")
            if values > _MAX_SEPARATORS:
                raise _Refused(f"it has more than {_MAX_SEPARATORS:,} JSON values")
            yield chunk

    async def _plain(self) -> AsyncIterator[bytes]:
        if self._encoding == "identity":
            async for chunk in self._inner:
                yield chunk
            return
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            raise _Refused(f"it has the content coding {self._encoding[:40]!r}")
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        async for chunk in self._inner:
            remaining = chunk
            while remaining and not inflate.eof:
                try:
                    yield inflate.decompress(remaining, _PIECE_BYTES)
                except zlib.error as error:
                    raise _Refused(f"its compression is damaged: {error}") from None
                remaining = inflate.unconsumed_tail
                await asyncio.sleep(0)  # other connections go on


class _Refused(httpx2.ReadError):
    """A message that exceeds its bounds, or whose compression is unknown or damaged."""


def _request_id(request: httpx2.Request) -> int | str | None:
    """Return the id of the JSON-RPC request in an HTTP request, or None."""
    try:
        return msgspec.json.decode(request.content, type=_Request).id
    except (ValueError, httpx2.RequestNotRead):
        return None


def _answer_to(request_id: int | str, body: bytes) -> bytes:
    """Return the answer in a JSON body, or an error for one that does not fit the request. An
    unreadable body is left to the mcp package."""
    if too_many(body, MAX_VALUES):
        return _failure(request_id, f"it has more than {MAX_VALUES:,} JSON values")
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError):
        return body
    if answer.method is not msgspec.UNSET or str(answer.id) == str(request_id):
        return body
    if answer.id is None and answer.error is not msgspec.UNSET:
        # The server could not read the request, or leaves the id out.
        return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": answer.error})
    return _failure(request_id, "it has the id of another request")


def _failure(request_id: int | str, reason: str) -> bytes:
    error = {"code": mcp_types.PARSE_ERROR, "message": f"its answer cannot be read: {reason}"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})
