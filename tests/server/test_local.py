"""Tests of `LocalServer`: an agent server within a program."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from holdfast import Agent, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.errors import ConfigurationError
from holdfast.runtime import SandboxUnavailable
from holdfast.runtime.sandbox import mechanisms
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.server.local import LocalServer
from tests.leftovers import Owned


def agent(*answers: str) -> Agent:
    return Agent(ScriptedLLM(list(answers)))


@pytest.mark.slow
def test_what_is_in_its_folder_goes_on_with_the_next_one(tmp_path: Path) -> None:
    before = Owned()

    def mine(server: LocalServer) -> RemoteConversation:
        return RemoteConversation(
            agent("one"), workspace=RemoteWorkspace(server.url, server.key), id="mine"
        )

    with LocalServer(tmp_path) as server, mine(server) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "one"
    with LocalServer(tmp_path) as server, mine(server) as conversation:
        assert conversation.state.answer == "one"
    before.wait_until_released()


@pytest.mark.slow
def test_a_temporary_folder_is_gone_with_it_and_nothing_else_is_left() -> None:
    before = Owned()
    there = set(Path(tempfile.gettempdir()).glob("holdfast-server-*"))
    server = LocalServer()
    assert server.url == server.key == ""
    server.start()
    assert server.key not in repr(server)
    folders = set(Path(tempfile.gettempdir()).glob("holdfast-server-*")) - there
    assert len(folders) == 1
    server.close()
    server.close()
    assert not folders.pop().exists()
    before.wait_until_released()


@pytest.mark.slow
def test_a_second_one_on_the_folder_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    with LocalServer(tmp_path) as server:
        with pytest.raises((ConfigurationError, OSError, RuntimeError)):
            LocalServer(tmp_path).start()
        with RemoteWorkspace(server.url, server.key) as workspace:
            workspace.write_file("a.txt", "still here")
            assert workspace.read_file("a.txt") == "still here"


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="allow_tools takes a list"):
        LocalServer(allow_tools="*")
    with pytest.raises(ConfigurationError, match="folder takes an existing folder"):
        LocalServer(tmp_path / "none")


@pytest.mark.slow
def test_with_a_sandbox_commands_see_their_workspace_alone(tmp_path: Path) -> None:
    if all(mechanism.missing() for mechanism in MECHANISMS):
        pytest.skip("no sandbox can be made here")
    secret = tmp_path / "secret"
    secret.write_text("canary")

    def read(server: LocalServer) -> str:
        with RemoteWorkspace(server.url, server.key) as workspace:
            return workspace.run_command(f"echo started; cat {secret}").text

    with LocalServer(sandbox=True) as server:
        text = read(server)
        assert text.startswith("started")
        assert "canary" not in text
    with LocalServer() as server:
        assert "canary" in read(server)
    with pytest.raises(ConfigurationError, match="network is for the sandbox"):
        LocalServer(network=["pypi.org"])


def test_without_a_mechanism_a_server_with_a_sandbox_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mechanisms, "MECHANISMS", ())
    with pytest.raises(SandboxUnavailable, match="No sandbox can be made"):
        LocalServer(sandbox=True).start()
