"""The chats of a host: the conversations that clients of OpenAI's API started, and the hashes by
which they are recognised. The operations on a host that only chats need are here too."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from holdfast import events as ev
from holdfast.conversation import ConversationStatus
from holdfast.conversation.conversation import random_id
from holdfast.conversation.fold import Fold, fold
from holdfast.conversation.journal import Journal, utc_now
from holdfast.conversation.rests import RUNNING, may_ask_below
from holdfast.errors import ConversationNotFound, HoldfastError, LeaseHeld, TooMany
from holdfast.object_struct import ObjectStruct
from holdfast.server.agents import Agents
from holdfast.server.database import Statements
from holdfast.server.keyed_locks import KeyedLocks
from holdfast.server.open_conversations import OpenConversations
from holdfast.server.records import HOSTED, IDLE, RUN, Records, place_of, store_id
from holdfast.store import Batch, Blob, Store, Summary
from holdfast.store.transfer import blobs_of

if TYPE_CHECKING:
    from holdfast.server.shapes import CreateRequest

_log = logging.getLogger("holdfast")

T = TypeVar("T")

_MAX_REMOVED = 100  # the most chats that are removed for a new one
_OLDEST = 200  # the number of oldest chats that are considered for removal

# An older server ignores these tables. Their data is removed with the conversation.
_TABLES = """
CREATE TABLE IF NOT EXISTS chats (tenant TEXT NOT NULL, conversation TEXT NOT NULL,
    setting BLOB NOT NULL, used REAL NOT NULL, PRIMARY KEY(tenant, conversation)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chats_by_use ON chats(tenant, used);
CREATE TABLE IF NOT EXISTS chat_answers (tenant TEXT NOT NULL, digest BLOB NOT NULL,
    conversation TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(tenant, digest)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chat_answers_by_conversation ON chat_answers(tenant, conversation);
CREATE TABLE IF NOT EXISTS chat_turns (tenant TEXT NOT NULL, digest BLOB NOT NULL,
    conversation TEXT NOT NULL, seq INTEGER NOT NULL, answered INTEGER NOT NULL,
    at REAL NOT NULL, PRIMARY KEY(tenant, digest)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chat_turns_by_conversation ON chat_turns(tenant, conversation);
CREATE TABLE IF NOT EXISTS responses (tenant TEXT NOT NULL, response TEXT NOT NULL,
    conversation TEXT NOT NULL, seq INTEGER NOT NULL, request BLOB NOT NULL,
    PRIMARY KEY(tenant, response)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS responses_by_conversation
    ON responses(tenant, conversation, seq);
"""

_AT_WORK = (RUNNING, ConversationStatus.WAITING_FOR_CONFIRMATION)

_TURN = "WHERE tenant = ? AND digest = ? AND conversation = ?"


class RequestedTurn(NamedTuple):
    """A requested turn. `seq` is that of the last event before it. `answered` is 0 or 1, and `at`
    the time of the request (seconds since 1970)."""

    conversation: str
    seq: int
    answered: int
    at: float


class ResponseRow(NamedTuple):
    """A turn that has an id in OpenAI's Responses API. `seq` is that of the last event before it.
    `request` has the parts of its request that are not in the journal."""

    conversation: str
    seq: int
    request: bytes


class ChatRecords:
    """The chats' tables in the records. Thread-safe. Raises `StoreError`. Rows about turns are not
    synced to the disk: a power loss only makes the server forget turns."""

    def __init__(self, records: Records) -> None:
        self._records = records
        records.create_tables(_TABLES)

    def _run(self, statement: str, *values: object) -> None:
        self._records.run(statement, *values, forced=False)

    def insertion(self, tenant: str, id: str, setting: bytes) -> Callable[[Statements], object]:
        """Return the statement which records that a conversation is a chat, with the hash of its
        instructions and tools."""
        statement = (
            "INSERT INTO chats VALUES (?, ?, ?, ?) ON CONFLICT(tenant, conversation) DO UPDATE SET"
            " setting = excluded.setting"
        )
        return lambda db: db.execute(statement, (tenant, id, setting, time.time()))

    def add(self, tenant: str, id: str, setting: bytes) -> None:
        """Record that a conversation is a chat, or that its setting has changed."""
        with self._records.writing() as db:
            self.insertion(tenant, id, setting)(db)

    def has(self, tenant: str, id: str) -> bool:
        """Return True if a conversation is a chat."""
        query = "SELECT 1 FROM chats WHERE tenant = ? AND conversation = ?"
        return self._records.row(query, tenant, id) is not None

    def setting(self, tenant: str, id: str) -> bytes:
        """Return the hash of a chat's instructions and tools, or b"" if this is no chat."""
        query = "SELECT setting FROM chats WHERE tenant = ? AND conversation = ?"
        row = self._records.row(query, tenant, id)
        return b"" if row is None else bytes(row[0])

    def oldest(self, tenant: str, most: int) -> list[str]:
        """Return the chats that were used least recently."""
        query = "SELECT conversation FROM chats WHERE tenant = ? ORDER BY used LIMIT ?"
        return [id for (id,) in self._records.rows(query, tenant, most)]

    def forget(self, tenant: str, id: str) -> None:
        with self._records.writing(forced=False) as db:
            for table in ("chat_turns", "chats", "chat_answers", "responses"):  # as in `begin_turn`
                statement = f"DELETE FROM {table} WHERE tenant = ? AND conversation = ?"
                db.execute(statement, (tenant, id))

    def find_history(self, tenant: str, digest: bytes) -> tuple[str, int] | None:
        """Return the conversation whose history has this hash, and its last event at that point."""
        query = "SELECT conversation, seq FROM chat_answers WHERE tenant = ? AND digest = ?"
        row = self._records.row(query, tenant, digest)
        return None if row is None else (row[0], row[1])

    def store_history(
        self, tenant: str, digest: bytes, id: str, seq: int, request_digest: bytes, keep: bool
    ) -> None:
        """Record the history that a turn has led to, and the end of the turn of the request with
        this digest. With `keep` the turn stays known as answered."""
        with self._records.writing(forced=False) as db:
            statement = (
                "INSERT INTO chat_answers VALUES (?, ?, ?, ?) ON CONFLICT(tenant, digest) DO UPDATE"
                " SET conversation = excluded.conversation, seq = excluded.seq"
            )
            db.execute(statement, (tenant, digest, id, seq))
            statement = "UPDATE chat_turns SET answered = 1" if keep else "DELETE FROM chat_turns"
            db.execute(f"{statement} {_TURN}", (tenant, request_digest, id))

    def find_turn(self, tenant: str, digest: bytes) -> RequestedTurn | None:
        """Return the turn that a request with this hash started."""
        columns = ", ".join(RequestedTurn._fields)
        query = f"SELECT {columns} FROM chat_turns WHERE tenant = ? AND digest = ?"
        row = self._records.row(query, tenant, digest)
        return None if row is None else RequestedTurn(*row)

    def begin_turn(self, tenant: str, digest: bytes, id: str, seq: int) -> None:
        """Record that a turn begins after the event `seq`."""
        now = time.time()
        with self._records.writing(forced=False) as db:
            statement = (
                "INSERT INTO chat_turns VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT(tenant, digest) DO"
                " UPDATE SET conversation = excluded.conversation, seq = excluded.seq, answered ="
                " 0, at = excluded.at"
            )
            db.execute(statement, (tenant, digest, id, seq, now))
            statement = "UPDATE chats SET used = ? WHERE tenant = ? AND conversation = ?"
            db.execute(statement, (now, tenant, id))

    def forget_turn(self, tenant: str, request_digest: bytes, id: str) -> None:
        self._run(f"DELETE FROM chat_turns {_TURN}", tenant, request_digest, id)

    # --- responses ---

    def add_response(self, tenant: str, id: str, row: ResponseRow) -> bool:
        """Record a response. Return False if another one begins at the same event."""
        with self._records.writing(forced=True) as db:
            statement = (
                "INSERT INTO responses(tenant, response, conversation, seq, request) VALUES (?, ?,"
                " ?, ?, ?) ON CONFLICT DO NOTHING RETURNING seq"
            )
            return db.execute(statement, (tenant, id, *row)).fetchone() is not None

    def response(self, tenant: str, id: str) -> ResponseRow | None:
        columns = ", ".join(ResponseRow._fields)
        query = f"SELECT {columns} FROM responses WHERE tenant = ? AND response = ?"
        row = self._records.row(query, tenant, id)
        return None if row is None else ResponseRow(row[0], row[1], bytes(row[2]))

    def next_response(self, tenant: str, row: ResponseRow) -> int | None:
        """Return the seq before the response that follows in the same conversation, or None."""
        query = (
            "SELECT seq FROM responses WHERE tenant = ? AND conversation = ? AND seq > ?"
            " ORDER BY seq LIMIT 1"
        )
        next_row = self._records.row(query, tenant, row.conversation, row.seq)
        return None if next_row is None else next_row[0]

    def remove_response(self, tenant: str, id: str) -> None:
        self._run("DELETE FROM responses WHERE tenant = ? AND response = ?", tenant, id)

    def unanswered(self) -> list[tuple[str, str]]:
        query = "SELECT DISTINCT tenant, conversation FROM chat_turns WHERE answered = 0"
        return [(tenant, id) for tenant, id in self._records.rows(query)]


class Chats(ObjectStruct):
    """The chats of one host. Thread-safe; blocking."""

    rows: ChatRecords
    _store: Store
    _records: Records
    _agents: Agents
    _conversations: OpenConversations
    _delete: Callable[[str, str], None]
    _turns: KeyedLocks
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _waiting: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])
    ended: bool = False  # True once the server shuts down: clients that leave interrupt nothing

    # --- exclusion and waiting clients ---

    @contextmanager
    def turn(self, tenant: str, id: str, wait: bool = True) -> Generator[bool]:
        """Hold a conversation exclusively: no other thread decides about its continuation. Yields
        False if another one does and `wait` is False. A thread may nest a block only for a new
        conversation."""
        with self._turns.hold((tenant, id), wait) as entered:
            yield entered

    def enter(self, tenant: str, id: str) -> None:
        """Add a client that waits for an answer."""
        with self._lock:
            self._waiting[tenant, id] += 1

    def leave(self, tenant: str, id: str) -> int:
        """Remove a waiting client. Return the number of clients that still wait."""
        with self._lock:
            remaining = self._waiting.pop((tenant, id), 1) - 1
            if remaining > 0:
                self._waiting[tenant, id] = remaining
            return remaining

    def waiting(self, tenant: str, id: str) -> int:
        with self._lock:
            return self._waiting[tenant, id]

    # --- contents ---

    def refit(self, tenant: str, id: str, request: CreateRequest, setting: bytes) -> None:
        """Change the instructions and tools of a conversation at rest. Its secrets stay."""
        record = self._records.find(tenant, id)
        secrets = self._agents.stored_parts(record).secrets
        options = msgspec.structs.replace(record.options, modules=request.tool_module_qualnames)
        parts = self._agents.requested_parts(tenant, request.agent, secrets, request.tools, options)
        self._agents.replace(record, parts)
        self._conversations.park(record.store_id, force=True)
        self.rows.add(tenant, id, setting)

    def append(self, tenant: str, id: str, events: Sequence[ev.AnyEvent]) -> None:
        """Append events of another source to the journal of a conversation that is not open."""
        place = self._records.find(tenant, id).store_id
        blobs = [
            Blob(event.seq, self._store.blob(name)) for event in events for name in blobs_of(event)
        ]
        statuses = [event.status for event in events if isinstance(event, ev.StatusChanged)]
        lease = self._store.acquire(place)
        try:
            summaries = self._store.list([place]) or [Summary(place, created=events[0].timestamp)]
            summary = msgspec.structs.replace(
                summaries[0],
                status=[summaries[0].status, *statuses][-1],
                last_seq=events[-1].seq,
                updated=events[-1].timestamp,
            )
            self._store.append(lease, Batch(events, summary, blobs=blobs))
        finally:
            self._store.release(lease)

    def fold(self, tenant: str, id: str) -> Fold:
        """Return the fold of a conversation's present journal: that of the open conversation if
        there is one, else without all before the last condensation. Opens nothing."""
        place = self._records.find(tenant, id).store_id
        live = None if self._records.shared else self._conversations.find(place)
        folded = None if live is None else live.fold()
        if folded is None:
            folded = fold(self._store.tail(place))
            if live is None and not self._records.shared:
                folded.keep_questions(lambda _: False)  # of a process that has died
        return folded

    def awaits_below(self, tenant: str, id: str, child: str, question_id: str) -> bool:
        """Return True if a conversation that one has spawned may wait for the answer to a question.
        A process that has died waits for none."""
        place = self._records.find(tenant, id).store_id
        live = None if self._records.shared else self._conversations.find(place)
        if live is None:
            return self._records.shared
        return live.awaits_below(store_id(tenant, child), question_id)

    # --- limits ---

    def with_room(self, tenant: str, make: Callable[[], T]) -> T:
        """Return the result of `make`. If the tenant has reached its limit of conversations or
        workspaces, remove its oldest chats at rest first."""
        for _ in range(_MAX_REMOVED):
            try:
                return make()
            except TooMany as error:
                removable = error.bound in ("conversations", "workspaces")
                if not removable or not self._remove_oldest(tenant):
                    raise
        return make()

    def _remove_oldest(self, tenant: str) -> bool:
        for id in self.rows.oldest(tenant, _OLDEST):
            with self.turn(tenant, id, wait=False) as entered:
                try:
                    if entered and self._rests(tenant, id):
                        self._delete(tenant, id)
                        return True
                except ConversationNotFound:
                    self.rows.forget(tenant, id)
                except LeaseHeld:
                    continue
        return False

    def _rests(self, tenant: str, id: str) -> bool:
        record = self._records.find(tenant, id)
        if record.driven == HOSTED or self.waiting(tenant, id):
            return False
        summaries = self._store.list([record.store_id])
        return not summaries or summaries[0].status not in _AT_WORK

    # --- after a crash ---

    def pause(self) -> None:
        """Pause the last process's runs, whose clients are gone. Call it before anything is
        opened.

        Included are chats that run by their journal without a driver, because a power loss has
        undone the record of their run. A chat that asks its user something continues instead, to
        ask again.
        """
        running = [place_of(one.id) for one in self._store.list(status=RUNNING.value)]
        unanswered = {*self.rows.unanswered()}
        undriven = {place for place in running if self.rows.has(*place)}
        for tenant, id in unanswered | undriven:
            try:
                record = self._records.find(tenant, id)
                if record.driven == RUN and (tenant, id) in unanswered:
                    self._records.set_driven(record, IDLE)
                    self._pause(record.store_id)
                elif record.driven == IDLE and (tenant, id) in undriven:
                    if self._asks(record.store_id):
                        self._records.set_driven(record, RUN)
                    else:
                        self._pause(record.store_id)
            except ConversationNotFound:
                self.rows.forget(tenant, id)
            except HoldfastError as error:
                _log.warning(
                    "conversation %s of tenant %s: its client disconnected, but the conversation"
                    " could not be paused: %s",
                    id,
                    tenant,
                    error,
                )

    def _asks(self, place: str) -> bool:
        """Return True if a conversation, or one that its calls have spawned, asks its user
        something."""
        folded = fold(self._store.tail(place))
        if any(item.ask_reason is not None or item.questions for item in folded.open.values()):
            return True
        below = self._store.list(spawned_by=place) if may_ask_below(folded) else ()
        return any(self._asks(child.id) for child in below if child.status in _AT_WORK)

    def _pause(self, id: str) -> None:
        journal = Journal(self._store, id, utc_now, random_id, lambda: None)
        try:
            with journal:
                if journal.fold.status is RUNNING:
                    paused = ConversationStatus.PAUSED.value
                    journal.add(ev.StatusChanged, status=paused, reason="the client is gone")
        finally:
            journal.close()
