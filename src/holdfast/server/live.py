"""An open conversation as the host sees it (`Live`), and one that is an object in this process (`LocalLive`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.conversation import Conversation, ConversationStatus
from holdfast.server.claims import Offered

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.conversation.observer import Observer
    from holdfast.llm.completion import Delta
    from holdfast.server.building import Built
    from holdfast.server.records import Record
    from holdfast.server.shapes import ToolStanding
    from holdfast.store import Store
    from holdfast.tools.sources import Health

RUNNING = ConversationStatus.RUNNING


class Live(Protocol):
    """One open conversation of `record`. `hosted`: it goes on whenever there is something to do; `running`: it does until it rests. Thread-safe.

    `moving` is held by whoever begins a run, or ends one, until the records say so too.
    """

    record: Record
    moving: threading.Lock

    # --- what is asked of it ---

    @property
    def hosted(self) -> bool:
        """Whether it goes on by itself when there is something to do."""
        ...

    @property
    def running(self) -> bool:
        """Whether it goes on until it rests."""
        ...

    def begin(self, hosted: bool) -> None:
        """Begin a run, or go on with one: where there is something to do it is RUNNING, in the journal, when this returns. `hosted` from now on; or
        else until it rests, also after a pause or an error."""
        ...

    def obey(self, command: Command, key: str | None = None) -> None:
        """See `Conversation.obey`."""
        ...

    def drive(self) -> bool:
        """Do what there is to do, if it is to be driven at all; whether there is more by now. Raises `StoreError`."""
        ...

    def hand_over(self) -> None:
        """Have `drive` return at the next step boundary, with True. Does not block."""
        ...

    # --- what it is ---

    @property
    def status(self) -> ConversationStatus:
        """Where it stands."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it is being driven now."""
        ...

    @property
    def children_busy(self) -> bool:
        """Whether a conversation that its calls spawned is at work."""
        ...

    @property
    def to_do(self) -> bool:
        """Whether `drive` would do something."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why nothing more can be journaled."""
        ...

    def offers(self) -> list[Offered]:
        """The calls that clients are to run, or run."""
        ...

    # --- what it has ---

    @property
    def standings(self) -> tuple[list[ToolStanding], list[str]]:
        """Where its tools run, and what did not go as it was asked."""
        ...

    def services(self) -> list[Health] | None:
        """How the services of its tools answer, asked now; None if that cannot be asked here."""
        ...

    def set_tools(self, record: Record, built: Built) -> None:
        """Have these tools in place of those that were given before; the model is told before its next answer."""
        ...

    def close(self, timeout: float) -> None:
        """Stop and let go of everything. What this cuts off goes on when it is opened again."""
        ...


class LocalLive:
    """See `Live`: a `Conversation` here. What is told of it goes to `note(kind, make)`."""

    def __init__(
        self,
        record: Record,
        built: Built,
        store: Store,
        runtime: object | None,
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
        observers: Sequence[Observer] = (),
    ) -> None:
        self.record = record
        self.moving = threading.Lock()
        self.running = False
        self._begun = 0  # runs
        self._handing_over = threading.Event()
        self._agent = built.agent
        self._built = built
        self._leave = leave
        self._lock = threading.Lock()  # for the runs

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
            on_question="wait" if options.questions else None,
            observer=observers,
        )

    # --- what is asked of it ---

    @property
    def hosted(self) -> bool:
        """Whether it goes on by itself when there is something to do."""
        return self._conversation.hosted

    @hosted.setter
    def hosted(self, hosted: bool) -> None:
        self._conversation.hosted = hosted

    def begin(self, hosted: bool) -> None:
        """See `Live.begin`."""
        conversation = self._conversation
        with self._lock:
            if hosted:
                conversation.hosted = True
                conversation.begin()
                return
            status = conversation.begin(resume=True)
            self._begun += 1
            self.running = status is RUNNING or conversation.has_work

    def obey(self, command: Command, key: str | None = None) -> None:
        """See `Conversation.obey`."""
        self._conversation.obey(command, key)

    def drive(self) -> bool:
        """Do what there is to do, if it is to be driven at all; whether there is more by now. Raises `StoreError`."""
        conversation = self._conversation
        if not (self.hosted or self.running):
            return False
        with self._lock:
            begun, before = self._begun, conversation.state.last_seq
        conversation.advance(self._handing_over.is_set)
        handed_over = self._handing_over.is_set()
        self._handing_over.clear()
        with self._lock:
            status = conversation.status
            if status is ConversationStatus.CLOSED or conversation.failure is not None or begun != self._begun:
                pass  # the run was cut off, and is not over; or another has begun, which is driven after this
            else:
                self.running = self.running and status is RUNNING
        return self.to_do and (handed_over or conversation.state.last_seq > before)

    def hand_over(self) -> None:
        """See `Live.hand_over`."""
        self._handing_over.set()

    # --- what it is ---

    @property
    def status(self) -> ConversationStatus:
        """Where it stands."""
        return self._conversation.status

    @property
    def busy(self) -> bool:
        """Whether it is being driven now."""
        return self._conversation.busy

    @property
    def children_busy(self) -> bool:
        """See `Live.children_busy`."""
        return self._conversation.children_busy

    @property
    def to_do(self) -> bool:
        """Whether `drive` would do something."""
        return (self.hosted or self.running) and self._conversation.has_work

    @property
    def failure(self) -> Exception | None:
        """Why nothing more can be journaled."""
        return self._conversation.failure

    def offers(self) -> list[Offered]:
        """The calls that clients are to run, or run."""
        found: list[Offered] = []
        for offer in self._conversation.state.offers:
            tools = self._agent.tools
            timeout = tools.get(offer.call.name).timeout if tools.exists(offer.call.name) else None
            found.append(Offered(offer.call.id, offer.runner, timeout))
        return found

    # --- what it has ---

    @property
    def standings(self) -> tuple[list[ToolStanding], list[str]]:
        """Where its tools run, and what did not go as it was asked."""
        return self._built.standings, self._built.warnings

    def services(self) -> list[Health] | None:
        """See `Live.services`."""
        return list(self._agent.tools.health().values())

    def set_tools(self, record: Record, built: Built) -> None:
        """Have these tools in place of those that were given before; the model is told before its next answer."""
        self._agent.tools.replace(self._built.tools, built.tools.values())
        self._built = built

    def close(self, timeout: float) -> None:
        """Stop and let go of everything. What this cuts off goes on when it is opened again."""
        try:
            self._conversation.close(timeout)
        finally:
            self._leave()
