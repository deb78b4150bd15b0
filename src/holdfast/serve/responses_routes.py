"""`/v1/responses`: the server's agents for clients of OpenAI's Responses API."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from fastapi import Request
from starlette.responses import Response

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import ToolCall, answer_seq
from holdfast.conversation.fold import Fold, fold
from holdfast.conversation.rests import RUNNING, Rest, TurnCommand, rest_of, rests
from holdfast.conversation.turns import Silence, TurnItem
from holdfast.errors import ConfigurationError, Conflict, NotFound
from holdfast.serve.responses import ResponseTurn, StoredRequest, after
from holdfast.serve.responses_input import (
    Json,
    ResponseRequest,
    as_chat,
    input_items,
    read_input,
    turn_commands,
)
from holdfast.server.answers import answer
from holdfast.server.chats import ResponseRow
from holdfast.server.host import Host
from holdfast.server.hosted import AttendedTurn, HostedDoor, HostedSession, TurnReader, undisturbed
from holdfast.server.openai import ChatMessage, ChatTurn, Published, history_events, parse_request
from holdfast.server.routes import Routes, RouteTable
from holdfast.server.routes_openai import failed_response, unknown_model
from holdfast.server.service import Service, unless_left
from holdfast.server.sse import TurnStream

_CANCEL_SECONDS = 5.0  # for a run to stop
_STORED = msgspec.json.Decoder(StoredRequest)
_SHAPE = {"type": "object", "required": ["id", "object"]}

routes = RouteTable("/v1", "openai", {"client": False, "failed": failed_response})


def add(adding: Routes, agents: Mapping[str, Published]) -> None:
    """Add the routes of the Responses API."""
    adding.add(routes, agents=agents)


@routes.post(
    "/responses",
    "Ask an agent for a response",
    schema=_SHAPE,
    also=(400, 404, 409, 413, 422, 503),
    largest=None,
    example={"model": "coder", "input": "Hi"},
)
async def create_response(
    service: Service,
    agents: Mapping[str, Published],
    request: Request,
    tenant: str,
    body: ResponseRequest,
) -> Response:
    """Like OpenAI's Responses API, plain, streamed or in the background. The agent's tools run on
    the server. Functions of the request belong to the client."""
    if (agent := agents.get(body.model)) is None:
        return unknown_model(body.model, agents)
    responses = _Responses(service, tenant)
    service.check_open()
    loop = asyncio.get_running_loop()
    beginning = service.change(responses.begin, agent, body, loop)
    running = await undisturbed(beginning, RunningResponse.leave)
    if body.background and not body.stream:
        await running.leave()
        return answer(running.turn.resource())
    if body.stream:
        return TurnStream(running.events(), running.leave)
    return await running.whole(request)


@routes.get("/responses/{response_id}", "Get a response", schema=_SHAPE, also=(404,))
async def get_response(
    service: Service, tenant: str, response_id: str, stream: bool = False, starting_after: int = -1
) -> Response:
    """Returns the present response. With `stream` its events follow, after the sequence number
    `starting_after`."""
    responses = _Responses(service, tenant)
    if not stream:
        turn = await service.read(responses.find, response_id)
        return answer(turn.resource())
    beginning = service.change(responses.again, response_id, asyncio.get_running_loop())
    running = await undisturbed(beginning, RunningResponse.leave)
    return TurnStream(running.events(starting_after), running.leave)


@routes.post("/responses/{response_id}/cancel", "Cancel a response", schema=_SHAPE, also=(404, 409))
def cancel_response(service: Service, tenant: str, response_id: str) -> Response:
    """Interrupts the run of a response. A complete response stays unchanged."""
    return answer(_Responses(service, tenant).cancel(response_id).resource())


@routes.delete("/responses/{response_id}", "Delete a response", schema=_SHAPE, also=(404,))
def delete_response(service: Service, tenant: str, response_id: str) -> Response:
    """Forgets a response. With its last response a conversation is removed."""
    _Responses(service, tenant).delete(response_id)
    return answer({"id": response_id, "object": "response", "deleted": True})


@routes.get(
    "/responses/{response_id}/input_items",
    "List the input items of a response",
    schema={"type": "object", "required": ["object", "data"]},
    also=(404,),
)
def list_input_items(
    service: Service,
    tenant: str,
    response_id: str,
    limit: int = 20,
    order: str = "desc",
    after: str = "",
) -> Response:
    """The user's messages and the results of the client's functions."""
    items = _Responses(service, tenant).input_items(response_id)
    items = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    begin = ids.index(after) + 1 if after in ids else 0
    page = items[begin : begin + max(1, min(limit, 100))]
    more = begin + len(page) < len(items)
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    about = {"object": "list", "first_id": first, "last_id": last, "has_more": more}
    return answer({**about, "data": page})


class RunningResponse(NamedTuple):
    """A response whose turn has begun."""

    turn: ResponseTurn
    reader: AttendedTurn | TurnReader | None
    past: tuple[TurnItem, ...] = ()  # the items of a turn that is over, which has no reader

    async def leave(self) -> None:
        if self.reader is not None:
            await self.reader.leave()

    async def items(self) -> AsyncGenerator[TurnItem]:
        """Yield the items of the turn."""
        for item in self.past:
            yield item
        if self.reader is not None:
            try:
                async for item in self.reader.items():
                    yield item
            finally:
                await asyncio.shield(asyncio.ensure_future(self.leave()))

    async def whole(self, request: Request) -> Response:
        """Return the response when its turn is over."""

        async def run_to_end() -> None:
            async with aclosing(self.items()) as items:
                async for item in items:
                    self.turn.feed(item)

        await unless_left(request, run_to_end())
        return answer(self.turn.resource())

    async def events(self, number: int = -1) -> AsyncGenerator[bytes]:
        """Yield the server-sent events after a sequence number."""
        for event in after(self.turn.start(), number):
            yield _encode(event)
        async with aclosing(self.items()) as items:
            async for item in items:
                events = after(self.turn.feed(item), number)
                if frames := b"".join(map(_encode, events)):  # one write per item
                    yield frames
                if isinstance(item, Silence):
                    yield b": ping\n\n"
        yield b"data: [DONE]\n\n"


def _encode(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def _stored_request(agent: Published, body: ResponseRequest, system: list[str]) -> StoredRequest:
    """Return the parts of a request that the journal does not hold."""
    blank = {"description": None, "parameters": None, "strict": None}
    return StoredRequest(
        agent.name,
        int(time.time()),
        body.instructions,
        body.previous_response_id,
        system,
        [{**blank, **tool} for tool in body.tools or []],
        "auto" if body.tool_choice is None else body.tool_choice,
        body.parallel_tool_calls is not False,
        bool(body.background),
        body.store is not False,
        body.metadata or {},
        agent.form.mapping.get("output_type") is not None,
    )


class _Responses:
    """The responses of a tenant. All methods block."""

    def __init__(self, service: Service, tenant: str) -> None:
        self._host: Host = service.host
        self._rows = service.host.chats.rows
        self._tenant = tenant
        self._door = HostedDoor(service.host, tenant, service.change)

    # --- new ones ---

    def begin(
        self, agent: Published, body: ResponseRequest, loop: asyncio.AbstractEventLoop
    ) -> RunningResponse:
        """Find or make the conversation of a request, and begin its turn."""
        if body.conversation is not None:
            raise ConfigurationError(
                "conversation is not supported: continue with previous_response_id."
            )
        if body.background and body.store is False:
            raise ConfigurationError("background takes store: the response is retrieved later.")
        read = read_input(body)
        row = None if body.previous_response_id is None else self._row(body.previous_response_id)
        system = read.system if row is None else [*_STORED.decode(row.request).system, *read.system]
        decides = not read.messages and bool(read.approvals)
        if decides:  # a request without a message
            read.messages.append(ChatMessage("user", "-"))
        chat = parse_request(as_chat(body, read, system), agent)
        contents = [] if decides else chat.user_messages
        if row is None:
            session, folded = self._new(agent, chat)
            commands: list[TurnCommand] = [cmd.Send(content) for content in contents]
        else:
            if chat.history:
                raise ConfigurationError(
                    "input: with previous_response_id, send only new items, no answers."
                )
            session, folded = self._continue(row)
            rest = session.rest(folded)
            if not rests(folded) and not rest.pending:
                raise Conflict(
                    f"The response {body.previous_response_id!r} is in progress. Wait for its"
                    " end, or cancel it."
                )
            commands = turn_commands(folded, rest.pending, read, chat.results, contents)
            if folded.status is not RUNNING:  # else a call waits for an answer
                self._door.begin(
                    agent, session.id, tools=chat.offers, instructions=chat.instructions
                )
                folded = session.fold()
        stored = _stored_request(agent, body, system)
        id = f"resp_{os.urandom(16).hex()}"
        new = ResponseRow(session.id, folded.last_seq, msgspec.json.encode(stored))
        if stored.store and not self._rows.add_response(self._tenant, id, new):
            raise Conflict(
                f"Another request continues the response {body.previous_response_id!r} right now."
            )
        open = {call_id: item.effective for call_id, item in folded.open.items()}
        turn = ResponseTurn(id, stored, open)
        # A run without a waiting client is interrupted, unless it is in the background.
        begin = session.follow if stored.background else session.attend
        try:
            commands = commands or [cmd.Resume()]
            reader = begin(loop, folded.last_seq, *commands, deltas=bool(body.stream))
        except BaseException:
            self._rows.remove_response(self._tenant, id)
            raise
        return RunningResponse(turn, reader)

    def _new(self, agent: Published, chat: ChatTurn) -> tuple[HostedSession, Fold]:
        """Make the conversation of a request that continues none, with the answers in its input."""
        events = history_events(chat, agent.name)
        session = self._door.begin(agent, tools=chat.offers, instructions=chat.instructions)
        if events:
            self._host.chats.append(self._tenant, session.id, events)
        return session, session.fold()

    def _continue(self, row: ResponseRow) -> tuple[HostedSession, Fold]:
        """Return the conversation that continues after a response: a fork of it, if another
        response has continued it."""
        following = self._rows.next_response(self._tenant, row)
        session = self._door.find(row.conversation)
        if following is not None:
            session = self._door.fork(row.conversation, following)
        return session, session.settled()

    # --- existing responses ---

    def _row(self, id: str) -> ResponseRow:
        if (row := self._rows.response(self._tenant, id)) is None:
            raise NotFound(f"Response {id[:100]!r} not found.", "response", id)
        return row

    def _events(self, row: ResponseRow, until: int | None, begin: int) -> list[ev.AnyEvent]:
        return self._door.find(row.conversation).events(begin, until)

    def again(self, id: str, loop: asyncio.AbstractEventLoop) -> RunningResponse:
        """Return a response, to be fed with its items from the beginning."""
        row, turn, items = self._load(id)
        if items and isinstance(items[-1], Rest):
            return RunningResponse(turn, None, tuple(items))
        return RunningResponse(turn, self._door.find(row.conversation).follow(loop, row.seq))

    def find(self, id: str) -> ResponseTurn:
        """Return the present response of an id."""
        row, turn, items = self._load(id)
        turn.start()
        for item in items:
            turn.feed(item)
        if turn.rest is not None:
            self._door.find(row.conversation).hold(turn.rest)
        return turn

    def _load(self, id: str) -> tuple[ResponseRow, ResponseTurn, list[TurnItem]]:
        """Return a response before its first item, and its items so far: with a `Rest` at the end
        if it is over."""
        row = self._row(id)
        stored, until = _STORED.decode(row.request), self._rows.next_response(self._tenant, row)
        if until is None:
            folded = self._door.find(row.conversation).fold()
        else:
            folded = fold(self._events(row, until, 0))
        events = self._events(row, folded.last_seq, row.seq)
        turn = ResponseTurn(id, stored, self._calls_before(row, events))
        rest = rest_of(folded, folded.last_seq)
        if until is None:
            rest = self._door.find(row.conversation).rest(folded)
        return row, turn, [*events, *([rest] if rests(folded) or rest.pending else [])]

    def cancel(self, id: str) -> ResponseTurn:
        row, _, items = self._load(id)
        if not (items and isinstance(items[-1], Rest)):
            self._door.find(row.conversation).execute(cmd.Interrupt())
        deadline = time.monotonic() + _CANCEL_SECONDS
        while (turn := self.find(id)).status == "in_progress" and time.monotonic() < deadline:
            time.sleep(0.02)
        return turn

    def delete(self, id: str) -> None:
        row = self._row(id)
        self._rows.remove_response(self._tenant, id)
        if self._rows.next_response(self._tenant, row._replace(seq=-1)) is None:
            self._host.delete(self._tenant, row.conversation)

    def input_items(self, id: str) -> list[Json]:
        row = self._row(id)
        events = self._events(row, self._rows.next_response(self._tenant, row), row.seq)
        return input_items(events, self._calls_before(row, events))

    def _calls_before(self, row: ResponseRow, events: list[ev.AnyEvent]) -> dict[str, ToolCall]:
        """Return the calls of earlier answers that end in these events, with those of scripts."""
        answers = {
            answer_seq(event.call_id)
            for event in events
            if isinstance(event, ev.ToolCallStarted | ev.ToolCallFinished)
        }
        begin = min((seq for seq in answers if 0 < seq <= row.seq), default=row.seq + 1)
        calls: dict[str, ToolCall] = {}
        for event in self._events(row, row.seq, begin - 1) if begin <= row.seq else ():
            if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade):
                calls |= {call.id: call for call in event.calls}
        return calls
