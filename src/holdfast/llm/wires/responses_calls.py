"""Calls of OpenAI's own tools that the client answers: how each is read, and how its result is
sent.

A call of the model arrives as an item of a special kind, such as `computer_call`, and becomes a
`ToolCall` of that `provider_kind`. A tool of the name in the table answers:

| item | tool | arguments |
|---|---|---|
| `custom_tool_call` | its own name | `{"input": text}` |
| `computer_call` | `computer` | the action; `{"actions": [...]}` for several |
| `shell_call` | `shell` | the action: `commands`, `timeout_ms`, `max_output_length` |
| `local_shell_call` | `local_shell` | the action: `command`, `env`, `working_directory`, ... |
| `apply_patch_call` | `apply_patch` | the operation: `type`, `path`, `diff` |
| `mcp_approval_request` | `mcp_approval` | `server_label`, `name`, `arguments` |
| `tool_search_call` | `tool_search` | the arguments |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall, ToolResult
from holdfast.llm.wires import content_parts, responses_content
from holdfast.llm.wires.answers import as_dict, as_list

Item = dict[str, Any]

# A transparent picture of one pixel. The API requires a screenshot also of a call that failed.
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR42mNgAAIAAAUAAen63N"
    "gAAAAASUVORK5CYII="
)
_YES = {"true", "yes", "y", "ok", "approve", "approved", "allow", "allowed"}


class ClientCall(msgspec.Struct, frozen=True):
    """One kind of item.

    Attributes:
        tool: The name of the tool; "" if the item names it.
        arguments: Returns the arguments of an item.
        output: Returns the fields of the item for a result, besides its id.
        output_type: The type of that item.
        id_key: The key of the call's id in the item.
        output_id_key: The key of the call's id in the item for a result.
    """

    tool: str
    arguments: Callable[[Item], Any]
    output: Callable[[ToolCall, ToolResult], Item]
    output_type: str
    id_key: str = "call_id"
    output_id_key: str = "call_id"


def is_for_client(item: Item, answered: set[Any], model: str) -> bool:
    """Return True if the client has to answer an item. `answered` are the ids of the calls whose
    output is in the same answer."""
    kind = item.get("type")
    if kind not in CLIENT_CALLS or item.get(CLIENT_CALLS[kind].id_key) in answered:
        return False
    if kind == "shell_call":
        return as_dict(item.get("environment")).get("type") != "container_reference"
    if kind == "tool_search_call":
        return item.get("execution") == "client"
    # xAI reports the searches that it runs itself as calls of custom tools, and takes no others.
    return kind != "custom_tool_call" or not model.rpartition("/")[2].startswith("grok")


def output_item(call: ToolCall, id: str, result: ToolResult) -> tuple[Item, str]:
    """Return the item for a result, and text that has no place in it."""
    kind = CLIENT_CALLS[call.provider_kind]
    item = {"type": kind.output_type, kind.output_id_key: id, **kind.output(call, result)}
    if kind.tool != "computer" or not (text := _computer_text(result)):
        return item, ""
    return item, f"{content_parts.caption(call.name, id)}\n{text}"


def _computer_text(result: ToolResult) -> str:
    has_picture = bool(responses_content.pictures(result.content))
    return result.text if has_picture else content_parts.result_text(result)


def _without_nulls(fields: Item) -> Item:
    return {key: value for key, value in fields.items() if value is not None}


def _custom_arguments(item: Item) -> Any:
    text: Any = item.get("input")
    return {"input": text if isinstance(text, str) else ""}


def _custom_output(call: ToolCall, result: ToolResult) -> Item:
    return {"output": responses_content.output(result)}


def _computer_arguments(item: Item) -> Any:
    actions, checks = as_list(item.get("actions")), as_list(item.get("pending_safety_checks"))
    arguments = {"actions": actions} if actions else _without_nulls(as_dict(item.get("action")))
    return {**arguments, "pending_safety_checks": checks} if checks else arguments


def _computer_output(call: ToolCall, result: ToolResult) -> Item:
    """The tool received the safety checks, so its success acknowledges them."""
    pictures = responses_content.pictures(result.content)
    screenshot = pictures[-1] if pictures else {"image_url": _NO_SCREENSHOT}
    item: Item = {"output": {"type": "computer_screenshot", **screenshot}}
    checks = as_list(call.arguments.get("pending_safety_checks"))
    return item if result.is_error or not checks else {**item, "acknowledged_safety_checks": checks}


def _action(item: Item) -> Any:
    return _without_nulls(as_dict(item.get("action")))


def _shell_output(call: ToolCall, result: ToolResult) -> Item:
    item: Item = {"output": _shell_results(result)}
    limit: Any = call.arguments.get("max_output_length")
    return item if limit is None else {**item, "max_output_length": limit}


def _shell_results(result: ToolResult) -> list[Item]:
    """Return the outcome of each command. A tool may return the API's own list, or one object with
    `stdout`, `stderr` and `exit_code`; any other result is the standard output."""
    data: Any = result.structured_content
    data = as_dict(data).get("output", data)
    outcomes = cast("list[Any]", data) if isinstance(data, list) else [data]
    if outcomes and all(_is_outcome(one) for one in outcomes):
        return [_outcome(as_dict(one), result) for one in outcomes]
    text = content_parts.result_text(result)
    streams = ("", text) if result.is_error else (text, "")
    return [_outcome({"stdout": streams[0], "stderr": streams[1]}, result)]


def _is_outcome(value: Any) -> bool:
    return isinstance(value, dict) and bool({"stdout", "stderr", "outcome"} & value.keys())


def _outcome(output: Item, result: ToolResult) -> Item:
    outcome = as_dict(output.get("outcome"))
    code: Any = output.get("exit_code", result.meta.get("exitCode"))
    if outcome.get("type") not in ("exit", "timeout"):
        if result.error is not None and result.error.type == "timeout":
            outcome = {"type": "timeout"}
        else:
            outcome = {"type": "exit", "exit_code": code if type(code) is int else result.is_error}
            outcome["exit_code"] = int(outcome["exit_code"])
    texts = {key: str(output.get(key) or "") for key in ("stdout", "stderr")}
    return {**texts, "outcome": outcome}


def _local_shell_output(call: ToolCall, result: ToolResult) -> Item:
    return {"output": content_parts.result_text(result)}


def _patch_arguments(item: Item) -> Any:
    return _without_nulls(as_dict(item.get("operation")))


def _patch_output(call: ToolCall, result: ToolResult) -> Item:
    status = "failed" if result.is_error else "completed"
    return {"status": status, "output": content_parts.result_text(result)}


def _approval_arguments(item: Item) -> Any:
    arguments: Any = item.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except ValueError:
            pass  # the tool sees the text that the model wrote
    return {
        "server_label": item.get("server_label") or "",
        "name": item.get("name") or "",
        "arguments": arguments,
    }


def _approval_output(call: ToolCall, result: ToolResult) -> Item:
    """Only a clear yes approves: True, `{"approve": true}`, or a word such as `yes`."""
    data: Any = result.data
    reason: Any = None
    if isinstance(data, dict):
        fields = cast("dict[str, Any]", data)
        data, reason = fields.get("approve"), fields.get("reason")
    approves = data is True or (isinstance(data, str) and data.strip().lower() in _YES)
    if approves and not result.is_error:
        return {"approve": True}
    if not isinstance(reason, str):
        reason = content_parts.result_text(result) if result.is_error else result.text
    return {"approve": False, **({"reason": reason} if reason else {})}


def _search_arguments(item: Item) -> Any:
    return item.get("arguments")


def _search_output(call: ToolCall, result: ToolResult) -> Item:
    """A tool returns the definitions of the tools that it found: a list, or `{"tools": [...]}`."""
    data: Any = result.structured_content
    if data is None and not result.is_error:
        try:
            data = msgspec.json.decode(result.text)
        except ValueError:
            data = None
    tools = as_list(as_dict(data).get("tools", data))
    return {"execution": "client", "status": "completed", "tools": tools}


CLIENT_CALLS = {
    "custom_tool_call": ClientCall(
        "", _custom_arguments, _custom_output, "custom_tool_call_output"
    ),
    "computer_call": ClientCall(
        "computer", _computer_arguments, _computer_output, "computer_call_output"
    ),
    "shell_call": ClientCall("shell", _action, _shell_output, "shell_call_output"),
    "local_shell_call": ClientCall(
        "local_shell", _action, _local_shell_output, "local_shell_call_output"
    ),
    "apply_patch_call": ClientCall(
        "apply_patch", _patch_arguments, _patch_output, "apply_patch_call_output"
    ),
    "mcp_approval_request": ClientCall(
        "mcp_approval",
        _approval_arguments,
        _approval_output,
        "mcp_approval_response",
        id_key="id",
        output_id_key="approval_request_id",
    ),
    "tool_search_call": ClientCall(
        "tool_search", _search_arguments, _search_output, "tool_search_output"
    ),
}

# A tool of a request with calls in the form of the table -> the answering tool of the agent.
BUILT_IN = {
    "computer": "computer",
    "computer_use_preview": "computer",
    "shell": "shell",
    "local_shell": "local_shell",
    "apply_patch": "apply_patch",
    "mcp": "mcp_approval",
    "tool_search": "tool_search",
}
