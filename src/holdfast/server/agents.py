"""The agents of conversations: checks clients' requests, stores agents' forms, and builds the
agent when a conversation is opened."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.serial_form import RUNTIME, ToolForm
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.object_struct import ObjectStruct
from holdfast.runtime import LocalRuntime
from holdfast.server import forms
from holdfast.server.feed import Feeds
from holdfast.server.host_settings import HostSettings
from holdfast.server.local_conversation import LocalConversation
from holdfast.server.named_parts import NamedParts
from holdfast.server.policy import Policy, check_agent, runs_commands
from holdfast.server.records import (
    DEFAULT,
    ConversationOptions,
    ConversationRecord,
    NewRecord,
    Records,
    place_of,
    store_id,
)
from holdfast.server.shapes import CreatedConversation, ToolStanding
from holdfast.server.tool_resolution import import_parts, resolve_tools
from holdfast.server.workspaces import Workspaces
from holdfast.tools.secrets import Secret, Secrets

if TYPE_CHECKING:
    from holdfast.conversation.observer import Observer
    from holdfast.server.local_conversation import OpenConversation
    from holdfast.server.worker_observations import WorkerObservations
    from holdfast.server.workers.worker_pool import WorkerPool
    from holdfast.store import Store
    from holdfast.tools import Tool

_log = logging.getLogger("holdfast")


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return msgspec.json.encode(value)


class AgentParts(NamedTuple):
    """The parts from which an agent is built."""

    tenant: str
    form: dict[str, Any]
    secrets: Mapping[str, str]
    tools: Sequence[ToolForm]
    options: ConversationOptions

    def __repr__(self) -> str:
        return f"Wanted({self.tenant!r})"


class ToolRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored description of a conversation's tools: the client's declarations and where each
    runs."""

    forms: list[ToolForm] = []
    standings: list[ToolStanding] = []
    warnings: list[str] = []


class BuiltAgent(NamedTuple):
    """An agent, its tools by name, the place where each tool runs, and warnings about the parts
    that could not be built as requested."""

    agent: Agent
    tools: dict[str, Tool]
    standings: list[ToolStanding]
    warnings: list[str]
    secrets: Secrets | None = None  # of the conversation
    parts: AgentParts | None = None  # from which it was built in this process

    def created(
        self, record: NewRecord | ConversationRecord, status: str = "idle"
    ) -> CreatedConversation:
        """Return the answer to a request that made or changed a conversation of this agent."""
        return CreatedConversation(
            id=record.id,
            status=status,
            created=record.created,
            workspace=record.workspace,
            tools=self.standings,
            warnings=self.warnings,
        )


def build_agent(
    parts: AgentParts, runtime_tools: Sequence[Tool], policy: Policy, variables: Mapping[str, str]
) -> BuiltAgent:
    """Return the agent of a conversation. Imports modules, so do not call it on an event loop.
    Raises `ConfigurationError` if a key is missing or a part cannot be built."""
    form, known_values = parts.form, dict(variables)
    if parts.tenant != DEFAULT:
        form, known_values = forms.own_variables(form, variables)
    builtins = {tool.name: tool for tool in runtime_tools}
    learned = resolve_tools(
        parts.tools, parts.options.modules, builtins, policy, parts.options.client_tools
    )
    tools: dict[str, Tool] = {}
    standings: list[ToolStanding] = []
    theirs = forms.names_of_others(form)
    for name in [*forms.builtin_names(form), *theirs]:
        # An older client names its builtin tools without declaring them.
        tool = learned.tools.get(name) or builtins.get(name)
        if tool is None:
            raise ConfigurationError(
                f"agent.tools.builtin: {name!r} is neither declared in `tools` nor a builtin tool"
                " of this server."
            )
        tool_standing = learned.standings.get(name) or ToolStanding(name, "server", RUNTIME)
        if name in theirs and tool_standing.executor == "client":
            raise ConfigurationError(
                f"agent: {name!r}, a tool of a delegate or handoff, exists only in the client's"
                " process. Calls of delegates and handoffs run on the server. Declare the tool in"
                " a module that the server may import."
            )
        tools[name] = tool
        standings.append(tool_standing)
    import_parts(form, policy)
    variables = {**known_values, **forms.agent_secrets(parts.secrets)}
    agent = Agent.from_json(msgspec.json.encode(form), variables=variables, builtins=tools)
    own = forms.own_secrets(parts.secrets)
    masked = forms.masked_secrets(parts.secrets)
    secrets = Secrets(own)
    for name, value in masked:
        secrets.mask_from_now_on(name, value)
    any_secrets = secrets if own or masked else None
    return BuiltAgent(agent, tools, standings, learned.warnings, any_secrets, parts)


_MOST_FRESH = 32  # agents that are kept for conversations which are not open yet


class FreshAgent(NamedTuple):
    """An agent that was built for a new conversation, from the parts that are stored of it."""

    stored: AgentParts
    built: BuiltAgent


