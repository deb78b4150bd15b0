"""The connection between the server and one worker: frames over a stream socket, with calls in
both directions.

Each side calls methods of the other side: the server those of `worker.WorkerSide`, the worker those
of `store_proxy.WorkerStoreProxy`. The messages are in MessagePack. Objects with a JSON form of
their own (events, commands, an agent's form) are sent in that form.
"""

from __future__ import annotations

import inspect
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.content import Data
from holdfast.error_forms import ErrorForm, error_of_form, form_of_error
from holdfast.error_text import describe_error
from holdfast.errors import HoldfastError, StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.shapes import ToolStanding

T = TypeVar("T")

MAX_FRAME_BYTES = 256 * 1024 * 1024  # an append with all its blobs is one frame
_CHUNK_BYTES = 1 << 18


# --- messages ---


class WorkerState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a conversation in its worker; `at` numbers the states. `left` is the number
    of abandoned calls that still run. `children` is True if a conversation that its calls
    spawned is working."""

    at: int
    running: bool
    has_work: bool
    left: int
    offers: list[tuple[str, str, float | None]]
    failure: ErrorForm | None = None
    children: bool = False


class _Call(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call of a method. `arguments` is a MessagePack array. A call without a number is a signal,
    which has no answer; one with the number 0 is made for the state in its answer."""

    number: int | None
    method: str
    arguments: msgspec.Raw


class _Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of a call in MessagePack, or its error."""

    number: int
    value: bytes
    fault: ErrorForm | None = None
    state: WorkerState | None = None


class Order(Data, frozen=True, kw_only=True):
    """The parts of an agent and the worker's settings.

    `form`, `tools` and `options` are JSON. `runtimes` is the kind of runtime that works in
    `workdir`. `patterns`, `import_timeout`, `programs` and `hook_commands` are the policy;
    `refused` maps further refused modules to the reason. `folder` is the worker's own folder,
    `path` its module search path.
    """

    id: str
    form: bytes
    secrets: dict[str, str]
    variables: dict[str, str]
    tools: bytes
    options: bytes
    patterns: list[str]
    refused: dict[str, str]
    import_timeout: float
    programs: bool
    hook_commands: bool
    workdir: str
    runtimes: WorkspaceRuntimes
    folder: str
    path: list[str]

    def __repr__(self) -> str:
        return f"Order({self.id!r})"  # no secrets


class AgentReport(msgspec.Struct, frozen=True, array_like=True):
    """The result of an order. `stuck` are modules whose import did not end. `status` is the
    journal's."""

    standings: list[ToolStanding]
    warnings: list[str]
    stuck: list[str] = []
    status: str = ""


def form_of(error: BaseException) -> ErrorForm:
    """Return any error as data. One that is not of Holdfast becomes a `StoreError`."""
    if isinstance(error, HoldfastError):
        return form_of_error(error)
    return ErrorForm("StoreError", describe_error(error))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Call | _Answer)


# --- the connection ---


class InvalidMessage(Exception):
    """The received data is not a valid message."""


class Method(NamedTuple):
    """A method that the other side may call, and the decoder of its arguments."""

    function: Callable[..., Any]
    decoder: msgspec.msgpack.Decoder[Any]


def callable_methods(owner: type, names: str) -> dict[str, Method]:
    """Return methods of a class by name; `names` are separated by spaces. Their annotations say
    what arguments they take."""
    methods: dict[str, Method] = {}
    for name in names.split():
        function = getattr(owner, name)
        _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
        types: Any = tuple[tuple(one.annotation for one in parameters)]
        methods[name] = Method(function, msgspec.msgpack.Decoder(types))
    return methods


class _Slot:
    """A call that waits for its answer."""

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


