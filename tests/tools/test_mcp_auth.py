"""Tests of OAuth: the server that issues a token, where the token is kept, its receivers, and the
callers that wait meanwhile. The conformance kit judges the flows themselves."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import ClientCredentials, MCPClient, OAuth

BACK = "http://localhost:3000/callback"


class Site:
    """An MCP server and, on an origin of its own, its authorization server."""

    def __init__(self) -> None:
        self.valid: set[str] = set()
        self.lasts = 3600
        self.grants: list[dict[str, str]] = []  # requests to the token endpoint
        self.elsewhere: list[str] = []  # requests to the MCP server that do not belong there
        # Authorization headers of requests to the MCP server
        self.presented: set[str | None] = set()
        self.slow_begun, self.slow_may_end = threading.Event(), threading.Event()
        self._tokens = 0
        self.server = self._serve(self._mcp)
        self.issuer = self._serve(self._authorize)
        self.url = f"{self.address(self.server)}/mcp"

    @staticmethod
    def address(server: Any) -> str:
        return f"http://127.0.0.1:{server.server_port}"

    def _serve(self, answer: Any) -> http.server.ThreadingHTTPServer:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                status, content, headers = answer(
                    self.command, urlsplit(self.path).path, self.headers, body
                )
                data = json.dumps(content).encode() if content is not None else b""
                self.send_response(status)
                for name, value in {
                    "content-type": "application/json",
                    "content-length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = handle_one  # noqa: N815

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        return server

    def stop(self) -> None:
        for server in (self.server, self.issuer):
            server.shutdown()
            server.server_close()

    def _mcp(
        self, method: str, path: str, headers: Any, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if path == "/.well-known/oauth-protected-resource/mcp":
            return (
                200,
                {"resource": self.url, "authorization_servers": [self.address(self.issuer)]},
                {},
            )
        if path != "/mcp":
            self.elsewhere.append(path)
            return 404, None, {}
        self.presented.add(headers["authorization"])
        if headers["authorization"] not in {f"Bearer {token}" for token in self.valid}:
            return 401, None, {}
        if method != "POST":
            return 405, None, {}
        request = json.loads(body)
        if "id" not in request:
            return 202, None, {}
        match request["method"]:
            case "initialize":
                result: Any = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                }
            case "tools/list":
                result = {
                    "tools": [
                        {"name": name, "inputSchema": {"type": "object"}}
                        for name in ("quick", "slow")
                    ]
                }
            case "tools/call":
                if request["params"]["name"] == "slow":
                    self.slow_begun.set()
                    self.slow_may_end.wait(40)
                result = {"content": [{"type": "text", "text": "done"}]}
            case _:
                return (
                    200,
                    {
                        "jsonrpc": "2.0",
                        "id": request["id"],
                        "error": {"code": -32601, "message": "unknown"},
                    },
                    {},
                )
        return 200, {"jsonrpc": "2.0", "id": request["id"], "result": result}, {}

    def _authorize(
        self, method: str, path: str, headers: Any, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        base = self.address(self.issuer)
        match path:
            case "/.well-known/oauth-authorization-server":
                return (
                    200,
                    {
                        "issuer": base,
                        "authorization_endpoint": f"{base}/consent",
                        "token_endpoint": f"{base}/give",
                        "registration_endpoint": f"{base}/enrol",
                        "response_types_supported": ["code"],
                        "code_challenge_methods_supported": ["S256"],
                        "grant_types_supported": [
                            "authorization_code",
                            "refresh_token",
                            "client_credentials",
                        ],
                    },
                    {},
                )
            case "/enrol":
                return (
                    201,
                    {
                        **json.loads(body),
                        "client_id": "enrolled",
                        "token_endpoint_auth_method": "none",
                    },
                    {},
                )
            case "/give":
                self.grants.append(
                    {key: values[0] for key, values in parse_qs(body.decode()).items()}
                )
                self._tokens += 1
                token = f"token-{self._tokens}-of-{self.issuer.server_port}"
                self.valid = {token}
                return (
                    200,
                    {
                        "access_token": token,
                        "token_type": "Bearer",
                        "expires_in": self.lasts,
                        "refresh_token": "again",
                    },
                    {},
                )
            case _:
                return 404, None, {}


class Person:
    def __init__(self, thinks: float = 0.0) -> None:
        self.visits = 0
        self._thinks = thinks
        self._state = ""

    def redirect(self, url: str) -> None:
        assert url.partition("?")[0].endswith("/consent")
        self.visits += 1
        self._state = parse_qs(urlsplit(url).query)["state"][0]

    def callback(self) -> str:
        time.sleep(self._thinks)
        return f"{BACK}?code=yes&state={self._state}"


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.stop()


def user(person: Person, storage: dict[str, str]) -> OAuth:
    return OAuth(
        redirect=person.redirect, callback=person.callback, storage=storage, redirect_uri=BACK
    )


def connect(site: Site, auth: Any, **options: Any) -> MCPClient:
    return MCPClient({"site": {"url": site.url, "mode": "legacy"}}, auth={"site": auth}, **options)


@pytest.mark.slow
def test_a_user_consents_once_and_the_next_process_finds_the_token(site: Site) -> None:
    person, storage = Person(), {}
    for _ in range(2):
        with connect(site, user(person, storage)) as client:
            assert len(client.tools()) == 2
    assert person.visits == 1
    assert [grant["grant_type"] for grant in site.grants] == ["authorization_code"]
    assert all(key.startswith(site.url) for key in storage)


@pytest.mark.slow
def test_no_deadline_runs_while_the_user_consents(site: Site) -> None:
    with connect(site, user(Person(thinks=1.2), {}), timeout=0.8) as client:
        assert len(client.tools()) == 2


@pytest.mark.slow
def test_a_spent_token_is_renewed_where_it_came_from_also_by_the_next_process(site: Site) -> None:
    person, storage = Person(), {}
    site.lasts = 1
    with connect(site, user(person, storage)) as client:
        client.tools()
    time.sleep(1.1)
    with connect(site, user(person, storage)) as client:
        assert len(client.tools()) == 2
    assert person.visits == 1
    assert [grant["grant_type"] for grant in site.grants] == ["authorization_code", "refresh_token"]
    # the refresh token did not go to a guessed address on the MCP server
    assert site.elsewhere == []


@pytest.mark.slow
def test_one_storage_serves_two_servers_and_neither_sees_the_others_token(site: Site) -> None:
    other = Site()
    try:
        storage: dict[str, str] = {}
        people = Person(), Person()
        auth = {"a": user(people[0], storage), "b": user(people[1], storage)}
        with MCPClient({"a": {"url": site.url}, "b": {"url": other.url}}, auth=auth) as client:
            assert len(client.tools()) == 4
        with MCPClient({"a": {"url": site.url}, "b": {"url": other.url}}, auth=auth) as client:
            assert len(client.tools()) == 4
        assert (people[0].visits, people[1].visits) == (1, 1)
        assert site.presented - {None} == {f"Bearer {token}" for token in site.valid}
        assert other.presented - {None} == {f"Bearer {token}" for token in other.valid}
    finally:
        other.stop()


@pytest.mark.slow
def test_a_slow_call_does_not_hold_up_the_others_of_its_connection(site: Site) -> None:
    with connect(site, user(Person(), {})) as client:
        tools = {tool.name: tool for tool in client}
        slow = threading.Thread(target=lambda: tools["site.slow"].run({}))
        slow.start()
        assert site.slow_begun.wait(30)
        started = time.monotonic()
        assert tools["site.quick"].run({}).success
        assert time.monotonic() - started < 20
        site.slow_may_end.set()
        slow.join()


@pytest.mark.slow
def test_calls_whose_token_was_revoked_ask_the_user_once_for_all(site: Site) -> None:
    person = Person()
    with connect(site, user(person, {})) as client:
        quick = {tool.name: tool for tool in client}["site.quick"]
        site.valid = set()
        results: list[bool] = []
        threads = [
            threading.Thread(target=lambda: results.append(quick.run({}).success)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 8
    assert person.visits == 2


def test_a_user_who_does_not_consent_is_an_authentication_error(site: Site) -> None:
    class Refuses(Person):
        def callback(self) -> str:
            return f"{BACK}?error=access_denied&state={self._state}"

    with connect(site, user(Refuses(), {})) as client, pytest.raises(ToolError) as caught:
        client.sources()[0].call("quick", {}, ToolContext())
    assert caught.value.error_type == "authentication"


@pytest.mark.slow
def test_a_secret_goes_to_the_issuer_it_was_given_for_and_to_no_other(site: Site) -> None:
    def machine(issuer: str) -> ClientCredentials:
        return ClientCredentials(
            client_id="me", client_secret="s3cret", issuer=issuer, storage={}, in_body=True
        )

    with connect(site, machine("https://issuer.example")) as client:
        assert client.tools() == []
        assert "s3cret" not in client.errors["site"]
    assert site.grants == []
    with connect(site, machine(site.address(site.issuer) + "/")) as client:
        assert len(client.tools()) == 2
    assert site.grants[0]["client_secret"] == "s3cret"


def test_a_wrong_auth_is_refused_by_name_and_none_shows_a_secret() -> None:
    with pytest.raises(ConfigurationError, match=r"'a'.*not a server with a url"):
        MCPClient({"a": {"command": "x"}}, auth={"a": user(Person(), {})})
    with pytest.raises(ConfigurationError, match="MCP server 'a': auth takes OAuth"):
        MCPClient({"a": {"url": "http://x"}}, auth={"a": "token"})
    with pytest.raises(ConfigurationError, match="either client_secret or private_key"):
        ClientCredentials(client_id="me", issuer="https://x", storage={})
    credentials = ClientCredentials(
        client_id="me", client_secret="s3cret", issuer="https://x", storage={}
    )
    assert "s3cret" not in repr(credentials)
