"""The tasks of A2A over the journal: the request handler that `a2a-sdk` calls.

A task is a conversation, and its journal is the task store. Tasks of one `contextId` share a tag. A
new task in a context continues from the last finished one: it is a fork, so the agent remembers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import (
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import errors
from holdfast import events as ev
from holdfast.conversation.rests import Rest, TurnCommand
from holdfast.serve import a2a_shapes as shapes
from holdfast.serve.a2a_protobuf import check_required, json_of, message_of, plain_message
from holdfast.serve.a2a_push import Pushes
from holdfast.serve.a2a_views import TaskAt, TaskViews, new_task
from holdfast.serve.door import conversation_id
from holdfast.server.hosted import (
    PING_SECONDS,
    HostedDoor,
    TurnReader,
    undisturbed,
)
from holdfast.server.openai import Published
from holdfast.server.service import Service
from holdfast.server.shapes import ForkRequest, Item

_log = logging.getLogger("holdfast.serve")

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_BEGIN_EVENTS = 10  # of a task, among which its first message is
_MAX_PAGE = 100  # the protocol's limit

# --- the SDK's types ---


def _stream_event(update: shapes.Json) -> Any:
    response = plain_message("StreamResponse", update)
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


class _StartedTask(NamedTuple):
    """A task whose turn has begun, as it was before."""

    task: TaskAt
    reader: TurnReader

    async def leave(self) -> None:
        self.reader.close()


class Tasks:
    """The SDK's request handler (`a2a.server.request_handlers.RequestHandler`) for one agent. Its
    only state is a cache of journals."""

    def __init__(self, service: Service, agent: Published, views: TaskViews) -> None:
        self._service = service
        self._views = views
        self._pushes = Pushes(service.host, self._find)
        self._host = service.host
        self._agent = agent
        self._tag = f"a2a={agent.name}"

    # --- finding ---

    def _door(self, context: Any) -> HostedDoor:
        return HostedDoor(self._host, context.state["caller"].tenant, self._service.change)

    def _find(self, context: Any, id: str, tags: tuple[str, ...] = ()) -> TaskAt:
        """Return a task; a new one gets its tags with its first message. Raises
        `ConversationNotFound`."""
        tenant = context.state["caller"].tenant
        item = self._host.family.item(tenant, id)
        if self._tag not in (tags or item.tags):
            raise errors.ConversationNotFound(f"There is no task {id[:200]!r}.", "task", id)
        item = replace(item, tags=tags or item.tags)
        session = self._door(context).find(id)
        return self._views.at(tenant, item, session, session.settled())

    async def _look(self, context: Any, id: str) -> TaskAt:
        return await self._service.read(self._find, context, id)

    # --- sending ---

    def _start(
        self, context: Any, params: Any, loop: asyncio.AbstractEventLoop, streams: bool
    ) -> _StartedTask:
        """Find or make the task of a message, and begin its turn. A request that is repeated under
        its `Idempotency-Key` makes no second task."""
        message, tenant = json_of(params.message), context.state["caller"].tenant
        id, key = message.get("taskId", ""), context.state["headers"].get("idempotency-key")
        with nullcontext() if id or not key else self._host.chats.turn(tenant, f"a2a {key}"):
            is_new, tags = True, ()
            if id:
                task = self._find(context, id)
            else:
                task, is_new, tags = self._new(context, message, key)
                id = task.session.id
            commands = self._commands(context, task, message) if is_new else ()
            if params.configuration.HasField("task_push_notification_config"):
                config = params.configuration.task_push_notification_config
                config.task_id = id
                if tags:  # only a task has configurations
                    task.session.execute(cmd.Label(add=tags))
                self._pushes.set(context, config)
            elif tags:
                commands = [cmd.Label(add=tags), *commands]
            follow = task.session.follow
            return _StartedTask(task, follow(loop, task.rest.seq, *commands, deltas=streams))

    def _new(
        self, context: Any, message: shapes.Json, key: str | None
    ) -> tuple[TaskAt, bool, tuple[str, ...]]:
        """Make the conversation of a new task. Return the task; False if the message was sent
        before; and the tags that it does not have yet."""
        tenant, context_id = context.state["caller"].tenant, message.get("contextId", "")
        id = conversation_id("a2a", self._agent.name, key or os.urandom(16).hex())
        tags = (self._tag, f"context={context_id or id}")
        cmd.Label(add=tags)  # checks the context's id
        door = self._door(context)
        if key:
            with suppress(errors.ConversationNotFound):
                session, item = door.find(id), self._host.family.item(tenant, id)
                begin = session.events(item.parent_seq, item.parent_seq + _BEGIN_EVENTS)
                is_new = not any(isinstance(event, ev.MessageAdded) for event in begin)
                tags = () if self._tag in item.tags else tags  # or the server died
                return self._find(context, id, tags), is_new, tags
        finished = self._host.list(tenant, "finished", None, 1, tags).items if context_id else []
        if not finished:
            session, conversation = door.create(self._agent, id)
            return new_task(session, tags, conversation.workspace), True, tags
        fork = ForkRequest(**self._agent.fields, id=id, title="", client_tools=True)
        self._host.chats.with_room(tenant, lambda: self._host.fork(tenant, finished[0].id, fork))
        return self._find(context, id), True, ()

    def _send(self, context: Any, task: TaskAt, message: shapes.Json) -> cmd.Send:
        tenant, id = context.state["caller"].tenant, message.get("messageId", "")

        def keep(name: str, data: bytes) -> str:
            """Write a file into the workspace, and return its path."""
            plain = re.sub(r"[^\w.-]+", "_", name).strip("._")[:100] or "file"
            path = f"received/{sha256(data).hexdigest()[:8]}-{plain}"
            with self._host.workspace(tenant, task.workspace) as runtime:
                runtime.write_file(path, data.decode(errors="surrogateescape"))
            return path

        content = shapes.content_of(message.get("parts", []), keep if task.workspace else None)
        return cmd.Send(content, id if NAME.fullmatch(id) else "")

    def _commands(self, context: Any, task: TaskAt, message: shapes.Json) -> Sequence[TurnCommand]:
        """Return the commands for a message to a task."""
        if message.get("taskId") and task.state in shapes.TERMINAL:
            raise refusal(
                "UnsupportedOperation",
                f"The task is over ({task.state}). Send the message with its contextId alone.",
            )
        context_id = message.get("contextId")
        if context_id not in (None, "", task.view.context_id):
            raise errors.ConfigurationError("contextId is not that of the task.")
        parts = message.get("parts", [])
        if task.rest.pending:
            return shapes.decisions_of(parts, task.rest.pending)
        return [self._send(context, task, message)]

    @asynccontextmanager
    async def _start_turn(
        self, params: Any, context: Any, streams: bool
    ) -> AsyncGenerator[_StartedTask]:
        """Carry out a message; yield its task."""
        check_required(params)
        _check_history(params.configuration)
        self._service.check_open()
        loop = asyncio.get_running_loop()
        starting = self._service.change(self._start, context, params, loop, streams)
        started = await undisturbed(starting, _StartedTask.leave)
        try:
            yield started
        finally:
            started.reader.close()

    async def on_message_send(self, params: Any, context: Any) -> Any:
        """Carry out a message, and return the task when it rests, or at once. What was no work for
        the agent makes no task."""
        with refusing():
            async with (
                self._start_turn(params, context, False) as (task, reader),
                aclosing(reader.items()) as items,
            ):
                async for item in items:
                    for _ in task.view.take(item):
                        pass
                    if isinstance(item, Rest):
                        task = task._replace(rest=item)
                        if not params.message.task_id and (reply := task.view.reply(item)):
                            return message_of("Message", reply)
                    elif params.configuration.return_immediately:
                        task = task.at_work()
                        break
            return task.task(_history(params.configuration))

    async def on_message_send_stream(self, params: Any, context: Any) -> AsyncGenerator[Any]:
        """Carry out a message, and yield the task and its updates."""
        with refusing():
            async with self._start_turn(params, context, True) as (task, reader):
                if task.rest.seq == reader.fold.last_seq and task.state in shapes.TERMINAL:
                    yield task.task(_history(params.configuration))
                    return
                view, is_shown = task.view, False
                async with aclosing(reader.items()) as items:
                    async for item in items:
                        rest = isinstance(item, Rest)
                        updates = list(view.end(item) if rest else view.take(item))
                        if not is_shown:  # with the message in its history
                            is_shown = True
                            yield task.at_work().task(_history(params.configuration))
                        for update in updates:
                            yield _stream_event(update)

    async def on_subscribe_to_task(self, params: Any, context: Any) -> AsyncGenerator[Any]:
        """Yield the task and its updates until it is over."""
        with refusing():
            task = await self._look(context, params.id)
            if task.state in shapes.TERMINAL:
                raise refusal("UnsupportedOperation", f"The task is over ({task.state}).")
            yield task.task()
            seq, session, rest = task.rest.seq, task.session, task.rest
            while True:
                async with aclosing(session.stream(seq)) as items:
                    async for item in items:
                        for update in task.view.take(item):
                            yield _stream_event(update)
                        if isinstance(item, Rest):
                            rest = item
                if rest.seq > seq or rest.reason != task.rest.reason:
                    for update in task.view.end(rest):
                        yield _stream_event(update)
                if rest.reason == "ended" or task.view.status(rest)["state"] in shapes.TERMINAL:
                    return
                seq = rest.seq
                tenant = context.state["caller"].tenant
                if not await _wait_for_event(self._service, tenant, params.id, seq):
                    return

    async def on_cancel_task(self, params: Any, context: Any) -> Any:
        """Interrupt a task."""
        with refusing():
            task = await self._look(context, params.id)
            if task.state in shapes.TERMINAL:
                raise refusal("TaskNotCancelable", f"The task is over ({task.state}).")
            await self._service.change(task.session.execute, cmd.Interrupt())
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
            filters = json_of(params)
            page, total, token = await self._service.read(
                self._list_tasks, context, filters, page_size
            )
            messages = [
                one.task(_history(params) or 0, bool(params.include_artifacts)) for one in page
            ]
            listed = message_of("ListTasksResponse", {"pageSize": page_size, "totalSize": total})
            listed.tasks.extend(messages)
            listed.next_page_token = token
            return listed

    def _list_tasks(
        self, context: Any, filters: shapes.Json, page_size: int
    ) -> tuple[list[TaskAt], int, str]:
        """Return a page of tasks, the number of all, and the token of the next page."""
        door, tags, cursor = self._door(context), [self._tag], None
        if filters.get("contextId"):
            tags.append(f"context={filters['contextId']}")
        items: list[Item] = []
        while True:
            page = door.list(tags, cursor, 1000)
            items += page.items
            if (cursor := page.next) is None:
                break
        state, since = filters.get("status", ""), filters.get("statusTimestampAfter", "")
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
        total, token = len(items), filters.get("pageToken", "")
        if token:
            items = [one for one in items if _place(one) < token]
        tasks = [self._find(context, one.id) for one in items[:page_size]]
        return tasks, total, _place(items[page_size - 1]) if len(items) > page_size else ""

    async def on_get_extended_agent_card(self, params: Any, context: Any) -> Any:
        raise refusal("UnsupportedOperation", "There is no other card than the public one.")

    # --- push notifications ---

    async def on_create_task_push_notification_config(self, params: Any, context: Any) -> Any:
        with refusing():
            return await self._service.change(self._pushes.set, context, params)

    async def on_get_task_push_notification_config(self, params: Any, context: Any) -> Any:
        with refusing():
            config = await self._service.read(self._pushes.get, context, params.task_id, params.id)
            return message_of("TaskPushNotificationConfig", config)

    async def on_list_task_push_notification_configs(self, params: Any, context: Any) -> Any:
        with refusing():
            styles = await self._service.read(self._pushes.list, context, params.task_id)
            configs = [about for _, about in styles]
            return message_of("ListTaskPushNotificationConfigsResponse", {"configs": configs})

    async def on_delete_task_push_notification_config(self, params: Any, context: Any) -> None:
        with refusing():
            await self._service.change(self._pushes.remove, context, params.task_id, params.id)


async def _wait_for_event(service: Service, tenant: str, id: str, seq: int) -> bool:
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
