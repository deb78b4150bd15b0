"""The settings of an agent's configuration: one table for `load_agent`, the JSON Schema and the
serial form.

Each key has its shape, its description, and the way to make its object and to dump it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent import prompt
from holdfast.agent.agents_files import SubAgent, read_sub_agent
from holdfast.agent.code import CodeMode
from holdfast.agent.config_parts import (
    ANALYZER,
    ANY,
    BOUND,
    CONDENSER,
    COUNT,
    FLAG,
    GOAL,
    MODELS,
    MODELS_BY_NAME,
    NAMES,
    NONEMPTY,
    ONE_MODEL,
    PARAMETERS,
    SIZE,
    TEXT,
    AgentLoader,
    Confirmation,
)
from holdfast.agent.delegation import ISOLATIONS, Delegates
from holdfast.agent.instructions import Instructions
from holdfast.agent.limits import Limits
from holdfast.agent.output import Output
from holdfast.agent.plugins import with_plugins
from holdfast.agent.provenance import Provenance
from holdfast.agent.stuck import StuckDetector
from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools import ToolManager
from holdfast.tools import config as tool_config
from holdfast.tools.config import legacy
from holdfast.tools.config.dumper import Dumper, dump_error
from holdfast.tools.config.keys import AGENT_HOOK_KEYS, TOOLS, hook_section
from holdfast.tools.config.shapes import (
    Choice,
    Defs,
    Either,
    Key,
    Later,
    ListOf,
    MapOf,
    Number,
    ObjectShape,
    Section,
    Shape,
    Unbuilt,
    WrongKey,
    build,
    struct_shape,
)
from holdfast.tools.config.structs import describe, section_of
from holdfast.tools.config.variables import fill
from holdfast.tools.document import Map, SourceLocation, read_json
from holdfast.tools.hooks import Hook
from holdfast.tools.mcp.config import read_servers
from holdfast.tools.skills import Skills, as_text, discover
from holdfast.tools.skills_files import Skill

# --- prompts, skills and instructions ---


def _read_text(data: Any, place: SourceLocation, loader: AgentLoader) -> str:
    return data if isinstance(data, str) else loader.read_file(data["file"])


def _find_note(data: Any, place: SourceLocation, loader: AgentLoader) -> str | Path:
    """Return a microagent: a text, or the path of a file or folder."""
    if isinstance(data, str):
        return data
    path = loader.path(data["file"])
    if not path.exists():
        raise WrongKey("file", f"{str(path)!r} does not exist.")
    return path


_TEXT_OR_FILE = Either(
    text=TEXT,
    map=Section(
        "promptFile",
        "a file with the text",
        {"file": Key(NONEMPTY, "Its path, relative to the config's folder.", required=True)},
    ),
    what="a text, or {file: path}",
)
_PROMPT = ObjectShape(_TEXT_OR_FILE, _read_text)
_NOTES = ListOf(ObjectShape(_TEXT_OR_FILE, _find_note), "a list of texts")
_SKILL_KEYS = {
    "name": Key(NONEMPTY, "Its name.", required=True),
    "description": Key(TEXT, "Its purpose."),
    "text": Key(TEXT, "Its instructions.", required=True),
    "triggers": Key(NAMES, "Words of a user that show it."),
    "paths": Key(NAMES, "Globs of files that show it."),
    "always": Key(FLAG, "True puts it into the system prompt."),
    "files": Key(MapOf(TEXT, "a mapping of names to texts"), "Its other files."),
}
_SKILL = Section("skill", "a skill as text", _SKILL_KEYS)
_FOLDERS = ListOf(NONEMPTY, "a list of folders")
_SKILLS_KEYS = {
    "folders": Key(_FOLDERS, "Folders of skills; earlier ones take precedence."),
    "list": Key(ListOf(_SKILL), "Skills as text."),
    "each": Key(SIZE, "Maximum number of characters shown of one skill."),
    "total": Key(SIZE, "Maximum number of characters shown of all skills."),
}


def _make_skills(data: Any, place: SourceLocation, loader: AgentLoader) -> Skills:
    options: dict[str, Any] = {"folders": data} if isinstance(data, list) else data
    skills = discover([str(loader.path(folder)) for folder in options.get("folders", ())])
    texts = [msgspec.convert(one, Skill) for one in options.get("list", ())]
    sizes = {name: options[name] for name in ("each", "total") if name in options}
    return Skills([*texts, *skills.list()], skills.unreadable, **sizes)


def _dump_skills(skills: Skills, where: str, dumper: Dumper) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for skill in skills.list():
        try:
            text = as_text(skill)
        except ToolError as error:
            raise dump_error(f"skills: {skill.name}", f"cannot be read: {error}") from error
        entry = _SKILL.dump(msgspec.to_builtins(text), f"skills.{skill.name}", dumper)
        entries.append({key: one for key, one in entry.items() if one or key == "text"})
    return {"list": entries, "each": skills.each, "total": skills.total}


_SKILLS_SECTION = Section("skills", "skills", _SKILLS_KEYS)
_SKILLS_FORM = Either(list=_FOLDERS, map=_SKILLS_SECTION, what="a list of folders, or a mapping")
_SKILLS = ObjectShape(_SKILLS_FORM, _make_skills, _dump_skills)


def _make_instructions(data: Any, place: SourceLocation, loader: AgentLoader) -> Instructions:
    options: dict[str, Any] = {"folder": data} if isinstance(data, str) else data
    if ("folder" in options) == ("texts" in options):
        raise place.error("give either a folder (and names) or texts.")
    if "texts" in options:
        return Instructions(options["texts"])
    return Instructions.read(loader.path(options["folder"]), options.get("names", ("AGENTS.md",)))


_INSTRUCTIONS_KEYS = {
    "folder": Key(NONEMPTY, "The folder whose files, and those above and below, are read."),
    "names": Key(NAMES, "Names of the files, of which a folder's first is read."),
    "texts": Key(MapOf(TEXT, "a mapping of paths to texts"), "Their texts by relative path."),
}
_INSTRUCTIONS = ObjectShape(
    Either(
        text=NONEMPTY,
        map=Section("instructions", "instructions", _INSTRUCTIONS_KEYS),
        what="a folder, or a mapping",
    ),
    _make_instructions,
    lambda one, where, dumper: {"texts": dumper.data(where, one.texts)},
)


# --- results and tools ---


def _make_output(data: Any, place: SourceLocation, loader: AgentLoader) -> Any:
    """Return a type, or the output of a JSON Schema, which may come from a file."""
    if isinstance(data, str):
        return loader.function(data, place)
    if list(data) == ["file"] and isinstance(data["file"], str):
        text = loader.read_file(data["file"])
        data = ANY.read(read_json(text, SourceLocation(str(loader.path(data["file"])))), place)
    return Output(data, untrusted=True)


_OUTPUT = ObjectShape(
    Either(
        text=NONEMPTY,
        map=PARAMETERS,
        what="'module:qualname' of a type, a JSON Schema, or {file: path}",
    ),
    _make_output,
    lambda form, where, dumper: dumper.data(where, form),
)


def _make_tools(data: Any, place: SourceLocation, loader: AgentLoader) -> tool_config.Parsed:
    """Return a tool config, which may be a file of its own."""
    if not isinstance(data, str):
        data.place = place
        return tool_config.parse(data, loader.root, loader.modules)
    path = loader.path(data)
    loader.sources.add(str(path))
    try:
        return tool_config.read(path, variables=loader.variables)
    except ConfigurationError as error:
        if not path.is_file():
            raise place.error(str(error)) from error
        raise


class Raw(Shape, frozen=True):
    """A value that is read later, with a given schema."""

    described: Section

    def read(self, value: Any, place: SourceLocation) -> Any:
        return value

    def schema(self, defs: Defs) -> dict[str, Any]:
        return self.described.schema(defs)

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        return value


def _dump_tools(agent: Any, where: str, dumper: Dumper) -> dict[str, Any] | None:
    rules = agent.tools.rules
    if rules.pinned:
        raise dump_error(
            "tools", "has pins, a file of this machine, which a serial form cannot contain"
        )
    entries: dict[str, dict[str, Any]] = {
        tool.name: {"name": tool.name} for tool in agent.own_tools()
    }
    shape = TOOLS.keys["mcp_servers"].shape
    servers = shape.dump(read_servers(agent.mcp_servers), "mcp_servers", dumper)
    section: dict[str, Any] = {}
    for rule in ("concurrency", "result_limit"):
        for pattern, limit in getattr(rules, rule).items():
            at = section if pattern == "*" else entries.get(pattern)
            if at is None and pattern.endswith(".*"):
                at = servers.get(pattern.removesuffix(".*"))
            if at is None:
                raise dump_error(
                    f"tools.{rule}",
                    f"is for {pattern!r}; give it for '*', a tool's name, or a server of"
                    " mcp_servers ('id.*')",
                )
            at[rule] = limit
    if rules.hooks:
        section["hooks"] = TOOLS.keys["hooks"].shape.dump(rules.hooks, "tools.hooks", dumper)
    if entries:
        section["builtin"] = [entry if len(entry) > 1 else name for name, entry in entries.items()]
    if servers:
        section["mcp_servers"] = servers
    return section or None


_TOOLS_FORM = Either(text=NONEMPTY, map=Raw(TOOLS), what="a tool config, or the path of one")
_TOOLS = ObjectShape(_TOOLS_FORM, _make_tools, _dump_tools)

# --- other agents ---

_LIMITS = section_of(
    Limits,
    "limits",
    "bounds of one run",
    {"steps": COUNT, "tokens": COUNT, "cost": BOUND, "seconds": BOUND},
    whole=True,
)
_SUB_AGENT = section_of(
    SubAgent,
    "subAgent",
    "an agent that uses its owner's tools and model",
    {
        "prompt": Key(NONEMPTY, "The system prompt.", required=True),
        "description": TEXT,
        "tools": Either(text=NONEMPTY, list=NAMES, what="a list of names of tools, or '*'"),
        "without": NAMES,
        "limits": struct_shape(_LIMITS, Limits),
    },
    without=("name", "path"),
)


def _make_sub_agent(data: dict[str, Any], place: SourceLocation, loader: AgentLoader) -> SubAgent:
    for key in ("tools", "without"):
        if key in data:
            data[key] = (data[key],) if isinstance(data[key], str) else tuple(data[key])
    return SubAgent("", **data)


def _read_sub_agent(data: str, place: SourceLocation, loader: AgentLoader) -> SubAgent:
    path = loader.path(data)
    if not path.is_file():
        raise place.error(f"{str(path)!r} does not exist.")
    loader.sources.add(str(path))
    return read_sub_agent(path)


class OtherAgent(Shape, frozen=True):
    """The shape of another agent: a file's path, a sub-agent (it has a `prompt`), or a whole agent.

    null is allowed with `or_none`.
    """

    or_none: bool = False

    def read(self, value: Any, place: SourceLocation) -> Any:
        if value is None and self.or_none:
            return None
        if isinstance(value, str):
            return ObjectShape(NONEMPTY, _read_sub_agent).read(value, place)
        if isinstance(value, Map):
            sub_agent = ObjectShape(_SUB_AGENT, _make_sub_agent)
            return (sub_agent if "prompt" in value else AGENT).read(value, place)
        more = ", or null for one that the conversation knows" if self.or_none else ""
        raise place.error(
            f"it takes the path of a file, a mapping with prompt, or an agent's mapping{more}."
        )

    def schema(self, defs: Defs) -> dict[str, Any]:
        shapes = [NONEMPTY.schema(defs), _SUB_AGENT.schema(defs), {"$ref": "#"}]
        return {"anyOf": [*shapes, {"type": "null"}] if self.or_none else shapes}

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        if value is None:
            return None
        if not isinstance(value, SubAgent):
            return AGENT.dump(value, where, dumper)
        return {"tools": list(value.tools), **_SUB_AGENT.dump(value, where, dumper)}


def _make_others(data: dict[str, Any], place: SourceLocation, loader: Any) -> dict[str, Any]:
    """Return other agents by name; sub-agents get their names."""
    for name, one in data.items():
        if isinstance(one, SubAgent) and not one.name:
            data[name] = msgspec.structs.replace(one, name=name)
    return data


def _others(or_none: bool = False) -> ObjectShape:
    shape = MapOf(OtherAgent(or_none), "a mapping of names to agents")

    def dump(directory: Any, where: str, dumper: Dumper) -> dict[str, Any]:
        entries = shape.dump(directory.by_name, where, dumper)
        for name, text in directory.descriptions.items():
            entries[name]["description"] = dumper.text(where, text)
        return entries

    return ObjectShape(shape, _make_others, dump)


# --- the agent ---


_BOUNDS = {
    "max_depth": COUNT,
    "max_running": COUNT,
    "max_messages": COUNT,
    "detached": FLAG,
    "isolation": Choice(ISOLATIONS),
}
_BOUND_KEYS = {name: Key(shape, describe(Delegates)[name]) for name, shape in _BOUNDS.items()}
_DELEGATION = Section("delegation", "bounds of delegation", _BOUND_KEYS, whole=True)
_CODE = section_of(CodeMode, "code", "limits of code mode", whole=True)
_STUCK = section_of(StuckDetector, "stuck", "thresholds of stuck detection", whole=True)
_LIMITED = struct_shape(_LIMITS, Limits)
_HOOK = hook_section(
    "agentHook",
    "a hook of an agent",
    **AGENT_HOOK_KEYS,
    model=Key(
        ONE_MODEL,
        "The model that judges by the prompt; the agent's own by default.",
        attribute="llm",
    ),
    agent=Key(Later(lambda: AGENT), "Instead of functions: an agent that judges."),
)
_KEYS = {
    "$schema": Key(NONEMPTY, "For editors; not read."),
    "model": Key(
        MODELS,
        "A model's name, a mapping with name and settings, or a list of these, of which the next is"
        " called when one fails.",
        required=True,
        attribute="llm",
    ),
    "system_prompt": Key(_PROMPT, "The base of the system prompt; by default Holdfast's own."),
    "system_prompt_extensions": Key(ListOf(_PROMPT, "a list of texts"), "Texts after the base."),
    "microagents": Key(_NOTES, "Microagents whose text is in the prompt."),
    "tools": Key(_TOOLS, "A tool config, or the path of one."),
    "skills": Key(_SKILLS, "Folders of skills; earlier ones take precedence."),
    "plugins": Key(
        ObjectShape(
            ListOf(NONEMPTY, "a list of folders"),
            lambda data, place, loader: [str(loader.path(folder)) for folder in data],
            lambda one, at, dumper: None,
        ),
        "Folders of plugins, whose skills, sub-agents, MCP servers and hooks are added.",
    ),
    "instructions": Key(
        _INSTRUCTIONS, "The folder whose AGENTS.md, and those above and below, are read."
    ),
    "limits": Key(_LIMITED, "Limits of one run."),
    "tree_limits": Key(_LIMITED, "Limits of a conversation with those that its calls spawn."),
    "confirm": Key(Confirmation(), "Calls that need an approval."),
    "security": Key(
        ANALYZER,
        "The analyzer of risks: standard, rules, annotations or judge, a mapping with that as its"
        " name, or a list of these, of which the highest counts.",
    ),
    "describe_images": Key(ONE_MODEL, "Describes pictures for a model without image input."),
    "title": Key(ONE_MODEL, "Writes the title of each conversation from its first message."),
    "condenser": Key(
        CONDENSER,
        "The condenser of long conversations: window, tool_output or llm, a mapping with that as"
        " its name, or a list of these, one after the other.",
    ),
    "planning": Key(
        Choice(("tool", "first")),
        "tool: the agent keeps a plan; first: the user approves the plan before any change.",
    ),
    "output_type": Key(_OUTPUT, "The result: a type, a JSON Schema, or {file: path} of one."),
    "output_rounds": Key(COUNT, "Invalid results after which a run with an output type fails."),
    "stuck": Key(struct_shape(_STUCK, StuckDetector), "Stuck detection; null: none.", null=True),
    "code": Key(
        ObjectShape(
            Either(
                other=FLAG, map=struct_shape(_CODE, CodeMode), what="true, or a mapping of limits"
            ),
            lambda data, place, loader: data,
            lambda one, at, dumper: one.mode == CodeMode() or _CODE.dump(one.mode, at, dumper),
        ),
        "Shows the model one tool, run_code, whose scripts call the other tools.",
    ),
    "goal": Key(GOAL, "The goal of a run, and who judges whether it is reached."),
    "stop_denials": Key(COUNT, "Times in a row that hooks on stop may deny the end of a run."),
    "hooks": Key(
        ListOf(struct_shape(_HOOK, Hook), "a list of hooks"),
        "Hooks of calls, model calls, messages, ends and condensations, in calling order.",
    ),
    "delegates": Key(_others(), "Agents that it may delegate to."),
    "delegation": Key(_DELEGATION, "Bounds of delegation."),
    "description": Key(TEXT, "Its purpose, for agents that delegate or hand over to it."),
    "handoffs": Key(_others(True), "Agents that can take over; null: one of the conversation's."),
    "models": Key(
        ObjectShape(
            MODELS_BY_NAME,
            lambda data, place, loader: data,
            lambda one, at, dumper: MODELS_BY_NAME.dump(one.by_name, at, dumper),
        ),
        "Models by name that the agent may switch to with the tool switch_model.",
    ),
    "parallel_calls": Key(COUNT, "Maximum number of concurrent calls of one answer."),
    "output_limit": Key(
        Number("a number of characters from 1000", 1000, 1e18, whole=True),
        "Maximum number of characters of an output that a model is shown.",
    ),
}
KEYS = Section("agent", "an agent", _KEYS)


class AgentShape(Shape, frozen=True):
    """The shape of a whole agent. Section names may be in capitals, with a warning."""

    def read(self, value: Map, place: SourceLocation) -> Unbuilt:
        sections = Map(place)
        for key, member in value.items():
            name = key.lower() if key not in KEYS.keys and key.lower() in KEYS.keys else key
            if name != key:
                legacy.warn(value.places[key], repr(key), repr(name))
            if name in sections:
                raise value.places[key].error(f"{name} is there twice, in two spellings.")
            sections.put(name, member, value.places[key])
        return Unbuilt(_make_agent, KEYS.read(sections, place), place, sections.places)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return KEYS.body(defs)

    def dump(self, value: Any, where: str, dumper: Dumper) -> dict[str, Any]:
        dumper.origins = (*dumper.origins, *value.provenance.origins)
        return KEYS.dump(_values_of(value), where, dumper)


AGENT = AgentShape()


def _make_agent(data: dict[str, Any], place: SourceLocation, loader: AgentLoader) -> Any:
    arguments = KEYS.arguments(data)
    arguments.pop("$schema", None)
    tools = arguments.pop("tools", None) or tool_config.Parsed(place)
    if tools.skills and arguments.get("skills"):
        raise WrongKey("skills", "skills appears in tools too. Write all folders in one place.")
    if tools.skills:
        arguments["skills"] = discover(tools.skills)
    if plugins := arguments.pop("plugins", None):
        values = {"skills": None, "hooks": (), "delegates": None, **arguments}
        added = with_plugins(plugins, {**values, "mcp_servers": tools.mcp_servers})
        del added["plugins"]
        servers = added.pop("mcp_servers", tools.mcp_servers)
        tools, arguments = msgspec.structs.replace(tools, mcp_servers=servers), arguments | added
    built = tool_config.build(msgspec.structs.replace(tools, skills=()), loader.objects)
    if (bounds := arguments.pop("delegation", None)) is not None:
        if not arguments.get("delegates"):
            raise WrongKey("delegation", "it limits delegates, but there are none.")
        arguments["delegates"] = Delegates(arguments["delegates"], **bounds)
    return loader.agent(
        tools=ToolManager(**built.arguments(), discover=False),
        mcp_servers=tools.mcp_servers,
        provenance=Provenance(tuple(loader.origins), connected=True),
        **arguments,
    )


def _values_of(agent: Any) -> dict[str, Any]:
    """Return the values of an agent's keys; a missing one has its default."""
    knowledge, output, delegates = agent.knowledge, agent.output, agent.delegates
    texts = {
        kind: [part.text for part in knowledge.parts if part.of == kind]
        for kind in ("system_prompt", "system_prompt_extensions", "microagents")
    }
    if delegates is not None and delegates.send_to:
        raise dump_error(
            "delegates.send_to",
            "has ids of conversations of this process, which a serial form cannot contain",
        )
    notes = [prompt.without_heading(text) for text in texts["microagents"]]
    special: dict[str, Any] = {
        "$schema": None,
        "description": agent.description or None,
        "system_prompt": "".join(texts["system_prompt"]),
        "system_prompt_extensions": texts["system_prompt_extensions"] or None,
        "microagents": notes or None,
        "tools": agent,
        "skills": knowledge.skills,
        "instructions": knowledge.instructions,
        "plugins": None,  # their parts are in the other keys
        "hooks": agent.hooks or None,
        "delegation": delegates,
        "output_type": None if output is None else output.form,
        "stop_denials": None if agent.stop_denials == 3 else agent.stop_denials,
        "output_rounds": None if output is None else agent.output_rounds,
    }
    names = {name: key.attribute or name for name, key in KEYS.keys.items()}
    values = {name: getattr(agent, name) for key, name in names.items() if key not in special}
    if agent.stuck == StuckDetector():
        del values["stuck"]
    return {**values, **special}


