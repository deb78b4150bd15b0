"""Wires: the protocols of model providers. Each wire is one module with the shape of
`protocol.Wire`; `wire(name)` returns it.

    Conversation ── items ──> Transcript ── fragments ──┐
    agent event ───── prompt, tools, parameters ── head ──┴─ body ──> POST path(model, stream)
                                                                       │
    Completion <── parse(answer) or stream().feed(chunk)... finish() <─┘  (else: error(status, ...))

A fragment is one message as JSON, or several joined by commas. The caller caches fragments, so a
request is one join. `RequestHead` holds the bytes before and after the fragments. A wire has no
state and knows no key, host or socket. To add a wire to Holdfast, write its module and list it in
`_NAMES`. A program passes a wire of its own as `LLM(wire=)`.

`head` takes parameters that are JSON values, all optional:

- `temperature`, `top_p`, `max_output_tokens`, `seed`, `reasoning_effort`, `parallel_tool_calls`
- `stop`: a list
- `reasoning_budget`: in tokens
- `response_format`, in the form of Chat Completions: `{"type": "json_object"}` or `{"type":
  "json_schema", "json_schema": {"name", "schema", "strict"}}`
- `prompt_caching`: False requests no caching; "5m" or "1h" is how long the cache is kept
- `cache_key`: the same for requests that begin alike
- `extra_body`: merged in last
- `host`: the server that receives the request
- `gateway`: the software of the server if it is a gateway to other providers: "litellm"
- `send_reasoning`, `think_tags`: see `LLM`
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from holdfast.errors import ConfigurationError
from holdfast.llm.wires.protocol import MEMBERS, TEXT_SUFFIX, Wire

_NAMES = ("openai_chat", "openai_responses", "anthropic_messages", "gemini")
WIRES = {name: f"holdfast.llm.wires.{name}" for name in _NAMES}
# Headers of a request that refers to a file at the provider, by wire.
UPLOAD_HEADERS = {"anthropic_messages": {"anthropic-beta": "files-api-2025-04-14"}}


def wire(name: str, parameters: Mapping[str, Any] | None = None) -> Wire:
    """Return the wire of that name, loaded at its first use. The suffix `+text` selects tool
    calls as text. With an LLM's `parameters` it has their settings: a wire whose messages and
    answers depend on them has a function `configured`. Raises `ConfigurationError` listing the
    wires for an unknown name."""
    plain = name.removesuffix(TEXT_SUFFIX)
    if plain not in WIRES:
        raise ConfigurationError(f"wire takes one of {', '.join(WIRES)}, not {name!r}.")
    module = import_module(WIRES[plain])
    configured = getattr(module, "configured", None) if parameters else None
    plain_wire = cast(Wire, module if configured is None else configured(parameters))
    return plain_wire if name == plain else _with_text_calls(plain_wire)


def answer_reader(wire: Wire, tools: bool) -> Wire:
    """Return the wire for reading an answer. If the request had no tools, text that looks like a
    call stays text. A summary of a conversation, for example, may quote calls."""
    inner: Wire | None = None if tools else getattr(wire, "inner", None)
    return wire if inner is None else _with_text_calls(inner, reads_calls=False)


def _with_text_calls(inner: Wire, reads_calls: bool = True) -> Wire:
    # Loaded late for start-up time: few models need calls as text.
    from holdfast.llm.wires.text_calls import TextCalls

    return TextCalls(inner, reads_calls)


def check_members(where: str, value: object) -> None:
    """Raise `ConfigurationError` unless an object has all members of a wire."""
    missing = [name for name in MEMBERS if not hasattr(value, name)]
    if missing:
        raise ConfigurationError(
            f"{where}: wire takes one of {', '.join(WIRES)}, or a Wire object. {value!r} has no"
            f" {', '.join(missing)} (see holdfast.llm.wires.protocol.Wire)."
        )


def is_wire(name: str) -> bool:
    return name.removesuffix(TEXT_SUFFIX) in WIRES


def wire_of(parameters: Mapping[str, Any], own: Wire | None = None) -> Wire:
    """Return the wire of an LLM's parameters, with their settings. `own` is the wire that the
    caller wrote, if any."""
    text = parameters.get("tool_calls") == "text"
    if own is None:
        return wire(parameters["wire"] + (TEXT_SUFFIX if text else ""), parameters)
    return _with_text_calls(own) if text else own
