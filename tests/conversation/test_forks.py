"""Forks of the process: a child process takes and releases nothing that its parent owns, and its
calls fail with an error that says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PARENT = """
import multiprocessing, os, sys, threading, warnings
from pathlib import Path
from holdfast import Agent, Conversation, LocalRuntime, ScriptedLLM, SQLiteStore, Tool, MCPClient
from holdfast.errors import WrongProcess
from holdfast.store import MemoryStore
warnings.simplefilter("ignore", DeprecationWarning)
folder = Path(sys.argv[1])

def outcome(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

MAIN = """
runtime = LocalRuntime()
runtime.write_file("work.txt", "kept")
runtime.run_command("sleep 300 & echo $! > pid")
store = SQLiteStore(folder / "store.db", durability="process")
conversation = Conversation(Agent(ScriptedLLM(["One.", "Two."]), runtime.tools), store, id="c")
conversation.send_message("Hi")
assert conversation.run().status.value == "finished"
owners = sorted(os.listdir(folder / "store.db-owners"))
pid = os.fork()
if pid == 0:
{child}
print("child", outcome(pid), flush=True)
assert runtime.read_file("work.txt") == "kept"
os.kill(int(runtime.read_file("pid")), 0)
assert runtime.run_command("cat work.txt").text.startswith("kept")
assert sorted(os.listdir(folder / "store.db-owners")) == owners
conversation.send_message("Again")
assert conversation.run().events[-2].text == "Two."
workdir = runtime.workdir
conversation.close(); store.close(); runtime.close()
assert not workdir.exists()
print("parent is well")
"""

USES = """
    print(type(conversation).__name__)
    for use in (lambda: conversation.send_message("x"), conversation.run, lambda: conversation.state, conversation.interrupt,
                lambda: store.read("c"), lambda: store.list(), lambda: runtime.run_command("true"),
                lambda: Conversation(conversation.agent, store, id="d").send_message("x")):
        try:
            use()
        except WrongProcess as error:
            assert "is a fork" in str(error), error
        else:
            os._exit(9)
    conversation.close(); store.close(); runtime.close_conversation("c"); runtime.close()
    with LocalRuntime() as mine:
        assert mine.run_command("echo mine").text.startswith("mine")
    with SQLiteStore(folder / "store.db", durability="process") as again:
        assert again.read("c")
    os._exit(0)
"""


def run(tmp_path: Path, program: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("child", "code"),
    [
        ("    sys.exit(0)", 0),
        ("    sys.exit(3)", 3),
        ("    raise ValueError('of the child')", 1),
        (
            (
                "    conversation.__exit__(None, None, None); store.__exit__(); runtime.__exit__();"
                " sys.exit(4)"
            ),
            4,
        ),
        ("    import gc; del conversation, store, runtime; gc.collect(); sys.exit(5)", 5),
        (USES, 0),
    ],
    ids=["exits", "exits with a status", "raises", "ends its with", "drops all", "uses all"],
)
def test_a_child_of_the_main_program_takes_nothing_with_it(
    tmp_path: Path, child: str, code: int
) -> None:
    process = run(tmp_path, PARENT + MAIN.replace("{child}", child))
    assert f"child {code}" in process.stdout, process.stdout + process.stderr
    assert "parent is well" in process.stdout, process.stdout + process.stderr


IN_TOOL = """
pids = []

def forks() -> str:
    pid = os.fork()
    if pid == 0:
        {child}
    pids.append(pid)
    return "of the parent"

def main():
    runtime = LocalRuntime()
    runtime.write_file("work.txt", "kept")
    store = {store}
    script = ScriptedLLM([("forks", {}), "Done."])
    with Conversation(Agent(script, [*runtime.tools, Tool.from_function(forks)]), store, id="c") as conversation:
        conversation.send_message("Go")
        {run}
        assert os.getpid() == parent, "the child went on"
        assert len(pids) == 1
        print("child", outcome(pids[0]), flush=True)
        events = store.read("c")
        results = [event for event in events if event.type == "toolResult"]
        assert [event.result.text for event in results] == ["of the parent"], results
        assert conversation.status.value == "finished", conversation.state.error
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert runtime.read_file("work.txt") == "kept"
    runtime.close()
    store.close()
    print("parent is well")

parent = os.getpid()
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "store", ["SQLiteStore(folder / 'store.db', durability='process')", "MemoryStore()"]
)
@pytest.mark.parametrize(
    "how", ["conversation.run()", "conversation.start_thread(); conversation.wait(20)"]
)
@pytest.mark.parametrize(
    "child",
    ["return 'of the child'", "sys.exit(3)", "raise ValueError('of the child')", "os._exit(0)"],
    ids=["returns", "exits", "raises", "ends"],
)
def test_a_child_of_a_tool_drives_nothing_on(
    tmp_path: Path, child: str, how: str, store: str
) -> None:
    program = PARENT + IN_TOOL.replace("{child}", child).replace("{store}", store).replace(
        "{run}", how
    )
    process = run(tmp_path, program)
    assert process.stdout.count("child") == 1, process.stdout + process.stderr
    assert "parent is well" in process.stdout, process.stdout + process.stderr


@pytest.mark.slow
def test_a_process_of_multiprocessing_takes_nothing_with_it(tmp_path: Path) -> None:
    program = PARENT + textwrap.dedent("""
        def work(queue, conversation, runtime):
            try:
                conversation.send_message("x")
            except WrongProcess:
                queue.put("refused")
            conversation.close(); runtime.close()

        def crashes():
            raise ValueError

        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with LocalRuntime() as runtime, SQLiteStore(folder / "store.db") as store:
                runtime.write_file("work.txt", "kept")
                with Conversation(Agent(ScriptedLLM(["One."]), runtime.tools), store, id="c") as conversation:
                    queue = context.Queue()
                    for target, arguments in ((work, (queue, conversation, runtime)), (crashes, ())):
                        process = context.Process(target=target, args=arguments)
                        process.start()
                        process.join()
                    assert queue.get(timeout=30) == "refused"
                    with context.Pool(2) as pool:
                        assert pool.map(abs, [-1, -2]) == [1, 2]
                    conversation.send_message("Hi")
                    assert conversation.run().status.value == "finished"
                assert runtime.read_file("work.txt") == "kept"
            print("parent is well")
    """)
    process = run(tmp_path, program)
    assert "parent is well" in process.stdout, process.stdout + process.stderr


@pytest.mark.slow
def test_a_child_leaves_the_loop_thread_a_local_server_and_copies_of_stores_alone(
    tmp_path: Path,
) -> None:
    program = PARENT + textwrap.dedent("""
        import shutil
        from holdfast.errors import HoldfastError
        from holdfast.server.local import LocalServer
        from holdfast.store.sqlite.rows import SQLRows
        from holdfast.tools.loop import LoopThread

        async def cleanup():
            print("cleaned by", "parent" if os.getpid() == parent else "child", flush=True)

        async def hello():
            return "hello"

        parent = os.getpid()
        loop = LoopThread("loop", cleanup)
        assert loop.submit(hello()).result(5) == "hello"
        store = SQLiteStore(folder / "store.db", durability="process")
        with Conversation(Agent(ScriptedLLM(["One."])), store, id="c") as conversation:
            conversation.send_message("Hi")
            conversation.run()
        (folder / "dead").mkdir()
        for end in ("", "-wal"):
            shutil.copyfile(folder / f"store.db{end}", folder / "dead" / f"store.db{end}")
        copied = SQLiteStore(folder / "dead" / "store.db", read_only=True)
        rows = SQLRows(folder / "dead" / "store.db")
        server = LocalServer()
        server.start()
        pid = os.fork()
        if pid == 0:
            try:
                loop.submit(hello())
            except HoldfastError as error:
                assert "is a fork" in str(error)
            else:
                os._exit(9)
            rows.close(); copied.close(); loop.close(); server.close()
            sys.exit(0)
        assert outcome(pid) == 0
        assert loop.submit(hello()).result(5) == "hello"
        assert len(copied.read("c")) == len(store.read("c"))
        from urllib.request import urlopen
        assert urlopen(server.url + "/health", timeout=5).status == 200
        server.close(); loop.close(); copied.close(); store.close()
        print("parent is well")
    """)
    process = run(tmp_path, program)
    assert "cleaned by child" not in process.stdout
    assert "parent is well" in process.stdout, process.stdout + process.stderr
