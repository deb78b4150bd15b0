"""The delegation tools at work: children of one conversation are started, reported, collected,
cancelled, and found again after a crash. `agent.delegation` defines the tools."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.delegation import CHILD, CHILDREN, LONGEST_WAIT, Delegates
from holdfast.commands import Command, Interrupt, Send
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation.calls import CONTINUES_LATER
from holdfast.conversation.delegation_state import (
    ENDED,
    RESUMED,
    STOPPED,
    ChildOutcome,
    DelegatedChild,
    children_of,
    effective_status,
    ids_of,
    last_word,
    sends,
)
from holdfast.conversation.isolation import ChildFolders, folder_of
from holdfast.conversation.journal import Journal
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import (
    ConversationClosed,
    ConversationNotFound,
    HoldfastError,
    LeaseHeld,
    RuntimeFault,
    StoreError,
    ToolError,
)
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.local import LocalRuntime
from holdfast.store import Summary
from holdfast.store.namespaces import namespace_of

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation
    from holdfast.tools import ToolContext

_S = ConversationStatus

# Events of a child that another process owns do not reach this one; so often it is looked up.
_FOREIGN_POLL_SECONDS = 0.25
_MAX_ANCESTORS = 1000  # depth of ancestors; a deeper chain can only be a cycle
_CLOSE_SECONDS = 10.0  # seconds that a message waits for a closing child
_INBOX_SECONDS = 1.0  # seconds that another owner gets to take a message out of its inbox
_PAGE_EVENTS = 200  # events of another conversation per read


class ChildWork(msgspec.Struct, frozen=True):
    """The work of one call of `delegate`: the agent with its name, and the task.

    `resume` is the id of the child that goes on, "" for a new one. `runtime` is that of a child
    with a folder of its own.
    """

    name: str
    agent: Agent
    task: str
    resume: str
    runtime: LocalRuntime | None


class Delegation(ObjectStruct):
    """The delegation of one conversation. Each child in the background has a thread that waits for
    its end. Thread-safe."""

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
    # the times of this conversation's messages to others
    _sent_times: list[datetime] | None = None
    # facts about children in a result's meta, by call
    _metas: dict[str, dict[str, Any]] = {}
    # outcomes of children that others own, each with its last event
    _outcome_cache: dict[str, tuple[int, ChildOutcome]] = {}
    # children to which a call of this process gives further work
    _resuming: set[str] = set()
    _folders: ChildFolders | None = None  # made with the first child that has a folder of its own
    _depth: int | None = None
    _attached: list[Delegates] = []

    @property
    def id(self) -> str:
        return self._journal.id

    # --- the tools ---

    def give(
        self,
        context: ToolContext,
        delegates: Delegates,
        agent: str,
        task: str,
        background: bool,
        resume: str,
    ) -> ToolResult:
        """Run the tool `delegate`."""
        if agent not in delegates.given:
            raise _refused(f"There is no agent {agent!r}. There are: {', '.join(delegates)}.")
        self._check_depth(delegates)
        try:
            with (
                self._held_child(resume, agent, context.attempt <= 1),
                self._held_place(delegates, context.attempt <= 1) as place,
            ):
                id = resume or f"{self.id}.{context.call_id}"
                made, runtime = self._agent_at(delegates, agent, id)
                work = ChildWork(agent, made, task, resume, runtime)
                if not background:
                    return self._remember_meta(context, self._run_child(context, work))
                child = self._start_child(context, work, delegates.detached)
                self._record_child(child.id, DelegatedChild(agent, True, 0, delegates.detached))
                found = ChildOutcome.of(child, agent)
                self._watch(child, agent, place)
        except ConversationClosed:
            return self._remember_meta(context, _continues_later(agent))
        except ToolError:
            if self._context.closing:
                return self._remember_meta(context, _continues_later(agent))
            raise
        text = (
            f"{agent} works on it in the background, in the conversation {child.id}. Its answer is"
            " sent to you as a message. delegate_poll reports its progress, delegate_collect waits"
            " for it, delegate_cancel stops it."
        )
        status = found.status.value
        meta = {CHILD: {"id": child.id, "agent": agent, "status": status, "background": True}}
        return self._remember_meta(context, _answer(text, meta))

    @contextmanager
    def _held_child(self, id: str, agent: str, bounded: bool) -> Generator[None]:
        """Hold a child that is to go on, for the `with` block. Raises `ToolError` if there is no
        such child, or if it works; a repeated call (not `bounded`) may find it at work."""
        if not id:
            yield
            return
        known = self._children().get(id)
        if known is None:
            raise _refused(f"You gave no work to a conversation {id!r}. {self._known_text()}")
        if known.agent != agent:
            raise _refused(
                f"The conversation {id!r} is of the agent {known.agent!r}.", "validation"
            )
        with self._lock:
            if id in self._resuming or (bounded and id in self._background):
                raise _refused(
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

    def _known_text(self, others: Sequence[str] = ()) -> str:
        """Return the sentence that names the children, and the `others` of the same tenant."""
        known = [f"{id} ({one.agent})" for id, one in self._children().items()]
        above = ["parent"] if others and self._journal.spawned_by else []
        tenant = namespace_of(self.id)
        mine = [id for id in others if id != "parent" and namespace_of(id) == tenant]
        return f"There are: {', '.join([*above, *known, *mine]) or 'none'}."

    def _agent_at(
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

    def settle(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], applies: bool
    ) -> ToolResult:
        """Run the tools `delegate_apply` and `delegate_drop`."""
        lines: list[str] = []
        paths: list[str] = []
        failed = False
        for id in self._selected(ids):
            child = self._open(id)
            if self._is_watched(id) or (child is not None and child.status is not _S.CLOSED):
                raise _refused(f"{id} still works. Collect or cancel it first.", "rate_limit")
            agent = delegates.agent(self._children()[id].agent)
            try:
                folder = None if agent is None else folder_of(agent, self._context.runtime, id)
                if folder is None:
                    lines.append(f"{id}: no changes wait.")
                elif applies:
                    changed = folder.apply()
                    paths += changed
                    text = f"{id}: its changes are in your folder: {', '.join(changed) or 'none'}."
                    if folder.exists:
                        text += f" {folder.workdir} is kept for what is not taken over."
                    lines.append(text)
                else:
                    folder.drop()
                    lines.append(f"{id}: its changes and its folder are gone.")
            except RuntimeFault as error:
                failed = True
                lines.append(f"{id}: {error} Its folder is still there.")
        return _answer("\n".join(lines), {"paths": paths} if paths else None, failed)

    def _remember_meta(self, context: ToolContext, result: ToolResult) -> ToolResult:
        """Return the result, and remember its meta in case hooks change it."""
        with self._lock:
            self._metas[context.call_id] = dict(result.meta)
        return result

    def restore_meta(self, call_id: str, result: ToolResult) -> ToolResult:
        """Return a call's result after hooks, with the facts about children from before them."""
        with self._lock:
            meta = self._metas.pop(call_id, None)
        return replace(result, meta={**result.meta, **meta}) if meta else result

    def poll(self, delegates: Delegates, ids: Sequence[str]) -> ToolResult:
        """Run the tool `delegate_poll`."""
        found = [self._outcome(id) for id in self._selected(ids)]
        if not found:
            return _answer("No agent works in the background.")
        ready = " Its answer can be collected."
        lines = [f"{one.progress}.{ready if one.status in ENDED else ''}" for one in found]
        return _answer("\n".join(lines), {CHILDREN: [one.meta() for one in found]})

    def collect(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], timeout: float
    ) -> ToolResult:
        """Run the tool `delegate_collect`."""
        wanted = self._selected(ids)
        if not wanted:
            return _answer("No agent works in the background, so there is nothing to collect.")
        with self._hold_messages(wanted):
            found = self._collected(context, delegates, wanted, timeout)
            return self._remember_meta(context, found)

    @contextmanager
    def _hold_messages(self, ids: Sequence[str]) -> Generator[None]:
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
                    found = self._outcome(id)
                    # else the outcome is posted when the conversation is opened again
                    if found.status in ENDED and not self._context.closing:
                        self._post(found)
                except (ConversationClosed, StoreError) as error:
                    self._journal.log(f"the outcome of its child {id} could not be posted: {error}")

    def _collected(
        self, context: ToolContext, delegates: Delegates, wanted: Sequence[str], timeout: float
    ) -> ToolResult:
        deadline = time.monotonic() + min(timeout, LONGEST_WAIT)
        found: list[ChildOutcome] = []
        shown = None
        try:
            for id in wanted:
                if self._outcome(id).status is _S.PAUSED:
                    self._reopen(context, delegates, id)
            while True:
                with self._woken(context, wanted) as woken:
                    found = [self._outcome(id) for id in wanted]
                    open = [one for one in found if self._works(one)]
                    left = deadline - time.monotonic()
                    if not open or context.cancelled or left < 0 or self._context.closing:
                        break
                    now = [one.reportable for one in open]
                    if now != shown:
                        line = "; ".join(one.progress for one in open)
                        self._report_progress(context, line, any(one.waits for one in open))
                        shown = now
                    woken(left)
        except ConversationClosed:
            return _continues_later("The agents")
        if self._context.closing:
            return _continues_later("The agents")
        over = [one for one in found if one.status in ENDED]
        for one in over:
            self._mark_known(one.id, one.seq)
        texts = [f"{self._report(one)}\n{one.address}" for one in over]
        if len(found) > 1:
            texts = [f"{one.agent} ({one.id}):\n{self._report(one)}" for one in over]
        late = [one for one in found if one not in over]
        texts += [f"{one.progress}: no answer within {timeout:g} seconds." for one in late]
        failed = any(one.status is not _S.FINISHED for one in found)
        metas = [{**one.meta(), "collected": one in over} for one in found]
        return _answer("\n\n".join(texts), {CHILDREN: metas}, failed)

    def _works(self, child: ChildOutcome) -> bool:
        return child.status not in ENDED or self._is_watched(child.id)

    @contextmanager
    def _woken(
        self, context: ToolContext, ids: Sequence[str]
    ) -> Generator[Callable[[float], object]]:
        """Yield a function that waits up to so many seconds for a change of these children, of this
        conversation, or for the call's cancellation. Changes within the block end it at once."""
        event = threading.Event()
        children = [child for id in ids if (child := self._open(id)) is not None]
        foreign = len(children) < len(ids)
        with ExitStack() as forget:
            forget.callback(context.cancelled.add_callback(event.set))
            for journal in (self._journal, *(child.hosting.journal for child in children)):
                forget.callback(journal.changed.listen(event.set))
            yield lambda left: event.wait(min(left, _FOREIGN_POLL_SECONDS) if foreign else left)

    def cancel(self, context: ToolContext, delegates: Delegates, ids: Sequence[str]) -> ToolResult:
        """Run the tool `delegate_cancel`."""
        wanted = self._selected(ids)
        lines: list[str] = []
        with self._hold_messages(wanted):
            for id in wanted:
                self._cancel_child(context, id)
                found = self._outcome(id)
                self._mark_known(id, found.seq)
                done = f"{found.agent} ({id}) was done already."
                lines.append(done if found.status in ENDED else self._report(found))
        meta = {CHILDREN: [{**self._outcome(id).meta(), "collected": True} for id in wanted]}
        return self._remember_meta(context, _answer("\n".join(lines), meta))

    def _cancel_child(self, context: ToolContext, id: str) -> None:
        child = self._open(id)
        if child is not None and child.status is not _S.CLOSED:
            if child.status not in ENDED or child.hosting.delegates_busy:
                child.interrupt()
                child.close()
                self._join_watcher(id)
        elif self._outcome(id).status not in (*ENDED, _S.PAUSED):  # another process owns the child
            self._journal.store.post(id, Interrupt(), f"{context.idempotency_key}>{id}")
            deadline = time.monotonic() + _CLOSE_SECONDS
            while self._outcome(id).status not in (*ENDED, _S.PAUSED):
                if context.cancelled or time.monotonic() >= deadline:
                    break
                context.cancelled.wait(_FOREIGN_POLL_SECONDS)

    def tell(
        self, context: ToolContext, delegates: Delegates, conversation: str, text: str
    ) -> ToolResult:
        """Run the tool `send_to`."""
        journal = self._journal
        if conversation == "parent":
            conversation = journal.spawned_by.rpartition(":")[0]
            if not conversation:
                raise _refused(
                    "This conversation has no parent: the user gave it its work. Answer instead."
                )
        if conversation == self.id:
            raise _refused("That is this conversation itself.", "validation")
        mine = namespace_of(conversation) == namespace_of(self.id)  # no message crosses tenants
        allowed = conversation in delegates.send_to
        if not mine or not (allowed or self._root(conversation) == self._root(self.id)):
            raise _refused(
                f"This conversation may send to no conversation {conversation!r}."
                f" {self._known_text(('parent', *delegates.send_to))}"
            )
        given = self._children().get(conversation)
        if given is not None:
            self._check_agent(delegates, conversation)
        self._check_messages(delegates)
        works = self._open(conversation) is not None or self._is_watched(conversation)
        begins = given is not None and not works
        with (
            self._held_place(delegates, context.attempt <= 1) if begins else nullcontext() as place
        ):
            command = Send((TextContent(text),), sender=self.id)
            key = f"{context.idempotency_key}>{conversation}"
            try:
                journal.store.post(conversation, command, key)
            except ConversationNotFound:
                raise _refused(
                    f"There is no conversation {conversation!r}."
                    f" {self._known_text(('parent', *delegates.send_to))}"
                ) from None
            with self._lock:
                if self._sent_times is not None:
                    self._sent_times.append(journal.clock())
            heard = self._wait_until_read(
                context, delegates, conversation, place, given is not None
            )
        later = "" if heard else " It is not running now and reads the message when it continues."
        return _answer(f"Sent to {conversation}.{later}")

    def _wait_until_read(
        self, context: ToolContext, delegates: Delegates, id: str, place: object, own: bool
    ) -> bool:
        """Return True once the child, or another owner, has read a message; False if none does."""
        deadline = time.monotonic() + (_CLOSE_SECONDS if own else _INBOX_SECONDS)
        while True:
            with self._woken(context, [id]) as woken:
                child = self._open(id)
                if child is not None:
                    child.hosting.drain_inbox()
                if self._is_watched(id) or not self._has_mail(id):
                    # the watching thread drains the inbox once more when it closes the child
                    return True
                if own:
                    try:
                        self._reopen(context, delegates, id, place)
                        return True
                    except (LeaseHeld, ConversationClosed):  # closing, or another process has it
                        if self._context.closing:
                            raise
                left = deadline - time.monotonic()
                if context.cancelled or left < 0:
                    return False
                woken(min(left, _FOREIGN_POLL_SECONDS))

    def _has_mail(self, id: str) -> bool:
        return bool(self._journal.store.list([id], waiting=True))

    def _check_messages(self, delegates: Delegates) -> None:
        """Raise `ToolError` if no message may be sent until the user's next one."""
        journal = self._journal
        with self._lock:
            sent = self._sent_times
        if sent is None:
            with journal.changed:
                events = list(journal.events) if journal.fold.assistant is not None else []
            sent = sends(events)
            with self._lock:
                self._sent_times = sent = sent if self._sent_times is None else self._sent_times
        if len(sent) < delegates.max_messages:
            return
        words = [self._last_word(id) for id in self._ancestors(self.id)]
        since = max([word for word in words if word is not None], default=None)
        with self._lock:
            self._sent_times = sent = [at for at in sent if since is None or at >= since]
        if len(sent) >= delegates.max_messages:
            raise _refused(
                f"This conversation has sent {len(sent)} messages to others since the user's last"
                " message, and may send no more until the next one. Do not try again: finish with"
                " what you have, and say what is still open.",
                "rate_limit",
            )

    def _last_word(self, id: str) -> datetime | None:
        journal = self._journal
        if id == self.id:
            with journal.changed:
                return last_word(journal.events)
        listed = journal.store.list([id])
        at = listed[0].last_seq if listed else 0
        while at > 0:
            at -= _PAGE_EVENTS
            page = journal.store.read(id, max(0, at), _PAGE_EVENTS + min(0, at))
            if (word := last_word(page)) is not None:
                return word
        return None

    # --- children ---

    def _report_progress(self, context: ToolContext, line: str, waits: bool) -> None:
        """Report the progress of children; a wait for the user to the conversations above too."""
        context.report_progress(line)
        if waits and self._context.on_wait is not None:
            self._context.on_wait(line)

    def _start_child(self, context: ToolContext, work: ChildWork, detached: bool) -> Conversation:
        spawned = context.spawn(
            work.agent, id=work.resume or None, detached=detached, runtime=work.runtime
        )
        child = cast("Conversation", spawned)
        if work.resume:
            command = Send((TextContent(work.task),), sender=self.id)
            child.hosting.execute_posted(command, f"{context.idempotency_key}>{work.resume}")
        elif not child.hosting.journal.fold.message_seq:
            child.send_message(work.task, sender=self.id)
        if child.status is _S.PAUSED:
            child.resume()
        child.start_thread()
        return child

    def _run_child(self, context: ToolContext, work: ChildWork) -> ToolResult:
        name = work.name
        child = self._start_child(context, work, False)
        self._record_child(child.id, DelegatedChild(name, False))
        shown = None
        try:
            found = ChildOutcome.of(child, name)
            while not context.cancelled:
                with self._woken(context, [child.id]) as woken:
                    ended = has_ended(child)
                    found = ChildOutcome.of(child, name)
                    if ended and close_inbox(child):
                        break
                    if found.reportable != shown:
                        self._report_progress(context, found.progress, found.waits)
                        shown = found.reportable
                    if not context.cancelled:
                        woken(LONGEST_WAIT)
            if context.cancelled:
                child.wait(2.0)
                found = ChildOutcome.of(child, name)
        finally:
            child.close()
            self._close_folder(child.id)
        if self._context.closing and found.status not in ENDED:
            return _continues_later(name)
        self._mark_known(child.id, found.seq)
        meta = {CHILD: found.meta()}
        if child.failure is not None and found.status not in ENDED:
            problem = f"{name} stopped because its work could not be stored: {child.failure}"
            return ToolResult.failure(problem, meta=meta)
        if context.cancelled and found.status not in ENDED:
            text = f"{self._report(found)}\n{found.address}"
            return ToolResult.failure(text, "cancelled", meta=meta)
        done = found.status is _S.FINISHED
        output = found.state.output if done else None
        content = (TextContent(self._report(found)), TextContent(found.address))
        return ToolResult(content, output if isinstance(output, dict) else None, meta, not done)

    def _report(self, found: ChildOutcome) -> str:
        """Return a child's result, with its changes if it has a folder of its own."""
        if self._folders is None or found.status not in (*ENDED, _S.PAUSED):
            return found.report
        return f"{found.report}{self._folders.report(found.id)}"

    def _close_folder(self, id: str) -> None:
        """End what a closed child left running in its own folder."""
        if self._folders is not None:
            self._folders.close(id)

    @contextmanager
    def _held_place(self, delegates: Delegates, bounded: bool = True) -> Generator[object]:
        """Hold a place among the running children for the `with` block, or until a thread watches
        the child.

        Raises `ToolError` if `max_running` children run already, unless `bounded` is False: a
        repeated call is not limited again.
        """
        place = object()
        with self._lock:
            working = list(self._background)
        opened = [child for id in working if (child := self._open(id)) is not None]
        paused = {child.id for child in opened if child.status is _S.PAUSED}
        with self._lock:
            running = len(self._places) + sum(id not in paused for id in self._background)
            if bounded and running >= delegates.max_running:
                raise _refused(
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

    def _check_depth(self, delegates: Delegates) -> None:
        if self._depth is None:
            self._depth = len(self._ancestors(self.id)) - 1
        if self._depth >= delegates.max_depth:
            raise _refused(
                f"This conversation is itself a delegate, {self._depth} levels below the root; at"
                f" most {delegates.max_depth} are allowed. Do the task yourself.",
                "validation",
            )

    def _ancestors(self, id: str) -> list[str]:
        """Return a conversation and its ancestors, the root last."""
        found = [id]
        store = self._journal.store
        while len(found) < _MAX_ANCESTORS:
            key = self._journal.spawned_by if found[-1] == self.id else ""
            listed = [] if key else store.list([found[-1]])
            above = key.rpartition(":")[0] or (listed[0].spawner if listed else "")
            if not above or above in found:
                break
            found.append(above)
        return found

    def _root(self, id: str) -> str:
        return self._ancestors(id)[-1]

    # --- the background ---

    def _watch(self, child: Conversation, agent: str, place: object = None) -> None:
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
                with journal.changed:
                    if child.status is _S.CLOSED:
                        return
                    if not has_ended(child):
                        journal.changed.wait()
                        continue
                self._announce(child, agent)
                ended = close_inbox(child)
            child.close()
        except (ConversationClosed, StoreError) as error:
            self._journal.log(f"the outcome of its child {child.id} could not be posted: {error}")
        finally:
            self._close_folder(child.id)
            self._unwatch(child.id)
        # A sender posts first and then checks for a watcher. Here the watch ends first and the
        # inbox is checked then. One of the two sees the message.
        if ended and not self._context.closing:
            self._open_again(child.id, lambda: self._has_mail(child.id))

    def _open_again(self, id: str, wanted: Callable[[], bool]) -> bool:
        """Let a child of an earlier call continue if `wanted()`; return False if that fails."""
        delegates = self._delegates_of(id)
        try:
            if wanted() and delegates is not None:
                call = ToolCall(id.removeprefix(f"{self.id}."), "delegate", {})
                self._reopen(self._call_context(call), delegates, id)
            return True
        except ReferenceError:  # the parent was dropped without a close
            return False
        except HoldfastError as error:
            self._journal.log(f"its child {id} could not be opened again: {error}")
            return False

    def _delegates_of(self, id: str) -> Delegates | None:
        """Return the delegates that a child belongs to, even after a handoff."""
        name = self._children()[id].agent
        for one in (self._context.agent.delegates, *self._attached):
            if one is not None and name in one.given:
                return one
        return None

    def _announce(self, child: Conversation, agent: str) -> None:
        with self._lock:
            if child.id in self._awaited:
                self._unreported.add(child.id)
                return
        self._post(ChildOutcome.of(child, agent))

    def _post(self, found: ChildOutcome) -> None:
        """Post the outcome as a message from the child; once, however often this is called."""
        if found.seq <= self._children()[found.id].known:
            return
        what = "is done" if found.status is _S.FINISHED else "did not finish"
        text = (
            f"[{found.agent}, to which you gave a task in the conversation {found.id},"
            f" {what}.]\n\n{self._report(found)}"
        )
        key = f"{found.id}@{found.seq}"
        self._deliver(Send((TextContent(text),), key, found.id), key)
        self._mark_known(found.id, found.seq)

    def _unwatch(self, id: str) -> None:
        with self._lock:
            if self._background.get(id) is not threading.current_thread():
                return
            del self._background[id]
        with self._journal.changed:  # whoever waits for this conversation's delegates looks again
            self._journal.changed.notify_all()

    def _join_watcher(self, id: str) -> None:
        with self._lock:
            thread = self._background.get(id)
        if thread is not None:
            thread.join(_CLOSE_SECONDS)

    def _is_watched(self, id: str) -> bool:
        with self._lock:
            return id in self._background

    @property
    def busy(self) -> bool:
        """True if a child works in the background."""
        with self._lock:
            return bool(self._background)

    def join(self, deadline: float) -> None:
        """Wait for the threads of closed children, until `deadline` (monotonic seconds)."""
        with self._lock:
            given = self._delegated or {}
            detached = {id for id, one in given.items() if one.detached}
            threads = [one for id, one in self._background.items() if id not in detached]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _open(self, id: str) -> Conversation | None:
        children = self._context.children
        opened = [] if children is None else children.open()
        return next((child for child in opened if child.id == id), None)

    def _outcome(self, id: str) -> ChildOutcome:
        agent = self._children()[id].agent if id in self._children() else "an agent"
        child = self._open(id)
        if child is not None and child.status is not _S.CLOSED:
            return ChildOutcome.of(child, agent)
        store = self._journal.store
        listed = store.list([id])
        last = listed[0].last_seq if listed else 0
        read, found = self._outcome_cache.get(id, (None, None))
        if found is None or read != last:
            found = ChildOutcome.of(self._new_conversation(self._context.agent, store, id), agent)
            self._outcome_cache[id] = last, found
        return found

    def _selected(self, ids: Sequence[str]) -> list[str]:
        """Return the named children; by default those in the background. Raises `ToolError`."""
        known = self._children()
        if not ids:
            with self._lock:
                working = list(self._background)
            return working or [id for id, one in known.items() if one.background and not one.known]
        for id in ids:
            if id not in known:
                there = ", ".join(known) or "none"
                raise _refused(f"No agent works in the background as {id!r}. There are: {there}.")
        return list(dict.fromkeys(ids))

    def _record_child(self, id: str, given: DelegatedChild) -> None:
        children = self._children()
        with self._lock:
            given.known = children[id].known if id in children else 0
            children[id] = given

    def _mark_known(self, id: str, seq: int) -> None:
        children = self._children()
        with self._lock:
            if id in children:
                children[id].known = max(children[id].known, seq)

    def _children(self) -> dict[str, DelegatedChild]:
        """Return the delegated children by id; read from the journal once."""
        with self._lock:
            if self._delegated is not None:
                return self._delegated
        journal = self._journal
        with journal.changed:
            events = list(journal.events) if journal.fold.assistant is not None else []
        found = children_of(self.id, events)
        with self._lock:
            self._delegated = found if self._delegated is None else self._delegated
            return self._delegated

    # --- after a crash ---

    def _check_agent(self, delegates: Delegates, id: str) -> None:
        """Raise `ToolError` if the agent of a child no longer exists."""
        given = self._children()[id]
        if given.agent not in delegates.given:
            raise _refused(
                f"The agent {given.agent!r} of the conversation {id!r} no longer exists."
            )

    def _reopen(
        self, context: ToolContext, delegates: Delegates, id: str, place: object = None
    ) -> None:
        """Let a child of an earlier call continue. Raises `LeaseHeld`."""
        given = self._children()[id]
        self._check_agent(delegates, id)
        agent, runtime = self._agent_at(delegates, given.agent, id)
        spawned = context.spawn(agent, id=id, detached=delegates.detached, runtime=runtime)
        child = cast("Conversation", spawned)
        try:
            child.hosting.drain_inbox()
            if child.status is _S.PAUSED:
                child.resume()
            child.start_thread()
        except BaseException:
            if not self._is_watched(id):
                child.close(_FOREIGN_POLL_SECONDS)
            raise
        given.detached = delegates.detached
        self._watch(child, given.agent, place)

    def attach(self, agents: Sequence[Agent]) -> None:
        """Reopen the background children of a reopened conversation, and post outcomes reached
        meanwhile. Does so once per agent."""
        for delegates in [agent.delegates for agent in agents if agent.delegates is not None]:
            if not any(one is delegates for one in self._attached):
                self._attached.append(delegates)
                listed = {one.id: one for one in self._journal.store.list(spawned_by=self.id)}
                if not listed:
                    continue
                self._attach(delegates, listed)
            self.resume_stopped()

    def _attach(self, delegates: Delegates, listed: dict[str, Summary]) -> None:
        journal = self._journal
        with journal.changed:
            calls = [item.effective for item in journal.fold.open.values()]
            awaited = [ids_of(one.arguments) for one in calls if one.name == "delegate_collect"]
            resumed = [one.arguments.get("resume") for one in calls if one.name == "delegate"]
        for id, given in list(self._children().items()):
            mine = given.background and given.agent in delegates.given
            if id not in listed or not mine or id in resumed or self._is_watched(id):
                continue
            status = listed[id].status
            if status in ENDED and not self._has_mail(id):
                collected = any(not ids or id in ids for ids in awaited)
                if listed[id].last_seq != given.known and not collected:
                    self._post(self._outcome(id))
            elif status != _S.PAUSED:
                self._open_again(id, lambda: True)

    # --- interrupts ---

    def journal_stopped(self) -> None:
        """Journal which children an interrupt of this conversation stops. Within a transaction."""
        with self._lock:
            watched = list(self._background)
        children = self._children()
        attached = [id for id in watched if id in children and not children[id].detached]
        opened = [child for id in attached if (child := self._open(id)) is not None]
        stopped = [child.id for child in opened if interruptible(child)]
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
        resumed: list[str] = []
        for id, given in list(self._children().items()):
            with self._lock:
                stopped, given.stopped = given.stopped, False
            if not stopped:
                continue
            child = self._open(id)
            if child is None or child.status is _S.CLOSED:
                if self._outcome(id).status is _S.PAUSED and not self._open_again(id, lambda: True):
                    continue
            else:
                try:
                    if child.status is _S.PAUSED:
                        child.resume()
                    elif (delegation := child.hosting.context.delegation) is not None:
                        delegation.resume_stopped()
                except HoldfastError as error:
                    self._journal.log(f"its child {id} cannot resume: {error}")
                    continue
            resumed.append(id)
        if resumed:
            text = "The agents that an interrupt had stopped resume."
            try:
                with journal:
                    journal.add(
                        ev.NoteRecorded, about=RESUMED, text=text, details={"children": resumed}
                    )
            except HoldfastError as error:
                self._journal.log(f"the resumption of its children could not be journaled: {error}")


def _answer(text: str, meta: dict[str, Any] | None = None, is_error: bool = False) -> ToolResult:
    return ToolResult((TextContent(text),), meta=meta or {}, is_error=is_error)


def _refused(text: str, kind: str = "not_found") -> ToolError:
    return ToolError(text, kind, retryable=False)


def _continues_later(agent: str) -> ToolResult:
    """Return the unwritten result of a call that is made again after a reopening."""
    text = f"{agent} continues when the conversation is opened again."
    return ToolResult.failure(text, "cancelled", meta={CONTINUES_LATER: True})


def has_ended(child: Conversation) -> bool:
    """Return True if a child has ended and none of its own children works."""
    hosting = child.hosting
    if hosting.status is _S.CLOSED:
        return True
    with hosting.journal.changed:
        fold = hosting.journal.fold
        ended = hosting.resting and effective_status(fold) in ENDED and not fold.asked
        rests = ended or hosting.context.failure is not None
    return rests and not hosting.delegates_busy


def close_inbox(child: Conversation) -> bool:
    """Refuse further messages to an ended child; return False if one arrived meanwhile."""
    hosting = child.hosting
    hosting.drain_inbox()
    with hosting.journal.changed:
        if not has_ended(child):
            return False
        hosting.context.closing = True
        hosting.journal.changed.notify_all()
        return True


def interruptible(child: Conversation) -> bool:
    """Return True if an interrupt stops the child, or has just done so. Takes no lock."""
    hosting = child.hosting
    if child.status is not _S.PAUSED:
        return child.status not in (*ENDED, _S.CLOSED, _S.IDLE) or hosting.delegates_busy
    tail = reversed(hosting.journal.tail)
    event = next((event for event in tail if isinstance(event, ev.StatusChanged)), None)
    return event is not None and event.reason == "interrupted"
