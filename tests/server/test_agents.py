"""Tests of agents that are held between the creation of a conversation and its first run, and of
forms that were validated before: a change in the meantime takes effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import LLM, Agent, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.commands import Send
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError, Conflict
from holdfast.server import agents, policy
from holdfast.server.hosted import HostedDoor
from holdfast.server.limits import Bounds
from holdfast.server.openai import Published, publish
from holdfast.server.policy import Policy
from holdfast.server.records import ConversationOptions
from holdfast.server.shapes import AgentRequest, CreateRequest, SecretValue
from tests.model_server import ModelServer, text
from tests.server_host_program import host_of
from tests.waiting import until

T = "default"


def saying(answer: str, id: str = "a") -> CreateRequest:
    form = form_of(Agent(ScriptedLLM([answer])))
    return CreateRequest(id=id, agent=form.mapping, secrets=form.secrets)


def published(answer: str) -> Published:
    return publish("p", Agent(ScriptedLLM([answer])))


def answer_of(host: Any, id: str = "a", tenant: str = T) -> str:
    host.run(tenant, id)
    host.execute(tenant, id, Send((TextContent("hello"),)))
    host.run(tenant, id)
    until(lambda: host.status(tenant, id) == "finished", id)
    return host.state(tenant, id).answer


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the tenants whose agents are built, in order."""
    tenants: list[str] = []
    build = agents.build_agent

    def counted(record: Any, *arguments: Any) -> Any:
        tenants.append(record.tenant)
        return build(record, *arguments)

    monkeypatch.setattr(agents, "build_agent", counted)
    return tenants


def test_a_new_conversation_has_the_agent_that_was_checked(
    tmp_path: Path, built: list[str]
) -> None:
    with host_of(tmp_path) as host:
        host.create(T, saying("one"))
        assert (answer_of(host), built) == ("one", [T])


def test_an_agent_that_was_replaced_before_the_first_run_is_not_used(tmp_path: Path) -> None:
    with host_of(tmp_path) as host:
        host.create(T, saying("one"))
        host.chats.refit(T, "a", saying("two"), b"")
        assert answer_of(host) == "two"
        host.delete(T, "a")
        host.create(T, saying("three"))
        host.use(T, "a", AgentRequest(agent=saying("four").agent))
        assert answer_of(host) == "four"
        host.delete(T, "a")
        host.create(T, saying("five"))
        assert answer_of(host) == "five"


def test_tenants_with_a_conversation_of_the_same_id_have_their_own_agents(tmp_path: Path) -> None:
    with host_of(tmp_path) as host:
        host.create(T, saying("one"))
        host.create("other", saying("two"))
        assert answer_of(host) == "one"
        assert answer_of(host, tenant="other") == "two"


def test_a_secret_that_changes_before_the_first_run_is_used(tmp_path: Path) -> None:
    with ModelServer(lambda _: text("yes")) as provider, host_of(tmp_path) as host:
        form = form_of(Agent(LLM("m", base_url=provider.url, api_key="${PROVIDER_KEY}")))
        for key in ("sk-the-first-one", "sk-the-second-one"):
            host.named_parts.set_secret(T, "PROVIDER_KEY", SecretValue(key, ""))
            if key == "sk-the-first-one":
                host.create(T, CreateRequest(id="a", agent=form.mapping, secrets=form.secrets))
        assert answer_of(host) == "yes"
        used = {request.headers["authorization"] for request in provider.requests}
        assert used == {"Bearer sk-the-second-one"}


def test_the_newest_agents_alone_are_kept(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_MOST_FRESH", 2)
    with host_of(tmp_path) as host:
        for id in ("a", "b", "c"):
            host.create(T, saying(id, id))
        assert [answer_of(host, id) for id in ("a", "b", "c")] == ["a", "b", "c"]
        assert len(built) == 4  # the oldest one once more


# --- published agents ---


def test_an_agent_that_is_published_anew_answers_in_the_next_conversation(tmp_path: Path) -> None:
    with host_of(tmp_path) as host:
        door = HostedDoor(host, T)
        for answer in ("one", "two"):
            session, conversation = door.create(published(answer))
            assert (session.id, conversation.status) == (conversation.id, "idle")
            assert answer_of(host, conversation.id) == answer


def test_a_new_chat_is_a_chat_from_its_first_moment(tmp_path: Path) -> None:
    with host_of(tmp_path, bounds=Bounds(conversations=1)) as host:
        door = HostedDoor(host, T)
        first, _ = door.create(published("one"), "first")
        assert host.chats.rows.setting(T, "first") != b""
        with pytest.raises(Conflict):
            door.create(published("one"), "first")
        assert answer_of(host, "first") == "one"
        second, _ = door.create(published("two"))  # the oldest chat makes room
        assert host.chats.rows.oldest(T, 10) == [second.id] != [first.id]


# --- valid forms ---

COMMAND = {"mcp_servers": {"git": {"command": "git-server"}}}


def test_a_refused_form_is_refused_again(tmp_path: Path) -> None:
    with host_of(tmp_path) as host:
        bad = {**saying("one").agent, "output_type": "os:system"}
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="os"):
                host.create(T, CreateRequest(agent=bad))


def test_a_form_that_is_in_order_in_a_sandbox_alone_is_refused_outside(tmp_path: Path) -> None:
    with host_of(tmp_path, policy=Policy()) as host:
        form = {**saying("one").agent, "tools": COMMAND}
        parts = host._agents.requested_parts
        parts(T, form, {}, [], ConversationOptions())
        boxed = ConversationOptions(sandbox="require")
        with pytest.raises(ConfigurationError, match="programs"):
            parts(T, form, {}, [], boxed)
        with pytest.raises(ConfigurationError, match="programs"):
            parts(T, form, {}, [], boxed)


def test_the_forms_in_order_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_MOST_APPROVED", 3)
    approved = policy.ApprovedForms()
    hashes = [approved.hash({"number": number}, "requested") for number in range(7)]
    for hash in hashes:
        approved.add(hash)
    assert [hash in approved for hash in hashes] == [False] * 6 + [True]
    assert approved.hash({"number": 1}, "imported") != hashes[1]
