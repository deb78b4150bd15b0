"""`holdfast show` and `holdfast list`: the conversations of a store or a server, and one of them at
a past event, now, or as it grows."""

from __future__ import annotations

import argparse
import select
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast import events as ev
from holdfast.agent.prompt import apart
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.places import Place, open_place, place_text, place_words
from holdfast.cli.plans import drawn, steps_of
from holdfast.cli.render import Renderer, RunTotals, as_json
from holdfast.cli.signals import EndRequested, Signals
from holdfast.cli.text import (
    GAP,
    TextLine,
    clip,
    json_shown,
    one_line,
    plain,
    safe,
    styled,
    summary,
)
from holdfast.conversation import ConversationState
from holdfast.conversation.state import AT_REST, ConversationStatus, Fold
from holdfast.errors import ConfigurationError
from holdfast.store import Summary
from holdfast.tools.question_forms import form_fields

_POLL_SECONDS = 0.2  # between two checks for signals, and for a reader of the output

# A store never has the status CLOSED.
STATUSES = [one.value for one in ConversationStatus if one is not ConversationStatus.CLOSED]
# The statuses in which no event comes without outside action.
_RESTS = AT_REST | {ConversationStatus.PAUSED, ConversationStatus.WAITING_FOR_CONFIRMATION}


