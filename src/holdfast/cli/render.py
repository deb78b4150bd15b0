"""Rendering of events and calls as lines: a line is a style's name and safe text."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from holdfast import content
from holdfast import events as ev
from holdfast.cli.answer_lines import detail_lines
from holdfast.cli.plans import change_lines, drawn, steps_of
from holdfast.cli.text import (
    GAP,
    TextLine,
    clip,
    counted,
    duration,
    one_line,
    plain,
    plain_line,
    safe,
    size,
    styled,
)
from holdfast.content import ToolCall, ToolResult, Usage, text_of
from holdfast.error_text import typed_text
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.plans import PLAN, plan_of, progress, read_steps

E = TypeVar("E")

# The last lines of a command's output matter most (an error, a test's verdict), the first lines of
# any other output.
COMMAND_HEAD, COMMAND_TAIL, RESULT_LINES, DIFF_LINES = 4, 8, 6, 40
_MAX_DIFF_CHARS = 1_000_000  # comparing longer texts takes longer than reading them

# The most informative argument of a call, by its usual names in tools. Other arguments are shown as
# name=value.
_TELLING = ("command", "pattern", "query", "url", "path", "file_path", "text", "task", "name")

# The style and words of the statuses that are shown.
_STATUSES = {
    "paused": ("dim", "paused"),
    "stuck": ("error", "stuck"),
    "waiting_for_confirmation": ("dim", "waiting for you"),
}
_DECISIONS = {
    "allow": "allowed:",
    "ask": "waits for you:",
    "approve": "approved:",
    "reject": "rejected:",
}

# Arguments that the diff shows, or the file contains.
_CONTENTS = ("old", "new", "content")


def call_title(name: str, arguments: dict[str, Any]) -> str:
    """Return a call in one line: `$ command`, or the tool's name and its most telling arguments."""
    command = arguments.get("command")
    if name == "terminal" and isinstance(command, str):
        first, _, rest = command.strip().partition("\n")
        more = f" (and {counted(len(rest.splitlines()), 'more line')})" if rest.strip() else ""
        return f"$ {one_line(first)}{more}"
    if name == PLAN and (steps := read_steps(arguments)):
        return f"{PLAN} ({progress(steps)})"
    texts = {key: value for key, value in arguments.items() if isinstance(value, str)}
    short = [key for key, value in texts.items() if "\n" not in value]
    telling = next((key for key in _TELLING if key in texts), next(iter(short), None))
    parts = [name] if telling is None else [name, one_line(texts[telling])]
    for key, value in arguments.items():
        preview = str(value) if isinstance(value, str | int | float) else "\n"
        if key not in (telling, *_CONTENTS) and len(preview) <= 40 and "\n" not in preview:
            parts.append(f"{key}={value}")
    return one_line(" ".join(parts))


# --- a call in full ---


def whole(call: ToolCall, current: Callable[[str], str | None]) -> list[TextLine]:
    """Return the lines of a complete call. `current` reads the present content of a file."""
    remaining = dict(call.arguments)
    command = remaining.get("command")
    if call.name == "terminal" and isinstance(command, str):
        del remaining["command"]
        lines = styled("call", "$ " + plain(command).replace("\n", "\n  "))
    else:
        lines = [TextLine("call", plain(call.name))]
    diff: list[TextLine] = []
    old, new, text, path = (remaining.get(name) for name in ("old", "new", "content", "path"))
    if call.name == "edit_file" and isinstance(old, str) and isinstance(new, str):
        del remaining["old"], remaining["new"]
        diff = _diff(old, new, numbered=False)
    elif call.name == "write_file" and isinstance(text, str) and isinstance(path, str):
        del remaining["content"]
        diff = _replacement(current(path), text)
    for name, value in remaining.items():
        name = f"  {plain_line(name)}:"
        if not isinstance(value, str) or not value or value != value.strip():
            lines.append(TextLine("plain", f"{name} {as_json(value)}"))
        elif "\n" in value:
            lines += [TextLine("plain", name), *styled("plain", plain(value), "    ")]
        else:
            lines.append(TextLine("plain", f"{name} {plain(value)}"))
    return lines + diff


