"""The streamable HTTP transport: its address, its access checks, and the web server."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.server.answers import refusal
from holdfast.server.guard import Caller, RequestRefused
from holdfast.server.intake import TOTAL_BYTES, Intake
from holdfast.server.sockets import is_loopback

if TYPE_CHECKING:
    import uvicorn
    from mcp.server import Server

_MAX_REQUEST_BYTES = 32 * 1024 * 1024  # an image of 20 MB in base64, and some room
# JSON values of a request. The mcp package takes 2 us for each, on the event loop.
_MAX_VALUES = 25_000
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750, section 2.1
_SHUTDOWN_SECONDS = 1  # for open streams


def check(host: str, token: str | None) -> None:
    """Raise `ConfigurationError` for an unsafe configuration."""
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "token takes one or more letters, digits and characters of ._~+/=- (RFC 6750); this"
            " one is empty or has others."
        )
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"Serving on {host!r} offers every tool to anyone who can reach this machine. Give a"
            " token that clients must send, or serve on 127.0.0.1."
        )


def web(
    server: Server[Any],
    host: str,
    token: str | None,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
) -> uvicorn.Server:
    """Return the web server, to be run with a listening socket."""
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    names = list(allowed_hosts)
    if is_loopback(host):
        names += ["127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host]
    without_port = [name for name in names if not re.search(r":(\d+|\*)$", name)]
    hosts = [*names, *[f"{name}:*" for name in without_port]]
    origins = [*allowed_origins, *(f"http://{name}" for name in hosts)]
    # Without host names there is a token, which no web page in a browser knows.
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts), allowed_hosts=hosts, allowed_origins=origins
    )
    app: Any = server.streamable_http_app(
        host=host, transport_security=security, max_request_body_size=_MAX_REQUEST_BYTES
    )
    app = _BoundedBody(app)
    if token is not None:
        app = _TokenCheck(app, token)
    config = uvicorn.Config(
        app,
        http="h11",  # not httptools, also where it is installed: it takes a head of any size
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


class _BoundedBody:
    """An ASGI middleware that refuses a request whose body is too large, too slow, or has too
    many JSON values."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._intake = Intake(per_key=TOTAL_BYTES)  # all clients have the same key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["caller"] = Caller("", "")
        try:
            await self._intake.forward(
                self._app, scope, receive, send, _MAX_REQUEST_BYTES, _MAX_VALUES
            )
        except RequestRefused as error:
            await refusal(error.status, error.type, str(error), error.headers)(scope, receive, send)
        finally:
            if "body" in scope:
                scope["body"].free()


class _TokenCheck:
    """An ASGI middleware that refuses requests without the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._digest = _digest(token.encode())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            credentials = [value for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, token = (
                credentials[0].partition(b" ") if len(credentials) == 1 else (b"", b"", b"")
            )
            # Digests are compared, so that timing reveals neither content nor length of the token.
            fits = hmac.compare_digest(_digest(token.strip()), self._digest)
            if scheme.lower() != b"bearer" or not fits:
                headers = [
                    (b"www-authenticate", b"Bearer"),
                    (b"content-type", b"text/plain"),
                    (b"content-length", b"0"),
                ]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
