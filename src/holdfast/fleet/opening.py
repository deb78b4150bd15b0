"""Opens the database of the fleet's tables, by the place of its store."""

from __future__ import annotations

from pathlib import Path

from holdfast.fleet.database import FleetDatabase, SQLiteFleetDatabase
from holdfast.fleet.postgres import PostgresFleetDatabase
from holdfast.store import SQLiteStore
from holdfast.store.place import is_postgres


def fleet_database(place: str | Path | None, schema: str = "holdfast") -> FleetDatabase:
    """Open the database of the fleet's tables.

    Args:
        place: An SQLite file, a `postgresql://` address, or None for tables in memory.
        schema: The schema of a Postgres database.
    """
    if place is None:
        return SQLiteFleetDatabase(None)
    if isinstance(place, str) and is_postgres(place):
        return PostgresFleetDatabase(place, schema)
    path = Path(place)
    SQLiteStore(path).close()  # the tables join those of a store, which refuses any other file
    return SQLiteFleetDatabase(path)
