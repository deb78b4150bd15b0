"""All parts of a provider's answer besides text and calls go back to the letter, whatever
happened to the conversation in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, SQLiteStore
from holdfast import events as ev
from holdfast.conversation.replay import replay
from holdfast.llm import LLM, Delta
from tests.model_server import ModelServer, Request

KEY = "sk-planted-secret"

# Per wire: the answer that calls a tool, the answer after it, and the exact bytes of the first one
# that must go back. Spaces, key order and escapes differ from ours; `mystery` is an unknown item of
# the future.

ANTHROPIC_BLOCKS = [
    '{"type": "thinking",  "thinking": "Add \\u00e9 up.", "signature": "EqQBCkYIChgC=="}',
    '{"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"}',
    '{"type": "mystery", "data": {"b": 1, "a": [2, null]}}',
    (
        '{"type": "text", "text": "Let me see.", "citations": [{"type": "char_location",'
        ' "cited_text": "x", "document_index": 0}]}'
    ),
    '{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 2, "a": 1}}',
]
ANTHROPIC = (
    '{"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",'
    ' "content": ['
    + ", ".join(ANTHROPIC_BLOCKS)
    + '], "stop_reason": "tool_use", "usage": {"input_tokens": 5, "cache_read_input_tokens": 90,'
    ' "cache_creation_input_tokens": 5, "output_tokens": 7}}',
    (
        '{"id": "msg_2", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",'
        ' "content": [{"type": "text", "text": "3."}], "stop_reason": "end_turn", "usage":'
        ' {"input_tokens": 100, "output_tokens": 7}}'
    ),
    ANTHROPIC_BLOCKS[:4],
)
RESPONSES_ITEMS = [
    (
        '{"id": "rs_1",  "type": "reasoning", "summary": [{"type": "summary_text", "text": "Add'
        ' \\u00e9 up."}], "encrypted_content": "gAAAAABn+a/b=="}'
    ),
    '{"id": "my_1", "type": "mystery_call", "payload": {"b": 1, "a": [2, null]}}',
    (
        '{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content":'
        ' [{"type": "output_text", "text": "Let me see.", "annotations": [{"type": "url_citation",'
        ' "url": "https://example.com", "title": "x", "start_index": 0, "end_index": 3}]}]}'
    ),
    (
        '{"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1",'
        ' "name": "add", "arguments": "{\\"b\\": 2,  \\"a\\": 1}"}'
    ),
]
_USAGE = (
    '"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 90}, "output_tokens":'
    ' 7, "output_tokens_details": {"reasoning_tokens": 3}}'
)
RESPONSES = (
    '{"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5", "output": ['
    + ", ".join(RESPONSES_ITEMS)
    + "], "
    + _USAGE
    + "}",
    '{"id": "resp_2", "object": "response", "status": "completed", "model": "gpt-5", "output":'
    ' [{"id": "msg_2", "type": "message", "role": "assistant", "status": "completed", "content":'
    ' [{"type": "output_text", "text": "3.", "annotations": []}]}], ' + _USAGE + "}",
    RESPONSES_ITEMS,
)
GEMINI_PARTS = [
    '{"text": "Add \\u00e9 up.",  "thought": true}',
    '{"text": "Let me see.", "thoughtSignature": "CiQBx/VdYg+Q=="}',
    '{"mystery": {"b": 1, "a": [2, null]}}',
    '{"functionCall": {"name": "add", "args": {"b": 2, "a": 1}}, "thoughtSignature": "EqQB+/Ck=="}',
]
_COUNTS = (
    '"usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 90,'
    ' "candidatesTokenCount": 4, "thoughtsTokenCount": 3}'
)
GEMINI = (
    '{"candidates": [{"content": {"role": "model", "parts": ['
    + ", ".join(GEMINI_PARTS)
    + ']}, "finishReason": "STOP"}], '
    + _COUNTS
    + "}",
    '{"candidates": [{"content": {"role": "model", "parts": [{"text": "3."}]}, "finishReason":'
    ' "STOP"}], ' + _COUNTS + "}",
    GEMINI_PARTS,
)
_CHAT = (
    '"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 90},'
    ' "completion_tokens": 7}}'
)
_DETAILS = '[{"type": "reasoning.encrypted", "data": "gAAAA+/b==", "id": "r", "index": 0}]'
CHAT = (
    '{"id": "c_1", "model": "gemini-3-pro", "choices": [{"index": 0, "finish_reason": "tool_calls",'
    ' "message": {"role": "assistant", "content": null, "reasoning_details": '
    + _DETAILS
    + ', "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add",'
    ' "arguments": "{\\"b\\": 2,  \\"a\\": 1}"}, "extra_content": {"google":'
    ' {"thought_signature": "EqQB+/Ck=="}}}]}}], ' + _CHAT,
    '{"id": "c_2", "model": "gemini-3-pro", "choices": [{"index": 0, "finish_reason": "stop",'
    ' "message": {"role": "assistant", "content": "3."}}], ' + _CHAT,
    ['"gAAAA+/b=="', '"EqQB+/Ck=="'],
)
WIRES: dict[str, tuple[str, tuple[str, str, list[str]]]] = {
    "anthropic_messages": ("claude-sonnet-4-5", ANTHROPIC),
    "openai_responses": ("gpt-5", RESPONSES),
    "gemini": ("gemini-3-pro", GEMINI),
    "openai_chat": ("gemini-3-pro", CHAT),
}
WIRE_NAMES = list(WIRES)


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def answer(request: Request) -> Any:
    """Return the wire's first answer to a message, and its second one to a result. The path
    identifies the wire."""
    name = wire_of(request)
    is_result = _last(name, request.json)
    return (200, {"content-type": "application/json"}, WIRES[name][1][1 if is_result else 0])


def wire_of(request: Request) -> str:
    path = request.path.partition("?")[0]
    ends = {
        "messages": "anthropic_messages",
        "responses": "openai_responses",
        "completions": "openai_chat",
    }
    return ends.get(path.rpartition("/")[2], "gemini")


def _last(name: str, body: dict[str, Any]) -> bool:
    """Return True if a request ends with a tool's result."""
    last = body[
        "contents" if name == "gemini" else "input" if name == "openai_responses" else "messages"
    ][-1]
    return any(
        mark in json.dumps(last)
        for mark in (
            '"tool_result"',
            '"function_call_output"',
            '"functionResponse"',
            '"role": "tool"',
        )
    )


