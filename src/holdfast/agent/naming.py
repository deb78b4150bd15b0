"""How another process finds what code made here: the names of objects, functions and classes in
modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, cast

import msgspec


def name_of_definition(found: Any) -> str:
    """`module:qualname` of a class or function that stands there under that name; "" if none
    does."""
    module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or not importable(module):
        return ""
    at: Any = sys.modules[module]
    for part in qualname.split("."):
        at = getattr(at, part, None)
    return f"{module}:{qualname}" if at is found else ""


def name_of_object(made: Any) -> str:
    """`module:name` of an object at the top of a module, that of its class first; "" if it stands
    in none."""
    home = type(made).__module__
    for module in (home, *(name for name in list(sys.modules) if name != home)):
        if importable(module):
            for name, value in list(vars(sys.modules[module]).items()):
                if value is made and name.isidentifier() and not name.startswith("__"):
                    return f"{module}:{name}"
    return ""


def importable(module: str) -> bool:
    """Whether another process could import it, as far as can be known here."""
    found = sys.modules.get(module)
    return (
        module != "__main__"
        and isinstance(found, ModuleType)
        and getattr(found, "__spec__", None) is not None
    )


def parameters_of(made: Any) -> dict[str, Any] | None:
    """What an object's class has to be called with to make it again; None if that cannot be
    known."""
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


def described(made: Any) -> str:
    """How a message speaks of an object, whose repr may be long or hold secrets."""
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    if isinstance(name, str):
        return f"{name} of {module}"
    return f"a {type(made).__qualname__} of {type(made).__module__}"
