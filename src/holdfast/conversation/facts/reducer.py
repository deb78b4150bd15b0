"""`Reducer`: the base of the facts that a feature keeps, and the fold as reducers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from holdfast import events as ev

if TYPE_CHECKING:
    from typing import Self

    from holdfast.content import ToolCall

ReadEvent = Callable[[int], ev.AnyEvent]


class OpenCallFacts(Protocol):
    """An open call, as reducers see it."""

    @property
    def call(self) -> ToolCall: ...
    @property
    def effective(self) -> ToolCall: ...
    @property
    def approved(self) -> bool: ...


class FoldBefore(Protocol):
    """The fold before the event that a reducer is fed."""

    @property
    def open(self) -> Mapping[str, OpenCallFacts]: ...
    @property
    def based_on(self) -> int: ...
    @property
    def error(self) -> ev.ErrorRecorded | None: ...
    @property
    def last_time(self) -> datetime | None: ...


class Reducer(msgspec.Struct, frozen=True):
    """The facts of one feature. The defaults are those of an empty journal.

    `events` are the types of the events that it is fed. `tools` are the names of tools: it is fed
    the results of their open calls.
    """

    events: ClassVar[tuple[type[ev.Event], ...]] = ()
    tools: ClassVar[tuple[str, ...]] = ()

    def feed(self, event: Any, fold: FoldBefore) -> Self:
        """Return the facts after an event."""
        raise NotImplementedError

    def checkpoint(self) -> dict[str, Any]:
        """Return the fields of `events.Checkpoint` that hold the facts. No call may be open."""
        return {}

    @classmethod
    def restore(cls, checkpoint: ev.Checkpoint, read: ReadEvent) -> Self:
        """Return the facts at a checkpoint. `read(seq)` reads one event, which may be damaged."""
        return cls()
