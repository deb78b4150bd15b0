"""The models and secrets that agents of clients may name: the operator's models, and each tenant's
own models and secrets, which are kept sealed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, cast

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.model_files import NAME_PATTERN
from holdfast.agent.serial_form import form_of
from holdfast.errors import ConfigurationError, NotFound, TooMany
from holdfast.llm.info import ModelInfo, model_info
from holdfast.llm.model import Model
from holdfast.server import forms
from holdfast.server.records import Records
from holdfast.server.shapes import ModelItem, SecretValue
from holdfast.tools.document import did_you_mean
from holdfast.tools.secrets import Secret, Secrets

# An older server ignores this table.
_TABLES = """
CREATE TABLE IF NOT EXISTS named_parts (tenant TEXT NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, sealed BLOB NOT NULL, changed TEXT NOT NULL,
    PRIMARY KEY(tenant, kind, name)) WITHOUT ROWID;
"""
_LOCK = "named parts"
# Names of variables that requests and this module give themselves.
_RESERVED = re.compile(r"(?:secret|named|server)_.*")

Kind = Literal["model", "secret"]


class OfferedModel(msgspec.Struct, frozen=True):
    """A model of the operator: its form as in an agent, and the values of its `${secret_N}`."""

    form: Any
    secrets: dict[str, str]

    def __repr__(self) -> str:
        return "OfferedModel()"


def offer(name: str, model: Model) -> OfferedModel:
    """Return a model, ready to be offered under a name. Raises `ConfigurationError` for a part that
    has no serial form."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(
            f"The name of a model takes letters, digits and ._-, not {name!r}."
        )
    form = form_of(Agent(model))
    return OfferedModel(form.mapping["model"], form.secrets)


