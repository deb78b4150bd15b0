"""`holdfast tell`: posts a command to a conversation's inbox, whichever process drives it."""

from __future__ import annotations

import os
import re
import shlex
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar, cast

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.cli.attachments import attachments, message_of
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import read_standard_input
from holdfast.cli.places import Place, open_place, place_words
from holdfast.cli.render import as_json, last, read_arguments
from holdfast.cli.signals import Signals
from holdfast.cli.text import one_line, plain_line, safe, status_text, styled
from holdfast.content import blocks
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.conversation.state import AT_REST, PendingConfirmation
from holdfast.errors import ToolValidationError
from holdfast.tools.question_forms import complete_answer
from holdfast.tools.results import clean
from holdfast.tools.schema import from_json_schema

T = TypeVar("T")

_POLL_SECONDS = 0.2  # between two checks for signals
ASK_SECONDS = 600.0  # that `tell ask` waits for the answer without --wait
# The largest number of words of a command, and their meaning.
_WORDS = {
    "approve": (1, "one call"),
    "use": (1, "the name of one agent or model"),
    "answer": (2, "one question and the values as one JSON object"),
    **dict.fromkeys(("pause", "resume", "interrupt"), (0, "no text")),
}
_CALL = re.compile(r"\d+\.\d+")  # a call's id
_QUESTION = re.compile(r"\d+\.\d+\?\d+")  # a question's id


