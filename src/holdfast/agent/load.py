"""`load_agent`: an agent from a YAML file or a mapping."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent import config
from holdfast.agent.agent import Agent
from holdfast.agent.config_parts import AgentLoader
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool
from holdfast.tools.config import known_builtins
from holdfast.tools.document import Map, load


class HasTools(Protocol):
    """A source of preset tools, such as a `LocalRuntime`."""

    @property
    def tools(self) -> list[Tool]: ...


def load_agent(
    source: Mapping[str, Any] | str | os.PathLike[str],
    *,
    variables: Mapping[str, Any] | None = None,
    builtins: Mapping[str, Any] | Iterable[Tool] | None = None,
    runtime: HasTools | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Agent:
    """Make an `Agent` from a YAML file (JSON, if the name ends in .json) or a mapping.

        model: {name: gpt-5, api_key: "${OPENAI_API_KEY}"}
        system_prompt: {file: prompts/system.md}
        tools: {builtin: [terminal, read_file], mcp_servers: {git: {command: mcp-server-git}}}
        skills: [.agents/skills, ~/.agents/skills]
        limits: {steps: 50}
        confirm: [git.git_commit]

    Keys are the arguments of `Agent`, in these forms:

    | key | form |
    |---|---|
    | `model` | a name, a mapping with the settings of `LLM`, or a list of these (`FallbackLLM`) |
    | | `{fallback: models, sticky: ..., on: [RateLimited, ...]}`, models in a list or by name |
    | | `{router: models, pick: "module:qualname"}`, models by name |
    | | `{named: name}`, a model that an agent server has under that name (`NamedModel`) |
    | `tools` | the configuration of `ToolManager.from_config`, or the path of its file |
    | prompts | a text, or `{file: path}` |
    | `condenser` | `window`, `tool_output`, `llm`, a mapping with that `name`, or a list of these |

    Other parts (a model, a condenser, `confirm`) are `{use: "module:qualname", parameters: {...}}`:
    a class or function is called with the parameters. `use` may also name one of `builtins`.
    Modules beside the file can be imported. No connection is opened before the agent's first
    conversation.

    Raises `ConfigurationError` (a `ValueError`) for the first invalid value, with its file, line
    and keys.

    Args:
        source: The path of a file, or a mapping.
        variables: Values for `${NAME}`; the environment is never read.
        builtins: The host's preset tools and parts by name, or a list of tools.
        runtime: A runtime whose tools are added to `builtins`.
        base: The folder at which relative paths start; by default the file's folder, or the
            current one for a mapping.
    """
    document, folder = load(source, "load_agent")
    root = Path(base).absolute() if base is not None else folder or Path.cwd()
    if not isinstance(document, Map):
        raise ConfigurationError(
            f"load_agent takes a mapping of {', '.join(config.KEYS.keys)}; {source!r} holds"
            f" {type(document).__name__}."
        )
    tools = {} if runtime is None else {tool.name: tool for tool in runtime.tools}
    objects = {**tools, **known_builtins(builtins)}
    return config.read_agent(document, AgentLoader(root, folder, objects, variables or {}, Agent))
