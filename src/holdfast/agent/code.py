"""Code mode (`Agent(code=)`): the tool `run_code`, whose scripts call the agent's other tools as
typed Python functions.

The functions are described to the model here. `conversation.scripts` runs the scripts.
"""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.content import TextContent, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.tools.arguments import is_number, is_whole, wrong
from holdfast.tools.catalogue import definition
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import as_object
from holdfast.tools.manager import ToolManager
from holdfast.tools.names import RUN_CODE, wire_name, word_set
from holdfast.tools.policy import LOCAL_READ, ToolAnnotations
from holdfast.tools.tool import Tool
from holdfast.tools.tool_search import best_matches

FIND_FUNCTIONS = "find_functions"

_DESCRIPTION = """\
Run a Python script that calls the functions below. Use it for every action. One script may make \
many calls: loops, conditions, and calls that use earlier results. Only what it prints and the \
value of its last expression are shown to you.

- Call each function with `await` and keyword arguments. `await asyncio.gather(...)` (import \
asyncio first) runs calls side by side where that is safe.
- A failed call raises RuntimeError.
- There are no files, network, environment or packages. Of the standard library there are \
asyncio, datetime, json, math, random, re and a few others. The clock stands still.
- Variables are not kept: each script begins anew.
"""
_FIND_NOTE = (
    "\nThere are {count} functions. These are their names; `print(await find_functions("
    'query="..."))` '
)
_NAMES_FOLLOW = "shows the signatures that match a few words.\n"
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Names that mean something in every script: those of Python, which the interpreter finds first, and
# the modules that a script may import.
_PYTHONS = word_set("asyncio datetime json math os random re sys time").union(dir(builtins))
_STUB_NAME = re.compile(r"^async def (\w+)\(", re.MULTILINE)
_NOT_IDENTIFIER = re.compile(r"\W", re.ASCII)
_MAX_SUMMARY_CHARS = 300  # of a tool's description in its stub
_MAX_DEPTH = 6  # levels of a schema that a type shows
_MIN_MEMORY = 10_000_000  # bytes; the interpreter itself needs about a megabyte


class CodeMode(msgspec.Struct, frozen=True):
    """The limits of a script. Raises `ConfigurationError` for a value out of range.

    Attributes:
        seconds: Seconds of computing; waiting for calls and approvals is not counted.
        memory: Bytes of memory.
        output: Characters that a script may print and return.
        calls: Calls that a script may make.
        stubs: Characters of signatures that the model is shown. If they are longer, it is shown
            the names, and finds signatures by `find_functions`.
    """

    seconds: float = 10.0
    memory: int = 100_000_000
    output: int = 20_000
    calls: int = 1_000
    stubs: int = 20_000

    def __post_init__(self) -> None:
        if not is_number(self.seconds) or not 0 < self.seconds <= 3600:
            raise wrong("CodeMode: seconds", "a number of seconds up to 3600", self.seconds)
        for name, least in (("memory", _MIN_MEMORY), ("output", 100), ("calls", 1), ("stubs", 0)):
            if not is_whole(getattr(self, name), least):
                raise wrong(
                    f"CodeMode: {name}", f"a whole number from {least}", getattr(self, name)
                )


class CodeFunction(NamedTuple):
    """A tool as a function of scripts; `parameters` are in the order of positional arguments."""

    tool: Tool
    parameters: tuple[str, ...]
    stub: str


def code_tools(code: Any) -> CodeTools:
    """Return the tools of code mode for the argument `Agent(code=)`."""
    mode = CodeMode() if code is True else code
    if not isinstance(mode, CodeMode):
        raise wrong("Agent: code", "True, False or CodeMode(...)", code)
    if importlib.util.find_spec("pydantic_monty") is None:
        raise ConfigurationError(
            "Agent: code needs the interpreter of the extra: pip install 'holdfast[code]'."
        )
    return CodeTools(mode)


