"""The arguments of `LLM`: their validation, and the subset that the journal stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.llm.address import LITELLM_PROXY
from holdfast.llm.http import HTTPPool, header_text
from holdfast.llm.prices import OWN_PRICES
from holdfast.llm.wires import WIRES, check_members, wire
from holdfast.llm.wires.protocol import Wire
from holdfast.tools.styles import is_strict


def _number_check(
    low: float, high: float, *, whole: bool = False, open: bool = False
) -> Callable[[Any], bool]:
    kinds = int if whole else (int, float)
    return lambda value: (
        isinstance(value, kinds)
        and not isinstance(value, bool)
        and low <= value <= high
        and (not open or value > low)
    )


def _is_str_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) for key in cast("Mapping[Any, Any]", value)
    )


def _is_instance(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _are_prices(value: Any) -> bool:
    prices: Mapping[str, Any] = value if _is_str_mapping(value) else {}
    has_valid_names = prices.keys() <= {*OWN_PRICES} and {"input", "output"} <= prices.keys()
    return has_valid_names and all(map(_number_check(0, _UNLIMITED), prices.values()))


_UNLIMITED = 1e9
_SECONDS = ("a number of seconds above 0", _number_check(0, _UNLIMITED, open=True))
_FLAG = ("True or False", _is_instance(bool))
# argument -> (description of valid values, check of a value). None is also valid unless the
# argument is in `_REQUIRED`.
_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "model": (
        "a model's name, without spaces around it",
        lambda v: isinstance(v, str) and bool(v) and v == v.strip(),
    ),
    "api_key": (
        "a str on one line",
        lambda v: isinstance(v, str) and v.isascii() and (not v or v.isprintable()),
    ),
    "base_url": ("an address such as 'https://api.example.com/v1'", _is_instance(str)),
    "temperature": ("a number from 0 to 2", _number_check(0, 2)),
    "top_p": ("a number from 0 to 1", _number_check(0, 1)),
    "max_output_tokens": ("a whole number from 1", _number_check(1, _UNLIMITED, whole=True)),
    "stop": (
        "a str or a list of str",
        lambda v: (
            isinstance(v, str | list | tuple)
            and all(isinstance(one, str) for one in cast("list[Any]", v))
        ),
    ),
    "reasoning_effort": (
        "a str such as 'low', 'medium' or 'high'",
        lambda v: isinstance(v, str) and bool(v),
    ),
    "reasoning_budget": ("a number of tokens", _number_check(0, _UNLIMITED, whole=True)),
    "seed": ("a whole number", _number_check(-(2**63), 2**63 - 1, whole=True)),
    "parallel_tool_calls": _FLAG,
    "response_format": (
        "a JSON Schema, or the value that Chat Completions takes: {'type': 'json_schema', ...}",
        _is_str_mapping,
    ),
    "prompt_caching": (
        "True, False, '5m' or '1h'",
        lambda v: isinstance(v, bool) or v in ("5m", "1h"),
    ),
    "tool_calls": ("'native' or 'text'", lambda v: v in ("native", "text")),
    "images": _FLAG,
    "prices": (
        f"a mapping with input and output, and of {', '.join(OWN_PRICES[2:])} those that differ, to"
        " US dollars per million tokens (request: per request)",
        _are_prices,
    ),
    "send_reasoning": (
        "True, False or 'tags'",
        lambda v: isinstance(v, bool) or v == "tags",
    ),
    "think_tags": _FLAG,
    "stream": _FLAG,
    "background": _FLAG,
    "timeout": _SECONDS,
    "connect_timeout": _SECONDS,
    "deadline": _SECONDS,
    "max_retries": ("a whole number from 0", _number_check(0, 1000, whole=True)),
    "headers": ("a mapping of str to str", _is_str_mapping),
    "extra_body": ("a mapping", _is_str_mapping),
    "proxy": ("an address such as 'http://user:password@host:3128'", _is_instance(str)),
    "ssl_context": ("an ssl.SSLContext", lambda v: hasattr(v, "wrap_socket")),
    "wire": (
        f"one of {', '.join(WIRES)}, or a Wire object",
        lambda v: v in WIRES if isinstance(v, str) else not isinstance(v, type),
    ),
}
_REQUIRED = {
    *("model", "api_key", "stop", "stream", "timeout", "connect_timeout", "max_retries"),
    *("prompt_caching", "tool_calls", "background"),
}
_SECRET = {"api_key", "base_url", "headers", "proxy"}  # never shown in an error
_CHAT_ONLY = ("send_reasoning", "think_tags")  # settings of the wire openai_chat
# Arguments that the journal stores if they are set.
_STORED = (
    *("temperature", "top_p", "max_output_tokens", "reasoning_effort", "reasoning_budget"),
    *("seed", "parallel_tool_calls", "response_format", "extra_body"),
    *_CHAT_ONLY,
)


def check(arguments: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first invalid argument."""
    for name, (expected, is_valid) in _ARGUMENTS.items():
        value = arguments[name]
        if (value is None and name not in _REQUIRED) or (value is not None and is_valid(value)):
            continue
        shown_value = "the given value" if name in _SECRET else repr(value)
        raise ConfigurationError(f"LLM: {name} takes {expected}, not {shown_value}.")
    if arguments["headers"]:
        for name, value in arguments["headers"].items():
            if not isinstance(value, str):
                raise ConfigurationError(
                    f"LLM: headers takes a mapping of str to str; {name!r} has another value."
                )
        header_text(arguments["headers"])
    for name in ("extra_body", "response_format"):
        try:
            msgspec.json.encode(arguments[name])
        except (TypeError, UnicodeEncodeError) as error:
            raise ConfigurationError(f"LLM: {name} must be a JSON value: {error}.") from None
    if arguments["wire"] is not None:
        _check_wire(arguments["wire"])
    for key in ("messages", "stream"):
        if arguments["extra_body"] and key in arguments["extra_body"]:
            raise ConfigurationError(
                f"LLM: extra_body takes the provider's own parameters, not {key!r}."
            )
    if arguments["proxy"]:
        HTTPPool("http://localhost", proxy=arguments["proxy"])


