"""The server name of a TLS ClientHello (RFC 6066), as OpenSSL reads it, without opening the TLS."""

from __future__ import annotations

import ssl

MAX_HELLO_BYTES = 64 * 1024


class Incomplete(Exception):
    """More bytes are needed."""


def starts_handshake(data: bytes) -> bool:
    """Return True if a stream that begins with `data` begins with a TLS handshake."""
    return data[:1] == b"\x16"


def server_name(data: bytes) -> str:
    """Return the server name of the ClientHello at the start of a stream, or "" if it names none.

    The message may be split over several records. Raises `Incomplete` if more bytes are needed.
    Raises `ValueError` if the stream does not begin with a ClientHello of TLS 1.2 or newer, or
    names two servers.
    """
    names: list[str | None] = []

    def note(_connection: object, name: str | None, _context: object) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # enough was read

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        raise Incomplete from None
    except ssl.SSLError as error:
        if not names:
            raise ValueError(f"a malformed ClientHello: {error.reason}") from None
    return names[0] or ""
