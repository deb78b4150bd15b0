"""`Paths`: the files that the file tools may touch.

Every path is resolved, symlinks included, before it is used.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import PathRefused, RuntimeFault


def with_home(path: str | os.PathLike[str], home: str = "") -> str:
    """Replace a leading `~` with `home`, by default the folder in the user database."""
    text = os.fspath(path)
    is_below = text == "~" or text.startswith("~/")
    return (home or home_folder() or "~") + text[1:] if is_below else text


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text. Raises `RuntimeFault` for one that is blank or has a NUL."""
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise RuntimeFault(
            f"{text!r} is not a path. Give one relative to the working directory, or an absolute"
            " one."
        )
    return text


def check_usable(path: Path, text: str) -> None:
    """Raise `RuntimeFault` if the system refuses a path, for example because it is too long. A path
    that does not exist is usable."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # opening the file will report the error
    except OSError as error:
        raise RuntimeFault(f"The path {text[:200]!r} cannot be used: {error.strerror}.") from error


def home_folder() -> str | None:
    """Return the user's home from the user database, None without an entry there."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


class Paths:
    """The folders that file tools may use: the workdir, `allowed` (None for any folder), and
    `readable` for reading only.

    Shell commands are not restricted. A resolved path is opened without following links, so that a
    command that replaces a folder with a link meanwhile gains nothing.
    """

    def __init__(
        self, workdir: Path, allowed: Sequence[Path] | None, readable: Sequence[Path], home: str
    ) -> None:
        self.workdir = workdir
        self._home = home
        self._everywhere = allowed is None
        self._writable = [workdir, *(allowed or ())]
        self._readable = [*self._writable, *readable]

    def resolve(self, path: str | os.PathLike[str], *, write: bool = False) -> Path:
        """Return the real, absolute path, which need not exist. Relative paths start at the
        workdir; `~` is the user's home. Raises `PathRefused` for a path outside of the allowed
        folders, `RuntimeFault` for an invalid path."""
        text = path_text(path)
        real_path = Path(os.path.realpath(self.workdir / with_home(text, self._home)))
        check_usable(real_path, text)
        folders = self._writable if write else self._readable
        if self._everywhere or any(real_path.is_relative_to(folder) for folder in folders):
            return real_path
        via = "" if str(real_path) == text else f" (which is {real_path})"
        raise PathRefused(
            f"The path {text!r}{via} is outside of the working directory {self.workdir}. Use a path"
            " inside it. (The program can allow more with LocalRuntime(allow_outside=[folder]).)",
            text,
        )

    def visible(self, path: Path) -> str:
        """Return the absolute path under which commands see a resolved path."""
        return str(path)

    def label(self, path: Path) -> str:
        """Return the path that the model sees: relative to the workdir if it is inside."""
        try:
            return str(path.relative_to(self.workdir))
        except ValueError:
            return str(path)
