"""Calls of OpenAI's own tools: a tool of the right name answers them, and the result goes back
in the form of the API, with the items verbatim."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast import Agent, Conversation, MemoryStore, Tool
from holdfast.content import (
    ErrorInfo,
    FileContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.llm import LLM, Delta, Transcript
from holdfast.llm.wires import openai_responses
from tests.llm.test_openai_responses import events, message_item, reasoning_item, response, sse
from tests.model_server import ModelServer

PNG = b"\x89PNG fake"
PNG_URL = "data:image/png;base64,iVBORyBmYWtl"
CHECKS = [{"id": "sc_1", "code": "malicious_instructions", "message": "Look out."}]

CUSTOM = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_1",
    "name": "sql",
    "input": "SELECT 1",
    "status": "completed",
}
COMPUTER = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "click", "button": "left", "x": 3, "y": 4},
    "pending_safety_checks": [],
}
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": 4096},
    "environment": None,
}
LOCAL_SHELL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls", "-l"], "env": {}},
}
PATCH = {
    "type": "apply_patch_call",
    "id": "apc_1",
    "call_id": "call_1",
    "status": "completed",
    "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"},
}
APPROVAL = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "read_wiki",
    "server_label": "deepwiki",
    "arguments": '{"repo": "a/b"}',
}
SEARCH = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "call_1",
    "execution": "client",
    "status": "completed",
    "arguments": {"queries": ["rates"]},
}
SEARCH_RESULT = [{"type": "function", "name": "rates", "parameters": {}, "defer_loading": True}]

# item, the tool's name, the arguments, the tool's return value, and the item that goes back
CASES: list[tuple[dict[str, Any], str, dict[str, Any], Any, dict[str, Any]]] = [
    (
        CUSTOM,
        "sql",
        {"input": "SELECT 1"},
        "1 row",
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1 row"},
    ),
    (
        COMPUTER,
        "computer",
        COMPUTER["action"],
        ImageContent(PNG),
        {
            "type": "computer_call_output",
            "call_id": "call_1",
            "output": {"type": "computer_screenshot", "image_url": PNG_URL},
        },
    ),
    (
        SHELL,
        "shell",
        {"commands": ["ls"], "max_output_length": 4096},
        {"stdout": "a.py", "stderr": "", "exit_code": 0},
        {
            "type": "shell_call_output",
            "call_id": "call_1",
            "output": [
                {"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            ],
            "max_output_length": 4096,
        },
    ),
    (
        LOCAL_SHELL,
        "local_shell",
        LOCAL_SHELL["action"],
        "total 0",
        {"type": "local_shell_call_output", "call_id": "call_1", "output": "total 0"},
    ),
    (
        PATCH,
        "apply_patch",
        PATCH["operation"],
        "Done!",
        {
            "type": "apply_patch_call_output",
            "call_id": "call_1",
            "status": "completed",
            "output": "Done!",
        },
    ),
    (
        APPROVAL,
        "mcp_approval",
        {"server_label": "deepwiki", "name": "read_wiki", "arguments": {"repo": "a/b"}},
        True,
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ),
    (
        SEARCH,
        "tool_search",
        {"queries": ["rates"]},
        {"tools": SEARCH_RESULT},
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "status": "completed",
            "tools": SEARCH_RESULT,
        },
    ),
]
IDS = [case[1] for case in CASES]


def responses(server: ModelServer, **more: Any) -> LLM:
    return LLM("gpt-5", "key", server.url, wire="openai_responses", max_retries=0, **more)


def tool(name: str, answer: Any, calls: list[Any]) -> Tool:
    def run(**arguments: Any) -> Any:
        calls.append(arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Tool(name, "Does it.", run, {"type": "object"})


def results(item: dict[str, Any], result: ToolResult) -> list[dict[str, Any]]:
    """Return the items that are sent for a result of an item's call."""
    [call] = openai_responses.parse(json.dumps(response(item)).encode()).calls
    return json.loads(b"[" + openai_responses.results([(call, result)], {}) + b"]")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("item", "name", "arguments", "answer", "expected"), CASES, ids=IDS)
