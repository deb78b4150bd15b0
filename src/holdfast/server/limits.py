"""The bounds of an agent server and the rule for ids that clients may give."""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import ConfigurationError, TooMany

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds of a `Host`. Names that end in `_bytes` count bytes of JSON; all others count
    objects. `open` conversations hold memory; others are store rows."""

    open: int = 1000
    conversations: int = 100_000  # per tenant
    workspaces: int = 1000  # per tenant
    agent_bytes: int = 1_000_000
    tools_bytes: int = 1_000_000
    tools: int = 500
    secrets_bytes: int = 64_000
    webhooks: int = 50  # per tenant
    named: int = 100  # models, and secrets, per tenant

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                value = getattr(self, name)
                raise ConfigurationError(f"Bounds: {name} takes a number above 0, not {value!r}.")

    def check(self, name: str, value: int, what: str) -> None:
        """Raise `TooMany` if `value` exceeds the bound `name`. `what` begins the message."""
        limit: int = getattr(self, name)
        if value > limit:
            raise TooMany(
                f"{what}: {value:,} {name.replace('_bytes', ' bytes')}, where this server allows"
                f" {limit:,}.",
                name,
            )


def checked_id(id: str, what: str) -> str:
    """Return a client's id. Raises `ConfigurationError` if it could be a path or another
    tenant's."""
    if not _ID.fullmatch(id) or not id.strip("."):
        raise ConfigurationError(
            f"{what} takes an id of 1 to 128 letters, digits, '.', '_' and '-', not {id[:200]!r}."
        )
    return id
