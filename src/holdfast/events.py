"""The events of a journal, complete, and their JSON form. A new event changes the list in the design first.

A journal is an append-only list of these; everything else about a conversation is a fold over it. Every event has `seq` (dense
from 1), `id`, `timestamp` (UTC) and, in JSON, `type`. A type that a newer version wrote loads as `Unknown` and is kept as it came.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from holdfast.content import Content, ToolCall, Usage, text_of
from holdfast.content import ToolResult as Result

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
    """A tool as the model is told of it. `wire_name` is `name` in the letters that model APIs allow. `executor` is not told: `client` says that
    a client of the agent server runs its calls, not the loop."""

    name: str
    description: str
    input_schema: dict[str, Any]
    wire_name: str = ""
    executor: str = ""


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


_Known = Agent | Message | Assistant | Decision | ToolCallStarted | ToolResult | Condensation | Status | Error | Note
AnyEvent = Agent | Message | Assistant | Decision | ToolCallStarted | ToolResult | Condensation | Status | Error | Note | Unknown


class _Envelope(msgspec.Struct, rename="camel"):
    type: str
    seq: int
    id: str = ""
    timestamp: datetime = EPOCH


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Known)
_envelope = msgspec.json.Decoder(_Envelope)
_KNOWN = {cast(str, kind.__struct_config__.tag) for kind in _Known.__args__}


def encode(event: AnyEvent | Event) -> bytes:
    """An event as JSON. Raises `TypeError` if it holds what JSON cannot say."""
    if type(event) is Unknown:
        return bytes(event.raw)
    return _encoder.encode(event)


def decode(data: bytes | str) -> AnyEvent:
    """The inverse of `encode`; a type that is not known here becomes `Unknown`. Raises `ValueError` on what is no event."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        head = _envelope.decode(data)
        if head.type in _KNOWN:
            raise
        raw = data.encode() if isinstance(data, str) else data
        return Unknown(seq=head.seq, id=head.id, timestamp=head.timestamp, original_type=head.type, raw=msgspec.Raw(raw))
