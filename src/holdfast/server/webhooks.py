"""A webhook's messages as Standard Webhooks has them: their bodies, ids and signatures, and
`verify` for whoever receives them.

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

TOLERANCE = 300.0  # seconds that a message may be old, or new: as the reference libraries have it
PREFIX = "whsec_"
_LEAST, _MOST, _MADE = 24, 64, 32  # bytes of a secret; the first two are the specification's

# What `TYPE.VALUE` in a filter looks at.
_VALUES: Mapping[str, str] = {"status": "status", "decision": "decision"}
TYPES = tuple(
    sorted(str(kind.__struct_config__.tag) for kind in AnyEvent.__args__ if kind is not ev.Unknown)
)


# --- receiving ---


class Received(msgspec.Struct, frozen=True):
    """A message that was verified: its `id`, which is the same if it comes again; which event of
    which conversation it tells of, and the event. `event` is None if it was too large to be sent:
    then `link` is the path on the server where it is to be had."""

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
    """What a request to a webhook's receiver tells, if its headers have a signature made with one
    of the `secrets` (several while one is being replaced).

    `body` is the request's as it came, byte for byte; `tolerance` how many seconds it may be older
    or newer than `now` (seconds since 1970). The time that it takes does not tell how much of a
    signature was right. Raises `SignatureInvalid`; `ConfigurationError` if a secret is none.
    """
    given = {name.lower(): value for name, value in headers.items()}
    id, stamp, signatures = (
        given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")
    )
    if not (id and stamp and signatures):
        raise SignatureInvalid(
            "A webhook's message has the headers webhook-id, webhook-timestamp and"
            " webhook-signature; not all are here."
        )
    keys = [secret_bytes(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    wanted = [_signature(key, id, stamp, body) for key in keys]
    found = [
        one.encode("utf-8", "replace")
        for one in signatures.split(" ")[:16]
        if one.startswith("v1,")
    ]
    good = False
    for one in wanted:
        for other in found:
            good |= hmac.compare_digest(one.encode(), other)
    if not good:
        raise SignatureInvalid(
            "The message's signature is none that was made with this secret: it is another's, or"
            " was changed on its way."
        )
    if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 12:
        raise SignatureInvalid("The message's webhook-timestamp is no number of seconds.")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise SignatureInvalid(
            f"The message is more than {tolerance:g} s old, or from the future; an honest one is"
            " sent again with a new time."
        )
    try:
        read = msgspec.json.decode(body, type=_Body)
        event = None if read.data.link else ev.decode(bytes(read.data.event))
    except ValueError as error:
        raise SignatureInvalid(
            f"The message is signed, but is none of an agent server's: {error}."
        ) from None
    return Received(
        id,
        read.type,
        read.timestamp,
        read.data.conversation_id,
        read.data.seq,
        event,
        read.data.link,
    )


# --- secrets ---


def new_secret() -> str:
    """A secret for a webhook: `whsec_` and the Base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(os.urandom(_MADE)).decode()


def secret_bytes(secret: str) -> bytes:
    """The key that a secret stands for. Raises `ConfigurationError`, which does not show it."""
    if secret.startswith(PREFIX):
        try:
            key = base64.b64decode(secret[len(PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if _LEAST <= len(key) <= _MOST:
            return key
    raise ConfigurationError(
        f"secret takes {PREFIX!r} and the Base64 of {_LEAST} to {_MOST} random bytes, as"
        " new_secret() makes it."
    )


# --- sending ---


def _signature(key: bytes, id: str, stamp: str, body: bytes) -> str:
    return (
        "v1,"
        + base64.b64encode(
            hmac.digest(
                key,
                b"%b.%b.%b"
                % (id.encode("utf-8", "replace"), stamp.encode("utf-8", "replace"), body),
                "sha256",
            )
        ).decode()
    )


def headers_of(id: str, body: bytes, secrets: Iterable[str], now: float) -> dict[str, str]:
    """The headers that sign a message, with each of the secrets."""
    stamp = str(int(now))
    signatures = " ".join(_signature(secret_bytes(secret), id, stamp, body) for secret in secrets)
    return {"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signatures}


def message_id(webhook: str, conversation: str, event: AnyEvent) -> str:
    """The `webhook-id` of an event: the same whenever it is sent by this webhook."""
    name = "\n".join((webhook, conversation, str(event.seq), event.id))
    return f"msg_{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def body_of(conversation_id: str, event: AnyEvent, largest: int) -> bytes:
    """The JSON of a message. An event of more than `largest` bytes comes as its head, with the link
    to the whole of it."""
    whole = ev.encode(event)
    data: dict[str, Any] = {
        "conversationId": conversation_id,
        "seq": event.seq,
        "event": msgspec.Raw(whole),
    }
    if len(whole) > largest:
        data["event"] = {
            "type": event.type,
            "seq": event.seq,
            "id": event.id,
            "timestamp": event.timestamp,
        }
        data["size"] = len(whole)
        data["link"] = (
            f"/api/conversations/{conversation_id}/events?after_seq={event.seq - 1}&limit=1"
        )
    return msgspec.json.encode({"type": event.type, "timestamp": event.timestamp, "data": data})


def checked_events(events: Sequence[str]) -> tuple[str, ...]:
    """A filter's event types, each once. Raises `ConfigurationError` for what is none."""
    for one in events:
        type, dot, _ = one.partition(".")
        if len(one) > 100 or type not in TYPES or (dot and type not in _VALUES):
            takes = (
                f"types of events ({', '.join(TYPES)}), and of {' and '.join(_VALUES)} those of one"
                " value, as status.finished"
            )
            raise ConfigurationError(f"events takes {takes}, not {one[:80]!r}.")
    return tuple(dict.fromkeys(events))


def wants(events: Sequence[str], event: AnyEvent) -> bool:
    """Whether a filter lets an event pass; an empty one does all."""
    if not events or event.type in events:
        return True
    value = getattr(event, _VALUES.get(event.type, ""), None)
    return f"{event.type}.{value}" in events
