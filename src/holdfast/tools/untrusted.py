"""Untrusted JSON Schemas: fully checked before the first use, and applied in a bounded number of
steps.

A schema of 1 KB can require unbounded work: twenty levels of `allOf` with two references each
visit a million subschemas, and a pattern can backtrack for years. `inspect_schema` refuses the
first kind by counting. `Checker` runs the rest on a budget: patterns in linear time, sets in
place of quadratic comparisons, short messages in place of whole values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from reprlib import Repr
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urljoin

from holdfast.tools.patterns import Pattern, UnsupportedPattern

MAX_SCHEMA_NODES = 50_000  # JSON values; the largest known schema of a public server has 3,000
MAX_SCHEMA_DEPTH = 100  # JSON levels; each level of properties takes two
MAX_EXPANSION = 5_000  # subschemas applied to one value through `$ref`, `allOf` and the like

# One step is one keyword applied to one value, 4 to 11 microseconds.
_STEPS = 50_000
_STEPS_PER_NODE = 20
_MAX_STEPS = 500_000
_STEPS_PER_ERROR = 50  # an error takes 1 to 2 KB
_MAX_ERRORS = 1_000
_MAX_MATCH = 20_000_000  # states times characters: 0.3 s in which no other thread runs
_MATCH_PER_STEP = 250

_log = logging.getLogger("holdfast.tools")


class UnusableSchema(ValueError):
    """A schema that is malformed or would take too much work. The message begins with a verb:
    "has ...", "takes ..."."""


class TooMuchWork(Exception):
    """A value that could not be checked within the budget."""

    def __init__(self) -> None:
        super().__init__("checking this value takes too much work")


# --- the schema itself ---


class Inspected(NamedTuple):
    """The outcome of `inspect_schema`.

    `expansion` is the largest number of subschemas that one value is held against. `missing` are
    references whose target is not in the schema; nothing is fetched. `has_pattern_properties` is
    True if `patternProperties` occurs anywhere.
    """

    expansion: int
    missing: frozenset[str]
    has_pattern_properties: bool


_SCHEMA_KEYS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST_KEYS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP_KEYS = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)
_REFERENCE_KEYS = ("$ref", "$dynamicRef", "$recursiveRef")
# Applied to the value itself.
_CONDITIONAL_KEYS = ("not", "if", "then", "else", "dependentSchemas", "dependencies")
_SAME_VALUE = ("allOf", "anyOf", "oneOf", *_CONDITIONAL_KEYS)
_COUNT_KEYS = tuple(
    f"{bound}{what}"
    for bound in ("max", "min")
    for what in ("Contains", "Items", "Length", "Properties")
)
_TEXT_KEYS = ("$anchor", "$dynamicAnchor", "$id", "$ref", "$dynamicRef", "pattern")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


class _Place(NamedTuple):
    """A subschema with its path, and the base address (`$id`) of its resource."""

    schema: dict[str, Any]
    path: str
    base: str


def inspect_schema(schema: dict[str, Any]) -> Inspected:
    """Check a schema's form and count its expansion. Raises `UnusableSchema`."""
    _check_size(schema)
    return _Inspection(schema).run()


def _check_size(schema: Any) -> None:
    level: list[Any] = [schema]
    nodes = depth = 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if depth > MAX_SCHEMA_DEPTH:
            raise UnusableSchema(f"has more than {MAX_SCHEMA_DEPTH} levels")
        if nodes > MAX_SCHEMA_NODES:
            raise UnusableSchema(f"has more than {MAX_SCHEMA_NODES:,} values")
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += cast("dict[str, Any]", value).values()
            elif isinstance(value, list):
                inner += cast("list[Any]", value)
        level = inner


