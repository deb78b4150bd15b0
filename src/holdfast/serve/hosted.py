"""The conversations of an agent server, as a door sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm
from holdfast.conversation import ConversationState
from holdfast.conversation.fold import Fold
from holdfast.errors import Conflict, ConversationNotFound
from holdfast.llm.completion import Delta
from holdfast.serve.door import (
    RUNNING,
    CallProgress,
    PendingItem,
    Rest,
    Silence,
    TurnItem,
    pending_items,
    rest_of,
    rests,
)
from holdfast.server.host import Host
from holdfast.server.openai import Published
from holdfast.server.published import created, request_for
from holdfast.server.shapes import FeedBatch, ForkRequest, Page

PING_SECONDS = 10.0  # silence after which a reader is told that the turn goes on

_DELTAS = msgspec.json.Decoder(Delta)
_PROGRESS = msgspec.json.Decoder(CallProgress)


class HostedSession:
    """A tenant's conversation on a host. See `DoorSession`.

    `change(function, *arguments)` calls a blocking function on a thread, for `stream`.
    """

    def __init__(
        self,
        host: Host,
        tenant: str,
        id: str,
        change: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._host = host
        self._tenant = tenant
        self._id = id
        self._change = change

    @property
    def id(self) -> str:
        return self._id

    def state(self) -> ConversationState:
        return self._host.state(self._tenant, self._id)

    def pending(self) -> tuple[PendingItem, ...]:
        return pending_items(self.fold())

    def fold(self) -> Fold:
        """Return the fold of the present journal. The facts before the last condensation may be
        missing."""
        return self._host.chats.fold(self._tenant, self._id)

    def execute(self, *commands: cmd.Command) -> None:
        for command in commands:
            self._host.execute(self._tenant, self._id, command)

    def hold(self, rest: Rest) -> None:
        """Pause the conversation at a rest at which its client runs calls: no time limit of the
        server ends them, also after a restart."""
        if rest.reason == "call" and rest.status is RUNNING:
            self.execute(cmd.Pause())

    def begin(self, commands: Sequence[cmd.Command]) -> tuple[Fold, bool]:
        """Carry out commands and begin the run, which nobody needs to follow. Return the fold of
        what is in the journal then, and True if a run was under way before."""
        runs = self._host.status(self._tenant, self._id) == RUNNING.value
        self.execute(*commands)
        if commands or runs:
            self._host.run(self._tenant, self._id)
        return self.fold(), runs

    def turn(self, after_seq: int, *commands: cmd.Command) -> Generator[TurnItem]:
        loop = asyncio.new_event_loop()
        items = self.stream(after_seq, *commands)
        try:
            while (item := loop.run_until_complete(anext(items, None))) is not None:
                yield item
        finally:
            loop.run_until_complete(items.aclose())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    async def stream(self, after_seq: int, *commands: cmd.Command) -> AsyncGenerator[TurnItem]:
        feed = await self._change(self._host.feed, self._tenant, self._id)
        with feed.subscribe(asyncio.get_running_loop()) as reader:
            begun: tuple[Fold, bool] = await self._change(self.begin, commands)
            folded, runs = begun
            # Deltas of an answer that was under way have lost their beginning.
            whole, seq, ended = not runs, after_seq, False
            # Until the cursor reaches the fold, what it says has not been sent yet.
            while not ended and (seq < folded.last_seq or not rests(folded)):
                missed = reader.missed
                batch = await reader.next(seq, PING_SECONDS)
                ended, quiet = batch.ended, True
                for item in _items(batch):
                    if isinstance(item, ev.Event):
                        seq = item.seq
                        if seq > folded.last_seq:
                            folded.apply(item)
                        if isinstance(item, ev.AssistantReplied):
                            whole, missed = True, reader.missed
                    elif missed != reader.missed:
                        whole = False
                    if whole or not isinstance(item, Delta):
                        quiet = False
                        yield item
                    if seq >= folded.last_seq and rests(folded):
                        break
                if quiet and not ended:
                    yield Silence()
            yield rest_of(folded, seq, ended and not rests(folded))


def _items(batch: FeedBatch) -> Generator[ev.AnyEvent | Delta | CallProgress]:
    """Yield a batch's events with its notes between them."""
    newest = batch.frames[-1].seq if batch.frames else 0
    notes = deque(batch.notes)

    def until(seq: float) -> Generator[Delta | CallProgress]:
        while notes and (newest if (after := notes[0].after) is None else after) < seq:
            note = notes.popleft()
            yield (_DELTAS if note.kind == "delta" else _PROGRESS).decode(note.data)

    for frame in batch.frames:
        yield from until(frame.seq)
        yield ev.decode(frame.data)
    yield from until(inf)


class HostedDoor:
    """A tenant's conversations with the published agents of a server. All methods block and raise
    the errors of `Host`."""

    def __init__(
        self,
        host: Host,
        tenant: str,
        change: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._host = host
        self._tenant = tenant
        self._change = change

    def begin(
        self,
        agent: Published,
        id: str = "",
        *,
        tools: Sequence[ToolForm] = (),
        instructions: str = "",
        tags: Sequence[str] = (),
    ) -> HostedSession:
        """Return the conversation of this id, a new one if there is none.

        Args:
            tools: Tools that the client runs, for the turns from now on.
            instructions: The client's addition to the system prompt, for the same turns.
            tags: Tags of a new conversation, by which `list` finds it.
        """
        host, tenant, rows = self._host, self._tenant, self._host.chats.rows
        request = request_for(agent, tools, instructions)
        encoded = msgspec.json.encode([instructions, tools], order="deterministic")
        setting = sha256(encoded).digest()
        if not (id and self._exists(id)):
            with suppress(Conflict):  # another request was first
                made = created(host, tenant, agent, replace(request, id=id, tags=tuple(tags)))
                rows.add(tenant, made, setting)
                return HostedSession(host, tenant, made, self._change)
        if rows.setting(tenant, id) != setting:
            with host.chats.turn(tenant, id):
                host.chats.refit(tenant, id, request, setting)
        return HostedSession(host, tenant, id, self._change)

    def fork(self, id: str, seq: int) -> HostedSession:
        """Return a fork of a conversation after event `seq`. Its open calls are settled."""
        host, tenant = self._host, self._tenant
        request = ForkRequest(seq=seq, title="")  # the events that follow keep their seqs
        forked = host.chats.with_room(tenant, lambda: host.fork(tenant, id, request))
        host.chats.rows.add(tenant, forked.id, host.chats.rows.setting(tenant, id))
        return HostedSession(host, tenant, forked.id, self._change)

    def _exists(self, id: str) -> bool:
        try:
            self._host.family.place(self._tenant, id)
        except ConversationNotFound:
            return False
        return True

    def find(self, id: str) -> HostedSession:
        """Return the conversation of this id. Raises `ConversationNotFound`."""
        self._host.family.place(self._tenant, id)
        return HostedSession(self._host, self._tenant, id, self._change)

    def list(self, tags: Sequence[str] = (), cursor: str | None = None, limit: int = 100) -> Page:
        """Return a page of the conversations with these tags, the newest first."""
        return self._host.list(self._tenant, None, cursor, limit, tags)

    def delete(self, id: str) -> None:
        self._host.delete(self._tenant, id)
