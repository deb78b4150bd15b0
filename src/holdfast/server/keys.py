"""The bearer keys of an agent server. Each key belongs to one tenant and is shown once, when it
is created. The server stores only its SHA-256."""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.server.limits import checked_id

if TYPE_CHECKING:
    from holdfast.server.records import Records

PREFIX = "hf_"  # lets a scanner of leaked secrets recognise the key
# The minimum length of a key that an operator chose. The hash has neither salt nor work factor, so
# the key must not be guessable.
_MIN_KEY_CHARACTERS = 16


def sign_in_link(url: str, key: str) -> str:
    """Return the address of a server's page that signs in with a key."""
    return f"{url}/#key={quote(key, safe='')}"


class KeyInfo(msgspec.Struct, frozen=True):
    """A key without its secret. `id` is the beginning of its hash."""

    id: str
    tenant: str
    label: str
    created: datetime


def _hash(key: str) -> str:
    # A key has 256 random bits, so a slow hash would add no protection and would slow each request.
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def check_key(key: str) -> None:
    """Raise `ConfigurationError` for a key that is too short, or has other characters."""
    spaced = any(character.isspace() for character in key)
    if len(key) < _MIN_KEY_CHARACTERS or not key.isascii() or spaced:
        raise ConfigurationError(
            f"A key needs at least {_MIN_KEY_CHARACTERS} ASCII characters without spaces."
        )


class Keys:
    """The keys of one server. Thread-safe. Changes by other processes take effect at once."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def create(self, tenant: str, label: str = "") -> str:
        """Create and return a new key of 256 random bits. The key cannot be shown again."""
        key = PREFIX + urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
        self.add(tenant, key, label)
        return key

    def add(self, tenant: str, key: str, label: str = "") -> None:
        """Accept a key that was generated elsewhere, once. Raises `ConfigurationError` if the key
        is too short or belongs to another tenant."""
        checked_id(tenant, "tenant")
        check_key(key)
        owner = self.tenant_of(key)
        if owner is None:
            row = _hash(key), tenant, label, datetime.now(UTC).isoformat()
            statement = "INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            self._records.run(statement, *row)
        elif owner != tenant:
            raise ConfigurationError(
                f"This key already belongs to tenant {owner!r}. Use another key for {tenant!r}."
            )

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of a key, or None. The comparison takes constant time."""
        digest = _hash(key)
        query = "SELECT hash, tenant FROM keys WHERE hash >= ? AND hash < ?"
        tenant: str | None = None
        for hashed, owner in self._records.rows(query, digest[:16], digest[:16] + "g"):
            if hmac.compare_digest(hashed, digest):
                tenant = owner
        return tenant

    def list(self) -> list[KeyInfo]:
        """Return all keys, oldest first."""
        query = "SELECT hash, tenant, label, created FROM keys ORDER BY created, hash"
        return [
            KeyInfo(hash[:16], tenant, label, datetime.fromisoformat(created))
            for hash, tenant, label, created in self._records.rows(query)
        ]

    def revoke(self, id: str) -> None:
        """Revoke a key. Raises `ConfigurationError` if no key has this id."""
        statement = "DELETE FROM keys WHERE substr(hash, 1, 16) = ?"
        if len(id) != 16 or not self._records.run(statement, id):
            raise ConfigurationError(
                f"There is no key {id!r}. This server has:"
                f" {', '.join(key.id for key in self.list()) or 'none'}."
            )
