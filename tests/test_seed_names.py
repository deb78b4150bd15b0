"""Tests of the names that the documents which Holdfast follows give to classes, methods, fields and
JSON keys."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

import holdfast
from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationState,
    LocalRuntime,
    RemoteConversation,
    RemoteWorkspace,
    Tool,
    ToolCall,
    ToolManager,
    ToolRegistry,
    ToolResult,
)
from holdfast.errors import RETRY_PRESETS, ToolError, ToolNotFound
from holdfast.server.shapes import CreateRequest
from holdfast.tools.preset.planning import register_planning_tools


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


NAMES: list[tuple[Any, str]] = [
    (LLM, "completion"),
    (Agent, "step"),
    (
        Conversation,
        (
            "start_thread pause resume close get_state get_history register_event_callback"
            " register_callback state send_message from_state"
        ),
    ),
    (ConversationState, "to_json from_json status"),
    (ToolCall("", "t", {}), "name arguments"),
    (LocalRuntime, "clone_repo run_command read_file load_microagents tools get_tools"),
    (
        RemoteConversation,
        (
            "start_thread pause resume close get_state get_history register_event_callback"
            " send_message"
        ),
    ),
    (
        ToolManager,
        (
            "register unregister discover call acall get list_tools get_schema get_llm_definitions"
            " get_tool_info summary health close from_config"
        ),
    ),
    (ToolRegistry, "register_tool get_tool_module_qualnames import_module"),
    (holdfast, "register_tool MCPClient ConversationStatus load_agent"),
    (Tool.from_function(add), "name description callback tool_type call validate to_langchain"),
    (ToolError("x"), "error_type retryable max_retries backoff"),
]


@pytest.mark.parametrize(
    ("owner", "names"),
    NAMES,
    ids=[getattr(owner, "__name__", type(owner).__name__) for owner, _ in NAMES],
)
def test_what_a_document_names_is_there(owner: Any, names: str) -> None:
    assert [name for name in names.split() if not hasattr(owner, name)] == []


def test_a_tool_result_has_the_documents_json() -> None:
    document = {
        "content": [{"type": "text", "text": "Hello world"}],
        "meta": {"observationType": "CmdOutputObservation", "exitCode": 0},
        "isError": False,
    }
    assert json.loads(ToolResult.from_json(json.dumps(document)).to_json()) == document


def test_arguments_have_the_documents_names() -> None:
    def parameters(function: Any) -> set[str]:
        return set(inspect.signature(function).parameters)

    assert {"model", "api_key"} <= parameters(LLM)
    assert {
        "llm",
        "tools",
        "mcp_servers",
        "microagents",
        "system_prompt",
        "system_prompt_extensions",
    } <= parameters(Agent)
    assert {"agent", "workspace"} <= parameters(RemoteConversation)
    assert {"url", "key"} <= parameters(RemoteWorkspace)
    tool = Tool(
        name="t",
        description="d",
        callback=add,
        inputSchema={"type": "object", "properties": {"a": {}, "b": {}}},
    )
    assert (tool.name, tool.description, tool.callback) == ("t", "d", add)
    assert "tool_module_qualnames" in CreateRequest.__struct_encode_fields__


def test_the_action_space_keeps_its_rules() -> None:
    manager = ToolManager([add])
    assert [
        tool.tool_type
        for tool in manager.list_tools(category="general", tool_type="local_function")
    ] == ["local_function"]
    assert [definition["function"]["name"] for definition in manager.get_llm_definitions()] == [
        "add"
    ]
    for ask in (manager.get, manager.get_schema, manager.call):
        with pytest.raises(ToolNotFound):
            ask("nobody")
    assert {"validation", "network", "timeout", "rate_limit", "internal"} <= set(RETRY_PRESETS)


def test_planning_tools_are_registered_with_the_module_that_makes_them() -> None:
    registry = ToolRegistry()
    assert [tool.name for tool in register_planning_tools(registry)] == ["plan"]
    names = registry.get_tool_module_qualnames()
    assert names == {"plan": "holdfast.tools.preset.planning"}
    names.clear()
    assert registry.get_tool_module_qualnames() != {}, "what is handed out is a copy"
