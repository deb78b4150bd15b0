"""Conversion of OpenHands' actions and observations to tool calls and results, and back.

An action is one use of a tool; an observation is its outcome. The Software Agent SDK (version 1)
identifies both by `kind`, the earlier version 0 by the keys `action` and `observation`. A call
keeps the tool's name in OpenHands, so the model's requests and answers stay the same.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, cast

import msgspec

from holdfast.content import (
    Content,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ConfigurationError
from holdfast.llm.files import left_out
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools.names import word_set
from holdfast.tools.results import clean

Fields = dict[str, Any]

# Keys in a result's meta.
KIND = "observationType"  # OpenHands' kind of the observation
REST = "observation"  # the fields without a place in a result
BLOCKS = "observationBlocks"  # the division of the content into blocks
# The whole observation, if the other fields do not restore it.
WHOLE = "observationWhole"

# Kinds of actions whose tool's name does not follow the rule: `GlobAction` belongs to `glob`,
# `BrowserClickAction` to `browser_click`.
_TOOLS = {
    "ExecuteBashAction": "execute_bash",
    "StrReplaceEditorAction": "str_replace_editor",
    "ConsultTomAction": "tom_consult",
    "SwitchLLMAction": "switch_llm",
    "ClassifyAndSwitchLLMAction": "classify_and_switch_llm",
    "MCPToolAction": "",
}
_CLIENT = "ClientAction_"  # the prefix of a tool that a client defined
_KINDS = {tool: kind for kind, tool in _TOOLS.items() if tool}

# The tools of version 0 by action.
_TOOLS_V0 = {
    "run": "execute_bash",
    "run_ipython": "execute_ipython_cell",
    "edit": "str_replace_editor",
    "read": "str_replace_editor",
    "browse": "web_read",
    "browse_interactive": "browser",
    "task_tracking": "task_tracker",
}
# The inverse, where a tool has one action.
_ACTIONS_V0 = {tool: action for action, tool in _TOOLS_V0.items()} | {
    "request_condensation": "condensation_request"
}
# Actions of version 0 that have their tool's name. Other names belong to tools of MCP servers.
_UNCHANGED_ACTIONS_V0 = word_set(
    "message system start read write edit run run_ipython browse browse_interactive delegate "
    "think finish reject null pause resume stop change_agent_state push send_pr recall "
    "condensation condensation_request task_tracking"
)
_MCP_ACTION_V0 = "call_tool_mcp"
_ONLY_EDITS = frozenset(("file_text", "old_str", "new_str", "insert_line", "content"))
_OBSERVATIONS_V0 = {"run": "CmdOutputObservation", "run_ipython": "IPythonRunCellObservation"}
_NOT_ARGUMENTS = frozenset(
    ("kind", "thought", "hidden", "confirmation_state", "security_risk", "summary")
)

_REJECTED = "Action rejected: "  # the prefix of the reason in the model's result
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


def mapping(value: Any) -> Fields:
    """Return a JSON object as a new dict; empty for any other value."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


class ActionCall(ToolCall, frozen=True):
    """A call made from an action that its name and arguments alone do not restore. `action` is that
    action. `derived_call` holds the name and arguments that were derived from it, and reveals a
    later edit of the call."""

    action: Fields = {}
    derived_call: tuple[str, Fields] = ("", {})

    def __eq__(self, other: object) -> bool:
        """Return True for a call with the same fields as a `ToolCall`, with any action."""
        return isinstance(other, ToolCall) and all(
            getattr(self, name) == getattr(other, name) for name in ToolCall.__struct_fields__
        )

    __hash__ = ToolCall.__hash__


def fields_of(value: Any, what: str) -> Fields:
    """Return a mapping or an OpenHands object as a new dict. Raises `ConfigurationError`."""
    if isinstance(value, Mapping):
        return mapping(value)
    dump = getattr(value, "model_dump", None)  # actions and observations are pydantic models
    dumped = dump(mode="json") if callable(dump) else None
    if isinstance(dumped, dict):
        return {"kind": type(value).__name__, **cast(Fields, dumped)}
    raise ConfigurationError(
        f"{what} takes a mapping or an object of OpenHands' SDK, not {type(value).__name__}."
    )


