"""The agent server and its clients: start, CPU per step beside a local run, fifty conversations at
once, replay, and the cost of ten thousand parked ones.

Each figure has a server process of its own (`holdfast serve`), a client in another one, and a mock
model in a third, over loopback. CPU is read per process. Local runs are measured in the same turns.
`ideal` is the time of the model's answers alone, one after another.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bench_fleet
import bench_step
import harness
from harness import Goal, Row, in_child, in_turns

KEY = "hf_key-of-the-benchmarks-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}"}
# Calls of each conversation of the fleet; milliseconds per answer of the model.
CALLS, DELAY = 10, 50
IDEAL = (CALLS + 1) * DELAY / 1000
STATUSES = (
    "finished",
    "paused",
    "error",
    "stuck",
    "waiting_for_confirmation",
)  # the statuses of parked conversations, in turns; none is idle
READY = re.compile(r"Serving agents at http://127\.0\.0\.1:(\d+)\.")
# The smallest app that answers /health: the time that any server with these packages takes to start.
BARE = """
import socket
import uvicorn
from fastapi import FastAPI
app = FastAPI(openapi_url=None)
@app.get("/health")
async def health():
    return {}
listening = socket.create_server(("127.0.0.1", 0))
print(f"Serving agents at http://127.0.0.1:{listening.getsockname()[1]}.", flush=True)
uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")).run([listening])
"""

# --- the server ---


class Server(NamedTuple):
    """A server that answers, and the seconds from the start of its process until then (`took`)."""

    port: int
    pid: int
    took: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[Server]:
    """Start a server process that prints its address to stdout or stderr. Yields once /health
    answers."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
    }
    environment |= {
        "HOLDFAST_SERVER_KEY": KEY,
        "PYTHONPATH": os.pathsep.join([str(harness.HERE), os.environ.get("PYTHONPATH", "")]),
    }
    began = time.perf_counter()
    with harness.process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as child:
        assert child.stdout is not None
        output = ""
        while (address := READY.search(output)) is None:
            line = child.stdout.readline()
            if not line:
                raise harness.Failed(f"the server ended at once: {output}")
            output += line
        port = int(address[1])
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("GET", "/health")
                if connection.getresponse().read() is not None:
                    break
            except ConnectionRefusedError:
                time.sleep(0.001)
            finally:
                connection.close()
        took = time.perf_counter() - began
        # keeps the pipe from filling up
        drain = threading.Thread(target=child.stdout.read, daemon=True)
        drain.start()
        try:
            yield Server(port, child.pid, took)
        finally:
            child.kill()
            drain.join()


def serving(store: str, *arguments: str) -> contextlib.AbstractContextManager[Server]:
    """Run `holdfast serve` over the file of a store."""
    tools = ["--allow-tools", "remote_tool", "--rate", "0"]
    return started(
        [
            sys.executable,
            "-m",
            "holdfast.cli",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--store",
            store,
            *tools,
            *arguments,
        ]
    )


