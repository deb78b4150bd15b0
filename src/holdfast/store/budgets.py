"""Budgets of conversation trees: limits, spent amounts and reservations.

A budget belongs to the root of a tree. Spent amounts stay counted for as long as the root
conversation exists. Before a model call, its estimate is reserved in the budgets of the
conversation and all its ancestors, or in none. The answer's usage then replaces the reservation. A
reservation whose owner died counts as spent, because it is unknown whether that call was made.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.store.base import Lease

# The unit of costs is a billionth of a dollar, in whole numbers, so that sums are exact.
DOLLAR = 1_000_000_000

_MAX_GAPS = 32  # the number of latest idle intervals that are kept
# Seconds by which a clock may lag behind the times of others. With a larger lag, the other clock
# ran ahead or was set back.
_MAX_CLOCK_LAG_SECONDS = 60.0


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
    None. Without a `key`, `amount` is spent from the budgets of `roots` without a reservation."""

    key: str = ""
    amount: Amount | None = None
    roots: tuple[str, ...] = ()


class Shortage(msgspec.Struct, frozen=True, array_like=True):
    """The reason for a refused reservation: in the budget of `root`, `value` of `limit` (of kind
    `type`) is spent or held. `wait` is True if running calls may give enough of it back."""

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
        limits = budget or Budget("")
        self.most_steps, self.most_tokens = limits.steps, limits.tokens
        self.most_cost, self.most_seconds = limits.cost, limits.seconds

    def budget(self, root: str) -> Budget:
        """Return the limits as the `Budget` of `root`."""
        return Budget(root, self.most_steps, self.most_tokens, self.most_cost, self.most_seconds)

    def works(self, since: float, now: float) -> None:
        """Record that a conversation of the tree worked from `since` to `now`. Overlapping
        intervals count once, and may be recorded in any order."""
        since = min(since, now)
        if not self.until:
            self._begin(0.0, since)
            self.until = now
            return
        if self.until > now + _MAX_CLOCK_LAG_SECONDS:
            if self.since > now:  # the clock was set back; earlier work stays counted
                self.seconds += self.until - self.since
                self._begin(0.0, since)
            self.until = now  # no work is in the future
        if since > self.until:
            self.seconds += self.until - self.since
            self._begin(self.until, since)
        elif since < self.since:
            self._fill(since)
        self.until = max(self.until, now)

    def _begin(self, after: float, since: float) -> None:
        gaps = [gap for gap in self._idle()[1 - _MAX_GAPS :] if gap[1] <= since]
        self.gaps = json.dumps([*gaps, [after, since]])
        self.since = since

    def _idle(self) -> list[list[float]]:
        return json.loads(self.gaps) if self.gaps else []

    def _fill(self, since: float) -> None:
        """Count work after `since` that falls into gaps recorded as idle."""
        gaps: list[list[float]] = []
        for begin, end in self._idle():
            if end > since:
                self.seconds += end - max(begin, since)
                end = max(begin, since)
            if end > begin:
                gaps.append([begin, end])
        self.gaps = json.dumps(gaps)

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

    def shortage(self, root: str, amount: Amount) -> Shortage | None:
        """Return the first limit that another `amount` would exceed, None if there is room."""
        held_amount = Amount(self.held_steps, self.held_tokens, self.held_cost)
        exceeded = self._exceeded_limit(amount, held_amount)
        if exceeded is None:
            return None
        # There is room once all reservations are given back.
        wait = self._exceeded_limit(amount, Amount()) is None
        return Shortage(root, *exceeded, wait)

    def _exceeded_limit(
        self, amount: Amount, held_amount: Amount
    ) -> tuple[str, float, float] | None:
        """Return type, value and limit of the first limit that `amount` would exceed."""
        for type, limit, value, more, unit in (
            ("steps", self.most_steps, self.steps + held_amount.steps, amount.steps, 1),
            ("tokens", self.most_tokens, self.tokens + held_amount.tokens, amount.tokens, 1),
            ("cost", self.most_cost, self.cost + held_amount.cost, amount.cost, DOLLAR),
        ):
            if limit is not None and value + more > limit:
                return (type, value, limit) if unit == 1 else (type, value / unit, limit / unit)
        seconds = self.seconds + self.until - self.since
        if self.most_seconds is not None and seconds >= self.most_seconds:
            return "seconds", seconds, self.most_seconds
        return None


