"""Files and folders of options, with errors that name the option and the reason."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.exit_codes import UsageError
from holdfast.cli.signals import Signals
from holdfast.cli.text import clip
from holdfast.errors import ConfigurationError


def path_of(text: str) -> Path:
    """Return the path that an argument names, with the home folder for `~`. Raises `UsageError`
    for a text that can be no path: with a NUL, too long, or with an unknown user."""
    try:
        path = Path(text).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Path(text).expanduser()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{clip(text, 200)!r} is no path: {reason(error).rstrip('.')}") from error
    return path


@contextmanager
def unreadable(what: str) -> Generator[None]:
    """Turn the errors of reading the file `what` into `UsageError` inside the context."""
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{what} does not exist") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} cannot be read: {reason(error)}") from error


@contextmanager
def naming(option: str, end: str = ".") -> Generator[None]:
    """Name the option in errors of its value inside the context, without their `end`."""
    try:
        yield
    except (ConfigurationError, OSError) as error:
        raise UsageError(f"{option}: {str(error).removesuffix(end)}") from None


def importable(*folders: str) -> None:
    """Let modules in these folders be imported; the last folder comes first."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.insert(0, folder)


def read_text(path: str, option: str) -> str:
    """Return the text of the file that `option` names. Raises `UsageError`."""
    try:
        return path_of(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {path!r} cannot be read: {reason(error)}") from error


def read_key(path: str, option: str) -> str:
    """Return the key in the file that `option` names. Raises `UsageError`."""
    key = read_text(path, option).strip()
    if not key:
        raise UsageError(f"{option} {path!r} is empty")
    return key


def read_standard_input(signals: Signals, what: str) -> str:
    """Return the text on standard input, named `what` in errors. Raises `UsageError`, and the
    errors of `Signals.prompting`."""
    try:
        with signals.prompting():
            return sys.stdin.read()
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise UsageError(f"{what} on standard input is not {encoding}") from error


def reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(getattr(error, "strerror", None) or error)


def folder_of(workdir: str) -> Path:
    """Return the folder of `--workdir`. Raises `UsageError` unless it exists."""
    folder = path_of(workdir)
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"--workdir takes an existing folder; {workdir!r} {problem}")
    return folder
