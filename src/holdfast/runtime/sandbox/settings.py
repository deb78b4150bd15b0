"""The settings of a sandbox: mounts, limits, and the complete description of one box."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.runtime.sandbox.proxy import Proxy

# The parts of /etc that programs need and that hold no secrets.
_ETC = """\
alternatives bash.bashrc ca-certificates ca-certificates.conf crypto-policies debian_version fonts
gai.conf gitconfig host.conf inputrc java java-11-openjdk java-17-openjdk java-21-openjdk
java-25-openjdk ld.so.cache ld.so.conf ld.so.conf.d localtime lsb-release magic mime.types
nsswitch.conf openssl os-release perl pki profile profile.d protocols python3 rpc services
ssl/certs ssl/cert.pem ssl/openssl.cnf terminfo timezone xdg"""
ETC = tuple(_ETC.split())

# Paths that a box has of its own, and the file systems below which nothing can be made.
_SYSTEM = re.compile(r"/(usr|etc|bin|sbin|lib\d*|tmp|(proc|dev|sys)(/.*)?)")

_MEGABYTE = 1024**2
_GIGABYTE = 1024**3


class SandboxUnavailable(ConfigurationError):
    """No sandbox can be made on this machine. The message names the missing part and the way to get
    it."""


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host that is visible in a box.

    Raises `ConfigurationError` if `source` does not exist or a path is not absolute.

    Args:
        source: The absolute path on the host.
        target: The absolute path in the box; "" for the same path.
        writable: True if commands and file tools may change it.
    """

    source: str
    target: str = ""
    writable: bool = False

    def __post_init__(self) -> None:
        for name, path in (("source", self.source), ("target", self.target or self.source)):
            # Callers are not all typed.
            text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
            if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
                raise ConfigurationError(
                    f"A mount's {name} takes an absolute path without '..', not {path!r}."
                )
            object.__setattr__(self, name, os.path.normpath(text))
        if not os.path.exists(self.source):
            raise ConfigurationError(
                f"The mount's source {self.source!r} does not exist. Create it, or leave the mount"
                " out."
            )
        if self.target == "/" or os.path.realpath(self.source) == "/":
            raise ConfigurationError(
                "A mount cannot be the root folder /: the whole machine would be visible in the"
                " box. Mount the folders that commands need."
            )
        if _SYSTEM.fullmatch(self.target):
            raise ConfigurationError(
                f"A mount cannot have the target {self.target!r}, which is a part of each box. Use"
                " a path beside the system's folders, such as /data."
            )


@dataclass(frozen=True)
class SandboxLimits:
    """The resources of a box. Raises `ConfigurationError` for a number below 1."""

    processes: int = 512
    """Processes and threads of one box at the same time."""
    memory_bytes: int = 4 * _GIGABYTE
    """Private memory of one process. Its address space may be four times as large, because many
    programs reserve more than they use."""
    file_bytes: int = 2 * _GIGABYTE
    """The size of one file."""
    open_files: int = 1024
    """Open files of one process."""
    scratch_bytes: int = 512 * _MEGABYTE
    """The size of each private temporary file system: `/tmp` with the home folder, and
    `/dev/shm`."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value: object = getattr(self, one.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(
                    f"SandboxLimits({one.name}=...) takes a whole number from 1, not {value!r}."
                )


@dataclass(frozen=True)
class BoxSettings:
    """The complete description of one box, from which a mechanism makes its launcher."""

    workdir: Path
    """The work folder on the host, without symlinks."""
    workdir_inside: str
    """The path of the work folder in the box."""
    private: Path
    """A private folder of the host, at the same path in the box and read-only there. The runtime
    puts the scripts of commands into it."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    mounts: tuple[Mount, ...] = ()
    """The caller's mounts, after those of the system."""
    read_only: tuple[Path, ...] = ()
    """Further host folders that are visible at the same path: long outputs."""
    writable: tuple[Path, ...] = ()
    """Further host files that are writable at the same path: the state of a shell."""
    repository: tuple[tuple[str, str, bool], ...] = ()
    """Mounts within the work folder: the host's path, the path in the box, True for writable."""
    protected: tuple[Path, ...] = ()
    """Paths of the host in the work folder that no box may change or make."""
    stays: bool = False
    """True for a box that stays, whose limits are applied when it is ready; see
    `BoxLauncher.limit`."""
    proxy: Proxy | None = None
    """The proxy to the network; None for no network."""


def check_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts as a tuple. Raises `ConfigurationError` if one is not a `Mount` or two
    have the same target."""
    mounts = tuple(mounts)
    targets: set[str] = set()
    for mount in mounts:
        # Callers are not all typed.
        if not isinstance(mount, Mount):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"mounts takes Mount objects, not {mount!r}.")
        if mount.target in targets:
            raise ConfigurationError(f"Two mounts have the target {mount.target!r}.")
        targets.add(mount.target)
    return mounts
