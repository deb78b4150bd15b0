"""`crash_at_every_append`: kill a program at every possible point, resume it, and check
Holdfast's guarantees."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import AnyEvent
from holdfast.runtime import processes
from holdfast.testing.children import Forks, end_group, end_of
from holdfast.testing.guarantees import ProcessRecord, broken, first, tail
from holdfast.testing.watched_store import APPEND, Journals, Point, Program, Task, Watched

_MAX_TRIES = 3  # to reach a point of the first run, for a program whose threads race


class Crash(msgspec.Struct, frozen=True):
    """One survived kill. `points` holds its point, or with `twice` two points: the second is that
    of the resuming process.

    `before` are the events in the store right after the (last) kill, `after` those at the end,
    `reference` those of the uninterrupted run. All three are of the conversation that began first;
    `*_journals` hold all conversations by id. `folder` is the program's folder; without the
    argument `folder` it is deleted at the next crash. `number` counts the kills so far.
    """

    number: int
    points: tuple[Point, ...]
    folder: Path
    before_journals: Journals
    after_journals: Journals
    reference_journals: Journals

    @property
    def point(self) -> Point:
        """The point of the last kill."""
        return self.points[-1]

    @property
    def before(self) -> list[AnyEvent]:
        """The events right after the kill."""
        return first(self.before_journals)

    @property
    def after(self) -> list[AnyEvent]:
        """The events at the end."""
        return first(self.after_journals)

    @property
    def reference(self) -> list[AnyEvent]:
        """The events of the uninterrupted run."""
        return first(self.reference_journals)

    def __str__(self) -> str:
        return (
            f"crash {self.number}: killed {' and then '.join(str(point) for point in self.points)}"
        )


def crash_at_every_append(
    program: Program,
    *,
    folder: Path | str | None = None,
    resume: Program | None = None,
    when: Sequence[str] = ("before", "after"),
    points: Iterable[int] | Callable[..., bool] | None = None,
    twice: bool = False,
    deadline: float = 30.0,
) -> Iterator[Crash]:
    """Kill `program` at every append that it makes, resume it, and yield a `Crash` for each kill::

        def program(store, folder):
            with Conversation(make_agent(folder), store, "c") as conversation:
                if not conversation.state.events:
                    conversation.send_message("Send Ann the report.")
                conversation.run()

        for crash in crash_at_every_append(program):
            assert (crash.folder / "sent.txt").read_text().count("report") <= 1

    `program(store, folder)` works in `folder`, which is empty at first, with an `SQLiteStore` in
    it. The program must be repeatable. A repeatable program opens its conversation by its id, sends
    only messages that it has not sent yet, and brings the conversation to rest.

    Each run is a separate process. The first run is not interrupted and counts the appends. Then a
    fresh run is killed with SIGKILL at each append, once for each of `when`, and another run
    resumes it to the end. A `kill_point("...")` within a tool is a further point.

    Args:
        folder: The folder for the runs' folders, one for each kill, which are kept. By default a
            temporary folder, in which only runs that broke a guarantee are kept.
        resume: Called instead of `program` after a kill.
        when: "before" (the events have not reached the store) and "after" (the store has them, but
            `append` has not returned).
        points: Numbers of appends, or a function of the `Point`; None selects all points.
        twice: Also kill the resuming runs at each of their points. A function `points` then
            receives both points.
        deadline: Seconds until a run must have ended.

    Raises `AssertionError`, which shows the journal, if a guarantee of Holdfast is broken:

    - Every appended event is stored unchanged.
    - Each call has one result. Attempts are in order, under one idempotency key.
    - A started call runs again only if its tool is `read_only`, `idempotent` or its `reconcile`
      permits it. Otherwise the model is shown that the outcome is unknown.
    - Conversations come to rest as in the uninterrupted run.

    Raises `AssertionError` with the traceback if a run raises or misses the deadline, and if there
    was no kill at all, which would prove nothing. After each crash the processes that its runs left
    behind are ended.

    Children are forks of this process. If it has other threads than the calling one, they come
    from a fresh interpreter, which requires a module-level `program`. Raises
    `ConfigurationError` if it is not one, and for invalid arguments. POSIX only.
    """
    if not callable(program) or not (resume is None or callable(resume)):
        raise _argument_error("program and resume take functions of (store, folder).")
    if not isinstance(cast(object, folder), str | os.PathLike | None):
        raise _argument_error(f"folder takes a path or None, not {folder!r}.")
    if not isinstance(cast(object, twice), bool):
        raise _argument_error(f"twice takes True or False, not {twice!r}.")
    number = isinstance(cast(object, deadline), int | float) and not isinstance(deadline, bool)
    if not number or not deadline > 0:
        raise _argument_error(f"deadline takes a number of seconds above 0, not {deadline!r}.")
    options = _Options(_sides(when), _point_filter(points), twice, deadline, folder is not None)
    return _crashes(Watched(program, resume or program), folder, options)


class _Options(NamedTuple):
    """The checked arguments: the sides of an append, the choice of points, ..."""

    when: tuple[str, ...]
    is_chosen: Callable[..., bool]
    twice: bool
    deadline: float
    keep: bool  # the runs' folders, since the caller named their folder


def _argument_error(text: str) -> ConfigurationError:
    return ConfigurationError(f"crash_at_every_append: {text}")


def _items(value: object) -> tuple[Any, ...] | None:
    """Return the items of a sequence; None for text and for any other value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    return tuple(cast(Iterable[Any], value))


