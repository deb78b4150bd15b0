"""The conversations of an agent server, as a door sees them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm
from holdfast.conversation.fold import Fold
from holdfast.conversation.fold import fold as fold_of
from holdfast.conversation.rests import (
    RUNNING,
    ChildCommand,
    ChildItem,
    Rest,
    TurnCommand,
    answered,
    child_items,
    may_ask_below,
    rest_of,
    rests,
)
from holdfast.conversation.turns import CallProgress, Silence, TurnItem
from holdfast.errors import Conflict, ConversationNotFound, Denied
from holdfast.llm.completion import Delta
from holdfast.object_struct import ObjectStruct
from holdfast.server.feed import FeedReader
from holdfast.server.forms import builtin_names, with_tools
from holdfast.server.host import Host
from holdfast.server.openai import Published, setting_of
from holdfast.server.records import store_id
from holdfast.server.shapes import CreatedConversation, CreateRequest, FeedBatch, ForkRequest, Page

_PAGE = 1000  # the most events that are read at once
_SETTLE_SECONDS = 5.0  # for a call to ask again
PING_SECONDS = 10.0  # silence after which a reader gets a sign that the turn continues

T = TypeVar("T")
OnThread = Callable[..., Awaitable[Any]]  # calls a blocking function with arguments on a thread

_DELTAS = msgspec.json.Decoder(Delta)
_PROGRESS = msgspec.json.Decoder(CallProgress)


class HostedSession:
    """A tenant's conversation on a host. The methods block, but for coroutines and `stream`.

    `change(function, *arguments)` calls a blocking function on a thread, for `stream`. Raises
    `ConversationNotFound` if there is no such conversation; `place` is the store id of one that
    the caller has found.
    """

    def __init__(
        self,
        host: Host,
        tenant: str,
        id: str,
        change: OnThread = asyncio.to_thread,
        place: str = "",
    ) -> None:
        self._host = host
        self._tenant = tenant
        self.id = id
        self._change = change
        self._feed = host.feed(tenant, id, place)

    def asked_below(self, folded: Fold, decided: frozenset[str] = frozenset()) -> list[ChildItem]:
        """Return the items for the user of the conversations that its calls spawned, without those
        `decided` just now. `folded` is the session's own fold."""
        if not may_ask_below(folded):
            return []
        awaits = self._host.chats.awaits_below
        items: list[ChildItem] = []
        for id, child in self._below(self.id):
            awaited = partial(awaits, self._tenant, self.id, id)
            items += child_items(id, child, awaited)
        return [item for item in items if item.mark not in decided]

    def _below(self, id: str) -> Generator[tuple[str, Fold]]:
        """Yield the ids and folds of the conversations below that may ask something."""
        family = self._host.family
        for child in family.children(self._tenant, id):
            if child.status in (RUNNING.value, "waiting_for_confirmation"):
                yield child.id, fold_of(family.tail(self._tenant, child.id))
                yield from self._below(child.id)

    def _asks_again(self, folded: Fold) -> bool:
        """Return True if calls wait for answers to questions that a server asked which has died:
        they ask again."""
        if rests(folded) or folded.status is not RUNNING:
            return False
        if any(item.questioned and not item.questions for item in folded.open.values()):
            return True
        if not may_ask_below(folded) or self.asked_below(folded):
            return False
        return any(
            item.questions for _, child in self._below(self.id) for item in child.open.values()
        )

    def rest(self, folded: Fold) -> Rest:
        """Return the rest of a fold."""
        return rest_of(folded, folded.last_seq, False, self.asked_below(folded))

    def fold(self) -> Fold:
        """Return the fold of the present journal. The facts before the last condensation may be
        missing."""
        return self._host.chats.fold(self._tenant, self.id)

    def settled(self) -> Fold:
        """Return the fold. Calls whose questions were asked by a server that has died get a moment
        to ask again."""
        folded = self.fold()
        if self._asks_again(folded):
            self._host.run(self._tenant, self.id)
            asyncio.run(self._settle(folded))
        return folded

    async def _settle(self, folded: Fold) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE_SECONDS
        with self._feed.subscribe(loop) as reader:
            while not rests(folded) and (seconds_left := until - loop.time()) > 0:
                if may_ask_below(folded) and self.asked_below(folded):
                    return
                batch = await reader.next(folded.last_seq, seconds_left)
                for frame in batch.frames:
                    folded.apply(frame.event)
                if batch.ended:
                    return

    def events(self, after_seq: int = 0, until: int | None = None) -> list[ev.AnyEvent]:
        """Return the events after `after_seq`, up to the event `until` if it is given."""
        events: list[ev.AnyEvent] = []
        while until is None or after_seq < until:
            most = _PAGE if until is None else min(_PAGE, until - after_seq)
            page = self._host.read(self._tenant, self.id, after_seq, most)
            if not page:
                break
            events += page
            after_seq = page[-1].seq
        return events

    def execute(self, *commands: TurnCommand) -> None:
        for command in commands:
            if isinstance(command, ChildCommand):
                self._host.execute(self._tenant, command.conversation, command.command)
            else:
                self._host.execute(self._tenant, self.id, command)

    def hold(self, rest: Rest) -> None:
        """Pause the conversation at a rest at which its client runs calls: no time limit of the
        server ends them, also after a restart."""
        if rest.reason == "call" and rest.status is RUNNING:
            self.execute(cmd.Pause())

    def begin(self, commands: Sequence[TurnCommand], awaited: bool = False) -> tuple[Fold, bool]:
        """Carry out commands and begin the run, which needs no reader. Return the fold of the
        journal after that, and True if a run was under way before.

        `awaited` is True if the client waits for the end of the turn.
        """
        host, tenant, messages = self._host, self._tenant, list[cmd.Send | cmd.Label]()
        if host.runs.takes_messages:
            last = takewhile(lambda one: isinstance(one, cmd.Send | cmd.Label), reversed(commands))
            messages = cast("list[cmd.Send | cmd.Label]", list(last)[::-1])
        earlier, runs = commands[: len(commands) - len(messages)], False
        if earlier or not commands:
            runs = self.fold().status is RUNNING
            self.execute(*earlier)
        if not runs and all(isinstance(command, ChildCommand) for command in commands):
            return self.fold(), False
        run = host.runs.begin(tenant, self.id, False, messages, awaited)
        folded = None if run is None else run.fold
        return folded or self.fold(), runs or (not earlier and run is not None and run.ran)

    def follow(
        self,
        loop: asyncio.AbstractEventLoop,
        after_seq: int,
        *commands: TurnCommand,
        awaited: bool = False,
        deltas: bool = True,
    ) -> TurnReader:
        """Begin a turn, and return its reader for an event loop. Blocks. Without `deltas` the items
        have none."""
        reader = self._feed.subscribe(loop, deltas)
        try:
            folded, runs = self.begin(commands, awaited)
        except BaseException:
            reader.close()
            raise
        # The beginning of an answer that is under way is lost.
        kind, whole, decided = AttendedTurn if awaited else TurnReader, not runs, answered(commands)
        return kind(self, reader, after_seq, folded, whole, decided)

    def attend(
        self,
        loop: asyncio.AbstractEventLoop,
        after_seq: int,
        *commands: TurnCommand,
        deltas: bool = True,
    ) -> AttendedTurn:
        """Begin a turn like `follow`, for a client that waits for its end. Blocks."""
        chats = self._host.chats
        chats.enter(self._tenant, self.id)
        try:
            turn = self.follow(loop, after_seq, *commands, awaited=True, deltas=deltas)
        except BaseException:
            chats.leave(self._tenant, self.id)
            raise
        return cast("AttendedTurn", turn)

    async def leave(self, over: bool) -> None:
        """End the wait of a client. If the turn is not `over` and no other client waits for it, it
        is interrupted, unless the server shuts down."""
        chats = self._host.chats
        alone = chats.leave(self._tenant, self.id) <= 0
        if alone and not over and not chats.ended:
            await self._change(self.execute, cmd.Interrupt())

    async def on_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a blocking function on a thread."""
        return await self._change(function, *arguments)

    async def stream(self, after_seq: int, *commands: TurnCommand) -> AsyncGenerator[TurnItem]:
        """Yield the items of a turn as `LocalSession.stream` does."""
        loop = asyncio.get_running_loop()
        beginning = self._change(self.follow, loop, after_seq, *commands)
        reader: TurnReader = await undisturbed(beginning, TurnReader.leave)
        try:
            async for item in reader.items():
                yield item
        finally:
            reader.close()


class TurnReader(ObjectStruct):
    """The items of a turn that has begun, for one reader on an event loop. `close` it."""

    _session: HostedSession
    _reader: FeedReader
    _seq: int
    fold: Fold
    _whole: bool  # False once deltas of an answer have lost their beginning
    _decided: frozenset[str]

    async def batches(self) -> AsyncGenerator[list[TurnItem]]:
        """Yield the items, together those that are there. The last one is a `Rest`."""
        reader, folded, seq, ended = self._reader, self.fold, self._seq, False
        below = await self._asked_below()  # also of what waits since an earlier turn
        items: list[TurnItem] = []
        # Until the cursor reaches the fold, the fold's news has not been sent yet.
        while not ended and (seq < folded.last_seq or not (below or rests(folded))):
            missed = reader.missed
            batch = await reader.next(seq, PING_SECONDS)
            ended, looks, items = batch.ended, False, list[TurnItem]()
            for item in _items(batch):
                if isinstance(item, ev.Event):
                    seq = item.seq
                    if seq > folded.last_seq:
                        folded.apply(item)
                    if isinstance(item, ev.AssistantReplied):
                        self._whole, missed = True, reader.missed
                elif missed != reader.missed:
                    self._whole = False
                looks = looks or isinstance(item, CallProgress)
                if self._whole or not isinstance(item, Delta):
                    items.append(item)
                if seq >= folded.last_seq and rests(folded):
                    break
            quiet = not items
            if quiet and not ended:
                items.append(Silence())
            if items and not ended and (seq < folded.last_seq or not rests(folded)):
                yield items
                items = []
            if looks or quiet:  # calls report what their conversations wait for
                below = await self._asked_below()
        over = rests(folded)
        if over:
            below = await self._asked_below()
        yield [*items, rest_of(folded, seq, ended and not over, below)]

    async def items(self) -> AsyncGenerator[TurnItem]:
        """Yield the items one by one."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for item in batch:
                    yield item

    async def _asked_below(self) -> list[ChildItem]:
        if not may_ask_below(self.fold):
            return []
        session = self._session
        return await session.on_thread(session.asked_below, self.fold, self._decided)

    def close(self) -> None:
        """Stop reading. The run continues. Idempotent."""
        self._reader.close()

    async def leave(self) -> None:
        self.close()


