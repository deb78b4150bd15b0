"""The listeners to the deltas of a conversation's streamed answers."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.conversation.journal import Journal
from holdfast.llm.completion import Delta, DeltaListener
from holdfast.object_struct import ObjectStruct

Listener = Callable[[Delta], object]


class Deltas(ObjectStruct):
    """The listeners to the deltas of one conversation's model calls. Thread-safe."""

    _journal: Journal
    _listeners: tuple[Listener, ...] = ()
    _forward: DeltaListener | None = None

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
