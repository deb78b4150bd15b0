"""Tool calls as text, for models that cannot call tools, on every wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Agent, Conversation, ConversationStatus
from holdfast import events as ev
from holdfast.content import ImageContent, ToolCall, ToolResult
from holdfast.conversation.replay import replay
from holdfast.llm import LLM, Delta
from holdfast.llm.completion import NO_NATIVE
from holdfast.llm.transcript import Recipient
from holdfast.llm.wires import WIRES, answer_reader, is_wire, wire
from holdfast.llm.wires.protocol import OPTIONAL_MEMBERS
from holdfast.llm.wires.text_call_parser import TextLookahead, read_text
from tests.model_server import ModelServer, Stream, chat, sse, text
from tests.samples import examples

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
WIRE = "openai_chat+text"


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def parse(content: str, finish: str = "stop") -> Any:
    return wire(WIRE).parse(
        json.dumps(chat({"role": "assistant", "content": content}, finish)).encode()
    )


def test_a_conversation_with_a_model_that_cannot_call_tools() -> None:
    with ModelServer([text(f"Let me see.\n{CALL}"), text("It is 3.")]) as server:
        agent = Agent(
            LLM("m", base_url=server.url, tool_calls="text"), [add], system_prompt="Be exact."
        )
        with Conversation(agent) as conversation:
            conversation.send_message("1 + 2?")
            assert conversation.run().answer == "It is 3."
            journal = conversation.get_history()
    first, second = server.requests
    assert "tools" not in first.json
    assert first.messages[0]["role"] == "system"
    assert first.messages[0]["content"].startswith("Be exact.\n\n# Tools")
    assert '{"name":"add","description":"Adds two numbers."' in first.messages[0]["content"]
    assert [message["role"] for message in second.messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert second.messages[2]["content"] == f"Let me see.\n{CALL}".replace(
        '{"a": 1, "b": 2}', '{"a":1,"b":2}'
    )
    assert second.messages[3]["content"] == '<tool_result name="add">\n3\n</tool_result>'
    answer = next(event for event in journal if isinstance(event, ev.AssistantReplied))
    assert (answer.text, answer.calls[0].name, answer.calls[0].arguments, answer.wire) == (
        "Let me see.",
        "add",
        {"a": 1, "b": 2},
        WIRE,
    )
    assert replay(journal, agent).same
    assert replay(journal).hashed == 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_tells_text_as_text_and_calls_as_calls(size: int) -> None:
    body = sse(text(f"See <b>this</b> <tool: {CALL}{CALL} and < that"), size).encode()
    deltas: list[Delta] = []
    with ModelServer(
        [Stream([body[at : at + size] for at in range(0, len(body), size)])]
    ) as server:
        llm = LLM("m", base_url=server.url, tool_calls="text", stream=True)
        answer = llm.completion("1 + 2?", [_Definition()], on_delta=deltas.append)
        llm.close()
    assert answer.text == "See <b>this</b> <tool:  and < that"
    assert [call.arguments for call in answer.calls] == [{"a": 1, "b": 2}] * 2
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == answer.text
    assert [
        (delta.index, delta.name, json.loads(delta.text))
        for delta in deltas
        if delta.kind == "tool"
    ] == [
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
        (
            '<tool_call>```json\n{"name": "add", "arguments": {}}\n```</tool_call>',
            "",
            [("add", {})],
        ),
        ('<tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>', "", [("add", {"a": 1})]),
        ('<tool_call>{"name": "add"}</tool_call>', "", [("add", {})]),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("add", {"a": 1})],
        ),
        (
            f'{CALL}\n<tool_result name="add">\n4\n</tool_result>\nIt is 4.',
            "",
            [("add", {"a": 1, "b": 2})],
        ),
        ('so <tool_call>\n{"name": "add", "arguments": {"a": 1}}', "so", [("add", {"a": 1})]),
    ],
)
def test_calls_are_found_as_models_write_them(said: str, rest: str, calls: list[Any]) -> None:
    answer = parse(said)
    assert (answer.text, [(call.name, call.arguments) for call in answer.calls]) == (rest, calls)
    assert answer.stop_reason == ("tool_calls" if calls else "stop")
    assert not any(call.invalid for call in answer.calls)


@pytest.mark.parametrize(
    ("block", "name", "why"),
    [
        ('{"name": "add", "arguments": {"a": }}', "add", "not valid JSON"),
        ('{"tool": "add"}', "", 'one JSON object with "name" and "arguments"'),
        ("[1]", "", "an array"),
        ('{"name": "add", "arguments": {"a": "x}', "add", "not valid JSON"),
        ('{"name": "add", "arguments": [1]}', "add", "an array"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_so(block: str, name: str, why: str) -> None:
    call = parse(f"<tool_call>{block}</tool_call>").calls[0]
    assert (call.name, call.arguments) == (name, {})
    assert why in call.invalid
    again = json.loads(wire(WIRE).assistant("", (call,), NO_NATIVE, {}))
    assert "invalid_json" in again["content"]


def test_a_call_that_was_cut_off_is_not_run() -> None:
    answer = parse('see <tool_call>{"name": "add", "arguments": {"a": 1', finish="length")
    assert not answer.calls
    assert answer.stop_reason == "length"
    assert "<tool_call>" in answer.text


def test_results_stand_in_one_message_with_their_pictures() -> None:
    batch = [
        (ToolCall("2.0", "srv.see"), ToolResult(ImageContent(b"p"))),
        (ToolCall("2.1", "add"), ToolResult.failure("broke")),
    ]
    message = json.loads(wire(WIRE).results(batch, {"srv.see": "srv__see"}))
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "text"]
    assert message["content"][0]["text"].startswith('<tool_result name="srv__see">')
    assert (
        message["content"][2]["text"]
        == '<tool_result name="add" error="true">\nbroke\n</tool_result>'
    )


def test_a_name_with_text_is_known() -> None:
    assert is_wire(WIRE)
    assert not is_wire("telex+text")
    assert wire(WIRE).name == WIRE


@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", "<tool_result", "a", "{", "}", '"name"', "\n", "<"]
        ),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=examples(200))
def test_any_text_is_read(parts: list[str]) -> None:
    content = "".join(parts)
    assert len(read_text(content)[0]) <= len(content)
    for call in parse(content or "x").calls:
        assert call.invalid or call.name


def test_a_model_that_never_calls_ends_its_work() -> None:
    with (
        ModelServer([text("Nothing to do.")]) as server,
        Conversation(Agent(LLM("m", base_url=server.url, tool_calls="text"), [add])) as c,
    ):
        c.send_message("hello")
        assert c.run().status is ConversationStatus.FINISHED


@pytest.mark.parametrize(
    "said",
    [
        "Use `<tool_call>` to begin a call; it is documented in README.",
        "The tag <tool_call> opens a call, and </tool_call> ends it. That is all.",
        f"<think>I could write {CALL}, but that would be wrong.</think>\nI will not.",
        f"<thinking>\n{CALL}",
        # of a prompt that ended in <think>
        f"I could write\n{CALL}\nbut that would be wrong.\n</think>\nI will not.",
        f"A call looks like this:\n```\n{CALL}\n```\nThat is all.",
        f"A call looks like this:\n- so:\n  ```xml\n  {CALL}\n  ```\nThat is all.",
        f"See:\n```\ncode\n{CALL}\n```",
        f"It is `{CALL}`, in one line.",
        "<tool_call>{name} is a placeholder, and so on.",
        "<tool_call>\nadd(1, 2)\n</tool_call>",
        (
            '```\n<tool_call>{"name": "a"}</tool_call>\n<tool_result>made'
            " up</tool_result>\n```\nThat is how they look."
        ),
    ],
)
def test_what_only_looks_like_a_call_is_text(said: str) -> None:
    answer = parse(said)
    assert (answer.text, answer.calls, answer.stop_reason) == (said, (), "stop")
    assert deltas_of(said, 1) == (said, [])


@pytest.mark.parametrize(
    ("said", "rest", "count"),
    [
        (f"<think>{CALL}</think>\n{CALL}", f"<think>{CALL}</think>", 1),
        (f"Thinking: {CALL}\n</think>\n{CALL}", f"Thinking: {CALL}\n</think>", 1),
        (f"I read it.\n```xml\n{CALL}\n```", "I read it.", 1),
        (f"```\n{CALL}\n{CALL}\n```\n", "", 2),
        (f"```\n{CALL}\n```\n```\n{CALL}", "", 2),
        (f"Two:\n<tool_call>[{CALL[11:-12]}, {CALL[11:-12]}]</tool_call>", "Two:", 2),
        (f"<tool_call>{CALL[11:-12]}\n{CALL[11:-12]}</tool_call> ", "", 2),
        (
            f"{CALL}\n<tool_result>4</tool_result>\n{CALL}",
            "",
            1,
        ),  # text after an invented result is invented, too
        (f"The tag <tool_call> is there.\n{CALL}", "The tag <tool_call> is there.", 1),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}}</tool_call>', "", 1),
        (f"the <think> tag\n{CALL}", "the <think> tag", 1),
        (f"\n\n{CALL}\nand so on ", "and so on", 1),
    ],
)
def test_calls_are_told_from_what_stands_around_them(said: str, rest: str, count: int) -> None:
    answer = parse(said)
    assert (answer.text, [call.arguments for call in answer.calls]) == (
        rest,
        [{"a": 1, "b": 2}] * count,
    )
    for size in (1, 5, 10**6):
        assert deltas_of(said, size) == (
            rest,
            [(0 + n, "add", '{"a":1,"b":2}') for n in range(count)],
        )


def deltas_of(content: str, size: int) -> tuple[str, list[tuple[int, str, str]]]:
    """Return the text and the calls in the deltas of an answer that arrives in pieces."""
    deltas: list[Delta] = []
    parser = wire(WIRE).stream()
    parser.feed(sse(text(content), size).encode(), deltas.append)
    parser.finish()
    return (
        "".join(delta.text for delta in deltas if delta.kind == "text"),
        [(delta.index, delta.name, delta.text) for delta in deltas if delta.kind == "tool"],
    )


PIECES = [
    CALL,
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "```",
    "<tool_result>",
    "\n",
    " ",
    "a",
    "{",
    "[",
    "`",
    "<",
    '{"name": "add"}',
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=10), st.integers(1, 30))
@settings(deadline=None, max_examples=examples(300))
def test_a_stream_tells_what_the_text_says(parts: list[str], size: int) -> None:
    answer = parse("".join(parts))
    assert deltas_of("".join(parts), size) == (
        answer.text,
        [(n, call.name, call.raw_arguments) for n, call in enumerate(answer.calls)],
    )


def test_a_tag_within_an_argument_ends_nothing() -> None:
    argument = "write <tool_call>x</tool_call>\nlike so"
    (call,) = parse(
        f'<tool_call>{{"name": "add", "arguments": {{"a": "{argument}"}}}}</tool_call>'
    ).calls
    assert call.arguments == {"a": argument}


def test_without_tools_an_answer_is_text() -> None:
    plain = answer_reader(wire(WIRE), False)
    assert plain.name == WIRE
    assert plain.parse(json.dumps(text(CALL)).encode()).text == CALL
    parser, deltas = plain.stream(), list[Delta]()
    parser.feed(sse(text(CALL), 3).encode(), deltas.append)
    assert (parser.finish().text, "".join(delta.text for delta in deltas)) == (CALL, CALL)
    assert answer_reader(wire(WIRE), True).parse(json.dumps(text(CALL)).encode()).calls
    assert answer_reader(wire("gemini"), False) is wire("gemini")


def test_calls_of_the_providers_own_are_kept_beside_those_in_the_text() -> None:
    entry = {
        "id": "n1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a":5}'},
        "extra_content": {"s": 1},
    }
    message = {"role": "assistant", "content": f"Both: {CALL}", "tool_calls": [entry]}
    answer = wire(WIRE).parse(json.dumps(chat(message, "tool_calls")).encode())
    assert [(call.provider_id, call.arguments) for call in answer.calls] == [
        ("n1", {"a": 5}),
        ("", {"a": 1, "b": 2}),
    ]
    assert (answer.text, bool(answer.native)) == ("Both:", False)


def test_an_answer_with_calls_of_the_providers_own_goes_back_as_text() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    ]
    text_wire = wire("anthropic_messages+text")
    answer = text_wire.parse(
        json.dumps({"type": "message", "content": blocks, "stop_reason": "tool_use"}).encode()
    )
    for native in (
        answer.native,
        msgspec.Raw(json.dumps(blocks).encode()),
    ):  # the latter occurs in older journals
        message = json.loads(text_wire.assistant(answer.text, answer.calls, native, {}))
        assert [block["type"] for block in message["content"]] == ["text"]
        assert '"name": "add"' in message["content"][0]["text"]


def test_a_stream_is_searched_once() -> None:
    """Otherwise each piece of a long call costs as much as all before it."""
    for content in (
        f"see {CALL[:-20]}",
        "a <tool_call>" + "\n" * 1000,
        "```" + " " * 1000,
        "<think>\n" + "hm " * 1000,
        "<" * 1000,
    ):
        ahead = TextLookahead()
        for place in range(len(content)):
            ahead.feed(content[place])
            assert len(ahead._held_back) < 250  # pyright: ignore[reportPrivateUsage]


def test_a_call_is_told_when_it_is_known_to_be_one() -> None:
    deltas: list[Delta] = []
    parser = wire(WIRE).stream()
    parser.feed(sse(text(f"see {CALL}\n</think>\nno"), 10).encode(), deltas.append)
    assert "".join(delta.text for delta in deltas) == "see"
    assert not parser.finish().calls
    assert "".join(delta.text for delta in deltas) == f"see {CALL}\n</think>\nno"


@pytest.mark.parametrize("name", WIRES)
def test_calls_as_text_keep_the_optional_members_of_their_wire(name: str) -> None:
    plain, text = Recipient(wire(name)), Recipient(wire(name + "+text"))
    for member in OPTIONAL_MEMBERS:
        assert getattr(text, member) == getattr(plain, member), member
