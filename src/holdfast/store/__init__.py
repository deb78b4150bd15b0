"""Stores for conversation journals: one in memory, one in an SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.store.base import BLOBS, Batch, Blob, Lease, Posted, Store, Summary, blob_id
from holdfast.store.budgets import Amount, Budget, Reservation, Settlement, Shortage
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.store.sqlite import SQLiteStore

__all__ = [
    "BLOBS",
    "Amount",
    "Batch",
    "Blob",
    "Budget",
    "Lease",
    "MemoryStore",
    "Posted",
    "Reservation",
    "SQLiteStore",
    "Settlement",
    "Shortage",
    "Store",
    "Summary",
    "blob_id",
]


def __getattr__(name: str) -> Any:
    # Importing sqlite3 takes 10 ms, which a conversation in memory does not need.
    if name == "SQLiteStore":
        from holdfast.store.sqlite import SQLiteStore

        return SQLiteStore
    raise AttributeError(f"module 'holdfast.store' has no attribute {name!r}")