class WorkerChannel(ObjectStruct):
    """One side of the connection. `listen` belongs to one thread; all other methods are
    thread-safe.

    `handle(number, method, arguments)` receives every call on the listening thread; a signal has
    no number. `stated` receives the states that arrive with answers, before the calling thread
    continues.
    """

    _connection: socket.socket
    _methods: dict[str, Method]
    _handle: Callable[[int | None, str, tuple[Any, ...]], None]
    _stated: Callable[[WorkerState], None] | None = None
    _sending: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _slots: dict[int, _Slot] = {}
    _number: int = 0
    _broken: Callable[[], Exception] | None = None
    heard_at: float = msgspec.field(default_factory=time.monotonic)

    # --- calls ---

    def call(
        self, method: str, *arguments: Any, type: type[T] | Any = None, timeout: float | None = None
    ) -> T:
        """Call a method of the other side and return its result, decoded as `type`. Raises the
        other side's error, the error set by `end`, or `TimeoutError`."""
        slot = _Slot()
        with self._lock:
            if self._broken is not None:
                raise self._broken()
            self._number += 1
            number = self._number
            self._slots[number] = slot
        try:
            try:
                self._send(_call(number, method, arguments))
            except OSError as error:
                # The listening thread is about to set the error.
                if not slot.wait(30.0):
                    raise StoreError("The other process is gone.") from error
            else:
                if not slot.wait(timeout):
                    raise TimeoutError(f"{method} was not answered within {timeout:g} s.")
        finally:
            with self._lock:
                self._slots.pop(number, None)
        if slot.error is not None:
            raise slot.error
        return msgspec.msgpack.decode(slot.answer, type=type)

    def waiting(self) -> bool:
        return bool(self._slots)

    def signal(self, method: str, *arguments: Any) -> None:
        """Call a method without an answer; blocks while the other side does not read. Raises
        `OSError` if it is gone."""
        self._send(_call(None, method, arguments))

    def nudge(self, method: str, *arguments: Any, number: int | None = None) -> bool:
        """Send a signal of a few bytes unless that would block. Return True if it was sent. With
        the number 0 its answer brings only the other side's state."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            data = _frame(_call(number, method, arguments))
            # The kernel accepts a message this small completely or not at all.
            return self._connection.send(data, socket.MSG_DONTWAIT) == len(data)
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
        """Send the result or the error of `work` as the answer to a call."""
        try:
            value, fault = _encoder.encode(work()), None
        except Exception as error:
            value, fault = b"", form_of(error)
        try:
            self._send(_Answer(number, value, fault, state()))
        except StoreError as error:  # the answer is too large
            self._send(_Answer(number, b"", form_of(error)))

    def _send(self, message: _Call | _Answer) -> None:
        data = _frame(message)
        with self._sending:
            self._connection.sendall(data)

    # --- listening ---

    def listen(self) -> None:
        """Receive messages until the other side is gone. Raises `InvalidMessage`."""
        received = bytearray()
        while True:
            try:
                more = self._connection.recv(_CHUNK_BYTES)
            except OSError:
                return
            if not more:
                return
            received += more
            self.heard_at = time.monotonic()
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
        arguments: tuple[Any, ...] = ()
        try:
            message = _decoder.decode(data)
            if isinstance(message, _Call):
                arguments = self._methods[message.method].decoder.decode(message.arguments)
        except (ValueError, LookupError, RecursionError, HoldfastError) as error:
            raise InvalidMessage(str(error)) from error
        if isinstance(message, _Call):
            self._handle(message.number, message.method, arguments)
            return
        if message.state is not None and self._stated is not None:
            self._stated(message.state)
        with self._lock:
            slot = self._slots.get(message.number)
        if slot is not None:
            slot.answer = message.value
            slot.error = None if message.fault is None else error_of_form(message.fault, StoreError)
            slot.settle()

    def end(self, why: Callable[[], Exception]) -> None:
        """Make all present and future calls raise `why()`, as no answers can arrive any more."""
        with self._lock:
            self._broken = why
            slots = list(self._slots.values())
        for slot in slots:
            slot.error = slot.error or why()
            slot.settle()


def _call(number: int | None, method: str, arguments: tuple[Any, ...]) -> _Call:
    return _Call(number, method, msgspec.Raw(_encoder.encode(arguments)))


def _frame(message: _Call | _Answer) -> bytes:
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise StoreError(
            f"A write of {len(data):,} bytes is too large: a worker and its server exchange at most"
            f" {MAX_FRAME_BYTES:,} bytes at once. Nothing was written."
        )
    return len(data).to_bytes(4, "big") + data
