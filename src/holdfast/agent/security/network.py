"""Rules on hosts: which are allowed, which are private, and what an address really is."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, Finding

_LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost")
_INTERNAL = (".internal", ".local", ".lan", ".intranet", ".corp", ".home.arpa", ".localdomain")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", re.ASCII)
# Letters that a shell, a resolver or a person may take for others.
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+", re.ASCII)


def is_url(text: str) -> bool:
    """Whether a text begins as an address with a scheme."""
    return _URL.match(text) is not None


def host_of(url: str) -> str:
    """The host of an address, with or without a scheme, in small letters; "" if it has none. Raises `ValueError`."""
    parts = urlsplit(url if _URL.match(url) else f"http://{url}")
    return (parts.hostname or "").rstrip(".")


def fetch(url: str, hosts: Sequence[str], sends: str = "") -> Finding:
    """Asking a host for something; with `sends`, which says what, also giving it something."""
    scheme = _URL.match(url)
    if scheme is not None and scheme[1].lower() not in ("http", "https", "git", "ftp", "ftps"):
        return Finding(HIGH, f"uses {scheme[1]}://, which is no way to fetch something")
    try:
        host = host_of(url)
    except ValueError:
        return Finding(HIGH, f"the address {_shown(url)} cannot be read")
    if not host or not _HOST.fullmatch(host):
        return Finding(HIGH, f"the address {_shown(url)} has no host, or one in other letters")
    if sends and any(fnmatchcase(host, pattern.lower()) for pattern in hosts):
        return Finding(MEDIUM, f"{sends} to {host}")
    if any(fnmatchcase(host, pattern.lower()) for pattern in hosts):
        return Finding(LOW, f"fetches from {host}")
    where = _where(host)
    if where == "this machine":
        return Finding(HIGH if sends else MEDIUM, f"{sends or 'talks'} to {host}, which is this machine")
    if where:
        return Finding(HIGH, f"reaches {host}, {where}")
    if sends:
        return Finding(HIGH, f"{sends} to {host}")
    return Finding(MEDIUM, f"fetches from {host}")


def _where(host: str) -> str:
    """What a host is if it is not a public one."""
    if host in _LOCAL or host.endswith(".localhost"):
        return "this machine"
    if host.endswith(_INTERNAL) or ("." not in host and ":" not in host and not host.isdecimal() and not host.startswith("0x")):
        return "which is of a private network"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        try:  # 127.1, 0x7f000001, 2130706433, 0177.0.0.1: what inet_aton takes for an address, so do programs
            address = ipaddress.ip_address(socket.inet_aton(host))
        except OSError:
            return ""
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local:
        return "where machines keep their own credentials (metadata)"
    return "" if address.is_global else "which is of a private network"


def _shown(url: str) -> str:
    return url if len(url) <= 80 else f"{url[:77]}..."
