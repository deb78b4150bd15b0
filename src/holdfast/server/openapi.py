"""How a route is described: what it takes and gives, with examples, and with which statuses it may
end; and the whole description."""

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

_MEANINGS: Mapping[int, str] = {
    400: "It is no JSON, no UTF-8, or not whole.",
    401: "The key is missing or unknown.",
    403: "The Host, the Origin or the path is refused.",
    404: "There is none of that id which the key may see.",
    405: "The path takes other methods.",
    408: "The body did not come.",
    409: (
        "It does not fit how things stand: done by another, closed, or the id or key stands for"
        " something else."
    ),
    413: "The body is too large.",
    415: "The body is no JSON.",
    422: "A field or parameter does not fit; the message names it.",
    429: "Too many requests, running requests or streams of this key.",
    503: "The server ends, or its store cannot be written.",
}
_EVERY = (400, 401, 403, 413, 429)  # what the guard may say to any request
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}

_ABOUT = """\
Conversations of agents that run on this server, and the workspaces in which they work. Every request but `/health` and `/ready` brings a key:
`Authorization: Bearer KEY`. A POST may bring an `Idempotency-Key`; sent again under the same key it is not done twice."""

CLIENT = {
    "name": "X-Holdfast-Client",
    "in": "header",
    "required": False,
    "description": (
        "The id of the client instance that asks; hearing of it keeps alive what it claimed."
    ),
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
}


class Description:
    """Collects the structs that routes name."""

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
        """A route's `responses` and `openapi_extra`: `takes` and `gives` are structs, or `schema`
        what is given as `given`; `example` and `gave` are an example of each, and `also` the
        statuses with which it may end beside those of any route."""
        answer: dict[str, Any] = {"schema": schema if gives is None else self._ref(gives)}
        if gave is not None:
            answer["example"] = gave
        found: dict[int | str, Any] = {
            status: {
                "description": "Done." if status < 400 else "Not done.",
                "content": {given: answer},
            }
        }
        if status == 204:
            del found[204]["content"]
        body = (
            ()
            if takes is None and media_type == "application/json"
            else (408, 415, 422)
            if media_type == "application/json"
            else (408,)
        )
        for code in sorted({*(() if open else _EVERY), 403, 400, *body, *also}):
            found[code] = {
                "description": _MEANINGS[code],
                "content": {"application/json": {"schema": self._ref(ErrorAnswer)}},
            }
            if code in (429, 503):
                found[code]["headers"] = _RETRY
            if code == 401:
                found[code]["headers"] = {
                    "WWW-Authenticate": {"description": "Bearer", "schema": {"type": "string"}}
                }
        extra: dict[str, Any] = (
            {"security": []} if open else {"parameters": [CLIENT]} if client else {}
        )
        if takes is not None or media_type != "application/json":
            content = {"schema": {"type": "string"} if takes is None else self._ref(takes)}
            extra["requestBody"] = {
                "required": bool(takes and any(field.required for field in fields(takes))),
                "content": {
                    media_type: content if example is None else {**content, "example": example}
                },
            }
        return {"responses": found, "openapi_extra": extra, "status_code": status}

    def _ref(self, type: Any) -> dict[str, Any]:
        if type not in self._types:
            self._types.append(type)
        return {"$ref": _REF.format(name=type.__name__)}

    def whole(self, app: FastAPI) -> dict[str, Any]:
        """The OpenAPI of all routes."""
        from fastapi.openapi.utils import get_openapi

        found = get_openapi(
            title="Holdfast agent server",
            version=__version__,
            description=_ABOUT,
            routes=app.routes,
        )
        _, schemas = msgspec.json.schema_components(self._types, ref_template=_REF)
        components = found.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas)
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key of this server."}
        }
        found["security"] = [{"key": []}]
        return found
