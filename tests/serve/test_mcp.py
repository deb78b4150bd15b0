"""Tests of a manager served over MCP, with mcp's own client and ours, raw bytes on a pipe, and the
conformance kit."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import MCPClient, Tool, ToolContext, ToolManager, ToolResult
from holdfast.errors import ConfigurationError, HoldfastError, ToolError
from holdfast.serve import MCPEndpoint
from tests import forks, mcp_tools
from tests.data import mcp_parts
from tests.paths import REPO
from tests.waiting import until

ROOT = REPO
PROGRAM = [sys.executable, "-m", "tests.mcp_tools"]
ERAS = ["legacy", "2026-07-28"]
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# --- clients ---


def result_of(where: str, mode: str, work: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """Return the result of `work(client)`, over HTTP (a URL) or stdio ("stdio"), by mcp's own
    client."""
    from mcp import Client, StdioServerParameters

    async def main() -> Any:
        target = (
            StdioServerParameters(command=PROGRAM[0], args=PROGRAM[1:], cwd=ROOT)
            if where == "stdio"
            else where
        )
        async with Client(target, mode=mode, **options) as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(main(), 30))


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Run the tools of `tests.mcp_tools` in a process of their own, and yield their URL."""
    process = forks.Popen(
        [*PROGRAM, "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.fixture(params=["http", "stdio"])
def place(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("served") if request.param == "http" else "stdio"


class Process:
    """`tests.mcp_tools` over stdio, for a client that writes and reads bytes."""

    def __init__(self, *command: str, **options: Any) -> None:
        self.process = forks.Popen(
            command or PROGRAM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            **options,
        )
        self._rest = b""

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(
        self, method: str, params: dict[str, Any] | None = None, id: int | None = None
    ) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}} | (
            {} if id is None else {"id": id}
        )
        self.write(json.dumps(message).encode() + b"\n")

    def hello(self) -> None:
        self.send("initialize", HELLO, 0)
        assert self.read()["id"] == 0
        self.send("notifications/initialized")

    def call(self, id: int, name: str, **arguments: Any) -> None:
        self.send("tools/call", {"name": name, "arguments": arguments}, id)

    def read(self, seconds: float = 15.0) -> Any:
        """Return the next message."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            assert select.select(
                [self.process.stdout], [], [], max(0, deadline - time.monotonic())
            )[0], "no message came"
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            assert chunk, "the server has ended"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def ended(self, seconds: float = 8.0) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


# --- the list of tools ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_every_tool_is_offered_whole_under_its_own_name(place: str, mode: str) -> None:
    tools = {
        tool.name: tool for tool in result_of(place, mode, lambda client: client.list_tools()).tools
    }
    assert set(tools) >= {tool.name for tool in mcp_tools.tools()}
    point = tools["geo.point"]
    assert point.description == "Answers a point."
    assert point.output_schema == mcp_tools.POINT
    hints = point.annotations
    assert (
        hints.read_only_hint,
        hints.destructive_hint,
        hints.idempotent_hint,
        hints.open_world_hint,
    ) == (True, False, True, False)
    schema = tools["json_schema_2020_12_tool"].input_schema
    for key, value in mcp_tools.JSON_SCHEMA_2020_12.items():
        assert schema[key] == value


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_an_output_schema_that_is_no_object_is_wrapped_for_clients_that_know_only_objects(
    place: str, mode: str
) -> None:
    async def work(client: Any) -> tuple[Any, Any]:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        return (
            tools["numbers"].output_schema,
            (await client.call_tool("numbers", {})).structured_content,
        )

    schema, content = result_of(place, mode, work)
    plain = {"type": "array", "items": {"type": "integer"}}
    if mode == "legacy":
        assert schema == {"type": "object", "properties": {"result": plain}, "required": ["result"]}
        assert content == {"result": [1, 2, 3]}
    else:
        assert (schema, content) == (plain, [1, 2, 3])


def test_a_cursor_that_nobody_gave_out_is_refused(served: str) -> None:
    from mcp.shared.exceptions import MCPError

    async def work(client: Any) -> int:
        with pytest.raises(MCPError) as refused:
            await client.list_tools(cursor="2")
        return refused.value.error.code

    assert result_of(served, "legacy", work) == -32602


@pytest.mark.slow
def test_tools_of_services_are_there_when_the_list_is_asked_for() -> None:
    before = children()
    behind = MCPClient(
        {
            "there": {"command": PROGRAM[0], "args": PROGRAM[1:], "cwd": str(ROOT)},
            "dead": {"command": "/no/such/program"},
        }
    )
    manager = ToolManager([mcp_tools.add], behind.sources())

    async def work(client: Any) -> tuple[Any, Any]:
        return [tool.name for tool in (await client.list_tools()).tools], (
            await client.call_tool("there.add", {"a": 2, "b": 3})
        ).content

    with MCPEndpoint(manager) as endpoint:
        names, content = result_of(endpoint.url, "legacy", work)
    assert names[0] == "add"
    assert "there.geo.point" in names
    assert content[0].text == "5"
    until(lambda: children() == before)


def children() -> list[str]:
    """Return the command lines of the tool servers that this process has started."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return [line for line in listing.splitlines() if "tests.mcp_tools" in line]


# --- calls ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_results_come_as_the_tool_gave_them(place: str, mode: str) -> None:
    async def work(client: Any) -> list[Any]:
        names = ["test_multiple_content_types", "geo.point", "test_audio_content"]
        return [await client.call_tool(name, {}) for name in names]

    mixed, point, sound = result_of(place, mode, work)
    assert [block.type for block in mixed.content] == ["text", "image", "resource"]
    assert mixed.content[2].resource.text == '{"test":"data","value":123}'
    assert point.structured_content == {"x": 1, "y": None}
    assert sound.content[0].mime_type == "audio/wav"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_what_goes_wrong_in_a_call_is_told_to_the_model_and_an_unknown_tool_to_the_program(
    place: str, mode: str
) -> None:
    from mcp.shared.exceptions import MCPError

    async def work(client: Any) -> list[str]:
        texts: list[str] = []
        for name, arguments in (
            ("test_error_handling", {}),
            ("add", {"a": 1}),
            ("add", {"a": 1, "b": "x"}),
            ("leave", {}),
            ("liar", {}),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            texts.append(result.content[0].text)
        with pytest.raises(MCPError) as refused:
            await client.call_tool("ad", {})
        assert refused.value.error.code == -32602
        return [*texts, refused.value.error.message]

    error, missing, wrong, exit_text, lied, unknown = result_of(place, mode, work)
    assert error == "This tool intentionally returns an error for testing"
    assert "b is required" in missing
    assert "integer" in wrong
    assert "SystemExit" in exit_text
    assert "does not fit its output schema: $.x" in lied
    assert unknown.startswith("Unknown tool 'ad'. Did you mean 'add'?")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_progress_comes_in_order_and_before_the_result(place: str, mode: str) -> None:
    async def work(client: Any) -> list[Any]:
        reports: list[Any] = []

        async def progress(number: float, total: float | None, message: str | None) -> None:
            reports.append((number, message))

        reports.append(
            (await client.call_tool("test_tool_with_progress", {}, progress_callback=progress))
            .content[0]
            .text
        )
        return reports

    assert result_of(place, mode, work) == [
        (1.0, "step 0"),
        (2.0, "step 1"),
        (3.0, "step 2"),
        "done",
    ]


def test_a_tool_that_reports_without_end_is_heard_as_far_as_its_client_can_listen(
    served: str,
) -> None:
    async def work(client: Any) -> list[float]:
        reports: list[float] = []

        async def progress(number: float, total: float | None, message: str | None) -> None:
            reports.append(number)

        await client.call_tool("chatty", {"messages": 20_000}, progress_callback=progress)
        return reports

    reports = result_of(served, "legacy", work)
    assert reports == sorted(set(reports))
    assert reports[-1] == 20_000
    assert len(reports) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_a_cancel_by_the_client_cancels_the_call(place: str, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "told"

    async def work(client: Any) -> None:
        call = asyncio.create_task(client.call_tool("wait_for_cancel", {"path": str(file)}))
        while not file.exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        assert (await client.call_tool("add", {"a": 1, "b": 1})).content[0].text == "2"
        for _ in range(300):
            if len(lines(file)) == 2:
                return
            await asyncio.sleep(0.01)

    result_of(place, mode, work)
    assert lines(file) == ["began", "cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ERAS)
def test_a_slow_call_does_not_hold_up_others(place: str, mode: str) -> None:
    async def work(client: Any) -> float:
        began = time.monotonic()
        results = await asyncio.gather(
            *(client.call_tool("sleep", {"seconds": 0.3}) for _ in range(32))
        )
        assert all(result.content[0].text == "slept 0.3 s" for result in results)
        return time.monotonic() - began

    assert result_of(place, mode, work) < 9.0  # one after the other: 9.6


def test_no_more_calls_run_at_once_than_were_allowed() -> None:
    running: list[int] = []
    most: list[int] = []
    three = threading.Barrier(3, timeout=30)

    def count() -> None:
        running.append(1)
        three.wait()
        most.append(len(running))
        time.sleep(0.02)
        running.pop()

    async def work(client: Any) -> None:
        await asyncio.gather(*(client.call_tool("count", {}) for _ in range(12)))

    with MCPEndpoint(ToolManager([count]), max_calls=3) as endpoint:
        result_of(endpoint.url, "2026-07-28", work)
    assert (max(most), len(most)) == (3, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "mode"), [("http", "2026-07-28"), ("stdio", "2026-07-28"), ("stdio", "legacy")]
)
def test_a_result_of_20_megabytes_arrives(served: str, transport: str, mode: str) -> None:
    where = served if transport == "http" else "stdio"
    result = result_of(
        where, mode, lambda client: client.call_tool("large", {"characters": 20_000_000})
    )
    assert len(result.content[0].text) == 20_000_000


@pytest.mark.slow
def test_a_result_of_20_megabytes_is_sent_over_http_in_the_older_era_too(served: str) -> None:
    # By hand: mcp's client refuses events of more than 1 MB, and over HTTP this era answers with an
    # event.
    hello = post(served)
    assert hello.status == 200
    session = {
        "Mcp-Session-Id": hello.headers["mcp-session-id"],
        "MCP-Protocol-Version": "2025-11-25",
    }
    params = {"name": "large", "arguments": {"characters": 20_000_000}}
    answer = post(
        served, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, **session
    )
    assert len(answer.body) > 20_000_000


@pytest.mark.slow
def test_every_call_has_a_key_of_its_own_and_what_it_left_is_cleaned_up_once() -> None:
    keys: list[str] = []
    cleaned: list[str] = []

    def remember(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        context.on_close("once", lambda: cleaned.append("cleaned"))
        return str(context.runtime)

    async def work(client: Any) -> str:
        for _ in range(2):
            result = await client.call_tool("remember", {})
        return result.content[0].text

    with MCPEndpoint(ToolManager([remember]), runtime="the runtime") as endpoint:
        assert result_of(endpoint.url, "legacy", work) == "the runtime"
        assert result_of(endpoint.url, "legacy", work) == "the runtime"
        assert cleaned == []
    assert len(set(keys)) == 4
    assert cleaned == ["cleaned"]


def test_hooks_and_held_back_tools_are_the_managers_and_hold_for_clients_too() -> None:
    from holdfast.tools.hooks import Hook

    manager = ToolManager(
        [mcp_tools.add],
        hooks=[Hook(before=lambda call, context: ToolResult.failure("not today"), tools="add")],
    )
    with MCPEndpoint(manager) as endpoint:
        result = result_of(
            endpoint.url, "legacy", lambda client: client.call_tool("add", {"a": 1, "b": 2})
        )
    assert result.is_error
    assert result.content[0].text == "not today"


# --- changes ---


@pytest.mark.slow
def test_a_client_of_the_older_era_is_told_of_changes_without_asking() -> None:
    manager = ToolManager([mcp_tools.add])

    async def work(client: Any) -> list[str]:
        await client.list_tools()
        manager.register(Tool("newcomer", "", lambda: "here"))
        for _ in range(500):
            if methods:
                break
            await asyncio.sleep(0.01)
        return [tool.name for tool in (await client.list_tools()).tools]

    methods: list[str] = []

    async def on_message(message: Any) -> None:
        methods.append(getattr(message, "method", ""))

    with MCPEndpoint(manager) as endpoint:
        names = result_of(endpoint.url, "legacy", work, message_handler=on_message)
    assert methods == ["notifications/tools/list_changed"]
    assert names == ["add", "newcomer"]


@pytest.mark.slow
def test_our_own_client_sees_a_change_without_asking() -> None:
    manager = ToolManager([mcp_tools.add])
    with MCPEndpoint(manager) as endpoint, MCPClient({"far": {"url": endpoint.url}}) as client:
        near = ToolManager([], client.sources())
        near.discover()
        manager.register(Tool("newcomer", "", lambda: "here"))
        until(lambda: near.exists("far.newcomer"))
        manager.unregister("newcomer")
        until(lambda: not near.exists("far.newcomer"))
        near.close()


# --- our own client ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*ERAS, "auto"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_our_own_client_gets_what_our_server_gives(served: str, transport: str, mode: str) -> None:
    here: dict[str, Any] = (
        {"url": served}
        if transport == "http"
        else {"command": PROGRAM[0], "args": PROGRAM[1:], "cwd": str(ROOT)}
    )
    with MCPClient({"far": {**here, "trusted": True, "mode": mode}}) as client:
        manager = ToolManager([], client.sources())
        manager.discover()
        assert manager.get("far.geo.point").annotations == mcp_tools.READS
        assert manager.get("far.geo.point").output_schema == mcp_tools.POINT
        assert manager.call("far.geo.point").structured_content == {"x": 1, "y": None}
        assert manager.call("far.test_image_content").content == (mcp_tools.test_image_content(),)
        assert manager.call("far.test_embedded_resource").content == (
            mcp_tools.test_embedded_resource(),
        )
        assert manager.call("far.test_error_handling").is_error
        with pytest.raises(ToolError, match="b is required"):
            manager.call("far.add", {"a": 1})
        assert manager.health()["far"].ok
        manager.close()


# --- HTTP: access ---


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def post(url: str, message: Any = None, **headers: str) -> Answer:
    """Post a message, by default an `initialize`, and return the answer."""
    host, _, port = url.removeprefix("http://").removesuffix("/mcp").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10)
    body = json.dumps(
        message or {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    )
    all_headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **headers,
    }
    connection.request("POST", "/mcp", body, all_headers)
    response = connection.getresponse()
    answer = Answer(
        response.status,
        {name.lower(): value for name, value in response.getheaders()},
        response.read(),
    )
    connection.close()
    return answer


def test_a_page_in_a_browser_cannot_reach_it(served: str) -> None:
    assert post(served).status == 200
    assert post(served, Host="evil.example.com").status == 421
    assert post(served, Host="127.0.0.1.evil.example.com:80").status == 421
    assert post(served, Origin="https://evil.example.com").status == 403
    assert post(served, Origin="http://localhost:3000").status == 200


def test_who_has_the_token_is_let_in_and_nobody_else() -> None:
    with MCPEndpoint(
        ToolManager([mcp_tools.add]), token="planted-7a61", allowed_hosts=["box.example"]
    ) as endpoint:
        assert post(endpoint.url).status == 401
        assert post(endpoint.url, Authorization="Bearer planted-7a6").status == 401
        assert post(endpoint.url, Authorization="Bearer planted-7a611").status == 401
        assert post(endpoint.url, Authorization="Basic planted-7a61").status == 401
        assert post(endpoint.url, Authorization="Bearer planted-7a61").status == 200
        assert (
            post(endpoint.url, Authorization="bearer planted-7a61", Host="box.example").status
            == 200
        )
        assert (
            post(endpoint.url, Authorization="Bearer planted-7a61", Host="other.example").status
            == 421
        )
        assert "planted" not in repr(endpoint)
        with MCPClient(
            {"far": {"url": endpoint.url, "headers": {"Authorization": "Bearer planted-7a61"}}}
        ) as client:
            assert [tool.name for tool in client.tools()] == ["far.add"]


def test_a_request_of_many_small_values_is_refused_before_it_is_parsed(served: str) -> None:
    def call(values: int) -> Answer:
        return post(
            served, {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": [[]] * values}}
        )

    assert call(20_000).status == 400  # as a short request without a session
    many = call(30_000)
    assert (many.status, b"at most 25,000 are allowed" in many.body) == (413, True)


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.intake.IDLE_SECONDS", 0.2)
    with MCPEndpoint(ToolManager([mcp_tools.add])) as endpoint:
        port = int(endpoint.url.removesuffix("/mcp").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 60) as stalled:
            stalled.sendall(
                f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n"
                "Content-Type: application/json\r\n\r\n{".encode()
            )
            assert stalled.recv(100).startswith(b"HTTP/1.1 408 ")
        assert post(endpoint.url).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "box.example", ""])
def test_another_address_than_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="Give a token"):
        MCPEndpoint(ToolManager(), host)


def test_with_a_token_it_listens_wherever_it_is_told_to() -> None:
    with MCPEndpoint(ToolManager([mcp_tools.add]), "0.0.0.0", token="planted-7a61") as endpoint:
        assert (
            post(endpoint.url, Authorization="Bearer planted-7a61", Host="box.example:8000").status
            == 200
        )
        assert post(endpoint.url, Host="box.example:8000").status == 401


def test_what_cannot_be_is_said_before_anything_is_served() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as occupied,
        pytest.raises(ConfigurationError, match="in use"),
    ):
        MCPEndpoint(ToolManager(), port=occupied.getsockname()[1])
    with pytest.raises(ConfigurationError, match="token takes one or more letters"):
        MCPEndpoint(ToolManager(), token="two words")
    with pytest.raises(ConfigurationError, match="max_calls takes"):
        MCPEndpoint(ToolManager(), max_calls=0)
    from holdfast.serve import mcp

    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        mcp(ToolManager(), http="localhost")


