"""The questions of a session to the user of its editor: permissions, forms and choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from acp.schema import (
    AcceptElicitationResponse,
    ElicitationFormSessionMode,
    ElicitationSchema,
    ElicitationUrlSessionMode,
    PermissionOption,
)
from pydantic import ValidationError

from holdfast.agent.planning import APPROVAL
from holdfast.conversation.rests import ApprovalRequest, QuestionRequest, TurnCommand
from holdfast.serve.acp_client import ClientAccess
from holdfast.serve.acp_modes import ModePolicy, all_calls_of
from holdfast.serve.acp_updates import SessionUpdates
from holdfast.tools.question_forms import form_fields

T = TypeVar("T")


class EditorQuestions:
    """Asks the client's user what a conversation waits for. An answer that cancels the turn counts
    in `cancels`, beside the cancellations that the session counts there. Used on the loop's
    thread."""

    def __init__(self, access: ClientAccess, policy: ModePolicy, updates: SessionUpdates) -> None:
        self.cancels = 0
        self._client = access.client
        self._elicitation = access.capabilities.elicitation
        self._id = access.session_id
        self._policy = policy
        self._updates = updates
        self._waiting: dict[str, asyncio.Future[Any]] = {}  # by what the requests are about

    async def permission(
        self, one: ApprovalRequest, read: Callable[[str], Any]
    ) -> TurnCommand | None:
        """Ask for permission for a call. `read` reads a file whose changes are shown. None without
        an answer."""
        call, policy = one.call, self._policy
        plan = one.reason in APPROVAL
        reason = all_calls_of(call.name)
        if call.name in policy.allowed and not plan:
            return one.approve(reason=reason)
        options = [
            PermissionOption(
                option_id="allow", name="Approve" if plan else "Allow", kind="allow_once"
            ),
            PermissionOption(
                option_id="always", name=f"Allow all {call.name}", kind="allow_always"
            ),
            PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
        ]
        if plan:
            del options[1]
        update = await asyncio.to_thread(self._updates.permission, one, read)
        request = self._client.request_permission(
            session_id=self._id, tool_call=update, options=options
        )
        answer = await self._withdrawable(one.key, request)
        if answer is None:
            return None
        if answer.outcome.outcome == "cancelled":
            self.cancels += 1
            return None
        match answer.outcome.option_id:
            case "allow":
                return one.approve()
            case "always" if not plan:
                policy.allowed |= {call.name}
                return one.approve(reason=reason)
            case _:
                return one.reject("The user rejected the call.")

    async def question(self, one: QuestionRequest) -> TurnCommand | None:
        """Ask through a form of the client, or as a choice; else the next prompt is the answer."""
        question = one.question
        if (form := self._form(one)) is not None:
            text = f"{question.asker}: {question.message}" if question.asker else question.message
            answer = await self._withdrawable(
                one.mark, self._client.create_elicitation(message=text, mode=form)
            )
            if answer is None:
                return None
            if isinstance(answer, AcceptElicitationResponse):
                return one.answer(answer.content or True)
            return one.decline("The user declined.")
        if not (choices := _choices(one)):
            return None
        options = [
            PermissionOption(option_id=str(number), name=name, kind=kind)
            for number, (name, kind, _) in enumerate(choices)
        ]
        update = self._updates.question(one)
        request = self._client.request_permission(
            session_id=self._id, tool_call=update, options=options
        )
        answer = await self._withdrawable(one.mark, request)
        if answer is None:
            return None
        if answer.outcome.outcome == "cancelled":
            self.cancels += 1
            return None
        values = {str(number): value for number, (*_, value) in enumerate(choices)}
        return one.answer(values.get(answer.outcome.option_id))

    def _form(
        self, one: QuestionRequest
    ) -> ElicitationFormSessionMode | ElicitationUrlSessionMode | None:
        """Return the question as a form of the client, None if the client has none for it."""
        can, question = self._elicitation, one.question
        try:
            if question.url:
                if can is None or can.url is None:
                    return None
                return ElicitationUrlSessionMode(
                    session_id=self._id,
                    tool_call_id=one.key,
                    elicitation_id=one.mark,
                    url=cast("Any", question.url),
                )
            if can is None or can.form is None:
                return None
            schema = ElicitationSchema.model_validate(question.schema or {"type": "object"})
            return ElicitationFormSessionMode(
                session_id=self._id, tool_call_id=one.key, requested_schema=schema
            )
        except ValidationError:
            return None

    def has_form(self, one: QuestionRequest) -> bool:
        """Return True if the client can ask the question; else the next prompt answers it."""
        can = self._elicitation
        offered = None if can is None else can.url if one.question.url else can.form
        return offered is not None or bool(_choices(one))

    def withdraw(self, about: str) -> None:
        """Withdraw a question: a call or a question's mark is decided."""
        if (waiting := self._waiting.pop(about, None)) is not None:
            waiting.cancel()

    def cancel(self) -> None:
        """Withdraw all questions, because the client's user has cancelled."""
        self.cancels += 1
        for about in list(self._waiting):
            self.withdraw(about)

    def stop(self) -> None:
        """Withdraw all questions, from any thread, because the session ends."""
        for waiting in list(self._waiting.values()):
            waiting.get_loop().call_soon_threadsafe(waiting.cancel)

    async def _withdrawable(self, about: str, request: Coroutine[Any, Any, T]) -> T | None:
        """Wait for the client's answer; None if the question is withdrawn. A question that the
        client still has from an earlier turn is not asked twice."""
        if (waiting := self._waiting.get(about)) is None:
            waiting = self._waiting[about] = asyncio.ensure_future(request)
        else:
            request.close()
        await asyncio.wait([waiting])  # a cancelled wait leaves the question to the next turn
        if self._waiting.get(about) is waiting:
            del self._waiting[about]
        return None if waiting.cancelled() else waiting.result()


def _choices(one: QuestionRequest) -> list[tuple[str, Any, dict[str, Any] | bool]]:
    """Return the answers to choose from, for a client without forms: name, kind and values."""
    question = one.question
    fields = form_fields(question.schema)
    if not fields:
        return [("Yes", "allow_once", True), ("No", "reject_once", False)]
    name, field = next(iter(fields.items()))
    values = field.get("enum")
    if len(fields) > 1 or not isinstance(values, list):
        return []
    return [(str(value), "allow_once", {name: value}) for value in cast("list[Any]", values)]
