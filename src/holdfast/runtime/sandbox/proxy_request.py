"""The head of a request to a proxy (RFC 9112), read strictly: what two programs could read in two
ways is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.runtime.sandbox.network import Address, host_and_port, parse_host, parse_port

MAX_HEAD_BYTES = 32 * 1024
_MAX_FIELDS = 100
_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) ([!-\[\]-~]{1,8192}) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_HTTP_URL = re.compile(r"http://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)
# Fields of one connection (RFC 9110, 7.6.1), and the fields that this module writes itself.
_OWN_FIELDS = frozenset(
    (
        *("connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade", "host"),
        *("content-length", "transfer-encoding", "proxy-authorization", "proxy-authenticate"),
    )
)


class MalformedRequest(ValueError):
    """A request that the proxy does not forward, because it is malformed or ambiguous."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request for a tunnel, or a plain HTTP request to forward."""

    host: str | Address
    port: int
    head: bytes = b""
    """The head to send to the host; empty for a tunnel."""
    body_bytes: int | None = 0
    """The length of the body that follows; None if it is chunked."""

    @property
    def is_tunnel(self) -> bool:
        """True for CONNECT."""
        return not self.head


def parse_request(head: bytes) -> ProxyRequest:
    """Return the request whose head, with the empty line at its end, is `head`.

    The forwarded head names the host of the target alone: other `Host` fields, and fields of the
    connection, are not passed on. The head asks the host to close the connection after the answer,
    so that one connection carries one request. Raises `MalformedRequest`.
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(lines[0])
    if matched is None:
        raise MalformedRequest("the request line is not that of HTTP/1.1")
    fields = [_parse_field(line) for line in lines[1:]]
    if len(fields) > _MAX_FIELDS:
        raise MalformedRequest(f"more than {_MAX_FIELDS} header fields")
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name.lower(), []).append(value)
    if len(values.get(b"host", ())) > 1:
        raise MalformedRequest("more than one Host field")
    body_bytes = _body_bytes(values, matched[3] == b"1")
    method, target = matched[1].decode(), matched[2].decode()
    if method == "CONNECT":
        if body_bytes != 0:
            raise MalformedRequest("CONNECT with a body")
        return ProxyRequest(*_parse_authority(target, None))
    url = _HTTP_URL.fullmatch(target)
    if url is None:
        raise MalformedRequest(
            "the target is not http://host/path; for other protocols, use CONNECT"
        )
    host, port = _parse_authority(url[1], 80)
    path = url[2] or "/"
    connection_fields = (
        b",".join(values.get(b"connection", ())).decode("latin-1").lower().split(",")
    )
    own_names = _OWN_FIELDS.union(name.strip() for name in connection_fields)
    remaining = [(name, value) for name, value in fields if name.decode().lower() not in own_names]
    authority = host_and_port(host, port)
    remaining.append((b"Host", authority.removesuffix(":80").encode()))
    remaining.append((b"Connection", b"close"))
    if body_bytes is None:
        remaining.append((b"Transfer-Encoding", b"chunked"))
    elif b"content-length" in values:
        remaining.append((b"Content-Length", str(body_bytes).encode()))
    start = f"{method} {'' if path.startswith('/') else '/'}{path} HTTP/1.1\r\n"
    forwarded = b"".join(b"%s: %s\r\n" % field for field in remaining)
    return ProxyRequest(host, port, start.encode() + forwarded + b"\r\n", body_bytes)


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    # A continuation line, a space before the colon and a lone CR or LF do not match.
    matched = _FIELD.fullmatch(line)
    if matched is None:
        raise MalformedRequest("a malformed header field")
    return matched[1], matched[2].rstrip(b" \t")


def _parse_authority(text: str, default_port: int | None) -> tuple[str | Address, int]:
    try:
        host, colon, port = text.rpartition(":")
        if default_port is not None and (not colon or text.endswith("]")):
            host, port = text, str(default_port)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if ":" not in host:
                raise ValueError("brackets around another host than an IPv6 address")
        elif ":" in host:
            raise ValueError("an IPv6 address without brackets")
        return parse_host(host), parse_port(port)
    except ValueError as error:
        raise MalformedRequest(f"the target's host and port: {error}") from None


def _body_bytes(values: dict[bytes, list[bytes]], chunked_allowed: bool) -> int | None:
    """Return the body's length, None for a chunked one. Raises `MalformedRequest` if the framings
    are mixed, repeated, or spelled in another way than the usual one (RFC 9112, 6.3)."""
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if codings:
        if lengths or not chunked_allowed or [c.lower() for c in codings] != [b"chunked"]:
            raise MalformedRequest("ambiguous framing: Transfer-Encoding")
        return None
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,18}", length) for length in lengths):
        raise MalformedRequest("ambiguous framing: Content-Length")
    return int(lengths[0]) if lengths else 0


def parse_chunk_size(line: bytes) -> int:
    """Return the size that a chunk's first line states; extensions are ignored. Raises
    `MalformedRequest`."""
    matched = re.fullmatch(rb"([0-9a-fA-F]{1,8})(?:;[\t -~]*)?\r\n", line)
    if matched is None:
        raise MalformedRequest("a malformed chunk")
    return int(matched[1], 16)
