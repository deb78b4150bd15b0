"""A connection to Postgres that executes prepared statements at a low cost."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, LiteralString, NamedTuple, TypeAlias

import psycopg
from psycopg import generators, waiting
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import RowFactory, TupleRow, tuple_row
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]

_MAX_PREPARED = 200  # a statement beyond them is sent whole each time
_WAIT_SECONDS = 0.1  # between two looks for a signal such as Ctrl-C
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?([sb%])")


class _Parsed(NamedTuple):
    """A statement with the placeholders of the protocol. `names` are those of its values in their
    order, None if the values are a sequence."""

    text: bytes
    names: tuple[str, ...] | None
    formats: list[PyFormat]


class AttemptNumber(NamedTuple):
    """The place of a transaction: its connection's name, and its number there."""

    name: str
    number: int


class PreparedStatements:
    """Executes statements on a connection outside a transaction. Each is prepared when it is used
    for the second time.

    An execution by a cursor of psycopg takes the client as long as an append takes the server. An
    execution here takes half of that.
    """

    def __init__(self, pgconn: PGconn, adapters: AdaptersMap) -> None:
        self._pgconn = pgconn
        self._transformer = Transformer(adapters)  # it knows text as UTF-8, and times as UTC
        # The names of statements on the server, by text and types; b"" for one that was used once.
        self._names: dict[tuple[str, tuple[int, ...] | None], bytes] = {}
        self._count = 0

    def rows(self, query: LiteralString, values: Values = ()) -> list[TupleRow]:
        """Execute a statement with psycopg's placeholders, and return its rows. Raises
        `psycopg.Error`."""
        parts = _parse(query)
        items: Any = values if parts.names is None else [values[name] for name in parts.names]  # pyright: ignore
        if len(items) != len(parts.formats):  # the C code would read beyond the list
            raise TypeError(f"{len(parts.formats)} values are needed, not {len(items)}.")
        parameters = self._transformer.dump_sequence(items, parts.formats)
        types, formats = self._transformer.types, self._transformer.formats
        key = query, types
        name = self._names.get(key)
        if name == b"":
            self._count += 1
            name = b"holdfast_%d" % self._count
            self._pgconn.send_prepare(name, parts.text, types)
            self._answer()
            self._names[key] = name
        if name is None:
            if len(self._names) < _MAX_PREPARED:
                self._names[key] = b""
            self._pgconn.send_query_params(parts.text, parameters, types, formats, 1)
        else:
            self._pgconn.send_query_prepared(name, parameters, formats, 1)
        try:
            result = self._answer()
        except InvalidSqlStatementName:  # a cursor of psycopg deallocates them after a rollback
            self._names.clear()
            return self.rows(query, values)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _answer(self) -> PGresult:
        """Return the result of the sent statement. Raises `psycopg.Error`."""
        execution = generators.execute(self._pgconn)
        result = waiting.wait(execution, self._pgconn.socket, _WAIT_SECONDS)[-1]
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result)
        return result


class Connection(psycopg.Connection[TupleRow]):
    """A connection with prepared statements."""

    def __init__(self, pgconn: PGconn, row_factory: RowFactory[TupleRow] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        # One type for all whole numbers: psycopg takes the smallest that fits, and a prepared
        # statement per combination of types.
        self.adapters.register_dumper(int, Int8Dumper)
        self.adapters.register_dumper(int, Int8BinaryDumper)
        self.statements = PreparedStatements(pgconn, self.adapters)
        self.last_attempt = AttemptNumber(os.urandom(12).hex(), 0)

    def next_attempt(self) -> AttemptNumber:
        """Return the number of the next transaction."""
        name, number = self.last_attempt
        self.last_attempt = AttemptNumber(name, number + 1)
        return self.last_attempt


@cache
def _parse(query: LiteralString) -> _Parsed:
    """Return a statement with the placeholders `%s` and `%b`, or `%(name)s` and `%(name)b`, in the
    form that goes to the server. See `psycopg.Cursor.execute`."""
    names: list[str] = []
    formats: list[PyFormat] = []

    def number_placeholder(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if kind == "%":
            return "%"
        if name is None or name not in names:
            names.append(name or "")
            formats.append(PyFormat.AUTO if kind == "s" else PyFormat.BINARY)
        return f"${len(names) if name is None else names.index(name) + 1}"

    text = _PLACEHOLDER.sub(number_placeholder, query)
    return _Parsed(
        text.encode(), None if any(not name for name in names) else tuple(names), formats
    )
