"""Webhooks over HTTP: routes to create, list, change and remove them, to rotate their secrets,
to list failed deliveries, and to send events again."""

from typing import Annotated, Any

from fastapi import Path, Query

from holdfast.server.routes import Key, Routes
from holdfast.server.webhook_records import (
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
_DELIVERIES_EXAMPLE: dict[str, Any] = {
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
}


def add(routes: Routes) -> None:
    """Add the routes of webhooks."""
    webhooks = routes.service.host.webhooks
    one: dict[str, Any] = {"gives": Webhook, "gave": _WEBHOOK_EXAMPLE, "tag": "webhooks"}

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
    def create_webhook(tenant: str, body: WebhookRequest, key: Key = None) -> Webhook:
        """Sends one POST for each event of one or all conversations, signed according to
        Standard Webhooks. Delivery is at least once, in the order of each journal. Only this
        answer shows the secret."""
        return webhooks.create(tenant, body, key or "")

    @routes.add(
        "GET",
        "/api/webhooks",
        "List webhooks",
        gives=WebhookList,
        gave={"webhooks": [_WEBHOOK_EXAMPLE]},
        tag="webhooks",
    )
    def list_webhooks(tenant: str) -> WebhookList:
        """Oldest first."""
        return webhooks.list(tenant)

    @routes.add("GET", "/api/webhooks/{webhook}", "Get a webhook", **one)
    def get_webhook(tenant: str, webhook: _Id) -> Webhook:
        """Without its secret."""
        return webhooks.get(tenant, webhook)

    @routes.add(
        "PUT",
        "/api/webhooks/{webhook}",
        "Change a webhook",
        takes=WebhookChange,
        example={"enabled": True},
        **one,
    )
    def change_webhook(tenant: str, webhook: _Id, body: WebhookChange) -> Webhook:
        """Delivery continues where it was. If the webhook is enabled or gets a new URL, failed
        events are tried again at once."""
        return webhooks.change(tenant, webhook, body)

    @routes.add("DELETE", "/api/webhooks/{webhook}", "Remove a webhook", status=204, tag="webhooks")
    def delete_webhook(tenant: str, webhook: _Id) -> None:
        """Events that are not sent yet are never sent."""
        webhooks.delete(tenant, webhook)

    @routes.add(
        "POST",
        "/api/webhooks/{webhook}/secret",
        "Rotate a webhook's secret",
        takes=SecretRequest,
        example={"overlap": 3600},
        gives=Webhook,
        gave={**_WEBHOOK_EXAMPLE, "secret": _SECRET, "oldSecretUntil": "2026-11-21T11:00:00Z"},
        tag="webhooks",
    )
    def rotate_webhook_secret(tenant: str, webhook: _Id, body: SecretRequest) -> Webhook:
        """During the overlap messages carry two signatures, one with each secret. The answer
        shows the new secret."""
        return webhooks.rotate(tenant, webhook, body)

    @routes.add(
        "GET",
        "/api/webhooks/{webhook}/deliveries",
        "List failed deliveries",
        gives=DeliveryList,
        gave=_DELIVERIES_EXAMPLE,
        tag="webhooks",
    )
    def list_deliveries(
        tenant: str,
        webhook: _Id,
        cursor: Annotated[
            str | None,
            Query(pattern="^[A-Za-z0-9._-]{1,200}$", description="`next` of the previous page."),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> DeliveryList:
        """Lists, in pages, the conversations in which the webhook fails or has given up events."""
        return webhooks.deliveries(tenant, webhook, cursor, limit)

    @routes.add(
        "POST",
        "/api/webhooks/{webhook}/redeliver",
        "Send events again",
        takes=RedeliverRequest,
        example={"conversationId": "4f0c91d2a6be"},
        gives=Redelivered,
        gave={"dead": 12},
        tag="webhooks",
    )
    def redeliver(tenant: str, webhook: _Id, body: RedeliverRequest) -> Redelivered:
        """Sends again the events that were given up, or all events after `afterSeq`. Later
        events follow in order, each under its original `webhook-id`."""
        return webhooks.redeliver(tenant, webhook, body)
