"""What the server and a worker say to each other, as MessagePack. What has JSON of its own (events, commands, an agent's form) goes as that.

A request has a `number`, under which its `Done` or `Failed` comes back; both sides ask, each with numbers of its own.
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
    """Base of all."""


class Request(_Message, frozen=True):
    """Base of what is answered."""

    number: int


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error: its class in `holdfast.errors`, and what that is made of."""

    kind: str
    arguments: list[str | int | float | bool | None]


class State(msgspec.Struct, frozen=True, array_like=True):
    """How a conversation stands in its worker: the `at`-th time that this was told. `left` are calls that were given up and still run; `children`
    says whether any that its calls spawned are at work."""

    at: int
    running: bool
    to_do: bool
    left: int
    offers: list[tuple[str, str, float | None]]
    failure: Fault | None = None
    children: bool = False


class Done(_Message, frozen=True):
    """The answer to a request: `value` is MessagePack."""

    number: int
    value: bytes
    state: State | None = None


class Failed(_Message, frozen=True):
    """What a request raised."""

    number: int
    fault: Fault
    state: State | None = None


# --- the server asks -----------------------------------------------------------------------------


class Order(Data, frozen=True, kw_only=True):
    """What an agent is made of, where and how. `form`, `tools` and `options` are JSON; `patterns` is the policy, but for what is `refused`
    (modules, and why). `folder` is the worker's own, `path` where modules are looked for."""

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


class Made(msgspec.Struct, frozen=True, array_like=True):
    """What became of an order. `stuck` are modules whose import did not end; `status` and `last_seq` are those of the journal."""

    standings: list[ToolStanding]
    warnings: list[str]
    stuck: list[str] = []
    status: str = ""


class Check(Request, frozen=True):
    """Make an agent, and say what came of it."""

    order: Order


class Open(Request, frozen=True):
    """Make an agent, and open its conversation."""

    order: Order
    hosted: bool


class Drive(Request, frozen=True):
    """As `Live.drive`."""


class Obey(Request, frozen=True):
    """As `Live.obey`."""

    command: bytes
    key: str | None


class Begin(Request, frozen=True):
    """As `Live.begin`."""

    hosted: bool


class GoOn(Request, frozen=True):
    """Be `running`: a run that was cut off goes on."""


class Look(Request, frozen=True):
    """Say how it stands: the answer's state does."""


class SetTools(Request, frozen=True):
    """As `Live.set_tools`."""

    order: Order


class Close(Request, frozen=True):
    """Close the conversation, and end after the answer."""

    timeout: float


class Ping(_Message, frozen=True):
    """Answered by `Pong`, whatever else goes on."""


class News(_Message, frozen=True):
    """The store called `notify`."""


class HandOver(_Message, frozen=True):
    """End `Drive` at the next step boundary."""


FromServer = Check | Open | Drive | Obey | Begin | GoOn | Look | SetTools | Close | Ping | News | HandOver | Done | Failed


# --- the worker asks: the store's methods, for its own conversation, "", or the child `id` -----------


class Acquire(Request, frozen=True):
    """As `Store.acquire`."""

    id: str = ""


class Renew(Request, frozen=True):
    """As `Store.renew`."""

    id: str = ""


class Release(Request, frozen=True):
    """As `Store.release`."""

    id: str = ""


class Leave(Request, frozen=True):
    """As `Store.note`."""

    notes: list[str]
    id: str = ""


class Append(Request, frozen=True):
    """As `Store.append`; blobs as (seq, data)."""

    events: list[bytes]
    summary: Summary
    taken: list[int]
    blobs: list[tuple[int, bytes]]
    settled: list[Settlement] = []
    reserved: Reservation | None = None


class Read(Request, frozen=True):
    """As `Store.read`."""

    after: int
    limit: int | None
    id: str = ""


class Tail(Request, frozen=True):
    """As `Store.tail`."""

    id: str = ""


class GetBlob(Request, frozen=True):
    """As `Store.blob`."""

    id: str


class Post(Request, frozen=True):
    """As `Store.post`."""

    command: bytes
    key: str | None
    id: str = ""


class Inbox(Request, frozen=True):
    """As `Store.commands`."""

    id: str = ""


class Listed(Request, frozen=True):
    """As `Store.list`; `children`: those that its calls spawned."""

    id: str = ""
    children: bool = False


class Bound(Request, frozen=True):
    """As `Store.bound`."""

    budget: Budget | None
    id: str = ""


class Reserve(Request, frozen=True):
    """As `Store.reserve`."""

    wanted: Reservation
    id: str = ""


class Settle(Request, frozen=True):
    """As `Store.settle`."""

    settled: list[Settlement]


class Told(_Message, frozen=True):
    """Something transient, for the feed."""

    kind: str
    data: bytes


class Logged(_Message, frozen=True):
    """A line for the server's log."""

    level: int
    text: str


class Importing(_Message, frozen=True):
    """It begins to import a module that a client named."""

    module: str


class Pong(_Message, frozen=True):
    """It lives."""


StoreRequest = Acquire | Renew | Release | Leave | Append | Read | Tail | GetBlob | Post | Inbox | Listed | Bound | Reserve | Settle
FromWorker = StoreRequest | Told | Logged | Importing | Pong | Done | Failed


# --- errors --------------------------------------------------------------------------------------


def fault_of(error: BaseException) -> Fault:
    """An error as it goes over."""
    if isinstance(error, HoldfastError):
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        made: Any = error.__reduce__()  # a class, and what it is called with
        arguments: tuple[Any, ...] = made[1]
        if kind is not HoldfastError and all(isinstance(one, str | int | float | None) for one in arguments):
            return Fault(kind.__name__, list(arguments))
        return Fault(kind.__name__, [str(error)])
    return Fault("StoreError", [f"{type(error).__name__}: {error}"])


def error_of(fault: Fault) -> HoldfastError:
    """The error that came over."""
    kind = getattr(errors, fault.kind, None)
    if isinstance(kind, type) and issubclass(kind, HoldfastError):
        try:
            return kind(*fault.arguments)
        except TypeError:
            pass
    return StoreError(" ".join(map(str, fault.arguments)))
