"""The observer protocols, and `Observed`, which notifies a conversation's observers and contains
their failures."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from holdfast import events as ev
from holdfast.errors import ConfigurationError
from holdfast.object_struct import ObjectStruct

if TYPE_CHECKING:
    from holdfast.agent.condenser import Condensed
    from holdfast.conversation.fold import Fold
    from holdfast.conversation.journal import Journal
    from holdfast.llm.completion import Completion

_log = logging.getLogger("holdfast")

T = TypeVar("T")
OnOutcome = Callable[[T | BaseException | None], None]
Undo = Callable[[], None]


class Watch(Protocol):
    """An observer's view of one open conversation.

    An exception of a method is logged once and goes no further. No method may block for long.
    """

    def on_events(self, events: Sequence[ev.AnyEvent]) -> None:
        """Receive events that were appended to the journal.

        The events come in order, one call at a time, in the context of the appending thread, with
        no lock held.
        """
        ...

    def asking(self, head: ev.AgentConfigured) -> OnOutcome[Completion]:
        """Note that the model is asked on this thread. The returned function is called there
        with the answer or the error."""
        ...

    def calling(self, call_id: str) -> Undo:
        """Note that a tool call runs on this thread until the returned function is called there."""
        ...

    def condensing(self) -> OnOutcome[Condensed]:
        """Note that the condenser is asked on this thread, like `asking`. The outcome None means
        that nothing could be left out."""
        ...

    def spawned(self, conversation_id: str, fold: Callable[[], Fold] | None, call_id: str) -> Watch:
        """Return the watch of a conversation that a call of this one spawns or reopens."""
        ...

    def close(self) -> None:
        """Note that the conversation is closed: spans that are still open were cut off."""
        ...


class Observer(Protocol):
    """An observer of any number of conversations. Thread-safe. `holdfast.observe` has
    implementations."""

    def watch(
        self, conversation_id: str, fold: Callable[[], Fold] | None, elsewhere: bool = False
    ) -> Watch:
        """Return the watch of a conversation that is opened.

        `fold()` is the journal's present fold: read-only, and only within a call of the watch.
        `fold` is None for a conversation that is open `elsewhere`, in another process; only its
        events are reported.
        """
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers of a request to another service that link its work to this one's."""
        ...

    def served(self, method: str, headers: Mapping[str, str]) -> Callable[[str, int], None]:
        """Note that the agent server begins to serve a request in this context. The returned
        function is called there with the route and the status."""
        ...


Observing = Observer | Sequence[Observer] | None


def observers(what: str, value: Any) -> tuple[Observer, ...]:
    """Return one observer or several as a tuple. Raises `ConfigurationError` naming the argument
    `what` for anything else."""
    if value is None:
        return ()
    items: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in items:
        if not all(callable(getattr(one, name, None)) for name in ("watch", "headers", "served")):
            raise ConfigurationError(
                f"{what} takes an observer such as holdfast.observe.Telemetry(), or a list of them,"
                f" not {one!r}."
            )
    return items


def headers_of(observers: Iterable[Observer]) -> Mapping[str, str]:
    """Return the request headers of all observers. A failing observer adds none."""
    headers: dict[str, str] = {}
    for one in observers:
        headers.update(quietly(one.headers) or {})
    return headers


def quietly(work: Callable[..., T], *arguments: Any) -> T | None:
    """Call an observer's method that belongs to no conversation; return None if it raises."""
    try:
        return work(*arguments)
    except Exception:
        _log.exception("an observer failed")
        return None


def observe(
    journal: Journal, observers: Sequence[Observer], parent: Observed | None
) -> Observed | None:
    """Return the watches of a conversation that is opened: of the given observers, or by default
    those of `parent`, the conversation whose call spawned it."""
    if not observers and parent is not None:
        call_id = journal.spawned_by.rpartition(":")[2]
        return parent.spawned(journal.id, lambda: journal.fold, call_id)
    return Observed.of(observers, journal.id, lambda: journal.fold)


