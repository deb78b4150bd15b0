"""Tests of requests in any order, from four threads at once, over HTTP: the server reports no
internal error, nothing hangs, and each journal can be replayed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ScriptedLLM, SQLiteStore
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from holdfast.conversation.replay import replay
from holdfast.store.check import check
from tests.agent_servers import Reply, Serving
from tests.leftovers import Owned
from tests.waiting import until

IDS = ("a", "b", "c", "d", "e")  # the last two are made by forks alone
PLAN = {"steps": [{"step": "look", "state": "pending"}]}
FORMS = [
    {"name": "plan", "inputSchema": {"type": "object"}, "module": "holdfast.tools.preset.planning"},
    {"name": "mine", "inputSchema": {"type": "object"}},
    {"name": "read_file", "inputSchema": {"type": "object"}, "module": "holdfast.runtime"},
    {"name": "gone", "inputSchema": {"type": "object"}, "module": "no.such_module"},
]


def script(chance: random.Random) -> list[Any]:
    """Return answers: calls that the server, clients or nobody can run, and texts."""
    answers: list[Any] = []
    for _ in range(60):
        names = [
            chance.choice(("plan", "plan", "mine", "read_file", "nonsense"))
            for _ in range(chance.randint(0, 3))
        ]
        answers.append([(name, PLAN if name == "plan" else {}) for name in names] or "Words.")
    return answers


class Player:
    """One thread's part: it sends the requests of its seed, and records the answers."""

    def __init__(self, server: Serving, seed: str) -> None:
        self.server = server
        self.seed = seed
        self.chance = random.Random(seed)
        self.wrong: list[str] = []
        self.statuses: Counter[str] = Counter()

    def play(self, count: int) -> None:
        for number in range(count):
            what = self.chance.choice(WHAT)
            try:
                for reply in self.do(what, f"/api/conversations/{self.chance.choice(IDS)}"):
                    self.statuses[f"{what} {reply.status}"] += 1
                    if reply.status >= 500:
                        self.wrong.append(f"{what} ({number}): {reply}")
            except Exception as error:  # a connection that broke, an answer that did not come
                self.wrong.append(f"{what} ({number}): {type(error).__name__}: {error}")

    def do(self, what: str, path: str) -> list[Reply]:
        ask, chance = self.server.ask, self.chance
        match what:
            case "create":
                llm = ScriptedLLM(script(chance))
                mapping = form_of(Agent(llm, confirm=chance.choice(("always", "never")))).mapping
                tools = FORMS[: chance.randint(0, 4)]
                agent = (
                    {**mapping, "tools": {"builtin": [tool["name"] for tool in tools]}}
                    if tools
                    else mapping
                )
                body = {
                    "id": chance.choice(IDS[:3]),
                    "agent": agent,
                    "tools": tools,
                    "client_tools": chance.random() < 0.8,
                }
                return [ask("POST", "/api/conversations", body)]
            case "send":
                return [
                    ask(
                        "POST",
                        f"{path}/messages",
                        {"text": "go"},
                        Idempotency_Key=f"k{chance.randint(0, 30)}",
                    )
                    for _ in range(2)
                ]
            case "tools":
                tools = FORMS[: chance.randint(0, 4)]
                return [ask("PUT", f"{path}/tools", {"tools": tools})]
            case "fork":
                seq = chance.choice((None, 0, 1, 5, 50))
                return [
                    ask(
                        "POST",
                        f"{path}/fork",
                        {"id": chance.choice((*IDS, "")), **({} if seq is None else {"seq": seq})},
                    )
                ]
            case "decide":
                return [
                    ask("POST", f"{path}/{chance.choice(('approve', 'approve', 'reject'))}", {})
                ]
            case "work":
                state = ask("GET", f"{path}/state")
                replies = [state]
                for event in state.json.get("events", [])[-6:] if state.status == 200 else ():
                    for call in event.get("calls", ())[:2]:
                        client = chance.choice(("one", "two"))
                        replies.append(
                            ask(
                                "POST",
                                f"{path}/calls/{call['id']}/claim",
                                {},
                                X_Holdfast_Client=client,
                            )
                        )
                        if chance.random() < 0.8:
                            result = {"result": {"content": [{"type": "text", "text": "done"}]}}
                            replies.append(
                                ask(
                                    "POST",
                                    f"{path}/calls/{call['id']}/result",
                                    result,
                                    X_Holdfast_Client=client,
                                )
                            )
                return replies
            case "read":
                return [
                    ask("GET", one)
                    for one in (
                        path,
                        f"{path}/events?after_seq=2",
                        "/api/conversations?status=running",
                        "/metrics",
                    )
                ]
            case "delete":
                return [ask("DELETE", path)]
            case _:
                return [ask("POST", f"{path}/{what}")]