class _Inspection:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._resources: dict[str, dict[str, Any]] = {"": root}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._dynamic: dict[str, list[dict[str, Any]]] = {}
        self._places: dict[int, _Place] = {}
        self._missing: set[str] = set()
        self._patterned = False
        self._id_key = "id" if "draft-04" in str(root.get("$schema")) else "$id"

    def run(self) -> Inspected:
        self._walk(_Place(self._root, "", ""))
        visited = 0
        while visited < len(self._places):  # a reference may point to a subschema under no keyword
            places = list(self._places.values())[visited:]
            visited = len(self._places)
            for place in places:
                self._targets(place)
        counts: dict[int, int] = {}
        for place in self._places.values():
            self._count(place, counts)
        return Inspected(max(counts.values()), frozenset(self._missing), self._patterned)

    # every subschema, and its form

    def _walk(self, start: _Place) -> None:
        todo = [start]
        while todo:
            place = todo.pop()
            if id(place.schema) in self._places:
                continue
            place = self._named(place)
            self._places[id(place.schema)] = place
            _check_form(place)
            self._patterned = self._patterned or "patternProperties" in place.schema
            for key, _, inner in _inner(place.schema):
                todo.append(_Place(inner, f"{place.path}.{key}" if place.path else key, place.base))

    def _named(self, place: _Place) -> _Place:
        schema = place.schema
        name = schema.get(self._id_key)
        if isinstance(name, str) and not name.startswith("#"):
            place = place._replace(base=urljoin(place.base, name.partition("#")[0]))
            self._resources.setdefault(place.base, schema)
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(key)
            if isinstance(anchor, str):
                self._anchors.setdefault((place.base, anchor), schema)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(schema)
        if isinstance(name, str) and name.startswith("#"):  # drafts 4 to 7 name anchors so
            self._anchors.setdefault((place.base, name[1:]), schema)
        return place

    # references

    def _targets(self, place: _Place) -> list[dict[str, Any]]:
        targets: list[dict[str, Any]] = []
        for key in _REFERENCE_KEYS:
            reference: Any = place.schema.get(key)
            if not isinstance(reference, str):
                continue
            target = self._target(reference, place.base)
            if isinstance(target, dict):
                subschema = cast("dict[str, Any]", target)
                self._walk(
                    _Place(subschema, f"{place.path}.{key}" if place.path else key, place.base)
                )
                targets.append(subschema)
                if key != "$ref":
                    targets += self._dynamic.get(reference.partition("#")[2], [])
            elif not isinstance(target, bool):
                self._missing.add(reference)
        return targets

    def _target(self, reference: str, base: str) -> Any:
        address, _, fragment = reference.partition("#")
        base = urljoin(base, address) if address else base
        resource = self._resources.get(base)
        if resource is None:
            return None
        if not fragment:
            return resource
        if not fragment.startswith("/"):
            return self._anchors.get((base, fragment))
        place: Any = resource
        for part in unquote(fragment[1:]).split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and part in place:
                place = cast("dict[str, Any]", place)[part]
            elif (
                isinstance(place, list)
                and part.isascii()
                and part.isdigit()
                and int(part) < len(cast("list[Any]", place))
            ):
                place = cast("list[Any]", place)[int(part)]
            else:
                return None
        return place

    # the count

    def _count(self, start: _Place, counts: dict[int, int]) -> None:
        """Count the subschemas that apply to one value, without recursion, each once."""
        if id(start.schema) in counts:
            return
        stack: list[tuple[_Place, list[dict[str, Any]]]] = [(start, self._same_value(start))]
        open_places = {id(start.schema)}
        while stack:
            place, children = stack[-1]
            waiting = next((child for child in children if id(child) not in counts), None)
            if waiting is not None:
                if id(waiting) in open_places:
                    raise UnusableSchema(
                        f"has {place.path or 'a root'} that refers to itself without end"
                    )
                open_places.add(id(waiting))
                inner = self._places[id(waiting)]
                stack.append((inner, self._same_value(inner)))
                continue
            counts[id(place.schema)] = total = 1 + sum(counts[id(child)] for child in children)
            if total > MAX_EXPANSION:
                raise UnusableSchema(
                    f"takes too much work: one value is held against more than {MAX_EXPANSION:,}"
                    " subschemas"
                )
            open_places.discard(id(place.schema))
            stack.pop()

    def _same_value(self, place: _Place) -> list[dict[str, Any]]:
        children = [inner for _, key, inner in _inner(place.schema) if key in _SAME_VALUE]
        targets = self._targets(place)
        # A dynamic reference reaches its own schema again only through another value.
        return children + [
            target
            for target in targets
            if target is not place.schema or "$dynamicAnchor" not in target
        ]


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a schema's subschemas that are objects, each with its path and its keyword."""
    for key in _SCHEMA_KEYS:
        value: Any = schema.get(key)
        if isinstance(value, dict):
            yield key, key, cast("dict[str, Any]", value)
    for key in (*_LIST_KEYS, "items"):
        value = schema.get(key)
        if isinstance(value, list):
            for index, inner in enumerate(cast("list[Any]", value)):
                if isinstance(inner, dict):
                    yield f"{key}.{index}", key, cast("dict[str, Any]", inner)
    for key in _MAP_KEYS:
        value = schema.get(key)
        if isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                if isinstance(inner, dict):
                    yield f"{key}.{name}", key, cast("dict[str, Any]", inner)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list)
        and all(isinstance(item, kinds) for item in cast("list[Any]", value))
    )


