"""Conversations for editors: an agent of the Agent Client Protocol (agentclientprotocol.com),
version 1."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

from acp import RequestError
from acp.interfaces import Client
from acp.schema import (
    AcceptElicitationResponse,
    AgentCapabilities,
    ClientCapabilities,
    ElicitationFormSessionMode,
    ElicitationSchema,
    ElicitationUrlSessionMode,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PermissionOption,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
)
from pydantic import ValidationError

from holdfast import __version__
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.confirmation import AboveRisk, ConfirmationPolicy, Verdict
from holdfast.agent.planning import APPROVAL
from holdfast.agent.risk import Risk
from holdfast.content import Content, ToolCall, text_of
from holdfast.errors import ConfigurationError, ConversationNotFound, HoldfastError, NotPending
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime
from holdfast.serve.acp_client import NOT_FOUND, ClientAccess, with_client_terminal
from holdfast.serve.acp_updates import SessionUpdates, content_of
from holdfast.serve.door import (
    ApprovalRequest,
    LocalDoor,
    LocalSession,
    QuestionRequest,
    Rest,
    TurnCommand,
)
from holdfast.store import Store
from holdfast.tools.question_forms import form_fields

P = ParamSpec("P")
T = TypeVar("T")

Mode = Literal["ask", "act", "plan"]

MODES = {
    "ask": ("Ask", "Calls that do more than read wait for your permission."),
    "act": ("Act", "Calls run without asking, unless the agent itself asks about them."),
    "plan": ("Plan first", "You approve a plan before anything is changed; then as with Ask."),
}
_TAG = "door=acp"
_ALWAYS = "the user allowed all calls of "  # the reason of such an approval; journals contain it
_PAGE = 50  # sessions of one listing
_CANCEL_SECONDS = 0.05  # between two interrupts of one cancellation
_log = logging.getLogger("holdfast.serve")


class SessionPlace(NamedTuple):
    """The agent of a session, the runtime in which it works, further options of its conversation,
    and whether commands may run in terminals of the client instead of the runtime's."""

    agent: Agent
    runtime: FolderRuntime
    options: dict[str, Any] = {}
    client_terminals: bool = False


# Returns the place of a session in a folder. The file tools use the text files, if there are any.
OpenPlace = Callable[[Path, TextFiles | None], SessionPlace]


class ModePolicy:
    """The confirmation policy of a session: that of its agent, and of its mode. Denials hold in all
    modes and whatever the user allowed."""

    needs_risk = True

    def __init__(self, agents: ConfirmationPolicy | None, mode: Mode) -> None:
        self._agents = agents
        self.mode = mode
        self.allowed: frozenset[str] = (
            frozenset()
        )  # replaced, as the conversation's thread reads it

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        verdict = Verdict("allow") if self._agents is None else self._agents.decide(call, risk)
        if verdict.decision == "allow" and self.mode != "act":
            verdict = AboveRisk("low").decide(call, risk)
        if verdict.decision == "ask" and call.name in self.allowed:
            return Verdict("allow", f"{_ALWAYS}{call.name}")
        return verdict


@dataclass(eq=False)
class _Session:
    """A session that is open here. `cancels` counts the cancellations; `requests` are those to the
    client that wait, by the call or question that they are about."""

    conversation: LocalSession
    place: SessionPlace
    agents: dict[str, Agent]  # by mode
    policy: ModePolicy
    updates: SessionUpdates
    cursor: int = 0
    own: str = ""  # the event id of the last prompt
    cancels: int = 0
    requests: dict[str, asyncio.Future[Any]] = field(default_factory=dict[str, asyncio.Future[Any]])
    later: asyncio.Task[None] | None = None  # asks about what waited when the session was loaded
    asking: asyncio.Event = field(default_factory=asyncio.Event)  # `later` asks, or has ended
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by a prompt
    turn: object = None  # the turn that runs now


