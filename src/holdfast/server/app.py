"""The HTTP application over a `Host`: FastAPI with all routes and the access guard. An outer
layer counts and logs requests and catches errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from holdfast.conversation.observer import quietly
from holdfast.server import (
    page,
    routes_agents,
    routes_begin,
    routes_commands,
    routes_conversations,
    routes_events,
    routes_models,
    routes_openai,
    routes_search,
    routes_server,
    routes_webhooks,
    routes_workspaces,
)
from holdfast.server.answers import error_answer, refusal
from holdfast.server.guard import Caller, Guard, Quota, RequestRefused, host_names
from holdfast.server.host import Host
from holdfast.server.keys import Keys
from holdfast.server.openai import Published
from holdfast.server.route_index import RouteIndex
from holdfast.server.routes import Description, Routes
from holdfast.server.service import Service
from holdfast.server.sse import PING

_access = logging.getLogger("holdfast.server.access")
_log = logging.getLogger("holdfast.server")

# Adds the routes of a protocol, by which clients reach the published agents.
Door = Callable[[Routes, Mapping[str, Published]], None]

_KEY_CACHE_SECONDS = 2.0  # a revoked key stays usable for at most this long
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
# Request headers that a page of another origin may send. CORSMiddleware adds the safelisted ones.
_CORS_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-Holdfast-Client",
)
_NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


class App:
    """An ASGI application. `service` is the object that its routes share. See `Guard` for
    `hosts` and `origins`. `agents` are the published agents that clients of the `doors` may ask, by
    name. A door adds the routes of one protocol."""

    def __init__(
        self,
        host: Host,
        keys: Keys,
        *,
        quota: Quota | None = None,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        ping: float = PING,
        agents: Mapping[str, Published] = MappingProxyType({}),
        doors: Sequence[Door] = (),
    ) -> None:
        quota = quota or Quota()
        self.service = Service(host, quota, ping)
        self._keys = keys
        self._observers = host.observers
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        app = _fastapi(self.service, agents, doors)
        self.fastapi = app
        files = page.files()
        page.add(app, files)
        open = {*self.service.open, *files}
        guarded: Any = Guard(
            app, self._caller, self.service.usage, quota.body, hosts, origins, open
        )
        if origins:
            guarded = CORSMiddleware(
                guarded,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=list(_CORS_HEADERS),
                expose_headers=["Retry-After"],
                max_age=600,
            )
        self._inner: Callable[[Any, Any, Any], Awaitable[None]] = guarded

    @classmethod
    def at_loopback(
        cls, host: Host, keys: Keys, agents: Mapping[str, Published], doors: Sequence[Door]
    ) -> App:
        """Return an application for 127.0.0.1, without a limit of requests per second."""
        hosts = host_names("127.0.0.1", [])
        return cls(host, keys, quota=Quota(rate=0), hosts=hosts, agents=agents, doors=doors)

    async def _caller(self, key: str) -> Caller | None:
        digest = sha256(key.encode("latin-1", "replace")).digest()
        entry = self._callers.get(digest)
        if entry is not None and time.monotonic() - entry[0] < _KEY_CACHE_SECONDS:
            return entry[1]
        tenant = await self.service.read(self._keys.tenant_of, key)
        if tenant is None:
            self._callers.pop(digest, None)
            return None
        if len(self._callers) > 10_000:
            self._callers.clear()
        caller = Caller(tenant, digest.hex()[:16])
        self._callers[digest] = (time.monotonic(), caller)
        return caller

    def _end_callbacks(self, scope: Any) -> list[Callable[[str, int], None]]:
        """Return the observers' callbacks for the end of this request. Read-only requests have
        none."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return []
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        ends = [quietly(one.served, scope["method"], headers) for one in self._observers]
        return [ended for ended in ends if ended is not None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # uvicorn is configured to offer nothing else
            return
        began = time.perf_counter()
        status = 0
        served = self._end_callbacks(scope) if self._observers else []

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # The page's files set a content security policy of their own.
                own = {name for name, _ in message["headers"]}
                more = [header for header in _HEADERS if header[0] not in own]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            await self._inner(scope, receive, send_with_headers)
        except Exception as error:
            if not status:
                await error_answer(error)(scope, receive, send_with_headers)
            else:
                _log.error("A response failed after its headers were sent", exc_info=error)
                raise
        finally:
            if (body := scope.get("body")) is not None:
                body.free()
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "none")
            self.service.metrics.count(scope["method"], route, status, seconds)
            for ended in reversed(served):
                quietly(ended, route, status or 500)
            # The query is not logged, because it may hold private data. The raw path has no control
            # characters.
            if _access.isEnabledFor(logging.INFO):
                caller = scope.get("caller")
                path = (scope.get("raw_path") or b"").decode("latin-1")[:500]
                tenant = caller.tenant if caller else "-"
                request = tenant, scope["method"], path, status, seconds * 1000
                _access.info("%s %s %s %d %.1f ms", *request)


