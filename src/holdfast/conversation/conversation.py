"""`Conversation`: an agent at work on one journal, and every operation on it."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.output import made
from holdfast.content import ContentLike, Message, ToolResult
from holdfast.conversation import copies, hooking, orders
from holdfast.conversation.actions import Wait, next_action
from holdfast.conversation.callbacks import Callback, Subscription
from holdfast.conversation.children import Spawned
from holdfast.conversation.driver import RUNNING, Driver, inside
from holdfast.conversation.journal import Clock, Journal, utc_now
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.observer import Observing, observe, observers
from holdfast.conversation.outputs import blobs_of
from holdfast.conversation.questions import OnQuestion
from holdfast.conversation.runtimes import runtime_of
from holdfast.conversation.set_once import SetOnce
from holdfast.conversation.state import AT_REST, ConversationState, ConversationStatus, Fold, fold
from holdfast.conversation.stream import EventStream
from holdfast.errors import (
    ConfigurationError,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    HoldfastError,
    StoreError,
)
from holdfast.llm.completion import Delta
from holdfast.store import MemoryStore, Store, Summary
from holdfast.tools.callables import refuse_async
from holdfast.tools.forms import filled
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.conversation.delegating import Team
    from holdfast.conversation.replay import Replay

_log = logging.getLogger("holdfast")


def random_id() -> str:
    """Return 128 random bits in hex."""
    return os.urandom(16).hex()


class Conversation(SetOnce):
    """One conversation with an agent. Its loop runs on its own thread (`start_thread`) or on the
    caller's (`run`).

    An `id` that the store knows continues where it stopped. The constructor only reads.
    `start_thread`, `run` and the first write take the lease and raise `LeaseHeld` while another
    owner has it.

    Every method is thread-safe. `with Conversation(agent) as conversation:` closes it. Raises
    `ConfigurationError` (a `ValueError`) that names the argument that does not fit.

    Args:
        store: Keeps the journal; None keeps it in memory.
        id: The conversation's id; None makes a new one.
        runtime: Handed to tools as `ToolContext.runtime`; None takes the runtime of the agent's
            tools, if they share one.
        on_delta: Called with each piece of a streamed answer, on the thread that receives it.
        on_progress: Called as `on_progress(call_id, message)` with tools' progress, on their
            thread.
        on_question: Handles running calls' questions to the user. None declines them at once. With
            "wait" the call waits for `answer` or `decline`. A function is called with the question
            on the call's thread; it returns the form's values, True, or None to decline.
        observer: One observer (`holdfast.observe`) or several; they follow spawned conversations,
            too.
        clock: Returns the current time, with a time zone.
        new_id: Returns a new unique id.
    """

    __slots__ = (
        "__weakref__",
        "_close_from_within",
        "_driver",
        "_family",
        "_journal",
        "_loop",
        "_observers",
        "_opened",
        "_subscriptions",
        "agent",
        "id",
        "store",
    )

    set_once = {
        "agent": (
            "To continue with another agent use conversation.fork(agent=...), or"
            " Conversation(agent, store, id=...) once this one is closed."
        ),
        "store": (
            "Open the conversation anew with Conversation(agent, store), or export it to another"
            " store."
        ),
        "id": (
            "Give the id to Conversation(agent, store, id=...), or fork the conversation under"
            " another one."
        ),
    }

    def __init__(
        self,
        agent: Agent,
        store: Store | None = None,
        id: str | None = None,
        *,
        runtime: object | None = None,
        on_delta: Callable[[Delta], object] | None = None,
        on_progress: Callable[[str, str], object] | None = None,
        on_question: OnQuestion = None,
        observer: Observing = None,
        clock: Clock = utc_now,
        new_id: Callable[[], str] = random_id,
        _known: tuple[list[ev.AnyEvent], Fold] | None = None,
        _spawned: Spawned | None = None,
    ) -> None:
        _check(agent, store, id, on_delta, on_progress, on_question)
        self.agent = agent
        self.store: Store = MemoryStore() if store is None else store
        self.id = new_id() if id is None else id
        self._family = None if _spawned is None else _spawned.family
        self._journal = Journal(
            self.store,
            self.id,
            clock,
            new_id,
            _weakly(self),
            _known,
            "" if _spawned is None else _spawned.key,
        )
        runtime = runtime_of(agent) if runtime is None else runtime
        self._driver = Driver(
            agent,
            self._journal,
            runtime,
            on_delta,
            on_progress,
            on_question,
            Conversation,
            _new_team,
        )
        self._driver.above = None if _spawned is None else _spawned.family.journal
        self._observers = observers("Conversation: observer", observer)
        observe(self._journal, self._observers, self._driver.above)
        self._subscriptions: list[Subscription] = []
        self._opened = False
        self._loop: threading.Thread | None = None  # made by start_thread
        self._close_from_within = False

    @classmethod
    def from_state(
        cls,
        state: ConversationState,
        agent: Agent,
        store: Store | None = None,
        id: str | None = None,
        **options: Any,
    ) -> Conversation:
        """Return a conversation that goes on from `state` under a new id, with any agent, model or
        toolset; `options` as in the constructor.

        Calls that had not begun stay open. One that waits for a decision still waits. One that
        was approved waits again, since the copy needs an approval of its own. A call that had
        begun has an unknown outcome here, and the model is told so. Large outputs are kept whole
        (`get_output`) if they are in the same store.
        """
        if not isinstance(state, ConversationState):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"from_state: state takes a ConversationState, not {state!r}.")
        conversation = cls(agent, store, id, **options)
        try:
            conversation._import(state)
        except BaseException:
            conversation.close()
            raise
        return conversation

    def fork(
        self,
        seq: int | None = None,
        agent: Agent | None = None,
        id: str | None = None,
        **options: Any,
    ) -> Conversation:
        """Return a new conversation in the same store that begins with this one's events up to
        `seq` (None: all).

        It may have another agent, model or toolset; `options` as in the constructor. The two share
        these events: none is copied.

        The fork answers calls that were open there: as not run, or, if they had begun, as of
        unknown outcome. Raises `ConfigurationError` for a seq that does not exist, `StoreError`
        if `id` exists.
        """
        with self._journal.changed:
            events, state = list(self._journal.events), self._journal.fold.copy()
        seq = len(events) if seq is None else seq
        if not isinstance(seq, int) or not 0 <= seq <= len(events):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork takes a seq from 0 to {len(events)}, not {seq!r}.")
        if seq < len(events):
            del events[seq:]
            state = fold(events)
        runtime = self._driver.calls.runtime
        if runtime is runtime_of(self.agent):  # the fork then takes its own agent's runtime
            runtime = None
        inherited: dict[str, Any] = {
            "runtime": runtime,
            "observer": self._observers,
            "clock": self._journal.clock,
            "new_id": self._journal.new_id,
        }
        answers = copies.fork_events(state, self._journal.clock, self._journal.new_id)
        state.take(answers)
        forked = Conversation(
            agent or self.agent,
            self.store,
            id,
            **{**inherited, **options},
            _known=([*events, *answers], state),
        )
        try:
            # In one transaction: a fork with open calls must not exist even briefly, since another
            # process could run them.
            self.store.fork(self.id, forked._journal.summary(()), answers)
        except ConversationNotFound:
            # this conversation was never written, so there is nothing to share
            if events or self.store.read(forked.id, 0, 1):
                raise
        return forked

    def _import(self, state: ConversationState) -> None:
        if state.events:
            self._open()
        if self._journal.fold.last_seq:
            raise ConfigurationError(
                f"from_state: conversation {self.id!r} has events already; give another id."
            )
        if state.events:
            with self._journal as journal:
                journal.add_all(
                    [
                        *state.events,
                        *copies.copy_events(fold(state.events), journal.clock, journal.new_id),
                    ]
                )
                for event in state.events:
                    for id in blobs_of(event):
                        with suppress(StoreError):  # the blob is not in this store
                            journal.keep(self.store.blob(id), event.seq)

    # --- state ---

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same."""
        journal = self._journal
        with journal.changed:
            return ConversationState.of(
                self.id, self.status, journal.fold.copy(), journal.events_until
            )

    def get_state(self) -> ConversationState:
        """Return a snapshot of everything so far, as `state`."""
        return self.state

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        if self._journal.closed or self._driver.calls.closing:
            return ConversationStatus.CLOSED
        return (
            ConversationStatus.ERROR
            if self._driver.failure is not None
            else self._journal.fold.status
        )

    @property
    def failure(self) -> Exception | None:
        """The error after which nothing can be journaled (a `StoreError`: a full disk, a lost
        lease); None if there is none. Open the conversation again to continue."""
        return self._driver.failure

    @property
    def hosted(self) -> bool:
        """True if a host calls `advance` as soon as there is work. A message to a hosted
        conversation at rest sets it to RUNNING."""
        return self._driver.hosted

    @hosted.setter
    def hosted(self, hosted: bool) -> None:
        with self._journal.changed:
            self._driver.hosted = hosted
            self._journal.changed.notify_all()

    @property
    def busy(self) -> bool:
        """True if a loop drives the conversation now."""
        return self._driver.thread is not None

    @property
    def has_work(self) -> bool:
        """True if `advance` would do something. Not meaningful while `busy`."""
        driver, journal = self._driver, self._journal
        with journal.changed:
            if journal.closed or driver.calls.closing or driver.failure is not None:
                return False
            return journal.fold.asked or not isinstance(
                next_action(journal.fold, driver.agent.limits), Wait
            )

    @property
    def spawned_by(self) -> str:
        """The idempotency key of the call that spawned the conversation, "" for none. If it was
        opened by its id, the key is known once it has the lease."""
        return self._journal.spawned_by

    @property
    def children(self) -> list[Summary]:
        """The conversations that its calls spawned, wherever they are open, the last written
        first."""
        return self.store.list(spawned_by=self.id)

    def open_children(self) -> list[Conversation]:
        """Return the children that are open here. Their questions and pending decisions are
        answered on them."""
        return [] if self._driver.calls.children is None else self._driver.calls.children.open()

    @property
    def children_busy(self) -> bool:
        """True if a child that is open here, or one of its descendants, is driven now."""
        return self._driver.calls.children is not None and self._driver.calls.children.busy

    @property
    def output(self) -> Any:
        """`state.output` as an object of the agent's `output_type`; None if there is none.
        Raises `OutputInvalid` if it does not fit that type (any more)."""
        with self._journal.changed:
            fold = self._journal.fold
            seq, value = fold.output_seq, fold.output
        return made(self._driver.agent.output, value) if seq else None

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        with self._journal.changed:
            return list(self._journal.events)

    def get_output(self, call_id: str) -> ToolResult:
        """Return the whole result of a call, even if the journal holds only its beginning and
        end. Raises `ConfigurationError` if the call has no result."""
        found = self._journal.output(call_id)
        if found is None:
            raise ConfigurationError(f"get_output: call {call_id!r} has no result.")
        return found

    def replay(self, agent: Agent | None = None) -> Replay:
        """Replay the journal with its recorded answers and results, and return the comparison.

        It says whether today's Holdfast would send the model the same requests, and, with
        `agent`, whether that agent would (its prompt, tools, model and limits).
        """
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"replay takes an Agent or None, not {agent!r}.")
        from holdfast.conversation.replay import replay

        return replay(self.get_history(), agent)

    def __repr__(self) -> str:
        return (
            f"Conversation(id={self.id!r}, status={self.status.value!r},"
            f" events={self._journal.fold.last_seq})"
        )

    # --- operations ---

    def send_message(
        self, message: str | Message | ContentLike, *, sender: str = "user"
    ) -> ev.Message:
        """Send the agent a message from the user or from the conversation `sender`, and return its
        event.

        One append; never waits for a tool or a model, but hooks on messages may take their time.
        A conversation at rest whose loop was started is RUNNING when this returns. While PAUSED
        or WAITING_FOR_CONFIRMATION the status does not change. Raises `ConfigurationError` for
        an empty message, `HookDenied` if a hook denies it, `ConversationClosed`, `LeaseHeld`.
        """
        content = checked_content(content_of(message))
        if sender != "user":
            from holdfast.commands import check_sender

            check_sender("send_message", sender)
        self._open()
        heard = orders.pass_hooks(self._driver, content, sender)
        with self._journal:
            return orders.send(self._driver, heard.content, "", sender, heard)

    def _send_first(self, message: str | Message | ContentLike) -> None:
        """Send a message unless the conversation already has one."""
        content = checked_content(content_of(message))
        self._open()
        if self._journal.fold.message_seq:
            return
        heard = orders.pass_hooks(self._driver, content)
        with self._journal as journal:
            if not journal.fold.message_seq:
                orders.send(self._driver, heard.content, heard=heard)

    def start_thread(self) -> None:
        """Drive the loop on its own thread until `close`. Continues an unfinished run.
        Idempotent. Raises `LeaseHeld`."""
        self._open()
        driver = self._driver
        with self._journal.changed:
            if self._loop is not None:
                return
            if driver.thread is not None:
                raise ConversationBusy(
                    f"Conversation {self.id!r} is being run by {driver.thread.name!r}; start_thread"
                    " after that."
                )
            with self._journal as journal:
                if journal.fold.asked:
                    journal.add(ev.Status, status=RUNNING.value)
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=lambda: context.run(self._thread_main),
                name=f"holdfast-loop-{self.id}",
                daemon=True,
            )
            thread.start()
            self._loop = driver.thread = thread
            driver.resting = False

    def _thread_main(self) -> None:
        try:
            self._driver.drive(until_rest=False)
        finally:
            if self._close_from_within:
                self._finish(time.monotonic() + 5.0)

    def run(self) -> ConversationState:
        """Drive the loop on the caller's thread until the conversation rests, and return its state;
        `start_thread` and `wait` in one.

        Continues from PAUSED, ERROR or STUCK as `resume` does. A model's or a limit's error is
        not raised: it is the state's `error`, with status ERROR. Ctrl-C pauses the conversation
        and is raised. If only calls that clients run are left (`state.offers`), returns with
        status RUNNING. Raises `LeaseHeld`, `StoreError`, `ConversationBusy`.
        """
        self._drive("run", resume=True)
        return self.state

    def stream(self, message: str | Message | ContentLike | None = None) -> EventStream:
        """Send `message`, if one is given, and run; return an iterator of the events and deltas as
        they come, on the caller's thread, until the conversation rests.

        Equivalent to `send_message` and `run` with a callback for events and one for deltas, in one
        order. If another thread drives the conversation (`start_thread`), the stream follows that.
        A loop that is left early lets the run go on; `with conversation.stream(...) as events:`
        interrupts it. Ctrl-C interrupts it and is raised. Raises as `send_message` and `run` do.

        Example:
            for item in conversation.stream("Fix the test."):
                print(item)
        """
        self._open()
        self._not_inside("stream")
        journal, driver = self._journal, self._driver
        with journal.changed:
            after_seq = journal.fold.last_seq
        if message is not None:
            self.send_message(message)
        with journal.changed:
            driven = driver.thread is not None or driver.hosted
        return EventStream(
            journal, driver, after_seq, None if driven else self.run, self._at_rest, self.interrupt
        )

    def begin(self, resume: bool = False) -> ConversationStatus:
        """Begin or continue a run without driving it, for a caller that then calls `advance`.

        If there is work, the journal says RUNNING when this returns; with `resume` also after a
        pause or an error. Raises `ConversationClosed`, `LeaseHeld`, `StoreError`.
        """
        self._open()
        driver = self._driver
        orders.drain(driver)
        with self._journal as journal:
            if driver.calls.closing:
                raise ConversationClosed(
                    f"Conversation {self.id!r} is closed. Open it again with Conversation(agent,"
                    " store, id=...)."
                )
            if journal.fold.asked:
                journal.add(ev.Status, status=RUNNING.value)
            elif resume:
                orders.resume(driver)
        return self.status

    def advance(self, hands_over: Callable[[], bool] | None = None) -> ConversationStatus:
        """Drive the loop on the caller's thread while there is work, and return the status.

        Unlike `run` it does not resume a paused or failed conversation. It serves programs that
        drive many conversations with few threads (`hosted`). `hands_over` is called between two
        steps; when it returns True, `advance` returns with work left to do. Raises `LeaseHeld`,
        `StoreError`, `ConversationBusy`.
        """
        self._open()
        if self.has_work:
            self._driver.hands_over = hands_over
            self._drive("advance", resume=False)
        return self.status

    def _drive(self, method: str, resume: bool | None) -> None:
        """Drive the loop on this thread until it rests.

        `resume` True also continues after a pause or an error; None begins no run.
        """
        self._open()
        self._not_inside(method)
        driver = self._driver
        try:
            with self._journal as journal:
                if driver.thread is not None:
                    raise ConversationBusy(
                        f"Conversation {self.id!r} is driven by {driver.thread.name!r}; use wait()."
                    )
                if journal.fold.asked and resume is not None:
                    journal.add(ev.Status, status=RUNNING.value)
                elif resume:
                    orders.resume(driver)
                driver.thread = threading.current_thread()
                driver.resting = False
            contextvars.copy_context().run(driver.drive, until_rest=True)
        except KeyboardInterrupt:
            self._journal.break_off()
            # closed, or the store is gone: nothing runs on anyway
            with suppress(HoldfastError):
                self.interrupt()
            raise
        finally:
            driver.leave()
            if self._close_from_within:
                self._finish(time.monotonic() + 5.0)

    def pause(self) -> None:
        """Stop after the current model call or the calls that have begun. Survives a restart;
        `resume` ends it."""
        self._open()
        with self._journal:
            orders.pause(self._driver)

    def resume(self) -> None:
        """Continue after a pause or an interrupt; try again after ERROR or STUCK. Otherwise does
        nothing."""
        self._open()
        with self._journal:
            effect = orders.resume(self._driver)
        if effect is not None:
            effect()

    def interrupt(self) -> None:
        """Pause at once. At rest it does nothing.

        The running model call is cancelled, running tools are told to stop (commands are
        killed), and queued calls are answered as not run. Effects that tools already had remain.
        """
        self._open()
        with self._journal:
            effect = orders.interrupt(self._driver)
        if effect is not None:
            effect()

    def condense(self, instructions: str | None = None) -> None:
        """Have the agent's condenser shorten the history that the model is shown; the journal keeps
        all.

        A driven conversation condenses before its next request, also at rest. Otherwise the
        caller's thread condenses before this returns; but if calls are open or the run was paused
        or cut off, the next run does it. The result is a `Condensation` event, whose `failed` says
        if nothing could be left out. Raises `ConfigurationError` if the agent has no condenser.

        Args:
            instructions: For a condenser that has a model write a summary.
        """
        if instructions is not None and not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"condense: instructions takes a str or None, not {instructions!r}."
            )
        self._open()
        driver = self._driver
        with self._journal as journal:
            orders.condense(driver, clean(instructions or ""))
        with journal.changed:
            if (
                driver.thread is not None
                or driver.hosted
                or journal.fold.status not in AT_REST
                or not journal.fold.condensing
            ):
                return
        with suppress(ConversationBusy):  # another thread drives meanwhile
            self._drive("condense", resume=None)

    def approve(
        self,
        call_id: str | None = None,
        *,
        arguments: dict[str, Any] | None = None,
        arguments_hash: str | None = None,
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Approve a call that waits for confirmation, with other `arguments` if given; without
        `call_id` all that wait now.

        Give the `arguments_hash` of the call that was reviewed (`state.pending_confirmations`)
        if the pending call may have changed since. Raises `ConfigurationError` if the call does
        not wait (or none does) or its hash differs, `ToolValidationError` if the new arguments
        do not fit.
        """
        if call_id is None and (arguments is not None or arguments_hash is not None):
            raise ConfigurationError(
                "approve takes arguments and arguments_hash with a call_id alone."
            )
        self._open()
        if arguments is not None:
            arguments = orders.json_arguments(arguments)
            with self._journal.changed:
                name = orders.pending(self._journal, call_id)[0].name
            # user code, so not under the lock
            self._driver.agent.tools.get(name).validate(arguments)
        with self._journal as journal:
            calls = orders.pending(journal, call_id)
            effect = orders.approve(
                self._driver, calls, arguments_hash, arguments, clean(by), clean(reason)
            )
        if effect is not None:
            effect()

    def reject(self, call_id: str | None = None, reason: str = "", *, by: str = "user") -> None:
        """Answer a call that waits for confirmation as not run, and tell the model the reason;
        without `call_id` all that wait now.

        Raises `ConfigurationError` if the call does not wait, or none does.
        """
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"reject: reason takes a str, not {reason!r}.")
        self._open()
        with self._journal as journal:
            effect = orders.reject(
                self._driver, orders.pending(journal, call_id), clean(reason), clean(by)
            )
        effect()

    def answer(
        self,
        question_id: str | None = None,
        values: dict[str, Any] | bool | None = True,
        *,
        by: str = "user",
    ) -> None:
        """Answer a running call's question to the user (`state.pending_questions`); without
        `question_id` the only one.

        `values` are the form's values; those with a default may be missing. True says yes, None
        or False declines. Raises `ConfigurationError` if they do not fit the form, or no call
        waits for that answer.
        """
        self._open()
        question = self._driver.calls.questions.waiting(question_id)
        # a schema from elsewhere, so not under the lock
        found = filled(f"answer: question {question.id!r}", question.schema, values)
        with self._journal:
            effect = self._driver.calls.questions.answer(question.id, found, clean(by), "")
        effect()

    def decline(
        self, question_id: str | None = None, reason: str = "", *, by: str = "user"
    ) -> None:
        """Decline a running call's question to the user; without `question_id` the only one.
        Raises as `answer`."""
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"decline: reason takes a str, not {reason!r}.")
        self._open()
        question = self._driver.calls.questions.waiting(question_id)
        with self._journal:
            effect = self._driver.calls.questions.answer(
                question.id, None, clean(by), clean(reason)
            )
        effect()

    def obey(self, command: Command, key: str | None = None) -> None:
        """Carry out a command (`holdfast.commands`) in one transaction.

        With a `key` the command goes through the store's inbox: a second one with the same key
        is not carried out again, and the call returns at once. Raises the command's
        `ConfigurationError` if it does not fit, `ToolValidationError` if an approval's new
        arguments do not; `ConversationClosed`, `LeaseHeld`, `StoreError`.
        """
        self._open()
        if key is None:
            orders.do(self._driver, command)
        else:
            orders.obey(self._driver, lambda: self.store.post(self.id, command, key), key)

    def drain_inbox(self) -> None:
        """Carry out the commands that other processes posted (`store.post`).

        An open conversation does this by itself, well within a second; call it to avoid that
        delay.
        """
        if self._opened:
            orders.drain(self._driver)

    def wait(self, timeout: float | None = None) -> ConversationStatus:
        """Block until nothing runs any more, here or at a client, at most `timeout` seconds; return
        the status.

        Returns at once if nothing drives the conversation. Raises `ConversationBusy` if called
        from within its own loop.
        """
        self._not_inside("wait")
        journal, driver = self._journal, self._driver
        deadline = None if timeout is None else time.monotonic() + timeout
        with journal.changed:
            while (
                (driver.thread is not None or driver.hosted)
                and not journal.closed
                and not self._at_rest()
            ):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                journal.changed.wait(left)
        return self.status

    def _at_rest(self) -> bool:
        """Return True if the loop has nothing to do. A driver that was notified but has not
        woken yet is not at rest."""
        driver = self._driver
        fold = self._journal.fold
        return driver.resting and (
            (fold.status is not RUNNING and not fold.condensing) or driver.failure is not None
        )

    def _not_inside(self, method: str) -> None:
        if id(self._driver) in inside.get():
            raise ConversationBusy(
                f"Conversation {self.id!r}: its own model, tool or listener called {method}(),"
                " which would wait for itself forever."
            )

    # --- callbacks ---

    def register_event_callback(
        self, callback: Callback, after_seq: int | None = None
    ) -> Subscription:
        """Call `callback(event)` for every event from now on (or after `after_seq`), in order, on
        its own thread.

        An exception of the callback is logged, and the next event follows. `close` waits for the
        callback up to its deadline.
        """
        if not callable(callback):
            raise ConfigurationError(
                "register_event_callback: callback takes a function of one event, not"
                f" {callback!r}."
            )
        refuse_async("register_event_callback: callback", callback)
        if after_seq is not None and (not isinstance(after_seq, int) or after_seq < 0):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                "register_event_callback: after_seq takes a seq, 0 for all events, not"
                f" {after_seq!r}."
            )
        with self._journal.changed:
            if self.status is ConversationStatus.CLOSED:
                raise ConversationClosed(f"Conversation {self.id!r} is closed.")
            subscription = Subscription(
                self._journal,
                callback,
                self._journal.fold.last_seq if after_seq is None else after_seq,
            )
            self._subscriptions.append(subscription)
        return subscription

    register_callback = register_event_callback

    # --- closing ---

    def close(self, timeout: float = 5.0) -> None:
        """Interrupt the run and release threads, processes, connections and the lease, within about
        `timeout` seconds. Idempotent.

        The store keeps everything: a run that this cuts off continues when the conversation is
        opened and started again. A callback that does not stop when asked to is left behind,
        with a warning in the log. If one of the conversation's own calls closes it, the close
        takes effect when that call returns.
        """
        journal, driver = self._journal, self._driver
        if not journal.owner.here:  # a forked child process owns nothing here
            return
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        with journal.changed:
            if journal.closed:
                return
            within = driver.thread is not None and id(driver) in inside.get()
            if within:
                self._close_from_within = True
        self._stop()
        if within:
            return
        with journal.changed:
            while (
                driver.thread is not None
                and not driver.resting
                and (left := deadline - time.monotonic()) > 0
            ):
                journal.changed.wait(left)
        if self._loop is not None and self._loop is not threading.current_thread():
            self._loop.join(max(0.0, deadline - time.monotonic()))
        self._finish(deadline)

    def _stop(self) -> None:
        """Begin nothing further, here and in its children, and cancel running calls. `close`
        follows."""
        driver = self._driver
        with self._journal.changed:
            driver.calls.closing = True
            self._journal.changed.notify_all()
        if driver.calls.children is not None:
            driver.calls.children.stop()
        driver.calls.cancel()
        if driver.hooking is not None:
            driver.hooking.closing.cancel()

    def _finish(self, deadline: float) -> None:
        driver = self._driver
        if driver.calls.children is not None:
            driver.calls.children.close(deadline)
        if driver.team_made is not None:
            driver.team_made.join(deadline)
        with self._journal.changed:
            subscriptions, self._subscriptions = self._subscriptions, []
            opened, self._opened = self._opened, False
        left = driver.calls.left_running(deadline)
        hooking.end(driver, deadline)
        driver.calls.clean_up()
        thread = driver.thread
        if thread is not None and not driver.resting:
            left.append(thread.name)
        if left:
            _log.warning(
                "conversation %s closed while calls that ignore their cancellation still run: %s",
                self.id,
                ", ".join(left),
            )
        for subscription in subscriptions:
            subscription.close(max(0.1, deadline - time.monotonic()))
        try:
            self._journal.close()
        finally:
            if self._journal.observed is not None:
                self._journal.observed.close()
            if self._family is not None:
                self._family.closed(self)
            driver.let_guests_go()
            if opened:
                self.agent.connections.closed(self._driver.calls.runtime)

    def _open(self) -> None:
        """Take the lease, and count as one of the agent's open conversations."""
        journal, failure = self._journal, self._driver.failure
        with journal.changed:
            if self._driver.calls.closing:
                raise ConversationClosed(
                    f"Conversation {self.id!r} is closed. Open it again with Conversation(agent,"
                    " store, id=...)."
                )
            if failure is not None:
                # raised to many callers, it must not gather the tracebacks of all
                raise failure.with_traceback(None)
            if self._opened:
                return
            journal.acquire()
            self._opened = True
            self.agent.connections.opened(self._driver.calls.runtime)
        orders.drain(self._driver)  # commands posted while nobody held the lease

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_team(driver: Driver) -> Team:
    from holdfast.conversation.delegating import Team  # loaded late: few agents delegate

    return Team(driver)


def _weakly(conversation: Conversation) -> Callable[[], None]:
    """Return the store's callback for news, which does not keep the conversation alive."""
    reference = weakref.ref(conversation)

    def notify() -> None:
        found = reference()
        if found is not None:
            found.drain_inbox()

    return notify


def _check(
    agent: Any, store: Any, id: Any, on_delta: Any, on_progress: Any, on_question: Any
) -> None:
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"Conversation: agent takes an Agent, not {agent!r}.")
    if isinstance(store, list) or (
        store is not None and not callable(getattr(store, "append", None))
    ):
        raise ConfigurationError(
            f"Conversation: store takes a store such as SQLiteStore(path), not {store!r}."
        )
    if id is not None and (not isinstance(id, str) or not id.strip()):
        raise ConfigurationError(f"Conversation: id takes a non-empty str or None, not {id!r}.")
    if id is not None and clean(id) != id:
        raise ConfigurationError(f"Conversation: id takes text that UTF-8 can hold, not {id!r}.")
    for name, value in (("on_delta", on_delta), ("on_progress", on_progress)):
        if value is not None and not callable(value):
            raise ConfigurationError(
                f"Conversation: {name} takes a function or None, not {value!r}."
            )
        refuse_async(f"Conversation: {name}", value)
    refuse_async("Conversation: on_question", on_question)
    if on_question not in (None, "wait") and not callable(on_question):
        raise ConfigurationError(
            "Conversation: on_question takes a function of a Question, 'wait' or None, not"
            f" {on_question!r}."
        )
