"""`holdfast show` and `holdfast list`: the conversations of a place, and one as it was or grows."""

from __future__ import annotations

import select
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing

from holdfast import events as ev
from holdfast.agent.prompt import split_parts
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.pager import paged
from holdfast.cli.places import Place, open_place, place_text, place_words
from holdfast.cli.plans import drawn, steps_of
from holdfast.cli.render import Renderer, RunTotals, as_json, last
from holdfast.cli.signals import EndRequested, Signals
from holdfast.cli.text import (
    GAP,
    TextLine,
    clip,
    json_shown,
    minute,
    one_line,
    plain_line,
    safe,
    styled,
    summary,
    table,
)
from holdfast.conversation import ConversationState
from holdfast.conversation.state import AT_REST, ConversationStatus, Fold
from holdfast.errors import ConfigurationError
from holdfast.labels import check_tags
from holdfast.store import Summary
from holdfast.tools.question_forms import form_fields

_POLL_SECONDS = 0.2  # between two checks for signals, and for a reader of the output

# A store never has the status CLOSED.
STATUSES = [one.value for one in ConversationStatus if one is not ConversationStatus.CLOSED]
# The statuses in which no event comes without outside action.
_RESTS = AT_REST | {ConversationStatus.PAUSED, ConversationStatus.WAITING_FOR_CONFIRMATION}


