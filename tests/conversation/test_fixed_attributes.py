"""An assignment to a fixed attribute of a conversation raises an error that names the
alternative."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import (
    Agent,
    Conversation,
    MemoryStore,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
)
from tests.agent_servers import Serving

OTHER = Agent(ScriptedLLM(["other"]))


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("agent", OTHER, "conversation.use(agent)"),
        ("store", MemoryStore(), "Conversation(agent, store)"),
        ("id", "b", "Conversation(agent, store, id=...)"),
    ],
)
def test_what_a_conversation_is_made_of_is_not_assigned(
    name: str, value: object, advice: str
) -> None:
    with Conversation(Agent(ScriptedLLM(["one"])), id="a") as conversation:
        before = getattr(conversation, name)
        with pytest.raises(
            AttributeError,
            match=f"Conversation: '{name}' cannot be assigned. .*{re.escape(advice)}",
        ):
            setattr(conversation, name, value)
        assert getattr(conversation, name) is before
        conversation.send_message("hi")
        assert conversation.run().answer == "one"
        with conversation.fork(agent=OTHER) as forked:  # the call that the message recommends
            assert forked.agent is OTHER


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent", "workspace", "id", "client", "warnings"])
def test_what_a_remote_conversation_is_made_of_is_not_assigned(tmp_path: Path, name: str) -> None:
    with (
        Serving(tmp_path) as server,
        RemoteWorkspace(server.server.url, server.key) as workspace,
        RemoteConversation(Agent(ScriptedLLM(["one"])), workspace) as conversation,
    ):
        before = getattr(conversation, name)
        with pytest.raises(
            AttributeError, match=f"RemoteConversation: '{name}' cannot be assigned"
        ):
            setattr(conversation, name, OTHER)
        assert getattr(conversation, name) is before
