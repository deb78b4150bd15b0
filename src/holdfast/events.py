"""The complete set of events in a journal, and their JSON form. A new event changes the list in the
design first.

A journal is an append-only list of events; everything else about a conversation is a fold over
it. Every event has `seq` (dense from 1), `id`, `timestamp` (UTC) and, in JSON, `type`. A type of
a newer version loads as `UnknownEvent` and is kept unchanged. An event that cannot be decoded loads
as `DamagedEvent`, with its bytes. `record` returns the form that a store keeps; it refuses an event
that could not be read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

import msgspec

from holdfast.answer import AnswerDetails, HasDetails
from holdfast.content import Content, EmbeddedResource, ToolCall, Usage, text_of
from holdfast.content import ToolResult as Result
from holdfast.errors import UnreadableEvent
from holdfast.nesting import too_deep

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NO_NATIVE = msgspec.Raw()


REPR_CHARACTERS = 150  # of an event: two lines of a terminal
REPR_FIELD_CHARACTERS = 60


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    gc=False,
):
    """The base of all events."""

    seq: int
    id: str
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)]

    @property
    def type(self) -> str:
        """The event's type, as in its JSON: `message`, `assistant`, `toolResult`, ..."""
        return cast(str, self.__struct_config__.tag)

    def __repr__(self) -> str:
        """The class, the seq and the fields that are not at their defaults, each cut, in at most
        two lines."""
        names = self.__struct_fields__
        defaults = dict(zip(reversed(names), reversed(self.__struct_defaults__), strict=False))
        summary = f"{type(self).__name__}(seq={self.seq}"
        for name in names:
            value = getattr(self, name)
            if name in ("seq", "id", "timestamp") or (name in defaults and value == defaults[name]):
                continue
            text = repr(value)
            if len(text) > REPR_FIELD_CHARACTERS:
                text = f"{text[: REPR_FIELD_CHARACTERS - 3]}..."
            if len(summary) + len(name) + len(text) > REPR_CHARACTERS:
                return f"{summary}, ...)"
            summary += f", {name}={text}"
        return f"{summary})"

    def to_json(self) -> bytes:
        """Return the event as one JSON object. Only parts kept unchanged (`native`,
        `Unknown.raw`) may contain newlines."""
        return encode(self)


class ToolDefinition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tool's definition in a model request, and facts about it that the model does not see.

    Args:
        wire_name: `name` in the letters that model APIs allow.
        executor: "client" if a client of the agent server runs the calls; "" if the loop runs them.
        parallel: True if a call may run beside neighbouring calls that are parallel too.
        deferred: True if a search found the tool. Its definition may be sent with the result of the
            search, if the model's API permits it, so that the beginning of requests stays cached.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    wire_name: str = ""
    executor: str = ""
    parallel: bool = False
    deferred: bool = False


class PromptPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One part of a system prompt, and its length. An empty line separates two parts."""

    name: str
    characters: int


class AgentConfigured(Event, frozen=True, tag="agent"):
    """The parts of the requests that follow: system prompt, ordered tool definitions, model and its
    parameters. No secrets.

    `name` is the agent that answers from here on, "" for the one that the conversation began
    with. `spawned_by`, in a conversation's first event of this type, is the idempotency key of
    the call that spawned it, "" for none. `prompt_parts` are those of the system prompt, if it
    has several.
    """

    system_prompt: str
    tools: tuple[ToolDefinition, ...] = ()
    model: str = ""
    parameters: dict[str, Any] = {}
    name: str = ""
    spawned_by: str = ""
    prompt_parts: tuple[PromptPart, ...] = ()


class MessageAdded(Event, frozen=True, tag="message"):
    """A message to the agent.

    `sender` is `user`, the id of the sending conversation, or `holdfast` for the loop itself. The
    loop sets `about` to the subject, such as `skill:pdf` or `stuck:repeat`; "" is about an empty or
    cut-off answer. If a call of `model` made the message, such as a picture's description, `usage`
    and `cost` (US dollars, None if not known) are the call's.
    """

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


class AssistantReplied(Event, HasDetails, frozen=True, tag="assistant"):
    """One answer of the model.

    `based_on` is the last seq that its request contained. `native` is the provider's own form (of
    the wire `wire`) where it has more than the fields here. `duration` is in seconds. `cost` is in
    US dollars: the price that the provider states, else the one by list prices.

    `request_hash` identifies the request in a replay. `route` names the model of a composite that
    answered, `host` the server that answered. `notes` list the parts that the request left out
    because they belonged to another provider. `details` are citations, refusals and other parts
    that only some answers have; each is also an attribute of the event.
    """

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
    details: AnswerDetails | None = None

    def __post_init__(self) -> None:
        _keep_default(self)


def _keep_default(holder: Any) -> None:
    """Replace an empty native form by the default. msgspec omits a default by identity. Any other
    empty Raw it writes as `"native":,`, which is not JSON."""
    if holder.native is not _NO_NATIVE and holder.native == _NO_NATIVE:
        msgspec.structs.force_setattr(holder, "native", _NO_NATIVE)


class Question(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A running call's question to the user, with the id `{call_id}?{n}`.

    `schema` (a JSON Schema of flat properties) asks for a form, and `url` for a visit of that page.
    Without both, the question asks for a yes. `asker` is the tool or the MCP server that asks. Show
    the asker to the user, who otherwise takes the question for one of Holdfast.
    """

    id: str
    message: str
    schema: dict[str, Any] | None = None
    url: str = ""
    asker: str = ""


class DecisionMade(Event, frozen=True, tag="decision"):
    """A decision whether a call may run, its author (`by`) and its reason.

    The decision is bound to the call's id and the hash of the model's arguments; `arguments` are an
    approver's replacement. `risk` is the verdict of the agent's analyzer, "" without one. `usage`,
    `cost` (US dollars, None if not known) and `model` are those of the analyzer's model calls.

    With `question` the event records a running call's question ("ask"). With `question_id` it
    records the answer ("approve", the values in `arguments`, secret ones as `***`) or a refusal
    ("reject").
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


class ToolCallStarted(Event, frozen=True, tag="toolCallStarted"):
    """The start of an attempt of a call, written before it begins; the effect may exist from here
    on.

    `runner` is the client that claimed the call, "" for the loop itself.
    """

    call_id: str
    attempt: int = 1
    idempotency_key: str = ""
    runner: str = ""


class ToolCallFinished(Event, frozen=True, tag="toolResult"):
    """A call's result; `duration` is in seconds."""

    call_id: str
    result: Result
    duration: float = 0.0


class CodeCallsMade(Event, frozen=True, tag="codeCalls"):
    """Calls that the script of the call `call_id` makes (`Agent(code=)`), written before any of
    them starts.

    Their ids are `{call_id}.{n}`, in the order in which the script made them. `parallel` are the
    ids of the calls that may run side by side, `clients` of those that clients run. `interpreter`
    names the interpreter and its version. A model is shown neither the calls nor their results.
    """

    call_id: str
    calls: tuple[ToolCall, ...]
    parallel: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    interpreter: str = ""


class PlanStep(msgspec.Struct, frozen=True, rename="camel"):
    """One step of a plan: its text, and its progress."""

    step: str
    state: Literal["pending", "in_progress", "done", "dropped"] = "pending"


class Plan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The plan of a conversation.

    `approved` are the texts of the steps that the user approved, if that approval lasts. The
    call `call_id` made it. A model is shown it at `seq`: that of its answer or, with
    `condensed`, the place of a summary; 0 if it is not shown.
    """

    steps: tuple[PlanStep, ...] = ()
    approved: tuple[str, ...] = ()
    call_id: str = ""
    seq: int = 0
    condensed: bool = False


class TimerMark(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A timer in a checkpoint: the seqs of its `TimerSet` and of its last message (0 for none), and
    the next due time."""

    seq: int
    due: datetime
    message_seq: int = 0


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A checkpoint of a conversation at event `seq`, from which it continues without the events up
    to there.

    `run_...` count the run in progress; `..._seq` name the last event of that kind.
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
    timers: tuple[TimerMark, ...] = ()
    waiting: int = 0
    tags: tuple[str, ...] = ()
    named: bool = False
    asides: tuple[str, ...] = ()
    goal_seq: int = 0
    goal_rounds: int = 0


