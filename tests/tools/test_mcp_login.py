"""Tests of `mcp_login` against an OAuth server of the mcp package's own parts, which checks PKCE
itself."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.mcp import MCPClient
from holdfast.tools.mcp.login import mcp_login
from tests.waiting import until

pytestmark = pytest.mark.slow


class Provider:
    """An authorization server that registers any client, and grants every request."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.challenges: list[str] = []

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: Any, params: AuthorizationParams) -> str:
        self.challenges.append(params.code_challenge)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(self, client: Any, code: str) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(self, client: Any, code: AuthorizationCode) -> OAuthToken:
        del self.codes[code.code]
        token = secrets.token_urlsafe(24)
        self.tokens[token] = AccessToken(
            token=token, client_id=client.client_id, scopes=code.scopes, resource=code.resource
        )
        return OAuthToken(access_token=token, token_type="Bearer", expires_in=3600)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return None

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: Any) -> Any:
        raise AssertionError("no refresh token was given")

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: Any) -> None:
        pass


class Site:
    def __init__(self) -> None:
        self.provider = Provider()
        with contextlib.closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        self.url = f"{address}/mcp"
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(address),
            resource_server_url=AnyHttpUrl(self.url),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=True,
        )
        provider: Any = self.provider
        server = MCPServer("desk", auth_server_provider=provider, auth=settings)

        @server.tool()
        def hello() -> str:
            """Say hello."""
            return "hello"

        app = server.streamable_http_app()
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until(lambda: self._server.started, "the server")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.stop()


def fetch(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def browser(visit: Callable[[str], object]) -> Callable[[str], None]:
    """Return a browser that visits pages on a thread of its own, as a real one does."""
    return lambda address: threading.Thread(target=visit, args=(address,), daemon=True).start()


def back_of(address: str) -> tuple[str, str]:
    query = parse_qs(urlsplit(address).query)
    return query["redirect_uri"][0], query["state"][0]


def test_a_login_gives_an_auth_that_asks_nobody_again(site: Site) -> None:
    storage: dict[str, str] = {}
    visited: list[str] = []

    def visit(address: str) -> None:
        visited.append(address)
        assert fetch(address) == 200

    auth = mcp_login(site.url, browser(visit), storage, timeout=20)
    again = mcp_login(site.url, browser(visit), storage, timeout=20)
    for one in (auth, again):
        with MCPClient({"desk": {"url": site.url}}, auth={"desk": one}) as client:
            assert [tool.name for tool in client.tools()] == ["desk.hello"]
    assert len(visited) == 1
    query = parse_qs(urlsplit(visited[0]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"][0].startswith("http://127.0.0.1:")
    assert all(key.startswith(site.url) for key in storage)


def test_an_answer_with_another_state_is_ignored(site: Site) -> None:
    codes: list[int] = []

    def visit(address: str) -> None:
        back, state = back_of(address)
        codes.append(fetch(f"{back}?{urlencode({'code': 'stolen', 'state': 'forged'})}"))
        codes.append(fetch(f"{back}?code=stolen"))
        codes.append(fetch(back.replace("/callback", f"/other?code=x&state={state}")))
        codes.append(fetch(address))

    mcp_login(site.url, browser(visit), {}, timeout=20)
    assert codes == [400, 400, 400, 200]


def test_a_declined_login_and_one_without_an_answer_fail_in_time(site: Site) -> None:
    def decline(address: str) -> None:
        back, state = back_of(address)
        fetch(f"{back}?{urlencode({'error': 'access_denied', 'state': state})}")

    with pytest.raises(ToolError, match="declined: access_denied"):
        mcp_login(site.url, browser(decline), {}, timeout=20)
    with pytest.raises(ToolError, match=r"within 0\.2 s"):
        mcp_login(site.url, lambda address: None, {}, timeout=0.2)


def test_a_lost_login_is_reported_and_nobody_is_asked(site: Site) -> None:
    storage: dict[str, str] = {}
    auth = mcp_login(site.url, browser(fetch), storage, timeout=20)
    site.provider.tokens.clear()
    with MCPClient({"desk": {"url": site.url}}, auth={"desk": auth}) as client:
        assert client.tools() == []
        assert "call mcp_login" in str(client.errors["desk"])


def test_a_second_login_registers_the_address_of_its_own_port(site: Site) -> None:
    storage: dict[str, str] = {}
    before = len(site.provider.clients)
    for _ in range(2):
        storage.pop(f"{site.url} tokens", None)
        mcp_login(site.url, browser(fetch), storage, timeout=20)
    assert len(site.provider.clients) == before + 2


def test_a_port_that_is_taken_is_named() -> None:
    with contextlib.closing(socket.socket()) as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is not free"):
            mcp_login("http://127.0.0.1:9/mcp", print, {}, port=port)
