"""Structured output of a run: the tool `finish`, made from an `output_type`, and messages about
invalid results.

A valid call of the tool is the result. The journal has the result as the structured content of
the call's result, with a mark in its meta. Type libraries are imported only if there is an
output type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ConfigurationError, OutputInvalid, ToolValidationError
from holdfast.tools import schema as schemas
from holdfast.tools.context import ToolContext
from holdfast.tools.results import OUTPUT as MARK
from holdfast.tools.tool import Tool, ToolAnnotations

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


def repair(problem: str) -> str:
    """Return the message to the model after a failed round."""
    if problem == TEXT_INSTEAD:
        return (
            "That is not a result yet: you answered with a text. When the task is done, call"
            " finish;"
            " its arguments are the result."
        )
    return (
        f"That result was not accepted: {problem.rstrip('.')}. Call finish again, with all of it"
        " right."
    )


def is_output(name: str, result: ToolResult) -> bool:
    """Return True if a call's result is the run's output."""
    return name == FINISH and not result.is_error and result.meta.get(MARK) is True


def asks_nobody(policy: object) -> bool:
    """Return True if a call of `finish` runs without a decision of this confirmation policy.

    `finish` changes nothing, so this is the case for each of Holdfast's own policies that does
    not name the tool.
    """
    ours = policy is None or type(policy).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and FINISH not in getattr(policy, "verdicts", ())


def with_prompt(
    base: str | None, extensions: Sequence[str], output: Output | None
) -> Sequence[str]:
    """Append the sentence about `finish` to the extensions of a system prompt.

    A prompt that already has the sentence, such as one from a serial form, stays unchanged.
    """
    if output is None or any(PROMPT in text for text in (base or "", *extensions)):
        return extensions
    return (*extensions, PROMPT)


def made(output: Output | None, value: Any) -> Any:
    """Return a run's output as an object of the agent's output type, if there is one.

    Raises `OutputInvalid`.
    """
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

    __slots__ = ("_dump", "_read", "form", "schema", "tool", "type", "wrapped")

    def __init__(self, type: Any, untrusted: bool = False) -> None:
        self.type = type
        shown, self._read, self._dump = (
            _of_schema(cast("Mapping[str, Any]", type), untrusted)
            if isinstance(type, Mapping)
            else _of_type(type)
        )
        self.form = shown
        self.wrapped = shown.get("type") != "object" or schemas.is_composed(shown)
        empty: dict[str, Any] = {"properties": {}}
        self.schema: dict[str, Any] = (
            schemas.wrapped(WRAPPED, shown, True) if self.wrapped else {**empty, **shown}
        )
        self.tool = _Finish(self)

    def read(self, value: Any) -> Any:
        """Convert a JSON value to an object of the type. Raises `OutputInvalid`."""
        return self._read(value)

    def of_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value in the arguments of `finish` as a JSON value. Raises `OutputInvalid`."""
        if not self.wrapped:
            return dict(arguments)
        if set(arguments) != {WRAPPED}:
            raise OutputInvalid(f"{WRAPPED} is required, and nothing else")
        return arguments[WRAPPED]

    def dump(self, made: Any, given: Any) -> Any:
        """Convert an object of the type to a JSON value that `read` accepts.

        Return `given`, the JSON value that the object was made from, if the conversion fails.
        """
        try:
            found = self._dump(made)
            self._read(found)
            return found
        except Exception:  # a custom serializer may write JSON that the type does not read
            return given


def output_of(type: Any, manager: ToolManager) -> Output | None:
    """Return the `Output` of an agent with these tools; None without a type.

    If the tools already have `finish` for the same type, its `Output` is returned, because
    agents may share a manager. Raises `ConfigurationError`.
    """
    if type is None or isinstance(type, Output):
        return type
    found = manager.get(FINISH) if manager.exists(FINISH) else None
    if isinstance(found, _Finish) and (
        found.output.type is type or (isinstance(type, Mapping) and found.output.type == type)
    ):
        return found.output
    return Output(type)


