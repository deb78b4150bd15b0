"""The connection pool, against real sockets: keep-alive, framing, faults, cancelling, proxies,
TLS."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import (
    BadResponse,
    Cancelled,
    ConfigurationError,
    LLMConnectionError,
    LLMTimeout,
)
from holdfast.llm.http import HTTPPool, header_text
from holdfast.tools.context import Cancellation
from tests.model_server import Drop, ModelServer, Request, Stall, Stream, Truncated, text

PATH = "/v1/chat/completions"


def ok(body: bytes = b"fine", head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


@contextmanager
def raw_server(*answers: bytes | list[bytes]) -> Iterator[str]:
    """Serve each request of one connection with these bytes (a list: one packet each), then
    close it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)

    def serve() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for answer in answers:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65536)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    connection.sendall(piece)
                    time.sleep(0.002)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(30)


def post(url: str, **options: object) -> tuple[int, dict[str, str], bytes]:
    pool = HTTPPool(url, timeout=(5, 5))
    try:
        response = pool.post("/", b"{}", {})
        return response.status, response.headers, response.read()
    finally:
        pool.close()


# --- keep-alive ---


def test_one_connection_serves_many_requests() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        pool = HTTPPool(server.url)
        for _ in range(5):
            assert b"hi" in pool.post(PATH, b"{}", {}).read()
        assert server.connections == 1
        pool.close()


def test_a_pool_is_usable_after_close() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        pool.close()
        assert pool.post(PATH, b"{}", {}).status == 200
        assert server.connections == 2
        pool.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts file descriptors in /proc")
def test_close_leaves_no_socket_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ModelServer(lambda _: Stream([b"data: x\n\n"])) as server:
        pool = HTTPPool(server.url)
        for _ in range(3):
            pool.post(PATH, b"{}", {}, stream=True).close()
            pool.post(PATH, b"{}", {}).read()
        pool.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_connection_that_the_server_closed_while_idle_is_replaced_without_a_word() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        server.drop_connections()
        assert pool.post(PATH, b"{}", {}).status == 200
        assert len(server.requests) == 2
        pool.close()


def test_a_reused_connection_that_closes_before_any_byte_is_retried_once_on_a_fresh_one() -> None:
    with ModelServer([text("a"), Drop(), text("b")]) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        assert b'"b"' in pool.post(PATH, b"{}", {}).read()
        assert len(server.requests) == 3
        pool.close()


def test_a_fresh_connection_that_closes_is_not_retried() -> None:
    with ModelServer([Drop(), text("b")]) as server:
        pool = HTTPPool(server.url)
        with pytest.raises(LLMConnectionError, match="closed by the peer"):
            pool.post(PATH, b"{}", {})
        assert len(server.requests) == 1


def test_a_response_that_had_begun_is_not_retried() -> None:
    with ModelServer([text("a"), b"HTTP/1.1 200", text("b")]) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        with pytest.raises(LLMConnectionError, match="within the headers"):
            pool.post(PATH, b"{}", {})
        assert len(server.requests) == 2


def test_connection_close_is_obeyed() -> None:
    with ModelServer(lambda _: (200, {"connection": "close"}, b"x")) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        pool.post(PATH, b"{}", {})
        assert server.connections == 2


def test_a_half_read_stream_does_not_give_its_connection_back() -> None:
    with ModelServer(lambda _: Stream([b"data: 1\n\n"] * 5)) as server:
        pool = HTTPPool(server.url)
        response = pool.post(PATH, b"{}", {}, stream=True)
        assert next(iter(response))
        response.close()
        list(pool.post(PATH, b"{}", {}, stream=True))
        assert server.connections == 2
        pool.close()


def test_no_more_than_max_idle_connections_are_kept() -> None:
    with ModelServer(lambda _: Stream([b"x"])) as server:
        pool = HTTPPool(server.url, max_idle=2)
        running = [pool.post(PATH, b"{}", {}, stream=True) for _ in range(4)]
        assert [response.read() for response in running] == [b"x"] * 4
        again = [pool.post(PATH, b"{}", {}, stream=True) for _ in range(4)]
        assert server.connections == 6
        for response in again:
            response.close()
        pool.close()


def test_many_threads_share_a_pool() -> None:
    def echo(request: Request) -> object:
        return (200, {}, request.body)

    with ModelServer(echo) as server:
        pool = HTTPPool(server.url)
        wrong: list[bytes] = []

        def work(number: int) -> None:
            for turn in range(20):
                body = b"%d-%d" % (number, turn)
                if pool.post(PATH, body, {}).read() != body:
                    wrong.append(body)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(server.requests) == 640
        assert server.connections <= 32
        pool.close()


