"""`holdfast check`, `export` and `import` as processes: pipes, a terminal, full disks and damaged
files."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import sqlite3
import subprocess
import zlib
from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from holdfast.store import Batch, Blob, Summary
from tests import forks
from tests.cli.test_commands import HOLDFAST, environment, holdfast, terminal
from tests.store.test_store import append, message
from tests.store.test_transfer import BLOB, fill


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store with two conversations: `alpha` with two open calls, and `beta`."""
    path = tmp_path / "agents.db"
    with SQLiteStore(path, "process") as sqlite:
        fill(sqlite, "alpha")
        lease = sqlite.acquire("beta")
        append(sqlite, lease, *range(1, 200))
        sqlite.release(lease)
    return path


def damage(path: Path) -> None:
    """Change one byte of an event in the file."""
    data = bytearray(path.read_bytes())
    at = data.index(b'"id":"e150"')
    data[at] ^= 1
    path.write_bytes(data)


def one_line(ended: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    """Check that a command ended with this exit code and a one-line error that has the words."""
    assert (ended.returncode, ended.stdout) == (code, "")
    assert re.fullmatch(r"holdfast: .+\n", ended.stderr), ended.stderr
    assert words in ended.stderr


# --- check ---


@pytest.mark.slow
def test_a_sound_store_is_said_to_be_sound(store: Path) -> None:
    ended = holdfast("check", str(store))
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "2 conversations, 206 events, all sound.\n",
        "",
    )


@pytest.mark.slow
def test_check_names_what_cannot_be_read(store: Path) -> None:
    damage(store)
    ended = holdfast("check", str(store))
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        "beta: event 150 is unreadable: the checksum does not match",
        "2 conversations, 205 events can be read; the store is damaged.",
    ]
    assert "holdfast export --salvage" in ended.stderr
    report = json.loads(holdfast("check", "--json", str(store)).stdout)
    assert (report["sound"], report["events"]) == (False, 205)
    assert report["findings"] == [
        {
            "id": "beta",
            "gaps": [{"first": 150, "last": 150, "reason": "the checksum does not match"}],
        }
    ]


@pytest.mark.slow
def test_check_changes_nothing_and_makes_nothing(store: Path) -> None:
    before = {path.name: path.read_bytes() for path in store.parent.iterdir()}
    for arguments in (
        ["check", str(store)],
        ["export", str(store)],
        ["export", "--salvage", str(store)],
    ):
        assert holdfast(*arguments).returncode == 0
    assert {path.name: path.read_bytes() for path in store.parent.iterdir()} == before


