"""The messages between the server and a worker, in MessagePack. Objects with a JSON form of their
own (events, commands, an agent's form) are sent in that form.

Both sides call methods of the other side: the server those of `worker.Worker`, the worker those of
`store_proxy.WorkerStoreProxy`. A `MethodCall` has a number, which its `CallDone` or `CallFailed`
repeats; a `MethodSignal` has no answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import errors
from holdfast.content import Data
from holdfast.errors import HoldfastError, StoreError
from holdfast.server.shapes import ToolStanding


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


class MethodCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call of a method. `arguments` is a MessagePack array."""

    number: int
    method: str
    arguments: msgspec.Raw


class MethodSignal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call without an answer."""

    method: str
    arguments: msgspec.Raw


class CallDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of a call; `value` is MessagePack."""

    number: int
    value: bytes
    state: WorkerState | None = None


class CallFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The error of a call."""

    number: int
    fault: Fault
    state: WorkerState | None = None


Message = MethodCall | MethodSignal | CallDone | CallFailed


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
