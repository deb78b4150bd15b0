"""Random scripts of code mode whose process is killed inside each of their calls. No effect that
is not repeatable happens twice, and the model learns that the outcome of a missing one is
unknown."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolContext,
    ToolResult,
)
from holdfast import events as ev
from holdfast.conversation.replay import replay
from holdfast.llm.scripted import ScriptedRequest
from holdfast.testing import crash_at_every_append
from tests.samples import one_in

pytest.importorskip("pydantic_monty")
ALL = one_in(1) == 1
SCRIPTS = 200 if ALL else 5
APPENDED = 30 if ALL else 2


def script(seed: int) -> str:
    """Return a random script: loops, branches, functions, exceptions, and calls side by side."""
    chance = random.Random(seed)
    lines = ["import asyncio, random, time", "total = 0"]
    for number in range(chance.randint(2, 4)):
        name = f"k{number}"
        lines += chance.choice(
            [
                [f"total += await put(name={name!r}, value=total + {number})"],
                [
                    f"for i in range({chance.randint(1, 3)}):",
                    f"    total += await put(name={name!r}, value=i)",
                ],
                [
                    f"a, b, c = await asyncio.gather(look(name='a'), put(name={name!r}), look(name='b'))",
                    "total += a + b + c",
                ],
                [
                    "try:",
                    f"    await fail(name={name!r})",
                    "except BaseException as error:",
                    f"    total += await look(name={name!r})",
                ],
                [
                    "if random.random() < 0.5 or time.time() < 0:",
                    f"    total += await put(name={name!r})",
                    "else:",
                    f"    total += await look(name={name!r})",
                ],
                [
                    "async def both(name):",
                    "    return await look(name=name) + await put(name=name)",
                    f"total += sum(await asyncio.gather(both('x'), both({name!r})))",
                ],
            ]
        )
    return "\n".join([*lines, "print(total, random.random())", "total"])


class World:
    """Tools whose effects are lines of a file and that kill their process in one call."""

    def __init__(self, folder: Path, kill: str = "", late: bool = False) -> None:
        self.file, self._kill, self._late = folder / "effects", kill, late

    def _do(self, context: ToolContext, effect: bool) -> int:
        dies = context.call_id == self._kill
        if dies and not self._late:
            os.kill(os.getpid(), signal.SIGKILL)
        if effect:
            with self.file.open("a") as out:
                out.write(f"{context.idempotency_key}\n")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return int(context.call_id.rpartition(".")[2])

    def tools(self) -> list[Tool]:
        def put(name: str, context: ToolContext, value: int = 0) -> int:
            return self._do(context, True) + value

        def look(name: str, context: ToolContext) -> int:
            return self._do(context, False)

        def fail(name: str, context: ToolContext) -> int:
            self._do(context, True)
            raise ValueError(name)

        reads = ToolAnnotations(read_only=True)
        return [
            Tool("put", "", put),
            Tool("look", "", look, annotations=reads),
            Tool("fail", "", fail),
        ]

    def effects(self) -> Counter[str]:
        return Counter(self.file.read_text().split() if self.file.exists() else [])


def live(folder: Path, code: str, kill: str = "", late: bool = False) -> int:
    """Drive the conversation in a process of its own; return the process's exit status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        answers = [("run_code", {"code": code}), "Done.", "Done."]
        tools = World(folder, kill, late).tools()
        with SQLiteStore(folder / "s.db", "process") as store:
            resumed = bool(store.list())
            agent = Agent(ScriptedLLM(answers[1 if resumed else 0 :]), tools, code=True)
            with Conversation(agent, store, "c") as conversation:
                if not resumed:
                    conversation.send_message("Go.")
                conversation.run()
                assert replay(conversation.state.events, agent).same
        os._exit(0)
    finally:
        os._exit(1)


def journal(folder: Path) -> list[ev.AnyEvent]:
    with SQLiteStore(folder / "s.db", "process") as store:
        return list(store.read("c"))


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_script_killed_in_any_of_its_calls_repeats_no_effect(tmp_path: Path) -> None:
    killed = 0
    for seed in range(SCRIPTS):
        code, whole = script(seed), tmp_path / f"{seed}"
        whole.mkdir()
        assert live(whole, code) == 0
        expected = results(journal(whole))["4.0"]
        assert not expected.is_error, expected.text
        for call_id in call_names(journal(whole)):
            for late in (False, True):
                folder = tmp_path / f"{seed}-{call_id}-{late}"
                folder.mkdir()
                assert live(folder, code, call_id, late) == signal.SIGKILL
                assert live(folder, code) == 0, (seed, call_id, late)
                killed += 1
                outcomes, effects = results(journal(folder)), World(folder).effects()
                assert all(count == 1 for count in effects.values()), (code, effects)
                unknown_ids = {
                    id for id, one in outcomes.items() if one.meta.get("outcome") == "unknown"
                }
                if call_names(journal(folder))[call_id] == "look":  # at random
                    assert call_id not in unknown_ids
                else:
                    assert call_id in unknown_ids
                    assert "4.0" in unknown_ids
                    assert "unknown" in outcomes["4.0"].text
                assert effects.keys() <= {f"c:{id}" for id in outcomes}, (
                    "an effect without a result"
                )
                if not unknown_ids:
                    assert not outcomes["4.0"].is_error, outcomes["4.0"].text
    assert killed


class Scripted:
    """A conversation in which the model writes one script, as a program that the test kills. Its
    agent is the same in each process."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __call__(self, store: SQLiteStore, folder: Path) -> None:
        def answer(request: ScriptedRequest) -> Any:
            return ("run_code", {"code": self.code}) if request.text == "Go." else "Done."

        agent = Agent(ScriptedLLM(answer), World(folder).tools(), code=True)
        with Conversation(agent, store, "c") as conversation:
            if not conversation.get_history():
                conversation.send_message("Go.")
            conversation.run()
            assert replay(conversation.state.events, agent).same


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("seed", range(1_000, 1_000 + APPENDED))
def test_a_script_killed_at_any_append_repeats_no_effect(tmp_path: Path, seed: int) -> None:
    program = Scripted(script(seed))
    for crash in crash_at_every_append(program, folder=tmp_path):
        outcomes = results(crash.after)
        effects = World(crash.folder).effects()
        assert all(count == 1 for count in effects.values()), (crash, effects)
        unknown_ids = {id for id, one in outcomes.items() if one.meta.get("outcome") == "unknown"}
        assert effects.keys() <= {f"c:{id}" for id in outcomes}
        if unknown_ids:
            assert "4.0" in unknown_ids
        else:
            assert not outcomes["4.0"].is_error, outcomes["4.0"].text


def results(events: list[ev.AnyEvent]) -> dict[str, ToolResult]:
    return {e.call_id: e.result for e in events if isinstance(e, ev.ToolCallFinished)}


def call_names(events: list[ev.AnyEvent]) -> dict[str, str]:
    """Return the names of a script's calls by id."""
    events_of_calls = [event for event in events if isinstance(event, ev.CodeCallsMade)]
    return {call.id: call.name for event in events_of_calls for call in event.calls}