def _is_map_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(isinstance(item, kinds) for item in cast("dict[str, Any]", value).values())
    )


def _is_type(value: Any) -> bool:
    kinds = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


_is_schema_list = _is_list_of(dict, bool)

# The form of each keyword's value, and its description.
_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_SCHEMA_KEYS, (_is_schema, "a schema")),
    **dict.fromkeys(_LIST_KEYS, (_is_schema_list, "a list of schemas")),
    **dict.fromkeys(_MAP_KEYS, (_is_map_of(dict, bool), "a mapping of names to schemas")),
    **dict.fromkeys(
        _COUNT_KEYS, (lambda value: _is_number(value) and value >= 0, "a whole number from 0")
    ),
    **dict.fromkeys(("maximum", "minimum"), (_is_number, "a number")),
    **dict.fromkeys(_TEXT_KEYS, (lambda value: isinstance(value, str), "a text")),
    # Draft 4 has a boolean there.
    **dict.fromkeys(
        ("exclusiveMaximum", "exclusiveMinimum"),
        (lambda value: isinstance(value, int | float), "a number"),
    ),
    "type": (_is_type, f"one or more of {', '.join(_TYPES)}"),
    "items": (
        lambda value: _is_schema(value) or _is_schema_list(value),
        "a schema or a list of schemas",
    ),
    "dependencies": (_is_map_of(dict, bool, list), "a mapping of names to schemas"),
    "required": (_is_list_of(str), "a list of property names"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "dependentRequired": (_is_map_of(list), "a mapping of names to lists of names"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number"),
}


def _check_form(place: _Place) -> None:
    """Raise `UnusableSchema` for a keyword whose value has the wrong form."""
    for key, value in place.schema.items():
        fits, takes = _FORMS.get(key, (None, ""))
        if fits is not None and not fits(value):
            path = f"{place.path}.{key}" if place.path else key
            raise UnusableSchema(f"has {path} {short(value)}; it takes {takes}")


def short(value: Any, limit: int = 200) -> str:
    """The repr of a value, cut to `limit` characters."""
    text = _SHORTEN.repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


# --- short representations ---

# jsonschema writes the whole value, and the whole `enum`, into each error. These types have a short
# repr.


class _Shorten(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxstring, self.maxlong = 4, 8, 12, 150, 60

    def repr__Text(self, value: str, level: int) -> str:  # noqa: N802 - reprlib looks methods up by type name
        return self.repr_str(value, level)

    def repr__List(self, value: list[Any], level: int) -> str:  # noqa: N802 - reprlib looks methods up by type name
        return self.repr_list(value, level)

    def repr__Dict(self, value: dict[str, Any], level: int) -> str:  # noqa: N802 - reprlib looks methods up by type name
        return self.repr_dict(value, level)


_SHORTEN = _Shorten()


class _ShortRepr:
    __slots__ = ()

    def __repr__(self) -> str:
        return _SHORTEN.repr(self)


class _Text(_ShortRepr, str):
    __slots__ = ()


class _List(_ShortRepr, list[Any]):
    __slots__ = ()


class _Dict(_ShortRepr, dict[str, Any]):
    __slots__ = ()


class _Copied:
    """A copy of a JSON value with a short repr, and the number of its values."""

    __slots__ = ("nodes", "value")

    def __init__(self, value: Any, drop: str = "") -> None:
        self.nodes = 0
        self.value = self._copy(value, drop)

    def _copy(self, value: Any, drop: str) -> Any:
        self.nodes += 1
        if isinstance(value, str):
            return _Text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return _Dict(
                {
                    _Text(key): self._copy(item, drop)
                    for key, item in items
                    if key != drop or not isinstance(item, str)
                }
            )
        if isinstance(value, list | tuple):
            return _List([self._copy(item, drop) for item in cast("list[Any]", value)])
        return value


# --- applying it ---


class _Budget(threading.local):
    """The steps left to the validation that runs on this thread."""

    left = 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork


class Checker:
    """A validator by an untrusted schema. Thread-safe.

    `name` stands for the schema in warnings. Patterns that cannot be matched in linear time are not
    enforced; a warning names each of them. If the schema contains `patternProperties`,
    `unevaluatedProperties` is not enforced.

    Raises `UnusableSchema`.
    """

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        self._name = name
        self._source = schema
        self._inspected = inspect_schema(schema)
        self._budget = _Budget()
        self._patterns: dict[str, Pattern | None] = {}
        self._values: dict[int, frozenset[Any]] = {}
        self._validator: Any = None  # made at the first value, because jsonschema takes long

    def _compile(self) -> Any:
        from jsonschema.validators import (
            extend,  # pyright: ignore[reportUnknownVariableType]
            validator_for,
        )
        from referencing import Registry

        schema = self._source
        kind: Any = validator_for(schema, default=_default())
        if "$ref" not in kind.VALIDATORS or "allOf" not in kind.VALIDATORS:  # draft 3
            kind = _default()
        own: dict[str, Any] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties(
                kind.VALIDATORS["additionalProperties"]
            ),
            "uniqueItems": self._unique_items,
            "enum": self._enum,
        }
        if "const" in kind.VALIDATORS:
            own["const"] = self._const
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in kind.VALIDATORS:
                own[key] = self._reference(kind.VALIDATORS[key])
        for key in ("unevaluatedItems", "unevaluatedProperties"):
            if key in kind.VALIDATORS:
                own[key] = self._unevaluated(key, kind.VALIDATORS[key])
        metered = {
            key: self._metered(check, key not in ("const", "enum"))
            for key, check in {**kind.VALIDATORS, **own}.items()
        }
        # Without `$schema`: jsonschema would apply its own validator to a part that has one. An
        # empty registry: nothing is fetched.
        return cast("Any", extend)(kind, metered)(
            _Copied(schema, "$schema").value, registry=cast("Any", Registry)()
        )

    def problems(self, value: Any) -> list[Any]:
        """Return at most 1,000 errors. Raises `TooMuchWork`, and for a missing reference."""
        if self._validator is None:
            self._validator = self._compile()
        copied = _Copied(value)
        self._budget.left = min(_STEPS + _STEPS_PER_NODE * copied.nodes, _MAX_STEPS)
        return list(islice(self._validator.iter_errors(copied.value), _MAX_ERRORS))

    def _metered(self, check: Callable[..., Any], walks: bool) -> Callable[..., Any]:
        """Return a check that spends from the budget; if it `walks` its value, by its size."""
        spend = self._budget.spend

        def metered(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
            spend(
                1 + len(cast("list[Any]", wanted)) // 8
                if walks and isinstance(wanted, list | dict)
                else 1
            )
            for error in check(validator, wanted, instance, schema) or ():
                spend(_STEPS_PER_ERROR)
                yield error

        return metered

    # patterns

    def _compiled(self, pattern: str) -> Pattern | None:
        if pattern not in self._patterns:
            try:
                compiled = Pattern(pattern)
                self._budget.spend(100 + compiled.states)
            except UnsupportedPattern as error:
                compiled = None
                _log.warning(
                    "%s: the pattern %s is not enforced: %s.", self._name, short(pattern), error
                )
            self._patterns[pattern] = compiled
        return self._patterns[pattern]

    def _matches(self, pattern: str, text: str, otherwise: bool) -> bool:
        """Return True if the pattern matches, `otherwise` if the pattern is not enforced."""
        compiled = self._compiled(pattern)
        work = 0 if compiled is None else compiled.states * len(text)
        if compiled is None or work > _MAX_MATCH:
            return otherwise
        self._budget.spend(work // _MATCH_PER_STEP)
        return compiled.matches(str(text))

    def _pattern(self, validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, str) and not self._matches(wanted, instance, True):
            yield _error(f"{instance!r} does not match {wanted!r}")

    def _pattern_properties(
        self, validator: Any, wanted: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[Any]:
        if not isinstance(instance, dict):
            return
        for pattern, inner in wanted.items():
            for name, value in cast("dict[str, Any]", instance).items():
                if self._matches(pattern, name, False):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)

    def _additional_properties(self, check: Callable[..., Any]) -> Callable[..., Any]:
        def additional(
            validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]
        ) -> Any:
            patterns: Mapping[str, Any] = schema.get("patternProperties", {})
            if not patterns or not isinstance(instance, dict):
                return check(validator, wanted, instance, schema)
            names = [
                name
                for name in cast("dict[str, Any]", instance)
                if any(self._matches(one, name, True) for one in patterns)
            ]
            known = {**schema.get("properties", {}), **dict.fromkeys(names, True)}
            return check(validator, wanted, instance, {"properties": known})

        return additional

    # references

    def _reference(self, check: Callable[..., Any]) -> Callable[..., Any]:
        def reference(validator: Any, wanted: str, instance: Any, schema: Any) -> Any:
            if wanted in self._inspected.missing:
                raise UnusableSchema(f"refers to {short(wanted)}, which is not in it")
            return check(validator, wanted, instance, schema)

        return reference

    def _unevaluated(self, key: str, check: Callable[..., Any]) -> Callable[..., Any]:
        def unevaluated(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
            if not isinstance(instance, dict | list) or (
                key == "unevaluatedProperties" and self._inspected.has_pattern_properties
            ):
                return ()
            # jsonschema walks the expansion by itself, without the keywords above.
            self._budget.spend(
                self._inspected.expansion * (1 + len(cast("list[Any]", instance)) // 8)
            )
            return check(validator, wanted, instance, schema)

        return unevaluated

    # equality

    def _enum(self, validator: Any, wanted: list[Any], instance: Any, schema: Any) -> Iterator[Any]:
        if not self._is_among(wanted, instance):
            yield _error(f"{instance!r} is not one of {wanted!r}")

    def _const(self, validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if self._canonical(instance) != self._canonical(wanted):
            yield _error(f"{wanted!r} was expected")

    def _unique_items(
        self, validator: Any, wanted: Any, instance: Any, schema: Any
    ) -> Iterator[Any]:
        if wanted is True and isinstance(instance, list):
            items = cast("list[Any]", instance)
            if len({self._canonical(item) for item in items}) < len(items):
                yield _error(f"{instance!r} has non-unique elements")

    def _is_among(self, wanted: list[Any], instance: Any) -> bool:
        # The ids are stable: the schema lives as long as this checker.
        values = self._values.get(id(wanted))
        if values is None:
            values = self._values[id(wanted)] = frozenset(map(self._canonical, wanted))
        return self._canonical(instance) in values

    def _canonical(self, value: Any) -> Any:
        """Return a hashable value that is equal for values that JSON Schema calls equal."""
        if isinstance(value, bool):
            return bool, value
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            self._budget.spend(1 + len(items) // 4)
            return dict, frozenset((name, self._canonical(item)) for name, item in items.items())
        if isinstance(value, list):
            listed = cast("list[Any]", value)
            self._budget.spend(1 + len(listed) // 4)
            return list, tuple(map(self._canonical, listed))
        return value


def _default() -> Any:
    from jsonschema.validators import Draft202012Validator

    return Draft202012Validator


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)
