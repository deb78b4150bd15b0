"""Tools of MCP servers: `MCPClient` connects to them and makes each of their tools a `Tool`.

The protocol is the mcp package's, which is async; it lives on one private thread. Nothing of it is imported before the first connection.
"""

from __future__ import annotations

import base64
import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.content import AudioContent, Content, EmbeddedResource, ErrorInfo, ImageContent, ResourceLink, TextContent, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp_link import Hub, read_servers, seconds
from holdfast.tools.names import wire_name
from holdfast.tools.tool import Tool, ToolAnnotations

if TYPE_CHECKING:
    import mcp_types

_log = logging.getLogger(__name__)


# --- tools ---------------------------------------------------------------------------------------


class MCPTool(Tool):
    """A tool of an MCP server, `server.tool`. Made by `MCPClient`."""

    tool_type = "mcp_tool"

    def __init__(self, client: MCPClient, server: str, found: mcp_types.Tool, trusted: bool) -> None:
        super().__init__(
            f"{server}.{found.name}",
            found.description or found.title or "",
            None,
            found.input_schema,
            found.output_schema,
            _annotations(found.annotations) if trusted else ToolAnnotations(),
            "mcp",
        )
        self._client = client
        self._server = server
        self._tool = found.name

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Ask the server. Raises `ToolError`; a result by which the tool itself reports an error is returned, with `is_error`."""
        return self._client._call(self._server, self._tool, arguments, context)  # pyright: ignore[reportPrivateUsage]: one room


def _annotations(hints: mcp_types.ToolAnnotations | None) -> ToolAnnotations:
    names = ("read_only", "destructive", "idempotent", "open_world")
    given = {name: getattr(hints, f"{name}_hint", None) for name in names}
    return ToolAnnotations(**{name: value for name, value in given.items() if value is not None})


def _result(name: str, found: mcp_types.CallToolResult) -> ToolResult:
    from mcp_types import SERVER_INFO_META_KEY

    try:
        content = tuple(_block(block) for block in found.content)
    except ValueError as error:
        raise ToolError(
            f"{name!r} sent content that is not valid base64 ({error}). Its effect may have happened.", retryable=False
        ) from None
    # The server signs every result; that is the protocol's business and no part of the tool's answer.
    meta = {key: value for key, value in (found.meta or {}).items() if key != SERVER_INFO_META_KEY}
    result = ToolResult(content, found.structured_content, meta, found.is_error)
    if found.is_error:  # the server does not say of what kind
        return msgspec.structs.replace(result, error=ErrorInfo("unknown", result.text))
    return result


def _block(block: mcp_types.ContentBlock) -> Content:
    match block.type:
        case "text":
            return TextContent(block.text)
        case "image":
            return ImageContent(base64.b64decode(block.data), block.mime_type)
        case "audio":
            return AudioContent(base64.b64decode(block.data), block.mime_type)
        case "resource_link":
            return ResourceLink(block.uri, block.name, block.mime_type)
        case "resource":
            return EmbeddedResource(block.resource.model_dump(mode="json", by_alias=True, exclude_none=True))


# --- the client ----------------------------------------------------------------------------------


class MCPClient:
    """The tools of MCP servers, each as `server.tool`: `tools += MCPClient(config)`, or `client.tools()`. Thread-safe.

    `config` is the usual `{"mcpServers": {id: server}}` or its inner mapping; None or an empty one gives no tools. A server is
    `{"command", "args", "env", "cwd"}` (stdio) or `{"url", "headers"}` (streamable HTTP); both take `type` and `trusted`, without which
    the server's annotations (read_only, idempotent, ...) are not believed, and so none of its calls is repeated unasked.

    The first use connects to all servers at once, each within `timeout` seconds; that includes listing its tools. A server that fails
    harms only itself: `errors` then says why, by server id (or tool name, for a tool that cannot be used), and a warning is logged; it is
    tried again after `close`. A call takes at most `call_timeout` seconds (None: no limit) and heeds `context.cancelled`. A server that
    died is started again by the next call. Works again after `close`, tools that were made before included.

    A stdio server inherits HOME, LOGNAME, PATH, SHELL, TERM and USER, by the mcp package's allow-list, and nothing else of this
    process's environment: what it needs (keys, above all) stands in `env`. HTTP takes no proxy or credential from the environment either.

    Raises `ConfigurationError` naming the server and the key that does not fit.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, *, timeout: float = 30.0, call_timeout: float | None = None) -> None:
        self._servers = read_servers(config)
        self._timeout = seconds("timeout", timeout)
        self._call_timeout = None if call_timeout is None else seconds("call_timeout", call_timeout)
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()  # for the four below; held while nothing waits
        self._discovery = threading.Lock()  # one thread discovers, the others wait for it
        self._hub: Hub | None = None
        self._tools: list[Tool] | None = None
        self._abandoned: weakref.finalize[Any, Any] | None = None

    def tools(self) -> list[Tool]:
        """The tools of all servers that could be connected to, in the order of the config. Connects at the first use."""
        if not self._servers:
            return []
        with self._discovery:
            found = self._tools
            if found is None:
                hub = self._open()
                found, errors = self._usable(hub.thread.submit(hub.discover()).result())
                for error in errors.values():
                    _log.warning("%s", error)
                with self._lock:
                    self.errors = errors
                    if self._hub is hub:  # else it was closed meanwhile, and the next use connects again
                        self._tools = found
            return list(found)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools())

    def _usable(self, found: list[list[mcp_types.Tool] | BaseException]) -> tuple[list[Tool], dict[str, str]]:
        tools: dict[str, Tool] = {}
        errors: dict[str, str] = {}
        for (server, config), outcome in zip(self._servers.items(), found, strict=True):
            if isinstance(outcome, BaseException):
                errors[server] = str(outcome) or f"MCP server {server!r} could not be connected to: {type(outcome).__name__}."
                continue
            for one in outcome:
                try:
                    tool = MCPTool(self, server, one, config.trusted)
                except ConfigurationError as error:
                    errors[f"{server}.{one.name}"] = f"MCP server {server!r} has a tool that cannot be used. {error}"
                    continue
                if wire_name(tool.name) in tools:  # an agent would refuse all of them for the sake of this one
                    errors[tool.name] = f"MCP server {server!r}: {tool.name!r} is left out: its name is taken by another tool."
                    continue
                tools[wire_name(tool.name)] = tool
        return list(tools.values()), errors

    def _open(self) -> Hub:
        with self._lock:
            if self._hub is None:
                self._hub = Hub(self._servers, self._timeout)
                # For a client that is dropped without being closed. It only asks: a garbage collector must not wait.
                self._abandoned = weakref.finalize(self, self._hub.thread.stop)
                self._abandoned.atexit = False  # the thread closes itself there, and waits
            return self._hub

    def _call(self, server: str, tool: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        context.cancelled.raise_if_set()
        name = f"{server}.{tool}"
        hub = self._open()
        future = hub.thread.submit(hub.call(server, tool, arguments))
        forget = context.cancelled.add_callback(lambda: future.cancel() and None)
        try:
            return _result(name, future.result(self._call_timeout))
        except ToolError:
            raise
        except TimeoutError:
            raise ToolTimeout(
                f"{name!r} did not answer within {self._call_timeout:g} s and was cancelled; its effect may have happened."
            ) from None
        except CancelledError:
            if context.cancelled:
                raise ToolCancelled(f"{name!r} was cancelled; its effect may have happened.") from None
            raise ToolError(f"{name!r}: the client was closed during the call, whose effect may have happened.", "network") from None
        finally:
            forget()
            future.cancel()  # also when the wait was interrupted; nothing to do for one that is done

    def close(self) -> None:
        """End all connections and server processes, at once and within some seconds. Idempotent; the next use connects again."""
        with self._lock:
            hub, self._hub, self._tools = self._hub, None, None
            if self._abandoned is not None:
                self._abandoned.detach()
        if hub is not None:
            hub.thread.close()

    def __enter__(self) -> MCPClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MCPClient({', '.join(self._servers)})"
