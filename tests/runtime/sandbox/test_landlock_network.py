"""The network of Landlock boxes: a supervisor takes the place of TCP."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import LocalRuntime, SandboxedRuntime, SandboxLimits
from holdfast.runtime.sandbox.landlock import Landlock
from tests.leftovers import Owned
from tests.runtime.sandbox.test_proxy import Host

pytestmark = pytest.mark.skipif(bool(Landlock().missing()), reason=Landlock().missing())
PYTHON = "/usr/bin/python3 -I -S"


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="box-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def runtime(work: Path, host: Host) -> Iterator[SandboxedRuntime]:
    with SandboxedRuntime(work, [f"localhost:{host.port}"], "landlock") as runtime:
        yield runtime


def output_of_program(runtime: SandboxedRuntime | LocalRuntime, program: str) -> str:
    """Return the output of a Python program, or the name of its error."""
    text = f"import socket\ntry:\n{re.sub('^', '    ', program, flags=re.MULTILINE)}\n"
    (runtime.workdir / "program.py").write_text(f"{text}except OSError as e: print(e.args[0])\n")
    return runtime.run_command(f"{PYTHON} program.py").text.partition("\n[exit code")[0]


REFUSED = {
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "IPv6": "socket.socket(socket.AF_INET6)",
    "Multipath TCP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "routing messages": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a port of its own": "socket.socket().bind(('127.0.0.1', 0))",
    "an abstract name": "a, b = socket.socketpair(); a.bind(b'\\0holdfast-test')",
    "connections from elsewhere": "socket.socket().listen()",
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_other_socket_can_be_made_or_bound(runtime: SandboxedRuntime, name: str) -> None:
    program = f"{REFUSED[name]}; print('made')"
    assert output_of_program(runtime, program) == "1"
    with LocalRuntime(runtime.workdir) as plain:
        answer = output_of_program(plain, program)
        assert answer == "made" or name in ("Multipath TCP", "IPv6")


def test_connect_answers_as_for_a_machine_whose_one_port_is_the_proxy_s(
    runtime: SandboxedRuntime, host: Host
) -> None:
    program = f"""\
def connect(address, s=None):
    s = s or socket.socket()
    try: s.connect(address)
    except OSError as e: return e.args[0]
    return s
print(connect(("127.0.0.1", 3129)), connect(("127.0.0.2", 3128)), connect(("1.1.1.1", 80)))
s = connect(("127.0.0.1", 3128))
print(connect(("127.0.0.1", 3128), s))
import ctypes
a, b = socket.socketpair()
proxy = b"\\2\\0\\x0c8\\x7f\\0\\0\\1" + bytes(8)
libc = ctypes.CDLL(None, use_errno=True)
fd = socket.socket().detach()
for fd, data, length in ((a.fileno(), proxy, 16), (0, proxy, 16), (99, proxy, 16), (fd, b"\\2", 1)):
    print(libc.connect(fd, data, length), ctypes.get_errno())
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.sendall(b"GET http://localhost:{host.port}/ HTTP/1.1\\r\\nHost: localhost:{host.port}\\r\\n\\r\\n")
print(s.recv(15))"""
    assert output_of_program(runtime, program).splitlines() == [
        "111 111 101",  # ECONNREFUSED, ENETUNREACH
        "106",  # EISCONN
        "-1 106",
        "-1 88",  # ENOTSOCK
        "-1 9",  # EBADF
        "-1 22",  # EINVAL
        "b'HTTP/1.1 200 OK'",
    ]


def test_options_that_lead_packets_elsewhere_are_refused(runtime: SandboxedRuntime) -> None:
    """A source route or an interface would act on a real connection to the proxy."""
    route = "s.setsockopt(socket.IPPROTO_IP, 4, bytes((131, 7, 4, 127, 0, 0, 1, 0)))"
    assert output_of_program(runtime, f"s = socket.socket(); {route}; print('set')") == "92"
    with LocalRuntime(runtime.workdir) as plain:
        assert output_of_program(plain, f"s = socket.socket(); {route}; print('set')") == "set"


def test_a_socket_keeps_its_flags(runtime: SandboxedRuntime) -> None:
    program = """\
import os, selectors, subprocess, sys
s = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
print(os.get_inheritable(s.fileno()), os.get_blocking(s.fileno()))
selector = selectors.DefaultSelector()
selector.register(s, selectors.EVENT_WRITE)
print(s.connect_ex(("127.0.0.1", 3128)), len(selector.select(5)), s.getsockopt(1, 4))
kept = os.dup(s.fileno())
os.set_inheritable(kept, True)
child = "import os; os.write(%d, b'x'); print('written')" % kept
print(subprocess.check_output([sys.executable, "-c", child], pass_fds=[kept]))"""
    assert output_of_program(runtime, program).splitlines() == [
        "False False",
        "0 1 0",
        "b'written\\n'",
    ]


def test_sockets_that_are_not_connected_are_bounded(work: Path) -> None:
    limits = SandboxLimits(open_files=1000)
    with SandboxedRuntime(work, ["pypi.org"], "landlock", limits=limits) as runtime:
        program = "for _ in range(1000): socket.socket().close()\nprint('all')"
        assert output_of_program(runtime, program) == "all"
        program = "kept = []\nwhile len(kept) < 400: kept.append(socket.socket())"
        assert output_of_program(runtime, program) == "24"  # EMFILE
        assert output_of_program(runtime, "socket.socket(); print('again')") == "again"


def test_a_program_of_another_process_cannot_use_the_way_to_the_proxy(
    runtime: SandboxedRuntime,
) -> None:
    """This machine has no port of the proxy: it has no listening socket."""
    runtime.run_command(":")
    listening = subprocess.run(["cat", "/proc/net/tcp"], capture_output=True, text=True).stdout
    assert ":0C38 00000000:0000 0A" not in listening


def test_a_box_with_hosts_changes_a_repository_as_any_other(work: Path, host: Host) -> None:
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "file").write_text("first\n")
    owned = Owned()
    with SandboxedRuntime(work, [f"localhost:{host.port}"], "landlock") as runtime:
        result = runtime.run_command(
            f"echo more >> file && git add file && curl -s http://localhost:{host.port}/ > page;"
            " cat file page; echo x > .git/config"
        )
        assert result.text.startswith("first\nmore\nok")
        assert "Read-only file system" in result.text
        assert [one["allowed"] for one in result.meta["connections"]] == [True]
    owned.wait_until_released()
