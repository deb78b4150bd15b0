"""The places in the loop at which a conversation asks its agent's hooks, and the events that
record their answers."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.additions import Addition, Situation
from holdfast.agent.hooks import (
    AgentHooks,
    Condensing,
    Ending,
    Incoming,
    Starting,
    Stopping,
    addition,
    answer_told,
    changed_answer,
    told_since,
)
from holdfast.content import Content, TextContent, blocks
from holdfast.conversation.message_content import checked_content
from holdfast.errors import ConfigurationError, ConversationClosed, HoldfastError, HookDenied
from holdfast.llm.completion import Completion
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.hook_answers import Failed, Said
from holdfast.tools.hooks import HOOK, Bound

if TYPE_CHECKING:
    from holdfast.content import ToolResult
    from holdfast.conversation.driver import Driver
    from holdfast.conversation.journal import Journal

MAX_DENIALS = 3  # denials in a row of an answer, or of the end of a run
DENIED = "denied"  # the stop reason of a denied answer
MIN_END_SECONDS = 0.1  # seconds that end hooks have at least

HELD_BACK = "Your answer was not accepted{reason} It is not shown here. Answer again."
GO_ON = "The work is not done yet."


class HookNote(NamedTuple):
    """A note to journal about a hook."""

    hook: str
    text: str
    details: dict[str, Any] = {}

    def write(self, journal: Journal) -> None:
        """Add the note. Within a transaction."""
        journal.add(ev.Note, about=f"hook:{self.hook}", text=self.text, details=self.details)


class HookedMessage(NamedTuple):
    """A message after its hooks, with their additions and notes."""

    content: tuple[Content, ...]
    added: tuple[Addition, ...] = ()
    notes: tuple[HookNote, ...] = ()

    def write(self, journal: Journal) -> None:
        """Add the additions and notes that follow the message. Within its transaction."""
        for one in self.added:
            if one.about not in journal.fold.abouts:
                journal.add(ev.Message, content=one.content, sender="holdfast", about=one.about)
        for note in self.notes:
            note.write(journal)


class StopObjection(NamedTuple):
    """The reason why a run may not finish: a hook's objection, or the error of a failed hook."""

    hook: str
    reason: str
    error: HookDenied | None = None


class HookState:
    """The state of one open conversation's hooks."""

    __slots__ = ("closing", "context", "hearing", "said", "started")

    def __init__(self) -> None:
        self.closing = Cancellation()  # cancels waits that do not belong to the run
        # serialises the threads that drain the inbox while hooks judge a message
        self.hearing = threading.RLock()
        self.started = False
        # the last context handed out; reused while its cancellation is the same
        self.context: ToolContext | None = None
        self.said: tuple[Addition, ...] = ()  # additions of the start hooks, for the next request


def hooking(driver: Driver) -> HookState:
    """Return the hook state of the conversation, created at the first use."""
    found = driver.hooking
    if found is None:
        with driver.journal.changed:
            found = driver.hooking = driver.hooking or HookState()
    return found


def _context(driver: Driver, cancelled: Cancellation) -> ToolContext:
    mine = hooking(driver)
    found = mine.context
    llm = driver.calls.llm()
    if found is None or found.cancelled is not cancelled or found.llm is not llm:
        journal = driver.journal
        found = mine.context = ToolContext(
            journal.id,
            "",
            1,
            cancelled,
            driver.calls.runtime,
            mark=journal.process_environment,
            llm=llm,
            outputs=journal.output,
        )
    return found


def journal_denial(journal: Journal, error: HookDenied) -> None:
    """Journal that a hook failed, or denied something that leaves no other trace. Within a
    transaction."""
    HookNote(error.hook, str(error), {"on": error.on, "failed": error.failed}).write(journal)


# --- a message ---


def message_lock(driver: Driver, command: object) -> AbstractContextManager[object]:
    """Return a lock under which hooks are asked once about a message that several threads find
    in the inbox."""
    hooked = driver.agent.hooked
    if hooked is None or not hooked.message:
        return nullcontext()
    from holdfast.commands import Send  # loaded late: few conversations use an inbox

    return hooking(driver).hearing if isinstance(command, Send) else nullcontext()