class Compaction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A form of the history that a provider made and that only its models can read.

    The provider's models are shown the form and the text `note` instead of the events up to
    `based_on`. All other models are shown these events. `native` has the form of the wire `wire`;
    `host` is the server that made it.
    """

    native: msgspec.Raw = _NO_NATIVE
    based_on: int = 0
    wire: str = ""
    host: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        _keep_default(self)


class HistoryCondensed(Event, frozen=True, tag="condensation"):
    """The parts that a condenser left out of the view.

    `summary` stands in place of the first of the `hidden` seqs. `trimmed` maps call ids to the
    number of shown characters of their results. `replaced` are the places of earlier summaries that
    are no longer shown.

    With `request` the event hides nothing yet, but asks for a condensation with these instructions
    ("" for none). The next event without `request` answers. A condensation that leaves nothing out
    has the reason in `failed`. `usage` and `cost` (US dollars, None if not known) are those of its
    calls of `model`.

    A model is shown only that summary of the events up to `so_far.seq`. A conversation is opened
    without reading them.

    `compaction` is the provider's form of the history, which hides nothing from other models. A
    later condensation that hides an event of the compaction ends the compaction's use.
    """

    hidden: tuple[int, ...]
    summary: str = ""
    so_far: Checkpoint | None = None
    trimmed: dict[str, int] = {}
    request: str | None = None
    failed: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    replaced: tuple[int, ...] = ()
    compaction: Compaction | None = None

    @property
    def changes(self) -> bool:
        """True if a model is shown something else from here on."""
        return bool(self.hidden or self.trimmed)


class StatusChanged(Event, frozen=True, tag="status"):
    """A change of the conversation's status. `reason` says why where that is not obvious."""

    status: str
    reason: str = ""


class ErrorRecorded(Event, frozen=True, tag="error"):
    """The error that stopped a run: its class name in `holdfast.errors`, its message, and its
    fields."""

    error: str
    message: str
    details: dict[str, Any] = {}


class NoteRecorded(Event, frozen=True, tag="note"):
    """A fact about a run, such as a failed hook or an ended child. A note is not shown to the model
    and does not stop the run.

    `about` names the origin, such as `hook:audit`. Some notes record model calls with their
    `usage`, `cost` (US dollars, None if not known) and `model`, which is "" in all other notes:

    | about | model calls |
    |---|---|
    | `llm` | a call of a tool or a hook |
    | `llm:other` | the same, of another model than the agent's |
    | `condensation` | the calls of a condensation that was not used |
    | `picture:...` | a call that failed to describe the picture |
    """

    about: str
    text: str
    details: dict[str, Any] = {}
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""


AGENT_CHOICE = "use"
"""The `about` of a note after which the agent `details["agent"]` answers; see `commands.Use`."""

NO_PERIOD = 0.0  # one object: msgspec leaves a default out by identity


class TimerSet(Event, frozen=True, tag="timerSet"):
    """A timer, set or replaced by its id `timer`: it appends a message with `content` from `sender`
    at `due`.

    The timer repeats with `every` (seconds) or `cron`. `timezone` is the zone of the cron
    expression, "" for UTC. `misfire` is the rule for missed occurrences. `call_id` is the call that
    set the timer, "" for a command.
    """

    timer: str
    content: tuple[Content, ...]
    due: Annotated[datetime, msgspec.Meta(tz=True)]
    every: float = NO_PERIOD
    cron: str = ""
    timezone: str = ""
    misfire: Literal["once", "skip", "all"] = "once"
    sender: str = "user"
    call_id: str = ""


class TimerFired(Event, frozen=True, tag="timerFired"):
    """The occurrence `due` of a timer, and the time of the `next` one; None ends the timer.

    `message_seq` is the seq of its message, 0 without one. `missed` counts the earlier
    occurrences without a message.
    """

    timer: str
    due: Annotated[datetime, msgspec.Meta(tz=True)]
    next: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    message_seq: int = 0
    missed: int = 0


class TimerCancelled(Event, frozen=True, tag="timerCancelled"):
    """The cancellation of a timer, its author (`by`) and its reason."""

    timer: str
    by: str = ""
    reason: str = ""


