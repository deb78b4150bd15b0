"""Tests of tools that are known by their module's name alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError, ToolError, ToolNotFound
from holdfast.tools import Tool, ToolRegistry, register_tool

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes a module to a folder on the path and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def make(name: str, *lines: str) -> str:
        (tmp_path / f"{name}.py").write_text(
            "from holdfast.tools import Tool, ToolRegistry, register_tool, tool\n"
            + "\n".join(lines)
        )
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


def nothing() -> str:
    return "nothing"


class Made(Tool):
    def __init__(self) -> None:
        super().__init__("made", "", nothing)


# --- modules ---


def test_a_module_declares_tools_by_decorator_by_note_and_by_object(write: Write) -> None:
    write(
        "hf_many",
        "import os.path",
        "@tool",
        "def look(a: int) -> int: return a",
        "base = Tool('base', '', os.path.basename, {'type': 'object', 'properties': {'p': {'type':"
        " 'string'}}})",
        "register_tool('noted', lambda: Tool('noted', '', look.callback))",
        "class Listed(Tool):",
        "    def __init__(self): super().__init__('listed')",
        "    def call(self, arguments, context): return 'listed'",
        "register_tool('listed', Listed)",
        "register_tool('ready', Tool('ready', '', look.callback))",
    )
    registry = ToolRegistry()
    tools = registry.import_module("hf_many")
    assert [tool.name for tool in tools] == ["look", "base", "noted", "listed", "ready"]
    assert {tool.module_qualname for tool in tools} == {"hf_many"}
    assert registry.get_tool_module_qualnames() == dict.fromkeys(
        ["look", "base", "noted", "listed", "ready"], "hf_many"
    )
    assert registry.create("noted").run({"a": 3}).data == 3
    assert registry.create("listed").run({}).text == "listed"


def test_a_module_that_was_imported_before_is_read_all_the_same(write: Write) -> None:
    write("hf_before", "register_tool('x', lambda: Tool('x', '', lambda: 'x'))")
    __import__("hf_before")
    first, second = ToolRegistry(), ToolRegistry()
    assert [tool.name for tool in first.import_module("hf_before")] == ["x"]
    assert [tool.name for tool in first.import_module("hf_before")] == ["x"]
    assert [tool.name for tool in second.import_module("hf_before")] == ["x"]


def test_what_a_module_merely_imports_is_not_its_own(write: Write) -> None:
    write(
        "hf_home",
        "@tool",
        "def at_home() -> str: return 'home'",
        "def make(name): return Tool(name, '', lambda: name)",
    )
    write(
        "hf_guest",
        "from hf_home import at_home, make",
        "@tool",
        "def own() -> str: return 'own'",
        "helped = make('helped')",
    )
    registry = ToolRegistry()
    assert [tool.name for tool in registry.import_module("hf_guest")] == ["own", "helped"]
    assert [tool.name for tool in registry.import_module("hf_home")] == ["at_home"]
    assert registry.get_tool_module_qualnames() == {
        "own": "hf_guest",
        "helped": "hf_guest",
        "at_home": "hf_home",
    }


def test_a_note_stays_on_its_module_and_two_registries_do_not_meet(write: Write) -> None:
    write("hf_one", "register_tool('one', lambda: Tool('one', '', lambda: 1))")
    write("hf_two", "register_tool('two', lambda: Tool('two', '', lambda: 2))")
    one, two = ToolRegistry(), ToolRegistry()
    one.import_module("hf_one")
    two.import_module("hf_two")
    assert set(one.get_tool_module_qualnames()) == {"one"}
    assert set(two.get_tool_module_qualnames()) == {"two"}
    with pytest.raises(ToolNotFound, match=r"No tool 'two' is registered. There are: one"):
        one.create("two")


@pytest.mark.parametrize(
    ("lines", "pattern"),
    [
        (["1 / 0"], "cannot be imported: ZeroDivisionError"),
        (["def ("], "cannot be imported: SyntaxError"),
        (["import sys", "sys.exit(3)"], "cannot be imported: SystemExit: 3"),
        (
            ["import hf_not_there"],
            "cannot be imported: ModuleNotFoundError: No module named 'hf_not_there'",
        ),
        (["x = 1"], "declares no tools. Use @tool or register_tool"),
        (
            ["register_tool('x', lambda: 5)"],
            "factory of tool 'x' in 'hf_bad' returned 5, not a Tool",
        ),
        (
            ["register_tool('x', lambda: 1 / 0)"],
            "factory of tool 'x' in 'hf_bad' failed: ZeroDivisionError",
        ),
        (
            ["register_tool('x', lambda needed: needed)"],
            "factory of tool 'x' in 'hf_bad' failed: TypeError",
        ),
        (
            ["register_tool('x', 'y')"],
            "cannot be imported: ConfigurationError: register_tool.'x'.: factory takes",
        ),
    ],
)
def test_a_broken_module_is_a_clear_error_and_leaves_nothing_behind(
    write: Write, lines: list[str], pattern: str
) -> None:
    write("hf_bad", "good = Tool('good', '', lambda: 1)" if "factory" in pattern else "", *lines)
    registry = ToolRegistry()
    with pytest.raises(ConfigurationError, match=pattern):
        registry.import_module("hf_bad")
    assert registry.get_tool_module_qualnames() == {}


@pytest.mark.parametrize("name", ["", ".", "..x", "hf_not_there", "os.path.nothing", "a b", "5"])
def test_a_name_that_is_no_module_is_a_clear_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ToolRegistry().import_module(name)


# --- factories ---


def test_the_mapping_of_modules_is_a_copy() -> None:
    registry = ToolRegistry()
    registry.register_tool("made", Made)
    registry.get_tool_module_qualnames()["mine"] = "x"
    assert registry.get_tool_module_qualnames() == {"made": __name__}


class Factory:
    def __call__(self) -> Tool:
        return Made()

    def method(self) -> Tool:
        return Made()


@pytest.mark.parametrize(
    "factory",
    [
        Made,
        lambda: Made(),
        Made(),
        functools.partial(Made),
        Factory(),
        Factory().method,
        Tool("t", "", nothing),
        Tool("t", "", functools.partial(nothing)),
    ],
)
def test_a_factory_of_any_kind_knows_its_module(factory: Any) -> None:
    registry = ToolRegistry()
    registry.register_tool("made", factory)
    assert registry.get_tool_module_qualnames() == {"made": __name__}
    assert registry.create("made").module_qualname == __name__
    assert registry.create("made").run({}).text == "nothing"


def test_a_factory_makes_a_new_tool_each_time_and_an_instance_is_itself() -> None:
    registry, instance = ToolRegistry(), Made()
    registry.register_tool("made", Made)
    assert registry.create("made") is not registry.create("made")
    registry.register_tool("made", instance)
    assert registry.create("made") is instance


def test_a_tool_has_the_name_by_which_it_is_registered(write: Write) -> None:
    write(
        "hf_alias",
        "own = Tool('own', 'Says.', lambda a: a)",
        "register_tool('alias', lambda: Tool('other', '', lambda a: a))",
        "register_tool('again', own)",
    )
    registry = ToolRegistry()
    assert [tool.name for tool in registry.import_module("hf_alias")] == ["own", "alias", "again"]
    for name in ("own", "alias", "again"):
        created = registry.create(name)
        assert created.name == name
        assert created.run({"a": 1}).data == 1
        with pytest.raises(ToolError, match=f"'{name}' was not run"):
            created.run({})
    registry.register_tool("not a name", registry.create("own"))
    with pytest.raises(ConfigurationError, match="name takes 1 to 128"):
        registry.create("not a name")


def test_an_instance_is_not_changed_by_being_registered_elsewhere(write: Write) -> None:
    write("hf_lends", "lent = Tool('lent', '', lambda: 1)")
    write("hf_borrows", "from hf_lends import lent", "register_tool('lent', lent)")
    registry = ToolRegistry()
    lent = registry.import_module("hf_borrows")[0]
    assert lent.module_qualname == "hf_lends"
    assert registry.get_tool_module_qualnames() == {"lent": "hf_borrows"}


@pytest.mark.parametrize("factory", [5, None, "Made"])
def test_what_is_no_factory_is_refused(factory: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"register_tool\('x'\): factory takes a function that returns a Tool",
    ):
        ToolRegistry().register_tool("x", factory)
    with pytest.raises(ConfigurationError, match=r"register_tool\('x'\): factory takes"):
        register_tool("x", factory)


def test_a_note_can_be_made_by_code_that_is_in_no_imported_module() -> None:
    names: dict[str, Any] = {"__name__": "hf_nowhere"}
    exec(
        "from holdfast.tools import register_tool, Tool\nregister_tool('x', lambda: Tool('x', '',"
        " print))",
        names,
    )
    assert list(names["__holdfast_tools__"]) == ["x"]
