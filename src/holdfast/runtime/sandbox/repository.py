"""`ProtectedRepository`: the protection of a work folder's git files that name programs. A later
git would run these programs outside of the box."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger("holdfast")

# Files of a repository that do not exist by default, and through which git finds another
# configuration.
_REDIRECTIONS = ("commondir", "config.worktree")
_HASH = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?\s*")
_PROTECTED = ("config", "hooks", "modules", "worktrees", *_REDIRECTIONS)


class ProtectedRepository:
    """The repository at the top of a work folder, if there is one.

    Its configuration and hooks are read-only in boxes and for the file tools. A new file that would
    lead git to another configuration is removed in the end. If the repository was made unusable,
    git would take the work folder itself for one, so it is made usable again. Repositories that
    commands make or clone themselves are not protected.
    """

    def __init__(self, workdir: Path) -> None:
        self._git = workdir / ".git"
        self._is_folder = self._git.is_dir() and not self._git.is_symlink()
        self._head = self._read_head()
        self._top_head = os.path.lexists(workdir / "HEAD")
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
        mounts: list[tuple[str, str, bool]] = []
        if self._is_folder:
            # A mount of its own cannot be renamed, so that no other folder takes its place.
            mounts.append((str(self._git), f"{inside}/.git", True))
        for path in self.read_only:
            if path.exists() and not path.is_symlink():
                rest = path.relative_to(self._git.parent)
                mounts.append((str(path), f"{inside}/{rest}", False))
        return tuple(mounts)

    def clean(self) -> None:
        """Undo what would lead git to another configuration."""
        for path in self._absent:
            with suppress(OSError):
                path.unlink()
        if not self._head or (self._read_head() and self._has_folders()):
            return
        _log.warning(
            "Commands made the repository %s unusable, which would have led git to other settings."
            " Its HEAD was restored.",
            self._git,
        )
        # git takes a folder for a repository if it has a HEAD.
        top = self._git.parent / "HEAD"
        if not self._top_head and os.path.lexists(top):
            os.replace(top, self._git.parent / "HEAD.removed")
        with suppress(OSError):
            for name in ("objects", "refs"):
                if not _is_folder(self._git / name):
                    (self._git / name).unlink(missing_ok=True)
                    (self._git / name).mkdir()
            if not self._read_head():
                new = self._git / "HEAD.restored"
                new.unlink(missing_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with open(os.open(new, flags, 0o644), "wb") as file:
                    file.write(self._head)
                os.replace(new, self._git / "HEAD")

    def _read_head(self) -> bytes:
        """Return the content of HEAD, b"" if git would refuse it."""
        if not self._is_folder:
            return b""
        with (
            suppress(OSError),
            open(
                os.open(self._git / "HEAD", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
            ) as f,
        ):
            data = f.read(1000)
            if data.startswith(b"ref: refs/") or _HASH.fullmatch(data):
                return data
        return b""

    def _has_folders(self) -> bool:
        return all(_is_folder(self._git / name) for name in ("objects", "refs"))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
