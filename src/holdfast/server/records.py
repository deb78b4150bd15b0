"""The server's own data about conversations, in an SQLite file beside the store.

It holds the facts that journals do not: each conversation's tenant, its agent's form and tool
declarations (stored once for all conversations that share them), its sealed secrets, its
workspace, if it is driven, the answers given under idempotency keys, and the hashes of the
server's keys.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.errors import ConfigurationError, Conflict, ConversationNotFound, StoreError, TooMany
from holdfast.server.sealing import Seal

FORMAT = 1  # PRAGMA user_version; a file of a higher one was written by a newer Holdfast
APPLICATION = 0x486F6C53  # PRAGMA application_id: "HolS"

# A killed server may hold the lock for this long through a child process that it was starting.
_LOCK_GRACE_SECONDS = 1.0

KEY_LIFETIME = timedelta(days=7)  # idempotency keys are remembered for this long
PRUNE_SECONDS = 600.0  # the period in which older keys are deleted

# AUTOINCREMENT, because a listing's cursor is a number, which must not be reused.
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE parts (hash BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE conversations (number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL,
    id TEXT NOT NULL, state TEXT NOT NULL, driven INTEGER NOT NULL, workspace TEXT NOT NULL,
    own_workspace INTEGER NOT NULL, agent BLOB NOT NULL, tools BLOB NOT NULL,
    options BLOB NOT NULL, secrets BLOB, created TEXT NOT NULL, UNIQUE(tenant, id));
CREATE INDEX conversations_by_tenant ON conversations(tenant, number);
CREATE INDEX conversations_driven ON conversations(driven) WHERE driven > 0;
CREATE INDEX conversations_half ON conversations(state) WHERE state <> '';
CREATE INDEX conversations_agent ON conversations(agent);
CREATE INDEX conversations_tools ON conversations(tools);
CREATE INDEX conversations_workspace ON conversations(tenant, workspace) WHERE workspace <> '';
CREATE TABLE answers (tenant TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
    answer BLOB NOT NULL, at TEXT NOT NULL, PRIMARY KEY(tenant, key)) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers(at);
CREATE TABLE keys (hash TEXT PRIMARY KEY, tenant TEXT NOT NULL, label TEXT NOT NULL,
    created TEXT NOT NULL);
"""

_PART = "a part of conversations"  # binds the seals of parts, which several conversations share

_SELECT = (
    "SELECT number, tenant, id, state, driven, workspace, own_workspace, agent, tools, options,"
    " secrets, created FROM conversations WHERE"
)

# "": complete. "making": a fork whose journal may not exist yet. "going": a conversation being
# removed, whose journal may be gone already.
State = Literal["", "making", "going"]
IDLE, RUN, HOSTED = 0, 1, 2  # values of `driven`: not driven; until it rests; permanently


class ConversationOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Further settings with which a conversation was created."""

    modules: dict[str, str] = {}
    client_tools: bool = True
    questions: bool = False
    deltas: bool = False


class ConversationRecord(msgspec.Struct, frozen=True):
    """One conversation's row. `agent` and `tools` are the hashes of stored parts; `secrets` is
    sealed."""

    number: int
    tenant: str
    id: str
    state: State
    driven: int
    workspace: str
    own_workspace: bool
    agent: bytes
    tools: bytes
    options: ConversationOptions
    secrets: bytes | None
    created: datetime

    @property
    def store_id(self) -> str:
        return store_id(self.tenant, self.id)

    def __repr__(self) -> str:
        return f"Record({self.store_id!r})"


class NewRecord(msgspec.Struct, frozen=True):
    """A conversation to be created. `agent` and `tools` are the parts to store."""

    tenant: str
    id: str
    agent: bytes
    tools: bytes
    options: ConversationOptions
    secrets: bytes | None
    workspace: str = ""
    own_workspace: bool = False
    state: State = ""
    created: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))

    def __repr__(self) -> str:
        return f"New({self.tenant!r}, {self.id!r})"


DEFAULT = "default"  # the tenant whose store ids have no prefix


def store_id(tenant: str, id: str) -> str:
    """Return a conversation's id in the store. Ids that clients give contain no `/`."""
    return id if tenant == DEFAULT else f"{tenant}/{id}"


