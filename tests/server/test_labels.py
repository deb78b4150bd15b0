"""Tests of titles and tags on an agent server: over HTTP, from a remote conversation and from the
shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Label, Send
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError, Conflict
from holdfast.server.host import Host
from holdfast.server.shapes import CreateRequest, ForkRequest
from tests.agent_servers import Serving
from tests.server_host_program import host_of
from tests.waiting import until

T = "default"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with host_of(tmp_path) as running:
        yield running


def create(host: Host, id: str, *script: Any, tenant: str = T, **more: Any) -> None:
    agent = Agent(ScriptedLLM(list(script)), **more)
    form = form_of(agent)
    host.create(tenant, CreateRequest(id=id, agent=form.mapping, tools=tools_of(agent)))


def listed(host: Host, *tags: str, tenant: str = T, **more: Any) -> list[str]:
    return [item.id for item in host.list(tenant, tags=tags, **more).items]


def test_a_tenant_finds_its_conversations_by_tags(host: Host) -> None:
    for id in ("a", "b", "c"):
        create(host, id)
    create(host, "d", tenant="other")
    host.execute(T, "a", Label("Ticket 12", add=("bug", "new")))
    host.execute(T, "b", Label(add=("bug",)))
    host.execute("other", "d", Label(add=("bug",)))
    assert listed(host, "bug") == ["b", "a"]
    assert listed(host, "bug", "new") == ["a"]
    assert listed(host, "bug", tenant="other") == ["d"]
    assert listed(host, "bug", status="finished") == []
    item = host.get(T, "a")
    assert (item.title, item.tags) == ("Ticket 12", ("bug", "new"))


def test_rare_tags_are_found_beyond_the_newest_conversations(host: Host) -> None:
    for number in range(12):
        create(host, f"c{number}")
    for id in ("c0", "c1", "c2"):
        host.execute(T, id, Label(add=("bug",)))
    page = host.list(T, tags=["bug"], limit=2)
    assert [item.id for item in page.items] == ["c2", "c1"]
    page = host.list(T, tags=["bug"], limit=2, cursor=page.next)
    assert [item.id for item in page.items] == ["c0"]
    assert page.next is None


def test_a_fork_on_the_server_is_named_after_its_origin(host: Host) -> None:
    create(host, "a", "Done.")
    host.execute(T, "a", Send((TextContent("Fix the dates"),)))
    host.run(T, "a")
    until(lambda: host.status(T, "a") == "finished")
    host.execute(T, "a", Label(add=("bug",)))
    fork = host.fork(T, "a", ForkRequest(id="f"))
    other = host.fork(T, "a", ForkRequest(id="g", title="Again"))
    assert [host.get(T, id).title for id in (fork.id, other.id)] == [
        "Fix the dates (fork)",
        "Again",
    ]
    assert set(listed(host, "bug")) == {"a", "f", "g"}


def test_a_remote_conversation_is_labelled_and_found(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        workspace = RemoteWorkspace(f"http://127.0.0.1:{server.port}", server.key)
        agent = Agent(ScriptedLLM(["Done.", "About dates"]))
        with RemoteConversation(agent, workspace) as conversation:
            with pytest.raises(ConfigurationError, match="first message"):
                conversation.write_title()
            conversation.send_message("Fix the dates")
            conversation.run()
            conversation.rename("Dates")
            conversation.tag("bug", "customer=acme & sons")
            conversation.tag("new")
            conversation.untag("new")
            assert conversation.title == "Dates"
            assert conversation.write_title() == "About dates"
            until(lambda: conversation.title == "About dates")
            conversation.rename("Dates")
            assert conversation.tags == ("bug", "customer=acme & sons")
            with pytest.raises(ConfigurationError):
                conversation.tag("")
            with pytest.raises(Conflict, match="at most 50 tags"):
                conversation.tag(*[f"t{number}" for number in range(50)])
            with conversation.fork() as fork:
                assert fork.title == "Dates (fork)"
            query = "tag=bug&tag=customer%3Dacme%20%26%20sons"
            listing = server.ask("GET", f"/api/conversations?{query}").json
            assert {item["title"] for item in listing["items"]} == {"Dates", "Dates (fork)"}
            assert server.ask("GET", "/api/conversations?tag=none").json["items"] == []


def test_a_conversation_is_created_with_a_title_and_tags(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        form = form_of(Agent(ScriptedLLM(["Done."])))
        body = {"id": "a", "agent": form.mapping, "title": " Ticket  12 ", "tags": ["bug", "bug"]}
        for _ in range(2):  # the second request is a repetition
            answer = server.ask("POST", "/api/conversations", body, idempotency_key="k")
            assert (answer.status, answer.json["id"]) == (201, "a")
        [item] = server.ask("GET", "/api/conversations?tag=bug").json["items"]
        assert (item["title"], item["tags"], item["lastSeq"]) == ("Ticket 12", ["bug"], 1)
        assert server.ask("POST", "/api/conversations", {**body, "id": "a"}).status == 409
        server.ask("POST", "/api/conversations/a/messages", {"text": "Go"})
        server.ask("POST", "/api/conversations/a/run", {})
        until(lambda: server.host.status(T, "a") == "finished")
        assert server.host.get(T, "a").title == "Ticket 12"
        for wrong in ({"title": ""}, {"tags": [" x"]}):
            refused = server.ask("POST", "/api/conversations", {**body, "id": "b", **wrong})
            assert (refused.status, refused.error) == (422, "ConfigurationError")
        assert server.ask("GET", "/api/conversations/b").status == 404


def test_a_labelled_creation_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("The disk is full.")

    with host_of(tmp_path) as host:
        request = CreateRequest(agent=form_of(Agent(ScriptedLLM([]))).mapping, id="a", title="One")
        monkeypatch.setattr(host._records, "mark_complete", full)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(OSError, match="full"):
            host.create(T, request)
        monkeypatch.undo()
        assert host.list(T).items == []
        assert host.create(T, request).id == "a"
        assert host.get(T, "a").title == "One"


def test_a_label_or_a_question_that_is_wrong_in_any_state_is_invalid(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        place = server.make("a")

        def status(path: str, body: Any) -> int:
            return server.ask("POST", f"{place}/{path}", body).status

        assert status("labels", {"title": " "}) == 422
        assert status("labels", {}) == 422
        assert status("labels", {"add": [""]}) == 422
        assert status("ask", {"question": " "}) == 422
        assert status("ask", {"question": "Why?"}) == 409  # the conversation has no messages yet
        assert status("ask", {"question": "x" * 3_000_000}) == 413
