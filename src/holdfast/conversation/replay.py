"""Replay: a journal run once more, with the answers and results that it has, and compared with what
today's code makes of it.

What came from outside stays as it was recorded: messages, answers, results, decisions, which tools
were registered by then. What code made of it is made again: prompt, tool definitions and parameters
by the agent, the messages of each request by the view and the wire, and when the model is asked by
`next_action`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import msgspec

from holdfast import events as ev
from holdfast.agent import stuck
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import find
from holdfast.agent.limits import Limits
from holdfast.agent.output import REPAIR
from holdfast.agent.view import View
from holdfast.content import Data
from holdfast.conversation.actions import (
    Action,
    Call,
    Condense,
    HandOver,
    Nudge,
    Recover,
    Step,
    Stop,
    Wait,
    next_action,
)
from holdfast.conversation.budget import of_tree
from holdfast.conversation.driver import nudge_for
from holdfast.conversation.handoff import in_force
from holdfast.conversation.state import ConversationStatus, Fold
from holdfast.errors import LimitExceeded, OutputInvalid
from holdfast.llm.composite import routed
from holdfast.llm.pictures import without_sight
from holdfast.llm.request import make_request, request_hash
from holdfast.llm.transcript import Transcript
from holdfast.llm.wires import known, wire
from holdfast.llm.wires.protocol import Wire

_UNLIMITED = Limits(None, None, None, None)
_NUDGES = (stuck.ABOUT, REPAIR)  # how the `about` of messages begins that `next_action` has told
_LONGEST = 200  # lines of a difference that are shown


class Difference(Data, frozen=True):
    """Where a replay goes another way than the journal: at model request number `request` (from 1),
    or after it. Event `seq` is what came of it then. `text` says what differs, recorded lines
    marked with `-`, today's with `+`."""

    request: int
    seq: int
    text: str

    def __str__(self) -> str:
        return f"request {self.request}, event {self.seq}:\n{self.text}"


class Replay(Data, frozen=True):
    """What a replay found: how many model requests were compared, of these how many to the last
    byte, and the first that differs.

    Requests are compared to the last byte by their hash, which models that are not Holdfast's own
    do not record.
    """

    requests: int = 0
    hashed: int = 0
    difference: Difference | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        return (
            f"{self.requests} model requests replayed, {self.hashed} of them compared to the last"
            " byte: all the same"
        )


class Request(msgspec.Struct, frozen=True):
    """One model request of a replay. Good until the next one is asked for: they share one
    transcript."""

    number: int
    answer: ev.Assistant
    head: ev.Agent
    transcript: Transcript
    action: Action
    """What today's loop does where the journal asked the model."""

    @property
    def wire(self) -> Wire:
        """The wire that it went over; OpenAI's Chat Completions for one that is not Holdfast's."""
        return wire(self.answer.wire if known(self.answer.wire) else "openai_chat")

    @property
    def body(self) -> bytes:
        """The bytes that the model of the journal would be sent today."""
        head = routed(self.head, self.answer.route, self.transcript)
        return make_request(
            self.wire, head.model, head.parameters, self.transcript, (), None, head, False
        ).body

    @property
    def hash(self) -> str:
        """What `Assistant.request_hash` is today."""
        head = routed(self.head, self.answer.route, self.transcript)
        return request_hash(self.wire, head.model, self.transcript, head)


def requests(events: Sequence[ev.AnyEvent], agent: Agent | None = None) -> Iterator[Request]:
    """The model requests that a journal tells of, as today's code makes them, one after the other;
    costs what each adds. The limits are those of the agent in force then, none without an agent."""
    view, state = View(), Fold()
    seen = number = 0
    for event in events:
        if type(event) is not ev.Assistant:
            continue
        new = events[seen : event.based_on]
        if any(type(found) is ev.Condensation and found.changes for found in new):
            view = View.of(events[: event.based_on])
        else:
            for found in new:
                view.feed(found)
        for found in new:
            state.apply(found)
        seen = max(seen, event.based_on)
        number += 1
        if state.agent is not None and not state.open:
            yield Request(number, event, state.agent, view.ready(), _action(agent, state))


def _action(agent: Agent | None, state: Fold, limits: Limits | None = None) -> Action:
    """What today's loop does: by the settings of the agent in force, or, without an agent, what the
    journal alone tells."""
    if agent is None:
        return next_action(state, _UNLIMITED)
    found = in_force(agent, state)[1]
    return next_action(state, limits or found.limits, None, found.stuck, found.output_rounds)


