"""The network of a box: a loopback interface whose one port leads to the proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from holdfast.runtime.sandbox.bridge import PORT, BoxNetwork, proxy_variables
from holdfast.runtime.sandbox.network import AllowList
from holdfast.runtime.sandbox.proxy import Proxy
from holdfast.runtime.sandbox.settings import SandboxUnavailable
from tests.leftovers import Owned
from tests.runtime.sandbox.test_proxy import Host

BWRAP = shutil.which("bwrap") or ""
pytestmark = pytest.mark.skipif(not BWRAP, reason="bubblewrap is not installed")


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def network(host: Host) -> Iterator[BoxNetwork]:
    proxy = Proxy(AllowList([f"localhost:{host.port}"]))
    network = BoxNetwork(proxy, BWRAP)
    yield network
    network.close()
    proxy.close()


def run(network: BoxNetwork | None, command: str) -> str:
    """Return the output of a command in a box of the network, or on the machine."""
    box = [BWRAP, "--unshare-all", "--share-net", "--unshare-user", "--dev-bind", "/", "/", "--"]
    before = [] if network is None else [*network.enter()[0], *box]
    env = {"PATH": os.environ["PATH"], **proxy_variables(True)}
    process = subprocess.run(
        [*before, "bash", "-c", command], env=env, capture_output=True, text=True
    )
    return process.stdout + process.stderr


def test_programs_in_a_box_reach_an_allowed_host_and_no_other(
    network: BoxNetwork, host: Host
) -> None:
    assert run(network, f"curl -s http://localhost:{host.port}/").endswith("ok")
    assert "403" in run(network, "curl -sS -x $HTTPS_PROXY https://evil.test/")
    targets = [(c["target"], c["allowed"]) for c in network.take_connections()[0]]
    assert targets == [(f"localhost:{host.port}", True), ("evil.test:443", False)]


def test_without_the_proxy_there_is_no_way_out(network: BoxNetwork, host: Host) -> None:
    direct = f"curl -sS --noproxy '*' http://127.0.0.1:{host.port}/"
    assert run(None, direct).endswith("ok")
    assert "Failed to connect" in run(network, direct)
    assert "unreachable" in run(network, "exec 3<>/dev/tcp/1.1.1.1/80")
    assert run(network, "cat /proc/net/route | wc -l").strip() == "1"  # its heading
    assert "unreachable" in run(network, "exec 3<>/dev/udp/8.8.8.8/53; echo x >&3")


def test_a_server_in_a_box_is_the_box_s_own(network: BoxNetwork) -> None:
    python = "python3 -I -S -c"
    code = "import socket; s = socket.create_server(('127.0.0.1', 8099)); print('listening')"
    assert "listening" in run(network, f'{python} "{code}"')
    assert "Address already in use" in run(network, f'{python} "{code.replace("8099", str(PORT))}"')


def test_two_networks_are_apart(network: BoxNetwork, host: Host) -> None:
    proxy = Proxy(AllowList([]))
    other = BoxNetwork(proxy, BWRAP)
    assert "403" in run(other, f"curl -sS http://localhost:{host.port}/ -D -")
    assert network.take_connections() == ([], 0)
    other.close()
    other.close()
    proxy.close()


def test_close_leaves_nothing(host: Host) -> None:
    owned = Owned()
    proxy = Proxy(AllowList([f"localhost:{host.port}"]))
    network = BoxNetwork(proxy, BWRAP)
    assert run(network, f"curl -s http://localhost:{host.port}/").endswith("ok")
    network.close()
    proxy.close()
    owned.wait_until_released(5)


def test_a_network_that_cannot_be_made_says_what_is_missing() -> None:
    proxy = Proxy(AllowList([]))
    for program in ("/nowhere/bwrap", shutil.which("false") or ""):
        with pytest.raises(SandboxUnavailable, match="bubblewrap and util-linux"):
            BoxNetwork(proxy, program)
    proxy.close()


def test_localhost_is_the_box_s_unless_the_list_names_this_machine() -> None:
    assert proxy_variables(False)["no_proxy"] == "localhost,127.0.0.1,::1"
    assert proxy_variables(True)["NO_PROXY"] == ""
    assert AllowList(["localhost:8000"]).names_this_machine
    assert not AllowList(["10.0.0.0/8", "localhost.example.com"]).names_this_machine
