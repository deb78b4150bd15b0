"""The loop: it asks `next_action`, does that, and writes down what came of it. One driver per open conversation."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.prompt import CUT_ANSWER, EMPTY_ANSWER
from holdfast.agent.view import View
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation.actions import Action, Call, Recover, Step, Stop, Wait, limit_error, next_action
from holdfast.conversation.journal import Journal
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import BadResponse, ConversationClosed, LimitExceeded, LLMError, StoreError, ToolNotFound
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.transcript import Transcript
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.results import clean

_log = logging.getLogger("holdfast")

RUNNING = ConversationStatus.RUNNING

# The conversations whose loops led to this thread's work, outermost first: none of them may wait for itself.
inside: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar("holdfast_inside", default=())

# A conversation at rest keeps the bytes of its view only if it is longer than this: a shorter one is made anew in 0.2 ms, and
# of many open conversations most are short and at rest.
SHORT = 64

UNKNOWN_OUTCOME = (
    "The process that ran this call ended before it gave a result, so its outcome is unknown: it may have happened, in part or whole, "
    "or not at all. Check what is there before you repeat it."
)
INTERRUPTED = "Not run: the conversation was interrupted before this call began."


def _guarded(callback: Callable[..., object]) -> Callable[..., None]:
    """A listener that raises harms itself alone."""

    def call(*arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            _log.exception("a callback raised; the run goes on")

    return call


def _check_readable(event: ev.Assistant) -> None:
    """Raises `BadResponse` for an answer that could not be read from a store again. A model may be anybody's class."""
    try:
        ev.decode(ev.encode(event))
    except (TypeError, ValueError) as error:
        raise BadResponse(f"The model's answer cannot be written down: {error}.") from error


