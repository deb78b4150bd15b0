"""JSON Schemas of tools and the validators of their arguments.

A tool has one of two validators: `from_signature` (pydantic, for callbacks without a schema) or
`from_json_schema` (jsonschema, for given schemas). A validator is made once. Neither library is
imported before a tool needs it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import logging
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.errors import ConfigurationError, ToolValidationError
from holdfast.nesting import MAX_DEPTH
from holdfast.tools.annotations import adapted, with_msgspec_schemas
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import as_list
from holdfast.tools.names import word_set
from holdfast.tools.results import cut

if TYPE_CHECKING:
    from holdfast.tools.untrusted import Checker

_log = logging.getLogger("holdfast.tools")

Validate = Callable[[dict[str, Any]], dict[str, Any]]
Explain = Callable[[str, Mapping[str, Any], list[str]], Exception]

TOO_DEEP = f"its arguments are nested deeper than {MAX_DEPTH} levels"
_MAX_VALUE_CHARS = 200  # shown of a value in an error
_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}


class Parameters:
    """The parameters of a callback: their names and types, the required ones, and the one that
    receives the `ToolContext`. Parameters bound by a `functools.partial` are neither shown nor
    accepted: their value is fixed and may be a secret."""

    __slots__ = ("callback", "context", "fields", "required", "takes_any")

    def __init__(self, tool: str, callback: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(callback)
        except (TypeError, ValueError):  # some builtins have none
            raise ConfigurationError(
                f"Tool {tool!r}: callback {callback!r} has no readable signature; wrap it in a"
                " function."
            ) from None
        self.callback, bound = unwrap_partial(callback)
        hints = self.hints()
        self.context: str | None = None
        self.fields: dict[str, tuple[Any, Any]] = {}
        self.required: set[str] = set()
        self.takes_any = False
        for name, parameter in signature.parameters.items():
            if name in bound:
                continue
            raw_annotation: Any = parameter.annotation
            annotation = hints.get(
                name, Any if raw_annotation is parameter.empty else raw_annotation
            )
            if parameter.kind is parameter.VAR_KEYWORD:
                self._take_keywords(annotation)
            elif _is_context(annotation):
                if self.context is not None:
                    raise ConfigurationError(
                        f"Tool {tool!r}: its callback has two ToolContext parameters,"
                        f" {self.context!r} and {name!r}."
                    )
                self.context = name
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                is_many = parameter.kind is parameter.VAR_POSITIONAL
                subject = f"*{name} takes" if is_many else f"{name!r} is"
                raise ConfigurationError(
                    f"Tool {tool!r}: callback parameter {subject} positional"
                    f"{' arguments' if is_many else '-only'}; arguments of tools are named. Give it"
                    f" {'a parameter that is a list' if is_many else 'a plain parameter'}."
                )
            elif parameter.default is parameter.empty:
                self.fields[name] = (annotation, ...)
                self.required.add(name)
            else:
                self.fields[name] = (annotation, parameter.default)

    def _take_keywords(self, annotation: Any) -> None:
        """Take `**options`: any names, or those of a TypedDict (`**options: Unpack[Options]`)."""
        kind: Any = next(iter(typing.get_args(annotation)), None)
        if not hasattr(kind, "__required_keys__"):
            self.takes_any = True
            return
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            is_required = name in kind.__required_keys__
            # `__required_keys__` knows no marks that are texts.
            while (mark := typing.get_origin(hint)) in (typing.Required, typing.NotRequired):
                is_required = mark is typing.Required
                (hint,) = typing.get_args(hint)
            self.fields[name] = (hint, ... if is_required else msgspec.UNSET)
            if is_required:
                self.required.add(name)

    def hints(self) -> dict[str, Any]:
        """Return the annotations that can be resolved now, one by one if a name exists only for the
        type checker or is defined later."""
        target: Any = self.callback
        if inspect.isclass(target):
            target = target.__init__
        elif not inspect.isroutine(target):
            target = type(target).__call__
        with suppress(Exception):
            return typing.get_type_hints(target, include_extras=True)
        function = getattr(inspect.unwrap(target), "__func__", inspect.unwrap(target))
        names: dict[str, Any] = getattr(function, "__globals__", {})
        hints: dict[str, Any] = {}
        for name, annotation in getattr(function, "__annotations__", {}).items():
            holder: Any = types.SimpleNamespace(__annotations__={name: annotation})
            with suppress(Exception):
                hints.update(typing.get_type_hints(holder, names, include_extras=True))
        return hints


def unwrap_partial(callback: Callable[..., Any]) -> tuple[Callable[..., Any], set[str]]:
    """Return the function inside of any `functools.partial`s, and the names that these bind."""
    bound: set[str] = set()
    while isinstance(callback, functools.partial):
        bound.update(callback.keywords)
        callback = cast("Callable[..., Any]", callback.func)
    return callback, bound


def is_method(callback: Any) -> bool:
    """Return True for a function that was defined in a class and takes its instance as `self`."""
    if not inspect.isfunction(callback):
        return False
    scope, _, _ = callback.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(callback).parameters), "")
    return first == "self" and bool(scope) and not scope.endswith("<locals>")


_CONTEXT = re.compile(r"(?:[\w.]+\[)?(?:\w+\.)*ToolContext\]?(?:\s*\|\s*None)?")


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return _CONTEXT.fullmatch(annotation.strip("'\"")) is not None
    if isinstance(annotation, type):
        return issubclass(annotation, ToolContext)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_context(part) for part in typing.get_args(annotation))
    return isinstance(annotation, typing.ForwardRef) and _is_context(annotation.__forward_arg__)


# --- from a signature ---


def _model_fields(tool: str, parameters: Parameters) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of a pydantic model of the parameters by name, and the parameters' names by
    the field's name where these differ."""
    from pydantic import BaseModel, Field

    docs = parse_docstring(docstring(parameters.callback))[1]
    hints = parameters.hints()  # resolved again: a class may have been defined after the function
    fields: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for index, (name, (annotation, default)) in enumerate(parameters.fields.items()):
        annotation = hints.get(name, annotation)
        if isinstance(annotation, str):
            raise ConfigurationError(
                f"Tool {tool!r}: parameter {name!r} is annotated {annotation!r}, which its module"
                " does not know at run time. Import or define it at the top of the module, outside"
                " of `if TYPE_CHECKING`, or pass input_schema."
            )
        annotation = adapted(annotation)
        if default is None:
            # As type checkers once read `x: int = None`; models send null there.
            annotation = typing.Optional[annotation]  # noqa: UP045 - a type at run time
        safe = name
        if name.startswith("_") or hasattr(BaseModel, name):  # names that pydantic reserves
            safe = f"p{index}_{name.strip('_')}"
            while safe in parameters.fields:
                safe += "_"
            renamed[safe] = name
            annotation = typing.Annotated[annotation, Field(alias=name)]
        extras: tuple[Any, ...] = (*getattr(annotation, "__metadata__", ()), default)
        if name in docs and not any(getattr(extra, "description", None) for extra in extras):
            annotation = typing.Annotated[annotation, Field(description=docs[name])]
        fields[safe] = (annotation, default)
    return fields, renamed


