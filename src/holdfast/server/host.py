"""`Host`: the conversations of many clients over one store. Conversations are opened when
needed, driven by a pool of threads, and parked when idle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast import errors
from holdfast import events as ev
from holdfast.conversation import ConversationState
from holdfast.conversation.observer import observers
from holdfast.conversation.outputs import whole
from holdfast.conversation.timers import timers_in
from holdfast.server import forms, records, shapes
from holdfast.server.agent_changes import AgentChanges
from holdfast.server.agents import Agents
from holdfast.server.chats import ChatRecords, Chats
from holdfast.server.claims import Claims
from holdfast.server.client_commands import ClientCommands
from holdfast.server.database import SameFile
from holdfast.server.descendants import Descendants
from holdfast.server.feed import Feed, Feeds
from holdfast.server.host_settings import HostSettings
from holdfast.server.idempotent_commands import IdempotentCommands
from holdfast.server.keyed_locks import KeyedLocks
from holdfast.server.lifecycle import Lifecycle
from holdfast.server.listings import Listings
from holdfast.server.named_leases import NamedLeases
from holdfast.server.named_parts import NamedParts
from holdfast.server.notifying_store import NotifyingStore
from holdfast.server.other_servers import OtherServers, shared_store
from holdfast.server.records import Records
from holdfast.server.run_starts import RunStarts
from holdfast.server.scheduler import Scheduler
from holdfast.server.webhook_service import WebhookService
from holdfast.server.worker_observations import WorkerObservations
from holdfast.server.workers.deaths import Deaths
from holdfast.server.workspaces import Workspaces
from holdfast.store import SQLiteStore, Store
from holdfast.timers import Timer
from holdfast.tools.sources import SourceHealth

if TYPE_CHECKING:
    from holdfast.content import ToolResult
    from holdfast.events import AnyEvent
    from holdfast.runtime.folder import FolderRuntime
    from holdfast.server.workers.worker_pool import WorkerPool

_SHARED_IDLE_SECONDS = 2.0  # an unused conversation is left to the other servers after this time
_MAX_PAGE = 1000  # conversations or events in one answer


class Host:
    """The conversations, workspaces and webhooks of all tenants over one store.

    All methods block, are thread-safe, and take the tenant first. An object of another tenant
    raises `ConversationNotFound`. An id or idempotency key that is in use for something else raises
    `Conflict`, an exceeded bound `TooMany`, invalid input `ConfigurationError`. The host owns the
    store and the records: `shutdown` closes them.
    """

    def __init__(self, store: Store, records: Records, settings: HostSettings) -> None:
        self._records = records
        shared = shared_store(store) if records.shared else None
        leases = None if shared is None else NamedLeases(records)
        settings = _completed(settings, records.shared)
        self.bounds, self.now = settings.bounds, settings.now
        isolated = settings.isolation == "process"
        self._feeds = Feeds(store.read, shared, self._exists)
        self.observers = observers("Host: observer", settings.observer)
        watches = self.observers and isolated
        self._elsewhere = WorkerObservations(self.observers, store) if watches else None
        self._store = NotifyingStore(
            store,
            self._appended,
            lambda place: self.webhooks.forget(place),
            records.recorded,
            None if shared is None else lambda place: self._scheduler.wake(place),
        )
        self._others = None if shared is None else OtherServers(store, records)
        self._file = SameFile(store.path, "The store") if isinstance(store, SQLiteStore) else None
        self.workspaces = Workspaces(settings)
        records.own()
        deaths = Deaths()
        self._workers: WorkerPool | None = None
        if isolated:
            from holdfast.server.workers.worker_pool import WorkerPool  # for start-up time

            self._workers = WorkerPool(self._store, settings, deaths)
        self.named_parts = NamedParts(
            records, settings.models, settings.bounds.named, settings.variables
        )
        self._agents = agents = Agents(
            self._store,
            records,
            settings,
            self.workspaces,
            self._feeds,
            self._workers,
            self.observers,
            self._elsewhere,
            self.named_parts,
        )
        self.family = family = Descendants(self._store, records)
        self.webhooks = WebhookService(
            store, records, family, settings.sending, settings.bounds.webhooks, leases
        )
        self.claims = Claims(settings.claim_timeout, settings.client_grace, settings.clock, leases)
        self._scheduler: Scheduler = Scheduler(
            self._store,
            records,
            settings,
            agents,
            self.workspaces,
            self.claims,
            deaths,
            self.webhooks.tend,
        )
        scheduler = self._scheduler
        chats = ChatRecords(records)
        self._lifecycle = life = Lifecycle(
            self._store,
            records,
            agents,
            self.workspaces,
            settings.bounds,
            scheduler,
            family,
            chats,
            self.webhooks,
            self._feeds,
            self.check,
        )
        turns = KeyedLocks("chat", leases)
        self.chats = Chats(
            chats, self._store, records, agents, scheduler.conversations, life.delete, turns
        )
        self.runs = RunStarts(records, scheduler, self._others, not isolated)
        changes = AgentChanges(
            records, agents, scheduler, self._others, KeyedLocks("agent", leases)
        )
        commands = ClientCommands(
            self._store,
            records,
            scheduler,
            self._others,
            family,
            isolated,
            IdempotentCommands(records),
        )
        # The methods of its parts.
        self.create, self.fork, self.rewind = life.create, life.fork, life.rewind
        self.begin_with, self.write_title = life.begin_with, life.write_title
        self.delete = life.delete
        self.set_tools, self.use = changes.set_tools, changes.use
        self.set_secrets, self.secret_names = changes.set_secrets, changes.secret_names
        self.execute = commands.execute
        self.status = family.status
        self.list = Listings(self._store, records).page
        self.tend = scheduler.tend
        self._lock, self._closed = threading.Lock(), False
        life.finish_interrupted()
        if not records.shared:  # otherwise their clients may be those of other servers
            self.chats.pause()
        self.webhooks.settle()

    def get(self, tenant: str, id: str) -> shapes.Info:
        """Return a conversation's details without its events."""
        item = self.family.item(tenant, id)
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            return shapes.Info(**msgspec.structs.asdict(item))
        live = self._scheduler.conversations.find(record.store_id)
        tools = self._agents.stored_tools(record) if live is None else live.report
        return shapes.Info(
            **msgspec.structs.asdict(item),
            open=live is not None,
            busy=live is not None and live.busy,
            tools=tools.standings,
            warnings=tools.warnings,
            error=self._scheduler.fault(record),
            sandboxed=record.options.boxed or self.workspaces.runtimes.sandboxed,
        )

    def timers(self, tenant: str, id: str) -> tuple[Timer, ...]:
        """Return a conversation's timers, the earliest first. Raises `ConversationNotFound`."""
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            self.family.child(tenant, id)
            return ()  # a spawned conversation has none
        return timers_in(self._store, record.store_id)

    def set_model(self, tenant: str, name: str, form: object) -> None:
        """Keep a model of a tenant's own under a name. Raises `ConfigurationError` if no agent can
        be built with it."""
        agent: dict[str, object] = {"model": form}
        options = records.ConversationOptions()
        forms.check_unnamed(agent)
        self._agents.build(self._agents.requested_parts(tenant, agent, {}, [], options), "")
        self.named_parts.set_model(tenant, name, form)

    def _appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        """Pass appended events on to all listeners. A child's report wakes its parent. An
        interrupt frees the run's slot."""
        self._feeds.appended(id, events)
        self.webhooks.appended(id, events)
        if self._elsewhere is not None:
            self._elsewhere.appended(id, events)
        for event in events:
            if isinstance(event, ev.MessageAdded) and event.sender.startswith(f"{id}."):
                self._scheduler.wake(id)
            elif isinstance(event, ev.StatusChanged) and event.reason == "interrupted":
                self._scheduler.pool.release(id)

    def start(self, tenant: str, id: str) -> str:
        """Drive the conversation from now on whenever it has work, also after a restart of the
        server. Return the status. Idempotent."""
        run = self.runs.begin(tenant, id, hosted=True)
        return self.status(tenant, id) if run is None else run.status

    def run(self, tenant: str, id: str) -> str:
        """Drive the conversation until it rests, continuing after a pause or an error like
        `Conversation.run`. Return the status without waiting for the run."""
        begun_run = self.runs.begin(tenant, id)
        return self.status(tenant, id) if begun_run is None else begun_run.status

    def close(self, tenant: str, id: str) -> str:
        """Park the conversation now, cutting off running work, and do not drive it until the
        next start. Return the status. Requests to drive it that still wait raise `Conflict`."""
        record = self._records.find(tenant, id)
        self.runs.withdraw(record.store_id)
        live = self._scheduler.conversations.find(record.store_id)
        with nullcontext() if live is None else live.run_lock:  # a start that was first is recorded
            record = self._records.find(tenant, id)
            if record.driven:
                record = self._records.set_driven(record, records.IDLE)
            if live is not None:
                live.record = replace(live.record, driven=record.driven)
        self._scheduler.cut_off(record.store_id)
        if self._others is not None:
            try:
                self._others.close_here(record)
            except errors.LeaseHeld:
                self._others.close(record)
        return self.status(tenant, id)

    def state(self, tenant: str, id: str) -> ConversationState:
        """Return a snapshot, like `Conversation.state`. Opens nothing."""
        return ConversationState(id, self._store.read(self.family.place(tenant, id)))

    def read(self, tenant: str, id: str, after_seq: int = 0, limit: int = 500) -> list[AnyEvent]:
        """Return the events after `after_seq`, at most `limit` and at most 1,000. Opens nothing."""
        most = max(0, min(limit, _MAX_PAGE))
        return self._store.read(self.family.place(tenant, id), after_seq, most)

    def output(self, tenant: str, id: str, call_id: str) -> ToolResult:
        """Return the whole result of a call, like `Conversation.get_output`. Opens nothing."""
        place = self.family.place(tenant, id)
        begin = call_id.partition(".")[0]
        after = int(begin) if begin.isdecimal() and len(begin) < 10 else 1 << 40
        while events := self._store.read(place, after, _MAX_PAGE):
            for event in events:
                if isinstance(event, ev.ToolCallFinished) and event.call_id == call_id:
                    return whole(event.result, self._store.blob)
            after = events[-1].seq
        raise errors.NotFound(f"Call {call_id[:80]!r} has no result.", "call", call_id)

    def _exists(self, place: str) -> bool:
        try:
            self.family.place(*records.place_of(place))
        except errors.ConversationNotFound:
            return False
        return True

    def feed(self, tenant: str, id: str, place: str = "") -> Feed:
        """Return the feed of the conversation's events. `place` is its store id, once found."""
        return self._feeds.get(place or self.family.place(tenant, id))

    def services(self, tenant: str, id: str) -> list[SourceHealth] | None:
        """Check and return the health of the conversation's tool services. None if it is not
        open in this process."""
        live = self._scheduler.conversations.find(self.family.place(tenant, id))
        return None if live is None else live.services()

    # --- workspaces ---

    def begin(self, tenant: str, what: str, key: str, digest: bytes) -> bool:
        """Return True if a request that must run only once is new. Raises `Conflict` for another
        one."""
        token = os.urandom(8)
        return self._records.store_answer(tenant, f"\n{what}\n{key}", digest, token) == token

    @contextmanager
    def workspace(self, tenant: str, id: str) -> Generator[FolderRuntime]:
        """Yield a workspace's runtime, which stays open within the block."""
        runtime = self.workspaces.enter(tenant, id)
        self._scheduler.tend_soon()
        try:
            yield runtime
        finally:
            self.workspaces.leave(tenant, id)

    # --- recovery, timer and shutdown ---

    def recover(self) -> None:
        """Continue, in the background, the last process's conversations and those with new
        commands."""
        self._scheduler.recover()
        self.webhooks.recover()

    def check(self) -> None:
        """Raise `StoreError` if the file of the store or of the records was removed or replaced."""
        self._records.check()
        if self._file is not None:
            self._file.check()

    def stats(self) -> dict[str, int]:
        return {
            "conversations": sum(self._records.counts().values()),
            "readers": self._feeds.readers(),
            "workspaces": self.workspaces.count(),
            "workers": 0 if self._workers is None else self._workers.count(),
            **self._scheduler.stats(),
            **self.webhooks.stats(),
        }

    def shutdown(self, timeout: float = 10.0) -> None:
        """Stop everything and close the store and the records. Work that is cut off continues
        when the next host recovers. Idempotent."""
        until = time.monotonic() + timeout
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._feeds.close()
        self._scheduler.close(until)
        if self._workers is not None:
            self._workers.close()
        self.workspaces.close()
        self.webhooks.close()
        self._records.close()
        self._store.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _completed(settings: HostSettings, shared: bool) -> HostSettings:
    """Return settings with the folder of snapshots, and the idle time of a shared store."""
    if shared:
        settings = replace(settings, idle=min(settings.idle, _SHARED_IDLE_SECONDS))
    if settings.root is None:
        return settings
    undo_folder = os.path.join(os.path.realpath(settings.root), "~undo")  # begins no tenant's name
    return replace(settings, runtimes=replace(settings.runtimes, undo_folder=undo_folder))
