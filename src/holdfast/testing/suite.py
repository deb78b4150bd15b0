"""`JournalSuite`: a folder of recorded conversations, replayed as regression tests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast, overload

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import find_agent
from holdfast.content import Data
from holdfast.conversation.replay import Difference, replay
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.transfer import VERSION, Header, read_exported
from holdfast.temporary import TemporaryFolder

__all__ = ["JournalOutcome", "JournalSuite", "SuiteJournal", "SuiteReport"]

Outcome = Literal["same", "differs", "unreadable", "empty"]
_SQLITE = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm", "-journal")
_STORES = (".db", ".sqlite", ".sqlite3")
_SHOWN_NAMES = 5  # journals named under one difference in a report's text
_MAX_DEPTH = 1000  # of children of children; a deeper chain can only be a cycle


class JournalOutcome(Data, frozen=True):
    """The result of one journal's replay.

    Attributes:
        journal: The file's path below the folder, and the conversation's id.
        outcome: `same`, `differs`, `unreadable` (for the `reason`), or `empty` (no model request).
        requests: The model requests that were compared.
        hashed: The number of them that were compared byte by byte.
        difference: The first difference.
        reason: The reason why the journal could not be read.
        notes: Facts that limit what the comparison proves, such as events of a newer version.
    """

    journal: str
    outcome: Outcome
    requests: int = 0
    hashed: int = 0
    difference: Difference | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" ({'; '.join(self.notes)})" if self.notes else ""
        match self.outcome:
            case "same":
                return f"{self.journal}: same, {self.requests} model requests{more}"
            case "differs":
                return f"{self.journal} does not replay the same{more}: {self.difference}"
            case "empty":
                return f"{self.journal}: there is no model request, so nothing was compared{more}"
            case _:
                return f"{self.journal} cannot be read: {self.reason}"


class SuiteReport(Data, frozen=True):
    """The outcomes of a suite, in the order of the journals, and the seconds that it took."""

    outcomes: tuple[JournalOutcome, ...]
    seconds: float = 0.0

    @property
    def same(self) -> bool:
        """True if every journal that has a model request replays the same, and there is one."""
        outcomes = {one.outcome for one in self.outcomes}
        return "same" in outcomes and not outcomes & {"differs", "unreadable"}

    @property
    def changes(self) -> dict[str, list[JournalOutcome]]:
        """The journals that differ, by the text of their first difference: a change of a prompt
        is one entry, however many journals show it. The most frequent one comes first."""
        outcomes: dict[str, list[JournalOutcome]] = {}
        for one in self.outcomes:
            if one.difference is not None:
                outcomes.setdefault(one.difference.text, []).append(one)
        return dict(sorted(outcomes.items(), key=lambda item: -len(item[1])))

    def __str__(self) -> str:
        counts = {
            kind: sum(one.outcome == kind for one in self.outcomes)
            for kind in ("same", "differs", "unreadable", "empty")
        }
        words = {"differs": "differ", "unreadable": "unreadable", "empty": "without a request"}
        some = [f"{count:,} {words.get(kind, kind)}" for kind, count in counts.items() if count]
        requests = sum(one.requests for one in self.outcomes)
        lines = [
            f"{len(self.outcomes):,} journals, {requests:,} model requests in"
            f" {self.seconds:.1f} s: {', '.join(some) or 'nothing to compare'}"
        ]
        for text, journals in self.changes.items():
            lines.append(f"\n{len(journals):,} of them differ first in this:")
            lines += [f"  {line}" for line in text.splitlines()]
            for one in journals[:_SHOWN_NAMES]:
                at = cast("Difference", one.difference)
                lines.append(f"  at request {at.request}, event {at.seq} of {one.journal}")
            if (more := len(journals) - _SHOWN_NAMES) > 0:
                lines.append(f"  and {more:,} more")
        rest = [one for one in self.outcomes if one.outcome in ("unreadable", "empty") or one.notes]
        if rest:
            lines.append("")
            lines += [str(one).splitlines()[0] for one in rest]
        return "\n".join(lines)


class SuiteJournal:
    """One journal of a suite; `str` is its name. Reads its events when they are asked for."""

    def __init__(
        self, suite: JournalSuite, path: Path, id: str, place: int | None, problem: str, by: str
    ) -> None:
        self.path = path
        self.id = id
        self.problem = problem
        """The reason why it cannot be read, as far as that is known without reading it."""
        self.spawned_by = by
        """The idempotency key of the call that spawned the conversation, "" for none."""
        self._suite = suite
        self._place = place

    def __str__(self) -> str:
        name = self.path.relative_to(self._suite.folder).as_posix()
        return f"{name}:{self.id}" if self.id else name

    def read(self) -> Sequence[ev.AnyEvent]:
        """Return the events. Raises `StoreError`, `ConfigurationError`."""
        if self.problem:
            raise StoreError(f"{self}: {self.problem}")
        if self._place is None:
            return self._suite.store(self.path).read(self.id)
        with self.path.open("rb") as lines:
            lines.seek(self._place)
            return next(read_exported(lines)).events

    def replay(self, agent: Agent | None = None) -> JournalOutcome:
        """Compare its model requests with today's; see `JournalSuite.replay`."""
        notes: list[str] = []
        try:
            events = self.read()
            own_agent = agent and self._suite.agent_of(self, agent)
        except (ConfigurationError, StoreError, OSError) as error:
            return JournalOutcome(str(self), "unreadable", reason=self.problem or str(error))
        if agent is not None and own_agent is None:
            notes.append("it was spawned by no delegation of this agent: replayed without an agent")
        newer = {one.original_type for one in events if isinstance(one, ev.UnknownEvent)}
        if newer:
            notes.append(f"events of a newer version: {', '.join(sorted(newer))}")
        result = replay(events, own_agent)
        damaged = next((one for one in events if isinstance(one, ev.DamagedEvent)), None)
        if damaged is not None and result.difference is None:
            notes.append(f"event {damaged.seq} is damaged: {damaged.reason}")
        if damaged is not None and result.difference and result.difference.seq == damaged.seq:
            reason = f"event {damaged.seq} is damaged: {damaged.reason}"
            return JournalOutcome(
                str(self), "unreadable", result.requests, result.hashed, None, reason
            )
        same: Outcome = "same" if result.requests else "empty"
        return JournalOutcome(
            str(self),
            same if result.difference is None else "differs",
            result.requests,
            result.hashed,
            result.difference,
            notes=tuple(notes),
        )

    def check(self, agent: Agent | None = None) -> None:
        """Raise `AssertionError` with the first difference, or because it cannot be read or has
        nothing to compare."""
        if (outcome := self.replay(agent)).outcome != "same":
            raise AssertionError(str(outcome))


