"""What is decided about calls, and the calls that clients run: approve, reject, answer, claim, result."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from holdfast.commands import Answer, Claim, Return
from holdfast.server.answers import answer
from holdfast.server.bodies import AnswerRequest, ApproveRequest, RejectRequest, ResultRequest, Standing
from holdfast.server.routes import CallId, Client, Id, Key, Routes


def add(routes: Routes) -> None:
    """Add them."""
    service, host = routes.service, routes.service.host
    standing: dict[str, Any] = {
        "gives": Standing,
        "gave": {"status": "running"},
        "also": (404, 409, 422, 503),
        "conflict": True,
        "tag": "calls",
    }

    @routes.add(
        "POST", "/api/conversations/{id}/approve", "Let a waiting call run", takes=ApproveRequest, example={"callId": "3.0"}, **standing
    )
    async def approve_call(request: Request, id: Id, key: Key = None) -> Response:
        """The one that waits, or the one named; with other arguments if given. Binds to the arguments' hash."""
        body = await service.json(request, ApproveRequest)
        tenant = service.caller(request).tenant

        def approve() -> str:
            host.approve(tenant, id, body.call_id, body.arguments, body.arguments_hash, body.by, body.reason, key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(approve)))

    @routes.add(
        "POST",
        "/api/conversations/{id}/reject",
        "Do not run a waiting call",
        takes=RejectRequest,
        example={"reason": "Not on main."},
        **standing,
    )
    async def reject_call(request: Request, id: Id, key: Key = None) -> Response:
        """The model is told why."""
        body = await service.json(request, RejectRequest)
        tenant = service.caller(request).tenant

        def reject() -> str:
            host.reject(tenant, id, body.call_id, body.reason, body.by, key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(reject)))

    @routes.add(
        "POST", "/api/conversations/{id}/answer", "Answer what a call asks", takes=AnswerRequest,
        example={"questionId": "3.0?1", "values": {"city": "Ghent"}}, **standing,
    )  # fmt: skip
    async def answer_question(request: Request, id: Id, key: Key = None) -> Response:
        """Or decline, with null values."""
        body = await service.json(request, AnswerRequest)
        tenant = service.caller(request).tenant

        def reply() -> str:
            host.obey(tenant, id, Answer(body.question_id, body.values, body.reason, body.by), key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(reply)))

    @routes.add("POST", "/api/conversations/{id}/calls/{call_id}/claim", "Claim an offered call", client=False, **standing)
    async def claim_call(request: Request, id: Id, call_id: CallId, client: Client) -> Response:
        """Of all clients that ask, one gets it, and runs it. Again by the same client: it has it still."""
        tenant = service.caller(request).tenant

        def claim() -> str:
            host.obey(tenant, id, Claim(call_id, client))
            return host.status(tenant, id)

        return answer(Standing(await service.change(claim)))

    @routes.add(
        "POST", "/api/conversations/{id}/calls/{call_id}/result", "The result of a claimed call", takes=ResultRequest,
        example={"result": {"content": [{"type": "text", "text": "21 degrees"}], "isError": False}, "duration": 0.4}, client=False, **standing,
    )  # fmt: skip
    async def return_call(request: Request, id: Id, call_id: CallId, client: Client, key: Key = None) -> Response:
        """From whoever claimed it."""
        body = await service.json(request, ResultRequest, largest=None)
        tenant = service.caller(request).tenant

        def give() -> str:
            host.obey(tenant, id, Return(call_id, client, body.result, body.duration), key)
            return host.status(tenant, id)

        return answer(Standing(await service.change(give)))
