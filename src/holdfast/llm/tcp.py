"""Opening of TCP sockets: name lookup, and connecting under a time limit and a cancellation."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from holdfast.errors import Cancelled, LLMConnectionError, LLMTimeout

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

# While connecting, the cancellation is polled at this interval in seconds, because shutdown() wakes
# a connecting socket on Linux only.
CONNECT_POLL_SECONDS = 0.05


def connect(
    host: str, port: int, deadline: float, cancelled: Cancellation | None, destination: str
) -> socket.socket:
    """Return a TCP socket connected to the first address of `host` that answers. A cancellation
    ends the attempt, except within the name lookup."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        failure = LLMConnectionError(
            f"Cannot find the host {host!r}: {reason}. Check base_url and the network."
        )
        # EAI_NONAME: the name does not exist, and a retry would not change that.
        failure.retryable = isinstance(error, OSError) and error.errno != socket.EAI_NONAME
        raise failure from error
    last_error: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        # An address that drops packets must not use up the time of the remaining addresses.
        remaining = max(deadline - time.monotonic(), 0.0)
        share = remaining if number + 1 == len(addresses) else remaining / 2
        try:
            return _connect_to(family, kind, protocol, address, share, cancelled)
        except OSError as error:
            last_error = error
    if isinstance(last_error, TimeoutError):
        raise LLMTimeout(
            f"{destination} did not accept a connection in time. Check base_url and the network."
        ) from last_error
    reason = getattr(last_error, "strerror", None) or str(last_error)
    raise LLMConnectionError(
        f"Cannot connect to {destination}: {reason}. Check base_url and that the server runs."
    ) from last_error


def _connect_to(
    family: int,
    kind: int,
    protocol: int,
    address: object,
    seconds: float,
    cancelled: Cancellation | None,
) -> socket.socket:
    deadline = time.monotonic() + seconds
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A model may think for minutes without sending a byte. Keep-alives keep NATs open and
        # detect a lost peer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 5)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        sock.setblocking(False)
        code = sock.connect_ex(address)  # pyright: ignore[reportArgumentType]: what getaddrinfo gave
        while code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            if cancelled:
                raise Cancelled("The model call was cancelled.")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
            if is_ready(sock, min(remaining, CONNECT_POLL_SECONDS), write=True):
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return sock
    except BaseException:
        sock.close()
        raise


def is_ready(sock: socket.socket, seconds: float, *, write: bool = False) -> bool:
    """Return True if a read (or write) would not block. Uses poll, because select fails on file
    descriptors above 1023."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLOUT if write else select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    found = select.select([] if write else [sock], [sock] if write else [], [sock], seconds)
    return any(found)
