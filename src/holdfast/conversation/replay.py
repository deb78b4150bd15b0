"""Replay: run a journal again with its recorded answers and results, and compare today's requests.

Messages, answers, results, decisions and the set of registered tools stay as recorded. Code
computes the rest again:

| code | its part |
|---|---|
| the agent | its prompt, tool definitions and parameters |
| the view and the wire | the messages of each request |
| `next_action` | the times at which the model is asked |
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent import stuck
from holdfast.agent.agent import Agent
from holdfast.agent.code import functions_of
from holdfast.agent.handoffs import find_agent
from holdfast.agent.limits import Limits
from holdfast.agent.output import REPAIR
from holdfast.agent.view import View
from holdfast.answer import REFUSAL
from holdfast.content import Data
from holdfast.conversation import actions
from holdfast.conversation.actions import Action, CallModel, Nudge, Stop, next_action, nudge_for
from holdfast.conversation.budget import of_tree
from holdfast.conversation.fold import Fold
from holdfast.conversation.run_context import agent_in_force
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import LimitExceeded, OutputInvalid
from holdfast.llm.composite import head_of_route, wires_of
from holdfast.llm.request import Prompt, RequestTarget, make_request, request_hash
from holdfast.llm.transcript import Transcript
from holdfast.llm.vision import without_vision
from holdfast.llm.wires import is_wire, wire
from holdfast.llm.wires.protocol import Wire

_UNLIMITED = Limits(None, None, None, None)
_NUDGES = (stuck.ABOUT, REPAIR)  # prefixes of the `about` of messages that `next_action` caused
_LIMITS = (LimitExceeded.__name__, OutputInvalid.__name__)
_MAX_SHOWN_LINES = 200  # shown lines of a difference


class Difference(Data, frozen=True):
    """The first difference between a replay and its journal: at model request number `request`
    (from 1), or after it.

    `seq` is the event that the journal has there. `text` shows the difference, recorded lines
    marked with `-`, today's with `+`.
    """

    request: int
    seq: int
    text: str

    def __str__(self) -> str:
        return f"request {self.request}, event {self.seq}:\n{self.text}"


class Replay(Data, frozen=True):
    """The result of a replay: the number of compared model requests, how many of them byte by byte,
    and the first difference.

    Byte comparison uses the request's hash, which only Holdfast's own models record.
    """

    requests: int = 0
    hashed: int = 0
    difference: Difference | None = None

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        return (
            f"{self.requests} model requests replayed, {self.hashed} of them compared to the last"
            " byte: all the same"
        )


class ReplayedRequest(msgspec.Struct, frozen=True):
    """One model request of a replay. Valid until the next one: they share one transcript."""

    number: int
    answer: ev.AssistantReplied
    head: ev.AgentConfigured
    transcript: Transcript
    action: Action
    """The action of today's loop at the point where the journal asked the model."""
    own_wires: Mapping[str, Wire] = {}
    """The wires that the program wrote, by name: those of the agent's models."""

    @property
    def is_known(self) -> bool:
        """True if the wire of the recorded answer is at hand."""
        return self.answer.wire in self.own_wires or is_wire(self.answer.wire)

    @property
    def wire(self) -> Wire:
        """The recorded wire; OpenAI's Chat Completions if it is unknown."""
        name = self.answer.wire
        if own := self.own_wires.get(name):
            return own
        name = name if is_wire(name) else "openai_chat"
        return wire(name, self._routed_head.parameters)

    @property
    def _routed_head(self) -> ev.AgentConfigured:
        return head_of_route(self.head, self.answer.route, self.transcript)

    @property
    def body(self) -> bytes:
        """The bytes that the recorded model would be sent today."""
        head = self._routed_head
        target = RequestTarget(self.wire, head.model, head.parameters)
        return make_request(target, Prompt(self.transcript, head=head)).body

    @property
    def hash(self) -> str:
        """The `Assistant.request_hash` of today's request."""
        head = self._routed_head
        return request_hash(self.wire, head.model, self.transcript, head)


def requests(
    events: Sequence[ev.AnyEvent], agent: Agent | None = None
) -> Iterator[ReplayedRequest]:
    """Yield the model requests of a journal in the form of the present code. Each costs time for
    its new events only.

    The limits are those of the agent in force at each request; none without an agent.
    """
    view, state = View(), Fold()
    position = number = 0
    for event in events:
        if type(event) is not ev.AssistantReplied:
            continue
        new = events[position : event.based_on]
        if any(type(item) is ev.HistoryCondensed and item.changes for item in new):
            view = View.of(events[: event.based_on])
        else:
            for item in new:
                view.feed(item)
        for item in new:
            state.apply(item)
        position = max(position, event.based_on)
        number += 1
        if state.agent is not None and not state.open:
            wires = wires_of(None if agent is None else agent_in_force(agent, state)[1].llm)
            action = _action(agent, state)
            yield ReplayedRequest(number, event, state.agent, view.ready(), action, wires)