def show(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Show a conversation, or list the conversations. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    if options.at is not None and (options.follow or options.until_rest):
        raise UsageError("--at shows a past state, --follow shows new events; give one of them")
    if options.prompt and (options.follow or options.until_rest or options.json):
        raise UsageError("--prompt cannot be combined with --follow, --until-rest or --json")
    with Signals() as signals:
        try:
            code = _show(options, env, console, signals)
        except EndRequested as ended:
            code = ended.code
    return console.loss if console.broken else code


def _show(
    options: argparse.Namespace, env: Mapping[str, str], console: Console, signals: Signals
) -> Exit:
    follows = options.follow or options.until_rest
    with open_place(options, env, read_only=True) as place:
        with signals.prompting():
            found = place.list() if options.id is None else [place.find(options.id)]
            if (follows or options.prompt or options.at is not None) and len(found) != 1:
                raise UsageError(
                    f"give the ID of one conversation of {options.file!r}. See: holdfast show"
                    f" {place_words(options)}"
                )
            if not found:
                console.error(f"there is no conversation {place_text(options)} yet.")
            elif len(found) > 1:
                _print_list(console, found, options)
            if len(found) != 1:
                return Exit.FINISHED
            state = ConversationState(found[0].id, place.read(found[0].id))
            if options.at is not None:
                state = _at(state, options.at)
            if options.prompt:
                _prompt(console, state)
                return Exit.FINISHED
            shown = _AsJson(console) if options.json else _AsText(console, options)
            shown.begin(found[0], state)
            for event in state.events:
                shown.event(event)
                if console.broken:
                    return console.loss
        code = Exit.FINISHED
        if follows:
            with place.watched(lambda text: console.notice(text, "dim")):
                code = _follow(place, state, shown, _Watcher(console, signals, options.until_rest))
        if code is Exit.FINISHED:
            shown.end()
    return code


def list_(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """List conversations. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    status = None if options.status is None else _status(options.status)
    with open_place(options, env, read_only=True) as place:
        # One more, to know if the list goes on.
        found = place.list(status=status, limit=options.limit + 1)
    shown = found[: options.limit]
    if shown:
        _print_list(console, shown, options)
    elif not options.json:
        what = f"that is {status} " if status else ""
        where = place_text(options).replace(repr(options.file), options.file)
        console.notice(f"There is no conversation {what}{where}.", "dim")
    if len(found) > len(shown):
        console.notice("There are more; a higher --limit shows them.", "dim")
    return console.loss if console.broken else Exit.FINISHED


def _status(word: str) -> str:
    """Return the status that `word` abbreviates. Raises `UsageError`."""
    wanted = word.strip().lower().replace("-", "_")
    found = [status for status in STATUSES if wanted and status.startswith(wanted)]
    if len(found) != 1:
        raise UsageError(f"--status takes one of {', '.join(STATUSES)}, not {word!r}")
    return found[0]


def _prompt(console: Console, state: ConversationState) -> None:
    """Show the system prompt of the last model request, each part under its name and length."""
    head = next(
        (event for event in reversed(state.events) if isinstance(event, ev.AgentConfigured)), None
    )
    if head is None:
        console.error("no model request was made yet.")
        return
    for name, text in apart(head):
        console.line(f"--- {plain(one_line(name))}: {len(text):,} characters", "dim")
        console.show([*styled("plain", safe(text)), GAP])


def _at(state: ConversationState, seq: int) -> ConversationState:
    try:
        return state.at(seq)
    except ConfigurationError as error:
        raise UsageError(f"--{error}") from error


class _Watcher:
    """The reasons to stop following a conversation."""

    def __init__(self, console: Console, signals: Signals, until_rest: bool) -> None:
        self._console = console
        self._signals = signals
        self._until_rest = until_rest

    def end(self, fold: Fold) -> Exit | None:
        """Return the exit code if there is no more to show."""
        if self._until_rest and fold.status in _RESTS and not fold.asked:
            return Exit.FINISHED
        if self._console.broken or not _has_reader():
            return self._console.loss
        if self._signals.ending is not None:
            return self._signals.ending
        return Exit.INTERRUPTED if self._signals.take_interrupt() else None

    @property
    def hurried(self) -> bool:
        """True if the output is lost or a signal waits."""
        return self._console.broken or self._signals.pending


def _follow(place: Place, state: ConversationState, shown: _Output, watcher: _Watcher) -> Exit:
    fold = Fold()
    for event in state.events:
        fold.apply(event)
    while (code := watcher.end(fold)) is None:
        for event in place.follow(state.id, fold.last_seq, _POLL_SECONDS):
            fold.apply(event)
            shown.event(event)
            if watcher.hurried:
                break
    return code


def _has_reader() -> bool:
    """Return True if the reader of a pipe is still there. Otherwise its absence would show only
    at the next write."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return not any(seen & (select.POLLERR | select.POLLHUP) for _, seen in look.poll(0))


# --- output ---


def _print_json(console: Console, line: bytes) -> None:
    # Not cut to the terminal's width, because programs read it.
    console.line(json_shown(line.decode()))


def _print_list(console: Console, found: Sequence[Summary], options: argparse.Namespace) -> None:
    if options.json:
        for entry in found:
            _print_json(console, entry.to_json())
        return
    rows = [("ID", "STATUS", "EVENTS", "UPDATED", "TITLE")]
    for entry in found:
        updated = entry.updated
        rows.append(
            (
                one_line(entry.id),
                one_line(entry.standing),
                f"{entry.last_seq:,}",
                "" if updated is None else updated.astimezone().strftime("%Y-%m-%d %H:%M"),
                one_line(entry.title),
            )
        )
    id, status, events, updated = (max(len(row[column]) for row in rows) for column in range(4))
    for row in rows:
        cells = f"{row[0]:<{id}}  {row[1]:<{status}}  {row[2]:>{events}}  {row[3]:<{updated}}"
        style = "dim" if row is rows[0] else "plain"
        console.line(clip(f"{cells}  {row[4]}", console.width).rstrip(), style)
    console.notice(f"show one with: holdfast show {place_words(options)} ID", "dim")


class _Output(Protocol):
    def begin(self, entry: Summary, state: ConversationState) -> None: ...
    def event(self, event: ev.AnyEvent) -> None: ...
    def end(self) -> None: ...


class _AsJson:
    """Output of a conversation as JSON lines, each an event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, entry: Summary, state: ConversationState) -> None:
        """Print nothing."""

    def event(self, event: ev.AnyEvent) -> None:
        _print_json(self._console, event.to_json())

    def end(self) -> None:
        """Print nothing."""


class _AsText:
    """Output of a conversation as `run` shows it, followed by a summary and the waiting calls."""

    def __init__(self, console: Console, options: argparse.Namespace) -> None:
        self._console = console
        self._options = options
        self._renderer = Renderer(None if options.full else console.width, options.full)
        self._fold = Fold()
        self._id = ""
        self._totals = RunTotals()

    def begin(self, entry: Summary, state: ConversationState) -> None:
        self._id = entry.id
        standing = one_line(entry.standing)
        if state.last_seq < entry.last_seq:
            standing = f"{state.status.value} at event {state.last_seq} of {entry.last_seq}"
        self._console.line(f"{one_line(entry.id)}, {standing}: {one_line(entry.title)}", "dim")

    def event(self, event: ev.AnyEvent) -> None:
        self._fold.apply(event)
        self._totals.count(event)
        self._console.show(self._renderer.lines(event))

    def end(self) -> None:
        console, width, totals = self._console, self._renderer.width, self._totals
        if self._fold.plan:
            console.show([GAP, *drawn(self._fold.plan, width)])
        waiting = [item for item in self._fold.open.values() if item.asked is not None]
        for item in waiting:
            told = f"waiting for you: {one_line(item.call.id)}"
            if steps := steps_of(item.call):
                console.show([TextLine("plain", f"{told}, a plan"), *drawn(steps, width)])
                continue
            console.line(f"{told} {plain(one_line(item.call.name))} {as_json(item.call.arguments)}")
            if item.risk and item.asked:
                risk = "" if item.asked.startswith(item.risk) else f"{item.risk} risk: "
                console.line(f"  {risk}{plain(one_line(item.asked))}", "dim")
        questions = [question for item in self._fold.open.values() for question in item.questions]
        for question in questions:
            asker, message = plain(one_line(question.asker)), plain(one_line(question.message))
            url = f" {plain(one_line(question.url))}" if question.url else ""
            console.line(f"{asker} asks you: {one_line(question.id)} {message}{url}")
            if form_fields(question.schema):
                names = ", ".join([plain(one_line(name)) for name in form_fields(question.schema)])
                console.line(f"  with a form: {names}", "dim")
        text = summary(totals.steps, totals.seconds, totals.usage, totals.cost)
        console.show([GAP, TextLine("dim", text)])
        if self._options.at is not None:
            return
        if waiting:
            which = one_line(waiting[0].call.id) if len(waiting) == 1 else "CALL"
            console.notice(f"approve with: {self._tell('approve')} {which}")
        if questions:
            values = " JSON" if form_fields(questions[0].schema) else ""
            console.notice(f"answer with: {self._tell('answer', questions[0].id)}{values}")

    def _tell(self, *words: str) -> str:
        place = place_words(self._options)
        return f"holdfast tell {place} {shlex.join([self._id, *words])}"
