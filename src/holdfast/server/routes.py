"""Adds routes to the application and describes them in the OpenAPI document. A route reads its
request, calls the host on a thread, and turns the result or error into a response. Each request
records that its client is alive."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Header, Path, Request
from msgspec.structs import fields
from starlette.responses import Response

from holdfast import __version__
from holdfast.object_struct import ObjectStruct
from holdfast.server.answers import ErrorAnswer, answer, error_answer
from holdfast.server.guard import RequestRefused, refused
from holdfast.server.intake import SMALL_BODY_BYTES
from holdfast.server.service import Service

NAME = "^[A-Za-z0-9._-]{1,128}$"
Id = Annotated[
    str, Path(pattern=NAME, description="The conversation's id.", examples=["4f0c91d2a6be"])
]
WorkspaceId = Annotated[
    str, Path(pattern=NAME, description="The workspace's id.", examples=["w-81d0"])
]
CallId = Annotated[str, Path(pattern=NAME, description="The call's id.", examples=["3.0"])]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,200}$",
        description="Repeating a request under the same key does not execute it twice.",
    ),
]
Client = Annotated[
    str,
    Header(alias="X-Holdfast-Client", pattern=NAME, description="The id of the client instance."),
]
LARGEST = 2**53 - 1  # the largest integer that every JSON reader can represent exactly

Endpoint = Callable[..., Any]

_REF = "#/components/schemas/{name}"
# The published names of schemas whose classes have longer names within the package.
_PUBLISHED_NAMES = {
    "CreatedConversation": "Created",
    "SentMessage": "Sent",
    "ServerHealth": "Health",
    "StatusReply": "Standing",
    "WrittenFile": "Written",
}

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
    "schema": {"type": "string", "pattern": NAME},
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
        answer_example: Any = None,
        answer_media_type: str = "application/json",
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
            answer_example: An example of the response.
            answer_media_type: The media type of the response.
            schema: The schema of a response that has no struct.
            status: The status of a successful response.
            also: Error statuses besides those of every route.
            open: True if the route needs no key.
            client: True if the route accepts the `X-Holdfast-Client` header.
        """
        answer: dict[str, Any] = {"schema": schema if gives is None else self._ref(gives)}
        if answer_example is not None:
            answer["example"] = answer_example
        responses: dict[int | str, Any] = {status: {"description": "Success."}}
        if status != 204:
            responses[status]["content"] = {answer_media_type: answer}
        if media_type != "application/json":
            body = (408,)
        else:
            body = () if takes is None else (408, 415, 422)
        for code in sorted({*(() if open else _GUARD_STATUSES), 403, 400, *body, *also}):
            responses[code] = {
                "description": _MEANINGS[code],
                "content": {"application/json": {"schema": self._ref(ErrorAnswer)}},
            }
            if code in (429, 503):
                responses[code]["headers"] = _RETRY
            if code == 401:
                challenge = {"description": "Bearer", "schema": {"type": "string"}}
                responses[code]["headers"] = {"WWW-Authenticate": challenge}
        extra: dict[str, Any] = {"security": []} if open else {}
        if client and not open:
            extra["parameters"] = [CLIENT]
        if takes is not None or media_type != "application/json":
            content = {"schema": {"type": "string"} if takes is None else self._ref(takes)}
            if example is not None:
                content["example"] = example
            required = bool(takes and any(field.required for field in fields(takes)))
            extra["requestBody"] = {"required": required, "content": {media_type: content}}
        return {"responses": responses, "openapi_extra": extra, "status_code": status}

    def _ref(self, type: Any) -> dict[str, Any]:
        if type not in self._types:
            self._types.append(type)
        return {"$ref": _REF.format(name=_published_name(type.__name__))}

    def whole(self, app: FastAPI) -> dict[str, Any]:
        from fastapi.openapi.utils import get_openapi

        document = get_openapi(
            title="Holdfast agent server",
            version=__version__,
            description=_DESCRIPTION,
            routes=app.routes,
        )
        _, schemas = msgspec.json.schema_components(self._types, ref_template=_REF)
        text = msgspec.json.encode(schemas).decode()
        for name, published in _PUBLISHED_NAMES.items():  # in structs that contain such a struct
            text = text.replace(f'"{_REF.format(name=name)}"', f'"{_REF.format(name=published)}"')
        schemas = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        for name, schema in schemas.items():
            schema["title"] = _published_name(schema.get("title", name))
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(
            {_published_name(name): schema for name, schema in schemas.items()}
        )
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "A key of this server."}
        }
        document["security"] = [{"key": []}]
        return document


