"""`Conversation`: an agent at work on one journal, and every operation on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.output import typed_output
from holdfast.agent.titles import Titler, check_titler
from holdfast.content import ContentLike, Message, ToolResult
from holdfast.conversation import copies
from holdfast.conversation.aside_answers import AsideAnswer, ask_owner, wait_for_answer
from holdfast.conversation.callbacks import Callback, Subscription
from holdfast.conversation.children import ConversationOrigin, runtime_of
from holdfast.conversation.hosting import Hosting, HostingOptions
from holdfast.conversation.interface import ConversationInterface
from holdfast.conversation.journal import Clock, utc_now
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.observer import Observing, observers
from holdfast.conversation.outputs import blobs_of, no_output
from holdfast.conversation.questions import OnQuestion
from holdfast.conversation.state import AT_REST, ConversationState, ConversationStatus, fold
from holdfast.conversation.stream import EventStream
from holdfast.conversation.titling import generate_title
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationNotFound,
    HoldfastError,
    LeaseHeld,
    StoreError,
)
from holdfast.llm.completion import Delta
from holdfast.store import MemoryStore, Store, Summary
from holdfast.store.base import check_key
from holdfast.tools.arguments import refuse_async
from holdfast.tools.results import clean
from holdfast.tools.secrets import Secrets, SecretsByName

if TYPE_CHECKING:
    from holdfast.conversation.rewound import Rewound
    from holdfast.conversation.undo import FileUndo


def random_id() -> str:
    """Return 128 random bits in hex."""
    return os.urandom(16).hex()


class Conversation(ConversationInterface):
    """One conversation with an agent. Its loop runs on its own thread (`start_thread`) or on the
    caller's (`run`).

    An `id` that the store knows continues where it stopped. The constructor only reads.
    `start_thread`, `run` and the first write take the lease and raise `LeaseHeld` while another
    owner has it.

    Every method is thread-safe. `with Conversation(agent) as conversation:` closes it. Raises
    `ConfigurationError` (a `ValueError`), which names the invalid argument.

    Args:
        store: Keeps the journal; None keeps it in memory.
        id: The conversation's id; None makes a new one.
        runtime: Handed to tools as `ToolContext.runtime`; None takes the runtime of the agent's
            tools, if they share one.
        on_delta: Called with each piece of a streamed answer, on the thread that receives it.
        on_progress: Called as `on_progress(call_id, message)` with tools' progress, on their
            thread.
        on_question: Handles running calls' questions to the user. None declines them at once. With
            "wait" the call waits for `answer` or `decline`; with "wait_all" calls of spawned
            conversations do so, too. A function is called with the question
            on the call's thread; it returns the form's values, True, or None to decline.
        observer: One observer (`holdfast.observe`) or several; they follow spawned conversations,
            too.
        secrets: Values for commands and tools that are never shown, by name. Each is a value, a
            function that returns the present one, or a `Secret` with a description. The names are
            in the system prompt. A terminal command gets the secrets that it names as environment
            variables; a tool asks `context.secret(name)`. The values are masked in all journaled,
            streamed or observed text.
        undo: Keeps snapshots of the work folder for `rewind`
            (`holdfast.conversation.undo.FileUndo`); None keeps none.
        clock: Returns the current time, with a time zone.
        new_id: Returns a new unique id.
    """

    __slots__ = ("__weakref__", "_hosting", "_observers", "id", "store")

    fixed = {
        "agent": (
            "To continue with another agent call conversation.use(agent); for a copy with another"
            " agent call conversation.fork(agent=...), or Conversation.from_state(...)."
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
        secrets: SecretsByName | Secrets | None = None,
        undo: FileUndo | None = None,
        clock: Clock = utc_now,
        new_id: Callable[[], str] = random_id,
        _origin: ConversationOrigin = ConversationOrigin(),
    ) -> None:
        _check(agent, store, id, on_delta, on_progress, on_question)
        self.store: Store = MemoryStore() if store is None else store
        self.id = new_id() if id is None else id
        self._observers = observers("Conversation: observer", observer)
        options = HostingOptions(
            runtime,
            on_delta,
            on_progress,
            on_question,
            self._observers,
            clock,
            new_id,
            Secrets.of(secrets),
            undo,
        )
        self._hosting = Hosting(agent, self.store, self.id, options, _origin, Conversation)

    @property
    def hosting(self) -> Hosting:
        """The conversation as its host sees it: `begin`, `advance`, `has_work`, ..."""
        return self._hosting

    @classmethod
    def from_state(
        cls,
        state: ConversationState,
        agent: Agent,
        store: Store | None = None,
        id: str | None = None,
        **options: Any,
    ) -> Conversation:
        """Return a conversation that continues from `state` under a new id, with any agent, model
        or toolset; `options` as in the constructor.

        Calls that had not begun stay open. A call that waits for a decision still waits. An
        approved call waits again, since the copy needs a new approval. A call that had begun has an
        unknown outcome here, which the model is shown. Large outputs are kept whole (`get_output`)
        if they are in the same store.
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
        *,
        title: str | None = None,
        **options: Any,
    ) -> Conversation:
        """Return a new conversation in the same store that begins with this one's events up to
        `seq`.

        Both share these events, without a copy. The fork keeps the tags, and answers calls that
        were open there: as not run, or, if they had begun, as of unknown outcome.

        Args:
            seq: The last shared event; None shares all.
            agent: The agent of the fork, with any model or toolset; None for the present one.
            id: The fork's id; None makes a new one.
            title: None appends `(fork)` to the title; "" keeps the title without an event.
            options: As in the constructor.

        Raises `ConfigurationError` for a seq that does not exist, `Conflict` if `id` exists.
        """
        journal, context = self._hosting.journal, self._hosting.context
        with journal.lock:
            events, state = list(journal.events), journal.fold.copy()
        seq = len(events) if seq is None else seq
        if not isinstance(seq, int) or not 0 <= seq <= len(events):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork takes a seq from 0 to {len(events)}, not {seq!r}.")
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork: agent takes an Agent or None, not {agent!r}.")
        if seq < len(events):
            del events[seq:]
            state = fold(events)
        inherited: dict[str, Any] = {
            # its own agent's runtime is found anew
            "runtime": None if context.runtime is runtime_of(self.agent) else context.runtime,
            "observer": self._observers,
            "clock": journal.clock,
            "new_id": journal.new_id,
            "secrets": journal.secrets,
            "undo": context.undo,
        }
        answers = copies.fork_events(state, journal.clock, journal.new_id, title)
        state.take(answers)
        forked = Conversation(
            agent or self.agent,
            self.store,
            id,
            **{**inherited, **options},
            _origin=ConversationOrigin(history=([*events, *answers], state)),
        )
        try:
            # In one transaction: a fork with open calls must not exist even briefly, since another
            # process could run them.
            self.store.fork(self.id, forked.hosting.journal.summary(()), answers)
        except ConversationNotFound:
            # this conversation was never written, so there is nothing to share
            if events or self.store.read(forked.id, 0, 1):
                raise
        return forked

    def rewind(self, seq: int, **options: Any) -> Rewound[Conversation]:
        """Put the files of the work folder back to their content at `seq`, and return a fork of
        this conversation there; `options` as for `fork`.

        Only files that calls of this conversation have changed since are put back, by the snapshots
        that `undo` keeps. A file with a later change from elsewhere is left alone. The result names
        such files, and the calls that may have acted outside of the work folder, which is not
        undone. The present conversation stays unchanged; close it, or send it nothing that writes.

        Raises `ConfigurationError` without `undo` or for a seq that does not exist, `Conflict`
        while the conversation runs, `RuntimeFault` if git fails.
        """
        context = self._hosting.context
        if context.undo is None:
            raise ConfigurationError(
                "rewind: this conversation keeps no snapshots of files. Give"
                " Conversation(undo=FileUndo(folder)), or use fork, which leaves files alone."
            )
        return context.undo.rewind(self, context.runtime, seq, options)

    def _import(self, state: ConversationState) -> None:
        journal = self._hosting.journal
        if state.events:
            self._hosting.open()
        if journal.fold.last_seq:
            raise Conflict(
                f"from_state: conversation {self.id!r} has events already; give another id."
            )
        if not state.events:
            return
        for event in state.events:
            if (call := ev.foreign_call(event)) is not None:
                raise ConfigurationError(
                    f"from_state: a call of event {event.seq} has the id {call!r}; calls have"
                    f" different ids such as '{event.seq}.0'."
                )
        answers = copies.copy_events(fold(state.events), journal.clock, journal.new_id)
        with journal:
            journal.add_all([*state.events, *answers])
            for event in state.events:
                for id in blobs_of(event):
                    with suppress(StoreError):  # the blob is not in this store
                        journal.keep(self.store.blob(id), event.seq)

    # --- state ---

    @property
    def agent(self) -> Agent:
        """The agent that the conversation was opened with, or the last one of `use`. After a
        handoff another one may answer."""
        context = self._hosting.context
        return context.next_agent or context.own_agent

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same."""
        journal = self._hosting.journal
        with journal.lock:
            return ConversationState.of(
                self.id, self.status, journal.fold.copy(), journal.events_until
            )

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        return self._hosting.status

    @property
    def failure(self) -> Exception | None:
        """The error after which nothing can be journaled (a `StoreError`: a full disk, a lost
        lease), or None. Open the conversation again to continue."""
        return self._hosting.context.failure

    @property
    def spawned_by(self) -> str:
        """The idempotency key of the call that spawned the conversation, "" for none. If it was
        opened by its id, the key is known once it has the lease."""
        return self._hosting.journal.spawned_by

    @property
    def children(self) -> list[Summary]:
        """The conversations that its calls spawned, wherever they are open, the last written
        first."""
        return self.store.list(spawned_by=self.id)

    def open_children(self) -> list[Conversation]:
        """Return the children that are open here. Their questions and pending decisions are
        answered on them."""
        children = self._hosting.context.children
        return [] if children is None else children.open()

    @property
    def output(self) -> Any:
        """`state.output` as an object of the agent's `output_type`, or None. Raises `OutputInvalid`
        if it does not fit that type (any more)."""
        context = self._hosting.context
        with context.journal.lock:
            fold = context.journal.fold
            seq, value = fold.output.seq, fold.output.value
        return typed_output(context.agent.output, value) if seq else None

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        journal = self._hosting.journal
        with journal.lock:
            return list(journal.events)

    def get_output(self, call_id: str) -> ToolResult:
        """Return the whole result of a call, even if the journal holds only its beginning and
        end. Raises `NotFound` if the call has no result."""
        result = self._hosting.journal.output(call_id)
        if result is None:
            raise no_output(call_id)
        return result

    def __repr__(self) -> str:
        return (
            f"Conversation(id={self.id!r}, status={self.status.value!r},"
            f" events={self._hosting.journal.fold.last_seq})"
        )

    # --- operations ---

    def send_message(
        self, message: str | Message | ContentLike, *, sender: str = "user"
    ) -> ev.MessageAdded:
        """Send the agent a message from the user or from the conversation `sender`, and return its
        event.

        One append; never waits for a tool or a model, but hooks on messages may take their time.
        A conversation at rest whose loop was started is RUNNING when this returns. While PAUSED
        or WAITING_FOR_CONFIRMATION the status does not change. Raises `ConfigurationError` for
        an empty message, `HookDenied` if a hook denies it, `ConversationClosed`, `LeaseHeld`.
        """
        content = checked_content(content_of(message))
        if sender != "user":
            cmd.check_sender("send_message", sender)
        event = self._hosting.execute(cmd.Send(content, sender=sender))
        assert event is not None
        return event

    def start_thread(self) -> None:
        """Drive the loop on its own thread until `close`. Continues an unfinished run.
        Idempotent. Raises `LeaseHeld`."""
        self._hosting.start_thread()

    def run(self) -> ConversationState:
        """Drive the loop on the caller's thread until the conversation rests, and return its state;
        `start_thread` and `wait` in one.

        Continues from PAUSED, ERROR or STUCK as `resume` does. A model's or a limit's error is
        not raised: it is the state's `error`, with status ERROR. Ctrl-C pauses the conversation
        and is raised. If only calls that clients run are left (`state.offers`), returns with
        status RUNNING. Raises `LeaseHeld`, `StoreError`, `ConversationBusy`.
        """
        self._hosting.run()
        return self.state

    def stream(self, message: str | Message | ContentLike | None = None) -> EventStream:
        """Send `message`, if given, and run. Return an iterator that yields events and deltas on
        the caller's thread until the conversation rests.

        Equivalent to `send_message` and `run` with a callback for events and one for deltas, in one
        order. If another thread drives the conversation (`start_thread`, another stream), the
        stream follows that thread. A loop that is left early lets the run continue;
        `with conversation.stream(...) as items:` interrupts it. Ctrl-C interrupts it and is raised.
        Raises the errors of `send_message` at once and those of `run` while it is iterated.

        Example:
            for item in conversation.stream("Fix the test."):
                print(item)
        """
        self._hosting.open()
        self._hosting.check_not_inside("stream")
        with self._hosting.journal.lock:
            after_seq = self._hosting.journal.fold.last_seq
        hosting = self._hosting
        return EventStream(
            hosting.journal,
            hosting.deltas,
            after_seq,
            lambda: None if message is None else self.send_message(message),
            hosting.run,
            hosting.at_rest,
            hosting.interrupt,
        )

    def write_title(self, titler: Titler | None = None) -> str:
        """Write a title from the first message with a model or a function, journal it, and return
        it. None takes `Agent.title`, or else the agent's model.

        Replaces the present title. The model's usage is counted. Raises `ConfigurationError` if
        there is no message, `BadResponse` for an empty title, and the errors of the model or
        function.
        """
        self._hosting.open()
        if titler is not None:
            check_titler("write_title: titler", titler)
        context = self._hosting.context
        title, by = generate_title(context, titler or self.agent.title or context.agent.llm)
        self._hosting.execute(cmd.Label(title, by=by))
        return title

    def _command(self, name: str, **fields: Any) -> None:
        hosting, executor = self._hosting, self._hosting.executor
        arguments: dict[str, Any] = {key: one for key, one in fields.items() if one is not None}
        match name:
            case "interrupt":
                hosting.interrupt()
            case "condense":
                self._condense(**arguments)
            case "approve" | "reject" if fields["call_id"] is None:
                hosting.open()
                executor.decide_all(name == "approve", fields["by"], fields["reason"])
            case "approve":
                hosting.open()
                if fields["arguments_hash"] is None:
                    with hosting.journal.lock:
                        [waiting] = executor.pending(fields["call_id"])
                    arguments["arguments_hash"] = waiting.arguments_hash
                executor.execute(cmd.Approve(**arguments))
            case "answer":
                arguments["values"] = fields["values"]  # None declines
                hosting.execute(cmd.Answer(**arguments))
            case "reject":
                hosting.execute(cmd.Reject(**arguments))
            case "schedule" | "cancelTimer" | "label":
                hosting.execute(fields["command"])
            case _:
                hosting.execute(cmd.Pause() if name == "pause" else cmd.Resume())

    def _ask(self, command: cmd.Ask, timeout: float | None) -> AsideAnswer:
        hosting = self._hosting
        journal, context = hosting.journal, hosting.context

        def ended() -> HoldfastError | None:
            if context.failure is not None:
                return cast("HoldfastError", context.failure.with_traceback(None))
            return journal.closed_error() if journal.closed else None

        def take_over() -> None:
            with suppress(LeaseHeld):  # its owner is alive
                hosting.open()

        try:
            hosting.open()
        except LeaseHeld:
            return ask_owner(self.store, self.id, command, timeout, take_over)
        with journal.lock:
            seq = journal.fold.last_seq
        hosting.execute(command)
        try:
            return wait_for_answer(journal, command.aside, seq, ended, timeout)
        except (ConversationBusy, KeyboardInterrupt):
            hosting.asides().cancel(command.aside)
            raise

    def _now(self) -> datetime:
        return self._hosting.journal.clock()

    def _condense(self, instructions: str = "") -> None:
        """Request a condensation. The caller's thread does it if the conversation rests and no
        thread drives it. If calls are open or the run was cut off, the next run does it."""
        hosting, journal = self._hosting, self._hosting.journal
        hosting.execute(cmd.Condense(instructions))
        with journal.lock:
            due = journal.fold.status in AT_REST and journal.fold.condensing
            if hosting.busy or hosting.hosted or not due:
                return
        with suppress(ConversationBusy):  # another thread drives meanwhile
            hosting.drive("condense", begin=False)

    def _only_question(self) -> str:
        self._hosting.open()
        return self._hosting.questions.waiting(None).id

    def execute(self, command: cmd.Command, key: str | None = None) -> None:
        """Carry out a command (`holdfast.commands`) in one transaction.

        With a `key` the command goes through the store's inbox. A second command with the same key
        is not carried out again, and has the outcome of the first. Raises the command's
        `ConfigurationError` if it does not fit, `ToolValidationError` if an approval's new
        arguments do not; `ConversationClosed`, `LeaseHeld`, `StoreError`.
        """
        check_key(key)
        self._hosting.execute_posted(command, key)

    def use(self, agent: Agent | str) -> None:
        """Continue with another agent (another model, prompt, policy or toolset) from the next step
        on.

        | str | agent |
        |---|---|
        | `#fast` | the conversation's agent with the model `fast` of `Agent(models=)` |
        | `#` | the same, with its own model |
        | a name of `handoffs` | that agent |
        | `main` | the agent that the conversation was opened with |

        Equivalent to a handoff to that agent, also in the journal (`AgentConfigured`). The
        transcript, the runtime with its shells, the children and the run's counts are kept. Open
        calls end under the agent that asked for them. A reopened conversation has the agent that it
        is opened with.

        Raises `NotFound` for an unknown name (with the known ones), `ConversationClosed`,
        `LeaseHeld`, `StoreError`. Raises `ConfigurationError` for a model without a known price if
        the conversation was spawned under a budget of cost.

        Example:
            conversation.use(conversation.agent.replace(llm=stronger))
        """
        if isinstance(agent, str):
            self._hosting.execute(cmd.Use(agent))
            return
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"use: agent takes an Agent or a name, not {agent!r}.")
        self._hosting.use(agent)

    def wait(self, timeout: float | None = None) -> ConversationStatus:
        """Block until nothing runs any more, here or at a client, at most `timeout` seconds; return
        the status.

        Returns at once if nothing drives the conversation. Raises `ConversationBusy` if called
        from within its own loop.
        """
        self._hosting.wait(timeout)
        return self.status

    # --- callbacks ---

    def _subscribe(self, callback: Callback, after_seq: int | None) -> Subscription:
        return self._hosting.subscribe(callback, after_seq)

    # --- closing ---

    def close(self, timeout: float = 5.0) -> None:
        """Interrupt the run and release threads, processes, connections and the lease, within about
        `timeout` seconds. Idempotent.

        The store keeps everything: a run that this cuts off continues when the conversation is
        opened and started again. A callback that does not stop when asked to is left behind,
        with a warning in the log. If one of the conversation's own calls closes it, the close
        takes effect when that call returns.
        """
        self._hosting.close(timeout)


def _check(
    agent: Any, store: Any, id: Any, on_delta: Any, on_progress: Any, on_question: Any
) -> None:
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"Conversation: agent takes an Agent, not {agent!r}.")
    stores = store is None or callable(getattr(store, "append", None))
    if isinstance(store, list) or not stores:
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
    if on_question not in (None, "wait", "wait_all") and not callable(on_question):
        raise ConfigurationError(
            "Conversation: on_question takes a function of a Question, 'wait', 'wait_all' or None,"
            f" not {on_question!r}."
        )
