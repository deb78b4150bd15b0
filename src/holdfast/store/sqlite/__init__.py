"""A store in one SQLite file, for the processes of one host."""

from holdfast.store.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
