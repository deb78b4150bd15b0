"""The seccomp filters of a box: BPF programs that refuse system calls which attacks on the kernel
need and commands do not.

The programs are assembled here, in the form that `bwrap --seccomp` and `prctl(PR_SET_SECCOMP)`
take. A part of a program either returns, or continues with the next one.
"""

from __future__ import annotations

import errno
import platform
import re
from collections.abc import Iterable, Mapping
from struct import pack

# In each table: name, number on x86-64, number on aarch64 (-1: the machine has no such call).
_REFUSED = """
ptrace 101 117  process_vm_readv 310 270  process_vm_writev 311 271  process_madvise 440 440
kcmp 312 272  pidfd_getfd 438 438  userfaultfd 323 282  bpf 321 280  perf_event_open 298 241
io_uring_setup 425 425  io_uring_enter 426 426  io_uring_register 427 427
keyctl 250 219  add_key 248 217  request_key 249 218  unshare 272 97  setns 308 268
mount 165 40  umount2 166 39  pivot_root 155 41  chroot 161 51  move_mount 429 429
open_tree 428 428  open_tree_attr 467 467  fsopen 430 430  fsconfig 431 431  fsmount 432 432
fspick 433 433  mount_setattr 442 442  swapon 167 224  swapoff 168 225  reboot 169 142
kexec_load 246 104  kexec_file_load 320 294  init_module 175 105  finit_module 313 273
delete_module 176 106  syslog 103 116  acct 163 89  quotactl 179 60  quotactl_fd 443 443
name_to_handle_at 303 264  open_by_handle_at 304 265  iopl 172 -1  ioperm 173 -1
modify_ldt 154 -1  uselib 134 -1  ustat 136 -1  sysfs 139 -1  settimeofday 164 170
clock_settime 227 112  clock_adjtime 305 266  adjtimex 159 171  sethostname 170 161
setdomainname 171 162  vhangup 153 58  fanotify_init 300 262  lookup_dcookie 212 18
nfsservctl 180 42  move_pages 279 239  migrate_pages 256 238"""

# Refused without namespaces: waiting for connections, and watching folders and the machine's
# mounts, which Landlock does not limit. Also refused are objects under guessable numbers, which
# other boxes could use and which would outlive this one.
_REFUSED_WITHOUT_NAMESPACES = """
bind 49 200  listen 50 201  accept 43 202  accept4 288 242  shmget 29 194  shmat 30 196
shmctl 31 195  msgget 68 186  msgsnd 69 189  msgrcv 70 188  msgctl 71 187  semget 64 190
semop 65 193  semctl 66 191  semtimedop 220 192  mq_open 240 180  mq_unlink 241 181
inotify_init 253 -1  inotify_init1 294 26  statmount 457 457  listmount 458 458"""

# Calls whose arguments decide.
_CHECKED = """
clone 56 220  clone3 435 435  socket 41 198  socketpair 53 199  connect 42 203  ioctl 16 29
personality 135 92  prlimit64 302 261  setsockopt 54 208  fcntl 72 25  openat2 437 437"""

