"""The configuration of A2A agents: addresses, credentials, timeouts, and trusted origins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.arguments import wrong
from holdfast.tools.service_client import check_service_id, read_entry, seconds

CARD_PATH = "/.well-known/agent-card.json"  # A2A 1.0, section 8.2
_PORTS = {"http": 80, "https": 443}


class RemoteAgent(msgspec.Struct, frozen=True):
    """The configuration of one agent. Its repr shows no secret."""

    url: str
    token: str | None = None
    headers: dict[str, str] = {}
    origins: list[str] = []
    timeout: float = 30.0
    call_timeout: float | None = 600.0
    lazy: bool = False

    @property
    def card_url(self) -> str:
        """The URL of the card: `url` if it names a JSON file, else the well-known path."""
        return self.url if self.url.endswith(".json") else self.url.rstrip("/") + CARD_PATH

    def credentials(self) -> dict[str, str]:
        """Return the headers that authenticate a request, for `trusted_origins` only."""
        bearer = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return self.headers | bearer

    def trusted_origins(self) -> set[str]:
        return {origin(self.url), *map(origin, self.origins)}

    def redact(self, text: str) -> str:
        """Return `text` without the secrets, in case an agent echoes them."""
        secrets = [self.token or "", *self.headers.values()]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) > 3 else text
        return text

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, as `https://host:443`; "" if it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else ""


def read_agents(config: Any, timeout: float, call_timeout: float | None) -> dict[str, RemoteAgent]:
    """Return the agents of a configuration by id. Raises `ConfigurationError`, which names the
    agent and the wrong key."""
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            "A2AClient: config takes a mapping of agent ids to agents, not"
            f" {type(config).__name__}."
        )
    defaults = {
        "timeout": seconds("A2AClient: timeout", timeout),
        "call_timeout": (
            None if call_timeout is None else seconds("A2AClient: call_timeout", call_timeout)
        ),
    }
    return {
        check_service_id("A2A agent", name): _read_agent(name, entry, defaults)
        for name, entry in cast("Mapping[Any, Any]", config).items()
    }


def _read_agent(name: str, entry: Any, defaults: dict[str, Any]) -> RemoteAgent:
    what = f"A2A agent {name!r}"
    if not isinstance(entry, Mapping) or "url" not in entry:
        raise ConfigurationError(
            f"{what} takes a mapping with url: the address of the agent, or of its card."
        )
    values = read_entry(what, cast("Mapping[Any, Any]", entry), RemoteAgent, defaults)
    seconds(f"{what}: timeout", values["timeout"])
    _check_address(what, values["url"])
    for one in values.get("origins", []):
        if not origin(one):
            raise wrong(f"{what}: origins", "addresses such as 'https://host:8443'", one)
    token, headers = values.get("token") or "", values.get("headers", {})
    secrets = [token, *headers, *headers.values()]
    if not all(text.isascii() and (text.isprintable() or not text) for text in secrets):
        raise ConfigurationError(
            f"{what}: token and headers take printable ASCII, without line breaks."
        )
    if token and any(key.lower() == "authorization" for key in headers):
        raise ConfigurationError(f"{what}: give token or an Authorization header, not both.")
    return RemoteAgent(**values)


def _check_address(what: str, url: str) -> None:
    parts = urlsplit(url)
    # These parts would appear in logs and errors.
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{what}: url takes no user, password, query or fragment; secrets go to token or"
            " headers."
        )
    if not origin(url):
        raise ConfigurationError(f"{what}: url takes an http:// or https:// address.")
