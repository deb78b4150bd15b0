"""Tools and results in MCP's format, in both eras of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.content import ToolResult
from holdfast.tools import schema as schemas
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

# Up to 2025-11-25 structured content is an object; another value is wrapped under this key, as in
# MCP's SDKs.
_RESULT = "result"


def definition(tool: Tool, modern: bool) -> dict[str, Any]:
    """Return a tool's entry in `tools/list`. Before 2026-07-28 (`modern` false) an output schema
    describes an object."""
    hints = tool.annotations
    entry: dict[str, Any] = {
        "name": tool.name,
        "inputSchema": tool.input_schema,
        "annotations": {
            "readOnlyHint": hints.read_only,
            "destructiveHint": hints.destructive,
            "idempotentHint": hints.idempotent,
            "openWorldHint": hints.open_world,
        },
    }
    if tool.description:
        entry["description"] = tool.description
    if tool.output_schema is not None:
        entry["outputSchema"] = (
            tool.output_schema
            if modern or is_object(tool.output_schema)
            else _wrapped(tool.output_schema)
        )
    return entry


def is_object(schema: dict[str, Any]) -> bool:
    """Return True if a schema declares the type object."""
    return schema.get("type") == "object"


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    # Definitions stay at the root, where references point.
    inner = {
        key: value
        for key, value in schema.items()
        if key not in ("$schema", "$defs", "definitions")
    }
    outer = {key: value for key, value in schema.items() if key not in inner}
    return {**outer, "type": "object", "properties": {_RESULT: inner}, "required": [_RESULT]}


def result(tool_result: ToolResult, tool: Tool | None, modern: bool) -> dict[str, Any]:
    """Return a result in the format of `tools/call`."""
    built = cast("dict[str, Any]", msgspec.to_builtins(tool_result))
    answer: dict[str, Any] = {
        "content": built["content"],
        "isError": tool_result.is_error,
        "resultType": "complete",
    }
    structured = tool_result.structured_content
    if structured is not None:
        schema = None if tool is None else tool.output_schema
        plain = modern or (isinstance(structured, dict) and (schema is None or is_object(schema)))
        answer["structuredContent"] = (
            built["structuredContent"] if plain else {_RESULT: built["structuredContent"]}
        )
    if tool_result.meta:
        answer["_meta"] = built["meta"]
    return answer


class Outputs:
    """A checker of results against their tools' output schemas. Thread-safe. The protocol requires
    conformance, and clients refuse other results. Each schema is compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[str, tuple[Tool, Validator]] = {}
        self._bounded: dict[str, tuple[Tool, Callable[[Any], str]]] = {}  # untrusted schemas

    def problem(self, tool: Tool, tool_result: ToolResult) -> str:
        """Return the violation of the output schema, "" if there is none or the tool has no
        output schema."""
        schema = tool.output_schema
        if schema is None or tool_result.is_error:
            return ""
        if tool_result.structured_content is None:
            return "it has an output schema, but its result has no structured content"
        if tool.untrusted:
            known_problem = self._bounded.get(tool.name)
            if known_problem is None or known_problem[0] is not tool:
                known_problem = self._bounded[tool.name] = (
                    tool,
                    schemas.result_checker(tool.name, schema),
                )
            problem = known_problem[1](tool_result.structured_content)
            return f"its result does not fit its output schema: {problem}" if problem else ""
        compiled = self._compiled.get(tool.name)
        if compiled is None or compiled[0] is not tool:
            compiled = self._compiled[tool.name] = (tool, _compiled(schema))
        from jsonschema import exceptions

        try:
            error: Any = cast("Any", exceptions).best_match(
                compiled[1].iter_errors(tool_result.structured_content)
            )
        except Exception:  # a missing reference, which the client may know
            return ""
        return (
            ""
            if error is None
            else (
                f"its result does not fit its output schema: {error.json_path}:"
                f" {error.message[:500]}"
            )
        )


def _compiled(schema: dict[str, Any]) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    # An empty registry: nothing is fetched.
    return validator_for(schema, Draft202012Validator)(schema, registry=cast("Any", Registry)())
