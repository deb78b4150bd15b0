"""The schema of an SQLite store's file: its tables by format, and the migration of older files."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from holdfast.errors import StoreError

FORMAT = 3  # PRAGMA user_version; a file of a higher one was written by a newer Holdfast
APPLICATION = 0x486F6C64  # PRAGMA application_id: "Hold"

# Pages in the WAL from which on it is checkpointed and used again from its beginning. Rarely is
# better: an append writes three pages, mostly the same ones, and each checkpoint copies and syncs
# them. (With 100 pages an append without syncs took 1.4 times the CPU and twice the time.) But
# while the file grows every fsync writes metadata too, so that the first 250 durable appends of a
# new store took 1.4 times as long with 1,000 pages as with 250.
NARROW, WIDE = 250, 1000

# Format 1. One clustered tree for all events: the key is (conversation number << 32) + seq, so that
# a journal is a range. AUTOINCREMENT: a deleted conversation's number is never given to another.
_FIRST = (
    (
        "CREATE TABLE conversations (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL"
        " UNIQUE, epoch INTEGER NOT NULL, holder TEXT NOT NULL, last_seq INTEGER NOT NULL, status"
        " TEXT NOT NULL, title TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL)"
    ),
    "CREATE TABLE events (key INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
)

# Format 2: notes, forks, inboxes and blobs. base: a fork's events that stand elsewhere, as JSON
# [[number, last seq], ...] in order; behind the last come its own. inbox: data is NULL when the
# command was done; its row stays, so that the key is known. A row with the key '' of a conversation
# that is not there says that events of that number are still to be freed (see `lineage`).
_SECOND = (
    "ALTER TABLE conversations ADD COLUMN notes TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE conversations ADD COLUMN parent TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE conversations ADD COLUMN parent_seq INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE conversations ADD COLUMN base TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE conversations ADD COLUMN condensed INTEGER NOT NULL DEFAULT 0",
    (
        "CREATE TABLE inbox (number INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT"
        " NULL, key TEXT NOT NULL, data BLOB, UNIQUE(conversation, key))"
    ),
    "CREATE TABLE blobs (id TEXT PRIMARY KEY, data BLOB NOT NULL)",
    (
        "CREATE TABLE blob_refs (key INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY(key, id))"
        " WITHOUT ROWID"
    ),
    # Partial, so that an append touches none of them.
    "CREATE INDEX conversations_held ON conversations(holder, epoch) WHERE holder <> ''",
    "CREATE INDEX conversations_forked ON conversations(base) WHERE base <> ''",
    "CREATE INDEX inbox_undone ON inbox(conversation, number) WHERE data IS NOT NULL",
    "CREATE INDEX inbox_freeing ON inbox(conversation) WHERE key = ''",
    "CREATE INDEX blob_refs_by_id ON blob_refs(id)",
)

# Format 3: trees of conversations, and what they may spend (see `budgets`).
_THIRD = (
    "ALTER TABLE conversations ADD COLUMN spawned_by TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX conversations_spawned ON conversations(spawned_by) WHERE spawned_by <> ''",
    # root: the id of the conversation whose tree it is. Costs are in billionths of a dollar: sums
    # of whole numbers stay what they are.
    (
        "CREATE TABLE budgets (root TEXT PRIMARY KEY, most_steps INTEGER, most_tokens INTEGER,"
        " most_cost INTEGER, most_seconds REAL, steps INTEGER NOT NULL DEFAULT 0, tokens INTEGER"
        " NOT NULL DEFAULT 0, cost INTEGER NOT NULL DEFAULT 0, held_steps INTEGER NOT NULL DEFAULT"
        " 0, held_tokens INTEGER NOT NULL DEFAULT 0, held_cost INTEGER NOT NULL DEFAULT 0, seconds"
        " REAL NOT NULL DEFAULT 0, since REAL NOT NULL DEFAULT 0, until REAL NOT NULL DEFAULT 0,"
        " gaps TEXT NOT NULL DEFAULT '') WITHOUT ROWID"
    ),
    (
        "CREATE TABLE reservations (key TEXT NOT NULL, root TEXT NOT NULL, conversation INTEGER NOT"
        " NULL, epoch INTEGER NOT NULL, steps INTEGER NOT NULL, tokens INTEGER NOT NULL, cost"
        " INTEGER NOT NULL, PRIMARY KEY(key, root)) WITHOUT ROWID"
    ),
)


def format_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the file's format, 0 if the file is empty.

    Raises `StoreError` if the file is no store or was written by a newer Holdfast, and
    `sqlite3.Error`.
    """
    db.execute("BEGIN")  # one look: another process may be making the file right now
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    finally:
        db.execute("COMMIT")
    if version > FORMAT and application == APPLICATION:
        raise StoreError(
            f"Store {str(path)!r} was written by a newer Holdfast (format {version}, this one reads"
            f" {FORMAT})."
        )
    if application != APPLICATION and not (application == 0 and empty):
        raise StoreError(f"{str(path)!r} is an SQLite file, but not a Holdfast store.")
    return version if application else 0


def prepare(db: sqlite3.Connection, path: Path, durability: str, timeout: float) -> None:
    """Create or migrate the tables, and configure the connection for writing. Several processes
    may do so at once."""
    if format_of(db, path) == 0:
        # Before the first table is made; later it would take a VACUUM, so a migrated file reuses
        # what is freed but does not shrink.
        _insist(db, "PRAGMA auto_vacuum = INCREMENTAL", timeout)
    mode = _insist(db, "PRAGMA journal_mode = WAL", timeout)
    if (
        mode != "wal"
    ):  # where SQLite cannot make the log it says so and goes on without one, that is, without what is said here of syncs
        raise StoreError(
            f"Store {str(path)!r} cannot be used: its disk refuses SQLite's write-ahead log"
            f" (journal_mode stays {mode!r})."
        )
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'durable' else 'NORMAL'}")
    db.execute(f"PRAGMA wal_autocheckpoint = {NARROW if durability == 'durable' else WIDE}")
    db.execute(
        "PRAGMA journal_size_limit = 8000000"
    )  # one event of 100 MB must not leave a WAL of that size for ever
    db.execute("BEGIN IMMEDIATE")
    try:
        found = format_of_locked(db)
        for statement in (
            *(_FIRST if found < 1 else ()),
            *(_SECOND if found < 2 else ()),
            *(_THIRD if found < 3 else ()),
        ):
            db.execute(statement)
        if found < FORMAT:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        else:
            # whether it can be written is said now, not at the first append; BEGIN IMMEDIATE alone
            # is content with reading
            db.execute("UPDATE conversations SET epoch = epoch WHERE number = 0")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def format_of_locked(db: sqlite3.Connection) -> int:
    """Return the format of a store's file, inside a transaction."""
    return db.execute("PRAGMA user_version").fetchone()[0]


def _insist(db: sqlite3.Connection, statement: str, timeout: float) -> object:
    """Return the answer of a statement. Retry until the deadline while other processes hold the
    file."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = db.execute(statement).fetchone()
            return found[0] if found else None
        except sqlite3.OperationalError as error:
            # Of several processes that open a new file at once, some are told so at once, whatever
            # the timeout.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
