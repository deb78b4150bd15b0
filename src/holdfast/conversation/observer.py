"""Who observes a conversation: what an observer is, and `Observed`, which tells all of a
conversation's, and bears with them."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast import events as ev
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.agent.condenser import Condensed
    from holdfast.conversation.journal import Journal
    from holdfast.conversation.state import Fold
    from holdfast.llm.completion import Completion

_log = logging.getLogger("holdfast")

T = TypeVar("T")
Told = Callable[[T | BaseException | None], None]
Undo = Callable[[], None]


class Watch(Protocol):
    """One open conversation, as an observer follows it. What a method raises is logged once and
    goes no further; none may block for long."""

    def told(self, events: Sequence[ev.AnyEvent]) -> None:
        """They are in the journal. In their order, one call at a time, in the context of whoever
        appended them, with no lock held."""
        ...

    def asking(self, head: ev.Agent) -> Told[Completion]:
        """The model is asked, on this thread. What is returned is called there with the answer, or
        with the error that there was instead."""
        ...

    def calling(self, call_id: str) -> Undo:
        """A tool call that has begun runs on this thread, until what is returned is called
        there."""
        ...

    def condensing(self) -> Told[Condensed]:
        """The condenser is asked, on this thread; as `asking`. None: there was nothing to leave
        out."""
        ...

    def spawned(self, conversation_id: str, fold: Callable[[], Fold] | None, call_id: str) -> Watch:
        """A call of this conversation begins another, or opens it again."""
        ...

    def close(self) -> None:
        """The conversation is closed: what is still open was cut off."""
        ...


class Observer(Protocol):
    """Follows any number of conversations. Thread-safe. See `holdfast.observe` for those there
    are."""

    def watch(
        self, conversation_id: str, fold: Callable[[], Fold] | None, elsewhere: bool = False
    ) -> Watch:
        """A conversation is opened. `fold()` is what its journal comes to now: only to be read, and
        only within a call of the watch. One that is open `elsewhere`, in another process, has none,
        and only its events are told."""
        ...

    def headers(self) -> Mapping[str, str]:
        """What a request to another service is to carry, so that what it does there is known to
        belong here."""
        ...

    def served(self, method: str, headers: Mapping[str, str]) -> Callable[[str, int], None]:
        """The agent server begins to serve a request, in this context; what is returned is called
        there with its route and status."""
        ...


Observing = Observer | Sequence[Observer] | None


def observers(what: str, given: Any) -> tuple[Observer, ...]:
    """One observer or several, as a tuple. Raises `ConfigurationError` naming the argument `what`
    for anything else."""
    if given is None:
        return ()
    found: tuple[Any, ...] = tuple(given) if isinstance(given, list | tuple) else (given,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in found:
        if not all(callable(getattr(one, name, None)) for name in ("watch", "headers", "served")):
            raise ConfigurationError(
                f"{what} takes an observer such as holdfast.observe.Telemetry(), or a list of them,"
                f" not {one!r}."
            )
    return found


def headers_of(given: Iterable[Observer]) -> Mapping[str, str]:
    """What all of them want a request to carry. One that raises adds nothing."""
    found: dict[str, str] = {}
    for one in given:
        found.update(quietly(one.headers) or {})
    return found


def quietly(work: Callable[..., T], *arguments: Any) -> T | None:
    """Call an observer's method that belongs to no conversation; None if it raises."""
    try:
        return work(*arguments)
    except Exception:
        _log.exception("an observer failed")
        return None


def observe(journal: Journal, given: Sequence[Observer], above: Journal | None) -> None:
    """Have a conversation observed by whoever was handed over, or else by those of the conversation
    that spawned it."""

    def now() -> Fold:
        return journal.fold

    if not given and above is not None and above.observed is not None:
        journal.observed = above.observed.spawned(
            journal.id, now, journal.spawned_by.rpartition(":")[2]
        )
    else:
        journal.observed = Observed.of(given, journal.id, now)


