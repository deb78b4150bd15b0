"""Finds the conversation for a chat request: one with the same history, a fork of it, or a new
one. Begins the turn with the new messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation import ConversationStatus
from holdfast.conversation.fold import Fold, fold
from holdfast.conversation.rests import result_commands
from holdfast.errors import ConversationNotFound
from holdfast.server.chats import ChatRecords
from holdfast.server.host import Host
from holdfast.server.hosted import AttendedTurn, HostedDoor
from holdfast.server.openai import ChatTurn, Published, history_events, own_id
from holdfast.server.openai_answers import TurnProgress
from holdfast.server.shapes import ForkRequest

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


class BegunChat(NamedTuple):
    """A turn that has begun. `before` is the fold before its first event, and statuses up to the
    event `since` are of an earlier rest. `is_own` is False if another request has begun it."""

    id: str
    before: Fold
    since: int
    turn: AttendedTurn
    is_own: bool = True

    async def leave(self) -> None:
        await self.turn.leave()


class HostedTurn(msgspec.Struct, frozen=True):
    """One turn of a tenant's chat with a published agent, for a client on an event loop. All
    methods block and raise the errors of `Host`."""

    host: Host
    door: HostedDoor
    tenant: str
    agent: Published
    turn: ChatTurn
    loop: asyncio.AbstractEventLoop
    streams: bool = True  # False if the client waits for the whole answer

    @property
    def rows(self) -> ChatRecords:
        return self.host.chats.rows

    def begin(self) -> BegunChat:
        """Find or make the conversation of the turn, and begin it with the new messages."""
        return self._join() or self._continue() or self._create()

    def remember(self, chat: BegunChat, progress: TurnProgress) -> None:
        """Store the hash by which the client's next request is recognised."""
        if chat.is_own:
            turn = self.turn
            digest, keep = turn.answered(progress.as_sent_back()), bool(turn.results)
            self.rows.store_history(
                self.tenant, digest, chat.id, progress.seq, turn.request_digest, keep
            )

    def forget(self, chat: BegunChat) -> None:
        """Forget a failed turn, so that a repeated request starts a new one."""
        if chat.is_own:
            self.rows.forget_turn(self.tenant, self.turn.request_digest, chat.id)

    def _fold(self, id: str) -> Fold | None:
        """Return the present fold of a conversation, None if it was removed."""
        try:
            return self.host.chats.fold(self.tenant, id)
        except ConversationNotFound:
            return None

    def _join(self) -> BegunChat | None:
        """Return the turn of an earlier, equal request: a request with tool results, or one that
        was broken off and for which no client waits."""
        tenant, turn, chats = self.tenant, self.turn, self.host.chats
        row = self.rows.find_turn(tenant, turn.request_digest)
        if row is None:
            return None
        id = row.conversation
        with chats.turn(tenant, id):
            folded = self._fold(id)
            if folded is None:
                return None
            if row.answered:
                chat = self._attend(id, row.seq, None, ())
                return chat._replace(since=folded.last_seq, is_own=False)
            late = time.time() - row.at > _RESUME_SECONDS
            if not turn.results and (late or chats.waiting(tenant, id)):
                return None
            messages = [
                event.content
                for event in self._events(id, row.seq)
                if isinstance(event, ev.MessageAdded) and event.sender == "user"
            ]
            if messages != turn.user_messages[: len(messages)]:
                return None  # other requests have continued the conversation
            return self._begin_turn(id, row.seq, None, folded, len(messages))

    def _continue(self) -> BegunChat | None:
        """Return the conversation that gave the last answer, or a fork of it if it has continued
        differently since."""
        turn, tenant = self.turn, self.tenant
        history = self.rows.find_history(tenant, turn.past) if turn.history else None
        if history is None:
            return None
        with self.host.chats.turn(tenant, history[0]):
            if not turn.results or self.rows.find_turn(tenant, turn.request_digest) is None:
                return self._continue_alone(*history)
        return self._join()  # another request with these results was first

    def _continue_alone(self, id: str, seq: int) -> BegunChat | None:
        folded, turn, chats = self._fold(id), self.turn, self.host.chats
        if folded is None:
            return None
        continued = any(isinstance(event, _CONTINUING) for event in self._events(id, seq))
        # The calls of the last answer without a result.
        calls_begun, open = 0, [call_id for call_id, item in folded.open.items() if not item.parent]
        if continued:
            calls_begun, open = _open_at(self._events(id, 0, seq))
        if not all(own_id(call_id) in open for call_id in turn.results):
            return None  # the ids are not from this server
        if not continued and (open or folded.status is not ConversationStatus.RUNNING):
            self._refit(id)
            if folded.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
                return self._begin_turn(id, seq, None, folded)
            return self._begin_turn(id, folded.last_seq, folded, folded)
        if not continued:
            calls_begun, open = _open_at(self._events(id, 0, seq))
        at = calls_begun - 1 if open else seq
        fork = ForkRequest(seq=at, title="")  # the events that follow keep their seqs
        forked = chats.with_room(self.tenant, lambda: self.host.fork(self.tenant, id, fork))
        self.rows.add(self.tenant, forked.id, b"")
        if open:
            events = self._events(id, at, seq)
            chats.append(self.tenant, forked.id, _with_results(events, open, turn))
        self._refit(forked.id)
        return self._begin_first_turn(forked.id)

    def _create(self) -> BegunChat:
        """Create a conversation with the content of the history."""
        events = history_events(self.turn, self.agent.name)
        turn = self.turn
        id = self.door.create(self.agent, tools=turn.offers, instructions=turn.instructions)[1].id
        if events:
            self.host.chats.append(self.tenant, id, events)
        return self._begin_first_turn(id)

    def _begin_first_turn(self, id: str) -> BegunChat:
        with self.host.chats.turn(self.tenant, id):
            folded = self.host.chats.fold(self.tenant, id)
            return self._begin_turn(id, folded.last_seq, folded, folded)

    def _events(self, id: str, after_seq: int, until: int | None = None) -> list[ev.AnyEvent]:
        """Return the events after `after_seq`, up to the event `until` if it is given."""
        return self.door.find(id).events(after_seq, until)

    def _begin_turn(
        self, id: str, seq: int, before: Fold | None, folded: Fold, skip: int = 0
    ) -> BegunChat:
        """Begin the turn after the event `seq` with its new messages and results, except the first
        `skip` messages. A call without a result is settled as not run. A client that sends no
        result at all has moved on; then the calls behind those are settled as well.

        `folded` is the present fold, and `before` that at `seq`, None if it must be read.
        """
        turn = self.turn
        self.rows.begin_turn(self.tenant, turn.request_digest, id, seq)
        results = {own_id(wire): result for wire, result in turn.results.items()}
        commands: list[cmd.Command] = result_commands(folded, results, RUNNER)
        commands += [cmd.Send(content) for content in turn.user_messages[skip:]]
        return self._attend(id, seq, before, commands or [cmd.Resume()])

    def _attend(
        self, id: str, seq: int, before: Fold | None, commands: Sequence[cmd.Command]
    ) -> BegunChat:
        if before is None:
            before = fold(self._events(id, 0, seq))
        attended = self.door.find(id).attend(self.loop, seq, *commands, deltas=self.streams)
        now = attended.fold
        # A conversation that still waits for a decision is reported to the client.
        waits = now.status is ConversationStatus.WAITING_FOR_CONFIRMATION
        since = now.status_seq - 1 if waits else now.last_seq
        return BegunChat(id, before, since, attended)

    # --- agent and tools ---

    def _refit(self, id: str) -> None:
        """Apply the instructions and tools of the latest request."""
        turn = self.turn
        if not self.door.fits(id, turn.setting):
            self.door.refit(id, self.agent, turn.offers, turn.instructions, turn.setting)


