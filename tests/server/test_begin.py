"""Tests of the routes for a page that begins conversations, and that browses, exports and searches
them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, MemoryStore, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.server.runtimes import WorkspaceRuntimes
from holdfast.server.search import ContentSearch
from holdfast.store import transfer
from tests.agent_servers import Serving
from tests.waiting import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "server").mkdir()
    (tmp_path / "web").mkdir()
    folders = {("default", "web"): tmp_path / "web"}
    variables = {"ANTHROPIC_API_KEY": "sk-ant-1", "GROQ_API_KEY": "gsk-1"}
    with Serving(tmp_path / "server", folders=folders, variables=variables) as serving:
        yield serving


def finished_conversation(
    server: Serving, id: str, message: str, answers: list[Any], key: str = ""
) -> str:
    """Make a conversation that has ended, and return its path."""
    form = form_of(Agent(ScriptedLLM(answers)))
    body = {"id": id, "agent": form.mapping}
    assert server.ask("POST", "/api/conversations", body, key).status == 201
    path = f"/api/conversations/{id}"
    server.ask("POST", f"{path}/messages", {"text": message}, key)
    server.ask("POST", f"{path}/run", key=key)
    until(lambda: server.ask("GET", path, key=key).json["status"] == "finished")
    return path


# --- options ---


def test_the_options_name_the_tools_and_say_how_they_are_confined(server: Serving) -> None:
    options = server.ask("GET", "/api/options").json
    tools = {tool["name"]: tool for tool in options["tools"]}
    assert tools["read_file"]["readOnly"]
    assert not tools["terminal"]["readOnly"]
    assert tools["apply_patch"]["usual"] is False
    assert tools["ask_user"]["form"]["module"] == "holdfast.tools.preset.asking"
    assert all(tool["description"].endswith(".") for tool in tools.values())
    assert (options["sandbox"], options["network"]) == ("", [])
    assert (options["folders"], options["undo"]) == (True, True)


def test_a_conversation_is_made_from_all_that_the_options_offer(server: Serving) -> None:
    options = server.ask("GET", "/api/options").json
    advice = server.ask("GET", "/api/options/model?name=anthropic/claude-sonnet-4-5").json
    names = [*advice["tools"], "ask_user"]
    body = {
        "agent": {
            "model": {
                "name": "anthropic/claude-sonnet-4-5",
                "api_key": f"${{{advice['variable']}}}",
            },
            "tools": {"builtin": names},
            "confirm": "risky",
            "security": "standard",
            "planning": "tool",
        },
        "tools": [tool["form"] for tool in options["tools"] if "form" in tool],
        "workspace": "web",
        "undo": True,
    }
    created = server.ask("POST", "/api/conversations", body)
    assert created.status == 201, created
    assert {tool["name"] for tool in created.json["tools"]} == set(names)
    assert {tool["executor"] for tool in created.json["tools"]} == {"server"}


@pytest.mark.slow
def test_the_options_name_the_mechanism_of_the_sandbox(tmp_path: Path) -> None:
    runtimes = WorkspaceRuntimes(True, ("pypi.org",))
    with Serving(tmp_path, runtimes=runtimes) as server:
        options = server.ask("GET", "/api/options").json
    assert options["sandbox"] in ("bubblewrap", "landlock")
    assert options["network"] == ["pypi.org"]


def test_a_model_is_looked_up_with_the_key_that_the_server_has_for_it(server: Serving) -> None:
    def advice(query: str, key: str = "") -> Any:
        return server.ask("GET", f"/api/options/model?name={query}", key=key).json

    for key in ("", server.other):
        assert advice("claude-sonnet-4-5", key)["variable"] == "ANTHROPIC_API_KEY"
        assert advice("groq/llama-3.3-70b-versatile", key)["variable"] == "GROQ_API_KEY"
        assert "variable" not in advice("gpt-5-mini", key)
        assert "variable" not in advice("claude-sonnet-4-5&address=http://127.0.0.1:1", key)
    assert advice("gpt-5-mini")["provider"] == "openai"
    assert advice("ollama/llama3")["local"] is True
    assert "base_url is needed" in advice("nonesuch")["problem"]
    server.ask("PUT", "/api/secrets/OPENAI_API_KEY", {"value": "sk-0123456789"})
    assert advice("gpt-5-mini")["variable"] == "OPENAI_API_KEY"
    assert "variable" not in advice("gpt-5-mini", server.other)
    assert "sk-" not in json.dumps([advice("gpt-5-mini"), advice("claude-sonnet-4-5")])


# --- folders and their files ---


def test_workspaces_are_listed_to_their_tenant(server: Serving, tmp_path: Path) -> None:
    server.ask("POST", "/api/workspaces", {"id": "notes"})
    workspaces = server.ask("GET", "/api/workspaces").json["workspaces"]
    assert workspaces == [{"id": "web", "folder": str(tmp_path / "web")}, {"id": "notes"}]
    assert server.ask("GET", "/api/workspaces", key=server.other).json == {"workspaces": []}


def test_a_folder_is_listed_and_its_files_are_sent_as_they_are(
    server: Serving, tmp_path: Path
) -> None:
    web = tmp_path / "web"
    (web / "src").mkdir()
    (web / "b.bin").write_bytes(bytes(range(256)) * 3000)
    (web / "A é.txt").write_text("a")
    (web / "link").symlink_to("/etc/passwd")
    (web / b"\xff".decode("utf-8", "surrogateescape")).touch()
    place = "/api/workspaces/web"
    listing = server.ask("GET", f"{place}/entries").json
    assert [(one["name"], one["kind"]) for one in listing["entries"]] == [
        ("src", "folder"),
        ("A é.txt", "file"),
        ("b.bin", "file"),
        ("link", "other"),
        ("\ufffd", "file"),
    ]
    assert (listing["path"], listing["more"]) == ("", 0)
    reply = server.ask("GET", f"{place}/download/b.bin")
    assert (reply.status, reply.body) == (200, (web / "b.bin").read_bytes())
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''b.bin"
    assert server.ask("GET", f"{place}/download/A%20%C3%A9.txt").body == b"a"
    for path, status in (
        ("entries?path=none", 404),
        ("entries?path=../..", 403),
        ("entries?path=b.bin", 422),
        ("download/link", 403),
        ("download/src", 422),
        ("download/none", 404),
        ("download/..%2F..%2Fetc%2Fpasswd", 403),
    ):
        reply = server.ask("GET", f"{place}/{path}")
        assert reply.status == status, (path, reply)
        assert server.ask("GET", f"{place}/{path}", key=server.other).status == 404


def test_a_folder_is_sent_as_a_tar_file_without_what_links_lead_to(
    server: Serving, tmp_path: Path
) -> None:
    web = tmp_path / "web"
    (web / "src" / "deep").mkdir(parents=True)
    data = bytes(range(256)) * 3000
    (web / "src" / "deep" / "b.bin").write_bytes(data)
    (web / f"{'é' * 100}.txt").write_text("long")
    (web / "passwd").symlink_to("/etc/passwd")
    (web / "etc").symlink_to("/etc")
    os.mkfifo(web / "pipe")
    place = "/api/workspaces/web/archive"
    reply = server.ask("GET", place)
    assert reply.headers["content-disposition"] == 'attachment; filename="web.tar"'
    with tarfile.open(fileobj=io.BytesIO(reply.body)) as tar:
        members = {one.name: one for one in tar}
        assert tar.extractfile("src/deep/b.bin").read() == data  # pyright: ignore[reportOptionalMemberAccess]
    assert sorted(members) == [
        "etc",
        "passwd",
        "src",
        "src/deep",
        "src/deep/b.bin",
        f"{'é' * 100}.txt",
    ]
    assert members["passwd"].issym()
    assert members["etc"].issym()
    assert members["etc"].size == 0
    with tarfile.open(fileobj=io.BytesIO(server.ask("GET", f"{place}?path=src").body)) as tar:
        assert tar.getnames() == ["deep", "deep/b.bin"]
    for path, status in (("none", 404), ("etc", 403), ("..", 403), ("passwd", 403)):
        assert server.ask("GET", f"{place}?path={path}").status == status, path
    assert server.ask("GET", place, key=server.other).status == 404


# --- export and search ---


def test_an_export_is_read_by_the_import(server: Serving) -> None:
    path = finished_conversation(server, "c", "Hello", ["Good day."])
    reply = server.ask("GET", f"{path}/export")
    assert reply.status == 200
    assert reply.headers["content-disposition"] == 'attachment; filename="c.jsonl"'
    store = MemoryStore()
    (one,) = transfer.read_exported(reply.body.splitlines(keepends=True))
    transfer.import_conversation(store, one)
    assert [event.seq for event in store.read("c")] == [1, 2, 3, 4, 5]
    assert server.ask("GET", f"{path}/export", key=server.other).status == 404
    server.make("blank")
    assert server.ask("GET", "/api/conversations/blank/export").status == 404


def test_a_search_finds_what_the_tenant_may_read(server: Serving) -> None:
    finished_conversation(server, "one", "Where is the GIRAFFE?", ["In the zoo."])
    finished_conversation(
        server, "two", "And the lion?", [("none", {"place": ["a giraffe house"]}), "There."]
    )
    finished_conversation(server, "theirs", "My giraffe", ["Yes."], server.other)
    result = server.ask("GET", "/api/search?q=giraffe").json
    assert [(hit["id"], hit["type"]) for hit in result["hits"]] == [
        ("two", "assistant"),
        ("one", "message"),
    ]
    assert result["hits"][1]["text"] == "Where is the GIRAFFE?"
    assert (result["conversations"], result["next"]) == (2, None)
    assert [
        hit["id"]
        for hit in server.ask("GET", "/api/search?q=giraffe", key=server.other).json["hits"]
    ] == ["theirs"]
    assert server.ask("GET", "/api/search?q=%20").status == 422
    assert server.ask("GET", "/api/search?q=a&cursor=x").status == 422


def test_a_search_stops_in_time_and_goes_on_where_it_stopped(server: Serving) -> None:
    for number in range(3):
        finished_conversation(server, f"c{number}", f"needle {number}", ["Fine."])
    times = iter(range(1000))
    # the time is over at each look at the clock
    search = ContentSearch(server.host, lambda: float(next(times)))
    ids: list[str] = []
    cursor, steps = None, 0
    while steps == 0 or cursor is not None:
        step = search.step("default", "needle", cursor)
        ids += [hit.id for hit in step.hits]
        cursor, steps = step.next, steps + 1
    assert ids == ["c2", "c1", "c0"]
    assert steps == 3
