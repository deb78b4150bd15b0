"""The stored data of chats, in tables of their own in the records file: the conversations that
clients of OpenAI's API started, the hashes by which they are recognised, and the turns
requested. The data is removed with the conversation."""

from __future__ import annotations

import time
from typing import NamedTuple

from holdfast.server.records import Records

# An older server ignores these tables.
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
"""


class RequestedTurn(NamedTuple):
    """A requested turn: its conversation, the last event before it, if it was answered, and the
    time of the request (seconds since 1970)."""

    conversation: str
    seq: int
    answered: bool
    at: float


class ChatRecords:
    """The chats' tables in the records file. Thread-safe. Raises `StoreError`. Writes are not
    synced to the disk: a power loss only makes the server forget chats."""

    def __init__(self, records: Records) -> None:
        self._records = records
        with records.writing() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)

    def _run(self, statement: str, *values: object) -> None:
        self._records.run(statement, *values, forced=False)

    # --- conversations ---

    def add(self, tenant: str, id: str, setting: bytes) -> None:
        """Record that a conversation is a chat, with the hash of its instructions and tools."""
        self._run(
            "INSERT INTO chats VALUES (?, ?, ?, ?) ON CONFLICT(tenant, conversation) DO UPDATE SET"
            " setting = excluded.setting",
            tenant,
            id,
            setting,
            time.time(),
        )

    def setting(self, tenant: str, id: str) -> bytes:
        """Return the hash of a chat's instructions and tools, or b"" for a conversation that is
        no chat."""
        query = "SELECT setting FROM chats WHERE tenant = ? AND conversation = ?"
        row = self._records.row(query, tenant, id)
        return b"" if row is None else bytes(row[0])

    def oldest(self, tenant: str, most: int) -> list[str]:
        """Return the chats that were used least recently."""
        query = "SELECT conversation FROM chats WHERE tenant = ? ORDER BY used LIMIT ?"
        return [id for (id,) in self._records.rows(query, tenant, most)]

    def forget(self, tenant: str, id: str) -> None:
        """Delete the data about a removed conversation."""
        with self._records.writing(forced=False) as db:
            for table in ("chats", "chat_answers", "chat_turns"):
                statement = f"DELETE FROM {table} WHERE tenant = ? AND conversation = ?"
                db.execute(statement, (tenant, id))

    # --- histories ---

    def find_history(self, tenant: str, digest: bytes) -> tuple[str, int] | None:
        """Return the conversation whose history has this hash, and its last event at that point."""
        query = "SELECT conversation, seq FROM chat_answers WHERE tenant = ? AND digest = ?"
        row = self._records.row(query, tenant, digest)
        return None if row is None else (row[0], row[1])

    def store_history(self, tenant: str, digest: bytes, id: str, seq: int) -> None:
        """Store the hash of a history."""
        statement = "INSERT OR REPLACE INTO chat_answers VALUES (?, ?, ?, ?)"
        self._run(statement, tenant, digest, id, seq)

    # --- turns ---

    def find_turn(self, tenant: str, digest: bytes) -> RequestedTurn | None:
        """Return the turn that a request with this hash started."""
        columns = "conversation, seq, answered, at"
        query = f"SELECT {columns} FROM chat_turns WHERE tenant = ? AND digest = ?"
        row = self._records.row(query, tenant, digest)
        return None if row is None else RequestedTurn(row[0], row[1], bool(row[2]), row[3])

    def begin_turn(self, tenant: str, digest: bytes, id: str, seq: int) -> None:
        """Record that a turn begins after the event `seq`."""
        now = time.time()
        with self._records.writing(forced=False) as db:
            statement = "INSERT OR REPLACE INTO chat_turns VALUES (?, ?, ?, ?, 0, ?)"
            db.execute(statement, (tenant, digest, id, seq, now))
            statement = "UPDATE chats SET used = ? WHERE tenant = ? AND conversation = ?"
            db.execute(statement, (now, tenant, id))

    def end_turn(self, tenant: str, digest: bytes, id: str, keep: bool) -> None:
        """Record the end of a turn. With `keep` it stays known as answered; otherwise it is
        deleted."""
        statement = "UPDATE chat_turns SET answered = 1" if keep else "DELETE FROM chat_turns"
        where = "tenant = ? AND digest = ? AND conversation = ?"
        self._run(f"{statement} WHERE {where}", tenant, digest, id)

    def unanswered(self) -> list[tuple[str, str]]:
        """Return tenant and conversation of all unanswered turns."""
        query = "SELECT DISTINCT tenant, conversation FROM chat_turns WHERE answered = 0"
        return [(tenant, id) for tenant, id in self._records.rows(query)]