class ConversationLabelled(Event, frozen=True, tag="label"):
    """A change of the conversation's `title` (None for none) and of its tags. `by` is `user`,
    `fork`, or the model that wrote the title. No model is shown the event.
    """

    title: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    by: str = ""


class AsideAsked(Event, frozen=True, tag="asideAsked"):
    """A question aside: the model is asked about the conversation, without the question or the
    answer becoming a part of it.

    The request is the view of the events up to `based_on`, under the `AgentConfigured` event
    `head`. `reserved_tokens` and `reserved_cost` (US dollars) are the most that the request may
    take from the budgets of the tree, 0 without a budget. An `AsideAnswered` with the same `aside`
    follows.
    """

    aside: str
    question: str
    head: int
    based_on: int
    reserved_tokens: int = 0
    reserved_cost: float = 0.0


class AsideAnswered(Event, frozen=True, tag="asideAnswered"):
    """The outcome of the question aside `aside`: the `text` of the answer, or the class name of an
    `error` and its message in `failed`.

    `usage` and `cost` (US dollars, None if not known) are those of its calls of `model`, `duration`
    is in seconds. `ignored` are the names of tools that the model called instead of answering;
    no such call is run.
    """

    aside: str
    text: str = ""
    error: str = ""
    failed: str = ""
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    duration: float = 0.0
    ignored: tuple[str, ...] = ()


class UnknownEvent(Event, frozen=True, tag="unknown"):
    """An event of a type that this version does not know, kept unchanged."""

    original_type: str
    raw: msgspec.Raw

    @property
    def type(self) -> str:
        """The type that the newer version gave it."""
        return self.original_type