def apply_message_hooks(
    driver: Driver, content: tuple[Content, ...], sender: str = "user"
) -> HookedMessage | HookDenied:
    """Return a message after the agent's hooks, or the denial.

    Runs user code, so the caller must not hold the lock. Raises `ConversationClosed` if the
    conversation closes meanwhile.
    """
    hooked = driver.agent.hooked
    if hooked is None or not hooked.message:
        return HookedMessage(content)
    token = hooking(driver).closing
    if token:
        raise _closed(driver)
    context = _context(driver, token)
    what = "The message was not sent"
    added: list[Addition] = []
    notes: list[HookNote] = []
    for bound in hooked.message:
        subject = Incoming(content, sender)
        try:
            said = hooked.ask(bound, context, _message_told, _is_content, subject, what)
            changed = content if said.change is None else checked_content(_content(said.change))
            if said.change is not None:
                ev.check_content(changed)
        except HookDenied as error:
            found: HookDenied = error
        except (ConfigurationError, msgspec.ValidationError, ValueError, TypeError) as error:
            text = hooked.blot(f"{what}: its hook {bound.name} returned invalid content: {error}")
            found = HookDenied(text, bound.name, "message", True)
        else:
            if said.deny is None:
                if changed != content:
                    content = changed
                    notes.append(HookNote(bound.name, "changed the message"))
                if said.add:
                    added.append(addition(bound.name, said.add))
                continue
            found = hooked.denied(bound, said, what)
        if token:
            raise _closed(driver)
        return found
    return HookedMessage(content, tuple(added), tuple(notes))


def _closed(driver: Driver) -> ConversationClosed:
    return ConversationClosed(
        f"Conversation {driver.journal.id!r} was closed before its hooks had passed the message."
    )


def _message_told(subject: Incoming) -> dict[str, Any]:
    return {"sender": subject.sender, "text": subject.text, "content": subject.content}


def _is_content(found: Any) -> bool:
    return not isinstance(found, bytes | int | float | bool)


def _content(change: Any) -> tuple[Content, ...]:
    if isinstance(change, dict):  # given by a command hook
        given = cast("dict[str, Any]", change)
        if "text" in given:
            return blocks(given["text"])
        return msgspec.convert(given["content"], tuple[Content, ...])
    return blocks(change)


# --- the model ---


def additions(driver: Driver, situation: Situation) -> list[Addition]:
    """Return the additions of the agent's hooks before a model call and at the start. Raises
    `HookDenied`."""
    hooked = driver.agent.hooked
    found: list[Addition] = []
    if driver.hooking is not None and driver.hooking.said:
        answered = _answered_at(driver)
        found = [
            one
            for one in driver.hooking.said
            if not told_since(one.about[5:].rpartition("#")[0], situation, answered)
        ]
        driver.hooking.said = ()
    if hooked is not None and hooked.before_model:
        found += hooked.additions(
            situation, _context(driver, situation.cancelled), _answered_at(driver)
        )
    return found


def _answered_at(driver: Driver) -> int:
    last = driver.journal.fold.assistant
    return 0 if last is None else last.seq


def wants_additions(driver: Driver) -> bool:
    """Return True if `additions` might return any."""
    hooked = driver.agent.hooked
    return (hooked is not None and bool(hooked.before_model)) or (
        driver.hooking is not None and bool(driver.hooking.said)
    )


def apply_answer_hooks(
    driver: Driver, answer: Completion, based_on: int, duration: float, token: Cancellation
) -> tuple[Completion, list[HookNote]] | None:
    """Return the answer after the agent's hooks, and notes to journal; None if a hook denied it,
    which is journaled here."""
    hooked = driver.agent.hooked
    assert hooked is not None
    context = _context(driver, token)
    tools = driver.agent.tools
    # a model may use a wire name; guards know the canonical one
    if any(tools.canonical(call.name) != call.name for call in answer.calls):
        calls = tuple(
            [
                msgspec.structs.replace(call, name=tools.canonical(call.name))
                for call in answer.calls
            ]
        )
        answer = msgspec.structs.replace(answer, calls=calls)
    notes: list[HookNote] = []
    what = "The model's answer was held back"
    for bound in hooked.after_model:
        given = answer
        try:
            said = hooked.ask(bound, context, answer_told, _is_answer, given, what)
            if said.change is not None:
                answer, fields = _changed(hooked, bound, answer, said, what)
                if fields:
                    notes.append(
                        HookNote(bound.name, f"changed the model's answer: {', '.join(fields)}")
                    )
        except HookDenied as error:
            _hold_back(
                driver, answer, based_on, duration, token, bound.name, "a check of it failed", error
            )
            return None
        if said.deny is not None:
            _hold_back(driver, answer, based_on, duration, token, bound.name, said.deny, None)
            return None
    return answer, notes


