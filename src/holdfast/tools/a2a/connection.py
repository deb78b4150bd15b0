"""Connections to A2A agents, and the thread that runs them.

A connection fetches the card, decides which endpoints may get the credentials, and runs and ends
calls.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin

import msgspec

from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.a2a.config import CARD_PATH, RemoteAgent, origin
from holdfast.tools.a2a.exchange import Exchange, reason_of, request_context
from holdfast.tools.a2a.parts import AgentAnswer, AgentSkill, describe
from holdfast.tools.loop import LoopThread
from holdfast.tools.results import clip

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    import httpx
    from a2a.client import Client
    from a2a.types import AgentCard, AgentInterface

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Limit of one response, streams included: an agent that never stops must not fill the memory.
_MAX_RESPONSE_BYTES = 64 * 2**20
# Time to cancel a task at its agent. Only `close` waits for it.
_CANCEL_TASK_SECONDS = 3.0
# Above the time of a cancel, for closing one connection.
_CLOSE_SECONDS = 10.0


class AgentCardSummary(msgspec.Struct, frozen=True):
    """The parts of an agent's card that this client uses."""

    name: str
    version: str
    protocol: str
    """The version and binding in use, such as "A2A 1.0 over JSONRPC"."""
    skills: tuple[AgentSkill, ...]


