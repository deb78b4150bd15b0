"""Conversion of LangChain tools to Holdfast tools and back.

Duck-typed: only a call of `to_langchain` imports langchain.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import logging
import traceback
import uuid
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    ErrorInfo,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
    content_at,
)
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, ToolError, ToolValidationError
from holdfast.tools import schema as schemas
from holdfast.tools.context import ToolContext
from holdfast.tools.json_values import as_object
from holdfast.tools.names import wire_name
from holdfast.tools.results import as_result, clean
from holdfast.tools.running import error_result, run_attempts

if TYPE_CHECKING:
    from holdfast.tools.tool import Tool

_log = logging.getLogger("holdfast.tools.langchain")


# --- Holdfast to LangChain ---


def to_langchain(tool: Tool) -> Any:
    """Return a `StructuredTool` that runs `tool`, with `invoke` and `ainvoke`, under its wire name.

    Calls run the bare tool. The hooks, limits, pins and access rules of a `ToolManager` that holds
    it do not apply. Arguments are validated; `timeout` and `retry` apply. The message's artifact is
    the `ToolResult`. A failure raises a `ToolException` (its `result` is the `ToolResult`), which
    LangChain shows to the model with status `error`.

    Raises `ConfigurationError` if langchain-core is not installed.
    """
    try:
        langchain: Any = importlib.import_module("langchain_core.tools")
    except ImportError as error:
        raise ConfigurationError(
            f"Tool {tool.name!r}: to_langchain needs langchain-core; pip install langchain-core."
        ) from error

    def run(arguments: dict[str, Any], context: ToolContext) -> tuple[Any, ToolResult]:
        try:
            result = run_attempts(tool, arguments, context)
        except ToolError as error:
            result = error_result(error)
        if result.is_error:
            failure = langchain.ToolException(result.text or f"{tool.name!r} failed.")
            failure.result = result
            raise failure
        return _to_content(result), result

    # A subclass, because StructuredTool reserves `config` and `run_manager`, which may be a tool's
    # parameters.
    class HoldfastTool(langchain.StructuredTool):
        def _run(self, /, **arguments: Any) -> Any:
            return run(arguments, ToolContext(call_id=uuid.uuid4().hex))

        async def _arun(self, /, **arguments: Any) -> Any:
            import asyncio

            context = ToolContext(call_id=uuid.uuid4().hex)
            try:
                return await asyncio.to_thread(run, arguments, context)
            except asyncio.CancelledError:
                context.cancelled.cancel()
                raise

        @property
        def holdfast_tool(self) -> Tool:
            return tool

    kind: Any = HoldfastTool
    return kind.from_function(
        # Never called (`_run` and `_arun` are), but LangChain checks that they exist.
        func=tool.run,
        coroutine=tool.run,
        name=wire_name(tool.name),
        description=tool.description,
        args_schema=tool.input_schema,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )


# --- LangChain to Holdfast ---


def original_tool(tool: Any) -> Any:
    """Return the Holdfast tool that `to_langchain` wrapped; None for any other object."""
    return getattr(tool, "holdfast_tool", None)


class LangChainAdapter:
    """A LangChain tool (any object with `name`, `description`, `invoke` and a schema), in the form
    that a `LangChainTool` runs.

    The schema is the whole schema that LangChain shows to models. Injected arguments are neither
    shown nor accepted. `is_async` is True if the tool has no synchronous form. `return_direct` is
    ignored: a result is always shown to the model.

    Raises `ConfigurationError` for any other object, and for a tool that needs arguments that
    only LangGraph injects.
    """

    def __init__(self, tool: Any) -> None:
        invocable = any(callable(getattr(tool, name, None)) for name in ("invoke", "ainvoke"))
        is_named = isinstance(getattr(tool, "name", None), str)
        if isinstance(tool, type) or not is_named or not invocable:
            raise ConfigurationError(
                "from_langchain takes a LangChain tool (with name, description and invoke), not"
                f" {tool!r}."
            )
        if getattr(tool, "return_direct", False):
            _log.warning(
                "return_direct of the LangChain tool %r is ignored: its results are shown to the"
                " model like all others.",
                tool.name,
            )
        self._tool = tool
        self.name: str = tool.name
        self.description = str(getattr(tool, "description", "") or "")
        self.input_schema = _schema_of(tool)
        self.module = type(tool).__module__
        only_coroutine = getattr(tool, "coroutine", None) is not None and (
            getattr(tool, "func", None) is None
        )
        self.is_async = only_coroutine or not callable(getattr(tool, "invoke", None))
        self._injected = _injected_names(tool, self.input_schema)

    def refused(self, arguments: dict[str, Any], schema: dict[str, Any]) -> list[str]:
        """Return the names of arguments that the model does not see but LangChain accepts."""
        properties = cast("dict[str, Any]", schema["properties"])
        open_ended = bool(schema.get("additionalProperties")) or schemas.is_composed(schema)
        return [
            key
            for key in arguments
            if key in self._injected or (key not in properties and not open_ended)
        ]

    def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Invoke the tool as LangChain's agents do; an async-only one returns a coroutine."""
        request = {
            "type": "tool_call",
            "name": self.name,
            "args": dict(arguments),
            "id": context.call_id or uuid.uuid4().hex,
        }
        if self.is_async:
            return self._call_async(name, request)
        try:
            try:
                return self._result(name, self._tool.invoke(request))
            except NotImplementedError as error:
                if not _is_run_missing(self._tool, error):
                    raise
            return context.complete(self._call_async(name, request))
        except Exception as error:
            raise self._converted_error(name, error) from error

    async def _call_async(self, name: str, request: dict[str, Any]) -> ToolResult:
        try:
            return self._result(name, await self._tool.ainvoke(request))
        except Exception as error:
            raise self._converted_error(name, error) from error

    def _converted_error(self, name: str, error: Exception) -> Exception:
        """Return LangChain's own errors as Holdfast's, and other errors unchanged."""
        names = {kind.__name__ for kind in type(error).__mro__}
        if "ToolException" in names:  # meant for the model
            converted = ToolError(str(error) or f"{name!r} failed.")
            result = getattr(error, "result", None)
            if isinstance(result, ToolResult) and (info := result.error) is not None:
                converted = ToolError(
                    info.message,
                    info.type,
                    retryable=info.retryable,
                    max_retries=info.max_retries,
                    backoff=info.backoff,
                )
            return converted
        # pydantic's error concerns the tool's arguments if the title is that of their model;
        # pydantic 1 has a model in place of the title.
        model = getattr(getattr(self._tool, "args_schema", None), "__name__", "")
        if "ValidationError" in names and getattr(error, "title", None) == model:
            return ToolValidationError(f"{name!r} was not run: {error}")
        return error

    def _result(self, name: str, output: Any) -> ToolResult:
        artifact = getattr(output, "artifact", None)
        if isinstance(artifact, ToolResult):
            return artifact
        if not hasattr(output, "content"):
            if hasattr(output, "goto") and hasattr(output, "update"):
                raise ToolError(
                    f"{name!r} returned a LangGraph Command, which cannot be executed here."
                    " Its effect may have happened.",
                    retryable=False,
                    max_retries=0,
                )
            return as_result(name, output)
        content = _from_content(output.content)
        if getattr(output, "status", "success") == "error":
            text = ToolResult(content).text
            return ToolResult(content, is_error=True, error=ErrorInfo("internal", text))
        return as_result(name, ToolResult(content, self._structured(name, artifact)))

    def _structured(self, name: str, artifact: Any) -> Any:
        """Return an artifact as structured content, None if JSON cannot represent it."""
        if artifact is None or isinstance(artifact, str):
            return artifact
        try:
            return as_result(name, artifact).structured_content
        except ToolError:
            _log.debug(
                "the artifact of %r is left out: it is a %s, which JSON cannot hold",
                name,
                type(artifact).__name__,
            )
            return None


