"""Execution of the tool calls whose turn it is. Each call is journaled before it begins and when
it ends."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent.confirmation import Verdict
from holdfast.agent.output import is_output
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation.fold import OpenCall
from holdfast.conversation.hook_points import journal_failed_hook
from holdfast.conversation.journal import Journal
from holdfast.conversation.outputs import trim_result
from holdfast.conversation.questions import UserQuestions
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.timers import wake
from holdfast.conversation.verdicts import CallVerdict
from holdfast.error_text import describe_error
from holdfast.errors import (
    ConversationClosed,
    StoreError,
    ToolNotFound,
    UnreadableEvent,
    WrongProcess,
)
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.context import CallParked
from holdfast.tools.hooks import HOOK, Hooks
from holdfast.tools.results import as_result, clean

if TYPE_CHECKING:
    from holdfast.conversation.hosting import Hosting

_log = logging.getLogger("holdfast")

UNKNOWN_OUTCOME = (
    "The process that ran this call ended before it gave a result, so its outcome is unknown: it"
    " may have happened, in part or whole, or not at all. Check what is there before you repeat it."
)
UNKNOWN = (
    "Its outcome is unknown: it may have happened, in part or whole, or not at all. Check what is"
    " there before you repeat it."
)
UNWRITABLE = "The result of {name!r} cannot be stored: {problem}. Its effect may have happened."
DOUBTFUL = " A record of this call is damaged, so its progress is unknown."
REJECTED = "Not run: {by} rejected this call{reason}"
DENIED = "Not run: this call is not allowed{reason}"
EDITED = "[The approver of this call changed its arguments to {arguments}; it was run with these.]"
INTERRUPTED = "Not run: the conversation was interrupted before this call began."


CONTINUES_LATER = "holdfast/left"
"""The `meta` key of a result whose call continues when the conversation is opened again. The
result is not written while the conversation is being closed."""


def _unknown(more: str = "") -> ToolResult:
    return ToolResult.failure(UNKNOWN_OUTCOME + more, "unknown", meta={"outcome": "unknown"})


def _with_edit_note(result: ToolResult, call: ToolCall) -> ToolResult:
    note = TextContent(EDITED.format(arguments=call.raw_arguments))
    return replace(result, content=(note, *result.content))


class _Batch(ObjectStruct):
    """Calls that run side by side: the waiting ones, and the helper threads."""

    queue: deque[ToolCall]
    ids: set[str]  # the ids of all its calls
    _start: Callable[[int], threading.Thread]
    _max_helpers: int  # besides the driving thread
    parent: str  # the call whose script made the calls, "" for calls of the answer
    helpers: list[threading.Thread] = []
    failures: list[BaseException] = []
    _helper_count: int = 0

    def next(self) -> ToolCall | None:
        try:
            return self.queue.popleft()
        except IndexError:
            return None

    def admit(self, ready: Iterable[ToolCall]) -> None:
        """Queue calls that the batch does not have yet, and start threads for them."""
        new = [call for call in ready if call.id not in self.ids]
        self.ids.update([call.id for call in new])
        self.queue.extend(new)
        self.hire(len(new))

    def hire(self, count: int) -> None:
        """Start up to `count` more helper threads."""
        self.helpers = [helper for helper in self.helpers if helper.is_alive()]
        for _ in range(count):
            if len(self.helpers) >= self._max_helpers:
                return
            self._helper_count += 1
            try:
                self.helpers.append(self._start(self._helper_count))
            except RuntimeError:  # the system has no further thread; the existing ones do the work
                return

    def busy(self) -> bool:
        return any(helper.is_alive() for helper in self.helpers)

    def join(self) -> None:
        for helper in self.helpers:
            helper.join()


class Calls(ObjectStruct):
    """The tool calls of one conversation, their threads, and the cleanups that tools registered.

    The loop calls `run` and `recover` on its thread; the rest is thread-safe.
    """

    _context: RunContext
    _journal: Journal
    questions: UserQuestions
    _on_progress: Callable[[str, str], None]
    _family: Hosting  # weak: makes the children and the delegation at their first use
    _batch: _Batch | None = None
    _threads: set[threading.Thread] | None = None
    _cleanups: dict[object, Callable[[], None]] | None = None
    _cleaned: bool = False

    def write_start(self, call: ToolCall, attempt: int, runner: str = "") -> None:
        """Write the start of an attempt. Only within a transaction."""
        journal = self._journal
        journal.add(
            ev.ToolCallStarted,
            call_id=call.id,
            attempt=attempt,
            idempotency_key=f"{journal.id}:{call.id}",
            runner=runner,
        )

    def write_refusal(self, call: ToolCall) -> None:
        """Write the result of a call that an interrupt kept from starting. Only within a
        transaction."""
        result = ToolResult.failure(INTERRUPTED, "cancelled")
        self._journal.add(ev.ToolCallFinished, call_id=call.id, result=result)

    def run(
        self,
        calls: Sequence[ToolCall],
        started: Collection[str] = (),
        token: Cancellation | None = None,
        attempts: Mapping[str, int] | None = None,
        parent: str = "",
    ) -> None:
        """Run calls whose turn it is, at most `parallel_calls` at once; this thread is one of the
        workers.

        Neighbours that become ready meanwhile, by an approval or a rejection, join them.

        Args:
            started: Ids of calls whose start is in the journal.
            token: Cancels the calls; the conversation's present one if None.
            attempts: Number of the attempt by call id; 1 for a call that is not in it.
            parent: The call whose script made them; "" for calls of the answer.
        """
        with self._journal.lock:
            token = self._context.token if token is None else token
            alone = len(calls) == 1 and len(self._turn(parent)) == 1
        attempts = attempts or {}
        if alone:
            self._run_one(calls[0], calls[0].id in started, token, attempts.get(calls[0].id, 1))
            return

        def work() -> None:
            try:
                while (call := batch.next()) is not None:
                    if not self._run_one(call, call.id in started, token, attempts.get(call.id, 1)):
                        return
            except BaseException as error:  # the store failed, or Ctrl-C
                batch.failures.append(error)
                self._context.cancel(token)  # no further call may begin

        with self._journal.lock:
            # Helpers get this loop's context even if an approving thread starts them.
            name, context = f"holdfast-call-{calls[0].id}", contextvars.copy_context()
            batch = _Batch(
                deque(calls),
                {call.id for call in calls},
                lambda number: self._start_thread(work, f"{name}+{number}", context),
                self._context.agent.parallel_calls - 1,
                parent,
            )
            self._batch = batch
        try:
            with self._journal.lock:
                batch.hire(len(calls) - 1)
                batch.admit(self._ready(parent))  # calls approved since `calls` was drawn up
            while True:
                work()
                batch.join()
                with self._journal.lock:
                    if not batch.busy() and (batch.failures or token or not batch.queue):
                        self._batch = None
                        break
        except BaseException:  # Ctrl-C between calls or while waiting for them
            with self._journal.lock:
                self._batch = None
            self._context.cancel(token)
            self.left_running(time.monotonic() + 1.0)
            raise
        if batch.failures:
            raise batch.failures[0]

    def admit(self) -> None:
        """Start calls that a decision made ready, if their neighbours are running."""
        with self._journal.lock:
            if self._batch is not None:
                self._batch.admit(self._ready(self._batch.parent))

    def _turn(self, parent: str) -> list[OpenCall]:
        fold = self._journal.fold
        return fold.nested(parent) if parent else fold.turn

    def _ready(self, parent: str) -> list[ToolCall]:
        return [item.call for item in self._turn(parent) if item.ready]

    def _run_one(
        self, call: ToolCall, started: bool, token: Cancellation, attempt: int = 1
    ) -> bool:
        """Run one call until its result; return False if no further call may begin."""
        journal = self._journal
        edited = False
        if not started:
            with journal:
                item = journal.fold.open.get(call.id)
                if not self._context.may_ask or token:
                    return False
                waits = item is None or item.ask_reason is not None or item.offered
                if item is None or waits or item.attempt >= attempt:
                    return True  # answered meanwhile, or already part of a batch
                call, edited = item.effective, item.arguments is not None
                self.write_start(call, attempt)

        began = time.monotonic()
        interrupt: BaseException | None = None
        try:
            result = self._run_tool(call, attempt, token)
        except (ConversationClosed, StoreError, WrongProcess):
            raise
        except CallParked as parked:
            if parked.__cause__ is not None:
                raise parked.__cause__ from None
            return False
        except BaseException as error:  # sys.exit in a callback, or Ctrl-C on a borrowed thread
            if not journal.owner.here:  # in a child process that the callback forked
                raise
            kind = type(error).__name__
            text = f"{call.name!r} was ended by {kind}. Its effect may have happened."
            result = ToolResult.failure(text, "cancelled")
            interrupt = error if isinstance(error, KeyboardInterrupt) else None
        if self._context.agent.delegates is not None:
            result = self._family.delegation().restore_meta(call.id, result)
            if self._context.closing and CONTINUES_LATER in result.meta:
                return False
        if edited:
            result = _with_edit_note(result, call)
        with journal:
            # otherwise Ctrl-C left this call behind, and it has been settled since
            if call.id in journal.fold.open:
                self.write_result(call, result, time.monotonic() - began)
                goes_on = len(journal.fold.open) == 1 and not (token or self._context.closing)
                if journal.spending is not None and goes_on:
                    journal.spending.expect(self._context.agent.llm)
        if interrupt is not None:
            raise interrupt
        return True

    def _run_tool(self, call: ToolCall, attempt: int, token: Cancellation) -> ToolResult:
        """Run the tool of a started call, and return its result. Raises `CallParked`, and what ends
        a thread."""
        if token:
            return ToolResult.failure(INTERRUPTED, "cancelled")
        journal, tools = self._journal, self._context.agent.tools

        def before_attempt(number: int) -> None:
            with journal:
                self.write_start(call, number)

        context = self.context(call, attempt, token)
        work = partial(tools.run, call, context, before_attempt, self._start_thread, self._hooks)
        if (undo := self._context.undo) is not None:
            key = f"{journal.id}:{call.id}"
            work = partial(undo.watch, call, key, tools, self._context.runtime, work)
        observed = journal.observed
        return work() if observed is None else observed.run_call(call.id, work)

    @property
    def _hooks(self) -> Hooks | None:
        hooked = self._context.agent.hooked
        return None if hooked is None else hooked.tools

    def context(
        self, call: ToolCall, attempt: int = 1, token: Cancellation | None = None
    ) -> ToolContext:
        journal, context = self._journal, self._context
        return ToolContext(
            journal.id,
            call.id,
            attempt,
            context.token if token is None else token,
            context.runtime,
            partial(self._on_progress, call.id),
            self._register_cleanup,
            journal.process_environment,
            self.questions,
            context.llm(),
            journal.output,
            self._family.children,
            self._family.delegation,
            journal.secrets,
            journal.confirm,
            self._wake,
            context.note,
            self._family.scripts,
        )

    def _wake(
        self, call_id: str, when: datetime | timedelta | str, note: str, timezone: str, id: str
    ) -> datetime:
        """Set a timer for a call; see `ToolContext.wake_at`."""
        return wake(self._journal, call_id, when, note, timezone, id)

    def write_result(self, call: ToolCall, result: ToolResult, duration: float = 0.0) -> None:
        """Journal a call's result, within a transaction.

        A large output is trimmed, and the store keeps the whole. A result that cannot be written
        becomes an error of the call.
        """
        blobs: list[bytes] = []
        if self._journal.secrets is not None:  # the store keeps the whole of it, too
            result = self._journal.secrets.mask_result(result)
        try:
            if not is_output(call.name, result):
                result, blobs = trim_result(result, self._context.agent.output_limit)
            self._journal.add(
                ev.ToolCallFinished, call_id=call.id, result=result, duration=duration
            )
        except (UnreadableEvent, TypeError, ValueError) as error:
            # a value that is not JSON cannot even be measured
            blobs = []
            problem = error.problem if isinstance(error, UnreadableEvent) else str(error)
            text = UNWRITABLE.format(name=call.name, problem=clean(problem).rstrip("."))
            result = ToolResult.failure(text)
            self._journal.add(ev.ToolCallFinished, call_id=call.id, result=result)
        for data in blobs:
            self._journal.keep(data, self._journal.next_seq - 1)
        if HOOK in result.meta:
            journal_failed_hook(self._journal, result)

    # --- calls that clients run ---

    def refuse_client_calls(
        self, calls: Sequence[ToolCall], verdicts: Sequence[Verdict], clients: Collection[str]
    ) -> dict[int, ToolResult]:
        """Return immediate refusals of calls of the tools `clients` by index. Runs user code."""
        refusals = dict[int, ToolResult]()
        if clients:
            for index, call in enumerate(calls):
                if call.name in clients and not (verdicts and verdicts[index].decision == "deny"):
                    result = self._context.agent.tools.refused(
                        call, self.context(call, 1, self._context.token), self._hooks
                    )
                    if result is not None:
                        refusals[index] = result
        return refusals

    def client_result(self, item: OpenCall, result: ToolResult) -> ToolResult:
        """Return a client's result after hooks, as the model is shown it. Runs user code."""
        call = item.effective
        try:
            result = self._context.agent.tools.finish(
                call, result, self.context(call, item.attempt, self._context.token), self._hooks
            )
        except Exception as error:
            # The effect has happened. A failure to convert its result must not leave the call open.
            result = ToolResult.failure(
                f"{call.name!r} was run, but its result is held back: {describe_error(error)}"
            )
        return result if item.arguments is None else _with_edit_note(result, call)

    def write_settled(self, item: OpenCall, reason: str, kind: str) -> None:
        """Answer a call that no client will answer. Within a transaction."""
        result = ToolResult.failure(f"Not run: {reason}", "cancelled")
        if item.attempt:
            meta = {"outcome": "unknown"}
            result = ToolResult.failure(f"{reason} {UNKNOWN}", kind, meta=meta)
        self.write_result(item.call, result)

    # --- decisions before a call, recovery after a crash ---

    def write_decision(self, call: ToolCall, verdict: CallVerdict) -> None:
        """Journal the verdict on a call and, if it is denied, its result. Within a transaction."""
        if verdict.silent:
            return
        risk = verdict.risk
        more: dict[str, Any] = {}
        if risk is not None and verdict.counted:
            more = {"usage": risk.usage, "cost": risk.cost, "model": risk.model}
        self._journal.add(
            ev.DecisionMade,
            call_id=call.id,
            decision=verdict.decision,
            by=verdict.by or "policy",
            reason=verdict.reason,
            arguments_hash=call.arguments_hash,
            risk="" if risk is None else risk.level,
            **more,
        )
        if verdict.decision == "deny":
            text = DENIED.format(reason=f": {verdict.reason}" if verdict.reason else "")
            result = ToolResult.failure(text, "cancelled", meta={"decision": "deny"})
            self.write_result(call, result)

    def recover(self, calls: Sequence[ToolCall], parent: str = "") -> None:
        """Settle the calls that a dead owner left open, of the script of `parent` if one is given.

        A repeatable call runs again. A tool with `reconcile` reports the outcome. Any other call
        gets a result that tells the model that its outcome is unknown.
        """
        with self._journal.lock:
            token = self._context.token
            items = {call.id: copy(self._journal.fold.open[call.id]) for call in calls}
        again: list[ToolCall] = []
        for call in calls:
            if token:
                return
            item = items[call.id]
            result = _unknown(DOUBTFUL) if item.doubtful else self._recovered(item, token)
            if result is None:
                again.append(call)
                continue
            if item.arguments is not None:
                result = _with_edit_note(result, item.effective)
            with self._journal as journal:
                if call.id in journal.fold.open:
                    self.write_result(call, result)
        if again:
            attempts = {call.id: items[call.id].attempt + 1 for call in again}
            self.run(again, (), token, attempts, parent)

    def _recovered(self, item: OpenCall, token: Cancellation) -> ToolResult | None:
        """Return the result of a call that was started once; None if it is to run again."""
        call, attempt = item.effective, item.attempt
        try:
            tool = self._context.agent.tools.get(call.name)
        except ToolNotFound:
            return _unknown()
        if tool.annotations.repeatable:
            return None
        if tool.reconcile is None:
            return _unknown()
        try:
            outcome = tool.reconcile(call, self.context(call, attempt, token))
            # a bool looks like "it happened" or not, but would be taken for the result
            if isinstance(outcome, bool):
                raise TypeError(
                    f"reconcile returned {outcome}; it must return the call's result, or None if"
                    " the call did not happen"
                )
            if outcome is None:
                return None
            return self._context.agent.tools.finish(
                call, as_result(tool.name, outcome), self.context(call, attempt, token), self._hooks
            )
        except (ConversationClosed, StoreError, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._journal.log(f"reconcile of {call.name} failed: {type(error).__name__}")
            why = describe_error(error)
            return _unknown(f" The reconcile function of {call.name!r} failed: {why}")

    def refuse_queued(self) -> None:
        """Write the refusal of all calls that were not started. Only within a transaction."""
        for item in self._journal.fold.open.values():
            if not item.attempt:
                self.write_refusal(item.call)

    def refuse(self, calls: Sequence[ToolCall], by: str, reason: str) -> None:
        """Write the rejection of calls. Only within a transaction."""
        by = "the user" if by == "user" else by
        text = REJECTED.format(by=by, reason=f": {reason}" if reason else "")
        for call in calls:
            result = ToolResult.failure(text, "cancelled", meta={"decision": "reject"})
            self.write_result(call, result)

    # --- threads and cleanups ---

    def _start_thread(
        self, work: Callable[[], None], name: str, context: contextvars.Context | None = None
    ) -> threading.Thread:
        context = contextvars.copy_context() if context is None else context.copy()

        def run() -> None:
            try:
                context.run(work)
            finally:
                with self._journal.lock:
                    if self._threads is not None:
                        self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._journal.lock:
            thread.start()  # under the lock, so that any thread that finds it may join it
            if self._threads is None:
                self._threads = set()
            self._threads.add(thread)
        return thread

    def _register_cleanup(self, key: object, cleanup: Callable[[], None]) -> None:
        with self._journal.lock:
            if not self._cleaned:
                self._cleanups = {**(self._cleanups or {}), key: cleanup}
                return
        cleanup()  # registered by a call that `close` left behind

    def left_running(self, deadline: float) -> list[str]:
        """Wait for call threads until `deadline` (monotonic seconds); return the ones left."""
        with self._journal.lock:
            threads = [one for one in self._threads or () if one is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def clean_up(self) -> None:
        """Run the cleanups that tools registered, the last registered first."""
        with self._journal.lock:
            cleanups = list((self._cleanups or {}).values())
            self._cleanups = None
            self._cleaned = True
        for cleanup in reversed(cleanups):
            try:
                cleanup()
            except Exception as error:
                secrets = self._journal.secrets
                if secrets is None:
                    _log.exception("cleaning up after conversation %s", self._journal.id)
                else:  # a traceback may have a value
                    text = secrets.mask(describe_error(error))
                    _log.error("cleaning up after conversation %s: %s", self._journal.id, text)