def _fastapi(
    service: Service,
    agents: Mapping[str, Published],
    doors: Sequence[Door],
) -> FastAPI:
    # FastAPI's documentation pages are off because they load scripts from other hosts.
    app = FastAPI(
        title="Holdfast agent server",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        exception_handlers={
            RequestRefused: _refused,
            RequestValidationError: _invalid,
            HTTPException: _http,
        },
    )
    description = Description()
    routes = Routes(app, service, description)
    routes.add(routes_events.routes)
    routes.add(routes_commands.table(routes_commands.CALLS, "calls"))
    routes.add(routes_conversations.routes)
    routes.add(routes_commands.table(routes_commands.RUNS, "conversations"))
    routes.add(routes_commands.table(routes_commands.TIMERS, "conversations"))
    routes.add(routes_workspaces.routes)
    routes.add(routes_openai.routes, agents=agents)
    for door in doors:
        door(routes, agents)
    routes.add(routes_agents.routes, agents=agents)
    routes.add(routes_models.routes)
    options = cache(partial(routes_begin.begin_options, service.host))
    routes.add(routes_begin.routes, options=options)
    routes.add(routes_search.routes)
    routes.add(routes_events.family)
    routes.add(routes_webhooks.routes)
    document = cache(lambda: msgspec.json.encode(description.whole(app)))
    routes.add(routes_server.routes, logged=set[str](), document=document)
    app.router.routes.insert(0, RouteIndex(app.routes))
    return app


async def _refused(_: Request, error: Exception) -> Response:
    reason = cast(RequestRefused, error)
    return refusal(reason.status, reason.type, str(reason), reason.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    # The message omits the input, because the input may be a secret.
    parts = [
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
        for item in cast(RequestValidationError, error).errors()
    ]
    message = f"The request is invalid: {'; '.join(parts)[:1000]}."
    return refusal(422, "ConfigurationError", message)


async def _http(request: Request, error: Exception) -> Response:
    reason = cast(HTTPException, error)
    if reason.status_code == 405:
        path = getattr(request.scope.get("route"), "path", "")
        # the route of a door knows its own methods
        own = (reason.headers or {}).get("Allow", "GET")
        allowed = _methods(request.app).get(path) or own
        message = f"This path accepts {allowed}."
        return refusal(405, "ConfigurationError", message, {"Allow": allowed})
    message = str(reason.detail)
    if reason.status_code == 404:
        message = "This server has no such path. /openapi.json lists all paths."
    return refusal(reason.status_code, "ConfigurationError", message)


def _methods(app: FastAPI) -> Mapping[str, str]:
    """Return the methods that each path accepts. One FastAPI route knows only its own methods."""
    by_path: dict[str, set[str]] = {}
    for route in app.routes:
        methods = by_path.setdefault(getattr(route, "path", ""), set())
        methods.update(getattr(route, "methods", None) or ())
    return {path: ", ".join(sorted(methods)) for path, methods in by_path.items()}