def _action(agent: Agent | None, state: Fold, limits: Limits | None = None) -> Action:
    """Return the action of today's loop, by the settings of the agent in force if one is given."""
    if agent is None:
        return next_action(state, _UNLIMITED)
    in_force = agent_in_force(agent, state)[1]
    return next_action(
        state, limits or in_force.limits, None, in_force.stuck, in_force.output_rounds
    )


def replay(events: Sequence[ev.AnyEvent], agent: Agent | None = None) -> Replay:
    """Compare every model request and end of a run with today's code, to the first difference."""
    if agent is None:
        return _replay(events, None)
    heads = {event.name: event for event in events if isinstance(event, ev.AgentConfigured)}
    agents: list[Agent] = []
    try:
        for name in ("", *(name for name in heads if name)):
            if (one := find_agent(agent, name)) is not None:
                one.connections.opened()
                agents.append(one)
                one.connections.connect(
                    [tool.name for tool in heads[name].tools] if name in heads else ()
                )
        return _replay(events, agent)
    finally:
        for one in agents:
            one.connections.closed()


def _replay(events: Sequence[ev.AnyEvent], agent: Agent | None) -> Replay:
    count = hashed = 0
    damaged = next((event for event in events if isinstance(event, ev.DamagedEvent)), None)
    end, otherwise = _ends(events, agent)
    ever: dict[str, _Names] = {}
    for event in events:
        if isinstance(event, ev.AgentConfigured):
            names = ever.setdefault(event.name, _Names(set(), set()))
            names.tools.update([tool.name for tool in event.tools])
            names.functions.update(functions_of(event.tools))
    last_head: ev.AgentConfigured | None = None  # the previous head
    item_count = 0  # items of the transcript in the last equal request
    for request in requests(events, agent):
        answer = request.answer
        if end and end <= answer.seq:
            return Replay(count, hashed, Difference(count, end, otherwise))
        if damaged is not None and damaged.seq <= answer.based_on:
            text = (
                f"- event {damaged.seq} is damaged and cannot be read ({damaged.reason})\n+ no"
                " later request can be made again"
            )
            return Replay(count, hashed, Difference(request.number, damaged.seq, text))
        count, text = request.number, ""
        if not isinstance(request.action, CallModel):
            text = f"- the model is asked\n+ {_describe(request.action)}"
        elif agent is not None and request.head is not last_head:
            text = _head_differs(
                request.head, last_head, agent, ever.get(request.head.name, _Names(set(), set()))
            )
            last_head = request.head
        if not text and answer.request_hash and request.is_known:
            hashed += 1
            if request.hash != answer.request_hash:
                text = _messages_differ(request, item_count)
        text = text or _after(events, answer)
        if text:
            return Replay(count, hashed, Difference(count, answer.seq, _short(text)))
        item_count = len(request.transcript)
    return Replay(count, hashed, Difference(count, end, otherwise) if end else None)


def _after(events: Sequence[ev.AnyEvent], answer: ev.AssistantReplied) -> str:
    """Compare the loop's own message after an empty or cut-off answer."""
    match events[answer.seq] if answer.seq < len(events) else None:
        case ev.MessageAdded(sender="holdfast", about="") as message if (
            message.text != nudge_for(answer)
            # Refusals that earlier versions took for empty answers.
            and answer.stop_reason != REFUSAL
        ):
            return (
                f"After the answer the model is told:\n- {message.text!r}\n+ {nudge_for(answer)!r}"
            )
        case _:  # a journal forked there has no such message
            return ""


def _ends(events: Sequence[ev.AnyEvent], agent: Agent | None) -> tuple[int, str]:
    """Return the seq and text of the first end of a run at which today's loop would not end it; (0,
    "") for none.

    Ends at a limit are compared only with an `agent`.
    """
    state, has_agent = Fold(), agent is not None
    for event in events:
        same, recorded, action = True, "", None
        match event:
            case ev.DamagedEvent():
                break  # the further actions of today's loop are unknown
            case ev.StatusChanged(status=ConversationStatus.FINISHED | ConversationStatus.STUCK):
                action = _action(agent, state, _UNLIMITED)
                recorded = f"the run is over: {event.status}"
                same = isinstance(action, Stop) and action.status == event.status
                # The stuck settings are unknown here if the model was nudged first.
                nudged = not has_agent and state.recent.nudged is not None
                same = same or (nudged and event.status == ConversationStatus.STUCK)
            case ev.MessageAdded(sender="holdfast") if has_agent and event.about.startswith(
                _NUDGES
            ):
                action, recorded = _action(agent, state), f"the model is told: {event.text!r}"
                same = action == Nudge(event.about, event.text)
            case ev.ErrorRecorded() if has_agent and event.error in _LIMITS and not of_tree(event):
                action, recorded = _action(agent, state), f"the run is over: {event.message}"
                same = isinstance(action, Stop)
            case _:
                pass
        if action is not None and not same:
            return event.seq, f"- {recorded}\n+ {_describe(action)}"
        state.apply(event)
    return 0, ""


