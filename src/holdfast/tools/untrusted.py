"""JSON Schemas, fully checked before the first use, and applied in a bounded number of steps.

A schema of 1 KB can require unbounded work. Twenty levels of `allOf` with two references each visit
a million subschemas, and a pattern can backtrack for years. `inspect_schema` refuses the first kind
by counting. `Checker` runs the rest on a budget: patterns in linear time, sets in place of
quadratic comparisons, short messages in place of whole values.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from reprlib import Repr
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args
from urllib.parse import unquote, urljoin

import msgspec

from holdfast.tools.names import word_set
from holdfast.tools.patterns import Pattern, PythonPattern, UnsupportedPattern
from holdfast.tools.results import cut

MAX_SCHEMA_NODES = 50_000  # JSON values; the largest known schema of a public server has 3,000
MAX_SCHEMA_DEPTH = 100  # JSON levels; each level of properties takes two
MAX_EXPANSION = 5_000  # subschemas applied to one value through `$ref`, `allOf` and the like
_MAX_LINKS = 1_000_000  # references followed in an inspection, which takes a second

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
    """The outcome of `inspect_schema`. `expansion` is the largest number of subschemas that apply
    to one value. `missing` are references whose target is not in the schema; nothing is fetched.
    `has_pattern_properties` is True if `patternProperties` occurs anywhere."""

    expansion: int
    missing: frozenset[str]
    has_pattern_properties: bool


_SCHEMA_KEYS = word_set(
    "additionalItems additionalProperties contains contentSchema else if items not "
    "propertyNames then unevaluatedItems unevaluatedProperties"
)
_LIST_KEYS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP_KEYS = word_set("$defs definitions dependencies dependentSchemas patternProperties properties")
_REFERENCE_KEYS = ("$ref", "$dynamicRef", "$recursiveRef")
# Their subschemas apply to the value itself.
_SAME_VALUE = word_set("allOf anyOf oneOf not if then else dependentSchemas dependencies")

_Schema = dict[str, Any] | bool
_Type = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
_Count = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)]
# The form of each keyword's value, and its description.
_FORMS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(_SCHEMA_KEYS, (_Schema, "a schema")),
    **dict.fromkeys(_LIST_KEYS, (list[_Schema], "a list of schemas")),
    **dict.fromkeys(_MAP_KEYS, (dict[str, _Schema], "a mapping of names to schemas")),
    **dict.fromkeys(
        [
            f"{bound}{what}"
            for bound in ("max", "min")
            for what in ("Contains", "Items", "Length", "Properties")
        ],
        (_Count, "a whole number from 0"),
    ),
    **dict.fromkeys(("maximum", "minimum"), (int | float, "a number")),
    # Draft 4 has a boolean there.
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), (int | float | bool, "a number")),
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$id", "$ref", "$dynamicRef", "pattern"), (str, "a text")
    ),
    "type": (
        _Type | Annotated[list[_Type], msgspec.Meta(min_length=1)],
        f"one or more of {', '.join(get_args(_Type))}",
    ),
    "items": (_Schema | list[_Schema], "a schema or a list of schemas"),
    "dependencies": (dict[str, _Schema | list[Any]], "a mapping of names to schemas"),
    "required": (list[str], "a list of property names"),
    "enum": (list[Any], "a list of values"),
    "dependentRequired": (dict[str, list[Any]], "a mapping of names to lists of names"),
    "multipleOf": (_Positive, "a number"),
}


class _Place(NamedTuple):
    """A subschema with its path (such as `.properties.a`), and the base address (`$id`) of its
    resource."""

    schema: dict[str, Any]
    path: str
    base: str


def inspect_schema(schema: dict[str, Any]) -> Inspected:
    """Check a schema's form and count its expansion. Raises `UnusableSchema`."""
    _check_size(schema)
    inspection = _Inspection(schema)
    places = inspection.places
    for place in places:  # a reference may lead to a subschema under no keyword: a further place
        inspection.targets(place)
    counts: dict[int, int] = {}
    by_id = {id(place.schema): place for place in places}
    for place in places:
        _count(place, inspection, by_id, counts)
    patterned = any("patternProperties" in place.schema for place in places)
    return Inspected(max(counts.values()), frozenset(inspection.missing), patterned)