# --- the end ---


def test_closing_ends_calls_listeners_and_threads() -> None:
    began = threading.Event()
    ended: list[bool] = []

    def wait(context: ToolContext) -> None:
        began.set()
        ended.append(context.cancelled.wait(30))

    manager = ToolManager([wait])
    before = set(threading.enumerate())
    endpoint = MCPEndpoint(manager)
    endpoint.start()
    client = MCPClient({"far": {"url": endpoint.url}})
    near = ToolManager([], client.sources())
    near.discover()
    caller = threading.Thread(
        target=lambda: contextlib.suppress(ToolError).__enter__() or near.run(call("far.wait"))
    )
    caller.start()
    assert began.wait(10)
    at = time.monotonic()
    endpoint.close()
    endpoint.close()
    assert time.monotonic() - at < 20
    assert ended == [True]
    caller.join(15)
    near.close()
    client.close()
    until(lambda: {thread for thread in threading.enumerate() if thread not in before} == set())
    with pytest.raises(HoldfastError):
        endpoint.start()


def call(name: str) -> Any:
    from holdfast import ToolCall

    return ToolCall("1", name)


@pytest.mark.slow
def test_a_tool_that_never_returns_does_not_keep_the_endpoint_from_closing() -> None:
    release = threading.Event()

    def never() -> None:
        release.wait(60)

    async def work(client: Any) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.call_tool("never", {}), 0.3)

    endpoint = MCPEndpoint(ToolManager([never]))
    endpoint.start()
    result_of(endpoint.url, "legacy", work)
    at = time.monotonic()
    endpoint.close()
    assert time.monotonic() - at < 20
    release.set()


