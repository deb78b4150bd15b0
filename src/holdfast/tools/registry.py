"""Tools that are found by a module's name: declarations at import, and `ToolRegistry`.

A module declares tools without any registry: `@tool` objects in its namespace, or
`register_tool(name, factory)` at import. The declaration is stored in that module alone. A
registry is an object that a caller creates, fills and passes on.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, ToolNotFound
from holdfast.tools.tool import Tool, module_of

Factory = Callable[[], Tool]
_DECLARATIONS = "__holdfast_tools__"  # the module attribute that holds the declarations


def register_tool(name: str, factory: Factory | Tool) -> None:
    """Declare, at a module's import, that the module provides the tool `name`. `factory()` returns
    a `Tool`; a class will do. The tool is renamed to `name`. The declaration is stored in the
    calling module; nothing global changes. `ToolRegistry.import_module` reads it."""
    names = sys._getframe(1).f_globals  # pyright: ignore[reportPrivateUsage]: the caller's module
    declarations = cast("dict[str, Factory | Tool]", names.setdefault(_DECLARATIONS, {}))
    declarations[name] = _check_factory(name, factory)


def _check_factory(name: str, factory: Any) -> Factory | Tool:
    if not isinstance(factory, Tool) and not callable(factory):
        raise ConfigurationError(
            f"register_tool({name!r}): factory takes a function that returns a Tool, or a Tool, not"
            f" {factory!r}."
        )
    return cast("Factory | Tool", factory)


class ToolRegistry:
    """Tools by name, each with its module. Not thread-safe while it is being filled."""

    def __init__(self) -> None:
        self._factories: dict[str, Factory | Tool] = {}
        self._modules: dict[str, str] = {}

    def register_tool(self, name: str, factory: Factory | Tool) -> None:
        """Add or replace a tool. Its module is that of the factory."""
        self._factories[name] = _check_factory(name, factory)
        is_tool = isinstance(factory, Tool)
        self._modules[name] = factory.module_qualname if is_tool else module_of(factory)

    def import_module(self, qualname: str) -> list[Tool]:
        """Import a module, add the tools that it declares and return them. Works also if the module
        was imported before. Raises `ConfigurationError` if the module cannot be imported, declares
        no tools, or one of them cannot be made; then none is added."""
        try:
            module = importlib.import_module(qualname)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"Module {qualname!r} cannot be imported: {describe_error(error)}"
            ) from error
        declared = declared_in(module)
        if not declared:
            raise ConfigurationError(
                f"Module {qualname!r} declares no tools. Use @tool or register_tool(name, factory)"
                " in it."
            )
        tools = [_make(name, factory, qualname) for name, factory in declared.items()]
        self._factories.update(declared)
        self._modules.update(dict.fromkeys(declared, qualname))
        return tools

    def create(self, name: str) -> Tool:
        """Return the tool that a factory makes. Raises `ToolNotFound`, `ConfigurationError`."""
        factory = self._factories.get(name)
        if factory is None:
            raise ToolNotFound(
                f"No tool {name!r} is registered. There are:"
                f" {', '.join(sorted(self._factories)) or 'none'}."
            )
        return _make(name, factory, self._modules[name])

    def get_tool_module_qualnames(self) -> dict[str, str]:
        """Return a copy of `{tool_name: module}`."""
        return dict(self._modules)


def register_preset(module: str, registry: ToolRegistry | None) -> list[Tool]:
    """Return the tools that a preset's module declares; with a `registry`, register them there."""
    return (ToolRegistry() if registry is None else registry).import_module(module)


def _make(name: str, factory: Factory | Tool, module: str) -> Tool:
    if isinstance(factory, Tool):
        return factory if factory.name == name else factory.renamed(name)
    try:
        tool: Any = factory()
    except Exception as error:
        raise ConfigurationError(
            f"The factory of tool {name!r} in {module!r} failed: {describe_error(error)}"
        ) from error
    if not isinstance(tool, Tool):
        raise ConfigurationError(
            f"The factory of tool {name!r} in {module!r} returned {tool!r}, not a Tool."
        )
    tool = tool if tool.name == name else tool.renamed(name)
    tool.module_qualname = module
    tool.from_factory = True
    return tool


def declared_in(module: ModuleType) -> dict[str, Factory | Tool]:
    """Return a module's tools by name: its `Tool` objects and `register_tool` declarations."""
    declared: dict[str, Factory | Tool] = {}
    for value in vars(module).values():
        if not isinstance(value, Tool):
            continue
        home = sys.modules.get(value.module_qualname, module)
        imported = home is not module and any(one is value for one in list(vars(home).values()))
        if not imported:  # no other module declares it
            declared[value.name] = value
    declared.update(cast("dict[str, Factory | Tool]", vars(module).get(_DECLARATIONS, {})))
    return declared
