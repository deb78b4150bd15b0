"""A real MCP server that asks, reports and changes: `python mcp_asking_server.py` speaks stdio, with `http` or `sse` it prints its port.

It speaks both eras of the protocol; TTL_MS in its environment is for how long its list of tools holds.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import (
    CreateMessageResult,
    ListRootsResult,
    NotificationParams,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

ttl = int(os.environ.get("TTL_MS", "0"))
server = MCPServer("asking", cache_hints={"tools/list": CacheHint(ttl_ms=ttl)} if ttl else None)


class Name(BaseModel):
    name: str
    colour: str = "green"


async def ask_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


@server.tool()
async def greet(who: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    """Asks for a name."""
    return f"{who.action}: {getattr(who, 'data', None)}"


async def ask_as_told(message: str) -> Elicit[Name]:
    return Elicit(message, Name)


@server.tool()
async def ask(message: str, who: Annotated[ElicitationResult[Name], Resolve(ask_as_told)]) -> str:
    """Asks for a name, in these words."""
    return f"{who.action}: {getattr(who, 'data', None)}"


@server.tool()
async def visit(ctx: Context, url: str) -> str:
    """Asks the user to visit a page; in the older era."""
    return (await ctx.elicit_url("Please log in.", url, "1")).action


@server.tool()
def declared(ctx: Context) -> list[str]:
    """What the client says that it can do."""
    can = ctx.client_capabilities
    return [] if can is None else sorted(can.model_dump(exclude_none=True))


@server.tool()
async def think_often(ctx: Context, count: int) -> str:
    """Asks for so many completions; in the older era."""
    for number in range(count):
        try:
            await ctx.session.create_message(
                [SamplingMessage(role="user", content=TextContent(text="Say it."))], max_tokens=10
            )
        except Exception as error:
            return f"{number}: {error}"
    return str(count)


async def ask_model() -> Sample:
    return Sample(
        [SamplingMessage(role="user", content=TextContent(text="Say it."))],
        max_tokens=10,
        system_prompt="Be brief.",
    )


@server.tool()
async def think(said: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks for a completion."""
    return f"{said.model}: {said.content.text}"  # type: ignore[union-attr]


async def ask_roots() -> ListRoots:
    return ListRoots()


@server.tool()
async def folders(found: Annotated[ListRootsResult, Resolve(ask_roots)]) -> list[str]:
    """Asks where to work."""
    return [str(root.uri) for root in found.roots]


changed: list[str] = []


async def on_roots_changed(ctx: Any, params: Any) -> None:
    changed.append("roots")


server._lowlevel_server.add_notification_handler(
    "notifications/roots/list_changed", NotificationParams, on_roots_changed
)


@server.tool()
def roots_changed() -> int:
    """How often it was told that the folders are others."""
    return len(changed)


@server.tool()
async def steps(ctx: Context, count: int = 3) -> str:
    """Reports progress."""
    for number in range(count):
        await ctx.report_progress(number + 1, count, f"step {number + 1}")
        await anyio.sleep(0.01)
    return "done"


@server.tool()
async def grow(ctx: Context, name: str) -> str:
    """Has one tool more from now on, and says so."""
    server.add_tool(lambda: name, name=name, description="new")
    if (ctx.protocol_version or "") >= "2026-07-28":
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
def big(megabytes: int) -> str:
    """Says a lot."""
    return "x" * (megabytes * 1024 * 1024)


@server.tool()
def pid() -> int:
    """Its process."""
    return os.getpid()


def serve(app: Any) -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run(
        [listener]
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["http"]:
            serve(server.streamable_http_app())
        case ["sse"]:
            serve(server.sse_app())
        case _:
            server.run()
