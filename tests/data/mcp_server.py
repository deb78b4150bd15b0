"""A real MCP server for the tests: `python mcp_server.py` speaks stdio, `python mcp_server.py http TOKEN [PORT]` streamable HTTP on PORT (0: a free one)."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

server = MCPServer("tests")


class Sum(BaseModel):
    total: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def add(a: int, b: int = Field(default=1, description="what is added")) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("no luck today")


@server.tool()
def refuse(code: int) -> str:
    """Answers with a JSON-RPC error."""
    raise MCPError(code, "refused by the server")


@server.tool()
async def slow(path: str, seconds: float = 30.0) -> str:
    """Sleeps; a file says how it ended."""
    with open(path, "w") as file:
        file.write("begun")
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        with open(path, "w") as file:
            file.write("cancelled")
        raise
    return "slept"


@server.tool()
def image() -> Image:
    """A picture, or the beginning of one."""
    return Image(data=b"\x89PNG...", format="png")


@server.tool()
def everything() -> CallToolResult:
    """One block of each other kind, and meta."""
    return CallToolResult(
        content=[
            TextContent(text="text"),
            AudioContent(data="UklGRg==", mime_type="audio/wav"),
            ResourceLink(uri="file:///a.txt", name="a", mime_type="text/plain"),
            EmbeddedResource(
                resource=TextResourceContents(uri="file:///b.txt", mime_type="text/plain", text="b")
            ),
        ],
        _meta={"exitCode": 7},
    )


@server.tool()
def environment() -> dict[str, str]:
    """What this process was given."""
    return dict(os.environ)


@server.tool()
def pid() -> int:
    """Its process."""
    return os.getpid()


@server.tool()
def die() -> str:
    """Is killed before it can answer."""
    print("about to be killed", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def http(token: str, port: int) -> None:
    import uvicorn

    app: Any = server.streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if (
            scope["type"] == "http"
            and (b"authorization", f"Bearer {token}".encode()) not in scope["headers"]
        ):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=1)).run(
        [listener]
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        http(sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else 0)
    elif sys.argv[1:2] == ["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.run()
        time.sleep(60)
    else:
        server.run()
