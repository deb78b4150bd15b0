"""`HookPoints`: the places at which a conversation asks its agent's hooks, and the events that
record their answers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import asdict, replace

from holdfast import events as ev
from holdfast.agent.additions import Addition, Situation
from holdfast.agent.agent import Agent
from holdfast.agent.hooks import (
    Condensing,
    Ending,
    Incoming,
    Starting,
    Stopping,
    addition,
    changed_answer,
    describe_answer,
    describe_model_call,
    describe_stop,
    was_added_since,
)
from holdfast.commands import Send
from holdfast.content import Content, ToolResult, blocks
from holdfast.conversation.budget import fair
from holdfast.conversation.goals import StopObjection, goal_objection
from holdfast.conversation.journal import Journal
from holdfast.conversation.message_content import checked_content
from holdfast.conversation.run_context import RunContext
from holdfast.errors import (
    ConfigurationError,
    ConversationClosed,
    GoalMissed,
    HoldfastError,
    HookDenied,
)
from holdfast.llm.completion import Completion
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.context import ChildRequest
from holdfast.tools.hook_answers import HookAnswer, HookFailed
from holdfast.tools.hooks import HOOK, BoundHook

if TYPE_CHECKING:
    from holdfast.conversation.children import Children
    from holdfast.conversation.conversation import Conversation
    from holdfast.conversation.hosting import Hosting

MAX_DENIALS = 3  # denials in a row of an answer
DENIED = "denied"  # the stop reason of a denied answer
MIN_END_SECONDS = 0.1  # seconds that end hooks have at least

HELD_BACK = "Your answer was not accepted{reason} It is not shown here. Answer again."
GO_ON = "The work is not done yet."


class HookNote(msgspec.Struct, frozen=True):
    """A note to journal about a hook."""

    hook: str
    text: str
    details: dict[str, Any] = {}

    def write(self, journal: Journal) -> None:
        """Write the note. Only within a transaction."""
        journal.add(
            ev.NoteRecorded, about=f"hook:{self.hook}", text=self.text, details=self.details
        )


class HookedMessage(msgspec.Struct, frozen=True):
    """A `Send` command whose message the hooks have passed, with their additions and notes."""

    content: tuple[Content, ...]
    event_id: str
    sender: str
    added: tuple[Addition, ...] = ()
    notes: tuple[HookNote, ...] = ()

    def write(self, journal: Journal) -> ev.MessageAdded:
        """Add the message, and what follows it; return the message."""
        message = journal.add(
            ev.MessageAdded, self.event_id, content=self.content, sender=self.sender
        )
        for one in self.added:
            if one.about not in journal.fold.own_messages.seqs:
                journal.tell_model(one.content, one.about)
        for note in self.notes:
            note.write(journal)
        return message


class ModelAnswer(msgspec.Struct, frozen=True):
    """An answer of the model before it is journaled.

    `based_on` is the last seq that its request contained, `duration` is in seconds, and `token`
    cancels its calls. `notes` say what hooks changed.
    """

    completion: Completion
    based_on: int
    duration: float
    token: Cancellation
    notes: tuple[HookNote, ...] = ()

    def fields(self, agent: Agent) -> dict[str, Any]:
        """Return the fields of `AssistantReplied` but its calls. Asks the model for a price."""
        completion = self.completion
        usage, cost = fair(completion.usage, completion.cost)
        if cost is None and agent.limits.cost is not None:
            cost = agent.llm.cost(usage)
        fields = asdict(completion)
        if type(completion) is not Completion:  # a custom model may return a subclass
            fields = {name: fields[name] for name in Completion.__struct_fields__}
        del fields["calls"]
        more = {"based_on": self.based_on, "duration": self.duration}
        return {**fields, "usage": usage, "cost": cost, **more}


class _HookChildren(msgspec.Struct, frozen=True):
    """The children of hooks that are not around a call. Their ids derive from the place, a digest
    of the subject, and the `moment` ("" for the last event that matters). So the same question
    finds the same child after a crash, and another question never finds it."""

    _journal: Journal
    _children: Callable[[], Children]
    _on: str
    _describe: Callable[[], dict[str, Any]]
    _moment: str

    def spawn(self, context: ToolContext, request: ChildRequest) -> Conversation:
        """See `ToolContext.spawn`."""
        journal = self._journal
        with journal.lock:
            tail = () if self._moment else reversed(journal.tail)
            seq = next((event.seq for event in tail if not isinstance(event, _PASSING)), 0)
        subject = self._moment.encode() + msgspec.json.encode(self._describe())
        digest = hashlib.sha256(subject).hexdigest()[:12]
        hook_context = copy(context)
        hook_context.call_id = f"hook-{self._on}-{seq}-{digest}"
        return self._children().spawn(hook_context, request)


# Events that may be written between a hook's question and its repetition after a crash.
_PASSING = (ev.NoteRecorded, ev.StatusChanged, ev.ErrorRecorded, ev.AgentConfigured)


class HookPoints(ObjectStruct):
    """The hooks of one open conversation. Unless stated otherwise a method runs user code, so that
    its caller must not hold the journal's lock."""

    _context: RunContext
    _family: Hosting  # weak: makes the children of hooks
    _closed: Cancellation | None = None  # cancels waits that do not belong to the run
    _started: bool = False
    # Each question is an attempt of its own: its unnamed children have the ids that they had when
    # it was asked before.
    _attempts: count[int] = msgspec.field(default_factory=lambda: count(1))
    _additions: tuple[Addition, ...] = ()  # of the start hooks, for the next request

    def _ask(
        self,
        bound: BoundHook,
        cancelled: Cancellation,
        subject: msgspec.Struct,
        failure: str,
        children: Callable[[], Children] | None = None,
        describe: Callable[[Any], dict[str, Any]] = asdict,
    ) -> HookAnswer:
        """Return the answer of a hook that can change nothing. Raises `HookDenied`."""
        hooked = self._context.agent.hooked
        assert hooked is not None
        context = self._context_of(cancelled, bound.on, describe, subject, children)
        return hooked.ask(bound, context, describe, lambda _: False, subject, failure)

    def _context_of(
        self,
        cancelled: Cancellation,
        on: str,
        describe: Callable[[Any], dict[str, Any]],
        subject: object,
        children: Callable[[], Children] | None = None,
        moment: str = "",
    ) -> ToolContext:
        """Return the context of a hook. `children` makes its children, those of the conversation by
        default. `moment` is the id of the judged object; "" for the present state."""
        context, journal = self._context, self._context.journal
        spawns = _HookChildren(
            journal, children or self._family.children, on, partial(describe, subject), moment
        )
        return ToolContext(
            journal.id,
            attempt=next(self._attempts),
            cancelled=cancelled,
            runtime=context.runtime,
            mark=journal.process_environment,
            llm=context.llm(),
            outputs=journal.output,
            spawns=lambda: spawns,
            notes=context.note,
        )

    # --- beginning and end ---

    def start(self) -> None:
        """Call the start hooks once, when this process begins to drive the conversation."""
        context, hooked = self._context, self._context.agent.hooked
        if hooked is None or self._started:
            return
        self._started = True
        with context.journal.lock:
            token, subject = context.token, Starting(context.journal.fold.agent is not None)
        additions: list[Addition] = []
        for bound in hooked.start:
            try:
                answer = self._ask(bound, token, subject, "The conversation began")
            except HookDenied as error:
                if not context.closing:
                    with context.journal as journal:
                        journal_denial(journal, error)
                continue
            if answer.add:
                additions.append(addition(bound.name, answer.add))
        self._additions = tuple(additions)

    def cancel_messages(self) -> None:
        if self._closed is not None:
            self._closed.cancel()

    def end(self, deadline: float) -> None:
        """Call the end hooks of a started conversation, until `deadline` (monotonic seconds)."""
        context, hooked = self._context, self._context.agent.hooked
        if not self._started or hooked is None or not hooked.end or context.failure is not None:
            return
        self._started = False
        token, subject = Cancellation(), Ending(context.journal.fold.status.value)
        failed: list[HookDenied] = []
        hook_children: list[Children] = []  # those of the conversation are closed already

        def children() -> Children:
            hook_children[:] = hook_children or [self._family.new_children()]
            return hook_children[0]

        def ask_all() -> None:
            for bound in hooked.end:
                try:
                    self._ask(bound, token, subject, "The conversation was closed", children)
                except HookDenied as error:
                    failed.append(error)
                if token:
                    return

        name = f"holdfast-end-{context.journal.id}"
        thread = threading.Thread(target=ask_all, name=name, daemon=True)
        thread.start()
        thread.join(max(MIN_END_SECONDS, deadline - time.monotonic()))
        for one in hook_children:
            one.close(deadline)
        if thread.is_alive():
            token.cancel()
            thread.join(0.5)  # seconds that a command's process group needs to end
            text = "The conversation was closed: its end hooks did not return in time"
            late = hooked.end[min(len(failed), len(hooked.end) - 1)]
            failed.append(HookDenied(text, late.name, "end", True))
        if failed:
            with suppress(HoldfastError), context.journal as journal:  # the lease may be lost
                for error in failed:
                    journal_denial(journal, error)

    # --- a message ---

    @property
    def asks_about_messages(self) -> bool:
        """True if the agent has hooks on messages."""
        hooked = self._context.agent.hooked
        return hooked is not None and bool(hooked.message)

    def check_message(self, command: Send) -> HookedMessage:
        """Return a message after the agent's hooks.

        Raises `HookDenied`, or `ConversationClosed` if the conversation closes meanwhile.
        """
        hooked, sender = self._context.agent.hooked, command.sender
        content = checked_content(command.content)
        if hooked is None or not hooked.message:
            return HookedMessage(content, command.event_id, sender)
        with self._context.journal.lock:
            self._context.check_open()  # a close that came before cancels no token of this message
            token = self._closed = self._closed or Cancellation()
        self._check_closed(token)
        what, moment = (
            "The message was not sent",
            command.event_id or self._context.journal.new_id(),
        )
        added: list[Addition] = []
        notes: list[HookNote] = []
        for bound in hooked.message:
            try:
                incoming = Incoming(content, sender)
                context = self._context_of(token, "message", _message_json, incoming, moment=moment)
                answer = hooked.ask(bound, context, _message_json, _is_content, incoming, what)
                new_content = content if answer.change is None else _checked_change(answer.change)
                if answer.deny is not None:
                    raise hooked.denied(bound, answer, what)
            except HookDenied:
                self._check_closed(token)
                raise
            except (ConfigurationError, msgspec.ValidationError, ValueError, TypeError) as error:
                self._check_closed(token)
                text = f"{what}: its hook {bound.name} returned invalid content: {error}"
                raise HookDenied(hooked.blot(text), bound.name, "message", True) from error
            if new_content != content:
                content = new_content
                notes.append(HookNote(bound.name, "changed the message"))
            if answer.add:
                added.append(addition(bound.name, answer.add))
        return HookedMessage(content, command.event_id, sender, tuple(added), tuple(notes))

    def _check_closed(self, token: Cancellation) -> None:
        if token:
            raise ConversationClosed(
                f"Conversation {self._context.journal.id!r} was closed before its hooks had passed"
                " the message."
            )

    # --- the model ---

    @property
    def adds(self) -> bool:
        """True if `before_model` might return an addition. Runs no user code."""
        hooked = self._context.agent.hooked
        return bool(self._additions) or (hooked is not None and bool(hooked.before_model))

    def before_model(self, situation: Situation) -> list[Addition]:
        """Return the additions before a model call and at the start. Raises `HookDenied`."""
        hooked, last = self._context.agent.hooked, self._context.journal.fold.assistant
        answered = 0 if last is None else last.seq
        additions = [
            one
            for one in self._additions
            if not was_added_since(one.about[5:].rpartition("#")[0], situation, answered)
        ]
        self._additions = ()
        if hooked is not None and hooked.before_model:
            context = self._context_of(situation.cancelled, "model", describe_model_call, situation)
            additions += hooked.additions(situation, context, answered)
        return additions

    def after_model(self, answer: ModelAnswer) -> ModelAnswer | None:
        """Return the answer after the hooks; None for a denied one, which is journaled here."""
        hooked, tools = self._context.agent.hooked, self._context.agent.tools
        if hooked is None or not hooked.after_model:
            return answer
        completion = answer.completion
        calls = tools.with_canonical_names(completion.calls)
        if calls != completion.calls:
            completion = replace(completion, calls=calls)
        notes: list[HookNote] = []
        what = "The model's answer was held back"
        for bound in hooked.after_model:
            subject = completion
            context = self._context_of(answer.token, "answer", describe_answer, subject)
            try:
                hook_answer = hooked.ask(bound, context, describe_answer, _is_answer, subject, what)
                if hook_answer.change is not None:
                    try:
                        completion, fields = changed_answer(completion, hook_answer.change)
                    except HookFailed as error:
                        text = hooked.blot(f"{what}: its hook {bound.name} {error}")
                        raise HookDenied(text, bound.name, "model", True) from error
                    if fields:
                        text = f"changed the model's answer: {', '.join(fields)}"
                        notes.append(HookNote(bound.name, text))
            except HookDenied as error:
                self._hold_back(answer, completion, bound.name, "a check of it failed", error)
                return None
            if hook_answer.deny is not None:
                self._hold_back(answer, completion, bound.name, hook_answer.deny)
                return None
        return replace(answer, completion=completion, notes=tuple(notes))

    def _hold_back(
        self,
        answer: ModelAnswer,
        completion: Completion,
        name: str,
        reason: str,
        error: HookDenied | None = None,
    ) -> None:
        """Journal a denied answer without its content, and the reason for the model."""
        blank = Completion(
            usage=completion.usage,
            stop_reason=DENIED,
            model=completion.model,
            wire=completion.wire,
            cost=completion.cost,
            request_hash=completion.request_hash,
            route=completion.route,
            host=completion.host,
        )
        fields = replace(answer, completion=blank).fields(self._context.agent)
        with self._context.journal as journal:
            if answer.token:
                return  # treated like a cancelled model call
            denials = journal.fold.hooks.denials + 1
            journal.add(ev.AssistantReplied, **fields)
            text = HELD_BACK.format(reason=f": {reason.rstrip('.')}." if reason else ".")
            journal.tell_model(text, f"hook:{name}@model")
            if error is not None:
                journal_denial(journal, error)
            elif denials >= MAX_DENIALS:
                error = HookDenied(
                    f"The model's answers were held back {denials} times in a row: their hook"
                    f" {name} denied them{f': {reason}' if reason else ''}",
                    name,
                    "model",
                )
            if error is not None:
                self._context.write_error(error)

    # --- the end of a run ---

    def objection(self) -> StopObjection | None:
        """Return the reason why the run may not finish; None if it may."""
        context, journal = self._context, self._context.journal
        goal, hooked = context.agent.goal, context.agent.hooked
        hooks = () if hooked is None else hooked.stop
        if not hooks and goal is None:
            return None
        with journal.lock:
            token, last = context.token, journal.fold.assistant
            read_events = partial(journal.events_until, journal.fold.last_seq)
            text = "" if last is None else last.text
            subject = Stopping(text, journal.fold.hooks.stops, read_events)
        for bound in hooks:
            try:
                answer = self._ask(
                    bound, token, subject, "The run is not finished", describe=describe_stop
                )
            except HookDenied as error:
                return StopObjection(bound.name, "", error)
            if answer.deny is not None:
                return StopObjection(bound.name, answer.deny)
        if goal is None:
            return None
        tools = copy(self._context_of(token, "stop", describe_stop, subject))
        # the judged answer's, so that a judge's child is found again after a crash
        tools.call_id = f"{0 if last is None else last.seq}.goal"
        tools.spawns = self._family.children
        return goal_objection(context, goal, subject, tools)

    def journal_objection(self, objection: StopObjection) -> bool:
        """Journal an objection, within a transaction; return True if the run continues."""
        journal = self._context.journal
        if self._context.closing:
            return True  # asked again when the conversation is opened
        if objection.error is not None:
            if isinstance(objection.error, HookDenied):
                journal_denial(journal, objection.error)
            self._context.write_error(objection.error)
            return True
        times = journal.fold.hooks.stops
        if not objection.about and times >= self._context.agent.stop_denials:
            text = f"denied the end of the run {times + 1} times in a row and was overruled"
            HookNote(objection.hook, text, {"reason": objection.reason}).write(journal)
            return False
        about = objection.about or f"hook:{objection.hook}@stop"
        journal.tell_model(objection.reason or GO_ON, about)
        return True

    @property
    def end_is_open(self) -> bool:
        """True if hooks must still be asked about the end of the run."""
        fold, agent = self._context.journal.fold, self._context.agent
        if fold.error is not None and fold.error.error == HookDenied.__name__:
            return fold.error.details.get("on") == "stop"
        if fold.error is not None and fold.error.error == GoalMissed.__name__:
            return agent.goal is not None
        stops = agent.goal is not None or (agent.hooked is not None and bool(agent.hooked.stop))
        return stops and fold.status == "paused" and fold.run.steps > 0

    # --- a condensation ---

    def before_condensation(
        self, reason: str, instructions: str, token: Cancellation
    ) -> tuple[str, str]:
        """Return a hook's refusal, "" for none, and the instructions with additions."""
        hooked, journal = self._context.agent.hooked, self._context.journal
        if hooked is None or not hooked.condensation:
            return "", instructions
        with journal.lock:
            tokens = journal.fold.measure(journal.tail).tokens
        what = "Nothing was left out"
        for bound in hooked.condensation:
            try:
                answer = self._ask(bound, token, Condensing(reason, instructions, tokens), what)
            except HookDenied as error:
                if not token:
                    with journal:
                        journal_denial(journal, error)
                return str(error), instructions
            if answer.deny is not None:
                return str(hooked.denied(bound, answer, what)), instructions
            if answer.add:
                instructions = f"{instructions}\n\n{answer.add}" if instructions else answer.add
                text = "added to the instructions of a condensation"
                with journal:
                    HookNote(bound.name, text, {"instructions": answer.add}).write(journal)
        return "", instructions


