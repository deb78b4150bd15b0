"""The operations on a conversation, called by its methods or read from its store's inbox. Each
is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast import events as ev
from holdfast.content import Content, ToolCall
from holdfast.conversation.actions import output_problem
from holdfast.conversation.driver import RUNNING, CommandOutcome, Driver
from holdfast.conversation.hooking import (
    HookedMessage,
    apply_message_hooks,
    end_is_open,
    journal_denial,
    message_lock,
)
from holdfast.conversation.journal import Journal
from holdfast.conversation.message_content import checked_content
from holdfast.conversation.state import AT_REST, ConversationStatus, OpenCall, undecided
from holdfast.errors import (
    ConfigurationError,
    ConversationClosed,
    HookDenied,
    StoreError,
    ToolValidationError,
)
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.store import Posted
from holdfast.tools.forms import filled
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.commands import Command, Unreadable

_log = logging.getLogger("holdfast")
_S = ConversationStatus

Effect = Callable[[], None]  # called once the transaction is over and no lock is held


class PassedSend(NamedTuple):
    """A `Send` command whose message the hooks have passed."""

    heard: HookedMessage
    event_id: str
    sender: str


def send(
    driver: Driver,
    content: tuple[Content, ...],
    event_id: str = "",
    sender: str = "user",
    heard: HookedMessage | None = None,
) -> ev.Message:
    """Add a message of the user, or of the conversation `sender`. Within a transaction, like the
    functions that follow."""
    journal = driver.journal
    sent = journal.add(ev.Message, event_id, content=content, sender=sender)
    if heard is not None:
        heard.write(journal)
    if (driver.thread is not None or driver.hosted) and journal.fold.status in AT_REST:
        journal.add(ev.Status, status=RUNNING.value)
    return sent


def pass_hooks(driver: Driver, content: tuple[Content, ...], sender: str = "user") -> HookedMessage:
    """Return a message after the agent's hooks. Not within a transaction. Raises `HookDenied`,
    which is journaled."""
    found = apply_message_hooks(driver, content, sender)
    if isinstance(found, HookedMessage):
        return found
    with driver.journal as journal:
        journal_denial(journal, found)
    raise found


def pause(driver: Driver) -> None:
    """Pause after the current step."""
    if driver.journal.fold.status is not _S.PAUSED:
        driver.journal.add(ev.Status, status=_S.PAUSED.value)


def resume(driver: Driver) -> Effect | None:
    """Continue after a pause; try again after an error. The effect resumes children that an
    interrupt stopped."""
    journal, fold = driver.journal, driver.journal.fold
    if fold.status is _S.PAUSED:
        # Back to the status without the pause: waiting, running if there is work, else at rest. A
        # run whose last answer came after the pause still ends, as FINISHED, by the loop.
        status = (
            _S.WAITING_FOR_CONFIRMATION
            if fold.waits
            else RUNNING
            if _unfinished(driver) or fold.run_steps
            else _S.IDLE
        )
        journal.add(ev.Status, status=status.value)
    elif fold.status in (_S.ERROR, _S.STUCK) and _unfinished(driver):
        journal.add(ev.Status, status=RUNNING.value)
    return None if driver.team_made is None else driver.team_made.resume_stopped


def _unfinished(driver: Driver) -> bool:
    """Return True if there is work: for the model, for a call, or for a run whose required
    output is missing."""
    fold = driver.journal.fold
    return (
        fold.owed
        or bool(fold.open)
        or bool(driver.agent.output_rounds and output_problem(fold))
        or end_is_open(driver)
    )


def interrupt(driver: Driver) -> Effect | None:
    """Pause at once; the effect cancels the running calls.

    At rest it does nothing, except that a spawned conversation interrupts its background
    children.
    """
    journal, team = driver.journal, driver.team_made
    if journal.fold.status in AT_REST:
        if not journal.fold.condensing:
            if not journal.spawned_by or driver.calls.children is None:
                return None
            if team is not None:
                team.journal_stopped()
            return driver.calls.children.interrupt
        if team is not None:
            team.journal_stopped()
        journal.add(ev.Condensation, hidden=(), failed="interrupted")
        return driver.calls.cancel
    if journal.fold.status is not _S.PAUSED:
        journal.add(ev.Status, status=_S.PAUSED.value, reason="interrupted")
    if team is not None:
        team.journal_stopped()
    driver.calls.refuse_queued()
    return driver.calls.interrupt


def condense(driver: Driver, instructions: str = "") -> None:
    """Request a condensation from the driving thread. Raises `ConfigurationError` if the agent
    has no condenser."""
    if driver.agent.condenser is None:
        raise ConfigurationError(
            "condense: the agent has no condenser; give it one, such as"
            " Agent(condenser=LLMCondenser())."
        )
    driver.journal.add(ev.Condensation, hidden=(), request=instructions)


def json_arguments(arguments: Any) -> dict[str, Any]:
    """Return a copy of new arguments for a call. Raises `ConfigurationError` unless they are a
    JSON object."""
    import json

    try:
        # fails for half of a surrogate pair, which has no UTF-8 bytes
        data = json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        found = None if too_deep(data) else json.loads(data)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"approve: arguments must be valid JSON: {error}.") from error
    except RecursionError:
        found = None
    if found is None and isinstance(arguments, dict):
        raise ConfigurationError(f"approve: arguments are nested deeper than {MAX_DEPTH} levels.")
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"approve: arguments takes a dict, not a {type(arguments).__name__}."
        )
    return cast("dict[str, Any]", found)


def pending(journal: Journal, call_id: str | None) -> list[ToolCall]:
    """Return the calls that wait for a decision, or only the one with that id. Raises
    `ConfigurationError` if there is none."""
    waiting = [item.call for item in journal.fold.open.values() if item.asked is not None]
    if not waiting:
        raise ConfigurationError(
            "No call waits for a decision."
            if call_id is None
            else f"Call {call_id!r} does not wait for a decision; no call does."
        )
    if call_id is None:
        return waiting
    found = [call for call in waiting if call.id == call_id]
    if not found:
        raise ConfigurationError(
            f"Call {call_id!r} does not wait for a decision. These do:"
            f" {', '.join(call.id for call in waiting)}."
        )
    return found


def approve(
    driver: Driver,
    calls: list[ToolCall],
    arguments_hash: str | None,
    arguments: dict[str, Any] | None,
    by: str,
    reason: str,
) -> Effect | None:
    """Approve calls; the effect starts them if others of their batch are running. Raises
    `ConfigurationError` if `arguments_hash` is not theirs."""
    journal = driver.journal
    for call in calls:
        if arguments_hash is not None and arguments_hash != call.arguments_hash:
            raise ConfigurationError(
                f"Call {call.id!r} has other arguments than those that were approved (its"
                f" arguments_hash is {call.arguments_hash}). Review it again."
            )
        journal.add(
            ev.Decision,
            call_id=call.id,
            decision="approve",
            by=by,
            reason=reason,
            arguments_hash=call.arguments_hash,
            arguments=arguments,
        )
    _go_on(journal, decided={call.id for call in calls})
    return driver.calls.admit


def _go_on(journal: Journal, decided: Collection[str] = (), settled: Collection[str] = ()) -> None:
    """Leave WAITING_FOR_CONFIRMATION if a call, or the model, can proceed after the events of this
    transaction.

    Args:
        decided: Ids of calls that this transaction approves.
        settled: Ids of calls that this transaction answers.
    """
    if journal.fold.status is not _S.WAITING_FOR_CONFIRMATION:
        return
    left = [copy(item) for call_id, item in journal.fold.open.items() if call_id not in settled]
    for item in left:
        if item.call.id in decided:
            item.asked = None
    if not undecided(left):
        journal.add(ev.Status, status=RUNNING.value)


def reject(driver: Driver, calls: list[ToolCall], reason: str, by: str) -> Effect:
    """Answer calls as rejected. The effect starts calls that waited behind them, if their
    neighbours are running."""
    journal = driver.journal
    for call in calls:
        journal.add(
            ev.Decision,
            call_id=call.id,
            decision="reject",
            by=by,
            reason=reason,
            arguments_hash=call.arguments_hash,
        )
    driver.calls.refuse(calls, by, reason)
    _go_on(journal, settled={call.id for call in calls})
    return driver.calls.admit


# --- calls that clients run ---


def _offered(journal: Journal, call_id: str) -> OpenCall:
    """Return an open call that a client may run. Raises `ConfigurationError`."""
    item = journal.fold.open.get(call_id)
    if item is None:
        raise ConfigurationError(
            f"Call {call_id!r} is not open: it has a result, or there is no such call."
        )
    if not item.offered:
        raise ConfigurationError(
            f"Call {call_id!r} of {item.call.name!r} is not open to clients: the conversation's own"
            " process runs it."
        )
    if item.asked is not None:
        raise ConfigurationError(
            f"Call {call_id!r} is not open to clients yet: it waits for a decision."
        )
    return item


def _claimed(journal: Journal, call_id: str, runner: str) -> OpenCall:
    """Return an open call that `runner` has claimed. Raises `ConfigurationError`."""
    item = _offered(journal, call_id)
    if not runner or item.runner != runner:
        whose = f"was claimed by {item.runner!r}" if item.runner else "was not claimed"
        raise ConfigurationError(
            f"Call {call_id!r} {whose}; {runner!r} must claim it before it returns a result."
        )
    return item


def claim(driver: Driver, call_id: str, runner: str) -> None:
    """Start a call at a client; a second claim by the same client changes nothing."""
    item, status = _offered(driver.journal, call_id), driver.journal.fold.status
    if item.runner and item.runner != runner:
        raise ConfigurationError(f"Call {call_id!r} was claimed by {item.runner!r}.")
    if not item.runner and item not in driver.journal.fold.turn:
        raise ConfigurationError(
            f"Call {call_id!r} is not open to clients yet: a call before it in the answer has no"
            " result."
        )
    if not item.runner:
        if status is not RUNNING:
            raise ConfigurationError(
                f"Call {call_id!r} cannot begin now: the conversation is {status.value}."
            )
        driver.calls.write_start(item.call, 1, runner)


def settle(driver: Driver, call_id: str, reason: str, kind: str, runner: str | None) -> None:
    """Answer a call that no client will answer."""
    item = _offered(driver.journal, call_id)
    if runner is not None and runner != item.runner:
        whose = f"was claimed by {item.runner!r}" if item.runner else "is not claimed"
        raise ConfigurationError(
            f"Call {call_id!r} {whose}, so it cannot be settled for {runner or 'none'!r}."
        )
    driver.calls.write_settled(item, reason, kind)


# --- the inbox ---


def _dispatch(driver: Driver, command: Command) -> Effect | None:
    """Carry out one command of the inbox. Raises `ConfigurationError` if it does not fit (any
    more)."""
    from holdfast import commands as cmd  # loaded late: few conversations use an inbox

    match command:
        case cmd.Send(content, event_id, sender):
            send(driver, checked_content(content), event_id, sender)
        case cmd.Claim(call_id, runner):
            claim(driver, call_id, runner)
        case cmd.Return(call_id, runner, result, duration):  # `_fitted` has asked the hooks
            driver.calls.write_result(
                _claimed(driver.journal, call_id, runner).call, result, duration
            )
        case cmd.Settle(call_id, reason, kind, runner):
            settle(driver, call_id, clean(reason), kind, runner)
        case cmd.Approve(call_id, arguments_hash, arguments, by, reason):
            return approve(
                driver,
                pending(driver.journal, call_id),
                arguments_hash,
                arguments,
                clean(by),
                clean(reason),
            )
        case cmd.Reject(call_id, reason, by):
            return reject(driver, pending(driver.journal, call_id), clean(reason), clean(by))
        case cmd.Answer(question_id, values, reason, by):
            # `_fitted` has replaced True by the form's defaults
            filled_in = values if isinstance(values, dict) else None
            return driver.calls.questions.answer(question_id, filled_in, clean(by), clean(reason))
        case cmd.Pause():
            pause(driver)
        case cmd.Resume():
            return resume(driver)
        case cmd.Interrupt():
            return interrupt(driver)
        case cmd.Condense(instructions):
            condense(driver, clean(instructions))
    return None


def drain(driver: Driver) -> None:
    """Carry out the commands in the inbox, each with its mark in one transaction. Does nothing
    without the lease.

    A command that does not fit is dropped, with a warning in the log. If the lease was lost the
    conversation stops.
    """
    try:
        for posted in _waiting(driver):
            with message_lock(driver, posted.command):
                if posted.number <= driver.taken:
                    continue  # another thread has carried it out
                command = _fitted(driver, posted.command)  # user code, so not under the lock
                effect = _take(driver, posted, command)
            if effect is not None:
                effect()
    except ConversationClosed:
        return
    except StoreError as error:
        driver.fail(error)


def _waiting(driver: Driver) -> list[Posted]:
    with driver.journal.changed:
        return (
            [] if driver.calls.closing or driver.failure is not None else driver.journal.commands()
        )


def _fitted(
    driver: Driver, command: Command | Unreadable
) -> Command | PassedSend | ConfigurationError:
    """Return a command after user code has checked or changed it, such as a result after the
    agent's hooks; an error if it does not fit."""
    from holdfast import commands as cmd

    if isinstance(command, cmd.Unreadable):
        return ConfigurationError(
            f"it cannot be read: {command.command or 'no command'}: {command.reason}."
        )
    try:
        if isinstance(command, cmd.Send) and driver.agent.hooked is not None:
            found = apply_message_hooks(driver, checked_content(command.content), command.sender)
            return (
                found
                if isinstance(found, HookDenied)
                else PassedSend(found, command.event_id, command.sender)
            )
        if isinstance(command, cmd.Return):
            with driver.journal.changed:
                item = copy(_claimed(driver.journal, command.call_id, command.runner))
            return msgspec.structs.replace(
                command, result=driver.calls.client_result(item, command.result)
            )
        if isinstance(command, cmd.Answer):
            question = driver.calls.questions.waiting(command.question_id)
            try:
                return msgspec.structs.replace(
                    command, values=filled("answer", question.schema, command.values)
                )
            except ConfigurationError as error:
                return _misfit("its values do not fit the form.", error)
        if not isinstance(command, cmd.Approve) or command.arguments is None:
            return command
        with driver.journal.changed:
            name = pending(driver.journal, command.call_id)[0].name
    except ConfigurationError as error:
        return error
    try:
        driver.agent.tools.get(name).validate(command.arguments)
    except Exception as error:  # a tool's own validator may raise anything
        return _misfit("its arguments do not fit the tool.", error)
    return command


