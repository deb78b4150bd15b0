"""The data of webhooks: bodies of requests and answers, and tables with each webhook and its
position in each conversation.

There is no queue: unsent events are those in the journal after the cursor. A conversation
without a cursor starts at its first event, a fork at its first own event.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Conflict, Fenced, NotFound, TooMany
from holdfast.server.database import Statements
from holdfast.server.named_leases import NamedLeases
from holdfast.server.records import Records, tenant_of
from holdfast.server.shapes import RequestBody

# Transactions with this name come one after the other. It also names the lease of the server that
# sends the messages.
WEBHOOKS = "webhooks"
_MAKING = timedelta(minutes=10)  # the longest time in which another server makes a webhook

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
CREATE TABLE IF NOT EXISTS webhook_news (conversation TEXT PRIMARY KEY) WITHOUT ROWID;
"""

_SELECT = (
    "SELECT number, tenant, id, conversation, state, sealed, digest, created, failures, since,"
    " again, error FROM webhooks WHERE"
)
_CURSOR = (
    "SELECT seq, attempts, since, again, error FROM webhook_cursors WHERE webhook = ? AND"
    " conversation = ?"
)
_REPLACE = (
    " ON CONFLICT(webhook, conversation) DO UPDATE SET seq = excluded.seq, attempts ="
    " excluded.attempts, since = excluded.since, again = excluded.again, error = excluded.error"
)
_SAVE_CURSOR = f"INSERT INTO webhook_cursors VALUES (?, ?, ?, ?, ?, ?, ?){_REPLACE}"
_RESET_CURSOR = f"INSERT INTO webhook_cursors VALUES (?, ?, ?, 0, 0, 0, ''){_REPLACE}"
_GIVE_UP = (
    "INSERT INTO webhook_dead VALUES (?, ?, ?, ?, 1, ?, ?) ON CONFLICT(webhook, conversation,"
    " first) DO UPDATE SET last = excluded.last, count = 1, at = excluded.at, error ="
    " excluded.error"
)
_CHUNK_ROWS = 2000  # rows of one transaction, because other threads wait for it


# --- requests and answers ---

_Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
_Events = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=100)]], msgspec.Meta(max_length=50)
]
_Conversation = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,128}$")]
_Secret = Annotated[str, msgspec.Meta(max_length=200)]


class WebhookRequest(RequestBody, frozen=True, kw_only=True):
    """A new webhook.

    `url` receives the messages. `events` is the filter (empty: all events). `conversation_id`
    limits the webhook to one conversation; otherwise it covers all of the tenant's. `begin`
    applies to existing conversations: `now` sends only later events, `start` sends all. Without
    a `secret` the server generates one.
    """

    url: _Url
    events: _Events = []
    conversation_id: _Conversation | None = None
    begin: Literal["now", "start"] = "now"
    secret: _Secret | None = None

    def __repr__(self) -> str:
        return f"WebhookRequest(events={self.events!r})"  # the URL may hold a password


class WebhookChange(RequestBody, frozen=True, kw_only=True):
    """Changes to a webhook. Omitted fields stay unchanged. `enabled` starts or stops sending;
    starting tries failed events again at once."""

    url: _Url | None = None
    events: _Events | None = None
    enabled: bool | None = None

    def __repr__(self) -> str:
        return f"WebhookChange(events={self.events!r}, enabled={self.enabled!r})"


class SecretRequest(RequestBody, frozen=True, kw_only=True):
    """A new secret; without `secret` the server generates one. For `overlap` seconds messages
    are also signed with the old secret."""

    secret: _Secret | None = None
    overlap: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400.0

    def __repr__(self) -> str:
        return f"SecretRequest(overlap={self.overlap!r})"


class RedeliverRequest(RequestBody, frozen=True, kw_only=True):
    """Events to send again: the abandoned ones of one or all conversations, or with `after_seq` all
    later events of one conversation."""

    conversation_id: _Conversation | None = None
    after_seq: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | None = None


