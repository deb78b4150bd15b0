"""What a conversation asks its agent's hooks, where it stands in the loop, and what it writes down
of what they say."""

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
from holdfast.errors import ConfigurationError, ConversationClosed, HoldfastError, HookDenied
from holdfast.llm.completion import Completion
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.hook_answers import Failed, Said
from holdfast.tools.hooks import HOOK, Bound

if TYPE_CHECKING:
    from holdfast.content import ToolResult
    from holdfast.conversation.driver import Driver
    from holdfast.conversation.journal import Journal

DENIALS = 3  # times in a row that an answer, or the end of a run, may be denied
DENIED = "denied"  # the stop reason of an answer that was held back
LEAST = 0.1  # seconds that hooks have at the end however little time is left

HELD_BACK = "Your answer was not accepted{reason} It is not shown here. Answer again."
GO_ON = "The work is not done yet."


class Told(NamedTuple):
    """A note to be journaled: of which hook, and what."""

    hook: str
    text: str
    details: dict[str, Any] = {}

    def write(self, journal: Journal) -> None:
        """Within a transaction."""
        journal.add(ev.Note, about=f"hook:{self.hook}", text=self.text, details=self.details)


class Heard(NamedTuple):
    """A message as hooks let it pass, with what they add, and what is to be noted."""

    content: tuple[Content, ...]
    added: tuple[Addition, ...] = ()
    notes: tuple[Told, ...] = ()

    def write(self, journal: Journal) -> None:
        """What stands behind the message. Within its transaction."""
        for one in self.added:
            if one.about not in journal.fold.abouts:
                journal.add(ev.Message, content=one.content, sender="holdfast", about=one.about)
        for note in self.notes:
            note.write(journal)


class Stopped(NamedTuple):
    """Why a run is not to be FINISHED: what its hook said, or the error of one that failed."""

    hook: str
    reason: str
    error: HookDenied | None = None


class Hooking:
    """What is to be known of one conversation's hooks while it is open here."""

    __slots__ = ("closing", "context", "hearing", "said", "started")

    def __init__(self) -> None:
        self.closing = Cancellation()  # ends what waits and is not the run's
        self.hearing = (
            threading.RLock()
        )  # whose turn it is to ask about what came through the inbox, which several threads drain
        self.started = False
        self.context: ToolContext | None = (
            None  # the last that was handed out: good as long as its cancellation
        )
        self.said: tuple[Addition, ...] = ()  # what hooks said at the start, for the next request


def hooking(driver: Driver) -> Hooking:
    """The conversation's; made when it is asked for first."""
    found = driver.hooking
    if found is None:
        with driver.journal.changed:
            found = driver.hooking = driver.hooking or Hooking()
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


def noted(journal: Journal, error: HookDenied) -> None:
    """Have it in the journal that a hook failed, or denied what is then nowhere to be seen. Within
    a transaction."""
    Told(error.hook, str(error), {"on": error.on, "failed": error.failed}).write(journal)


# --- a message ---


def turn(driver: Driver, command: object) -> AbstractContextManager[object]:
    """So that hooks are asked once about a message that several threads find in the inbox: the
    others wait."""
    hooked = driver.agent.hooked
    if hooked is None or not hooked.message:
        return nullcontext()
    from holdfast.commands import Send  # few conversations have an inbox that is used

    return hooking(driver).hearing if isinstance(command, Send) else nullcontext()


def heard(driver: Driver, content: tuple[Content, ...], sender: str = "user") -> Heard | HookDenied:
    """A message as the agent's hooks let it pass. Runs users' code: not under the lock. Raises
    `ConversationClosed` if that came first."""
    hooked = driver.agent.hooked
    if hooked is None or not hooked.message:
        return Heard(content)
    from holdfast.conversation.orders import said as checked

    token = hooking(driver).closing
    if token:
        raise _closed(driver)
    context = _context(driver, token)
    what = "The message was not sent"
    added: list[Addition] = []
    notes: list[Told] = []
    for bound in hooked.message:
        subject = Incoming(content, sender)
        try:
            said = hooked.ask(bound, context, _message_told, _is_content, subject, what)
            changed = content if said.change is None else checked(_content(said.change))
            if said.change is not None:
                ev.check_content(changed)
        except HookDenied as error:
            found: HookDenied = error
        except (ConfigurationError, msgspec.ValidationError, ValueError, TypeError) as error:
            text = hooked.blot(f"{what}: its hook {bound.name} gave content that is none: {error}")
            found = HookDenied(text, bound.name, "message", True)
        else:
            if said.deny is None:
                if changed != content:
                    content = changed
                    notes.append(Told(bound.name, "changed the message"))
                if said.add:
                    added.append(addition(bound.name, said.add))
                continue
            found = hooked.denied(bound, said, what)
        if token:
            raise _closed(driver)
        return found
    return Heard(content, tuple(added), tuple(notes))


def _closed(driver: Driver) -> ConversationClosed:
    return ConversationClosed(
        f"Conversation {driver.journal.id!r} was closed before its hooks had heard the message."
    )


def _message_told(subject: Incoming) -> dict[str, Any]:
    return {"sender": subject.sender, "text": subject.text, "content": subject.content}


def _is_content(found: Any) -> bool:
    return not isinstance(found, bytes | int | float | bool)


def _content(change: Any) -> tuple[Content, ...]:
    if isinstance(change, dict):  # of a command
        given = cast("dict[str, Any]", change)
        if "text" in given:
            return blocks(given["text"])
        return msgspec.convert(given["content"], tuple[Content, ...])
    return blocks(change)


# --- the model ---