class Driver:
    """Drives one conversation. `drive` runs on one thread at a time; everything else may be called from any."""

    __slots__ = (
        "_announced", "_cleaned", "_cleanups", "_on_delta", "_on_progress", "_runtime", "_seen", "_threads", "_token", "_view",
        "agent", "closing", "failure", "journal", "resting", "thread",
    )  # fmt: skip

    def __init__(
        self,
        agent: Agent,
        journal: Journal,
        runtime: object | None,
        on_delta: Callable[[Delta], object] | None,
        on_progress: Callable[[str, str], object] | None,
    ) -> None:
        self.agent = agent
        self.journal = journal
        self.thread: threading.Thread | None = None  # who drives
        self.resting = True  # whether that one waits for something to do
        self.closing = False
        self.failure: Exception | None = None  # why nothing more can be journaled
        self._runtime = runtime
        self._on_delta = None if on_delta is None else _guarded(on_delta)
        self._on_progress = None if on_progress is None else _guarded(on_progress)
        self._token = Cancellation()
        self._view: View | None = None
        self._seen = 0  # how many events the view was fed
        self._announced: tuple[ev.Agent | None, object] = (None, None)  # the last Agent event, and the tool definitions it was found to fit
        self._threads: set[threading.Thread] | None = None
        self._cleanups: dict[object, Callable[[], None]] | None = None
        self._cleaned = False

    # --- the loop ---

    def drive(self, until_rest: bool) -> None:
        """Do what there is to do, until the conversation rests (`until_rest`) or closes. Raises what the store raises.

        To be called in a context of its own, which ends with it: Ctrl-C must not leave this thread marked as being inside.
        """
        inside.set((*inside.get(), id(self)))
        try:
            while (action := self._next(until_rest)) is not None:
                try:
                    self._do(action)
                except (ConversationClosed, StoreError):
                    raise
                except BaseException as error:
                    self._view = None  # it may have been fed in part
                    if until_rest and not isinstance(error, Exception):
                        raise  # Ctrl-C or sys.exit, for the caller of `run`
                    with self.journal:
                        self._write_error(error)
        except ConversationClosed:
            pass
        except Exception as error:
            # What happens from here on could not be written down, so nothing further may happen.
            self.failure = error
            self.cancel()
            _log.error("conversation %s stopped: %s", self.journal.id, error)
            if until_rest:
                raise
        finally:
            self.leave()

    def _next(self, until_rest: bool) -> Action | None:
        """What to do next, once there is something; None when this thread is to drive no further."""
        journal = self.journal
        with journal.changed:
            while not self.closing:
                action = next_action(journal.fold, self.agent.limits)
                if not isinstance(action, Wait):
                    self.resting = False
                    return action
                if until_rest:
                    break
                self.resting = True
                journal.changed.notify_all()
                journal.changed.wait()
            self.leave()  # before the lock is let go, or a message would count on a driver that has decided to go
        return None

    def leave(self) -> None:
        """This thread drives no further, if it did."""
        with self.journal.changed:
            if self.thread is threading.current_thread():
                self.thread = None
                self.resting = True
                self.journal.changed.notify_all()

    def _do(self, action: Action) -> None:
        match action:
            case Step():
                self._step()
            case Call(calls):
                self._run(calls)
            case Recover(calls):
                self._recover(calls)
            case Stop():
                self._stop(action)
            case Wait():
                pass

    def cancel(self) -> None:
        """Cancel the model call and the tool calls that run now; those that come later are not affected."""
        with self.journal.changed:
            token, self._token = self._token, Cancellation()
        token.cancel()

    def _stop(self, action: Stop) -> None:
        with self.journal as journal:
            if next_action(journal.fold, self.agent.limits) != action:
                return  # a message came in between
            if action.limit is not None:
                self._write_error(limit_error(action.limit, journal.id))
            else:
                journal.add(ev.Status, status=action.status.value, reason=action.reason)
        if self._view is not None and len(self._view.transcript) <= SHORT:
            self._view = None

    def _write_error(self, error: BaseException) -> None:
        """Stop the run on `error`, unless something else stopped it first. Within a transaction."""
        if self.journal.fold.status is not RUNNING:
            return
        details: dict[str, Any] = {}
        if isinstance(error, LLMError):
            details = {"status": error.status, "code": error.code, "requestId": error.request_id, "retryAfter": error.retry_after}
        elif isinstance(error, LimitExceeded):
            details = {"type": error.type, "value": error.value, "limit": error.limit, "source": error.source}
        details = {key: value for key, value in details.items() if value}
        self.journal.add(ev.Error, error=type(error).__name__, message=clean(str(error)), details=details)
        self.journal.add(ev.Status, status=ConversationStatus.ERROR.value, reason=type(error).__name__)
        _log.warning("conversation %s stopped: %s: %s", self.journal.id, type(error).__name__, error)

    # --- one model call ---

    def _step(self) -> None:
        journal = self.journal
        news = self._news()
        with journal.changed:
            with journal:
                if journal.fold.status is not RUNNING or self.closing:
                    return
                if news is not None:
                    journal.add(ev.Agent, **news)
            head = journal.fold.agent
            assert head is not None
            transcript = self._catch_up()
            based_on = journal.fold.last_seq
            token = self._token
        began = time.monotonic()
        try:
            completion = self.agent.step(transcript, head, on_delta=self._on_delta, cancelled=token)
        except Exception as error:
            if not token:  # else whoever cancelled has said what is to be
                with journal:
                    self._write_error(error)
            return
        self._write_answer(completion, based_on, time.monotonic() - began, token)

    def _news(self) -> dict[str, Any] | None:
        """The fields of an `Agent` event, if what requests are made of has changed since the last. Runs users' code: not under the lock."""
        agent, last = self.agent, self.journal.fold.agent
        definitions = agent.tools.definitions()
        if last is not None and self._announced[0] is last and self._announced[1] is definitions:
            return None  # an agent is frozen: only its tools may have changed, and then their tuple is another
        tools, parameters = agent.definitions(last), agent.llm.parameters()
        now = {"system_prompt": agent.system_prompt, "tools": tools, "model": agent.llm.model, "parameters": parameters}
        if last is None or any(getattr(last, name) != value for name, value in now.items()):
            return now
        self._announced = (last, definitions)
        return None

    def _catch_up(self) -> Transcript:
        """The next request's transcript; costs what was appended since the last one. Holds the journal's lock."""
        events = self.journal.events
        new = events[self._seen :] if self._view is not None else ()
        if self._view is None or any(type(event) is ev.Condensation for event in new):
            self._view = View.of(events)
        else:
            for event in new:
                self._view.feed(event)
        self._seen = len(events)
        return self._view.ready()

    def _write_answer(self, answer: Completion, based_on: int, duration: float, token: Cancellation) -> None:
        """One append: the answer, what the loop says to an empty one, and the starts of the calls that run at once."""
        cost = self.agent.llm.cost(answer.usage) if self.agent.limits.cost is not None else None
        started: tuple[ToolCall, ...] = ()
        with self.journal as journal:
            seq = journal.next_seq
            calls = tuple([msgspec.structs.replace(call, id=f"{seq}.{index}") for index, call in enumerate(answer.calls)])
            event = journal.add(
                ev.Assistant, text=answer.text, reasoning=answer.reasoning, calls=calls, usage=answer.usage, based_on=based_on,
                stop_reason=answer.stop_reason, model=answer.model, wire=answer.wire, native=answer.native,
                response_id=answer.response_id, duration=duration, cost=cost,
            )  # fmt: skip
            _check_readable(event)
            if not calls:
                nudge = EMPTY_ANSWER if not answer.text.strip() else CUT_ANSWER if answer.stop_reason == "length" else None
                if nudge is not None:
                    journal.add(ev.Message, content=(TextContent(nudge),), sender="holdfast")
            elif token and not self.closing:  # an interrupt, which this answer outran
                for call in calls:
                    self._write_refusal(call)
            elif journal.fold.status is RUNNING and not self.closing:
                started = calls[: self.agent.parallel_calls]
                for call in started:
                    self._write_start(call, 1)
        if started:
            self._run(calls, {call.id for call in started}, token)

    def _write_start(self, call: ToolCall, attempt: int) -> None:
        journal = self.journal
        journal.add(ev.ToolCallStarted, call_id=call.id, attempt=attempt, idempotency_key=f"{journal.id}:{call.id}")

    def _write_refusal(self, call: ToolCall) -> None:
        self.journal.add(ev.ToolResult, call_id=call.id, result=ToolResult.failure(INTERRUPTED, "cancelled"))

    # --- tool calls ---

    def _run(self, calls: Sequence[ToolCall], started: Collection[str] = (), token: Cancellation | None = None) -> None:
        """Run calls, at most `parallel_calls` at once; this thread is one of the workers. Those in `started` are journaled so."""
        if token is None:
            with self.journal.changed:
                token = self._token
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
            for n in range(1, min(len(calls), self.agent.parallel_calls)):
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
        journal = self.journal
        if not started:
            with journal:
                if journal.fold.status is not RUNNING or self.closing or token or call.id not in journal.fold.open:
                    return False
                self._write_start(call, attempt)
        context = ToolContext(journal.id, call.id, attempt, token, self._runtime, self._progress_of(call), self._keep)

        def before_attempt(number: int) -> None:
            with journal:
                self._write_start(call, number)

        began = time.monotonic()
        interrupt: BaseException | None = None
        try:
            if token:
                result = ToolResult.failure(INTERRUPTED, "cancelled")
            else:
                result = self.agent.tools.run(call, context, before_attempt, self._start_thread)
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

    def _recover(self, calls: Sequence[ToolCall]) -> None:
        """Settle what a dead owner left: repeat what may be repeated, and tell the model of the rest that it cannot know."""
        with self.journal.changed:
            token, attempts = self._token, {call_id: item.attempt for call_id, item in self.journal.fold.open.items()}
        for call in calls:
            if self._repeatable(call.name):
                self._run_one(call, False, token, attempts[call.id] + 1)
            else:
                with self.journal as journal:
                    result = ToolResult.failure(UNKNOWN_OUTCOME, "unknown", meta={"outcome": "unknown"})
                    journal.add(ev.ToolResult, call_id=call.id, result=result)

    def _repeatable(self, name: str) -> bool:
        try:
            return self.agent.tools.get(name).annotations.repeatable
        except ToolNotFound:
            return False

    def refuse_queued(self) -> None:
        """Answer every call that never began. Within a transaction."""
        for item in self.journal.fold.open.values():
            if not item.attempt:
                self._write_refusal(item.call)

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
                with self.journal.changed:
                    if self._threads is not None:
                        self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self.journal.changed:
            thread.start()  # under the lock, so that whoever finds it may join it
            if self._threads is None:
                self._threads = set()
            self._threads.add(thread)
        return thread

    def _keep(self, key: object, cleanup: Callable[[], None]) -> None:
        with self.journal.changed:
            if not self._cleaned:
                self._cleanups = {**(self._cleanups or {}), key: cleanup}
                return
        cleanup()  # by a call that `close` left behind

    def left_running(self, deadline: float) -> list[str]:
        """Wait for this conversation's call threads until `deadline` (monotonic seconds); the names of those that did not end."""
        with self.journal.changed:
            threads = list(self._threads or ())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive() and thread is not threading.current_thread()]

    def clean_up(self) -> None:
        """Run what tools asked to have run at the end, the last asked first."""
        with self.journal.changed:
            cleanups, self._cleanups, self._cleaned = list((self._cleanups or {}).values()), None, True
        for cleanup in reversed(cleanups):
            try:
                cleanup()
            except Exception:
                _log.exception("cleaning up after conversation %s", self.journal.id)