def cpu(pid: int) -> float:
    """Return the seconds of CPU that all threads of a process have used, from its clock: see
    clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def memory(pid: int) -> tuple[float, float]:
    """Return the MB of RSS and PSS."""
    kilobytes = dict(
        re.findall(
            r"^(Rss|Pss): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE
        )
    )
    return int(kilobytes["Rss"]) * 1024 / 1e6, int(kilobytes["Pss"]) * 1024 / 1e6


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


# --- start ---


def start(
    command: Callable[[], contextlib.AbstractContextManager[Server]],
) -> tuple[float, float, float, float]:
    """Return the seconds until healthy, the CPU seconds of these, the MB of RSS and of PSS."""
    with command() as server:
        return server.took, cpu(server.pid), *memory(server.pid)


# --- steps ---


def step(url: str, pid: int, port: int, steps: int, where: str) -> tuple[float, float]:
    """Return the milliseconds of CPU per step of the server and of this client. The tool runs in
    `where`: "server" or "client"."""
    import remote_tool

    from holdfast import LLM, Agent, Limits, RemoteConversation, RemoteWorkspace

    tool = remote_tool.look_up if where == "server" else bench_step.look_up
    server = client = 0.0
    for calls in (20, steps):
        agent = Agent(
            LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/0"),
            [tool],
            limits=Limits(steps=None),
        )
        with RemoteConversation(agent, workspace=RemoteWorkspace(url, KEY)) as conversation:
            conversation.send_message("What is known of these items?")
            server, client = cpu(pid), time.process_time()
            state = conversation.run()
            server, client = cpu(pid) - server, time.process_time() - client
        assert (state.status, state.steps) == ("finished", calls + 1), (state, state.error)
        assert not conversation.warnings, conversation.warnings
    return server / steps * 1000, client / steps * 1000


def steps_rows(quick: bool, port: int, folder: str) -> list[Row]:
    def remote(steps: int, where: str) -> tuple[float, float]:
        with serving(f"{folder}/{time.monotonic_ns()}.db") as server:
            return tuple(in_child(step, server.url, server.pid, port, steps, where))

    table: list[Row] = []
    more: dict[int, list[float]] = {}
    for steps in (50, 200) if quick else (50, 200, 1000):
        measured = in_turns(
            2 if quick else 5,
            {
                "local": lambda n=steps: in_child(
                    bench_step.holdfast, port, n, "durable", False, folder
                ),
                "server": lambda n=steps: remote(n, "server"),
                "client": lambda n=steps: remote(n, "client"),
            },
        )
        local = measured["local"]
        for where, goal in (("server", Goal(1.5)), ("client", None)):
            one, other = (
                [pair[0] for pair in measured[where]],
                [pair[1] for pair in measured[where]],
            )
            added = [its - ours for its, ours in zip(one, local, strict=True)]
            what = "" if where == "server" else ", tool run by the client"
            table.append(
                Row(f"{steps} steps{what}, the server; floor: a local run", "ms", one, local)
            )
            table.append(Row("  more than the local run", "ms", added, goal=goal))
            table.append(Row("  the client beside it; floor: a local run", "ms", other, local))
            if where == "server":
                more[steps] = added
    least, most = min(more), max(more)
    grown = [long / short for long, short in zip(more[most], more[least], strict=True)]
    table.append(
        Row(
            f"more than the local run, {most} steps over {least} (flat: 1)",
            "",
            grown,
            goal=Goal(1.25),
        )
    )
    return table


# --- many at once ---


def fleet(url: str, pid: int, port: int, size: int, at_once: bool) -> tuple[float, float, float]:
    """Return the seconds, and the seconds of CPU of the server and of this client, until all
    conversations are finished. Making them is included. Each is begun by a thread of its own, or
    all by one thread."""
    import remote_tool

    from holdfast import LLM, Agent, RemoteConversation, RemoteWorkspace

    workspace = RemoteWorkspace(url, KEY)

    def agent(calls: int, delay: int) -> Any:
        return Agent(
            LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/1/{delay}"),
            [remote_tool.look_up],
        )

    def conversation_of(agent: Any) -> Any:
        conversation = RemoteConversation(agent, workspace=workspace)
        conversation.start_thread()
        conversation.send_message("What is known of these items?")
        return conversation

    with conversation_of(agent(1, 0)) as warm:
        assert warm.wait(60) == "finished"
    shared = agent(CALLS, DELAY)
    open: list[Any] = []
    statuses: list[Any] = []

    def one() -> None:
        conversation = conversation_of(shared)
        open.append(conversation)
        statuses.append(conversation.wait(60))

    began, server, client = time.perf_counter(), cpu(pid), time.process_time()
    if at_once:
        clients = [threading.Thread(target=one) for _ in range(size)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
    else:
        open += [conversation_of(shared) for _ in range(size)]
        statuses += [conversation.wait(60) for conversation in open]
    took = time.perf_counter() - began, cpu(pid) - server, time.process_time() - client
    assert statuses == ["finished"] * size, statuses
    assert all(conversation.state.steps == CALLS + 1 for conversation in open)
    for conversation in open:
        conversation.detach()
    return took


def fleet_rows(quick: bool, port: int, folder: str) -> list[Row]:
    size = 50

    def remote(at_once: bool) -> tuple[float, float, float]:
        with serving(f"{folder}/{time.monotonic_ns()}.db") as server:
            return tuple(in_child(fleet, server.url, server.pid, port, size, at_once))

    measured = in_turns(
        2 if quick else 5,
        {
            "bare": lambda: in_child(bench_fleet.bare, port, size, CALLS),
            "local": lambda: in_child(bench_fleet.holdfast, port, size, "durable", folder, CALLS),
            "at once": lambda: remote(True),
            "in turn": lambda: remote(False),
        },
    )

    def row(what: str, name: str, index: int = 0, goal: Goal | None = None) -> Row:
        return Row(
            what, "s", [one[index] for one in measured[name]], [IDEAL] if not index else (), goal
        )

    what = f"{size} of {CALLS} calls of {DELAY} ms"
    return [
        row(f"{what}, bare threads; floor: ideal", "bare"),
        row(f"{what}, local and durable; floor: ideal", "local"),
        row(f"{what}, {size} clients at once; floor: ideal", "at once", goal=Goal(2, "ratio")),
        row("  CPU of the server", "at once", 1),
        row("  CPU of the clients", "at once", 2),
        row(
            f"{what}, one client, one after another; floor: ideal", "in turn", goal=Goal(2, "ratio")
        ),
        row("  CPU of the server", "in turn", 1),
        row("  CPU of the client", "in turn", 2),
    ]


# --- replay ---


def lived(url: str, port: int, calls: int, width: int) -> tuple[str, int]:
    """Make a conversation of `calls` calls, and return its id and the seq of its last event."""
    import remote_tool

    from holdfast import LLM, Agent, Limits, RemoteConversation, RemoteWorkspace

    agent = Agent(
        LLM("mock", base_url=f"http://127.0.0.1:{port}/{calls}/{width}/0"),
        [remote_tool.look_up],
        limits=Limits(steps=None),
    )
    with RemoteConversation(agent, workspace=RemoteWorkspace(url, KEY)) as conversation:
        conversation.send_message("What is known of these items?")
        state = conversation.run()
        assert state.status == "finished", (state, state.error)
        return conversation.id, state.last_seq


def replay(port: int, id: str, last: int) -> float:
    """Return the microseconds per event, from the request to the last byte of the last event, for a
    reader that only receives bytes."""
    end, tail = b"id: %d\n" % last, b""
    received: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = (
            f"GET /api/conversations/{id}/stream?after_seq=0 HTTP/1.1\r\nHost:"
            f" 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        )
        began = time.perf_counter()
        connection.sendall(head.encode())
        while not (end in tail and tail.endswith((b"\n\n", b"\n\n\r\n"))):
            data = connection.recv(1 << 18)
            assert data, b"".join(received)[-1000:]
            received.append(data)
            tail = (tail + data)[-(1 << 16) :]
        seconds = time.perf_counter() - began
    count = len(re.findall(rb"^id: \d+\r?$", b"".join(received), re.MULTILINE))
    assert last * 0.99 <= count <= last, (count, last)  # a chunk's border may cut through a line
    return seconds / last * 1e6


def replayed(url: str, id: str, last: int) -> float:
    """Return the microseconds of wall time per event until a client has them all as events."""
    from holdfast import RemoteConversation, RemoteWorkspace

    began = time.perf_counter()
    conversation = RemoteConversation(None, RemoteWorkspace(url, KEY), id)
    assert len(conversation.get_history()) == last
    seconds = time.perf_counter() - began
    conversation.detach()
    return seconds / last * 1e6


def bare_replay(store: str, last: int) -> float:
    """Measure the floor of a replay: rows out of the file, in pages of 500, as server-sent events
    into a socket, without any look at them."""
    listening = socket.create_server(("127.0.0.1", 0))
    sizes: list[int] = []

    def drain() -> None:
        with socket.create_connection(listening.getsockname()) as connection:
            while data := connection.recv(1 << 18):
                sizes.append(len(data))

    reader = threading.Thread(target=drain)
    began = time.perf_counter()
    reader.start()
    connection, _ = listening.accept()
    db = sqlite3.connect(store)
    key = db.execute(
        "SELECT number << 32 FROM conversations WHERE last_seq = ?", (last,)
    ).fetchone()[0]
    with connection:
        for first in range(0, last, 500):
            rows = db.execute(
                "SELECT key, data FROM events WHERE key > ? AND key <= ?",
                (key + first, key + first + 500),
            )
            connection.sendall(
                b"".join(
                    [
                        b"id: %d\nevent: event\ndata: %b\n\n" % (number - key, data)
                        for number, data in rows
                    ]
                )
            )
    reader.join()
    seconds = time.perf_counter() - began
    db.close()
    listening.close()
    assert sum(sizes) > 100 * last
    return seconds / last * 1e6


def replay_rows(quick: bool, port: int, folder: str) -> list[Row]:
    calls, width = (500, 20) if quick else (6000, 20)
    store = f"{folder}/replay.db"
    with serving(store) as server:
        id, last = in_child(lived, server.url, port, calls, width)
    with serving(store) as server:
        measured = in_turns(
            3 if quick else 9,
            {
                "floor": lambda: in_child(bare_replay, store, last),
                "raw": lambda: in_child(replay, server.port, id, last),
                "client": lambda: in_child(replayed, server.url, id, last),
            },
        )
    return [
        Row(
            f"replay of {last} events to one reader, each (20: 50,000/s)",
            "us",
            measured["raw"],
            measured["floor"],
            Goal(20),
        ),
        Row("  to a RemoteConversation", "us", measured["client"], measured["floor"]),
    ]


# --- parked ---


def park(store: str, count: int) -> None:
    """Store `count` parked conversations beside the existing one, as a server leaves them: records,
    and journals of two events."""
    import msgspec

    from holdfast.server.records import Records
    from holdfast.server.sealing import Seal
    from holdfast.store import Batch, SQLiteStore

    db = sqlite3.connect(f"{store}.server.db")
    existing = db.execute("SELECT id FROM conversations").fetchone()[0]
    journal = SQLiteStore(store, durability="process")
    (summary,) = journal.list([existing])
    events = journal.read(existing, 0, 2)
    ids = [f"{number:032x}" for number in range(count)]
    for number, id in enumerate(ids):
        lease = journal.acquire(id)
        status = STATUSES[number % len(STATUSES)]
        journal.append(
            lease, Batch(events, msgspec.structs.replace(summary, id=id, status=status, last_seq=2))
        )
        journal.release(lease)
    journal.close()
    # The store is in the state after a restart of a server that had started all of them.
    columns = "state, driven, workspace, own_workspace, agent, tools, options, secrets, created"
    db.executemany(
        f"INSERT INTO conversations (tenant, id, {columns}) SELECT tenant, ?,"
        f" {columns.replace('driven', '2')} FROM conversations WHERE id = ?",
        [(id, existing) for id in ids],
    )
    db.commit()
    db.close()
    Records(
        f"{store}.server.db", Seal.of_file(Path(f"{store}.server.key"))
    ).close()  # the record is readable as its own type


class ListClient:
    """A connection that requests lists."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def get(self, path: str) -> Any:
        self._connection.request("GET", path, headers=HEADERS)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)

    def page(self, status: str = "") -> tuple[float, int]:
        """Return the milliseconds and the number of conversations of the first page of 100."""
        began = time.perf_counter()
        listing = self.get(f"/api/conversations?limit=100{f'&status={status}' if status else ''}")
        return (time.perf_counter() - began) * 1000, len(listing["items"])

    def whole(self, limit: int = 1000) -> tuple[float, int]:
        """Return the milliseconds and the number of conversations of all pages."""
        began, count, cursor = time.perf_counter(), 0, ""
        while cursor is not None:
            listing = self.get(
                f"/api/conversations?limit={limit}{f'&cursor={cursor}' if cursor else ''}"
            )
            count += len(listing["items"])
            cursor = listing["next"]
        return (time.perf_counter() - began) * 1000, count


