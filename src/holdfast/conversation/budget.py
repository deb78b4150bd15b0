"""What a conversation spends from the budgets of its tree: reserved before each model call, settled
with its answer."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.limits import Limits, check_tree, most_output
from holdfast.content import Usage
from holdfast.conversation.state import ConversationStatus
from holdfast.errors import (
    Cancelled,
    ConfigurationError,
    ConversationClosed,
    LimitExceeded,
    LLMError,
)
from holdfast.store.budgets import DOLLAR, Amount, Budget, Reservation, Settlement, Shortage
from holdfast.tools import Cancellation

if TYPE_CHECKING:
    from holdfast.conversation.journal import Journal
    from holdfast.llm.completion import Completion
    from holdfast.llm.model import Model
    from holdfast.store import Lease

# Seconds between two looks for room, by the first of this process's tree that waits and by the
# others: what other processes give back, a pause.
_LOOK, _LOOK_BEHIND = 0.05, 0.25
_TREE = "The tree of conversation"
_MARGIN = 1.1  # of a request's estimated tokens: rather too many than too few
_STEP = Amount(1)
_ENDLESS = 10**15  # no call takes more
# events that tell of model calls which are no step
_COUNTED = frozenset((ev.Condensation, ev.Decision, ev.Message))


class _Place:
    """Somebody who waits: for room in the budget of `root`."""

    __slots__ = ("event", "root")

    def __init__(self, root: str) -> None:
        self.event = threading.Event()
        self.root = root


class Line:
    """Those of a tree that wait for room in this process, the first first, so that none is
    overtaken for ever in the budget that it waits for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Place] = deque()

    def join(self, root: str) -> _Place:
        """Stand behind the others."""
        mine = _Place(root)
        with self._lock:
            self._waiting.append(mine)
        return mine

    def leave(self, mine: _Place) -> None:
        """Wait no more."""
        with self._lock:
            self._waiting.remove(mine)
        self.wake()

    def behind(self, mine: _Place | None, roots: Sequence[str]) -> str:
        """In which of the budgets `roots` somebody waits for room before `mine`, None for one that
        does not stand in line; "" in none."""
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
        """There may be room: have the first of each budget look."""
        if self._waiting:
            with self._lock:
                seen: set[str] = set()
                for one in self._waiting:
                    if one.root not in seen:
                        seen.add(one.root)
                        one.event.set()


