"""An agent's session in a terminal: its conversation, its dialog, and the waiting for both."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import events as ev
from holdfast.cli.attachments import message_of
from holdfast.cli.call_prompt import WAITING, CallPrompt, ConfirmOption
from holdfast.cli.console import Console
from holdfast.cli.dialog import Dialog
from holdfast.cli.display import ConversationDisplay, ReadingPace
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.plans import drawn
from holdfast.cli.question_prompt import ask_question
from holdfast.cli.render import Renderer, last, last_word
from holdfast.cli.signals import ENDING, EndRequested, Signals
from holdfast.cli.text import counted, one_line, status_text, summary
from holdfast.content import FileContent, Usage
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.errors import StoreError
from holdfast.llm.client import LLM, NO_KEY
from holdfast.runtime.folder import FolderRuntime
from holdfast.store import Summary
from holdfast.tools.plans import is_unfinished

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation
    from holdfast.llm.model import Model
    from holdfast.remote import RemoteWorkspace

_DONE = (ConversationStatus.IDLE, ConversationStatus.FINISHED)
SLICE = 0.1  # seconds between two checks for signals and typed lines


class ConversationSource:
    """The place of a session's conversation, with its folder `runtime`. `stack` holds the objects
    that the source closes."""

    def __init__(self, runtime: FolderRuntime | RemoteWorkspace, stack: ExitStack) -> None:
        self.runtime = runtime
        self._stack = stack

    def open(self, display: ConversationDisplay, console: Console, asks: bool) -> AnyConversation:
        """Open or create the conversation. `asks`: a user answers its questions."""
        raise NotImplementedError

    def callbacks(self) -> Mapping[str, Any]:
        """Return the options of a conversation that continues this source's."""
        return {}

    def go_on_with(self, conversation: AnyConversation) -> None:
        """Close the conversation, and have `conversation` in its place."""
        raise NotImplementedError

    def others(self) -> Sequence[Summary]:
        """Return the conversations that `other` opens. Raises `UsageError` without any."""
        raise NotImplementedError

    def other(self, id: str) -> AnyConversation:
        """Open another conversation in the place of this one. Raises `HoldfastError`."""
        raise NotImplementedError

    def start(self) -> None:
        """Have the conversation driven, also if another client has stopped it meanwhile."""

    def unreachable(self) -> bool:
        """Return True while the conversation cannot be reached."""
        return False

    def waiting_child(self) -> AnyConversation | None:
        """Return a descendant that waits for confirmation here, or None."""
        return None

    def question_below(self) -> tuple[AnyConversation, ev.Question] | None:
        """Return a descendant and the question that it asks the user here, or None."""
        return None

    def close(self) -> None:
        """Close the conversation and everything that the source holds. Idempotent."""
        self._stack.close()


class Parts(NamedTuple):
    """The parts of a session, which closes `source`."""

    source: ConversationSource
    model: str = ""  # "": that of the journal
    # returns the command that continues the conversation with an id; None if none is kept
    go_on: Callable[[str], str] | None = None
    tell: Sequence[str] = ()  # the words of `holdfast tell` before the id, if they are kept
    policy: ConfirmOption | None = None  # the agent's policy, if calls need confirmation
    warning: str = ""  # printed before all else
    notes: Sequence[str] = ()  # printed when the session starts
    advice: Callable[[ev.AnyEvent], str] | None = None  # a line to print below an event
    # returns the model of a name, and the `go_on` with that model
    new_model: Callable[[str], tuple[Model, Callable[[str], str] | None]] | None = None
    shows_tokens: bool = True  # False: a scripted model, whose tokens are invented
    sandbox: str = "on a server"  # where commands run, in a word or three
    model_names: Callable[[], Sequence[str]] = tuple  # the models that the user has named


