"""A console for `chat` whose last lines are an input box: output appears above it, and the user can
type at any time. Needs prompt_toolkit (the extra `chat`)."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, merge_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from holdfast.cli.chat_completion import ChatCompleter
from holdfast.cli.console import FRAME_SECONDS, FRAMES, Console
from holdfast.cli.markdown import MarkdownStream
from holdfast.cli.picker import pick
from holdfast.cli.text import clip, duration, one_line, safe

_PROMPT, _CONTINUED = "> ", "  "
_LIVE_LINES = 12  # of a block of an answer that is not complete
_SENT_LINES = 20  # of a message that was sent
_READ_SECONDS = 0.1  # between two looks for a signal while a line is awaited
_START_SECONDS = 5.0
# Seconds after which Esc is a key of its own and not the beginning of a sequence.
_ESCAPE_SECONDS = 0.05
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "prompt": "bold"})


class _Line(NamedTuple):
    """A line that the user entered; `text` is None after Ctrl-D. `question` is the number of the
    question that it answers, 0 for none."""

    question: int
    text: str | None


class LiveConsole(Console):
    """A `Console` with an input box, from `start` to `close`.

    A thread of its own owns the terminal. Other threads hand it output and take lines from a queue.
    A key that stops the agent (Esc, Ctrl-C) is sent to this process as SIGINT, so that both
    consoles stop it in one way.
    """

    live = True

    def __init__(self, env: Mapping[str, str], history: Path | None = None) -> None:
        super().__init__(env)
        self._lines: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        self._early: list[_Line] = []  # messages entered before a question was answered
        self._question = 0  # the number of the question in the box, 0 for none
        self._questions = 0
        self._prompt = _PROMPT
        self._draft = Document()
        self._asking = False
        self._furnished = False  # nothing runs yet that Esc could stop
        self._unwritten = ""  # whole lines that the terminal's thread has not written yet
        self._tail = ""  # an output line that has not ended
        self._markdown = MarkdownStream(lambda: self.width, self.colour)
        self._history = _ChatHistory(history)
        self._toolbar: Callable[[], str] = lambda: "starting"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: PromptSession[str] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            drawn = threading.Event()
            run = lambda: asyncio.run(self._run(drawn))  # noqa: E731
            self._thread = threading.Thread(target=run, name="holdfast-terminal", daemon=True)
            self._thread.start()
            drawn.wait(_START_SECONDS)

    def furnish(
        self,
        toolbar: Callable[[], str],
        commands: Mapping[str, str],
        arguments: Mapping[str, Callable[[], Sequence[str]]],
        folder: Path,
    ) -> None:
        self._toolbar, self._furnished = toolbar, True
        if self._session is not None:
            self._session.completer = ThreadedCompleter(ChatCompleter(commands, arguments, folder))
        self._redraw()

    # --- the terminal's thread ---

    async def _run(self, drawn: threading.Event) -> None:
        self._session = session = PromptSession[str](
            message=self._message,
            multiline=True,
            prompt_continuation=_CONTINUED,
            complete_while_typing=Condition(lambda: not self._question),
            history=self._history,
            enable_history_search=False,
            enable_open_in_editor=Condition(lambda: not self._hidden),
            tempfile_suffix=".md",
            key_bindings=self._keys(),
            bottom_toolbar=lambda: ANSI(f"\x1b[2m{clip(self._toolbar(), self.width)}\x1b[0m"),
            style=_STYLE,
            erase_when_done=True,
            reserve_space_for_menu=6,
        )
        app, self._loop = session.app, asyncio.get_running_loop()
        app.ttimeoutlen = app.timeoutlen = _ESCAPE_SECONDS
        app.renderer.cpr_not_supported_callback = lambda: None  # it works without
        session.default_buffer.accept_handler = self._accept
        app.after_render.add_handler(lambda _app: drawn.set())
        ticker = asyncio.ensure_future(self._animate())
        try:
            await app.run_async(set_exception_handler=False, handle_sigint=False)
        except EOFError:  # the terminal went away
            self._lines.put(_Line(self._question, None))
        finally:
            ticker.cancel()
            self._loop = None
            drawn.set()

    async def _animate(self) -> None:
        while self._session is not None:
            await asyncio.sleep(FRAME_SECONDS)
            if self._status:
                self._session.app.invalidate()

    def _message(self) -> AnyFormattedText:
        """Return the lines above the input: the rest of a streamed answer and the activity."""
        above = self._markdown.rest or self._tail
        lines = above.rsplit("\n", _LIVE_LINES)[-_LIVE_LINES:] if above else []
        if self._status:
            passed = time.monotonic() - self._since
            frame = FRAMES[int(passed / FRAME_SECONDS) % len(FRAMES)]
            text = clip(f"{frame} {one_line(self._status)} {duration(passed)}", self.width)
            lines.append(self._styled("dim", f"{text}  (Esc stops it)", self.colour))
        block = "".join(f"{line}\n" for line in lines)
        return merge_formatted_text([ANSI(block), [("class:prompt", self._prompt)]])

    def _accept(self, buffer: Buffer) -> bool:
        """Take the text of the input box. Return True if the box keeps its text, the draft."""
        text, question = buffer.text, self._question
        if question:
            self._flush(f"{self._prompt}{'*' * 3 if self._hidden else safe(text)}\n", sys.stdout)
            self._end_question()
        elif text.strip():
            echo = _clipped(safe(text)).replace("\n", f"\n{_CONTINUED}")
            self._flush(self._styled("user", f"{_PROMPT}{echo}", self.colour) + "\n", sys.stdout)
        self._lines.put(_Line(question, text))
        return question != 0

    @property
    def _hidden(self) -> bool:
        return self._session is not None and bool(self._session.is_password)

    def _begin_question(self, number: int, prompt: str, prefill: str, hidden: bool) -> None:
        if self._session is not None:
            buffer = self._session.default_buffer
            self._draft, self._question, self._prompt = buffer.document, number, prompt
            self._history.records = False
            self._session.is_password = hidden
            buffer.reset(Document(prefill))
            self._session.app.invalidate()

    def _end_question(self) -> None:
        if self._session is not None and self._question:
            self._question, self._prompt = 0, _PROMPT
            self._session.is_password = False
            # Not `document =`: an undo would show a hidden answer.
            self._session.default_buffer.reset(self._draft)
            # The buffer appends its text, now the draft, to the history after `_accept`.
            asyncio.get_running_loop().call_soon(self._record)
            self._session.app.invalidate()

    def _record(self) -> None:
        self._history.records = not self._question

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            chosen = buffer.complete_state and buffer.complete_state.current_completion
            if chosen and not buffer.text.startswith("/"):
                buffer.complete_state = None  # Enter takes the path, the next one sends
            elif buffer.document.char_before_cursor == "\\" and not self._question:
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("escape", filter=Condition(lambda: self._furnished and not self._asking))
        def _(event: KeyPressEvent) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if not self._furnished:
                self._toolbar = lambda: "leaving"
                self._lines.put(_Line(0, None))
            elif self._asking and event.current_buffer.text and not self._question:
                event.current_buffer.reset()
            else:
                os.kill(os.getpid(), signal.SIGINT)

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.delete()
            else:
                question = self._question
                self._end_question()
                self._lines.put(_Line(question, None))

        return keys

    def _on_terminal(self, work: Callable[[], object]) -> None:
        """Have the terminal's thread do something, unless it has ended."""
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(work)
        except RuntimeError:  # closed meanwhile
            pass

    # --- output ---

    def _flush(self, text: str, stream: TextIO) -> None:
        if self._loop is None or not stream.isatty():
            super()._flush(text, stream)
            return
        with self._lock:
            whole, newline, self._tail = (self._tail + text).rpartition("\n")
            was_empty, self._unwritten = not self._unwritten, self._unwritten + whole + newline
        if was_empty and self._unwritten:
            self._on_terminal(self._print)

    def _print(self) -> None:
        """Write above the box. prompt_toolkit's own way leaves raw mode meanwhile, so that the
        terminal would echo a key and send Enter as a newline."""
        if self._session is None:
            return
        app = self._session.app
        if app._running_in_terminal:  # pyright: ignore[reportPrivateUsage]: $EDITOR has the screen
            asyncio.get_running_loop().call_later(_READ_SECONDS, self._print)
            return
        app.renderer.erase()
        self._write_out()
        app.renderer.reset()
        app.renderer.request_absolute_cursor_position()
        app.invalidate()

    def _write_out(self) -> None:
        with self._lock:
            text, self._unwritten = self._unwritten, ""
        super()._flush(text, self._out)

    def stream(self, style: str, text: str) -> None:
        if self._loop is None or style != "plain":
            super().stream(style, text)
            return
        with self._lock:
            self._middle = self._middle or bool(text)
            if rendered := self._markdown.feed(safe(text)):
                self._flush(rendered, self._out)
                self._blank = True
        self._redraw()

    def end_stream(self) -> None:
        with self._lock:
            if rendered := self._markdown.finish():
                self._flush(rendered, self._out)
                self._middle, self._blank = False, False
            else:
                super().end_stream()

    def status(self, text: str) -> None:
        if self._loop is None:
            super().status(text)
        elif text != self._status:
            self._status, self._since = text, time.monotonic()
            self._redraw()

    def _redraw(self) -> None:
        if self._session is not None:
            self._on_terminal(self._session.app.invalidate)

    # --- input ---

    @property
    def can_edit(self) -> bool:
        return True

    def ask(self, prompt: str, interactive: bool, prefill: str = "", hidden: bool = False) -> str:
        if self._loop is None:
            return super().ask(prompt, interactive, prefill, hidden)
        self.end_stream()
        number = 0
        if prompt != _PROMPT:
            number = self._questions = self._questions + 1
            self._on_terminal(lambda: self._begin_question(number, prompt, prefill, hidden))
        self._asking = True
        try:
            line = self._next(number)
        except BaseException:
            self._on_terminal(self._end_question)
            raise
        finally:
            self._asking = False
        if line.text is None:
            raise EOFError
        return line.text

    def _next(self, question: int) -> _Line:
        """Return the next line for a question. A signal raises here."""
        if not question and self._early:
            return self._early.pop(0)
        while True:
            try:
                line = self._lines.get(timeout=_READ_SECONDS)
            except queue.Empty:
                if self._loop is None:
                    raise EOFError from None
                continue
            if line.question == question:
                return line
            if not line.question:
                self._early.append(line)

    def choose(self, question: str, rows: Sequence[str]) -> int | None:
        if self._loop is None:
            return asyncio.run(self._choose(question, rows))
        chosen = asyncio.run_coroutine_threadsafe(self._choose(question, rows), self._loop)
        try:
            while True:  # a signal raises here
                with suppress(TimeoutError):
                    return chosen.result(_READ_SECONDS)
        except CancelledError:  # the terminal went away
            raise EOFError from None
        finally:
            chosen.cancel()

    async def _choose(self, question: str, rows: Sequence[str]) -> int | None:
        async with in_terminal():  # in place of the box
            return await pick(question, rows, lambda text: clip(text, self.width))

    def forget_typed(self) -> None:
        """Do nothing: a message that was entered stays a message, and a draft stays a draft."""

    def typed(self) -> list[str]:
        while not self._lines.empty():
            line = self._lines.get()
            if not line.question:
                self._early.append(line)
        lines, self._early = self._early, []
        if any(line.text is None for line in lines):
            self._early = [line for line in lines if line.text is not None]
            raise EOFError
        return [line.text for line in lines if line.text is not None]

    def close(self) -> None:
        session, thread = self._session, self._thread
        if session is not None and thread is not None:
            self.end_stream()
            self._on_terminal(lambda: session.app.is_running and session.app.exit(result=""))
            thread.join(_START_SECONDS)
            unsent = self._unsent(session)
            self._session = self._thread = None
        else:
            unsent = []
        self._write_out()
        super()._flush(self._tail, self._out)
        self._tail = ""
        for text in unsent:  # such as a message that was typed before a start that failed
            self.notice(f"Not sent: {text}", "dim")
        super().close()

    def _unsent(self, session: PromptSession[str]) -> list[str]:
        """Return the unread messages, and the one that is being typed."""
        while not self._lines.empty():
            self._early.append(self._lines.get())
        draft = self._draft.text if self._question else session.default_buffer.text
        entered = [line.text or "" for line in self._early if not line.question]
        self._early = []
        return [text for text in (*entered, draft) if text.strip()]


def _clipped(text: str) -> str:
    """Return a message in the form that is shown above the box. A pasted file would scroll
    everything else away."""
    lines = text.split("\n")
    if len(lines) <= _SENT_LINES:
        return text
    left_out = len(lines) - _SENT_LINES + 1
    return "\n".join([*lines[: _SENT_LINES - 1], f"… ({left_out:,} more lines)"])


class _ChatHistory(History):
    """The messages of earlier chats, in a file that the user alone can read; None keeps them in
    memory. Answers to questions are not recorded."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.records = True
        self._storage: History = InMemoryHistory()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
                self._storage = FileHistory(path)
            except OSError:  # a home that cannot be written
                pass

    def load_history_strings(self) -> Sequence[str]:
        return list(self._storage.load_history_strings())

    def append_string(self, string: str) -> None:
        if self.records and string.strip():
            super().append_string(string)

    def store_string(self, string: str) -> None:
        self._storage.store_string(string)
