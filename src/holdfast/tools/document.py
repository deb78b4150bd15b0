"""Documents from a YAML, JSON or TOML file or a mapping, as trees of plain values that know their
place.

YAML is read as the subset on which YAML 1.2 and JSON agree: `yes`, `on`, `0755`, `1:30` and
dates are strings. Keys are strings and unique. Tags and merge keys are refused, and aliases are
limited in size.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.errors import ConfigurationError
from holdfast.nesting import too_deep

_MAX_FILE_BYTES = 1024 * 1024  # PyYAML needs seconds for a file of this size
# Aliases count at each use: nine lines of YAML can expand to a billion values.
_MAX_VALUES = 50_000
_MAX_DEPTH = 60  # levels; a configuration needs a handful
_STRING = r'("(?:\\.|[^"\\\n])*"?)'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)")
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
_FRACTION = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})?(\.[0-9]{1,99})?([eE][-+]?[0-9]{1,3})?")
_QUOTED = "tag:yaml.org,2002:str"
_KNOWN_TAGS = ("collection", _QUOTED, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_WORDS = (
    dict.fromkeys(("null", "Null", "NULL", "~", ""))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)


class SourceLocation(NamedTuple):
    """The place of a value: file (or mapping), line (0: unknown) and path of keys."""

    source: str
    line: int = 0
    path: str = ""

    def at(self, key: str | int, line: int = 0) -> SourceLocation:
        """Return the place of a member."""
        if isinstance(key, int):
            path = f"{self.path}[{key}]"
        else:
            path = f"{self.path}.{key}" if self.path else key
        return SourceLocation(self.source, line or self.line, path)

    def error(self, message: str) -> ConfigurationError:
        """Return the error to raise for the value at this place."""
        return ConfigurationError(f"{self}: {message}")

    def __str__(self) -> str:
        parts = [self.source, f"line {self.line}" if self.line else "", self.path]
        return ", ".join(part for part in parts if part)


class Map(dict[str, Any]):
    """A mapping of a document. `places` holds the place of each member."""

    def __init__(
        self, place: SourceLocation, members: Iterable[tuple[str, Any, SourceLocation]] = ()
    ) -> None:
        super().__init__()
        self.place = place
        self.places: dict[str, SourceLocation] = {}
        for key, value, at in members:
            self.put(key, value, at)

    def put(self, key: str, value: Any, place: SourceLocation) -> None:
        """Add a member with its place."""
        self[key] = value
        self.places[key] = place

    def members(self) -> list[tuple[str, Any, SourceLocation]]:
        """Return the keys, values and places."""
        return [(key, value, self.places[key]) for key, value in self.items()]


class Seq(list[Any]):
    """A list of a document. `places` holds the place of each member."""

    def __init__(
        self, place: SourceLocation, members: Iterable[tuple[Any, SourceLocation]] = ()
    ) -> None:
        super().__init__()
        self.place = place
        self.places: list[SourceLocation] = []
        for value, at in members:
            self.put(value, at)

    def put(self, value: Any, place: SourceLocation) -> None:
        """Add a member with its place."""
        self.append(value)
        self.places.append(place)

    def members(self) -> list[tuple[Any, SourceLocation]]:
        """Return the values and places."""
        return list(zip(self, self.places, strict=True))


def did_you_mean(name: str, candidates: Iterable[str], form: str = "{!r}") -> str:
    """Return the sentence that names the nearest known name, with a space before it, or ""."""
    from difflib import get_close_matches  # for mistakes alone

    names = list(candidates)
    near = [*get_close_matches(name, names, 1), *get_close_matches(name.lower(), names, 1)]
    return f" Did you mean {form.format(near[0])}?" if near else ""


def load(source: Any, what: str = "config") -> tuple[Any, Path | None]:
    """Return the document of a mapping or of a file (its path), and the folder of the file. Raises
    `ConfigurationError`."""
    if isinstance(source, Mapping):
        return _tree(source, SourceLocation(what)), None
    if not isinstance(source, str | os.PathLike):
        raise ConfigurationError(
            f"{what} takes a mapping or the path of a YAML, JSON or TOML file, not"
            f" {type(source).__name__}."
        )
    path = Path(cast("str | os.PathLike[str]", source))
    place = SourceLocation(str(path))
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise place.error(
                f"the file is larger than {_MAX_FILE_BYTES // 1024} KB, which no {what} needs."
            )
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise place.error("the file is not UTF-8 text.") from None
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"{what} takes a mapping or the path of a file; {str(path)!r} cannot be read: {reason}."
        ) from None
    readers = {".json": read_json, ".jsonc": read_json, ".toml": read_toml}
    document = readers.get(path.suffix, read_yaml)(text, place)
    return (Map(place) if document is None else document), path.resolve().parent


# --- Python and JSON ---


def _tree(value: Any, place: SourceLocation) -> Any:
    """Copy Python values into a document tree. Later changes to the values do not reach it."""
    count = 0

    def copied(value: Any, place: SourceLocation, depth: int) -> Any:
        nonlocal count
        count += 1
        if depth > _MAX_DEPTH or count > _MAX_VALUES:
            raise place.error(
                f"it holds more than {_MAX_VALUES:,} values, or is nested more than"
                f" {_MAX_DEPTH} deep."
            )
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, os.PathLike):
            return os.fspath(cast("os.PathLike[str]", value))
        if isinstance(value, Mapping):
            result = Map(place)
            for key, member in cast("Mapping[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise place.error(f"a key must be a string, not {key!r}.")
                at = place.at(key)
                result.put(key, copied(member, at, depth + 1), at)
            return result
        if isinstance(value, list | tuple):
            members = [(one, place.at(i)) for i, one in enumerate(cast("list[Any]", value))]
            return Seq(place, [(copied(one, at, depth + 1), at) for one, at in members])
        raise place.error(
            f"it holds a {type(value).__name__}; a config holds strings, numbers, true, false,"
            " null, lists and mappings."
        )

    return copied(value, place, 0)


def read_toml(text: str, place: SourceLocation) -> Any:
    """Return a TOML text as a tree. Raises `ConfigurationError`."""
    import tomllib  # few configs are TOML

    try:
        return _tree(tomllib.loads(text), place)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"it is not TOML: {error}.") from None


def _without_comments(text: str) -> str:
    """Return a JSON text without comments and trailing commas, which editors' settings have. Its
    lines stay. Both patterns take linear time."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", text)


