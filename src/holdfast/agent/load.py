"""`load_agent`: an agent from a YAML file or a mapping.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from holdfast import errors
from holdfast.agent.agent import Agent
from holdfast.agent.form import Origin, set_origins
from holdfast.agent.instructions import Instructions
from holdfast.agent.limits import Limits
from holdfast.agent.load_keys import AGENT, AboveRiskKeys, PartKeys, StrictestKeys, SubAgentKeys
from holdfast.agent.stuck import StuckDetector
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool, ToolManager
from holdfast.tools import config as tool_config
from holdfast.tools.config import legacy
from holdfast.tools.config.shapes import fill
from holdfast.tools.document import Map, Place, Seq, load
from holdfast.tools.hooks import Hook
from holdfast.tools.skills import Skills, discover
from holdfast.tools.skills_files import Skill, with_home


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
        tools: {builtin: [terminal, read_file]}
        limits: {steps: 50}

    Keys are the arguments of `Agent`, in these forms:

    | key | form |
    |---|---|
    | `model` | a name, a mapping with the settings of `LLM`, or a list of these (`FallbackLLM`) |
    | | `{fallback: models, sticky: ..., on: [RateLimited, ...]}`, models in a list or by name |
    | | `{router: models, pick: "module:qualname"}`, models by name |
    | `tools` | the configuration of `ToolManager.from_config`, or the path of its file |
    | prompts | a text, or `{file: path}` |
    | `condenser` | `window`, `tool_output`, `llm`, a mapping with that `name`, or a list of these |

    Other parts (a model, a condenser, `confirm`) are `{use: "module:qualname", parameters: {...}}`:
    a class or function is called with the parameters. `use` may also name one of `builtins`. No
    connection is opened before the agent's first conversation.

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
            f"load_agent takes a mapping of {', '.join(AGENT.keys)}; {source!r} holds"
            f" {type(document).__name__}."
        )
    return _agent(
        _with_lower_case_keys(fill(document, variables or {})),
        root,
        _known_parts(builtins, runtime),
        variables,
    )


def _agent(
    document: Map, root: Path, known: dict[str, Any], variables: Mapping[str, Any] | None
) -> Agent:
    """Return the agent of a mapping whose variables are filled in."""
    found = AGENT.read(document, document.place)
    parts = _Parts(known, variables or {})
    options = {
        name: found[name]
        for name in ("parallel_calls", "output_limit", "planning", "output_rounds")
        if name in found
    }
    if "limits" in found:
        options["limits"] = Limits(**found["limits"])
    if "tree_limits" in found:
        options["tree_limits"] = Limits(**found["tree_limits"])
    if "output_type" in found:
        options["output_type"] = _output_type(
            found["output_type"], document.places["output_type"], root, parts
        )
    if "stuck" in found:
        options["stuck"] = None if found["stuck"] is None else StuckDetector(**found["stuck"])
    if "confirm" in found:
        given = found["confirm"]
        options["confirm"] = _confirm(given, document.places["confirm"], parts)
    if "security" in found:
        options["security"] = _security(
            found["security"], document["security"], document.places["security"], parts
        )
    if "condenser" in found:
        options["condenser"] = _condenser(
            found["condenser"], document["condenser"], document.places["condenser"], parts
        )
    if "hooks" in found:
        options["hooks"] = [Hook(**one) for one in found["hooks"]]
    if "describe_images" in found:
        options["describe_images"] = _model(
            found["describe_images"],
            document["describe_images"],
            document.places["describe_images"],
            parts,
        )
    if "instructions" in found:
        options["instructions"] = _instructions(
            found["instructions"], document.places["instructions"], root
        )
    for key in ("delegates", "handoffs"):
        if key in found:
            places = document[key].places
            options[key] = {
                name: _other_agent(one, name, places[name], root, known, variables)
                for name, one in found[key].items()
            }
    if "delegation" in found:
        from holdfast.agent.delegation import Delegates

        if not found.get("delegates"):
            raise document.places["delegation"].error("it limits delegates, but there are none.")
        options["delegates"] = _with_place(
            lambda: Delegates(options["delegates"], **found["delegation"]),
            document.places["delegation"],
        )
    parsed = _tools(found, document, root, variables)
    skills = _skills(found.get("skills"), document, parsed.skills, root)
    built = tool_config.build(msgspec.structs.replace(parsed, skills=()), known)
    extensions = [
        _prompt(item, at, root)
        for item, at in _members(found, document, "system_prompt_extensions")
    ]
    try:
        agent = Agent(
            _model(found["model"], document["model"], document.places["model"], parts),
            ToolManager(**built.arguments(), discover=False),
            system_prompt=_prompt(
                found.get("system_prompt"), document.places.get("system_prompt"), root
            ),
            system_prompt_extensions=extensions,
            microagents=[
                _microagent(item, at, root) for item, at in _members(found, document, "microagents")
            ],
            skills=skills,
            **options,
        )
        if agent.output is not None:
            agent.output.distrust()
    except ConfigurationError as error:
        if str(error).startswith(document.place.source):
            raise
        raise document.place.error(str(error)) from error
    return set_origins(agent, parts.made, parsed.mcp_servers)


def _other_agent(
    given: Any,
    name: str,
    place: Place,
    root: Path,
    known: dict[str, Any],
    variables: Mapping[str, Any] | None,
) -> Any:
    """Return a delegate or handoff target as `Agent` takes it."""
    if given is None:
        return None
    from holdfast.agent.agents_files import SubAgent, read_sub_agent

    if isinstance(given, str):
        path = root / with_home(given)
        if not path.is_file():
            raise place.error(f"{str(path)!r} does not exist.")
        return read_sub_agent(path)
    if isinstance(given, SubAgentKeys):
        keys = dict(given.found)
        tools: Any = keys.pop("tools", "*")
        limits = keys.pop("limits", None)
        return SubAgent(
            name,
            tools=(tools,) if isinstance(tools, str) else tuple(tools),
            without=tuple(keys.pop("without", ())),
            limits=None if limits is None else Limits(**limits),
            **keys,
        )
    return _agent(_with_lower_case_keys(given), root, known, variables)


def _with_lower_case_keys(document: Map) -> Map:
    """Return the mapping with section names in lower case."""
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
    return (
        list(zip(found.get(key, []), cast(Seq, document[key]).places, strict=True))
        if found.get(key)
        else []
    )


def _known_parts(builtins: Any, runtime: HasTools | None) -> dict[str, Any]:
    found: dict[str, Any] = {} if runtime is None else {tool.name: tool for tool in runtime.tools}
    return {**found, **tool_config.known_builtins(builtins)}


def _tools(
    found: Mapping[str, Any], document: Map, root: Path, variables: Mapping[str, Any] | None
) -> tool_config.Parsed:
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
    if found.get("skills") and parsed.skills:
        raise document.places["skills"].error(
            "skills appears in tools too. Write all folders in one place."
        )
    return parsed


def _output_type(given: Any, place: Place, root: Path, parts: _Parts) -> Any:
    """Return a type, or a JSON Schema, which may come from a file."""
    if isinstance(given, str):
        return parts.function(given, place)
    if list(given) != ["file"] or not isinstance(given["file"], str):
        return given
    from holdfast.tools.document import read_json

    path = root / with_home(given["file"])
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise place.at("file").error(f"{str(path)!r} cannot be read: {reason}.") from None
    return _plain(read_json(text, Place(str(path))))


def _plain(value: Any) -> Any:
    if isinstance(value, Map):
        return {key: _plain(member) for key, member in value.items()}
    return [_plain(member) for member in value] if isinstance(value, Seq) else value


# --- prompts ---


def _prompt(given: Any, place: Place | None, root: Path) -> Any:
    if given is None or isinstance(given, str) or place is None:
        return given
    path = root / with_home(given["file"])
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise place.at("file").error(f"{str(path)!r} cannot be read: {reason}.") from None


def _skills(given: Any, document: Map, folders: Sequence[str], root: Path) -> Skills | None:
    """Return the skills of folders and those given as text."""
    options: dict[str, Any] = (
        cast("dict[str, Any]", given) if isinstance(given, dict) else {"folders": given or []}
    )
    found = discover(
        [*folders, *(str(root / with_home(folder)) for folder in options.get("folders", ()))]
    )
    texts = [msgspec.convert(one, Skill) for one in options.get("list", ())]
    sizes = {name: options[name] for name in ("each", "total") if name in options}
    if not given and not found.list():
        return None
    return _with_place(
        lambda: Skills([*texts, *found.list()], found.unreadable, **sizes),
        document.places.get("skills", document.place),
    )


def _instructions(given: Any, place: Place, root: Path) -> Instructions:
    options: dict[str, Any] = (
        cast("dict[str, Any]", given) if isinstance(given, dict) else {"folder": given}
    )
    if ("folder" in options) == ("texts" in options):
        raise place.error("give either a folder (and names) or texts.")
    if "texts" in options:
        return _with_place(lambda: Instructions(options["texts"]), place)
    folder = root / with_home(options["folder"])
    return _with_place(
        lambda: Instructions.read(folder, options.get("names", ("AGENTS.md",))), place
    )


def _microagent(given: Any, place: Place, root: Path) -> Any:
    if isinstance(given, str):
        return given
    path = root / with_home(given["file"])
    if not path.exists():
        raise place.at("file").error(f"{str(path)!r} does not exist.")
    return path


# --- parts ---


class _Parts:
    """A factory of the objects that `use` names; records each origin for the agent's serial
    form."""

    def __init__(self, known: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self.known = known
        self.made: list[Origin] = []
        self._hidden = frozenset(
            value for value in variables.values() if isinstance(value, str) and value
        )

    def make(self, wanted: PartKeys, place: Place, more: Mapping[str, Any] = {}) -> Any:
        """Return the object that `use` names; a class or function is called with the parameters."""
        name, parameters = wanted
        found = self._find(name, place, more)
        if inspect.isclass(found) or inspect.isroutine(found):
            found = tool_config.call_with(found, parameters, name, place)
        elif parameters is not None:
            raise place.error(
                f"{name!r} is an object, not a class or function; it takes no parameters."
            )
        self.made.append(Origin(found, name, parameters, self._hidden))
        return found

    def function(self, name: str, place: Place) -> Any:
        """Return the named function or class itself."""
        found = self._find(name, place, {})
        self.made.append(Origin(found, name))
        return found

    def _find(self, name: str, place: Place, more: Mapping[str, Any]) -> Any:
        known = {**more, **self.known}
        if name in known:
            return known[name]
        if ":" in name:
            return tool_config.load_object(name, place)
        near = difflib.get_close_matches(name, list(known), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise place.error(
            f"no builtin is named {name!r}.{hint} It takes 'module:qualname', or a name of"
            f" builtins: {', '.join(known) or 'none given'}."
        )


def _model(given: Any, document: Any, place: Place, parts: _Parts) -> Any:
    from holdfast.llm import LLM, FallbackLLM, LiteLLM, RouterLLM, ScriptedLLM

    if isinstance(given, list):
        models = _models(cast("list[Any]", given), document, parts)
        return models[0] if len(models) == 1 else _with_place(lambda: FallbackLLM(models), place)
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    if "use" in options:
        made = parts.make(PartKeys(**options), place, {"scripted": ScriptedLLM, "litellm": LiteLLM})
        if not callable(getattr(made, "completion", None)):
            raise place.error(
                f"{options['use']!r} gives {type(made).__name__}, which is not a model: it has no"
                " method completion."
            )
        return made
    if "fallback" in options:
        models = _models(options["fallback"], document["fallback"], parts)
        on = _fallback_on(options["on"], document.places["on"], parts) if "on" in options else None
        return _with_place(
            lambda: FallbackLLM(models, on=on, sticky=options.get("sticky", True)), place
        )
    if "router" in options:
        named = _models(options["router"], document["router"], parts)
        pick = parts.function(options["pick"], document.places["pick"])
        return _with_place(lambda: RouterLLM(pick, named), place)
    try:
        return LLM(options.pop("name"), **options)
    except ConfigurationError as error:
        match = re.match(r"LLM: (\w+) ", str(error))
        at = (
            document.places.get(match[1], place)
            if match is not None and isinstance(document, Map)
            else place
        )
        raise at.error(str(error)) from error


def _condenser(given: Any, document: Any, place: Place, parts: _Parts) -> Any:
    from holdfast.agent.condensers import SHIPPED

    if isinstance(given, list):
        given = {"name": "pipeline", "condensers": cast("list[Any]", given)}
        document = {"condensers": document}
    elif isinstance(given, str):
        given = {"name": given} if given in SHIPPED and given not in parts.known else {"use": given}
    options = dict(cast("dict[str, Any]", given))
    if "use" in options:
        return parts.make(PartKeys(**options), place, SHIPPED)
    kind = SHIPPED[options.pop("name")]
    if "model" in options:
        options["llm"] = _model(
            options.pop("model"), document["model"], document.places["model"], parts
        )
    if "condensers" in options:
        within = document["condensers"]
        members = zip(options["condensers"], within, within.places, strict=True)
        options["condensers"] = [_condenser(one, at, where, parts) for one, at, where in members]
    return _with_place(lambda: kind(**options), place)


def _confirm(given: Any, place: Place, parts: _Parts) -> Any:
    from holdfast.agent.confirmation import AboveRisk, Strictest

    if isinstance(given, PartKeys):
        return parts.make(given, place)
    if isinstance(given, AboveRiskKeys):
        return AboveRisk(given.level, given.verdict)
    if isinstance(given, StrictestKeys):
        return Strictest([_confirm(one, at, parts) for one, at in given.members])
    return given


def _security(given: Any, document: Any, place: Place, parts: _Parts) -> Any:
    from holdfast.agent.security import SHIPPED, Highest, standard

    if isinstance(given, list):
        members = zip(cast("list[Any]", given), document, document.places, strict=True)
        analyzers = [_security(one, at, where, parts) for one, at, where in members]
        return _with_place(lambda: Highest(tuple(analyzers)), place)
    if isinstance(given, str):
        given = (
            {"name": given}
            if (given in SHIPPED or given == "standard") and given not in parts.known
            else {"use": given}
        )
    options = dict(cast("dict[str, Any]", given))
    if "use" in options:
        return parts.make(PartKeys(**options), place)
    name = options.pop("name")
    if "model" in options:
        options["llm"] = _model(
            options.pop("model"), document["model"], document.places["model"], parts
        )
    kind: Callable[..., Any] = standard if name == "standard" else SHIPPED[name]
    return _with_place(lambda: kind(**options), place)


def _models(given: Any, document: Any, parts: _Parts) -> Any:
    """Return the models of a composite, in a list or by name."""
    keys: Any = cast("dict[str, Any]", given) if isinstance(given, dict) else range(len(given))
    made = {key: _model(given[key], document[key], document.places[key], parts) for key in keys}
    return made if isinstance(given, dict) else list(made.values())


def _with_place(make: Callable[[], Any], place: Place) -> Any:
    try:
        return make()
    except ConfigurationError as error:
        raise place.error(str(error)) from error


def _fallback_on(given: str | list[str], place: Place, parts: _Parts) -> Any:
    """Return the value of `FallbackLLM(on=)` for names of errors or of a function."""
    if isinstance(given, str) and (":" in given or given in parts.known):
        return parts.function(given, place)
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.LLMError)
    }
    found: list[Any] = []
    for name in [given] if isinstance(given, str) else given:
        if name not in kinds and ":" not in name:
            near = difflib.get_close_matches(name, kinds, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise place.error(
                f"no model error is named {name!r}.{hint} It takes: {', '.join(kinds)}, or"
                " 'module:qualname'."
            )
        found.append(kinds[name] if name in kinds else parts.function(name, place))
    return found
