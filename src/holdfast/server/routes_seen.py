"""What is seen of a conversation beside its events: those that its calls spawned, and how the
services of its tools answer."""

from fastapi import Request
from starlette.responses import Response

from holdfast.server.answers import answer
from holdfast.server.bodies import ServiceHealth, Services
from holdfast.server.routes import Id, Routes
from holdfast.server.shapes import Page


def add(routes: Routes) -> None:
    """Add them."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "GET",
        "/api/conversations/{id}/children",
        "What its calls spawned",
        gives=Page,
        also=(404, 422, 503),
    )
    async def list_children(request: Request, id: Id) -> Response:
        """The oldest first. Their state, events, stream and outputs are had as those of any
        conversation; of what may be told one, only decisions and answers: the rest is said to whom
        they came of."""
        return answer(
            Page(items=await service.read(host.children, service.caller(request).tenant, id))
        )

    @routes.add(
        "GET",
        "/api/conversations/{id}/services",
        "How the services of its tools answer",
        gives=Services,
        also=(404, 422, 503),
        gave={
            "open": True,
            "services": [{"id": "git", "ok": True, "seconds": 0.004, "detail": "12 tools"}],
        },
    )
    async def list_services(request: Request, id: Id) -> Response:
        """MCP servers and A2A agents are asked now, within a few seconds. Only while the
        conversation is open in this process: nothing is opened for it."""
        found = await service.change(host.services, service.caller(request).tenant, id)
        return answer(
            Services(
                found is not None,
                [ServiceHealth(one.id, one.ok, one.seconds, one.detail) for one in found or ()],
            )
        )
