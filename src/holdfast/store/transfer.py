"""Export and import of conversations as JSON lines.

A conversation is a header, its events, and the blobs that they refer to:

    {"type":"conversation","version":1,"id":"one","title":"...","status":"finished","created":"...","updated":"...","events":2,...}
    {"type":"message","seq":1,...} {"type":"assistant","seq":2,...}
    {"type":"blob","id":"sha256:...","data":"<base64>"}

A file may hold any number of conversations. A blob that the store had lost has `"data":null`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, Conflict, ConversationNotFound, StoreError
from holdfast.events import AnyEvent
from holdfast.store.base import BLOBS, Batch, Blob, Lease, Store, Summary, TimerRow, blob_id
from holdfast.timers import timers_of

T = TypeVar("T")

VERSION = 1


class Header(
    msgspec.Struct, frozen=True, rename="camel", tag_field="type", tag="conversation", kw_only=True
):
    """The first line of an exported conversation: its `Summary`, and the numbers of events and
    blobs that follow."""

    version: int
    id: str
    title: str = ""
    status: str = "idle"
    created: datetime | None = None
    updated: datetime | None = None
    events: int
    blobs: int | None = None
    parent: str = ""
    parent_seq: int = 0
    spawned_by: str | msgspec.UnsetType = msgspec.UNSET
    tags: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Exported(msgspec.Struct, frozen=True):
    """An exported conversation. `blobs` maps ids to bytes, None for a lost blob. `line` is the
    line number of the header."""

    header: Header
    events: tuple[AnyEvent, ...]
    blobs: dict[str, bytes | None] = {}
    line: int = 1

    @property
    def summary(self) -> Summary:
        """The summary for a store's listing."""
        shared = {name: getattr(self.header, name) for name in _SHARED}
        more: dict[str, Any] = {
            "spawned_by": self.header.spawned_by or "",
            "tags": self.header.tags or (),
        }
        return Summary(last_seq=len(self.events), **shared, **more)


# The fields of a summary that a header has too.
_SHARED = ("id", "title", "status", "created", "updated", "parent", "parent_seq")


class _Line(msgspec.Struct):
    type: str


class _Blob(msgspec.Struct, frozen=True, tag_field="type", tag="blob"):
    id: str
    data: bytes | None


# --- export ---


def export_conversation(store: Store, id: str) -> Iterator[bytes]:
    """Yield the lines of a conversation, each with its line end. Raises `ConversationNotFound`, and
    the errors of `store.read`.

    An event is one line, byte for byte as the store has it. Line ends inside an event that was
    kept in its original form are removed. A `DamagedEvent` whose bytes are no line of JSON is
    written with its bytes in base64.
    """
    summary = next((entry for entry in store.list() if entry.id == id), None)
    if summary is None:
        raise ConversationNotFound(f"No conversation {id!r} with events in this store.")

    def bytes_of(blob: str) -> bytes | None:
        try:
            return store.blob(blob)
        except StoreError:
            return None

    yield from exported(summary, store.read(id), bytes_of)


def exported(
    summary: Summary, events: Sequence[AnyEvent], blob: Callable[[str], bytes | None]
) -> Iterator[bytes]:
    """Yield the lines of a conversation. `blob` returns an id's bytes, None if lost."""
    ids = list(dict.fromkeys(id for event in events for id in blobs_of(event)))
    shared = {name: getattr(summary, name) for name in _SHARED}
    shared["spawned_by"] = summary.spawned_by or msgspec.UNSET
    shared["tags"] = summary.tags or msgspec.UNSET
    header = Header(version=VERSION, events=len(events), blobs=len(ids), **shared)
    yield msgspec.json.encode(header) + b"\n"
    for event in events:
        yield ev.line(event) + b"\n"
    for id in ids:
        yield msgspec.json.encode(_Blob(id, blob(id))) + b"\n"


def blobs_of(event: AnyEvent) -> list[str]:
    """Return the ids of the blobs that an event refers to in its result's `meta`."""
    if not isinstance(event, ev.ToolCallFinished):
        return []
    items: Any = event.result.meta.get(BLOBS)
    ids = [
        cast("dict[str, Any]", item).get("id")
        for item in (cast("list[Any]", items) if isinstance(items, list) else ())
        if isinstance(item, dict)
    ]
    return [id for id in ids if isinstance(id, str)]


def open_calls(events: Iterable[AnyEvent]) -> list[ToolCall]:
    """Return the calls of the last answer that have no result, which run on continuing."""
    calls: dict[str, ToolCall] = {}
    for event in events:
        if isinstance(event, ev.AssistantReplied):
            calls = {call.id: call for call in event.calls}
        elif isinstance(event, ev.ToolCallFinished):
            calls.pop(event.call_id, None)
    return list(calls.values())


# --- reading ---


def read_exported(lines: Iterable[bytes | str]) -> Iterator[Exported]:
    """Yield the conversations in exported lines. Each is fully checked: its events have no gap, its
    blobs match their ids. Raises `ConfigurationError` (a `ValueError`) that names the line."""
    reader = _Lines(lines)
    while (data := reader.next()) is not None:
        at = reader.number
        header = _read_header(reader, data)
        events: list[AnyEvent] = []
        for seq in range(1, header.events + 1):
            if (data := reader.next()) is None:
                raise reader.error(
                    f"the lines end after {seq - 1} of {header.events} events of {header.id!r}."
                )
            event = reader.decode("an event", lambda data=data: ev.decode(data))
            if event.seq != seq:
                raise reader.error(f"event {event.seq} stands where event {seq} should.")
            if (id := ev.foreign_call(event)) is not None:
                raise reader.error(
                    f"a call of event {seq} has the id {id!r}; calls have different ids such as"
                    f" '{seq}.0'."
                )
            events.append(event)
        yield Exported(header, tuple(events), _read_blobs(reader, header, events), at)


