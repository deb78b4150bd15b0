"""`CommandOutput`: the output of one command, bounded in memory and on disk, and its text for a
model."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_OUTPUT_BYTES = 100 * 1024 * 1024  # bytes of one command's output that are kept
# Larger outputs move from memory to a file. Most outputs are smaller.
_MEMORY_BYTES = 128 * 1024
# Of more raw bytes, only the first and the last half of this number are cleaned.
_MAX_CLEANED_BYTES = 1024 * 1024

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements (ECMA-48 5.4)
    # OSC, DCS and friends: window titles, hyperlinks
    r"|[\]PX^_][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)?"
    r"|[ -/]*[0-~])"  # the two- and three-character ones
)
_OVERSTRUCK = re.compile(r"[^\n]\x08")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def clean(text: str) -> str:
    r"""Return terminal output as plain text.

    Escape codes are removed, progress bars are reduced to their last state, and line ends become
    `\n`.
    """
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        lines = [line.rstrip("\r") for line in text.split("\n")]
        text = "\n".join([line[line.rfind("\r") + 1 :] for line in lines])
    if "\x08" in text:
        text = _OVERSTRUCK.sub("", text)
    return _CONTROL.sub("", text) if _CONTROL.search(text) else text


def shorten(text: str, limit: int, note: Callable[[int], str]) -> tuple[str, bool]:
    """Return `text` in at most about `limit` characters, and True if it was cut. A cut text
    consists of its head, `note(characters_left_out)` on a line of its own, and its tail."""
    if len(text) <= limit:
        return text, False
    return _join(text, text, limit, len(text), note), True


def _join(first: str, last: str, limit: int, total: int, note: Callable[[int], str]) -> str:
    half = limit // 2
    head, tail = first[:half], last[-half:]
    # Cut at line ends where one is near, so that no line is shown in part.
    cut = head.rfind("\n", half - 400)
    if cut > 0:
        head = head[: cut + 1]
    cut = tail.find("\n", 0, 400)
    if cut >= 0:
        tail = tail[cut + 1 :]
    gap = "" if head.endswith("\n") else "\n"
    return f"{head}{gap}[{note(max(0, total - len(head) - len(tail)))}]\n{tail}"


class CommandOutput:
    """A buffer of a command's output: the first bytes in memory, more in the file `path`. The file
    holds at most `cap` bytes. Of output beyond that, only the end is kept. Thread-safe. `total` is
    the number of bytes so far."""

    def __init__(self, path: Path, cap: int) -> None:
        self.path = path
        self.total = 0
        self.on_disk = False
        self._lock = threading.Lock()
        self._cap = cap
        self._memory = bytearray()
        self._tail = bytearray()
        self._stored = 0
        self._fd = -1
        self._closed = False

    def append(self, data: bytes) -> None:
        """Add output of the command."""
        with self._lock:
            self.total += len(data)
            if not self.on_disk and self._cap:
                if len(self._memory) + len(data) <= _MEMORY_BYTES:
                    self._memory += data
                    return
                self._spool()
            count = self._write(data[: max(0, self._cap - self._stored)])
            if count < len(data):
                # Keep the end of an output that is too long for the file.
                self._tail += data[count:]
                if len(self._tail) > 4 * _MAX_CLEANED_BYTES:
                    del self._tail[:-_MAX_CLEANED_BYTES]

    def spool(self) -> None:
        """Move the output to the file now, so that the file can be read later."""
        with self._lock:
            if not self.on_disk and self._cap:
                self._spool()
                if self._closed:
                    self._close()

    def _spool(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            self._cap = 0  # the file cannot be made: keep the head in memory and the tail
            return
        self.on_disk = True
        self._write(bytes(self._memory))
        self._memory.clear()

    def _write(self, data: bytes) -> int:
        count = 0
        try:
            while count < len(data):
                count += os.write(self._fd, data[count:] if count else data)
        except OSError:  # a full disk truncates the file; the command continues
            self._cap = 0
        self._stored += count
        return count

    def close(self) -> None:
        """End the output. The kept output can still be read."""
        with self._lock:
            self._closed = True
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, start: int, end: int) -> bytes:
        if not self.on_disk:
            data = bytes(self._memory[start:end])
        elif start >= self._stored:
            data = b""
        elif self._fd >= 0:
            data = os.pread(self._fd, min(end, self._stored) - start, start)
        else:
            data = b""
            # The file may be removed by the command, or as the oldest of too many outputs.
            with suppress(OSError), open(self.path, "rb") as file:
                file.seek(start)
                data = file.read(min(end, self._stored) - start)
        before = self.total - len(self._tail)
        return data + bytes(self._tail[max(0, start - before) : max(0, end - before)])

    def tail(self, count: int) -> bytes:
        """Return the last `count` bytes."""
        with self._lock:
            return self._read(max(0, self.total - count), self.total)

    def text(self, start: int, limit: int, note: Callable[[int], str]) -> tuple[str, bool, int]:
        """Return the cleaned output after byte `start`, in at most about `limit` characters. The
        second value is True if some of it was left out; the third is the number of bytes so far."""
        with self._lock:
            end = self.total
            size = end - start
            if size <= _MAX_CLEANED_BYTES:
                raw = [self._read(start, end)]
            else:
                half = _MAX_CLEANED_BYTES // 2
                raw = [self._read(start, start + half), self._read(end - half, end)]
        texts = [clean(piece.decode(errors="replace")) for piece in raw]
        if len(texts) == 1:
            return *shorten(texts[0], limit, note), end
        return _join(texts[0], texts[1], limit, size, note), True, end
