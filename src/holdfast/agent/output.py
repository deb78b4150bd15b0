"""Structured output of a run: the tool `finish`, made from an `output_type`, and messages about
invalid results.

A valid call of the tool is the result. The journal has the result as the structured content of
the call's result, with a mark in its meta. Type libraries are imported only if there is an
output type.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ConfigurationError, OutputInvalid, ToolValidationError
from holdfast.tools import schema as schemas
from holdfast.tools.arguments import wrong
from holdfast.tools.context import ToolContext
from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.results import OUTPUT as MARK
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.tools import ToolManager

FINISH = "finish"
REPAIR = "output:repair"
WRAPPED = "output"  # the property that holds a value that is not an object

PROMPT = (
    "When the task is done, call the tool finish: its arguments are the result, and the call ends"
    " your work. A text is not taken as the result."
)
TEXT_INSTEAD = "it was a text, not a call of finish"
_DESCRIPTION = (
    "Hand over the result of the task and end your work. Call it once, when the task is done; its"
    " arguments are the result."
)
_ACCEPTED_TEXT = "Accepted: this is the result."
_MAX_PROBLEMS = 5  # the number of problems named in one message


def repair_message(problem: str) -> str:
    """Return the message to the model after a failed round."""
    if problem == TEXT_INSTEAD:
        return (
            "That is not a result yet: you answered with a text. When the task is done, call"
            " finish; its arguments are the result."
        )
    problem = problem.rstrip(".")
    return f"That result was not accepted: {problem}. Call finish again, with all of it right."


def is_output(name: str, result: ToolResult) -> bool:
    """Return True if a call's result is the run's output."""
    return name == FINISH and not result.is_error and result.meta.get(MARK) is True


def asks_nobody(policy: object, name: str = FINISH) -> bool:
    """Return True if a call of `finish` or another tool without effects runs without a decision of
    this confirmation policy. Each of Holdfast's own policies that does not name the tool is such a
    policy."""
    ours = policy is None or type(policy).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and name not in getattr(policy, "verdicts", ())


def typed_output(output: Output | None, value: Any) -> Any:
    """Return a run's output as an object of the agent's output type, if there is one. Raises
    `OutputInvalid`."""
    return value if output is None else output.read(value)


class Output:
    """The output type of an agent: its JSON Schema, the tool `finish`, and the conversion from and
    to JSON.

    `untrusted` bounds the validation work of a JSON Schema that comes from outside. Raises
    `ConfigurationError` for an unsupported type.

    Attributes:
        type: The type, or a JSON Schema.
        form: The type as a JSON Schema; `Output(form)` shows a model the same.
        schema: The schema of the tool's parameters, always an object.
        tool: The tool `finish`.
        wrapped: True if the tool's parameters wrap the value in one property.
    """

    def __init__(self, type: Any, untrusted: bool = False) -> None:
        self.type = type
        schema = cast("Mapping[str, Any]", type)
        is_schema = isinstance(type, Mapping)
        conversion = _of_schema(schema, untrusted) if is_schema else _of_type(type)
        self.form, self._dump = conversion.schema, conversion.dump
        self.read = conversion.read
        """Converts a JSON value to an object of the type. Raises `OutputInvalid`."""
        self.wrapped = self.form.get("type") != "object" or schemas.is_composed(self.form)
        self.schema: dict[str, Any] = {"properties": {}, **self.form}
        if self.wrapped:
            self.schema = schemas.wrap_schema(WRAPPED, self.form, True)
        self.tool = _Finish(self)

    def of_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value in the arguments of `finish` as a JSON value. Raises `OutputInvalid`."""
        if not self.wrapped:
            return dict(arguments)
        if set(arguments) != {WRAPPED}:
            raise OutputInvalid(f"{WRAPPED} is required, and nothing else")
        return arguments[WRAPPED]

    def dump(self, value: Any, source: Any) -> Any:
        """Convert an object of the type to a JSON value that `read` accepts. Return `source`, the
        JSON value that the object was made from, if the conversion fails."""
        try:
            json_value = self._dump(value)
            self.read(json_value)
            return json_value
        except Exception:  # a custom serializer may write JSON that the type does not read
            return source


def output_of(type: Any, manager: ToolManager) -> Output | None:
    """Return the `Output` of an agent with these tools; None without a type. If the tools already
    have `finish` for the same type, its `Output` is returned, because agents may share a manager.
    Raises `ConfigurationError`."""
    if type is None or isinstance(type, Output):
        return type
    finish = manager.get(FINISH) if manager.exists(FINISH) else None
    if isinstance(finish, _Finish):
        own_type = finish.output.type
        if own_type is type or (isinstance(type, Mapping) and own_type == type):
            return finish.output
    return Output(type)


