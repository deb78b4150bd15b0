"""Shared parts of the A2A tests: agent processes by their settings, and their logs."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.tools.a2a import A2AClient
from holdfast.tools.tool import Tool
from tests import forks

AGENT = str(Path(__file__).parent / "data" / "a2a_agent.py")
TOKEN = "s3cret-token"
needs_a2a = pytest.mark.skipif(
    importlib.util.find_spec("a2a") is None,
    reason="needs the a2a extra: pip install 'holdfast[a2a]'",
)

# The ways of calling an agent: protocol version, transport, streaming. Two that differ in all
# three are enough for a quick run.
VARIANTS = [
    pytest.param(
        (version, transport, streaming),
        id=f"{version}-{transport}-{'stream' if streaming else 'poll'}",
        marks=(
            []
            if (version == "1.0") == (transport == "JSONRPC") == streaming
            else [pytest.mark.proof]
        ),
    )
    for version in ("1.0", "0.3")
    for transport in ("JSONRPC", "HTTP+JSON")
    for streaming in (True, False)
]


class Running(dict[str, Any]):
    """An agent process: its settings, with `url`, `port` and `log`."""

    process: subprocess.Popen[str]

    def kind(self) -> dict[str, Any]:
        return {key: self[key] for key in ("version", "transport", "streaming")}

    def start(self) -> None:
        self.process = forks.Popen(
            [sys.executable, AGENT, json.dumps(self)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self["port"] = int(self.process.stdout.readline())
        self["url"] = f"http://127.0.0.1:{self['port']}"

    def kill(self) -> None:
        with self.process:
            self.process.kill()

    def restart(self) -> None:
        """Start another process in its place, without any memory."""
        self.kill()
        self.start()


class Agents:
    """Agents for one test module: shared ones, which no test harms, and a test's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._shared: dict[str, Running] = {}

    def _start(self, settings: dict[str, Any]) -> Running:
        defaults = {"version": "1.0", "transport": "JSONRPC", "streaming": True, "port": 0}
        running = Running(
            {**defaults, **settings, "log": str(self._folder / f"{next(self._numbers)}.log")}
        )
        running.start()
        return running

    def shared(self, **settings: Any) -> Running:
        key = json.dumps(settings, sort_keys=True)
        if key not in self._shared:
            self._shared[key] = self._start(settings)
        return self._shared[key]

    @contextlib.contextmanager
    def serve(self, **settings: Any) -> Iterator[Running]:
        running = self._start(settings)
        try:
            yield running
        finally:
            running.kill()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *failure: object) -> None:
        for running in self._shared.values():
            running.kill()


def lines(agent: Running, start: str) -> list[str]:
    """Return the log lines of the agent that begin with `start`."""
    path = Path(agent["log"])
    return (
        [line for line in path.read_text().splitlines() if line.startswith(start)]
        if path.exists()
        else []
    )


def by_skill(client: A2AClient) -> dict[str, Tool]:
    return {tool.name.partition(".")[2]: tool for tool in client.tools()}


# --- agents and proxies of these tests, for behaviour that the SDK's agents lack ---


class Scripted:
    """An agent of these tests, for answers that the SDK's agents do not give: one skill, no
    streams, a list of results."""

    def __init__(self, script: list[Any]) -> None:
        self.bodies: list[Any] = []
        outer, remaining = self, list(script)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                here = {
                    "url": f"{outer.url}/",
                    "protocolBinding": "JSONRPC",
                    "protocolVersion": "1.0",
                }
                self._answer(
                    {
                        "name": "S",
                        "version": "1",
                        "supportedInterfaces": [here],
                        "skills": [{"id": "s", "name": "s"}],
                    }
                )

            def do_POST(self) -> None:
                outer.bodies.append(
                    json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )
                result = remaining.pop(0)
                error = isinstance(result, dict) and "error" in result
                self._answer(
                    {
                        "jsonrpc": "2.0",
                        "id": outer.bodies[-1]["id"],
                        **(result if error else {"result": result}),
                    }
                )

            def _answer(self, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def methods(self) -> list[str]:
        return [body["method"] for body in self.bodies]

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Cutter:
    """A proxy that shows its own card, cuts each stream after the first event, and refuses the next
    `refusals` requests for a task."""

    def __init__(self, port: int) -> None:
        self.card: dict[str, Any] = {}
        self.cut = 0
        self.refusals = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(
                    json.dumps(
                        {**outer._ask(port, "GET", self.path, b"", {})[1], **outer.card}
                    ).encode(),
                    "application/json",
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name: self.headers[name] for name in ("A2A-Version", "Content-Type")}
                method = json.loads(body)["method"]
                if method == "GetTask" and outer.refusals > 0:
                    outer.refusals -= 1
                    self._answer(b"", "text/plain", 503)
                    return
                if method != "SendStreamingMessage":
                    self._answer(
                        json.dumps(outer._ask(port, "POST", self.path, body, headers)[1]).encode(),
                        "application/json",
                    )
                    return
                outer.cut += 1
                connection, response = outer._open(port, "POST", self.path, body, headers)
                event = b""
                while not event.endswith(b"\r\n\r\n"):
                    event += response.read(1)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(event)
                connection.close()

            def _answer(self, data: bytes, kind: str, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    @staticmethod
    def _open(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def _ask(self, *request: Any) -> tuple[int, dict[str, Any]]:
        connection, response = self._open(*request)
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def __enter__(self) -> Cutter:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
