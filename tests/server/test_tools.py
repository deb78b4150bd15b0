"""Tests of tools that the agent server does not know, in every way of declaring them: a server
process, and client programs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ConversationStatus, RemoteConversation, ScriptedLLM, Tool
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from tests import forks
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

FINISHED = ConversationStatus.FINISHED

# A module that client and server can both import; the result of a call tells which process ran it.
MODULES = {
    "hf_kinds": (
        """
import asyncio, os, threading
from pydantic import BaseModel
from holdfast import Tool, ToolContext, tool
from holdfast.tools import register_tool

class Place(BaseModel):
    city: str
    floor: int = 0

@tool
def decorated(a: int) -> str:
    return f"decorated {a} {os.getpid()}"

@tool
async def awaited(a: int) -> str:
    await asyncio.sleep(0)
    return f"awaited {a} {os.getpid()}"

@tool
def with_context(a: int, context: ToolContext) -> str:
    return f"with_context {a} {context.conversation_id} {os.getpid()}"

@tool(isolation="process")
def isolated(a: int) -> str:
    return f"isolated {a} {os.getppid() if threading else 0} {os.getpid()}"

@tool
def of_model(place: Place) -> str:
    return f"of_model {place.city} {place.floor} {os.getpid()}"

def make_made() -> Tool:
    return Tool.from_function(lambda a: f"made {a} {os.getpid()}", name="made")

register_tool("made", make_made)

class Subclassed(Tool):
    def __init__(self):
        super().__init__("subclassed", "A subclass.", inputSchema={"type": "object", "properties": {"a": {"type": "integer"}}})

    def call(self, arguments, context):
        return f"subclassed {arguments['a']} {os.getpid()}"

register_tool("subclassed", Subclassed)

def undeclared(a: int) -> str:
    return f"undeclared {a} {os.getpid()}"
"""
    ),
    "hf_one": (
        "import os\nfrom holdfast import tool\n@tool\ndef who() -> str:\n    return f'one"
        " {os.getpid()}'\n"
    ),
    "hf_two": (
        "import os\nfrom holdfast import tool\n@tool\ndef who() -> str:\n    return f'two"
        " {os.getpid()}'\n"
    ),
    "hf_late": (
        "import os\nfrom holdfast import tool\n@tool\ndef late() -> str:\n    return f'late"
        " {os.getpid()}'\n"
    ),
    "hf_skewed": (
        "from holdfast import tool\n@tool\ndef skewed(a: str, more: int = 0) -> str:\n    return"
        " f'the server\\'s {a}'\n"
    ),
    "hf_counted": (
        "import os\nfrom pathlib import Path\nfrom holdfast import tool\nwith"
        " open(Path(__file__).with_name('imports'), 'a') as file:\n   "
        " file.write(f'{os.getpid()}\\n')\n@tool\ndef counted() -> str:\n    return"
        " str(os.getpid())\n"
    ),
    "effects": (
        "open(__file__ + '.ran', 'w').close()\nfrom holdfast import tool\n@tool\ndef x() -> str:\n "
        "   return 'x'\n"
    ),
}

HEAD = """
import json, os, sys
sys.path.insert(0, {library!r})
from holdfast import Agent, ScriptedLLM, RemoteConversation, RemoteWorkspace, Tool, ToolContext, tool
from holdfast.events import ToolCallStarted, ToolCallFinished
workspace = RemoteWorkspace({url!r}, {key!r})

def play(calls, tools, **options):
    script = [[(name, arguments) for name, arguments in calls], "Done."]
    with RemoteConversation(Agent(ScriptedLLM(script), tools), workspace, **options) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        events = conversation.get_history()
        results = {{event.call_id: event.result.text for event in events if isinstance(event, ToolCallFinished)}}
        runners = {{event.call_id: event.runner for event in events if isinstance(event, ToolCallStarted)}}
        print(json.dumps({{
            "pid": os.getpid(), "status": state.status.value, "id": conversation.id, "client": conversation.client,
            "results": {{name: results[f"4.{{n}}"] for n, (name, _) in enumerate(calls)}},
            "runners": {{name: runners.get(f"4.{{n}}", "") for n, (name, _) in enumerate(calls)}},
            "warnings": list(conversation.warnings),
        }}))
    workspace.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[ServeProcess]:
    with ServeProcess(
        tmp_path_factory.mktemp("server"), "--allow-tools", "hf_*", library=library
    ) as running:
        yield running