class JournalSuite(Sequence[SuiteJournal]):
    """The journals of a folder and its subfolders: SQLite stores and exported JSON lines.

        report = JournalSuite("journals").replay(make_agent())
        assert report.same, str(report)

    A sequence of `SuiteJournal`, in the order of their names, for a parametrised test:

        @pytest.mark.parametrize("journal", JournalSuite("journals"), ids=str)
        def test_replays(journal):
            journal.check(make_agent())

    `folder` may be a single file. Other files are left alone. A file with a name such as `*.jsonl`
    or `*.db` that cannot be read is one journal with a `problem`. Stores are read from a copy,
    which is removed by `close` or with the process. Raises `ConfigurationError` if there is no such
    folder, or no journal in it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder).absolute()
        self.folder = place if place.is_dir() else place.parent
        self._copies: TemporaryFolder | None = None
        self._stores: dict[Path, SQLiteStore] = {}
        if not place.exists():
            raise ConfigurationError(f"JournalSuite: there is no file or folder {str(place)!r}.")
        paths = sorted(place.rglob("*")) if place.is_dir() else [place]
        self._journals = [
            journal for path in paths if path.is_file() for journal in self._in_file(path)
        ]
        self._by_id = {(one.path, one.id): one for one in self._journals}
        if not self._journals:
            what = "holds no store and no output of `holdfast export`"
            raise ConfigurationError(f"JournalSuite: {str(place)!r} {what}.")

    def __len__(self) -> int:
        return len(self._journals)

    @overload
    def __getitem__(self, index: int) -> SuiteJournal: ...
    @overload
    def __getitem__(self, index: slice) -> list[SuiteJournal]: ...
    def __getitem__(self, index: int | slice) -> SuiteJournal | list[SuiteJournal]:
        return self._journals[index]

    def __enter__(self) -> JournalSuite:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the copies of stores and remove them. Idempotent."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        if self._copies is not None:
            self._copies.close()
            self._copies = None

    def replay(self, agent: Agent | None = None) -> SuiteReport:
        """Replay all journals and report where today's requests differ; see
        `Conversation.replay`. No model is called and no tool runs.

        With an `agent`, a child conversation is compared with the agent that its parent delegated
        to. One that another call spawned is compared without an agent, and a note says so.
        """
        began = time.monotonic()
        with keep_connected(agent):
            outcomes = tuple(self.outcomes(agent))
        return SuiteReport(outcomes, time.monotonic() - began)

    def outcomes(self, agent: Agent | None = None) -> Iterator[JournalOutcome]:
        """Yield the outcomes of `replay` one by one."""
        return (journal.replay(agent) for journal in self._journals)

    def store(self, path: Path) -> SQLiteStore:
        """Return the store in a copy of this file, which must not be migrated, nor get files
        beside it. Raises `StoreError`."""
        if (open_store := self._stores.get(path)) is not None:
            return open_store
        if self._copies is None:
            self._copies = TemporaryFolder("holdfast-replay-")
        copy = self._copies.path / f"{len(self._stores)}.db"
        for end in ("", "-wal"):
            copy.with_name(copy.name + end).unlink(missing_ok=True)
            if (beside := path.with_name(path.name + end)).exists():
                shutil.copyfile(beside, copy.with_name(copy.name + end))
        try:
            store = self._stores[path] = SQLiteStore(copy, "process")
        except StoreError as error:
            raise StoreError(str(error).replace(str(copy), str(path))) from error
        return store

    def agent_of(self, journal: SuiteJournal, agent: Agent, depth: int = 0) -> Agent | None:
        """Return the agent that answers in a journal if `agent` answers in its outermost parent;
        None if that is unknown."""
        if not journal.spawned_by or depth > _MAX_DEPTH:
            return agent
        parent_id, _, call = journal.spawned_by.rpartition(":")
        parent = self._by_id.get((journal.path, parent_id)) or next(
            (one for one in self._journals if one.id == parent_id), None
        )
        above = None if parent is None else self.agent_of(parent, agent, depth + 1)
        return None if parent is None or above is None else _delegate(parent.read(), call, above)

    def _in_file(self, path: Path) -> Iterator[SuiteJournal]:
        if path.name.endswith(_SIDE_FILES):
            return
        try:
            with path.open("rb") as file:
                begin = file.read(len(_SQLITE))
            if begin == _SQLITE:
                summaries = sorted(self.store(path).list(), key=lambda one: one.id)
                for one in summaries:
                    yield SuiteJournal(self, path, one.id, None, "", one.spawned_by)
            elif path.suffix == ".jsonl" or begin.startswith(b'{"type":"conv'):
                yield from self._exported(path)
            elif path.suffix in _STORES:
                yield SuiteJournal(self, path, "", None, "it is no SQLite store", "")
        except (StoreError, OSError) as error:
            yield SuiteJournal(self, path, "", None, str(error), "")

    def _exported(self, path: Path) -> Iterator[SuiteJournal]:
        """Yield the conversations of exported lines. Only their headers are decoded here."""
        events_left, place, number = 0, 0, 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                at, place = place, place + len(line)
                if not line.strip() or line.startswith(b'{"type":"blob"'):
                    continue
                if events_left > 0:
                    events_left -= 1
                    continue
                header = _header(line)
                if isinstance(header, str):
                    yield SuiteJournal(self, path, "", at, f"line {number}: {header}", "")
                    return
                by = header.spawned_by or ""
                yield SuiteJournal(self, path, header.id, at, "", by)
                events_left = header.events
        if not number:
            yield SuiteJournal(self, path, "", 0, "the file is empty", "")


def _header(line: bytes) -> Header | str:
    """Return the header in a line, or its problem."""
    with suppress(ValueError, RecursionError):
        header = msgspec.json.decode(line, type=Header)
        if header.version == VERSION:
            return header
        return (
            f"it was exported in version {header.version} by a newer Holdfast; this one reads"
            f" version {VERSION}"
        )
    return "this is not the header of an exported conversation; the rest of the file is not read"


def _delegate(events: Sequence[ev.AnyEvent], call_id: str, agent: Agent) -> Agent | None:
    """Return the agent that the call of a parent's journal delegated to; None if unknown."""
    head = ""
    for event in events:
        if isinstance(event, ev.AgentConfigured):
            head = event.name
        calls = event.calls if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade) else ()
        for call in calls:
            if call.id == call_id:
                owner = find_agent(agent, head) or agent
                name = call.arguments.get("agent") if call.name == "delegate" else None
                if owner.delegates is None or not isinstance(name, str):
                    return None
                return owner.delegates.agent(name)
    return None


@contextmanager
def keep_connected(agent: Agent | None) -> Generator[None]:
    """Keep an agent's connections open from the first journal to the last."""
    if agent is not None:
        agent.connections.opened()
    try:
        yield
    finally:
        if agent is not None:
            agent.connections.closed()
