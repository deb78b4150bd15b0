"""What is asked of a conversation, by its own methods or through its store's inbox: each done in one transaction, in one way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from holdfast import events as ev
from holdfast.content import Content, TextContent, ToolCall
from holdfast.conversation.driver import RUNNING, Driver
from holdfast.conversation.journal import Journal
from holdfast.conversation.state import AT_REST, ConversationStatus
from holdfast.errors import ConfigurationError, ConversationClosed, StoreError
from holdfast.store import Posted
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.commands import Command

_log = logging.getLogger("holdfast")
_S = ConversationStatus

Effect = Callable[[], None]  # to be had once the transaction is over and no lock is held


def said(content: tuple[Content, ...]) -> tuple[Content, ...]:
    """Blocks that a user may send. Raises `ConfigurationError` if they say nothing."""
    content = tuple([TextContent(clean(block.text)) if isinstance(block, TextContent) else block for block in content])
    if not any(not isinstance(block, TextContent) or block.text.strip() for block in content):
        raise ConfigurationError("send_message takes a text or content blocks; it was given nothing.")
    return content


def send(driver: Driver, content: tuple[Content, ...]) -> ev.Message:
    """A user's message. Within a transaction, as all that follows."""
    journal = driver.journal
    sent = journal.add(ev.Message, content=content)
    if driver.thread is not None and journal.fold.status in AT_REST:
        journal.add(ev.Status, status=RUNNING.value)
    return sent


def pause(driver: Driver) -> None:
    """Step no further."""
    if driver.journal.fold.status is not _S.PAUSED:
        driver.journal.add(ev.Status, status=_S.PAUSED.value)


def resume(driver: Driver) -> None:
    """Go on after a pause; try again after an error."""
    journal, fold = driver.journal, driver.journal.fold
    if fold.status is _S.PAUSED:
        # Back to where it would be: waiting, at work if there is something to do, else at rest.
        status = _S.WAITING_FOR_CONFIRMATION if fold.waits else RUNNING if fold.owed or fold.open else _S.IDLE
        journal.add(ev.Status, status=status.value)
    elif fold.status in (_S.ERROR, _S.STUCK) and (fold.owed or fold.open):
        journal.add(ev.Status, status=RUNNING.value)


def interrupt(driver: Driver) -> Effect | None:
    """Pause at once; the effect cancels what runs."""
    journal = driver.journal
    if journal.fold.status in AT_REST:
        return None
    if journal.fold.status is not _S.PAUSED:
        journal.add(ev.Status, status=_S.PAUSED.value, reason="interrupted")
    driver.calls.refuse_queued()
    return driver.calls.cancel


def json_arguments(arguments: Any) -> dict[str, Any]:
    """New arguments for a call, as a copy of its own. Raises `ConfigurationError` for what is no JSON object."""
    import json

    try:
        found = json.loads(json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode())  # half of a surrogate pair has no bytes
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"approve: arguments takes what JSON can say: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"approve: arguments takes a dict, not a {type(arguments).__name__}.")
    return cast("dict[str, Any]", found)


def pending(journal: Journal, call_id: str | None) -> list[ToolCall]:
    """The calls that wait for a decision; the one of that id alone if it is given. Raises `ConfigurationError` if there is none."""
    waiting = [item.call for item in journal.fold.open.values() if item.asked is not None]
    if not waiting:
        raise ConfigurationError(
            "No call waits for a decision." if call_id is None else f"No call waits for a decision, {call_id!r} neither."
        )
    if call_id is None:
        return waiting
    found = [call for call in waiting if call.id == call_id]
    if not found:
        raise ConfigurationError(f"Call {call_id!r} does not wait for a decision. These do: {', '.join(call.id for call in waiting)}.")
    return found


