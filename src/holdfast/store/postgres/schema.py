"""The tables of a Postgres store by format, and their migration."""

from __future__ import annotations

from typing import LiteralString

from psycopg import Connection, sql
from psycopg.rows import TupleRow

from holdfast.errors import StoreError

FORMAT = 2  # in the table `about`; a newer Holdfast writes a higher one

# Format 1.
#
# Ids and keys may have any length, which an index of values does not take. A hash index does, and
# EXCLUDE ... USING hash (x WITH =) makes its column unique.
#
# An epoch is issued once for all conversations, so that no old lease fits a conversation that was
# deleted and created again. An append changes no indexed column of `conversations`, and the table's
# fillfactor leaves room on the page. The new version of the row then needs no new index entry.
_FIRST: tuple[LiteralString, ...] = (
    "CREATE SEQUENCE epochs",
    # beat: the last sign of life, by the clock of the database. A store's leases end `lease` later.
    """
    CREATE TABLE owners (
        token text PRIMARY KEY,
        beat timestamptz NOT NULL,
        lease interval NOT NULL,
        channel text NOT NULL,
        label text NOT NULL
    ) WITH (fillfactor = 50)
    """,
    # owner: the token of the lease's holder, '' for none. shared: the number of events that a fork
    # has in common with others (see `shares`). spawner: the conversation of the call `spawned_by`.
    # needs: the version of the journal that a worker must know to drive the conversation.
    """
    CREATE TABLE conversations (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        epoch bigint NOT NULL,
        last_seq integer NOT NULL DEFAULT 0,
        condensed integer NOT NULL DEFAULT 0,
        shared integer NOT NULL DEFAULT 0,
        parent_seq integer NOT NULL DEFAULT 0,
        needs integer NOT NULL DEFAULT 1,
        created timestamptz NOT NULL,
        updated timestamptz NOT NULL,
        id text NOT NULL,
        owner text NOT NULL DEFAULT '',
        status text NOT NULL DEFAULT 'idle',
        title text NOT NULL DEFAULT '',
        parent text NOT NULL DEFAULT '',
        spawned_by text NOT NULL DEFAULT '',
        spawner text NOT NULL DEFAULT '',
        notes text NOT NULL DEFAULT '',
        CONSTRAINT conversations_id EXCLUDE USING hash (id WITH =)
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX conversations_owned ON conversations (owner) WHERE owner <> ''",
    """
    CREATE INDEX conversations_parked ON conversations (number)
    WHERE status = 'running' AND owner = '' AND spawned_by = ''
    """,
    "CREATE INDEX conversations_spawned ON conversations USING hash (spawner) WHERE spawner <> ''",
    """
    CREATE TABLE events (
        conversation bigint NOT NULL,
        crc bigint NOT NULL,
        seq integer NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (conversation, seq)
    )
    """,
    # The events `after` + 1 to `last` of `fork` are those of the number `source`.
    """
    CREATE TABLE shares (
        fork bigint NOT NULL,
        source bigint NOT NULL,
        after integer NOT NULL,
        last integer NOT NULL,
        PRIMARY KEY (fork, after)
    )
    """,
    "CREATE INDEX shares_by_source ON shares (source)",
    # data is NULL once the command is done; the row stays, so that its key remains known.
    """
    CREATE TABLE inbox (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        conversation bigint NOT NULL,
        key text NOT NULL,
        data bytea,
        refusal bytea,
        CONSTRAINT inbox_key EXCLUDE USING hash ((conversation::text || ':' || key) WITH =)
    )
    """,
    "CREATE INDEX inbox_by_conversation ON inbox (conversation)",
    "CREATE INDEX inbox_undone ON inbox (conversation, number) WHERE data IS NOT NULL",
    "CREATE TABLE blobs (id text PRIMARY KEY, data bytea NOT NULL)",
    """
    CREATE TABLE blob_refs (
        conversation bigint NOT NULL,
        seq integer NOT NULL,
        id text NOT NULL,
        PRIMARY KEY (conversation, seq, id)
    )
    """,
    "CREATE INDEX blob_refs_by_id ON blob_refs (id)",
    # See holdfast.store.budgets. Costs are whole billionths of a dollar, so that sums are exact.
    """
    CREATE TABLE budgets (
        root text NOT NULL,
        most_steps bigint, most_tokens bigint, most_cost bigint, most_seconds float8,
        steps bigint NOT NULL, tokens bigint NOT NULL, cost bigint NOT NULL,
        held_steps bigint NOT NULL, held_tokens bigint NOT NULL, held_cost bigint NOT NULL,
        seconds float8 NOT NULL, since float8 NOT NULL, until float8 NOT NULL,
        gaps text NOT NULL,
        CONSTRAINT budgets_root EXCLUDE USING hash (root WITH =)
    )
    """,
    """
    CREATE TABLE reservations (
        key text NOT NULL,
        root text NOT NULL,
        conversation bigint NOT NULL,
        epoch bigint NOT NULL,
        steps bigint NOT NULL, tokens bigint NOT NULL, cost bigint NOT NULL
    )
    """,
    "CREATE INDEX reservations_by_key ON reservations USING hash (key)",
    "CREATE INDEX reservations_by_root ON reservations USING hash (root)",
    # One row per timer. Its writer has locked the conversation's row.
    """
    CREATE TABLE timers (
        conversation bigint NOT NULL,
        due timestamptz NOT NULL,
        timer text NOT NULL
    )
    """,
    "CREATE INDEX timers_due ON timers (due, conversation)",
    "CREATE INDEX timers_by_conversation ON timers (conversation)",
    # The channels of the stores that follow a conversation.
    """
    CREATE TABLE watchers (
        conversation bigint NOT NULL,
        channel text NOT NULL,
        PRIMARY KEY (conversation, channel)
    )
    """,
    # name: a connection of a store's pool. number: its last transaction that was committed.
    """
    CREATE TABLE attempts (
        name text PRIMARY KEY,
        number bigint NOT NULL,
        at timestamptz NOT NULL
    ) WITH (fillfactor = 50)
    """,
    # The numbers of deleted conversations whose events are not freed yet.
    "CREATE TABLE garbage (number bigint PRIMARY KEY)",
)

# Format 2: the tags of a conversation. An append that changes none changes no indexed column.
_SECOND: tuple[LiteralString, ...] = (
    "ALTER TABLE conversations ADD COLUMN tags text[] NOT NULL DEFAULT '{}'",
    "CREATE INDEX conversations_tagged ON conversations USING gin (tags) WHERE tags <> '{}'",
)

_STEPS: tuple[tuple[LiteralString, ...], ...] = (_FIRST, _SECOND)

# The catalog's rows, which a wait for the lock makes no older; `to_regclass` answers from a cache.
_ABOUT = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'about'
"""

# The lock of a migration: a number for the schema's name.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast:' || %s, 0))"


def prepare(connection: Connection[TupleRow], schema: str, place: str) -> None:
    """Create or migrate the tables in one transaction. Safe in parallel. The connection's search
    path is the schema; `place` names the database. Raises `StoreError` for tables of a newer
    Holdfast, and `psycopg.Error`."""
    if _format(connection, schema, place) == FORMAT:
        return
    with connection.transaction():
        connection.execute(_LOCK, (schema,))
        format = _format(connection, schema, place)
        if format == FORMAT:
            return
        # Without this query, a role without the right to create schemas could not use one that
        # its administrator created.
        query = "SELECT FROM pg_namespace WHERE nspname = %s"
        if connection.execute(query, (schema,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        if not format:
            connection.execute("CREATE TABLE about (format integer NOT NULL)")
            connection.execute("INSERT INTO about VALUES (0)")
        for step in _STEPS[format:]:
            for statement in step:
                connection.execute(statement)
        connection.execute("UPDATE about SET format = %s", (FORMAT,))


def _format(connection: Connection[TupleRow], schema: str, place: str) -> int:
    """Return the format of the schema's tables, 0 without tables."""
    if connection.execute(_ABOUT, (schema,)).fetchone() is None:
        return 0
    row = connection.execute("SELECT format FROM about").fetchone()
    format = int(row[0]) if row else 0
    if format > FORMAT:
        raise StoreError(
            f"Store {place!r}: schema {schema!r} was written by a newer Holdfast (format {format},"
            f" this one reads {FORMAT}). Upgrade this Holdfast, or name another schema."
        )
    return format
