"""The fleet's tables in the schema of a Postgres store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar, cast

from holdfast import store as stores
from holdfast.fleet.database import FleetDatabase, FleetStatements
from holdfast.store.nul_text import escaped, unescaped

if TYPE_CHECKING:
    from holdfast.store.postgres.pool import Cursor

T = TypeVar("T")
_CONNECTIONS = 4  # for the thread that claims, the one that tends, and wakes of others
_TIMEOUT_SECONDS = 10.0  # while the database is away; a worker then tries again


_WORDS = {
    "p": "",
    "skip": "FOR UPDATE SKIP LOCKED",
    "now": "extract(epoch FROM clock_timestamp())::float8",
}


_TYPES = {str: "text", int: "bigint", float: "float8"}


class _PostgresStatements:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._cursor.execute(_statement(sql), _escape(values))
        if not self._cursor.pgresult or not self._cursor.pgresult.nfields:
            return []
        return [_unescape(row) for row in self._cursor.fetchall()]

    def run_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        # Arrays, since the driver takes long to read a statement with many parameters.
        arrays = ", ".join(f"?::{_TYPES[type(value)]}[]" for value in rows[0])
        columns = [_escape(column) for column in zip(*rows, strict=True)]
        self.run(sql.replace("{rows}", f"SELECT * FROM unnest({arrays})"), columns)

    def serialize(self, name: str) -> None:
        query = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || %s))"
        self._cursor.execute(query, (escaped(f".{name}"),))


@cache
def _statement(sql: str) -> LiteralString:
    return cast("LiteralString", sql.format_map(_WORDS).replace("?", "%s"))


def _escape(values: Sequence[Any]) -> list[Any]:
    return [escaped(one) if isinstance(one, str) else one for one in values]


def _unescape(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(unescaped(one) if isinstance(one, str) else one for one in row)


class PostgresFleetDatabase(FleetDatabase):
    """The fleet's tables in the schema of the Postgres store at `dsn`."""

    def __init__(self, dsn: str, schema: str) -> None:
        # It takes no lease, and so has no owner and no threads. psycopg is imported only here.
        self._store = stores.PostgresStore(
            dsn, schema=schema, pool_size=_CONNECTIONS, timeout=_TIMEOUT_SECONDS
        )
        self.pool = self._store.pool

    def prepare(self, statements: Sequence[str], unless: str = "", script: str = "") -> None:
        """Execute statements that create tables, one process at a time. Before them execute the
        `script`, if there is no table `unless` in the schema."""

        def work(db: Cursor) -> None:
            # Two processes that create a table at once would fail, although it says IF NOT EXISTS.
            _PostgresStatements(db).serialize("fleet")
            if unless:
                query = (
                    "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = %s"
                )
                if db.execute(query, (unless,)).fetchone() is None:
                    # Several statements at once go to the server as text, without parameters.
                    db.connection.pgconn.exec_(script.encode())
            for one in statements:
                _PostgresStatements(db).run(one)

        self.pool.run(work)

    def transact(self, work: Callable[[FleetStatements], T]) -> T:
        return self.pool.run(lambda db: work(_PostgresStatements(db)))

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows = self.pool.execute(_statement(sql), _escape(values)).rows
        return [_unescape(row) for row in rows]

    def within(self, transaction: object) -> FleetStatements:
        return _PostgresStatements(cast("Cursor", transaction))

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return repr(self.pool.place)
