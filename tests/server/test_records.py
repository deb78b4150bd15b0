"""Tests of the server's records beside the journals: one file, whole transactions, nothing in
clear."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Agent, ScriptedLLM
from holdfast.agent.serial_form import form_of
from holdfast.errors import Conflict, ConversationNotFound, StoreError, TooMany
from holdfast.server.database import SQLiteDatabase
from holdfast.server.records import HOSTED, ConversationOptions, NewRecord, Records, store_id
from holdfast.server.sealing import Seal
from holdfast.server.shapes import CreateRequest
from tests.agent_servers import Serving

SEAL = Seal(b"k" * 32)


def new(id: str, tenant: str = "default", agent: bytes = b"{}", tools: bytes = b"[]") -> NewRecord:
    return NewRecord(
        tenant,
        id,
        agent,
        tools,
        ConversationOptions({"plan": "acme.plan"}, False, True),
        SEAL.seal(b"s", store_id(tenant, id)),
        "w",
    )


@pytest.fixture(params=["SQLite", "Postgres"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    if request.param == "SQLite":
        place = SQLiteDatabase(tmp_path / "server.db")
    else:
        server = request.getfixturevalue("postgres_server")
        schema = request.getfixturevalue("postgres_schema")
        from holdfast.server.postgres_database import PostgresDatabase  # needs psycopg

        place = PostgresDatabase(server.dsn(), schema)
    opened = Records(place, SEAL)
    yield opened
    opened.close()


def test_a_record_comes_back_as_it_was_also_from_the_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "server.db", SEAL)
    records.add(new("a"), b"answer", "", b"", 10)
    stored = records.find("default", "a")
    records.set_driven(stored, HOSTED)
    records.close()
    again = Records(tmp_path / "server.db", SEAL)
    record = again.find("default", "a")
    assert record == stored.__class__(
        **{**{name: getattr(stored, name) for name in stored.__struct_fields__}, "driven": HOSTED}
    )
    assert record.options.modules == {"plan": "acme.plan"}
    assert again.part(record.agent) == b"{}"
    assert again.driven() == [("default", "a")]
    again.close()
    with pytest.raises(StoreError, match="closed"):
        again.find("default", "a")


def test_an_id_is_taken_only_within_its_tenant(records: Records) -> None:
    records.add(new("a"), b"", "", b"", 10)
    records.add(new("a", "acme"), b"", "", b"", 10)
    with pytest.raises(Conflict, match="'a' already exists"):
        records.add(new("a"), b"", "", b"", 10)
    assert records.find("acme", "a").store_id == "acme/a"
    with pytest.raises(ConversationNotFound):
        records.find("umbrella", "a")


def test_the_same_key_has_the_same_answer_and_no_other_request(records: Records) -> None:
    assert records.add(new("a"), b"one", "key", b"digest", 10) == b"one"
    assert records.add(new("b"), b"two", "key", b"digest", 10) == b"one"
    with pytest.raises(ConversationNotFound):
        records.find("default", "b")
    with pytest.raises(Conflict, match="'key' was used for another request"):
        records.add(new("b"), b"two", "key", b"other", 10)
    assert records.find_answer("acme", "key", b"other") is None


def test_parts_are_kept_once_and_forgotten_with_the_last_that_has_them(records: Records) -> None:
    for id in "abc":
        records.add(new(id, agent=b"same"), b"", "", b"", 10)
    stored = [records.find("default", id) for id in "abc"]
    assert len({record.agent for record in stored}) == 1
    retooled = records.set_agent(stored[0], b"other", b"[1]", ConversationOptions(), None)
    assert records.part(retooled.agent) == b"other"
    for record in stored[1:]:
        records.remove(record)
    with pytest.raises(StoreError, match="missing"):
        records.part(stored[0].agent)
    assert records.part(records.find("default", "a").agent) == b"other"


def test_a_tenant_has_at_most_so_many(records: Records) -> None:
    records.add(new("a"), b"", "", b"", 1)
    with pytest.raises(TooMany) as caught:
        records.add(new("b"), b"", "", b"", 1)
    assert caught.value.bound == "conversations"
    records.add(new("b", "acme"), b"", "", b"", 1)


def test_a_number_is_never_given_again(records: Records) -> None:
    records.add(new("a"), b"", "", b"", 10)
    number = records.find("default", "a").number
    records.remove(records.find("default", "a"))
    records.add(new("a"), b"", "", b"", 10)
    assert records.find("default", "a").number > number


def test_another_file_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    Records(tmp_path / "new.db", SEAL).close()
    with sqlite3.connect(tmp_path / "new.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="newer Holdfast"):
        Records(tmp_path / "new.db", SEAL)
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(StoreError, match="not the records"):
        Records(tmp_path / "other.db", SEAL)
    (tmp_path / "text.db").write_text("hello " * 500)
    with pytest.raises(StoreError, match="cannot be used"):
        Records(tmp_path / "text.db", SEAL)


def test_an_old_key_is_forgotten_while_the_file_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.records.PRUNE_SECONDS", 0.0)
    records = Records(tmp_path / "server.db", SEAL)
    assert [
        records.store_answer("default", "old", b"d", b"one", forced=False) for _ in range(2)
    ] == [b"one"] * 2
    with sqlite3.connect(tmp_path / "server.db") as db:
        db.execute("UPDATE answers SET at = '2020-01-01T00:00:00+00:00'")
    db.close()
    records.store_answer("default", "new", b"d", b"two", forced=False)
    assert records.find_answer("default", "old", b"other") is None
    assert records.find_answer("default", "new", b"d") == b"two"
    records.close()


def test_the_keys_of_requests_to_a_conversation_go_with_it(records: Records) -> None:
    for id in "ab":
        records.add(new(id), b"", "", b"", 10)
    stored = [records.find("default", id) for id in "ab"]
    for record in stored:
        records.store_answer("default", f"\n{record.number}\nkey", b"d", b"done")
    records.remove(stored[0])
    assert [
        records.find_answer("default", f"\n{record.number}\nkey", b"d") for record in stored
    ] == [
        None,
        b"done",
    ]


def test_a_server_waits_for_what_a_killed_one_has_left(tmp_path: Path) -> None:
    records = Records(tmp_path / "server.db", SEAL)
    with open(tmp_path / "server.db-host", "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        ended = threading.Timer(0.1, lock_file.close)
        ended.start()
        records.own()
        ended.join()
    records.close()


def test_a_need_that_this_server_does_not_know_is_refused(tmp_path: Path) -> None:
    form = form_of(Agent(ScriptedLLM(["Done."] * 3))).mapping
    requested = CreateRequest(agent=dict(form), id="boxed", sandbox="require")
    assert ConversationOptions.requested(requested).needs == ("sandbox",)
    with Serving(tmp_path) as server:
        path = server.make("c")
        other = server.make("d")
    with closing(sqlite3.connect(tmp_path / "store.db.server.db")) as db, db:
        text = json.dumps({"needs": ["sandbox", "of a later release"]})
        db.execute("UPDATE conversations SET options = ? WHERE id = 'c'", (text.encode(),))
    with Serving(tmp_path) as server:
        refused = server.ask("POST", f"{path}/messages", {"text": "Go."})
        assert (refused.status // 100, refused.error) == (4, "ConfigurationError"), refused
        assert "does not know what the conversation needs: of a later release" in str(refused.json)
        assert server.ask("POST", f"{other}/messages", {"text": "Go."}).status == 202
        assert server.ask("DELETE", path).status == 204
