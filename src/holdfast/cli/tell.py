"""`holdfast tell`: posts a command to a conversation's inbox, whichever process drives it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.places import Place, open_place, place_words
from holdfast.cli.render import as_json, read_arguments
from holdfast.cli.signals import EndRequested, Signals
from holdfast.cli.text import one_line, plain, status_text
from holdfast.content import TextContent
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.conversation.state import AT_REST, PendingConfirmation
from holdfast.errors import ToolValidationError
from holdfast.tools.question_forms import complete_answer
from holdfast.tools.results import clean
from holdfast.tools.schema import from_json_schema

T = TypeVar("T")

_POLL_SECONDS = 0.2  # between two checks for signals
_CALL = re.compile(r"\d+\.\d+")  # a call's id
_QUESTION = re.compile(r"\d+\.\d+\?\d+")  # a question's id


def tell(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Post one command. Raises `UsageError`, `HoldfastError`."""
    console = Console(env)
    _check(options)
    with Signals() as signals:
        try:
            if options.words == ["-"] and options.what == "send":
                with signals.prompting():
                    options.words = [_standard_input()]
            return _tell(options, env, console, signals)
        except EndRequested as ended:
            return ended.code


def _tell(
    options: argparse.Namespace, env: Mapping[str, str], console: Console, signals: Signals
) -> Exit:
    with open_place(options, env) as place:
        id = place.find(options.id).id
        state = ConversationState(id, place.read(id))
        command = _command(options, state)
        posted = place.post(id, command, options.key)
        told = f"posted: {_description(command)}"
        if not posted:
            told = f"dropped: another command was posted under the key {options.key!r} before"
        console.line(one_line(told))
        if options.what not in ("pause", "interrupt"):
            _go_on(options, console, place, id)
        if options.wait is None:
            return Exit.FINISHED
        # A command that was posted earlier may also have been carried out earlier.
        fresh = posted and (place.tells_duplicates or options.key is None)
        effect = _Effect(place, id, command, state.last_seq if fresh else 0)
        return effect.wait(console, signals, state.status, options.wait)


def _go_on(options: argparse.Namespace, console: Console, place: Place, id: str) -> None:
    """Have a server continue after the command, which it carried out at once."""
    match place.run(id):
        case "":
            pass
        case "paused":
            console.notice("The conversation is paused; resume continues it.", "dim")
        case "waiting_for_confirmation":
            console.notice("The conversation waits for a decision.", "dim")
        case _:
            follow = f"holdfast show {place_words(options)} {shlex.join([id])} --follow"
            console.notice(f"The server continues the conversation. Watch it with: {follow}", "dim")


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"the text on standard input is not {error.encoding.upper()}") from error


def _check(options: argparse.Namespace) -> None:
    what, words = options.what, options.words
    if what == "send" and not words:
        raise UsageError("tell send takes the text, or - to read it from standard input")
    if what == "approve" and len(words) > 1:
        raise UsageError(f"tell approve takes one call, not {' '.join(words)!r}")
    if what == "answer" and len(words) > 2:
        raise UsageError(
            "tell answer takes one question and the values as one JSON object, not"
            f" {' '.join(words)!r}"
        )
    if what in ("pause", "resume", "interrupt") and words:
        raise UsageError(f"tell {what} takes no text, not {' '.join(words)!r}")
    if options.arguments is not None and what != "approve":
        raise UsageError("--arguments is for approve only")


def _command(options: argparse.Namespace, state: ConversationState) -> cmd.Command:
    words: list[str] = list(options.words)
    match options.what:
        case "send":
            text = " ".join(words)
            if not text.strip():
                raise UsageError("the text is empty")
            return cmd.Send((TextContent(clean(text)),))
        case "approve":
            pending = _pending(options, state, words[0] if words else None)
            given = options.arguments
            arguments = None if given is None else _arguments(given, pending, state)
            return cmd.Approve(pending.call.id, pending.arguments_hash, arguments)
        case "reject":
            call = words.pop(0) if words and _CALL.fullmatch(words[0]) else None
            return cmd.Reject(_pending(options, state, call).call.id, clean(" ".join(words)))
        case "answer" | "decline":
            asked = words.pop(0) if words and _QUESTION.fullmatch(words[0]) else None
            question = _question(options, state, asked)
            if options.what == "decline":
                return cmd.Answer(question.id, None, clean(" ".join(words)))
            if len(words) > 1:
                raise UsageError(f"{words[0]!r} is not a question's id, which looks like 4.0?1")
            return cmd.Answer(question.id, _values(words[0] if words else "{}", question))
        case "pause":
            return cmd.Pause()
        case "resume":
            return cmd.Resume()
        case "condense":
            return cmd.Condense(clean(" ".join(words)))
        case _:
            return cmd.Interrupt()


