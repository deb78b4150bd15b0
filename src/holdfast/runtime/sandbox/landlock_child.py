"""The program that confines a command by Landlock and seccomp, and ends what the command leaves.

`landlock.py` starts it in a bare interpreter, so it uses modules that load fast, and none of
Holdfast's. These processes result:

- the first one becomes a shell that waits, and ends with the command's exit code. If it is killed,
  so is the command;
- the reaper, in a session of its own, is the parent of all processes that lose theirs. When the
  command, the first process or the owner ends, it kills what is left, and then ends;
- the supervisor, in some boxes, between the reaper and the command; see `landlock_supervisor.py`;
- the command, confined. What it starts is confined too, and cannot signal the other two.
"""

from __future__ import annotations

import _ctypes  # `ctypes` itself takes 5 ms to load
import marshal
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, BinaryIO
else:
    import _signal as signal  # `signal` and `typing` take 10 ms to load

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_PR_SET_KEEPCAPS = 8
_SECCOMP_MODE_FILTER = 2
_NUMBERS = {
    "x86_64": {"prctl": 157, "seccomp": 317, "capset": 126},
    "aarch64": {"prctl": 167, "seccomp": 277, "capset": 91},
}[os.uname().machine]
# Hand out a descriptor; let no signal but a deadly one disturb a call that is being handled.
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3 | 1 << 5
_CAPABILITIES_V3 = 0x20080522
_FILE_CAPABILITIES = 1 << 1 | 1 << 3  # CAP_DAC_OVERRIDE and CAP_FOWNER
# Landlock's calls have the same numbers on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_MINIMAL_ABI = 6
_ALL_FILE_RIGHTS = (1 << 16) - 1
# Execute, write, read, truncate, ioctl: the rights that a file that is no folder can have.
_RIGHTS_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_ALL_TCP_RIGHTS = 3  # bind and connect
_ALL_SCOPES = 3  # abstract unix sockets and signals

_WAIT = 'read -r code && exit "$code"; exit 126'


_simple_type: Any = _ctypes._SimpleCData  # pyright: ignore[reportPrivateUsage]


class _Long(_simple_type):
    _type_ = "l"


class _Short(_simple_type):
    _type_ = "H"


class _Bytes(_simple_type):
    _type_ = "z"


class _Filter(_ctypes.Structure):
    _fields_ = [("length", _Short), ("code", _Bytes)]


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


class _CLibrary:
    _handle = _ctypes.dlopen(None, os.RTLD_NOW)  # pyright: ignore[reportArgumentType]


_syscall: Any = _Function(("syscall", _CLibrary()))  # pyright: ignore[reportCallIssue, reportArgumentType]


def _call(number: int, *arguments: Any) -> int:
    """Make a system call, and return its result. Raises `OSError`."""
    result = _syscall(
        *(_Long(one) if isinstance(one, int) else one for one in (number, *arguments))
    )
    if result < 0:
        problem = _ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return result


def _prctl(option: int, value: int, more: Any = 0) -> None:
    _call(_NUMBERS["prctl"], option, value, more, 0, 0)


# --- the command ---