class A2AConnection:
    """One agent's card and the HTTP connections to it. Used on the loop thread; after `end` it
    stays closed."""

    def __init__(self, name: str, remote: RemoteAgent) -> None:
        import asyncio

        self.name = name
        self._remote = remote
        self._http: httpx.AsyncClient | None = None
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._cancels: set[asyncio.Task[None]] = set()  # cancel tasks at the agent
        self._ended = False

    # --- the card ---

    async def discover(self) -> AgentCardSummary:
        """Fetch the card again. Raises `ToolError`."""
        async with self._naming_agent("could not be asked for its card"), self._connecting:
            return await self._connect()

    async def greet(self) -> str:
        """Fetch the card again. Return the agent's name, version and protocol. Raises
        `ToolError`."""
        card = await self.discover()
        return f"{card.name} {card.version}, {card.protocol}".strip()

    async def _connected(self) -> Client:
        async with self._connecting:  # one task connects; the others wait for it
            if self._client is None:
                await self._connect()
            assert self._client is not None
            return self._client

    async def _connect(self) -> AgentCardSummary:
        import asyncio

        from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
        from a2a.types import GetExtendedAgentCardRequest
        from a2a.utils.constants import TransportProtocol

        self._client = None  # the new card replaces the old one
        if self._http is None:
            self._http = self._open_http()
        timeout = self._remote.timeout
        async with asyncio.timeout(timeout):
            separator = "/" if self._remote.url.endswith(".json") else CARD_PATH
            base, _, path = self._remote.card_url.rpartition(separator)
            resolver = A2ACardResolver(self._http, base, path or CARD_PATH)
            card = await resolver.get_agent_card(http_kwargs={"timeout": timeout})
            self._keep_usable(card)
            # The card's own order of transports is the agent's preference.
            bindings: list[str] = [TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON]
            config = ClientConfig(httpx_client=self._http, supported_protocol_bindings=bindings)
            client = ClientFactory(config).create(card)
            endpoint = card.supported_interfaces[0]
            # The extended card may name skills that only authenticated clients may use.
            if card.capabilities.extended_agent_card and self._remote.credentials():
                try:
                    card = await client.get_extended_agent_card(
                        GetExtendedAgentCardRequest(), context=request_context(timeout)
                    )
                except Exception as error:
                    _log.warning(
                        "A2A agent %r did not return its extended card, so its public card is"
                        " used: %s",
                        self.name,
                        self._remote.redact(reason_of(error, timeout)[0]),
                    )
        self._client = client
        skills = [
            AgentSkill(
                skill.id,
                describe(card.name, skill.description or skill.name, skill.examples),
                tuple(skill.input_modes or card.default_input_modes),
            )
            for skill in card.skills
        ]
        protocol = f"A2A {endpoint.protocol_version or '1.0'} over {endpoint.protocol_binding}"
        return AgentCardSummary(card.name, card.version, protocol, tuple(skills))

    def _keep_usable(self, card: AgentCard) -> None:
        """Remove from a card the endpoints that use another protocol or may not get the
        credentials. Raises `ToolError` if none remains."""
        supported: list[AgentInterface] = []
        for one in card.supported_interfaces:
            one.url = urljoin(self._remote.card_url, one.url)
            if one.protocol_binding in ("JSONRPC", "HTTP+JSON") and origin(one.url):
                supported.append(one)
        if not supported:
            bindings = {one.protocol_binding for one in card.supported_interfaces}
            raise ToolError(
                "its card names no endpoint for JSONRPC or HTTP+JSON over HTTP; it has"
                f" {clip(', '.join(sorted(bindings)) or 'none')}.",
                retryable=False,
            )
        allowed = supported
        if self._remote.credentials():
            trusted = self._remote.trusted_origins()
            allowed = [one for one in supported if origin(one.url) in trusted]
        if not allowed:
            others = ", ".join(sorted({origin(one.url) for one in supported}))
            raise ToolError(
                f"its card names {clip(others)} as its endpoint, but its token and headers were"
                f" given for {origin(self._remote.url)}, so nothing was sent. If that host may have"
                " them, add it to the agent's origins.",
                "authentication",
            )
        copies = [type(one).FromString(one.SerializeToString()) for one in allowed]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(copies)

    def _open_http(self) -> httpx.AsyncClient:
        import httpx

        trusted, credentials = self._remote.trusted_origins(), self._remote.credentials()

        class Bounded(httpx.AsyncByteStream):
            def __init__(self, stream: Any) -> None:
                self._stream = stream

            async def __aiter__(self) -> AsyncIterator[bytes]:
                bytes_left = _MAX_RESPONSE_BYTES
                async for chunk in self._stream:
                    bytes_left -= len(chunk)
                    if bytes_left < 0:
                        raise ToolError(
                            f"it sent more than {_MAX_RESPONSE_BYTES >> 20} MiB in one response.",
                            retryable=False,
                        )
                    yield chunk

            async def aclose(self) -> None:
                await self._stream.aclose()

        async def authenticate(request: httpx.Request) -> None:
            if origin(str(request.url)) in trusted:
                request.headers.update(credentials)

        async def bound(response: httpx.Response) -> None:
            response.stream = Bounded(response.stream)

        return httpx.AsyncClient(
            # The call's own timeout limits how long an agent takes; reading has no limit.
            timeout=httpx.Timeout(self._remote.timeout, read=None),
            limits=httpx.Limits(max_keepalive_connections=20, keepalive_expiry=30.0),
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"request": [authenticate], "response": [bound]},
        )

    # --- calls ---

    async def call(
        self, message: dict[str, Any], answered: str, look_first: bool, tell: Callable[[str], None]
    ) -> AgentAnswer:
        """Send a message and follow it to its answer; see `Exchange`. Raises `ToolError`. After a
        cancel, a background task tells the agent."""
        import asyncio

        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            async with self._naming_agent("failed the call"):
                client = await self._connected()
                exchange = Exchange(client, message, answered, self._remote.timeout, tell)
                work = asyncio.create_task(exchange.run(look_first))
                try:
                    return await asyncio.shield(work)
                except asyncio.CancelledError:
                    cancel = asyncio.create_task(_leave(exchange, work))
                    self._cancels.add(cancel)
                    cancel.add_done_callback(self._cancels.discard)
                    raise
        except ToolError as error:
            if error.error_type in ("network", "not_found"):
                self._client = None  # the agent may have moved: the next call reads its card again
            raise
        finally:
            self._calls.discard(task)

    @contextlib.asynccontextmanager
    async def _naming_agent(self, what: str) -> AsyncGenerator[None]:
        """Turn every failure inside the block into a `ToolError` that names the agent."""
        if self._ended:
            raise ToolError(
                f"A2A agent {self.name!r}: the client was closed during the call; call again.",
                "network",
            )
        try:
            yield
        except Exception as error:
            retryable = None
            if isinstance(error, ToolError):
                text, kind, retryable = str(error), error.error_type, error.retryable
            else:
                text, kind = reason_of(error, self._remote.timeout)
            message = self._remote.redact(f"A2A agent {self.name!r} {what}: {text}")
            if kind == "timeout":
                raise ToolTimeout(message) from None
            raise ToolError(message, kind, retryable=retryable) from None

    async def end(self) -> None:
        """Cancel the running calls at their agents and close the connections. Idempotent."""
        import asyncio

        self._ended = True
        calls = set(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        if cancels := set(self._cancels):
            await asyncio.wait(cancels)  # they have a limit of their own
        self._client = None
        if self._http is not None:
            await self._http.aclose()


async def _leave(exchange: Exchange, work: asyncio.Task[AgentAnswer]) -> None:
    """Stop following an exchange and cancel its task at the agent, once its id is known."""
    import asyncio

    with contextlib.suppress(Exception):  # no caller waits for an error any more
        async with asyncio.timeout(_CANCEL_TASK_SECONDS):
            waiter = asyncio.create_task(exchange.task_known.wait())
            try:
                await asyncio.wait({work, waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
                work.cancel()
            await exchange.cancel_task()
    await asyncio.gather(work, return_exceptions=True)


# --- the thread ---


class A2AConnections:
    """The connections of one client and the thread that runs them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._by_name: dict[str, A2AConnection] = {}
        self._stop_thread: weakref.finalize[Any, Any] | None = None

    def submit(
        self,
        name: str,
        remote: RemoteAgent,
        work: Callable[[A2AConnection], Coroutine[Any, Any, T]],
    ) -> Future[T]:
        """Run `work(connection)` on the thread; connect if necessary. Raises `ToolError`."""
        try:
            # The import takes 0.3 s. On the loop thread that time would count against deadlines.
            importlib.import_module("a2a.client")
        except ImportError as error:
            raise ToolError(
                f"A2A agent {name!r} needs a package that is not installed ({error}): pip install"
                " 'holdfast[a2a]'.",
                "not_found",
            ) from None
        with self._lock:
            if self._thread is None:
                connections = self._by_name = {}
                self._thread = LoopThread("holdfast-a2a", lambda: _end(connections))
                # Stops the thread of a client that is dropped without `close`. It does not wait,
                # because it runs in the garbage collector.
                self._stop_thread = weakref.finalize(self, self._thread.stop)
                # At interpreter exit the thread closes itself, and waits.
                self._stop_thread.atexit = False
            connection = self._by_name.get(name)
            if connection is None:
                connection = self._by_name[name] = A2AConnection(name, remote)
            return self._thread.submit(work(connection))

    def leave(self, name: str) -> None:
        """Close the connection to an agent, and the thread with the last connection. Idempotent."""
        with self._lock:
            connection, thread = self._by_name.get(name), self._thread
            if connection is None or thread is None:
                return
            ended = None
            if len(self._by_name) > 1:
                del self._by_name[name]
                ended = thread.submit(connection.end())
            else:  # closing the thread also ends its last connection
                self._forget_thread()
        if ended is None:
            thread.close()
        else:
            with contextlib.suppress(Exception):
                ended.result(_CLOSE_SECONDS)

    def close(self) -> None:
        """Close all connections and the thread. Idempotent; the next use opens them again."""
        with self._lock:
            thread = self._thread
            self._forget_thread()
        if thread is not None:
            thread.close()

    def _forget_thread(self) -> None:
        self._thread = None
        self._by_name = {}
        if self._stop_thread is not None:
            self._stop_thread.detach()


async def _end(connections: dict[str, A2AConnection]) -> None:
    import asyncio

    ends = [connection.end() for connection in connections.values()]
    await asyncio.gather(*ends, return_exceptions=True)
