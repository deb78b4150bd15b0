"""The routes of the server itself: its health, its metrics, and the OpenAPI document."""

import logging
from collections.abc import Callable

from starlette.responses import Response

from holdfast.errors import StoreError
from holdfast.server.answers import answer, refusal
from holdfast.server.bodies import ServerHealth
from holdfast.server.metrics import MEDIA_TYPE
from holdfast.server.routes import RouteTable
from holdfast.server.service import Service

_log = logging.getLogger("holdfast.server")

routes = RouteTable("", "server")


@routes.get("/health", "Liveness", answer_example={"status": "ok"}, open=True, also=())
async def health() -> ServerHealth:
    """Report that the server process is running. Needs no key."""
    return ServerHealth("ok")


@routes.get(
    "/ready",
    "Readiness",
    gives=ServerHealth,
    answer_example={"status": "ready"},
    open=True,
    also=(503,),
)
async def ready(service: Service, logged: set[str]) -> Response:
    """Returns 503 while the server recovers after a start, while it shuts down, and after its files
    were removed. Needs no key."""
    if service.closing or not service.ready:
        message = "The server is starting or shutting down."
        return refusal(503, "StoreError", message, {"Retry-After": "1"})
    try:
        await service.read(service.host.check)
    except StoreError as error:  # the error names the file, so only the log shows it
        if str(error) not in logged:
            logged.add(str(error))
            _log.error("Not ready: %s", error)
        message = "The server's store or its records were removed. See the server's log."
        return refusal(503, "StoreError", message)
    return answer(ServerHealth("ready"))


@routes.get(
    "/metrics",
    "Metrics for Prometheus",
    answer_media_type="text/plain",
    schema={"type": "string"},
    client=False,
    also=(503,),
)
async def get_metrics(service: Service) -> Response:
    """Totals over all tenants. The metrics contain no ids."""
    stats = await service.read(service.host.stats)
    return Response(service.metrics.text(service.usage, stats), media_type=MEDIA_TYPE)


@routes.get(
    "/openapi.json", "The OpenAPI document", schema={"type": "object"}, client=False, also=()
)
def get_openapi(document: Callable[[], bytes]) -> Response:
    """The OpenAPI 3.1 document of this server."""
    return Response(document(), media_type="application/json")
