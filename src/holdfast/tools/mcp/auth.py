"""How MCP servers over HTTP are told who we are: OAuth with a user (`OAuth`) and without one
(`ClientCredentials`).

The flows are the mcp package's own; here they get their handlers, and a storage that stays the
caller's.
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
from holdfast.tools.mcp.hooks import on_thread

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

Storage = MutableMapping[str, str]
AskPerson = Callable[[], contextlib.AbstractContextManager[None]]


class OAuth(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth 2.1 with a user's consent: authorization code and PKCE, discovery, registration,
    refresh, step-up.

    `redirect(url)` shows the user the address at which to consent; `callback()` waits until the
    browser was sent back, and returns the address that it was sent to (`redirect_uri` with its
    query). Both are called on a worker thread, and no deadline runs meanwhile. `storage` keeps
    tokens and registrations between processes, as text by the server's address: a dict, or a
    mapping of yours over a keyring or a file; it is never shown to another server. `client_id` (and
    `client_secret`) are those of a client that is registered already, with the authorization server
    `issuer`; `client_metadata_url` is the address of a client's metadata document, for servers that
    take one; else we register.
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
    """OAuth 2.1 between machines. `client_secret`, or a `private_key` (PEM) that signs an assertion
    with `algorithm`, goes to the authorization server `issuer` (its exact identifier) and nowhere
    else, wherever the MCP server points."""

    client_id: str
    issuer: str
    storage: Storage
    client_secret: str | None = None
    private_key: str | None = None
    algorithm: str = "RS256"
    scope: str | None = None
    in_body: bool = (
        False  # the secret as a form field (client_secret_post), not as Basic authentication
    )

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.private_key is None):
            raise ConfigurationError("ClientCredentials takes either client_secret or private_key.")

    def __repr__(self) -> str:
        return "ClientCredentials(...)"


def check_auth(name: str, auth: Any) -> None:
    """Raise `ConfigurationError` unless `auth` is one of the two above, or an `httpx2.Auth` of the
    caller's own."""
    if not isinstance(auth, OAuth | ClientCredentials) and not callable(
        getattr(auth, "async_auth_flow", None)
    ):
        raise ConfigurationError(
            f"MCP server {name!r}: auth takes OAuth(...), ClientCredentials(...) or an httpx2.Auth."
        )


def provider_of(url: str, auth: Any, asking: AskPerson) -> httpx2.Auth:
    """What httpx2 asks to authenticate the requests to `url`. `asking()` is entered while a person
    is waited for."""
    if isinstance(auth, OAuth):
        return _unlocked(_with_user(url, auth, asking))
    if isinstance(auth, ClientCredentials):
        return _unlocked(_without_user(url, auth))
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

    given = None
    if auth.client_id is not None:
        method = "none" if auth.client_secret is None else "client_secret_basic"
        given = OAuthClientInformationFull.model_validate(
            {
                "client_id": auth.client_id,
                "client_secret": auth.client_secret,
                "redirect_uris": [auth.redirect_uri],
                "token_endpoint_auth_method": method,
                "issuer": auth.issuer,
            }
        )
    storage = _Stored(url, auth.storage, given)
    metadata = OAuthClientMetadata.model_validate(
        {"redirect_uris": [auth.redirect_uri], "client_name": auth.client_name, "scope": auth.scope}
    )
    provider = OAuthClientProvider(
        url, metadata, storage, redirect, callback, auth.client_metadata_url
    )
    storage.provider = provider
    return provider


