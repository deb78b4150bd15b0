"""Tests of conversations in worker processes: each way in which a worker can die while others run
on, and no leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import LLM, Agent, LocalRuntime, Tool, ToolResult
from holdfast import events as ev
from holdfast.agent.serial_form import ToolForm, form_of
from holdfast.commands import Claim, Interrupt, Resume, Return, Send
from holdfast.error_forms import error_of_form
from holdfast.errors import ConfigurationError, Conflict, LeaseHeld, StoreError
from holdfast.server.host import Host
from holdfast.server.policy import Policy
from holdfast.server.shapes import CreateRequest, Info, ToolsRequest
from holdfast.server.workers import channel as ms
from holdfast.server.workers.worker_conversation import Patience, WorkerConversation
from tests.leftovers import Owned
from tests.model_server import ModelServer, Request, calls, text
from tests.paths import REPO
from tests.server.test_host import T, finished, request, types
from tests.server_host_program import host_of
from tests.waiting import until

MODULE = "isolated_parts"

TOOLS = '''
import ctypes, os, signal, subprocess, time
from holdfast import ToolAnnotations, ToolContext, tool

@tool
def fine(n: int = 0) -> str:
    return str(os.getpid())

@tool
def leave() -> str:
    os._exit(3)

@tool
def crash() -> str:
    ctypes.string_at(0)

@tool
def killed() -> str:
    os.kill(os.getpid(), signal.SIGKILL)

@tool
def spin() -> str:
    while True:
        pass

@tool
def hold() -> str:
    """Keeps the interpreter's lock."""
    ctypes.PyDLL(None).sleep(600)

@tool(timeout=0.3)
def late() -> str:
    while True:
        time.sleep(0.01)

@tool
def grow() -> str:
    return str(len(bytearray(8 << 30)))

@tool
def shut() -> str:
    os.closerange(3, 1000)
    time.sleep(600)

@tool
def babble() -> str:
    for fd in range(3, 100):
        try:
            os.write(fd, b"no message at all, and none that could be")
        except OSError:
            pass
    time.sleep(600)

@tool(annotations=ToolAnnotations(read_only=True))
def poison() -> str:
    os._exit(9)

@tool
def litter(context: ToolContext) -> str:
    import sys
    env = {"PATH": os.environ["PATH"], **context.process_environment()}
    for session in (True, False, True):
        child = subprocess.Popen(["sleep", "600"], env=env, start_new_session=session)
        env.pop("HOLDFAST_OWNER", None)
        with open(os.path.join(os.path.dirname(__file__), "litter"), "a") as file:
            print(child.pid, file=file)
    os._exit(4)
