"""Tests of data from OpenHands: actions and observations both ways, and its conversations on disk,
which are loaded, continued and written again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    ImageContent,
    ScriptedLLM,
    SQLiteStore,
    TextContent,
    ToolCall,
)
from holdfast import events as ev
from holdfast.answer import AnswerDetails
from holdfast.content import Usage
from holdfast.conversation.replay import requests
from holdfast.errors import ConfigurationError
from holdfast.llm.completion import Completion
from holdfast.openhands import (
    read_conversation,
    to_action,
    to_observation,
    to_tool_call,
    to_tool_result,
    write_conversation,
)
from tests import forks
from tests.paths import DATA

# --- actions and observations ---

ACTIONS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        {"kind": "TerminalAction", "command": "ls -l", "is_input": False, "reset": False},
        "terminal",
        {"command": "ls -l", "is_input": False, "reset": False},
    ),
    ({"kind": "ExecuteBashAction", "command": "ls"}, "execute_bash", {"command": "ls"}),
    (
        {"kind": "FileEditorAction", "command": "view", "path": "/a"},
        "file_editor",
        {"command": "view", "path": "/a"},
    ),
    (
        {"kind": "StrReplaceEditorAction", "command": "view", "path": "/a"},
        "str_replace_editor",
        {"command": "view", "path": "/a"},
    ),
    ({"kind": "FinishAction", "message": "done"}, "finish", {"message": "done"}),
    ({"kind": "ThinkAction", "thought": "hm"}, "think", {"thought": "hm"}),
    (
        {"kind": "TaskTrackerAction", "command": "view", "task_list": []},
        "task_tracker",
        {"command": "view", "task_list": []},
    ),
    (
        {"kind": "BrowserGetStateAction", "include_screenshot": True},
        "browser_get_state",
        {"include_screenshot": True},
    ),
    ({"kind": "GlobAction", "pattern": "*.py"}, "glob", {"pattern": "*.py"}),
]


@pytest.mark.parametrize(
    ("action", "name", "arguments"),
    ACTIONS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_action_is_a_call_of_its_tool_and_back(
    action: dict[str, Any], name: str, arguments: dict[str, Any]
) -> None:
    call = to_tool_call(action, "3.0")
    assert (call.id, call.name, call.arguments) == ("3.0", name, arguments)
    assert to_action(call) == action


def test_the_call_of_an_event_is_what_the_model_asked_for() -> None:
    arguments = '{"command": "ls", "security_risk": "LOW"}'
    event = {
        "kind": "ActionEvent",
        "id": "a",
        "tool_name": "terminal",
        "tool_call_id": "call_1",
        "thought": [],
        "action": {"kind": "TerminalAction", "command": "ls", "is_input": False},
        "tool_call": {
            "id": "call_1",
            "name": "terminal",
            "arguments": arguments,
            "origin": "completion",
        },
    }
    call = to_tool_call(event)
    assert call.provider_id == "call_1"
    assert call.arguments == {"command": "ls", "security_risk": "LOW"}
    assert call.raw_arguments == arguments
    broken = to_tool_call({**event, "tool_call": {"arguments": '{"command": '}, "action": None})
    assert broken.arguments == {}
    assert broken.invalid
    assert broken.raw_arguments == '{"command": '


def test_an_mcp_tool_of_version_1_keeps_its_arguments() -> None:
    event = {
        "kind": "ActionEvent",
        "tool_name": "fetch_fetch",
        "tool_call_id": "c",
        "action": {"kind": "MCPToolAction", "data": {"url": "u"}},
        "tool_call": {"arguments": '{"url":"u"}'},
    }
    assert to_tool_call(event).arguments == {"url": "u"}
    assert to_action(ToolCall("1.0", "fetch.fetch", {"url": "u"})) == {
        "kind": "MCPToolAction",
        "name": "fetch.fetch",
        "data": {"url": "u"},
    }


def test_actions_of_version_0_both_ways() -> None:
    run = {
        "id": 4,
        "source": "agent",
        "action": "run",
        "args": {"command": "make", "is_input": False, "thought": "build it", "hidden": False},
    }
    call = to_tool_call(run)
    assert (call.name, call.arguments) == ("execute_bash", {"command": "make", "is_input": False})
    assert to_action(call, version=0) == {"action": "run", "args": run["args"]}
    assert to_action(ToolCall("", call.name, call.arguments), version=0) == {
        "action": "run",
        "args": {"command": "make", "is_input": False},
    }
    answer = {
        "choices": [
            {
                "message": {
                    "tool_calls": [
                        {
                            "id": "c9",
                            "function": {"name": "execute_bash", "arguments": '{"command":"make"}'},
                        }
                    ]
                }
            }
        ]
    }
    action = {
        **run,
        "tool_call_metadata": {
            "function_name": "execute_bash",
            "tool_call_id": "c9",
            "model_response": answer,
        },
    }
    assert to_tool_call(action) == ToolCall("", "execute_bash", {"command": "make"}, "c9")
    mcp = to_tool_call({"action": "mcp", "args": {"name": "fetch", "arguments": {"url": "u"}}})
    assert (mcp.name, mcp.arguments) == ("fetch", {"url": "u"})


def test_the_seeds_example_of_an_observation() -> None:
    observation = {
        "observation": "run",
        "content": "Hello world",
        "extras": {"command": "echo Hello world", "metadata": {"exit_code": 0, "pid": 7}},
    }
    result = to_tool_result(observation)
    assert result.text == "Hello world"
    assert result.meta["observationType"] == "CmdOutputObservation"
    assert result.meta["exitCode"] == 0
    assert to_observation(result, version=0) == observation


OBSERVATIONS: list[dict[str, Any]] = [
    {
        "content": [{"type": "text", "text": "a.txt"}],
        "is_error": False,
        "command": "ls",
        "exit_code": 0,
        "metadata": {"pid": -1},
        "kind": "TerminalObservation",
    },
    {
        "content": [{"type": "text", "text": "no such file"}],
        "is_error": True,
        "command": "view",
        "path": "/a",
        "kind": "FileEditorObservation",
    },
    {
        "content": [{"type": "image", "image_urls": ["data:image/png;base64,iVBORw=="]}],
        "is_error": False,
        "kind": "BrowserObservation",
    },
    {
        "content": [],
        "is_error": False,
        "output": "old form",
        "exit_code": 1,
        "kind": "ExecuteBashObservation",
    },
    {"content": [], "is_error": False, "kind": "ThinkObservation"},
]


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=lambda found: found["kind"])
def test_an_observation_is_a_result_and_back(observation: dict[str, Any]) -> None:
    result = to_tool_result(observation)
    assert result.is_error is observation["is_error"]
    assert result.meta["observationType"] == observation["kind"]
    assert to_observation(result) == observation


def test_a_picture_is_a_picture() -> None:
    assert to_tool_result(OBSERVATIONS[2]).content == (ImageContent(b"\x89PNG"[:4], "image/png"),)


def test_an_object_of_the_sdk_is_taken_like_its_json() -> None:
    class TerminalAction:  # the form of a pydantic model of the SDK, seen from here
        def model_dump(self, mode: str) -> dict[str, Any]:
            assert mode == "json"
            return {"command": "ls"}

    assert to_tool_call(TerminalAction()) == ToolCall("", "terminal", {"command": "ls"})


@pytest.mark.parametrize("found", [{}, {"kind": "MessageEvent"}, {"kind": 3}, {"args": {}}])
def test_what_is_no_action_and_no_observation_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="to_tool_call takes an action"):
        to_tool_call(found)
    with pytest.raises(ConfigurationError, match="to_tool_result takes an observation"):
        to_tool_result(found)
    with pytest.raises(ConfigurationError, match="not int"):
        to_tool_call(3)


# --- a conversation on disk ---


def stamped(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events_with_times: list[dict[str, Any]] = []
    for index, event in enumerate(events):
        id = event.get("id") or f"00000000-0000-4000-8000-{index:012d}"
        events_with_times.append(
            {
                "id": id,
                "timestamp": f"2026-02-05T11:{index // 60:02d}:{index % 60:02d}.250000",
                "source": "agent",
                **event,
            }
        )
    return events_with_times


def action(
    tool: str,
    call_id: str,
    response: str,
    arguments: dict[str, Any],
    thought: str = "",
    **more: Any,
) -> dict[str, Any]:
    kind = "".join(word.capitalize() for word in tool.split("_")) + "Action"
    return {
        "kind": "ActionEvent",
        "thought": [{"type": "text", "text": thought, "cache_prompt": False}] if thought else [],
        "thinking_blocks": [],
        "action": {**arguments, "kind": kind},
        "tool_name": tool,
        "tool_call_id": call_id,
        "tool_call": {
            "id": call_id,
            "name": tool,
            "arguments": json.dumps(arguments),
            "origin": "completion",
        },
        "llm_response_id": response,
        "security_risk": "UNKNOWN",
        **more,
    }


def observed(tool: str, call_id: str, text: str, **more: Any) -> dict[str, Any]:
    kind = "".join(word.capitalize() for word in tool.split("_")) + "Observation"
    observation = {
        "content": [{"cache_prompt": False, "type": "text", "text": text}],
        "is_error": False,
        **more,
        "kind": kind,
    }
    return {
        "kind": "ObservationEvent",
        "source": "environment",
        "tool_name": tool,
        "tool_call_id": call_id,
        "observation": observation,
        "action_id": "a",
    }


def message_event(text: str, source: str = "user", **more: Any) -> dict[str, Any]:
    role = "user" if source == "user" else "assistant"
    message = {"role": role, "content": [{"type": "text", "text": text}], "thinking_blocks": []}
    return {
        "kind": "MessageEvent",
        "source": source,
        "llm_message": message,
        "activated_skills": [],
        "extended_content": [],
        **more,
    }


SYSTEM = {
    "kind": "SystemPromptEvent",
    "system_prompt": {"type": "text", "text": "You are careful."},
    "dynamic_context": {"type": "text", "text": "It is Monday."},
    "tools": [{"kind": "TerminalTool", "title": "terminal", "description": "Runs a command."}],
}

RUN = [
    SYSTEM,
    message_event("Count the files."),
    {
        "kind": "ConversationStateUpdateEvent",
        "source": "environment",
        "key": "execution_status",
        "value": "running",
    },
    action(
        "terminal",
        "c1",
        "r1",
        {"command": "ls | wc -l"},
        "I count.",
        reasoning_content="Easy.",
        security_risk="LOW",
        summary="count files",
    ),
    observed("terminal", "c1", "3", command="ls | wc -l", exit_code=0),
    action("terminal", "c2", "r2", {"command": "ls a"}),
    action("terminal", "c3", "r2", {"command": "ls b"}),
    observed("terminal", "c3", "b.txt", exit_code=0),
    {
        "kind": "AgentErrorEvent",
        "tool_name": "terminal",
        "tool_call_id": "c2",
        "error": "no terminal is left",
    },
    {"kind": "HookExecutionEvent", "source": "hook", "hook": "audit", "exit_code": 0},
    action("finish", "c4", "r3", {"message": "There are 3."}),
    observed("finish", "c4", "There are 3."),
]
BASE = {
    "id": "5d1e0000-0000-4000-8000-000000000001",
    "agent": {
        "kind": "Agent",
        "llm": {"model": "gpt-5", "api_key": "**********"},
        "tools": [{"name": "terminal", "params": {}}],
    },
    "workspace": {"kind": "LocalWorkspace", "working_dir": "/work"},
    "execution_status": "finished",
    "stats": {
        "usage_to_metrics": {
            "agent": {
                "accumulated_cost": 0.03,
                "costs": [{"model": "gpt-5", "cost": 0.01}, {"model": "gpt-5", "cost": 0.02}],
                "token_usages": [
                    {
                        "prompt_tokens": 100,
                        "completion_tokens": 10,
                        "cache_read_tokens": 80,
                        "cache_write_tokens": 0,
                        "reasoning_tokens": 4,
                        "response_id": "r1",
                    },
                    {
                        "prompt_tokens": 200,
                        "completion_tokens": 20,
                        "cache_read_tokens": 0,
                        "cache_write_tokens": 5,
                        "reasoning_tokens": 0,
                        "response_id": "r2",
                    },
                ],
            }
        }
    },
}


def written_conversation(
    folder: Path, events: list[dict[str, Any]], base: dict[str, Any] | None = BASE
) -> Path:
    (folder / "events").mkdir(parents=True)
    if base is not None:
        (folder / "base_state.json").write_text(json.dumps(base))
    for index, event in enumerate(stamped(events)):
        (folder / "events" / f"event-{index:05d}-{event['id']}.json").write_text(json.dumps(event))
    return folder


def next_messages(state: ConversationState) -> list[str]:
    """Return the next messages to the model, in short."""
    agent = Agent(ScriptedLLM(["ok"]))
    with Conversation.from_state(state, agent) as conversation:
        conversation.send_message("Go on.")
        conversation.run()
        last = list(requests(conversation.get_history()))[-1]
    lines: list[str] = []
    for item in last.transcript.items:
        if isinstance(item, ev.MessageAdded):
            lines.append(f"{item.sender}: {item.text}")
        elif isinstance(item, ev.AssistantReplied):
            lines.append(f"assistant: {item.text} {[call.name for call in item.calls]}")
        else:
            lines.append(f"{item[0].name}: {item[1].text}")
    return lines


def test_a_conversation_is_read_whole(tmp_path: Path) -> None:
    loaded = read_conversation(written_conversation(tmp_path / "one", RUN))
    state = loaded.state
    assert (state.id, state.status, loaded.model, loaded.tools, loaded.workdir) == (
        BASE["id"],
        ConversationStatus.FINISHED,
        "gpt-5",
        ("terminal",),
        "/work",
    )
    assert loaded.notes == ("1 event of the kind HookExecutionEvent is kept verbatim",)
    assert [event.seq for event in state.events] == list(range(1, len(state.events) + 1))
    first, both, finish = [
        event for event in state.events if isinstance(event, ev.AssistantReplied)
    ]
    assert (first.text, first.reasoning, [call.name for call in first.calls]) == (
        "I count.",
        "Easy.",
        ["terminal"],
    )
    assert [call.provider_id for call in both.calls] == ["c2", "c3"]
    assert first.usage.input_tokens == 100
    assert first.usage.cached_input_tokens == 80
    assert (first.cost, both.cost, finish.cost) == (0.01, 0.02, None)
    assert state.cost == pytest.approx(0.03)
    results = {
        event.call_id: event.result
        for event in state.events
        if isinstance(event, ev.ToolCallFinished)
    }
    assert results[first.calls[0].id].meta["exitCode"] == 0
    assert results[both.calls[0].id].is_error
    assert results[both.calls[1].id].text == "b.txt"
    assert first.timestamp.isoformat() == "2026-02-05T11:00:03.250000+00:00"
    assert ConversationState.from_json(state.to_json()) == state


def test_it_goes_on_with_a_model_that_is_shown_what_was_said(tmp_path: Path) -> None:
    assert next_messages(read_conversation(written_conversation(tmp_path / "one", RUN)).state) == [
        "user: Count the files.",
        "assistant: I count. ['terminal']",
        "terminal: 3",
        "assistant:  ['terminal', 'terminal']",
        "terminal: no terminal is left",
        "terminal: b.txt",
        "assistant:  ['finish']",
        "finish: There are 3.",
        "user: Go on.",
    ]


def test_a_call_without_a_result_is_told_as_unknown_and_nothing_is_set_going(
    tmp_path: Path,
) -> None:
    state = read_conversation(
        written_conversation(tmp_path / "one", RUN[:4], {**BASE, "execution_status": "running"})
    ).state
    assert state.status is ConversationStatus.PAUSED
    assert state.pending_calls == ()
    assert "its outcome is unknown" in next_messages(state)[2]


def test_a_call_that_waited_for_confirmation_waits(tmp_path: Path) -> None:
    state = read_conversation(
        written_conversation(
            tmp_path / "one", RUN[:4], {**BASE, "execution_status": "waiting_for_confirmation"}
        )
    ).state
    assert state.status is ConversationStatus.WAITING_FOR_CONFIRMATION
    (pending,) = state.pending_confirmations
    assert pending.call.name == "terminal"


def test_a_rejected_call_says_who_and_why(tmp_path: Path) -> None:
    reject = {
        "kind": "UserRejectObservation",
        "tool_name": "terminal",
        "tool_call_id": "c1",
        "rejection_reason": "not now",
        "action_id": "a",
    }
    state = read_conversation(written_conversation(tmp_path / "one", [*RUN[:4], reject])).state
    (decision,) = [event for event in state.events if isinstance(event, ev.DecisionMade)]
    assert (decision.decision, decision.by, decision.reason) == ("reject", "user", "not now")


def test_a_condensation_hides_what_it_forgot_and_its_summary_stands_there(tmp_path: Path) -> None:
    ids = [event["id"] for event in stamped(RUN)]
    condensed = {
        "kind": "Condensation",
        "source": "environment",
        "id": "00000000-0000-4000-8000-0000000000cc",
        "forgotten_event_ids": [ids[3], ids[4], ids[5]],
        "summary": "3 were counted.",
        "summary_offset": 2,
        "llm_response_id": "r9",
    }
    again = {
        **condensed,
        "id": "00000000-0000-4000-8000-0000000000dd",
        "summary": "Counted.",
        "forgotten_event_ids": [f"{condensed['id']}-summary", *ids[5:9]],
    }
    loaded = read_conversation(written_conversation(tmp_path / "one", [*RUN, condensed]))
    assert next_messages(loaded.state)[:3] == [
        "user: Count the files.",
        "holdfast: 3 were counted.",
        "assistant:  ['terminal', 'terminal']",
    ]
    assert any("forgets only a part of 1 answers" in note for note in loaded.notes)
    twice = read_conversation(written_conversation(tmp_path / "two", [*RUN, condensed, again]))
    assert next_messages(twice.state)[:3] == [
        "user: Count the files.",
        "holdfast: Counted.",
        "assistant:  ['finish']",
    ]


def test_damaged_and_missing_files_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = written_conversation(tmp_path / "one", RUN, None)
    files = sorted((folder / "events").iterdir())
    files[4].write_text("{")
    files[9].unlink()
    (folder / "events" / "notes.txt").write_text("?")
    loaded = read_conversation(folder)
    text = "\n".join(loaded.notes)
    for part in (
        "base_state.json is missing",
        f"{files[4].name} is not JSON",
        "event 9 is not there",
        "notes.txt is not an event's file",
    ):
        assert part in text
    assert [event for event in loaded.state.events if isinstance(event, ev.AssistantReplied)]


def test_what_is_no_conversation_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no folder"):
        read_conversation(tmp_path / "none")
    written_conversation(tmp_path / "many" / "5d1e", RUN)
    with pytest.raises(ConfigurationError, match="There are conversations in it: 5d1e"):
        read_conversation(tmp_path / "many")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "base_state.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="does not hold a JSON object"):
        read_conversation(tmp_path / "bad")


# --- and back ---


def test_what_was_read_is_written_again_with_nothing_lost(tmp_path: Path) -> None:
    state = read_conversation(written_conversation(tmp_path / "one", RUN)).state
    assert write_conversation(state, tmp_path / "two") == ()
    before = [
        json.loads(path.read_bytes()) for path in sorted((tmp_path / "one" / "events").iterdir())
    ]
    after = [
        json.loads(path.read_bytes()) for path in sorted((tmp_path / "two" / "events").iterdir())
    ]
    assert [
        (event["kind"], event["id"])
        for event in after
        if event["kind"] != "ConversationStateUpdateEvent"
    ] == [
        (event["kind"], event["id"])
        for event in before
        if event["kind"] != "ConversationStateUpdateEvent"
    ]
    actions = [
        [event for event in events if event["kind"] == "ActionEvent"] for events in (before, after)
    ]
    for one, two in zip(*actions, strict=True):
        assert {
            key: one.get(key)
            for key in (
                "tool_call",
                "security_risk",
                "summary",
                "llm_response_id",
                "tool_call_id",
                "tool_name",
            )
        } == {
            key: two.get(key)
            for key in (
                "tool_call",
                "security_risk",
                "summary",
                "llm_response_id",
                "tool_call_id",
                "tool_name",
            )
        }
    again = read_conversation(tmp_path / "two").state
    assert next_messages(again) == next_messages(state)
    assert (again.status, again.usage, again.cost) == (state.status, state.usage, state.cost)


def test_a_conversation_of_ours_is_written_and_read_back(tmp_path: Path) -> None:
    def look(path: str) -> str:
        """Look at a file."""
        return f"{path} is empty"

    agent = Agent(
        ScriptedLLM(
            [
                [ToolCall("", "look", {"path": "a"}), ToolCall("", "look", {"path": "b"})],
                "Both are empty.",
            ]
        ),
        [look],
    )
    with Conversation(agent, id="ours") as conversation:
        conversation.send_message([TextContent("Look at this:"), ImageContent(b"\x89PNG")])
        state = conversation.run()
    write_conversation(state, tmp_path / "out" / "ours", workdir="/work")
    loaded = read_conversation(tmp_path / "out" / "ours")
    assert loaded.state.status is ConversationStatus.FINISHED
    assert loaded.workdir == "/work"
    first = next(event for event in loaded.state.events if isinstance(event, ev.MessageAdded))
    assert first.content == (TextContent("Look at this:"), ImageContent(b"\x89PNG"))
    assert next_messages(loaded.state) == next_messages(state)
    with pytest.raises(ConfigurationError, match="exists"):
        write_conversation(state, tmp_path / "out" / "ours")


def test_counts_and_the_providers_price_are_written_where_openhands_has_a_field(
    tmp_path: Path,
) -> None:
    answer = Completion(
        "Done.",
        usage=Usage(100, 50, 10, 20, 30, 5, 6, 7, 8, 9),
        cost=0.25,
        details=AnswerDetails(provider_cost=0.25, list_cost=0.5),
    )
    with Conversation(Agent(ScriptedLLM([answer])), id="ours") as conversation:
        conversation.send_message("Go.")
        write_conversation(conversation.run(), tmp_path / "ours")
    base = json.loads((tmp_path / "ours" / "base_state.json").read_text())
    metrics = base["stats"]["usage_to_metrics"]["agent"]
    assert (metrics["accumulated_cost"], metrics["costs"][0]["cost"]) == (0.25, 0.25)
    for usage in (metrics["accumulated_token_usage"], metrics["token_usages"][0]):
        counts = {name: count for name, count in usage.items() if name.endswith("_tokens")}
        assert counts == {
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "cache_read_tokens": 10,
            "cache_write_tokens": 20,
            "reasoning_tokens": 30,
        }


# --- the command ---


def holdfast(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forks.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_import_and_export_at_the_shell(tmp_path: Path) -> None:
    written_conversation(tmp_path / "5d1e", RUN)
    process = holdfast("import", "--from", "openhands", "5d1e", "--store", "agent.db", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "events imported" in process.stdout
    assert "HookExecutionEvent" in process.stderr
    again = holdfast("import", "--from", "openhands", "5d1e", "--store", "agent.db", cwd=tmp_path)
    assert "already in the store" in again.stdout
    shows = holdfast("show", "agent.db", "5d1e", cwd=tmp_path)
    assert "ls | wc -l" in shows.stdout
    out = holdfast("export", "agent.db", "5d1e", "--to", "openhands", "-o", "back", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert read_conversation(tmp_path / "back").state.status is ConversationStatus.FINISHED
    with SQLiteStore(tmp_path / "agent.db") as store:
        conversation = Conversation(Agent(ScriptedLLM(["Still 3."])), store, str(BASE["id"]))
        with conversation:
            conversation.send_message("And now?")
            assert conversation.run().answer == "Still 3."
    wrong = [
        (("import", "--from", "openhands", "none", "--store", "x.db"), "There is no folder 'none'"),
        (("import", "--from", "openhands", "-", "--store", "x.db"), "not standard input"),
        (("export", "agent.db", "--to", "openhands"), "--to openhands takes one ID"),
        (("export", "agent.db", "5d1e", "--to", "openhands", "-o", "back"), "exists"),
    ]
    for arguments, message in wrong:
        process = holdfast(*arguments, cwd=tmp_path)
        assert (process.returncode, message in process.stderr) == (2, True), process.stderr
        assert "Traceback" not in process.stderr
    assert not (tmp_path / "x.db").exists()


@pytest.mark.slow
def test_a_thousand_events_are_read_as_they_are(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [SYSTEM, message_event("Count.")]
    for index in range(499):
        events += [
            action("terminal", f"c{index}", f"r{index}", {"command": f"echo {index}"}),
            observed("terminal", f"c{index}", str(index)),
        ]
    folder = written_conversation(tmp_path / "long", events)
    began = time.perf_counter()
    state = read_conversation(folder).state
    print(f"{1000 * (time.perf_counter() - began):.0f} ms")
    assert state.steps == 499
    assert [
        event.result.text for event in state.events if isinstance(event, ev.ToolCallFinished)
    ] == [str(index) for index in range(499)]


# --- invalid files ---


def test_two_calls_of_one_id_are_both_answered_and_nothing_is_set_going(tmp_path: Path) -> None:
    twice = [
        action("terminal", "c1", "r1", {"command": "echo 1"}),
        action("terminal", "c1", "r1", {"command": "echo 2"}),
    ]
    for name, events in {
        "none": twice,
        "one": [*twice, observed("terminal", "c1", "1")],
        "no id": [action("terminal", "", "r1", {})],
    }.items():
        state = read_conversation(
            written_conversation(tmp_path / name, [SYSTEM, message_event("Go."), *events])
        ).state
        assert state.pending_calls == (), name
        calls = sum(
            len(event.calls) for event in state.events if isinstance(event, ev.AssistantReplied)
        )
        assert (
            sum(isinstance(event, ev.ToolCallFinished) for event in state.events)
            == calls
            == (1 if name == "no id" else 2)
        )
    path = written_conversation(
        tmp_path / "ids", [SYSTEM, message_event("Go."), *({**one, "id": "same"} for one in twice)]
    )
    assert [
        len(event.calls)
        for event in read_conversation(path).state.events
        if isinstance(event, ev.AssistantReplied)
    ] == [2]


ODD: list[Any] = [
    None,
    True,
    3,
    -1.5,
    "",
    "x" * 300,
    "../../etc",
    "\x00",
    [],
    [[]],
    {},
    {"type": "text", "text": 3},
    "0001-01-01T00:00:00+23:00",
    "2026-13-99",
    10**30,
]


@pytest.mark.slow
def test_fields_of_any_kind_are_read_or_kept_and_what_is_read_can_be_stored(tmp_path: Path) -> None:
    number = 0
    for place, event in enumerate(stamped(RUN)):
        for field in [*event, "tool_call_id", "forgotten_event_ids", "value"]:
            for odd in ODD:
                events: list[Any] = stamped(RUN)
                events[place][field] = odd
                number += 1
                folder = tmp_path / str(number)
                (folder / "events").mkdir(parents=True)
                for index, one in enumerate(events):
                    (folder / "events" / f"event-{index:05d}-e.json").write_text(json.dumps(one))
                state = read_conversation(folder).state
                assert ConversationState.from_json(state.to_json()) == state
                assert (
                    not state.pending_calls
                    or state.status is ConversationStatus.WAITING_FOR_CONFIRMATION
                )
                if number % 50 == 0:
                    write_conversation(state, tmp_path / f"out-{number}")
                    read_conversation(tmp_path / f"out-{number}")


@pytest.mark.parametrize(
    "stats",
    [
        3,
        [],
        {"usage_to_metrics": []},
        {
            "usage_to_metrics": {
                "a": {"token_usages": [{"response_id": "r1", "prompt_tokens": True}]}
            }
        },
    ],
)
def test_a_base_state_of_any_kind_is_read(tmp_path: Path, stats: Any) -> None:
    base = {
        **BASE,
        "stats": stats,
        "agent": 3,
        "workspace": [],
        "execution_status": {},
        "id": "../../x\x1b[31m",
    }
    loaded = read_conversation(written_conversation(tmp_path / "one", RUN, base))
    assert loaded.state.id == "one"
    assert ConversationState.from_json(loaded.state.to_json()) == loaded.state


def test_json_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    folder = written_conversation(tmp_path / "one", RUN)
    (folder / "events" / "event-00099-deep.json").write_text("[" * 100_000 + "]" * 100_000)
    assert any(
        "event-00099-deep.json is nested deeper than" in note
        for note in read_conversation(folder).notes
    )
    (folder / "base_state.json").write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_conversation(folder)


def test_every_kind_of_event_is_written_or_named(tmp_path: Path) -> None:
    lines = (DATA / "journal_v1.jsonl").read_bytes().splitlines()
    events = [ev.decode(line) for line in lines]
    odd = ev.NoteRecorded(
        seq=len(events) + 1,
        id="../a/b",
        timestamp=events[0].timestamp,
        about="openhands",
        text="",
        details={"x": 3},
    )
    notes = write_conversation(ConversationState("a/b\x00", [*events, odd]), tmp_path / "out")
    assert any("decision" in note for note in notes)
    assert read_conversation(tmp_path / "out").state.events