def dump_agent(agent: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the mapping of an agent and its secrets by variable name.

    Raises `ConfigurationError` that names the argument without a serial form.
    """
    dumper = Dumper()
    return AGENT.dump(agent, "", dumper), dumper.secrets


def read_agent(document: Map, loader: AgentLoader) -> Any:
    """Return the agent of a document."""
    loader.sources.add(document.place.source)
    if loader.modules is not None:
        tool_config.find_modules_in(str(loader.modules))
    document = fill(document, loader.variables)
    return build(AGENT.read(document, document.place), loader)


def read_agent_json(
    data: bytes | str,
    agent: Callable[..., Any],
    variables: Mapping[str, Any] | None = None,
    builtins: Any = None,
) -> Any:
    """Return the agent of a serial form as JSON, made by the class `agent`."""
    place = SourceLocation("agent")
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError:
        raise place.error("it is not UTF-8 text.") from None
    document = read_json(text, place)
    if not isinstance(document, Map):
        raise place.error(f"it takes a JSON object, not {type(document).__name__}.")
    objects = tool_config.known_builtins(builtins)
    return read_agent(document, AgentLoader(Path.cwd(), None, objects, variables or {}, agent))


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `load_agent`'s input.

    The schema does not cover the constraints that `LLM` puts on its settings.
    """
    defs: Defs = {}
    body = AGENT.schema(defs)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A Holdfast agent"}
    return {**head, **body, "$defs": defs}
