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


class Route(ObjectStruct, kw_only=True):
    """One route: its endpoint, and its description in the OpenAPI document.

    The endpoint's name is the operation's id, its docstring the description. A function runs on a
    thread, a coroutine function on the event loop. Either returns a struct, a response, or None for
    the status 204. FastAPI reads the parameters of an endpoint, except:

    | parameter | value |
    |---|---|
    | `request` | the request |
    | `tenant` | the caller's tenant |
    | `body` | the decoded body |
    | `data` | the body's bytes |
    | `cancelled` | the `Cancellation` of a request that may run for long; see `Service.long` |
    | `service`, `host` | the `Service` and the `Host` of the application |
    | others | see `Routes.add` |
    """

    method: str
    path: str
    summary: str
    endpoint: Endpoint
    tag: str
    largest: int | None = SMALL_BODY_BYTES  # the largest body in bytes; None for the quota's limit
    holds_agent: bool = False  # True if the body holds an agent, and may be as large as one
    conflicts: bool = False  # True if the present state may not allow the request
    state_error: bool = False  # True if an invalid request is one that the state does not allow
    slow: bool = False  # True if a GET may take long, so that other reads do not wait for it
    open: bool = False  # True if the route needs no key
    client: bool = True  # True if the route accepts the `X-Holdfast-Client` header
    takes: Any = None  # the struct of the request body; by default the type of `body`
    example: Any = None  # of the request body
    media_type: str = "application/json"  # of the request body
    gives: Any = None  # the struct of the response; by default the endpoint's return type
    schema: Mapping[str, Any] | None = None  # of a response that has no struct
    answer_example: Any = None
    answer_media_type: str = "application/json"
    status: int = 200  # of a successful response
    also: Sequence[int] | None = None  # further error statuses; by default those of most API routes
    failed: Callable[[Exception], Response] | None = None  # makes the response of an error

    def __post_init__(self) -> None:
        if self.also is None:
            unknown = [404] if "{" in self.path else []
            self.also = [*unknown, *([409] if self.conflicts else []), 422, 503]
        signature = inspect.signature(self.endpoint)
        if "body" in signature.parameters and self.takes is None:
            self.takes = signature.parameters["body"].annotation
        gives = signature.return_annotation
        if gives is None:
            self.status = 204
        elif gives not in (Response, msgspec.Raw) and self.gives is None:
            self.gives = gives


