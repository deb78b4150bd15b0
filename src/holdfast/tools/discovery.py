"""The remote services of an agent, and the discovery of their tools.

Services are asked in parallel, each at most once at a time. A failure is remembered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, HoldfastError, ToolError
from holdfast.tools.pins import definition
from holdfast.tools.running import start_thread
from holdfast.tools.sources import Source, SourceHealth
from holdfast.tools.tool import Tool

_log = logging.getLogger("holdfast.tools")

_REFRESH_SECONDS = 1.0  # between two refreshes of a service that announces changes of its tools
# between two refreshes of a service that announces changes again and again without a change
_MAX_REFRESH_SECONDS = 60.0

OnOffer = Callable[[Source, Sequence[Tool], int], None]


@dataclass(eq=False, slots=True)
class _State:
    """The state of one service; `tools` and `error` are None until the service was asked."""

    source: Source
    # The discovery under way, for which others wait. The result of an older one is dropped.
    asking: Future[None] | None = None
    asker: int | None = None  # the id of the thread that asks, once known
    closing: Future[None] | None = None
    tools: tuple[Tool, ...] | None = None
    error: str | None = None
    stale: bool = False  # the service announced a change while it was being asked
    refreshing: threading.Event | None = None  # a scheduled refresh; setting it cancels
    pause: float = _REFRESH_SECONDS / 2
    next_refresh: float = 0.0  # the monotonic time of the earliest next refresh


class Discovery:
    """The services of one agent. Thread-safe; no lock is held while a service is asked. After each
    discovery `on_offer(source, tools, version)` is called with the offered tools, on the thread
    that asked. Versions rise: a list never replaces one with a higher version. A refresh (after the
    service announced a change) that finds the same tools is skipped."""

    def __init__(self, on_offer: OnOffer) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._on_offer = on_offer
        self._version = 0
        self._waits: dict[int, list[_State]] = {}  # the services that each thread waits for

    def add(self, sources: Sequence[Source]) -> None:
        """Add services, all or none. Raises `ConfigurationError` for an id that is taken."""
        with self._lock:
            states = dict(self._states)
            for source in sources:
                if source.id in states:
                    raise ConfigurationError(
                        f"There are two services named {source.id!r}. Give one of them another id."
                    )
                states[source.id] = _State(source)
            self._states = states
        for source in sources:
            source.watch(partial(self._schedule_refresh, source.id))

    @property
    def sources(self) -> dict[str, Source]:
        """All services by id, in the order of their addition."""
        return {id: state.source for id, state in self._states.items()}

    @property
    def errors(self) -> dict[str, str]:
        """The errors of discovery by service id."""
        with self._lock:
            return {
                id: state.error for id, state in self._states.items() if state.error is not None
            }

    def summary(self) -> dict[str, int | str]:
        """Return for each service the number of its tools, its discovery error, or `not asked`."""
        with self._lock:
            return {
                id: state.error or ("not asked" if state.tools is None else len(state.tools))
                for id, state in self._states.items()
            }

    def has_offer(self, id: str) -> bool:
        """Return True if a service has listed its tools since the last `close`."""
        with self._lock:
            return self._states[id].tools is not None

    # --- asking ---

    def ask(self, ids: Iterable[str], force: bool = False, within: float | None = None) -> None:
        """Ask these services for their tools, in parallel, and wait for them.

        A service that was asked is asked again only with `force`. A service that is being asked is
        waited for. A failure concerns only its own service: see `errors`. Raises `ToolError` if a
        service asks for itself within its own discovery.

        After `within` seconds, if given, a service without an answer is listed in `errors`. The
        next `ask` waits for it.
        """
        discoveries: list[tuple[_State, Future[None]]] = []
        mine: list[tuple[_State, Future[None]]] = []
        with self._lock:
            for state in [self._states[id] for id in ids]:
                future = state.asking
                if future is None and (force or (state.tools is None and state.error is None)):
                    future = _claim(state)
                    mine.append((state, future))
                if future is not None:
                    discoveries.append((state, future))
        deadline = None if within is None else time.monotonic() + within
        self._ask_all(mine, within is None)
        me = threading.get_ident()
        with self._lock:
            pending = [state for state, future in discoveries if state.asking is future]
            self._refuse_deadlock(me, pending)
            self._waits[me] = pending
        try:
            for state, future in discoveries:
                try:
                    future.result(deadline and max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    error = (
                        f"{state.source.id!r} has not listed its tools within {within:g} s. The"
                        " request continues; discover() waits for it."
                    )
                    with self._lock:
                        overdue = state.asking is future
                        if overdue:
                            state.error = error
                    if overdue:
                        _log.warning("%s", error)
        finally:
            with self._lock:
                del self._waits[me]

    def _refuse_deadlock(self, me: int, states: Iterable[_State]) -> None:
        """Raise `ToolError` if this thread would wait for itself through these services."""
        todo, visited = list(states), set[int]()
        while todo:
            state = todo.pop()
            if state.asker is None or state.asker in visited:
                continue
            if state.asker == me:
                raise ToolError(
                    f"The service {state.source.id!r} is being asked for its tools, and would wait"
                    " for itself: its discover() must not discover or call its own tools, nor"
                    " those of a service that waits for it.",
                    retryable=False,
                )
            visited.add(state.asker)
            todo += self._waits.get(state.asker, [])

    def _ask_all(self, mine: list[tuple[_State, Future[None]]], one_here: bool) -> None:
        """Ask each service on a thread of its own; with `one_here` the first one on this thread."""
        position = 1 if one_here else 0
        here = mine[:position]
        try:
            for state, future in mine[position:]:
                name = f"holdfast-discover-{state.source.id}"
                start_thread(partial(self._ask, state, future), name)
                position += 1
        except RuntimeError:  # out of threads: ask one after the other
            here += mine[position:]
        try:
            with self._lock:
                for state, _ in here:
                    state.asker = threading.get_ident()
            while here:
                self._ask(*here[0])
                del here[0]
        finally:  # after an interrupt no thread must wait for services that will not be asked
            for state, future in here:
                self._settle(state, future)

    def _ask(self, state: _State, future: Future[None], refresh: bool = False) -> None:
        offered: tuple[Tool, ...] | None = None
        error: str | None = None
        late_close: Future[None] | None = None
        same = False
        try:
            with self._lock:
                if state.asking is not future:
                    return
                state.asker = threading.get_ident()
                earlier, closing = state.tools, state.closing
            if closing is not None:
                closing.result()  # else the close would end the new connection
            offer = tuple(state.source.discover())
            with self._lock:
                self._version += 1
                version = self._version
                current = state.asking is future
                if state.asking is None and state.tools is None and state.closing is None:
                    late_close = state.closing = Future[None]()
            # After a `close` during the discovery, close the connection that was opened since.
            if late_close is not None:
                self._close(state, late_close)
            if not current:
                return
            if refresh and earlier is not None:
                same = [*map(definition, earlier)] == [*map(definition, offer)]
            if not same:
                self._on_offer(state.source, offer, version)
                offered = offer
        except ToolError as failure:
            error = str(failure)
        except HoldfastError as failure:
            error = f"The tools of {state.source.id!r} could not be added: {failure}"
        except (Exception, SystemExit) as failure:  # a source may be a user's own class
            why = describe_error(failure)
            error = f"{state.source.id!r} could not be asked for its tools: {why}"
        finally:
            again = False
            with self._lock:
                if state.asking is future:
                    state.error = error
                    if offered is not None:
                        state.tools = offered
                    again, state.stale = state.stale, False
                    if refresh:
                        longer = min(state.pause * 2, _MAX_REFRESH_SECONDS)
                        state.pause = longer if same or error is not None else _REFRESH_SECONDS
                        state.next_refresh = time.monotonic() + state.pause
                elif error is not None:
                    error = None  # the connection was closed on purpose
            if error is not None:
                _log.warning("%s", error)
            self._settle(state, future)
        if again:
            self._schedule_refresh(state.source.id)

    def _settle(self, state: _State, future: Future[None]) -> None:
        with self._lock:
            if state.asking is future:
                state.asking = state.asker = None
            if not future.done():
                future.set_result(None)

    # --- services whose tools change ---

    def _schedule_refresh(self, id: str) -> None:
        """Schedule a refresh of a service that announced a change of its tools. Returns at once and
        limits the rate of refreshes. A service that was never asked is left alone."""
        with self._lock:
            state = self._states[id]
            if state.asking is not None:
                state.stale = True
                return
            if state.tools is None or state.refreshing is not None:
                return
            cancelled = state.refreshing = threading.Event()
            wait = state.next_refresh - time.monotonic()

        def refresh() -> None:
            if wait > 0 and cancelled.wait(wait):
                return
            with self._lock:
                if state.refreshing is not cancelled:
                    return
                state.refreshing = None
                if state.asking is not None:
                    return  # a later discovery is under way and sees the change
                future = _claim(state)
            self._ask(state, future, refresh=True)

        try:
            start_thread(refresh, f"holdfast-discover-{id}")
        except RuntimeError:
            with self._lock:
                if state.refreshing is cancelled:
                    state.refreshing = None
            _log.warning(
                "The tools of %r have changed, but they cannot be listed again: no thread can be"
                " started.",
                id,
            )

    # --- all services ---

    def health(self, timeout: float) -> dict[str, SourceHealth]:
        """Return the health of each service, all checked in parallel. A service without an
        answer after `timeout` seconds (and one) is not ok."""
        answers: dict[str, Future[SourceHealth]] = {}

        def check(source: Source) -> None:
            try:
                health = source.health(timeout)
            except Exception as error:
                health = SourceHealth(source.id, False, 0.0, describe_error(error))
            answers[source.id].set_result(health)

        for id, state in self._states.items():
            answers[id] = Future()
            _run_on_thread(partial(check, state.source), f"holdfast-health-{id}")
        results: dict[str, SourceHealth] = {}
        for id, future in answers.items():
            try:
                results[id] = future.result(timeout + 1.0)
            except TimeoutError:
                detail = f"it did not answer within {timeout:g} s"
                results[id] = SourceHealth(id, False, timeout, detail)
        return results

    def close(self) -> None:
        """Close all connections in parallel and forget all offers, also those under way. The
        next use asks again."""
        done: list[Future[None]] = []
        work: list[tuple[_State, Future[None]]] = []
        with self._lock:
            for state in self._states.values():
                state.tools = state.error = state.asking = state.asker = None
                state.stale = False
                state.pause, state.next_refresh = _REFRESH_SECONDS / 2, 0.0
                if state.refreshing is not None:
                    state.refreshing.set()
                    state.refreshing = None
                # Another thread is closing the service: close it once more after that, because a
                # connection may have been opened in between.
                if state.closing is not None:
                    done.append(state.closing)
                state.closing = Future()
                work.append((state, state.closing))
        for state, future in work:
            done.append(future)
            name = f"holdfast-close-{state.source.id}"
            _run_on_thread(partial(self._close, state, future), name)
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
    """Mark a service as being asked from now on. The caller holds the lock."""
    future: Future[None] = Future()
    state.asking, state.asker = future, None
    return future


def _run_on_thread(work: Callable[[], None], name: str) -> None:
    try:
        start_thread(work, name)
    except RuntimeError:  # out of threads
        work()
