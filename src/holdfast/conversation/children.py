"""The child conversations that a conversation's calls spawn: their ids, their owner and their
end."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from holdfast.agent.handoffs import check_budget
from holdfast.conversation.runtimes import runtime_of
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConfigurationError, ConversationBusy, HoldfastError, ToolCancelled

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.content import ContentLike, Message
    from holdfast.conversation.conversation import Conversation
    from holdfast.conversation.journal import Journal
    from holdfast.conversation.questions import OnQuestion
    from holdfast.tools import ToolContext

_log = logging.getLogger("holdfast")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Spawned(NamedTuple):
    """The origin of a child: the idempotency key of the call that spawned it, and the family it
    joins."""

    key: str
    family: Children


class _Child(NamedTuple):
    conversation: Conversation
    detached: bool
    forget: Callable[[], None]  # removes the callback of the call's cancellation


class Children:
    """The children of one conversation that are open in this process.

    Created with the first child. Thread-safe.
    """

    __slots__ = (
        "_counts",
        "_lock",
        "_new_conversation",
        "_on_question",
        "_open",
        "_stopped",
        "journal",
        "runtime",
    )

    def __init__(
        self,
        journal: Journal,
        runtime: object | None,
        on_question: OnQuestion,
        new_conversation: Callable[..., Conversation],
    ) -> None:
        self.journal = journal
        self.runtime = runtime
        self._on_question = on_question
        self._new_conversation = new_conversation
        self._lock = threading.Lock()
        self._open: dict[str, _Child] = {}
        # number of unnamed children by call id and attempt
        self._counts: dict[tuple[str, int], int] = {}
        self._stopped = False

    # --- spawning ---

    def spawn(
        self,
        context: ToolContext,
        agent: Agent,
        message: str | Message | ContentLike | None,
        name: str,
        id: str | None,
        detached: bool,
        runtime: object | None,
    ) -> Conversation:
        """Open a child conversation; see `ToolContext.spawn`."""
        context.cancelled.raise_if_set()
        key = context.idempotency_key
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
                id = self._in_namespace(id)
            known = self._open.get(id)
            if known is not None and known.conversation.status is not ConversationStatus.CLOSED:
                child = known.conversation
            else:
                spending = self.journal.spending
                if spending is not None:
                    check_budget(
                        "spawn: the tree has a budget of",
                        agent,
                        spending.counts_tokens,
                        spending.counts_cost,
                    )
                if runtime is None:
                    runtime = runtime_of(agent) or self.runtime
                child = self._open_child(key, id, agent, runtime)
                if self._stopped:
                    raise ToolCancelled(
                        "The conversation is being closed; its calls spawn no more."
                    )
                forget = (
                    _nothing
                    if detached
                    else context.cancelled.add_callback(lambda: self._interrupt_child(child))
                )
                self._open[id] = _Child(child, detached, forget)
        if message is not None:
            child._send_first(message)  # pyright: ignore[reportPrivateUsage]: the two are one thing
        return child

    def _derived_id(self, call_id: str, attempt: int, name: str) -> str:
        """Return an id that the same call derives again whenever it is repeated."""
        begin = f"{self.journal.id}.{call_id}"
        if name:
            return f"{begin}-{name}"
        count = self._counts.get((call_id, attempt), 0) + 1
        self._counts[call_id, attempt] = count
        return begin if count == 1 else f"{begin}-{count}"

    def _in_namespace(self, id: str) -> str:
        """Return a given id in the namespace of the parent: an agent server's ids are
        `{tenant}/{id}`."""
        tenant, slash, _ = self.journal.id.rpartition("/")
        own = id.removeprefix(f"{tenant}{slash}")
        if "/" in own:
            raise ConfigurationError(
                f"spawn: id takes no '/', which would leave the namespace of {self.journal.id!r},"
                f" not {id!r}."
            )
        return f"{tenant}{slash}{own}"

    def _open_child(self, key: str, id: str, agent: Agent, runtime: object | None) -> Conversation:
        if id == self.journal.id:
            raise ConfigurationError(f"spawn: id {id!r} is the conversation that spawns.")
        on_question = self._on_question if callable(self._on_question) else None
        journal = self.journal
        child = self._new_conversation(
            agent,
            journal.store,
            id,
            runtime=runtime,
            on_question=on_question,
            clock=journal.clock,
            new_id=journal.new_id,
            _spawned=Spawned(key, self),
        )
        # only an agent server's store has it
        recorded: Callable[[str], bool] | None = getattr(journal.store, "recorded", None)
        if not child._journal.fold.last_seq and recorded is not None and recorded(id):  # pyright: ignore[reportPrivateUsage]
            raise ConfigurationError(
                f"spawn: conversation {id!r} exists, and was not spawned by a call; {journal.id!r}"
                " needs another id for its child."
            )
        if child._journal.fold.last_seq:  # pyright: ignore[reportPrivateUsage]
            found = journal.store.list([id])
            if not found or found[0].spawner != journal.id:
                whose = (
                    f"was spawned by call {found[0].spawned_by!r}"
                    if found and found[0].spawned_by
                    else "was not spawned by a call"
                )
                raise ConfigurationError(
                    f"spawn: conversation {id!r} exists, and {whose}; {journal.id!r} needs another"
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
        """Interrupt a child whose spawning call was cancelled."""
        try:
            child.interrupt()
        except ConversationBusy:  # a signal handler interrupted an append of the child
            threading.Thread(
                target=lambda: _quietly(child.interrupt),
                name=f"holdfast-interrupt-{child.id}",
                daemon=True,
            ).start()
        except HoldfastError:  # the child is closed, or its store is gone
            pass

    def interrupt(self) -> None:
        """Interrupt the children that are not detached."""
        for child in self._attached():
            self._interrupt_child(child)

    def stop(self) -> None:
        """Let the children that are not detached begin nothing further, and spawn no more.
        `close` follows."""
        with self._lock:
            self._stopped = True
        for child in self._attached():
            child._stop()  # pyright: ignore[reportPrivateUsage]

    def close(self, deadline: float) -> None:
        """Close the children that are not detached, until `deadline` (monotonic seconds)."""
        self.stop()
        for child in self._attached():
            try:
                child.close(max(0.1, deadline - time.monotonic()))
            except Exception:
                _log.exception("closing %s, a child of conversation %s", child.id, self.journal.id)

    def closed(self, child: Conversation) -> None:
        """Forget a child that is closed."""
        with self._lock:
            found = self._open.get(child.id)
            if found is None or found.conversation is not child:
                return
            del self._open[child.id]
        found.forget()

    @property
    def busy(self) -> bool:
        """True if a child or one of its descendants is driven now."""
        return any(child.busy or child.children_busy for child in self.open())


def _nothing() -> None:
    pass


def _quietly(work: Callable[[], object]) -> None:
    with suppress(HoldfastError):
        work()
