"""Requests of OpenAI's Responses API, read as commands, and the input items of a response."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import (
    Content,
    FileContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
    text_of,
)
from holdfast.conversation.fold import Fold
from holdfast.conversation.rests import (
    ApprovalRequest,
    ClientCallRequest,
    PendingItem,
    QuestionRequest,
    TurnCommand,
    result_commands,
)
from holdfast.errors import ConfigurationError
from holdfast.nesting import decode_json
from holdfast.serve.door import item_name
from holdfast.server.openai import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    ClientToolCall,
    Function,
    ToolOffer,
    own_id,
    wire_id,
)

RUNNER = "responses"  # the runner's name in results of a client's tools

Json = dict[str, Any]


class ResponseRequest(msgspec.Struct):
    """The fields of a request that the server reads. Others, such as a temperature, are ignored:
    the agent decides about them."""

    model: str
    input: str | list[Json] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Json] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    conversation: Any = None


class ReceivedInput(msgspec.Struct):
    """The input of a request. `messages` and calls are in the form of Chat Completions. `approvals`
    are decisions on calls that wait for approval, by the item's id."""

    messages: list[ChatMessage] = []
    approvals: dict[str, tuple[bool, str]] = {}
    system: list[str] = []


def read_input(request: ResponseRequest) -> ReceivedInput:
    """Return a request's input. Raises `ConfigurationError` that names the invalid item."""
    result = ReceivedInput()
    if isinstance(request.input, str):
        result.messages.append(ChatMessage("user", request.input))
        return result
    for index, item in enumerate(request.input):
        where = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                role, content = item.get("role"), _parts(item.get("content"), where)
                if role in ("system", "developer"):
                    result.system.append("\n".join(part.get("text", "") for part in content))
                elif role in ("user", "assistant"):
                    result.messages.append(ChatMessage(cast("str", role), content))
                else:
                    raise ConfigurationError(
                        f"{where}: role takes user, assistant, system or developer, not"
                        f" {str(role)[:50]!r}."
                    )
            case "function_call":
                call = CalledFunction(_text(item, "name", where), _text(item, "arguments", where))
                wire = ClientToolCall(_text(item, "call_id", where), call)
                last = result.messages[-1] if result.messages else None
                if last is not None and last.role == "assistant":
                    last.tool_calls = [*(last.tool_calls or []), wire]
                else:
                    result.messages.append(ChatMessage("assistant", None, [wire]))
            case "function_call_output":
                output, id = item.get("output"), _text(item, "call_id", where)
                content = output if isinstance(output, str) else _parts(output, where)
                result.messages.append(ChatMessage("tool", content, tool_call_id=id))
            case "mcp_approval_response":
                id = _text(item, "approval_request_id", where)
                decision = item.get("approve") is True, str(item.get("reason") or "")
                result.approvals[id] = decision
            case "reasoning" | "mcp_call" | "mcp_approval_request" | "mcp_list_tools":
                pass  # the agent's own work: of an answer that the client sends back
            case other:
                raise ConfigurationError(
                    f"{where}: type takes message, function_call, function_call_output, reasoning"
                    f" or mcp_approval_response, not {str(other)[:50]!r}."
                )
    return result


def _text(item: Json, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name != "arguments"):
        raise ConfigurationError(f"{where}: {name} takes a text.")
    return value


