"""The heads of requests on Anthropic's Messages wire: the model, its settings and its tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import ToolDefinition
from holdfast.llm.wires import protocol
from holdfast.llm.wires.answers import as_dict
from holdfast.llm.wires.calls import wire_name
from holdfast.llm.wires.protocol import Names, Parameters, RequestHead, Tools
from holdfast.tools import styles

_json = msgspec.json.Encoder().encode

# The family of models to which tools can be shown in the midst of a conversation.
TOOL_REFERENCES = "tool_references"
_FIRST_WITH_TOOL_REFERENCES = (4, 5)
DEFERRED = b'{"name":%b,"defer_loading":true,'  # the first bytes of a deferred tool, by its name

_PARAMETERS = {"temperature": "temperature", "top_p": "top_p", "stop": "stop_sequences"}
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


class MessagesHead(RequestHead, frozen=True):
    """The head of a request on this wire.

    - `cache_mark` is the value of `cache_control`; empty for no caching.
    - `prefix_without_container` is the prefix of a request that continues in the container of the
      last answer; empty if the user chose one. `container_settings` are sent with its id.
    - `cites` is True if the documents of users and tools may be cited.
    - `searches` is True if the tools of a search may be among the results. `deferred` are the names
      of the tools that are defined by the results that found them.
    """

    cache_mark: bytes = b""
    prefix_without_container: bytes = b""
    container_settings: dict[str, Any] = {}
    cites: bool = False
    searches: bool = False
    deferred: frozenset[str] = frozenset()


def family(model: str, host: str) -> str:
    version = _version(model)
    return TOOL_REFERENCES if version and version >= _FIRST_WITH_TOOL_REFERENCES else ""


def head(
    model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
) -> MessagesHead:
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
    there is no system prompt. `body` marks two messages in addition. "5m" and "1h" set how long
    the provider keeps the cache; the API's default is "5m".

    For Claude 4.5 and later, tools that a search found (`deferred`) are not part of the beginning
    of a request. The result of the search names them, and the API shows their definitions there. So
    a search leaves the cache valid.

    `extra_body` is merged last and replaces entries of the same name. Its `thinking`,
    `output_config` and `tool_choice` are merged by key, and its `tools` (the provider's built-in
    ones) are appended. Two entries are changed. The id of the last answer's container is added to
    `container` unless that names one or is null. `citations`, such as {"enabled": True}, is set on
    each document of the messages.

    Raises `ConfigurationError` for `seed`, for `response_format` without a schema, and for an
    unknown effort. The same holds for settings that Claude refuses: a budget below 1024 or without
    room in the output limit, and thinking before Claude 3.7.
    """
    if parameters.get("seed") is not None:
        raise ConfigurationError(
            "LLM: seed is not supported on the wire anthropic_messages. Leave it out."
        )
    mark = _cache_mark(parameters.get("prompt_caching"))
    cache_fields = {"cache_control": mark} if mark else {}
    body: dict[str, Any] = {"model": model, "max_tokens": _max_tokens(model, parameters)}
    body.update(protocol.set_parameters(parameters, _PARAMETERS))
    body.update(_thinking(model, parameters, body["max_tokens"]))
    if parameters.get("response_format"):
        form = _format(parameters["response_format"])
        if form:
            body.setdefault("output_config", {})["format"] = form
    deferred = {tool.name for tool in tools if tool.deferred and family(model, "")}
    if tools:
        body["tools"] = [_definition(tool, names, tool.name in deferred) for tool in tools]
        if parameters.get("parallel_tool_calls") is False:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if system_prompt.strip():
        body["system"] = [{"type": "text", "text": system_prompt, **cache_fields}]
    elif tools:
        lasting = [one for one in body["tools"] if "defer_loading" not in one]
        (lasting or body["tools"])[-1].update(cache_fields)
    extra = dict(cast("Parameters", parameters.get("extra_body") or {}))
    citations = as_dict(extra.pop("citations", None))
    merged_keys = ["thinking", "output_config", "tool_choice"]
    ours, theirs = body.get("thinking", {}), as_dict(extra.get("thinking"))
    if theirs.get("type", ours.get("type")) != ours.get("type"):
        merged_keys.remove("thinking")  # a thinking setting of another type has other keys
    protocol.merge_extra(body, extra, merged_keys)
    prefix = without = _prefix(body)
    container = as_dict(body.pop("container", {}))
    if "container" in extra:
        has_id = not container or "id" in container
        without = b"" if has_id else _prefix(body)
    return MessagesHead(
        prefix,
        cache_mark=_json(mark) if mark else b"",
        prefix_without_container=without,
        container_settings=container,
        cites=citations.get("enabled") is True,
        searches=any(tool.deferred or tool.name == "find_tools" for tool in tools),
        deferred=frozenset([wire_name(name, names) for name in deferred]),
    )


def _prefix(body: dict[str, Any]) -> bytes:
    return _json(body)[:-1] + b',"messages":['


def _cache_mark(caching: Any) -> dict[str, str]:
    if caching is False:
        return {}
    return {"type": "ephemeral", **({"ttl": caching} if isinstance(caching, str) else {})}


def _definition(tool: ToolDefinition, names: Names, deferred: bool) -> dict[str, Any]:
    form = styles.anthropic(tool, wire_name(tool.name, names))
    # The order is that of `DEFERRED`.
    return {"name": form["name"], "defer_loading": True, **form} if deferred else form


def _version(model: str) -> tuple[int, int] | None:
    """Return the version in a Claude model's name, or the newest; None for other makers."""
    name = model.lower()
    match = _VERSION.search(name)
    if match:
        return int(match[1]), int(match[2] or 0)
    return _NEWEST_VERSION if "claude" in name else None


def _max_tokens(model: str, parameters: Parameters) -> int:
    extra: Parameters = parameters.get("extra_body") or {}
    limit = extra.get("max_tokens")
    limit = limit if isinstance(limit, int) else parameters.get("max_output_tokens")
    if limit is not None:
        return limit
    version = _version(model)
    limit = 8192
    if version is not None and version != (3, 5):
        limit = 4096 if version < (3, 5) else 32000
    room = limit + max(0, parameters.get("reasoning_budget") or 0)
    if version is None:
        return room
    largest = 128000 if version >= (4, 6) else 64000
    if version <= (4, 1) and "opus" in model.lower():
        largest = 32000
    return max(limit, min(room, largest))


def _thinking(model: str, parameters: Parameters, limit: int) -> dict[str, Any]:
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
        tokens = max(_MIN_BUDGET_TOKENS, min(_BUDGET_TOKENS[effort], limit * 3 // 4))
        settings["thinking"] = {"type": "enabled", "budget_tokens": tokens}
    return settings


def _check_room(model: str, version: tuple[int, int], budget: int | None, limit: int) -> None:
    """Raise for thinking settings that the API refuses, except those in `extra_body`."""
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


def _format(form: Parameters) -> dict[str, Any] | None:
    kind = form.get("type")
    schema = cast("Parameters", form.get("json_schema") or {}).get("schema")
    if kind == "json_schema" and isinstance(schema, Mapping):
        return {"type": "json_schema", "schema": schema}
    if kind == "text":
        return None
    raise ConfigurationError(
        "LLM: response_format needs a schema on the wire anthropic_messages, which supports no"
        " JSON without one: "
        '{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, not'
        f" {dict(form)!r}."
    )
