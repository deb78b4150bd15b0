"""An agent's session in a terminal: its conversation, its screen, and the waiting for both.
Shared by run, chat and demo."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast import events as ev
from holdfast.agent import Agent
from holdfast.cli.children import ask_about, waiting_child
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.live import Live, Pace
from holdfast.cli.plans import drawn
from holdfast.cli.render import Renderer, call_title
from holdfast.cli.screen import Screen
from holdfast.cli.signals import Ended, Signals
from holdfast.cli.text import counted, one_line, summary
from holdfast.content import Usage
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.llm.client import NO_KEY
from holdfast.runtime import LocalRuntime
from holdfast.store import Store
from holdfast.tools.plans import unfinished

if TYPE_CHECKING:
    from holdfast.cli.confirm import Asking
    from holdfast.cli.remote import There
    from holdfast.conversation.observer import Observer
    from holdfast.remote import RemoteConversation, RemoteWorkspace

SLICE = 0.1  # seconds between two checks for signals and typed lines
# Seconds to wait for the screen; a pager that nobody scrolls must not block the process for ever.
_DRAIN_SECONDS, _LAST_DRAIN_SECONDS = 30.0, 1.0


class Parts(NamedTuple):
    """The parts of a session, which closes `runtime`, `store` and `there`."""

    agent: Agent | None  # None: the conversation on a server has its own
    runtime: LocalRuntime | RemoteWorkspace
    store: Store | None = None
    id: str | None = None
    go_on: str = ""  # the command that continues this conversation, if it is kept
    tell: str = ""  # the `holdfast tell` command up to the conversation's id, if it is kept
    asking: Asking | None = None  # the agent's policy, if calls need confirmation
    there: There | None = None  # the server, if the conversation is on one
    observers: Sequence[Observer] = ()
    leave: Callable[[], None] | None = None  # closes the observers
    notes: Sequence[str] = ()  # printed when the session starts


class Session:
    """A driver and display of one conversation. A context manager that closes everything it
    opened."""

    def __init__(
        self,
        parts: Parts,
        screen: Screen,
        signals: Signals,
        *,
        full: bool = False,
        pace: Pace = Pace(),
    ) -> None:
        self.screen = screen
        self.signals = signals
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.runtime = parts.runtime
        self.asking = parts.asking
        self._parts = parts
        self._retries = self._tell_retries()
        self._interrupted = False
        self._began = time.monotonic()
        self.live = Live(
            screen,
            Renderer(None if full else screen.width, full),
            lambda: self.conversation.state.last_seq,
            pace,
        )
        try:
            self.conversation = self._open()
        except BaseException:  # such as a damaged store
            self._release()
            raise

    def _open(self) -> Conversation | RemoteConversation:
        parts, on_delta, on_question = (
            self._parts,
            self.live.on_delta,
            "wait" if self.interactive else None,
        )
        if parts.there is not None:
            return parts.there.open(parts, self.screen, on_delta, on_question)
        assert parts.agent is not None
        return Conversation(
            parts.agent,
            parts.store,
            parts.id,
            runtime=parts.runtime,
            on_delta=on_delta,
            on_progress=self.live.on_progress,
            on_question=on_question,
            observer=parts.observers,
        )

    # --- start and end ---

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the conversation and everything that it started. A conversation in a store can
        be continued later. Idempotent."""
        if self._parts.there is not None:
            self._parts.there.leave()
        else:
            self.conversation.close()
        self._release()

    def _tell_retries(self) -> logging.Handler:
        """Show the model client's retries, because seconds of silence would look like a hang."""
        screen = self.screen

        class Notices(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                screen.notice(record.getMessage(), "dim")

        log, handler = logging.getLogger("holdfast.retry"), Notices()
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        return handler

    def _release(self) -> None:
        logging.getLogger("holdfast.retry").removeHandler(self._retries)
        if self._parts.there is not None:
            self._parts.there.close()
        else:
            self._parts.runtime.close()
        if self._parts.store is not None:
            self._parts.store.close()
        if self._parts.leave is not None:
            self._parts.leave()
        self.screen.close()

    def main(self, work: Callable[[Session], Exit]) -> Exit:
        """Start, run `work` for the exit code, close, and print the summary."""
        try:
            self._start()
            code = work(self)
        except Ended as ended:
            code = ended.code
        code = self.signals.ending or code
        self._drain(code >= 128)
        begun = self.conversation.state.last_seq > 0
        self.close()
        if self.screen.broken:  # nobody reads the output
            return (
                code
                if code in (Exit.HUNG_UP, Exit.TERMINATED, Exit.INTERRUPTED)
                else self.screen.loss
            )
        if self.live.steps:
            seconds = time.monotonic() - self._began
            llm = None if self._parts.agent is None else self._parts.agent.llm
            # The tokens of a scripted model are invented, so they are not shown.
            usage = self.live.usage if llm is None or hasattr(llm, "base_url") else Usage()
            self.screen.notice(summary(self.live.steps, seconds, usage, self.live.cost), "dim")
        if begun and self._parts.go_on:
            self.screen.notice(f"continue with: {self._parts.go_on}")
        if self.screen.stuck:
            # Everything is closed, but a thread hangs in a write to a pipe that nobody reads. It
            # holds a lock that the interpreter would wait for at its end.
            os._exit(code)
        return code

    def _start(self) -> None:
        conversation = self.conversation
        state = conversation.state
        for note in self._parts.notes:
            self.screen.notice(note, "dim")
        if state.last_seq:
            self.screen.notice(
                f"continuing {conversation.id} ({counted(state.last_seq, 'event')},"
                f" {_status(state.status)})",
                "dim",
            )
            if unfinished(state.plan):
                self.screen.show(drawn(state.plan, self.screen.width))
        self.live.begin(state, self.interactive)
        conversation.register_event_callback(self.live.on_event, after_seq=state.last_seq)
        conversation.start_thread()

    # --- user input ---

    def say(self, text: str, echoed: bool = False) -> None:
        """Send a message, and resume the agent if it is paused. `echoed`: the text is on the
        screen already, because the user typed it there."""
        if self._parts.there is not None:
            if echoed and self._parts.there.gone():
                self.screen.notice(
                    "Not sent: the agent server cannot be reached. Type it again when it is back.",
                    "error",
                )
                return
            self._parts.there.start()
        if echoed:
            self.live.expect_echoed()
        self.conversation.send_message(text)
        if self.conversation.status is ConversationStatus.PAUSED:
            self.resume()

    def resume(self) -> None:
        """Continue after a pause or an error."""
        self._interrupted = False
        if self._parts.there is not None:
            self._parts.there.start()
        self.conversation.resume()

    def pause(self) -> None:
        """Pause as after Ctrl-C, but leave waiting calls as they are."""
        if self.conversation.status in (
            ConversationStatus.RUNNING,
            ConversationStatus.WAITING_FOR_CONFIRMATION,
        ):
            self.conversation.pause()
        self._interrupted = self.conversation.status is ConversationStatus.PAUSED

    def interrupt(self) -> None:
        """Stop the agent at once, as Ctrl-C does."""
        self.conversation.interrupt()
        self._interrupted = self.conversation.status is ConversationStatus.PAUSED

    def ask(self, prompt: str, until: Callable[[], bool] | None = None) -> str:
        """Return a line from standard input, after the screen has caught up.

        Raises `EOFError` at the end of the input, `KeyboardInterrupt` at Ctrl-C, `Ended`, and
        `UsageError` for a pipe that holds no text. Raises `Overtaken` as soon as `until` is
        True; another thread calls `until`.
        """
        while True:
            self._drain()
            try:
                with self.live.quiet(), self.signals.prompting(until):
                    return self.screen.ask(prompt, self.interactive)
            except UnicodeDecodeError as error:
                problem = f"the line is not {error.encoding.upper()}"
                if not self.interactive:
                    raise UsageError(
                        f"a line of standard input cannot be read: {problem}"
                    ) from error
                self.screen.error(f"{problem}; type it again.")

    # --- waiting ---

    def catch_up(self) -> None:
        """Wait until every event is on the screen."""
        self._drain()

    def wait_while_paused(self) -> Exit | None:
        """Wait until another process resumes a conversation that another process paused. Return
        an exit code if the command must end."""
        self._drain()
        if self._parts.tell:
            self.screen.notice(
                f"paused from elsewhere; continue with: {self._parts.tell} resume", "dim"
            )
        while self.conversation.status is ConversationStatus.PAUSED:
            if self.screen.broken:
                return self.screen.loss
            if self.signals.ending is not None:
                return self.signals.ending
            if self.signals.take_interrupt():
                self._interrupted = True
                return None if self.interactive else Exit.INTERRUPTED
            time.sleep(SLICE)
        return None

    def drive(self, poll: Callable[[], None] | None = None) -> Exit | None:
        """Wait until the agent rests; return an exit code instead if the command must end.

        Meanwhile, ask the user the questions of its calls, and call `poll` ten times a second.
        The first Ctrl-C interrupts the agent, which then rests, paused. The second one, or the
        first one without a terminal, ends the command.
        """
        while True:
            began = time.monotonic()
            self.conversation.wait(SLICE)
            rests = time.monotonic() - began < SLICE
            if self.screen.broken:
                return self.screen.loss
            if self.signals.ending is not None:
                return self.signals.ending
            if self.signals.take_interrupt():
                if self._interrupted or self._gone():
                    return Exit.INTERRUPTED
                self.interrupt()
                if not self.interactive:
                    return Exit.INTERRUPTED
                if self._interrupted:
                    self.screen.status("stopping")
                    continue
            if rests:
                return None
            if self.interactive and self.conversation.state.pending_questions:
                from holdfast.cli.asking import ask_user  # few calls ask questions

                ask_user(self)
            elif (child := waiting_child(self.conversation)) is not None:
                code = ask_about(self, child, self._parts.tell)
                if code is not None:
                    return code
            elif poll is not None:
                poll()

    def _gone(self) -> bool:
        """Return True if the conversation is on a server that cannot be reached now."""
        there = self._parts.there
        if there is None or not there.gone():
            return False
        self.screen.notice(
            "The pause could not be sent; the agent continues when the agent server does.", "dim"
        )
        return True

    @property
    def model(self) -> str:
        """The name of the model."""
        agent = self._parts.agent
        if agent is not None:
            return agent.llm.model
        return next(
            (
                event.model
                for event in reversed(self.conversation.get_history())
                if isinstance(event, ev.Agent)
            ),
            "unknown",
        )

    @property
    def was_interrupted(self) -> bool:
        """True if the agent rests because of Ctrl-C."""
        return self._interrupted and self.conversation.status is ConversationStatus.PAUSED

    def _drain(self, ending: bool = False) -> None:
        """Wait until every event is on the screen. A signal ends the wait; it is acted on
        afterwards."""
        seq = self.conversation.state.last_seq
        if ending:
            self.live.wait_shown(seq, _LAST_DRAIN_SECONDS, lambda: False)
        else:
            self.live.wait_shown(seq, _DRAIN_SECONDS, lambda: self.signals.pending)
        self.screen.status("")

    # --- outcome ---

    def tell_waiting(self) -> Exit:
        """List the calls that are left waiting, and the command that approves them. Return the
        exit code for that."""
        self._drain()
        waiting = [pending.call for pending in self.conversation.state.pending_confirmations]
        if not waiting:
            self.screen.error("the agent waits for confirmation, but no call is waiting.")
        else:
            self.screen.error(f"{counted(len(waiting), 'call')} left waiting for confirmation.")
        for call in waiting:
            self.screen.notice(f"  {one_line(call.id)}  {call_title(call.name, call.arguments)}")
        if waiting and self._parts.tell:
            which = one_line(waiting[0].id) if len(waiting) == 1 else "CALL"
            self.screen.notice(f"approve with: {self._parts.tell} approve {which}")
        elif waiting:
            self.screen.notice(
                "This conversation is not kept; with --store FILE, the call could be approved"
                " later."
            )
        return Exit.STOPPED

    def outcome(self) -> Exit:
        """Return the exit code for the status in which the agent rests. Print the reason to
        stderr unless it finished."""
        self._drain()
        conversation = self.conversation
        match conversation.status:
            case ConversationStatus.FINISHED | ConversationStatus.IDLE:
                return Exit.FINISHED
            case ConversationStatus.ERROR:
                error = conversation.state.error
                if error is None:
                    self.screen.error(str(conversation.failure))
                    return Exit.FAILED
                if error.error == "LimitExceeded":
                    kind, limit = error.details.get("type", "steps"), error.details.get("limit", "")
                    option = " --max-steps sets the limit." if kind == "steps" else ""
                    self.screen.error(f"stopped at the limit of {limit} {kind}.{option}")
                    return Exit.STOPPED
                message = error.message if error.message else error.error
                self.screen.error(
                    message.replace(
                        NO_KEY,
                        "No key was sent: set HOLDFAST_API_KEY, or name a variable with"
                        " --api-key-env.",
                    )
                )
                return Exit.FAILED
            case ConversationStatus.WAITING_FOR_CONFIRMATION:
                return self.tell_waiting()
            case ConversationStatus.STUCK:
                changes = (
                    event.reason
                    for event in reversed(conversation.get_history())
                    if isinstance(event, ev.Status)
                )
                self.screen.error(
                    "the agent is stuck:"
                    f" {next(changes, '') or 'the model gives no usable answer'}."
                )
                return Exit.STOPPED
            case status:
                self.screen.error(f"the agent stopped with the status {_status(status)}.")
                return Exit.STOPPED


def _status(status: ConversationStatus) -> str:
    return status.value.replace("_", " ")
