"""Calls that an agent server offers to its clients: claim them, run them here with the agent's
own tools, and return their results."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.callbacks import guarded
from holdfast.conversation.calls import INTERRUPTED
from holdfast.conversation.driver import inside
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConfigurationError, HoldfastError, StoreError, WrongProcess
from holdfast.remote.copy import Copy
from holdfast.remote.link import Link, pause
from holdfast.tools import Cancellation, ToolContext
from holdfast.tools.context import Asks
from holdfast.tools.running import start_thread

_log = logging.getLogger("holdfast.remote")


class ClientCalls:
    """The calls of one conversation that this client runs, at most `parallel_calls` at once, each
    on a thread.

    Call `look` when the copy has news; `cancel` and `close` end running calls. A call that this
    client claimed stays its own over any number of reconnects. One that another client claimed
    is left alone.
    """

    __slots__ = (
        "_agent",
        "_asks",
        "_cleanups",
        "_client",
        "_copy",
        "_done",
        "_ended",
        "_link",
        "_on_idle",
        "_on_progress",
        "_queue",
        "_refused_at_seq",
        "_running",
        "_runtime",
        "_threads",
        "closing",
        "context",
        "mark",
    )

    def __init__(
        self,
        agent: Agent,
        copy: Copy,
        link: Link,
        client: str,
        runtime: object,
        on_progress: Callable[[str, str], object] | None,
        mark: int,
        on_idle: Callable[[], None],
        asks: Asks,
    ) -> None:
        self.closing = False
        self._ended = Cancellation()  # cancelled once no further request may be sent
        self.context = contextvars.copy_context()
        self.mark = mark
        self._agent = agent
        self._copy = copy
        self._link = link
        self._client = client
        self._runtime = runtime
        self._on_progress = None if on_progress is None else guarded(on_progress)
        self._on_idle = on_idle
        self._asks = asks
        self._queue: list[ToolCall] = []
        self._running: dict[str, Cancellation] = {}  # running and queued calls
        self._done: set[str] = set()
        # the seq at which a claim was refused; without news it would be refused again
        self._refused_at_seq: dict[str, int] = {}
        self._threads: set[threading.Thread] = set()
        self._cleanups: dict[object, Callable[[], None]] = {}

    @property
    def working(self) -> bool:
        """True if a call runs here."""
        return bool(self._threads)

    # --- news from the stream ---

    def look(self) -> None:
        """Start offered calls, and cancel those that are no longer wanted. Does not block."""
        copy = self._copy
        stale: list[Cancellation] = []
        with copy.changed:
            fold = copy.fold
            for call_id, token in self._running.items():
                item = fold.open.get(call_id)
                if self._interrupted() or item is None or item.runner not in ("", self._client):
                    stale.append(token)
            if fold.status is ConversationStatus.RUNNING and not self.closing:
                for item in fold.offers:
                    call = item.effective
                    known = (
                        call.id in self._running
                        or call.id in self._done
                        or self._refused_at_seq.get(call.id) == fold.last_seq
                    )
                    if not known and item.runner in ("", self._client) and self._has(call):
                        self._running[call.id] = Cancellation()
                        self._queue.append(call)
                self._start_threads()
        for token in stale:
            token.cancel()

    def _has(self, call: ToolCall) -> bool:
        tools = self._agent.tools
        return tools.exists(call.name) or tools.exists(tools.canonical(call.name))

    def _interrupted(self) -> bool:
        fold = self._copy.fold
        if fold.status is not ConversationStatus.PAUSED:
            return False
        said = self._copy.after(fold.status_seq - 1)[0]
        return isinstance(said, ev.Status) and said.reason == "interrupted"

    def _start_threads(self) -> None:
        for _ in range(min(len(self._queue), self._agent.parallel_calls - len(self._threads))):
            context = self.context.copy()
            thread = threading.Thread(
                target=context.run,
                args=(self._work,),
                name=f"holdfast-call-{self._queue[0].id}",
                daemon=True,
            )
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system has no further thread; the existing ones do the work
                self._threads.discard(thread)
                return

    # --- call threads ---

    def _work(self) -> None:
        inside.set((*inside.get(), self.mark))
        while True:
            with self._copy.changed:
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    self._copy.changed.notify_all()
                    last = not self._threads
                    break
                call = self._queue.pop(0)
                token = self._running[call.id]
            try:
                done = self._run_one(call, token)
            except WrongProcess:
                raise
            except Exception:
                _log.exception(
                    "conversation %s: call %s failed in its client", self._copy.id, call.id
                )
                done = True
            with self._copy.changed:
                self._running.pop(call.id, None)
                if done:
                    self._done.add(call.id)
                self._copy.changed.notify_all()
        if last:
            self._on_idle()

    def _run_one(self, call: ToolCall, token: Cancellation) -> bool:
        """Claim a call, run it and return its result to the server; return False if it was not
        ours to run."""
        if token or self.closing:
            return False
        path = f"{self._copy.path}/calls/{quote(call.id, safe='')}"
        if not self._claim(f"{path}/claim", call, token):
            return False
        began = time.monotonic()
        if token or self.closing:
            result = ToolResult.failure(INTERRUPTED, "cancelled")
        else:
            result = self._result(call, token)
            # a child process that the callback forked must not answer the call
            self._link.owner.check(f"Conversation {self._copy.id!r}")
        self._post_result(f"{path}/result", call, result, time.monotonic() - began)
        return True

    def _claim(self, path: str, call: ToolCall, token: Cancellation) -> bool:
        number = 0
        while not (token or self.closing):
            try:
                self._link.request("POST", path, {}, client=self._client, cancelled=self._ended)
                return True
            except HoldfastError as error:
                # the server cannot be reached now; the request may have arrived all the same
                if type(error) is StoreError:
                    self._ended.wait(pause(number))
                    number += 1
                    continue
                with self._copy.changed:
                    self._refused_at_seq[call.id] = self._copy.fold.last_seq
                _log.info(
                    "conversation %s: call %s is not run by this client: %s",
                    self._copy.id,
                    call.id,
                    error,
                )
                break
        return False

    def _result(self, call: ToolCall, token: Cancellation) -> ToolResult:
        context = ToolContext(
            self._copy.id,
            call.id,
            1,
            token,
            self._runtime,
            self._progress_of(call),
            self._register_cleanup,
            None,
            self._asks,
            self._agent.llm,
        )
        try:
            return self._agent.tools.run(call, context, None, start_thread)
        except BaseException as error:  # sys.exit in a callback
            return ToolResult.failure(
                f"{call.name!r} was ended by {type(error).__name__}. Its effect may have happened.",
                "cancelled",
            )

    def _progress_of(self, call: ToolCall) -> Callable[[str], None]:
        tell = self._on_progress

        def report(message: str) -> None:
            if tell is not None:
                tell(call.id, message)

        return report

    def _register_cleanup(self, key: object, cleanup: Callable[[], None]) -> None:
        with self._copy.changed:
            self._cleanups.setdefault(key, cleanup)

    def _post_result(self, path: str, call: ToolCall, result: ToolResult, duration: float) -> None:
        """Post a result until the server takes or refuses it. A call whose result cannot be
        posted stays this client's as long as it lives."""
        try:
            msgspec.json.encode(result)
        except (TypeError, ValueError) as error:
            result = ToolResult.failure(
                f"{call.name!r} ran, but its result is not valid JSON: {error}.", "internal"
            )
        body: dict[str, Any] = {"result": result, "duration": duration}
        once = f"{self._client}-{call.id}"
        number = 0
        while True:
            try:
                self._link.request(
                    "POST", path, body, client=self._client, once=once, cancelled=self._ended
                )
                return
            except HoldfastError as error:
                if type(error) is StoreError and not self.closing:
                    # the server cannot be reached now
                    self._ended.wait(pause(number))
                    number += 1
                    continue
                if (
                    "result" in body
                    and isinstance(error, ConfigurationError)
                    and _size(result) > 1_000_000
                ):
                    text = (
                        f"{call.name!r} ran, but its result was too large for the agent server:"
                        f" {error}"
                    )
                    body = {**body, "result": ToolResult.failure(text, "internal")}
                    result = ToolResult()
                    once = f"{once}-cut"
                    continue
                _log.warning(
                    "conversation %s: the agent server refused the result of call %s: %s",
                    self._copy.id,
                    call.id,
                    error,
                )
                return

    # --- closing ---

    def cancel(self) -> None:
        """Cancel the running calls."""
        with self._copy.changed:
            tokens = list(self._running.values())
        for token in tokens:
            token.cancel()

    def close(self, deadline: float) -> list[str]:
        """Cancel the running calls, wait for them until `deadline`, and clean up. Return the
        names of threads that still run."""
        self.closing = True
        self.cancel()
        with self._copy.changed:
            current = threading.current_thread()
            while (left := self._threads - {current}) and (
                seconds := deadline - time.monotonic()
            ) > 0:
                self._copy.changed.wait(seconds)
            self._ended.cancel()
            cleanups, self._cleanups = list(self._cleanups.values()), {}
        for cleanup in cleanups:
            guarded(cleanup)()
        return [thread.name for thread in left]


def _size(result: ToolResult) -> int:
    return len(msgspec.json.encode(result))
