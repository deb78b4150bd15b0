"""Live display: streamed pieces and events of two threads appear in one order on the screen."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast import events as ev
from holdfast.cli.console import Console
from holdfast.cli.plans import current
from holdfast.cli.render import Renderer, RunTotals, last
from holdfast.cli.text import GAP, TextLine, counted, safe, styled
from holdfast.conversation import ConversationState, ConversationStatus
from holdfast.llm.completion import Delta

RESTARTED = TextLine("dim", "(the answer broke off; it is requested again)")


class ReadingPace(NamedTuple):
    """Seconds to wait for a reader: before each event, and after each streamed piece."""

    event: float = 0.0
    piece: float = 0.0


class ConversationDisplay:
    """The live display of a conversation. A streamed answer is not repeated when it is complete.

    A piece of an answer appears only after all events that preceded it in the journal, whose last
    seq `last_seq` returns. Otherwise the next answer's first words would stand above the last
    call's result. `advice` returns a line to show below an event, "" for none."""

    def __init__(
        self,
        console: Console,
        renderer: Renderer,
        last_seq: Callable[[], int],
        pace: ReadingPace = ReadingPace(),
        advice: Callable[[ev.AnyEvent], str] | None = None,
    ) -> None:
        self._advice = advice
        self.totals = RunTotals()
        self._console = console
        self._renderer = renderer
        self._last_seq = last_seq
        self._pace = pace
        self._lock = threading.RLock()
        self._shown_seq = 0  # the last event on the screen
        self._waiting: deque[tuple[int, Delta]] = deque()
        self._streamed: str = ""
        self._thought: str = ""
        self._style = ""  # style of the last piece on the screen
        self._parted = False  # True if other lines follow that piece
        self._running = False
        self._open: dict[str, str] = {}
        self._pending_ids: set[str] = set()
        self._progress: dict[str, str] = {}
        self._echoed = 0
        self._quiet = False
        self._interactive = False

    def begin(self, state: ConversationState, interactive: bool = False) -> None:
        """Start after the existing events. `interactive`: a user is asked about calls."""
        with self._lock:
            self._interactive = interactive
            self._shown_seq, self._running = (
                state.last_seq,
                state.status is ConversationStatus.RUNNING,
            )
            self._pending_ids = {pending.call.id for pending in state.pending_confirmations}
            if (answer := last(state.events, ev.AssistantReplied)) is not None:
                self._renderer.know(answer)
            self._renderer.plan = state.plan
            self._tell_status()

    @contextmanager
    def quiet(self) -> Generator[None]:
        """Hide the status line while the user types; new output gets a line of its own."""
        with self._lock:
            self._quiet = self._interactive
            self._tell_status()
        try:
            yield
        finally:
            self._quiet = False

    def expect_echoed(self) -> None:
        with self._lock:
            self._echoed += 1

    def on_delta(self, delta: Delta) -> None:
        """Show a piece of a streamed answer. Runs on the thread that reads the answer."""
        after = self._last_seq()
        with self._lock:
            if after <= self._shown_seq and not self._waiting:
                self._piece(delta)
            else:
                self._waiting.append((after, delta))
        if self._pace.piece:
            time.sleep(self._pace.piece)

    def on_event(self, event: ev.AnyEvent) -> None:
        """Show the journal's next event. Runs on the conversation's callback thread."""
        if self._pace.event and isinstance(event, ev.AssistantReplied | ev.ToolCallFinished):
            time.sleep(self._pace.event)
        with self._lock:
            try:
                self._flush(event.seq - 1)
                self._show(event)
                self._count(event)
                if self._advice is not None and (text := self._advice(event)):
                    self._console.show([TextLine("dim", text)])
            finally:
                self._shown_seq = event.seq
            self._tell_status()
            if isinstance(event, ev.AssistantReplied):
                # Pieces that another thread delivers after the whole answer was read from a server.
                self._waiting = deque(one for one in self._waiting if one[0] > event.seq)
            self._flush(event.seq)

    def on_progress(self, call_id: str, message: str) -> None:
        """Show the progress that a delegating call reports about the other agent."""
        with self._lock:
            if self._renderer.delegates(call_id) and self._progress.get(call_id) != message:
                self._progress[call_id] = message
                self._console.show(self._renderer.child(message))

    def catch_up(self, timeout: float, stop: Callable[[], bool] = bool) -> None:
        """Wait at most `timeout` seconds until all is on the screen or `stop()` is True."""
        # Read without the lock: a thread that writes to a full pipe holds it until someone reads.
        seq = self._last_seq()
        deadline = time.monotonic() + timeout
        while self._shown_seq < seq and not self._console.broken and time.monotonic() < deadline:
            if stop():
                break
            time.sleep(0.01)

    def _flush(self, seq: int) -> None:
        while self._waiting and self._waiting[0][0] <= seq:
            self._piece(self._waiting.popleft()[1])

    def _piece(self, delta: Delta) -> None:
        match delta.kind:
            case "text" | "reasoning":
                self._text(delta.text, delta.kind == "reasoning")
            case "tool":
                if delta.name:
                    self._console.end_stream()
                    self._console.status(f"writing a call of {delta.name}")
            case "retry":
                which = f"{delta.index} of {delta.most}"
                self._console.status(f"retrying in {delta.seconds:.0f} s ({which}): {delta.reason}")
            case "restart":
                if self._style:
                    self._console.end_stream()
                    self._console.show([RESTARTED])
                self._forget_stream()

    def _text(self, text: str, thought: bool) -> None:
        before = self._thought if thought else self._streamed
        text = text if before else text.lstrip("\n")
        if not text:
            return
        style, whole, visible = "dim" if thought else "plain", before + text, text
        if not self._style or self._parted:
            self._console.show([GAP])
            if self._parted:  # a line begun before the pause is shown again from its start
                visible = whole[before.rfind("\n") + 1 :]
            self._parted = False
        elif style != self._style:
            self._console.end_stream()
        self._style = style
        if thought:
            self._thought = whole
        else:
            self._streamed = whole
        self._console.stream(style, visible)

    def _forget_stream(self) -> None:
        self._streamed = self._thought = self._style = ""
        self._parted = False

    def _show(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.AssistantReplied() if self._style:
                self._console.end_stream()
                # The rest that was not streamed; all of it if the answer begins differently.
                if _normal(event.text) != _normal(self._streamed):
                    rest = event.text.lstrip("\n").removeprefix(self._streamed)
                    self._console.show(styled("plain", safe(rest).strip("\n")))
                self._forget_stream()
                self._console.show(list(self._renderer.notes(event)))
                self._console.show(self._renderer.calls(event))
            case ev.MessageAdded(sender="user") if self._echoed:
                self._echoed -= 1
            case ev.DecisionMade(decision="ask" | "allow") if self._interactive:
                self._renderer.asked_plan(event)  # the user is asked next, or allowed it here
            case ev.ErrorRecorded():
                self._console.end_stream()  # printed at the end, on stderr
                self._forget_stream()
            case _:
                # On a server, the first pieces of an answer may come before the status `running`.
                if isinstance(event, ev.StatusChanged) and event.status != "running":
                    self._console.end_stream()
                    # The answer continues after a pause, but not after an interrupt.
                    continues = event.status == "paused" and event.reason != "interrupted"
                    self._parted = bool(self._style) and continues
                    if not self._parted:
                        self._forget_stream()
                lines = self._renderer.lines(event)
                if lines and self._quiet and not self._console.live:
                    self._console.line("")  # below the prompt, not after it
                self._console.show(lines)

    def _count(self, event: ev.AnyEvent) -> None:
        self.totals.count(event)
        match event:
            case ev.AssistantReplied():
                self._open = {call.id: "" for call in event.calls}
            case ev.ToolCallStarted():
                self._open[event.call_id] = self._renderer.title(event.call_id)
            case ev.ToolCallFinished():
                self._open.pop(event.call_id, None)
                self._progress.pop(event.call_id, None)
                self._pending_ids.discard(event.call_id)
            case ev.DecisionMade(decision="ask"):
                self._pending_ids.add(event.call_id)
            case ev.DecisionMade():
                self._pending_ids.discard(event.call_id)
            case ev.StatusChanged():
                self._running = event.status == "running"
            case _:
                pass

    def _tell_status(self) -> None:
        if self._quiet or not (self._running or self._pending_ids):
            self._console.status("")
            return
        titles = [title for title in self._open.values() if title]
        if titles:
            more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
            if self._pending_ids:
                more += f"; {counted(len(self._pending_ids), 'call')} waiting for you"
            self._console.status(f"{titles[0]}{more}")
        elif self._pending_ids:
            self._console.status("waiting for you")
        else:
            step = current(self._renderer.plan)
            self._console.status(f"thinking ({step})" if step else "thinking")


def _normal(text: str) -> str:
    return text.strip().replace("\r", "")
