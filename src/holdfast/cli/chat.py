"""`holdfast chat`: a conversation, line by line."""

from __future__ import annotations

import os
import select
import sys
import threading
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing

from holdfast import events as ev
from holdfast.cli.attachments import attachments, described, split_places
from holdfast.cli.build import build
from holdfast.cli.call_prompt import ANSWERS, WAITING
from holdfast.cli.console import Console
from holdfast.cli.dialog import edit_lines
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.session import Session
from holdfast.cli.signals import Signals
from holdfast.cli.text import counted, status_text, token_parts
from holdfast.content import FileContent
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.errors import ConfigurationError, Conflict, HoldfastError, RuntimeFault

HELP = """\
A line is a message to the agent. A line that you type while the agent works reaches it after its
current step.
  /pause            pause after the current step; Ctrl-C pauses at once
  /resume           continue, also after an error; an empty line continues after a pause
  /attach [FILE]    send a file, or the file at an address, with your next message; several
                    may follow each other; without FILE, list them
  /detach           attach nothing after all
  /model [NAME]     continue with another model from the next step on; without NAME, show it
  /ask QUESTION     ask the model aside, also while it works; it does not see this again
  /undo             take back your last message, and put back the files that calls changed since
  /condense [TEXT]  shorten the model's view; TEXT says what its summary must keep
  /status           show the state of the conversation
  /exit             leave; so does Ctrl-D
When a call waits for you, y n e a q decide. Any other line is a message, which approves nothing."""


