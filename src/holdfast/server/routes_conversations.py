"""Conversations over HTTP: routes to create, list, drive, fork and remove them, to send them
messages, and to replace their tools."""

import hashlib
import os
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from holdfast.commands import Command, Condense, Interrupt, Pause, Resume, Send
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConfigurationError
from holdfast.server.answers import answer
from holdfast.server.bodies import CondenseRequest, MessageRequest, Sent, Standing
from holdfast.server.routes import Id, Key, Routes
from holdfast.server.shapes import Created, CreateRequest, ForkRequest, Info, Page, ToolsRequest

_AGENT = {
    "model": {"name": "gpt-5-mini", "api_key": "${secret_1}"},
    "tools": {"builtin": ["terminal", "read_file"]},
}
_CREATED = {
    "id": "4f0c91d2a6be",
    "status": "idle",
    "created": "2026-11-21T10:00:00Z",
    "workspace": "w-81d0",
    "tools": [{"name": "terminal", "executor": "server", "module": "holdfast.runtime"}],
    "warnings": [],
}
_STATUSES = "|".join(status.value for status in ConversationStatus)


def add(routes: Routes) -> None:
    """Add the routes of conversations."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "POST",
        "/api/conversations",
        "Create a conversation",
        takes=CreateRequest,
        example={"agent": _AGENT, "secrets": {"secret_1": "sk-..."}},
        gives=Created,
        gave=_CREATED,
        status=201,
        also=(404, 409, 503),
    )
    async def create_conversation(request: Request, key: Key = None) -> Response:
        """The request holds the agent's serial form. The answer says where each of its tools
        runs: on the server, in the client, or not at all."""
        body = await service.json(request, CreateRequest, service.agent_bytes)
        return answer(
            await service.change(host.create, service.caller(request).tenant, body, key or ""), 201
        )

    @routes.add("GET", "/api/conversations", "List conversations", gives=Page, also=(422, 503))
    async def list_conversations(
        request: Request,
        status: Annotated[
            str | None,
            Query(pattern=f"^({_STATUSES})$", description="Only those with this status."),
        ] = None,
        cursor: Annotated[
            str | None, Query(pattern="^[!-~]{1,200}$", description="`next` of the previous page.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Newest first, in pages."""
        return answer(
            await service.read(host.list, service.caller(request).tenant, status, cursor, limit)
        )

    @routes.add(
        "GET",
        "/api/conversations/{id}",
        "Get a conversation",
        gives=Info,
        also=(404, 422, 503),
    )
    async def get_conversation(request: Request, id: Id) -> Response:
        """Without its events."""
        return answer(await service.read(host.get, service.caller(request).tenant, id))

    @routes.add(
        "DELETE",
        "/api/conversations/{id}",
        "Remove a conversation",
        status=204,
        also=(404, 409, 422, 503),
    )
    async def delete_conversation(request: Request, id: Id) -> Response:
        """Cuts off running work and deletes the journal. The workspace stays if other
        conversations use it."""
        await service.change(host.delete, service.caller(request).tenant, id)
        return Response(status_code=204)

    @routes.add(
        "POST",
        "/api/conversations/{id}/messages",
        "Send a message",
        takes=MessageRequest,
        example={"text": "Why does test_dates fail?"},
        gives=Sent,
        gave={"eventId": "0b9e"},
        status=202,
        also=(404, 409, 503),
    )
    async def send_message(request: Request, id: Id, key: Key = None) -> Response:
        """The message is in the journal when the request is answered."""
        body = await service.json(request, MessageRequest, largest=None)
        tenant = service.caller(request).tenant
        event_id = body.event_id or _event_id(f"{tenant}/{id}/{key}" if key else None)
        await service.change(host.obey, tenant, id, Send(body.blocks, event_id), key)
        return answer(Sent(event_id), 202)

    async def obeyed(request: Request, id: str, command: Command, key: str | None) -> Response:
        tenant = service.caller(request).tenant

        def obey() -> str:
            host.obey(tenant, id, command, key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(obey)))

    standing: dict[str, Any] = {
        "gives": Standing,
        "gave": {"status": "running"},
        "also": (404, 409, 422, 503),
        "conflict": True,
    }

    @routes.add("POST", "/api/conversations/{id}/start", "Keep a conversation running", **standing)
    async def start_conversation(request: Request, id: Id) -> Response:
        """Messages are answered as they arrive, also after a restart of the server, until
        `close`."""
        return answer(
            Standing(await service.change(host.start, service.caller(request).tenant, id))
        )

    @routes.add(
        "POST", "/api/conversations/{id}/run", "Run a conversation until it rests", **standing
    )
    async def run_conversation(request: Request, id: Id) -> Response:
        """Resumes the conversation and answers at once. The event stream shows when it rests."""
        return answer(Standing(await service.change(host.run, service.caller(request).tenant, id)))

    @routes.add("POST", "/api/conversations/{id}/close", "Park a conversation", **standing)
    async def close_conversation(request: Request, id: Id) -> Response:
        """Cuts off running work. The conversation can be opened again at any time."""
        return answer(
            Standing(await service.change(host.close, service.caller(request).tenant, id))
        )

    @routes.add("POST", "/api/conversations/{id}/pause", "Pause after the running step", **standing)
    async def pause_conversation(request: Request, id: Id, key: Key = None) -> Response:
        """Stops the conversation after the running step."""
        return await obeyed(request, id, Pause(), key)

    @routes.add(
        "POST", "/api/conversations/{id}/resume", "Resume after a pause or an error", **standing
    )
    async def resume_conversation(request: Request, id: Id, key: Key = None) -> Response:
        """Like `Conversation.resume`."""
        return await obeyed(request, id, Resume(), key)

    @routes.add("POST", "/api/conversations/{id}/interrupt", "Pause at once", **standing)
    async def interrupt_conversation(request: Request, id: Id, key: Key = None) -> Response:
        """Cancels running work."""
        return await obeyed(request, id, Interrupt(), key)

    @routes.add(
        "POST",
        "/api/conversations/{id}/condense",
        "Condense a conversation",
        takes=CondenseRequest,
        example={"instructions": "Keep the ticket numbers."},
        **standing,
    )
    async def condense_conversation(request: Request, id: Id, key: Key = None) -> Response:
        """Like `Conversation.condense`. A `condensation` event reports the outcome."""
        body = await service.json(request, CondenseRequest)
        return await obeyed(request, id, Condense(body.instructions), key)

    @routes.add(
        "POST",
        "/api/conversations/{id}/fork",
        "Fork a conversation",
        takes=ForkRequest,
        example={"seq": 7},
        gives=Created,
        gave=_CREATED,
        status=201,
        also=(404, 409, 503),
    )
    async def fork_conversation(request: Request, id: Id, key: Key = None) -> Response:
        """Creates a conversation that begins with the first events of this one."""
        body = await service.json(request, ForkRequest, service.agent_bytes)
        if body.seq is not None and not 0 <= body.seq < 2**53:
            raise ConfigurationError(f"seq takes the number of an event, not {body.seq}.")
        return answer(
            await service.change(host.fork, service.caller(request).tenant, id, body, key or ""),
            201,
        )

    @routes.add(
        "PUT",
        "/api/conversations/{id}/tools",
        "Replace a conversation's tools",
        takes=ToolsRequest,
        example={
            "tools": [
                {
                    "name": "plan",
                    "inputSchema": {"type": "object"},
                    "module": "holdfast.tools.preset.planning",
                }
            ]
        },
        gives=Created,
        gave=_CREATED,
        also=(404, 409, 503),
    )
    async def set_tools(request: Request, id: Id) -> Response:
        """Replaces its tools from its next step on."""
        body = await service.json(request, ToolsRequest, service.agent_bytes)
        tenant = service.caller(request).tenant
        return answer(
            await service.change(
                host.set_tools,
                tenant,
                id,
                body.tools,
                body.tool_module_qualnames,
                body.client_tools,
            )
        )


def _event_id(key: str | None) -> str:
    """Return an id for a message without one. A repeated request under the same key gives the
    same id."""
    return os.urandom(16).hex() if key is None else hashlib.sha256(key.encode()).hexdigest()[:32]
