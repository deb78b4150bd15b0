"""Several agent servers before one store, and a client that sends each request to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from holdfast.server.postgres_database import PostgresDatabase
from holdfast.store import PostgresStore
from tests.agent_servers import Serving


class Nodes(Serving):
    """Several servers before one store: `with Nodes(folder, dsn, schema) as server:
    server.ask("GET", "/health")`.

    `nodes` are the servers, whose workspaces are in one folder. `keys`, `host` and `store` are
    those of the first.
    """

    def __init__(
        self, folder: Path, dsn: str, schema: str, *, count: int = 2, **options: Any
    ) -> None:
        def node() -> Serving:
            store = PostgresStore(dsn, schema=schema)
            database = PostgresDatabase(dsn, f"{schema}_server")
            return Serving(folder, database=database, store=store, **options)

        self.nodes = [node() for _ in range(count)]
        first = self.nodes[0]
        self.folder, self.key, self.other = folder, first.key, first.other
        self.keys, self.store, self.host, self.app = first.keys, first.store, first.host, first.app
        self.server = first.server
        self._next = cycle(self.nodes)
        self._stack = ExitStack()

    @property
    def port(self) -> int:
        """Return the port of the next server."""
        return next(self._next).port

    @port.setter
    def port(self, port: int) -> None:
        raise AttributeError("each server has its own")

    def __enter__(self) -> Nodes:
        for node in self.nodes:
            node.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        for node in self.nodes:
            node.__exit__(kind, error, trace)


@contextmanager
def one_or_two(request: pytest.FixtureRequest, folder: Path, **options: Any) -> Iterator[Serving]:
    """Run one server, or two before one Postgres database, depending on the fixture's parameter."""
    (folder / "server").mkdir()
    if request.param == "one":
        with Serving(folder / "server", **options) as server:
            yield server
        return
    dsn = request.getfixturevalue("postgres_server").dsn()
    schema = request.getfixturevalue("postgres_schema")
    with Nodes(folder / "server", dsn, schema, **options) as nodes:
        yield nodes
