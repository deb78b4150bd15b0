"""The connections that the calls of a manager use: its services, and the loop of async tools."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import ToolError
from holdfast.tools.loop import LoopThread
from holdfast.tools.sources import Rooted, Source
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.tools.discovery import Discovery


class ServiceSet:
    """The services and the loop thread of one manager, open while conversations or direct calls use
    them. Thread-safe. `discovery` is None before the first service. `on_offer` receives the tools
    of services."""

    def __init__(self, on_offer: Callable[[Source, Sequence[Tool], int], None]) -> None:
        self.discovery: Discovery | None = None
        self._on_offer = on_offer
        self._lock = threading.Lock()  # guards the attributes below
        self._loop: LoopThread | None = None
        self._conversations = 0
        self._folders: list[str] = []  # one entry for each open conversation
        self._calls = 0  # direct calls under way; the last one closes if no conversation is open
        self._close_pending = False

    def add(self, sources: Sequence[Source]) -> None:
        """Add services, all or none. Raises `ConfigurationError` for an id that is taken."""
        if self.discovery is None:
            from holdfast.tools.discovery import Discovery  # an agent without services needs none

            with self._lock:
                self.discovery = self.discovery or Discovery(self._on_offer)
        self.discovery.add(sources)

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a callback's coroutine on the loop thread, which lives until `close`."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread("holdfast-async")
            if not self._loop.inside():
                return self._loop.submit(work)
        work.close()
        raise ToolError(
            "An async tool called another one without await, and would wait for itself: use `await"
            " manager.acall(...)`.",
            retryable=False,
        )

    @contextlib.contextmanager
    def direct_call(self) -> Generator[None]:
        """Keep the connections open during a call that belongs to no conversation."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                due = self._close_pending and not self._calls and not self._conversations
            if due:
                self.close()

    def opened(self, runtime: object | None) -> None:
        """Count a conversation that uses the connections, with its working folder."""
        with self._lock:
            self._conversations += 1
        self._use_folder(runtime, True)

    def closed(self, runtime: object | None) -> None:
        """Forget a conversation. The last one closes the connections, after direct calls."""
        with self._lock:
            self._conversations -= 1
            last = not self._conversations
            self._close_pending = last and bool(self._calls)
            due = last and not self._close_pending
        self._use_folder(runtime, False)
        if due:
            self.close()

    def folders(self) -> tuple[str, ...]:
        """Return the distinct working folders of open conversations, the services' roots."""
        return tuple(dict.fromkeys(self._folders))

    def _use_folder(self, runtime: object | None, opened: bool) -> None:
        workdir: object = getattr(runtime, "workdir", None)
        if not isinstance(workdir, str | PathLike):
            return
        folder = os.fspath(cast("str | PathLike[str]", workdir))
        before = self.folders()
        with self._lock:
            if opened:
                self._folders.append(folder)
            elif folder in self._folders:
                self._folders.remove(folder)
        if self.discovery is not None and before != self.folders():
            for source in self.discovery.sources.values():
                if isinstance(source, Rooted):
                    source.folders_changed()

    def close(self) -> None:
        """Close all connections and the loop. Idempotent; the next use connects again."""
        with self._lock:
            self._close_pending = False
            loop, self._loop = self._loop, None
        if self.discovery is not None:
            self.discovery.close()
        if loop is not None:
            loop.close()
