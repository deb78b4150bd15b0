"""Tools and results in MCP's format, in both eras of the protocol."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote

import msgspec

from holdfast import content as blocks
from holdfast.content import Content, FileContent, ToolResult
from holdfast.tools import schema as schemas
from holdfast.tools.tool import Tool

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
    if (output := tool.output_schema) is not None:
        if not modern and not is_object(output):
            # Definitions stay at the root, where references point.
            roots = ("$schema", "$defs", "definitions")
            outer = {key: output.pop(key) for key in roots if key in output}
            inner = {"properties": {_RESULT: output}, "required": [_RESULT]}
            output = {**outer, "type": "object", **inner}
        entry["outputSchema"] = output
    return entry


def is_object(schema: dict[str, Any]) -> bool:
    """Return True if a schema declares the type object."""
    return schema.get("type") == "object"


def result(tool_result: ToolResult, tool: Tool | None, modern: bool) -> dict[str, Any]:
    """Return a result in the format of `tools/call`."""
    content = tuple([_mcp_block(block) for block in tool_result.content])
    built = cast(
        "dict[str, Any]",
        msgspec.to_builtins(msgspec.structs.replace(tool_result, content=content)),
    )
    answer: dict[str, Any] = {
        "content": built["content"],
        "isError": tool_result.is_error,
        "resultType": "complete",
    }
    if tool_result.structured_content is not None:
        structured = built["structuredContent"]
        schema = None if tool is None else tool.output_schema
        plain = isinstance(structured, dict) and (schema is None or is_object(schema))
        answer["structuredContent"] = structured if modern or plain else {_RESULT: structured}
    if tool_result.meta:
        answer["_meta"] = built["meta"]
    return answer


def _mcp_block(block: Content) -> Content:
    """Return a block of a kind that MCP has: a file becomes a picture, sound, an embedded resource
    or a link. A file that a provider keeps becomes a text, because no client can read it."""
    if not isinstance(block, FileContent):
        return block
    mime_type, name = block.mime_type, block.name
    if block.url:
        name = name or block.url.partition("?")[0].rstrip("/").rpartition("/")[2]
        return blocks.ResourceLink(block.url, name or block.url, mime_type or None)
    if block.file_id:
        owner = f" of {block.provider}" if block.provider else ""
        return blocks.TextContent(f"[{mime_type or 'file'} {name or block.file_id}: a file{owner}]")
    if block.kind == "image":
        return blocks.ImageContent(block.data, mime_type)
    if block.kind == "audio":
        return blocks.AudioContent(block.data, mime_type)
    resource = {"uri": f"file:///{quote(name or 'file')}", "mimeType": mime_type}
    blob = b2a_base64(block.data, newline=False).decode()
    return blocks.EmbeddedResource({**resource, "blob": blob})


class Outputs:
    """A checker of results against their tools' output schemas. Thread-safe. The protocol requires
    conformance, and clients refuse other results. Each schema is compiled once."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Tool, Callable[[Any], str]]] = {}

    def problem(self, tool: Tool, tool_result: ToolResult) -> str:
        """Return the violation of the output schema, "" without a violation or an output schema."""
        schema = tool.output_schema
        if schema is None or tool_result.is_error:
            return ""
        if tool_result.structured_content is None:
            return "it has an output schema, but its result has no structured content"
        made_for, check = self._checks.get(tool.name, (None, str))
        if made_for is not tool:
            check = (
                schemas.result_checker(tool.name, schema) if tool.untrusted else _compile(schema)
            )
            self._checks[tool.name] = (tool, check)
        problem = check(tool_result.structured_content)
        return f"its result does not fit its output schema: {problem}" if problem else ""


def _compile(schema: dict[str, Any]) -> Callable[[Any], str]:
    from jsonschema import Draft202012Validator, exceptions
    from jsonschema.validators import validator_for
    from referencing import Registry

    # An empty registry: nothing is fetched.
    validator: Any = validator_for(schema, Draft202012Validator)(
        schema, registry=cast("Any", Registry)()
    )

    def problem(content: Any) -> str:
        try:
            error: Any = cast("Any", exceptions).best_match(validator.iter_errors(content))
        except Exception:  # a missing reference, which the client may know
            return ""
        return "" if error is None else f"{error.json_path}: {error.message[:500]}"

    return problem
