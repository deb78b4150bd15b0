"""The plan on the screen: its first drawing, its changes, and edits by the user."""

from __future__ import annotations

import io

import pytest

from holdfast import events as ev
from holdfast.cli.console import Console
from holdfast.cli.display import ConversationDisplay
from holdfast.cli.plans import change_lines, compared, current, drawn, edited
from holdfast.cli.render import Renderer
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation import ConversationState
from holdfast.events import PlanStep
from holdfast.tools.preset.planning import make_plan
from tests.agent.test_planning import plan, steps
from tests.cli.test_render import answer, event, render_events, texts


def plan_steps(*words: str) -> tuple[PlanStep, ...]:
    """Return plan steps. The last character of each word gives the state of its step."""
    return tuple([PlanStep(step["step"], step["state"]) for step in steps(*words)])  # pyright: ignore[reportArgumentType]


def call(seq: int, *words: str) -> ToolCall:
    """Return a call of the plan tool."""
    name, arguments = plan(*words)
    return ToolCall(f"{seq}.0", name, arguments)


def plan_finished(seq: int, *words: str) -> ev.ToolCallFinished:
    """Return the event with the result of a plan call."""
    return event(
        ev.ToolCallFinished, seq, call_id=f"{seq - 1}.0", result=make_plan().run(plan(*words)[1])
    )


def test_a_plan_is_one_block_that_a_narrow_terminal_shows_whole() -> None:
    lines = drawn(plan_steps("Read the parser.", "Fix the offset of dates!", "Ship-"), 30)
    assert [(line.style, line.text) for line in lines] == [
        ("call", "plan: 1 of 2 steps done, 1 dropped"),
        ("dim", "  [x] 1. Read the parser"),
        ("call", "  [>] 2. Fix the offset of"),
        ("call", "         dates"),
        ("dim", "  [-] 3. Ship"),
    ]
    assert [line.text for line in drawn(plan_steps("a " * 40 + "!"), None)][
        1
    ] == "  [>] 1. " + "a " * 39 + "a"
    assert [line.text for line in drawn(plan_steps("one two"), 5)][1:] == ["  [ ] 1. one two"]
    assert drawn(plan_steps("\x1b[2Ja\nb\u200bc"), 80)[1].text == "  [ ] 1. ^[[2Ja b\\u200bc"


def test_of_a_plan_that_goes_on_what_changed_is_drawn() -> None:
    before = plan_steps("a!", "b", "c")
    assert texts(change_lines(plan_steps("a.", "b!", "c"), before, 80)) == [
        "plan: 1 of 3 steps done",
        "  [x] 1. a",
        "  [>] 2. b",
    ]
    assert change_lines(before, before, 80) == []
    assert texts(change_lines(plan_steps("a.", "d"), before, 80)) == [
        "plan: 1 of 2 steps done",
        "  [x] 1. a",
        "  [ ] 2. d",
    ]
    assert (current(before), current(plan_steps("a"))) == ("step 1 of 3, a", "")


