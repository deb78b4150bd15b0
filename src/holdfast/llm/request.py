"""The construction of a request from a caller's arguments, shared by all models that speak a
wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.events import AgentConfigured, ToolDefinition
from holdfast.llm.completion import Completion
from holdfast.llm.model import ToolLike
from holdfast.llm.transcript import Recipient, Transcript, sha256
from holdfast.llm.vision import IMAGES_PARAMETER
from holdfast.llm.wires.protocol import RequestHead, Wire
from holdfast.tools.names import wire_name


class RequestTarget(msgspec.Struct, frozen=True):
    """The model that a request goes to. A transcript caches the frame of its requests under
    `cache_key`, which identifies everything in the frame except its head."""

    wire: Wire
    model: str
    parameters: Mapping[str, Any]
    cache_key: str = ""


class Prompt(msgspec.Struct, frozen=True):
    """The content of a request: a transcript, and either `head` or tools and a system prompt."""

    transcript: Transcript
    tools: Sequence[ToolLike] = ()
    system: str | None = None
    head: AgentConfigured | None = None


class RequestFrame(msgspec.Struct, frozen=True):
    """All of a request except its messages, and the mapping of tool names in both directions.
    Built once for each `events.AgentConfigured`."""

    head: RequestHead
    recipient: Recipient
    names: dict[str, str]  # canonical -> wire
    canonical: dict[str, str]  # wire -> canonical, of the names that differ
    # The hash of the head without the model's name, because one model has several names. Empty for
    # a request without an `AgentConfigured` event.
    hash: bytes = b""


class ModelRequest(msgspec.Struct, frozen=True):
    """The bytes of a request, and the data needed to interpret its answer."""

    body: bytes
    transcript: Transcript
    tools: Sequence[ToolDefinition]
    system: str
    frame: RequestFrame
    # 128 bits in hex over everything except the model's name; empty for a request without `head`.
    hash: str
    container: str = ""  # the container of an earlier answer that this request continues in

    def with_canonical_names(self, completion: Completion, **changes: Any) -> Completion:
        """Return the completion with canonical tool names, the request's hash, and `changes`
        applied."""
        renamed = self.frame.canonical
        if renamed and completion.calls:
            names = [renamed.get(call.name, call.name) for call in completion.calls]
            pairs = zip(completion.calls, names, strict=True)
            changes["calls"] = tuple([msgspec.structs.replace(c, name=name) for c, name in pairs])
        return msgspec.structs.replace(completion, request_hash=self.hash, **changes)


def make_request(
    target: RequestTarget, prompt: Prompt, stream: bool = False, resume: bool = True
) -> ModelRequest:
    """Return a request. With a head, its frame is cached on the transcript, so each further step
    costs one join. `resume` uses the parts of earlier answers that the provider keeps for a while:
    sound, and the container in which code continues. Raises `ConfigurationError` for invalid
    arguments."""
    transcript, head = prompt.transcript, prompt.head
    if head is not None:
        if prompt.tools or prompt.system is not None:
            raise ConfigurationError(
                "completion takes head, or tools and system, not both: the head has its own."
            )
        frame = _frame_of(head, transcript, target)
        system, tools = head.system_prompt, head.tools
    else:
        tools = tuple([definition(tool) for tool in prompt.tools])
        system = prompt.system or ""
        frame = make_frame(target, system, tools)
    hashed = bool(frame.hash)
    fragments, digest = transcript.encode(frame.recipient, frame.names, hashed, resume)
    request_head = frame.head
    container = ""
    if resume:
        container = transcript.container(target.wire.name, target.parameters.get("host", ""))
    if container:
        request_head = msgspec.structs.replace(request_head, container=container)
    body = target.wire.body(request_head, fragments, stream)
    hash = _hash(frame.hash + digest).hex()[:32] if frame.hash else ""
    return ModelRequest(body, transcript, tools, system, frame, hash, container)


def request_hash(wire: Wire, model: str, transcript: Transcript, head: AgentConfigured) -> str:
    """Return the hash that `make_request` would give the same request. The cost is proportional
    to the new messages of the transcript."""
    frame = _frame_of(head, transcript, RequestTarget(wire, model, head.parameters))
    _, digest = transcript.encode(frame.recipient, frame.names, True)
    return _hash(frame.hash + digest).hex()[:32]


def _frame_of(head: AgentConfigured, transcript: Transcript, target: RequestTarget) -> RequestFrame:
    # The frame decides about pictures, whichever model's parameters are in `head`.
    sees = target.parameters.get(IMAGES_PARAMETER) is not False
    return transcript.cached(
        f"{target.cache_key or f'{target.wire.name} {target.model}'} {sees}",
        head,
        lambda: make_frame(target, head.system_prompt, head.tools, head.id),
    )


def _hash(data: bytes) -> bytes:
    return sha256()(data).digest()


def make_frame(
    target: RequestTarget, system: str, tools: Sequence[ToolDefinition], head: str | None = None
) -> RequestFrame:
    """Return the frame of a request. `head` is the id of the `AgentConfigured` event that the frame
    is built from. Requests with the same head begin alike and share a provider's prompt cache.
    Raises `ConfigurationError` if two tools have the same name, or if a schema is not JSON."""
    wire, parameters = target.wire, target.parameters
    names: dict[str, str] = {}
    canonical: dict[str, str] = {}
    for tool in tools:
        if tool.name in names:
            raise ConfigurationError(f"tools has two tools named {tool.name!r}.")
        on_wire = names[tool.name] = tool.wire_name or wire_name(tool.name)
        other = canonical.setdefault(on_wire, tool.name)
        if other != tool.name:
            raise ConfigurationError(
                f"tools has {other!r} and {tool.name!r}, which have the same name on the wire."
                " Rename one."
            )
    try:
        hash = b""
        if head is not None:
            unnamed = wire.body(wire.head("", system, tools, parameters, names), [], False)
            hash = _hash(b"%b %b" % (wire.name.encode(), unnamed))
            parameters = {"cache_key": head, **parameters}
        request_head = wire.head(target.model, system, tools, parameters, names)
    except (TypeError, UnicodeEncodeError) as error:
        raise ConfigurationError(f"tools and parameters must be JSON values: {error}.") from error
    sees = parameters.get(IMAGES_PARAMETER) is not False
    recipient = Recipient(wire, target.model, parameters.get("host", ""), sees)
    differing = {name: tool for name, tool in canonical.items() if name != tool}
    return RequestFrame(request_head, recipient, names, differing, hash)


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
