"""A pager for output that is longer than the terminal's screen."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit
from holdfast.cli.terminal_input import is_interactive
from holdfast.cli.text import columns

_DEFAULT = ("less", "more")
_LESS = "FRX"  # leave a short text, pass colours, keep the screen: as git sets it
_SGR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def paged(env: Mapping[str, str], enabled: bool = True) -> Generator[Console]:
    """Yield a console whose output goes through the user's pager ($PAGER, else less or more) once
    it is longer than the screen. Notices are shown when the pager has ended.

    Output is written directly if it goes to a file, a pipe or a terminal without a cursor. The same
    holds if `enabled` is False, or $PAGER is empty or `cat`."""
    command = _command(env) if enabled and is_interactive() else ()
    if not command or env.get("TERM", "dumb") == "dumb":
        yield Console(env)
        return
    output, notices = _PagedOutput(command, env), _HeldNotices()
    console = Console(env, cast("TextIO", output), notices)
    try:
        yield console
    finally:
        output.end()
        sys.stderr.write(notices.getvalue())
        if output.user_quit:  # the user has seen enough, which is no error
            console.broken, console.loss = True, Exit.FINISHED


def _command(env: Mapping[str, str]) -> Sequence[str]:
    """Return the words of the pager's command line; none without a pager."""
    setting = env.get("PAGER")
    if setting is not None:
        try:
            words = shlex.split(setting)
        except ValueError:
            return ()
        return () if words == ["cat"] or not words or shutil.which(words[0]) is None else words
    return next(([name] for name in _DEFAULT if shutil.which(name)), ())


class _HeldNotices(io.StringIO):
    """Notices that wait for the end of the pager, which has the screen."""

    def isatty(self) -> bool:
        return sys.stderr.isatty()


class _PagedOutput(io.TextIOBase):
    """A stream that holds back one screen, and starts the pager with the next line."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.user_quit = False
        self._command = command
        self._env = env
        self._screenful = ""
        self._rows = 0.0
        self._screen = shutil.get_terminal_size()
        self._pager: subprocess.Popen[str] | None = None

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]: it is read only
        return sys.stdout.encoding

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if self._pager is not None:
            self._to_pager(text)
            return len(text)
        self._screenful += text
        for line in text.split("\n")[:-1]:
            self._rows += max(1, -(-columns(_SGR.sub("", line)) // self._screen.columns))
        if self._rows >= self._screen.lines:
            self._start()
        return len(text)

    def flush(self) -> None:
        if self._pager is not None and self._pager.stdin is not None:
            self._pager.stdin.flush()

    def _start(self) -> None:
        env = {**self._env, "LESS": self._env.get("LESS", _LESS)}
        encoding = sys.stdout.encoding
        self._pager = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=env, encoding=encoding, errors="replace"
        )
        screenful, self._screenful = self._screenful, ""
        self._to_pager(screenful)

    def _to_pager(self, text: str) -> None:
        pager = self._pager
        assert pager is not None
        assert pager.stdin is not None
        try:
            pager.stdin.write(text)
        except OSError:
            self.user_quit = True
            raise

    def end(self) -> None:
        """Write the held output, or wait until the user leaves the pager."""
        if self._pager is None:
            sys.stdout.write(self._screenful)
            sys.stdout.flush()
            return
        assert self._pager.stdin is not None
        with suppress(OSError):
            self._pager.stdin.close()
        while True:  # Ctrl-C is for the pager
            with suppress(KeyboardInterrupt):
                self._pager.wait()
                return
