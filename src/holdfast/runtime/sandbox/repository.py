"""`ProtectedRepository`: the files of a work folder's git repository that name programs, which a
later git would run outside of the box."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Files of a repository that do not exist by default, and through which git finds another
# configuration.
_REDIRECTIONS = ("commondir", "config.worktree")
_PROTECTED = ("config", "hooks", "modules", "worktrees", *_REDIRECTIONS)


class ProtectedRepository:
    """The repository at the top of a work folder, if there is one.

    Its configuration and hooks are read-only in boxes and for the file tools. A file that would
    lead git to another configuration, and that was not there before, is removed in the end.
    Repositories that commands make or clone themselves are not protected.
    """

    def __init__(self, workdir: Path) -> None:
        self._git = workdir / ".git"
        self._is_folder = self._git.is_dir() and not self._git.is_symlink()
        self._absent: tuple[Path, ...] = ()
        self.read_only: tuple[Path, ...] = ()
        """The host's paths that the file tools must not write."""
        if self._is_folder and os.access(self._git, os.W_OK):
            # git makes both; without them a command could.
            (self._git / "hooks").mkdir(exist_ok=True)
            (self._git / "config").touch()
        if self._is_folder:
            paths = [self._git / name for name in _PROTECTED]
            self._absent = tuple(
                self._git / name for name in _REDIRECTIONS if not (self._git / name).exists()
            )
            self.read_only = tuple(paths)
        elif os.path.lexists(self._git):  # a file that names the repository's folder, or a link
            self.read_only = (self._git,)

    def mounts(self, inside: str) -> tuple[tuple[str, str, bool], ...]:
        """Return the mounts that protect the repository: the host's path, the path in the box, and
        True for a writable one. `inside` is the path of the work folder in the box."""
        found: list[tuple[str, str, bool]] = []
        if self._is_folder:
            # A mount of its own cannot be renamed, so that no other folder takes its place.
            found.append((str(self._git), f"{inside}/.git", True))
        for path in self.read_only:
            if path.exists() and not path.is_symlink():
                rest = path.relative_to(self._git.parent)
                found.append((str(path), f"{inside}/{rest}", False))
        return tuple(found)

    def clean(self) -> None:
        """Remove the files that lead git to another configuration and were not there before."""
        for path in self._absent:
            with suppress(OSError):
                path.unlink()
