"""`ModelFolder`: models and agents by the names of their files, and the errors of such files."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import LLM, Agent, FallbackLLM, LocalRuntime
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.model_folder import ModelFolder
from holdfast.agent.serial_form import form_of
from holdfast.errors import ConfigurationError
from holdfast.llm import NamedModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fast.yaml").write_text("name: gpt-5-mini\napi_key: ${KEY}\n")
    (tmp_path / "plain.yml").write_text("gpt-5\n")
    (tmp_path / "both.json").write_text('["gpt-5", {"name": "claude-sonnet-4-5", "api_key": "k"}]')
    (tmp_path / "coder.yaml").write_text(
        "model: {name: gpt-5, api_key: '${KEY:-none}'}\ntools: {builtin: [terminal]}\n"
    )
    (tmp_path / "typo.yaml").write_text("nam: gpt-5\n")
    (tmp_path / "broken.yaml").write_text("name: [\n")
    (tmp_path / "-x.yaml").write_text("gpt-5\n")
    (tmp_path / "README.md").write_text("Not a model.\n")
    (tmp_path / ".hidden.yaml").write_text("gpt-5\n")
    return tmp_path


def test_the_files_are_listed_and_a_wrong_one_affects_no_other(folder: Path) -> None:
    entries = {entry.name: entry for entry in ModelFolder(folder).entries()}
    assert list(entries) == ["-x", "both", "broken", "coder", "fast", "plain", "typo"]
    assert {name for name, entry in entries.items() if entry.problem} == {"-x", "broken", "typo"}
    assert "typo.yaml, line 1" in entries["typo"].problem
    assert entries["coder"].kind == "agent"
    assert entries["fast"].missing == entries["fast"].variables == ("KEY",)
    assert (entries["coder"].variables, entries["coder"].missing) == (("KEY",), ())
    assert "secret" not in repr(ModelFolder(folder, {"KEY": "secret"}).entry("fast"))


def test_a_name_gives_its_model_or_its_agent(folder: Path) -> None:
    models = ModelFolder(folder, {"KEY": "sk-planted"})
    fast = models.model("fast")
    assert isinstance(fast, LLM)
    assert (fast.model, fast.arguments()["api_key"]) == ("gpt-5-mini", "sk-planted")
    assert isinstance(models.model("both"), FallbackLLM)
    with LocalRuntime(folder) as runtime:
        agent = models.agent("coder", runtime=runtime)
    assert [tool.name for tool in agent.own_tools()] == ["terminal"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fsat", "Did you mean 'fast'? It has: -x, both"),
        ("../fast", "has no model '../fast'"),
        ("coder", "is an agent, not a model"),
        ("fast", "the variable 'KEY' is not given"),
        ("broken", "broken.yaml, line 2"),
    ],
)
def test_a_name_without_a_usable_model_says_why(folder: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelFolder(folder).model(name)
    assert words in str(caught.value)


def test_a_folder_that_does_not_exist_is_empty_and_a_file_is_refused(folder: Path) -> None:
    assert ModelFolder(folder / "gone").entries() == []
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ModelFolder(folder / "fast.yaml").names()
    with pytest.raises(ConfigurationError, match="is a model, not an agent"):
        ModelFolder(folder).agent("plain")


def test_a_named_model_travels_by_its_name_and_answers_nothing_here() -> None:
    form = form_of(Agent(NamedModel("fast")))
    assert form.mapping["model"] == {"named": "fast"}
    again = Agent.from_json(form.to_json())
    assert isinstance(again.llm, NamedModel)
    with pytest.raises(ConfigurationError, match="'fast' is a name on an agent server"):
        again.llm.completion("Hello?")
    with pytest.raises(ConfigurationError, match="takes the name of a model"):
        NamedModel("")


def test_the_key_of_a_model_does_not_go_to_another_provider_with_a_sub_agent() -> None:
    subs = {
        "near": SubAgent("near", prompt="x", model="gpt-5"),
        "far": SubAgent("far", prompt="x", model="ollama/q"),
    }
    owner = Agent(LLM("gpt-5-mini", api_key="sk-planted"), delegates=subs)
    assert owner.delegates is not None
    assert owner.delegates.agent("near").llm.model == "gpt-5"  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(ConfigurationError, match="needs a key of its own"):
        owner.delegates.agent("far")