def chat(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Talk until the user leaves. Raises `UsageError`, `HoldfastError`."""
    console = Console(env)
    files = attachments(options.attach)
    with Signals() as signals:
        parts = build(options, env, console.is_terminal)
        with closing(Session(parts, console, signals, full=options.full)) as session:
            talk = _Talk(session, files)
            work = talk.interactive if session.interactive else talk.piped
            return session.main(lambda _: work())


class _Talk:
    def __init__(self, session: Session, files: Sequence[FileContent]) -> None:
        self._session = session
        self._files = tuple(files)  # attached to the next message
        self._left = False

    # --- a user at a terminal ---

    def interactive(self) -> Exit:
        """Prompt, send and watch until the user leaves."""
        session = self._session
        edit_lines()
        call_prompt, asks_about = session.call_prompt(self._take_other_line), session.conversation
        session.console.notice("Type /help for the commands; Ctrl-D leaves.", "dim")
        if self._files:
            self._tell_files()
        reported_seq = 0  # the last event when the reason for stopping was last printed
        while True:
            if (code := session.drive(self._poll)) is not None:
                return code
            if self._left:
                return Exit.FINISHED
            status = session.conversation.status
            if status is WAITING:
                if asks_about is not session.conversation:  # after /undo
                    asks_about = session.conversation
                    call_prompt = session.call_prompt(self._take_other_line)
                if (code := call_prompt.ask()) is not None:
                    return code
                continue
            last_seq = session.conversation.state.last_seq
            failed = status in (ConversationStatus.ERROR, ConversationStatus.STUCK)
            if session.was_interrupted:
                text = "paused: Enter continues, a message steers, Ctrl-D leaves."
                session.console.notice(text, "dim")
            elif failed and reported_seq != last_seq:
                reported_seq = last_seq
                session.outcome()
            if (code := self._prompt()) is not None:
                return code

    def _prompt(self) -> Exit | None:
        session = self._session
        pressed = False
        while True:
            try:
                line = session.dialog.ask("> ")
            except EOFError:
                session.console.notice("")
                return Exit.FINISHED
            except KeyboardInterrupt:
                session.console.notice("")
                if pressed:
                    return Exit.INTERRUPTED
                pressed = True
                session.console.notice("Ctrl-C again, or Ctrl-D, leaves.", "dim")
                continue
            pressed = False
            if session.conversation.status is WAITING and line.strip().lower() in (*ANSWERS, ""):
                return None  # a call started to wait meanwhile: ask about it first
            if self._take(line, echoed=True):
                return Exit.FINISHED if self._left else None

    def _take_other_line(self, line: str) -> bool:
        """Process a line typed at the prompt of a waiting call. Return True if the user left."""
        self._take(line, echoed=True)
        return self._left

    def _poll(self) -> None:
        """Process the lines typed while the agent works. The terminal delivers complete lines."""
        while not self._left and select.select([sys.stdin], [], [], 0)[0]:
            typed = os.read(sys.stdin.fileno(), 65536)
            if not typed:  # Ctrl-D: leave when the agent is done
                self._left = True
            for line in typed.decode(errors="replace").splitlines():
                waiting = self._session.conversation.state.pending_confirmations
                if line.strip().lower() in ANSWERS and waiting:
                    text = "answers nothing yet: you will be asked when the other calls are done."
                    self._session.console.notice(f"{line.strip()!r} {text}", "dim")
                elif line.strip():
                    self._take(line, echoed=True)

    # --- input from a file or a pipe ---

    def piped(self) -> Exit:
        """Send each line after the last answer. Return the exit code of the last answer."""
        session = self._session
        begun = session.conversation.state.last_seq
        code = session.drive()
        ended, now = Exit.FINISHED, session.conversation.state
        if code is None and (now.status is WAITING or now.last_seq != begun):
            ended = session.outcome()  # of unfinished earlier work, if there is no message now
        while code is None and not self._left:
            try:
                line = session.dialog.ask("")
            except EOFError:
                break
            except KeyboardInterrupt:
                return Exit.INTERRUPTED
            if self._take(line, echoed=False) and not self._left:
                code = session.drive()
                if code is None:
                    ended = session.outcome()
        return ended if code is None else code

    # --- processing of one line ---

    def _take(self, line: str, *, echoed: bool) -> bool:
        """Process one line. Return True if the agent may have work now, or if the user left."""
        session, conversation = self._session, self._session.conversation
        word = line.strip()
        match word.split(maxsplit=1)[0] if word.startswith("/") else "":
            case "":
                if word:
                    self._say(line, echoed)
                    return True
                if conversation.status is ConversationStatus.PAUSED:
                    session.resume()
                    return True
            case "/exit" | "/quit":
                self._left = True
                return True
            case "/resume":
                session.resume()
                return True
            case "/pause":
                if conversation.status in (ConversationStatus.RUNNING, WAITING):
                    conversation.pause()
                else:
                    status = status_text(conversation.status)
                    session.console.notice(f"Nothing to pause: the agent is {status}.", "dim")
            case "/condense":
                try:
                    conversation.condense(word.partition(" ")[2].strip() or None)
                except ConfigurationError as error:
                    session.console.notice(str(error), "error")
                    return False
                return True
            case "/model":
                self._use_model(word.partition(" ")[2].strip())
            case "/ask":
                self._ask(word.partition(" ")[2].strip())
            case "/undo":
                self._undo()
            case "/attach":
                self._attach(word.partition(" ")[2])
            case "/detach":
                self._files = ()
                self._tell_files()
            case "/status":
                self._tell_status()
            case "/help" | "/":
                session.console.notice(HELP, "dim")
            case unknown:
                if "/" in unknown[1:]:  # a path, not a command
                    self._say(line, echoed)
                    return True
                known = (
                    "/help /attach /detach /pause /resume /model /ask /undo /condense /status /exit"
                )
                text = f"Unknown command {unknown}. The commands are {known}."
                session.console.notice(text, "error")
        return False

    def _say(self, line: str, echoed: bool) -> None:
        if self._session.say(line, echoed, self._files):
            self._files = ()
        if self._session.conversation.status is WAITING:
            text = "Sent as a message. It approves nothing: the call still waits."
            self._session.console.notice(text, "dim")

    def _ask(self, question: str) -> None:
        """Ask the model aside. While it works the answer is shown when it comes; at rest this waits
        for it."""
        session, conversation = self._session, self._session.conversation

        def ask() -> None:
            try:
                conversation.ask(question)  # the display shows its outcome
            except (Conflict, ConfigurationError) as error:
                session.console.notice(str(error), "error")
            except HoldfastError:
                pass  # it is the outcome that the display shows

        thread = threading.Thread(target=ask, name="holdfast-chat-ask", daemon=True)
        thread.start()
        if conversation.status is not ConversationStatus.RUNNING:
            while thread.is_alive() and not session.signals.pending:
                thread.join(0.05)
            session.signals.take_interrupt()
            session.dialog.catch_up()

    def _undo(self) -> None:
        """Go on from before the last message of the user, with the files of that time."""
        session = self._session
        conversation = session.conversation
        if not isinstance(conversation, Conversation) or conversation.hosting.context.undo is None:
            why = "--no-undo" if isinstance(conversation, Conversation) else "an agent server"
            session.console.notice(f"There is nothing to undo with: {why} keeps no files.", "error")
            return
        said = [
            event
            for event in conversation.get_history()
            if isinstance(event, ev.MessageAdded) and event.sender == "user"
        ]
        if not said:
            session.console.notice("There is no message to undo.", "dim")
            return
        try:
            rewound = conversation.rewind(said[-1].seq - 1, **session.callbacks())
        except (Conflict, RuntimeFault) as error:
            text = "/pause, and wait" if isinstance(error, Conflict) else str(error)
            session.console.notice(f"Nothing was undone: {text}.", "error")
            return
        session.go_on_with(rewound.conversation)
        session.console.notice(
            f"{rewound.files} Your last message is taken back; say it anew.", "dim"
        )

    def _attach(self, text: str) -> None:
        """Attach the files that a line names to the next message, or list those attached."""
        places = split_places(text)
        try:
            self._files += attachments(places, "/attach", self._files)
        except UsageError as error:
            if not self._session.interactive:  # else a script would send its message without it
                raise
            self._session.console.notice(f"{error}.", "error")
        else:
            self._tell_files()

    def _use_model(self, name: str) -> None:
        session = self._session
        try:
            used = session.use_model(name) if name else session.model
        except (UsageError, HoldfastError) as error:
            if not session.interactive:  # else a script would go on with the model before
                raise
            session.console.notice(f"{str(error).rstrip('.')}.", "error")
        else:
            session.console.notice(f"model {used}", "dim")

    def _tell_files(self) -> None:
        text = "Nothing is attached."
        if self._files:
            listed = ", ".join(described(file) for file in self._files)
            text = f"Attached to your next message: {listed}."
        self._session.console.notice(text, "dim")

    def _tell_status(self) -> None:
        conversation = self._session.conversation
        state = conversation.state
        parts = [
            f"{conversation.id}: {status_text(conversation.status)}",
            f"model {self._session.model}",
            counted(state.steps, "step"),
            *(token_parts(state.usage) or ["no tokens"]),
            counted(state.last_seq, "event"),
        ]
        self._session.console.notice(", ".join(parts), "dim")
