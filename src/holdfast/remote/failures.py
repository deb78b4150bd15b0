"""The errors that an agent server's failed responses name."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.errors import (
    ConfigurationError,
    ConversationNotFound,
    HoldfastError,
    RuntimeFault,
    StoreError,
)


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    details: dict[str, Any] = {}


class _Body(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def failure(status: int, body: bytes, address: str, what: str) -> HoldfastError:
    """Return the error for a failed response; `what` names the request.

    An unknown error becomes a `ConfigurationError`, a `ConversationNotFound` or a `StoreError`
    by its status.
    """
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except ValueError:
        said = _Error()
    if not said.message:
        text = " ".join(body[:200].decode("utf-8", "replace").split())
        return _by_status(status)(
            f"{what}: {address} answered {status}{_hint(status)}{f': {text}' if text else '.'}"
        )
    return named(said.type, said.message, said.details, status)


def named(
    name: str, message: str, details: dict[str, Any] | None = None, status: int = 0
) -> HoldfastError:
    """Return an error of `holdfast.errors` by the name of its class."""
    if name in ("NoSuchFile", "FileNotFoundError"):
        from holdfast.runtime.textfile import NoSuchFile

        return NoSuchFile(message)
    if status == 401 and name == "ConfigurationError":
        name = "KeyRefused"
    found: Any = getattr(errors, name, None)
    if not (isinstance(found, type) and issubclass(found, HoldfastError)):
        found = _by_status(status)
    kind = cast("type[HoldfastError]", found)
    if kind in (errors.LimitExceeded, errors.LeaseHeld):
        # these classes build their message from their fields
        made = kind.__new__(kind)
        BaseException.__init__(made, message)
    else:
        made = kind(message)
    for field in _FIELDS.get(kind.__name__, ()):
        setattr(made, field, (details or {}).get(field, ""))
    return made


_FIELDS = {
    "LimitExceeded": ("type", "value", "limit", "source"),
    "LeaseHeld": ("conversation_id", "holder"),
}


def _by_status(status: int) -> type[HoldfastError]:
    if status == 404:
        return ConversationNotFound
    if status in (400, 409, 413, 422):
        return ConfigurationError
    return StoreError


def _hint(status: int) -> str:
    if status in (401, 403):
        return " (check the key)"
    if 300 <= status < 400:
        return " (a redirect, which is not followed: give the server's own address)"
    return " (is this the address of an agent server?)" if status in (404, 405) else ""


def as_fault(error: HoldfastError) -> HoldfastError:
    """Return the error as a workspace raises it: the errors of a runtime."""
    if isinstance(error, StoreError) and type(error) in (StoreError, ConversationNotFound):
        return RuntimeFault(str(error))
    return error