class Webhook(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A webhook.

    `state` is `gone` if the receiver has refused further messages. In `failing` conversations an
    event was not accepted and is tried again. `dead` events were given up. `error` is the last
    error of the webhook as a whole. `secret` is set only in the answers that create or rotate
    it.
    """

    id: str
    url: str
    events: list[str]
    state: Literal["active", "disabled", "gone"]
    created: datetime
    conversation_id: str | None = None
    failing: int = 0
    dead: int = 0
    error: str = ""
    secret: str | None = None
    old_secret_until: datetime | None = None

    def __repr__(self) -> str:
        return f"Webhook(id={self.id!r}, state={self.state!r})"


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of a tenant, oldest first."""

    webhooks: list[Webhook]


class DeadEvents(msgspec.Struct, frozen=True, rename="camel"):
    """Events that were given up: `count` of those from `first_seq` to `last_seq`. The last one
    was given up at `at`, because of `error`."""

    first_seq: int
    last_seq: int
    count: int
    at: datetime
    error: str


class Delivery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The state of a webhook in one conversation. Events up to `after_seq` are finished. The
    next one has failed `attempts` times since `since`, with `error`, and is tried again at
    `again`."""

    conversation_id: str
    after_seq: int
    attempts: int = 0
    since: datetime | None = None
    again: datetime | None = None
    error: str = ""
    dead: list[DeadEvents] = []


class DeliveryList(msgspec.Struct, frozen=True):
    """Conversations in which a webhook fails or has given up events, ordered by id. `next` is
    the cursor of the next page, None on the last one."""

    deliveries: list[Delivery]
    next: str | None = None


class Redelivered(msgspec.Struct, frozen=True):
    """The number of given-up events that are sent again."""

    dead: int


# --- records ---


class WebhookStyle(msgspec.Struct, frozen=True):
    """The form of messages for a protocol door. `format` is its name, `headers` are additional
    ones, and `about` is the door's own data about the webhook."""

    format: str = ""
    headers: dict[str, str] = {}
    about: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"WebhookStyle({self.format!r})"  # headers hold credentials


class WebhookTarget(msgspec.Struct, frozen=True):
    """The sealed data of a webhook: its URL, event filter, signing secrets and style. `old` is
    valid besides `secret` until the time `until` (seconds since 1970)."""

    url: str
    secret: str
    events: tuple[str, ...] = ()
    old: str = ""
    until: float = 0.0
    style: WebhookStyle = WebhookStyle()

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
    state: Literal["making", "active", "disabled", "gone"]
    target: WebhookTarget
    digest: bytes
    created: datetime
    failures: int = 0
    since: float = 0.0
    again: float = 0.0
    error: str = ""

    def failed(self, failures: int, since: float, again: float, error: str) -> WebhookRecord:
        """Return the record with this standing of the webhook as a whole."""
        return msgspec.structs.replace(
            self, failures=failures, since=since, again=again, error=error
        )


class WebhookCursor(msgspec.Struct, frozen=True):
    """The position of a webhook in a conversation. Events up to `seq` are finished; the next one
    has failed `attempts` times since `since`."""

    seq: int
    attempts: int = 0
    since: float = 0.0
    again: float = 0.0
    error: str = ""


def when(seconds: float) -> datetime | None:
    """Return a stored time as a date, or None if it was never set."""
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


class WebhookRecords:
    """The webhooks' tables in the records. Thread-safe. Raises `StoreError`."""

    def __init__(self, records: Records, leases: NamedLeases | None = None) -> None:
        self._records = records
        self._seal = records.seal
        self._leases = leases
        records.create_tables(_TABLES)
        # Another server may be making one.
        latest = datetime.now(UTC) - (_MAKING if records.shared else timedelta())
        with records.writing(lock=WEBHOOKS) as db:
            query = "SELECT number FROM webhooks WHERE state = 'making' AND created <= ?"
            for (number,) in db.execute(query, (latest.isoformat(),)).fetchall():
                _remove(db, number)

    @contextmanager
    def _sender_transaction(self, forced: bool = True) -> Generator[Statements]:
        """Yield the database within a transaction of the server that sends the messages. Raises
        `Fenced` if another server does."""
        with self._records.writing(forced, lock=WEBHOOKS) as db:
            if self._leases is not None and not self._leases.own(db, WEBHOOKS):
                raise Fenced("Another server sends the messages of webhooks now.")
            yield db

    # --- webhooks ---

    def add(self, new: WebhookRecord, most: int) -> tuple[WebhookRecord, bool]:
        """Add a webhook in the state `making`. Return it with True, or with False if the same
        request created it before. Raises `Conflict` if another request did, and `TooMany` beyond
        `most` webhooks."""
        with self._records.writing(lock=WEBHOOKS) as db:
            row = db.execute(f"{_SELECT} tenant = ? AND id = ?", (new.tenant, new.id)).fetchone()
            if row is not None:
                earlier = self._record(row)
                if earlier.digest != new.digest:
                    raise Conflict(
                        "The idempotency key was used for another webhook; use a new one for each."
                    )
                return earlier, False
            query = "SELECT count(*) FROM webhooks WHERE tenant = ?"
            count = db.execute(query, (new.tenant,)).fetchone()[0]
            if count >= most:
                raise TooMany(
                    f"Tenant {new.tenant!r} has {count} webhooks, which is this server's limit.",
                    "webhooks",
                )
            values = (
                new.tenant,
                new.id,
                new.conversation,
                new.state,
                self._seal_target(new),
                new.digest,
            )
            db.execute(
                "INSERT INTO webhooks (tenant, id, conversation, state, sealed, digest, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, new.created.isoformat()),
            )
            query = "SELECT number FROM webhooks WHERE tenant = ? AND id = ?"
            (number,) = db.execute(query, (new.tenant, new.id)).fetchone()
            return msgspec.structs.replace(new, number=number), True

    def find(self, tenant: str, id: str) -> WebhookRecord:
        """Return a webhook. Raises `NotFound` if it does not exist."""
        query = f"{_SELECT} tenant = ? AND id = ? AND state <> 'making'"
        row = self._records.row(query, tenant, id)
        if row is None:
            raise NotFound(f"No webhook {id!r} on this server.", "webhook", id)
        return self._record(row)

    def all(self, tenant: str | None = None) -> list[WebhookRecord]:
        """Return the webhooks of one tenant or of all, oldest first."""
        rows = self._records.rows(f"{_SELECT} state <> 'making' ORDER BY number")
        return [self._record(row) for row in rows if tenant in (None, row[1])]

    def change(self, webhook: WebhookRecord, forced: bool = True) -> None:
        """Store a webhook's state, target and failures. See `Records.writing` for `forced`."""
        target, failures = self._seal_target(webhook), webhook.failures
        values = webhook.state, target, failures, webhook.since, webhook.again, webhook.error
        statement = (
            "UPDATE webhooks SET state = ?, sealed = ?, failures = ?, since = ?, again = ?,"
            " error = ? WHERE number = ?"
        )
        with self._sender_transaction(forced) as db:
            db.execute(statement, (*values, webhook.number))

    def remove(self, number: int) -> None:
        with self._records.writing(lock=WEBHOOKS) as db:
            _remove(db, number)

    # --- conversations ---

    def begin(self, number: int, cursors: Iterable[tuple[str, int]]) -> None:
        rows = [(number, conversation, seq) for conversation, seq in cursors]
        for at in range(0, len(rows), _CHUNK_ROWS):
            with self._records.writing() as db:
                db.executemany(_RESET_CURSOR, rows[at : at + _CHUNK_ROWS])

    def cursor(self, number: int, conversation: str) -> WebhookCursor | None:
        row = self._records.row(_CURSOR, number, conversation)
        return None if row is None else WebhookCursor(*row)

    def cursors(self, number: int) -> Mapping[str, int]:
        """Return the positions in all known conversations, by store id."""
        query = "SELECT conversation, seq FROM webhook_cursors WHERE webhook = ?"
        return dict(self._records.rows(query, number))

    def save(self, number: int, conversation: str, cursor: WebhookCursor) -> None:
        """Store a position. A power loss may undo this; then some events are sent again."""
        values = number, conversation, *msgspec.structs.astuple(cursor)
        with self._sender_transaction(forced=False) as db:
            db.execute(_SAVE_CURSOR, values)

    def give_up(self, number: int, conversation: str, cursor: WebhookCursor, at: float) -> None:
        """Give up event `cursor.seq`, and store the cursor after it. One row holds consecutive
        events that were given up."""
        place = number, conversation
        with self._sender_transaction() as db:
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
                    (cursor.seq, at, cursor.error, *place, row[0]),
                )
            else:
                db.execute(_GIVE_UP, (*place, cursor.seq, cursor.seq, at, cursor.error))
            db.execute(_SAVE_CURSOR, (*place, *msgspec.structs.astuple(cursor)))

    def failing(self, number: int, after: str, limit: int) -> list[Delivery]:
        """Return the conversations that fail or have given-up events, ordered by id."""
        union = (
            "SELECT conversation FROM webhook_cursors WHERE webhook = :webhook AND attempts > 0 AND"
            " conversation > :after UNION SELECT conversation FROM webhook_dead WHERE webhook ="
            " :webhook AND conversation > :after ORDER BY conversation LIMIT :limit"
        )
        dead_of = (
            "SELECT first, last, count, at, error FROM webhook_dead WHERE webhook = ? AND"
            " conversation = ? ORDER BY first"
        )
        deliveries: list[Delivery] = []
        with self._records.reading() as db:
            page = {"webhook": number, "after": after, "limit": limit}
            for (id,) in db.execute(union, page).fetchall():
                row = db.execute(_CURSOR, (number, id)).fetchone() or (0, 0, 0.0, 0.0, "")
                seq, attempts, since, again, error = row
                dead = [
                    DeadEvents(first, last, count, datetime.fromtimestamp(at, UTC), why)
                    for first, last, count, at, why in db.execute(dead_of, (number, id))
                ]
                deliveries.append(
                    Delivery(
                        conversation_id=id.rpartition("/")[2],
                        after_seq=seq,
                        attempts=attempts,
                        since=when(since),
                        again=when(again),
                        error=error,
                        dead=dead,
                    )
                )
        return deliveries

    def counts(self, number: int) -> tuple[int, int]:
        """Return the number of failing conversations and the number of given-up events."""
        cursors = "SELECT count(*) FROM webhook_cursors WHERE webhook = ? AND attempts > 0"
        dead = "SELECT CAST(coalesce(sum(count), 0) AS INTEGER) FROM webhook_dead WHERE webhook = ?"
        ((failing, given_up),) = self._records.rows(f"SELECT ({cursors}), ({dead})", number, number)
        return failing, given_up

    def rewind(self, number: int, conversation: str | None, after_seq: int | None) -> int:
        """Set the cursor before the first given-up event, in one conversation or all, or to
        `after_seq` in one. Return the number of given-up events that are sent again."""
        query = (
            "SELECT conversation, min(first), CAST(sum(count) AS INTEGER) FROM webhook_dead WHERE"
            " webhook = ?"
        )
        values: tuple[object, ...] = (number,)
        if conversation is not None:
            query, values = f"{query} AND conversation = ?", (number, conversation)
        with self._sender_transaction() as db:
            rows: list[tuple[str, int, int]] = db.execute(
                f"{query} GROUP BY conversation", values
            ).fetchall()
            if after_seq is not None and conversation is not None:
                rows = [(conversation, after_seq + 1, rows[0][2] if rows else 0)]
            for id, first, _ in rows:
                db.execute(_RESET_CURSOR, (number, id, first - 1))
                db.execute(
                    "DELETE FROM webhook_dead WHERE webhook = ? AND conversation = ? AND last >= ?",
                    (number, id, first),
                )
            return sum(count for _, _, count in rows)

    def retry(self, number: int) -> None:
        """Reset all failures, so that failed events are tried again at once."""
        statement = "UPDATE webhook_cursors SET attempts = 0, since = 0, again = 0, error = ''"
        self._records.run(f"{statement} WHERE webhook = ? AND attempts > 0", number)

    def forget(self, conversation: str) -> list[int]:
        """Delete the data about a removed conversation. Return the numbers of the webhooks that
        covered only this conversation, which are deleted too."""
        with self._records.writing(lock=WEBHOOKS) as db:
            query = "SELECT number FROM webhooks WHERE conversation = ?"
            numbers = [number for (number,) in db.execute(query, (conversation,)).fetchall()]
            for number in numbers:
                _remove(db, number)
            db.execute("DELETE FROM webhook_cursors WHERE conversation = ?", (conversation,))
            db.execute("DELETE FROM webhook_dead WHERE conversation = ?", (conversation,))
        return numbers

    # --- news between servers ---

    def add_news(self, conversations: Iterable[str]) -> None:
        """Tell the server that sends the messages of conversations with new events, if their
        tenants have webhooks."""
        query = "SELECT DISTINCT tenant FROM webhooks WHERE state = 'active'"
        tenants = {tenant for (tenant,) in self._records.rows(query)}
        if rows := [(id,) for id in conversations if tenant_of(id) in tenants]:
            with self._records.writing(forced=False) as db:
                db.executemany("INSERT INTO webhook_news VALUES (?) ON CONFLICT DO NOTHING", rows)

    def take_news(self) -> list[str]:
        """Return the conversations of which other servers have told, and forget them."""
        rows = self._records.rows("SELECT conversation FROM webhook_news LIMIT 1000")
        if rows:
            with self._records.writing(forced=False) as db:
                db.executemany("DELETE FROM webhook_news WHERE conversation = ?", rows)
        return [id for (id,) in rows]

    def conversations(self) -> Sequence[str]:
        query = (
            "SELECT conversation FROM webhook_cursors UNION SELECT conversation FROM webhook_dead"
        )
        return [id for (id,) in self._records.rows(query)]

    # --- sealed ---

    def _seal_target(self, webhook: WebhookRecord) -> bytes:
        data = msgspec.json.encode(webhook.target)
        return self._seal.seal(data, f"webhook {webhook.tenant}/{webhook.id}")

    def _record(self, row: tuple[Any, ...]) -> WebhookRecord:
        number, tenant, id, conversation, state, sealed, digest, created, *failure_state = row
        data = self._seal.open(bytes(sealed), f"webhook {tenant}/{id}")
        target = msgspec.json.decode(data, type=WebhookTarget)
        rest = target, bytes(digest), datetime.fromisoformat(created), *failure_state
        return WebhookRecord(number, tenant, id, conversation, state, *rest)


def _remove(db: Statements, number: int) -> None:
    db.execute("DELETE FROM webhooks WHERE number = ?", (number,))
    db.execute("DELETE FROM webhook_cursors WHERE webhook = ?", (number,))
    db.execute("DELETE FROM webhook_dead WHERE webhook = ?", (number,))
