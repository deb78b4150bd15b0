"""`holdfast tools` and `holdfast mcp` as separate processes, with real servers and real clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import MCPClient, ToolManager
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from tests import forks
from tests.cli.test_commands import ESCAPE, HOLDFAST, environment, holdfast, terminal
from tests.paths import REPO

ROOT = REPO
PLANTED = "hf-planted-5c20"

MODULE = '''
import os, sys, time
print("the module prints")

def greet(name: str, times: int = 1) -> str:
    """Say hello.

    Args:
        name: Whom to greet.
    """
    print("the tool prints")
    os.system("echo its child prints")
    return "hello " + name * times

def total(numbers: list[int]) -> dict[str, int]:
    """Add numbers."""
    return {"total": sum(numbers)}

def fail() -> str:
    """Fail."""
    raise ValueError("on purpose")

def leave() -> None:
    """Leave."""
    sys.exit(9)

def wait(file: str) -> None:
    """Wait for a minute, whatever is asked."""
    open(file, "w").close()
    time.sleep(60)

def lines(count: int) -> str:
    """Answer many lines."""
    return "\\n".join(f"line {number} \\x1b[31m" for number in range(count))
'''

SERVER = {"command": sys.executable, "args": ["-m", "tests.mcp_tools"], "cwd": str(ROOT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a project whose config has local functions, a server, a lazy server and builtin
    tools."""
    (tmp_path / "my_tools.py").write_text(MODULE)
    config: dict[str, Any] = {
        "local_functions": [
            f"my_tools:{name}" for name in ("greet", "total", "fail", "leave", "wait", "lines")
        ],
        "mcp_servers": {
            "near": {**SERVER, "env": {"SECRET": "${PLANTED}"}},
            "asleep": {**SERVER, "lazy": True, "env": {"OTHER": "${NOT_SET:-default} $${ESCAPED}"}},
        },
        "builtin": ["read_file", "grep"],
    }
    (tmp_path / "tools.json").write_text(json.dumps(config))
    (tmp_path / "local.yaml").write_text(
        "local_functions: [" + ", ".join(config["local_functions"]) + "]\n"
    )
    (tmp_path / "broken.json").write_text(
        json.dumps({"mcp_servers": {"dead": {"command": "/no/such/program"}, "near": SERVER}})
    )
    return tmp_path


