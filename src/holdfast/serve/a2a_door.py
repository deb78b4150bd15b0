"""Published agents for clients of A2A: JSON-RPC and REST of protocol 1.0, and JSON-RPC of 0.3.

`a2a-sdk` reads and writes the wire. The tasks are in `a2a_tasks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import errors
from holdfast.serve import a2a_shapes as shapes
from holdfast.serve.a2a_protobuf import json_of, message_of
from holdfast.serve.a2a_push import FORMATS
from holdfast.serve.a2a_tasks import NAME, Tasks
from holdfast.serve.a2a_views import TaskViews, notification
from holdfast.server.local import LocalServer
from holdfast.server.openai import Published

if TYPE_CHECKING:
    import os

    from starlette.requests import Request
    from starlette.responses import Response

    from holdfast.agent.agent import Agent
    from holdfast.server.routes import Routes
    from holdfast.server.service import Service

CARD_PATH = "/.well-known/agent-card.json"
_CARD_SECONDS = 300  # for which clients may keep a card
# JSON values of a body. The SDK takes 2 us for each, on the event loop.
_MAX_VALUES = 25_000
OLD_PATH = "/v0.3"  # below an agent's path: the same agent with a card of 0.3


class CardKey(msgspec.Struct, frozen=True):
    """The private key that signs cards, in PEM, its id for verifiers, and its algorithm."""

    pem: bytes
    id: str
    algorithm: str

    @classmethod
    def of_pem(cls, pem: bytes, id: str = "holdfast") -> CardKey:
        """Return the key of a PEM file: an elliptic curve P-256, RSA or Ed25519. Raises
        `ConfigurationError`."""
        try:
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            kind = type(load_pem_private_key(pem, None)).__name__
        except (ImportError, ValueError, TypeError) as error:
            raise errors.ConfigurationError(f"The key cannot be read: {error}.") from None
        for name, algorithm in {"EC": "ES256", "RSA": "RS256", "Ed25519": "EdDSA"}.items():
            if kind.startswith(name):
                return cls(pem, id, algorithm)
        raise errors.ConfigurationError(f"The key is a {kind}; cards are signed by EC or RSA keys.")

    def __repr__(self) -> str:
        return f"CardKey({self.id!r})"


class A2ADoor:
    """Adds the routes of A2A to an agent server: `App(..., doors=[A2ADoor(["coder"])])`.

    An agent is at `/a2a/{name}`, its card at `/a2a/{name}/.well-known/agent-card.json`. The card of
    the first agent is at `/.well-known/agent-card.json` too. Cards need no key.

    Args:
        names: The published agents that are served; empty serves all.
        url: The server's address for clients; empty takes that of each request.
        key: Signs the cards.
    """

    def __init__(
        self, names: Sequence[str] = (), *, url: str = "", key: CardKey | None = None
    ) -> None:
        if find_spec("a2a") is None:
            raise errors.ConfigurationError("A2A needs the a2a extra: pip install 'holdfast[a2a]'.")
        self._names = tuple(names)
        self._url = url.rstrip("/")
        self._sign = _signer(key)
        self._cards: dict[tuple[str, bool], tuple[str, bytes]] = {}  # with the address in them

    def __call__(self, routes: Routes, agents: Mapping[str, Published]) -> None:
        from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
        from starlette.routing import Route

        service, app, views = routes.service, routes.app, TaskViews()
        for version, format in FORMATS.items():
            write = partial(notification, service, views, version)
            service.host.webhooks.formats[format] = write
        for name in self._names or agents:
            if name not in agents or not NAME.fullmatch(name):
                raise errors.ConfigurationError(
                    f"A2A: {name!r} is no agent of this server with a name of letters, digits and"
                    " ._-."
                )
            path, agent = f"/a2a/{name}", agents[name]
            wire: Any = {
                "request_handler": Tasks(service, agent, views),
                "context_builder": _Contexts(),
            }
            endpoint = create_jsonrpc_routes(**wire, rpc_url="/", enable_v0_3_compat=True)[0]
            agent_routes = [
                Route(place, _of_json(endpoint.endpoint), methods=["POST"])
                for place in (path, f"{path}/", path + OLD_PATH, f"{path}{OLD_PATH}/")
            ]
            for route in create_rest_routes(**wire, path_prefix=path):
                # The others are for tenants in the path. Here the key says the tenant.
                if isinstance(route, Route):
                    route.app = _plain_json(route.app)
                    agent_routes.append(route)
            for route in agent_routes:
                route.app = _with_body_limit(service, route.app)
            places = [path + CARD_PATH, path + OLD_PATH + CARD_PATH]
            places += [] if CARD_PATH in service.open else [CARD_PATH]
            for place in places:
                service.open.add(place)
                agent_routes.append(Route(place, partial(self._card, agent, path)))
            app.router.routes += agent_routes

    async def _card(self, agent: Published, path: str, request: Request) -> Response:
        from starlette.responses import Response

        base, old = self._url or str(request.base_url).rstrip("/"), OLD_PATH in request.url.path
        card = self._cards.get((path, old))
        if card is None or card[0] != base:
            card = self._cards[path, old] = base, self._card_body(agent, base + path, old)
        since = datetime.fromtimestamp(agent.created, UTC)
        headers = {
            "cache-control": f"public, max-age={_CARD_SECONDS}",
            "etag": f'W/"{sha256(card[1]).hexdigest()[:32]}"',
            "last-modified": since.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        }
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(card[1], headers=headers, media_type="application/json")

    def _card_body(self, agent: Published, url: str, old: bool) -> bytes:
        from a2a.compat.v0_3.conversions import to_compat_agent_card

        card = message_of("AgentCard", shapes.card_of(agent, url))
        if not old:
            return json.dumps(json_of(self._sign(card))).encode()
        compat: Any = to_compat_agent_card(card)
        return compat.model_dump_json(by_alias=True, exclude_none=True).encode()


def a2a(
    agent: Agent,
    folder: str | os.PathLike[str] | None = None,
    *,
    name: str = "agent",
    key: CardKey | None = None,
    **options: Any,
) -> LocalServer:
    """Return a server of an agent for clients of A2A: `with a2a(agent) as server: ...`.

    The agent is at `{server.url}/a2a/{name}`; requests need `server.key` as a bearer token. The
    server is a `LocalServer` on `folder` with its `options`, at a free port of 127.0.0.1. To serve
    a network, use `holdfast serve --a2a`.
    """
    return LocalServer(folder, agents={name: agent}, doors=[A2ADoor([name], key=key)], **options)


class _Contexts:
    """Builds the SDK's context of a request, with the caller's tenant in its state."""

    def build(self, request: Any) -> Any:
        from a2a.server.routes.common import DefaultServerCallContextBuilder

        context = DefaultServerCallContextBuilder().build(request)
        context.state["caller"] = request.scope["caller"]
        return context


def _of_json(endpoint: Any) -> Any:
    """Return an endpoint of JSON-RPC that refuses a body of another type."""

    async def check_type(request: Request) -> Any:
        from starlette.responses import JSONResponse

        kind = request.headers.get("content-type", "application/json").partition(";")[0]
        if kind.strip().lower() == "application/json" or kind.endswith("+json"):
            return await endpoint(request)
        refused = {"code": -32005, "message": f"The body is not JSON but {kind[:100]!r}."}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": refused})

    return check_type


def _with_body_limit(service: Service, app: Any) -> Any:
    """Return an application that is given a body only after it was found small."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await service.forward(app, scope, receive, send, _MAX_VALUES)

    return answer


def _plain_json(app: Any) -> Any:
    """Return an application whose JSON has the media type of A2A only for clients that ask for
    it: the specification requires `application/json`, and the SDK sends its own type."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and b"a2a+json" not in accepted:
                own = (b"content-type", b"application/a2a+json")
                plain = (b"content-type", b"application/json")
                headers = [plain if one == own else one for one in message["headers"]]
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, sending)

    return answer


def _signer(key: CardKey | None) -> Callable[[Any], Any]:
    if key is None:
        return lambda card: card
    from a2a.utils.signing import create_agent_card_signer

    header: Any = {"kid": key.id, "alg": key.algorithm, "typ": "JOSE"}
    return create_agent_card_signer(key.pem, header)
