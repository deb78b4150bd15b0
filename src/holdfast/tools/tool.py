"""`Tool`: a name, a description, a JSON Schema and a callback; and the ways to declare one."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from copy import copy
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.tools import schema as schemas
from holdfast.tools.arguments import require, wrong
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import copy_json
from holdfast.tools.policy import RetryPolicy, ToolAnnotations
from holdfast.tools.results import as_result

if TYPE_CHECKING:
    from holdfast.tools.isolation.isolated import Isolated
    from holdfast.tools.langchain import LangChainAdapter

Callback = Callable[..., Any]
Reconcile = Callable[[ToolCall, ToolContext], Any]
_MAX_SECONDS = threading.TIMEOUT_MAX
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")  # MCP 2025-11-25, "Tool Names"


class Tool:
    """An action that a model can take: an MCP tool and the Python function that serves it.

    Without a schema, the schema is derived from the callback's signature (pydantic's types,
    defaults and docstrings included). A schema that is not an object describes the callback's only
    parameter. Parameters that the callback requires are required; arguments that it does not accept
    are refused.

    A callback may return a `ToolResult`, a str, a JSON value, a msgspec or pydantic model, or None.
    An `async def` callback runs on the loop thread of the agent's tools, and a cancel cancels it. A
    parameter annotated `ToolContext` is filled in and hidden from the model. A subclass may
    override `call(arguments, context)` instead of giving a callback.

    Calls of one answer run in the order of the answer.

    Args:
        timeout: Seconds.
        retry: Permits retries of a failed call, regardless of the annotations. A call that still
            runs after its timeout is retried only if the tool is read-only or idempotent.
        reconcile: A function of `(call, context)` for a tool that may not be repeated. The function
            settles a call whose process died before the result. If the effect has happened, the
            function returns the call's result. If not, it returns None, and the call runs under the
            same idempotency key. If it cannot tell, it raises. A subclass may define it as a
            method.
        isolation: "process" runs each call in a new process, which imports the callback by name. At
            the `timeout` or a cancel that process is killed, with all processes that it started.
            The process inherits neither environment nor open files, and has no `context.runtime`.
        parallel: True lets calls of this tool run beside neighbouring parallel calls. None: only
            a read-only tool is parallel.

    `module_qualname` is the module that declares the tool. Raises `ConfigurationError` (a
    `ValueError`), which names the invalid argument.
    """

    tool_type = "local_function"
    """The kind of tool: `local_function`, `mcp_tool`, `a2a_tool`, or `custom` (the default of
    subclasses)."""
    executor: str = ""
    """The party that runs the calls: "" for the owning process, "client" for a client of the
    agent server."""
    from_factory: bool = False
    """True if a `ToolRegistry` made the tool by its module's factory, so that another process
    can do the same."""
    reconcile: Reconcile | None = None
    _parallel: bool | None = None
    untrusted: bool = False
    """True if the schemas come from outside, such as from a server. Such schemas are checked when
    the tool is made, and patterns that cannot be matched in linear time are not enforced."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "tool_type" not in vars(cls) and cls.tool_type == Tool.tool_type:
            cls.tool_type = "custom"

    runtime: object | None = None
    """The runtime that the tool works in, if the tool belongs to a runtime."""

    def __init__(
        self,
        name: str,
        description: str = "",
        callback: Callback | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
        annotations: ToolAnnotations = ToolAnnotations(),
        category: str = "general",
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        *,
        reconcile: Reconcile | None = None,
        isolation: Literal["process"] | None = None,
        parallel: bool | None = None,
        inputSchema: dict[str, Any] | None = None,  # noqa: N803 - MCP's spelling
    ) -> None:
        self.name = name
        self.description = description
        self.callback = callback
        self.annotations = annotations
        self.category = category
        self.timeout = timeout
        self.retry = retry
        self.isolation = isolation
        self._parallel = parallel
        if reconcile is not None:
            self.reconcile = reconcile  # over the method of a subclass
        self._check_fields()
        if input_schema is not None and inputSchema is not None:
            raise ConfigurationError(f"Tool {name!r}: give input_schema or inputSchema, not both.")
        given_schema = input_schema if input_schema is not None else inputSchema
        self._declared_schema = self._checked_schema("input_schema", given_schema)
        self._output_schema = self._checked_schema("output_schema", output_schema)
        self.is_async = inspect.iscoroutinefunction(type(self).call)
        self._wrapped: str | None = None
        self._schema: dict[str, Any] | None = None
        self._validate: schemas.Validate | None = None
        self._context_parameter: str | None = None
        self._parameters: schemas.Parameters | None = None
        if callback is None:
            if type(self).call is Tool.call:
                raise ConfigurationError(
                    f"Tool {name!r}: callback takes a function; it is missing."
                )
            self.module_qualname = type(self).__module__
        else:
            self._take_callback(callback)
            self.module_qualname = _declaring_module() or module_of(callback)
        self._isolated = None if isolation is None else self._isolate()

    def _check_fields(self) -> None:
        name, timeout = self.name, self.timeout
        settles = self.reconcile is None or callable(self.reconcile)
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise wrong("Tool: name", "1 to 128 letters, digits, '_', '-' or '.'", name)
        untyped: Any = self  # callers are not all typed
        bounded = isinstance(untyped.timeout, int | float) and 0 < untyped.timeout <= _MAX_SECONDS
        require(
            f"Tool {name!r}",
            self,
            ("description", isinstance(untyped.description, str), "a str"),
            ("annotations", type(untyped.annotations) is ToolAnnotations, "ToolAnnotations(...)"),
            ("category", isinstance(untyped.category, str), "a str"),
            ("timeout", timeout is None or bounded, "a number of seconds above 0 or None"),
            ("retry", isinstance(untyped.retry, RetryPolicy | None), "RetryPolicy(...) or None"),
            ("reconcile", settles, "a function of (call, context) or None"),
            ("isolation", untyped.isolation in ("process", None), "'process' or None"),
        )
        if not isinstance(untyped._parallel, bool | None):
            raise wrong(f"Tool {name!r}: parallel", "True, False or None", untyped._parallel)

    def _checked_schema(self, argument: str, schema: Any) -> dict[str, Any] | None:
        if schema is None:
            return None
        return schemas.check_schema(self.name, schema, argument, self.untrusted)

    def _take_callback(self, callback: Callback) -> None:
        if not callable(callback):
            raise wrong(f"Tool {self.name!r}: callback", "a function", callback)
        plain = schemas.unwrap_partial(callback)[0]
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            raise ConfigurationError(
                f"Tool {self.name!r}: its callback is a generator. A tool returns its result as a"
                " whole, such as a list; it reports progress with context.report_progress."
            )
        self.is_async = inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(
            getattr(plain, "__call__", None)  # noqa: B004
        )
        parameters = self._parameters = schemas.Parameters(self.name, callback)
        self._context_parameter = parameters.context
        schema = self._declared_schema
        if schema is None:
            return
        names = list(parameters.fields)
        if not schemas.is_object(schema):
            if len(names) != 1:
                raise ConfigurationError(
                    f"Tool {self.name!r}: input_schema is not an object, so it describes the"
                    f" callback's only parameter; the callback has {len(names)}"
                    f" ({', '.join(names) or 'none'}). Give an object schema with one property for"
                    " each."
                )
            self._wrapped = names[0]
        elif not schemas.is_composed(schema):
            properties = set(cast("dict[str, Any]", schema.get("properties", {})))
            unknown = sorted(properties - set(names))
            missing = sorted(parameters.required - properties)
            if unknown and not parameters.takes_any:
                raise ConfigurationError(
                    f"Tool {self.name!r}: input_schema has {', '.join(unknown)}, which the callback"
                    " does not take."
                )
            if missing:
                raise ConfigurationError(
                    f"Tool {self.name!r}: the callback needs {', '.join(missing)}, which"
                    " input_schema does not have."
                )

    def _isolate(self) -> Isolated:
        # Imported late: few tools run in a process of their own.
        from holdfast.tools.isolation.isolated import Isolated

        if self.callback is None or type(self).call is not Tool.call:
            raise ConfigurationError(
                f"Tool {self.name!r}: isolation='process' runs a callback; this tool has its own"
                " `call`."
            )
        self.is_async = False  # in this process; the child runs a coroutine to its end
        return Isolated(
            self.name,
            self.callback,
            self._context_parameter is not None,
            self._declared_schema is None,
        )

    @property
    def parallel(self) -> bool:
        """True if its calls may run beside neighbouring calls that are parallel too."""
        return self.annotations.read_only if self._parallel is None else self._parallel

    # --- schema and validation, made at first use ---

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema (an object) that the model sees; a copy."""
        if self._schema is None:
            self._prepare()
        return copy_json(self._schema)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of a result's structured content, or None; a copy."""
        return copy_json(self._output_schema)

    @property
    def inputSchema(self) -> dict[str, Any]:  # noqa: N802 - MCP's spelling
        """`input_schema` under MCP's name."""
        return self.input_schema

    @property
    def outputSchema(self) -> dict[str, Any] | None:  # noqa: N802 - MCP's spelling
        """`output_schema` under MCP's name."""
        return self.output_schema

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the callback takes them. Raises `ToolValidationError`."""
        if self._validate is None:
            self._prepare()
        return cast("schemas.Validate", self._validate)(arguments)

    def _prepare(self) -> None:
        # Two threads may both do this; their results are equal and the last write wins.
        declared, parameters = self._declared_schema, self._parameters
        if declared is None and parameters is not None:
            schema, validate = schemas.from_signature(self.name, parameters)
        else:
            permitted: frozenset[str] | None = None
            schema: dict[str, Any]
            if self._wrapped is not None and declared is not None and parameters is not None:
                required = self._wrapped in parameters.required
                schema = schemas.wrap_schema(self._wrapped, declared, required)
            else:
                schema = {"type": "object", "properties": {}, **(declared or {})}
                if parameters is not None:
                    # Required by the callback, though not by the schema.
                    listed: list[str] = schema.get("required", [])
                    needed = [name for name in parameters.fields if name in parameters.required]
                    if extra := [name for name in needed if name not in listed]:
                        schema["required"] = [*listed, *extra]
                    permitted = None if parameters.takes_any else frozenset(parameters.fields)
            validate = schemas.from_json_schema(
                self.name, schema, permitted, untrusted=self.untrusted
            )
        if self._isolated is not None:
            self._isolated.check()
            validate = self._isolated.validate(validate)
        self._validate = validate
        self._schema = schema

    # --- running ---

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the tool with validated arguments. A subclass may override this method and return
        what a callback may return."""
        assert self.callback is not None
        if self._isolated is not None:
            return self._isolated.call(arguments, context, self.timeout)
        if self._context_parameter is None:
            return self.callback(**arguments)
        return self.callback(**{**arguments, self._context_parameter: context})

    def run(self, arguments: dict[str, Any], context: ToolContext | None = None) -> ToolResult:
        """Validate the arguments, run the tool, and return the outcome as a result. Raises
        `ToolValidationError`, or what the callback raises."""
        context = context or ToolContext()
        outcome = self.call(self.validate(arguments), context)
        return as_result(self.name, context.complete(outcome) if self.is_async else outcome)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, so that a decorated function stays usable."""
        if self.callback is None:
            raise HoldfastError(f"Tool {self.name!r} has no callback; use run(arguments).")
        return self.callback(*args, **kwargs)

    def renamed(self, name: str) -> Tool:
        """Return a copy under another name. Raises `ConfigurationError` for an invalid name."""
        renamed_tool = copy(self)
        renamed_tool.name = name
        renamed_tool._check_fields()
        renamed_tool._schema = renamed_tool._validate = None  # errors of both contain the name
        return renamed_tool

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """Return the tool of an instance, if this tool is a method decorated in a class."""
        if instance is None or not schemas.is_method(self.callback):
            return self
        bound = copy(self)
        bound._schema = bound._validate = None
        bound.callback = MethodType(cast("Callback", self.callback), instance)
        bound._take_callback(bound.callback)
        return bound

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def to_langchain(self) -> Any:
        """Return this tool as LangChain's `StructuredTool`: see
        `holdfast.tools.langchain.to_langchain`. Raises `ConfigurationError` without langchain-core.
        """
        return _langchain().to_langchain(self)

    @staticmethod
    def from_langchain(tool: Any, name: str | None = None, **options: Any) -> Tool:
        """Return a Holdfast tool for a LangChain tool: see
        `holdfast.tools.langchain.LangChainAdapter`. A tool that `to_langchain` made is unwrapped.
        The options are `annotations`, `category`, `timeout`, `retry` and `parallel`. Raises
        `ConfigurationError`."""
        langchain = _langchain()
        inner = langchain.original_tool(tool)
        if isinstance(inner, Tool) and name is None and not options:
            return inner
        return LangChainTool(langchain.LangChainAdapter(tool), name, **options)

    @classmethod
    def from_function(
        cls,
        function: Callback,
        name: str | None = None,
        description: str | None = None,
        *,
        output_schema: dict[str, Any] | None = None,
        annotations: ToolAnnotations = ToolAnnotations(),
        category: str = "general",
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        reconcile: Reconcile | None = None,
        isolation: Literal["process"] | None = None,
        parallel: bool | None = None,
    ) -> Tool:
        """Return a tool of a function's signature. `name` and `description` replace the function's
        name and docstring. All other arguments are those of `Tool`."""
        if not callable(function):
            raise wrong("from_function", "a function", function)
        plain = schemas.unwrap_partial(function)[0]
        if description is None:
            description = schemas.parse_docstring(schemas.docstring(plain))[0]
        name = name if name is not None else str(getattr(plain, "__name__", type(plain).__name__))
        if name == "<lambda>":
            raise ConfigurationError("A lambda has no name: Tool.from_function takes name='...'.")
        return cls(
            name,
            description,
            function,
            None,
            output_schema,
            annotations,
            category,
            timeout,
            retry,
            reconcile=reconcile,
            isolation=isolation,
            parallel=parallel,
        )


class LangChainTool(Tool):
    """A tool of LangChain as a Holdfast tool."""

    tool_type = "custom"

    def __init__(self, adapter: LangChainAdapter, name: str | None = None, **options: Any) -> None:
        super().__init__(
            name or adapter.name,
            adapter.description,
            input_schema=adapter.input_schema,
            **options,
        )
        self._adapter = adapter
        self.module_qualname = adapter.module
        self.is_async = adapter.is_async

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Validate the arguments against the schema; LangChain converts the values."""
        schema, values = self.input_schema, super().validate(arguments)
        if unknown := self._adapter.refused(values, schema):
            raise schemas.validation_error(
                self.name, schema, [f"{', '.join(unknown)} is not one of its parameters"]
            )
        return values

    def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run LangChain's tool."""
        return self._adapter.call(self.name, arguments, context)


