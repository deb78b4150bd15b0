"""The messages between the parent and the worker of an isolated call, and the lookup of a callback
by its name.

`Tool` uses the isolation, so this module does not import it.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import Backoff

# The module name of a script in the worker, so that its `__main__` part does not run.
SCRIPT = "__holdfast_script__"


class IsolatedCall(msgspec.Struct, frozen=True):
    """One call: the location of its callback (`module`, or the file `script`) and its input."""

    tool: str
    module: str
    script: str
    qualname: str
    arguments: dict[str, Any]
    convert_arguments: bool
    """True if the arguments must still be converted to the types of the signature."""
    conversation_id: str
    call_id: str
    attempt: int
    takes_context: bool
    """True if the callback takes a context, so that it can notice a cancel."""
    marks: dict[str, str]
    """Environment variables that mark the call's processes."""


class IsolatedProgress(msgspec.Struct, frozen=True, tag=True):
    """A progress message of the callback."""

    message: str


class IsolatedAnswer(msgspec.Struct, frozen=True, tag=True):
    """The callback's result."""

    result: ToolResult


class IsolatedFailure(msgspec.Struct, frozen=True, tag=True):
    """A `ToolError`: an exception of the callback, classified as without isolation, or the reason
    why the callback was not run. `kind` is the nearest of Holdfast's own exception classes."""

    kind: str
    text: str
    error_type: str
    retryable: bool
    max_retries: int
    backoff: Backoff
    retry_after: float | None
    traceback: str


WorkerMessage = IsolatedProgress | IsolatedAnswer | IsolatedFailure


def frame(message: msgspec.Struct) -> bytes:
    """Return a message in the form that the channel carries: four bytes of length, then JSON."""
    data = msgspec.json.encode(message)
    return len(data).to_bytes(4, "big") + data


@runtime_checkable
class _ToolObject(Protocol):
    """The attributes by which a `Tool` is recognized."""

    tool_type: str
    callback: Any


def lookup(place: Any, qualname: str) -> Any:
    """Return the object at `qualname` in a module, or the callback of a `Tool` there."""
    for name in qualname.split("."):
        place = getattr(place, name)
    return place.callback if isinstance(place, _ToolObject) else place
