"""Memory of a worker after many turns, beside its memory after fewer.

Each turn is that of a new conversation, so a worker that held anything of a conversation would
grow.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from bench_turns import opened, post
from harness import Goal, Row, in_child


def memory(folder: str, rounds: tuple[int, int], size: int = 1000) -> tuple[float, float]:
    """Return a worker's RSS in MB after `rounds` of `size` turns, each of a conversation of its
    own. The store is an SQLite file, which is faster than Postgres. The allocator is set up as
    `holdfast worker` does it."""
    from holdfast import Agent, Conversation, ScriptedLLM
    from holdfast.cli.arenas import limit_arenas
    from holdfast.fleet import Worker

    limit_arenas({})
    store, backend = opened("table", f"{folder}/memory.db")
    model = ScriptedLLM(lambda request: "ok")
    agent = Agent(model)
    megabytes: list[float] = []
    worker = Worker(store, lambda name: Conversation(agent, store, name), backend)
    worker.start()
    for number in range(1, max(rounds) + 1):
        post(store, [f"r{number}/c{one}" for one in range(size)])
        while any(backend.stats()[:3]):
            time.sleep(0.01)
        model.requests.clear()  # the scripted model stores every request
        if number in rounds:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            megabytes.append(pages * resource.getpagesize() / 1e6)
    worker.close()
    store.close()
    backend.close()
    return megabytes[0], megabytes[1]


def rows(quick: bool) -> list[Row]:
    few, many = (2, 6) if quick else (10, 100)
    with tempfile.TemporaryDirectory() as folder:
        before, after = in_child(memory, folder, (few, many), timeout=1800)
    what = f"RSS of a worker after {many * 1000:,} turns, beside {few * 1000:,}"
    return [Row(what, "MB", [after], [before], Goal(1.05, "ratio"))]
