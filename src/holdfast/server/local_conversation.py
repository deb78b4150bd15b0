"""An open conversation inside this process, from the host's point of view."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.conversation import Conversation, ConversationStatus
from holdfast.conversation.below import find_below
from holdfast.conversation.undo import check_rests
from holdfast.errors import ConfigurationError
from holdfast.server.claims import OfferedCall
from holdfast.server.records import HOSTED, RUN

if TYPE_CHECKING:
    from holdfast.commands import Command, Label, Send
    from holdfast.conversation.executor import Prepared
    from holdfast.conversation.fold import Fold
    from holdfast.conversation.observer import Observer
    from holdfast.conversation.rewound import PutBack
    from holdfast.conversation.undo import FileUndo
    from holdfast.llm.completion import Delta
    from holdfast.server.agents import BuiltAgent
    from holdfast.server.records import ConversationOptions, ConversationRecord
    from holdfast.server.workers.worker_conversation import WorkerConversation
    from holdfast.store import Store
    from holdfast.tools.sources import SourceHealth

RUNNING = ConversationStatus.RUNNING


def _waits(options: ConversationOptions) -> Literal["wait", "wait_all"] | None:
    if not options.questions:
        return None
    return "wait_all" if options.child_questions else "wait"


class LocalConversation:
    """One open conversation of `record`, with a `Conversation` in this process. Thread-safe.

    A `hosted` conversation continues whenever it has work; a `running` one continues until it
    rests. A thread that begins or ends a run holds `run_lock` until the records agree.
    `note(kind, make)` receives transient notifications, and `leave` is called by `close`.
    `WorkerConversation` has the same methods.
    """

    def __init__(
        self,
        record: ConversationRecord,
        built: BuiltAgent,
        store: Store,
        runtime: object | None,
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
        observers: Sequence[Observer] = (),
        undo: FileUndo | None = None,
    ) -> None:
        self.record = record
        self.run_lock = threading.Lock()
        self._running = False
        self._run_count = 0
        self._handing_over = threading.Event()
        self.report = built  # where its tools run, and warnings
        self._leave = leave
        self._lock = threading.Lock()  # guards `_running` and `_run_count`

        def delta(piece: Delta) -> None:
            note("delta", lambda: msgspec.json.encode(piece))

        def progress(call_id: str, message: str) -> None:
            note("progress", lambda: msgspec.json.encode({"callId": call_id, "message": message}))

        options = record.options
        self._conversation = Conversation(
            built.agent,
            store,
            record.store_id,
            runtime=runtime,
            on_delta=delta if options.deltas else None,
            on_progress=progress,
            on_question=_waits(options),
            observer=observers,
            secrets=built.secrets,
            undo=undo,
        )

    # --- requests ---

    @property
    def hosted(self) -> bool:
        return self._conversation.hosting.hosted

    @property
    def running(self) -> bool:
        return self._running

    def resume(self, driven: int) -> None:
        """Go on as the records say that the conversation was driven before it was parked."""
        self._conversation.hosting.hosted = driven == HOSTED
        self._running = driven == RUN and self.status is RUNNING

    def finish_inbox(self) -> None:
        """Carry out the commands that wait. Hooks on messages may take any time, so that the
        caller must hold no lock."""
        self._conversation.hosting.finish_inbox()

    def prepare(self, messages: Sequence[Send | Label]) -> list[Prepared]:
        """Return messages and labels after hooks have checked them. Raises `ConfigurationError`."""
        return self._conversation.hosting.executor.prepare_posted(messages)

    def begin(self, hosted: bool, messages: Sequence[Prepared] = ()) -> None:
        """Begin or continue a run: with `hosted` whenever there is work, otherwise until the
        conversation rests, also after a pause or an error. If there is work, the journal says
        RUNNING then; `messages` are written in the same transaction. Call `finish_inbox` first;
        this waits for no hook."""
        hosting = self._conversation.hosting
        with self._lock:
            if hosted:
                hosting.hosted = True
                hosting.begin(messages=messages)
                return
            status = hosting.begin(resume=True, messages=messages)
            self._run_count += 1
            self._running = status is RUNNING or hosting.has_work

    def execute(self, command: Command, key: str | None = None) -> None:
        """Execute a command, like `Conversation.execute`."""
        self._conversation.execute(command, key)

    def drive(self) -> bool:
        """Do the pending work if the conversation is hosted or running. Return True if there is
        more work. Raises `StoreError`."""
        conversation = self._conversation
        if not (self.hosted or self.running):
            return False
        journal = conversation.hosting.journal
        with self._lock:
            runs, before = self._run_count, journal.fold.last_seq
        conversation.hosting.advance(self._handing_over.is_set)
        handed_over = self._handing_over.is_set()
        self._handing_over.clear()
        with self._lock:
            status = conversation.status
            cut_off = status is ConversationStatus.CLOSED or conversation.failure is not None
            if (
                not cut_off and runs == self._run_count
            ):  # else the run is not over, or another began
                self._running = self._running and status is RUNNING
        return self.has_work and (handed_over or journal.fold.last_seq > before)

    def hand_over(self) -> None:
        """Make `drive` return True at the next step boundary. Does not block."""
        self._handing_over.set()

    # --- state ---

    @property
    def status(self) -> ConversationStatus:
        return self._conversation.status

    @property
    def busy(self) -> bool:
        """True if the conversation is being driven now."""
        return self._conversation.hosting.busy

    @property
    def children_busy(self) -> bool:
        """True if a conversation that its calls spawned is working."""
        return self._conversation.hosting.children_busy

    @property
    def has_work(self) -> bool:
        """True if `drive` would do something."""
        return (self.hosted or self.running) and self._conversation.hosting.has_work

    @property
    def failure(self) -> Exception | None:
        """The error after which nothing more can be journaled, or None."""
        return self._conversation.failure

    def fold(self) -> Fold | None:
        """Return a copy of the journal's fold; None if it is not in this process. Questions of a
        process that has died are not in it: their calls ask again."""
        hosting = self._conversation.hosting
        with hosting.journal.lock:
            if hosting.journal.closed:
                return None
            folded = hosting.journal.fold.copy()
            folded.keep_questions(hosting.questions.awaits)
            return folded

    def awaits_below(self, place: str, question_id: str) -> bool:
        """Return True if a call of a spawned conversation waits for the answer to a question."""
        child = find_below(self._conversation.hosting, place)
        return child is not None and child.hosting.questions.awaits(question_id)

    def offers(self) -> list[OfferedCall]:
        """Return the calls that are offered to clients or claimed by them."""
        journal, tools = self._conversation.hosting.journal, self.report.agent.tools
        with journal.lock:
            offers = [(offer.effective, offer.runner) for offer in journal.fold.offers]
        return [
            OfferedCall(
                call.id, runner, tools.get(call.name).timeout if tools.exists(call.name) else None
            )
            for call, runner in offers
        ]

    def pending_confirmations(self) -> list[tuple[str, str]]:
        """Return the ids of calls that wait for a decision, and their arguments' hashes."""
        waiting = self._conversation.state.pending_confirmations
        return [(one.call.id, one.arguments_hash) for one in waiting]

    # --- files ---

    def put_back(self, seq: int) -> PutBack:
        """Put the files back that calls after event `seq` have changed; see
        `Conversation.rewind`. Raises `ConfigurationError` without snapshots."""
        context = self._conversation.hosting.context
        if context.undo is None:
            raise ConfigurationError(
                "rewind: this conversation keeps no snapshots of files. Create it with undo, or use"
                " fork, which leaves files alone."
            )
        return context.undo.put_back(self._conversation, context.runtime, seq)

    def check_rests(self) -> None:
        """Raise `Conflict` while the conversation runs."""
        check_rests(self._conversation)

    def write_title(self) -> str:
        """See `Conversation.write_title`."""
        return self._conversation.write_title()

    # --- tools ---

    def services(self) -> list[SourceHealth] | None:
        """Check and return the health of its tool services. None if they cannot be checked here."""
        return list(self.report.agent.tools.health().values())

    def set_tools(self, record: ConversationRecord, built: BuiltAgent) -> None:
        """Replace the tools. The model learns of the change before its next answer."""
        agent = self.report.agent
        agent.tools.replace(self.report.tools, built.tools.values())
        self.report = built._replace(agent=agent)

    def use(self, record: ConversationRecord, built: BuiltAgent) -> None:
        """Continue with another agent from the next step on."""
        self._conversation.use(built.agent)
        self.report = built

    def set_secrets(self, record: ConversationRecord, built: BuiltAgent) -> None:
        """Replace the conversation's secrets from its next call on."""
        self._conversation.hosting.set_secrets(built.secrets)

    def close(self, timeout: float) -> None:
        """Stop and release everything. Work that this cuts off continues when the conversation
        is opened again."""
        try:
            self._conversation.close(timeout)
        finally:
            self._leave()


if TYPE_CHECKING:
    OpenConversation: TypeAlias = LocalConversation | WorkerConversation
