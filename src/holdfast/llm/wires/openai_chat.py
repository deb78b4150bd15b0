"""The Chat Completions wire, spoken by OpenAI and by most other servers.

Beyond text and calls, a provider receives back only these parts of its own answers, from `native`:

- extra fields of `tool_calls` entries, and `extra_content` of a message (thought signatures)
- `reasoning_details`, LiteLLM's `thinking_blocks`, and content in parts, without pictures
- the id of spoken answers, until it expires; then their transcript
- the reasoning text, if the host takes it (`chat_hosts.ChatRules.send_reasoning`)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    TextContent,
    ToolCall,
)
from holdfast.errors import ConfigurationError
from holdfast.llm.completion import Completion
from holdfast.llm.providers import maker
from holdfast.llm.wires import (
    chat_answers,
    chat_hosts,
    chat_plain,
    content_parts,
    protocol,
    think_tags,
)
from holdfast.llm.wires import openai_common as common
from holdfast.llm.wires.answers import as_dict, as_list
from holdfast.llm.wires.calls import digest, wire_arguments, wire_id, wire_name
from holdfast.llm.wires.chat_answers import CARRIED_KEYS, REASONING_KEYS, ChatStream
from holdfast.llm.wires.chat_hosts import ChatRules
from holdfast.llm.wires.content_parts import Media, Part
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import Calls, Names, Parameters, RequestHead, Results, Tools
from holdfast.llm.wires.streams import StreamParser
from holdfast.tools import styles

name = chat_answers.NAME
bound = False
headers = common.headers
system = common.system
error = http_error
family = chat_hosts.family
parse = chat_answers.parse
stream = ChatStream

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

_PARAMETERS = {key: key for key in ("temperature", "top_p", "stop", "seed", "reasoning_effort")}
# Azure is not listed: it accepts a cache key only for OpenAI's models, and a deployment's name need
# not reveal its model.
_CACHING_HOSTS = ("api.openai.com", ".mistral.ai")
# The parts of an answer that go back. All but the first two are those of reasoning models.
_RETURNED_PARTS = {"text", "refusal", "thinking", "reasoning", "reference"}
_ASSISTANT = b'{"role":"assistant"'
_SIGNED = (b'"thinking_blocks":', b'"reasoning_details":')
_EMPTY = _ASSISTANT + b',"content":""'
_TOOL = b'{"role":"tool"'
_USER = b'{"role":"user"'
# Follows an answer from another provider that ended in a pause.
_CONTINUE_MESSAGE = b'{"role":"user","content":"Go on."}'
# Stands between a tool message and a user message. Mistral: "Unexpected role 'user' after role
# 'tool'".
_BETWEEN_MESSAGE = b'{"role":"assistant","content":"OK."}'
# OpenAI deprecated max_tokens, and its reasoning models refuse it. Few other servers know the new
# name.
_MAX_COMPLETION_TOKENS = re.compile(r"(.*/)?(o\d|gpt-5|codex|chatgpt)", re.IGNORECASE)


def path(model: str, stream: bool) -> str:
    return "/chat/completions"


def call_id(call: ToolCall, family: str = "") -> str:
    """Return an id as Mistral (9 letters and digits) or OpenAI (at most 40 characters) takes it."""
    id, form = wire_id(call), chat_hosts.rules(family).call_ids
    if form == "mistral":
        return id if len(id) == 9 and id.isascii() and id.isalnum() else digest(id)[:9]
    return "call_" + digest(id)[:32] if form == "openai" and len(id) > 40 else id


# --- fragments ---


def user(content: Sequence[Content], family: str = "") -> bytes:
    rules = chat_hosts.rules(family)
    return common.user(content, lambda block: _part(block, rules))


def _part(block: Content, rules: ChatRules) -> Part:
    if isinstance(block, FileContent):
        media = content_parts.media_of(block)
        part = _file_part(media, rules) if media else None
        text = _file_text(block) or content_parts.as_text(block)
        return part or {"type": "text", "text": text}
    url = common.picture(block)
    if url:
        return _picture_part(url)
    file = common.document(block)
    if file:
        if rules.documents == "document_url":
            return {"type": "document_url", "document_url": file["file_data"]}
        return {"type": "file", "file": file}
    if isinstance(block, AudioContent) and (media := content_parts.media_of(block)):
        return _sound_part(media, rules)
    return {"type": "text", "text": content_parts.as_text(block)}


def _picture_part(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}


def _file_part(media: Media, rules: ChatRules) -> Part | None:
    """Return a file as this host takes it, or None if it takes no such file."""
    if media.file_id:
        if rules.documents == "document_url":  # Mistral
            return {"type": "file", "file_id": media.file_id}
        return {"type": "file", "file": {"file_id": media.file_id}}
    place = media.url or media.data_url
    match media.kind:
        case "image":
            return _picture_part(place)
        case "audio":
            is_taken = media.data or rules.audio != "object"
            return _sound_part(media, rules) if is_taken else None
        case "video":
            return {"type": "video_url", "video_url": {"url": place}} if rules.video else None
        case _:
            return _document_part(media, place, rules)


def _document_part(media: Media, place: str, rules: ChatRules) -> Part | None:
    if media.data and media.mime_type != "application/pdf":
        return None  # the APIs read only PDF files
    match rules.documents:
        case "document_url":
            return {"type": "document_url", "document_url": place}
        case "file_url":
            return {"type": "file_url", "file_url": {"url": place}}
        case documents:
            if media.url and documents == "file":
                return None
            ending = media.url.partition("?")[0].rpartition("/")[2]
            title = media.name or ending or "file.pdf"
            return {"type": "file", "file": {"filename": title, "file_data": place}}


def _sound_part(media: Media, rules: ChatRules) -> Part:
    kind = media.mime_type.rpartition("/")[2].removeprefix("x-")
    form = {"mpeg": "mp3", "wave": "wav", "vnd.wave": "wav"}.get(kind, kind)
    if rules.audio == "string":
        return {"type": "input_audio", "input_audio": media.url or media.data}
    data = media.data
    if rules.audio == "data_url":
        data = media.url or f"data:;base64,{media.data}"
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def _file_text(block: FileContent) -> str:
    """Return the content of a text file under its name; "" for any other file."""
    kind = block.mime_type.partition(";")[0].lower()
    if not kind.startswith("text/") and not kind.endswith(("json", "xml", "yaml", "javascript")):
        return ""
    try:
        text = block.data.decode()
    except UnicodeDecodeError:
        return ""
    return f"{block.name}:\n{text}" if block.name and text else text


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    fields: dict[str, Any] = {}
    if native:
        fields = _decoder.decode(native)
        if parts := [part for part in as_list(fields.get("content")) if _is_returned(part)]:
            message["content"] = parts
        if audio_id := as_dict(fields.get("audio")).get("id"):
            message |= {"content": "", "audio": {"id": audio_id}}
        for key in CARRIED_KEYS:
            if fields.get(key):
                message[key] = fields[key]
        _add_reasoning(message, fields, bool(calls), chat_hosts.rules(family))
    if calls:
        entries: Any = fields.get("tool_calls") or ()
        if isinstance(entries, list) and len(cast("list[Any]", entries)) == len(calls):
            pairs = zip(calls, cast("list[Any]", entries), strict=True)
            message["tool_calls"] = [_call(call, names, entry) for call, entry in pairs]
        else:
            message["tool_calls"] = tool_calls = list[dict[str, Any]]()
            for call in calls:  # a loop, which costs less than a comprehension
                tool_calls.append(_call(call, names))
    return _json(message)


def _is_returned(part: Any) -> bool:
    """Return True for a part that the APIs accept in an answer. Pictures and other media are not
    accepted there."""
    kind = as_dict(part).get("type")
    return kind in _RETURNED_PARTS or (kind is None and "text" in as_dict(part))


def expires_at(native: Raw) -> float:
    """Return the Unix time until which the provider keeps the sound of an answer; 0 if there is
    none, or if its end is unknown."""
    if b'"expires_at"' not in bytes(native):
        return 0.0
    end: Any = as_dict(as_dict(_decoder.decode(native)).get("audio")).get("expires_at")
    return float(end) if isinstance(end, int | float) else 0.0


def without_thinking(fragment: bytes) -> bytes:
    """Return an answer without signed thinking, or any other message unchanged."""
    if not fragment.startswith(_ASSISTANT) or not any(key in fragment for key in _SIGNED):
        return fragment
    message: dict[str, Any] = _decoder.decode(fragment)
    for key in ("thinking_blocks", "reasoning_details"):
        message.pop(key, None)
    return _json(message)


def _add_reasoning(
    message: dict[str, Any], fields: dict[str, Any], has_calls: bool, rules: ChatRules
) -> None:
    """Add an answer's reasoning to a message, in the form that the host takes."""
    sends, content = rules.send_reasoning, fields.get("content")
    if sends == "never" or (sends == "calls" and not has_calls):
        return
    reasoning = {key: fields[key] for key in REASONING_KEYS if fields.get(key)}
    if sends == "tags":
        texts = [value for value in reasoning.values() if isinstance(value, str)]
        thoughts = "".join(texts[:1])
        if thoughts and not isinstance(message["content"], list):
            tagged = f"{think_tags.OPEN}{thoughts}{think_tags.CLOSE}"
            message["content"] = tagged + (message["content"] or "")
    else:
        message |= reasoning
        if has_calls and sends == "all" and fields.get("reasoning_content") == "":
            message["reasoning_content"] = ""
    if sends != "calls" and isinstance(content, str) and think_tags.split(content)[0]:
        message["content"] = content