# --- the budgets of a store ---


class Ledger(ABC):
    """The budgets and reservations of a store. Its owner holds a lock, or a transaction, around
    each method."""

    __slots__ = ()

    @abstractmethod
    def account(self, root: str) -> Account | None:
        """Return the account of the tree of `root`, None if it has no budget."""

    @abstractmethod
    def save(self, root: str, account: Account) -> None:
        """Keep an account, a new one too."""

    @abstractmethod
    def add(self, lease: Lease, key: str, root: str, amount: Amount) -> None:
        """Keep a reservation of the owner of `lease`."""

    @abstractmethod
    def take(self, key: str) -> list[tuple[str, Amount]]:
        """Remove the reservations under `key`; return the root and amount of each."""

    @abstractmethod
    def take_dead(self, root: str) -> list[Amount]:
        """Remove the reservations of dead owners in one budget; return their amounts."""

    @abstractmethod
    def forget(self, root: str) -> None:
        """Remove the budget of a tree whose root conversation is deleted."""

    @abstractmethod
    def spawned_by(self, conversation_id: str) -> str:
        """Return the `Summary.spawned_by` of a conversation, "" for an unknown one."""

    def bound(self, root: str, budget: Budget | None) -> None:
        """Set the limits of the tree of `root`. Amounts already spent stay counted."""
        account = self.account(root)
        if account is not None or budget is not None:
            account = account or Account()
            account.bound(budget)
            self.save(root, account)

    def above(self, conversation_id: str, spawned_by: str) -> tuple[Budget, ...]:
        """Return the budgets that a conversation spends from: its own first, then those of its
        ancestors."""
        budgets: list[Budget] = []
        visited_ids: set[str] = set()
        while conversation_id and conversation_id not in visited_ids:
            visited_ids.add(conversation_id)
            if (account := self.account(conversation_id)) is not None:
                budgets.append(account.budget(conversation_id))
            conversation_id = spawned_by.rpartition(":")[0]
            spawned_by = self.spawned_by(conversation_id) if conversation_id else ""
        return tuple(budgets)

    def reserve(self, lease: Lease, reservation: Reservation) -> Shortage | None:
        """Hold an amount in all budgets of `wanted.roots`, or in none and return the shortage."""
        amount = reservation.amount
        accounts = [
            (root, account)
            for root in reservation.roots
            if (account := self.account(root)) is not None
        ]
        for root, account in accounts:
            account.works(reservation.since, reservation.now)
            if account.shortage(root, amount) is None:
                continue
            for dead in self.take_dead(root):
                account.hold(dead, -1)
                account.spend(dead)
                self.save(root, account)
            if shortage := account.shortage(root, amount):
                return shortage
        for root, account in accounts:
            account.hold(amount)
            self.save(root, account)
            self.add(lease, reservation.key, root, amount)
        return None

    def settle(self, settled: Sequence[Settlement]) -> None:
        """Replace reservations by the amounts that were spent."""
        for one in settled:
            if one.key:
                for root, estimate in self.take(one.key):
                    self._spend(root, estimate if one.amount is None else one.amount, estimate)
            elif one.amount is not None:
                for root in one.roots:
                    self._spend(root, one.amount, Amount())

    def _spend(self, root: str, amount: Amount, held_amount: Amount) -> None:
        if (account := self.account(root)) is not None:
            account.hold(held_amount, -1)
            account.spend(amount)
            self.save(root, account)
