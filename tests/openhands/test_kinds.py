"""Tests that every kind of action and observation of OpenHands comes back unchanged.

`data/openhands_kinds.json` lists them: the fields of each kind with their types, as the packages
named in it define them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.openhands import (
    read_conversation,
    to_action,
    to_observation,
    to_tool_call,
    to_tool_result,
    write_conversation,
)
from tests.paths import DATA

KINDS: dict[str, Any] = json.loads((DATA / "openhands_kinds.json").read_text())
CONTENT = [
    {"type": "text", "text": "one", "cache_prompt": False},
    {
        "type": "image",
        "image_urls": ["data:image/png;base64,iVBORw==", "https://example.org/a.png"],
        "cache_prompt": True,
    },
    {"type": "text", "text": "", "cache_prompt": False},
]
SET: dict[str, Any] = {
    "str": "text",
    "int": 3,
    "bool": True,
    "float": 1.5,
    "dict": {"a": [1, None, {"kind": "x"}]},
    "list": [{"a": 1}, "b"],
    "content": CONTENT,
}
EMPTY: dict[str, Any] = {
    "str": "",
    "int": 0,
    "bool": False,
    "float": 0.0,
    "dict": {},
    "list": [],
    "content": [],
}


def versions(group: str) -> list[Any]:
    return [
        pytest.param(int(version[-1]), kind, fields, id=f"{version[-1]}-{kind}")
        for version in KINDS
        for kind, fields in KINDS[version][group].items()
    ]


def filled(fields: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the fields all set; none but null where it may be; all empty; each missing in turn."""
    full = {name: SET[of.removesuffix("?")] for name, of in fields.items()}
    yield full
    yield {name: None if of.endswith("?") else EMPTY[of] for name, of in fields.items()}
    yield {name: EMPTY[of.removesuffix("?")] for name, of in fields.items()}
    yield {}
    for name in fields:
        yield {key: value for key, value in full.items() if key != name}


def actions_of(version: int, kind: str, fields: dict[str, str]) -> Iterator[dict[str, Any]]:
    for values in filled(fields):
        if version == 1:
            yield {**values, "kind": kind}
        else:
            yield {"action": kind, "args": values}
            yield {
                "action": kind,
                "args": {
                    **values,
                    "thought": "I think.",
                    "hidden": True,
                    "security_risk": 1,
                    "summary": "s",
                },
                "timeout": 5.0,
            }
    if version == 0 and kind == "edit":
        for command in ("view", "create", "str_replace", "insert"):
            yield {"action": kind, "args": {"path": "a", "command": command, "file_text": None}}
            yield {"action": kind, "args": {"path": "a", "command": command}}


@pytest.mark.parametrize(("version", "kind", "fields"), versions("actions"))
def test_every_kind_of_action_comes_back_as_it_was(
    version: Literal[0, 1], kind: str, fields: dict[str, str]
) -> None:
    for action in actions_of(version, kind, fields):
        before = json.dumps(action)
        call = to_tool_call(action, "1.0")
        assert to_action(call, version) == action
        assert json.dumps(action) == before
        assert call.name
        # Through a journal, where calls alone are kept, it is still an action of that kind.
        plain = ToolCall(call.id, call.name, call.arguments)
        if kind not in ("MCPToolAction", "edit"):
            back = to_action(plain, version)
            assert back.get("kind", back.get("action")) == kind
        edited = msgspec.structs.replace(call, arguments={**call.arguments, "edited": 1})
        assert "edited" in json.dumps(to_action(edited, version))
        if version == 1:
            event = {
                "kind": "ActionEvent",
                "tool_name": "some_tool",
                "tool_call_id": "c1",
                "thought": [],
                "action": action,
                "tool_call": {
                    "id": "c1",
                    "name": "some_tool",
                    "arguments": '{"asked": 1}',
                    "origin": "completion",
                },
            }
            call = to_tool_call(event)
            assert (call.name, call.arguments) == ("some_tool", {"asked": 1})
            assert to_action(call) == action


@pytest.mark.parametrize(("version", "kind", "fields"), versions("observations"))
def test_every_kind_of_observation_comes_back_as_it_was(
    version: Literal[0, 1], kind: str, fields: dict[str, str]
) -> None:
    for values in filled(fields):
        shapes = (
            [{**values, "kind": kind}, {**values, "kind": kind, "error": "it broke"}]
            if version == 1
            else [
                {"observation": kind, "content": "text", "extras": values},
                {
                    "observation": kind,
                    "content": "",
                    "extras": {**values, "metadata": {"exit_code": 3, "pid": -1}},
                    "success": False,
                },
                {"observation": kind, "content": "text", "extras": {**values, "error": True}},
            ]
        )
        for observation in shapes:
            before = json.dumps(observation)
            result = to_tool_result(observation)
            assert to_observation(result, version) == observation
            assert to_observation(result, version, tool="other") == observation
            assert json.dumps(observation) == before
            assert to_observation(ToolResult.from_json(result.to_json()), version) == observation
            edited = msgspec.structs.replace(result, content=(TextContent("edited"),))
            assert "edited" in json.dumps(to_observation(edited, version))


