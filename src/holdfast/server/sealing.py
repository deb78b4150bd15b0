"""Encryption of secrets at rest: AES-256-GCM under the server's key. The key is in a separate file
(mode 0600) or is passed as bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigurationError

_KEY_BYTES = 32  # AES-256
# NIST SP 800-38D 8.2.2: random nonces of this size are safe for 2**32 messages under one key.
_NONCE_BYTES = 12
_VERSION = b"\x01"
_PROOF = b"holdfast server key"


class Seal:
    """Encrypts bytes. Each ciphertext is bound to its subject (`about`), so that a row's secret
    does not open in another row. The repr shows nothing."""

    def __init__(self, key: bytes, source: str = "the server key that was given") -> None:
        if not isinstance(key, bytes) or len(key) != _KEY_BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"A server key has {_KEY_BYTES} bytes (64 hex digits in its file); {source} has"
                " another format."
            )
        self._key = key
        self._source = source

    @classmethod
    def of_file(cls, path: Path) -> Seal:
        """Return the seal for the key in a file. A missing file is created with a new key and
        mode 0600. Raises `ConfigurationError` that names the file."""
        if not path.exists():
            _make(path)
        try:
            key = bytes.fromhex(path.read_text("ascii").strip())
        except OSError as error:
            message = f"The server key {str(path)!r} cannot be read: {error.strerror}."
            raise ConfigurationError(message) from None
        except ValueError:
            key = b""
        return cls(key, f"the server key {str(path)!r}")

    def seal(self, data: bytes, about: str) -> bytes:
        """Encrypt data so that it can be neither read nor changed without the key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 40 ms of import

        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + AESGCM(self._key).encrypt(nonce, data, about.encode())

    def open(self, sealed: bytes, about: str) -> bytes:
        """Decrypt. Raises `ConfigurationError` if the key or `about` differs or the data was
        changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            nonce, data = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
            return AESGCM(self._key).decrypt(nonce, data, about.encode())
        except (InvalidTag, ValueError):
            raise ConfigurationError(
                f"The data sealed about {about!r} cannot be decrypted with {self._source}: it was"
                " sealed with another key, or was changed. Start the server with the key file that"
                " it used before."
            ) from None

    def digest(self, data: bytes) -> bytes:
        """Return a keyed hash, so that without the key no one can test guesses."""
        import hmac

        return hmac.digest(self._key, data, "sha256")

    def proof(self) -> bytes:
        """Return a token with which `check` recognises the same key."""
        return self.seal(_PROOF, "proof")

    def check(self, proof: bytes) -> None:
        """Raise `ConfigurationError` if the proof was made with another key."""
        self.open(proof, "proof")

    def __repr__(self) -> str:
        return f"<Seal with {self._source}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("A server key cannot be pickled.")


def _make(path: Path) -> None:
    """Create the file with a new key atomically. If another process creates it at the same time,
    both use the same key."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.urandom(_KEY_BYTES).hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, a link never replaces another process's key
    except OSError as error:
        message = f"The server key {str(path)!r} cannot be created: {error.strerror}."
        raise ConfigurationError(message) from None
    finally:
        draft.unlink(missing_ok=True)