def _without_user(url: str, auth: ClientCredentials) -> OAuthClientProvider:
    from mcp.client.auth.extensions.client_credentials import (
        ClientCredentialsOAuthProvider,
        PrivateKeyJWTOAuthProvider,
        SignedJWTParameters,
    )

    storage = _Stored(url, auth.storage, None)
    if auth.private_key is not None:
        signed = SignedJWTParameters(
            issuer=auth.client_id,
            subject=auth.client_id,
            signing_key=auth.private_key,
            signing_algorithm=auth.algorithm,
        )
        provider: OAuthClientProvider = PrivateKeyJWTOAuthProvider(
            url,
            storage,
            auth.client_id,
            signed.create_assertion_provider(),
            auth.scope,
            auth.issuer,
        )
    else:
        method = "client_secret_post" if auth.in_body else "client_secret_basic"
        provider = ClientCredentialsOAuthProvider(
            url, storage, auth.client_id, auth.client_secret or "", method, auth.scope, auth.issuer
        )
    storage.provider = provider
    return provider


class _Stored:
    """The mcp package's token storage over the caller's mapping. Its keys begin with the server's
    address: no server sees another's."""

    def __init__(
        self, url: str, mapping: Storage, given: OAuthClientInformationFull | None
    ) -> None:
        self._url = url
        self._mapping = mapping
        self._given = given
        self.provider: OAuthClientProvider | None = None

    async def _read(self, what: str) -> Any:
        text = await on_thread(lambda: self._mapping.get(f"{self._url} {what}"))
        return None if text is None else json.loads(text)

    async def _write(self, what: str, value: Any) -> None:
        text = json.dumps(value)
        await on_thread(lambda: self._mapping.__setitem__(f"{self._url} {what}", text))

    async def get_tokens(self) -> OAuthToken | None:
        from mcp.shared.auth import OAuthMetadata, OAuthToken, ProtectedResourceMetadata

        found = await self._read("tokens")
        if found is None:
            return None
        # Where the tokens came from comes back with them: else a refresh after a restart goes to a
        # guessed address on the server itself.
        if self.provider is not None and found.get("server"):
            self.provider.context.oauth_metadata = OAuthMetadata.model_validate(found["server"])
            if found.get("resource"):
                self.provider.context.protected_resource_metadata = (
                    ProtectedResourceMetadata.model_validate(found["resource"])
                )
        token = OAuthToken.model_validate(found["token"])
        if found.get("expires") is not None and found["expires"] <= time.time():
            # spent: the provider refreshes before it asks, where it knows by whom
            token.access_token = ""
            if not found.get("server"):
                return None
        return token

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.provider.context if self.provider is not None else None
        server = context.oauth_metadata if context is not None else None
        resource = context.protected_resource_metadata if context is not None else None
        await self._write(
            "tokens",
            {
                "token": tokens.model_dump(mode="json", exclude_none=True),
                "expires": None if tokens.expires_in is None else time.time() + tokens.expires_in,
                "server": (
                    None if server is None else server.model_dump(mode="json", exclude_none=True)
                ),
                "resource": (
                    None
                    if resource is None
                    else resource.model_dump(mode="json", exclude_none=True)
                ),
            },
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        from mcp.shared.auth import OAuthClientInformationFull

        if self._given is not None:
            return self._given
        found = await self._read("client")
        return None if found is None else OAuthClientInformationFull.model_validate(found)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._write("client", client_info.model_dump(mode="json", exclude_none=True))


def _unlocked(provider: OAuthClientProvider) -> httpx2.Auth:
    """`provider`, but without its lock while a token is good: it would hold it until the server
    answers, so that one slow call holds up all the others of a connection."""
    import httpx2

    class Unlocked(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            context = provider.context
            refused: httpx2.Response | None = None
            token = (
                context.current_tokens.access_token
                if context.current_tokens is not None and context.is_token_valid()
                else None
            )
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
                refused = yield request
                if refused.status_code not in (401, 403):
                    return
            flow = provider.async_auth_flow(request)  # holds the lock from here to its end
            try:
                outgoing = await anext(flow)
                held = (
                    context.current_tokens.access_token
                    if context.current_tokens is not None
                    else None
                )
                if refused is not None and outgoing is request and held == token:
                    outgoing = await flow.asend(refused)  # what it would be told if it asked again
                while True:
                    outgoing = await flow.asend((yield outgoing))
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    return Unlocked()
