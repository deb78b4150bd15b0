"""Tests of the bodies of requests: bounds of size, of values, of time and of memory, over real
sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast.server import intake
from holdfast.server.intake import Intake
from tests.agent_servers import Serving
from tests.waiting import until

MB = 1024 * 1024
SURROGATE = "\\ud800"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path) as running:
        running.make("a", ["one", "two"])
        assert running.ask("POST", "/api/workspaces", {"id": "w"}).status == 201
        yield running


def raw(server: Serving, path: str, length: int, key: str = "") -> socket.socket:
    """Return a connection on which the head of a POST was sent that announces `length` bytes."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key or server.key}\r\n"
    )
    connection.sendall(
        f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    return connection


def status(connection: socket.socket) -> int:
    """Return the status of the answer."""
    data = b""
    while b"\r\n" not in data:
        piece = connection.recv(4096)
        if not piece:
            return 0
        data += piece
    return int(data.split()[1])


@pytest.mark.slow
def test_a_body_is_as_large_as_its_route_needs(server: Serving) -> None:
    text = "x" * (3 * MB)
    assert server.ask("POST", "/api/conversations/a/messages", {"text": text}).status == 202
    assert server.ask("PUT", "/api/workspaces/w/files/f", text.encode()).status == 200
    for path, body in (
        ("conversations/a/reject", {"reason": text}),
        ("conversations/a/condense", {"instructions": text}),
        ("conversations/a/answer", {"questionId": "1.0?1", "values": {"a": text}}),
        ("workspaces/w/commands", {"command": f"echo {text}"}),
        ("webhooks", {"url": text}),
    ):
        assert server.ask("POST", f"/api/{path}", body).status == 413, path
        # the answer comes before a byte of the body
        with raw(server, f"/api/{path}", 3 * MB) as connection:
            assert status(connection) == 413, path


@pytest.mark.slow
def test_a_body_has_a_bounded_number_of_values(server: Serving) -> None:
    many = b"[" + b"[]," * 400_000 + b"[]]"
    result = b'{"result":{"content":[],"isError":false,"structuredContent":{"a":' + many + b"}}}"
    headers = {"Content-Type": "application/json", "X-Holdfast-Client": "c"}
    reply = server.ask("POST", "/api/conversations/a/calls/1.0/result", result, **headers)
    assert reply.status == 413, reply
    assert "values" in reply.json["error"]["message"]
    text = json.dumps(
        {"text": 'a,[{"' * 400_000}
    ).encode()  # within a string they separate no values
    assert server.ask("POST", "/api/conversations/a/messages", text, **headers).status == 202
    quotes = (
        b'{"result":{"content":[],"isError":false,"structuredContent":{"a":['
        + b'"",' * 600_000
        + b'""]}}}'
    )
    assert (
        server.ask("POST", "/api/conversations/a/calls/1.0/result", quotes, **headers).status == 413
    )


@pytest.mark.slow
def test_stalled_bodies_take_a_bounded_memory_and_leave_room_for_small_requests(
    server: Serving,
) -> None:
    server.app.service.intake = Intake(total=6 * MB, per_key=4 * MB)
    path, piece = "/api/conversations/a/messages", b'{"text": "' + b"x" * (MB - 10)
    stalled: list[socket.socket] = []
    try:
        for key in (server.key, server.other):
            for _ in range(6):
                connection = raw(server, path, 30 * MB, key)
                stalled.append(connection)
                try:
                    connection.sendall(piece)
                except OSError:  # the server refused it, and hung up
                    continue
        until(lambda: server.app.service.intake.bytes > 4 * MB)
        refused = server.ask("POST", path, {"text": "x" * MB})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert server.app.service.intake.bytes <= 6 * MB
        assert server.ask("POST", path, {"text": "small"}).status == 202
    finally:
        for connection in stalled:
            connection.close()
    until(lambda: server.app.service.intake.bytes == 0)
    assert server.ask("POST", path, {"text": "x" * MB}).status == 202
    assert server.app.service.intake.bytes == 0


@pytest.mark.slow
def test_a_body_has_a_time_in_which_it_comes_whole(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(intake, "BYTES_PER_SECOND", 1000)
    path = "/api/conversations/a/messages"
    began = time.monotonic()
    with raw(server, path, 1000) as trickling:
        trickling.settimeout(0.05)
        code: Any = None
        while code is None:
            assert time.monotonic() - began < 10, "it goes on for ever"
            try:
                trickling.sendall(b" ")
                code = status(trickling)
            except TimeoutError:
                continue
        assert code == 408
    monkeypatch.setattr(intake, "IDLE_SECONDS", 0.1)
    with raw(server, path, 1000) as silent:
        assert status(silent) == 408


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("workspaces/w/clone", '{"repo": "o/r", "branch": "a\\u0000b"}'),
        ("workspaces/w/clone", f'{{"repo": "o/r", "branch": "a{SURROGATE}b"}}'),
        ("workspaces/w/clone", '{"repo": "o/r", "branch": "--upload-pack=x"}'),
        ("workspaces/w/clone", '{"repo": "https://e.invalid/a\\u0000b"}'),
        ("workspaces/w/clone", f'{{"repo": "https://e.invalid/a{SURROGATE}b"}}'),
        ("workspaces/w/clone", '{"repo": "--upload-pack=x/r"}'),
        ("workspaces/w/clone", '{"repo": "o/r", "target": "a\\u0000b"}'),
        ("workspaces/w/clone", f'{{"repo": "o/r", "target": "a{SURROGATE}b"}}'),
        ("workspaces/w/clone", '{"repo": "o/-r"}'),
        ("workspaces/w/commands", '{"command": "echo a\\u0000b"}'),
        ("workspaces/w/commands", f'{{"command": "echo a{SURROGATE}b"}}'),
        ("workspaces/w/tools/terminal", '{"arguments": {"command": "echo a\\u0000b"}}'),
        ("workspaces/w/tools/read_file", '{"arguments": {"path": "a\\u0000b"}}'),
        ("workspaces/w/tools/read_file", f'{{"arguments": {{"path": "a{SURROGATE}b"}}}}'),
        (
            "workspaces/w/tools/write_file",
            f'{{"arguments": {{"path": "a", "content": "{SURROGATE}"}}}}',
        ),
        ("workspaces/w/tools/write_file", '{"arguments": {"path": "a\\u0000b", "content": "x"}}'),
        ("workspaces/w/tools/glob", '{"arguments": {"pattern": "a\\u0000b"}}'),
        ("workspaces/w/tools/grep", '{"arguments": {"pattern": "a\\u0000b", "path": "a\\u0000b"}}'),
        ("workspaces", '{"id": "a\\u0000b"}'),
        ("conversations", '{"id": "a\\u0000b", "agent": {}}'),
        ("conversations", '{"agent": {}, "workspace": "a\\u0000b"}'),
        (
            "conversations",
            (
                '{"agent": {}, "tools": [{"name": "t", "inputSchema": {"type": "object"}, "module":'
                ' "a\\u0000b"}]}'
            ),
        ),
        ("conversations", f'{{"agent": {{"system_prompt": "{SURROGATE}"}}}}'),
        ("conversations/a/fork", '{"id": "a\\u0000b"}'),
        ("conversations/a/messages", f'{{"text": "a{SURROGATE}b"}}'),
        ("conversations/a/messages", '{"text": "a", "eventId": "a\\u0000b"}'),
        ("conversations/a/reject", '{"callId": "a\\u0000b", "reason": "a\\u0000b"}'),
        ("webhooks", '{"url": "https://e.invalid/a\\u0000b", "events": ["note"]}'),
    ],
)
def test_odd_characters_are_no_fault_of_the_servers(server: Serving, path: str, body: str) -> None:
    reply = server.ask(
        "POST", f"/api/{path}", body.encode(), **{"Content-Type": "application/json"}
    )
    assert reply.status < 500, reply


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "microagents?folder=a%00b",
        "microagents?folder=%ED%A0%80",
        "microagents?folder=-x",
        "files/%ED%A0%80",
    ],
)
def test_odd_characters_in_an_address_are_no_fault_of_the_servers(
    server: Serving, path: str
) -> None:
    assert server.ask("GET", f"/api/workspaces/w/{path}").status < 500
