"""Tests of clients that leave before the stream of their turn begins."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from holdfast.serve import responses_routes
from tests.model_server import text
from tests.server.test_openai import HI, serving
from tests.waiting import until


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "coder", "messages": HI, "stream": True}),
        ("/v1/responses", {"model": "coder", "input": "hi", "stream": True}),
    ],
)
def test_a_client_that_leaves_before_its_stream_begins_waits_no_more(
    path: str, body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the end of the wait while the head of the answer waits for a client that reads nothing.
    The run is interrupted, since nobody is there to read the answer."""
    stalled, over = threading.Event(), threading.Event()

    async def send(self: Any, message: Any) -> None:
        assert message["type"] == "http.response.start"
        stalled.set()
        await asyncio.Event().wait()  # until it is cancelled

    def answer(_: Any) -> Any:
        over.wait(60)
        return text("late")

    monkeypatch.setattr(RequestResponseCycle, "send", send)
    with serving(tmp_path, answer, doors=[responses_routes.add]) as (server, _):
        try:
            data = json.dumps(body).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
                f"Authorization: Bearer {server.key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head.encode() + data)
                assert stalled.wait(60)
                [item] = server.host.list("default").items
                assert server.host.chats.waiting("default", item.id) == 1
            until(lambda: not server.host.chats.waiting("default", item.id), seconds=20)
            until(lambda: server.host.status("default", item.id) == "paused", seconds=20)
        finally:
            over.set()
