"""Finds the conversation for a chat request: one with the same history, a fork of it, or a new
one. Sends it the new messages and starts its run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm
from holdfast.content import ToolResult
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.errors import ConversationNotFound, Denied
from holdfast.server.forms import builtin_names, with_tools
from holdfast.server.host import Host
from holdfast.server.openai import ChatTurn, Published, TurnProgress, history_events, own_id
from holdfast.server.shapes import CreateRequest, ForkRequest

RUNNER = "chat-completions"  # the runner's name in results of a client's tools

_RESUME_SECONDS = 3600.0  # a repeated request resumes an interrupted turn within this time
_NO_RESULT = "the client gave no result."

# Events which show that a conversation has continued.
_CONTINUING = (
    ev.MessageAdded,
    ev.AssistantReplied,
    ev.ToolCallStarted,
    ev.ToolCallFinished,
    ev.DecisionMade,
)


class ChatPlace(NamedTuple):
    """A conversation and the seq after which the turn begins. Statuses up to `since` belong to
    an earlier rest. `run` is True if the run must be started."""

    id: str
    seq: int
    since: int = 0
    run: bool = True


def begin(host: Host, tenant: str, agent: Published, turn: ChatTurn) -> ChatPlace:
    """Return the conversation of a turn after sending it the new messages. `host.run` starts the
    run, and `leave` ends waiting for it. Blocks. Raises the errors of `Host`."""
    return (
        _joined(host, tenant, turn)
        or _continued(host, tenant, agent, turn)
        or _begun(host, tenant, agent, turn)
    )


def remember(
    host: Host, tenant: str, place: ChatPlace, turn: ChatTurn, progress: TurnProgress
) -> None:
    """Store the hash by which the client's next request is recognised. A conversation whose
    client must run calls is paused until then. Blocks."""
    if not place.run:
        return
    rows = host.chats.rows
    with host.chats.turn(tenant, place.id):
        rows.store_history(tenant, turn.digest(progress.as_sent_back()), place.id, progress.seq)
        rows.end_turn(tenant, turn.asked, place.id, keep=bool(turn.results))
        if progress.calls and not _has_continued(host.read(tenant, place.id, progress.seq)):
            host.execute(tenant, place.id, cmd.Pause())


def forget(host: Host, tenant: str, place: ChatPlace, turn: ChatTurn) -> None:
    """Forget a failed turn, so that a repeated request starts a new one. Blocks."""
    if place.run:
        host.chats.rows.end_turn(tenant, turn.asked, place.id, keep=False)


def leave(host: Host, tenant: str, place: ChatPlace, done: bool) -> None:
    """End a client's wait. If the turn is not over and no other client waits for it, interrupt
    it. Blocks."""
    with host.chats.turn(tenant, place.id):
        if not host.chats.leave(tenant, place.id) and not done and place.run:
            host.execute(tenant, place.id, cmd.Interrupt())


def _joined(host: Host, tenant: str, turn: ChatTurn) -> ChatPlace | None:
    """Return the place of an earlier request for the same turn: one that brought tool results,
    or one that was broken off and for which no client waits."""
    found = host.chats.rows.find_turn(tenant, turn.asked)
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
            return ChatPlace(id, found.seq, state.last_seq, run=False)
        if not turn.results and (
            host.chats.waiting(tenant, id) or time.time() - found.at > _RESUME_SECONDS
        ):
            return None
        said = [
            event
            for event in state.events[found.seq :]
            if isinstance(event, ev.MessageAdded) and event.sender == "user"
        ]
        if [event.content for event in said] != turn.said[: len(said)]:
            return None  # other requests have continued the conversation
        return _sent(host, tenant, turn, ChatPlace(id, found.seq), state, len(said))


def _continued(host: Host, tenant: str, agent: Published, turn: ChatTurn) -> ChatPlace | None:
    """Return the conversation that gave the last answer, or a fork of it if it has continued
    differently since."""
    known = host.chats.rows.find_history(tenant, turn.digest()) if turn.history else None
    if known is None:
        return None
    id, seq = known
    with host.chats.turn(tenant, id):
        if not turn.results or host.chats.rows.find_turn(tenant, turn.asked) is None:
            return _continued_alone(host, tenant, agent, turn, id, seq)
    return _joined(host, tenant, turn)  # another request with these results was first


def _continued_alone(
    host: Host, tenant: str, agent: Published, turn: ChatTurn, id: str, seq: int
) -> ChatPlace | None:
    try:
        state = host.state(tenant, id)
    except ConversationNotFound:
        return None
    begun, open = _open_at(state.events[:seq])
    if not all(own_id(call_id) in open for call_id in turn.results):
        return None  # the ids are not from this server
    if not _has_continued(state.events[seq:]) and (
        open or state.status is not ConversationStatus.RUNNING
    ):
        _refit(host, tenant, agent, turn, id)
        return _sent(host, tenant, turn, ChatPlace(id, seq), state)
    at = begun - 1 if open else seq
    forked = host.chats.with_room(tenant, lambda: host.fork(tenant, id, ForkRequest(seq=at)))
    host.chats.rows.add(tenant, forked.id, b"")
    if open:
        host.chats.append(tenant, forked.id, _answered(state.events[at:seq], open, turn))
    _refit(host, tenant, agent, turn, forked.id)
    return _sent_first(host, tenant, turn, forked.id)


def _begun(host: Host, tenant: str, agent: Published, turn: ChatTurn) -> ChatPlace:
    """Create a conversation with the content of the history."""
    events = history_events(turn, agent.name)
    made = _made(host, tenant, agent, turn)
    host.chats.rows.add(tenant, made, turn.setting)
    if events:
        host.seed(tenant, made, events)
    return _sent_first(host, tenant, turn, made)


def _sent_first(host: Host, tenant: str, turn: ChatTurn, id: str) -> ChatPlace:
    with host.chats.turn(tenant, id):
        state = host.state(tenant, id)
        return _sent(host, tenant, turn, ChatPlace(id, state.last_seq), state)


def _sent(
    host: Host,
    tenant: str,
    turn: ChatTurn,
    place: ChatPlace,
    state: ConversationState,
    heard: int = 0,
) -> ChatPlace:
    """Send a conversation the new messages and results of a turn, except the first `heard`
    messages, which it already has.

    A call for which the client sends no result is settled as not run. A client that sends no
    result at all has moved on; then the calls behind those are settled as well.
    """
    id = place.id
    host.chats.rows.begin_turn(tenant, turn.asked, id, place.seq)
    open = [offer.call.id for offer in state.offers]
    results = {
        call_id: result
        for wire, result in turn.results.items()
        if (call_id := own_id(wire)) in open
    }
    # Calls can be claimed only while the conversation runs. Results are returned while it is
    # paused, so that all of them precede the next request to the model.
    if results:
        if state.status is ConversationStatus.PAUSED:
            host.execute(tenant, id, cmd.Resume())
        for call_id in results:
            host.execute(tenant, id, cmd.Claim(call_id, RUNNER))
        host.execute(tenant, id, cmd.Pause())
        for call_id, result in results.items():
            host.execute(tenant, id, cmd.Return(call_id, RUNNER, result))
    for call_id in open if results else _calls_of_clients(state):
        if call_id not in results:
            host.execute(tenant, id, cmd.Settle(call_id, _NO_RESULT, "cancelled"))
    for content in turn.said[heard:]:
        host.execute(tenant, id, cmd.Send(content))
    state = host.state(tenant, id)
    host.chats.enter(tenant, id)
    rests = next(
        (event.seq for event in reversed(state.events) if isinstance(event, ev.StatusChanged)), 0
    )
    # A conversation that still waits for a decision is reported to the client.
    waits = state.status is ConversationStatus.WAITING_FOR_CONFIRMATION
    return place._replace(since=rests - 1 if waits else state.last_seq)


def _calls_of_clients(state: ConversationState) -> list[str]:
    """Return the ids of all open calls that clients run and that wait for no decision, including
    calls behind others."""
    head = next(
        (event for event in reversed(state.events) if isinstance(event, ev.AgentConfigured)), None
    )
    names = (
        {tool.name for tool in head.tools if tool.executor == "client"}
        if head is not None
        else set[str]()
    )
    undecided = {pending.call.id for pending in state.pending_confirmations}
    return [
        call.id for call in state.pending_calls if call.name in names and call.id not in undecided
    ]


def _has_continued(events: Sequence[ev.AnyEvent]) -> bool:
    return any(isinstance(event, _CONTINUING) for event in events)


def _open_at(events: Sequence[ev.AnyEvent]) -> tuple[int, list[str]]:
    """Return the seq of a journal's last answer, and its calls without a result."""
    done: set[str] = set()
    for event in reversed(events):
        if isinstance(event, ev.ToolCallFinished):
            done.add(event.call_id)
        elif isinstance(event, ev.AssistantReplied):
            return event.seq, [call.id for call in event.calls if call.id not in done]
    return 0, []