@overload
def tool(function: Callback, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    output_schema: dict[str, Any] | None = None,
    annotations: ToolAnnotations = ToolAnnotations(),
    category: str = "general",
    timeout: float | None = None,
    retry: RetryPolicy | None = None,
    reconcile: Reconcile | None = None,
    isolation: Literal["process"] | None = None,
    parallel: bool | None = None,
) -> Callable[[Callback], Tool]: ...
def tool(function: Callback | None = None, /, **options: Any) -> Tool | Callable[[Callback], Tool]:
    """Make a tool of a function, with or without arguments: `Tool.from_function` as a decorator.
    The tool can still be called as the function."""
    if function is None:
        return partial(Tool.from_function, **options)
    if not callable(function):
        raise wrong("tool", "a function, or arguments by name such as name='add'", function)
    return Tool.from_function(function, **options)


def _langchain() -> Any:
    from holdfast.tools import langchain  # few programs need it

    return langchain


def module_of(callback: Callback) -> str:
    """Return the module of a function, a class or a callable object."""
    plain = schemas.unwrap_partial(callback)[0]
    return str(getattr(plain, "__module__", None) or type(plain).__module__)


def _declaring_module() -> str:
    """Return the module whose code makes the present tool, "" if that is Holdfast itself."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]: the way to know one's caller
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", ""))
    return "" if name.split(".", 1)[0] == __name__.split(".", 1)[0] else name
