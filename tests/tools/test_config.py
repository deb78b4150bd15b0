"""Tests of tool configurations: accepted content, errors for the rest, and the published JSON
Schema, which must agree."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from holdfast.agent.load import load_agent
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError
from holdfast.tools import RetryPolicy, Tool, ToolAnnotations, ToolManager, config
from holdfast.tools.a2a.config import RemoteAgent
from holdfast.tools.config.keys import TOOLS, schema
from holdfast.tools.document import Map, SourceLocation, read_yaml
from holdfast.tools.mcp.config import Http, Stdio
from tests.paths import DATA

SCHEMA = json.loads(config.SCHEMA.read_text())
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
VARIABLES = {
    "TEXT": "text",
    "COUNT": 3,
    "DIGITS": "3",
    "YES": "true",
    "ID": "a",
    "TARGET": "os.path:basename",
    "URL": "http://a",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that writes a module to a folder on the path and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def make(text: str) -> str:
        name = f"hf_config_{len(modules)}"
        (tmp_path / f"{name}.py").write_text(text)
        modules.append(name)
        return name

    yield make
    for name in modules:
        sys.modules.pop(name, None)


TOOLS_MODULE = '''
from holdfast.tools import Tool, tool

def search(text: str, limit: int = 3) -> str:
    """Searches.

    Args:
        text: What for.
    """
    return f"{limit} of {text}"

class Box:
    @staticmethod
    def inside(a: int) -> int:
        return a

@tool(name="ready", timeout=5)
def as_tool() -> str:
    """Is ready."""
    return "ready"

class Made(Tool):
    def __init__(self, greeting="Hello"):
        super().__init__("made", "Greets.", input_schema={"type": "object", "properties": {"name": {"type": "string"}}})
        self.greeting = greeting
    def call(self, arguments, context):
        return f"{self.greeting}, {arguments['name']}"

class Broken(Tool):
    def __init__(self):
        raise OSError("no disk")

def deny(call, context):
    raise PermissionError("not today")

NOT_A_TOOL = 5
'''


def error_text(source: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config.build(config.read(source, **options))
    return str(caught.value)


def test_a_file_of_another_program_loads(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        """{
  // servers of this project
  "mcpServers": {
    "org.git": {"command": ["git-mcp", "--all"], "transportType": "stdio", "disabled": false},
    "off": {"command": "x", "disabled": true}, /* later
    */
    "web": {"serverUrl": "https://x.example//mcp", "description": "a, }", "timeout": 30000,},
  },
}"""
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        servers = config.read(path).mcp_servers
    assert servers == {
        "org_git": {"command": "git-mcp", "args": ["--all"], "type": "stdio"},
        "web": {"url": "https://x.example//mcp", "timeout": 30.0},
    }
    warning_texts = "\n".join(str(one.message) for one in caught)
    for part in (
        "'org_git'",
        "'args'",
        "'type'",
        "'url'",
        "description is ignored",
        "milliseconds",
    ):
        assert part in warning_texts
    path.write_text('{"inputs": [], "servers": {"a": {"url": "http://x"}}}')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert config.read(path).mcp_servers == {"a": {"url": "http://x"}}
    assert len(caught) == 2
    path.write_text('{\n// a\n"mcpServers": {"a" 1}}')
    assert "line 3: it is not JSON" in error_text(path)


LOCAL = {"command": "npx", "args": ["-y", "x"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mcp.json", '{"a": {"command": "npx", "args": ["-y", "x"]}}'),
        (
            "settings.json",
            """{
  "ui": {"theme": "dark"}, "context": {"fileName": "${/}GEMINI.md"}, "tools": {"core": ["ls"]},
  "mcp": {"allowed": ["a"]},
  "mcpServers": {"a": {"command": "npx", "args": ["-y", "x"]}}
}""",
        ),
        (
            "settings.jsonc",
            """{
  // of VS Code
  "editor.fontSize": 14,
  "mcp": {"inputs": [], "servers": {"a": {"command": "npx", "args": ["-y", "x"]}}},
}""",
        ),
        (
            "config.toml",
            'model = "gpt-5"\n[mcp_servers.a]\ncommand = "npx"\nargs = ["-y", "x"]\n'
            "[profiles.fast]\neffort = 1\n",
        ),
        (
            "config.yaml",
            "GOOSE_MODEL: gpt-5\nextensions:\n  a: {cmd: npx, args: ['-y', x], enabled: true}\n"
            "  developer: {type: builtin}\n",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_servers_of_the_settings_of_another_program_load(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert config.read(tmp_path / name).mcp_servers == {"a": LOCAL}


def test_other_settings_beside_the_servers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"ui": {}, "mcpServers": {"a": {"command": "npx"}}, "inputs": []}')
    with pytest.warns(DeprecationWarning, match=r"settings\.json: ignored.*: ui \(the servers"):
        config.read(path)


@pytest.mark.parametrize("key", ["skill", "local_function", "hooks", "concurency"])
def test_a_key_of_a_tool_config_beside_servers_of_others_is_not_ignored(
    key: str, tmp_path: Path
) -> None:
    path = tmp_path / "tools.json"
    path.write_text(f'{{"mcpServers": {{"a": {{"command": "npx"}}}}, "{key}": {{"hook": 1}}}}')
    assert key in error_text(path)


def test_a_placeholder_of_another_program_in_a_file_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "opencode.json"
    path.write_text(
        '{"mcp": {"a": {"type": "remote", "url": "http://x", "headers": {"K": "{env:T}"}}}}'
    )
    with pytest.warns(DeprecationWarning, match="'mcp' is an earlier spelling"):
        config.build(config.read(path))
    assert "nothing fills {env:T} here" in caplog.text
    path.write_text('{"mcpServers": {"a": {"url": "http://x", "headers": {"K": "$${T}"}}}}')
    caplog.clear()
    config.build(config.read(path))
    assert caplog.text == ""


def test_toml_that_is_none_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("a = 1\nb ==\n")
    assert "it is not TOML" in (text := error_text(path))
    assert "line 2" in text


# --- building ---


def test_local_functions_are_found_by_module_and_name_and_keep_what_the_config_says(
    module: Callable[[str], str],
) -> None:
    name = module(TOOLS_MODULE)
    entry = {
        "module": name,
        "function": "search",
        "name": "search_docs",
        "description": "Searches the docs.",
        "category": "docs",
        "timeout": 2.5,
        "retry": {"max_retries": 2, "backoff": "fixed", "delay": 0},
        "annotations": {"read_only": True},
    }
    built = config.build(
        config.read(
            {
                "local_functions": [
                    entry,
                    f"{name}:search",
                    {"function": f"{name}:Box.inside"},
                    f"{name}:as_tool",
                ]
            }
        )
    )
    docs, plain, inside, ready = built.tools
    assert (docs.name, docs.description, docs.category, docs.timeout) == (
        "search_docs",
        "Searches the docs.",
        "docs",
        2.5,
    )
    assert docs.retry == RetryPolicy(2, "fixed", 0)
    assert docs.annotations == ToolAnnotations(read_only=True)
    assert docs.run({"text": "x"}).text == "3 of x"
    assert (plain.name, plain.description, plain.module_qualname) == ("search", "Searches.", name)
    assert inside.run({"a": 4}).data == 4
    assert (ready.name, ready.timeout) == ("ready", 5)


def test_a_tool_subclass_is_instantiated_and_a_tool_object_is_taken_and_left_as_it_is(
    module: Callable[[str], str],
) -> None:
    name = module(TOOLS_MODULE)
    greet = {"function": f"{name}:Made", "name": "greet", "parameters": {"greeting": "Hei"}}
    renamed = {"function": f"{name}:as_tool", "name": "other", "timeout": 1}
    greeter, other = config.build(config.read({"local_functions": [greet, renamed]})).tools
    assert (greeter.name, greeter.run({"name": "Ada"}).text) == ("greet", "Hei, Ada")
    assert (other.name, other.timeout, other.run({}).text) == ("other", 1, "ready")
    mine = sys.modules[name].as_tool
    assert (mine.name, mine.timeout) == ("ready", 5)
    assert config.build(config.read({"local_functions": [f"{name}:as_tool"]})).tools[0] is mine


def test_an_isolated_function_runs_in_another_process(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module("import os\ndef where() -> int:\n    return os.getpid()\n")
    built = config.build(
        config.read(
            {
                "local_functions": [
                    {"module": name, "function": "where", "isolation": "process", "timeout": 20}
                ]
            }
        )
    )
    with_process = built.tools[0].run({}).data
    assert isinstance(with_process, int)
    assert with_process != __import__("os").getpid()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{m}:serch", "local_functions[0]: '{m}' has no 'serch'. Did you mean 'search'?"),
        ("{m}:NOT_A_TOOL", "'{m}:NOT_A_TOOL' is neither a function nor a Tool, but int"),
        ("hf_not_there:x", "module 'hf_not_there' cannot be imported: ModuleNotFoundError"),
        ("{m}:Broken", "'{m}:Broken' cannot be made with these parameters: OSError: no disk"),
        (
            {"function": "{m}:Made", "parameters": {"greting": 1}},
            "unexpected keyword argument 'greting'",
        ),
        ({"function": "{m}:search", "parameters": {}}, "parameters are for a Tool subclass"),
        (
            {"function": "{m}:as_tool", "isolation": "process"},
            "is a Tool; give its isolation in the code that makes it",
        ),
    ],
)
def test_what_cannot_be_imported_is_named_with_its_place(
    module: Callable[[str], str], entry: Any, expected: str
) -> None:
    name = module(TOOLS_MODULE)
    text = error_text({"local_functions": [json.loads(json.dumps(entry).replace("{m}", name))]})
    assert expected.replace("{m}", name) in text
    assert text.startswith("config, local_functions[0]")


def test_two_tools_of_one_name_are_refused_and_the_second_is_named(
    module: Callable[[str], str],
) -> None:
    name = module(TOOLS_MODULE)
    assert "local_functions[1]: there are two tools named 'search'" in error_text(
        {"local_functions": [f"{name}:search", f"{name}:search"]}
    )


def test_builtins_come_from_the_host_alone() -> None:
    ping = Tool("ping", "", lambda: "pong")
    starts: list[int] = []

    def counter(start: int = 0) -> Tool:
        starts.append(start)
        return Tool("counter", "", lambda: start)

    section = {"builtin": ["ping", {"name": "counter", "parameters": {"start": 7}}]}
    built = config.build(config.read(section), {"ping": ping, "counter": counter})
    assert built.tools[0] is ping
    assert built.tools[1].run({}).data == 7
    assert config.build(config.read({"builtin": ["ping"]}), [ping]).tools == (ping,)
    with pytest.raises(
        ConfigurationError,
        match=(
            r"builtin\[0\]: no builtin is named 'pnig'. Did you mean 'ping'\? There are: ping,"
            r" counter"
        ),
    ):
        config.build(config.read({"builtin": ["pnig"]}), {"ping": ping, "counter": counter})
    assert "None were passed: pass builtins=" in error_text({"builtin": ["ping"]})
    with pytest.raises(ConfigurationError, match="is already a tool"):
        config.build(config.read({"builtin": [{"name": "ping", "parameters": {}}]}), [ping])
    with pytest.raises(
        ConfigurationError, match=r"'counter' cannot be made with these parameters: TypeError"
    ):
        config.build(
            config.read({"builtin": [{"name": "counter", "parameters": {"x": 1}}]}),
            {"counter": counter},
        )


def test_hooks_and_limits_are_applied_by_the_manager(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module(TOOLS_MODULE)
    section = {
        "local_functions": [
            {"function": f"{name}:search", "hooks": [{"before": f"{name}:deny"}]},
            {"function": f"{name}:search", "name": "free", "concurrency": 2, "result_limit": 200},
        ],
        "hooks": [{"before": "hf_not_there:guard", "tools": "other.*"}],
    }
    built = config.build(config.read(section, base=tmp_path))
    assert built.concurrency == {"free": 2}
    with closing(ToolManager(**built.arguments())) as manager:
        assert "not today" in manager.run(ToolCall("1.0", "search", {"text": "x"})).text
        assert manager.run(ToolCall("1.1", "free", {"text": "x"})).text == "3 of x"
        assert (
            "characters left out" in manager.run(ToolCall("1.2", "free", {"text": "x" * 500})).text
        )
    assert len(list((tmp_path / ".holdfast" / "results").iterdir())) == 1


def test_services_rules_and_folders_are_plain_data(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(
        "mcp_servers:\n  git: {command: mcp-server-git, cwd: repo, concurrency: 1, hooks: [{after:"
        " 'm:f'}]}\n  web: {url: https://example.org/mcp, headers: {Authorization: 'Bearer"
        " ${TOKEN}'}, lazy: true}\nskills: [skills, /abs]\nconcurrency: 8\npins: pins.json\n"
    )
    parsed = config.read(tmp_path / "tools.yaml", variables={"TOKEN": "hunter2"})
    assert parsed.mcp_servers == {
        "git": {"command": "mcp-server-git", "cwd": str(tmp_path / "repo")},
        "web": {
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer hunter2"},
            "lazy": True,
        },
    }
    assert parsed.skills == (str(tmp_path / "skills"), "/abs")
    assert parsed.concurrency == {"*": 8, "git.*": 1}
    assert [(hook.after, hook.tools) for hook in parsed.hooks] == [("m:f", "git.*")]
    assert parsed.pins == {"file": str(tmp_path / "pins.json")}
    assert "hunter2" not in repr(parsed)
    built = config.build(parsed)
    assert [(source.id, source.kind, source.lazy) for source in built.sources] == [
        ("git", "mcp", False),
        ("web", "mcp", True),
    ]
    assert "hunter2" not in repr(built)


@pytest.mark.slow
def test_a_real_server_from_a_file_is_called_through_the_manager(tmp_path: Path) -> None:
    server = DATA / "mcp_server.py"
    path = tmp_path / "tools.json"
    path.write_text(
        json.dumps({"mcpServers": {"own": {"command": "${PYTHON}", "args": [str(server)]}}})
    )
    built = config.build(config.read(path, variables={"PYTHON": sys.executable}))
    with closing(ToolManager(**built.arguments())) as manager:
        tools = manager.discover()
        assert manager.errors == {}
        assert all(tool.name.startswith("own.") for tool in tools)
        assert tools


@pytest.mark.slow
def test_a_tool_that_was_used_has_the_config_s_name_in_all_that_it_says(
    module: Callable[[str], str],
) -> None:
    name = module(
        "from holdfast.tools import tool\n@tool\ndef orig(a: int) -> int:\n    return"
        " a\n@tool(isolation='process')\ndef far(a: int) -> int:\n    raise"
        " SystemExit(3)\norig.validate({'a': 1}), far.validate({'a': 1})"
    )
    functions = [
        {"function": f"{name}:orig", "name": "renamed"},
        {"function": f"{name}:far", "name": "away", "timeout": 20},
    ]
    with ToolManager.from_config({"local_functions": functions}) as manager:
        assert manager.run(ToolCall("1", "renamed", {"a": "x"})).text.startswith(
            "'renamed' was not run"
        )
        assert manager.run(ToolCall("2", "renamed", {"a": 3})).data == 3
        assert "'away'" in (text := manager.run(ToolCall("3", "away", {"a": 3})).text)
        assert "'far'" not in text
    assert sys.modules[name].orig.validate({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigurationError, match="two tools named 'same'"):
        ToolManager.from_config(
            {
                "local_functions": [
                    {"function": f"{name}:{one}", "name": "same"} for one in ("orig", "far")
                ]
            }
        )


def test_skills_give_a_tool_and_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "skills" / "one").mkdir(parents=True)
    (tmp_path / "skills" / "one" / "SKILL.md").write_text(
        "---\nname: one\ndescription: The first.\n---\nDo it."
    )
    built = config.build(config.read({"skills": ["skills", "absent"]}, base=tmp_path))
    assert [tool.name for tool in built.tools] == ["read_skill"]
    assert "- one: The first." in built.skills.prompt()
    assert config.build(config.read({"skills": []})).tools == ()


def test_an_agent_from_a_file_is_told_of_its_skills_once(tmp_path: Path) -> None:
    (tmp_path / "skills" / "one").mkdir(parents=True)
    (tmp_path / "skills" / "one" / "SKILL.md").write_text(
        "---\nname: one\ndescription: The first.\n---\nDo it."
    )
    agent = load_agent({"model": "gpt-5", "tools": {"skills": ["skills"]}}, base=tmp_path)
    (reader,) = agent.tools.definitions()
    assert agent.system_prompt.count("- one: The first.") == 1
    assert "The first." not in str((reader.description, reader.input_schema))


def test_one_id_for_a_server_and_an_agent_is_refused() -> None:
    assert "'a' is an MCP server too" in error_text(
        {"mcp_servers": {"a": {"command": "x"}}, "a2a_agents": {"a": {"url": "http://x"}}}
    )


# --- errors ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mcp_servers:\n  git:\n    comand: x\n",
            "line 3, mcp_servers.git.comand: unknown key 'comand'. Did you mean 'command'?",
        ),
        (
            "mcp_server: {}\n",
            "line 1, mcp_server: unknown key 'mcp_server'. Did you mean 'mcp_servers'?",
        ),
        (
            "local_functions:\n- function: a:b\n  timout: 3\n",
            "line 3, local_functions[0].timout: unknown key 'timout'. Did you mean 'timeout'?",
        ),
        (
            "local_functions:\n- function: a:b\n  timeout: soon\n",
            "line 3, local_functions[0].timeout: it takes a number of seconds above 0, not 'soon'.",
        ),
        (
            "local_functions:\n- function: a:b\n  retry:\n    max_retries: 2\n    backof: fixed\n",
            "line 5, local_functions[0].retry.backof",
        ),
        (
            "local_functions:\n- function: plain\n",
            "line 2, local_functions[0]: it takes function: 'module:qualname'",
        ),
        ("builtin: terminal\n", "line 1, builtin: it takes a list of names, not 'terminal'."),
        (
            "mcp_servers:\n  a: {command: x, env: {V: 1.10}}\n",
            (
                "line 2, mcp_servers.a.env.V: it takes a text, not another kind of value. In YAML,"
                " put it in quotes."
            ),
        ),
        (
            "mcp_servers:\n  a: {command: x, url: http://x}\n",
            "either command (stdio) or url (HTTP)",
        ),
        (
            "mcp_servers:\n  a: {url: http://x, args: [x]}\n",
            "mcp_servers.a.args: a server with url takes no args",
        ),
        ("mcp_servers:\n  '': {command: x}\n", "invalid name ''"),
        ("skills: [1]\n", "skills[0]: it takes the path of a folder, not the number 1"),
        ("concurrency: true\n", "concurrency: it takes a whole number from 1, not true."),
        ("hooks: [{}]\n", "hooks[0]: a hook has before, after or both"),
        ("[]\n", "takes a mapping of"),
        ("a: [\n", "it is not YAML"),
        ("a: 1\nb: 2\na: 3\n", "line 3, a: the key 'a' is there twice, first on line 1."),
        ("1: x\n", "line 1: a key must be a string; write '1' in quotes."),
        ("a: !!python/object/apply:os.system [true]\n", "line 1, a: the tag"),
        ("a: !!int '5'\n", "the tag"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "line 3, c: merge keys ('<<') are not read"),
        ("a: *nowhere\n", "undefined alias"),
    ],
)
def test_an_error_names_file_line_and_path(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(text)
    text = error_text(path)
    assert expected in text
    assert str(path) in text or "takes a mapping" in text


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in error_text(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"skills: [caf\xe9]")
    assert "not UTF-8" in error_text(tmp_path / "latin.yaml")
    (tmp_path / "large.yaml").write_text("#" * 2_000_000)
    assert "larger than 1024 KB" in error_text(tmp_path / "large.yaml")
    (tmp_path / "bad.json").write_text('{\n"a": 1,\n')
    assert "bad.json, line 3: it is not JSON" in error_text(tmp_path / "bad.json")
    (tmp_path / "twice.json").write_text('{"skills": [], "skills": []}')
    assert "the key 'skills' is there twice" in error_text(tmp_path / "twice.json")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert config.read(tmp_path / "empty.yaml").functions == ()
    assert "takes a mapping or the path" in error_text(5)
    assert "it holds a function" in error_text(
        {"local_functions": [print.__class__.__call__ and (lambda: 1)]}
    )


def test_yaml_keeps_its_surprises_to_itself() -> None:
    text = (
        "a: yes\nb: on\nc: 0755\nd: 2024-01-01\ne: 1:30\nf: 1_000\ng: 0x1f\nh: .inf\ni: '5'\nj:"
        " 1.10\nk: 1e3\nl: ~\nm: True\non: x\nn: !!str 5\no: 1e999\n"
    )
    assert read_yaml(text, SourceLocation("x")) == {
        "a": "yes",
        "b": "on",
        "c": "0755",
        "d": "2024-01-01",
        "e": "1:30",
        "f": "1_000",
        "g": "0x1f",
        "h": ".inf",
        "i": "5",
        "j": 1.1,
        "k": 1000.0,
        "l": None,
        "m": True,
        "on": "x",
        "n": "5",
        "o": "1e999",
    }
    assert read_yaml(text, SourceLocation("x"), texts=True)["j"] == "1.10"
    document = read_yaml("a: &x [1]\nb: *x\n", SourceLocation("x"))
    assert (document["b"], isinstance(document, Map)) == ([1], True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        "a: &a [*a]\n",
        "[" * 5000,
        "{a: " * 5000,
        "- " * 3000 + "x",
    ],
)
def test_bombs_are_refused_within_a_moment(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_yaml(text, SourceLocation("bomb"))
    deep: Any = []
    deep.append(deep)
    with pytest.raises(ConfigurationError, match="nested more than"):
        config.read({"skills": deep})


# --- variables ---


def test_variables_are_filled_from_the_mapping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_SECRET", "from the environment")
    text = error_text({"mcp_servers": {"a": {"command": "x", "env": {"T": "${HF_SECRET}"}}}})
    assert text.startswith("config, mcp_servers.a.env.T: the variable 'HF_SECRET' is not given.")
    assert "Did you mean ${TOKEN}?" in error_text({"skills": ["${TOKN}"]}, variables={"TOKEN": "x"})
    section = {
        "mcp_servers": {
            "a": {
                "command": "${A}-${B:-b}",
                "args": ["$${A}", "$A", "$", "${C:-}", "a$$b"],
                "timeout": "${T}",
                "trusted": "${Y}",
            }
        },
        "concurrency": "${N}",
    }
    parsed = config.read(section, variables={"A": "a", "T": "2.5", "Y": "true", "N": 4})
    assert parsed.mcp_servers["a"] == {
        "command": "a-b",
        "args": ["${A}", "$A", "$", "", "a$$b"],
        "timeout": 2.5,
        "trusted": True,
    }
    assert type(parsed.mcp_servers["a"]["command"]) is str
    assert parsed.concurrency == {"*": 4}
    assert section["concurrency"] == "${N}"  # the caller's mapping stays as it is


def test_a_value_is_filled_once_and_is_what_its_place_wants() -> None:
    section = {
        "mcp_servers": {
            "a": {"command": "${X}", "args": ["${D}", "${N}", "${B}"], "timeout": "${N}"}
        }
    }
    parsed = config.read(section, variables={"X": "${Y}", "D": "5", "N": 5, "B": True})
    assert parsed.mcp_servers["a"] == {"command": "${Y}", "args": ["5", "5", "true"], "timeout": 5}
    entry = {
        "function": "a:b",
        "parameters": {"number": "${N}", "text": "${D}", "both": "${D}${N}", "yes": "${B}"},
    }
    [reference] = config.read(
        {"local_functions": [entry]}, variables={"D": "5", "N": 5, "B": True}
    ).functions
    assert reference.options["parameters"] == {"number": 5, "text": "5", "both": "55", "yes": True}


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A", "${A-b}", "a ${ b"])
def test_a_broken_variable_is_an_error(text: str) -> None:
    assert "begins no variable" in error_text({"skills": [text]}, variables={"A": "x"})


@pytest.mark.parametrize("key", ["timeout", "type", "trusted"])
def test_no_message_shows_what_a_variable_holds(key: str) -> None:
    text = error_text(
        {"mcp_servers": {"a": {"url": "http://x", key: "${SECRET}"}}},
        variables={"SECRET": "hunter2"},
    )
    assert "hunter2" not in text
    assert "the text that a variable gives" in text
    text = error_text({"mcp_servers": {"a": {"url": "${SECRET}"}}}, variables={"SECRET": "hunter2"})
    assert "hunter2" not in text
    assert "hunter2" not in error_text(
        {"a2a_agents": {"a": {"url": "http://x", "token": "hunter2\n"}}}
    )
    assert "takes a text, a number, True or False" in error_text(
        {"skills": ["${L}"]}, variables={"L": []}
    )


# --- earlier spellings ---

LEGACY: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"TOOLS": {"MCP": [{"name": "a", "url": "http://a"}]}},
        {"mcp_servers": {"a": {"url": "http://a"}}},
        "write 'mcp_servers'",
    ),
    (
        {"tools": {"mcp_servers": {"a": {"command": "x"}}}},
        {"mcp_servers": {"a": {"command": "x"}}},
        "write its contents alone",
    ),
    (
        {"mcp_servers": [{"id": "a", "transport": "sse", "url": "http://a"}]},
        {"mcp_servers": {"a": {"url": "http://a", "type": "sse"}}},
        "write 'type'",
    ),
    (
        {"mcp_servers": {"mcpServers": {"a": {"command": "x"}}}},
        {"mcp_servers": {"a": {"command": "x"}}},
        "its contents alone",
    ),
    (
        {"A2A": [{"agent_id": "b", "address": "http://b", "auth_token": "t"}]},
        {"a2a_agents": {"b": {"url": "http://b", "token": "t"}}},
        "write 'token'",
    ),
    (
        {"skills": {"user": ["u"]}},
        {"skills": ["u"]},
        "skills.user is an earlier spelling; write a list in order of precedence, 'skills: ['u']'",
    ),
    (
        {"skills": {"user": "u", "project": ["p", "q"]}},
        {"skills": ["p", "q", "u"]},
        "'skills: ['p', 'q', 'u']'",
    ),
    (
        {"skills.user": ["u"], "skills.project": ["p"]},
        {"skills": ["p", "u"]},
        "skills.project and skills.user",
    ),
    ({"LOCAL_FUNCTIONS": ["a:b"]}, {"local_functions": ["a:b"]}, "write 'local_functions'"),
    (
        {"local_functions": [{"module_path": "a", "function_name": "b"}]},
        {"local_functions": [{"module": "a", "function": "b"}]},
        "write 'function'",
    ),
    ({"BUILTIN": ["a"], "SKILLS": ["s"]}, {"builtin": ["a"], "skills": ["s"]}, "write 'skills'"),
]


@pytest.mark.parametrize(("old", "new", "expected"), LEGACY)
def test_an_earlier_spelling_loads_with_a_warning_that_says_the_present_one(
    old: Any, new: Any, expected: str
) -> None:
    with pytest.warns(DeprecationWarning, match="earlier spelling") as caught:
        loaded = config.read(old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reference = config.read(new)
    without = [
        msgspec.structs.replace(
            one,
            place=SourceLocation(""),
            functions=[msgspec.structs.replace(f, place=SourceLocation("")) for f in one.functions],
            builtin=[msgspec.structs.replace(f, place=SourceLocation("")) for f in one.builtin],
        )
        for one in (loaded, reference)
    ]
    assert msgspec.structs.asdict(without[0]) == msgspec.structs.asdict(without[1])
    assert any(expected in str(one.message) for one in caught), [str(one.message) for one in caught]
    assert {one.filename for one in caught} == {__file__}
    assert JUDGE.is_valid(new)


def test_a_section_in_two_spellings_is_refused_and_errors_have_the_line_of_the_old_one(
    tmp_path: Path,
) -> None:
    with pytest.warns(DeprecationWarning, match="earlier spelling"):
        assert "mcp_servers occurs twice" in error_text({"mcp_servers": {}, "MCP": {}})
    with pytest.warns(DeprecationWarning, match="earlier spelling"):
        assert "two entries named 'a'" in error_text(
            {"mcp_servers": [{"name": "a", "url": "http://a"}, {"name": "a", "url": "http://a"}]}
        )
    path = tmp_path / "old.yaml"
    path.write_text("TOOLS:\n  MCP:\n    - name: a\n      comand: x\n")
    with pytest.warns(DeprecationWarning, match="earlier spelling"):
        assert "line 4, TOOLS.MCP[0].comand: unknown key 'comand'" in error_text(path)


# --- the published schema ---

GOOD: list[dict[str, Any]] = [
    {},
    {"$schema": "x"},
    {"local_functions": []},
    {"local_functions": None, "mcp_servers": None, "skills": None, "hooks": None},
    {
        "local_functions": [
            "a:b",
            {"function": "a.b:c.d"},
            {"module": "a.b", "function": "c"},
            {"module": "a", "function": "b.c"},
        ]
    },
    {
        "local_functions": [
            {
                "function": "a:b",
                "module": None,
                "timeout": 3,
                "name": "x.y",
                "description": "",
                "isolation": "process",
            }
        ]
    },
    {
        "local_functions": [
            {"function": "a:b", "retry": {"max_retries": 0}, "annotations": {"idempotent": True}}
        ]
    },
    {
        "local_functions": [
            {"function": "a:b", "retry": {"max_retries": 3.0, "delay": 0, "backoff": None}}
        ]
    },
    {
        "local_functions": [
            {"function": "a:b", "parameters": {"x": [1, {"y": None}], "$": "${TEXT}"}}
        ]
    },
    {
        "local_functions": [
            {"function": "${TARGET}", "timeout": "${DIGITS}", "concurrency": "${COUNT}"}
        ]
    },
    {"mcp_servers": {"a": {"command": "x"}, "b-1_C": {"url": "https://x/y"}}},
    {
        "mcp_servers": {
            "a": {
                "command": "x",
                "args": ["", "$${X}", "$X", "a$"],
                "env": {"A B": "", "V": "${TEXT}"},
                "cwd": None,
            }
        }
    },
    {
        "mcp_servers": {
            "a": {
                "command": "x",
                "type": "stdio",
                "trusted": True,
                "lazy": "${YES}",
                "timeout": 1,
                "call_timeout": None,
            }
        }
    },
    {
        "mcp_servers": {
            "a": {
                "url": "http://x",
                "type": "sse",
                "mode": "legacy",
                "headers": {"A": "b"},
                "command": None,
                "args": None,
            }
        }
    },
    {"mcp_servers": {"a": {"url": "${URL}", "type": "streamableHttp", "mode": "2026-07-28"}}},
    {
        "mcp_servers": {
            "a": {
                "url": "http://x",
                "concurrency": 1,
                "result_limit": 200,
                "hooks": [{"after": "a:b"}],
            }
        }
    },
    {"mcpServers": {"a": {"command": "x"}}},
    {"mcpServers": {"a": {"command": "x"}}, "mcp_servers": None},
    {
        "a2a_agents": {
            "a": {"url": "http://x"},
            "b": {"url": "https://x:80/a", "token": "t", "headers": {"X": "y"}, "lazy": True},
        }
    },
    {
        "a2a_agents": {
            "a": {
                "url": "http://[::1]:80",
                "origins": ["https://x"],
                "timeout": 2,
                "call_timeout": None,
                "token": None,
            }
        }
    },
    {"a2a_agents": {"a": {"url": "http://x", "headers": {"authorization": "x"}}}},
    {"builtin": ["a", {"name": "b"}, {"name": "c", "parameters": {}, "concurrency": 1}]},
    {"skills": ["a", "~/b", "${TEXT}/c", "${NOPE:-d}", "${NOPE:-}x"]},
    {"concurrency": 1, "result_limit": 200, "result_dir": "x"},
    {"hooks": [{"before": "a:b"}, {"after": "a:b", "tools": "x.*", "before": None}]},
    {"pins": "a.json"},
    {"pins": {"file": "a.json", "first": "hold"}},
]

BAD: list[Any] = [
    [],
    "x",
    {"nope": 1},
    {"MCPSERVERS": {}},
    {"local_functions": {}},
    {"local_functions": [5]},
    {"local_functions": [None]},
    {"local_functions": ["plain"]},
    {"local_functions": ["a:"]},
    {"local_functions": ["1a:b"]},
    {"local_functions": [{}]},
    {"local_functions": [{"function": "b"}]},
    {"local_functions": [{"module": "a"}]},
    {"local_functions": [{"module": "a", "function": "a:b"}]},
    {"local_functions": [{"function": "a:b", "timeout": 0}]},
    {"local_functions": [{"function": "a:b", "timeout": True}]},
    {"local_functions": [{"function": "a:b", "timeout": "3"}]},
    {"local_functions": [{"function": "a:b", "timeout": 1e12}]},
    {"local_functions": [{"function": "a:b", "name": "a b"}]},
    {"local_functions": [{"function": "a:b", "name": ""}]},
    {"local_functions": [{"function": "a:b", "name": 5}]},
    {"local_functions": [{"function": "a:b", "isolation": "thread"}]},
    {"local_functions": [{"function": "a:b", "retry": {}}]},
    {"local_functions": [{"function": "a:b", "retry": {"max_retries": 1.5}}]},
    {"local_functions": [{"function": "a:b", "retry": {"max_retries": -1}}]},
    {"local_functions": [{"function": "a:b", "retry": {"max_retries": 1, "backoff": "linear"}}]},
    {"local_functions": [{"function": "a:b", "annotations": {"read_only": 1}}]},
    {"local_functions": [{"function": "a:b", "annotations": {"readOnly": True}}]},
    {"local_functions": [{"function": "a:b", "parameters": {"x": "${"}}]},
    {"local_functions": [{"function": "a:b", "hooks": [{}]}]},
    {"mcp_servers": {"a": {}}},
    {"mcp_servers": {"a": None}},
    {"mcp_servers": {"a": {"command": "x", "url": "http://x"}}},
    {"mcp_servers": {"a": {"command": ""}}},
    {"mcp_servers": {"a": {"command": None}}},
    {"mcp_servers": {"a": {"command": "x", "headers": {}}}},
    {"mcp_servers": {"a": {"command": "x", "type": "http"}}},
    {"mcp_servers": {"a": {"url": "http://x", "type": "stdio"}}},
    {"mcp_servers": {"a": {"url": "http://x", "cwd": "y"}}},
    {"mcp_servers": {"a": {"url": "ftp://x"}}},
    {"mcp_servers": {"a": {"url": "http://x", "type": "sse", "mode": "2026-07-28"}}},
    {"mcp_servers": {"a": {"url": "http://x", "mode": "2020"}}},
    {"mcp_servers": {"a": {"url": "http://x", "timeout": 0}}},
    {"mcp_servers": {"a": {"url": "http://x${"}}},
    {"mcp_servers": {"a": {"command": "x", "args": "y"}}},
    {"mcp_servers": {"a": {"command": "x", "args": [1]}}},
    {"mcp_servers": {"a": {"command": "x", "env": {"A": 1}}}},
    {"mcp_servers": {"a": {"command": "x", "env": {"A": None}}}},
    {"mcp_servers": {"": {"command": "x"}}},
    {"mcp_servers": {"a" * 65: {"command": "x"}}},
    {"mcp_servers": {}, "mcpServers": {}},
    {"a2a_agents": {"a": {}}},
    {"a2a_agents": {"a": {"url": "http://u:p@x"}}},
    {"a2a_agents": {"a": {"url": "http://x?y"}}},
    {"a2a_agents": {"a": {"url": "http://x:99999"}}},
    {"a2a_agents": {"a": {"url": "http://x", "token": "é"}}},
    {
        "a2a_agents": {
            "a": {"url": "http://x", "token": "t", "headers": {"AUTHORIZATION": "x", "B": "c"}}
        }
    },
    {"a2a_agents": {"a": {"url": "http://x", "origins": ["x"]}}},
    {"a2a_agents": {"a": {"url": "http://x", "timeout": -1}}},
    {"builtin": "a"},
    {"builtin": [""]},
    {"builtin": [{}]},
    {"builtin": [{"name": "a", "timeout": 1}]},
    {"skills": "a"},
    {"skills": [""]},
    {"skills": [None]},
    {"skills": {"usr": ["a"]}},
    {"skills": ["${1}"]},
    {"local_functions": ["$${X}"]},
    {"concurrency": "$${COUNT}"},
    {"a2a_agents": {"a": {"url": "http://x\n"}}},
    {"local_functions": ["a:b\n"]},
    {"concurrency": 0},
    {"concurrency": 1.5},
    {"result_limit": 199},
    {"result_dir": 5},
    {"hooks": [{"tools": "x"}]},
    {"hooks": [{"before": "x"}]},
    {"hooks": {"before": ["a:b"]}},
    {"pins": {"first": "hold"}},
    {"pins": {"file": "x", "first": "maybe"}},
]


@pytest.mark.parametrize("document", GOOD, ids=json.dumps)
def test_the_schema_and_the_parser_accept(document: Any) -> None:
    JUDGE.validate(document)
    config.read(document, variables=VARIABLES)


@pytest.mark.parametrize("document", BAD, ids=json.dumps)
def test_the_schema_and_the_parser_refuse(document: Any) -> None:
    assert not JUDGE.is_valid(document)
    with pytest.raises(ConfigurationError):
        config.read(document, variables=VARIABLES)


ODD: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    3.0,
    0.5,
    1e12,
    "",
    "x",
    "a:b",
    "$${X}",
    "${",
    "http://x",
    "http",
    "sse",
    "stdio",
    "process",
    [],
    {},
    ["x"],
    {"x": "y"},
    "/p",
    " ",
    "é",
    "x\n",
    "a:b\n",
]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, member in (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    ):
        yield from places(member, (*path, key))


@pytest.mark.slow
def test_they_agree_on_configs_that_were_changed_at_random() -> None:
    chance = random.Random(1)
    keys = sorted(
        {key for kind in SCHEMA["$defs"].values() for key in kind.get("properties", {})}
        | set(TOOLS.keys)
    )
    start = [
        document
        for document in GOOD + BAD
        if isinstance(document, dict) and "${" not in json.dumps(document)
    ]
    judged = {True: 0, False: 0}
    for _ in range(3000):
        document = copy.deepcopy(chance.choice(start))
        for _ in range(chance.randint(1, 3)):
            *path, last = chance.choice([*places([document])][1:])
            holder: Any = [document]
            for key in path:
                holder = holder[key]
            if isinstance(holder[last], dict) and chance.random() < 0.6:
                holder[last][chance.choice(keys)] = copy.deepcopy(chance.choice(ODD))
            elif path and chance.random() < 0.3:
                del holder[last]
            else:
                holder[last] = copy.deepcopy(chance.choice(ODD))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                config.read(document)
                good = True
            except ConfigurationError:
                good = False
            except DeprecationWarning:
                continue
        assert JUDGE.is_valid(document) == good, document
        judged[good] += 1
    assert min(judged.values()) > 200


def test_what_is_read_is_what_the_clients_take() -> None:
    """Check that a service which the configuration accepts is one for the client, too."""
    for document in GOOD:
        if (
            "TARGET" not in json.dumps(document)
            and not document.get("local_functions")
            and not document.get("builtin")
        ):
            config.build(
                msgspec.structs.replace(config.read(document, variables=VARIABLES), skills=())
            )


def test_the_published_schema_is_that_of_the_table_and_is_one() -> None:
    assert schema() == SCHEMA, (
        "run: python -m holdfast.tools.config.keys > src/holdfast/tools/config/tools.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert all(key.description for key in TOOLS.keys.values())
    server, agent = (
        SCHEMA["$defs"]["mcpServer"]["properties"],
        SCHEMA["$defs"]["a2aAgent"]["properties"],
    )
    for kind, keys in ((Stdio, server), (Http, server), (RemoteAgent, agent)):
        missing = {field.name for field in msgspec.structs.fields(kind)} - set(keys)
        assert not missing, f"config/services.py cannot say {missing} of {kind.__name__}"


@pytest.mark.slow
def test_a_config_loads_no_heavy_library() -> None:
    program = (
        "import sys; from holdfast.tools import config; config.build(config.read({'mcp_servers':"
        " {'a': {'command': 'x'}}, 'concurrency': 2}));print([m for m in ('pydantic', 'jsonschema',"
        " 'mcp', 'yaml', 'a2a', 'asyncio') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
