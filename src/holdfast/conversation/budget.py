"""The spending of a conversation from the budgets of its tree.

An amount is reserved before each model call and settled with its answer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.limits import Limits, check_tree, most_output
from holdfast.content import Usage
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import (
    Cancelled,
    ConfigurationError,
    ConversationClosed,
    LimitExceeded,
    LLMError,
)
from holdfast.object_struct import ObjectStruct
from holdfast.store.budgets import DOLLAR, Amount, Budget, Reservation, Settlement, Shortage
from holdfast.tools import Cancellation

if TYPE_CHECKING:
    from holdfast.conversation.journal import Journal
    from holdfast.llm.completion import Completion
    from holdfast.llm.model import Model
    from holdfast.store import Lease

# Seconds between two attempts to reserve, for the first waiter of this process's tree and for the
# others. An event tells of room that this process frees, but not of other processes' room.
_POLL_SECONDS, _POLL_SECONDS_BEHIND = 0.05, 0.25
_TREE_SOURCE = "The tree of conversation"
ESTIMATE_FACTOR = 1.1  # a factor for estimated request tokens: better too many than too few
_STEP = Amount(1)
_MAX_AMOUNT = 10**15  # tokens or billionths of a dollar; no call takes more
LLM_NOTE = "llm"
"""The `about` of a note on a reserved model call of a tool or a hook."""

OTHER_LLM_NOTE = "llm:other"
"""The `about` of a note on an unreserved call of another model than the agent's."""

CONDENSATION_NOTE = "condensation"
"""The `about` of a note that records the model calls of a condensation that was not used."""

# events that carry the usage of model calls that are not steps
_USAGE_EVENTS = frozenset((ev.HistoryCondensed, ev.DecisionMade, ev.MessageAdded, ev.NoteRecorded))


class _Waiter(ObjectStruct):
    """The place of one thread that waits for room in the budget of `root`."""

    root: str
    event: threading.Event = msgspec.field(default_factory=threading.Event)


class ReservationQueue(ObjectStruct):
    """The threads of a tree that wait for room here, in order of arrival. Thread-safe."""

    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _waiting: list[_Waiter] = []

    def join(self, root: str) -> _Waiter:
        mine = _Waiter(root)
        with self._lock:
            self._waiting.append(mine)
        return mine

    def leave(self, mine: _Waiter) -> None:
        with self._lock:
            self._waiting.remove(mine)
        self.wake()

    def behind(self, mine: _Waiter | None, roots: Sequence[str]) -> str:
        """Return the first of `roots` for which another thread waits before `mine`; "" for none."""
        if not self._waiting:
            return ""
        with self._lock:
            for one in self._waiting:
                if one is mine:
                    break
                if one.root in roots:
                    return one.root
        return ""

    def wake(self) -> None:
        """Wake the first waiter of each budget: there may be room."""
        if self._waiting:
            with self._lock:
                roots: set[str] = set()
                for one in self._waiting:
                    if one.root not in roots:
                        roots.add(one.root)
                        one.event.set()


