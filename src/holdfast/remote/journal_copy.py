"""The client's copy of a journal on an agent server: its events, their fold, and their lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation.journal_lock import JournalLock
from holdfast.conversation.outputs import no_output
from holdfast.conversation.state import Fold
from holdfast.errors import ConversationNotFound, NotFound, StoreError
from holdfast.llm.http import Response
from holdfast.remote.server_client import Found, ServerClient, TooLong, conversation_path

PAGE_EVENTS = 1000  # events per request


class JournalCopy:
    """A copy of a journal, dense from event 1 even if events arrive twice or out of order.

    Thread-safe; `lock` is notified of every event and of the end. `client` is this client's name
    at the server. `mark` marks the threads of the conversation, in which no method may wait for it.
    """

    # Has the attributes of a `Journal` that subscriptions and event streams read.

    def __init__(self, id: str, server: ServerClient, client: str) -> None:
        self.id = id
        self.server = server
        self.client = client
        self.path = conversation_path(id)
        self.mark = hash((server.address, id))
        self.lock = JournalLock()
        self.closed = False
        self.fold = Fold()
        self._events: list[ev.AnyEvent] = []
        self._fetching = threading.Lock()

    def request(self, method: str, path: str = "", body: Any = None, **options: Any) -> Response:
        """Send a request about the conversation. See `ServerClient.request`."""
        return self.server.request(method, self.path + path, body, client=self.client, **options)

    def read(
        self,
        decode: Callable[[bytes], Found],
        method: str,
        path: str = "",
        body: Any = None,
        **options: Any,
    ) -> Found:
        """Send a request, and decode the response. See `ServerClient.read`."""
        options["client"] = self.client
        return self.server.read(decode, method, self.path + path, body, **options)

    def take(self, events: Sequence[ev.AnyEvent]) -> bool:
        """Add the events that follow; return False if events between are missing."""
        with self.lock:
            last = before = self.fold.last_seq
            for event in events:
                if event.seq == last + 1:
                    self._events.append(event)
                    self.fold.apply(event)
                    last = event.seq
                elif event.seq > last:
                    break
            if last != before:
                self.lock.notify_all()
            return not events or events[-1].seq <= last

    def catch_up(self, timeout: float | None = None) -> None:
        """Read the server's further events, within `timeout` seconds in all; without it, within the
        server client's for each page. Raises as `ServerClient.request`."""
        with self._fetching:  # two threads at once would read the same events
            limit, seconds = PAGE_EVENTS, self.server.timeout if timeout is None else timeout
            deadline = time.monotonic() + seconds
            while True:
                before = self.fold.last_seq
                try:
                    query = {"after_seq": before, "limit": limit}
                    seconds_left = max(deadline - time.monotonic(), 0.001)
                    events, last = self.read(
                        read_page, "GET", "/events", query=query, timeout=seconds_left
                    )
                except StoreError as error:
                    if not isinstance(error.__cause__, TooLong) or limit == 1:
                        raise
                    limit = max(1, limit // 8)
                    continue
                self.take(events)
                now = self.fold.last_seq
                if not events or now >= last:
                    return
                where = f"GET {self.path}/events: {self.server.address}"
                if now == before:
                    what = f"sent events {events[0].seq}..{events[-1].seq}"
                    raise StoreError(f"{where} {what} instead of event {before + 1}.")
                if timeout is None and len(events) == limit:
                    deadline = time.monotonic() + seconds
                if time.monotonic() >= deadline:
                    what = f"sent only {now} of them in {seconds:g} s"
                    raise StoreError(f"{where} reports {last} events, but {what}.")

    def output(self, call_id: str) -> ToolResult:
        """Return the whole result of a call. Raises `NotFound`."""
        if not call_id or "/" in call_id or call_id in (".", ".."):  # not possible in a path
            raise no_output(call_id)
        path = f"/outputs/{quote(call_id, safe='')}"
        try:
            return self.read(ToolResult.from_json, "GET", path)
        except ConversationNotFound:
            raise
        except NotFound as error:
            raise no_output(call_id) from error

    def after(self, seq: int) -> list[ev.AnyEvent]:
        """Return the events after `seq`. Needs the lock."""
        return self._events[seq:]

    def until(self, seq: int) -> tuple[ev.AnyEvent, ...]:
        """Return the events up to `seq`. Thread-safe: existing events never change."""
        with self.lock:
            return tuple(self._events[:seq])

    def find(self, event_id: str, after: int) -> ev.AnyEvent | None:
        """Return the event of that id after seq `after`, None if it has not arrived."""
        with self.lock:
            return next((event for event in self._events[after:] if event.id == event_id), None)


def read_page(data: bytes) -> tuple[list[ev.AnyEvent], int]:
    """Return the events of a page of a journal, and the journal's last seq."""
    page = msgspec.json.decode(data, type=_Page)
    return [ev.decode(bytes(raw)) for raw in page.events], page.last_seq


class _Page(msgspec.Struct, rename="camel"):
    events: list[msgspec.Raw] = []
    last_seq: int = 0
