"""Conversations that calls of a hosted conversation spawned. Such a conversation has no record and
is found through its parent conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.errors import ConversationNotFound, LeaseHeld, StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.observe.stats import MAX_FORKS, Stats, forks, stats, tree
from holdfast.observe.trace import RunTrace, stored_trace
from holdfast.server.records import (
    HOSTED,
    IDLE,
    ConversationRecord,
    Records,
    not_found,
    place_of,
    store_id,
)
from holdfast.server.shapes import Item
from holdfast.store import Summary
from holdfast.store.transfer import exported

if TYPE_CHECKING:
    from holdfast.events import AnyEvent
    from holdfast.store import Store

T = TypeVar("T", bound=msgspec.Struct)

_MAX_ANCESTORS = 100  # a bound for the search; real trees are much shallower


class TreeStats(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of a conversation and of its descendants, parents first."""

    conversations: list[Stats]


class Descendants(ObjectStruct):
    """Finds spawned conversations in a store through one server's records. Thread-safe; opens
    nothing."""

    _store: Store
    _records: Records

    def place(self, tenant: str, id: str) -> str:
        """Return the store id of a tenant's conversation or of its descendant. Raises
        `ConversationNotFound`."""
        try:
            return self._records.find(tenant, id).store_id
        except ConversationNotFound:
            return self.child(tenant, id).id

    def item(self, tenant: str, id: str) -> Item:
        """Return the listing entry of such a conversation. Raises `ConversationNotFound`."""
        try:
            record = self._records.find(tenant, id)
        except ConversationNotFound:
            return item_of(self.child(tenant, id))
        summary = self._summary(record.store_id) or Summary(id)
        return item_of(summary, record.created, record.workspace, record.driven)

    def status(self, tenant: str, id: str) -> str:
        """Return the status of such a conversation. Raises `ConversationNotFound`."""
        return self._summary_of(tenant, id).status

    def tail(self, tenant: str, id: str) -> list[AnyEvent]:
        """Return the events of such a conversation since its last condensation, at least."""
        return self._store.tail(self.place(tenant, id))

    def export(self, tenant: str, id: str) -> Iterator[bytes]:
        """Return the lines of such a conversation as `holdfast export` writes them, with the id
        that the tenant knows. Raises `ConversationNotFound`, also for one without events."""
        place = self.place(tenant, id)
        stored = self._summary(place)
        if stored is None:
            raise not_found(id)

        def blob(id: str) -> bytes | None:
            with suppress(StoreError):
                return self._store.blob(id)
            return None

        summary = _with_own(stored, "id", "parent", "spawned_by")
        return exported(summary, self._store.read(place), blob)

    def remove(self, id: str) -> None:
        """Remove the descendants of a conversation, except conversations that a client created. A
        descendant that another process drives stays, without a parent."""
        for child in self._store.list(spawned_by=id):
            if not self._records.recorded(child.id):
                self.remove(child.id)
                with suppress(ConversationNotFound, LeaseHeld):
                    self._store.delete(child.id)

    def child(self, tenant: str, id: str) -> Summary:
        """Return a descendant of one of the tenant's conversations. Raises
        `ConversationNotFound` for any other id."""
        return self.child_and_owner(tenant, id)[0]

    def child_and_owner(self, tenant: str, id: str) -> tuple[Summary, ConversationRecord]:
        """Return a descendant, and the record of the nearest conversation above it that a client
        created. Raises `ConversationNotFound`."""
        summary = None if "/" in id else self._summary(store_id(tenant, id))
        above = summary
        for _ in range(_MAX_ANCESTORS):
            if summary is None or above is None or not above.spawner:
                break
            owner, own = place_of(above.spawner)
            if owner != tenant:
                break
            try:
                return summary, self._records.find(tenant, own)
            except ConversationNotFound:
                above = self._summary(above.spawner)
        raise not_found(id)

    def children(self, tenant: str, id: str) -> list[Item]:
        """Return the conversations that its calls spawned, oldest first."""
        spawned = self._store.list(spawned_by=self.place(tenant, id))
        spawned.sort(key=lambda one: (one.created is not None and one.created.timestamp(), one.id))
        return [item_of(one) for one in spawned]

    def forks(self, tenant: str, id: str) -> list[Item]:
        """Return the forks of such a conversation and the forks of those, each after its origin."""
        items: list[Item] = []
        for one in forks(self._store, self.place(tenant, id), MAX_FORKS):
            with suppress(ConversationNotFound):  # it is being made or removed
                record = self._records.find(*place_of(one.id))
                items.append(item_of(one, record.created, record.workspace, record.driven))
        return items

    def stats(self, tenant: str, id: str) -> TreeStats:
        """Return the statistics of such a conversation and of its descendants."""
        summary = self._summary_of(tenant, id)
        # One without events is not in the store.
        summaries = tree(self._store, summary.id) if summary.last_seq else [summary]
        return TreeStats([_stats_for_client(stats(self._store, one)) for one in summaries])

    def trace(self, tenant: str, id: str, limit: int) -> RunTrace:
        """Return the trace of such a conversation, with at most `limit` spans."""
        spans = stored_trace(self._store, self._summary_of(tenant, id), limit)
        return msgspec.structs.replace(
            spans,
            conversations=tuple([_with_own(one, "id", "parent") for one in spans.conversations]),
            spans=tuple([_with_own(span, "child") if span.child else span for span in spans.spans]),
        )

    def _summary_of(self, tenant: str, id: str) -> Summary:
        """Return the summary of such a conversation, an empty one if it has no events yet."""
        place = self.place(tenant, id)
        return self._summary(place) or Summary(place)

    def _summary(self, id: str) -> Summary | None:
        summaries = self._store.list([id])
        return summaries[0] if summaries else None


def item_of(
    summary: Summary, created: datetime | None = None, workspace: str = "", driven: int = IDLE
) -> Item:
    """Return the listing entry of a conversation. One without events has no time of creation in
    its summary."""
    created = created or summary.created
    assert created is not None
    return Item(
        id=summary.id.rpartition("/")[2],
        status=summary.status,
        created=created,
        updated=summary.updated or created,
        title=summary.title,
        last_seq=summary.last_seq,
        workspace=workspace,
        parent=summary.parent.rpartition("/")[2],
        parent_seq=summary.parent_seq,
        started=driven == HOSTED,
        driven=driven != IDLE,
        spawned_by=summary.spawned_by.rpartition("/")[2],
        tags=summary.tags,
    )


def _stats_for_client(one: Stats) -> Stats:
    longest = tuple([_with_own(call, "conversation") for call in one.longest])
    return _with_own(msgspec.structs.replace(one, longest=longest), "id", "spawned_by")


def _with_own(one: T, *names: str) -> T:
    """Return a struct with the ids in these fields without the tenant's prefix."""
    own = {name: getattr(one, name).rpartition("/")[2] for name in names}
    return msgspec.structs.replace(one, **own)