def _sides(when: object) -> tuple[str, ...]:
    sides = _items(when)
    if sides is None or not all(side in ("before", "after") for side in sides):
        raise _argument_error(f"when takes ('before', 'after') or one of them, not {when!r}.")
    return tuple(dict.fromkeys(sides))


def _point_filter(points: object) -> Callable[..., bool]:
    if points is None:
        return lambda *_: True
    if callable(points):
        return cast(Callable[..., bool], points)
    numbers = _items(points)
    if numbers is None or not all(type(number) is int for number in numbers):
        raise _argument_error(
            "points takes numbers of appends, such as [1, 2], or a function of the Point, not"
            f" {points!r}."
        )

    def is_chosen(point: Point, *_: Point) -> bool:
        return point.place == APPEND and point.number in numbers

    return is_chosen


def _crashes(watched: Watched, folder: Path | str | None, options: _Options) -> Iterator[Crash]:
    keep = options.keep
    with Forks(watched, options.deadline) as forks:
        root = Path(tempfile.mkdtemp(prefix="holdfast-crashes-") if folder is None else folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise _argument_error(
                f"folder takes a folder that can be written to, not {str(folder)!r} ({error})."
            ) from error
        runs = _Runs(root, forks, options)
        try:
            yield from runs.crashes()
        except AssertionError:
            keep = True
            raise
        finally:
            runs.end_left()
            if not keep:
                shutil.rmtree(root, ignore_errors=True)


class _Runs(msgspec.Struct):
    """The runs of one program."""

    _root: Path
    _forks: Forks
    _options: _Options
    _number: int = 0  # of kills so far
    _reference: Journals = {}
    _mark: str = ""  # marks the processes since the last `end_left`
    _groups: list[int] = []

    def crashes(self) -> Iterator[Crash]:
        """See `crash_at_every_append`."""
        folder = self._new_folder("uninterrupted")
        life = self._run_process(folder, [], None)
        self._reference = life.ended or {}
        self._check_guarantees([life], [], folder)
        if not life.reached.get(APPEND):
            raise AssertionError("The program made no append: does it use its argument `store`?")
        chosen = 0
        for point in self._points(life):
            if not self._options.is_chosen(point):
                continue
            chosen += 1
            lives = yield from self._crash((point,))
            for second in self._points(lives[-1]) if self._options.twice and lives else ():
                if self._options.is_chosen(point, second):
                    yield from self._crash((point, second))
        if self._number:
            return
        came = ", ".join(f"{place!r} {count} times" for place, count in life.reached.items())
        what = f"when={self._options.when!r} and points choose no point"
        if chosen:
            what = f"none of the {chosen} chosen points was reached again"
        raise AssertionError(
            f"There was no kill, so nothing was proved: {what}. The uninterrupted run reached"
            f" {came}."
        )

    def _points(self, life: ProcessRecord) -> Iterator[Point]:
        """Yield the points at which a process on the same course may be killed."""
        for place, count in life.reached.items():
            for number in range(1, count + 1):
                for when in self._options.when if place == APPEND else ("",):
                    yield Point(number, place, when)

    def _crash(
        self, points: tuple[Point, ...]
    ) -> Generator[Crash, None, list[ProcessRecord] | None]:
        """Run one crash and return the records of its processes; None if the program no longer
        reaches these points."""
        ends = [
            f"{point.place}-{point.number}{point.when and '-' + point.when}" for point in points
        ]
        name = re.sub(r"[^\w-]", "_", "-".join(ends))[:150]
        for _ in range(_MAX_TRIES):
            folder = self._new_folder(name)
            lives: list[ProcessRecord] = []
            for point in points:
                lives.append(self._run_process(folder, lives, point))
                if not lives[-1].killed:
                    break
            else:
                lives.append(self._run_process(folder, lives, None))
                self._number += len(points)
                self._check_guarantees(lives, points, folder)
                before, after = lives[-1].began, lives[-1].ended or {}
                yield Crash(self._number, points, folder, before, after, self._reference)
                self._remove(folder)
                return lives
            self._remove(folder)
        return None

    def _run_process(
        self, folder: Path, before: list[ProcessRecord], kill: Point | None
    ) -> ProcessRecord:
        """Run one process to its end or to `kill`."""
        record = self._record(folder, len(before))
        self._mark = self._mark or uuid.uuid4().hex
        task = Task(folder, record, self._mark, bool(before), kill)
        ended = self._forks.run(task, record.with_suffix(".output"))
        self._groups += [ended.group] if ended.group else []
        life = ProcessRecord.of(record)
        if (life.killed or (ended.code == 0 and life.ended is not None)) and not ended.late:
            return life
        what = f"failed, the program ended its process without returning (exit code {ended.code})"
        if ended.late:
            what = f"did not end within {self._options.deadline:g} s"
        elif ended.code < 0:
            what = f"was ended by signal {-ended.code}"
        elif ended.code == 1:
            what = "failed"
        run, began = "The uninterrupted run" if kill is None else f"The run to be killed {kill}", ""
        if before:
            run = "The run that went on after a kill"
            began = f"\n\nIt began with this journal:\n{tail(first(life.began))}"
        output = ended.output or "(it wrote nothing)"
        raise AssertionError(f"{run} {what}:\n\n{output}{began}\n\nFolder: {folder}")

    def _check_guarantees(
        self, lives: list[ProcessRecord], points: Sequence[Point], folder: Path
    ) -> None:
        """Raise `AssertionError` if a guarantee is broken."""
        problems = broken(lives, self._reference)
        if not problems:
            return
        killed = f"Killed {' and then '.join(map(str, points))}:"
        parts = [killed if points else "The uninterrupted run:", ""]
        parts += [f"  * {text}" for text in problems]
        for id, events in (lives[-1].ended or {}).items():
            kills = [len(life.began.get(id, [])) for life in lives[1:]]
            parts += ["", f"The journal of {id!r} at the end:", tail(events, kills)]
        output = end_of(self._record(folder, len(lives) - 1).with_suffix(".output"))
        parts += ["", f"The last process wrote:\n{output}"] if output else []
        raise AssertionError("\n".join([*parts, "", f"Folder: {folder}"]))

    def end_left(self) -> None:
        """End processes that the last crash left behind. Not earlier, because Holdfast itself
        must end its commands."""
        groups, mark, self._groups, self._mark = self._groups, self._mark, [], ""
        for group in groups:
            end_group(group)
        if mark:
            processes.end_owned([mark])

    # --- folders ---

    def _new_folder(self, name: str) -> Path:
        folder = self._root / name
        self._remove(folder, always=True)
        folder.mkdir(parents=True)
        return folder

    def _record(self, folder: Path, life: int) -> Path:
        """Return the record's path, beside the folder, which belongs to the program."""
        return folder.with_name(f".{folder.name}.{life}.record")

    def _remove(self, folder: Path, always: bool = False) -> None:
        self.end_left()
        if not self._options.keep or always:
            shutil.rmtree(folder, ignore_errors=True)
            for record in (self._record(folder, life) for life in range(4)):
                record.unlink(missing_ok=True)
                record.with_suffix(".output").unlink(missing_ok=True)
