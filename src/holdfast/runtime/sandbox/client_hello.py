"""The server name of a TLS ClientHello (RFC 8446, RFC 6066), read without opening the TLS."""

from __future__ import annotations

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _HOST_NAME = 0, 0
MAX_HELLO_BYTES = 64 * 1024


class Incomplete(Exception):
    """More bytes are needed."""


class _Reader:
    """Bytes that are consumed from the front. Raises `error` if they end too early."""

    def __init__(self, data: bytes, error: Exception) -> None:
        self.data = data
        self._error = error

    def take(self, count: int) -> bytes:
        if len(self.data) < count:
            raise self._error
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))


def starts_handshake(data: bytes) -> bool:
    """Return True if a stream that begins with `data` begins with a TLS handshake."""
    return data[:1] == bytes((_HANDSHAKE,))


def server_name(data: bytes) -> str:
    """Return the server name of the ClientHello at the start of a stream, or "" if it names none.

    The message may be split over several records. Raises `Incomplete` if more bytes are needed,
    `ValueError` if the stream does not begin with a ClientHello, or names two servers.
    """
    records = _Reader(data, Incomplete())
    handshake = b""
    while len(handshake) < 4 or len(handshake) < 4 + int.from_bytes(handshake[1:4]):
        if records.number(1) != _HANDSHAKE:
            raise ValueError("another record within the ClientHello")
        records.take(2)
        handshake += records.vector(2)
    if handshake[0] != _CLIENT_HELLO:
        raise ValueError("another message than a ClientHello")
    malformed = ValueError("a malformed ClientHello")
    hello = _Reader(_Reader(handshake[1:], malformed).vector(3), malformed)
    hello.take(2 + 32)  # version, random
    hello.vector(1)  # session id
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression methods
    extensions = _Reader(hello.vector(2) if hello.data else b"", malformed)
    names: list[bytes] = []
    while extensions.data:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            entries = _Reader(_Reader(content, malformed).vector(2), malformed)
            while entries.data:
                if entries.number(1) != _HOST_NAME:
                    raise malformed
                names.append(entries.vector(2))
    if len(names) > 1:
        raise ValueError("a ClientHello that names two servers")
    return names[0].decode("ascii") if names else ""