def test_a_forked_child_leaves_its_parents_connections_alone() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        pool = HTTPPool(server.url)
        pool.post(PATH, b"{}", {})
        # as a child would find it: a real fork of a process with threads is a warning in Python
        # 3.12
        pool._pid = -1
        assert pool.post(PATH, b"{}", {}).status == 200
        assert server.connections == 2
        pool.close()


def test_a_large_body_arrives_whole() -> None:
    body = os.urandom(1_000_000)
    with ModelServer(lambda request: (200, {}, request.body)) as server:
        pool = HTTPPool(server.url)
        assert pool.post(PATH, body, {}).read() == body
        pool.close()


# --- framing ---


def test_a_chunked_body_is_read_at_any_cut() -> None:
    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n"
        b" \r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
    )
    cuts = [
        [whole],
        [whole[i : i + 1] for i in range(len(whole))],
        [whole[i : i + 7] for i in range(0, len(whole), 7)],
    ]
    for pieces in cuts:
        with raw_server(pieces) as url:
            assert post(url)[2] == b"hello 0123456789"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    with raw_server([b"HTTP/1.0 200 OK\r\n\r\nsome", b"thing"]) as url:
        assert post(url)[2] == b"something"


def test_interim_responses_are_skipped() -> None:
    with raw_server(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok()
    ) as url:
        assert post(url)[::2] == (200, b"fine")


def test_headers_are_found_in_lower_case_folded_and_repeated() -> None:
    with raw_server(ok(head=b"X-One: a\r\nx-one:b\r\nX-Two: c\r\n  d\r\nX-Three:\r\n")) as url:
        headers = post(url)[1]
    assert (headers["x-one"], headers["x-two"], headers["x-three"]) == ("a, b", "c d", "")


def test_bare_line_feeds_are_read() -> None:
    with raw_server(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi") as url:
        assert post(url)[2] == b"hi"


def test_a_204_has_no_body() -> None:
    with raw_server(b"HTTP/1.1 204 No Content\r\n\r\n", ok()) as url:
        pool = HTTPPool(url)
        assert pool.post("/", b"", {}).read() == b""
        assert pool.post("/", b"", {}).read() == b"fine"
        pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    ],
)
def test_what_is_not_http_is_a_bad_response(answer: bytes) -> None:
    with raw_server(answer) as url, pytest.raises(BadResponse):
        post(url)


@pytest.mark.parametrize("at", [0, 1, 10, 40])
def test_a_body_cut_short_is_an_error(at: int) -> None:
    with (
        ModelServer([Truncated(text("hello"), at)]) as server,
        pytest.raises(LLMConnectionError, match="before the end"),
    ):
        HTTPPool(server.url).post(PATH, b"{}", {})


def test_a_chunked_body_without_its_last_chunk_is_an_error() -> None:
    with ModelServer([Stream([b"data"], end=False)]) as server:
        response = HTTPPool(server.url).post(PATH, b"{}", {}, stream=True)
        chunks = iter(response)
        assert next(chunks) == b"data"
        with pytest.raises(LLMConnectionError, match="before the end"):
            next(chunks)


