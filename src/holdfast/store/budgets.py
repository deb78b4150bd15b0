"""Budgets of conversation trees: limits, spent amounts and reservations, and their rows in SQLite.

A budget belongs to the root of a tree. Spent amounts stay counted for as long as the root
conversation exists. Before a model call, its estimate is reserved in the budgets of the
conversation and all its ancestors, or in none. The answer's usage then replaces the reservation.
A reservation whose owner died counts as spent, because nobody can know whether that call was
made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import sqlite3

# The unit of costs is a billionth of a dollar, in whole numbers, so that sums are exact.
DOLLAR = 1_000_000_000

_GAPS = 32  # the number of latest idle intervals that are kept
# Seconds by which a clock may lag behind the times of others. With a larger lag, the other clock
# ran ahead or was set back.
_AHEAD = 60.0


class Amount(msgspec.Struct, frozen=True, array_like=True):
    """A number of steps (model calls), tokens (input and output) and billionths of a US dollar."""

    steps: int = 0
    tokens: int = 0
    cost: int = 0


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """The limits of the conversation `root` and its descendants: the fields of `Amount`, and
    seconds at work. None means no limit."""

    root: str
    steps: int | None = None
    tokens: int | None = None
    cost: int | None = None
    seconds: float | None = None


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """A request to hold `amount` under `key` in the budgets of `roots`.

    `since` is the time at which the conversation started to work, `now` the present time of its
    clock, both in seconds. A tree is at work while any of its conversations is.
    """

    key: str
    roots: tuple[str, ...]
    amount: Amount
    since: float
    now: float


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a reservation: `amount` was spent in its place, or all of it if `amount` is
    None.

    Without a `key`, `amount` is spent from the budgets of `roots` without a reservation.
    """

    key: str = ""
    amount: Amount | None = None
    roots: tuple[str, ...] = ()


class Shortage(msgspec.Struct, frozen=True, array_like=True):
    """The reason for a refused reservation: in the budget of `root`, `value` of `limit` (of kind
    `type`) is spent or held.

    `wait` is True if running calls may give enough of it back.
    """

    root: str
    type: str
    value: float
    limit: float
    wait: bool = False


class Account(msgspec.Struct, array_like=True):
    """The state of one budget. Its fields are the columns of the table."""

    most_steps: int | None = None
    most_tokens: int | None = None
    most_cost: int | None = None
    most_seconds: float | None = None
    steps: int = 0
    tokens: int = 0
    cost: int = 0
    held_steps: int = 0
    held_tokens: int = 0
    held_cost: int = 0
    seconds: float = 0.0
    since: float = 0.0
    until: float = 0.0
    gaps: str = ""  # idle intervals before `since`: JSON pairs, the latest last

    def bound(self, budget: Budget | None) -> None:
        """Set the limits; None removes them."""
        found = budget or Budget("")
        self.most_steps, self.most_tokens, self.most_cost, self.most_seconds = (
            found.steps,
            found.tokens,
            found.cost,
            found.seconds,
        )

    def budget(self, root: str) -> Budget:
        """Return the limits as the `Budget` of `root`."""
        return Budget(root, self.most_steps, self.most_tokens, self.most_cost, self.most_seconds)

    def works(self, since: float, now: float) -> None:
        """Record that a conversation of the tree worked from `since` to `now`.

        Overlapping intervals count once. They may be recorded in any order.
        """
        since = min(since, now)
        if not self.until:
            self._begin(0.0, since)
            self.until = now
            return
        if self.until > now + _AHEAD:
            if self.since > now:  # the clock was set back; earlier work stays counted
                self.seconds += self.until - self.since
                self._begin(0.0, since)
            self.until = now  # nobody can have worked in the future
        if since > self.until:
            self.seconds += self.until - self.since
            self._begin(self.until, since)
        elif since < self.since:
            self._fill(since)
        self.until = max(self.until, now)

    def _begin(self, after: float, since: float) -> None:
        gaps = [gap for gap in self._idle()[1 - _GAPS :] if gap[1] <= since]
        self.gaps = json.dumps([*gaps, [after, since]])
        self.since = since

    def _idle(self) -> list[list[float]]:
        return json.loads(self.gaps) if self.gaps else []

    def _fill(self, since: float) -> None:
        """Count work after `since` that falls into gaps recorded as idle."""
        left: list[list[float]] = []
        for begin, end in self._idle():
            if end > since:
                self.seconds += end - max(begin, since)
                end = max(begin, since)
            if end > begin:
                left.append([begin, end])
        self.gaps = json.dumps(left)

    def hold(self, amount: Amount, sign: int = 1) -> None:
        """Hold an amount, or with `sign=-1` stop holding it."""
        self.held_steps += sign * amount.steps
        self.held_tokens += sign * amount.tokens
        self.held_cost += sign * amount.cost

    def spend(self, amount: Amount) -> None:
        """Count an amount as spent."""
        self.steps += amount.steps
        self.tokens += amount.tokens
        self.cost += amount.cost

    def short(self, amount: Amount, held: Amount | None = None) -> tuple[str, float, float] | None:
        """Return the first limit that another `amount` would exceed, None if there is room.

        The result is the limit's type, the value that is spent or held, and the limit. `held`
        overrides the amount that is held now.
        """
        held = Amount(self.held_steps, self.held_tokens, self.held_cost) if held is None else held
        if self.most_steps is not None and self.steps + held.steps + amount.steps > self.most_steps:
            return "steps", self.steps + held.steps, self.most_steps
        if (
            self.most_tokens is not None
            and self.tokens + held.tokens + amount.tokens > self.most_tokens
        ):
            return "tokens", self.tokens + held.tokens, self.most_tokens
        if self.most_cost is not None and self.cost + held.cost + amount.cost > self.most_cost:
            return "cost", (self.cost + held.cost) / DOLLAR, self.most_cost / DOLLAR
        if (
            self.most_seconds is not None
            and (spent := self.seconds + self.until - self.since) >= self.most_seconds
        ):
            return "seconds", spent, self.most_seconds
        return None

    def shortage(self, root: str, amount: Amount) -> Shortage:
        """Return the `Shortage` for an amount that has no room. Call it after the reservations
        of dead owners are counted as spent."""
        found = self.short(amount)
        assert found is not None
        wait = self.short(amount, Amount()) is None  # there is room once all holds are given back
        return Shortage(root, *found, wait)


