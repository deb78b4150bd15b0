"""The ways from boxes to the proxy: `BoxNetwork`, a network namespace in which one loopback port
leads to it, and `ProxyIntake`, a socket for boxes without namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.processes import OwnerProcess
from holdfast.runtime.command_host import NetworkLog
from holdfast.runtime.sandbox.settings import SandboxUnavailable

if TYPE_CHECKING:
    from holdfast.runtime.sandbox.proxy import Proxy

PORT = 3128
# Runs in the new namespaces, and hands out what they need: a socket that listens there, and the
# namespaces themselves, which live as long as a descriptor of them.
_CHILD = f"""\
import os, socket, sys
listening = socket.create_server(("127.0.0.1", {PORT}), backlog=64)
spaces = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in ("user", "net")]
channel = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(channel, [b"x"], [listening.fileno(), *spaces])
"""
_START_SECONDS = 20.0


class BoxNetwork:
    """A network namespace with a loopback interface of its own and nothing else.

    Its port `PORT` is a socket of this process: connections to it are served by the proxy, without
    any process or file in between. Names cannot be resolved in it, except by the proxy. It lives
    until `close`, or until this process ends. Raises `SandboxUnavailable` if it cannot be made.

    Args:
        proxy: Decides about the connections.
        program: The path of `bwrap`.
    """

    def __init__(self, proxy: Proxy, program: str) -> None:
        self._process = OwnerProcess()
        self._fds: list[int] = []
        ours, theirs = socket.socketpair()
        # Root needs no user namespace, and may not be permitted one.
        user = [] if os.geteuid() == 0 else ["--unshare-user"]
        child = [sys.executable, "-I", "-S", "-c", _CHILD, str(theirs.fileno())]
        with ours, theirs:
            try:
                subprocess.run(
                    [program, *user, "--unshare-net", "--dev-bind", "/", "/", "--", *child],
                    pass_fds=(theirs.fileno(),),
                    env={},
                    capture_output=True,
                    check=True,
                    timeout=_START_SECONDS,
                )
                ours.settimeout(_START_SECONDS)
                _, fds, _, _ = socket.recv_fds(ours, 1, 3, socket.MSG_CMSG_CLOEXEC)
            except subprocess.CalledProcessError as error:
                raise _unavailable(os.fsdecode(error.stderr).strip()) from None
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _unavailable(str(error)) from error
        self._fds = fds[1:]
        self._listener = proxy.listen(socket.socket(fileno=fds[0]))

    def enter(self) -> list[str]:
        """Return the program and arguments before a command that runs in the namespace. This
        process must live when it starts."""
        user, net = (f"/proc/{os.getpid()}/fd/{fd}" for fd in self._fds)
        joined = [] if os.geteuid() == 0 else [f"--user={user}", "--preserve-credentials"]
        return ["nsenter", *joined, f"--net={net}", "--"]

    def take_connections(self) -> NetworkLog:
        """Return the connections since the last call."""
        return self._listener.take_connections()

    def close(self) -> None:
        """End the connections, and let go of the namespace. Idempotent; does nothing in a forked
        child."""
        if not self._process.here:
            return
        self._listener.close()
        while self._fds:
            with suppress(OSError):
                os.close(self._fds.pop())


class ProxyIntake:
    """A socket that takes connections to the proxy: each message on it has the descriptor of one.

    The supervisors of boxes without namespaces have the other end, and no command has. It lives
    until `close`.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._process = OwnerProcess()
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener = proxy.listen(ours, _receive_connection)

    def descriptor(self) -> int:
        """Return a new descriptor of the end for supervisors."""
        return os.dup(self._theirs.fileno())

    def take_connections(self) -> NetworkLog:
        """Return the connections since the last call."""
        return self._listener.take_connections()

    def close(self) -> None:
        """End the connections. Idempotent; does nothing in a forked child."""
        if self._process.here:
            self._listener.close()
            self._theirs.close()


def _receive_connection(sock: socket.socket) -> socket.socket:
    _, fds, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        raise OSError("a message without a descriptor: this process has too many open files")
    return socket.socket(fileno=fds[0])


def _unavailable(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"The network of a sandbox could not be made: {reason}. It needs the programs bwrap and"
        " nsenter (Debian's packages bubblewrap and util-linux)."
    )


def proxy_variables(local_hosts: bool) -> dict[str, str]:
    """Return the variables by which programs in a box find the proxy.

    `local_hosts` says that the allow-list names loopback addresses: then `localhost` is the
    machine's, through the proxy; else it is the box itself.
    """
    url = f"http://127.0.0.1:{PORT}"
    found: dict[str, str] = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url)
    found["NO_PROXY"] = "" if local_hosts else "localhost,127.0.0.1,::1"
    # curl reads http_proxy in lower case alone.
    found |= {name.lower(): value for name, value in found.items()}
    return {**found, "NODE_USE_ENV_PROXY": "1"}
