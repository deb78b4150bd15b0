"""The conversion of an MCP server's answers: annotations, results, and reasons of failed calls."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import content as blocks
from holdfast.content import Content, ErrorInfo, ToolResult
from holdfast.error_text import describe_error
from holdfast.errors import ToolError
from holdfast.tools.policy import ToolAnnotations
from holdfast.tools.results import clip
from holdfast.tools.running import ERROR_TYPE_OF_STATUS

if TYPE_CHECKING:
    import mcp_types

    from holdfast.tools.mcp.secrets import Redact


# Key in a result's meta: completions that the call got from the agent's model, as {model, usage}.
SAMPLING_META_KEY = "holdfast/sampling"


# MCP's names of the annotations, such as `readOnlyHint`.
_HINTS = {one.name: f"{one.encode_name}Hint" for one in msgspec.structs.fields(ToolAnnotations)}


def annotations_of(hints: Mapping[str, Any]) -> ToolAnnotations:
    """Return a server's hints as annotations, with MCP's defaults for invalid ones."""
    return ToolAnnotations(
        **{name: hints[key] for name, key in _HINTS.items() if isinstance(hints.get(key), bool)}
    )


def result_of(name: str, mcp_result: mcp_types.CallToolResult) -> ToolResult:
    """Convert a server's result. Raises `ToolError` if a content block cannot be decoded."""
    from mcp_types import SERVER_INFO_META_KEY

    try:
        content = tuple([block_of(block) for block in mcp_result.content])
    except ValueError as error:
        raise ToolError(
            f"{name!r} returned content that is not valid base64 ({error}). Its effect may have"
            " happened.",
            retryable=False,
        ) from None
    # Every result carries the server's info, which belongs to the protocol and not to the tool's
    # answer. A server may not forge the sampling key.
    meta = {
        key: value
        for key, value in (mcp_result.meta or {}).items()
        if key not in (SERVER_INFO_META_KEY, SAMPLING_META_KEY)
    }
    result = ToolResult(content, mcp_result.structured_content, meta, mcp_result.is_error)
    if mcp_result.is_error:  # the server does not say which kind of error
        return msgspec.structs.replace(result, error=ErrorInfo("unknown", result.text))
    return result


def block_of(block: mcp_types.ContentBlock) -> Content:
    """Convert a content block of MCP. Raises `ValueError` if its data is not base64."""
    match block.type:
        case "text":
            return blocks.TextContent(block.text)
        case "image":
            return blocks.ImageContent(base64.b64decode(block.data), block.mime_type)
        case "audio":
            return blocks.AudioContent(base64.b64decode(block.data), block.mime_type)
        case "resource_link":
            return blocks.ResourceLink(block.uri, block.name, block.mime_type)
        case "resource":
            return blocks.EmbeddedResource(
                block.resource.model_dump(mode="json", by_alias=True, exclude_none=True)
            )


def progress_text(progress: float, total: float | None, message: str | None) -> str:
    """Return a progress notification on one line: `3/10: indexing`, `3/10`, or `indexing`."""
    counted = f"{progress:g}/{total:g}" if total else f"{progress:g}"
    if not message:
        return counted
    return f"{counted}: {message}" if total else message


# --- failures ---


def reason_of(error: BaseException, status: int, redact: Redact) -> tuple[str, str]:
    """Return a short reason without secrets, and its error_type. The error_type depends on the HTTP
    status (0: none), the JSON-RPC code or the exception's type."""
    import httpx2
    from mcp import MCPError
    from mcp.client.auth import OAuthFlowError
    from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT

    leaves = _leaves(error)
    # Prefer the cause: when a transport fails, the session's own error only says "connection
    # closed".
    leaf = next((one for one in leaves if not isinstance(one, MCPError)), leaves[0])
    kind = "internal"
    if isinstance(leaf, MCPError):
        text = clip(redact(leaf.message)) or describe_error(leaf)
        codes = {
            INVALID_PARAMS: "validation",
            METHOD_NOT_FOUND: "not_found",
            REQUEST_TIMEOUT: "timeout",
            CONNECTION_CLOSED: "network",
        }
        kind = codes.get(leaf.code, kind)
    else:
        text = clip(redact(describe_error(leaf)))
        if isinstance(leaf, FileNotFoundError):
            kind = "not_found"
        elif isinstance(leaf, OAuthFlowError):
            kind, status = "authentication", 0
        elif isinstance(leaf, TimeoutError | httpx2.TimeoutException):
            kind = "timeout"
        elif isinstance(leaf, OSError | httpx2.TransportError):
            kind = "network"
    if status >= 400:
        text = f"HTTP {status}: {text}"
    if status not in (404, 410):  # which concern an address or a session, not a tool
        kind = ERROR_TYPE_OF_STATUS.get(status, kind)
    return text + ("" if text.endswith(".") else "."), kind


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[Any]", error)
    return [leaf for one in group.exceptions for leaf in _leaves(one)]