def own_wire(arguments: Mapping[str, Any]) -> Wire | None:
    """Return the wire that the caller wrote; None if `wire` is a name or not given."""
    value = arguments["wire"]
    return None if value is None or isinstance(value, str) else value


def _check_wire(value: Any) -> None:
    if isinstance(value, str):
        return
    check_members("LLM", value)
    name = value.name
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ConfigurationError(
            f"LLM: a wire's name takes 1 to 64 letters, digits, '_', '.' and '-', not {name!r}."
        )
    if name in WIRES and value is not wire(name):
        raise ConfigurationError(
            f"LLM: a wire of your own cannot be named {name!r}: Holdfast has a wire of that name."
        )


def parameters(arguments: Mapping[str, Any], wire_name: str, host: str) -> dict[str, Any]:
    """Return the settings that shape answers as JSON values, without secrets and without unset
    ones. Raises `ConfigurationError` for a setting of another wire."""
    for name in _CHAT_ONLY:
        if arguments[name] is not None and wire_name != "openai_chat":
            raise ConfigurationError(
                f"LLM: {name} is a setting of the wire openai_chat. The wire {wire_name} returns"
                " reasoning in its own form; leave the argument out."
            )
    settings: dict[str, Any] = {"wire": wire_name, "host": host}
    for name in _STORED:
        value = arguments[name]
        if value is not None and value != {}:
            settings[name] = {**value} if isinstance(value, Mapping) else value
    stop = arguments["stop"]
    if stop:
        settings["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if "response_format" in settings:
        settings["response_format"] = _answer_format(settings["response_format"])
    if arguments["prompt_caching"] is not True:
        settings["prompt_caching"] = arguments["prompt_caching"]
    if arguments["model"].startswith(LITELLM_PROXY) and wire_name == "openai_chat":
        settings["gateway"] = "litellm"
    if arguments["background"]:
        if wire_name != "openai_responses":
            raise ConfigurationError(
                f"LLM: background is not supported on the wire {wire_name}. Use"
                " wire='openai_responses' for it."
            )
        settings["background"] = True
    if arguments["tool_calls"] != "native":
        settings["tool_calls"] = arguments["tool_calls"]
    if arguments["images"] is False:
        settings["images"] = False
    return settings


def _answer_format(form: dict[str, Any]) -> dict[str, Any]:
    """Return `response_format` in the form of Chat Completions. A mapping in no form of Chat
    Completions is taken as a JSON Schema."""
    if form.get("type") in ("text", "json_object", "json_schema"):
        if form["type"] == "json_schema" and not _is_str_mapping(
            cast("dict[str, Any]", form.get("json_schema") or {}).get("schema")
        ):
            raise ConfigurationError(
                "LLM: response_format of type json_schema takes {'json_schema': {'name': ...,"
                " 'schema': {...}}}."
            )
        return form
    name = re.sub(r"[^a-zA-Z0-9]", "_", str(form.get("title") or "answer"))[:64]
    schema = {"name": name, "schema": form, "strict": is_strict(form)}
    return {"type": "json_schema", "json_schema": schema}
