"""`load_agent`: a whole agent from a file, run against real parts, and the errors of a file that
does not fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast import Conversation, FallbackLLM, Limits, LocalRuntime, ScriptedLLM, Tool
from holdfast.agent.config import schema
from holdfast.agent.load import load_agent
from holdfast.errors import ConfigurationError
from holdfast.llm import LLM
from tests.model_server import ModelServer, calls, text
from tests.paths import DATA


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that writes a module to a folder on the path and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def make(text: str) -> str:
        name = f"hf_agent_{len(names)}"
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


PARTS = '''
from holdfast import ScriptedLLM
from holdfast.agent.confirmation import Verdict

def shout(text: str) -> str:
    """Shouts."""
    return text.upper()

class Shortener:
    def __init__(self, keep=10):
        self.keep = keep
    def condense(self, journal, reason, cancelled):
        return None

class Policy:
    def decide(self, call, risk):
        return Verdict("deny", "never here")

ready = ScriptedLLM(["Ready."], model="ready")
number = 5
'''

SCRIPTED = {"use": "scripted", "parameters": {"script": ["Hello."]}}


def error_of(source: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_agent(source, **options)
    return str(caught.value)


@pytest.mark.slow
def test_a_whole_agent_from_a_file_does_its_work(
    tmp_path: Path, module: Callable[[str], str]
) -> None:
    name = module(PARTS)
    (tmp_path / "agents" / "prompts").mkdir(parents=True)
    (tmp_path / "agents" / "prompts" / "base.md").write_text("You are terse.\n")
    (tmp_path / "agents" / "skills" / "greet").mkdir(parents=True)
    (tmp_path / "agents" / "skills" / "greet" / "SKILL.md").write_text(
        "---\nname: greet\ndescription: How to greet.\n---\nBow."
    )
    path = tmp_path / "agents" / "agent.yaml"
    path.write_text(f"""
model:
  name: gpt-4o-mini
  api_key: ${{KEY}}
  base_url: ${{URL}}
  temperature: 0
  max_retries: ${{RETRIES:-1}}
system_prompt: {{file: prompts/base.md}}
system_prompt_extensions:
  - Answer in Norwegian.
tools:
  builtin: [read_file]
  local_functions:
    - {{module: {name}, function: shout, name: shout_it}}
  mcp_servers:
    own: {{command: {sys.executable}, args: [{DATA / "mcp_server.py"}]}}
