"""Tests of `holdfast serve --sandbox require`: each conversation's commands are in a sandbox of
their own, on threads and in worker processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Hook, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.commands import Send
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.server.policy import Policy
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.shapes import AgentRequest, CreateRequest, ForkRequest
from tests import forks
from tests.agent_servers import Serving
from tests.serve_process import KEY, ServeProcess
from tests.server_host_program import host_of
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    all(mechanism.missing() for mechanism in MECHANISMS), reason="no sandbox can be made here"
)
_ISOLATIONS = ["thread", "process"]


def serving(folder: Path, isolation: str, *arguments: str) -> ServeProcess:
    return ServeProcess(folder, "--isolation", isolation, *arguments)


def key_of(server: ServeProcess, tenant: str) -> str:
    command = [sys.executable, "-m", "holdfast.cli", "serve", "keys", "add", "--tenant", tenant]
    added = forks.run(
        [*command, "--store", str(server.store)], capture_output=True, text=True, check=True
    )
    return added.stdout.strip()


def of_ann(server: ServeProcess) -> RemoteWorkspace:
    """Return the workspace of another tenant."""
    return RemoteWorkspace(server.url, key_of(server, "ann"), id="of-ann")


def ran(server: ServeProcess, key: str, *commands: str, sandbox: bool = False) -> list[str]:
    """Return the results of commands in a conversation of the tenant with this key."""
    script: list[Any] = [("terminal", {"command": command}) for command in commands]
    with RemoteWorkspace(server.url, key) as workspace:
        agent = Agent(ScriptedLLM([*script, "Done."]), workspace.tools)
        with RemoteConversation(agent, workspace, sandbox=sandbox) as conversation:
            conversation.send_message("Go.")
            conversation.run()
            events = conversation.get_history()
    return [event.result.text for event in events if event.type == "toolResult"]


def look(server: ServeProcess, path: str) -> list[str]:
    """Return commands that look for the files of the server and of other tenants."""
    return [
        "echo mine > a.txt; cat a.txt",
        f"cat {path}; ls {server.folder}; ls /proc/{server.pid}",
        f"echo x > {server.folder}/planted",
        f"exec 3<>/dev/tcp/127.0.0.1/{server.port} && echo connected",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", _ISOLATIONS)
def test_commands_see_neither_the_server_nor_other_workspaces(
    tmp_path: Path, isolation: str
) -> None:
    with serving(tmp_path, isolation, "--sandbox", "require") as server, of_ann(server) as ann:
        ann.write_file("private.txt", "only for ann\n")
        assert ann.run_command("cat private.txt").text.startswith("only for ann\n")
        [path] = map(str, tmp_path.rglob("private.txt"))
        mine, listing, _, connected = ran(server, KEY, *look(server, path))
    assert mine.startswith("mine\n")
    assert "only for ann" not in listing
    assert "s.db-wal" not in listing
    assert listing.count("No such file or directory") == 2
    assert not (tmp_path / "planted").exists()
    assert "connected" not in connected


@pytest.mark.slow
@pytest.mark.parametrize("isolation", _ISOLATIONS)
def test_without_the_option_they_do(tmp_path: Path, isolation: str) -> None:
    with serving(tmp_path, isolation) as server, of_ann(server) as ann:
        ann.write_file("private.txt", "only for ann\n")
        [path] = map(str, tmp_path.rglob("private.txt"))
        _, listing, _, connected = ran(server, KEY, *look(server, path))
    assert "only for ann" in listing
    assert "s.db-wal" in listing
    assert (tmp_path / "planted").exists()
    assert "connected" in connected


@pytest.mark.slow
@pytest.mark.parametrize("isolation", _ISOLATIONS)
def test_a_conversation_has_a_sandbox_of_its_own_if_it_asks_for_one(
    tmp_path: Path, isolation: str
) -> None:
    with serving(tmp_path, isolation) as server, of_ann(server) as ann:
        ann.write_file("private.txt", "only for ann\n")
        [path] = map(str, tmp_path.rglob("private.txt"))
        mine, listing, _, connected = ran(server, KEY, *look(server, path), sandbox=True)
        assert mine.startswith("mine\n")
        assert listing.count("No such file or directory") == 2
        assert not (tmp_path / "planted").exists()
        assert "connected" not in connected
        # Other conversations have none, in the same workspace too.
        assert "s.db-wal" in ran(server, KEY, f"ls {server.folder}")[0]


def test_a_sandbox_that_was_asked_for_is_kept_by_forks_and_other_agents(tmp_path: Path) -> None:
    def agent(path: str) -> dict[str, Any]:
        bare_agent = Agent(ScriptedLLM([("terminal", {"command": f"touch {path}"}), "Done."]))
        form = dict(form_of(bare_agent).mapping)
        return {**form, "tools": {"builtin": ["terminal"]}}

    planted = [tmp_path / name for name in ("own", "of-fork", "of-agent", "of-other")]
    first, forked, replaced, other = map(agent, map(str, planted))
    with host_of(tmp_path) as host:
        boxed = CreateRequest(agent=first, id="a", sandbox="require")
        workspace = host.create("default", boxed).workspace
        host.create("default", CreateRequest(agent=other, id="b", workspace=workspace))
        host.fork("default", "a", ForkRequest(id="f", agent=forked))
        for id in ("a", "f", "b"):
            host.execute("default", id, Send((TextContent("go"),)), f"key-{id}")
            host.run("default", id)
        until(lambda: {host.status("default", id) for id in "afb"} == {"finished"}, seconds=60)
        host.use("default", "a", AgentRequest(agent=replaced))
        host.execute("default", "a", Send((TextContent("again"),)), "key-again")
        host.run("default", "a")
        until(lambda: host.get("default", "a").last_seq > 12, seconds=60)
        until(lambda: host.status("default", "a") == "finished", seconds=60)
        flags = [host.get("default", id).sandboxed for id in "afb"]
    assert flags == [True, True, False]
    assert [path.exists() for path in planted] == [False, False, False, True]


def test_what_would_run_outside_of_a_sandbox_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    form = dict(form_of(Agent(ScriptedLLM(["Done."]))).mapping)
    form["tools"] = {"mcp_servers": {"x": {"command": "touch", "args": ["x"]}}}
    with host_of(tmp_path) as host:
        with pytest.raises(ConfigurationError, match="no programs outside of its sandbox"):
            host.create("default", CreateRequest(agent=form, sandbox="require"))
        plain = form_of(Agent(ScriptedLLM(["Done."]))).mapping
        host.create("default", CreateRequest(agent=plain, id="a", sandbox="require"))
        with pytest.raises(ConfigurationError, match="no programs outside of its sandbox"):
            host.use("default", "a", AgentRequest(agent=form))


@pytest.mark.slow
def test_a_sandbox_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.sandbox.mechanisms.MECHANISMS", ())
    form = form_of(Agent(ScriptedLLM(["Done."]))).mapping
    with Serving(tmp_path) as server:
        reply = server.ask("POST", "/api/conversations", {"agent": form, "sandbox": "require"})
        assert reply.status == 422
        assert "No sandbox can be made on this machine." in str(reply.json)
        assert server.ask("GET", "/api/conversations").json["items"] == []
        assert server.ask("GET", "/api/workspaces").json["workspaces"] == []
        assert server.ask("GET", "/api/options").json["sandboxAvailable"] == ""
        off = server.ask("POST", "/api/conversations", {"agent": form, "sandbox": "off"})
        assert off.status == 422
        assert "sandbox" in str(off.json)


@pytest.mark.slow
def test_a_conversation_that_exists_without_a_sandbox_is_not_taken_for_one(tmp_path: Path) -> None:
    agent = Agent(ScriptedLLM(["Done."]))
    with Serving(tmp_path) as server, RemoteWorkspace(server.server.url, server.key) as workspace:
        RemoteConversation(agent, workspace, "c").close()
        with pytest.raises(ConfigurationError, match="'c' exists, and its commands run without"):
            RemoteConversation(agent, workspace, "c", sandbox=True)
        RemoteConversation(agent, workspace, "d", sandbox=True).close()
        RemoteConversation(agent, workspace, "d", sandbox=True).close()


@pytest.mark.slow
def test_two_conversations_in_one_workspace_have_a_sandbox_each(tmp_path: Path) -> None:
    with serving(tmp_path, "thread", "--sandbox", "require") as server, of_ann(server) as ann:
        first = ann.run_command("sleep 600.77 & touch /tmp/x; echo $!", conversation_id="a")
        assert first.meta["exitCode"] == 0
        second = "ls /tmp/x; ps -ef | grep -c '[s]leep 600.77'"
        other = ann.run_command(second, conversation_id="b").text
        same = ann.run_command(second, conversation_id="a").text
    assert "cannot access '/tmp/x'" in other.replace("‘", "'").replace("’", "'")  # noqa: RUF001
    assert "\n0\n" in f"\n{other}"
    assert "\n1\n" in f"\n{same}"


@pytest.mark.slow
@pytest.mark.parametrize("isolation", _ISOLATIONS)
def test_a_client_starts_no_programs_outside_of_the_sandbox(tmp_path: Path, isolation: str) -> None:
    with serving(tmp_path, isolation, "--sandbox", "require") as server:
        form = dict(form_of(Agent(ScriptedLLM(["Done."]))).mapping)
        for section in ("mcp_servers", "mcpServers", "MCP_SERVERS"):
            form["tools"] = {
                section: {"x": {"command": "touch", "args": [str(tmp_path / "started")]}}
            }
            nested = {"delegates": {"other": dict(form)}, **{k: form[k] for k in ("model",)}}
            for agent in (form, nested):
                reply = server.ask("POST", "/api/conversations", {"id": "c", "agent": agent})
                assert reply.status in (400, 422), reply
                assert "no programs outside of its sandbox" in str(reply.json)
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--network", "pypi.org"], "--network is for the sandbox; add --sandbox require"),
        (["--sandbox", "auto"], "invalid choice: 'auto'"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--store", str(tmp_path / "s.db"), *arguments]
    ended = forks.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, words in ended.stderr) == (2, True), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("private", ["s.db", "root", "key"])
def test_a_workspace_with_files_of_the_server_is_refused(tmp_path: Path, private: str) -> None:
    """Check the refusal: a sandbox would show conversations of others, and the key that seals their
    secrets."""
    places = {name: tmp_path / "own" / name for name in ("s.db", "root", "key")}
    workspace = tmp_path / "workspace"
    for folder in (tmp_path / "own", workspace):
        folder.mkdir()
    places[private] = workspace / private
    places["key"].write_text("hf_key-of-the-server\n")
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--listen", "127.0.0.1:0"]
    command += ["--store", str(places["s.db"]), "--root", str(places["root"])]
    command += ["--key-file", str(places["key"]), "--sandbox", "require"]
    command += ["--workspace", f"main={workspace}"]
    ended = forks.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "--workspace main: the sandboxes of its conversations would show" in ended.stderr
    assert str(places[private]) in ended.stderr


@pytest.mark.slow
def test_a_server_without_a_sandbox_does_not_start(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from holdfast.runtime.sandbox import mechanisms\n"
        "mechanisms.MECHANISMS = ()\n"
        "from holdfast.cli import main\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", program, "serve", "--sandbox", "require"]
    command += ["--listen", "127.0.0.1:0", "--store", str(tmp_path / "s.db")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("holdfast: --sandbox require: No sandbox can be made")


def test_hook_commands_of_a_client_run_in_the_sandbox_also_without_tools(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    hook = Hook(on="message", command=["sh", "-c", f"touch {planted}; echo '{{}}'"])
    agent = Agent(ScriptedLLM(["Done."]), hooks=[hook])
    with host_of(
        tmp_path, policy=Policy(hook_commands=True), runtimes=WorkspaceRuntimes(sandboxed=True)
    ) as host:
        assert host.create("default", CreateRequest(agent=form_of(agent).mapping, id="a")).workspace
        host.execute("default", "a", Send((TextContent("hi"),)), "key")
    assert not planted.exists()
