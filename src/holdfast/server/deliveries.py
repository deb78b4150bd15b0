"""Delivers webhooks' messages. Each webhook has a lane per conversation, which reads the journal
after its cursor and sends event after event.

All lanes are tasks of one event loop on one thread. Two other threads read and write files, and
further threads look up host names. A waiting lane holds neither a connection nor events.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast import __version__
from holdfast.errors import ConfigurationError, ConversationNotFound, Fenced
from holdfast.events import AnyEvent
from holdfast.object_struct import ObjectStruct
from holdfast.server.outgoing import (
    AllowedHosts,
    DeliveryOutcome,
    Destination,
    WebhookSender,
    destination_of,
)
from holdfast.server.records import tenant_of
from holdfast.server.webhook_records import WebhookCursor, WebhookRecord, WebhookRecords
from holdfast.server.webhooks import body_of, headers_of, message_id, wants
from holdfast.store import Store

_log = logging.getLogger("holdfast.server")

T = TypeVar("T")

_PAGE_EVENTS = 32  # events read at once, after which another lane of the webhook may take a turn
_FILE_THREADS = 2
_LOOKUP_THREADS = 16
_MAX_LOOKUPS = 4  # parallel name lookups per tenant, so that a slow one does not delay others
_FAULT_RETRY_SECONDS = 60.0  # the delay before an unreadable journal is tried again
_CLOSE_SECONDS = 2.0  # time for messages being sent at shutdown
_MAX_RETRY_AFTER_SECONDS = 86_400.0  # a longer Retry-After is cut to this


# The messages of protocol doors, by the names of their formats: functions of a tenant, a
# conversation and an event. None sends nothing about the event.
MessageFormats = dict[str, Callable[[str, str, AnyEvent], bytes | None]]


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's settings for sending webhooks.

    Args:
        allow: Hosts that may receive messages although they are not public.
        first: Seconds before the first retry; each further delay doubles.
        longest: The longest delay in seconds.
        give_up: An event that has failed for this many seconds is given up.
        timeout: Seconds for one attempt.
        parallel: The number of conversations for which one webhook sends at once.
        largest: The largest event in bytes of JSON.
        tls: The TLS context of connections.
    """

    allow: tuple[str, ...] = ()
    first: float = 1.0
    longest: float = 3600.0
    give_up: float = 3 * 86_400.0
    timeout: float = 15.0
    parallel: int = 4
    largest: int = 256 * 1024
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in ("first", "longest", "give_up", "timeout", "parallel", "largest"):
            if getattr(self, name) <= 0:
                value = getattr(self, name)
                raise ConfigurationError(f"Sending: {name} takes a number above 0, not {value!r}.")
        AllowedHosts(self.allow)


class _Ended(Exception):
    """The receiver accepts no further messages."""


class _Lane(ObjectStruct):
    """One webhook's progress through one conversation. Belongs to the loop's thread, except
    `ended`."""

    id: str
    cursor: WebhookCursor = WebhookCursor(0)
    saved: WebhookCursor = WebhookCursor(0)
    more: bool = False  # True if events were appended since the last read of the journal
    sending: bool = False
    ended: bool = False
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Hook:
    """An active webhook. Belongs to the loop's thread, except `ended`. `webhook` has its present
    failures."""

    def __init__(self, webhook: WebhookRecord, sender: WebhookSender, parallel: int) -> None:
        self.webhook = webhook
        self.sender = sender
        self.lanes: dict[str, _Lane] = {}
        self.slots = asyncio.Semaphore(parallel)
        # While the webhook fails as a whole, only one lane at a time sends.
        self.probing = asyncio.Lock()
        self.ended = False

    def wait(self, lane: _Lane) -> float:
        """Return the seconds until the lane may send."""
        return max(self.webhook.again, lane.cursor.again) - time.time()

    def cancel(self) -> None:
        for lane in list(self.lanes.values()):
            lane.cancel()
        self.sender.close()