def read_json(text: str, place: SourceLocation) -> Any:
    """Return a JSON text as a tree. Comments and trailing commas may be in it. Raises
    `ConfigurationError`, with the line of a syntax error."""

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise place.error(f"the key {key!r} is there twice.")
            members[key] = value
        return members

    def refuse_constant(text: str) -> Any:
        raise place.error(f"{text} is not JSON.")

    if too_deep(text, _MAX_DEPTH):
        raise place.error(f"it is nested more than {_MAX_DEPTH} deep.")
    try:
        try:
            values = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
        except json.JSONDecodeError:
            text = _without_comments(text)
            values = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
        return _tree(values, place)
    except json.JSONDecodeError as error:
        raise SourceLocation(place.source, error.lineno).error(
            f"it is not JSON: {error.msg}."
        ) from None
    except ConfigurationError:
        raise
    except (ValueError, RecursionError):  # a number of thousands of digits, or too many brackets
        raise place.error("it holds a number that is too long.") from None


# --- YAML ---


def plain(text: str) -> Any:
    """Return the value of an unquoted YAML scalar: null, true, false, a number in JSON's
    notation, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if text[-1:].isdigit() and _FRACTION.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def read_yaml(text: str, place: SourceLocation, *, texts: bool = False) -> Any:
    """Return a YAML text as a tree; with `texts` every scalar is the string as written. Raises
    `ConfigurationError` with the line."""
    try:
        node = _yaml_node(text, place)
        return None if node is None else _YamlTree(texts).build(node, place, 0)
    except RecursionError:
        raise place.error("it is nested too deep.") from None


def _yaml_node(text: str, place: SourceLocation) -> Any:
    """Return the root node of a YAML text; None for an empty text."""
    import yaml

    loader: Any = yaml.SafeLoader  # untyped

    class _Loader(loader):
        """A loader that composes nodes and resolves no tags. Plain scalars keep a tag apart from
        quoted ones."""

        def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
            if kind is not yaml.ScalarNode:
                return "collection"
            return "plain" if implicit[0] else _QUOTED

    try:
        reader: Any = _Loader(text)
        try:
            return reader.get_single_node()
        finally:
            reader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        line = mark.line + 1 if mark is not None else 0
        raise SourceLocation(place.source, line, place.path).error(
            f"it is not YAML: {problem}."
        ) from None


class _YamlTree:
    """Builds a tree from PyYAML's nodes, and limits its size."""

    def __init__(self, texts: bool) -> None:
        self._texts = texts
        self._count = 0

    def build(self, node: Any, place: SourceLocation, depth: int) -> Any:
        """Return the value of a node. Raises `ConfigurationError` with its line."""
        self._count += 1
        here = place._replace(line=node.start_mark.line + 1)
        if self._count > _MAX_VALUES or depth > _MAX_DEPTH:
            raise here.error(
                f"it holds more than {_MAX_VALUES:,} values (aliases count at each use), or is"
                f" nested more than {_MAX_DEPTH} deep."
            )
        if node.tag == "plain":
            return node.value if self._texts else plain(node.value)
        if node.tag not in _KNOWN_TAGS:
            raise here.error(f"the tag {node.tag!r} is not read here; write the value alone.")
        if node.id == "scalar":
            return node.value
        if node.id == "sequence":
            places = [place.at(i, one.start_mark.line + 1) for i, one in enumerate(node.value)]
            values = [self.build(*pair, depth + 1) for pair in zip(node.value, places, strict=True)]
            return Seq(here, zip(values, places, strict=True))
        result = Map(here)
        for key_node, member in node.value:
            at = place._replace(line=key_node.start_mark.line + 1)
            key = self.build(key_node, at, depth + 1)
            if not isinstance(key, str):
                scalar = key_node.id == "scalar"
                quoted = f"{key_node.value!r} in quotes" if scalar else "one"
                raise at.error(f"a key must be a string; write {quoted}.")
            if key == "<<" and key_node.tag == "plain":
                raise at.error("merge keys ('<<') are not read; write the keys themselves.")
            inner = place.at(key, at.line)
            if key in result:
                raise inner.error(
                    f"the key {key!r} is there twice, first on line {result.places[key].line}."
                )
            result.put(key, self.build(member, inner, depth + 1), inner)
        return result