class Spending:
    """The budgets of one open conversation: its own tree's, if it has one, then those of what it
    came of."""

    __slots__ = (
        "_above",
        "_ahead_of",
        "_began",
        "_count",
        "_journal",
        "_metered",
        "_most",
        "_next",
        "_roots",
        "_unmatched",
        "ahead",
        "budgets",
        "counts_cost",
        "counts_tokens",
        "due",
        "held",
        "line",
        "own",
    )

    def __init__(
        self,
        journal: Journal,
        own: Budget | None,
        budgets: tuple[Budget, ...],
        line: Line,
        above: Spending | None = None,
    ) -> None:
        self._journal = journal
        self._above = above
        self._began = journal.clock().timestamp()
        self.own = own
        self.budgets = budgets
        self.line = line
        self.counts_tokens = any(budget.tokens is not None for budget in budgets)
        self.counts_cost = any(budget.cost is not None for budget in budgets)
        # to be written with the next append; under the journal's lock
        self.due: list[Settlement] = []
        self.held: dict[str, Amount] = {}
        # the key of what is held for a next model call that has not begun
        self.ahead: str | None = None
        self._ahead_of: tuple[int, object] = (0, None)  # the last event then, and the model
        # that model, while the append is made that is to reserve it
        self._next: Model | None = None
        self._roots = tuple([budget.root for budget in budgets])
        self._count = itertools.count(1)
        self._most: tuple[object, int] = (None, 0)  # a model, and how long an answer of it may be
        self._metered: dict[bool, Metered] = {}  # the last that was handed out, by `told`
        self._unmatched = Amount()  # settled already of what an event is still to tell of

    # --- before a call ---

    def step(self, llm: Model, draft: Sequence[Any] = ()) -> Amount:
        """What the conversation's next model call may take, once `draft` is written. Under the
        journal's lock."""
        if not (self.counts_tokens or self.counts_cost):
            return _STEP
        sizes = self._journal.fold.measure(self._journal.tail)
        total = sizes.total
        for event in draft:
            if type(event) is ev.ToolResult:
                total += tokens.result(event.result)
        return self._amount(1, int(sizes.worth(total) * _MARGIN), llm)

    def _known(self, llm: Model) -> bool:
        """Whether it can be said what a call of that model may take."""
        try:
            self._check(llm)
        except ConfigurationError:
            return False
        return True

    def _check(self, llm: Model) -> None:
        if self._most[0] is not llm:
            check_tree("The tree's budget has", llm, self.counts_tokens, self.counts_cost)
            self._most = (llm, most_output(llm) or 0)

    def _amount(self, steps: int, read: int, llm: Model) -> Amount:
        """Raises `ConfigurationError` if it cannot be said."""
        self._check(llm)
        written = self._most[1]
        cost = 0
        if self.counts_cost:
            prices = [
                _price(llm, Usage(read, written)),
                _price(llm, Usage(read, written, cache_write_tokens=read)),
            ]
            known = [price for price in prices if price is not None]
            if not known:
                raise ConfigurationError(
                    f"The tree's budget has a cost, but the price of {llm.model!r} is not known;"
                    " use steps or tokens."
                )
            cost = max(known)
        return Amount(steps, read + written, cost)

    def hold(self, amount: Amount, token: Cancellation, going: Callable[[], bool]) -> str | None:
        """Reserve an amount, waiting for room while calls that run may give it back; the key to
        settle it under, None if `token` was raised or it is not `going` on. Raises `LimitExceeded`.
        """
        self.give_back()  # or it might wait for room that it has itself
        key = self._key()
        mine: _Place | None = None
        forget: Callable[[], None] | None = None
        try:
            while not token and going():
                root = behind = self.line.behind(mine, self._roots)
                if not behind:
                    short = self._reserve(key, amount)
                    if short is None:
                        self.held[key] = amount
                        return key
                    if not short.wait:
                        raise self._exceeded(short, amount)
                    root = short.root
                if mine is None:
                    mine = self.line.join(root)
                    forget = token.add_callback(mine.event.set)
                else:
                    mine.root = root
                    mine.event.wait(_LOOK_BEHIND if behind else _LOOK)
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
        return f"{lease.conversation_id}#{lease.epoch}.{next(self._count)}"

    def _wanted(self, key: str, amount: Amount) -> Reservation:
        journal = self._journal
        return Reservation(key, self._roots, amount, self._since(), journal.clock().timestamp())

    def _since(self) -> float:
        """Since when the tree is at work, by what is known here: while a call waits for a child, so
        is whose call it is."""
        mine = self._journal.fold.run_since
        since = self._journal.clock().timestamp() if mine is None else mine.timestamp()
        # what a dead owner left running was not worked on until it was taken up
        since = max(since, self._began)
        above = self._above
        return since if above is None or above.idle else min(since, above._since())

    @property
    def idle(self) -> bool:
        """Whether the conversation is in no run here."""
        return self._journal.closed or self._journal.fold.status is not ConversationStatus.RUNNING

    def _reserve(self, key: str, amount: Amount) -> Shortage | None:
        return self._journal.store.reserve(self._lease(), self._wanted(key, amount))

    # --- with the append of what comes before it: a transaction less for each step ---

    def expect(self, llm: Model) -> None:
        """What is being appended closes the last open call: have it reserve what the next model
        call may take, if there is room at once. Within a transaction."""
        self._next = llm

    def reservation(self, draft: Sequence[Any]) -> Reservation | None:
        """What is to be reserved with these events; none while others wait for room. Under the
        journal's lock."""
        llm, self._next = self._next, None
        if (
            llm is None
            or not draft
            or self.ahead is not None
            or self.line.behind(None, self._roots)
            or not self._known(llm)
        ):
            return None
        key, amount = self._key(), self.step(llm, draft)
        self._ahead_of = (draft[-1].seq, llm)
        self.held[key], self.ahead = (
            amount,
            key,
        )  # before it is: an append that is broken off may have been written
        return self._wanted(key, amount)

    def reserved(self, held: bool) -> None:
        """Whether it is. Under the journal's lock."""
        if not held and self.ahead is not None:
            self.held.pop(self.ahead, None)
            self.ahead = None

    def give_back(self) -> None:
        """Something else comes before the next model call, or there is none."""
        if self.ahead is not None:
            self.settle(self.ahead, Amount())
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
            short.type, short.value, short.limit, f"{_TREE} {short.root!r}", advice.strip()
        )

    def begin(self, llm: Model, token: Cancellation, going: Callable[[], bool]) -> str | None:
        """Reserve what the conversation's next model call may take; as `hold`. None too if
        something came into the journal meanwhile: what is to be done next may be another thing."""
        journal = self._journal
        with journal.changed:
            seq, ahead = journal.fold.last_seq, self.ahead
            amount = (
                self.held[ahead]
                if ahead is not None and self._ahead_of == (seq, llm)
                else self.step(llm)
            )
            if ahead is not None and _covers(self.held[ahead], amount) and going() and not token:
                self.ahead = None
                return ahead
        key = self.hold(amount, token, going)
        if key is not None and (journal.fold.last_seq != seq or not going()):
            self.settle(key, Amount())
            return None
        return key

    def ask(self, key: str, llm: Model, ask: Callable[[], Completion]) -> Completion:
        """Make a model call that was reserved. A failure is settled at once, an answer with the
        append that writes it."""
        try:
            answer = ask()
        except BaseException as error:
            self.settle(key, _refused(error))
            raise
        with self._journal.changed:
            self.due.append(
                Settlement(key, self._spent(self.held[key], answer.usage, answer.cost, llm))
            )
        return answer

    # --- after it ---

    def settle(self, key: str, amount: Amount | None = None) -> None:
        """Settle a reservation now; None: all of it is spent."""
        self._journal.store.settle([Settlement(key, amount)])
        self.held.pop(key, None)
        self.line.wake()

    def _spent(self, held: Amount, usage: Usage, cost: float | None, llm: Model) -> Amount:
        """What a call took; as reserved, where the provider does not say, or what it says is no
        number."""
        counted = _counted(usage)
        if not counted:
            return held
        spent = _billionths(cost)
        if spent is None and self.counts_cost:
            spent = _price(llm, usage)
        return Amount(held.steps, counted, held.cost if spent is None else spent)

    def settled(self, draft: Sequence[Any]) -> list[Settlement]:
        """What is to be settled with these events: what is due, and the usage of model calls that
        nobody reserved: an analyzer's, a condenser's of its own. Under the journal's lock."""
        found = list(self.due)
        for event in draft:
            if type(event) in _COUNTED and (extra := self._extra(event)) is not None:
                found.append(Settlement("", extra, self._roots))
        return found

    def _extra(self, event: Any) -> Amount | None:
        counted, cost = _counted(event.usage), _billionths(event.cost) or 0
        if not counted and not cost:
            return None
        if type(event) is not ev.Condensation:
            return Amount(0, counted, cost)
        known, self._unmatched = self._unmatched, Amount()
        return Amount(0, max(0, counted - known.tokens), max(0, cost - known.cost))

    def written(self, settled: Sequence[Settlement]) -> None:
        """They are in the store. Under the journal's lock."""
        if settled:
            self.due.clear()
            for one in settled:
                self.held.pop(one.key, None)
            self.line.wake()

    # --- other calls ---

    def metered(self, llm: Any, told: bool = False) -> Any:
        """The model for whoever else asks it: each call is reserved and settled. `told`: a
        `Condensation` will tell of their usage, too."""
        if told:
            self._unmatched = Amount()  # one that left nothing out told of nothing
        if not (self.counts_tokens or self.counts_cost):
            return llm
        found = self._metered.get(told)
        if found is None or found.wrapped is not llm:
            found = self._metered[told] = Metered(llm, self, told)
        return found

    def other(
        self, read: int, llm: Model, token: Cancellation, ask: Callable[[], Completion], told: bool
    ) -> Completion:
        """Ask a model something that is no step."""
        key = self.hold(self._amount(0, read, llm), token, lambda: True)
        if key is None:
            raise Cancelled(
                "The model call was cancelled while it waited for room in the budget of its tree."
            )
        try:
            answer = ask()
        except BaseException as error:
            self.settle(key, _refused(error))
            raise
        spent = self._spent(self.held[key], answer.usage, answer.cost, llm)
        self.settle(key, spent)
        if told:
            known = self._unmatched
            self._unmatched = Amount(0, known.tokens + spent.tokens, known.cost + spent.cost)
        return answer


