"""`WorkerConversation`: an open conversation in a worker process, from the host's point of view."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast import commands as cmd
from holdfast.conversation import ConversationStatus
from holdfast.conversation.rewound import PutBack
from holdfast.error_forms import error_of_form
from holdfast.errors import ConversationClosed, StoreError
from holdfast.server.claims import OfferedCall
from holdfast.server.records import HOSTED
from holdfast.server.workers import channel as ch
from holdfast.server.workers import store_proxy
from holdfast.server.workers.deaths import WorkerDied, how_it_ended
from holdfast.server.workers.store_proxy import WorkerStoreProxy

if TYPE_CHECKING:
    from holdfast.server.agents import BuiltAgent
    from holdfast.server.notifying_store import NotifyingStore
    from holdfast.server.records import ConversationRecord
    from holdfast.server.workers.processes import WorkerProcess
    from holdfast.tools.sources import SourceHealth

RUNNING = ConversationStatus.RUNNING

_MAX_CRASH_CHARACTERS = 2000  # the part of a crash report that is logged

_log = logging.getLogger("holdfast")


class Patience(msgspec.Struct, frozen=True):
    """The time limits of a worker in seconds.

    `heartbeat`: a worker with an open request must give a sign of life within this time.
    `grace`: a worker must stop within this time after an interrupt or a close, and abandoned
    calls must end within it.
    """

    heartbeat: float = 30.0
    grace: float = 10.0


class WorkerConnection:
    """The communication with one worker. A thread of its own reads the socket until the process
    is gone."""

    def __init__(self, id: str, process: WorkerProcess, patience: Patience) -> None:
        self.id = id
        self.process = process
        self.patience = patience
        self.channel = ch.WorkerChannel(process.channel, METHODS, self._handle, self._stated)
        self.imported = ""  # the module that the worker imported last
        self.ended = threading.Event()
        self.died: WorkerDied | None = None
        self.closing = False
        self._why = ""  # completes "the worker process ...", if it was killed
        self._pinged: float | None = None
        self._handling = False  # True while this process executes a request of the worker
        self._thread = threading.Thread(
            target=self._listen, name=f"holdfast-worker-{id}", daemon=True
        )
        self.start = self._thread.start

    def kill(self, why: str) -> None:
        """Kill the worker. `why` completes a sentence about it, such as "did not stop"."""
        self._why = self._why or why
        self.process.kill()

    def tend(self, now: float, late: bool) -> None:
        """Check about twice a second that the worker is alive, without waiting. If `late`, this
        process was suspended or slow itself, so missing signs of life prove nothing."""
        heartbeat, heard_at = self.patience.heartbeat, self.channel.heard_at
        if late or self._handling or self.ended.is_set() or not self.channel.waiting():
            self._pinged = None
        elif self._pinged is not None and heard_at < self._pinged:
            if now - self._pinged > heartbeat:
                self.kill(f"gave no sign of life for {heartbeat:g} s and was killed")
            self.channel.nudge("ping")  # again, because the first may not have been sent
        elif now - heard_at > heartbeat / 4:
            self._pinged = now
            self.channel.nudge("ping")
        else:
            self._pinged = None

    def end(self, seconds: float = 0.5) -> None:
        """End the worker without a message and wait for its end."""
        self.closing = True
        self.process.end(seconds)
        self.ended.wait()
        self._thread.join()

    # --- methods that the worker calls, on the listening thread ---

    def importing(self, module: str) -> None:
        """Note that the worker begins to import a module that a client named."""
        self.imported = module

    def log(self, level: int, text: str) -> None:
        _log.log(level, "conversation %s: in its worker: %s", self.id, text)

    def pong(self) -> None:
        """Do nothing: any message is a sign of life."""

    def transient(self, kind: str, data: bytes) -> None:
        """Deliver a transient notification to the feed."""

    def _handle(self, number: int | None, method: str, arguments: tuple[Any, ...]) -> None:
        getattr(self, method)(*arguments)  # not `METHODS[method].function`: subclasses override

    def _stated(self, state: ch.WorkerState) -> None:
        pass

    def _listen(self) -> None:
        try:
            self.channel.listen()
        except ch.InvalidMessage as error:
            self._why = self._why or f"sent an invalid message ({error}) and was killed"
        except Exception as error:
            _log.exception("conversation %s: reading from its worker failed", self.id)
            self._why = self._why or f"could not be read ({type(error).__name__}) and was killed"
        try:
            self._over()
        finally:
            self.ended.set()

    def _over(self) -> None:
        status = self.process.end(0.0 if self._why else 0.5)
        how = self._why or how_it_ended(status)
        if not self.closing:
            self.died = WorkerDied(self.id, how)
            _log.error("conversation %s: its worker process %s%s", self.id, how, self._clue())
        try:
            self._clean()
        finally:
            self.process.forget()
            self.channel.end(self._error)

    def _clean(self) -> None:
        pass

    def _error(self) -> Exception:
        if self.died is not None:
            return WorkerDied(self.died.id, self.died.how)
        return ConversationClosed(f"Conversation {self.id!r} is closed. Open it again.")

    def _clue(self) -> str:
        try:
            report = (self.process.folder / "faults").read_text(errors="replace").strip()
        except OSError:
            return ""
        return f". Its crash report:\n{report[-_MAX_CRASH_CHARACTERS:]}" if report else ""


_OWN_METHODS = ch.callable_methods(WorkerConnection, "importing log pong transient")
assert not _OWN_METHODS.keys() & store_proxy.METHODS.keys(), "two methods have one name"
METHODS = _OWN_METHODS | store_proxy.METHODS


class WorkerConversation(WorkerConnection):
    """An open conversation in a worker process. `order` returns the worker's instructions for a
    record, `note` receives its notifications, and `moved` is called when it makes progress."""

    def __init__(
        self,
        record: ConversationRecord,
        process: WorkerProcess,
        store: NotifyingStore,
        patience: Patience,
        order: Callable[[ConversationRecord], ch.Order],
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        super().__init__(record.store_id, process, patience)
        self.record = record
        self.run_lock = threading.Lock()
        self._order = order
        self._note = note
        self._leave = leave
        self._has_left = False
        self._store_proxy = WorkerStoreProxy(store, record.store_id, self._tell_news, moved)
        self._lock = threading.Lock()
        self._state = ch.WorkerState(0, False, False, 0, [])
        self._hosted = False
        self._driving = 0
        self._news = False  # True if the worker must still be told about new commands
        self._interrupted: float | None = None  # the deadline for a stop after an interrupt
        self._lingers: float | None = None  # the deadline for the end of abandoned calls
        self.report = ch.AgentReport([], [])

    def open(self, order: ch.Order) -> ch.AgentReport:
        hosted = self.record.driven == HOSTED
        self.report = self.channel.call("open", order, hosted, type=ch.AgentReport)
        self._hosted = hosted
        self._store_proxy.status = self._store_proxy.status or self.report.status
        return self.report

    # --- requests ---

    @property
    def hosted(self) -> bool:
        return self._hosted

    @property
    def running(self) -> bool:
        return self._state.running

    def finish_inbox(self) -> None:
        self.channel.call("finish_inbox")

    def prepare(self, messages: Sequence[object]) -> NoReturn:
        """Messages reach a worker as commands."""
        raise NotImplementedError

    def begin(self, hosted: bool, messages: Sequence[object] = ()) -> None:
        self.channel.call("begin", hosted)
        self._hosted = self._hosted or hosted

    def execute(self, command: cmd.Command, key: str | None = None) -> None:
        if isinstance(command, cmd.Interrupt) and self._driving:
            self._interrupted = time.monotonic() + self.patience.grace
        self.channel.call("execute", cmd.encode(command), key)

    def drive(self) -> bool:
        if not (self._hosted or self.running):
            return False
        with self._lock:
            self._driving += 1
        try:
            return self.channel.call("drive", type=bool)
        finally:
            with self._lock:
                self._driving -= 1
                self._interrupted = None

    def hand_over(self) -> None:
        """A request that the socket does not accept at once is lost; the pool repeats it."""
        self.channel.nudge("hand_over")

    # --- state ---

    @property
    def status(self) -> ConversationStatus:
        if self.ended.is_set() and self.died is None:
            return ConversationStatus.CLOSED
        if self.failure is not None:
            return ConversationStatus.ERROR
        return ConversationStatus(self._store_proxy.status or "idle")

    @property
    def busy(self) -> bool:
        return self._driving > 0

    @property
    def children_busy(self) -> bool:
        if self._state.children:
            self.channel.call("report_state")  # the children may rest by now
        return self._state.children

    @property
    def has_work(self) -> bool:
        self.channel.call("report_state")
        return self._state.has_work

    @property
    def failure(self) -> Exception | None:
        if self.died is not None:
            return self.died
        fault = self._state.failure
        return None if fault is None else error_of_form(fault, StoreError)

    def fold(self) -> None:
        """Return None: the journal's fold is in the worker."""

    def awaits_below(self, place: str, question_id: str) -> bool:
        """Return True: the questions are in the worker, which may wait for their answers."""
        return True

    def offers(self) -> list[OfferedCall]:
        return [OfferedCall(*offer) for offer in self._state.offers]

    def pending_confirmations(self) -> list[tuple[str, str]]:
        return self.channel.call("pending_confirmations", type=list[tuple[str, str]])

    # --- files ---

    def put_back(self, seq: int) -> PutBack:
        return self.channel.call("put_back", seq, type=PutBack)

    def check_rests(self) -> None:
        self.channel.call("check_rests")

    def write_title(self) -> str:
        return self.channel.call("write_title", type=str)

    # --- tools ---

    def services(self) -> list[SourceHealth] | None:
        """Return None, because the connections are in the worker."""
        return None

    def set_tools(self, record: ConversationRecord, built: BuiltAgent) -> None:
        self.report = self.channel.call("set_tools", self._order(record), type=ch.AgentReport)

    def use(self, record: ConversationRecord, built: BuiltAgent) -> None:
        self.report = self.channel.call("use", self._order(record), type=ch.AgentReport)

    def set_secrets(self, record: ConversationRecord, built: BuiltAgent) -> None:
        self.channel.call("set_secrets", self._order(record))

    def close(self, timeout: float) -> None:
        self.closing = self.died is None
        try:
            if not self.ended.is_set():
                self.channel.call("close", timeout, timeout=timeout + self.patience.grace)
        except (StoreError, TimeoutError, ConversationClosed):
            pass
        finally:
            self.end()
            with self._lock:
                already_left, self._has_left = self._has_left, True
            if not already_left:
                self._leave()

    # --- timer and listening thread ---

    def tend(self, now: float, late: bool) -> None:
        """Also check that the worker stops after an interrupt, and that no abandoned call keeps
        running while the conversation rests."""
        super().tend(now, late)
        if self._news:
            self._tell_news()
        interrupted, grace = self._interrupted, self.patience.grace
        if interrupted is not None and self._driving and now >= interrupted:
            if self.status is RUNNING:  # the conversation was resumed meanwhile
                self._interrupted = None
            else:
                self.kill(f"did not stop within {grace:g} s of an interrupt and was killed")
        if not self._state.left or self._driving or self.closing:
            self._lingers = None
        elif self._lingers is None:
            self._lingers = now + grace
        elif now >= self._lingers:
            self.kill("had abandoned calls that did not end, and was killed")
        else:
            self.channel.nudge("report_state", number=0)

    def transient(self, kind: str, data: bytes) -> None:
        self._note(kind, lambda: data)

    def _handle(self, number: int | None, method: str, arguments: tuple[Any, ...]) -> None:
        if number is None or method not in store_proxy.METHODS:
            super()._handle(number, method, arguments)
            return
        self._handling = True
        try:
            function = store_proxy.METHODS[method].function
            self.channel.answer(number, lambda: function(self._store_proxy, *arguments))
        except OSError:  # the worker is gone, which the next read shows
            pass
        finally:
            self._handling = False

    def _tell_news(self) -> None:
        """Tell the worker about new commands. The store calls this on a shared thread, which
        must not wait for a worker that does not read."""
        self._news = True
        if self.channel.nudge("drain"):
            self._news = False

    def _stated(self, state: ch.WorkerState) -> None:
        with self._lock:
            if state.at > self._state.at:
                self._state = state

    def _clean(self) -> None:
        self._store_proxy.end()
