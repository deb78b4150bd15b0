"""Bodies of requests and answers of the webhook routes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

_Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
_Events = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=100)]], msgspec.Meta(max_length=50)
]
_Conversation = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,128}$")]
_Secret = Annotated[str, msgspec.Meta(max_length=200)]


class WebhookRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new webhook.

    `url` receives the messages. `events` is the filter (empty: all events). `conversation_id`
    limits the webhook to one conversation; otherwise it covers all of the tenant's. `begin`
    applies to existing conversations: `now` sends only later events, `start` sends all. Without
    a `secret` the server generates one.
    """

    url: _Url
    events: _Events = []
    conversation_id: _Conversation | None = None
    begin: Literal["now", "start"] = "now"
    secret: _Secret | None = None

    def __repr__(self) -> str:
        return f"WebhookRequest(events={self.events!r})"  # the URL may hold a password


class WebhookChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Changes to a webhook. Omitted fields stay unchanged. `enabled` starts or stops sending;
    starting tries failed events again at once."""

    url: _Url | None = None
    events: _Events | None = None
    enabled: bool | None = None

    def __repr__(self) -> str:
        return f"WebhookChange(events={self.events!r}, enabled={self.enabled!r})"


class SecretRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new secret; without `secret` the server generates one. For `overlap` seconds messages
    are also signed with the old secret."""

    secret: _Secret | None = None
    overlap: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400.0

    def __repr__(self) -> str:
        return f"SecretRequest(overlap={self.overlap!r})"


class RedeliverRequest(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """Events to send again: those that were given up, in one or all conversations, or with
    `after_seq` all events after that one in one conversation."""

    conversation_id: _Conversation | None = None
    after_seq: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | None = None


class Webhook(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A webhook.

    `state` is `gone` if the receiver has refused further messages. In `failing` conversations an
    event was not accepted and is tried again. `dead` events were given up. `error` is the last
    error of the webhook as a whole. `secret` is set only in the answers that create or rotate
    it.
    """

    id: str
    url: str
    events: list[str]
    state: Literal["active", "disabled", "gone"]
    created: datetime
    conversation_id: str | None = None
    failing: int = 0
    dead: int = 0
    error: str = ""
    secret: str | None = None
    old_secret_until: datetime | None = None

    def __repr__(self) -> str:
        return f"Webhook(id={self.id!r}, state={self.state!r})"


class WebhookList(msgspec.Struct, frozen=True):
    """The webhooks of a tenant, oldest first."""

    webhooks: list[Webhook]


class DeadEvents(msgspec.Struct, frozen=True, rename="camel"):
    """Events that were given up: `count` of those from `first_seq` to `last_seq`. The last one
    was given up at `at`, because of `error`."""

    first_seq: int
    last_seq: int
    count: int
    at: datetime
    error: str


class Delivery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The state of a webhook in one conversation. Events up to `after_seq` are finished. The
    next one has failed `attempts` times since `since`, with `error`, and is tried again at
    `again`."""

    conversation_id: str
    after_seq: int
    attempts: int = 0
    since: datetime | None = None
    again: datetime | None = None
    error: str = ""
    dead: list[DeadEvents] = []


class DeliveryList(msgspec.Struct, frozen=True):
    """Conversations in which a webhook fails or has given up events, ordered by id. `next` is
    the cursor of the next page, None on the last one."""

    deliveries: list[Delivery]
    next: str | None = None


class Redelivered(msgspec.Struct, frozen=True):
    """The number of given-up events that are sent again."""

    dead: int
