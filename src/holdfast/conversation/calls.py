"""Running the calls of an answer: at most so many at once, each journaled before it begins and when it ends."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.callbacks import guarded
from holdfast.conversation.journal import Journal
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConversationClosed, StoreError, ToolNotFound
from holdfast.tools import Cancellation, ToolContext

_log = logging.getLogger("holdfast")

UNKNOWN_OUTCOME = (
    "The process that ran this call ended before it gave a result, so its outcome is unknown: it may have happened, in part or whole, "
    "or not at all. Check what is there before you repeat it."
)
INTERRUPTED = "Not run: the conversation was interrupted before this call began."


class Calls:
    """The calls of one conversation, the threads that they run on, and what they asked to have cleaned up at its end.

    `run` and `recover` are the driver's, on its thread; the rest may be called from any. `token` cancels what runs now, a
    model call included; `closing` says that nothing further is to begin.
    """

    __slots__ = ("_agent", "_cleaned", "_cleanups", "_journal", "_on_progress", "_runtime", "_threads", "closing", "token")

    def __init__(self, agent: Agent, journal: Journal, runtime: object | None, on_progress: Callable[[str, str], object] | None) -> None:
        self.token = Cancellation()
        self.closing = False
        self._agent = agent
        self._journal = journal
        self._runtime = runtime
        self._on_progress = None if on_progress is None else guarded(on_progress)
        self._threads: set[threading.Thread] | None = None
        self._cleanups: dict[object, Callable[[], None]] | None = None
        self._cleaned = False

    def cancel(self) -> None:
        """Cancel the model call and the tool calls that run now; those that come later are not affected."""
        with self._journal.changed:
            token, self.token = self.token, Cancellation()
        token.cancel()

    def write_start(self, call: ToolCall, attempt: int) -> None:
        journal = self._journal
        journal.add(ev.ToolCallStarted, call_id=call.id, attempt=attempt, idempotency_key=f"{journal.id}:{call.id}")

    def write_refusal(self, call: ToolCall) -> None:
        self._journal.add(ev.ToolResult, call_id=call.id, result=ToolResult.failure(INTERRUPTED, "cancelled"))

    def run(self, calls: Sequence[ToolCall], started: Collection[str] = (), token: Cancellation | None = None) -> None:
        """Run calls, at most `parallel_calls` at once; this thread is one of the workers. Those in `started` are journaled so."""
        if token is None:
            with self._journal.changed:
                token = self.token
        if len(calls) == 1:
            self._run_one(calls[0], calls[0].id in started, token)
            return
        queue = deque(calls)
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while queue:
                    try:
                        call = queue.popleft()
                    except IndexError:
                        return
                    if not self._run_one(call, call.id in started, token):
                        return
            except BaseException as error:
                failures.append(error)
                token.cancel()  # the store failed, or Ctrl-C: nothing further is to begin

        helpers: list[threading.Thread] = []
        try:
            for n in range(1, min(len(calls), self._agent.parallel_calls)):
                try:
                    helpers.append(self._start_thread(work, f"holdfast-call-{calls[0].id}+{n}"))
                except RuntimeError:  # no further thread is to be had; those there are do the work
                    break
            work()
            for helper in helpers:
                helper.join()
        except BaseException:  # Ctrl-C between or while waiting for calls
            token.cancel()
            self.left_running(time.monotonic() + 1.0)
            raise
        if failures:
            raise failures[0]

    def _run_one(self, call: ToolCall, started: bool, token: Cancellation, attempt: int = 1) -> bool:
        """Run one call to its `ToolResult` event; False if the conversation no longer wants calls begun."""
        journal = self._journal
        if not started:
            with journal:
                if journal.fold.status is not ConversationStatus.RUNNING or self.closing or token or call.id not in journal.fold.open:
                    return False
                self.write_start(call, attempt)
        context = ToolContext(journal.id, call.id, attempt, token, self._runtime, self._progress_of(call), self._keep)

        def before_attempt(number: int) -> None:
            with journal:
                self.write_start(call, number)

        began = time.monotonic()
        interrupt: BaseException | None = None
        try:
            if token:
                result = ToolResult.failure(INTERRUPTED, "cancelled")
            else:
                result = self._agent.tools.run(call, context, before_attempt, self._start_thread)
        except (ConversationClosed, StoreError):
            raise
        except BaseException as error:  # sys.exit in a callback, or Ctrl-C on a borrowed thread
            result = ToolResult.failure(f"{call.name!r} was ended by {type(error).__name__}. Its effect may have happened.", "cancelled")
            interrupt = error if isinstance(error, KeyboardInterrupt) else None
        with journal:
            if call.id in journal.fold.open:  # else Ctrl-C left this call behind, and it has been settled since
                journal.add(ev.ToolResult, call_id=call.id, result=result, duration=time.monotonic() - began)
        if interrupt is not None:
            raise interrupt
        return True

    def recover(self, calls: Sequence[ToolCall]) -> None:
        """Settle what a dead owner left: repeat what may be repeated, and tell the model of the rest that it cannot know."""
        with self._journal.changed:
            token, attempts = self.token, {call_id: item.attempt for call_id, item in self._journal.fold.open.items()}
        for call in calls:
            if self._repeatable(call.name):
                self._run_one(call, False, token, attempts[call.id] + 1)
            else:
                with self._journal as journal:
                    result = ToolResult.failure(UNKNOWN_OUTCOME, "unknown", meta={"outcome": "unknown"})
                    journal.add(ev.ToolResult, call_id=call.id, result=result)

    def _repeatable(self, name: str) -> bool:
        try:
            return self._agent.tools.get(name).annotations.repeatable
        except ToolNotFound:
            return False

    def refuse_queued(self) -> None:
        """Answer every call that never began. Within a transaction."""
        for item in self._journal.fold.open.values():
            if not item.attempt:
                self.write_refusal(item.call)

    def _progress_of(self, call: ToolCall) -> Callable[[str], None]:
        tell = self._on_progress

        def report(message: str) -> None:
            if tell is not None:
                tell(call.id, message)

        return report

    # --- threads and what is to be cleaned up ---

    def _start_thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        context = contextvars.copy_context()

        def run() -> None:
            try:
                context.run(work)
            finally:
                with self._journal.changed:
                    if self._threads is not None:
                        self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._journal.changed:
            thread.start()  # under the lock, so that whoever finds it may join it
            if self._threads is None:
                self._threads = set()
            self._threads.add(thread)
        return thread

    def _keep(self, key: object, cleanup: Callable[[], None]) -> None:
        with self._journal.changed:
            if not self._cleaned:
                self._cleanups = {**(self._cleanups or {}), key: cleanup}
                return
        cleanup()  # by a call that `close` left behind

    def left_running(self, deadline: float) -> list[str]:
        """Wait for this conversation's call threads until `deadline` (monotonic seconds); the names of those that did not end."""
        with self._journal.changed:
            threads = list(self._threads or ())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive() and thread is not threading.current_thread()]

    def clean_up(self) -> None:
        """Run what tools asked to have run at the end, the last asked first."""
        with self._journal.changed:
            cleanups, self._cleanups, self._cleaned = list((self._cleanups or {}).values()), None, True
        for cleanup in reversed(cleanups):
            try:
                cleanup()
            except Exception:
                _log.exception("cleaning up after conversation %s", self._journal.id)
