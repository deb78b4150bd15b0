"""The HTTP pool beside a small one over `http.client` and urllib3: POSTs, streams, TLS, a proxy,
200 threads, cancels, imports.

Each client sends 2 KB and reads 1 KB, or a stream of 50 events that comes at once, from one server
process, over a connection that stays open. The floor is a bare socket that sends prepared bytes and
counts the bytes of the answer. CPU and wall are the medians of single requests
(`time.thread_time`), client and server on one core. Across cores, waking a sleeping thread costs
more than the client does, and the cost falls at random on one of them.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
from bench_import import measure as of_process
from harness import Goal, Row, compiled, in_child, in_turns

PATH = "/v1/chat/completions"
BODY = b'{"model":"mock","messages":[{"role":"user","content":"%s"}]}' % (
    b"What is known of these items? " * 67
)
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": "Bearer none",
    "User-Agent": "bench",
    "Accept": "*/*",
}
BOUND = 2.0  # seconds to wait for a cancel
THREADS, CALLS, DELAY = 200, 20, 20  # milliseconds per answer of the server

# As many headers as providers send.
HEAD = """HTTP/1.1 200 OK\r
date: Thu, 01 Jan 2026 00:00:00 GMT\r
server: mock\r
x-request-id: req_0123456789abcdef0123456789abcdef\r
x-ratelimit-limit-requests: 10000\r
x-ratelimit-remaining-requests: 9999\r
x-ratelimit-limit-tokens: 2000000\r
x-ratelimit-remaining-tokens: 1999000\r
x-ratelimit-reset-requests: 6ms\r
x-ratelimit-reset-tokens: 30ms\r
processing-ms: 412\r
strict-transport-security: max-age=31536000; includeSubDomains; preload\r
"""


def plain(body: str) -> dict[str, Any]:
    """A prepared answer (see `mock_model.py`) in one piece."""
    return {
        "head": f"{HEAD}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n",
        "pieces": [body],
        "pace": 0,
    }


def streamed(events: list[str], pace: float = 0, whole: bool = True) -> dict[str, Any]:
    """Return a prepared answer of server-sent events, each in a chunk of its own, `pace` seconds
    apart. An answer that is not `whole` never ends."""
    chunks = [f"{len(event):x}\r\n{event}\r\n" for event in events] + (
        ["0\r\n\r\n"] if whole else []
    )
    return {
        "head": f"{HEAD}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        "pieces": chunks,
        "pace": pace,
    }


EVENT = (
    "data:"
    ' {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"'
    ' word"}}]}\n\n'
)
ANSWERS = {
    "plain": plain(
        '{"id":"chatcmpl-1","choices":[{"message":{"role":"assistant","content":"'
        + "A word or so. " * 66
        + '"}}]}'
    ),
    "streamed": streamed([EVENT] * 50),
    "begun": streamed([EVENT] * 3, whole=False),
}
SIZES = {
    name: len(answer["head"]) + sum(map(len, answer["pieces"])) for name, answer in ANSWERS.items()
}


@contextlib.contextmanager
def canned(answers: dict[str, Any], certificate: str = "") -> Iterator[list[int]]:
    """Run a server of these answers in a process of its own. Yields its ports: HTTP, TLS, proxy."""
    command = [sys.executable, str(harness.HERE / "mock_model.py"), "canned", certificate]
    with harness.process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(answers) + "\n")
        server.stdin.flush()
        yield [int(port) for port in server.stdout.readline().split()]


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Give one core to all processes that are started in this block."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(all_of_them)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


def stats(port: int) -> dict[str, int]:
    """Return the server's counts, without the connection of this request."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"POST /stats/0 HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        counts = json.loads(sock.recv(65536).partition(b"\r\n\r\n")[2])
    return {
        "accepted": counts["accepted"] - 1,
        "open": counts["open"] - 1,
        "requests": counts["requests"] - 1,
    }


