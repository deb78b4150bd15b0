"""The supervisor of a Landlock box: it changes files for commands that may not do so themselves.

In such a box, the work folder is read-only to the kernel. A seccomp filter passes the calls that
would change files to this process, which decides and performs them itself. Landlock confines the
supervisor too, to the paths that a box without a supervisor may write. Two cases need it, for which
Landlock has no rule:

- paths in a writable folder that must not be changed, such as the settings of a git repository;
- a folder of root's: the supervisor has root's rights to files there, and commands have none.

The kernel itself decides about a call that does not concern the work folder. Commands can change
the memory that the supervisor has read, so no permission rests on it.

In a box with an allow-list of hosts, the supervisor also replaces TCP. No command can make a
socket. The supervisor answers `socket` with one end of a pair, and `connect` to the proxy's address
by passing the other end to the proxy. So no command has a way to any other address.
"""

from __future__ import annotations

import _socket
import _stat as stat
import errno
import fcntl
import select
from _socket import socketpair
from _struct import Struct, pack, unpack, unpack_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any
else:
    import posix as os

_NOTIFICATION = Struct("=QIIiIQ6Q")  # struct seccomp_notif
_RECEIVE, _SEND, _VALID, _ADD_FD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_CONTINUE, _ADD_AND_SEND = 1, 2
_AT_FDCWD, _AT_NOFOLLOW, _AT_REMOVEDIR, _AT_FOLLOW, _AT_EMPTY = -100, 0x100, 0x200, 0x400, 0x1000
_O_TMPFILE = 0x400000
_PAGE = 4096
_MAX_LINKS = 40
_AF_INET, _NONBLOCK, _CLOEXEC = 2, 0x800, 0x80000
_SOL_SOCKET, _SCM_RIGHTS, _DONTWAIT = 1, 1, 0x40
_ADDRESS_BYTES = 16  # struct sockaddr_in
_MAX_UNCONNECTED = 256  # sockets of a box; below it, the closed ones are not looked for
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_RENAMEAT2, _UTIMENSAT = {"x86_64": (316, 280), "aarch64": (276, 88)}[os.uname().machine]

# Shorter forms of calls: the full form, and its arguments. A digit is an argument of the short one.
_CONSTANTS = {
    "c": _AT_FDCWD,
    "z": 0,
    "r": _AT_REMOVEDIR,
    "w": os.O_CREAT | os.O_WRONLY | os.O_TRUNC,
}
_SHORT_FORMS = {
    "open": "openat c012",
    "creat": "openat c0w1",
    "rename": "renameat2 c0c1z",
    "renameat": "renameat2 0123z",
    "link": "linkat c0c1z",
    "symlink": "symlinkat 0c1",
    "mkdir": "mkdirat c01",
    "mknod": "mknodat c01",
    "unlink": "unlinkat c0z",
    "rmdir": "unlinkat c0r",
    "chmod": "fchmodat c01",
    "access": "faccessat c01",
    "faccessat2": "faccessat 012",
}


def _full_form(name: str, arguments: list[int]) -> tuple[str, list[int]]:
    if name not in _SHORT_FORMS:
        return name, arguments
    full, places = _SHORT_FORMS[name].split()
    return full, [arguments[int(one)] if one.isdigit() else _CONSTANTS[one] for one in places]


class _Native(Exception):
    """The kernel is to decide about the call."""


def _signed(value: int) -> int:
    return unpack("=i", pack("=I", value & 0xFFFFFFFF))[0]


