"""Conversations for editors: an agent of the Agent Client Protocol (agentclientprotocol.com),
version 1."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast
from urllib.parse import quote, unquote

from acp import RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    ClientCapabilities,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
)

from holdfast import __version__
from holdfast import events as ev
from holdfast.errors import ConfigurationError, ConversationNotFound, HoldfastError
from holdfast.serve.acp_client import NOT_FOUND, ClientAccess, with_client_terminal
from holdfast.serve.acp_modes import (
    MODES,
    Mode,
    ModePolicy,
    agents_by_mode,
    allowed_tools,
    modes_state,
)
from holdfast.serve.acp_session import EditorSession, OpenPlace
from holdfast.serve.acp_updates import content_of
from holdfast.serve.door import LocalDoor
from holdfast.store import Store

P = ParamSpec("P")
T = TypeVar("T")

_TAG = "door=acp"
_PAGE = 50  # sessions of one listing


def _with_protocol_errors(
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
        self._sessions: dict[str, EditorSession] = {}
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

    @_with_protocol_errors
    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        session = await self._open(secrets.token_hex(6), cwd, mcp_servers or (), self._mode, True)
        return NewSessionResponse(session_id=session.id, modes=modes_state(session.policy.mode))

    @_with_protocol_errors
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        session = await self._again(session_id, cwd, mcp_servers or ())
        await session.replay()
        session.ask_later()
        return LoadSessionResponse(modes=modes_state(session.policy.mode))

    @_with_protocol_errors
    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        session = await self._again(session_id, cwd, mcp_servers or ())
        session.ask_later()
        return ResumeSessionResponse(modes=modes_state(session.policy.mode))

    @_with_protocol_errors
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        if not (cursor or "0").isdecimal():
            raise ConfigurationError(f"cursor: {cursor!r:.80} is not of a listing of this agent.")
        summaries = await asyncio.to_thread(self._store.list, tags=[_TAG])
        listed = [(one, _cwd(one.tags)) for one in summaries if not one.spawned_by]
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

    @_with_protocol_errors
    async def close_session(self, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        await session.cancel()
        async with session.lock:
            await asyncio.to_thread(self._leave, session)

    @_with_protocol_errors
    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> None:
        session = self._find(session_id)
        if mode_id not in MODES:
            raise ConfigurationError(f"modeId: there is no mode {mode_id!r:.80}.")
        await session.set_mode(cast("Mode", mode_id))

    def _find(self, id: str) -> EditorSession:
        if id not in self._sessions:
            text = f"The session {id[:200]!r} is not open. Load it first."
            raise ConversationNotFound(text, "conversation", id)
        return self._sessions[id]

    async def _again(self, id: str, cwd: str, servers: Sequence[Any]) -> EditorSession:
        """Open a stored session, anew if it is open already."""
        if (session := self._sessions.get(id)) is not None:
            async with session.lock:
                await asyncio.to_thread(self._leave, session)
        (summary, *_) = await asyncio.to_thread(self._store.list, [id]) or [None]
        if summary is None:
            raise ConversationNotFound(f"There is no session {id[:200]!r}.", "conversation", id)
        name = next((tag[5:] for tag in summary.tags if tag.startswith("mode=")), "")
        mode = cast("Mode", name) if name in MODES else self._mode
        session = await self._open(id, cwd, servers, mode, False)
        session.cursor = session.conversation.state().last_seq
        return session

    async def _open(
        self, id: str, cwd: str, servers: Sequence[Any], mode: Mode, new: bool
    ) -> EditorSession:
        if not os.path.isabs(cwd):
            raise ConfigurationError(f"cwd takes an absolute path, not {cwd[:200]!r}.")
        loop = asyncio.get_running_loop()
        access = ClientAccess(self._client, loop, id, self._capabilities)
        session = await asyncio.to_thread(self._open_session, access, cwd, servers, mode, new)
        self._sessions[id] = session

        def decided(event: ev.AnyEvent) -> None:
            """Withdraw the question to the client, because it was answered elsewhere."""
            if isinstance(event, ev.DecisionMade) and event.decision in ("approve", "reject"):
                about = event.question_id or event.call_id
                loop.call_soon_threadsafe(session.withdraw, about)

        session.conversation.conversation.register_event_callback(decided)
        return session

    def _open_session(
        self, access: ClientAccess, cwd: str, servers: Sequence[Any], mode: Mode, new: bool
    ) -> EditorSession:
        place = self._open_place(Path(cwd), access.files)
        try:
            agent, policy = place.agent, ModePolicy(place.agent.confirm, mode)
            changes: dict[str, Any] = {"confirm": policy}
            tools = agent.own_tools()
            if access.capabilities.terminal and place.client_terminals:
                changes["tools"] = with_client_terminal(tools, access, cwd)
            if servers:
                own_servers = {one.name: _server(one) for one in servers}
                if clash := sorted(own_servers.keys() & agent.mcp_servers.keys()):
                    raise ConfigurationError(
                        f"mcpServers: the agent has a server {clash[0]!r} of its own."
                    )
                changes["mcp_servers"] = {**agent.mcp_servers, **own_servers}
                changes.setdefault("tools", tools if agent.mcp_servers else agent.tools)
            agent = agent.replace(**changes)
            agents = agents_by_mode(agent)
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
            policy.allowed = allowed_tools(conversation.conversation.get_history())
        return EditorSession(conversation, place, agents, policy, access)

    def _leave(self, session: EditorSession) -> None:
        self._sessions.pop(session.id, None)
        session.stop_asking()
        if self._door is not None:
            self._door.leave(session.id)
        session.place.runtime.close()

    # --- prompts ---

    @_with_protocol_errors
    async def prompt(self, prompt: Sequence[Any], session_id: str, **_: Any) -> PromptResponse:
        return await self._find(session_id).prompt(content_of(prompt))

    async def cancel(self, session_id: str, **_: Any) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            await session.cancel()


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
