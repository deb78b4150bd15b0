"""One HTTP/1.1 exchange over a TCP socket: connecting, and reading the response, under a timeout, a
deadline and a cancellation.

`http.client` is not used for two reasons. Its header parser (the email package) and its buffered
file layer cause two thirds of the cost of a small POST. And a timeout or cancellation in the
middle of its buffered reader leaves it unusable. The part of RFC 9112 that a client needs fits
here.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast.errors import BadResponse, Cancelled, LLMConnectionError, LLMTimeout

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

RECEIVE_BYTES = 65536
MAX_HEAD_BYTES = 262144  # bytes; the largest known heads of providers are a few KB
NO_DEADLINE = float("inf")
NO_LENGTH = 2**63  # bytes; more than any body
# While connecting, the cancellation is polled at this interval in seconds, because shutdown() wakes
# a connecting socket on Linux only.
CONNECT_POLL_SECONDS = 0.05


# Seconds to wait for each byte, the end of the exchange by `time.monotonic()`, and the flag that
# cancels it.
Limits = tuple[float, float, "Cancellation | None"]


_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]+")


class ConnectionLost(Exception):
    """The peer closed or reset the connection. `response_begun` is True if a byte of the
    response had arrived."""

    def __init__(self, reason: str, response_begun: bool) -> None:
        super().__init__(reason)
        self.response_begun = response_begun


class HttpConnection:
    """A connected socket and the exchange that is running on it.

    `abort` may be called from any thread. All other methods belong to the thread that took the
    connection from the pool.
    """

    __slots__ = (
        *("_lock", "address", "cancelled", "deadline", "idle_since"),
        *("pool_closes", "read_timeout", "reused", "sock", "socket_timeout", "unregister"),
    )

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock = sock
        self.address = address
        self.reused = False
        self.idle_since = 0.0
        self.pool_closes = 0  # how often the pool had been closed when the exchange began
        # The socket's current timeout, kept to avoid a system call per read.
        self.socket_timeout: float | None = None
        self.read_timeout = 0.0
        self.deadline = NO_DEADLINE
        self.cancelled: Cancellation | None = None
        self.unregister: Callable[[], None] | None = None
        self._lock = threading.Lock()

    # --- exchanges ---

    def begin(self, read_timeout: float, deadline: float, cancelled: Cancellation | None) -> None:
        """Start an exchange under these limits."""
        self.read_timeout = read_timeout
        self.deadline = deadline
        self.cancelled = cancelled
        # The flag is set before the callback runs. So a reader that shutdown() wakes sees the flag
        # and does not take the end of the stream for the end of the answer.
        self.unregister = cancelled.add_callback(self.abort) if cancelled is not None else None

    def end(self) -> bool:
        """End the exchange. Return True if the connection may serve another one."""
        unregister, self.unregister = self.unregister, None
        if unregister is not None:
            unregister()
        # The order matters: after `unregister`, a cancellation does not touch the socket, and an
        # earlier one is visible here.
        usable = not self.cancelled
        self.cancelled = None
        return usable

    def abort(self) -> None:
        """Wake the thread that reads or writes, from another thread. Does not block or raise."""
        with self._lock:
            try:
                # Not `self.sock.shutdown`, because an SSLSocket first drops the TLS state that the
                # reading thread uses.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                pass

    def replace(self, sock: socket.socket) -> None:
        """Continue with the TLS socket that took over this socket's file descriptor."""
        with self._lock:  # `abort` must see either the old or the new socket
            self.sock = sock
        self.socket_timeout = None
        self.check()

    def close(self) -> None:
        """Close the socket at once, without a TLS close notification."""
        self.end()
        with self._lock:  # so that `abort` never uses a reused file descriptor
            try:
                self.sock.close()
            except OSError:
                pass

    # --- errors ---

    def check(self) -> None:
        """Raise `Cancelled` if the call was cancelled."""
        if self.cancelled:
            raise Cancelled("The model call was cancelled.")

    def timeout_error(self) -> LLMTimeout:
        """Return the error for a socket timeout."""
        if time.monotonic() >= self.deadline:
            return LLMTimeout(f"{self.address} did not answer before the deadline.")
        return LLMTimeout(f"{self.address} sent nothing for {self.read_timeout:g} s.")

    def lost_error(self, error: ConnectionLost) -> LLMConnectionError:
        """Return the public error for a lost connection."""
        return LLMConnectionError(f"The connection to {self.address} broke: {error}.")

    # --- bytes ---

    def apply_timeout(self) -> None:
        """Set the socket's timeout to the read timeout or the time left until the deadline,
        whichever is shorter."""
        timeout = self.read_timeout
        if self.deadline != NO_DEADLINE:
            remaining = self.deadline - time.monotonic()
            if remaining <= 0:
                raise self.timeout_error()
            timeout = min(timeout, remaining)
        if timeout != self.socket_timeout:
            self.sock.settimeout(timeout)
            self.socket_timeout = timeout

    def send(self, head: bytes, body: bytes) -> None:
        """Write a request. A peer that hangs up meanwhile raises no error yet, because it may
        have answered first."""
        self.apply_timeout()
        try:
            if len(body) <= 16384:
                # One packet or TLS record instead of two. The copy is cheaper than the system call.
                self.sock.sendall(head + body)
            else:
                self.sock.sendall(head)
                self.sock.sendall(body)
        except TimeoutError:
            raise self.timeout_error() from None
        except OSError as error:
            self.check()
            if not isinstance(error, ConnectionError):
                raise ConnectionLost(str(error), False) from error

    def receive(self, response_begun: bool = True) -> bytes:
        """Return some bytes, or b"" at the end of the peer's stream."""
        self.apply_timeout()
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            self.check()
            raise self.timeout_error() from None
        except (OSError, ValueError) as error:
            # ValueError: a TLS socket that the peer closed within a record.
            self.check()
            raise ConnectionLost(str(error), response_begun) from error
        if self.cancelled:
            self.check()
        return data


