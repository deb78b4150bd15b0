"""An agent's serial form as the server keeps it: which tools it names, and which of the server's own keys it may ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"secret_[0-9]{1,6}")


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Raises `ConfigurationError` for secrets that are not called secret_1, secret_2, ..."""
    for name in secrets:
        if not _SECRET.fullmatch(name):
            raise ConfigurationError(f"secrets takes the names secret_1, secret_2, ..., not {name[:80]!r}.")


def builtin_names(form: Mapping[str, Any]) -> list[str]:
    """The names of the tools that an agent's form has."""
    entries = _list(form.get("tools"), "builtin")
    names = [cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else entry for entry in entries]
    return [name for name in names if isinstance(name, str)]


def with_tools(form: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The form with these tools in place of those it has; what it says of one that stays, stays."""
    given = form.get("tools")
    tools: dict[str, Any] = dict(cast("dict[str, Any]", given)) if isinstance(given, dict) else {}
    known = dict(zip(builtin_names(form), _list(tools, "builtin"), strict=False))
    tools.pop("builtin", None)
    if names:
        tools["builtin"] = [known.get(name, name) for name in names]
    return {**form, "tools": tools} if tools else {key: value for key, value in form.items() if key != "tools"}


def own_variables(form: dict[str, Any], variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The form of a tenant whom the server's keys are none of, and what its `${...}` may stand for.

    A key of the server's is given to a model's own provider alone: where a model's `api_key` names it and neither its `base_url` nor its
    `proxy` could send it elsewhere. It gets a name that nobody can guess, so that no prompt can quote it.
    """
    known: dict[str, str] = {}

    def model(given: Any) -> Any:
        if isinstance(given, list):
            return [model(one) for one in cast("list[Any]", given)]
        if not isinstance(given, dict):
            return given
        found = dict(cast("dict[str, Any]", given))
        for key in ("fallback", "router"):
            members = found.get(key)
            if isinstance(members, dict):
                found[key] = {name: model(one) for name, one in cast("dict[str, Any]", members).items()}
            elif isinstance(members, list):
                found[key] = model(members)
        key = found.get("api_key")
        match = _VARIABLE.fullmatch(key) if isinstance(key, str) else None
        elsewhere = any(found.get(name) for name in ("base_url", "proxy", "headers", "use"))
        if match is not None and match[1] in variables and not elsewhere:
            name = f"server_{os.urandom(16).hex()}"
            known[name] = variables[match[1]]
            found["api_key"] = f"${{{name}}}"
        return found

    return {**form, "model": model(form.get("model"))}, known


def _list(given: Any, key: str) -> list[Any]:
    found: Any = cast("dict[str, Any]", given).get(key) if isinstance(given, dict) else None
    return cast("list[Any]", found) if isinstance(found, list) else []