@pytest.mark.slow
def test_a_manager_that_was_served_works_on_and_can_be_served_again() -> None:
    manager = ToolManager([mcp_tools.add])
    for _ in range(2):
        with MCPEndpoint(manager) as endpoint:
            assert (
                result_of(
                    endpoint.url, "legacy", lambda client: client.call_tool("add", {"a": 1, "b": 2})
                )
                .content[0]
                .text
                == "3"
            )
    assert manager.call("add", {"a": 1, "b": 2}).text == "3"


# --- stdio: the process ---


@pytest.mark.slow
def test_what_tools_and_their_children_print_does_not_get_onto_the_wire() -> None:
    with Process() as server:
        server.hello()
        server.call(1, "loud")
        assert server.read()["result"]["content"][0]["text"] == "read ''"
        server.end_input()
        assert server.ended() == 0
        printed = server.process.stderr.read().decode()  # pyright: ignore[reportOptionalMemberAccess]
    assert all(text in printed for text in ("printed", '"result":{}', "from a child"))


@pytest.mark.slow
def test_garbage_is_answered_with_an_error_and_harms_nothing_else() -> None:
    with Process() as server:
        server.hello()
        server.write(
            b"nonsense\n\n\xff\xfe\x00\n"
            + b"[" * 100_000
            + b'\n{"jsonrpc":"2.0"}\n[1]\n{"jsonrpc":"2.0","id":5,"method":7}\n'
        )
        codes = [server.read()["error"]["code"] for _ in range(6)]
        server.call(1, "add", a=1, b=2)
        assert server.read()["result"]["content"][0]["text"] == "3"
    assert codes == [-32700, -32700, -32700, -32600, -32600, -32600]


