"""The places that a store's argument can name: a file, or a Postgres database."""

from __future__ import annotations

import re

from holdfast.errors import ConfigurationError

_KEYWORDS = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|passfile|service)\s*=")


def is_postgres(place: str) -> bool:
    """Return True if `place` is the URL of a Postgres database.

    Raises `ConfigurationError` for libpq's keywords and values, which would pass for the name of a
    file, password included. The error does not repeat them.
    """
    if _KEYWORDS.match(place):
        raise ConfigurationError(
            "The store is named by libpq's keywords and values. Here a Postgres database takes a"
            " URL, such as 'postgresql://user:password@host:5432/database'."
        )
    return place.startswith(("postgresql://", "postgres://"))
