"""The AG-UI protocol: `POST /agui/{agent}` runs an agent for a web front end, and streams the
run as events.

| journal | events |
|---|---|
| an answer's text, reasoning, calls | `TEXT_MESSAGE_...`, `REASONING_...`, `TOOL_CALL_...` |
| a call's result | `TOOL_CALL_RESULT` |
| the plan | `/plan` of the state |
| an approval or a question | the outcome `interrupt`; an entry of `resume` answers it |
| a call that the front end runs | the outcome `success` with the call's id |

A thread of an agent is one conversation. A user's message is recognised by its id, which is the id
of its event. So a repeated request sends nothing twice, and continues a run that was cut off.
"""

import asyncio
import threading
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextContent,
    ToolResult,
    text_of,
)
from holdfast.conversation.fold import Fold
from holdfast.conversation.rests import (
    ApprovalRequest,
    PendingItem,
    QuestionRequest,
    TurnCommand,
    result_commands,
)
from holdfast.conversation.status import ConversationStatus
from holdfast.conversation.turns import Silence
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.serve.agui_events import AguiEvents, Json, interrupt_id, thread
from holdfast.serve.door import conversation_id
from holdfast.server.answers import refusal
from holdfast.server.hosted import AttendedTurn, HostedDoor, HostedSession, undisturbed
from holdfast.server.openai import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    ClientToolCall,
    Function,
    Published,
    ToolOffer,
    history_events,
    own_id,
    parse_request,
    wire_id,
)
from holdfast.server.routes import Routes, RouteTable
from holdfast.server.service import Service

RUNNER = "agui"  # the runner's name in results of a front end's tools

_RECENT = 200  # events among which a repeated message is recognised, at least
_MOST_KNOWN = 128  # conversations whose messages are kept
_MAX_ID = 200  # characters of a client's id
# A repeated message has a run go on from here.
_BROKEN_OFF = (ConversationStatus.PAUSED, ConversationStatus.ERROR, ConversationStatus.STUCK)


class AguiFunction(msgspec.Struct):
    """The function of a call."""

    name: str
    arguments: str = ""


class AguiCall(msgspec.Struct):
    """A call of an assistant's message."""

    id: str
    function: AguiFunction


class AguiSource(msgspec.Struct, rename="camel"):
    """The place of a picture or a file: its bytes in Base64 (`data`), or an address (`url`)."""

    type: str
    value: str
    mime_type: str = ""