def read_head(connection: HttpConnection) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers (names in lower case) and the first bytes of the body, without
    interim 1xx responses. Raises `ConnectionLost`, or `BadResponse` if the peer speaks no HTTP/1.
    """
    data = b""
    while True:
        end = data.find(b"\r\n\r\n")
        size = 4
        if end < 0:
            # Some simple servers send this, and RFC 9112 2.2 permits accepting it.
            end = data.find(b"\n\n")
            size = 2
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise BadResponse(
                    f"{connection.address} sent headers longer than {MAX_HEAD_BYTES} bytes."
                )
            more = connection.receive(bool(data))
            if not more:
                reason = "closed by the peer" + (" within the headers" if data else "")
                raise ConnectionLost(reason, bool(data))
            data += more
            continue
        status, headers = parse_head(data[:end].decode("latin-1"), connection.address)
        data = data[end + size :]
        if status >= 200 or status == 101:
            return status, headers, data


def parse_head(text: str, address: str) -> tuple[int, dict[str, str]]:
    """Return the status and headers of a response head. Repeated headers are joined by ", "."""
    lines = text.split("\n")
    first = lines[0].split(None, 2)
    is_http = len(first) > 1 and first[0].startswith("HTTP/1.")
    if not is_http or not first[1].isdecimal() or len(first[1]) != 3:
        raise BadResponse(
            f"{address} does not speak HTTP/1: its answer begins {lines[0][:80]!r}. Check base_url."
        )
    headers: dict[str, str] = {}
    if first[0] == "HTTP/1.0":
        headers["connection"] = "close"
    name = ""
    for line in lines[1:]:
        if line[:1] in (" ", "\t") and name:  # a folded line, obsolete but legal to read
            headers[name] += " " + line.strip()
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise BadResponse(f"{address} sent a header line without a colon: {line[:80]!r}.")
        name = name.strip().lower()
        value = value.strip()
        repeated = name in headers and name != "connection"
        headers[name] = f"{headers[name]}, {value}" if repeated else value
    return int(first[1]), headers


def body_chunks(
    connection: HttpConnection, status: int, headers: dict[str, str], data: bytes
) -> Iterator[bytes]:
    """Yield the body's chunks as they arrive. Sets `headers["connection"]` to "close" if the
    connection cannot be reused. Raises `ConnectionLost` if the peer hangs up too early."""
    if status in (204, 304):
        return
    if "chunked" in headers.get("transfer-encoding", "").lower():
        yield from _chunked_body(connection, data)
        return
    content_length = headers.get("content-length")
    remaining = NO_LENGTH
    if content_length is None:  # the end of the connection ends the body
        headers["connection"] = "close"
    else:
        length = content_length.partition(",")[0]
        if not length.isdecimal():
            value = repr(content_length[:40])
            raise BadResponse(f"{connection.address} sent a Content-Length of {value}.")
        remaining = int(length)
    while True:
        if len(data) > remaining:  # excess bytes: the connection is out of sync
            headers["connection"] = "close"
            data = data[:remaining]
        if data:
            remaining -= len(data)
            yield data
        if not remaining:
            return
        data = connection.receive()
        if not data:
            if content_length is None:
                return
            reason = f"closed by the peer {remaining} bytes before the end of the answer"
            raise ConnectionLost(reason, True)


def _chunked_body(connection: HttpConnection, data: bytes) -> Iterator[bytes]:
    """Yield a body in chunked transfer coding (RFC 9112 7.1). The chunks of one read are yielded
    as one piece, before the next read blocks."""
    pieces: list[bytes] = []
    at = 0
    remaining = 0  # bytes left of the current chunk
    expected = "size"  # the next line: "size", the "break" after a chunk, or the "trailer"

    while True:
        piece = data[at : at + remaining]
        if piece:
            pieces.append(piece)
            at += len(piece)
            remaining -= len(piece)
        while not remaining:
            end = data.find(b"\n", at)
            if end < 0:
                break
            line = data[at:end].strip()
            at = end + 1
            if expected == "size":
                size = line.partition(b";")[0].strip()
                if not _HEXADECIMAL.fullmatch(size):
                    raise BadResponse(f"{connection.address} sent a chunk size of {line[:40]!r}.")
                remaining = int(size, 16)
                expected = "break" if remaining else "trailer"
            elif expected == "break":
                if line:
                    raise BadResponse(f"{connection.address} sent a chunk longer than announced.")
                expected = "size"
            elif not line:
                if at < len(data):
                    raise BadResponse(f"{connection.address} sent more than its chunked answer.")
                if pieces:
                    yield b"".join(pieces)
                return
        if remaining and at < len(data):
            continue
        if pieces:
            yield b"".join(pieces)
            pieces.clear()
        rest = data[at:]
        if len(rest) > MAX_HEAD_BYTES:
            raise BadResponse(
                f"{connection.address} sent a chunk header longer than {MAX_HEAD_BYTES} bytes."
            )
        more = connection.receive()
        if not more:
            raise ConnectionLost("closed by the peer before the end of the answer", True)
        data = rest + more if rest else more
        at = 0


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
    for number, address in enumerate(addresses):
        # An address that drops packets must not use up the time of the remaining addresses.
        remaining = max(deadline - time.monotonic(), 0.0)
        share = remaining if number + 1 == len(addresses) else remaining / 2
        try:
            return _connect_to(address, share, cancelled)
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
    address_info: tuple[int, int, int, str, object], seconds: float, cancelled: Cancellation | None
) -> socket.socket:
    deadline = time.monotonic() + seconds
    sock = socket.socket(*address_info[:3])
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A model may think for minutes without sending a byte. Keep-alives keep NATs open and
        # detect a lost peer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 5)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        sock.setblocking(False)
        code = sock.connect_ex(address_info[4])  # pyright: ignore[reportArgumentType]: what getaddrinfo gave
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
    ready = select.select([] if write else [sock], [sock] if write else [], [sock], seconds)
    return any(ready)