def tools(
    folder: Path, *arguments: str, config: str = "local.yaml", stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `holdfast tools` with a config."""
    return holdfast("tools", "--config", config, *arguments, cwd=folder, stdin=stdin, **env)


# --- list, describe ---


def test_without_a_config_it_lists_the_builtin_tools(tmp_path: Path) -> None:
    ended = holdfast("tools", cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [
        "terminal",
        "terminal_input",
        "read_file",
        "write_file",
        "edit_file",
        "glob",
        "grep",
    ]


@pytest.mark.slow
def test_it_lists_local_and_remote_tools_and_says_which_services_it_did_not_ask(
    folder: Path,
) -> None:
    ended = tools(folder, "list", config="tools.json", PLANTED=PLANTED)
    assert ended.returncode == 0
    rows = [line.split(None, 2) for line in ended.stdout.splitlines()]
    assert ["greet", "-", "Say hello."] in rows
    assert ["near.add", "near", "Add two numbers."] in rows
    assert not [row for row in rows if row[0].startswith("asleep.")]
    assert "asleep is lazy and was not asked" in ended.stderr
    assert PLANTED not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_json_is_not_disturbed_by_what_modules_and_tools_print(folder: Path) -> None:
    listed = tools(folder, "--json")
    assert {"name", "service", "input_schema", "annotations"} <= json.loads(listed.stdout)[0].keys()
    assert "the module prints" in listed.stderr
    called = tools(folder, "--json", "call", "greet", "name=you")
    assert json.loads(called.stdout) == {
        "content": [{"type": "text", "text": "hello you"}],
        "isError": False,
    }
    assert "the tool prints" in called.stderr
    assert "its child prints" in called.stderr


@pytest.mark.slow
def test_describe_tells_all_of_one_tool(folder: Path) -> None:
    ended = tools(folder, "describe", "greet")
    assert ended.returncode == 0
    for text in (
        "Say hello.",
        "name (string, required)",
        "Whom to greet.",
        "times (integer, 1 if not given)",
        "module: my_tools",
    ):
        assert text in ended.stdout
    assert json.loads(tools(folder, "describe", "greet", "--json").stdout)["input_schema"][
        "required"
    ] == ["name"]
    unknown = tools(folder, "describe", "greeet")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "Did you mean 'greet'?" in unknown.stderr


# --- call ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (['{"name": "you", "times": 2}'], ""),
        (["name=you", "times=2"], ""),
        (["-"], '{"name": "you", "times": 2}'),
    ],
)
def test_a_call_takes_json_pairs_or_standard_input(
    folder: Path, words: list[str], stdin: str
) -> None:
    ended = tools(folder, "call", "greet", *words, stdin=stdin)
    assert (ended.returncode, ended.stdout) == (0, "hello youyou\n")


@pytest.mark.slow
def test_a_pair_is_read_as_its_parameter_wants_it(folder: Path) -> None:
    assert json.loads(tools(folder, "call", "total", "numbers=[1, 2, 3]").stdout) == {"total": 6}
    assert tools(folder, "call", "greet", "name=007").stdout == "hello 007\n"
    assert tools(folder, "call", "greet", "name={}").stdout == "hello {}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["fail"], 1, "on purpose"),
        (["leave"], 1, "SystemExit"),
        (["greet"], 1, "name is required"),
        (["greet", "nam=x"], 1, "nam is not one of its parameters"),
        (["greet", "name"], 2, "neither a JSON object nor a key=value pair"),
        (["greet", "{"], 2, "not JSON"),
        (["greet", "name=a", "name=b"], 2, "given twice"),
        (["nothing"], 2, "Unknown tool"),
        ([], 2, "takes the NAME of a tool"),
    ],
)
def test_the_exit_code_tells_what_was_wrong(
    folder: Path, words: list[str], code: int, message: str
) -> None:
    ended = tools(folder, "call", *words)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_call_of_a_lazy_service_asks_that_one_alone(folder: Path) -> None:
    ended = tools(folder, "call", "asleep.add", "a=1", "b=2", config="tools.json", PLANTED=PLANTED)
    assert (ended.returncode, ended.stdout) == (0, "3\n")


@pytest.mark.slow
def test_a_terminal_gets_a_result_that_fits_it_and_nothing_that_could_harm_it(folder: Path) -> None:
    with terminal(
        "tools",
        "--config",
        str(folder / "local.yaml"),
        "call",
        "lines",
        "count=5000",
        PYTHONPATH=str(folder),
    ) as screen:
        output = screen.sees("more; --full shows all of it")
    assert "line 199 " in output
    assert "line 200 " not in output
    assert f"{ESCAPE}[31m\r\n" not in output
    assert len(tools(folder, "call", "lines", "count=5000").stdout.splitlines()) == 5000


@pytest.mark.slow
def test_ctrl_c_ends_a_call_cleanly(folder: Path) -> None:
    process = forks.Popen(
        [*HOLDFAST, "tools", "--config", "local.yaml", "call", "wait", "file=begun"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "did not stop when asked to" in errors


# --- check ---


@pytest.mark.slow
def test_check_asks_lazy_services_too_and_finds_nothing_wrong(folder: Path) -> None:
    ended = tools(folder, "check", config="tools.json", PLANTED=PLANTED)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "near: " in ended.stdout
    assert "asleep: " in ended.stdout
    assert "no problems." in ended.stdout


@pytest.mark.slow
def test_check_says_what_is_wrong_with_each_service(folder: Path) -> None:
    ended = tools(folder, "check", config="broken.json")
    assert ended.returncode == 1
    assert "'dead' could not be connected to" in ended.stdout
    assert "there are problems." in ended.stdout
    report = json.loads(tools(folder, "check", "--json", config="broken.json").stdout)
    assert (
        report["ok"],
        report["services"]["dead"]["tools"],
        report["services"]["near"]["health"]["ok"],
    ) == (False, 0, True)
    assert "'dead'" in report["services"]["dead"]["error"]


# --- the config and the environment ---


def test_only_variables_that_the_config_mentions_are_filled_in_and_a_missing_one_is_named(
    folder: Path,
) -> None:
    missing = tools(folder, "list", config="tools.json")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert (
        "the environment variable PLANTED, which 'tools.json' mentions, is not set"
        in missing.stderr
    )


def test_a_value_that_only_another_program_asks_for_is_no_environment_variable(
    folder: Path,
) -> None:
    servers = {"web": {"url": "http://127.0.0.1:1/mcp", "headers": {"A": "${input:key}"}}}
    (folder / "theirs.json").write_text(json.dumps({"servers": servers}))
    refused = tools(folder, "list", config="theirs.json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        "servers.web.headers.A: '${input:key}' has '${' that begins no variable" in refused.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local_functons: []\n", "Did you mean 'local_functions'?"),
        ("builtin: [grepp]\n", "Did you mean 'grep'?"),
        ("a: [\n", "bad.yaml"),
    ],
)
def test_a_config_that_does_not_fit_is_told_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    for command in (("tools",), ("mcp",)):
        ended = holdfast(*command, "--config", "bad.yaml", cwd=tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert message in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


# --- mcp ---


def server_config(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the client config of a `holdfast mcp` process."""
    return {
        "command": HOLDFAST[0],
        "args": [*HOLDFAST[1:], "mcp", *arguments],
        "cwd": str(folder),
        "env": {"PLANTED": PLANTED},
    }


@pytest.mark.slow
def test_a_client_finds_the_whole_action_space_behind_one_server(folder: Path) -> None:
    with MCPClient({"all": server_config(folder, "--config", "tools.json")}) as client:
        manager = ToolManager([], client.sources())
        manager.discover()
        assert manager.errors == {}
        # The tool and its module also print.
        assert manager.call("all.greet", {"name": "you"}).text == "hello you"
        assert manager.call("all.near.add", {"a": 1, "b": 2}).text == "3"
        assert not manager.exists("all.asleep.add")
        assert "asleep.add" in manager.call("all.find_tools", {"query": "add two numbers"}).text
        # The server sends a notification, and then the client lists the tool.
        deadline = time.monotonic() + 60
        while not manager.exists("all.asleep.add"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert manager.call("all.asleep.add", {"a": 3, "b": 4}).text == "7"
        assert "def greet" in manager.call("all.read_file", {"path": "my_tools.py"}).text
        manager.close()


@pytest.mark.slow
def test_the_builtin_tools_of_a_folder_are_offered_without_a_config(folder: Path) -> None:
    with MCPClient({"here": server_config(folder, "--workdir", ".")}) as client:
        by_name = {tool.name: tool for tool in client.tools()}
        assert by_name["here.terminal"].run({"command": "cd /; pwd"}).text.splitlines()[0] == "/"
        assert by_name["here.terminal"].run(
            {"command": "pwd; echo ${PLANTED-unset}"}
        ).text.splitlines()[:2] == ["/", "unset"]


def start(folder: Path, *arguments: str, **env: str) -> tuple[subprocess.Popen[str], str]:
    """Start `holdfast mcp` at an HTTP address, and return the process and the address."""
    process = forks.Popen(
        [*HOLDFAST, "mcp", "--config", "local.yaml", *arguments],
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "Serving MCP" not in (line := process.stderr.readline()):
        assert line, "it did not start"
    return process, line.split(" at ")[1].split(". ")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_over_http_it_serves_until_a_signal(folder: Path, number: int, code: int) -> None:
    process, url = start(
        folder, "--http", "127.0.0.1:0", "--token-env", "MCP_TOKEN", MCP_TOKEN=PLANTED
    )
    with MCPClient(
        {"far": {"url": url, "headers": {"Authorization": f"Bearer {PLANTED}"}}}
    ) as client:
        assert {tool.name for tool in client.tools()} >= {"far.greet", "far.total"}
    process.send_signal(number)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert PLANTED not in out + errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no tools were given"),
        (["--config", "local.yaml", "--http", "0.0.0.0:0"], "Give a token"),
        (["--config", "local.yaml", "--http", "nowhere"], "HOST:PORT"),
        (["--config", "local.yaml", "--http", ":0", "--token-env", "NOT_SET"], "NOT_SET"),
        (["--config", "local.yaml", "--token-env", "MCP_TOKEN"], "--token-env is for --http"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    folder: Path, arguments: list[str], message: str
) -> None:
    ended = holdfast("mcp", *arguments, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_terminated_it_ends_the_servers_that_it_started(folder: Path) -> None:
    process = forks.Popen(
        [*HOLDFAST, "mcp", "--config", "broken.json"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60

    def behind() -> list[str]:
        processes = subprocess.run(
            ["pgrep", "-f", "-P", str(process.pid), "tests.mcp_tools"],
            capture_output=True,
            text=True,
            check=False,
        )
        return processes.stdout.split()

    assert process.stderr is not None
    # The log of a failed server. The other server may start before or after it.
    assert any(b"'dead' could not be connected to" in line for line in process.stderr)
    while not (pids := behind()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)


# --- the sandbox ---

boxed = pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)


@pytest.mark.slow
@boxed
def test_builtin_tools_work_in_a_sandbox_that_is_required(tmp_path: Path) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.write_text("canary")
    call = ["tools", "call", "terminal", f"command=echo started; cat {secret}"]
    place = ["--workdir", str(work)]
    ended = holdfast(*call, *place, "--sandbox", "require", cwd=tmp_path)
    assert ended.stdout.startswith("started")
    assert "canary" not in ended.stdout
    assert "canary" in holdfast(*call, *place, cwd=tmp_path).stdout
    with_mount = [*place, "--sandbox", "require", "--mount", str(secret)]
    assert "canary" in holdfast(*call, *with_mount, cwd=tmp_path).stdout


@boxed
def test_programs_of_a_config_do_not_run_outside_of_a_sandbox(folder: Path) -> None:
    for command in (["tools"], ["mcp"]):
        ended = holdfast(*command, "--config", "tools.json", "--sandbox", "require", cwd=folder)
        assert ended.returncode == 2
        assert "the MCP server 'near'" in ended.stderr
        assert "would run outside of the sandbox" in ended.stderr


@pytest.mark.slow
@boxed
def test_clients_of_mcp_get_tools_in_a_sandbox(tmp_path: Path) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.write_text("canary")

    def read(*options: str) -> str:
        arguments = [*HOLDFAST[1:], "mcp", "--workdir", str(work), *options]
        servers = {"x": {"command": HOLDFAST[0], "args": arguments, "env": environment()}}
        with ToolManager.from_config({"mcp_servers": servers}) as manager:
            manager.discover()
            return manager.call("x.terminal", {"command": f"echo started; cat {secret}"}).text

    text = read("--sandbox", "require")
    assert text.startswith("started")
    assert "canary" not in text
    assert "canary" in read()


def test_what_is_for_a_sandbox_needs_one(tmp_path: Path) -> None:
    ended = holdfast("tools", "--network", "pypi.org", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--network is for the sandbox; add --sandbox require" in ended.stderr
