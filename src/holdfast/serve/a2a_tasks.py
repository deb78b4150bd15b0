"""The tasks of A2A over the journal: the request handler that `a2a-sdk` calls.

A task is a conversation, and its journal is the task store. Tasks of one `contextId` share a tag. A
new task in a context continues from the last finished one: it is a fork, so the agent remembers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from holdfast import commands as cmd
from holdfast import errors
from holdfast import events as ev
from holdfast.conversation.fold import fold
from holdfast.serve import a2a_shapes as shapes
from holdfast.serve.door import Rest, conversation_id, rest_of
from holdfast.serve.hosted import PING_SECONDS, HostedDoor, HostedSession, request_for
from holdfast.server.openai import Published
from holdfast.server.service import Service
from holdfast.server.shapes import ForkRequest, Info, Item
from holdfast.server.webhook_records import WebhookRequest, WebhookStyle

_log = logging.getLogger("holdfast.serve")

FORMATS = {"1.0": "a2a", "0.3": "a2a-0.3"}  # of notifications, by the protocol's version
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_PUSHED = ["status", "decision.ask"]  # the events after which clients are notified
_MAX_PAGE = 100  # the protocol's limit

# --- the SDK's types ---


def message_of(kind: str, data: shapes.Json) -> Any:
    """Return a message of the protocol. Unknown fields are an error of ours."""
    from a2a import types
    from google.protobuf.json_format import ParseDict

    return ParseDict(data, getattr(types, kind)())


def json_of(message: Any) -> shapes.Json:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message)


def _stream_event(update: shapes.Json) -> Any:
    response = message_of("StreamResponse", update)
    return getattr(response, response.WhichOneof("payload"))


def refusal(kind: str, message: str) -> Exception:
    from a2a.utils import errors as a2a_errors

    return getattr(a2a_errors, f"{kind}Error")(message)


_REFUSALS: tuple[tuple[type[Exception], str], ...] = (
    (errors.ConversationNotFound, "TaskNotFound"),
    (shapes.UnsupportedMediaType, "ContentTypeNotSupported"),
    (errors.ConfigurationError, "InvalidParams"),
    (errors.ToolValidationError, "InvalidParams"),
    (errors.Conflict, "UnsupportedOperation"),
    (errors.NotFound, "TaskNotFound"),
    (errors.Denied, "UnsupportedOperation"),
    (errors.HoldfastError, "Internal"),
)


@contextmanager
def refusing() -> Generator[None]:
    """Raise the protocol's errors in place of ours."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("a2a."):
            raise
        for kind, name in _REFUSALS:
            if isinstance(error, kind):
                raise refusal(name, str(error)) from error
        _log.exception("An A2A request failed")
        raise refusal("Internal", "The server failed; its log says why.") from error


# --- tasks ---


class _Found(NamedTuple):
    """A task at one moment: its conversation, its view of all events, its rest, and its
    workspace."""

    session: HostedSession
    view: shapes.TaskView
    rest: Rest
    workspace: str

    @property
    def state(self) -> str:
        return self.view.status(self.rest)["state"]

    def task(self, history: int | None = None, artifacts: bool = True) -> Any:
        """Return the task with the newest `history` messages (None: all)."""
        task = self.view.task(self.rest)
        if history is not None:
            task["history"] = task["history"][-history:] if history else []
        if not artifacts:
            del task["artifacts"]
        return message_of("Task", task)


