"""Stores for conversation journals: in memory, in an SQLite file, in Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.store.base import (
    BLOBS,
    Batch,
    Blob,
    DueTimer,
    FireTimers,
    Lease,
    Posted,
    RestingConversation,
    Store,
    Summary,
    TimerRow,
    blob_id,
)
from holdfast.store.budgets import Amount, Budget, Reservation, Settlement, Shortage
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.store.postgres import PostgresStore
    from holdfast.store.sqlite import SQLiteStore

__all__ = [
    "BLOBS",
    "Amount",
    "Batch",
    "Blob",
    "Budget",
    "DueTimer",
    "FireTimers",
    "Lease",
    "MemoryStore",
    "Posted",
    "PostgresStore",
    "Reservation",
    "RestingConversation",
    "SQLiteStore",
    "Settlement",
    "Shortage",
    "Store",
    "Summary",
    "TimerRow",
    "blob_id",
]


def __getattr__(name: str) -> Any:
    # Importing sqlite3 takes 10 ms, which a conversation in memory does not need.
    if name == "SQLiteStore":
        from holdfast.store.sqlite import SQLiteStore

        return SQLiteStore
    if name == "PostgresStore":
        try:
            from holdfast.store.postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            return _WithoutPsycopg

        return PostgresStore
    raise AttributeError(f"module 'holdfast.store' has no attribute {name!r}")


class _WithoutPsycopg:
    """`PostgresStore` without psycopg: the name can be imported, also with `*`, but not called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigurationError("PostgresStore needs psycopg: pip install 'holdfast[postgres]'.")