def _parts(content: Any, where: str) -> list[Json]:
    """Return the parts of a message in the form of Chat Completions."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ConfigurationError(f"{where}: content takes a text or a list of parts.")
    parts: list[Json] = []
    for part in cast("list[Any]", content):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "input_image", "image_url": str(url)}:
                parts.append({"type": "image_url", "image_url": url})
            case {"type": "input_file"}:
                parts.append({"type": "file", "file": part})
            case {"type": "refusal" | "input_audio"}:
                parts.append(cast("Json", part))
            case _:
                raise ConfigurationError(
                    f"{where}: content takes parts of the types input_text, input_image,"
                    " input_file, input_audio, output_text and refusal."
                )
    return parts


def as_chat(request: ResponseRequest, read: ReceivedInput, system: Sequence[str]) -> ChatRequest:
    """Return the request in the form of Chat Completions. `system` precedes the messages."""
    offers: list[ToolOffer] = []
    for index, tool in enumerate(request.tools or []):
        if tool.get("type") != "function":
            raise ConfigurationError(
                f"tools[{index}]: type takes function, not {str(tool.get('type'))[:50]!r}: the"
                " agent has tools of its own."
            )
        try:
            function = msgspec.convert({"name": "", **tool}, Function)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"tools[{index}]: {error}.") from None
        offers.append(ToolOffer("function", function))
    texts = [*system, *([request.instructions] if request.instructions else [])]
    return ChatRequest(
        request.model,
        [*(ChatMessage("system", text) for text in texts), *read.messages],
        tools=offers or None,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
    )


def turn_commands(
    fold: Fold,
    pending: Sequence[PendingItem],
    read: ReceivedInput,
    results: Mapping[str, ToolResult],
    contents: Sequence[tuple[Content, ...]],
) -> list[TurnCommand]:
    """Return the commands of a request that continues a conversation, which waits for `pending`.
    Raises `ConfigurationError`
    for an answer to nothing that waits."""
    commands: list[TurnCommand] = []
    by_name, decisions = dict(results), dict(read.approvals)
    for item in pending:
        name = item_name(item)
        match item:
            case ApprovalRequest() if f"mcpr_{name}" in decisions:
                yes, reason = decisions.pop(f"mcpr_{name}")
                commands.append(item.approve() if yes else item.reject(reason))
            case QuestionRequest() if f"call_{name}" in by_name:
                commands.append(item.answer_loosely(_value(by_name.pop(f"call_{name}"))))
            case _:
                pass
    by_call = {own_id(id): result for id, result in by_name.items()}
    waiting = {item.call.id for item in pending if isinstance(item, ClientCallRequest)}
    if unknown := [*decisions, *(id for id in by_name if own_id(id) not in waiting)]:
        raise ConfigurationError(
            f"input: no call waits for the answer to {unknown[0][:100]!r}: it was answered before,"
            " or belongs to another response."
        )
    return [*commands, *result_commands(fold, by_call, RUNNER), *map(cmd.Send, contents)]


def _value(result: ToolResult) -> object:
    """Return the answer to a question: a JSON object, a bool, null, or a text."""
    text = text_of(result.content)
    try:
        return msgspec.convert(decode_json(text), dict[str, Any] | bool | None)
    except ValueError:
        return text


def input_items(events: Sequence[ev.AnyEvent], begin: Mapping[str, ToolCall]) -> list[Json]:
    """Return the input items of a response: the user's messages and the results of a client's
    calls, which are in `begin`."""
    items: list[Json] = []
    for event in events:
        match event:
            case ev.MessageAdded(sender="user"):
                parts = [_input_part(block) for block in event.content]
                item = {"type": "message", "role": "user", "status": "completed", "content": parts}
                items.append({"id": f"msg_{event.seq}", **item})
            case ev.ToolCallFinished() if event.call_id in begin:
                item = {"type": "function_call_output", "status": "completed"}
                item |= {"call_id": wire_id(event.call_id), "output": text_of(event.result.content)}
                items.append({"id": f"fco_{event.seq}", **item})
            case _:
                pass
    return items


def _input_part(block: Content) -> Json:
    match block:
        case ImageContent(data=data, mime_type=kind):
            url = f"data:{kind};base64,{b64encode(data).decode()}"
            return {"type": "input_image", "detail": "auto", "image_url": url}
        case FileContent(url=url, kind="image"):
            return {"type": "input_image", "detail": "auto", "image_url": url}
        case FileContent(name=name):
            return {"type": "input_file", "filename": name}
        case _:
            text = block.text if isinstance(block, TextContent) else f"[{type(block).__name__}]"
            return {"type": "input_text", "text": text}
