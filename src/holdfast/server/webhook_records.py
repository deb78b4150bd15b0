"""The stored data of webhooks, in tables of their own in the records file: each webhook, and its
position in each conversation.

There is no queue: unsent events are those in the journal after the cursor. A conversation
without a cursor starts at its first event, a fork at its first own event.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from holdfast.errors import Conflict, ConversationNotFound, TooMany
from holdfast.server.records import Records

# An older server ignores these tables.
_TABLES = (
    (
        "CREATE TABLE IF NOT EXISTS webhooks (number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT"
        " NOT NULL, id TEXT NOT NULL, conversation TEXT NOT NULL, state TEXT NOT NULL, sealed BLOB"
        " NOT NULL, digest BLOB NOT NULL, created TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT"
        " 0, since REAL NOT NULL DEFAULT 0, again REAL NOT NULL DEFAULT 0, error TEXT NOT NULL"
        " DEFAULT '', UNIQUE(tenant, id))"
    ),
    (
        "CREATE TABLE IF NOT EXISTS webhook_cursors (webhook INTEGER NOT NULL, conversation TEXT"
        " NOT NULL, seq INTEGER NOT NULL, attempts INTEGER NOT NULL, since REAL NOT NULL, again"
        " REAL NOT NULL, error TEXT NOT NULL, PRIMARY KEY(webhook, conversation)) WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS webhook_cursors_by_conversation ON webhook_cursors(conversation)",
    (
        "CREATE INDEX IF NOT EXISTS webhook_cursors_failing ON webhook_cursors(webhook,"
        " conversation) WHERE attempts > 0"
    ),
    (
        "CREATE TABLE IF NOT EXISTS webhook_dead (webhook INTEGER NOT NULL, conversation TEXT NOT"
        " NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL, at REAL NOT"
        " NULL, error TEXT NOT NULL, PRIMARY KEY(webhook, conversation, first)) WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS webhook_dead_by_conversation ON webhook_dead(conversation)",
)

_COLUMNS = (
    "number, tenant, id, conversation, state, sealed, digest, created, failures, since, again,"
    " error"
)
_CHUNK_ROWS = 2000  # rows of one transaction, because other threads wait for it

Kind = Literal["making", "active", "disabled", "gone"]


class WebhookTarget(msgspec.Struct, frozen=True):
    """The sealed data of a webhook: its URL, event filter and signing secrets. `old` is valid
    besides `secret` until the time `until` (seconds since 1970)."""

    url: str
    secret: str
    events: tuple[str, ...] = ()
    old: str = ""
    until: float = 0.0

    def secrets(self, now: float) -> tuple[str, ...]:
        """Return the secrets to sign with, newest first."""
        return (self.secret, self.old) if self.old and now < self.until else (self.secret,)

    def __repr__(self) -> str:
        return "Target(...)"


class WebhookRecord(msgspec.Struct, frozen=True):
    """One webhook's record.

    `conversation` is the store id of the only conversation that it covers, or "" for all of the
    tenant's. The webhook as a whole has failed `failures` times in a row, first at `since`, and
    is tried again at `again`.
    """

    number: int
    tenant: str
    id: str
    conversation: str
    state: Kind
    target: WebhookTarget
    digest: bytes
    created: datetime
    failures: int = 0
    since: float = 0.0
    again: float = 0.0
    error: str = ""


class WebhookCursor(msgspec.Struct, frozen=True):
    """The position of a webhook in a conversation. Events up to `seq` are finished; the next one
    has failed `attempts` times since `since`."""

    seq: int
    attempts: int = 0
    since: float = 0.0
    again: float = 0.0
    error: str = ""


class DeadRange(msgspec.Struct, frozen=True):
    """Events that were given up: `count` of those from `first` to `last`."""

    first: int
    last: int
    count: int
    at: float
    error: str


class WebhookRecords:
    """The webhooks' tables in the records file. Thread-safe. Raises `StoreError`."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._seal = records.seal
        with records.writing() as db:
            for statement in _TABLES:
                db.execute(statement)
            for (number,) in db.execute(
                "SELECT number FROM webhooks WHERE state = 'making'"
            ).fetchall():
                _remove(db, number)

    # --- webhooks ---

    def add(
        self,
        tenant: str,
        id: str,
        conversation: str,
        target: WebhookTarget,
        digest: bytes,
        most: int,
    ) -> tuple[WebhookRecord, bool]:
        """Add a webhook in the state `making` and return it with True. If the same request has
        already created it under this id, return it with False.

        Raises `Conflict` if another request created it, and `TooMany` beyond `most` webhooks.
        """
        with self._records.writing() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM webhooks WHERE tenant = ? AND id = ?", (tenant, id)
            ).fetchone()
            if row is not None:
                if bytes(row[6]) != digest:
                    raise Conflict(
                        "The idempotency key was used for another webhook; use a new one for each."
                    )
                return self._kept(row), False
            count = db.execute(
                "SELECT count(*) FROM webhooks WHERE tenant = ?", (tenant,)
            ).fetchone()[0]
            if count >= most:
                raise TooMany(
                    f"Tenant {tenant!r} has {count} webhooks, which is this server's limit.",
                    "webhooks",
                )
            created = datetime.now(UTC)
            values = (
                tenant,
                id,
                conversation,
                "making",
                self._sealed(tenant, id, target),
                digest,
                created.isoformat(),
            )
            query = (
                "INSERT INTO webhooks (tenant, id, conversation, state, sealed, digest, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
            )
            number = db.execute(query, values).lastrowid
            assert number is not None
            return WebhookRecord(
                number, tenant, id, conversation, "making", target, digest, created
            ), True

    def find(self, tenant: str, id: str) -> WebhookRecord:
        """Return a webhook. Raises `ConversationNotFound` if it does not exist."""
        with self._records.reading() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM webhooks WHERE tenant = ? AND id = ? AND state <>"
                " 'making'",
                (tenant, id),
            ).fetchone()
        if row is None:
            raise ConversationNotFound(f"No webhook {id!r} on this server.")
        return self._kept(row)

    def all(self, tenant: str | None = None) -> list[WebhookRecord]:
        """Return the webhooks of one tenant or of all, oldest first."""
        with self._records.reading() as db:
            query = (
                f"SELECT {_COLUMNS} FROM webhooks WHERE state <> 'making' AND (?1 IS NULL OR tenant"
                " = ?1) ORDER BY number"
            )
            rows = db.execute(query, (tenant,)).fetchall()
        return [self._kept(row) for row in rows]

    def change(self, kept: WebhookRecord) -> None:
        """Store a webhook's state, target and failures."""
        values = (
            kept.state,
            self._sealed(kept.tenant, kept.id, kept.target),
            kept.failures,
            kept.since,
            kept.again,
            kept.error,
            kept.number,
        )
        with self._records.writing() as db:
            db.execute(
                "UPDATE webhooks SET state = ?, sealed = ?, failures = ?, since = ?, again = ?,"
                " error = ? WHERE number = ?",
                values,
            )

    def save_failures(
        self, number: int, failures: int, since: float, again: float, error: str
    ) -> None:
        """Store the failures of a webhook as a whole."""
        with self._records.writing(forced=False) as db:
            db.execute(
                "UPDATE webhooks SET failures = ?, since = ?, again = ?, error = ? WHERE"
                " number = ?",
                (failures, since, again, error, number),
            )

    def remove(self, number: int) -> None:
        """Delete a webhook and its cursors."""
        with self._records.writing() as db:
            _remove(db, number)

    # --- conversations ---

    def begin(self, number: int, cursors: Iterable[tuple[str, int]]) -> None:
        """Set the start positions of a webhook in existing conversations."""
        rows = [(number, conversation, seq) for conversation, seq in cursors]
        for at in range(0, len(rows), _CHUNK_ROWS):
            with self._records.writing() as db:
                db.executemany(
                    "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, 0, 0, 0, '')",
                    rows[at : at + _CHUNK_ROWS],
                )

    def cursor(self, number: int, conversation: str) -> WebhookCursor | None:
        """Return the position in one conversation, or None."""
        query = (
            "SELECT seq, attempts, since, again, error FROM webhook_cursors WHERE webhook = ? AND"
            " conversation = ?"
        )
        with self._records.reading() as db:
            row = db.execute(query, (number, conversation)).fetchone()
        return None if row is None else WebhookCursor(*row)

    def cursors(self, number: int) -> Mapping[str, int]:
        """Return the positions in all known conversations, by store id."""
        with self._records.reading() as db:
            return dict(
                db.execute(
                    "SELECT conversation, seq FROM webhook_cursors WHERE webhook = ?", (number,)
                ).fetchall()
            )

    def save(self, number: int, conversation: str, cursor: WebhookCursor) -> None:
        """Store a position. A power loss may undo this; then some events are sent again."""
        values = (
            number,
            conversation,
            cursor.seq,
            cursor.attempts,
            cursor.since,
            cursor.again,
            cursor.error,
        )
        with self._records.writing(forced=False) as db:
            db.execute(
                "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )

    def give_up(
        self, number: int, conversation: str, cursor: WebhookCursor, at: float, error: str
    ) -> None:
        """Give up event `cursor.seq`, and store the cursor after it."""
        with self._records.writing() as db:
            known = (
                "SELECT first, count FROM webhook_dead WHERE webhook = ? AND conversation = ? ORDER"
                " BY first DESC LIMIT 1"
            )
            row = db.execute(known, (number, conversation)).fetchone()
            if row is not None and cursor.since and self._joins(db, number, conversation, cursor):
                query = (
                    "UPDATE webhook_dead SET last = ?, count = count + 1, at = ?, error = ? WHERE"
                    " webhook = ? AND conversation = ? AND first = ?"
                )
                db.execute(query, (cursor.seq, at, error, number, conversation, row[0]))
            else:
                query = "INSERT OR REPLACE INTO webhook_dead VALUES (?, ?, ?, ?, 1, ?, ?)"
                db.execute(query, (number, conversation, cursor.seq, cursor.seq, at, error))
            values = (
                number,
                conversation,
                cursor.seq,
                cursor.attempts,
                cursor.since,
                cursor.again,
                cursor.error,
            )
            db.execute(
                "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )

    def _joins(
        self, db: sqlite3.Connection, number: int, conversation: str, cursor: WebhookCursor
    ) -> bool:
        """Return True if every event since the last given-up one was given up too. Then one row
        holds them all."""
        query = "SELECT max(at) FROM webhook_dead WHERE webhook = ? AND conversation = ?"
        last = db.execute(query, (number, conversation)).fetchone()[0]
        # An accepted event in between would have ended the period of failures.
        return last is not None and last >= cursor.since

    def failing(
        self, number: int, after: str, limit: int
    ) -> list[tuple[str, WebhookCursor | None, list[DeadRange]]]:
        """Return the conversations in which the webhook fails or has given up events, ordered by
        id."""
        union = (
            "SELECT conversation FROM webhook_cursors WHERE webhook = ?1 AND attempts > 0 AND"
            " conversation > ?2 UNION SELECT conversation FROM webhook_dead WHERE webhook = ?1 AND"
            " conversation > ?2 ORDER BY conversation LIMIT ?3"
        )
        with self._records.reading() as db:
            found: list[tuple[str, WebhookCursor | None, list[DeadRange]]] = []
            for (id,) in db.execute(union, (number, after, limit)).fetchall():
                query = (
                    "SELECT seq, attempts, since, again, error FROM webhook_cursors WHERE webhook ="
                    " ? AND conversation = ?"
                )
                row = db.execute(query, (number, id)).fetchone()
                query = (
                    "SELECT first, last, count, at, error FROM webhook_dead WHERE webhook = ? AND"
                    " conversation = ? ORDER BY first"
                )
                dead = [DeadRange(*one) for one in db.execute(query, (number, id)).fetchall()]
                found.append((id, None if row is None else WebhookCursor(*row), dead))
            return found

    def counts(self, number: int) -> tuple[int, int]:
        """Return the number of failing conversations and the number of given-up events."""
        with self._records.reading() as db:
            failing = db.execute(
                "SELECT count(*) FROM webhook_cursors WHERE webhook = ? AND attempts > 0", (number,)
            ).fetchone()[0]
            dead = db.execute(
                "SELECT coalesce(sum(count), 0) FROM webhook_dead WHERE webhook = ?", (number,)
            ).fetchone()[0]
        return int(failing), int(dead)

    def rewind(self, number: int, conversation: str | None, after_seq: int | None) -> int:
        """Set the cursor before the first given-up event, in one conversation or all, or to
        `after_seq` in one. Return the number of given-up events that are sent again."""
        with self._records.writing() as db:
            where, values = (
                ("webhook = ? AND conversation = ?", (number, conversation))
                if conversation is not None
                else ("webhook = ?", (number,))
            )
            query = (
                f"SELECT conversation, min(first), sum(count) FROM webhook_dead WHERE {where} GROUP"
                " BY conversation"
            )
            found: list[tuple[str, int, int]] = db.execute(query, values).fetchall()
            if after_seq is not None and conversation is not None:
                found = [(conversation, after_seq + 1, found[0][2] if found else 0)]
            for id, first, _ in found:
                db.execute(
                    "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, 0, 0, 0, '')",
                    (number, id, first - 1),
                )
                db.execute(
                    "DELETE FROM webhook_dead WHERE webhook = ? AND conversation = ? AND last >= ?",
                    (number, id, first),
                )
            return sum(count for _, _, count in found)

    def retry(self, number: int) -> None:
        """Reset all failures, so that failed events are tried again at once."""
        with self._records.writing() as db:
            db.execute(
                "UPDATE webhook_cursors SET attempts = 0, since = 0, again = 0, error = '' WHERE"
                " webhook = ? AND attempts > 0",
                (number,),
            )

    def forget(self, conversation: str) -> list[WebhookRecord]:
        """Delete the data about a removed conversation. Return the webhooks that covered only
        this conversation, which are deleted too."""
        with self._records.writing() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM webhooks WHERE conversation = ?", (conversation,)
            ).fetchall()
            for row in rows:
                _remove(db, row[0])
            db.execute("DELETE FROM webhook_cursors WHERE conversation = ?", (conversation,))
            db.execute("DELETE FROM webhook_dead WHERE conversation = ?", (conversation,))
        return [self._kept(row) for row in rows]

    def conversations(self) -> Sequence[str]:
        """Return the store ids of all conversations with data."""
        with self._records.reading() as db:
            query = (
                "SELECT conversation FROM webhook_cursors UNION SELECT conversation FROM"
                " webhook_dead"
            )
            return [id for (id,) in db.execute(query)]

    # --- sealed ---

    def _sealed(self, tenant: str, id: str, target: WebhookTarget) -> bytes:
        return self._seal.seal(msgspec.json.encode(target), _about(tenant, id))

    def _kept(self, row: tuple[Any, ...]) -> WebhookRecord:
        number, tenant, id, conversation, state, sealed, digest, created, *standing = row
        target = msgspec.json.decode(
            self._seal.open(bytes(sealed), _about(tenant, id)), type=WebhookTarget
        )
        return WebhookRecord(
            number,
            tenant,
            id,
            conversation,
            state,
            target,
            bytes(digest),
            datetime.fromisoformat(created),
            *standing,
        )


def _about(tenant: str, id: str) -> str:
    return f"webhook {tenant}/{id}"


def _remove(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM webhooks WHERE number = ?", (number,))
    db.execute("DELETE FROM webhook_cursors WHERE webhook = ?", (number,))
    db.execute("DELETE FROM webhook_dead WHERE webhook = ?", (number,))