class _Finish(Tool):
    tool_type = "local_function"

    """The tool by which the model hands over its result."""

    def __init__(self, output: Output) -> None:
        annotations = ToolAnnotations(
            read_only=True, destructive=False, idempotent=True, open_world=False
        )
        super().__init__(
            FINISH,
            _DESCRIPTION,
            None,
            output.schema,
            annotations=annotations,
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
        """Return `{"given": JSON, "made": object}` for the arguments. Raises
        `ToolValidationError`."""
        try:
            given = self.output.of_arguments(arguments)
            return {"given": given, "made": _Box(self.output.read(given))}
        except OutputInvalid as error:
            raise ToolValidationError(error.problem) from error

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Return the result, marked as the run's output."""
        value = self.output.dump(arguments["made"].value, arguments["given"])
        return ToolResult((TextContent(_ACCEPTED_TEXT),), value, {MARK: True})


class _Box:
    """A box that keeps an object of the user's type from being copied."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __deepcopy__(self, memo: Any) -> _Box:
        return self


# --- from a type ---

_Conversion = tuple[dict[str, Any], Callable[[Any], Any], Callable[[Any], Any]]


def _of_type(type: Any) -> _Conversion:
    if (
        isinstance(type, str | bytes | int | float | list | tuple | set)
        or inspect.isroutine(type)
        or type is Any
    ):
        raise ConfigurationError(
            "Agent: output_type takes a type such as a pydantic model, or a JSON Schema as a dict,"
            f" not {type!r}."
        )
    if inspect.isclass(type) and issubclass(type, msgspec.Struct):
        return _of_msgspec(type)
    import pydantic
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    try:
        adapter: Any = cast("Any", pydantic.TypeAdapter)(type)
        shown = adapter.json_schema()
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
            raise OutputInvalid(
                _joined_problems(
                    [_pydantic_problem(item) for item in error.errors(include_url=False)]
                )
            ) from error

    return (
        _schema_for_model(shown),
        read,
        lambda made: adapter.dump_python(made, mode="json", by_alias=True),
    )


def _of_msgspec(type: Any) -> _Conversion:
    try:
        shown = msgspec.json.schema(type)
    except Exception as error:
        raise ConfigurationError(
            f"Agent: output_type {type!r} cannot be described to a model: {error}"
        ) from error

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, type, strict=False)
        except msgspec.ValidationError as error:
            raise OutputInvalid(_joined_problems([str(error)])) from error

    return _schema_for_model(shown), read, msgspec.to_builtins


def _of_schema(schema: Mapping[str, Any], untrusted: bool = False) -> _Conversion:
    try:
        given = schemas.check_schema(FINISH, schema, untrusted=untrusted)
        check = schemas.from_json_schema(
            FINISH,
            schemas.wrapped(WRAPPED, given, True),
            explain=_output_error,
            untrusted=untrusted,
        )
        try:
            check({})
        except OutputInvalid:
            pass  # the schema is valid
    except ConfigurationError as error:
        raise ConfigurationError(
            f"Agent: output_type is not a valid JSON Schema: {str(error).partition(': ')[2]}"
        ) from error
    return given, lambda value: check({WRAPPED: value})[WRAPPED], lambda made: made


def _pydantic_problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "missing":
        return f"{where} is required"
    message, given = str(item["msg"]), repr(item["input"])
    text = (
        f"{message[0].lower()}{message[1:]}, not"
        f" {given if len(given) <= 200 else given[:200] + '...'}"
    )
    return f"{where}: {text}" if where else text


def _output_error(tool: str, schema: Mapping[str, Any], problems: list[str]) -> Exception:
    return OutputInvalid(
        _joined_problems(
            [
                problem.removeprefix(f"{WRAPPED}.").removeprefix(f"{WRAPPED}: ")
                for problem in problems
            ]
        )
    )


def _joined_problems(problems: list[str]) -> str:
    unique = list(dict.fromkeys(problems))
    more = f"; and {len(unique) - _MAX_PROBLEMS} more" if len(unique) > _MAX_PROBLEMS else ""
    return "; ".join(unique[:_MAX_PROBLEMS]) + more


def _schema_for_model(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a type's schema for a model: without generated titles, with the root reference
    resolved and objects closed."""
    found = cast("dict[str, Any]", _with_closed_objects(schemas.without_titles(schema)))
    root = found.get("$ref")
    if isinstance(root, str) and root.startswith("#/$defs/"):
        name = root.removeprefix("#/$defs/")
        defs = cast("dict[str, Any]", found["$defs"])
        others = {key: value for key, value in defs.items() if key != name or _mentions(defs, root)}
        found = {**defs[name], **({"$defs": others} if others else {})}
    return found


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, dict):
        return any(
            value == reference or _mentions(value, reference)
            for value in cast("dict[str, Any]", schema).values()
        )
    return isinstance(schema, list) and any(
        _mentions(value, reference) for value in cast("list[Any]", schema)
    )


def _with_closed_objects(schema: Any) -> Any:
    """Set `additionalProperties: false` on each object that has properties and no such key."""
    if isinstance(schema, list):
        return [_with_closed_objects(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            found[key] = {
                name: _with_closed_objects(item)
                for name, item in cast("dict[str, Any]", value).items()
            }
        elif key in ("default", "const", "enum", "examples"):
            found[key] = value
        else:
            found[key] = _with_closed_objects(value)
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found