def client(server: ServeProcess, library: Path, source: str) -> dict[str, Any]:
    """Run a program in a process of its own, and return the last line of its output."""
    program = HEAD.format(library=str(library), url=server.url, key=KEY) + source
    ended = forks.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=library,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_each_tool_that_a_module_declares_runs_on_the_server(
    server: ServeProcess, library: Path
) -> None:
    report = client(
        server,
        library,
        """
import hf_kinds
tools = [hf_kinds.decorated, hf_kinds.awaited, hf_kinds.with_context, hf_kinds.isolated, hf_kinds.of_model,
         hf_kinds.make_made(), hf_kinds.Subclassed()]
calls = [(name, {"a": 1}) for name in ("decorated", "awaited", "with_context", "isolated", "made", "subclassed")]
play([*calls, ("of_model", {"place": {"city": "Ghent"}})], tools)
""",
    )
    assert (report["status"], report["warnings"]) == ("finished", [])
    assert set(report["runners"].values()) == {""}
    results = report["results"]
    pids = {name: int(text.split()[-1]) for name, text in results.items()}
    assert set(pids.values()) - {pids["isolated"]} == {server.pid}
    assert pids["isolated"] not in (server.pid, report["pid"])
    assert {
        name: text.rsplit(" ", 1)[0] for name, text in results.items() if name != "isolated"
    } == {
        "decorated": "decorated 1",
        "awaited": "awaited 1",
        "with_context": f"with_context 1 {report['id']}",
        "made": "made 1",
        "subclassed": "subclassed 1",
        "of_model": "of_model Ghent 0",
    }


@pytest.mark.slow
def test_tools_of_the_program_itself_run_in_the_program(
    server: ServeProcess, library: Path
) -> None:
    report = client(
        server,
        library,
        """
import asyncio, hf_kinds
from pydantic import BaseModel
from holdfast.tools import register_tool, ToolRegistry

class Place(BaseModel):
    city: str

class Counter:
    value = 0
    def bound(self, a: int) -> str:
        self.value += a
        return f"bound {self.value} {os.getpid()}"

class Own(Tool):
    def call(self, arguments, context):
        return f"own {arguments['a']} {os.getpid()}"

def plain(a: int) -> str:
    return f"plain {a} {os.getpid()}"

@tool
def decorated(a: int) -> str:
    return f"decorated {a} {os.getpid()}"

async def awaited(a: int) -> str:
    await asyncio.sleep(0)
    return f"awaited {a} {os.getpid()}"

def with_context(a: int, context: ToolContext) -> str:
    context.report_progress("on it")
    return f"with_context {a} {context.conversation_id} {os.getpid()}"

def of_model(place: Place) -> str:
    return f"of_model {place.city} {os.getpid()}"

def around(word):
    def closure(a: int) -> str:
        return f"{word} {a} {os.getpid()}"
    return closure

register_tool("made", lambda: Tool.from_function(lambda a: f"made {a} {os.getpid()}", name="made"))
made = ToolRegistry().import_module("__main__")
(made,) = [one for one in made if one.name == "made"]
tools = [plain, decorated, awaited, with_context, of_model, around("closure"), Counter().bound, made, hf_kinds.undeclared,
         Own("own", "Its own.", inputSchema={"type": "object", "properties": {"a": {"type": "integer"}}})]
names = ("plain", "decorated", "awaited", "with_context", "closure", "bound", "made", "undeclared", "own")
play([*[(name, {"a": 1}) for name in names], ("of_model", {"place": {"city": "Ghent"}})], tools)
""",
    )
    assert (report["status"], report["warnings"]) == ("finished", [])
    assert set(report["runners"].values()) == {report["client"]}
    assert {int(text.split()[-1]) for text in report["results"].values()} == {report["pid"]}
    assert {text.split()[0] for text in report["results"].values()} == set(report["results"])


@pytest.mark.slow
def test_the_planning_program_runs_where_nobody_knew_of_planning(server: ServeProcess) -> None:
    program = f"""
from holdfast import Agent, RemoteConversation, RemoteWorkspace, ScriptedLLM
from holdfast.tools.preset.planning import register_planning_tools

steps = [{{"step": "look", "state": "in_progress"}}, {{"step": "mend"}}]
workspace = RemoteWorkspace({server.url!r}, {KEY!r})
agent = Agent(ScriptedLLM([("plan", {{"steps": steps}}), "Planned."]), tools=register_planning_tools())
conversation = RemoteConversation(workspace=workspace, agent=agent)
conversation.send_message("plan it")
print(conversation.run().answer, conversation.warnings)
for event in conversation.get_history():
    if event.type in ("toolCallStarted", "toolResult"):
        print(event.type, event.runner if event.type == "toolCallStarted" else event.result.text)
conversation.close()
"""
    ended = forks.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[:3] == ["Planned. ()", "toolCallStarted ", "toolResult Plan (0 of 2 steps done):"]


