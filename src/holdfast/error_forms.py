"""Errors as data: the name of the class, the message and the fields, and back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError

Field = str | int | float | bool | None


class ErrorForm(msgspec.Struct, frozen=True):
    """An error. `type` is the name of its class in `holdfast.errors`; `details` are its fields."""

    type: str
    message: str
    details: dict[str, Field] = {}


def form_of_error(error: HoldfastError) -> ErrorForm:
    """Return an error as data. A class of another module has the name of its nearest base."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, Field)}
    return ErrorForm(kind.__name__, str(error), fields)


def error_of_form(form: ErrorForm, default: type[HoldfastError] = HoldfastError) -> HoldfastError:
    """Return the error that a form describes; one of the class `default` for an unknown name."""
    kind = getattr(errors, form.type, None)
    if not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
        kind = default
    error = _blank(kind, form.message)
    error.args = (form.message,)  # some classes build their own message from their fields
    set_fields(error, form.details)
    return error


def set_fields(error: HoldfastError, fields: Mapping[str, object]) -> None:
    """Set those fields that the error has."""
    for name, value in fields.items():
        if name in vars(error):
            setattr(error, name, value)


def _blank(kind: type[HoldfastError], message: str) -> HoldfastError:
    if kind is errors.LimitExceeded:
        return errors.LimitExceeded("", 0, 0, "")
    if kind is errors.LeaseHeld:
        return errors.LeaseHeld("", "")
    if kind is errors.UnreadableEvent:
        return errors.UnreadableEvent("", "")
    return kind(message)
