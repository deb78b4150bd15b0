"""The listeners to the deltas of a conversation's streamed answers."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.conversation.callbacks import guarded
from holdfast.conversation.journal import Journal
from holdfast.llm.completion import Delta, DeltaListener

Listener = Callable[[Delta], object]


class Deltas:
    """The listeners to the deltas of one conversation's model calls. Thread-safe."""

    __slots__ = ("_forward", "_journal", "_listeners")

    def __init__(self, journal: Journal, listener: Listener | None) -> None:
        self._journal = journal
        self._listeners: tuple[Listener, ...] = ()
        self._forward: DeltaListener | None = None
        if listener is not None:
            self.listen(guarded(listener))

    def listen(self, listener: Listener) -> None:
        with self._journal.changed:
            self._listeners += (listener,)
            self._forward = self._forward or DeltaListener(self._pass)

    def forget(self, listener: Listener) -> None:
        """Pass no more deltas to `listener`. Idempotent."""
        with self._journal.changed:
            self._listeners = tuple(one for one in self._listeners if one != listener)
            if not self._listeners:
                self._forward = None

    def restarted(self) -> DeltaListener | None:
        """Return the receiver of the next call's deltas; None without listeners. The deltas of a
        call that an interrupt or an error has cut off are taken back."""
        if self._forward is not None:
            self._forward.restart()
        return self._forward

    def accept(self) -> None:
        if self._forward is not None:
            self._forward.whole()

    def _pass(self, delta: Delta) -> None:
        for listener in self._listeners:
            listener(delta)