class FreshAgents(ObjectStruct):
    """The agents that were built for the newest conversations and are not used yet. Thread-safe."""

    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _built: dict[str, tuple[NewRecord, FreshAgent]] = {}

    def put(self, new: NewRecord, fresh: FreshAgent) -> None:
        """Keep an agent in place of the oldest one."""
        with self._lock:
            if len(self._built) >= _MOST_FRESH:
                del self._built[next(iter(self._built))]
            self._built[store_id(new.tenant, new.id)] = new, fresh

    def take(
        self, record: ConversationRecord, digest: Callable[[bytes], bytes]
    ) -> FreshAgent | None:
        """Return the agent of a conversation, once, if its record still says the same. `digest`
        makes the hashes in records."""
        with self._lock:
            new, fresh = self._built.pop(record.store_id, (None, None))
        if new is None or (new.created, new.options) != (record.created, record.options):
            return None
        parts = digest(new.agent), digest(new.tools), new.secrets
        return fresh if parts == (record.agent, record.tools, record.secrets) else None


class Agents(ObjectStruct):
    """Builds agents and opens conversations with them, in this process or in worker
    processes. Thread-safe; blocking."""

    store: Store
    records: Records
    settings: HostSettings
    workspaces: Workspaces
    feeds: Feeds
    workers: WorkerPool | None
    observers: Sequence[Observer]
    elsewhere: WorkerObservations | None
    named_parts: NamedParts
    runtime_tools: list[str] | None = None  # the names of a workspace's tools, once needed
    fresh: FreshAgents = msgspec.field(default_factory=lambda: FreshAgents())

    def open(self, id: str) -> OpenConversation:
        """Open the conversation with this store id. Raises `ConversationNotFound`, and the error
        that prevents its agent from being built."""
        record = self.records.find(*place_of(id))
        record.options.check_needs(record.id)
        tenant, workspace = record.tenant, record.workspace
        runtime, folder = None, ""
        try:
            if workspace and self.workers is not None:
                folder = str(self.workspaces.hold(tenant, workspace))
            elif workspace:
                runtime = self.workspaces.enter(tenant, workspace, record.options.boxed)
        except ConversationNotFound as error:
            raise ConfigurationError(
                f"Conversation {record.id!r} cannot be opened: its workspace {workspace!r} was"
                " deleted."
            ) from error

        def leave() -> None:
            if self.elsewhere is not None:
                self.elsewhere.close(record.store_id)
            if workspace:
                self.workspaces.leave(tenant, workspace)

        def note(kind: str, make: Callable[[], bytes]) -> None:
            self.feeds.note(record.store_id, kind, make)

        try:
            if self.workers is not None:
                if self.elsewhere is not None:
                    self.elsewhere.open(record.store_id)
                return self.workers.open(record, self._opened_parts, folder, note, leave)
            tools = [] if runtime is None else runtime.all_tools
            fresh = self.fresh.take(record, self.records.seal.digest)
            parts = self._resolve(self.stored_parts(record) if fresh is None else fresh.stored)
            if fresh is not None and fresh.built.parts == parts:
                built = fresh.built
            else:
                built = build_agent(parts, tools, self.settings.policy, self.settings.variables)
            for warning in built.warnings:
                _log.warning("conversation %s: %s", record.store_id, warning)
            live = LocalConversation(
                record,
                built,
                self.store,
                runtime,
                note,
                leave,
                self.observers,
                self.workspaces.runtimes.undo if record.options.undo else None,
            )
        except BaseException:
            leave()
            raise
        live.resume(record.driven)
        return live

    def requested_parts(
        self,
        tenant: str,
        form: dict[str, Any],
        secrets: Mapping[str, str],
        tools: Sequence[ToolForm],
        options: ConversationOptions,
    ) -> AgentParts:
        """Return a client's request as an agent's parts. Raises for exceeded bounds and by
        policy."""
        bounds, message = self.settings.bounds, "The request has too much"
        bounds.check("agent_bytes", len(encode(form)), message)
        bounds.check("secrets_bytes", len(encode(secrets)), message)
        bounds.check("tools", max(len(tools), len(options.modules)), message)
        bounds.check("tools_bytes", len(encode(tools)) + len(encode(options.modules)), message)
        forms.check_secrets(forms.agent_secrets(secrets), form)
        approved = self.settings.policy.approved
        hash = approved.hash(form, "requested", options.boxed)
        if hash not in approved:
            check_agent(form, self.settings.policy, programs=not options.boxed)
            approved.add(hash)
        return AgentParts(tenant, form, secrets, tools, options)

    def stored_parts(self, record: ConversationRecord) -> AgentParts:
        """Return the stored parts of a conversation's agent, including later changes."""
        record, agent, declared = self.records.load(record)
        form = msgspec.json.decode(agent, type=dict[str, Any])
        tools = msgspec.json.decode(declared, type=ToolRecord).forms
        secrets: dict[str, str] = {}
        if record.secrets is not None:
            opened = self.records.seal.open(record.secrets, record.store_id)
            secrets = msgspec.json.decode(opened, type=dict[str, str])
        return AgentParts(record.tenant, form, secrets, tools, record.options)

    def _opened_parts(self, record: ConversationRecord) -> AgentParts:
        return self._resolve(self.stored_parts(record))

    def _resolve(self, parts: AgentParts) -> AgentParts:
        """Return parts with the named models and secrets in them. The result is never stored, so
        that a change of a named part reaches each conversation when it is opened next."""
        form, values = self.named_parts.resolve(parts.tenant, parts.form)
        return parts._replace(form=form, secrets={**parts.secrets, **values})

    def stored_tools(self, record: ConversationRecord) -> ToolRecord:
        return msgspec.json.decode(self.records.load(record)[2], type=ToolRecord)

    def new_record(
        self, id: str, parts: AgentParts, built: BuiltAgent, workspace: str, own: bool
    ) -> NewRecord:
        about = store_id(parts.tenant, id)
        return NewRecord(
            tenant=parts.tenant,
            id=id,
            agent=encode(parts.form),
            tools=encode(_tool_record(parts, built)),
            options=parts.options,
            secrets=self.records.seal.seal(encode(parts.secrets), about) if parts.secrets else None,
            workspace=workspace,
            own_workspace=own,
        )

    def keep(self, new: NewRecord, parts: AgentParts, built: BuiltAgent) -> None:
        """Keep the agent that was built for a new conversation until it is opened."""
        if built.parts is not None and not new.workspace:  # whose tools belong to its runtime
            self.fresh.put(new, FreshAgent(parts, built))

    def build(self, parts: AgentParts, workspace: str) -> BuiltAgent:
        """Build an agent to check that it can be built. Raises `ConfigurationError`."""
        if not workspace and runs_commands(parts.form):  # they would run outside of any sandbox
            raise ConfigurationError(
                "The agent's hooks or its judge run commands, which need a workspace. Name one."
            )
        parts, boxed = self._resolve(parts), parts.options.boxed
        if boxed:
            self.workspaces.runtimes.check(boxed)
        if self.workers is not None:
            folder = self.workspaces.check(parts.tenant, workspace) if workspace else ""
            return self.workers.check(parts, str(folder))
        runtime_tools: list[Tool] = []
        if workspace:
            runtime_tools = self.workspaces.enter(parts.tenant, workspace, boxed).all_tools
            self.workspaces.leave(parts.tenant, workspace)
        return build_agent(parts, runtime_tools, self.settings.policy, self.settings.variables)

    def replace(
        self, record: ConversationRecord, parts: AgentParts
    ) -> tuple[ConversationRecord, BuiltAgent]:
        """Replace a conversation's agent and tools in the records."""
        built = self.build(parts, record.workspace)
        form, tools = encode(parts.form), encode(_tool_record(parts, built))
        sealed = self.records.seal.seal(encode(parts.secrets), record.store_id)
        secrets = sealed if parts.secrets else None
        return self.records.set_agent(record, form, tools, parts.options, secrets), built

    def refit(self, live: OpenConversation, record: ConversationRecord) -> None:
        """Give an open conversation the tools and secrets that another server has recorded."""
        old_record = live.record
        new_tools = (old_record.agent, old_record.tools) != (record.agent, record.tools)
        if not new_tools and old_record.secrets == record.secrets:
            return
        built = self.build(self.stored_parts(record), record.workspace)
        if new_tools:
            live.set_tools(record, built)
        if old_record.secrets != record.secrets:
            live.set_secrets(record, built)

    def set_secrets(
        self, record: ConversationRecord, own: Mapping[str, Secret]
    ) -> tuple[ConversationRecord, BuiltAgent]:
        """Replace the conversation's own secrets in the records. Raises `ConfigurationError`."""
        old_parts = self.stored_parts(record)
        parts = old_parts._replace(secrets=forms.with_own_secrets(old_parts.secrets, own))
        self.settings.bounds.check(
            "secrets_bytes", len(encode(parts.secrets)), "The request has too much"
        )
        built = self.build(parts, record.workspace)
        sealed = self.records.seal.seal(encode(parts.secrets), record.store_id)
        return self.records.set_secrets(record, sealed), built

    def needs_runtime(self, parts: AgentParts) -> bool:
        """Return True if one of the tools, or a command of a hook, needs a workspace."""
        if runs_commands(parts.form):
            return True
        names = [*forms.builtin_names(parts.form), *forms.names_of_others(parts.form)]
        if not names:
            return False
        if self.runtime_tools is None:
            with LocalRuntime() as runtime:
                self.runtime_tools = [tool.name for tool in runtime.all_tools]
        modules = parts.options.modules
        elsewhere = {
            tool.name for tool in parts.tools if modules.get(tool.name, tool.module) != RUNTIME
        }
        return any(name in self.runtime_tools and name not in elsewhere for name in names)


def _tool_record(parts: AgentParts, built: BuiltAgent) -> ToolRecord:
    return ToolRecord(list(parts.tools), built.standings, built.warnings)
