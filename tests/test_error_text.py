"""Tests of the text that stands for an error: the class, the message, and what stands in place of
an empty one wherever a person or a model reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator

import holdfast
from holdfast import Agent, Conversation, Goal, Hook, ScriptedLLM, Tool, tool
from holdfast import events as ev
from holdfast.agent.confirmation import decided
from holdfast.agent.risk import Risk, Surroundings, assess_call
from holdfast.content import ToolCall, text_of
from holdfast.error_text import describe_error, typed_text
from holdfast.errors import ToolError
from holdfast.tools import ToolManager

CALL = ToolCall("1.0", "wait", {})
EMPTY_END = re.compile(r"\w+: *[.)]?$")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def fail(*_: Any) -> Any:
    raise TimeoutError


def caused() -> Exception:
    error = TimeoutError()
    error.__cause__ = OSError("no route to host")
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too long"), "ValueError: too long"),
        (TimeoutError(), "TimeoutError (no message)"),
        (ValueError("  "), "ValueError (no message)"),
        (caused(), "TimeoutError (no message; caused by OSError: no route to host)"),
        (Mute(), "Mute: (its message cannot be shown)"),
    ],
)
def test_an_error_is_described_by_its_class_and_its_text(error: Exception, text: str) -> None:
    assert describe_error(error) == text


def test_a_description_in_place_of_a_message_has_its_class_once() -> None:
    assert typed_text("TimeoutError", "") == "TimeoutError (no message)"
    assert typed_text("TimeoutError", describe_error(caused())) == describe_error(caused())
    assert typed_text("TimeoutError", "after 3 s") == "TimeoutError: after 3 s"


def test_no_module_writes_the_class_and_the_text_of_an_error_by_itself() -> None:
    form = re.compile(r"\{type\((\S+)\)\.__name__\}: \{(clean\()?(str\()?\1|\{kind\}: \{error")
    sources = Path(str(holdfast.__file__)).parent.rglob("*.py")
    assert [str(path) for path in sources if form.search(path.read_text())] == []


@tool
def wait() -> str:
    """Wait."""
    return fail()


@pytest.mark.parametrize("raised", [TimeoutError(), ToolError("")])
def test_a_tool_that_raises_without_a_text_says_so_to_the_model(raised: Exception) -> None:
    @tool
    def wait() -> str:
        """Wait."""
        raise raised

    text = ToolManager([wait]).run(CALL).text
    assert text.endswith(f"{type(raised).__name__} (no message)")


class Policy:
    decide = staticmethod(fail)


class Analyzer:
    assess = staticmethod(fail)


def test_policies_and_analyzers_that_raise_without_a_text_say_so() -> None:
    verdict = decided(Policy(), CALL, Risk("low"))
    assert verdict.reason.endswith("failed: TimeoutError (no message)")
    risk: Any = assess_call(Analyzer(), CALL, Surroundings())
    assert risk.reason.endswith("failed: TimeoutError (no message)")


def texts(agent: Agent) -> list[str]:
    """Return the texts of errors, notes and failed results in a run of an agent."""
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        events = conversation.get_history()
    found: list[str] = []
    for event in events:
        match event:
            case ev.ErrorRecorded():
                found.append(event.message)
                found.append(typed_text(event.error, event.message))
            case ev.NoteRecorded():
                found.append(event.text)
            case ev.ToolCallFinished() if event.result.is_error:
                found.append(event.result.text)
            case _:
                pass
    return found


def test_a_model_that_raises_without_a_text_is_named_in_the_error_of_the_run() -> None:
    assert texts(Agent(ScriptedLLM([TimeoutError()]))) == ["TimeoutError (no message)"] * 2


def test_hooks_and_judges_that_raise_without_a_text_say_so() -> None:
    calls = [("wait", {})]
    hooked = Agent(ScriptedLLM([calls, "done"]), [wait], hooks=[Hook(fail)])
    judged = Agent(ScriptedLLM(["done"]), goal=Goal("it works", fail))
    for agent in (hooked, judged):
        found = texts(agent)
        assert found
        assert "TimeoutError (no message)" in found[0]
        assert not any(map(EMPTY_END.search, found))


def test_a_delegate_that_ends_on_an_error_without_a_text_says_so_to_its_parent() -> None:
    child = Agent(ScriptedLLM([TimeoutError()]), description="Works.")
    call = ("delegate", {"agent": "worker", "task": "work"})
    parent = Agent(ScriptedLLM([[call], "done"]), delegates={"worker": child})
    assert any("TimeoutError (no message)" in text for text in texts(parent))


def refuse(value: object) -> int:
    raise RuntimeError("x" * 1_000_000)


def double(number: Annotated[int, BeforeValidator(refuse)]) -> int:
    return number * 2


def test_the_text_of_a_validator_s_error_is_bounded() -> None:
    result = ToolManager([Tool.from_function(double)]).run(ToolCall("c", "double", {"number": 1}))
    assert result.is_error
    assert 5_000 < len(text_of(result.content)) < 20_000
