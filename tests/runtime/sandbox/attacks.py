"""The attacks on a sandbox: programs that print SUCCEEDED if they reach their aim.

Each program runs outside of a box first, where it must succeed (the negative control), and
then in a box of each mechanism. In a program, `victim` is the record of its targets.
"""

from dataclasses import dataclass

# Helpers of all programs.
PRELUDE = """
import ctypes, json, os, socket, subprocess, sys, time
victim = json.load(open("victim.json"))
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return result, ctypes.get_errno()
def succeeded(*found):
    print("SUCCEEDED", *found, flush=True)
"""


@dataclass(frozen=True)
class Attack:
    """One attack: `program` is Python that runs after `PRELUDE`; `root` is True if only root can
    do it outside, `network` if it must also fail in a box with an allow-list of hosts."""

    name: str
    program: str
    root: bool = False
    network: bool = False


@dataclass(frozen=True)
class RefusedCall:
    """A system call that a box refuses.

    It has the call's numbers on x86-64 and aarch64, and arguments for which the kernel itself
    gives another error than EPERM.
    """

    name: str
    x86_64: int
    aarch64: int
    arguments: tuple[int, ...] = ()


ATTACKS = (
    Attack("read a file of the host", "succeeded(open(victim['secret']).read())"),
    Attack("read the user's home folder", "succeeded(open(victim['home_file']).read())"),
    Attack("read /etc/shadow", "succeeded(len(open('/etc/shadow').read()))", root=True),
    Attack(
        "write to /usr",
        "path = '/usr/local/lib/' + victim['name']; open(path, 'w'); os.unlink(path); succeeded()",
        root=True,
    ),
    Attack(
        "write to /",
        "path = '/' + victim['name']; open(path, 'w'); os.unlink(path); succeeded()",
        root=True,
    ),
    Attack(
        "write to /proc/sys",
        "path = '/proc/sys/vm/swappiness'; old = open(path).read()\n"
        "open(path, 'w').write(old); succeeded()",
        root=True,
    ),
    Attack(
        "read another process's environment",
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        if victim['canary'].encode() in open(f'/proc/{pid}/environ', 'rb').read():\n"
        "            succeeded(pid)\n"
        "    except OSError: pass",
    ),
    Attack(
        "see other processes",
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        if victim['canary'].encode() in open(f'/proc/{pid}/cmdline', 'rb').read():\n"
        "            succeeded(pid)\n"
        "    except OSError: pass",
    ),
    Attack("signal another process", "os.kill(victim['pid'], 0); succeeded()"),
    Attack(
        "connect to a service on loopback",
        "socket.create_connection(('127.0.0.1', victim['tcp']), 3); succeeded()",
        network=True,
    ),
    Attack(
        "connect to a service on loopback by IPv6",
        "socket.create_connection(('::ffff:127.0.0.1', victim['tcp']), 3); succeeded()",
        network=True,
    ),
    Attack(
        "connect to a service on loopback by the opening of TCP Fast Open",
        "s = socket.socket(); s.sendto(b'x', 0x20000000, ('127.0.0.1', victim['tcp'])); succeeded()",
        network=True,
    ),
    Attack(
        "connect to a service on loopback by Multipath TCP",
        "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n"
        "s.connect(('127.0.0.1', victim['tcp'])); succeeded()",
        network=True,
    ),
    Attack(
        "learn the network interfaces of the machine",
        "import fcntl, struct\n"
        "one, _ = socket.socketpair(); names = bytearray(4000)\n"
        "address = (ctypes.c_char * 4000).from_buffer(names)\n"
        "found = fcntl.ioctl(one, 0x8912, struct.pack('iP', 4000, ctypes.addressof(address)))\n"
        "names = [bytes(names[n:n + 16]).strip(b'\\0') for n in range(0, struct.unpack('iP', found)[0], 40)]\n"
        "if set(names) - {b'lo'}: succeeded(names)",
        network=True,
    ),
    Attack(
        "send data in a DNS query",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)\n"
        "s.sendto(b'secret.example', ('127.0.0.1', victim['udp'])); succeeded(s.recv(100))",
        network=True,
    ),
    Attack(
        "connect to a unix socket of the host",
        "s = socket.socket(socket.AF_UNIX); s.connect(victim['unix']); succeeded()",
        network=True,
    ),
    Attack(
        "connect to an abstract socket",
        "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + victim['name']); succeeded()",
        network=True,
    ),
    Attack(
        "read shared memory of another program",
        "libc.shmat.restype = ctypes.c_void_p\n"
        "found = libc.shmat(victim['shared'], None, 0o10000)\n"  # SHM_RDONLY
        "if found != ctypes.c_void_p(-1).value:\n"
        "    if ctypes.string_at(found) == victim['canary'].encode(): succeeded()",
    ),
    Attack(
        "take a message of another program",
        "data = ctypes.create_string_buffer(100)\n"
        "if libc.msgrcv(victim['queue'], data, 50, 0, 0o4000) > 0: succeeded(data.raw)",
    ),
    Attack(
        "trace a process",
        "child = subprocess.Popen(['sleep', '30'])\n"
        "result = libc.ptrace(16, child.pid, 0, 0)\n"
        "child.kill()\n"
        "if result == 0: succeeded()",
    ),
    Attack(
        "mount a file system",
        "os.makedirs('mnt', exist_ok=True)\n"
        "if libc.mount(b'none', b'mnt', b'tmpfs', 0, None) == 0:\n"
        "    libc.umount2(b'mnt', 2); succeeded()",
        root=True,
    ),
    Attack(
        "become root with a setuid program",
        "import shutil, stat\n"
        "path = f'./id-{os.getpid()}'\n"
        "shutil.copy('/usr/bin/id', path); os.chmod(path, 0o4755)\n"
        "if subprocess.check_output([path, '-u']).strip() == b'0': succeeded()",
        root=True,
    ),
    Attack("make a user namespace", "if libc.unshare(0x10000000) == 0: succeeded()"),
    Attack(
        "make a user namespace with clone",
        "number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]\n"
        "result, _ = syscall(number, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if result == 0: os._exit(0)\n"
        "if result > 0: succeeded()",
    ),
    Attack(
        "start 400 processes",
        "children = []\n"
        "try:\n"
        "    for _ in range(400): children.append(subprocess.Popen(['sleep', '60']))\n"
        "    succeeded()\n"
        "finally:\n"
        "    for child in children: child.kill()",
    ),
    Attack("use 512 MB of memory", "data = bytearray(512 * 1024**2); succeeded(len(data))"),
    Attack(
        "fill /tmp with 64 MB",
        "path = '/tmp/' + victim['name']\n"
        "with open(path, 'wb') as file:\n"
        "    for _ in range(64): file.write(bytes(1024**2)); file.flush()\n"
        "os.unlink(path); succeeded()",
    ),
    Attack(
        "fill /dev/shm with 64 MB",
        "path = '/dev/shm/' + victim['name']\n"
        "with open(path, 'wb') as file:\n"
        "    for _ in range(64): file.write(bytes(1024**2)); file.flush()\n"
        "os.unlink(path); succeeded()",
    ),
    Attack(
        "write a file of 200 MB to the work folder",
        "with open('large', 'wb') as file:\n"
        "    for _ in range(200): file.write(bytes(1024**2)); file.flush()\n"
        "os.unlink('large'); succeeded()",
    ),
    Attack("make a hard link to a file of the host", "os.link(victim['secret'], 'l'); succeeded()"),
    Attack(
        "write a setting of git that runs a program later",
        "with open('.git/config', 'a') as file:\n"
        "    file.write('[core]\\n\\tfsmonitor = ' + victim['program'] + '\\n')\n"
        "succeeded()",
    ),
    Attack(
        "write a hook of git",
        "open('.git/hooks/post-index-change', 'w').write('#!/bin/sh\\n'); succeeded()",
    ),
    Attack(
        "replace the git repository",
        "os.rename('.git', 'other'); os.mkdir('.git'); succeeded()",
    ),
    Attack(
        "type into the terminal that started the program",
        "import fcntl\n"
        "try: fcntl.ioctl(0, 0x5412, b'x')\n"
        "except OSError as error:\n"
        "    if error.errno == 25: succeeded('the kernel was asked')",
    ),
    Attack(
        "take a descriptor of another process by its pidfd",
        "pidfd = os.pidfd_open(victim['pid'])\nif syscall(438, pidfd, 0, 0)[0] >= 0: succeeded()",
    ),
    Attack(
        "read a file by a program that is only in memory",
        "fd = os.memfd_create('program', 0)\n"
        "os.write(fd, open('/usr/bin/cat', 'rb').read())\n"
        "number = {'x86_64': 322, 'aarch64': 281}[os.uname().machine]\n"
        "words = (ctypes.c_char_p * 3)(b'cat', victim['secret'].encode(), None)\n"
        "empty = ctypes.create_string_buffer(b'')\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.dup2(write, 1)\n"
        "    syscall(number, fd, ctypes.addressof(empty), ctypes.addressof(words), 0, 0x1000)\n"
        "    os._exit(1)\n"
        "os.close(write); os.wait()\n"
        "if victim['canary'].encode() in os.read(read, 999): succeeded()",
    ),
    Attack(
        "open a descriptor again with more rights, through /proc",
        "fd = os.open('/etc/os-release', os.O_RDONLY)\n"
        "os.open(f'/proc/self/fd/{fd}', os.O_RDWR); succeeded()",
        root=True,
    ),
    Attack(
        "read a file of another program in /dev/shm",
        "succeeded(open('/dev/shm/' + victim['name'] + '-shared').read())",
    ),
    Attack(
        "watch a folder of the host",
        "folder = os.path.dirname(victim['secret']).encode()\n"
        "watch = libc.inotify_init1(0)\n"
        "if watch >= 0 and libc.inotify_add_watch(watch, folder, 0x100) >= 0: succeeded()",
    ),
    Attack(
        "watch a folder of the host by fcntl",
        "import fcntl\n"
        "fcntl.fcntl(os.open(os.path.dirname(victim['secret']), 0), 1026, 4); succeeded()",
    ),
    Attack(
        "make a user namespace with clone3",
        "import struct\n"
        "arguments = ctypes.create_string_buffer(struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0))\n"
        "result, _ = syscall(435, ctypes.addressof(arguments), 64)\n"
        "if result == 0: os._exit(0)\n"
        "if result > 0: succeeded()",
    ),
    Attack(
        "type into the terminal by a request with further bits, which the kernel ignores",
        "number = {'x86_64': 16, 'aarch64': 29}[os.uname().machine]\n"
        "if syscall(number, 0, 0x100005412, 0)[1] == 25: succeeded('the kernel was asked')",
    ),
    Attack(
        "list the sockets of the machine",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4); succeeded()",
        network=True,
    ),
    Attack(
        "signal the program at the other end of a connection",
        "import struct\n"
        "s = socket.socket()\n"
        "try:\n"
        "    s.connect(('127.0.0.1', 3128))\n"  # in a box, the proxy
        "except OSError:\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(victim['unix'])\n"
        "pid = struct.unpack('3i', s.getsockopt(1, 17, 12))[0]\n"  # SO_PEERCRED
        "if pid > 0: os.kill(pid, 0); succeeded()",
        network=True,
    ),
)

