"""The server's answers: structs as JSON, and each error as a status and `{"error": {"type",
"message"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast import errors

_log = logging.getLogger("holdfast.server")
_encoder = msgspec.json.Encoder()

# The status of each kind of error. The first matching class counts.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFound, 404),
    (errors.ConversationNotFound, 404),
    (errors.ToolNotFound, 404),
    (FileNotFoundError, 404),
    (errors.KeyRefused, 401),
    (errors.PathRefused, 403),
    (errors.Denied, 403),
    (errors.RuntimeFault, 422),
    (errors.ToolValidationError, 422),
    (errors.ConfigurationError, 422),
    (errors.LeaseHeld, 409),
    (errors.Fenced, 409),
    (errors.StoreError, 503),
    (errors.HoldfastError, 409),
)
_DETAILS: Mapping[str, tuple[str, ...]] = {
    "HookDenied": ("hook", "on", "failed"),
    "UnreadableEvent": ("event", "problem"),
    "NotFound": ("kind", "id"),
    "ConversationNotFound": ("kind", "id"),
    "LimitExceeded": ("type", "value", "limit", "source"),
    "LeaseHeld": ("conversation_id", "holder"),
    "TooMany": ("bound",),
}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error. `type` is the name of a class in `holdfast.errors` where one fits. `details` are
    the error's fields."""

    type: str
    message: str
    details: dict[str, str | float | bool] = {}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer with a status of 400 or above."""

    error: Failure


def answer(value: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


def refusal(
    status: int, type: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return _failure(status, Failure(type, message), headers)


def error_answer(error: Exception, conflict: bool = False) -> Response:
    """Return the answer for an exception. With `conflict`, invalid input is answered with 409
    instead of 422, because the conversation's state does not allow it. Another exception than a
    `HoldfastError` is only logged."""
    if isinstance(error, errors.HoldfastError):
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        if conflict and status == 422:
            status = 409
        headers = None
        # 413: too large. 429: too many open conversations at the moment. 409: a permanent limit.
        if isinstance(error, errors.TooMany):
            status = 413 if error.bound.endswith("_bytes") else 409
            if error.bound == "open":
                status, headers = 429, {"Retry-After": "1"}
        kind = type(error).__name__
        details = {name: getattr(error, name) for name in _DETAILS.get(kind, ())}
        message = str(error)
        if isinstance(error, errors.PathRefused) and error.path:
            # The error's own text names folders of this machine, and how a program allows more.
            message = f"The path {error.path!r} is outside of the workspace. Use a path inside it."
        return _failure(status, Failure(kind, message, details), headers)
    _log.error("A request failed", exc_info=error)
    return refusal(500, "HoldfastError", "Internal server error. See the server's log.")


def _failure(status: int, failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    try:
        body = _encoder.encode(ErrorAnswer(failure))
    except ValueError:  # the message quotes a lone surrogate, which UTF-8 cannot encode
        message = failure.message.encode(errors="replace").decode()
        body = _encoder.encode(ErrorAnswer(Failure(failure.type, message)))
    return Response(body, status, headers, "application/json")
