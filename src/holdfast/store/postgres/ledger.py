"""Budgets in Postgres. See `holdfast.store.budgets`."""

from __future__ import annotations

import msgspec

from holdfast.store.base import Lease
from holdfast.store.budgets import Account, Amount, Ledger
from holdfast.store.nul_text import escaped, unescaped
from holdfast.store.postgres.leases import LIVES
from holdfast.store.postgres.pool import Cursor

# The row stays locked until the transaction ends.
_READ = """
SELECT most_steps, most_tokens, most_cost, most_seconds, steps, tokens, cost,
held_steps, held_tokens, held_cost, seconds, since, until, gaps
FROM budgets WHERE root = %s FOR UPDATE
"""
_UPDATE = """
UPDATE budgets SET most_steps = %s, most_tokens = %s, most_cost = %s, most_seconds = %s,
steps = %s, tokens = %s, cost = %s, held_steps = %s, held_tokens = %s, held_cost = %s,
seconds = %s, since = %s, until = %s, gaps = %s WHERE root = %s
"""
_INSERT = """
INSERT INTO budgets (most_steps, most_tokens, most_cost, most_seconds, steps, tokens, cost,
held_steps, held_tokens, held_cost, seconds, since, until, gaps, root)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_ADD = """
INSERT INTO reservations (key, root, conversation, epoch, steps, tokens, cost)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
_TAKE = "DELETE FROM reservations WHERE key = %s RETURNING root, steps, tokens, cost"
_TAKE_DEAD = f"""
DELETE FROM reservations r WHERE r.root = %s AND NOT EXISTS (
    SELECT FROM conversations c JOIN owners o ON o.token = c.owner
    WHERE c.number = r.conversation AND c.epoch = r.epoch AND {LIVES}
) RETURNING r.steps, r.tokens, r.cost
"""


class PostgresLedger(Ledger):
    """A ledger within one transaction of Postgres. New reservations belong to the conversation
    `number`."""

    def __init__(self, db: Cursor, number: int = 0) -> None:
        self._db = db
        self._number = number

    def spawned_by(self, conversation_id: str) -> str:
        query = "SELECT spawned_by FROM conversations WHERE id = %s"
        row = self._db.execute(query, (escaped(conversation_id),)).fetchone()
        return "" if row is None else unescaped(row[0])

    def account(self, root: str) -> Account | None:
        row = self._db.execute(_READ, (escaped(root),)).fetchone()
        return None if row is None else Account(*row)

    def save(self, root: str, account: Account) -> None:
        row = (*msgspec.structs.astuple(account), escaped(root))
        if not self._db.execute(_UPDATE, row).rowcount:
            self._db.execute(_INSERT, row)

    def add(self, lease: Lease, key: str, root: str, amount: Amount) -> None:
        owner = (self._number, lease.epoch)
        row = (escaped(key), escaped(root), *owner, *msgspec.structs.astuple(amount))
        self._db.execute(_ADD, row)

    def take(self, key: str) -> list[tuple[str, Amount]]:
        rows = self._db.execute(_TAKE, (escaped(key),)).fetchall()
        return [(unescaped(root), Amount(*amount)) for root, *amount in rows]

    def take_dead(self, root: str) -> list[Amount]:
        rows = self._db.execute(_TAKE_DEAD, (escaped(root),)).fetchall()
        return [Amount(*amount) for amount in rows]

    def forget(self, root: str) -> None:
        self._db.execute("DELETE FROM reservations WHERE root = %s", (escaped(root),))
        self._db.execute("DELETE FROM budgets WHERE root = %s", (escaped(root),))
