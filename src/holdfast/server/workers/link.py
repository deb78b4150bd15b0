"""The connection between the server and one worker: frames over a stream socket, with requests
in both directions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.server.workers.messages import (
    RequestDone,
    RequestFailed,
    WorkerRequest,
    WorkerState,
    error_of,
    fault_of,
)

T = TypeVar("T")

MAX_FRAME_BYTES = 256 * 1024 * 1024  # an append with all its blobs is one frame
_CHUNK_BYTES = 1 << 18

_encoder = msgspec.msgpack.Encoder()


class InvalidMessage(Exception):
    """The received data is not a valid message."""


class _Slot:
    """A request that waits for its answer."""

    __slots__ = ("_answered", "answer", "error")

    def __init__(self) -> None:
        self._answered = threading.Lock()
        self._answered.acquire()
        self.answer = b""
        self.error: Exception | None = None

    def settle(self) -> None:
        if self._answered.locked():
            self._answered.release()

    def wait(self, timeout: float | None) -> bool:
        return self._answered.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class WorkerLink:
    """One side of the connection. `listen` belongs to one thread; all other methods are
    thread-safe.

    `handle` receives every message that is no answer, on the listening thread. `stated` receives
    the states that arrive with answers, before the requesting thread continues.
    """

    def __init__(
        self,
        channel: socket.socket,
        decoder: msgspec.msgpack.Decoder[Any],
        handle: Callable[[Any], None],
        stated: Callable[[WorkerState], None] | None = None,
    ) -> None:
        self._channel = channel
        self._decoder = decoder
        self._handle = handle
        self._stated = stated
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._number = 0
        self._broken: Callable[[], Exception] | None = None
        self.heard = time.monotonic()

    # --- requests ---

    def ask(
        self,
        kind: type[WorkerRequest],
        *fields: Any,
        type: type[T] | Any = None,
        timeout: float | None = None,
    ) -> T:
        """Send `kind(number, *fields)`, wait for its answer, and return it decoded as `type`.
        Raises the other side's error, the error set by `end`, or `TimeoutError`."""
        slot = _Slot()
        with self._lock:
            if self._broken is not None:
                raise self._broken()
            self._number += 1
            number = self._number
            self._slots[number] = slot
        try:
            try:
                self.send(kind(number, *fields))
            except OSError as error:
                # The listening thread is about to set the error.
                if not slot.wait(30.0):
                    raise StoreError("The other process is gone.") from error
            else:
                if not slot.wait(timeout):
                    raise TimeoutError(f"{kind.__name__} was not answered within {timeout:g} s.")
        finally:
            with self._lock:
                self._slots.pop(number, None)
        if slot.error is not None:
            raise slot.error
        return msgspec.msgpack.decode(slot.answer, type=type)

    def waiting(self) -> bool:
        """Return True if a request waits for its answer."""
        return bool(self._slots)

    # --- sending ---

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; blocks while the other side does not read. Raises `OSError` if it is
        gone."""
        data = _framed(message)
        with self._sending:
            self._channel.sendall(data)

    def nudge(self, message: msgspec.Struct) -> bool:
        """Send a message of a few bytes unless that would block. Return True if it was sent."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            data = _framed(message)
            # The kernel accepts a message this small completely or not at all.
            return self._channel.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            return False
        finally:
            self._sending.release()

    def answer(
        self,
        number: int,
        work: Callable[[], Any],
        state: Callable[[], WorkerState | None] = lambda: None,
    ) -> None:
        """Send the result or the error of `work` as the answer to a request."""
        try:
            value = _encoder.encode(work())
        except Exception as error:
            message: msgspec.Struct = RequestFailed(number, fault_of(error), state())
        else:
            message = RequestDone(number, value, state())
        try:
            self.send(message)
        except StoreError as error:  # the answer is too large
            self.send(RequestFailed(number, fault_of(error)))

    # --- listening ---

    def listen(self) -> None:
        """Receive messages until the other side is gone. Raises `InvalidMessage` for an invalid
        message."""
        received = bytearray()
        while True:
            try:
                more = self._channel.recv(_CHUNK_BYTES)
            except OSError:
                return
            if not more:
                return
            received += more
            self.heard = time.monotonic()
            while len(received) >= 4:
                size = int.from_bytes(received[:4], "big")
                if size > MAX_FRAME_BYTES:
                    raise InvalidMessage(f"a frame of {size:,} bytes")
                if len(received) - 4 < size:
                    break
                data = bytes(memoryview(received)[4 : 4 + size])
                del received[: 4 + size]
                self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            message = self._decoder.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError, HoldfastError) as error:
            raise InvalidMessage(str(error)) from error
        if not isinstance(message, RequestDone | RequestFailed):
            self._handle(message)
            return
        if message.state is not None and self._stated is not None:
            self._stated(message.state)
        with self._lock:
            slot = self._slots.get(message.number)
        if slot is None:
            return
        if isinstance(message, RequestDone):
            slot.answer = message.value
        else:
            slot.error = error_of(message.fault)
        slot.settle()

    def end(self, why: Callable[[], Exception]) -> None:
        """Make all present and future requests raise `why()`, because no answers can arrive any
        more."""
        with self._lock:
            self._broken = why
            slots = list(self._slots.values())
        for slot in slots:
            slot.error = slot.error or why()
            slot.settle()


def _framed(message: msgspec.Struct) -> bytes:
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise StoreError(
            f"A write of {len(data):,} bytes is too large: a worker and its server exchange at most"
            f" {MAX_FRAME_BYTES:,} bytes at once. Nothing was written."
        )
    return len(data).to_bytes(4, "big") + data
