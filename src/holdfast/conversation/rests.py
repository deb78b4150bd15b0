"""The rests of a conversation: where a turn ends, and what the conversation then waits for.

Each pending item gives the commands that answer it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import Data, ToolCall, ToolResult
from holdfast.conversation.fold import Fold
from holdfast.conversation.status import ConversationStatus

RUNNING = ConversationStatus.RUNNING


class ApprovalRequest(Data, frozen=True):
    """A call that waits for a decision. An approval is bound to its arguments."""

    call: ToolCall
    reason: str = ""
    risk: str = ""

    def approve(self, arguments: dict[str, Any] | None = None, *, by: str = "user") -> cmd.Approve:
        """Return the command that lets the call run, with other `arguments` if given."""
        return cmd.Approve(self.call.id, self.call.arguments_hash, arguments, by)

    def reject(self, reason: str = "", *, by: str = "user") -> cmd.Reject:
        return cmd.Reject(self.call.id, reason, by)


class QuestionRequest(Data, frozen=True):
    """A running call's question to the user."""

    call_id: str
    question: ev.Question

    def answer(
        self, values: dict[str, Any] | bool | None = True, *, by: str = "user"
    ) -> cmd.Answer:
        """Return the command that answers with the values of the question's form, True for yes."""
        return cmd.Answer(self.question.id, values, by=by)

    def answer_loosely(self, value: object, *, by: str = "user") -> cmd.Answer:
        """Return the command for an answer whose protocol has no forms: the form's values, a bool,
        None to decline, or the text of the form's only field."""
        if isinstance(value, str):
            properties: dict[str, Any] = (self.question.schema or {}).get("properties", {})
            value = {next(iter(properties)): value} if properties else True
        return self.answer(cast("dict[str, Any] | bool | None", value), by=by)

    def decline(self, reason: str = "", *, by: str = "user") -> cmd.Answer:
        return cmd.Answer(self.question.id, None, reason, by)


class ClientCallRequest(Data, frozen=True):
    """A call of a tool that the client runs."""

    call: ToolCall

    def finish(self, result: ToolResult, *, runner: str) -> tuple[cmd.Command, ...]:
        """Return the commands that bring the result. `runner` is the door's name."""
        return cmd.Claim(self.call.id, runner), cmd.Return(self.call.id, runner, result)


PendingItem = ApprovalRequest | QuestionRequest | ClientCallRequest


class Rest(Data, frozen=True):
    """The end of a turn: the conversation waits for its user, for a client, or has failed.

    `seq` is the cursor with which the next turn begins. `reason` is the first that applies;
    `ended` means that nobody drives the conversation here any more (a shutdown, a removal).
    """

    seq: int
    status: ConversationStatus
    reason: Literal["finished", "paused", "approval", "question", "call", "error", "stuck", "ended"]
    pending: tuple[PendingItem, ...] = ()
    error: ev.ErrorRecorded | None = None
    answer: str = ""
    output: Any = None


def pending_items(fold: Fold) -> tuple[PendingItem, ...]:
    """Return all that a conversation waits for, in the order of its calls."""
    found: list[PendingItem] = []
    offered = {item.call.id for item in fold.offers if not item.runner}
    for id, item in fold.open.items():
        if item.asked is not None:
            found.append(ApprovalRequest(item.call, item.asked, item.risk))
        found += [QuestionRequest(id, question) for question in item.questions]
        if id in offered:
            found.append(ClientCallRequest(item.effective))
    return tuple(found)


def waits(fold: Fold) -> bool:
    """Return True if a running conversation waits for an answer or for a client."""
    return any(item.questions for item in fold.open.values()) or _waits_for_client(fold)


def _waits_for_client(fold: Fold) -> bool:
    now = fold.turn
    return bool(now) and all(item.held_by_client and not item.runner for item in now)


def rests(fold: Fold) -> bool:
    """Return True if the conversation does nothing until somebody acts."""
    return fold.status is not RUNNING or waits(fold)


def rest_of(fold: Fold, seq: int, ended: bool = False) -> Rest:
    """Return the rest at which a conversation is."""
    pending = pending_items(fold)
    reason: Any = str(fold.status.value)
    # While a client runs calls, its door pauses the conversation. After an interrupt a question
    # stays open until its call has ended; that is a pause.
    held = fold.status is ConversationStatus.PAUSED and _waits_for_client(fold)
    if ended:
        reason = "ended"
    elif fold.status is RUNNING or held:
        asks = any(isinstance(item, QuestionRequest) for item in pending)
        reason = "question" if asks else "call" if pending else "ended"
    elif fold.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        reason = "approval"
    elif fold.status is ConversationStatus.IDLE:
        reason = "finished"
    last = fold.assistant
    answer = "" if last is None else last.final_text
    return Rest(seq, fold.status, reason, pending, fold.error, answer, fold.output.value)


def result_commands(
    fold: Fold, results: Mapping[str, ToolResult], runner: str
) -> list[cmd.Command]:
    """Return the commands that bring a client's results, by call id. Offered calls without one are
    settled as not run; without any result, all calls of clients are.

    Calls can be claimed only while the conversation runs. The results are returned while it is
    paused, so that all of them precede the next request to the model.
    """
    offered = [item.call.id for item in fold.offers]
    given = [call_id for call_id in offered if call_id in results]
    found: list[cmd.Command] = []
    if given:
        if fold.status is ConversationStatus.PAUSED:
            found.append(cmd.Resume())
        found += [cmd.Claim(call_id, runner) for call_id in given]
        found.append(cmd.Pause())
        found += [cmd.Return(call_id, runner, results[call_id]) for call_id in given]
    open = offered if given else [id for id, item in fold.open.items() if item.held_by_client]
    reason = "the client gave no result."
    return [*found, *(cmd.Settle(id, reason, "cancelled") for id in open if id not in given)]