class AguiPart(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str = ""
    source: AguiSource | None = None


class AguiMessage(msgspec.Struct, rename="camel"):
    """A message of the thread, as the front end knows it."""

    id: str
    role: str
    content: str | list[AguiPart] | Json | None = None
    tool_calls: list[AguiCall] | None = None
    tool_call_id: str = ""
    error: str | None = None


class AguiTool(msgspec.Struct):
    """A tool that the front end runs."""

    name: str
    description: str = ""
    parameters: Json | None = None


class AguiContext(msgspec.Struct):
    """A piece of information about the user or the page, for the agent."""

    description: str
    value: str


class ApprovalPayload(msgspec.Struct):
    """The answer to an approval: see the interrupt's schema."""

    approved: bool
    arguments: Json | None = None
    reason: str = ""


class ResumeEntry(msgspec.Struct, rename="camel"):
    """The answer to an interrupt of an earlier run."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(msgspec.Struct, rename="camel"):
    """The fields of a request that the server reads."""

    thread_id: str
    run_id: str
    messages: list[AguiMessage]
    tools: list[AguiTool] | None = None
    context: list[AguiContext] | None = None
    state: Any = None
    resume: list[ResumeEntry] | None = None


class _AguiTurn(NamedTuple):
    """The turn of a run, the fold before it, and the messages of the thread if the front end has
    lost them."""

    turn: AttendedTurn
    fold: Fold
    snapshot: list[Json] | None

    async def leave(self) -> None:
        await self.turn.leave()


class _KnownMessages:
    """The ids of the messages in the conversations that were used last. Thread-safe.

    A request reads the events from the last known one on. If another event is in that place, the id
    belongs to a new conversation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By tenant and id, that of the oldest use first: a seq, the id of its event, and the ids.
        self._ids_by_conversation: dict[tuple[str, str], tuple[int, str, frozenset[str]]] = {}

    def ids(self, tenant: str, session: HostedSession, last: int) -> frozenset[str]:
        """Return the ids of the messages up to the event `last`, at least the recent ones."""
        key = tenant, session.id
        with self._lock:
            seq, id, ids = self._ids_by_conversation.pop(key, (0, "", frozenset[str]()))
        events = session.events(seq - 1, last) if 0 < seq <= last else []
        if not events or events[0].id != id:
            ids, events = frozenset[str](), session.events(max(0, last - _RECENT), last)
        ids |= {event.id for event in events if isinstance(event, ev.MessageAdded)}
        with self._lock:
            if len(self._ids_by_conversation) >= _MOST_KNOWN:
                del self._ids_by_conversation[next(iter(self._ids_by_conversation))]
            if events:
                self._ids_by_conversation[key] = last, events[-1].id, ids
        return ids


class _AguiRun:
    """One request."""

    def __init__(
        self,
        service: Service,
        tenant: str,
        agent: Published,
        body: RunAgentInput,
        known_messages: _KnownMessages,
    ) -> None:
        self._service = service
        self._tenant = tenant
        self._agent = agent
        self._body = body
        self._known_messages = known_messages
        self._door = HostedDoor(service.host, tenant, service.change)

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the run's server-sent events. Errors are events, too. When its last front end has
        gone, the run is interrupted."""
        body = self._body
        about = {"threadId": body.thread_id, "runId": body.run_id}
        yield _encode({"type": "RUN_STARTED", **about, "protocolVersion": "1.0"})
        try:
            beginning = self._service.change(self._begin, asyncio.get_running_loop())
            turn = await undisturbed(beginning, _AguiTurn.leave)
            try:
                run = AguiEvents(body.thread_id, body.run_id, body.state, turn.fold)
                if started := run.start(turn.snapshot):
                    yield b"".join(map(_encode, started))
                async for items in turn.turn.batches():  # one write for each
                    frames = [_encode(event) for item in items for event in run.feed(item)]
                    if frames or any(isinstance(item, Silence) for item in items):
                        yield b"".join(frames) or b": ping\n\n"
            finally:
                await asyncio.shield(asyncio.ensure_future(turn.leave()))
        except HoldfastError as error:
            code = type(error).__name__
            yield _encode({"type": "RUN_ERROR", "message": str(error), "code": code})

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _AguiTurn:
        """Find or make the conversation, and begin the turn. Blocks."""
        body, host, tenant = self._body, self._service.host, self._tenant
        for id in (body.thread_id, body.run_id, *(one.id for one in body.messages)):
            if not 0 < len(id) <= _MAX_ID:
                raise ConfigurationError(f"An id takes 1 to {_MAX_ID} characters.")
        id = conversation_id("agui", self._agent.name, body.thread_id)
        turns = [at for at, one in enumerate(body.messages) if one.role == "assistant"]
        past = body.messages[: turns[-1] + 1] if turns else []
        new = [one for one in body.messages[len(past) :] if one.role == "user"]
        messages = [(one.id, content_of(one.content)) for one in new]
        chat = parse_request(_chat(self._agent.name, body), self._agent)
        session = self._door.begin(
            self._agent, id, tools=chat.offers, instructions=chat.instructions
        )
        folded = session.settled()
        if not folded.last_seq and past:  # only a new conversation reads the thread
            chat = parse_request(_chat(self._agent.name, body, past), self._agent)
            host.chats.append(tenant, id, history_events(chat, self._agent.name))
            folded = session.fold()
        ids = self._known_messages.ids(tenant, session, folded.last_seq)
        commands = _commands(body, folded, session.rest(folded).pending)
        commands += [cmd.Send(content, id) for id, content in messages if id not in ids]
        snapshot = None
        if folded.steps and (not turns or not commands):  # it is not at the end of the thread
            snapshot = thread(session.events())
            snapshot += [
                {"id": one.id, "role": "user", "content": one.content}
                for one in new
                if one.id not in ids
            ]
        if not commands and new and folded.status in _BROKEN_OFF:
            commands.append(cmd.Resume())  # the request is repeated: its answer is owed
        return _AguiTurn(session.attend(loop, folded.last_seq, *commands), folded, snapshot)


def _commands(
    body: RunAgentInput, folded: Fold, pending: Sequence[PendingItem]
) -> list[TurnCommand]:
    """Return the commands that answer interrupts and bring the results of the front end's tools.
    Raises `ConfigurationError` for an interrupt that does not wait."""
    waiting = {interrupt_id(item): item for item in pending}
    commands: list[TurnCommand] = []
    for entry in body.resume or []:
        item = waiting.pop(entry.interrupt_id, None)
        match item:
            case ApprovalRequest():
                commands.append(_decision(item, entry))
            case QuestionRequest() if entry.status == "cancelled":
                commands.append(item.decline())
            case QuestionRequest():
                commands.append(item.answer_loosely(entry.payload))
            case _:
                raise ConfigurationError(
                    f"resume: no interrupt {entry.interrupt_id[:100]!r} waits for an answer."
                )
    results = {
        own_id(one.tool_call_id): ToolResult.failure(one.error)
        if one.error
        else ToolResult(content_of(one.content))
        for one in body.messages
        if one.role == "tool" and wire_id(own_id(one.tool_call_id)) in waiting
    }
    moves_on = results or any(one.role == "user" for one in body.messages[-1:])
    return [*commands, *(result_commands(folded, results, RUNNER) if moves_on else [])]


def _decision(item: ApprovalRequest, entry: ResumeEntry) -> TurnCommand:
    if entry.status == "cancelled":
        return item.reject()
    try:
        payload = msgspec.convert(entry.payload, bool | ApprovalPayload)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"resume: the payload for {entry.interrupt_id[:100]!r} takes true, false, or an object"
            f" with `approved`: {error}."
        ) from None
    if isinstance(payload, bool):
        payload = ApprovalPayload(payload)
    return item.approve(payload.arguments) if payload.approved else item.reject(payload.reason)


def content_of(content: object) -> tuple[Content, ...]:
    """Return a message's content as blocks. Raises `ConfigurationError`."""
    if isinstance(content, str):
        return (TextContent(content),)
    parts = cast("list[AguiPart]", content) if isinstance(content, list) else []
    if not parts:
        raise ConfigurationError("messages: a message has no content.")
    return tuple(_block(part) for part in parts)


def _block(part: AguiPart) -> Content:
    match part:
        case AguiPart(type="text", text=text):
            return TextContent(text)
        case AguiPart(
            type="image" | "audio" | "video" | "document" as kind, source=AguiSource() as source
        ) if source.type == "data":
            return _media(kind, source)
        case AguiPart(
            type="image" | "audio" | "video" | "document", source=AguiSource() as source
        ) if source.type == "url":
            return FileContent(url=source.value, mime_type=source.mime_type)
        case _:
            raise ConfigurationError(
                "messages: content takes a text, or parts of the types text, image, audio, video"
                " and document with a source of the type data or url."
            )


def _media(kind: str, source: AguiSource) -> Content:
    mime_type = source.mime_type
    try:
        data = b64decode(source.value, validate=True)
    except ValueError:
        raise ConfigurationError(f"messages: an {kind} is not Base64.") from None
    if kind == "image":
        return ImageContent(data, mime_type)
    if kind == "audio":
        return AudioContent(data, mime_type)
    return FileContent(data, mime_type)


def _chat(model: str, body: RunAgentInput, past: Sequence[AguiMessage] = ()) -> ChatRequest:
    """Return the request in the form of Chat Completions, with its `past` messages alone."""
    texts = [str(one.content) for one in body.messages if one.role in ("system", "developer")]
    texts += [f"{one.description}: {one.value}" for one in body.context or []]
    messages = [ChatMessage("system", text) for text in texts]
    for one in past:
        if one.role in ("user", "tool"):
            text = text_of(content_of(one.content))
            messages.append(ChatMessage(one.role, text, tool_call_id=one.tool_call_id or None))
        elif one.role == "assistant":
            calls = [
                ClientToolCall(call.id, CalledFunction(call.function.name, call.function.arguments))
                for call in one.tool_calls or []
            ]
            text = one.content if isinstance(one.content, str) else ""
            messages.append(ChatMessage("assistant", text, calls or None))
    tools = [
        ToolOffer("function", Function(one.name, one.description, one.parameters))
        for one in body.tools or []
    ]
    return ChatRequest(model, [*messages, ChatMessage("user", "-")], tools=tools)


def _encode(event: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


routes = RouteTable("", "agui")


def add(adding: Routes, agents: Mapping[str, Published]) -> None:
    """Add the route of AG-UI."""
    adding.add(routes, agents=agents, messages=_KnownMessages())


@routes.post(
    "/agui/{agent}",
    "Run an agent for a front end",
    schema={"type": "string"},
    answer_media_type="text/event-stream",
    also=(404, 413, 422, 503),
    client=False,
    example={
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": "Hi"}],
    },
    takes=RunAgentInput,
)
async def run_agent(
    service: Service,
    agents: Mapping[str, Published],
    messages: _KnownMessages,
    request: Request,
    tenant: str,
    agent: str,
) -> Response:
    """A run of the AG-UI protocol, as server-sent events. If the client disconnects, the run is
    interrupted."""
    if (published := agents.get(agent)) is None:
        names = ", ".join(agents) or "none"
        return refusal(404, "NotFound", f"There is no agent {agent[:100]!r}. It has: {names}.")
    body = await service.json(request, RunAgentInput, largest=None)
    service.check_open()
    run = _AguiRun(service, tenant, published, body, messages)
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(run.events(), media_type="text/event-stream", headers=headers)
