"""`SQLiteStore` keeps each acknowledged append through any failure of the power, the disk and
the process. Every write is a place to fail."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import shake_128
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import events as ev
from holdfast.errors import StoreError
from holdfast.store import Batch, SQLiteStore
from tests.file_layer import (
    Choice,
    Entry,
    Fault,
    FileLayer,
    How,
    Mark,
    Synced,
    Unavailable,
    play,
    write_out,
)
from tests.paths import REPO
from tests.samples import one_in
from tests.store.test_store import message, summary

REPO = REPO
IDS = ("a", "b", "c")
SIZES = (200, 900, 4000, 15_000, 60_000)  # bytes of an append
LONG, SHORT = (13, 5), (7, 2)  # appends of each conversation in the first store and in the second
PATIENCE = 30  # seconds after which a workload of one second counts as hanging

Tell = Callable[..., None]
Ending = Literal["close", "die when refused"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder, in memory if the host has such a place: the proof is about what was
    written, not about the host's disk."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as path:
        yield Path(path)


# --- the workload, in a child process under the layer ---


def events_of(id: str, first: int, last: int, attempt: int) -> list[ev.MessageAdded]:
    """Return the events of one append, each with its own text, so that an event of another
    append would be detected."""

    def text(seq: int) -> str:
        size = random.Random(f"{id} {seq}").choice(SIZES) // (last - first + 1)
        return shake_128(f"{id} {seq} {attempt}".encode()).hexdigest(size // 2)

    return [message(seq, text(seq)) for seq in range(first, last + 1)]


def work(
    path: Path, durability: Any, rounds: tuple[int, ...], ids: tuple[str, ...], tell: Tell
) -> None:
    """Open one store per round and close it after the round. In it each conversation has a
    thread that appends that many times.

    Report each operation before and after it. A refused operation is tried twice more; then
    the thread gives up.
    """

    def try_three_times(what: str, call: Callable[[], Any]) -> Any:
        for _ in range(3):
            try:
                return call()
            except StoreError as error:
                tell("failed", what, str(error))
        raise StoreError(f"{what} failed three times")

    def drive(store: SQLiteStore, id: str, appends: int) -> None:
        try:
            lease = try_three_times("acquire", partial(store.acquire, id))
            tell("acquired", id, lease.epoch)
            seq = len(store.read(id))
            for step in range(appends):
                if step % 6 == 5:
                    try_three_times("release", partial(store.release, lease))
                    lease = try_three_times("acquire", partial(store.acquire, id))
                    tell("acquired", id, lease.epoch)
                first, last = seq + 1, seq + 1 + step % 3 // 2
                for attempt in range(3):
                    tell("begun", id, first, last, attempt)
                    try:
                        store.append(
                            lease, Batch(events_of(id, first, last, attempt), summary(id, last))
                        )
                    except StoreError as error:
                        tell("refused", id, type(error).__name__, str(error))
                        if (
                            "Nothing was written" in str(error)
                            and len(stored := store.read(id)) != seq
                        ):
                            tell(
                                "odd",
                                f"{id}: {len(stored)} events can be read after append {first} was"
                                " refused",
                            )
                    else:
                        tell("returned", id)
                        seq = last
                        break
                else:
                    return
            try_three_times("release", partial(store.release, lease))
        except StoreError as error:
            tell("gave up", id, str(error))

    for appends in rounds:
        try:
            store = try_three_times("open", partial(SQLiteStore, path, durability))
        except StoreError as error:
            tell("gave up", "", str(error))
            return
        with store, ThreadPoolExecutor(len(ids)) as pool:
            for future in [pool.submit(drive, store, id, appends) for id in ids]:
                future.result()


def change_connections(build: str) -> None:
    """Change all later connections of this process.

    Each checkpoints every 40 pages, so that a short workload has checkpoints and restarts its
    WAL. The build "spills" has a cache of 5 pages, so that much is written before COMMIT. The
    build "never syncs" is broken.
    """
    statements = ("PRAGMA cache_size = 5", "PRAGMA cache_spill = 5") if build == "spills" else ()
    instead = {r"wal_autocheckpoint *= *\w+": "wal_autocheckpoint = 40"}
    if build == "never syncs":
        instead[r"synchronous *= *\w+"] = "synchronous = OFF"
    genuine = sqlite3.connect

    class ChangedConnection(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            for pattern, replacement in instead.items():
                sql = re.sub(pattern, replacement, sql)
            return super().execute(sql, *arguments)

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = genuine(*arguments, **{**options, "factory": ChangedConnection})
        for statement in statements:
            connection.execute(statement)
        return connection

    sqlite3.connect = connect  # pyright: ignore[reportAttributeAccessIssue]


def install_layer() -> FileLayer:
    try:
        return FileLayer.install()
    except Unavailable as error:
        print(f"unavailable: {error}", flush=True)
        sys.exit()


def record(folder: str, durability: str, build: str, ids: list[str], nth_sync: int) -> None:
    """Record the workload of one store into `folder`/log."""
    layer = install_layer()
    change_connections(build)
    if nth_sync:
        layer.fault = Fault(nth_sync, "ioerr", ops=("sync",))
    disk = Path(folder, "disk")
    disk.mkdir()
    work(disk / "store.db", durability, LONG, tuple(ids), layer.mark)
    if layer.broken:
        raise layer.broken[0]
    Path(folder, "log").write_bytes(pickle.dumps(layer.log))
    print("struck", layer.struck, flush=True)


def campaign(
    folder: str,
    durability: str,
    how: How,
    lasting: bool,
    ending: Ending,
    build: str,
    ops: list[str],
    every: int,
    first: int,
) -> None:
    """Run the workload once without a fault to count its operations. Then run it with a fault at
    operation `first`, at that + `every`, and so on, each time in a process and a folder of
    its own. Print each one's number and outcome."""
    layer = install_layer()
    change_connections(build)

    def case(number: int, fault: Fault | None) -> None:
        here = Path(folder, str(number))
        (here / "disk").mkdir(parents=True)
        reports = os.open(here / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def tell(*words: Any) -> None:
            os.write(reports, json.dumps(words).encode() + b"\n")
            if words[0] == "refused" and ending == "die when refused":
                os.kill(os.getpid(), signal.SIGKILL)

        layer.fault = fault
        work(here / "disk" / "store.db", durability, SHORT, IDS[:2], tell)
        tell("ended", {**layer.counts, "struck": layer.struck})
        if layer.broken:
            tell("odd", f"the layer itself failed: {layer.broken[0]!r}")

    def run(number: int, fault: Fault | None) -> str:
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(PATIENCE)
                case(number, fault)
                os._exit(0)
            except BaseException as error:
                print(f"{number} {type(error).__name__}: {error}".replace("\n", " "), flush=True)
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        return (
            signal.Signals(os.WTERMSIG(status)).name
            if os.WIFSIGNALED(status)
            else f"exit {os.WEXITSTATUS(status)}"
        )

    assert run(0, None) == "exit 0"
    last = [json.loads(line) for line in Path(folder, "0", "told").read_text().splitlines()][-1]
    # A few more than in that run: appends group differently into commits from run to run.
    for number in range(first, sum(last[1][op] for op in ops) + 5, every):
        print(number, run(number, Fault(number, how, lasting, tuple(ops))), flush=True)
    print("done", flush=True)


def child(function: str, *arguments: Any) -> Iterator[str]:
    """Run a function of this file in a process of its own, and yield its lines."""
    program = (
        "import json, sys; import tests.store.test_power_loss as t; getattr(t,"
        " sys.argv[1])(*json.loads(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, function, json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("unavailable"):
                    pytest.skip(line.strip())
                yield line.strip()
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, f"{function} failed; see above"


# --- the expected contents ---


class Reports:
    """The reports of a program about its appends, and so the possible contents of its store."""

    def __init__(self) -> None:
        self.appends: dict[str, list[list[bytes]]] = {
            id: [] for id in IDS
        }  # returned appends, each with its events
        self.open: dict[str, list[list[bytes]]] = {
            id: [] for id in IDS
        }  # appends that may or may not be in the store
        self.epochs: dict[str, int] = dict.fromkeys(IDS, 0)
        self.refused = self.doubtful = 0
        self.odd: list[str] = []

    def hear(self, word: str, id: str = "", *more: Any) -> None:
        match word:
            case "begun":
                first, last, attempt = more
                self.open[id].append(
                    [ev.encode(event) for event in events_of(id, first, last, attempt)]
                )
            case "returned":
                self.appends[id].append(self.open[id].pop())
                self.open[id].clear()
            case "refused":
                self.refused += 1
                if more[0] != "StoreError":
                    self.odd.append(f"{id}: {more}")
                if "Nothing was written" in more[1]:
                    self.open[id].pop()
                else:
                    self.doubtful += 1
            case "acquired":
                self.epochs[id] = more[0]
            case "odd":
                self.odd.append(id)
            case _:
                pass

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple((len(self.appends[id]), len(self.open[id]), self.epochs[id]) for id in IDS)


def troubles(folder: Path, reports: Reports, *, newest_may_be_lost: bool = False) -> list[str]:
    """Return the faults of the store in `folder`, given the program's reports."""
    path = folder / "store.db"
    faults: list[str] = []
    try:
        with SQLiteStore(path) as store:
            lengths: dict[str, int] = {}
            for id in IDS:
                events = [ev.encode(event) for event in store.read(id)]
                lengths[id] = len(events)
                acknowledged = [event for append in reports.appends[id] for event in append]
                whole = [acknowledged, *(acknowledged + append for append in reports.open[id])]
                if newest_may_be_lost:
                    whole += [
                        [event for append in reports.appends[id][:n] for event in append]
                        for n in range(len(reports.appends[id]))
                    ]
                if events not in whole:
                    if events[: len(acknowledged)] != acknowledged:
                        faults.append(
                            f"{id}: lost: {len(events)} events found, {len(acknowledged)} were acknowledged"
                        )
                    else:
                        faults.append(
                            f"{id}: {len(events) - len(acknowledged)} events found beyond the {len(acknowledged)}"
                            " that may be there"
                        )
            listed = {one.id: one.last_seq for one in store.list()}
            if listed != {id: length for id, length in lengths.items() if length}:
                faults.append(f"listed {listed}, read {lengths}")
            faults += sound(path)
            for id in IDS:
                lease = store.acquire(id)
                if lease.epoch <= reports.epochs[id] and not newest_may_be_lost:
                    faults.append(f"{id}: epoch {lease.epoch} was given out before")
                more = message(lengths[id] + 1, "afterwards")
                store.append(lease, Batch([more], summary(id, more.seq)))
                if store.read(id, lengths[id]) != [more]:
                    faults.append(f"{id}: an append afterwards is not read")
    except (StoreError, sqlite3.Error) as error:
        faults.append(f"{type(error).__name__}: {error}")
    return faults


def sound(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        result = db.execute("PRAGMA integrity_check").fetchall()
    finally:
        db.close()
    return [] if result == [("ok",)] else [f"integrity_check: {result[:3]}"]


# --- loss of power ---


def record_workload(
    folder: Path, durability: str, build: str = "", ids: tuple[str, ...] = IDS, nth_sync: int = 0
) -> list[Entry]:
    assert list(child("record", str(folder), durability, build, ids, nth_sync)) == [
        f"struck {int(nth_sync > 0)}"
    ]
    shutil.rmtree(folder / "disk")
    return pickle.loads((folder / "log").read_bytes())


def check_losses(
    folder: Path,
    log: list[Entry],
    chance: random.Random,
    share: float,
    choices: list[Choice],
    *,
    newest_may_be_lost: bool = False,
) -> tuple[int, list[str]]:
    """Lose the power after entries of a record, after each with the probability `share`. Return
    the number of examined disks and the faults.

    Between two marks the same disk is examined once.
    """
    reports, states, wrong = Reports(), set[Any](), list[str]()
    image = folder / "image"
    for disk in play(log, chance):
        if disk.place and isinstance(mark := log[disk.place - 1], Mark):
            reports.hear(*mark.words)
        if chance.random() > share:
            continue
        for choice in choices:
            key, files = disk.image(choice)
            if (reports.key, key) in states:
                continue
            states.add((reports.key, key))
            image.mkdir()
            write_out(files, image)
            lossless = choice == "all"  # also the death of the process alone
            faults = troubles(
                image, reports, newest_may_be_lost=newest_may_be_lost and not lossless
            )
            wrong += [
                f"power lost after entry {disk.place} of {len(log)}, {choice} of the pending: {one}"
                for one in faults
            ]
            shutil.rmtree(image)
    return len(states), wrong + reports.odd


ALL_CHOICES: list[Choice] = ["none", "all", "but one", "some", "some"]


def returned_appends(log: list[Entry]) -> int:
    return sum(isinstance(entry, Mark) and entry.words[0] == "returned" for entry in log)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["durable", "process"])
def test_a_loss_of_power_takes_no_more_than_was_promised(folder: Path, durability: str) -> None:
    log = record_workload(folder, durability)
    assert returned_appends(log) == sum(LONG) * len(IDS)
    checked, wrong = check_losses(
        folder, log, random.Random(1), 0.02, ALL_CHOICES, newest_may_be_lost=durability == "process"
    )
    print(f"{durability}: {checked} disks of a record of {len(log)} entries")
    assert wrong == []
    assert checked > 40


@pytest.mark.proof
@pytest.mark.parametrize("build", ["", "spills"])
@pytest.mark.parametrize("durability", ["durable", "process"])
def test_a_loss_of_power_at_any_write_takes_no_more_than_was_promised(
    folder: Path, durability: str, build: str
) -> None:
    log = record_workload(folder, durability, build)
    checked, wrong = check_losses(
        folder,
        log,
        random.Random(2),
        1 / one_in(4, 8),
        ALL_CHOICES,
        newest_may_be_lost=durability == "process",
    )
    print(f"{durability} {build}: {checked} disks of a record of {len(log)} entries")
    assert wrong == []
    assert checked > 3200 // one_in(4, 8)


@pytest.mark.proof
def test_after_a_sync_that_failed_a_loss_of_power_takes_no_more_than_was_promised(
    folder: Path,
) -> None:
    """The data of a failed fsync may be on the disk or never arrive there, whatever is synced
    later (as on Linux).

    With one conversation: SQLite itself (3.40, walCheckpoint) loses data when a reader
    delayed the checkpoint before, since the delayed pages are neither synced nor written
    again.
    """
    syncs = sum(
        isinstance(entry, Synced) for entry in record_workload(folder, "durable", ids=IDS[:1])
    )
    total, refused, wrong = 0, 0, list[str]()
    every = one_in(2)
    for nth in range(1, syncs + 1, every):
        log = record_workload(folder, "durable", ids=IDS[:1], nth_sync=nth)
        refused += sum(
            isinstance(entry, Mark) and entry.words[0] in ("failed", "refused") for entry in log
        )
        checked, faults = check_losses(folder, log, random.Random(nth), 0.05, ALL_CHOICES)
        total += checked
        wrong += [f"sync {nth} failed, {one}" for one in faults]
    print(f"{len(range(1, syncs + 1, every))} failed syncs, {refused} calls refused, {total} disks")
    assert wrong == []
    assert refused > 10 // every
    assert total > 1600 // every


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "build"), [("durable", "never syncs"), ("process", "")])
def test_a_store_that_promises_too_much_is_found_out(
    folder: Path, durability: str, build: str
) -> None:
    """A check of the proof: the same workload and the same check, on stores that do not sync
    what `append` acknowledges."""
    _, wrong = check_losses(
        folder, record_workload(folder, durability, build), random.Random(1), 0.01, ["none", "some"]
    )
    assert any("lost: " in one for one in wrong)