def test_a_tool_of_that_name_answers_and_the_items_go_back_verbatim(
    item: dict[str, Any],
    name: str,
    arguments: dict[str, Any],
    answer: Any,
    expected: dict[str, Any],
    stream: bool,
) -> None:
    output = [reasoning_item(), item]
    first, last = response(*output), response(message_item("Done."))
    store, calls = MemoryStore(), list[Any]()
    with ModelServer([sse(first), sse(last)] if stream else [first, last]) as server:
        agent = Agent(responses(server, stream=stream), tools=[tool(name, answer, calls)])
        with Conversation(agent, store, id="c") as conversation:
            conversation.send_message("go")
            state = conversation.run().raise_for_status()
            assert state.answer == "Done."
        assert calls == [arguments]
        assert server.requests[1].json["input"] == [
            {"role": "user", "content": "go"},
            *output,
            expected,
        ]
    with (
        ModelServer([last]) as server,
        Conversation(Agent(responses(server)), store, id="c") as conversation,
    ):
        conversation.send_message("again")
        conversation.run().raise_for_status()
        assert server.requests[0].json["input"][:4] == [
            {"role": "user", "content": "go"},
            *output,
            expected,
        ]


@pytest.mark.parametrize("tools", [True, False], ids=["failed", "unknown"])
@pytest.mark.parametrize(("item", "name"), [case[:2] for case in CASES], ids=IDS)
def test_a_call_that_failed_or_has_no_tool_is_answered_in_the_form_of_the_api(
    item: dict[str, Any], name: str, tools: bool
) -> None:
    with ModelServer([response(item), response(message_item("Well."))]) as server:
        broken = [tool(name, RuntimeError("no luck"), [])] if tools else []
        with Conversation(Agent(responses(server), tools=broken)) as conversation:
            conversation.send_message("go")
            assert conversation.run().raise_for_status().answer == "Well."
        _, echoed, result, *rest = server.requests[1].json["input"]
    words = "no luck" if tools else "Unknown tool"
    assert echoed == item
    assert result.get("call_id", result.get("approval_request_id")) == (
        item.get("call_id") or item["id"]
    )
    match result["type"]:
        case "computer_call_output":
            assert result["output"]["image_url"].startswith("data:image/png;base64,")
            assert rest[0]["role"] == "user"
            assert words in rest[0]["content"]
        case "shell_call_output":
            [outcome] = result["output"]
            assert outcome["outcome"] == {"type": "exit", "exit_code": 1}
            assert words in outcome["stderr"]
        case "apply_patch_call_output":
            assert result["status"] == "failed"
            assert words in result["output"]
        case "mcp_approval_response":
            assert result["approve"] is False
            assert words in result["reason"]
        case "tool_search_output":
            assert result["tools"] == []
        case _:
            assert words in result["output"]


def test_a_refused_call_is_answered_in_the_form_of_the_api() -> None:
    with ModelServer([response(APPROVAL), response(message_item("Pity."))]) as server:
        calls: list[Any] = []
        agent = Agent(
            responses(server), tools=[tool("mcp_approval", True, calls)], confirm="always"
        )
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            [pending] = conversation.run().pending_confirmations
            conversation.reject(pending.call.id, "not today")
            conversation.run().raise_for_status()
        result = server.requests[1].json["input"][2]
    assert not calls
    assert result["approve"] is False
    assert "not today" in result["reason"]


@pytest.mark.parametrize(
    ("result", "approves"),
    [
        (ToolResult("yes"), True),
        (ToolResult("Approved "), True),
        (ToolResult(structured_content={"approve": True}), True),
        (ToolResult(structured_content=True), True),
        (ToolResult("no"), False),
        (ToolResult(""), False),
        (ToolResult("perhaps yes"), False),
        (ToolResult(structured_content={"approve": "later", "reason": "wait"}), False),
        (ToolResult(structured_content=1), False),
        (ToolResult("yes", is_error=True), False),
    ],
)
def test_only_a_clear_yes_approves(result: ToolResult, approves: bool) -> None:
    [item] = results(APPROVAL, result)
    assert item["approve"] is approves