def replay(events: Sequence[ev.AnyEvent], agent: Agent | None = None) -> Replay:
    """Compare every model request, and every end of a run, with what today's code makes of it;
    stops at the first difference."""
    if agent is None:
        return _replay(events, None)
    heads = {event.name: event for event in events if isinstance(event, ev.Agent)}
    opened: list[Agent] = []
    try:
        for name in ("", *(name for name in heads if name)):
            if (one := find(agent, name)) is not None:
                one.connections.opened()
                opened.append(one)
                one.connections.connect(
                    [tool.name for tool in heads[name].tools] if name in heads else ()
                )
        return _replay(events, agent)
    finally:
        for one in opened:
            one.connections.closed()


def _replay(events: Sequence[ev.AnyEvent], agent: Agent | None) -> Replay:
    count = hashed = 0
    damaged = next((event for event in events if isinstance(event, ev.Damaged)), None)
    end, otherwise = _ends(events, agent)
    ever: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, ev.Agent):
            ever.setdefault(event.name, set()).update([tool.name for tool in event.tools])
    compared: ev.Agent | None = None  # the head before
    shown = 0  # items of the transcript in the last request that was the same
    for request in requests(events, agent):
        answer = request.answer
        if end and end <= answer.seq:
            return Replay(count, hashed, Difference(count, end, otherwise))
        if damaged is not None and damaged.seq <= answer.based_on:
            text = (
                f"- event {damaged.seq} is damaged and cannot be read ({damaged.reason})\n+ no"
                " request after it can be made again"
            )
            return Replay(count, hashed, Difference(request.number, damaged.seq, text))
        count, text = request.number, ""
        if not isinstance(request.action, Step):
            text = f"- the model is asked\n+ {_said(request.action)}"
        elif agent is not None and request.head is not compared:
            text = _head_differs(request.head, compared, agent, ever.get(request.head.name, set()))
            compared = request.head
        if not text and answer.request_hash and known(answer.wire):
            hashed += 1
            if request.hash != answer.request_hash:
                text = _messages_differ(request, shown)
        text = text or _after(events, answer)
        if text:
            return Replay(count, hashed, Difference(count, answer.seq, _short(text)))
        shown = len(request.transcript)
    return Replay(count, hashed, Difference(count, end, otherwise) if end else None)


def _after(events: Sequence[ev.AnyEvent], answer: ev.Assistant) -> str:
    """What the loop itself said to an empty answer, or one that was cut off. (If nothing, the
    journal may have been forked there.)"""
    following = events[answer.seq] if answer.seq < len(events) else None
    if (
        not isinstance(following, ev.Message)
        or following.sender != "holdfast"
        or following.about
        or following.text == nudge_for(answer)
    ):
        return ""
    return f"After the answer the model is told:\n- {following.text!r}\n+ {nudge_for(answer)!r}"


def _ends(events: Sequence[ev.AnyEvent], agent: Agent | None) -> tuple[int, str]:
    """The first end of a run at which today's loop would not end it: its seq, and what differs; (0,
    "") if there is none. Ends at a limit are compared if there is an `agent`."""
    state = Fold()
    for event in events:
        if isinstance(event, ev.Damaged):
            break  # what today's loop would do after it cannot be told
        if isinstance(event, ev.Status) and event.status in (
            ConversationStatus.FINISHED,
            ConversationStatus.STUCK,
        ):
            # By settings that are not known here, if the model was told first.
            told = (
                agent is None
                and event.status == ConversationStatus.STUCK
                and state.recent.nudged is not None
            )
            action = _action(agent, state, _UNLIMITED)
            if not told and (not isinstance(action, Stop) or action.status != event.status):
                return event.seq, f"- the run is over: {event.status}\n+ {_said(action)}"
        elif (
            agent is not None
            and isinstance(event, ev.Message)
            and event.sender == "holdfast"
            and event.about.startswith(_NUDGES)
        ):
            action = _action(agent, state)
            if action != Nudge(event.about, event.text):
                return event.seq, f"- the model is told: {event.text!r}\n+ {_said(action)}"
        elif (
            agent is not None
            and isinstance(event, ev.Error)
            and event.error in (LimitExceeded.__name__, OutputInvalid.__name__)
            and not of_tree(event)
        ):
            action = _action(agent, state)
            if not isinstance(action, Stop):
                return event.seq, f"- the run is over: {event.message}\n+ {_said(action)}"
        state.apply(event)
    return 0, ""


