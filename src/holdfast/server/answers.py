"""What the server answers: JSON of structs, and each error as a status and `{"error": {"type",
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

# The first that fits counts. What stands for a wrong request comes before what stands for a fault
# of ours.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.ConversationNotFound, 404),
    (errors.PathRefused, 403),
    (FileNotFoundError, 404),
    (errors.RuntimeFault, 422),
    (errors.ToolNotFound, 404),
    (errors.ToolValidationError, 422),
    (errors.ConfigurationError, 422),
    (errors.Conflict, 409),
    (errors.ConversationError, 409),
    (errors.LeaseHeld, 409),
    (errors.Fenced, 409),
    (errors.StoreError, 503),
    (errors.HoldfastError, 409),
)

_DETAILS: Mapping[str, tuple[str, ...]] = {
    "LimitExceeded": ("type", "value", "limit", "source"),
    "LeaseHeld": ("conversation_id", "holder"),
    "TooMany": ("bound",),
}


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """`type` is the name of a class in `holdfast.errors`, as far as it has one; `details` are the
    fields of the error."""

    type: str
    message: str
    details: dict[str, str | float] = {}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """What every answer with a status from 400 on is."""

    error: Failure


def answer(value: Any, status: int = 200) -> Response:
    """A struct as an answer."""
    return Response(_encoder.encode(value), status, media_type="application/json")


def refusal(
    status: int, type: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as an answer."""
    return _failure(status, Failure(type, message), headers)


def told(error: Exception, conflict: bool = False) -> Response:
    """An error that was raised as the answer to the request. `conflict`: what does not fit does not
    fit the conversation as it stands, not the request. What is none of Holdfast's is logged, and
    nothing is told of it."""
    if isinstance(error, errors.HoldfastError):
        status = next(status for kind, status in _STATUSES if isinstance(error, kind))
        if conflict and status == 422:
            status = 409
        headers = None
        if isinstance(
            error, errors.TooMany
        ):  # too large, too many at the moment, or too many for good
            status = (
                413 if error.bound.endswith("_bytes") else 429 if error.bound == "open" else 409
            )
            headers = {"Retry-After": "1"} if status == 429 else None
        names = _DETAILS.get(type(error).__name__, ())
        return _failure(
            status,
            Failure(
                type(error).__name__, str(error), {name: getattr(error, name) for name in names}
            ),
            headers,
        )
    _log.error("A request failed", exc_info=error)
    return refusal(500, "HoldfastError", "The server failed; its log says why.")


def _failure(status: int, failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    try:
        body = _encoder.encode(ErrorAnswer(failure))
    except ValueError:  # what it quotes has half of a surrogate pair, which UTF-8 cannot say
        body = _encoder.encode(
            ErrorAnswer(Failure(failure.type, failure.message.encode(errors="replace").decode()))
        )
    return Response(body, status, headers, "application/json")
