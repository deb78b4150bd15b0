"""The proxy of a sandbox, over real sockets: what it forwards, what it refuses, and its end."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.runtime.sandbox import proxy as proxy_module
from holdfast.runtime.sandbox.network import AllowList
from holdfast.runtime.sandbox.proxy import Proxy, ProxyListener, Resolver
from tests.leftovers import Owned
from tests.waiting import until


class Host:
    """A server on a loopback address. It records the data of each connection, answers when the
    data ends with `end`, and closes its side if the data requests it."""

    def __init__(self, address: str = "127.0.0.1", answer: bytes = b"") -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.port: int = self._socket.getsockname()[1]
        self.answer = answer or b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.received: list[bytes] = []
        self.end = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.received.append(b"")
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        number = len(self.received) - 1
        with connection, suppress(OSError):
            connection.settimeout(10)
            answered = False
            while data := connection.recv(65536):
                self.received[number] += data
                if not answered and self.received[number].endswith(self.end):
                    answered = True
                    connection.sendall(self.answer)
                    if b"\r\nConnection: close\r\n" in self.received[number]:
                        connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


class Box:
    """The side of a sandbox: a proxy that listens on a unix socket, and requests to it."""

    def __init__(self, folder: Path, hosts: list[str], resolver: Resolver | None = None) -> None:
        self.path = str(folder / "proxy")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.path)
        listening.listen(128)
        allowed = AllowList(hosts)
        self.proxy = Proxy(allowed) if resolver is None else Proxy(allowed, resolver)
        self.listener: ProxyListener = self.proxy.listen(listening)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(self.path)
        return connection

    def ask(self, request: bytes | str) -> str:
        """Send bytes, and return everything that comes back."""
        data = request.encode("utf-8", "surrogateescape") if isinstance(request, str) else request
        with self.connect() as connection:
            with suppress(OSError):  # refused before all data was sent
                connection.sendall(data)
            return read_all(connection).decode("latin-1")

    def get(self, url: str, *fields: str) -> str:
        return self.ask("\r\n".join((f"GET {url} HTTP/1.1", *fields, "", "")))

    def tunnel(self, target: str) -> tuple[socket.socket, str]:
        connection = self.connect()
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n") and (byte := connection.recv(1)):
            head += byte
        return connection, head.decode()

    def log(self) -> Sequence[Mapping[str, object]]:
        return self.listener.take_connections()[0]


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(65536):
            data += more
    return data


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[list[Box]]:
    instances: list[Box] = []
    yield instances
    for box in instances:
        box.proxy.close()


@pytest.fixture
def box(tmp_path: Path, host: Host, boxes: list[Box]) -> Box:
    """Return a box that may reach the host by the name `allowed.test`, and its address."""
    boxes.append(
        Box(tmp_path, [f"allowed.test:{host.port}", f"127.0.0.1:{host.port}"], known_names)
    )
    return boxes[-1]


def known_names(name: str) -> list[str]:
    if name != "allowed.test":
        raise AssertionError(f"{name} was resolved")
    return ["127.0.0.1"]


def status(answer: str) -> int:
    return int(answer.split(" ")[1]) if answer.startswith("HTTP/1.1 ") else 0


# --- forwarded requests ---


def test_a_plain_request_reaches_an_allowed_host(box: Box, host: Host) -> None:
    answer = box.get(f"http://allowed.test:{host.port}/path?q=1", "Accept: */*")
    assert answer.endswith("\r\n\r\nok")
    assert host.received == [
        b"GET /path?q=1 HTTP/1.1\r\nAccept: */*\r\n"
        b"Host: allowed.test:%d\r\nConnection: close\r\n\r\n" % host.port
    ]
    assert box.log() == [
        {
            "target": f"allowed.test:{host.port}",
            "allowed": True,
            "address": "127.0.0.1",
            "sent": len(host.received[0]),
            "received": len(host.answer),
        }
    ]
    assert box.log() == []


def test_a_tunnel_carries_any_bytes_both_ways_and_its_ends(box: Box, host: Host) -> None:
    data = bytes(range(1, 256)) * 4000
    host.answer = data[::-1]
    connection, head = box.tunnel(f"allowed.test:{host.port}")
    with connection:
        assert head == "HTTP/1.1 200 Connection established\r\n\r\n"
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == host.answer
    assert host.received == [data]


def test_a_host_that_speaks_first_is_heard(box: Box, boxes: list[Box]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        folder = Path(box.path).parent / "other"
        folder.mkdir()
        boxes.append(Box(folder, [f"ssh.test:{port}", "127.0.0.1:*"], lambda _: ["127.0.0.1"]))
        connection, _ = boxes[-1].tunnel(f"ssh.test:{port}")
        with connection, listening.accept()[0] as greeting:
            greeting.sendall(b"SSH-2.0-x\r\n")
            assert connection.recv(100) == b"SSH-2.0-x\r\n"


def test_a_body_arrives_whole_with_a_length_and_in_chunks(box: Box, host: Host) -> None:
    start = f"POST http://allowed.test:{host.port}/ HTTP/1.1\r\n"
    body = b"x" * 300_000 + b"0\r\n\r\n"
    host.end = b"0\r\n\r\n"
    box.ask(start.encode() + b"Content-Length: 300005\r\n\r\n" + body)
    assert host.received[0].endswith(b"Content-Length: 300005\r\n\r\n" + body)
    chunks = b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
    box.ask(start.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert host.received[1].endswith(
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    )


def test_a_long_answer_arrives_whole_though_the_client_reads_slowly(box: Box, host: Host) -> None:
    host.answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"y" * 3_000_000
    with box.connect() as connection:
        request = f"GET http://allowed.test:{host.port}/ HTTP/1.1\r\n\r\n"
        connection.sendall(request.encode())
        time.sleep(0.2)
        assert len(read_all(connection)) == len(host.answer)


def test_fields_of_the_connection_are_not_forwarded(box: Box, host: Host) -> None:
    fields = ("Proxy-Authorization: Basic eA==", "Proxy-Connection: keep-alive", "Upgrade: h2c")
    more = ("Connection: keep-alive, X-Hop, Content-Length", "X-Hop: 1", "Content-Length: 0")
    box.get(f"http://allowed.test:{host.port}/", *fields, *more)
    assert host.received[0] == (
        b"GET / HTTP/1.1\r\nHost: allowed.test:%d\r\nConnection: close\r\n"
        b"Content-Length: 0\r\n\r\n" % host.port
    )


# --- hosts and addresses ---


def test_another_host_is_refused_without_a_lookup(box: Box, host: Host) -> None:
    for target in ("evil.test", "allowed.test.evil.test", "xallowed.test", "localhost", "[::1]"):
        answer = box.get(f"http://{target}:{host.port}/")
        assert status(answer) == 403
        assert f"--network {target}:{host.port}" in answer
        assert status(box.tunnel(f"{target}:{host.port}")[1]) == 403
    assert host.received == []
    refused = box.log()
    assert len(refused) == 10
    assert refused[0]["target"] == f"evil.test:{host.port}"
    assert refused[0]["allowed"] is False
    assert "evil.test" in str(refused[0]["reason"])


def test_another_port_is_refused(box: Box, host: Host) -> None:
    assert status(box.get("http://allowed.test/")) == 403
    assert status(box.tunnel("allowed.test:22")[1]) == 403
    assert status(box.tunnel("127.0.0.1:22")[1]) == 403


def test_other_spellings_of_an_allowed_host_are_one_host(box: Box, host: Host) -> None:
    for target in ("ALLOWED.test", "allowed.test."):
        assert status(box.get(f"http://{target}:{host.port}/")) == 200
    assert host.received[1].count(b"Host: allowed.test:") == 1


SPELLINGS = [
    *("allowed.test..", "[allowed.test]", "[[allowed.test]]", "user@allowed.test", "a:b@127.0.0.1"),
    *("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "127.0.0.1.", "127.00.0.1"),
    *("evil.test%00.allowed.test", "evil.test\0.allowed.test", "evil.test\\.allowed.test"),
    *("allowed.test%2eevil.test", "allowed.test#@evil.test", "evil.test#allowed.test"),
    *(
        "allowed\u3002test",
        "\uff41llowed.test",
        "allowed.test\u200b",
        "[127.0.0.1]",
        "::1",
        "[::1%lo]",
    ),
    *("[::1%25lo]", "", " allowed.test", "allowed.test ", "allowed.test\tx", "allowed.test\rx"),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_host_in_a_form_of_two_readings_is_refused(box: Box, host: Host, spelling: str) -> None:
    assert status(box.ask(f"CONNECT {spelling}:{host.port} HTTP/1.1\r\n\r\n")) in (400, 403)
    assert status(box.get(f"http://{spelling}:{host.port}/")) in (400, 403)
    assert host.received == []


@pytest.mark.parametrize(
    "port", ["", "0", "65536", "-1", "+80", "0x50", "80a", "\uff18\uff10", "443:80"]
)
def test_a_port_in_another_form_is_refused(box: Box, port: str) -> None:
    assert status(box.ask(f"CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n")) in (400, 403)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.64.0.1"),
        *("::1", "::", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:7f00:1", "64:ff9b::7f00:1"),
        *("64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "fe80::1", "fe80::1%lo"),
        *("fd00::1", "224.0.0.1", "ff02::1", "255.255.255.255", "2600::5efe:7f00:1"),
    ],
)
def test_an_allowed_name_that_resolves_to_a_special_address_is_refused(
    tmp_path: Path, host: Host, boxes: list[Box], address: str
) -> None:
    boxes.append(Box(tmp_path, ["allowed.test:*"], lambda _: [address]))
    answer = boxes[0].get(f"http://allowed.test:{host.port}/")
    assert status(answer) == 403
    assert "allowed.test resolves to" in answer
    assert host.received == []


def test_rebinding_does_not_help_as_a_name_is_resolved_once(
    tmp_path: Path, host: Host, boxes: list[Box]
) -> None:
    answers = [["192.0.2.1"], ["127.0.0.1"], ["127.0.0.1"]]
    names: list[str] = []

    def rebinding(name: str) -> list[str]:
        names.append(name)
        return answers[len(names) - 1]

    # 192.0.2.1 is no public address either, so it stands for the answer that would pass.
    boxes.append(Box(tmp_path, ["allowed.test:*", "192.0.2.1:*"], rebinding))
    answer = boxes[0].get(f"http://allowed.test:{host.port}/")
    assert names == ["allowed.test"]
    assert status(answer) != 200
    assert "192.0.2.1" in answer
    # The next connection is checked again.
    assert status(boxes[0].get(f"http://allowed.test:{host.port}/")) == 403
    assert host.received == []


def test_of_several_addresses_those_that_are_allowed_are_tried(
    tmp_path: Path, host: Host, boxes: list[Box]
) -> None:
    addresses = ["127.0.0.5", "::ffff:127.0.0.1", "127.0.0.1"]
    boxes.append(Box(tmp_path, ["allowed.test:*", "127.0.0.1:*"], lambda _: addresses))
    assert status(boxes[0].get(f"http://allowed.test:{host.port}/")) == 200
    assert boxes[0].log()[0]["address"] == "127.0.0.1"


def test_a_named_range_of_mapped_addresses_never_becomes_ipv4(
    tmp_path: Path, host: Host, boxes: list[Box]
) -> None:
    boxes.append(Box(tmp_path, ["[::/0]:*"]))
    assert status(boxes[0].tunnel(f"[::ffff:127.0.0.1]:{host.port}")[1]) == 502
    assert host.received == []


def test_an_ipv6_address_is_reached_if_it_is_named(tmp_path: Path, boxes: list[Box]) -> None:
    ipv6 = Host("::1")
    boxes.append(Box(tmp_path, [f"[::1]:{ipv6.port}"]))
    answer = boxes[0].get(f"http://[0:0::1]:{ipv6.port}/")
    ipv6.close()
    assert status(answer) == 200
    assert b"\r\nHost: [::1]:%d\r\n" % ipv6.port in ipv6.received[0]


def test_this_machine_s_own_address_is_refused_even_if_it_were_public(
    tmp_path: Path, host: Host, boxes: list[Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.sandbox.network.is_public", lambda _: True)
    boxes.append(Box(tmp_path, ["allowed.test:*"], lambda _: ["127.0.0.1"]))
    answer = boxes[0].get(f"http://allowed.test:{host.port}/")
    assert status(answer) == 403
    assert "this machine" in answer
    until(lambda: host.received == [b""])  # a connection without a byte


def test_a_redirect_is_the_client_s_next_request_and_checked_like_any(box: Box, host: Host) -> None:
    place = f"http://127.0.0.2:{host.port}/secret"
    host.answer = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\n\r\n".encode()
    assert place in box.get(f"http://allowed.test:{host.port}/")
    assert status(box.get(place)) == 403
    assert len(host.received) == 1


def test_a_name_that_cannot_be_resolved_is_answered_with_the_reason(
    tmp_path: Path, boxes: list[Box]
) -> None:
    def fail(name: str) -> list[str]:
        raise OSError(f"no {name}")

    boxes.append(Box(tmp_path, ["allowed.test"], fail))
    answer = boxes[0].get("http://allowed.test/")
    assert status(answer) == 502
    assert "no allowed.test" in answer


def test_a_host_that_does_not_listen_is_answered_with_the_reason(
    tmp_path: Path, boxes: list[Box]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    boxes.append(Box(tmp_path, [f"127.0.0.1:{port}"]))
    answer = boxes[0].tunnel(f"127.0.0.1:{port}")[1]
    assert status(answer) == 502


# --- requests with two possible readings ---


def test_the_host_of_the_target_counts_and_another_host_field_is_replaced(
    box: Box, host: Host
) -> None:
    box.get(f"http://allowed.test:{host.port}/", "Host: evil.test")
    assert b"evil.test" not in host.received[0]
    assert status(box.get(f"http://evil.test:{host.port}/", "Host: allowed.test")) == 403
    assert status(box.get("/", f"Host: allowed.test:{host.port}")) == 400


def test_a_second_request_on_a_connection_is_not_forwarded(box: Box, host: Host) -> None:
    first = f"GET http://allowed.test:{host.port}/1 HTTP/1.1\r\n\r\n"
    second = f"GET http://evil.test:{host.port}/2 HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    with box.connect() as connection:
        connection.sendall((first + second).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        with suppress(OSError):  # it may be closed by now
            connection.sendall(second.encode())
        time.sleep(0.05)
    assert len(host.received) == 1
    assert b"evil" not in host.received[0]


FRAMINGS = [
    "Content-Length: 4\r\nContent-Length: 40",
    "Content-Length: 4\r\nContent-Length: 4",
    "Content-Length: 4\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 4",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked\r\n\tx",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding:\x0bchunked",
    "Transfer-Encoding: chunked\nContent-Length: 4",
    "Transfer-Encoding: chunked\rX: y",
    "Content-Length: +4",
    "Content-Length: -1",
    "Content-Length: 0x4",
    "Content-Length: 4, 4",
    "Content-Length: 4 4",
    "Content-Length:",
    "Content-Length: \uff14",
    "Content-Length: 4\r\n Content-Length: 0",
    "Content-Length: 99999999999999999999",
    " Content-Length: 4",
    "Content-Length\0: 4",
    "X: a\0b",
    "Host: a\r\nHost: b",
    ": empty",
    "no colon",
]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_request_with_two_readings_of_its_end_is_refused(
    box: Box, host: Host, framing: str
) -> None:
    start = f"POST http://allowed.test:{host.port}/ HTTP/1.1\r\n{framing}\r\n\r\n"
    assert status(box.ask(start + "body")) == 400
    assert host.received == []


@pytest.mark.parametrize(
    "line",
    [
        *("GET http://allowed.test/", "GET  http://allowed.test/ HTTP/1.1", "get / HTTP/1.1"),
        *("GET http://allowed.test/ HTTP/2.0", "GET http://allowed.test/ HTTP/1.1 ", "OPTIONS *"),
        *("GET allowed.test/ HTTP/1.1", "GET ftp://allowed.test/ HTTP/1.1", "\x05\x01\x00", ""),
        *("GET https://allowed.test/ HTTP/1.1", "GET http:allowed.test HTTP/1.1", "PRI * HTTP/2.0"),
        *("GET http:///allowed.test HTTP/1.1", "CONNECT http://allowed.test:80/ HTTP/1.1"),
        *("CONNECT allowed.test HTTP/1.1", "GET http://allowed.test/a b HTTP/1.1"),
        "GET http://allowed.test/\\@evil.test HTTP/1.1",
    ],
)
def test_a_request_line_of_another_form_is_refused(box: Box, host: Host, line: str) -> None:
    assert status(box.ask(f"{line}\r\n\r\n")) == 400


def test_a_tunnel_has_no_body(box: Box, host: Host) -> None:
    request = f"CONNECT allowed.test:{host.port} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
    assert status(box.ask(request)) == 400


@pytest.mark.parametrize(
    "body",
    ["5\nhello\r\n0\r\n\r\n", "zz\r\n", "5\r\nhelloXX0\r\n\r\n", "-5\r\n", "5 \r\nhello\r\n"],
)
def test_a_malformed_chunk_ends_the_connection(box: Box, host: Host, body: str) -> None:
    start = f"POST http://allowed.test:{host.port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    box.ask(start + body)
    until(lambda: bool(host.received) and host.received[0] != b"")
    assert b"0\r\n\r\n" not in host.received[0]


def test_no_byte_after_the_body_is_forwarded(box: Box, host: Host) -> None:
    start = f"POST http://allowed.test:{host.port}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
    with box.connect() as connection:
        connection.sendall(start.encode() + b"bodyGET http://evil.test/ HTTP/1.1\r\n\r\n")
        connection.recv(1000)
    assert host.received[0].endswith(b"\r\n\r\nbody")


# --- bounds ---


def test_a_flood_of_header_fields_is_refused(box: Box, host: Host) -> None:
    start = f"GET http://allowed.test:{host.port}/ HTTP/1.1\r\n"
    assert status(box.ask(start + "X: y\r\n" * 101 + "\r\n")) == 400
    assert status(box.ask(start + "X: " + "y" * 1_000_000)) == 431
    assert status(box.ask(start + "X: y\r\n" * 200_000)) == 431
    assert host.received == []


def test_a_client_that_sends_no_whole_head_is_refused_in_time(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "_HEAD_SECONDS", 0.3)
    with box.connect() as connection:
        for byte in b"GET http":  # no single byte extends a deadline
            with suppress(OSError):
                connection.send(bytes((byte,)))
            time.sleep(0.05)
        assert status(read_all(connection).decode()) == 408


def test_the_connections_of_a_box_are_bounded(box: Box, host: Host) -> None:
    connections = [box.connect() for _ in range(64)]
    until(lambda: len(box.listener.connections) == 64)
    assert status(box.get(f"http://allowed.test:{host.port}/")) == 503
    for connection in connections:
        connection.close()
    until(lambda: not box.listener.connections)
    assert status(box.get(f"http://allowed.test:{host.port}/")) == 200


def test_connections_beyond_the_refused_ones_wait(box: Box, host: Host) -> None:
    connections = [box.connect() for _ in range(120)]
    until(lambda: len(box.listener.connections) == 96)
    time.sleep(0.1)
    assert len(box.listener.connections) == 96
    for connection in connections:
        connection.close()
    until(lambda: not box.listener.connections)
    assert status(box.get(f"http://allowed.test:{host.port}/")) == 200


def test_the_log_is_bounded_and_counts_what_it_leaves_out(box: Box) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: box.get(f"http://{n}.evil.test/"), range(130)))
    log, left_out = box.listener.take_connections()
    assert (len(log), left_out) == (100, 30)


def test_lookups_are_bounded_and_end_in_time(
    tmp_path: Path, boxes: list[Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "_LOOKUP_SECONDS", 0.3)
    gate = threading.Event()

    def hang(name: str) -> list[str]:
        gate.wait(20)
        return []

    boxes.append(Box(tmp_path, ["*.allowed.test"], hang))
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: boxes[0].get(f"http://{n}.allowed.test/"), range(12)))
    assert sorted(map(status, answers)) == [502] * 8 + [503] * 4
    gate.set()


# --- TLS: the name that a handshake states ---


def client_hello(name: str | None) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


ALERT = b"\x15\x03\x03\x00\x02\x02\x70"  # fatal, unrecognized_name


def in_records(hello: bytes, size: int) -> bytes:
    body = hello[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(hello[:3] + len(part).to_bytes(2) + part for part in parts)


def through_tunnel(box: Box, host: Host, data: bytes) -> bytes:
    """Return the answer to `data` in a tunnel to the allowed name."""
    connection, head = box.tunnel(f"allowed.test:{host.port}")
    assert status(head) == 200
    with connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


@pytest.mark.parametrize("size", [1, 50, 16000])
def test_a_handshake_for_the_allowed_name_passes_unchanged(box: Box, host: Host, size: int) -> None:
    hello = in_records(client_hello("Allowed.test"), size)
    assert through_tunnel(box, host, hello + b"more") == host.answer
    assert host.received == [hello + b"more"]


@pytest.mark.parametrize("size", [1, 50, 16000])
def test_a_handshake_for_another_name_behind_the_same_address_is_refused(
    box: Box, host: Host, size: int
) -> None:
    hello = in_records(client_hello("evil.test"), size)
    assert through_tunnel(box, host, hello) == ALERT
    until(lambda: host.received == [b""])
    reasons = [str(entry.get("reason")) for entry in box.log()]
    assert "a TLS handshake for 'evil.test' in a tunnel" in reasons[-1]


def test_a_handshake_without_a_name_or_with_two_is_refused(box: Box, host: Host) -> None:
    with_name = client_hello("allowed.test")
    at = with_name.index(b"\x00\x0c" + b"allowed.test")
    two = b"\x00" + with_name[at : at + 14]
    hello = bytearray(with_name[: at + 14] + two + with_name[at + 14 :])
    # The lengths around the inserted entry: the record, the message, the list, the extension, and
    # all extensions, which follow session id, ciphers and compression methods.
    end = 44 + with_name[43]
    end += 2 + int.from_bytes(with_name[end : end + 2])
    end += 1 + with_name[end]
    for position, size in ((3, 2), (6, 3), (at - 3, 2), (at - 5, 2), (end, 2)):
        length = int.from_bytes(hello[position : position + size]) + len(two)
        hello[position : position + size] = length.to_bytes(size)
    for data in (client_hello(None), bytes(hello), with_name[:9] + b"\xff" * 200):
        assert through_tunnel(box, host, data) in (b"", ALERT)
    assert b"".join(host.received) == b""


def test_a_tunnel_to_an_address_carries_a_handshake_for_any_name(box: Box, host: Host) -> None:
    connection, _ = box.tunnel(f"127.0.0.1:{host.port}")
    with connection:
        connection.sendall(client_hello(None))
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
    assert host.received == [client_hello(None)] or host.received[0][:1] == b"\x16"


# --- the end of the proxy ---


def test_close_ends_connections_threads_and_sockets(tmp_path: Path, host: Host) -> None:
    owned = Owned()
    for number in range(30):  # the last connection is in another stage each time
        folder = tmp_path / str(number)
        folder.mkdir()
        box = Box(folder, [f"127.0.0.1:{host.port}"])
        tunnel, head = box.tunnel(f"127.0.0.1:{host.port}")
        with tunnel, box.connect() as idle:
            assert status(head) == 200
            box.proxy.close()
            box.proxy.close()
            assert read_all(tunnel) == b""
            assert read_all(idle) == b""
        with pytest.raises(OSError, match=r"refused|No such"):
            box.connect()
    owned.wait_until_released(5)


def test_close_of_a_listener_leaves_the_others(
    tmp_path: Path, host: Host, boxes: list[Box]
) -> None:
    box = Box(tmp_path, [f"127.0.0.1:{host.port}"])
    boxes.append(box)
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(tmp_path / "other"))
    other.listen()
    listener = box.proxy.listen(other)
    listener.close()
    listener.close()
    assert status(box.get(f"http://127.0.0.1:{host.port}/")) == 200


def test_close_does_not_wait_for_a_client_that_reads_nothing(tmp_path: Path, host: Host) -> None:
    host.answer = b"y" * 30_000_000
    box = Box(tmp_path, [f"127.0.0.1:{host.port}"])
    tunnel, _ = box.tunnel(f"127.0.0.1:{host.port}")
    tunnel.sendall(b"x")
    until(lambda: bool(host.received and host.received[0]))
    time.sleep(0.1)
    started = time.monotonic()
    box.proxy.close()
    assert time.monotonic() - started < 20
    tunnel.close()


def test_a_lookup_that_hangs_does_not_delay_close(tmp_path: Path) -> None:
    gate = threading.Event()

    def hang(name: str) -> list[str]:
        gate.wait(60)
        return []

    box = Box(tmp_path, ["allowed.test"], hang)
    with box.connect() as connection:
        connection.sendall(b"GET http://allowed.test/ HTTP/1.1\r\n\r\n")
        until(lambda: any(t.name == "holdfast-lookup" for t in threading.enumerate()))
        started = time.monotonic()
        box.proxy.close()
        assert time.monotonic() - started < 20
    gate.set()


def test_a_closed_proxy_takes_no_listener(tmp_path: Path) -> None:
    box = Box(tmp_path, [])
    box.proxy.close()
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(RuntimeError, match="closed"):
        box.proxy.listen(sock)
