"""The objects that options name: limits, model, prompt, schema, sub-agents and observers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from holdfast import observe
from holdfast.agent import Agent, Limits
from holdfast.agent.agents_files import SubAgent, load_sub_agents
from holdfast.agent.condensers import LLMCondenser
from holdfast.agent.goal import CommandJudge, Goal
from holdfast.agent.model_files import model_files
from holdfast.agent.output import Output
from holdfast.cli.environment import api_key, base_url, model_name
from holdfast.cli.exit_codes import UsageError, flag
from holdfast.cli.files import naming, path_of, read_text
from holdfast.cli.model_names import models_in, models_path
from holdfast.conversation.observer import Observer
from holdfast.errors import ConfigurationError
from holdfast.llm import LLM, Model
from holdfast.llm.address import locate
from holdfast.llm.secrets import argument_secrets
from holdfast.tools import Tool
from holdfast.tools.document import did_you_mean


def model_of(options: Namespace, env: Mapping[str, str], stream: bool) -> Model:
    """Return the model with its key. A name of the folder of models wins over a provider's name of
    a model. `--model-key-name` refers to a variable of the server instead. Raises `UsageError`."""
    model = model_name(options.model, env)
    folder = models_path(options, env)
    if model in (files := model_files(folder)):
        return _model_from_file(model, files[model], options, env, stream)
    url = base_url(options.base_url, env)
    retries = 5 if options.retries is None else options.retries
    try:
        llm = LLM(model, base_url=url, stream=stream and not options.no_stream, max_retries=retries)
        if options.model_key_name is not None:
            return llm.replace(api_key=f"${{{options.model_key_name}}}")
        provider = locate(model, url).provider
        return llm.replace(api_key=api_key(llm.base_url, options.api_key_env, env, provider))
    except ConfigurationError as error:
        message = str(error).replace("LLM: base_url", "--base-url (or HOLDFAST_BASE_URL)")
        message = message.replace("LLM: api_key", "the API key").removeprefix("LLM: ")
        if files:
            near = did_you_mean(model, files)
            message += f"{near} The named models of {str(folder)!r} are: {', '.join(files)}."
        raise UsageError(message) from error


def _model_from_file(
    name: str, path: Path, options: Namespace, env: Mapping[str, str], stream: bool
) -> Model:
    from holdfast.cli.named_models import map_llms, named_model  # reading files takes long to load

    for one in ("base_url", "api_key_env", "model_key_name"):
        if getattr(options, one) is not None:
            where = f"{str(path)!r} describes the model"
            raise UsageError(f"{flag(one)} cannot be combined with --model {name}: {where}")

    def change(llm: LLM) -> LLM:
        retries = {} if options.retries is None else {"max_retries": options.retries}
        return llm.replace(stream=stream and not options.no_stream, **retries)

    return map_llms(named_model(path.parent, name, env), change)


def keys_of(model: Model) -> list[str]:
    """Return the keys of a model, which logs must mask."""
    return [key for llm in models_in(model) for key in argument_secrets(llm.arguments())]


def agent_settings(options: Namespace) -> dict[str, Any]:
    """Return the parameters of `Agent` that the options name. Raises `UsageError`."""
    prompt = options.system_prompt_file
    return {
        "system_prompt": None if prompt is None else read_text(prompt, "--system-prompt-file"),
        "output_type": output_schema(options.output_schema),
        "limits": Limits(steps=500 if options.max_steps is None else options.max_steps),
        "planning": options.plan,
        "goal": _goal(options.goal, options.goal_check),
    }


def _goal(text: str | None, command: str | None) -> Goal | None:
    """Return the goal of `--goal` and `--goal-check`. Raises `UsageError`."""
    if text is None and command is None:
        return None
    with naming("--goal", ""):
        judge = None if command is None else CommandJudge(command)
        return Goal(f"`{command}` succeeds." if text is None else text, judge)


def agent_in(
    place: str, llm: Model, tools: Sequence[Tool], settings: Mapping[str, Any], sandbox: str = ""
) -> Agent:
    """Return an agent whose prompt names the folder that it works in, and describes the
    `sandbox`."""
    extensions = [f"You work in {place}. Paths are relative to it.", *filter(None, [sandbox])]
    return Agent(
        llm,
        tools,
        system_prompt_extensions=extensions,
        condenser=LLMCondenser(),
        **settings,
    )


def output_schema(path: str | None) -> dict[str, Any] | None:
    """Return the JSON Schema of `--output-schema`. Raises `UsageError`."""
    if path is None:
        return None
    text = read_text(path, "--output-schema")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--output-schema {path!r} cannot be read: {error}") from error
    if not isinstance(schema, dict):
        why = "it contains no JSON object"
        raise UsageError(f"--output-schema {path!r} is not a JSON Schema: {why}")
    try:
        return cast("dict[str, Any]", Output(schema).type)
    except ConfigurationError as error:
        problem = str(error).removeprefix("Agent: output_type ").rstrip(".")
        raise UsageError(f"--output-schema {path!r}: {problem}") from error


def sub_agents(folder: str | None) -> Mapping[str, SubAgent]:
    """Return the agents of `--agents DIR`. Raises `UsageError` for a folder without agents."""
    if folder is None:
        return {}
    try:
        agents = load_sub_agents(path_of(folder))
    except ConfigurationError as error:
        raise UsageError(f"--agents takes a folder; {folder!r} is not one") from error
    if not agents:
        raise UsageError(
            f"--agents {folder!r}: no readable agent was found in the folder, or in its"
            " .agents/agents, .holdfast/agents or .claude/agents"
        )
    return agents


def observers_of(
    options: Namespace, content: bool, secrets: Sequence[str], stack: ExitStack
) -> list[Observer]:
    """Return the observers of `--trace` and `--log`. `stack` closes them. Raises `UsageError`."""
    observers: list[Observer] = []
    if options.trace:
        try:
            observers.append(observe.Telemetry())
        except ConfigurationError:
            raise UsageError(
                "--trace needs opentelemetry-api, which is not installed: pip install"
                " 'holdfast[otel]'"
            ) from None
    if options.log is not None:
        path = path_of(options.log)
        try:
            log = observe.JsonLog(path, content=content, secrets=secrets)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or error
            raise UsageError(f"--log {options.log!r} cannot be written: {problem}") from error
        observers.append(stack.enter_context(log))
    return observers
