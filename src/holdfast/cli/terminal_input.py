"""Lines from a terminal: editing, prefilled text, hidden input."""

from __future__ import annotations

import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress


def is_interactive() -> bool:
    """Return True if a user is at a terminal, who can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def edit_lines() -> bool:
    """Give `input` line editing. Return True if it has it."""
    if is_interactive():
        try:
            import readline  # pyright: ignore[reportUnusedImport]: its import gives input() line editing  # noqa: F401
        except ImportError:  # a Python built without readline
            return False
        return True
    return False


@contextmanager
def prefilled(text: str) -> Generator[None]:
    """Put `text` into the lines that are edited inside the context."""
    import readline

    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def forget_typed() -> None:
    """Drop the input that was typed but not read yet."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextmanager
def without_echo() -> Generator[None]:
    """Turn off the terminal's echo inside the context."""
    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield
        return
    hidden = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSADRAIN, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