def from_signature(tool: str, parameters: Parameters) -> tuple[dict[str, Any], Validate]:
    """Return the JSON Schema of a callback's parameters, and a converting validator."""
    import pydantic
    from pydantic import ConfigDict, create_model
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        # A default that JSON cannot represent is left out.
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    if is_method(parameters.callback):
        raise ConfigurationError(
            f"Tool {tool!r}: its callback is a method without an instance. Take the tool from an"
            f" instance: {parameters.callback.__qualname__.replace('.', '().')}."
        )
    fields, renamed = _model_fields(tool, parameters)
    config = ConfigDict(
        extra="allow" if parameters.takes_any else "forbid",
        arbitrary_types_allowed=False,
        protected_namespaces=(),
    )
    try:
        model = create_model(f"{tool}_arguments", __config__=config, **fields)
        schema = model.model_json_schema(schema_generator=Quiet)
    except Exception as error:
        problem = _undescribable(parameters, fields, renamed) or f"its parameters: {_reason(error)}"
        raise ConfigurationError(
            f"Tool {tool!r}: {problem} Annotate it with a type that JSON has (such as str, int,"
            " list[str], a dataclass or a pydantic model), or pass input_schema."
        ) from error
    schema = cast("dict[str, Any]", without_titles(with_msgspec_schemas(schema)))
    schema.pop("description", None)
    schema.setdefault("properties", {})
    validate_python = model.__pydantic_validator__.validate_python
    failure = pydantic.ValidationError
    takes_any = parameters.takes_any
    may_be_unset = any(default is msgspec.UNSET for _, default in parameters.fields.values())

    def validate(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            instance = validate_python(arguments)
        except failure as error:
            instance = validate_converted(arguments, error)
        values: dict[str, Any] = instance.__dict__
        if may_be_unset:
            values = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        if renamed:
            values = {renamed.get(name, name): value for name, value in values.items()}
        return {**values, **(instance.__pydantic_extra__ or {})} if takes_any else values

    def validate_converted(arguments: dict[str, Any], error: pydantic.ValidationError) -> Any:
        # pydantic converts "3" to 3, but not "[1, 2]" to a list.
        problems = error.errors(include_url=False)
        mismatches: list[Mismatch] = [
            (item["loc"], item["input"], ("array", "object"))
            for item in problems
            if item["type"].endswith("_type")  # such as list_type, dict_type, model_type
        ]
        converted = _convert_strings(arguments, mismatches)
        if converted is not None:
            try:
                return validate_python(converted)
            except failure as second:
                problems = second.errors(include_url=False)
        raise validation_error(tool, schema, [*map(_pydantic_problem, problems)]) from None

    return schema, validate


def _undescribable(
    parameters: Parameters, fields: Mapping[str, Any], renamed: Mapping[str, str]
) -> str:
    """Return the first parameter that cannot be described to a model, and the reason."""
    from pydantic import create_model

    for safe, field in fields.items():
        try:
            create_model("arguments", **{safe: field}).model_json_schema()
        except Exception as error:
            name = renamed.get(safe, safe)
            kind: Any = parameters.fields[name][0]
            text = kind.__qualname__ if isinstance(kind, type) else str(kind)
            return (
                f"parameter {name!r} is annotated {cut(text, _MAX_VALUE_CHARS)}, which cannot be"
                f" described to a model: {_reason(error)}"
            )
    return ""


def _reason(error: Exception) -> str:
    """Return what pydantic says, without its advice on models: a tool has none."""
    line = _first_line(error)
    undefined = re.search(r"you should define `(\w+)`", line)
    if undefined:
        return f"{undefined[1]} is not known at run time."
    return line.partition(" Set `arbitrary_types_allowed")[0]


def _pydantic_problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "arguments"
    if item["type"] == "missing":
        return f"{where} is required"
    if item["type"] == "extra_forbidden":
        return f"{where} is not one of its parameters"
    message = str(item["msg"])
    return f"{where}: {message[0].lower()}{message[1:]}, not {_short(item['input'])}"


# --- from a JSON Schema ---


def check_schema(
    tool: str, schema: Any, argument: str = "input_schema", untrusted: bool = False
) -> dict[str, Any]:
    """Return a copy of `schema`. Raises `ConfigurationError` naming the argument if it cannot be a
    JSON Schema. A trusted schema is checked superficially here and fully at the first call. An
    `untrusted` schema is checked fully now."""
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"Tool {tool!r}: {argument} takes a JSON Schema as a dict, not {_short(schema)}."
        )
    try:
        source = dict(cast("Mapping[str, Any]", schema))
        copy: dict[str, Any] = json.loads(json.dumps(source, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"Tool {tool!r}: {argument} is not JSON: {error}.") from None
    for kind in as_list(copy.get("type", "object")):
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ConfigurationError(
                f"Tool {tool!r}: {argument} has type {kind!r}, which is not one of"
                f" {', '.join(sorted(_TYPES))}."
            )
    for key, form, takes in (
        ("properties", dict[str, Any], "a dict of schemas by name"),
        ("$defs", dict[str, Any], "a dict of schemas by name"),
        ("required", list[str], "a list of property names"),
    ):
        try:
            msgspec.convert(copy.get(key, form()), form)
        except msgspec.ValidationError:
            raise ConfigurationError(
                f"Tool {tool!r}: {argument} has {key} {_short(copy[key])}; it takes {takes}."
            ) from None
    if untrusted:
        _checker(tool, argument, copy)
    return copy


_OBJECT_KEYWORDS = word_set("type properties required additionalProperties patternProperties $ref")
_COMPOSITION_KEYWORDS = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}


