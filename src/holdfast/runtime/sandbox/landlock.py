"""`Landlock`: boxes without namespaces, made by the kernel's Landlock and seccomp."""

from __future__ import annotations

import marshal
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from holdfast.runtime.sandbox import seccomp
from holdfast.runtime.sandbox.settings import ETC, BoxSettings
from holdfast.tools.launch import Launch

# Runs `landlock_child.py`, which the plan's file begins with, compiled.
_START = (
    "import marshal, sys; file = open(int(sys.argv[1]), 'rb'); code = {'__name__': 'box'};"
    " exec(marshal.load(file), code); code['main'](file)"
)
# The user and group of the boxes of root, if the work folder has no other owner: numbers that
# neither people nor packages get.
_USER_ID = 61_444

# Bits of LANDLOCK_ACCESS_FS.
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ_ONLY = _EXECUTE | _READ | _LIST
# All but making devices and sockets, and the ioctl of devices.
_READ_WRITE = (1 << 15) - 1 & ~(1 << 6 | 1 << 9 | 1 << 11)
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Files of /proc that name no process.
_PROC = (
    *("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version"),
    *("sys/kernel/osrelease", "sys/kernel/ostype", "sys/kernel/pid_max", "sys/kernel/version"),
    *("sys/kernel/cap_last_cap", "sys/kernel/ngroups_max", "sys/vm/overcommit_memory"),
)


class Landlock:
    """The mechanism for machines that permit no user namespaces. An unprivileged user's commands
    keep that user; root's get the owner of the work folder, who must not be root."""

    name = "landlock"

    def missing(self) -> str:
        """Return the reason why no box can be made, and how to get one; "" if one was made."""
        return _problem()

    def refuses(self, box: BoxSettings) -> str:
        """Return the reason why this box cannot be made; "" if it can."""
        if box.proxy_socket is not None:
            return (
                "Landlock limits connections by port, not by host. Use mechanism='bubblewrap', or"
                " network='none'."
            )
        moved = [mount for mount in box.mounts if mount.target != mount.source]
        if box.workdir_inside != str(box.workdir) or moved:
            path = moved[0].source if moved else str(box.workdir)
            return f"Landlock cannot show {path} at another path. Leave the path inside out."
        if os.geteuid() == 0:
            return _user_problem(box)
        return ""

    def home(self, private: Path) -> str:
        """Return the home folder in a box, below the private folder."""
        return str(private / "home")

    def launcher(self, box: BoxSettings) -> LandlockLauncher:
        """Return a launcher of processes that each are the first of a new box."""
        return LandlockLauncher(box)


@lru_cache(maxsize=1)
def _child_code() -> bytes:
    path = Path(__file__).with_name("landlock_child.py")
    return marshal.dumps(compile(path.read_text(), str(path), "exec"))


@lru_cache(maxsize=1)
def _problem() -> str:
    if sys.platform != "linux" or not seccomp.supported():
        return "it needs Linux on x86-64 or aarch64."
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        os.chmod(folder, 0o711)
        workdir, private = Path(folder, "work"), Path(folder, "private")
        workdir.mkdir()
        private.mkdir()
        box = BoxSettings(workdir, str(workdir), private, str(private / "home"))
        launch = LandlockLauncher(box).command(["true"], cwd=None, env={"PATH": "/usr/bin:/bin"})
        done = subprocess.run(
            launch.argv, pass_fds=launch.pass_fds, env={}, capture_output=True, check=False
        )
        for fd in launch.pass_fds:
            os.close(fd)
    if done.returncode == 0:
        return ""
    return f"no box could be made: {os.fsdecode(done.stderr).strip() or done.returncode}."


def _box_user(workdir: Path) -> tuple[int, int]:
    """Return the user and group of the boxes of root."""
    found = os.stat(workdir)
    return found.st_uid or _USER_ID, found.st_gid or _USER_ID


def _user_problem(box: BoxSettings) -> str:
    """Return the reason why root cannot give up its rights for this box; "" if it can."""
    workdir = box.workdir
    if os.stat(workdir).st_uid == 0 and any(os.scandir(workdir)):
        return (
            f"the commands of root run as another user, but {workdir} belongs to root. Give it"
            f" away (chown -R {_USER_ID}:{_USER_ID} {workdir}), or run as another user."
        )
    user, group = _box_user(workdir)
    for folder in (*workdir.parents, *box.private.parents):
        found = os.stat(folder)
        allowed = found.st_mode >> (
            6 if found.st_uid == user else 3 if found.st_gid == group else 0
        )
        if not allowed & 1:
            return f"the commands of root run as another user, who may not enter {folder}."
    return ""


def _system_folders() -> list[str]:
    names = [name for name in os.listdir("/") if re.fullmatch(r"usr|bin|sbin|lib\d*", name)]
    return [f"/{name}" for name in names]


class LandlockLauncher:
    """Starts each command confined, with a reaper that ends what it leaves.

    As root, it makes the private folder readable for the user of the box, and gives that user an
    empty work folder.
    """

    def __init__(self, box: BoxSettings) -> None:
        self._box = box
        self._home = box.home
        self._temporary = str(box.private / "tmp")
        self._user: tuple[int, int] | None = None
        if os.geteuid() == 0:
            self._user = _box_user(box.workdir)
            os.chown(box.workdir, *self._user)
            os.chmod(box.private, 0o711)
        for path in (self._home, self._temporary):
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._give(path)
        limits = box.limits
        self._limits = {
            "CORE": 0,
            "NPROC": limits.processes,
            "DATA": limits.memory_bytes,
            "AS": limits.memory_bytes * 4,
            "FSIZE": limits.file_bytes,
            "NOFILE": limits.open_files,
        }
        self._rules = [(path, _READ_ONLY) for path in _system_folders()]
        self._rules += [(f"/etc/{name}", _READ_ONLY) for name in ETC]
        self._rules += [(f"/proc/{name}", _READ) for name in _PROC]
        self._rules += [(f"/dev/{name}", _READ | _WRITE | _TRUNCATE) for name in _DEVICES]
        for mount in box.mounts:
            self._rules.append((mount.source, _READ_WRITE if mount.writable else _READ_ONLY))
        self._rules += [(str(path), _READ_ONLY) for path in (box.private, *box.read_only)]
        for path in (str(box.workdir), self._home, self._temporary, *map(str, box.writable)):
            self._rules.append((path, _READ_WRITE))
        self._filters = [seccomp.make_filter(), seccomp.make_filter_without_namespaces()]

    def _give(self, path: str | Path) -> None:
        if self._user is not None:
            os.chown(path, *self._user)

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a new box. Its home folder and temporary files are in the private
        folder, as there is no file system of its own."""
        for path in self._box.writable:
            self._give(path)
        plan = {
            "argv": list(argv),
            "env": {**env, "HOME": self._home, "TMPDIR": self._temporary},
            "cwd": cwd or "/",
            "owner": os.getpid(),
            "user": self._user,
            "rules": self._rules,
            "limits": self._limits,
            "filters": self._filters,
        }
        fd = os.memfd_create("holdfast-box")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(_child_code())
            marshal.dump(plan, file)
        os.lseek(fd, 0, os.SEEK_SET)
        return Launch([sys.executable, "-I", "-S", "-c", _START, str(fd)], {}, "/", (fd,))

    def limit(self, first_pid: int) -> None:
        """Do nothing: the limits of processes bind every user but root."""
