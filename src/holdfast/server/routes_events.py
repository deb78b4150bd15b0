"""Reading a conversation over HTTP: its state, events, stream of events, whole outputs of calls,
descendants, and the health of its tool services."""

from typing import Annotated, Any

import msgspec
from fastapi import Header, Query, Request
from starlette.responses import Response

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation import ConversationState
from holdfast.errors import ConfigurationError
from holdfast.nesting import too_many
from holdfast.observe.trace import MAX_SPANS, RunTrace
from holdfast.server.bodies import (
    Events,
    PendingItems,
    ServiceHealth,
    Services,
    StateRequest,
    StatusReply,
)
from holdfast.server.descendants import TreeStats
from holdfast.server.guard import refused
from holdfast.server.host import Host
from holdfast.server.hosted import HostedSession
from holdfast.server.intake import MAX_VALUES
from holdfast.server.routes import LARGEST, CallId, Id, RouteTable
from holdfast.server.service import Service
from holdfast.server.shapes import Page
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
routes = RouteTable("/api/conversations/{id}", "events")
family = RouteTable("/api/conversations/{id}", "conversations")  # spawned ones, and tool services


@routes.get(
    "/state",
    "Get the whole state",
    schema=_STATE,
    conflicts=True,
    answer_example={"version": 1, "id": "4f0c91d2a6be", "status": "finished", "events": [_MESSAGE]},
)
def get_state(host: Host, tenant: str, id: Id) -> msgspec.Raw:
    """The state with all events, in the form of `ConversationState.to_json`."""
    return msgspec.Raw(host.state(tenant, id).to_json())


@routes.put(
    "/state",
    "Continue from a state",
    takes=StateRequest,
    largest=None,
    answer_example={"status": "finished"},
    example={"version": 1, "id": "elsewhere", "status": "idle", "events": [_FIRST]},
    conflicts=True,
)
def put_state(host: Host, tenant: str, id: Id, data: bytes) -> StatusReply:
    """Lets a conversation without events continue from the events of another one, of any server or
    none, like `Conversation.from_state`."""
    return StatusReply(host.begin_with(tenant, id, _state_of(data)))


