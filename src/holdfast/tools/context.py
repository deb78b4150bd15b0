"""What a running call is given: cancellation, and `ToolContext`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.errors import ConfigurationError, ToolCancelled, ToolError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from holdfast.content import ContentLike, Message, ToolResult

T = TypeVar("T")

_log = logging.getLogger("holdfast")


def _unheard(message: str) -> None:
    pass


class Cancellation:
    """A flag that is raised once and never lowered; true when raised. Thread-safe.

    Whoever blocks registers how to be woken (`add_callback`), so that a cancel ends a socket read or a process at once.
    """

    # No lock: `cancel` may come from a signal handler that interrupted `add_callback`. Taking a callback out of the dict is atomic,
    # so whoever takes it, the cancel or its owner, is the only one who has it.

    __slots__ = ("_callbacks", "_raised")

    def __init__(self) -> None:
        self._raised = False
        self._callbacks: dict[object, Callable[[], object]] = {}

    def __bool__(self) -> bool:
        return self._raised

    def is_set(self) -> bool:
        """Whether it was raised, as `threading.Event.is_set`."""
        return self._raised

    def cancel(self) -> None:
        """Raise the flag and run what was registered, each once. What is registered must not block; if it raises, that is logged."""
        self._raised = True
        while self._callbacks:
            try:
                _, callback = self._callbacks.popitem()
            except KeyError:  # another thread took the last one
                return
            try:
                callback()
            except Exception:
                _log.exception("a cancel could not wake %r", callback)

    def add_callback(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` at the cancel, or now if it has come. Returns a function that takes the callback back."""
        key = object()
        self._callbacks[key] = callback
        if self._raised and self._callbacks.pop(key, None) is not None:
            callback()

        def forget() -> None:
            self._callbacks.pop(key, None)

        return forget

    def wait(self, timeout: float | None = None) -> bool:
        """Block until raised or `timeout` seconds have passed; whether it was raised."""
        if self._raised:
            return True
        woken = threading.Event()
        forget = self.add_callback(woken.set)
        woken.wait(timeout)
        forget()
        return self._raised

    def raise_if_set(self) -> None:
        """Raise `ToolCancelled` if it was raised."""
        if self._raised:
            raise ToolCancelled("The call was cancelled.")


class Asks(Protocol):
    """Who asks the user what calls ask: one for each conversation."""

    def ask(
        self,
        call_id: str,
        message: str,
        schema: dict[str, Any] | None,
        url: str,
        asker: str,
        timeout: float | None,
        flags: list[Cancellation],
    ) -> dict[str, Any] | None:
        """See `ToolContext.ask`; `flags` take the question back."""
        ...


class Spawns(Protocol):
    """Who begins the conversations that calls spawn: one for each conversation."""

    def spawn(
        self,
        context: ToolContext,
        agent: Any,
        message: str | Message | ContentLike | None,
        name: str,
        id: str | None,
        detached: bool,
        runtime: object | None,
    ) -> Any:
        """See `ToolContext.spawn`."""
        ...