# A program for 32 bits has other numbers of calls: this one is getpid.
OLD_CALL = """
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")  # mov eax, 20; int 0x80; ret
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
if function() == os.getpid(): succeeded()
"""

# A supervisor that lets the kernel read the address again connects to the other one.
ADDRESS_RACE = """
import threading
both = [b"\\2\\0" + port.to_bytes(2, "big") + b"\\x7f\\0\\0\\1" + bytes(8) for port in (3128, victim["tcp"])]
address = ctypes.create_string_buffer(both[0], 16)
def swap():
    while True:
        for one in both:
            ctypes.memmove(address, one, 16)
threading.Thread(target=swap, daemon=True).start()
until = time.monotonic() + 5
while time.monotonic() < until:
    with socket.socket() as s:
        if libc.connect(s.fileno(), address, 16) == 0:
            s.settimeout(0.5)
            try:
                if s.recv(99) == b"the victim":
                    succeeded()
                    break
            except OSError:
                pass
"""

# The kernel itself gives, for example, EBADF or EFAULT.
REFUSED_CALLS = (
    RefusedCall("io_uring_setup", 425, 425, (1, 0)),
    RefusedCall("userfaultfd", 323, 282, (1,)),
    RefusedCall("keyctl", 250, 219, (0, -3, 0)),
    RefusedCall("bpf", 321, 280, (9999, 0, 0)),
    RefusedCall("perf_event_open", 298, 241, (0, 0, -1, -1, 0)),
    RefusedCall("process_vm_readv", 310, 270, (1, 0, 0, 0, 0, 9)),
    RefusedCall("pidfd_getfd", 438, 438, (-1, 0, 0)),
    RefusedCall("setns", 308, 268, (-1, 0)),
    RefusedCall("open_by_handle_at", 304, 265, (-1, 0, 0)),
    RefusedCall("fsopen", 430, 430, (0, 0)),
    RefusedCall("move_mount", 429, 429, (-1, 0, -1, 0, 0)),
    RefusedCall("kcmp", 312, 272, (1, 1, 99, 0, 0)),
    RefusedCall("fanotify_init", 300, 262, (0x7FFFFFFF, 0)),
    RefusedCall("quotactl", 179, 60, (-1, 0, 0, 0)),
    RefusedCall("name_to_handle_at", 303, 264, (-100, 0, 0, 0, 0)),
    RefusedCall("process_madvise", 440, 440, (-1, 0, 0, 0, 0)),
    RefusedCall("add_key", 248, 217, (0, 0, 0, 0, 0)),
    RefusedCall("request_key", 249, 218, (0, 0, 0, 0)),
    RefusedCall("io_uring_enter", 426, 426, (-1, 0, 0, 0, 0, 0)),
)
