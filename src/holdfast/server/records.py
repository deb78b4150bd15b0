"""The server's own data about conversations, in a database beside the journals.

The records hold facts that are not in journals:

- of each conversation its tenant, its sealed secrets, its workspace, and whether it is driven;
- its agent's form and tool declarations, stored once for all conversations that share them;
- the answers given under idempotency keys;
- the hashes of the server's keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.errors import ConfigurationError, Conflict, ConversationNotFound, StoreError, TooMany
from holdfast.server.database import Database, SQLiteDatabase, Statements
from holdfast.server.sealing import Seal
from holdfast.server.shapes import CreateRequest, Sandbox

FORMAT = 1  # records of a higher one were written by a newer Holdfast
# Transactions with these names come one after the other, also on different servers.
TABLES, CONVERSATIONS = "tables", "conversations"

_MAKING = timedelta(minutes=10)  # the longest time in which another server makes a fork
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

_SANDBOX = "sandbox"
_KNOWN_NEEDS = (_SANDBOX,)

_PART = "a part of conversations"  # binds the seals of parts, which several conversations share

_COLUMNS = (
    "number, tenant, id, state, driven, workspace, own_workspace, agent, tools, options, secrets,"
    " created"
)
_SELECT = f"SELECT {_COLUMNS} FROM conversations WHERE"

# "": complete. "making": a fork whose journal may not exist yet. "going": a conversation being
# removed, whose journal may be gone already.
State = Literal["", "making", "going"]
IDLE, RUN, HOSTED = 0, 1, 2  # values of `driven`: not driven; until it rests; permanently
# Added to `driven` in the table until the server that drives the conversation has applied a
# change of the record by another server.
_WANTED = 4


class ConversationOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Further settings with which a conversation was created.

    `needs` names what a server must be able to do to drive the conversation. A server ignores a
    setting that it does not know, and refuses a need that it does not know.
    """

    modules: dict[str, str] = {}
    client_tools: bool = True
    questions: bool = False
    deltas: bool = False
    undo: bool = False
    child_questions: bool = False
    sandbox: Sandbox = ""
    needs: tuple[str, ...] = ()

    @classmethod
    def requested(cls, request: CreateRequest) -> ConversationOptions:
        """Return the settings of a request."""
        return cls(
            request.tool_module_qualnames,
            request.client_tools,
            request.questions,
            request.deltas,
            request.undo,
            request.child_questions,
            request.sandbox,
            (_SANDBOX,) if request.sandbox == "require" else (),
        )

    def check_needs(self, id: str) -> None:
        """Raise `ConfigurationError` if this server does not know a need of the conversation."""
        if unknown := [need for need in self.needs if need not in _KNOWN_NEEDS]:
            raise ConfigurationError(
                f"Conversation {id!r} cannot be driven by this server, which does not know what the"
                f" conversation needs: {', '.join(unknown)}. A newer Holdfast created it; drive it"
                " with that."
            )

    @property
    def boxed(self) -> bool:
        """True if the conversation has a sandbox even on a server whose others have none."""
        return self.sandbox == "require"


class ConversationRecord(msgspec.Struct, frozen=True):
    """One conversation's row. `agent` and `tools` are the hashes of stored parts; `secrets` is
    sealed. `is_wanted` is True until the server that drives the conversation has applied a change
    by another server."""

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
    is_wanted: bool = False

    @property
    def store_id(self) -> str:
        return store_id(self.tenant, self.id)

    def __repr__(self) -> str:
        return f"Record({self.store_id!r})"


class NewRecord(msgspec.Struct, frozen=True):
    """A conversation to be created. `agent` and `tools` are the parts to store; it is `driven` from
    the beginning if a run follows at once."""

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
    driven: int = 0

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