def _pending(
    options: argparse.Namespace, state: ConversationState, call_id: str | None
) -> PendingConfirmation:
    """Return the waiting call with that id, or the only one. Raises `UsageError`, which lists
    the waiting calls."""
    waiting = {pending.call.id: pending for pending in state.pending_confirmations}
    if not waiting:
        raise UsageError(
            f"no call of {state.id!r} waits for a decision: the conversation is"
            f" {status_text(state.status)}"
        )
    listed = "; ".join(f"{one_line(id)} {described(one)}" for id, one in waiting.items())
    unknown = f"the call {call_id!r} does not wait for a decision; these do: {listed}"
    several = f"several calls wait; say which with {_again(options, state)} CALL: {listed}"
    return _only(waiting, call_id, unknown, several)


def _question(
    options: argparse.Namespace, state: ConversationState, question_id: str | None
) -> ev.Question:
    """Return the waiting question with that id, or the only one. Raises `UsageError`, which
    lists the waiting questions."""
    waiting = {question.id: question for _, question in state.pending_questions}
    if not waiting:
        raise UsageError(
            f"no call of {state.id!r} asks a question: the conversation is"
            f" {status_text(state.status)}"
        )
    listed = "; ".join(
        f"{one_line(one.id)} {plain(one_line(one.asker))}: {plain(one_line(one.message))}"
        for one in waiting.values()
    )
    unknown = f"the question {question_id!r} does not wait for an answer; these do: {listed}"
    several = f"several questions wait; say which with {_again(options, state)} QUESTION: {listed}"
    return _only(waiting, question_id, unknown, several)


def _only(waiting: Mapping[str, T], id: str | None, unknown: str, several: str) -> T:
    found = list(waiting.values()) if id is None else [waiting[id]] if id in waiting else []
    if len(found) != 1:
        raise UsageError(several if id is None else unknown)
    return found[0]


def _again(options: argparse.Namespace, state: ConversationState) -> str:
    return f"holdfast tell {place_words(options)} {shlex.join([state.id, options.what])}"


def _values(text: str, question: ev.Question) -> dict[str, Any]:
    """Parse and validate the values of a form, typed as JSON."""
    try:
        return complete_answer("the answer", question.schema, read_arguments(text)) or {}
    except ValueError as error:
        raise UsageError(str(error)) from error


def described(pending: PendingConfirmation) -> str:
    """Return a waiting call on one line: its tool, its full arguments and their hash."""
    return (
        f"{plain(one_line(pending.call.name))} {as_json(pending.call.arguments)} (arguments"
        f" {pending.arguments_hash[:12]})"
    )


def _arguments(text: str, pending: PendingConfirmation, state: ConversationState) -> dict[str, Any]:
    """Parse other arguments for a call, and validate them against the tool's schema in the
    journal."""
    try:
        found = read_arguments(text)
        agent = next(
            (event for event in reversed(state.events) if isinstance(event, ev.AgentConfigured)),
            None,
        )
        for tool in agent.tools if agent is not None else ():
            if tool.name == pending.call.name:
                from_json_schema(tool.name, tool.input_schema, untrusted=True)(found)
    except (ToolValidationError, ValueError) as error:
        raise UsageError(f"--arguments: {error}") from error
    return found


def _description(command: cmd.Command) -> str:
    match command:
        case cmd.Approve(call_id, hash, None):
            return f"approve {call_id} (arguments {hash[:12]})"
        case cmd.Approve(call_id, _, arguments):
            return f"approve {call_id} with {as_json(arguments)}"
        case cmd.Reject(call_id, reason):
            return f"reject {call_id}" + (f": {reason}" if reason else "")
        case cmd.Answer(question_id, values):  # without the values, which may be secret
            return f"{'decline' if values is None else 'answer'} {question_id}"
        case _:
            return type(command).__name__.lower()


