"""The OpenAI Responses wire, spoken by OpenAI, Azure and some servers of open models.

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
from msgspec import Raw

from holdfast.content import Content, TextContent, ToolCall, ToolResult
from holdfast.errors import BadResponse, ConfigurationError, ContentFiltered, ServerError
from holdfast.llm.completion import NO_NATIVE, Completion
from holdfast.llm.wires import answers, content_parts, protocol
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.content_parts import Part
from holdfast.llm.wires.failures import http_error, reported_error
from holdfast.llm.wires.lenient_json import join_surrogates
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.streams import StreamParser
from holdfast.tools import styles

name = "openai_responses"
bound = True  # only the host that encrypted reasoning can read it
headers = common.headers
system = common.system
body = protocol.join_body
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


def user(content: Sequence[Content]) -> bytes:
    return common.user(content, _part)


def _part(block: Content) -> Part:
    url = common.picture(block)
    if url:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    file = common.document(block)
    return {"type": "input_file", **file} if file else _text_part(content_parts.as_text(block))


def _text_part(text: str) -> Part:
    return {"type": "input_text", "text": text}


def results(batch: Results, names: Names, family: str = "") -> bytes:
    outputs: list[bytes] = []
    for call, result in batch:
        output: Any = content_parts.result_text(result)
        if any(type(block) is not TextContent for block in result.content):
            parts = [_part(block) for block in result.content]
            if any(part["type"] != "input_text" for part in parts):
                if result.is_error and not result.text:
                    failure = ToolResult((), is_error=True, error=result.error)
                    parts.insert(0, _text_part(content_parts.result_text(failure)))
                output = parts
        item = {"type": "function_call_output", "call_id": call_id(call), "output": output}
        outputs.append(_json(item))
    return b",".join(outputs)


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
            content = bytes(shape.content)
            is_empty = not shape.encrypted_content and content in (b"", b"null", b"[]")
            if is_empty or not reasons:
                orphaned = True
                continue
            changed |= shape.status is not msgspec.UNSET or content == b"null"
        elif shape.type == "function_call":
            call = calls[number]
            number += 1
            same_arguments = shape.arguments == wire_arguments(call)
            changed |= orphaned or not same_arguments or shape.call_id != call_id(call)
        elif shape.type == "message":
            changed |= orphaned
        elif shape.action is not msgspec.UNSET:
            changed |= _clean_action(shape.action) != shape.action
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
    drops_id = orphaned and item.get("type") in ("message", "function_call")
    if drops_id or not _is_id(item.get("id")):
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
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
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
    extra: Parameters = parameters.get("extra_body") or {}
    if "input" in extra:
        raise ConfigurationError(
            "LLM: extra_body takes the provider's own parameters, not 'input', which is the"
            " conversation."
        )
    body: dict[str, Any] = {"model": model, "store": False}
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
        replaced = [tool.get("name") for tool in cast("Sequence[dict[str, Any]]", extra_tools)]
        body["tools"] = [tool for tool in body["tools"] if tool["name"] not in replaced]
    protocol.merge_extra(body, extra, ("reasoning", "text"))
    return RequestHead(_json(body)[:-1] + b',"input":[')


# --- answers ---
# Plain and streamed answers both end in `_completion`, so their results cannot differ.

_items = msgspec.json.Decoder(list[dict[str, Any]])

# The keys of an item that a completion's text and calls cover, or that carry no information.
_MESSAGE_KEYS = {"id", "type", "role", "status", "content"}
_PART_KEYS = {"type", "text"}
_CALL_KEYS = {"id", "type", "status", "call_id", "name", "arguments"}
# Items that request something other than a function call from the client.
_CLIENT_REQUESTS = {
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
    "mcp_approval_request",
}


_NO_ARGUMENTS = "The arguments are not valid JSON: they end, unfinished, at byte 0."


class _Answer(msgspec.Struct):
    id: Any = ""
    model: Any = ""
    status: Any = None
    output: Raw = NO_NATIVE
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_answers = msgspec.json.Decoder(_Answer)


def parse(data: bytes) -> Completion:
    return answers.read_answer(data, _answers, _read, "a response")


def _read(answer: _Answer, data: bytes) -> Completion:
    _check_status(answer)
    if not answer.output:
        raise answers.bad_answer("a response: it has no output", data)
    return _completion(answer, _items.decode(answer.output), answer.output)


def _check_status(answer: _Answer) -> None:
    status = answer.status
    if answer.error or status == "failed":
        message = "the answer failed, without a reason given"
        raise reported_error(answer.error or {"code": "server_error", "message": message})
    if status == "cancelled":
        raise ServerError("The provider cancelled its answer.")
    if status in ("queued", "in_progress"):
        pending = BadResponse(
            f"The provider answers in the background (status {status!r}), which is not supported:"
            " leave out background."
        )
        pending.retryable = False
        raise pending


def _completion(answer: _Answer, items: list[dict[str, Any]], raw: Raw | None = None) -> Completion:
    """Return a completion from an answer's items, plain or assembled from a stream. `raw` is their
    JSON, if available. Raises `ContentFiltered` for an answer that was filtered before its first
    word."""
    builder = answers.CompletionBuilder()
    thoughts: list[str] = []
    client_requests: list[dict[str, Any]] = []
    has_message = False
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            texts = _message_texts(item)
            builder.texts += texts
            builder.needs_native |= has_message or bool(builder.calls) or len(texts) > 1
            builder.covers(item, _MESSAGE_KEYS)
            for part in answers.as_list(item.get("content")):
                builder.covers(part, _PART_KEYS)
            has_message = True
        elif kind == "function_call":
            called: Any = item.get("name")
            if not isinstance(called, str):
                raise answers.bad_part("an invalid tool call", item)
            id, arguments = item.get("call_id") or item.get("id") or "", item.get("arguments")
            call = builder.add_call(called, arguments, id)
            if item.get("status") == "incomplete" and not arguments:
                # Cut off before the first argument, which differs from having no arguments.
                builder.calls[-1] = msgspec.structs.replace(call, invalid=_NO_ARGUMENTS)
            builder.covers(item, _CALL_KEYS)
        elif kind == "reasoning":
            thoughts += _thoughts(item)
            builder.needs_native |= bool(item.get("encrypted_content") or item.get("content"))
        else:
            builder.needs_native = True
            client_search = kind == "tool_search_call" and item.get("execution") == "client"
            if kind in _CLIENT_REQUESTS or client_search:
                client_requests.append(item)
    builder.thoughts.append(answers.GAP.join(thoughts))
    reason = _stop_reason(answer, builder)
    if reason == "stop" and client_requests and not builder.calls:
        outputs = [item for item in items if str(item.get("type")).endswith("_output")]
        answered = {item.get("call_id") for item in outputs}
        open_requests = [one for one in client_requests if one.get("call_id") not in answered]
        reason = str(open_requests[0]["type"]) if open_requests else reason
    if raw is not None and b"\n" in bytes(raw):
        # OpenAI indents its answers. The journal does not need the white space.
        raw = Raw(msgspec.json.format(bytes(raw), indent=-1))
    usage = common.read_usage(answer.usage, "input", "output")
    return builder.build(name, usage, reason, answer, items, raw)


def _stop_reason(answer: _Answer, builder: answers.CompletionBuilder) -> str:
    if answer.status != "incomplete":
        complete = not answer.status or answer.status == "completed"
        return "stop" if complete else str(answer.status)
    # The answer was cut off, for whatever reason, so it is never reported as complete.
    reason = str(answers.as_dict(answer.incomplete_details).get("reason") or "length")
    if reason == "content_filter" and not builder.calls and not any(builder.texts):
        raise ContentFiltered(
            "The provider's content filter stopped the answer before it said anything."
        )
    return "length" if reason in ("max_output_tokens", "max_tokens") else reason


def _message_texts(item: dict[str, Any]) -> list[str]:
    content: Any = item.get("content")
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in cast("list[dict[str, Any]]", content or []):
        text = part.get("text", "")
        if part.get("type") == "refusal":
            text = part.get("refusal") or ""
        if not isinstance(text, str):
            raise answers.bad_part("text that is not a string", part)
        texts.append(text)
    return texts


def _thoughts(item: dict[str, Any]) -> list[str]:
    """Return a reasoning item's summaries, or the reasoning itself, which open models show."""
    for key in ("summary", "content"):
        parts = cast("list[dict[str, Any]]", item.get(key) or [])
        texts = [str(part["text"]) for part in parts if part.get("text")]
        if texts:
            return texts
    return []