def _answering(
    method: Callable[P, Awaitable[T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Answer errors of Holdfast with errors of the protocol."""

    @functools.wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except HoldfastError as error:
            code = -32603
            if isinstance(error, ConversationNotFound):
                code = NOT_FOUND
            elif isinstance(error, ConfigurationError):
                code = -32602
            raise RequestError(code, str(error), {"error": type(error).__name__}) from error

    return answer


class ACPAgent:
    """The agent's side of a connection. Its methods are those of the protocol, called by the
    library; `close` closes the conversations that are open."""

    def __init__(self, open_place: OpenPlace, store: Store, mode: Mode = "ask") -> None:
        self._open_place = open_place
        self._store = store
        self._mode: Mode = mode
        self._door: LocalDoor | None = None
        self._sessions: dict[str, _Session] = {}
        self._capabilities = ClientCapabilities()
        self._client: Client

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self._leave(session)

    # --- the connection ---

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        **_: Any,
    ) -> InitializeResponse:
        self._capabilities = client_capabilities or ClientCapabilities()
        return InitializeResponse(
            protocol_version=1,
            agent_info=Implementation(name="holdfast", title="Holdfast", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(
                    image=True, audio=True, embedded_context=True
                ),
                mcp_capabilities=McpCapabilities(http=True, sse=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
        )

    # --- sessions ---

    @_answering
    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        session = await self._open(secrets.token_hex(6), cwd, mcp_servers or (), self._mode, True)
        return NewSessionResponse(
            session_id=session.conversation.id, modes=_modes(session.policy.mode)
        )

    @_answering
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        session = await self._again(session_id, cwd, mcp_servers or ())
        history = session.conversation.conversation.get_history()
        for event in history:
            if event.seq <= session.cursor:
                await self._show(session, event, live=False)
        self._ask_later(session)
        return LoadSessionResponse(modes=_modes(session.policy.mode))

    @_answering
    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        session = await self._again(session_id, cwd, mcp_servers or ())
        self._ask_later(session)
        return ResumeSessionResponse(modes=_modes(session.policy.mode))

    @_answering
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        if not (cursor or "0").isdecimal():
            raise ConfigurationError(f"cursor: {cursor!r:.80} is not of a listing of this agent.")
        found = await asyncio.to_thread(self._store.list, tags=[_TAG])
        listed = [(one, place) for one in found if not one.spawned_by for place in [_cwd(one.tags)]]
        listed = [(one, place) for one, place in listed if cwd in (None, place)]
        begin = int(cursor or 0)
        page, more = listed[begin : begin + _PAGE], len(listed) > begin + _PAGE
        return ListSessionsResponse(
            sessions=[
                SessionInfo(
                    session_id=one.id,
                    cwd=place,
                    title=one.title or None,
                    updated_at=None if one.updated is None else one.updated.isoformat(),
                )
                for one, place in page
            ],
            next_cursor=str(begin + _PAGE) if more else None,
        )

    @_answering
    async def close_session(self, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        await self._cancel(session)
        async with session.lock:
            await asyncio.to_thread(self._leave, session)

    @_answering
    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        if mode_id not in MODES:
            raise ConfigurationError(f"modeId: there is no mode {mode_id!r:.80}.")
        before, session.policy.mode = session.policy.mode, cast("Mode", mode_id)
        conversation = session.conversation.conversation

        def change() -> None:
            labels = cmd.Label(add=(f"mode={mode_id}",), remove=(f"mode={before}",))
            if before != mode_id:
                session.conversation.execute(labels)
            if session.agents[before] is not session.agents[mode_id]:
                conversation.use(session.agents[mode_id])

        await asyncio.to_thread(change)

    def _find(self, id: str) -> _Session:
        if id not in self._sessions:
            text = f"The session {id[:200]!r} is not open. Load it first."
            raise ConversationNotFound(text, "conversation", id)
        return self._sessions[id]

    async def _again(self, id: str, cwd: str, servers: Sequence[Any]) -> _Session:
        """Open a stored session, anew if it is open already."""
        if (session := self._sessions.get(id)) is not None:
            async with session.lock:
                await asyncio.to_thread(self._leave, session)
        (summary, *_) = await asyncio.to_thread(self._store.list, [id]) or [None]
        if summary is None:
            raise ConversationNotFound(f"There is no session {id[:200]!r}.", "conversation", id)
        kept = next((tag[5:] for tag in summary.tags if tag.startswith("mode=")), "")
        mode = cast("Mode", kept) if kept in MODES else self._mode
        session = await self._open(id, cwd, servers, mode, False)
        session.cursor = session.conversation.state().last_seq
        return session

    async def _open(
        self, id: str, cwd: str, servers: Sequence[Any], mode: Mode, new: bool
    ) -> _Session:
        if not os.path.isabs(cwd):
            raise ConfigurationError(f"cwd takes an absolute path, not {cwd[:200]!r}.")
        loop = asyncio.get_running_loop()
        access = ClientAccess(self._client, loop, id, self._capabilities)
        session = await asyncio.to_thread(self._opened, access, cwd, servers, mode, new)
        self._sessions[id] = session

        def decided(event: ev.AnyEvent) -> None:
            """Withdraw the question to the client: somebody has answered elsewhere."""
            if isinstance(event, ev.DecisionMade) and event.decision in ("approve", "reject"):
                about = event.question_id or event.call_id
                loop.call_soon_threadsafe(_withdraw, session, about)

        session.conversation.conversation.register_event_callback(decided)
        return session

    def _opened(
        self, access: ClientAccess, cwd: str, servers: Sequence[Any], mode: Mode, new: bool
    ) -> _Session:
        place = self._open_place(Path(cwd), access.files)
        try:
            agent, policy = place.agent, ModePolicy(place.agent.confirm, mode)
            changes: dict[str, Any] = {"confirm": policy}
            tools = agent.own_tools()
            if access.capabilities.terminal and place.client_terminals:
                changes["tools"] = with_client_terminal(tools, access, cwd)
            if servers:
                given = {one.name: _server(one) for one in servers}
                if clash := sorted(given.keys() & agent.mcp_servers.keys()):
                    raise ConfigurationError(
                        f"mcpServers: the agent has a server {clash[0]!r} of its own."
                    )
                changes["mcp_servers"] = {**agent.mcp_servers, **given}
                changes.setdefault("tools", tools if agent.mcp_servers else agent.tools)
            agent = agent.replace(**changes)
            planning = agent.with_planning_first()
            agents = {"ask": agent, "act": agent, "plan": planning}
            if self._door is None:
                self._door = LocalDoor(agent, self._store)
            conversation = self._door.begin(
                access.session_id,
                agent=agents[mode],
                tags=[_TAG, f"mode={mode}", *_cwd_tags(cwd)] if new else (),
                runtime=place.runtime,
                **place.options,
            )
        except BaseException:
            place.runtime.close()
            raise
        if not new:
            policy.allowed = _allowed(conversation.conversation.get_history())
        updates = SessionUpdates(str(place.runtime.workdir), place.runtime.workdir_visible)
        return _Session(conversation, place, agents, policy, updates)

    def _leave(self, session: _Session) -> None:
        self._sessions.pop(session.conversation.id, None)
        for task in (session.later, *session.requests.values()):
            if task is not None:
                task.get_loop().call_soon_threadsafe(task.cancel)
        if self._door is not None:
            self._door.leave(session.conversation.id)
        session.place.runtime.close()

    # --- prompts ---

    @_answering
    async def prompt(self, prompt: Sequence[Any], session_id: str, **_: Any) -> PromptResponse:
        session, content = self._find(session_id), content_of(prompt)
        cancels = session.cancels
        if session.later is not None:  # this turn asks instead, or answers
            await session.asking.wait()
            session.later.cancel()
        async with session.lock:
            if session.cancels == cancels:
                rest = await self._drive(session, cancels, self._said(session, content))
                if session.cancels == cancels:
                    return PromptResponse(stop_reason=_stop_reason(rest, session))
            for one in session.conversation.pending():
                if isinstance(one, ApprovalRequest):
                    reject = one.reject("The user cancelled.")
                    with suppress(NotPending):  # decided elsewhere meanwhile, or interrupted
                        await asyncio.to_thread(session.conversation.execute, reject)
            return PromptResponse(stop_reason="cancelled")

    async def cancel(self, session_id: str, **_: Any) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            await self._cancel(session)

    async def _cancel(self, session: _Session) -> None:
        session.cancels += 1
        turn = session.turn
        for about in list(session.requests):
            _withdraw(session, about)
        # Again until it takes effect: the run of a turn may not have begun yet.
        while turn is not None and session.turn is turn:
            await asyncio.to_thread(session.conversation.execute, cmd.Interrupt())
            await asyncio.sleep(_CANCEL_SECONDS)

    def _said(self, session: _Session, content: tuple[Content, ...]) -> TurnCommand:
        """Return the command that a prompt is: a message, or the answer to a question that the
        client has no form for."""
        text = text_of(content)
        for one in session.conversation.pending():
            if isinstance(one, QuestionRequest) and text and not self._has_form(one):
                fields = list(form_fields(one.question.schema))
                return one.answer({fields[0]: text} if len(fields) == 1 else True)
        session.own = secrets.token_hex(8)
        return cmd.Send(content, session.own)

    async def _drive(self, session: _Session, cancels: int, *commands: TurnCommand) -> Rest:
        """Run, show what happens and ask the client, until nothing is left to do. The caller has
        the session's lock."""
        session.turn = object()
        try:
            return await self._driven(session, cancels, commands)
        finally:
            session.turn = None

    async def _driven(
        self, session: _Session, cancels: int, commands: tuple[TurnCommand, ...]
    ) -> Rest:
        said = commands
        while True:
            rest = None
            try:
                async for item in session.conversation.stream(session.cursor, *commands):
                    if isinstance(item, Rest):
                        rest = item
                        continue
                    await self._show(session, item)
                    if isinstance(item, ev.Event):
                        session.cursor = item.seq
            except NotPending:
                if commands is said:
                    raise
                commands = ()  # decided elsewhere meanwhile
                continue
            assert rest is not None
            session.asking.set()
            answers: list[TurnCommand] = []
            for one in rest.pending:
                if session.cancels != cancels:
                    return rest
                if isinstance(one, ApprovalRequest):
                    answer = await self._permission(session, one)
                elif isinstance(one, QuestionRequest):
                    answer = await self._question(session, one)
                else:
                    continue
                answers += [] if answer is None else [answer]
            commands = tuple(answers)
            if not commands and session.conversation.pending() == rest.pending:
                return rest

    def _ask_later(self, session: _Session) -> None:
        """Ask about what waits in a session that was opened again, after the present answer."""
        if not session.conversation.asks():
            return

        async def ask() -> None:
            async with session.lock:
                with suppress(HoldfastError, RequestError, ConnectionError):
                    await self._drive(session, session.cancels)

        session.later = asyncio.ensure_future(ask())
        session.later.add_done_callback(lambda _: session.asking.set())

    async def _show(self, session: _Session, item: Any, *, live: bool = True) -> None:
        id = session.conversation.id
        for update in session.updates.take(item, live=live, own=session.own):
            await self._client.session_update(session_id=id, update=update)

    # --- questions to the client ---

    async def _permission(self, session: _Session, one: ApprovalRequest) -> TurnCommand | None:
        call, policy = one.call, session.policy
        plan = one.reason in APPROVAL
        reason = f"{_ALWAYS}{call.name}"
        if call.name in policy.allowed and not plan:
            return one.approve(reason=reason)
        options = [
            PermissionOption(
                option_id="allow", name="Approve" if plan else "Allow", kind="allow_once"
            ),
            PermissionOption(
                option_id="always", name=f"Allow all {call.name}", kind="allow_always"
            ),
            PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
        ]
        if plan:
            del options[1]
        read = session.place.runtime.read_file
        shown = await asyncio.to_thread(session.updates.permission, one, read)
        request = self._client.request_permission(
            session_id=session.conversation.id, tool_call=shown, options=options
        )
        answer = await _withdrawable(session, one.key, request)
        if answer is None:
            return None
        if answer.outcome.outcome == "cancelled":
            session.cancels += 1
            return None
        match answer.outcome.option_id:
            case "allow":
                return one.approve()
            case "always" if not plan:
                policy.allowed |= {call.name}
                return one.approve(reason=reason)
            case _:
                return one.reject("The user rejected the call.")

    async def _question(self, session: _Session, one: QuestionRequest) -> TurnCommand | None:
        """Ask through a form of the client, or as a choice; else the next prompt is the answer."""
        id, question = session.conversation.id, one.question
        if (form := self._form(session, one)) is not None:
            text = f"{question.asker}: {question.message}" if question.asker else question.message
            answer = await _withdrawable(
                session, one.mark, self._client.create_elicitation(message=text, mode=form)
            )
            if answer is None:
                return None
            if isinstance(answer, AcceptElicitationResponse):
                return one.answer(answer.content or True)
            return one.decline("The user declined.")
        if not (choices := _choices(one)):
            return None
        options = [
            PermissionOption(option_id=str(number), name=name, kind=kind)
            for number, (name, kind, _) in enumerate(choices)
        ]
        shown = session.updates.question(one)
        request = self._client.request_permission(session_id=id, tool_call=shown, options=options)
        found = await _withdrawable(session, one.mark, request)
        if found is None:
            return None
        if found.outcome.outcome == "cancelled":
            session.cancels += 1
            return None
        values = {str(number): value for number, (*_, value) in enumerate(choices)}
        return one.answer(values.get(found.outcome.option_id))

    def _form(
        self, session: _Session, one: QuestionRequest
    ) -> ElicitationFormSessionMode | ElicitationUrlSessionMode | None:
        """Return the question as a form of the client, None if the client has none for it."""
        can, question, id = self._capabilities.elicitation, one.question, session.conversation.id
        try:
            if question.url:
                if can is None or can.url is None:
                    return None
                return ElicitationUrlSessionMode(
                    session_id=id,
                    tool_call_id=one.key,
                    elicitation_id=one.mark,
                    url=cast("Any", question.url),
                )
            if can is None or can.form is None:
                return None
            schema = ElicitationSchema.model_validate(question.schema or {"type": "object"})
            return ElicitationFormSessionMode(
                session_id=id, tool_call_id=one.key, requested_schema=schema
            )
        except ValidationError:
            return None

    def _has_form(self, one: QuestionRequest) -> bool:
        can = self._capabilities.elicitation
        offered = None if can is None else can.url if one.question.url else can.form
        return offered is not None or bool(_choices(one))


async def _withdrawable(session: _Session, about: str, request: Coroutine[Any, Any, T]) -> T | None:
    """Wait for the client's answer; None if the question is withdrawn. A question that the client
    has already, of a turn that was ended by the next prompt, is not asked twice."""
    if (waiting := session.requests.get(about)) is None:
        waiting = session.requests[about] = asyncio.ensure_future(request)
    else:
        request.close()
    await asyncio.wait([waiting])  # a cancelled wait leaves the question to the next turn
    if session.requests.get(about) is waiting:
        del session.requests[about]
    return None if waiting.cancelled() else waiting.result()


def _withdraw(session: _Session, about: str) -> None:
    if (request := session.requests.pop(about, None)) is not None:
        request.cancel()


def _stop_reason(rest: Rest, session: _Session) -> Any:
    """Return the protocol's reason for the end of a turn. Raises `RequestError` for a failure."""
    error = rest.error
    if rest.reason == "error" and error is not None:
        if error.error == "LimitExceeded":
            return "max_turn_requests"
        raise RequestError(-32603, error.message or error.error, {"error": error.error})
    if rest.reason in ("error", "stuck", "ended"):
        failure = session.conversation.conversation.failure
        text = f"The agent is {rest.reason}" if failure is None else str(failure)
        raise RequestError(-32603, text, {"error": rest.reason})
    return "cancelled" if rest.reason == "paused" else "end_turn"


def _modes(current: str) -> SessionModeState:
    modes = [SessionMode(id=id, name=name, description=text) for id, (name, text) in MODES.items()]
    return SessionModeState(current_mode_id=current, available_modes=modes)


def _allowed(history: Sequence[ev.AnyEvent]) -> frozenset[str]:
    """Return the tools of which the user allowed all calls."""
    decisions = [event for event in history if isinstance(event, ev.DecisionMade)]
    reasons = [event.reason for event in decisions if event.decision == "approve"]
    return frozenset(text.removeprefix(_ALWAYS) for text in reasons if text.startswith(_ALWAYS))


def _choices(one: QuestionRequest) -> list[tuple[str, Any, dict[str, Any] | bool]]:
    """Return the answers to choose from, for a client without forms: name, kind and values."""
    question = one.question
    fields = form_fields(question.schema)
    if not fields:
        return [("Yes", "allow_once", True), ("No", "reject_once", False)]
    name, field = next(iter(fields.items()))
    values = field.get("enum")
    if len(fields) > 1 or not isinstance(values, list):
        return []
    return [(str(value), "allow_once", {name: value}) for value in cast("list[Any]", values)]


def _cwd_tags(cwd: str) -> list[str]:
    """Return the tags that keep a session's folder; a tag has 100 characters at most."""
    text = quote(cwd)
    parts = [text[at : at + 80] for at in range(0, len(text), 80)]
    return [f"cwd{number}={part}" for number, part in enumerate(parts[:40])]


def _cwd(tags: Sequence[str]) -> str:
    parts = [tag.partition("=")[2] for tag in tags if tag.startswith("cwd")]
    return unquote("".join(parts)) or "/"


def _server(server: Any) -> dict[str, Any]:
    """Return an MCP server that the client hands over, as `Agent(mcp_servers=)` takes it."""
    if hasattr(server, "command"):
        env = {one.name: one.value for one in server.env}
        return {"command": server.command, "args": list(server.args), "env": env}
    if server.type not in ("http", "sse"):
        raise ConfigurationError(f"mcpServers: {server.type!r:.80} is not a transport here.")
    headers = {one.name: one.value for one in server.headers}
    return {"url": server.url, "type": server.type, "headers": headers}