def _make_ruleset(rules: list[tuple[str, int]]) -> int:
    try:
        abi = _call(_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
    except OSError:
        abi = 0
    if abi < _MINIMAL_ABI:
        found = f"this one has ABI {abi}" if abi > 0 else "Landlock is not enabled in this one"
        raise OSError(
            f"a kernel with Landlock ABI {_MINIMAL_ABI} is needed (Linux 6.12 or newer); {found}"
        )
    handled = struct.pack("=3Q", _ALL_FILE_RIGHTS, _ALL_TCP_RIGHTS, _ALL_SCOPES)
    ruleset = _call(_CREATE_RULESET, handled, len(handled), 0)
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            rights &= _RIGHTS_OF_FILES
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
        os.close(fd)
    return ruleset


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(number)[1]
        if name == "NPROC" and os.getuid() != 0:
            value += _own_tasks()  # the kernel counts those of the user, not of the box
        if most != resource.RLIM_INFINITY:
            value = min(value, most)
        resource.setrlimit(number, (value, value))


def _own_tasks() -> int:
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it ended meanwhile
                continue
    return count


def _run_command(plan: dict[str, Any]) -> None:
    """Become the confined command. Does not return."""
    os.setsid()
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    supervised = plan["supervised"]
    kept = supervised["proxy"] if supervised else -1
    os.closerange(3, kept)
    os.closerange(max(3, kept + 1), 1 << 20)
    os.umask(0o022)
    ruleset = _make_ruleset(plan["rules"])
    code: dict[str, Any] = {"__name__": "supervisor"}
    inner = -1
    if supervised:
        exec(marshal.loads(plan["supervisor"]), code)
        inner = _make_ruleset(supervised["rules"])
    _limit(plan["limits"])
    if plan["user"]:
        user, group = plan["user"]
        os.setgroups([])
        os.setresgid(group, group, group)
        privileged = bool(supervised and supervised["privileged"])
        if privileged:
            _prctl(_PR_SET_KEEPCAPS, 1)
        os.setresuid(user, user, user)
        if privileged:
            _set_capabilities(_FILE_CAPABILITIES)
    if os.getuid() == 0 or os.geteuid() == 0:
        raise PermissionError("a command would run as root")
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(plan["cwd"])
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    told = None
    if supervised:
        told = code["supervise"](supervised, _become_parent, _reap, _call)
        if kept >= 0:
            os.close(kept)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _set_capabilities(0)
        _call(_RESTRICT_SELF, inner, 0)
        os.close(inner)
    for one in plan["filters"]:
        program = _Filter(len(one) // 8, one)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _ctypes.byref(program))
    if told is not None:
        one = supervised["filter"]
        program = _Filter(len(one) // 8, one)
        flags = _NEW_LISTENER
        listener = _call(_NUMBERS["seccomp"], _SET_MODE_FILTER, flags, _ctypes.byref(program))
        told.sendmsg([b"x"], [(1, 1, listener.to_bytes(4, sys.byteorder))])  # SCM_RIGHTS
        told.close()
        os.close(listener)
    _execute(plan["argv"], plan["env"])


def _set_capabilities(wanted: int) -> None:
    """Have these capabilities, and no way to more."""
    header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
    _call(_NUMBERS["capset"], header, struct.pack("=6I", wanted, wanted, 0, 0, 0, 0))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Run the program, searched in PATH. `os.execvpe` imports a module, which the user of the box
    may not be able to read."""
    problem: OSError = FileNotFoundError("not found in PATH")
    folders = [""] if "/" in argv[0] else env.get("PATH", "").split(":")
    for folder in folders:
        try:
            os.execve(f"{folder}/{argv[0]}" if folder else argv[0], argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise problem


# --- the reaper ---


def _descendants() -> set[int]:
    """Return the living processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if fields[0] not in b"ZX":
                children.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        more = children.get(left.pop(), [])
        found.update(more)
        left += more
    return found


def _kill_descendants() -> None:
    """Kill all processes below this one. They are stopped first, so that none is born meanwhile."""
    stopped: set[int] = set()
    while found := _descendants():
        new = found - stopped
        for pid in new or found:
            try:
                os.kill(pid, signal.SIGSTOP if new else signal.SIGKILL)
            except ProcessLookupError:
                pass
        stopped = set() if not new else stopped | new
        _reap({})
        time.sleep(0 if new else 0.001)
    _reap({})


def _reap(statuses: dict[int, int]) -> None:
    """Note the exit status of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        statuses[pid] = status


def _drop_streams() -> None:
    """Close the command's streams: who reads its output waits until all of them are closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _no_action(number: int, frame: object) -> None:
    """Let SIGCHLD wake the poll."""


def _become_parent() -> int:
    """Drop the streams, and become the parent of all processes below this one that lose theirs.
    Return a descriptor that is readable when a child has ended."""
    _drop_streams()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, _no_action)
    signal.siginterrupt(signal.SIGCHLD, False)
    waker, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    return waker


def _reaper(plan: dict[str, Any], watched: list[int]) -> int:
    """Run the command, and return its exit code."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    statuses: dict[int, int] = {}
    command = os.fork()
    if command == 0:
        try:
            _run_command(plan)
        except BaseException as error:
            name = plan["argv"][0]
            os.write(2, f"holdfast: {name!r} could not be run in a box: {error}\n".encode())
        os._exit(126)
    waker = _become_parent()
    plan.clear()
    _reap(statuses)  # of what ended before
    poll = select.poll()
    for fd in (waker, *watched):
        poll.register(fd, select.POLLIN)
    while command not in statuses:
        events = [fd for fd, _ in poll.poll()]
        if events != [waker]:  # the owner or the first process has ended
            break
        os.read(waker, 4096)
        _reap(statuses)
    _kill_descendants()
    return os.waitstatus_to_exitcode(statuses.get(command, signal.SIGKILL))


def main(file: BinaryIO) -> None:
    """Run the command of the plan that the file has, and exit with its exit code; with 128 and the
    signal's number if a signal ended it."""
    with file:
        plan = marshal.load(file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched = [os.pidfd_open(plan["owner"]), os.pidfd_open(os.getpid())]
    if os.getppid() != plan["owner"]:
        os._exit(126)  # it has ended already
    told, tells = os.pipe()
    reaper = os.fork()
    if reaper == 0:
        code = 126
        try:
            os.close(told)
            code = _reaper(plan, watched)
        finally:
            os.write(tells, b"%d\n" % (code if code >= 0 else 128 - code))
            os._exit(0)
    _drop_streams()
    os.dup2(told, 0)
    os.closerange(3, 1 << 20)
    os.execve("/bin/sh", ["sh", "-c", _WAIT], {})  # a shell needs less memory
