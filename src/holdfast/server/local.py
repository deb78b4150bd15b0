"""`LocalServer`: an agent server inside a program, for tests, notebooks and single-process use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.conversation.observer import Observing, observers
from holdfast.errors import ConfigurationError
from holdfast.processes import OwnerProcess
from holdfast.server.deliveries import Sending
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.keys import Keys
from holdfast.server.limits import Bounds
from holdfast.server.named_parts import offer
from holdfast.server.openai import publish
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.sealing import Seal
from holdfast.server.sockets import listen
from holdfast.store import SQLiteStore
from holdfast.temporary import TemporaryFolder

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.llm.model import Model
    from holdfast.server.app import Door


class LocalServer:
    """An agent server on threads of this process, at a free port of 127.0.0.1.

    Equivalent to `holdfast serve`. Use it as `with LocalServer(folder) as server: RemoteWorkspace(
    server.url, server.key)`. A server can be started once, with `with` or with `start` and `close`.
    `key` is a new key of the default tenant. Needs `pip install 'holdfast[server]'`.

    Args:
        folder: Holds journals, records and workspaces. The next server on the same folder continues
            with them. None uses a temporary folder that is removed at the end.
        allow_tools: Patterns of the modules whose tools clients may have the server import.
        variables: The values of `${NAME}` in agents.
        max_running: The number of conversations that run at once.
        agents: Agents published by name to clients of OpenAI's API, at `{url}/v1`.
        doors: Further protocols, such as `holdfast.serve.responses_routes.add`, for the clients of
            `agents`.
        models: Models that agents of clients may name (`NamedModel`), with the keys of this server.
        observer: Follows all conversations (see `holdfast.observe`).
        webhook_allow: Hosts to which webhooks may be sent although they are not public.
        sandbox: True runs the commands of each conversation in its own sandbox. Agents of clients
            then start no programs as MCP servers.
        network: Patterns of the hosts that commands in a sandbox can reach; none: no network.
        allow_hook_commands: True runs the commands of the hooks of clients' agents, in the sandbox
            if there is one.

    Raises `ConfigurationError` (a `ValueError`) if `folder` does not exist or fastapi is not
    installed. Raises `SandboxUnavailable` if no sandbox can be made, and `StoreError` if another
    server uses the folder.
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
        sandbox: bool = False,
        network: Sequence[str] = (),
        allow_hook_commands: bool = False,
        models: Mapping[str, Model] | None = None,
        doors: Sequence[Door] = (),
    ) -> None:
        if network and not sandbox:
            raise ConfigurationError("LocalServer: network is for the sandbox; add sandbox=True.")
        if isinstance(allow_tools, str):
            raise ConfigurationError(
                f"LocalServer: allow_tools takes a list of patterns, not {allow_tools!r}."
            )
        if folder is not None and not os.path.isdir(folder):
            raise ConfigurationError(
                f"LocalServer: folder takes an existing folder, not {os.fspath(folder)!r}."
            )
        self.url = ""
        self.key = ""
        self._folder = folder
        self._agents = dict(agents or {})
        self._doors = tuple(doors)
        self._settings = HostSettings(
            policy=Policy(allow_tools, programs=not sandbox, hook_commands=allow_hook_commands),
            runtimes=WorkspaceRuntimes(sandbox, tuple(network)),
            variables=dict(variables or {}),
            models={name: offer(name, model) for name, model in (models or {}).items()},
            max_running=max_running,
            bounds=Bounds(open=max(1000, 2 * max_running)),
            observer=observers("LocalServer: observer", observer),
            sending=Sending(allow=tuple(webhook_allow)),
        )
        self._stack = ExitStack()
        self._process = OwnerProcess()

    def start(self) -> None:
        """Start serving. `url` and `key` are set when this returns."""
        try:
            from holdfast.server import app, serve
        except ImportError:
            raise ConfigurationError(
                "The agent server needs the fastapi package: pip install 'holdfast[server]'."
            ) from None
        self._settings.runtimes.check()
        published = {name: publish(name, agent) for name, agent in self._agents.items()}
        with ExitStack() as stack:
            location = self._folder
            if location is None:
                temporary = TemporaryFolder("holdfast-server-", work="workspaces")
                stack.callback(temporary.close)
                location = temporary.path
            folder = Path(location).absolute()
            root = folder / "workspaces"
            root.mkdir(mode=0o700, exist_ok=True)
            seal = Seal.of_file(folder / "store.db.server.key")
            records = Records(folder / "store.db.server.db", seal)
            stack.callback(records.close)
            keys = Keys(records)
            store = SQLiteStore(folder / "store.db")
            stack.callback(store.close)
            host = Host(store, records, replace(self._settings, root=root))
            stack.callback(host.shutdown, 5.0)
            served = app.App.at_loopback(host, keys, published, self._doors)
            server = serve.AgentServer(served, listen("127.0.0.1", 0))
            stack.callback(server.close)
            server.start()
            self.url, self.key = server.url, keys.create("default", "of this program")
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stop the server. Running conversations are parked and continue with the next server on
        the folder. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        self._stack.close()

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalServer({self.url!r})"