class Deliveries:
    """Sends the messages of `active` webhooks. Thread-safe."""

    def __init__(
        self,
        store: Store,
        records: WebhookRecords,
        place: Callable[[str, str], str],
        sending: Sending,
    ) -> None:
        self._store = store
        self._records = records
        self._place = place
        self._sending = sending
        self.allowed = AllowedHosts(sending.allow)
        self.formats: MessageFormats = {}
        self.accepted = self.failed = self.dead = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # prevents that ended lanes and webhooks save a cursor
        self._hooks: dict[int, _Hook] = {}
        self._index: Mapping[str, tuple[WebhookRecord, ...]] = {}  # by tenant; replaced as a whole
        self._lookups: dict[str, asyncio.Semaphore] = {}
        self._tls = sending.tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._files = ThreadPoolExecutor(_FILE_THREADS, "holdfast-webhooks")
        self._names = ThreadPoolExecutor(_LOOKUP_THREADS, "holdfast-webhook-names")
        self._closed = False

    # --- conversations ---

    def appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        """Send events that are in the store now. Neither blocks nor raises."""
        self._wake(id, lambda webhook: any(wants(webhook.target.events, event) for event in events))

    def look(self, id: str) -> None:
        """Check a conversation for unsent events."""
        self._wake(id, lambda _: True)

    def _wake(self, id: str, accepts: Callable[[WebhookRecord], bool]) -> None:
        hooks = self._index.get(tenant_of(id), ())
        covering = [webhook for webhook in hooks if webhook.conversation in ("", id)]
        if numbers := [webhook.number for webhook in covering if accepts(webhook)]:
            self._call(self._notice, id, numbers)

    def forget(self, id: str) -> None:
        """Stop sending events of a removed conversation and delete its data."""
        with self._saving:
            for hook in list(self._hooks.values()):
                if (lane := hook.lanes.get(id)) is not None:
                    lane.ended = True
                    self._call(lane.cancel)
            numbers = self._records.forget(id)
        for number in numbers:
            self.stop(number)

    # --- webhooks ---

    def start(self, hooks: Sequence[WebhookRecord]) -> None:
        """Start sending for these webhooks, including the events that are still unsent."""
        hooks = [webhook for webhook in hooks if webhook.state == "active"]
        if not hooks:
            return
        loop = self._ensure_loop()
        if self._tls is None:
            self._tls = ssl.create_default_context()
        with self._lock:
            if self._closed:
                return
            for webhook in hooks:
                place = self._destination(webhook)
                if place is None or webhook.number in self._hooks:
                    continue
                slots = self._lookups.setdefault(webhook.tenant, asyncio.Semaphore(_MAX_LOOKUPS))
                timeout = self._sending.timeout
                sender = WebhookSender(place, self.allowed, slots, self._tls, timeout)
                self._hooks[webhook.number] = _Hook(webhook, sender, self._sending.parallel)
            self._rebuild_index()
        for webhook in hooks:
            for id in self._behind(webhook):
                loop.call_soon_threadsafe(self._notice, id, [webhook.number])

    def _destination(self, webhook: WebhookRecord) -> Destination | None:
        """Return the destination, or None if the operator's present settings do not allow it."""
        try:
            return destination_of(webhook.target.url, self.allowed)
        except ConfigurationError as error:
            refused = webhook.failed(webhook.failures, webhook.since, 0.0, str(error))
            self._records.change(refused, forced=False)
            return None

    def _behind(self, webhook: WebhookRecord) -> list[str]:
        """Return the conversations that may have unsent events."""
        cursors = self._records.cursors(webhook.number)
        summaries = self._store.list([webhook.conversation] if webhook.conversation else None)
        return [
            one.id
            for one in summaries
            if tenant_of(one.id) == webhook.tenant
            and one.last_seq > cursors.get(one.id, one.parent_seq)
        ]

    def stop(self, number: int) -> None:
        """Stop sending for a webhook. None of its cursors changes once this returns."""
        with self._lock:
            hook = self._hooks.pop(number, None)
            self._rebuild_index()
        if hook is not None:
            with self._saving:
                hook.ended = True
            self._call(hook.cancel)

    def stop_all(self) -> None:
        """Stop sending for all webhooks."""
        for number in list(self._hooks):
            self.stop(number)

    def _rebuild_index(self) -> None:
        by_tenant: dict[str, tuple[WebhookRecord, ...]] = {}
        for hook in self._hooks.values():
            by_tenant[hook.webhook.tenant] = (*by_tenant.get(hook.webhook.tenant, ()), hook.webhook)
        self._index = by_tenant

    def stats(self) -> dict[str, int]:
        hooks = list(self._hooks.values())
        return {
            "webhooks": len(hooks),
            "webhook_conversations_pending": sum(len(hook.lanes) for hook in hooks),
            "webhook_messages_total": self.accepted,
            "webhook_failures_total": self.failed,
            "webhook_dead_total": self.dead,
        }

    def close(self) -> None:
        """Stop sending; messages being sent have a moment to finish. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            hooks, self._hooks, self._index = list(self._hooks.values()), {}, {}
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(hooks), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._files.shutdown()
        self._names.shutdown(wait=False, cancel_futures=True)  # a lookup cannot be interrupted

    # --- the loop's thread ---

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None and not self._closed:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(self._names)
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="holdfast-webhooks", daemon=True
                )
                self._thread.start()
            assert self._loop is not None
            return self._loop

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed; the next process finds the events
                self._loop.call_soon_threadsafe(function, *arguments)

    async def _end(self, hooks: Sequence[_Hook]) -> None:
        lanes = [lane for hook in hooks for lane in hook.lanes.values()]
        for lane in lanes:
            if not lane.sending:
                lane.cancel()
        if tasks := [lane.task for lane in lanes if lane.task is not None]:
            _, unfinished = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        for hook in hooks:
            hook.sender.close()

    async def _off(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._files, function, *arguments)

    def _notice(self, id: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            hook = self._hooks.get(number)
            if hook is None or hook.ended:
                continue
            lane = hook.lanes.get(id)
            if lane is None:
                lane = hook.lanes[id] = _Lane(id)
                lane.task = asyncio.ensure_future(self._run(hook, lane))
            lane.more = True

    # --- a lane ---

    async def _run(self, hook: _Hook, lane: _Lane) -> None:
        try:
            opened = False
            while not (self._closed or hook.ended or lane.ended):
                while (wait := hook.wait(lane)) > 0:
                    await asyncio.sleep(min(wait, 60.0))
                try:
                    opened = opened or await self._off(self._open, hook, lane)
                    if not opened:
                        return
                    async with hook.slots:
                        if hook.wait(lane) > 0:
                            continue
                        rest = await self._page(hook, lane)
                except (_Ended, ConversationNotFound, Fenced):
                    return
                except Exception as error:
                    if self._closed or hook.ended or lane.ended:
                        return
                    self._warn(hook, "cannot continue in conversation %s: %s", lane.id, error)
                    await asyncio.sleep(_FAULT_RETRY_SECONDS)
                    continue
                # No await follows before the lane is deleted, so later events start a new lane.
                if not rest and not lane.more:
                    return
        finally:
            if hook.lanes.get(lane.id) is lane:
                del hook.lanes[lane.id]

    def _open(self, hook: _Hook, lane: _Lane) -> bool:
        """Read the lane's start position. Raises `ConversationNotFound` if the tenant may not
        see the conversation."""
        self._place(hook.webhook.tenant, lane.id.rpartition("/")[2])
        cursor = self._records.cursor(hook.webhook.number, lane.id)
        if cursor is None:
            summaries = self._store.list([lane.id])
            cursor = WebhookCursor(summaries[0].parent_seq if summaries else 0)
        lane.cursor = lane.saved = cursor
        return True

    async def _page(self, hook: _Hook, lane: _Lane) -> bool:
        """Send a page of events. Return True if there may be more."""
        lane.more = False
        events = await self._off(self._store.read, lane.id, lane.cursor.seq, _PAGE_EVENTS)
        if not events and lane.saved != lane.cursor:  # the position after filtered events
            await self._save_cursor(hook, lane)
        for event in events:
            if self._closed:
                return False
            if not wants(hook.webhook.target.events, event):
                lane.cursor = msgspec.structs.replace(lane.cursor, seq=event.seq)
            elif not await self._turn(hook, lane, event):
                return True
        return bool(events)

    async def _turn(self, hook: _Hook, lane: _Lane, event: AnyEvent) -> bool:
        """Send one event. Return True if the event is finished."""
        if not hook.webhook.failures:
            return await self._send(hook, lane, event)
        async with hook.probing:
            return hook.wait(lane) <= 0 and await self._send(hook, lane, event)

    async def _send(self, hook: _Hook, lane: _Lane, event: AnyEvent) -> bool:
        webhook, now = hook.webhook, time.time()
        conversation = lane.id.rpartition("/")[2]
        style = webhook.target.style
        if not style.format:
            body = body_of(conversation, event, self._sending.largest)
        else:
            form = self.formats[style.format]  # KeyError: without this door, try again later
            body = await self._off(form, webhook.tenant, conversation, event)
            if body is None:
                lane.cursor = WebhookCursor(event.seq)
                return True
        id = message_id(webhook.id, conversation, event)
        headers = {
            "content-type": "application/json",
            "user-agent": f"Holdfast/{__version__}",
            **style.headers,
            **headers_of(id, body, _secrets(webhook, now), now),
        }
        lane.sending = True
        try:
            outcome = await hook.sender.post(body, headers)
            if 200 <= outcome.status < 300:
                self.accepted += 1
                lane.cursor = WebhookCursor(event.seq)
                await self._save_cursor(hook, lane)
                await self._note_failures(hook, 0, 0.0, "")
                return True
            self.failed += 1
            if outcome.status == 410:
                await self._retire(hook)
                raise _Ended
            await self._handle_failure(hook, lane, event, outcome)
            return False
        finally:
            lane.sending = False

    async def _handle_failure(
        self, hook: _Hook, lane: _Lane, event: AnyEvent, outcome: DeliveryOutcome
    ) -> None:
        """Handle an event that was not accepted: retry it later, or give it up."""
        now, cursor, error, limit = time.time(), lane.cursor, outcome.error, self._sending.give_up
        attempts, since, again = cursor.attempts + 1, cursor.since or now, 0.0
        if outcome.unreached or outcome.wait is not None:  # the webhook fails as a whole
            failures = hook.webhook.failures + 1
            wait = min(outcome.wait or 0.0, _MAX_RETRY_AFTER_SECONDS)
            delay = max(self._backoff(failures), wait)
            await self._note_failures(hook, failures, now + delay, error)
        else:
            again = now + self._backoff(attempts)
        if now - since < limit or now - event.timestamp.timestamp() < limit:
            lane.cursor = WebhookCursor(cursor.seq, attempts, since, again, error)
            await self._save_cursor(hook, lane)
            return
        self.dead += 1
        self._warn(hook, "gave up event %d of conversation %s", event.seq, lane.id)
        number, again = hook.webhook.number, now + self._sending.first
        lane.cursor = given_up = WebhookCursor(event.seq, 1, since, again, error)
        await self._save(hook, lane, lambda: self._records.give_up(number, lane.id, given_up, now))

    async def _retire(self, hook: _Hook) -> None:
        error = "The receiver answered 410: it accepts no further messages."

        def retire() -> bool:
            # Under one lock: a failure that another lane saves later would make it active again.
            with self._saving:
                if hook.ended:
                    return False
                webhook = hook.webhook.failed(0, 0.0, 0.0, error)
                self._records.change(msgspec.structs.replace(webhook, state="gone"))
                hook.ended = True
                return True

        if await self._off(retire):
            self._warn(hook, "has ended: its receiver answered 410")
            await self._off(self.stop, hook.webhook.number)

    def _backoff(self, failures: int) -> float:
        delay = min(self._sending.longest, self._sending.first * 2.0 ** min(failures - 1, 40))
        return delay * (0.5 + 0.5 * random.random())

    def _warn(self, hook: _Hook, message: str, *values: object) -> None:
        webhook = hook.webhook
        _log.warning(f"Webhook %s of tenant %s {message}", webhook.id, webhook.tenant, *values)

    async def _note_failures(self, hook: _Hook, failures: int, again: float, error: str) -> None:
        webhook = hook.webhook
        if (failures, error) == (webhook.failures, webhook.error):
            return
        since = (webhook.since or time.time()) if failures else 0.0
        hook.webhook = webhook.failed(failures, since, again, error)
        await self._save(hook, None, lambda: self._records.change(hook.webhook, forced=False))

    async def _save(self, hook: _Hook, lane: _Lane | None, save: Callable[[], None]) -> None:
        """Save on a file thread, unless the webhook or the conversation has ended."""

        def work() -> None:
            with self._saving:
                if not (hook.ended or (lane is not None and lane.ended)):
                    save()
                    if lane is not None:
                        lane.saved = lane.cursor

        await self._off(work)

    async def _save_cursor(self, hook: _Hook, lane: _Lane) -> None:
        number, cursor = hook.webhook.number, lane.cursor
        await self._save(hook, lane, lambda: self._records.save(number, lane.id, cursor))


def _secrets(webhook: WebhookRecord, now: float) -> tuple[str, ...]:
    """Return the secrets to sign with, newest first."""
    target = webhook.target
    return (target.secret, target.old) if now < target.until else (target.secret,)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    pending = asyncio.all_tasks() - {asyncio.current_task()}  # slow lookups
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
