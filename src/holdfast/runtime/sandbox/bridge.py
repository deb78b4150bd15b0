"""`BoxLauncher`, which starts boxes, and their ways to the proxy. `BoxNetwork` is a network
namespace in which one loopback port leads to the proxy, `ProxyIntake` a socket for boxes without
namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.processes import OwnerProcess
from holdfast.runtime.command_host import NetworkLog
from holdfast.runtime.sandbox.settings import SandboxUnavailable
from holdfast.tools.launch import Launch

if TYPE_CHECKING:
    from holdfast.runtime.sandbox.proxy import Proxy, ProxyListener

PORT = 3128
# Runs in the new namespaces. Sends back a socket that listens there, and descriptors of the
# namespaces, which live as long as these.
_CHILD = f"""\
import os, socket, sys
listening = socket.create_server(("127.0.0.1", {PORT}), backlog=64)
spaces = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in ("user", "net")]
channel = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(channel, [b"x"], [listening.fileno(), *spaces])
"""
_START_SECONDS = 20.0


class ProxyWay:
    """A way from boxes to the proxy, until `close` or the end of this process."""

    def __init__(self, listener: ProxyListener, fds: list[int]) -> None:
        self._process = OwnerProcess()
        self._listener = listener
        self._fds = fds

    def enter(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the words before a command that uses the way, and descriptors for it, which the
        caller closes. The command must start while this process lives."""
        raise NotImplementedError

    def take_connections(self) -> NetworkLog:
        """Return the connections since the last call."""
        return self._listener.take_connections()

    def close(self) -> None:
        """End the connections. Idempotent; does nothing in a forked child."""
        if self._process.here:
            self._listener.close()
            while self._fds:
                os.close(self._fds.pop())


class BoxNetwork(ProxyWay):
    """A network namespace with a loopback interface of its own and nothing else.

    Its port `PORT` is a socket of this process: connections to it are served by the proxy, without
    any process or file in between. Names cannot be resolved in it, except by the proxy. Raises
    `SandboxUnavailable` if it cannot be made.

    Args:
        proxy: Decides about the connections.
        program: The path of `bwrap`.
    """

    def __init__(self, proxy: Proxy, program: str) -> None:
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
        super().__init__(proxy.listen(socket.socket(fileno=fds[0])), fds[1:])

    def enter(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the program that enters the namespace; see `ProxyWay.enter`."""
        user, net = (f"/proc/{os.getpid()}/fd/{fd}" for fd in self._fds)
        joined = [] if os.geteuid() == 0 else [f"--user={user}", "--preserve-credentials"]
        return ["nsenter", *joined, f"--net={net}", "--"], ()


class ProxyIntake(ProxyWay):
    """A socket that takes connections to the proxy: each message on it has the descriptor of one.
    The supervisors of boxes without namespaces have the other end, and no command has."""

    def __init__(self, proxy: Proxy) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(proxy.listen(ours, _receive_connection), [theirs.detach()])

    def enter(self) -> tuple[list[str], tuple[int, ...]]:
        """Return a descriptor of the end for supervisors; see `ProxyWay.enter`."""
        return [], (os.dup(self._fds[0]),)


class BoxLauncher:
    """Starts each command as the first process of a new box.

    Args:
        make_way: Makes the boxes' way to the proxy, for the first of them; None for no network.
    """

    def __init__(self, make_way: Callable[[], ProxyWay] | None) -> None:
        self._make_way = make_way
        self._way: ProxyWay | None = None
        self._lock = threading.Lock()

    def command(self, argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str]) -> Launch:
        """Return the launch of a new box; see `Launcher.command`."""
        raise NotImplementedError

    def enter_network(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the words before a command that uses the network, and descriptors for it; nothing
        if the boxes have none."""
        if self._make_way is None:
            return [], ()
        with self._lock:
            self._way = self._way or self._make_way()
            return self._way.enter()

    def limit(self, first_pid: int) -> None:
        """Apply the limits that need the box's first process, named by its pid on this machine.
        Called once for a box that stays, before it gets its first command. Raises `OSError`."""

    def share(self, folder: Path) -> None:
        """Let boxes that run read the files in the private folder, or a folder in it."""

    def take_connections(self) -> NetworkLog:
        """Return the connections of the boxes to the network since the last call."""
        return NetworkLog() if self._way is None else self._way.take_connections()

    def close(self) -> None:
        """Let go of the network. Called when the boxes have ended. Idempotent."""
        if self._way is not None:
            self._way.close()


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
    variables: dict[str, str] = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url)
    variables["NO_PROXY"] = "" if local_hosts else "localhost,127.0.0.1,::1"
    # curl reads http_proxy in lower case alone.
    variables |= {name.lower(): value for name, value in variables.items()}
    return {**variables, "NODE_USE_ENV_PROXY": "1"}
