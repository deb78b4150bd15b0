"""Who may use an agent server: bearer keys, each of one tenant. A key is shown once, when it is
made; its SHA-256 is what is kept."""

from __future__ import annotations

import hmac
import os
from base64 import urlsafe_b64encode
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.server.limits import checked_id

if TYPE_CHECKING:
    from holdfast.server.records import Records

PREFIX = "hf_"  # so that a scanner of leaked secrets can tell what it found
# characters of a key that an operator chose: a hash without salt or work is for keys that cannot be
# guessed
_SHORTEST = 16


class KeyInfo(msgspec.Struct, frozen=True):
    """A key without its secret; `id` is the beginning of its hash."""

    id: str
    tenant: str
    label: str
    created: datetime


def _hash(key: str) -> str:
    # Of 256 random bits; a slow hash would protect a guessable secret, and cost every request.
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Keys:
    """The keys of one server. Thread-safe; other processes' changes are seen at once."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def create(self, tenant: str, label: str = "") -> str:
        """A new key of 256 random bits for a tenant. It cannot be shown again."""
        key = PREFIX + urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
        self.add(tenant, key, label)
        return key

    def add(self, tenant: str, key: str, label: str = "") -> None:
        """Let a key in that was made elsewhere; again for the same tenant does nothing. Raises
        `ConfigurationError` for one that is too short or another tenant's."""
        checked_id(tenant, "tenant")
        if (
            len(key) < _SHORTEST
            or not key.isascii()
            or any(character.isspace() for character in key)
        ):
            raise ConfigurationError(
                f"A key takes {_SHORTEST} or more ASCII characters without spaces."
            )
        found = self.tenant_of(key)
        if found is None:
            self._records.key_add(_hash(key), tenant, label)
        elif found != tenant:
            raise ConfigurationError(
                f"This key is tenant {found!r}'s already; give {tenant!r} another."
            )

    def tenant_of(self, key: str) -> str | None:
        """Whose key it is, None if nobody's. The comparison takes the same time whatever the
        key."""
        given = _hash(key)
        found = self._records.keys_like(given[:16])
        tenant: str | None = None
        for hashed, owner in found:
            if hmac.compare_digest(hashed, given):
                tenant = owner
        return tenant

    def list(self) -> list[KeyInfo]:
        """All keys, the oldest first."""
        return self._records.key_list()

    def revoke(self, id: str) -> None:
        """Let a key in no more. Raises `ConfigurationError` if there is none of that id."""
        if not self._records.key_remove(id):
            raise ConfigurationError(
                f"There is no key {id!r}. These are:"
                f" {', '.join(key.id for key in self.list()) or 'none'}."
            )
