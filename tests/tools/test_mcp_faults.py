"""Tests of MCP servers that are slow, dead, huge, many or dishonest, and of their leftovers: none."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.context import ToolContext
from holdfast.tools.manager import ToolManager
from holdfast.tools.mcp import MCPClient, MCPPool
from holdfast.tools.mcp.config import read_servers, secret_values
from holdfast.tools.mcp.secrets import redaction, url_without_secrets
from holdfast.tools.tool import Tool
from tests import forks
from tests.leftovers import Owned
from tests.paths import DATA
from tests.waiting import until

DATA = DATA
STDIO: dict[str, Any] = {"command": sys.executable, "args": [str(DATA / "mcp_server.py")]}
ASKING: dict[str, Any] = {"command": sys.executable, "args": [str(DATA / "mcp_asking_server.py")]}
SILENT: dict[str, Any] = {"command": "sleep", "args": ["60"]}

# A shell script starts in a millisecond, so that fifty of them hardly load the machine.
STUB = r"""sleep 0.5
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case $line in
    *'"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}\n' "$id";;
    *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"1"}}}\n' "$id";;
    *'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"pid","inputSchema":{"type":"object"}}]}}\n' "$id";;
    *'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"'$$'"}]}}\n' "$id";;
  esac
done
"""


def shell(script: str) -> dict[str, Any]:
    return {"command": "sh", "args": ["-c", script]}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def by_name(client: MCPClient) -> dict[str, Tool]:
    tools = {tool.name.partition(".")[2]: tool for tool in client}
    assert client.errors == {}
    return tools


# --- an HTTP server with prepared behaviour ---


class Web:
    """A small MCP server over HTTP. `authorizations` are the Authorization headers of its requests."""

    def __init__(self) -> None:
        self.authorizations: list[str | None] = []
        self.redirect = ""
        self.endpoint = ""
        self.refuse = False
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in {
                    "content-type": "application/json",
                    "content-length": str(len(body)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                web.authorizations.append(self.headers["authorization"])
                if web.refuse:
                    self.answer(403)
                elif web.endpoint and not web.redirect:
                    self.answer(
                        200,
                        f"event: endpoint\ndata: {web.endpoint}\n\n".encode(),
                        **{"content-type": "text/event-stream"},
                    )
                elif web.redirect:
                    self.answer(307, location=web.redirect)
                else:
                    self.answer(405)

            def do_POST(self) -> None:
                web.authorizations.append(self.headers["authorization"])
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if web.refuse:
                    self.answer(403)
                elif web.redirect:
                    self.answer(307, location=web.redirect)
                elif "id" not in request:
                    self.answer(202)
                elif request["method"] == "tools/call" and request["params"]["name"] == "drop":
                    self.close_connection = True
                    self.connection.close()
                else:
                    if request["method"] == "tools/call" and request["params"]["name"] == "wait":
                        time.sleep(1.0)
                    self.answer(
                        200,
                        json.dumps(
                            {
                                "jsonrpc": "2.0",
                                "id": request["id"],
                                **web.reply(request, self.headers),
                            }
                        ).encode(),
                    )

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/mcp"

    def reply(self, request: dict[str, Any], headers: Any) -> dict[str, Any]:
        match request["method"]:
            case "initialize":
                info = {"name": "web", "version": "1"}
                return {
                    "result": {
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"tools": {}},
                        "serverInfo": info,
                    }
                }
            case "tools/list":
                return {
                    "result": {
                        "tools": [
                            {"name": name, "inputSchema": {"type": "object"}}
                            for name in ("who", "drop", "wait")
                        ]
                    }
                }
            case "tools/call" if request["params"]["arguments"].get("echo"):
                return {
                    "error": {
                        "code": -32602,
                        "message": (
                            f"no access for {dict(headers)} at {self.url}?api_key=hunter2-query!"
                        ),
                    }
                }
            case "tools/call":
                return {
                    "result": {"content": [{"type": "text", "text": str(headers["authorization"])}]}
                }
            case _:
                return {"error": {"code": -32601, "message": "unknown"}}

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def webs() -> Iterator[list[Web]]:
    running = [Web(), Web()]
    yield running
    for one in running:
        one.stop()


def bearer(web: Web, token: str, **more: Any) -> dict[str, Any]:
    return {"url": web.url, "headers": {"Authorization": f"Bearer {token}"}, **more}


@pytest.mark.slow
def test_a_token_does_not_follow_a_redirect_to_another_origin(webs: list[Web]) -> None:
    webs[0].redirect = webs[1].url
    for kind in ("http", "sse"):
        with MCPClient({"web": bearer(webs[0], "mine", type=kind)}, timeout=5.0) as client:
            assert client.tools() == []
            assert "mine" not in client.errors["web"]
    assert "Bearer mine" in webs[0].authorizations
    assert webs[1].authorizations == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "sse"])
def test_no_error_shows_what_is_secret_of_an_address(webs: list[Web], kind: str) -> None:
    webs[0].refuse = True
    url = webs[0].url.replace("http://", "http://user:hunter2-word@") + "?api_key=hunter2-query"
    with MCPClient({"web": {"url": url, "type": kind, "lazy": True}}, timeout=10.0) as client:
        listing = ToolManager([], client.sources()).call("find_tools", {"query": "x"}).text
        assert "HTTP 403" in listing
        assert client.tools() == []
        health = client.sources()[0].health(5.0)
        assert not health.ok
    assert "hunter2" not in listing + client.errors["web"] + health.detail


def test_no_error_shows_a_token_or_a_header_that_the_server_says_back(webs: list[Web]) -> None:
    headers = {"Authorization": "Bearer hunter2-token", "X-Key": "hunter2"}
    with MCPClient({"web": {"url": webs[0].url, "headers": headers}}) as client:
        who = by_name(client)["who"]
        assert who.remote_name == "who"  # pyright: ignore[reportAttributeAccessIssue]: an MCPTool
        with pytest.raises(ToolError) as caught:
            who.run({"echo": True})
    assert "no access for" in str(caught.value)
    assert "/mcp" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_no_error_shows_the_environment_of_a_server() -> None:
    script = (
        "echo starting with level info >&2; echo refused: $KEY and $PEM in informal >&2; exit 3"
    )
    env = {
        "KEY": "hunter2",
        "PEM": "-----BEGIN hunter2-----\nMIIhunter2/x\n-----END hunter2-----",
        "LEVEL": "info",
        "ON": "1",
    }
    with MCPClient({"own": {**shell(script), "env": env}}, timeout=10.0) as client:
        assert client.tools() == []
    assert "refused: *** and" in client.errors["own"]
    assert "in informal" in client.errors["own"]
    assert "hunter2" not in client.errors["own"]


def test_tokens_and_queries_are_taken_out_of_a_text_and_nothing_else_is() -> None:
    (server,) = read_servers({"a": {"url": "http://[broken"}}).values()
    redact = redaction(secret_values(server))
    assert redact("see https://u:p@h/x?key=1#f, or http://h/y.") == "see https://h/x or http://h/y."
    assert (
        redact("sent 'Bearer abc12345.x'; Bearer authentication is needed")
        == "sent 'Bearer ***'; Bearer authentication is needed"
    )
    assert url_without_secrets("http://h/a@b?c") == "http://h/a@b"


def test_the_repr_of_a_server_shows_no_secret() -> None:
    section = {
        "a": {"command": "run", "env": {"KEY": "hunter2"}, "args": ["--key", "hunter2"]},
        "b": {"url": "https://u:hunter2@h/mcp?key=hunter2", "headers": {"X-Key": "hunter2"}},
    }
    assert repr(read_servers(section)) == "{'a': Stdio('run'), 'b': Http('https://h/mcp')}"


def test_an_sse_server_cannot_have_messages_sent_to_another_origin(webs: list[Web]) -> None:
    webs[0].endpoint = webs[1].url
    with MCPClient({"web": bearer(webs[0], "mine", type="sse")}, timeout=5.0) as client:
        assert client.tools() == []
        assert "another origin" in client.errors["web"]
    assert webs[1].authorizations == []


def test_one_id_with_two_tokens_is_two_connections_even_in_one_pool(webs: list[Web]) -> None:
    with MCPPool() as pool:
        clients = [
            MCPClient({"web": bearer(webs[0], token)}, pool=pool) for token in ("first", "second")
        ]
        tools = [by_name(client)["who"] for client in clients]
        assert [tool.run({}).text for tool in tools] == ["Bearer first", "Bearer second"]
        assert len(pool) == 2
        for text in (repr(pool), repr(clients), repr(clients[0].sources())):
            assert "first" not in text


@pytest.mark.slow
def test_a_connection_that_breaks_off_harms_only_the_call_on_it(webs: list[Web]) -> None:
    with MCPClient({"web": bearer(webs[0], "t")}) as client:
        tools = by_name(client)
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(tools["wait"].run({}).text))
        thread.start()
        time.sleep(0.2)
        with pytest.raises(ToolError, match="went away during the call") as caught:
            tools["drop"].run({})
        assert caught.value.error_type == "network"
        thread.join()
        assert texts == ["Bearer t"]
        assert tools["who"].run({}).success


# --- many ---


@pytest.mark.slow
def test_fifty_servers_of_which_ten_are_dead_are_discovered_side_by_side() -> None:
    dead = [{"command": "/no/such/command"}, shell("exit 3"), {"url": "http://127.0.0.1:9/mcp"}]
    config = {f"s{n}": shell(STUB) if n % 5 else dead[n % 3] for n in range(50)}
    before = Owned()
    with MCPClient(config) as client:
        started = time.monotonic()
        tools = client.tools()
        assert time.monotonic() - started < 15.0  # one after the other they take 20
        assert len(tools) == 40
        assert len(client.errors) == 10
        assert len({tool.run({}).text for tool in tools}) == 40
    before.wait_until_released()


@pytest.mark.slow
def test_thirty_two_threads_that_discover_at_once_start_one_server_and_see_the_same() -> None:
    before = Owned()
    with MCPClient({"a": STDIO}) as client:
        [source] = client.sources()
        lists: list[list[str]] = []
        barrier = threading.Barrier(32)

        def discover(number: int) -> None:
            barrier.wait()
            lists.append(
                [tool.name for tool in (source.discover() if number % 2 else client.tools())]
            )

        threads = [threading.Thread(target=discover, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(lists) == 32
        assert all(names == lists[0] for names in lists)
        assert before.new_children() == 1
    before.wait_until_released()


@pytest.mark.slow
def test_one_connection_is_shared_in_a_pool_and_ends_with_its_last_user() -> None:
    before = Owned()
    pool = MCPPool()
    first, second = MCPClient({"a": STDIO}, pool=pool), MCPClient({"a": STDIO}, pool=pool)
    alone = MCPClient({"a": STDIO})
    pids = [by_name(client)["pid"].run({}).data["result"] for client in (first, second, alone)]
    assert pids[0] == pids[1] != pids[2]
    assert len(pool) == 1
    first.close()
    assert by_name(second)["pid"].run({}).data["result"] == pids[0]
    second.close()
    assert not alive(pids[0])
    assert len(pool) == 0
    assert by_name(first)["pid"].run({}).success  # used again, it connects again
    pool.close()
    assert by_name(first)["pid"].run({}).success
    first.close()
    alone.close()
    before.wait_until_released()


@pytest.mark.slow
def test_what_tells_connections_apart_is_not_shared(tmp_path: Path) -> None:
    with MCPPool() as pool:
        variants: list[MCPClient] = [
            MCPClient({"a": STDIO}, pool=pool),
            MCPClient({"b": STDIO}, pool=pool),
            MCPClient({"a": {**STDIO, "env": {"X": "1"}}}, pool=pool),
            MCPClient({"a": STDIO}, pool=pool, elicit=lambda question: None),
            MCPClient({"a": STDIO}, pool=pool, stderr_dir=tmp_path),
        ]
        assert len({by_name(client)["pid"].run({}).data["result"] for client in variants}) == len(
            variants
        )


# --- slow ---


@pytest.mark.slow
def test_a_close_while_a_silent_server_is_being_connected_to_takes_effect_at_once() -> None:
    before = Owned()
    client = MCPClient({"mute": SILENT, "good": STDIO})
    failed: list[ToolError] = []

    def discover() -> None:
        try:
            client.sources()[0].discover()
        except ToolError as error:
            failed.append(error)

    thread = threading.Thread(target=discover)
    thread.start()
    until(lambda: before.new_children() > 0)
    started = time.monotonic()
    client.close()
    thread.join()
    assert time.monotonic() - started < 8
    assert [error.error_type for error in failed] == ["network"]
    assert "'mute': the client was closed" in str(failed[0])
    before.wait_until_released()


def test_a_cancel_while_connecting_takes_effect_at_once() -> None:
    context = ToolContext()
    with MCPClient({"mute": SILENT}) as client:
        threading.Timer(0.2, context.cancelled.cancel).start()
        started = time.monotonic()
        with pytest.raises(ToolCancelled):
            client.sources()[0].call("any", {}, context)
        assert time.monotonic() - started < 8


@pytest.mark.slow
def test_a_health_check_takes_no_longer_than_it_may(webs: list[Web]) -> None:
    with MCPClient(
        {
            "mute": SILENT,
            "good": STDIO,
            "web": bearer(webs[0], "t"),
            "gone": {"command": "/no/such"},
        }
    ) as client:
        mute, good, web, missing = client.sources()
        started = time.monotonic()
        assert not mute.health(0.3).ok
        assert time.monotonic() - started < 8
        assert good.health(10.0).ok
        assert "MCP 2026-07-28" in good.health(10.0).detail
        assert web.health(5.0).detail == "web 1, MCP 2025-11-25"  # it declared that it has no ping
        assert not missing.health(5.0).ok
        assert "/no/such" in missing.health(5.0).detail


@pytest.mark.slow
def test_a_server_that_stops_reading_holds_up_neither_the_call_nor_the_close() -> None:
    deaf = shell(
        STUB.replace(
            "while read -r line; do", "n=0; while [ $n -lt 4 ] && read -r line; do n=$((n+1))"
        )
        + "exec sleep 60"
    )
    before = Owned()
    client = MCPClient({"deaf": {**deaf, "call_timeout": 0.5}})
    pid = by_name(client)["pid"]
    started = time.monotonic()
    with pytest.raises(ToolTimeout):
        pid.run({"much": "x" * 5_000_000})
    assert time.monotonic() - started < 20
    client.close()  # it does not end at the end of its stdin either: SIGTERM after two seconds
    assert time.monotonic() - started < 30.0
    before.wait_until_released()


@pytest.mark.slow
def test_each_server_may_have_timeouts_of_its_own() -> None:
    with MCPClient(
        {"mute": {**SILENT, "timeout": 0.3}, "good": {**STDIO, "timeout": 20}}, timeout=60.0
    ) as client:
        started = time.monotonic()
        assert len(client.tools()) > 5
        assert time.monotonic() - started < 10.0
        assert client.errors == {"mute": "MCP server 'mute' did not answer within 0.3 s."}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout", 0),
        ("call_timeout", -1),
        ("mode", "2027"),
        ("lazy", "yes"),
        ("timeout", float("nan")),
    ],
)
def test_a_wrong_setting_of_a_server_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"MCP server 'a': {key}"):
        MCPClient({"a": {**STDIO, key: value}})


@pytest.mark.slow
def test_a_server_of_another_era_than_the_configured_is_refused() -> None:
    with MCPClient({"old": {**shell(STUB), "mode": "2026-07-28"}}) as client:
        assert client.tools() == []
        assert (
            "it speaks MCP 2025-11-25, and its configuration says mode 2026-07-28"
            in client.errors["old"]
        )


# --- huge ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["2025-11-25", "2026-07-28"])
def test_a_result_of_twenty_megabytes_arrives_over_stdio(mode: str) -> None:
    with MCPClient({"a": {**ASKING, "mode": mode}}) as client:
        assert len(by_name(client)["big"].run({"megabytes": 20}).text) == 20 * 1024 * 1024


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "mode"), [("http", "2025-11-25"), ("http", "2026-07-28"), ("sse", "auto")]
)
def test_a_result_of_twenty_megabytes_arrives_over_http(kind: str, mode: str) -> None:
    with forks.Popen(
        [sys.executable, *ASKING["args"], kind], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}/{'mcp' if kind == 'http' else 'sse'}"
        with MCPClient({"a": {"url": address, "type": kind, "mode": mode}}) as client:
            assert len(by_name(client)["big"].run({"megabytes": 20}).text) == 20 * 1024 * 1024
        process.terminate()


@pytest.mark.slow
def test_stderr_is_kept_in_a_file_where_asked_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.tools.mcp import stdio

    loud = shell("echo the first line >&2; " + STUB)
    with MCPClient({"loud": loud}, stderr_dir=tmp_path) as client:
        by_name(client)
    file = tmp_path / "loud.log"
    assert file.read_text() == "the first line\n"
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(stdio, "_MAX_KEPT_BYTES", 8000)
    monkeypatch.setattr(stdio, "_TRIM_SECONDS", 0.05)
    chatter = "(while :; do echo a line of a server that says much >&2; sleep 0.0005; done) & "
    with MCPClient({"loud": shell(chatter + STUB)}, stderr_dir=tmp_path) as client:
        by_name(client)
        sizes: list[int] = []
        for _ in range(60):
            sizes.append(file.stat().st_size)
            time.sleep(0.02)
        assert any(after < before for before, after in itertools.pairwise(sizes)), (
            "it was never cut"
        )
    with pytest.raises(ConfigurationError, match="stderr_dir takes a folder"):
        MCPClient({}, stderr_dir=tmp_path / "none")


# --- leftovers ---


@pytest.mark.slow
def test_the_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with MCPClient({"parent": shell(f"sleep 60 & echo $! > {pid}; " + STUB)}) as client:
        by_name(client)
        child = int(pid.read_text())
        assert alive(child)
    until(lambda: not alive(child))


@pytest.mark.slow
def test_a_server_whose_child_holds_its_stdout_is_seen_to_die() -> None:
    with MCPClient({"parent": shell("sleep 60 & " + STUB)}) as client:
        tool = by_name(client)["pid"]
        first = tool.run({}).text
        os.kill(int(first), signal.SIGKILL)
        until(lambda: not alive(int(first)))
        time.sleep(0.3)
        assert tool.run({}).text != first


@pytest.mark.slow
def test_a_server_ends_at_the_end_of_its_stdin_when_this_process_is_killed() -> None:
    source = (
        "import os, sys, signal; from holdfast.tools.mcp import MCPClient\nc = MCPClient({'a':"
        f" {{'command': sys.executable, 'args': [{STDIO['args'][0]!r}]}}, 'b': {{'command': 'sh',"
        f" 'args': ['-c', {STUB!r}]}}}})\nt = {{t.name: t for t in c}};"
        " print(t['a.pid'].run({}).data['result'], t['b.pid'].run({}).text,"
        " flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    process = forks.run(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert process.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in process.stdout.split()]
    assert len(pids) == 2
    until(lambda: not any(alive(pid) for pid in pids))
