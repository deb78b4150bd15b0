"""Who shares which connections to MCP servers, and the thread on which they live."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import ToolError
from holdfast.tools.loop import LoopThread

if TYPE_CHECKING:
    import asyncio

    from holdfast.tools.mcp.link import Connection, Spec

T = TypeVar("T")

# seconds; above the 6 s of a process that must be killed, below what `LoopThread.close` waits
_CLOSING = 9.0


class _Hub:
    """A loop thread and the connections on it, from the first user to the last."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []  # under the pool's lock
        self.tasks: set[asyncio.Task[None]] = set()
        self.thread = LoopThread("holdfast-mcp", self._end)

    async def _end(self) -> None:
        import asyncio

        ends = [asyncio.ensure_future(one.end()) for one in self.connections]
        if ends or self.tasks:
            await asyncio.wait([*ends, *self.tasks], timeout=_CLOSING)


class Lease:
    """One user's hold on a connection, from `MCPPool.lease` to `release`."""

    def __init__(self, pool: MCPPool, hub: _Hub, connection: Connection) -> None:
        self.pool = pool
        self.hub = hub
        self.connection = connection

    @property
    def live(self) -> bool:
        """Whether it is still held: its pool may have been closed meanwhile."""
        return self.pool.holds(self)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the connection's loop. Raises `ToolError` (network) once that is
        closing."""
        return self.hub.thread.submit(work)

    def soon(self, work: Callable[[], object]) -> None:
        """Run `work` on the loop, unheard."""
        self.hub.thread.soon(work)

    def release(self) -> None:
        """Give it back; the last user's ends the connection, and waits for that. Idempotent."""
        self.pool.release([self])

    def abandon(self) -> None:
        """Give it back without waiting: for the garbage collector."""
        self.hub.thread.soon(lambda: self.pool.release([self], wait=False))


class MCPPool:
    """Connections to MCP servers that several clients share: `MCPClient(config, pool=pool)`.

    Clients share a connection if the server's id, its configuration, and what the client gives it
    (hooks, auth, `stderr_dir`, `timeout`) are the same. It is opened at the first use and closed
    when the last of them closes. All live on one thread, which starts with the first and ends with
    the last. Nothing is shared without a pool. Thread-safe; a context manager.
    """

    def __init__(self) -> None:
        self._lock = (
            threading.Lock()
        )  # for the two below and the hub's lists; held while nothing waits
        self._hub: _Hub | None = None
        self._leases: set[Lease] = set()

    def lease(
        self,
        spec: Spec,
        changed: Callable[[], None],
        folders: Callable[[], Sequence[str] | None] = lambda: None,
    ) -> Lease:
        """Hold the connection of `spec`, which is opened when it is used. `changed` is called, on
        some thread, when its tools may have changed; `folders`, which must not block, when the
        server asks where to work. For `MCPClient`."""
        link = importlib.import_module(
            "holdfast.tools.mcp.link"
        )  # 0.5 s, here and not on the loop, where it would eat the deadlines
        with self._lock:
            if self._hub is None:
                self._hub = _Hub()
            hub = self._hub
            same = [one for one in hub.connections if one.spec == spec]
            found: Connection = same[0] if same else link.Connection(spec, hub.tasks)
            if not same:
                hub.connections.append(found)
            lease = Lease(self, hub, found)
            found.users = {**found.users, lease: changed}
            found.folders = {**found.folders, lease: folders}
            self._leases.add(lease)
        lease.soon(found.folders_changed)
        return lease

    def release(self, leases: Iterable[Lease], wait: bool = True) -> None:
        """What `Lease.release` does, for many at once: what they end is ended side by side."""
        ending: list[tuple[_Hub, Connection]] = []
        closing: list[_Hub] = []
        staying: list[tuple[_Hub, Connection]] = []
        with self._lock:
            for lease in leases:
                if lease not in self._leases:
                    continue
                self._leases.discard(lease)
                hub, connection = lease.hub, lease.connection
                connection.users = {
                    user: told for user, told in connection.users.items() if user is not lease
                }
                connection.folders = {
                    user: said for user, said in connection.folders.items() if user is not lease
                }
                if connection.users:
                    staying.append((hub, connection))
                else:
                    hub.connections.remove(connection)
                    ending.append((hub, connection))
                if not hub.connections and self._hub is hub:
                    self._hub = None
                    closing.append(hub)
        for hub, connection in staying:
            hub.thread.soon(connection.folders_changed)
        waits: list[Future[None]] = []
        for hub, connection in ending:
            try:
                waits.append(hub.thread.submit(connection.end()))
            except ToolError:  # the whole hub is closing, and ends it
                pass
        for hub in closing:
            hub.thread.close() if wait else hub.thread.stop()
        for one in waits if wait else ():
            with contextlib.suppress(CancelledError, TimeoutError):
                one.result(_CLOSING)

    def holds(self, lease: Lease) -> bool:
        """Whether that lease is neither released nor its pool closed."""
        return lease in self._leases

    def close(self) -> None:
        """End all connections, whoever still holds them; a client that is used again connects
        again. Idempotent."""
        with self._lock:
            hub, self._hub = self._hub, None
            self._leases.clear()
        if hub is not None:
            hub.thread.close()

    def __len__(self) -> int:
        """How many connections are held."""
        hub = self._hub
        return 0 if hub is None else len(hub.connections)

    def __enter__(self) -> MCPPool:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPPool({len(self)} connections)"