def tell(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Post one command. Raises `UsageError`, `HoldfastError`."""
    console = Console(env)
    _check(options)
    with Signals() as signals:
        if options.words == ["-"] and options.what == "send":
            options.words = [read_standard_input(signals, "the text")]
        with closing(open_place(options, env)) as place:
            id = place.find(options.id).id
            state = ConversationState(id, place.read(id))
            return _Tell(options, place, state, console, signals).post()


def _check(options: Namespace) -> None:
    what, words = options.what, options.words
    most, form = _WORDS.get(what, (len(words), ""))
    if len(words) > most or (what == "use" and not words):
        raise UsageError(f"tell {what} takes {form}, not {' '.join(words)!r}")
    if what == "send" and not words:
        raise UsageError("tell send takes the text, or - to read it from standard input")
    if what == "ask" and not "".join(words).strip():
        raise UsageError("tell ask takes the question")
    if options.arguments is not None and what != "approve":
        raise UsageError("--arguments is for approve only")
    if options.attach and what != "send":
        raise UsageError("--attach is for send only")


class _Tell(NamedTuple):
    """A command for one conversation, whose `state` is that before the command."""

    options: Namespace
    place: Place
    state: ConversationState
    console: Console
    signals: Signals

    def post(self) -> Exit:
        """Post the command, and wait for its effect with `--wait`. Raises `UsageError`."""
        options, console, id = self.options, self.console, self.state.id
        command = self._command()
        # Under a key the store also keeps the reason of a refusal.
        key = options.key or (os.urandom(16).hex() if isinstance(command, cmd.Use) else None)
        if isinstance(command, cmd.Ask):
            key = command.aside
        posted = self.place.post(id, command, key)
        outcome = f"posted: {_description(command)}"
        if not posted:
            outcome = f"dropped: another command was posted under the key {options.key!r} before"
        console.line(one_line(outcome))
        if options.what not in ("pause", "interrupt", "rename", "tag", "untag", "ask"):
            self._go_on()
        if options.wait is None and not isinstance(command, cmd.Ask):
            return Exit.FINISHED
        if _idle(command, self.state.status):
            status = status_text(self.state.status)
            console.notice(f"There is nothing to wait for: the conversation is {status}.", "dim")
            return Exit.FINISHED
        # A command that was posted earlier may also have been carried out earlier.
        fresh = posted and (self.place.tells_duplicates or options.key is None)
        return self._wait(command, self.state.last_seq if fresh else 0, key)

    def _go_on(self) -> None:
        """Have a server continue after the command, which it carried out at once."""
        match self.place.run(self.state.id):
            case "":
                return
            case "paused":
                text = "The conversation is paused; resume continues it."
            case "waiting_for_confirmation":
                text = "The conversation waits for a decision."
            case _:
                words = f"{place_words(self.options)} {shlex.join([self.state.id])}"
                follow = f"holdfast show {words} --follow"
                text = f"The server continues the conversation. Watch it with: {follow}"
        self.console.notice(text, "dim")

    def _command(self) -> cmd.Command:
        options, words = self.options, list[str](self.options.words)
        match options.what:
            case "send":
                text = " ".join(words)
                if not text.strip():
                    raise UsageError("the text is empty")
                # The message is recognised by its id, even if it is masked or a hook changes it. A
                # message that is posted again under its key has the same id.
                key = os.urandom(16).hex() if options.key is None else options.key
                event_id = sha256(f"{self.state.id}\n{key}\n{clean(text)}".encode()).hexdigest()
                message = message_of(clean(text), attachments(options.attach))
                return cmd.Send(blocks(message), event_id[:32])
            case "approve":
                pending = self._pending(words[0] if words else None)
                arguments = None if options.arguments is None else self._arguments(pending)
                return cmd.Approve(pending.call.id, pending.arguments_hash, arguments)
            case "reject":
                call = words.pop(0) if words and _CALL.fullmatch(words[0]) else None
                return cmd.Reject(self._pending(call).call.id, clean(" ".join(words)))
            case "answer" | "decline":
                question_id = words.pop(0) if words and _QUESTION.fullmatch(words[0]) else None
                question = self._question(question_id)
                if options.what == "decline":
                    return cmd.Answer(question.id, None, clean(" ".join(words)))
                if len(words) > 1:
                    raise UsageError(f"{words[0]!r} is not a question's id, which looks like 4.0?1")
                return cmd.Answer(question.id, _values(words[0] if words else "{}", question))
            case "ask":
                # asked again under its key, it is the same question
                key = None if options.key is None else f"{self.state.id}\n{options.key}"
                aside = os.urandom(8).hex() if key is None else sha256(key.encode()).hexdigest()
                return cmd.Ask(clean(" ".join(words)), aside[:16])
            case "pause":
                return cmd.Pause()
            case "resume":
                return cmd.Resume()
            case "condense":
                return cmd.Condense(clean(" ".join(words)))
            case "rename":
                return cmd.Label(clean(" ".join(words)))
            case "tag":
                return cmd.Label(add=tuple(map(clean, words)))
            case "untag":
                return cmd.Label(remove=tuple(map(clean, words)))
            case "use":
                return cmd.Use(clean(words[0]))
            case _:
                return cmd.Interrupt()

    def _pending(self, id: str | None) -> PendingConfirmation:
        waiting = {one.call.id: (one, _described(one)) for one in self.state.pending_confirmations}
        return self._only(waiting, id, "call", "a decision")

    def _question(self, id: str | None) -> ev.Question:
        waiting = {
            one.id: (one, f"{plain_line(one.asker)}: {plain_line(one.message)}")
            for _, one in self.state.pending_questions
        }
        return self._only(waiting, id, "question", "an answer")

    def _only(
        self, waiting: Mapping[str, tuple[T, str]], id: str | None, what: str, awaited: str
    ) -> T:
        """Return the entry with this id, or the only one. Raises `UsageError`, which lists all."""
        if not waiting:
            does = f"waits for {awaited}" if what == "call" else "asks a question"
            status = status_text(self.state.status)
            raise UsageError(f"no call of {self.state.id!r} {does}: the conversation is {status}")
        listed = "; ".join(f"{one_line(key)} {text}" for key, (_, text) in waiting.items())
        if id is None and len(waiting) > 1:
            words = shlex.join([self.state.id, self.options.what])
            again = f"holdfast tell {place_words(self.options)} {words} {what.upper()}"
            raise UsageError(f"several {what}s wait; say which with {again}: {listed}")
        if id is not None and id not in waiting:
            unknown = f"the {what} {id!r} does not wait for {awaited}"
            raise UsageError(f"{unknown}; these do: {listed}")
        return waiting[next(iter(waiting)) if id is None else id][0]

    def _arguments(self, pending: PendingConfirmation) -> dict[str, Any]:
        """Parse other arguments for a call. The tool's schema in the journal validates them."""
        try:
            arguments = read_arguments(self.options.arguments)
            agent = last(self.state.events, ev.AgentConfigured)
            for tool in agent.tools if agent is not None else ():
                if tool.name == pending.call.name:
                    from_json_schema(tool.name, tool.input_schema, untrusted=True)(arguments)
        except (ToolValidationError, ValueError) as error:
            raise UsageError(f"--arguments: {error}") from error
        return arguments

    def _wait(self, command: cmd.Command, seq: int, key: str | None) -> Exit:
        """Wait until the events after `seq` show that the command was carried out."""
        wait: float | None = self.options.wait
        seconds = ASK_SECONDS if wait is None else wait
        deadline = time.monotonic() + seconds
        while True:
            rest = min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
            for event in self.place.follow(self.state.id, seq, rest):
                seq = event.seq
                if isinstance(event, ev.AsideAnswered) and _shows(event, command):
                    return self._answered(event)
                if _shows(event, command):
                    self.console.line(f"done: event {seq}")
                    return Exit.FINISHED
                if (other_outcome := _overtaken(event, command)) is not None:
                    self.console.error(f"not done: {other_outcome} (event {seq})")
                    return Exit.FAILED
                if self.signals.pending:
                    break
            if key is not None and (refused := self.place.refusal(self.state.id, key)):
                self.console.error(f"not done: {one_line(refused)}")
                return Exit.FAILED
            if self.signals.ending is not None:
                return self.signals.ending
            if self.signals.take_interrupt():
                return Exit.INTERRUPTED
            if time.monotonic() >= deadline:
                break
        self.console.error(
            f"not done within {seconds:g} s. The command stays posted; the process that drives the"
            " conversation, or the next one that opens it, carries it out."
        )
        return Exit.FAILED

    def _answered(self, event: ev.AsideAnswered) -> Exit:
        """Print the outcome of a question aside."""
        if event.error:
            self.console.error(one_line(f"{event.error}: {event.failed}"))
            return Exit.FAILED
        self.console.show([*styled("plain", safe(event.text).strip("\n"))])
        return Exit.FINISHED


def _values(text: str, question: ev.Question) -> dict[str, Any]:
    try:
        return complete_answer("the answer", question.schema, read_arguments(text)) or {}
    except ValueError as error:
        raise UsageError(str(error)) from error


def _described(pending: PendingConfirmation) -> str:
    call, hash = pending.call, pending.arguments_hash[:12]
    return f"{plain_line(call.name)} {as_json(call.arguments)} (arguments {hash})"


def _description(command: cmd.Command) -> str:
    match command:
        case cmd.Approve(call_id, hash, None):
            return f"approve {call_id} (arguments {hash[:12]})"
        case cmd.Approve(call_id, _, arguments):
            return f"approve {call_id} with {as_json(arguments)}"
        case cmd.Reject(call_id, reason):
            return f"reject {call_id}" + (f": {reason}" if reason else "")
        case cmd.Use(agent):
            return f"use {agent}"
        case cmd.Answer(question_id, values):  # without the values, which may be secret
            return f"{'decline' if values is None else 'answer'} {question_id}"
        case _:
            return type(command).__name__.lower()


def _idle(command: cmd.Command, status: ConversationStatus) -> bool:
    """Return True if the command changes nothing in this status, so that no event follows."""
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
    match command, event:
        case cmd.Send(event_id=id), ev.MessageAdded():
            return event.id == id
        case cmd.Answer(id, values), ev.DecisionMade(decision="approve" | "reject" as decision):
            return event.question_id == id and (decision == "reject") == (values is None)
        case cmd.Approve(id, _, arguments), ev.DecisionMade(decision="approve", question_id=""):
            return event.call_id == id and _alike(event.arguments, arguments)
        case cmd.Reject(id, reason), ev.DecisionMade(decision="reject", question_id=""):
            return event.call_id == id and _alike(event.reason, reason)
        case cmd.Pause() | cmd.Interrupt(), ev.StatusChanged():
            return event.status == ConversationStatus.PAUSED
        case cmd.Condense(instructions), ev.HistoryCondensed():
            return event.request == instructions
        case cmd.Label(title, add, remove), ev.ConversationLabelled():
            labels = [event.title, [*event.add], [*event.remove]]
            return _alike(labels, [title, [*add], [*remove]])
        case cmd.Ask(_, aside), ev.AsideAnswered():
            return event.aside == aside
        case cmd.Use(agent), ev.NoteRecorded(about=ev.AGENT_CHOICE, details=details):
            return str(details.get("agent")).endswith(agent.rstrip("#"))
        case cmd.Use(), ev.AgentConfigured():  # an agent that the server publishes
            return True
        case cmd.Resume(), ev.StatusChanged(status=status):
            return status != ConversationStatus.PAUSED
        case _:
            return False


def _alike(journaled: Any, posted: Any) -> bool:
    """Return True if two values are equal, apart from texts in which a secret is masked."""
    if isinstance(journaled, str) and "<secret:" in journaled:
        return isinstance(posted, str)
    if isinstance(journaled, dict) and isinstance(posted, dict):
        values = cast("tuple[dict[str, Any], dict[str, Any]]", (journaled, posted))
        return len(values[0]) == len(values[1]) and _alike(*(list(one.values()) for one in values))
    if isinstance(journaled, list) and isinstance(posted, list):
        items = cast("tuple[list[Any], list[Any]]", (journaled, posted))
        return len(items[0]) == len(items[1]) and all(map(_alike, *items))
    return journaled == posted


def _overtaken(event: ev.AnyEvent, command: cmd.Command) -> str | None:
    """Return another outcome of the command's call or question, or None."""
    match command, event:
        case cmd.Send(), ev.NoteRecorded() if (
            event.about.startswith("hook:") and event.details.get("on") == "message"
        ):
            return f"a hook refused the message: {event.text}"
        case cmd.Answer(id), ev.DecisionMade() if event.question_id == id:
            what = "answered" if event.decision == "approve" else "declined"
            return f"the question was {what} by {event.by or 'somebody'}"
        case cmd.Answer(id), ev.ToolCallFinished() if id.startswith(f"{event.call_id}?"):
            return "the call that asked has ended"
        case (
            cmd.Approve(id) | cmd.Reject(id),
            ev.DecisionMade(decision="approve" | "reject" as decision, question_id=""),
        ) if event.call_id == id:
            what = "approved" if event.arguments is None else "approved with other arguments"
            what = "rejected" if decision == "reject" else what
            why = f": {event.reason}" if event.reason else ""
            return f"the call was {what} by {event.by or 'somebody'}{why}"
        case cmd.Approve(id) | cmd.Reject(id), ev.ToolCallFinished() if event.call_id == id:
            return "the call was answered without a decision"
        case _:
            return None
