"""Tests of the exception tree: the tree in the docstring is the tree of the classes."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import (
    RETRY_PRESETS,
    ConfigurationError,
    Fenced,
    HoldfastError,
    LeaseHeld,
    LimitExceeded,
    RateLimited,
    ToolError,
    ToolTimeout,
)

LINE = re.compile(r"^((?:[│ ] {3})*)[├└]── (\w+)(?: \((\w+)\))?")


def drawn() -> dict[str, tuple[str, str | None]]:
    """Return, for each class of the docstring's tree, its parent and the builtin that it also is."""
    classes: dict[str, tuple[str, str | None]] = {}
    path = ["HoldfastError"]
    for line in str(errors.__doc__).splitlines():
        if entry := LINE.match(line):
            depth = len(entry[1]) // 4 + 1
            path[depth:] = [entry[2]]
            classes[entry[2]] = (path[depth - 1], entry[3])
    return classes


TREE = drawn()
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception)
}


def test_the_drawing_and_the_module_have_the_same_classes() -> None:
    assert len(TREE) > 25
    assert {"HoldfastError", *TREE} == set(CLASSES)


@pytest.mark.parametrize("name", TREE)
def test_each_class_stands_where_it_is_drawn(name: str) -> None:
    parent, builtin = TREE[name]
    bases = [CLASSES[parent]]
    if builtin:
        bases.append(CLASSES.get(builtin) or getattr(builtins, builtin))
    assert list(CLASSES[name].__bases__) == bases
    assert CLASSES[name].__doc__


def test_every_error_is_caught_as_one() -> None:
    assert all(issubclass(kind, HoldfastError) for kind in CLASSES.values())


@pytest.mark.parametrize(
    "error",
    [
        LeaseHeld("c", "process 5"),
        LimitExceeded("steps", 5, 4, "Limits"),
        ToolError("m", "network", max_retries=9),
        RateLimited("m", status=429, retry_after=1.5),
        Fenced("m"),
        ToolTimeout("m"),
        ConfigurationError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_boundary_with_its_fields(error: HoldfastError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_tool_error_takes_its_policy_from_its_type_unless_told() -> None:
    for error_type, policy in RETRY_PRESETS.items():
        error = ToolError("m", error_type)
        assert (error.retryable, error.max_retries, error.backoff) == policy
    explicit = ToolError("m", "validation", retryable=True, max_retries=7, backoff="fixed")
    assert (explicit.retryable, explicit.max_retries, explicit.backoff) == (True, 7, "fixed")


def test_a_tool_error_of_an_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"error_type takes one of rate_limit, .*, not 'weird'"
    ):
        ToolError("m", "weird")


def test_messages_say_what_to_do() -> None:
    assert (
        str(LeaseHeld("c", "process 5"))
        == "Conversation 'c' is held by process 5. Close it there first, or open another id."
    )
    assert "Raise Limits(steps=...)" in str(LimitExceeded("steps", 5, 4, "Limits"))
