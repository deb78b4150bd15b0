"""The rests of a conversation: where a turn ends, and what the conversation then waits for.

Each pending item gives the commands that answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import Data, ToolCall, ToolResult
from holdfast.conversation.fold import Fold
from holdfast.conversation.status import ConversationStatus

RUNNING = ConversationStatus.RUNNING
_DELEGATE = "delegate"  # the tool whose conversations go on beside its calls


class ChildCommand(Data, frozen=True):
    """A command for a conversation that a call of this one has spawned."""

    conversation: str
    command: cmd.Command


TurnCommand = cmd.Command | ChildCommand


class ApprovalRequest(Data, frozen=True):
    """A call that waits for a decision. An approval is bound to its arguments. `conversation` is
    the spawned conversation whose call it is, "" for a call of this one."""

    call: ToolCall
    reason: str = ""
    risk: str = ""
    conversation: str = ""

    @property
    def key(self) -> str:
        """The id among all pending items of the conversation and of its descendants."""
        return _key(self.conversation, self.call.id)

    @property
    def mark(self) -> str:
        """The id that `answered` returns for a decision about it."""
        return self.key

    def approve(
        self, arguments: dict[str, Any] | None = None, *, by: str = "user", reason: str = ""
    ) -> TurnCommand:
        """Return the command that lets the call run, with other `arguments` if given."""
        approve = cmd.Approve(self.call.id, self.call.arguments_hash, arguments, by, reason)
        return _addressed(self.conversation, approve)

    def reject(self, reason: str = "", *, by: str = "user") -> TurnCommand:
        return _addressed(self.conversation, cmd.Reject(self.call.id, reason, by))


class QuestionRequest(Data, frozen=True):
    """A running call's question to the user. `conversation` is as for approvals."""

    call_id: str
    question: ev.Question
    conversation: str = ""

    @property
    def key(self) -> str:
        """The id of the question among all pending items, also after it was asked anew."""
        return _key(self.conversation, self.call_id)

    @property
    def mark(self) -> str:
        """The id that `answered` returns for an answer to it; another one if it is asked anew."""
        return _key(self.conversation, self.question.id)

    def answer(
        self, values: dict[str, Any] | bool | None = True, *, by: str = "user"
    ) -> TurnCommand:
        """Return the command that answers with the values of the question's form, True for yes."""
        return _addressed(self.conversation, cmd.Answer(self.question.id, values, by=by))

    def answer_loosely(self, value: object, *, by: str = "user") -> TurnCommand:
        """Return the command for an answer from a protocol without forms. `value` is the form's
        values, a bool, None to decline, or the text of the form's only field."""
        if isinstance(value, str):
            properties: dict[str, Any] = (self.question.schema or {}).get("properties", {})
            value = {next(iter(properties)): value} if properties else True
        return self.answer(cast("dict[str, Any] | bool | None", value), by=by)

    def decline(self, reason: str = "", *, by: str = "user") -> TurnCommand:
        return _addressed(self.conversation, cmd.Answer(self.question.id, None, reason, by))


def _key(conversation: str, id: str) -> str:
    return f"{conversation}:{id}" if conversation else id


def _addressed(conversation: str, command: cmd.Command) -> TurnCommand:
    return ChildCommand(conversation, command) if conversation else command


class ClientCallRequest(Data, frozen=True):
    """A call of a tool that the client runs."""

    call: ToolCall

    def finish(self, result: ToolResult, *, runner: str) -> tuple[cmd.Command, ...]:
        """Return the commands that bring the result. `runner` is the door's name."""
        return cmd.Claim(self.call.id, runner), cmd.Return(self.call.id, runner, result)


PendingItem = ApprovalRequest | QuestionRequest | ClientCallRequest
ChildItem = ApprovalRequest | QuestionRequest


class Rest(Data, frozen=True):
    """The end of a turn: the conversation waits for its user, for a client, or has failed.

    `seq` is the cursor with which the next turn begins. `reason` is the first that applies; `ended`
    means that the conversation is no longer driven here (a shutdown, a removal).
    """

    seq: int
    status: ConversationStatus
    reason: Literal["finished", "paused", "approval", "question", "call", "error", "stuck", "ended"]
    pending: tuple[PendingItem, ...] = ()
    error: ev.ErrorRecorded | None = None
    answer: str = ""
    output: Any = None


def _any(_: str) -> bool:
    return True


