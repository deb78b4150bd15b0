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

from holdfast.errors import Conflict, NotFound, TooMany
from holdfast.events import AnyEvent
from holdfast.server.records import Records
from holdfast.server.webhooks import wants

# An older server ignores these tables.
_TABLES = """
CREATE TABLE IF NOT EXISTS webhooks (number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL, id TEXT NOT NULL, conversation TEXT NOT NULL, state TEXT NOT NULL,
    sealed BLOB NOT NULL, digest BLOB NOT NULL, created TEXT NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0, since REAL NOT NULL DEFAULT 0,
    again REAL NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '', UNIQUE(tenant, id));
CREATE TABLE IF NOT EXISTS webhook_cursors (webhook INTEGER NOT NULL, conversation TEXT NOT NULL,
    seq INTEGER NOT NULL, attempts INTEGER NOT NULL, since REAL NOT NULL, again REAL NOT NULL,
    error TEXT NOT NULL, PRIMARY KEY(webhook, conversation)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS webhook_cursors_by_conversation ON webhook_cursors(conversation);
CREATE INDEX IF NOT EXISTS webhook_cursors_failing ON webhook_cursors(webhook, conversation)
    WHERE attempts > 0;
CREATE TABLE IF NOT EXISTS webhook_dead (webhook INTEGER NOT NULL, conversation TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL, at REAL NOT NULL,
    error TEXT NOT NULL, PRIMARY KEY(webhook, conversation, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS webhook_dead_by_conversation ON webhook_dead(conversation);
"""