def _replacement(before: str | None, after: str) -> list[TextLine]:
    """Return the lines for a file's new content; `before` is None for a new file."""

    def all_lines(sign: str, style: str, text: str) -> list[TextLine]:
        whole = plain(text).removesuffix("\n")
        return [TextLine(style, f"  {sign}{line}") for line in whole.split("\n")] if text else []

    if not before:
        head = [] if before is None else [TextLine("dim", "  replaces an empty file:")]
        return head + all_lines("+", "add", after)
    head = [TextLine("dim", "  replaces the present content:")]
    return head + (_diff(before, after) if after else all_lines("-", "remove", before))


def _diff(old: str, new: str, *, numbered: bool = True) -> list[TextLine]:
    """Return an exact diff; other line ends alone are a difference. `numbered`: of whole files."""
    if old == new:
        return [TextLine("dim", "  (no change)")]
    before, after = plain(old).split("\n"), plain(new).split("\n")
    if len(old) + len(new) > _MAX_DIFF_CHARS:
        lines = [f"-{line}" for line in before] + [f"+{line}" for line in after]
    else:
        lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
        if not numbered:
            lines = ["…" if line.startswith("@@") else line for line in lines][1:]
    return [
        TextLine({"+": "add", "-": "remove"}.get(line[:1], "dim"), f"  {line}") for line in lines
    ]


def as_json(value: Any, ascii_only: bool = False) -> str:
    """Return JSON on one line, in which invisible characters are escaped."""
    return re.sub(r"[^\x20-\x7e]", _escaped, json.dumps(value, ensure_ascii=ascii_only))


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    if unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp", "Cs"):
        return char
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def read_arguments(text: str) -> dict[str, Any]:
    """Parse a call's arguments, typed as JSON. Raises `ValueError` with the reason."""
    twice: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                twice.append(key)
            keys.add(key)

    if too_deep(text):
        raise ValueError(f"The arguments are nested deeper than {MAX_DEPTH} levels.")
    try:
        arguments: Any = msgspec.json.decode(text)
        json.loads(text, object_pairs_hook=look)
    except ValueError as error:
        raise ValueError(f"That is not JSON: {error}.") from error
    if twice:  # it is unknown which one is meant
        raise ValueError(f"The key {twice[0]!r} appears twice.")
    if not isinstance(arguments, dict):
        raise ValueError('The arguments must be a JSON object, such as {"path": "a.txt"}.')
    return cast("dict[str, Any]", arguments)


# --- events ---


