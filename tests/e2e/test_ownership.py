"""A conversation has one owner at a time, whatever processes do: two fight for a conversation
while a third posts, and writers are killed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ConversationStatus, ScriptedLLM, SQLiteStore, Tool
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.errors import Fenced
from tests import forks

FIGHTER = """
import os, random, sys, time
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool
from holdfast.errors import LeaseHeld

path, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)

def effect(text: str) -> str:
    with open(path + ".effects", "a") as file:
        file.write(text + "\\n")
    return "done"

def answer(request):
    if request.messages[-1]["role"] == "tool":
        return "ok"
    return [("effect", {"text": request.text}), ("effect", {"text": request.text + "'"})]

agent = Agent(ScriptedLLM(answer, delay=0.002), [Tool("effect", "Has an effect.", effect)])
store = SQLiteStore(path, "process")
turn = 0
while True:
    turn += 1
    numbers = iter(range(10**9))
    conversation = Conversation(agent, store, "c", new_id=lambda: f"{os.getpid()}/{turn}/{next(numbers)}")
    try:
        conversation.start_thread()
    except LeaseHeld:
        time.sleep(chance.uniform(0.001, 0.01))
        continue
    time.sleep(chance.uniform(0.005, 0.05))
    if chance.random() < 0.5:
        os.kill(os.getpid(), 9)
    conversation.close()
"""


def fight(path: Path, posts: int, seed: int) -> tuple[list[ev.AnyEvent], int]:
    """Let two processes want one conversation, restarted when they kill themselves, while a
    third thread posts. Return the journal and the number of posts."""
    fighters: dict[int, subprocess.Popen[bytes]] = {}
    deaths = 0
    with SQLiteStore(path) as store:
        store.release(store.acquire("c"))
        posted: list[int] = []

        def post() -> None:
            chance = random.Random(seed)
            for number in itertools.count():
                if number >= posts and deaths >= 4:
                    return
                for _ in range(
                    chance.choice((1, 1, 2))
                ):  # a client that does not know whether its post arrived
                    store.post("c", cmd.Send(f"message {number}"), key=str(number))  # pyright: ignore
                posted.append(number)
                time.sleep(chance.uniform(0, 0.03))

        poster = threading.Thread(target=post)
        poster.start()
        deadline = time.monotonic() + 240
        try:
            while True:
                assert time.monotonic() < deadline, "it does not come to an end"
                for slot in (0, 1):
                    if slot not in fighters or fighters[slot].poll() is not None:
                        deaths += slot in fighters
                        command = [
                            sys.executable,
                            "-c",
                            FIGHTER,
                            str(path),
                            str(seed * 1000 + deaths * 2 + slot),
                        ]
                        fighters[slot] = subprocess.Popen(command)
                events = store.read("c")
                texts = [
                    event.text
                    for event in events
                    if isinstance(event, ev.MessageAdded) and event.sender == "user"
                ]
                if (
                    not poster.is_alive()
                    and len(texts) >= len(posted)
                    and events[-1].type == "status"
                    and events[-1].status == "finished"
                ):  # pyright: ignore
                    break
                time.sleep(0.01)
        finally:
            for fighter in fighters.values():
                fighter.kill()
                fighter.wait()
            poster.join()
        return store.read("c"), len(posted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, *[pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 8)]]
)
def test_two_processes_fight_for_a_conversation_while_a_third_posts(
    tmp_path: Path, seed: int
) -> None:
    events, posts = fight(tmp_path / "s.db", 40, seed)
    # No command is lost, repeated or out of order.
    assert [
        event.text
        for event in events
        if isinstance(event, ev.MessageAdded) and event.sender == "user"
    ] == [f"message {number}" for number in range(posts)]
    # One owner at a time: the events of an owner are contiguous.
    owners = [event.id.rpartition("/")[0] for event in events]
    turns = [owner for at, owner in enumerate(owners) if at == 0 or owners[at - 1] != owner]
    assert len(turns) == len(set(turns)) > 2
    # No effect happens twice: the model learned which calls were cut off.
    effects = Counter((tmp_path / "s.db.effects").read_text().splitlines())
    assert effects
    assert set(effects.values()) == {1}
    results = [event for event in events if isinstance(event, ev.ToolCallFinished)]
    assert {
        call.id
        for event in events
        if isinstance(event, ev.AssistantReplied)
        for call in event.calls
    } == {event.call_id for event in results}
    finished = [event for event in results if event.result.text == "done"]
    unknown = [event for event in results if event.result.meta.get("outcome") == "unknown"]
    refused = len(results) - len(finished) - len(unknown)
    assert len(finished) <= effects.total() <= len(finished) + len(unknown) + refused


WRITER = """
import os, sys, threading
from datetime import datetime, timezone
from holdfast import SQLiteStore, TextContent
from holdfast import events as ev
from holdfast.store import Batch, Summary

