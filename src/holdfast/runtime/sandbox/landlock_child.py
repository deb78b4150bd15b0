"""The program that confines a command by Landlock and seccomp, and ends the command's processes.

`landlock.py` starts the program in a bare interpreter, so it uses modules that load fast (`posix`
in place of `os`), and none of Holdfast's. Three kinds of processes result:

- The first process becomes a shell that waits, and ends with the command's exit code. If it is
  killed, the command is killed too.
- The reaper, in its own session, is the parent of all processes that lose theirs. When the command,
  the first process or the owner ends, the reaper kills the remaining processes, and then ends. In
  some boxes, it is also the supervisor; see `landlock_supervisor.py`.
- The command is confined, with all processes that it starts. None of them can signal the other two.

The reaper has its own Landlock domain, in which the command has another one. Signals reach nothing
outside of the sender's domain, so that one call of the reaper kills the whole box at once.
"""

from __future__ import annotations

import _ctypes  # `ctypes` itself takes 5 ms to load
import marshal
import select
import sys
from _struct import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    import signal
    from typing import Any, BinaryIO
else:
    import _signal as signal
    import posix as os

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_PRCTL, _SECCOMP, _CAPSET, _SETFSUID, _SETFSGID, _PRLIMIT64 = {
    "x86_64": (157, 317, 126, 122, 123, 302),
    "aarch64": (167, 277, 91, 151, 152, 261),
}[os.uname().machine]
# Hand out a descriptor; let no signal but a deadly one disturb a call that is being handled.
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3 | 1 << 5
_CAPABILITIES_V3 = 0x20080522
_CAP_KILL, _FILE_CAPABILITIES = 1 << 5, 1 << 1 | 1 << 3  # CAP_DAC_OVERRIDE and CAP_FOWNER
# Landlock's calls have the same numbers on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_MINIMAL_ABI = 6
_ALL_FILE_RIGHTS = (1 << 16) - 1
# Execute, write, read, truncate, ioctl: the rights that a file that is no folder can have.
_RIGHTS_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_ALL_TCP_RIGHTS = 3  # bind and connect
_ALL_SCOPES, _SIGNALS = 3, 2  # abstract unix sockets and signals
_MOVE = 1 << 13
_FOLDER = 0o040000
_RLIMIT_NPROC = 6

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
    _call(_PRCTL, option, value, more, 0, 0)


# --- the command ---


def _make_ruleset(rules: list[tuple[str, int]] | None) -> int:
    """Return the descriptor of a ruleset; without rules, of one that limits signals alone. The
    right to move files to other folders is denied by each ruleset that does not give it."""
    try:
        abi = _call(_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)
    except OSError:
        abi = 0
    if abi < _MINIMAL_ABI:
        actual = f"this one has ABI {abi}" if abi > 0 else "Landlock is not enabled in this one"
        raise OSError(
            f"a kernel with Landlock ABI {_MINIMAL_ABI} is needed (Linux 6.12 or newer); {actual}"
        )
    attributes = pack("=3Q", _ALL_FILE_RIGHTS, _ALL_TCP_RIGHTS, _ALL_SCOPES)
    if rules is None:
        attributes, rules = pack("=3Q", _MOVE, 0, _SIGNALS), [("/", _MOVE)]
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if os.fstat(fd).st_mode & 0o170000 != _FOLDER:
            rights &= _RIGHTS_OF_FILES
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, pack("=Qi", rights, fd), 0)
        os.close(fd)
    return ruleset


def _limit(limits: list[tuple[int, int, int]]) -> None:
    """Set each limit, of which its number, the value and the most that may be set are given."""
    for number, value, most in limits:
        if number == _RLIMIT_NPROC and os.getuid() != 0:
            value += _own_tasks()  # the kernel counts those of the user, not of the box
        value = min(value, most)
        _call(_PRLIMIT64, 0, number, pack("=2Q", value, value), 0)


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


