"""Tests of the web server's connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import ToolManager
from holdfast.serve import MCPEndpoint
from holdfast.server import serve
from tests.agent_servers import Serving


class Wire(asyncio.Transport):
    """A transport that records the bytes written to it, and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.writes.append(b"closed")


def writes_of(work: Any) -> list[bytes]:
    wire = Wire()

    async def main() -> None:
        work(serve._JoinedWrites(wire))
        wire.writes.append(b"|")  # the end of this pass of the loop
        await asyncio.sleep(0)

    asyncio.run(main())
    return wire.writes


def test_what_is_written_in_one_pass_leaves_together() -> None:
    def work(joined: Any) -> None:
        for part in (b"head", b"", b"body"):
            joined.write(part)

    assert writes_of(work) == [b"|", b"headbody"]


def test_a_connection_is_closed_after_what_was_written() -> None:
    def work(joined: Any) -> None:
        joined.write(b"all")
        joined.close()

    assert writes_of(work) == [b"all", b"closed", b"|"]


def test_much_leaves_at_once_so_that_its_writer_can_be_made_to_wait() -> None:
    much = b"x" * serve._JOINED_BYTES

    def work(joined: Any) -> None:
        for part in (b"head", much, b"tail"):
            joined.write(part)

    assert writes_of(work) == [b"head" + much, b"|", b"tail"]


def test_the_size_of_a_head_has_a_limit_whatever_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # uvicorn would use httptools, which has no limit, where it is installed.
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", None)
    with Serving(tmp_path) as server, MCPEndpoint(ToolManager()) as endpoint:
        other = urlsplit(endpoint.url)
        assert other.port is not None
        for port in (server.port, other.port):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
                with suppress(OSError):
                    connection.sendall(b"a" * 1_000_000)
                    assert connection.recv(4096).startswith(b"HTTP/1.1 400")
