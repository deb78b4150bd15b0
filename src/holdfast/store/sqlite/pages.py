"""A reader of SQLite files that works without SQLite, for files that SQLite gives up on.

The reader reads pages, also from the -wal, and the rows on a page. The format is that of
https://sqlite.org/fileformat2.html; numbers in comments are its sections. The reader neither writes
nor locks, and trusts no byte. Inconsistent parts are left out; the caller decides by checksums
which rows to believe.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.store.sqlite.wal import SIZES, Wal

_MAGIC = b"SQLite format 3\0"  # 1.3
# A page's first byte (1.6).
LEAF, INTERIOR, INDEX_LEAF, INDEX_INTERIOR = KINDS = (0x0D, 0x05, 0x0A, 0x02)

Value = int | float | bytes | str | None


class Cell(NamedTuple):
    """A row at its place: the page, the offset and full length of its payload, and the layout of
    its columns."""

    rowid: int
    table: bool  # True for a table's row, False for an index's, which keeps less on the page
    page: bytes
    start: int
    length: int
    header: int  # length of the record's header
    kinds: str  # a letter per column: N(ull), I(nteger), F(loat), B(lob), T(ext)
    serials: tuple[int, ...]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at` (1.6: big-endian, 7 bits a byte, 8 of the ninth) and the offset
    of its end. Raises `IndexError` past the end."""
    value = 0
    for end in range(at, at + 8):
        byte = data[end]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, end + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 9


def _varint_before(data: bytes, end: int, length: int) -> int | None:
    """Return the varint whose `length` bytes end before `end`, or None."""
    if (
        end < length
        or any(byte < 0x80 for byte in data[end - length : end - 1])
        or (length < 9 and data[end - 1] >= 0x80)
    ):
        return None
    return varint(data, end - length)[0]


def _as_varint(value: int) -> bytes:
    data = bytes([value & 0x7F])
    while value := value >> 7:
        data = bytes([value & 0x7F | 0x80]) + data
    return data


def _kind(serial: int) -> str:
    """Return the letter of a column's serial type (2.1), see `Cell.kinds`."""
    return "NIIIIIIFIIII"[serial] if serial < 12 else "T" if serial & 1 else "B"


def _size(serial: int) -> int:
    """Return the number of bytes of a column (2.1)."""
    return (serial - 12) >> 1 if serial >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[serial]


def _layout(data: bytes, start: int, length: int | None) -> tuple[int, str, tuple[int, ...]] | None:
    """Return a record's header (2.1): its length, the kinds and the serial types of its columns.
    Returns None if the data is no record of `length` bytes."""
    try:
        header, at = varint(data, start)
        end = start + header
        if not 2 <= header <= 200 or end > len(data):
            return None
        serials: list[int] = []
        while at < end:
            serial, at = varint(data, at)
            if serial < 0 or serial in (10, 11):
                return None
            serials.append(serial)
    except IndexError:
        return None
    if at != end or (length is not None and header + sum(map(_size, serials)) != length):
        return None
    return header, "".join(map(_kind, serials)), tuple(serials)


