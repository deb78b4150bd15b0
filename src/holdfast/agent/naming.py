"""Names by which another process finds the objects, functions and classes of this one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, cast

import msgspec


def name_of_definition(found: Any) -> str:
    """Return `module:qualname` of a class or function that its module has under that name; ""
    otherwise."""
    module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or not importable(module):
        return ""
    at: Any = sys.modules[module]
    for part in qualname.split("."):
        at = getattr(at, part, None)
    return f"{module}:{qualname}" if at is found else ""


def name_of_object(made: Any) -> str:
    """Return `module:name` of an object at the top level of a module; "" if no module has it.

    The module of the object's class is searched first.
    """
    home = type(made).__module__
    for module in (home, *(name for name in list(sys.modules) if name != home)):
        if importable(module):
            for name, value in list(vars(sys.modules[module]).items()):
                if value is made and name.isidentifier() and not name.startswith("__"):
                    return f"{module}:{name}"
    return ""


def importable(module: str) -> bool:
    """Return True if another process can probably import the module.

    `__main__` and modules without an import spec cannot be imported elsewhere.
    """
    found = sys.modules.get(module)
    return (
        module != "__main__"
        and isinstance(found, ModuleType)
        and getattr(found, "__spec__", None) is not None
    )


def constructor_arguments(made: Any) -> dict[str, Any] | None:
    """Return the arguments that make an equal object when passed to the object's class.

    Return None if the arguments cannot be derived. Structs, dataclasses and classes without
    state are supported.
    """
    if isinstance(made, msgspec.Struct):
        return {name: getattr(made, name) for name in made.__struct_fields__}
    kind: Any = cast("object", type(made))
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        return {
            field.name: getattr(made, field.name)
            for field in dataclasses.fields(made)
            if field.init
        }
    plain = kind.__init__ is object.__init__ and kind.__new__ is object.__new__
    return {} if plain and not getattr(made, "__dict__", None) and not _slots(kind) else None


def _slots(kind: type[Any]) -> bool:
    return any(cast("Iterable[str]", getattr(base, "__slots__", ())) for base in kind.__mro__)


def describe_object(made: Any) -> str:
    """Return a short description of an object for a message.

    The object's repr is not used, because it may be long or contain secrets.
    """
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    if isinstance(name, str):
        return f"{name} of {module}"
    return f"a {type(made).__qualname__} of {type(made).__module__}"
