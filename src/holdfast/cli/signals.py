"""Handling of Ctrl-C and termination: signals are recorded, and the waiting code acts on them."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast.cli.exit_codes import Exit

_NUDGE_SECONDS = 0.05  # after which an unhandled signal is sent again
_POLL_SECONDS = 0.1  # between two checks if a prompt is still needed
_WAKE = signal.SIGURG  # wakes a prompt; ignored if nothing handles it
ENDING = {signal.SIGTERM: Exit.TERMINATED, signal.SIGHUP: Exit.HUNG_UP}


class EndRequested(SystemExit):
    """A request to end the process with the exit `code`, received while it waited for a line."""


class PromptWithdrawn(Exception):
    """The matter of a prompt was settled elsewhere before the user answered."""


class Signals:
    """A recorder of SIGINT, SIGTERM and SIGHUP, which inside the context no longer raise.

    An exception at an arbitrary point could break off an append half-way. A recorded signal is
    handled where that is safe. Only inside `prompting` do signals raise (`KeyboardInterrupt`,
    `EndRequested`), because nothing else ends a wait for a line."""

    def __init__(self) -> None:
        self.ending: Exit | None = None
        self._interrupts = 0
        self._prompting = False
        self._before: dict[int, Any] = {}
        # The interpreter writes the number of each signal to this pipe; our handler reads it.
        self._pipe = (-1, -1)
        self._nudger: threading.Thread | None = None
        self._done = False
        self._overtaken = False

    def __enter__(self) -> Signals:
        # Other threads may not set handlers.
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            for number in (signal.SIGINT, *ENDING):
                self._before[number] = signal.signal(number, self._handle)
            self._before[_WAKE] = signal.signal(_WAKE, self._wake)
            name = "holdfast-signals"
            self._nudger = threading.Thread(target=self._nudge, name=name, daemon=True)
            self._nudger.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._nudger is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._done = True
        os.write(self._pipe[1], b"\0")
        self._nudger.join()
        self._nudger = None
        for end in self._pipe:
            os.close(end)

    def _nudge(self) -> None:
        """Wake a prompt that slept through a signal.

        A signal that arrives after `input` has shown its prompt and before it waits for a key is
        recorded by the interpreter. Python handles it only when the line is complete, because
        CPython's readline looks for signals only when its select is interrupted.
        """
        main = threading.main_thread().ident
        while not self._done:
            select.select([self._pipe[0]], [], [])
            time.sleep(_NUDGE_SECONDS)
            if self._prompting and not self._done and main is not None:
                for number in self._unserved():
                    signal.pthread_kill(main, number)

    def _unserved(self) -> bytes:
        """Return the numbers of the signals that no handler has seen, and mark them as seen."""
        try:
            return os.read(self._pipe[0], 64)
        except BlockingIOError:
            return b""

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._unserved()
        if number == signal.SIGINT:
            self._interrupts += 1
        else:
            self.ending = ENDING[signal.Signals(number)]
        if self._prompting:
            self._raise()

    def _wake(self, *_: object) -> None:
        self._unserved()
        if self._prompting and self._overtaken:
            self._overtaken = False  # raise only once
            raise PromptWithdrawn

    def _raise(self) -> None:
        if self.ending is not None:
            raise EndRequested(self.ending)
        if self.take_interrupt():
            raise KeyboardInterrupt

    @property
    def pending(self) -> bool:
        """True if a signal waits for handling."""
        return self.ending is not None or self._interrupts > 0

    def take_interrupt(self) -> bool:
        """Return True if Ctrl-C was pressed since the last call."""
        was_pressed, self._interrupts = self._interrupts > 0, 0
        return was_pressed

    @contextmanager
    def prompting(self, until: Callable[[], bool] | None = None) -> Generator[None]:
        """Let signals raise inside the context; those recorded before raise at once. Raise
        `PromptWithdrawn` when `until`, called on another thread, returns True."""
        stop = threading.Event()
        watch = None
        if until is not None and self._nudger is not None:
            watch = threading.Thread(target=self._watch, args=(until, stop), daemon=True)
        self._prompting = True
        try:
            self._raise()
            if watch is not None:
                watch.start()
            yield
        finally:
            self._prompting = False
            stop.set()
            if watch is not None and watch.ident is not None:
                watch.join()
            self._overtaken = False

    def _watch(self, until: Callable[[], bool], stop: threading.Event) -> None:
        """Wake the prompt when `until` returns True. Repeat it, since the prompt may sleep
        through the first signal (see `_nudge`)."""
        main = threading.main_thread().ident
        while not stop.wait(_POLL_SECONDS):
            if until():
                break
        self._overtaken = not stop.is_set()
        while self._overtaken and main is not None:
            signal.pthread_kill(main, _WAKE)
            if stop.wait(_POLL_SECONDS):
                break
