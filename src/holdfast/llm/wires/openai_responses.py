"""The OpenAI Responses wire, spoken by OpenAI, Azure and some servers of open models.

The provider's memory is not used. Nothing is stored there, and every request carries the whole
history. A model's reasoning is sent back as the encrypted items that it arrived in. An answer's own
items, kept in `native`, are sent back verbatim, except for parts that the API refuses:

- `status` of reasoning items, null fields that a server filled in, ids longer than 64
  characters, sources without a URL
- reasoning with nothing after it (an answer that was cut off)
- everything before an answer in which the provider has compacted the history
- reasoning that is neither encrypted nor shown (only a provider that stored it could use it), and
  the ids of the items after such reasoning
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.content import Content, ToolCall
from holdfast.errors import ConfigurationError
from holdfast.llm.wires import answers, protocol, responses_answers, responses_content
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.responses_calls import BUILT_IN, CLIENT_CALLS, output_item
from holdfast.llm.wires.responses_stream import ResponseStream
from holdfast.tools import styles

name = responses_answers.NAME
bound = True  # only the host that encrypted reasoning can read it
headers = common.headers
system = common.system
body = protocol.join_body
# The API needs nothing of what came before a compaction.
replaces_history = answers.holds_compaction
error = http_error
parse = responses_answers.parse
stream = ResponseStream

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
    content: Raw = Raw()
    action: Any = msgspec.UNSET


_item_shapes = msgspec.json.Decoder(list[_ItemShape])
_raw_items = msgspec.json.Decoder(list[Raw])


def path(model: str, stream: bool) -> str:
    return "/responses"


def family(model: str, host: str) -> str:
    """Return `plain` for a model known not to reason, which receives no reasoning; else ""."""
    return "plain" if _OPENAI_NAMES.match(model) and not _REASONING_MODELS.match(model) else ""


# --- fragments ---


def user(content: Sequence[Content], family: str = "") -> bytes:
    return common.user(content, responses_content.part)


def results(batch: Results, names: Names, family: str = "") -> bytes:
    outputs: list[bytes] = []
    texts: list[bytes] = []
    for call, result in batch:
        if call.provider_kind in CLIENT_CALLS:
            item, text = output_item(call, call_id(call), result)
            if text:
                texts.append(_json({"role": "user", "content": text}))
        else:
            output = responses_content.output(result)
            item = {"type": "function_call_output", "call_id": call_id(call), "output": output}
        outputs.append(_json(item))
    return b",".join(outputs + texts)


def call_id(call: ToolCall, family: str = "") -> str:
    """Return an id as this API takes it. Another provider's may be too long."""
    id = wire_id(call)
    return id if _LEGAL_ID.fullmatch(id) else "call_" + digest(id)[:32]


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    items: list[Any] = _native_items(calls, native, family != "plain") if native else []
    if not items:
        if text or not calls:
            items.append(_json({"role": "assistant", "content": text}))
        for call in calls:
            item = {"type": "function_call", "call_id": call_id(call)}
            item["name"], item["arguments"] = wire_name(call.name, names), wire_arguments(call)
            items.append(_json(item))
    return b",".join(items)


def _native_items(calls: Calls, native: Raw, reasons: bool) -> list[Any]:
    """Return the items for sending back, or none if they do not match `calls`."""
    try:
        shapes, raws = _item_shapes.decode(native), _raw_items.decode(native)
    except msgspec.DecodeError:
        return []
    waiting: dict[Any, list[ToolCall]] = {}
    for call in calls:
        waiting.setdefault(call.provider_kind or "function_call", []).append(call)
    kinds = [shape.type for shape in shapes]
    if kinds.count("function_call") != len(waiting.get("function_call", ())):
        return []
    if any(kinds.count(kind) < len(group) for kind, group in waiting.items()):
        return []
    while shapes and shapes[-1].type == "reasoning":
        shapes.pop()
    items: list[Any] = []
    # True after dropped reasoning: the API requires a stored item's reasoning before the item.
    orphaned = False
    for shape, raw in zip(shapes, raws, strict=False):
        needs_repair = shape.status is None or not (shape.id is msgspec.UNSET or _is_id(shape.id))
        calls_of_kind = waiting.get(shape.type)
        call = calls_of_kind.pop(0) if calls_of_kind else None
        if shape.type == "reasoning":
            content = bytes(shape.content)
            is_empty = not shape.encrypted_content and content in (b"", b"null", b"[]")
            if is_empty or not reasons:
                orphaned = True
                continue
            needs_repair |= shape.status is not msgspec.UNSET or content == b"null"
        elif shape.type == "function_call" and call is not None:
            same_arguments = shape.arguments == wire_arguments(call)
            needs_repair |= orphaned or not same_arguments or shape.call_id != call_id(call)
        elif call is not None:
            id = shape.id if CLIENT_CALLS[shape.type].id_key == "id" else shape.call_id
            needs_repair |= id != call_id(call)
        elif shape.type == "message":
            needs_repair |= orphaned
        elif shape.action is not msgspec.UNSET:
            needs_repair |= _clean_action(shape.action) != shape.action
        items.append(_repair(_decoder.decode(raw), call, orphaned) if needs_repair else raw)
    return items


