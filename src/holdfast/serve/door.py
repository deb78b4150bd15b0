"""The base of the protocol doors: a door's view of conversations of this process.

A door translates a protocol's requests into commands (`holdfast.commands`), and the items of a turn
into the protocol's messages. Its only state is a cursor, the seq of the last event that its client
has received. Everything else is in the journal.

`LocalDoor` opens conversations in this process. `HostedDoor` (`holdfast.server.hosted`) has those
of an agent server. A turn of either yields the same items.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, cast

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.conversation import Conversation, ConversationState, ConversationStatus
from holdfast.conversation.below import asked_below, find_below
from holdfast.conversation.hosting import Hosting
from holdfast.conversation.rests import (
    RUNNING,
    ChildCommand,
    ChildItem,
    ClientCallRequest,
    PendingItem,
    Rest,
    TurnCommand,
    answered,
    pending_items,
    rest_of,
    waits,
)
from holdfast.conversation.stream import EventStream
from holdfast.conversation.turns import CallProgress, TurnItem
from holdfast.errors import ConversationBusy, ConversationNotFound
from holdfast.llm.completion import Delta
from holdfast.store import Store, Summary
from holdfast.tools.running import start_thread


def conversation_id(door: str, *parts: str) -> str:
    """Return the id of the conversation that a protocol's ids name: the same for the same ids,
    in every process. Use it where the client chooses the id."""
    digest = sha256(msgspec.json.encode(parts)).hexdigest()
    return f"{door}-{digest[:32]}"


def item_name(item: PendingItem) -> str:
    """Return the name of what waits, of letters, digits and `_`, for the ids of protocols."""
    if isinstance(item, ClientCallRequest):
        return item.call.id.replace(".", "_")
    if item.conversation:  # ids of conversations may have any characters
        return sha256(item.key.encode()).hexdigest()[:32]
    return item.key.replace(".", "_")


class _Transients:
    """The deltas and the progress of one conversation, for its streams."""

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Delta], None], ...] = ()

    def listen(self, listener: Callable[[Delta], None]) -> None:
        self.listeners += (listener,)

    def forget(self, listener: Callable[[Delta], None]) -> None:
        self.listeners = tuple(one for one in self.listeners if one is not listener)

    def delta(self, item: Any) -> None:
        for listener in self.listeners:
            listener(item)

    def progress(self, call_id: str, message: str) -> None:
        self.delta(CallProgress(call_id, message))


class LocalSession:
    """A conversation of this process. The methods block, but for `stream`; all are thread-safe."""

    def __init__(self, conversation: Conversation, transients: _Transients) -> None:
        self.conversation = conversation
        self._transients = transients

    @property
    def id(self) -> str:
        return self.conversation.id

    @property
    def _hosting(self) -> Hosting:
        return self.conversation.hosting

    def state(self) -> ConversationState:
        """Return a snapshot."""
        return self.conversation.state

    def pending(self) -> tuple[PendingItem, ...]:
        """Return all pending items of the conversation and of its descendants."""
        journal, awaits = self._hosting.journal, self._hosting.questions.awaits
        with journal.lock:
            items = pending_items(journal.fold, awaits)
        return (*items, *asked_below(self._hosting))

    def rest(self) -> Rest:
        """Return where the conversation is now; the reason is `ended` while it has work."""
        below = asked_below(self._hosting)
        journal, awaits = self._hosting.journal, self._hosting.questions.awaits
        with journal.lock:
            fold = journal.fold
            return rest_of(fold, fold.last_seq, fold.has_new_message, below, awaits)

    def asks(self) -> bool:
        """Return True if the conversation waits for its user, or did when its process died: the
        next turn asks such a question anew."""
        journal = self._hosting.journal
        with journal.lock:
            return waits(journal.fold) or bool(pending_items(journal.fold))

    def execute(self, *commands: TurnCommand) -> None:
        """Carry out commands; nothing is run. `cmd.Interrupt()` cancels the run."""
        for command in commands:
            if isinstance(command, ChildCommand):
                self._tell(command.conversation, command.command)
            else:
                self.conversation.execute(command)

    def _tell(self, id: str, command: cmd.Command) -> None:
        """Execute a command in a conversation that calls have spawned. If it is not open here, it
        gets the command when its call continues."""
        child = find_below(self._hosting, id)
        if child is None:
            self.conversation.store.post(id, command)
        else:
            child.execute(command)

    def turn(self, after_seq: int, *commands: TurnCommand) -> Generator[TurnItem]:
        """Carry out `commands`, run, and yield the events after `after_seq`, with the deltas
        between them, until the conversation rests. The last item is a `Rest`.

        With commands the run continues also after a pause or an error. Without commands it only
        continues unfinished work, for example after a restart. The run continues if a turn is left
        early. Raises the errors of the commands before the first item.
        """
        return self._turn(after_seq, commands, threading.Event())

    def _turn(
        self, after_seq: int, commands: Sequence[TurnCommand], stop: threading.Event
    ) -> Generator[TurnItem]:
        hosting = self._hosting
        journal, awaits, seq = hosting.journal, hosting.questions.awaits, after_seq
        own = [command for command in commands if not isinstance(command, ChildCommand)]
        decided, below = answered(commands), list[ChildItem]()
        hosting.open()
        hosting.check_not_inside("turn")
        # Deltas of an answer that another thread receives now have lost their beginning.
        whole = not hosting.busy
        items = EventStream(
            journal,
            self._transients,
            after_seq,
            lambda: self.execute(*commands),
            self._run if own else hosting.advance,
            hosting.at_rest,
            hosting.interrupt,
            lambda: (
                bool(below)
                or stop.is_set()
                or (journal.fold.status is RUNNING and waits(journal.fold, awaits))
            ),
        )
        below += asked_below(hosting, decided)  # since an earlier turn
        for item in items:
            if isinstance(item, ev.Event):
                seq = item.seq
                whole = whole or isinstance(item, ev.AssistantReplied)
            if whole or not isinstance(item, Delta):
                yield cast("TurnItem", item)
            if isinstance(item, CallProgress):  # so calls say what their conversations wait for
                below[:] = asked_below(hosting, decided)
        with journal.lock:
            ended = journal.closed or stop.is_set()
        if not ended:
            below[:] = asked_below(hosting, decided)
        with journal.lock:
            yield rest_of(journal.fold, seq, ended, below, awaits)

    def _run(self) -> None:
        hosting = self._hosting
        paused = hosting.status is ConversationStatus.PAUSED
        try:
            hosting.run()
        except ConversationBusy:
            if not paused:
                raise  # the stream follows the other thread
            hosting.wait(None)  # a run that was interrupted ends, and takes up nothing
            hosting.run()

    async def stream(self, after_seq: int, *commands: TurnCommand) -> AsyncGenerator[TurnItem]:
        """Yield the same as `turn`, on an event loop."""
        loop, stop = asyncio.get_running_loop(), threading.Event()
        queue: asyncio.Queue[TurnItem | BaseException] = asyncio.Queue()

        def put(item: TurnItem | BaseException) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            try:
                for item in self._turn(after_seq, commands, stop):
                    put(item)
            except BaseException as error:
                put(error)

        start_thread(work, f"holdfast-door-{self.id}")
        try:
            while True:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, Rest):
                    return
        finally:
            stop.set()
            with self._hosting.journal.lock:
                self._hosting.journal.lock.notify_all()


class LocalDoor:
    """The conversations of one store, opened in this process. Thread-safe. `close` closes the open
    ones; the store stays open.

    Args:
        agent: Answers in conversations that are begun without another one.
        options: Of every conversation; see the parameters of `Conversation`.
    """

    def __init__(self, agent: Agent, store: Store, **options: Any) -> None:
        self.agent = agent
        self.store = store
        self._options: Mapping[str, Any] = {"on_question": "wait_all", **options}
        self._open: dict[str, LocalSession] = {}
        self._lock = threading.Lock()

    def begin(
        self,
        id: str | None = None,
        *,
        agent: Agent | None = None,
        tags: Sequence[str] = (),
        **options: Any,
    ) -> LocalSession:
        """Return the conversation of this id, or a new one. A conversation that is open here stays
        unchanged. A new one gets the `tags`, by which `list` finds it."""
        with self._lock:
            if id is not None and id in self._open:
                return self._open[id]
            transients = _Transients()
            settings = {**self._options, **options}
            conversation = Conversation(
                agent or self.agent,
                self.store,
                id,
                on_delta=transients.delta,
                on_progress=transients.progress,
                **settings,
            )
            if tags and not conversation.state.last_seq:
                conversation.tag(*tags)
            session = self._open[conversation.id] = LocalSession(conversation, transients)
            return session

    def find(self, id: str, **options: Any) -> LocalSession:
        """Return the conversation of this id. Raises `ConversationNotFound`."""
        if id not in self._open and not self.store.list([id]):
            raise ConversationNotFound(
                f"There is no conversation {id[:200]!r}.", "conversation", id
            )
        return self.begin(id, **options)

    def list(self, tags: Sequence[str] = ()) -> list[Summary]:
        """Return the conversations with these tags, the last written first."""
        return [one for one in self.store.list(tags=tags) if not one.spawned_by]

    def leave(self, id: str) -> None:
        """Close a conversation here; the store keeps it. Idempotent."""
        with self._lock:
            session = self._open.pop(id, None)
        if session is not None:
            session.conversation.close()

    def close(self) -> None:
        """Close all conversations here. A run that this cuts off continues when the conversation
        is begun again and a turn asks for it."""
        for id in list(self._open):
            self.leave(id)