def place_of(store_id: str) -> tuple[str, str]:
    """Return the tenant and the client's id of an id in the store."""
    tenant, _, id = store_id.rpartition("/")
    return tenant or DEFAULT, id


def tenant_of(store_id: str) -> str:
    return place_of(store_id)[0]


def not_found(id: str) -> ConversationNotFound:
    """Return the error for an unknown id. Conversations of other tenants give the same error."""
    return ConversationNotFound(f"No conversation {id!r} on this server.")


class SameFile:
    """The file that was first seen at `path`. Writes are lost once it was removed or replaced."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._file = self._look()

    def check(self) -> None:
        """Raise `StoreError` if the file was removed or replaced."""
        found = self._look()
        self._file = self._file or found
        if found != self._file:
            raise StoreError(
                f"{self._what} {str(self._path)!r} was removed or replaced by another file while"
                " the server ran. Stop it, put the file back, and start it again."
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"{self._what} {str(self._path)!r} cannot be found: {error.strerror}."
            raise StoreError(message) from error
        return found.st_dev, found.st_ino


class Records:
    """The records file at `path`. Thread-safe.

    Raises `StoreError` if the file cannot be used, `ConfigurationError` if the seal's key is not
    the one with which the file was created.
    """

    def __init__(self, path: Path | str, seal: Seal) -> None:
        self.path = Path(path)
        self.seal = seal
        self._lock = threading.Lock()
        self._closed = False
        self._pruned = 0.0
        self._file: SameFile | None = None
        self._owned: int | None = None
        with self._translated():
            self._db = sqlite3.connect(
                self.path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        with self._translated():
            self._db.execute("PRAGMA journal_mode = WAL")
            self._file = SameFile(self.path, "The records file")  # the pragma has created it
            # A conversation whose record is lost is lost to its client, even if its journal exists.
            self._db.execute("PRAGMA synchronous = FULL")
        with self.writing() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (application,) = db.execute("PRAGMA application_id").fetchone()
            empty = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
            if application != APPLICATION and not (application == 0 and empty):
                raise StoreError(
                    f"{str(self.path)!r} is an SQLite file, but not the records of a Holdfast"
                    " server."
                )
            if version > FORMAT:
                raise StoreError(
                    f"Records {str(self.path)!r} were written by a newer Holdfast (format"
                    f" {version}, this one reads {FORMAT})."
                )
            if empty:
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("INSERT INTO facts VALUES ('proof', ?)", (self.seal.proof(),))
            else:
                (proof,) = db.execute("SELECT value FROM facts WHERE name = 'proof'").fetchone()
                self.seal.check(bytes(proof))
            self._prune(db)

    def _prune(self, db: sqlite3.Connection) -> None:
        """Delete old idempotency keys, at most once per period."""
        if time.monotonic() >= self._pruned:
            oldest = datetime.now(UTC) - KEY_LIFETIME
            db.execute("DELETE FROM answers WHERE at < ?", (oldest.isoformat(),))
            self._pruned = time.monotonic() + PRUNE_SECONDS

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Yield the database, also for modules with tables of their own in it. Raises
        `StoreError`."""
        with self._lock:
            if self._closed:
                raise StoreError(f"Records {str(self.path)!r} are closed.")
            if self._file is not None:
                self._file.check()
            with self._translated():
                yield self._db

    @contextmanager
    def writing(self, forced: bool = True) -> Generator[sqlite3.Connection]:
        """Yield the database within one transaction. Without `forced` it is not synced to the disk:
        it survives the end of the process, but a power loss only once a later forced one was
        written."""
        with self.reading() as db:
            if not forced:
                db.execute("PRAGMA synchronous = NORMAL")
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                if not forced:
                    db.execute("PRAGMA synchronous = FULL")

    def row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        with self.reading() as db:
            return db.execute(query, values).fetchone()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.reading() as db:
            return db.execute(query, values).fetchall()

    def run(self, statement: str, *values: object, forced: bool = True) -> int:
        """Execute one statement in a transaction. Return the number of changed rows."""
        with self.writing(forced) as db:
            return db.execute(statement, values).rowcount

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"Records {str(self.path)!r} cannot be used: {error}.") from error

    def check(self) -> None:
        """Raise `StoreError` if the records cannot be used."""
        with self.reading():
            pass

    def own(self) -> None:
        """Lock the records for this server until `close`. Raises `StoreError` if another
        process, or another host in this process, holds the lock."""
        import fcntl

        path = Path(f"{self.path}-host")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _LOCK_GRACE_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    os.close(fd)
                    raise StoreError(
                        f"Another server uses the records {str(self.path)!r}. Stop that server, or"
                        " start this one with another store."
                    ) from error
                time.sleep(0.02)
        self._owned = fd

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()
                if self._owned is not None:
                    os.close(self._owned)

    def __repr__(self) -> str:
        return f"Records({str(self.path)!r})"

    # --- conversations ---

    def find_answer(self, tenant: str, key: str, digest: bytes) -> bytes | None:
        """Return the answer given under an idempotency key, or None. Raises `Conflict` if the
        key was used for another request."""
        if not key:
            return None
        if len(key.rpartition("\n")[2]) > 500:
            raise ConfigurationError("An idempotency key takes at most 500 characters.")
        with self.reading() as db:
            return _answered(db, tenant, key, digest)

    def store_answer(
        self, tenant: str, key: str, digest: bytes, answer: bytes, forced: bool = True
    ) -> bytes:
        """Store an answer under an idempotency key. Return the valid answer, which is an earlier
        one if there is one. Raises `Conflict` like `find_answer`."""
        with self.writing(forced) as db:
            found = _answered(db, tenant, key, digest)
            if found is None:
                self._prune(db)
                _answer(db, tenant, key, digest, answer)
            return answer if found is None else found

    def replace_answer(self, tenant: str, key: str, answer: bytes) -> None:
        statement = "UPDATE answers SET answer = ? WHERE tenant = ? AND key = ?"
        self.run(statement, answer, tenant, key, forced=False)

    def add(self, new: NewRecord, answer: bytes, key: str, digest: bytes, most: int) -> bytes:
        """Add a conversation and the answer under the key in one transaction. Return the valid
        answer, which may be an earlier one under the key. Raises `Conflict` if the id is taken or
        the key was used for another request, and `TooMany` beyond `most` conversations of the
        tenant."""
        with self.writing() as db:
            if key and (found := _answered(db, new.tenant, key, digest)) is not None:
                return found
            query = "SELECT state, number FROM conversations WHERE tenant = ? AND id = ?"
            taken = db.execute(query, (new.tenant, new.id)).fetchone()
            if taken is not None:
                if taken[0] != "making":
                    raise Conflict(f"Conversation {new.id!r} already exists. Use another id.")
                # A fork that was interrupted before its answer, so no client knows of it.
                _remove(db, taken[1])
            query = "SELECT count(*) FROM conversations WHERE tenant = ?"
            count = db.execute(query, (new.tenant,)).fetchone()[0]
            if count >= most:
                raise TooMany(
                    f"Tenant {new.tenant!r} has {count:,} conversations, which is this server's"
                    " limit.",
                    "conversations",
                )
            row = {
                **msgspec.structs.asdict(new),
                "driven": IDLE,
                "own_workspace": int(new.own_workspace),
                "agent": self._keep(db, new.agent),
                "tools": self._keep(db, new.tools),
                "options": msgspec.json.encode(new.options),
                "created": new.created.isoformat(),
            }
            names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
            db.execute(f"INSERT INTO conversations ({names}) VALUES ({marks})", row)
            if key and not new.state:
                self._prune(db)
                _answer(db, new.tenant, key, digest, answer)
            return answer

    def mark_complete(self, tenant: str, id: str, answer: bytes, key: str, digest: bytes) -> None:
        """Mark a conversation that was `making` as complete, because its journal exists now."""
        with self.writing() as db:
            where = "tenant = ? AND id = ? AND state = 'making'"
            db.execute(f"UPDATE conversations SET state = '' WHERE {where}", (tenant, id))
            if key:
                _answer(db, tenant, key, digest, answer)

    def find(self, tenant: str, id: str) -> ConversationRecord:
        """Return a tenant's conversation. Raises `ConversationNotFound`."""
        query = f"{_SELECT} tenant = ? AND id = ? AND state = ''"
        row = self.row(query, tenant, id)
        if row is None:
            raise not_found(id)
        return _record(row)

    def recorded(self, store_id: str) -> bool:
        """Return True if a client created the conversation with this store id."""
        query = "SELECT 1 FROM conversations WHERE tenant = ? AND id = ?"
        return self.row(query, *place_of(store_id)) is not None

    def load(self, record: ConversationRecord) -> tuple[ConversationRecord, bytes, bytes]:
        """Return a conversation's present record, its agent's form and its tool declarations.
        Raises `ConversationNotFound` if it was deleted."""
        query = f"{_SELECT} number = ? AND state <> 'going'"
        with self.reading() as db:  # reads all three under one lock
            row = db.execute(query, (record.number,)).fetchone()
            if row is None:
                raise not_found(record.id)
            found = _record(row)
            return found, self._part(db, found.agent), self._part(db, found.tools)

    def part(self, hash: bytes) -> bytes:
        with self.reading() as db:
            return self._part(db, hash)

    def _part(self, db: sqlite3.Connection, hash: bytes) -> bytes:
        row = db.execute("SELECT data FROM parts WHERE hash = ?", (hash,)).fetchone()
        if row is None:
            raise StoreError(f"Records {str(self.path)!r}: a part of a conversation is missing.")
        return self.seal.open(bytes(row[0]), _PART)

    def _keep(self, db: sqlite3.Connection, data: bytes) -> bytes:
        """Store a part, sealed as a whole, and return its hash. A client may have put a key into
        its agent's form instead of a variable's name."""
        hash = self.seal.digest(data)
        if db.execute("SELECT 1 FROM parts WHERE hash = ?", (hash,)).fetchone() is None:
            db.execute("INSERT INTO parts VALUES (?, ?)", (hash, self.seal.seal(data, _PART)))
        return hash

    def page(
        self, tenant: str, before: int | None, limit: int, ids: Sequence[str] | None = None
    ) -> list[tuple[int, str, str, int, str]]:
        """Return a tenant's conversations, newest first, optionally only those in `ids`."""
        query = (
            "SELECT number, id, workspace, driven, created FROM conversations WHERE tenant = ? AND"
            " number < ? AND state = ''"
        )
        values: list[object] = [tenant, (1 << 62) if before is None else before]
        if ids is not None:
            query += " AND id IN (SELECT value FROM json_each(?))"
            values.append(msgspec.json.encode(ids).decode())
        found: Any = self.rows(query + " ORDER BY number DESC LIMIT ?", *values, limit)
        return found

    def ids(self, tenant: str) -> list[str]:
        """Return the ids of all of a tenant's conversations, including those being created or
        removed. An index answers this query in a tenth of the time that reading the rows takes."""
        return [id for (id,) in self.rows("SELECT id FROM conversations WHERE tenant = ?", tenant)]

    def driven(self) -> list[tuple[str, str]]:
        """Return tenant and id of all driven conversations, oldest first."""
        query = "SELECT tenant, id FROM conversations WHERE driven > 0 AND state = ''"
        return [(tenant, id) for tenant, id in self.rows(f"{query} ORDER BY number")]

    def set_driven(self, record: ConversationRecord, driven: int) -> ConversationRecord:
        self.run("UPDATE conversations SET driven = ? WHERE number = ?", driven, record.number)
        return msgspec.structs.replace(record, driven=driven)

    def set_tools(
        self, record: ConversationRecord, agent: bytes, tools: bytes, options: ConversationOptions
    ) -> ConversationRecord:
        with self.writing() as db:
            hashes = self._keep(db, agent), self._keep(db, tools)
            statement = "UPDATE conversations SET agent = ?, tools = ?, options = ?"
            row = *hashes, msgspec.json.encode(options), record.number
            db.execute(f"{statement} WHERE number = ?", row)
            _sweep(db, record.agent, record.tools)
        return msgspec.structs.replace(record, agent=hashes[0], tools=hashes[1], options=options)

    def set_secrets(self, record: ConversationRecord, sealed: bytes) -> ConversationRecord:
        """Replace the sealed secrets."""
        self.run("UPDATE conversations SET secrets = ? WHERE number = ?", sealed, record.number)
        return msgspec.structs.replace(record, secrets=sealed)

    def set_state(self, record: ConversationRecord, state: State) -> None:
        """Set a state. A conversation that is `going` is not found, but its id is not free yet."""
        self.run("UPDATE conversations SET state = ? WHERE number = ?", state, record.number)

    def remove(self, record: ConversationRecord) -> None:
        with self.writing() as db:
            _remove(db, record.number)
            # The range of the idempotency keys of requests to this conversation.
            keys = record.tenant, f"\n{record.number}\n", f"\n{record.number}\x0b"
            db.execute("DELETE FROM answers WHERE tenant = ? AND key >= ? AND key < ?", keys)
            _sweep(db, record.agent, record.tools)

    def interrupted(self) -> list[ConversationRecord]:
        """Return the conversations whose creation or removal was interrupted."""
        found = self.rows(f"{_SELECT} state <> ''")
        return [_record(row) for row in found]

    def users_of(self, tenant: str, workspace: str) -> int:
        query = (
            "SELECT count(*) FROM conversations WHERE tenant = ? AND workspace = ? AND workspace <>"
            " '' AND state <> 'going'"
        )
        return self.rows(query, tenant, workspace)[0][0]

    def counts(self) -> dict[str, int]:
        return dict(self.rows("SELECT tenant, count(*) FROM conversations GROUP BY tenant"))


