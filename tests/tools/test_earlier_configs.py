"""Tests of the tool sections of an earlier system, which load with their meaning: its real files,
and each shape in its documentation."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import yaml

from holdfast import Tool, ToolCall, ToolManager, load_agent
from holdfast.errors import ConfigurationError
from holdfast.server.policy import Policy, check_agent
from holdfast.tools import config
from tests.paths import SHARED

REAL = SHARED / "tool_configs"
OTHER_SECTIONS = {"AGENT_CONFIG": {"name": "a"}, "MODEL": {"chat_model": {}}, "SCENARIO": None}

Modules = Callable[..., None]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Modules:
    """Return a function that makes modules importable: `modules({"a.b": {"f": function}})`."""

    def make(members: dict[str, dict[str, Any]]) -> None:
        for name, values in members.items():
            module = ModuleType(name)
            vars(module).update(values)
            parts = name.split(".")
            for end in range(1, len(parts)):
                package = ".".join(parts[:end])
                if package not in sys.modules:
                    monkeypatch.setitem(sys.modules, package, ModuleType(package))
            monkeypatch.setitem(sys.modules, name, module)

    return make


def load(document: Any, **options: Any) -> tuple[ToolManager, list[str]]:
    """Return the tools of a config, and its warnings without their place."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manager = ToolManager.from_config(document, discover=False, **options)
    assert {one.category for one in caught} <= {DeprecationWarning}
    assert {one.filename for one in caught} <= {__file__}
    return manager, [str(one.message).split(": ", 1)[1] for one in caught]


def parse(document: Any) -> config.Parsed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return config.read(document)


def names(manager: ToolManager) -> list[str]:
    return [tool.name for tool in manager.list_tools()]


def error_text(document: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(document)
    return str(caught.value)


def look(question: str = "") -> str:
    """Look something up."""
    return f"looked up {question}"


def stand_in(name: str) -> Any:
    """Return a function of another name with the same effect."""
    return FunctionType(look.__code__, look.__globals__, name, look.__defaults__)


# --- real files ---


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="../shared is not part of the repository")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("beside", [{}, OTHER_SECTIONS], ids=["alone", "beside-others"])
def test_a_real_file_loads(path: Path, beside: Any, modules: Modules, tmp_path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    section = document["TOOLS"]
    functions = [*section.get("local_functions", []), *section.get("builtin", [])]
    stand_ins: dict[str, dict[str, Any]] = {}
    for entry in functions:
        stand_ins.setdefault(entry["module"], {})[entry["function"]] = stand_in(entry["function"])
    modules(stand_ins)
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump({**document, **beside}, sort_keys=False))
    manager, notes = load(file)
    assert [tool.run({"question": "x"}).text for tool in manager.list_tools()] == [
        "looked up x"
    ] * len(functions)
    assert names(manager) == [entry.get("name", entry["function"]) for entry in functions]
    parsed = parse(file)
    assert list(parsed.mcp_servers) == [one["server_id"] for one in section.get("mcp_servers", [])]
    assert list(parsed.a2a_agents) == [id for one in section.get("A2A", []) for id in one]
    custom = section.get("skills", {}).get("custom_dirs", [])
    assert parsed.skills == tuple(str(tmp_path / folder) for folder in custom)
    ignored = [text for text in notes if "AGENT_CONFIG" in text]
    assert ignored == (
        [
            "ignored, because it has no meaning here: AGENT_CONFIG, MODEL, SCENARIO (the tools are in"
            " TOOLS)."
        ]
        if beside
        else []
    )


# --- shapes ---


def test_functions_have_a_config_and_hooks_in_their_order(modules: Modules) -> None:
    order: list[str] = []

    def hook(name: str) -> Any:
        return lambda *arguments: order.append(name)

    def search(text: str, timeout: int = 1) -> str:
        """Search."""
        return f"{text} within {timeout}"

    hooks = {name: hook(name) for name in ("pre1", "pre2", "post1", "post2")}
    modules({"acme.tools": {"search": search}, "acme.hooks": hooks})
    entry = {
        "module": "acme.tools",
        "function": "search",
        "name": "find",
        "category": "web",
        "description": "Find it.",
        "config": {"timeout": 30, "llm_model": "chat_model"},
        "hooks": {
            "pre": ["acme.hooks.pre1", "acme.hooks.pre2"],
            "post": ["acme.hooks.post1", "acme.hooks.post2"],
        },
    }
    manager, notes = load({"TOOLS": {"local_functions": [entry]}, **OTHER_SECTIONS})
    (tool,) = manager.list_tools()
    assert (tool.name, tool.category, tool.description) == ("find", "web", "Find it.")
    assert list(tool.input_schema["properties"]) == ["text"]
    assert manager.run(ToolCall("1", "find", {"text": "x"})).text == "x within 30"
    assert order == ["pre1", "pre2", "post1", "post2"]
    assert [text for text in notes if "llm_model" in text] == [
        "ignored, because it has no meaning here: config.llm_model, which 'acme.tools:search' does"
        " not take."
    ]


