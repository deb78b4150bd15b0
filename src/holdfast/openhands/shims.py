"""OpenHands' actions and observations as tool calls and results, and back.

An action is one use of a tool, an observation what came of it. Both are told apart by `kind` in the Software Agent SDK (version 1), and by the
keys `action` and `observation` before it (version 0). A call keeps the name that the tool has there, so that what a model was told and
what it asked for stay the same.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from holdfast.content import Content, ImageContent, ResourceLink, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.results import clean

Fields = dict[str, Any]

KIND = "observationType"  # of a result's meta: what OpenHands calls it
REST = "observation"  # of a result's meta: the fields that a result has no place for

# Kinds of actions whose tools are not called as they are. The rest follows the rule: `GlobAction` is of `glob`, `BrowserClickAction` of `browser_click`.
_TOOLS = {
    "ExecuteBashAction": "execute_bash",
    "StrReplaceEditorAction": "str_replace_editor",
    "MCPToolAction": "",
}
_KINDS = {tool: kind for kind, tool in _TOOLS.items() if tool}

# Version 0: its actions, and the tools that a model called for them.
_TOOLS_0 = {
    "run": "execute_bash",
    "run_ipython": "execute_ipython_cell",
    "edit": "str_replace_editor",
    "read": "str_replace_editor",
    "browse": "web_read",
    "browse_interactive": "browser",
    "task_tracking": "task_tracker",
}
_ACTIONS_0 = {"execute_bash": "run", "execute_ipython_cell": "run_ipython", "web_read": "browse", "browser": "browse_interactive", "task_tracker": "task_tracking"}  # fmt: skip
_OBSERVATIONS_0 = {"run": "CmdOutputObservation", "run_ipython": "IPythonRunCellObservation"}
_NOT_ARGUMENTS = frozenset(("kind", "thought", "hidden", "confirmation_state", "security_risk", "summary"))

_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def fields_of(found: Any, what: str) -> Fields:
    """A mapping, or an object of OpenHands', as a dict of its own. Raises `ConfigurationError`."""
    if isinstance(found, Mapping):
        return dict(cast("Mapping[str, Any]", found))
    dump = getattr(found, "model_dump", None)  # a pydantic model, as its actions and observations are
    if callable(dump):
        given = dump(mode="json")
        if isinstance(given, dict):
            return cast(Fields, given) if "kind" in given else {"kind": type(found).__name__, **cast(Fields, given)}
    raise ConfigurationError(f"{what} takes a mapping or an object of OpenHands' SDK, not {type(found).__name__}.")


def tool_of(kind: str) -> str:
    """The tool that an action of this kind uses: `TerminalAction` is of `terminal`."""
    if kind in _TOOLS:
        return _TOOLS[kind]
    return "_".join(word.lower() for word in _WORDS.split(kind.removesuffix("Action")))


def kind_of(tool: str) -> str:
    """The kind of action that uses a tool: the inverse of `tool_of`."""
    return _KINDS.get(tool) or "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", tool)) + "Action"


def to_tool_call(action: Any, id: str = "") -> ToolCall:
    """An action as a call: of an `ActionEvent`, of an action alone, or of an event of version 0. Its name is the tool's there.

    Arguments are the action's fields; where an event has the call as the model made it, those, with what it said beside them (`security_risk`,
    `summary`). Raises `ConfigurationError` for what is no action.
    """
    found = fields_of(action, "to_tool_call")
    if "tool_name" in found:
        return _of_event(found, id)
    if isinstance(found.get("action"), str):
        return _of_version_0(found, id)
    kind = found.get("kind")
    if not isinstance(kind, str) or not kind.endswith("Action"):
        raise ConfigurationError("to_tool_call takes an action: it has neither a kind that ends in Action, nor tool_name, nor action.")
    arguments = {name: value for name, value in found.items() if name != "kind"}
    name = tool_of(kind)
    if not name:  # of an MCP server's tool: what it is called stands in the event alone
        data = arguments.get("data")
        return ToolCall(id, str(arguments.get("name") or "mcp"), cast(Fields, data) if isinstance(data, dict) else arguments)
    return ToolCall(id, name, arguments)


def _of_event(event: Fields, id: str) -> ToolCall:
    name = str(event["tool_name"])
    asked, action = event.get("tool_call"), event.get("action")
    provider = str(event.get("tool_call_id") or "")
    if isinstance(asked, dict):
        asked = cast(Fields, asked)
        nested = asked.get("function")
        text = asked.get("arguments", cast(Fields, nested).get("arguments") if isinstance(nested, dict) else None)
        return with_arguments(ToolCall(id, name, provider_id=provider), text if isinstance(text, str) else "")
    arguments = {key: value for key, value in cast(Fields, action).items() if key != "kind"} if isinstance(action, dict) else {}
    return ToolCall(id, name, arguments, provider)