class _Call:
    """One call of a command: its process, and the descriptors that are open while it is handled."""

    def __init__(self, pid: int, check: Callable[[], object]) -> None:
        self.pid = pid
        self._check = check
        """Raises `OSError` if the process has ended, so that its pid may be another's."""
        self._fds: list[int] = []

    def open(self, path: bytes | str, flags: int, base: int | None = None) -> int:
        fd = os.open(path, flags, dir_fd=base)
        self._fds.append(fd)
        return fd

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def bytes_at(self, address: int, count: int) -> bytes:
        memory = self.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self._check()
        return os.pread(memory, count, address)

    def path_at(self, address: int) -> bytes:
        """Return the text at an address of the process."""
        memory = self.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self._check()
        text = b""
        while len(text) < 2 * _PAGE:
            text += os.pread(memory, _PAGE - address % _PAGE, address)
            if b"\0" in text:
                return text.partition(b"\0")[0]
            address += _PAGE - address % _PAGE
        raise OSError(errno.ENAMETOOLONG, "")

    def umask(self) -> int:
        with open(f"/proc/{self.pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
        return 0o022

    def locate(self, folder: int, path: bytes, follow: bool) -> tuple[int, bytes, bytes]:
        """Return a descriptor of the folder that has a path's last name, that name, and the real
        path of the folder. Raises `_Native` if there is none."""
        base: int | None = None
        try:
            for _ in range(_MAX_LINKS):
                head, _, name = path.rstrip(b"/").rpartition(b"/")
                # Links of /proc lead to other files for each process.
                if name in (b"", b".", b"..") or path.startswith((b"/proc/", b"/dev/")):
                    raise _Native
                if path.startswith(b"/"):
                    head = head or b"/"
                elif base is None:
                    fd = _signed(folder)
                    place = "cwd" if fd == _AT_FDCWD else f"fd/{fd}"
                    base = self.open(f"/proc/{self.pid}/{place}", os.O_PATH | os.O_DIRECTORY)
                base = self.open(head or b".", os.O_PATH | os.O_DIRECTORY, base)
                try:
                    path = os.readlink(name, dir_fd=base) if follow else b""
                except OSError:  # no link
                    path = b""
                if not path:
                    return base, name, self.real(base)
        except OSError:
            pass
        raise _Native

    def real(self, fd: int) -> bytes:
        return os.readlink(b"/proc/self/fd/%d" % fd)


class Supervisor:
    """Decides about the calls that change files, and does them.

    Args:
        listener: The descriptor of the seccomp filter.
        settings: `calls`: the names of the calls by number. `roots`: the folders that commands may
            change. `protected`: the paths in them that must not be changed or made, with all below.
            `proxy`: the descriptor of the socket that takes connections to the proxy, -1 without a
            network. `port`: the proxy's port on 127.0.0.1 for commands.
        system_call: Makes a system call. Raises `OSError`.
    """

    def __init__(
        self, listener: int, settings: dict[str, Any], system_call: Callable[..., int]
    ) -> None:
        self._listener = listener
        self._system_call = system_call
        self._calls: dict[int, str] = settings["calls"]
        self._roots: list[bytes] = settings["roots"]
        self._protected: list[bytes] = settings["protected"]
        self._port: int = settings["port"]
        proxy: int = settings["proxy"]
        self._proxy = _socket.socket(fileno=proxy) if proxy >= 0 else None
        self._unconnected: dict[int, _socket.socket] = {}
        """The other ends of sockets that are not connected, by the inode of the command's end."""

    def answer(self) -> None:
        """Take one call, and answer it."""
        data = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, data)
        except OSError:  # the process was ended meanwhile
            return
        number, pid, _, call, _, _, *arguments = _NOTIFICATION.unpack(data)
        valid = pack("=Q", number)
        request = _Call(pid, lambda: fcntl.ioctl(self._listener, _VALID, valid))
        result, flags = 0, 0
        try:
            name, arguments = _full_form(self._calls[call], arguments)
            handler: Callable[..., int | None] = getattr(self, f"_{name}")
            new = handler(request, *arguments)
            if new is not None and self._add(number, new):
                return
        except _Native:
            flags = _CONTINUE
        except OSError as error:
            result = -(error.errno or errno.EACCES)
        except (ValueError, OverflowError):  # arguments that no call takes
            result = -errno.EINVAL
        finally:
            request.close()
        try:
            fcntl.ioctl(self._listener, _SEND, pack("=QqiI", number, 0, result, flags))
        except OSError:
            pass

    def _add(self, number: int, fd: int) -> bool:
        """Give a descriptor to the process as the result of its call."""
        try:
            # `cloexec` is what the process asked for: the handlers keep it in the flag of the file.
            flags = os.O_CLOEXEC if os.get_inheritable(fd) is False else 0
            fcntl.ioctl(
                self._listener, _ADD_FD, pack("=QIIII", number, _ADD_AND_SEND, fd, 0, flags)
            )
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
        finally:
            os.close(fd)
        return True

    # --- the decision ---

    def _inside(self, path: bytes) -> bool:
        return any(path == root or path.startswith(root + b"/") for root in self._roots)

    def _allow(self, folder: bytes, name: bytes, removes: bool = False) -> None:
        """Raise `_Native` for an entry of another folder, `OSError` for a protected one."""
        if not self._inside(folder):
            raise _Native
        path = folder + b"/" + name
        for one in self._protected:
            if path == one or path.startswith(one + b"/"):
                raise OSError(errno.EROFS, "")
            if removes and one.startswith(path + b"/"):
                raise OSError(errno.EBUSY, "")

    def _existing(self, call: _Call, folder: int, path: int, follow: bool = True) -> int:
        """Return a descriptor of a file or folder that may be changed."""
        base, name, real = call.locate(folder, call.path_at(path), follow)
        if not self._inside(real):
            raise _Native
        existing = call.open(name, _PATH, base)
        parent, _slash, own = call.real(existing).rpartition(b"/")
        self._allow(parent, own)
        return existing

    # --- the calls ---

    def _openat(
        self, call: _Call, folder: int, path: int, flags: int, mode: int, *_: int
    ) -> int | None:
        flags &= 0xFFFFFFFF
        if flags & os.O_PATH:
            raise _Native
        if flags & _O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "")
        exclusive = bool(flags & os.O_CREAT and flags & os.O_EXCL)
        text = call.path_at(path)
        for _attempt in range(3):
            follow = not exclusive and not flags & os.O_NOFOLLOW
            base, name, real = call.locate(folder, text, follow)
            if not self._inside(real):
                raise _Native
            try:
                existing = call.open(name, _PATH, base)
            except FileNotFoundError:
                if not flags & os.O_CREAT or text.endswith(b"/"):
                    raise _Native from None
                self._allow(real, name)
                os.umask(call.umask())
                try:
                    new = os.open(
                        name, flags | os.O_EXCL | os.O_NOFOLLOW, mode & 0o1777, dir_fd=base
                    )
                except FileExistsError:
                    if exclusive:
                        raise
                    continue  # it was made meanwhile
            else:
                if exclusive or not stat.S_ISREG(os.fstat(existing).st_mode):
                    raise _Native  # it says why not; the kernel lets nothing be changed
                parent, _slash, own = call.real(existing).rpartition(b"/")
                self._allow(parent, own)
                open_flags = flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
                new = os.open(f"/proc/self/fd/{existing}", open_flags)
            os.set_inheritable(new, not flags & os.O_CLOEXEC)
            return new
        raise OSError(errno.EAGAIN, "")

    def _truncate(self, call: _Call, path: int, length: int, *_: int) -> None:
        existing = self._existing(call, _AT_FDCWD, path)
        fd = call.open(f"/proc/self/fd/{existing}", os.O_WRONLY | os.O_NONBLOCK)
        os.ftruncate(fd, length)

    def _renameat2(
        self, call: _Call, a: int, old: int, b: int, new: int, flags: int, *_: int
    ) -> None:
        source = call.locate(a, call.path_at(old), False)
        target = call.locate(b, call.path_at(new), False)
        self._check_two(source, target)
        for _fd, name, real in (source, target):
            self._allow(real, name, removes=True)
        flags &= 0xFFFFFFFF
        self._system_call(_RENAMEAT2, source[0], source[1], target[0], target[1], flags)

    def _check_two(self, *entries: tuple[int, bytes, bytes]) -> None:
        """Let the kernel decide about two entries elsewhere. One here and one elsewhere are as on
        two file systems."""
        inside = [self._inside(real) for _, _, real in entries]
        if not any(inside):
            raise _Native
        if not all(inside):
            raise OSError(errno.EXDEV, "")

    def _linkat(self, call: _Call, a: int, old: int, b: int, new: int, flags: int, *_: int) -> None:
        if flags & _AT_EMPTY:
            raise _Native
        source = call.locate(a, call.path_at(old), bool(flags & _AT_FOLLOW))
        target = call.locate(b, call.path_at(new), False)
        self._check_two(source, target)
        self._allow(source[2], source[1], removes=True)
        self._allow(target[2], target[1])
        os.link(
            source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0], follow_symlinks=False
        )

    def _new(self, call: _Call, folder: int, path: int) -> tuple[int, bytes]:
        """Return the folder and the name of an entry that may be made."""
        base, name, real = call.locate(folder, call.path_at(path), False)
        self._allow(real, name)
        os.umask(call.umask())
        return base, name

    def _symlinkat(self, call: _Call, content: int, folder: int, path: int, *_: int) -> None:
        base, name = self._new(call, folder, path)
        os.symlink(call.path_at(content), name, dir_fd=base)

    def _mkdirat(self, call: _Call, folder: int, path: int, mode: int, *_: int) -> None:
        base, name = self._new(call, folder, path)
        os.mkdir(name, mode & 0o1777, dir_fd=base)

    def _mknodat(self, call: _Call, folder: int, path: int, mode: int, *_: int) -> None:
        base, name = self._new(call, folder, path)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFIFO):
            raise OSError(errno.EPERM, "")
        os.mknod(name, mode & 0o170777, dir_fd=base)

    def _unlinkat(self, call: _Call, folder: int, path: int, flags: int, *_: int) -> None:
        base, name, real = call.locate(folder, call.path_at(path), False)
        self._allow(real, name, removes=True)
        if flags & _AT_REMOVEDIR:
            os.rmdir(name, dir_fd=base)
        else:
            os.unlink(name, dir_fd=base)

    def _fchmodat(self, call: _Call, folder: int, path: int, mode: int, *_: int) -> None:
        existing = self._existing(call, folder, path)
        os.chmod(f"/proc/self/fd/{existing}", mode & 0o1777)

    def _fchmodat2(
        self, call: _Call, folder: int, path: int, mode: int, flags: int, *_: int
    ) -> None:
        if flags & (_AT_NOFOLLOW | _AT_EMPTY):
            raise OSError(errno.EOPNOTSUPP, "")
        self._fchmodat(call, folder, path, mode)

    def _utimensat(
        self, call: _Call, folder: int, path: int, times: int, flags: int, *_: int
    ) -> None:
        if path == 0:
            place = b"/proc/%d/fd/%d" % (call.pid, _signed(folder))
            parent, _slash, name = os.readlink(place).rpartition(b"/")
            self._allow(parent, name)
            existing = call.open(place, os.O_PATH)
        else:
            existing = self._existing(call, folder, path, not flags & _AT_NOFOLLOW)
        values = call.bytes_at(times, 32) if times else 0
        if stat.S_ISLNK(os.fstat(existing).st_mode):
            raise _Native
        self._system_call(_UTIMENSAT, _AT_FDCWD, b"/proc/self/fd/%d" % existing, values, 0)

    def _faccessat(self, call: _Call, folder: int, path: int, mode: int, *_: int) -> None:
        self._existing(call, folder, path)
        if mode & os.X_OK:
            raise _Native

    # --- the network ---

    def _socket(self, call: _Call, family: int, kind: int, protocol: int, *_: int) -> int:
        if len(self._unconnected) >= _MAX_UNCONNECTED:
            self._drop_closed()
        ours, theirs = socketpair()
        if kind & _NONBLOCK:
            theirs.setblocking(False)
        fd = theirs.detach()
        os.set_inheritable(fd, not kind & _CLOEXEC)
        self._unconnected[os.fstat(fd).st_ino] = ours
        return fd

    def _drop_closed(self) -> None:
        """Forget the sockets that commands have closed. Without any, fail as the kernel does for
        too many."""
        poll = select.poll()
        for one in self._unconnected.values():
            poll.register(one, 0)
        closed = {fd for fd, _ in poll.poll(0)}
        still_open = {
            key: one for key, one in self._unconnected.items() if one.fileno() not in closed
        }
        for key in self._unconnected.keys() - still_open.keys():
            self._unconnected[key].close()
        self._unconnected = still_open
        if len(still_open) >= _MAX_UNCONNECTED:
            raise OSError(errno.EMFILE, "")

    def _connect(self, call: _Call, fd: int, address: int, length: int, *_: int) -> None:
        try:
            status = os.stat(f"/proc/{call.pid}/fd/{_signed(fd)}")
        except OSError:
            raise OSError(errno.EBADF, "") from None
        if not stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENOTSOCK, "")
        data = call.bytes_at(address, min(length, _ADDRESS_BYTES))
        if status.st_ino not in self._unconnected:
            raise OSError(errno.EISCONN, "")
        if len(data) < _ADDRESS_BYTES:
            raise OSError(errno.EINVAL, "")
        family, port, host = unpack_from("=H2s4s", data)
        if family != _AF_INET or host[0] != 127:
            raise OSError(errno.ENETUNREACH, "")
        if self._proxy is None or (host, port) != (b"\x7f\0\0\1", self._port.to_bytes(2, "big")):
            raise OSError(errno.ECONNREFUSED, "")
        end = self._unconnected.pop(status.st_ino)
        try:
            rights = [(_SOL_SOCKET, _SCM_RIGHTS, pack("=i", end.fileno()))]
            self._proxy.sendmsg([b"x"], rights, _DONTWAIT)
        except OSError:
            raise OSError(errno.ECONNREFUSED, "") from None
        finally:
            end.close()


def receive_listener(sock: _socket.socket) -> int:
    """Return the descriptor of the filter that the command sends, -1 if the command has failed."""
    _, controls, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(4))
    sock.close()
    return unpack("=i", controls[0][2])[0] if controls else -1