class Spending(ObjectStruct):
    """The budgets of one open conversation: its own tree's, then those of its ancestors."""

    _journal: Journal
    own: Budget | None
    budgets: tuple[Budget, ...]
    line: ReservationQueue
    _above: Spending | None = None  # of the parent, if it is open here
    # settlements to write with the next append; guarded by the journal's lock
    due: list[Settlement] = []
    reservations: dict[str, Amount] = {}
    # the key of the reservation for the next model call, if made ahead of it
    ahead: str | None = None
    # the seq and the model that the reservation ahead was made for
    _ahead_of: tuple[int, object] = (0, None)
    # the model of that call, during the append that reserves it
    _expected_model: Model | None = None
    _count: int = 0  # of the reservations so far
    _max_output: tuple[object, int] = (None, 0)  # a model and its longest answer in tokens
    # settled amounts that a coming `HistoryCondensed` event or its note carries as well
    _settled_ahead: Amount = Amount()
    counts_tokens: bool = False
    counts_cost: bool = False
    _began: float = 0.0  # seconds since the epoch
    _roots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._began = self._journal.clock().timestamp()
        self._roots = tuple([budget.root for budget in self.budgets])
        self.counts_tokens = any(budget.tokens is not None for budget in self.budgets)
        self.counts_cost = any(budget.cost is not None for budget in self.budgets)

    @property
    def counts_amounts(self) -> bool:
        """True if a budget bounds more than the number of steps and the time."""
        return self.counts_tokens or self.counts_cost

    @property
    def inherited(self) -> list[Budget]:
        """The budgets of the conversations above this one."""
        return [budget for budget in self.budgets if budget is not self.own]

    # --- reservation ---

    def step(self, llm: Model, draft: Sequence[Any] = ()) -> Amount:
        """Return the most that the next model call takes once `draft` is written."""
        if not self.counts_amounts:
            return _STEP
        sizes = self._journal.fold.measure(self._journal.tail)
        total = sizes.total
        for event in draft:
            if type(event) is ev.ToolCallFinished:
                total += tokens.result(event.result)
        return self._amount(1, int(sizes.worth(total) * ESTIMATE_FACTOR), llm)

    def _is_priced(self, llm: Model) -> bool:
        try:
            self._check(llm)
        except ConfigurationError:
            return False
        return True

    def _check(self, llm: Model) -> None:
        if self._max_output[0] is not llm:
            check_tree("The tree's budget has", llm, self.counts_tokens, self.counts_cost)
            self._max_output = (llm, most_output(llm) or 0)

    def _amount(self, steps: int, input_tokens: int, llm: Model) -> Amount:
        """Return the most that a call takes. Raises `ConfigurationError` if that is unknown."""
        self._check(llm)
        output_tokens = self._max_output[1]
        cost = 0
        if self.counts_cost:
            usages = (
                Usage(input_tokens, output_tokens),
                Usage(input_tokens, output_tokens, cache_write_tokens=input_tokens),
            )
            prices = [price for usage in usages if (price := _price(llm, usage)) is not None]
            if not prices:
                raise ConfigurationError(
                    f"The tree's budget has a cost, but the price of {llm.model!r} is not known;"
                    " use steps or tokens."
                )
            cost = max(prices)
        return Amount(steps, input_tokens + output_tokens, cost)

    def hold(self, amount: Amount, token: Cancellation, going: Callable[[], bool]) -> str | None:
        """Reserve an amount and return the key of the reservation.

        Waits for room while running calls may give some back. Returns None if `token` was
        cancelled or `going()` returned False. Raises `LimitExceeded`.
        """
        self.give_back()  # else it might wait for room that its own reservation takes
        key = self._key()
        mine: _Waiter | None = None
        forget: Callable[[], None] | None = None
        try:
            while not token and going():
                root = behind = self.line.behind(mine, self._roots)
                if not behind:
                    reservation = self._reservation_of(key, amount)
                    short = self._journal.store.reserve(self._lease(), reservation)
                    if short is None:
                        self.reservations[key] = amount
                        return key
                    if not short.wait:
                        raise self._exceeded(short, amount)
                    root = short.root
                if mine is None:
                    mine = self.line.join(root)
                    forget = token.add_callback(mine.event.set)
                else:
                    mine.root = root
                    mine.event.wait(_POLL_SECONDS_BEHIND if behind else _POLL_SECONDS)
                mine.event.clear()
            return None
        finally:
            if mine is not None:
                self.line.leave(mine)
            if forget is not None:
                forget()

    def _lease(self) -> Lease:
        lease = self._journal.lease
        if lease is None:
            raise ConversationClosed(f"Conversation {self._journal.id!r} is closed.")
        return lease

    def _key(self) -> str:
        lease = self._lease()
        with self._journal.lock:
            self._count += 1
            return f"{lease.conversation_id}#{lease.epoch}.{self._count}"

    def _reservation_of(self, key: str, amount: Amount) -> Reservation:
        journal = self._journal
        return Reservation(key, self._roots, amount, self._since(), journal.clock().timestamp())

    def _since(self) -> float:
        """Return the start of the tree's current work, in seconds since the epoch, as known here.

        While a call waits for a child, the conversation of that call is at work too.
        """
        mine = self._journal.fold.run.since
        since = self._journal.clock().timestamp() if mine is None else mine.timestamp()
        # time in which a dead owner's run waited to be taken up does not count
        since = max(since, self._began)
        above = self._above
        if above is None or above._journal.closed:
            return since
        runs = above._journal.fold.status is ConversationStatus.RUNNING
        return min(since, above._since()) if runs else since

    # --- reservation with the append before the call: saves a transaction per step ---

    def expect(self, llm: Model) -> None:
        """Reserve the next model call's amount with the append in progress, if there is room at
        once.

        Called within the transaction that closes the last open call.
        """
        self._expected_model = llm

    def reservation(self, draft: Sequence[Any]) -> Reservation | None:
        """Return the reservation to make with these events; None while others wait for room.
        Holds the journal's lock."""
        llm, self._expected_model = self._expected_model, None
        if (
            llm is None
            or not draft
            or self.ahead is not None
            or self.line.behind(None, self._roots)
            or not self._is_priced(llm)
        ):
            return None
        key, amount = self._key(), self.step(llm, draft)
        self._ahead_of = (draft[-1].seq, llm)
        # set before the append: an aborted append may have been written
        self.reservations[key] = amount
        self.ahead = key
        return self._reservation_of(key, amount)

    def confirm_ahead(self, accepted: bool) -> None:
        """Drop the reservation ahead unless the store `accepted` it. Holds the journal's lock."""
        if not accepted and self.ahead is not None:
            self.reservations.pop(self.ahead, None)
            self.ahead = None

    def give_back(self) -> None:
        """Give back the reservation ahead: the next action is not a model call."""
        if self.ahead is not None:
            self.cancel(self.ahead)
            self.ahead = None

    def _exceeded(self, short: Shortage, amount: Amount) -> LimitExceeded:
        more = {
            "tokens": f" The next model call may take {amount.tokens:,} more.",
            "cost": f" The next model call may take {amount.cost / DOLLAR:g} more.",
        }
        advice = (
            f"{more.get(short.type, '')} Raise Agent(tree_limits=Limits({short.type}=...)) of that"
            " conversation's agent."
        )
        return LimitExceeded(
            short.type, short.value, short.limit, f"{_TREE_SOURCE} {short.root!r}", advice.strip()
        )

    def begin(self, llm: Model, token: Cancellation, going: Callable[[], bool]) -> str | None:
        """Reserve the conversation's next model call, as `hold`.

        Returns None as well if an event was appended meanwhile, since the next action may have
        changed.
        """
        journal = self._journal
        with journal.lock:
            seq, ahead = journal.fold.last_seq, self.ahead
            same = ahead is not None and self._ahead_of == (seq, llm)
            amount = self.reservations[ahead] if ahead is not None and same else self.step(llm)
            if (
                ahead is not None
                and _covers(self.reservations[ahead], amount)
                and going()
                and not token
            ):
                self.ahead = None
                return ahead
        key = self.hold(amount, token, going)
        if key is not None and (journal.fold.last_seq != seq or not going()):
            self.cancel(key)
            return None
        return key

    def ask(self, key: str, llm: Model, ask: Callable[[], Completion]) -> Completion:
        """Make a reserved model call; an answer is settled with the append that writes it."""
        answer = self._settle_failure(key, ask)
        with self._journal.lock:
            self.due.append(
                Settlement(
                    key, self._used_amount(self.reservations[key], answer.usage, answer.cost, llm)
                )
            )
        return answer

    def _settle_failure(self, key: str, ask: Callable[[], Completion]) -> Completion:
        try:
            return ask()
        except BaseException as error:
            # A call that a provider refused took nothing. Of any other the amount is unknown: all.
            refused = isinstance(error, LLMError) and error.status >= 400
            self.settle(key, Amount() if refused else None)
            raise

    # --- settlement ---

    def cancel(self, key: str) -> None:
        """Give a reservation back: its model call is not made."""
        self.settle(key, Amount())

    def settle(self, key: str, amount: Amount | None = None) -> None:
        """Settle a reservation now; `amount` None counts the whole reservation as spent."""
        self._journal.store.settle([Settlement(key, amount)])
        self.reservations.pop(key, None)
        self.line.wake()

    def _used_amount(
        self, reserved: Amount, usage: Usage, cost: float | None, llm: Model
    ) -> Amount:
        """Return the amount that a call took; `reserved` if the provider gives no usable number."""
        token_total = token_count(usage)
        if not token_total:
            return reserved
        billionths = _billionths(cost)
        if billionths is None and self.counts_cost:
            billionths = _price(llm, usage)
        return Amount(
            reserved.steps, token_total, reserved.cost if billionths is None else billionths
        )

    def settlements(self, draft: Sequence[Any]) -> list[Settlement]:
        """Return the settlements to write with these events. Holds the journal's lock.

        Included are the due settlements, and the usage of model calls without a reservation, such
        as an analyzer's or a condenser's own.
        """
        settlements = list(self.due)
        for event in draft:
            if type(event) in _USAGE_EVENTS and (extra := self._unreserved(event)) is not None:
                settlements.append(Settlement("", extra, self._roots))
        return settlements

    def _unreserved(self, event: Any) -> Amount | None:
        token_total, cost = token_count(event.usage), _billionths(event.cost) or 0
        if not token_total and not cost:
            return None
        about = event.about if type(event) is ev.NoteRecorded else ""
        if about == LLM_NOTE:
            return None
        if type(event) is not ev.HistoryCondensed and about != CONDENSATION_NOTE:
            return Amount(0, token_total, cost)
        settled, self._settled_ahead = self._settled_ahead, Amount()
        return Amount(0, max(0, token_total - settled.tokens), max(0, cost - settled.cost))

    def confirm_written(self, settlements: Sequence[Settlement]) -> None:
        """Forget settlements that the store has. Holds the lock of the journal."""
        if settlements:
            self.due.clear()
            for one in settlements:
                self.reservations.pop(one.key, None)
            self.line.wake()

    # --- model calls beside the loop ---

    def begin_condensation(self) -> None:
        """Count a condensation's model calls anew: one that left nothing out wrote no event."""
        self._settled_ahead = Amount()

    def beside(self, input_tokens: int, llm: Model) -> Amount:
        """Return the most that a model call beside the steps takes, by the tokens of its request.
        Raises `ConfigurationError` if that is unknown."""
        return self._amount(0, input_tokens, llm)

    def ask_beside(
        self,
        input_tokens: int,
        llm: Model,
        token: Cancellation,
        ask: Callable[[], Completion],
        in_condensation: bool,
    ) -> Completion:
        """Make a model call that is not a step. `input_tokens` are those of its request.
        `in_condensation` says that an event of the condensation will carry the usage, too. Raises
        `LimitExceeded`, `Cancelled`."""
        key = self.hold(self._amount(0, input_tokens, llm), token, lambda: True)
        if key is None:
            raise Cancelled(
                "The model call was cancelled while it waited for room in the budget of its tree."
            )
        answer = self._settle_failure(key, ask)
        amount = self._used_amount(self.reservations[key], answer.usage, answer.cost, llm)
        self.settle(key, amount)
        if in_condensation:
            earlier = self._settled_ahead
            self._settled_ahead = Amount(
                0, earlier.tokens + amount.tokens, earlier.cost + amount.cost
            )
        return answer