def is_object(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema describes named arguments rather than one value."""
    return schema.get("type", "object") == "object" and (
        not schema or not _OBJECT_KEYWORDS.isdisjoint(schema)
    )


def is_composed(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema may define properties in other schemas."""
    return not _COMPOSITION_KEYWORDS.isdisjoint(schema)


def wrap_schema(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    """Return the object schema of one argument `name` described by `schema`. Definitions stay at
    the root, where references point."""
    inner, roots = dict(schema), ("$schema", "$defs", "definitions")
    outer: dict[str, Any] = {key: inner.pop(key) for key in roots if key in inner}
    outer |= {"type": "object", "properties": {name: inner}, "additionalProperties": False}
    if required:
        outer["required"] = [name]
    return outer


def from_json_schema(
    tool: str,
    schema: dict[str, Any],
    names: Set[str] | None = None,
    explain: Explain | None = None,
    untrusted: bool = False,
) -> Validate:
    """Return a validator by jsonschema, compiled at the first call. Its work is bounded.

    The validator converts a string to a number, a boolean or a JSON value where the schema requires
    one. A schema that is malformed or cannot be applied raises `ConfigurationError`.

    Args:
        names: The permitted names; None permits all names.
        explain: Makes the error for `(tool, schema, problems)`; None makes a `ToolValidationError`.
        untrusted: True if the schema comes from outside. Then patterns that have no linear time are
            not enforced (see `holdfast.tools.untrusted`).
    """

    @functools.cache
    def check() -> Callable[[Any], list[Any]]:
        return _checker(tool, "input_schema", schema, trusted=not untrusted).problems

    def problems_of(arguments: dict[str, Any]) -> list[Any]:
        apply = check()
        try:
            return apply(arguments)
        except RecursionError:
            raise validation_error(tool, schema, [TOO_DEEP]) from None
        except Exception as error:  # such as a missing reference
            raise ConfigurationError(
                f"Tool {tool!r}: input_schema cannot be applied: {_first_line(error)}"
            ) from error

    def validate(arguments: dict[str, Any]) -> dict[str, Any]:
        problems = problems_of(arguments)
        for _ in range(4):  # a string may hold an object whose values are quoted too
            converted = (
                _convert_strings(arguments, _type_mismatches(problems)) if problems else None
            )
            if converted is None:
                break
            arguments = converted
            problems = problems_of(arguments)
        messages = [_jsonschema_problem(problem) for problem in problems]
        if names is not None and not problems and not names >= arguments.keys():
            messages = [
                f"{name} is not one of its parameters" for name in arguments if name not in names
            ]
        if messages:
            raise (explain or validation_error)(tool, schema, messages)
        return arguments

    return validate


def result_checker(tool: str, schema: dict[str, Any]) -> Callable[[Any], str]:
    """Return a function that checks a tool's structured content against its untrusted output
    schema. The function returns a description of the violations, "" if there are none. Content that
    cannot be checked is accepted with a warning in the log, because the schema is the server's own
    promise."""

    @functools.cache
    def checker() -> Checker:
        return _checker(tool, "output_schema", schema)

    def problem(content: Any) -> str:
        try:
            errors = checker().problems(content)
        except Exception as error:
            line = _first_line(error)
            _log.warning(
                "Tool %r: its result is not checked against its output_schema: %s", tool, line
            )
            return ""
        more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
        texts = [_jsonschema_problem(one).removeprefix("arguments: ") for one in errors[:3]]
        return "; ".join(texts) + more

    return problem


def _checker(tool: str, argument: str, schema: dict[str, Any], trusted: bool = False) -> Checker:
    """Return a bounded checker. Raises `ConfigurationError` for an unusable schema."""
    # Imported late: tools without a schema do without it.
    from holdfast.tools.untrusted import Checker, UnusableSchema

    try:
        return Checker(f"Tool {tool!r}: {argument}", schema, trusted)
    except UnusableSchema as error:
        raise ConfigurationError(f"Tool {tool!r}: {argument} {error}.") from None


# --- strings in place of other types ---

# The path of a value, the value, and the JSON types that the schema requires there.
Mismatch = tuple[Sequence[Any], Any, Sequence[str]]


def _type_mismatches(problems: list[Any]) -> list[Mismatch]:
    """Return the places where a schema requires another type, or one of several types."""
    mismatches: list[Mismatch] = []
    for problem in problems:
        parts: list[Any] = problem.context if problem.validator in ("anyOf", "oneOf") else [problem]
        type_names: list[str] = []
        for part in parts:
            if part.validator == "type" and part.absolute_path == problem.absolute_path:
                type_names += as_list(part.validator_value)
        if type_names:
            mismatches.append((list(problem.absolute_path), problem.instance, type_names))
    return mismatches


def _convert_strings(
    arguments: dict[str, Any], mismatches: Sequence[Mismatch]
) -> dict[str, Any] | None:
    """Convert strings to the required types where nothing is lost, since models often quote numbers
    and whole objects. Returns None if nothing was converted."""
    converted: dict[str, Any] | None = None
    for path, text, type_names in mismatches:
        value = _parse_as(text, type_names) if isinstance(text, str) else None
        if value is not None:
            converted = _replace_at(converted or arguments, path, text, value[0])
    return converted


def _replace_at(place: Any, path: Sequence[Any], text: str, value: Any) -> Any:
    """Return a copy of `place` with `value` instead of `text` at `path`. The end of `path` may be
    no place (pydantic names members of a union there)."""
    if isinstance(place, dict) and path and path[0] in place:
        items = cast("dict[Any, Any]", place)
        return {**items, path[0]: _replace_at(items[path[0]], path[1:], text, value)}
    if isinstance(place, list) and path and isinstance(path[0], int):
        items_copy = cast("list[Any]", place).copy()
        items_copy[path[0]] = _replace_at(items_copy[path[0]], path[1:], text, value)
        return items_copy
    return value if place == text else cast(Any, place)


_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
}


def _parse_as(text: str, type_names: Sequence[str]) -> tuple[Any] | None:
    word = text.strip()
    try:
        value = json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except (ValueError, RecursionError):
        return None
    fits = any(_TYPE_CHECKS[kind](value) for kind in type_names if kind in _TYPE_CHECKS)
    return (value,) if fits else None


def _jsonschema_problem(problem: Any) -> str:
    where = ".".join(str(part) for part in problem.absolute_path)
    if problem.validator == "required":
        missing = [name for name in problem.validator_value if name not in problem.instance]
        return " and ".join(f"{where + '.' if where else ''}{name} is required" for name in missing)
    return f"{where or 'arguments'}: {cut(str(problem.message), _MAX_VALUE_CHARS)}"


# --- shared ---


def validation_error(
    tool: str, schema: Mapping[str, Any], problems: list[str]
) -> ToolValidationError:
    """Return the error for arguments with these problems, with a list of the parameters."""
    unique = list(dict.fromkeys(problems))
    more = f"; and {len(unique) - 5} more" if len(unique) > 5 else ""
    names = list(cast("dict[str, Any]", schema.get("properties", {})))
    takes = "" if is_composed(schema) else " It takes no arguments."
    if names:
        takes = f" It takes: {', '.join(names)}."
    listed = "; ".join(unique[:5]).rstrip(".")
    return ToolValidationError(
        f"{tool!r} was not run: {listed}{more}.{takes} Send the call again with all of it right."
    )


def _short(value: Any) -> str:
    return cut(repr(value), _MAX_VALUE_CHARS)


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0]
    return line if line.endswith(".") else line + "."


