"""The interface of a wire: the `Wire` protocol, its stream parser, and the head of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.content import Content, ToolCall, ToolResult
from holdfast.errors import LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.completion import Completion, OnDelta

TEXT_SUFFIX = "+text"  # marks the name of a wire whose tool calls are text

Names = Mapping[str, str]  # canonical tool name -> the name on the wire


class RequestHead(msgspec.Struct, frozen=True):
    """The bytes around the fragments of a request."""

    prefix: bytes
    first: bool  # True if the fragments are the first messages, so no comma precedes them
    suffix: bytes
    stream_suffix: bytes  # the suffix of a request for a stream


class AnswerParser(Protocol):
    """A parser of one streamed answer, which may be cut into chunks anywhere."""

    @property
    def finished(self) -> bool:
        """True if the answer is complete. More data may follow that is not needed or only counts
        tokens."""
        ...

    @property
    def closed(self) -> bool:
        """True if the answer is finished, and no content came with the finish or after it. Only
        token counts can follow.

        Some servers mark every piece as final. Their answers are `finished` from the first piece
        on and never `closed`; they end where the bytes end.
        """
        ...

    @property
    def done(self) -> bool:
        """True if nothing more can follow."""
        ...

    def feed(self, chunk: bytes, on_delta: OnDelta | None = None) -> None:
        """Parse some bytes. Raises the error that the stream itself reports."""
        ...

    def finish(self) -> Completion:
        """Return the answer after the bytes have ended. Raises `StreamInterrupted` if the answer
        is incomplete."""
        ...


class Wire(Protocol):
    """A provider's protocol. A module can satisfy it: all its members are functions and
    constants."""

    @property
    def name(self) -> str: ...

    @property
    def bound(self) -> bool:
        """True if `native` forms (encrypted or signed) are valid only at the host that made
        them."""
        ...

    def path(self, model: str, stream: bool) -> str:
        """Return the path to POST to, relative to the base URL's path. It may end in a query."""
        ...

    def headers(self, api_key: str) -> dict[str, str]:
        """Return the headers of every request, including the key's."""
        ...

    def system(self, text: str) -> bytes:
        """Encode a system message that stands between other messages."""
        ...

    def user(self, content: Sequence[Content]) -> bytes:
        """Encode a user message."""
        ...

    def family(self, model: str, host: str) -> str:
        """Return the name of the encoding rules for calls and answers to this model and host; "" if
        no special rules are known.

        Fragments are valid for all models of one family and maker (and for one host if the wire
        is `bound`).
        """
        ...

    def call_id(self, call: ToolCall, family: str = "") -> str:
        """Return the id by which the API knows a call, or "" if the API needs none. A pure
        function; a legal id is returned unchanged.

        The caller makes ids unique within a conversation, and passes each call with that id as
        its `provider_id` to `assistant` and `results`.
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
        """Encode an answer of the model. Returns b"" if there is nothing to send.

        `native` is empty or the answer's own form on this wire. It is sent back verbatim, except
        for call ids that have changed.
        """
        ...

    def results(self, batch: Sequence[tuple[ToolCall, ToolResult]], names: Names) -> bytes:
        """Encode the results of all calls of one answer, in their order."""
        ...

    def head(
        self,
        model: str,
        system_prompt: str,
        tools: Sequence[ToolDefinition],
        parameters: Mapping[str, Any],
        names: Names,
    ) -> RequestHead:
        """Return all of a request except its messages. Raises `ConfigurationError` for a
        parameter that the wire does not support."""
        ...

    def body(self, head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
        """Return the bytes of a request."""
        ...

    def parse(self, data: bytes) -> Completion:
        """Parse a plain answer, whose calls carry the wire's tool names. Raises `BadResponse`,
        or the error that the answer reports."""
        ...

    def stream(self) -> AnswerParser:
        """Return a parser for one streamed answer."""
        ...

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
    ) -> LLMError:
        """Return the error for a response with a status other than 200. Header names are in
        lower case."""
        ...