# --- rows ---

_COLUMNS = ", ".join(Account.__struct_fields__)
_READ = f"SELECT {_COLUMNS} FROM budgets WHERE root = ?"
_WRITE = (
    f"UPDATE budgets SET {', '.join(f'{name} = ?' for name in Account.__struct_fields__)} WHERE"
    " root = ?"
)
_HOLD = """
UPDATE budgets SET held_steps = held_steps + ?, held_tokens = held_tokens + ?,
held_cost = held_cost + ?, seconds = ?, since = ?, until = ?, gaps = ? WHERE root = ?
"""
_SPEND = """
UPDATE budgets SET steps = steps + ?, tokens = tokens + ?, cost = cost + ?,
held_steps = held_steps - ?, held_tokens = held_tokens - ?, held_cost = held_cost - ? WHERE root = ?
"""
_ROW = (
    "INSERT INTO reservations (key, root, conversation, epoch, steps, tokens, cost) VALUES (?, ?,"
    " ?, ?, ?, ?, ?)"
)
_FIND = "SELECT root, steps, tokens, cost FROM reservations WHERE key = ?"
_REMOVE = (
    "DELETE FROM reservations WHERE key = ?"  # one statement with RETURNING is slower than the two
)
_HELD = """
SELECT r.key, r.steps, r.tokens, r.cost, c.holder FROM reservations r
LEFT JOIN conversations c ON c.number = r.conversation AND c.epoch = r.epoch AND c.holder <> ''
WHERE r.root = ?
"""


def _read(db: sqlite3.Cursor, root: str) -> Account | None:
    row = db.execute(_READ, (root,)).fetchone()
    return None if row is None else Account(*row)


def _write(db: sqlite3.Cursor, root: str, account: Account) -> None:
    db.execute(_WRITE, (*msgspec.structs.astuple(account), root))


def bound(db: sqlite3.Cursor, root: str, budget: Budget | None) -> None:
    """Set the limits of the tree of `root`. Amounts already spent stay counted."""
    account = _read(db, root)
    if account is None:
        if budget is None:
            return
        db.execute("INSERT INTO budgets (root) VALUES (?)", (root,))
        account = Account()
    account.bound(budget)
    _write(db, root, account)


def above(db: sqlite3.Cursor, conversation_id: str, spawned_by: str) -> tuple[Budget, ...]:
    """Return the budgets that a conversation spends from: its own first, then those of its
    ancestors."""
    found: list[Budget] = []
    seen: set[str] = set()
    while conversation_id and conversation_id not in seen:
        seen.add(conversation_id)
        account = _read(db, conversation_id)
        if account is not None:
            found.append(account.budget(conversation_id))
        conversation_id = spawned_by.rpartition(":")[0]
        row = (
            db.execute(
                "SELECT spawned_by FROM conversations WHERE id = ?", (conversation_id,)
            ).fetchone()
            if conversation_id
            else None
        )
        spawned_by = row[0] if row is not None else ""
    return tuple(found)


