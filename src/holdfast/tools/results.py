"""Conversion of return values to `ToolResult`s that every journal and wire can hold."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import msgspec

from holdfast.content import (
    BLOCKS,
    TextContent,
    ToolResult,
)
from holdfast.errors import ConfigurationError, ToolError
from holdfast.nesting import MAX_DEPTH, too_deep

# The key in a result's meta of a run's output (`Agent(output_type=)`), which is never shortened.
OUTPUT = "holdfast/output"


def as_result(tool: str, value: Any) -> ToolResult:
    """Return a callback's return value as a result. Raises `ToolError` for other types."""
    kind = cast("type[Any]", type(value))
    if kind is str:
        return ToolResult((TextContent(value if value.isascii() else clean(value)),))
    if kind is ToolResult:
        return _normalize(tool, value)
    if value is None:
        return ToolResult()
    if isinstance(value, str):
        # Not str(value), which is "Color.RED" for an enum.
        return ToolResult((TextContent(clean(str.__str__(value))),))
    if isinstance(value, ToolResult):
        return _normalize(tool, value)
    if isinstance(value, BLOCKS):
        return _normalize(tool, ToolResult((value,)))
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    if any(isinstance(item, BLOCKS) for item in items):
        blocks = [TextContent(item) if isinstance(item, str) else item for item in items]
        try:
            return _normalize(tool, ToolResult(tuple(blocks)))
        except ConfigurationError as error:
            raise _invalid_value_error(tool, value, f"but {error}") from None
    mcp = _mcp_form(value)
    if mcp is not None:
        try:
            return _normalize(tool, ToolResult.from_json(_json(tool, mcp)))
        except msgspec.ValidationError as error:
            raise _invalid_value_error(
                tool, value, f"which has the form of an MCP result with a wrong part: {error}"
            ) from None
    data = _json(tool, value)
    return ToolResult((TextContent(data.decode()),), structured_content=msgspec.json.decode(data))


_MCP_KEYS = {"content", "structuredContent", "isError", "_meta", "meta", "error", "resultType"}
_MCP_TYPES = {"text", "image", "audio", "resource", "resource_link"}


def _mcp_form(value: Any) -> dict[str, Any] | None:
    """Return the MCP result (`CallToolResult`) that a callback returned as a dict or as the mcp
    package's model; None for other values."""
    if cast("type[Any]", type(value)).__name__ == "CallToolResult" and hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):  # pyright: ignore[reportUnknownMemberType]
        return None
    result = cast("dict[str, Any]", value)
    content = cast("list[Any]", result["content"])
    blocks = all(
        isinstance(block, dict) and cast("dict[str, Any]", block).get("type") in _MCP_TYPES
        for block in content
    )
    sure = bool(content) or isinstance(result.get("isError"), bool)
    return result if blocks and sure and result.keys() <= _MCP_KEYS else None


def _normalize(tool: str, result: ToolResult) -> ToolResult:
    """Return a result that a callback built, in the form in which it will be read again. A part
    that cannot be stored is refused now. Later changes to the parts do not reach the result."""
    content = result.content
    if (
        len(content) == 1
        and type(content[0]) is TextContent
        and type(content[0].text) is str
        and _is_utf8(content[0].text)
        and result.meta == {}
        and result.structured_content is None
        and type(result.is_error) is bool
        and result.error is None
    ):
        return result
    data = _json(tool, result)
    try:
        return ToolResult.from_json(data)
    except msgspec.ValidationError as error:
        raise _invalid_value_error(tool, result, f"which has a wrong part: {error}") from None


# --- JSON ---


def _encode_other(value: Any) -> Any:
    """Return JSON values for a value that msgspec does not know: a pydantic model, a path, a number
    or an array of NumPy or similar. No library is imported for this."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[Any]", value))
    for method, options in (("model_dump", {"mode": "json"}), ("tolist", {})):
        if hasattr(value, method) and not isinstance(value, type):
            return getattr(value, method)(**options)
    raise TypeError(f"it holds {_describe(value)}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_RESULT_LEVELS = 3  # levels around the values in a result: the result, its content, a block


def _json(tool: str, value: Any) -> bytes:
    """Return `value` as JSON that decodes to an equal value. Raises `ToolError`."""
    why = ""
    data = b""
    try:
        try:
            data = _encoder.encode(value)
        except UnicodeEncodeError:
            data = _encoder.encode(_clean_json(_builtins(value)))
        # msgspec writes NaN and the infinities as null, which is another value.
        if b"null" in data and not _finite(_builtins(value)):
            why = "which is not JSON: it holds NaN or an infinity"
    except RecursionError:
        why = "which holds itself or is too deep for JSON"
    except Exception as error:
        why = f"which is not JSON: {error}"
    if why:
        raise _invalid_value_error(tool, value, why)
    if too_deep(data, MAX_DEPTH + (_RESULT_LEVELS if isinstance(value, ToolResult) else 0)):
        raise _invalid_value_error(tool, value, f"which is nested deeper than {MAX_DEPTH} levels")
    return data


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other)


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, cast("dict[str, Any]", value).values()))
    return all(map(_finite, cast("list[Any]", value))) if isinstance(value, list | tuple) else True


def _clean_json(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {
            clean(str(key)): _clean_json(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_clean_json(item) for item in cast("list[Any]", value)]
    return value


def _invalid_value_error(tool: str, value: Any, why: str) -> ToolError:
    return ToolError(
        f"{tool!r} returned {_describe(value)}, {why.rstrip('.')}. A tool returns a ToolResult, a"
        " str, content blocks, a JSON value, a msgspec or pydantic model, or None. Its effect may"
        " have happened.",
        retryable=False,
        max_retries=0,
    )


def _describe(value: Any) -> str:
    name = cast("type[Any]", type(value)).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# --- text ---


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str) -> str:
    """Return a plain `str` that UTF-8 can hold. Lone surrogates become `?`."""
    if type(text) is not str:  # a subclass cannot be encoded as JSON
        text = str.__str__(text)
    return text if _is_utf8(text) else text.encode(errors="replace").decode()


def cut(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters."""
    return text if len(text) <= limit else text[:limit] + "..."


def clip(text: str, limit: int = 400) -> str:
    """Return `text` on one line, cut to `limit` characters."""
    return cut(" ".join(text.split()), limit)
