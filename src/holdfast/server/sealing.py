"""Secrets at rest: AES-256-GCM under one key of the server's, which lives in a file of its own
(mode 0600) or is given."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigurationError

_BYTES = 32  # AES-256
_NONCE = 12  # bytes, NIST SP 800-38D 8.2.2: random ones are safe for 2**32 messages under one key
_VERSION = b"\x01"
_PROOF = b"holdfast server key"


class Seal:
    """Seals bytes, each bound to what it is `about`: a row's secret does not open in another row.
    Its repr shows nothing."""

    __slots__ = ("_key", "_source")

    def __init__(self, key: bytes, source: str = "the server key that was given") -> None:
        if not isinstance(key, bytes) or len(key) != _BYTES:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"A server key takes {_BYTES} bytes (64 hex digits in its file); {source} has"
                " something else."
            )
        self._key = key
        self._source = source

    @classmethod
    def of_file(cls, path: Path) -> Seal:
        """The key in a file; made there, with mode 0600, if there is none. Raises
        `ConfigurationError` naming the file."""
        if not path.exists():
            _make(path)
        try:
            key = bytes.fromhex(path.read_text("ascii").strip())
        except OSError as error:
            raise ConfigurationError(
                f"The server key {str(path)!r} cannot be read: {error.strerror}."
            ) from None
        except ValueError:
            key = b""
        return cls(key, f"the server key {str(path)!r}")

    def seal(self, data: bytes, about: str) -> bytes:
        """The data so that nobody without the key can read or change it."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 40 ms of import

        nonce = os.urandom(_NONCE)
        return _VERSION + nonce + AESGCM(self._key).encrypt(nonce, data, about.encode())

    def open(self, sealed: bytes, about: str) -> bytes:
        """The inverse of `seal`. Raises `ConfigurationError` if it was sealed with another key,
        about something else, or was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return AESGCM(self._key).decrypt(
                sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :], about.encode()
            )
        except (InvalidTag, ValueError):
            raise ConfigurationError(
                f"What was sealed about {about!r} does not open with {self._source}: it was sealed"
                " with another key, or was changed since. Start the server with the key file that"
                " it had before."
            ) from None

    def digest(self, data: bytes) -> bytes:
        """By which data is known again. Without the key nobody can try out what it may be of."""
        import hmac

        return hmac.digest(self._key, data, "sha256")

    def proof(self) -> bytes:
        """Something by which the same key is known again (`check`)."""
        return self.seal(_PROOF, "proof")

    def check(self, proof: bytes) -> None:
        """Raises `ConfigurationError` if the proof was made with another key."""
        self.open(proof, "proof")

    def __repr__(self) -> str:
        return f"<Seal with {self._source}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("A server key is not pickled.")


def _make(path: Path) -> None:
    """A new key in the file, whole or not at all; if another process makes it at the same time, one
    of the two keys is both's."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.urandom(_BYTES).hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, it takes no other's key away
    except OSError as error:
        raise ConfigurationError(
            f"The server key {str(path)!r} cannot be made: {error.strerror}."
        ) from None
    finally:
        draft.unlink(missing_ok=True)
