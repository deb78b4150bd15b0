"""A webhook's messages according to Standard Webhooks: bodies, ids and signatures, and `verify` for
receivers.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.errors import ConfigurationError, SignatureInvalid
from holdfast.events import AnyEvent
from holdfast.nesting import MAX_STORED_DEPTH, decode_json

TOLERANCE = 300.0  # seconds that a message may be old or new, as in the reference libraries
PREFIX = "whsec_"
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64  # the specification's limits
_NEW_SECRET_BYTES = 32

# The event field that `TYPE.VALUE` in a filter is compared with.
_VALUES: Mapping[str, str] = {"status": "status", "decision": "decision"}
_KNOWN = [kind for kind in AnyEvent.__args__ if kind is not ev.UnknownEvent]
TYPES = tuple(sorted(str(kind.__struct_config__.tag) for kind in _KNOWN))


# --- receiving ---


class Received(msgspec.Struct, frozen=True):
    """A verified message. `id` is the same if the message is sent again. `event` is None if the
    event was too large to be sent; then `link` is the path on the server from which to read it."""

    id: str
    type: str
    timestamp: datetime
    conversation_id: str
    seq: int
    event: AnyEvent | None
    link: str = ""


class _Data(msgspec.Struct, rename="camel"):
    conversation_id: str
    seq: int
    event: msgspec.Raw
    link: str = ""


class _Body(msgspec.Struct):
    type: str
    timestamp: datetime
    data: _Data


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secrets: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> Received:
    """Verify a request to a webhook's receiver and return its message.

    Args:
        body: The request's body as received, byte for byte.
        headers: The request's headers, including the signature.
        secrets: The secret, or several while one is being replaced.
        tolerance: Seconds that the message may be older or newer than `now`.
        now: The present time in seconds since 1970.

    The comparison takes constant time. Raises `SignatureInvalid`, and `ConfigurationError` if a
    secret is malformed.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    id, stamp, signatures = (lowered.get(name, "") for name in names)
    if not (id and stamp and signatures):
        raise SignatureInvalid(
            "The message lacks one of the headers webhook-id, webhook-timestamp and"
            " webhook-signature."
        )
    keys = [secret_bytes(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    expected = [_signature(key, id, stamp, body) for key in keys]
    signatures_sent = [one for one in signatures.split(" ")[:16] if one.startswith("v1,")]
    good = False
    for one in signatures_sent:
        for other in expected:  # all pairs, so that the time tells nothing
            good |= hmac.compare_digest(one.encode(errors="replace"), other.encode())
    if not good:
        raise SignatureInvalid(
            "The message's signature does not match this secret: it is from another sender, or was"
            " changed on its way."
        )
    if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 12:
        raise SignatureInvalid("The message's webhook-timestamp is not a number of seconds.")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise SignatureInvalid(
            f"The message is more than {tolerance:g} s old or in the future. A genuine sender"
            " repeats it with a new time."
        )
    try:
        read = decode_json(body, _Body, MAX_STORED_DEPTH)
        event = None if read.data.link else ev.decode(bytes(read.data.event))
    except ValueError as error:
        raise SignatureInvalid(
            f"The message is signed, but it is not an agent server's message: {error}."
        ) from None
    data = read.data
    return Received(id, read.type, read.timestamp, data.conversation_id, data.seq, event, data.link)


# --- secrets ---


def new_secret() -> str:
    """Return a new secret for a webhook: `whsec_` and the Base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(os.urandom(_NEW_SECRET_BYTES)).decode()


def secret_bytes(secret: str) -> bytes:
    """Return the key of a secret. Raises `ConfigurationError`, which does not show the secret."""
    if secret.startswith(PREFIX):
        try:
            key = base64.b64decode(secret[len(PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if _MIN_SECRET_BYTES <= len(key) <= _MAX_SECRET_BYTES:
            return key
    raise ConfigurationError(
        f"secret must be {PREFIX!r} followed by the Base64 of {_MIN_SECRET_BYTES} to"
        f" {_MAX_SECRET_BYTES} random bytes. new_secret() creates one."
    )


# --- sending ---


def _signature(key: bytes, id: str, stamp: str, body: bytes) -> str:
    signed = b"%b.%b.%b" % (id.encode(errors="replace"), stamp.encode(errors="replace"), body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def headers_of(id: str, body: bytes, secrets: Iterable[str], now: float) -> dict[str, str]:
    """Return the headers that sign a message with each of the secrets."""
    stamp = str(int(now))
    signatures = " ".join(_signature(secret_bytes(secret), id, stamp, body) for secret in secrets)
    return {"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signatures}


def message_id(webhook: str, conversation: str, event: AnyEvent) -> str:
    """Return the `webhook-id` of an event, the same each time that this webhook sends it."""
    name = "\n".join((webhook, conversation, str(event.seq), event.id))
    return f"msg_{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def body_of(conversation_id: str, event: AnyEvent, largest: int) -> bytes:
    """Return the JSON of a message, of a larger event only its head and a link to the whole."""
    whole = ev.encode(event)
    head = {"type": event.type, "seq": event.seq, "id": event.id, "timestamp": event.timestamp}
    large = len(whole) > largest
    content = head if large else msgspec.Raw(whole)
    data: dict[str, Any] = {"conversationId": conversation_id, "seq": event.seq, "event": content}
    if large:
        page = f"events?after_seq={event.seq - 1}&limit=1"
        data |= {"size": len(whole), "link": f"/api/conversations/{conversation_id}/{page}"}
    return msgspec.json.encode({"type": event.type, "timestamp": event.timestamp, "data": data})


def checked_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return a filter's event types without duplicates. Raises `ConfigurationError`."""
    for one in events:
        type, dot, _ = one.partition(".")
        if len(one) > 100 or type not in TYPES or (dot and type not in _VALUES):
            takes = (
                f"types of events ({', '.join(TYPES)}), and for {' and '.join(_VALUES)} also one"
                " value, such as status.finished"
            )
            raise ConfigurationError(f"events takes {takes}, not {one[:80]!r}.")
    return tuple(dict.fromkeys(events))


def wants(events: Sequence[str], event: AnyEvent) -> bool:
    """Return True if a filter accepts an event. An empty filter accepts all."""
    if not events or event.type in events:
        return True
    value = getattr(event, _VALUES.get(event.type, ""), None)
    return f"{event.type}.{value}" in events
