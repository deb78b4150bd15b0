"""Files of a workspace as they are: the entries of its folders, and the bytes of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO, Literal

from holdfast.errors import RuntimeFault
from holdfast.runtime import textfile
from holdfast.runtime.folder import FolderRuntime
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
    shown = runtime.paths.shown(folder)
    try:
        found = textfile.entries(folder, _entry)
    except FileNotFoundError:
        raise textfile.NoSuchFile(f"There is no folder {shown}.") from None
    except OSError as error:
        raise RuntimeFault(f"{shown} cannot be listed: {error.strerror}.") from error
    found.sort(key=lambda one: (one.kind != "folder", one.name.casefold(), one.name))
    here = "" if shown == "." else shown
    return WorkspaceEntries(here, found[:_MAX_ENTRIES], max(0, len(found) - _MAX_ENTRIES))


def open_binary(runtime: FolderRuntime, path: str) -> tuple[BinaryIO, int]:
    """Return a file opened for reading, and its size in bytes. Raises `PathRefused`, and
    `RuntimeFault` for anything but a regular file."""
    found = runtime.paths.resolve(inside(path))
    fd, info = textfile.open_file(found, runtime.paths.shown(found))
    return os.fdopen(fd, "rb"), info.st_size


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, and close it. A file that has shrunk meanwhile ends
    the answer early, which its client notices by the length."""
    with file:
        while size > 0 and (data := file.read(min(size, _CHUNK_BYTES))):
            size -= len(data)
            yield data


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