_TEXT = {"response.output_text.delta", "response.refusal.delta"}
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


class ResponseStream(StreamParser):
    """A parser of one streamed answer.

    The answer's items are those of the `response.output_item.done` events, which all servers
    send. OpenAI's encrypted items are taken from there, as its own client does; the last event
    has them encrypted anew. The items of the last event are used only if there are more of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[tuple[int, str], dict[str, Any]] = {}  # (place, id) -> item
        self._calls: dict[Any, int] = {}  # place -> the call's number
        self._places_with_deltas: set[Any] = set()  # places for which deltas arrived
        self._reasoning_place: Any = None  # place of the last piece of reasoning
        self._response: dict[str, Any] = {}  # the response of the last event

    def _answer(self) -> Completion:
        get = self._response.get
        answer = _Answer(get("id"), get("model"), get("status"))
        answer.usage, answer.error = get("usage"), get("error")
        answer.incomplete_details = get("incomplete_details")
        _check_status(answer)
        items = [item for _, item in sorted(self._items.items(), key=lambda entry: entry[0][0])]
        last = answers.as_list(get("output"))
        if len(last) > len(items):
            items = last
        places = self._places_with_deltas
        missing = [place for place in places if isinstance(place, int) and place >= len(items)]
        if len(items) < len(places) and missing:
            raise BadResponse("The stream ended without an item whose pieces it had sent.")
        return _completion(answer, items)

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        if kind in _TEXT:
            self._piece("text", event)
        elif kind == "response.function_call_arguments.delta":
            place = event.get("output_index")
            if place in self._calls:  # otherwise the whole item will carry the arguments
                self._places_with_deltas.add(place)
                self._emit("tool", _text(event), self._calls[place])
        elif kind in _REASONING:
            indexes = ("output_index", "summary_index", "content_index")
            self._begin_reasoning(*[event.get(index) for index in indexes])
            self._piece("reasoning", event)
        elif kind == "response.output_item.added":
            if event["item"].get("type") == "function_call":
                self._begin_call(event.get("output_index"), event["item"])
        elif kind == "response.output_item.done":
            self._finish_item(event)
        elif kind in _ENDS:
            response, status = event["response"], _ENDS[kind]
            reported: Any = response.get("status")
            if status == "completed" and reported in _ENDS.values():
                status = reported  # vLLM names every end "completed"
            self._response = {**response, "status": status}
            self.finished = self.done = True

    def _piece(self, kind: Any, event: dict[str, Any]) -> None:
        text = _text(event)
        self._places_with_deltas.add(event.get("output_index"))
        if text:
            self._emit(kind, text)

    def _begin_reasoning(self, *place: Any) -> None:
        if self._reasoning_place not in (None, place):
            self._emit("reasoning", answers.GAP)
        self._reasoning_place = place

    def _begin_call(self, place: Any, item: dict[str, Any]) -> None:
        """Emit a delta for a call that begins, with the arguments that are already present."""
        number = self._calls[place] = len(self._calls)
        arguments = _arguments(item)
        if arguments:
            self._places_with_deltas.add(place)
        self._emit("tool", arguments, number, join_surrogates(str(item.get("name") or "")))

    def _finish_item(self, event: dict[str, Any]) -> None:
        """Keep a whole item, and emit deltas for content that no earlier delta carried."""
        item = cast("dict[str, Any]", event["item"])
        index = event.get("output_index")
        place = index if isinstance(index, int) else len(self._items)
        self._items[place, str(item.get("id") or len(self._items))] = item
        kind = item.get("type")
        if kind == "function_call":
            if index not in self._calls:
                self._begin_call(index, item)
            elif index not in self._places_with_deltas and _arguments(item):
                self._emit("tool", _arguments(item), self._calls[index])
        elif index not in self._places_with_deltas:
            if kind == "message" and (text := "".join(_message_texts(item))):
                self._emit("text", text)
            if kind == "reasoning" and (thought := answers.GAP.join(_thoughts(item))):
                self._begin_reasoning(index, None, None)
                self._emit("reasoning", thought)
        self._places_with_deltas.add(index)


def _text(event: dict[str, Any]) -> str:
    text = event["delta"]
    if not isinstance(text, str):
        raise TypeError("a delta that is not text")
    return text


def _arguments(item: dict[str, Any]) -> str:
    arguments: Any = item.get("arguments")
    return arguments if isinstance(arguments, str) else ""


stream = ResponseStream