def tool_of(kind: str) -> str:
    """Return the tool that an action of this kind uses: `TerminalAction` uses `terminal`."""
    if kind in _TOOLS:
        return _TOOLS[kind]
    if kind.startswith(_CLIENT):
        return kind.removeprefix(_CLIENT)
    return "_".join(word.lower() for word in _WORDS.split(kind.removesuffix("Action")))


def kind_of(tool: str) -> str:
    """Return the kind of action that uses a tool: the inverse of `tool_of`."""
    words = re.split(r"[^A-Za-z0-9]+", tool)
    return _KINDS.get(tool) or "".join(word[:1].upper() + word[1:] for word in words) + "Action"


def to_tool_call(action: Any, id: str = "") -> ToolCall:
    """Return an action as a call, for an `ActionEvent`, a single action, or an event of version 0.
    Its name is the tool's in OpenHands.

    `to_action` restores the same action. If the name and the arguments do not contain all of it,
    the call is an `ActionCall`. The arguments are the action's fields. If an event contains the
    call as the model made it, they are that call's arguments, including extra ones
    (`security_risk`, `summary`). Raises `ConfigurationError` if this is not an action.
    """
    fields = fields_of(action, "to_tool_call")
    version: Literal[0, 1] = 1
    origin: Fields | None = fields
    if "tool_name" in fields:
        call = _of_event(fields, id)
        origin = fields["action"] if isinstance(fields.get("action"), dict) else None
    elif isinstance(fields.get("action"), str):
        call, version = _of_version_0(fields, id), 0
        origin = {key: fields[key] for key in ("action", "args", "timeout") if key in fields}
    else:
        call = _of_action(fields, id)
    if origin is None or call.invalid or to_action(call, version) == origin:
        return call
    derived_call = (call.name, deepcopy(call.arguments))
    fields_of_call = msgspec.structs.asdict(call)
    return ActionCall(**fields_of_call, action=deepcopy(origin), derived_call=derived_call)


def _of_action(fields: Fields, id: str) -> ToolCall:
    kind = fields.get("kind")
    if not isinstance(kind, str) or not (kind.endswith("Action") or kind.startswith(_CLIENT)):
        raise ConfigurationError(
            "to_tool_call takes an action: it has neither a kind that ends in Action, nor"
            " tool_name, nor action."
        )
    name, arguments = tool_of(kind), dict(fields)
    del arguments["kind"]
    if not name:  # an MCP server's tool, whose name is only in the event
        data = arguments.get("data")
        arguments = cast(Fields, data) if isinstance(data, dict) else arguments
        name = str(fields.get("name") or "mcp")
    return ToolCall(id, name, arguments)


def _of_event(event: Fields, id: str) -> ToolCall:
    call = ToolCall(id, str(event["tool_name"]), provider_id=str(event.get("tool_call_id") or ""))
    if isinstance(event.get("tool_call"), dict):
        tool_call = mapping(event["tool_call"])
        text = tool_call.get("arguments", mapping(tool_call.get("function")).get("arguments"))
        return with_arguments(call, text if isinstance(text, str) else "")
    arguments = mapping(event.get("action"))
    arguments.pop("kind", None)
    return msgspec.structs.replace(call, arguments=arguments)


def _of_version_0(event: Fields, id: str) -> ToolCall:
    args, action = mapping(event.get("args")), str(event["action"])
    name, provider = _TOOLS_V0.get(action, action), ""
    if isinstance(event.get("tool_call_metadata"), dict):
        metadata = mapping(event["tool_call_metadata"])
        name = str(metadata.get("function_name") or action)
        provider = str(metadata.get("tool_call_id") or "")
        text = _argument_text_v0(metadata, provider)
        if text is not None:
            return with_arguments(ToolCall(id, name, provider_id=provider), text)
    if action in (_MCP_ACTION_V0, "mcp"):
        name = str(args.get("name") or name)
        return ToolCall(id, name, mapping(args.get("arguments")), provider)
    # The thought is the argument of the tool think.
    dropped = _NOT_ARGUMENTS - {"thought"} if action == "think" else _NOT_ARGUMENTS
    arguments = {key: value for key, value in args.items() if key not in dropped}
    if action == "read":
        arguments = {"command": "view", **arguments}
    return ToolCall(id, name, arguments, provider)


