"""Tools of MCP servers beside the mcp package's own client session; discovery of fifty servers; the
definitions of 500 tools.

A call goes to a real server, over stdio and over HTTP. Its floor is the same call on a session of
the package in the same process: awaited on the session's own loop, and driven from another thread,
which a program without async has to do. The difference between the two is two wake-ups of a thread.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from harness import Goal, Row, in_child

SERVER = """
import sys
from mcp.server import MCPServer

server = MCPServer("bench")

@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

if sys.argv[1] == "stdio":
    server.run()
else:
    server.run("streamable-http", port=int(sys.argv[2]))
"""
# A shell script starts in a millisecond, so that fifty of them hardly load the machine.
STUB = r"""sleep 0.5
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case $line in
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"}}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"pid","inputSchema":{"type":"object"}}]}}\n' "$id";;
  esac
done
"""
ARGUMENTS = {"a": 1, "b": 2}


def calls(kind: str, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds per call, the median of each round: of Holdfast, of the raw session
    on its loop, and of the session driven from a thread."""
    from mcp import Client, StdioServerParameters

    from holdfast import MCPClient

    process: subprocess.Popen[Any] | None = None
    if kind == "stdio":
        target: Any = StdioServerParameters(command=sys.executable, args=["-c", SERVER, "stdio"])
        config: dict[str, Any] = {"command": sys.executable, "args": ["-c", SERVER, "stdio"]}
    else:
        port = _free_port()
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, "http", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        target = f"http://127.0.0.1:{port}/mcp"
        config = {"url": target}
        _await_port(port)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    session: dict[str, Any] = {}
    ready, over = threading.Event(), asyncio.Event()

    async def live() -> None:
        async with Client(target, mode="legacy") as client:
            await client.list_tools()
            session["client"] = client
            ready.set()
            await over.wait()

    async def timed(count: int) -> float:
        seconds: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await session["client"].call_tool("add", ARGUMENTS)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds) * 1e3

    def median(call: Callable[[], object], count: int) -> float:
        seconds: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds) * 1e3

    life = asyncio.run_coroutine_threadsafe(live(), loop)
    assert ready.wait(30)
    out: dict[str, list[float]] = {"ours": [], "loop": [], "thread": []}
    try:
        with MCPClient({"s": {**config, "mode": "legacy"}}) as client:
            [tool] = client.tools()
            for number in range(rounds + 1):
                raw = asyncio.run_coroutine_threadsafe(timed(50), loop).result()
                one = median(
                    lambda: asyncio.run_coroutine_threadsafe(
                        session["client"].call_tool("add", ARGUMENTS), loop
                    ).result(),
                    50,
                )
                ours = median(lambda: tool.run(ARGUMENTS), 50)
                if number:  # the first round warms up
                    for name, value in (("loop", raw), ("thread", one), ("ours", ours)):
                        out[name].append(value)
    finally:
        loop.call_soon_threadsafe(over.set)
        life.result(10)
        loop.call_soon_threadsafe(loop.stop)
        if process is not None:
            process.kill()
            process.wait()
    return out


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _await_port(port: int) -> None:
    import socket

    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the MCP server did not start")


def discovery(repeats: int) -> list[float]:
    """Return the seconds until a manager has the tools of fifty servers, each of which takes half a
    second to start."""
    import logging

    import mcp  # its import is the process', not the discovery's  # noqa: F401

    from holdfast import MCPClient, ToolManager

    logging.disable()
    seconds: list[float] = []
    for _ in range(repeats + 1):
        servers = {
            f"s{n}": {"command": "sh", "args": ["-c", STUB], "mode": "legacy"} for n in range(50)
        }
        began = time.perf_counter()  # the manager begins discovery when it is made
        with ToolManager(sources=MCPClient(servers).sources()) as manager:
            assert len(manager.discover()) == 50
            seconds.append(time.perf_counter() - began)
    return seconds[1:]


def definitions(repeats: int) -> dict[str, list[float]]:
    """Return the microseconds for the definitions of 500 tools as a step requests them: the first
    time after a change and each time after that. A third figure is for a copy of them in OpenAI's
    form, which no step makes."""
    from holdfast import Tool, ToolManager

    schema = {
        "type": "object",
        "properties": {"key": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["key"],
    }
    out: dict[str, list[float]] = {"first": [], "later": [], "copy": []}
    for _ in range(repeats):
        manager = ToolManager(
            [
                Tool(f"tool_{n}", "Does something. " * 10, lambda **_: None, schema)
                for n in range(500)
            ]
        )
        began = time.perf_counter()
        manager.definitions()
        out["first"].append((time.perf_counter() - began) * 1e6)
        began = time.perf_counter()
        for _ in range(1000):
            manager.definitions()
        out["later"].append((time.perf_counter() - began) * 1e3)
        manager.get_llm_definitions()
        began = time.perf_counter()
        manager.get_llm_definitions()
        out["copy"].append((time.perf_counter() - began) * 1e6)
    return out


def rows(quick: bool) -> list[Row]:
    table: list[Row] = []
    for kind in ("stdio", "http"):
        times = in_child(calls, kind, 3 if quick else 9)
        table += [
            Row(f"a call over {kind}", "ms", times["ours"], times["thread"]),
            Row(
                "    more than the session driven from a thread",
                "ms",
                _more(times, "thread"),
                goal=Goal(0.1),
            ),
            Row("    more than the session awaited on its own loop", "ms", _more(times, "loop")),
        ]
    table.append(
        Row(
            "50 servers of 0.5 s each, discovered",
            "s",
            in_child(discovery, 2 if quick else 5),
            goal=Goal(1.0),
        )
    )
    definition_times = in_child(definitions, 3 if quick else 9)
    table.append(Row("definitions of 500 tools, the first time", "us", definition_times["first"]))
    table.append(Row("    at each later step", "us", definition_times["later"], goal=Goal(5)))
    table.append(Row("    a copy in OpenAI's form, for a caller", "us", definition_times["copy"]))
    return table


def _more(times: dict[str, list[float]], than: str) -> list[float]:
    return [ours - theirs for ours, theirs in zip(times["ours"], times[than], strict=True)]