def _misfit(said: str, error: Exception) -> ConfigurationError:
    """Return an error without the details, which may hold arguments and must not reach the log."""
    misfit = ConfigurationError(said)
    misfit.__cause__ = error
    return misfit


def _take(
    driver: Driver, posted: Posted, command: Command | PassedSend | ConfigurationError
) -> Effect | None:
    journal = driver.journal
    with journal.changed:
        if posted.number <= driver.taken or driver.calls.closing:
            return None  # another thread has carried it out
        driver.taken = posted.number
        effect = misfit = None
        with journal:
            journal.take(posted)
            try:
                effect = _carry_out(driver, command)
            except ConfigurationError as error:
                misfit = error
        if driver.obeyed is not None and (heard := driver.obeyed.get(posted.key)) is not None:
            heard.done, heard.error = True, misfit
        elif misfit is not None:
            _log.warning(
                "conversation %s: a posted %s was dropped: %s",
                journal.id,
                type(posted.command).__name__,
                misfit,
            )
        return effect


def _carry_out(driver: Driver, command: Command | PassedSend | ConfigurationError) -> Effect | None:
    if isinstance(command, HookDenied):
        journal_denial(driver.journal, command)
    if isinstance(command, ConfigurationError):
        raise command
    if isinstance(command, PassedSend):
        send(driver, command.heard.content, command.event_id, command.sender, command.heard)
        return None
    return _dispatch(driver, command)