def _changed(
    hooked: AgentHooks, bound: Bound, answer: Completion, said: Said, what: str
) -> tuple[Completion, list[str]]:
    try:
        return changed_answer(answer, said.change)
    except Failed as error:
        raise HookDenied(
            hooked.blot(f"{what}: its hook {bound.name} {error}"), bound.name, "model", True
        ) from error


def _is_answer(found: Any) -> bool:
    return isinstance(found, str | Completion | dict)


def _hold_back(
    driver: Driver,
    answer: Completion,
    based_on: int,
    duration: float,
    token: Cancellation,
    name: str,
    reason: str,
    failed: HookDenied | None,
) -> None:
    """Journal an answer that hooks denied: its usage, without its content, and the reason for
    the model."""
    cost = answer.cost
    if cost is None and driver.agent.limits.cost is not None:
        cost = driver.agent.llm.cost(answer.usage)
    with driver.journal as journal:
        if token:
            return  # treated like a cancelled model call
        denials = journal.fold.denials + 1
        journal.add(
            ev.Assistant,
            usage=answer.usage,
            based_on=based_on,
            stop_reason=DENIED,
            model=answer.model,
            wire=answer.wire,
            cost=cost,
            duration=duration,
            request_hash=answer.request_hash,
            route=answer.route,
            host=answer.host,
        )
        text = HELD_BACK.format(reason=f": {reason.rstrip('.')}." if reason else ".")
        journal.add(
            ev.Message, content=(TextContent(text),), sender="holdfast", about=f"hook:{name}@model"
        )
        error = failed
        if error is not None:
            journal_denial(journal, error)
        elif denials >= MAX_DENIALS:
            error = HookDenied(
                f"The model's answers were held back {denials} times in a row: their hook {name}"
                f" denied them{f': {reason}' if reason else ''}",
                name,
                "model",
            )
        if error is not None:
            driver.write_error(error)


# --- the end of a run ---


def end_objection(driver: Driver) -> StopObjection | None:
    """Return the reason why the run may not finish; None if it may. Runs user code, so the
    caller must not hold the lock."""
    hooked, journal = driver.agent.hooked, driver.journal
    if hooked is None or not hooked.stop:
        return None
    with journal.changed:
        token, last = driver.calls.token, journal.fold.assistant
        subject = Stopping("" if last is None else last.text, journal.fold.stops)
    context = _context(driver, token)
    for bound in hooked.stop:
        try:
            said = hooked.ask(
                bound, context, msgspec.structs.asdict, _no, subject, "The run is not finished"
            )
        except HookDenied as error:
            return StopObjection(bound.name, "", error)
        if said.deny is not None:
            return StopObjection(bound.name, said.deny)
    return None


def _no(found: Any) -> bool:
    return False


def journal_objection(driver: Driver, stopped: StopObjection) -> bool:
    """Journal the hooks' objection to the end; return True if the run continues or ends
    differently.

    Within a transaction.
    """
    journal = driver.journal
    if driver.calls.closing:
        return True  # asked again when the conversation is opened
    if stopped.error is not None:
        journal_denial(journal, stopped.error)
        driver.write_error(stopped.error)
        return True
    times = journal.fold.stops
    if times >= MAX_DENIALS:
        text = f"denied the end of the run {times + 1} times in a row and was overruled"
        HookNote(stopped.hook, text, {"reason": stopped.reason}).write(journal)
        return False
    text = stopped.reason or GO_ON
    journal.add(
        ev.Message,
        content=(TextContent(text),),
        sender="holdfast",
        about=f"hook:{stopped.hook}@stop",
    )
    return True


def end_is_open(driver: Driver) -> bool:
    """Return True if hooks must still be asked about the end of the run: one failed or was
    interrupted."""
    fold, hooked = driver.journal.fold, driver.agent.hooked
    if fold.error is not None and fold.error.error == HookDenied.__name__:
        return fold.error.details.get("on") == "stop"
    return (
        hooked is not None and bool(hooked.stop) and fold.status == "paused" and fold.run_steps > 0
    )