def test_an_approval_says_its_reason() -> None:
    refused = ToolResult(structured_content={"approve": False, "reason": "wait"})
    assert results(APPROVAL, refused)[0]["reason"] == "wait"
    assert results(APPROVAL, ToolResult("too risky"))[0]["reason"] == "too risky"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            ToolResult("out", meta={"exitCode": 3}),
            [{"stdout": "out", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}],
        ),
        (
            ToolResult(is_error=True, error=ErrorInfo("timeout", "took 5 s")),
            [{"stdout": "", "stderr": "Error: took 5 s", "outcome": {"type": "timeout"}}],
        ),
        (
            ToolResult(
                structured_content={
                    "output": [
                        {"stdout": "a", "exit_code": 2},
                        {"stderr": "b", "outcome": {"type": "timeout"}},
                    ]
                }
            ),
            [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "", "stderr": "b", "outcome": {"type": "timeout"}},
            ],
        ),
    ],
)
def test_a_shell_result_says_how_each_command_ended(result: ToolResult, expected: Any) -> None:
    [item] = results(SHELL, result)
    assert item["output"] == expected


def test_a_screenshot_may_be_a_file_or_an_address_and_its_text_is_not_lost() -> None:
    [item] = results(COMPUTER, ToolResult((FileContent(file_id="f_1", mime_type="image/png"),)))
    assert item["output"] == {"type": "computer_screenshot", "file_id": "f_1"}
    item, text = results(
        COMPUTER, ToolResult((TextContent("clicked"), FileContent(url="https://x/a.png")))
    )
    assert item["output"] == {"type": "computer_screenshot", "image_url": "https://x/a.png"}
    assert text == {"role": "user", "content": "Returned by computer (call call_1):\nclicked"}


def test_safety_checks_reach_the_tool_and_its_success_acknowledges_them() -> None:
    item = {**COMPUTER, "pending_safety_checks": CHECKS}
    [call] = openai_responses.parse(json.dumps(response(item)).encode()).calls
    assert call.arguments["pending_safety_checks"] == CHECKS
    [output] = results(item, ToolResult((ImageContent(PNG),)))
    assert output["acknowledged_safety_checks"] == CHECKS
    refused, _ = results(item, ToolResult("no", is_error=True))
    assert "acknowledged_safety_checks" not in refused


def test_several_actions_of_one_call_are_a_list() -> None:
    actions = [{"type": "move", "x": 1, "y": 2}, {"type": "wait"}]
    item = {**COMPUTER, "action": None, "actions": actions}
    [call] = openai_responses.parse(json.dumps(response(item)).encode()).calls
    assert call.arguments == {"actions": actions}


def test_the_output_of_a_custom_tool_may_have_pictures_and_files() -> None:
    result = ToolResult((TextContent("a"), ImageContent(PNG), FileContent(file_id="f_2")))
    [item] = results(CUSTOM, result)
    assert item["output"] == [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
        {"type": "input_file", "file_id": "f_2"},
    ]


def test_a_call_that_the_provider_answers_itself_is_none_of_the_client() -> None:
    shell = {**SHELL, "environment": {"type": "container_reference", "container_id": "c_1"}}
    outcome = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    output = {"type": "shell_call_output", "id": "o", "call_id": "call_1", "output": outcome}
    for items in (
        [shell, message_item("a")],
        [SHELL, output, message_item("a")],
        [shell, output, message_item("a")],
    ):
        answer = openai_responses.parse(json.dumps(response(*items)).encode())
        assert (answer.calls, answer.stop_reason) == ((), "stop")
        [call] = answer.server_calls
        assert call.name == "shell"
        assert call.arguments == {"commands": ["ls"], "max_output_length": 4096}
        assert call.output == (outcome if output in items else None)
        assert json.loads(bytes(answer.native)) == items


def test_xai_reports_its_own_searches_as_custom_calls() -> None:
    search = {**CUSTOM, "name": "x_keyword_search"}
    answer = response(search, message_item("a"), model="grok-4")
    for completion in (
        openai_responses.parse(json.dumps(answer).encode()),
        stream_answer(answer, deltas := []),
    ):
        assert completion.calls == ()
        assert [call.name for call in completion.server_calls] == ["x_keyword_search"]
    assert [delta.kind for delta in deltas] == ["text"]


