"""The construction of a request from a caller's arguments, shared by all models that speak a
wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import Agent, ToolDefinition
from holdfast.llm.completion import Completion
from holdfast.llm.model import ToolLike
from holdfast.llm.pictures import IMAGES_PARAMETER
from holdfast.llm.transcript import Messages, Transcript, as_transcript
from holdfast.llm.wires.protocol import RequestHead, Wire
from holdfast.tools.names import wire_name


class RequestFrame(msgspec.Struct, frozen=True):
    """All of a request except its messages, and the mapping of tool names in both directions.
    Built once for each `events.Agent`."""

    head: RequestHead
    names: dict[str, str]  # canonical -> wire
    canonical: dict[str, str]  # wire -> canonical
    # The hash of the head without the model's name, because one model has several names.
    hash: bytes = b""


class ModelRequest(msgspec.Struct, frozen=True):
    """The bytes of a request, and the data needed to interpret its answer."""

    body: bytes
    transcript: Transcript
    tools: Sequence[ToolDefinition]
    system: str
    canonical: dict[str, str]
    # 128 bits in hex over everything except the model's name; empty for a request without `head`.
    hash: str = ""

    def with_canonical_names(self, completion: Completion, **changes: Any) -> Completion:
        """Return the completion with canonical tool names, the request's hash, and `changes`
        applied."""
        changes["request_hash"] = self.hash
        if completion.calls:
            changes["calls"] = tuple(
                [
                    (
                        msgspec.structs.replace(call, name=self.canonical[call.name])
                        if self.canonical.get(call.name, call.name) != call.name
                        else call
                    )
                    for call in completion.calls
                ]
            )
        return msgspec.structs.replace(completion, **changes)


def make_request(
    wire: Wire,
    model: str,
    parameters: Mapping[str, Any],
    messages: Messages,
    tools: Sequence[ToolLike],
    system: str | None,
    head: Agent | None,
    stream: bool,
    key: str = "",
) -> ModelRequest:
    """Return a request for `model`.

    With `head`, the prompt and tools come from that event. The frame built from them is cached on
    the transcript under `key`, so each further step costs one join. `key` must identify everything
    in the frame except `head`.

    Raises `ConfigurationError` for invalid arguments.
    """
    transcript = as_transcript(messages)
    if head is not None:
        if tools or system is not None:
            raise ConfigurationError(
                "completion takes head, or tools and system, not both: the head has its own."
            )
        frame = _frame_of(head, transcript, wire, model, parameters, key)
        prompt, definitions = head.system_prompt, head.tools
    else:
        definitions = tuple([definition(tool) for tool in tools])
        prompt = system or ""
        frame = make_frame(wire, model, prompt, definitions, parameters)
    host, sees = parameters.get("host", ""), parameters.get(IMAGES_PARAMETER) is not False
    fragments = transcript.fragments(wire, frame.names, model, host, sees)
    hash = (
        _hash(frame.hash + transcript.digest(wire, model, host, sees)).hex()[:32]
        if frame.hash
        else ""
    )
    return ModelRequest(
        wire.body(frame.head, fragments, stream),
        transcript,
        definitions,
        prompt,
        frame.canonical,
        hash,
    )


def request_hash(wire: Wire, model: str, transcript: Transcript, head: Agent) -> str:
    """Return the hash that `make_request` would give the same request. The cost is proportional
    to the new messages of the transcript."""
    frame = _frame_of(head, transcript, wire, model, head.parameters, "")
    host, sees = head.parameters.get("host", ""), head.parameters.get(IMAGES_PARAMETER) is not False
    transcript.fragments(wire, frame.names, model, host, sees)
    return _hash(frame.hash + transcript.digest(wire, model, host, sees)).hex()[:32]


def _frame_of(
    head: Agent,
    transcript: Transcript,
    wire: Wire,
    model: str,
    parameters: Mapping[str, Any],
    key: str,
) -> RequestFrame:
    return transcript.cached(
        key,
        head,
        lambda: make_frame(wire, model, head.system_prompt, head.tools, parameters, head.id),
    )


def _hash(data: bytes) -> bytes:
    from hashlib import sha256  # 3 ms of import

    return sha256(data).digest()


def make_frame(
    wire: Wire,
    model: str,
    system: str,
    tools: Sequence[ToolDefinition],
    parameters: Mapping[str, Any],
    head: str | None = None,
) -> RequestFrame:
    """Return the frame of a request.

    `head` is the id of the `Agent` event that the frame is built from. Requests with the same head
    begin alike and share a provider's prompt cache.

    Raises `ConfigurationError` if two tools have the same name, or if a schema is not JSON.
    """
    names: dict[str, str] = {}
    for tool in tools:
        if tool.name in names:
            raise ConfigurationError(f"tools has two tools named {tool.name!r}.")
        names[tool.name] = tool.wire_name or wire_name(tool.name)
    canonical = {on_wire: name for name, on_wire in names.items()}
    if len(canonical) < len(names):
        clash = next(
            (name, canonical[on_wire])
            for name, on_wire in names.items()
            if canonical[on_wire] != name
        )
        raise ConfigurationError(
            f"tools has {clash[0]!r} and {clash[1]!r}, which have the same name on the wire."
            " Rename one."
        )
    try:
        hash = b""
        if head is not None:
            hash = _hash(
                b"%b %b"
                % (
                    wire.name.encode(),
                    wire.body(wire.head("", system, tools, parameters, names), [], False),
                )
            )
            parameters = {"cache_key": head, **parameters}
        return RequestFrame(
            wire.head(model, system, tools, parameters, names), names, canonical, hash
        )
    except (TypeError, UnicodeEncodeError) as error:
        raise ConfigurationError(f"tools and parameters must be JSON values: {error}.") from error


def definition(tool: ToolLike) -> ToolDefinition:
    """Return the definition of a tool that the model receives. Raises `ConfigurationError` for
    an object without a name and a schema."""
    if isinstance(tool, ToolDefinition):
        return tool
    try:
        return ToolDefinition(
            tool.name, tool.description, tool.input_schema, getattr(tool, "wire_name", "")
        )
    except AttributeError:
        raise ConfigurationError(
            "tools takes Tool objects, which have name, description and input_schema, not"
            f" {tool!r}."
        ) from None