class DamagedEvent(Event, frozen=True, tag="damaged"):
    """An event of a known type that cannot be decoded, or a place where no event can be read.

    `raw` holds its stored bytes, empty if they are lost. `original_type` is the type that they
    name, "" if unknown. `reason` names the fault.
    """

    reason: str
    original_type: str = ""
    raw: bytes = b""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the JSON object in `raw`, unchecked; empty if it is not one."""
        return _object(self.raw)


_Known = (
    AgentConfigured
    | MessageAdded
    | AssistantReplied
    | DecisionMade
    | ToolCallStarted
    | ToolCallFinished
    | CodeCallsMade
    | HistoryCondensed
    | StatusChanged
    | ErrorRecorded
    | NoteRecorded
    | TimerSet
    | TimerFired
    | TimerCancelled
    | ConversationLabelled
    | AsideAsked
    | AsideAnswered
    | DamagedEvent
)
AnyEvent = _Known | UnknownEvent


class _Envelope(msgspec.Struct, rename="camel"):
    type: str
    seq: int
    id: str = ""
    timestamp: datetime = EPOCH


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Known)
_envelope = msgspec.json.Decoder(_Envelope)
_KNOWN = frozenset(cast(str, kind.__struct_config__.tag) for kind in _Known.__args__)
_ZONE = re.compile(r"(?:[Zz]|[+-]\d\d:?\d\d)$")
_EVENT_START = re.compile(rb'\{"type":"(\w+)"')  # the first bytes of every encoded event

JOURNAL_VERSION = 4
"""The version of the journal that this Holdfast drives. A new event type, or a new meaning of one,
raises it and is entered in `_SINCE` or `_SINCE_NOTE`."""

# The version that a conversation with such an event needs, by event type; version 1 for the others.
_SINCE: Mapping[type[Event], int] = MappingProxyType(
    {TimerSet: 2, ConversationLabelled: 3, AsideAsked: 3, CodeCallsMade: 4}
)
# The same by the `about` of a note.
_SINCE_NOTE: Mapping[str, int] = MappingProxyType({AGENT_CHOICE: 3})


def needed_version(events: Sequence[AnyEvent]) -> int:
    """Return the version of the journal that a worker must know to go on after these events."""
    return max(map(_version_of, events), default=1)


def _version_of(event: AnyEvent) -> int:
    if type(event) is NoteRecorded:
        return _SINCE_NOTE.get(event.about, 1)
    return _SINCE.get(type(event), 1)


MAX_NESTING = 200
"""Levels of arrays and objects in the free-form parts of an event. Other JSON readers stop there
or later, and no Python stack depth makes such an event unreadable."""


def encode(event: AnyEvent | Event) -> bytes:
    """Return an event as JSON. Raise `TypeError` or `ValueError` if it holds a value that JSON
    cannot represent."""
    if type(event) is UnknownEvent:
        return bytes(event.raw)
    return _encoder.encode(event)


def decode(data: bytes | str, seq: int | None = None) -> AnyEvent:
    """Return the event that `encode` or `record` wrote.

    An unknown type becomes `UnknownEvent`; a known one that does not decode becomes `DamagedEvent`.

    Args:
        seq: The seq under which the bytes are stored. With it any other data becomes a
            `DamagedEvent`. Without it, bytes that name no seq raise `ValueError`.
    """
    try:
        event: AnyEvent = _decoder.decode(data)
    except (ValueError, OverflowError, RecursionError) as error:
        event = _undecodable_event(
            data.encode() if isinstance(data, str) else bytes(data), seq, error
        )
    if seq is not None and event.seq != seq:
        return DamagedEvent(
            seq=seq,
            id=f"damaged-{seq}",
            timestamp=event.timestamp,
            reason=f"another event ({event.seq}) stands in its place",
            raw=data.encode() if isinstance(data, str) else bytes(data),
        )
    return event


def _undecodable_event(data: bytes, seq: int | None, error: Exception) -> AnyEvent:
    try:
        head = _envelope.decode(data)
    except (ValueError, OverflowError, RecursionError):
        head = None
    if head is not None and head.type not in _KNOWN:
        return UnknownEvent(
            seq=head.seq,
            id=head.id,
            timestamp=_time(head.timestamp) or EPOCH,
            original_type=head.type,
            raw=msgspec.Raw(data),
        )
    if isinstance(error, RecursionError) and not too_deep(data, MAX_NESTING):
        raise error  # the caller's stack is too deep, not the event
    fields = _object(data)
    kind, id, time = fields.get("type"), fields.get("id"), _time(fields.get("timestamp"))
    kind = kind if isinstance(kind, str) else None
    if kind in _KNOWN and time is not None and not _ZONE.search(fields["timestamp"]):
        with suppress(ValueError, OverflowError):  # a time without a zone, written elsewhere
            return _decoder.decode(_encoder.encode(fields | {"timestamp": time}))
    if not fields and (match := _EVENT_START.match(data)) is not None:
        kind = match[1].decode()
    place = fields.get("seq") if seq is None else seq
    if type(place) is not int or (seq is None and kind not in _KNOWN):
        raise error if isinstance(error, ValueError) else ValueError(str(error))
    kind = kind if kind in _KNOWN else ""
    return DamagedEvent(
        seq=place,
        id=id if isinstance(id, str) and id else f"damaged-{place}",
        timestamp=time or EPOCH,
        reason=f"its {kind} cannot be decoded: {error}" if kind else f"it is not an event: {error}",
        original_type=kind,
        raw=data,
    )


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (ValueError, OverflowError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _time(value: Any) -> datetime | None:
    """Return `value` as a time, in UTC if it has no zone; None if it is not a time."""
    try:
        time = msgspec.convert(value, datetime)
    except (ValueError, TypeError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


_INDEX = re.compile("0|[1-9][0-9]{0,8}")  # of a call in its answer


def foreign_call(event: AnyEvent) -> str | None:
    """Return the first id of a call of an answer that is not `{seq}.{index}` or occurs twice in the
    answer, or None."""
    calls = event.calls if type(event) is AssistantReplied else ()
    ids: set[str] = set()
    for call in calls:
        index = call.id.removeprefix(f"{event.seq}.")
        if call.id == index or not _INDEX.fullmatch(index) or call.id in ids:
            return call.id
        ids.add(call.id)
    return None


# --- the stored form ---


def record(event: AnyEvent | Event) -> bytes:
    """Return the bytes that a store keeps of an event: its JSON, or the original bytes of a
    `DamagedEvent` one.

    Raise `UnreadableEvent` unless `decode` returns an equal event for them.
    """
    kind = type(event)
    if kind is DamagedEvent:
        raw = cast(DamagedEvent, event).raw
        if raw and _reads_as(raw, event, event.seq):
            return raw
    try:
        data = encode(event)
        copy = _decoder.decode(data) if kind is not UnknownEvent else decode(data, event.seq)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableEvent(_reference(event), _reason(error)) from error
    if copy != event:
        raise UnreadableEvent(_reference(event), _difference(event, copy))
    native = _NO_NATIVE
    if kind is AssistantReplied:
        native = cast(AssistantReplied, event).native
    elif kind is HistoryCondensed and (compaction := cast(HistoryCondensed, event).compaction):
        native = compaction.native
    if native is not _NO_NATIVE:
        _check_native(event, native)
    if (
        len(data) > 2 * MAX_NESTING  # else it has too few brackets
        and data.count(b"[") + data.count(b"{") > MAX_NESTING
        and any(too_deep(_encoder.encode(value), MAX_NESTING) for value in _free_form(event))
    ):
        raise UnreadableEvent(
            _reference(event), f"it is nested more than {MAX_NESTING} levels deep"
        )
    return data


def _check_native(event: Event, native: msgspec.Raw) -> None:
    """Raise `UnreadableEvent` for a provider's form that no later request could contain."""
    try:
        msgspec.json.decode(native)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnreadableEvent(
            _reference(event), f"its native form is not JSON that can be read: {_reason(error)}"
        ) from error
    if too_deep(bytes(native), MAX_NESTING):
        raise UnreadableEvent(
            _reference(event), f"its native form is nested more than {MAX_NESTING} levels deep"
        )


