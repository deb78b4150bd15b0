"""Mutations of JSON values: wrong values, missing fields, and additions without a meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

Path = tuple[str | int, ...]

UNKNOWN = "holdfast_unknown"  # a field and an event that no provider has
UNKNOWN_VALUE = {"a": [1, "x"]}
UNKNOWN_EVENT = {"type": UNKNOWN, UNKNOWN: UNKNOWN_VALUE}
DEEP = "[" * 50_000 + "]" * 50_000
_REMOVED = object()

# Values of every kind. Each is wrong for most fields.
WRONG: tuple[Any, ...] = (
    *(None, 5, -1, 1e300, 2**64, True, "x", "", "\ud800", "{"),
    *([], [1], [[]], [None], {}, {"a": 1}, {"type": "x", "index": 7}),
)
# Texts in place of a value that are not JSON, or that no encoder writes.
BROKEN = ("NaN", "-Infinity", "1e999", '"\\ud800"', '"\\udc00\\ud800"', '"a\x00b"', "", DEEP)


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of a JSON value and of every value in it."""
    yield path
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from paths(item, (*path, index))


def at(value: Any, path: Path) -> Any:
    """Return the value at `path`."""
    for key in path:
        value = value[key]
    return value


def with_value(value: Any, path: Path, new: Any) -> Any:
    """Return a JSON value with `new` at `path`."""
    if not path:
        return new
    copy: Any = [*value] if isinstance(value, list) else {**value}
    if len(path) == 1 and new is _REMOVED:
        del copy[path[0]]
    else:
        copy[path[0]] = with_value(copy[path[0]], path[1:], new)
    return copy


def shape(value: Any, path: Path) -> tuple[Any, ...]:
    """Return a path with the `type` of each object on it and without positions in lists. The same
    code of a wire reads all values of one shape."""
    steps: list[Any] = []
    here: Any = value
    for key in path:
        kind = here.get("type") if isinstance(key, str) else None
        steps.append((kind if isinstance(kind, str) else "", key if isinstance(key, str) else 0))
        here = here[key]
    return (*steps, type(here).__name__)


def number_of_wrong(path: Path) -> int:
    """Return the number of mutations that `wrong_text` makes of a value at `path`."""
    return len(WRONG) + len(BROKEN) + bool(path)


def wrong_text(value: Any, path: Path, number: int) -> tuple[str, str]:
    """Return the JSON text of `value` with mutation `number` at `path`, and its description."""
    where = "/".join(map(str, path)) or "the value"
    if number < len(WRONG):
        return dump(with_value(value, path, WRONG[number])), f"{where} is {WRONG[number]!r}"
    if number == len(WRONG) + len(BROKEN):
        return dump(with_value(value, path, _REMOVED)), f"{where} is missing"
    text, mark = BROKEN[number - len(WRONG)], "holdfast mark"
    text_label = repr(text) if len(text) < 20 else "nested without end"
    return dump(with_value(value, path, mark)).replace(dump(mark), text), f"{where} is {text_label}"


def dump(value: Any) -> str:
    """Return JSON text in which lone surrogates are escaped."""
    return json.dumps(value, separators=(",", ":"))


# --- additions without a meaning ---


def added_fields(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield copies of the value, each with an unknown field in another one of its objects."""
    for path in paths(value):
        inner = at(value, path)
        if isinstance(inner, dict):
            where = "/".join(map(str, path)) or "the value"
            added = {**cast("dict[str, Any]", inner), UNKNOWN: UNKNOWN_VALUE}
            yield with_value(value, path, added), f"an unknown field in {where}"


def without_unknown(value: Any) -> Any:
    """Return a JSON value without the unknown fields and without empty objects."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        fields = {key: without_unknown(item) for key, item in items if key != UNKNOWN}
        return {key: item for key, item in fields.items() if item != {}}
    if isinstance(value, list):
        return [without_unknown(item) for item in cast("list[Any]", value)]
    return value


def other_texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield other JSON texts of the same value."""
    yield json.dumps(value, indent=1), "indented"
    yield json.dumps(value, ensure_ascii=False), "without escapes"
    yield _doubled(value), "with every key twice"


def _doubled(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{dump(key)}:{_doubled(item)}" for key, item in cast("dict[str, Any]", value).items()
        ]
        return "{" + ",".join(pair for pair in pairs for _ in range(2)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_doubled, cast("list[Any]", value))) + "]"
    return dump(value)


def leaves(value: Any, keep: Callable[[str], bool]) -> set[str]:
    """Return the texts in a JSON value that `keep` accepts."""
    texts: set[str] = set()
    for path in paths(value):
        text = at(value, path)
        if isinstance(text, str) and keep(text):
            texts.add(text)
    return texts


def contains(value: Any, expected: Any) -> bool:
    """Return True if a JSON value or a value in it matches `expected`. A text matches if it
    contains it, an object if it has its keys and values."""
    return any(_covers(at(value, path), expected) for path in paths(value))


def _covers(value: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(
            key in value and covers(value[key], item)
            for key, item in cast("dict[str, Any]", expected).items()
        )
    if isinstance(expected, str):
        return isinstance(value, str) and expected in value
    return value == expected


def covers(value: Any, expected: Any) -> bool:
    """Return True if a JSON value equals `wanted`, apart from additional keys of its objects."""
    if isinstance(expected, dict):
        return _covers(value, expected)
    if isinstance(expected, list):
        items = cast("list[Any]", expected)
        return (
            isinstance(value, list)
            and len(cast("list[Any]", value)) == len(items)
            and all(map(covers, cast("list[Any]", value), items))
        )
    return value == expected
