"""Reads an agent's serial form on the server: the tools that it names, and the server keys that
it may use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError
from holdfast.llm.address import locate
from holdfast.llm.providers import find_provider, is_local
from holdfast.tools.secrets import Secret

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# An escape, or a reference with or without a default.
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_SECRET = re.compile(r"secret_[0-9]{1,6}")
# Beside the agent's secrets: those of the conversation, their descriptions, and values that were
# replaced ("masked:NUMBER:NAME").
_OWN, _ABOUT, _MASKED = "env:", "about:", "masked:"
_MAX_MASKED = 100  # replaced values that are kept

# Fields in which a secret reaches only its recipient. Other fields are shown: prompts and names are
# in the journal.
_URLS = ("base_url", "origins", "proxy", "url")
_SECRET_FIELDS = frozenset(
    ("api_key", "args", "auth", "env", "headers", "parameters", "token", *_URLS)
)
_SECRET_REFERENCE = re.compile(r"(?<!\$)\$\{secret_[0-9]+[:}]")


def own_secrets(secrets: Mapping[str, str]) -> dict[str, Secret]:
    """Return the secrets of the conversation itself, which its commands and tools use."""
    return {
        name: Secret(value, secrets.get(_ABOUT + name, ""))
        for key, value in secrets.items()
        if (name := key.removeprefix(_OWN)) != key
    }


def masked_secrets(secrets: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names and values of the conversation's secrets that were replaced."""
    return [
        (key.split(":", 2)[2], value) for key, value in secrets.items() if key.startswith(_MASKED)
    ]


def agent_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the `${secret_N}` of the agent."""
    return {name: value for name, value in secrets.items() if ":" not in name}


def conversation_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a conversation's secrets that is not its agent's."""
    return {name: value for name, value in secrets.items() if ":" in name}


def with_own_secrets(secrets: Mapping[str, str], own: Mapping[str, Secret]) -> dict[str, str]:
    """Return the agent's secrets with those of the conversation, in one mapping. The values that
    they replace are kept, to be masked: the last 100."""
    merged = agent_secrets(secrets)
    values: dict[str, str] = {}
    for name, secret in own.items():
        assert isinstance(secret.value, str)
        values[name] = merged[_OWN + name] = secret.value
        if secret.description:
            merged[_ABOUT + name] = secret.description
    before = {name: str(secret.value) for name, secret in own_secrets(secrets).items()}
    replaced = dict.fromkeys((*masked_secrets(secrets), *before.items()))
    old = [pair for pair in replaced if values.get(pair[0]) != pair[1]][-_MAX_MASKED:]
    return merged | {f"{_MASKED}{number}:{name}": text for number, (name, text) in enumerate(old)}