def certificate(folder: str) -> str:
    """Return a self-signed certificate with its key, or "" on a machine without openssl."""
    if not shutil.which("openssl"):
        return ""
    path = f"{folder}/certificate.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
        " /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    harness.run(["openssl", *options.split(), "-keyout", f"{path}.key", "-out", path])
    with open(path, "a") as file, open(f"{path}.key") as key:
        file.write(key.read())
    return path


# --- the clients: each a function of (path, body) that gives the number of bytes of the answer -------------


Call = Callable[[str, bytes], int]


class SmallPool:
    """The smallest pool over `http.client` with the features of Holdfast's: shared by threads,
    keep-alive, a second try, a cancel."""

    def __init__(
        self,
        port: int,
        context: ssl.SSLContext | None = None,
        proxy: int = 0,
        timeout: float = 60.0,
    ) -> None:
        self.port, self.context, self.proxy, self.timeout = port, context, proxy, timeout
        self.prefix = f"http://127.0.0.1:{port}" if proxy and context is None else ""
        self.idle: list[http.client.HTTPConnection] = []
        self.lock = threading.Lock()

    def connect(self) -> http.client.HTTPConnection:
        port = self.proxy or self.port
        if self.context is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self.timeout)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=self.timeout, context=self.context
            )
            if self.proxy:
                connection.set_tunnel("127.0.0.1", self.port)
        connection.connect()  # sets TCP_NODELAY
        return connection

    def post(self, path: str, body: bytes, cancelled: Any = None) -> Iterator[bytes]:
        """Yield the answer's body in pieces."""
        while True:
            with self.lock:
                connection = self.idle.pop() if self.idle else None
            reused = connection is not None
            connection = connection or self.connect()
            sock = connection.sock
            forget: Any = None
            if cancelled is not None:
                forget = cancelled.add_callback(
                    lambda sock=sock: socket.socket.shutdown(sock, socket.SHUT_RDWR)
                )
            try:
                connection.request("POST", self.prefix + path, body, HEADERS)
                response = connection.getresponse()
                while chunk := response.read1(65536):
                    yield chunk
                response.close()  # `read1` leaves the response open at its end
            except (http.client.HTTPException, OSError):
                connection.close()
                if cancelled or not reused:
                    raise
                continue
            finally:
                if forget:
                    forget()
            if cancelled or response.will_close:
                connection.close()
            else:
                with self.lock:
                    self.idle.append(connection)
            return


def of_small_pool(port: int, context: ssl.SSLContext | None, proxy: int) -> Call:
    pool = SmallPool(port, context, proxy)

    def call(path: str, body: bytes) -> int:
        return sum(map(len, pool.post(path, body)))

    return call


def of_holdfast(port: int, context: ssl.SSLContext | None, proxy: int) -> Call:
    from holdfast.llm.http import HTTPPool, header_text

    scheme = "https" if context else "http"
    pool = HTTPPool(
        f"{scheme}://127.0.0.1:{port}",
        proxy=f"http://127.0.0.1:{proxy}" if proxy else None,
        ssl_context=context,
    )
    headers = header_text(HEADERS)

    def call(path: str, body: bytes) -> int:
        return sum(map(len, pool.post(path, body, headers, stream=True)))

    return call


def of_urllib3(port: int, context: ssl.SSLContext | None, proxy: int) -> Call:
    import urllib3

    # urllib3's own default, except through a proxy: there it leaves Nagle's algorithm on, and a request
    # waits 40 ms for an acknowledgement.
    nodelay = urllib3.connection.HTTPConnection.default_socket_options
    options: dict[str, Any] = {
        "maxsize": THREADS,
        "ssl_context": context,
        "socket_options": nodelay,
    }
    pool: Any = (
        urllib3.ProxyManager(f"http://127.0.0.1:{proxy}", **options)
        if proxy
        else urllib3.PoolManager(**options)
    )
    base = f"{'https' if context else 'http'}://127.0.0.1:{port}"

    def call(path: str, body: bytes) -> int:
        response = pool.request(
            "POST", base + path, body=body, headers=HEADERS, preload_content=False
        )
        size = sum(map(len, response.stream(65536)))
        response.release_conn()
        return size

    return call


def of_bare_socket(port: int, context: ssl.SSLContext | None, proxy: int) -> Call:
    local = threading.local()
    lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    prepared: dict[str, tuple[bytes, int]] = {}

    def connect() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", proxy or port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None and proxy:
            sock.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
            sock.recv(65536)
        local.sock = context.wrap_socket(sock, server_hostname="127.0.0.1") if context else sock
        return local.sock

    def call(path: str, body: bytes) -> int:
        sock = getattr(local, "sock", None) or connect()
        if path not in prepared:
            target = f"http://127.0.0.1:{port}{path}" if proxy and context is None else path
            head = (
                f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}Content-Length:"
                f" {len(body)}\r\n\r\n"
            )
            prepared[path] = head.encode() + body, SIZES[path.split("/")[1]]
        request, remaining = prepared[path]
        sock.sendall(request)
        while remaining > 0:
            remaining -= len(sock.recv(65536))
        return SIZES[path.split("/")[1]]

    return call


CLIENTS = {
    "socket": of_bare_socket,
    "holdfast": of_holdfast,
    "http.client": of_small_pool,
    "urllib3": of_urllib3,
}


def client(name: str, port: int, context: ssl.SSLContext | None = None, proxy: int = 0) -> Call:
    return CLIENTS[name](port, context, proxy)


# --- the measurements, each in a fresh process ---


def requests(
    name: str, ports: list[int], certificate: str, number: int
) -> dict[str, tuple[float, float]]:
    """Return the microseconds of CPU and of wall time of the median request of each kind, one after
    the other."""
    port, tls, proxy = ports
    lines = {"HTTP": client(name, port), "HTTP, proxy": client(name, port, None, proxy)}
    if certificate:
        context = ssl.create_default_context(cafile=certificate)
        lines |= {
            "TLS": client(name, tls, context),
            "TLS, proxy": client(name, tls, context, proxy),
        }
    medians: dict[str, tuple[float, float]] = {}
    for line, call in lines.items():
        for kind in ("plain", "streamed"):
            path = f"/{kind}/0{PATH}"
            for _ in range(20):
                call(path, BODY)
            cpu: list[float] = []
            wall: list[float] = []
            for _ in range(number):
                began, cpu_began = time.perf_counter(), time.thread_time()
                call(path, BODY)
                cpu.append(time.thread_time() - cpu_began)
                wall.append(time.perf_counter() - began)
            medians[f"{line}, {kind}"] = (
                sorted(cpu)[number // 2] * 1e6,
                sorted(wall)[number // 2] * 1e6,
            )
    return medians


def crowd(name: str, port: int) -> tuple[float, float, int, int]:
    """Return the seconds, seconds of CPU, connections made and errors of threads that share a pool."""
    call = client(name, port)
    call(f"/plain/0{PATH}", BODY)
    before = stats(port)["accepted"]
    path = f"/plain/{DELAY}{PATH}"
    errors: list[Exception] = []
    together = threading.Barrier(THREADS + 1)

    def work() -> None:
        together.wait()
        for _ in range(CALLS):
            try:
                call(path, BODY)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    together.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    return seconds, cpu_seconds, stats(port)["accepted"] - before, len(errors)


def cancels(name: str, port: int, streaming: bool, number: int) -> list[float]:
    """Return the milliseconds from a cancel to the return of the thread that waits for a silent
    server, at most `BOUND`."""
    path = f"/{'begun' if streaming else 'silence'}/0{PATH}"
    return [one_cancel(name, port, path, streaming) for _ in range(number)]


def one_cancel(name: str, port: int, path: str, streaming: bool) -> float:
    from holdfast.tools.context import Cancellation

    cancelled = Cancellation()
    cancel: list[Callable[[], object]] = [cancelled.cancel]
    returned = threading.Event()

    def read_body() -> None:
        with contextlib.suppress(Exception):
            if name == "holdfast":
                from holdfast.llm.http import HTTPPool

                for _ in HTTPPool(f"http://127.0.0.1:{port}").post(
                    path, BODY, HEADERS, cancelled=cancelled, stream=True
                ):
                    pass
            elif name == "http.client":
                for _ in SmallPool(port).post(path, BODY, cancelled):
                    pass
            else:
                import urllib3

                pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
                cancel[0] = pool.close  # before there is a response, only the pool can be closed
                response = pool.urlopen(
                    "POST", path, BODY, HEADERS, preload_content=False, retries=False
                )
                cancel[0] = response.shutdown if name == "urllib3 shutdown" else response.close
                for _ in response.stream(65536):
                    pass
        returned.set()

    threading.Thread(target=read_body, daemon=True).start()
    time.sleep(0.2 if "urllib3" in name else 0.1)
    began = time.perf_counter()
    threading.Thread(
        target=cancel[0], daemon=True
    ).start()  # closing may itself wait for the reader
    returned.wait(BOUND)
    return (time.perf_counter() - began) * 1000


def rows(quick: bool) -> list[Row]:
    names = list(CLIENTS)
    if importlib.util.find_spec("urllib3") is None:
        names.remove("urllib3")
    table: list[Row] = []
    with harness.scratch() as folder:
        pem = certificate(folder)
        with one_core(), canned(ANSWERS, pem) as ports:
            number = 50 if quick else 200
            single = in_turns(
                2 if quick else 5,
                {name: lambda n=name: in_child(requests, n, ports, pem, number) for name in names},
            )
        with canned(ANSWERS, pem) as ports:
            many = in_turns(
                1 if quick else 3,
                {name: lambda n=name: in_child(crowd, n, ports[0]) for name in names},
            )
            ways = [(name, streaming) for name in names[1:] for streaming in (False, True)]
            if "urllib3" in names:
                # since 2.3; it has no equivalent before the first byte
                ways.append(("urllib3 shutdown", True))
            woken = {
                way: in_child(
                    cancels, way[0], ports[0], way[1], 2 if quick or way[0] == "urllib3" else 10
                )
                for way in ways
            }
    for kind in single["socket"][0]:
        for name in names[1:]:
            for index, what in enumerate(("CPU", "wall")):
                values, floor = (
                    [one[kind][index] for one in single[which]] for which in (name, "socket")
                )
                table.append(
                    Row(f"{'  ' if index else ''}{kind}, {name}, {what}", "us", values, floor)
                )
    if not pem:
        table.append(Row("TLS", "us", skipped="there is no openssl command to make a certificate"))
    for name in names[1:]:
        for index, (what, unit) in enumerate(
            (("wall", "s"), ("CPU", "s"), ("connections made", ""), ("errors", ""))
        ):
            values, floor = (
                [float(one[index]) for one in many[which]] for which in (name, "socket")
            )
            title = (
                f"{THREADS} threads, {CALLS} requests of {DELAY} ms each, {name}"
                if not index
                else f"  {what}"
            )
            table.append(Row(title, unit, values, floor if index < 2 else ()))
    for (name, streaming), values in woken.items():
        what = (
            f"cancel to return, {'in mid-stream' if streaming else 'before the first byte'}, {name}"
        )
        if name == "urllib3":
            what += f" close ({BOUND:g} s: never)"
        table.append(Row(what, "ms", values, (), Goal(100) if name == "holdfast" else None))
    programs = {
        "holdfast": "import holdfast.llm.http",
        "holdfast and ssl": "import holdfast.llm.http, ssl",
        "http.client": "import http.client",
    }
    if "urllib3" in names:
        programs["urllib3"] = "import urllib3"
    programs = {"pass": "pass", **programs}
    with compiled():
        for program in programs.values():
            of_process(program)
        cost = in_turns(
            3 if quick else 9,
            {
                name: lambda program=program: of_process(program)
                for name, program in programs.items()
            },
        )
    for index, (what, unit) in enumerate((("CPU", "ms"), ("peak RSS", "MB"))):
        for name in list(programs)[1:]:
            table.append(
                Row(
                    f"import, {name}, {what}",
                    unit,
                    [one[index] for one in cost[name]],
                    [one[index] for one in cost["pass"]],
                )
            )
    if "urllib3" not in names:
        table.append(Row("urllib3", "us", skipped="it is not installed (`pip install urllib3`)"))
    return table
