"""The context of a running call: `Cancellation` and `ToolContext`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from holdfast.content import ContentLike, Message, ToolResult, Usage
from holdfast.errors import ConfigurationError, NotFound, ToolCancelled, ToolError
from holdfast.tools.loop import LoopThread

if TYPE_CHECKING:
    from holdfast.tools.secrets import Secrets

T = TypeVar("T")

_log = logging.getLogger("holdfast")


def _ignore_progress(message: str) -> None:
    pass


class Cancellation:
    """A flag that is set once and never cleared; true once it is set. Thread-safe. Code that blocks
    registers a wake-up function with `add_callback`. A cancel thus ends a socket read or a process
    at once."""

    # No lock: `cancel` may run in a signal handler that interrupted `add_callback`. Removing an
    # entry from the list is atomic, so exactly one thread gets it: the canceller or its owner.
    # An emptied list frees its table, which an emptied dict keeps.

    __slots__ = ("_callbacks", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._callbacks: list[partial[object]] = []

    def __bool__(self) -> bool:
        return self._is_set

    def is_set(self) -> bool:
        """Return True if the flag is set, like `threading.Event.is_set`."""
        return self._is_set

    def cancel(self) -> None:
        """Set the flag and run each registered callback once. Callbacks must not block. An
        exception of a callback is logged."""
        self._is_set = True
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                callback()
            except Exception:
                # not its repr: a bound method or a partial shows its object
                name = getattr(callback.func, "__qualname__", type(callback.func).__name__)
                _log.exception("A cancellation callback failed: %s", name)

    def add_callback(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Run `callback` at the cancel, or now if it is set. Returns a function to remove it."""
        entry = partial(callback)  # equal only to itself, unlike the callback

        self._callbacks.append(entry)
        if self._is_set and self._take(entry):
            callback()

        def remove() -> None:
            self._take(entry)

        return remove

    def _take(self, entry: partial[object]) -> bool:
        try:
            self._callbacks.remove(entry)
        except ValueError:  # another thread has it
            return False
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set or `timeout` seconds have passed. Return the flag."""
        if self._is_set:
            return True
        woken = threading.Event()
        remove_callback = self.add_callback(woken.set)
        woken.wait(timeout)
        remove_callback()
        return self._is_set

    def raise_if_set(self) -> None:
        """Raise `ToolCancelled` if the flag is set."""
        if self._is_set:
            raise ToolCancelled("The call was cancelled.")


class CompletionModel(Protocol):
    """The calling agent's model, as tools see it: see `LLM`. Every `Model` satisfies it."""

    @property
    def model(self) -> str: ...
    def completion(
        self, messages: Any, *, system: str | None = None, cancelled: Cancellation | None = None
    ) -> CompletionAnswer: ...


class CompletionAnswer(Protocol):
    """One answer of a `CompletionModel`."""

    @property
    def text(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def stop_reason(self) -> str: ...


@runtime_checkable
class LendsModels(Protocol):
    """A conversation's model that lends other models: their calls count as the conversation's."""

    def lend(self, llm: Any) -> CompletionModel:
        """Return a model whose calls are counted in the conversation's usage and budgets."""
        ...


class ChildState(Protocol):
    """The state in which a child's run ended."""

    @property
    def answer(self) -> str: ...
    @property
    def output(self) -> Any: ...


class ChildConversation(Protocol):
    """A conversation that a call spawned: a `Conversation`, as the tools see it."""

    @property
    def id(self) -> str: ...
    def send_message(
        self, message: str | Message | ContentLike, *, sender: str = "user"
    ) -> object: ...
    def run(self) -> ChildState: ...
    def start_thread(self) -> None: ...
    def interrupt(self) -> None: ...
    def close(self, timeout: float = 5.0) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *failure: object) -> None: ...


class CallQuestion(NamedTuple):
    """The arguments of `ToolContext.ask` for the user of call `call_id`. Setting any of `flags`
    withdraws the question."""

    call_id: str
    message: str
    schema: dict[str, Any] | None
    url: str
    asker: str
    timeout: float | None
    flags: tuple[Cancellation, ...]


