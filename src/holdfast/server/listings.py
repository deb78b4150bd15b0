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


class Listings(ObjectStruct):
    """The listings of the conversations of a server's store and records."""

    _store: Store
    _records: Records

    def page(
        self,
        tenant: str,
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        tags: Sequence[str] = (),
    ) -> Page:
        """Return a page of conversations, newest first, optionally only those with `status` and
        with all of these tags. `cursor` is the `next` of the page before. Raises
        `ConfigurationError`."""
        if status is not None and status not in [*ConversationStatus]:
            statuses = ", ".join(ConversationStatus)
            raise ConfigurationError(f"status takes one of {statuses}, not {status[:80]!r}.")
        if cursor is not None and not cursor.isdecimal():
            raise ConfigurationError(f"cursor takes the `next` of a page, not {cursor[:80]!r}.")
        limit = max(1, min(limit, _MAX_PAGE))
        before = None if cursor is None else min(int(cursor), 1 << 62)
        filters = status is not None or bool(tags)

        def fitting(rows: Sequence[tuple[int, str, str, int, str]]) -> list[tuple[int, Item]]:
            """Return the first conversations that fit, with the numbers of their records."""
            prefix, items = records.store_id(tenant, ""), list[tuple[int, Item]]()
            ids = [prefix + row[1] for row in rows]
            summaries = {summary.id: summary for summary in self._store.list(ids)} if ids else {}
            for place, (number, id, workspace, driven, created) in zip(ids, rows, strict=True):
                summary = summaries.get(place) or Summary(id)
                item = item_of(summary, datetime.fromisoformat(created), workspace, driven)
                if status in (None, item.status) and {*tags} <= {*item.tags}:
                    items.append((number, item))
                    if len(items) > limit:
                        break
            return items

        rows = self._records.page(tenant, before, 2 * limit + 1 if filters else limit + 1)
        items = fitting(rows)
        # Few of the newest conversations fit, so search in the store.
        if filters and len(items) <= limit and len(rows) > 2 * limit:
            ids = self._ids(tenant, status, tags)
            items = fitting(self._records.page(tenant, before, limit + 1, ids))
        more = str(items[limit - 1][0]) if len(items) > limit else None
        return Page(items=[item for _, item in items[:limit]], next=more)

    def _ids(self, tenant: str, status: str | None, tags: Sequence[str]) -> list[str]:
        prefix = records.store_id(tenant, "")
        if status == "idle" and not tags:
            # conversations without events are idle and not in the store
            busy = {one.id for one in self._store.list() if one.status != status}
            return [id for id in self._records.ids(tenant) if prefix + id not in busy]
        ids = [one.id for one in self._store.list(status=status, tags=tags)]
        return [id.removeprefix(prefix) for id in ids if id.startswith(prefix)]