class _Lines:
    """Lines with their numbers. Blank lines are skipped; one line can be put back."""

    def __init__(self, lines: Iterable[bytes | str]) -> None:
        self.number = 0
        self._lines = iter(lines)
        self._back: bytes | None = None

    def next(self) -> bytes | None:
        """Return the next line that is not blank, None at the end."""
        if self._back is not None:
            line, self._back = self._back, None
            self.number += 1
            return line
        for text in self._lines:
            self.number += 1
            data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
            if stripped := data.strip(b" \t\r\n"):
                return stripped
        return None

    def put_back(self, line: bytes) -> None:
        """Make `next` return this line again."""
        self._back = line
        self.number -= 1

    def error(self, problem: str) -> ConfigurationError:
        """Return the error for the last line."""
        return ConfigurationError(f"line {self.number}: {problem}")

    def decode(self, what: str, decode: Callable[[], T]) -> T:
        """Return the decoded last line. Raises `ConfigurationError`."""
        try:
            return decode()
        except (ValueError, RecursionError) as error:
            raise self.error(f"this is not {what} ({error}).") from error


def _read_header(reader: _Lines, data: bytes) -> Header:
    what = "the header of an exported conversation"
    header = reader.decode(what, lambda: msgspec.json.decode(data, type=Header))
    if header.version != VERSION:
        raise reader.error(
            f"exported in version {header.version}; this Holdfast reads version {VERSION}."
        )
    if not header.id or header.events < 1:
        raise reader.error(f"a conversation needs {'an event' if header.id else 'an id'}.")
    return header


def _is_blob(data: bytes) -> bool:
    try:
        return msgspec.json.decode(data, type=_Line).type == "blob"
    except (ValueError, RecursionError):
        return False


def _read_blobs(
    reader: _Lines, header: Header, events: Sequence[AnyEvent]
) -> dict[str, bytes | None]:
    referenced_ids = {id for event in events for id in blobs_of(event)}
    blobs: dict[str, bytes | None] = {}
    while (data := reader.next()) is not None:
        if not _is_blob(data):
            # The next conversation's header. Reading any other line as one raises the error.
            reader.put_back(data)
            break
        blob = reader.decode("a blob", lambda data=data: msgspec.json.decode(data, type=_Blob))
        if blob.data is not None and blob_id(blob.data) != blob.id:
            raise reader.error(f"the content of the blob {blob.id} does not match its id.")
        if blob.id not in referenced_ids:
            raise reader.error(f"no event of {header.id!r} refers to the blob {blob.id}.")
        blobs[blob.id] = blob.data
    if header.blobs is not None and len(blobs) != header.blobs:
        raise reader.error(f"{len(blobs)} of {header.blobs} blobs of {header.id!r} are present.")
    return blobs


# --- import ---


def import_conversations(
    store: Store, lines: Iterable[bytes | str], id: str | None = None
) -> list[str]:
    """Write exported conversations into a store under their ids, or the only one under `id`. Return
    the ids.

    Each conversation is written completely or not at all. A conversation that the store already
    has, event for event, is left alone. After an error, the conversations before the wrong one are
    imported.

    Raises `ConfigurationError` for a wrong line (which the message names) or an `id` for several
    conversations. Raises `Conflict` for an id that belongs to another conversation; `LeaseHeld`,
    `StoreError`.
    """
    ids: list[str] = []
    for conversation in only(read_exported(lines)) if id is not None else read_exported(lines):
        import_conversation(store, conversation, id)
        ids.append(id or conversation.header.id)
    return ids


def only(conversations: Iterable[Exported]) -> list[Exported]:
    """Return the single conversation in a list. Raises `ConfigurationError` if there are
    several, before any is imported."""
    result: list[Exported] = []
    for conversation in conversations:
        result.append(conversation)
        if len(result) > 1:
            raise ConfigurationError(
                f"line {conversation.line}: another conversation begins; a new id can be given to a"
                " single one only."
            )
    return result


def import_conversation(store: Store, conversation: Exported, id: str | None = None) -> bool:
    """Write one conversation. Return False if the store already has the same. Raises the errors
    of `import_conversations`."""
    id = id or conversation.header.id
    if _is_there(store, id, conversation):
        return False
    lease = store.acquire(id)
    try:
        if _is_there(store, id, conversation):  # written by another process before we had the lease
            return False
        _write(store, lease, conversation)
    except BaseException:
        store.release(lease)
        with suppress(StoreError):
            if not store.read(id):
                store.delete(id)  # `acquire` created an empty conversation
        raise
    finally:
        store.release(lease)
    return True


def _is_there(store: Store, id: str, conversation: Exported) -> bool:
    there = store.read(id)
    if there and list(map(ev.line, there)) != list(map(ev.line, conversation.events)):
        raise Conflict(
            f"the store has another conversation {id!r} already ({len(there)} events); import this"
            " one under a new id."
        )
    return bool(there)


def _write(store: Store, lease: Lease, conversation: Exported) -> None:
    blobs = [
        Blob(event.seq, data)
        for event in conversation.events
        for id in blobs_of(event)
        if (data := conversation.blobs.get(id)) is not None
    ]
    summary = conversation.summary
    updated = summary.updated or datetime.now(UTC)
    summary = msgspec.structs.replace(summary, id=lease.conversation_id, updated=updated)
    timers = [TimerRow(one.id, one.due) for one in timers_of(conversation.events).values()]
    store.append(lease, Batch(conversation.events, summary, blobs=blobs, timers=timers))
