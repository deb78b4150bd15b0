"""Conversations of a host in worker processes (`isolation="process"`) beside those in its threads:
start, memory, CPU per step.

These are parts for a benchmark: call each function in a fresh process (`harness.in_child`), with
the port of a `mock_model`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import LLM, Agent, Limits, SQLiteStore
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.shapes import CreateRequest

T = "default"


@contextmanager
def host_of(folder: str, isolation: str) -> Iterator[Host]:
    """Run a host on files of its own. Its fork server, if it has one, is ready."""
    place = Path(folder) / str(time.monotonic_ns())
    place.mkdir()
    records = Records(place / "records.db", Seal.of_file(place / "key"))
    options: Any = {"isolation": isolation, "root": place / "work"}
    settings = HostSettings(policy=Policy(["remote_tool"]), **options)
    with Host(SQLiteStore(place / "store.db"), records, settings) as host:
        host.create(T, request(1, 1), "warm")
        yield host


def request(port: int, calls: int, id: str = "") -> CreateRequest:
    """Return a request for an agent that makes `calls` calls of a tool that the host imports."""
    import remote_tool

    agent = Agent(
        LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0"),
        [remote_tool.look_up],
        limits=Limits(steps=None),
    )
    form = form_of(agent)
    return CreateRequest(agent=form.mapping, secrets=form.secrets, tools=tools_of(agent), id=id)


def finished(host: Host, id: str, pause: float = 0.002) -> None:
    """Wait until a conversation has finished."""
    until = time.monotonic() + 300.0
    while host.status(T, id) != "finished":
        assert time.monotonic() < until, host.get(T, id)
        time.sleep(pause)


def clock(pid: int) -> float:
    """Return the seconds of CPU that all threads of a process have used."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


def pss(pid: int) -> float:
    """Return a process's proportional share of memory, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def pids(host: Host) -> list[int]:
    """Return the process ids of the workers."""
    return [] if host._workers is None else host._workers.processes.pids()


def first_request(port: int, folder: str, isolation: str, times: int = 20) -> float:
    """Return the median of the milliseconds from a message to a parked conversation until the
    answer of the model is journaled. Opening the conversation is included, which starts a worker if
    the host has workers."""
    took: list[float] = []
    with host_of(folder, isolation) as host:
        for number in range(times):
            id = f"c{number}"
            host.create(T, request(port, 0, id))
            host.start(T, id)
            host.close(T, id)
            began = time.perf_counter()
            host.start(T, id)
            host.execute(T, id, Send("hello"))
            finished(host, id, 0.0005)
            took.append((time.perf_counter() - began) * 1000)
            host.close(T, id)
    return sorted(took)[times // 2]


def memory(port: int, folder: str, count: int = 20) -> tuple[float, float]:
    """Return the MB of PSS for each of `count` open workers that have answered, and of the fork
    server."""
    with host_of(folder, "process") as host:
        for number in range(count):
            id = f"c{number}"
            host.create(T, request(port, 3, id))
            host.start(T, id)
            host.execute(T, id, Send("hello"))
            finished(host, id)
        assert host._workers is not None
        shares = [pss(pid) for pid in pids(host)]
        assert len(shares) == count
        return sum(shares) / count, pss(host._workers.processes.home.pid)


def step(port: int, folder: str, isolation: str, steps: int) -> tuple[float, float]:
    """Return the milliseconds of CPU per step: of the server, and of the worker (0 without one)."""
    with host_of(folder, isolation) as host:
        for calls in (20, steps):
            id = f"c{calls}"
            host.create(T, request(port, calls, id))
            host.start(T, id)
            workers = {pid: clock(pid) for pid in pids(host)}
            began = time.process_time()
            host.execute(T, id, Send("What is known of these items?"))
            finished(host, id, 0.05)
            server = time.process_time() - began
            worker = sum(clock(pid) - before for pid, before in workers.items())
    return server / steps * 1000, worker / steps * 1000


def main() -> None:
    """Print all measurements, each made once."""
    import harness

    with harness.mock_model() as port, harness.scratch() as folder:
        for isolation in ("thread", "process"):
            print(
                isolation,
                "first request, ms:",
                harness.in_child(first_request, port, folder, isolation),
            )
            for steps in (50, 1000):
                print(
                    isolation,
                    steps,
                    "steps, ms of CPU (server, worker):",
                    harness.in_child(step, port, folder, isolation, steps),
                )
        print("MB of PSS of a worker, of the fork server:", harness.in_child(memory, port, folder))


if __name__ == "__main__":
    sys.exit(main())
