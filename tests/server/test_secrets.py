"""Tests of the secrets of a conversation on an agent server: stored encrypted, used by its
commands, and shown by nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import (
    Agent,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    ToolContext,
    tool,
)
from holdfast import events as ev
from holdfast.errors import ConfigurationError, ConversationNotFound
from holdfast.server import forms
from holdfast.tools.secrets import Secret
from tests.agent_servers import Serving

VALUE = "s3cr3t-value-0123456789"
pytestmark = pytest.mark.slow


def results(conversation: RemoteConversation) -> list[str]:
    finished = [e for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)]
    return [event.result.text for event in finished]


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def agent_of(space: RemoteWorkspace, *script: Any) -> Agent:
    return Agent(ScriptedLLM([*script, "Done."]), space.tools)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_commands_on_the_server_use_them_and_no_byte_on_its_disk_has_them(
    tmp_path: Path, isolation: str
) -> None:
    lengths = ("terminal", {"command": 'printf %s "$TOKEN" | wc -c'})
    print_call = ("terminal", {"command": 'echo "$TOKEN" "$TOKEN" | tee /dev/null'})
    with (
        Serving(tmp_path, isolation=isolation) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
    ):
        secrets = {"TOKEN": Secret(lambda: VALUE, "reads repositories")}
        agent = agent_of(space, lengths, print_call, "One.", print_call)
        with RemoteConversation(agent, space, secrets=secrets, deltas=True) as conversation:
            conversation.send_message(f"Use {VALUE}.")
            conversation.run()
            assert results(conversation)[0].startswith(str(len(VALUE)))
            assert results(conversation)[1].startswith("<secret:TOKEN> <secret:TOKEN>\n")
            head = next(e for e in conversation.get_history() if isinstance(e, ev.AgentConfigured))
            assert "- TOKEN: reads repositories" in head.system_prompt
            names = server.ask("GET", f"/api/conversations/{conversation.id}/secrets")
            assert names.json == {"secrets": {"TOKEN": "reads repositories"}}
            # rotated while it is open: the new value is used, and both are masked
            conversation.set_secrets({"TOKEN": "another-" + VALUE[::-1]})
            conversation.send_message(f"Again, not {VALUE}.")
            conversation.run()
            assert results(conversation)[-1].startswith("<secret:TOKEN> <secret:TOKEN>\n")
            assert VALUE not in str(conversation.get_history())
            id = conversation.id
        with RemoteConversation(None, space, id) as again:
            assert VALUE not in str(again.get_history())
    stored = bytes_of(tmp_path)
    assert VALUE.encode() not in stored
    assert VALUE[::-1].encode() not in stored


def test_a_parked_conversation_and_a_restarted_server_keep_them(tmp_path: Path) -> None:
    command = ("terminal", {"command": 'printf %s "$TOKEN" | wc -c'})
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(agent_of(space, command), space, "c", secrets={"TOKEN": VALUE}),
    ):
        workspace = space.id
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key, id=workspace) as space,
        RemoteConversation(None, space, "c") as conversation,
    ):
        conversation.send_message("Go.")
        conversation.run()
        assert results(conversation)[0].startswith(str(len(VALUE)))


def test_a_replaced_value_is_masked_after_a_restart_and_in_a_fork(tmp_path: Path) -> None:
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(
            agent_of(space, ("terminal", {"command": "cat f; echo $TOKEN"})),
            space,
            "c",
            secrets={"TOKEN": VALUE},
        ) as conversation,
    ):
        space.write_file("f", f"{VALUE} {VALUE[::-1]}")
        conversation.set_secrets({"TOKEN": VALUE[::-1]})
        conversation.set_secrets({})  # no secret is left, and both values are masked
        workspace = space.id
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key, id=workspace) as space,
        RemoteConversation(None, space, "c") as conversation,
    ):
        for one in (conversation, conversation.fork(id="d")):
            one.send_message(f"Not {VALUE}.")
            one.run()
            assert results(one)[0].startswith("<secret:TOKEN> <secret:TOKEN>")
            assert VALUE not in str(one.get_history())
            one.close()
        assert server.ask("GET", "/api/conversations/d/secrets").json == {"secrets": {}}


def test_the_values_of_a_hundred_rotations_are_kept() -> None:
    stored: dict[str, str] = {"secret_1": "key"}
    for number in range(150):
        stored = forms.with_own_secrets(
            stored, {"A": Secret(f"value-{number:05d}"), "B": Secret(VALUE)}
        )
    assert forms.agent_secrets(stored) == {"secret_1": "key"}
    assert [value for _, value in forms.masked_secrets(stored)] == [
        f"value-{number:05d}" for number in range(49, 149)
    ]
    assert {name: str(one.value) for name, one in forms.own_secrets(stored).items()} == {
        "A": "value-00149",
        "B": VALUE,
    }


def test_the_same_agent_can_open_it_again(tmp_path: Path) -> None:
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
    ):
        agent = agent_of(space)
        with RemoteConversation(agent, space, "c", secrets={"TOKEN": VALUE}) as conversation:
            conversation.send_message("Go.")
            conversation.run()
        with RemoteConversation(agent, space, "c") as again:
            assert again.state.answer == "Done."


def test_a_tool_of_the_client_asks_the_client(tmp_path: Path) -> None:
    @tool
    def use(context: ToolContext) -> str:
        """Use it."""
        return f"used {context.secret('TOKEN')}"

    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(
            Agent(ScriptedLLM([("use", {}), "Done."]), [use]), space, secrets={"TOKEN": VALUE}
        ) as conversation,
    ):
        conversation.send_message("Go.")
        conversation.run()
        assert results(conversation) == ["used <secret:TOKEN>"]


def test_a_fork_has_them_and_one_with_another_agent_has_not(tmp_path: Path) -> None:
    command = ("terminal", {"command": 'echo "[$TOKEN]"'})
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(agent_of(space, command), space, secrets={"TOKEN": VALUE}) as origin,
    ):
        path = f"/api/conversations/{origin.id}"
        same = server.ask("POST", f"{path}/fork", {}).json["id"]
        names = server.ask("GET", f"/api/conversations/{same}/secrets").json
        assert names == {"secrets": {"TOKEN": ""}}
        with origin.fork(agent=agent_of(space, command), secrets=None) as other:
            names = server.ask("GET", f"/api/conversations/{other.id}/secrets").json
            assert names == {"secrets": {}}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"secrets": {"TOKEN": "short"}}, "fewer than 8 characters"),
        ({"secrets": {"PATH": "12345678"}}, "changes how programs start"),
        ({"secrets": {"A B": "12345678"}}, "names of environment variables"),
        ({"secrets": {"TOKEN": "x" * 70_000}}, "secrets_bytes|too much|at most"),
        ({"secrets": {"TOKEN": None}}, "TOKEN|secrets"),
        ({}, "secrets"),
    ],
)
def test_bad_requests_change_nothing(tmp_path: Path, body: Any, problem: str) -> None:
    import re

    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
        RemoteConversation(agent_of(space), space, secrets={"TOKEN": VALUE}) as conversation,
    ):
        path = f"/api/conversations/{conversation.id}/secrets"
        answer = server.ask("PUT", path, body)
        assert answer.status in (400, 413, 422), answer
        assert re.search(problem, str(answer.json)), answer.json
        assert "12345678" not in str(answer.json)
        assert server.ask("GET", path).json == {"secrets": {"TOKEN": ""}}
        # another tenant's conversation does not exist
        assert server.ask("GET", path, key=server.other).status == 404
        assert server.ask("PUT", path, {"secrets": {}}, server.other).status == 404


def test_secrets_for_an_unknown_conversation_or_a_bad_value(tmp_path: Path) -> None:
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as space,
    ):
        with pytest.raises(ConfigurationError, match="fewer than 8"):
            RemoteConversation(agent_of(space), space, secrets={"TOKEN": "x"})
        with pytest.raises(ConversationNotFound):
            RemoteConversation(None, space, "nobody", secrets={"TOKEN": VALUE})


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_every_value_that_was_put_is_masked_though_many_were_put_at_once(
    tmp_path: Path, isolation: str
) -> None:
    values = [f"value-number-{number:04}" for number in range(12)]

    def answer_of(server: Serving) -> str:
        reply = server.ask("POST", "/api/conversations/a/messages", {"text": " ".join(values)})
        assert reply.status == 202, reply
        events = server.ask("GET", "/api/conversations/a/events").json["events"]
        return [event for event in events if event["type"] == "message"][-1]["content"][0]["text"]

    with Serving(tmp_path, isolation=isolation) as server:
        server.make("a")

        def put(value: str) -> None:
            body = {"secrets": {"TOKEN": value}}
            replies.append(server.ask("PUT", "/api/conversations/a/secrets", body).status)

        replies: list[int] = []
        threads = [threading.Thread(target=put, args=(value,)) for value in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert replies == [200] * len(values)
        assert [value for value in values if value in answer_of(server)] == []
    with Serving(tmp_path, isolation=isolation) as server:
        assert [value for value in values if value in answer_of(server)] == []
        assert answer_of(server) == " ".join(["<secret:TOKEN>"] * len(values))


def test_tools_and_secrets_that_are_put_at_once_are_both_kept(tmp_path: Path) -> None:
    with Serving(tmp_path) as server:
        server.make("a")
        for number in range(10):
            schema = {"type": "object", "properties": {}}
            tools = {"tools": [{"name": f"tool_{number}", "inputSchema": schema}]}
            secrets = {"secrets": {"TOKEN": f"{VALUE}-{number}"}}
            threads = [
                threading.Thread(
                    target=server.ask, args=("PUT", f"/api/conversations/a/{name}", body)
                )
                for name, body in (("tools", tools), ("secrets", secrets))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            live = server.host._scheduler.conversations.find("a")
            assert live is not None
            stored = server.host._records.find("default", "a")
            assert live.record.secrets == stored.secrets
            assert live.record.tools == stored.tools