def _count(
    start: _Place, inspection: _Inspection, places: dict[int, _Place], counts: dict[int, int]
) -> None:
    """Count the subschemas that apply to one value, depth first and without recursion, each
    subschema once. Only the lists on the way are held at a time: all together may be millions."""
    if id(start.schema) in counts:
        return
    stack = [(start, inspection.same_value(start))]
    open_ids = {id(start.schema)}
    while stack:
        place, children = stack[-1]
        waiting = next((child for child in children if id(child) not in counts), None)
        if waiting is not None and len(children) < MAX_EXPANSION:
            if id(waiting) in open_ids:
                path = place.path[1:] or "a root"
                raise UnusableSchema(f"has {path} that refers to itself without end")
            open_ids.add(id(waiting))
            inner = places[id(waiting)]
            stack.append((inner, inspection.same_value(inner)))
            continue
        # A child without a count is one of more than the limit.
        counts[id(place.schema)] = total = 1 + sum(counts.get(id(child), 1) for child in children)
        if total > MAX_EXPANSION:
            raise UnusableSchema(
                f"takes too much work: one value is held against more than {MAX_EXPANSION:,}"
                " subschemas"
            )
        open_ids.discard(id(place.schema))
        stack.pop()


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
    """The subschemas of a schema (`places`), and the targets of its references."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.places: list[_Place] = []
        self.missing: set[str] = set()
        self._visited: set[int] = set()  # the ids of the schemas in `places`
        self._resources: dict[str, dict[str, Any]] = {"": root}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._dynamic: dict[str, list[dict[str, Any]]] = {}
        self._id_key = "id" if "draft-04" in str(root.get("$schema")) else "$id"
        self._links = 0  # found so far; one dynamic reference may lead to thousands of places
        self._walk(_Place(root, "", ""))

    def _walk(self, start: _Place) -> None:
        """Add every subschema, after a check of its form."""
        todo = [start]
        while todo:
            place = todo.pop()
            if id(place.schema) in self._visited:
                continue
            place = self._register(place)
            self._visited.add(id(place.schema))
            self.places.append(place)
            _check_form(place)
            for path, _, inner in _subschemas(place.schema):
                todo.append(_Place(inner, f"{place.path}.{path}", place.base))

    def _register(self, place: _Place) -> _Place:
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

    def targets(self, place: _Place) -> list[dict[str, Any]]:
        """Return the schemas to which a subschema refers, and add them to the places."""
        targets: list[dict[str, Any]] = []
        for key in _REFERENCE_KEYS:
            reference: Any = place.schema.get(key)
            if not isinstance(reference, str):
                continue
            target = self._target(reference, place.base)
            if isinstance(target, dict):
                subschema = cast("dict[str, Any]", target)
                self._walk(_Place(subschema, f"{place.path}.{key}", place.base))
                targets.append(subschema)
                if key != "$ref":
                    targets += self._dynamic.get(reference.partition("#")[2], [])
            elif not isinstance(target, bool):
                self.missing.add(reference)
        self._links += len(targets)
        if self._links > _MAX_LINKS:
            raise UnusableSchema(f"has more than {_MAX_LINKS:,} links between its subschemas")
        return targets

    def _target(self, reference: str, base: str) -> Any:
        address, _, fragment = reference.partition("#")
        base = urljoin(base, address) if address else base
        place: Any = self._resources.get(base)
        if place is None or not fragment:
            return place
        if not fragment.startswith("/"):
            return self._anchors.get((base, fragment))
        for part in unquote(fragment[1:]).split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            index = int(part) if part.isascii() and part.isdigit() else -1
            if isinstance(place, dict) and part in place:
                place = cast("dict[str, Any]", place)[part]
            elif isinstance(place, list) and 0 <= index < len(cast("list[Any]", place)):
                place = cast("list[Any]", place)[index]
            else:
                return None
        return place

    def same_value(self, place: _Place) -> list[dict[str, Any]]:
        """Return the schemas that a subschema applies to its own value."""
        children = [inner for _, key, inner in _subschemas(place.schema) if key in _SAME_VALUE]
        # A dynamic reference reaches its own schema again only through another value.
        return children + [
            target
            for target in self.targets(place)
            if target is not place.schema or "$dynamicAnchor" not in target
        ]


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a schema's subschemas that are objects, each with its path and its keyword."""
    for key, value in schema.items():
        subschemas: dict[str, Any] = {}
        if isinstance(value, dict) and key in _MAP_KEYS:
            members = cast("dict[str, Any]", value)
            subschemas = {f"{key}.{name}": inner for name, inner in members.items()}
        elif isinstance(value, list) and (key in _LIST_KEYS or key == "items"):
            items = enumerate(cast("list[Any]", value))
            subschemas = {f"{key}.{index}": inner for index, inner in items}
        elif key in _SCHEMA_KEYS:
            subschemas = {key: value}
        for path, inner in subschemas.items():
            if isinstance(inner, dict):
                yield path, key, cast("dict[str, Any]", inner)