def _run_command(plan: dict[str, Any], ruleset: int, supervisor: Any) -> None:
    """Become the confined command, and send the descriptor of its filter to the supervisor, if
    there is one. Does not return."""
    os.setsid()
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    _limit(plan["limits"])
    if plan["user"]:
        user, group = plan["user"]
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    if os.getuid() == 0 or os.geteuid() == 0:
        raise PermissionError("a command would run as root")
    _set_capabilities(0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(plan["cwd"])
    _call(_RESTRICT_SELF, ruleset, 0)
    for one in plan["filters"]:
        program = _Filter(len(one) // 8, one)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _ctypes.byref(program))
    if supervisor is not None:
        one = plan["supervised"]["filter"]
        program = _Filter(len(one) // 8, one)
        listener = _call(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, _ctypes.byref(program))
        supervisor.sendmsg([b"x"], [(1, 1, listener.to_bytes(4, sys.byteorder))])  # SCM_RIGHTS
        supervisor.close()
        os.close(listener)
    os.execve(plan["program"], plan["argv"], plan["env"])


def _set_capabilities(capabilities: int) -> None:
    """Have these capabilities, and no way to more."""
    _call(
        _CAPSET,
        pack("=Ii", _CAPABILITIES_V3, 0),
        pack("=6I", capabilities, capabilities, 0, 0, 0, 0),
    )


# --- the reaper ---


def _enter_domain(supervised: dict[str, Any]) -> None:
    """Enter the domain of the box. Raises `OSError` if signals would reach processes outside."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    ruleset = _make_ruleset(supervised["rules"] if supervised else None)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise OSError("Landlock does not limit signals here")


def _give_up_rights(plan: dict[str, Any]) -> None:
    """Keep the right to signal the command, and as a supervisor of root's files, to change these.
    The real user stays root: no command can change the priority of this process."""
    supervised = plan["supervised"]
    capabilities = _CAP_KILL
    if supervised:
        user, group = plan["user"]
        os.setgroups([])
        _call(_SETFSGID, group)  # files that this process makes belong to the box's user
        _call(_SETFSUID, user)
        if supervised["privileged"]:
            capabilities |= _FILE_CAPABILITIES
    _set_capabilities(capabilities)


def _kill_box() -> None:
    """Kill all processes below this one, and wait for their ends. Not one is born meanwhile."""
    try:
        os.waitpid(-1, os.WNOHANG)  # the usual case: there is none
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _reap(statuses: dict[int, int]) -> None:
    """Note the exit status of each child that has ended."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        pass


def _drop_streams() -> None:
    """Close the command's streams: who reads its output waits until all of them are closed."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _no_action(number: int, frame: object) -> None:
    """Let SIGCHLD wake the poll."""


def _reaper(plan: dict[str, Any], watched: list[int]) -> int:
    """Run the command, and return its exit code."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    supervised = plan["supervised"]
    code: dict[str, Any] = {"__name__": "supervisor"}
    ours: Any = None
    theirs: Any = None
    if supervised:
        exec(marshal.loads(plan["supervisor"]), code)
        ours, theirs = code["socketpair"]()
    command = -1
    try:
        if plan["user"]:
            os.setgroups([])
        ruleset = _make_ruleset(plan["rules"])
        _enter_domain(supervised)
        command = os.fork()
        if command == 0:
            _run_command(plan, ruleset, theirs)
    except BaseException as error:
        name = plan["argv"][0]
        os.write(2, f"holdfast: {name!r} could not be run in a box: {error}\n".encode())
        return 126
    os.close(ruleset)
    _drop_streams()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, _no_action)
    signal.siginterrupt(signal.SIGCHLD, False)
    waker, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    if plan["user"]:
        _give_up_rights(plan)
    plan.clear()
    poll = select.poll()
    for fd in (waker, *watched):
        poll.register(fd, select.POLLIN)
    supervisor: Any = None
    listener = -1
    if supervised:
        theirs.close()
        listener = code["receive_listener"](ours)
        if listener >= 0:
            supervisor = code["Supervisor"](listener, supervised, _call)
            poll.register(listener, select.POLLIN)
    statuses: dict[int, int] = {}
    _reap(statuses)  # what ended before
    while command not in statuses:
        ready = dict(poll.poll())
        if not ready.keys().isdisjoint(watched):  # the owner or the first process has ended
            break
        if waker in ready:
            os.read(waker, 4096)
            _reap(statuses)
        elif ready[listener] & select.POLLIN:
            supervisor.answer()
        else:  # no process is left that has the filter
            poll.unregister(listener)
    _kill_box()
    return os.waitstatus_to_exitcode(statuses.get(command, signal.SIGKILL))


def main(file: BinaryIO) -> None:
    """Run the command of the plan in the file, and exit with its exit code. After a signal the code
    is 128 + the signal's number."""
    with file:
        plan = marshal.load(file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched = [os.pidfd_open(plan["owner"]), os.pidfd_open(os.getpid())]
    if os.getppid() != plan["owner"]:
        os._exit(126)  # it has ended already
    if plan["supervised"] and plan["supervised"]["proxy"] >= 0:
        os.set_inheritable(plan["supervised"]["proxy"], False)
    status_reader, status_writer = os.pipe()
    if os.fork() == 0:
        code = 126
        try:
            code = _reaper(plan, watched)
        finally:
            os.write(status_writer, b"%d\n" % (code if code >= 0 else 128 - code))
            os._exit(0)
    _drop_streams()
    os.dup2(status_reader, 0)
    os.execve("/bin/sh", ["sh", "-c", _WAIT], {})  # a shell needs less memory
