"""The errors that an agent server's failed responses name."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.error_forms import ErrorForm, error_of_form
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationNotFound,
    HoldfastError,
    RuntimeFault,
    StoreError,
)
from holdfast.nesting import decode_json
from holdfast.runtime.textfile import NoSuchFile


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    details: dict[str, Any] = {}


class _Body(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def failure(status: int, body: bytes, address: str, what: str) -> HoldfastError:
    """Return the error for a failed response to the request `what`, by its name or its status."""
    try:
        error = decode_json(body, _Body).error
    except ValueError:
        error = _Error()
    if not error.message:
        text = " ".join(body[:200].decode("utf-8", "replace").split())
        return _by_status(status)(
            f"{what}: {address} answered {status}{_hint(status)}{f': {text}' if text else '.'}"
        )
    return error_by_name(error.type, error.message, error.details, status)


def error_by_name(
    name: str, message: str, details: dict[str, Any] | None = None, status: int = 0
) -> HoldfastError:
    """Return an error by the name of its class, with its fields from `details`."""
    if name in ("NoSuchFile", "FileNotFoundError"):
        return NoSuchFile(message)
    if status == 401 and name == "ConfigurationError":
        name = "KeyRefused"
    return error_of_form(ErrorForm(name, message, details or {}), _by_status(status))


def _by_status(status: int) -> type[HoldfastError]:
    if status in (400, 413, 422):
        return ConfigurationError
    return {404: ConversationNotFound, 409: Conflict}.get(status, StoreError)


def _hint(status: int) -> str:
    if status in (401, 403):
        return " (check the key)"
    if 300 <= status < 400:
        return " (a redirect, which is not followed: give the server's own address)"
    return " (is this the address of an agent server?)" if status in (404, 405) else ""


def as_fault(error: HoldfastError) -> HoldfastError:
    """Return the error as a workspace raises it: the errors of a runtime."""
    if type(error) in (StoreError, ConversationNotFound):
        return RuntimeFault(str(error))
    return error
