"""Commands of clients: executes each once per key, in this server or through the one that drives
the conversation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast import commands as cmd
from holdfast import errors
from holdfast.conversation.fold import Fold, fold
from holdfast.object_struct import ObjectStruct
from holdfast.server.descendants import Descendants
from holdfast.server.idempotent_commands import Call, IdempotentCommands, refusing
from holdfast.server.other_servers import OtherServers
from holdfast.server.records import ConversationRecord, Records
from holdfast.server.scheduler import Scheduler
from holdfast.store import Store
from holdfast.tools.question_forms import complete_answer

if TYPE_CHECKING:
    from holdfast.server.local_conversation import OpenConversation

_Decision = cmd.Approve | cmd.Reject


class ClientCommands(ObjectStruct):
    """Executes the commands of clients. Thread-safe; blocking. `isolated` is True if conversations
    run in worker processes."""

    _store: Store
    _records: Records
    _scheduler: Scheduler
    _others: OtherServers | None
    _family: Descendants
    _isolated: bool
    _idempotent: IdempotentCommands

    def execute(self, tenant: str, id: str, command: cmd.Command, key: str | None = None) -> None:
        """Execute a command in a conversation, once per `key`.

        An `Approve` or `Reject` with an empty call id applies to all calls that wait now. An
        `Approve` with an empty hash applies to the call's present arguments. A repetition under the
        same key applies to the same calls.

        Raises `ConfigurationError` if the command is invalid, and `ToolValidationError` if
        arguments do not match the tool's schema. Raises `Conflict` if the key was used for another
        command.
        """
        try:
            record = self._records.find(tenant, id)
        except errors.ConversationNotFound:
            self._post_to_child(tenant, id, command, key)
            return
        if not isinstance(command, _Decision):
            self._idempotent.do(record, key, command, lambda _: self._execute(record, command, key))
            return

        def pending() -> list[Call]:
            lacks_hash = isinstance(command, cmd.Approve) and not command.arguments_hash
            if command.call_id and not lacks_hash:
                return [(command.call_id, "")]
            if self._others is not None:
                waiting = self._waiting_calls(record.store_id)
            else:
                waiting = self._scheduler.use(record, lambda live: live.pending_confirmations())
            with refusing():
                return _concerned_calls(command, waiting) or [(command.call_id, "")]

        self._decide(record, command, key, pending, partial(self._execute, record))

    def _post_to_child(self, tenant: str, id: str, command: cmd.Command, key: str | None) -> None:
        """Post a decision or an answer to a spawned conversation, once per `key`, for the process
        that drives it. As the command is only posted, this is the last chance to report an
        error."""
        summary, owner = self._family.child_and_owner(tenant, id)
        child = summary.id
        if isinstance(command, cmd.Answer):
            answer = command

            def post(_: list[Call]) -> None:
                with refusing():
                    _check_answer(fold(self._store.tail(child)), answer)
                self._store.post(child, answer, key)

            self._idempotent.do(owner, key, answer, post, child=child)
            return
        if not isinstance(command, _Decision):
            raise errors.ConfigurationError(
                f"Conversation {id!r} was spawned by a call. Send this command to its parent"
                " conversation."
            )

        def pending() -> list[Call]:
            waiting = self._waiting_calls(child)
            with refusing():
                return _decidable_calls(command, waiting)

        self._decide(owner, command, key, pending, partial(self._store.post, child), child)

    def _decide(
        self,
        record: ConversationRecord,
        command: _Decision,
        key: str | None,
        pending: Callable[[], list[Call]],
        send: Callable[[cmd.Command, str | None], object],
        child: str = "",
    ) -> None:
        """Send a decision about each of the `pending` calls."""

        def decide(calls: Sequence[Call]) -> None:
            for call_id, hash in calls:
                # A client's key has no newline, so that this is the key of no other request.
                call_key = None if key is None else f"{key}\n{call_id}"
                send(_about_call(command, call_id, hash), call_key)

        self._idempotent.do(record, key, _decision_form(command), decide, pending, child)

    def _waiting_calls(self, id: str) -> list[Call]:
        """Return the calls that wait for a decision in a conversation that is not open here, from
        its journal."""
        return [
            (one.call.id, one.call.arguments_hash)
            for one in fold(self._store.tail(id)).open.values()
            if one.ask_reason is not None
        ]

    def _execute(self, record: ConversationRecord, command: cmd.Command, key: str | None) -> None:
        if key is None and (self._isolated or self._others is not None):
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


def _concerned_calls(command: _Decision, waiting: Sequence[Call]) -> list[Call]:
    """Return the waiting calls that a decision is about. Raises `NotPending` for a decision about
    all calls if none waits."""
    if command.call_id:
        return [one for one in waiting if one[0] == command.call_id]
    if isinstance(command, cmd.Approve) and (
        command.arguments is not None or command.arguments_hash
    ):
        raise errors.ConfigurationError(
            "approve takes arguments and arguments_hash only together with a call_id."
        )
    if not waiting:
        raise errors.NotPending("No call waits for a decision.")
    return list(waiting)


def _decidable_calls(command: _Decision, waiting: Sequence[Call]) -> list[Call]:
    """Return the waiting calls that a decision applies to. Raises `NotPending` if no call waits, or
    if the arguments of one are not the approved ones."""
    calls = _concerned_calls(command, waiting)
    approved = command.arguments_hash if isinstance(command, cmd.Approve) else ""
    if not calls or any(approved not in ("", hash) for _, hash in calls):
        raise errors.NotPending(
            f"Call {command.call_id[:80]!r} does not wait for a decision, or its arguments differ."
        )
    return calls


def _check_answer(folded: Fold, command: cmd.Answer) -> None:
    """Raise `ConfigurationError` if an answer does not fit the form of its question."""
    for item in folded.open.values():
        for question in item.questions:
            if question.id == command.question_id:
                complete_answer(
                    f"answer: question {question.id!r}", question.schema, command.values
                )


def _about_call(command: _Decision, call_id: str, hash: str) -> _Decision:
    """Return the decision for one call with this hash."""
    if isinstance(command, cmd.Reject):
        return msgspec.structs.replace(command, call_id=call_id)
    hash = command.arguments_hash or hash
    return msgspec.structs.replace(command, call_id=call_id, arguments_hash=hash)


def _decision_form(command: _Decision) -> tuple[object, ...]:
    """Return the form of a decision by which a repeated request is recognised."""
    call_id = command.call_id or None
    if isinstance(command, cmd.Reject):
        return "reject", call_id, command.reason, command.by
    hash = command.arguments_hash or None
    return "approve", call_id, command.arguments, hash, command.by, command.reason