@routes.get("/events", "List events", answer_example={"events": [_MESSAGE], "lastSeq": 2})
def get_events(
    host: Host,
    tenant: str,
    id: Id,
    after_seq: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> Events:
    """In order, at most `limit`."""
    page = host.read(tenant, id, after_seq, limit)
    # If no event follows `after_seq`, it is the last one's or not one of the journal's.
    events = page or (host.read(tenant, id, after_seq - 1, 1) if after_seq else [])
    last = events[-1].seq if events else 0
    if len(page) >= limit or (after_seq and not events):
        last = host.get(tenant, id).last_seq
    return Events([msgspec.Raw(ev.encode(event)) for event in page], last)


@routes.get(
    "/export",
    "Export a conversation",
    slow=True,
    answer_media_type="application/x-ndjson",
    schema={"type": "string"},
    answer_example='{"type":"conversation","version":1,"id":"4f0c91d2a6be","events":1}\n',
)
def export_conversation(host: Host, tenant: str, id: Id) -> Response:
    """Its events as JSON lines, with the kept outputs of its calls: what `holdfast export` writes
    and `holdfast import` reads. A conversation without events is answered with 404."""
    lines = b"".join(host.family.export(tenant, id))
    headers = {"Content-Disposition": f'attachment; filename="{id}.jsonl"'}
    return Response(lines, media_type="application/x-ndjson", headers=headers)


@routes.get(
    "/stream",
    "Stream events",
    answer_media_type="text/event-stream",
    schema={"type": "string"},
    answer_example='id: 2\nevent: message\ndata: {"type": "message", "seq": 2}\n\n',
    conflicts=True,
)
async def stream_events(
    service: Service,
    host: Host,
    request: Request,
    id: Id,
    after_seq: After = 0,
    last_event_id: Annotated[
        str | None, Header(pattern="^[0-9]{1,15}$", description="Overrides `after_seq`.")
    ] = None,
) -> Response:
    """Server-sent events: first the events after `after_seq`, then each appended event, with its
    seq as `id`. `delta` and `progress` have no id and are not stored. A comment is sent while there
    is nothing else."""
    caller = service.caller(request)
    client = request.headers.get("x-holdfast-client")

    async def alive() -> None:
        await request.scope["check"]()
        if client is not None:
            await service.note_alive(caller.tenant, client)

    service.check_open()
    feed = await service.read(host.feed, caller.tenant, id)
    after = after_seq if last_event_id is None else int(last_event_id)
    return Stream(service, feed, caller.key_id, after, alive)


@routes.get("/outputs/{call_id}", "Get the whole output of a call")
def get_output(host: Host, tenant: str, id: Id, call_id: CallId) -> ToolResult:
    """The whole output of a call of which the journal holds only the beginning and the end."""
    return host.output(tenant, id, call_id)


@family.get("/children", "List spawned conversations")
def list_children(host: Host, tenant: str, id: Id) -> Page:
    """Oldest first. The routes for state, events, stream and outputs accept the ids of spawned
    conversations. Of the commands they accept only decisions and answers; send others to the
    parent."""
    return Page(items=host.family.children(tenant, id))


@family.get(
    "/pending",
    "List what waits for the user",
    answer_example={
        "items": [
            {
                "conversation": "4f0c91d2a6be.4.0",
                "callId": "3.0",
                "name": "terminal",
                "arguments": {"command": "make deploy"},
                "argumentsHash": "9a3f",
                "reason": "every call of terminal needs confirmation",
            }
        ]
    },
)
def list_pending(host: Host, tenant: str, id: Id) -> PendingItems:
    """The calls that wait for approval and the questions of running calls: of the conversation, and
    of those that its calls spawned. Decide and answer under the `conversation` of each."""
    session = HostedSession(host, tenant, id)
    return PendingItems.of(id, session.rest(session.fold()).pending)


@family.get("/forks", "List forks")
def list_forks(host: Host, tenant: str, id: Id) -> Page:
    """The conversations that were forked from this one and from its forks, at most 100. Each
    follows its `parent`, oldest first."""
    return Page(items=host.family.forks(tenant, id))


@family.get("/stats", "Get a conversation's statistics", slow=True)
def get_stats(host: Host, tenant: str, id: Id) -> TreeStats:
    """Time, tokens and cost by model and tool of the conversation and of its descendants, parents
    first, as in `holdfast stats`. Reads the journals."""
    return host.family.stats(tenant, id)


@family.get("/trace", "Get a conversation's trace", slow=True)
def get_trace(
    host: Host,
    tenant: str,
    id: Id,
    limit: Annotated[
        int, Query(ge=0, le=MAX_SPANS, description="The largest number of spans.")
    ] = MAX_SPANS,
) -> RunTrace:
    """The spans of model calls, tool calls and waits of the conversation and its descendants. Also
    the tokens and costs by step, the files that calls changed, and the sums of the forks. Reads the
    journals."""
    return host.family.trace(tenant, id, limit)


@family.get(
    "/services",
    "Check its tool services",
    slow=True,
    answer_example={
        "open": True,
        "services": [{"id": "git", "ok": True, "seconds": 0.004, "detail": "12 tools"}],
    },
)
def list_services(host: Host, tenant: str, id: Id) -> Services:
    """Checks MCP servers and A2A agents now, within a few seconds, if the conversation is open in
    this process. The request does not open the conversation."""
    healths = host.services(tenant, id)
    return Services(
        healths is not None,
        [ServiceHealth(one.id, one.ok, one.seconds, one.detail) for one in healths or ()],
    )


def _state_of(body: bytes) -> ConversationState:
    """Return the conversation state of a `StateRequest`. The number of values is limited per event.
    Raises `RequestRefused` and `ConfigurationError`."""
    try:
        request = msgspec.json.decode(body, type=StateRequest)
        if any(too_many(bytes(event), MAX_VALUES) for event in request.events):
            most = f"at most {MAX_VALUES:,} are allowed"
            raise refused(413, f"An event has too many JSON values: {most}.")
        return ConversationState.from_json(body)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"This is not a conversation's state: {error}.") from None
