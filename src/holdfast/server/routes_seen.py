"""Further views of a conversation over HTTP: the conversations that its calls spawned, and the
health of its tool services."""

from fastapi import Request
from starlette.responses import Response

from holdfast.server.answers import answer
from holdfast.server.bodies import ServiceHealth, Services
from holdfast.server.routes import Id, Routes
from holdfast.server.shapes import Page


def add(routes: Routes) -> None:
    """Add these routes."""
    service, host = routes.service, routes.service.host

    @routes.add(
        "GET",
        "/api/conversations/{id}/children",
        "List spawned conversations",
        gives=Page,
        also=(404, 422, 503),
    )
    async def list_children(request: Request, id: Id) -> Response:
        """Oldest first. The routes for state, events, stream and outputs accept the ids of
        spawned conversations. Of the commands they accept only decisions and answers; send
        others to the parent."""
        return answer(
            Page(items=await service.read(host.children, service.caller(request).tenant, id))
        )

    @routes.add(
        "GET",
        "/api/conversations/{id}/services",
        "Check its tool services",
        gives=Services,
        also=(404, 422, 503),
        gave={
            "open": True,
            "services": [{"id": "git", "ok": True, "seconds": 0.004, "detail": "12 tools"}],
        },
    )
    async def list_services(request: Request, id: Id) -> Response:
        """Checks MCP servers and A2A agents now, within a few seconds, if the conversation is
        open in this process. The request does not open the conversation."""
        found = await service.change(host.services, service.caller(request).tenant, id)
        return answer(
            Services(
                found is not None,
                [ServiceHealth(one.id, one.ok, one.seconds, one.detail) for one in found or ()],
            )
        )