def check_secrets(secrets: Mapping[str, str], form: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if a secret is not named secret_1, secret_2, ..., or if the form
    uses one in a field that is shown."""
    for name in secrets:
        if not _SECRET.fullmatch(name):
            raise ConfigurationError(
                f"secrets takes the names secret_1, secret_2, ..., not {name[:80]!r}."
            )
    remaining: list[tuple[str, Any]] = [("agent", form)]
    while remaining:
        place, value = remaining.pop()
        if isinstance(value, dict):
            remaining += [
                (f"{place}.{key}", one)
                for key, one in cast("dict[str, Any]", value).items()
                if key not in _SECRET_FIELDS
            ]
        elif isinstance(value, list):
            remaining += [
                (f"{place}[{index}]", one) for index, one in enumerate(cast("list[Any]", value))
            ]
        elif isinstance(value, str) and _SECRET_REFERENCE.search(value):
            raise ConfigurationError(
                f"{place[:200]} uses a secret in a field that is shown. Secrets are allowed only in"
                f" {', '.join(sorted(_SECRET_FIELDS))}."
            )


def builtin_names(form: Mapping[str, Any]) -> list[str]:
    entries = _list(form.get("tools"), "builtin")
    names = [
        cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else entry
        for entry in entries
    ]
    return [name for name in names if isinstance(name, str)]


def others(form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the forms of the agents nested in an agent's form, at any depth."""
    agents: list[dict[str, Any]] = []
    remaining: list[Mapping[str, Any]] = [form]
    while remaining:
        one = remaining.pop()
        for key in ("delegates", "handoffs"):
            members = one.get(key)
            listed = cast("dict[str, Any]", members) if isinstance(members, dict) else {}
            inner: list[dict[str, Any]] = [one for one in listed.values() if isinstance(one, dict)]
            agents += inner
            remaining += inner
    return agents


def names_of_others(form: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that nested agents have and the agent itself does not."""
    own = set(builtin_names(form))
    loaded = [other for other in others(form) if "prompt" not in other]
    names = dict.fromkeys(name for other in loaded for name in builtin_names(other))
    return [name for name in names if name not in own]


def with_tools(form: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the form with these tools in place of its own. A tool that stays keeps its options."""
    section = form.get("tools")
    tools: dict[str, Any] = (
        dict(cast("dict[str, Any]", section)) if isinstance(section, dict) else {}
    )
    entries = dict(zip(builtin_names(form), _list(tools, "builtin"), strict=False))
    tools.pop("builtin", None)
    theirs = names_of_others(form)
    if names := [name for name in names if name not in theirs]:
        tools["builtin"] = [entries.get(name, name) for name in names]
    rest = {key: value for key, value in form.items() if key != "tools"}
    return {**form, "tools": tools} if tools else rest


def own_variables(
    form: dict[str, Any], variables: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the form of a tenant that may not use the server's keys, and the values of its
    `${...}`.

    A key of the server is given only to its own provider. The `api_key` of a model there names the
    key, and no other field could send it to another address. The key's provider follows from its
    name (`OPENAI_API_KEY`) or from an entry `provider:NAME` beside it. The key gets a random
    variable name, so that no prompt can quote it.
    """
    own_values: dict[str, str] = {}

    def model(mapping: dict[str, Any]) -> Any:
        key = mapping.get("api_key")
        match = _VARIABLE.fullmatch(key) if isinstance(key, str) else None
        elsewhere = any(mapping.get(name) for name in ("base_url", "proxy", "headers", "use"))
        own = match[1] if match is not None and match[1] in variables and not elsewhere else ""
        if own and _may_have(mapping.get("name"), own, variables):
            name = f"server_{os.urandom(16).hex()}"
            own_values[name] = variables[own]
            return {**mapping, "api_key": f"${{{name}}}"}
        return mapping

    return {"model": None, **with_models(form, model)}, own_values


def with_models(form: Mapping[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return an agent's form with this change of each model that is a mapping: its own, those of
    its parts, and those of nested agents. Members of a composite are changed before it."""

    def model(value: Any) -> Any:
        if isinstance(value, list):
            return [model(one) for one in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        mapping = dict(cast("dict[str, Any]", value))
        for key in ("fallback", "router"):
            members = mapping.get(key)
            mapping |= {} if members is None else {key: _each(members, model)}
        return change(mapping)

    def part(value: Any) -> Any:
        """Return a condenser or a confirmation policy, which may have a model and consist of
        others."""
        if isinstance(value, list):
            return [part(one) for one in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        mapping = dict(cast("dict[str, Any]", value))
        if "name" in mapping or "judge" in mapping:
            mapping |= {"model": model(mapping["model"])} if "model" in mapping else {}
        for key in ("condensers", "otherwise", "strictest"):
            mapping |= {key: part(mapping[key])} if key in mapping else {}
        return mapping

    def hook(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        mapping = dict(cast("dict[str, Any]", value))
        for key, inner in (("model", model), ("agent", agent)):
            mapping |= {key: inner(mapping[key])} if key in mapping else {}
        return mapping

    def agent(value: Any) -> Any:
        form = dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
        if not form or "prompt" in form:  # a sub-agent has no model of its own
            return cast("Any", value)
        several = {"models": model, "hooks": hook, "delegates": agent, "handoffs": agent}
        for key in form:
            if key in ("model", "describe_images", "title"):
                form[key] = model(form[key])
            elif key in ("condenser", "confirm"):
                form[key] = part(form[key])
            elif key in several:
                form[key] = _each(form[key], several[key])
        return form

    return agent(form)


def check_unnamed(form: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if an agent's form names a model."""

    def check(model: dict[str, Any]) -> dict[str, Any]:
        if "named" in model:
            raise ConfigurationError("A named model cannot name another one.")
        return model

    with_models(form, check)


def _each(members: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(members, dict):
        mapping = cast("dict[str, Any]", members)
        return {name: change(one) for name, one in mapping.items()}
    if isinstance(members, list):
        return [change(one) for one in cast("list[Any]", members)]
    return members


def with_variables(form: Any, find: Callable[[str], str | None], *, hidden: bool = False) -> Any:
    """Return a form in which `find` replaced references to variables by others; None keeps one.
    `hidden`: only in fields that are not shown."""

    def text(match: re.Match[str]) -> str:
        return (match[1] and find(match[1])) or match[0]

    def walk(value: Any, changes: bool) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                key: walk(one, changes or key in _SECRET_FIELDS) for key, one in members.items()
            }
        if isinstance(value, list):
            return [walk(one, changes) for one in cast("list[Any]", value)]
        return _REFERENCE.sub(text, value) if changes and isinstance(value, str) else value

    return walk(form, not hidden)


def variables_in(text: str) -> list[str]:
    """Return the names of the variables that a text refers to."""
    return [match[1] for match in _REFERENCE.finditer(text) if match[1]]


def server_key(model: str, variables: Mapping[str, str]) -> str:
    """Return the name of the server's variable that holds a key of a model's provider, or ""."""
    names = (name for name in variables if ":" not in name)
    return next((name for name in names if _may_have(model, name, variables)), "")


def provider_variables(model: str) -> set[str]:
    """Return the usual names of the variables with a key of a model's provider."""
    try:
        entry = find_provider(locate(model, None).provider)
    except ConfigurationError:
        return set()
    return set() if entry is None else set(entry.env)


def _may_have(model: Any, name: str, variables: Mapping[str, str]) -> bool:
    """Return True if the variable `name` holds a key of the model's provider, and the model is
    reached at the provider's own network address."""
    try:
        at = locate(model, None) if isinstance(model, str) else None
    except ConfigurationError:
        return False
    if at is None or not at.provider:
        return False
    parts = urlsplit(at.base_url)
    # Anyone who can run a command on this machine can listen at a local address.
    if parts.scheme != "https" or is_local(parts.hostname or ""):
        return False
    entry = find_provider(at.provider)
    return f"{at.provider}:{name}" in variables or (entry is not None and name in entry.env)


def _list(value: Any, key: str) -> list[Any]:
    entries: Any = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return cast("list[Any]", entries) if isinstance(entries, list) else []
