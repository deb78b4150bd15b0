"""`Hosting`: one open conversation as its host and its parent see it: the lease, the loop's thread,
the inbox, and the end."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import check_budget
from holdfast.commands import Command, Interrupt, Send
from holdfast.content import Content
from holdfast.conversation.actions import AwaitEvents, next_action
from holdfast.conversation.asides import Asides
from holdfast.conversation.callbacks import Callback, Subscription, guarded
from holdfast.conversation.calls import Calls
from holdfast.conversation.children import CLOSING, Children, ConversationOrigin, runtime_of
from holdfast.conversation.condensations import Condensations
from holdfast.conversation.deltas import Deltas
from holdfast.conversation.executor import CommandExecutor, Prepared, readable
from holdfast.conversation.hook_points import HookPoints
from holdfast.conversation.inbox import CommandInbox
from holdfast.conversation.journal import Clock, Journal
from holdfast.conversation.loop import Loop
from holdfast.conversation.model_call import ModelCall
from holdfast.conversation.observer import Observer, observe
from holdfast.conversation.questions import OnQuestion, UserQuestions
from holdfast.conversation.request_view import RequestView
from holdfast.conversation.run_context import RunContext, agent_in_force, inside
from holdfast.conversation.status import ConversationStatus
from holdfast.conversation.timers import fire_due
from holdfast.errors import ConversationBusy, ConversationClosed, HoldfastError, ToolCancelled
from holdfast.llm.completion import Delta
from holdfast.object_struct import ObjectStruct
from holdfast.store import Store
from holdfast.tools.secrets import Secrets

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation
    from holdfast.conversation.delegation import Delegation
    from holdfast.conversation.scripts import Scripts
    from holdfast.conversation.undo import FileUndo

_log = logging.getLogger("holdfast")

RUNNING = ConversationStatus.RUNNING
CLOSE_SECONDS = 5.0  # for the close of a conversation by one of its own calls


class HostingOptions(NamedTuple):
    """The options of a conversation; see the parameters of `Conversation`."""

    runtime: object | None
    on_delta: Callable[[Delta], object] | None
    on_progress: Callable[[str, str], object] | None
    on_question: OnQuestion
    observers: tuple[Observer, ...]
    clock: Clock
    new_id: Callable[[], str]
    secrets: Secrets | None = None
    undo: FileUndo | None = None


class Hosting:
    """One open conversation, for a program that drives many with few threads, and for its parent.

    A host sets `hosted`, and calls `advance` on any thread while `has_work`. Thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "_asides",
        "_calls",
        "_close_from_within",
        "_hooks",
        "_loop",
        "_new_conversation",
        "_on_question",
        "_own_thread",
        "_parent_children",
        "_subscriptions",
        "context",
        "deltas",
        "executor",
        "has_lease",
        "inbox",
        "journal",
        "questions",
    )

    def __init__(
        self,
        agent: Agent,
        store: Store,
        id: str,
        options: HostingOptions,
        origin: ConversationOrigin,
        new_conversation: Callable[..., Conversation],
    ) -> None:
        parent = None if origin.family is None else origin.family.journal
        observed = None if parent is None else parent.observed
        # weak: a conversation without references is freed by its reference count
        family = weakref.proxy(self)
        journal = self.journal = Journal(
            store,
            id,
            options.clock,
            options.new_id,
            _InboxNews(family),
            origin.history,
            origin.spawned_by,
        )
        journal.secrets = options.secrets
        journal.observed = observe(journal, options.observers, observed)
        runtime = runtime_of(agent) if options.runtime is None else options.runtime
        in_force = agent_in_force(agent, journal.fold)
        context = self.context = RunContext(
            agent, journal, runtime, *in_force, undo=options.undo, on_wait=origin.on_wait
        )
        if options.undo is not None:
            options.undo.place(runtime)  # it fails now rather than at the first call
        self.questions = UserQuestions(journal, options.on_question)
        self.deltas = Deltas(journal)
        if options.on_delta is not None:
            self.deltas.listen(guarded(options.on_delta))
        view = RequestView(journal)
        self._hooks = HookPoints(context, family)
        on_progress = options.on_progress
        self._calls = Calls(
            context,
            journal,
            self.questions,
            _ignore if on_progress is None else guarded(on_progress),
            family,
        )
        condensing = Condensations(context, self._hooks, view)
        self._loop = Loop(
            context,
            self._calls,
            self._hooks,
            condensing,
            view,
            ModelCall(context, self._calls, self._hooks, condensing, view, self.deltas),
            family,
            parent,
        )
        self.executor = CommandExecutor(context, self._loop, self._calls, self._hooks, family)
        self.inbox = CommandInbox(context, self.executor, family)
        self._parent_children = origin.family
        self._new_conversation = new_conversation
        self._on_question: OnQuestion = options.on_question
        self._subscriptions: tuple[Subscription, ...] = ()
        # True once the conversation has written here, or may write: its state is its own
        self.has_lease = False
        self._own_thread: threading.Thread | None = None  # made by start_thread
        self._close_from_within = False
        self._asides: Asides | None = None  # made with the first question aside

    def asides(self) -> Asides:
        """Return the questions aside, made at the first use."""
        with self.journal.lock:
            if self._asides is None:
                self._asides = Asides(self.context, self._loop)
            return self._asides

    def children(self) -> Children:
        """Return the children that are open here, made at the first use."""
        context = self.context
        with self.journal.lock:
            if context.closing:
                raise ToolCancelled(CLOSING)
            if context.children is None:
                context.children = self.new_children()
            return context.children

    def new_children(self) -> Children:
        """Return children that the caller closes; for the end hooks of a conversation that is being
        closed."""
        context, ask, new = self.context, self._on_question, self._new_conversation
        return Children(self.journal, context.runtime, ask, new, context.on_wait)

    def delegation(self) -> Delegation:
        """Return the delegation, made at the first use."""
        from holdfast.conversation.delegation import Delegation  # few agents delegate

        with self.journal.lock:
            if self.context.delegation is None:
                parts = self._calls.context, self._deliver, self._new_conversation
                self.context.delegation = Delegation.of(self.context, *parts)
            return self.context.delegation

    def scripts(self) -> Scripts:
        """Return the runner of scripts."""
        from holdfast.conversation.scripts import Scripts  # few agents write code

        return Scripts(self.context, self._calls)

    def set_secrets(self, secrets: Secrets | None) -> None:
        """Replace the secrets from the next call on. Earlier values are still masked."""
        with self.journal.lock:
            earlier = self.journal.secrets
            if secrets is None and earlier is not None:
                secrets = Secrets({})
            self.journal.secrets = None if secrets is None else secrets.replacing(earlier)

    # --- state ---

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        if self.journal.closed or self.context.closing:
            return ConversationStatus.CLOSED
        failed = self.context.failure is not None
        return ConversationStatus.ERROR if failed else self.journal.fold.status

    @property
    def hosted(self) -> bool:
        """True if a host calls `advance` as soon as there is work. A message to a hosted
        conversation at rest sets it to RUNNING."""
        return self._loop.hosted

    @hosted.setter
    def hosted(self, hosted: bool) -> None:
        with self.journal.lock:
            self._loop.hosted = hosted
            self.journal.lock.notify_all()

    @property
    def busy(self) -> bool:
        """True if a loop drives the conversation now."""
        return self._loop.thread is not None

    @property
    def children_busy(self) -> bool:
        """True if a child that is open here, or one of its descendants, is driven now, or if a
        question aside is being answered."""
        children = self.context.children
        asking = self._asides is not None and self._asides.busy
        return asking or (children is not None and children.busy)

    @property
    def delegates_busy(self) -> bool:
        """True if an agent that was given work in the background is at it."""
        return self.context.delegation is not None and self.context.delegation.children.busy

    @property
    def has_work(self) -> bool:
        """True if `advance` would do something. Not meaningful while `busy`."""
        context, journal = self.context, self.journal
        with journal.lock:
            if journal.closed or context.closing or context.failure is not None:
                return False
            if journal.fold.has_new_message or context.changes_agent:
                return True
            return not isinstance(next_action(journal.fold, context.agent.limits), AwaitEvents)

    @property
    def resting(self) -> bool:
        """True while the loop waits for something to do."""
        return self._loop.resting

    def at_rest(self) -> bool:
        """Return True if the loop has nothing to do and has noticed."""
        fold = self.journal.fold
        idle = fold.status is not RUNNING and not fold.condensing
        return self._loop.resting and (idle or self.context.failure is not None)

    def check_not_inside(self, method: str) -> None:
        """Raise `ConversationBusy` on a thread that works for this conversation's loop."""
        if id(self._loop) in inside.get():
            raise ConversationBusy(
                f"Conversation {self.journal.id!r}: its own model, tool or listener called"
                f" {method}(), which would wait for itself forever."
            )

    # --- commands ---

    def open(self) -> None:
        """Take the lease. Raises `ConversationClosed`, `LeaseHeld`, `StoreError`."""
        context, failure = self.context, self.context.failure
        with self.journal.lock:
            context.check_open()
            if failure is not None:
                # raised to many callers, it must not gather the tracebacks of all
                raise failure.with_traceback(None)
            if self.has_lease:
                return
            self.journal.acquire()
            self.has_lease = True
            context.own_agent.connections.opened(context.runtime)
        if self.journal.fold.asides.pending:
            self.asides().settle_lost()
        self.inbox.drain()  # commands posted while the lease was free
        self.fire_due_timers()

    def execute(self, command: Command) -> ev.MessageAdded | None:
        """Carry out a command in one transaction; return the event of a message."""
        self.open()
        return self.executor.execute(command)

    def execute_posted(self, command: Command, key: str | None) -> None:
        """Carry out a command behind those in the inbox; with a `key` through the inbox, once."""
        self.open()
        if key is not None:
            self.inbox.execute(command, key)
            return
        command = readable(command)
        self.inbox.drain()
        self.executor.execute(command)

    def send_first(self, content: tuple[Content, ...]) -> None:
        """Send a message unless the conversation has one."""
        self.open()
        if self.journal.fold.message_seq:
            return
        prepared = self.executor.prepare(Send(content))
        with self.journal as journal:
            if not journal.fold.message_seq:
                self.executor.apply(prepared)

    def drain_inbox(self) -> None:
        """Carry out the commands that other processes posted (`store.post`).

        An open conversation does this by itself, well within a second; call it to avoid that
        delay. Commands behind one that another thread asks hooks about are left to that thread.
        """
        if self.has_lease:
            self.inbox.drain(waits=False)

    def finish_inbox(self) -> None:
        """Carry out all commands that were posted; wait for hooks that other threads ask about
        them. Raises `ConversationClosed`, `LeaseHeld`, `StoreError`."""
        self.open()
        self.inbox.drain()

    def _deliver(self, command: Command, key: str) -> None:
        """Post a command to this conversation under a key, and carry it out on this thread."""
        self.inbox.post(command, key)
        self.drain_inbox()

    def fire_due_timers(self) -> None:
        """Fire the timers that are due by the conversation's clock.

        An open conversation that a thread drives does this by itself, one without calls it when it
        is opened or run.
        """
        if self.has_lease and self.journal.fold.timers.by_id:
            fire_due(self.journal, self._loop.drives)

    # --- the loop ---

    def begin(self, resume: bool = False, messages: Sequence[Prepared] = ()) -> ConversationStatus:
        """Begin or continue a run without driving it, for a caller that then calls `advance`.

        If there is work, the journal says RUNNING when this returns; with `resume` also after a
        pause or an error. `messages` begin a run at rest in one transaction with it. Call
        `finish_inbox` first, so that work in the inbox counts: this waits for no hook of a
        conversation that is open. Raises `ConversationClosed`, `LeaseHeld`, `StoreError`.
        """
        self.open()
        self.fire_due_timers()
        if messages:
            with self.journal:
                self.executor.begin_with(messages)
        if not messages or self.status is not RUNNING:
            with self.journal:
                self.executor.begin(resume)
        return self.status

    def advance(self, hands_over: Callable[[], bool] | None = None) -> ConversationStatus:
        """Drive the loop on the caller's thread while there is work, and return the status.

        Unlike `Conversation.run` it does not resume a paused or failed conversation. `hands_over`
        is called between two steps; when it returns True, `advance` returns with work left to do.
        Raises `LeaseHeld`, `StoreError`, `ConversationBusy`.
        """
        self.open()
        if self.has_work:
            self._loop.hands_over = hands_over
            self.drive("advance")
        return self.status

    def use(self, agent: Agent) -> None:
        """Let `agent` answer from the next step on. See `Conversation.use`."""
        self.open()
        context, journal = self.context, self.journal
        above = [] if journal.spending is None else journal.spending.inherited
        tokens = any(budget.tokens is not None for budget in above)
        cost = any(budget.cost is not None for budget in above)
        who = "use: the budget of the conversation that spawned this one has"
        check_budget(who, agent, tokens, cost)
        with journal.lock:
            context.check_open()
            context.next_agent = agent
            journal.lock.notify_all()
            due = context.changes_agent and journal.fold.status is not RUNNING
            if self.busy or self.hosted or not due:
                return
        with suppress(ConversationBusy):  # another thread drives meanwhile
            self.drive("use", begin=False)

    def start_thread(self) -> None:
        """Drive the loop on its own thread until `close`. See `Conversation.start_thread`."""
        self.open()
        loop = self._loop
        with self.journal.lock:
            if self._own_thread is not None:
                return
            if loop.thread is not None:
                raise ConversationBusy(
                    f"Conversation {self.journal.id!r} is being run by {loop.thread.name!r};"
                    " start_thread after that."
                )
            with self.journal:
                self.executor.begin(resume=False)
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=lambda: context.run(self._drive_thread),
                name=f"holdfast-loop-{self.journal.id}",
                daemon=True,
            )
            thread.start()
            self._own_thread = loop.thread = thread
            loop.resting = False

    def run(self) -> None:
        """Carry out posted commands, and drive the loop on this thread until the conversation
        rests. See `Conversation.run`."""
        self.check_not_inside("run")
        self.finish_inbox()
        self.drive("run", resume=True)
        # Another thread may have carried out a command as the loop ended; no thread drives it then.
        while self._left_running():
            with suppress(ConversationBusy):  # another thread drives meanwhile
                self.drive("run")

    def _left_running(self) -> bool:
        with self.journal.lock:
            running = self.journal.fold.status is RUNNING and not self.hosted
            return running and self._loop.thread is None and self.has_work

    def drive(self, method: str, begin: bool = True, resume: bool = False) -> None:
        """Drive the loop on this thread until it rests, for the method of that name.

        Args:
            begin: Begin a run if there is a message.
            resume: Continue also after a pause or an error.
        """
        self.open()
        self.check_not_inside(method)
        loop = self._loop
        try:
            with self.journal:
                if loop.thread is not None:
                    raise ConversationBusy(
                        f"Conversation {self.journal.id!r} is driven by {loop.thread.name!r}; use"
                        " wait()."
                    )
                if begin:
                    self.executor.begin(resume)
                loop.thread = threading.current_thread()
                loop.resting = False
            contextvars.copy_context().run(loop.drive, until_rest=True)
        except KeyboardInterrupt:
            self.journal.break_off()
            # closed, or the store is gone: nothing runs on anyway
            with suppress(HoldfastError):
                self.interrupt()
            raise
        finally:
            loop.leave()
            self._finish_from_within()

    def _drive_thread(self) -> None:
        try:
            self._loop.drive(until_rest=False)
        finally:
            self._finish_from_within()

    def _finish_from_within(self) -> None:
        """Finish a close that came from a call of the run that has ended now."""
        if self._close_from_within:
            self._finish(time.monotonic() + CLOSE_SECONDS)

    def interrupt(self) -> None:
        self.execute(Interrupt())

    def wait(self, timeout: float | None) -> None:
        """Block until nothing runs or drives the conversation, at most `timeout` seconds."""
        self.check_not_inside("wait")
        journal, loop = self.journal, self._loop
        deadline = None if timeout is None else time.monotonic() + timeout
        with journal.lock:
            while (
                (loop.thread is not None or loop.hosted)
                and not journal.closed
                and not self.at_rest()
            ):
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                journal.lock.wait(remaining)

    def subscribe(self, callback: Callback, after_seq: int | None) -> Subscription:
        """Call `callback` for every event after `after_seq` (None: from now on) until `close`."""
        journal = self.journal
        with journal.lock:
            if self.status is ConversationStatus.CLOSED:
                raise ConversationClosed(f"Conversation {journal.id!r} is closed.")
            after_seq = journal.fold.last_seq if after_seq is None else after_seq
            subscription = Subscription(journal, callback, after_seq)
            self._subscriptions += (subscription,)
        return subscription

    # --- the end ---

    def close(self, timeout: float) -> None:
        """Interrupt the run and release what the conversation holds. See `Conversation.close`."""
        journal, loop = self.journal, self._loop
        if not journal.owner.here:  # a forked child process owns nothing here
            return
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        with journal.lock:
            if journal.closed:
                return
            within = loop.thread is not None and id(loop) in inside.get()
            self._close_from_within = self._close_from_within or within
        self.stop()
        if within:
            return
        with journal.lock:
            while (
                loop.thread is not None
                and not loop.resting
                and (remaining := deadline - time.monotonic()) > 0
            ):
                journal.lock.wait(remaining)
        if self._own_thread is not None and self._own_thread is not threading.current_thread():
            self._own_thread.join(max(0.0, deadline - time.monotonic()))
        self._finish(deadline)

    def stop(self) -> None:
        """Begin nothing further, here and in its children. `close` follows."""
        self.context.stop()
        self._hooks.cancel_messages()

    def _finish(self, deadline: float) -> None:
        context, loop = self.context, self._loop
        if context.children is not None:
            context.children.close(deadline)
        if context.delegation is not None:
            context.delegation.children.join(deadline)
        with self.journal.lock:
            subscriptions, self._subscriptions = self._subscriptions, ()
            had_lease, self.has_lease = self.has_lease, False
        still_running = self._calls.left_running(deadline) + self.inbox.join(deadline)
        if self._asides is not None:
            still_running += self._asides.close(deadline)
        self._hooks.end(deadline)
        self._calls.clean_up()
        thread = loop.thread
        if thread is not None and not loop.resting:
            still_running.append(thread.name)
        if still_running:
            _log.warning(
                "conversation %s closed while calls that ignore their cancellation still run: %s",
                self.journal.id,
                ", ".join(still_running),
            )
        if context.titling is not None:
            context.titling.join(deadline)
        for subscription in subscriptions:
            subscription.close(max(0.1, deadline - time.monotonic()))
        try:
            self.journal.close()
        finally:
            if self.journal.observed is not None:
                self.journal.observed.close()
            if self._parent_children is not None:
                self._parent_children.closed(self.journal.id, self)
            loop.release_guests()
            if had_lease:
                context.own_agent.connections.closed(context.runtime)


def _ignore(call_id: str, message: str) -> None:
    """Drop a call's progress, which has no follower."""


class _InboxNews(ObjectStruct):
    """The store's callback for news, which does not keep the conversation alive."""

    _hosting: Hosting  # weak

    def __call__(self) -> None:
        with suppress(ReferenceError):  # the conversation has no reference any more
            self._hosting.inbox.drain_soon()
