"""Variables in the texts of a config: `${NAME}`, `${NAME:-default}`, and `$${` for `${` itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.tools.document import Map, Seq, SourceLocation, did_you_mean

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$(?P<escape>\$)\{{|\$\{{(?P<name>{NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{"
)
# The same rules for a whole text, in the syntax of JSON Schema's regular expressions.
WELL_FORMED = rf"^(?:\$\$\{{|\$\{{{NAME}(?::-[^}}]*)?\}}|[^$]|\$(?!\$?\{{))*$"
HAS_VARIABLE = rf"^(?:\$\$\{{|[^$]|\$(?!\$?\{{))*\$\{{{NAME}(?::-[^}}]*)?\}}"


class Filled(str):
    """A text that variables were substituted into.

    Where a number or a boolean is expected, the text is parsed as one. No message shows the
    text, because it may be secret. `value` is the variable's own value, if the text is that
    variable alone.
    """

    value: Any

    @classmethod
    def of(cls, text: str, value: Any) -> Filled:
        filled = cls(text)
        filled.value = value
        return filled


def fill(document: Any, variables: Mapping[str, Any]) -> Any:
    """Replace the variables in all texts of a tree, in place. Keys are not changed."""
    if isinstance(document, Map):
        for key, value in document.items():
            document[key] = _fill(value, document.places[key], variables)
    elif isinstance(document, Seq):
        for index, value in enumerate(document):
            document[index] = _fill(value, document.places[index], variables)
    return document


def used_variables(document: Any) -> list[str]:
    """Return the names of the variables in the texts of a tree, each once."""
    return list(dict.fromkeys(match["name"] for match in _references(document)))


def missing_variables(document: Any, variables: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables that `fill` would refuse, each once."""
    references = _references(document)
    names = [match["name"] for match in references if match["default"] is None]
    return list(dict.fromkeys(name for name in names if name not in variables))


def _references(value: Any) -> Iterator[re.Match[str]]:
    if isinstance(value, Map | Seq):
        for member in value.values() if isinstance(value, Map) else value:
            yield from _references(member)
    elif isinstance(value, str):
        yield from (match for match in _VARIABLE.finditer(value) if match["name"])


def _fill(value: Any, place: SourceLocation, variables: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return fill(value, variables)
    if "${" not in value:
        return value

    def substitute(match: re.Match[str]) -> Any:
        name = match["name"]
        if match["escape"]:
            return "${"
        if name is None:
            raise place.error(
                f"{value!r} has '${{' that begins no variable. Write ${{NAME}}, ${{NAME:-default}},"
                " or $${ for the characters ${ themselves."
            )
        if name in variables:
            return variables[name]
        if match["default"] is None:
            hint = did_you_mean(name, variables, "${{{}}}")
            raise place.error(
                f"the variable {name!r} is not given.{hint} Pass variables={{{name!r}: ...}}, or"
                f" write a default: ${{{name}:-...}}. The environment is not used."
            )
        return match["default"]

    text = _VARIABLE.sub(lambda match: _text(substitute(match), place, match["name"]), value)
    if not any(match["name"] for match in _VARIABLE.finditer(value)):
        return text  # only escapes, so the text is the file's own
    whole = _VARIABLE.fullmatch(value)
    return Filled.of(text, text if whole is None else substitute(whole))


def _text(value: Any, place: SourceLocation, name: str | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise place.error(
        f"the variable {name!r} is given as {type(value).__name__}; it takes a text, a number, True"
        " or False."
    )
