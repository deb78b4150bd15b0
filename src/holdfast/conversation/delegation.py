"""The delegation tools at work: children are started, reported, collected and cancelled, and
messages are sent. `agent.delegation` defines the tools."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.agent.agent import Agent
from holdfast.agent.delegation import CHILD, CHILDREN, LONGEST_WAIT, Delegates
from holdfast.commands import Command, Interrupt, Send
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation.calls import CONTINUES_LATER
from holdfast.conversation.delegated_children import (
    CLOSE_SECONDS,
    FOREIGN_POLL_SECONDS,
    DelegatedChildren,
    close_inbox,
    has_ended,
    tool_refusal,
)
from holdfast.conversation.delegation_state import ENDED, ChildOutcome, DelegatedChild
from holdfast.conversation.family_messages import MessageLimit, ancestors
from holdfast.conversation.isolation import folder_of
from holdfast.conversation.journal import Journal
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import (
    ConversationClosed,
    ConversationNotFound,
    LeaseHeld,
    RuntimeFault,
    ToolError,
)
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.local import LocalRuntime
from holdfast.store.namespaces import namespace_of

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation
    from holdfast.tools import ToolContext

_S = ConversationStatus

_INBOX_SECONDS = 1.0  # seconds that another owner gets to take a message out of its inbox


class ChildWork(msgspec.Struct, frozen=True):
    """The work of one call of `delegate`: the agent with its name, and the task.

    `resume` is the id of the child that continues, "" for a new one. `runtime` is that of a child
    with its own folder.
    """

    name: str
    agent: Agent
    task: str
    resume: str
    runtime: LocalRuntime | None


class Delegation(ObjectStruct):
    """The delegation tools of one conversation, and its `children`. Thread-safe."""

    _context: RunContext
    _journal: Journal
    children: DelegatedChildren
    _messages: MessageLimit
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    # facts about children in a result's meta, by call
    _metas: dict[str, dict[str, Any]] = {}
    _depth: int | None = None

    @classmethod
    def of(
        cls,
        context: RunContext,
        call_context: Callable[[ToolCall], ToolContext],
        deliver: Callable[[Command, str], None],
        new_conversation: Callable[..., Conversation],
    ) -> Delegation:
        """Return the delegation of a conversation; see `DelegatedChildren` for the functions."""
        journal = context.journal
        children = DelegatedChildren(context, journal, call_context, deliver, new_conversation)
        return cls(context, journal, children, MessageLimit(journal))

    # --- delegate ---

    @property
    def id(self) -> str:
        return self._journal.id

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
        children = self.children
        if agent not in delegates.by_name:
            raise tool_refusal(f"There is no agent {agent!r}. There are: {', '.join(delegates)}.")
        self._check_depth(delegates)
        try:
            with (
                children.hold(resume, agent, context.attempt <= 1),
                children.hold_place(delegates, context.attempt <= 1) as place,
            ):
                id = resume or f"{self.id}.{context.call_id}"
                child_agent, runtime = children.agent_at(delegates, agent, id)
                work = ChildWork(agent, child_agent, task, resume, runtime)
                if not background:
                    return self._remember_meta(context, self._run_child(context, work))
                child = self._start_child(context, work, delegates.detached)
                children.record(child.id, DelegatedChild(agent, True, 0, delegates.detached))
                outcome = ChildOutcome.of(child, agent)
                children.watch(child, agent, place)
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
        status = outcome.status.value
        meta = {CHILD: {"id": child.id, "agent": agent, "status": status, "background": True}}
        return self._remember_meta(context, _answer(text, meta))

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
        children = self.children
        name = work.name
        child = self._start_child(context, work, False)
        children.record(child.id, DelegatedChild(name, False))
        last_report = None
        try:
            outcome = ChildOutcome.of(child, name)
            while not context.cancelled:
                with children.wakeup(context, [child.id]) as wakeup:
                    ended = has_ended(child)
                    outcome = ChildOutcome.of(child, name)
                    if ended and close_inbox(child):
                        break
                    if outcome.reportable != last_report:
                        self._report_progress(context, outcome.progress, outcome.waits)
                        last_report = outcome.reportable
                    if not context.cancelled:
                        wakeup(LONGEST_WAIT)
            if context.cancelled:
                child.wait(2.0)
                outcome = ChildOutcome.of(child, name)
        finally:
            child.close()
            children.close_folder(child.id)
        if self._context.closing and outcome.status not in ENDED:
            return _continues_later(name)
        children.mark_known(child.id, outcome.seq)
        meta = {CHILD: outcome.meta()}
        if child.failure is not None and outcome.status not in ENDED:
            problem = f"{name} stopped because its work could not be stored: {child.failure}"
            return ToolResult.failure(problem, meta=meta)
        if context.cancelled and outcome.status not in ENDED:
            text = f"{children.report(outcome)}\n{outcome.address}"
            return ToolResult.failure(text, "cancelled", meta=meta)
        finished = outcome.status is _S.FINISHED
        output = outcome.state.output if finished else None
        content = (TextContent(children.report(outcome)), TextContent(outcome.address))
        return ToolResult(content, output if isinstance(output, dict) else None, meta, not finished)

    def _report_progress(self, context: ToolContext, line: str, waits: bool) -> None:
        """Report the progress of children; a wait for the user to the conversations above too."""
        context.report_progress(line)
        if waits and self._context.on_wait is not None:
            self._context.on_wait(line)

    def _check_depth(self, delegates: Delegates) -> None:
        if self._depth is None:
            self._depth = len(ancestors(self._journal, self.id)) - 1
        if self._depth >= delegates.max_depth:
            raise tool_refusal(
                f"This conversation is itself a delegate, {self._depth} levels below the root; at"
                f" most {delegates.max_depth} are allowed. Do the task yourself.",
                "validation",
            )

    # --- the changes of children with folders of their own ---

    def settle(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], applies: bool
    ) -> ToolResult:
        """Run the tools `delegate_apply` and `delegate_drop`."""
        children = self.children
        lines: list[str] = []
        paths: list[str] = []
        failed = False
        for id in children.select(ids):
            child = children.find_open(id)
            if children.is_watched(id) or (child is not None and child.status is not _S.CLOSED):
                raise tool_refusal(f"{id} still works. Collect or cancel it first.", "rate_limit")
            agent = delegates.agent(children.all()[id].agent)
            try:
                folder = None if agent is None else folder_of(agent, self._context.runtime, id)
                if folder is None:
                    lines.append(f"{id}: no changes wait.")
                elif applies:
                    applied = folder.apply()
                    paths += applied
                    text = f"{id}: its changes are in your folder: {', '.join(applied) or 'none'}."
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

    # --- progress and results ---

    def poll(self, delegates: Delegates, ids: Sequence[str]) -> ToolResult:
        """Run the tool `delegate_poll`."""
        outcomes = [self.children.outcome(id) for id in self.children.select(ids)]
        if not outcomes:
            return _answer("No agent works in the background.")
        ready = " Its answer can be collected."
        lines = [f"{one.progress}.{ready if one.status in ENDED else ''}" for one in outcomes]
        return _answer("\n".join(lines), {CHILDREN: [one.meta() for one in outcomes]})

    def collect(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], timeout: float
    ) -> ToolResult:
        """Run the tool `delegate_collect`."""
        child_ids = self.children.select(ids)
        if not child_ids:
            return _answer("No agent works in the background, so there is nothing to collect.")
        with self.children.hold_messages(child_ids):
            result = self._collected(context, delegates, child_ids, timeout)
            return self._remember_meta(context, result)

    def _collected(
        self, context: ToolContext, delegates: Delegates, child_ids: Sequence[str], timeout: float
    ) -> ToolResult:
        children = self.children
        deadline = time.monotonic() + min(timeout, LONGEST_WAIT)
        outcomes: list[ChildOutcome] = []
        last_report = None
        try:
            for id in child_ids:
                if children.outcome(id).status is _S.PAUSED:
                    children.reopen(context, delegates, id)
            while True:
                with children.wakeup(context, child_ids) as wakeup:
                    outcomes = [children.outcome(id) for id in child_ids]
                    open = [
                        one
                        for one in outcomes
                        if one.status not in ENDED or children.is_watched(one.id)
                    ]
                    remaining = deadline - time.monotonic()
                    if not open or context.cancelled or remaining < 0 or self._context.closing:
                        break
                    now = [one.reportable for one in open]
                    if now != last_report:
                        line = "; ".join(one.progress for one in open)
                        self._report_progress(context, line, any(one.waits for one in open))
                        last_report = now
                    wakeup(remaining)
        except ConversationClosed:
            return _continues_later("The agents")
        if self._context.closing:
            return _continues_later("The agents")
        over = [one for one in outcomes if one.status in ENDED]
        for one in over:
            children.mark_known(one.id, one.seq)
        texts = [f"{children.report(one)}\n{one.address}" for one in over]
        if len(outcomes) > 1:
            texts = [f"{one.agent} ({one.id}):\n{children.report(one)}" for one in over]
        late = [one for one in outcomes if one not in over]
        texts += [f"{one.progress}: no answer within {timeout:g} seconds." for one in late]
        failed = any(one.status is not _S.FINISHED for one in outcomes)
        metas = [{**one.meta(), "collected": one in over} for one in outcomes]
        return _answer("\n\n".join(texts), {CHILDREN: metas}, failed)

    def cancel(self, context: ToolContext, delegates: Delegates, ids: Sequence[str]) -> ToolResult:
        """Run the tool `delegate_cancel`."""
        children = self.children
        child_ids = children.select(ids)
        lines: list[str] = []
        with children.hold_messages(child_ids):
            for id in child_ids:
                self._cancel_child(context, id)
                outcome = children.outcome(id)
                children.mark_known(id, outcome.seq)
                text = f"{outcome.agent} ({id}) was done already."
                lines.append(text if outcome.status in ENDED else children.report(outcome))
        meta = {CHILDREN: [{**children.outcome(id).meta(), "collected": True} for id in child_ids]}
        return self._remember_meta(context, _answer("\n".join(lines), meta))

    def _cancel_child(self, context: ToolContext, id: str) -> None:
        children = self.children
        child = children.find_open(id)
        if child is not None and child.status is not _S.CLOSED:
            if child.status not in ENDED or child.hosting.delegates_busy:
                child.interrupt()
                child.close()
                children.join_watcher(id)
        elif children.outcome(id).status not in (*ENDED, _S.PAUSED):  # owned by another process
            self._journal.store.post(id, Interrupt(), f"{context.idempotency_key}>{id}")
            deadline = time.monotonic() + CLOSE_SECONDS
            while children.outcome(id).status not in (*ENDED, _S.PAUSED):
                if context.cancelled or time.monotonic() >= deadline:
                    break
                context.cancelled.wait(FOREIGN_POLL_SECONDS)

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

    # --- messages ---

    def tell(
        self, context: ToolContext, delegates: Delegates, conversation: str, text: str
    ) -> ToolResult:
        """Run the tool `send_to`."""
        children, journal = self.children, self._journal
        if conversation == "parent":
            conversation = journal.spawned_by.rpartition(":")[0]
            if not conversation:
                raise tool_refusal(
                    "This conversation has no parent: the user gave it its work. Answer instead."
                )
        if conversation == self.id:
            raise tool_refusal("That is this conversation itself.", "validation")
        mine = namespace_of(conversation) == namespace_of(self.id)  # no message crosses tenants
        allowed = conversation in delegates.send_to or (
            ancestors(journal, conversation)[-1] == ancestors(journal, self.id)[-1]
        )
        if not mine or not allowed:
            raise tool_refusal(
                f"This conversation may send to no conversation {conversation!r}."
                f" {children.names(('parent', *delegates.send_to))}"
            )
        entry = children.all().get(conversation)
        if entry is not None:
            children.check_agent(delegates, conversation)
        self._messages.check(delegates.max_messages)
        works = children.find_open(conversation) is not None or children.is_watched(conversation)
        begins = entry is not None and not works
        with (
            children.hold_place(delegates, context.attempt <= 1)
            if begins
            else nullcontext() as place
        ):
            command = Send((TextContent(text),), sender=self.id)
            key = f"{context.idempotency_key}>{conversation}"
            try:
                journal.store.post(conversation, command, key)
            except ConversationNotFound:
                raise tool_refusal(
                    f"There is no conversation {conversation!r}."
                    f" {children.names(('parent', *delegates.send_to))}"
                ) from None
            self._messages.count()
            was_read = self._wait_until_read(
                context, delegates, conversation, place, entry is not None
            )
        later = (
            "" if was_read else " It is not running now and reads the message when it continues."
        )
        return _answer(f"Sent to {conversation}.{later}")

    def _wait_until_read(
        self, context: ToolContext, delegates: Delegates, id: str, place: object, own: bool
    ) -> bool:
        """Return True once the child, or another owner, has read a message; False if none does."""
        children = self.children
        deadline = time.monotonic() + (CLOSE_SECONDS if own else _INBOX_SECONDS)
        while True:
            with children.wakeup(context, [id]) as wakeup:
                child = children.find_open(id)
                if child is not None:
                    child.hosting.drain_inbox()
                if children.is_watched(id) or not children.has_mail(id):
                    # the watching thread drains the inbox once more when it closes the child
                    return True
                if own:
                    try:
                        children.reopen(context, delegates, id, place)
                        return True
                    except (LeaseHeld, ConversationClosed):  # closing, or another process has it
                        if self._context.closing:
                            raise
                remaining = deadline - time.monotonic()
                if context.cancelled or remaining < 0:
                    return False
                wakeup(min(remaining, FOREIGN_POLL_SECONDS))


def _answer(text: str, meta: dict[str, Any] | None = None, is_error: bool = False) -> ToolResult:
    return ToolResult((TextContent(text),), meta=meta or {}, is_error=is_error)


def _continues_later(agent: str) -> ToolResult:
    """Return the unwritten result of a call that is made again after a reopening."""
    text = f"{agent} continues when the conversation is opened again."
    return ToolResult.failure(text, "cancelled", meta={CONTINUES_LATER: True})