skills: [skills]
limits: {{steps: 5, cost: null}}
confirm: never
parallel_calls: 2
output_limit: 2000
""")

    def answer(request: Any) -> Any:
        if request.messages[-1]["role"] == "user":
            return calls(("read_skill", {"name": "greet"}), ("shout_it", {"text": "hei"}))
        return text("Hei.")

    with ModelServer(answer) as server, LocalRuntime(tmp_path) as runtime:
        agent = load_agent(
            path, variables={"KEY": "sk-hunter2", "URL": server.url}, runtime=runtime
        )
        assert "hunter2" not in repr(agent)
        with Conversation(agent) as conversation:
            conversation.send_message("Hei?")
            state = conversation.run()
        first = server.requests[0]
    assert state.answer == "Hei."
    results = {
        event.result.text.split("\n")[0] for event in state.events if event.type == "toolResult"
    }
    assert results == {"Bow.", "HEI"}
    assert first.json["temperature"] == 0
    names = [tool["function"]["name"] for tool in first.json["tools"]]
    assert names[:3] == ["shout_it", "read_file", "read_skill"]
    assert any(name.startswith("own__") for name in names)
    assert agent.system_prompt.startswith("You are terse.\n\nAnswer in Norwegian.\n\n# Skills")
    assert agent.system_prompt.endswith("- greet: How to greet.")
    assert (agent.limits, agent.parallel_calls, agent.output_limit) == (Limits(steps=5), 2, 2000)


def test_a_model_is_a_name_a_mapping_a_list_or_code(module: Callable[[str], str]) -> None:
    name = module(PARTS)
    assert isinstance(load_agent({"model": "gpt-5"}).llm, LLM)
    several = load_agent({"model": ["gpt-5", {"name": "claude-sonnet-4-5", "api_key": "k"}]}).llm
    assert isinstance(several, FallbackLLM)
    assert list(several.models) == ["gpt-5", "claude-sonnet-4-5"]
    assert load_agent({"model": SCRIPTED}).llm.completion("Hi").text == "Hello."
    assert load_agent({"model": {"use": f"{name}:ready"}}).llm is sys.modules[name].ready
    mine = ScriptedLLM([])
    assert load_agent({"model": {"use": "mine"}}, builtins={"mine": mine}).llm is mine
    typed = load_agent(
        {"model": {"name": "gpt-5", "max_output_tokens": "${N}", "stream": "${S}"}},
        variables={"N": "5", "S": "true"},
    ).llm
    assert isinstance(typed, LLM)
    assert (typed.parameters()["max_output_tokens"], typed.stream) == (5, True)


def test_parts_are_made_by_name_with_their_parameters(module: Callable[[str], str]) -> None:
    name = module(PARTS)
    agent = load_agent(
        {
            "model": SCRIPTED,
            "condenser": {"use": f"{name}:Shortener", "parameters": {"keep": 3}},
            "confirm": {"use": f"{name}:Policy"},
            "limits": {"steps": None},
        }
    )
    assert agent.condenser.keep == 3  # type: ignore[union-attr]
    assert type(agent.confirm).__name__ == "Policy"
    assert agent.limits.steps is None
    assert load_agent({"model": SCRIPTED, "condenser": f"{name}:Shortener"}).condenser.keep == 10  # type: ignore[union-attr]
    policy = load_agent({"model": SCRIPTED, "confirm": {"use": "deny", "*": "ask"}}).confirm
    assert repr(policy) == "ByTool({'use': 'deny', '*': 'ask'})"


def test_tools_may_be_in_a_file_of_their_own_and_prompts_in_microagents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tools.yaml").write_text("builtin: ['${WHICH}']\nskills: [here]\n")
    (tmp_path / "note.md").write_text("Be kind.")
    document = {
        "model": SCRIPTED,
        "tools": "sub/tools.yaml",
        "microagents": ["Inline.", {"file": "note.md"}],
    }
    ping = Tool("ping", "", lambda: "pong")
    agent = load_agent(document, variables={"WHICH": "ping"}, builtins=[ping], base=tmp_path)
    assert agent.tools.list_tools() == [ping]
    assert agent.system_prompt.endswith("Inline.\n\n# note\n\nBe kind.")


def test_an_escaped_variable_in_inline_tools_is_unescaped_once() -> None:
    document = {
        "model": SCRIPTED,
        "tools": {"mcp_servers": {"a": {"command": "x", "args": ["$${A}", "$$${A}"]}}},
    }
    agent = load_agent(document)
    assert agent.tools.list_tools() == []
    assert "not given" not in repr(agent)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "model is missing"),
        ("model: gpt-5\nlimit: {}\n", "line 2, limit: unknown key 'limit'. Did you mean 'limits'?"),
        (
            "model:\n  name: gpt-5\n  temprature: 1\n",
            "line 3, model.temprature: unknown key 'temprature'. Did you mean 'temperature'?",
        ),
        (
            "model:\n  name: gpt-5\n  temperature: 7\n",
            "line 3, model.temperature: LLM: temperature takes a number from 0 to 2, not 7.",
        ),
        ("model:\n- gpt-5\n- {name: x, base_url: 'ftp://x'}\n", "line 3, model[1].base_url"),
        (
            "model:\n  name: gpt-5\n  api_key: '${KEY}'\n",
            "line 3, model.api_key: the variable 'KEY' is not given.",
        ),
        ("model: {name: a, use: b}\n", "line 1, model: a model has either name"),
        ("model: {use: nothing}\n", "line 1, model: no builtin is named 'nothing'."),
        (
            "model: {use: 'hf_not_there:x'}\n",
            "line 1, model: module 'hf_not_there' cannot be imported",
        ),
        ("model: {use: 'os:sep'}\n", "'os:sep' gives str, which is not a model"),
        (
            "model: {use: scripted, parameters: {script: x}}\n",
            "'scripted' cannot be made with these parameters",
        ),
        (
            "model: {use: scripted, temperature: 1}\n",
            "model.temperature: a model with use takes parameters alone",
        ),
        (
            "model: gpt-5\ntools:\n  mcp_servers:\n    a: {comand: x}\n",
            "line 4, tools.mcp_servers.a.comand: unknown key 'comand'",
        ),
        (
            "model: gpt-5\ntools:\n  builtin:\n  - nothing\n",
            "tools.builtin[0]: no builtin is named 'nothing'",
        ),
        (
            "model: gpt-5\ntools: none.yaml\n",
            "line 2, tools: config takes a mapping or the path of a file",
        ),
        (
            "model: gpt-5\ntools: [a]\n",
            "line 2, tools: it takes a tool config, or the path of one, not a list",
        ),
        ("model: gpt-5\nsystem_prompt: {file: none.md}\n", "line 2, system_prompt.file: "),
        (
            "model: gpt-5\nsystem_prompt_extensions: [x, {file: none.md}]\n",
            "system_prompt_extensions[1].file: ",
        ),
        ("model: gpt-5\nmicroagents: [{file: none.md}]\n", "microagents[0].file: "),
        (
            "model: gpt-5\nconfirm: sometimes\n",
            "line 2, confirm: it takes 'never' or 'always' or 'risky', not 'sometimes'.",
        ),
        (
            "model: gpt-5\nconfirm: {terminal: maybe}\n",
            "line 2, confirm.terminal: it takes 'allow' or 'ask' or 'deny', not 'maybe'.",
        ),
        (
            "model: gpt-5\nlimits: {steps: 0}\n",
            "line 2, limits.steps: it takes a whole number from 1",
        ),
        (
            "model: gpt-5\noutput_limit: 5\n",
            "line 2, output_limit: it takes a number of characters from 1000",
        ),
        (
            "model: gpt-5\ncondenser: {use: 'os:sep'}\n",
            "condenser takes an object with a method condense",
        ),
        (
            "model: gpt-5\nskills: [a]\ntools: {skills: [b]}\n",
            "line 2, skills: skills appears in tools too",
        ),
        (
            "model: {name: no-such-model-x, base_url: 'http://x'}\nlimits: {cost: 1}\n",
            "limits has a cost",
        ),
    ],
)
def test_an_error_names_the_place_in_the_file(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    message = error_of(path)
    assert problem in message
    assert message.startswith(str(path))


def test_no_error_shows_a_key() -> None:
    model = {"name": "gpt-5", "api_key": "${KEY}"}
    for key in ("sk-hunter2\nX: y", "sk-hunter2é"):
        assert "hunter2" not in error_of({"model": model}, variables={"KEY": key})
    assert "hunter2" not in error_of({"model": {**model, "api_key": ["sk-hunter2"]}}, variables={})


def test_sections_in_capital_letters_load_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="earlier spelling") as caught:
        agent = load_agent(
            {"model": SCRIPTED, "TOOLS": {"BUILTIN": ["ping"]}},
            builtins=[Tool("ping", "", lambda: "pong")],
        )
    assert [tool.name for tool in agent.tools.list_tools()] == ["ping"]
    assert {one.filename for one in caught} == {__file__}
    assert [str(one.message).split(": ", 1)[1] for one in caught] == [
        "'TOOLS' is an earlier spelling; write 'tools'.",
        "'BUILTIN' is an earlier spelling; write 'builtin'.",
    ]


GOOD: list[dict[str, Any]] = [
    {"model": "gpt-5"},
    {
        "model": ["gpt-5", {"name": "gpt-4o", "temperature": "${N:-1}"}],
        "confirm": ["a"],
        "limits": None,
    },
    {"model": SCRIPTED, "confirm": {"use": "deny"}, "system_prompt": "", "tools": {"builtin": []}},
    {
        "model": SCRIPTED,
        "confirm": "always",
        "limits": {"steps": None, "tokens": 5, "seconds": 0.5},
        "skills": ["a"],
    },
]
BAD: list[dict[str, Any]] = [
    {},
    {"model": 5},
    {"model": {"name": "gpt-5", "temp": 1}},
    {"model": {"name": "gpt-5", "stream": "yes"}},
    {"model": "gpt-5", "tools": {"builtn": []}},
    {"model": "gpt-5", "limits": {"steps": 1.5}},
    {"model": "gpt-5", "confirm": {"a": "b"}},
    {"model": "gpt-5", "system_prompt": {"path": "x"}},
    {"model": "gpt-5", "condenser": {"parameters": {}}},
]


@pytest.mark.slow
def test_the_schema_judges_as_load_agent_does(tmp_path: Path) -> None:
    judge = jsonschema.Draft202012Validator(schema())
    judge.check_schema(schema())
    for document in GOOD:
        judge.validate(document)
        load_agent(document)
    for document in BAD:
        assert not judge.is_valid(document), json.dumps(document)
        error_of(document)