def bare_list(store: str, count: int) -> float:
    """Measure the floor in milliseconds: the rows of two files, joined, as JSON."""
    db = sqlite3.connect(store)
    db.execute("ATTACH ? AS records", (f"{store}.server.db",))
    began = time.perf_counter()
    rows = db.execute(
        "SELECT r.id, r.workspace, r.driven, r.created, s.status, s.title, s.last_seq, s.updated,"
        " s.parent FROM records.conversations r JOIN main.conversations s ON s.id = r.id WHERE"
        " r.tenant = 'default' ORDER BY r.number DESC LIMIT ?",
        (count,),
    ).fetchall()
    json.dumps(rows)
    seconds = time.perf_counter() - began
    db.close()
    assert len(rows) == count
    return seconds * 1000


def churned(url: str, pid: int, port: int, count: int) -> float:
    """Return the KB by which the server grows for each conversation that is made, run and parked
    again."""
    import remote_tool

    from holdfast import LLM, Agent, RemoteConversation, RemoteWorkspace

    workspace = RemoteWorkspace(url, KEY)
    agent = Agent(LLM("mock", base_url=f"http://127.0.0.1:{port}/2/2/0"), [remote_tool.look_up])

    def some(number: int) -> float:
        for _ in range(number):
            with RemoteConversation(agent, workspace=workspace) as conversation:
                conversation.send_message("What is known of these items?")
                assert conversation.run().status == "finished"
        return memory(pid)[0]

    before = some(100 if count < 500 else 500)  # until caches are full
    return (some(count) - before) / count * 1000