store = SQLiteStore(sys.argv[1])
text = (TextContent("x" * 1400),)

def write(number: int) -> None:
    lease = store.acquire(f"c{number}")
    for seq in range(1, 10**6):
        at = datetime.now(timezone.utc)
        event = ev.MessageAdded(seq=seq, id=f"{number}-{seq}", timestamp=at, content=text)
        store.append(lease, Batch([event], Summary(lease.conversation_id, last_seq=seq, updated=at)))
        os.write(1, b"%d %d\\n" % (number, seq))

for number in range(100):
    threading.Thread(target=write, args=(number,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "seed", [1, *[pytest.param(seed, marks=pytest.mark.proof) for seed in range(2, 12)]]
)
def test_what_append_returned_is_there_after_a_kill_of_a_hundred_writers(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "s.db"
    child = forks.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(250)]
    killer = threading.Timer(
        random.Random(seed).uniform(0.0, 0.5), lambda: os.kill(child.pid, signal.SIGKILL)
    )
    killer.start()
    lines += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    returned: Counter[int] = Counter()
    for line in lines:
        number, seq = map(int, line.split())
        returned[number] = max(returned[number], seq)
    assert returned.total() > 200
    with SQLiteStore(path) as store:
        for number, last in returned.items():
            events = store.read(f"c{number}")
            assert last <= len(events) <= last + 1  # at most the one with the unfinished append
            assert [event.id for event in events] == [
                f"{number}-{seq}" for seq in range(1, len(events) + 1)
            ]
            store.release(store.acquire(f"c{number}"))


def test_a_fenced_process_begins_nothing_more_and_says_so(tmp_path: Path) -> None:
    ran: list[str] = []
    cancelled = threading.Event()
    running = threading.Event()

    def effect(name: str) -> str:
        ran.append(name)
        running.set()
        cancelled.wait(10)
        return name

    model = ScriptedLLM([[("effect", {"name": name}) for name in ("a", "b", "c")], "never"])
    with SQLiteStore(tmp_path / "s.db") as store:
        conversation = Conversation(
            Agent(model, [Tool("effect", "", effect)], parallel_calls=1), store, "c"
        )
        conversation.send_message("go")
        conversation.start_thread()
        assert running.wait(10)
        # As after an expiry that this process slept through: another process has the lease and has
        # written.
        db = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        db.execute("UPDATE conversations SET epoch = epoch + 1, holder = 'somebody' WHERE id = 'c'")
        db.close()
        deadline = time.monotonic() + 60
        while (
            conversation.failure is None
        ):  # the store's watcher reports it in the middle of the call
            assert time.monotonic() < deadline
            time.sleep(0.01)
        cancelled.set()
        assert conversation.wait(10) is ConversationStatus.ERROR
        assert isinstance(conversation.failure, Fenced)
        assert "taken over" in str(conversation.failure)
        with pytest.raises(Fenced):
            conversation.send_message("more")
        conversation.close()
        assert ran == ["a"]
        assert not any(isinstance(event, ev.ToolCallFinished) for event in store.read("c"))