def _record(row: tuple[Any, ...]) -> ConversationRecord:
    number, tenant, id, state, driven, workspace, own, agent, tools, options, secrets, created = row
    settings = msgspec.json.decode(options, type=ConversationOptions)
    when = datetime.fromisoformat(created)
    place = number, tenant, id, state, driven, workspace
    return ConversationRecord(*place, bool(own), agent, tools, settings, secrets, when)


def _answered(db: sqlite3.Connection, tenant: str, key: str, digest: bytes) -> bytes | None:
    query = "SELECT digest, answer FROM answers WHERE tenant = ? AND key = ?"
    row = db.execute(query, (tenant, key)).fetchone()
    if row is None:
        return None
    if bytes(row[0]) != digest:
        client_key = key.rpartition("\n")[2]
        raise Conflict(
            f"The idempotency key {client_key[:80]!r} was used for another request; use a new one"
            " for each."
        )
    return bytes(row[1])


def _answer(db: sqlite3.Connection, tenant: str, key: str, digest: bytes, answer: bytes) -> None:
    row = tenant, key, digest, answer, datetime.now(UTC).isoformat()
    db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", row)


def _remove(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM conversations WHERE number = ?", (number,))


def _sweep(db: sqlite3.Connection, *hashes: bytes) -> None:
    """Delete parts that no conversation uses any more."""
    used = "SELECT 1 FROM conversations WHERE"  # two queries, as each column has an index
    for hash in hashes:
        db.execute(
            f"DELETE FROM parts WHERE hash = :hash AND NOT EXISTS ({used} agent = :hash)"
            f" AND NOT EXISTS ({used} tools = :hash)",
            {"hash": hash},
        )