class Asks(Protocol):
    """The channel through which a conversation's calls ask the user; one per conversation."""

    @property
    def reachable(self) -> bool:
        """True if a user can be asked."""
        ...

    def ask(self, question: CallQuestion) -> dict[str, Any] | None:
        """See `ToolContext.ask`."""
        ...


class ChildRequest(NamedTuple):
    """The arguments of `ToolContext.spawn`."""

    agent: Any
    message: str | Message | ContentLike | None
    name: str
    id: str | None
    detached: bool
    runtime: object | None
    secrets: Sequence[str]


class Spawns(Protocol):
    """The factory of child conversations for a conversation's calls; one per conversation."""

    def spawn(self, context: ToolContext, request: ChildRequest) -> ChildConversation:
        """See `ToolContext.spawn`."""
        ...


class CallParked(BaseException):
    """Ends the attempt of a call that continues later and has no result until then. A cause of the
    exception ends the run. No tool may catch `CallParked`."""


class RunsScripts(Protocol):
    """The runner of the scripts of a conversation's calls; one per conversation."""

    def run(self, context: ToolContext, code: str, toolbox: Any) -> ToolResult:
        """Run a script whose functions are the tools of a `CodeTools`. Raises `CallParked` while it
        waits for a decision or a client."""
        ...


class TakesNotes(Protocol):
    """The function that journals a note; see `ToolContext.note`."""

    def __call__(self, about: str, text: str, details: dict[str, Any]) -> None: ...


class WakesCalls(Protocol):
    """The function that sets a timer for a call; see `ToolContext.wake_at`."""

    def __call__(
        self, call_id: str, when: datetime | timedelta | str, note: str, timezone: str, id: str
    ) -> datetime: ...