class Session:
    """A driver and display of one conversation. `close` closes the objects that it opened. `asks`
    is True if a user at a terminal is asked about calls and questions."""

    def __init__(
        self,
        parts: Parts,
        console: Console,
        signals: Signals,
        *,
        full: bool = False,
        pace: ReadingPace = ReadingPace(),
        asks: bool = True,
    ) -> None:
        self.parts = parts
        self.source = parts.source
        self._retries = _show_retries(console)
        self._interrupted = False
        self._began = time.monotonic()
        self.console = console
        self.signals = signals
        renderer = Renderer(None if full else console.width, full)
        display = ConversationDisplay(
            console, renderer, lambda: self.conversation.state.last_seq, pace, parts.advice
        )
        self.dialog = Dialog(console, signals, display, asks)
        self.interactive = self.dialog.interactive
        try:
            self.conversation = self.source.open(display, console, self.interactive)
        except BaseException:  # such as a damaged store
            self.close()
            raise

    # --- start and end ---

    def close(self) -> None:
        """Close everything. A conversation in a store can be continued later. Idempotent."""
        logging.getLogger("holdfast.retry").removeHandler(self._retries)
        self.source.close()
        self.console.close()

    def main(self, work: Callable[[Session], Exit]) -> Exit:
        """Start, run `work` for the exit code, close, and print the summary."""
        console, totals = self.console, self.dialog.display.totals
        try:
            self._start()
            code = work(self)
        except EndRequested as ended:
            code = Exit(ended.code)
        code = self.signals.ending or code
        if code >= 128:
            self.dialog.finish()
        else:
            self.dialog.catch_up()
        has_events = self.conversation.state.last_seq > 0
        self.close()
        if console.broken:  # the output has no reader
            return code if code in (*ENDING.values(), Exit.INTERRUPTED) else console.loss
        if totals.steps:
            seconds = time.monotonic() - self._began
            usage = totals.usage if self.parts.shows_tokens else Usage()
            console.notice(summary(totals.steps, seconds, usage, totals.cost), "dim")
        if has_events and self.parts.go_on is not None:
            console.notice(f"continue with: {self.parts.go_on(self.conversation.id)}")
        if console.stuck:
            # Everything is closed, but a thread hangs in a write to a pipe without a reader. It
            # holds a lock that the interpreter would wait for at its end.
            os._exit(code)
        return code

    def _start(self) -> None:
        if self.parts.warning:
            self.console.notice(self.parts.warning)
        for note in self.parts.notes:
            self.console.notice(note, "dim")
        self._begin(show=self.conversation.state.last_seq > 0)

    def _begin(self, show: bool) -> None:
        """Drive and show the conversation from here on. `show`: also its earlier end."""
        conversation, state = self.conversation, self.conversation.state
        if show:
            self._show_earlier()
        self.dialog.display.begin(state, self.interactive)
        conversation.register_event_callback(self.dialog.display.on_event, after_seq=state.last_seq)
        conversation.start_thread()

    def _show_earlier(self) -> None:
        """Show the end of a conversation that is continued."""
        conversation, state = self.conversation, self.conversation.state
        events, status = counted(state.last_seq, "event"), status_text(state.status)
        self.console.notice(f"continuing {conversation.id} ({events}, {status})", "dim")
        if self.console.live:
            self._show_last_turn()
        if is_unfinished(state.plan):
            self.console.show(drawn(state.plan, self.console.width))

    def _show_last_turn(self) -> None:
        """Show the events since the user's last message."""
        history = self.conversation.get_history()
        if (message := last_word(history)) is not None:
            renderer = Renderer(self.console.width)
            for event in history:
                lines = renderer.lines(event)  # it needs the calls that earlier events made
                if event.seq >= message.seq:
                    self.console.show(lines)

    def open_other(self, id: str) -> None:
        """Continue another conversation of the same place. Raises `HoldfastError`."""
        conversation = self.source.other(id)
        if conversation.agent is None:  # it has its own agent: allow nothing there yet
            self.parts = self.parts._replace(model="", policy=ConfirmOption([]))
        self.go_on_with(conversation, show=True)

    def go_on_with(self, conversation: AnyConversation, *, show: bool = False) -> None:
        """Drive and show another conversation from now on; the present one is closed. `show`: also
        its earlier end."""
        self.conversation = conversation
        self.source.go_on_with(conversation)
        self._interrupted = False
        self._begin(show)

    def prepare(self) -> None:
        """Make the schemas of the tools, which the first request needs and which take a while."""
        if (agent := self.conversation.agent) is not None:
            for tool in agent.tools.list_tools():
                _ = tool.input_schema

    # --- user input ---

    def say(self, text: str, echoed: bool = False, files: Sequence[FileContent] = ()) -> bool:
        """Send a message with the attached files, and resume a paused agent. Return False if the
        server cannot be reached. `echoed`: the user typed the text on the screen."""
        if echoed and self.source.unreachable():
            text = "Not sent: the agent server cannot be reached. Type it again when it is back."
            self.console.notice(text, "error")
            return False
        self.source.start()
        if echoed:
            self.dialog.display.expect_echoed()
        self.conversation.send_message(message_of(text, files))
        if self.conversation.status is ConversationStatus.PAUSED:
            self.resume()
        return True

    def resume(self) -> None:
        self._interrupted = False
        self.source.start()
        self.conversation.resume()

    def pause(self) -> None:
        """Pause as after Ctrl-C, but keep waiting calls."""
        if self.conversation.status in (ConversationStatus.RUNNING, WAITING):
            self.conversation.pause()
        self._interrupted = self.conversation.status is ConversationStatus.PAUSED

    def interrupt(self) -> None:
        """Stop the agent at once, as Ctrl-C does."""
        self.conversation.interrupt()
        self._interrupted = self.conversation.status is ConversationStatus.PAUSED

    # --- waiting ---

    def wait_while_paused(self) -> Exit | None:
        """Wait for another process to resume. Return an exit code if the command must end."""
        self.dialog.catch_up()
        if tell := self._tell(self.conversation.id, "resume"):
            self.console.notice(f"paused from elsewhere; continue with: {tell}", "dim")
        while self.conversation.status is ConversationStatus.PAUSED:
            if (code := self._ending()) is not None:
                return code
            if self.signals.take_interrupt():
                self._interrupted = True
                return None if self.interactive else Exit.INTERRUPTED
            time.sleep(SLICE)
        return None

    def _ending(self) -> Exit | None:
        """Return the exit code if the output is lost or a signal ends the command."""
        return self.console.loss if self.console.broken else self.signals.ending

    def drive(self, poll: Callable[[], None] | None = None) -> Exit | None:
        """Wait until the agent rests; return an exit code instead if the command must end.

        Meanwhile, ask the user the questions of its calls, and call `poll` ten times a second. The
        first Ctrl-C interrupts the agent, which then rests, paused. The second one, or the first
        one without a terminal, ends the command."""
        while True:
            began = time.monotonic()
            self.conversation.wait(SLICE)
            rests = time.monotonic() - began < SLICE
            if (code := self._ending()) is not None:
                return code
            # At a prompt, Ctrl-C is about leaving, not about an agent that has nothing to do.
            idle = rests and self.interactive and self.conversation.status in _DONE
            if not idle and self.signals.take_interrupt():
                if self._interrupted:
                    return Exit.INTERRUPTED
                if self.source.unreachable():
                    text = "The pause could not be sent; the agent continues when the agent server"
                    self.console.notice(f"{text} does.", "dim")
                    return Exit.INTERRUPTED
                self.interrupt()
                if not self.interactive:
                    return Exit.INTERRUPTED
                if self._interrupted:
                    self.console.status("stopping")
                    continue
            if rests:
                return None
            if self.interactive and (open_question := self._question()) is not None:
                asker, question = open_question
                below = asker is not self.conversation
                who = f"The sub-agent {one_line(asker.id)} asks you:" if below else ""
                with self._staying():
                    ask_question(self.dialog, asker, question, self.interrupt, who)
            elif (child := self.source.waiting_child()) is not None:
                with self._staying():
                    if (code := self._confirm_child(child)) is not None:
                        return code
            elif poll is not None:
                poll()

    @contextmanager
    def _staying(self) -> Generator[None]:
        """Show that an answer could not be sent to the server, to a user at a terminal."""
        try:
            yield
        except StoreError as error:
            if not self.interactive or isinstance(self.conversation, Conversation):
                raise
            text = f"{str(error).rstrip('.')}. The server may not know of your answer."
            self.console.notice(text, "error")

    @property
    def model(self) -> str:
        if self.parts.model:
            return self.parts.model
        head = last(self.conversation.get_history(), ev.AgentConfigured)
        return head.model if head is not None else "unknown"

    @property
    def folder(self) -> Path:
        """The folder of files that the user names: the agent's, if it works on this machine."""
        runtime = self.source.runtime
        return Path(runtime.workdir if isinstance(runtime, FolderRuntime) else ".")

    def context_left(self) -> float | None:
        """Return the share of the model's context window that is left, None if not known."""
        llm = None if self.conversation.agent is None else self.conversation.agent.llm
        info = llm.info if isinstance(llm, LLM) else None
        answer = last(self.conversation.get_history(), ev.AssistantReplied)
        if info is None or not info.context_window or answer is None:
            return None
        used = answer.usage.input_tokens + answer.usage.output_tokens
        return max(0.0, 1 - used / info.context_window)

    def use_model(self, name: str) -> str:
        """Continue with the model of that name, and return its name. Raises `UsageError`,
        `HoldfastError`."""
        agent, new_model = self.conversation.agent, self.parts.new_model
        if agent is None or new_model is None:
            text = "this session did not make the conversation's agent, so its model stays"
            raise UsageError(text)
        model, go_on = new_model(name)
        self.conversation.use(agent.replace(llm=model))
        self.parts = self.parts._replace(model=model.model, go_on=go_on)
        return model.model

    @property
    def was_interrupted(self) -> bool:
        """True if the agent rests because of Ctrl-C."""
        return self._interrupted and self.conversation.status is ConversationStatus.PAUSED

    # --- confirmation ---

    def call_prompt(self, other: Callable[[str], bool] | None = None) -> CallPrompt:
        """Return the prompt for waiting calls. `other` processes a line that is no answer."""
        return CallPrompt(
            self.dialog,
            self.conversation,
            self.source.runtime.read_file,
            self.parts.policy,
            pause=self.pause,
            outcome=self.outcome,
            list_waiting=self.list_waiting,
            other=other,
        )

    def _question(self) -> tuple[AnyConversation, ev.Question] | None:
        """Return a conversation and its waiting question: this one before those below it."""
        if waiting := self.conversation.state.pending_questions:
            return self.conversation, waiting[0][1]
        return self.source.question_below()

    def _confirm_child(self, child: AnyConversation) -> Exit | None:
        """Ask the user about a sub-agent's call. Return an exit code if it is left waiting."""
        id = one_line(child.id)

        def list_waiting() -> Exit:
            headline = f"calls of the sub-agent {id} are left waiting for confirmation."
            return self.dialog.list_waiting(child, headline, self._tell(child.id, "approve"))

        if not self.interactive:
            return list_waiting()
        self.console.notice(f"The sub-agent {id} waits for you:", "dim")
        return CallPrompt(
            self.dialog,
            child,
            self.source.runtime.read_file,
            self.parts.policy,
            pause=self.interrupt,  # the whole tree
            outcome=lambda: None,  # the child continued by itself
            list_waiting=list_waiting,
        ).ask()

    def _tell(self, *words: str) -> str:
        """Return the `holdfast tell` command with these words, "" if nothing is kept."""
        return shlex.join([*self.parts.tell, *words]) if self.parts.tell else ""

    def list_waiting(self) -> Exit:
        """List the calls that are left waiting, and how to approve them. Return the exit code."""
        waiting = [pending.call for pending in self.conversation.state.pending_confirmations]
        headline = f"{counted(len(waiting), 'call')} left waiting for confirmation."
        if not waiting:
            headline = "the agent waits for confirmation, but no call is waiting."
        call = one_line(waiting[0].id) if len(waiting) == 1 else "CALL"
        approve = self._tell(self.conversation.id, "approve", call) if waiting else ""
        code = self.dialog.list_waiting(self.conversation, headline, approve)
        if waiting and not approve:
            self.console.notice(
                "This conversation is not kept; with --store FILE, the call could be approved"
                " later."
            )
        return code

    # --- outcome ---

    def outcome(self) -> Exit:
        """Return the exit code for the agent's status. Print the reason unless it finished."""
        self.dialog.catch_up()
        status = self.conversation.status
        match status:
            case ConversationStatus.FINISHED | ConversationStatus.IDLE:
                return Exit.FINISHED
            case ConversationStatus.ERROR:
                return self._report_error()
            case ConversationStatus.WAITING_FOR_CONFIRMATION:
                return self.list_waiting()
            case ConversationStatus.STUCK:
                change = last(self.conversation.get_history(), ev.StatusChanged)
                reason = (change and change.reason) or "the model gives no usable answer"
                self.console.error(f"the agent is stuck: {reason}.")
            case _:
                self.console.error(f"the agent stopped with the status {status_text(status)}.")
        return Exit.STOPPED

    def _report_error(self) -> Exit:
        error = self.conversation.state.error
        if error is None:
            self.console.error(str(self.conversation.failure))
            return Exit.FAILED
        if error.error == "LimitExceeded":
            kind, limit = error.details.get("type", "steps"), error.details.get("limit", "")
            option = " --max-steps sets the limit." if kind == "steps" else ""
            self.console.error(f"stopped at the limit of {limit} {kind}.{option}")
            return Exit.STOPPED
        hint = "No key was sent: set HOLDFAST_API_KEY, or name a variable with --api-key-env."
        self.console.error((error.message or error.error).replace(NO_KEY, hint))
        return Exit.FAILED


def _show_retries(console: Console) -> logging.Handler:
    """Show the model client's retries, because seconds of silence would look like a hang."""

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.notice(record.getMessage(), "dim")

    log, handler = logging.getLogger("holdfast.retry"), Notices()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    return handler
