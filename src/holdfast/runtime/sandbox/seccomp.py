"""The seccomp filter of a box: a BPF program that refuses system calls which commands do not
need and attacks on the kernel do.

The filter is assembled here, in the form that `bwrap --seccomp` and `prctl(PR_SET_SECCOMP)` take.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

# Name, number on x86-64, number on aarch64 (-1: the machine has no such call).
_REFUSED = """\
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
process_madvise 440 440
kcmp 312 272
pidfd_getfd 438 438
io_uring_setup 425 425
io_uring_enter 426 426
io_uring_register 427 427
userfaultfd 323 282
keyctl 250 219
add_key 248 217
request_key 249 218
bpf 321 280
perf_event_open 298 241
unshare 272 97
setns 308 268
mount 165 40
umount2 166 39
pivot_root 155 41
chroot 161 51
move_mount 429 429
open_tree 428 428
open_tree_attr 467 467
fsopen 430 430
fsconfig 431 431
fsmount 432 432
fspick 433 433
mount_setattr 442 442
swapon 167 224
swapoff 168 225
reboot 169 142
kexec_load 246 104
kexec_file_load 320 294
init_module 175 105
finit_module 313 273
delete_module 176 106
syslog 103 116
acct 163 89
quotactl 179 60
quotactl_fd 443 443
name_to_handle_at 303 264
open_by_handle_at 304 265
iopl 172 -1
ioperm 173 -1
modify_ldt 154 -1
uselib 134 -1
ustat 136 -1
sysfs 139 -1
settimeofday 164 170
clock_settime 227 112
clock_adjtime 305 266
adjtimex 159 171
sethostname 170 161
setdomainname 171 162
vhangup 153 58
fanotify_init 300 262
lookup_dcookie 212 18
nfsservctl 180 42
move_pages 279 239
migrate_pages 256 238"""

# The numbers of calls whose arguments decide.
_CHECKED = {
    "x86_64": {"clone": 56, "clone3": 435, "socket": 41, "socketpair": 53, "ioctl": 16},
    "aarch64": {"clone": 220, "clone3": 435, "socket": 198, "socketpair": 199, "ioctl": 29},
}
_PERSONALITY = {"x86_64": 135, "aarch64": 92}
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # calls of the x32 ABI have other numbers on the same architecture

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID and -NET
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_TERMINAL_REQUESTS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into a terminal
# Linux, Linux with 32-bit addresses, the same as UNAME26, and the question for the present one.
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND = 0x54
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16  # in `struct seccomp_data`
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


@dataclass(frozen=True)
class _Instruction:
    """One BPF instruction. A jump goes to the label `then` if its condition holds, else to the
    next instruction."""

    code: int
    value: int
    then: str = ""


def _assemble(program: list[_Instruction | str]) -> bytes:
    """Return the code of instructions; a str between them is a label."""
    places: dict[str, int] = {}
    code: list[_Instruction] = []
    for one in program:
        if isinstance(one, str):
            places[one] = len(code)
        else:
            code.append(one)
    parts: list[bytes] = []
    for n, one in enumerate(code):
        distance = places[one.then] - n - 1 if one.then else 0
        if not 0 <= distance < 256:
            raise AssertionError(f"A jump in the seccomp filter is {distance} instructions long.")
        parts.append(struct.pack("=HBBI", one.code, distance, 0, one.value))
    return b"".join(parts)


def supported(machine: str = "") -> bool:
    """Return True if there is a filter for the machine, by default this one."""
    return (machine or platform.machine()) in _AUDIT_ARCHITECTURES


def make_filter(machine: str = "") -> bytes:
    """Return the filter for a machine, `x86_64` or `aarch64`, as an array of `struct sock_filter`.
    The default is this machine. Raises `KeyError` for any other."""
    machine = machine or platform.machine()
    column = list(_AUDIT_ARCHITECTURES).index(machine) + 1
    numbers = [int(line.split()[column]) for line in _REFUSED.splitlines()]
    checked = _CHECKED[machine]
    program: list[_Instruction | str] = [
        _Instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _Instruction(_JUMP_IF_EQUAL, _AUDIT_ARCHITECTURES[machine], "known architecture"),
        _Instruction(_RETURN, _KILL_PROCESS),  # 32-bit programs have other numbers
        "known architecture",
        _Instruction(_LOAD, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program.append(_Instruction(_JUMP_IF_AT_LEAST, _X32_BIT, "absent"))
    program += [_Instruction(_JUMP_IF_EQUAL, number, "refuse") for number in numbers if number >= 0]
    program += [
        _Instruction(_JUMP_IF_EQUAL, checked["clone"], "clone"),
        # The arguments of clone3 are in memory, which a filter cannot read. C libraries then use
        # clone.
        _Instruction(_JUMP_IF_EQUAL, checked["clone3"], "absent"),
        _Instruction(_JUMP_IF_EQUAL, checked["socket"], "socket"),
        _Instruction(_JUMP_IF_EQUAL, checked["socketpair"], "socketpair"),
        _Instruction(_JUMP_IF_EQUAL, checked["ioctl"], "ioctl"),
        _Instruction(_JUMP_IF_EQUAL, _PERSONALITY[machine], "personality"),
        _Instruction(_RETURN, _ALLOW),
        "clone",
        _argument(0),
        _Instruction(_JUMP_IF_BITS, _NEW_NAMESPACES, "refuse"),
        _Instruction(_RETURN, _ALLOW),
        "socket",
        _argument(0),
        *(
            _Instruction(_JUMP_IF_EQUAL, family, "allow")
            for family in (_AF_UNIX, _AF_INET, _AF_INET6)
        ),
        _Instruction(_JUMP_IF_EQUAL, _AF_NETLINK, "netlink"),
        _Instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        "netlink",
        _argument(2),
        _Instruction(_JUMP_IF_EQUAL, _NETLINK_ROUTE, "allow"),
        _Instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        "socketpair",
        _argument(0),
        _Instruction(_JUMP_IF_EQUAL, _AF_UNIX, "allow"),
        _Instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
        "ioctl",
        _argument(1),
        *(_Instruction(_JUMP_IF_EQUAL, request, "refuse") for request in _TERMINAL_REQUESTS),
        _Instruction(_RETURN, _ALLOW),
        "personality",
        _argument(0),
        *(_Instruction(_JUMP_IF_EQUAL, persona, "allow") for persona in _PERSONALITIES),
        "refuse",
        _Instruction(_RETURN, _ERRNO | errno.EPERM),
        "absent",
        _Instruction(_RETURN, _ERRNO | errno.ENOSYS),
        "allow",
        _Instruction(_RETURN, _ALLOW),
    ]
    return _assemble(program)


# Number on x86-64, number on aarch64.
_SOCKET, _SOCKETPAIR, _CONNECT, _PRLIMIT64 = (41, 198), (53, 199), (42, 203), (302, 261)
_SETSOCKOPT, _IOCTL = (54, 208), (16, 29)
# bind, listen, accept, accept4
_SERVERS = ((49, 200), (50, 201), (43, 202), (288, 242))
# Those that make objects, and those that take the number of one, which can be guessed: shmget,
# shmat, shmctl, msgget, msgsnd, msgrcv, msgctl, semget, semop, semctl, semtimedop, mq_open,
# mq_unlink.
_SHARED_OBJECTS = (
    *((29, 194), (30, 196), (31, 195), (68, 186), (69, 189), (70, 188), (71, 187)),
    *((64, 190), (65, 193), (66, 191), (220, 192), (240, 180), (241, 181)),
)
# inotify_init, inotify_init1: Landlock does not limit which folders are watched.
_WATCHES = ((253, -1), (294, 26))
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCKET_TYPES = 1, 5, 0xF
_SOL_SOCKET, _IPPROTO_TCP = 1, 6
_INTERFACE_REQUESTS = 0x8900  # and the 255 after it: names and addresses of network interfaces


def make_filter_without_namespaces(network: bool = False, machine: str = "") -> bytes:
    """Return a filter to add to that of `make_filter` in a box without namespaces of its own.

    It refuses every socket but pairs that stay connected, because Landlock limits neither UDP nor
    connections to the sockets of files. It refuses to watch folders, the limits of other processes,
    and objects that other boxes could use and that would outlive this one. `network` lets through
    what a supervisor answers: calls that make a TCP socket of IPv4 or connect one.
    """
    column = list(_AUDIT_ARCHITECTURES).index(machine or platform.machine())
    sockets = () if network else (_SOCKET, _CONNECT)
    calls = (*sockets, *_SERVERS, *_SHARED_OBJECTS, *_WATCHES)
    checked = {
        "socket": _SOCKET,
        "socketpair": _SOCKETPAIR,
        "prlimit64": _PRLIMIT64,
        "setsockopt": _SETSOCKOPT,
        "ioctl": _IOCTL,
    }
    return _assemble(
        [
            _Instruction(_LOAD, _NUMBER_OFFSET),
            *(
                _Instruction(_JUMP_IF_EQUAL, one[column], "refuse")
                for one in calls
                if one[column] >= 0
            ),
            *(_Instruction(_JUMP_IF_EQUAL, one[column], name) for name, one in checked.items()),
            _Instruction(_RETURN, _ALLOW),
            *_check_tcp("allow", _ERRNO | errno.EPERM),
            "socketpair",
            _argument(1),
            _Instruction(_AND, _SOCKET_TYPES),
            _Instruction(_JUMP_IF_EQUAL, _SOCK_STREAM, "allow"),
            _Instruction(_JUMP_IF_EQUAL, _SOCK_SEQPACKET, "allow"),
            _Instruction(_RETURN, _ERRNO | errno.EPERM),
            "setsockopt",
            _argument(1),
            _Instruction(_JUMP_IF_EQUAL, _SOL_SOCKET, "allow"),
            # A pair has no options of TCP. Programs take their failure for that of the connection.
            _Instruction(_JUMP_IF_EQUAL, _IPPROTO_TCP, "pretend"),
            _Instruction(_RETURN, _ERRNO | errno.ENOPROTOOPT),
            "ioctl",
            _argument(1),
            _Instruction(_AND, 0xFFFFFF00),
            _Instruction(_JUMP_IF_EQUAL, _INTERFACE_REQUESTS, "refuse"),
            _Instruction(_RETURN, _ALLOW),
            "prlimit64",
            _argument(0),
            _Instruction(_JUMP_IF_EQUAL, 0, "allow"),
            "refuse",
            _Instruction(_RETURN, _ERRNO | errno.EPERM),
            "pretend",
            _Instruction(_RETURN, _ERRNO),
            "allow",
            _Instruction(_RETURN, _ALLOW),
        ]
    )


def _check_tcp(then: str, otherwise: int) -> list[_Instruction | str]:
    """Return the instructions for a call of `socket`: they jump for TCP on IPv4, and return the
    other answer else."""
    return [
        "socket",
        _argument(0),
        _Instruction(_JUMP_IF_EQUAL, _AF_INET, "ipv4"),
        _Instruction(_RETURN, otherwise),
        "ipv4",
        _argument(1),
        _Instruction(_AND, _SOCKET_TYPES),
        _Instruction(_JUMP_IF_EQUAL, _SOCK_STREAM, "stream"),
        _Instruction(_RETURN, otherwise),
        "stream",
        _argument(2),
        _Instruction(_JUMP_IF_EQUAL, 0, then),
        _Instruction(_JUMP_IF_EQUAL, _IPPROTO_TCP, then),
        _Instruction(_RETURN, otherwise),
    ]


# Name, number on x86-64, number on aarch64 (-1: the machine has no such call), the argument with
# the flags (-1: none), and the flags for which the supervisor is asked.
_SUPERVISED = """\
open 2 -1 1 0x400243
creat 85 -1 -1 0
openat 257 56 2 0x400243
truncate 76 45 -1 0
rename 82 -1 -1 0
renameat 264 38 -1 0
renameat2 316 276 -1 0
unlink 87 -1 -1 0
unlinkat 263 35 -1 0
rmdir 84 -1 -1 0
link 86 -1 -1 0
linkat 265 37 -1 0
symlink 88 -1 -1 0
symlinkat 266 36 -1 0
mkdir 83 -1 -1 0
mkdirat 258 34 -1 0
mknod 133 -1 -1 0
mknodat 259 33 -1 0"""
# Commands that own none of the files need these, too.
_SUPERVISED_OF_ROOT = """\
chmod 90 -1 -1 0
fchmodat 268 53 -1 0
fchmodat2 452 452 -1 0
utimensat 280 88 -1 0
access 21 -1 1 0x2
faccessat 269 48 2 0x2
faccessat2 439 439 2 0x2"""
_OPENAT2 = 437  # its flags are in memory, which a filter cannot read; programs use openat then
_NOTIFY = 0x7FC00000


def make_filter_for_supervisor(
    files: bool, of_root: bool, network: bool, machine: str = ""
) -> tuple[bytes, dict[int, str]]:
    """Return a filter that hands calls to a supervisor, and the names of these calls by number. It
    is no boundary: the kernel refuses these calls without the supervisor, but for the sockets.

    Args:
        files: The calls that change files.
        of_root: Also those that commands need which own none of the files.
        network: The calls that make a TCP socket of IPv4, and connect it.
        machine: `x86_64` or `aarch64`, by default this machine.
    """
    column = list(_AUDIT_ARCHITECTURES).index(machine or platform.machine())
    program: list[_Instruction | str] = [_Instruction(_LOAD, _NUMBER_OFFSET)]
    checks: list[_Instruction | str] = []
    names: dict[int, str] = {}
    if files:
        program.append(_Instruction(_JUMP_IF_EQUAL, _OPENAT2, "absent"))
    if network:
        names |= {_SOCKET[column]: "socket", _CONNECT[column]: "connect"}
        program.append(_Instruction(_JUMP_IF_EQUAL, _SOCKET[column], "socket"))
        program.append(_Instruction(_JUMP_IF_EQUAL, _CONNECT[column], "notify"))
        checks += _check_tcp("notify", _ALLOW)
    lines = (_SUPERVISED if files else "") + "\n" + (_SUPERVISED_OF_ROOT if of_root else "")
    for line in filter(None, lines.split("\n")):
        name, *rest = line.split()
        number, argument, flags = int(rest[column]), int(rest[2]), int(rest[3], 16)
        if number < 0:
            continue
        names[number] = name
        program.append(_Instruction(_JUMP_IF_EQUAL, number, "notify" if argument < 0 else name))
        if argument >= 0:
            checks += [name, _argument(argument), _Instruction(_JUMP_IF_BITS, flags, "notify")]
            checks.append(_Instruction(_RETURN, _ALLOW))
    program += [
        _Instruction(_RETURN, _ALLOW),
        *checks,
        "notify",
        _Instruction(_RETURN, _NOTIFY),
        "absent",
        _Instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    return _assemble(program), names


def _argument(number: int) -> _Instruction:
    """Return an instruction that loads the lower half of an argument. The arguments that are
    checked have 32 bits: the kernel ignores the upper half."""
    return _Instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * number)