class NamedParts:
    """The named models of a server and the named parts of its tenants. A tenant's own model wins
    over the operator's of the same name. Thread-safe; blocking.

    Args:
        offered: The operator's models by name, for all tenants.
        most: The largest number of models, and of secrets, of one tenant.
        variables: The operator's variables, of which some hold keys of providers.
    """

    def __init__(
        self,
        records: Records,
        offered: Mapping[str, OfferedModel],
        most: int,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._records = records
        self._variables = variables
        self._offered = dict(offered)
        self._most = most
        records.create_tables(_TABLES)

    # --- use ---

    def resolve(self, tenant: str, form: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return an agent's form with its named models, and the values of the added variables.
        Their names are random, so that no prompt can quote them. Secrets of the tenant are used
        only in fields that are not shown. Raises `ConfigurationError`."""
        values: dict[str, str] = {}

        def variable(value: str) -> str:
            name = f"named_{os.urandom(16).hex()}"
            values[name] = value
            return f"${{{name}}}"

        def resolve_model(model: dict[str, Any]) -> Any:
            name = model.get("named")
            if not isinstance(name, str):
                return model
            own = self._find(tenant, "model", name)
            if own is not None:
                return msgspec.json.decode(own)
            offered = self._offered.get(name)
            if offered is None:
                names = [item.name for item in self.models(tenant)]
                raise ConfigurationError(
                    f"agent: this server has no model {name!r}.{did_you_mean(name, names)} It has:"
                    f" {', '.join(names) or 'none'}."
                )
            secrets = {key: variable(value) for key, value in offered.secrets.items()}
            return forms.with_variables(offered.form, secrets.get)

        def secret(name: str) -> str | None:
            if _RESERVED.fullmatch(name):
                return None
            data = self._find(tenant, "secret", name)
            if data is None:
                return None
            return variable(msgspec.json.decode(data, type=SecretValue).value)

        form = forms.with_models(form, resolve_model)
        return forms.with_variables(form, secret, hidden=True), values

    def key_for(self, tenant: str, model: str) -> str:
        """Return the name of the variable with a key of a model's provider: the tenant's secret,
        else the operator's variable, else ""."""
        own = forms.provider_variables(model) & set(self._names(tenant, "secret"))
        return min(own, default="") or forms.server_key(model, self._variables)

    # --- models ---

    def models(self, tenant: str) -> list[ModelItem]:
        """Return the models that a tenant may name, by name."""
        items = {name: _item(name, "server", one.form) for name, one in self._offered.items()}
        secrets = set(self._names(tenant, "secret"))
        for name in self._names(tenant, "model"):
            own = self._find(tenant, "model", name)
            if own is not None:  # otherwise it was removed meanwhile
                items[name] = _item(name, "tenant", msgspec.json.decode(own), secrets)
        return [items[name] for name in sorted(items)]

    def set_model(self, tenant: str, name: str, form: Any) -> None:
        """Keep a tenant's model under a name, in place of an earlier one. Raises `TooMany`."""
        self._put(tenant, "model", name, msgspec.json.encode(form))

    def remove_model(self, tenant: str, name: str) -> None:
        """Remove a tenant's model. Raises `NotFound`, also for a model of the operator."""
        self._remove(tenant, "model", name)

    # --- secrets ---

    def secrets(self, tenant: str) -> dict[str, str]:
        """Return the names and descriptions of a tenant's secrets."""
        descriptions: dict[str, str] = {}
        for name in self._names(tenant, "secret"):
            data = self._find(tenant, "secret", name)
            if data is not None:
                descriptions[name] = msgspec.json.decode(data, type=SecretValue).description
        return descriptions

    def set_secret(self, tenant: str, name: str, secret: SecretValue) -> None:
        """Keep a tenant's secret under a name, in place of an earlier one. Raises `TooMany`, and
        `ConfigurationError` for a value of under 8 characters or a reserved name."""
        if _RESERVED.fullmatch(name):
            raise ConfigurationError(
                f"The name of a secret does not begin with secret_, named_ or server_: {name!r}."
            )
        Secrets({name: Secret(secret.value, secret.description)})  # checks name and value
        self._put(tenant, "secret", name, msgspec.json.encode(secret))

    def remove_secret(self, tenant: str, name: str) -> None:
        """Remove a tenant's secret. Raises `NotFound`."""
        self._remove(tenant, "secret", name)

    # --- rows ---

    def _names(self, tenant: str, kind: Kind) -> list[str]:
        query = "SELECT name FROM named_parts WHERE tenant = ? AND kind = ? ORDER BY name"
        return [name for (name,) in self._records.rows(query, tenant, kind)]

    def _find(self, tenant: str, kind: Kind, name: str) -> bytes | None:
        query = "SELECT sealed FROM named_parts WHERE tenant = ? AND kind = ? AND name = ?"
        row = self._records.row(query, tenant, kind, name)
        about = _about(tenant, kind, name)
        return None if row is None else self._records.seal.open(bytes(row[0]), about)

    def _put(self, tenant: str, kind: Kind, name: str, data: bytes) -> None:
        sealed = self._records.seal.seal(data, _about(tenant, kind, name))
        with self._records.writing(lock=_LOCK) as db:
            query = "SELECT count(*) FROM named_parts WHERE tenant = ? AND kind = ? AND name <> ?"
            count = db.execute(query, (tenant, kind, name)).fetchone()[0]
            if count >= self._most:
                raise TooMany(
                    f"Tenant {tenant!r} has {count} {kind}s, which is this server's limit.", "named"
                )
            statement = (
                "INSERT INTO named_parts VALUES (?, ?, ?, ?, ?) ON CONFLICT(tenant, kind, name) DO"
                " UPDATE SET sealed = excluded.sealed, changed = excluded.changed"
            )
            now = datetime.now(UTC).isoformat()
            db.execute(statement, (tenant, kind, name, sealed, now))

    def _remove(self, tenant: str, kind: Kind, name: str) -> None:
        statement = "DELETE FROM named_parts WHERE tenant = ? AND kind = ? AND name = ?"
        if not self._records.run(statement, tenant, kind, name):
            raise NotFound(f"This tenant has no {kind} {name!r} of its own.", kind, name)


def _about(tenant: str, kind: Kind, name: str) -> str:
    """Return the text that binds a seal to its row."""
    return f"named {kind} {tenant}/{name}"


def _item(
    name: str, owner: Literal["server", "tenant"], form: Any, secrets: set[str] | None = None
) -> ModelItem:
    """Return a model's entry in the list of models. `secrets` are the names that the model may
    refer to."""
    members = list(_members(form))
    model = members[0][0] if len(members) == 1 else f"{_composite(form)} of {len(members)}"
    infos = [_info(name, url) for name, url, _ in members]
    windows = [info.context_window for info in infos if info and info.context_window]
    info = infos[0] if len(infos) == 1 else None
    settings = cast("dict[str, Any]", form) if isinstance(form, dict) else {}
    prices: dict[str, Any] = settings.get("prices") or {}
    # A price may be a variable.
    known_prices = {kind: one for kind, one in prices.items() if isinstance(one, int | float)}
    keys = [_has_key(key, secrets) for _, _, key in members]
    return ModelItem(
        name=name,
        owner=owner,
        model=model,
        key=bool(keys) and all(keys),
        context_window=min(windows) if windows and len(windows) == len(members) else None,
        input_price=known_prices.get("input", info and info.input_price),
        output_price=known_prices.get("output", info and info.output_price),
    )


def _info(name: str, url: str) -> ModelInfo | None:
    try:
        return model_info(name, "", url)
    except ValueError:  # an address with variables need not be one
        return None


def _members(form: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, address and key of each model with a name in a form."""
    if isinstance(form, str):
        yield form, "", None
    elif isinstance(form, list):
        for one in cast("list[Any]", form):
            yield from _members(one)
    elif isinstance(form, dict):
        mapping = cast("dict[str, Any]", form)
        if isinstance(mapping.get("name"), str):
            key = mapping.get("api_key") or mapping.get("headers")
            yield mapping["name"], str(mapping.get("base_url") or ""), key
        elif "use" in mapping:
            yield str(mapping["use"]), "", None
        for several in (mapping.get("fallback"), mapping.get("router")):
            members: Any = several
            yield from _members(list(members.values()) if isinstance(several, dict) else members)


def _composite(form: Any) -> str:
    return "router" if isinstance(form, dict) and "router" in form else "fallback"


def _has_key(key: Any, secrets: set[str] | None) -> bool:
    if not key or secrets is None or not isinstance(key, str):
        return bool(key)
    names = forms.variables_in(key)
    return not names or all(name in secrets for name in names)
