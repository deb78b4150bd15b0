"""What a child process is watched by: a store that counts its appends, and a record, beside it, of
what happened, which outlives a kill."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall
from holdfast.conversation.driver import Driver
from holdfast.events import AnyEvent
from holdfast.runtime import processes
from holdfast.store import Blob, Lease, Reservation, Settlement, Summary
from holdfast.store.sqlite import SQLiteStore
from holdfast.tools import Tool, ToolContext, ToolManager

APPEND = "append"
Journals = dict[str, list[AnyEvent]]


class Point(msgspec.Struct, frozen=True):
    """A moment at which a process is killed: the `number`-th time (from 1) that it comes to
    `place`, which is "append" or the label of a `kill_point`; of an append, `when` is "before" (it
    reaches the store) or "after" (the store has it, the program does not know yet)."""

    number: int
    place: str = APPEND
    when: str = ""

    def __str__(self) -> str:
        return (
            f"{self.when} append {self.number}"
            if self.place == APPEND
            else f"at {self.place!r}, time {self.number}"
        )


# --- the record ---


class Journaled(msgspec.Struct, frozen=True, tag="journals"):
    """What is in the store, the first conversation first."""

    journals: list[tuple[str, list[msgspec.Raw]]]

    @classmethod
    def of(cls, store: SQLiteStore) -> Journaled:
        """Everything in a store."""
        # A fork's first event is its parent's; of two begun at the same time the one written
        # earlier is first.
        found = sorted(
            store.list(), key=lambda summary: (bool(summary.parent), str(summary.created))
        )
        ids = [summary.id for summary in found]
        return cls(
            [(id, [msgspec.Raw(ev.encode(event)) for event in store.read(id)]) for id in ids]
        )

    def events(self) -> Journals:
        """The events by conversation."""
        return {id: [ev.decode(bytes(raw)) for raw in raws] for id, raws in self.journals}


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """The store said that it has an event."""

    conversation: str
    seq: int
    crc: int


class Repeatable(msgspec.Struct, frozen=True, tag="repeatable"):
    """The tools of a conversation, and whether each may be run again."""

    conversation: str
    tools: dict[str, bool]


class Reconciled(msgspec.Struct, frozen=True, tag="reconciled"):
    """What a tool's `reconcile` said of a call: "result", "again" (it returned None) or
    "raised"."""

    conversation: str
    call_id: str
    answer: str


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """How often a place was come to, in a process that ended by itself."""

    places: dict[str, int]


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The process is about to kill itself."""


Note = Journaled | Acknowledged | Repeatable | Reconciled | Reached | Killed
_decoder = msgspec.json.Decoder(Note)


