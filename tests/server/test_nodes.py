"""Tests of several servers before one Postgres database: each request may go to any of them."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")
pytest.importorskip("psycopg", reason="the postgres extra is not installed")

from holdfast import LLM, Agent, LocalRuntime, SQLiteStore, Tool
from holdfast.commands import Approve, Pause, Send
from holdfast.errors import ConfigurationError, Conflict, ConversationNotFound, NotPending
from holdfast.server import shapes
from holdfast.server.deliveries import Sending
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.keys import Keys
from holdfast.server.policy import Policy
from holdfast.server.postgres_database import PostgresDatabase
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.workspaces import check_shared
from holdfast.store import PostgresStore
from tests.agent_servers import Serving
from tests.model_server import ModelServer, Request, calls, text
from tests.postgres import PostgresServer
from tests.serve_process import ServeProcess
from tests.server.test_host import finished, request, saying, types
from tests.server_nodes import Nodes
from tests.waiting import until
from tests.webhook_receiver import Receiver

pytestmark = pytest.mark.slow

T = "default"
SEAL = Seal(b"0" * 32)
Start = Callable[..., Host]


@pytest.fixture
def start(tmp_path: Path, postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Start]:
    """Start a host of the same store."""
    (tmp_path / "rooms").mkdir()
    with ExitStack() as stack:

        def started(**options: Any) -> Host:
            records = Records(
                PostgresDatabase(postgres_server.dsn(), f"{postgres_schema}_server"), SEAL
            )
            store = PostgresStore(postgres_server.dsn(), schema=postgres_schema)
            root = tmp_path / "rooms"
            settings = HostSettings(policy=Policy([]), root=root, **options)
            host = Host(store, records, settings)
            stack.callback(host.shutdown)
            host.recover()
            return host

        yield started


@pytest.fixture
def both(start: Start) -> tuple[Host, Host]:
    return start(), start()


def busy(host: Host, id: str, folder: Path, *more: Any) -> None:
    """Start a conversation at a host; its command ends when the file `go` exists."""
    with LocalRuntime() as runtime:
        tools = [tool for tool in runtime.tools if tool.name == "terminal"]
    command = f"touch {folder}/begun; until [ -e {folder}/go ]; do sleep 0.02; done"
    script = ("terminal", {"command": command}), *more, "done"
    host.create(T, saying(*script, tools=tools, id=id))
    host.start(T, id)
    host.execute(T, id, Send("go"))
    until((folder / "begun").exists)


# --- creating and reading ---


def test_one_id_created_at_two_servers_at_once_is_created_once(both: tuple[Host, Host]) -> None:
    def create(host: Host, n: int) -> bool:
        try:
            host.create(T, saying("hi", id=f"c{n}"))
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        created = [pool.submit(create, host, n) for n in range(10) for host in both]
    assert sum(one.result() for one in created) == 10
    assert len(both[1].list(T).items) == 10


def test_one_key_creates_and_forks_once_wherever_it_is_repeated(both: tuple[Host, Host]) -> None:
    creation = saying("hi")
    with ThreadPoolExecutor(4) as pool:
        created = [pool.submit(host.create, T, creation, "k") for host in both * 2]
    [id] = {one.result().id for one in created}
    for host in both:
        host.execute(T, id, Send("hello"), "once")
    assert types(both[0], id) == ["message"]
    with ThreadPoolExecutor(4) as pool:
        forks = [pool.submit(host.fork, T, id, shapes.ForkRequest(), "f") for host in both * 2]
    [forked] = {one.result().id for one in forks}
    assert {item.id for item in both[0].list(T).items} == {id, forked}
    assert both[1].state(T, forked).id == forked


def test_a_server_leaves_the_fork_that_another_one_is_making(both: tuple[Host, Host]) -> None:
    making = both[0]._agents.new_record
    both[0].create(T, saying("hi", id="a"))
    record = both[0]._records.find(T, "a")
    parts = both[0]._agents.stored_parts(record)
    new = making("b", parts, both[0]._agents.build(parts, ""), "", False)
    both[0]._records.add(_record_of(new), b"", "", b"", 10)
    both[1]._lifecycle.finish_interrupted()
    assert [one.id for one in both[0]._records.interrupted(all=True)] == ["b"]
    with pytest.raises(Conflict):
        both[1].create(T, saying("hi", id="b"))


def _record_of(new: Any) -> Any:
    return msgspec.structs.replace(new, state="making")


def test_keys_made_at_one_server_are_valid_at_all(both: tuple[Host, Host]) -> None:
    keys = [Keys(host._records) for host in both]
    key = keys[0].create("acme")
    assert keys[1].tenant_of(key) == "acme"
    keys[1].revoke(keys[1].list()[0].id)
    assert keys[0].tenant_of(key) is None


# --- requests to a conversation that another server drives ---


def test_commands_reach_the_server_that_drives(both: tuple[Host, Host], tmp_path: Path) -> None:
    one, other = both
    busy(one, "a", tmp_path)
    began = time.monotonic()
    other.execute(T, "a", Send("more"), "key")
    other.execute(T, "a", Send("more"), "key")
    assert types(other, "a").count("message") == 2
    other.execute(T, "a", Pause())
    assert (one.status(T, "a"), other.status(T, "a")) == ("paused", "paused")
    with pytest.raises(NotPending, match="does not wait for a decision"):
        other.execute(T, "a", Approve("9.9", arguments_hash="x"), "refused")
    with pytest.raises(NotPending, match="does not wait for a decision"):
        one.execute(T, "a", Approve("9.9", arguments_hash="x"), "refused")
    assert time.monotonic() - began < 5, "the inbox was polled"
    (tmp_path / "go").touch()
    other.run(T, "a")
    finished(other, "a")


def test_a_run_asked_for_elsewhere_begins_although_another_server_has_it_open(
    both: tuple[Host, Host],
) -> None:
    one, other = both
    one.create(T, saying("one", "two", "three", id="a"))
    for n, (sender, runner) in enumerate([(one, other), (other, one), (one, one)]):
        sender.execute(T, "a", Send(f"message {n}"))
        assert runner.run(T, "a") in ("running", "finished")
        until(lambda n=n: types(one, "a").count("assistant") == n + 1)
        finished(one, "a")
    until(lambda: not one._records.driven())


def test_a_started_conversation_answers_messages_from_any_server(both: tuple[Host, Host]) -> None:
    one, other = both
    one.create(T, saying("one", "two", "three", id="a"))
    one.execute(T, "a", Send("before"))  # this server has it open
    other.start(T, "a")
    for n, host in enumerate((one, other, one), 1):
        if n > 1:
            host.execute(T, "a", Send("again"))
        until(lambda n=n: types(one, "a").count("assistant") == n)
    assert one.get(T, "a").started


def test_a_close_elsewhere_stops_the_work_and_nobody_goes_on(
    both: tuple[Host, Host], tmp_path: Path
) -> None:
    one, other = both
    busy(one, "a", tmp_path)
    other.close(T, "a")
    until(lambda: not one.get(T, "a").busy)
    assert (other.get(T, "a").driven, other.status(T, "a")) == (False, "running")
    (tmp_path / "go").touch()
    before = types(one, "a")
    for host in both:
        host.tend()
    assert types(one, "a") == before
    other.start(T, "a")
    finished(other, "a")


def test_a_conversation_is_removed_although_another_server_drives_it(
    both: tuple[Host, Host], tmp_path: Path
) -> None:
    busy(both[0], "a", tmp_path)
    both[1].delete(T, "a")
    for host in both:
        with pytest.raises(ConversationNotFound):
            host.get(T, "a")
        assert host.list(T).items == []
    both[1].create(T, saying("new", id="a"))
    assert types(both[0], "a") == []


def test_a_conversation_is_rewound_and_named_by_a_server_that_does_not_have_it_open(
    both: tuple[Host, Host], tmp_path: Path
) -> None:
    one, other = both
    with LocalRuntime() as runtime:
        tools = [tool for tool in runtime.tools if tool.name == "terminal"]
    script = [("terminal", {"command": "echo two > notes.md"}), "done", "About notes"]
    one.create(T, saying(*script, tools=tools, id="a", undo=True))
    one.execute(T, "a", Send("go"))
    one.run(T, "a")
    finished(other, "a")
    assert one._scheduler.conversations.find("a") is not None
    [file] = tmp_path.rglob("notes.md")
    outcome = other.rewind(T, "a", shapes.RewindRequest(seq=1, id="back"), "k")
    assert outcome.files.changed == ("notes.md",)
    assert not file.exists()
    assert one.rewind(T, "a", shapes.RewindRequest(seq=1, id="back"), "k") == outcome
    assert one.write_title(T, "a") == "About notes"


def test_tools_and_secrets_set_elsewhere_are_those_of_the_next_step(
    both: tuple[Host, Host], tmp_path: Path
) -> None:
    one, other = both
    busy(one, "a", tmp_path)
    other.set_secrets(T, "a", shapes.SecretsRequest(secrets={"TOKEN": "xyzzy-planted"}))
    until(lambda: not one._records.find(T, "a").is_wanted)
    assert one.secret_names(T, "a").secrets.keys() == {"TOKEN"}
    live = one._scheduler.conversations.find("a")
    assert live is not None
    assert live.record.secrets == one._records.find(T, "a").secrets
    (tmp_path / "go").touch()
    finished(other, "a")


def test_a_server_that_drives_nothing_answers_for_the_others(start: Start) -> None:
    front = start(drives=False)
    front.create(T, saying("one", "two", id="a"))
    worker = start()
    front.start(T, "a")
    front.execute(T, "a", Send("hello"))
    finished(front, "a")
    assert front.stats()["open"] == 0
    assert worker.state(T, "a").answer == "one"


# --- streams ---


def test_a_stream_shows_what_another_server_appends(
    tmp_path: Path, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    with Nodes(tmp_path, postgres_server.dsn(), postgres_schema) as server:
        path = server.make("a", ["one", "two"])
        streams = [server.stream(path) for _ in server.nodes]
        server.ask("POST", f"{path}/start")
        server.ask("POST", f"{path}/messages", {"text": "hello"})
        names: list[str] = []
        for stream in streams:
            names = [event for _, event, _ in _until_rest(stream)]
            assert [one for one in names if one in ("message", "assistant")] == [
                "message",
                "assistant",
            ]
        other = [server.stream(path, after=len(names)) for _ in server.nodes]
        server.nodes[0].ask("POST", f"{path}/messages", {"text": "again"})
        for stream in other:
            assert "assistant" in [event for _, event, _ in _until_rest(stream)]
        server.nodes[1].ask("DELETE", path)
        for stream in other:
            assert list(stream) == []  # the stream ends


def _until_rest(stream: Any) -> Iterator[tuple[int | None, str, str]]:
    for id, event, data in stream:
        if event:
            yield id, event, data
        if event == "status" and '"finished"' in data:
            return


# --- a server dies ---


@pytest.fixture
def greeter() -> Iterator[ModelServer]:
    """Run a model that greets once, whichever server calls it."""

    def answer(request: Request) -> Any:
        last = request.messages[-1]["role"]
        return text("done") if last == "tool" else calls(("greet", {"name": "you"}))

    with ModelServer(answer) as server:
        yield server


@pytest.mark.slow
def test_a_clients_call_survives_the_death_of_its_server(
    tmp_path: Path,
    greeter: ModelServer,
    postgres_server: PostgresServer,
    postgres_schema: str,
) -> None:
    with ExitStack() as stack:
        doomed, other = _processes(stack, tmp_path, postgres_server, postgres_schema)
        agent = Agent(
            LLM("m", base_url=greeter.url),
            tools=[Tool.from_function(lambda name: "", name="greet")],
        )
        body = msgspec.to_builtins(request(agent, id="a"))
        assert doomed.ask("POST", "/api/conversations", body).status == 201
        path = "/api/conversations/a"
        assert doomed.ask("POST", f"{path}/start").status == 200
        assert doomed.ask("POST", f"{path}/messages", {"text": "go"}).status == 202

        def events() -> list[dict[str, Any]]:
            return other.ask("GET", f"{path}/events").json["events"]

        until(lambda: any(event["type"] == "assistant" for event in events()))
        call = f"{next(one['seq'] for one in events() if one['type'] == 'assistant')}.0"
        me = {"X_Holdfast_Client": "me"}
        claimed = other.ask("POST", f"{path}/calls/{call}/claim", **me)
        assert claimed.status == 200, claimed
        doomed.end(signal.SIGKILL)
        began = time.monotonic()
        result_body = {"result": {"content": [{"type": "text", "text": "hello you"}]}}
        returned = other.ask("POST", f"{path}/calls/{call}/result", result_body, **me)
        assert returned.status == 200, returned
        until(lambda: other.ask("GET", path).json["status"] == "finished")
        assert time.monotonic() - began < 15
        assert [one["type"] for one in events()].count("toolResult") == 1
        assert "postgresql://" not in other.output() + doomed.output()


@pytest.mark.slow
def test_a_server_alone_goes_on_with_what_a_dead_one_left_and_rings_its_timers(
    tmp_path: Path, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    prompts: list[str] = []

    def answer(request: Request) -> Any:
        prompts.append(request.messages[-1]["content"])
        if len(prompts) == 1:
            until(lambda: len(prompts) > 1, seconds=60)  # the server dies during this call
        return text("done")

    with ModelServer(answer) as model, ExitStack() as stack:
        doomed, other = _processes(stack, tmp_path, postgres_server, postgres_schema)
        other.end(signal.SIGKILL)
        for id in ("orphan", "sleeper"):
            body = msgspec.to_builtins(request(Agent(LLM("m", base_url=model.url)), id=id))
            assert doomed.ask("POST", "/api/conversations", body).status == 201
        due = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        timer = {"text": "wake up", "timer": "t", "at": due}
        reply = doomed.ask("POST", "/api/conversations/sleeper/timers", timer)
        assert reply.status == 200, reply
        assert doomed.ask("POST", "/api/conversations/orphan/start").status == 200
        posted = doomed.ask("POST", "/api/conversations/orphan/messages", {"text": "go"})
        assert posted.status == 202
        until(lambda: prompts == ["go"])
        doomed.end(signal.SIGKILL)
        other.start()
        for id in ("orphan", "sleeper"):
            path = f"/api/conversations/{id}"
            until(lambda path=path: other.ask("GET", path).json["status"] == "finished")
        assert sorted(prompts) == ["go", "go", "wake up"]


def _processes(
    stack: ExitStack, folder: Path, database: PostgresServer, schema: str
) -> list[ServeProcess]:
    processes: list[ServeProcess] = []
    dsn = database.dsn()
    for name in ("one", "other"):
        (folder / name).mkdir()
        seal = str(folder / "seal.key")
        process = ServeProcess(
            folder / name, "--seal-key", seal, "--schema", schema, env={"HOLDFAST_STORE": dsn}
        )
        process.store = None
        processes.append(stack.enter_context(process))
    return processes


# --- webhooks ---


def test_one_server_sends_the_messages_of_all_and_another_takes_over(
    tmp_path: Path, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    options: dict[str, Any] = {"sending": Sending(allow=("127.0.0.1",), first=0.02, longest=0.2)}
    with (
        Receiver() as receiver,
        Nodes(tmp_path, postgres_server.dsn(), postgres_schema, **options) as server,
    ):
        one, other = server.nodes
        assert one.ask("POST", "/api/webhooks", {"url": receiver.url}).status == 201
        for node, name in ((other, "a"), (one, "b")):
            _talk(node, name)
            receiver.until(lambda name=name: _complete(receiver, server, name))
        other.ask("POST", "/api/webhooks", {"url": f"{receiver.url}?second"})  # sends from now on
        _talk(one, "c")
        receiver.until(lambda: len(receiver.first("c")) >= 1 and _complete(receiver, server, "c"))
        assert [node.host.webhooks._leads for node in server.nodes].count(True) >= 1
        # An event whose answer was not recorded yet when the other server took over is sent again.
        for name in "ab":
            assert len(receiver.accepted(name)) <= len(receiver.first(name)) + 1, "sent twice"


def _talk(server: Serving, id: str) -> None:
    path = server.make(id, ["hello"])
    server.ask("POST", f"{path}/messages", {"text": "go"})
    server.ask("POST", f"{path}/run")
    until(lambda: server.ask("GET", path).json["status"] == "finished")


def _complete(receiver: Receiver, server: Serving, id: str) -> bool:
    last = server.ask("GET", f"/api/conversations/{id}").json["lastSeq"]
    return {delivery.seq for delivery in receiver.first(id)} == set(range(1, last + 1))


# --- folders and options ---


def test_a_folder_that_the_other_servers_do_not_use_is_refused(
    both: tuple[Host, Host], tmp_path: Path
) -> None:
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()
    check_shared(tmp_path / "shared", both[0]._records)
    check_shared(tmp_path / "shared", both[1]._records)
    with pytest.raises(ConfigurationError, match="not the one that the other servers"):
        check_shared(tmp_path / "own", both[1]._records)


def test_records_that_are_shared_need_a_store_that_is(
    tmp_path: Path, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    records = Records(PostgresDatabase(postgres_server.dsn(), postgres_schema), SEAL)
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        pytest.raises(ConfigurationError, match="PostgresStore"),
    ):
        Host(store, records, HostSettings(policy=Policy([])))
    records.close()


def test_servers_without_a_folder_refuse_agents_that_need_one(
    start: Start, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    records = Records(PostgresDatabase(postgres_server.dsn(), f"{postgres_schema}_server"), SEAL)
    store = PostgresStore(postgres_server.dsn(), schema=postgres_schema)
    with Host(store, records, HostSettings(policy=Policy([]))) as host, LocalRuntime() as runtime:
        with pytest.raises(ConfigurationError, match="--root"):
            host.create(T, saying("hi", tools=runtime.tools, id="a"))
        host.create(T, saying("hi", id="b"))
