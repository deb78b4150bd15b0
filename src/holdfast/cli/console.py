"""Output to the standard streams: colours, streamed text, the status line, closed streams."""

from __future__ import annotations

import errno
import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from holdfast.cli.exit_codes import Exit
from holdfast.cli.terminal_input import edit_lines, forget_typed, prefilled, without_echo
from holdfast.cli.text import TextLine, clip, duration, one_line, safe

# SGR parameters of ECMA-48 8.3.117; only the 8 basic colours, which every theme makes readable.
_STYLES = {"user": "1;36", "call": "1", "dim": "2", "error": "31", "add": "32", "remove": "31"}
_CLEAR = "\r\x1b[K"
_LOCK_SECONDS = 2.0  # wait for a writer that hangs on a full pipe, before going on without it
FRAME_SECONDS = 0.1  # between two frames of the status line
FRAMES, PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"


def log_to_stderr(env: Mapping[str, str], form: str) -> None:
    """Log a server's warnings to stderr, where the operator keeps the log."""
    import logging  # takes 10 ms, which the help does not wait for

    if not env.get("HOLDFAST_DEBUG"):  # otherwise everything is logged already
        handler, log = logging.StreamHandler(), logging.getLogger("holdfast")
        handler.setFormatter(logging.Formatter(form))
        log.addHandler(handler)
        log.setLevel(logging.WARNING)


