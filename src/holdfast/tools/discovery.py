"""Which remote services an agent has, what they offer, and asking them: all at once, each at most once at a time, a failure remembered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import cast

from holdfast.errors import ConfigurationError, HoldfastError, ToolError
from holdfast.tools.pins import definition
from holdfast.tools.running import start_thread
from holdfast.tools.sources import Health, Source
from holdfast.tools.tool import Tool

_log = logging.getLogger("holdfast.tools")

_PAUSE = 1.0  # seconds between two refreshes of a service that says that its tools have changed
_LONGEST_PAUSE = 60.0  # of one that says so again and again while they have not

Found = Callable[[Source, Sequence[Tool], int], None]


class _State:
    """What is known of one service. Guarded by the discovery's lock; `found` and `error` are None until it was asked."""

    __slots__ = ("asker", "asking", "closing", "error", "found", "pause", "refreshing", "rested", "source", "stale", "version")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asking: Future[None] | None = None  # who asks now; the others wait for it. What an older one brings is dropped
        self.asker: int | None = None  # its thread, once that is known
        self.closing: Future[None] | None = None
        self.found: tuple[Tool, ...] | None = None
        self.version = 0  # of `found`
        self.error: str | None = None
        self.stale = False  # it said that its tools have changed while it was being asked
        self.refreshing: threading.Event | None = None  # a refresh that waits for its time; set, it is called off
        self.pause = _PAUSE / 2
        self.rested = 0.0  # when it may be refreshed again