# --- waiting for the effect ---


class _Effect(NamedTuple):
    """The events of a conversation after `seq`, in which a command's effect is expected."""

    place: Place
    id: str
    command: cmd.Command
    seq: int

    def wait(
        self, console: Console, signals: Signals, status: ConversationStatus, seconds: float
    ) -> Exit:
        """Wait until the journal shows that the command was carried out."""
        if _idle(self.command, status):
            console.notice(
                f"There is nothing to wait for: the conversation is {status_text(status)}.", "dim"
            )
            return Exit.FINISHED
        seq, deadline = self.seq, time.monotonic() + seconds
        while True:
            rest = min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            for event in self.place.follow(self.id, seq, rest):
                seq = event.seq
                if _shows(event, self.command):
                    console.line(f"done: event {seq}")
                    return Exit.FINISHED
                if (other_outcome := _overtaken(event, self.command)) is not None:
                    console.error(f"not done: {other_outcome} (event {seq})")
                    return Exit.FAILED
                if signals.pending:
                    break
            if signals.ending is not None:
                return signals.ending
            if signals.take_interrupt():
                return Exit.INTERRUPTED
            if time.monotonic() >= deadline:
                break
        console.error(
            f"not done within {seconds:g} s. The command stays posted; the process that drives the"
            " conversation, or the next one that opens it, carries it out."
        )
        return Exit.FAILED


def _idle(command: cmd.Command, status: ConversationStatus) -> bool:
    """Return True if a command changes nothing in this status, so that no event could show its
    effect."""
    paused = status is ConversationStatus.PAUSED
    match command:
        case cmd.Pause():
            return paused
        case cmd.Interrupt():
            return status in AT_REST or paused
        case cmd.Resume():
            return not paused and status not in (ConversationStatus.ERROR, ConversationStatus.STUCK)
        case _:
            return False


def _shows(event: ev.AnyEvent, command: cmd.Command) -> bool:
    """Return True if an event is the effect of a command."""
    match command, event:
        case cmd.Send(content), ev.MessageAdded(sender="user"):
            return event.content == content
        case cmd.Answer(question_id, values), ev.DecisionMade(decision="approve" | "reject"):
            return event.question_id == question_id and (event.decision == "reject") == (
                values is None
            )
        case cmd.Approve(call_id, arguments=arguments), ev.DecisionMade(
            decision="approve", question_id=""
        ):
            return event.call_id == call_id and event.arguments == arguments
        case cmd.Reject(call_id, reason), ev.DecisionMade(decision="reject", question_id=""):
            return event.call_id == call_id and event.reason == reason
        case cmd.Pause() | cmd.Interrupt(), ev.StatusChanged():
            return event.status == ConversationStatus.PAUSED
        case cmd.Condense(instructions), ev.HistoryCondensed():
            return event.request == instructions
        case cmd.Resume(), ev.StatusChanged():
            return event.status != ConversationStatus.PAUSED
        case _:
            return False


def _overtaken(event: ev.AnyEvent, command: cmd.Command) -> str | None:
    """Return another outcome of the call or question that a command decides, None if this event
    shows none."""
    if isinstance(command, cmd.Answer):
        match event:
            case ev.DecisionMade(question_id=command.question_id):
                what = "answered" if event.decision == "approve" else "declined"
                return f"the question was {what} by {event.by or 'somebody'}"
            case ev.ToolCallFinished() if command.question_id.startswith(f"{event.call_id}?"):
                return "the call that asked has ended"
            case _:
                return None
    if not isinstance(command, cmd.Approve | cmd.Reject):
        return None
    if getattr(event, "call_id", None) != command.call_id:
        return None
    match event:
        case ev.DecisionMade(decision="approve" | "reject" as decision, question_id=""):
            what = "approved" if event.arguments is None else "approved with other arguments"
            what = "rejected" if decision == "reject" else what
            why = f": {event.reason}" if event.reason else ""
            return f"the call was {what} by {event.by or 'somebody'}{why}"
        case ev.ToolCallFinished():
            return "the call was answered without a decision"
        case _:
            return None