class CodeTools:
    """The tools of one agent in code mode: `run_code` for its model, the others as functions."""

    def __init__(self, mode: CodeMode) -> None:
        self.mode = mode
        self._beside: frozenset[str] = frozenset()  # tools that stay the model's
        self._manager: ToolManager | None = None
        # Caches: each value follows the definitions that it was made from.
        self._definitions: tuple[object, tuple[ToolDefinition, ...]] = ((), ())
        self._functions: tuple[object, dict[str, CodeFunction]] = ((), {})
        only_calls = ToolAnnotations(True, False, True, False)
        self.tool = Tool(
            RUN_CODE,
            _DESCRIPTION,
            self._run_code,
            annotations=only_calls,
            category="builtin",
            parallel=False,
        )
        self._finder = Tool(
            FIND_FUNCTIONS,
            callback=self._find_functions,
            description="Find functions by a few words; returns their signatures.",
            annotations=LOCAL_READ,
            category="builtin",
        )

    def beside(self, feature_tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """Return the tools that come with an agent's arguments, and those of code mode. The former
        stay tools of the model."""
        tools = tuple(feature_tools)
        self._beside = frozenset([tool.name for tool in tools])
        return (*tools, self.tool, self._finder)

    def definitions(self, manager: ToolManager) -> tuple[ToolDefinition, ...]:
        """Return the definitions that the model receives: the same object until the tools
        change."""
        made_of = manager.definitions()
        if self._definitions[0] is not made_of:
            beside = [one for one in made_of if one.name in self._beside]
            self._definitions = (made_of, (self._run_definition(self.functions(manager)), *beside))
        return self._definitions[1]

    def shown_then(
        self, manager: ToolManager, recorded: Iterable[ToolDefinition], ever: Container[str]
    ) -> tuple[ToolDefinition, ...]:
        """Return the present definitions in the selection of the recorded ones: without the
        functions in `ever` that were not registered then."""
        _, *beside = self.definitions(manager)
        today, then = self.functions(manager), functions_of(recorded)
        names = [name for name in then if name in today]
        names += [name for name in today if name not in then and name not in ever]
        return (self._run_definition({name: today[name] for name in names}), *beside)

    def _run_definition(self, functions: Mapping[str, CodeFunction]) -> ToolDefinition:
        stubs = [one.stub for name, one in functions.items() if name != FIND_FUNCTIONS]
        listed = "\n" + "\n\n".join(stubs)
        if sum(map(len, stubs)) > self.mode.stubs:
            listed = _FIND_NOTE.format(count=len(stubs)) + _NAMES_FOLLOW + ", ".join(functions)
        return msgspec.structs.replace(definition(self.tool), description=_DESCRIPTION + listed)

    def functions(self, manager: ToolManager) -> dict[str, CodeFunction]:
        """Return the functions of scripts by name."""
        self._manager = manager
        made_of = manager.definitions()
        if self._functions[0] is not made_of:
            functions: dict[str, CodeFunction] = {}
            for tool in manager.list_tools():
                if tool.name not in self._beside and tool.name != RUN_CODE:
                    name = _function_name(tool.name, functions)
                    functions[name] = CodeFunction(
                        tool, tuple(_parameters(tool)), stub_of(name, tool)
                    )
            self._functions = (made_of, functions)
        return self._functions[1]

    def _run_code(self, code: str, context: ToolContext) -> ToolResult:
        if context.scripts is None:
            raise ConfigurationError("run_code runs in a conversation alone.")
        return context.scripts().run(context, code, self)

    def _find_functions(self, query: str, limit: int = 10) -> ToolResult:
        if self._manager is None:
            raise ConfigurationError("find_functions runs in a conversation alone.")
        functions = {
            one.tool.name: one
            for name, one in self.functions(self._manager).items()
            if name != FIND_FUNCTIONS
        }
        tools = [one.tool for one in functions.values()]
        matches = best_matches(query, tools, max(1, min(limit, 50)))
        text = "\n\n".join([functions[tool.name].stub for tool in matches])
        return ToolResult((TextContent(text or f"No function matches {query!r}."),))


# --- stubs ---


def functions_of(definitions: Iterable[ToolDefinition]) -> list[str]:
    """Return the functions that the definition of `run_code` among these names, in its order."""
    text = next((tool.description for tool in definitions if tool.name == RUN_CODE), "")
    stubs, separator, names = text.partition(_NAMES_FOLLOW)
    return names.split(", ") if separator else _STUB_NAME.findall(stubs)


def _function_name(name: str, functions: Mapping[str, object]) -> str:
    """Return a Python name for a tool that no other tool has."""
    plain = _NOT_IDENTIFIER.sub("_", wire_name(name))
    if plain[:1].isdigit() or keyword.iskeyword(plain) or plain in _PYTHONS:
        plain = f"tool_{plain}"
    candidate, number = plain, 1
    while candidate in functions:
        number += 1
        candidate = f"{plain}_{number}"
    return candidate


def _parameters(tool: Tool) -> dict[str, Any]:
    """Return the schemas of a tool's parameters by name, the required ones first."""
    properties = as_object(tool.input_schema.get("properties"))
    required = tool.input_schema.get("required") or ()
    return {name: properties[name] for name in sorted(properties, key=lambda n: n not in required)}


def stub_of(name: str, tool: Tool) -> str:
    """Return the signature and the purpose of a tool as a Python function."""
    schema = tool.input_schema
    required = schema.get("required") or ()
    parts: list[str] = []
    notes: list[str] = []
    for parameter, about in _parameters(tool).items():
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            notes.append(f"    {parameter}: pass it as **{{{parameter!r}: ...}}")
            continue
        default = "" if parameter in required else f" = {_default(about)}"
        parts.append(f"{parameter}: {type_of(about, schema)}{default}")
        if text := _one_line(as_object(about).get("description")):
            notes.append(f"    {parameter}: {text}")
    output = tool.output_schema
    returns = "Any" if output is None else type_of(output, output)
    summary = _one_line(tool.description)
    lines = [f"async def {name}({', '.join(['*', *parts]) if parts else ''}) -> {returns}:"]
    text = "\n".join([summary, *notes]).strip()
    lines.append(f"    {_quote(text)}" if text else "    ...")
    return "\n".join(lines)


def _quote(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n    """' if "\n" in text or text.endswith('"') else f'"""{text}"""'


def _default(schema: Any) -> str:
    value = as_object(schema).get("default")
    text = repr(value)
    return text if len(text) <= 60 else "..."


def _one_line(text: Any) -> str:
    """Return the first paragraph of a description in one line, cut."""
    line = " ".join(str(text or "").strip().partition("\n\n")[0].split())
    return line if len(line) <= _MAX_SUMMARY_CHARS else f"{line[: _MAX_SUMMARY_CHARS - 3]}..."


def type_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return a JSON Schema as a Python type, objects in the inline form of PEP 764."""
    node = as_object(schema)
    if depth > _MAX_DEPTH:
        return "Any"
    if isinstance(reference := node.get("$ref"), str):
        return type_of(_resolve(reference, root), root, depth + 1)
    if isinstance(values := node.get("enum"), list | tuple):
        return f"Literal[{', '.join([repr(value) for value in cast('list[Any]', values)])}]"
    if "const" in node:
        return f"Literal[{node['const']!r}]"
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := node.get(key), list | tuple):
            return _union([type_of(one, root, depth + 1) for one in cast("list[Any]", choices)])
    kind = node.get("type")
    if isinstance(kind, list | tuple):
        kinds = cast("list[Any]", kind)
        return _union([type_of({**node, "type": one}, root, depth + 1) for one in kinds])
    if kind == "array":
        item = type_of(node["items"], root, depth + 1) if "items" in node else "Any"
        return f"list[{item}]"
    if kind == "object" or "properties" in node:
        members = as_object(node.get("properties"))
        if not members:
            more = node.get("additionalProperties")
            value = type_of(more, root, depth + 1) if isinstance(more, Mapping) else "Any"
            return f"dict[str, {value}]"
        required = node.get("required") or ()
        entries = [
            f"{name!r}: {shape}" if name in required else f"{name!r}: NotRequired[{shape}]"
            for name, one in members.items()
            if (shape := type_of(one, root, depth + 1))
        ]
        return f"TypedDict[{{{', '.join(entries)}}}]"
    return _TYPES.get(str(kind), "Any")


def _union(types: list[str]) -> str:
    return " | ".join(dict.fromkeys(types)) or "Any"


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = as_object(node).get(part.replace("~1", "/").replace("~0", "~"))
    return node