class Tasks:
    """The SDK's request handler (`a2a.server.request_handlers.RequestHandler`) for one agent. It
    has no state: every request reads the journal."""

    def __init__(self, service: Service, agent: Published) -> None:
        self._service = service
        self._host = service.host
        self._agent = agent
        self._tag = f"a2a={agent.name}"

    # --- finding ---

    def _door(self, context: Any) -> HostedDoor:
        return HostedDoor(self._host, context.state["caller"].tenant, self._service.change)

    def _find(self, context: Any, id: str) -> _Found:
        """Return a task. Raises `ConversationNotFound`."""
        tenant = context.state["caller"].tenant
        info = self._host.get(tenant, id)
        if self._tag not in info.tags:
            raise errors.ConversationNotFound(f"There is no task {id[:200]!r}.", "task", id)
        return found_at(self._host.state(tenant, id).events, info, self._door(context).find(id))

    async def _look(self, context: Any, id: str) -> _Found:
        return await self._service.read(self._find, context, id)

    # --- sending ---

    def _new(self, context: Any, message: shapes.Json) -> tuple[str, bool]:
        """Make the conversation of a new task. Return its id, and True if it is new. A request that
        is repeated under its `Idempotency-Key` makes no second task."""
        tenant, context_id = context.state["caller"].tenant, message.get("contextId", "")
        key = context.state["headers"].get("idempotency-key") or os.urandom(16).hex()
        id = conversation_id("a2a", self._agent.name, key)
        tags = (self._tag, f"context={context_id or id}")
        cmd.Label(add=tags)  # checks the context's id
        door, known = self._door(context), self._host.list(tenant, None, None, 1, tags).items
        with suppress(errors.ConversationNotFound):
            door.find(id)
            return id, not self._host.read(tenant, id, 0, 1)
        finished = self._host.list(tenant, "finished", None, 1, tags).items if known else []
        if not finished:
            door.begin(self._agent, id, tags=tags)
            return id, True
        wanted = request_for(self._agent)
        fork = ForkRequest(
            id=id,
            title="",
            agent=wanted.agent,
            secrets=wanted.secrets,
            tools=wanted.tools,
            tool_module_qualnames=wanted.tool_module_qualnames,
            client_tools=True,
        )
        with suppress(errors.Conflict):  # the same message was sent twice at once
            self._host.chats.with_room(
                tenant, lambda: self._host.fork(tenant, finished[0].id, fork)
            )
        return id, True

    def _send(self, context: Any, found: _Found, message: shapes.Json) -> cmd.Send:
        tenant, id = context.state["caller"].tenant, message.get("messageId", "")

        def keep(name: str, data: bytes) -> str:
            """Write a file into the workspace, and return its path."""
            plain = re.sub(r"[^\w.-]+", "_", name).strip("._")[:100] or "file"
            path = f"received/{sha256(data).hexdigest()[:8]}-{plain}"
            with self._host.workspace(tenant, found.workspace) as runtime:
                runtime.write_file(path, data.decode(errors="surrogateescape"))
            return path

        content = shapes.content_of(message.get("parts", []), keep if found.workspace else None)
        return cmd.Send(content, id if NAME.fullmatch(id) else "")

    def _commands(self, context: Any, found: _Found, message: shapes.Json) -> Sequence[cmd.Command]:
        """Return the commands for a message to a task."""
        if message.get("taskId") and found.state in shapes.TERMINAL:
            raise refusal(
                "UnsupportedOperation",
                f"The task is over ({found.state}). Send the message with its contextId alone.",
            )
        given = message.get("contextId")
        if given not in (None, "", found.view.context_id):
            raise errors.ConfigurationError("contextId is not that of the task.")
        parts = message.get("parts", [])
        if found.rest.pending:
            return shapes.decisions_of(parts, found.rest.pending)
        return [self._send(context, found, message)]

    async def _begin(self, params: Any, context: Any) -> tuple[_Found, Sequence[cmd.Command]]:
        """Return the task of a message, and the commands to carry out."""
        from a2a.utils.proto_utils import validate_proto_required_fields

        validate_proto_required_fields(params)
        _check_history(params.configuration)
        self._service.check_open()
        message = json_of(params.message)
        change = self._service.change
        id, is_new = message.get("taskId", ""), True
        if not id:
            id, is_new = await change(self._new, context, message)
        found = await self._look(context, id)
        commands: Sequence[cmd.Command] = ()
        if is_new:
            commands = await change(self._commands, context, found, message)
        if params.configuration.HasField("task_push_notification_config"):
            config = params.configuration.task_push_notification_config
            config.task_id = id
            await change(self._set_push, context, config)
        return found, commands

    async def on_message_send(self, params: Any, context: Any) -> Any:
        """Carry out a message, and return the task when it rests, or at once."""
        with refusing():
            found, commands = await self._begin(params, context)
            configuration, view = params.configuration, found.view
            async with aclosing(found.session.stream(found.rest.seq, *commands)) as items:
                async for item in items:
                    for _ in view.take(item):
                        pass
                    rest = item if isinstance(item, Rest) else _at_work(found.rest)
                    found = found._replace(rest=rest)
                    if configuration.return_immediately:
                        break
            return found.task(_history(configuration))

    async def on_message_send_stream(self, params: Any, context: Any) -> AsyncGenerator[Any]:
        """Carry out a message, and yield the task and its updates."""
        with refusing():
            found, commands = await self._begin(params, context)
            if not commands and found.state in shapes.TERMINAL:
                yield found.task(_history(params.configuration))
                return
            view, shown = found.view, False
            async with aclosing(found.session.stream(found.rest.seq, *commands)) as items:
                async for item in items:  # the first one comes when the commands were accepted
                    updates = list(view.end(item) if isinstance(item, Rest) else view.take(item))
                    if not shown:
                        shown = True
                        begun = found._replace(rest=_at_work(found.rest))
                        yield begun.task(_history(params.configuration))
                    for update in updates:
                        yield _stream_event(update)

    async def on_subscribe_to_task(self, params: Any, context: Any) -> AsyncGenerator[Any]:
        """Yield the task and its updates until it is over."""
        with refusing():
            found = await self._look(context, params.id)
            if found.state in shapes.TERMINAL:
                raise refusal("UnsupportedOperation", f"The task is over ({found.state}).")
            yield found.task()
            seq, session, rest = found.rest.seq, found.session, found.rest
            while True:
                async with aclosing(session.stream(seq)) as items:
                    async for item in items:
                        for update in found.view.take(item):
                            yield _stream_event(update)
                        if isinstance(item, Rest):
                            rest = item
                if rest.seq > seq or rest.reason != found.rest.reason:
                    for update in found.view.end(rest):
                        yield _stream_event(update)
                if rest.reason == "ended" or found.view.status(rest)["state"] in shapes.TERMINAL:
                    return
                seq = rest.seq
                tenant = context.state["caller"].tenant
                if not await _changed(self._service, tenant, params.id, seq):
                    return

    async def on_cancel_task(self, params: Any, context: Any) -> Any:
        """Interrupt a task."""
        with refusing():
            found = await self._look(context, params.id)
            if found.state in shapes.TERMINAL:
                raise refusal("TaskNotCancelable", f"The task is over ({found.state}).")
            await self._service.change(found.session.execute, cmd.Interrupt())
            return (await self._look(context, params.id)).task()

    # --- reading ---

    async def on_get_task(self, params: Any, context: Any) -> Any:
        with refusing():
            _check_history(params)
            return (await self._look(context, params.id)).task(_history(params))

    async def on_list_tasks(self, params: Any, context: Any) -> Any:
        """List the agent's tasks, the last changed first."""
        with refusing():
            _check_history(params)
            page_size = params.page_size if params.HasField("page_size") else 50
            if not 0 < page_size <= _MAX_PAGE:
                raise errors.ConfigurationError(f"pageSize takes 1 to {_MAX_PAGE}.")
            wanted = json_of(params)
            found, total, token = await self._service.read(self._listed, context, wanted, page_size)
            shown = [
                one.task(_history(params) or 0, bool(params.include_artifacts)) for one in found
            ]
            listed = message_of("ListTasksResponse", {"pageSize": page_size, "totalSize": total})
            listed.tasks.extend(shown)
            listed.next_page_token = token
            return listed

    def _listed(
        self, context: Any, wanted: shapes.Json, page_size: int
    ) -> tuple[list[_Found], int, str]:
        """Return a page of tasks, the number of all, and the token of the next page."""
        door, tags, cursor = self._door(context), [self._tag], None
        if wanted.get("contextId"):
            tags.append(f"context={wanted['contextId']}")
        items: list[Item] = []
        while True:
            page = door.list(tags, cursor, 1000)
            items += page.items
            if (cursor := page.next) is None:
                break
        state, since = wanted.get("status", ""), wanted.get("statusTimestampAfter", "")
        if since:
            moment = datetime.fromisoformat(since)
            items = [one for one in items if one.updated >= moment]
        if state:
            statuses = shapes.STATUSES.get(state, ())
            items = [
                one
                for one in items
                if one.status in statuses and self._find(context, one.id).state == state
            ]
        items.sort(key=_place, reverse=True)
        total, token = len(items), wanted.get("pageToken", "")
        if token:
            items = [one for one in items if _place(one) < token]
        shown = [self._find(context, one.id) for one in items[:page_size]]
        return shown, total, _place(items[page_size - 1]) if len(items) > page_size else ""

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        raise refusal("UnsupportedOperation", "There is no other card than the public one.")

    # --- push notifications ---

    def _set_push(self, context: Any, config: Any) -> Any:
        """Keep a configuration as a webhook of the task's conversation."""
        self._find(context, config.task_id)
        config.id = config.id or config.task_id
        data = json_of(config)
        with suppress(errors.NotFound):
            self._remove_push(context, config.task_id, config.id)
        headers = {"content-type": "application/a2a+json"}
        if config.token:
            headers["x-a2a-notification-token"] = config.token
        if config.authentication.scheme:
            given = config.authentication
            headers["authorization"] = f"{given.scheme} {given.credentials}".strip()
        for name, value in headers.items():
            if not value.isascii() or not value.isprintable() or len(value) > 4000:
                raise errors.ConfigurationError(f"{name}: takes printable ASCII characters.")
        version = context.state["headers"].get("a2a-version", "0.3")
        style = WebhookStyle(FORMATS["0.3" if version < "1" else "1.0"], headers, data)
        request = WebhookRequest(url=config.url, events=_PUSHED, conversation_id=config.task_id)
        self._host.webhooks.create(context.state["caller"].tenant, request, style=style)
        return config

    def _pushes(self, context: Any, task_id: str) -> list[tuple[str, shapes.Json]]:
        """Return the webhooks of a task: their ids and their configurations."""
        self._find(context, task_id)
        found = self._host.webhooks.styled(context.state["caller"].tenant, task_id)
        return [(id, style.about) for id, style in found if style.format in FORMATS.values()]

    def _remove_push(self, context: Any, task_id: str, id: str) -> None:
        for webhook, about in self._pushes(context, task_id):
            if about["id"] == id:
                self._host.webhooks.delete(context.state["caller"].tenant, webhook)

    async def on_create_task_push_notification_config(self, params: Any, context: Any) -> Any:
        with refusing():
            return await self._service.change(self._set_push, context, params)

    async def on_get_task_push_notification_config(self, params: Any, context: Any) -> Any:
        with refusing():
            found = await self._service.read(self._pushes, context, params.task_id)
            for _, about in found:
                if about["id"] == params.id:
                    return message_of("TaskPushNotificationConfig", about)
            raise refusal("TaskNotFound", f"There is no configuration {params.id[:100]!r}.")

    async def on_list_task_push_notification_configs(self, params: Any, context: Any) -> Any:
        with refusing():
            found = await self._service.read(self._pushes, context, params.task_id)
            configs = [about for _, about in found]
            return message_of("ListTaskPushNotificationConfigsResponse", {"configs": configs})

    async def on_delete_task_push_notification_config(self, params: Any, context: Any) -> None:
        with refusing():
            await self._service.change(self._remove_push, context, params.task_id, params.id)