# Keywords whose value maps names to schemas, and those whose value is data.
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("default", "const", "enum", "examples")


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a schema in which each schema is what `change` makes of it, inner ones
    first."""
    if isinstance(schema, list):
        return [map_schemas(item, change) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            members = cast("dict[str, Any]", value).items()
            result[key] = {name: map_schemas(item, change) for name, item in members}
        else:
            result[key] = value if key in _DATA else map_schemas(value, change)
    return change(result)


def without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic derives from names: they cost tokens and
    add nothing. Properties named title stay."""

    def without_title(one: dict[str, Any]) -> dict[str, Any]:
        if isinstance(one.get("title"), str):
            del one["title"]
        return one

    return map_schemas(schema, without_title)


_PARAMETERS = word_set("Args Arguments Parameters Params")
_SECTION = re.compile(
    r"^(?:Keyword |Other )?(Args|Arguments|Parameters|Params"
    r"|Returns|Return|Raises|Yields|Examples?|Notes?)\s*:?\s*$"
)
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^[:@]param(?:\s+[^:]+)?\s+(\w+)\s*:\s*(.*)$")
_UNDERLINE = re.compile(r"-{3,}\s*")
_NUMPY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


def docstring(callback: Callable[..., Any]) -> str:
    """Return the docstring of a function or a class. A class without one has none: its base's
    describes the base."""
    if inspect.isclass(callback):
        return inspect.cleandoc(callback.__dict__.get("__doc__") or "")
    return inspect.getdoc(callback) or ""


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's description and parameters (Google's, NumPy's or Sphinx's style)."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    section, names, indent, underlined = "", list[str](), 0, False
    for line, following in itertools.pairwise([*doc.splitlines(), ""]):
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        sphinx = _SPHINX.match(stripped)
        if sphinx:
            section, names = "sphinx", [sphinx[1]]
            parameters[sphinx[1]] = sphinx[2]
        elif stripped and not depth and _UNDERLINE.fullmatch(following):
            heading = _SECTION.match(stripped)
            section, names, underlined = heading[1] if heading else "other", [], True
        elif underlined and _UNDERLINE.fullmatch(stripped):
            continue
        elif not depth and (heading := _SECTION.match(stripped)):
            section, names, underlined = heading[1], [], False
        elif not section:
            description.append(line)
        elif stripped.startswith((":", "@")):
            section, names = "other", []
        elif section in _PARAMETERS and stripped:
            entry = (_NUMPY if underlined else _GOOGLE).match(stripped)
            if entry and (depth == 0 if underlined else not names or depth <= indent):
                names = [name.strip(" *") for name in entry[1].split(",")]
                indent = depth
                parameters.update(dict.fromkeys(names, "" if underlined else entry[2]))
            else:
                for name in names:
                    parameters[name] = f"{parameters[name]} {stripped}".strip()
        elif section == "sphinx" and names and stripped:
            parameters[names[0]] += f" {stripped}"
    return "\n".join(description).strip(), parameters
