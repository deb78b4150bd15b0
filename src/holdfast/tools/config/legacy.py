"""Spellings of earlier systems (`TOOLS.MCP`, lists of `{name, url}`, `skills.user`). Each is
converted to the present spelling, with a warning that names it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any, cast

from holdfast.tools.document import Map, Place, Seq

# A section's earlier names, in lower case -> its name now.
SECTIONS: Mapping[str, str] = {
    "local_functions": "local_functions",
    "local": "local_functions",
    "functions": "local_functions",
    "mcp_servers": "mcp_servers",
    "mcp": "mcp_servers",
    "a2a_agents": "a2a_agents",
    "a2a": "a2a_agents",
    "builtin": "builtin",
    "builtins": "builtin",
    "builtin_tools": "builtin",
    "skills": "skills",
}
_MAX_SHOWN_CHARS = 200  # of the folders in a warning
_SCOPES = ("project", "user", "builtin")  # of skills, in order of precedence
# The keys of a list's entry that may hold its name, by section.
_IDS: Mapping[str, tuple[str, ...]] = {
    "mcp_servers": ("name", "id", "server_id"),
    "a2a_agents": ("name", "id", "agent_id"),
}
_KEYS: Mapping[str, Mapping[str, str]] = {
    "mcp_servers": {"transport": "type"},
    "a2a_agents": {"address": "url", "service_address": "url", "auth_token": "token"},
    "local_functions": {"function_name": "function", "func": "function", "module_path": "module"},
}


def warn(place: Place, old: str, new: str) -> None:
    """Warn that `old` is an earlier spelling, and name the present one."""
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]: the way to know one's caller
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__", "")).split(".", 1)[0] == "holdfast"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{place}: {old} is an earlier spelling; write {new}.", DeprecationWarning, stacklevel=level
    )


def modern(document: Map) -> Map:
    """Return the document in the present spelling. Unknown keys stay, and the key table reports
    them.

    Raises `ConfigurationError` for a section that occurs in two spellings.
    """
    document = _unwrapped(document)
    converted = Map(document.place)
    for key, value in document.items():
        place, name, contents = document.places[key], key, value
        scope = key.lower().removeprefix("skills.")
        if scope in _SCOPES and scope != key.lower():  # skills.user: [...]
            name, contents = "skills", Map(place)
            contents.put(scope, value, place)
        elif key.lower() in SECTIONS and key != SECTIONS[key.lower()]:
            name = SECTIONS[key.lower()]
            warn(place, repr(key), repr(name))
        if (
            name == "skills"
            and "skills" in converted
            and isinstance(contents, Map)
            and isinstance(converted["skills"], Map)
        ):
            for scope, folders in contents.items():
                converted["skills"].put(scope, folders, contents.places[scope])
            continue
        if name in converted:
            raise place.error(
                f"{name} occurs twice, in two spellings; the other is"
                f" {converted.places[name].path!r}."
            )
        converted.put(name, contents, place)
    for name in converted:
        converted[name] = _section(name, converted[name], converted.places[name])
    return converted


def _unwrapped(document: Map) -> Map:
    """Return the contents of `TOOLS:`, if the whole document is below that key."""
    if len(document) == 1:
        [(key, inner)] = document.items()
        if key.lower() == "tools" and isinstance(inner, Map):
            warn(document.places[key], f"a section {key!r} around everything", "its contents alone")
            return inner
    return document


def _section(name: str, value: Any, place: Place) -> Any:
    if name == "skills":
        return _folders(value, place)
    if name in _IDS:
        if isinstance(value, Map) and len(value) == 1 and isinstance(value.get("mcpServers"), Map):
            warn(place, f"mcpServers within {name}", "its contents alone")
            value = value["mcpServers"]  # the usual JSON of other programs
        if isinstance(value, Seq):
            value = _by_id(name, value, place)
        if isinstance(value, Map):
            for id in value:
                value[id] = _renamed(name, value[id])
    if name == "local_functions" and isinstance(value, Seq):
        for index, entry in enumerate(value):
            value[index] = _renamed(name, entry)
    return value


def _by_id(name: str, entries: Seq, place: Place) -> Map:
    """Convert a list of entries that contain their own names to a mapping."""
    warn(place, f"a list of {name}", f"a mapping: '{name}: {{id: {{...}}}}'")
    converted = Map(place)
    for entry, at in zip(entries, entries.places, strict=True):
        key = next(
            (
                key
                for key in _IDS[name]
                if isinstance(entry, Map) and isinstance(entry.get(key), str)
            ),
            None,
        )
        if key is None:
            raise at.error(
                f"this entry of a list has no name; write a mapping of ids to entries"
                f" ('{name}: {{id: {{...}}}}')."
            )
        entry = cast(Map, entry)
        id = entry[key]
        if id in converted:
            raise entry.places[key].error(f"there are two entries named {id!r}.")
        rest = Map(entry.place)
        for other, value in entry.items():
            if other != key:
                rest.put(other, value, entry.places[other])
        converted.put(id, rest, at)
    return converted


def _renamed(name: str, entry: Any) -> Any:
    """Return one entry with the present names of its keys."""
    if not isinstance(entry, Map):
        return entry
    converted = Map(entry.place)
    for key, value in entry.items():
        new = _KEYS[name].get(key, key)
        if new != key:
            warn(entry.places[key], repr(key), repr(new))
        if new in converted or (new != key and new in entry):
            raise entry.places[key].error(f"{new} occurs twice, in two spellings.")
        converted.put(new, value, entry.places[key])
    return converted


def _folders(value: Any, place: Place) -> Any:
    """Convert skills by scope to a list in order of precedence."""
    if not isinstance(value, Map) or not all(scope in _SCOPES for scope in value):
        return value
    converted = Seq(place)
    for scope in _SCOPES:
        folders = value.get(scope)
        if isinstance(folders, str):
            converted.put(folders, value.places[scope])
        elif isinstance(folders, Seq):
            for folder, at in zip(folders, folders.places, strict=True):
                converted.put(folder, at)
        elif folders is not None:
            raise value.places[scope].error("it takes a list of folders.")
    shown = ", ".join(repr(folder) if isinstance(folder, str) else "..." for folder in converted)
    if len(shown) > _MAX_SHOWN_CHARS:
        shown = "project folders..., user folders..."
    warn(
        place,
        " and ".join(f"skills.{scope}" for scope in _SCOPES if scope in value)
        or "skills as a mapping",
        f"a list in order of precedence, 'skills: [{shown}]'",
    )
    return converted
