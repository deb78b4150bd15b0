"""`/undo` in a chat: it removes the last message and restores the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import RemoteWorkspace, SQLiteStore
from tests.cli.test_commands import command, holdfast, options
from tests.cli.test_remote_command import KEY, AgentServer
from tests.model_server import ModelServer, text

MORE = ["--confirm", "never"]


def test_undo_takes_back_the_last_message_and_its_files(tmp_path: Path) -> None:
    work, cache = tmp_path / "work", tmp_path / "cache"
    work.mkdir()
    script = [command("echo 1 > a"), text("Made a."), command("echo 2 > b"), text("Made b.")]
    with ModelServer([*script, text("Again.")]) as server:
        ended = holdfast(
            *("chat", *options(server, work), *MORE, "--store", f"{tmp_path}/s.db"),
            *("--id", "one", "--new"),
            stdin="first\nsecond\n/undo\nthird\n",
            XDG_CACHE_HOME=str(cache),
        )
        assert [
            one["content"] for one in server.requests[-1].messages if one["role"] == "user"
        ] == [
            "first",
            "third",
        ]
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in work.iterdir()) == ["a"]
    output = ended.stdout + ended.stderr
    assert "b put back." in output
    assert "outside of the work folder" in output
    assert (cache / "holdfast" / "undo").is_dir()
    with SQLiteStore(tmp_path / "s.db") as store:
        summaries = store.list()
        assert len(summaries) == 2
        [fork] = [one.id for one in summaries if one.id != "one"]
    assert f"--id {fork}" in output


@pytest.mark.slow
def test_undo_says_why_it_cannot(tmp_path: Path) -> None:
    with ModelServer([]) as server:
        place = ("chat", *options(server, tmp_path), *MORE)
        off = holdfast(*place, "--no-undo", stdin="/undo\n")
        nothing = holdfast(*place, stdin="/undo\n", XDG_CACHE_HOME=f"{tmp_path}-cache")
        inside = holdfast(*place, stdin="/undo\n", XDG_CACHE_HOME=str(tmp_path))
    assert "nothing to undo with: --no-undo" in off.stdout + off.stderr
    assert "There is no message to undo." in nothing.stdout + nothing.stderr
    assert "/undo is off. Undo: the folder of snapshots" in inside.stdout + inside.stderr


@pytest.mark.slow
def test_undo_and_fork_on_an_agent_server(tmp_path: Path) -> None:
    script = [command("echo 1 > a"), text("Made a."), command("echo 2 > b"), text("Made b.")]
    with (
        ModelServer([*script, text("Again."), text("Forked.")]) as model,
        AgentServer(tmp_path) as server,
    ):
        there = ("--server", server.url, "--model", "m", "--base-url", model.url)
        ended = holdfast(
            *("chat", *there, *MORE, "--workspace", "w"),
            stdin="first\nsecond\n/undo\nthird\n/fork\nfourth\n",
            HOLDFAST_SERVER_KEY=KEY,
        )
        messages = [one["content"] for one in model.requests[-1].messages if one["role"] == "user"]
        space = RemoteWorkspace(server.url, KEY, id="w")
        listed = space.run_command("ls").text
        space.close()
    assert ended.returncode == 0, ended.stderr
    assert messages == ["first", "third", "fourth"]
    assert "b put back." in ended.stdout + ended.stderr
    assert listed.split()[0] == "a"
    assert "b" not in listed.split()
