"""Management of webhooks: create, list, change, remove, redeliver. Each webhook belongs to one
tenant."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.server.deliveries import Deliveries, Sending
from holdfast.server.outgoing import destination_of
from holdfast.server.records import DEFAULT, Records, tenant_of
from holdfast.server.webhook_records import (
    DeadRange,
    WebhookCursor,
    WebhookRecord,
    WebhookRecords,
    WebhookTarget,
)
from holdfast.server.webhook_shapes import (
    DeadEvents,
    Delivery,
    DeliveryList,
    Redelivered,
    RedeliverRequest,
    SecretRequest,
    Webhook,
    WebhookChange,
    WebhookList,
    WebhookRequest,
)
from holdfast.server.webhooks import checked_events, new_secret, secret_bytes

if TYPE_CHECKING:
    from holdfast.server.descendants import Descendants
    from holdfast.store import Store

_LOOKUP_BATCH = 500  # conversations that are looked up at once


class WebhookService:
    """The webhooks of all tenants.

    All methods block, are thread-safe, and take the tenant first. An object of another tenant
    raises `NotFound` or `ConversationNotFound`, invalid input `ConfigurationError`.
    """

    def __init__(
        self,
        store: Store,
        records: Records,
        family: Descendants,
        sending: Sending | None,
        most: int,
    ) -> None:
        self._store = store
        self._family = family
        self._most = most
        self._seal = records.seal
        self._records = WebhookRecords(records)
        self._deliveries = Deliveries(store, self._records, family.place, sending or Sending())
        self._changing = threading.Lock()
        sender = self._deliveries
        # The host calls these on appended events and removed conversations.
        self.appended, self.look, self.forget = sender.appended, sender.look, sender.forget
        self.stats, self.close = sender.stats, sender.close

    # --- management ---

    def create(self, tenant: str, request: WebhookRequest, key: str = "") -> Webhook:
        """Create a webhook and return it with its secret. A repeated request under the same
        `key` returns the same webhook."""
        destination_of(request.url, self._deliveries.allowed)
        events = checked_events(request.events)
        if request.secret is not None:
            secret_bytes(request.secret)
        conversation = ""
        if request.conversation_id is not None:
            conversation = self._family.place(tenant, request.conversation_id)
        named = os.urandom(32).hex()
        if key:
            named = self._seal.digest(f"webhook\n{tenant}\n{key}".encode()).hex()
        target = WebhookTarget(request.url, request.secret or new_secret(), events)
        digest = self._seal.digest(
            b"webhook\n" + msgspec.json.encode(request, order="deterministic")
        )
        with self._changing:
            kept, new = self._records.add(
                tenant, f"wh-{named[:24]}", conversation, target, digest, self._most
            )
            if new:
                if request.begin == "now":
                    summaries = self._store.list([conversation] if conversation else None)
                    self._records.begin(
                        kept.number,
                        [
                            (one.id, one.last_seq)
                            for one in summaries
                            if tenant_of(one.id) == tenant and one.last_seq
                        ],
                    )
                kept = msgspec.structs.replace(kept, state="active")
                self._records.change(kept)
                self._deliveries.start([kept])
        return self._shown(kept, kept.target.secret)

    def list(self, tenant: str) -> WebhookList:
        """Return all webhooks of a tenant."""
        return WebhookList([self._shown(kept) for kept in self._records.all(tenant)])

    def get(self, tenant: str, id: str) -> Webhook:
        """Return one webhook."""
        return self._shown(self._records.find(tenant, id))

    def change(self, tenant: str, id: str, request: WebhookChange) -> Webhook:
        """Change a webhook's URL or events, or enable or disable it."""
        with self._changing:
            kept = self._records.find(tenant, id)
            target = kept.target
            if request.url is not None:
                destination_of(request.url, self._deliveries.allowed)
                target = msgspec.structs.replace(target, url=request.url)
            if request.events is not None:
                target = msgspec.structs.replace(target, events=checked_events(request.events))
            self._deliveries.stop(kept.number)
            kept = msgspec.structs.replace(self._records.find(tenant, id), target=target)
            if request.enabled is not None:
                state = "active" if request.enabled else "disabled"
                kept = msgspec.structs.replace(kept, state=state)
            # The cause of the failures may be gone, so start without a backoff.
            if request.enabled or request.url is not None:
                kept = msgspec.structs.replace(kept, failures=0, since=0.0, again=0.0, error="")
                self._records.retry(kept.number)
            self._records.change(kept)
            self._deliveries.start([kept])
        return self._shown(kept)

    def rotate(self, tenant: str, id: str, request: SecretRequest) -> Webhook:
        """Set a new secret; the old one stays valid for a time."""
        if request.secret is not None:
            secret_bytes(request.secret)
        with self._changing:
            self._deliveries.stop(self._records.find(tenant, id).number)
            kept = self._records.find(tenant, id)
            old = kept.target
            until = time.time() + request.overlap
            target = msgspec.structs.replace(
                old, secret=request.secret or new_secret(), old=old.secret, until=until
            )
            kept = msgspec.structs.replace(kept, target=target)
            self._records.change(kept)
            self._deliveries.start([kept])
        return self._shown(kept, target.secret)

    def delete(self, tenant: str, id: str) -> None:
        """Remove a webhook."""
        with self._changing:
            kept = self._records.find(tenant, id)
            self._deliveries.stop(kept.number)
            self._records.remove(kept.number)

    # --- deliveries ---

    def deliveries(
        self, tenant: str, id: str, cursor: str | None = None, limit: int = 100
    ) -> DeliveryList:
        """Return the conversations in which a webhook fails or has given up events."""
        kept = self._records.find(tenant, id)
        prefix = "" if tenant == DEFAULT else f"{tenant}/"
        found = self._records.failing(kept.number, prefix + cursor if cursor else "", limit + 1)
        shown = [_delivery(*one) for one in found[:limit]]
        return DeliveryList(shown, shown[-1].conversation_id if len(found) > limit else None)

    def redeliver(self, tenant: str, id: str, request: RedeliverRequest) -> Redelivered:
        """Send again the events that were given up, or all events after a given one."""
        if request.after_seq is not None and request.conversation_id is None:
            raise ConfigurationError("afterSeq needs a conversationId.")
        with self._changing:
            kept = self._records.find(tenant, id)
            conversation = request.conversation_id
            if conversation is not None:
                conversation = self._family.place(tenant, conversation)
            if kept.conversation and conversation not in (None, kept.conversation):
                raise ConfigurationError(
                    "This webhook belongs to another conversation than conversationId."
                )
            self._deliveries.stop(kept.number)
            dead = self._records.rewind(kept.number, conversation, request.after_seq)
            self._deliveries.start([self._records.find(tenant, id)])
        return Redelivered(dead)

    # --- recovery ---

    def settle(self) -> None:
        """Delete data about conversations whose removal was interrupted by the end of the last
        process."""
        known = self._records.conversations()
        for at in range(0, len(known), _LOOKUP_BATCH):
            ids = known[at : at + _LOOKUP_BATCH]
            existing = {one.id for one in self._store.list(ids)}
            for id in ids:
                if id not in existing:
                    self._records.forget(id)

    def recover(self) -> None:
        """Send the events that the last process did not send."""
        with self._changing:
            self._deliveries.start(self._records.all())

    def _shown(self, kept: WebhookRecord, secret: str | None = None) -> Webhook:
        failing, dead = self._records.counts(kept.number)
        target = kept.target
        state: Literal["active", "disabled", "gone"] = (
            "active" if kept.state == "making" else kept.state
        )
        return Webhook(
            id=kept.id,
            url=target.url,
            events=[*target.events],
            state=state,
            created=kept.created,
            conversation_id=kept.conversation.rpartition("/")[2] or None,
            failing=failing,
            dead=dead,
            error=kept.error,
            secret=secret,
            old_secret_until=(
                _when(target.until) if target.old and time.time() < target.until else None
            ),
        )


def _delivery(id: str, cursor: WebhookCursor | None, dead: Sequence[DeadRange]) -> Delivery:
    cursor = cursor or WebhookCursor(0)
    return Delivery(
        conversation_id=id.rpartition("/")[2],
        after_seq=cursor.seq,
        attempts=cursor.attempts,
        since=_when(cursor.since),
        again=_when(cursor.again),
        error=cursor.error,
        dead=[
            DeadEvents(
                one.first, one.last, one.count, datetime.fromtimestamp(one.at, UTC), one.error
            )
            for one in dead
        ],
    )


def _when(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