class Records:
    """The records in a database, or in the SQLite file at a path. Thread-safe.

    Raises `StoreError` if the database cannot be used, `ConfigurationError` if the seal's key is
    not the one with which the records were created.
    """

    def __init__(self, place: Database | Path | str, seal: Seal) -> None:
        database = SQLiteDatabase(place) if isinstance(place, str | Path) else place
        self._database = database
        self.seal = seal
        self._pruned = 0.0
        self.writing = database.writing
        self.reading, self.check = database.reading, database.check
        self.own, self.close = database.own, database.close
        try:
            with self.writing(lock=TABLES) as db:
                if database.prepare(db, _TABLES, FORMAT):
                    db.execute("INSERT INTO facts VALUES ('proof', ?)", (seal.proof(),))
                else:
                    (proof,) = db.execute("SELECT value FROM facts WHERE name = 'proof'").fetchone()
                    seal.check(bytes(proof))
                self._prune(db)
        except BaseException:
            database.close()
            raise

    @property
    def shared(self) -> bool:
        """True if several servers use the records at the same time."""
        return self._database.shared

    def _prune(self, db: Statements) -> None:
        """Delete old idempotency keys, at most once per period."""
        if time.monotonic() >= self._pruned:
            oldest = datetime.now(UTC) - KEY_LIFETIME
            db.execute("DELETE FROM answers WHERE at < ?", (oldest.isoformat(),))
            self._pruned = time.monotonic() + PRUNE_SECONDS

    def create_tables(self, tables: str) -> None:
        """Create the tables of another module beside the records' own, unless they exist."""
        with self.writing(lock=TABLES) as db:
            for statement in filter(str.strip, tables.split(";")):
                db.execute(statement)

    def fact(self, name: str, value: bytes) -> bytes:
        """Return a stored fact about the servers, which is `value` if there was none."""
        self.run("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO NOTHING", name, value)
        [(data,)] = self.rows("SELECT value FROM facts WHERE name = ?", name)
        return bytes(data)

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

    def __repr__(self) -> str:
        return f"Records({self._database!r})"

    # --- conversations ---

    def find_answer(self, tenant: str, key: str, digest: bytes) -> bytes | None:
        """Return the answer given under an idempotency key, or None. Raises `Conflict` if the
        key was used for another request."""
        if not key:
            return None
        if len(key.rpartition("\n")[2]) > 500:
            raise ConfigurationError("An idempotency key takes at most 500 characters.")
        with self.reading() as db:
            return _earlier_answer(db, tenant, key, digest)

    def store_answer(
        self, tenant: str, key: str, digest: bytes, answer: bytes, forced: bool = True
    ) -> bytes:
        """Store an answer under an idempotency key. Return the valid answer, which is an earlier
        one if there is one. Raises `Conflict` like `find_answer`."""
        with self.writing(forced) as db:
            earlier = _earlier_answer(db, tenant, key, digest)
            if earlier is None:
                self._prune(db)
                if not _answer(db, tenant, key, digest, answer):  # another server was first
                    earlier = _earlier_answer(db, tenant, key, digest)
            return answer if earlier is None else earlier

    def replace_answer(self, tenant: str, key: str, answer: bytes) -> None:
        statement = "UPDATE answers SET answer = ? WHERE tenant = ? AND key = ?"
        self.run(statement, answer, tenant, key, forced=False)

    def add(
        self,
        new: NewRecord,
        answer: bytes,
        key: str,
        digest: bytes,
        most: int,
        also: Callable[[Statements], object] | None = None,
    ) -> bytes:
        """Add a conversation, the answer under the key, and what `also` writes, in one transaction.
        Return the valid answer, which may be an earlier one under the key. Raises `Conflict` if
        the id is taken or the key was used for another request, and `TooMany` beyond `most`
        conversations of the tenant."""
        with self.writing(lock=CONVERSATIONS) as db:
            if key and (earlier := _earlier_answer(db, new.tenant, key, digest)) is not None:
                return earlier
            query = "SELECT state, number, created FROM conversations WHERE tenant = ? AND id = ?"
            existing = db.execute(query, (new.tenant, new.id)).fetchone()
            if existing is not None:
                # A fork that was interrupted before its answer, so no client knows of it.
                if existing[0] != "making" or not self._is_abandoned(existing[2]):
                    raise Conflict(f"Conversation {new.id!r} already exists. Use another id.")
                _remove(db, existing[1])
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
                "own_workspace": int(new.own_workspace),
                "agent": self._keep(db, new.agent),
                "tools": self._keep(db, new.tools),
                "options": msgspec.json.encode(new.options),
                "created": new.created.isoformat(),
            }
            names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
            db.execute(f"INSERT INTO conversations ({names}) VALUES ({marks})", row)
            if also is not None:
                also(db)
            if key and not new.state:
                self._prune(db)
                _answer(db, new.tenant, key, digest, answer)
            return answer

    def _is_abandoned(self, created: str) -> bool:
        """Return True if a conversation with the state `making` is no longer being made."""
        old = datetime.now(UTC) - datetime.fromisoformat(created) > _MAKING
        return old or not self.shared

    def mark_complete(self, tenant: str, id: str, answer: bytes, key: str, digest: bytes) -> bytes:
        """Mark a conversation that was `making` as complete, because its journal exists now, unless
        the key has another answer. Return the valid answer."""
        with self.writing(lock=CONVERSATIONS) as db:
            if key and (earlier := _earlier_answer(db, tenant, key, digest)) is not None:
                return earlier
            where = "tenant = ? AND id = ? AND state = 'making'"
            db.execute(f"UPDATE conversations SET state = '' WHERE {where}", (tenant, id))
            if key:
                _answer(db, tenant, key, digest, answer)
            return answer

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
        part = "(SELECT data FROM parts WHERE hash = "
        columns = f"{_COLUMNS}, {part}agent), {part}tools)"  # one statement sees one state
        query = f"SELECT {columns} FROM conversations WHERE number = ? AND state <> 'going'"
        row = self.row(query, record.number)
        if row is None:
            raise not_found(record.id)
        return _record(row[:-2]), self._unseal(row[-2]), self._unseal(row[-1])

    def part(self, hash: bytes) -> bytes:
        row = self.row("SELECT data FROM parts WHERE hash = ?", hash)
        return self._unseal(None if row is None else row[0])

    def _unseal(self, part: bytes | None) -> bytes:
        if part is None:
            raise StoreError(f"{self._database!r}: a part of a conversation is missing.")
        return self.seal.open(bytes(part), _PART)

    def _keep(self, db: Statements, data: bytes) -> bytes:
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
        rows: Any = self.rows(query + " ORDER BY number DESC LIMIT ?", *values, limit)
        return rows

    def ids(self, tenant: str) -> list[str]:
        """Return the ids of all of a tenant's conversations, including those being created or
        removed. An index answers this query in a tenth of the time that reading the rows takes."""
        return [id for (id,) in self.rows("SELECT id FROM conversations WHERE tenant = ?", tenant)]

    def driven(self) -> list[tuple[str, str]]:
        """Return tenant and id of all driven conversations, oldest first."""
        query = "SELECT tenant, id FROM conversations WHERE driven > 0 AND state = ''"
        return [(tenant, id) for tenant, id in self.rows(f"{query} ORDER BY number")]

    def run_until_rest(self, records: Sequence[ConversationRecord]) -> None:
        """Note of those conversations that are not driven that they run until they rest, in one
        transaction."""
        if numbers := ", ".join([str(record.number) for record in records]):
            query = (
                f"UPDATE conversations SET driven = ? WHERE driven = 0 AND number IN ({numbers})"
            )
            self.run(query, RUN)

    def set_driven(
        self, record: ConversationRecord, driven: int, forced: bool = True
    ) -> ConversationRecord:
        statement = f"UPDATE conversations SET driven = ? | (driven & {_WANTED}) WHERE number = ?"
        self.run(statement, driven, record.number, forced=forced)
        return msgspec.structs.replace(record, driven=driven)

    def end_run(self, record: ConversationRecord) -> ConversationRecord:
        """Record that a run has ended, unless another server has asked for another one. The record
        is not synced to the disk, because the journal says the same."""
        statement = "UPDATE conversations SET driven = ? WHERE number = ? AND driven = ?"
        self.run(statement, IDLE, record.number, RUN, forced=False)
        return msgspec.structs.replace(record, driven=IDLE)

    def want(self, record: ConversationRecord, driven: int) -> None:
        """Set how the conversation is to be driven, for the server that has it open."""
        statement = "UPDATE conversations SET driven = ? WHERE number = ?"
        self.run(statement, driven | _WANTED, record.number)

    def confirm_change(self, record: ConversationRecord) -> None:
        """Record that this server has applied a record's change, unless there is a newer one."""
        statement = "UPDATE conversations SET driven = ? WHERE number = ? AND driven = ?"
        self.run(statement, record.driven, record.number, record.driven | _WANTED)

    def pending_changes(self) -> list[tuple[str, str]]:
        """Return tenant and id of the conversations with a record change that some server must
        apply, and of those being removed."""
        query = "SELECT tenant, id FROM conversations WHERE driven >= ? OR state = 'going'"
        return [(tenant, id) for tenant, id in self.rows(query, _WANTED)]

    def set_agent(
        self,
        record: ConversationRecord,
        agent: bytes,
        tools: bytes,
        options: ConversationOptions,
        secrets: bytes | None,
    ) -> ConversationRecord:
        """Replace the agent with its tools, and the sealed secrets."""
        with self.writing(lock=CONVERSATIONS) as db:
            hashes = self._keep(db, agent), self._keep(db, tools)
            statement = "UPDATE conversations SET agent = ?, tools = ?, options = ?, secrets = ?"
            row = *hashes, msgspec.json.encode(options), secrets, record.number
            db.execute(f"{statement} WHERE number = ?", row)
            _sweep(db, record.agent, record.tools)
        agent, tools = hashes
        changes = {"agent": agent, "tools": tools, "options": options, "secrets": secrets}
        return msgspec.structs.replace(record, **changes)

    def set_secrets(self, record: ConversationRecord, sealed: bytes) -> ConversationRecord:
        """Replace the sealed secrets."""
        self.run("UPDATE conversations SET secrets = ? WHERE number = ?", sealed, record.number)
        return msgspec.structs.replace(record, secrets=sealed)

    def set_state(self, record: ConversationRecord, state: State) -> None:
        """Set a state. A conversation that is `going` is not found, but its id is not free yet."""
        self.run("UPDATE conversations SET state = ? WHERE number = ?", state, record.number)

    def remove(self, record: ConversationRecord) -> None:
        with self.writing(lock=CONVERSATIONS) as db:
            _remove(db, record.number)
            # The range of the idempotency keys of requests to this conversation.
            keys = record.tenant, f"\n{record.number}\n", f"\n{record.number}\x0b"
            db.execute("DELETE FROM answers WHERE tenant = ? AND key >= ? AND key < ?", keys)
            _sweep(db, record.agent, record.tools)

    def interrupted(self, all: bool = False) -> list[ConversationRecord]:
        """Return the conversations whose creation or removal was interrupted; with `all` also
        conversations that another server may be making."""
        records = [_record(row) for row in self.rows(f"{_SELECT} state <> ''")]
        is_abandoned = self._is_abandoned
        return [
            one
            for one in records
            if all or one.state != "making" or is_abandoned(one.created.isoformat())
        ]

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
    place = number, tenant, id, state, driven & ~_WANTED, workspace
    is_wanted = bool(driven & _WANTED)
    return ConversationRecord(*place, bool(own), agent, tools, settings, secrets, when, is_wanted)


def _earlier_answer(db: Statements, tenant: str, key: str, digest: bytes) -> bytes | None:
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


def _answer(db: Statements, tenant: str, key: str, digest: bytes, answer: bytes) -> bool:
    """Store an answer, and return True, unless the key has one."""
    row = tenant, key, digest, answer, datetime.now(UTC).isoformat()
    statement = "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    return db.execute(statement, row).rowcount > 0


def _remove(db: Statements, number: int) -> None:
    db.execute("DELETE FROM conversations WHERE number = ?", (number,))


def _sweep(db: Statements, *hashes: bytes) -> None:
    """Delete parts that no conversation uses any more."""
    used = "SELECT 1 FROM conversations WHERE"  # two queries, as each column has an index
    for hash in hashes:
        db.execute(
            f"DELETE FROM parts WHERE hash = :hash AND NOT EXISTS ({used} agent = :hash)"
            f" AND NOT EXISTS ({used} tools = :hash)",
            {"hash": hash},
        )
