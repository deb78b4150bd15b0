"""The interface of a wire, and the assembly of requests that all wires share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec import Raw

from holdfast.content import Content, ToolCall, ToolResult
from holdfast.errors import LLMError
from holdfast.events import ToolDefinition
from holdfast.llm.completion import Completion

if TYPE_CHECKING:
    from holdfast.llm.wires.streams import StreamParser

TEXT_SUFFIX = "+text"  # marks the name of a wire whose tool calls are text

Names = Mapping[str, str]  # canonical tool name -> the name on the wire
Parameters = Mapping[str, Any]
Tools = Sequence[ToolDefinition]
Calls = Sequence[ToolCall]
Results = Sequence[tuple[ToolCall, ToolResult]]


class RequestHead(msgspec.Struct, frozen=True):
    """The bytes around the fragments of a request."""

    prefix: bytes
    suffix: bytes = b"]}"
    stream_suffix: bytes = b'],"stream":true}'  # the suffix of a request for a stream
    first: bool = True  # True if the fragments are the first messages, so no comma precedes them
    closed: bool = False  # True if the server refuses a request that ends in a model's answer
    # The id of the container in which the provider ran code for the last answer, if this request
    # may go on in it.
    container: str = ""


class Fragments(list[bytes]):
    """The messages of a transcript, a list that only grows at its end. The last one may be replaced
    by a longer one.

    `in_order` is the number of messages that are known to be in the order that the wire's API
    requires. The next request checks only new ones.
    """

    __slots__ = ("in_order",)

    def __init__(self, messages: Iterable[bytes] = ()) -> None:
        super().__init__(messages)
        self.in_order = 0


class Wire(Protocol):
    """A provider's protocol. A module can satisfy it: all its members are functions and
    constants."""

    name: str
    bound: bool  # True if only the host that made `native` forms can read them

    def path(self, model: str, stream: bool) -> str:
        """Return the path to POST to, relative to the base URL's path, perhaps with a query."""
        ...

    def headers(self, api_key: str) -> dict[str, str]:
        """Return the headers of every request. Without a key, no header for one is sent."""
        ...

    def system(self, text: str) -> bytes:
        """Encode a system message that stands between other messages."""
        ...

    def user(self, content: Sequence[Content], family: str = "") -> bytes:
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
        self, text: str, calls: Calls, native: Raw, names: Names, family: str = ""
    ) -> bytes:
        """Encode an answer of the model. Returns b"" if there is nothing to send.

        `native` is empty or the answer's own form on this wire, which is sent back verbatim, except
        for call ids that have changed.
        """
        ...

    def results(self, batch: Results, names: Names, family: str = "") -> bytes:
        """Encode the results of all calls of one answer, in their order."""
        ...

    def head(
        self, model: str, system_prompt: str, tools: Tools, parameters: Parameters, names: Names
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

    def stream(self) -> StreamParser:
        """Return a parser for one streamed answer."""
        ...

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
    ) -> LLMError:
        """Return the error for a response with a status other than 200. Header names are in
        lower case."""
        ...


MEMBERS = (  # of `Wire`
    *("name", "bound", "path", "headers", "system", "user", "family", "call_id", "assistant"),
    *("results", "head", "body", "parse", "stream", "error"),
)
# Members that a wire may have, which decide what of an answer goes back; see `Recipient`.
OPTIONAL_MEMBERS = (
    *("replaces_history", "expires_at", "unpaired", "without_parts", "without_thinking"),
)
JSON_HEADERS = {"Content-Type": "application/json", "Accept": "*/*"}


def set_parameters(parameters: Parameters, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that are set, under the API's names for them."""
    return {name: parameters[key] for key, name in names.items() if parameters.get(key) is not None}


def merge_extra(body: dict[str, Any], extra: Parameters, objects: Collection[str] = ()) -> None:
    """Merge `extra_body` into a request. Entries under `objects` are merged key by key, `tools`
    follow the agent's, and all other entries replace those of the same name."""
    for key, value in extra.items():
        ours: Any = body.get(key)
        if ours and key in objects and isinstance(value, Mapping):
            value = {**ours, **cast("Mapping[str, Any]", value)}
        elif ours and key == "tools" and isinstance(value, list | tuple):
            value = [*ours, *cast("Sequence[Any]", value)]
        body[key] = value


def join_body(head: RequestHead, fragments: Sequence[bytes], stream: bool) -> bytes:
    """Return the bytes of a request, built with a single copy."""
    suffix = head.stream_suffix if stream else head.suffix
    if not fragments:
        return head.prefix + suffix
    parts = list(fragments)
    parts[-1] += suffix
    if head.first:
        parts[0] = head.prefix + parts[0]
    else:
        parts.insert(0, head.prefix)
    return b",".join(parts)
