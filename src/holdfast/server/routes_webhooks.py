"""Webhooks over HTTP: routes to create, list, change and remove them, to rotate their secrets,
to list failed deliveries, and to send events again."""

from typing import Annotated, Any

from fastapi import Path, Query

from holdfast.server import webhook_records as wh
from holdfast.server.host import Host
from holdfast.server.routes import Key, RouteTable

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

routes = RouteTable("/api/webhooks", "webhooks")


@routes.post(
    "",
    "Create a webhook",
    example=_REQUEST_EXAMPLE,
    answer_example={**_WEBHOOK_EXAMPLE, "secret": _SECRET},
    status=201,
    also=(404, 409, 503),
)
def create_webhook(host: Host, tenant: str, body: wh.WebhookRequest, key: Key = None) -> wh.Webhook:
    """Sends one POST for each event of one or all conversations, signed according to Standard
    Webhooks. Delivery is at least once, in the order of each journal. Only this answer shows the
    secret."""
    return host.webhooks.create(tenant, body, key or "")


@routes.get("", "List webhooks", answer_example={"webhooks": [_WEBHOOK_EXAMPLE]})
def list_webhooks(host: Host, tenant: str) -> wh.WebhookList:
    """Oldest first."""
    return host.webhooks.list(tenant)


@routes.get("/{webhook}", "Get a webhook", answer_example=_WEBHOOK_EXAMPLE)
def get_webhook(host: Host, tenant: str, webhook: _Id) -> wh.Webhook:
    """Without its secret."""
    return host.webhooks.get(tenant, webhook)


@routes.put(
    "/{webhook}", "Change a webhook", example={"enabled": True}, answer_example=_WEBHOOK_EXAMPLE
)
def change_webhook(host: Host, tenant: str, webhook: _Id, body: wh.WebhookChange) -> wh.Webhook:
    """Delivery continues where it was. If the webhook is enabled or gets a new URL, failed events
    are tried again at once."""
    return host.webhooks.change(tenant, webhook, body)


@routes.delete("/{webhook}", "Remove a webhook")
def delete_webhook(host: Host, tenant: str, webhook: _Id) -> None:
    """Events that are not sent yet are never sent."""
    host.webhooks.delete(tenant, webhook)


@routes.post(
    "/{webhook}/secret",
    "Rotate a webhook's secret",
    example={"overlap": 3600},
    answer_example={
        **_WEBHOOK_EXAMPLE,
        "secret": _SECRET,
        "oldSecretUntil": "2026-11-21T11:00:00Z",
    },
)
def rotate_webhook_secret(
    host: Host, tenant: str, webhook: _Id, body: wh.SecretRequest
) -> wh.Webhook:
    """During the overlap messages carry two signatures, one with each secret. The answer shows the
    new secret."""
    return host.webhooks.rotate(tenant, webhook, body)


@routes.get("/{webhook}/deliveries", "List failed deliveries", answer_example=_DELIVERIES_EXAMPLE)
def list_deliveries(
    host: Host,
    tenant: str,
    webhook: _Id,
    cursor: Annotated[
        str | None,
        Query(pattern="^[A-Za-z0-9._-]{1,200}$", description="`next` of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> wh.DeliveryList:
    """Lists, in pages, the conversations in which the webhook fails or has given up events."""
    return host.webhooks.deliveries(tenant, webhook, cursor, limit)


@routes.post(
    "/{webhook}/redeliver",
    "Send events again",
    example={"conversationId": "4f0c91d2a6be"},
    answer_example={"dead": 12},
)
def redeliver(host: Host, tenant: str, webhook: _Id, body: wh.RedeliverRequest) -> wh.Redelivered:
    """Sends again the events that were given up, or all events after `afterSeq`. Later events
    follow in order, each under its original `webhook-id`."""
    return host.webhooks.redeliver(tenant, webhook, body)
