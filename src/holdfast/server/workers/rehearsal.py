"""What most workers need, loaded and used once in the fork server, so that its forks have it in
memory that they share."""

from __future__ import annotations

import json
import threading
from importlib import import_module

# What is loaded at its first use, each 1 to 50 ms in every worker. Not mcp, of 600 ms and 20 MB:
# few conversations have such services.
_ROOMS = (
    "asyncio",
    "concurrent.futures.thread",
    "encodings.idna",
    "holdfast.agent.load",
    "holdfast.llm.client",
    "holdfast.llm.http",
    "holdfast.llm.wires.anthropic_messages",
    "holdfast.llm.wires.gemini",
    "holdfast.llm.wires.openai_chat",
    "holdfast.llm.wires.openai_responses",
    "holdfast.runtime.builtin",
    "holdfast.runtime.processes",
    "holdfast.server.workers.worker",
    "http.client",
    "jsonschema",
    "pydantic.main",
    "pydantic.type_adapter",
    "ssl",
    "yaml",
)


def rehearse() -> None:
    """Import, and have a conversation with a tool and no model. Leaves no thread behind, or no fork
    could be made."""
    for name in _ROOMS:
        import_module(name)
    from holdfast.agent.form import agent_of
    from holdfast.conversation import Conversation
    from holdfast.tools import Tool

    def look(key: str, limit: int = 1, names: list[str] | None = None) -> str:
        """Look."""
        return key

    script = [{"name": "look", "arguments": {"key": "a"}}, "done"]
    form = {
        "model": {"use": "scripted", "parameters": {"script": script}},
        "tools": {"builtin": ["look"]},
    }
    agent = agent_of(json.dumps(form).encode(), {}, {"look": Tool.from_function(look)})
    with Conversation(agent) as conversation:
        conversation.send_message("hello")
        conversation.run()
    if (left := threading.active_count()) > 1:
        raise RuntimeError(
            f"the rehearsal left {left - 1} threads, of which a fork would have none"
        )
