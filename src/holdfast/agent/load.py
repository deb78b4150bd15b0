"""`load_agent`: a whole agent from a YAML file or a mapping.

model:
  name: anthropic/claude-sonnet-4-5
  api_key: ${ANTHROPIC_API_KEY}
  max_output_tokens: 8000
system_prompt: {file: prompts/system.md}
system_prompt_extensions:
  - Answer in Norwegian.
tools:
  builtin: [read_file, grep]
  local_functions:
    - {module: my_tools, function: search, name: search_docs}
  mcp_servers:
    git: {command: mcp-server-git, args: [--repository, .]}
skills: [.agents/skills, ~/.agents/skills]
limits: {steps: 50, cost: 2.5}
confirm: [git.git_commit]
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.limits import Limits
from holdfast.agent.load_keys import AGENT, Use
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool, ToolManager
from holdfast.tools import config as tool_config
from holdfast.tools.config import legacy
from holdfast.tools.config.shapes import fill
from holdfast.tools.document import Map, Place, Seq, load
from holdfast.tools.skills_files import with_home


class HasTools(Protocol):
    """What gives an agent its preset tools, such as a `LocalRuntime`."""

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
    """An `Agent` from a YAML file (JSON, if it ends in .json) or a mapping. Nothing is connected to before its first conversation.

        model: {name: gpt-5, api_key: "${OPENAI_API_KEY}"}
        tools: {builtin: [terminal, read_file]}
        limits: {steps: 50}

    Keys are the arguments of `Agent`. `model` is a name, a mapping with the settings of `LLM`, or a list of these (`FallbackLLM`). `tools` is what
    `ToolManager.from_config` takes, or the path of it. Prompts are texts or `{file: path}`. Other parts (a model, `condenser`, `confirm`) are
    `{use: "module:qualname", parameters: {...}}`, where a class or function is called with the parameters; `use` may also name one of `builtins`.

    `variables` are what `${NAME}` stands for; the environment is never looked at. `builtins` are the host's preset tools and parts, by name
    (or a list of tools); those of `runtime` are among them. Relative paths start at `base`: the file's folder, or the current
    one for a mapping.

    Raises `ConfigurationError` (a `ValueError`) for the first thing that does not fit: in which file, on which line, under which keys.
    """
    document, folder = load(source, "load_agent")
    root = Path(base).absolute() if base is not None else folder or Path.cwd()
    if not isinstance(document, Map):
        raise ConfigurationError(f"load_agent takes a mapping of {', '.join(AGENT.keys)}; {source!r} holds {type(document).__name__}.")
    document = _modern(fill(document, variables or {}))
    found = AGENT.read(document, document.place)
    known = _known(builtins, runtime)
    options = {name: found[name] for name in ("parallel_calls", "output_limit") if name in found}
    if "limits" in found:
        options["limits"] = Limits(**found["limits"])
    if "confirm" in found:
        given = found["confirm"]
        options["confirm"] = _part(given, known, document.places["confirm"]) if isinstance(given, Use) else given
    if "condenser" in found:
        given = found["condenser"]
        options["condenser"] = _part(Use(given) if isinstance(given, str) else Use(**given), known, document.places["condenser"])
    built = tool_config.build(_tools(found, document, root, variables), known, list_skills=False)  # the prompt below does
    extensions = [_prompt(item, at, root) for item, at in _members(found, document, "system_prompt_extensions")]
    if prompt := built.skills.prompt():
        extensions.append(prompt)
    try:
        return Agent(
            _model(found["model"], document["model"], document.places["model"], known),
            ToolManager(**built.arguments()),
            system_prompt=_prompt(found.get("system_prompt"), document.places.get("system_prompt"), root),
            system_prompt_extensions=extensions,
            microagents=[_microagent(item, at, root) for item, at in _members(found, document, "microagents")],
            **options,
        )
    except ConfigurationError as error:
        if str(error).startswith(document.place.source):
            raise
        raise document.place.error(str(error)) from error


def _modern(document: Map) -> Map:
    """Section names in small letters."""
    found = Map(document.place)
    for key, value in document.items():
        name = key.lower() if key not in AGENT.keys and key.lower() in AGENT.keys else key
        if name != key:
            legacy.warn(document.places[key], repr(key), repr(name))
        if name in found:
            raise document.places[key].error(f"{name} is there twice, in two spellings.")
        found.put(name, value, document.places[key])
    return found


def _members(found: Mapping[str, Any], document: Map, key: str) -> list[tuple[Any, Place]]:
    return list(zip(found.get(key, []), cast(Seq, document[key]).places, strict=True)) if found.get(key) else []


def _known(builtins: Any, runtime: HasTools | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if runtime is None else {tool.name: tool for tool in runtime.tools}
    return {**found, **tool_config.known_builtins(builtins)}


def _tools(found: Mapping[str, Any], document: Map, root: Path, variables: Mapping[str, Any] | None) -> tool_config.Parsed:
    given = found.get("tools")
    if isinstance(given, str):
        try:
            parsed = tool_config.read(root / with_home(given), variables=variables)
        except ConfigurationError as error:
            if not (root / with_home(given)).is_file():
                raise document.places["tools"].error(str(error)) from error
            raise
    elif given is not None:
        given.place = document.places["tools"]
        parsed = tool_config.parse(given, root)
    else:
        parsed = tool_config.Parsed(document.place)
    if "skills" not in found:
        return parsed
    if parsed.skills:
        raise document.places["skills"].error("skills is in tools, too. Write all folders in one place.")
    return msgspec.structs.replace(parsed, skills=tuple(str(root / with_home(folder)) for folder in found["skills"]))


# --- prompts -------------------------------------------------------------------------------------


def _prompt(given: Any, place: Place | None, root: Path) -> Any:
    if given is None or isinstance(given, str) or place is None:
        return given
    path = root / with_home(given["file"])
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise place.at("file").error(f"{str(path)!r} cannot be read: {reason}.") from None


def _microagent(given: Any, place: Place, root: Path) -> Any:
    if isinstance(given, str):
        return given
    path = root / with_home(given["file"])
    if not path.exists():
        raise place.at("file").error(f"{str(path)!r} does not exist.")
    return path


# --- parts ---------------------------------------------------------------------------------------


def _part(wanted: Use, known: Mapping[str, Any], place: Place) -> Any:
    """The object that `use` names, called with the parameters if it is a class or a function."""
    name, parameters = wanted
    if name in known:
        found = known[name]
    elif ":" in name:
        found = tool_config.load_object(name, place)
    else:
        near = difflib.get_close_matches(name, list(known), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise place.error(
            f"no builtin is named {name!r}.{hint} It takes 'module:qualname', or a name of builtins: {', '.join(known) or 'none given'}."
        )
    if inspect.isclass(found) or inspect.isroutine(found):
        return tool_config.call_with(found, parameters, name, place)
    if parameters is not None:
        raise place.error(f"{name!r} is an object that was made already; it takes no parameters.")
    return found


def _model(given: Any, document: Any, place: Place, known: Mapping[str, Any]) -> Any:
    from holdfast.llm import LLM, FallbackLLM, LiteLLM, ScriptedLLM

    if isinstance(given, list):
        places = cast(Seq, document).places
        models = [_model(one, document[i], places[i], known) for i, one in enumerate(cast("list[Any]", given))]
        if len(models) == 1:
            return models[0]
        try:
            return FallbackLLM(models)
        except ConfigurationError as error:
            raise place.error(str(error)) from error
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    if "use" in options:
        made = _part(Use(**options), {"scripted": ScriptedLLM, "litellm": LiteLLM, **known}, place)
        if not callable(getattr(made, "completion", None)):
            raise place.error(f"{options['use']!r} gives {type(made).__name__}, which is no model: it has no method completion.")
        return made
    try:
        return LLM(options.pop("name"), **options)
    except ConfigurationError as error:
        match = re.match(r"LLM: (\w+) ", str(error))
        at = document.places.get(match[1], place) if match is not None and isinstance(document, Map) else place
        raise at.error(str(error)) from error
