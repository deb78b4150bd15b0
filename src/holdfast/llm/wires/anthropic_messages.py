"""Anthropic's Messages wire: requests and errors. `anthropic_messages_answer` reads answers, and
`anthropic_messages_stream` reads streams.

`native` is an answer's `content` array. It is sent back verbatim, except for parts that the API
itself refuses; see `answer.echo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.content import (
    Content,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ConfigurationError, LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import anthropic_messages_answer as answer
from holdfast.llm.wires.blocks import as_text, base64, result_text
from holdfast.llm.wires.calls import wire_name
from holdfast.llm.wires.failures import http_error
from holdfast.llm.wires.protocol import AnswerParser, Names, RequestHead
from holdfast.tools import styles

name = answer.NAME
bound = False  # signatures are valid on all platforms
parse = answer.parse

_json = msgspec.json.Encoder().encode

_USER = b'{"role":"user","content":['
_ASSISTANT = b'{"role":"assistant","content":['
_OPENING_MESSAGE = _USER + b'{"type":"text","text":"(what came before is not shown)"}]},'
_EPHEMERAL = {"type": "ephemeral"}
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}]}'  # replaces the end of a user message
_PICTURES = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
# `claude-opus-4-1-20250805`, `claude-3-7-sonnet-latest`, `anthropic/claude-sonnet-4.6`,
# `us.anthropic.claude-opus-4-20250514-v1:0`
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[.-](\d{1,2})(?!\d))?")
_NEWEST_VERSION = (99, 0)
_BUDGET_TOKENS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32000,
    "max": 32000,
}
_MIN_BUDGET_TOKENS = 1024  # the API's lower limit


def path(model: str, stream: bool) -> str:
    """Return the path after the base URL's path, which ends in /v1."""
    return "/messages"


def headers(api_key: str) -> dict[str, str]:
    """Return the headers of every request. Without a key, no key header is sent."""
    request_headers = {
        "Content-Type": "application/json",
        "Accept": "*/*",
        "anthropic-version": "2023-06-01",
    }
    if api_key:
        request_headers["x-api-key"] = api_key
    return request_headers


call_id = answer.call_id


def family(model: str, host: str) -> str:
    """Return "": the encoding is the same for all models."""
    return ""


# --- fragments ---
# Each fragment is one message. A user message ends in `}]}`, which `body` replaces to mark it.


def system(text: str) -> bytes:
    """Encode a system message between others as a user message marked as such. Only the newest
    models know a role for it, and they accept it in few places."""
    return user((TextContent(f"<system>\n{text}\n</system>"),))


def user(content: Sequence[Content]) -> bytes:
    """Encode a user message: text, pictures and PDF documents as blocks, the rest as text. The
    API refuses blank text."""
    return _json(
        {
            "role": "user",
            "content": _parts(content) or [{"type": "text", "text": "(empty message)"}],
        }
    )