def _published_name(name: str) -> str:
    return _PUBLISHED_NAMES.get(name, name)


class Routes(ObjectStruct):
    """Adds routes to an application; all routes share one service. The paths begin with `prefix`
    and have `tag` in the OpenAPI document."""

    app: FastAPI
    service: Service
    description: Description
    _prefix: str = ""
    _tag: str = "conversations"

    def under(self, prefix: str, tag: str) -> Routes:
        """Return an object that adds routes to the same application below a prefix."""
        return Routes(self.app, self.service, self.description, prefix, tag)

    def _add(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        tag: str = "",
        largest: int | None = SMALL_BODY_BYTES,
        conflicts: bool = False,
        state_error: bool = False,
        slow: bool = False,
        also: Sequence[int] | None = None,
        **described: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds a function as the endpoint for `method` of `path`. Its name
        becomes the operation's id, its docstring the description.

        A function runs on a thread and returns a struct, or None for the status 204. Its parameter
        `tenant` is the caller's tenant, `body` the decoded body. A coroutine function takes the
        `request` and returns the response itself. FastAPI reads all other parameters.

        Args:
            tag: The tag in place of that of all routes.
            largest: The largest body in bytes; None for the quota's limit.
            conflicts: True if the present state may not allow the request.
            state_error: True if an invalid request is one that the present state does not allow.
            slow: True if a GET may take long, so that other reads do not wait for its thread.
            also: Further error statuses; by default those of most API routes.
            described: See `Description.route`. The structs of the body and the answer are those
                of the function's signature.
        """
        path = self._prefix + path
        if also is None:
            also = [*([404] if "{" in path else []), *([409] if conflicts else []), 422, 503]
        work = self.service.read if method == "GET" and not slow else self.service.change

        def decorate(endpoint: Endpoint) -> Endpoint:
            signature = inspect.signature(endpoint)
            parameters = signature.parameters
            direct = inspect.iscoroutinefunction(endpoint)
            if "body" in parameters:
                described.setdefault("takes", parameters["body"].annotation)
            gives = signature.return_annotation
            if gives is None:
                described["status"] = 204
            elif gives not in (Response, msgspec.Raw):
                described.setdefault("gives", gives)
            status = described.get("status", 200)

            async def respond(request: Request, arguments: dict[str, Any]) -> Response:
                await self._record_client(request)
                if direct:
                    return await endpoint(request=request, **arguments)
                if "body" in parameters:
                    takes = described["takes"]
                    arguments["body"] = await self.service.json(request, takes, largest)
                if "tenant" in parameters:
                    arguments["tenant"] = self.service.caller(request).tenant
                result = await work(functools.partial(endpoint, **arguments))
                return Response(status_code=204) if status == 204 else answer(result, status)

            async def handle(request: Request, **arguments: Any) -> Response:
                try:
                    return await respond(request, arguments)
                except RequestRefused:
                    raise
                except Exception as error:
                    return error_answer(error, state_error)

            kind = inspect.Parameter.KEYWORD_ONLY
            published = [inspect.Parameter("request", kind, annotation=Request)]
            published += [
                one.replace(kind=kind)
                for one in parameters.values()
                if one.name not in ("request", "tenant", "body")
            ]
            signed: Any = handle
            signed.__signature__ = inspect.Signature(published)  # FastAPI reads it
            self.app.add_api_route(
                path,
                handle,
                methods=[method],
                summary=summary,
                description=endpoint.__doc__ or "",
                operation_id=endpoint.__name__,
                name=endpoint.__name__,
                tags=[tag or self._tag],
                response_model=None,
                **self.description.route(also=also, **described),
            )
            return endpoint

        return decorate

    get = functools.partialmethod(_add, "GET")
    post = functools.partialmethod(_add, "POST")
    put = functools.partialmethod(_add, "PUT")
    delete = functools.partialmethod(_add, "DELETE")

    async def _record_client(self, request: Request) -> None:
        client = request.headers.get("x-holdfast-client")
        if client is not None and "caller" in request.scope:
            if not re.fullmatch(NAME, client):
                raise refused(
                    422,
                    "X-Holdfast-Client takes at most 128 letters, digits and any of ._-, such as a"
                    " UUID.",
                )
            await self.service.note_alive(request.scope["caller"].tenant, client)