class Metered:
    """A model whose calls are reserved and settled: a condenser's, a tool's. All else is the
    model's own."""

    def __init__(self, llm: Any, spending: Spending, told: bool) -> None:
        self.wrapped = llm
        self._spending = spending
        self._told = told

    def completion(
        self,
        messages: Any,
        tools: Sequence[Any] = (),
        *,
        cancelled: Cancellation | None = None,
        **more: Any,
    ) -> Completion:
        """As the model's own. Raises `LimitExceeded` too."""
        return self._spending.other(
            _size(messages, tools, more.get("system")),
            self.wrapped,
            cancelled or Cancellation(),
            lambda: self.wrapped.completion(messages, tools, cancelled=cancelled, **more),
            self._told,
        )

    def replace(self, **more: Any) -> Any:
        """As the model's own, reserved and settled like it."""
        return Metered(self.wrapped.replace(**more), self._spending, self._told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __repr__(self) -> str:
        return repr(self.wrapped)


def _size(messages: Any, tools: Sequence[Any], system: str | None) -> int:
    """The tokens of a request, rather too many than too few."""
    found = tokens.text(system or "") + sum(
        [len(msgspec.json.encode(tool.input_schema)) // 3 + 50 for tool in tools]
    )
    if isinstance(messages, str):
        return int((found + tokens.text(messages)) * _MARGIN)
    items = getattr(messages, "items", messages)
    return found + sum([len(msgspec.json.encode(item, enc_hook=str)) // 3 + 10 for item in items])


def of_tree(event: ev.Error) -> bool:
    """Whether it was the budget of a tree that a run ended on: what others had spent by then is not
    in its journal."""
    return str(event.details.get("source", "")).startswith(_TREE)


def _covers(held: Amount, amount: Amount) -> bool:
    return held.steps >= amount.steps and held.tokens >= amount.tokens and held.cost >= amount.cost


def fair(usage: Usage, cost: float | None) -> tuple[Usage, float | None]:
    """What an answer says it took, without what no call can take: less than nothing, or no
    number."""
    if cost is not None and not 0 <= cost < math.inf:
        cost = None
    if min(usage.input_tokens, usage.output_tokens) < 0:
        usage = msgspec.structs.replace(
            usage,
            input_tokens=max(0, usage.input_tokens),
            output_tokens=max(0, usage.output_tokens),
        )
    return usage, cost


def _counted(usage: Usage) -> int:
    """The tokens of an answer. A provider, or anybody's model, may say anything."""
    return sum(
        [
            min(int(count), _ENDLESS)
            for count in (usage.input_tokens, usage.output_tokens)
            if 0 < count < math.inf
        ]
    )


def _billionths(cost: float | None) -> int | None:
    """A cost as a budget has it; None for one that is none."""
    return None if cost is None or not 0 <= cost < math.inf else min(round(cost * DOLLAR), _ENDLESS)


def _price(llm: Model, usage: Usage) -> int | None:
    try:
        return _billionths(llm.cost(usage))
    except Exception:  # anybody's class: what cannot be said is not known
        return None


def _refused(error: BaseException) -> Amount | None:
    """What a call that failed took: nothing, if a provider said so in time; None (all of it) if
    nobody knows."""
    return Amount() if isinstance(error, LLMError) and error.status >= 400 else None


def _budget(root: str, limits: Limits) -> Budget:
    cost = None if limits.cost is None else math.floor(limits.cost * DOLLAR)
    return Budget(root, limits.steps, limits.tokens, cost, limits.seconds)


def spending_of(journal: Journal, limits: Limits | None, above: Spending | None) -> Spending | None:
    """What a conversation spends from, None if nothing bounds it: by the limits of its own agent's
    tree, and `above`, what its parent does, else what the store says of that. Under the lease."""
    lease = journal.lease
    if lease is None:
        return None
    own = None if limits is None else _budget(journal.id, limits)
    if journal.spending is not None and journal.spending.own == own:
        return journal.spending
    stored = next(
        (budget for budget in lease.budgets if budget.root == journal.id), Budget(journal.id)
    )
    if stored != (own or Budget(journal.id)):
        journal.store.bound(lease, own)
    others = (
        above.budgets
        if above is not None
        else tuple([budget for budget in lease.budgets if budget.root != journal.id])
    )
    found = tuple(
        [
            budget
            for budget in ((own,) if own is not None else ()) + others
            if budget != Budget(budget.root)
        ]
    )
    if not found:
        return None
    return Spending(journal, own, found, above.line if above is not None else Line(), above)
