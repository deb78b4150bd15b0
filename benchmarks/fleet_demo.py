"""`make fleet-demo`: three workers over an embedded Postgres run 300 conversations, and are killed
at random. At the end it counts the effects, which the tools wrote to files."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast import events as ev
from tests.fleet_program import Effects, Settings, WorkerProcess, outcome, post
from tests.postgres import NoPostgres, private_server

CONVERSATIONS, WORKERS, KILL_SECONDS = 300, 3, 3.0


def main() -> int:
    try:
        with private_server(fsync=True) as server, tempfile.TemporaryDirectory() as folder:
            print(f"Postgres runs at {server.dsn()}")
            return run(Settings(server.dsn(), folder))
    except NoPostgres as reason:
        print(f"no Postgres: {reason}")
        return 1


def run(settings: Settings) -> int:
    store, backend = settings.opened()
    effects = Effects(Path(settings.folder))
    ids = [f"tenant{number % 5}/c{number}" for number in range(CONVERSATIONS)]
    pause = {"seconds": 0.2}
    for id in ids:
        post(store, id, [("strike", pause), ("mail", pause)] * 2, "1")
    print(f"{len(ids)} conversations of 4 calls are posted; {WORKERS} workers start")
    workers = [WorkerProcess(settings) for _ in range(WORKERS)]
    kills, killed_at, unfinished = 0, time.monotonic(), len(ids)
    while unfinished:
        time.sleep(0.2)
        unfinished = len(ids) - len(store.list(ids, status="finished"))
        if unfinished and time.monotonic() - killed_at > KILL_SECONDS:
            killed_at = time.monotonic()
            victim = random.choice(workers)
            workers.remove(victim)
            victim.close()
            workers.append(WorkerProcess(settings))
            kills += 1
            print(f"  killed worker {victim.pid}; {unfinished} conversations left")
    for worker in workers:
        worker.close()
    strikes, mails = effects.strikes(), effects.lines("sent")
    unknown = sum(
        isinstance(event, ev.ToolCallFinished) and outcome(event.result) == "unknown"
        for id in ids
        for event in store.read(id)
    )
    store.close()
    backend.close()
    print(f"All {len(ids)} conversations finished; {kills} workers were killed.")
    print(f"Calls that may not be repeated: {len(strikes)} begun, {sum(strikes.values())} effects")
    print(f"  ({unknown} were cut off, and the model was told that their outcome is unknown)")
    print(f"Mails, deduplicated by idempotency key: {len(mails)} sent, {len(set(mails))} distinct")
    every_once = set(strikes.values()) == {1} and len(mails) == len(set(mails)) == 2 * len(ids)
    print(
        "Every effect happened once." if every_once else "AN EFFECT HAPPENED TWICE, OR NOT AT ALL."
    )
    return 0 if every_once else 1


if __name__ == "__main__":
    raise SystemExit(main())