def test_a_config_of_a_tool_class_is_its_arguments(modules: Modules) -> None:
    class Greeter(Tool):
        def __init__(self, greeting: str = "Hello") -> None:
            super().__init__("greet", "Greet.", lambda: greeting)

    modules({"acme.classes": {"Greeter": Greeter}})
    entry = {"module": "acme.classes", "function": "Greeter", "config": {"greeting": "Hei"}}
    manager, _ = load({"TOOLS": {"local_functions": [entry]}})
    assert manager.run(ToolCall("1", "greet", {})).text == "Hei"


def test_an_async_function_keeps_its_config(modules: Modules) -> None:
    async def wait(seconds: int, unit: str = "s") -> str:
        """Wait."""
        return f"{seconds}{unit}"

    modules({"acme.waits": {"wait": wait}})
    entry = {"module": "acme.waits", "function": "wait", "config": {"unit": "ms"}}
    manager, _ = load({"local_functions": [entry]})
    with manager:
        assert manager.run(ToolCall("1", "wait", {"seconds": 3})).text == "3ms"


def test_mcp_servers_are_a_list_with_transport_and_config() -> None:
    servers = [
        {
            "server_id": "local",
            "transport_type": "stdio",
            "config": {"command": "x", "args": ["-m", "y"], "env": {}, "cwd": None},
            "category": "c",
            "description": "d",
            "hooks": {"pre": ["a.b.f"], "post": None},
        },
        {"server_id": "far", "transport_type": "sse", "config": {"url": "https://a.example/sse"}},
        {"server_id": "web", "transport_type": "http", "config": {"url": "https://a.example/"}},
    ]
    parsed = parse({"TOOLS": {"mcp_servers": servers}})
    assert parsed.mcp_servers == {
        "local": {"type": "stdio", "command": "x", "args": ["-m", "y"], "env": {}, "cwd": None},
        "far": {"type": "sse", "url": "https://a.example/sse"},
        "web": {"type": "http", "url": "https://a.example/"},
    }
    assert [(hook.before, hook.after, hook.tools) for hook in parsed.hooks] == [
        ("a.b:f", None, "local.*")
    ]
    _, notes = load({"TOOLS": {"mcp_servers": servers}})
    assert [text for text in notes if text.startswith("ignored")] == [
        f"ignored, because it has no meaning here: {key}." for key in ("category", "description")
    ]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("A2A", [{"x": {"base_url": "https://a.example", "auth_token": "T", "timeout": 30}}]),
        ("A2A", [{"name": "x", "url": "https://a.example", "token": "T", "timeout": 30}]),
        ("a2a_agents", {"x": {"url": "https://a.example", "token": "T", "timeout": 30}}),
    ],
)
def test_agents_are_a_list_of_ids_or_of_names(section: str, value: Any) -> None:
    assert parse({"TOOLS": {section: value}}).a2a_agents == {
        "x": {"url": "https://a.example", "token": "T", "timeout": 30}
    }


def test_servers_are_a_list_of_ids() -> None:
    server = {"command": "c", "args": ["a"], "env": {"A": "b"}}
    assert parse({"TOOLS": {"MCP": [{"x": server}]}}).mcp_servers == {"x": server}
    assert parse({"mcp_servers": [{"name": "x", "url": "https://a"}]}).mcp_servers == {
        "x": {"url": "https://a"}
    }


def test_sections_beside_tools_count_too() -> None:
    parsed = parse({"TOOLS": {"builtin": ["a"]}, "mcp_servers": [{"name": "x", "url": "http://x"}]})
    assert [entry.target for entry in parsed.builtin] == ["a"]
    assert list(parsed.mcp_servers) == ["x"]


def test_builtin_has_names_of_the_host_and_functions_of_modules(modules: Modules) -> None:
    modules({"acme.tools": {"look": look, "peek": stand_in("peek")}})
    section = [
        "ping",
        {"module": "acme.tools", "function": "look"},
        {"name": "peek", "module": "acme.tools"},
        {"name": "bash", "module": "acme.tools", "function": "look"},
    ]
    manager, notes = load({"TOOLS": {"builtin": section}}, builtins=[Tool("ping", "", lambda: "")])
    assert names(manager) == ["look", "peek", "bash", "ping"]
    assert any("local_functions" in text for text in notes)