WHAT = (
    "create",
    "create",
    "create",
    "send",
    "send",
    "send",
    "start",
    "start",
    "run",
    "pause",
    "resume",
    "resume",
    "interrupt",
    "decide",
    "decide",
    "decide",
    "work",
    "work",
    "work",
    "work",
    "fork",
    "fork",
    "tools",
    "read",
    "close",
    "delete",
)


def schedule(folder: Path, seed: int, count: int, isolation: str = "thread") -> Counter[str]:
    """Run four players on one server, and check its conversations afterwards."""
    before = Owned()
    with Serving(
        folder, claim_timeout=5.0, client_grace=5.0, idle=0.2, max_running=4, isolation=isolation
    ) as server:
        players = [Player(server, f"{seed}.{number}") for number in range(4)]
        threads = [threading.Thread(target=player.play, args=(count,)) for player in players]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"seed {seed}: a request hangs"
        wrong = [f"seed {player.seed}: {one}" for player in players for one in player.wrong]
        assert not wrong, "\n".join(wrong[:20])
        # The remaining conversations can still be queried, stopped and driven.
        for item in server.ask("GET", "/api/conversations").json["items"]:
            path = f"/api/conversations/{item['id']}"
            assert server.ask("GET", path).json["error"] == "", path
            assert server.ask("POST", f"{path}/interrupt").status == 200
            until(lambda path=path: not server.ask("GET", path).json["busy"])
            status = server.ask("GET", path).json["status"]
            assert status != "running", path
        until(lambda: server.host.stats()["running"] == server.host.stats()["queued"] == 0)
    before.wait_until_released()
    report = check(folder / "store.db")
    assert report.sound, f"seed {seed}: {report}"
    with SQLiteStore(folder / "store.db") as store:
        for summary in store.list():
            events = store.read(summary.id)
            replayed = replay(events)
            assert replayed.same, f"seed {seed}: {summary.id}: {replayed}"
            results = Counter(
                event.call_id for event in events if isinstance(event, ev.ToolCallFinished)
            )
            assert not results or max(results.values()) == 1, (
                f"seed {seed}: {summary.id}: {results}"
            )
    statuses: Counter[str] = Counter()
    for player in players:
        statuses += player.statuses
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_of_requests_harms_the_server_or_a_journal(tmp_path: Path, seed: int) -> None:
    statuses = schedule(tmp_path, seed, 150)
    for what in (
        "create 201",
        "send 202",
        "start 200",
        "work 200",
        "tools 200",
        "fork 201",
        "delete 204",
        "close 200",
    ):
        assert statuses[what], f"{what} never came to pass: {statuses}"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("seed", "isolation"),
    [(3, "thread"), (4, "thread"), (5, "thread"), (6, "thread"), (7, "process"), (8, "process")],
)
def test_no_order_of_requests_harms_the_server_or_a_journal_for_long(
    tmp_path: Path, seed: int, isolation: str
) -> None:
    schedule(tmp_path, seed, 300 if isolation == "thread" else 150, isolation)
