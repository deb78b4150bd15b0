"""Allow-lists of a sandbox's network: the hosts, ports and addresses that it may connect to.

A name is compared in one form only: lower-case ASCII labels without a final dot. An address is
compared as a number. Every other spelling is refused, so that no two programs can read one
spelling as two hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from holdfast.errors import ConfigurationError

Address = IPv4Address | IPv6Address

WEB_PORTS = frozenset((80, 443))
"""The ports of an entry that names none."""
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# `127.1`, `0x7f000001` and `0177.0.0.1` are addresses for the resolver of a system.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")

# RFC 6890 and its registries, and addresses within public ranges that clouds use internally.
_SPECIAL_IPV4 = [
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",  # Azure's host agent
    )
]
# Global unicast without the ranges in it that carry or stand for other addresses: Teredo and
# other protocols of 2001::/23, documentation, 6to4. IPv4-mapped, -compatible and -translated
# forms, NAT64, link-local, private and multicast addresses are outside of it.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_SPECIAL_IPV6 = [
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_NAT64 = IPv6Network("64:ff9b::/96")


def parse_host(text: str) -> str | Address:
    """Return an address, or a name in its one form. An IPv6 address stands without brackets.

    Raises `ValueError` for any other text, such as another spelling of an address, or an address
    with a zone. A name must not have an empty label or characters beyond ASCII letters, digits, `-`
    and `_`.
    """
    try:
        return ip_address(_without_zone(text))
    except ValueError:
        pass
    name = text.lower().removesuffix(".") if text.isascii() else ""
    labels = name.split(".")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{text!r} is not a host name or an address in its usual form")
    return name


def _without_zone(text: str) -> str:
    if "%" in text:
        raise ValueError("an address with a zone")
    return text


def parse_port(text: str) -> int:
    """Return a port. Raises `ValueError` unless it is a decimal number from 1 to 65535."""
    port = int(text) if text.isascii() and _PORT.fullmatch(text) else 0
    if not 0 < port < 65536:
        raise ValueError(f"{text!r} is not a port")
    return port


def host_and_port(host: str | Address, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


def is_public(address: Address) -> bool:
    """Return True for an address of the public internet that stands for no other one."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_IPV4)
    if address not in _GLOBAL_IPV6 or any(address in network for network in _SPECIAL_IPV6):
        return False
    # ISATAP: an interface id of 0000:5efe or 0200:5efe carries an IPv4 address.
    return (int(address) >> 32) & 0xFDFFFFFF != 0x00005EFE


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of an allow-list: a name, the subdomains of a name, or a range of addresses."""

    text: str
    host: str | IPv4Network | IPv6Network
    subdomains: bool
    ports: frozenset[int] | None
    """None for every port."""

    def names(self, host: str | Address) -> bool:
        if isinstance(self.host, str):
            if self.subdomains:
                return isinstance(host, str) and host.endswith(f".{self.host}")
            return host == self.host
        return not isinstance(host, str) and host in self.host

    def opens(self, port: int) -> bool:
        return self.ports is None or port in self.ports


class AllowList:
    """The hosts that a sandbox may connect to. An empty list allows none.

    | entry | allows |
    |---|---|
    | `pypi.org` | this host, on the ports 80 and 443 |
    | `*.example.com` | its subdomains of any depth, not `example.com` itself |
    | `example.com:8443`, `example.com:*` | another port, every port |
    | `10.1.2.3`, `10.1.0.0/16`, `[fd00::1]:8080` | addresses, and names that resolve to them |
    | `localhost:8000` | this port of the machine that the sandbox runs on |

    A name that resolves to a loopback, private, link-local or otherwise special address is allowed
    only if another entry names that address. Names beyond ASCII are written as `xn--...`. Raises
    `ConfigurationError` for an entry that cannot be checked.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        # Callers are not all typed: a text is a sequence of texts too.
        texts = isinstance(hosts, Sequence) and not isinstance(hosts, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not texts or not all(isinstance(host, str) for host in hosts):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"network takes 'none' or a list of hosts such as ['pypi.org'], not {hosts!r}."
            )
        self.hosts = tuple(hosts)
        self._entries = [_parse_entry(host) for host in hosts]
        for entry in self._entries.copy():
            if entry.host == "localhost":
                for network in (IPv4Network("127.0.0.1"), IPv6Network("::1")):
                    self._entries.append(_Entry(entry.text, network, False, entry.ports))

    @property
    def names_this_machine(self) -> bool:
        """True if an entry names a loopback address."""
        return any(
            entry.names(address)
            for entry in self._entries
            for address in (IPv4Address("127.0.0.1"), IPv6Address("::1"))
        )

    def refusal(self, host: str | Address, port: int) -> str:
        """Return "" if the list names the host and the port; else a sentence that says what would
        allow it. For a name, the resolved address must be checked as well."""
        if any(entry.names(host) and entry.opens(port) for entry in self._entries):
            return ""
        target = host_and_port(host, port)
        bare = f"[{host}]" if isinstance(host, IPv6Address) else str(host)
        return f"{target} is not allowed in this sandbox. {_advice(bare, port)}"

    def address_refusal(self, host: str, address: Address, port: int, own: bool = False) -> str:
        """Return "" if a connection to an allowed host may go to this address; else a sentence that
        says what would allow it. `own` says that it is an address of this machine."""
        is_named = any(entry.names(address) and entry.opens(port) for entry in self._entries)
        if isinstance(address, IPv6Address) and address in _NAT64:
            # On a named NAT64 prefix, the address inside counts.
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
            is_named = is_named and not self.address_refusal(host, inner, port)
        if is_named or (is_public(address) and not own):
            return ""
        bare = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
        what = "this machine" if own else "not an address of the public internet"
        return f"{host} resolves to {address}, which is {what}. {_advice(bare, port)}"


def _advice(host: str, port: int) -> str:
    entry = host if port in WEB_PORTS else f"{host}:{port}"
    return f"To allow it: --network {entry}, or SandboxedRuntime(network=[..., {entry!r}])."


def _parse_entry(text: str) -> _Entry:
    host, ports = text, WEB_PORTS
    try:
        if text.startswith("["):
            inner, bracket, rest = text[1:].partition("]")
            if not bracket or ":" not in inner:
                raise ValueError("brackets stand around an IPv6 address")
            host, ports = inner, _parse_ports(rest, text)
        elif text.count(":") == 1:
            host, colon, rest = text.partition(":")
            ports = _parse_ports(colon + rest, text)
        if "/" in host:
            return _Entry(text, ip_network(_without_zone(host)), False, ports)
        subdomains = host.startswith("*.")
        parsed = parse_host(host.removeprefix("*."))
        if isinstance(parsed, str):
            if subdomains and "." not in parsed:
                raise ValueError("a whole top-level domain is not a list of hosts")
            return _Entry(text, parsed, subdomains, ports)
        if subdomains:
            raise ValueError("an address has no subdomains")
        return _Entry(text, ip_network(parsed), False, ports)
    except ValueError as error:
        raise ConfigurationError(
            f"network has an entry that cannot be checked, {text!r}: {error}. Entries are"
            " 'example.com', '*.example.com', '10.1.2.3', '10.1.0.0/16' or '[::1]', each with"
            " ':port' or ':*' if it is not for the ports 80 and 443."
        ) from None


def _parse_ports(text: str, entry: str) -> frozenset[int] | None:
    if not text:
        return WEB_PORTS
    if not text.startswith(":"):
        raise ValueError(f"{text!r} follows the host")
    return None if text == ":*" else frozenset((parse_port(text[1:]),))
