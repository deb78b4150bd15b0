"""Which remote services an agent has, what they offer, and asking them: all at once, each at most once at a time, a failure remembered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.running import start_thread
from holdfast.tools.sources import Health, Source
from holdfast.tools.tool import Tool

_log = logging.getLogger("holdfast.tools")

Found = Callable[[Source, Sequence[Tool]], None]


class _State:
    """What is known of one service. Guarded by the discovery's lock; `found` and `error` are None until it was asked."""

    __slots__ = ("asking", "error", "found", "source", "stale")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asking: Future[None] | None = None  # who asks now; the others wait for it
        self.found: tuple[Tool, ...] | None = None
        self.error: str | None = None
        self.stale = False  # it said that its tools have changed while it was being asked


class Discovery:
    """The services of one agent. Thread-safe; no lock is held while a service is asked.

    `found(source, tools)` is called with what a service offers, each time that it was asked, on the thread that asked.
    """

    def __init__(self, found: Found) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._found = found

    def add(self, source: Source) -> None:
        """Have one service more; nothing is asked yet. Raises `ConfigurationError` for an id that is taken."""
        with self._lock:
            if source.id in self._states:
                raise ConfigurationError(f"There are two services named {source.id!r}. Give one of them another id.")
            self._states[source.id] = _State(source)
        source.watch(lambda: self._changed(source.id))

    @property
    def sources(self) -> dict[str, Source]:
        """All services by id, in the order in which they were added."""
        with self._lock:
            return {id: state.source for id, state in self._states.items()}

    @property
    def errors(self) -> dict[str, str]:
        """Why services could not be asked, by id."""
        with self._lock:
            return {id: state.error for id, state in self._states.items() if state.error is not None}

    def summary(self) -> dict[str, int | str]:
        """Of each service how many tools it offers, why it could not be asked, or `not asked`."""
        with self._lock:
            return {id: state.error or ("not asked" if state.found is None else len(state.found)) for id, state in self._states.items()}

    def tools(self, id: str) -> tuple[Tool, ...]:
        """What a service offered when it was asked last."""
        state = self._states.get(id)
        return () if state is None else state.found or ()

    def ask(self, ids: Iterable[str], force: bool = False) -> None:
        """Ask these services, all at once, and wait for them. One that was asked is not asked again but with `force`; one that is being
        asked is waited for. What fails harms only itself: see `errors`."""
        waiting: list[Future[None]] = []
        mine: list[tuple[_State, Future[None]]] = []
        with self._lock:
            for id in ids:
                state = self._states[id]
                if state.asking is not None:
                    waiting.append(state.asking)
                elif force or (state.found is None and state.error is None):
                    state.asking = Future()
                    mine.append((state, state.asking))
                    waiting.append(state.asking)
        try:
            for state, future in mine[1:]:
                start_thread(lambda state=state, future=future: self._ask(state, future), f"holdfast-discover-{state.source.id}")
        except RuntimeError:  # no thread is left to be had: then one after the other
            for state, future in mine[1:]:
                self._ask(state, future)
        if mine:
            self._ask(*mine[0])
        for future in waiting:
            future.result()

    def _ask(self, state: _State, future: Future[None]) -> None:
        if not future.set_running_or_notify_cancel():
            return  # another thread began it
        found: list[Tool] | None = None
        error: str | None = None
        try:
            found = state.source.discover()
            self._found(state.source, found)
        except ToolError as failure:
            error = str(failure)
        except Exception as failure:  # a source may be anybody's class
            error = f"{state.source.id!r} could not be asked for its tools: {type(failure).__name__}: {failure}"
        finally:
            if error is not None:
                _log.warning("%s", error)
            with self._lock:
                state.asking = None
                state.error = error if found is None or error is not None else None
                if error is None and found is not None:
                    state.found = tuple(found)
                again, state.stale = state.stale, False
            future.set_result(None)
        if again:
            self._changed(state.source.id)

    def _changed(self, id: str) -> None:
        """A service says that its tools are others now: ask it again, without keeping it waiting. One that nobody has asked yet is left alone."""
        with self._lock:
            state = self._states[id]
            if state.asking is not None:
                state.stale = True
                return
            if state.found is None:
                return
        start_thread(lambda: self.ask([id], force=True), f"holdfast-discover-{id}")

    def health(self, timeout: float) -> dict[str, Health]:
        """How each service answers, all asked at once; one that says nothing within `timeout` seconds (and a little) is not well."""
        answers: dict[str, Future[Health]] = {}
        for id, state in list(self._states.items()):
            future: Future[Health] = Future()
            answers[id] = future
            start_thread(lambda source=state.source, future=future: _check(source, timeout, future), f"holdfast-health-{id}")
        found: dict[str, Health] = {}
        for id, future in answers.items():
            try:
                found[id] = future.result(timeout + 1.0)
            except TimeoutError:
                found[id] = Health(id, False, timeout, f"it did not answer within {timeout:g} s")
        return found

    def close(self) -> None:
        """Let go of all connections, all at once, and forget what was found: the next use asks again."""
        with self._lock:
            states = list(self._states.values())
            for state in states:
                state.found = state.error = None
        done: list[Future[None]] = []
        for state in states:
            future: Future[None] = Future()
            done.append(future)
            start_thread(lambda source=state.source, future=future: _close(source, future), f"holdfast-close-{state.source.id}")
        for future in done:
            future.result()


def _check(source: Source, timeout: float, future: Future[Health]) -> None:
    try:
        future.set_result(source.health(timeout))
    except Exception as error:
        future.set_result(Health(source.id, False, 0.0, f"{type(error).__name__}: {error}"))


def _close(source: Source, future: Future[None]) -> None:
    try:
        source.close()
    except Exception:
        _log.exception("%s could not be closed", source.id)
    finally:
        future.set_result(None)