class ToolContext:
    """The call that a callback serves. A parameter annotated `ToolContext` receives it and is
    hidden from the model. `idempotency_key` is the same for every attempt of one call, also after a
    crash. Pass it to any operation that must not happen twice. `llm` is the model of the calling
    agent, None outside of an agent."""

    __slots__ = (
        "_mark",
        "_on_close",
        "_progress",
        "_waits",
        "_wakes",
        "asks",
        "attempt",
        "call_id",
        "cancelled",
        "confirm",
        "conversation_id",
        "llm",
        "loop",
        "notes",
        "outputs",
        "runtime",
        "scripts",
        "secrets",
        "spawns",
        "team",
        "wakes",
    )

    loop: Callable[[Coroutine[Any, Any, Any]], Future[Any]] | None
    """The function that runs a coroutine, set by the `ToolManager` that makes the call."""

    def __init__(
        self,
        conversation_id: str = "",
        call_id: str = "",
        attempt: int = 1,
        cancelled: Cancellation | None = None,
        runtime: object | None = None,
        progress: Callable[[str], None] = _ignore_progress,
        on_close: Callable[[object, Callable[[], None]], object] | None = None,
        mark: Callable[[], dict[str, str]] | None = None,
        asks: Asks | None = None,
        llm: CompletionModel | None = None,
        outputs: Callable[[str], ToolResult | None] | None = None,
        spawns: Callable[[], Spawns] | None = None,
        team: Callable[[], object] | None = None,
        secrets: Secrets | None = None,
        confirm: Callable[[], None] | None = None,
        wakes: WakesCalls | None = None,
        notes: TakesNotes | None = None,
        scripts: Callable[[], RunsScripts] | None = None,
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
        self.llm = llm
        self.outputs = outputs
        self.spawns = spawns
        self.loop = None
        # Returns the conversation's delegates (`agent.delegation.Delegates`).
        self.team = team
        self.secrets = secrets
        # Raises `Fenced` if the conversation may belong to another owner by now.
        self.confirm = confirm
        self.wakes = wakes
        self.notes = notes
        self.scripts = scripts
        self._wakes = 0  # the timers that this call has set without an id
        # Start times of the questions to the user, each followed by its end time.
        self._waits: tuple[list[float], ...] = ()

    @property
    def idempotency_key(self) -> str:
        """`{conversation_id}:{call_id}`."""
        return f"{self.conversation_id}:{self.call_id}"

    def with_cancellation(self, cancelled: Cancellation) -> ToolContext:
        """Return a copy of the context with another cancellation flag."""
        inner = copy(self)
        inner.cancelled, inner._waits = cancelled, ()
        return inner

    def output(self, call_id: str) -> ToolResult:
        """Return the whole result of an earlier call of the conversation, even if the model saw
        only a part. Raises `ToolError` if no call of this id has a result."""
        result = None if self.outputs is None else self.outputs(call_id)
        if result is None:
            raise ToolError(
                f"No call {call_id!r} of this conversation has a result.", retryable=False
            )
        return result

    def secret(self, name: str) -> str:
        """Return the present value of one of the conversation's secrets (`Conversation(secrets=)`).

        Wherever the value comes back, in a result, an error or a progress report, it is masked.
        Raises `NotFound` if the conversation has no such secret, `ToolError` if the function that
        provides the value fails.
        """
        if self.secrets is None:
            raise NotFound(
                f"There is no secret {name!r}: this call is of a conversation without secrets. Give"
                " Conversation(agent, secrets={...}).",
                "secret",
                name,
            )
        return self.secrets.get(name)

    def report_progress(self, message: str) -> None:
        """Report progress to observers. The message is neither journaled nor shown to the model."""
        self._progress(message if self.secrets is None else self.secrets.mask(message))

    def note(self, about: str, text: str, details: dict[str, Any] | None = None) -> None:
        """Journal a `NoteRecorded`, which the model is not shown. Without a conversation, or once
        it is closed, nothing happens. `about` names the origin, such as `hook:audit`."""
        if self.notes is not None:
            self.notes(about, text, details or {})

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
        """Ask the user through the conversation and block until the answer.

        Returns the values of the form, with its defaults filled in. Without a `schema` a yes is
        `{}`. None means that the user declined, or that `timeout` passed. Without a conversation,
        or without `on_question`, every question is declined.

        The tool's own timeout is suspended meanwhile. Values of fields that are `writeOnly` or of
        the format `password` are not journaled.

        Args:
            message: The question.
            schema: The form, a JSON Schema of flat properties.
            url: A page that the user is asked to visit. Nothing opens the page without the user.
            asker: The name of the asking party that the user sees; the tool's name by default.
            timeout: Seconds to wait for the answer; None waits forever.
            cancelled: A flag that withdraws the question.

        Raises `ToolCancelled` when the call is cancelled, `ConfigurationError` for an invalid
        form or address.
        """
        if url and (schema is not None or not url.startswith(("https://", "http://"))):
            raise ConfigurationError(
                "ask: url takes an http:// or https:// address, and no schema beside it."
            )
        if self.loop is not None and _in_event_loop():
            raise ToolError(
                "context.ask blocks, which would stop every async tool: use `await"
                " asyncio.to_thread(context.ask, ...)`.",
                retryable=False,
            )
        self.cancelled.raise_if_set()
        if self.asks is None:
            return None
        if self.secrets is not None:
            message, asker = self.secrets.mask(message), self.secrets.mask(asker)
            schema = self.secrets.mask_value(schema)
        wait = [time.monotonic()]
        self._waits = (*self._waits, wait)
        try:
            flags = (self.cancelled,) if cancelled is None else (self.cancelled, cancelled)
            question = CallQuestion(self.call_id, message, schema, url, asker, timeout, flags)
            answer = self.asks.ask(question)
        finally:
            wait.append(time.monotonic())
        self.cancelled.raise_if_set()
        return answer

    @property
    def reachable(self) -> bool:
        """True if a user can be asked through `ask`."""
        return self.asks is not None and self.asks.reachable

    def asked_for(self) -> tuple[float, bool]:
        """Return the seconds spent on questions to the user, and whether one is open now."""
        now, waits = time.monotonic(), self._waits
        seconds = sum([(wait[1] if len(wait) > 1 else now) - wait[0] for wait in waits])
        return seconds, any(len(wait) < 2 for wait in waits)

    def spawn(
        self,
        agent: Any,
        message: str | Message | ContentLike | None = None,
        *,
        name: str = "",
        id: str | None = None,
        detached: bool = False,
        runtime: object | None = None,
        secrets: Sequence[str] = (),
    ) -> ChildConversation:
        """Return a child `Conversation` in the same store: `with context.spawn(agent, "Do this") as
        child: return child.run().answer`.

        A repeated call gets the same child with its journal, also after its process was killed. The
        child's id is therefore `{conversation_id}.{call_id}`, then `-{name}` for a child with a
        name. Without a name the second and further children of a call get `-2`, `-3`, .... In a
        hook that is not around a call, the id begins with the place, the journal's length and a
        digest of the hook's subject. A child that is open in this process is returned unchanged.

        The child is interrupted when the call is cancelled or the conversation is interrupted, and
        closed with the conversation. All children spend from the budgets of their ancestors
        (`Agent(tree_limits=)`), and the values of all secrets are masked in them.

        Args:
            agent: The `Agent` of the child.
            message: Sent only if the child has no message yet.
            name: A name among the children of the call; give names where several threads spawn.
            id: The id of a child of this conversation, also of an earlier call.
            detached: True neither interrupts nor closes the child; the caller closes it.
            runtime: None takes that of the agent's tools, else that of this conversation.
            secrets: The names of this conversation's secrets that the child can use.

        Raises `ConfigurationError` for an id that exists and is not a child of this
        conversation, `LeaseHeld`, `StoreError`, `ToolCancelled`.
        """
        if self.spawns is None:
            raise ConfigurationError(
                "spawn: this call is not of a conversation, so it has no children. Use"
                " Conversation(agent)."
            )
        request = ChildRequest(agent, message, name, id, detached, runtime, secrets)
        return self.spawns().spawn(self, request)

    def wake_at(
        self,
        when: datetime | timedelta | str,
        note: str = "",
        *,
        timezone: str = "",
        id: str = "",
    ) -> datetime:
        """Set a timer that wakes the conversation with a message, and return its time in UTC.

        The timer is journaled when this method returns, and survives every process. The run
        continues, unlike after the tool `wait_until`. A repeated call, also after its process was
        killed, replaces its earlier timers.

        Args:
            when: The time, its ISO form, or a `timedelta` from now.
            note: What the message repeats to the model, at most about 10,000 characters.
            timezone: The zone of a time without an offset, such as `Europe/Berlin`.
            id: The timer's id; a timer of this id is replaced. "" derives one from the call's.

        Raises `ConfigurationError` for a past or unreadable time, an unknown zone, a note that is
        too long, or outside of a conversation. Raises `Conflict` if the conversation has too many
        timers.
        """
        if self.wakes is None:
            raise ConfigurationError(
                "wake_at: this call is not of a conversation whose store is here, so there is"
                " nobody to wake."
            )
        if not id:
            self._wakes += 1
            id = f"wake:{self.call_id}" + (f"-{self._wakes}" if self._wakes > 1 else "")
        return self.wakes(self.call_id, when, note, timezone, id)

    def on_close(self, key: object, cleanup: Callable[[], None]) -> None:
        """Run `cleanup` when the conversation closes, once per `key`. Without a conversation,
        the tool's owner cleans up."""
        if self._on_close is not None:
            self._on_close(key, cleanup)

    def process_environment(self) -> dict[str, str]:
        """Return environment variables for a process that the call starts: `Popen(..., env={**env,
        **context.process_environment()})`. If this process is killed, another one takes over the
        conversation. Before it runs any call again, it ends every process with these variables, and
        their children. Empty without a conversation."""
        return self._mark() if self._mark is not None else {}

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on the agent's loop thread and return its result. A cancel
        cancels the coroutine and raises `ToolCancelled`. Equivalent to `asyncio.run(work)`, except
        that several coroutines share one loop. Must not be called from a coroutine."""
        self.cancelled.raise_if_set()
        own_loop = None if self.loop is not None else LoopThread("holdfast-async")
        future: Future[T] = own_loop.submit(work) if own_loop is not None else self.loop(work)  # pyright: ignore[reportOptionalCall]: one of the two is set
        remove_callback = self.cancelled.add_callback(future.cancel)
        try:
            return future.result()
        except CancelledError:
            raise ToolCancelled("The call was cancelled; its effect may have happened.") from None
        finally:
            remove_callback()
            future.cancel()  # also after an interrupt of the wait
            if own_loop is not None:
                own_loop.close()

    def sleep(self, seconds: float) -> None:
        """Sleep like `time.sleep`. A cancel ends the sleep with `ToolCancelled`."""
        if self.cancelled.wait(max(seconds, 0.0)):
            self.cancelled.raise_if_set()


def _in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