def _argument_text_v0(metadata: Fields, call_id: str) -> str | None:
    """Return the argument text of a call as the model wrote it, if version 0 kept the answer."""
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
    """Return the call with the arguments of a JSON text; `invalid` is set if the text is not a
    JSON object."""
    text = clean(text)
    arguments: Any = {}
    invalid = f"nested deeper than {MAX_DEPTH} levels" if too_deep(text) else ""
    if not invalid and text.strip():
        try:
            arguments = msgspec.json.decode(text)
        except ValueError as error:
            invalid = f"not JSON: {error}"
    if not isinstance(arguments, dict):
        invalid = "not a JSON object"
    if invalid:
        return msgspec.structs.replace(call, raw=text, invalid=invalid)
    raw = "" if msgspec.json.encode(arguments).decode() == text else text
    return msgspec.structs.replace(call, arguments=arguments, raw=raw)


def to_action(call: ToolCall, version: Literal[0, 1] = 1) -> Fields:
    """Return a call as an action: `{"kind": "TerminalAction", ...}`, or in version 0 `{"action":
    "run", "args": ...}`.

    The inverse of `to_tool_call` for calls made from actions. A name with a dot is a tool of an MCP
    server; in version 0 also a name without its own action.
    """
    if (
        isinstance(call, ActionCall)
        and call.derived_call == (call.name, call.arguments)
        and ("kind" in call.action) == (version == 1)
    ):
        return deepcopy(call.action)
    arguments = dict(call.arguments)
    if version == 0:
        return _action_v0(call.name, arguments)
    if "." in call.name:
        return {"kind": "MCPToolAction", "name": call.name, "data": arguments}
    arguments.pop("kind", None)
    return {"kind": kind_of(call.name), **arguments}


def _action_v0(name: str, arguments: Fields) -> Fields:
    action = _ACTIONS_V0.get(name, name)
    match name:
        case "str_replace_editor" if arguments.get("command") == "view" and _ONLY_EDITS.isdisjoint(
            arguments
        ):
            action = "read"
            del arguments["command"]
        case "str_replace_editor":
            action = "edit"
        case "edit_file":
            action, arguments = "edit", {"impl_source": "llm_based_edit", **arguments}
        case "finish" if "message" in arguments:
            arguments = {"final_thought": arguments.pop("message"), **arguments}
        case "browser" if "code" in arguments:
            arguments = {"browser_actions": arguments.pop("code"), **arguments}
        case _ if name not in _ACTIONS_V0 and name not in _UNCHANGED_ACTIONS_V0:
            action, arguments = _MCP_ACTION_V0, {"name": name, "arguments": arguments}
        case _:
            pass
    return {"action": action, "args": arguments}


# --- observations ---


def to_tool_result(observation: Any) -> ToolResult:
    """Return an observation as a result, for a single observation, an `ObservationEvent`, an
    `AgentErrorEvent`, a rejection, or an event of version 0. Fields without a place in a result are
    in its `meta`: `observationType`, `exitCode` if present, and the rest in `observation`. Raises
    `ConfigurationError` if this is not an observation."""
    fields = fields_of(observation, "to_tool_result")
    version: Literal[0, 1] = 1
    if isinstance(fields.get("observation"), str):
        names = ("observation", "content", "extras", "success")
        result, version = _result_v0(fields), 0
        fields = {key: fields[key] for key in names if key in fields}
    elif "observation" in fields:
        result = to_tool_result(fields_of(fields["observation"], "to_tool_result"))
        more = content_of(fields.get("extended_content"))
        return msgspec.structs.replace(result, content=(*result.content, *more)) if more else result
    else:
        result = _result_v1(dict(fields))
    if to_observation(result, version) == fields:
        return result
    return msgspec.structs.replace(result, meta={**result.meta, WHOLE: deepcopy(fields)})


