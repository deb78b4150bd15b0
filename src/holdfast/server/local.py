"""`LocalServer`: an agent server within a program, for tests, notebooks and whoever wants no second process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.conversation.observer import Observing, observers
from holdfast.errors import ConfigurationError
from holdfast.processes import OwnerProcess
from holdfast.temporary import TemporaryFolder

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent


class LocalServer:
    """`with LocalServer(folder) as server: RemoteWorkspace(server.url, server.key)`. Equivalent to `holdfast serve` at a free port of 127.0.0.1,
    on threads of this process.

    What it keeps (journals, records, workspaces) is in `folder`: the next one on the same folder goes on. None makes a temporary folder, removed
    at the end. `allow_tools` are patterns of modules whose tools clients may have the server import; `variables` what `${NAME}` in an agent stands
    for. `agents` are offered by name to clients of OpenAI's API, at `{url}/v1`. `observer` follows all conversations (`holdfast.observe`). `webhook_allow` are
    hosts that webhooks may send to though they are not public. `key` is a new one of the default tenant. Once: `with`, or `start` and `close`. Needs `pip install 'holdfast[server]'`.

    Raises `ConfigurationError` (a `ValueError`) if `folder` is none or fastapi is not there, `StoreError` if another server has the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        allow_tools: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        max_running: int = 64,
        agents: Mapping[str, Agent] | None = None,
        observer: Observing = None,
        webhook_allow: Sequence[str] = (),
    ) -> None:
        if isinstance(allow_tools, str):
            raise ConfigurationError(f"LocalServer: allow_tools takes a list of patterns, not {allow_tools!r}.")
        if folder is not None and not os.path.isdir(folder):
            raise ConfigurationError(f"LocalServer: folder takes a folder that exists, not {os.fspath(folder)!r}.")
        self.url = ""
        self.key = ""
        self._folder = folder
        self._allowed = tuple(allow_tools)
        self._variables = dict(variables or {})
        self._most = max_running
        self._agents = dict(agents or {})
        self._webhook_allow = tuple(webhook_allow)
        self._observers = observers("LocalServer: observer", observer)
        self._stack = ExitStack()
        self._process = OwnerProcess()

    def start(self) -> None:
        """Serve; `url` and `key` are there when this returns."""
        from holdfast.server.sockets import listen

        try:
            from holdfast.server.app import App
        except ImportError:
            raise ConfigurationError("The agent server needs the fastapi package: pip install 'holdfast[server]'.") from None
        from holdfast.server.deliveries import Sending
        from holdfast.server.guard import Quota, host_names
        from holdfast.server.host import Host
        from holdfast.server.keys import Keys
        from holdfast.server.limits import Bounds
        from holdfast.server.openai import publish
        from holdfast.server.policy import Policy
        from holdfast.server.records import Records
        from holdfast.server.sealing import Seal
        from holdfast.server.serve import AgentServer
        from holdfast.store import SQLiteStore

        published = {name: publish(name, agent) for name, agent in self._agents.items()}
        with ExitStack() as stack:
            made = self._folder
            if made is None:
                temporary = TemporaryFolder("holdfast-server-", work="workspaces")
                stack.callback(temporary.close)
                made = temporary.path
            folder = Path(made).absolute()
            root = folder / "workspaces"
            root.mkdir(mode=0o700, exist_ok=True)
            records = Records(folder / "store.db.server.db", Seal.of_file(folder / "store.db.server.key"))
            stack.callback(records.close)
            keys = Keys(records)
            store = SQLiteStore(folder / "store.db")
            stack.callback(store.close)
            bounds = Bounds(open=max(1000, 2 * self._most))
            policy = Policy(self._allowed)
            host = Host(
                store, records, policy=policy, root=root, variables=self._variables, max_running=self._most, bounds=bounds,
                observer=self._observers, sending=Sending(allow=self._webhook_allow),
            )  # fmt: skip
            stack.callback(host.shutdown, 5.0)
            app = App(host, keys, quota=Quota(rate=0), hosts=host_names("127.0.0.1", []), agents=published)
            server = AgentServer(app, listen("127.0.0.1", 0))
            stack.callback(server.close)
            server.start()
            self.url, self.key = server.url, keys.create("default", "of this program")
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End: what runs is parked, and goes on with the next server on the folder. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        self._stack.close()

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalServer({self.url!r})"