@pytest.mark.slow
def test_a_file_that_breaks_is_found_out(folder: Path) -> None:
    """A checkpoint without a sync breaks the file. The check sees this even if the newest events
    may be lost."""
    log = record_workload(folder, "process", "never syncs")
    _, wrong = check_losses(folder, log, random.Random(1), 0.02, ["some"], newest_may_be_lost=True)
    assert any(
        "integrity_check" in one or "malformed" in one or "damaged" in one for one in wrong
    ), wrong


# --- writes that fail, processes that die ---


def check_faults(
    folder: Path,
    how: How,
    *,
    every: int,
    durability: str = "durable",
    lasting: bool = False,
    ending: Ending = "close",
    build: str = "",
    ops: str = "write truncate sync delete",
) -> tuple[int, int, list[str]]:
    """Let each operation of the workload (or one of every so many) fail. Return the number of
    failed operations, the number of appends with an unknown outcome, and the faults."""
    wrong: list[str] = []
    struck = refused = doubtful = 0
    finished = False
    for line in child(
        "campaign",
        str(folder),
        durability,
        how,
        lasting,
        ending,
        build,
        ops.split(),
        every,
        1 + every // 2,
    ):
        if line == "done":
            finished = True
            continue
        number, outcome = line.split(" ", 1)
        here = folder / number
        reports = Reports()
        words = [json.loads(line) for line in (here / "told").read_text().splitlines()]
        for word in words:
            reports.hear(*word)
        killed = outcome == "SIGKILL" and bool(
            how == "torn" or (ending == "die when refused" and reports.refused)
        )
        faults = reports.odd + troubles(here / "disk", reports)
        if outcome != "exit 0" and not killed:
            faults.append(outcome)
        if not lasting and not killed:
            faults += [str(word) for word in words if word[0] == "gave up"]
            if sum(word[0] == "returned" for word in words) != sum(SHORT) * 2:
                faults.append("not everything was appended when the fault was over")
        refused += reports.refused
        doubtful += reports.doubtful
        struck += killed or (outcome == "exit 0" and words[-1][1]["struck"] > 0)
        wrong += [f"{how} at {number}: {one}" for one in faults]
        shutil.rmtree(here)
    assert finished
    print(
        f"{durability}, {how}{', lasting' * lasting}, {ending} {build}: {struck} faults, {refused}"
        f" appends refused, {doubtful} of them in doubt"
    )
    return struck, doubtful, wrong


