"""An agent's serial form as the server keeps it: which tools it names, and which of the server's
own keys it may ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"secret_[0-9]{1,6}")


# Where a secret goes to whom it is for. Anywhere else it would be shown: prompts and names are in
# the journal.
_FOR_SECRETS = frozenset(
    (
        "api_key",
        "args",
        "auth",
        "base_url",
        "env",
        "headers",
        "origins",
        "parameters",
        "proxy",
        "token",
        "url",
    )
)
_NAMES_ONE = re.compile(r"(?<!\$)\$\{secret_[0-9]+[:}]")


def check_secrets(secrets: Mapping[str, str], form: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for secrets that are not called secret_1, secret_2, ..., and for
    a form that has one where it would be shown."""
    for name in secrets:
        if not _SECRET.fullmatch(name):
            raise ConfigurationError(
                f"secrets takes the names secret_1, secret_2, ..., not {name[:80]!r}."
            )
    left: list[tuple[str, Any]] = [("agent", form)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            left += [
                (f"{place}.{key}", one)
                for key, one in cast("dict[str, Any]", value).items()
                if key not in _FOR_SECRETS
            ]
        elif isinstance(value, list):
            left += [
                (f"{place}[{index}]", one) for index, one in enumerate(cast("list[Any]", value))
            ]
        elif isinstance(value, str) and _NAMES_ONE.search(value):
            raise ConfigurationError(
                f"{place[:200]} names a secret where it would be shown. Secrets stand in"
                f" {', '.join(sorted(_FOR_SECRETS))} alone."
            )


def builtin_names(form: Mapping[str, Any]) -> list[str]:
    """The names of the tools that an agent's form has."""
    entries = _list(form.get("tools"), "builtin")
    names = [
        cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else entry
        for entry in entries
    ]
    return [name for name in names if isinstance(name, str)]


def others(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The forms of the agents that an agent's form has within it, at any depth."""
    found: list[dict[str, Any]] = []
    left: list[Mapping[str, Any]] = [form]
    while left:
        one = left.pop()
        for key in ("delegates", "handoffs"):
            members = one.get(key)
            inner = (
                [
                    cast("dict[str, Any]", member)
                    for member in cast("dict[str, Any]", members).values()
                    if isinstance(member, dict)
                ]
                if isinstance(members, dict)
                else []
            )
            found += inner
            left += inner
    return found


def names_of_others(form: Mapping[str, Any]) -> list[str]:
    """The names of the tools that these have and the agent itself does not."""
    own = set(builtin_names(form))
    return list(
        dict.fromkeys(
            [
                name
                for other in others(form)
                if "prompt" not in other
                for name in builtin_names(other)
                if name not in own
            ]
        )
    )


def with_tools(form: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The form with these tools in place of those it has; what it says of one that stays, stays."""
    given = form.get("tools")
    tools: dict[str, Any] = dict(cast("dict[str, Any]", given)) if isinstance(given, dict) else {}
    known = dict(zip(builtin_names(form), _list(tools, "builtin"), strict=False))
    tools.pop("builtin", None)
    theirs = names_of_others(form)
    names = [name for name in names if name not in theirs]
    if names:
        tools["builtin"] = [known.get(name, name) for name in names]
    return (
        {**form, "tools": tools}
        if tools
        else {key: value for key, value in form.items() if key != "tools"}
    )


def own_variables(
    form: dict[str, Any], variables: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The form of a tenant whom the server's keys are none of, and what its `${...}` may stand for.

    A key of the server's is given to its own provider alone: where the `api_key` of a model there
    names it and nothing could send it elsewhere. Whose it is, its name tells (`OPENAI_API_KEY`), or
    an entry `provider:NAME` beside it. It gets a name that nobody can guess, so that no prompt can
    quote it.
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
                found[key] = {
                    name: model(one) for name, one in cast("dict[str, Any]", members).items()
                }
            elif isinstance(members, list):
                found[key] = model(members)
        key = found.get("api_key")
        match = _VARIABLE.fullmatch(key) if isinstance(key, str) else None
        elsewhere = any(found.get(name) for name in ("base_url", "proxy", "headers", "use"))
        if (
            match is not None
            and match[1] in variables
            and not elsewhere
            and _may_have(found.get("name"), match[1], variables)
        ):
            name = f"server_{os.urandom(16).hex()}"
            known[name] = variables[match[1]]
            found["api_key"] = f"${{{name}}}"
        return found

    def agent(form: dict[str, Any]) -> dict[str, Any]:
        found = {
            **form,
            **{
                key: model(form[key])
                for key in ("model", "describe_images")
                if key in form and "prompt" not in form
            },
        }
        for key in ("delegates", "handoffs"):
            members = form.get(key)
            if isinstance(members, dict):
                given = cast("dict[str, Any]", members)
                found[key] = {
                    name: agent(cast("dict[str, Any]", one)) if isinstance(one, dict) else one
                    for name, one in given.items()
                }
        return found

    return {"model": None, **agent(form)}, known


def _may_have(model: Any, name: str, variables: Mapping[str, str]) -> bool:
    """Whether a model is of the provider that the key of this name is for, and asked for at the
    provider's own address on the network."""
    from holdfast.llm.address import locate
    from holdfast.llm.providers import is_local, listed

    try:
        at = locate(model, None) if isinstance(model, str) else None
    except ConfigurationError:
        return False
    if at is None or not at.provider:
        return False
    parts = urlsplit(at.base_url)
    if parts.scheme != "https" or is_local(
        parts.hostname or ""
    ):  # a local server's address is anybody's who runs a command here
        return False
    entry = listed(at.provider)
    return f"{at.provider}:{name}" in variables or (entry is not None and name in entry.env)


def _list(given: Any, key: str) -> list[Any]:
    found: Any = cast("dict[str, Any]", given).get(key) if isinstance(given, dict) else None
    return cast("list[Any]", found) if isinstance(found, list) else []