def _with_cause(error: ConfigurationError) -> ConfigurationError | ToolValidationError:
    """Return the error with its details, for the caller that gave the arguments."""
    cause = error.__cause__
    if isinstance(cause, ToolValidationError):
        return cause
    return error if cause is None else ConfigurationError(f"{error} {cause}")


def do(driver: Driver, command: Command) -> None:
    """Carry out a command at once, after those in the inbox. Raises its `ConfigurationError` or
    `ToolValidationError`."""
    from holdfast import commands as cmd

    # a command that could not be posted is refused here too
    command = cmd.decode(cmd.encode(command))
    drain(driver)
    fitted = _fitted(driver, command)
    if isinstance(fitted, ConfigurationError):
        if isinstance(fitted, HookDenied):
            with driver.journal as journal:
                journal_denial(journal, fitted)
        raise _with_cause(fitted)
    with driver.journal as journal:
        if driver.calls.closing:
            raise ConversationClosed(
                f"Conversation {journal.id!r} is closed. Open it again with Conversation(agent,"
                " store, id=...)."
            )
        effect = _carry_out(driver, fitted)
    if effect is not None:
        effect()


def obey(driver: Driver, post: Callable[[], bool], key: str) -> None:
    """Carry out a command through the inbox; `post` leaves it there under `key`. Raises its
    `ConfigurationError` or `ToolValidationError`, whichever thread carried it out."""
    changed = driver.journal.changed
    with changed:
        driver.obeyed = {} if driver.obeyed is None else driver.obeyed
        heard = driver.obeyed.setdefault(key, CommandOutcome())
        heard.waiting += 1
    try:
        before = not post()
        drain(driver)
    finally:
        with changed:
            heard.waiting -= 1
            if not heard.waiting:
                del driver.obeyed[key]
                if not driver.obeyed:
                    driver.obeyed = None
    if heard.error is not None:
        raise _with_cause(heard.error)
    if not heard.done and not before:
        if driver.failure is not None:
            raise driver.failure.with_traceback(None)
        raise ConversationClosed(
            f"Conversation {driver.journal.id!r} was closed; the command stays in its inbox for the"
            " next owner."
        )