def journal_denial(journal: Journal, error: HookDenied) -> None:
    """Journal that a hook failed, or denied something that leaves no other trace."""
    HookNote(error.hook, str(error), {"on": error.on, "failed": error.failed}).write(journal)


def journal_failed_hook(journal: Journal, result: ToolResult) -> None:
    report: Any = result.meta.get(HOOK)
    if isinstance(report, dict) and cast("dict[str, Any]", report).get("failed"):
        name = str(cast("dict[str, Any]", report).get("name", ""))
        HookNote(name, result.text[:2000], {"on": "tool", "failed": True}).write(journal)


def _message_json(subject: Incoming) -> dict[str, Any]:
    return {"sender": subject.sender, "text": subject.text, "content": subject.content}


def _is_content(value: Any) -> bool:
    return not isinstance(value, bytes | int | float | bool)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | Completion | dict)


def _checked_change(change: Any) -> tuple[Content, ...]:
    """Return the content that a hook put in place of a message's."""
    if isinstance(change, dict) and "type" not in change:  # given by a command hook
        fields = cast("dict[str, Any]", change)
        if "text" not in fields and "content" not in fields:
            raise ConfigurationError("a changed message has text or content")
        content = (
            blocks(fields["text"])
            if "text" in fields
            else msgspec.convert(fields["content"], tuple[Content, ...])
        )
    else:
        content = blocks(cast("Any", change))
    content = checked_content(content)
    ev.check_content(content)
    return content