def last(events: Sequence[ev.AnyEvent], kind: type[E]) -> E | None:
    """Return the last event of a class, or None."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def last_word(events: Sequence[ev.AnyEvent]) -> ev.MessageAdded | None:
    """Return the last message of the user, or None."""
    messages = (event for event in reversed(events) if isinstance(event, ev.MessageAdded))
    return next((message for message in messages if message.sender == "user"), None)


# The events that record the usage of a model.
_Priced = (
    ev.AssistantReplied
    | ev.HistoryCondensed
    | ev.DecisionMade
    | ev.MessageAdded
    | ev.NoteRecorded
    | ev.AsideAnswered
)


class RunTotals:
    """The steps, tokens, cost in US dollars and seconds of work of a sequence of events."""

    def __init__(self) -> None:
        self.steps, self.usage, self.seconds = 0, Usage(), 0.0
        self.cost: float | None = None

    def count(self, event: ev.AnyEvent) -> None:
        self.steps += isinstance(event, ev.AssistantReplied)
        if isinstance(event, ev.AssistantReplied | ev.ToolCallFinished):
            self.seconds += event.duration
        if isinstance(event, _Priced) and (event.usage != Usage() or event.cost):
            self.usage += event.usage
            self.cost = self.cost if event.cost is None else (self.cost or 0.0) + event.cost


class Renderer:
    """A renderer for the events of one conversation, in order, which labels results by their calls.

    Lines are cut at `width` characters (None: never). Results, diffs and commands are cut to a
    few lines unless `full`."""

    def __init__(self, width: int | None = 120, full: bool = False) -> None:
        self.width = width
        self.full = full
        self._calls: dict[str, ToolCall] = {}
        self._batch = 0
        self._route = ""
        self.plan: tuple[ev.PlanStep, ...] = ()  # as last drawn

    def lines(self, event: ev.AnyEvent) -> list[TextLine]:
        """Return the lines of one event; none for events that concern only the machinery."""
        return list(self._lines(event))

    def _lines(self, event: ev.AnyEvent) -> Iterator[TextLine]:
        match event:
            case ev.AgentConfigured():
                model = f"model {event.model}, " if event.model else ""
                names = ", ".join(tool.name for tool in event.tools)
                yield self._cut("dim", f"{model}{counted(len(event.tools), 'tool')}: {names}")
            case ev.MessageAdded():
                yield from self.message(event)
            case ev.AssistantReplied():
                yield from self.answer(event)
                yield from self.calls(event)
            case ev.CodeCallsMade():
                self._calls |= {call.id: call for call in event.calls}
                self._batch = max(self._batch, 2)  # each result names its call from here on
                for call in event.calls:
                    yield self._cut("dim", f"  in the script: {self.title(call.id)}")
            case ev.ToolCallStarted() if event.attempt > 1:
                yield self._cut("dim", f"  attempt {event.attempt}: {self.title(event.call_id)}")
            case ev.ToolCallFinished():
                yield from self._result(event)
            case ev.DecisionMade() if event.decision != "allow" or event.reason:
                yield from self._decision(event)
            case ev.HistoryCondensed():
                yield self._cut("dim", _condensed(event))
            case ev.StatusChanged() if event.status in _STATUSES:
                style, status = _STATUSES[event.status]
                yield self._cut(style, status + (f" ({event.reason})" if event.reason else ""))
            case ev.ErrorRecorded():
                yield TextLine("error", one_line(typed_text(event.error, event.message)))
            case ev.NoteRecorded():
                yield self._cut("dim", f"(note, {event.about}: {event.text})")
            case ev.ConversationLabelled():
                title = [] if event.title is None else [event.title]
                tags = [*[f"+{tag}" for tag in event.add], *[f"-{tag}" for tag in event.remove]]
                yield self._cut("dim", f"(label: {' '.join([*title, *tags])})")
            case ev.TimerSet():
                due = f"{event.due:%Y-%m-%d %H:%M:%SZ}"
                text = text_of(event.content)
                yield self._cut("dim", f"(timer {event.timer}, due {due}: {text})")
            case ev.TimerFired(message_seq=0):
                yield self._cut("dim", f"(timer {event.timer} gave no message)")
            case ev.TimerCancelled():
                reason = f": {event.reason}" if event.reason else ""
                yield self._cut("dim", f"(timer {event.timer} was cancelled{reason})")
            case ev.AsideAsked():
                yield self._cut("dim", f"(aside: {event.question})")
            case ev.AsideAnswered(error=""):
                yield GAP
                yield from styled("plain", f"(aside) {safe(event.text)}".strip())
            case ev.AsideAnswered():
                yield self._cut("error", f"(aside: {event.error}: {event.failed})")
            case ev.DamagedEvent():
                yield self._cut("error", f"(event {event.seq} is damaged: {event.reason})")
            case ev.UnknownEvent():
                yield self._cut("dim", f"({event.original_type}: an event of a newer version)")
            case _:
                pass

    # --- messages and answers ---

    def message(self, event: ev.MessageAdded) -> Iterator[TextLine]:
        kind, _, name = event.about.partition(":")
        if not self.full and kind in ("skill", "instructions"):
            yield self._cut("dim", f"({kind} {name}: {len(event.text):,} characters)")
            return
        if event.sender != "user":
            yield self._cut("dim", f"(told the model: {event.text})")
            return
        yield GAP
        text = safe(event.text).strip("\n") if event.text.strip() else ""
        for line in _block_lines(text, event.content):
            yield TextLine("user", f"> {line}".rstrip())

    def answer(self, event: ev.AssistantReplied) -> Iterator[TextLine]:
        """Yield the lines of the model's text and reasoning, without its calls."""
        reasoning, text = safe(event.reasoning).strip("\n"), safe(event.text).strip("\n")
        if reasoning or text or event.calls:
            yield GAP
        if reasoning:
            yield from styled("dim", reasoning)
        if text:
            yield from styled("plain", text)
        yield from self.notes(event)

    def notes(self, event: ev.AssistantReplied) -> Iterator[TextLine]:
        """Yield the model that answered, if it changed, and notes on content that it lacks."""
        if event.route != self._route:
            self._route = event.route
            yield self._cut("dim", f"(answered by {event.route or event.model})")
        for note in event.notes:
            yield self._cut("dim", f"({note})")
        for line in detail_lines(event):
            yield self._cut(line.style, line.text)

    def know(self, event: ev.AssistantReplied) -> None:
        """Remember the calls of an answer, without rendering it."""
        if event.calls:
            self._calls = {call.id: call for call in event.calls}
            self._batch = len(event.calls)

    def calls(self, event: ev.AssistantReplied) -> Iterator[TextLine]:
        self.know(event)
        for call in event.calls:
            command = call.arguments.get("command")
            if steps_of(call):
                pass  # the plan is drawn when the user is asked, or with the result
            elif self.full and call.name == "terminal" and isinstance(command, str):
                yield from styled("call", "$ " + safe(command).strip("\n").replace("\n", "\n  "))
            else:
                yield self._cut("call", self.title(call.id))

    def title(self, call_id: str) -> str:
        """Return the line of a call whose answer was rendered."""
        call = self._calls.get(call_id)
        if call is None:
            return f"call {call_id}"
        if call.invalid:
            return f"{one_line(call.name)} {one_line(call.raw)}"
        return call_title(call.name, call.arguments)

    def delegates(self, call_id: str) -> bool:
        """Return True if a call gives work to other agents, or waits for them."""
        call = self._calls.get(call_id)
        return call is not None and call.name in ("delegate", "delegate_collect")

    def child(self, progress: str) -> list[TextLine]:
        return [self._cut("dim", f"    {progress}")]

    def _decision(self, event: ev.DecisionMade) -> Iterator[TextLine]:
        why = f": {event.reason}" if event.reason else ""
        if (question := event.question) is not None:
            url = f" ({question.url})" if question.url else ""
            asks = f"{one_line(question.asker)} asks: {one_line(question.message)}"
            yield self._cut("dim", f"  {asks}{url}")
            return
        if event.question_id:
            values = f": {msgspec.json.encode(event.arguments).decode()}" if event.arguments else ""
            verb = "answered" if event.decision == "approve" else "declined"
            yield self._cut("dim", f"  {verb} by {event.by or 'somebody'}{values}{why}")
            return
        verb = _DECISIONS.get(event.decision, event.decision)
        by = f", by {event.by}" if event.by not in ("", "policy") else ""
        steps = self.asked_plan(event)
        if event.decision == "ask" and event.reason:
            why = f" ({event.reason})"
        omits_risk = not event.risk or event.reason.startswith(event.risk)
        risk = "" if omits_risk else f" [{event.risk} risk]"
        yield self._cut("dim", f"  {verb} {self.title(event.call_id)}{risk}{by}{why}")
        if steps:
            yield from drawn(steps, self.width)
        call = self._calls.get(event.call_id)
        # A plan is drawn in its approved form instead.
        if event.arguments is not None and call is not None and not steps_of(call):
            arguments = msgspec.json.encode(event.arguments).decode()
            yield self._cut("dim", f"    with other arguments: {arguments}")

    def asked_plan(self, event: ev.DecisionMade) -> tuple[ev.PlanStep, ...]:
        """Return the plan that this decision asks about, which counts as drawn from now on."""
        call = self._calls.get(event.call_id)
        if call is None or event.decision != "ask" or event.question is not None:
            return ()
        steps = steps_of(call)
        self.plan = steps or self.plan
        return steps

    # --- results ---

    def _result(self, event: ev.ToolCallFinished) -> Iterator[TextLine]:
        result = event.result
        call = self._calls.get(event.call_id)
        if call is not None and (steps := plan_of(result, call.arguments)):
            yield from change_lines(steps, self.plan, self.width)
            self.plan = steps
            return
        # The calls of one answer end in any order, so each result names its call.
        if self._batch > 1 or (call is not None and steps_of(call)):
            yield self._cut("dim", f"= {self.title(event.call_id)}")
        diff = result.meta.get("diff")
        if isinstance(diff, str) and diff and not result.is_error:
            yield from self._diff(diff)
        else:
            yield from self._text(result, call is not None and call.name == "terminal")
        yield self._outcome(event)

    def _text(self, result: ToolResult, command: bool) -> Iterator[TextLine]:
        text = safe(result.text).strip("\n")
        code = result.meta.get("exitCode")
        if code is not None:  # the last line shows it
            text = text.removesuffix(f"[exit code {code}]").rstrip("\n")
        lines = _block_lines(text, result.content)
        style = "error" if result.is_error else "dim"
        head, tail = (COMMAND_HEAD, COMMAND_TAIL) if command else (RESULT_LINES, 0)
        left_out = len(lines) - head - tail
        # A note about one omitted line takes as much room as the line.
        if self.full or left_out <= 1:
            head, left_out = len(lines), 0
        yield from [self._cut(style, f"  {line}") for line in lines[:head]]
        if left_out:
            yield TextLine("dim", f"  … {counted(left_out, 'more line')}")
            yield from [self._cut(style, f"  {line}") for line in lines[len(lines) - tail :]]

    def _diff(self, diff: str) -> Iterator[TextLine]:
        lines = safe(diff).rstrip("\n").split("\n")
        changes = [line for line in lines if not line.startswith(("--- ", "+++ "))]
        visible = changes if self.full or len(changes) <= DIFF_LINES + 1 else changes[:DIFF_LINES]
        for line in visible:
            style = "add" if line.startswith("+") else "remove" if line.startswith("-") else "dim"
            yield self._cut(style, f"  {line}")
        if len(visible) < len(changes):
            yield TextLine("dim", f"  … {counted(len(changes) - len(visible), 'more line')}")

    def _outcome(self, event: ev.ToolCallFinished) -> TextLine:
        result = event.result
        code = result.meta.get("exitCode")
        bad = result.is_error or code not in (None, 0)
        parts = [] if code is None else [f"exit {one_line(str(code))}"]
        if result.meta.get("running") is True:
            parts.append("still running")
        if result.is_error and code is None:
            parts.append(f"failed ({result.error.type})" if result.error is not None else "failed")
        child = result.meta.get("holdfast/child")
        if isinstance(child, dict) and "steps" in child:
            child_run = cast("dict[str, Any]", child)
            agent, steps = one_line(str(child_run.get("agent"))), int(child_run["steps"])
            parts.append(f"{agent}: {counted(steps, 'step')}")
        parts.append(duration(event.duration))
        return self._cut("error" if bad else "dim", f"  {', '.join(parts)}")

    def _cut(self, style: str, text: str) -> TextLine:
        text = one_line(text) if "\n" in text else safe(text)
        if self.full or self.width is None:
            return TextLine(style, text.expandtabs(4))
        return TextLine(style, clip(text, self.width))


