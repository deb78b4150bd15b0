"""`Landlock`: boxes without namespaces, made by the kernel's Landlock and seccomp."""

from __future__ import annotations

import marshal
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.runtime.sandbox import seccomp
from holdfast.runtime.sandbox.bridge import PORT, BoxLauncher, ProxyIntake
from holdfast.runtime.sandbox.settings import ETC, BoxSettings
from holdfast.tools.launch import Launch

# Runs `landlock_child.py`, which the plan's file begins with, compiled.
_START = (
    "import marshal, sys; file = open(int(sys.argv[1]), 'rb'); code = {'__name__': 'box'};"
    " exec(marshal.load(file), code); code['main'](file)"
)
# The first user and group of the boxes of root, if the work folder has no other owner: numbers
# that neither people nor packages get. Each work folder has its own, so that no box can change the
# mode of another's files.
_USER_ID, _USERS = 1_900_000_000, 200_000_000
_FEW_USER_ID, _FEW_USERS = 61_444, 4_000  # for a container with few ids

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
        moved_mounts = [mount for mount in box.mounts if mount.target != mount.source]
        if box.workdir_inside != str(box.workdir) or moved_mounts:
            path = moved_mounts[0].source if moved_mounts else str(box.workdir)
            return f"Landlock cannot show {path} at another path. Leave the path inside out."
        problem = _user_problem(box) if os.geteuid() == 0 else ""
        return problem or (_supervisor_problem() if _is_supervised(box) else "")

    def home(self, private: Path) -> str:
        """Return the home folder in a box, below the private folder."""
        return str(private / "home")

    def launcher(self, box: BoxSettings) -> LandlockLauncher:
        """Return a launcher of processes that each are the first of a new box."""
        return LandlockLauncher(box)


@lru_cache(maxsize=2)
def _code(name: str) -> bytes:
    path = Path(__file__).with_name(f"{name}.py")
    return marshal.dumps(compile(path.read_text(), str(path), "exec"))


@lru_cache(maxsize=1)
def _problem() -> str:
    if sys.platform != "linux" or not seccomp.supported():
        return "it needs Linux on x86-64 or aarch64."
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        workdir, private = Path(folder, "work"), Path(folder, "private")
        workdir.mkdir()
        private.mkdir()
        box = BoxSettings(workdir, str(workdir), private)
        launch = LandlockLauncher(box).command(["true"], cwd=None, env={"PATH": "/usr/bin:/bin"})
        result = subprocess.run(
            launch.argv, pass_fds=launch.pass_fds, env={}, capture_output=True, check=False
        )
        for fd in launch.pass_fds:
            os.close(fd)
    if result.returncode == 0:
        return ""
    return f"no box could be made: {os.fsdecode(result.stderr).strip() or result.returncode}."


def _box_user(workdir: Path) -> tuple[int, int]:
    """Return the user and group of the boxes of root."""
    status = os.stat(workdir)
    new = _new_user(status.st_ino)
    return (status.st_uid, status.st_gid or new) if status.st_uid else (new, new)


def _commands_own(workdir: Path) -> bool:
    """Return True if commands own the folder, also because root gives it to them: one without
    files."""
    return os.geteuid() != 0 or os.stat(workdir).st_uid != 0 or not any(os.scandir(workdir))


def _new_user(number: int) -> int:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    rows = [list(map(int, line.split())) for line in lines]
    if any(first <= _USER_ID and first + count > _USER_ID + _USERS for first, _, count in rows):
        return _USER_ID + number % _USERS
    return _FEW_USER_ID + number % _FEW_USERS


def _user_problem(box: BoxSettings) -> str:
    """Return the reason why root cannot give up its rights for this box; "" if it can."""
    workdir = box.workdir
    user, group = _box_user(workdir)
    own = box.private.parent  # which the launcher opens
    shut = () if _commands_own(workdir) else (workdir,)
    for folder in {*shut, *workdir.parents, *own.parents} - {own}:
        status = os.stat(folder)
        allowed = status.st_mode >> (
            6 if status.st_uid == user else 3 if status.st_gid == group else 0
        )
        if not allowed & 1:
            return f"the commands of root run as another user, who may not enter {folder}."
    return ""


def _writable_folders(box: BoxSettings) -> list[str]:
    folders = [one.source for one in box.mounts if one.writable and os.path.isdir(one.source)]
    return [str(box.workdir), *folders]


def _protected_paths(box: BoxSettings) -> list[bytes]:
    """Return the paths in writable folders that no command may change or make."""
    roots = [os.fsencode(os.path.realpath(path)) for path in _writable_folders(box)]
    protected = [os.fsencode(path) for path in box.protected]
    for mount in box.mounts:
        path = os.fsencode(os.path.realpath(mount.source))
        if not mount.writable and any(path.startswith(root + b"/") for root in roots):
            protected.append(path)
    return protected


def _is_supervised(box: BoxSettings) -> bool:
    """Return True if the box needs a supervisor; see `landlock_supervisor.py`."""
    return box.proxy is not None or bool(_protected_paths(box)) or not _commands_own(box.workdir)


def _supervisor_problem() -> str:
    """Return the reason why no process may read what another one asks for; "" if it may."""
    with suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        if scope in ("2", "3"):
            return (
                "this box needs a process that supervises the commands, which kernel.yama."
                f"ptrace_scope={scope} forbids. Set it to 1."
            )
    return ""


