"""The pool that shares connections to MCP servers, and the thread that runs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from holdfast.errors import ToolError
from holdfast.tools.loop import LoopThread

if TYPE_CHECKING:
    import asyncio

    from holdfast.tools.mcp.config import ConnectionSpec
    from holdfast.tools.mcp.connection import SharedConnection

# Above the 6 s that killing a process takes, below the time that `LoopThread.close` waits.
_CLOSE_SECONDS = 9.0


class _Hub:
    """A loop thread and the connections on it, from the first user to the last."""

    def __init__(self) -> None:
        self.connections: list[SharedConnection] = []  # under the pool's lock
        self.tasks: set[asyncio.Task[None]] = set()
        self.thread = LoopThread("holdfast-mcp", self._end)

    async def _end(self) -> None:
        import asyncio

        ends = [asyncio.ensure_future(one.end()) for one in self.connections]
        if ends or self.tasks:
            await asyncio.wait([*ends, *self.tasks], timeout=_CLOSE_SECONDS)


class ConnectionLease:
    """One user's hold on a connection, from `MCPPool.lease` to `release`. See there for
    `on_change` and `folders`."""

    def __init__(
        self,
        pool: MCPPool,
        hub: _Hub,
        connection: SharedConnection,
        on_change: Callable[[], None],
        folders: Callable[[], Sequence[str] | None],
    ) -> None:
        self.pool = pool
        self.hub = hub
        self.connection = connection
        self.on_change = on_change
        self.folders = folders
        self.submit = hub.thread.submit
        self.soon = hub.thread.soon

    @property
    def live(self) -> bool:
        """True if the lease is held. Closing the pool ends all leases."""
        return self in self.pool.leases

    def release(self) -> None:
        """Release the connection. The last user's release closes the connection and waits for
        the end. Idempotent."""
        self.pool.release([self])

    def abandon(self) -> None:
        """Release the connection without waiting. The garbage collector calls this."""
        self.soon(lambda: self.pool.release([self], wait=False))


class MCPPool:
    """A pool of connections to MCP servers that several clients share: `MCPClient(config,
    pool=pool)`.

    Clients share a connection if the server's id, its configuration and the client's settings
    for it (hooks, auth, `stderr_dir`, `timeout`) are equal. A connection opens at the first use
    and closes when its last client closes. All connections run on one thread, which starts with
    the first connection and ends with the last. Clients without a pool share nothing.
    Thread-safe; a context manager.
    """

    def __init__(self) -> None:
        # Guards the two fields below, the hub's connections and their leases; never held during a
        # wait.
        self._lock = threading.Lock()
        self._hub: _Hub | None = None
        self.leases: set[ConnectionLease] = set()

    def lease(
        self,
        spec: ConnectionSpec,
        on_change: Callable[[], None],
        folders: Callable[[], Sequence[str] | None] = lambda: None,
    ) -> ConnectionLease:
        """Hold the connection of `spec`, which opens at its first use. For `MCPClient`.

        Args:
            spec: The server and the client's settings for it.
            on_change: A function that is called, on any thread, when the server's tools may have
                changed.
            folders: A function that returns the folders to work in when the server asks for them,
                without blocking.
        """
        # The import takes 0.5 s. On the loop thread that time would count against the deadlines.
        from holdfast.tools.mcp.connection import SharedConnection

        with self._lock:
            if self._hub is None:
                self._hub = _Hub()
            hub = self._hub
            same = [one for one in hub.connections if one.spec == spec]
            connection = same[0] if same else SharedConnection(spec, hub.tasks)
            if not same:
                hub.connections.append(connection)
            lease = ConnectionLease(self, hub, connection, on_change, folders)
            connection.leases = (*connection.leases, lease)
            self.leases.add(lease)
        lease.soon(connection.folders_changed)
        return lease

    def release(self, leases: Iterable[ConnectionLease], wait: bool = True) -> None:
        """Release many leases, each as `Lease.release` does. Connections that lose their last
        user close concurrently."""
        ending: list[ConnectionLease] = []
        closing: list[_Hub] = []
        staying: list[ConnectionLease] = []
        with self._lock:
            for lease in leases:
                if lease not in self.leases:
                    continue
                self.leases.discard(lease)
                hub, connection = lease.hub, lease.connection
                connection.leases = tuple([one for one in connection.leases if one is not lease])
                if connection.leases:
                    staying.append(lease)
                else:
                    hub.connections.remove(connection)
                    ending.append(lease)
                if not hub.connections and self._hub is hub:
                    self._hub = None
                    closing.append(hub)
        for lease in staying:
            lease.soon(lease.connection.folders_changed)
        waits: list[Future[None]] = []
        for lease in ending:
            with contextlib.suppress(ToolError):  # the whole hub is closing and ends the connection
                waits.append(lease.submit(lease.connection.end()))
        for hub in closing:
            hub.thread.close() if wait else hub.thread.stop()
        for one in waits if wait else ():
            with contextlib.suppress(CancelledError, TimeoutError):
                one.result(_CLOSE_SECONDS)

    def close(self) -> None:
        """Close all connections, even those that clients still hold. A client that is used again
        connects again. Idempotent."""
        with self._lock:
            hub, self._hub = self._hub, None
            self.leases.clear()
        if hub is not None:
            hub.thread.close()

    def __len__(self) -> int:
        """Return the number of open connections."""
        hub = self._hub
        return 0 if hub is None else len(hub.connections)

    def __enter__(self) -> MCPPool:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPPool({len(self)} connections)"
