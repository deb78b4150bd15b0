"""Spellings of earlier systems, such as `TOOLS.MCP`, lists of `{server_id, config}`, `skills.user`
and `hooks: {pre, post}`.

Each is converted to the present spelling with a `DeprecationWarning` that names it. A setting
that has no meaning here is left out, also with a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from holdfast.errors import ConfigurationError
from holdfast.tools.config.keys import TOOLS
from holdfast.tools.document import Map, Seq, SourceLocation, did_you_mean
from holdfast.tools.mcp_spellings import SECTIONS as FOREIGN
from holdfast.tools.mcp_spellings import is_bare, normalize_entry, normalize_id, section_of, within

# A section's earlier names, in lower case -> its name now.
SECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("local_functions", "local", "functions"), "local_functions"),
    **dict.fromkeys(("mcp_servers", "mcp", "servers", "context_servers"), "mcp_servers"),
    **dict.fromkeys(("a2a_agents", "a2a"), "a2a_agents"),
    **dict.fromkeys(("builtin", "builtins", "builtin_tools"), "builtin"),
    "skills": "skills",
}
_MAX_SHOWN_CHARS = 200  # of the folders in a warning
# Keys of `skills` that list folders, in order of precedence.
_SKILL_SCOPES = ("project", "user", "custom_dirs", "builtin")
_FUNCTION_KEYS = {"function_name": "function", "func": "function", "module_path": "module"}
# The keys of an entry, by section: earlier name -> name now; "" for a key without a meaning.
_IGNORED_KEYS = {"category": "", "description": ""}
_KEYS: Mapping[str, Mapping[str, str]] = {
    "mcp_servers": {"transport": "type", "transport_type": "type", **_IGNORED_KEYS},
    "a2a_agents": {
        **dict.fromkeys(("address", "service_address", "base_url"), "url"),
        "auth_token": "token",
        **_IGNORED_KEYS,
    },
    "local_functions": _FUNCTION_KEYS,
    "builtin": _FUNCTION_KEYS,
}
# The keys of a list's entry that may hold its name, by section.
_IDS: Mapping[str, tuple[str, ...]] = {
    "mcp_servers": ("name", "id", "server_id"),
    "a2a_agents": ("name", "id", "agent_id"),
}


def warn(place: SourceLocation, old: str, new: str) -> None:
    """Warn that `old` is an earlier spelling, and name the present one."""
    _warn(f"{place}: {old} is an earlier spelling; write {new}.")


def warn_ignored(place: SourceLocation, what: str) -> None:
    """Warn that a setting has no effect."""
    _warn(f"{place}: ignored, because it has no meaning here: {what}.")


def _warn(text: str) -> None:
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]: the way to know one's caller
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__", "")).split(".", 1)[0] == "holdfast"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=level)


def servers_of_another_program(document: Any) -> Any:
    """Return the servers of the settings of another program, such as an editor, as a config; any
    other document as it is. The other settings are ignored with a warning."""
    if not isinstance(document, Map):
        return document
    place = document.place
    if is_bare(document):
        return Map(place, [("mcpServers", document, place)])
    foreign = tuple(
        key for key in FOREIGN if key != "mcp_servers" or place.source.endswith(".toml")
    )
    section = section_of(document, foreign)
    others = [key for key in document if key not in (section, "inputs", "$schema")]
    if section is None or any(_is_own(key, document[key]) for key in others):
        return document
    servers = within(section, document[section])
    if others:
        warn_ignored(place, f"{', '.join(others)} (the servers are in {section})")
    elif servers is document[section] and section in SECTIONS:
        return document
    return Map(place, [("mcpServers", servers, document.places[section])])


def _is_own(key: str, value: Any) -> bool:
    """Return True for a key of a tool config, and for one that seems to be misspelt."""
    if key.lower() == "tools":
        return isinstance(value, Map) and any(_is_own(*member) for member in value.items())
    names = {*TOOLS.keys, *SECTIONS} - {*FOREIGN, "$schema"}
    return bool(get_close_matches(key.lower(), names, 1, 0.8))


def modernize(document: Map) -> Map:
    """Return the document in the present spelling. Unknown keys stay, and the key table reports
    them.

    Raises `ConfigurationError` for a section that occurs in two spellings.
    """
    converted = Map(document.place)
    for key, value, place in _sections(document):
        name, contents, scope = key, value, key.lower().removeprefix("skills.")
        if key == "inputs" and "servers" in document:
            warn_ignored(place, "inputs, which VS Code asks its user for")
            continue
        if scope in _SKILL_SCOPES and scope != key.lower():  # skills.user: [...]
            name, contents = "skills", Map(place)
            contents.put(scope, value, place)
        elif key.lower() in SECTIONS and key != SECTIONS[key.lower()]:
            name = SECTIONS[key.lower()]
            warn(place, repr(key), repr(name))
        present = converted.get(name)
        if name == "skills" and isinstance(contents, Map) and isinstance(present, Map):
            for scope, folders in contents.items():
                present.put(scope, folders, contents.places[scope])
        elif name in converted:
            raise place.error(
                f"{name} occurs twice, in two spellings; the other is"
                f" {converted.places[name].path!r}."
            )
        else:
            converted.put(name, contents, place)
    for name in converted:
        converted[name] = _section(name, converted[name], converted.places[name])
    _move_functions(converted)
    return converted


def _move_functions(document: Map) -> None:
    """Move the entries of `builtin` that name a function of a module to `local_functions`."""
    builtin = document.get("builtin")
    items = builtin.members() if isinstance(builtin, Seq) else []
    moved = [item for item in items if isinstance(item[0], Map) and "module" in item[0]]
    if not moved:
        return
    place = document.places["builtin"]
    warn(place, "a function of a module in builtin", "the entry in 'local_functions'")
    functions = document.get("local_functions")
    present = functions.members() if isinstance(functions, Seq) else []
    document["builtin"] = Seq(place, [item for item in items if item not in moved])
    if functions is None or isinstance(functions, Seq):
        at = document.places.get("local_functions", place)
        document.put("local_functions", Seq(at, [*present, *moved]), at)


def _sections(document: Map) -> list[tuple[str, Any, SourceLocation]]:
    """Return the members of a document, or of its `TOOLS`, which may have others beside it."""
    members = document.members()
    for wrapper, value, place in members:
        if wrapper.lower() == "tools" and (value is None or isinstance(value, Map)):
            others = [member for member in members if member[0] != wrapper]
            if ignored := [key for key, *_ in others if key.lower() not in SECTIONS]:
                warn_ignored(document.place, f"{', '.join(ignored)} (the tools are in {wrapper})")
            else:
                warn(place, f"a section {wrapper!r} around everything", "its contents alone")
            inner = [] if value is None else value.members()
            return [*inner, *(member for member in others if member[0].lower() in SECTIONS)]
    return members


def _section(name: str, value: Any, place: SourceLocation) -> Any:
    if name == "skills":
        return _folders(value, place)
    if name == "hooks":
        return _hooks(value, place)
    if name in _IDS:
        if isinstance(value, Map) and len(value) == 1 and isinstance(value.get("mcpServers"), Map):
            warn(place, f"mcpServers within {name}", "its contents alone")
            value = value["mcpServers"]  # the usual JSON of other programs
        if isinstance(value, Seq):
            value = _by_id(name, value, place)
        if isinstance(value, Map):
            value = Map(place, [(id, _entry(name, one), at) for id, one, at in value.members()])
    if name in ("mcp_servers", "mcpServers") and isinstance(value, Map):
        return _servers(value)
    if name in ("local_functions", "builtin") and isinstance(value, Seq):
        return Seq(place, [(_entry(name, one), at) for one, at in value.members()])
    return value


def _servers(servers: Map) -> Map:
    """Convert the spellings of other programs in the entries of MCP servers."""
    converted = Map(servers.place)
    for id, entry, at in servers.members():
        name = normalize_id(id)
        if name != id:
            warn(at, repr(id), repr(name))
        if isinstance(entry, Map):
            try:
                present = normalize_entry(entry)
            except ConfigurationError as error:
                raise at.error(str(error)) from None
            for note in present.notes:
                _warn(f"{at}: {note}.")
            members: list[tuple[str, Any, SourceLocation]] = []
            for key, value, old in present.members:
                place = entry.places[old]
                if type(value) is list:  # cut from another one
                    warn(place, f"a list as {old!r}", f"{old!r} and {key!r}")
                    value = Seq(place, [(one, place) for one in cast("list[Any]", value)])
                elif key != old:
                    warn(place, repr(old), repr(key))
                members.append((key, value, place))
            entry = Map(entry.place, members)
            if present.disabled:
                continue
        if name in converted:
            raise at.error(f"there are two servers named {name!r}.")
        converted.put(name, entry, at)
    return converted


def _by_id(name: str, entries: Seq, place: SourceLocation) -> Map:
    """Convert a list of entries, each with its name inside or as its only key, to a mapping."""
    warn(place, f"a list of {name}", f"a mapping: '{name}: {{id: {{...}}}}'")
    converted = Map(place)
    for entry, at in entries.members():
        fields = entry if isinstance(entry, Map) else Map(at)
        key = next((key for key in _IDS[name] if isinstance(fields.get(key), str)), None)
        if key is not None:
            id, rest = fields[key], Map(fields.place, [m for m in fields.members() if m[0] != key])
        elif len(fields) == 1 and isinstance(one := next(iter(fields.values())), Map):
            id, rest, key = next(iter(fields)), one, next(iter(fields))
        else:
            raise at.error(
                "this entry of a list has no name; write a mapping of ids to entries"
                f" ('{name}: {{id: {{...}}}}')."
            )
        if id in converted:
            raise fields.places[key].error(f"there are two entries named {id!r}.")
        converted.put(id, rest, at)
    return converted


def _entry(section: str, entry: Any) -> Any:
    if not isinstance(entry, Map):
        return entry
    members = entry.members()
    if section in _IDS and isinstance(config := entry.get("config"), Map):
        warn(entry.places["config"], "'config' around the keys of a service", "the keys themselves")
        members = [member for member in members if member[0] != "config"] + config.members()
    converted = Map(entry.place)
    for key, value, place in members:
        new = _KEYS[section].get(key, key)
        if not new:
            warn_ignored(place, key)
            continue
        if new != key:
            warn(place, repr(key), repr(new))
        if new in converted or (new != key and new in entry):
            raise place.error(f"{new} occurs twice, in two spellings.")
        converted.put(new, _hooks(value, place) if new == "hooks" else value, place)
    has_name = _KEYS[section] is _FUNCTION_KEYS and {"module", "name"} <= converted.keys()
    if has_name and "function" not in converted:
        warn(entry.place, "a name for the function", "'function'")
        converted.put("function", converted["name"], converted.places["name"])
    return converted


def _hooks(value: Any, place: SourceLocation) -> Any:
    """Convert `{pre: [a.b.f], post: [a.b.g]}` to a list of hooks."""
    if not isinstance(value, Map) or not {"pre", "post"} & value.keys():
        return value
    converted = Seq(place)
    for key in value:
        if key not in ("pre", "post"):
            raise value.places[key].error(
                f"unknown key {key!r}.{did_you_mean(key, ('pre', 'post'))} Known here: pre, post."
            )
    # `after` hooks run from the last to the first, earlier systems ran `post` in its order.
    for key, side, order in (("pre", "before", 1), ("post", "after", -1)):
        functions = value.get(key)
        if functions is None:
            continue
        if not isinstance(functions, Seq):
            raise value.places[key].error("it takes a list of functions.")
        for target, at in functions.members()[::order]:
            if isinstance(target, str) and ":" not in target:
                module, _, name = target.rpartition(".")
                target = f"{module}:{name}"
            converted.put(Map(at, [(side, target, at)]), at)
    warn(place, "hooks with pre and post", "a list of hooks, each with before or after")
    return converted


def _folders(value: Any, place: SourceLocation) -> Any:
    """Convert skills by scope to a list in order of precedence."""
    if not isinstance(value, Map) or not all(scope in _SKILL_SCOPES for scope in value):
        return value
    converted = Seq(place)
    for scope in (scope for scope in _SKILL_SCOPES if value.get(scope) is not None):
        folders, at = value[scope], value.places[scope]
        if not isinstance(folders, Seq | str):
            raise at.error("it takes a list of folders.")
        members = folders.members() if isinstance(folders, Seq) else [(folders, at)]
        # `builtin` may list skills of the earlier system by name, instead of folders.
        names = [
            one for one, _ in members if isinstance(one, str) and not {"/", "\\", "."} & {*one}
        ]
        if scope == "builtin" and names:
            warn_ignored(at, f"the builtin skills {', '.join(names)} of an earlier system")
            members = [member for member in members if member[0] not in names]
        for folder, inner in members:
            converted.put(folder, inner)
    listing = ", ".join(repr(folder) if isinstance(folder, str) else "..." for folder in converted)
    if len(listing) > _MAX_SHOWN_CHARS:
        listing = "project folders..., user folders..."
    warn(
        place,
        " and ".join(f"skills.{scope}" for scope in _SKILL_SCOPES if scope in value)
        or "skills as a mapping",
        f"a list in order of precedence, 'skills: [{listing}]'",
    )
    return converted
