"""Builds the OpenAPI document: the request, responses, examples and statuses of each route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from holdfast import __version__
from holdfast.server.answers import ErrorAnswer

if TYPE_CHECKING:
    from fastapi import FastAPI

_REF = "#/components/schemas/{name}"
# The published names of schemas whose classes have longer names within the package.
_PUBLISHED_NAMES = {"CreatedConversation": "Created", "ServerHealth": "Health"}

_MEANINGS: Mapping[int, str] = {
    400: "The request is not valid JSON or UTF-8, or is incomplete.",
    401: "The key is missing or unknown.",
    403: "The Host, the Origin or the path is not allowed.",
    404: "No object with this id is visible to the key.",
    405: "The path does not accept this method.",
    408: "The body did not arrive in time.",
    409: (
        "The request conflicts with the present state: another client was first, the conversation"
        " is closed, or the id or key is in use for something else."
    ),
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A field or parameter is invalid; the message names it.",
    429: "This key has too many requests per second, running requests or streams.",
    503: "The server is shutting down, or its store cannot be written.",
}
_GUARD_STATUSES = (400, 401, 403, 413, 429)  # the guard may answer any request with these
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}

_DESCRIPTION = """\
Conversations of agents that run on this server, and the workspaces in which they work. Every
request except `/health` and `/ready` needs a key: `Authorization: Bearer KEY`. A POST may carry an
`Idempotency-Key`; repeating the request under the same key does not execute it twice."""

CLIENT = {
    "name": "X-Holdfast-Client",
    "in": "header",
    "required": False,
    "description": (
        "The id of the client instance. Each request with it keeps the client's claims alive."
    ),
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
}


class Description:
    """Collects the structs that routes refer to and builds the document."""

    def __init__(self) -> None:
        self._types: list[Any] = [ErrorAnswer]

    def route(
        self,
        *,
        takes: Any = None,
        example: Any = None,
        media_type: str = "application/json",
        gives: Any = None,
        gave: Any = None,
        given: str = "application/json",
        schema: Mapping[str, Any] | None = None,
        status: int = 200,
        also: Sequence[int] = (),
        open: bool = False,
        client: bool = True,
    ) -> dict[str, Any]:
        """Return the keyword arguments that describe one route to FastAPI.

        Args:
            takes: The struct of the request body.
            example: An example of the request body.
            media_type: The media type of the request body.
            gives: The struct of the response.
            gave: An example of the response.
            given: The media type of the response.
            schema: The schema of a response that has no struct.
            status: The status of a successful response.
            also: Error statuses besides those that every route has.
            open: True if the route needs no key.
            client: True if the route accepts the `X-Holdfast-Client` header.
        """
        answer: dict[str, Any] = {"schema": schema if gives is None else self._ref(gives)}
        if gave is not None:
            answer["example"] = gave
        found: dict[int | str, Any] = {status: {"description": "Success."}}
        if status != 204:
            found[status]["content"] = {given: answer}
        if media_type != "application/json":
            body = (408,)
        else:
            body = () if takes is None else (408, 415, 422)
        for code in sorted({*(() if open else _GUARD_STATUSES), 403, 400, *body, *also}):
            found[code] = {
                "description": _MEANINGS[code],
                "content": {"application/json": {"schema": self._ref(ErrorAnswer)}},
            }
            if code in (429, 503):
                found[code]["headers"] = _RETRY
            if code == 401:
                challenge = {"description": "Bearer", "schema": {"type": "string"}}
                found[code]["headers"] = {"WWW-Authenticate": challenge}
        extra: dict[str, Any] = {"security": []} if open else {}
        if client and not open:
            extra["parameters"] = [CLIENT]
        if takes is not None or media_type != "application/json":
            content = {"schema": {"type": "string"} if takes is None else self._ref(takes)}
            if example is not None:
                content["example"] = example
            required = bool(takes and any(field.required for field in fields(takes)))
            extra["requestBody"] = {"required": required, "content": {media_type: content}}
        return {"responses": found, "openapi_extra": extra, "status_code": status}

    def _ref(self, type: Any) -> dict[str, Any]:
        if type not in self._types:
            self._types.append(type)
        return {"$ref": _REF.format(name=_published(type.__name__))}

    def whole(self, app: FastAPI) -> dict[str, Any]:
        from fastapi.openapi.utils import get_openapi

        found = get_openapi(
            title="Holdfast agent server",
            version=__version__,
            description=_DESCRIPTION,
            routes=app.routes,
        )
        _, schemas = msgspec.json.schema_components(self._types, ref_template=_REF)
        for name, schema in schemas.items():
            schema["title"] = _published(schema.get("title", name))
        components = found.setdefault("components", {})
        components.setdefault("schemas", {}).update(
            {_published(name): schema for name, schema in schemas.items()}
        )
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key of this server."}
        }
        found["security"] = [{"key": []}]
        return found


def _published(name: str) -> str:
    return _PUBLISHED_NAMES.get(name, name)
