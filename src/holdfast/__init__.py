"""Holdfast: run LLM agents from plain objects, every step journaled before it acts.

This module exports the public names. Importing it loads none of them: each name is imported from
its package at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agent import Agent, Limits
    from holdfast.agent.load import load_agent
    from holdfast.content import ImageContent, Message, TextContent, ToolCall, ToolResult
    from holdfast.conversation import Conversation, ConversationState, ConversationStatus
    from holdfast.errors import ToolError
    from holdfast.llm import LLM, FallbackLLM, ScriptedLLM
    from holdfast.remote import RemoteConversation, RemoteWorkspace
    from holdfast.runtime import LocalRuntime
    from holdfast.store import MemoryStore, SQLiteStore
    from holdfast.tools import (
        Tool,
        ToolAnnotations,
        ToolContext,
        ToolManager,
        ToolRegistry,
        register_tool,
        tool,
    )
    from holdfast.tools.mcp import MCPClient

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent",
    "Conversation": "conversation",
    "ConversationState": "conversation",
    "ConversationStatus": "conversation",
    "FallbackLLM": "llm",
    "ImageContent": "content",
    "LLM": "llm",
    "Limits": "agent",
    "LocalRuntime": "runtime",
    "MCPClient": "tools.mcp",
    "MemoryStore": "store",
    "Message": "content",
    "RemoteConversation": "remote",
    "RemoteWorkspace": "remote",
    "SQLiteStore": "store",
    "ScriptedLLM": "llm",
    "TextContent": "content",
    "Tool": "tools",
    "ToolAnnotations": "tools",
    "ToolCall": "content",
    "ToolContext": "tools",
    "ToolError": "errors",
    "ToolManager": "tools",
    "ToolRegistry": "tools",
    "ToolResult": "content",
    "load_agent": "agent.load",
    "register_tool": "tools",
    "tool": "tools",
}

__all__ = [
    "LLM",
    "Agent",
    "Conversation",
    "ConversationState",
    "ConversationStatus",
    "FallbackLLM",
    "ImageContent",
    "Limits",
    "LocalRuntime",
    "MCPClient",
    "MemoryStore",
    "Message",
    "RemoteConversation",
    "RemoteWorkspace",
    "SQLiteStore",
    "ScriptedLLM",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolManager",
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

    found = globals()[name] = getattr(import_module(f"holdfast.{room}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
