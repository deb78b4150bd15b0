"""The conversations that a hosted one's calls spawned: they have no record of their own, and are
found by whom they came of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ConversationNotFound
from holdfast.server.records import DEFAULT, Records, missing, store_id
from holdfast.server.shapes import Item

if TYPE_CHECKING:
    from holdfast.store import Store, Summary

_DEEPEST = 100  # spawned by spawned by ...: trees end long before


class Family:
    """Finds them, in one store beside one server's records. Thread-safe; opens nothing."""

    def __init__(self, store: Store, records: Records) -> None:
        self._store = store
        self._records = records

    def place(self, tenant: str, id: str) -> str:
        """The id in the store of a tenant's conversation, or of one that came of it. Raises
        `ConversationNotFound`."""
        try:
            return self._records.find(tenant, id).store_id
        except ConversationNotFound:
            return self.child(tenant, id).id

    def child(self, tenant: str, id: str) -> Summary:
        """A conversation that came of one of the tenant's. Raises `ConversationNotFound` for any
        other."""
        found = None if "/" in id else self._summary(store_id(tenant, id))
        above = found
        for _ in range(_DEEPEST):
            if found is None or above is None or not above.spawner:
                break
            owner, _, own = above.spawner.rpartition("/")
            if (owner or DEFAULT) != tenant:
                break
            try:
                self._records.find(tenant, own)
                return found
            except ConversationNotFound:
                above = self._summary(above.spawner)
        raise missing(id)

    def children(self, tenant: str, id: str) -> list[Item]:
        """Those that its calls spawned, the oldest first."""
        found = self._store.list(spawned_by=self.place(tenant, id))
        return [
            item_of(one)
            for one in sorted(
                found, key=lambda one: (one.created is not None and one.created.timestamp(), one.id)
            )
        ]

    def _summary(self, id: str) -> Summary | None:
        found = self._store.list([id])
        return found[0] if found else None


def item_of(summary: Summary) -> Item:
    """One that has events, as a listing shows it."""
    assert summary.created is not None
    return Item(
        id=summary.id.rpartition("/")[2],
        status=summary.status,
        created=summary.created,
        updated=summary.updated or summary.created,
        title=summary.title,
        last_seq=summary.last_seq,
        parent=summary.parent.rpartition("/")[2],
        parent_seq=summary.parent_seq,
        spawned_by=summary.spawned_by.rpartition("/")[2],
    )