def _result_v1(fields: Fields) -> ToolResult:
    kind = fields.pop("kind", None)
    is_error_event = isinstance(fields.get("error"), str) and "tool_call_id" in fields
    if kind == "AgentErrorEvent" or (kind is None and is_error_event):
        text = clean(str(fields.pop("error", None) or ""))
        meta = {KIND: "AgentErrorEvent", **({REST: fields} if fields else {})}
        return ToolResult.failure(text, "unknown", meta=meta)
    if kind == "UserRejectObservation":
        reason = clean(str(fields.pop("rejection_reason", None) or "User rejected the action"))
        meta = {KIND: kind, "decision": "reject", **({REST: fields} if fields else {})}
        return ToolResult.failure(f"{_REJECTED}{reason}", "cancelled", meta=meta)
    if not isinstance(kind, str) or not kind.endswith("Observation"):
        raise ConfigurationError(
            "to_tool_result takes an observation: it has neither a kind that ends in Observation,"
            " nor observation, nor error."
        )
    text_field = next(
        (name for name in ("content", "output", "text", "message") if fields.get(name)), "content"
    )
    blocks = fields.pop(text_field, None)
    content = content_of(blocks)
    has_error = fields.pop("is_error", False)
    error = bool(has_error or fields.get("error"))
    meta: Fields = {KIND: kind}
    if error is not has_error:
        fields["is_error"] = has_error
    if isinstance(blocks, list) and (shape := _shape(cast("list[Any]", blocks))) is not None:
        meta[BLOCKS] = shape
    if isinstance(code := fields.get("exit_code"), int):
        meta["exitCode"] = code
    if text_field != "content":
        fields["content"] = text_field  # the field of the text
    if fields:
        meta[REST] = fields
    if not content and isinstance(fields.get("error"), str):
        content = (TextContent(clean(fields["error"])),)
    return ToolResult(content, meta=meta, is_error=error)


def _result_v0(event: Fields) -> ToolResult:
    kind, extras = str(event["observation"]), mapping(event.get("extras"))
    meta: Fields = {KIND: _OBSERVATIONS_V0.get(kind, kind)}
    metadata = extras.get("metadata")
    code = (mapping(metadata) if isinstance(metadata, dict) else extras).get("exit_code")
    if isinstance(code, int):
        meta["exitCode"] = code
    if extras:
        meta[REST] = extras
    if isinstance(success := event.get("success"), bool):
        meta["success"] = success
    return ToolResult(content_of(event.get("content")), meta=meta, is_error=kind == "error")


def to_observation(result: ToolResult, version: Literal[0, 1] = 1, tool: str = "") -> Fields:
    """Return a result as an observation: the inverse of `to_tool_result`. The kind of any other
    result is derived from `tool`."""
    meta = result.meta
    whole = meta.get(WHOLE)
    if isinstance(whole, dict) and ("kind" in whole) == (version == 1):
        whole = cast(Fields, whole)
        # Else the result was edited or shortened.
        if to_tool_result(whole).content == result.content:
            return deepcopy(whole)
    kind, rest = str(meta.get(KIND) or ""), mapping(meta.get(REST))
    if version == 0:
        return _observation_v0(result, kind, rest, tool)
    if kind == "AgentErrorEvent":
        return {"error": result.text, **rest, "kind": kind}
    if kind == "UserRejectObservation":
        return {"rejection_reason": result.text.removeprefix(_REJECTED), **rest, "kind": kind}
    if not kind.endswith("Observation"):
        kind = kind_of(tool or "tool").removesuffix("Action") + "Observation"
    if "exitCode" in meta:
        rest.setdefault("exit_code", meta["exitCode"])
    blocks = _shaped(result.content, meta.get(BLOCKS))
    if not blocks and result.structured_content is not None:
        blocks = [{"type": "text", "text": msgspec.json.encode(result.structured_content).decode()}]
    place = rest.pop("content", "content")
    content: Fields = {"content": blocks}
    if place != "content" and isinstance(place, str):
        content = {"content": [], place: result.text}
    return {**content, "is_error": result.is_error, **rest, "kind": kind}