class AttendedTurn(TurnReader):
    """A turn that has begun and for whose end a client waits, on an event loop.

    At a rest at which the client is to run calls, the conversation is paused for them. When the
    last client leaves before the end, the run is interrupted.
    """

    over: bool = False
    """True if the end is known, so that a client that leaves interrupts nothing."""
    _has_left: bool = False

    async def batches(self) -> AsyncGenerator[list[TurnItem]]:
        """Yield the items, together those that are there. The last one is a `Rest`."""
        async with aclosing(super().batches()) as batches:
            async for batch in batches:
                if isinstance(item := batch[-1], Rest):
                    self.over = True
                    if item.reason == "call" and item.status is RUNNING:
                        await self._session.on_thread(self._session.hold, item)
                yield batch

    async def leave(self) -> None:
        """End the client's wait. Idempotent; not to be cancelled."""
        if not self._has_left:
            self._has_left = True
            self.close()
            await self._session.leave(self.over)


async def undisturbed(work: Awaitable[T], late: Callable[[T], Coroutine[Any, Any, None]]) -> T:
    """Return the result of `work`. If the caller is cancelled before, `late` is called with the
    later result."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        following = asyncio.ensure_future(_call_late(task, late))
        task.add_done_callback(lambda _: following)  # keeps it until then
        raise


async def _call_late(
    task: asyncio.Future[T], late: Callable[[T], Coroutine[Any, Any, None]]
) -> None:
    with suppress(Exception):  # the caller is gone
        await late(await task)


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
        yield frame.event
    yield from until(inf)


class HostedDoor(ObjectStruct):
    """A tenant's conversations with the published agents of a server. All methods block and raise
    the errors of `Host`. With `questions`, the user can be asked."""

    _host: Host
    _tenant: str
    _change: OnThread = asyncio.to_thread
    _questions: bool = True

    def begin(
        self,
        agent: Published,
        id: str = "",
        *,
        tools: Sequence[ToolForm] = (),
        instructions: str = "",
    ) -> HostedSession:
        """Return the conversation of this id, or a new one for a turn that begins next.

        Args:
            tools: Tools that the client runs, for the turns from now on.
            instructions: The client's addition to the system prompt, for the same turns.
        """
        session: HostedSession | None = None
        if id:
            with suppress(ConversationNotFound):
                session = self.find(id)
        if session is None:
            with suppress(Conflict):  # another request was first
                return self.create(agent, id, tools=tools, instructions=instructions)[0]
            session = self.find(id)
        setting = setting_of(instructions, tools)
        if not self.fits(id, setting):
            with self._host.chats.turn(self._tenant, id):
                self.refit(id, agent, tools, instructions, setting)
        return session

    def create(
        self,
        agent: Published,
        id: str = "",
        *,
        tools: Sequence[ToolForm] = (),
        instructions: str = "",
    ) -> tuple[HostedSession, CreatedConversation]:
        """Return a new conversation for a turn that begins next, and the record of its creation.
        The arguments are those of `begin`. The tenant's oldest chats at rest make room.

        Raises `Conflict` if the id is taken, and `Denied` if the server may not run all tools of
        the agent.
        """
        host, tenant, setting = self._host, self._tenant, setting_of(instructions, tools)
        request = replace(self._request(agent, tools, instructions), id=id)
        reply = host.chats.with_room(tenant, lambda: host.create(tenant, request, chat=setting))
        own = {tool.name for tool in agent.tools}
        refused = [one.name for one in reply.tools if one.executor != "server" and one.name in own]
        if refused:
            host.delete(tenant, reply.id)
            raise Denied(
                f"This server may not run these tools of the agent {agent.name!r}:"
                f" {', '.join(refused)}. Its operator can allow them with --allow-tools."
            )
        place = store_id(tenant, reply.id)
        return HostedSession(host, tenant, reply.id, self._change, place), reply

    def _request(
        self, agent: Published, tools: Sequence[ToolForm], instructions: str
    ) -> CreateRequest:
        """Return the request for a conversation with an agent, with the client's tools and
        instructions, which are taken literally."""
        fields = agent.fields
        form: dict[str, Any] = fields["agent"]
        if instructions:
            form["system_prompt_extensions"] = [
                *form.get("system_prompt_extensions", []),
                instructions.replace("${", "$${"),
            ]
        if tools:
            form = with_tools(form, [*builtin_names(form), *(tool.name for tool in tools)])
        fields |= {"agent": form, "tools": [*agent.tools, *tools]}
        asks = self._questions
        return CreateRequest(**fields, questions=asks, child_questions=asks, deltas=True)

    def fits(self, id: str, setting: bytes) -> bool:
        """Return True if a conversation has the instructions and tools with this hash."""
        return self._host.chats.rows.setting(self._tenant, id) == setting

    def refit(
        self,
        id: str,
        agent: Published,
        tools: Sequence[ToolForm],
        instructions: str,
        setting: bytes,
    ) -> None:
        """Change the instructions and tools of a conversation at rest."""
        request = self._request(agent, tools, instructions)
        self._host.chats.refit(self._tenant, id, request, setting)

    def fork(self, id: str, seq: int) -> HostedSession:
        """Return a fork of a conversation after event `seq`. Its open calls are settled."""
        host, tenant = self._host, self._tenant
        request = ForkRequest(seq=seq, title="")  # the events that follow keep their seqs
        forked = host.chats.with_room(tenant, lambda: host.fork(tenant, id, request))
        host.chats.rows.add(tenant, forked.id, host.chats.rows.setting(tenant, id))
        return self.find(forked.id)

    def find(self, id: str) -> HostedSession:
        """Return the conversation of this id. Raises `ConversationNotFound`."""
        return HostedSession(self._host, self._tenant, id, self._change)

    def list(self, tags: Sequence[str] = (), cursor: str | None = None, limit: int = 100) -> Page:
        """Return a page of the conversations with these tags, the newest first."""
        return self._host.list(self._tenant, None, cursor, limit, tags)