def _check_form(place: _Place) -> None:
    """Raise `UnusableSchema` for a keyword whose value has the wrong form."""
    for key, value in place.schema.items():
        if key in _FORMS:
            form, takes = _FORMS[key]
            try:
                msgspec.convert(value, form)
            except msgspec.ValidationError:
                path = f"{place.path}.{key}"[1:]
                raise UnusableSchema(f"has {path} {short(value)}; it takes {takes}") from None


def short(value: Any, limit: int = 200) -> str:
    """The repr of a value, cut to `limit` characters."""
    return cut(_SHORTEN.repr(value), limit)


# --- short representations ---

# jsonschema writes the whole value, and the whole `enum`, into each error. These types have a short
# repr.


class _Shorten(Repr):
    # reprlib looks methods up by the type's name.
    repr__Text = Repr.repr_str  # noqa: N815
    repr__List = Repr.repr_list  # noqa: N815
    repr__Dict = Repr.repr_dict  # noqa: N815

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxstring, self.maxlong = 4, 8, 12, 150, 60


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


def _short_copy(value: Any, drop: str = "") -> tuple[Any, int]:
    """Return a copy of a JSON value with a short repr, and the number of its values. Keys `drop`
    with a text as value are left out."""
    nodes = 0

    def copied(value: Any) -> Any:
        nonlocal nodes
        nodes += 1
        if isinstance(value, str):
            return _Text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            pairs = [pair for pair in items if pair[0] != drop or not isinstance(pair[1], str)]
            return _Dict({_Text(key): copied(item) for key, item in pairs})
        if isinstance(value, list | tuple):
            return _List([copied(item) for item in cast("list[Any]", value)])
        return value

    return copied(value), nodes


# --- applying it ---


class _Budget(threading.local):
    """The steps left to the validation that runs on this thread."""

    steps_left = 0

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TooMuchWork


