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
    with _without(0, termios.ECHO):
        yield


@contextmanager
def keys_kept() -> Generator[None]:
    """Keep each key that is typed inside the context, Enter too, for a later input box. The
    terminal neither shows the keys nor makes lines of them."""
    with _without(termios.ICRNL, termios.ECHO | termios.ICANON):
        yield


@contextmanager
def _without(input_flags: int, local_flags: int) -> Generator[None]:
    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield
        return
    attributes = [*before]
    attributes[0] &= ~input_flags
    attributes[3] &= ~local_flags
    termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