def _observation_v0(result: ToolResult, kind: str, rest: Fields, tool: str) -> Fields:
    meta, kinds = result.meta, {name: kind for kind, name in _OBSERVATIONS_V0.items()}
    if kind in kinds or (kind and not kind.endswith(("Observation", "Event"))):
        kind = kinds.get(kind, kind)
    elif result.is_error:
        kind = "error"
    else:
        kind = _action_v0(tool or "execute_bash", {})["action"]
    if "exitCode" in meta and not rest:
        rest = {"metadata": {"exit_code": meta["exitCode"]}}
    kind = "mcp" if kind == _MCP_ACTION_V0 else kind
    observation: Fields = {"observation": kind, "content": result.text, "extras": rest}
    if isinstance(meta.get("success"), bool):
        observation["success"] = meta["success"]
    return observation


def _shape(blocks: list[Any]) -> list[Any] | None:
    """Return how blocks were divided: for each, the number of Holdfast blocks and the fields
    without a place in them. None for the usual division."""
    shape: list[Any] = []
    for block in blocks:
        rest = mapping(block)
        kind = "text" if rest.pop("image_urls", None) is None else "image"
        rest = {key: value for key, value in rest.items() if key not in ("text", "type")}
        shape.append([len(content_of([block])), kind, rest])
    return None if all(count == 1 and not rest for count, _, rest in shape) else shape


def _shaped(content: Sequence[Content], shape: Any) -> list[Fields]:
    blocks = [block_fields(block) for block in content]
    parts = cast("list[Any]", shape) if isinstance(shape, list) else []
    if not parts or sum(part[0] for part in parts) != len(blocks):
        return blocks
    shaped: list[Fields] = []
    for count, kind, rest in parts:
        mine, blocks = blocks[:count], blocks[count:]
        if kind == "image":
            urls = [url for block in mine for url in block.get("image_urls", [])]
            shaped.append({"type": "image", "image_urls": urls, **rest})
        else:
            shaped += [{**block, **rest} for block in mine]
    return shaped


def content_of(content: Any) -> tuple[Content, ...]:
    """Return the blocks of OpenHands' content: a string, or a list of text and image blocks."""
    if isinstance(content, str):
        return (TextContent(clean(content)),) if content else ()
    if not isinstance(content, Iterable):
        return ()
    blocks: list[Content] = []
    for block in cast("Iterable[Any]", content):
        fields = {"text": block} if isinstance(block, str) else mapping(block)
        if isinstance(fields.get("text"), str):
            blocks.append(TextContent(clean(fields["text"])))
        urls: Any = fields.get("image_urls")
        listed = cast("list[Any]", urls) if isinstance(urls, list) else []
        blocks += [_image(url) for url in listed if isinstance(url, str)]
    return tuple(blocks)


def _image(url: str) -> Content:
    inline = _DATA.fullmatch(url)
    if inline is not None:
        try:
            return ImageContent(b64decode(inline[2], validate=True), inline[1])
        except ValueError:
            return TextContent("[An image was here that cannot be read.]")
    return ResourceLink(clean(url), mime_type="image/*")


def block_fields(block: Content) -> Fields:
    """Return a block in OpenHands' format."""
    match block:
        case TextContent(text):
            return {"type": "text", "text": text}
        case ImageContent(data, mime_type):
            url = f"data:{mime_type};base64,{b64encode(data).decode()}"
            return {"type": "image", "image_urls": [url]}
        case FileContent() if block.kind == "image" and (block.data or block.url):
            data = b64encode(block.data).decode()
            url = block.url or f"data:{block.mime_type};base64,{data}"
            return {"type": "image", "image_urls": [url]}
        case FileContent():
            return {"type": "text", "text": left_out(block, "not exported")}
        case ResourceLink(uri, _, mime_type) if (mime_type or "").startswith("image/"):
            return {"type": "image", "image_urls": [uri]}
        case _:
            return {"type": "text", "text": f"[{type(block).__name__}]"}
