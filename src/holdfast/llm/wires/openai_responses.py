"""Requests of the OpenAI Responses wire, spoken by OpenAI, Azure and some servers of open models.

The provider's memory is not used. Nothing is stored there, and every request carries the whole
history. A model's reasoning is sent back as the encrypted items that it arrived in. An answer's own
items, kept in `native`, are sent back verbatim, except for parts that the API refuses:

- `status` of reasoning items, null fields that a server filled in, ids longer than 64
  characters, sources without a URL
- reasoning with nothing after it (an answer that was cut off)
- reasoning that is neither encrypted nor shown, which only a provider that stored it could use;
  and the ids of the items that followed such reasoning
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import Content, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires import openai_responses_answers as answers
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.content_parts import Part, as_text, result_text
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import Names, RequestHead
from holdfast.llm.wires.requests import join_body, merge_extra, set_parameters
from holdfast.tools import styles

name = answers.NAME
bound = True  # only the host that encrypted reasoning can read it
headers = common.headers
system = common.system
body = join_body
parse = answers.parse
stream = answers.ResponseStream
error = http_error

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

# Reasoning models. All others, gpt-5-chat included, refuse requests for encrypted reasoning and
# requests that contain it.
_REASONING_MODELS = re.compile(
    r"(.*/)?(ft:)?(o\d|gpt-([5-9]|[12]\d)(?!\d)|codex)(?!.*-chat)", re.IGNORECASE
)
# Names of OpenAI's models. Other names, such as a deployment's, do not reveal the model.
_OPENAI_NAMES = re.compile(r"(.*/)?(ft:)?(chat)?gpt-(?!oss)", re.IGNORECASE)
_CACHING_HOSTS = (
    "api.openai.com",
    ".openai.azure.com",
    ".services.ai.azure.com",
    ".cognitiveservices.azure.com",
)
_PARAMETERS = {key: key for key in ("temperature", "top_p", "max_output_tokens")}
_LEGAL_ID = re.compile(rf"(?=.*[a-zA-Z0-9])[a-zA-Z0-9_-]{{1,{common.MAX_ID_CHARS}}}")
# Parameters that this API lacks -> the alternative.
_UNSUPPORTED = {
    "stop": "Use wire='openai_chat' for it.",
    "seed": "Use wire='openai_chat' for it.",
    "reasoning_budget": "Give reasoning_effort instead.",
}


class _ItemShape(msgspec.Struct):
    """The fields of an item that decide how it is sent back."""

    type: Any = "message"
    id: Any = msgspec.UNSET
    call_id: Any = ""
    status: Any = msgspec.UNSET
    encrypted_content: Any = None
    arguments: Any = None
    content: msgspec.Raw = msgspec.Raw()
    action: Any = msgspec.UNSET


_item_shapes = msgspec.json.Decoder(list[_ItemShape])
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])


def path(model: str, stream: bool) -> str:
    """Return the path after the base URL's path."""
    return "/responses"


def family(model: str, host: str) -> str:
    """Return `plain` for a model that is known not to reason, and so receives no reasoning; else
    ""."""
    return "plain" if _OPENAI_NAMES.match(model) and not _REASONING_MODELS.match(model) else ""


# --- fragments ---


def user(content: Sequence[Content]) -> bytes:
    """Encode a user message: text alone as a str, pictures and PDF files as parts. The API
    accepts no sound."""
    return common.user(content, _part)


def _part(block: Content) -> Part:
    url = common.picture(block)
    if url:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    file = common.document(block)
    return {"type": "input_file", **file} if file else _text_part(as_text(block))


