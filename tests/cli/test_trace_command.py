"""`holdfast trace` of a store, and `holdfast stats --server` of a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
from tests.agent_servers import Serving
from tests.cli.test_commands import holdfast
from tests.server.test_page import talk
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with SQLiteStore(tmp_path / "s.db", "process") as opened:
        for name in ("one", "two"):
            with Conversation(Agent(ScriptedLLM(["ok"])), opened, name) as conversation:
                conversation.send_message("Go")
                conversation.run()
    return tmp_path / "s.db"


@pytest.mark.slow
def test_a_trace_is_written_as_a_page_an_image_or_data(store: Path, tmp_path: Path) -> None:
    for name, begin in (("run.html", "<!doctype html>"), ("run.svg", "<svg ")):
        ended = holdfast("trace", str(store), "one", "-o", str(tmp_path / name))
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / name).read_text().startswith(begin)
    assert holdfast("trace", str(store), "one").stdout.startswith("<!doctype html>")
    data = json.loads(holdfast("trace", str(store), "one", "--json").stdout)
    assert [span["kind"] for span in data["spans"]] == ["message", "model"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("one", "-o", "run.txt"), 2, "ends in .html or .svg"),
        ((), 2, "give the ID of one of 2 conversations"),
        (("nobody",), 2, "there is no conversation 'nobody'"),
        (("one", "-o", "/no/such/folder/run.html"), 1, "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_told(
    store: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    ended = holdfast("trace", str(store), *words)
    assert ended.returncode == code
    assert problem in ended.stderr


@pytest.mark.slow
def test_a_running_server_has_the_same_figures(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        path = talk(server, "c", ["ok"], message="Go.")
        until(lambda: server.ask("GET", path).json["status"] == "finished")
        place = ("--server", server.server.url, "c")
        env = {"HOLDFAST_SERVER_KEY": server.key}
        remote = json.loads(holdfast("stats", *place, "--json", **env).stdout)
        local = json.loads(holdfast("stats", str(tmp_path / "store.db"), "c", "--json").stdout)
        assert remote == local
        every = holdfast("stats", *place[:2], **env)
        assert "1 step" in every.stdout
        page = holdfast("trace", *place, **env)
        assert page.stdout == holdfast("trace", str(tmp_path / "store.db"), "c").stdout
