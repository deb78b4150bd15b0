"""Changes of several files that happen together: all of them, or none.

A record in the work folder (`.holdfast-changes`) lists the changes before the first one is made.
If the process is killed in the middle, the next runtime of that folder takes them back by it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import RuntimeFault
from holdfast.runtime import textfile
from holdfast.runtime.grep_child import open_folder
from holdfast.runtime.paths import Paths

RECORDS = ".holdfast-changes"
_MAX_RECORD_BYTES = 16 * 1024 * 1024
_DONE = b"done"

_log = logging.getLogger(__name__)


class FileChange(NamedTuple):
    """A file's new bytes, or None to remove it. `like` is the file whose mode and owner a new one
    gets; None for the usual ones."""

    path: Path
    data: bytes | None
    like: Path | None = None


Identity = tuple[int, int]
"""Inode and time of the last change: a file that another program wrote since has another one."""
_NONE: Identity = (0, 0)


class _Step(msgspec.Struct):
    """One change as the record lists it."""

    path: str
    staged: str
    """The name of the new content beside the file until it is renamed; "" for a removal."""
    backup: str
    """The name of a second link to the old file; "" if there is no old file."""
    new: Identity = _NONE
    old: Identity = _NONE
    """The identities of the new content and of the backup, once they exist."""


class _Record(msgspec.Struct):
    steps: list[_Step]
    made: list[str]
    """Folders that did not exist before, the outermost first."""


def change_files(changes: Sequence[FileChange], paths: Paths) -> None:
    """Make all changes, or none of them. The paths are resolved, and each is changed once.

    Each file changes atomically. Between the first and the last, which are renames without other
    work, another program may see some of them changed. A failure takes all of them back, and
    after the process was killed so does `take_back`. Raises `RuntimeFault`.
    """
    first = changes[0]
    if len(changes) == 1 and first.data is not None and first.like is None:
        textfile.store(first.path, first.data, paths.label(first.path))
        return
    record = _Record([], [])
    for change in changes:
        name = change.path.name
        staged = "" if change.data is None else textfile.temporary_name(name)
        backup = textfile.temporary_name(name) if os.path.lexists(change.path) else ""
        record.steps.append(_Step(str(change.path), staged, backup))
        missing = [str(one) for one in change.path.parents if not os.path.lexists(one)]
        record.made += [one for one in reversed(missing) if one not in record.made]
    label = RECORDS
    try:
        with _record_file(paths.workdir) as file:
            _append(file, record)
            try:
                for change, step in zip(changes, record.steps, strict=True):
                    label = paths.label(change.path)
                    _stage(change, step, label)
                _append(file, record)
                for step in record.steps:
                    label = paths.label(Path(step.path))
                    _make(step)
            except BaseException:
                _take_back(record)
                raise
            with suppress(OSError):  # a full disk: without it, only a kill now takes them back
                os.write(file, _DONE + b"\n")
            _clean(record)
    except RuntimeFault:
        raise
    except OSError as error:
        raise RuntimeFault(
            f"{label} could not be changed: {error.strerror}. Nothing was changed."
        ) from error


def take_back(paths: Paths) -> None:
    """Take back the changes of processes that were killed in the middle, but not of living ones. A
    file that was changed since is kept, and the log names it."""
    try:
        folder = open_folder(str(paths.workdir.joinpath(RECORDS)))
    except OSError:
        return
    with _closing(folder):
        names = textfile.entries(paths.workdir.joinpath(RECORDS), lambda entry: entry.name)
        for name in names:
            with suppress(OSError):  # such as a folder, or a record that a living process has
                _use(folder, name, paths)
    _remove_folder(paths.workdir)


def _use(folder: int, name: str, paths: Paths) -> None:
    """Take back, or clean up after, the changes of one record whose process is dead."""
    fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lines = (file.read(_MAX_RECORD_BYTES) or b"").split(b"\n")[:-1]
        try:
            if lines[1:] and lines[-1] == _DONE:
                _clean(_decoded(lines[-2], paths))
            elif lines:
                _take_back(_decoded(lines[-1], paths))
        except (ValueError, RuntimeFault) as error:  # not a record of ours
            _log.warning(f"{name} in {RECORDS} was not used: {error}")
        os.unlink(name, dir_fd=folder)


# --- the record ---


@contextmanager
def _closing(fd: int) -> Generator[None]:
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def _record_file(workdir: Path) -> Generator[int]:
    """Yield the descriptor of a new record, which this process has locked. The record is removed at
    the end, unless the process is killed."""
    name = f"{secrets.token_hex(8)}.json"
    while True:
        try:
            folder = open_folder(str(workdir.joinpath(RECORDS)), make=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with _closing(folder):
                file = os.open(name, flags, 0o600, dir_fd=folder)
        except FileNotFoundError:  # another process has removed the empty folder
            continue
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:  # otherwise another process took it for a dead one's
            break
        os.close(file)
    try:
        yield file
    finally:
        os.close(file)
        with suppress(OSError):
            workdir.joinpath(RECORDS, name).unlink()
        _remove_folder(workdir)


def _append(file: int, record: _Record) -> None:
    os.write(file, msgspec.json.encode(record) + b"\n")
    os.fsync(file)


def _decoded(line: bytes, paths: Paths) -> _Record:
    """Return a record whose paths this runtime may write; a command could have written it."""
    record = msgspec.json.decode(line, type=_Record)
    for path in [*(step.path for step in record.steps), *record.made]:
        if str(paths.resolve(paths.visible(Path(path)), write=True)) != path:
            raise ValueError(f"{path!r} is not a path of this folder")
    for step in record.steps:
        for beside in filter(None, (step.staged, step.backup)):
            start = f".{os.path.basename(step.path)[:100]}."
            if "/" in beside or not (beside.startswith(start) and beside.endswith(".tmp")):
                raise ValueError(f"{beside!r} is not a name of ours")
    return record


def _remove_folder(workdir: Path) -> None:
    with suppress(OSError):  # it has other records
        workdir.joinpath(RECORDS).rmdir()


# --- the steps ---


def _identity(folder: int, name: str) -> Identity:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return _NONE
    return status.st_ino, status.st_mtime_ns


def _stage(change: FileChange, step: _Step, label: str) -> None:
    """Write the new content and link the old one, both beside the file."""
    name = change.path.name
    folder = open_folder(str(change.path.parent), make=True)
    with _closing(folder):
        old = textfile.replaceable(folder, name, label)
        if (old is None) == bool(step.backup):
            raise RuntimeFault(f"{label} was made or removed meanwhile. Nothing was changed.")
        if change.data is not None:
            like = old if change.like is None else os.stat(change.like)
            status = textfile.write_new(
                folder, step.staged, change.data, old or os.fstat(folder), like
            )
            step.new = status.st_ino, status.st_mtime_ns
        if old is not None:
            os.link(name, step.backup, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            step.old = _identity(folder, step.backup)


def _make(step: _Step) -> None:
    name = os.path.basename(step.path)
    folder = open_folder(os.path.dirname(step.path))
    with _closing(folder):
        if step.staged:
            os.replace(step.staged, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
        textfile.sync(folder)


def _take_back(record: _Record) -> None:
    for step in reversed(record.steps):
        name = os.path.basename(step.path)
        with suppress(FileNotFoundError):  # its folder was not made yet
            folder = open_folder(os.path.dirname(step.path))
            with _closing(folder):
                now = _identity(folder, name)
                expected = step.new if step.staged else _NONE
                has_begun = step.new != _NONE if step.staged else step.old != _NONE
                if has_begun and now == expected:
                    if step.backup and _identity(folder, step.backup) == step.old:
                        os.replace(step.backup, name, src_dir_fd=folder, dst_dir_fd=folder)
                    elif not step.backup:
                        os.unlink(name, dir_fd=folder)
                    textfile.sync(folder)
                elif has_begun and now != step.old:
                    _log.warning(f"{step.path} was changed since, and stays unchanged.")
    _clean(record)
    for path in reversed(record.made):
        with suppress(OSError):  # something else is in it
            os.rmdir(path)


def _clean(record: _Record) -> None:
    for step in record.steps:
        with suppress(OSError):
            folder = open_folder(os.path.dirname(step.path))
            with _closing(folder):
                for name in filter(None, (step.staged, step.backup)):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