'''

DEATHS = ("leave", "crash", "killed", "shut", "babble")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a module of harmful tools to a folder on the path, and return the folder."""
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(TOOLS)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """Run a model that calls the tool which the user names, as often as the user says, and then
    says "done"."""

    def answer(model_request: Request) -> Any:
        user_at = max(
            number
            for number, message in enumerate(model_request.messages)
            if message["role"] == "user"
        )
        name, _, times = str(model_request.messages[user_at]["content"]).partition(" ")
        steps_done = len(model_request.messages) - 1 - user_at
        return text("done") if steps_done >= 2 * int(times or 1) else calls((name, {}))

    with ModelServer(answer) as server:
        yield server


def isolated(folder: Path, **options: Any) -> Host:
    return host_of(
        folder,
        isolation="process",
        **{"policy": Policy(["isolated_*"], entry_points=False), **options},
    )


def asking(server: ModelServer, *names: str, **more: Any) -> CreateRequest:
    """Return a request for an agent with tools of the module, which this process never imports."""
    names = names or ("fine", *DEATHS, "spin", "hold", "late", "grow", "poison", "litter")
    form = form_of(Agent(LLM("m", base_url=server.url, api_key="sk-planted-secret"), stuck=None))
    agent = {**form.mapping, "tools": {"builtin": list(names)}}
    return CreateRequest(
        agent=agent,
        secrets=form.secrets,
        tools=[
            ToolForm(name=name, input_schema={"type": "object"}, module=MODULE) for name in names
        ],
        **more,
    )


def begin(host: Host, server: ModelServer, id: str, message: str, **more: Any) -> None:
    host.create(T, asking(server, id=id, **more))
    host.start(T, id)
    host.execute(T, id, Send(message))


def others(host: Host, server: ModelServer) -> Callable[[], None]:
    """Start three conversations at work. Returns a function that checks that they worked
    undisturbed, each in one process."""
    ids = [f"other{number}" for number in range(3)]
    for id in ids:
        begin(host, server, id, "fine 40")

    def check() -> None:
        for id in ids:
            finished(host, id)
            outcomes = results(host, id)
            assert len(outcomes) == 40
            assert len({one.text for one in outcomes}) == 1
            assert not any(one.is_error for one in outcomes)

    return check


def results(host: Host, id: str) -> list[ToolResult]:
    return [
        event.result
        for event in host.read(T, id, 0, 1000)
        if isinstance(event, ev.ToolCallFinished)
    ]


def live_of(host: Host, id: str) -> WorkerConversation:
    conversation = until(lambda: host._scheduler.conversations.find(id), f"{id} open")
    assert isinstance(conversation, WorkerConversation)
    return conversation


# --- the same conversation ---


@pytest.mark.slow
def test_a_conversation_in_a_worker_is_as_one_here(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path) as host:
        begin(host, model, "a", "fine 3")
        finished(host, "a")
        pids = {int(one.text) for one in results(host, "a")}
        assert pids == {live_of(host, "a").process.pid}
        assert types(host, "a") == [
            "message",
            "status",
            "agent",
            "assistant",
            "toolCallStarted",
            "toolResult",
            "assistant",
            "toolCallStarted",
            "toolResult",
            "assistant",
            "toolCallStarted",
            "toolResult",
            "assistant",
            "status",
        ]
        assert host.state(T, "a").answer == "done"
        assert MODULE not in sys.modules
        info: Info = host.get(T, "a")
        assert (info.open, {tool.executor for tool in info.tools}) == (True, {"server"})
        host.close(T, "a")
        assert not host.get(T, "a").open
        host.start(T, "a")
        host.execute(T, "a", Send("fine"))
        finished(host, "a")
        assert len({one.text for one in results(host, "a")}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "leave",
        "crash",
        "babble",
        *(pytest.param(way, marks=pytest.mark.proof) for way in ("killed", "shut")),
    ],
)
def test_a_worker_that_dies_ends_alone_and_its_conversation_goes_on(
    tmp_path: Path, parts: Path, model: ModelServer, way: str
) -> None:
    with isolated(tmp_path, patience=Patience(heartbeat=12.0)) as host:
        check = others(host, model)
        begin(host, model, "victim", way)
        pid = until(lambda: live_of(host, "victim").process.pid)
        finished(host, "victim")
        (result,) = results(host, "victim")
        assert result.error is not None
        assert result.error.type == "unknown"
        assert result.meta["outcome"] == "unknown"
        assert host.state(T, "victim").answer == "done"
        assert live_of(host, "victim").process.pid != pid
        until(lambda: not alive(pid))
        check()
        assert host.stats()["faults"] == 0


@pytest.mark.slow
def test_what_a_tool_had_started_ends_with_its_dead_worker(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path) as host:
        begin(host, model, "victim", "litter")
        finished(host, "victim")
        pids = [int(pid) for pid in (parts / "litter").read_text().split()]
        assert len(pids) == 3
        assert not any(alive(pid) for pid in pids)  # before anything else was done


@pytest.mark.slow
def test_a_call_that_kills_each_worker_it_is_given_ends_in_an_error_that_says_so(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path) as host:
        check = others(host, model)
        begin(host, model, "victim", "poison")
        finished(host, "victim", status="error")
        (error,) = [
            event for event in host.read(T, "victim") if isinstance(event, ev.ErrorRecorded)
        ]
        assert error.error == "WorkerDied"
        assert "ended with exit status 9" in error.message
        assert error.details == {"how": "ended with exit status 9", "times": 3}
        assert [
            event.attempt
            for event in host.read(T, "victim")
            if isinstance(event, ev.ToolCallStarted)
        ] == [1, 2, 3]
        host.execute(T, "victim", Resume())
        finished(host, "victim")
        assert host.state(T, "victim").answer == "done"
        check()


@pytest.mark.slow
def test_a_tool_that_hears_no_interrupt_is_ended_with_its_worker(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path, patience=Patience(grace=1.0)) as host:
        check = others(host, model)
        begin(host, model, "victim", "spin")
        pid = until(lambda: live_of(host, "victim").process.pid)
        until(lambda: "toolCallStarted" in types(host, "victim"))
        host.execute(T, "victim", Interrupt())
        until(lambda: not alive(pid))
        until(
            lambda: (
                host.stats()["running"] == host.stats()["queued"] == 0
                or host.status(T, "victim") == "paused"
            )
        )
        assert host.status(T, "victim") == "paused"
        host.execute(T, "victim", Resume())
        finished(host, "victim")
        (result,) = results(host, "victim")
        assert result.error is not None
        assert result.error.type == "unknown"
        check()


@pytest.mark.proof
def test_a_conversation_whose_tool_never_ends_is_closed_in_time(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path, patience=Patience(grace=1.0)) as host:
        begin(host, model, "victim", "spin")
        pid = until(lambda: live_of(host, "victim").process.pid)
        until(lambda: "toolCallStarted" in types(host, "victim"))
        host.close(T, "victim")
        assert not alive(pid)
        assert host.status(T, "victim") == "running"  # cut off, and goes on when it is started


@pytest.mark.slow
def test_calls_that_were_given_up_do_not_outlive_the_run(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path, patience=Patience(grace=0.5)) as host:
        begin(host, model, "victim", "late")
        finished(host, "victim")
        assert results(host, "victim")[0].error.type == "timeout"  # pyright: ignore[reportOptionalMemberAccess]
        pid = live_of(host, "victim").process.pid
        until(lambda: not alive(pid))
        host.execute(T, "victim", Send("fine"))
        until(lambda: len(results(host, "victim")) == 2)
        assert results(host, "victim")[1].text != str(pid)


@pytest.mark.proof
def test_a_worker_that_gives_no_sign_of_life_is_ended(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path, patience=Patience(heartbeat=8.0)) as host:
        check = others(host, model)
        begin(host, model, "victim", "hold")
        until(lambda: host.status(T, "victim") == "finished", seconds=60.0)
        assert results(host, "victim")[0].error.type == "unknown"  # pyright: ignore[reportOptionalMemberAccess]
        check()


@pytest.mark.slow
def test_memory_has_a_bound(tmp_path: Path, parts: Path, model: ModelServer) -> None:
    with isolated(tmp_path, worker_memory=2048) as host:
        check = others(host, model)
        begin(host, model, "victim", "grow")
        finished(host, "victim")
        (result,) = results(host, "victim")
        assert result.is_error
        assert "MemoryError" in result.text
        check()
    with pytest.raises(ConfigurationError, match="worker_memory"):
        isolated(tmp_path, worker_memory=10)


@pytest.mark.slow
def test_a_worker_that_is_killed_while_the_model_thinks_is_followed_by_another(
    tmp_path: Path, parts: Path
) -> None:
    thinking, go = threading.Event(), threading.Event()

    def answer(model_request: Request) -> Any:
        thinking.set()
        go.wait(30)
        return text("done")

    with ModelServer(answer) as server, isolated(tmp_path) as host:
        begin(host, server, "a", "think")
        assert thinking.wait(30)
        os.kill(live_of(host, "a").process.pid, signal.SIGKILL)
        go.set()
        finished(host, "a")
        assert types(host, "a").count("assistant") == 1


@pytest.mark.slow
def test_the_fork_server_may_die_too(tmp_path: Path, parts: Path, model: ModelServer) -> None:
    with isolated(tmp_path) as host:
        others(host, model)
        workers = [
            until(lambda one=id: live_of(host, one).process.pid)
            for id in ("other0", "other1", "other2")
        ]
        assert host._workers is not None
        os.kill(host._workers.processes.home.pid, signal.SIGKILL)
        until(lambda: not any(map(alive, workers)))
        for id in ("other0", "other1", "other2"):
            finished(host, id)
            assert len(results(host, id)) == 40
            host.execute(T, id, Send("fine"))
            until(lambda one=id: len(results(host, one)) == 41)
            assert int(results(host, id)[-1].text) not in workers


# --- modules ---


@pytest.mark.slow
def test_a_module_that_ends_its_importer_is_the_clients_to_run(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    (parts / "isolated_bomb.py").write_text("import os\nos._exit(5)\n")
    with isolated(tmp_path) as host:
        creation = asking(model, "fine", id="a")
        bomb = ToolForm(name="bomb", input_schema={"type": "object"}, module="isolated_bomb")
        agent = {**creation.agent, "tools": {"builtin": ["fine", "bomb"]}}
        created = host.create(
            T,
            CreateRequest(
                agent=agent, secrets=creation.secrets, tools=[*creation.tools, bomb], id="a"
            ),
        )
        assert {tool.name: tool.executor for tool in created.tools} == {
            "fine": "server",
            "bomb": "client",
        }
        assert "'isolated_bomb' ended with exit status 5" in "".join(created.warnings)
        host.start(T, "a")
        host.execute(T, "a", Send("fine"))
        finished(host, "a")
        assert not results(host, "a")[0].is_error
        (parts / "isolated_bomb.py").write_text(TOOLS)
    with isolated(tmp_path) as host:  # resume imports again
        host.recover()
        host.execute(T, "a", Send("fine"))
        until(lambda: len(results(host, "a")) == 2)


@pytest.mark.proof
def test_a_module_whose_import_never_ends_is_the_clients_to_run(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    (parts / "isolated_loop.py").write_text("while True: pass\n")
    with isolated(tmp_path) as host:
        creation = asking(model, "loop", id="a")
        tools = [ToolForm(name="loop", input_schema={"type": "object"}, module="isolated_loop")]
        created = host.create(
            T,
            CreateRequest(agent=creation.agent, secrets=creation.secrets, tools=tools, id="a"),
        )
        assert created.tools[0].executor == "client"
        host.start(T, "a")
        began = time.monotonic()
        host.execute(T, "a", Send("loop"))
        until(lambda: host.state(T, "a").offers)
        assert time.monotonic() - began < 20  # the failure is known, and the import not tried again
        assert not [one for one in threading.enumerate() if one.name.startswith("holdfast-import")]


@pytest.mark.slow
def test_a_run_in_a_worker_is_in_the_journal_at_once_and_ends_as_it_rests(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path) as host:
        host.create(T, asking(model, "fine", id="a"))
        for times in (1, 2):
            status = host.status(T, "a")
            assert host.run(T, "a") == status  # there is nothing to do
            before = types(host, "a")
            host.execute(T, "a", Send("fine"))
            assert not host._scheduler.pool.busy("a")
            assert types(host, "a") == [*before, "message"]
            assert host.run(T, "a") == "running"
            assert types(host, "a")[: len(before) + 2] == [*before, "message", "status"]
            finished(host, "a")
            until(lambda: not host._records.driven())
            assert len(results(host, "a")) == times


@pytest.mark.slow
def test_tools_come_and_go_in_a_worker(tmp_path: Path, parts: Path, model: ModelServer) -> None:
    with isolated(tmp_path) as host:
        host.create(T, asking(model, "fine", id="a"))
        host.start(T, "a")
        host.execute(T, "a", Send("fine"))
        finished(host, "a")
        late = ToolForm(name="late", input_schema={"type": "object"}, module=MODULE)
        info = host.set_tools(T, "a", ToolsRequest(tools=[late]))
        assert [tool.name for tool in info.tools] == ["late"]
        assert [tool.name for tool in host.get(T, "a").tools] == ["late"]
        host.execute(T, "a", Send("fine"))
        until(lambda: len(results(host, "a")) == 2)
        assert results(host, "a")[1].error.type == "not_found"  # pyright: ignore[reportOptionalMemberAccess]
        finished(host, "a")
        heads = [
            [tool.name for tool in event.tools]
            for event in host.read(T, "a")
            if isinstance(event, ev.AgentConfigured)
        ]
        assert heads == [["fine"], ["late"]]


# --- clients ---


@pytest.mark.slow
def test_of_two_clients_one_has_the_call_also_over_the_death_of_the_worker(tmp_path: Path) -> None:
    def answer(model_request: Request) -> Any:
        return (
            text("done")
            if model_request.messages[-1]["role"] == "tool"
            else calls(("greet", {"name": "you"}))
        )

    with ModelServer(answer) as server, isolated(tmp_path) as host:
        tool = Tool.from_function(lambda name: "", name="greet")
        host.create(T, request(Agent(LLM("m", base_url=server.url), tools=[tool]), id="a"))
        host.start(T, "a")
        host.execute(T, "a", Send("go"))
        call = until(lambda: host.state(T, "a").offers)[0].call
        outcomes: list[Any] = []

        def claim(name: str) -> None:
            try:
                host.execute(T, "a", Claim(call.id, name), key=f"claim {name}")
                outcomes.append(name)
            except Conflict as error:
                outcomes.append(error)

        threads = [threading.Thread(target=claim, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [one for one in outcomes if isinstance(one, str)]
        assert host.stats()["client_calls"] == 1
        pid = live_of(host, "a").process.pid
        os.kill(pid, signal.SIGKILL)
        host.execute(T, "a", Return(call.id, winner, ToolResult(content="hello you")))
        finished(host, "a")
        assert [one.text for one in results(host, "a")] == ["hello you"]
        assert types(host, "a").count("toolCallStarted") == 1


@pytest.mark.slow
def test_a_workspaces_files_are_the_servers_and_its_shell_the_workers(tmp_path: Path) -> None:
    def answer(model_request: Request) -> Any:
        steps_done = sum(1 for message in model_request.messages if message["role"] == "tool")
        commands = ["x=5; echo written > note; env | sort", "echo $x $PPID"]
        return (
            text("done")
            if steps_done == 2
            else calls(("terminal", {"command": commands[steps_done]}))
        )

    before = Owned()
    with ModelServer(answer) as server, isolated(tmp_path) as host:
        with LocalRuntime() as runtime:
            created = host.create(
                T,
                request(
                    Agent(LLM("m", base_url=server.url, api_key="sk-planted"), tools=runtime.tools),
                    id="a",
                ),
            )
        host.start(T, "a")
        host.execute(T, "a", Send("go"))
        finished(host, "a")
        with host.workspace(T, created.workspace) as runtime:
            assert runtime.read_file("note") == "written\n"
        pid = live_of(host, "a").process.pid
        first, second = results(host, "a")
        assert "sk-planted" not in first.text
        assert second.text.split()[0] == "5"
        for kind in ("environ", "cmdline"):
            assert b"sk-planted" not in Path(f"/proc/{pid}/{kind}").read_bytes()
        theirs = {
            os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")
        }
        ours = {
            os.readlink(f"/proc/self/fd/{number}")
            for number in os.listdir("/proc/self/fd")
            if Path(f"/proc/self/fd/{number}").is_symlink()
        }
        assert not {one for one in theirs & ours if one != "/dev/null"}
        assert not any("store.db" in one for one in theirs)
        host.delete(T, "a")
        assert not alive(pid)
    before.wait_until_released()


@pytest.mark.slow
def test_a_tenants_worker_is_told_no_variable_that_its_agent_may_not_have(tmp_path: Path) -> None:
    orders: list[ms.Order] = []
    with isolated(
        tmp_path,
        variables={
            "SERVER_KEY": "sk-server",
            "openai:SERVER_KEY": "sk-server",
            "OTHER": "sk-other",
        },
    ) as host:
        assert host._workers is not None
        order = host._workers._order
        host._workers._order = lambda *arguments: orders.append(order(*arguments)) or orders[-1]  # type: ignore[method-assign]
        form = form_of(Agent(LLM("openai/gpt-5", api_key="${SERVER_KEY}")))
        for tenant in ("default", "acme"):
            host.create(
                tenant,
                CreateRequest(
                    agent={
                        **form.mapping,
                        "tools": {
                            "mcp_servers": {"s": {"command": "s", "env": {"K": "${secret_1}"}}}
                        },
                    },
                    secrets={"secret_1": "x"},
                ),
            )
        assert [list(one.variables.values()) for one in orders] == [["sk-server"], ["sk-server"]]
        assert "SERVER_KEY" not in orders[1].variables


@pytest.mark.slow
def test_a_worker_writes_to_its_own_conversation_alone(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    with isolated(tmp_path) as host:
        begin(host, model, "a", "fine")
        finished(host, "a")
        proxy = live_of(host, "a")._store_proxy
        summary = msgspec.structs.replace(host._store.list(["a"])[0], id="b")
        with pytest.raises(StoreError, match="may not write to other conversations"):
            proxy.append([], summary, [], [], [], None, {}, [])


@pytest.mark.slow
def test_the_command_serves_by_workers_and_leaves_nothing(tmp_path: Path) -> None:
    command = [
        "-m",
        "holdfast.cli",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        str(tmp_path / "s.db"),
        "--isolation",
        "process",
    ]
    server = subprocess.Popen(
        [sys.executable, *command, "--worker-memory", "512"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert any("Serving agents at" in line for line in server.stderr)
        children = [
            int(pid)
            for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        ]
        assert children
    finally:
        server.terminate()
        status = server.wait()
        server.stderr.close()  # pyright: ignore[reportOptionalMemberAccess]
    assert status == 143
    until(lambda: not any(map(alive, children)))


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("what it takes"),
        LeaseHeld("a", "process 5"),
        StoreError("full"),
        ValueError("not ours"),
    ],
)
def test_errors_come_over_as_their_class(error: Exception) -> None:
    copy = error_of_form(ms.form_of(error))
    assert isinstance(copy, StoreError if type(error) is ValueError else type(error))
    assert str(error) in str(copy)


# --- leftovers ---


@pytest.mark.slow
def test_after_a_close_no_process_thread_or_file_is_left(
    tmp_path: Path, parts: Path, model: ModelServer
) -> None:
    before, files = Owned(), set(Path("/tmp").glob("holdfast-*"))
    host = isolated(tmp_path)
    assert host._workers is not None
    fork_server = host._workers.processes.home.pid
    check = others(host, model)
    begin(host, model, "spinning", "spin")
    until(lambda: "toolCallStarted" in types(host, "spinning"))
    check()
    pids = host._workers.processes.pids()
    assert len(pids) == 4
    host.shutdown(5.0)
    assert not any(map(alive, [*pids, fork_server]))
    before.wait_until_released()
    assert not [
        path
        for path in set(Path("/tmp").glob("holdfast-workers-*")) - files
        if str(fork_server) in path.name
    ]


@pytest.mark.slow
def test_a_killed_server_leaves_no_worker_and_no_fork_server_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    count, steps = 4, 6

    def answer(model_request: Request) -> Any:
        steps_done = sum(1 for message in model_request.messages if message["role"] == "tool")
        return (
            text("done")
            if steps_done == steps
            else calls(("terminal", {"command": f"sleep 0.2 & echo {steps_done} >> effects; wait"}))
        )

    with ModelServer(answer) as server:
        program = ["-m", "tests.server_isolation_program", str(tmp_path), server.url, str(count)]
        child = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, cwd=REPO)
        try:
            assert child.stdout is not None
            report = json.loads(child.stdout.readline())
            pids = [report["fork_server"], *report["workers"]]
            until(lambda: len(server.requests) >= 2 * count, "progress", seconds=60)
            assert all(map(alive, pids))
        finally:
            child.kill()
            child.wait()
            child.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]
        until(lambda: not any(map(alive, pids)))
        until(lambda: not Path(report["folder"]).exists())
        with isolated(tmp_path) as host:
            host.recover()
            for number in range(count):
                finished(host, f"c{number}")
                info = host.get(T, f"c{number}")
                effects = (
                    (tmp_path / "workspaces" / "default" / info.workspace / "effects")
                    .read_text()
                    .split()
                )
                assert len(effects) == len(set(effects)), f"a command was repeated: {effects}"
