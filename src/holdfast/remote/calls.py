"""Calls that an agent server offers to its clients: claimed, run here, their results returned."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.callbacks import guarded
from holdfast.conversation.calls import INTERRUPTED, UNWRITABLE
from holdfast.conversation.run_context import inside
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import (
    ConfigurationError,
    ConversationNotFound,
    HoldfastError,
    NotFound,
    StoreError,
    TooMany,
    UnreadableEvent,
    WrongProcess,
)
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.server_client import send_until_answered
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.context import Asks
from holdfast.tools.results import clean
from holdfast.tools.running import start_thread
from holdfast.tools.secrets import Secrets

_log = logging.getLogger("holdfast.remote")

_MAX_RESULT_BYTES = 1_000_000  # a result above this size may be one that the server refuses


class _ClientContext(ToolContext):
    """The context of a call that runs in a client, without what only the server has."""

    __slots__ = ()

    def secret(self, name: str) -> str:
        if self.secrets is None:
            raise NotFound(
                f"There is no secret {name!r} here: a tool that a client of an agent server runs"
                " has the secrets of its own RemoteConversation(secrets={...}) alone.",
                "secret",
                name,
            )
        return super().secret(name)

    def spawn(self, *_: Any, **__: Any) -> Any:
        """Raises `ConfigurationError`: the server has the store."""
        raise ConfigurationError(
            "spawn: not available in a tool that a client of an agent server runs, since the"
            " server has the store. Use RemoteConversation(agent, workspace) or"
            " Conversation(agent), or declare the tool in a module that the server may import."
        )

    def wake_at(self, *_: Any, **__: Any) -> Any:
        """Raises `ConfigurationError`: the server has the journal."""
        raise ConfigurationError(
            "wake_at: not available in a tool that a client of an agent server runs, since the"
            " server has the journal. Use RemoteConversation.schedule."
        )


class ClientCalls:
    """A conversation's calls that this client runs, `parallel_calls` at once, each on a thread.

    Call `update` when the copy has news; `cancel` and `close` end running calls. A call that this
    client claimed stays its own over any number of reconnects. One that another client claimed
    is left alone."""

    def __init__(
        self,
        copy: JournalCopy,
        agent: Agent,
        runtime: object,
        asks: Asks,
        on_progress: Callable[[str, str], object] | None,
        secrets: Secrets | None = None,
    ) -> None:
        self.closing = False
        self.secrets = secrets
        self.context = contextvars.copy_context()
        self._copy = copy
        self._agent = agent
        # Agents before `use`, each with the seq of its last `AgentConfigured` event.
        self._earlier: list[tuple[int, Agent]] = []
        self._runtime = runtime
        self._asks = asks
        self._on_progress = None if on_progress is None else guarded(on_progress)
        self._on_idle: Callable[[], None] | None = None
        self._ended = Cancellation()  # cancelled once no further request may be sent
        self._queue: list[ToolCall] = []
        self._running: dict[str, Cancellation] = {}  # running and queued calls
        self._done: set[str] = set()
        # the seq at which a claim was refused; without news it would be refused again
        self._refused_at_seq: dict[str, int] = {}
        self._threads: set[threading.Thread] = set()
        self._cleanups: dict[object, Callable[[], None]] = {}

    def use(self, agent: Agent, head_seq: int) -> None:
        """Run the calls of later `AgentConfigured` events than `head_seq` with the tools of
        `agent`."""
        with self._copy.lock:
            self._earlier.append((head_seq, self._agent))
            self._agent = agent

    def undo_use(self) -> None:
        """Take the last `use` back."""
        with self._copy.lock:
            _, self._agent = self._earlier.pop()

    def _agent_of(self, call: ToolCall) -> Agent:
        """Return the agent that made the call."""
        if not self._earlier:
            return self._agent
        with self._copy.lock:
            events = self._copy.until(int(call.id.partition(".")[0]))
            heads = (event.seq for event in reversed(events) if type(event) is ev.AgentConfigured)
            seq = next(heads, 0)
            return next((one for last, one in self._earlier if seq <= last), self._agent)

    def update(self) -> None:
        """Start offered calls, and cancel calls that are no longer wanted. Does not block."""
        copy = self._copy
        stale: list[Cancellation] = []
        with copy.lock:
            fold = copy.fold
            for call_id, token in self._running.items():
                item = fold.open.get(call_id)
                if self._is_interrupted() or item is None or item.runner not in ("", copy.client):
                    stale.append(token)
            if fold.status is ConversationStatus.RUNNING and not self.closing:
                for item in fold.offers:
                    call = item.effective
                    if item.runner in ("", copy.client) and self._is_ours(call):
                        self._running[call.id] = Cancellation()
                        self._queue.append(call)
                self._start_threads()
        for token in stale:
            token.cancel()

    def _is_ours(self, call: ToolCall) -> bool:
        """Return True if this client has the tool, and neither began the call nor was refused."""
        if call.id in self._running or call.id in self._done:
            return False
        tools = self._agent_of(call).tools
        return self._refused_at_seq.get(call.id) != self._copy.fold.last_seq and (
            tools.exists(call.name) or tools.exists(tools.canonical(call.name))
        )

    def _is_interrupted(self) -> bool:
        fold = self._copy.fold
        if fold.status is not ConversationStatus.PAUSED:
            return False
        event = self._copy.after(fold.status_seq - 1)[0]
        return isinstance(event, ev.StatusChanged) and event.reason == "interrupted"

    def _start_threads(self) -> None:
        for _ in range(min(len(self._queue), self._agent.parallel_calls - len(self._threads))):
            run, name = self.context.copy().run, f"holdfast-call-{self._queue[0].id}"
            thread = threading.Thread(target=run, args=(self._work,), name=name, daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system has no further thread; the existing ones do the work
                self._threads.discard(thread)
                return

    def _work(self) -> None:
        inside.set((*inside.get(), self._copy.mark))
        while True:
            with self._copy.lock:
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    self._copy.lock.notify_all()
                    on_idle = None if self._threads else self._on_idle
                    break
                call = self._queue.pop(0)
                token = self._running[call.id]
            try:
                done = self._run_one(call, token)
            except WrongProcess:
                raise
            except Exception:
                what = "conversation %s: call %s failed in its client"
                _log.exception(what, self._copy.id, call.id)
                done = True
            with self._copy.lock:
                self._running.pop(call.id, None)
                if done:
                    self._done.add(call.id)
                self._copy.lock.notify_all()
        if on_idle is not None:
            on_idle()

    def _run_one(self, call: ToolCall, token: Cancellation) -> bool:
        """Claim a call, run it and post its result; return False if it was not ours to run."""
        path = f"/calls/{quote(call.id, safe='')}"
        if token or self.closing or not self._claim(f"{path}/claim", call, token):
            return False
        began = time.monotonic()
        if token or self.closing:
            result = ToolResult.failure(INTERRUPTED, "cancelled")
        else:
            result = self._result(call, token)
            # a child process that the callback forked must not answer the call
            self._copy.server.owner.check(f"Conversation {self._copy.id!r}")
        self._post_result(f"{path}/result", call, result, time.monotonic() - began)
        return True

    def _claim(self, path: str, call: ToolCall, token: Cancellation) -> bool:
        def stopped() -> bool:
            return bool(token) or self.closing

        try:
            self._send(path, {}, None, stopped, until_stopped=True)
            return True
        except HoldfastError as error:
            if type(error) is not StoreError:
                with self._copy.lock:
                    self._refused_at_seq[call.id] = self._copy.fold.last_seq
            what = "conversation %s: call %s is not run by this client: %s"
            _log.info(what, self._copy.id, call.id, error)
            return False

    def _send(
        self,
        path: str,
        body: dict[str, Any],
        key: str | None,
        stopped: Callable[[], bool],
        until_stopped: bool = False,
    ) -> None:
        """Send until the server answers; with `until_stopped` not once more after `stopped()`."""

        def send() -> None:
            if until_stopped and stopped():
                raise StoreError("The conversation is being closed here.")
            self._copy.request("POST", path, body, idempotency_key=key, cancelled=self._ended)

        send_until_answered(send, self._ended, stopped)

    def _result(self, call: ToolCall, token: Cancellation) -> ToolResult:
        def report(message: str) -> None:
            if self._on_progress is not None:
                self._on_progress(call.id, message)

        agent = self._agent_of(call)
        context = _ClientContext(
            self._copy.id,
            call.id,
            1,
            token,
            self._runtime,
            report,
            self._register_cleanup,
            None,
            self._asks,
            agent.llm,
            self._output,
            secrets=self.secrets,
        )
        try:
            return agent.tools.run(call, context, None, start_thread)
        except BaseException as error:  # sys.exit in a callback
            return ToolResult.failure(
                f"{call.name!r} was ended by {type(error).__name__}. Its effect may have happened.",
                "cancelled",
            )

    def _output(self, call_id: str) -> ToolResult | None:
        try:
            return self._copy.output(call_id)
        except ConversationNotFound:
            raise
        except NotFound:
            return None

    def _register_cleanup(self, key: object, cleanup: Callable[[], None]) -> None:
        with self._copy.lock:
            self._cleanups.setdefault(key, cleanup)

    def _post_result(self, path: str, call: ToolCall, result: ToolResult, duration: float) -> None:
        """Post a result until the server takes or refuses it. A call whose result cannot be
        posted stays this client's as long as it lives."""
        now = datetime.now(UTC)
        try:  # refused here as by a local journal: the request would change it without a word
            finished = ev.ToolCallFinished(
                seq=1, id="1", timestamp=now, call_id=call.id, result=result
            )
            size = len(ev.record(finished))
        except (UnreadableEvent, TypeError, ValueError) as error:
            problem = error.problem if isinstance(error, UnreadableEvent) else str(error)
            text = UNWRITABLE.format(name=call.name, problem=clean(problem).rstrip("."))
            result, size = ToolResult.failure(text), 0
        key = f"{self._copy.client}-{call.id}"
        body: dict[str, Any] = {"result": result, "duration": duration}
        try:
            try:
                self._send(path, body, key, lambda: self.closing)
            except (ConfigurationError, TooMany) as error:
                if size <= _MAX_RESULT_BYTES:
                    raise
                text = f"{call.name!r} ran, but its result was too large for the agent server:"
                body["result"] = ToolResult.failure(f"{text} {error}", "internal")
                self._send(path, body, f"{key}-cut", lambda: self.closing)
        except HoldfastError as error:
            what = "conversation %s: the agent server refused the result of call %s: %s"
            _log.warning(what, self._copy.id, call.id, error)

    def close_when_idle(self, on_idle: Callable[[], None]) -> bool:
        """Start no call, and call `on_idle` after the last one; return False if none runs."""
        with self._copy.lock:
            if self._threads:
                self.closing, self._on_idle = True, on_idle
            return bool(self._threads)

    def cancel(self) -> None:
        with self._copy.lock:
            tokens = list(self._running.values())
        for token in tokens:
            token.cancel()

    def close(self, deadline: float) -> list[str]:
        """Cancel and await the running calls, then clean up. Return the threads that still run."""
        self.closing = True
        self.cancel()
        with self._copy.lock:
            current = threading.current_thread()
            while (running := self._threads - {current}) and (
                seconds := deadline - time.monotonic()
            ) > 0:
                self._copy.lock.wait(seconds)
            self._ended.cancel()
            cleanups, self._cleanups = [*reversed(self._cleanups.values())], {}
        for cleanup in cleanups:
            guarded(cleanup)()
        return [thread.name for thread in running]
