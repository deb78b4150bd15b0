"""The schema of an SQLite store's file: its tables by format, and the migration of older files."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from holdfast.errors import StoreError

FORMAT = 6  # PRAGMA user_version; a newer Holdfast writes a higher one
APPLICATION = 0x486F6C64  # PRAGMA application_id: "Hold"

# The number of WAL pages that triggers a checkpoint, after which the WAL is reused from its start.
# Rare checkpoints are cheaper: an append writes three pages, mostly the same ones, and each
# checkpoint copies and syncs them. With 100 pages, an append without syncs took 1.4 times the CPU
# and twice the time. But every fsync also writes metadata while the WAL grows. The first 250
# durable appends of a new store took 1.4 times as long with 1,000 pages as with 250.
SMALL_WAL_PAGES, LARGE_WAL_PAGES = 250, 1000

# Format 1. One clustered tree for all events: the key is (conversation number << 32) + seq, so that
# a journal is a range. AUTOINCREMENT: the number of a deleted conversation is never reused.
_FIRST = (
    (
        "CREATE TABLE conversations (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL"
        " UNIQUE, epoch INTEGER NOT NULL, holder TEXT NOT NULL, last_seq INTEGER NOT NULL, status"
        " TEXT NOT NULL, title TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL)"
    ),
    "CREATE TABLE events (key INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
)

# Format 2: notes, forks, inboxes and blobs.
#
# base: the events that a fork shares, as JSON [[number, last seq], ...] in order; its own events
# follow the last one.
#
# inbox: data is NULL once the command is done; the row stays, so that its key remains known. A row
# with the key '' whose conversation does not exist marks events of that number for freeing (see
# `lineage`).
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
    # Partial indexes, so that an append touches none of them.
    "CREATE INDEX conversations_held ON conversations(holder, epoch) WHERE holder <> ''",
    "CREATE INDEX conversations_forked ON conversations(base) WHERE base <> ''",
    "CREATE INDEX inbox_undone ON inbox(conversation, number) WHERE data IS NOT NULL",
    "CREATE INDEX inbox_freeing ON inbox(conversation) WHERE key = ''",
    "CREATE INDEX blob_refs_by_id ON blob_refs(id)",
)

# Format 3: trees of conversations, and their budgets (see `budgets`).
_THIRD = (
    "ALTER TABLE conversations ADD COLUMN spawned_by TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX conversations_spawned ON conversations(spawned_by) WHERE spawned_by <> ''",
    # root: the id of the tree's root conversation. Costs are whole billionths of a dollar, so that
    # sums are exact.
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

# Format 4: the errors of refused commands, as JSON.
_FOURTH = ("ALTER TABLE inbox ADD COLUMN refusal BLOB",)

# Format 5: the index of timers. due: microseconds since 1970, UTC.
_FIFTH = (
    (
        "CREATE TABLE timers (conversation INTEGER NOT NULL, timer TEXT NOT NULL, due INTEGER NOT"
        " NULL, PRIMARY KEY(conversation, timer)) WITHOUT ROWID"
    ),
    "CREATE INDEX timers_due ON timers(due)",
)

# Format 6: the tags of a conversation, a JSON array; '' for none.
_SIXTH = (
    "ALTER TABLE conversations ADD COLUMN tags TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX conversations_tagged ON conversations(number) WHERE tags <> ''",
)


def clear_log(timeout: float) -> str:
    """Return statements that empty the write-ahead log, which otherwise holds deleted content until
    it is overwritten. The statements wait for readers only briefly, since writers wait
    meanwhile."""
    waits = f"PRAGMA busy_timeout = {round(timeout * 1000)}"
    return f"PRAGMA busy_timeout = 100; PRAGMA wal_checkpoint(TRUNCATE); {waits}"


def format_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the file's format, 0 if the file is empty. Raises `StoreError` if the file is no store
    or was written by a newer Holdfast, and `sqlite3.Error`."""
    db.execute("BEGIN")  # one snapshot: another process may be creating the file right now
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
    """Create or migrate the tables, and configure the connection. Safe in parallel."""
    if format_of(db, path) == 0:
        # Only possible before the first table exists; later it takes a VACUUM. A migrated file
        # therefore reuses freed pages but does not shrink.
        _insist(db, "PRAGMA auto_vacuum = INCREMENTAL", timeout)
    mode = _insist(db, "PRAGMA journal_mode = WAL", timeout)
    # If SQLite cannot create the log, it continues without one and without our sync guarantees.
    if mode != "wal":
        raise StoreError(
            f"Store {str(path)!r} cannot be used: its disk refuses SQLite's write-ahead log"
            f" (journal_mode stays {mode!r})."
        )
    durable = durability == "durable"
    db.execute("PRAGMA secure_delete = ON")  # its default depends on how SQLite was built
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    db.execute(f"PRAGMA wal_autocheckpoint = {SMALL_WAL_PAGES if durable else LARGE_WAL_PAGES}")
    # One event of 100 MB must not leave a WAL of that size for ever.
    db.execute("PRAGMA journal_size_limit = 8000000")
    db.execute("BEGIN IMMEDIATE")
    try:
        format = format_of_locked(db)
        for statement in (
            *(_FIRST if format < 1 else ()),
            *(_SECOND if format < 2 else ()),
            *(_THIRD if format < 3 else ()),
            *(_FOURTH if format < 4 else ()),
            *(_FIFTH if format < 5 else ()),
            *(_SIXTH if format < 6 else ()),
        ):
            if not _is_done(db, statement):
                db.execute(statement)
        if format < FORMAT:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        else:
            # Fail now if the file cannot be written, not at the first append. BEGIN IMMEDIATE alone
            # also succeeds on a read-only file.
            db.execute("UPDATE conversations SET epoch = epoch WHERE number = 0")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _is_done(db: sqlite3.Connection, statement: str) -> bool:
    """Return True if the object that a statement adds exists. An older Holdfast that had the file
    open may have written its own format over a newer one."""
    match statement.split()[:6]:
        case ["ALTER", "TABLE", name, "ADD", "COLUMN", column]:
            columns = db.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
            return (column,) in columns
        case ["CREATE", "TABLE" | "INDEX" as kind, name, *_]:
            query = "SELECT 1 FROM sqlite_master WHERE type = ? AND name = ?"
            return db.execute(query, (kind.lower(), name)).fetchone() is not None
        case _:
            return False


def format_of_locked(db: sqlite3.Connection) -> int:
    """Return the format of a store's file, inside a transaction."""
    return db.execute("PRAGMA user_version").fetchone()[0]


def _insist(db: sqlite3.Connection, statement: str, timeout: float) -> object:
    """Return the answer of a statement, retried while other processes hold the file."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            row = db.execute(statement).fetchone()
            return row[0] if row else None
        except sqlite3.OperationalError as error:
            # If several processes open a new file at once, SQLite fails for some immediately,
            # ignoring the timeout.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
