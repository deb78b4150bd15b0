"""`WorkerLive`: an open conversation that is in a worker process, as the host sees it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import commands as cmd
from holdfast.conversation import ConversationStatus
from holdfast.errors import ConversationClosed, StoreError
from holdfast.server.claims import OfferedCall
from holdfast.server.workers import messages as ms
from holdfast.server.workers.deaths import WorkerDied, how_it_ended
from holdfast.server.workers.desk import Desk
from holdfast.server.workers.link import Broken, Link

if TYPE_CHECKING:
    from holdfast.commands import Command
    from holdfast.server.building import Built
    from holdfast.server.records import Record
    from holdfast.server.shapes import ToolStanding
    from holdfast.server.workers.processes import Process
    from holdfast.store import Store
    from holdfast.tools.sources import Health

RUNNING = ConversationStatus.RUNNING

_FAULTS = 2000  # characters of what a crash says that are logged

_log = logging.getLogger("holdfast")
_decoder = msgspec.msgpack.Decoder(ms.FromWorker)


class Patience(msgspec.Struct, frozen=True):
    """Seconds: `heartbeat` within which a worker that is asked something says that it lives,
    `grace` within which it stops after an interrupt or a close, and calls that were given up end.
    """

    heartbeat: float = 30.0
    grace: float = 10.0


class Talk:
    """What is said with one worker, whatever it is for: its socket is heard on a thread of its own,
    until the process is gone."""

    def __init__(self, id: str, process: Process, patience: Patience) -> None:
        self.id = id
        self.process = process
        self.patience = patience
        self.link = Link(process.channel, _decoder, self._handle, self._stated)
        self.importing = ""  # the module that it imported last
        self.gone = threading.Event()
        self.died: WorkerDied | None = None
        self.closing = False
        self._why = ""  # it was ended, because it
        self._pinged: float | None = None
        self._handling = False  # this process is busy with what it said
        self._thread = threading.Thread(
            target=self._listen, name=f"holdfast-worker-{id}", daemon=True
        )

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def kill(self, why: str) -> None:
        """End it by force: it "did not ..."."""
        self._why = self._why or why
        self.process.kill()

    def tend(self, now: float, late: bool) -> None:
        """Look whether it lives. Called about twice a second, or `late`: then this process may have
        heard as little as it. Does not wait."""
        heartbeat = self.patience.heartbeat
        if late or self._handling or self.gone.is_set() or not self.link.waiting():
            self._pinged = None
        elif self._pinged is not None and self.link.heard < self._pinged:
            if now - self._pinged > heartbeat:
                self.kill(f"gave no sign of life for {heartbeat:g} s, and was ended")
            self.link.nudge(ms.Ping())  # again: the first may not have gone
        elif now - self.link.heard > heartbeat / 4:
            self._pinged = now
            self.link.nudge(ms.Ping())
        else:
            self._pinged = None

    def end(self, seconds: float = 0.5) -> None:
        """End it without a word, and wait for that."""
        self.closing = True
        self.process.end(seconds)
        self.gone.wait()
        self._thread.join()

    # --- on the listening thread ---

    def _handle(self, message: Any) -> None:
        match message:
            case ms.Importing(module):
                self.importing = module
            case ms.Logged(level, text):
                _log.log(level, "conversation %s: in its worker: %s", self.id, text)
            case _:
                pass

    def _stated(self, state: ms.State) -> None:
        pass

    def _listen(self) -> None:
        try:
            self.link.listen()
        except Broken as error:
            self._why = self._why or f"said what is no message ({error}), and was ended"
        except Exception as error:
            _log.exception("conversation %s: the server failed to hear its worker", self.id)
            self._why = self._why or f"could not be heard ({type(error).__name__}), and was ended"
        try:
            self._over()
        finally:
            self.gone.set()

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
            self.link.end(self._error)

    def _clean(self) -> None:
        pass

    def _error(self) -> Exception:
        if self.died is not None:
            return WorkerDied(self.died.id, self.died.how)
        return ConversationClosed(f"Conversation {self.id!r} is closed. Open it again.")

    def _clue(self) -> str:
        try:
            said = (self.process.folder / "faults").read_text(errors="replace").strip()[-_FAULTS:]
        except OSError:
            return ""
        return f". It said last:\n{said}" if said else ""


class WorkerLive(Talk):
    """See `Live`. `order` makes what the worker is told of a record; `moved` is told that the
    conversation got on."""

    def __init__(
        self,
        record: Record,
        process: Process,
        store: Store,
        patience: Patience,
        order: Callable[[Record], ms.Order],
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        super().__init__(record.store_id, process, patience)
        self.record = record
        self.moving = threading.Lock()
        self._order = order
        self._note = note
        self._leave = leave
        self._left = False
        self._desk = Desk(store, record.store_id, self._tell_news, moved)
        self._lock = threading.Lock()
        self._state = ms.State(0, False, False, 0, [])
        self._hosted = False
        self._driving = 0
        self._news = False  # which could not be told at once
        self._interrupted: float | None = None  # when it is to have stopped
        self._lingers: float | None = None  # when calls that were given up are to have ended
        self._standings: list[ToolStanding] = []
        self._warnings: list[str] = []

    def open(self, order: ms.Order, hosted: bool) -> ms.Made:
        """Have the conversation opened. Raises what keeps its agent from being made, and
        `WorkerDied`."""
        made: ms.Made = self.link.ask(ms.Open, order, hosted, type=ms.Made)
        self._hosted = hosted
        self._desk.status = self._desk.status or made.status
        self._standings, self._warnings = made.standings, made.warnings
        return made

    # --- what is asked of it ---

    @property
    def hosted(self) -> bool:
        """Whether it goes on by itself when there is something to do."""
        return self._hosted

    @property
    def running(self) -> bool:
        """Whether it goes on until it rests."""
        return self._state.running

    def begin(self, hosted: bool) -> None:
        """See `Live.begin`."""
        self.link.ask(ms.Begin, hosted)
        self._hosted = self._hosted or hosted

    def go_on(self) -> None:
        """Be `running`: a run that was cut off goes on."""
        self.link.ask(ms.GoOn)

    def obey(self, command: Command, key: str | None = None) -> None:
        """See `Conversation.obey`."""
        if isinstance(command, cmd.Interrupt) and self._driving:
            self._interrupted = time.monotonic() + self.patience.grace
        self.link.ask(ms.Obey, cmd.encode(command), key)

    def drive(self) -> bool:
        """Do what there is to do, if it is to be driven at all; whether there is more by now.
        Raises `StoreError`."""
        if not (self._hosted or self.running):
            return False
        with self._lock:
            self._driving += 1
        try:
            return self.link.ask(ms.Drive, type=bool)
        finally:
            with self._lock:
                self._driving -= 1
                self._interrupted = None

    def hand_over(self) -> None:
        """See `Live.hand_over`. A request that the socket does not take at once is lost; the pool
        repeats it."""
        self.link.nudge(ms.HandOver())

    # --- what it is ---

    @property
    def status(self) -> ConversationStatus:
        """Where it stands."""
        if self.gone.is_set() and self.died is None:
            return ConversationStatus.CLOSED
        return (
            ConversationStatus.ERROR
            if self.failure is not None
            else ConversationStatus(self._desk.status or "idle")
        )

    @property
    def busy(self) -> bool:
        """Whether it is being driven now."""
        return self._driving > 0

    @property
    def children_busy(self) -> bool:
        """See `Live.children_busy`."""
        if self._state.children:
            self.link.ask(ms.Look)  # they may have come to rest since
        return self._state.children

    @property
    def to_do(self) -> bool:
        """Whether `drive` would do something."""
        self.link.ask(ms.Look)
        return self._state.to_do

    @property
    def failure(self) -> Exception | None:
        """Why nothing more can be journaled."""
        if self.died is not None:
            return self.died
        fault = self._state.failure
        return None if fault is None else ms.error_of(fault)

    def offers(self) -> list[OfferedCall]:
        """The calls that clients are to run, or run."""
        return [OfferedCall(*offer) for offer in self._state.offers]

    # --- what it has ---

    @property
    def standings(self) -> tuple[list[ToolStanding], list[str]]:
        """Where its tools run, and what did not go as it was asked."""
        return self._standings, self._warnings

    def services(self) -> list[Health] | None:
        """See `Live.services`. Its connections are in the worker."""
        return None

    def set_tools(self, record: Record, built: Built) -> None:
        """Have these tools in place of those that were given before; the model is told before its
        next answer."""
        made: ms.Made = self.link.ask(ms.SetTools, self._order(record), type=ms.Made)
        self._standings, self._warnings = made.standings, made.warnings

    def close(self, timeout: float) -> None:
        """Stop and let go of everything. What this cuts off goes on when it is opened again."""
        self.closing = self.died is None
        try:
            if not self.gone.is_set():
                self.link.ask(ms.Close, timeout, timeout=timeout + self.patience.grace)
        except (StoreError, TimeoutError, ConversationClosed):
            pass
        finally:
            self.end()
            with self._lock:
                left, self._left = self._left, True
            if not left:
                self._leave()

    # --- what comes by itself ---

    def tend(self, now: float, late: bool) -> None:
        """As `Talk.tend`; and that it stops when it was told to, and that no call which was given
        up runs on at rest."""
        super().tend(now, late)
        if self._news:
            self._tell_news()
        interrupted = self._interrupted
        if interrupted is not None and self._driving and now >= interrupted:
            if self.status is RUNNING:  # it was resumed meanwhile
                self._interrupted = None
            else:
                self.kill(
                    f"did not stop within {self.patience.grace:g} s of an interrupt, and was ended"
                )
        if not self._state.left or self._driving or self.closing:
            self._lingers = None
        elif self._lingers is None:
            self._lingers = now + self.patience.grace
        elif now >= self._lingers:
            self.kill("had calls that were given up and did not end, and was ended")
        else:
            self.link.nudge(ms.Look(0))  # nobody waits for the answer; its state is what it is for

    def _handle(self, message: Any) -> None:
        match message:
            case ms.Told(kind, data):
                self._note(kind, lambda: data)
            case ms.Importing() | ms.Logged() | ms.Pong():
                super()._handle(message)
            case _:
                self._handling = True
                try:
                    self.link.answer(message.number, lambda: self._desk.do(message))
                except OSError:  # it is gone, as the next read will say
                    pass
                finally:
                    self._handling = False

    def _tell_news(self) -> None:
        """What the store calls, on a thread that serves others too: it must not wait for a worker
        that does not read."""
        self._news = True
        if self.link.nudge(ms.News()):
            self._news = False

    def _stated(self, state: ms.State) -> None:
        with self._lock:
            if state.at > self._state.at:
                self._state = state

    def _clean(self) -> None:
        self._desk.end()
