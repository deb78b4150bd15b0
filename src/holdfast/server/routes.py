"""Adds routes to the application: describes them, turns their errors into responses, and records
which clients are alive."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Request
from starlette.responses import Response

from holdfast.server.answers import error_answer
from holdfast.server.guard import RequestRefused
from holdfast.server.openapi import Description
from holdfast.server.service import Service

Endpoint = Callable[..., Awaitable[Response]]

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
    Header(
        alias="X-Holdfast-Client",
        pattern=NAME,
        description="The id of the client instance.",
    ),
]
LARGEST = 2**53 - 1  # the largest integer that every JSON reader can represent exactly

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Routes:
    """Adds routes to an application; all routes share one service."""

    def __init__(self, app: FastAPI, service: Service, description: Description) -> None:
        self.app = app
        self.service = service
        self.description = description

    def add(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        conflict: bool = False,
        tag: str = "conversations",
        **described: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that registers an endpoint for `method` of `path`.

        The endpoint's name becomes the operation's id, and its docstring the operation's
        description. With `conflict`, an invalid request is answered with 409, because it is the
        conversation's state that does not allow it. For the other arguments see
        `Description.route`.
        """

        def decorate(endpoint: Endpoint) -> Endpoint:
            @functools.wraps(endpoint)
            async def answering(request: Request, *arguments: Any, **parameters: Any) -> Response:
                try:
                    await self._note(request)
                    return await endpoint(*arguments, request=request, **parameters)
                except RequestRefused:
                    raise
                except Exception as error:
                    return error_answer(error, conflict)

            self.app.add_api_route(
                path,
                answering,
                methods=[method],
                summary=summary,
                description=endpoint.__doc__ or "",
                operation_id=endpoint.__name__,
                tags=[tag],
                response_model=None,
                **self.description.route(**described),
            )
            return endpoint

        return decorate

    async def _note(self, request: Request) -> None:
        client = request.headers.get("x-holdfast-client")
        if client is not None and "caller" in request.scope:
            if not _NAME.fullmatch(client):
                raise RequestRefused(
                    422,
                    "ConfigurationError",
                    "X-Holdfast-Client takes at most 128 letters, digits and any of ._-, such as a"
                    " UUID.",
                )
            await self.service.seen(request.scope["caller"].tenant, client)