def _answered(
    events: Sequence[ev.AnyEvent], open: Sequence[str], turn: ChatTurn
) -> list[ev.AnyEvent]:
    """Return an answer with results for all its calls, followed by a pause. A fork with these
    events never runs the calls."""
    now, found, seq = datetime.now(UTC), list(events), events[-1].seq
    results = {own_id(call_id): result for call_id, result in turn.results.items()}
    for call_id in open:
        seq += 1
        result = results.get(call_id) or ToolResult.failure(f"Not run: {_NO_RESULT}", "cancelled")
        about: dict[str, Any] = {"call_id": call_id, "result": result}
        found.append(ev.ToolCallFinished(seq=seq, id=f"r{call_id}", timestamp=now, **about))
    about = {"status": "paused", "reason": "forked"}
    return [*found, ev.StatusChanged(seq=seq + 1, id="paused", timestamp=now, **about)]


# --- agent and tools ---


def _form(agent: Published, turn: ChatTurn) -> dict[str, Any]:
    """Return the agent's form with the client's instructions, taken literally, and the names of
    the client's tools."""
    form: dict[str, Any] = dict(agent.form.mapping)
    if turn.instructions:
        form["system_prompt_extensions"] = [
            *form.get("system_prompt_extensions", []),
            turn.instructions.replace("${", "$${"),
        ]
    return (
        with_tools(form, [*builtin_names(form), *(tool.name for tool in turn.offers)])
        if turn.offers
        else form
    )


