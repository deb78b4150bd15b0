"""Wall and CPU time of a suite of 1,000 journals, replayed in one process (`JournalSuite.replay`).

The journals have the sizes of recorded runs of a coding agent: 3 to 189 model requests with shell
outputs, 105 KB on average. The floor reads and decodes the same journals.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import harness
from harness import Goal, Row, in_child

JOURNALS = 1000
# Model requests of eight recorded runs of a coding agent on SWE-bench tasks, without the outliers'
# order: https://github.com/SWE-agent/mini-swe-agent, pull request 816.
REQUESTS = (3, 16, 32, 37, 50, 56, 85, 189)
PER_FILE = 100


def record(store: Any, id: str, requests: int, seed: int) -> None:
    """Record a conversation of this many requests, with outputs of a shell's sizes."""
    from holdfast import Agent, Conversation, Limits, ScriptedLLM, Tool

    dice = random.Random(seed)
    words = [f"line {number}: {dice.random()}" for number in range(100)]

    def bash(command: str) -> str:
        """Run a command."""
        return "\n".join(dice.choices(words, k=int(dice.lognormvariate(2.7, 1.2)) % 300))

    def turn(number: int) -> list[Any]:
        thought = " ".join(dice.choices(words, k=6))
        return [thought, ("bash", {"command": f"grep -rn pattern{number} {dice.choice(words)}"})]

    script = [*map(turn, range(requests - 1)), "Done."]
    agent = Agent(
        ScriptedLLM(script),
        [Tool.from_function(bash)],
        system_prompt="You fix bugs. " * 200,
        limits=Limits(steps=None),
        stuck=None,
    )
    with Conversation(agent, store, id) as conversation:
        conversation.send_message("Fix the bug that is described below. " * 50)
        conversation.run()


def seconds(journals: int) -> dict[str, float]:
    """Return the seconds of the replay and of reading alone, and the journals' average size in KB."""
    from holdfast import SQLiteStore
    from holdfast.testing.suite import JournalSuite

    with harness.scratch() as folder:
        for begin in range(0, journals, PER_FILE):
            with SQLiteStore(f"{folder}/{begin}.db", "process") as store:
                for number in range(begin, min(begin + PER_FILE, journals)):
                    record(store, f"c{number}", REQUESTS[number % len(REQUESTS)], number)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.db*")) / journals / 1024
        figures = {"size": size}
        for what in ("replay", "read"):
            wall, cpu = time.perf_counter(), time.process_time()
            with JournalSuite(folder) as suite:
                if what == "replay":
                    report = suite.replay()
                    assert report.same, str(report)
                    assert len(report.outcomes) == journals
                else:
                    for journal in suite:
                        journal.read()
            figures[f"{what} wall"] = time.perf_counter() - wall
            figures[f"{what} CPU"] = time.process_time() - cpu
        return figures


def rows(quick: bool) -> list[Row]:
    journals = 80 if quick else JOURNALS
    repeats = [in_child(seconds, journals) for _ in range(1 if quick else 3)]
    size = sum(one["size"] for one in repeats) / len(repeats)
    return [
        Row(
            f"{journals:,} journals of {size:.0f} KB, {kind}",
            "s",
            [one[f"replay {kind}"] for one in repeats],
            [one[f"read {kind}"] for one in repeats],
            Goal(60 * journals / JOURNALS),
        )
        for kind in ("wall", "CPU")
    ]