def approve(
    driver: Driver, calls: list[ToolCall], arguments_hash: str | None, arguments: dict[str, Any] | None, by: str, reason: str
) -> Effect | None:
    """Let calls run; the effect starts them if others of their batch are running. Raises `ConfigurationError` if the hash is not theirs."""
    journal = driver.journal
    for call in calls:
        if arguments_hash is not None and arguments_hash != call.arguments_hash:
            raise ConfigurationError(
                f"Call {call.id!r} has other arguments than those that were approved (their hash is {call.arguments_hash}). Look again."
            )
        journal.add(
            ev.Decision, call_id=call.id, decision="approve", by=by, reason=reason, arguments_hash=call.arguments_hash, arguments=arguments
        )
    if journal.fold.status is _S.WAITING_FOR_CONFIRMATION:
        journal.add(ev.Status, status=RUNNING.value)
    return lambda: driver.calls.admit(calls)


def reject(driver: Driver, calls: list[ToolCall], reason: str, by: str) -> None:
    """Answer calls as rejected; the model goes on when no other waits."""
    journal = driver.journal
    for call in calls:
        journal.add(ev.Decision, call_id=call.id, decision="reject", by=by, reason=reason, arguments_hash=call.arguments_hash)
    driver.calls.refuse(calls, by, reason)
    others = len(journal.fold.open) - len(calls)
    if not others and journal.fold.status is _S.WAITING_FOR_CONFIRMATION:
        journal.add(ev.Status, status=RUNNING.value)


def _obey(driver: Driver, command: Command) -> Effect | None:
    """One command of the inbox. Raises `ConfigurationError` for what does not fit (any more)."""
    from holdfast import commands as cmd  # few conversations have an inbox that is used

    match command:
        case cmd.Send(content):
            send(driver, said(content))
        case cmd.Approve(call_id, arguments_hash, arguments, by, reason):
            return approve(driver, pending(driver.journal, call_id), arguments_hash, arguments, clean(by), clean(reason))
        case cmd.Reject(call_id, reason, by):
            reject(driver, pending(driver.journal, call_id), clean(reason), clean(by))
        case cmd.Pause():
            pause(driver)
        case cmd.Resume():
            resume(driver)
        case cmd.Interrupt():
            return interrupt(driver)
    return None


def drain(driver: Driver) -> None:
    """Do what waits in the inbox, each command and its mark in one transaction. Does nothing without the lease.

    A command that does not fit is dropped, with a warning in the log. If the lease was lost the conversation stops.
    """
    try:
        for posted in _waiting(driver):
            misfit = _misfit(driver, posted.command)  # runs users' code: not under the lock
            effect = _take(driver, posted, misfit)
            if effect is not None:
                effect()
    except ConversationClosed:
        return
    except StoreError as error:
        driver.fail(error)


def _waiting(driver: Driver) -> list[Posted]:
    with driver.journal.changed:
        return [] if driver.calls.closing or driver.failure is not None else driver.journal.commands()


def _misfit(driver: Driver, command: Command) -> bool:
    """Whether an approval's new arguments do not fit the tool."""
    from holdfast.commands import Approve

    if not isinstance(command, Approve) or command.arguments is None:
        return False
    try:
        with driver.journal.changed:
            name = pending(driver.journal, command.call_id)[0].name
    except ConfigurationError:
        return False  # which is told more clearly when it is obeyed
    try:
        driver.agent.tools.get(name).validate(command.arguments)
    except Exception:  # a tool's own validator may raise anything
        return True
    return False


def _take(driver: Driver, posted: Posted, misfit: bool) -> Effect | None:
    journal = driver.journal
    with journal.changed:
        if posted.number <= driver.taken or driver.calls.closing:
            return None  # another thread has done it meanwhile
        driver.taken = posted.number
        with journal:
            journal.take(posted)
            try:
                if misfit:  # without saying how: the log is no place for arguments
                    raise ConfigurationError("its arguments do not fit the tool.")
                return _obey(driver, posted.command)
            except ConfigurationError as error:
                _log.warning("conversation %s: a posted %s was dropped: %s", journal.id, type(posted.command).__name__, error)
                return None
