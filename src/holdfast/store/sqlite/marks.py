"""Marks of each owner's last append, which show that a store lost its -wal.

SQLite takes a database without its -wal for complete. Transactions that were committed but not
yet moved into the file are then lost silently. A mark in the owner file costs one write of 36
bytes per commit and no fsync. An owner that closes properly removes its file, and the mark with
it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

MARK_OFFSET = 256  # in the owner file, after the text that names the process

_MARK = struct.Struct("<8sQQQ")
_CRC = struct.Struct("<I")
_SIZE = _MARK.size + _CRC.size
_MAGIC = b"hf-mark1"

Query = Callable[[str], Any]  # runs SQL and returns a cursor


class Mark(NamedTuple):
    """An owner's last acknowledged append: conversation number, epoch and last seq."""

    file: Path
    number: int
    epoch: int
    last_seq: int


def pack(number: int, epoch: int, last_seq: int) -> bytes:
    """Return a mark in the binary form of an owner file."""
    data = _MARK.pack(_MAGIC, number, epoch, last_seq)
    return data + _CRC.pack(zlib.crc32(data))


def marks(store: Path) -> list[Mark]:
    """Return the marks of all owners of a store, living and dead. Read them before the store
    itself, so that no mark is newer than the data."""
    folder = owners_folder(store)
    entries: list[Mark] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        try:
            data = (folder / name).read_bytes()[MARK_OFFSET : MARK_OFFSET + _SIZE]
        except OSError:  # its owner has just closed
            continue
        if len(data) == _SIZE:
            _, number, epoch, last_seq = _MARK.unpack_from(data)
            if data == pack(number, epoch, last_seq):
                entries.append(Mark(folder / name, number, epoch, last_seq))
    return entries


def owners_folder(store: Path) -> Path:
    """Return the folder of a store's owner files, beside the real file, so that links to the store
    share their owners."""
    return Path(f"{store.resolve()}-owners")


def losses(owner_marks: Iterable[Mark], query: Query) -> list[str]:
    """Return one sentence for each mark that is newer than the database."""
    tables = {name for (name,) in query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    has_tables = {"conversations", "events", "sqlite_sequence"} <= tables
    return [
        f"The file is older than the data that was written to it: {loss}. Its -wal was removed, or"
        " the file was replaced by an older copy. Put the -wal back before anything is written; to"
        f" continue with the present data, remove {str(mark.file)!r}."
        for mark in owner_marks
        if (loss := _loss(mark, query if has_tables else None))
    ]


def _loss(mark: Mark, query: Query | None) -> str:
    """Return the loss that a mark proves, "" for none. Without tables `query` is None."""
    row = highest = None
    if query is not None:
        conversations = "SELECT id, epoch, last_seq FROM conversations"
        row = query(f"{conversations} WHERE number = {mark.number:d}").fetchone()
        sequence = "SELECT seq FROM sqlite_sequence WHERE name = 'conversations'"
        highest = query(sequence).fetchone()
    if row is not None and (row[1], row[2]) < (mark.epoch, mark.last_seq):
        return (
            f"conversation {row[0]!r} has {row[2]:,} events, and had {mark.last_seq:,} when they"
            " were acknowledged"
        )
    deleted = highest is not None and highest[0] >= mark.number
    if row is not None or deleted:
        return ""
    return f"a conversation of {mark.last_seq:,} acknowledged events is missing"
