"""Tests of how the agent server learns tools: the imports that its policy allows, their possible
effects on the server, and tools that cannot be had."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, LocalRuntime, ScriptedLLM, Tool, ToolRegistry, tool
from holdfast.agent.serial_form import ToolForm, tools_of
from holdfast.errors import ConfigurationError, ToolError, ToolValidationError
from holdfast.server import policy
from holdfast.server.policy import check_agent
from holdfast.server.tool_resolution import (
    ClientTool,
    Policy,
    ResolvedTools,
    UnavailableTool,
    difference,
    import_parts,
    resolve_tools,
)
from holdfast.tools.preset import planning

ALL = Policy(["*"])
NONE = Policy(entry_points=False)
OBJECT: dict[str, Any] = {"type": "object"}
HEAD = "from holdfast import Tool, tool\nfrom holdfast.tools import register_tool\n"
LOOK = "@tool\ndef look(a: int) -> int:\n    return a\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes a module (a dot in its name: in packages) to a folder on the
    path and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def make(name: str, text: str) -> str:
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
        path.write_text(HEAD + text)
        names.append(name.split(".")[0])
        return name

    yield make
    for name in [one for one in sys.modules if one.split(".")[0] in names]:
        sys.modules.pop(name, None)


def form(name: str = "look", module: str = "", **more: Any) -> ToolForm:
    return ToolForm(**{"name": name, "input_schema": OBJECT, "module": module, **more})


def one(module: str, policy: Policy = ALL, name: str = "look", **options: Any) -> tuple[str, str]:
    """Return the executor of a tool of that module, and the warning."""
    resolved = resolve_tools([form(name, module)], {}, {}, policy, **options)
    return resolved.standings[name].executor, resolved.standings[name].warning


def executors(resolved: ResolvedTools) -> dict[str, str]:
    return {name: state.executor for name, state in resolved.standings.items()}


# --- the policy ---

NO_NAMES = [
    "",
    ".",
    "a.",
    ".a",
    "a..b",
    "a;b",
    "../x",
    "a/b",
    "a b",
    "a\nb",
    "a\0b",
    "a-b",
    "1a",
    "a.1b",
    "*",
    "a.*",
    "os:system",
    "\u043es",
    "holdf\u0430st.tools.preset",
    "\ufb01le",
    "\xaa",
    "x" * 10_000,
    ".".join(["a"] * 5_000),
    "/etc/passwd",
    "a\n",
    " os",
]


@pytest.mark.parametrize("module", NO_NAMES, ids=lambda module: ascii(module)[:20])
def test_what_is_no_modules_name_is_refused_even_if_all_modules_are_allowed(module: str) -> None:
    reason = ALL.refusal(module)
    assert "is not a module's name" in reason
    assert len(reason) < 300
    assert "\n" not in reason
    assert not ALL.allows(module)


def test_a_name_that_is_no_text_is_refused() -> None:
    for name in (None, 5, b"os", ["os"]):
        assert not ALL.allows(name)  # type: ignore[arg-type]


def test_patterns_are_of_whole_dotted_names() -> None:
    policy = Policy(["acme_tools", "acme.tools.*", "x?"], entry_points=False)
    allowed = [
        "acme_tools",
        "acme.tools.a",
        "acme.tools.a.b",
        "x1",
        "holdfast.tools.preset",
        "holdfast.tools.preset.planning",
    ]
    refused = [
        "acme_tools.sub",
        "acme_tools2",
        "acme",
        "acme.tools",
        "acme.toolsx",
        "x",
        "x12",
        "os",
        "holdfast",
        "holdfast.tools",
        "holdfast.tools.presets",
        "holdfast.tools.preset_evil",
        "Acme_tools",
        "builtins",
        "__main__",
    ]
    assert [module for module in allowed if not policy.allows(module)] == []
    assert [module for module in refused if policy.allows(module)] == []
    assert "--allow-tools" in policy.refusal("os")
    assert ALL.allows("os")
    assert ALL.allows("__main__")


@pytest.mark.parametrize("patterns", ["acme", [""], ["a b"], [5], ["a;b"]])
def test_what_is_no_pattern_is_named(patterns: Any) -> None:
    with pytest.raises(ConfigurationError, match="Policy: patterns"):
        Policy(patterns)


def test_an_installed_package_that_declares_the_entry_point_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[holdfast.tools]\nsearch = acme.tools.search\ntop = acme_top:thing\n[other]\nx = other.y\n"
    )
    policy = Policy()
    assert {"acme.tools", "acme_top"} <= set(policy.packages)
    for module in (
        "acme.tools",
        "acme.tools.search",
        "acme.tools.deep.er",
        "acme_top",
        "acme_top.x",
    ):
        assert policy.allows(module), module
    for module in ("acme", "acme.other", "acme.toolsx", "other.y", "other"):
        assert not policy.allows(module), module
    assert not Policy(entry_points=False).allows("acme.tools")


def test_to_ask_the_policy_imports_nothing(write: Write, tmp_path: Path) -> None:
    module = write("hf_effects.inner", f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + LOOK)
    executor, reason = one(module, NONE)
    assert executor == "client"
    assert "does not allow" in reason
    assert not (tmp_path / "ran").exists()
    assert "hf_effects" not in sys.modules
    assert one(module)[0] == "server"
    assert (tmp_path / "ran").exists()


# --- learning ---


def test_each_tool_is_found_where_it_was_declared(write: Write) -> None:
    write("hf_a", LOOK + "register_tool('made', lambda: Tool.from_function(lambda n: n, 'made'))\n")

    @tool
    def look(a: int) -> int:
        return a

    with LocalRuntime() as runtime:
        registry = ToolRegistry()
        local = next(item for item in registry.import_module("hf_a") if item.name == "made")
        declared = tools_of(
            Agent(
                ScriptedLLM([]), [*runtime.tools, look, local, *planning.register_planning_tools()]
            )
        )
        resolved = resolve_tools(
            declared,
            {"look": "hf_a"},
            {item.name: item for item in runtime.tools},
            Policy(["hf_a"], entry_points=False),
        )
        assert resolved.tools["read_file"] is next(
            item for item in runtime.tools if item.name == "read_file"
        )
    assert resolved.warnings == []
    assert set(executors(resolved).values()) == {"server"}
    assert resolved.standings["plan"].module == "holdfast.tools.preset.planning"
    assert resolved.standings["read_file"].module == "holdfast.runtime"
    assert resolved.tools["look"].run({"a": 3}).data == 3
    assert [*resolved.tools] == [item.name for item in declared]


def test_a_tool_without_a_module_is_the_clients_or_nobodys() -> None:
    declared = form("local", description="Does it.", timeout=3.0, category="mine")
    resolved = resolve_tools([declared], {}, {}, ALL)
    client = resolved.tools["local"]
    assert isinstance(client, ClientTool)
    assert (client.executor, client.description, client.timeout, client.category) == (
        "client",
        "Does it.",
        3.0,
        "mine",
    )
    assert resolved.warnings == []
    with pytest.raises(ToolError, match="runs in the client"):
        client.run({})
    resolved = resolve_tools([declared], {}, {}, ALL, client_tools=False)
    nobody = resolved.tools["local"]
    assert isinstance(nobody, UnavailableTool)
    assert (nobody.executor, executors(resolved)) == ("", {"local": "unavailable"})
    with pytest.raises(ToolError, match="does not let clients run tools") as caught:
        nobody.run({})
    assert not caught.value.retryable


def test_a_module_that_fails_costs_its_own_tools_alone(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write("hf_good", LOOK)
    write("hf_bad", "raise RuntimeError('no\\nluck')\n")
    tools = [
        form("look", "hf_good", input_schema=planning.make_plan().input_schema),
        form("bad", "hf_bad"),
        form("none", "hf_not_there"),
    ]
    with caplog.at_level(logging.WARNING, "holdfast.server"):
        resolved = resolve_tools(tools, {}, {}, ALL)
    assert executors(resolved) == {"look": "server", "bad": "client", "none": "client"}
    assert (
        resolved.standings["bad"].warning
        == "its module 'hf_bad' cannot be used: Module 'hf_bad' cannot be imported: RuntimeError:"
        " no luck"
    )
    assert "No module named 'hf_not_there'" in resolved.standings["none"].warning
    assert "was declared" in resolved.standings["look"].warning
    assert [record.getMessage() for record in caplog.records] == resolved.warnings
    assert resolved.warnings[1].endswith("no luck. The client runs it.")
    resolved = resolve_tools(tools, {}, {}, ALL, client_tools=False)
    assert executors(resolved) == {"look": "server", "bad": "unavailable", "none": "unavailable"}
    with pytest.raises(ToolError, match="no luck"):
        resolved.tools["bad"].run({})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Own(BaseException): pass\nraise Own('mine')", "Own: mine"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.modules[__name__] = 5", "cannot be used"),
        ("import sys\nsys.modules[__name__] = None", "cannot be used"),
        ("import sys\ndel sys.modules[__name__]", "cannot be used"),
        ("__holdfast_tools__ = 7", "cannot be used"),
        ("__holdfast_tools__ = {'look': 'no tool'}", "cannot be used"),
        ("register_tool('look', lambda: 5)", "returned 5, not a Tool"),
        ("def make(): raise SystemExit(4)\nregister_tool('look', make)", "SystemExit: 4"),
        ("x = 5", "declares no tools"),
        (
            LOOK.replace("look", "other"),
            "declares no tool of that name on the server; it declares: other",
        ),
        ("from holdfast.tools.preset.planning import *\nlook = make_plan()", "it declares: plan"),
        ("@tool\ndef look(a: 'Nowhere') -> int: return 1", "Nowhere"),
    ],
)
def test_whatever_a_module_does_when_it_is_imported_it_does_to_itself(
    write: Write, text: str, expected: str
) -> None:
    executor, reason = one(write("hf_odd", text + "\n"))
    assert executor == "client"
    assert expected in reason
    sys.modules.pop("hf_odd", None)
    assert one(write("hf_odd_good", LOOK.replace("a: int", "")))[0] == "server"


def test_a_module_that_prints_is_learned(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    assert one(write("hf_prints", "print('hello')\n" + LOOK))[0] == "server"


def test_a_module_that_failed_half_way_is_imported_anew_the_next_time(
    write: Write, tmp_path: Path
) -> None:
    text = (
        f"import os.path\n{LOOK}\nif not os.path.exists({str(tmp_path / 'now')!r}): raise"
        " OSError('not yet')\n"
    )
    text += "@tool\ndef after() -> str: return 'x'\n"
    module = write("hf_half", text)
    assert "not yet" in one(module)[1]
    (tmp_path / "now").touch()
    resolved = resolve_tools([form("look", module), form("after", module)], {}, {}, ALL)
    assert set(executors(resolved).values()) == {"server"}


@pytest.mark.slow
def test_a_module_that_hangs_is_left_behind_and_not_waited_for_twice(
    write: Write, tmp_path: Path
) -> None:
    hanging = write(
        "hf_hangs",
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        + LOOK,
    )
    good = write("hf_does_not_hang", LOOK.replace("look", "good"))
    tools = [form("look", hanging), form("good", good)]
    try:
        resolved = resolve_tools(tools, {}, {}, Policy(["*"], import_timeout=0.5))
        assert executors(resolved) == {"look": "client", "good": "server"}
        assert "was not imported in time (within 0.5 seconds)" in resolved.standings["look"].warning
        threads_left = [
            thread for thread in threading.enumerate() if thread.name == "holdfast-import hf_hangs"
        ]
        assert len(threads_left) == 1
        began = time.monotonic()
        assert (
            "still being imported for an earlier request"
            in one(hanging, Policy(["*"], import_timeout=60.0))[1]
        )
        assert time.monotonic() - began < 30
        assert [
            thread for thread in threading.enumerate() if thread.name == "holdfast-import hf_hangs"
        ] == threads_left
    finally:
        (tmp_path / "go").touch()
        for thread in threading.enumerate():
            if thread.name.startswith("holdfast-import"):
                thread.join(30)
    assert one(hanging)[0] == "server"  # once it is imported, it is a module like any other


def test_a_module_of_functions_that_is_there_already_takes_no_thread(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, module_of_factory = (
        write("hf_there", LOOK),
        write("hf_made", "register_tool('look', lambda: Tool('look', '', lambda a: a))\n"),
    )
    began: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: (began.append(thread.name), start(thread))
    )  # pyright: ignore
    resolved = [
        resolve_tools([form(module=name)], {}, {}, ALL).tools["look"]
        for name in (module, module, module_of_factory, module_of_factory)
    ]
    assert resolved[0] is resolved[1]
    assert resolved[2] is not resolved[3]
    assert began == [
        f"holdfast-import {module}",
        f"holdfast-import {module_of_factory}",
        f"holdfast-import {module_of_factory}",
    ]  # a factory is the module's code


def test_the_schema_of_a_clients_tool_stays_as_it_was_declared_to_the_letter() -> None:
    def look(a: int, b: str = "") -> int:
        return a

    declared = tools_of(Agent(ScriptedLLM([]), [look]))[0].input_schema
    turned = dict(reversed(declared.items()))
    for schema in (declared, turned):
        assert list(ClientTool(form(input_schema=schema)).input_schema.items()) == list(
            schema.items()
        )
    assert ClientTool(form(input_schema=turned)).validate({"a": 1}) == {"a": 1}
    assert ClientTool(form(input_schema={})).input_schema == {"type": "object", "properties": {}}


def test_two_clients_with_tools_of_one_name_do_not_meet(write: Write) -> None:
    write("hf_one", "@tool\ndef look() -> str: return 'one'\n")
    write("hf_two", "@tool\ndef look() -> str: return 'two'\n")
    outcomes: dict[str, set[str]] = {"hf_one": set(), "hf_two": set()}

    def ask(module: str) -> None:
        for _ in range(20):
            outcomes[module].add(
                resolve_tools([form("look", module)], {}, {}, ALL).tools["look"].run({}).text
            )

    threads = [
        threading.Thread(target=ask, args=(module,)) for module in outcomes for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {"hf_one": {"one"}, "hf_two": {"two"}}


def test_a_name_that_comes_with_its_module_alone_is_learned_by_that(write: Write) -> None:
    resolved = resolve_tools([], {"look": write("hf_alone", LOOK), "gone": "hf_gone"}, {}, ALL)
    assert executors(resolved) == {"look": "server", "gone": "unavailable"}
    assert resolved.standings["look"].warning == ""
    with pytest.raises(ToolError, match="hf_gone"):
        resolved.tools["gone"].run({})


def test_a_preset_tool_that_the_workspace_lacks_and_a_tool_that_says_it_is_the_clients(
    write: Write,
) -> None:
    resolved = resolve_tools([form("terminal", "holdfast.runtime")], {}, {}, NONE)
    assert executors(resolved)["terminal"] == "client"
    assert "the workspace has no tool 'terminal'" in resolved.standings["terminal"].warning
    assert one(write("hf_own", LOOK + "look.executor = 'client'\n")) == ("client", "")


def test_what_no_tool_can_be_made_of_is_an_error() -> None:
    for tools, pattern in [
        ([form("a b")], "name takes"),
        ([form("a"), form("a")], "two tools named 'a'"),
        ([form("a", input_schema={"type": "nothing"})], "input_schema has type 'nothing'"),
        ([form("a", timeout=-1.0)], "timeout"),
        ([form(f"t{n}", f"m{n}") for n in range(101)], "name 101 modules"),
    ]:
        with pytest.raises(ConfigurationError, match=pattern):
            resolve_tools(tools, {}, {}, NONE)


@pytest.mark.slow
def test_a_server_that_knows_nothing_of_planning_learns_it_by_its_name_alone() -> None:
    program = (
        "import sys\nfrom holdfast.agent.serial_form import ToolForm\nfrom holdfast.server.tool_resolution import"
        " Policy, resolve_tools\nassert 'holdfast.tools.preset.planning' not in sys.modules\nimport"
        " msgspec\nform = msgspec.json.decode(sys.stdin.buffer.read(), type=ToolForm)\nfound ="
        " resolve_tools([form], {}, {}, Policy(entry_points=False))\nprint({name: one.executor for name, one in found.standings.items()}, found.warnings,"
        " found.tools['plan'].run({'steps': [{'step': 'Read', 'state': 'in_progress'}]}).text)\n"
    )
    [declared] = tools_of(Agent(ScriptedLLM([]), planning.register_planning_tools()))
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=declared.to_json(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert (
        process.stdout.decode() == "{'plan': 'server'} [] Plan (0 of 1 steps done):\n1. [>] Read\n"
    )


# --- schemas ---


def test_titles_descriptions_and_order_make_no_difference() -> None:
    def schema(**more: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A", **more}, "title": {"type": "string", **more}},
            **more,
        }

    one = {
        **schema(),
        "$defs": {"A": {"enum": [1, 2]}, "B": {"type": ["null", "integer"]}},
        "required": ["a", "title"],
    }
    other = {
        "required": ["title", "a"],
        "$defs": {"B": {"type": ["integer", "null"], "title": "B"}, "A": {"enum": [2, 1]}},
    }
    other |= schema(title="T", description="D")
    assert difference(one, other) == ""
    assert difference(None, None) == ""


@pytest.mark.parametrize(
    ("declared", "found", "expected"),
    [
        ({"type": "object"}, {"type": "array"}, 'type was declared as "object" and is "array"'),
        (
            {"properties": {"a": {}}},
            {"properties": {}},
            "properties.a was declared and is missing",
        ),
        (
            {},
            {"properties": {"title": {"type": "string"}}},
            'properties was not declared and is {"title":{"type":"string"}}',
        ),
        (
            {"properties": {"title": {}}},
            {"properties": {"description": {}}},
            (
                "properties.title was declared and is missing; "
                "properties.description was not declared and is {}"
            ),
        ),
        ({"default": 1}, {"default": True}, "default was declared as 1 and is true"),
        (
            {"default": {"title": "a"}},
            {"default": {"title": "b"}},
            'default.title was declared as "a" and is "b"',
        ),
        (
            {"anyOf": [{"type": "string"}]},
            {"anyOf": [{"type": "null"}]},
            'anyOf[0].type was declared as "string" and is "null"',
        ),
        (
            {"$defs": {"A": {"maximum": 1}}},
            {"$defs": {"A": {"maximum": 2}}},
            "$defs.A.maximum was declared as 1 and is 2",
        ),
        (None, {"type": "object"}, 'the schema was declared as null and is {"type":"object"}'),
        (
            {"required": ["a"]},
            {"required": ["a", "b"]},
            'required was declared as ["a"] and is ["a","b"]',
        ),
    ],
)
def test_a_difference_is_said_in_one_line(declared: Any, found: Any, expected: str) -> None:
    assert difference(declared, found) == expected


def test_many_differences_are_cut_short() -> None:
    text = difference({str(n): "x" * 1000 for n in range(100)}, {})
    assert text.endswith("; and 97 more")
    assert len(text) < 600


def test_the_servers_own_tool_is_used_and_the_difference_told(write: Write) -> None:
    resolved = resolve_tools(
        [
            form(
                "look",
                write("hf_differs", LOOK),
                input_schema={"type": "object", "properties": {"a": {"type": "string"}}},
            )
        ],
        {},
        {},
        ALL,
    )
    assert executors(resolved) == {"look": "server"}
    assert 'properties.a.type was declared as "string" and is "integer"' in resolved.warnings[0]
    assert resolved.tools["look"].run({"a": 3}).data == 3


# --- agents ---

USE = {"use": "os:system", "parameters": {"command": "true"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": USE}, "model.use"),
    ({"MODEL": USE}, "MODEL.use"),
    ({"model": [USE]}, "model[0].use"),
    ({"model": {"fallback": {"a": USE}}}, "model.fallback.a.use"),
    ({"model": {"fallback": [{"router": {"x": USE}, "pick": "a:b"}]}}, "router.x.use"),
    ({"model": {"router": {"x": "gpt-4o"}, "pick": "os:system"}}, "model.pick"),
    ({"model": {"router": {"x": "gpt-4o"}, "pick": "${secret_1}"}}, "model.pick"),
    ({"model": {"fallback": ["gpt-4o"], "on": "os:system"}}, "model.on"),
    ({"model": {"fallback": ["gpt-4o"], "on": ["RateLimited", "os:error"]}}, "model.on[1]"),
    ({"model": {"fallback": ["gpt-4o"], "on": "${secret_1}"}}, "model.on"),
    ({"model": {"use": "litellm", "parameters": {"model": "x"}}}, "model.use"),
    ({"model": {"use": "${secret_1}"}}, "model.use"),
    ({"condenser": "os:getcwd"}, "condenser"),
    ({"goal": {"text": "x", "judge": USE}}, "goal.judge.use"),
    ({"goal": {"text": "x", "judge": ["rubric", "os:getcwd"]}}, "goal.judge[1]"),
    ({"goal": {"text": "x", "judge": {"name": "rubric", "model": USE}}}, "goal.judge.model.use"),
    ({"delegates": {"a": {"goal": {"text": "x", "judge": USE}}}}, "delegates.a.goal.judge.use"),
    ({"hooks": [{"on": "stop", "agent": "other"}]}, "hooks[0]"),
    ({"condenser": "${secret_1}"}, "condenser"),
    ({"condenser": {"use": "hf_ok:sys.exit"}}, "condenser"),
    ({"condenser": {"use": "hf_ok:__loader__.load_module"}}, "condenser"),
    ({"confirm": USE}, "confirm.use"),
    ({"system_prompt": {"file": "/etc/passwd"}}, "system_prompt"),
    ({"system_prompt_extensions": ["a", {"file": "/etc/passwd"}]}, "system_prompt_extensions[1]"),
    ({"microagents": [{"file": "/etc"}]}, "microagents[0]"),
    ({"skills": ["/etc"]}, "skills"),
    ({"tools": "/etc/tools.yaml"}, "tools"),
    ({"tools": {"local_functions": ["os:system"]}}, "tools.local_functions"),
    ({"tools": {"LOCAL": ["os:system"]}}, "tools.LOCAL"),
    ({"tools": {"tools": {"local_functions": ["os:system"]}}}, "tools.tools"),
    ({"tools": {"skills": ["/etc"]}}, "tools.skills"),
    ({"tools": {"result_dir": "/etc"}}, "tools.result_dir"),
    ({"tools": {"pins": "/etc/pins"}}, "tools.pins"),
    ({"tools": {"hooks": [{"before": "os:system"}]}}, "tools.hooks[0].before"),
    (
        {"tools": {"builtin": [{"name": "a", "hooks": [{"after": "os:system"}]}]}},
        "tools.builtin[0].hooks[0].after",
    ),
    (
        {"tools": {"mcp_servers": {"a": {"command": "x", "hooks": [{"before": "os:system"}]}}}},
        "mcp_servers.a.hooks[0].before",
    ),
    (
        {"tools": {"mcp_servers": {"mcpServers": {"a": {"hooks": [{"before": "os:system"}]}}}}},
        "mcpServers.a.hooks[0].before",
    ),
    (
        {"tools": {"a2a_agents": [{"name": "x", "hooks": [{"before": "${secret_1}"}]}]}},
        "a2a_agents[0].hooks[0].before",
    ),
]


@pytest.mark.parametrize(("agent", "place"), REFUSED, ids=[place for _, place in REFUSED])
def test_an_agent_that_reads_files_or_names_code_beyond_the_policy_is_refused_with_the_place(
    agent: dict[str, Any], place: str, write: Write
) -> None:
    write("hf_ok", "import sys\n")
    with pytest.raises(ConfigurationError) as caught:
        import_parts(agent, Policy(["hf_ok"], entry_points=False))
    assert place in str(caught.value)


def test_a_part_that_the_check_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = types.SimpleNamespace(keys={**policy.KEYS.keys, "new": None})
    monkeypatch.setattr(policy, "KEYS", keys)
    check_agent({"model": "m"}, Policy())
    with pytest.raises(ConfigurationError, match=r"new: the agent server accepts no such part"):
        check_agent({"model": "m", "new": {"use": "os:getcwd"}}, Policy())


def test_what_an_allowed_module_only_imported_is_not_its_own(write: Write) -> None:
    write(
        "hf_mine",
        "import os\nfrom subprocess import Popen\nclass Mine:\n    def condense(self, *a): return"
        " None\nready = Mine()\n",
    )
    policy = Policy(["hf_mine"], entry_points=False)
    for target in ("hf_mine:os.system", "hf_mine:Popen", "hf_mine:os", "hf_mine:tool"):
        with pytest.raises(ConfigurationError, match="is not defined by hf_mine"):
            import_parts({"condenser": {"use": target}}, policy)
    for target in ("hf_mine:Mine", "hf_mine:ready"):
        import_parts({"condenser": {"use": target}}, policy)
    assert check_agent(
        {"condenser": "hf_mine:ready", "model": {"use": "scripted", "parameters": {"script": []}}},
        policy,
    ) == ["hf_mine"]
    with pytest.raises(ConfigurationError, match="'hf_missing'"):
        import_parts({"condenser": "hf_missing:x"}, ALL)


# --- the planning tool ---


def test_a_plan_is_rendered_from_the_call_alone() -> None:
    plan = planning.make_plan()
    steps = [
        {"step": "Read\nit", "state": "done"},
        {"step": "Test", "state": "in_progress"},
        {"step": "Ask", "state": "dropped"},
        {"step": "Ship"},
    ]
    result = plan.run({"steps": steps})
    assert (
        result.text
        == "Plan (1 of 3 steps done, 1 dropped):\n1. [x] Read it\n2. [>] Test\n3. [-] Ask\n4. [ ]"
        " Ship"
    )
    assert result.structured_content["steps"][3] == {"step": "Ship", "state": "pending"}
    assert plan.run({"steps": [{"step": "a"}]}).text.endswith(
        "No step is in progress; the next is 1."
    )
    assert plan.run({"steps": [{"step": "a", "state": "done"}]}).text.endswith(
        "All steps are done or dropped."
    )
    assert plan.annotations.repeatable


@pytest.mark.parametrize(
    ("steps", "pattern"),
    [
        ([], "1 to 100 steps"),
        ([{"step": "a"}] * 101, "this one has 101"),
        ([{"step": "  "}], "Step 1 is empty"),
        ([{"step": "a" * 1001}], "Step 1 has 1001 characters"),
        (
            [{"step": "a", "state": "in_progress"}] * 3,
            "Steps 1, 2 and 3 are in progress; at most one is",
        ),
        ([{"step": "a", "state": "started"}], "pending"),
        ([{"state": "done"}], "step"),
    ],
)
def test_a_plan_that_is_none_is_refused_with_what_to_do(steps: list[Any], pattern: str) -> None:
    with pytest.raises(ToolError, match=pattern):
        planning.make_plan().run({"steps": steps})


def test_planning_tools_are_declared_by_their_module_and_registered_where_one_asks() -> None:
    registry = ToolRegistry()
    [plan] = planning.register_planning_tools(registry)
    assert (plan.name, plan.module_qualname) == ("plan", "holdfast.tools.preset.planning")
    assert registry.get_tool_module_qualnames() == {"plan": "holdfast.tools.preset.planning"}
    assert [
        item.name for item in ToolRegistry().import_module("holdfast.tools.preset.planning")
    ] == ["plan"]
    assert isinstance(registry.create("plan"), Tool)


# takes Python's own matcher more than a lifetime for the text below, and holds the interpreter
# meanwhile
SLOW = "^(a+)+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": SLOW}}},
        {"patternProperties": {SLOW: {}}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {SLOW: {}}}], "unevaluatedProperties": False},
        {"propertyNames": {"pattern": SLOW}},
        {
            "properties": {
                "a": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "type": "string",
                    "pattern": SLOW,
                }
            }
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"anyOf": [{"pattern": SLOW}, {"$ref": "#/properties/a/anyOf/0"}]}},
        },
    ],
)
def test_a_pattern_of_a_clients_schema_is_tried_here_in_linear_time(schema: dict[str, Any]) -> None:
    text = "a" * 40 + "!"
    tool = ClientTool(form(input_schema={"type": "object", **schema}))
    assert tool.validate({"a": "aa"}) == {"a": "aa"}
    if "unevaluatedProperties" in schema:  # not enforced beside patternProperties
        assert tool.validate({text: 1}) == {text: 1}
    else:
        with pytest.raises(ToolValidationError):
            tool.validate({"a": text, text: 1})


def test_what_else_a_clients_schema_says_is_checked_here() -> None:
    tool = ClientTool(
        form(
            input_schema={
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "additionalProperties": False,
            }
        )
    )
    for arguments in ({"a": "x"}, {"b": 1}):
        with pytest.raises(ToolValidationError):
            tool.validate(arguments)