def stream_answer(answer: dict[str, Any], deltas: list[Delta]) -> Any:
    parser = openai_responses.ResponseStream()
    parser.feed(sse(answer).encode(), deltas.append)
    return parser.finish()


@pytest.mark.parametrize(("item", "name", "arguments"), [case[:3] for case in CASES], ids=IDS)
def test_deltas_tell_the_whole_call(
    item: dict[str, Any], name: str, arguments: dict[str, Any]
) -> None:
    deltas: list[Delta] = []
    answer = stream_answer(response(message_item("Let me."), item), deltas)
    [call] = answer.calls
    tools = [delta for delta in deltas if delta.kind == "tool"]
    assert [(delta.index, delta.name) for delta in tools] == [(0, name)]
    assert tools[0].text == call.raw_arguments
    assert call.arguments == arguments


def test_a_call_that_was_cut_off_is_not_run() -> None:
    cut = {**CUSTOM, "status": "incomplete", "input": "SELE"}
    answer = response(cut, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    completion = openai_responses.parse(json.dumps(answer).encode())
    assert completion.calls[0].invalid
    assert completion.stop_reason == "length"


def test_another_provider_gets_the_call_and_its_result_as_those_of_a_function() -> None:
    """The native items of one host go to no other; call and result must still match."""
    answer = openai_responses.parse(json.dumps(response(COMPUTER)).encode())
    answer = msgspec.structs.replace(answer, host="api.openai.com")
    transcript = Transcript.from_messages("go")
    transcript.append(answer)
    transcript.append((answer.calls[0], ToolResult((ImageContent(PNG),))))
    with ModelServer([response(message_item("a"))]) as server:
        responses(server).completion(transcript)
        _, call, result = server.requests[0].json["input"]
    assert (call["type"], call["name"]) == ("function_call", "computer")
    assert json.loads(call["arguments"]) == COMPUTER["action"]
    assert result == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_image", "image_url": PNG_URL, "detail": "auto"}],
    }


def test_two_calls_with_one_id_get_two() -> None:
    answer = openai_responses.parse(
        json.dumps(response(CUSTOM, {**CUSTOM, "id": "ctc_2"})).encode()
    )
    calls = [
        msgspec.structs.replace(call, id=f"3.{number}") for number, call in enumerate(answer.calls)
    ]
    history = json.loads(b"[" + openai_responses.assistant("", calls, answer.native, {}) + b"]")
    outputs = openai_responses.results([(call, ToolResult("x")) for call in calls], {})
    ids = [item["call_id"] for item in history]
    assert ids == [item["call_id"] for item in json.loads(b"[" + outputs + b"]")]
    assert len(set(ids)) == 2


def test_the_providers_definition_replaces_the_agents() -> None:
    own: list[Any] = [
        {"type": "custom", "name": "sql"},
        {"type": "computer_use_preview", "display_width": 1, "display_height": 1},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"},
        {"type": "mcp", "server_label": "d", "server_url": "https://x"},
    ]
    names = ["sql", "computer", "shell", "apply_patch", "mcp_approval", "other"]
    with ModelServer([response(message_item("a"))]) as server:
        model = responses(server, extra_body={"tools": own})
        model.completion("x", [tool(name, "", []) for name in names])
        part = server.requests[0].json["tools"]
    assert [entry.get("name") for entry in part[:1]] == ["other"]
    assert part[1:] == own


def test_the_kind_of_a_call_is_journaled() -> None:
    call = ToolCall("3.0", "computer", {"type": "wait"}, "c", provider_kind="computer_call")
    assert ToolCall.from_json(call.to_json()) == call
    assert b"providerKind" not in ToolCall("3.0", "t").to_json()


def test_an_approval_in_a_broken_stream_is_no_call() -> None:
    parser = openai_responses.ResponseStream()
    parser.feed(
        events(
            {"type": "response.output_item.done", "output_index": 0, "item": APPROVAL},
        ).encode()
    )
    with pytest.raises(Exception, match="before the answer was complete"):
        parser.finish()