class Observed:
    """The watches of one conversation. Events are noted under the journal's lock (`add`), and told
    once it is let go (`tell`)."""

    __slots__ = ("_failed", "_lock", "_news", "_skipped", "_teller", "_watches")

    def __init__(self) -> None:
        self._watches: list[Watch] = []
        self._news: deque[tuple[contextvars.Context | None, Sequence[ev.AnyEvent]]] = deque()
        self._lock = threading.Lock()
        self._teller = 0  # the thread that tells
        self._skipped = 0
        self._failed = False

    @classmethod
    def of(
        cls,
        given: Sequence[Observer],
        conversation_id: str,
        fold: Callable[[], Fold] | None,
        elsewhere: bool = False,
    ) -> Observed | None:
        """Those of a conversation that is opened; None if nobody observes it."""
        if not given:
            return None
        found = cls()
        found._watches = found._each(
            [partial(one.watch, conversation_id, fold, elsewhere) for one in given]
        )
        return found

    def spawned(
        self, conversation_id: str, fold: Callable[[], Fold] | None, call_id: str
    ) -> Observed:
        """Those of a conversation that a call of this one spawned."""
        self.tell()
        found = Observed()
        found._watches = found._each(
            [partial(watch.spawned, conversation_id, fold, call_id) for watch in self._watches]
        )
        return found

    def add(self, events: Sequence[ev.AnyEvent]) -> None:
        """They were appended. Under the journal's lock."""
        if self._skipped:
            events, self._skipped = events[self._skipped :], 0
        # Only of what begins a run it matters whose doing it is.
        context = (
            contextvars.copy_context()
            if any(type(event) is ev.Status for event in events)
            else None
        )
        self._news.append((context, events))

    def skip(self, count: int) -> None:
        """Tell nobody of so many of the events that are added next."""
        self._skipped = count

    def tell(self) -> None:
        """Tell what was added. Not under the journal's lock. What a watch itself appends is told
        after what it is being told."""
        if not self._news or self._teller == (here := threading.get_ident()):
            return
        with self._lock:
            self._teller = here
            try:
                while self._news:
                    context, events = self._news.popleft()
                    for watch in self._watches:
                        try:
                            if context is None:
                                watch.told(events)
                            else:
                                context.run(watch.told, events)
                        except Exception:
                            self._tell_failure()
            finally:
                self._teller = 0

    def asked(self, head: ev.Agent, ask: Callable[[], Completion]) -> Completion:
        """Ask the model, observed."""
        self.tell()
        return _within(
            self._each([partial(watch.asking, head) for watch in self._watches]), ask, self._guarded
        )

    def condensed(self, ask: Callable[[], Condensed | None]) -> Condensed | None:
        """Ask the condenser, observed."""
        self.tell()
        return _within(
            self._each([watch.condensing for watch in self._watches]), ask, self._guarded
        )

    def called(self, call_id: str, work: Callable[[], T]) -> T:
        """Run a call that has begun, observed."""
        self.tell()
        undo: list[Undo] = []
        try:
            for watch in self._watches:
                try:
                    undo.append(watch.calling(call_id))
                except Exception:
                    self._tell_failure()
            return work()
        finally:
            while undo:
                try:
                    undo.pop()()
                except Exception:
                    self._tell_failure()

    def close(self) -> None:
        """The conversation is closed."""
        self.tell()
        self._each([watch.close for watch in self._watches])

    def _each(self, work: Sequence[Callable[[], T]]) -> list[T]:
        found: list[T] = []
        for one in work:
            self._guarded(lambda one=one: found.append(one()))
        return found

    def _guarded(self, work: Callable[[], object]) -> None:
        """An observer that fails harms nobody."""
        try:
            work()
        except Exception:
            self._tell_failure()

    def _tell_failure(self) -> None:
        if not self._failed:
            self._failed = True
            _log.exception(
                "an observer of a conversation failed; what it fails at again is not told"
            )


def _within(
    told: Sequence[Callable[[Any], None]],
    ask: Callable[[], T],
    guarded: Callable[[Callable[[], object]], None],
) -> T:
    outcome: Any = None
    try:
        outcome = found = ask()
        return found
    except BaseException as error:
        outcome = error
        raise
    finally:
        for one in reversed(told):
            guarded(partial(one, outcome))