def model(name: str, url: str) -> LLM:
    return LLM(WIRES[name][0], KEY, url, wire=name)


def talk(conversation: Conversation, text: str = "1 + 2?") -> None:
    conversation.send_message(text)
    state = conversation.run()
    assert state.status is ConversationStatus.FINISHED, state.error
    assert state.answer == "3."


def check_echo(name: str, request: Request, times: int = 1) -> None:
    body = request.body.decode()
    for piece in WIRES[name][1][2]:
        assert body.count(piece) == times, (
            f"{piece} is in the request {body.count(piece)} times: {body}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRE_NAMES)
def test_a_resume_a_fork_and_a_condensation_leave_it_as_it_came(name: str, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "c.db")
    with ModelServer(answer) as server:
        agent = Agent(model(name, server.url), [add])
        with Conversation(agent, store, "c") as conversation:
            talk(conversation)
            check_echo(name, server.requests[-1])
        with Conversation(agent, store, "c") as conversation:  # read from the store
            talk(conversation)
            check_echo(name, server.requests[-1], 2)
            with conversation.fork() as fork:
                talk(fork)
                check_echo(name, server.requests[-1], 3)
            first = [
                event.seq
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
            ][:3]
            with conversation.hosting.journal as journal:  # pyright: ignore
                journal.condense(first, "Added.")
            talk(conversation)
            check_echo(name, server.requests[-1], 2)
            events = conversation.get_history()
    result = replay(events, agent)
    assert (result.same, result.requests, result.hashed) == (True, 6, 6)
    assert not any(event.notes for event in events if isinstance(event, ev.AssistantReplied))
    usage = next(event.usage for event in events if isinstance(event, ev.AssistantReplied))
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (100, 7, 90)
    assert KEY.encode() not in (tmp_path / "c.db").read_bytes()
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("there", WIRE_NAMES)
@pytest.mark.parametrize("here", WIRE_NAMES)
def test_another_provider_is_told_what_it_can_read_and_back_at_the_first_all_is_there(
    here: str, there: str, tmp_path: Path
) -> None:
    if here == there:
        pytest.skip("no switch")
    store = SQLiteStore(tmp_path / "c.db")
    with ModelServer(answer) as server:
        for name in (here, there, here):
            with Conversation(Agent(model(name, server.url), [add]), store, "c") as conversation:
                talk(conversation)
                events = conversation.get_history()
        away, back = server.requests[3].body.decode(), server.requests[5]
    for secret in (
        "EqQBCkYIChgC==",
        "EmwKAhgBEgy3va3pzix",
        "gAAAAABn+a/b==",
        "CiQBx/VdYg+Q==",
        "gAAAA+/b==",
        "mystery",
    ):
        if any(secret in piece for piece in WIRES[here][1][2]) and not any(
            secret in piece for piece in WIRES[there][1][2]
        ):
            assert secret not in away
    assert "1 + 2?" in away
    assert "3." in away
    assert away.count('"add"') >= 2  # the call of the first answer, and our tool
    check_echo(here, back, 2)
    notes = [event.notes for event in events if isinstance(event, ev.AssistantReplied)]
    assert [bool(note) for note in notes] == [False, False, True, False, True, False]
    assert notes[2][0].startswith(
        f"1 answer of {'gemini' if here == 'gemini' else WIRES[here][0]} went to {WIRES[there][0]}"
    )
    assert replay(events).same
    store.close()


@pytest.mark.parametrize("name", WIRE_NAMES)
def test_the_answer_of_a_wire_is_read(name: str) -> None:
    deltas: list[Delta] = []
    with ModelServer(answer) as server:
        completion = model(name, server.url).completion("1 + 2?", on_delta=deltas.append)
    assert [(call.name, call.arguments) for call in completion.calls] == [("add", {"a": 1, "b": 2})]
    assert completion.stop_reason == "tool_calls"
    assert completion.native
    if name != "openai_chat":
        assert (completion.text, completion.reasoning) == ("Let me see.", "Add é up.")


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRE_NAMES)
def test_another_host_of_the_same_model_is_sent_only_what_it_can_read(
    name: str, tmp_path: Path
) -> None:
    """Another host refuses encrypted reasoning; Anthropic's signatures are valid on all
    platforms."""
    store = SQLiteStore(tmp_path / "c.db")
    with ModelServer(answer) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost"), server.url):
            with Conversation(Agent(model(name, url), [add]), store, "c") as conversation:
                talk(conversation)
                events = conversation.get_history()
        away, back = server.requests[3], server.requests[5]
    bound = name in ("openai_responses", "gemini")
    check_echo(name, away, 1 if bound else 2)  # its own answer goes back to that host
    check_echo(name, back, 2 if bound else 3)
    notes = [event.notes for event in events if isinstance(event, ev.AssistantReplied)]
    assert [bool(note) for note in notes] == [False, False, bound, False, bound, False]
    if bound:
        assert " at localhost as text and calls only" in notes[2][0]
    assert replay(events).same
    store.close()


