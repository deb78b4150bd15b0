"""Authentication to MCP servers over HTTP: OAuth with a user (`OAuth`) and without
(`ClientCredentials`).

The mcp package implements the flows; this module, their handlers and a token storage that belongs
to the caller.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.mcp.server_requests import on_thread

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
    from pydantic import BaseModel

Storage = MutableMapping[str, str]
AskPerson = Callable[[], contextlib.AbstractContextManager[None]]


class OAuth(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth 2.1 with a user's consent: authorization code and PKCE, discovery, registration,
    refresh, step-up.

    `redirect` and `callback` run on a worker thread, and no deadline runs meanwhile.

    Args:
        redirect: A function that shows the user the URL at which to consent.
        callback: A function that waits until the browser is sent back, and returns the URL that
            it was sent to (`redirect_uri` with its query).
        storage: A mapping that keeps tokens and registrations between processes, as text: a
            dict, or your own mapping over a keyring or a file. Keys begin with the server's URL.
            No other server sees the values.
        redirect_uri: The URL that the authorization server sends the browser back to.
        client_name: The name that a registration shows to the user.
        client_metadata_url: The URL of a client metadata document, for servers that accept one.
        client_id: The id of a client that is registered already. Without it the client registers
            itself.
        client_secret: The secret of the registered client.
        issuer: The authorization server that knows `client_id`.
        scope: The scopes to request, separated by spaces.
    """

    redirect: Callable[[str], object]
    callback: Callable[[], str]
    storage: Storage
    redirect_uri: str
    client_name: str = "Holdfast"
    client_metadata_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    issuer: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return "OAuth(...)"


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth 2.1 between machines.

    The credential is `client_secret`, or `private_key` (PEM), which signs an assertion with
    `algorithm`. The credential goes only to the authorization server `issuer` (its exact
    identifier), even if the MCP server names another one.
    """

    client_id: str
    issuer: str
    storage: Storage
    client_secret: str | None = None
    private_key: str | None = None
    algorithm: str = "RS256"
    scope: str | None = None
    in_body: bool = False
    """True to send the secret as a form field (client_secret_post), not as Basic authentication."""

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.private_key is None):
            raise ConfigurationError("ClientCredentials takes either client_secret or private_key.")

    def __repr__(self) -> str:
        return "ClientCredentials(...)"


def check_auth(name: str, auth: Any) -> None:
    """Raise `ConfigurationError` unless `auth` is of one of the three kinds."""
    if not isinstance(auth, OAuth | ClientCredentials) and not callable(
        getattr(auth, "async_auth_flow", None)
    ):
        raise ConfigurationError(
            f"MCP server {name!r}: auth takes OAuth(...), ClientCredentials(...) or an httpx2.Auth."
        )


def provider_of(url: str, auth: Any, asking: AskPerson) -> httpx2.Auth:
    """Return the `httpx2.Auth` for `url`. `asking()` is entered while a person is asked."""
    if isinstance(auth, OAuth):
        return _without_lock(_with_user(url, auth, asking))
    if isinstance(auth, ClientCredentials):
        return _without_lock(_without_user(url, auth))
    return auth


def _with_user(url: str, auth: OAuth, asking: AskPerson) -> OAuthClientProvider:
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

    async def redirect(address: str) -> None:
        with asking():
            await on_thread(lambda: auth.redirect(address))

    async def callback() -> AuthorizationCodeResult:
        with asking():
            back = await on_thread(auth.callback)
        query = {key: values[0] for key, values in parse_qs(urlsplit(back).query).items()}
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )

    registered = None
    if auth.client_id is not None:
        method = "none" if auth.client_secret is None else "client_secret_basic"
        registered = OAuthClientInformationFull.model_validate(
            {
                "client_id": auth.client_id,
                "client_secret": auth.client_secret,
                "redirect_uris": [auth.redirect_uri],
                "token_endpoint_auth_method": method,
                "issuer": auth.issuer,
            }
        )
    storage = _Stored(url, auth.storage, registered)
    metadata = OAuthClientMetadata.model_validate(
        {"redirect_uris": [auth.redirect_uri], "client_name": auth.client_name, "scope": auth.scope}
    )
    document = auth.client_metadata_url
    storage.provider = OAuthClientProvider(url, metadata, storage, redirect, callback, document)
    return storage.provider


def _without_user(url: str, auth: ClientCredentials) -> OAuthClientProvider:
    from mcp.client.auth.extensions import client_credentials as flows

    storage = _Stored(url, auth.storage, None)
    if auth.private_key is not None:
        signed = flows.SignedJWTParameters(
            issuer=auth.client_id,
            subject=auth.client_id,
            signing_key=auth.private_key,
            signing_algorithm=auth.algorithm,
        )
        proof = signed.create_assertion_provider()
        storage.provider = flows.PrivateKeyJWTOAuthProvider(
            url, storage, auth.client_id, proof, auth.scope, auth.issuer
        )
    else:
        method = "client_secret_post" if auth.in_body else "client_secret_basic"
        secret = auth.client_secret or ""
        storage.provider = flows.ClientCredentialsOAuthProvider(
            url, storage, auth.client_id, secret, method, auth.scope, auth.issuer
        )
    return storage.provider


class _Stored:
    """The token storage over the caller's mapping, whose keys begin with the server's URL."""

    def __init__(
        self, url: str, mapping: Storage, registered: OAuthClientInformationFull | None
    ) -> None:
        self._url = url
        self._mapping = mapping
        self._registered = registered
        self.provider: OAuthClientProvider | None = None

    async def _read(self, what: str) -> Any:
        text = await on_thread(lambda: self._mapping.get(f"{self._url} {what}"))
        return None if text is None else json.loads(text)

    async def _write(self, what: str, value: Any) -> None:
        text = json.dumps(value)
        await on_thread(lambda: self._mapping.__setitem__(f"{self._url} {what}", text))

    async def get_tokens(self) -> OAuthToken | None:
        from mcp.shared.auth import OAuthMetadata, OAuthToken, ProtectedResourceMetadata

        stored = await self._read("tokens")
        if stored is None:
            return None
        server, resource = stored.get("server"), stored.get("resource")
        # Restore the authorization server along with the tokens. Otherwise a refresh after a
        # restart goes to a guessed URL on the MCP server itself.
        if self.provider is not None and server:
            context = self.provider.context
            context.oauth_metadata = OAuthMetadata.model_validate(server)
            if resource:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(
                    resource
                )
        token = OAuthToken.model_validate(stored["token"])
        if stored.get("expires") is not None and stored["expires"] <= time.time():
            if not server:
                return None
            token.access_token = ""  # expired: the provider refreshes before the request
        return token

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.provider.context if self.provider is not None else None
        seconds = tokens.expires_in
        stored = {
            "token": _dump(tokens),
            "expires": None if seconds is None else time.time() + seconds,
            "server": _dump(context and context.oauth_metadata),
            "resource": _dump(context and context.protected_resource_metadata),
        }
        await self._write("tokens", stored)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        from mcp.shared.auth import OAuthClientInformationFull

        if self._registered is not None:
            return self._registered
        stored = await self._read("client")
        return None if stored is None else OAuthClientInformationFull.model_validate(stored)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._write("client", _dump(client_info))


def _dump(model: BaseModel | None) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _without_lock(provider: OAuthClientProvider) -> httpx2.Auth:
    """Return `provider` without its lock while a token is valid. The provider would hold the
    lock until the server answers, so one slow call would block all others of the connection."""
    import httpx2

    class Unlocked(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            context = provider.context

            def access_token() -> str | None:
                tokens = context.current_tokens
                return None if tokens is None else tokens.access_token

            refused: httpx2.Response | None = None
            token = access_token() if context.is_token_valid() else None
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
                refused = yield request
                if refused.status_code not in (401, 403):
                    return
            flow = provider.async_auth_flow(request)  # holds the lock until the flow ends
            try:
                outgoing = await anext(flow)
                if refused is not None and outgoing is request and access_token() == token:
                    # Reuse the refusal: sending the same request again would give the same answer.
                    outgoing = await flow.asend(refused)
                while True:
                    outgoing = await flow.asend((yield outgoing))
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    return Unlocked()