_COLUMNS = (
    "number, tenant, id, conversation, state, sealed, digest, created, failures, since, again,"
    " error"
)
_CURSOR = (
    "SELECT seq, attempts, since, again, error FROM webhook_cursors WHERE webhook = ? AND"
    " conversation = ?"
)
_SAVE_CURSOR = "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, ?, ?, ?, ?)"
_RESET_CURSOR = "INSERT OR REPLACE INTO webhook_cursors VALUES (?, ?, ?, 0, 0, 0, '')"
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

    def wants(self, event: AnyEvent) -> bool:
        """Return True if the filter accepts an event."""
        return wants(self.events, event)

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
            for statement in _TABLES.split(";"):
                db.execute(statement)
            query = "SELECT number FROM webhooks WHERE state = 'making'"
            for (number,) in db.execute(query).fetchall():
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
            kept = WebhookRecord(0, tenant, id, conversation, "making", target, digest, created)
            values = tenant, id, conversation, kept.state, self._sealed(kept), digest
            number = db.execute(
                "INSERT INTO webhooks (tenant, id, conversation, state, sealed, digest, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, created.isoformat()),
            ).lastrowid
            assert number is not None
            return msgspec.structs.replace(kept, number=number), True

    def find(self, tenant: str, id: str) -> WebhookRecord:
        """Return a webhook. Raises `NotFound` if it does not exist."""
        where = "tenant = ? AND id = ? AND state <> 'making'"
        row = self._records.row(f"SELECT {_COLUMNS} FROM webhooks WHERE {where}", tenant, id)
        if row is None:
            raise NotFound(f"No webhook {id!r} on this server.", "webhook", id)
        return self._kept(row)

    def all(self, tenant: str | None = None) -> list[WebhookRecord]:
        """Return the webhooks of one tenant or of all, oldest first."""
        found = self._records.rows(
            f"SELECT {_COLUMNS} FROM webhooks WHERE state <> 'making' ORDER BY number"
        )
        return [self._kept(row) for row in found if tenant in (None, row[1])]

    def change(self, kept: WebhookRecord) -> None:
        """Store a webhook's state, target and failures."""
        self._records.run(
            "UPDATE webhooks SET state = ?, sealed = ?, failures = ?, since = ?, again = ?,"
            " error = ? WHERE number = ?",
            kept.state,
            self._sealed(kept),
            kept.failures,
            kept.since,
            kept.again,
            kept.error,
            kept.number,
        )

    def save_failures(
        self, number: int, failures: int, since: float, again: float, error: str
    ) -> None:
        """Store the failures of a webhook as a whole."""
        statement = "UPDATE webhooks SET failures = ?, since = ?, again = ?, error = ?"
        values = failures, since, again, error, number
        self._records.run(f"{statement} WHERE number = ?", *values, forced=False)

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
                db.executemany(_RESET_CURSOR, rows[at : at + _CHUNK_ROWS])

    def cursor(self, number: int, conversation: str) -> WebhookCursor | None:
        """Return the position in one conversation, or None."""
        row = self._records.row(_CURSOR, number, conversation)
        return None if row is None else WebhookCursor(*row)

    def cursors(self, number: int) -> Mapping[str, int]:
        """Return the positions in all known conversations, by store id."""
        query = "SELECT conversation, seq FROM webhook_cursors WHERE webhook = ?"
        return dict(self._records.rows(query, number))

    def save(self, number: int, conversation: str, cursor: WebhookCursor) -> None:
        """Store a position. A power loss may undo this; then some events are sent again."""
        values = number, conversation, *msgspec.structs.astuple(cursor)
        self._records.run(_SAVE_CURSOR, *values, forced=False)

    def give_up(
        self, number: int, conversation: str, cursor: WebhookCursor, at: float, error: str
    ) -> None:
        """Give up event `cursor.seq`, and store the cursor after it. One row holds consecutive
        events that were given up."""
        place = number, conversation
        with self._records.writing() as db:
            query = (
                "SELECT first, max(at) OVER () FROM webhook_dead WHERE webhook = ? AND"
                " conversation = ? ORDER BY first DESC LIMIT 1"
            )
            row = db.execute(query, place).fetchone()
            # An accepted event in between would have ended the period of failures.
            if row is not None and cursor.since and row[1] >= cursor.since:
                db.execute(
                    "UPDATE webhook_dead SET last = ?, count = count + 1, at = ?, error = ? WHERE"
                    " webhook = ? AND conversation = ? AND first = ?",
                    (cursor.seq, at, error, *place, row[0]),
                )
            else:
                query = "INSERT OR REPLACE INTO webhook_dead VALUES (?, ?, ?, ?, 1, ?, ?)"
                db.execute(query, (*place, cursor.seq, cursor.seq, at, error))
            db.execute(_SAVE_CURSOR, (*place, *msgspec.structs.astuple(cursor)))

    def failing(
        self, number: int, after: str, limit: int
    ) -> list[tuple[str, WebhookCursor | None, list[DeadRange]]]:
        """Return the conversations in which the webhook fails or has given up events, ordered by
        id."""
        union = (
            "SELECT conversation FROM webhook_cursors WHERE webhook = :webhook AND attempts > 0 AND"
            " conversation > :after UNION SELECT conversation FROM webhook_dead WHERE webhook ="
            " :webhook AND conversation > :after ORDER BY conversation LIMIT :limit"
        )
        dead_of = (
            "SELECT first, last, count, at, error FROM webhook_dead WHERE webhook = ? AND"
            " conversation = ? ORDER BY first"
        )
        found: list[tuple[str, WebhookCursor | None, list[DeadRange]]] = []
        with self._records.reading() as db:
            page = {"webhook": number, "after": after, "limit": limit}
            for (id,) in db.execute(union, page).fetchall():
                row = db.execute(_CURSOR, (number, id)).fetchone()
                dead = [DeadRange(*one) for one in db.execute(dead_of, (number, id)).fetchall()]
                found.append((id, None if row is None else WebhookCursor(*row), dead))
        return found

    def counts(self, number: int) -> tuple[int, int]:
        """Return the number of failing conversations and the number of given-up events."""
        cursors = "SELECT count(*) FROM webhook_cursors WHERE webhook = :webhook AND attempts > 0"
        dead = "SELECT coalesce(sum(count), 0) FROM webhook_dead WHERE webhook = :webhook"
        with self._records.reading() as db:
            query = f"SELECT ({cursors}), ({dead})"
            return db.execute(query, {"webhook": number}).fetchone()

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
                db.execute(_RESET_CURSOR, (number, id, first - 1))
                db.execute(
                    "DELETE FROM webhook_dead WHERE webhook = ? AND conversation = ? AND last >= ?",
                    (number, id, first),
                )
            return sum(count for _, _, count in found)

    def retry(self, number: int) -> None:
        """Reset all failures, so that failed events are tried again at once."""
        statement = "UPDATE webhook_cursors SET attempts = 0, since = 0, again = 0, error = ''"
        self._records.run(f"{statement} WHERE webhook = ? AND attempts > 0", number)

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
        query = (
            "SELECT conversation FROM webhook_cursors UNION SELECT conversation FROM webhook_dead"
        )
        return [id for (id,) in self._records.rows(query)]

    # --- sealed ---

    def _sealed(self, kept: WebhookRecord) -> bytes:
        return self._seal.seal(msgspec.json.encode(kept.target), _about(kept.tenant, kept.id))

    def _kept(self, row: tuple[Any, ...]) -> WebhookRecord:
        number, tenant, id, conversation, state, sealed, digest, created, *standing = row
        data = self._seal.open(bytes(sealed), _about(tenant, id))
        target = msgspec.json.decode(data, type=WebhookTarget)
        when, digest = datetime.fromisoformat(created), bytes(digest)
        return WebhookRecord(
            number, tenant, id, conversation, state, target, digest, when, *standing
        )


def _about(tenant: str, id: str) -> str:
    return f"webhook {tenant}/{id}"


def _remove(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM webhooks WHERE number = ?", (number,))
    db.execute("DELETE FROM webhook_cursors WHERE webhook = ?", (number,))
    db.execute("DELETE FROM webhook_dead WHERE webhook = ?", (number,))