class Discovery:
    """The services of one agent. Thread-safe; no lock is held while a service is asked.

    `found(source, tools, version)` is called with what a service offers, each time that it was asked, on the thread that asked. Versions rise:
    a list never replaces one of a higher version. A refresh (the service said that its tools have changed) that finds the same is left out.
    """

    def __init__(self, found: Found) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._found = found
        self._version = 0
        self._waits: dict[int, list[_State]] = {}  # for which services a thread waits

    def add(self, sources: Sequence[Source]) -> None:
        """Have these services too, all or none; nothing is asked yet. Raises `ConfigurationError` for an id that is taken."""
        with self._lock:
            states = dict(self._states)
            for source in sources:
                if source.id in states:
                    raise ConfigurationError(f"There are two services named {source.id!r}. Give one of them another id.")
                states[source.id] = _State(source)
            self._states = states
        for source in sources:
            source.watch(partial(self._changed, source.id))

    @property
    def sources(self) -> dict[str, Source]:
        """All services by id, in the order in which they were added."""
        return {id: state.source for id, state in self._states.items()}

    @property
    def errors(self) -> dict[str, str]:
        """Return the errors of discovery by service id."""
        with self._lock:
            return {id: state.error for id, state in self._states.items() if state.error is not None}

    def summary(self) -> dict[str, int | str]:
        """Of each service how many tools it offers, why it could not be asked, or `not asked`."""
        with self._lock:
            return {id: state.error or ("not asked" if state.found is None else len(state.found)) for id, state in self._states.items()}

    def offered(self, id: str) -> tuple[tuple[Tool, ...], int] | None:
        """What a service offered when it was asked last, and the version of that; None if there is nothing since the last `close`."""
        with self._lock:
            state = self._states[id]
            return None if state.found is None else (state.found, state.version)

    # --- asking ---

    def ask(self, ids: Iterable[str], force: bool = False, within: float | None = None) -> None:
        """Ask these services, all at once, and wait for them. One that was asked is not asked again but with `force`; one that is being
        asked is waited for. What fails harms only itself: see `errors`. Raises `ToolError` if a service asks for itself while it is asked.

        After `within` seconds, if given, a service without an answer is in `errors`, and is still waited for by the next `ask`.
        """
        waiting: list[tuple[_State, Future[None]]] = []
        mine: list[tuple[_State, Future[None]]] = []
        with self._lock:
            for state in [self._states[id] for id in ids]:
                if state.asking is not None:
                    waiting.append((state, state.asking))
                elif force or (state.found is None and state.error is None):
                    mine.append((state, _claim(state)))
        deadline = None if within is None else time.monotonic() + within
        self._ask_all(mine, within is None)
        me = threading.get_ident()
        with self._lock:
            pending = [state for state, future in (*waiting, *mine) if state.asking is future]
            self._refuse_circle(me, pending)
            self._waits[me] = pending
        try:
            for state, future in (*waiting, *mine):
                try:
                    future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    self._overdue(state, future, cast("float", within))
        finally:
            with self._lock:
                del self._waits[me]

    def _overdue(self, state: _State, future: Future[None], within: float) -> None:
        with self._lock:
            if state.asking is not future:
                return
            state.error = (
                f"{state.source.id!r} has not told its tools within {within:g} s. It is still being asked; discover() waits for it."
            )
            error = state.error
        _log.warning("%s", error)

    def _refuse_circle(self, me: int, wanted: Iterable[_State]) -> None:
        """Whoever asks a service waits for it: it must not wait for the one who waits."""
        todo, seen = list(wanted), set[int]()
        while todo:
            state = todo.pop()
            if state.asker is None or state.asker in seen:
                continue
            if state.asker == me:
                raise ToolError(
                    f"The service {state.source.id!r} is being asked for its tools, and would wait for itself: its discover() must not "
                    "discover or call its own tools, nor those of a service that waits for it.",
                    retryable=False,
                )
            seen.add(state.asker)
            todo += self._waits.get(state.asker, [])

    def _ask_all(self, mine: list[tuple[_State, Future[None]]], one_here: bool) -> None:
        """Ask each service on a thread of its own; with `one_here` the first on this thread."""
        begun = 1 if one_here else 0
        here = mine[:begun]
        try:
            for state, future in mine[begun:]:
                start_thread(lambda state=state, future=future: self._ask(state, future), f"holdfast-discover-{state.source.id}")
                begun += 1
        except RuntimeError:  # no thread is left to be had: then one after the other
            here += mine[begun:]
        try:
            with self._lock:
                for state, _ in here:
                    state.asker = threading.get_ident()
            while here:
                self._ask(*here[0])
                del here[0]
        finally:  # an interrupt: nobody is to wait for what will not be asked
            for state, future in here:
                self._settle(state, future)

    def _ask(self, state: _State, future: Future[None], refresh: bool = False) -> None:
        found: tuple[Tool, ...] | None = None
        error: str | None = None
        late: Future[None] | None = None
        same = False
        version = 0
        try:
            with self._lock:
                if state.asking is not future:
                    return
                state.asker = threading.get_ident()
                known, closing = state.found, state.closing
            if closing is not None:
                closing.result()  # or it would end the connection that is made now
            offer = tuple(state.source.discover())
            with self._lock:
                self._version += 1
                version = self._version
                current = state.asking is future
                if not current and state.asking is None and state.found is None and state.closing is None:
                    late = state.closing = Future[None]()
            if late is not None:  # closed while it was asked: what was opened after that is closed, too
                self._close(state, late)
            if not current:
                return
            same = refresh and known is not None and [*map(definition, known)] == [*map(definition, offer)]
            if not same:
                self._found(state.source, offer, version)
            found = offer
        except ToolError as failure:
            error = str(failure)
        except HoldfastError as failure:
            error = f"The tools of {state.source.id!r} could not be taken in: {failure}"
        except (Exception, SystemExit) as failure:  # a source may be anybody's class
            error = f"{state.source.id!r} could not be asked for its tools: {type(failure).__name__}: {failure}"
        finally:
            again = False
            with self._lock:
                if state.asking is future:
                    state.error = error
                    if found is not None and not same:
                        state.found, state.version = found, version
                    again, state.stale = state.stale, False
                    if refresh:
                        state.pause = min(state.pause * 2, _LONGEST_PAUSE) if same or error is not None else _PAUSE
                        state.rested = time.monotonic() + state.pause
                elif error is not None:
                    error = None  # a connection that was closed on purpose
            if error is not None:
                _log.warning("%s", error)
            self._settle(state, future)
        if again:
            self._changed(state.source.id)

    def _settle(self, state: _State, future: Future[None]) -> None:
        with self._lock:
            if state.asking is future:
                state.asking = state.asker = None
            if future.done():
                return
            future.set_result(None)

    # --- services whose tools change ---

    def _changed(self, id: str) -> None:
        """A service says that its tools are others now: ask it again, without keeping it waiting, but not more often than it deserves. One that
        nobody has asked yet is left alone."""
        with self._lock:
            state = self._states[id]
            if state.asking is not None:
                state.stale = True
                return
            if state.found is None or state.refreshing is not None:
                return
            called_off = state.refreshing = threading.Event()
            wait = state.rested - time.monotonic()
        try:
            start_thread(lambda: self._refresh(state, called_off, wait), f"holdfast-discover-{id}")
        except RuntimeError:
            with self._lock:
                if state.refreshing is called_off:
                    state.refreshing = None
            _log.warning("%r says that its tools have changed, and could not be asked: no thread is to be had.", id)

    def _refresh(self, state: _State, called_off: threading.Event, wait: float) -> None:
        if wait > 0 and called_off.wait(wait):
            return
        with self._lock:
            if state.refreshing is not called_off:
                return
            state.refreshing = None
            if state.asking is not None:
                return  # somebody asks since, who hears of the change
            future = _claim(state)
        self._ask(state, future, refresh=True)

    # --- all services ---

    def health(self, timeout: float) -> dict[str, Health]:
        """How each service answers, all asked at once; one that says nothing within `timeout` seconds (and a little) is not well."""
        answers: dict[str, Future[Health]] = {}
        for id, state in self._states.items():
            future: Future[Health] = Future()
            answers[id] = future
            _elsewhere(lambda source=state.source, future=future: _check(source, timeout, future), f"holdfast-health-{id}")
        found: dict[str, Health] = {}
        for id, future in answers.items():
            try:
                found[id] = future.result(timeout + 1.0)
            except TimeoutError:
                found[id] = Health(id, False, timeout, f"it did not answer within {timeout:g} s")
        return found

    def close(self) -> None:
        """Let go of all connections, all at once, and forget what was found, and what is being asked: the next use asks again."""
        done: list[Future[None]] = []
        work: list[tuple[_State, Future[None]]] = []
        with self._lock:
            for state in self._states.values():
                state.found = state.error = state.asking = state.asker = None
                state.stale = False
                state.pause, state.rested = _PAUSE / 2, 0.0
                if state.refreshing is not None:
                    state.refreshing.set()
                    state.refreshing = None
                future: Future[None] = Future()
                done.append(future)
                if state.closing is not None:  # another thread closes it: once more when it has, for who came between
                    done.append(state.closing)
                state.closing = future
                work.append((state, future))
        for state, future in work:
            _elsewhere(lambda state=state, future=future: self._close(state, future), f"holdfast-close-{state.source.id}")
        for future in done:
            future.result()

    def _close(self, state: _State, future: Future[None]) -> None:
        try:
            state.source.close()
        except Exception:
            _log.exception("%s could not be closed", state.source.id)
        finally:
            with self._lock:
                if state.closing is future:
                    state.closing = None
            future.set_result(None)


def _claim(state: _State) -> Future[None]:
    """Say, under the lock, that it is asked from here on."""
    future: Future[None] = Future()
    state.asking, state.asker = future, None
    return future


def _elsewhere(work: Callable[[], None], name: str) -> None:
    try:
        start_thread(work, name)
    except RuntimeError:  # no thread is left to be had
        work()


def _check(source: Source, timeout: float, future: Future[Health]) -> None:
    try:
        future.set_result(source.health(timeout))
    except Exception as error:
        future.set_result(Health(source.id, False, 0.0, f"{type(error).__name__}: {error}"))
