"""An agent server in this process with a real store and real sockets, and a client that sends
exactly the given requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from holdfast import Agent, ScriptedLLM, SQLiteStore
from holdfast.agent.serial_form import form_of
from holdfast.server.app import App, Door
from holdfast.server.database import Database
from holdfast.server.guard import Quota, host_names
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.keys import Keys
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.serve import AgentServer
from holdfast.server.sockets import listen
from holdfast.store import Store

QUIET = Quota(rate=0)  # no rate limit


class Reply:
    """A response whose body has been read completely."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        """Return the body, decoded as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Return the type of the error."""
        return self.json["error"]["type"]

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:300]!r}"


class Serving:
    """An agent server in this process: `with Serving(folder) as server: server.ask("GET",
    "/health")`.

    The tenants `default` and `other` have one key each.
    """

    def __init__(
        self,
        folder: Path,
        quota: Quota = QUIET,
        *,
        ping: float = 10.0,
        origins: Sequence[str] = (),
        tls: Any = None,
        serving: dict[str, Any] | None = None,
        agents: Mapping[str, Any] = MappingProxyType({}),
        doors: Sequence[Door] = (),
        database: Database | None = None,
        store: Store | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        place = folder / "store.db.server.db" if database is None else database
        records = Records(place, Seal.of_file(folder / "server.key"))
        self.keys = Keys(records)
        self.key = self.keys.create("default")
        self.other = self.keys.create("other")
        self.store = store or SQLiteStore(folder / "store.db", durability="process")
        (folder / "rooms").mkdir(exist_ok=True)
        options = {"policy": Policy([]), "root": folder / "rooms", **options}
        self.host = Host(self.store, records, HostSettings(**options))
        self.app = App(
            self.host,
            self.keys,
            quota=quota,
            hosts=host_names("127.0.0.1", []),
            origins=origins,
            ping=ping,
            agents=agents,
            doors=doors,
        )
        self.server = AgentServer(
            self.app, listen("127.0.0.1", 0), tls=tls, grace=20.0, **(serving or {})
        )
        self.port = int(self.server.url.rpartition(":")[2])
        self._stack = ExitStack()

    def __enter__(self) -> Serving:
        self.server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self.server.close()

    def connect(self, timeout: float = 30.0) -> http.client.HTTPConnection:
        """Return a connection that closes with the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        self._stack.callback(connection.close)
        return connection

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = "",
        timeout: float = 30.0,
        **headers: str,
    ) -> Reply:
        """Send one request on a new connection. A body that is neither bytes nor None is sent as
        JSON. A `key` of None sends no key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            if key is not None:
                fields.setdefault("Authorization", f"Bearer {key or self.key}")
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                fields.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, fields)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def make(self, id: str, answers: Sequence[Any] = ("hello",), key: str = "") -> str:
        """Make a conversation whose model gives these answers, and return its path."""
        form = form_of(Agent(ScriptedLLM(list(answers))))
        reply = self.ask("POST", "/api/conversations", {"id": id, "agent": form.mapping}, key)
        assert reply.status == 201, reply
        return f"/api/conversations/{id}"

    def stream(self, path: str, after: int = 0, key: str = "", **headers: str) -> Lines:
        """Open an event stream, which stays open until `close`."""
        connection = self.connect()
        connection.request(
            "GET",
            f"{path}/stream?after_seq={after}",
            headers={"Authorization": f"Bearer {key or self.key}", **headers},
        )
        return Lines(connection, connection.getresponse())


class Lines:
    """The events of a stream as (id, event, data). A comment is (None, "", text)."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.connection = connection
        self.response = response

    def __iter__(self) -> Iterator[tuple[int | None, str, str]]:
        id: int | None = None
        event = data = ""
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            match name:
                case "id":
                    id = int(value)
                case "event":
                    event = value
                case "data":
                    data = value
                case "":
                    if value:
                        yield None, "", value
                    elif event:
                        yield id, event, data
                    id, event, data = None, "", ""

    def close(self) -> None:
        self.response.close()
        self.connection.close()
