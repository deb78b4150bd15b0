"""`holdfast show`: a conversation of a store or a server, at a past event, now, or as it grows."""

from __future__ import annotations

import argparse
import select
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import events as ev
from holdfast.agent.prompt import apart
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.ids import matching
from holdfast.cli.plans import drawn, steps_of
from holdfast.cli.render import GAP, Line, Renderer, as_json, plain
from holdfast.cli.screen import Screen
from holdfast.cli.signals import Ended, Signals
from holdfast.cli.text import clip, json_shown, one_line, safe, summary
from holdfast.content import Usage
from holdfast.conversation import ConversationState
from holdfast.conversation.state import AT_REST, ConversationStatus, Fold
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store import SQLiteStore, Summary
from holdfast.tools.forms import fields

if TYPE_CHECKING:
    from holdfast.cli.server import Server

_MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat2.html, 1.3
_POLL_SECONDS = 0.2  # between two checks for signals, and for a reader of the output

# The statuses in which no event comes without outside action.
_RESTS = AT_REST | {ConversationStatus.PAUSED, ConversationStatus.WAITING_FOR_CONFIRMATION}


def show(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Show a conversation, or list the conversations. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    if options.at is not None and (options.follow or options.until_rest):
        raise UsageError("--at shows a past state, --follow shows new events; give one of them")
    if options.prompt and (options.follow or options.until_rest or options.json):
        raise UsageError("--prompt cannot be combined with --follow, --until-rest or --json")
    with Signals() as signals:
        try:
            code = _show(options, env, screen, signals)
        except Ended as ended:
            code = ended.code
    return screen.loss if screen.broken else code


def _show(
    options: argparse.Namespace, env: Mapping[str, str], screen: Screen, signals: Signals
) -> Exit:
    follows = options.follow or options.until_rest
    place = " ".join(place_words(options))
    with open_place(options, env, read_only=True) as store:
        with signals.prompting():
            found = (
                [found_in(store, options.id, options.file)]
                if options.id is not None
                else store.list()
            )
            if (follows or options.prompt or options.at is not None) and len(found) != 1:
                raise UsageError(
                    f"give the ID of one conversation of {options.file!r}. See: holdfast show"
                    f" {place}"
                )
            if not found:
                screen.error(f"there is no conversation {_in(options.file)} yet.")
            elif len(found) > 1:
                print_list(screen, found, place, options.json)
            if len(found) != 1:
                return Exit.FINISHED
            state = ConversationState(found[0].id, store.read(found[0].id))
            if options.at is not None:
                state = _at(state, options.at)
            if options.prompt:
                _prompt(screen, state)
                return screen.loss if screen.broken else Exit.FINISHED
            shown = _AsJson(screen) if options.json else _AsText(screen, options.full)
            shown.begin(found[0], state)
            for event in state.events:
                shown.event(event)
                if screen.broken:
                    return screen.loss
        code = Exit.FINISHED
        if follows:
            with (
                nullcontext()
                if isinstance(store, SQLiteStore)
                else store.watched(lambda text: screen.notice(text, "dim"))
            ):
                code = _follow(screen, signals, store, state, shown.event, options.until_rest)
        if code is Exit.FINISHED:
            shown.end(options)
    return code


def _prompt(screen: Screen, state: ConversationState) -> None:
    """Show the system prompt of the last model request, each part under its name and length."""
    head = next((event for event in reversed(state.events) if isinstance(event, ev.Agent)), None)
    for name, text in [] if head is None else apart(head):
        lines = [Line("plain", line) for line in safe(text).split("\n")]
        screen.show(
            [Line("dim", f"--- {plain(one_line(name))}: {len(text):,} characters"), *lines, GAP]
        )
    if head is None:
        screen.error("no model request was made yet.")


def _at(state: ConversationState, seq: int) -> ConversationState:
    try:
        return state.at(seq)
    except ConfigurationError as error:
        raise UsageError(f"--{error}") from error


def _follow(
    screen: Screen,
    signals: Signals,
    store: SQLiteStore | Server,
    state: ConversationState,
    show: Callable[[ev.AnyEvent], None],
    until_rest: bool,
) -> Exit:
    fold = Fold()
    for event in state.events:
        fold.apply(event)
    while not (until_rest and fold.status in _RESTS and not fold.asked):
        if screen.broken or not _has_reader():
            return screen.loss
        if signals.ending is not None:
            return signals.ending
        if signals.take_interrupt():
            return Exit.INTERRUPTED
        for event in store.follow(state.id, fold.last_seq, _POLL_SECONDS):
            fold.apply(event)
            show(event)
            if screen.broken or signals.pending:
                break
    return Exit.FINISHED


def _has_reader() -> bool:
    """Return True if the reader of a pipe is still there. Otherwise its absence would show only
    at the next write."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return not any(seen & (select.POLLERR | select.POLLHUP) for _, seen in look.poll(0))


# --- stores and servers ---


def open_place(
    options: argparse.Namespace, env: Mapping[str, str], *, read_only: bool = False
) -> SQLiteStore | Server:
    """Open the store or the agent server that `options.file` names. Raises `UsageError`,
    `StoreError`."""
    if not options.file.startswith(("http://", "https://")):
        if options.server_key_file is not None:
            raise UsageError(
                f"--server-key-file is for an agent server, which {options.file!r} is not"
            )
        return open_store(Path(options.file).expanduser(), read_only=read_only)
    from holdfast.cli.server import server_of  # loads an HTTP client

    return server_of(options, env, options.file)


def place_words(options: argparse.Namespace) -> list[str]:
    """Return the words that name the place in a command line, each quoted for a shell."""
    words = [options.file]
    if options.server_key_file is not None:
        words = [options.file, "--server-key-file", options.server_key_file]
    return [shlex.quote(word) for word in words]


def found_in(store: SQLiteStore | Server, id: str, file: str) -> Summary:
    """Return the conversation that `id` names, by its id or a prefix. Raises `UsageError`."""
    return chosen(store.list(), id, file) if isinstance(store, SQLiteStore) else store.find(id)


def _in(file: str) -> str:
    return f"{'on' if '://' in file else 'in'} {file!r}"


def open_store(path: Path, *, read_only: bool = False) -> SQLiteStore:
    """Open an existing store. SQLite itself would create a missing file, and turn an empty one
    into a store. Raises `UsageError`."""
    if not is_sqlite(path):
        raise UsageError(f"{str(path)!r} is not a Holdfast store")
    try:
        return SQLiteStore(path, read_only=read_only)
    except StoreError as error:
        raise UsageError(str(error)) from error


def is_sqlite(path: Path) -> bool:
    """Return True if the file is an SQLite file. Raises `UsageError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        reason = (
            "does not exist"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {error.strerror}"
        )
        raise UsageError(f"the store {str(path)!r} {reason}") from error


def chosen(found: Sequence[Summary], id: str, file: str) -> Summary:
    """Return the conversation that `id` names among those of a file. Raises `UsageError`."""
    entry = matching(found, id)
    if entry is None:
        raise UsageError(
            f"there is no conversation {id!r} in {file!r}. See: holdfast list {shlex.quote(file)}"
        )
    return entry


# --- on the screen ---


def _print(screen: Screen, lines: Sequence[bytes]) -> None:
    # Not cut to the terminal's width, because programs read it.
    screen.show([Line("plain", json_shown(line.decode())) for line in lines])


def print_list(screen: Screen, found: Sequence[Summary], place: str, json: bool) -> None:
    """Print a line for each conversation. `place` names their location as a command line does."""
    if json:
        _print(screen, [entry.to_json() for entry in found])
        return
    rows = [("ID", "STATUS", "EVENTS", "UPDATED", "TITLE")]
    for entry in found:
        updated = (
            entry.updated.astimezone().strftime("%Y-%m-%d %H:%M")
            if entry.updated is not None
            else ""
        )
        rows.append(
            (
                one_line(entry.id),
                one_line(entry.standing),
                f"{entry.last_seq:,}",
                updated,
                one_line(entry.title),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for number, row in enumerate(rows):
        cells = [
            row[0].ljust(widths[0]),
            row[1].ljust(widths[1]),
            row[2].rjust(widths[2]),
            row[3].ljust(widths[3]),
            row[4],
        ]
        screen.show(
            [Line("plain" if number else "dim", clip("  ".join(cells), screen.width).rstrip())]
        )
    screen.notice(f"show one with: holdfast show {place} ID", "dim")


class _AsJson:
    """Output of a conversation as JSON lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def begin(self, entry: Summary, state: ConversationState) -> None:
        """Print nothing: there is no header, each line is an event."""

    def event(self, event: ev.AnyEvent) -> None:
        _print(self._screen, [event.to_json()])

    def end(self, options: argparse.Namespace) -> None:
        """Print nothing: there is no summary."""


class _AsText:
    """Output of a conversation as `run` shows it, followed by a summary and the waiting calls."""

    def __init__(self, screen: Screen, full: bool) -> None:
        self._screen = screen
        self._renderer = Renderer(None if full else screen.width, full)
        self._fold = Fold()
        self._id = ""
        self._steps, self._usage, self._seconds = 0, Usage(), 0.0
        self._cost: float | None = None

    def begin(self, entry: Summary, state: ConversationState) -> None:
        self._id = entry.id
        at = (
            f" at event {state.last_seq} of {entry.last_seq}"
            if state.last_seq < entry.last_seq
            else ""
        )
        standing = state.status.value if at else entry.standing
        self._screen.show(
            [
                Line(
                    "dim",
                    f"{one_line(entry.id)}, {one_line(standing)}{at}: {one_line(entry.title)}",
                )
            ]
        )

    def event(self, event: ev.AnyEvent) -> None:
        self._fold.apply(event)
        self._screen.show(self._renderer.lines(event))
        self._steps += isinstance(event, ev.Assistant)
        if isinstance(
            event, ev.Assistant | ev.Condensation | ev.Decision | ev.Message | ev.Note
        ) and (event.usage != Usage() or event.cost):
            self._usage += event.usage
            self._cost = self._cost if event.cost is None else (self._cost or 0.0) + event.cost
        if isinstance(event, ev.Assistant | ev.ToolResult):
            self._seconds += event.duration

    def end(self, options: argparse.Namespace) -> None:
        waiting = [item.call for item in self._fold.open.values() if item.asked is not None]
        if self._fold.plan:
            self._screen.show([GAP, *drawn(self._fold.plan, self._renderer.width)])
        for call in waiting:
            if steps := steps_of(call):
                self._screen.show(
                    [
                        Line("plain", f"waiting for you: {one_line(call.id)}, a plan"),
                        *drawn(steps, self._renderer.width),
                    ]
                )
                continue
            told = (
                f"waiting for you: {one_line(call.id)} {plain(one_line(call.name))}"
                f" {as_json(call.arguments)}"
            )
            item = self._fold.open[call.id]
            risk = (
                f"{item.risk} risk: "
                if item.risk and not (item.asked or "").startswith(item.risk)
                else ""
            )
            self._screen.show([Line("plain", told)])
            if item.risk and item.asked:
                self._screen.show([Line("dim", f"  {risk}{plain(one_line(item.asked))}")])
        asking = [question for item in self._fold.open.values() for question in item.questions]
        for question in asking:
            told = (
                f"{plain(one_line(question.asker))} asks you: {one_line(question.id)}"
                f" {plain(one_line(question.message))}"
            )
            self._screen.show(
                [
                    Line(
                        "plain",
                        told + (f" {plain(one_line(question.url))}" if question.url else ""),
                    )
                ]
            )
            if fields(question.schema):
                names = ", ".join([plain(one_line(name)) for name in fields(question.schema)])
                self._screen.show([Line("dim", f"  with a form: {names}")])
        self._screen.show(
            [GAP, Line("dim", summary(self._steps, self._seconds, self._usage, self._cost))]
        )
        if waiting and options.at is None:
            which = one_line(waiting[0].id) if len(waiting) == 1 else "CALL"
            self._screen.notice(f"approve with: {_tell(options, self._id, 'approve')} {which}")
        if asking and options.at is None:
            values = " JSON" if fields(asking[0].schema) else ""
            self._screen.notice(
                f"answer with: {_tell(options, self._id, 'answer', asking[0].id)}{values}"
            )


def _tell(options: argparse.Namespace, *words: str) -> str:
    return f"holdfast tell {' '.join(place_words(options))} {shlex.join(words)}"