def _system_folders() -> list[str]:
    names = [name for name in os.listdir("/") if re.fullmatch(r"usr|bin|sbin|lib\d*", name)]
    return [f"/{name}" for name in names]


class LandlockLauncher(BoxLauncher):
    """Starts each command confined, with a reaper that ends the processes that it leaves.

    As root, the launcher gives the files of the private folder, and an empty work folder, to the
    user of the box. The folder around the private one is the runtime's own.
    """

    def __init__(self, box: BoxSettings) -> None:
        proxy = box.proxy
        super().__init__(None if proxy is None else lambda: ProxyIntake(proxy))
        self._box = box
        self._user: tuple[int, int] | None = None
        owns_workdir = True
        if os.geteuid() == 0:
            self._user = _box_user(box.workdir)
            if owns_workdir := _commands_own(box.workdir):
                os.chown(box.workdir, *self._user)
            os.chmod(box.private.parent, 0o711)
            if owns_workdir and box.workdir.parent == box.private.parent:
                os.chmod(box.workdir, 0o700)
            self.share(box.private)
            for path in box.writable:
                # An earlier box may have put links into the home folder.
                for one in (path, *path.glob("*")):
                    os.chown(one, *self._user, follow_symlinks=False)
                if path.is_dir() and not owns_workdir:
                    # Else git refuses a repository of root's.
                    with suppress(FileExistsError), open(path / ".gitconfig", "x") as file:
                        file.write("[safe]\n\tdirectory = *\n")
        limits = box.limits
        values = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NPROC: limits.processes,
            resource.RLIMIT_DATA: limits.memory_bytes,
            resource.RLIMIT_AS: limits.memory_bytes * 4,
            resource.RLIMIT_FSIZE: limits.file_bytes,
            resource.RLIMIT_NOFILE: limits.open_files,
        }
        hard = {number: resource.getrlimit(number)[1] for number in values}
        # RLIM_INFINITY is -1 here
        self._limits = [
            (number, value, hard[number] % (1 << 63)) for number, value in values.items()
        ]
        self._rules = [(path, _READ_ONLY) for path in _system_folders()]
        self._rules += [(f"/etc/{name}", _READ_ONLY) for name in ETC]
        self._rules += [(f"/proc/{name}", _READ) for name in _PROC]
        self._rules += [(f"/dev/{name}", _READ | _WRITE | _TRUNCATE) for name in _DEVICES]
        for mount in box.mounts:
            self._rules.append((mount.source, _READ_WRITE if mount.writable else _READ_ONLY))
        # The FIFOs in the private folder are written to.
        self._rules.append((str(box.private), _READ_ONLY | _WRITE))
        self._rules += [(str(path), _READ_ONLY) for path in box.read_only]
        for path in (box.workdir, *box.writable):
            self._rules.append((str(path), _READ_WRITE))
        network = box.proxy is not None
        self._filters = [seccomp.make_filter(), seccomp.make_filter_without_namespaces(network)]
        self._supervised = self._supervision()

    def _supervision(self) -> dict[str, Any]:
        """Return the settings of the supervisor; {} if the box needs none."""
        box = self._box
        if not _is_supervised(box):
            return {}
        protected, privileged = _protected_paths(box), not _commands_own(box.workdir)
        files = bool(protected or privileged)
        program, calls = seccomp.make_filter_for_supervisor(
            files, privileged, box.proxy is not None
        )
        writable = _writable_folders(box)
        shut = writable if files else []
        rules = [*self._rules, ("/proc", _READ | _LIST)]
        self._rules = [
            (path, _READ_ONLY if path in shut else rights) for path, rights in self._rules
        ]
        return {
            "rules": rules,
            "filter": program,
            "calls": calls,
            "roots": [os.fsencode(os.path.realpath(path)) for path in writable],
            "protected": protected,
            "privileged": privileged,
            "proxy": -1,
            "port": PORT,
        }

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a new box."""
        _, descriptors = self.enter_network()
        supervised = self._supervised
        if descriptors:
            supervised = {**supervised, "proxy": descriptors[0]}
        name = argv[0]
        program = None if "/" in name else shutil.which(name, path=env.get("PATH", ""))
        plan = {
            "program": program or name,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd or "/",
            "owner": os.getpid(),
            "user": self._user,
            "rules": self._rules,
            "limits": self._limits,
            "filters": self._filters,
            "supervised": supervised,
            "supervisor": _code("landlock_supervisor") if supervised else b"",
        }
        fd = os.memfd_create("holdfast-box")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(_code("landlock_child"))
            marshal.dump(plan, file)
        os.lseek(fd, 0, os.SEEK_SET)
        return Launch(
            [os.path.realpath(sys.executable), "-I", "-S", "-c", _START, str(fd)],
            {},
            "/",
            (fd, *descriptors),
        )

    def share(self, folder: Path) -> None:
        """Give the files in a private folder, and long outputs, to the user of the box, if that is
        another one."""
        if self._user is not None:
            folders = (folder, *self._box.read_only)
            files = [file for one in folders for file in one.iterdir()]
            for path in (*folders, *files):
                os.chown(path, *self._user, follow_symlinks=False)