def _parts(content: Iterable[Content]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in content:
        part = _media(block)
        if part is None:
            text = (
                f"[{block.mime_type}, {len(block.data)} bytes, not shown]"
                if isinstance(block, ImageContent)
                else as_text(block)
            )
            if not text.strip():
                continue
            part = {"type": "text", "text": text}
        parts.append(part)
    return parts


def _media(block: Content) -> dict[str, Any] | None:
    """Return a picture or document in the API's form; None for any other block."""
    if isinstance(block, ImageContent):
        kind, data = block.mime_type, None
    elif isinstance(block, EmbeddedResource) and isinstance(block.resource.get("blob"), str):
        kind, data = str(block.resource.get("mimeType") or ""), cast(str, block.resource["blob"])
    else:
        return None
    kind = kind.partition(";")[0].strip().lower()
    if kind not in _PICTURES and (kind != "application/pdf" or data is None):
        return None
    source = {
        "type": "base64",
        "media_type": _PICTURES.get(kind, kind),
        "data": base64(cast(ImageContent, block).data) if data is None else data,
    }
    return {"type": "image" if kind in _PICTURES else "document", "source": source}


def assistant(
    text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names, family: str = ""
) -> bytes:
    """Encode an answer of the model. Returns b"" if nothing of it can be sent, because the API
    refuses empty messages."""
    blocks: list[bytes] = []
    if native:
        blocks = answer.echo(native, calls, names)
    else:
        # The API refuses trailing white space in a request's last message, if that is an answer.
        text = text if calls else text.rstrip()
        if text and not text.isspace():
            blocks.append(_json({"type": "text", "text": text}))
        blocks += [answer.call_block(call, names) for call in calls]
    return _ASSISTANT + b",".join(blocks) + b"]}" if blocks else b""


def results(batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
    """Encode the results of all calls of one answer as one user message, as the API requires.

    Pictures stand in the result itself. Those of an error follow after all results, because an
    error may hold only text.
    """
    blocks: list[dict[str, Any]] = []
    error_media: list[dict[str, Any]] = []
    for call, result in batch:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": answer.call_id(call)}
        media = [part for part in map(_media, result.content) if part is not None]
        if media and not result.is_error:
            block["content"] = _parts(result.content)
        else:
            text = result_text(result)
            block["content"] = text if text.strip() else "(no output)"
            if media:
                error_media += [
                    {
                        "type": "text",
                        "text": f"Returned by {call.name} (call {answer.call_id(call)}):",
                    },
                    *media,
                ]
        if result.is_error:
            block["is_error"] = True
        blocks.append(block)
    return _json({"role": "user", "content": blocks + error_media})


# --- requests ---


class MessagesHead(RequestHead, frozen=True):
    """A request head. `marked` is True if `body` marks the positions at which the prompt cache
    is written."""

    marked: bool = True


def head(
    model: str,
    system_prompt: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    names: Names,
) -> RequestHead:
    """Return all of a request except its messages.

    The API requires `max_tokens`. Without `max_output_tokens`, the value is 4096 for Claude 3, 8192
    for Claude 3.5 and for models of other makers, and else 32000. A `reasoning_budget` is added to
    it, up to the model's limit.

    `reasoning_budget` (tokens) becomes `thinking` with that budget, which Claude 4.7 and later
    refuse. A budget of 0 and the effort "none" turn thinking off. Any other `reasoning_effort`
    depends on the model:

    - Claude 4.6 and later: `output_config.effort` with adaptive thinking. "minimal" is sent as
      "low", the lowest level.
    - Older models: a budget of 1024 (minimal), 2048, 8192, 16384, or 32000 (xhigh, max), at most
      three quarters of `max_tokens`.

    From 4.7 on, the thoughts themselves are sent only with `extra_body={"thinking": {"display":
    "summarized"}}`. With thinking on, the API refuses a temperature other than 1 and forced tool
    choice; these are not checked here.

    Unless `prompt_caching` is False, the system prompt is marked for caching, or the last tool if
    there is no system prompt. `body` marks two messages in addition. `extra_body` is merged last
    and replaces entries of the same name. Its `thinking`, `output_config` and `tool_choice` are
    merged by key, and its `tools` (the provider's built-in ones) are appended.

    Raises `ConfigurationError` for `seed`, for `response_format` without a schema, and for an
    unknown effort. Also raises for settings that Claude does not support: a budget below 1024, a
    budget that leaves no room in the output limit, and thinking before Claude 3.7.
    """
    if parameters.get("seed") is not None:
        raise ConfigurationError(
            "LLM: seed is not supported on the wire anthropic_messages. Leave it out."
        )
    marked = parameters.get("prompt_caching") is not False
    body: dict[str, Any] = {"model": model, "max_tokens": _max_tokens(model, parameters)}
    for key in ("temperature", "top_p"):
        if parameters.get(key) is not None:
            body[key] = parameters[key]
    if parameters.get("stop"):
        body["stop_sequences"] = parameters["stop"]
    body.update(_thinking(model, parameters, body["max_tokens"]))
    if parameters.get("response_format"):
        form = _format(parameters["response_format"])
        if form:
            body["output_config"] = {**body.get("output_config", {}), "format": form}
    if tools:
        body["tools"] = [styles.anthropic(tool, wire_name(tool.name, names)) for tool in tools]
        if parameters.get("parallel_tool_calls") is False:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if system_prompt.strip():
        body["system"] = [
            {
                "type": "text",
                "text": system_prompt,
                **({"cache_control": _EPHEMERAL} if marked else {}),
            }
        ]
    elif tools and marked:
        body["tools"][-1]["cache_control"] = _EPHEMERAL
    _merge(body, parameters.get("extra_body") or {})
    return MessagesHead(
        _json(body)[:-1] + b',"messages":[', True, b"]}", b'],"stream":true}', marked
    )


def _version(model: str) -> tuple[int, int] | None:
    """Return the version of a Claude model by its name, or the newest if the name has none.
    Returns None for models of other makers."""
    name = model.lower()
    found = _VERSION.search(name)
    if found:
        return int(found[1]), int(found[2] or 0)
    return _NEWEST_VERSION if "claude" in name else None


def _max_tokens(model: str, parameters: Mapping[str, Any]) -> int:
    extra: Mapping[str, Any] = parameters.get("extra_body") or {}
    given = extra.get("max_tokens")
    given = given if isinstance(given, int) else parameters.get("max_output_tokens")
    if given is not None:
        return given
    version = _version(model)
    if version is None or version == (3, 5):
        limit = 8192
    else:
        limit = 4096 if version < (3, 5) else 32000
    room = limit + max(0, parameters.get("reasoning_budget") or 0)
    return room if version is None else max(limit, min(room, _output_limit(model, version)))


def _output_limit(model: str, version: tuple[int, int]) -> int:
    """Return the output limit of a Claude model, in tokens."""
    if version >= (4, 6):
        return 128000
    return 32000 if version <= (4, 1) and "opus" in model.lower() else 64000


def _thinking(model: str, parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
    budget, effort = parameters.get("reasoning_budget"), parameters.get("reasoning_effort")
    if budget == 0 or effort == "none":
        return {"thinking": {"type": "disabled"}}
    settings: dict[str, Any] = {}
    version = _version(model)
    if version is not None and (budget is not None or effort is not None):
        _check_room(model, version, budget, limit)
    if budget is not None:
        settings["thinking"] = {"type": "enabled", "budget_tokens": budget}
    if effort is None:
        return settings
    if version is not None and version >= (4, 6):
        settings.setdefault("thinking", {"type": "adaptive"})
        settings["output_config"] = {"effort": "low" if effort == "minimal" else effort}
    elif effort not in _BUDGET_TOKENS:
        if model:  # a head without a model is only hashed
            raise ConfigurationError(
                f"LLM: reasoning_effort takes none, {', '.join(_BUDGET_TOKENS)} for {model}, not"
                f" {effort!r}."
            )
    elif budget is None:  # leaves room for the answer
        settings["thinking"] = {
            "type": "enabled",
            "budget_tokens": max(_MIN_BUDGET_TOKENS, min(_BUDGET_TOKENS[effort], limit * 3 // 4)),
        }
    return settings


def _check_room(model: str, version: tuple[int, int], budget: int | None, limit: int) -> None:
    """Raise for thinking settings that the API refuses. `thinking` in `extra_body` is left to
    the API."""
    if version < (3, 7):
        raise ConfigurationError(
            f"LLM: {model} cannot think; leave out reasoning_effort and reasoning_budget."
        )
    if budget is not None and budget < _MIN_BUDGET_TOKENS:
        raise ConfigurationError(
            f"LLM: reasoning_budget takes 0 (off) or at least {_MIN_BUDGET_TOKENS} tokens for"
            f" {model}, not {budget}."
        )
    if budget is not None and budget >= limit:
        raise ConfigurationError(
            f"LLM: reasoning_budget must be below the output limit of {model}, for thinking and"
            f" answer together: {limit} tokens, not {budget}."
        )
    if version < (4, 6) and limit <= _MIN_BUDGET_TOKENS:
        raise ConfigurationError(
            f"LLM: max_output_tokens must be above {_MIN_BUDGET_TOKENS} for {model} to think,"
            f" because thinking needs at least that many tokens; it is {limit}."
        )


def _format(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = wanted.get("type")
    schema = cast("Mapping[str, Any]", wanted.get("json_schema") or {}).get("schema")
    if kind == "json_schema" and isinstance(schema, Mapping):
        return {"type": "json_schema", "schema": schema}
    if kind == "text":
        return None
    raise ConfigurationError(
        "LLM: response_format needs a schema on the wire anthropic_messages, which supports no"
        " JSON without one: "
        '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, not'
        f" {dict(wanted)!r}."
    )


def _merge(body: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        ours = cast("dict[str, Any]", body.get(key))
        if (
            key in ("thinking", "output_config", "tool_choice")
            and ours
            and isinstance(value, Mapping)
        ):
            given = cast("Mapping[str, Any]", value)
            # A thinking setting of another type has other keys.
            other = key == "thinking" and given.get("type", ours["type"]) != ours["type"]
            body[key] = given if other else {**ours, **given}
        elif key == "tools" and ours and isinstance(value, list | tuple):
            body[key] = [*ours, *cast("Sequence[Any]", value)]
        else:
            body[key] = value


# The number of messages in which `body` looks for user messages. Mostly they alternate with
# answers.
_SEARCHED_MESSAGES = 20


def body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return a request, built with a single copy of its bytes.

    The cache is marked at the end of the last two user messages. This request writes the cache
    at the last one. From a mark the API searches only 20 blocks back for an earlier cache entry,
    and one answer with many calls and results can exceed that. So the last message of the
    previous request keeps a mark of its own, and its entry is found however much followed.
    """
    suffix = head.stream_suffix if stream else head.suffix
    if not fragments:
        return head.prefix + suffix
    parts = list(fragments)
    if isinstance(head, MessagesHead) and head.marked:
        marks_left = 2
        for place in range(len(parts) - 1, max(-1, len(parts) - 1 - _SEARCHED_MESSAGES), -1):
            if parts[place].startswith(_USER):
                parts[place] = parts[place][:-3] + _CACHE_MARK
                marks_left -= 1
                if not marks_left:
                    break
    # The first message must be a user's.
    parts[0] = (
        head.prefix + (_OPENING_MESSAGE if parts[0].startswith(_ASSISTANT) else b"") + parts[0]
    )
    parts[-1] += suffix
    return b",".join(parts)


# --- answers ---


def stream() -> AnswerParser:
    """Return a parser for one streamed answer."""
    from holdfast.llm.wires.anthropic_messages_stream import MessagesStream

    return MessagesStream()


def error(
    status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
) -> LLMError:
    """Return the error for a response with a status other than 200. Header names are in lower
    case."""
    return http_error(status, headers, body, url, model)