def wants_colour(env: Mapping[str, str], is_tty: bool) -> bool:
    """Return True if the output gets colours. NO_COLOR (no-color.org) wins over FORCE_COLOR
    (force-color.org), which wins over a terminal without colours."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_tty and env.get("TERM", "") != "dumb"


class Console:
    """Output of lines: `out` for the conversation, `err` for notices and errors. Thread-safe.

    Only a terminal gets a status line and, depending on the environment, colours; any other
    output is plain text. `broken` becomes True when the reader of `out` is gone. From then on
    nothing is written to `out` and no error is raised.
    """

    live = False  # True: the user types in a box below the output, at any time

    def __init__(
        self,
        env: Mapping[str, str],
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        notices: bool = True,
    ) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self.is_terminal = self._out.isatty() and env.get("TERM", "") != "dumb"
        self.colour = wants_colour(env, self._out.isatty())
        self._notice_colour = wants_colour(env, self._err.isatty())
        self._notices = notices  # False: of the notices, only errors are written
        self.broken = False
        self.loss = Exit.BROKEN_PIPE  # the exit code for `broken`
        self.stuck = False  # a write to `out` hangs, because the pipe has no reader
        self._lock = threading.RLock()
        self._blank = True  # the last line is blank, or missing
        self._middle = False  # a streamed line has not ended
        self._status = ""
        self._since = 0.0
        self._drawn = False
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None

    @property
    def width(self) -> int:
        """The columns for a line: COLUMNS or the terminal's width, 120 if neither is known."""
        return max(20, shutil.get_terminal_size((121, 24)).columns - 1)

    # --- lines ---

    def show(self, lines: Iterable[TextLine]) -> None:
        """Write lines to `out`."""
        with self._lock:
            text = ""
            for style, content in lines:
                if style == "gap":
                    text += "" if self._blank else "\n"
                    self._blank = True
                else:
                    text += self._styled(style, content, self.colour) + "\n"
                    self._blank = not content
            if text:
                self._write(("\n" if self._middle else "") + text)
                self._middle = False

    def line(self, text: str, style: str = "plain") -> None:
        self.show([TextLine(style, text)])

    def stream(self, style: str, text: str) -> None:
        """Write a piece of text to `out`, without a line end."""
        text = safe(text)
        if not text:
            return
        with self._lock:
            self._write(self._styled(style, text, self.colour))
            self._middle = not text.endswith("\n")
            self._blank = text.endswith("\n\n")

    def end_stream(self) -> None:
        """End a line that `stream` began."""
        with self._lock:
            if self._middle:
                self._middle, self._blank = False, False
                self._write("\n")

    def notice(self, text: str, style: str = "plain") -> None:
        if not self._notices and style != "error":
            return
        with self._patiently():
            if not self.stuck:
                self.end_stream()
                self._flush(self._clear(), self._out)
            self._flush(self._styled(style, safe(text), self._notice_colour) + "\n", self._err)
            self._blank = False

    def error(self, text: str) -> None:
        self.notice(f"holdfast: {one_line(text)}", "error")

    # --- input ---

    def start(self) -> None:
        """Show the input box of a `live` console. Idempotent."""

    def furnish(
        self,
        toolbar: Callable[[], str],
        commands: Mapping[str, str],
        arguments: Mapping[str, Callable[[], Sequence[str]]],
        folder: Path,
    ) -> None:
        """Give the input box of a `live` console its line and its completions.

        Args:
            toolbar: Returns the line below the box; called on another thread.
            commands: The effect of each command, by its name.
            arguments: Return the words that may follow a command, by its name.
            folder: The folder of @paths.
        """

    @property
    def can_edit(self) -> bool:
        """True if a line can be edited, so that text can be put into it."""
        return edit_lines()

    def ask(self, prompt: str, interactive: bool, prefill: str = "", hidden: bool = False) -> str:
        """Read a line from standard input; show the prompt to a user. Raises `EOFError`."""
        with self._lock:
            self.end_stream()
            self._flush(self._clear(), self._out)
            self._blank = False
        if interactive:
            edit_lines()
            text = prefilled(prefill) if prefill else nullcontext()
            with text, without_echo() if hidden else nullcontext():
                line = input(prompt)
            if hidden:
                self.notice("")  # the Enter was not echoed either
            return line
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def choose(self, question: str, rows: Sequence[str]) -> int | None:
        """Have the user choose one of the rows, which may be wider than the terminal. Return its
        index, None if the user chooses none. Raises `EOFError`."""
        for number, row in enumerate(rows, 1):
            self.line(clip(f"{number:>3}  {row}", self.width))
        while True:
            try:
                answer = self.ask(f"{question} [1-{len(rows)}, Enter for none]: ", True).strip()
            except EOFError:
                return None
            if not answer:
                return None
            if answer.isdecimal() and 1 <= int(answer) <= len(rows):
                return int(answer) - 1
            self.notice(f"{answer!r} is not one of the numbers.", "dim")

    def forget_typed(self) -> None:
        """Drop the input that was typed but not read, because it is no answer to a new question."""
        forget_typed()

    def typed(self) -> list[str]:
        """Return the messages that were typed while no question was open. Raises `EOFError` after
        Ctrl-D."""
        lines: list[str] = []
        while select.select([sys.stdin], [], [], 0)[0]:
            if not (chunk := os.read(sys.stdin.fileno(), 65536)):
                raise EOFError
            lines += chunk.decode(errors="replace").splitlines()  # a terminal delivers whole lines
        return lines

    def _styled(self, style: str, text: str, colour: bool) -> str:
        code = _STYLES.get(style)
        if not colour or code is None:
            return text
        # Coloured line by line, so that a pager or a resized window does not spread the colour.
        lines = text.split("\n")
        return "\n".join([f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines])

    # --- the status line ---

    def status(self, text: str) -> None:
        """Show the activity and its duration as the last line of a terminal; "" hides it."""
        if not self.is_terminal:
            return
        with self._lock:
            if text != self._status:
                self._status, self._since = text, time.monotonic()
                if self._drawn:
                    self._write("")
            if text and self._ticker is None:
                name = "holdfast-status"
                self._ticker = threading.Thread(target=self._tick, name=name, daemon=True)
                self._ticker.start()

    def _tick(self) -> None:
        frames = FRAMES if "utf" in (self._out.encoding or "").lower() else PLAIN_FRAMES
        number = 0
        while not self._closed.wait(FRAME_SECONDS):
            number += 1
            with self._lock:
                elapsed = time.monotonic() - self._since
                # Shorter activities end before anyone can read the line. A streamed line that has
                # not ended must not be overwritten.
                if not self._status or self._middle or elapsed <= 0.2 or self._closed.is_set():
                    continue
                frame = frames[number % len(frames)]
                line = f"{frame} {one_line(self._status)} {duration(elapsed)}"
                text = self._styled("dim", clip(line, self.width), self.colour)
                self._flush(_CLEAR + text, self._out)
                self._drawn = True

    def _clear(self) -> str:
        drawn, self._drawn = self._drawn, False
        return _CLEAR if drawn else ""

    # --- the streams ---

    def _write(self, text: str) -> None:
        self._flush(self._clear() + text, self._out)

    def _flush(self, text: str, stream: TextIO) -> None:
        if not text or (self.broken and stream is self._out):
            return
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as error:
            if stream is not self._out:
                return
            self.broken = True
            # A full disk is reported; a closed pipe or a terminal that hung up is not.
            if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EIO):
                self.loss = Exit.FAILED
                why = f"the output cannot be written: {error.strerror}"
                self._flush(f"holdfast: {why}.\n", self._err)

    def close(self) -> None:
        """Remove the status line and end its thread. Idempotent."""
        self._closed.set()
        with self._patiently():
            if not self.stuck:
                self._status = ""
                self._write("")
                self.end_stream()
        if self._ticker is not None:
            self._ticker.join(_LOCK_SECONDS)

    @contextmanager
    def _patiently(self) -> Generator[None]:
        """Hold the lock. If its holder hangs in a write, go on without it, now and later."""
        owns_lock = not self.stuck and self._lock.acquire(timeout=_LOCK_SECONDS)
        self.stuck = not owns_lock
        try:
            yield
        finally:
            if owns_lock:
                self._lock.release()
