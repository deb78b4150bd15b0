"""Wires: the protocols of model providers. One module each, of the shape drawn here; `wire(name)` finds it.

    Conversation ── items ──> Transcript ── fragments ──┐
    events.Agent ── prompt, tools, parameters ── head ──┴─ body ──> POST path(model, stream)
                                                                       │
    Completion <── parse(answer) or stream().feed(chunk)... finish() <─┘      error(status, ...) for the rest

A fragment is one message as JSON, made once and kept by the caller, so that a request is one join. `Head` is all that stands around
the fragments. A wire has no state and knows no key, host or socket. To add one: write the module, name it in `WIRES`.
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

WIRES = {"openai_chat": "holdfast.llm.wires.openai_chat"}

Names = Mapping[str, str]  # canonical tool name -> the name in which the wire says it


class Head(msgspec.Struct, frozen=True):
    """What stands around the fragments of a request: before them, and behind them with and without a stream."""

    prefix: bytes
    first: bool  # whether the fragments are the first messages, so that no comma comes before them
    suffix: bytes
    stream_suffix: bytes


class Parser(Protocol):
    """Reads one streamed answer, cut into chunks anywhere."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; there may be more to come that is not needed, or only counts tokens."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more is to come."""
        ...

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Take in some bytes. Raises the error that the stream itself reports."""
        ...

    def finish(self) -> Completion:
        """The answer, once the bytes have ended. Raises `StreamInterrupted` if it is not complete."""
        ...


class Wire(Protocol):
    """A provider's protocol. A module can be this: all of it is functions and one name."""

    @property
    def name(self) -> str: ...

    def path(self, model: str, stream: bool) -> str:
        """Where to POST, behind the base URL's path."""
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

    def assistant(self, text: str, calls: Sequence[ToolCall], native: msgspec.Raw, names: Names) -> bytes:
        """An answer of the model. `native` is empty, or its own form of this wire."""
        ...

    def tool(self, call: ToolCall, result: ToolResult, names: Names) -> bytes:
        """The answer to one call. Those of one batch stand next to each other."""
        ...

    def after_tools(self, batch: Sequence[tuple[ToolCall, ToolResult]]) -> bytes:
        """What must stand behind the answers of a whole batch; often nothing."""
        ...

    def head(self, model: str, system_prompt: str, tools: Sequence[ToolDefinition], parameters: Mapping[str, Any], names: Names) -> Head:
        """All of a request but its messages."""
        ...

    def body(self, head: Head, fragments: Sequence[bytes], stream: bool) -> bytes:
        """A request."""
        ...

    def parse(self, data: bytes) -> Completion:
        """A plain answer; its calls have the wire's names. Raises `BadResponse`, or the error that it reports."""
        ...

    def stream(self) -> Parser:
        """A parser for one streamed answer."""
        ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = "") -> LLMError:
        """The error that a response of another status than 200 means. Header names are in lower case."""
        ...


def wire(name: str) -> Wire:
    """The wire of that name, loaded at its first use. Raises `ConfigurationError` naming those there are."""
    if name not in WIRES:
        raise ConfigurationError(f"wire takes one of {', '.join(WIRES)}, not {name!r}.")
    return cast(Wire, import_module(WIRES[name]))