class ToolContext:
    """What a callback may know of the call that it serves. A parameter annotated `ToolContext` receives it, hidden from the model.

    `idempotency_key` is the same for every attempt of one call, also after a crash: hand it to whatever must not happen twice.
    `llm` is the model of the agent that calls, None outside of an agent.
    """

    __slots__ = (
        "_mark", "_on_close", "_progress", "_waits", "asks", "attempt", "call_id", "cancelled", "conversation_id", "llm", "loop", "outputs", "runtime", "spawns", "team",
    )  # fmt: skip

    loop: Callable[[Coroutine[Any, Any, Any]], Future[Any]] | None
    """Where coroutines run: given by the `ToolManager` that makes the call."""

    def __init__(
        self,
        conversation_id: str = "",
        call_id: str = "",
        attempt: int = 1,
        cancelled: Cancellation | None = None,
        runtime: object | None = None,
        progress: Callable[[str], None] = _unheard,
        on_close: Callable[[object, Callable[[], None]], None] | None = None,
        mark: Callable[[], dict[str, str]] | None = None,
        asks: Asks | None = None,
        llm: Any = None,
        outputs: Callable[[str], ToolResult | None] | None = None,
        spawns: Callable[[], Spawns] | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self.call_id = call_id
        self.attempt = attempt
        self.cancelled = cancelled if cancelled is not None else Cancellation()
        self.runtime = runtime
        self._progress = progress
        self._on_close = on_close
        self._mark = mark
        self.asks = asks
        self.llm = llm  # a `Model`; its room comes after this one
        self.outputs = outputs
        self.spawns = spawns
        self.loop = None
        self.team: Callable[[], object] | None = None  # who keeps the conversation's delegates (`agent.delegation.Team`)
        self._waits: tuple[list[float], ...] = ()  # when a person was asked, and when that was over

    @property
    def idempotency_key(self) -> str:
        """`{conversation_id}:{call_id}`."""
        return f"{self.conversation_id}:{self.call_id}"

    def with_cancellation(self, cancelled: Cancellation) -> ToolContext:
        """The same context under another flag."""
        found = ToolContext(
            self.conversation_id, self.call_id, self.attempt, cancelled, self.runtime, self._progress, self._on_close, self._mark,
            self.asks, self.llm, self.outputs, self.spawns,
        )  # fmt: skip
        found.loop, found.team = self.loop, self.team
        return found

    def output(self, call_id: str) -> ToolResult:
        """The whole result of an earlier call of the conversation, also where the model was shown only a part. Raises `ToolError` if there is
        none of that id."""
        found = None if self.outputs is None else self.outputs(call_id)
        if found is None:
            raise ToolError(f"No call {call_id!r} of this conversation has a result.", retryable=False)
        return found

    def report_progress(self, message: str) -> None:
        """Tell whoever watches how far the call is. Not journaled, not shown to the model."""
        self._progress(message)

    def ask(
        self,
        message: str,
        schema: dict[str, Any] | None = None,
        *,
        url: str = "",
        asker: str = "",
        timeout: float | None = None,
        cancelled: Cancellation | None = None,
    ) -> dict[str, Any] | None:
        """Ask the user through the conversation, and block until there is an answer: the values of the form `schema` (a JSON Schema of
        flat properties), its defaults filled in; without one `{}` for a yes. None: declined, or no answer within `timeout` seconds.

        With `url` the user is to visit that page, which nobody opens unasked. `asker` is who asks, for the user to see; the tool, if not
        given. The tool's own timeout does not run meanwhile. Values of fields that are `writeOnly` or of the format `password` are not
        journaled. `cancelled` takes the question back. Without a conversation, or if it was not told whom to ask (`on_question`), every
        question is declined. Raises `ToolCancelled` when the call is cancelled, `ConfigurationError` for what is no form or address.
        """
        if url and (schema is not None or not url.startswith(("https://", "http://"))):
            raise ConfigurationError("ask: url takes an http:// or https:// address, and no schema beside it.")
        if self.loop is not None and _on_loop():
            raise ToolError(
                "context.ask waits, which would hold up every async tool: use `await asyncio.to_thread(context.ask, ...)`.", retryable=False
            )
        self.cancelled.raise_if_set()
        if self.asks is None:
            return None
        wait = [time.monotonic()]
        self._waits = (*self._waits, wait)
        try:
            flags = [self.cancelled] if cancelled is None else [self.cancelled, cancelled]
            found = self.asks.ask(self.call_id, message, schema, url, asker, timeout, flags)
        finally:
            wait.append(time.monotonic())
        self.cancelled.raise_if_set()
        return found

    @property
    def reachable(self) -> bool:
        """Whether there is anybody whom `ask` asks."""
        return self.asks is not None and getattr(self.asks, "reachable", True)

    def asked_for(self) -> tuple[float, bool]:
        """For how many seconds the user was asked so far, and whether that still goes on."""
        now, waits = time.monotonic(), self._waits
        return sum([(wait[1] if len(wait) > 1 else now) - wait[0] for wait in waits]), any(len(wait) < 2 for wait in waits)

    def spawn(
        self,
        agent: Any,
        message: str | Message | ContentLike | None = None,
        *,
        name: str = "",
        id: str | None = None,
        detached: bool = False,
        runtime: object | None = None,
    ) -> Any:
        """A child `Conversation` in the same store, with `agent` (an `Agent`) and the runtime of its tools, else that of this one, unless another is given: `with
        context.spawn(agent, "Do this") as child: return child.run().answer`.

        Its id is `{conversation_id}.{call_id}`, with `-{name}` behind it if it has a name, else `-2`, `-3`, ... for the second and further
        ones of a call: give names where several threads spawn. A call that is repeated, also after its process was killed, thus gets the
        same child again, with all that it did; `message` is sent only if nobody said anything to it yet. A child that is open in this
        process is returned as it is. With `id` it is the child of that id, also of an earlier call.

        The child is interrupted when the call is cancelled or the conversation interrupted, and closed with the conversation; one that is
        `detached` is not, and is the caller's to close. All spend from the budgets of those that they come from (`Agent(tree_limits=)`).

        Raises `ConfigurationError` for an id that exists and is no child of this conversation, `LeaseHeld`, `StoreError`, `ToolCancelled`.
        """
        if self.spawns is None:
            if self.conversation_id and not self.call_id:
                raise ConfigurationError(
                    "spawn: a hook that is not around a tool call has no children, because a child's id derives from its call's."
                    " Use Conversation(agent, store) here, or spawn in a tool or in a hook on tool."
                )
            raise ConfigurationError("spawn: this call is not of a conversation, so it has no children. Use Conversation(agent).")
        return self.spawns().spawn(self, agent, message, name, id, detached, runtime)

    def on_close(self, key: object, cleanup: Callable[[], None]) -> None:
        """Have `cleanup` run when the conversation closes; once per `key`. Without a conversation, the tool's owner cleans up."""
        if self._on_close is not None:
            self._on_close(key, cleanup)

    def process_environment(self) -> dict[str, str]:
        """Environment variables for a process that the call starts: `Popen(..., env={**env, **context.process_environment()})`.

        Should this process be killed, whoever takes over the conversation ends every process that has them, and what these have
        started, before any call is run again. Without a conversation there are none.
        """
        return self._mark() if self._mark is not None else {}

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on the agent's loop thread, and return what it returns; a cancel cancels it, and raises
        `ToolCancelled`. Equivalent to `asyncio.run(work)`, but that several share one loop. Not from within a coroutine."""
        from concurrent.futures import CancelledError

        from holdfast.tools.loop import LoopThread

        self.cancelled.raise_if_set()
        alone = None if self.loop is not None else LoopThread("holdfast-async")
        future: Future[T] = alone.submit(work) if alone is not None else self.loop(work)  # pyright: ignore[reportOptionalCall]: one of the two is there
        forget = self.cancelled.add_callback(future.cancel)
        try:
            return future.result()
        except CancelledError:
            raise ToolCancelled("The call was cancelled; its effect may have happened.") from None
        finally:
            forget()
            future.cancel()  # also when the wait was interrupted
            if alone is not None:
                alone.close()

    def sleep(self, seconds: float) -> None:
        """`time.sleep`, ended by a cancel with `ToolCancelled`."""
        if self.cancelled.wait(max(seconds, 0.0)):
            self.cancelled.raise_if_set()


def _on_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
