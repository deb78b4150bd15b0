"""Events over HTTP: a conversation's state, its events, their stream, and the whole outputs of
its calls."""

from typing import Annotated, Any

import msgspec
from fastapi import Header, Query, Request
from starlette.responses import Response

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.server.answers import answer
from holdfast.server.bodies import Events, Standing, StateRequest
from holdfast.server.intake import state_of
from holdfast.server.routes import LARGEST, CallId, Id, Routes
from holdfast.server.sse import Stream

After = Annotated[
    int,
    Query(ge=0, le=LARGEST, description="The seq of the last known event; 0 returns all events."),
]

_MESSAGE = {
    "type": "message",
    "seq": 2,
    "id": "0b9e",
    "timestamp": "2026-11-21T10:00:00Z",
    "role": "user",
    "content": [{"type": "text", "text": "Hi"}],
}
_FIRST = {**{name: value for name, value in _MESSAGE.items() if name != "role"}, "seq": 1}
_EVENT = {
    "type": "object",
    "required": ["type", "seq"],
    "properties": {"type": {"type": "string"}, "seq": {"type": "integer"}},
}
_STATE: dict[str, Any] = {
    "type": "object",
    "required": ["version", "id", "status", "events"],
    "properties": {
        "version": {"const": 1},
        "id": {"type": "string"},
        "status": {"type": "string"},
        "events": {"type": "array", "items": _EVENT},
    },
}


def add(routes: Routes) -> None:
    """Add the routes of events."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "GET",
        "/api/conversations/{id}/state",
        "Get the whole state",
        schema=_STATE,
        also=(404, 409, 422, 503),
        tag="events",
        gave={"version": 1, "id": "4f0c91d2a6be", "status": "finished", "events": [_MESSAGE]},
    )
    async def get_state(request: Request, id: Id) -> Response:
        """The state with all events, in the form of `ConversationState.to_json`."""
        tenant = service.caller(request).tenant
        data = await service.read(lambda: host.state(tenant, id).to_json())
        return Response(data, media_type="application/json")

    @routes.add(
        "PUT",
        "/api/conversations/{id}/state",
        "Continue from a state",
        takes=StateRequest,
        gives=Standing,
        gave={"status": "finished"},
        example={"version": 1, "id": "elsewhere", "status": "idle", "events": [_FIRST]},
        also=(404, 409, 503),
        tag="events",
    )
    async def put_state(request: Request, id: Id) -> Response:
        """Lets a conversation without events continue from the events of another one, of any
        server or none, like `Conversation.from_state`."""
        data = await service.body(request)
        tenant = service.caller(request).tenant
        return answer(
            Standing(await service.change(lambda: host.begin_with(tenant, id, state_of(data))))
        )

    @routes.add(
        "GET",
        "/api/conversations/{id}/events",
        "List events",
        gives=Events,
        gave={"events": [_MESSAGE], "lastSeq": 2},
        also=(404, 422, 503),
        tag="events",
    )
    async def get_events(
        request: Request,
        id: Id,
        after_seq: After = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    ) -> Response:
        """In order, at most `limit`."""
        tenant = service.caller(request).tenant

        def read() -> Response:
            found = host.read(tenant, id, after_seq, limit)
            last = (
                host.get(tenant, id).last_seq
                if len(found) >= limit
                else found[-1].seq
                if found
                else after_seq
            )
            return answer(Events([msgspec.Raw(ev.encode(event)) for event in found], last))

        return await service.read(read)

    @routes.add(
        "GET",
        "/api/conversations/{id}/stream",
        "Stream events",
        given="text/event-stream",
        schema={"type": "string"},
        gave='id: 2\nevent: message\ndata: {"type": "message", "seq": 2}\n\n',
        also=(404, 409, 422, 503),
        tag="events",
    )
    async def stream_events(
        request: Request,
        id: Id,
        after_seq: After = 0,
        last_event_id: Annotated[
            str | None, Header(pattern="^[0-9]{1,15}$", description="Overrides `after_seq`.")
        ] = None,
    ) -> Response:
        """Server-sent events: first the events after `after_seq`, then each event as it is
        appended, with its seq as `id`. `delta` and `progress` have no id and are not stored. A
        comment is sent while there is nothing else."""
        caller = service.caller(request)
        client = request.headers.get("x-holdfast-client")

        async def alive() -> None:
            await request.scope["check"]()
            if client is not None:
                await service.seen(caller.tenant, client)

        service.check_open()
        feed = await service.read(host.feed, caller.tenant, id)
        return Stream(
            service,
            feed,
            caller.key_id,
            after_seq if last_event_id is None else int(last_event_id),
            alive,
        )

    @routes.add(
        "GET",
        "/api/conversations/{id}/outputs/{call_id}",
        "Get the whole output of a call",
        gives=ToolResult,
        also=(404, 422, 503),
        tag="events",
    )
    async def get_output(request: Request, id: Id, call_id: CallId) -> Response:
        """The whole output of a call of which the journal holds only the beginning and the end."""
        return answer(await service.read(host.output, service.caller(request).tenant, id, call_id))