# --- schemas and arguments ---


def _schema_of(tool: Any) -> dict[str, Any]:
    arguments = as_object(getattr(tool, "args", None))
    names = list(arguments)
    if getattr(tool, "args_schema", None) is None and names == ["tool_input"]:
        # LangChain's `Tool`, a function of one string. LangChain derives its own schema from its
        # wrapper.
        return {"type": "object", "properties": arguments, "required": names}
    source: Any = getattr(tool, "tool_call_schema", None)
    source = getattr(tool, "args_schema", None) if source is None else source
    try:
        if hasattr(source, "model_json_schema"):
            json_schema: Any = source.model_json_schema()
        elif callable(getattr(source, "schema", None)):  # pydantic 1
            json_schema = source.schema()
        else:
            json_schema = source
    except Exception as error:
        raise ConfigurationError(
            f"LangChain tool {tool.name!r}: its schema cannot be made: {describe_error(error)}"
        ) from error
    if not isinstance(json_schema, dict):
        raise ConfigurationError(
            f"LangChain tool {tool.name!r} has no schema: tool_call_schema and args_schema are"
            f" {source!r}."
        )
    schema = dict(cast("dict[str, Any]", json_schema))
    for key, value in (("title", tool.name), ("description", getattr(tool, "description", None))):
        # LangChain repeats both in the schema; models get them beside the schema.
        if schema.get(key) == value:
            del schema[key]
    return schema


def _injected_names(tool: Any, schema: dict[str, Any]) -> frozenset[str]:
    """Return the names of arguments that LangChain fills in. Raises `ConfigurationError` if only
    LangGraph can provide one of them."""
    fields = as_object(getattr(getattr(tool, "args_schema", None), "model_fields", None))
    properties = as_object(schema.get("properties"))
    injected = set(cast("Any", getattr(tool, "_injected_args_keys", ())))
    for name, field in fields.items():
        if name in properties or getattr(field, "alias", None) in properties:
            continue
        injected.add(name)
        if field.is_required() and "InjectedToolCallId" not in repr(
            (field.annotation, field.metadata)
        ):
            raise ConfigurationError(
                f"LangChain tool {tool.name!r} needs {name!r}, which only LangGraph injects. Bind"
                " it first: wrap the function in one that gives it."
            )
    return frozenset(injected - properties.keys())