class Observed(ObjectStruct):
    """The watches of one conversation. Events are queued under the journal's lock (`add`), and
    delivered once it is released (`tell`)."""

    _watches: list[Watch] = []
    _news: deque[tuple[contextvars.Context | None, Sequence[ev.AnyEvent]]] = msgspec.field(
        default_factory=deque[Any]
    )
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _teller_id: int = 0  # the id of the delivering thread
    _skipped: int = 0
    _failure_logged: bool = False

    @classmethod
    def of(
        cls,
        observers: Sequence[Observer],
        conversation_id: str,
        fold: Callable[[], Fold] | None,
        elsewhere: bool = False,
    ) -> Observed | None:
        """Return the watches of a conversation that is opened; None if it has no observer."""
        if not observers:
            return None
        observed = cls()
        watches = [partial(one.watch, conversation_id, fold, elsewhere) for one in observers]
        observed._watches = observed._each(watches)
        return observed

    def spawned(
        self, conversation_id: str, fold: Callable[[], Fold] | None, call_id: str
    ) -> Observed:
        self.tell()
        observed = Observed()
        spawned = [partial(one.spawned, conversation_id, fold, call_id) for one in self._watches]
        observed._watches = observed._each(spawned)
        return observed

    def add(self, events: Sequence[ev.AnyEvent]) -> None:
        """Queue appended events. Holds the journal's lock."""
        if self._skipped:
            events, self._skipped = events[self._skipped :], 0
        # Only events that begin a run need the context of their appender.
        begins = any(type(event) is ev.StatusChanged for event in events)
        self._news.append((contextvars.copy_context() if begins else None, events))

    def skip(self, count: int) -> None:
        self._skipped = count

    def tell(self) -> None:
        """Deliver the queued events. Not under the journal's lock. Events that a watch itself
        appends are delivered after the present one."""
        if not self._news or self._teller_id == (here := threading.get_ident()):
            return
        with self._lock:
            self._teller_id = here
            try:
                while self._news:
                    context, events = self._news.popleft()
                    for watch in self._watches:
                        tell = partial(watch.on_events, events)
                        self._guarded(tell if context is None else partial(context.run, tell))
            finally:
                self._teller_id = 0

    def ask_model(self, head: ev.AgentConfigured, ask: Callable[[], Completion]) -> Completion:
        return self._within([partial(watch.asking, head) for watch in self._watches], ask)

    def condense(self, ask: Callable[[], Condensed | None]) -> Condensed | None:
        return self._within([watch.condensing for watch in self._watches], ask)

    def run_call(self, call_id: str, work: Callable[[], T]) -> T:
        def calling(watch: Watch) -> Callable[[object], None]:
            undo = watch.calling(call_id)
            return lambda _: undo()

        return self._within([partial(calling, watch) for watch in self._watches], work)

    def _within(
        self, begin: Sequence[Callable[[], Callable[[Any], None]]], work: Callable[[], T]
    ) -> T:
        """Do the work within the watches: each `begin` returns the function that ends it."""
        self.tell()
        ends, outcome = self._each(begin), cast(Any, None)
        try:
            outcome = result = work()
            return result
        except BaseException as error:
            outcome = error
            raise
        finally:
            for end in reversed(ends):
                self._guarded(partial(end, outcome))

    def close(self) -> None:
        self.tell()
        self._each([watch.close for watch in self._watches])

    def _each(self, work: Sequence[Callable[[], T]]) -> list[T]:
        results: list[T] = []
        for one in work:
            self._guarded(lambda one=one: results.append(one()))
        return results

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run an observer's function; its failure is logged and affects nothing else."""
        try:
            work()
        except Exception:
            if not self._failure_logged:
                self._failure_logged = True
                _log.exception(
                    "an observer of a conversation failed; its further failures are not logged"
                )
