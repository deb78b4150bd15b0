"""`CommandInbox`: the commands that any process leaves for a conversation in its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from holdfast import commands as cmd
from holdfast.conversation.executor import (
    REFUSALS,
    CommandExecutor,
    Effect,
    Prepared,
    UnfitCommand,
    detailed,
)
from holdfast.conversation.hook_points import HookPoints, journal_denial
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.status import ConversationStatus
from holdfast.error_forms import ErrorForm, error_of_form, form_of_error
from holdfast.errors import (
    ConfigurationError,
    ConversationClosed,
    HoldfastError,
    HookDenied,
    StoreError,
)
from holdfast.object_struct import ObjectStruct
from holdfast.store import Posted
from holdfast.tools.results import clean

_MAX_REFUSAL_CHARS = 2000  # characters of the message of a refused command's error


class _Outcome(ObjectStruct):
    """The outcome of a posted command, for the `waiting` callers that posted it."""

    waiting: int = 0
    done: bool = False
    error: HoldfastError | None = None


class CommandInbox(ObjectStruct):
    """The inbox of one open conversation. Thread-safe."""

    _context: RunContext
    _executor: CommandExecutor
    _hooks: HookPoints
    _taken: int = 0  # the number of the last command that was done in order
    _passed: frozenset[int] = frozenset()  # the numbers of later ones that were done before it
    # by number of a message: the thread on which hooks are asked about it
    _asked: dict[int, int] | None = None
    _deferred: bool = False  # True if commands are left to the thread that asks hooks
    # by key, for the callers that wait for them; None if none does
    _outcomes: dict[str, _Outcome] | None = None

    @property
    def awaited(self) -> bool:
        """True if a caller waits for the outcome of its command."""
        return self._outcomes is not None

    def drain(self, awaited: _Outcome | None = None, waits: bool = True) -> bool:
        """Carry out the commands in the inbox, each with its mark in one transaction. Does nothing
        without the lease.

        A command that does not fit is dropped, with a warning in the log. If the lease was lost the
        conversation stops. No lock is held while hooks are asked about a message: other threads
        wait for their answer, but a pause or an interrupt of a run passes the message.

        Args:
            awaited: Return as soon as this outcome is there.
            waits: Wait while another thread asks hooks about a message.

        Returns:
            False if commands are left to the thread that asks hooks about the message before them:
            because this is that thread, or does not wait for it.
        """
        try:
            for posted, passes in self._in_order():
                if awaited is not None and awaited.done:
                    return True
                if not self._claim(posted, waits):
                    return False
                try:
                    effect = self._carry_out(posted, passes)
                finally:
                    self._release(posted)
                if effect is not None:
                    effect()
        except ConversationClosed:
            return True
        except StoreError as error:
            self._context.fail(error)
            return True
        if self._deferred and not self._asked:
            self._deferred = False
            return self.drain(awaited, waits)
        return True

    def _in_order(self) -> Iterator[tuple[Posted, bool]]:
        """Yield the commands, and True beside one that passes a message whose hooks are asked."""
        waiting = self._waiting()
        with self._context.journal.changed:
            running = self._context.journal.fold.status is ConversationStatus.RUNNING
            first = min(self._asked) if self._asked and running else None
        if first is not None:
            for posted in waiting:
                if posted.number > first and isinstance(posted.command, cmd.Pause | cmd.Interrupt):
                    yield posted, True
        for posted in waiting:
            yield posted, False

    def _claim(self, posted: Posted, waits: bool) -> bool:
        """Wait until no other thread asks hooks about a command. Return False if this one does, or
        does not wait."""
        with self._context.journal.changed:
            while self._asked and (thread := self._asked.get(posted.number)) is not None:
                if thread == threading.get_ident() or not waits:
                    self._deferred = True
                    return False
                self._context.journal.changed.wait()
            if self._hooks.asks_about(posted.command):
                self._asked = {**(self._asked or {}), posted.number: threading.get_ident()}
        return True

    def _release(self, posted: Posted) -> None:
        if self._asked is not None:
            with self._context.journal.changed:
                rest = {one: by for one, by in self._asked.items() if one != posted.number}
                self._asked = rest or None
                self._context.journal.changed.notify_all()

    def _carry_out(self, posted: Posted, passes: bool) -> Effect | None:
        if self._is_done(posted):
            return None  # another thread has carried it out
        prepared = self._prepare(posted.command)  # user code, so not under the lock
        return self._take(posted, prepared, passes)

    def _is_done(self, posted: Posted) -> bool:
        return posted.number <= self._taken or posted.number in self._passed

    def _waiting(self) -> list[Posted]:
        context = self._context
        with context.journal.changed:
            ended = context.closing or context.failure is not None
            return [] if ended else context.journal.commands()

    def _prepare(self, command: cmd.Command | cmd.UnreadableCommand) -> Prepared | HoldfastError:
        if isinstance(command, cmd.UnreadableCommand):
            return ConfigurationError(
                f"it cannot be read: {command.command or 'no command'}: {command.reason}."
            )
        try:
            return self._executor.prepare(command)
        except REFUSALS as error:
            return error

    def _take(
        self, posted: Posted, prepared: Prepared | HoldfastError, passes: bool
    ) -> Effect | None:
        context, journal = self._context, self._context.journal
        with journal.changed:
            if self._is_done(posted) or context.closing:
                return None  # another thread has carried it out
            if passes:
                self._passed |= {posted.number}
            else:
                self._taken = posted.number
                self._passed = frozenset([one for one in self._passed if one > posted.number])
            effect = misfit = None
            with journal:
                journal.take(posted)  # its mark and its effect, or its error, in one transaction
                if isinstance(prepared, HoldfastError):
                    misfit = prepared
                    if isinstance(prepared, HookDenied):
                        journal_denial(journal, prepared)
                else:
                    try:
                        effect = self._executor.apply(prepared)
                    except REFUSALS as error:
                        misfit = error
                if misfit is not None:
                    journal.refuse(posted, _kept(misfit))
            outcome = None if self._outcomes is None else self._outcomes.get(posted.key)
            if outcome is not None:
                outcome.done, outcome.error = True, misfit
            elif misfit is not None:
                journal.log(f"a posted {type(posted.command).__name__} was dropped: {misfit}")
            return effect

    def execute(self, command: cmd.Command, key: str) -> None:
        """Post a command under `key`, and carry it out. Raises its `ConfigurationError`,
        `Conflict` or `ToolValidationError`, whichever thread carried it out, and whenever.

        Within a hook that is asked about a posted message, the command is carried out after that
        message, and this returns before it.
        """
        context, changed = self._context, self._context.journal.changed
        with changed:
            self._outcomes = outcomes = {} if self._outcomes is None else self._outcomes
            outcome = outcomes.setdefault(key, _Outcome())
            outcome.waiting += 1
        try:
            repeated = not context.journal.store.post(context.journal.id, command, key)
            deferred = not self.drain(outcome)
        finally:
            with changed:
                outcome.waiting -= 1
                if not outcome.waiting:
                    del outcomes[key]
                    self._outcomes = outcomes or None
        if outcome.error is not None:
            raise detailed(outcome.error)
        if outcome.done or deferred:
            return
        if context.failure is not None:
            raise context.failure.with_traceback(None)
        if context.closing or not repeated:
            raise ConversationClosed(
                f"Conversation {context.journal.id!r} was closed; the command stays in its inbox"
                " for the next owner."
            )
        refused = context.journal.store.refusal(context.journal.id, key)
        if refused is not None:
            raise error_of_form(refused, ConfigurationError)


def _kept(error: HoldfastError) -> ErrorForm:
    """Return the error of a refused command as the store keeps it. The details of values that do
    not fit are left out, since they may be secrets."""
    shown = form_of_error(detailed(error))
    details = {} if isinstance(error, UnfitCommand) else shown.details
    return ErrorForm(shown.type, clean(str(error))[:_MAX_REFUSAL_CHARS], details)