def test_skills_have_scopes(tmp_path: Path) -> None:
    for folder, skill in (("mine", "one"), ("theirs", "two")):
        (tmp_path / folder / skill).mkdir(parents=True)
        text = f"---\nname: {skill}\ndescription: The {skill}.\n---\nDo it."
        (tmp_path / folder / skill / "SKILL.md").write_text(text)
    skills = {"builtin": ["pdf", "xlsx"], "custom_dirs": ["theirs"], "user": ["mine"]}
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump({"TOOLS": {"skills": skills}, **OTHER_SECTIONS}))
    manager, notes = load(path)
    assert "one" in str(manager.get("read_skill").description)
    assert parse(path).skills == (str(tmp_path / "mine"), str(tmp_path / "theirs"))
    assert (
        "ignored, because it has no meaning here: the builtin skills pdf, xlsx of an earlier"
        in ("\n".join(notes))
    )


@pytest.mark.parametrize(
    "section",
    [
        None,
        {},
        {"local_functions": None, "mcp_servers": None, "A2A": None, "builtin": None},
        {"skills": None},
        {"skills": {"builtin": None, "custom_dirs": None, "user": None}},
        {"mcp_servers": [{"server_id": "x", "config": {"command": "c", "args": None}}]},
        {"mcp_servers": {"x": {"command": "c", "hooks": {"pre": None, "post": None}}}},
    ],
    ids=json.dumps,
)
def test_null_may_stand_for_a_list(section: Any) -> None:
    manager, _ = load({"TOOLS": section, **OTHER_SECTIONS})
    assert names(manager) == []


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"mcp_server": []}, "TOOLS.mcp_server: unknown key 'mcp_server'. Did you mean 'mcp_serv"),
        (
            {"local_functions": [{"module": "a", "function": "b", "hook": {}}]},
            "local_functions[0].hook: unknown key 'hook'. Did you mean 'hooks'?",
        ),
        (
            {"mcp_servers": [{"server_id": "x", "config": {"comand": "c"}}]},
            "config.comand: unknown key 'comand'. Did you mean 'command'?",
        ),
        (
            {"A2A": [{"x": {"base_ur": "http://x"}}]},
            "TOOLS.A2A[0].x.base_ur: unknown key 'base_ur'",
        ),
        (
            {"mcp_servers": {"x": {"command": "c", "hooks": {"pre": [], "pst": []}}}},
            "hooks.pst: unknown key 'pst'. Did you mean 'post'?",
        ),
        ({"mcp_servers": [{"command": "c"}]}, "this entry of a list has no name"),
        (
            {"mcp_servers": [{"x": {"command": "c"}}, {"name": "x", "command": "d"}]},
            "two entries named 'x'",
        ),
    ],
)
def test_unknown_keys_in_the_section_are_errors(section: Any, expected: str) -> None:
    assert expected in error_text({"TOOLS": section, **OTHER_SECTIONS})


def test_modules_beside_the_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "hf_beside_tools.py").write_text("def near() -> str:\n    return 'here'\n")
    (tmp_path / "hf_beside_agent.py").write_text("def near() -> str:\n    return 'here'\n")
    tools = tmp_path / "tools.yaml"
    tools.write_text("local_functions: ['hf_beside_tools:near']\n")
    assert ToolManager.from_config(tools).get("near").run({}).text == "here"
    agent = tmp_path / "agent.yaml"
    agent.write_text("model: gpt-4o\ntools: {local_functions: ['hf_beside_agent:near']}\n")
    assert load_agent(agent).tools.get("near").run({}).text == "here"
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ToolManager.from_config({"local_functions": ["hf_beside_no_file:near"]})
    for name in ("hf_beside_tools", "hf_beside_agent"):
        sys.modules.pop(name)


def test_openai_is_the_chat_style() -> None:
    with ToolManager([look]) as manager:
        assert manager.get_llm_definitions(style="openai") == manager.get_llm_definitions(
            style="openai_chat"
        )


@pytest.mark.parametrize(
    "tools",
    [
        {"builtin": [{"name": "run", "module": "os", "function": "system"}]},
        {"builtin": [{"name": "run", "module_path": "os", "func": "system"}]},
        {"hooks": {"pre": ["os.system"]}},
        {"builtin": [{"name": "a", "hooks": {"post": ["os.system"]}}]},
        {"mcp_servers": {"a": {"command": "x", "hooks": {"pre": ["os.system"]}}}},
        {"mcp_servers": [{"server_id": "a", "config": {"hooks": {"pre": ["os.system"]}}}]},
        {"TOOLS": {"local_functions": ["os:system"]}},
        {"local_functions": ["os:system"]},
    ],
    ids=json.dumps,
)
def test_an_agent_server_imports_no_code_through_an_earlier_spelling(tools: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the agent server|write hooks with before"):
        check_agent({"model": "gpt-5", "tools": tools}, Policy())
