"""Addresses and listening sockets of a server."""

from __future__ import annotations

import ipaddress
import socket

from holdfast.errors import ConfigurationError


def address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `:PORT` or `PORT`. Raises `ConfigurationError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(
            f"An address has the form HOST:PORT, such as 127.0.0.1:8000, not {text!r}."
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(listening: socket.socket, scheme: str = "http", host: str = "") -> str:
    """Return the address of a listening socket for clients of this machine. `host` is the name by
    which the socket was made, if it is shown."""
    bound, port = listening.getsockname()[:2]
    name = host or bound
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `ConfigurationError` if the address cannot be used."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = addresses[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}."
        ) from None
    return listening
