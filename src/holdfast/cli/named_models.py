"""Models and agents that files describe, with keys from the file or the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.agent import Agent
from holdfast.agent.load import load_agent
from holdfast.agent.model_folder import ModelFolder
from holdfast.cli.environment import api_key, key_variables
from holdfast.cli.exit_codes import UsageError
from holdfast.errors import ConfigurationError
from holdfast.llm import LLM, FallbackLLM, Model, RouterLLM
from holdfast.llm.address import locate
from holdfast.runtime.folder import FolderRuntime
from holdfast.tools.preset.asking import register_asking_tools


def named_model(folder: Path, name: str, env: Mapping[str, str]) -> Model:
    """Return a model of the folder with its keys: those of its file, else the usual variable of its
    provider. Raises `UsageError`, `ConfigurationError`."""
    entry = ModelFolder(folder, env).entry(name)
    if entry.problem:
        raise UsageError(entry.problem)
    if entry.kind == "agent":
        hint = f"`holdfast serve --agent {entry.name}` offers it"
        raise UsageError(f"--model: {str(entry.path)!r} is an agent, not a model; {hint}")
    if entry.missing:
        raise UsageError(
            f"the environment variable {entry.missing[0]}, which {str(entry.path)!r} refers to, is"
            " not set"
        )
    return map_llms(entry.model, lambda llm: with_key(llm, env))


def agent_of_file(path: Path, variables: Mapping[str, str], runtime: FolderRuntime) -> Agent:
    """Return the agent of a file, which may name all builtin tools. Raises `ConfigurationError`,
    `OSError`."""
    tools = [*runtime.all_tools, *register_asking_tools()]
    return load_agent(path, variables=variables, builtins=tools)


def with_key(llm: LLM, env: Mapping[str, str]) -> LLM:
    """Return a model with the key of its provider, unless it has one. Raises `UsageError`."""
    arguments = llm.arguments()
    if arguments["api_key"] or arguments["headers"]:
        return llm
    # HOLDFAST_API_KEY is for the address of HOLDFAST_BASE_URL, not for one in a file.
    usual = {name: value for name, value in env.items() if name != "HOLDFAST_API_KEY"}
    return llm.replace(api_key=api_key(llm.base_url, None, usual, _provider(llm)))


def usual_variables(llm: LLM) -> tuple[str, ...]:
    """Return the variables that `with_key` reads for a model."""
    return key_variables(_provider(llm))


def map_llms(model: Any, change: Callable[[LLM], LLM]) -> Any:
    """Return a model with this change of each `LLM` in it."""
    if type(model) is LLM:
        return change(model)
    if type(model) is FallbackLLM:
        members = {name: map_llms(one, change) for name, one in model.models.items()}
        return FallbackLLM(members, on=model.on, sticky=model.sticky)
    if type(model) is RouterLLM:
        members = {name: map_llms(one, change) for name, one in model.models.items()}
        return RouterLLM(model.pick, members)
    return model


def _provider(llm: LLM) -> str:
    try:
        return locate(llm.model, llm.arguments()["base_url"]).provider
    except ConfigurationError:
        return ""
