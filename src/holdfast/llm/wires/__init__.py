"""Wires: the protocols of model providers. One module each, of the shape drawn here; `wire(name)`
finds it.

    Conversation ── items ──> Transcript ── fragments ──┐
    events.Agent ── prompt, tools, parameters ── head ──┴─ body ──> POST path(model, stream)
                                                                       │
    Completion <── parse(answer) or stream().feed(chunk)... finish() <─┘      error(status, ...) for the rest

A fragment is one message as JSON, or several with commas between, made once and kept by the caller,
so that a request is one join. `Head` is all that stands around the fragments. A wire has no state
and knows no key, host or socket. Plain answers and streams end in the same function, so that they
cannot differ. To add one: write the module, its `_answer` and its `_stream`, name it in `WIRES`.

The parameters that `head` takes are JSON values, all optional: `temperature`, `top_p`,
`max_output_tokens`, `stop` (a list), `seed`, `reasoning_effort`, `reasoning_budget` (tokens),
`parallel_tool_calls`, `response_format` (as Chat Completions has it: `{"type": "json_object"}` or
`{"type": "json_schema", "json_schema": {"name", "schema", "strict"}}`), `prompt_caching` (False:
ask for none), `cache_key` (the same for requests that begin alike), `extra_body` (merged in last),
`host` (where the request goes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec

from holdfast.content import Content, ToolCall, ToolResult
from holdfast.errors import ConfigurationError, LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.completion import Completion, OnDelta

WIRES = {
    "openai_chat": "holdfast.llm.wires.openai_chat",
    "openai_responses": "holdfast.llm.wires.openai_responses",
    "anthropic_messages": "holdfast.llm.wires.anthropic_messages",
    "gemini": "holdfast.llm.wires.gemini",
}

TEXT = "+text"

Names = Mapping[str, str]  # canonical tool name -> the name in which the wire says it


class Head(msgspec.Struct, frozen=True):
    """What stands around the fragments of a request: before them, and behind them with and without
    a stream."""

    prefix: bytes
    first: bool  # whether the fragments are the first messages, so that no comma comes before them
    suffix: bytes
    stream_suffix: bytes


class Parser(Protocol):
    """Reads one streamed answer, cut into chunks anywhere."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; there may be more to come that is not needed, or only
        counts tokens."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it is finished, and no content came with the finish or behind it: what may still
        come only counts tokens.

        Some servers say a finish with every piece. Their answers are `finished` from the first
        piece on and never `closed`: they end where the bytes do.
        """
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more is to come."""
        ...

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Take in some bytes. Raises the error that the stream itself reports."""
        ...

    def finish(self) -> Completion:
        """The answer, once the bytes have ended. Raises `StreamInterrupted` if it is not
        complete."""
        ...


class Wire(Protocol):
    """A provider's protocol. A module can be this: all of it is functions and one name."""

    @property
    def name(self) -> str: ...

    @property
    def bound(self) -> bool:
        """Whether `native` forms (encrypted or signed) are good only at the host that made them."""
        ...

    def path(self, model: str, stream: bool) -> str:
        """Where to POST, behind the base URL's path; may end in a query."""
        ...

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers of every request, the key's included."""
        ...

    def system(self, text: str) -> bytes:
        """A system message in the midst of others."""
        ...

    def user(self, content: Sequence[Content]) -> bytes:
        """A user message."""
        ...

    def family(self, model: str, host: str) -> str:
        """What of a model and its host counts for how calls and answers are said to it; "" where
        nothing is known to. Fragments made for one are good for all of its family (of one maker,
        and where the wire is `bound`, at one host)."""
        ...

    def call_id(self, call: ToolCall, family: str = "") -> str:
        """The id by which a call is known to the API, a pure function, of which a legal id is a
        fixed point; "" if it needs none.

        Whoever encodes a conversation makes ids unique within it, and hands the call with that id
        as its `provider_id` to `assistant` and `results`.
        """
        ...

    def assistant(
        self,
        text: str,
        calls: Sequence[ToolCall],
        native: msgspec.Raw,
        names: Names,
        family: str = "",
    ) -> bytes:
        """An answer of the model. `native` is empty, or its own form of this wire, which goes back
        verbatim, but for ids of calls that are others by now. b"": nothing to say."""
        ...

    def results(self, batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
        """The answers to all calls of one answer, in their order."""
        ...

    def head(
        self,
        model: str,
        system_prompt: str,
        tools: Sequence[ToolDefinition],
        parameters: Mapping[str, Any],
        names: Names,
    ) -> Head:
        """All of a request but its messages. Raises `ConfigurationError` for a parameter that the
        wire cannot say."""
        ...

    def body(self, head: Head, fragments: Sequence[bytes], stream: bool) -> bytes:
        """A request."""
        ...

    def parse(self, data: bytes) -> Completion:
        """A plain answer; its calls have the wire's names. Raises `BadResponse`, or the error that
        it reports."""
        ...

    def stream(self) -> Parser:
        """A parser for one streamed answer."""
        ...

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
    ) -> LLMError:
        """The error that a response of another status than 200 means. Header names are in lower
        case."""
        ...


def wire(name: str) -> Wire:
    """The wire of that name, loaded at its first use; with `+text` at its end, with tool calls as
    text. Raises `ConfigurationError` naming those there are."""
    plain = name.removesuffix(TEXT)
    if plain not in WIRES:
        raise ConfigurationError(f"wire takes one of {', '.join(WIRES)}, not {name!r}.")
    found = cast(Wire, import_module(WIRES[plain]))
    if name == plain:
        return found
    from holdfast.llm.wires.text_calls import TextCalls

    return TextCalls(found)


def reader(wire: Wire, tools: bool) -> Wire:
    """The wire to read an answer with, by whether its request told of tools: without, what looks
    like a call as text is text. A summary of a conversation may quote calls, for one."""
    inner: Wire | None = None if tools else getattr(wire, "inner", None)
    if inner is None:
        return wire
    from holdfast.llm.wires.text_calls import TextCalls

    return TextCalls(inner, reads=False)


def known(name: str) -> bool:
    """Whether `wire` knows that name."""
    return name.removesuffix(TEXT) in WIRES


def wire_of(parameters: Mapping[str, Any]) -> Wire:
    """The wire that a model with these parameters speaks."""
    return wire(parameters["wire"] + (TEXT if parameters.get("tool_calls") == "text" else ""))
