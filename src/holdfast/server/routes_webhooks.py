"""Webhooks over HTTP: routes to create, list, change and remove them, to rotate their secrets,
to list failed deliveries, and to send events again."""

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from holdfast.server.answers import answer
from holdfast.server.routes import Key, Routes
from holdfast.server.webhook_shapes import (
    DeliveryList,
    Redelivered,
    RedeliverRequest,
    SecretRequest,
    Webhook,
    WebhookChange,
    WebhookList,
    WebhookRequest,
)

_ID = "wh-5b0c91d2a6be"
_Id = Annotated[
    str, Path(pattern="^[A-Za-z0-9._-]{1,128}$", description="The webhook's id.", examples=[_ID])
]
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYq="
_REQUEST_EXAMPLE = {
    "url": "https://hooks.example.com/agents",
    "events": ["message", "status.finished"],
    "secret": _SECRET,
}
_WEBHOOK_EXAMPLE: dict[str, Any] = {
    "id": _ID,
    "url": "https://hooks.example.com/agents",
    "events": ["message", "status.finished"],
    "state": "active",
    "created": "2026-11-21T10:00:00Z",
    "conversationId": None,
    "failing": 0,
    "dead": 0,
    "error": "",
    "secret": None,
    "oldSecretUntil": None,
}


def add(routes: Routes) -> None:
    """Add the routes of webhooks."""
    service, webhooks = routes.service, routes.service.host.webhooks

    @routes.add(
        "POST",
        "/api/webhooks",
        "Create a webhook",
        takes=WebhookRequest,
        example=_REQUEST_EXAMPLE,
        gives=Webhook,
        gave={**_WEBHOOK_EXAMPLE, "secret": _SECRET},
        status=201,
        also=(404, 409, 503),
        tag="webhooks",
    )
    async def create_webhook(request: Request, key: Key = None) -> Response:
        """Sends one POST for each event of one or all conversations, signed according to
        Standard Webhooks. Delivery is at least once, in the order of each journal. Only this
        answer shows the secret."""
        body = await service.json(request, WebhookRequest)
        return answer(
            await service.change(webhooks.create, service.caller(request).tenant, body, key or ""),
            201,
        )

    @routes.add(
        "GET",
        "/api/webhooks",
        "List webhooks",
        gives=WebhookList,
        gave={"webhooks": [_WEBHOOK_EXAMPLE]},
        also=(422, 503),
        tag="webhooks",
    )
    async def list_webhooks(request: Request) -> Response:
        """Oldest first."""
        return answer(await service.read(webhooks.list, service.caller(request).tenant))

    @routes.add(
        "GET",
        "/api/webhooks/{webhook}",
        "Get a webhook",
        gives=Webhook,
        gave=_WEBHOOK_EXAMPLE,
        also=(404, 422, 503),
        tag="webhooks",
    )
    async def get_webhook(request: Request, webhook: _Id) -> Response:
        """Without its secret."""
        return answer(await service.read(webhooks.get, service.caller(request).tenant, webhook))

    @routes.add(
        "PUT",
        "/api/webhooks/{webhook}",
        "Change a webhook",
        takes=WebhookChange,
        example={"enabled": True},
        gives=Webhook,
        gave=_WEBHOOK_EXAMPLE,
        also=(404, 503),
        tag="webhooks",
    )
    async def change_webhook(request: Request, webhook: _Id) -> Response:
        """Delivery continues where it was. If the webhook is enabled or gets a new URL, failed
        events are tried again at once."""
        body = await service.json(request, WebhookChange)
        return answer(
            await service.change(webhooks.change, service.caller(request).tenant, webhook, body)
        )

    @routes.add(
        "DELETE",
        "/api/webhooks/{webhook}",
        "Remove a webhook",
        status=204,
        also=(404, 422, 503),
        tag="webhooks",
    )
    async def delete_webhook(request: Request, webhook: _Id) -> Response:
        """Events that are not sent yet are never sent."""
        await service.change(webhooks.delete, service.caller(request).tenant, webhook)
        return Response(status_code=204)

    @routes.add(
        "POST",
        "/api/webhooks/{webhook}/secret",
        "Rotate a webhook's secret",
        takes=SecretRequest,
        example={"overlap": 3600},
        gives=Webhook,
        gave={**_WEBHOOK_EXAMPLE, "secret": _SECRET, "oldSecretUntil": "2026-11-21T11:00:00Z"},
        also=(404, 503),
        tag="webhooks",
    )
    async def rotate_webhook_secret(request: Request, webhook: _Id) -> Response:
        """During the overlap messages carry two signatures, one with each secret. The answer
        shows the new secret."""
        body = await service.json(request, SecretRequest)
        return answer(
            await service.change(webhooks.rotate, service.caller(request).tenant, webhook, body)
        )

    @routes.add(
        "GET",
        "/api/webhooks/{webhook}/deliveries",
        "List failed deliveries",
        gives=DeliveryList,
        also=(404, 422, 503),
        tag="webhooks",
        gave={
            "deliveries": [
                {
                    "conversationId": "weekly",
                    "afterSeq": 4,
                    "attempts": 3,
                    "since": "2026-11-21T10:00:00Z",
                    "again": "2026-11-21T10:00:04Z",
                    "error": "The receiver answered 500.",
                    "dead": [],
                }
            ],
            "next": None,
        },
    )
    async def list_deliveries(
        request: Request,
        webhook: _Id,
        cursor: Annotated[
            str | None,
            Query(pattern="^[A-Za-z0-9._-]{1,200}$", description="`next` of the previous page."),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Lists, in pages, the conversations in which the webhook fails or has given up events."""
        return answer(
            await service.read(
                webhooks.deliveries, service.caller(request).tenant, webhook, cursor, limit
            )
        )

    @routes.add(
        "POST",
        "/api/webhooks/{webhook}/redeliver",
        "Send events again",
        takes=RedeliverRequest,
        example={"conversationId": "4f0c91d2a6be"},
        gives=Redelivered,
        gave={"dead": 12},
        also=(404, 503),
        tag="webhooks",
    )
    async def redeliver(request: Request, webhook: _Id) -> Response:
        """Sends again the events that were given up, or all events after `afterSeq`. Later
        events follow in order, each under its original `webhook-id`."""
        body = await service.json(request, RedeliverRequest)
        return answer(
            await service.change(webhooks.redeliver, service.caller(request).tenant, webhook, body)
        )
