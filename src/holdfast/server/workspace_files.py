"""Files of a workspace: the entries of its folders, the unchanged bytes of its files, and a folder
as a tar file."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from holdfast.errors import RuntimeFault
from holdfast.runtime import textfile
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.grep_child import open_folder
from holdfast.server.bodies import WorkspaceEntries, WorkspaceEntry

_MAX_ENTRIES = 2000
_CHUNK_BYTES = 256 * 1024

Kind = Literal["file", "folder", "other"]


def inside(path: str) -> str:
    """Return a path in the form that the runtime takes. A leading `~` is not expanded, because
    the server's home belongs to no client."""
    return f"./{path}" if path.startswith("~") else path


def list_entries(runtime: FolderRuntime, path: str) -> WorkspaceEntries:
    """Return the entries of a folder. Raises `PathRefused`, and `RuntimeFault` (a missing folder:
    also a `FileNotFoundError`)."""
    folder = runtime.paths.resolve(inside(path) or ".")
    shown_path = runtime.paths.label(folder)
    try:
        entries = textfile.entries(folder, _entry)
    except FileNotFoundError:
        raise textfile.NoSuchFile(f"There is no folder {shown_path}.") from None
    except OSError as error:
        raise RuntimeFault(f"{shown_path} cannot be listed: {error.strerror}.") from error
    entries.sort(key=lambda one: (one.kind != "folder", one.name.casefold(), one.name))
    here = "" if shown_path == "." else shown_path
    return WorkspaceEntries(here, entries[:_MAX_ENTRIES], max(0, len(entries) - _MAX_ENTRIES))


def open_binary(runtime: FolderRuntime, path: str) -> tuple[BinaryIO, int]:
    """Return a file opened for reading, and its size in bytes. Raises `PathRefused`, and
    `RuntimeFault` for anything but a regular file."""
    resolved = runtime.paths.resolve(inside(path))
    fd, info = textfile.open_file(resolved, runtime.paths.label(resolved))
    return os.fdopen(fd, "rb"), info.st_size


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, and close it. A file that has shrunk meanwhile ends
    the answer early, which its client notices by the length."""
    with file:
        while size > 0 and (data := file.read(min(size, _CHUNK_BYTES))):
            size -= len(data)
            yield data


def archive(runtime: FolderRuntime, path: str) -> Iterator[bytes]:
    """Return a folder with its whole content, as the pieces of a tar file. Links are kept as links
    and never followed; devices, pipes, sockets, and files that cannot be read are left out. Raises
    as `list_entries` does."""
    folder = runtime.paths.resolve(inside(path) or ".")
    list_entries(runtime, path)  # raises its error now, and not in the middle of an answer
    return _blocks(folder)


def _blocks(folder: Path) -> Iterator[bytes]:
    buffer = bytearray()
    top = open_folder(str(folder))
    try:
        # By descriptors: a command that replaces a folder by a link meanwhile gains nothing.
        for root, folders, names, here in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            for name in (*folders, *names):
                for block in _member(here, name, os.path.normpath(f"{root}/{name}")):
                    buffer += block
                    if len(buffer) >= _CHUNK_BYTES:
                        yield bytes(buffer)
                        buffer.clear()
    finally:
        os.close(top)
    yield bytes(buffer) + bytes(2 * tarfile.BLOCKSIZE)


def _member(folder: int, name: str, path: str) -> Iterator[bytes]:
    """Yield the blocks of one member of a tar file."""
    is_begun = False
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        head = tarfile.TarInfo(path)
        head.mode, head.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            head.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            head.type, head.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
        elif not stat.S_ISREG(status.st_mode) or textfile.is_locked_here(status):
            return
        else:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                opened = os.fstat(file.fileno())
                if not stat.S_ISREG(opened.st_mode):  # it was replaced meanwhile
                    return
                head.size = remaining = opened.st_size
                is_begun = True
                yield _header(head)
                while remaining > 0:
                    # A file that has shrunk meanwhile is filled up, as its size was told already.
                    data = file.read(min(remaining, _CHUNK_BYTES)) or bytes(
                        min(remaining, _CHUNK_BYTES)
                    )
                    remaining -= len(data)
                    yield data
            yield bytes(-head.size % tarfile.BLOCKSIZE)
            return
        yield _header(head)
    except OSError:  # it was removed meanwhile, or cannot be read
        if is_begun:  # the answer ends early, which its client notices
            raise


def _header(head: tarfile.TarInfo) -> bytes:
    return head.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _entry(entry: os.DirEntry[str]) -> WorkspaceEntry:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:  # it was removed meanwhile
        return WorkspaceEntry(_name(entry.name), "other", 0, datetime.fromtimestamp(0, UTC))
    kind: Kind = "other"
    if stat.S_ISREG(info.st_mode):
        kind = "file"
    elif stat.S_ISDIR(info.st_mode):
        kind = "folder"
    modified = datetime.fromtimestamp(int(info.st_mtime), UTC)
    return WorkspaceEntry(_name(entry.name), kind, info.st_size, modified)


def _name(name: str) -> str:
    """Return a file's name as it can be sent: bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