class Record:
    """A file of notes, one JSON object a line. A note is in it, whatever happens to the process,
    when `write` returns. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, note: Note) -> None:
        """Add a note."""
        data = msgspec.json.encode(note)
        if b"\n" in data:  # in what a provider's answer kept as it came
            data = msgspec.json.format(data, indent=-1)
        left = memoryview(data + b"\n")
        while left:
            left = left[os.write(self._fd, left) :]

    @staticmethod
    def read(path: Path) -> list[Note]:
        """The notes of a file; none if it is not there."""
        return (
            [_decoder.decode(line) for line in path.read_bytes().split(b"\n") if line]
            if path.exists()
            else []
        )


# --- what kills ---


class Places:
    """Counts how often each place is come to, and kills the process where it is to die."""

    def __init__(self, record: Record, kill: Point | None) -> None:
        self._record = record
        self._kill = kill
        self._lock = threading.Lock()
        self.reached: dict[str, int] = {}

    def come_to(self, place: str, when: str = "") -> int:
        """Count, and do not come back if this is the point. Returns how often the place was come
        to."""
        with self._lock:
            number = self.reached[place] = self.reached.get(place, 0) + 1
        self.be_at(place, number, when)
        return number

    def be_at(self, place: str, number: int, when: str) -> None:
        """Do not come back if this is the point."""
        kill = self._kill
        if kill is not None and (place, number, when) == (kill.place, kill.number, kill.when):
            self._record.write(Killed())
            _die()


def _die() -> NoReturn:
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


_places: Places | None = None  # of this process, if it is a child that is watched


def kill_point(label: str) -> None:
    """A place within a tool at which `crash_at_every_append` kills the process too:
    `kill_point("sent, not noted")`. Elsewhere it does nothing."""
    if _places is not None:
        _places.come_to(label)


class WatchedStore(SQLiteStore):
    """An `SQLiteStore` that is killed at its appends, and keeps a record of what it said that it
    has."""

    def __init__(self, path: Path, record: Record, places: Places) -> None:
        super().__init__(path, "process")
        assert self._writer is not None
        self._writer.db.execute(
            "PRAGMA synchronous = OFF"
        )  # it is processes that die here, not machines: no fsync is needed at all
        self._record = record
        self._places = places

    def append(
        self,
        lease: Lease,
        events: Sequence[AnyEvent],
        summary: Summary,
        *,
        taken: Sequence[int] = (),
        blobs: Sequence[Blob] = (),
        settled: Sequence[Settlement] = (),
        reserved: Reservation | None = None,
    ) -> bool:
        """See `Store.append`."""
        number = self._places.come_to(APPEND, "before")
        held = super().append(
            lease, events, summary, taken=taken, blobs=blobs, settled=settled, reserved=reserved
        )
        for event in events:
            self._record.write(
                Acknowledged(lease.conversation_id, event.seq, zlib.crc32(ev.encode(event)))
            )
        self._places.be_at(APPEND, number, "after")
        return held


def _watch_tools(record: Record) -> None:
    """From now on, in this process, note which tools each conversation has, and what their
    `reconcile` says."""
    drive = Driver.drive

    def watched(self: Driver, until_rest: bool) -> None:
        _note_tools(record, self.journal.id, self.agent.tools)
        drive(self, until_rest)

    Driver.drive = watched


def _note_tools(record: Record, conversation_id: str, tools: ToolManager) -> None:
    record.write(
        Repeatable(
            conversation_id, {tool.name: tool.annotations.repeatable for tool in tools.list_tools()}
        )
    )
    for tool in tools.list_tools():
        if tool.reconcile is not None and not hasattr(tool.reconcile, "watched"):
            tool.reconcile = _watched_reconcile(record, tool)


def _watched_reconcile(record: Record, tool: Tool) -> Callable[[ToolCall, ToolContext], Any]:
    reconcile = tool.reconcile
    assert reconcile is not None

    def watched(call: ToolCall, context: ToolContext) -> Any:
        answer = "raised"
        try:
            found = reconcile(call, context)
            answer = "again" if found is None else "result"
            return found
        finally:
            record.write(Reconciled(context.conversation_id, call.id, answer))

    watched.watched = True  # pyright: ignore[reportFunctionMemberAccess]
    return watched


# --- a child's life ---

Program = Callable[[SQLiteStore, Path], object]


class Task(msgspec.Struct, frozen=True):
    """What a child is to do: run the program in `folder` (go on with it: `resumes`), with `record`
    as its record, until it ends or to `kill`. Whatever it starts inherits `mark`."""

    folder: Path
    record: Path
    mark: str
    resumes: bool = False
    kill: Point | None = None


class Watched(msgspec.Struct, frozen=True):
    """A child's function."""

    program: Program
    resume: Program

    def prepare(self) -> None:
        """Import pydantic, which is longer than all that a child does."""
        _ = Tool.from_function(kill_point).input_schema

    def __call__(self, task: Task) -> None:
        """Run the program; note what is in the store before and after."""
        global _places
        os.putenv(processes.OWNER, task.mark)
        record = Record(task.record)
        places = Places(record, task.kill)
        path = task.folder / "store.db"
        store = WatchedStore(path, record, places)
        record.write(Journaled.of(store))
        _watch_tools(record)
        _places = places
        try:
            (self.resume if task.resumes else self.program)(store, task.folder)
        finally:
            _places = None
            store.close()
        with WatchedStore(path, record, places) as again:
            record.write(Journaled.of(again))
        record.write(Reached(places.reached))