def _is_id(id: Any) -> bool:
    return isinstance(id, str) and 0 < len(id) <= common.MAX_ID_CHARS


def _clean_action(action: Any) -> Any:
    if not isinstance(action, dict):
        return action
    fields = cast("dict[str, Any]", action)
    clean_fields = {key: value for key, value in fields.items() if value is not None}
    sources: Any = clean_fields.get("sources")
    if isinstance(sources, list):
        items = cast("list[Any]", sources)
        valid_sources: list[Any] = [one for one in items if type(one) is not dict or "url" in one]
        clean_fields["sources"] = valid_sources
        if not valid_sources:
            del clean_fields["sources"]
    return clean_fields


def _repair(item: dict[str, Any], call: ToolCall | None, orphaned: bool) -> bytes:
    drops_id = orphaned and item.get("type") in ("message", "function_call")
    if drops_id or not _is_id(item.get("id")):
        item.pop("id", None)
    for key in ("status", "content", "encrypted_content"):
        if item.get(key) is None or (key == "status" and item.get("type") == "reasoning"):
            item.pop(key, None)
    if "action" in item:
        item["action"] = _clean_action(item["action"])
    if call is not None and call.provider_kind:
        item[CLIENT_CALLS[call.provider_kind].id_key] = call_id(call)
    elif call is not None:
        item["call_id"] = call_id(call)
        item["arguments"] = wire_arguments(call)
    return _json(item)


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its input.

    Encrypted reasoning is requested if the model reasons, judged by its name or by a set
    `reasoning_effort`. Summaries of reasoning are not requested, because OpenAI refuses them to
    unverified organizations; `extra_body={"reasoning": {"summary": "auto"}}` requests them.

    With `background` the provider stores the answer, until it is fetched. `cache_key` is sent only
    to OpenAI and Azure. `extra_body` is merged last and replaces entries of the same name. Its
    `reasoning` and `text` are merged key by key, and its `tools` and `include` are added.

    Raises `ConfigurationError` for `stop`, `seed` and `reasoning_budget`, which the API does not
    support, and for `input` in `extra_body`.
    """
    for key, alternative in _UNSUPPORTED.items():
        if parameters.get(key) not in (None, [], ""):
            raise ConfigurationError(
                f"LLM: {key} is not supported on the wire openai_responses. {alternative}"
            )
    extra: Parameters = parameters.get("extra_body") or {}
    if "input" in extra:
        raise ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'input', which is the"
            " conversation."
        )
    body: dict[str, Any] = {"model": model, "store": False}
    if parameters.get("background"):  # the API answers in the background only if it may store
        body |= {"store": True, "background": True}
    if system_prompt:
        body["instructions"] = system_prompt
    body.update(protocol.set_parameters(parameters, _PARAMETERS))
    effort = parameters.get("reasoning_effort")
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if effort is not None or _REASONING_MODELS.match(model):
        body["include"] = ["reasoning.encrypted_content"]
    form: Parameters | None = parameters.get("response_format")
    if form is not None:
        schema = form.get("json_schema")
        if isinstance(schema, Mapping):  # the form of Chat Completions is nested
            form = {"type": "json_schema", **common.with_name(cast("Parameters", schema))}
        body["text"] = {"format": form}
    body.update(common.tool_fields(tools, parameters, names, styles.openai_responses))
    body.update(common.cache_key(parameters, _CACHING_HOSTS))
    include = extra.get("include")
    if body.get("include") and isinstance(include, list | tuple):
        values = [*body["include"], *cast("Sequence[Any]", include)]
        extra = {**extra, "include": list(dict.fromkeys(values))}
    extra_tools = extra.get("tools")
    if tools and isinstance(extra_tools, list | tuple):  # these replace tools of the same name
        replacements = cast("Sequence[dict[str, Any]]", extra_tools)
        replaced_names = [
            tool.get("name") or BUILT_IN.get(str(tool.get("type"))) for tool in replacements
        ]
        body["tools"] = [tool for tool in body["tools"] if tool["name"] not in replaced_names]
    protocol.merge_extra(body, extra, ("reasoning", "text"))
    return RequestHead(_json(body)[:-1] + b',"input":[')
