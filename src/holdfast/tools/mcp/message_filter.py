"""A filter for messages between an MCP server and the mcp package, for every transport and both
eras of the protocol.

| the mcp package | the filter |
|---|---|
| drops an unreadable answer, so that the call waits for ever | turns it into the call's error |
| refuses a whole list of tools because of one bad tool | reads a list tool by tool |
| validates results by the server's own schema on the loop thread | hides output schemas |
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, cast

import mcp_types
import msgspec
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from holdfast.nesting import too_deep, too_many
from holdfast.tools.json_values import as_list, as_object
from holdfast.tools.mcp.streams import StreamEnd, UnreadableMessage
from holdfast.tools.results import clip

if TYPE_CHECKING:
    from mcp_types import JSONRPCMessage, ListToolsResult

# Key in the `_meta` of a tool that the mcp package parses: the tool as the server sent it.
_RAW_TOOL_KEY = "holdfast/tool"
# Key in the `_meta` of a list: name and fault of each tool that the package does not see.
_LEFT_OUT_KEY = "holdfast/left_out"

MAX_VALUES = 250_000
"""JSON values of a message: the parser holds the interpreter's lock for 0.4 us per value."""
# Levels of a list of tools that is repaired: more than a schema may have, and fewer than JSON
# parsers read.
_MOST_LEVELS = 150
# How much of an answer that is not JSON is searched for its id.
_SCANNED_BYTES = 64 * 1024
# The beginnings of the mcp package's error messages for unreadable answers over HTTP.
_PARSE_ERROR_PREFIXES = ("Failed to parse JSON response: ", "Failed to parse SSE message: ")


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it. `hints` are its annotations under MCP's names."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    hints: dict[str, Any] = {}


class MessageFilter:
    """A transport whose messages are filtered: an async context manager that returns both streams,
    as the mcp package expects.

    `modern()` returns True once the connection speaks MCP 2026-07-28 or later.
    """

    def __init__(
        self, transport: contextlib.AbstractAsyncContextManager[Any], modern: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._modern = modern
        # Requests of the client that have no answer yet: id and method by the id as text.
        self._pending: dict[str, tuple[Any, str]] = {}

    async def __aenter__(self) -> Any:
        reading, writing = await self._transport.__aenter__()
        return _Reading(reading, self._received), _Writing(writing, self._track_request)

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._transport.__aexit__(*failure)

    def _track_request(self, message: JSONRPCMessage) -> None:
        if isinstance(message, mcp_types.JSONRPCRequest):
            self._pending[str(message.id)] = (message.id, message.method)
        elif (
            isinstance(message, mcp_types.JSONRPCNotification)
            and message.method == "notifications/cancelled"
        ):
            self._pending.pop(str((message.params or {}).get("requestId")), None)

    def _received(self, item: SessionMessage | Exception) -> list[Any]:
        """Return the messages that the mcp package gets in place of `item`."""
        if isinstance(item, Exception):
            text, reason = _unreadable(item)
            requests = [self._pending.pop(str(id), None) for id in answer_ids(text)]
            if any(one is not None and one[1] == "tools/list" for one in requests):
                # One tool must not make the others unusable.
                repaired = _repair(text)
                if repaired is not None:
                    repaired.result = _screen_tools(repaired.result, self._modern())
                    return [SessionMessage(repaired)]
            return [_failure(one[0], reason) for one in requests if one is not None] or [item]
        message = item.message
        if isinstance(message, mcp_types.JSONRPCResponse):
            _, method = self._pending.pop(str(message.id), (None, ""))
            if method == "tools/list":
                message.result = _screen_tools(message.result, self._modern())
        elif isinstance(message, mcp_types.JSONRPCError):
            # An error without an id belongs to the only pending request.
            if message.id is None and len(self._pending) == 1:
                message.id = next(iter(self._pending.values()))[0]
            self._pending.pop(str(message.id), None)
            for prefix in _PARSE_ERROR_PREFIXES:
                error = message.error
                if error.code == mcp_types.PARSE_ERROR and error.message.startswith(prefix):
                    return [_failure(message.id, error.message.removeprefix(prefix))]
        return [item]


class _Reading(StreamEnd):
    """A stream of received messages that passes each through a filter."""

    def __init__(self, inner: Any, screen: Callable[[Any], list[Any]]) -> None:
        self._inner = inner
        self._screen = screen
        self._waiting: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context of the last message's sender, if the transport keeps it."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._waiting:
            self._waiting = self._screen(await self._inner.__anext__())
        return self._waiting.pop(0)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Writing(StreamEnd):
    """A stream of messages to send, which reports each to the screen."""

    def __init__(self, inner: Any, screen: Callable[[Any], None]) -> None:
        self._inner = inner
        self._screen = screen

    async def send(self, item: SessionMessage, /) -> None:
        self._screen(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


# --- answers that cannot be read ---


def _failure(id: Any, reason: str) -> SessionMessage:
    text = f"its answer cannot be read: {clip(reason, 200)}"
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=text)
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=id, error=error))


