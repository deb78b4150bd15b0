"""The conversation of `holdfast chat`, line by line."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches

from holdfast import events as ev
from holdfast.cli.attachments import attachments, file_line, split_places
from holdfast.cli.build import build
from holdfast.cli.call_prompt import ANSWERS, WAITING
from holdfast.cli.console import Console
from holdfast.cli.conversation_ids import find_matching, last_change
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.places import open_place, place_text
from holdfast.cli.plans import drawn
from holdfast.cli.render import last, last_word
from holdfast.cli.session import Session
from holdfast.cli.signals import Signals
from holdfast.cli.terminal_input import is_interactive
from holdfast.cli.text import clip, counted, dollars, minute, one_line, status_text, token_parts
from holdfast.content import FileContent
from holdfast.conversation import Conversation, ConversationStatus
from holdfast.errors import ConfigurationError, Conflict, HoldfastError, RuntimeFault, StoreError
from holdfast.store import Summary

_MOST_LISTED = 200  # conversations of --resume
_WARM_UP_SECONDS = 0.2  # after which the prompt is drawn

# Name, argument, effect. /quit and /compact are other names of /exit and /condense.
COMMANDS = (
    ("/pause", "", "pause after the current step; Ctrl-C or Esc pauses at once"),
    ("/continue", "", "continue, also after an error; an empty line continues after a pause"),
    ("/resume", "[ID]", "continue another conversation, which you choose or name"),
    ("/approve", "", "run all calls that wait for you"),
    ("/attach", "[FILE]", "send a file, or the file at an address, with your next message"),
    ("/detach", "", "attach nothing after all"),
    ("/model", "[NAME]", "continue with another model from the next step on, or show it"),
    ("/plan", "", "show the agent's plan"),
    ("/ask", "QUESTION", "ask the model aside, also while it works; it does not see this again"),
    ("/undo", "", "take back your last message, and put back the files that calls changed since"),
    ("/fork", "", "continue in a copy of the conversation; the original stays unchanged"),
    ("/compact", "[TEXT]", "shorten the model's view; TEXT says what its summary must keep"),
    ("/tools", "", "list the agent's tools"),
    ("/status", "", "show the state of the conversation, its tokens and its cost"),
    ("/exit", "", "leave; so does Ctrl-D"),
)
_ALIASES = {"/quit": "/exit", "/condense": "/compact", "/cost": "/status", "/": "/help"}
_NAMES = ("/help", *(name for name, _, _ in COMMANDS), *_ALIASES)
_LISTED = "\n".join(f"  {f'{name} {argument}':<18}{what}" for name, argument, what in COMMANDS)
HELP = f"""\
A line is a message to the agent. A line that you type while the agent works reaches it after its
current step.
{_LISTED}
When a call waits for you, y n e a q decide. Any other line is a message, which approves nothing."""
LIVE_HELP = f"""{HELP}
Alt-Enter, Ctrl-J, or a backslash before Enter begins a new line; a pasted text is one message.
Ctrl-X Ctrl-E opens $EDITOR; the arrow keys and Ctrl-R find earlier messages; Tab completes
commands, files and @paths."""


def talk(options: Namespace, env: Mapping[str, str], console: Console, signals: Signals) -> Exit:
    """Talk until the user leaves. Raises `UsageError`, `HoldfastError`."""
    files = attachments(options.attach)
    if options.resume and not _choose(options, env, console):
        console.notice("No conversation was chosen.", "dim")
        return Exit.FINISHED
    parts = build(options, env, console.is_terminal)
    with closing(Session(parts, console, signals, full=options.full)) as session:
        one = _Talk(session, files)
        work = one.interactive if session.interactive else one.piped
        return session.main(lambda _: work())


def _choose(options: Namespace, env: Mapping[str, str], console: Console) -> bool:
    """Have the user choose the conversation of `--resume`. Return False if none was chosen."""
    if options.id is not None or options.go_on or options.new:
        raise UsageError("--resume asks for the conversation; leave out --id, --new and --continue")
    if options.store is None and options.server is None:
        raise UsageError(
            "--resume chooses a conversation of a store or of a server; say which with --store FILE"
            " or --server URL"
        )
    if not is_interactive():
        raise UsageError("--resume needs a terminal; name the conversation with --id")
    place_options = Namespace(
        file=options.server or options.store, server_key_file=options.server_key_file
    )
    with closing(open_place(place_options, env, read_only=True)) as place:
        entries = [entry for entry in place.list(limit=_MOST_LISTED) if not entry.spawner]
    if not entries:
        raise UsageError(f"--resume: there is no conversation {place_text(place_options)}")
    entries.sort(key=last_change, reverse=True)
    chosen = console.choose("continue", [_row(entry) for entry in entries])
    if chosen is None:
        return False
    options.id = entries[chosen].id
    return True


def _row(entry: Summary) -> str:
    title = one_line(entry.title) or one_line(entry.id)
    return f"{minute(entry.updated):<16}  {one_line(entry.listed_status):<24}  {title}"


class _Talk:
    def __init__(self, session: Session, files: Sequence[FileContent]) -> None:
        self._session = session
        self._files = tuple(files)  # attached to the next message
        self._leaving = False
        self._toolbar_of, self._toolbar_text = ("", -1, ""), ""

    def _hint(self, text: str, style: str = "dim") -> None:
        self._session.console.notice(text, style)

    @contextmanager
    def _forgiving(self) -> Generator[None]:
        """Show errors inside the context to a user at a terminal. Elsewhere they are raised: a
        script would go on as if nothing were wrong."""
        try:
            yield
        except (UsageError, HoldfastError) as error:
            if not self._session.interactive:
                raise
            self._hint(f"{str(error).rstrip('.')}.", "error")

    # --- a user at a terminal ---

    def interactive(self) -> Exit:
        """Prompt, send and watch until the user leaves."""
        session = self._session
        commands = {name: what for name, _, what in COMMANDS}
        arguments = {"/model": session.parts.model_names}
        session.console.start()
        session.console.furnish(self._toolbar, commands, arguments, session.folder)
        warm_up = threading.Timer(_WARM_UP_SECONDS, session.prepare)
        warm_up.daemon = True
        warm_up.start()
        call_prompt, asks_about = session.call_prompt(self._take_other_line), session.conversation
        self._hint("Type /help for the commands; Ctrl-D leaves.")
        if self._files:
            self._tell_files()
        reported_seq = 0  # the last event when the reason for stopping was last printed
        while True:
            if (code := session.drive(self._poll)) is not None:
                return code
            if self._leaving:
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
                self._hint("paused: Enter continues, a message steers, Ctrl-D leaves.")
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
                self._hint("Ctrl-C again, or Ctrl-D, leaves.")
                continue
            pressed = False
            if session.conversation.status is WAITING and line.strip().lower() in (*ANSWERS, ""):
                return None  # a call started to wait meanwhile: ask about it first
            if self._take_typed(line):
                return Exit.FINISHED if self._leaving else None

    def _take_other_line(self, line: str) -> bool:
        """Process a line typed at the prompt of a waiting call. Return True if the user left."""
        self._take_typed(line)
        return self._leaving

    def _poll(self) -> None:
        """Process the lines typed while the agent works."""
        session = self._session
        try:
            typed = session.console.typed()
        except EOFError:  # Ctrl-D: leave when the agent is done
            self._leaving = True
            return
        for line in typed:
            waiting = session.conversation.state.pending_confirmations
            if line.strip().lower() in ANSWERS and waiting:
                text = "answers nothing yet: you will be asked when the other calls are done."
                self._hint(f"{line.strip()!r} {text}")
            elif line.strip() and not self._leaving:
                self._take_typed(line)

    def _toolbar(self) -> str:
        """Return the line below the input box, which is made anew after an event or for another
        model, not per redraw."""
        session, state = self._session, self._session.conversation.state
        model = session.model
        if (key := (state.id, state.last_seq, model)) == self._toolbar_of:
            return self._toolbar_text
        folder = session.folder.resolve().name or "/"
        parts = [model, folder, *token_parts(state.usage, cached_share=True)]
        if state.cost is not None:
            parts.append(dollars(state.cost))
        if (fraction_left := session.context_left()) is not None:
            parts.append(f"{fraction_left:.0%} of the context left")
        self._toolbar_of, self._toolbar_text = key, " | ".join([*parts, session.parts.sandbox])
        return self._toolbar_text

    # --- input from a file or a pipe ---

    def piped(self) -> Exit:
        """Send each line after the last answer. Return the exit code of the last answer."""
        session = self._session
        session.prepare()
        seq_before = session.conversation.state.last_seq
        code = session.drive()
        ended, now = Exit.FINISHED, session.conversation.state
        if code is None and (now.status is WAITING or now.last_seq != seq_before):
            ended = session.outcome()  # of unfinished earlier work, if there is no message now
        while code is None and not self._leaving:
            try:
                line = session.dialog.ask("")
            except EOFError:
                break
            except KeyboardInterrupt:
                return Exit.INTERRUPTED
            if self._take(line, echoed=False) and not self._leaving:
                code = session.drive()
                if code is None:
                    ended = session.outcome()
        return ended if code is None else code

    # --- processing of one line ---

    def _take_typed(self, line: str) -> bool:
        """Process a line of the user as `_take` does, who stays if the server cannot be reached."""
        try:
            return self._take(line, echoed=True)
        except StoreError as error:
            if isinstance(self._session.conversation, Conversation):
                raise
            unsure = f"The server may not know of this line: {one_line(line)}"
            self._hint(f"{str(error).rstrip('.')}. {unsure}", "error")
            return False

    def _take(self, line: str, *, echoed: bool) -> bool:
        """Process one line. Return True if the agent may have work now, or if the user left."""
        session, conversation = self._session, self._session.conversation
        word = line.strip()
        command = word.split(maxsplit=1)[0] if word.startswith("/") else ""
        match _ALIASES.get(command, command):
            case "":
                if word:
                    self._say(line, echoed)
                    return True
                if conversation.status is ConversationStatus.PAUSED:
                    session.resume()
                    return True
            case "/exit":
                self._leaving = True
                return True
            case "/continue":
                if conversation.status in (ConversationStatus.IDLE, ConversationStatus.FINISHED):
                    status = status_text(conversation.status)
                    self._hint(f"Nothing to continue: the agent is {status}.")
                session.resume()
                return True
            case "/resume":
                self._resume(word.partition(" ")[2].strip())
                return True
            case "/pause":
                if conversation.status in (ConversationStatus.RUNNING, WAITING):
                    conversation.pause()
                else:
                    status = status_text(conversation.status)
                    self._hint(f"Nothing to pause: the agent is {status}.")
            case "/compact":
                try:
                    conversation.condense(word.partition(" ")[2].strip() or None)
                except ConfigurationError as error:
                    self._hint(str(error), "error")
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
            case "/approve":
                self._approve()
                return True
            case "/plan":
                plan = conversation.state.plan
                if plan:
                    session.console.show(drawn(plan, session.console.width))
                else:
                    self._hint("The agent has no plan.")
            case "/fork":
                self._fork()
            case "/tools":
                self._tell_tools()
            case "/help":
                self._hint(LIVE_HELP if session.console.live else HELP)
            case unknown:
                if "/" in unknown[1:]:  # a path, not a command
                    self._say(line, echoed)
                    return True
                near = get_close_matches(unknown, _NAMES, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                text = f"Unknown command {unknown}.{hint} /help lists the commands."
                self._hint(text, "error")
        return False

    def _say(self, line: str, echoed: bool) -> None:
        if self._session.say(line, echoed, self._files):
            self._files = ()
        if self._session.conversation.status is WAITING:
            self._hint("Sent as a message. It approves nothing: the call still waits.")

    def _ask(self, question: str) -> None:
        """Ask the model aside. While it works the answer is shown when it comes; at rest this waits
        for it."""
        session, conversation = self._session, self._session.conversation

        def ask() -> None:
            try:
                conversation.ask(question)  # the display shows its outcome
            except (Conflict, ConfigurationError) as error:
                self._hint(str(error), "error")
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
        """Continue from before the last message of the user, with the files of that time."""
        session = self._session
        conversation = session.conversation
        if isinstance(conversation, Conversation) and conversation.hosting.context.undo is None:
            self._hint("There is nothing to undo with: --no-undo keeps no files.", "error")
            return
        if (message := last_word(conversation.get_history())) is None:
            self._hint("There is no message to undo.")
            return
        try:
            rewound = conversation.rewind(message.seq - 1, **session.source.callbacks())
        except (Conflict, ConfigurationError, RuntimeFault) as error:
            text = "/pause, and wait" if isinstance(error, Conflict) else str(error).rstrip(".")
            self._hint(f"Nothing was undone: {text}.", "error")
            return
        session.go_on_with(rewound.conversation)
        self._hint(f"{rewound.files} Your last message is taken back; say it anew.")

    def _fork(self) -> None:
        """Continue in a fork of the conversation."""
        session, conversation = self._session, self._session.conversation
        if conversation.status in (ConversationStatus.RUNNING, WAITING):
            self._hint("Nothing was forked: /pause, and wait.", "error")
            return
        session.go_on_with(conversation.fork(**session.source.callbacks()))
        self._hint(f"This is {session.conversation.id} now; {conversation.id} stays unchanged.")

    def _resume(self, id: str) -> None:
        """Continue another conversation, which the user chooses unless `id` names it."""
        session, console = self._session, self._session.console
        if session.conversation.status in (ConversationStatus.RUNNING, WAITING):
            console.notice("Nothing was resumed: /pause, and wait.", "error")
            return
        present = session.conversation.id
        try:
            entry = self._other(id, [one for one in session.source.others() if one.id != present])
            if entry is not None:
                session.open_other(entry.id)
        except (UsageError, HoldfastError) as error:
            if not session.interactive:  # else a script would continue the one before
                raise
            hint = " /continue continues this one." if not id else ""
            console.notice(f"Nothing was resumed: {str(error).rstrip('.')}.{hint}", "error")

    def _other(self, id: str, others: Sequence[Summary]) -> Summary | None:
        """Return the conversation to continue, None if the user chooses none."""
        session = self._session
        if id:
            if (match := find_matching(others, id)) is None:
                raise UsageError(f"there is no other conversation {id!r}")
            return match
        roots = sorted((one for one in others if not one.spawner), key=last_change, reverse=True)
        if not roots:
            raise UsageError("there is no other conversation")
        if not session.interactive:
            raise UsageError("/resume needs a terminal to choose at; name one: /resume ID")
        session.dialog.catch_up()
        rows = [_row(one) for one in roots[:_MOST_LISTED]]
        try:
            with session.signals.prompting():
                chosen = session.console.choose("continue", rows)
        except (EOFError, KeyboardInterrupt):
            chosen = None
        return None if chosen is None else roots[chosen]

    def _approve(self) -> None:
        conversation = self._session.conversation
        waiting = conversation.state.pending_confirmations
        for pending in waiting:
            try:
                conversation.approve(pending.call.id, arguments_hash=pending.arguments_hash)
            except (Conflict, ConfigurationError) as error:  # decided elsewhere meanwhile
                self._hint(str(error), "error")
        text = f"{counted(len(waiting), 'call')} approved." if waiting else "No call waits for you."
        self._hint(text)

    def _tell_tools(self) -> None:
        head = last(self._session.conversation.get_history(), ev.AgentConfigured)
        lines = [
            f"  {one_line(tool.name):<22} {one_line(tool.description)}"
            for tool in (head.tools if head else ())
        ]
        width = self._session.console.width
        text = "\n".join(clip(line, width) for line in lines)
        self._hint(text or "The agent has not started yet.")

    def _attach(self, text: str) -> None:
        """Attach the files that a line names to the next message, or list those attached."""
        with self._forgiving():
            self._files += attachments(split_places(text), "/attach", self._files)
            self._tell_files()

    def _use_model(self, name: str) -> None:
        with self._forgiving():
            used = self._session.use_model(name) if name else self._session.model
            self._hint(f"model {used}")

    def _tell_files(self) -> None:
        listed = ", ".join(file_line(file) for file in self._files)
        attached = f"Attached to your next message: {listed}."
        self._hint(attached if listed else "Nothing is attached.")

    def _tell_status(self) -> None:
        conversation = self._session.conversation
        state = conversation.state
        parts = [
            f"{conversation.id}: {status_text(conversation.status)}",
            f"model {self._session.model}",
            counted(state.steps, "step"),
            *(token_parts(state.usage) or ["no tokens"]),
            *([] if state.cost is None else [dollars(state.cost)]),
            counted(state.last_seq, "event"),
        ]
        self._hint(", ".join(parts))