@pytest.mark.slow
def test_what_is_no_store_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("hello\n" * 1000)
    (tmp_path / "random.db").write_bytes(random.Random(1).randbytes(100_000))
    (tmp_path / "almost.db").write_bytes(b"SQLite format 3\0" + random.Random(1).randbytes(100_000))
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE t (x)")
    db.close()
    for name in ("nothing.db", "empty.db", "random.db", "almost.db", "other.db", "."):
        one_line(holdfast("check", str(tmp_path / name)), 2, "")
    for name in ("text.db", "nul\u2028l"):
        for command in (["check", "--json"], ["export"], ["export", "--salvage"]):
            one_line(holdfast(*command, str(tmp_path / name)), 2, "")
    one_line(holdfast("check", "/dev/null"), 2, "not a Holdfast store")


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(6))
def test_whatever_bytes_a_store_has_there_is_no_traceback(store: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(store.read_bytes())
    for _ in range(chance.choice((1, 10, 100))):
        at = chance.randrange(len(data))
        data[at : at + chance.choice((1, 50))] = chance.randbytes(1)
    store.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
    for command in ("check", "export", "show"):
        for more in ([], ["--salvage"] if command == "export" else ["--json"]):
            ended = holdfast(command, str(store), *more)
            assert ended.returncode in (0, 1, 2)
            assert "Traceback" not in ended.stderr
            assert "internal error" not in ended.stderr or command == "show"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Make a store that takes about a second to check."""
    path = tmp_path / "big.db"
    with SQLiteStore(path, "process") as sqlite:
        lease = sqlite.acquire("one")
        append(sqlite, lease, *range(1, 2))
        sqlite.release(lease)
    data = ev.encode(message(2)).replace(b'"seq":2', b'"seq":%d')
    db = sqlite3.connect(path)
    rows = (
        ((1 << 32) + seq, zlib.crc32(text), text)
        for seq in range(2, 200_000)
        if (text := data % seq)
    )
    db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
    db.execute("UPDATE conversations SET last_seq = 199999")
    db.commit()
    db.close()
    return path


@pytest.mark.slow
def test_progress_is_on_a_terminal_alone(big: Path) -> None:
    with terminal("check", str(big)) as typist:
        typist.sees(r"checking .*big\.db")
        assert typist.leaves() == 0
    assert typist.output.rstrip().endswith("1 conversation, 199,999 events, all sound.")
    assert holdfast("check", str(big)).stderr == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_check(big: Path) -> None:
    with terminal("check", str(big)) as typist:
        typist.sees("checking")
        typist.types("\x03")
        assert typist.leaves() == 130
    assert "Traceback" not in typist.output


# --- export and import ---


@pytest.mark.slow
def test_there_and_back_through_a_pipe(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    line = (
        f"{shlex.join([*HOLDFAST, 'export', str(store)])} |"
        f" {shlex.join([*HOLDFAST, 'import', '-', '--store', str(other)])}"
    )
    ended = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=environment(), check=False
    )
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (
        0,
        ["alpha: 7 events imported", "beta: 199 events imported"],
    )
    for id in ("alpha", "beta"):
        assert (
            holdfast("export", str(other), id).stdout == holdfast("export", str(store), id).stdout
        )
    assert holdfast("check", str(other)).stdout == "2 conversations, 206 events, all sound.\n"
    with SQLiteStore(other) as sqlite:
        assert sqlite.blob(Blob(1, BLOB).id) == BLOB


@pytest.mark.slow
def test_one_conversation_is_named_by_its_first_letters(store: Path) -> None:
    ended = holdfast("export", str(store), "be")
    assert [json.loads(line).get("id") for line in ended.stdout.splitlines()][:2] == ["beta", "e1"]
    assert ended.stdout.count("\n") == 200
    one_line(holdfast("export", str(store), "gamma"), 2, "'gamma'")


@pytest.mark.slow
def test_open_calls_are_told(store: Path) -> None:
    ended = holdfast("export", str(store), "alpha")
    assert ended.returncode == 0
    assert "alpha: 2 calls are open (shell, read_file)." in ended.stderr
    assert "may run twice" in ended.stderr


@pytest.mark.slow
def test_an_export_to_a_file_takes_its_name_when_it_is_whole(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    damage(store)
    ended = holdfast("export", str(store), "beta", "-o", str(out))
    assert ended.returncode == 1
    assert "event 150" in ended.stderr
    assert "--salvage" in ended.stderr
    assert out.read_text() == "old"
    assert not list(tmp_path.glob("*.part"))
    assert holdfast("export", str(store), "alpha", "-o", str(out)).returncode == 0
    assert out.read_text().count("\n") == 9
    one_line(holdfast("export", str(store), "-o", str(store)), 2, "overwrite the store itself")
    one_line(holdfast("export", str(store), "-o", str(tmp_path)), 2, "is a folder")


@pytest.mark.slow
def test_what_is_readable_of_a_damaged_store_is_exported_and_makes_a_sound_one(
    store: Path, tmp_path: Path
) -> None:
    damage(store)
    out = tmp_path / "rest.jsonl"
    ended = holdfast("export", "--salvage", str(store), "-o", str(out))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "beta: event 150 is unreadable: the checksum does not match" in ended.stderr.splitlines()
    assert holdfast("import", str(out), "--store", str(tmp_path / "new.db")).returncode == 0
    assert (
        holdfast("check", str(tmp_path / "new.db")).stdout
        == "2 conversations, 206 events, all sound.\n"
    )
    event_lines = holdfast("show", str(tmp_path / "new.db"), "beta", "--json").stdout.splitlines()
    assert json.loads(event_lines[149])["type"] == "damaged"
    overwritten = bytearray(store.read_bytes())
    overwritten[:4096] = bytes(4096)
    store.write_bytes(overwritten)
    assert holdfast("export", "--salvage", str(store), "alpha").returncode == 1
    one_line(holdfast("export", str(store), "alpha"), 2, "holdfast check")


@pytest.mark.slow
def test_a_conversation_that_is_there_is_left_and_another_of_its_id_is_refused(
    store: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "x.jsonl"
    assert holdfast("export", str(store), "-o", str(exported)).returncode == 0
    again = holdfast("import", str(exported), "--store", str(store))
    assert (again.returncode, again.stderr) == (0, "")
    assert "alpha: already in the store, with the same 7 events" in again.stdout.splitlines()
    other = tmp_path / "other.db"
    with SQLiteStore(other) as sqlite:
        lease = sqlite.acquire("beta")
        append(sqlite, lease, 1)
        sqlite.release(lease)
    refused = holdfast("import", str(exported), "--store", str(other))
    assert (refused.returncode, refused.stdout) == (2, "alpha: 7 events imported\n")
    assert "another conversation 'beta'" in refused.stderr
    one_line(
        holdfast("import", str(exported), "--store", str(other), "--id", "new"),
        2,
        "another conversation begins",
    )
    assert holdfast("export", str(store), "beta", "-o", str(exported)).returncode == 0
    assert (
        holdfast("import", str(exported), "--store", str(other), "--id", "new").stdout
        == "new: 199 events imported\n"
    )


@pytest.mark.slow
def test_wrong_lines_are_one_line_and_leave_no_store(store: Path, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.jsonl"
    to = str(tmp_path / "to.db")
    lines = holdfast("export", str(store), "beta").stdout.splitlines(keepends=True)
    for content, words in (
        (b"", "no conversation"),
        (random.Random(3).randbytes(5000), "line 1: "),
        (store.read_bytes(), "line 1: "),
        (
            "".join(lines[:50]).encode(),
            "garbage.jsonl, line 50: the lines end after 49 of 199 events",
        ),
        ("".join([*lines[:50], "\x1b[31m{}\n"]).encode(), "line 51: this is not an event"),
    ):
        garbage.write_bytes(content)
        one_line(holdfast("import", str(garbage), "--store", to), 2, words)
    for missing in (tmp_path / "nothing.jsonl", tmp_path):
        one_line(holdfast("import", str(missing), "--store", to), 2, str(missing))
    one_line(holdfast("import", "-", "--store", to), 2, "no conversation")
    assert not Path(to).exists()
    garbage.write_text("".join(lines))
    one_line(holdfast("import", str(garbage), "--store", str(tmp_path)), 2, "is a folder")
    one_line(holdfast("import", str(garbage)), 2, "--store")


@pytest.mark.slow
def test_a_full_disk_and_a_reader_that_goes_away(store: Path, tmp_path: Path) -> None:
    export = shlex.join([*HOLDFAST, "export", str(store), "beta"])
    for line in (f"{export} > /dev/full", f"{export} -o /dev/full"):
        ended = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, env=environment(), check=False
        )
        one_line(ended, 1, "No space left")
    cut_off = subprocess.run(
        ["bash", "-c", f"{export} | head -c 10; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (cut_off.returncode in (0, 141), cut_off.stderr) == (True, "")
    ended = subprocess.run(
        [
            "bash",
            "-c",
            (
                f"ulimit -f 40; {export} |"
                f" {shlex.join([*HOLDFAST, 'import', '-', '--store', str(tmp_path / 'small.db')])}"
            ),
        ],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_a_long_export(tmp_path: Path) -> None:
    path = tmp_path / "big.db"
    with SQLiteStore(path, "process") as sqlite:
        lease = sqlite.acquire("one")
        append(sqlite, lease, *range(1, 20_000))
        sqlite.release(lease)
    process = forks.Popen(
        [*HOLDFAST, "export", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.slow
def test_ctrl_c_ends_an_import_that_waits(tmp_path: Path) -> None:
    process = forks.Popen(
        [*HOLDFAST, "import", "-", "--store", str(tmp_path / "to.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write('{"type":"conversation","version":1,"id":"one","events":2}\n')
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")
    assert not (tmp_path / "to.db").exists()


@pytest.mark.slow
def test_the_help_teaches_in_80_columns() -> None:
    for command in ("check", "export", "import"):
        ended = holdfast(command, "--help", COLUMNS="80")
        assert ended.returncode == 0
        assert max(len(line) for line in ended.stdout.splitlines()) <= 80
        assert f"usage: holdfast {command}" in ended.stdout
        assert command in holdfast("--help").stdout


@pytest.mark.slow
def test_a_title_cannot_control_the_terminal(store: Path) -> None:
    with SQLiteStore(store) as sqlite:
        lease = sqlite.acquire("evil\x1b[31m")
        append(sqlite, lease, 1, 2)
        sqlite.append(lease, Batch([], Summary("x")))
        sqlite.release(lease)
    data = store.read_bytes()
    store.write_bytes(data)
    db = sqlite3.connect(store)
    db.execute(
        "DELETE FROM events WHERE key IN (SELECT (number << 32) + 1 FROM conversations WHERE id"
        " LIKE 'evil%')"
    )
    db.commit()
    db.close()
    ended = holdfast("check", str(store))
    assert "evil^[[31m: event 1 is unreadable" in ended.stdout
    salvaged = holdfast("export", "--salvage", str(store), "evil")
    assert "\x1b" not in salvaged.stderr + salvaged.stdout
