"""A source of rows that scans the file's pages, for a file that SQLite gives up on."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from holdfast.events import decode
from holdfast.store.base import Summary, blob_id
from holdfast.store.sqlite.pages import INTERIOR, KINDS, LEAF, Cell, PageFile
from holdfast.store.sqlite.rows import (
    MAX_NUMBER,
    ConversationRow,
    Progress,
    make_row,
    read_base,
    silent,
)

# The columns of format 1; the first one precedes the record. Newer files have more.
_CONVERSATION = "NTITITTTT"
_COLUMNS = (
    "number",
    "id",
    "epoch",
    "holder",
    "last_seq",
    "status",
    "title",
    "created",
    "updated",
    "notes",
    "parent",
    "parent_seq",
    "base",
    "condensed",
    "spawned_by",
    "tags",
)
_BY_ID = "sqlite_autoindex_conversations_1"  # SQLite's name for the index of UNIQUE(id)


class PageRows:
    """Rows found on the pages of the file, wherever they stand. A checksum proves an event; a
    conversation's row has none.

    `whole` is True if the table of conversations is complete. Only then is a number that it does
    not list known to be deleted. Otherwise events of unlisted numbers count as conversations
    too.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        self._image = PageFile(path)
        self.troubles = self._image.troubles
        self.size = self._image.expected * self._image.page_size
        # Key or id -> page << 48 | offset of its row << 32 | length of the row.
        self._events: dict[int, int] = {}
        self._blobs: dict[str, int] = {}
        self._bad: set[int] = set()  # keys of rows whose checksum does not match
        self._rows: dict[int, ConversationRow] = {}
        self._ids: dict[int, str] = {}  # from the index by id: number -> id
        self._bases: dict[int, str] = {}  # from the index by base: number -> base
        self._freed: set[int] = set()
        self._numbers: set[int] | None = None  # of conversations; None: any number
        self._extra: list[bytes] = []  # superseded pages, which have no number
        self._last: dict[int, int] = {}  # number -> highest seq
        self.whole = False
        try:
            self._scan(progress)
        except BaseException:
            self._image.close()
            raise
        if not self.whole:
            self.troubles.append(
                "the table of conversations is damaged: conversations may be missing or have"
                " lost their ids"
            )
        for key in [*self._events, *self._bad]:
            self._last[key >> 32] = max(self._last.get(key >> 32, 0), key & 0xFFFFFFFF)

    @property
    def is_store(self) -> bool:
        """True if anything of a store was found."""
        return bool(self._events or self._rows)

    def close(self) -> None:
        """Release the file."""
        self._image.close()

    # --- the scan: first rows at their proper place; the other ones only fill gaps ---

    def _scan(self, progress: Progress) -> None:
        image = self._image
        free = image.free()
        self._read_tables()
        broken: list[int] = []
        for number in range(1, image.count + 1):
            if not number & 0xFF:
                progress(number, image.count)
            if number not in free:
                data = image.page(number)
                if number > 1 and not self._take_page(number, data):
                    broken.append(number)
        for number in broken:
            for cell in () if number in image.overflow else image.carve(image.page(number)):
                if cell.kinds == "NIB":
                    self._take_event(number, cell)
                elif not self.whole:
                    self._take_conversation(cell)
        # Rows on unused pages may belong to deleted conversations.
        self._numbers = {*self._rows, *(key >> 32 for key in self._events)}
        self._numbers.update(number for row in self._rows.values() for number, _ in row.base or ())
        for data in image.superseded_pages():
            self._extra.append(data)
            self._take_page(image.count + len(self._extra), data, rows=False)
        for number in free:
            self._take_page(number, image.page(number), rows=False)

    def _read_tables(self) -> None:
        """Read the table of conversations and its index at the pages that the schema names."""
        image = self._image
        schema, whole = image.table(1)
        kinds: set[str] = set()
        for entry in schema:
            values = image.values(entry) or ()
            if len(values) != 5 or values[1] not in ("conversations", _BY_ID):
                continue
            kind, root = values[0], values[3]
            if not isinstance(root, int):
                continue
            kinds.add(str(kind))
            cells, complete = image.table(root)
            whole = whole and complete
            for cell in cells:
                if kind != "table":
                    self._take_id(cell)
                elif (row := self._conversation(cell)) is None or row.number in self._rows:
                    whole = False
                else:
                    self._rows[row.number] = row
        # Table and index both map numbers to ids. If they differ, the file was changed without
        # SQLite.
        ids = {row.number: row.id for row in self._rows.values()}
        self.whole = whole and kinds >= {"table", "index"} and ids == self._ids

    def _take_page(self, number: int, data: bytes, rows: bool = True) -> bool:
        """Collect the rows of a page. Return False if some of them may be missing. `rows`: also
        collect rows of conversations, if the table of conversations is not complete."""
        kind = data[0]
        if kind == INTERIOR:
            return True
        if kind not in KINDS:
            return False
        cells, whole = self._image.rows(data)
        if kind != LEAF:
            if rows and not self.whole:
                for cell in cells:
                    self._take_id(cell)
            return whole
        events: list[Cell] = []
        for cell in cells:
            if cell.kinds == "NIB":
                events.append(cell)
            elif cell.kinds in ("TB", "NITN", "NITNN"):
                match self._image.values(cell):
                    case (str() as id, bytes() as data) if blob_id(data) == id:
                        self._blobs.setdefault(id, _place(number, cell))
                    # The store's mark that the remaining events of this number may be freed.
                    # Before format 4 its row had no last column.
                    case (None, int() as freed, "", None) | (None, int() as freed, "", None, None):
                        self._freed.add(freed)
                    case _:
                        pass
            elif rows and not self.whole:
                self._take_conversation(cell)
        for cell in _ascending(events):
            whole = self._take_event(number, cell) and whole
        return whole and len(_ascending(events)) == len(events)

    def _take_event(self, page: int, cell: Cell) -> bool:
        key = cell.rowid
        if not 0 < key >> 32 < MAX_NUMBER:
            return False
        if self._numbers is not None and key >> 32 not in self._numbers:
            return True
        if key in self._events:
            return True
        values = self._image.values(cell)
        data = b"" if values is None else cast(bytes, values[2])
        if values is None or zlib.crc32(data) != values[1]:
            self._bad.add(key)
            return False
        if not _is_event(data, key & 0xFFFFFFFF):  # its key was damaged
            return False
        self._events[key] = _place(page, cell)
        self._bad.discard(key)
        return True

    def _take_conversation(self, cell: Cell) -> None:
        row = self._conversation(cell)
        if row is None or (row.summary.created is None and row.summary.updated is None):
            return
        other = self._rows.get(row.number)
        if other is None or _age(row) > _age(other):
            self._rows[row.number] = row

    def _conversation(self, cell: Cell) -> ConversationRow | None:
        if not cell.kinds.startswith(_CONVERSATION):
            return None
        values = self._image.values(cell)
        if values is None:
            return None
        columns: dict[str, Any] = dict(zip(_COLUMNS, values, strict=False))
        return make_row(cell.rowid, columns)

    def _take_id(self, cell: Cell) -> None:
        values = self._image.values(cell) if cell.kinds == "TI" else None
        if values is None:
            return
        text, number = str(values[0]), cast(int, values[1])
        if text.startswith("[["):  # from the index by `base`
            self._bases.setdefault(number, text)
        elif not text.startswith("sha256:"):  # else an entry of the blobs
            self._ids.setdefault(number, text)

    # --- results of the scan ---

    def conversations(self) -> list[ConversationRow]:
        """See `SQLRows.conversations`."""
        rows = dict(self._rows)
        if not self.whole:
            shared: dict[int, int] = {}
            for row in self._rows.values():
                for number, last in row.base or ():
                    shared[number] = max(shared.get(number, 0), last)
            for number in {key >> 32 for key in self._events} - self._freed:
                # A deleted conversation's events stay only as long as a fork shares them.
                if number not in rows and self._last[number] > shared.get(number, 0):
                    id = self._ids.get(number) or f"number-{number}"
                    base = read_base(self._bases.get(number, ""))
                    rows[number] = ConversationRow(number, Summary(id), base, is_lost=True)
        used_ids: dict[str, int] = {}
        for number in sorted(rows, key=lambda number: (rows[number].is_lost, number)):
            id = rows[number].id
            if id in used_ids:
                id = f"number-{number}"
                row = rows[number]
                rows[number] = row._replace(summary=replace(row.summary, id=id))
            used_ids[id] = number
        return [rows[number] for number in sorted(rows)]

    def events(self, number: int, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """See `SQLRows.events`."""
        base = number << 32
        for seq in range(first, min(last, self._last.get(number, 0)) + 1):
            at = self._events.get(base + seq)
            if at is not None:
                yield seq, self._column(at)
            elif base + seq in self._bad:
                yield seq, None

    def last(self, number: int) -> int:
        """See `SQLRows.last`."""
        return self._last.get(number, 0)

    def blob(self, id: str) -> bytes | None:
        """See `SQLRows.blob`."""
        at = self._blobs.get(id)
        return None if at is None else self._column(at)

    def _column(self, at: int) -> bytes | None:
        """Return the last column of the row at that place."""
        number = at >> 48
        data = (
            self._image.page(number)
            if number <= self._image.count
            else self._extra[number - self._image.count - 1]
        )
        cell = self._image.cell(data, at >> 32 & 0xFFFF, at & 0xFFFFFFFF)
        values = None if cell is None else self._image.values(cell)
        return values[-1] if values is not None and isinstance(values[-1], bytes) else None


def _place(page: int, cell: Cell) -> int:
    return page << 48 | cell.start << 32 | cell.length


def _age(row: ConversationRow) -> tuple[int, int, str]:
    return row.epoch, row.summary.last_seq, str(row.summary.updated)


def _is_event(data: bytes, seq: int) -> bool:
    """Return True if the data is the JSON of event `seq`. No checksum covers a row's key, but
    the event contains half of it."""
    if b'"seq":%d,' % seq in data:
        return True
    try:
        return decode(data).seq == seq
    except (ValueError, RecursionError):
        return False


def _ascending(cells: list[Cell]) -> list[Cell]:
    """Return the longest run of cells with rising keys. On a sound page all keys rise. No checksum
    covers a key, but its place on the page confirms it."""
    if all(before.rowid < after.rowid for before, after in pairwise(cells)):
        return cells
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, cell in enumerate(cells):
        at = bisect_left(tails, cell.rowid)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [cell.rowid]
        ends[at : at + 1] = [index]
    run: list[Cell] = []
    index = ends[-1]
    while index >= 0:
        run.append(cells[index])
        index = before[index]
    return run[::-1]
