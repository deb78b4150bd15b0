"""A reader of SQLite write-ahead logs that works without SQLite. The result is the committed
frames, also the provable ones of a damaged log.

Written from https://sqlite.org/fileformat2.html, section 4.
"""

from __future__ import annotations

import struct
from pathlib import Path

SIZES = tuple(1 << power for power in range(9, 17))  # page sizes (1.3.2)
_WAL_HEADER, _FRAME_HEADER = 32, 24


class Wal:
    """The contents of a write-ahead log (section 4). `pages` has the offset of the newest committed
    frame of each page, `committed` the number of pages that the file then has.

    SQLite stops at the first frame whose checksum does not match. Each frame carries the running
    checksum up to itself, so the frames after a damaged one can still be proven. If a commit is
    among them, they are used. Frames after the last commit were never acknowledged.
    """

    def __init__(self, data: bytes) -> None:
        self.pages: dict[int, int] = {}
        self.older: list[int] = []
        self.troubles: list[str] = []
        self.committed = 0
        header = data[:_WAL_HEADER].ljust(_WAL_HEADER, b"\0")
        magic, _, size, _ = struct.unpack_from(">4I", header)
        self.page_size = size if size in SIZES else 0
        if len(data) < _WAL_HEADER + _FRAME_HEADER:
            return
        sound = magic | 1 == 0x377F0683 and bool(self.page_size)
        sums = struct.unpack_from(">2I", data, 24)
        order = ">" if magic & 1 else "<"
        sound = sound and checksum(data[:24], (0, 0), order) == sums
        if not self.page_size:
            self.page_size = _frame_size(data)
            if not self.page_size:
                self.troubles.append("the -wal is not readable")
                return
        salts = data[16:24] if sound else data[_WAL_HEADER + 8 : _WAL_HEADER + 16]
        self._replay(data, salts, (order,) if sound else ("<", ">"), sums)
        if not sound and self.pages:
            self.troubles.append("the -wal's header is damaged, so SQLite would drop all of it")

    def _replay(
        self, data: bytes, salts: bytes, orders: tuple[str, ...], sums: tuple[int, ...]
    ) -> None:
        step = _FRAME_HEADER + self.page_size
        waiting: dict[int, int] = {}
        missing = 0  # damaged frames since the last commit
        for number, at in enumerate(range(_WAL_HEADER, len(data) - step + 1, step), 1):
            if data[at + 8 : at + 16] != salts:
                if not any(
                    data[later + 8 : later + 16] == salts
                    for later in range(at + step, len(data) - step + 1, step)
                ):
                    break  # the rest is left from an earlier use of the log
                missing += 1
                sums = struct.unpack_from(">2I", data, at + 16)
                continue
            stored = struct.unpack_from(">2I", data, at + 16)
            head, page = data[at : at + 8], data[at + _FRAME_HEADER : at + step]
            fits = [o for o in orders if checksum(page, checksum(head, sums, o), o) == stored]
            sums = stored
            if not fits:
                missing += 1
                continue
            orders = (fits[0],)
            page, size = struct.unpack_from(">2I", data, at)
            if page in waiting:
                self.older.append(waiting[page])
            waiting[page] = at + _FRAME_HEADER
            if size:
                self.older += [self.pages[page] for page in waiting if page in self.pages]
                self.pages.update(waiting)
                self.committed = size
                waiting = {}
                if missing:
                    what = f"{missing:,} damaged {'frame' if missing == 1 else 'frames'}"
                    self.troubles.append(f"{what} in the -wal before frame {number:,}")
                    missing = 0


def _frame_size(data: bytes) -> int:
    """Return the page size of a -wal without header, by the salts that its frames share."""
    salts = data[_WAL_HEADER + 8 : _WAL_HEADER + 16]
    for size in SIZES:
        at = _WAL_HEADER + _FRAME_HEADER + size
        if data[at + 8 : at + 16] == salts:
            return size
    return 0


def checksum(data: bytes, start: tuple[int, ...], order: str) -> tuple[int, int]:
    """Return the checksum of section 4.2, continued from `start`."""
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def wal_troubles(path: Path) -> list[str]:
    """Return the defects of the -wal of `path`. SQLite reports none of them and would drop the
    end of the log silently."""
    wal = Path(f"{path}-wal")
    for _ in range(3):
        try:
            data = wal.read_bytes()
            troubles = Wal(data).troubles if data else []
            with wal.open("rb") as file:
                if file.read(32) == data[:32]:  # else the log was restarted meanwhile
                    return troubles
        except OSError:
            return []
    return []