def _is_run_missing(tool: Any, error: BaseException) -> bool:
    """Return True if the tool's own `_run` raised the error, not code that it called."""
    code = getattr(getattr(cast("type[Any]", type(tool)), "_run", None), "__code__", None)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code is code and callable(getattr(tool, "ainvoke", None))


# --- content ---


def _to_content(result: ToolResult) -> Any:
    """Return a result's content for a LangChain message: a string, or a list of blocks."""
    if all(isinstance(block, TextContent) for block in result.content):
        return result.text
    return [_block_of(block) for block in result.content]


def _block_of(block: Content) -> dict[str, Any]:
    match block:
        case TextContent(text):
            pass
        case ImageContent(data, mime_type):
            return _media("image", base64.b64encode(data).decode(), mime_type)
        case AudioContent(data, mime_type):  # tool messages have no audio blocks
            return _media("file", base64.b64encode(data).decode(), mime_type)
        case FileContent():
            kind = "image" if block.kind == "image" else "file"
            if block.data:
                return _media(kind, base64.b64encode(block.data).decode(), block.mime_type)
            place = {"url": block.url} if block.url else {"file_id": block.file_id}
            mime_fields = {"mime_type": block.mime_type} if block.mime_type else {}
            return {"type": kind, **place, **mime_fields}
        case ResourceLink():
            text = f"{block.name}: {block.uri}" if block.name else block.uri
        case EmbeddedResource(resource):
            if "blob" in resource:
                mime_type = resource.get("mimeType") or _BINARY
                return _media("file", resource["blob"], mime_type)
            text = str(resource.get("text", resource.get("uri", "")))
    return {"type": "text", "text": text}


def _media(kind: str, data: str, mime_type: str) -> dict[str, Any]:
    return {"type": kind, "base64": data, "mime_type": mime_type}


def _from_content(content: Any) -> tuple[Content, ...]:
    """Return a message's content as blocks. A block of an unknown kind becomes its JSON as text."""
    if isinstance(content, str):
        return (TextContent(clean(content)),) if content else ()
    if not isinstance(content, list | tuple):
        return (TextContent(clean(str(content))),)
    return tuple([_content_block(item) for item in cast("list[Any]", content)])


def _content_block(block: Any) -> Content:
    """Convert one block of any of the forms; any other block becomes its JSON."""
    if isinstance(block, str):
        return TextContent(clean(block))
    if isinstance(block, dict):
        fields = cast("dict[str, Any]", block)
        if fields.get("type") == "text" and isinstance(fields.get("text"), str):
            return TextContent(clean(fields["text"]))
        media = _media_block(fields)
        if media is not None:
            return media
    try:
        return TextContent(clean(msgspec.json.encode(block, enc_hook=str).decode()))
    except Exception:
        return TextContent(clean(str(cast("Any", block))))


_BINARY = "application/octet-stream"
_FILES = ("image", "image_url", "audio", "file", "document", "video")
_MIME_TYPES = {"image": "image/png", "image_url": "image/png", "audio": "audio/wav"}


def _media_block(block: dict[str, Any]) -> Content | None:
    kind = str(block.get("type", ""))
    inner: Any = block.get("image_url" if kind == "image_url" else "source")
    if kind == "image_url" and not isinstance(inner, dict):
        inner = {"url": str(inner)}
    fields = {**block, **as_object(inner)}
    mime = fields.get("mime_type") or fields.get("media_type") or _MIME_TYPES.get(kind)
    data, url = fields.get("base64") or fields.get("data"), fields.get("url")
    if isinstance(url, str) and url[:5].lower() == "data:" and ";base64," in url:
        head, data = url[5:].split(";base64,", 1)
        return _decode(data, head.split(";", 1)[0] or str(mime or _BINARY))
    if isinstance(data, str) and kind in ("image", "audio", "file", "document", "video"):
        return _decode(data, str(mime or _BINARY))
    file_id = fields.get("file_id")
    if kind in _FILES and isinstance(file_id, str) and file_id:
        return FileContent(file_id=clean(file_id), mime_type=clean(str(mime or "")))
    if not isinstance(url, str) or not url:
        return None
    if kind in _FILES:
        return content_at(clean(url), clean(str(mime or "")))
    return ResourceLink(url, mime_type=mime and str(mime))


def _decode(data: str, mime: str) -> Content | None:
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if mime.startswith("image/"):
        return ImageContent(raw, mime)
    if mime.startswith("audio/"):
        return AudioContent(raw, mime)
    return EmbeddedResource({"uri": f"data:{mime}", "mimeType": mime, "blob": data})