def show(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Show a conversation, or list the conversations. Raises `UsageError`, `StoreError`."""
    if options.at is not None and (options.follow or options.until_rest):
        raise UsageError("--at shows a past state, --follow shows new events; give one of them")
    if options.prompt and (options.follow or options.until_rest or options.json):
        raise UsageError("--prompt cannot be combined with --follow, --until-rest or --json")
    pages = not (options.no_pager or options.follow or options.until_rest)
    with Signals() as signals, paged(env, pages) as console:
        try:
            code = _show(options, env, console, signals)
        except EndRequested as ended:
            code = Exit(ended.code)
    return console.loss if console.broken else code


def _show(options: Namespace, env: Mapping[str, str], console: Console, signals: Signals) -> Exit:
    follows = options.follow or options.until_rest
    with closing(open_place(options, env, read_only=True)) as place:
        with signals.prompting():
            entries = place.list() if options.id is None else [place.find(options.id)]
            if (follows or options.prompt or options.at is not None) and len(entries) != 1:
                raise UsageError(
                    f"give the ID of one conversation of {options.file!r}. See: holdfast show"
                    f" {place_words(options)}"
                )
            if not entries:
                console.error(f"there is no conversation {place_text(options)} yet.")
            elif len(entries) > 1:
                _print_list(console, entries, options)
            if len(entries) != 1:
                return Exit.FINISHED
            state = ConversationState(entries[0].id, place.read(entries[0].id))
            if options.at is not None:
                try:
                    state = state.at(options.at)
                except ConfigurationError as error:
                    raise UsageError(f"--{error}") from error
            if options.prompt:
                _print_prompt(console, state)
                return Exit.FINISHED
            output = _Output(console, options, state.id)
            output.begin(entries[0], state)
            for event in state.events:
                output.event(event)
                if console.broken:
                    return console.loss
        code = Exit.FINISHED
        if follows:
            with place.watched(lambda text: console.notice(text, "dim")):
                code = _follow(place, output, console, signals)
        if code is Exit.FINISHED and not options.json:
            output.end()
    return code


def _follow(place: Place, output: _Output, console: Console, signals: Signals) -> Exit:
    """Show new events until there is a reason to end; return the exit code for it."""
    fold = output.fold
    while True:
        if output.options.until_rest and fold.status in _RESTS and not fold.has_new_message:
            return Exit.FINISHED
        if console.broken or not _has_reader():
            return console.loss
        if signals.ending is not None:
            return signals.ending
        if signals.take_interrupt():
            return Exit.INTERRUPTED
        for event in place.follow(output.id, fold.last_seq, _POLL_SECONDS):
            output.event(event)
            if console.broken or signals.pending:
                break


def _has_reader() -> bool:
    """Return True if a pipe has a reader; else its absence shows only at the next write."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return not any(flags & (select.POLLERR | select.POLLHUP) for _, flags in look.poll(0))


def list_(options: Namespace, env: Mapping[str, str]) -> Exit:
    """List conversations. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    status = None if options.status is None else _status(options.status)
    tags = check_tags("--tag", options.tag)
    with closing(open_place(options, env, read_only=True)) as place:
        # One more, to know if the list continues.
        entries = place.list(status=status, limit=options.limit + 1, tags=tags)
    page = entries[: options.limit]
    if page:
        _print_list(console, page, options)
    elif not options.json:
        what = f"that is {status} " if status else ""
        what += f"with the tag{'s' * (len(tags) > 1)} {', '.join(tags)} " if tags else ""
        where = place_text(options).replace(repr(options.file), options.file)
        console.notice(f"There is no conversation {what}{where}.", "dim")
    if len(entries) > len(page):
        console.notice("There are more; a higher --limit shows them.", "dim")
    return console.loss if console.broken else Exit.FINISHED


def _status(word: str) -> str:
    """Return the status that `word` abbreviates. Raises `UsageError`."""
    prefix = word.strip().lower().replace("-", "_")
    matches = [status for status in STATUSES if prefix and status.startswith(prefix)]
    if len(matches) != 1:
        raise UsageError(f"--status takes one of {', '.join(STATUSES)}, not {word!r}")
    return matches[0]


def _print_prompt(console: Console, state: ConversationState) -> None:
    """Show the system prompt of the last model request, each part under its name and length."""
    if (head := last(state.events, ev.AgentConfigured)) is None:
        console.error("no model request was made yet.")
        return
    for name, text in split_parts(head):
        console.line(f"--- {plain_line(name)}: {len(text):,} characters", "dim")
        console.show([*styled("plain", safe(text)), GAP])


def _print_list(console: Console, entries: Sequence[Summary], options: Namespace) -> None:
    if options.json:
        for entry in entries:
            console.line(json_shown(entry.to_json().decode()))
        return
    rows = [("ID", "STATUS", "EVENTS", "UPDATED", "TITLE")]
    for entry in entries:
        updated = minute(entry.updated)
        id, status = one_line(entry.id), one_line(entry.listed_status)
        title = one_line(" ".join([entry.title, *[f"[{tag}]" for tag in entry.tags]]))
        rows.append((id, status, f"{entry.last_seq:,}", updated, title))
    for at, line in enumerate(table(rows, right=2)):
        console.line(clip(line, console.width).rstrip(), "plain" if at else "dim")
    console.notice(f"show one with: holdfast show {place_words(options)} ID", "dim")


class _Output:
    """Output of a conversation as JSON lines, or as `run` shows it, with a summary at the end."""

    def __init__(self, console: Console, options: Namespace, id: str) -> None:
        self.options = options
        self.id = id
        self.fold = Fold()
        self._console = console
        self._renderer = Renderer(None if options.full else console.width, options.full)
        self._totals = RunTotals()

    def begin(self, entry: Summary, state: ConversationState) -> None:
        status = one_line(entry.listed_status)
        if state.last_seq < entry.last_seq:
            status = f"{state.status.value} at event {state.last_seq} of {entry.last_seq}"
        if not self.options.json:
            line = f"{one_line(entry.id)}, {status}: {one_line(entry.title)}"
            self._console.line(
                line if self.options.full else clip(line, self._console.width), "dim"
            )

    def event(self, event: ev.AnyEvent) -> None:
        self.fold.apply(event)
        self._totals.count(event)
        if self.options.json:
            self._console.line(json_shown(event.to_json().decode()))
        else:
            self._console.show(self._renderer.lines(event))

    def end(self) -> None:
        console, width, totals = self._console, self._renderer.width, self._totals
        if self.fold.plan:
            console.show([GAP, *drawn(self.fold.plan, width)])
        waiting = [item for item in self.fold.open.values() if item.ask_reason is not None]
        for item in waiting:
            heading = f"waiting for you: {one_line(item.call.id)}"
            if steps := steps_of(item.call):
                console.show([TextLine("plain", f"{heading}, a plan"), *drawn(steps, width)])
                continue
            console.line(f"{heading} {plain_line(item.call.name)} {as_json(item.call.arguments)}")
            if item.risk and item.ask_reason:
                risk = "" if item.ask_reason.startswith(item.risk) else f"{item.risk} risk: "
                console.line(f"  {risk}{plain_line(item.ask_reason)}", "dim")
        questions = [question for item in self.fold.open.values() for question in item.questions]
        for question in questions:
            asker, message = plain_line(question.asker), plain_line(question.message)
            url = f" {plain_line(question.url)}" if question.url else ""
            console.line(f"{asker} asks you: {one_line(question.id)} {message}{url}")
            if fields := form_fields(question.schema):
                console.line(f"  with a form: {', '.join(map(plain_line, fields))}", "dim")
        text = summary(totals.steps, totals.seconds, totals.usage, totals.cost)
        console.show([GAP, TextLine("dim", text)])
        if self.options.at is not None:
            return
        if waiting:
            which = one_line(waiting[0].call.id) if len(waiting) == 1 else "CALL"
            console.notice(f"approve with: {self._tell('approve')} {which}")
        if questions:
            values = " JSON" if form_fields(questions[0].schema) else ""
            console.notice(f"answer with: {self._tell('answer', questions[0].id)}{values}")

    def _tell(self, *words: str) -> str:
        return f"holdfast tell {place_words(self.options)} {shlex.join([self.id, *words])}"