@pytest.mark.slow
def test_a_message_in_pieces_and_two_in_one_are_read() -> None:
    with Process() as server:
        server.hello()
        for piece in (
            b'{"jsonrpc":"2.0","id":1,"me',
            b'thod":"ping"}',
            b'\n{"jsonrpc":"2.0","id":2,"method":"ping"}\n{"jsonrpc"',
        ):
            server.write(piece)
            time.sleep(0.05)
        assert {server.read()["id"], server.read()["id"]} == {1, 2}


@pytest.mark.slow
def test_requests_that_are_piped_in_are_answered_before_it_ends() -> None:
    messages = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "sleep", "arguments": {"seconds": 0.2}},
        },
    ]
    input_text = "".join(json.dumps(message) + "\n" for message in messages)
    process = subprocess.run(
        PROGRAM, input=input_text, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
    )
    assert (
        json.loads(process.stdout.splitlines()[-1])["result"]["content"][0]["text"] == "slept 0.2 s"
    )


@pytest.mark.slow
def test_standard_streams_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"jsonrpc":"2.0","id":0,"method":"ping"}\n')
    with open(tmp_path / "in") as input_file, open(tmp_path / "out", "w") as output_file:
        subprocess.run(
            PROGRAM, stdin=input_file, stdout=output_file, cwd=ROOT, timeout=120, check=True
        )
    assert json.loads((tmp_path / "out").read_text())["id"] == 0