def _describe(action: Action) -> str:
    match action:
        case Stop(status, reason, limit, output):
            why = f"the limit of {limit[2]:g} {limit[0]} is reached" if limit else reason or output
            return f"the run is over: {status.value}{why and ': '}{why}"
        case CallModel():
            return "the model is asked"
        case Nudge(_, text):
            return f"the model is told: {text!r}"
        case actions.HandOver(name):
            return f"{name or 'the first agent'} takes over"
        case actions.CondenseHistory():
            return "the conversation is shortened"
        case actions.AwaitEvents():
            return "nothing is done"
        case actions.RunCalls(calls) | actions.RecoverCalls(calls):
            return f"calls are run: {', '.join(call.name for call in calls)}"


class _Names(NamedTuple):
    """The names that the `AgentConfigured` events of one agent have in a journal."""

    tools: set[str]
    functions: set[str]  # of scripts


def _head_differs(
    recorded: ev.AgentConfigured, before: ev.AgentConfigured | None, agent: Agent, ever: _Names
) -> str:
    """Return the differences between the agent and an `AgentConfigured` event. The journal decides
    which tools existed, the agent their definitions."""
    parts: list[str] = []
    target = find_agent(agent, recorded.name)
    if target is None:
        return f"agent:\n- {recorded.name}\n+ the agent has no handoff of that name"
    agent = target
    if agent.llm.model != recorded.model:
        parts.append(f"model:\n- {recorded.model}\n+ {agent.llm.model}")
    recorded_parameters = without_vision(recorded.parameters)
    parameters = without_vision(agent.llm.parameters())
    if parameters != recorded_parameters:
        parts.append("parameters:\n" + _diff(_json(recorded_parameters), _json(parameters)))
    if agent.system_prompt != recorded.system_prompt:
        parts.append("system prompt:\n" + _diff(recorded.system_prompt, agent.system_prompt))
    code = agent.code
    if code is None:
        definitions = agent.tool_definitions()
    else:
        definitions = code.shown_then(agent.tools, recorded.tools, ever.functions)
    today = {tool.name: _model_part(tool) for tool in definitions}
    for tool in map(_model_part, recorded.tools):
        if (now := today.get(tool.name)) is None:
            parts.append(f"tool {tool.name!r}:\n- it is there\n+ the agent has no such tool")
        elif now != tool:
            parts.append(f"tool {tool.name!r}:\n" + _diff(_json(tool), _json(now)))
    parts += [
        f"tool {name!r}:\n- there is no such tool\n+ the agent has it"
        for name in today
        if name not in ever.tools
    ]
    if not parts:
        names = [tool.name for tool in recorded.tools]
        earlier = () if before is None else before.tools
        common = [tool.name for tool in earlier if tool in recorded.tools]
        ordered = [*common, *(name for name in today if name in names and name not in common)]
        if ordered != names:
            parts.append(f"order of the tools:\n- {', '.join(names)}\n+ {', '.join(ordered)}")
    return "\n".join(parts)


def _model_part(tool: ev.ToolDefinition) -> ev.ToolDefinition:
    return replace(tool, executor="", parallel=False)


def _messages_differ(request: ReplayedRequest, item_count: int) -> str:
    """Return the new messages in today's form, for requests whose heads are equal. Their
    recorded form is unknown."""
    new = request.transcript.items[item_count:]
    names = {tool.name: tool.wire_name for tool in request.head.tools}
    alone = Transcript(list(new)).fragments(request.wire, names, request.head.model)
    lines = [
        _json(message)
        for fragment in alone
        for message in msgspec.json.decode(b"[" + fragment + b"]")
    ]
    heading = (
        "its messages are encoded differently than when it was recorded; these are new since the"
        " previous request, in today's form:"
    )
    return "\n".join([heading, *(f"+ {line}" for text in lines for line in text.splitlines())])


def _diff(recorded: str, today: str) -> str:
    lines = difflib.unified_diff(
        recorded.splitlines(), today.splitlines(), "recorded", "today", lineterm="", n=2
    )
    return "\n".join(list(lines)[2:]) or "(only white space at line ends differs)"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _short(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _MAX_SHOWN_LINES
    if more <= 0:
        return text
    return "\n".join([*lines[:_MAX_SHOWN_LINES], f"... and {more} lines more"])
