"""Holdfast: run LLM agents from plain objects, every step journaled before it acts.

Importing this module loads none of the public names: each is imported from its package at its first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agent import Agent, Limits, StuckDetector
    from holdfast.agent.condensers import LLMCondenser, ToolOutputCondenser
    from holdfast.agent.goal import Goal
    from holdfast.agent.load import load_agent
    from holdfast.content import (
        FileContent,
        ImageContent,
        Message,
        TextContent,
        ToolCall,
        ToolResult,
    )
    from holdfast.conversation import Conversation, ConversationState, ConversationStatus
    from holdfast.errors import RunFailed, ToolError
    from holdfast.llm import LLM, FallbackLLM, RecordedLLM, RouterLLM, ScriptedLLM
    from holdfast.remote import ContainerRuntime, RemoteConversation, RemoteWorkspace
    from holdfast.runtime import LocalRuntime
    from holdfast.runtime.sandbox import (
        Mount,
        SandboxedRuntime,
        SandboxLimits,
        SandboxUnavailable,
    )
    from holdfast.store import MemoryStore, PostgresStore, SQLiteStore
    from holdfast.tools import (
        RetryPolicy,
        Tool,
        ToolAnnotations,
        ToolContext,
        ToolManager,
        ToolRegistry,
        register_tool,
        tool,
    )
    from holdfast.tools.a2a import A2AClient
    from holdfast.tools.hooks import Hook
    from holdfast.tools.mcp import MCPClient

__version__ = "0.1.0"

# The names of each room.
_ROOMS = {
    "agent": ("Agent", "Limits", "StuckDetector"),
    "agent.goal": ("Goal",),
    "agent.condensers": ("LLMCondenser", "ToolOutputCondenser"),
    "agent.load": ("load_agent",),
    "content": ("FileContent", "ImageContent", "Message", "TextContent", "ToolCall", "ToolResult"),
    "conversation": ("Conversation", "ConversationState", "ConversationStatus"),
    "errors": ("RunFailed", "ToolError"),
    "llm": ("FallbackLLM", "LLM", "RecordedLLM", "RouterLLM", "ScriptedLLM"),
    "remote": ("ContainerRuntime", "RemoteConversation", "RemoteWorkspace"),
    "runtime": ("LocalRuntime",),
    "runtime.sandbox": ("Mount", "SandboxLimits", "SandboxUnavailable", "SandboxedRuntime"),
    "store": ("MemoryStore", "PostgresStore", "SQLiteStore"),
    "tools": (
        "RetryPolicy",
        "Tool",
        "ToolAnnotations",
        "ToolContext",
        "ToolManager",
        "ToolRegistry",
        "register_tool",
        "tool",
    ),
    "tools.a2a": ("A2AClient",),
    "tools.hooks": ("Hook",),
    "tools.mcp": ("MCPClient",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "LLM",
    "A2AClient",
    "Agent",
    "ContainerRuntime",
    "Conversation",
    "ConversationState",
    "ConversationStatus",
    "FallbackLLM",
    "FileContent",
    "Goal",
    "Hook",
    "ImageContent",
    "LLMCondenser",
    "Limits",
    "LocalRuntime",
    "MCPClient",
    "MemoryStore",
    "Message",
    "Mount",
    "PostgresStore",
    "RecordedLLM",
    "RemoteConversation",
    "RemoteWorkspace",
    "RetryPolicy",
    "RouterLLM",
    "RunFailed",
    "SQLiteStore",
    "SandboxLimits",
    "SandboxUnavailable",
    "SandboxedRuntime",
    "ScriptedLLM",
    "StuckDetector",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolManager",
    "ToolOutputCondenser",
    "ToolRegistry",
    "ToolResult",
    "load_agent",
    "register_tool",
    "tool",
]


def __getattr__(name: str) -> Any:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"holdfast.{room}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
