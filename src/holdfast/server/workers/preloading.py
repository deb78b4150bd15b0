"""Preloading in the fork server: loads and uses the modules that most workers need once, so that
the forks share their memory."""

from __future__ import annotations

import json
import threading
from importlib import import_module

from holdfast.agent.agent import Agent
from holdfast.conversation import Conversation
from holdfast.tools import Tool

# Modules that are otherwise imported at their first use, each 1 to 50 ms in every worker. The
# package mcp (600 ms, 20 MB) is not among them, because few conversations use MCP servers.
_MODULES = (
    "asyncio",
    "concurrent.futures.thread",
    "encodings.idna",
    "holdfast.agent.config",
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


def preload() -> None:
    """Import the modules and run a conversation with a tool and a scripted model. Leaves no
    thread behind, because a process with threads cannot be forked safely."""
    for name in _MODULES:
        import_module(name)

    def look(key: str, limit: int = 1, names: list[str] | None = None) -> str:
        """Look."""
        return key

    script = [{"name": "look", "arguments": {"key": "a"}}, "done"]
    form = {
        "model": {"use": "scripted", "parameters": {"script": script}},
        "tools": {"builtin": ["look"]},
    }
    agent = Agent.from_json(json.dumps(form), builtins=[Tool.from_function(look)])
    with Conversation(agent) as conversation:
        conversation.send_message("hello")
        conversation.run()
    if (threads := threading.active_count()) > 1:
        raise RuntimeError(
            f"preparing the fork server left {threads - 1} threads running, which a fork would lack"
        )
