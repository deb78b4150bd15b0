"""Tests of `RemoteConversation.from_state`: a conversation continues on an agent server, as
`Conversation.from_state` continues it here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    MemoryStore,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    tool,
)
from holdfast import events as ev
from holdfast.errors import ConfigurationError, Conflict
from tests.agent_servers import Serving


@tool
def write(text: str) -> str:
    """Write something."""
    return f"wrote {text}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path) as running:
        yield running


@pytest.fixture
def workspace(server: Serving) -> Iterator[RemoteWorkspace]:
    with RemoteWorkspace(server.server.url, server.key) as connected:
        yield connected


def answered_state() -> ConversationState:
    with Conversation(Agent(ScriptedLLM(["one"]))) as conversation:
        conversation.send_message("hello")
        return conversation.run()


def waiting() -> ConversationState:
    """Return the state of a conversation whose call waits for a decision."""
    with Conversation(
        Agent(ScriptedLLM([[("write", {"text": "a"})]]), [write], confirm="always")
    ) as conversation:
        conversation.send_message("hello")
        state = conversation.run()
        assert state.status == "waiting_for_confirmation"
        return state


def shapes(events: list[ev.AnyEvent]) -> list[tuple[str, str]]:
    """Return the parts that two conversations of one state have in common. An agent's tools run
    elsewhere on a server."""
    return [
        (event.type, event.result.text if isinstance(event, ev.ToolCallFinished) else "")
        for event in events
        if event.type != "agent"
    ]


@pytest.mark.slow
def test_a_state_goes_on_on_a_server(workspace: RemoteWorkspace) -> None:
    state = answered_state()
    with RemoteConversation.from_state(
        state, Agent(ScriptedLLM(["two"])), workspace, "copy"
    ) as conversation:
        assert conversation.id == "copy"
        assert conversation.get_history() == list(state.events)
        conversation.send_message("and on")
        end = conversation.run()
        assert (end.status, end.answer) == ("finished", "two")
        assert end.events[: len(state.events)] == state.events
    with RemoteConversation(None, workspace, "copy") as again:
        assert again.state.answer == "two"


@pytest.mark.slow
def test_what_waits_is_as_in_a_copy_that_is_made_here(workspace: RemoteWorkspace) -> None:
    state = waiting()
    agent = Agent(ScriptedLLM(["Done."]), [write], confirm="always")
    with (
        Conversation.from_state(state, agent, MemoryStore(), "copy") as local,
        RemoteConversation.from_state(state, agent, workspace, "copy") as remote,
    ):
        assert shapes(remote.get_history()) == shapes(local.get_history())
        assert remote.status == local.status
        assert [one.call.id for one in remote.state.pending_confirmations] == [
            one.call.id for one in local.state.pending_confirmations
        ]
        for each in (local, remote):
            if each.state.pending_confirmations:
                each.approve()
        assert remote.run().status == local.run().status
        ran = [
            event
            for event in remote.get_history()
            if event.type not in ("agent", "toolCallStarted")
        ]
        assert [event.type for event in ran] == [
            event.type
            for event in local.get_history()
            if event.type not in ("agent", "toolCallStarted")
        ]


@pytest.mark.slow
def test_a_state_is_taken_once(workspace: RemoteWorkspace, server: Serving) -> None:
    state = answered_state()
    path = "/api/conversations/copy"
    with RemoteConversation.from_state(state, Agent(ScriptedLLM(["one"])), workspace, "copy"):
        for _ in range(2):  # sent again by a client whose connection broke
            assert server.ask("PUT", f"{path}/state", state.to_json()).status == 200
        assert server.ask("PUT", f"{path}/state", answered_state().to_json()).status == 409
        assert server.ask("PUT", f"{path}/state", state.to_json(), server.other).status == 404
    with pytest.raises(Conflict, match="'copy' has events already"):
        RemoteConversation.from_state(
            answered_state(), Agent(ScriptedLLM(["one"])), workspace, "copy"
        )
    assert server.ask("GET", path).status == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"version":1,"id":"a","status":"idle","events":[{"type":"message"}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_is_no_state_is_refused_and_leaves_nothing(
    workspace: RemoteWorkspace, server: Serving, body: bytes
) -> None:
    with RemoteConversation(Agent(ScriptedLLM(["one"])), workspace, "new"):
        assert server.ask("PUT", "/api/conversations/new/state", body).status in (400, 422)
        assert server.store.list(["new"]) == []


def test_a_state_that_is_refused_leaves_no_conversation(
    workspace: RemoteWorkspace, server: Serving
) -> None:
    with pytest.raises(ConfigurationError, match="state takes a ConversationState"):
        RemoteConversation.from_state("state", Agent(ScriptedLLM(["one"])), workspace, "a")  # pyright: ignore[reportArgumentType]
    state = answered_state()
    holed = ConversationState(state.id, [event for event in state.events if event.seq != 2])
    with pytest.raises(ConfigurationError):
        RemoteConversation.from_state(holed, Agent(ScriptedLLM(["one"])), workspace, "a")
    assert server.ask("GET", "/api/conversations/a").status == 404


def test_a_remote_conversation_is_imported_from_where_the_proposal_names_it() -> None:
    from holdfast import conversation

    assert conversation.RemoteConversation is RemoteConversation
    assert "RemoteConversation" in dir(conversation)
