"""The starts of runs: requests to drive a conversation, also while they wait for it to be
opened."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast import commands as cmd
from holdfast.conversation import ConversationStatus
from holdfast.errors import Conflict, LeaseHeld
from holdfast.server.other_servers import OtherServers
from holdfast.server.records import HOSTED, IDLE, RUN, Records
from holdfast.server.scheduler import Scheduler
from holdfast.tools.context import Cancellation

if TYPE_CHECKING:
    from holdfast.conversation.fold import Fold
    from holdfast.server.local_conversation import OpenConversation


class PendingStarts:
    """The pending requests to drive conversations, by store id. A request to close a conversation
    withdraws the earlier ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, list[Cancellation]] = {}

    @contextmanager
    def pending(self, id: str) -> Generator[Cancellation]:
        """Yield the flag of a new request, which is pending within the block."""
        withdrawn = Cancellation()
        with self._lock:
            self._pending.setdefault(id, []).append(withdrawn)
        try:
            yield withdrawn
        finally:
            with self._lock:
                self._pending[id].remove(withdrawn)
                if not self._pending[id]:
                    del self._pending[id]

    def withdraw(self, id: str) -> None:
        """Withdraw the conversation's pending requests."""
        with self._lock:
            for flag in self._pending.get(id, ()):
                flag.cancel()


class BegunRun(NamedTuple):
    """A conversation that is driven now. `fold` is the state before the first step, None if another
    process has it. `ran` is True if a run was under way before."""

    status: str
    fold: Fold | None
    ran: bool


class RunStarts:
    """Begins the runs of one server's conversations. Thread-safe; blocking."""

    def __init__(
        self, records: Records, scheduler: Scheduler, others: OtherServers | None, here: bool
    ) -> None:
        self._records = records
        self._scheduler = scheduler
        self._others = others
        self._pending = PendingStarts()
        self.takes_messages = here and others is None
        """True if `begin` takes messages: all conversations are in this process alone."""
        self.withdraw = self._pending.withdraw

    def begin(
        self,
        tenant: str,
        id: str,
        hosted: bool = False,
        messages: Sequence[cmd.Send | cmd.Label] = (),
        awaited: bool = False,
    ) -> BegunRun | None:
        """Drive a conversation until it rests, or `hosted` whenever it has work. Return None if
        another server does it.

        Args:
            messages: Messages and labels, which are written in one transaction with the run's
                begin. Only if `takes_messages`.
            awaited: True if the client waits for the run's end. A power loss may then undo the
                record that the server is to go on with the run.

        Raises `Conflict` if the conversation is closed meanwhile, and the errors of a message.
        """
        record = self._records.find(tenant, id)

        def check() -> None:
            if withdrawn:
                raise Conflict(f"Conversation {id!r} was closed while this request waited for it.")

        def work(live: OpenConversation) -> BegunRun:
            check()
            live.finish_inbox()  # under no lock: hooks may take any time
            prepared = live.prepare(messages) if messages else ()
            with live.run_lock:
                check()
                if hosted and live.record.driven != HOSTED:
                    live.record = self._records.set_driven(live.record, HOSTED)
                ran = live.status is ConversationStatus.RUNNING
                live.begin(hosted, prepared)
                run = BegunRun(live.status.value, live.fold(), ran)
                self._scheduler.update_offers(live)
                # Also if another thread has done all the work already: that thread does not record
                # the end of this run. The first step begins while the records are written.
                if live.has_work or live.running:
                    self._scheduler.wake(record.store_id)
                if not hosted and live.running and live.record.driven == IDLE:
                    live.record = self._records.set_driven(live.record, RUN, not awaited)
            return run

        with self._pending.pending(record.store_id) as withdrawn:
            try:
                return self._scheduler.use(record, work)
            except LeaseHeld:
                if self._others is None:
                    raise
                self._others.begin(record, hosted, lambda: self._scheduler.use(record, work))
        return None