FAULTS: list[Any] = [
    pytest.param({"how": "ioerr"}, id="input/output error"),
    pytest.param({"how": "ioerr", "lasting": True}, id="input/output errors from then on"),
    pytest.param(
        {"how": "ioerr", "ending": "die when refused"}, id="input/output error, then death"
    ),
    pytest.param({"how": "ioerr", "build": "spills"}, id="input/output error within a transaction"),
    pytest.param({"how": "full", "ops": "write"}, id="full disk for a moment"),
    pytest.param({"how": "full", "ops": "write", "lasting": True}, id="full disk"),
    pytest.param({"how": "short", "ops": "write"}, id="half a write"),
    pytest.param(
        {"how": "short", "ops": "write", "lasting": True}, id="half of every write from then on"
    ),
    pytest.param(
        {"how": "short", "ops": "write", "ending": "die when refused", "build": "spills"},
        id="half a write, then death",
    ),
    pytest.param({"how": "torn"}, id="death in mid-write"),
    pytest.param({"how": "torn", "build": "spills"}, id="death in mid-write within a transaction"),
    pytest.param({"how": "torn", "durability": "process"}, id="death in mid-write without syncs"),
]


@pytest.mark.proof
@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_write_fails_append_tells_the_truth(folder: Path, fault: Any) -> None:
    every = one_in(4)
    struck, _, wrong = check_faults(folder, **fault, every=every)
    assert wrong == []
    assert struck > 240 // every


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_when_a_write_fails_append_tells_the_truth(folder: Path, fault: Any) -> None:
    struck, _, wrong = check_faults(folder, **fault, every=59)
    assert wrong == []
    assert struck > 3


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["close", "die when refused"])
def test_when_a_sync_fails_append_tells_the_truth(folder: Path, ending: Ending) -> None:
    """SQLite has written the transaction by then. No later reader may find it after `append`
    said that nothing was written."""
    struck, doubtful, wrong = check_faults(folder, "ioerr", ending=ending, ops="sync", every=1)
    assert wrong == []
    assert struck > 10
    assert doubtful == 0


@pytest.mark.slow
def test_when_no_sync_succeeds_any_more_append_says_what_it_does_not_know(folder: Path) -> None:
    """Then the rest of the refused transaction cannot be overwritten for certain."""
    struck, doubtful, wrong = check_faults(folder, "ioerr", lasting=True, ops="sync", every=3)
    assert wrong == []
    assert struck > 3
    assert doubtful > 3