def test_bytes_behind_an_answer_close_the_connection() -> None:
    with raw_server(ok() + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil") as url:
        pool = HTTPPool(url)
        assert pool.post("/", b"", {}).read() == b"fine"
        assert not pool._idle


# --- limits and cancelling ---


def test_a_silent_server_times_out() -> None:
    with (
        ModelServer([Stall()]) as server,
        pytest.raises(LLMTimeout, match=r"sent nothing for 0\.1 s"),
    ):
        HTTPPool(server.url, timeout=(5, 0.1)).post(PATH, b"{}", {})


def test_a_server_that_drips_still_meets_the_deadline() -> None:
    with ModelServer([Stream([b"x"] * 2000, delay=0.02)]) as server:
        began = time.monotonic()
        response = HTTPPool(server.url, timeout=(5, 5)).post(
            PATH, b"{}", {}, stream=True, deadline=began + 0.2
        )
        with pytest.raises(LLMTimeout, match="deadline"):
            response.read()
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"], ids=["head", "body"]
)
def test_a_cancel_unblocks_a_reader(first: bytes) -> None:
    with ModelServer([Stall(first=first)]) as server:
        cancelled = Cancellation()
        timer = threading.Timer(0.1, cancelled.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            HTTPPool(server.url).post(PATH, b"{}", {}, cancelled=cancelled)
        assert time.monotonic() - began < 20
        timer.join()


def test_a_cancelled_stream_is_cancelled_not_ended() -> None:
    with ModelServer([Stream([b"data: x\n\n"] * 500, delay=0.01)]) as server:
        cancelled = Cancellation()
        response = HTTPPool(server.url).post(PATH, b"{}", {}, cancelled=cancelled, stream=True)
        chunks = iter(response)
        next(chunks)
        timer = threading.Timer(0.05, cancelled.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            for _ in chunks:
                pass
        timer.join()


def test_a_cancel_unblocks_a_writer() -> None:
    listener = socket.create_server(("127.0.0.1", 0))  # accepts, and never reads
    cancelled = Cancellation()
    timer = threading.Timer(0.1, cancelled.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        HTTPPool(f"http://127.0.0.1:{listener.getsockname()[1]}").post(
            "/", b"x" * 30_000_000, {}, cancelled=cancelled
        )
    assert time.monotonic() - began < 20
    timer.join()
    listener.close()


def test_a_cancel_ends_connecting() -> None:
    with full_backlog() as url:
        cancelled = Cancellation()
        timer = threading.Timer(0.1, cancelled.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            HTTPPool(url, timeout=(30, 30)).post("/", b"", {}, cancelled=cancelled)
        assert time.monotonic() - began < 20
        timer.join()


def test_connecting_times_out() -> None:
    with full_backlog() as url, pytest.raises(LLMTimeout, match="did not accept a connection"):
        HTTPPool(url, timeout=(0.15, 5)).post("/", b"", {})


@contextmanager
def full_backlog() -> Iterator[str]:
    """Open a listener with a full queue: further connections wait without an answer."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting: list[socket.socket] = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
        waiting.append(one)
    time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for one in [*waiting, listener]:
            one.close()


def test_a_call_cancelled_before_it_began_sends_nothing() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        cancelled = Cancellation()
        cancelled.cancel()
        with pytest.raises(Cancelled):
            HTTPPool(server.url).post(PATH, b"{}", {}, cancelled=cancelled)
        assert not server.requests


def test_a_cancel_after_the_answer_harms_nobody() -> None:
    with ModelServer(lambda _: text("hi")) as server:
        pool = HTTPPool(server.url)
        cancelled = Cancellation()
        pool.post(PATH, b"{}", {}, cancelled=cancelled)
        running = pool.post(PATH, b"{}", {}, stream=True)  # on the same connection
        cancelled.cancel()
        assert b"hi" in running.read()
        assert server.connections == 1
        pool.close()


# --- addresses ---


def test_a_refused_port_says_what_to_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        LLMConnectionError, match=f"127.0.0.1:{port}: Connection refused. Check base_url"
    ) as caught:
        HTTPPool(f"http://127.0.0.1:{port}").post("/", b"", {})
    assert caught.value.retryable


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(LLMConnectionError, match=r"Cannot find the host 'no-such-host\.invalid'"):
        HTTPPool("http://no-such-host.invalid").post("/", b"", {})


def test_ipv6_addresses_are_dialled() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback")
    received: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            received.append(connection.recv(65536))
            connection.sendall(ok())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    assert post(f"http://[::1]:{port}")[2] == b"fine"
    assert f"Host: [::1]:{port}\r\n".encode() in received[0]
    thread.join()
    listener.close()


@pytest.mark.parametrize("headers", [{"x": "a\r\nEvil: 1"}, {"a b": "c"}, {"x": "ü"}, {"": "x"}])
def test_a_header_that_is_not_one_line_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="ASCII"):
        header_text(headers)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "x", "http://x:99999", "https://user:pass@"])
def test_a_url_of_another_kind_is_refused_without_its_credentials(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HTTPPool(url)
    assert "pass" not in str(caught.value)


# --- proxies and TLS ---


class Proxy:
    """An HTTP proxy that tunnels, and forwards plain requests to one server. `heads` are the
    requests to the proxy."""

    def __init__(self, forward: int, status: bytes = b"200 OK") -> None:
        self.heads: list[bytes] = []
        self.status = status
        self.forward = forward
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = client.recv(65536)
        self.heads.append(head)
        server = socket.create_connection(("127.0.0.1", self.forward))
        self.open += [client, server]
        if head.startswith(b"CONNECT"):
            client.sendall(b"HTTP/1.1 " + self.status + b"\r\n\r\n")
        else:
            server.sendall(head)
        threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
        self._copy(client, server)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for one in [self.listener, *self.open]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cryptography", reason="makes the test certificate")
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_tls_connections_are_kept_and_cancelled_like_others(
    tls: ssl.SSLContext, certificate: Path
) -> None:
    with ModelServer([text("a"), text("b"), Stall(), (200, {}, b"x" * 300_000)], tls=tls) as server:
        pool = HTTPPool(server.url, ssl_context=ssl.create_default_context(cafile=str(certificate)))
        assert b'"a"' in pool.post(PATH, b"{}", {}).read()
        assert b'"b"' in pool.post(PATH, b"x" * 100_000, {}).read()
        assert server.connections == 1
        cancelled = Cancellation()
        timer = threading.Timer(0.1, cancelled.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            pool.post(PATH, b"{}", {}, cancelled=cancelled)
        assert time.monotonic() - began < 20
        timer.join()
        assert len(pool.post(PATH, b"{}", {}).read()) == 300_000
        pool.close()


def test_a_certificate_that_is_not_trusted_is_refused_for_good(tls: ssl.SSLContext) -> None:
    with (
        ModelServer([text("a")], tls=tls) as server,
        pytest.raises(LLMConnectionError, match="self-signed certificate") as caught,
    ):
        HTTPPool(server.url).post(PATH, b"{}", {})
    assert not caught.value.retryable


def test_tls_to_a_server_without_it_is_an_error() -> None:
    with (
        ModelServer([text("a")]) as server,
        pytest.raises(LLMConnectionError, match="The TLS handshake with"),
    ):
        HTTPPool(server.url.replace("http:", "https:"), timeout=(2, 2)).post(PATH, b"{}", {})


def test_a_tls_server_that_says_nothing_times_out_as_a_connection() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(LLMTimeout, match="did not accept a connection"),
    ):
        HTTPPool(f"https://127.0.0.1:{listener.getsockname()[1]}", timeout=(0.1, 5)).post(
            "/", b"", {}
        )


def test_a_proxy_is_asked_for_plain_requests_with_its_credentials() -> None:
    with ModelServer([text("hi")]) as server:
        proxy = Proxy(server.port)
        pool = HTTPPool(server.url, proxy=f"http://me:p%40ss@{proxy.url}")
        assert b"hi" in pool.post(PATH, b"{}", {}).read()
        assert proxy.heads[0].startswith(
            f"POST http://127.0.0.1:{server.port}{PATH} HTTP/1.1\r\n".encode()
        )
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in proxy.heads[0]
        pool.close()
        proxy.close()


def test_a_proxy_tunnels_tls_and_never_sees_the_request(
    tls: ssl.SSLContext, certificate: Path
) -> None:
    with ModelServer([text("hi"), text("ho")], tls=tls) as server:
        proxy = Proxy(server.port)
        context = ssl.create_default_context(cafile=str(certificate))
        pool = HTTPPool(server.url, proxy=f"http://me:pw@{proxy.url}", ssl_context=context)
        pool.post(PATH, b"{}", {"authorization": "Bearer secret"})
        pool.post(PATH, b"{}", {"authorization": "Bearer secret"})
        assert len(proxy.heads) == 1
        assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode())
        assert b"Proxy-Authorization: Basic " in proxy.heads[0]
        assert "proxy-authorization" not in server.requests[0].headers
        pool.close()
        proxy.close()


def test_a_proxy_that_refuses_names_itself_and_not_the_password() -> None:
    with ModelServer([]) as server:
        proxy = Proxy(server.port, b"407 Proxy Authentication Required")
        with pytest.raises(
            LLMConnectionError,
            match=r"refused a tunnel .* \(407\)\. Check the credentials in proxy",
        ) as caught:
            HTTPPool(
                f"https://127.0.0.1:{server.port}", proxy=f"http://me:hidden@{proxy.url}"
            ).post("/", b"", {})
        assert "hidden" not in str(caught.value)
        assert not caught.value.retryable
        proxy.close()


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with ModelServer([text("hi")]) as server:
        pool = HTTPPool(server.url)
        assert pool.post(PATH, b"{}", {}).status == 200
        pool.close()