def test_what_is_new_in_a_plan_that_is_asked_about_again_stands_out() -> None:
    lines = compared(plan_steps("a.", "new"), ("a", "gone"), 80)
    assert [(line.style, line.text) for line in lines[1:]] == [
        ("dim", "  [x] 1. a"),
        ("add", "  [ ] 2. new"),
        ("remove", "    without: gone"),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("2 B", ["a", "B", "c"]),
        ("2. B and more ", ["a", "B and more", "c"]),
        ("+d", ["a", "b", "c", "d"]),
        ("+ d", ["a", "b", "c", "d"]),
        ("+2 x", ["a", "x", "b", "c"]),
        ("-2", ["a", "c"]),
        ("- 3", ["a", "b"]),
    ],
)
def test_a_plan_is_changed_line_by_line(line: str, found: list[str]) -> None:
    assert [step.step for step in edited(plan_steps("a.", "b", "c"), line)] == found


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("4 d", "There is no step 4; the plan has 3"),
        ("0 d", "There is no step 0"),
        ("2", "is not a change"),
        ("b", "is not a change"),
        ("-", "is not a change"),
        ("-2 b", "is not a change"),
        ("+", "is not a change"),
        ("1 " + "x" * 1001, "at most 1000"),
        ("+9 x", "no step 9"),
    ],
)
def test_a_change_that_is_none_says_what_is_wrong(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        edited(plan_steps("a", "b", "c"), line)


def test_the_last_step_of_a_plan_cannot_be_taken_out() -> None:
    with pytest.raises(ValueError, match="1 to 100 steps"):
        edited(plan_steps("a"), "-1")


def test_events_of_a_plan_are_drawn_once() -> None:
    lines = render_events(
        [
            answer(1, "", call(1, "a", "b")),
            plan_finished(2, "a", "b"),
            answer(3, "", call(3, "a.", "b")),
            plan_finished(4, "a.", "b"),
        ]
    )
    assert texts(lines) == [
        "plan: 0 of 2 steps done",
        "  [ ] 1. a",
        "  [ ] 2. b",
        "plan: 1 of 2 steps done",
        "  [x] 1. a",
    ]


def test_a_plan_that_waits_is_drawn_where_it_is_asked_about() -> None:
    question = event(
        ev.DecisionMade,
        2,
        call_id="1.0",
        decision="ask",
        by="planning",
        reason="the plan is to be approved",
    )
    other = {"steps": steps("a", "c")}
    approved = event(
        ev.DecisionMade, 3, call_id="1.0", decision="approve", by="user", arguments=other
    )
    result = event(ev.ToolCallFinished, 4, call_id="1.0", result=make_plan().run(other))
    lines = texts(render_events([answer(1, "", call(1, "a", "b")), question, approved, result]))
    assert lines == [
        "  waits for you: plan (0 of 2 steps done), by planning (the plan is to be approved)",
        "plan: 0 of 2 steps done",
        "  [ ] 1. a",
        "  [ ] 2. b",
        "  approved: plan (0 of 2 steps done), by user",
        "plan: 0 of 2 steps done",
        "  [ ] 1. a",
        "  [ ] 2. c",
    ]
    assert "{" not in "".join(lines)


def test_a_plan_that_was_refused_and_one_that_is_none_say_why() -> None:
    refused = event(
        ev.ToolCallFinished,
        2,
        call_id="1.0",
        result=ToolResult.failure("Not run: the user rejected this call: no", "cancelled"),
    )
    assert texts(render_events([answer(1, "", call(1, "a")), refused]))[:2] == [
        "= plan (0 of 1 steps done)",
        "  Not run: the user rejected this call: no",
    ]
    wrong = event(
        ev.ToolCallFinished,
        2,
        call_id="1.0",
        result=ToolResult.failure("Step 1 is empty", "validation"),
    )
    assert texts(render_events([answer(1, "", call(1, " "))]))[0].startswith("plan")
    assert "  Step 1 is empty" in texts(render_events([answer(1, "", call(1, " ")), wrong]))


def test_while_the_model_thinks_the_step_that_is_in_progress_is_told() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Console({"TERM": "xterm"}, Terminal(), io.StringIO())
    statuses: list[str] = []
    screen.status = statuses.append  # pyright: ignore[reportAttributeAccessIssue]
    live = ConversationDisplay(screen, Renderer(80), lambda: 9)
    live.begin(ConversationState("c"))
    message = event(ev.MessageAdded, 1, content=(TextContent("go"),))
    for one in (
        message,
        event(ev.StatusChanged, 2, status="running"),
        answer(3, "", call(3, "a.", "b!")),
        plan_finished(4, "a.", "b!"),
    ):
        live.on_event(one)
    screen.close()
    assert statuses[-1] == "thinking (step 2 of 2, b)"