def _of_version_0(event: Fields, id: str) -> ToolCall:
    args = event.get("args")
    args = dict(cast(Fields, args)) if isinstance(args, dict) else {}
    asked = event.get("tool_call_metadata")
    if isinstance(asked, dict):
        asked = cast(Fields, asked)
        call = ToolCall(id, str(asked.get("function_name") or event["action"]), provider_id=str(asked.get("tool_call_id") or ""))
        text = _asked_0(asked, call.provider_id)
        if text is not None:
            return with_arguments(call, text)
        name, provider = call.name, call.provider_id
    else:
        name, provider = _TOOLS_0.get(str(event["action"]), str(event["action"])), ""
    if event["action"] == "mcp":
        given = args.get("arguments")
        return ToolCall(id, str(args.get("name") or name), dict(cast(Fields, given)) if isinstance(given, dict) else {}, provider)
    return ToolCall(id, name, {key: value for key, value in args.items() if key not in _NOT_ARGUMENTS}, provider)


def _asked_0(metadata: Fields, call_id: str) -> str | None:
    """The argument text of a call as the model made it, if version 0 kept the answer."""
    answer: Any = metadata.get("model_response")
    try:
        for choice in answer["choices"]:
            for call in choice["message"]["tool_calls"]:
                if call["id"] == call_id:
                    return str(call["function"]["arguments"])
    except (KeyError, TypeError):
        pass
    return None


def with_arguments(call: ToolCall, text: str) -> ToolCall:
    """The call with the arguments of a JSON text, which may be none."""
    text = clean(text)
    if too_deep(text):
        return msgspec.structs.replace(call, raw=text, invalid=f"nested deeper than {MAX_DEPTH} levels")
    try:
        arguments: Any = msgspec.json.decode(text) if text.strip() else {}
    except ValueError as error:
        return msgspec.structs.replace(call, raw=text, invalid=f"not JSON: {error}")
    if not isinstance(arguments, dict):
        return msgspec.structs.replace(call, raw=text, invalid="not a JSON object")
    return msgspec.structs.replace(call, arguments=arguments, raw="" if msgspec.json.encode(arguments).decode() == text else text)


def to_action(call: ToolCall, version: Literal[0, 1] = 1) -> Fields:
    """A call as an action: `{"kind": "TerminalAction", ...}`, or in version 0 `{"action": "run", "args": ...}`. The inverse of `to_tool_call`
    for the calls that it makes of actions. A name with a dot is an MCP server's tool."""
    if version == 0:
        if "." in call.name:
            return {"action": "mcp", "args": {"name": call.name, "arguments": call.arguments}}
        return {"action": _ACTIONS_0.get(call.name, call.name), "args": dict(call.arguments)}
    if "." in call.name:
        return {"kind": "MCPToolAction", "name": call.name, "data": dict(call.arguments)}
    return {"kind": kind_of(call.name), **{key: value for key, value in call.arguments.items() if key != "kind"}}


# --- observations --------------------------------------------------------------------------------


def to_tool_result(observation: Any) -> ToolResult:
    """An observation as a result: of an observation alone, of an `ObservationEvent`, an `AgentErrorEvent` or a rejection, or of an event of
    version 0. What a result has no place for is in its `meta`: `observationType`, `exitCode` if there is one, and `observation`, the rest.

    Raises `ConfigurationError` for what is no observation.
    """
    found = fields_of(observation, "to_tool_result")
    if isinstance(found.get("observation"), str):
        return _result_0(found)
    if "observation" in found:
        inner = fields_of(found["observation"], "to_tool_result")
        result = to_tool_result(inner)
        more = content_of(found.get("extended_content"))
        return msgspec.structs.replace(result, content=(*result.content, *more)) if more else result
    kind = found.pop("kind", None)
    if kind == "AgentErrorEvent" or (kind is None and isinstance(found.get("error"), str) and "tool_call_id" in found):
        return ToolResult.failure(clean(str(found.get("error") or "")), "unknown", meta={KIND: "AgentErrorEvent"})
    if kind == "UserRejectObservation":
        reason = clean(str(found.get("rejection_reason") or "User rejected the action"))
        return ToolResult.failure(f"Action rejected: {reason}", "cancelled", meta={KIND: kind, "decision": "reject"})
    if not isinstance(kind, str) or not kind.endswith("Observation"):
        raise ConfigurationError(
            "to_tool_result takes an observation: it has neither a kind that ends in Observation, nor observation, nor error."
        )
    given = next((name for name in ("content", "output", "text", "message") if found.get(name)), "content")
    content = content_of(found.pop(given, None))
    error = bool(found.pop("is_error", False) or found.get("error"))
    meta: Fields = {KIND: kind}
    if isinstance(code := found.get("exit_code"), int):
        meta["exitCode"] = code
    if given != "content":
        found["content"] = given  # where the text stood
    if found:
        meta[REST] = found
    if not content and isinstance(found.get("error"), str):
        content = (TextContent(clean(found["error"])),)
    return ToolResult(content, meta=meta, is_error=error)


