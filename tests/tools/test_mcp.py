"""Tests of MCP servers as tools: real server processes, over stdio and HTTP, and every kind of
misbehaviour."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ImageContent, ScriptedLLM, TextContent, ToolManager
from holdfast.content import AudioContent, EmbeddedResource, ResourceLink
from holdfast.errors import (
    ConfigurationError,
    ToolCancelled,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    ToolValidationError,
)
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import MCPClient
from holdfast.tools.mcp.config import read_servers
from holdfast.tools.tool import Tool
from tests import forks
from tests.leftovers import Owned
from tests.paths import DATA
from tests.waiting import until

SERVER = str(DATA / "mcp_server.py")
STDIO: dict[str, Any] = {"command": sys.executable, "args": [SERVER]}
TOKEN = "s3cret-token"
NAMES = ["add", "fail", "refuse", "slow", "image", "everything", "environment", "pid", "die"]


def program(source: str) -> dict[str, Any]:
    """Return the entry of a program that is no MCP server."""
    return {"command": sys.executable, "args": ["-c", source]}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name.partition(".")[2]: tool for tool in tools}


@pytest.fixture(scope="module")
def shared() -> Iterator[MCPClient]:
    """Yield a client with one good server, for tests that do not harm it. Its thread is older than
    any test and ends after the last."""
    with MCPClient({"mcpServers": {"srv": STDIO}}) as client:
        client.tools()
        yield client


@pytest.fixture
def tools(shared: MCPClient) -> dict[str, Tool]:
    return by_name(shared.tools())


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MCPClient]:
    """Yield another client, whose server is trusted, has an environment and a folder of its own,
    and may be killed."""
    server = {**STDIO, "trusted": True, "env": {"MINE": "1"}, "cwd": tmp_path_factory.mktemp("cwd")}
    with pytest.MonkeyPatch.context() as patch, MCPClient({"srv": server}) as client:
        patch.setenv("OPENAI_API_KEY", TOKEN)
        client.tools()
        yield client


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with forks.Popen(
        [sys.executable, SERVER, "http", TOKEN], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.terminate()


# --- without a server ---


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, {}, {"mcpServers": {}}])
def test_a_config_without_servers_gives_no_tools_and_starts_nothing(config: Any) -> None:
    before = Owned()
    with MCPClient(config) as client:
        assert [*client] == client.tools() == []
        assert before.new() == []


def test_importing_the_room_loads_neither_mcp_nor_asyncio() -> None:
    source = (
        "import sys; from holdfast.tools.mcp import MCPClient; c = MCPClient({'a': {'command':"
        " 'x'}}); MCPClient().tools(); c.close();print([m for m in ('mcp', 'mcp_types', 'asyncio',"
        " 'anyio', 'httpx2', 'pydantic') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"a": {"comand": "x", "url": "http://x"}},
            "MCP server 'a' has an unknown key 'comand'.*takes: url",
        ),
        (
            {"a": {"command": "x", "arg": []}},
            "MCP server 'a' has an unknown key 'arg'. Did you mean 'args'",
        ),
        ({"a": {"command": "x", "args": "y"}}, "MCP server 'a': args: Expected `array`, got `str`"),
        (
            {"a": {"command": "x", "env": {"KEY": 1}}},
            "MCP server 'a': env: Expected `str`, got `int`",
        ),
        ({"a": {"command": "x", "trusted": "yes"}}, "MCP server 'a': trusted"),
        ({"a": {"url": "http://x", "type": "ws"}}, "MCP server 'a': type: .*'ws'"),
        ({"a": {"url": "ftp://x"}}, "MCP server 'a': url takes"),
        (
            {"a": {"command": "x", "url": "http://x"}},
            "MCP server 'a' takes .* either command .* or url",
        ),
        ({"a": {}}, "MCP server 'a' takes"),
        ({"a": "x"}, "MCP server 'a' takes"),
        ({"": {"command": "x"}}, "MCP server '': an id takes"),
        ({"a.b": {"url": "http://x"}, "a_b": {"command": "x"}}, "two servers named 'a_b'"),
        ({"a": {"command": "x", "excludeTools": ["y"]}}, "'a': excludeTools is not read; name"),
        ({"a": {"command": "x", "envFile": ".env"}}, "'a': envFile is not read; no file"),
        ({"a": {"url": "http://x", "oauth": {"clientId": "1"}}}, "'a': oauth is not read; a login"),
        ({"a": {"httpUrl": "http://x", "url": "http://y"}}, "httpUrl and url are the same"),
        ({"servers": {"a": {"command": "x"}}, "b": {"command": "y"}}, "b beside servers"),
        ({"mcpServers": {}, "mcpServer": {}}, "mcpServer beside mcpServers"),
        ({"mcpServers": []}, "config takes a mapping"),
        ({"a": {"url": "http://x", "bearer_token_env_var": "T"}}, "bearer_token_env_var .*Bearer"),
        ({"a": {"command": "x", "env_vars": ["T"]}}, "env_vars is not read; write env"),
        ({"a": {"url": "http://x", "requestInit": {"mode": "cors"}}}, "requestInit has mode"),
        ([], "config takes a mapping"),
    ],
)
def test_a_wrong_config_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MCPClient(config)


LOCAL = {"command": "npx", "args": ["-y", "x"], "env": {"A": "b"}}
REMOTE = {"url": "https://x.example/mcp", "headers": {"K": "v"}}


@pytest.mark.parametrize(
    ("config", "servers", "warning"),
    [
        ({"mcpServers": {"a": LOCAL}, "theme": "dark"}, {"a": LOCAL}, "theme beside mcpServers"),
        ({"servers": {"a": LOCAL}, "inputs": []}, {"a": LOCAL}, "inputs beside servers"),
        ({"context_servers": {"a": LOCAL}}, {"a": LOCAL}, ""),
        (
            {"mcpServers": {"a": LOCAL}, "author": {"name": "n", "url": "http://x"}},
            {"a": LOCAL},
            "author beside mcpServers",
        ),
        ({"mcp": {"servers": {"a": LOCAL}, "inputs": []}}, {"a": LOCAL}, ""),
        (
            {"mcp": {"a": {"type": "local", "command": ["npx", "-y", "x"], "enabled": True}}},
            {"a": {"type": "stdio", "command": "npx", "args": ["-y", "x"]}},
            "",
        ),
        ({"servers": LOCAL}, {"servers": LOCAL}, ""),
        ({"mcp": REMOTE}, {"mcp": REMOTE}, ""),
        ({"a": {"httpUrl": "http://x"}}, {"a": {"url": "http://x"}}, ""),
        (
            {"a": {"serverUrl": "http://x", "type": "remote"}},
            {"a": {"url": "http://x", "type": "http"}},
            "",
        ),
        (
            {"a": {**LOCAL, "disabled": False, "autoApprove": ["f"], "description": "d"}},
            {"a": LOCAL},
            "a: autoApprove is ignored; a: description is ignored",
        ),
        ({"a": {**LOCAL, "disabled": True}, "b": REMOTE}, {"b": REMOTE}, "a is disabled"),
        ({"a": {**LOCAL, "timeout": 60}}, {"a": {**LOCAL, "timeout": 60}}, ""),
        ({"a": {**LOCAL, "timeout": 60000}}, {"a": {**LOCAL, "timeout": 60.0}}, "milliseconds"),
        ({"a": {**LOCAL, "includeTools": ["f"]}}, {"a": {**LOCAL, "tools": ["f"]}}, ""),
        ({"org.a b/c": LOCAL}, {"org_a_b_c": LOCAL}, "'org.a b/c' is named 'org_a_b_c' here"),
        ({"a": {**LOCAL, "_note": "x"}}, {"a": LOCAL}, "_note is ignored"),
        # Codex
        (
            {"mcp_servers": {"a": {**LOCAL, "startup_timeout_ms": 20_000, "tool_timeout_sec": 9}}},
            {"a": {**LOCAL, "timeout": 20.0, "call_timeout": 9}},
            "",
        ),
        (
            {"a": {"url": "http://x", "http_headers": {"K": "v"}, "enabled_tools": ["f"]}},
            {"a": {"url": "http://x", "headers": {"K": "v"}, "tools": ["f"]}},
            "",
        ),
        # Goose
        (
            {
                "extensions": {
                    "a": {"type": "stdio", "cmd": "npx", "args": ["-y", "x"], "envs": {"A": "b"}},
                    "web": {"type": "streamable_http", "uri": "http://x"},
                    "developer": {"type": "builtin", "name": "developer"},
                }
            },
            {"a": {**LOCAL, "type": "stdio"}, "web": {"url": "http://x", "type": "http"}},
            "developer is disabled",
        ),
        # Zed, and Copilot in JetBrains
        ({"context_servers": {"a": {"source": "custom", **LOCAL}}}, {"a": LOCAL}, "source is"),
        (
            {
                "a": {
                    "command": {"path": "npx", "args": ["-y", "x"], "env": {"A": "b"}},
                    "settings": {},
                }
            },
            {"a": LOCAL},
            "",
        ),
        (
            {"a": {"url": "https://x.example/mcp", "requestInit": {"headers": {"K": "v"}}}},
            {"a": REMOTE},
            "",
        ),
    ],
)
def test_configurations_of_other_programs_keep_their_meaning(
    config: Any, servers: Any, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        agent = Agent(ScriptedLLM([]), mcp_servers=config)
    assert agent.mcp_servers == servers
    assert read_servers(config) == read_servers(servers)
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.messages)


@pytest.mark.parametrize(
    "server",
    [
        {"command": "x", "env": {"T": "${GITHUB_TOKEN}"}},
        {"url": "http://x", "headers": {"Authorization": "Bearer ${input:token}"}},
        {"url": "http://${env:HOST}/mcp"},
        {"url": "http://x", "headers": {"Authorization": "Bearer $GITHUB_TOKEN"}},
        {"command": "x", "env": {"T": "$GITHUB_TOKEN"}},
    ],
)
def test_a_placeholder_that_nothing_fills_is_named(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        MCPClient({"a": server})
    assert "MCP server 'a': nothing fills $" in caplog.text


def test_a_dollar_within_a_value_is_no_placeholder(caplog: pytest.LogCaptureFixture) -> None:
    MCPClient({"a": {"command": "x", "env": {"PASSWORD": "pa$WORD", "PRICE": "5 $US off"}}})
    assert caplog.text == ""


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0},
        {"timeout": None},
        {"timeout": "1"},
        {"call_timeout": -1},
        {"call_timeout": True},
    ],
)
def test_a_wrong_timeout_is_refused_by_name(option: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        MCPClient({}, **option)


def test_a_config_error_never_shows_a_value_of_env_or_headers() -> None:
    for server in ({"command": "x", "env": TOKEN}, {"url": "http://x", "headers": {"k": [TOKEN]}}):
        with pytest.raises(ConfigurationError) as caught:
            MCPClient({"a": server})
        assert TOKEN not in str(caught.value)


# --- a good server ---


@pytest.mark.slow
def test_a_client_adds_to_a_list_of_tools(shared: MCPClient) -> None:
    tools: list[Tool] = []
    tools += shared
    assert (
        [tool.name for tool in tools]
        == [f"srv.{name}" for name in NAMES]
        == [tool.name for tool in [*shared]]
    )
    assert shared.errors == {}


def test_a_tool_keeps_its_description_and_both_schemas(tools: dict[str, Tool]) -> None:
    add = tools["add"]
    assert (add.tool_type, add.category, add.description) == (
        "mcp_tool",
        "mcp",
        "Adds two numbers.",
    )
    assert add.input_schema["properties"]["b"] == {
        "default": 1,
        "description": "what is added",
        "title": "B",
        "type": "integer",
    }
    assert add.input_schema["required"] == ["a"]
    assert add.output_schema is not None
    assert add.output_schema["properties"]["total"]["type"] == "integer"


def test_a_structured_result_arrives_as_data_and_as_text(tools: dict[str, Tool]) -> None:
    result = tools["add"].run({"a": 1, "b": 2})
    assert result.success
    assert result.data == {"total": 3}
    assert '"total": 3' in result.text


def test_arguments_are_held_against_the_schema_before_the_server_is_asked(
    tools: dict[str, Tool],
) -> None:
    with pytest.raises(ToolValidationError, match="a is required"):
        tools["add"].run({"b": 2})


@pytest.mark.slow
def test_an_error_that_the_tool_reports_is_a_result_of_unknown_kind(tools: dict[str, Tool]) -> None:
    result = tools["fail"].run({})
    assert result.is_error
    assert "fail" in result.text
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("unknown", result.text)


def test_every_kind_of_block_and_the_meta_arrive(tools: dict[str, Tool]) -> None:
    assert tools["image"].run({}).content == (ImageContent(b"\x89PNG...", "image/png"),)
    result = tools["everything"].run({})
    assert result.content == (
        TextContent("text"),
        AudioContent(b"RIFF", "audio/wav"),
        ResourceLink("file:///a.txt", "a", "text/plain"),
        EmbeddedResource({"uri": "file:///b.txt", "mimeType": "text/plain", "text": "b"}),
    )
    assert result.meta == {"exitCode": 7}


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-32602, "validation"), (-32601, "not_found"), (-32603, "internal"), (-32050, "internal")],
)
def test_a_protocol_error_is_classified_by_its_code(
    tools: dict[str, Tool], code: int, kind: str
) -> None:
    with pytest.raises(
        ToolError, match=r"'srv' failed the call: refused by the server\."
    ) as caught:
        tools["refuse"].run({"code": code})
    assert caught.value.error_type == kind


@pytest.mark.slow
def test_annotations_count_only_if_the_server_is_trusted(
    tools: dict[str, Tool], trusted: MCPClient
) -> None:
    assert not tools["add"].annotations.repeatable
    add = by_name(trusted.tools())["add"]
    assert (add.annotations.read_only, add.annotations.open_world, add.annotations.destructive) == (
        True,
        False,
        True,
    )


def test_no_secret_of_this_process_reaches_a_server(trusted: MCPClient) -> None:
    environment = by_name(trusted.tools())["environment"].run({}).data
    assert os.environ["OPENAI_API_KEY"] == TOKEN
    assert environment["MINE"] == "1"
    assert set(environment) <= {
        "HOME",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "USER",
        "MINE",
        "LC_CTYPE",
    }  # Python sets the last one itself


def test_calls_from_many_threads_share_one_connection(shared: MCPClient) -> None:
    pids: list[int] = []
    pid = by_name(shared.tools())["pid"]
    threads = [
        threading.Thread(target=lambda: pids.append(pid.run({}).data["result"])) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 20
    assert len(set(pids)) == 1


def test_an_agent_calls_a_tool_by_its_wire_name(shared: MCPClient) -> None:
    model = ScriptedLLM(
        [("srv__add", {"a": 20, "b": 22}), lambda request: f"It says {request.text}"]
    )
    with Conversation(Agent(model, [*shared])) as conversation:
        conversation.send_message("What is 20 + 22?")
        state = conversation.run()
    assert '"total": 42' in state.answer
    assert "srv__add" in [tool["function"]["name"] for tool in model.requests[0].json["tools"]]


@pytest.mark.slow
def test_an_agent_brings_in_the_tools_of_its_servers_and_ends_them_with_its_last_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ask(request: Any) -> Any:
        return ("srv__pid", {}) if request.messages[-1]["role"] == "user" else request.text

    def mine() -> str:
        """Local tools stand first."""
        return "mine"

    agent = Agent(
        ScriptedLLM(ask),
        [mine],
        mcp_servers={"srv": STDIO, "absent": {"command": "no-such-server"}},
    )
    assert [tool.name for tool in agent.tools.list_tools()] == ["mine"]  # nothing is started yet
    pids: list[int] = []
    for _ in range(2):
        with Conversation(agent) as first, Conversation(agent) as second:
            for conversation in (first, second):
                conversation.send_message("Who serves?")
                pids.append(int(re.findall(r"\d+", conversation.run().answer)[0]))
            first.close()
            os.kill(pids[-1], 0)  # the second conversation still has it
        with pytest.raises(ProcessLookupError):
            os.kill(pids[-1], 0)
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert [tool.name for tool in agent.tools.list_tools()][:2] == ["mine", "srv.add"]
    assert "no-such-server" in caplog.text


# --- cancelling and timeouts ---


def test_a_cancelled_call_ends_at_once_and_the_server_is_told(
    tools: dict[str, Tool], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    context = ToolContext()

    def cancel() -> None:
        until(lambda: file.exists() and file.read_text() == "begun")
        context.cancelled.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    started = time.monotonic()
    with pytest.raises(ToolCancelled, match=r"'srv.slow' was cancelled"):
        tools["slow"].run({"path": str(file)}, context)
    assert time.monotonic() - started < 20.0
    thread.join()
    until(lambda: file.read_text() == "cancelled")
    assert tools["add"].run({"a": 1}).data == {"total": 2}


def test_a_call_that_was_cancelled_before_it_began_is_not_sent(
    tools: dict[str, Tool], tmp_path: Path
) -> None:
    context = ToolContext()
    context.cancelled.cancel()
    with pytest.raises(ToolCancelled):
        tools["slow"].run({"path": str(tmp_path / "file")}, context)
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
def test_a_call_ends_at_its_timeout_and_the_server_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with MCPClient({"srv": STDIO}, call_timeout=0.5) as client:
        tools = by_name(client.tools())
        with pytest.raises(ToolTimeout, match=r"'srv.slow' did not answer within 0.5 s"):
            tools["slow"].run({"path": str(file)})
        until(lambda: file.read_text() == "cancelled")
        assert tools["add"].run({"a": 1}).success


# --- bad servers ---


@pytest.mark.slow
def test_a_bad_server_harms_only_itself_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "missing": {"command": "/no/such/command"},
        "exits": program("import sys; sys.exit('the key is missing')"),
        "garbage": program("import sys; print('Hello!', flush=True); sys.stdin.read()"),
        "silent": program(
            "import sys; sys.stderr.write('thinking'); sys.stderr.flush(); sys.stdin.read()"
        ),
        "unreachable": {"url": "http://127.0.0.1:9/mcp"},
        "srv": STDIO,
    }
    before = Owned()
    started = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, logger="holdfast"),
        MCPClient(config, timeout=10.0) as client,
    ):
        assert [tool.name for tool in client.tools()] == [f"srv.{name}" for name in NAMES]
        assert time.monotonic() - started < 60.0
        errors = client.errors
        assert by_name(client.tools())["add"].run({"a": 1}).success
    assert set(errors) == set(config) - {"srv"}
    assert "could not be connected to: FileNotFoundError" in errors["missing"]
    assert "'/no/such/command'" in errors["missing"]
    assert "ended before it answered. Its stderr ended with: the key is missing" in errors["exits"]
    assert (
        "did not answer within 10 s. Its stdout has text that is not JSON-RPC." in errors["garbage"]
    )
    assert "did not answer within 10 s. Its stderr ended with: thinking" in errors["silent"]
    assert "ConnectError" in errors["unreachable"]
    assert sorted(
        record.getMessage() for record in caplog.records if record.name == "holdfast.tools.mcp"
    ) == sorted(errors.values())
    before.wait_until_released()


@pytest.mark.slow
def test_a_silent_server_that_will_not_end_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    stubborn = program(
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f" open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    started = time.monotonic()
    with MCPClient({"mute": stubborn}, timeout=1.0) as client:
        assert client.tools() == []
        assert time.monotonic() - started < 20
        assert client.errors == {"mute": "MCP server 'mute' did not answer within 1 s."}
        os.kill(int(file.read_text()), signal.SIGKILL)  # else `close` takes the 4 s that it should


@pytest.mark.slow
def test_a_tool_that_cannot_be_used_harms_only_itself() -> None:
    source = (
        "from mcp.server import MCPServer\nserver = MCPServer('x')\n"
        "for name in ('good', 'not a name', 'long' * 40): server.add_tool(lambda: 1, name=name)\n"
        "server.run()"
    )
    with MCPClient({"srv": program(source)}) as client:
        assert [tool.name for tool in client] == ["srv.good"]
        assert set(client.errors) == {"srv.not a name", "srv." + "long" * 40}


@pytest.mark.slow
def test_tools_whose_wire_names_collide_do_not_break_the_agent() -> None:
    def server(name: str) -> dict[str, Any]:
        return program(
            "from mcp.server import MCPServer\ns = MCPServer('x')\ns.add_tool(lambda: 1,"
            f" name={name!r})\ns.run()"
        )

    with MCPClient({"a": server("b__c"), "a__b": server("c")}) as client:
        assert len(ToolManager(client).list_tools()) == 1
        assert set(client.errors) == {"a__b.c"}


# --- servers that die ---


@pytest.mark.slow
def test_a_server_killed_during_a_call_fails_it_at_once_and_the_next_call_reconnects(
    trusted: MCPClient,
) -> None:
    tools = by_name(trusted.tools())
    first = tools["pid"].run({}).data["result"]
    started = time.monotonic()
    with pytest.raises(
        ToolError, match=r"'srv' went away during the call.*about to be killed"
    ) as caught:
        tools["die"].run({})
    assert time.monotonic() - started < 20.0
    assert caught.value.error_type == "network"
    assert tools["pid"].run({}).data["result"] != first


@pytest.mark.slow
def test_a_server_killed_between_calls_is_started_again_by_the_next_one(trusted: MCPClient) -> None:
    pid = by_name(trusted.tools())["pid"]
    first = pid.run({}).data["result"]
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    # wait until its stdout is read to the end; a call before that gets the error instead
    time.sleep(0.05)
    assert pid.run({}).data["result"] != first


# --- closing ---


@pytest.mark.slow
def test_close_leaves_no_process_thread_or_descriptor_and_may_be_repeated(tmp_path: Path) -> None:
    before = Owned()
    client = MCPClient({"one": STDIO, "two": STDIO})
    assert len(client.tools()) == 2 * len(NAMES)
    assert before.new()
    client.close()
    before.wait_until_released()
    client.close()


@pytest.mark.slow
def test_a_closed_client_works_again_and_so_do_the_tools_that_it_made() -> None:
    client = MCPClient({"srv": STDIO})
    old = by_name(client.tools())["add"]
    client.close()
    assert old.run({"a": 1}).data == {"total": 2}
    assert len(client.tools()) == len(NAMES)
    client.close()


@pytest.mark.slow
def test_a_call_that_runs_while_the_client_closes_is_told(tmp_path: Path) -> None:
    client = MCPClient({"srv": STDIO})
    slow = by_name(client.tools())["slow"]
    errors: list[BaseException] = []

    def call() -> None:
        try:
            slow.run({"path": str(tmp_path / "file")})
        except ToolError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: (tmp_path / "file").exists())
    client.close()
    thread.join(30)
    assert [getattr(error, "error_type", "") for error in errors] == ["network"]


@pytest.mark.slow
def test_servers_that_ignore_sigterm_are_killed_side_by_side() -> None:
    stubborn = {"command": sys.executable, "args": [SERVER, "stubborn"]}
    client = MCPClient({"one": stubborn, "two": stubborn})
    pids = [tool.run({}).data["result"] for tool in client if tool.name.endswith(".pid")]
    assert len(pids) == 2
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 7.0  # a single one takes 4
    assert not any(alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_client_that_is_dropped_ends_its_servers() -> None:
    client = MCPClient({"srv": STDIO})
    pid = by_name(client.tools())["pid"].run({}).data["result"]
    del client
    gc.collect()
    until(lambda: not alive(pid))


@pytest.mark.slow
def test_the_interpreter_exits_without_close_and_leaves_no_server() -> None:
    source = (
        "import sys; from holdfast.tools.mcp import MCPClient\ntools = MCPClient({'srv':"
        f" {{'command': sys.executable, 'args': [{SERVER!r}]}}}}).tools()\nprint([t for t in tools"
        " if t.name == 'srv.pid'][0].run({}).data['result'])"
    )
    process = forks.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    assert process.stderr == ""
    assert not alive(int(process.stdout))


# --- streamable HTTP ---


@pytest.mark.slow
def test_a_server_over_http_gives_the_same_tools(url: str) -> None:
    before = Owned()
    with MCPClient(
        {"web": {"url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}}}
    ) as client:
        tools = by_name(client.tools())
        assert list(tools) == NAMES
        assert tools["add"].run({"a": 40, "b": 2}).data == {"total": 42}
        assert tools["fail"].run({}).is_error
    before.wait_until_released()


@pytest.mark.slow
def test_a_call_over_http_is_cancelled_at_its_timeout(url: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with MCPClient(
        {"web": {"url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}}}, call_timeout=0.5
    ) as client:
        tools = by_name(client.tools())
        with pytest.raises(ToolTimeout):
            tools["slow"].run({"path": str(file)})
        until(lambda: file.read_text() == "cancelled")
        assert tools["add"].run({"a": 1}).success


def test_a_refused_token_is_called_that_and_never_shown(url: str) -> None:
    with MCPClient({"web": {"url": url, "headers": {"Authorization": "Bearer wr0ng"}}}) as client:
        assert client.tools() == []
        assert "HTTP 401" in client.errors["web"]
        assert "wr0ng" not in client.errors["web"]
        with pytest.raises(ToolError) as caught:
            client.sources()[0].call("add", {"a": 1}, ToolContext())
        assert caught.value.error_type == "authentication"


@pytest.mark.slow
def test_an_http_server_that_dies_and_comes_back_is_reached_again(tmp_path: Path) -> None:
    def serve(port: str) -> tuple[subprocess.Popen[str], str]:
        process = forks.Popen(
            [sys.executable, SERVER, "http", TOKEN, port], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    process, port = serve("0")
    with MCPClient(
        {
            "web": {
                "url": f"http://127.0.0.1:{port}/mcp",
                "headers": {"Authorization": f"Bearer {TOKEN}"},
            }
        },
        timeout=5.0,
    ) as client:
        tools = by_name(client.tools())
        for _ in range(
            2
        ):  # the first call finds the connection broken, the second finds nobody to connect to
            with process:
                process.kill()
            with pytest.raises(ToolError) as caught:
                tools["add"].run({"a": 1})
            assert caught.value.error_type == "network"
            assert "went away during the call" in str(
                caught.value
            ) or "could not be connected to" in str(caught.value)
        process, _ = serve(port)
        assert tools["add"].run({"a": 1}).data == {"total": 2}
        with process:
            process.kill()


# --- the tools that are allowed ---


@pytest.mark.slow
def test_a_server_offers_the_tools_that_its_entry_allows() -> None:
    config = {"few": {**STDIO, "tools": ["add", "im*"]}, "none": {**STDIO, "tools": []}}
    client = MCPClient({"mcpServers": config})
    try:
        assert [tool.name for tool in client.tools()] == ["few.add", "few.image"]
    finally:
        client.close()


@pytest.mark.slow
def test_a_configuration_names_the_allowed_tools() -> None:
    server = {**STDIO, "tools": ["add"]}
    with ToolManager.from_config({"mcp_servers": {"s": server}}) as manager:
        manager.discover()
        assert [tool.name for tool in manager.list_tools()] == ["s.add"]
        with pytest.raises(ToolNotFound):
            manager.get("s.fail")
    with pytest.raises(ConfigurationError, match="tools"):
        MCPClient({"mcpServers": {"s": {**STDIO, "tools": "add"}}})
