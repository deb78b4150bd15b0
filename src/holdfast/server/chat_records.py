"""What an agent server keeps of chats, in tables of its own in the records' file: which
conversations clients of OpenAI's API began, by what each is known again, and which turns were asked
of them. All of it is as old as the conversation, and goes with it."""

from __future__ import annotations

import time
from typing import NamedTuple

from holdfast.server.records import Records

# A server that knows nothing of them leaves them as they are.
_TABLES = (
    (
        "CREATE TABLE IF NOT EXISTS chats (tenant TEXT NOT NULL, conversation TEXT NOT NULL,"
        " setting BLOB NOT NULL, used REAL NOT NULL, PRIMARY KEY(tenant, conversation)) WITHOUT"
        " ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS chats_by_use ON chats(tenant, used)",
    (
        "CREATE TABLE IF NOT EXISTS chat_answers (tenant TEXT NOT NULL, digest BLOB NOT NULL,"
        " conversation TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(tenant, digest)) WITHOUT"
        " ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS chat_answers_by_conversation ON chat_answers(tenant, conversation)",
    (
        "CREATE TABLE IF NOT EXISTS chat_turns (tenant TEXT NOT NULL, digest BLOB NOT NULL,"
        " conversation TEXT NOT NULL, seq INTEGER NOT NULL, answered INTEGER NOT NULL, at REAL NOT"
        " NULL, PRIMARY KEY(tenant, digest)) WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS chat_turns_by_conversation ON chat_turns(tenant, conversation)",
)


class Asked(NamedTuple):
    """A turn: where it was asked for, the last event before it, whether it was answered, and when
    it was asked for (seconds since 1970)."""

    conversation: str
    seq: int
    answered: bool
    at: float


class ChatRecords:
    """Over the records' file, under its lock. Thread-safe. Raises `StoreError`. What is lost with
    the power is forgotten alone: nothing is forced to the disk."""

    def __init__(self, records: Records) -> None:
        self._records = records
        with records.writing() as db:
            for statement in _TABLES:
                db.execute(statement)

    # --- conversations ---

    def made(self, tenant: str, id: str, setting: bytes) -> None:
        """This conversation is one of theirs, and has the instructions and tools of that hash."""
        with self._records.writing(forced=False) as db:
            db.execute(
                "INSERT INTO chats VALUES (?, ?, ?, ?) ON CONFLICT(tenant, conversation) DO UPDATE"
                " SET setting = excluded.setting",
                (tenant, id, setting, time.time()),
            )

    def setting(self, tenant: str, id: str) -> bytes:
        """The hash of its instructions and tools; empty for one that is none of theirs."""
        with self._records.reading() as db:
            row = db.execute(
                "SELECT setting FROM chats WHERE tenant = ? AND conversation = ?", (tenant, id)
            ).fetchone()
        return b"" if row is None else bytes(row[0])

    def oldest(self, tenant: str, most: int) -> list[str]:
        """Those that nobody has asked anything for the longest time."""
        with self._records.reading() as db:
            query = "SELECT conversation FROM chats WHERE tenant = ? ORDER BY used LIMIT ?"
            return [id for (id,) in db.execute(query, (tenant, most))]

    def forget(self, tenant: str, id: str) -> None:
        """A conversation is gone."""
        with self._records.writing(forced=False) as db:
            for table in ("chats", "chat_answers", "chat_turns"):
                db.execute(
                    f"DELETE FROM {table} WHERE tenant = ? AND conversation = ?", (tenant, id)
                )

    # --- what was said in them ---

    def known(self, tenant: str, digest: bytes) -> tuple[str, int] | None:
        """The conversation in which what has this hash was said, and its last event then."""
        with self._records.reading() as db:
            return db.execute(
                "SELECT conversation, seq FROM chat_answers WHERE tenant = ? AND digest = ?",
                (tenant, digest),
            ).fetchone()

    def keep(self, tenant: str, digest: bytes, id: str, seq: int) -> None:
        """Know it again by that hash."""
        with self._records.writing(forced=False) as db:
            db.execute(
                "INSERT OR REPLACE INTO chat_answers VALUES (?, ?, ?, ?)", (tenant, digest, id, seq)
            )

    # --- turns ---

    def asked(self, tenant: str, digest: bytes) -> Asked | None:
        """The turn that was asked for by a request of this hash."""
        with self._records.reading() as db:
            query = (
                "SELECT conversation, seq, answered, at FROM chat_turns WHERE tenant = ? AND"
                " digest = ?"
            )
            row = db.execute(query, (tenant, digest)).fetchone()
        return None if row is None else Asked(row[0], row[1], bool(row[2]), row[3])

    def ask(self, tenant: str, digest: bytes, id: str, seq: int) -> None:
        """It begins, behind that event."""
        with self._records.writing(forced=False) as db:
            db.execute(
                "INSERT OR REPLACE INTO chat_turns VALUES (?, ?, ?, ?, 0, ?)",
                (tenant, digest, id, seq, time.time()),
            )
            db.execute(
                "UPDATE chats SET used = ? WHERE tenant = ? AND conversation = ?",
                (time.time(), tenant, id),
            )

    def end(self, tenant: str, digest: bytes, id: str, keep: bool) -> None:
        """It is over: answered and to be known again, or not to be."""
        with self._records.writing(forced=False) as db:
            what = "UPDATE chat_turns SET answered = 1" if keep else "DELETE FROM chat_turns"
            db.execute(
                f"{what} WHERE tenant = ? AND digest = ? AND conversation = ?", (tenant, digest, id)
            )

    def unanswered(self) -> list[tuple[str, str]]:
        """Tenant and conversation of the turns that were not answered."""
        with self._records.reading() as db:
            return db.execute(
                "SELECT DISTINCT tenant, conversation FROM chat_turns WHERE answered = 0"
            ).fetchall()
