"""Tests of nested JSON from outside: one limit at every door, the same on every Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ScriptedLLM,
    Tool,
    ToolManager,
    ToolResult,
    commands,
)
from holdfast import events as ev
from holdfast.agent.security import judge
from holdfast.cli.render import read_arguments
from holdfast.content import TextContent, ToolCall, Usage
from holdfast.errors import BadResponse, ConfigurationError, ToolError
from holdfast.llm.base import BaseModel, CompletionCall
from holdfast.llm.completion import Completion
from holdfast.llm.wires import openai_chat
from holdfast.llm.wires.calls import read_call
from holdfast.nesting import MAX_DEPTH, MAX_DOCUMENT_DEPTH, too_deep
from holdfast.openhands.shims import with_arguments
from holdfast.remote.failures import failure
from holdfast.serve import responses_input
from holdfast.server.guard import RequestRefused
from holdfast.server.intake import _decode as decode  # pyright: ignore[reportPrivateUsage]
from holdfast.tools import hook_verdicts
from holdfast.tools.document import SourceLocation, read_json, read_yaml
from holdfast.tools.hook_answers import HookPlace
from holdfast.tools.results import as_result


def nested(levels: int) -> Any:
    """Return an object with that many levels, itself included."""
    value: Any = 1
    for number in range(levels):
        value = {"a": value} if number == levels - 1 else [value]
    return value


def text(levels: int) -> str:
    return '{"a":' + "[" * (levels - 1) + "1" + "]" * (levels - 1) + "}"


ANY = {"type": "object", "properties": {"a": {}}}

# Below every interpreter's own limit, between that of 3.11 and that of 3.13, and above both.
DEEPER = [MAX_DEPTH + 1, 500, 5_000, 100_000]


@pytest.mark.parametrize("levels", [1, 7, 8, 9, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 5_000])
def test_levels_are_counted_outside_of_strings(levels: int) -> None:
    deep = levels > MAX_DEPTH
    for shape in (
        "[" * levels + "]" * levels,
        '{"a":' * levels + "1" + "}" * levels,
        "[" * levels,  # the text breaks off
        '["[{",1,' * levels + "1" + "]" * levels,
        "[" * levels + "]" * levels + ',[{"a":[]}]' * 1_000,
        '["\\"]]]",' * levels + '"[[["' + "]" * levels,
    ):
        assert too_deep(shape) is deep, shape[:40]
        assert too_deep(shape.encode()) is deep
    mixed = "".join("[" if number % 2 else '{"a":' for number in range(levels))
    assert too_deep(mixed) is deep
    for shape in (
        '"' + "[" * levels + '"',
        '["\\"' + "[{" * levels,
        "[]," * levels,
        '"\\' + "[" * levels,
        "]" * levels,
    ):
        assert not too_deep(shape), shape[:40]


def test_a_hostile_text_takes_linear_time() -> None:
    """Check that a regular expression for strings does not try every split of an unfinished string."""
    for shape in (
        "[" * 200 + '"' + "a" * 1_000_000,
        "[" * 200 + '"' + '\\"' * 500_000 + "\\",
        "[" * 200 + '["' * 300_000,
    ):
        assert too_deep(shape)


@pytest.mark.parametrize("levels", DEEPER)
def test_arguments_that_are_too_deep_are_an_invalid_call(levels: int) -> None:
    call = read_call("t", text(levels), "p")
    assert (call.arguments, call.raw) == ({}, text(levels))
    assert (
        call.invalid
        == "The arguments are nested deeper than 100 levels. Send them flatter, or as text."
    )
    assert "deeper than 100 levels" in with_arguments(call, text(levels)).invalid


def test_arguments_at_the_limit_are_read() -> None:
    assert read_call("t", text(MAX_DEPTH), "p").arguments == nested(MAX_DEPTH)


@pytest.mark.parametrize("levels", [MAX_DOCUMENT_DEPTH + 1, 5_000, 100_000])
def test_an_answer_that_is_too_deep_is_no_answer(levels: int) -> None:
    with pytest.raises(BadResponse, match="nested deeper than 128 levels"):
        openai_chat.parse(text(levels).encode())


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 900])
def test_a_result_that_is_too_deep_is_the_tools_error(levels: int) -> None:
    for value in (
        nested(levels),
        ToolResult((TextContent("x"),), structured_content=nested(levels + 3)),
    ):
        with pytest.raises(ToolError, match=r"'t' returned .*nested deeper than 100 levels"):
            as_result("t", value)
    assert as_result("t", nested(MAX_DEPTH)).structured_content == nested(MAX_DEPTH)


def test_what_is_accepted_can_be_read_back() -> None:
    """Check a call and a result at the limit, in a journal that is read in a deep stack."""
    echo = Tool(
        "echo",
        "Echoes.",
        lambda a: {"a": a},
        input_schema={"type": "object", "properties": {"a": {}}},
    )
    with Conversation(
        Agent(ScriptedLLM([[("echo", nested(MAX_DEPTH))], "ok"]), [echo])
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    assert state.answer == "ok"
    data = state.to_json()
    assert ConversationState.from_json(data) == state
    results = [event.result for event in state.events if isinstance(event, ev.ToolCallFinished)]
    assert results[0].structured_content == nested(MAX_DEPTH)


@pytest.mark.parametrize("levels", DEEPER)
def test_other_doors_refuse_in_their_own_words(levels: int, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="The request is nested deeper than 128 levels"):
        decode(text(max(levels, MAX_DOCUMENT_DEPTH + 1)).encode(), dict[str, Any])
    with pytest.raises(ConfigurationError, match="nested deeper than 128 levels"):
        ConversationState.from_json(text(max(levels, MAX_DOCUMENT_DEPTH + 1)))
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        read_arguments(text(levels))
    for reader in (read_json, read_yaml):
        if reader is read_yaml and levels > 500:
            continue  # PyYAML takes seconds for it
        with pytest.raises(ConfigurationError, match=r"nested (too|more than 60) deep"):
            reader(text(levels), SourceLocation("f"))


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 20_000])
def test_approved_arguments_have_the_same_limit(levels: int) -> None:
    echo = Tool("echo", "Echoes.", lambda: "echo", input_schema={"type": "object"})
    with Conversation(
        Agent(ScriptedLLM([[("echo", {})], "ok"]), [echo], confirm="always")
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        with pytest.raises(
            ConfigurationError, match="approve: arguments are nested deeper than 100 levels"
        ):
            conversation.approve(state.pending_confirmations[0].call.id, arguments=nested(levels))
        assert conversation.state.pending_confirmations == state.pending_confirmations


def test_a_call_of_a_program_is_refused_in_the_same_words() -> None:
    def echo(a: Any) -> str:
        """Echoes."""
        return "ran"

    for tool in (Tool.from_function(echo), Tool("echo", "", echo, ANY)):
        result = ToolManager([tool]).run(ToolCall("1.0", "echo", {"a": nested(3_000)}))
        assert "'echo' was not run: its arguments are nested deeper than 100 levels." in result.text
        assert result.error is not None
        assert result.error.type == "validation"


class Careless(BaseModel):
    """A model of a test program, whose answers no wire has read."""

    model = "careless"

    def __init__(self, levels: int) -> None:
        self.levels = levels

    def complete(self, call: CompletionCall) -> Completion:
        if len(call.transcript) > 1:
            return Completion("ok")
        return Completion(calls=(ToolCall("", "echo", {"a": nested(self.levels)}),))

    def parameters(self) -> dict[str, Any]:
        return {}

    def cost(self, usage: Usage) -> float | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("levels", DEEPER)
def test_a_call_of_any_model_is_invalid_and_the_run_goes_on(levels: int) -> None:
    echo = Tool("echo", "Echoes.", lambda a: "ran", input_schema=ANY)
    call = ToolCall("", "echo", {"a": nested(levels)})
    for model in (
        ScriptedLLM([[("echo", call.arguments)], "ok"]),
        ScriptedLLM([[call], "ok"]),
        Careless(levels),
    ):
        with Conversation(Agent(model, [echo])) as conversation:
            conversation.send_message("go")
            state = conversation.run()
        assert (state.answer, state.error) == ("ok", None)
        results = [event.result for event in state.events if isinstance(event, ev.ToolCallFinished)]
        assert "not run: The arguments are nested deeper than 100 levels" in results[0].text


READERS: dict[str, Callable[[str], Any]] = {
    "content": TextContent.from_json,
    "result": ToolResult.from_json,
    "call": ToolCall.from_json,
    "command": lambda data: commands.decode(data.encode()),
    "event": ev.decode,
    "judge": lambda data: judge.read(Completion(data)),
    "error of a server": lambda data: failure(500, data.encode(), "here", "GET /"),
    "answer to a question": lambda data: responses_input._value(as_result("t", data)),  # pyright: ignore[reportPrivateUsage]
    "verdict": lambda data: hook_verdicts._read(data, HookPlace()),  # pyright: ignore[reportPrivateUsage]
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_ends_in_a_recursion_error(name: str) -> None:
    for levels in (500, 1_500, 20_000):
        for shape in ("%s", '{"type":"text","text":"x","meta":%s}', '{"error":{"details":%s}}'):
            for data in (text(levels), "[" * levels):
                with suppress(ValueError):
                    READERS[name](shape % data)
