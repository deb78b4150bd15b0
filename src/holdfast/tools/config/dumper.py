"""The serial form of objects: plain data with variables in place of secrets, and import names in
place of code."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.tools.config.variables import NAME

# Keys that are named like secrets. `max_tokens` and similar keys do not match.
_SECRET_KEY = re.compile(
    r"key|token(?!s)|secret|password|credential|header|authorization", re.IGNORECASE
)
# A value that is not a secret but a reference to one that the reader of the form knows; also
# `Bearer ${TOKEN}`.
_REFERENCE = re.compile(rf"(?:[A-Za-z]+ )?\$\{{({NAME})\}}")
_OWN_NAME = re.compile(r"secret_[0-9]+")
_PUBLIC_QUERY = ("alt", "api-version")


class Origin(msgspec.Struct, frozen=True):
    """A record of an object that a config had imported code make.

    Attributes:
        value: The object.
        use: The import name, as read.
        parameters: The parameters, as read.
        hidden: Texts that came from variables.
    """

    value: Any
    use: str
    parameters: dict[str, Any] | None = None
    hidden: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Origin({self.use!r})"  # the parameters may hold secrets


class Dumper:
    """A writer of plain data with variables in place of secrets, which it collects.

    `where` names the dumped value in errors.
    """

    def __init__(self, origins: Iterable[Origin] = ()) -> None:
        self.origins = tuple(origins)
        self._names: dict[str, str] = {}

    @property
    def secrets(self) -> dict[str, str]:
        """The secrets by variable name (`secret_1`, `secret_2`, ...)."""
        return {name: value for value, name in self._names.items()}

    def text(self, where: str, value: str) -> str:
        """Return a text with `${` escaped, so that no variable begins in it."""
        try:
            value.encode()
        except UnicodeEncodeError:
            half = "holds half a character (a lone surrogate), which JSON cannot represent"
            raise dump_error(where, f"{half}; leave it out") from None
        return value.replace("${", "$${")

    def secret(self, where: str, value: str) -> str:
        """Return the variable of a secret. A value that is itself a variable reference stays."""
        reference = _REFERENCE.fullmatch(value)
        if reference is not None and _OWN_NAME.fullmatch(reference[1]):
            raise dump_error(
                where,
                f"names the variable {reference[1]!r}, but such names are reserved for secrets;"
                " give that variable another one",
            )
        if reference is not None or not value:
            return value
        self.text(where, value)
        return f"${{{self._names.setdefault(value, f'secret_{len(self._names) + 1}')}}}"

    def url(self, where: str, value: str) -> str:
        """Return an address with variables in place of user, password and query values."""
        scheme, mark, rest = value.partition("://")
        if not mark:
            return self.text(where, value)
        # Split at the last @ of the whole rest: a password that should have been percent-encoded
        # may contain / or ?.
        user, at, rest = rest.rpartition("@")
        rest, fragment, end = rest.partition("#")
        path, query, values = rest.partition("?")

        def part(text: str) -> str:
            name, equals, value = text.partition("=")
            if not text or name in _PUBLIC_QUERY:
                return self.text(where, text)
            if not equals:
                return self.secret(where, text)
            return f"{self.text(where, name)}={self.secret(where, value)}"

        begin = f"{self.text(where, scheme)}{mark}{self.secret(where, user)}{at}"
        begin += f"{self.text(where, path)}{query}"
        return begin + "&".join(map(part, values.split("&"))) + fragment + self.text(where, end)

    def data(
        self, where: str, value: Any, hidden: frozenset[str] | None = None, secret: bool = False
    ) -> Any:
        """Return plain data.

        With `hidden`, a text that contains one of these, and each value under a key that is
        named like a secret, becomes a variable.
        """
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise dump_error(where, f"is {value}, which JSON cannot represent")
            return value
        if isinstance(value, str):
            covered = secret or (hidden is not None and any(text in value for text in hidden))
            return self.secret(where, str(value)) if covered else self.text(where, str(value))
        if isinstance(value, Mapping):
            result: dict[str, Any] = {}
            for key, member in cast("Mapping[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise dump_error(where, f"has the key {key!r}; JSON has texts for keys")
                inner = secret or (hidden is not None and bool(_SECRET_KEY.search(key)))
                result[key] = self.data(f"{where}.{key}", member, hidden, inner)
            return result
        if isinstance(value, list | tuple):
            members = enumerate(cast("list[Any]", value))
            return [self.data(f"{where}[{i}]", member, hidden, secret) for i, member in members]
        raise dump_error(where, f"is a {type(value).__name__}, which JSON cannot represent")

    # --- code ---

    def function(self, where: str, function: Any) -> str:
        """Return the name by which a config gave a function, or else its `module:qualname`."""
        for origin in self.origins:
            if origin.value is function and origin.parameters is None:
                return self.text(where, origin.use)
        name = name_of_definition(function) or name_of_object(function)
        if not name:
            raise dump_error(
                where,
                f"is {_description(function)}, which another process could not import; give a"
                " function at the top of a module (not of the program's own file)",
            )
        return name

    def part(self, where: str, value: Any, problem: str = "") -> dict[str, Any]:
        """Return an object as `{use, parameters}`.

        The object's origin is used if there is one, then its name in a module, then its class
        with its state as parameters. With a `problem`, the object has no such state.
        """
        for origin in self.origins:
            if origin.value is value:
                part: dict[str, Any] = {"use": self.text(where, origin.use)}
                if origin.parameters is not None:
                    part["parameters"] = self.data(where, origin.parameters, origin.hidden)
                return part
        kind = cast("type[Any]", type(value))
        # `use` would call a class or a function.
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            if name := name_of_object(value):
                return {"use": name}
            parameters = None if problem else _constructor_arguments(value)
            if parameters is not None and (name := name_of_definition(kind)):
                data = self.data(f"{where}: {kind.__name__}", parameters, frozenset())
                return {"use": name, "parameters": data} if data else {"use": name}
        raise dump_error(
            where,
            problem
            or f"is {_description(value)}, which another process could not make; give an object at"
            " the top of a module (not of the program's own file), or one whose class stands in a"
            " module and is a dataclass or a msgspec.Struct of plain values",
        )


def dump_error(where: str, problem: str) -> ConfigurationError:
    """Return the error for a part of an agent that has no serial form."""
    return ConfigurationError(f"Agent: {where} {problem}.")


# --- import names ---


def name_of_definition(definition: Any) -> str:
    """Return `module:qualname` of a class or function that its module has under that name; ""
    otherwise."""
    module = getattr(definition, "__module__", None)
    qualname = getattr(definition, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or not _importable(module):
        return ""
    at: Any = sys.modules[module]
    for part in qualname.split("."):
        at = getattr(at, part, None)
    return f"{module}:{qualname}" if at is definition else ""


def name_of_object(target: Any) -> str:
    """Return `module:name` of an object at the top level of a module; "" if no module has it.

    The module of the object's class is searched first.
    """
    home = type(target).__module__
    for module in (home, *(name for name in list(sys.modules) if name != home)):
        if _importable(module):
            for name, value in list(vars(sys.modules[module]).items()):
                if value is target and name.isidentifier() and not name.startswith("__"):
                    return f"{module}:{name}"
    return ""


def _importable(module: str) -> bool:
    """Return True if another process can probably import the module.

    `__main__` and modules without an import spec cannot be imported elsewhere.
    """
    loaded = sys.modules.get(module)
    return (
        module != "__main__"
        and isinstance(loaded, ModuleType)
        and getattr(loaded, "__spec__", None) is not None
    )


def _constructor_arguments(instance: Any) -> dict[str, Any] | None:
    """Return the arguments that make an equal object when passed to the object's class.

    Return None if the arguments cannot be derived. Structs, dataclasses and classes without
    state are supported.
    """
    kind: Any = cast("object", type(instance))
    if isinstance(instance, msgspec.Struct):
        names = instance.__struct_fields__
    elif hasattr(kind, "__dataclass_fields__"):
        names = [field.name for field in dataclasses.fields(instance) if field.init]
    else:
        plain = kind.__init__ is object.__init__ and kind.__new__ is object.__new__
        return (
            {} if plain and not getattr(instance, "__dict__", None) and not _slots(kind) else None
        )
    return {name: getattr(instance, name) for name in names}


def _slots(kind: type[Any]) -> bool:
    return any(cast("Iterable[str]", getattr(base, "__slots__", ())) for base in kind.__mro__)


def _description(value: Any) -> str:
    """Return a short description of an object for a message.

    The object's repr is not used, because it may be long or contain secrets.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"{name} of {module}"
    return f"a {type(value).__qualname__} of {type(value).__module__}"
