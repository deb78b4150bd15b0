"""The events of a journal, complete, and their JSON form. A new event changes the list in the design first.

A journal is an append-only list of these; everything else about a conversation is a fold over it. Every event has `seq` (dense
from 1), `id`, `timestamp` (UTC) and, in JSON, `type`. A type that a newer version wrote loads as `Unknown` and is kept as it came.
An event that cannot be decoded loads as `Damaged`, with its bytes. `record` is the form that a store keeps, and refuses what
could not be read back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from holdfast.content import Content, EmbeddedResource, ToolCall, Usage, text_of
from holdfast.content import ToolResult as Result
from holdfast.errors import UnreadableEvent

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NO_NATIVE = msgspec.Raw()


def _camel(name: str) -> str:
    return name[0].lower() + name[1:]


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type", tag=_camel, gc=False):
    """Base of all events."""

    seq: int
    id: str
    timestamp: datetime

    @property
    def type(self) -> str:
        """The event's type, as in its JSON: `message`, `assistant`, `toolResult`, ..."""
        return cast(str, self.__struct_config__.tag)

    def to_json(self) -> bytes:
        """The event as one JSON object. Newlines can only stand in what was kept as it came (`native`, `Unknown.raw`)."""
        return encode(self)


class ToolDefinition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tool's definition in a model request, and two facts about its calls that the model does not see.

    Args:
        wire_name: `name` in the letters that model APIs allow.
        executor: "client" if a client of the agent server runs the calls; "" if the loop runs them.
        parallel: True if a call may run beside neighbouring calls that are parallel too.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    wire_name: str = ""
    executor: str = ""
    parallel: bool = False


class PromptPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One part of a system prompt, and its length. Parts follow one another with an empty line between them."""

    name: str
    characters: int


class Agent(Event, frozen=True):
    """What the requests that follow are made of: system prompt, ordered tool definitions, model and its parameters. No secrets. `name` is that of the agent
    that answers from here on, "" for the one that the conversation began with. `spawned_by`, in the first of a conversation, is the idempotency key of the
    call that spawned it, "" for none. `prompt_parts` are those of the system prompt, if it has several."""

    system_prompt: str
    tools: tuple[ToolDefinition, ...] = ()
    model: str = ""
    parameters: dict[str, Any] = {}
    name: str = ""
    spawned_by: str = ""
    prompt_parts: tuple[PromptPart, ...] = ()


class Message(Event, frozen=True):
    """Something said to the agent. `sender` is `user`, the id of a conversation that sent it, or `holdfast` where the loop itself tells the
    model something: then `about` says what, as `skill:pdf` or `stuck:repeat`, "" for an answer that was empty or cut off. `usage` and `cost` (US
    dollars, None if not known) are those of the model call that it took, by `model`: one that described a picture."""

    content: tuple[Content, ...]
    sender: str = "user"
    about: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""

    @property
    def text(self) -> str:
        """The text of all blocks."""
        return text_of(self.content)


class Assistant(Event, frozen=True):
    """One answer of the model. `based_on` is the last seq that its request contained; `native` the provider's own form
    (of the wire `wire`) where it says more than the fields here; `duration` is in seconds, `cost` in US dollars if it was counted.
    `request_hash` is that of the request, by which a replay knows it again. `route` names which of a composite's models answered;
    `notes` say what its request left out, because it belonged to another provider; `host` is where it came from."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: str = ""
    based_on: int = 0
    model: str = ""
    wire: str = ""
    native: msgspec.Raw = _NO_NATIVE
    response_id: str = ""
    duration: float = 0.0
    cost: float | None = None
    request_hash: str = ""
    route: str = ""
    notes: tuple[str, ...] = ()
    host: str = ""

    def __post_init__(self) -> None:
        # msgspec leaves a default out by identity; any other empty Raw would be written as `"native":,`, which no one can read again.
        if self.native is not _NO_NATIVE and self.native == _NO_NATIVE:
            msgspec.structs.force_setattr(self, "native", _NO_NATIVE)