def _open_at(events: Sequence[ev.AnyEvent]) -> tuple[int, list[str]]:
    """Return the seq of a journal's last answer, and its calls without a result."""
    done: set[str] = set()
    for event in reversed(events):
        if isinstance(event, ev.ToolCallFinished):
            done.add(event.call_id)
        elif isinstance(event, ev.AssistantReplied):
            return event.seq, [call.id for call in event.calls if call.id not in done]
    return 0, []


def _with_results(
    events: Sequence[ev.AnyEvent], open: Sequence[str], turn: ChatTurn
) -> list[ev.AnyEvent]:
    """Return an answer with results for all its calls, followed by a pause. A fork with these
    events never runs the calls."""
    now, complete, seq = datetime.now(UTC), list(events), events[-1].seq
    results = {own_id(call_id): result for call_id, result in turn.results.items()}
    for call_id in open:
        seq += 1
        result = results.get(call_id) or ToolResult.failure(f"Not run: {_NO_RESULT}", "cancelled")
        about: dict[str, Any] = {"call_id": call_id, "result": result}
        complete.append(ev.ToolCallFinished(seq=seq, id=f"r{call_id}", timestamp=now, **about))
    about = {"status": "paused", "reason": "forked"}
    return [*complete, ev.StatusChanged(seq=seq + 1, id="paused", timestamp=now, **about)]
