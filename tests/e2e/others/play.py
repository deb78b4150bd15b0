"""A task of a benchmark, played by a model that makes the calls of the benchmark's ground truth."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast import Agent, Conversation, ConversationStatus, MemoryStore, ScriptedLLM, Tool
from holdfast import events as ev
from holdfast.agent.limits import Limits
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.replay import replay

WAYS = ("calls", "batch", "code")
"""One answer per call, one answer with all calls of a turn, and one script per turn."""


class WantedCall(NamedTuple):
    """A call of the ground truth."""

    name: str
    arguments: dict[str, Any]


class Turn(NamedTuple):
    """A user's message, the calls that answer it, and the tools that are new before it."""

    message: str
    calls: Sequence[WantedCall]
    new_tools: Sequence[Tool] = ()


class MadeCall(NamedTuple):
    """A call of the journal and its result."""

    call: ToolCall
    result: ToolResult


def answers(turn: Turn, way: str, functions: dict[str, str]) -> list[Any]:
    """Return the answers of the model to a turn. `functions` has the name of each tool in
    scripts."""
    calls = [(call.name, call.arguments) for call in turn.calls]
    if not calls:
        return ["Done."]
    if way == "calls":
        return [*calls, "Done."]
    if way == "batch":
        return [calls, "Done."]
    lines: list[str] = []
    for name, arguments in calls:
        arguments_text = f"**{arguments!r}"
        # The ground truths continue after a failed call, as a model does.
        lines += [
            "try:",
            f"    print(await {functions[name]}({arguments_text}))",
            "except RuntimeError as error:",
            "    print(error)",
        ]
    return [("run_code", {"code": "\n".join(lines)}), "Done."]


def play(
    tools: Sequence[Tool],
    turns: Iterable[Turn],
    way: str,
    after: Callable[[int, list[MadeCall]], None],
    history: Sequence[tuple[str, str]] = (),
) -> None:
    """Play the turns of a task in a conversation; call `after` with the number of each turn and its
    calls. Raises `AssertionError` if the run does not end as a run should, if a call is not that of
    the ground truth, or if the journal replayed does not give the same requests."""
    script: list[Any] = []
    model = ScriptedLLM(lambda _: script.pop(0))
    # A ground truth may repeat itself, and may be long.
    agent = Agent(model, tools, code=way == "code", stuck=None, limits=Limits(steps=1_000))
    with MemoryStore() as store, Conversation(agent, store) as conversation:
        event_count = 0
        for number, turn in enumerate(turns):
            for tool in turn.new_tools:
                agent.tools.register(tool)
            code = agent.code
            functions = (
                {one.tool.name: name for name, one in code.functions(agent.tools).items()}
                if code
                else {}
            )
            script[:] = answers(turn, way, functions)
            conversation.send_message(turn.message)
            state = conversation.run()
            assert state.status is ConversationStatus.FINISHED, (state.status, state.error)
            assert not script
            turn_calls = list(calls_of(state.events[event_count:]))
            expected = [(call.name, call.arguments) for call in turn.calls]
            assert [(one.call.name, one.call.arguments) for one in turn_calls] == expected
            event_count = len(state.events)
            after(number, turn_calls)
        played = replay(conversation.state.events, agent)
        assert played.same, str(played)


def calls_of(events: Sequence[ev.AnyEvent]) -> Iterator[MadeCall]:
    """Yield the calls of a turn, those of scripts included and `run_code` not, in their order."""
    calls: dict[str, ToolCall] = {}
    for event in events:
        if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade):
            calls |= {call.id: call for call in event.calls if call.name != "run_code"}
        elif isinstance(event, ev.ToolCallFinished) and event.call_id in calls:
            yield MadeCall(calls[event.call_id], event.result)


class Tally:
    """Counts of what was played, printed as JSON at the end."""

    def __init__(self) -> None:
        self.counts = {"tasks": 0, "turns": 0, "calls": 0, "failed calls": 0, "reached": 0}
        self.missed: dict[str, str] = {}
        self.facts: dict[str, list[str]] = {}

    def note(self, kind: str, what: str) -> None:
        """Record a fact about the ground truths."""
        facts = self.facts.setdefault(kind, [])
        if what not in facts:
            facts.append(what)

    def run(self, task: str, play: Callable[[], None]) -> None:
        """Play a task; count whether it reached the benchmark's end state."""
        self.counts["tasks"] += 1
        try:
            play()
        except Exception as error:
            self.missed[task] = f"{type(error).__name__}: {error}"[:2_000]
        else:
            self.counts["reached"] += 1

    def print(self) -> None:
        json.dump({**self.counts, "missed": self.missed, "named": self.facts}, sys.stdout)


def arguments_of(programs: str) -> argparse.Namespace:
    """Read the command line of a program of this package."""
    parser = argparse.ArgumentParser(description=programs)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--one-in", type=int, default=1, help="play one task in so many")
    return parser.parse_args()


def sample(tasks: Sequence[Any], name: Callable[[Any], str], one_in: int) -> list[Any]:
    """Return a fixed sample of the tasks, by their names alone."""
    return [one for one in tasks if zlib.crc32(name(one).encode()) % one_in == 0]
