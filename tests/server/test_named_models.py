"""Tests of named models and a tenant's secrets on an agent server: agents use them, and nothing
shows them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import LLM, Agent, FallbackLLM, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.serial_form import form_of
from holdfast.errors import ConfigurationError, NotFound, TooMany
from holdfast.llm import NamedModel
from holdfast.remote.models import ServerModels
from holdfast.server import forms
from holdfast.server.limits import Bounds
from holdfast.server.named_parts import NamedParts, offer
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.shapes import SecretValue
from tests.agent_servers import Serving
from tests.model_server import ModelServer, text
from tests.postgres import PostgresServer

KEY, OWN = "sk-of-the-operator-0123", "sk-of-the-tenant-4567"


@pytest.fixture
def provider() -> Iterator[ModelServer]:
    with ModelServer(lambda request: text(f"I am {request.json['model']}.")) as server:
        yield server


@pytest.fixture
def serving(tmp_path: Path, provider: ModelServer) -> Iterator[Serving]:
    offered = {"fast": offer("fast", LLM("operators", base_url=provider.url, api_key=KEY))}
    with Serving(tmp_path, models=offered, bounds=Bounds(named=2)) as server:
        yield server


def space_of(server: Serving, key: str = "") -> RemoteWorkspace:
    return RemoteWorkspace(f"http://127.0.0.1:{server.port}", key or server.key)


def answer(agent: Agent, space: RemoteWorkspace) -> str | None:
    with RemoteConversation(agent, space) as conversation:
        conversation.send_message("Who are you?")
        return conversation.run().answer


def used_keys(provider: ModelServer) -> list[str]:
    return [
        request.headers["authorization"].removeprefix("Bearer ") for request in provider.requests
    ]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_every_tenant_may_name_a_model_of_the_operator(
    tmp_path: Path, provider: ModelServer, isolation: str
) -> None:
    offered = {"fast": offer("fast", LLM("operators", base_url=provider.url, api_key=KEY))}
    with Serving(tmp_path, models=offered, isolation=isolation) as server:
        for key in (server.key, server.other):
            with space_of(server, key) as space:
                several = FallbackLLM({"a": NamedModel("fast")})
                assert answer(Agent(NamedModel("fast")), space) == "I am operators."
                assert answer(Agent(several), space) == "I am operators."
        assert set(used_keys(provider)) == {KEY}
        listed = server.ask("GET", "/api/models", key=server.other)
        [item] = listed.json["models"]
        assert (item["name"], item["owner"], item["model"], item["key"]) == (
            "fast",
            "server",
            "operators",
            True,
        )
        assert KEY.encode() not in listed.body
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in stored


def test_a_tenant_keeps_models_and_keys_of_its_own(
    serving: Serving, provider: ModelServer, tmp_path: Path
) -> None:
    with space_of(serving) as space, space_of(serving, serving.other) as other:
        own = ServerModels(space)
        own.set_secret("PROVIDER_KEY", OWN, "of the team")
        own.set("fast", {"name": "tenants", "base_url": provider.url, "api_key": "${PROVIDER_KEY}"})
        assert own.secrets() == {"PROVIDER_KEY": "of the team"}
        assert [(one.name, one.owner, one.key) for one in own.list()] == [("fast", "tenant", True)]
        assert answer(Agent(NamedModel("fast")), space) == "I am tenants."
        direct = LLM("direct", base_url=provider.url, api_key="${PROVIDER_KEY}")
        assert answer(Agent(direct), space) == "I am direct."
        # Another tenant does not have them.
        assert (ServerModels(other).secrets(), ServerModels(other).list()[0].owner) == (
            {},
            "server",
        )
        assert answer(Agent(NamedModel("fast")), other) == "I am operators."
        with pytest.raises(ConfigurationError, match="PROVIDER_KEY"):
            answer(Agent(direct), other)
        assert used_keys(provider) == [OWN, OWN, KEY]
        own.remove("fast")
        assert own.list()[0].owner == "server"
        with pytest.raises(NotFound):
            own.remove("fast")
        own.remove_secret("PROVIDER_KEY")
        with pytest.raises(NotFound):
            own.remove_secret("PROVIDER_KEY")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert OWN.encode() not in stored


def test_a_changed_model_is_used_when_a_conversation_is_opened_next(
    serving: Serving, provider: ModelServer
) -> None:
    with space_of(serving) as space:
        own = ServerModels(space)
        own.set("mine", {"name": "first", "base_url": provider.url, "api_key": OWN})
        conversation = RemoteConversation(Agent(NamedModel("mine")), space, "a")
        conversation.send_message("Who are you?")
        assert conversation.run().answer == "I am first."
        conversation.close()
        own.set("mine", {"name": "second", "base_url": provider.url, "api_key": OWN})
        with RemoteConversation(Agent(NamedModel("mine")), space, "a") as conversation:
            conversation.send_message("And now?")
            assert conversation.run().answer == "I am second."
            conversation.use(Agent(NamedModel("fast")))
            conversation.send_message("And now?")
            assert conversation.run().answer == "I am operators."
            with conversation.fork(agent=Agent(NamedModel("mine"))) as fork:
                fork.send_message("And you?")
                assert fork.run().answer == "I am second."


def test_an_unknown_model_is_refused_with_the_known_ones(serving: Serving) -> None:
    with space_of(serving) as space:
        with pytest.raises(ConfigurationError, match=r"no model 'fsat'\. Did you mean 'fast'\?"):
            answer(Agent(NamedModel("fsat")), space)
        own = ServerModels(space)
        for wrong in (
            {"named": "fast"},
            {"fallback": [{"named": "fast"}]},
            {"nam": "gpt-5"},
            {"name": "gpt-5", "api_key": "${GONE}"},
            {"use": "subprocess:run"},
        ):
            with pytest.raises(ConfigurationError):
                own.set("mine", wrong)
        for name, value in (("secret_1", OWN), ("named_x", OWN), ("A", "short"), ("-", OWN)):
            with pytest.raises(ConfigurationError):
                own.set_secret(name, value)
        assert [one.name for one in own.list()] == ["fast"]
        for name in ("A", "B"):
            own.set_secret(name, OWN)
        own.set_secret("A", f"{OWN}-new")
        with pytest.raises(TooMany):
            own.set_secret("C", OWN)


def test_a_tenant_cannot_make_the_server_show_a_key(
    serving: Serving, provider: ModelServer
) -> None:
    with space_of(serving) as space:
        ServerModels(space).set_secret("TOKEN", OWN)
        # In a prompt the name of a secret is an unknown variable.
        form: dict[str, Any] = {"model": {"named": "fast"}, "system_prompt": "Say ${TOKEN}."}
        reply = serving.ask("POST", "/api/conversations", {"agent": form})
        assert (reply.status, "'TOKEN' is not given" in reply.json["error"]["message"]) == (
            422,
            True,
        )
        # A script is no model: what looks like a name in it stays a text.
        script = {"script": [{"named": "fast"}]}
        form = {"model": {"use": "scripted", "parameters": script}}
        assert serving.host.named_parts.resolve("other", form) == (form, {})


def test_a_sub_agent_cannot_send_the_key_of_a_named_model_elsewhere(tmp_path: Path) -> None:
    models = {"fast": offer("fast", LLM("gpt-5", api_key=KEY))}
    with Serving(tmp_path, models=models) as server:
        sub = SubAgent("far", prompt="Answer.", model="ollama/mine")
        form = form_of(Agent(NamedModel("fast"), delegates={"far": sub})).mapping
        resolved, values = server.host.named_parts.resolve("other", form)
        assert list(values.values()) == [KEY]
        agent = Agent.from_json(json.dumps(resolved), variables=values)
        assert agent.delegates is not None
        with pytest.raises(ConfigurationError, match="needs a key of its own"):
            agent.delegates.agent("far")


def test_models_are_found_in_every_place_of_a_form() -> None:
    reference = {"named": "fast"}
    form: dict[str, Any] = {
        "model": [reference, {"router": {"a": reference}, "pick": "m:f"}],
        "describe_images": reference,
        "title": reference,
        "models": {"a": reference},
        "condenser": [
            {"name": "llm", "model": reference},
            {"name": "x", "otherwise": {"name": "llm", "model": reference}},
        ],
        "confirm": {"strictest": [{"judge": "no", "model": reference}]},
        "hooks": [{"on": "x", "model": reference}, {"on": "x", "agent": {"model": reference}}],
        "delegates": {
            "a": {"model": reference},
            "b": {"prompt": "x", "model": reference},
            "c": "file",
        },
        "handoffs": {"a": None, "b": {"model": reference}},
    }
    models: list[Any] = []
    replaced = forms.with_models(form, lambda model: models.append(model) or "M")
    assert models.count(reference) == 12
    assert replaced["delegates"] == {
        "a": {"model": "M"},
        "b": {"prompt": "x", "model": reference},
        "c": "file",
    }
    assert replaced["model"] == ["M", "M"]
    assert form["title"] == reference  # the given form is unchanged


def test_whatever_was_set_can_be_listed(serving: Serving) -> None:
    named_models = serving.host.named_parts
    for form in (
        {"name": "a", "base_url": "http://[${X}]/v1", "prices": {"input": "${P}", "output": 2}},
        [{"name": "gpt-5"}, "gpt-5-mini"],
    ):
        named_models.set_model("other", "mine", form)
        listed = ServerModels(space_of(serving, serving.other)).list()
        assert [one.name for one in listed] == ["fast", "mine"]
    assert (listed[1].model, listed[1].key) == ("fallback of 2", False)
    named_models.set_model("other", "mine", {"router": {"a": "gpt-5"}, "pick": "m:f"})
    named_models.set_model("other", "gone", {"name": "gpt-5", "api_key": "${GONE}"})
    assert [one.key for one in named_models.models("other")] == [True, False, False]


def test_the_models_of_a_server_without_any_are_none(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        assert server.ask("GET", "/api/models").json == {"models": []}
        assert server.ask("GET", "/api/secrets").json == {"secrets": {}}
        form = form_of(Agent(ScriptedLLM([]))).mapping
        assert server.host.named_parts.resolve("default", form) == (form, {})


@pytest.mark.slow
def test_servers_of_one_database_share_the_named_parts(
    postgres_server: PostgresServer, postgres_schema: str, tmp_path: Path
) -> None:
    from holdfast.server.postgres_database import PostgresDatabase  # needs psycopg

    seal = Seal.of_file(tmp_path / "server.key")

    def opened() -> tuple[Records, NamedParts]:
        records = Records(PostgresDatabase(postgres_server.dsn(), postgres_schema), seal)
        return records, NamedParts(records, {}, 2)

    (one, first), (two, second) = opened(), opened()
    with contextlib.closing(one), contextlib.closing(two):
        first.set_model("acme", "fast", {"name": "gpt-5", "api_key": "${A}"})
        first.set_secret("acme", "A", SecretValue(OWN, "of the team"))
        second.set_secret("acme", "A", SecretValue(f"{OWN}-new"))
        form, values = first.resolve("acme", {"model": {"named": "fast"}})
        [(name, value)] = values.items()
        assert (form["model"]["api_key"], value) == (f"${{{name}}}", f"{OWN}-new")
        assert second.secrets("acme") == {"A": ""}
        first.set_secret("acme", "B", SecretValue(OWN))
        with pytest.raises(TooMany):
            second.set_secret("acme", "C", SecretValue(OWN))
        second.remove_model("acme", "fast")
        assert first.models("acme") == []
        with pytest.raises(NotFound):
            first.remove_model("acme", "fast")
