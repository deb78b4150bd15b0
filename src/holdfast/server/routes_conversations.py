"""Conversations over HTTP: routes to create, list, drive, fork and remove them, to send them
messages, and to replace their tools."""

import hashlib
import os
from typing import Annotated, Any

from fastapi import Query

from holdfast.commands import Send
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConfigurationError
from holdfast.labels import check_tags
from holdfast.server import shapes
from holdfast.server.bodies import MessageRequest, SentMessage, StatusReply, TimerList, TitleReply
from holdfast.server.host import Host
from holdfast.server.routes import Id, Key, RouteTable

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
_CHANGE: dict[str, Any] = {"answer_example": _CREATED, "holds_agent": True, "conflicts": True}
_DRIVE: dict[str, Any] = {
    "answer_example": {"status": "running"},
    "conflicts": True,
    "state_error": True,
}

routes = RouteTable("/api/conversations", "conversations")


@routes.post(
    "",
    "Create a conversation",
    example={"agent": _AGENT, "secrets": {"secret_1": "sk-..."}},
    status=201,
    also=(404, 409, 503),
    **_CHANGE,
)
def create_conversation(
    host: Host, tenant: str, body: shapes.CreateRequest, key: Key = None
) -> shapes.CreatedConversation:
    """The request holds the agent's serial form. The answer says where each of its tools runs: on
    the server, in the client, or not at all."""
    return host.create(tenant, body, key or "")


