"""Where journals live: in memory, or in one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.store.base import Lease, Store, Summary
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.store.sqlite import SQLiteStore

__all__ = ["Lease", "MemoryStore", "SQLiteStore", "Store", "Summary"]


def __getattr__(name: str) -> Any:
    if name == "SQLiteStore":  # sqlite3 is 10 ms of import that a conversation in memory does not need
        from holdfast.store.sqlite import SQLiteStore

        return SQLiteStore
    raise AttributeError(f"module 'holdfast.store' has no attribute {name!r}")