@pytest.mark.slow
def test_two_clients_with_tools_of_one_name_do_not_meet(
    server: ServeProcess, library: Path
) -> None:
    programs = [
        forks.Popen(
            [
                sys.executable,
                "-c",
                HEAD.format(library=str(library), url=server.url, key=KEY) + source,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=library,
        )
        for source in (
            "import hf_one\nplay([('who', {})] * 5, [hf_one.who])",
            "import hf_two\nplay([('who', {})] * 5, [hf_two.who])",
            "def who() -> str:\n    return f'mine {os.getpid()}'\nplay([('who', {})] * 5, [who])",
        )
    ]
    ended = [program.communicate(timeout=60) for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0], ended
    reports = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    assert [one["results"]["who"] for one in reports] == [
        f"one {server.pid}",
        f"two {server.pid}",
        f"mine {reports[2]['pid']}",
    ]


@pytest.mark.slow
def test_a_schema_that_differs_is_told_in_the_answer_and_in_the_log(
    server: ServeProcess, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "hf_skewed.py").write_text(
        "from holdfast import tool\n@tool\ndef skewed(a: int) -> str:\n    return 'the client'\n"
    )
    report = client(
        server, tmp_path, "import hf_skewed\nplay([('skewed', {'a': 'x'})], [hf_skewed.skewed])"
    )
    (warning,) = report["warnings"]
    assert "its schema differs from the one that the client declared" in warning
    assert 'properties.a.type was declared as "integer" and is "string"' in warning
    assert report["results"]["skewed"] == "the server's x"
    assert warning in server.output()


REFUSED = [
    "os",
    "sys",
    "../x",
    "a;b",
    "os;effects",
    "effects",
    "/etc/passwd",
    "hf_kinds/../effects",
    "effects\n",
    ".effects",
    "hf_",
    "hf_none",
    "",
]


@pytest.mark.parametrize("lets", [True, False], ids=["client tools", "no client tools"])
def test_a_module_that_may_not_be_imported_is_not(
    server: ServeProcess, library: Path, lets: bool
) -> None:
    before = len(server.output())
    forms = [
        {"name": f"x{number}", "inputSchema": {"type": "object"}, "module": module}
        for number, module in enumerate(REFUSED)
    ]
    agent = Agent(ScriptedLLM([[(form["name"], {}) for form in forms[:2]], "Done."]))
    body = {
        "agent": {**form_of(agent).mapping, "tools": {"builtin": [form["name"] for form in forms]}},
        "tools": [{key: value for key, value in form.items() if key != "module"} for form in forms],
        "tool_module_qualnames": {form["name"]: form["module"] for form in forms},
        "client_tools": lets,
    }
    for creation in (body, {**body, "tools": forms, "tool_module_qualnames": {}}):
        reply = server.ask("POST", "/api/conversations", creation)
        assert reply.status == 201, reply
        standings = reply.json["tools"]
        assert {one["executor"] for one in standings} == {"client" if lets else "unavailable"}
        warned = [one for one, module in zip(standings, REFUSED, strict=True) if module or not lets]
        assert all(one["warning"] for one in warned)
        assert len(reply.json["warnings"]) == len(warned)
        log = server.output()[before:]
        assert all(warning in log for warning in reply.json["warnings"])
        if not lets:  # only a call of them fails, with the reason
            path = f"/api/conversations/{reply.json['id']}"
            assert server.ask("POST", f"{path}/messages", {"text": "go"}).status == 202
            assert server.ask("POST", f"{path}/run").status == 200
            until(lambda path=path: server.ask("GET", path).json["status"] == "finished")
            events = server.ask("GET", f"{path}/events").json["events"]
            results = [event["result"] for event in events if event["type"] == "toolResult"]
            assert [result["isError"] for result in results] == [True, True]
            assert all(
                "policy does not allow the module" in json.dumps(result) for result in results
            )
    assert not list(library.glob("*.ran"))
    assert not (library / "__pycache__").exists() or not list(
        (library / "__pycache__").glob("effects*")
    )


@pytest.mark.slow
def test_an_agent_that_forbids_client_tools_has_those_of_its_modules(
    server: ServeProcess, library: Path
) -> None:
    report = client(
        server,
        library,
        "import hf_one\ndef mine() -> str:\n    return 'mine'\nplay([('who', {}), ('mine', {})],"
        " [hf_one.who, mine], client_tools=False)",
    )
    assert report["status"] == "finished"
    assert report["results"]["who"] == f"one {server.pid}"
    assert "does not let clients run tools" in report["results"]["mine"]
    assert len(report["warnings"]) == 1


def test_tools_come_and_go_in_the_middle_of_a_conversation(
    server: ServeProcess, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(library))
    import hf_late  # pyright: ignore[reportMissingImports]
    import hf_one  # pyright: ignore[reportMissingImports]

    script = [
        ("who", {}),
        "One.",
        [("late", {}), ("mine", {})],
        "Two.",
        [("who", {}), ("late", {})],
        "Three.",
    ]
    agent = Agent(ScriptedLLM(script), [hf_one.who])
    try:
        with server.workspace() as workspace, RemoteConversation(agent, workspace) as conversation:
            conversation.start_thread()
            conversation.send_message("one")
            assert conversation.wait(30) is FINISHED
            agent.tools.register(hf_late.late)
            agent.tools.register(Tool("mine", callback=lambda: f"mine {os.getpid()}"))
            conversation.send_message("two")
            assert conversation.wait(30) is FINISHED
            agent.tools.unregister("who")
            conversation.send_message("three")
            assert conversation.wait(30) is FINISHED
            by_call = {
                event.call_id: event.result
                for event in conversation.get_history()
                if isinstance(event, ev.ToolCallFinished)
            }
            results = [
                by_call[one]
                for one in sorted(by_call, key=lambda one: [int(part) for part in one.split(".")])
            ]
            offers = [
                [tool.name for tool in event.tools]
                for event in conversation.get_history()
                if isinstance(event, ev.AgentConfigured)
            ]
            assert conversation.replay().same
    finally:
        for name in ("hf_late", "hf_one"):
            sys.modules.pop(name, None)
    assert [result.text for result in results[:3]] == [
        f"one {server.pid}",
        f"late {server.pid}",
        f"mine {os.getpid()}",
    ]
    assert results[3].is_error
    assert "who" in results[3].text
    assert results[4].text == f"late {server.pid}"
    assert [sorted(names) for names in offers] == [
        ["who"],
        ["late", "mine", "who"],
        ["late", "mine"],
    ]


@pytest.mark.slow
def test_after_a_restart_the_modules_are_imported_again(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "hf_counted.py").write_text(MODULES["hf_counted"])
    imports = tmp_path / "lib" / "imports"
    script = [("counted", {}), "Done."]
    body = {
        "id": "c",
        "agent": {**form_of(Agent(ScriptedLLM(script))).mapping, "tools": {"builtin": ["counted"]}},
        "tool_module_qualnames": {"counted": "hf_counted"},
    }

    def play(server: ServeProcess) -> None:
        assert server.ask("POST", "/api/conversations/c/messages", {"text": "go"}).status == 202
        assert server.ask("POST", "/api/conversations/c/run").status == 200
        until(lambda: server.ask("GET", "/api/conversations/c").json["status"] == "finished")

    with ServeProcess(tmp_path, "--allow-tools", "hf_counted", library=tmp_path / "lib") as server:
        assert server.ask("POST", "/api/conversations", body).status == 201
        play(server)
        first = server.pid
        server.kill()
        server.start()
        play(server)  # its script begins anew
        events = server.ask("GET", "/api/conversations/c/events").json["events"]
        results = [
            event["result"]["content"][0]["text"]
            for event in events
            if event["type"] == "toolResult"
        ]
        assert results == [str(first), str(server.pid)]
        assert imports.read_text().split() == results
        # The module does not exist at the next start: its tool says so, and nothing else is harmed.
        server.end()
        for path in (tmp_path / "lib").rglob("hf_counted*"):
            path.unlink()
        server.start()
        play(server)
        info = server.ask("GET", "/api/conversations/c").json
        assert info["tools"][0]["executor"] == "unavailable"
        assert "No module named 'hf_counted'" in info["tools"][0]["warning"]
