"""Text files on disk: encodings are detected and kept, and writes are atomic."""

from __future__ import annotations

import codecs
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.errors import RuntimeFault
from holdfast.runtime.grep_child import open_folder

T = TypeVar("T")

# The maximum size of a file that is read as a whole. Larger files are read in part and edited with
# other tools.
MAX_FILE_BYTES = 50 * 1024 * 1024

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class NoSuchFile(RuntimeFault, FileNotFoundError):
    """A missing file or folder."""


class DecodedText(NamedTuple):
    """A file's text, with the data that are needed to write it back. `bom` is not part of `text`.
    Line ends are those of the file."""

    text: str
    encoding: str = "utf-8"
    bom: bytes = b""

    def encode(self, text: str) -> bytes:
        """Return `text` in this file's encoding. Raises `RuntimeFault`."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise RuntimeFault(
                f"The text has {error.object[error.start]!r}, which the file's encoding"
                f" ({self.encoding}) cannot hold. Nothing was written."
            ) from error


def is_binary(data: bytes) -> bool:
    """Return True if a file's first bytes contain a NUL and no UTF-16 mark."""
    return b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def binary_fault(label: str, size: int) -> RuntimeFault:
    """Return the error for a binary file of `size` bytes."""
    return RuntimeFault(
        f"{label} is a binary file ({size:,} bytes), not text. Look at it with a command, such as"
        " `file` or `xxd`."
    )


def decode(data: bytes) -> DecodedText:
    """Decode bytes by their byte order mark, else as UTF-8, else as Latin-1. In Latin-1 every byte
    is a character, so that the bytes survive a write."""
    for bom, encoding in (*_BOMS, (b"", "utf-8")):
        if data.startswith(bom):
            with suppress(UnicodeDecodeError):
                return DecodedText(data[len(bom) :].decode(encoding), encoding, bom)
    return DecodedText(data.decode("latin-1"), "latin-1")


def open_file(path: Path, label: str) -> tuple[int, os.stat_result]:
    """Return a descriptor for reading a regular file, and its stat. The path must be resolved: a
    link in it now was not a link when the path was checked. Raises `RuntimeFault` that names the
    kind of any other file."""
    try:
        folder = open_folder(str(path.parent))
        try:
            locked = is_locked_here(os.stat(path.name or ".", dir_fd=folder, follow_symlinks=False))
            # O_NONBLOCK: opening a FIFO would wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = -1 if locked else os.open(path.name or ".", flags, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise NoSuchFile(f"There is no file {label}.{_near(path)}") from None
    except OSError as error:
        raise RuntimeFault(f"{label} cannot be opened: {error.strerror}.") from error
    if locked:
        raise RuntimeFault(
            f"{label} is a database that this process has open; reading it here would end its"
            " locks. Use a command in the terminal."
        )
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = "not a regular file (a device, pipe or socket)"
        raise RuntimeFault(f"{label} is {'a directory' if stat.S_ISDIR(status.st_mode) else kind}.")
    return fd, status


def is_locked_here(file: os.stat_result) -> bool:
    """Return True if this process has a POSIX lock on a file, as SQLite has on an open store.

    Closing any descriptor of the file would end the lock (https://sqlite.org/howtocorrupt.html,
    2.2). Files are compared by inode number alone: /proc/locks does not name the device of an
    overlay. False where that does not exist.
    """
    try:
        with open("/proc/locks", "rb") as listing:
            locks = [line.split() for line in listing]
    except OSError:
        return False
    process, end = b"%d" % os.getpid(), b":%d" % file.st_ino
    return any(
        len(lock) > 5 and lock[1] == b"POSIX" and lock[4] == process and lock[5].endswith(end)
        for lock in locks
    )


def _near(path: Path) -> str:
    import difflib

    try:
        names = sorted(entries(path.parent, lambda entry: entry.name))[:5000]
    except OSError:
        missing = not path.parent.exists()
        return f" The directory {path.parent} does not exist either." if missing else ""
    near = difflib.get_close_matches(path.name, names, 3)
    return f" Did you mean {' or '.join(near)}, in the same directory?" if near else ""


def entries(folder: Path, convert: Callable[[os.DirEntry[str]], T]) -> list[T]:
    """Return what `convert` makes of each entry of a folder, whose path must be resolved. Raises
    `OSError`."""
    fd = open_folder(str(folder))
    try:
        # For reading: scandir takes no O_PATH descriptor.
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        with os.scandir(readable) as listing:
            return [convert(entry) for entry in listing]
    finally:
        os.close(readable)


def load(path: Path, label: str) -> DecodedText:
    """Return the whole text of a file. Raises `RuntimeFault` if it is missing, binary, too large or
    not a file."""
    data = load_bytes(path, label)
    if is_binary(data[:8192]):
        raise binary_fault(label, len(data))
    return decode(data)


def load_bytes(path: Path, label: str) -> bytes:
    """Return the content of a file of at most `MAX_FILE_BYTES`. Raises `RuntimeFault`."""
    fd, status = open_file(path, label)
    with open(fd, "rb") as file:
        if status.st_size > MAX_FILE_BYTES:
            raise RuntimeFault(
                f"{label} has {status.st_size:,} bytes, more than {MAX_FILE_BYTES:,}. Read or"
                " change it in parts, with a command."
            )
        return file.read(MAX_FILE_BYTES)


def store(path: Path, data: bytes, label: str) -> None:
    """Write `data` to a file atomically, even if the machine crashes. Missing parent folders are
    created. An existing file keeps its mode and owner; if this process is root, a new one gets the
    owner of its folder. Raises `RuntimeFault`."""
    temporary = temporary_name(path.name)
    folder = -1
    try:
        folder = open_folder(str(path.parent), make=True)
        old = replaceable(folder, path.name, label)
        write_new(folder, temporary, data, old or os.fstat(folder), old)
        try:
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        sync(folder)
    except RuntimeFault:
        raise
    except OSError as error:
        raise RuntimeFault(
            f"{label} could not be written: {error.strerror}. Nothing was changed."
        ) from error
    finally:
        if folder >= 0:
            os.close(folder)


def temporary_name(name: str) -> str:
    """Return a new name for a file that will take the place of another, or its place's backup."""
    return f".{name[:100]}.{secrets.token_hex(4)}.tmp"


def replaceable(folder: int, name: str, label: str) -> os.stat_result | None:
    """Return the stat of a file that may be replaced, None if it does not exist. `folder` is a
    descriptor. Raises `RuntimeFault` for a file that is read-only or not regular."""
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        kind = "a directory" if stat.S_ISDIR(old.st_mode) else "not a regular file"
        raise RuntimeFault(f"{label} is {kind}; nothing was written. Give the path of a file.")
    if not os.access(name, os.W_OK, dir_fd=folder):
        # A rename would replace even a file that its owner has made read-only.
        raise RuntimeFault(
            f"{label} is read-only; nothing was written. Change its mode with chmod first, if"
            " it may be changed."
        )
    return old


def write_new(
    folder: int,
    name: str,
    data: bytes,
    owner: os.stat_result,
    like: os.stat_result | None = None,
) -> os.stat_result:
    """Make a file in an open folder and return its stat. Its owner is that of `owner`, if this
    process may set it, and its mode that of `like`. A failure leaves no file. Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                # Only root may; otherwise the file becomes ours, as with any editor.
                with suppress(OSError):
                    os.fchown(fd, owner.st_uid, owner.st_gid)
            if like is not None:
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(fd)
            return os.fstat(fd)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        raise


def sync(folder: int) -> None:
    """Write a folder's entries to the disk."""
    synced = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(synced)
    finally:
        os.close(synced)