def parked_rows(quick: bool, port: int, folder: str) -> list[Row]:
    count = 1000 if quick else 10_000
    empty, full = f"{folder}/empty.db", f"{folder}/parked.db"
    for store in (empty, full):
        with serving(store) as server:
            in_child(lived, server.url, port, 2, 2)
    in_child(park, full, count)

    def look(store: str) -> tuple[float, int, dict[str, list[float]], float]:
        """Return the MB after all lists, the threads before them, the milliseconds of each list,
        and the seconds to start."""
        lists: dict[str, list[float]] = {}
        with serving(store) as server:
            asking = ListClient(server)
            while True:
                with contextlib.suppress(AssertionError):
                    asking.get("/ready")
                    break
            stats = threads(server.pid)
            for name in ("", *STATUSES, "idle", "running"):
                asking.page(name)
                lists[name] = [asking.page(name)[0] for _ in range(5)]
            lists["whole"] = [asking.whole()[0] for _ in range(3)]
            assert asking.whole()[1] == (count if store == full else 0) + 1
            return memory(server.pid)[0], stats, lists, server.took

    measured = in_turns(
        1 if quick else 3, {"empty": lambda: look(empty), "full": lambda: look(full)}
    )
    with serving(f"{folder}/churned.db") as server:
        grown = in_child(churned, server.url, server.pid, port, 100 if quick else 500)
    page, whole = [[in_child(bare_list, full, number) for _ in range(3)] for number in (100, count)]
    pairs = list(zip(measured["full"], measured["empty"], strict=True))

    def took(name: str) -> list[float]:
        return [statistics.median(one[2][name]) for one in measured["full"]]

    return [
        Row(
            f"{count} parked, each: RSS",
            "KB",
            [(one[0] - other[0]) / count * 1000 for one, other in pairs],
            goal=Goal(1),
        ),
        Row(
            "  threads that they take",
            "",
            [one[1] - other[1] for one, other in pairs],
            goal=Goal(0),
        ),
        Row(
            "  the server with them healthy",
            "s",
            [one[3] for one in measured["full"]],
            [one[3] for one in measured["empty"]],
            Goal(1),
        ),
        Row("each that was made, run and parked: RSS", "KB", [grown]),
        Row("a page of 100", "ms", took(""), page, Goal(50)),
        *[
            Row(f"  of those {name}", "ms", took(name), page, Goal(50))
            for name in (*STATUSES, "running")
        ],
        Row("  of those idle: none is", "ms", took("idle"), page, Goal(50)),
        Row(f"all {count}, 1,000 at a time", "ms", took("whole"), whole),
    ]


def rows(quick: bool) -> list[Row]:
    with harness.compiled(), harness.mock_model() as port, harness.scratch() as folder:
        starts = in_turns(
            3 if quick else 9,
            {
                "bare": lambda: start(lambda: started([sys.executable, "-c", BARE])),
                "ours": lambda: start(lambda: serving(f"{folder}/{time.monotonic_ns()}.db")),
            },
        )
        names = (
            ("to healthy", "s", Goal(1)),
            ("  CPU of this", "s", None),
            ("  RSS then", "MB", Goal(90)),
            ("  PSS then", "MB", None),
        )
        table = [
            Row(
                what,
                unit,
                [one[index] for one in starts["ours"]],
                [one[index] for one in starts["bare"]],
                goal,
            )
            for index, (what, unit, goal) in enumerate(names)
        ]
        for part in (steps_rows, fleet_rows, replay_rows, parked_rows):
            table += part(quick, port, folder)
        return table