class PageFile:
    """The newest committed version of every page of the file at `path`, with its -wal applied.
    Pages are numbered from 1.

    `count` is the number of pages present, `expected` the number that there should be. `troubles`
    lists defects of the file itself. Raises `OSError` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.troubles: list[str] = []
        self.overflow: set[int] = set()  # overflow pages of rows that were read
        self._log = _read_log(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._fd).st_size
            wal = Wal(self._log)
            self.page_size = _page_size(self._bytes(0, 100)) or wal.page_size or self._guess()
            # Page -> offset of its newest committed content in the -wal.
            self._frames: dict[int, int] = {}
            self._older: list[int] = []
            committed = 0
            if wal.page_size == self.page_size:
                self._frames, self._older, committed = wal.pages, wal.older, wal.committed
                self.troubles += wal.troubles
            self.count = self.expected = max(committed, -(-self._size // self.page_size))
            first = self.page(1)
            self.is_sqlite = bool(_page_size(first))
            self.usable = self.page_size - (
                first[20] if self.is_sqlite and first[20] <= self.page_size - 480 else 0
            )
            if not self.is_sqlite:
                self.troubles.insert(0, "the file does not begin with the header of an SQLite file")
            # The page count is valid only if these two fields are equal (1.3.7).
            elif _at(first, 28) > self.count and first[24:28] == first[92:96]:
                self.expected = _at(first, 28)
                self.troubles.append(
                    f"the file ends after {self.count:,} of {self.expected:,} pages"
                )
            elif self._size % self.page_size:
                self.troubles.append("the file ends in the middle of a page")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _bytes(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError:  # a bad sector; the rest of the file may be readable
            return b""

    def _guess(self) -> int:
        """Return the page size at which most pages have a plausible header."""

        def fits(size: int) -> int:
            offsets = range(0, min(self._size, size * 2000), size)
            heads = [self._bytes(offset, 8) for offset in offsets]
            return sum(
                len(head) == 8
                and head[0] in KINDS
                and 0 < _at2(head, 3) < size // 6
                and 8 <= (_at2(head, 5) or 65536) <= size
                for head in heads
            )

        return max(SIZES, key=lambda size: (fits(size), size == 4096))

    # --- pages ---

    def page(self, number: int) -> bytes:
        """Return a page's newest committed bytes, zeros for bytes that cannot be read."""
        at = self._frames.get(number)
        return self._stored_page(number) if at is None else self._logged_page(at)

    def _stored_page(self, number: int) -> bytes:
        data = self._bytes((number - 1) * self.page_size, self.page_size)
        return data.ljust(self.page_size, b"\0")

    def _logged_page(self, at: int) -> bytes:
        return self._log[at : at + self.page_size]

    def superseded_pages(self) -> Iterator[bytes]:
        """Yield older versions of pages, from the file and from earlier frames of the -wal."""
        yield from (self._stored_page(number) for number in self._frames)
        yield from map(self._logged_page, self._older)

    def free(self) -> set[int]:
        """Return the unused pages (1.5), as far as the freelist can be read."""
        pages: set[int] = set()
        if not self.is_sqlite:
            return self._mapped_free()
        trunk = _at(self.page(1), 32)
        while 1 < trunk <= self.count and trunk not in pages:
            pages.add(trunk)
            data = self.page(trunk)
            leaves = min(_at(data, 4), self.usable // 4 - 2)
            entries = struct.unpack_from(f">{leaves}I", data, 8)
            pages.update(leaf for leaf in entries if 1 < leaf <= self.count)
            trunk = _at(data, 0)
        return pages

    def _mapped_free(self) -> set[int]:
        """Return the unused pages by the pointer map (1.8), if page 2 looks like one."""
        pages: set[int] = set()
        each = self.usable // 5
        for first in range(2, self.count + 1, each + 1):
            data = self.page(first)
            entries = [
                (data[5 * n], _at(data, 5 * n + 1)) for n in range(min(each, self.count - first))
            ]
            if all(1 <= kind <= 5 and parent <= self.count for kind, parent in entries):
                pages.update(first + 1 + n for n, (kind, _) in enumerate(entries) if kind == 2)
            elif first == 2:
                break
        return pages

    def table(self, root: int) -> tuple[list[Cell], bool]:
        """Return the rows of the table or index at `root` (1.6), True if none is missing."""
        rows: list[Cell] = []
        visited: set[int] = set()
        whole = True
        todo = [root]
        while todo:
            number = todo.pop()
            if not 0 < number <= self.count or number in visited:
                whole = False
                continue
            visited.add(number)
            data = self.page(number)
            start = 100 if number == 1 else 0
            kind = data[start]
            offsets = self._cells(data, start)
            if offsets is None or kind not in KINDS:
                whole = False
                continue
            if kind in (INTERIOR, INDEX_INTERIOR):
                todo.append(_at(data, start + 8))
                todo += [_at(data, at) if at + 4 <= len(data) else 0 for at in offsets]
            if kind != INTERIOR:
                page_rows, complete = self.rows(data, start)
                rows += page_rows
                whole = whole and complete
        return rows, whole

    def _cells(self, data: bytes, start: int) -> tuple[int, ...] | None:
        """Return the offsets of a page's cells, None if its header makes no sense."""
        count, content = _at2(data, start + 3), _at2(data, start + 5) or 65536
        begin = start + (12 if data[start] in (INTERIOR, INDEX_INTERIOR) else 8)
        if begin + 2 * count > min(content, self.usable) or content > self.usable:
            return None
        return struct.unpack_from(f">{count}H", data, begin)

    # --- rows ---

    def rows(self, data: bytes, start: int = 0) -> tuple[list[Cell], bool]:
        """Return the rows on a leaf of a table, and True if all of its cells are rows. The
        entries of an index page have rowid 0."""
        kind = data[start]
        offsets = self._cells(data, start) if kind in (LEAF, INDEX_LEAF, INDEX_INTERIOR) else None
        if offsets is None:
            return [], False
        cells: list[Cell] = []
        for offset in offsets:
            try:
                length, at = varint(data, offset + (4 if kind == INDEX_INTERIOR else 0))
                rowid, at = varint(data, at) if kind == LEAF else (0, at)
            except IndexError:
                continue
            layout = _layout(data, at, length)
            if layout is not None:
                cells.append(Cell(rowid, kind == LEAF, data, at, length, *layout))
        return cells, len(cells) == len(offsets)

    def carve(self, data: bytes) -> Iterator[Cell]:
        """Yield a table's rows by their shape alone, on a page without header or cell list."""
        # A record's header: its length, then a NULL in place of the key, which precedes the record.
        for match in re.finditer(rb"(?=[\x03-\x20]\x00[^\x00])", data):
            start = match.start()
            layout = _layout(data, start, None)
            if layout is None:
                continue
            length = layout[0] + sum(map(_size, layout[2]))
            before = _as_varint(length)
            for width in range(1, 10):
                rowid = _varint_before(data, start, width)
                if (
                    rowid is not None
                    and data.endswith(before, 0, start - width)
                    and length <= self.count * self.page_size
                ):
                    yield Cell(rowid, True, data, start, length, *layout)
                    break

    def payload(self, cell: Cell) -> bytes | None:
        """Return a row's complete record, overflow pages (1.7) included; None if they end early."""
        most = self.usable - 35 if cell.table else ((self.usable - 12) * 64 // 255) - 23
        length = cell.length
        if length <= most:
            record = cell.page[cell.start : cell.start + length]
            return record if len(record) == length else None
        least = ((self.usable - 12) * 32 // 255) - 23
        here = least + (length - least) % (self.usable - 4)
        if here > most:
            here = least
        parts = [cell.page[cell.start : cell.start + here]]
        if cell.start + here + 4 > len(cell.page):
            return None
        following = _at(cell.page, cell.start + here)
        remaining = length - here
        overflow_pages: set[int] = set()
        while remaining > 0:
            if not 1 < following <= self.count or following in overflow_pages:
                return None
            overflow_pages.add(following)
            data = self.page(following)
            parts.append(data[4 : 4 + min(remaining, self.usable - 4)])
            remaining -= self.usable - 4
            following = _at(data, 0)
        self.overflow |= overflow_pages
        return b"".join(parts)

    def cell(self, data: bytes, start: int, length: int) -> Cell | None:
        """Return the table row whose payload begins at `start`, without its rowid."""
        layout = _layout(data, start, length)
        return None if layout is None else Cell(0, True, data, start, length, *layout)

    def values(self, cell: Cell) -> tuple[Value, ...] | None:
        """Return a row's columns, None if they cannot be read. Bad UTF-8 becomes U+FFFD."""
        data = self.payload(cell)
        if data is None:
            return None
        columns: list[Value] = []
        at = cell.header
        for serial in cell.serials:
            part = data[at : at + _size(serial)]
            at += len(part)
            if serial >= 12:
                columns.append(part.decode(errors="replace") if serial & 1 else part)
            elif serial == 7:
                columns.append(struct.unpack(">d", part)[0])
            elif serial < 7:
                columns.append(int.from_bytes(part, signed=True) if serial else None)
            else:
                columns.append(serial - 8)
        return tuple(columns)


def _read_log(path: Path) -> bytes:
    """Return the -wal of the file at `path` up to the first byte that cannot be read."""
    parts: list[bytes] = []
    try:
        with open(f"{path}-wal", "rb", buffering=0) as file:
            while part := file.read(1 << 20):
                parts.append(part)
    except OSError:
        pass
    return b"".join(parts)


def _page_size(header: bytes) -> int:
    """Return the page size in a file's header (1.3.2), 0 if it is invalid."""
    if len(header) < 100 or not header.startswith(_MAGIC):
        return 0
    size = _at2(header, 16)
    size = 65536 if size == 1 else size
    return size if size in SIZES else 0


def _at(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4])


def _at2(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2])
