"""A tool's definition in the format of each model API and of MCP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from holdfast.events import ToolDefinition
from holdfast.tools.arguments import wrong
from holdfast.tools.names import wire_name, word_set
from holdfast.tools.wire_schemas import for_models

Style = Literal["openai_chat", "openai_responses", "anthropic", "gemini", "mcp"]
_NO_LETTERS = tuple("-0123456789")
STYLES: tuple[str, ...] = get_args(Style)
# The keywords of JSON Schema that OpenAI's strict mode accepts.
_STRICT = word_set(
    "type properties required additionalProperties items anyOf enum const title description "
    "$ref $defs"
)


def openai_chat(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return the format of OpenAI's Chat Completions and compatible APIs."""
    function = {
        "name": name,
        "description": tool.description,
        "parameters": for_models(tool.input_schema),
    }
    return {"type": "function", "function": function}


def openai_responses(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return the format of OpenAI's Responses, strict if the schema permits it."""
    return {
        "type": "function",
        "name": name,
        "description": tool.description,
        "parameters": for_models(tool.input_schema),
        # Always given: without it the API makes optional properties required.
        "strict": is_strict(tool.input_schema),
    }


def anthropic(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return the format of Anthropic's Messages."""
    return {
        "name": name,
        "description": tool.description,
        "input_schema": {"type": "object", **for_models(tool.input_schema)},
    }


def gemini(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return the format of Gemini, one of the `functionDeclarations`. A name that begins with a
    digit or dash is prefixed by an underscore."""
    return {
        "name": f"_{name}" if name.lstrip("_")[:1] in _NO_LETTERS else name,
        "description": tool.description,
        "parametersJsonSchema": for_models(tool.input_schema),
    }


def mcp(tool: ToolDefinition, name: str) -> dict[str, Any]:
    """Return the format of MCP, which accepts canonical names."""
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}


MAKERS: dict[str, Callable[[ToolDefinition, str], dict[str, Any]]] = {
    "openai_chat": openai_chat,
    "openai": openai_chat,  # the name in earlier systems
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "mcp": mcp,
}


def definition(tool: ToolDefinition, style: str = "openai_chat") -> dict[str, Any]:
    """Return one tool in one style. Raises `ConfigurationError` naming the known styles."""
    if style not in MAKERS:
        raise wrong("style", f"one of {', '.join(STYLES)}", style)
    return MAKERS[style](tool, tool.wire_name or wire_name(tool.name))


def is_strict(schema: Any, root: bool = True) -> bool:
    """Return True if OpenAI's strict mode of all models and hosts accepts a schema unchanged."""
    try:
        if not schema.keys() <= _STRICT:
            return False
        if "$ref" in schema:
            return len(schema) == 1 and not root
        kinds: Any = schema.get("type") or ()
        properties: dict[str, Any] = schema.get("properties") or {}
        if ("object" in kinds or properties) and (
            schema.get("additionalProperties") is not False
            or sorted(schema["required"]) != sorted(properties)
        ):
            return False
        if kinds != "object" if root else not (kinds or "anyOf" in schema):
            return False
        inner: list[Any] = [*properties.values(), *schema.get("$defs", {}).values()]
        inner += schema.get("anyOf", ())
        if "array" in kinds:
            inner.append(schema["items"])
        return all(is_strict(each, False) for each in inner)
    except (AttributeError, KeyError, TypeError):  # not a well-formed schema
        return False
