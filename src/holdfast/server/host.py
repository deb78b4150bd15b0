"""`Host`: the conversations of many clients over one store. Conversations are opened when
needed, driven by a pool of threads, and parked when idle."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from holdfast import commands as cmd
from holdfast import errors
from holdfast import events as ev
from holdfast.conversation import Conversation, ConversationState
from holdfast.conversation.journal import utc_now
from holdfast.conversation.observer import Observing, observers
from holdfast.conversation.outputs import whole
from holdfast.conversation.state import fold
from holdfast.conversation.timers import timers_in
from holdfast.server import forms, records, shapes
from holdfast.server.agents import Agents, BuiltAgent, encode
from holdfast.server.chats import Chats
from holdfast.server.claims import Claims
from holdfast.server.database import SameFile
from holdfast.server.decisions import (
    about_call,
    call_key,
    check_answer,
    concerned_calls,
    decidable_calls,
    decision_form,
)
from holdfast.server.deliveries import Sending
from holdfast.server.descendants import Descendants
from holdfast.server.feed import Feed, Feeds
from holdfast.server.idempotent_commands import Call, IdempotentCommands, refusing
from holdfast.server.keyed_locks import KeyedLocks
from holdfast.server.limits import Bounds, checked_id
from holdfast.server.listings import ListingFilter, Listings
from holdfast.server.named_leases import NamedLeases
from holdfast.server.named_parts import NamedParts, OfferedModel
from holdfast.server.notifying_store import NotifyingStore
from holdfast.server.other_servers import OtherServers, shared_store
from holdfast.server.records import Records
from holdfast.server.run_starts import RunStarts
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.scheduler import Scheduler
from holdfast.server.webhook_service import WebhookService
from holdfast.server.worker_observations import WorkerObservations
from holdfast.server.workers.deaths import Deaths
from holdfast.server.workspaces import Workspaces
from holdfast.store import SQLiteStore, Store
from holdfast.timers import Timer
from holdfast.tools.secrets import Secret, Secrets
from holdfast.tools.sources import SourceHealth

if TYPE_CHECKING:
    from holdfast.content import ToolResult
    from holdfast.events import AnyEvent
    from holdfast.runtime.folder import FolderRuntime
    from holdfast.server.local_conversation import OpenConversation
    from holdfast.server.policy import Policy
    from holdfast.server.workers.worker_conversation import Patience
    from holdfast.server.workers.worker_pool import WorkerPool

_log = logging.getLogger("holdfast")

DEFAULT = records.DEFAULT
T = TypeVar("T")

_SHARED_IDLE_SECONDS = 2.0  # an unused conversation is left to the other servers after this time
_MAX_PAGE = 1000  # conversations or events in one answer
# `Host.list` hides the builtin `list` in annotations of later methods, hence these aliases.
_Calls = list[Call]
_Healths = list[SourceHealth]


class Host:
    """The conversations, workspaces and webhooks of all tenants over one store.

    All methods block, are thread-safe, and take the tenant first. An object of another tenant
    raises `ConversationNotFound`. An id or idempotency key that is in use for something else raises
    `Conflict`, an exceeded bound `TooMany`, invalid input `ConfigurationError`. The host owns the
    store and the records: `shutdown` closes them.

    Args:
        store: Holds the journals.
        records: Holds the server's own data about conversations.
        policy: Decides which modules clients may have imported.
        root: Workspaces are created below this folder. None: there are none.
        folders: Existing folders that are workspaces too, by tenant and id.
        runtimes: The kind of runtime that workspaces have.
        variables: The values of `${NAME}` in agents. Other tenants than the default one may use
            them only for models of known providers.
        max_running: The number of conversations that run at once.
        idle: Seconds after which an unused conversation or workspace is closed.
        claim_timeout: Seconds that a call waits for a client to claim it.
        client_grace: Seconds that a claimed call waits for a client that shows no sign of life.
        bounds: Upper bounds.
        clock: Returns monotonic seconds.
        now: Returns the time of day with a zone, by which timers are due.
        isolation: "process" runs each open conversation in a process of its own.
        worker_memory: The limit of such a process's address space in MB (0: none).
        patience: How long the server waits for such a process before it ends it.
        observer: Follows all conversations (see `holdfast.observe`).
        sending: How webhooks are sent.
        drives: False leaves driving conversations to the other servers of a shared store.
        models: The models that agents of all tenants may name.
    """

    def __init__(
        self,
        store: Store,
        records: Records,
        *,
        policy: Policy,
        root: Path | None,
        folders: Mapping[tuple[str, str], Path] | None = None,
        runtimes: WorkspaceRuntimes = WorkspaceRuntimes(),
        variables: Mapping[str, str] | None = None,
        max_running: int = 64,
        idle: float = 600.0,
        claim_timeout: float = 600.0,
        client_grace: float = 30.0,
        bounds: Bounds | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        isolation: Literal["thread", "process"] = "thread",
        worker_memory: int = 0,
        patience: Patience | None = None,
        observer: Observing = None,
        sending: Sending | None = None,
        drives: bool = True,
        models: Mapping[str, OfferedModel] | None = None,
    ) -> None:
        if max_running < 1:
            raise errors.ConfigurationError(
                f"max_running takes a number above 0, not {max_running!r}."
            )
        if isolation not in ("thread", "process"):
            raise errors.ConfigurationError(
                f"isolation takes 'thread' or 'process', not {isolation!r}."
            )
        self.bounds = bounds = bounds or Bounds()
        if bounds.open < 2 * max_running:
            raise errors.ConfigurationError(
                f"Bounds: open takes at least twice max_running ({max_running}), not {bounds.open}."
            )
        known, isolated = dict(variables or {}), isolation == "process"
        self._records = records
        self._idempotent = IdempotentCommands(records)
        shared = shared_store(store) if records.shared else None
        self._feeds = Feeds(store.read, shared, self._exists)
        self.observers = observers("Host: observer", observer)
        watches = self.observers and isolated
        self._elsewhere = WorkerObservations(self.observers, store) if watches else None
        self._store = NotifyingStore(
            store,
            self._appended,
            lambda gone: self.webhooks.forget(gone),
            records.recorded,
            None if shared is None else self._posted,
        )
        self._others = None if shared is None else OtherServers(store, records)
        self._leases = None if shared is None else NamedLeases(records)
        self._clients: dict[tuple[str, str], float] = {}  # when another server was told, by client
        self._client_grace = client_grace
        self._clock = clock
        if records.shared:
            idle = min(idle, _SHARED_IDLE_SECONDS)
        self._file = SameFile(store.path, "The store") if isinstance(store, SQLiteStore) else None
        if root is not None:  # "~" begins no tenant's name
            undo_folder = os.path.join(os.path.realpath(root), "~undo")
            runtimes = msgspec.structs.replace(runtimes, undo_folder=undo_folder)
        self.workspaces = Workspaces(root, bounds, idle, clock, folders or {}, runtimes)
        records.own()
        deaths = Deaths()
        self._workers: WorkerPool | None = None
        if isolated:
            from holdfast.server.workers.worker_pool import WorkerPool  # for start-up time

            self._workers = WorkerPool(
                self._store, policy, known, deaths, worker_memory, patience, runtimes
            )
        self.named = NamedParts(records, models or {}, bounds.named, known)
        self._agents = Agents(
            self._store,
            records,
            self.workspaces,
            self._feeds,
            policy,
            known,
            bounds,
            self._workers,
            self.observers,
            self._elsewhere,
            self.named,
        )
        self.claims = Claims(claim_timeout, client_grace, clock)
        self._scheduler = Scheduler(
            self._store,
            records,
            self._agents.open,
            self.workspaces,
            self.claims,
            max_running,
            bounds.open,
            idle,
            clock,
            deaths,
            now,
            self._refit,
            drives,
            self._heard,
            lambda: self.webhooks.tend(),
            None if shared is None or not drives else shared.unattended,
        )
        self.now = now
        self.family = Descendants(self._store, records)
        self.chats = Chats(
            self._store,
            records,
            self._agents,
            self._scheduler.conversations,
            self.delete,
            self._leases,
        )
        self.webhooks = WebhookService(
            store, records, self.family, sending, bounds.webhooks, self._leases
        )
        self.runs = RunStarts(records, self._scheduler, self._others, not isolated)
        # Of the agents of conversations, by store id.
        self._changes = KeyedLocks("agent", self._leases)
        self._forking, self._lock, self._closed = threading.Lock(), threading.Lock(), False
        self._finish_interrupted()
        if not records.shared:  # otherwise their clients may be those of other servers
            self.chats.pause()
        self.webhooks.settle()

    # --- create, list and remove ---

    def create(
        self, tenant: str, request: shapes.CreateRequest, key: str = "", chat: bytes | None = None
    ) -> shapes.CreatedConversation:
        """Create a conversation without opening it. A repeated request under the same `key`
        returns the same answer. A `chat` has this setting, and the caller begins a run next."""
        checked_id(tenant, "tenant")
        digest = self._digest("create", request)
        if (known := self._answered(tenant, key, digest)) is not None:
            return known
        id = _id(request.id)
        labels = _labels(request)
        options = records.ConversationOptions.requested(request)
        wanted = self._agents.requested_parts(
            tenant, request.agent, request.secrets, request.tools, options
        )
        if request.workspace:
            self.workspaces.check(tenant, request.workspace)
        workspace, own = request.workspace, False
        if not workspace and self._agents.needs_runtime(wanted):
            workspace, own = self.workspaces.create(tenant), True
        try:
            built = self._agents.build(wanted, workspace)  # reports an invalid agent now
            if options.undo:
                self.workspaces.check_undo(tenant, workspace)
            self._check_free(tenant, id)
            new = self._agents.new_record(id, wanted, built, workspace, own)
            new = msgspec.structs.replace(new, driven=records.IDLE if chat is None else records.RUN)
            self.check()
            made, most = encode(built.created(new)), self.bounds.conversations
            if labels is None:
                also = None if chat is None else self.chats.rows.insertion(tenant, id, chat)
                found = self._records.add(new, made, key, digest, most, also)
                self._agents.keep(new, wanted, built)
            else:
                found = self._add_labelled(new, built, labels, (made, key, digest))
            answer = msgspec.json.decode(found, type=shapes.CreatedConversation)
        except BaseException:
            if own:
                self._forget_workspace(tenant, workspace)
            raise
        if own and answer.workspace != workspace:  # another request with the same key was first
            self._forget_workspace(tenant, workspace)
        return answer

    def _add_labelled(
        self,
        new: records.NewRecord,
        built: BuiltAgent,
        labels: cmd.Label,
        answer: tuple[bytes, str, bytes],
    ) -> bytes:
        """Add a conversation whose journal begins with a title or tags. Return the valid one of
        the answer under its key and digest, as `Records.add` does."""
        place = records.store_id(new.tenant, new.id)
        new = msgspec.structs.replace(new, state="making")
        made, key, digest = answer
        with self._forking:  # as for a fork
            if (known := self._records.find_answer(new.tenant, key, digest)) is not None:
                return known
            self._check_free(new.tenant, new.id)
            with self._making(new):
                conversation = Conversation(built.agent, self._store, place)
                conversation.hosting.execute(labels)
                conversation.close()
                valid = self._records.mark_complete(new.tenant, new.id, made, key, digest)
                if valid != made:  # another server was first
                    self._remove_half(new.tenant, new.id)
                    return valid
                self.webhooks.look(place)
        return made

    @contextmanager
    def _making(self, new: records.NewRecord) -> Generator[None]:
        """Add a record in the state `making` for the time of the block, which makes the journal: a
        conversation is in two files. If the block raises, both are removed."""
        self._records.add(new, b"", "", b"", self.bounds.conversations)
        try:
            yield
        except BaseException:
            self._remove_half(new.tenant, new.id)
            raise

    def fork(
        self, tenant: str, id: str, request: shapes.ForkRequest, key: str = ""
    ) -> shapes.CreatedConversation:
        """Create a conversation that begins with another's events. Settings that the request
        omits are those of the original conversation."""
        record = self._records.find(tenant, id)
        digest = self._digest(f"fork {id}", request)
        if (known := self._answered(tenant, key, digest)) is not None:
            return known
        new_id = _id(request.id)
        place = records.store_id(tenant, new_id)
        kept = self._agents.stored_parts(record)
        options, modules = record.options, request.tool_module_qualnames
        if modules is not None:
            options = msgspec.structs.replace(options, modules=modules)
        if request.client_tools is not None:
            options = msgspec.structs.replace(options, client_tools=request.client_tools)
        form, secrets = kept.form, kept.secrets
        if request.agent is not None:
            # A different agent gets only secrets from this request, because it could send the
            # original ones anywhere.
            form, secrets = request.agent, {}
        if request.secrets is not None:
            own = {} if request.agent is not None else forms.conversation_secrets(kept.secrets)
            secrets = forms.agent_secrets(request.secrets) | own
        tools = kept.tools if request.tools is None else request.tools
        if request.tools is not None and request.agent is None:
            form = forms.with_tools(form, [tool.name for tool in request.tools])
        wanted = self._agents.requested_parts(tenant, form, secrets, tools, options)
        workspace, own = record.workspace, record.own_workspace
        if request.workspace is not None:
            workspace, own = request.workspace, False
            if workspace:
                self.workspaces.check(tenant, workspace)
        built = self._agents.build(wanted, workspace)
        new = self._agents.new_record(new_id, wanted, built, workspace, own)
        new = msgspec.structs.replace(new, state="making")
        with self._forking:  # a fork changes two files
            if (known := self._answered(tenant, key, digest)) is not None:
                return known
            self._check_free(tenant, new_id)
            with self._making(new):
                # A fork takes no lease of either conversation; it only reads the original.
                original = Conversation(
                    built.agent, self._store, record.store_id, secrets=built.secrets
                )
                forked = original.fork(request.seq, id=place, title=request.title)
                created = built.created(new, forked.status.value)
                forked.close()
                made = encode(created)
                valid = self._records.mark_complete(tenant, new_id, made, key, digest)
                if valid != made:  # another server was first
                    self._remove_half(tenant, new_id)
                    return msgspec.json.decode(valid, type=shapes.CreatedConversation)
                self.webhooks.look(place)
        return created

    def rewind(
        self, tenant: str, id: str, request: shapes.RewindRequest, key: str = ""
    ) -> shapes.RewoundConversation:
        """Fork a conversation, and put the files of its workspace back to their content of that
        time, like `Conversation.rewind`. A repeated request under the same `key` makes no second
        fork."""
        record, kind = self._records.find(tenant, id), shapes.RewoundConversation
        name, digest = f"\nrewind\n{key}" if key else "", self._digest(f"rewind {id}", request)
        if (known := self._records.find_answer(tenant, name, digest)) is not None:
            return msgspec.json.decode(known, type=kind)
        if not record.options.undo:
            raise errors.ConfigurationError(
                "rewind: this conversation keeps no snapshots of files. Create it with undo, or use"
                " fork, which leaves files alone."
            )
        self._use_here(record, lambda live: live.check_rests())
        forked = self.fork(tenant, id, shapes.ForkRequest(seq=request.seq, id=request.id), key)
        try:
            files = self._use_here(record, lambda live: live.put_back(request.seq))
        except BaseException:
            if not key:  # else a repetition tries again
                with suppress(errors.HoldfastError):
                    self.delete(tenant, forked.id)
            raise
        found = kind(conversation=forked, files=files)
        if key:
            self._records.store_answer(tenant, name, digest, encode(found))
        return found

    def write_title(self, tenant: str, id: str) -> str:
        """Write a title from the first message, like `Conversation.write_title`; return it."""
        return self._use_here(self._records.find(tenant, id), lambda live: live.write_title())

    def _use_here(
        self, record: records.ConversationRecord, work: Callable[[OpenConversation], T]
    ) -> T:
        """Return the result of `work`, once no other server has the conversation open. Raises
        `LeaseHeld` if that takes too long."""
        try:
            return self._scheduler.use(record, work)
        except errors.LeaseHeld:
            if self._others is None:
                raise
        return self._others.until_free(record.store_id, lambda: self._scheduler.use(record, work))

    def _remove_half(self, tenant: str, id: str) -> None:
        """Remove a fork that is not complete."""
        for half in self._records.interrupted(all=True):
            if (half.tenant, half.id, half.state) == (tenant, id, "making"):
                self._remove(half)

    def begin_with(self, tenant: str, id: str, state: ConversationState) -> str:
        """Let a conversation without events continue from a state, like `Conversation.from_state`.
        Return the status. Repeating it has no effect. Raises `Conflict` if the conversation has
        other events."""
        record = self._records.find(tenant, id)
        ids = [event.id for event in state.events]
        existing = self._store.read(record.store_id, 0, len(ids) or 1)
        if existing:
            if [event.id for event in existing] != ids:
                raise errors.Conflict(f"Conversation {id!r} already has events. Use another id.")
            return self.status(tenant, id)
        built = self._agents.build(self._agents.stored_parts(record), record.workspace)
        try:
            Conversation.from_state(
                state, built.agent, self._store, record.store_id, secrets=built.secrets
            ).close()
        except errors.HoldfastError:
            raise
        except Exception as error:  # valid events can still contradict each other
            with suppress(errors.HoldfastError):
                self._store.delete(record.store_id)
            raise errors.ConfigurationError(
                f"A conversation cannot continue from this state: {type(error).__name__}: {error}."
            ) from error
        return self.status(tenant, id)

    def list(
        self,
        tenant: str,
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        tags: Sequence[str] = (),
    ) -> shapes.Page:
        """Return a page of conversations, newest first, optionally only those with `status` and
        with all of these tags. `cursor` is the `next` of the page before."""
        return Listings(self._store, self._records).page(
            tenant, ListingFilter(status, tags), cursor, limit
        )

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

    def delete(self, tenant: str, id: str) -> None:
        """Remove a conversation, cutting off its work. Raises `LeaseHeld` if another process drives
        it."""
        record = self._records.find(tenant, id)
        self._records.set_state(record, "going")  # prevents that it is opened again
        self._scheduler.cut_off(record.store_id)
        try:
            if self._others is None:
                self._remove(record)
            else:  # the server that drives it notices the state
                self._others.until_free(record.store_id, lambda: self._remove(record))
        except errors.LeaseHeld:
            self._records.set_state(record, "")
            raise

    def _remove(self, record: records.ConversationRecord) -> None:
        self.family.remove(record.store_id)
        with suppress(errors.ConversationNotFound):
            self._store.delete(record.store_id)
        self.webhooks.forget(record.store_id)
        self.chats.rows.forget(record.tenant, record.id)
        self._records.remove(record)
        self._scheduler.forget(record)
        self._feeds.end(record.store_id)
        if record.own_workspace and not self._records.users_of(record.tenant, record.workspace):
            self._forget_workspace(record.tenant, record.workspace)

    def set_tools(
        self, tenant: str, id: str, request: shapes.ToolsRequest
    ) -> shapes.CreatedConversation:
        """Replace the conversation's tools. The change takes effect with the model's next
        answer, also during a run."""
        tools, modules = request.tools, request.tool_module_qualnames
        with self._changing(tenant, id) as (record, live):
            kept = self._agents.stored_parts(record)
            form = forms.with_tools(kept.form, [tool.name for tool in tools])
            options = msgspec.structs.replace(
                record.options, modules=modules, client_tools=request.client_tools
            )
            wanted = self._agents.requested_parts(tenant, form, kept.secrets, tools, options)
            record, built = self._agents.replace(record, wanted)
            live.set_tools(record, built)
            with live.run_lock:
                live.record = msgspec.structs.replace(record, driven=live.record.driven)
            status = live.status.value
        return built.created(record, status)

    def use(self, tenant: str, id: str, request: shapes.AgentRequest) -> shapes.CreatedConversation:
        """Replace the conversation's agent from its next step on. It gets the secrets of the
        request alone, because it could send those of the present agent anywhere; the
        conversation's own secrets stay."""
        options = {"modules": request.tool_module_qualnames, "client_tools": request.client_tools}
        with self._changing(tenant, id) as (record, live):
            kept = forms.conversation_secrets(self._agents.stored_parts(record).secrets)
            wanted = self._agents.requested_parts(
                tenant,
                request.agent,
                forms.agent_secrets(request.secrets),
                request.tools,
                msgspec.structs.replace(record.options, **options),
            )
            wanted = wanted._replace(secrets={**wanted.secrets, **kept})
            if not record.workspace and self._agents.needs_runtime(wanted):
                raise errors.ConfigurationError(
                    "The agent has tools that need a workspace, and this conversation has none."
                    " Fork the conversation with a workspace."
                )
            record, built = self._agents.replace(record, wanted)
            live.use(record, built)
            with live.run_lock:
                live.record = msgspec.structs.replace(record, driven=live.record.driven)
            status = live.status.value
        self._scheduler.wake(record.store_id)
        return built.created(record, status)

    def set_secrets(
        self, tenant: str, id: str, request: shapes.SecretsRequest
    ) -> shapes.SecretNames:
        """Replace the secrets that the conversation's commands and tools may use, from its next
        call on."""
        own = {
            name: Secret(given)
            if isinstance(given, str)
            else Secret(given.value, given.description)
            for name, given in request.secrets.items()
        }
        Secrets(own)  # checks names and values
        with self._changing(tenant, id) as (record, live):
            record, built = self._agents.set_secrets(record, own)
            live.set_secrets(record, built)
            with live.run_lock:
                live.record = msgspec.structs.replace(live.record, secrets=record.secrets)
        return self.secret_names(tenant, id)

    @contextmanager
    def _changing(
        self, tenant: str, id: str
    ) -> Generator[tuple[records.ConversationRecord, OpenConversation]]:
        """Yield the record and the open conversation for one change of its stored agent. Changes
        come one after the other, since each reads what is stored, and writes it anew."""
        place = self._records.find(tenant, id).store_id
        with self._changes.hold(place), self._scheduler.conversations.use(place) as live:
            yield self._records.find(tenant, id), live
            if self._others is not None:
                self._others.changed(self._records.find(tenant, id))

    def _refit(self, live: OpenConversation, record: records.ConversationRecord) -> None:
        """Give an open conversation the tools and secrets that another server has recorded."""
        known = live.record
        if (known.agent, known.tools, known.secrets) == (
            record.agent,
            record.tools,
            record.secrets,
        ):
            return
        built = self._agents.build(self._agents.stored_parts(record), record.workspace)
        if (known.agent, known.tools) != (record.agent, record.tools):
            live.set_tools(record, built)
        if known.secrets != record.secrets:
            live.set_secrets(record, built)

    def secret_names(self, tenant: str, id: str) -> shapes.SecretNames:
        """Return the names and descriptions of the conversation's secrets."""
        own = forms.own_secrets(self._agents.stored_parts(self._records.find(tenant, id)).secrets)
        return shapes.SecretNames(
            secrets={name: secret.description for name, secret in sorted(own.items())}
        )

    def set_model(self, tenant: str, name: str, form: object) -> None:
        """Keep a model of a tenant's own under a name. Raises `ConfigurationError` if no agent can
        be built with it."""
        agent: dict[str, object] = {"model": form}
        options = records.ConversationOptions()
        forms.check_unnamed(agent)
        self._agents.build(self._agents.requested_parts(tenant, agent, {}, [], options), "")
        self.named.set_model(tenant, name, form)

    # --- requests to one conversation ---

    def _posted(self, place: str) -> None:
        self._scheduler.wake(place)

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

    def execute(self, tenant: str, id: str, command: cmd.Command, key: str | None = None) -> None:
        """Execute a command in a conversation, once per `key`.

        An `Approve` or `Reject` with an empty call id is about all calls that wait now, and an
        `Approve` with an empty hash about the call's present arguments. Repeated under its key it
        is about the same calls.

        Raises `ConfigurationError` if the command is invalid, `ToolValidationError` if arguments
        do not match the tool's schema, and `Conflict` if the key was used for another command.
        """
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            self._post_to_child(tenant, id, command, key)
            return
        if not isinstance(command, cmd.Approve | cmd.Reject):
            self._idempotent.once(
                record, key, command, lambda _: self._execute(record, command, key)
            )
            return

        def pending() -> _Calls:
            lacks_hash = isinstance(command, cmd.Approve) and not command.arguments_hash
            if command.call_id and not lacks_hash:
                return [(command.call_id, "")]
            if self._others is not None:
                waiting = self._waiting(record.store_id)
            else:
                waiting = self._scheduler.use(record, lambda live: live.pending_confirmations())
            with refusing():
                return concerned_calls(command, waiting) or [(command.call_id, "")]

        def decide(calls: Sequence[Call]) -> None:
            for call, hash in calls:
                self._execute(record, about_call(command, call, hash), call_key(key, call))

        self._idempotent.once(record, key, decision_form(command), decide, pending)

    def _post_to_child(self, tenant: str, id: str, command: cmd.Command, key: str | None) -> None:
        """Post a decision or an answer to a spawned conversation, once per `key`, for the process
        that drives it. As the command is only posted, this is the last chance to report an
        error."""
        summary, owner = self.family.child_and_owner(tenant, id)
        child = summary.id
        if isinstance(command, cmd.Answer):
            answer = command

            def post(_: _Calls) -> None:
                with refusing():
                    check_answer(fold(self._store.tail(child)), answer)
                self._store.post(child, answer, key)

            self._idempotent.once(owner, key, answer, post, child=child)
            return
        if not isinstance(command, cmd.Approve | cmd.Reject):
            raise errors.ConfigurationError(
                f"Conversation {id!r} was spawned by a call. Send this command to its parent"
                " conversation."
            )

        def pending() -> _Calls:
            waiting = self._waiting(child)
            with refusing():
                return decidable_calls(command, waiting)

        def decide(calls: Sequence[Call]) -> None:
            for call, hash in calls:
                self._store.post(child, about_call(command, call, hash), call_key(key, call))

        self._idempotent.once(owner, key, decision_form(command), decide, pending, child)

    def _waiting(self, id: str) -> _Calls:
        """Return the calls that wait for a decision by the journal of a conversation that is not
        open here."""
        return [
            (one.call.id, one.call.arguments_hash)
            for one in fold(self._store.tail(id)).open.values()
            if one.ask_reason is not None
        ]

    def _execute(
        self, record: records.ConversationRecord, command: cmd.Command, key: str | None
    ) -> None:
        if key is None and (self._workers is not None or self._others is not None):
            # If the command kills the worker, a new worker must not execute it twice.
            key = os.urandom(16).hex()

        def work(live: OpenConversation) -> None:
            with refusing():
                live.execute(command, key)
            self._scheduler.update_offers(live)
            if live.has_work:
                self._scheduler.wake(record.store_id)

        def here() -> None:
            self._scheduler.use(record, work)

        try:
            here()
        except errors.LeaseHeld:
            if self._others is None or key is None:
                raise
            self._others.execute(record, command, key, here)

    def start(self, tenant: str, id: str) -> str:
        """Drive the conversation from now on whenever it has work, also after a restart of the
        server. Return the status. Idempotent."""
        begun = self.runs.begin(tenant, id, hosted=True)
        return self.status(tenant, id) if begun is None else begun.status

    def run(self, tenant: str, id: str) -> str:
        """Drive the conversation until it rests, continuing after a pause or an error like
        `Conversation.run`. Return the status without waiting for the run."""
        begun = self.runs.begin(tenant, id)
        return self.status(tenant, id) if begun is None else begun.status

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
                live.record = msgspec.structs.replace(live.record, driven=record.driven)
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

    def seen(self, tenant: str, client: str) -> None:
        """Note that a client is alive, for the claims of its calls on any server."""
        self.claims.seen(tenant, client)
        if self._leases is not None:
            now, known = self._clock(), self._clients.get((tenant, client))
            if known is None or now - known >= self._client_grace / 4:
                if len(self._clients) > 10_000:
                    self._clients.clear()
                self._clients[tenant, client] = now
                self._leases.seize(f"client {tenant}/{client}", self._client_grace)

    def _heard(self, tenant: str, client: str) -> bool:
        """Return True if another server has heard from a client lately."""
        return self._leases is not None and self._leases.held(f"client {tenant}/{client}")

    def status(self, tenant: str, id: str) -> str:
        found = self._store.list([self.family.place(tenant, id)])
        return found[0].status if found else "idle"

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

    def services(self, tenant: str, id: str) -> _Healths | None:
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

    def _forget_workspace(self, tenant: str, id: str) -> None:
        with suppress(errors.HoldfastError, OSError):
            self.workspaces.delete(tenant, id)

    # --- helpers ---

    def _digest(self, what: str, request: object) -> bytes:
        encoded = msgspec.json.encode(request, order="deterministic")
        return self._records.seal.digest(what.encode() + b"\n" + encoded)

    def _answered(self, tenant: str, key: str, digest: bytes) -> shapes.CreatedConversation | None:
        found = self._records.find_answer(tenant, key, digest)
        kind = shapes.CreatedConversation
        return None if found is None else msgspec.json.decode(found, type=kind)

    def _check_free(self, tenant: str, id: str) -> None:
        if self._store.list([records.store_id(tenant, id)]):
            raise errors.Conflict(f"Conversation {id!r} already exists. Use another id.")

    # --- recovery, timer and shutdown ---

    def recover(self) -> None:
        """Continue, in the background, the last process's conversations and those with new
        commands."""
        self._scheduler.recover()
        self.webhooks.recover()

    def tend(self) -> None:
        """Do the timer's periodic work; see `Scheduler.tend`."""
        self._scheduler.tend()

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

    def _finish_interrupted(self) -> None:
        """Finish the half-done work of a process that died: remove forks without a journal and
        conversations whose removal was interrupted."""
        for record in self._records.interrupted():
            try:
                self._remove(record)
            except errors.StoreError as error:
                _log.warning(
                    "conversation %s, whose creation or removal was interrupted, could not be"
                    " removed: %s",
                    record.store_id,
                    error,
                )

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


# --- helpers ---


def _labels(request: shapes.CreateRequest) -> cmd.Label | None:
    """Return the command that sets a new conversation's title and tags, or None. Raises
    `ConfigurationError`."""
    given = request.title is not None or request.tags
    return cmd.Label(request.title, add=request.tags) if given else None


def _id(given: str) -> str:
    return checked_id(given, "id") if given else os.urandom(16).hex()
