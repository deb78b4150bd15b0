"""`ServerModels`: the named models of an agent server, and the tenant's own models and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.remote.workspace import RemoteWorkspace


class ListedModel(msgspec.Struct, frozen=True, rename="camel"):
    """A model that agents may name on a server.

    Attributes:
        name: The name for `NamedModel`.
        owner: `server` for a model of the operator, `tenant` for one of the tenant's own.
        model: The model's name at its provider.
        key: True if the server has a key for it.
        context_window: In tokens, if it is known.
        input_price: In US dollars per million tokens, if it is known.
        output_price: The same.
    """

    name: str
    owner: str
    model: str
    key: bool
    context_window: int | None = None
    input_price: float | None = None
    output_price: float | None = None


class _Models(msgspec.Struct):
    models: list[ListedModel]


class _Secrets(msgspec.Struct):
    secrets: dict[str, str]


class ServerModels:
    """The named models that agents may use on the server of `workspace`. Thread-safe.

    Models and secrets that are set belong to the key's tenant. The server keeps them encrypted and
    returns no value. Changes take effect when a conversation is opened next. The methods raise the
    server's error, or `StoreError` if it cannot be reached.
    """

    def __init__(self, workspace: RemoteWorkspace) -> None:
        self._link = workspace.link

    def list(self) -> list[ListedModel]:
        """Return the operator's models and the tenant's own, by name."""
        decode = msgspec.json.Decoder(_Models).decode
        return self._link.read(decode, "GET", "/api/models").models

    def set(self, name: str, model: str | Mapping[str, Any]) -> None:
        """Keep a model under a name, in the form of `model` in an agent's file. Its key may be
        `${NAME}` of a secret. Raises `ConfigurationError`."""
        self._link.request("PUT", f"/api/models/{quote(name, safe='')}", {"model": model})

    def remove(self, name: str) -> None:
        """Remove a model of the tenant's own. Raises `NotFound`."""
        self._link.request("DELETE", f"/api/models/{quote(name, safe='')}")

    def secrets(self) -> dict[str, str]:
        """Return the names and descriptions of the tenant's secrets."""
        decode = msgspec.json.Decoder(_Secrets).decode
        return self._link.read(decode, "GET", "/api/secrets").secrets

    def set_secret(self, name: str, value: str, description: str = "") -> None:
        """Keep a secret of at least 8 characters, to which agents and models of the tenant refer as
        `${NAME}` in fields such as `api_key`. Raises `ConfigurationError`."""
        body = {"value": value, "description": description}
        self._link.request("PUT", f"/api/secrets/{quote(name, safe='')}", body)

    def remove_secret(self, name: str) -> None:
        """Remove a secret. Raises `NotFound`."""
        self._link.request("DELETE", f"/api/secrets/{quote(name, safe='')}")
