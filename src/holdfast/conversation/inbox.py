"""`CommandInbox`: the commands that any process leaves for a conversation in its store."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast import commands as cmd
from holdfast.conversation.executor import (
    REFUSALS,
    CommandExecutor,
    Effect,
    Prepared,
    UnfitCommand,
    detailed,
)
from holdfast.conversation.hook_points import journal_denial
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

if TYPE_CHECKING:
    from holdfast.conversation.hosting import Hosting

_MAX_REFUSAL_CHARS = 2000  # characters of the message of a refused command's error

# In these statuses a pause or an interrupt has the same effect before a command as after it.
_STOPPABLE = (ConversationStatus.RUNNING, ConversationStatus.WAITING_FOR_CONFIRMATION)

# The inbox to which this thread posts a command that it then carries out itself.
_posts_to: contextvars.ContextVar[CommandInbox | None] = contextvars.ContextVar(
    "holdfast_posts_to", default=None
)


class _Outcome(ObjectStruct):
    """The outcome of a posted command, for the `waiting` callers that posted it."""

    waiting: int = 0
    done: bool = False
    error: HoldfastError | None = None


class CommandInbox(ObjectStruct):
    """The inbox of one open conversation. Thread-safe.

    News of posted commands comes on threads that must not wait, such as the one thread that watches
    a store. `drain_soon` carries commands out at once as far as no user code is asked about them.
    A thread of its own drains the rest, and ends when nothing is left.
    """

    _context: RunContext
    _executor: CommandExecutor
    _hosting: Hosting  # weak
    _last_number: int = 0  # the number of the last command that was done in order
    _passed: frozenset[int] = frozenset()  # the numbers of later ones that were done before it
    # by number of a command: the thread on which user code is asked about it
    _askers: dict[int, int] | None = None
    # the threads that left commands to other threads, which ask user code
    _deferred: frozenset[int] = frozenset()
    # by key, for the callers that wait for them; None if none does
    _outcomes: dict[str, _Outcome] | None = None
    # Guards the fields below. It is held for an instant, and reentrant for signal handlers.
    _news_lock: threading.RLock = msgspec.field(default_factory=threading.RLock)
    _has_news: bool = False  # True if `_drainer` must read the inbox once more
    _drainer: threading.Thread | None = None  # the thread that sees `_has_news`
    _threads: tuple[threading.Thread, ...] = ()  # it, and others that user code keeps

    @property
    def awaited(self) -> bool:
        """True if a caller waits for the outcome of its command."""
        return self._outcomes is not None

    # --- news ---

    def drain_soon(self) -> None:
        """Drain the inbox, from the first command that user code is asked about on a thread of its
        own. Waits for no user code."""
        if _posts_to.get() is self or self._drain_at_once():
            return
        with self._news_lock:
            self._has_news = True
            if self._drainer is None:
                self._start_drainer()

    def _drain_at_once(self) -> bool:
        """Carry commands out up to one that user code is asked about. Return True if none is
        left."""
        try:
            if not self._hosting.has_lease:
                return True
        except ReferenceError:  # the conversation has no reference any more
            return True
        with self._news_lock:
            if self._drainer is not None:
                return False
        return self.drain(waits=False, asks=False)

    def _start_drainer(self) -> None:
        """Start the thread that drains the inbox. Needs `_news_lock`."""
        if self._context.closing or self._context.failure is not None:
            return
        try:
            # The bound method keeps the conversation alive until its inbox is drained.
            arguments = (self._hosting.drain_inbox,)
        except ReferenceError:  # the conversation has no reference any more
            return
        name = f"holdfast-inbox-{self._context.journal.id}"
        thread = threading.Thread(target=self._drain_news, args=arguments, name=name, daemon=True)
        self._drainer, self._threads = thread, (*self._threads, thread)
        try:
            thread.start()
        except BaseException as error:  # the process ends, has too many threads, or Ctrl-C
            self._drainer, self._threads = None, self._threads[:-1]
            if not isinstance(error, RuntimeError):
                raise
            self._context.journal.log(f"its inbox cannot be read at present: {error}")

    def _drain_news(self, drain: Callable[[], None]) -> None:
        thread = threading.current_thread()
        try:
            while self._takes_news(thread):
                try:
                    drain()
                except BaseException as error:  # user code may raise anything
                    problem = f"a posted command could not be carried out: {error!r}"
                    self._context.journal.log(problem, traceback=True)
        finally:
            with self._news_lock:
                self._threads = tuple([one for one in self._threads if one is not thread])

    def _takes_news(self, thread: threading.Thread) -> bool:
        with self._news_lock:
            if self._drainer is not thread:  # it has stepped aside
                return False
            if not self._has_news:
                self._drainer = None
                return False
            self._has_news = False
            return True

    def _step_aside(self) -> None:
        """Leave further news to another thread, since user code may keep this one."""
        with self._news_lock:
            if self._drainer is threading.current_thread():
                self._drainer = None
                if self._has_news:
                    self._start_drainer()

    def join(self, deadline: float) -> list[str]:
        """Wait for the threads of a closing conversation until `deadline` (monotonic seconds), and
        return the names of the threads that user code keeps."""
        with self._news_lock:
            threads = [one for one in self._threads if one is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    # --- commands ---

    def drain(self, awaited: _Outcome | None = None, waits: bool = True, asks: bool = True) -> bool:
        """Carry out the commands in the inbox, each with its mark in one transaction. Does nothing
        without the lease.

        A command that does not fit is dropped, with a warning in the log. If the lease was lost the
        conversation stops. No lock is held while user code is asked about a command. Other threads
        wait for its answer, but a pause or an interrupt of a run passes the command.

        Args:
            awaited: Return as soon as this outcome is known.
            waits: Wait while another thread asks user code about a command.
            asks: Ask user code about commands; else stop before the first that needs it.

        Returns:
            False if commands are left. Either `asks` is False, or a thread (perhaps this one,
            further up) asks user code about an earlier command.
        """
        finished, nested = False, False
        try:
            finished = self._carry_out_all(awaited, waits, asks)
        finally:
            if self._deferred:
                nested = self._continue_deferred()
        if nested:  # this thread left them, within a hook that has returned by now
            self.drain(waits=waits)
        return finished

    def _carry_out_all(self, awaited: _Outcome | None, waits: bool, asks: bool) -> bool:
        try:
            for posted, passes in self._in_order():
                if awaited is not None and awaited.done:
                    return True
                if not asks and self._executor.asks_user_code(posted.command):
                    return False
                if not self._claim(posted, waits):
                    return False
                try:
                    effect = self._carry_out(posted, passes)
                finally:
                    self._release(posted)
                if effect is not None:
                    self._step_aside()
                    effect()
        except ConversationClosed:
            pass
        except StoreError as error:
            self._context.fail(error)
        return True

    def _continue_deferred(self) -> bool:
        """See to deferred commands once no thread asks user code. Return True if this thread is to
        carry them out."""
        with self._context.journal.lock:
            if self._askers:
                return False
            deferred, self._deferred = self._deferred, frozenset()
        if threading.get_ident() in deferred:
            return True
        if deferred:
            self.drain_soon()
        return False

    def _in_order(self) -> Iterator[tuple[Posted, bool]]:
        """Yield the commands, and True beside one that passes a command that user code is asked
        about."""
        waiting = self._waiting()
        with self._context.journal.lock:
            running = self._context.journal.fold.status in _STOPPABLE
            first = min(self._askers) if self._askers and running else None
        if first is not None:
            for posted in waiting:
                if posted.number > first and isinstance(posted.command, cmd.Pause | cmd.Interrupt):
                    yield posted, True
        for posted in waiting:
            yield posted, False

    def _claim(self, posted: Posted, waits: bool) -> bool:
        """Wait until no other thread asks user code about a command. Return False if this one does,
        or does not wait. Raises `ConversationClosed` if the conversation ends meanwhile."""
        context, me = self._context, threading.get_ident()
        with context.journal.lock:
            while self._askers and (thread := self._askers.get(posted.number)) is not None:
                if context.closing or context.failure is not None:
                    raise context.journal.closed_error()
                if thread == me or not waits:
                    self._deferred |= {me}
                    return False
                context.journal.lock.wait()
            if not self._executor.asks_user_code(posted.command):
                return True
            self._askers = {**(self._askers or {}), posted.number: me}
        self._step_aside()
        return True

    def _release(self, posted: Posted) -> None:
        if self._askers is not None:
            with self._context.journal.lock:
                askers = (
                    self._askers or {}
                )  # another thread may have removed the last one meanwhile
                rest = {one: by for one, by in askers.items() if one != posted.number}
                self._askers = rest or None
                self._context.journal.lock.notify_all()

    def _carry_out(self, posted: Posted, passes: bool) -> Effect | None:
        if self._is_done(posted):
            return None  # another thread has carried it out
        prepared = self._prepare(posted.command)  # user code, so not under the lock
        return self._take(posted, prepared, passes)

    def _is_done(self, posted: Posted) -> bool:
        return posted.number <= self._last_number or posted.number in self._passed

    def _waiting(self) -> list[Posted]:
        context = self._context
        with context.journal.lock:
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
        with journal.lock:
            if self._is_done(posted) or context.closing:
                return None  # another thread has carried it out
            if passes:
                self._passed |= {posted.number}
            else:
                self._last_number = posted.number
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
                    journal.refuse(posted, _refusal_form(misfit))
            outcome = None if self._outcomes is None else self._outcomes.get(posted.key)
            if outcome is not None:
                outcome.done, outcome.error = True, misfit
            elif misfit is not None:
                journal.log(f"a posted {type(posted.command).__name__} was dropped: {misfit}")
            return effect

    def post(self, command: cmd.Command, key: str) -> bool:
        """Post a command, for a caller that drains the inbox then. See `Store.post`."""
        token = _posts_to.set(self)
        try:
            return self._context.journal.store.post(self._context.journal.id, command, key)
        finally:
            _posts_to.reset(token)

    def execute(self, command: cmd.Command, key: str) -> None:
        """Post a command under `key`, and carry it out. Raises its `ConfigurationError`, `Conflict`
        or `ToolValidationError`, also if another thread has carried it out.

        Within a hook on a posted message, the command is carried out after that message, and this
        method returns before.
        """
        context, lock = self._context, self._context.journal.lock
        with lock:
            self._outcomes = outcomes = {} if self._outcomes is None else self._outcomes
            outcome = outcomes.setdefault(key, _Outcome())
            outcome.waiting += 1
        try:
            repeated = not self.post(command, key)
            deferred = not self.drain(outcome)
        finally:
            with lock:
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
        refusal = context.journal.store.refusal(context.journal.id, key)
        if refusal is not None:
            raise error_of_form(refusal, ConfigurationError)


def _refusal_form(error: HoldfastError) -> ErrorForm:
    """Return the error of a refused command as the store keeps it. The details of values that do
    not fit are left out, since they may be secrets."""
    form = form_of_error(detailed(error))
    details = {} if isinstance(error, UnfitCommand) else form.details
    return ErrorForm(form.type, clean(str(error))[:_MAX_REFUSAL_CHARS], details)
