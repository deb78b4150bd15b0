"""Bodies of requests: read within limits of size, time and memory, and decoded off the event
loop."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request

from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep, too_many
from holdfast.server.guard import RequestRefused, refused, too_large

T = TypeVar("T")

# The largest body of a route that carries no pictures, files or results.
SMALL_BODY_BYTES = 2 * 1024 * 1024
# The most JSON values of one body. The decoder holds the interpreter's lock for about 0.4 us per
# value.
MAX_VALUES = 250_000
# The most memory for bodies that are being read or wait to be decoded, for all keys together.
TOTAL_BYTES = 128 * 1024 * 1024
# The same limit for one key, so that one key cannot take all the memory.
KEY_BYTES = 64 * 1024 * 1024
# The first bytes of each body are not counted, so that small requests pass while large ones hold
# all the memory.
FREE_BYTES = 64 * 1024
# A body is refused if no byte arrives for this long.
IDLE_SECONDS = 15.0
# The time for a body: `GRACE_SECONDS`, plus a second per `BYTES_PER_SECOND` bytes received.
GRACE_SECONDS, BYTES_PER_SECOND = 30.0, 64_000
_ON_LOOP_BYTES = 16 * 1024  # smaller bodies are decoded on the loop, since a thread costs more
_DECODERS = 4  # threads
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # the escape of one half


class BodyMemory:
    """The memory of one body, counted until `free` or the end of the request."""

    def __init__(self, intake: Intake, key_id: str) -> None:
        self._intake = intake
        self._key_id = key_id
        self._size = 0
        self._counted = 0

    def add(self, size: int) -> None:
        """Count further bytes. Raises `RequestRefused` if the limit is reached."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES)
        if counted > self._counted:
            self._intake.take(self._key_id, counted - self._counted)
            self._counted = counted

    def free(self) -> None:
        if self._counted:
            self._intake.give_back(self._key_id, self._counted)
            self._size = self._counted = 0


class Intake:
    """Counts the memory of all bodies. Belongs to the event loop's thread."""

    def __init__(self, total: int = TOTAL_BYTES, per_key: int = KEY_BYTES) -> None:
        self._total = total
        self._per_key = per_key
        self.bytes = 0  # the memory that is counted now
        self._keys: Counter[str] = Counter()
        self._decoders = anyio.CapacityLimiter(_DECODERS)

    def take(self, key_id: str, size: int) -> None:
        """Count memory for a key. Raises `RequestRefused` beyond the limits."""
        if self.bytes + size > self._total or self._keys[key_id] + size > self._per_key:
            owner = "this key" if self.bytes + size <= self._total else "this server"
            message = f"The requests of {owner} that are being read are too large together."
            raise RequestRefused(429, "StoreError", f"{message} Try again.", retry_after="1")
        self.bytes += size
        self._keys[key_id] += size

    def give_back(self, key_id: str, size: int) -> None:
        self.bytes -= size
        self._keys[key_id] -= size
        if not self._keys[key_id]:
            del self._keys[key_id]

    async def read(self, request: Any, largest: int) -> bytes:
        """Read a request's whole body, whose memory is counted until `scope["body"].free()`. Raises
        `RequestRefused` if the body is too large or too slow."""
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and len(declared) < 19 and int(declared) > largest:
            raise too_large(largest)
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            raise refused(415, f"Send the body as it is, without the encoding {encoding[:50]!r}.")
        memory = request.scope["body"] = BodyMemory(self, request.scope["caller"].key_id)
        clock = asyncio.get_running_loop().time
        began = clock()
        parts: list[bytes] = []
        size = 0
        while True:
            seconds_left = began + GRACE_SECONDS + size / BYTES_PER_SECOND - clock()
            timeout = max(0.0, min(IDLE_SECONDS, seconds_left))
            try:
                async with asyncio.timeout(timeout):  # unlike `wait_for` it makes no task
                    message = await request.receive()
            except TimeoutError:
                slow = f"Only {size:,} bytes of the request arrived in {clock() - began:.0f} s."
                raise RequestRefused(408, "StoreError", slow, connection="close") from None
            if message["type"] != "http.request":
                raise refused(400, "The connection broke before the whole request was received.")
            part = message.get("body", b"")
            size += len(part)
            if size > largest:
                raise too_large(largest)
            memory.add(len(part))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def decode(self, body: bytes, type: type[T], media_type: str = "") -> T:
        """Decode JSON as a struct; an empty body counts as `{}`. Raises `RequestRefused`."""
        kind = media_type.partition(";")[0].strip().lower()
        if kind and kind != "application/json":
            raise refused(415, f"Send application/json here, not {kind[:100]!r}.")
        return await self._off_loop(_decode, body, type)

    async def check(self, body: bytes, values: int) -> None:
        """Raise `RequestRefused` for JSON that must not reach a foreign parser on the event loop.
        Such JSON has more `values`, is nested more deeply, is not UTF-8, or has half of a surrogate
        pair."""
        await self._off_loop(_check_for_others, body, values)

    async def forward(
        self, app: Any, scope: Any, receive: Any, send: Any, largest: int, values: int
    ) -> None:
        """Call an ASGI application that decodes bodies on the event loop: only once the body has
        arrived whole and in time, and passed `check`. Raises `RequestRefused`."""
        body: bytes | None = None
        if scope["method"] == "POST":
            body = await self.read(Request(scope, receive), largest)
            await self.check(body, values)

        async def receive_body() -> Any:
            nonlocal body
            if body is None:
                return await receive()
            message, body = {"type": "http.request", "body": body}, None
            scope["body"].free()
            return message

        await app(scope, receive_body, send)

    async def _off_loop(self, work: Callable[[bytes, Any], T], body: bytes, second: Any) -> T:
        if len(body) <= _ON_LOOP_BYTES:
            return work(body, second)
        return await anyio.to_thread.run_sync(work, body, second, limiter=self._decoders)


def _check(body: bytes, values: int = MAX_VALUES) -> None:
    if too_many(body, values):
        most = f"at most {values:,} are allowed"
        raise refused(413, f"The request has too many JSON values: {most}.")
    if too_deep(body, MAX_DOCUMENT_DEPTH):
        raise refused(400, f"The request is nested deeper than {MAX_DOCUMENT_DEPTH} levels.")


def _check_for_others(body: bytes, values: int) -> None:
    _check(body, values)
    try:
        body.decode()
        if _SURROGATE.search(body):
            msgspec.json.decode(body)
    except ValueError as error:
        raise refused(400, f"The request is not JSON: {error}.") from None


def _decode(body: bytes, type: type[T]) -> T:
    _check(body)
    try:
        return msgspec.json.decode(body or b"{}", type=type)
    except msgspec.ValidationError as error:
        raise refused(422, f"The request is invalid: {error}.") from None
    except (ValueError, OverflowError) as error:
        raise refused(400, f"The request is not JSON: {error}.") from None
