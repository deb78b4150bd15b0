"""Rules on hosts: which are allowed, which are private, and what an address really is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, RiskFinding
from holdfast.runtime.confinement import Confinement

_LOCAL = re.compile(r"(?:.*\.)?localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|::1?")
# Names of private networks, and addresses in any notation: 127.1, 0x7f000001, 2130706433, ::1.
_INTERNAL = re.compile(
    r"[^.]*|.*(?::.*|\.(?:internal|local|lan|intranet|corp|home\.arpa|localdomain|(?!xn--)[^.]*\d[^.]*))"
)
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", re.ASCII)
# Other letters may be taken for these by a shell, a resolver or a person.
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+", re.ASCII)


def is_url(text: str) -> bool:
    """Return whether a text begins as an address with a scheme."""
    return _URL.match(text) is not None


def fetch(
    url: str, hosts: Sequence[str], sends: str = "", confinement: Confinement | None = None
) -> RiskFinding:
    """Judge asking a host; with `sends`, which says what, also giving it something. `hosts` are
    patterns of those that may be asked, and `confinement` the bounds of the sandbox, if any."""
    scheme, shown = _URL.match(url), url if len(url) <= 80 else f"{url[:77]}..."
    if scheme is not None and scheme[1].lower() not in ("http", "https", "git", "ftp", "ftps"):
        return RiskFinding(HIGH, f"uses {scheme[1]}://, which is no way to fetch something")
    try:
        host = (urlsplit(url if scheme else f"http://{url}").hostname or "").rstrip(".")
    except ValueError:
        return RiskFinding(HIGH, f"the address {shown} cannot be read")
    if not host or not _HOST.fullmatch(host):
        return RiskFinding(HIGH, f"the address {shown} has no host, or one in other letters")
    act = f"{sends} to {host}" if sends else f"fetches from {host}"
    if any(fnmatchcase(host, pattern.lower()) for pattern in hosts):
        return RiskFinding(MEDIUM if sends else LOW, act)
    if confinement is not None and not confinement.hosts:
        return RiskFinding(MEDIUM, f"{act}, from which the sandbox keeps it")
    if _LOCAL.fullmatch(host):
        act = f"{sends or 'talks'} to {host}, which is this machine"
    elif _INTERNAL.fullmatch(host):
        return RiskFinding(HIGH, f"reaches {host}, which may be of a private network")
    return RiskFinding(HIGH if sends else MEDIUM, act)