def of_tree(event: ev.ErrorRecorded) -> bool:
    """Return True if a run ended on the budget of a tree, also spent by other conversations."""
    return str(event.details.get("source", "")).startswith(_TREE_SOURCE)


def _covers(reserved: Amount, amount: Amount) -> bool:
    return (
        reserved.steps >= amount.steps
        and reserved.tokens >= amount.tokens
        and reserved.cost >= amount.cost
    )


def fair(usage: Usage, cost: float | None) -> tuple[Usage, float | None]:
    """Return an answer's usage and cost without impossible values: negative or not finite."""
    if cost is not None and not 0 <= cost < math.inf:
        cost = None
    if min(usage.input_tokens, usage.output_tokens) < 0:
        input_tokens, output_tokens = max(0, usage.input_tokens), max(0, usage.output_tokens)
        usage = replace(usage, input_tokens=input_tokens, output_tokens=output_tokens)
    return usage, cost


def token_count(usage: Usage) -> int:
    """Return the tokens of an answer. A provider or a custom model may report any value."""
    counts = [one for one in (usage.input_tokens, usage.output_tokens) if 0 < one < math.inf]
    return sum([min(int(count), _MAX_AMOUNT) for count in counts])


def _billionths(cost: float | None) -> int | None:
    """Return a cost in billionths of a dollar; None if it is missing or impossible."""
    return (
        None if cost is None or not 0 <= cost < math.inf else min(round(cost * DOLLAR), _MAX_AMOUNT)
    )


