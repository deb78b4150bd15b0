"""`crash_at_every_append`: kill a program at every possible point, resume it, and check
Holdfast's guarantees."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import AnyEvent
from holdfast.runtime import processes
from holdfast.testing.children import Ended, Forks, end_group, end_of
from holdfast.testing.guarantees import Life, broken, first, tail
from holdfast.testing.watched import APPEND, Journals, Point, Program, Task, Watched

_MAX_TRIES = 3  # to reach a point of the first run, for a program whose threads race


class Crash(msgspec.Struct, frozen=True):
    """One survived kill. `points` holds its point, or with `twice` two points: the second is that
    of the resuming process.

    `before` are the events in the store right after the (last) kill, `after` those at the end,
    `reference` those of the uninterrupted run. These three are of the conversation that began
    first; `*_journals` hold all conversations by id. `folder` is the program's folder; without
    the argument `folder` it is deleted at the next crash. `number` counts the kills so far.
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
    it. It must be repeatable: it opens its conversation by its id, sends only messages that it has
    not sent yet, and brings the conversation to rest.

    Each run is a process of its own. The first run is not interrupted and counts the appends. Then
    a fresh run is killed with SIGKILL at each append, once for each of `when`, and another run
    resumes it to the end. A `kill_point("...")` within a tool is such a point too.

    Args:
        folder: The folder for the runs' folders, one for each kill, which are kept. By default a
            temporary folder, of which only runs that broke a guarantee are kept.
        resume: Called instead of `program` after a kill.
        when: "before" (the events have not reached the store) and "after" (the store has them,
            but the program has not been told).
        points: Numbers of appends, or a function of the `Point`; None selects all points.
        twice: Also kill the resuming runs at each of their points. A function `points` then
            receives both points.
        deadline: Seconds until a run must have ended.

    Raises `AssertionError`, which shows the journal, if one of Holdfast's guarantees is broken:

    - Every appended event is there, unchanged.
    - Each call has one result. Attempts are in order, under one idempotency key.
    - A started call runs again only if its tool is `read_only`, `idempotent` or its `reconcile`
      permits it. Otherwise the model is told that the outcome is unknown.
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
    if folder is not None and not isinstance(cast(object, folder), str | os.PathLike):
        raise _argument_error(f"folder takes a path or None, not {folder!r}.")
    if not isinstance(cast(object, twice), bool):
        raise _argument_error(f"twice takes True or False, not {twice!r}.")
    if (
        isinstance(cast(object, deadline), bool)
        or not isinstance(cast(object, deadline), int | float)
        or not deadline > 0
    ):
        raise _argument_error(f"deadline takes a number of seconds above 0, not {deadline!r}.")
    watched = Watched(program, resume or program)
    return _crashes(watched, folder, _sides(when), _point_filter(points), twice, deadline)


def _argument_error(text: str) -> ConfigurationError:
    return ConfigurationError(f"crash_at_every_append: {text}")


def _sides(when: object) -> tuple[str, ...]:
    sides = (
        tuple(cast(Iterable[Any], when))
        if isinstance(when, Iterable) and not isinstance(when, str | bytes)
        else None
    )
    if sides is None or not all(side in ("before", "after") for side in sides):
        raise _argument_error(f"when takes ('before', 'after') or one of them, not {when!r}.")
    return tuple(dict.fromkeys(sides))


def _point_filter(points: object) -> Callable[..., bool]:
    if points is None:
        return _all
    if callable(points):
        return cast(Callable[..., bool], points)
    numbers = (
        tuple(cast(Iterable[Any], points))
        if isinstance(points, Iterable) and not isinstance(points, str | bytes)
        else None
    )
    if numbers is None or not all(
        isinstance(number, int) and not isinstance(number, bool) for number in numbers
    ):
        raise _argument_error(
            "points takes numbers of appends, such as [1, 2], or a function of the Point, not"
            f" {points!r}."
        )
    return _append_filter(numbers)


def _crashes(
    watched: Watched,
    folder: Path | str | None,
    when: tuple[str, ...],
    wanted: Callable[..., bool],
    twice: bool,
    deadline: float,
) -> Iterator[Crash]:
    keep = folder is not None
    with Forks(watched, deadline) as forks:
        root = (
            Path(tempfile.mkdtemp(prefix="holdfast-crashes-"))
            if folder is None
            else _make_folder(Path(folder))
        )
        runs = _Runs(root, forks, when, wanted, deadline, keep)
        try:
            yield from runs.crashes(twice)
        except AssertionError:
            keep = True
            raise
        finally:
            runs.end_left()
            if not keep:
                shutil.rmtree(root, ignore_errors=True)


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _argument_error(
            f"folder takes a folder that can be written to, not {str(folder)!r} ({error})."
        ) from error
    return folder


def _all(*_: Point) -> bool:
    return True


def _append_filter(numbers: Iterable[int]) -> Callable[..., bool]:
    found = frozenset(numbers)

    def wanted(point: Point, *_: Point) -> bool:
        return point.place == APPEND and point.number in found

    return wanted


