"""What goes in and out of the routes of webhooks."""

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
    """A new webhook: the `url` that is sent to, of which `events` (none: all), for one conversation
    or all of the tenant's. `begin` is where in conversations that are there already: with what
    comes from `now` on, or at their `start`. Without a `secret` one is made."""

    url: _Url
    events: _Events = []
    conversation_id: _Conversation | None = None
    begin: Literal["now", "start"] = "now"
    secret: _Secret | None = None

    def __repr__(self) -> str:
        return f"WebhookRequest(events={self.events!r})"  # a URL may hold a password, too


class WebhookChange(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is to be another; what is left out stays. `enabled`: send, at once what failed, or do
    not."""

    url: _Url | None = None
    events: _Events | None = None
    enabled: bool | None = None

    def __repr__(self) -> str:
        return f"WebhookChange(events={self.events!r}, enabled={self.enabled!r})"


class SecretRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A new secret, made if none is given; for `overlap` seconds messages are signed with the old
    one, too."""

    secret: _Secret | None = None
    overlap: Annotated[float, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400.0

    def __repr__(self) -> str:
        return f"SecretRequest(overlap={self.overlap!r})"


class RedeliverRequest(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True
):
    """Send again: what was given up, in all conversations or in one; or, with `after_seq`, all that
    came after that event of one."""

    conversation_id: _Conversation | None = None
    after_seq: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | None = None


class Webhook(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A webhook. `state`: `gone` if its receiver wanted no more. In `failing` conversations an
    event was not taken, and is sent again; `dead` events were given up; `error` is why it failed
    last as a whole. `secret` is there in the answer to who made it alone."""

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
    """The webhooks of a tenant, the oldest first."""

    webhooks: list[Webhook]


class DeadEvents(msgspec.Struct, frozen=True, rename="camel"):
    """Events that were given up: `count` of those from `first_seq` to `last_seq`, the last at `at`,
    and why."""

    first_seq: int
    last_seq: int
    count: int
    at: datetime
    error: str


class Delivery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How a webhook stands in a conversation: all up to `after_seq` is done with; the next event
    has failed `attempts` times since `since`, with `error`, and is sent again at `again`."""

    conversation_id: str
    after_seq: int
    attempts: int = 0
    since: datetime | None = None
    again: datetime | None = None
    error: str = ""
    dead: list[DeadEvents] = []


class DeliveryList(msgspec.Struct, frozen=True):
    """Conversations in which a webhook fails or has given up events, by id; `next` is the cursor of
    the part that follows, None for the last."""

    deliveries: list[Delivery]
    next: str | None = None


class Redelivered(msgspec.Struct, frozen=True):
    """How many events that were given up are sent again."""

    dead: int