def _price(llm: Model, usage: Usage) -> int | None:
    try:
        return _billionths(llm.cost(usage))
    except Exception:  # a custom model class: a price that cannot be computed is unknown
        return None


def spending_of(journal: Journal, limits: Limits | None, above: Spending | None) -> Spending | None:
    """Return the `Spending` of a conversation, None if nothing bounds it. Needs the lease.

    The budgets are its own agent's tree limits, then those of `above`, the parent's spending.
    Without an open parent the store supplies the ancestors' budgets.
    """
    lease = journal.lease
    if lease is None:
        return None
    own = None
    if limits is not None:
        cost = None if limits.cost is None else math.floor(limits.cost * DOLLAR)
        own = Budget(journal.id, limits.steps, limits.tokens, cost, limits.seconds)
    if journal.spending is not None and journal.spending.own == own:
        return journal.spending
    stored_budget = next(
        (budget for budget in lease.budgets if budget.root == journal.id), Budget(journal.id)
    )
    if stored_budget != (own or Budget(journal.id)):
        journal.store.bound(lease, own)
    others = tuple([budget for budget in lease.budgets if budget.root != journal.id])
    others = others if above is None else above.budgets
    mine = () if own is None else (own,)
    budgets = tuple([budget for budget in mine + others if budget != Budget(budget.root)])
    if not budgets:
        return None
    line = ReservationQueue() if above is None else above.line
    return Spending(journal, own, budgets, line, above)
