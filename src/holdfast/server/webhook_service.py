"""Management of webhooks: create, list, change, remove, redeliver. Each webhook belongs to one
tenant."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.errors import ConfigurationError, StoreError
from holdfast.events import AnyEvent
from holdfast.server import webhook_records as stored
from holdfast.server.deliveries import Deliveries, MessageFormats, Sending
from holdfast.server.outgoing import destination_of
from holdfast.server.records import DEFAULT, Records, tenant_of
from holdfast.server.webhooks import checked_events, new_secret, secret_bytes

if TYPE_CHECKING:
    from holdfast.server.descendants import Descendants
    from holdfast.server.named_leases import NamedLeases
    from holdfast.store import Store

_LEAD_SECONDS = 10.0  # after which another server sends in place of one that died
_LOOK_SECONDS = 300.0  # the period of a search for events without a notification
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
        sending: Sending,
        most: int,
        leases: NamedLeases | None = None,
    ) -> None:
        self._leases = leases
        self._leads = leases is None  # True if this server sends the messages
        self._news = set[str]()  # conversations with events for the server that sends
        self._looked = 0.0
        self._store = store
        self._family = family
        self._most = most
        self._seal = records.seal
        self._records = stored.WebhookRecords(records, leases)
        sender = Deliveries(store, self._records, family.place, sending)
        self._deliveries = sender
        self._management_lock = threading.Lock()
        # The host calls these on appended events and removed conversations.
        self.appended, self.look, self.forget = sender.appended, sender.look, sender.forget
        if leases is not None:
            self.appended, self.look = self._appended, self._look
        self.stats = sender.stats
        self.formats: MessageFormats = sender.formats

    # --- other servers ---

    def _appended(self, id: str, events: Sequence[AnyEvent]) -> None:
        # Also if this server sends: another one may have taken that over already.
        self._news.add(id)
        if self._leads:
            self._deliveries.appended(id, events)

    def _look(self, id: str) -> None:
        self._news.add(id)
        if self._leads:
            self._deliveries.look(id)

    def tend(self) -> None:
        """Do the work of each second with other servers: one of them sends, the others tell it of
        new events. Another one takes over from a server that dies."""
        if self._leases is None:
            return
        news, self._news = self._news, set[str]()
        leads = self._leases.take(stored.WEBHOOKS, _LEAD_SECONDS)
        with self._management_lock:
            if leads and not self._leads:
                self._lead()
            elif self._leads and not leads:
                self._leads = False
                self._deliveries.stop_all()
        if not leads:
            self._records.add_news(news)
            return
        for id in self._records.take_news():
            self._deliveries.look(id)
        if (
            time.monotonic() - self._looked >= _LOOK_SECONDS
        ):  # for a server that died before it told
            self._looked = time.monotonic()
            self._deliveries.start(self._records.all())

    def _lead(self) -> None:
        """Send the messages of all webhooks in this server from now on."""
        self._leads, self._looked = True, time.monotonic()
        self._deliveries.start(self._records.all())

    @contextmanager
    def _manage(self) -> Generator[None]:
        """Change webhooks within the block. The server that does it is the one that sends."""
        with self._management_lock:
            if self._leases is not None:
                self._leases.seize(stored.WEBHOOKS, _LEAD_SECONDS)
                if not self._leads:
                    self._lead()
            yield

    def close(self) -> None:
        """Stop sending; see `Deliveries.close`. Idempotent."""
        self._deliveries.close()
        if self._leases is not None and self._leads:
            with suppress(StoreError):
                self._leases.drop(stored.WEBHOOKS)

    # --- management ---

    def create(
        self,
        tenant: str,
        request: stored.WebhookRequest,
        key: str = "",
        style: stored.WebhookStyle = stored.WebhookStyle(),
    ) -> stored.Webhook:
        """Create a webhook and return it with its secret. A repeated request under the same
        `key` returns the same webhook."""
        destination_of(request.url, self._deliveries.allowed)
        target = stored.WebhookTarget(
            request.url, _secret(request.secret), checked_events(request.events), style=style
        )
        conversation = ""
        if request.conversation_id is not None:
            conversation = self._family.place(tenant, request.conversation_id)
        hex_id = os.urandom(32).hex()
        if key:
            hex_id = self._seal.digest(f"webhook\n{tenant}\n{key}".encode()).hex()
        id, body = f"wh-{hex_id[:24]}", msgspec.json.encode(request, order="deterministic")
        digest = self._seal.digest(b"webhook\n" + body)
        new = stored.WebhookRecord(
            0, tenant, id, conversation, "making", target, digest, datetime.now(UTC)
        )
        with self._manage():
            webhook, is_new = self._records.add(new, self._most)
            if is_new:
                if request.begin == "now":
                    summaries = self._store.list([conversation] if conversation else None)
                    own = [one for one in summaries if tenant_of(one.id) == tenant and one.last_seq]
                    self._records.begin(webhook.number, [(one.id, one.last_seq) for one in own])
                webhook = self._restart(replace(webhook, state="active"))
        return self._view(webhook, webhook.target.secret)

    def list(self, tenant: str) -> stored.WebhookList:
        return stored.WebhookList([self._view(webhook) for webhook in self._records.all(tenant)])

    def styled(self, tenant: str, conversation: str) -> list[tuple[str, stored.WebhookStyle]]:
        """Return the ids and styles of the webhooks of one conversation."""
        place = self._family.place(tenant, conversation)
        webhooks = [one for one in self._records.all(tenant) if one.conversation == place]
        return [(webhook.id, webhook.target.style) for webhook in webhooks]

    def get(self, tenant: str, id: str) -> stored.Webhook:
        return self._view(self._records.find(tenant, id))

    def change(self, tenant: str, id: str, request: stored.WebhookChange) -> stored.Webhook:
        with self._manage():
            target = self._records.find(tenant, id).target
            if request.url is not None:
                destination_of(request.url, self._deliveries.allowed)
                target = replace(target, url=request.url)
            if request.events is not None:
                target = replace(target, events=checked_events(request.events))
            webhook = replace(self._stop(tenant, id), target=target)
            if request.enabled is not None:
                webhook = replace(webhook, state="active" if request.enabled else "disabled")
            # The cause of the failures may be gone, so start without a backoff.
            if request.enabled or request.url is not None:
                webhook = webhook.failed(0, 0.0, 0.0, "")
                self._records.retry(webhook.number)
            self._restart(webhook)
        return self._view(webhook)

    def rotate(self, tenant: str, id: str, request: stored.SecretRequest) -> stored.Webhook:
        """Set a new secret; the old one stays valid for a time."""
        secret = _secret(request.secret)
        with self._manage():
            webhook = self._stop(tenant, id)
            old, until = webhook.target.secret, time.time() + request.overlap
            target = replace(webhook.target, secret=secret, old=old, until=until)
            webhook = self._restart(replace(webhook, target=target))
        return self._view(webhook, secret)

    def delete(self, tenant: str, id: str) -> None:
        with self._manage():
            self._records.remove(self._stop(tenant, id).number)

    def _stop(self, tenant: str, id: str) -> stored.WebhookRecord:
        """Stop a webhook's deliveries, then return its final record."""
        self._deliveries.stop(self._records.find(tenant, id).number)
        return self._records.find(tenant, id)

    def _restart(self, webhook: stored.WebhookRecord) -> stored.WebhookRecord:
        self._records.change(webhook)
        self._deliveries.start([webhook])
        return webhook

    # --- deliveries ---

    def deliveries(
        self, tenant: str, id: str, cursor: str | None = None, limit: int = 100
    ) -> stored.DeliveryList:
        """Return the conversations in which a webhook fails or has given up events."""
        webhook = self._records.find(tenant, id)
        prefix = "" if tenant == DEFAULT else f"{tenant}/"
        after = prefix + cursor if cursor else ""
        failing = self._records.failing(webhook.number, after, limit + 1)
        page = failing[:limit]
        return stored.DeliveryList(page, page[-1].conversation_id if len(failing) > limit else None)

    def redeliver(
        self, tenant: str, id: str, request: stored.RedeliverRequest
    ) -> stored.Redelivered:
        """Send again the events that were given up, or all events after a given one."""
        conversation = request.conversation_id
        if request.after_seq is not None and conversation is None:
            raise ConfigurationError("afterSeq needs a conversationId.")
        with self._manage():
            webhook = self._records.find(tenant, id)
            if conversation is not None:
                conversation = self._family.place(tenant, conversation)
            if webhook.conversation and conversation not in (None, webhook.conversation):
                raise ConfigurationError(
                    "This webhook belongs to another conversation than conversationId."
                )
            webhook = self._stop(tenant, id)
            dead = self._records.rewind(webhook.number, conversation, request.after_seq)
            self._deliveries.start([webhook])
        return stored.Redelivered(dead)

    # --- recovery ---

    def settle(self) -> None:
        """Delete data about conversations whose removal the end of the last process interrupted."""
        conversations = self._records.conversations()
        for at in range(0, len(conversations), _LOOKUP_BATCH):
            ids = conversations[at : at + _LOOKUP_BATCH]
            existing = {one.id for one in self._store.list(ids)}
            for id in set(ids) - existing:
                self._records.forget(id)

    def recover(self) -> None:
        """Send the events that the last process did not send."""
        if self._leases is not None:
            return  # see `tend`
        with self._management_lock:
            self._deliveries.start(self._records.all())

    def _view(self, webhook: stored.WebhookRecord, secret: str | None = None) -> stored.Webhook:
        failing, dead = self._records.counts(webhook.number)
        target = webhook.target
        return stored.Webhook(
            id=webhook.id,
            url=target.url,
            events=[*target.events],
            state="active" if webhook.state == "making" else webhook.state,
            created=webhook.created,
            conversation_id=webhook.conversation.rpartition("/")[2] or None,
            failing=failing,
            dead=dead,
            error=webhook.error,
            secret=secret,
            old_secret_until=(
                stored.when(target.until) if target.old and time.time() < target.until else None
            ),
        )


def _secret(secret: str | None) -> str:
    """Return the secret that a client chose, or a new one. Raises `ConfigurationError`."""
    if secret is not None:
        secret_bytes(secret)
    return secret or new_secret()
