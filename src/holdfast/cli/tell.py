"""`holdfast tell`: posts a command to a conversation's inbox, whichever process drives it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.render import Line, as_json, plain, read_arguments
from holdfast.cli.screen import Screen
from holdfast.cli.show import found_in, open_place, place_words
from holdfast.cli.signals import Ended, Signals
from holdfast.cli.text import one_line
from holdfast.content import TextContent
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.conversation.state import AT_REST, PendingConfirmation
from holdfast.errors import ToolValidationError
from holdfast.store import SQLiteStore
from holdfast.tools.forms import filled
from holdfast.tools.results import clean
from holdfast.tools.schema import from_json_schema

if TYPE_CHECKING:
    from holdfast.cli.server import Server

_POLL_SECONDS = 0.2  # between two checks for signals
_CALL = re.compile(r"\d+\.\d+")  # a call's id
_QUESTION = re.compile(r"\d+\.\d+\?\d+")  # a question's id


def tell(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Post one command. Raises `UsageError`, `HoldfastError`."""
    screen = Screen(env)
    _check(options)
    with Signals() as signals:
        try:
            if options.words == ["-"] and options.what == "send":
                with signals.prompting():
                    options.words = [_standard_input()]
            return _tell(options, env, screen, signals)
        except Ended as ended:
            return ended.code


def _tell(
    options: argparse.Namespace, env: Mapping[str, str], screen: Screen, signals: Signals
) -> Exit:
    with open_place(options, env) as store:
        id = found_in(store, options.id, options.file).id
        state = ConversationState(id, store.read(id))
        command = _command(options, state)
        posted = store.post(id, command, options.key)
        _print(
            screen,
            (
                f"posted: {_description(command)}"
                if posted
                else f"dropped: another command was posted under the key {options.key!r} before"
            ),
        )
        if not isinstance(store, SQLiteStore):
            _go_on(options, screen, store, id)
            posted = options.key is None  # with a key, it may have been done before
        if options.wait is None:
            return Exit.FINISHED
        return _wait(screen, signals, store, state, command, posted, options.wait)


def _go_on(options: argparse.Namespace, screen: Screen, server: Server, id: str) -> None:
    """Make a server continue after the command, which it carried out at once."""
    if options.what in ("pause", "interrupt"):
        return
    match server.run(id):
        case "paused":
            screen.notice("The conversation is paused; resume continues it.", "dim")
        case "waiting_for_confirmation":
            screen.notice("The conversation waits for a decision.", "dim")
        case _:
            follow = f"holdfast show {' '.join(place_words(options))} {shlex.join([id])} --follow"
            screen.notice(f"The server continues the conversation. Watch it with: {follow}", "dim")


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
    match options.what:
        case "send":
            text = " ".join(options.words)
            if not text.strip():
                raise UsageError("the text is empty")
            return cmd.Send((TextContent(clean(text)),))
        case "approve":
            pending = _pending(options, state, options.words[0] if options.words else None)
            arguments = (
                None if options.arguments is None else _arguments(options.arguments, pending, state)
            )
            return cmd.Approve(pending.call.id, pending.arguments_hash, arguments)
        case "reject":
            words = list(options.words)
            call = words.pop(0) if words and _CALL.fullmatch(words[0]) else None
            return cmd.Reject(_pending(options, state, call).call.id, clean(" ".join(words)))
        case "answer":
            words = list(options.words)
            question = _question(
                options, state, words.pop(0) if words and _QUESTION.fullmatch(words[0]) else None
            )
            if len(words) > 1:
                raise UsageError(f"{words[0]!r} is not a question's id, which looks like 4.0?1")
            return cmd.Answer(
                question.id, _values(words[0], question) if words else _values("{}", question)
            )
        case "decline":
            words = list(options.words)
            question = _question(
                options, state, words.pop(0) if words and _QUESTION.fullmatch(words[0]) else None
            )
            return cmd.Answer(question.id, None, clean(" ".join(words)))
        case "pause":
            return cmd.Pause()
        case "resume":
            return cmd.Resume()
        case "condense":
            return cmd.Condense(clean(" ".join(options.words)))
        case _:
            return cmd.Interrupt()


def _pending(
    options: argparse.Namespace, state: ConversationState, call_id: str | None
) -> PendingConfirmation:
    """Return the waiting call with that id, or the only one. Raises `UsageError`, which lists
    the waiting calls."""
    waiting = state.pending_confirmations
    found = [pending for pending in waiting if call_id in (None, pending.call.id)]
    if len(found) == 1:
        return found[0]
    if not waiting:
        raise UsageError(
            f"no call of {state.id!r} waits for a decision: the conversation is"
            f" {_status(state.status)}"
        )
    listed = "; ".join(f"{one_line(p.call.id)} {described(p)}" for p in waiting)
    if call_id is not None:
        raise UsageError(f"the call {call_id!r} does not wait for a decision; these do: {listed}")
    command = (
        f"holdfast tell {' '.join(place_words(options))} {shlex.join([state.id, options.what])}"
    )
    raise UsageError(f"several calls wait; say which with {command} CALL: {listed}")


def _question(
    options: argparse.Namespace, state: ConversationState, question_id: str | None
) -> ev.Question:
    """Return the waiting question with that id, or the only one. Raises `UsageError`, which
    lists the waiting questions."""
    waiting = [question for _, question in state.pending_questions]
    found = [question for question in waiting if question_id in (None, question.id)]
    if len(found) == 1:
        return found[0]
    if not waiting:
        raise UsageError(
            f"no call of {state.id!r} asks a question: the conversation is {_status(state.status)}"
        )
    listed = "; ".join(
        f"{one_line(one.id)} {plain(one_line(one.asker))}: {plain(one_line(one.message))}"
        for one in waiting
    )
    if question_id is not None:
        raise UsageError(
            f"the question {question_id!r} does not wait for an answer; these do: {listed}"
        )
    command = (
        f"holdfast tell {' '.join(place_words(options))} {shlex.join([state.id, options.what])}"
    )
    raise UsageError(f"several questions wait; say which with {command} QUESTION: {listed}")


