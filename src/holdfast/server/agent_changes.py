"""Changes of the agents of a host's conversations: another agent, other tools, other secrets."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast import errors
from holdfast.object_struct import ObjectStruct
from holdfast.server import forms, shapes
from holdfast.server.agents import AgentParts, Agents, BuiltAgent
from holdfast.server.keyed_locks import KeyedLocks
from holdfast.server.other_servers import OtherServers
from holdfast.server.records import ConversationRecord, Records
from holdfast.server.scheduler import Scheduler
from holdfast.tools.secrets import Secret, Secrets

if TYPE_CHECKING:
    from holdfast.server.local_conversation import OpenConversation


class AgentChanges(ObjectStruct):
    """Replaces the parts of conversations' agents. Thread-safe; blocking. See `Host` for the
    errors. `locks` are those of agents, by store id."""

    _records: Records
    _agents: Agents
    _scheduler: Scheduler
    _others: OtherServers | None
    _locks: KeyedLocks

    def set_tools(
        self, tenant: str, id: str, request: shapes.ToolsRequest
    ) -> shapes.CreatedConversation:
        """Replace the conversation's tools. The change takes effect with the model's next
        answer, also during a run."""
        tools, modules = request.tools, request.tool_module_qualnames
        with self._open_for_change(tenant, id) as (record, live):
            stored_parts = self._agents.stored_parts(record)
            form = forms.with_tools(stored_parts.form, [tool.name for tool in tools])
            options = replace(record.options, modules=modules, client_tools=request.client_tools)
            parts = self._agents.requested_parts(tenant, form, stored_parts.secrets, tools, options)
            return self._replace(live, record, parts, live.set_tools)

    def use(self, tenant: str, id: str, request: shapes.AgentRequest) -> shapes.CreatedConversation:
        """Replace the conversation's agent from its next step on. The new agent gets only the
        secrets of the request, because it could send those of the present agent anywhere. The
        conversation's own secrets stay."""
        options = {"modules": request.tool_module_qualnames, "client_tools": request.client_tools}
        with self._open_for_change(tenant, id) as (record, live):
            own_secrets = forms.conversation_secrets(self._agents.stored_parts(record).secrets)
            parts = self._agents.requested_parts(
                tenant,
                request.agent,
                forms.agent_secrets(request.secrets),
                request.tools,
                replace(record.options, **options),
            )
            parts = parts._replace(secrets={**parts.secrets, **own_secrets})
            if not record.workspace and self._agents.needs_runtime(parts):
                raise errors.ConfigurationError(
                    "The agent has tools that need a workspace, and this conversation has none."
                    " Fork the conversation with a workspace."
                )
            created = self._replace(live, record, parts, live.use)
        self._scheduler.wake(record.store_id)
        return created

    def set_secrets(
        self, tenant: str, id: str, request: shapes.SecretsRequest
    ) -> shapes.SecretNames:
        """Replace the secrets that the conversation's commands and tools may use, from its next
        call on."""
        own = {
            name: Secret(secret)
            if isinstance(secret, str)
            else Secret(secret.value, secret.description)
            for name, secret in request.secrets.items()
        }
        Secrets(own)  # checks names and values
        with self._open_for_change(tenant, id) as (record, live):
            record, built = self._agents.set_secrets(record, own)
            live.set_secrets(record, built)
            with live.run_lock:
                live.record = replace(live.record, secrets=record.secrets)
        return self.secret_names(tenant, id)

    def secret_names(self, tenant: str, id: str) -> shapes.SecretNames:
        """Return the names and descriptions of the conversation's secrets."""
        own = forms.own_secrets(self._agents.stored_parts(self._records.find(tenant, id)).secrets)
        return shapes.SecretNames(
            secrets={name: secret.description for name, secret in sorted(own.items())}
        )

    def _replace(
        self,
        live: OpenConversation,
        record: ConversationRecord,
        parts: AgentParts,
        change: Callable[[ConversationRecord, BuiltAgent], None],
    ) -> shapes.CreatedConversation:
        """Store the parts of an agent, and `change` the open conversation accordingly."""
        record, built = self._agents.replace(record, parts)
        change(record, built)
        with live.run_lock:
            live.record = replace(record, driven=live.record.driven)
        return built.created(record, live.status.value)

    @contextmanager
    def _open_for_change(
        self, tenant: str, id: str
    ) -> Generator[tuple[ConversationRecord, OpenConversation]]:
        """Yield the record and the open conversation for one change of its stored agent. Changes
        come one after the other, since each reads and rewrites the stored agent."""
        place = self._records.find(tenant, id).store_id
        with self._locks.hold(place), self._scheduler.conversations.use(place) as live:
            yield self._records.find(tenant, id), live
            if self._others is not None:
                self._others.notify_change(self._records.find(tenant, id))
