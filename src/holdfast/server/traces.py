"""Traces and statistics of a server's conversations, under the ids that their clients know."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.observe.stats import Stats, stats, tree
from holdfast.observe.trace import RunTrace, stored_trace
from holdfast.store import Store, Summary


class TreeStats(msgspec.Struct, frozen=True, rename="camel"):
    """The statistics of a conversation, and of all that its calls spawned, parents first."""

    conversations: list[Stats]


def tree_stats(store: Store, summary: Summary) -> TreeStats:
    """Return the statistics of a conversation and of its descendants."""
    # One without events is not in the store.
    summaries = tree(store, summary.id) if summary.last_seq else [summary]
    return TreeStats([_stats_for_client(stats(store, one)) for one in summaries])


def traced(store: Store, summary: Summary, limit: int) -> RunTrace:
    """Return the trace of a conversation with at most `limit` spans."""
    found = stored_trace(store, summary, limit)
    return msgspec.structs.replace(
        found,
        conversations=tuple([_with_own(one, "id", "parent") for one in found.conversations]),
        spans=tuple([_with_own(span, "child") if span.child else span for span in found.spans]),
    )


def _stats_for_client(one: Stats) -> Stats:
    longest = tuple([_with_own(call, "conversation") for call in one.longest])
    return _with_own(msgspec.structs.replace(one, longest=longest), "id", "spawned_by")


def _with_own(one: Any, *names: str) -> Any:
    """Return a struct with the ids in these fields without the tenant's prefix."""
    own = {name: getattr(one, name).rpartition("/")[2] for name in names}
    return msgspec.structs.replace(one, **own)