@pytest.mark.slow
def test_a_client_that_does_not_read_its_large_result_holds_up_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "told"
    with Process() as server:
        server.hello()
        server.call(1, "large", characters=20_000_000)
        time.sleep(0.5)
        server.call(2, "mark", path=str(file))
        until(lambda: lines(file))  # it runs, though its answer waits behind the other
        assert len(server.read(30)["result"]["content"][0]["text"]) == 20_000_000
        assert server.read()["id"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 15), (signal.SIGINT, 2)])
def test_a_signal_ends_it_and_cancels_what_runs(number: int, code: int, tmp_path: Path) -> None:
    file = tmp_path / "told"
    with Process() as server:
        server.hello()
        server.call(1, "wait_for_cancel", path=str(file))
        until(lambda: lines(file))
        server.process.send_signal(number)
        assert server.ended() == code
    assert lines(file) == ["began", "cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_a_tool_that_never_returns_does_not_keep_the_process(how: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    with Process() as server:
        server.hello()
        server.call(1, "never", path=str(file))
        until(lambda: lines(file))
        if how == "SIGTERM":
            server.process.terminate()
        else:
            server.end_input()
        assert server.ended() == (15 if how == "SIGTERM" else 0)


@pytest.mark.slow
def test_a_client_that_is_killed_in_mid_call_leaves_no_server(tmp_path: Path) -> None:
    file = tmp_path / "told"
    program = (
        "import sys; from holdfast import MCPClient\nclient = MCPClient({'s': {'command':"
        f" {PROGRAM[0]!r}, 'args': {PROGRAM[1:]!r}, 'cwd': {str(ROOT)!r}}}}})\ntools = {{tool.name:"
        " tool for tool in client.tools()}; tools['s.wait_for_cancel'].run({'path':"
        f" {str(file)!r}}})\n"
    )
    with Process(sys.executable, "-c", program) as client:
        until(lambda: lines(file), seconds=20)
        process = subprocess.run(
            ["pgrep", "-P", str(client.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        client.process.kill()
        until(
            lambda: (
                not any(
                    Path(f"/proc/{id}/cmdline").exists()
                    and Path(f"/proc/{id}/cmdline").read_bytes()
                    for id in process
                )
            )
        )
    assert lines(file) == ["began", "cancelled"]


@pytest.mark.slow
def test_over_http_a_killed_client_of_the_newer_era_cancels_its_call(
    served: str, tmp_path: Path
) -> None:
    file = tmp_path / "told"
    program = (
        "import asyncio; from mcp import Client\n"
        f"async def main():\n    async with Client({served!r}, mode='2026-07-28') as client:\n"
        f"        await client.call_tool('wait_for_cancel', {{'path': {str(file)!r}}})\n"
        "asyncio.run(main())\n"
    )
    with Process(sys.executable, "-c", program) as client:
        until(lambda: lines(file), seconds=20)
        client.process.kill()
        until(lambda: len(lines(file)) == 2)
    assert lines(file) == ["began", "cancelled"]


@pytest.mark.slow
def test_over_http_a_signal_ends_the_process() -> None:
    with Process(*PROGRAM, "127.0.0.1:0") as server:
        url = server.process.stdout.readline().decode().strip()  # pyright: ignore[reportOptionalMemberAccess]
        assert post(url).status == 200
        server.process.terminate()
        assert server.ended() == 15


# --- conformance ---

# The scored scenarios of the kit that apply to a server of tools. It has no prompts, resources,
# completion or logging, and asks its clients for nothing (sampling, elicitation, roots,
# `input_required`), so the others do not apply.
OLD = [
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
    "json-schema-2020-12",
    "server-session-lifecycle",
]
NEW = [
    "server-stateless",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "server-sse-multiple-streams",
    "sep-2164-resource-not-found",
    "dns-rebinding-protection",
    "caching",
    "json-schema-2020-12",
    "http-header-validation",
    "http-custom-header-server-validation",
    "input-required-result-missing-input-response",
    "input-required-result-unsupported-methods",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
]
# Checks within these that need more than a server of tools: a tool that demands a capability of
# its client, prompts, resources.
NOT_OURS = {
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2549-prompts-list-caching-hints",
    "sep-2549-resources-list-caching-hints",
    "sep-2549-resources-templates-list-caching-hints",
}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("version", "scenario"),
    [*(("2025-11-25", name) for name in OLD), *(("2026-07-28", name) for name in NEW)],
)
def test_the_conformance_kit_finds_nothing(served: str, version: str, scenario: str) -> None:
    kit = mcp_parts.program("conformance")
    if not kit:
        pytest.skip(f"the conformance kit is not installed: {mcp_parts.INSTALL}")
    command = [
        *kit,
        "server",
        "--url",
        served,
        "--scenario",
        scenario,
        "--spec-version",
        version,
        "--verbose",
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    checks = json.JSONDecoder().raw_decode(output[output.index("[\n") :])[0]
    assert any(check["status"] == "SUCCESS" for check in checks)
    assert {
        check["id"]: check.get("errorMessage")
        for check in checks
        if check["status"] == "FAILURE" and check["id"] not in NOT_OURS
    } == {}