# --- a condensation ---


def apply_condensation_hooks(
    driver: Driver, reason: str, instructions: str, token: Cancellation
) -> tuple[str, str]:
    """Return a hook's refusal of a condensation, "" for none, and the instructions with hooks'
    additions.

    Runs user code, so the caller must not hold the lock.
    """
    hooked = driver.agent.hooked
    if hooked is None or not hooked.condensation:
        return "", instructions
    context = _context(driver, token)
    with driver.journal.changed:
        tokens = driver.journal.fold.measure(driver.journal.tail).tokens
    what = "Nothing was left out"
    for bound in hooked.condensation:
        subject = Condensing(reason, instructions, tokens)
        try:
            said = hooked.ask(bound, context, msgspec.structs.asdict, _no, subject, what)
        except HookDenied as error:
            if not token:
                with driver.journal as journal:
                    journal_denial(journal, error)
            return str(error), instructions
        if said.deny is not None:
            return str(hooked.denied(bound, said, what)), instructions
        if said.add:
            instructions = f"{instructions}\n\n{said.add}" if instructions else said.add
            with driver.journal as journal:
                HookNote(
                    bound.name,
                    "added to the instructions of a condensation",
                    {"instructions": said.add},
                ).write(journal)
    return "", instructions


# --- beginning and end ---


def start(driver: Driver) -> None:
    """Call the start hooks once, when this process begins to drive the conversation."""
    hooked = driver.agent.hooked
    if hooked is None:
        return
    mine = hooking(driver)
    if mine.started:
        return
    mine.started = True
    with driver.journal.changed:
        token = driver.calls.token
        subject = Starting(driver.journal.fold.agent is not None)
    context = _context(driver, token)
    found: list[Addition] = []
    for bound in hooked.start:
        try:
            said = hooked.ask(
                bound, context, msgspec.structs.asdict, _no, subject, "The conversation began"
            )
        except HookDenied as error:
            if not driver.calls.closing:
                with driver.journal as journal:
                    journal_denial(journal, error)
            continue
        if said.add:
            found.append(addition(bound.name, said.add))
    mine.said = tuple(found)


def end(driver: Driver, deadline: float) -> None:
    """Call the end hooks of a closing conversation if it was started, until `deadline` (monotonic
    seconds).

    The lease is still held.
    """
    mine, hooked = driver.hooking, driver.agent.hooked
    if (
        mine is None
        or not mine.started
        or hooked is None
        or not hooked.end
        or driver.failure is not None
    ):
        return
    mine.started = False
    token = Cancellation()
    subject = Ending(driver.journal.fold.status.value)
    context = _context(driver, token)
    failed: list[HookDenied] = []

    def tell() -> None:
        for bound in hooked.end:
            try:
                hooked.ask(
                    bound,
                    context,
                    msgspec.structs.asdict,
                    _no,
                    subject,
                    "The conversation was closed",
                )
            except HookDenied as error:
                failed.append(error)
            if token:
                return

    thread = threading.Thread(target=tell, name=f"holdfast-end-{driver.journal.id}", daemon=True)
    thread.start()
    thread.join(max(MIN_END_SECONDS, deadline - time.monotonic()))
    if thread.is_alive():
        token.cancel()
        thread.join(0.5)  # seconds that a command's process group needs to end
        text = "The conversation was closed: its end hooks did not return in time"
        failed.append(
            HookDenied(text, hooked.end[min(len(failed), len(hooked.end) - 1)].name, "end", True)
        )
    if failed:
        try:
            with driver.journal as journal:
                for error in failed:
                    journal_denial(journal, error)
        except HoldfastError:  # the lease is lost, or the disk is full: close all the same
            pass


# --- results ---


def journal_failed_hook(journal: Journal, result: ToolResult) -> None:
    """Journal that a hook of a call failed. Within a transaction."""
    said: Any = result.meta.get(HOOK)
    if isinstance(said, dict) and cast("dict[str, Any]", said).get("failed"):
        found = cast("dict[str, Any]", said)
        HookNote(
            str(found.get("name", "")), result.text[:2000], {"on": "tool", "failed": True}
        ).write(journal)