def _block_lines(text: str, blocks: Iterable[object]) -> list[str]:
    """Return the lines of a text, and descriptions of the blocks that a terminal cannot show."""
    lines = text.split("\n") if text.strip() else []
    for block in blocks:
        match block:
            case content.TextContent():
                pass
            case content.ImageContent() | content.AudioContent():
                kind = "image" if isinstance(block, content.ImageContent) else "sound"
                lines.append(f"({kind}, {one_line(block.mime_type)}, {size(len(block.data))})")
            case content.FileContent():
                name = block.name or block.url or block.file_id
                parts = [block.mime_type, name, size(len(block.data)) if block.data else ""]
                lines.append(f"(file, {', '.join(one_line(part) for part in parts if part)})")
            case content.ResourceLink():
                lines.append(f"(resource {one_line(block.uri)})")
            case _:
                lines.append("(an embedded resource)")
    return lines


def _condensed(event: ev.HistoryCondensed) -> str:
    if event.failed:
        return f"the model's view was not shortened: {one_line(event.failed)}"
    if event.request is not None:
        keeping = f", keeping {one_line(event.request)}" if event.request else ""
        return f"requested: a shorter view for the model{keeping}"
    parts = [f"{counted(len(event.hidden), 'event')} left out of"] if event.hidden else []
    parts += [f"{counted(len(event.trimmed), 'output')} cut in"] if event.trimmed else []
    if event.compaction is not None:
        parts.append(f"a compaction by {one_line(event.model)} is")
    return f"{', '.join(parts)} the model's view from here on"
