"""The spending of conversations: each by itself, and with its forks and spawned conversations."""

from __future__ import annotations

from holdfast.content import Data, Usage, cost_sum, known_cost
from holdfast.conversation.fold import fold
from holdfast.errors import ConversationNotFound
from holdfast.store import Store, Summary


class Consumption(Data, frozen=True):
    """The usage and cost of model calls.

    `steps` are answers of the agent's model. `usage` and `cost` (US dollars) are those of all
    calls, also of summaries, judges, tools and hooks. `unpriced` calls had no known price and
    are not in `cost`, which is None if that leaves nothing.
    """

    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    unpriced: int = 0

    def __add__(self, other: Consumption) -> Consumption:
        unpriced = self.unpriced + other.unpriced
        return Consumption(
            self.steps + other.steps,
            self.usage + other.usage,
            cost_sum(self.cost, other.cost, unpriced),
            unpriced,
        )


class Totals(Data, frozen=True):
    """The spending of conversation `id` and the totals of its children.

    `own` excludes the events that a fork shares with its origin.
    """

    id: str
    own: Consumption
    children: tuple[Totals, ...] = ()

    @property
    def whole(self) -> Consumption:
        """The spending of the whole tree, each answer counted once."""
        return sum((child.whole for child in self.children), self.own)


def totals(store: Store, conversation_id: str) -> Totals:
    """Return the spending of a conversation and all its descendants, read from their journals.
    Raises `ConversationNotFound`."""
    children: dict[str, list[Summary]] = {}
    root: Summary | None = None
    for summary in store.list():
        children.setdefault(summary.parent or summary.spawner, []).append(summary)
        if summary.id == conversation_id:
            root = summary
    if root is None:
        raise ConversationNotFound(f"No conversation {conversation_id!r} is in the store.")
    by_id: dict[str, Totals] = {}
    order = [root]
    for summary in order:  # grows: parents before children
        order += children.get(summary.id, ())
    for summary in reversed(order):
        below = sorted(children.get(summary.id, ()), key=lambda child: child.parent_seq)
        by_id[summary.id] = Totals(
            summary.id, _own(store, summary), tuple(by_id[child.id] for child in below)
        )
    return by_id[conversation_id]


def _own(store: Store, summary: Summary) -> Consumption:
    state = fold(store.read(summary.id, summary.parent_seq))
    cost = known_cost(state.cost, state.unpriced)
    return Consumption(state.steps, state.usage, cost, state.unpriced)