def _call(call: ToolCall, names: Names, entry: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a call with the id of its result, and with the extra fields of its `entry`, such as
    signatures. Its arguments are the entry's own text if that is JSON."""
    id, arguments = wire_id(call), wire_arguments(call)
    if entry and entry.get("type") == "custom":
        return {**entry, "id": id}
    function: dict[str, Any] = {"name": wire_name(call.name, names), "arguments": arguments}
    if entry:
        # Some servers write a call's name and arguments beside its id.
        rest = {key: entry[key] for key in entry if key not in ("name", "arguments")}
        own_function = entry.get("function")
        if isinstance(own_function, dict):
            function = {**cast("dict[str, Any]", own_function), "arguments": arguments}
        return {**rest, "id": id, "type": entry.get("type", "function"), "function": function}
    return {"id": id, "type": "function", "function": function}


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode a tool message with text for each call, because the role accepts only text. Pictures
    and files follow in a user message. PDF files in resources are not sent: a server without file
    support would refuse the conversation from then on."""
    if len(batch) == 1 and (text := content_parts.only_text(batch[0][1])):  # nearly always
        return _json({"role": "tool", "tool_call_id": wire_id(batch[0][0]), "content": text})
    rules = chat_hosts.rules(family)
    shown_parts: list[Part] = []
    messages: list[bytes] = []
    for call, result in batch:
        id = wire_id(call)
        text = content_parts.only_text(result)
        if not text:
            parts = [_shown_part(block, rules) for block in result.content]
            if any(parts):
                caption = content_parts.caption(call.name, id)
                shown_parts.append({"type": "text", "text": caption})
                shown_parts += [part for part in parts if part]
                kinds = [
                    _mention(block) if part else ""
                    for block, part in zip(result.content, parts, strict=True)
                ]
                result = content_parts.with_mentions(result, kinds)
            text = content_parts.result_text(result)
        messages.append(_json({"role": "tool", "tool_call_id": id, "content": text}))
    if shown_parts:
        messages.append(_json({"role": "user", "content": shown_parts}))
    return b",".join(messages)


def _shown_part(block: Content, rules: ChatRules) -> Part | None:
    """Return a block of a result that is shown in a user message, or None for any other."""
    if type(block) is TextContent:
        return None
    if isinstance(block, FileContent):
        media = content_parts.media_of(block)
        part = _file_part(media, rules) if media else None
        text = "" if part else _file_text(block)
        return {"type": "text", "text": text} if text else part
    url = common.picture(block)
    return _picture_part(url) if url else None


def _mention(block: Content) -> str:
    """Return the MIME type that stands for a block in its tool message; "" for pictures, which
    are counted there."""
    if isinstance(block, FileContent):
        return block.mime_type or "file"
    return block.resource["mimeType"] if isinstance(block, EmbeddedResource) else ""


# --- requests ---


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> RequestHead:
    """Return all of a request except its messages.

    `max_output_tokens` is sent as `max_completion_tokens` to OpenAI's and Azure's hosts and for
    models named o1, o3, gpt-5, ...; otherwise as `max_tokens`. `cache_key` is sent only to
    OpenAI. `extra_body` is merged last and replaces entries of the same name, except that its
    `tools` are appended to the agent's. `stream_options` None in `extra_body` omits the stream
    options.
    """
    if parameters.get("reasoning_budget") is not None:
        raise ConfigurationError(
            "LLM: reasoning_budget is not supported on the wire openai_chat. Give reasoning_effort,"
            " or extra_body with the server's own parameter."
        )
    body: dict[str, Any] = {"model": model, **protocol.set_parameters(parameters, _PARAMETERS)}
    form: Parameters | None = parameters.get("response_format")
    if form is not None:
        schema = form.get("json_schema")
        body["response_format"] = (
            {**form, "json_schema": common.with_name(schema)} if schema else form
        )
    host = str(parameters.get("host", ""))
    limit = parameters.get("max_output_tokens")
    if limit is not None:
        new_name = (
            host == "api.openai.com"
            or host.endswith(".openai.azure.com")
            or _MAX_COMPLETION_TOKENS.match(model)
        )
        body["max_completion_tokens" if new_name else "max_tokens"] = limit
    body.update(common.tool_fields(tools, parameters, names, styles.openai_chat))
    body.update(common.cache_key(parameters, _CACHING_HOSTS))
    rules = chat_hosts.rules(family(model, host))
    caches = parameters.get("prompt_caching") is not False
    if rules.marks_cache and caches and maker(model) == "anthropic":
        body["cache_control"] = {"type": "ephemeral"}
    extra = dict(parameters.get("extra_body") or {})
    options: Any = extra.pop("stream_options", {})
    if isinstance(options, Mapping):
        options = {"include_usage": True, **cast("Mapping[str, Any]", options)}
    extra_tools = extra.pop("tools", None)
    if isinstance(extra_tools, list | tuple):
        custom_tools = cast("Sequence[Any]", extra_tools)
        extra = {"tools": custom_tools, **extra}
        custom_names = {as_dict(as_dict(one).get("custom")).get("name") for one in custom_tools}
        if tools:  # a custom tool replaces the agent's of its name, which answers its calls
            own = [tool for tool in body["tools"] if tool["function"]["name"] not in custom_names]
            body["tools"] = own
    protocol.merge_extra(body, extra)
    mark = _cache_mark(model, parameters)
    prefix = _json(body)[:-1] + b',"messages":['
    if system_prompt:
        prompt = system(system_prompt)
        prefix += _mark(prompt, mark) if mark else prompt
    stream_suffix = b'],"stream":true}'
    if options is not None:
        stream_suffix = b'],"stream":true,"stream_options":' + _json(options) + b"}"
    return ChatHead(
        prefix,
        stream_suffix=stream_suffix,
        first=not system_prompt,
        closed=rules.strict_roles,
        cache_mark=mark,
        empty_answers=rules.empty_answers,
    )


class ChatHead(RequestHead, frozen=True):
    """The head of a request on this wire. `cache_mark` is the value of `cache_control` for
    messages; empty for none. `empty_answers` is False if an answer of the model may not be empty.
    """

    cache_mark: bytes = b""
    empty_answers: bool = True


def _cache_mark(model: str, parameters: Parameters) -> bytes:
    """Return the mark for Claude behind LiteLLM, which hands it to Anthropic, Bedrock or Vertex
    AI."""
    caching = parameters.get("prompt_caching")
    if parameters.get("gateway") != "litellm" or caching is False or "claude" not in model.lower():
        return b""
    ttl = {"ttl": caching} if isinstance(caching, str) else {}
    return _json({"type": "ephemeral", **ttl})


def _mark(message: bytes, mark: bytes) -> bytes:
    """Return a message with a mark for the cache: on the last part of its content or, in a tool's
    message, beside the content. Text that is empty cannot be marked."""
    if message.endswith(b"}]}"):  # content in parts
        return b'%b,"cache_control":%b}]}' % (message[:-3], mark)
    if message.startswith(_TOOL):
        return b'%b,"cache_control":%b}' % (message[:-1], mark)
    start, content, text = message[:-1].partition(b',"content":')
    if text == b'""':
        return message
    part = b'{"type":"text","text":%b,"cache_control":%b}' % (text, mark)
    return b"%b%b[%b]}" % (start, content, part)


def _fill_empty(answer: bytes) -> bytes:
    """Return an answer without text, which may have calls, with a text if it has none."""
    if b'"tool_calls":' in answer or b'"audio":' in answer:
        return answer
    return _ASSISTANT + b',"content":"(empty answer)"' + answer[len(_EMPTY) :]


def _with_cache_marks(fragments: Sequence[bytes], mark: bytes) -> Sequence[bytes]:
    """Return the messages with marks on the last two from the user or of tools. The request writes
    the cache at the last mark, and finds the entry of the previous request at the other."""
    messages = list(fragments)
    ours = [at for at, one in enumerate(messages) if one.startswith((_USER, _TOOL))]
    for place in ours[-2:]:
        messages[place] = _mark(messages[place], mark)
    return messages


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    if isinstance(head, ChatHead):
        if head.cache_mark:
            fragments = _with_cache_marks(fragments, head.cache_mark)
        if not head.empty_answers:
            fragments = [_fill_empty(one) if one.startswith(_EMPTY) else one for one in fragments]
    if head.closed and fragments:
        fragments = _with_strict_roles(fragments)
    return protocol.join_body(head, fragments, stream)


def _with_strict_roles(fragments: Sequence[bytes]) -> Sequence[bytes]:
    """Return messages of which none is a user message after a tool message, and the last one is
    not an answer."""
    messages: list[bytes] = []
    was_tool = False
    for fragment in fragments:
        is_tool = fragment.startswith(_TOOL)
        if was_tool and fragment.startswith(_USER):
            messages.append(_BETWEEN_MESSAGE)
        elif is_tool and b"," + _USER in fragment:
            # Results with pictures. Quotation marks within strings are escaped, so this is a
            # message.
            fragment = fragment.replace(b"," + _USER, b",%b,%b" % (_BETWEEN_MESSAGE, _USER))
            is_tool = False
        messages.append(fragment)
        was_tool = is_tool
    if messages[-1].startswith(_ASSISTANT):
        messages.append(_CONTINUE_MESSAGE)
    return messages


# --- one LLM's settings ---


def configured(parameters: Parameters) -> protocol.Wire:
    """Return this wire with the settings of one LLM, which change its messages and the reading
    of its answers."""
    host = str(parameters.get("host") or "")
    value: Any = parameters.get("send_reasoning")
    send_reasoning = {True: "all", False: "never"}.get(value, value or "")
    rules = chat_hosts.rules(family("", host, send_reasoning))
    tags: Any = parameters.get("think_tags")
    return ConfiguredChat(
        send_reasoning, rules if tags is None else msgspec.structs.replace(rules, think_tags=tags)
    )


class ConfiguredChat:
    """The wire with the settings of one LLM."""

    name = name
    bound = bound
    path = staticmethod(path)
    headers = staticmethod(headers)
    system = staticmethod(system)
    user = staticmethod(user)
    call_id = staticmethod(call_id)
    assistant = staticmethod(assistant)
    results = staticmethod(results)
    head = staticmethod(head)
    body = staticmethod(body)
    error = staticmethod(error)
    expires_at = staticmethod(expires_at)
    without_thinking = staticmethod(without_thinking)

    def __init__(self, send_reasoning: str, rules: ChatRules) -> None:
        self._send_reasoning = send_reasoning
        self._rules = rules

    def family(self, model: str, host: str) -> str:
        return chat_hosts.family(model, host, self._send_reasoning)

    def parse(self, data: bytes) -> Completion:
        rules = self._rules
        return chat_plain.read(data, name, rules) or chat_answers.parse_any(data, rules)

    def stream(self) -> StreamParser:
        return ChatStream(self._rules)