def reserve(
    db: sqlite3.Cursor, number: int, epoch: int, wanted: Reservation, living: Callable[[str], bool]
) -> Shortage | None:
    """Hold an amount in all budgets of `wanted.roots`, or in none and return the shortage."""
    amount = wanted.amount
    accounts = [
        (root, account) for root in wanted.roots if (account := _read(db, root)) is not None
    ]
    for root, account in accounts:
        account.works(wanted.since, wanted.now)
        if account.short(amount) is not None:
            _spend_dead_holds(db, root, account, living)
            if account.short(amount) is not None:
                return account.shortage(root, amount)
    steps, tokens, cost = amount.steps, amount.tokens, amount.cost
    for root, account in accounts:
        db.execute(
            _HOLD,
            (
                steps,
                tokens,
                cost,
                account.seconds,
                account.since,
                account.until,
                account.gaps,
                root,
            ),
        )
        db.execute(_ROW, (wanted.key, root, number, epoch, steps, tokens, cost))
    return None


def _spend_dead_holds(
    db: sqlite3.Cursor, root: str, account: Account, living: Callable[[str], bool]
) -> None:
    """Count the reservations of dead owners as spent."""
    known: dict[str | None, bool] = {None: False}
    dead: list[str] = []
    for key, steps, tokens, cost, holder in db.execute(_HELD, (root,)).fetchall():
        if holder not in known:
            known[holder] = living(holder)
        if not known[holder]:
            dead.append(key)
            account.hold(amount := Amount(steps, tokens, cost), -1)
            account.spend(amount)
    if dead:
        db.executemany(
            "DELETE FROM reservations WHERE key = ? AND root = ?", [(key, root) for key in dead]
        )
        _write(db, root, account)


def settle(db: sqlite3.Cursor, settled: Sequence[Settlement]) -> None:
    """Replace reservations by the amounts that were spent. A reservation that already counts as
    spent stays so."""
    for one in settled:
        spent = one.amount
        if one.key:
            found = db.execute(_FIND, (one.key,)).fetchall()
            if found:
                db.execute(_REMOVE, (one.key,))
            for root, steps, tokens, cost in found:
                took = (
                    (steps, tokens, cost)
                    if spent is None
                    else (spent.steps, spent.tokens, spent.cost)
                )
                db.execute(_SPEND, (*took, steps, tokens, cost, root))
        elif spent is not None:
            for root in one.roots:
                db.execute(_SPEND, (spent.steps, spent.tokens, spent.cost, 0, 0, 0, root))


def forget(db: sqlite3.Cursor, root: str) -> None:
    """Remove the budget of a tree whose root conversation is deleted."""
    db.execute("DELETE FROM reservations WHERE root = ?", (root,))
    db.execute("DELETE FROM budgets WHERE root = ?", (root,))


# --- in memory ---


class Book:
    """The budgets of a store in memory. Its owner holds a lock around each method."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        # By key: the reservation, its conversation and the epoch of the lease.
        self._held: dict[str, tuple[Reservation, str, int]] = {}

    def bound(self, root: str, budget: Budget | None) -> None:
        """See the function `bound`."""
        if budget is not None or root in self.accounts:
            self.accounts.setdefault(root, Account()).bound(budget)

    def forget(self, root: str) -> None:
        """See the function `forget`."""
        if self.accounts.pop(root, None) is not None:
            for key, (wanted, holder, epoch) in self._held.items():
                if root in wanted.roots:
                    left = tuple([one for one in wanted.roots if one != root])
                    self._held[key] = (msgspec.structs.replace(wanted, roots=left), holder, epoch)

    def reserve(
        self,
        conversation_id: str,
        epoch: int,
        wanted: Reservation,
        living: Callable[[str, int], bool],
    ) -> Shortage | None:
        """See the function `reserve`."""
        amount = wanted.amount
        accounts = [
            (root, account)
            for root in wanted.roots
            if (account := self.accounts.get(root)) is not None
        ]
        for root, account in accounts:
            account.works(wanted.since, wanted.now)
            if account.short(amount) is not None:
                for key in [
                    key for key, (_, holder, at) in self._held.items() if not living(holder, at)
                ]:
                    self._settle(Settlement(key))
                if account.short(amount) is not None:
                    return account.shortage(root, amount)
        for _, account in accounts:
            account.hold(amount)
        self._held[wanted.key] = (wanted, conversation_id, epoch)
        return None

    def settle(self, settled: Sequence[Settlement]) -> None:
        """See the function `settle`."""
        for one in settled:
            self._settle(one)

    def _settle(self, one: Settlement) -> None:
        if not one.key:
            for root in one.roots:
                if (account := self.accounts.get(root)) is not None and one.amount is not None:
                    account.spend(one.amount)
            return
        found = self._held.pop(one.key, None)
        if found is None:
            return
        wanted = found[0]
        for root in wanted.roots:
            if (account := self.accounts.get(root)) is not None:
                account.hold(wanted.amount, -1)
                account.spend(wanted.amount if one.amount is None else one.amount)