@routes.get("", "List conversations")
def list_conversations(
    host: Host,
    tenant: str,
    status: Annotated[
        str | None, Query(pattern=f"^({_STATUSES})$", description="Only those with this status.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        Query(description="Only those with this tag. Several: only those with all of them."),
    ] = None,
    cursor: Annotated[
        str | None, Query(pattern="^[!-~]{1,200}$", description="`next` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> shapes.Page:
    """Newest first, in pages."""
    return host.list(tenant, status, cursor, limit, check_tags("tag", tag or ()))


@routes.get("/{id}", "Get a conversation")
def get_conversation(host: Host, tenant: str, id: Id) -> shapes.Info:
    """Without its events."""
    return host.get(tenant, id)


@routes.delete("/{id}", "Remove a conversation", conflicts=True)
def delete_conversation(host: Host, tenant: str, id: Id) -> None:
    """Cuts off running work and deletes the journal. The workspace stays if other conversations use
    it."""
    host.delete(tenant, id)


@routes.post(
    "/{id}/messages",
    "Send a message",
    example={"text": "Why does test_dates fail?"},
    answer_example={"eventId": "0b9e"},
    largest=None,
    status=202,
    conflicts=True,
)
def send_message(
    host: Host, tenant: str, id: Id, body: MessageRequest, key: Key = None
) -> SentMessage:
    """The message is in the journal when the request is answered."""
    event_id = body.event_id or _event_id(f"{tenant}/{id}/{key}" if key else None)
    host.execute(tenant, id, Send(body.blocks, event_id), key)
    return SentMessage(event_id)


@routes.post("/{id}/start", "Keep a conversation running", **_DRIVE)
def start_conversation(host: Host, tenant: str, id: Id) -> StatusReply:
    """Messages are answered as they arrive, also after a restart of the server, until `close`."""
    return StatusReply(host.start(tenant, id))


@routes.post("/{id}/run", "Run a conversation until it rests", **_DRIVE)
def run_conversation(host: Host, tenant: str, id: Id) -> StatusReply:
    """Resumes the conversation and answers at once. The event stream shows when it rests."""
    return StatusReply(host.run(tenant, id))


@routes.post("/{id}/close", "Park a conversation", **_DRIVE)
def close_conversation(host: Host, tenant: str, id: Id) -> StatusReply:
    """Cuts off running work. The conversation can be opened again at any time."""
    return StatusReply(host.close(tenant, id))


@routes.get(
    "/{id}/timers",
    "List a conversation's timers",
    answer_example={
        "timers": [
            {
                "id": "report",
                "due": "2026-11-24T08:00:00Z",
                "content": [{"type": "text", "text": "Write the report."}],
                "cron": "0 9 * * mon-fri",
                "timezone": "Europe/Berlin",
                "setSeq": 6,
            }
        ]
    },
)
def list_timers(host: Host, tenant: str, id: Id) -> TimerList:
    """The earliest first."""
    return TimerList(host.timers(tenant, id))


@routes.post("/{id}/fork", "Fork a conversation", example={"seq": 7}, status=201, **_CHANGE)
def fork_conversation(
    host: Host, tenant: str, id: Id, body: shapes.ForkRequest, key: Key = None
) -> shapes.CreatedConversation:
    """Creates a conversation that begins with the first events of this one."""
    if body.seq is not None and not 0 <= body.seq < 2**53:
        raise ConfigurationError(f"seq takes the number of an event, not {body.seq}.")
    return host.fork(tenant, id, body, key or "")


@routes.post(
    "/{id}/rewind",
    "Go back in a conversation, with its files",
    example={"seq": 7},
    answer_example={
        "conversation": _CREATED,
        "files": {"changed": ["notes.md"], "outside": {"terminal": 1}},
    },
    status=201,
    conflicts=True,
    state_error=True,
)
def rewind_conversation(
    host: Host, tenant: str, id: Id, body: shapes.RewindRequest, key: Key = None
) -> shapes.RewoundConversation:
    """Creates a conversation that begins with the first events of this one, and puts the files of
    the workspace back that calls have changed since. The answer names the files, and the calls that
    may have acted elsewhere."""
    if not 0 <= body.seq < 2**53:
        raise ConfigurationError(f"seq takes the number of an event, not {body.seq}.")
    return host.rewind(tenant, id, body, key or "")


@routes.post(
    "/{id}/title",
    "Write a conversation's title",
    answer_example={"title": "Dates that fail"},
    conflicts=True,
    state_error=True,
)
def write_title(host: Host, tenant: str, id: Id) -> TitleReply:
    """Asks the agent's `title` model, or else its own, for a title by the first message, and
    replaces the present one. `labels` sets a title that the client has written."""
    return TitleReply(host.write_title(tenant, id))


@routes.put(
    "/{id}/tools",
    "Replace a conversation's tools",
    example={
        "tools": [
            {
                "name": "plan",
                "inputSchema": {"type": "object"},
                "module": "holdfast.tools.preset.planning",
            }
        ]
    },
    **_CHANGE,
)
def set_tools(
    host: Host, tenant: str, id: Id, body: shapes.ToolsRequest
) -> shapes.CreatedConversation:
    """Replaces its tools from its next step on."""
    return host.set_tools(tenant, id, body)


@routes.put(
    "/{id}/agent",
    "Replace a conversation's agent",
    example={"agent": {"model": {"name": "anthropic/claude-sonnet-4-5"}}},
    **_CHANGE,
)
def use(host: Host, tenant: str, id: Id, body: shapes.AgentRequest) -> shapes.CreatedConversation:
    """Another model, prompt, policy or toolset from its next step on. Its transcript, workspace,
    children and secrets stay."""
    return host.use(tenant, id, body)


@routes.put(
    "/{id}/secrets",
    "Replace a conversation's secrets",
    example={
        "secrets": {
            "GITHUB_TOKEN": {"value": "ghp_0123456789", "description": "may read repositories"}
        }
    },
    answer_example={"secrets": {"GITHUB_TOKEN": "may read repositories"}},
    conflicts=True,
)
def set_secrets(host: Host, tenant: str, id: Id, body: shapes.SecretsRequest) -> shapes.SecretNames:
    """The conversation's commands and tools may use the secrets from its next call on. The secrets
    are kept encrypted, masked in all output, and deleted with the conversation."""
    return host.set_secrets(tenant, id, body)


@routes.get(
    "/{id}/secrets",
    "List the names of a conversation's secrets",
    answer_example={"secrets": {"GITHUB_TOKEN": "may read repositories"}},
)
def get_secrets(host: Host, tenant: str, id: Id) -> shapes.SecretNames:
    """Names and descriptions, never values."""
    return host.secret_names(tenant, id)


def _event_id(key: str | None) -> str:
    """Return an id for a message without one. A repeated request under the same key gives the same
    id."""
    return os.urandom(16).hex() if key is None else hashlib.sha256(key.encode()).hexdigest()[:32]