class _Finish(Tool):
    """The tool by which the model hands over its result."""

    tool_type = "local_function"

    def __init__(self, output: Output) -> None:
        super().__init__(
            FINISH,
            _DESCRIPTION,
            None,
            output.schema,
            annotations=LOCAL_READ,
            category="builtin",
            parallel=False,
        )
        self.module_qualname = __name__
        self.output = output

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema of the result."""
        return self.output.schema

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return `{"given": JSON, "made": function}` for the arguments. Raises
        `ToolValidationError`."""
        try:
            json_value = self.output.of_arguments(arguments)
            result = self.output.read(json_value)
        except OutputInvalid as error:
            raise ToolValidationError(error.problem) from error
        # A function, because copies of the arguments share it and the object of the user's type.
        return {"given": json_value, "made": lambda: result}

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Return the result, marked as the run's output."""
        value = self.output.dump(arguments["made"](), arguments["given"])
        return ToolResult((TextContent(_ACCEPTED_TEXT),), value, {MARK: True})


class _Conversion(NamedTuple):
    """The schema of a type, and the conversions from and to JSON values."""

    schema: dict[str, Any]
    read: Callable[[Any], Any]
    dump: Callable[[Any], Any]


def _of_type(type: Any) -> _Conversion:
    is_value = isinstance(type, str | bytes | int | float | list | tuple | set)
    if is_value or inspect.isroutine(type) or type is Any:
        form = "a type such as a pydantic model, or a JSON Schema as a dict"
        raise wrong("Agent: output_type", form, cast("object", type))
    if inspect.isclass(type) and issubclass(type, msgspec.Struct):
        return _of_msgspec(type)
    import pydantic
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    try:
        adapter: Any = cast("Any", pydantic.TypeAdapter)(type)
        schema = adapter.json_schema()
    except (PydanticUserError, SchemaError, TypeError, AttributeError, NameError) as error:
        try:
            return _of_msgspec(type)  # such as a list of Structs
        except ConfigurationError:
            line = str(error).strip().split("\n", 1)[0]
            raise ConfigurationError(
                f"Agent: output_type {type!r} cannot be described to a model: {line}"
            ) from error

    def read(value: Any) -> Any:
        try:
            # Read as JSON: there a text is a valid date and a list a valid tuple, even for strict
            # types.
            return adapter.validate_json(msgspec.json.encode(value))
        except pydantic.ValidationError as error:
            problems = [_pydantic_problem(item) for item in error.errors(include_url=False)]
            raise _invalid(problems) from error

    def dump(value: Any) -> Any:
        return adapter.dump_python(value, mode="json", by_alias=True)

    return _Conversion(_schema_for_model(schema), read, dump)


def _of_msgspec(type: Any) -> _Conversion:
    try:
        schema = msgspec.json.schema(type)
    except Exception as error:
        raise ConfigurationError(
            f"Agent: output_type {type!r} cannot be described to a model: {error}"
        ) from error

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, type, strict=False)
        except msgspec.ValidationError as error:
            raise _invalid([str(error)]) from error

    return _Conversion(_schema_for_model(schema), read, msgspec.to_builtins)


def _of_schema(schema: Mapping[str, Any], untrusted: bool) -> _Conversion:
    try:
        checked_schema = schemas.check_schema(FINISH, schema, untrusted=untrusted)
        whole = schemas.wrap_schema(WRAPPED, checked_schema, True)
        check = schemas.from_json_schema(FINISH, whole, explain=_output_error, untrusted=untrusted)
        with suppress(OutputInvalid):
            check({})  # an invalid schema raises another error
    except ConfigurationError as error:
        raise ConfigurationError(
            f"Agent: output_type is not a valid JSON Schema: {str(error).partition(': ')[2]}"
        ) from error

    def read(value: Any) -> Any:
        return check({WRAPPED: value})[WRAPPED]

    def dump(value: Any) -> Any:
        return value

    return _Conversion(checked_schema, read, dump)


def _pydantic_problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "missing":
        return f"{where} is required"
    message, value = str(item["msg"]), repr(item["input"])
    value = value if len(value) <= 200 else value[:200] + "..."
    text = f"{message[0].lower()}{message[1:]}, not {value}"
    return f"{where}: {text}" if where else text


def _output_error(tool: str, schema: Mapping[str, Any], problems: list[str]) -> Exception:
    return _invalid([re.sub(rf"\A({WRAPPED}\.)?({WRAPPED}: )?", "", text) for text in problems])


def _invalid(problems: list[str]) -> OutputInvalid:
    unique = list(dict.fromkeys(problems))
    more = f"; and {len(unique) - _MAX_PROBLEMS} more" if len(unique) > _MAX_PROBLEMS else ""
    return OutputInvalid("; ".join(unique[:_MAX_PROBLEMS]) + more)


def _schema_for_model(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a type's schema for a model: without generated titles, with the root reference
    resolved and objects closed."""
    result: dict[str, Any] = schemas.map_schemas(schemas.without_titles(schema), _close_object)
    root = result.get("$ref")
    if isinstance(root, str) and root.startswith("#/$defs/"):
        name = root.removeprefix("#/$defs/")
        defs = cast("dict[str, Any]", result["$defs"])
        others = {key: value for key, value in defs.items() if key != name or _mentions(defs, root)}
        result = {**defs[name], **({"$defs": others} if others else {})}
    return result


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, dict):
        schema = list(cast("dict[str, Any]", schema).values())
    members = cast("list[Any]", schema) if isinstance(schema, list) else []
    return any(value == reference or _mentions(value, reference) for value in members)


def _close_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Set `additionalProperties: false` on an object that has properties and no such key."""
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema
