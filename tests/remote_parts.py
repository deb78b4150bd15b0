"""Parts of the remote tests: an agent server of a few lines, whose journals a test writes itself,
and a proxy with the faults of networks."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast import events as ev
from tests import forks

KEY = "hf-key-of-the-tests-0123456789"


class StubServer:
    """The part of an agent server that transport needs. Each of `answers` is sent once instead of
    the usual answer: (path's end, status, headers, body)."""

    def __init__(
        self, *, tools: dict[str, str] | None = None, prefix: str = "", tls: Any = None
    ) -> None:
        self.tools = tools or {}
        self.prefix = prefix
        self.journals: dict[str, list[bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: list[tuple[str, int, dict[str, str], bytes]] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: dict[str, tuple[int, Any]] = {}
        self.claims: dict[str, str] = {}
        self.results: list[tuple[str, str, dict[str, Any]]] = []
        self.started: set[str] = set()
        self.streams = 0
        self.silent = False  # streams send nothing at all
        self.notes = b""  # a stream's next bytes
        self.changed = threading.Condition()
        self.stopping = False
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="stub-server", daemon=True
        )

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{self.prefix}"

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def append(self, id: str, *kinds: tuple[type[Any], dict[str, Any]]) -> list[Any]:
        """Append events, all at once."""
        with self.changed:
            journal = self.journals[id]
            events: list[Any] = []
            for kind, fields in kinds:
                seq = len(journal) + 1
                event = kind(
                    **{"seq": seq, "id": f"e{seq}", "timestamp": datetime.now(UTC), **fields}
                )
                journal.append(ev.encode(event))
                events.append(event)
            self.changed.notify_all()
        return events

    def say(self, id: str, text: str) -> None:
        self.append(id, (ev.MessageAdded, {"content": (_text(text),)}))


def _text(text: str) -> Any:
    from holdfast import TextContent

    return TextContent(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    owner: StubServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # these tests break connections on purpose


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._do()

    def do_POST(self) -> None:
        self._do()

    def do_PUT(self) -> None:
        self._do()

    def do_DELETE(self) -> None:
        self._do()

    def _do(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        parts = urlsplit(self.path)
        with owner.changed:
            owner.requests.append((self.command, self.path, headers, body))
            planned = next((one for one in owner.answers if parts.path.endswith(one[0])), None)
            if planned is not None:
                owner.answers.remove(planned)
        if planned is not None:
            return self._send(planned[1], planned[3], planned[2])
        if headers.get("authorization") != f"Bearer {KEY}":
            return self._refuse(401, "AuthenticationError", "This server wants a key.")
        path = parts.path.removeprefix(owner.prefix)
        key = headers.get("idempotency-key")
        with owner.changed:
            if key is not None and key in owner.keys:
                return self._json(*owner.keys[key])
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if path.endswith("/stream") and path.split("/")[3] in owner.journals:
                answer = None
            else:
                answer = self._answer(
                    path, query, headers, json.loads(body) if body.startswith(b"{") else {}
                )
                if key is not None and answer[0] < 300:
                    owner.keys[key] = answer
        if answer is None:
            return self._stream(
                path.split("/")[3], int(headers.get("last-event-id", query.get("after_seq", "0")))
            )
        return self._json(*answer)

    def _answer(
        self, path: str, query: dict[str, str], headers: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        owner = self.server.owner
        if path == "/api/conversations":
            id = body.get("id") or f"c{len(owner.journals) + 1}"
            owner.journals.setdefault(id, [])
            owner.bodies.append(body)
            return 201, self._info(id)
        if path == "/api/workspaces":
            return 201, {"id": body["id"]}
        match = re.fullmatch(r"/api/conversations/([^/]+)(?:/(.+))?", path)
        if match is None or match[1] not in owner.journals:
            return 404, {
                "error": {
                    "type": "ConversationNotFound",
                    "message": f"No conversation {path.split('/')[-1]!r} is here.",
                }
            }
        id, rest = match[1], match[2] or ""
        if not rest:
            return 200, self._info(id)
        if rest == "events":
            after, limit = int(query.get("after_seq", 0)), int(query.get("limit", 500))
            page = owner.journals[id][after : after + limit]
            return 200, {
                "events": [json.loads(event) for event in page],
                "lastSeq": len(owner.journals[id]),
            }
        if rest == "messages":
            fields = {
                "content": [_text(block["text"]) for block in body["content"]],
                "id": body["eventId"],
            }
            more = [(ev.StatusChanged, {"status": "running"})] if id in owner.started else []
            owner.append(
                id, (ev.MessageAdded, {**fields, "content": tuple(fields["content"])}), *more
            )
            return 202, {"eventId": body["eventId"]}
        if rest in ("start", "close", "run", "pause", "resume", "interrupt"):
            if rest == "start":
                owner.started.add(id)
            return 200, {"status": "idle"}
        if claim := re.fullmatch(r"calls/([^/]+)/(claim|result)", rest):
            client = headers["x-holdfast-client"]
            if claim[2] == "claim":
                holder = owner.claims.setdefault(claim[1], client)
                if holder != client:
                    return 409, {
                        "error": {
                            "type": "ConfigurationError",
                            "message": f"Call {claim[1]} was claimed by {holder}.",
                        }
                    }
                owner.append(id, (ev.ToolCallStarted, {"call_id": claim[1], "runner": client}))
            else:
                from holdfast import ToolResult

                owner.results.append((claim[1], client, body))
                result = ToolResult.from_json(json.dumps(body["result"]))
                owner.append(id, (ev.ToolCallFinished, {"call_id": claim[1], "result": result}))
            return 200, {"status": "running"}
        return 404, {"error": {"type": "ConfigurationError", "message": f"No route {path!r}."}}

    def _info(self, id: str) -> dict[str, Any]:
        owner = self.server.owner
        tools = [{"name": name, "executor": executor} for name, executor in owner.tools.items()]
        return {
            "id": id,
            "status": "idle",
            "tools": tools,
            "warnings": [],
            "started": id in owner.started,
            "busy": False,
        }

    def _stream(self, id: str, after: int) -> None:
        owner = self.server.owner
        self.send_response_only(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with owner.changed:
            owner.streams += 1
        while not owner.stopping:
            with owner.changed:
                while (len(owner.journals[id]) <= after or owner.silent) and not owner.stopping:
                    owner.changed.wait(0.5)
                    if not owner.silent and len(owner.journals[id]) <= after:
                        break
                page = owner.journals[id][after : after + 5]
            notes, owner.notes = owner.notes, b""
            data = notes + (
                b"".join(
                    b"id: %d\nevent: x\ndata: %b\n\n" % (after + n, event)
                    for n, event in enumerate(page, 1)
                )
                or b": ping\n\n"
            )
            after += len(page)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), {"content-type": "application/json"})

    def _refuse(self, status: int, type: str, message: str) -> None:
        self._json(status, {"error": {"type": type, "message": message}})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def connections(port: int) -> list[str]:
    """Return the open connections of this process, at either end, that belong to a server's port,
    from the kernel's list."""
    ours = {_target(fd) for fd in Path("/proc/self/fd").iterdir()}
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [
        " ".join(line)
        for line in lines
        if f"socket:[{line[9]}]" in ours
        and any(end.endswith(f":{port:04X}") for end in line[1:3])
        and line[3] != "0A"  # listening
    ]


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""


class Proxy:
    """A TCP proxy before `port` that cuts connections, holds pieces back, sends pieces of event
    streams twice, and drops the second half of one.

    `faults` has the probability of each fault for a piece of an answer. Requests are passed on, or
    cut in their middle (`cut`).
    """

    def __init__(
        self,
        port: int,
        seed: int = 1,
        *,
        cut: float = 0.0,
        delay: float = 0.0,
        twice: float = 0.0,
        half: float = 0.0,
    ) -> None:
        self.target = port
        self.faults = {"cut": cut, "delay": delay, "twice": twice, "half": half}
        self.done = dict.fromkeys(self.faults, 0)
        self.connections = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self.cut_all()
        self._thread.join(30)

    def cut_all(self) -> None:
        """Break every open connection."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _shut(one)

    def _draw(self) -> str:
        with self._lock:
            for fault, likely in self.faults.items():
                if self._random.random() < likely:
                    self.done[fault] += 1
                    return fault
        return ""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass, args=(source, sink, answers), name="proxy-pass", daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        stream, rest = False, b""
        try:
            while data := source.recv(4096):
                if not stream and answers and b"text/event-stream" in data:
                    stream = True
                    head, mark, data = data.partition(b"\r\n\r\n")
                    sink.sendall(head + mark)
                pieces = [data]
                if stream:
                    pieces, rest = _chunks(rest + data)
                for piece in pieces:
                    if not self._send(piece, sink, stream):
                        return
        except OSError:
            pass
        finally:
            for one in (source, sink):
                _shut(one)
                with self._lock:
                    self._sockets.discard(one)

    def _send(self, piece: bytes, sink: socket.socket, stream: bool) -> bool:
        """Pass a piece on, or apply a fault to it. Returns False if that ended the connection."""
        fault = self._draw()
        if fault == "cut":
            return False
        if fault == "half":
            sink.sendall(piece[: len(piece) // 2])
            return False
        if fault == "delay":
            time.sleep(self._random.random() * 0.05)
        elif (
            fault == "twice" and stream
        ):  # every other time only half of it, so that the rest is garbled
            sink.sendall(piece if self.done["twice"] % 2 else piece[len(piece) // 3 :])
        sink.sendall(piece)
        return True


def _chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole chunks of a chunked body, with their frames, and the rest."""
    pieces: list[bytes] = []
    while b"\r\n" in data:
        end = data.index(b"\r\n") + 2 + int(data.split(b"\r\n", 1)[0], 16) + 2
        if len(data) < end:
            break
        pieces.append(data[:end])
        data = data[end:]
    return pieces, data


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()


_PROGRAM = """
import sys
from pathlib import Path
from holdfast.server.app import App
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.keys import Keys
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.serve import AgentServer
from holdfast.server.sockets import listen
from holdfast.store import SQLiteStore

folder, port, key, grace = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
records = Records(folder / "server.db", Seal.of_file(folder / "server.key"))
keys = Keys(records)
keys.add("default", key, "the tests'")
(folder / "rooms").mkdir(exist_ok=True)
settings = HostSettings(policy=Policy([]), root=folder / "rooms", client_grace=grace)
host = Host(SQLiteStore(folder / "journals.db"), records, settings)
server = AgentServer(App(host, keys), listen("127.0.0.1", port), grace=4.0)
server.run(lambda: print(server.url, flush=True))
"""


class AgentServerProcess:
    """The agent server in a process of its own. A test may `kill` and `start` it again on the same
    port as often as it likes."""

    def __init__(self, folder: Path, grace: float = 30.0) -> None:
        self.folder = folder
        self.grace = grace
        self.port = 0
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> AgentServerProcess:
        arguments = [str(self.folder), str(self.port), KEY, str(self.grace)]
        log = (self.folder / "log").open("a")
        self._process = forks.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, (self.folder / "log").read_text()
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def kill(self) -> None:
        """Kill the process with `kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """End the process with SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.wait(30)
        self._process.stdout.close()

    def __enter__(self) -> AgentServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