class Checker:
    """A validator by a schema, with bounded work. Thread-safe.

    `name` stands for the schema in warnings. Patterns that cannot be matched in linear time are not
    enforced; a warning names each of them. If the schema contains `patternProperties`,
    `unevaluatedProperties` is not enforced. A `trusted` schema is the program's own: Python matches
    those of its patterns that have no linear time, and `unevaluatedProperties` is enforced.

    Raises `UnusableSchema`.
    """

    def __init__(self, name: str, schema: dict[str, Any], trusted: bool = False) -> None:
        self._name = name
        self._source = schema
        self._trusted = trusted
        self._inspected = inspect_schema(schema)
        self._budget = _Budget()
        self._patterns: dict[str, Pattern | PythonPattern | None] = {}
        self._values: dict[int, frozenset[Any]] = {}
        self._default: Mapping[str, Callable[..., Any]] = {}  # jsonschema's own checks
        self._validator: Any = None  # made at the first value, because jsonschema takes long

    def _compile(self) -> Any:
        from jsonschema.validators import (
            Draft202012Validator,
            extend,  # pyright: ignore[reportUnknownVariableType]
            validator_for,
        )
        from referencing import Registry

        kind: Any = validator_for(self._source, default=Draft202012Validator)
        if "$ref" not in kind.VALIDATORS or "allOf" not in kind.VALIDATORS:  # draft 3
            kind = Draft202012Validator
        self._default = kind.VALIDATORS
        own: dict[str, Callable[..., Any]] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
            "enum": self._enum,
            "const": self._const,
        }
        for key in _REFERENCE_KEYS:
            own[key] = partial(self._reference, key)
        for key in ("unevaluatedItems", "unevaluatedProperties"):
            own[key] = partial(self._unevaluated, key)
        metered = {
            key: partial(self._metered, own.get(key, check), key not in ("const", "enum"))
            for key, check in self._default.items()
        }
        # Without `$schema`: jsonschema would apply its own validator to a part that has one. An
        # empty registry: nothing is fetched.
        return cast("Any", extend)(kind, metered)(
            _short_copy(self._source, "$schema")[0], registry=cast("Any", Registry)()
        )

    def problems(self, value: Any) -> list[Any]:
        """Return at most 1,000 errors. Raises `TooMuchWork`, and for a missing reference."""
        if self._validator is None:
            self._validator = self._compile()
        copied, nodes = _short_copy(value)
        steps = _STEPS + _STEPS_PER_NODE * nodes
        self._budget.steps_left = steps if self._trusted else min(steps, _MAX_STEPS)
        return list(islice(self._validator.iter_errors(copied), _MAX_ERRORS))

    def _metered(
        self,
        check: Callable[..., Any],
        walks: bool,
        validator: Any,
        keyword_value: Any,
        instance: Any,
        schema: Any,
    ) -> Iterator[Any]:
        """Run a check that spends from the budget; if it `walks` its value, by its size."""
        size = 0
        if walks and isinstance(keyword_value, list | dict):
            size = len(cast("list[Any]", keyword_value))
        self._budget.spend(1 + size // 8)
        for error in check(validator, keyword_value, instance, schema) or ():
            self._budget.spend(_STEPS_PER_ERROR)
            yield error

    # patterns

    def _compiled(self, pattern: str) -> Pattern | PythonPattern | None:
        if pattern not in self._patterns:
            compiled: Pattern | PythonPattern | None = None
            try:
                compiled = Pattern(pattern)
                self._budget.spend(100 + compiled.states)
            except UnsupportedPattern as error:
                if self._trusted:
                    with suppress(re.error, OverflowError, RecursionError):
                        compiled = PythonPattern(pattern)
                if compiled is None:
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

    def _pattern(
        self, validator: Any, keyword_value: str, instance: Any, schema: Any
    ) -> Iterator[Any]:
        if isinstance(instance, str) and not self._matches(keyword_value, instance, True):
            yield _error(f"{instance!r} does not match {keyword_value!r}")

    def _pattern_properties(
        self, validator: Any, keyword_value: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[Any]:
        if not isinstance(instance, dict):
            return
        for pattern, inner in keyword_value.items():
            for name, value in cast("dict[str, Any]", instance).items():
                if self._matches(pattern, name, False):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)

    def _additional_properties(
        self, validator: Any, keyword_value: Any, instance: Any, schema: Mapping[str, Any]
    ) -> Any:
        patterns: Mapping[str, Any] = schema.get("patternProperties", {})
        if patterns and isinstance(instance, dict):
            names = [
                name
                for name in cast("dict[str, Any]", instance)
                if any(self._matches(one, name, True) for one in patterns)
            ]
            schema = {"properties": {**schema.get("properties", {}), **dict.fromkeys(names, True)}}
        return self._default["additionalProperties"](validator, keyword_value, instance, schema)

    # references

    def _reference(
        self, key: str, validator: Any, keyword_value: str, instance: Any, schema: Any
    ) -> Any:
        if keyword_value in self._inspected.missing:
            raise UnusableSchema(f"refers to {short(keyword_value)}, which is not in it")
        return self._default[key](validator, keyword_value, instance, schema)

    def _unevaluated(
        self, key: str, validator: Any, keyword_value: Any, instance: Any, schema: Any
    ) -> Any:
        if not isinstance(instance, dict | list) or (
            key == "unevaluatedProperties"
            and self._inspected.has_pattern_properties
            and not self._trusted
        ):
            return ()
        # jsonschema walks the expansion by itself, without the keywords above.
        size = len(cast("list[Any]", instance))
        self._budget.spend(self._inspected.expansion * (1 + size // 8))
        return self._default[key](validator, keyword_value, instance, schema)

    # equality

    def _enum(
        self, validator: Any, keyword_value: list[Any], instance: Any, schema: Any
    ) -> Iterator[Any]:
        # The ids are stable: the schema lives as long as this checker.
        values = self._values.get(id(keyword_value))
        if values is None:
            values = self._values[id(keyword_value)] = frozenset(
                map(self._canonical, keyword_value)
            )
        if self._canonical(instance) not in values:
            yield _error(f"{instance!r} is not one of {keyword_value!r}")

    def _const(
        self, validator: Any, keyword_value: Any, instance: Any, schema: Any
    ) -> Iterator[Any]:
        if self._canonical(instance) != self._canonical(keyword_value):
            yield _error(f"{keyword_value!r} was expected")

    def _unique_items(
        self, validator: Any, keyword_value: Any, instance: Any, schema: Any
    ) -> Iterator[Any]:
        if keyword_value is True and isinstance(instance, list):
            items = cast("list[Any]", instance)
            if len({self._canonical(item) for item in items}) < len(items):
                yield _error(f"{instance!r} has non-unique elements")

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
        # A program may pass values that are not JSON.
        return value if isinstance(value, Hashable) else (type(value), id(value))


def _error(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)
