"""An open conversation as the host sees it. This room alone knows that it is an object in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.conversation import Conversation, ConversationStatus
from holdfast.server.claims import Offered

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.llm.completion import Delta
    from holdfast.server.building import Built
    from holdfast.server.records import Record
    from holdfast.server.shapes import ToolStanding
    from holdfast.store import Store

RUNNING = ConversationStatus.RUNNING


class Live:
    """One conversation of `record`, with what is told of it to `note(kind, make)`. `hosted`: it goes on whenever there is something to do;
    `running`: it does until it rests. Thread-safe."""

    def __init__(
        self,
        record: Record,
        built: Built,
        store: Store,
        runtime: object | None,
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
    ) -> None:
        self.record = record
        self.running = False
        self._agent = built.agent
        self._built = built
        self._leave = leave
        self._lock = threading.Lock()

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
        )

    # --- what is asked of it ---

    @property
    def hosted(self) -> bool:
        """Whether it goes on by itself when there is something to do."""
        return self._conversation.hosted

    @hosted.setter
    def hosted(self, hosted: bool) -> None:
        self._conversation.hosted = hosted

    def obey(self, command: Command, key: str | None = None) -> None:
        """See `Conversation.obey`."""
        self._conversation.obey(command, key)

    def drive(self) -> bool:
        """Do what there is to do, if it is to be driven at all; whether there is more by now. Raises `StoreError`."""
        conversation = self._conversation
        if not (self.hosted or self.running):
            return False
        before = conversation.state.last_seq
        status = conversation.advance()
        if status is not ConversationStatus.CLOSED and conversation.failure is None:  # else the run was cut off, and is not over
            self.running = self.running and status is RUNNING
        return self.to_do and conversation.state.last_seq > before

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

    def set_tools(self, record: Record, built: Built) -> None:
        """Have these tools in place of those that were given before; the model is told before its next answer."""
        with self._lock:
            manager = self._agent.tools
            for name in self._built.tools:
                if manager.exists(name):
                    manager.unregister(name)
            for tool in built.tools.values():
                manager.register(tool)
            self._built = built
            self.record = record

    def close(self, timeout: float) -> None:
        """Stop and let go of everything. What this cuts off goes on when it is opened again."""
        try:
            self._conversation.close(timeout)
        finally:
            self._leave()
