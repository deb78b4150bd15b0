"""An open conversation from the host's point of view (`OpenConversation`), and the
implementation inside this process (`LocalConversation`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.conversation import Conversation, ConversationStatus
from holdfast.server.claims import OfferedCall

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.conversation.observer import Observer
    from holdfast.llm.completion import Delta
    from holdfast.server.building import BuiltAgent
    from holdfast.server.records import ConversationRecord
    from holdfast.server.shapes import ToolStanding
    from holdfast.store import Store
    from holdfast.tools.sources import Health

RUNNING = ConversationStatus.RUNNING


class OpenConversation(Protocol):
    """One open conversation of `record`. Thread-safe.

    A `hosted` conversation continues whenever it has work; a `running` one continues until it
    rests. A thread that begins or ends a run holds `run_lock` until the records agree.
    """

    record: ConversationRecord
    run_lock: threading.Lock

    # --- requests ---

    @property
    def hosted(self) -> bool:
        """True if the conversation continues by itself when it has work."""
        ...

    @property
    def running(self) -> bool:
        """True if the conversation continues until it rests."""
        ...

    def begin(self, hosted: bool) -> None:
        """Begin or continue a run. If there is work, the journal says RUNNING when this returns.

        `hosted` makes the conversation hosted from now on. Otherwise it runs until it rests,
        also after a pause or an error.
        """
        ...

    def obey(self, command: Command, key: str | None = None) -> None:
        """See `Conversation.obey`."""
        ...

    def drive(self) -> bool:
        """Do the pending work if the conversation is hosted or running. Return True if there is
        more work. Raises `StoreError`."""
        ...

    def hand_over(self) -> None:
        """Make `drive` return True at the next step boundary. Does not block."""
        ...

    # --- state ---

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status."""
        ...

    @property
    def busy(self) -> bool:
        """True if the conversation is being driven now."""
        ...

    @property
    def children_busy(self) -> bool:
        """True if a conversation that its calls spawned is working."""
        ...

    @property
    def has_work(self) -> bool:
        """True if `drive` would do something."""
        ...

    @property
    def failure(self) -> Exception | None:
        """The error after which nothing more can be journaled, or None."""
        ...

    def offers(self) -> list[OfferedCall]:
        """Return the calls that are offered to clients or claimed by them."""
        ...

    # --- tools ---

    @property
    def standings(self) -> tuple[list[ToolStanding], list[str]]:
        """The place where each tool runs, and the warnings of building the agent."""
        ...

    def services(self) -> list[Health] | None:
        """Check and return the health of its tool services. None if they cannot be checked here."""
        ...

    def set_tools(self, record: ConversationRecord, built: BuiltAgent) -> None:
        """Replace the tools. The model learns of the change before its next answer."""
        ...

    def close(self, timeout: float) -> None:
        """Stop and release everything. Work that this cuts off continues when the conversation
        is opened again."""
        ...


class LocalConversation:
    """A `OpenConversation` with a `Conversation` in this process. `note(kind, make)` receives
    its transient notifications."""

    def __init__(
        self,
        record: ConversationRecord,
        built: BuiltAgent,
        store: Store,
        runtime: object | None,
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
        observers: Sequence[Observer] = (),
    ) -> None:
        self.record = record
        self.run_lock = threading.Lock()
        self.running = False
        self._begun = 0  # the number of runs begun
        self._handing_over = threading.Event()
        self._agent = built.agent
        self._built = built
        self._leave = leave
        self._lock = threading.Lock()  # guards `running` and `_begun`

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

    # --- requests ---

    @property
    def hosted(self) -> bool:
        """True if the conversation continues by itself when it has work."""
        return self._conversation.hosted

    @hosted.setter
    def hosted(self, hosted: bool) -> None:
        self._conversation.hosted = hosted

    def begin(self, hosted: bool) -> None:
        """See `OpenConversation.begin`."""
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
        """Do the pending work if the conversation is hosted or running. Return True if there is
        more work. Raises `StoreError`."""
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
            if (
                status is ConversationStatus.CLOSED
                or conversation.failure is not None
                or begun != self._begun
            ):
                # The run was cut off and is not over, or another run has begun and is driven next.
                pass
            else:
                self.running = self.running and status is RUNNING
        return self.has_work and (handed_over or conversation.state.last_seq > before)

    def hand_over(self) -> None:
        """See `OpenConversation.hand_over`."""
        self._handing_over.set()

    # --- state ---

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status."""
        return self._conversation.status

    @property
    def busy(self) -> bool:
        """True if the conversation is being driven now."""
        return self._conversation.busy

    @property
    def children_busy(self) -> bool:
        """See `OpenConversation.children_busy`."""
        return self._conversation.children_busy

    @property
    def has_work(self) -> bool:
        """True if `drive` would do something."""
        return (self.hosted or self.running) and self._conversation.has_work

    @property
    def failure(self) -> Exception | None:
        """The error after which nothing more can be journaled, or None."""
        return self._conversation.failure

    def offers(self) -> list[OfferedCall]:
        """Return the calls that are offered to clients or claimed by them."""
        found: list[OfferedCall] = []
        for offer in self._conversation.state.offers:
            tools = self._agent.tools
            timeout = tools.get(offer.call.name).timeout if tools.exists(offer.call.name) else None
            found.append(OfferedCall(offer.call.id, offer.runner, timeout))
        return found

    # --- tools ---

    @property
    def standings(self) -> tuple[list[ToolStanding], list[str]]:
        """The place where each tool runs, and the warnings of building the agent."""
        return self._built.standings, self._built.warnings

    def services(self) -> list[Health] | None:
        """See `OpenConversation.services`."""
        return list(self._agent.tools.health().values())

    def set_tools(self, record: ConversationRecord, built: BuiltAgent) -> None:
        """Replace the tools. The model learns of the change before its next answer."""
        self._agent.tools.replace(self._built.tools, built.tools.values())
        self._built = built

    def close(self, timeout: float) -> None:
        """Stop and release everything. Work that this cuts off continues when the conversation
        is opened again."""
        try:
            self._conversation.close(timeout)
        finally:
            self._leave()