class RouteTable(ObjectStruct):
    """The routes of one subject. Their paths begin with `prefix`. `defaults` are fields of `Route`
    for all of them."""

    prefix: str
    tag: str
    defaults: Mapping[str, Any] = {}
    routes: list[Route] = []

    def _add(
        self, method: str, path: str, summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds a function as the endpoint for `method` of `path`. The
        options are fields of `Route`."""

        def decorate(endpoint: Endpoint) -> Endpoint:
            about: dict[str, Any] = {"path": self.prefix + path, "summary": summary}
            about |= {"tag": self.tag, **self.defaults, **options}
            self.routes.append(Route(method=method, endpoint=endpoint, **about))
            return endpoint

        return decorate

    get = functools.partialmethod(_add, "GET")
    post = functools.partialmethod(_add, "POST")
    put = functools.partialmethod(_add, "PUT")
    delete = functools.partialmethod(_add, "DELETE")


class Description:
    """Collects the structs that routes refer to and builds the document."""

    def __init__(self) -> None:
        self._types: list[Any] = [ErrorAnswer]

    def of(self, route: Route) -> dict[str, Any]:
        """Return the keyword arguments that describe one route to FastAPI."""
        answer: dict[str, Any] = {
            "schema": route.schema if route.gives is None else self._ref(route.gives)
        }
        if route.answer_example is not None:
            answer["example"] = route.answer_example
        responses: dict[int | str, Any] = {route.status: {"description": "Success."}}
        if route.status != 204:
            responses[route.status]["content"] = {route.answer_media_type: answer}
        if route.media_type != "application/json":
            body = (408,)
        else:
            body = () if route.takes is None else (408, 415, 422)
        guarded = () if route.open else _GUARD_STATUSES
        for code in sorted({*guarded, 403, 400, *body, *(route.also or ())}):
            responses[code] = {
                "description": _MEANINGS[code],
                "content": {"application/json": {"schema": self._ref(ErrorAnswer)}},
            }
            if code in (429, 503):
                responses[code]["headers"] = _RETRY
            if code == 401:
                challenge = {"description": "Bearer", "schema": {"type": "string"}}
                responses[code]["headers"] = {"WWW-Authenticate": challenge}
        extra: dict[str, Any] = {"security": []} if route.open else {}
        if route.client and not route.open:
            extra["parameters"] = [CLIENT]
        takes = route.takes
        if takes is not None or route.media_type != "application/json":
            content = {"schema": {"type": "string"} if takes is None else self._ref(takes)}
            if route.example is not None:
                content["example"] = route.example
            required = bool(takes and any(field.required for field in fields(takes)))
            extra["requestBody"] = {"required": required, "content": {route.media_type: content}}
        return {
            "summary": route.summary,
            "description": route.endpoint.__doc__ or "",
            "operation_id": route.endpoint.__name__,
            "name": route.endpoint.__name__,
            "tags": [route.tag],
            "status_code": route.status,
            "responses": responses,
            "openapi_extra": extra,
        }

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
    """Adds routes to an application; all routes share one service."""

    app: FastAPI
    service: Service
    description: Description

    def add(self, table: RouteTable, **parts: Any) -> None:
        """Add the routes of a table. Their endpoints may have parameters with the names of `parts`,
        whose values they get."""
        parts |= {"service": self.service, "host": self.service.host}
        for route in table.routes:
            self._add(route, parts)

    def _add(self, route: Route, parts: Mapping[str, Any]) -> None:
        service, status = self.service, route.status
        parameters = inspect.signature(route.endpoint).parameters
        own = {name: part for name, part in parts.items() if name in parameters}
        endpoint = functools.partial(route.endpoint, **own)
        direct, long = inspect.iscoroutinefunction(route.endpoint), "cancelled" in parameters
        work = service.read if route.method == "GET" and not route.slow else service.change
        largest = service.agent_bytes if route.holds_agent else route.largest

        def response(result: Any) -> Response:
            if isinstance(result, Response):
                return result
            return Response(status_code=204) if status == 204 else answer(result, status)

        async def respond(request: Request, arguments: dict[str, Any]) -> Response:
            if "request" in parameters:
                arguments["request"] = request
            if "tenant" in parameters:
                arguments["tenant"] = service.caller(request).tenant
            if long:
                data, key = await service.body(request, largest), arguments.pop("key")
                arguments["body"] = await service.decode(request, data, route.takes)
                run = functools.partial(endpoint, **arguments)
                return await service.long(
                    request, key, data, lambda cancelled: response(run(cancelled=cancelled))
                )
            if "data" in parameters:
                arguments["data"] = await service.body(request, largest)
            if "body" in parameters:
                arguments["body"] = await service.json(request, route.takes, largest)
            if direct:
                return response(await endpoint(**arguments))
            return await work(lambda: response(endpoint(**arguments)))

        async def handle(request: Request, **arguments: Any) -> Response:
            try:
                await self._record_client(request)
                return await respond(request, arguments)
            except RequestRefused:
                raise
            except Exception as error:
                failed = route.failed
                return error_answer(error, route.state_error) if failed is None else failed(error)

        kind = inspect.Parameter.KEYWORD_ONLY
        published = [inspect.Parameter("request", kind, annotation=Request)]
        published += [
            one.replace(kind=kind)
            for one in parameters.values()
            if one.name not in ("request", "tenant", "body", "data", "cancelled", *own)
        ]
        if long:
            published.append(inspect.Parameter("key", kind, annotation=Key, default=None))
        signed: Any = handle
        signed.__signature__ = inspect.Signature(published)  # FastAPI reads it
        self.app.add_api_route(
            route.path,
            handle,
            methods=[route.method],
            response_model=None,
            **self.description.of(route),
        )

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