def _said(action: Action) -> str:
    match action:
        case Stop(status, reason, limit, output):
            why = (
                f": the limit of {limit[2]:g} {limit[0]} is reached"
                if limit
                else f": {reason or output}"
                if reason or output
                else ""
            )
            return f"the run is over: {status.value}{why}"
        case Step():
            return "the model is asked"
        case Nudge(_, text):
            return f"the model is told: {text!r}"
        case HandOver(name):
            return f"{name or 'the first agent'} takes over"
        case Condense():
            return "the conversation is shortened"
        case Wait():
            return "nothing is done"
        case Call(calls) | Recover(calls):
            return f"calls are run: {', '.join(call.name for call in calls)}"


def _head_differs(recorded: ev.Agent, before: ev.Agent | None, agent: Agent, ever: set[str]) -> str:
    """How the agent differs from an `Agent` event. Which tools there were is the journal's to say,
    what they are the agent's."""
    parts: list[str] = []
    known = find(agent, recorded.name)
    if known is None:
        return f"agent:\n- {recorded.name}\n+ the agent may hand over to none of that name"
    agent = known
    if agent.llm.model != recorded.model:
        parts.append(f"model:\n- {recorded.model}\n+ {agent.llm.model}")
    written, parameters = without_sight(recorded.parameters), without_sight(agent.llm.parameters())
    if parameters != written:
        parts.append("parameters:\n" + _diff(_json(written), _json(parameters)))
    if agent.system_prompt != recorded.system_prompt:
        parts.append("system prompt:\n" + _diff(recorded.system_prompt, agent.system_prompt))
    today = {tool.name: _told(tool) for tool in agent.tools.definitions()}
    for tool in map(_told, recorded.tools):
        if (now := today.get(tool.name)) is None:
            parts.append(f"tool {tool.name!r}:\n- it is there\n+ the agent has no such tool")
        elif now != tool:
            parts.append(f"tool {tool.name!r}:\n" + _diff(_json(tool), _json(now)))
    parts += [
        f"tool {name!r}:\n- there is no such tool\n+ the agent has it"
        for name in today
        if name not in ever
    ]
    if not parts:
        names = [tool.name for tool in recorded.tools]
        kept = (
            [] if before is None else [tool.name for tool in before.tools if tool in recorded.tools]
        )
        ordered = [*kept, *(name for name in today if name in names and name not in kept)]
        if ordered != names:
            parts.append(f"order of the tools:\n- {', '.join(names)}\n+ {', '.join(ordered)}")
    return "\n".join(parts)


def _told(tool: ev.ToolDefinition) -> ev.ToolDefinition:
    """Return the part of a definition that the model sees."""
    return (
        msgspec.structs.replace(tool, executor="", parallel=False)
        if tool.executor or tool.parallel
        else tool
    )


def _messages_differ(request: Request, shown: int) -> str:
    """The head is the same, the messages are not: how they were written before is not recorded, so
    today's form of the new ones is shown."""
    new = request.transcript.items[shown:]
    names = {tool.name: tool.wire_name for tool in request.head.tools}
    alone = Transcript(list(new)).fragments(request.wire, names, request.head.model)
    lines = [
        _json(message)
        for fragment in alone
        for message in msgspec.json.decode(b"[" + fragment + b"]")
    ]
    told = (
        "its messages are written in another way than when this was recorded; these are new since"
        " the request before, as of today:"
    )
    return "\n".join([told, *(f"+ {line}" for text in lines for line in text.splitlines())])


def _diff(recorded: str, today: str) -> str:
    lines = difflib.unified_diff(
        recorded.splitlines(), today.splitlines(), "recorded", "today", lineterm="", n=2
    )
    return "\n".join(list(lines)[2:]) or "(they differ in white space at line ends alone)"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _short(text: str) -> str:
    lines = text.splitlines()
    return (
        text
        if len(lines) <= _LONGEST
        else "\n".join([*lines[:_LONGEST], f"... and {len(lines) - _LONGEST} lines more"])
    )
