"""Pages of a tenant's conversations, by status and tags."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.conversation.state import ConversationStatus
from holdfast.errors import ConfigurationError
from holdfast.object_struct import ObjectStruct
from holdfast.server import records
from holdfast.server.descendants import item_of
from holdfast.server.records import Records
from holdfast.server.shapes import Item, Page
from holdfast.store import Store, Summary

_MAX_PAGE = 1000

_Items = list[tuple[int, Item]]


class ListingFilter(ObjectStruct):
    """The conversations of a listing: those with this status (None: any) and all of these tags."""

    status: str | None = None
    tags: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.status is not None or bool(self.tags)

    def fits(self, item: Item) -> bool:
        """Return True if the listing contains the conversation."""
        return self.status in (None, item.status) and {*self.tags} <= {*item.tags}


class Listings(ObjectStruct):
    """The listings of the conversations of a server's store and records."""

    _store: Store
    _records: Records

    def page(self, tenant: str, wanted: ListingFilter, cursor: str | None, limit: int) -> Page:
        """Return a page, newest conversation first. `cursor` is the `next` of the page before.
        Raises `ConfigurationError`."""
        status = wanted.status
        if status is not None and status not in [*ConversationStatus]:
            known = ", ".join(ConversationStatus)
            raise ConfigurationError(f"status takes one of {known}, not {status[:80]!r}.")
        if cursor is not None and not cursor.isdecimal():
            raise ConfigurationError(f"cursor takes the `next` of a page, not {cursor[:80]!r}.")
        limit = max(1, min(limit, _MAX_PAGE))
        before = None if cursor is None else min(int(cursor), 1 << 62)
        rows = self._records.page(tenant, before, 2 * limit + 1 if wanted else limit + 1)
        items = self._items(tenant, rows, wanted, limit + 1)
        # Few of the newest conversations fit, so search in the store.
        if wanted and len(items) <= limit and len(rows) > 2 * limit:
            rows = self._records.page(tenant, before, limit + 1, self._ids(tenant, wanted))
            items = self._items(tenant, rows, wanted, limit + 1)
        more = str(items[limit - 1][0]) if len(items) > limit else None
        return Page(items=[item for _, item in items[:limit]], next=more)

    def _ids(self, tenant: str, wanted: ListingFilter) -> list[str]:
        prefix = records.store_id(tenant, "")
        if wanted.status == "idle" and not wanted.tags:
            # conversations without events are idle and not in the store
            busy = {one.id for one in self._store.list() if one.status != wanted.status}
            return [id for id in self._records.ids(tenant) if prefix + id not in busy]
        known = [one.id for one in self._store.list(status=wanted.status, tags=wanted.tags)]
        return [id.removeprefix(prefix) for id in known if id.startswith(prefix)]

    def _items(
        self,
        tenant: str,
        rows: Sequence[tuple[int, str, str, int, str]],
        wanted: ListingFilter,
        most: int,
    ) -> _Items:
        """Return the first `most` conversations that fit, with the numbers of their records."""
        prefix = records.store_id(tenant, "")
        ids = [prefix + row[1] for row in rows]
        found = {summary.id: summary for summary in self._store.list(ids)} if ids else {}
        items: _Items = []
        for place, (number, id, workspace, driven, created) in zip(ids, rows, strict=True):
            summary = found.get(place) or Summary(id)
            item = item_of(summary, datetime.fromisoformat(created), workspace, driven)
            if wanted.fits(item):
                items.append((number, item))
                if len(items) == most:
                    break
        return items