def check_content(content: tuple[Content, ...]) -> None:
    """Raise `UnreadableEvent` for content that would make a message unreadable."""
    record(MessageAdded(seq=1, id="", timestamp=EPOCH, content=content))


class RecordedEvents(list[AnyEvent]):
    """Events with the stored bytes of each in `data`, so that they are encoded once."""

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
    return events.data if type(events) is RecordedEvents else [record(event) for event in events]


def line(event: AnyEvent) -> bytes:
    """Return an event as one line of JSON; for a `DamagedEvent` one its stored bytes, if they are
    one line."""
    if type(event) is DamagedEvent:
        raw = event.raw
        whole = len(raw.splitlines()) == 1 and raw == raw.strip() and bool(event.fields)
        return raw if whole and _reads_as(raw, event, None) else encode(event)
    data = encode(event)
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def _reads_as(raw: bytes, event: Event, seq: int | None) -> bool:
    try:
        return decode(raw, seq) == event
    except (ValueError, RecursionError):
        return False


def _reference(event: Event) -> str:
    return f"Event {event.seq!r} ({event.type})"


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it holds half of a surrogate pair, which UTF-8 cannot say"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _difference(event: Event, copy: Event) -> str:
    """Return the name of a field that would be read back differently."""
    for name in event.__struct_fields__:
        if type(event) is type(copy) and getattr(event, name) != getattr(copy, name):
            return (
                f"its {name} would be read back differently (JSON has no NaN, tuples, sets, bytes,"
                " or keys that are not text)"
            )
    return f"it would be read back as {type(copy).__name__}"


def _free_form(event: AnyEvent | Event) -> list[Any]:
    """Return the parts of an event that have no schema."""
    match event:
        case AssistantReplied():
            return [*[call.arguments for call in event.calls], event.details]
        case CodeCallsMade():
            return [call.arguments for call in event.calls]
        case ToolCallFinished():
            result = event.result
            return [result.meta, result.structured_content, *_resources(result.content)]
        case MessageAdded():
            return _resources(event.content)
        case AgentConfigured():
            return [event.parameters, *[tool.input_schema for tool in event.tools]]
        case DecisionMade():
            return [event.arguments, None if event.question is None else event.question.schema]
        case ErrorRecorded() | NoteRecorded():
            return [event.details]
        case _:
            return []


def _resources(content: tuple[Content, ...]) -> list[Any]:
    return [block.resource for block in content if type(block) is EmbeddedResource]
