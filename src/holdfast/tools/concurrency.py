"""Caps on the number of concurrent tool calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

from holdfast.errors import ToolCancelled
from holdfast.tools.arguments import is_whole, wrong
from holdfast.tools.context import Cancellation
from holdfast.tools.patterns import name_fits


class ConcurrencyLimit:
    """A limit on concurrent calls. Further calls wait for their turn, in order."""

    def __init__(self, calls: int) -> None:
        self._lock = threading.Lock()
        self._free = calls
        self._waiting: deque[threading.Event] = deque()

    def enter(self, cancelled: Cancellation) -> None:
        """Wait for a free slot and take it. Raises `ToolCancelled`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        remove_callback = cancelled.add_callback(turn.set)
        try:
            turn.wait()
        except BaseException:  # Ctrl-C
            if not self._withdraw(turn):
                self.leave()
            raise
        finally:
            remove_callback()
        if self._withdraw(turn):
            raise ToolCancelled("The call was cancelled while it waited for its turn.")

    def _withdraw(self, turn: threading.Event) -> bool:
        """Withdraw from the queue. Returns False if the slot was already assigned."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        return False

    def leave(self) -> None:
        """Release the slot to the call that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class ConcurrencyLimits:
    """The caps of an agent by pattern of tool names. A call takes a slot of each cap that matches
    its tool, always in the same order."""

    def __init__(self, concurrency: Mapping[str, int]) -> None:
        for pattern, calls in concurrency.items():
            if not is_whole(calls, 1):
                raise wrong("concurrency", f"a number of calls from 1 for {pattern!r}", calls)
        self._caps = [
            (pattern, ConcurrencyLimit(calls)) for pattern, calls in sorted(concurrency.items())
        ]

    @contextmanager
    def hold(self, name: str, cancelled: Cancellation) -> Generator[None]:
        """Hold all slots that a call needs within the block. Raises `ToolCancelled`."""
        with ExitStack() as slots:
            for pattern, cap in self._caps:
                if name_fits(name, pattern):
                    cap.enter(cancelled)
                    slots.callback(cap.leave)
            yield