def _values(text: str, question: ev.Question) -> dict[str, Any]:
    """Parse and validate the values of a form, typed as JSON."""
    try:
        return filled("the answer", question.schema, read_arguments(text)) or {}
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
            (event for event in reversed(state.events) if isinstance(event, ev.Agent)), None
        )
        for tool in agent.tools if agent is not None else ():
            if tool.name == pending.call.name:
                from_json_schema(tool.name, tool.input_schema, untrusted=True)(found)
    except (ToolValidationError, ValueError) as error:
        raise UsageError(f"--arguments: {error}") from error
    return found


def _description(command: cmd.Command) -> str:
    match command:
        case cmd.Approve(call_id, hash, arguments):
            return f"approve {call_id}" + (
                f" with {as_json(arguments)}"
                if arguments is not None
                else f" (arguments {hash[:12]})"
            )
        case cmd.Reject(call_id, reason):
            return f"reject {call_id}" + (f": {reason}" if reason else "")
        case cmd.Answer(question_id, values):  # without the values, which may be secret
            return f"{'decline' if values is None else 'answer'} {question_id}"
        case _:
            return type(command).__name__.lower()


# --- waiting for the effect ---


def _wait(
    screen: Screen,
    signals: Signals,
    store: SQLiteStore | Server,
    before: ConversationState,
    command: cmd.Command,
    posted: bool,
    seconds: float,
) -> Exit:
    """Wait until the journal shows that the command was carried out."""
    if _idle(command, before.status):
        screen.notice(
            f"There is nothing to wait for: the conversation is {_status(before.status)}.", "dim"
        )
        return Exit.FINISHED
    # A command that was posted earlier may also have been carried out earlier.
    seq = before.last_seq if posted else 0
    deadline = time.monotonic() + seconds
    while True:
        for event in store.follow(
            before.id, seq, min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
        ):
            seq = event.seq
            if _shows(event, command):
                _print(screen, f"done: event {seq}")
                return Exit.FINISHED
            if (other_outcome := _overtaken(event, command)) is not None:
                screen.error(f"not done: {other_outcome} (event {seq})")
                return Exit.FAILED
            if signals.pending:
                break
        if signals.ending is not None:
            return signals.ending
        if signals.take_interrupt():
            return Exit.INTERRUPTED
        if time.monotonic() >= deadline:
            break
    screen.error(
        f"not done within {seconds:g} s. The command stays posted; the process that drives the"
        " conversation, or the next one that opens it, carries it out."
    )
    return Exit.FAILED


def _idle(command: cmd.Command, status: ConversationStatus) -> bool:
    """Return True if a command changes nothing in this status, so that no event could show its
    effect."""
    match command:
        case cmd.Pause():
            return status is ConversationStatus.PAUSED
        case cmd.Interrupt():
            return status in AT_REST or status is ConversationStatus.PAUSED
        case cmd.Resume():
            return status not in (
                ConversationStatus.PAUSED,
                ConversationStatus.ERROR,
                ConversationStatus.STUCK,
            )
        case _:
            return False


def _shows(event: ev.AnyEvent, command: cmd.Command) -> bool:
    """Return True if an event is the effect of a command."""
    match command, event:
        case cmd.Send(content), ev.Message(sender="user"):
            return event.content == content
        case cmd.Answer(question_id, values), ev.Decision(decision="approve" | "reject"):
            return event.question_id == question_id and (event.decision == "reject") == (
                values is None
            )
        case cmd.Approve(call_id, arguments=arguments), ev.Decision(
            decision="approve", question_id=""
        ):
            return event.call_id == call_id and event.arguments == arguments
        case cmd.Reject(call_id, reason), ev.Decision(decision="reject", question_id=""):
            return event.call_id == call_id and event.reason == reason
        case cmd.Pause() | cmd.Interrupt(), ev.Status():
            return event.status == ConversationStatus.PAUSED
        case cmd.Condense(instructions), ev.Condensation():
            return event.request == instructions
        case cmd.Resume(), ev.Status():
            return event.status != ConversationStatus.PAUSED
        case _:
            return False


def _overtaken(event: ev.AnyEvent, command: cmd.Command) -> str | None:
    """Return another outcome of the call or question that a command decides, None if this event
    shows none."""
    if isinstance(command, cmd.Answer):
        match event:
            case ev.Decision(question_id=command.question_id):
                return (
                    f"the question was {'answered' if event.decision == 'approve' else 'declined'}"
                    f" by {event.by or 'somebody'}"
                )
            case ev.ToolResult() if command.question_id.startswith(f"{event.call_id}?"):
                return "the call that asked has ended"
            case _:
                return None
    if (
        not isinstance(command, cmd.Approve | cmd.Reject)
        or getattr(event, "call_id", None) != command.call_id
    ):
        return None
    match event:
        case ev.Decision(decision="approve" | "reject" as decision, question_id=""):
            what = (
                "rejected"
                if decision == "reject"
                else "approved"
                if event.arguments is None
                else "approved with other arguments"
            )
            return f"the call was {what} by {event.by or 'somebody'}" + (
                f": {event.reason}" if event.reason else ""
            )
        case ev.ToolResult():
            return "the call was answered without a decision"
        case _:
            return None


def _status(status: ConversationStatus) -> str:
    return status.value.replace("_", " ")


def _print(screen: Screen, text: str) -> None:
    screen.show([Line("plain", one_line(text))])
