"""Tool calls as text: for models that cannot call tools, on every wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Agent, Conversation, ConversationStatus
from holdfast import events as ev
from holdfast.content import ImageContent, ToolCall, ToolResult
from holdfast.conversation.replay import replay
from holdfast.llm import LLM, Delta
from holdfast.llm.completion import NO_NATIVE
from holdfast.llm.wires import known, wire
from holdfast.llm.wires.text_calls import read_text
from tests.model_server import ModelServer, Stream, chat, sse, text

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
WIRE = "openai_chat+text"


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def read(said: str, finish: str = "stop") -> Any:
    return wire(WIRE).parse(json.dumps(chat({"role": "assistant", "content": said}, finish)).encode())


def test_a_conversation_with_a_model_that_cannot_call_tools() -> None:
    with ModelServer([text(f"Let me see.\n{CALL}"), text("It is 3.")]) as server:
        agent = Agent(LLM("m", base_url=server.url, tool_calls="text"), [add], system_prompt="Be exact.")
        with Conversation(agent) as conversation:
            conversation.send_message("1 + 2?")
            assert conversation.run().answer == "It is 3."
            journal = conversation.get_history()
    first, second = server.requests
    assert "tools" not in first.json
    assert first.messages[0]["role"] == "system"
    assert first.messages[0]["content"].startswith("Be exact.\n\n# Tools")
    assert '{"name":"add","description":"Adds two numbers."' in first.messages[0]["content"]
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
    assert second.messages[2]["content"] == f"Let me see.\n{CALL}".replace('{"a": 1, "b": 2}', '{"a":1,"b":2}')
    assert second.messages[3]["content"] == '<tool_result name="add">\n3\n</tool_result>'
    answer = next(event for event in journal if isinstance(event, ev.Assistant))
    assert (answer.text, answer.calls[0].name, answer.calls[0].arguments, answer.wire) == ("Let me see.", "add", {"a": 1, "b": 2}, WIRE)
    assert replay(journal, agent).same
    assert replay(journal).hashed == 2


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_tells_text_as_text_and_calls_as_calls(size: int) -> None:
    body = sse(text(f"See <b>this</b> <tool: {CALL}{CALL} and < that"), size).encode()
    seen: list[Delta] = []
    with ModelServer([Stream([body[at : at + size] for at in range(0, len(body), size)])]) as server:
        llm = LLM("m", base_url=server.url, tool_calls="text", stream=True)
        answer = llm.completion("1 + 2?", [_Definition()], on_delta=seen.append)
        llm.close()
    assert answer.text == "See <b>this</b> <tool:  and < that"
    assert [call.arguments for call in answer.calls] == [{"a": 1, "b": 2}] * 2
    assert "".join(delta.text for delta in seen if delta.kind == "text") == answer.text
    assert [(delta.index, delta.name, json.loads(delta.text)) for delta in seen if delta.kind == "tool"] == [
        (0, "add", {"a": 1, "b": 2}),
        (1, "add", {"a": 1, "b": 2}),
    ]


class _Definition:
    name = "add"
    description = ""
    input_schema: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    ("said", "rest", "calls"),
    [
        ("no calls", "no calls", []),
        (CALL, "", [("add", {"a": 1, "b": 2})]),
        (f"a {CALL} b {CALL}", "a  b", [("add", {"a": 1, "b": 2})] * 2),
        ('<tool_call>```json\n{"name": "add", "arguments": {}}\n```</tool_call>', "", [("add", {})]),
        ('<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>', "", [("add", {"a": 1})]),
        ('<tool_call>{"name": "add"}</tool_call>', "", [("add", {})]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", {"a": 1})]),
        (f'{CALL}\n<tool_result name="add">\n4\n</tool_result>\nIt is 4.', "", [("add", {"a": 1, "b": 2})]),
        ('so <tool_call>\n{"name": "add", "arguments": {"a": 1}}', "so", [("add", {"a": 1})]),
    ],
)
def test_calls_are_found_as_models_write_them(said: str, rest: str, calls: list[Any]) -> None:
    answer = read(said)
    assert (answer.text, [(call.name, call.arguments) for call in answer.calls]) == (rest, calls)
    assert answer.stop_reason == ("tool_calls" if calls else "stop")
    assert not any(call.invalid for call in answer.calls)


@pytest.mark.parametrize(
    ("block", "name", "why"),
    [
        ('{"name": "add", "arguments": {"a": }}', "add", "not valid JSON"),
        ('{"tool": "add"}', "", 'one JSON object with "name" and "arguments"'),
        ("add(1, 2)", "", "not valid JSON"),
        ("[1]", "", "an array"),
        ('{"name": "add", "arguments": [1]}', "add", "an array"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_so(block: str, name: str, why: str) -> None:
    call = read(f"<tool_call>{block}</tool_call>").calls[0]
    assert (call.name, call.arguments) == (name, {})
    assert why in call.invalid
    again = json.loads(wire(WIRE).assistant("", (call,), NO_NATIVE, {}))
    assert "invalid_json" in again["content"]


def test_a_call_that_was_cut_off_is_not_run() -> None:
    answer = read('see <tool_call>{"name": "add", "arguments": {"a": 1', finish="length")
    assert not answer.calls
    assert answer.stop_reason == "length"
    assert "<tool_call>" in answer.text


def test_results_stand_in_one_message_with_their_pictures() -> None:
    batch = [
        (ToolCall("2.0", "srv.see"), ToolResult(ImageContent(b"p"))),
        (ToolCall("2.1", "add"), ToolResult.failure("broke")),
    ]  # fmt: skip
    message = json.loads(wire(WIRE).results(batch, {"srv.see": "srv__see"}))
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text"]
    assert message["content"][0]["text"].startswith('<tool_result name="srv__see">')
    assert message["content"][2]["text"] == '<tool_result name="add" error="true">\nbroke\n</tool_result>'


def test_a_name_with_text_is_known() -> None:
    assert known(WIRE)
    assert not known("telex+text")
    assert wire(WIRE).name == WIRE


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<tool_result", "a", "{", "}", '"name"', "\n", "<"]), max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_text_is_read(parts: list[str]) -> None:
    said = "".join(parts)
    text_, blocks, rest = read_text(said)
    assert len(text_) + sum(map(len, blocks)) + len(rest) <= len(said)
    for call in read(said or "x").calls:
        assert call.invalid or call.name


def test_a_model_that_never_calls_ends_its_work() -> None:
    with ModelServer([text("Nothing to do.")]) as server, Conversation(Agent(LLM("m", base_url=server.url, tool_calls="text"), [add])) as c:
        c.send_message("hello")
        assert c.run().status is ConversationStatus.FINISHED