def _result_0(event: Fields) -> ToolResult:
    kind = str(event["observation"])
    extras = event.get("extras")
    extras = dict(cast(Fields, extras)) if isinstance(extras, dict) else {}
    meta: Fields = {KIND: _OBSERVATIONS_0.get(kind, kind)}
    metadata = extras.get("metadata")
    code = cast(Fields, metadata).get("exit_code") if isinstance(metadata, dict) else extras.get("exit_code")
    if isinstance(code, int):
        meta["exitCode"] = code
    if extras:
        meta[REST] = extras
    return ToolResult(content_of(event.get("content")), meta=meta, is_error=kind == "error")


def to_observation(result: ToolResult, version: Literal[0, 1] = 1, tool: str = "") -> Fields:
    """A result as an observation: the inverse of `to_tool_result`. One that was none is called after its `tool`."""
    meta = result.meta
    kind = str(meta.get(KIND) or "")
    rest = meta.get(REST)
    rest = dict(cast(Fields, rest)) if isinstance(rest, dict) else {}
    if version == 0:
        names = {name: kind for kind, name in _OBSERVATIONS_0.items()}
        kind = "error" if result.is_error else names.get(kind, kind) or _ACTIONS_0.get(tool, tool or "run")
        if "exitCode" in meta and not rest:
            rest = {"metadata": {"exit_code": meta["exitCode"]}}
        return {"observation": kind, "content": result.text, "extras": rest}
    if not kind.endswith("Observation") or kind == "UserRejectObservation":
        kind = kind_of(tool or "tool").removesuffix("Action") + "Observation"
    if "exitCode" in meta:
        rest.setdefault("exit_code", meta["exitCode"])
    blocks = [written(block) for block in result.content]
    if not blocks and result.structured_content is not None:
        blocks = [{"type": "text", "text": msgspec.json.encode(result.structured_content).decode()}]
    place = rest.pop("content", "content")
    found: Fields = {"content": blocks} if place == "content" or not isinstance(place, str) else {"content": [], place: result.text}
    return {**found, "is_error": result.is_error, **rest, "kind": kind}


def content_of(given: Any) -> tuple[Content, ...]:
    """Blocks of OpenHands' content: a text, or a list of text and picture blocks."""
    if isinstance(given, str):
        return (TextContent(clean(given)),) if given else ()
    if not isinstance(given, Iterable):
        return ()
    found: list[Content] = []
    for block in cast("Iterable[Any]", given):
        if isinstance(block, str):
            found.append(TextContent(clean(block)))
        elif isinstance(block, Mapping):
            block = cast("Mapping[str, Any]", block)
            if isinstance(text := block.get("text"), str):
                found.append(TextContent(clean(text)))
            urls = block.get("image_urls")
            found += [_picture(url) for url in cast("list[Any]", urls if isinstance(urls, list) else []) if isinstance(url, str)]
    return tuple(found)


def _picture(url: str) -> Content:
    inline = _DATA.fullmatch(url)
    if inline is not None:
        try:
            return ImageContent(b64decode(inline[2], validate=True), inline[1])
        except ValueError:
            return TextContent("[A picture stood here, which cannot be read.]")
    return ResourceLink(clean(url), mime_type="image/*")


def written(block: Content) -> Fields:
    """A block as OpenHands writes it."""
    match block:
        case TextContent(text):
            return {"type": "text", "text": text}
        case ImageContent(data, mime_type):
            return {"type": "image", "image_urls": [f"data:{mime_type};base64,{b64encode(data).decode()}"]}
        case ResourceLink(uri, _, mime_type) if (mime_type or "").startswith("image/"):
            return {"type": "image", "image_urls": [uri]}
        case _:
            return {"type": "text", "text": f"[{type(block).__name__}]"}