def pending_items(fold: Fold, awaited: Callable[[str], bool] = _any) -> tuple[PendingItem, ...]:
    """Return all pending items of a conversation, in the order of its calls. A question counts if
    its id is `awaited`: its process lives."""
    pending: list[PendingItem] = []
    offered_ids = {item.call.id for item in fold.offers if not item.runner}
    for id, item in fold.open.items():
        if item.ask_reason is not None:
            pending.append(ApprovalRequest(item.call, item.ask_reason, item.risk))
        pending += [QuestionRequest(id, one) for one in item.questions if awaited(one.id)]
        if id in offered_ids:
            pending.append(ClientCallRequest(item.effective))
    return tuple(pending)


def child_items(conversation: str, fold: Fold, awaited: Callable[[str], bool]) -> list[ChildItem]:
    """Return the items of a spawned conversation for the user; `awaited` as in `pending_items`."""
    return [
        replace(item, conversation=conversation)
        for item in pending_items(fold, awaited)
        if not isinstance(item, ClientCallRequest)
    ]


def may_ask_below(fold: Fold) -> bool:
    """Return True if conversations that calls have spawned may ask the user something."""
    if any(item.attempt for item in fold.open.values()):
        return True
    return fold.agent is not None and any(tool.name == _DELEGATE for tool in fold.agent.tools)


def answered(commands: Sequence[TurnCommand]) -> frozenset[str]:
    """Return the marks of the pending items of spawned conversations that commands answer."""
    marks: set[str] = set()
    for one in commands:
        if isinstance(one, ChildCommand):
            match one.command:
                case cmd.Approve(call_id=id) | cmd.Reject(call_id=id):
                    marks.add(_key(one.conversation, id))
                case cmd.Answer(question_id=id):
                    marks.add(_key(one.conversation, id))
                case _:
                    pass
    return frozenset(marks)


def waits(fold: Fold, awaited: Callable[[str], bool] = _any) -> bool:
    """Return True if a running conversation waits for an answer or for a client; `awaited` is as
    for `pending_items`."""
    awaits_answer = any(awaited(one.id) for item in fold.open.values() for one in item.questions)
    return awaits_answer or _waits_for_client(fold)


def _waits_for_client(fold: Fold) -> bool:
    now = fold.turn
    return bool(now) and all(item.held_by_client and not item.runner for item in now)


def rests(fold: Fold) -> bool:
    """Return True if the conversation does nothing until its user or a client acts."""
    return fold.status is not RUNNING or waits(fold)


def rest_of(
    fold: Fold,
    seq: int,
    ended: bool = False,
    below: Sequence[ChildItem] = (),
    awaited: Callable[[str], bool] = _any,
) -> Rest:
    """Return the present rest of a conversation. `below` are the items of its descendants, and
    `awaited` is as for `pending_items`."""
    pending = (*pending_items(fold, awaited), *below)
    reason: Any = str(fold.status.value)
    # While a client runs calls, its door pauses the conversation. A question that is open after
    # another pause is not a reason for the rest.
    paused_for_client = fold.status is ConversationStatus.PAUSED and _waits_for_client(fold)
    if ended:
        reason = "ended"
    elif fold.status is RUNNING or paused_for_client:
        reason = _asking(pending) or ("call" if pending else "ended")
    elif fold.status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        reason = "approval"
    elif fold.status in (ConversationStatus.IDLE, ConversationStatus.FINISHED):
        reason = _asking(below) or "finished"
    last = fold.assistant
    answer = "" if last is None else last.final_text
    return Rest(seq, fold.status, reason, pending, fold.error, answer, fold.output.value)


def _asking(pending: Sequence[PendingItem]) -> str:
    if any(isinstance(item, QuestionRequest) for item in pending):
        return "question"
    return "approval" if any(isinstance(item, ApprovalRequest) for item in pending) else ""


def result_commands(
    fold: Fold, results: Mapping[str, ToolResult], runner: str
) -> list[cmd.Command]:
    """Return the commands that bring a client's results, by call id. Offered calls without one are
    settled as not run; without any result, all calls of clients are.

    Calls can be claimed only while the conversation runs. The results are returned while it is
    paused, so that all of them precede the next request to the model.
    """
    offered_ids = [item.call.id for item in fold.offers]
    answered_ids = [call_id for call_id in offered_ids if call_id in results]
    commands: list[cmd.Command] = []
    if answered_ids:
        if fold.status is ConversationStatus.PAUSED:
            commands.append(cmd.Resume())
        commands += [cmd.Claim(call_id, runner) for call_id in answered_ids]
        commands.append(cmd.Pause())
        commands += [cmd.Return(call_id, runner, results[call_id]) for call_id in answered_ids]
    open = (
        offered_ids
        if answered_ids
        else [id for id, item in fold.open.items() if item.held_by_client]
    )
    reason = "the client gave no result."
    return [
        *commands,
        *(cmd.Settle(id, reason, "cancelled") for id in open if id not in answered_ids),
    ]
