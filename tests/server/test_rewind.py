"""Tests of `rewind` of conversations on an agent server: the fork goes on, with the files of that
time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    LocalRuntime,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
)
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.content import blocks
from holdfast.errors import ConfigurationError, Conflict
from holdfast.server.host import Host
from holdfast.server.local import LocalServer
from holdfast.server.shapes import CreateRequest, RewindRequest
from tests.server_host_program import host_of
from tests.waiting import until

T = "default"


@pytest.fixture
def space() -> Iterator[RemoteWorkspace]:
    with LocalServer() as server, RemoteWorkspace(server.url, server.key) as workspace:
        yield workspace


def write(text: str) -> tuple[str, dict[str, str]]:
    return ("terminal", {"command": f"printf %s {text} > notes.md"})


@pytest.mark.slow
def test_a_remote_conversation_goes_back_with_its_files(space: RemoteWorkspace) -> None:
    append = ("terminal", {"command": "printf x >> notes.md"})
    agent = Agent(ScriptedLLM([append, "done"] * 3), space.tools)
    with RemoteConversation(agent, space, undo=True) as conversation:
        for text in ("first", "second"):
            conversation.send_message(text)
            conversation.run()
        assert space.read_file("notes.md") == "xx"
        second = next(e for e in conversation.get_history() if getattr(e, "text", "") == "second")
        fork, files = conversation.rewind(second.seq - 1)
        assert (files.changed, files.kept, files.failed) == (("notes.md",), (), ())
        assert space.read_file("notes.md") == "x"
        with fork:
            before = [e.type for e in conversation.get_history()[: second.seq - 1]]
            assert [e.type for e in fork.get_history()] == [*before, "label"]
            fork.send_message("third")
            fork.run()
            assert space.read_file("notes.md") == "xx"
            # the fork keeps snapshots, too
            again = fork.rewind(second.seq - 1)
            assert again.files.changed == ("notes.md",)
            again.conversation.close()
        assert space.read_file("notes.md") == "x"


@pytest.mark.slow
def test_without_undo_or_a_workspace_it_is_refused() -> None:
    with (
        LocalServer() as server,
        RemoteWorkspace(server.url, server.key) as space,
        RemoteWorkspace(server.url, server.key) as other,
    ):
        with RemoteConversation(Agent(ScriptedLLM(["hi"]), space.tools), space) as conversation:
            conversation.send_message("hi")
            with pytest.raises(ConfigurationError, match="keeps no snapshots"):
                conversation.rewind(0)
        with pytest.raises(ConfigurationError, match="undo keeps snapshots of a workspace"):
            RemoteConversation(Agent(ScriptedLLM(["hi"])), other, undo=True)


def workspace_of_new(host: Host, id: str, *script: Any) -> str:
    """Create a conversation with the tools of a workspace, and return the workspace's id."""
    with LocalRuntime() as runtime:
        agent = Agent(ScriptedLLM(list(script)), runtime.all_tools)
        form = form_of(agent)
        creation = CreateRequest(
            agent=form.mapping, secrets=form.secrets, tools=tools_of(agent), id=id, undo=True
        )
        return host.create(T, creation).workspace


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_repeated_request_makes_one_fork_and_the_snapshots_go_with_the_workspace(
    tmp_path: Path, isolation: Any
) -> None:
    with host_of(tmp_path, isolation=isolation) as host:
        workspace = workspace_of_new(host, "a", write("one"), "done", write("two"), "done")
        for number, text in enumerate(("first", "second")):
            host.execute(T, "a", Send(blocks(text), f"m{number}"))
            host.run(T, "a")
            until(lambda: host.status(T, "a") == "finished" and not host.get(T, "a").busy)
        [file] = [path for path in tmp_path.rglob("notes.md") if workspace in str(path)]
        assert file.read_text() == "two"
        seq = next(e.seq for e in host.read(T, "a") if e.id == "m1") - 1
        rewind = RewindRequest(seq=seq, id="back")
        outcome = host.rewind(T, "a", rewind, "key")
        assert (outcome.conversation.id, outcome.files.changed) == ("back", ("notes.md",))
        assert file.read_text() == "one"
        file.write_text("by hand")  # a repetition must not touch later changes
        again = host.rewind(T, "a", rewind, "key")
        assert again == outcome
        with pytest.raises(Conflict, match="key"):
            host.rewind(T, "a", RewindRequest(seq=seq, id="other"), "key")
        assert file.read_text() == "by hand"
        assert [item.id for item in host.list(T).items] == ["back", "a"]
        with pytest.raises(ConfigurationError, match="seq"):
            host.rewind(T, "a", RewindRequest(seq=10_000))
        snapshots = [path for path in tmp_path.rglob("*.git") if "~undo" in str(path)]
        assert len(snapshots) == 1
        for id in ("a", "back"):
            host.delete(T, id)
        assert not file.exists()
        assert not snapshots[0].exists()


@pytest.mark.slow
def test_while_it_runs_it_is_a_conflict_and_makes_no_fork(tmp_path: Path) -> None:
    with host_of(tmp_path) as host:
        command = ("terminal", {"command": "until [ -e go ]; do sleep 0.02; done"})
        with LocalRuntime() as runtime:
            agent = Agent(ScriptedLLM([command, "done"]), runtime.all_tools)
            form = form_of(agent)
            tools = tools_of(agent)
        creation = CreateRequest(agent=form.mapping, tools=tools, id="a", undo=True)
        workspace = host.create(T, creation).workspace
        host.execute(T, "a", Send(blocks("go")))
        host.run(T, "a")
        until(lambda: "toolCallStarted" in [e.type for e in host.read(T, "a")])
        with pytest.raises(Conflict, match="is running"):
            host.rewind(T, "a", RewindRequest(seq=1))
        assert [item.id for item in host.list(T).items] == ["a"]
        (host.workspaces.check(T, workspace) / "go").touch()
        until(lambda: host.status(T, "a") == "finished")
