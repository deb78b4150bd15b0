"""Namespaces of conversation ids: the part of an id before its last slash, such as a tenant."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from holdfast.errors import ConfigurationError


@runtime_checkable
class ReservingStore(Protocol):
    """A store whose owner knows conversations that have no events yet."""

    def recorded(self, store_id: str) -> bool:
        """Return True if the id belongs to a conversation of the owner."""
        ...


def namespace_of(id: str) -> str:
    """Return the namespace of a conversation's id with its slash, "" for none."""
    space, slash, _ = id.rpartition("/")
    return f"{space}{slash}"


def id_beside(id: str, name: str) -> str:
    """Return `name`, an id with or without its namespace, in the namespace of `id`. Raises
    `ConfigurationError` if it would leave that."""
    space = namespace_of(id)
    own = name.removeprefix(space)
    if "/" in own:
        raise ConfigurationError(
            f"spawn: id takes no '/', which would leave the namespace of {id!r}, not {name!r}."
        )
    return f"{space}{own}"
