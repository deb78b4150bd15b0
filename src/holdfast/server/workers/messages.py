"""The messages between the server and a worker, in MessagePack. Objects with a JSON form of their
own (events, commands, an agent's form) are sent in that form.

A request has a `number`, which its `RequestDone` or `RequestFailed` repeats. Both sides send
requests, each with its own numbers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import errors
from holdfast.content import Data
from holdfast.errors import HoldfastError, StoreError
from holdfast.server.shapes import ToolStanding
from holdfast.store import Budget, Reservation, Settlement, Summary


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


class WorkerRequest(_Message, frozen=True):
    """The base of messages that are answered."""

    number: int


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error: the name of its class in `holdfast.errors`, and the class's arguments."""

    kind: str
    arguments: list[str | int | float | bool | None]


class WorkerState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a conversation in its worker; `at` numbers the states. `left` is the number
    of abandoned calls that still run. `children` is True if a conversation that its calls
    spawned is working."""

    at: int
    running: bool
    has_work: bool
    left: int
    offers: list[tuple[str, str, float | None]]
    failure: Fault | None = None
    children: bool = False


class RequestDone(_Message, frozen=True):
    """The result of a request; `value` is MessagePack."""

    number: int
    value: bytes
    state: WorkerState | None = None


class RequestFailed(_Message, frozen=True):
    """The error of a request."""

    number: int
    fault: Fault
    state: WorkerState | None = None


# --- requests of the server ---


class Order(Data, frozen=True, kw_only=True):
    """The parts of an agent and the worker's settings.

    `form`, `tools` and `options` are JSON. `patterns` is the policy; `refused` maps further
    refused modules to the reason. `folder` is the worker's own folder, `path` its module search
    path.
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
    workdir: str
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


class Check(WorkerRequest, frozen=True):
    """Build an agent and return the result."""

    order: Order


class Open(WorkerRequest, frozen=True):
    """Build an agent and open its conversation."""

    order: Order
    hosted: bool


class Drive(WorkerRequest, frozen=True):
    """See `Live.drive`."""


class Obey(WorkerRequest, frozen=True):
    """See `Live.obey`."""

    command: bytes
    key: str | None


class Begin(WorkerRequest, frozen=True):
    """See `Live.begin`."""

    hosted: bool


class ContinueRun(WorkerRequest, frozen=True):
    """Set `running`, so that a run that was cut off continues."""


class ReportState(WorkerRequest, frozen=True):
    """Return nothing; the answer's state is what the server needs."""


class SetTools(WorkerRequest, frozen=True):
    """See `Live.set_tools`."""

    order: Order


class Close(WorkerRequest, frozen=True):
    """Close the conversation, and exit after the answer."""

    timeout: float


class Ping(_Message, frozen=True):
    """A request for a `Pong`, answered even while other requests run."""


class NewCommands(_Message, frozen=True):
    """The store has called `notify`."""


class YieldRun(_Message, frozen=True):
    """End `Drive` at the next step boundary."""


FromServer = (
    Check
    | Open
    | Drive
    | Obey
    | Begin
    | ContinueRun
    | ReportState
    | SetTools
    | Close
    | Ping
    | NewCommands
    | YieldRun
    | RequestDone
    | RequestFailed
)


# --- requests of the worker: the store's methods; `id` is "" for its own conversation ---


class Acquire(WorkerRequest, frozen=True):
    """See `Store.acquire`."""

    id: str = ""


class Renew(WorkerRequest, frozen=True):
    """See `Store.renew`."""

    id: str = ""


class Release(WorkerRequest, frozen=True):
    """See `Store.release`."""

    id: str = ""


class LeaveNotes(WorkerRequest, frozen=True):
    """See `Store.note`."""

    notes: list[str]
    id: str = ""


class Append(WorkerRequest, frozen=True):
    """See `Store.append`; blobs are (seq, data)."""

    events: list[bytes]
    summary: Summary
    taken: list[int]
    blobs: list[tuple[int, bytes]]
    settled: list[Settlement] = []
    reserved: Reservation | None = None


class Read(WorkerRequest, frozen=True):
    """See `Store.read`."""

    after: int
    limit: int | None
    id: str = ""


class Tail(WorkerRequest, frozen=True):
    """See `Store.tail`."""

    id: str = ""


class GetBlob(WorkerRequest, frozen=True):
    """See `Store.blob`."""

    id: str


class Post(WorkerRequest, frozen=True):
    """See `Store.post`."""

    command: bytes
    key: str | None
    id: str = ""


class ReadCommands(WorkerRequest, frozen=True):
    """See `Store.commands`."""

    id: str = ""


class ListSummaries(WorkerRequest, frozen=True):
    """See `Store.list`. With `children`, the conversations that the calls of `id` spawned."""

    id: str = ""
    children: bool = False


class SetBudget(WorkerRequest, frozen=True):
    """See `Store.bound`."""

    budget: Budget | None
    id: str = ""


class Reserve(WorkerRequest, frozen=True):
    """See `Store.reserve`."""

    wanted: Reservation
    id: str = ""


class SettleReservations(WorkerRequest, frozen=True):
    """See `Store.settle`."""

    settled: list[Settlement]


class Notice(_Message, frozen=True):
    """A transient notification for the feed."""

    kind: str
    data: bytes


class Logged(_Message, frozen=True):
    """A line for the server's log."""

    level: int
    text: str


class Importing(_Message, frozen=True):
    """The worker begins to import a module that a client named."""

    module: str


class Pong(_Message, frozen=True):
    """The worker is alive."""


StoreRequest = (
    Acquire
    | Renew
    | Release
    | LeaveNotes
    | Append
    | Read
    | Tail
    | GetBlob
    | Post
    | ReadCommands
    | ListSummaries
    | SetBudget
    | Reserve
    | SettleReservations
)
FromWorker = StoreRequest | Notice | Logged | Importing | Pong | RequestDone | RequestFailed


# --- errors ---


def fault_of(error: BaseException) -> Fault:
    """Return an error in its transferable form."""
    if isinstance(error, HoldfastError):
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        reduced: Any = error.__reduce__()  # a class and its arguments
        arguments: tuple[Any, ...] = reduced[1]
        if kind is not HoldfastError and all(
            isinstance(one, str | int | float | None) for one in arguments
        ):
            return Fault(kind.__name__, list(arguments))
        return Fault(kind.__name__, [str(error)])
    return Fault("StoreError", [f"{type(error).__name__}: {error}"])


def error_of(fault: Fault) -> HoldfastError:
    """Return the error of a `Fault`."""
    kind = getattr(errors, fault.kind, None)
    if isinstance(kind, type) and issubclass(kind, HoldfastError):
        try:
            return kind(*fault.arguments)
        except TypeError:
            pass
    return StoreError(" ".join(map(str, fault.arguments)))