@pytest.mark.parametrize(
    "event",
    [
        {
            "kind": "UserRejectObservation",
            "id": "a",
            "timestamp": "t",
            "source": "environment",
            "tool_name": "terminal",
            "tool_call_id": "c",
            "rejection_reason": "no",
            "rejection_source": "hook",
            "action_id": "b",
        },
        {
            "kind": "AgentErrorEvent",
            "id": "a",
            "timestamp": "t",
            "source": "agent",
            "tool_name": "terminal",
            "tool_call_id": "c",
            "error": "it broke",
            "classification": None,
        },
    ],
    ids=lambda event: event["kind"],
)
def test_events_that_stand_for_a_result_come_back_as_they_were(event: dict[str, Any]) -> None:
    result = to_tool_result(event)
    assert result.is_error
    assert to_observation(result) == event


def test_tools_of_mcp_servers_keep_their_names_in_version_0() -> None:
    for arguments in ({"url": "u"}, {"thought": "of the tool", "hidden": 1}, {}):
        action = {
            "action": "call_tool_mcp",
            "args": {"name": "fetch", "arguments": arguments, "thought": "t", "security_risk": -1},
        }
        call = to_tool_call(action)
        assert (call.name, call.arguments) == ("fetch", arguments)
        assert to_action(call, 0) == action
        assert to_action(ToolCall("", "fetch", arguments), 0) == {
            "action": "call_tool_mcp",
            "args": {"name": "fetch", "arguments": arguments},
        }


def test_what_a_model_of_version_0_calls_becomes_an_action_there() -> None:
    expected = {
        "execute_bash": ({"command": "ls"}, {"action": "run", "args": {"command": "ls"}}),
        "str_replace_editor": (
            {"command": "view", "path": "a"},
            {"action": "read", "args": {"path": "a"}},
        ),
        "edit_file": (
            {"path": "a", "content": "x"},
            {
                "action": "edit",
                "args": {"impl_source": "llm_based_edit", "path": "a", "content": "x"},
            },
        ),
        "finish": ({"message": "done"}, {"action": "finish", "args": {"final_thought": "done"}}),
        "think": ({"thought": "hm"}, {"action": "think", "args": {"thought": "hm"}}),
        "browser": (
            {"code": "noop()"},
            {"action": "browse_interactive", "args": {"browser_actions": "noop()"}},
        ),
        "request_condensation": ({}, {"action": "condensation_request", "args": {}}),
    }
    for name, (arguments, action) in expected.items():
        assert to_action(ToolCall("", name, arguments), 0) == action


def test_kinds_of_actions_survive_a_conversation_on_disk(tmp_path: Path) -> None:
    kinds = [
        "MCPToolAction",
        "ClientAction_ask",
        "TerminalAction",
        "SwitchLLMAction",
        "ConsultTomAction",
        "SomethingElseAction",
    ]
    folder = tmp_path / "there"
    (folder / "events").mkdir(parents=True)
    (folder / "base_state.json").write_text(json.dumps({"id": "c", "execution_status": "finished"}))
    events: list[dict[str, Any]] = []
    for number, kind in enumerate(kinds):
        # Fields with defaults, which the model has not written.
        inner = {"data": {"a": 1}} if kind == "MCPToolAction" else {"a": 1, "b": None, "c": False}
        call_of = {"tool_name": f"tool_{number}", "tool_call_id": f"c{number}"}
        events.append(
            {
                "kind": "ActionEvent",
                "source": "agent",
                "thought": [],
                "thinking_blocks": [],
                "action": {**inner, "kind": kind},
                **call_of,
                "tool_call": {
                    "id": f"c{number}",
                    "name": f"tool_{number}",
                    "arguments": '{"a":1}',
                    "origin": "completion",
                },
                "llm_response_id": f"r{number}",
            }
        )
        observation = {
            "kind": (
                kind.replace("ClientAction_ask", "ClientToolAction").replace(
                    "Action", "Observation"
                )
            ),
            "content": CONTENT,
            "is_error": False,
            "tool_name": "x",
        }
        events.append(
            {
                "kind": "ObservationEvent",
                "source": "environment",
                **call_of,
                "observation": observation,
                "action_id": "?",
            }
        )
    events[-1]["observation"] = {
        "kind": "SomethingElseObservation",
        "content": "not a list",
        "is_error": False,
    }
    for index, event in enumerate(events):
        event |= {
            "id": f"00000000-0000-4000-8000-{index:012d}",
            "timestamp": f"2026-02-05T11:00:{index:02d}",
        }
        (folder / "events" / f"event-{index:05d}-{event['id']}.json").write_text(json.dumps(event))
    loaded = read_conversation(folder)
    assert loaded.notes == ()
    assert all(
        type(call) is ToolCall
        for event in loaded.state.events
        if event.type == "assistant"
        for call in event.calls
    )
    assert write_conversation(loaded.state, tmp_path / "again") == ()
    again = [
        json.loads(path.read_text()) for path in sorted((tmp_path / "again" / "events").iterdir())
    ]
    for event, copy in zip(events, again, strict=True):
        assert copy["kind"] == event["kind"]
        for key in ("action", "observation"):
            assert copy.get(key) == event.get(key)


def test_the_list_of_kinds_is_that_of_the_packages() -> None:
    schema = pytest.importorskip("openhands.sdk.tool.schema")
    for module in (
        "openhands.tools",
        "openhands.sdk.mcp.definition",
        "openhands.sdk.tool.builtins",
    ):
        importlib.import_module(module)

    def below(kind: type) -> set[str]:
        return {name for sub in kind.__subclasses__() for name in (sub.__name__, *below(sub))}

    assert below(schema.Action) - set(KINDS["version 1"]["actions"]) == set()
    assert below(schema.Observation) - set(KINDS["version 1"]["observations"]) == set()
