"""Budgets in an SQLite file. See `holdfast.store.budgets`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec

from holdfast.store.base import Lease
from holdfast.store.budgets import Account, Amount, Ledger

_COLUMNS = ", ".join(Account.__struct_fields__)
_READ = f"SELECT {_COLUMNS} FROM budgets WHERE root = ?"
_SAVE = (
    f"REPLACE INTO budgets (root, {_COLUMNS}) VALUES (?{', ?' * len(Account.__struct_fields__)})"
)
_ADD = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)"
_FIND = "SELECT root, steps, tokens, cost FROM reservations WHERE key = ?"
# One statement with RETURNING is slower than the two.
_REMOVE = "DELETE FROM reservations WHERE key = ?"
_HELD = """
SELECT r.key, r.steps, r.tokens, r.cost, c.holder FROM reservations r
LEFT JOIN conversations c ON c.number = r.conversation AND c.epoch = r.epoch AND c.holder <> ''
WHERE r.root = ?
"""


class SQLLedger(Ledger):
    """A ledger in an SQLite file, within one transaction. New reservations belong to the
    conversation `number`; `living` tells whether a holder lives."""

    def __init__(
        self,
        db: sqlite3.Cursor,
        number: int = 0,
        living: Callable[[str], object] = lambda holder: True,
    ) -> None:
        self._db = db
        self._number = number
        self._living = living

    def spawned_by(self, conversation_id: str) -> str:
        query = "SELECT spawned_by FROM conversations WHERE id = ?"
        row = self._db.execute(query, (conversation_id,)).fetchone()
        return "" if row is None else row[0]

    def account(self, root: str) -> Account | None:
        row = self._db.execute(_READ, (root,)).fetchone()
        return None if row is None else Account(*row)

    def save(self, root: str, account: Account) -> None:
        self._db.execute(_SAVE, (root, *msgspec.structs.astuple(account)))

    def add(self, lease: Lease, key: str, root: str, amount: Amount) -> None:
        owner = (self._number, lease.epoch)
        self._db.execute(_ADD, (key, root, *owner, *msgspec.structs.astuple(amount)))

    def take(self, key: str) -> list[tuple[str, Amount]]:
        rows = self._db.execute(_FIND, (key,)).fetchall()
        if rows:
            self._db.execute(_REMOVE, (key,))
        return [(root, Amount(*amount)) for root, *amount in rows]

    def take_dead(self, root: str) -> list[Amount]:
        living: dict[str | None, object] = {None: None}
        dead: list[tuple[str, str]] = []
        amounts: list[Amount] = []
        for key, *amount, holder in self._db.execute(_HELD, (root,)).fetchall():
            if holder not in living:
                living[holder] = self._living(holder)
            if not living[holder]:
                dead.append((key, root))
                amounts.append(Amount(*amount))
        self._db.executemany("DELETE FROM reservations WHERE key = ? AND root = ?", dead)
        return amounts

    def forget(self, root: str) -> None:
        self._db.execute("DELETE FROM reservations WHERE root = ?", (root,))
        self._db.execute("DELETE FROM budgets WHERE root = ?", (root,))