def _text_part(text: str) -> Part:
    return {"type": "input_text", "text": text}


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """Encode an output item for each call: text, or parts if the result has pictures or PDF
    files."""
    outputs: list[bytes] = []
    for call, result in batch:
        output: Any = ""
        if any(type(block) is not TextContent for block in result.content):
            output = [_part(block) for block in result.content]
            if all(part["type"] == "input_text" for part in output):
                output = ""
            elif result.is_error and not result.text:
                message = result_text(ToolResult((), is_error=True, error=result.error))
                output.insert(0, _text_part(message))
        output = output or result_text(result)
        outputs.append(
            _json({"type": "function_call_output", "call_id": call_id(call), "output": output})
        )
    return b",".join(outputs)


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the id of a call in a form that this API accepts. Another provider's id may be too
    long or hold other characters."""
    id = wire_id(call)
    return id if _LEGAL_ID.fullmatch(id) else "call_" + digest(id)[:32]


def assistant(
    text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names, family: str = ""
) -> bytes:
    """Encode an answer of the model: its own items, or a message and its calls."""
    items: list[Any] = _native_items(calls, native, family != "plain") if native else []
    if not items:
        if text or not calls:
            items.append(_json({"role": "assistant", "content": text}))
        for call in calls:
            item = {"type": "function_call", "call_id": call_id(call)}
            item["name"], item["arguments"] = wire_name(call.name, names), wire_arguments(call)
            items.append(_json(item))
    return b",".join(items)


def _native_items(calls: Sequence[ToolCall], native: msgspec.Raw, reasons: bool) -> list[Any]:
    """Return the provider's items for sending back, with reasoning only if the model `reasons`.
    Returns none if the items do not match `calls`."""
    try:
        shapes, raws = _item_shapes.decode(native), _raw_items.decode(native)
    except msgspec.DecodeError:
        return []
    if sum([shape.type == "function_call" for shape in shapes]) != len(calls):
        return []
    while shapes and shapes[-1].type == "reasoning":
        shapes.pop()
    items: list[Any] = []
    number = 0
    # True after dropped reasoning: the API requires a stored item's reasoning before the item.
    orphaned = False
    for shape, raw in zip(shapes, raws, strict=False):
        changed = shape.status is None or not (shape.id is msgspec.UNSET or _is_id(shape.id))
        call = None
        if shape.type == "reasoning":
            if not reasons or (
                not shape.encrypted_content and bytes(shape.content) in (b"", b"null", b"[]")
            ):
                orphaned = True
                continue
            changed = (
                changed or shape.status is not msgspec.UNSET or bytes(shape.content) == b"null"
            )
        elif shape.type == "function_call":
            call = calls[number]
            number += 1
            changed = (
                changed
                or orphaned
                or shape.arguments != wire_arguments(call)
                or shape.call_id != call_id(call)
            )
        elif shape.type == "message":
            changed = changed or orphaned
        elif shape.action is not msgspec.UNSET:
            changed = changed or _clean_action(shape.action) != shape.action
        items.append(_repaired(_decoder.decode(raw), call, orphaned) if changed else raw)
    return items


def _is_id(id: Any) -> bool:
    return isinstance(id, str) and 0 < len(id) <= common.MAX_ID_CHARS


def _clean_action(action: Any) -> Any:
    if not isinstance(action, dict):
        return action
    fields = cast("dict[str, Any]", action)
    cleaned = {key: value for key, value in fields.items() if value is not None}
    sources: Any = cleaned.get("sources")
    if isinstance(sources, list):
        items = cast("list[Any]", sources)
        kept: list[Any] = [one for one in items if type(one) is not dict or "url" in one]
        cleaned["sources"] = kept
        if not kept:
            del cleaned["sources"]
    return cleaned


def _repaired(item: dict[str, Any], call: ToolCall | None, orphaned: bool) -> bytes:
    """Return an item without the parts that the API refuses."""
    if (orphaned and item.get("type") in ("message", "function_call")) or not _is_id(
        item.get("id")
    ):
        item.pop("id", None)
    for key in ("status", "content", "encrypted_content"):
        if item.get(key) is None or (key == "status" and item.get("type") == "reasoning"):
            item.pop(key, None)
    if "action" in item:
        item["action"] = _clean_action(item["action"])
    if call is not None:
        item["call_id"] = call_id(call)
        item["arguments"] = wire_arguments(call)
    return _json(item)


# --- requests ---


def head(
    model: str,
    system_prompt: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    names: Names,
) -> RequestHead:
    """Return all of a request except its input.

    Encrypted reasoning is requested if the model reasons, judged by its name or by a set
    `reasoning_effort`. Summaries of reasoning are not requested, because OpenAI refuses them to
    unverified organizations; `extra_body={"reasoning": {"summary": "auto"}}` requests them.
    `cache_key` is sent only to OpenAI and Azure. `extra_body` is merged last and replaces entries
    of the same name. Its `reasoning` and `text` are merged key by key, and its `tools` and
    `include` are added.

    Raises `ConfigurationError` for `stop`, `seed` and `reasoning_budget`, which the API does not
    support, and for `input` in `extra_body`.
    """
    for key, alternative in _UNSUPPORTED.items():
        if parameters.get(key) not in (None, [], ""):
            raise ConfigurationError(
                f"LLM: {key} is not supported on the wire openai_responses. {alternative}"
            )
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    if "input" in extra:
        raise ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'input', which is the"
            " conversation."
        )
    body: dict[str, Any] = {"model": model, "store": False}
    if system_prompt:
        body["instructions"] = system_prompt
    body.update(set_parameters(parameters, _PARAMETERS))
    effort = parameters.get("reasoning_effort")
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if effort is not None or _REASONING_MODELS.match(model):
        body["include"] = ["reasoning.encrypted_content"]
    if parameters.get("response_format") is not None:
        body["text"] = {"format": _format(parameters["response_format"])}
    if tools:
        body["tools"] = [
            styles.openai_responses(tool, wire_name(tool.name, names)) for tool in tools
        ]
        if parameters.get("parallel_tool_calls") is not None:
            body["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    body.update(common.cache_key(parameters, _CACHING_HOSTS))
    include = extra.get("include")
    if body.get("include") and isinstance(include, list | tuple):
        values = [*body["include"], *cast("Sequence[Any]", include)]
        extra = {**extra, "include": list(dict.fromkeys(values))}
    tools_added = extra.get("tools")
    if tools and isinstance(tools_added, list | tuple):  # these replace tools of the same name
        added_names = [tool.get("name") for tool in cast("Sequence[dict[str, Any]]", tools_added)]
        body["tools"] = [tool for tool in body["tools"] if tool["name"] not in added_names]
    merge_extra(body, extra, ("reasoning", "text"))
    return RequestHead(_json(body)[:-1] + b',"input":[', True, b"]}", b'],"stream":true}')


def _format(response_format: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a `response_format` of Chat Completions in this API's form, which is not nested."""
    return (
        {"type": "json_schema", **common.with_name(response_format["json_schema"])}
        if isinstance(response_format.get("json_schema"), Mapping)
        else response_format
    )
