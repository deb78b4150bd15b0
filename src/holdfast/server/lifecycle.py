"""Creates, forks and removes the conversations of a host."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import errors
from holdfast.conversation import Conversation, ConversationState
from holdfast.error_text import describe_error
from holdfast.object_struct import ObjectStruct
from holdfast.server import forms, records, shapes
from holdfast.server.agents import Agents, encode
from holdfast.server.chats import ChatRecords
from holdfast.server.descendants import Descendants
from holdfast.server.feed import Feeds
from holdfast.server.limits import Bounds, checked_id
from holdfast.server.other_servers import until_free
from holdfast.server.records import Records
from holdfast.server.scheduler import Scheduler
from holdfast.server.webhook_service import WebhookService
from holdfast.server.workspaces import Workspaces
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.server.local_conversation import OpenConversation

_log = logging.getLogger("holdfast")

T = TypeVar("T")


class Lifecycle(ObjectStruct):
    """The creation and the removal of conversations. Thread-safe; blocking. See `Host` for the
    errors. `check` raises `StoreError` if the file of the store or of the records is gone."""

    _store: Store
    _records: Records
    _agents: Agents
    _workspaces: Workspaces
    _bounds: Bounds
    _scheduler: Scheduler
    _family: Descendants
    _chats: ChatRecords
    _webhooks: WebhookService
    _feeds: Feeds
    _check: Callable[[], None]
    _forking: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def create(
        self, tenant: str, request: shapes.CreateRequest, key: str = "", chat: bytes | None = None
    ) -> shapes.CreatedConversation:
        """Create a conversation without opening it. A repeated request under the same `key`
        returns the same answer. A `chat` has this setting, and the caller begins a run next."""
        checked_id(tenant, "tenant")
        digest = self._digest("create", request)
        if (earlier := self._records.find_answer(tenant, key, digest)) is not None:
            return _decode_answer(earlier)
        id = _id(request.id)
        labels = _labels(request)
        options = records.ConversationOptions.requested(request)
        parts = self._agents.requested_parts(
            tenant, request.agent, request.secrets, request.tools, options
        )
        if request.workspace:
            self._workspaces.check(tenant, request.workspace)
        workspace, own = request.workspace, False
        if not workspace and self._agents.needs_runtime(parts):
            workspace, own = self._workspaces.create(tenant), True
        try:
            built = self._agents.build(parts, workspace)  # reports an invalid agent now
            if options.undo:
                self._workspaces.check_undo(tenant, workspace)
            self._check_free(tenant, id)
            new = self._agents.new_record(id, parts, built, workspace, own)
            new = replace(new, driven=records.IDLE if chat is None else records.RUN)
            self._check()
            body, most = encode(built.created(new)), self._bounds.conversations
            if labels is None:
                also = None if chat is None else self._chats.insertion(tenant, id, chat)
                answer = _decode_answer(self._records.add(new, body, key, digest, most, also))
                self._agents.keep(new, parts, built)
            else:

                def write(place: str) -> bytes:
                    conversation = Conversation(built.agent, self._store, place)
                    conversation.hosting.execute(labels)
                    conversation.close()
                    return body

                answer = self._add_with_journal(new, key, digest, write)
        except BaseException:
            if own:
                self._forget_workspace(tenant, workspace)
            raise
        if own and answer.workspace != workspace:  # another request with the same key was first
            self._forget_workspace(tenant, workspace)
        return answer

    def fork(
        self, tenant: str, id: str, request: shapes.ForkRequest, key: str = ""
    ) -> shapes.CreatedConversation:
        """Create a conversation that begins with another's events. Settings that the request
        omits are those of the original conversation."""
        record = self._records.find(tenant, id)
        digest = self._digest(f"fork {id}", request)
        if (answer := self._records.find_answer(tenant, key, digest)) is not None:
            return _decode_answer(answer)
        new_id = _id(request.id)
        stored = self._agents.stored_parts(record)
        options, modules = record.options, request.tool_module_qualnames
        if modules is not None:
            options = replace(options, modules=modules)
        if request.client_tools is not None:
            options = replace(options, client_tools=request.client_tools)
        form, secrets = stored.form, stored.secrets
        if request.agent is not None:
            # A different agent gets only secrets from this request, because it could send the
            # original ones anywhere.
            form, secrets = request.agent, {}
        if request.secrets is not None:
            own = {} if request.agent is not None else forms.conversation_secrets(stored.secrets)
            secrets = forms.agent_secrets(request.secrets) | own
        tools = stored.tools if request.tools is None else request.tools
        if request.tools is not None and request.agent is None:
            form = forms.with_tools(form, [tool.name for tool in request.tools])
        parts = self._agents.requested_parts(tenant, form, secrets, tools, options)
        workspace, own = record.workspace, record.own_workspace
        if request.workspace is not None:
            workspace, own = request.workspace, False
            if workspace:
                self._workspaces.check(tenant, workspace)
        built = self._agents.build(parts, workspace)
        new = self._agents.new_record(new_id, parts, built, workspace, own)

        def write(place: str) -> bytes:
            # A fork takes no lease of either conversation; it only reads the original.
            original = Conversation(
                built.agent, self._store, record.store_id, secrets=built.secrets
            )
            forked = original.fork(request.seq, id=place, title=request.title)
            answer = encode(built.created(new, forked.status.value))
            forked.close()
            return answer

        return self._add_with_journal(new, key, digest, write)

    def _add_with_journal(
        self, new: records.NewRecord, key: str, digest: bytes, write: Callable[[str], bytes]
    ) -> shapes.CreatedConversation:
        """Add a conversation whose journal begins with events: `write` makes it under its store id,
        and returns the answer to the request. Return the valid answer, as `Records.add` does.

        A conversation is in two files, so that its record says `making` meanwhile. If `write`
        raises, both are removed.
        """
        tenant, id = new.tenant, new.id
        with self._forking:
            if (answer := self._records.find_answer(tenant, key, digest)) is not None:
                return _decode_answer(answer)
            self._check_free(tenant, id)
            new = replace(new, state="making")
            self._records.add(new, b"", "", b"", self._bounds.conversations)
            try:
                body = write(records.store_id(tenant, id))
                valid = self._records.mark_complete(tenant, id, body, key, digest)
                if valid != body:  # another server was first
                    self._remove_half(tenant, id)
                else:
                    self._webhooks.look(records.store_id(tenant, id))
            except BaseException:
                self._remove_half(tenant, id)
                raise
        return _decode_answer(valid)

    def _remove_half(self, tenant: str, id: str) -> None:
        """Remove a conversation whose journal is not complete."""
        for half in self._records.interrupted(all=True):
            if (half.tenant, half.id, half.state) == (tenant, id, "making"):
                self._remove(half)

    def rewind(
        self, tenant: str, id: str, request: shapes.RewindRequest, key: str = ""
    ) -> shapes.RewoundConversation:
        """Fork a conversation, and put the files of its workspace back to their content of that
        time, like `Conversation.rewind`. A repeated request under the same `key` makes no second
        fork."""
        record, kind = self._records.find(tenant, id), shapes.RewoundConversation
        name, digest = f"\nrewind\n{key}" if key else "", self._digest(f"rewind {id}", request)
        if (answer := self._records.find_answer(tenant, name, digest)) is not None:
            return msgspec.json.decode(answer, type=kind)
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
        reply = kind(conversation=forked, files=files)
        if key:
            self._records.store_answer(tenant, name, digest, encode(reply))
        return reply

    def write_title(self, tenant: str, id: str) -> str:
        """Write a title from the first message, like `Conversation.write_title`; return it."""
        return self._use_here(self._records.find(tenant, id), lambda live: live.write_title())

    def _use_here(
        self, record: records.ConversationRecord, work: Callable[[OpenConversation], T]
    ) -> T:
        return self._alone(lambda: self._scheduler.use(record, work))

    def _alone(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, once no other server has the conversation open. Raises
        `LeaseHeld` if that takes too long."""
        return until_free(work) if self._records.shared else work()

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
            return self._family.status(tenant, id)
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
                f"A conversation cannot continue from this state: {describe_error(error)}."
            ) from error
        return self._family.status(tenant, id)

    def delete(self, tenant: str, id: str) -> None:
        """Remove a conversation, cutting off its work. Raises `LeaseHeld` if another process drives
        it."""
        record = self._records.find(tenant, id)
        self._records.set_state(record, "going")  # prevents that it is opened again
        self._scheduler.cut_off(record.store_id)
        try:
            self._alone(lambda: self._remove(record))  # another server notices the state
        except errors.LeaseHeld:
            self._records.set_state(record, "")
            raise

    def _remove(self, record: records.ConversationRecord) -> None:
        self._family.remove(record.store_id)
        with suppress(errors.ConversationNotFound):
            self._store.delete(record.store_id)
        self._webhooks.forget(record.store_id)
        self._chats.forget(record.tenant, record.id)
        self._records.remove(record)
        self._scheduler.forget(record)
        self._feeds.end(record.store_id)
        if record.own_workspace and not self._records.users_of(record.tenant, record.workspace):
            self._forget_workspace(record.tenant, record.workspace)

    def _forget_workspace(self, tenant: str, id: str) -> None:
        with suppress(errors.HoldfastError, OSError):
            self._workspaces.delete(tenant, id)

    def finish_interrupted(self) -> None:
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

    def _digest(self, what: str, request: object) -> bytes:
        encoded = msgspec.json.encode(request, order="deterministic")
        return self._records.seal.digest(what.encode() + b"\n" + encoded)

    def _check_free(self, tenant: str, id: str) -> None:
        if self._store.list([records.store_id(tenant, id)]):
            raise errors.Conflict(f"Conversation {id!r} already exists. Use another id.")


def _decode_answer(answer: bytes) -> shapes.CreatedConversation:
    return msgspec.json.decode(answer, type=shapes.CreatedConversation)


def _labels(request: shapes.CreateRequest) -> cmd.Label | None:
    """Return the command that sets a new conversation's title and tags, or None. Raises
    `ConfigurationError`."""
    has_labels = request.title is not None or request.tags
    return cmd.Label(request.title, add=request.tags) if has_labels else None


def _id(id: str) -> str:
    return checked_id(id, "id") if id else os.urandom(16).hex()