class _Runs:
    """The runs of one program."""

    def __init__(
        self,
        root: Path,
        forks: Forks,
        when: tuple[str, ...],
        wanted: Callable[..., bool],
        deadline: float,
        keep: bool,
    ) -> None:
        self._forks = forks
        self._root = root
        self._when = when
        self._point_filter = wanted
        self._deadline = deadline
        self._keep = keep
        self._number = 0
        self._reference: Journals = {}
        self._mark = ""  # marks the processes since the last `end_left`
        self._groups: list[int] = []

    def crashes(self, twice: bool) -> Iterator[Crash]:
        """See `crash_at_every_append`."""
        folder = self._new_folder("uninterrupted")
        life = self._run_process(folder, [], None)
        self._reference = life.ended or {}
        self._check_guarantees([life], [], folder, self._reference)
        if not life.reached.get(APPEND):
            raise AssertionError("The program made no append: does it use its argument `store`?")
        chosen = 0
        for point in self._points(life):
            if not self._point_filter(point):
                continue
            chosen += 1
            lives = yield from self._crash((point,))
            for second in self._points(lives[-1]) if twice and lives is not None else ():
                if self._point_filter(point, second):
                    yield from self._crash((point, second))
        if not self._number:
            came = ", ".join(f"{place!r} {count} times" for place, count in life.reached.items())
            what = (
                f"none of the {chosen} chosen points was reached again"
                if chosen
                else f"when={self._when!r} and points choose no point"
            )
            raise AssertionError(
                f"There was no kill, so nothing was proved: {what}. The uninterrupted run reached"
                f" {came}."
            )

    def _points(self, life: Life) -> Iterator[Point]:
        """Yield the points at which a process on the same course may be killed."""
        for place, count in life.reached.items():
            for number in range(1, count + 1):
                for when in self._when if place == APPEND else ("",):
                    yield Point(number, place, when)

    def _crash(self, points: tuple[Point, ...]) -> Generator[Crash, None, list[Life] | None]:
        """Run one crash and return its lives; None if the program no longer reaches these
        points."""
        name = "-".join(
            [f"{point.place}-{point.number}{point.when and '-' + point.when}" for point in points]
        )
        name = "".join([letter if letter.isalnum() or letter in "-_" else "_" for letter in name])[
            :150
        ]
        for _ in range(_MAX_TRIES):
            folder = self._new_folder(name)
            lives: list[Life] = []
            for point in points:
                lives.append(self._run_process(folder, lives, point))
                if not lives[-1].killed:
                    break
            else:
                lives.append(self._run_process(folder, lives, None))
                self._number += len(points)
                self._check_guarantees(lives, points, folder, self._reference)
                yield Crash(
                    self._number,
                    points,
                    folder,
                    lives[-1].began,
                    lives[-1].ended or {},
                    self._reference,
                )
                self._remove(folder)
                return lives
            self._remove(folder)
        return None

    def _run_process(self, folder: Path, before: list[Life], kill: Point | None) -> Life:
        """Run one process to its end or to `kill`."""
        record = self._record(folder, len(before))
        self._mark = self._mark or uuid.uuid4().hex
        ended = self._forks.run(
            Task(folder, record, self._mark, bool(before), kill), record.with_suffix(".output")
        )
        self._groups += [ended.group] if ended.group else []
        life = Life.of(record)
        if (not life.killed and (ended.code != 0 or life.ended is None)) or ended.late:
            raise AssertionError(self._failure_report(ended, kill, folder, before, life))
        return life

    def _failure_report(
        self, ended: Ended, kill: Point | None, folder: Path, before: list[Life], life: Life
    ) -> str:
        if ended.late:
            what = f"did not end within {self._deadline:g} s"
        elif ended.code < 0:
            what = f"was ended by signal {-ended.code}"
        elif ended.code == 1:
            what = "failed"
        else:
            what = (
                f"failed, the program ended its process without returning (exit code {ended.code})"
            )
        run = (
            "The run that went on after a kill"
            if before
            else "The uninterrupted run"
            if kill is None
            else f"The run to be killed {kill}"
        )
        began = f"\n\nIt began with this journal:\n{tail(first(life.began))}" if before else ""
        return f"{run} {what}:\n\n{ended.output or '(it wrote nothing)'}{began}\n\nFolder: {folder}"

    def _check_guarantees(
        self, lives: list[Life], points: Sequence[Point], folder: Path, reference: Journals
    ) -> None:
        """Raise `AssertionError` if a guarantee is broken."""
        problems = broken(lives, reference)
        if not problems:
            return
        after = lives[-1].ended or {}
        parts = [
            (
                f"Killed {' and then '.join(str(point) for point in points)}:"
                if points
                else "The uninterrupted run:"
            ),
            "",
        ]
        parts += [f"  * {text}" for text in problems]
        for id in after:
            kills = [len(life.began.get(id, [])) for life in lives[1:]]
            parts += ["", f"The journal of {id!r} at the end:", tail(after[id], kills)]
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
        if not self._keep or always:
            shutil.rmtree(folder, ignore_errors=True)
            for life in range(4):
                for path in (
                    self._record(folder, life),
                    self._record(folder, life).with_suffix(".output"),
                ):
                    path.unlink(missing_ok=True)
