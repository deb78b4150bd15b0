"""Search in the contents of a tenant's conversations: a scan in bounded steps, newest conversation
first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from holdfast import events as ev
from holdfast.content import Content, TextContent
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.events import AnyEvent
from holdfast.object_struct import ObjectStruct
from holdfast.server.bodies import SearchHit, SearchResults
from holdfast.server.host import Host

_STEP_SECONDS = 0.3  # of one step, so that a search does not keep other requests waiting
_PAGE = 200  # events that are read at once
_MAX_HITS = 50  # of one step
_MAX_HITS_EACH = 5  # of one conversation in a step; a reader continues there
_BEFORE, _AFTER = 60, 140  # characters around a hit


class ContentSearch(ObjectStruct):
    """A search for a text, in any letter case, in messages, answers, calls, results, errors and
    summaries. Conversations that calls spawned are left out. Reads through the host, and so only
    what the tenant may read."""

    _host: Host
    _clock: Callable[[], float] = time.monotonic

    def step(self, tenant: str, needle: str, cursor: str | None) -> SearchResults:
        """Search for some tenths of a second. `cursor` is the `next` of the step before. Raises
        `ConfigurationError`."""
        needle = needle.casefold()
        listed, _, rest = (cursor or "").partition("-")
        after = int(rest or 0)
        deadline = self._clock() + _STEP_SECONDS
        hits: list[SearchHit] = []
        conversations = events = 0
        while True:
            page = self._host.list(tenant, None, listed or None, 1)
            for item in page.items:
                each = 0
                while each < _MAX_HITS_EACH:
                    batch = self._read(tenant, item.id, after)
                    events += len(batch)
                    for event in batch:
                        after = event.seq
                        if text := _around(event, needle):
                            kind = cast("Any", type(event).__struct_config__.tag)
                            hits.append(SearchHit(item.id, item.title, after, kind, text))
                            each += 1
                            if each == _MAX_HITS_EACH:
                                break
                    if len(batch) < _PAGE:
                        break
                    if self._clock() > deadline and each < _MAX_HITS_EACH:
                        return SearchResults(hits, conversations, events, f"{listed}-{after}")
                conversations += 1
                after = 0
            if page.next is None:
                return SearchResults(hits, conversations, events, None)
            listed = page.next
            if self._clock() > deadline or len(hits) >= _MAX_HITS:
                return SearchResults(hits, conversations, events, listed)

    def _read(self, tenant: str, id: str, after: int) -> list[AnyEvent]:
        try:
            return self._host.read(tenant, id, after, _PAGE)
        except ConversationNotFound:  # it was removed meanwhile
            return []


def checked_text(text: str) -> str:
    """Return the text to search for. Raises `ConfigurationError` if it is blank."""
    if not text.strip():
        raise ConfigurationError("q takes the text to search for; it is blank.")
    return text.strip()


def _around(event: AnyEvent, needle: str) -> str:
    """Return the part of an event's texts around the first occurrence, "" without one."""
    for text in _texts(event):
        at = text.casefold().find(needle)
        if at >= 0:  # case folding may change lengths by a few characters, which a part tolerates
            begin = max(0, at - _BEFORE)
            part = text[begin : at + len(needle) + _AFTER]
            return f"{'…' if begin else ''}{part}"
    return ""


def _texts(event: AnyEvent) -> Iterator[str]:
    match event:
        case ev.MessageAdded():
            yield from _of_content(event.content)
        case ev.AssistantReplied():
            yield event.text
            for call in event.calls:
                yield call.name
                yield from _strings(call.arguments)
        case ev.ToolCallFinished():
            yield from _of_content(event.result.content)
            yield from _strings(event.result.structured_content)
        case ev.HistoryCondensed():
            yield event.summary
        case ev.ErrorRecorded():
            yield event.message
        case ev.AsideAsked():
            yield event.question
        case ev.AsideAnswered():
            yield event.text
        case ev.ConversationLabelled():
            yield event.title or ""
        case _:
            return


def _of_content(content: tuple[Content, ...]) -> Iterator[str]:
    for block in content:
        if isinstance(block, TextContent):
            yield block.text
        elif name := getattr(block, "name", ""):
            yield str(name)


def _strings(value: object) -> Iterator[str]:
    """Yield the texts in JSON, keys left out."""
    remaining = [value]
    while remaining:
        one = remaining.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            remaining += cast("dict[str, object]", one).values()
        elif isinstance(one, list):
            remaining += cast("list[object]", one)
