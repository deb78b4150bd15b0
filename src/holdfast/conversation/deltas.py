"""The listeners to the deltas of a conversation's streamed answers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.conversation.journal import Journal
from holdfast.llm.completion import Delta, DeltaListener
from holdfast.object_struct import ObjectStruct
from holdfast.tools.secrets import Secrets, StreamMask

Listener = Callable[[Delta], object]


class Deltas(ObjectStruct):
    """The listeners to the deltas of one conversation's model calls. Thread-safe."""

    _journal: Journal
    _listeners: tuple[Listener, ...] = ()
    _forward: DeltaListener | None = None
    _masked: _MaskedDeltas | None = None  # of the present answer, if there are secrets

    def listen(self, listener: Listener) -> None:
        with self._journal.lock:
            self._listeners += (listener,)
            self._forward = self._forward or DeltaListener(self._pass)

    def forget(self, listener: Listener) -> None:
        """Stop passing deltas to `listener`. Idempotent."""
        with self._journal.lock:
            self._listeners = tuple(one for one in self._listeners if one != listener)
            if not self._listeners:
                self._forward = None

    def restarted(self) -> DeltaListener | None:
        """Return the receiver of the next call's deltas; None without listeners. The deltas of a
        call that an interrupt or an error has cut off are taken back."""
        if self._forward is not None:
            self._forward.restart()
        secrets = self._journal.secrets
        self._masked = None if secrets is None else _MaskedDeltas(secrets, self._tell)
        return self._forward

    def accept(self) -> None:
        if self._masked is not None:
            self._masked.flush()
        if self._forward is not None:
            self._forward.whole()

    def _pass(self, delta: Delta) -> None:
        (self._masked or self._tell)(delta)

    def _tell(self, delta: Delta) -> None:
        for listener in self._listeners:
            listener(delta)


class _MaskedDeltas:
    """A receiver of deltas that passes them on with the secrets masked. A piece that may be the
    beginning of a value waits for the next one."""

    __slots__ = ("_masks", "_secrets", "_tell")

    def __init__(self, secrets: Secrets, tell: Listener) -> None:
        self._secrets = secrets
        self._tell = tell
        # by kind and call: pieces of several calls may take turns
        self._masks: dict[tuple[str, int], tuple[StreamMask, Delta]] = {}

    def __call__(self, delta: Delta) -> None:
        if delta.kind == "restart":
            self._masks.clear()
            self._tell(delta)
            return
        if delta.kind == "retry":
            self._tell(replace(delta, reason=self._secrets.mask(delta.reason)))
            return
        key = (delta.kind, delta.index)
        mask = self._masks[key][0] if key in self._masks else StreamMask(self._secrets)
        self._masks[key] = mask, delta
        text = mask.feed_text(delta.text)
        if text or delta.name:
            self._tell(replace(delta, text=text))

    def flush(self) -> None:
        """Pass on the pieces that wait."""
        masks, self._masks = self._masks, {}
        for mask, delta in masks.values():
            if text := mask.flush().decode(errors="replace"):
                self._tell(replace(delta, text=text, name=""))