def _tools(agent: Published, turn: ChatTurn) -> tuple[list[ToolForm], Mapping[str, str]]:
    return [*agent.tools, *turn.offers], {
        tool.name: tool.module for tool in agent.tools if tool.module
    }


def _refit(host: Host, tenant: str, agent: Published, turn: ChatTurn, id: str) -> None:
    """Apply the instructions and tools of the latest request."""
    if host.chats.rows.setting(tenant, id) != turn.setting:
        tools, modules = _tools(agent, turn)
        host.chats.refit(tenant, id, _form(agent, turn), tools, modules, turn.setting)


def _made(host: Host, tenant: str, agent: Published, turn: ChatTurn) -> str:
    tools, modules = _tools(agent, turn)
    request = CreateRequest(
        agent=_form(agent, turn),
        secrets=dict(agent.form.secrets),
        tools=tools,
        tool_module_qualnames=dict(modules),
        client_tools=True,
        deltas=True,
    )
    made = host.chats.with_room(tenant, lambda: host.create(tenant, request))
    refused = [
        tool.name
        for tool in made.tools
        if tool.executor != "server" and all(tool.name != offer.name for offer in turn.offers)
    ]
    if refused:
        host.delete(tenant, made.id)
        raise Denied(
            f"This server may not run these tools of the agent {agent.name!r}:"
            f" {', '.join(refused)}. Its operator can allow them with --allow-tools."
        )
    return made.id
