"""`holdfast export` and `import` between an SQLite file and a Postgres database."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast.store import Batch, PostgresStore, Summary
from tests.cli.test_commands import holdfast
from tests.store.test_store import append, message
from tests.store.test_transfer import fill

SECRET = "s3cret-phrase"


@pytest.fixture
def database(postgres_database: str) -> str:
    assert SECRET in postgres_database
    return postgres_database


@pytest.mark.slow
def test_conversations_move_into_postgres_and_back_byte_for_byte(
    tmp_path: Path, database: str
) -> None:
    first, last = tmp_path / "first.db", tmp_path / "last.db"
    with SQLiteStore(first, "process") as store:
        fill(store, "alpha")  # a conversation with a blob and open calls
        lease = store.acquire("child")
        origin = Summary("child", "finished", last_seq=2, spawned_by="alpha:2.0")
        store.append(lease, Batch([message(1), message(2)], origin))
        store.release(lease)
        store.fork("child", Summary("fork", "idle", last_seq=1))
    lines = [tmp_path / f"{number}.jsonl" for number in range(3)]

    def run(*command: object) -> str:
        ended = holdfast(*map(str, command))
        assert ended.returncode == 0, ended.stderr
        assert SECRET not in ended.stdout + ended.stderr
        return ended.stdout

    run("export", first, "-o", lines[0])
    assert run("import", lines[0], "--store", database).count("imported") == 3
    assert run("import", lines[0], "--store", database).count("already in the store") == 3
    run("export", database, "-o", lines[1])
    run("import", lines[1], "--store", last)
    run("export", last, "-o", lines[2])
    exported = [sorted(path.read_bytes().splitlines()) for path in lines]
    assert exported[0] == exported[1] == exported[2]
    with PostgresStore(database) as store:
        assert [one.id for one in store.list(spawned_by="alpha")] == ["child"]
        lease = store.acquire("fork")
        append(store, lease, 2)


@pytest.mark.slow
def test_a_database_that_cannot_be_used_is_named_without_its_password(database: str) -> None:
    for command in (
        ("export", f"{database}-that-is-not-there"),
        ("export", "--salvage", database),
        ("export", database),
    ):
        ended = holdfast(*command)
        assert ended.returncode == 2 or "no conversation" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert SECRET not in ended.stderr
