"""The children to which one conversation has given work. The children are watched in the
background, their outcomes are posted, and they continue after a crash or an interrupt."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.delegation import Delegates
from holdfast.commands import Command, Send
from holdfast.content import TextContent, ToolCall
from holdfast.conversation.delegation_state import (
    ENDED,
    RESUMED,
    STOPPED,
    ChildOutcome,
    DelegatedChild,
    children_of,
    effective_status,
    ids_of,
)
from holdfast.conversation.isolation import ChildFolders
from holdfast.conversation.journal import Journal
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import ConversationClosed, HoldfastError, StoreError, ToolError
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.local import LocalRuntime
from holdfast.store import Summary
from holdfast.store.namespaces import namespace_of

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation
    from holdfast.tools import ToolContext

_S = ConversationStatus

# Events of a child that another process owns do not reach this one; so often it is looked up.
FOREIGN_POLL_SECONDS = 0.25
CLOSE_SECONDS = 10.0  # seconds that a message waits for a closing child


def tool_refusal(text: str, kind: str = "not_found") -> ToolError:
    """Return the error of a call that asks for something unknown or forbidden."""
    return ToolError(text, kind, retryable=False)


class DelegatedChildren(ObjectStruct):
    """The children of one conversation. Each in the background has a thread that waits for its end.
    Thread-safe."""

    _context: RunContext
    _journal: Journal
    _call_context: Callable[[ToolCall], ToolContext]
    _deliver: Callable[[Command, str], None]  # posts a command to the parent and carries it out
    _new_conversation: Callable[..., Conversation]
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _background: dict[str, threading.Thread] = {}
    # the children of this and earlier owners, by id
    _delegated: dict[str, DelegatedChild] | None = None
    # places of children that are about to start in the background
    _places: set[object] = set()
    # number of callers that wait for a child's result, by child
    _awaited: dict[str, int] = {}
    # those of them that ended without a message about it
    _unreported: set[str] = set()
    # outcomes of children that others own, each with its last event
    _outcome_cache: dict[str, tuple[int, ChildOutcome]] = {}
    # children to which a call of this process gives further work
    _resuming: set[str] = set()
    _folders: ChildFolders | None = None  # made with the first child that has a folder of its own
    _attached: list[Delegates] = []

    @property
    def id(self) -> str:
        return self._journal.id

    # --- the children by id ---

    def all(self) -> dict[str, DelegatedChild]:
        """Return the delegated children by id; read from the journal once."""
        with self._lock:
            if self._delegated is not None:
                return self._delegated
        journal = self._journal
        with journal.lock:
            events = list(journal.events) if journal.fold.assistant is not None else []
        children = children_of(self.id, events)
        with self._lock:
            self._delegated = children if self._delegated is None else self._delegated
            return self._delegated

    def record(self, id: str, entry: DelegatedChild) -> None:
        children = self.all()
        with self._lock:
            entry.known_seq = children[id].known_seq if id in children else 0
            children[id] = entry

    def mark_known(self, id: str, seq: int) -> None:
        children = self.all()
        with self._lock:
            if id in children:
                children[id].known_seq = max(children[id].known_seq, seq)

    def select(self, ids: Sequence[str]) -> list[str]:
        """Return the named children; by default those in the background. Raises `ToolError`."""
        children = self.all()
        if not ids:
            with self._lock:
                working = list(self._background)
            return working or [
                id for id, one in children.items() if one.background and not one.known_seq
            ]
        for id in ids:
            if id not in children:
                there = ", ".join(children) or "none"
                raise tool_refusal(
                    f"No agent works in the background as {id!r}. There are: {there}."
                )
        return list(dict.fromkeys(ids))

    def names(self, others: Sequence[str] = ()) -> str:
        """Return the sentence that names the children, and the `others` of the same tenant."""
        labels = [f"{id} ({one.agent})" for id, one in self.all().items()]
        above = ["parent"] if others and self._journal.spawned_by else []
        tenant = namespace_of(self.id)
        mine = [id for id in others if id != "parent" and namespace_of(id) == tenant]
        return f"There are: {', '.join([*above, *labels, *mine]) or 'none'}."

    def find_open(self, id: str) -> Conversation | None:
        children = self._context.children
        open_children = [] if children is None else children.open()
        return next((child for child in open_children if child.id == id), None)

    def outcome(self, id: str) -> ChildOutcome:
        agent = self.all()[id].agent if id in self.all() else "an agent"
        child = self.find_open(id)
        if child is not None and child.status is not _S.CLOSED:
            return ChildOutcome.of(child, agent)
        store = self._journal.store
        summaries = store.list([id])
        last = summaries[0].last_seq if summaries else 0
        cached_seq, outcome = self._outcome_cache.get(id, (None, None))
        if outcome is None or cached_seq != last:
            outcome = ChildOutcome.of(self._new_conversation(self._context.agent, store, id), agent)
            self._outcome_cache[id] = last, outcome
        return outcome

    @contextmanager
    def wakeup(
        self, context: ToolContext, ids: Sequence[str]
    ) -> Generator[Callable[[float], object]]:
        """Yield a function that waits up to so many seconds for a change of these children, of this
        conversation, or for the call's cancellation. Changes within the block end it at once."""
        event = threading.Event()
        children = [child for id in ids if (child := self.find_open(id)) is not None]
        foreign = len(children) < len(ids)
        with ExitStack() as forget:
            forget.callback(context.cancelled.add_callback(event.set))
            for journal in (self._journal, *(child.hosting.journal for child in children)):
                forget.callback(journal.lock.listen(event.set))
            yield lambda seconds: event.wait(
                min(seconds, FOREIGN_POLL_SECONDS) if foreign else seconds
            )

    def check_agent(self, delegates: Delegates, id: str) -> None:
        """Raise `ToolError` if the agent of a child no longer exists."""
        entry = self.all()[id]
        if entry.agent not in delegates.by_name:
            raise tool_refusal(
                f"The agent {entry.agent!r} of the conversation {id!r} no longer exists."
            )

    def agent_at(
        self, delegates: Delegates, name: str, id: str
    ) -> tuple[Agent, LocalRuntime | None]:
        """Return the agent of a child, and its runtime if it has a folder of its own. Raises
        `ToolError`."""
        agent = delegates.agent(name)
        assert agent is not None
        kind = delegates.isolation_of(name)
        if kind is None:
            return agent, None
        with self._lock:
            folders = self._folders = self._folders or ChildFolders(self._context.runtime)
        return folders.open(agent, id, kind)

    def report(self, outcome: ChildOutcome) -> str:
        """Return a child's result, with its changes if it has a folder of its own."""
        if self._folders is None or outcome.status not in (*ENDED, _S.PAUSED):
            return outcome.report
        return f"{outcome.report}{self._folders.report(outcome.id)}"

    def close_folder(self, id: str) -> None:
        """End what a closed child left running in its own folder."""
        if self._folders is not None:
            self._folders.close(id)

    # --- claims of calls that are at work ---

    @contextmanager
    def hold(self, id: str, agent: str, bounded: bool) -> Generator[None]:
        """Hold a child that is to go on, for the `with` block. Raises `ToolError` if there is no
        such child, or if it works; a repeated call (not `bounded`) may find it at work."""
        if not id:
            yield
            return
        entry = self.all().get(id)
        if entry is None:
            raise tool_refusal(f"You gave no work to a conversation {id!r}. {self.names()}")
        if entry.agent != agent:
            raise tool_refusal(
                f"The conversation {id!r} is of the agent {entry.agent!r}.", "validation"
            )
        with self._lock:
            if id in self._resuming or (bounded and id in self._background):
                raise tool_refusal(
                    f"{agent} still works in {id}. send_to reaches it, delegate_collect waits for"
                    " it.",
                    "rate_limit",
                )
            self._resuming.add(id)
        try:
            yield
        finally:
            with self._lock:
                self._resuming.discard(id)

    @contextmanager
    def hold_place(self, delegates: Delegates, bounded: bool = True) -> Generator[object]:
        """Hold a place among the running children for the `with` block, or until a thread watches
        the child.

        Raises `ToolError` if `max_running` children run already, unless `bounded` is False: a
        repeated call is not limited again.
        """
        place = object()
        with self._lock:
            working = list(self._background)
        open_children = [child for id in working if (child := self.find_open(id)) is not None]
        paused = {child.id for child in open_children if child.status is _S.PAUSED}
        with self._lock:
            running = len(self._places) + sum(id not in paused for id in self._background)
            if bounded and running >= delegates.max_running:
                raise tool_refusal(
                    f"{running} agents work for this conversation; at most {delegates.max_running}"
                    " may. Collect or cancel one, or wait for an answer.",
                    "rate_limit",
                )
            self._places.add(place)
        try:
            yield place
        finally:
            with self._lock:
                self._places.discard(place)

    @contextmanager
    def hold_messages(self, ids: Sequence[str]) -> Generator[None]:
        """Hold back outcome messages of these children meanwhile; then send those still needed."""
        with self._lock:
            for id in ids:
                self._awaited[id] = self._awaited.get(id, 0) + 1
        try:
            yield
        finally:
            untold: list[str] = []
            with self._lock:
                for id in ids:
                    self._awaited[id] -= 1
                    if not self._awaited[id]:
                        del self._awaited[id]
                        if id in self._unreported:
                            self._unreported.remove(id)
                            untold.append(id)
            for id in untold:
                try:
                    outcome = self.outcome(id)
                    # else the outcome is posted when the conversation is opened again
                    if outcome.status in ENDED and not self._context.closing:
                        self._post(outcome)
                except (ConversationClosed, StoreError) as error:
                    self._journal.log(f"the outcome of its child {id} could not be posted: {error}")

    # --- the background ---

    def watch(self, child: Conversation, agent: str, place: object = None) -> None:
        """Watch a child on a thread that posts its outcome; release the `place` held for it."""
        with self._lock:
            self._places.discard(place)
            if child.id in self._background:
                return
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=lambda: context.run(self._watch_loop, child, agent),
                name=f"holdfast-delegate-{child.id}",
                daemon=True,
            )
            self._background[child.id] = thread
            thread.start()

    def _watch_loop(self, child: Conversation, agent: str) -> None:
        ended = False
        try:
            journal = child.hosting.journal
            while not ended:
                with journal.lock:
                    if child.status is _S.CLOSED:
                        return
                    if not has_ended(child):
                        journal.lock.wait()
                        continue
                self._announce(child, agent)
                ended = close_inbox(child)
            child.close()
        except (ConversationClosed, StoreError) as error:
            self._journal.log(f"the outcome of its child {child.id} could not be posted: {error}")
        finally:
            self.close_folder(child.id)
            self._unwatch(child.id)
        # A sender posts first and then checks for a watcher. Here the watch ends first and the
        # inbox is checked then. One of the two sees the message.
        if ended and not self._context.closing:
            self._open_again(child.id, lambda: self.has_mail(child.id))

    def _announce(self, child: Conversation, agent: str) -> None:
        with self._lock:
            if child.id in self._awaited:
                self._unreported.add(child.id)
                return
        self._post(ChildOutcome.of(child, agent))

    def _post(self, outcome: ChildOutcome) -> None:
        """Post the outcome as a message from the child; once, however often this is called."""
        if outcome.seq <= self.all()[outcome.id].known_seq:
            return
        what = "is done" if outcome.status is _S.FINISHED else "did not finish"
        text = (
            f"[{outcome.agent}, to which you gave a task in the conversation {outcome.id},"
            f" {what}.]\n\n{self.report(outcome)}"
        )
        key = f"{outcome.id}@{outcome.seq}"
        self._deliver(Send((TextContent(text),), key, outcome.id), key)
        self.mark_known(outcome.id, outcome.seq)

    def _unwatch(self, id: str) -> None:
        with self._lock:
            if self._background.get(id) is not threading.current_thread():
                return
            del self._background[id]
        with self._journal.lock:  # wakes threads that wait for this conversation's delegates
            self._journal.lock.notify_all()

    def join_watcher(self, id: str) -> None:
        with self._lock:
            thread = self._background.get(id)
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def is_watched(self, id: str) -> bool:
        with self._lock:
            return id in self._background

    def has_mail(self, id: str) -> bool:
        return bool(self._journal.store.list([id], waiting=True))

    @property
    def busy(self) -> bool:
        """True if a child works in the background."""
        with self._lock:
            return bool(self._background)

    def join(self, deadline: float) -> None:
        """Wait for the threads of closed children, until `deadline` (monotonic seconds)."""
        with self._lock:
            children = self._delegated or {}
            detached = {id for id, one in children.items() if one.detached}
            threads = [one for id, one in self._background.items() if id not in detached]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- after a crash ---

    def _open_again(self, id: str, condition: Callable[[], bool]) -> bool:
        """Let a child of an earlier call continue if `condition()`; return False if that fails."""
        delegates = self._delegates_of(id)
        try:
            if condition() and delegates is not None:
                call = ToolCall(id.removeprefix(f"{self.id}."), "delegate", {})
                self.reopen(self._call_context(call), delegates, id)
            return True
        except ReferenceError:  # the parent was dropped without a close
            return False
        except HoldfastError as error:
            self._journal.log(f"its child {id} could not be opened again: {error}")
            return False

    def _delegates_of(self, id: str) -> Delegates | None:
        """Return the delegates that a child belongs to, even after a handoff."""
        name = self.all()[id].agent
        for one in (self._context.agent.delegates, *self._attached):
            if one is not None and name in one.by_name:
                return one
        return None

    def reopen(
        self, context: ToolContext, delegates: Delegates, id: str, place: object = None
    ) -> None:
        """Let a child of an earlier call continue. Raises `LeaseHeld`."""
        entry = self.all()[id]
        self.check_agent(delegates, id)
        agent, runtime = self.agent_at(delegates, entry.agent, id)
        spawned = context.spawn(agent, id=id, detached=delegates.detached, runtime=runtime)
        child = cast("Conversation", spawned)
        try:
            child.hosting.drain_inbox()
            if child.status is _S.PAUSED:
                child.resume()
            child.start_thread()
        except BaseException:
            if not self.is_watched(id):
                child.close(FOREIGN_POLL_SECONDS)
            raise
        entry.detached = delegates.detached
        self.watch(child, entry.agent, place)

    def attach(self, agents: Sequence[Agent]) -> None:
        """Reopen the background children of a reopened conversation, and post outcomes reached
        meanwhile. Does so once per agent."""
        for delegates in [agent.delegates for agent in agents if agent.delegates is not None]:
            if not any(one is delegates for one in self._attached):
                self._attached.append(delegates)
                summaries = {one.id: one for one in self._journal.store.list(spawned_by=self.id)}
                if not summaries:
                    continue
                self._attach(delegates, summaries)
            self.resume_stopped()

    def _attach(self, delegates: Delegates, summaries: dict[str, Summary]) -> None:
        journal = self._journal
        with journal.lock:
            calls = [item.effective for item in journal.fold.open.values()]
            awaited = [ids_of(one.arguments) for one in calls if one.name == "delegate_collect"]
            resumed_ids = [one.arguments.get("resume") for one in calls if one.name == "delegate"]
        for id, entry in list(self.all().items()):
            mine = entry.background and entry.agent in delegates.by_name
            if id not in summaries or not mine or id in resumed_ids or self.is_watched(id):
                continue
            status = summaries[id].status
            if status in ENDED and not self.has_mail(id):
                collected = any(not ids or id in ids for ids in awaited)
                if summaries[id].last_seq != entry.known_seq and not collected:
                    self._post(self.outcome(id))
            elif status != _S.PAUSED:
                self._open_again(id, lambda: True)

    # --- interrupts ---

    def journal_stopped(self) -> None:
        """Journal which children an interrupt of this conversation stops. Within a transaction."""
        with self._lock:
            watched = list(self._background)
        children = self.all()
        attached = [id for id in watched if id in children and not children[id].detached]
        open_children = [child for id in attached if (child := self.find_open(id)) is not None]
        stopped = [child.id for child in open_children if interruptible(child)]
        if stopped:
            for id in stopped:
                children[id].stopped = True
            text = (
                "The interrupt stopped the background agents; they resume with this conversation."
            )
            self._journal.add(
                ev.NoteRecorded, about=STOPPED, text=text, details={"children": stopped}
            )

    def resume_stopped(self) -> None:
        """Resume the children that an interrupt stopped. Not within a transaction."""
        journal = self._journal
        if journal.fold.status is _S.PAUSED:
            return
        resumed_ids: list[str] = []
        for id, entry in list(self.all().items()):
            with self._lock:
                stopped, entry.stopped = entry.stopped, False
            if not stopped:
                continue
            child = self.find_open(id)
            if child is None or child.status is _S.CLOSED:
                if self.outcome(id).status is _S.PAUSED and not self._open_again(id, lambda: True):
                    continue
            else:
                try:
                    if child.status is _S.PAUSED:
                        child.resume()
                    elif (delegation := child.hosting.context.delegation) is not None:
                        delegation.children.resume_stopped()
                except HoldfastError as error:
                    self._journal.log(f"its child {id} cannot resume: {error}")
                    continue
            resumed_ids.append(id)
        if resumed_ids:
            text = "The agents that an interrupt had stopped resume."
            try:
                with journal:
                    journal.add(
                        ev.NoteRecorded, about=RESUMED, text=text, details={"children": resumed_ids}
                    )
            except HoldfastError as error:
                self._journal.log(f"the resumption of its children could not be journaled: {error}")


def has_ended(child: Conversation) -> bool:
    """Return True if a child has ended and none of its own children works."""
    hosting = child.hosting
    if hosting.status is _S.CLOSED:
        return True
    with hosting.journal.lock:
        fold = hosting.journal.fold
        ended = hosting.resting and effective_status(fold) in ENDED and not fold.has_new_message
        rests = ended or hosting.context.failure is not None
    return rests and not hosting.delegates_busy


def close_inbox(child: Conversation) -> bool:
    """Refuse further messages to an ended child; return False if one arrived meanwhile."""
    hosting = child.hosting
    hosting.drain_inbox()
    with hosting.journal.lock:
        if not has_ended(child):
            return False
        hosting.context.closing = True
        hosting.journal.lock.notify_all()
        return True


def interruptible(child: Conversation) -> bool:
    """Return True if an interrupt stops the child, or has just done so. Takes no lock."""
    hosting = child.hosting
    if child.status is not _S.PAUSED:
        return child.status not in (*ENDED, _S.CLOSED, _S.IDLE) or hosting.delegates_busy
    tail = reversed(hosting.journal.tail)
    event = next((event for event in tail if isinstance(event, ev.StatusChanged)), None)
    return event is not None and event.reason == "interrupted"