def additions(driver: Driver, situation: Situation) -> list[Addition]:
    """What the agent's hooks have to say before the model is asked, and have said at the start.
    Raises `HookDenied`."""
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
    """Whether `additions` might find something."""
    hooked = driver.agent.hooked
    return (hooked is not None and bool(hooked.before_model)) or (
        driver.hooking is not None and bool(driver.hooking.said)
    )


def answered(
    driver: Driver, answer: Completion, based_on: int, duration: float, token: Cancellation
) -> tuple[Completion, list[Told]] | None:
    """The answer as the agent's hooks let it pass, and what is to be noted; None if it may not be,
    which is written down."""
    hooked = driver.agent.hooked
    assert hooked is not None
    context = _context(driver, token)
    tools = driver.agent.tools
    if any(
        tools.canonical(call.name) != call.name for call in answer.calls
    ):  # a model may use a wire name: guards know the other one
        calls = tuple(
            [
                msgspec.structs.replace(call, name=tools.canonical(call.name))
                for call in answer.calls
            ]
        )
        answer = msgspec.structs.replace(answer, calls=calls)
    notes: list[Told] = []
    what = "The model's answer was held back"
    for bound in hooked.after_model:
        given = answer
        try:
            said = hooked.ask(bound, context, answer_told, _is_answer, given, what)
            if said.change is not None:
                answer, fields = _changed(hooked, bound, answer, said, what)
                if fields:
                    notes.append(
                        Told(bound.name, f"changed the model's answer: {', '.join(fields)}")
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
    """Write down that there was an answer, which nobody is shown: what it took, why, and that the
    model is to answer again."""
    cost = answer.cost
    if cost is None and driver.agent.limits.cost is not None:
        cost = driver.agent.llm.cost(answer.usage)
    with driver.journal as journal:
        if token:
            return  # as a model call that is cancelled
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
            noted(journal, error)
        elif denials >= DENIALS:
            error = HookDenied(
                f"The model's answers were held back {denials} times in a row: their hook {name}"
                f" denied them{f': {reason}' if reason else ''}",
                name,
                "model",
            )
        if error is not None:
            driver.write_error(error)


# --- the end of a run ---


def stopping(driver: Driver) -> Stopped | None:
    """Why the run is not to be FINISHED; None if it may. Runs users' code: not under the lock."""
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
            return Stopped(bound.name, "", error)
        if said.deny is not None:
            return Stopped(bound.name, said.deny)
    return None


def _no(found: Any) -> bool:
    return False


def goes_on(driver: Driver, stopped: Stopped) -> bool:
    """Write down what hooks said against the end; whether the run goes on, or ends in another way.
    Within a transaction."""
    journal = driver.journal
    if driver.calls.closing:
        return True  # asked again when it is opened
    if stopped.error is not None:
        noted(journal, stopped.error)
        driver.write_error(stopped.error)
        return True
    times = journal.fold.stops
    if times >= DENIALS:
        text = (
            f"did not want the run to be finished, {times + 1} times in a row, and was not heard"
            " any more"
        )
        Told(stopped.hook, text, {"reason": stopped.reason}).write(journal)
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
    """Whether a hook is still to say whether the run may be FINISHED: it failed, or was
    interrupted."""
    fold, hooked = driver.journal.fold, driver.agent.hooked
    if fold.error is not None and fold.error.error == HookDenied.__name__:
        return fold.error.details.get("on") == "stop"
    return (
        hooked is not None and bool(hooked.stop) and fold.status == "paused" and fold.run_steps > 0
    )


# --- a condensation ---


def condensing(
    driver: Driver, reason: str, instructions: str, token: Cancellation
) -> tuple[str, str]:
    """Why nothing is to be left out, "" if it may be; and the instructions with what hooks add.
    Runs users' code: not under the lock."""
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
                    noted(journal, error)
            return str(error), instructions
        if said.deny is not None:
            return str(hooked.denied(bound, said, what)), instructions
        if said.add:
            instructions = f"{instructions}\n\n{said.add}" if instructions else said.add
            with driver.journal as journal:
                Told(
                    bound.name,
                    "added to the instructions of a condensation",
                    {"instructions": said.add},
                ).write(journal)
    return "", instructions


# --- beginning and end ---


def start(driver: Driver) -> None:
    """Tell the hooks that this process begins to drive the conversation, once."""
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
                    noted(journal, error)
            continue
        if said.add:
            found.append(addition(bound.name, said.add))
    mine.said = tuple(found)


def end(driver: Driver, deadline: float) -> None:
    """Tell the hooks that the conversation is being closed, if it was begun, until `deadline`
    (monotonic seconds). The lease is still held."""
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
    thread.join(max(LEAST, deadline - time.monotonic()))
    if thread.is_alive():
        token.cancel()
        thread.join(0.5)  # what a command's group needs to be gone
        text = "The conversation was closed: its hooks took longer than that could wait"
        failed.append(
            HookDenied(text, hooked.end[min(len(failed), len(hooked.end) - 1)].name, "end", True)
        )
    if failed:
        try:
            with driver.journal as journal:
                for error in failed:
                    noted(journal, error)
        except HoldfastError:  # the lease is lost, or the disk full: it is closed all the same
            pass


# --- results ---


def result_noted(journal: Journal, result: ToolResult) -> None:
    """Have it noted that a hook of a call failed. Within a transaction."""
    said: Any = result.meta.get(HOOK)
    if isinstance(said, dict) and cast("dict[str, Any]", said).get("failed"):
        found = cast("dict[str, Any]", said)
        Told(str(found.get("name", "")), result.text[:2000], {"on": "tool", "failed": True}).write(
            journal
        )