# Calls for the supervisor, with the number of the flags' argument and the flags that matter.
# Commands that own none of the files need the second list too.
_SUPERVISED = """
open 2 -1 1:0x400243  creat 85 -1  openat 257 56 2:0x400243  truncate 76 45  rename 82 -1
renameat 264 38  renameat2 316 276  unlink 87 -1  unlinkat 263 35  rmdir 84 -1  link 86 -1
linkat 265 37  symlink 88 -1  symlinkat 266 36  mkdir 83 -1  mkdirat 258 34  mknod 133 -1
mknodat 259 33"""
_SUPERVISED_OF_ROOT = """
chmod 90 -1  fchmodat 268 53  fchmodat2 452 452  utimensat 280 88  access 21 -1 1:0x2
faccessat 269 48 2:0x2  faccessat2 439 439 2:0x2"""

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # calls of the x32 ABI have other numbers on the same architecture

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID and -NET
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCKET_TYPES = 1, 5, 0xF
_SOL_SOCKET, _IPPROTO_TCP = 1, 6
_TERMINAL_REQUESTS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX type into a terminal
_INTERFACE_REQUESTS = 0x8900  # and the 255 after it: names and addresses of network interfaces
_F_SETLEASE, _F_NOTIFY = (
    1024,
    1026,
)  # a lease delays any process that opens the file, such as a supervisor
# Linux, Linux with 32-bit addresses, the same as UNAME26, and the question for the present one.
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`


def _step(code: int, value: int, otherwise: int = 0) -> bytes:
    """Return one instruction. A condition that does not hold skips `otherwise` instructions."""
    return pack("=HBBI", code, 0, otherwise, value)


_ALLOW, _KILL, _NOTIFY = (_step(_RETURN, one) for one in (0x7FFF0000, 0x80000000, 0x7FC00000))


def _refuse(number: int) -> bytes:
    """Return the instruction that lets the call fail; with 0, it does nothing."""
    return _step(_RETURN, 0x00050000 | number)


_DENY, _ABSENT = _refuse(errno.EPERM), _refuse(errno.ENOSYS)
_NO_FAMILY = _refuse(errno.EAFNOSUPPORT)


def _when(value: int, then: bytes, condition: int = _EQUAL) -> bytes:
    """Return a part that does `then`, which returns, if the loaded value meets the condition."""
    return _step(condition, value, len(then) // 8) + then


def _argument(number: int, then: bytes, values: Iterable[int], mask: int = 0) -> bytes:
    """Return a part that does `then` if an argument is one of the values. Its lower half is read:
    the arguments that are checked have 32 bits, and the kernel ignores the others."""
    masked = _step(_AND, mask) if mask else b""
    load = _step(_LOAD, _ARGUMENTS + 8 * number)
    return load + masked + b"".join(_when(value, then) for value in values)


def _numbers(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of the calls that the machine has, by name. The default is this machine.
    Raises `ValueError` for one that has no filter."""
    column = 1 + list(_AUDIT_ARCHITECTURES).index(machine or platform.machine())
    rows = re.findall(r"(\w+) (\d+) (-?\d+)", table)
    return {row[0]: int(row[column]) for row in rows if row[column] != "-1"}


def _program(numbers: Mapping[str, int], answers: Mapping[str, bytes]) -> bytes:
    """Return a program that gives these answers to calls, and lets all others through."""
    parts = (_when(numbers[name], answers[name]) for name in answers if name in numbers)
    return b"".join((_step(_LOAD, _NUMBER), *parts, _ALLOW))


def supported(machine: str = "") -> bool:
    """Return True if there is a filter for the machine, by default this one."""
    return (machine or platform.machine()) in _AUDIT_ARCHITECTURES


def make_filter(machine: str = "") -> bytes:
    """Return the filter for a machine, `x86_64` or `aarch64`, as an array of `struct sock_filter`.
    The default is this machine. Raises `ValueError` for any other."""
    machine = machine or platform.machine()
    numbers = _numbers(_REFUSED, machine)
    netlink = _argument(2, _ALLOW, (_NETLINK_ROUTE,)) + _NO_FAMILY
    namespaces = _step(_LOAD, _ARGUMENTS) + _when(_NEW_NAMESPACES, _DENY, _HAS_BITS) + _ALLOW
    families = _argument(0, _ALLOW, (_AF_UNIX, _AF_INET, _AF_INET6)) + _when(_AF_NETLINK, netlink)
    answers = dict.fromkeys(numbers, _DENY) | {
        "clone": namespaces,
        # The arguments of clone3 are in memory, which a filter cannot read. C libraries then use
        # clone.
        "clone3": _ABSENT,
        "socket": families + _NO_FAMILY,
        "socketpair": _argument(0, _ALLOW, (_AF_UNIX,)) + _NO_FAMILY,
        "ioctl": _argument(1, _DENY, _TERMINAL_REQUESTS) + _ALLOW,
        "personality": _argument(0, _ALLOW, _PERSONALITIES) + _DENY,
    }
    start = _step(_LOAD, _ARCHITECTURE) + pack("=HBBI", _EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine])
    start += _KILL  # 32-bit programs have other numbers
    if machine == "x86_64":
        start += _step(_LOAD, _NUMBER) + _when(_X32_BIT, _ABSENT, _AT_LEAST)
    return start + _program(numbers | _numbers(_CHECKED, machine), answers)


def make_filter_without_namespaces(network: bool = False, machine: str = "") -> bytes:
    """Return a filter to add to that of `make_filter` in a box without its own namespaces.

    The filter refuses:

    - every socket except pairs that stay connected, because Landlock limits neither UDP nor
      connections to the sockets of files;
    - watching folders, and setting the limits of other processes;
    - objects that other boxes could use and that would outlive this one.

    `network` permits the calls that a supervisor answers: making a TCP socket of IPv4, and
    connecting it.
    """
    numbers = _numbers(_REFUSED_WITHOUT_NAMESPACES, machine)
    pairs = _argument(1, _ALLOW, (_SOCK_STREAM, _SOCK_SEQPACKET), _SOCKET_TYPES)
    # A pair has no options of TCP, and programs would take a failure for one of the connection.
    options = _argument(1, _ALLOW, (_SOL_SOCKET,)) + _when(_IPPROTO_TCP, _refuse(0))
    answers = dict.fromkeys(numbers, _DENY) | {
        "socket": _tcp(_ALLOW, _DENY) if network else _DENY,
        "connect": _ALLOW if network else _DENY,
        "socketpair": pairs + _DENY,
        "setsockopt": options + _refuse(errno.ENOPROTOOPT),
        "ioctl": _argument(1, _DENY, (_INTERFACE_REQUESTS,), 0xFFFFFF00) + _ALLOW,
        "fcntl": _argument(1, _DENY, (_F_SETLEASE, _F_NOTIFY)) + _ALLOW,
        "prlimit64": _argument(0, _ALLOW, (0,)) + _DENY,
    }
    return _program(numbers | _numbers(_CHECKED, machine), answers)


def _tcp(then: bytes, otherwise: bytes) -> bytes:
    """Return the answer to a call of `socket`: `then` for TCP on IPv4."""
    protocol = _argument(2, then, (0, _IPPROTO_TCP)) + otherwise
    stream = _argument(1, protocol, (_SOCK_STREAM,), _SOCKET_TYPES) + otherwise
    return _argument(0, stream, (_AF_INET,)) + otherwise


def make_filter_for_supervisor(
    files: bool, of_root: bool, network: bool, machine: str = ""
) -> tuple[bytes, dict[int, str]]:
    """Return a filter that passes calls to a supervisor, and the names of these calls by number.
    The filter is not a boundary: except for the sockets, the kernel refuses these calls without the
    supervisor.

    Args:
        files: The calls that change files.
        of_root: Also the calls that commands need if they own none of the files.
        network: The calls that make a TCP socket of IPv4, and connect it.
        machine: `x86_64` or `aarch64`, by default this machine.
    """
    table = (_SUPERVISED if files else "") + (_SUPERVISED_OF_ROOT if of_root else "")
    calls, checked = _numbers(table, machine), _numbers(_CHECKED, machine)
    answers = dict.fromkeys(calls, _NOTIFY)
    for name, argument, flags in re.findall(r"(\w+) \d+ -?\d+ (\d):0x(\w+)", table):
        load = _step(_LOAD, _ARGUMENTS + 8 * int(argument))
        answers[name] = load + _when(int(flags, 16), _NOTIFY, _HAS_BITS) + _ALLOW
    names = list(calls)
    if network:
        names += ["socket", "connect"]
        answers |= {"socket": _tcp(_NOTIFY, _ALLOW), "connect": _NOTIFY}
    if files:
        # Its flags are in memory, which a filter cannot read; programs use openat then.
        answers["openat2"] = _ABSENT
    numbers = calls | checked
    return _program(numbers, answers), {numbers[name]: name for name in names}