def found_at(events: Sequence[ev.AnyEvent], info: Info, session: HostedSession) -> _Found:
    """Return a task as its events say."""
    context_id = next((tag[8:] for tag in info.tags if tag.startswith("context=")), info.id)
    files = f"/api/workspaces/{quote(info.workspace)}/files/" if info.workspace else ""
    view = shapes.TaskView(info.id, context_id, files)
    for event in events:
        if event.seq > info.parent_seq:
            for _ in view.take(event):
                pass
    return _Found(session, view, rest_of(fold(events), info.last_seq), info.workspace)


def _at_work(rest: Rest) -> Rest:
    return msgspec.structs.replace(rest, reason="ended", pending=(), output=None)


async def _changed(service: Service, tenant: str, id: str, seq: int) -> bool:
    """Wait for an event after `seq`. Return False if none can come any more."""
    feed = await service.change(service.host.feed, tenant, id)
    with feed.subscribe(asyncio.get_running_loop()) as reader:
        while True:
            batch = await reader.next(seq, PING_SECONDS)
            if batch.frames or batch.ended:
                return bool(batch.frames)


def _place(item: Item) -> str:
    """Return a task's place in listings: by its last change."""
    return f"{item.updated.astimezone(UTC).isoformat()} {item.id}"


def _check_history(params: Any) -> None:
    from a2a.utils.task import validate_history_length

    validate_history_length(params)


def _history(params: Any) -> int | None:
    return params.history_length if params.HasField("history_length") else None


def notification(
    service: Service, version: str, tenant: str, id: str, event: ev.AnyEvent
) -> bytes | None:
    """Return the notification about an event, or None for an event that changes no state."""
    info = service.host.get(tenant, id)
    session = HostedSession(service.host, tenant, id)
    events = service.host.state(tenant, id).events[: event.seq]
    found = found_at(events, msgspec.structs.replace(info, last_seq=event.seq), session)
    asks = isinstance(event, ev.DecisionMade) and event.question is None
    if asks or found.state == shapes.WORKING:
        return None
    task = found.task(0)
    if version == "0.3":
        from a2a.compat.v0_3 import conversions

        compat: Any = conversions.to_compat_task(task)
        return compat.model_dump_json(by_alias=True, exclude_none=True).encode()
    return json.dumps({"task": json_of(task)}).encode()
