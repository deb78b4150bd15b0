"""Which conversation a chat request goes on with: found by its history, forked, or made; told what is new, and set going."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.form import ToolForm
from holdfast.content import ToolResult
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.server.forms import builtin_names, with_tools
from holdfast.server.host import Host
from holdfast.server.openai import Progress, Published, Turn, history_events, own_id
from holdfast.server.shapes import CreateRequest, ForkRequest

RUNNER = "chat-completions"  # who returns the results of a client's tools

_AGAIN = 3600.0  # seconds for which a turn that was broken off goes on if it is asked for again
_NO_RESULT = "the client gave no result."

_GONE_ON = (ev.Message, ev.Assistant, ev.ToolCallStarted, ev.ToolResult, ev.Decision)


class Place(NamedTuple):
    """A conversation, and the seq after which the turn begins. Up to `since` it may have rested, and goes on; `run`: it is to be set going."""

    id: str
    seq: int
    since: int = 0
    run: bool = True


def begin(host: Host, tenant: str, agent: Published, turn: Turn) -> Place:
    """The conversation of a turn, told what is new; `host.run` sets it going, and `leave` ends waiting for it. Blocks. Raises what `Host` raises."""
    return _joined(host, tenant, turn) or _continued(host, tenant, agent, turn) or _begun(host, tenant, agent, turn)


def remember(host: Host, tenant: str, place: Place, turn: Turn, progress: Progress) -> None:
    """Know the conversation again by what the client will send next. While it has calls to run, nothing goes on without it. Blocks."""
    if not place.run:
        return
    rows = host.chats.rows
    with host.chats.turn(tenant, place.id):
        rows.keep(tenant, turn.digest(progress.as_sent_back()), place.id, progress.seq)
        rows.end(tenant, turn.asked, place.id, keep=bool(turn.results))
        if progress.calls and not _gone_on(host.read(tenant, place.id, progress.seq)):
            host.obey(tenant, place.id, cmd.Pause())


def forget(host: Host, tenant: str, place: Place, turn: Turn) -> None:
    """The turn failed: asked for again it is another one. Blocks."""
    if place.run:
        host.chats.rows.end(tenant, turn.asked, place.id, keep=False)


def leave(host: Host, tenant: str, place: Place, done: bool) -> None:
    """A client waits no longer. If the turn is not over and nobody else waits for it, it is paused. Blocks."""
    with host.chats.turn(tenant, place.id):
        if not host.chats.leave(tenant, place.id) and not done and place.run:
            host.obey(tenant, place.id, cmd.Interrupt())


def _joined(host: Host, tenant: str, turn: Turn) -> Place | None:
    """The same turn, which was asked for before: one that brought results of tools, or one that was broken off and that nobody waits for."""
    found = host.chats.rows.asked(tenant, turn.asked)
    if found is None:
        return None
    id = found.conversation
    with host.chats.turn(tenant, id):
        try:
            state = host.state(tenant, id)
        except ConversationNotFound:
            return None
        if found.answered:
            host.chats.enter(tenant, id)
            return Place(id, found.seq, state.last_seq, run=False)
        if not turn.results and (host.chats.waiting(tenant, id) or time.time() - found.at > _AGAIN):
            return None
        said = [event for event in state.events[found.seq :] if isinstance(event, ev.Message) and event.sender == "user"]
        if [event.content for event in said] != turn.said[: len(said)]:
            return None  # others went on with it
        return _told(host, tenant, turn, Place(id, found.seq), state, len(said))


def _continued(host: Host, tenant: str, agent: Published, turn: Turn) -> Place | None:
    """The conversation that gave the last answer; a fork of it if it has gone on otherwise since."""
    known = host.chats.rows.known(tenant, turn.digest()) if turn.history else None
    if known is None:
        return None
    id, seq = known
    with host.chats.turn(tenant, id):
        if not turn.results or host.chats.rows.asked(tenant, turn.asked) is None:
            return _continued_alone(host, tenant, agent, turn, id, seq)
    return _joined(host, tenant, turn)  # another request with these results was faster


def _continued_alone(host: Host, tenant: str, agent: Published, turn: Turn, id: str, seq: int) -> Place | None:
    try:
        state = host.state(tenant, id)
    except ConversationNotFound:
        return None
    begun, open = _open_at(state.events[:seq])
    if not all(own_id(call_id) in open for call_id in turn.results):
        return None  # the ids are not of this server
    if not _gone_on(state.events[seq:]) and (open or state.status is not ConversationStatus.RUNNING):
        _refit(host, tenant, agent, turn, id)
        return _told(host, tenant, turn, Place(id, seq), state)
    at = begun - 1 if open else seq
    forked = host.chats.with_room(tenant, lambda: host.fork(tenant, id, ForkRequest(seq=at)))
    host.chats.rows.made(tenant, forked.id, b"")
    if open:
        host.chats.append(tenant, forked.id, _answered(state.events[at:seq], open, turn))
    _refit(host, tenant, agent, turn, forked.id)
    return _told_first(host, tenant, turn, forked.id)


def _begun(host: Host, tenant: str, agent: Published, turn: Turn) -> Place:
    """A conversation that says what the history says."""
    events = history_events(turn, agent.name)
    made = _made(host, tenant, agent, turn)
    host.chats.rows.made(tenant, made, turn.setting)
    if events:
        host.seed(tenant, made, events)
    return _told_first(host, tenant, turn, made)


def _told_first(host: Host, tenant: str, turn: Turn, id: str) -> Place:
    with host.chats.turn(tenant, id):
        state = host.state(tenant, id)
        return _told(host, tenant, turn, Place(id, state.last_seq), state)


def _told(host: Host, tenant: str, turn: Turn, place: Place, state: ConversationState, heard: int = 0) -> Place:
    """Give a conversation the new messages and results of a turn, without the first `heard` messages, which it has.

    A call that the client was to run and sends no result of is settled as not run. A client that sends no result at all has moved on: then the
    calls behind those are settled as well.
    """
    id = place.id
    host.chats.rows.ask(tenant, turn.asked, id, place.seq)
    open = [offer.call.id for offer in state.offers]
    given = {call_id: result for wire, result in turn.results.items() if (call_id := own_id(wire)) in open}
    if given:  # it is taken while the conversation is at work, and handed over while it is not: all of this comes before what the model is asked next
        if state.status is ConversationStatus.PAUSED:
            host.obey(tenant, id, cmd.Resume())
        for call_id in given:
            host.obey(tenant, id, cmd.Claim(call_id, RUNNER))
        host.obey(tenant, id, cmd.Pause())
        for call_id, result in given.items():
            host.obey(tenant, id, cmd.Return(call_id, RUNNER, result))
    for call_id in open if given else _calls_of_clients(state):
        if call_id not in given:
            host.obey(tenant, id, cmd.Settle(call_id, _NO_RESULT, "cancelled"))
    for content in turn.said[heard:]:
        host.obey(tenant, id, cmd.Send(content))
    state = host.state(tenant, id)
    host.chats.enter(tenant, id)
    rests = next((event.seq for event in reversed(state.events) if isinstance(event, ev.Status)), 0)
    waits = state.status is ConversationStatus.WAITING_FOR_CONFIRMATION  # still: that is to be told
    return place._replace(since=rests - 1 if waits else state.last_seq)


def _calls_of_clients(state: ConversationState) -> list[str]:
    """Return the ids of all open calls that clients run and that wait for no decision, those behind others too."""
    head = next((event for event in reversed(state.events) if isinstance(event, ev.Agent)), None)
    names = {tool.name for tool in head.tools if tool.executor == "client"} if head is not None else set[str]()
    undecided = {pending.call.id for pending in state.pending_confirmations}
    return [call.id for call in state.pending_calls if call.name in names and call.id not in undecided]


def _gone_on(events: Sequence[ev.AnyEvent]) -> bool:
    return any(isinstance(event, _GONE_ON) for event in events)


def _open_at(events: Sequence[ev.AnyEvent]) -> tuple[int, list[str]]:
    """Where the last answer of a journal stands, and its calls without a result."""
    done: set[str] = set()
    for event in reversed(events):
        if isinstance(event, ev.ToolResult):
            done.add(event.call_id)
        elif isinstance(event, ev.Assistant):
            return event.seq, [call.id for call in event.calls if call.id not in done]
    return 0, []


def _answered(events: Sequence[ev.AnyEvent], open: Sequence[str], turn: Turn) -> list[ev.AnyEvent]:
    """An answer with its calls, all of which have results, at a pause: a fork that has them was never at work on them."""
    now, found = datetime.now(UTC), list(events)
    given = {own_id(call_id): result for call_id, result in turn.results.items()}
    for call_id in open:
        result = given.get(call_id) or ToolResult.failure(f"Not run: {_NO_RESULT}", "cancelled")
        found.append(ev.ToolResult(seq=found[-1].seq + 1, id=f"r{call_id}", timestamp=now, call_id=call_id, result=result))
    return [*found, ev.Status(seq=found[-1].seq + 1, id="paused", timestamp=now, status="paused", reason="forked")]


# --- what it is made with ------------------------------------------------------------------------


def _form(agent: Published, turn: Turn) -> dict[str, Any]:
    """The agent's form with the client's instructions, which stand for themselves whatever is in them, and the names of its tools."""
    form: dict[str, Any] = dict(agent.form.mapping)
    if turn.instructions:
        form["system_prompt_extensions"] = [*form.get("system_prompt_extensions", []), turn.instructions.replace("${", "$${")]
    return with_tools(form, [*builtin_names(form), *(tool.name for tool in turn.offers)]) if turn.offers else form


def _tools(agent: Published, turn: Turn) -> tuple[list[ToolForm], Mapping[str, str]]:
    return [*agent.tools, *turn.offers], {tool.name: tool.module for tool in agent.tools if tool.module}


def _refit(host: Host, tenant: str, agent: Published, turn: Turn, id: str) -> None:
    """The instructions and tools of the latest request hold."""
    if host.chats.rows.setting(tenant, id) != turn.setting:
        tools, modules = _tools(agent, turn)
        host.chats.refit(tenant, id, _form(agent, turn), tools, modules, turn.setting)


def _made(host: Host, tenant: str, agent: Published, turn: Turn) -> str:
    tools, modules = _tools(agent, turn)
    request = CreateRequest(
        agent=_form(agent, turn), secrets=dict(agent.form.secrets), tools=tools, tool_module_qualnames=dict(modules), client_tools=True, deltas=True
    )  # fmt: skip
    made = host.chats.with_room(tenant, lambda: host.create(tenant, request))
    ours = [tool.name for tool in made.tools if tool.executor != "server" and all(tool.name != offer.name for offer in turn.offers)]
    if ours:
        host.delete(tenant, made.id)
        raise ConfigurationError(
            f"The agent {agent.name!r} has tools that this server may not run: {', '.join(ours)}. Its operator allows them with --allow-tools."
        )
    return made.id
