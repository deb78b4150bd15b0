"""The child conversations that a conversation's calls spawn: their ids, their owner and their
end."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.agent.handoffs import check_budget
from holdfast.conversation.fold import Fold
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import ConfigurationError, ConversationBusy, HoldfastError, ToolCancelled
from holdfast.events import AnyEvent
from holdfast.object_struct import ObjectStruct
from holdfast.store.namespaces import ReservingStore, id_beside

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.conversation.conversation import Conversation
    from holdfast.conversation.hosting import Hosting
    from holdfast.conversation.journal import Journal
    from holdfast.conversation.questions import OnQuestion
    from holdfast.tools.context import ChildRequest, ToolContext

_log = logging.getLogger("holdfast")

CLOSING = "The conversation is being closed; its calls cannot spawn children."
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ConversationOrigin(msgspec.Struct, frozen=True):
    """The origin of a conversation: `history` for a fork; `spawned_by`, the idempotency key of the
    call, and `family` for a child.

    `on_wait` is called with a line when a child of the conversation waits for the user.
    """

    history: tuple[list[AnyEvent], Fold] | None = None
    spawned_by: str = ""
    family: Children | None = None
    on_wait: Callable[[str], object] | None = None


class _Child(msgspec.Struct, frozen=True):
    conversation: Conversation
    detached: bool
    forget: Callable[[], None] | None = None  # removes the callback of the call's cancellation


class Children(ObjectStruct):
    """The children of one conversation that are open in this process. Thread-safe."""

    journal: Journal
    runtime: object | None
    _on_question: OnQuestion
    _new_conversation: Callable[..., Conversation]
    _on_wait: Callable[[str], object] | None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _open: dict[str, _Child] = {}
    # number of unnamed children by call id and attempt
    _counts: dict[tuple[str, int], int] = {}
    _stopped: bool = False

    # --- spawning ---

    def spawn(self, context: ToolContext, request: ChildRequest) -> Conversation:
        """Open a child conversation; see `ToolContext.spawn`."""
        context.cancelled.raise_if_set()
        id, name = request.id, request.name
        if name and not _NAME.fullmatch(name):
            raise ConfigurationError(
                "spawn: name takes a letter, then up to 63 letters, digits, '_' and '-', not"
                f" {name!r}."
            )
        if id is not None and (name or not isinstance(id, str) or not id.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"spawn: id takes a non-empty str, and no name beside it, not {id!r}."
            )
        with self._lock:
            if id is None:
                id = self._derived_id(context.call_id, context.attempt, name)
            else:
                id = id_beside(self.journal.id, id)
            entry = self._open.get(id)
            if entry is not None and entry.conversation.status is not ConversationStatus.CLOSED:
                child = entry.conversation
            else:
                child = self._open_child(context, id, request)
                if self._stopped:
                    raise ToolCancelled(CLOSING)
                self._open[id] = _Child(child, request.detached)
                if not request.detached:
                    interrupt = partial(self._interrupt_child, child)
                    forget = context.cancelled.add_callback(interrupt)
                    self._open[id] = _Child(child, request.detached, forget)
        if request.message is not None:
            child.hosting.send_first(checked_content(content_of(request.message)))
        return child

    def _report_wait(self, context: ToolContext, line: str) -> None:
        """Report that a child's own child waits for the user: as progress of the child's call, and
        to the conversations above."""
        context.report_progress(line)
        if self._on_wait is not None:
            self._on_wait(line)

    def _derived_id(self, call_id: str, attempt: int, name: str) -> str:
        """Return an id that the same call derives again whenever it is repeated."""
        begin = f"{self.journal.id}.{call_id}"
        if name:
            return f"{begin}-{name}"
        count = self._counts.get((call_id, attempt), 0) + 1
        self._counts[call_id, attempt] = count
        return begin if count == 1 else f"{begin}-{count}"

    def _open_child(self, context: ToolContext, id: str, request: ChildRequest) -> Conversation:
        agent, journal, secrets = request.agent, self.journal, request.secrets
        if (spending := journal.spending) is not None:
            counts = spending.counts_tokens, spending.counts_cost
            check_budget("spawn: the tree has a budget of", agent, *counts)
        runtime = request.runtime
        if runtime is None:
            runtime = runtime_of(agent) or self.runtime
        if id == journal.id:
            raise ConfigurationError(f"spawn: id {id!r} is the conversation that spawns.")
        on_question = None if self._on_question == "wait" else self._on_question
        if secrets and journal.secrets is None:
            raise ConfigurationError(
                f"spawn: secrets names {', '.join(secrets)}, but this conversation has no secrets."
            )
        on_wait = partial(self._report_wait, context)
        child = self._new_conversation(
            agent,
            journal.store,
            id,
            runtime=runtime,
            on_question=on_question,
            clock=journal.clock,
            new_id=journal.new_id,
            secrets=None if journal.secrets is None else journal.secrets.limited(secrets),
            _origin=ConversationOrigin(None, context.idempotency_key, self, on_wait),
        )
        has_events = bool(child.hosting.journal.fold.last_seq)
        summaries = journal.store.list([id]) if has_events else []
        if summaries and summaries[0].spawner == journal.id:
            return child
        is_reserved = isinstance(journal.store, ReservingStore) and journal.store.recorded(id)
        if has_events or is_reserved:
            spawned_by = summaries[0].spawned_by if summaries else ""
            origin = f"spawned by call {spawned_by!r}" if spawned_by else "not spawned by a call"
            raise ConfigurationError(
                f"spawn: conversation {id!r} exists, and was {origin}; {journal.id!r} needs another"
                " id for its child."
            )
        return child

    # --- the end of children ---

    def open(self) -> list[Conversation]:
        """Return the children that are open here, the detached ones too."""
        with self._lock:
            return [child.conversation for child in self._open.values()]

    def _attached(self) -> list[Conversation]:
        with self._lock:
            return [child.conversation for child in self._open.values() if not child.detached]

    def _interrupt_child(self, child: Conversation) -> None:
        with suppress(HoldfastError):  # the child is closed, or its store is gone
            try:
                child.interrupt()
            except ConversationBusy:  # a signal handler interrupted an append of the child
                name = f"holdfast-interrupt-{child.id}"
                work = partial(self._interrupt_child, child)
                threading.Thread(target=work, name=name, daemon=True).start()

    def interrupt(self) -> None:
        """Interrupt the children that are not detached."""
        for child in self._attached():
            self._interrupt_child(child)

    def stop(self) -> None:
        """Begin nothing further in the children that are not detached. `close` follows."""
        with self._lock:
            self._stopped = True
        for child in self._attached():
            child.hosting.stop()

    def close(self, deadline: float) -> None:
        """Close the children that are not detached, until `deadline` (monotonic seconds)."""
        self.stop()
        for child in self._attached():
            try:
                child.close(max(0.1, deadline - time.monotonic()))
            except Exception:
                _log.exception("closing %s, a child of conversation %s", child.id, self.journal.id)

    def closed(self, id: str, child: Hosting) -> None:
        with self._lock:
            entry = self._open.get(id)
            if entry is None or entry.conversation.hosting is not child:
                return
            del self._open[id]
        if entry.forget is not None:
            entry.forget()

    @property
    def busy(self) -> bool:
        """True if a child or one of its descendants is driven now."""
        return any(child.hosting.busy or child.hosting.children_busy for child in self.open())


def runtime_of(agent: Agent) -> object | None:
    """Return the runtime that the agent's tools share; None if they use none, or several."""
    runtime = None
    for tool in agent.tools.list_tools():
        if tool.runtime is not None and tool.runtime is not runtime:
            if runtime is not None:
                return None
            runtime = tool.runtime
    return runtime
