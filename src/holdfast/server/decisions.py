"""A client's decisions about waiting calls: the calls that one is about, and its form; the check of
an answer to a question."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import commands as cmd
from holdfast import errors
from holdfast.conversation.fold import Fold
from holdfast.server.idempotent_commands import Call
from holdfast.tools.question_forms import complete_answer


def concerned_calls(command: cmd.Approve | cmd.Reject, waiting: Sequence[Call]) -> list[Call]:
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


def decidable_calls(command: cmd.Approve | cmd.Reject, waiting: Sequence[Call]) -> list[Call]:
    """Return the waiting calls that a decision is about. Raises `NotPending` if there are none, or
    if one has other arguments than those that are approved."""
    calls = concerned_calls(command, waiting)
    approved = command.arguments_hash if isinstance(command, cmd.Approve) else ""
    if not calls or any(approved not in ("", hash) for _, hash in calls):
        raise errors.NotPending(
            f"Call {command.call_id[:80]!r} does not wait for a decision, or its arguments differ."
        )
    return calls


def check_answer(folded: Fold, command: cmd.Answer) -> None:
    """Raise `ConfigurationError` if an answer does not fit the form of its question."""
    for item in folded.open.values():
        for question in item.questions:
            if question.id == command.question_id:
                complete_answer(
                    f"answer: question {question.id!r}", question.schema, command.values
                )


def about_call(
    command: cmd.Approve | cmd.Reject, call_id: str, hash: str
) -> cmd.Approve | cmd.Reject:
    """Return the decision for one call with this hash."""
    if isinstance(command, cmd.Reject):
        return msgspec.structs.replace(command, call_id=call_id)
    hash = command.arguments_hash or hash
    return msgspec.structs.replace(command, call_id=call_id, arguments_hash=hash)


def call_key(key: str | None, call_id: str) -> str | None:
    """Return the key of one call's decision. A client's key has no newline, so that it is the key
    of no other request."""
    return None if key is None else f"{key}\n{call_id}"


def decision_form(command: cmd.Approve | cmd.Reject) -> tuple[object, ...]:
    """Return the form of a decision by which a repeated request is recognised."""
    call_id = command.call_id or None
    if isinstance(command, cmd.Reject):
        return "reject", call_id, command.reason, command.by
    hash = command.arguments_hash or None
    return "approve", call_id, command.arguments, hash, command.by, command.reason
