"""`mcp_login`: the login of a user at an MCP server, through a browser, in one call."""

from __future__ import annotations

import hmac
import http.server
import queue
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.mcp import MCPClient
from holdfast.tools.mcp.auth import OAuth, Storage

_PATH = "/callback"
_PAGE = "<!doctype html><meta charset=utf-8><title>{0}</title><p>{0} You can close this page.</p>"


def mcp_login(
    url: str,
    open_url: Callable[[str], object],
    storage: Storage,
    *,
    timeout: float = 300.0,
    port: int = 0,
    scope: str | None = None,
    client_name: str = "Holdfast",
    client_id: str | None = None,
    client_secret: str | None = None,
    issuer: str | None = None,
) -> OAuth:
    """Let a user log in at an MCP server, and return the `auth` for later connections:
    `MCPClient({"desk": {"url": url}}, auth={"desk": mcp_login(url, webbrowser.open, storage)})`.

    Equivalent to an `OAuth` that sends the browser back to this machine, and one connection with
    it. The connection performs discovery, registration, and authorization by code with PKCE and a
    `state` that the answer must carry. Tokens that `storage` has already are used without asking
    the user. The returned `OAuth` renews tokens without the user. When the user has to log in
    again, its connection fails and says so.

    Args:
        url: The server's URL.
        open_url: Shows the user the page on which to consent, such as `webbrowser.open`.
        storage: Keeps tokens and registrations, as with `OAuth`.
        timeout: Seconds to wait for the user.
        port: The port of this machine to which the browser is sent back; 0 takes a free one. A
            registered client (`client_id`) needs the port that it was registered with.
        scope: The scopes to request, separated by spaces.
        client_name: The name that a registration shows to the user.
        client_id: The id of a client that is registered already.
        client_secret: The secret of the registered client.
        issuer: The authorization server that knows `client_id`.

    Raises `ToolError` if the user declines, does not answer in time, or the server cannot be
    reached; `ConfigurationError` if the port is not free.
    """
    with _Callback(port, open_url, timeout) as callback:

        def oauth(redirect: Callable[[str], object], wait: Callable[[], str]) -> OAuth:
            return OAuth(
                redirect=redirect,
                callback=wait,
                storage=storage,
                redirect_uri=callback.address,
                client_name=client_name,
                client_id=client_id,
                client_secret=client_secret,
                issuer=issuer,
                scope=scope,
            )

        if client_id is None and f"{url} tokens" not in storage:
            # A registration is bound to the port of its time.
            storage.pop(f"{url} client", None)
        login = oauth(callback.redirect, callback.wait)
        with MCPClient({"server": {"url": url}}, auth={"server": login}) as client:
            client.tools()
            if problem := client.errors.get("server"):
                raise ToolError(f"The login at {url} failed: {problem}", "authentication")
        return oauth(_refuse, str)


def _refuse(address: str) -> None:
    raise ToolError(
        "The user has to log in again: call mcp_login.", "authentication", retryable=False
    )


class _Callback:
    """A web server on the loopback interface that waits for the browser of one login."""

    def __init__(self, port: int, open_url: Callable[[str], object], timeout: float) -> None:
        self._open_url = open_url
        self._timeout = timeout
        self._state = ""
        self._answers: queue.Queue[str] = queue.Queue()
        owner = self

        class _Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request

            def do_GET(self) -> None:
                owner._answer(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass  # the code of a login is in the address

        try:
            self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"mcp_login: port {port} is not free: {error.strerror}."
            ) from error
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def __enter__(self) -> _Callback:
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="holdfast-login", daemon=True
        ).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def redirect(self, address: str) -> None:
        """Show the user the page, and remember the state that belongs to it."""
        self._state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        self._open_url(address)

    def wait(self) -> str:
        """Return the address that the browser was sent back to. Raises `ToolError`."""
        try:
            back = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            raise ToolError(
                f"Nobody logged in within {self._timeout:g} s.", "timeout", retryable=False
            ) from None
        query = parse_qs(urlsplit(back).query)
        if "code" not in query:
            why = query.get("error_description") or query.get("error") or ["no code was sent"]
            raise ToolError(f"The login was declined: {why[0][:200]}", "authentication")
        return back

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        state = parse_qs(parts.query).get("state", [""])[0]
        # Any page in the browser can send it here; only the login knows its state.
        state_matches = bool(self._state) and hmac.compare_digest(
            state.encode(), self._state.encode()
        )
        fits = parts.path == _PATH and state_matches
        text = "The login is done." if fits else "This is not the answer of the login."
        data = _PAGE.format(text).encode()
        request.send_response(200 if fits else 400)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.send_header("Content-Length", str(len(data)))
        request.send_header("Referrer-Policy", "no-referrer")
        request.end_headers()
        request.wfile.write(data)
        if fits:
            self._state = ""  # once
            self._answers.put(f"{self.address}?{parts.query}")