def test_ids_that_a_server_repeats_are_told_apart_elsewhere_after_a_condensation_and_in_a_replay(
    tmp_path: Path,
) -> None:
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a":1,"b":2}'},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    def repeating(request: Request) -> Any:
        if wire_of(request) != "openai_chat":
            return answer(request)
        if _last("openai_chat", request.json):
            return (200, {"content-type": "application/json"}, CHAT[1])
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "model": "qwen3",
        }

    def uses(request: Request) -> list[tuple[str, str]]:
        blocks = [
            block
            for message in request.messages
            for block in message["content"]
            if isinstance(block, dict)
        ]
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return list(
            zip(
                called,
                [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"],
                strict=True,
            )
        )

    store = SQLiteStore(tmp_path / "c.db")
    with ModelServer(repeating) as server:
        with Conversation(Agent(LLM("qwen3", KEY, server.url), [add]), store, "c") as conversation:
            talk(conversation)
            talk(conversation)
        with Conversation(
            Agent(model("anthropic_messages", server.url), [add]), store, "c"
        ) as conversation:
            talk(conversation)
            assert uses(server.requests[-1]) == [
                ("call_0", "call_0"),
                ("call_0_2", "call_0_2"),
                ("toolu_1", "toolu_1"),
            ]
            first = [
                event.seq
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded | ev.AssistantReplied)
            ][:3]
            with conversation.hosting.journal as journal:  # pyright: ignore
                journal.condense(first, "Added.")
            talk(conversation)
            assert uses(server.requests[-1])[0] == ("call_0", "call_0")
            assert len(set(uses(server.requests[-1]))) == 3
            events = conversation.get_history()
    assert replay(events).same
    store.close()