def _unreadable(error: Exception) -> tuple[bytes, str]:
    """Return the text that a transport could not parse (empty if unknown) and the reason."""
    if isinstance(error, UnreadableMessage):
        return error.text, str(error)
    if isinstance(error, ValidationError):
        for problem in error.errors(include_url=False, include_context=False):
            text: Any = problem["input"]
            if isinstance(text, dict):
                message = cast("dict[str, Any]", text)
                fields = {key: message[key] for key in ("id", "method") if key in message}
                return json.dumps(fields).encode(), _reason(error)
            if problem["type"] == "json_invalid" and isinstance(text, str | bytes):
                data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
                return data, _reason(error)
    return b"", str(error)


def _reason(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if problem["type"] == "json_invalid":
        return str(problem["msg"])
    return "it is not a JSON-RPC message"


def parse_message(text: str | bytes) -> SessionMessage | UnreadableMessage:
    """Return the message in a text from a server, or the error for a text without one."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if too_many(data, MAX_VALUES):
        return UnreadableMessage(f"it has more than {MAX_VALUES:,} JSON values", data)
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError as error:
        reason = _reason(error) if isinstance(error, ValidationError) else str(error)
        return UnreadableMessage(reason, data)
    return SessionMessage(message)


def _repair(text: bytes) -> mcp_types.JSONRPCResponse | None:
    """Return an answer without its unreadable parts: halves of surrogate pairs, numbers of many
    digits, and levels deeper than any schema may have. None if the rest is still unreadable."""
    try:
        answer = json.loads(_without_depths(text), parse_int=_short_number)
    except (ValueError, RecursionError):
        return None
    again = parse_message(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
    message = again.message if isinstance(again, SessionMessage) else None
    return message if isinstance(message, mcp_types.JSONRPCResponse) else None


def _short_number(digits: str) -> int | None:
    return int(digits) if len(digits) < 100 else None


def _without_depths(text: bytes) -> bytes:
    """Return JSON text in which null stands for each value at more than `_MOST_LEVELS`."""
    if not too_deep(text, _MOST_LEVELS):
        return text
    pieces: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == _MOST_LEVELS + 1:
                    pieces += [text[begin : token.start()], b"null"]
            case b"}" | b"]":
                if depth == _MOST_LEVELS + 1:
                    begin = token.end()
                depth -= 1
            case _:
                pass
    return b"".join([*pieces, text[begin:]])


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ID = re.compile(rb'\s*:\s*(?:(-?[0-9]{1,20})|"([^"\\]{1,200})")')
_LAST_ID = re.compile(rb'"id"\s*:\s*(?:(-?[0-9]{1,20})|"([^"\\]{1,200})")\s*\}\s*\Z')


def answer_ids(text: bytes) -> list[int | str]:
    """Return the ids of the requests that an unreadable text answers. The list is empty for a
    request, a notification, or a text that is not JSON and has no id."""
    if too_many(text, MAX_VALUES):
        return _scanned_ids(text)
    try:
        document = json.loads(text, parse_int=_short_number)
    except (ValueError, RecursionError):
        return _scanned_ids(text)
    ids: list[int | str] = []
    for answer in map(as_object, as_list(document)):
        id = answer.get("id")
        if isinstance(id, float) and id.is_integer():  # 7.0 is 7 in JSON
            id = int(id)
        if "method" not in answer and isinstance(id, int | str):
            ids.append(id)
    return ids


def _scanned_ids(text: bytes) -> list[int | str]:
    if text.lstrip()[:1] != b"{":
        return []
    head = text[:_SCANNED_BYTES]
    depth = 0
    for token in _TOKEN.finditer(head):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b'"method"' if depth == 1:
                return []
            case b'"id"' if depth == 1 and (id := _ID.match(head, token.end())):
                return [_id_of(id)]
            case _:
                pass
    last = _LAST_ID.search(text[-1000:])
    return [_id_of(last)] if last else []


def _id_of(match: re.Match[bytes]) -> int | str:
    return int(match[1]) if match[1] is not None else match[2].decode(errors="replace")


# --- lists of tools ---


def _screen_tools(result: dict[str, Any], modern: bool) -> dict[str, Any]:
    """Return a `tools/list` result that the mcp package always accepts. Each valid tool has its
    name and its headers; `_meta` has the whole tool."""
    tools: Any = result.get("tools")
    if not isinstance(tools, list):
        return result
    usable: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for position, raw in enumerate(cast("list[Any]", tools), 1):
        tool = as_object(raw)
        name: Any = tool.get("name")
        if fault := _fault(raw, modern):
            label = clip(name, 128) if isinstance(name, str) and name else f"number {position}"
            left_out.append((label, fault))
        else:
            schema = _headers(tool["inputSchema"])
            usable.append({"name": name, "inputSchema": schema, "_meta": {_RAW_TOOL_KEY: tool}})
    meta = {**as_object(result.get("_meta")), _LEFT_OUT_KEY: left_out}
    return {**result, "tools": usable, "_meta": meta}


def _fault(raw: Any, modern: bool) -> str:
    """Return the reason why a tool is unusable, without its schemas; "" if there is none."""
    if not isinstance(raw, dict):
        return f"it is {_kind(raw)}, not an object"
    tool = cast("dict[str, Any]", raw)
    if not isinstance(tool.get("name"), str):
        return f"its name is {_kind(tool.get('name'))}, not a string"
    for key in ("title", "description"):
        if not isinstance(tool.get(key, ""), str | None):
            return f"its {key} is {_kind(tool[key])}, not a string"
    schema: Any = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return f"its inputSchema is {_kind(schema)}, not an object"
    if cast("dict[str, Any]", schema).get("type") != "object":
        return 'its inputSchema does not say "type": "object"'
    if not isinstance(tool.get("outputSchema"), dict | None):
        return f"its outputSchema is {_kind(tool['outputSchema'])}, not an object"
    invalid = find_invalid_x_mcp_header(schema) if modern else None
    return f"its {X_MCP_HEADER_KEY} is invalid: {invalid}" if invalid else ""


_KINDS: dict[type[Any], str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


def _kind(value: Any) -> str:
    return _KINDS.get(cast("type[Any]", type(value)), "missing")


def _headers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an input schema from which the mcp package makes HTTP headers."""
    inner: dict[str, Any] = {}
    for name, value in as_object(schema.get("properties")).items():
        part = as_object(value)
        if X_MCP_HEADER_KEY in part:
            inner[name] = {"type": part.get("type"), X_MCP_HEADER_KEY: part[X_MCP_HEADER_KEY]}
        elif "properties" in part and (nested := _headers(part)).get("properties"):
            inner[name] = nested
    return {"type": "object", "properties": inner} if inner else {"type": "object"}


def listed_tools(page: ListToolsResult) -> tuple[list[ListedTool], Iterable[tuple[str, str]]]:
    """Return the tools of a page that passed the filter, and the faults of the others."""
    tools: list[ListedTool] = []
    for tool in page.tools:
        raw: dict[str, Any] = (tool.meta or {})[_RAW_TOOL_KEY]
        description = raw.get("description") or raw.get("title") or ""
        schemas = (raw["inputSchema"], raw.get("outputSchema"))
        hints = as_object(raw.get("annotations"))
        tools.append(ListedTool(raw["name"], description, *schemas, hints))
    return tools, (page.meta or {}).get(_LEFT_OUT_KEY, ())
