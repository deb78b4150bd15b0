"""Tool calls over HTTP: routes to approve, reject, answer and claim a call, and to send its
result."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from holdfast.commands import Answer, Claim, Return
from holdfast.server.answers import answer
from holdfast.server.bodies import (
    AnswerRequest,
    ApproveRequest,
    RejectRequest,
    ResultRequest,
    Standing,
)
from holdfast.server.routes import CallId, Client, Id, Key, Routes


def add(routes: Routes) -> None:
    """Add the routes of calls."""
    service, host = routes.service, routes.service.host
    standing: dict[str, Any] = {
        "gives": Standing,
        "gave": {"status": "running"},
        "also": (404, 409, 422, 503),
        "conflict": True,
        "tag": "calls",
    }

    @routes.add(
        "POST",
        "/api/conversations/{id}/approve",
        "Approve a waiting call",
        takes=ApproveRequest,
        example={"callId": "3.0"},
        **standing,
    )
    async def approve_call(request: Request, id: Id, key: Key = None) -> Response:
        """Approves the named call, or all calls that wait. `arguments` replaces a call's
        arguments. The approval is bound to the hash of the arguments."""
        body = await service.json(request, ApproveRequest)
        tenant = service.caller(request).tenant

        def approve() -> str:
            host.approve(
                tenant,
                id,
                body.call_id,
                body.arguments,
                body.arguments_hash,
                body.by,
                body.reason,
                key,
            )
            return host.status(tenant, id)

        return answer(Standing(await service.change(approve)))

    @routes.add(
        "POST",
        "/api/conversations/{id}/reject",
        "Reject a waiting call",
        takes=RejectRequest,
        example={"reason": "Not on main."},
        **standing,
    )
    async def reject_call(request: Request, id: Id, key: Key = None) -> Response:
        """The model receives the reason."""
        body = await service.json(request, RejectRequest)
        tenant = service.caller(request).tenant

        def reject() -> str:
            host.reject(tenant, id, body.call_id, body.reason, body.by, key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(reject)))

    @routes.add(
        "POST",
        "/api/conversations/{id}/answer",
        "Answer a call's question",
        takes=AnswerRequest,
        example={"questionId": "3.0?1", "values": {"city": "Ghent"}},
        **standing,
    )
    async def answer_question(request: Request, id: Id, key: Key = None) -> Response:
        """Null values decline the question."""
        body = await service.json(request, AnswerRequest)
        tenant = service.caller(request).tenant

        def reply() -> str:
            host.obey(tenant, id, Answer(body.question_id, body.values, body.reason, body.by), key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(reply)))

    @routes.add(
        "POST",
        "/api/conversations/{id}/calls/{call_id}/claim",
        "Claim an offered call",
        client=False,
        **standing,
    )
    async def claim_call(request: Request, id: Id, call_id: CallId, client: Client) -> Response:
        """Only one of the clients that claim a call gets it and runs it. A repeated claim by the
        same client succeeds."""
        tenant = service.caller(request).tenant

        def claim() -> str:
            host.obey(tenant, id, Claim(call_id, client))
            return host.status(tenant, id)

        return answer(Standing(await service.change(claim)))

    @routes.add(
        "POST",
        "/api/conversations/{id}/calls/{call_id}/result",
        "Send the result of a claimed call",
        takes=ResultRequest,
        example={
            "result": {"content": [{"type": "text", "text": "21 degrees"}], "isError": False},
            "duration": 0.4,
        },
        client=False,
        **standing,
    )
    async def return_call(
        request: Request, id: Id, call_id: CallId, client: Client, key: Key = None
    ) -> Response:
        """Only the client that claimed the call may send its result."""
        body = await service.json(request, ResultRequest, largest=None)
        tenant = service.caller(request).tenant

        def give() -> str:
            host.obey(tenant, id, Return(call_id, client, body.result, body.duration), key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(give)))
