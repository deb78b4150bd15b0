"""A store in Postgres, for the same conversations on many machines."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