class Question(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a running call asks the user, id `{call_id}?{n}`: for a form by `schema`, a JSON Schema of flat properties, for a visit of
    the page at `url`, or, with neither, for a yes. `asker` is the tool or the MCP server that asks: show it, for it is not us."""

    id: str
    message: str
    schema: dict[str, Any] | None = None
    url: str = ""
    asker: str = ""


class Decision(Event, frozen=True):
    """Whether a call may run: who decided, what, and why. Bound to the call's id and the hash of its arguments as the model gave
    them; `arguments` are what an approver put in their place. `risk` is what the agent's analyzer said of it, "" without one; `usage`, `cost`
    (US dollars, None if not known) and `model` are those of the model calls that it took to say so.

    With `question` it is a running call that asks ("ask"); with `question_id` the answer ("approve", the values in `arguments`, secret
    ones as `***`) or that there is none ("reject").
    """

    call_id: str
    decision: Literal["allow", "ask", "deny", "approve", "reject"]
    by: str = ""
    reason: str = ""
    arguments_hash: str = ""
    arguments: dict[str, Any] | None = None
    question: Question | None = None
    question_id: str = ""
    risk: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""


class ToolCallStarted(Event, frozen=True):
    """Written before an attempt of a call begins; the effect may exist from here on. `runner` is the client that claimed the call, "" for the
    loop itself."""

    call_id: str
    attempt: int = 1
    idempotency_key: str = ""
    runner: str = ""


class ToolResult(Event, frozen=True):
    """A call's result; `duration` is in seconds."""

    call_id: str
    result: Result
    duration: float = 0.0


class PlanStep(msgspec.Struct, frozen=True, rename="camel"):
    """One step of a plan: what is to be done, and how far it is."""

    step: str
    state: Literal["pending", "in_progress", "done", "dropped"] = "pending"


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The plan of a conversation. `approved` are the texts of the steps that the user approved, if that approval lasts. `call_id` made it; a model is
    shown it at `seq`, its answer's or, with `condensed`, the place of a summary; 0 for nowhere."""

    steps: tuple[PlanStep, ...] = ()
    approved: tuple[str, ...] = ()
    call_id: str = ""
    seq: int = 0
    condensed: bool = False


class SoFar(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a conversation had come to with event `seq`: what one must know of it and all before it to go on without reading them.

    `run_...` count the run that was on; `..._seq` name the last event of that kind.
    """

    seq: int
    created: datetime
    title: str = ""
    status: str = "idle"
    status_seq: int = 0
    message_seq: int = 0
    agent_seq: int = 0
    assistant_seq: int = 0
    based_on: int = 0
    blanks: int = 0
    steps: int = 0
    usage: Usage = Usage()
    cost: float = 0.0
    run_since: datetime | None = None
    run_steps: int = 0
    run_tokens: int = 0
    run_cost: float = 0.0
    error_seq: int = 0
    run_spent: float = 0.0
    handoff: str | None = None
    plan: Plan | None = None
    output_seq: int = 0
    output_failures: int = 0
    output_failed: str = ""
    stops: int = 0
    denials: int = 0
    unpriced: int = 0


class Condensation(Event, frozen=True):
    """What a condenser left out of the view: the `hidden` seqs, for which `summary` stands where the first of them stood, and what it cut off
    results: of those in `trimmed`, by call id, that many characters are shown. `replaced` are the places of earlier
    summaries that stand no more.

    With `request` it hides nothing yet: somebody asked for one, with these instructions ("" for none), and the next one without answers it.
    One that leaves nothing out says why in `failed`. `usage` and `cost` (US dollars, None if not known) are those of the model calls that it took,
    by `model`.

    Of the events up to `so_far.seq` nothing but that summary is shown to a model any more, so that a conversation is opened without
    reading them.
    """

    hidden: tuple[int, ...]
    summary: str = ""
    so_far: SoFar | None = None
    trimmed: dict[str, int] = {}
    request: str | None = None
    failed: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    replaced: tuple[int, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether a model is shown anything else from here on."""
        return bool(self.hidden or self.trimmed)


class Status(Event, frozen=True):
    """The conversation's status changed. `reason` says why where it is not plain."""

    status: str
    reason: str = ""


class Error(Event, frozen=True):
    """A run stopped on this: the error's class name in `holdfast.errors`, its message, and its fields."""

    error: str
    message: str
    details: dict[str, Any] = {}


class Note(Event, frozen=True):
    """What is to be known of a run and is neither shown to the model nor stops it: a hook that failed, a child that was ended. `about` says whose
    it is, as `hook:audit`. One `about` "llm" tells of a model call that a tool or a hook made: its `usage`, its `cost` (US dollars, None if not
    known), and the `model`, "" in all other notes."""

    about: str
    text: str
    details: dict[str, Any] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""


class Unknown(Event, frozen=True):
    """An event of a type that this version does not know, kept as it came."""

    original_type: str
    raw: msgspec.Raw

    @property
    def type(self) -> str:
        """The type that the newer version gave it."""
        return self.original_type


class Damaged(Event, frozen=True):
    """An event of a known type that cannot be decoded, or a place where no event can be read.

    `raw` holds its bytes as they were stored, empty where they are lost. `original_type` is the type that they name, "" if it cannot be
    told. `reason` says what is wrong with them.
    """

    reason: str
    original_type: str = ""
    raw: bytes = b""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the JSON object in `raw`, unchecked; empty if it is not one."""
        return _object(self.raw)


_Known = Agent | Message | Assistant | Decision | ToolCallStarted | ToolResult | Condensation | Status | Error | Note | Damaged
AnyEvent = Agent | Message | Assistant | Decision | ToolCallStarted | ToolResult | Condensation | Status | Error | Note | Damaged | Unknown


class _Envelope(msgspec.Struct, rename="camel"):
    type: str
    seq: int
    id: str = ""
    timestamp: datetime = EPOCH


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Known)
_envelope = msgspec.json.Decoder(_Envelope)
_KNOWN = frozenset(cast(str, kind.__struct_config__.tag) for kind in _Known.__args__)
_OURS = re.compile(rb'\{"type":"(\w+)"')  # how the encoder begins every event
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)

MAX_NESTING = 200
"""Levels of arrays and objects in the free-form parts of an event. Other readers of JSON stop there or later, and no stack depth
of ours makes such an event unreadable."""
_COUNTED = 4096  # bytes of JSON up to which counting its brackets is cheaper than walking through its values


def encode(event: AnyEvent | Event) -> bytes:
    """Return an event as JSON. Raise `TypeError` or `ValueError` if it holds what JSON cannot say."""
    if type(event) is Unknown:
        return bytes(event.raw)
    return _encoder.encode(event)


def decode(data: bytes | str, seq: int | None = None) -> AnyEvent:
    """Return the event that `encode` or `record` wrote.

    A type that is not known here becomes `Unknown`; a known one that does not decode becomes `Damaged`.

    Args:
        seq: The seq under which the bytes are stored. With it anything that is no event becomes `Damaged`; without it, bytes that
            tell no seq raise `ValueError`.
    """
    try:
        event: AnyEvent = _decoder.decode(data)
    except (ValueError, OverflowError, RecursionError) as error:
        event = _undecoded(data.encode() if isinstance(data, str) else bytes(data), seq, error)
    if seq is not None and event.seq != seq:
        return _misplaced(event, seq, data.encode() if isinstance(data, str) else bytes(data))
    return event


def _misplaced(event: AnyEvent, seq: int, data: bytes) -> Damaged:
    reason = f"another event ({event.seq}) stands in its place"
    return Damaged(seq=seq, id=f"damaged-{seq}", timestamp=event.timestamp, reason=reason, raw=data)


def _undecoded(data: bytes, seq: int | None, error: Exception) -> AnyEvent:
    try:
        head = _envelope.decode(data)
    except (ValueError, OverflowError, RecursionError):
        head = None
    if head is not None and head.type not in _KNOWN:
        return Unknown(seq=head.seq, id=head.id, timestamp=head.timestamp, original_type=head.type, raw=msgspec.Raw(data))
    if isinstance(error, RecursionError) and _levels(data) <= MAX_NESTING:
        raise error  # the caller's stack is too deep, the event is not
    found = _object(data)
    kind, id, time = found.get("type"), found.get("id"), _time(found.get("timestamp"))
    if not found and (match := _OURS.match(data)) is not None:
        kind = match[1].decode()
    place = found.get("seq") if seq is None else seq
    if type(place) is not int or (seq is None and kind not in _KNOWN):
        raise error if isinstance(error, ValueError) else ValueError(str(error))
    kind = kind if isinstance(kind, str) and kind in _KNOWN else ""
    return Damaged(
        seq=place,
        id=id if isinstance(id, str) and id else f"damaged-{place}",
        timestamp=time or EPOCH,
        reason=f"its {kind} cannot be decoded: {error}" if kind else f"it is not an event: {error}",
        original_type=kind,
        raw=data,
    )


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (ValueError, OverflowError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _time(value: Any) -> datetime | None:
    try:
        found = msgspec.convert(value, datetime)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _levels(data: bytes) -> int:
    """How deep arrays and objects are nested in JSON, well-formed or not."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(data):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif match[2]:
            depth -= 1
    return deepest


# --- what a store keeps --------------------------------------------------------------------------


def record(event: AnyEvent | Event) -> bytes:
    """Return the bytes that a store keeps of an event: its JSON, of a `Damaged` one the bytes that it was read from.

    Raise `UnreadableEvent` unless `decode` makes an equal event of them.
    """
    kind = type(event)
    if kind is Damaged:
        raw = cast(Damaged, event).raw
        if raw and _reads_as(raw, event, event.seq):
            return raw
    try:
        data = encode(event)
        found = _decoder.decode(data) if kind is not Unknown else decode(data, event.seq)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableEvent(_named(event), _told(error)) from error
    if found != event:
        raise UnreadableEvent(_named(event), _difference(event, found))
    if kind is Assistant and cast(Assistant, event).native is not _NO_NATIVE:
        _check_native(cast(Assistant, event))
    if _may_be_deep(data) and any(_too_deep(value) for value in _free_form(event)):
        raise UnreadableEvent(_named(event), f"it is nested more than {MAX_NESTING} levels deep")
    return data


def _check_native(event: Assistant) -> None:
    """Raise `UnreadableEvent` for a provider's form that no later request could be made of."""
    try:
        native = msgspec.json.decode(event.native)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnreadableEvent(_named(event), f"its native form is not JSON that can be read: {_told(error)}") from error
    if _may_be_deep(event.native) and _too_deep(native):
        raise UnreadableEvent(_named(event), f"its native form is nested more than {MAX_NESTING} levels deep")


def check_content(content: tuple[Content, ...]) -> None:
    """Raise `UnreadableEvent` for content that a message could not be read back with."""
    record(Message(seq=1, id="", timestamp=EPOCH, content=content))


class Recorded(list[AnyEvent]):
    """Events with the bytes that a store keeps of each, in `data`, so that they are not made twice."""

    __slots__ = ("data",)

    def __init__(self, events: Sequence[AnyEvent] = ()) -> None:
        super().__init__(events)
        self.data = [record(event) for event in events]

    def add(self, event: AnyEvent) -> None:
        """Append an event. Raise `UnreadableEvent` if it could not be read back."""
        self.data.append(record(event))
        self.append(event)


def records(events: Sequence[AnyEvent]) -> list[bytes]:
    """Return `record` of each event."""
    return events.data if type(events) is Recorded else [record(event) for event in events]


def line(event: AnyEvent) -> bytes:
    """Return an event as one line of JSON: of a `Damaged` one its stored bytes, where they are such a line."""
    if type(event) is Damaged:
        raw = event.raw
        whole = bool(raw) and b"\n" not in raw and b"\r" not in raw and raw == raw.strip() and bool(event.fields)
        return raw if whole and _reads_as(raw, event, None) else encode(event)
    data = encode(event)
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def _reads_as(raw: bytes, event: Event, seq: int | None) -> bool:
    try:
        return decode(raw, seq) == event
    except (ValueError, RecursionError):
        return False


def _named(event: Event) -> str:
    return f"Event {event.seq!r} ({event.type})"


def _told(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it holds half of a surrogate pair, which UTF-8 cannot say"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _difference(event: Event, found: Event) -> str:
    """Say which field would be read back as something else."""
    for name in event.__struct_fields__:
        if type(event) is type(found) and getattr(event, name) != getattr(found, name):
            return f"its {name} would be read back as something else (JSON has no NaN, tuples, sets, bytes, or keys that are not text)"
    return f"it would be read back as {type(found).__name__}"


def _free_form(event: AnyEvent | Event) -> list[Any]:
    """Return the parts of an event that have no schema."""
    match event:
        case Assistant():
            return [call.arguments for call in event.calls]
        case ToolResult():
            result = event.result
            return [result.meta, result.structured_content, *_resources(result.content)]
        case Message():
            return _resources(event.content)
        case Agent():
            return [event.parameters, *[tool.input_schema for tool in event.tools]]
        case Decision():
            return [event.arguments, None if event.question is None else event.question.schema]
        case Error() | Note():
            return [event.details]
        case _:
            return []


def _resources(content: tuple[Content, ...]) -> list[Any]:
    return [block.resource for block in content if type(block) is EmbeddedResource]


def _may_be_deep(data: bytes | msgspec.Raw) -> bool:
    """True unless JSON is too short, or has too few brackets, to be nested more than `MAX_NESTING` levels deep."""
    size = len(data)
    return size > 2 * MAX_NESTING and (size > _COUNTED or bytes(data).count(b"[") + bytes(data).count(b"{") > MAX_NESTING)


def _too_deep(value: Any) -> bool:
    """True if a JSON value is nested more than `MAX_NESTING` levels deep."""
    level = [value]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for one in level:
            items = list(cast("dict[str, Any]", one).values()) if type(one) is dict else cast("list[Any]", one) if type(one) is list else []
            below += [item for item in items if type(item) is dict or type(item) is list]
        if not below:
            return False
        level = below
    return True
