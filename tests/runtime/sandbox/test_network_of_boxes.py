"""The network of `SandboxedRuntime`: its hosts, its reports, and its end."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.runtime.sandbox.runtime import SandboxedRuntime
from tests.leftovers import Owned
from tests.runtime.sandbox.test_proxy import Host


@pytest.fixture(params=[mechanism.name for mechanism in MECHANISMS])
def mechanism(request: pytest.FixtureRequest) -> str:
    [entry] = [one for one in MECHANISMS if one.name == request.param]
    if problem := entry.missing():
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture
def work() -> Iterator[Path]:
    """Yield a folder that any user may enter: Landlock's boxes of root have another user."""
    with tempfile.TemporaryDirectory(prefix="box-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


@pytest.fixture
def runtime(work: Path, host: Host, mechanism: str) -> Iterator[SandboxedRuntime]:
    hosts = [f"localhost:{host.port}", "pypi.org"]
    with SandboxedRuntime(work, hosts, mechanism) as runtime:
        yield runtime


def test_a_command_reaches_the_hosts_of_the_list(runtime: SandboxedRuntime, host: Host) -> None:
    result = runtime.run_command(f"curl -s http://localhost:{host.port}/")
    assert result.text.startswith("ok\n")
    (connection,) = result.meta["connections"]
    assert connection["target"] == f"localhost:{host.port}"
    assert connection["allowed"] is True
    assert connection["address"] == "127.0.0.1"
    assert connection["sent"] == len(host.received[0])
    assert "connections" not in runtime.run_command("true").meta


def test_a_refused_connection_names_what_allows_it(runtime: SandboxedRuntime) -> None:
    result = runtime.run_command("curl -sS https://evil.test/; curl -sS http://evil.test/x")
    assert "403" in result.text
    sentence = (
        "[network: evil.test:443 is not allowed in this sandbox. To allow it: --network evil.test,"
        " or SandboxedRuntime(network=[..., 'evil.test']).]"
    )
    assert sentence in result.text
    assert [one["allowed"] for one in result.meta["connections"]] == [False, False]


def test_many_refusals_are_summed_up(runtime: SandboxedRuntime) -> None:
    result = runtime.run_command("for n in $(seq 9); do curl -s http://$n.evil.test/; done")
    assert result.text.count("[network: ") == 6
    assert "[network: 4 more refusals]" in result.text
    assert len(result.meta["connections"]) == 9


def test_conversations_have_networks_of_their_own(runtime: SandboxedRuntime, host: Host) -> None:
    url = f"curl -s http://localhost:{host.port}/"
    runtime.run_command(url, conversation_id="one")
    runtime.run_command(":", conversation_id="two")
    assert "connections" not in runtime.run_command("true", conversation_id="two").meta
    if runtime.mechanism == "landlock":
        return  # no command can listen
    server = (
        "python3 -I -S -c \"import socket; s = socket.create_server(('127.0.0.1', 9001));"
        " print('ready', flush=True); c, _ = s.accept(); c.sendall(b'hello')\" >log &"
        " until grep -q ready log; do sleep 0.02; done"
    )
    runtime.run_command(server, conversation_id="one")
    ask = "cat </dev/tcp/127.0.0.1/9001"
    assert "refused" in runtime.run_command(ask, conversation_id="two").text
    assert runtime.run_command(ask, conversation_id="one").text.startswith("hello")


def test_names_are_resolved_by_the_proxy_alone(runtime: SandboxedRuntime) -> None:
    lookup = "getent ahosts pypi.org; getent ahosts secret-data.evil.test; echo $?"
    assert runtime.run_command(lookup).text.startswith("2\n")
    udp = runtime.run_command("echo query > /dev/udp/8.8.8.8/53").text
    assert "unreachable" in udp or "not permitted" in udp


def test_without_a_list_there_is_no_port_to_connect_to(work: Path, mechanism: str) -> None:
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        assert runtime.network == "none"
        for target in ("127.0.0.1/3128", "1.1.1.1/80"):
            result = runtime.run_command(f"cat </dev/tcp/{target}")
            assert [
                one for one in ("refused", "unreachable", "not permitted") if one in result.text
            ]
        assert "connections" not in result.meta


def test_a_clone_goes_through_the_proxy(runtime: SandboxedRuntime, host: Host) -> None:
    with pytest.raises(OSError, match="403") as raised:
        runtime.clone_repo("https://evil.test/x/y.git")
    assert "--network evil.test" in str(raised.value)
    host.answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(OSError, match="not found"):
        runtime.clone_repo(f"http://localhost:{host.port}/x/y.git")
    assert host.received[0].startswith(b"GET /x/y.git/info/refs")


def test_a_list_that_cannot_be_checked_starts_nothing(tmp_path: Path) -> None:
    owned = Owned()
    for network in ("pypi.org", ["*"], ["https://pypi.org"], ["127.1"]):
        with pytest.raises(ConfigurationError, match="network"):
            SandboxedRuntime(tmp_path, network)  # type: ignore[arg-type]
    owned.wait_until_released()


@pytest.mark.slow
def test_close_leaves_no_thread_process_or_descriptor(
    work: Path, host: Host, mechanism: str
) -> None:
    hosts = [f"localhost:{host.port}"]
    with SandboxedRuntime(work, hosts, mechanism) as warm:
        warm.run_command("true")
    owned = Owned()
    runtime = SandboxedRuntime(work, hosts, mechanism)
    runtime.run_command(f"curl -s http://localhost:{host.port}/", conversation_id="one")
    # A tunnel that stays open in the background.
    tunnel = (
        f"exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT localhost:{host.port}"
        " HTTP/1.1\\r\\n\\r\\n' >&3; read -r line <&3; echo $line; sleep 100 <&3 >/dev/null &"
    )
    assert "200" in runtime.run_command(tunnel, conversation_id="two").text
    runtime.close_conversation("one")
    runtime.close()
    owned.wait_until_released()


def test_the_proxy_s_socket_is_no_way_into_the_machine(runtime: SandboxedRuntime) -> None:
    """This process serves the port in the box; it is the only open one there."""
    ports = "for p in $(seq 1 65535); do (: </dev/tcp/127.0.0.1/$p) 2>/dev/null && echo $p; done"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        few = ports.replace("$(seq 1 65535)", f"22 80 443 3127 3128 3129 {port}")
        control = subprocess.run(["bash", "-c", few], capture_output=True, text=True).stdout
        assert str(port) in control.split()
        result = runtime.run_command(few)
    assert result.text.splitlines()[0] == "3128"
    assert str(port) not in result.text
