"""The keys of an agent's configuration file.

`load_agent` reads a file with this table, and the file's JSON Schema is made from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.tools.config.keys import AGENT_HOOK, TOOLS
from holdfast.tools.config.shapes import (
    Anything,
    Choice,
    Either,
    Flag,
    Key,
    ListOf,
    MapOf,
    Number,
    Record,
    Shape,
    Text,
)
from holdfast.tools.document import Map, Place, Seq

_TEXT, _NONEMPTY, _ANY = Text(empty=True), Text(), Anything()
_INTEGER, _NUMBER = (
    Number("a whole number", -(2**63), 2**63, whole=True),
    Number("a number", -1e18, 1e18),
)
_PARAMETERS = MapOf(_ANY, "a mapping")
_PROMPT = Either(
    text=_TEXT,
    map=Record(
        "promptFile",
        "a file with the text",
        {"file": Key(_NONEMPTY, "Its path, relative to the config's folder.", required=True)},
    ),
    what="a text, or {file: path}",
)


# The companion keys of each kind of model. A model with a name has its settings instead.
_COMPANION_KEYS = {"use": ("parameters",), "fallback": ("sticky", "on"), "router": ("pick",)}


def _check_model(found: dict[str, Any], place: Place) -> None:
    kinds = [kind for kind in ("name", *_COMPANION_KEYS) if kind in found]
    if len(kinds) != 1:
        raise place.error(
            "a model has either name (and settings), use: 'module:qualname' (and parameters),"
            " fallback: models (and sticky, on), or router: models (and pick)."
        )
    kind = kinds[0]
    if kind in _COMPANION_KEYS and (
        others := [key for key in found if key not in (kind, *_COMPANION_KEYS[kind])]
    ):
        put = f"; put {others[0]} into them" if kind == "use" else ""
        raise place.at(others[0]).error(
            f"a model with {kind} takes {' and '.join(_COMPANION_KEYS[kind])} alone{put}."
        )
    for other, beside in _COMPANION_KEYS.items():
        if kind == "name" and (wrong := [key for key in beside if key in found]):
            raise place.at(wrong[0]).error(
                f"a model with name takes its settings beside the name; {wrong[0]} is for one with"
                f" {other}."
            )
    if kind == "router" and "pick" not in found:
        raise place.error(
            "a model with router has pick, the function that says which of them answers:"
            " 'module:qualname'."
        )


class _Model(NamedTuple):
    """The shape of a model within a model."""

    def read(self, value: Any, place: Place) -> Any:
        return _ONE_MODEL.read(value, place)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return _ONE_MODEL.schema(defs)


_SETTINGS: dict[str, Shape] = {
    "api_key": Text("a text", secret=True, empty=True),
    "base_url": Text(secret=True),
    "proxy": Text(secret=True),
    "headers": MapOf(Text("a text", secret=True, empty=True), "a mapping of texts to texts"),
    **dict.fromkeys(("stop", "response_format", "extra_body"), _ANY),
    **dict.fromkeys(("reasoning_effort", "tool_calls", "wire"), _NONEMPTY),
    **dict.fromkeys(("parallel_tool_calls", "prompt_caching", "images", "stream"), Flag()),
    **dict.fromkeys(("max_output_tokens", "reasoning_budget", "seed", "max_retries"), _INTEGER),
    **dict.fromkeys(("temperature", "top_p", "timeout", "connect_timeout", "deadline"), _NUMBER),
}
_MODEL = Record(
    "model",
    "a model",
    {
        "name": Key(_NONEMPTY, "Its name, as LLM takes it."),
        **{name: Key(shape, "As LLM takes it.") for name, shape in _SETTINGS.items()},
        "use": Key(
            _NONEMPTY,
            "A class or function that makes the model: 'module:qualname', or a builtin's name.",
        ),
        "parameters": Key(_PARAMETERS, "The arguments of `use`."),
        "fallback": Key(
            Either(
                list=ListOf(_Model()),
                map=MapOf(_Model()),
                what="a list of models, or a mapping of names to models",
            ),
            "Models in order; the next one is called when one fails. Names are optional.",
        ),
        "sticky": Key(
            Flag(),
            "True (the default) keeps a conversation with the model that answered last.",
        ),
        "on": Key(
            Either(
                text=_NONEMPTY,
                list=ListOf(_NONEMPTY),
                what="names of errors, or a function as 'module:qualname'",
            ),
            "Failures that lead to the next model: names of LLM errors such as RateLimited, or a"
            " function of the"
            " error.",
        ),
        "router": Key(
            MapOf(_Model(), "a mapping of names to models"),
            "Models by name; a function picks one for each request.",
        ),
        "pick": Key(_NONEMPTY, "The function that picks: 'module:qualname', or a builtin's name."),
    },
    _check_model,
)
_ONE_MODEL = Either(text=_NONEMPTY, map=_MODEL, what="a model's name or a mapping")
_PART = Record(
    "part",
    "an object that code makes",
    {
        "use": Key(_NONEMPTY, "'module:qualname', or a builtin's name.", required=True),
        "parameters": Key(_PARAMETERS, "The arguments of `use`, if it is a class or a function."),
    },
)


CONDENSERS = {
    "window": ("keep", "at", "to"),
    "tool_output": ("keep", "over", "at", "to"),
    "llm": ("model", "keep", "at", "to"),
    "pipeline": ("condensers", "at", "to"),
}


def _check_condenser(found: dict[str, Any], place: Place) -> None:
    kind = found["name"]
    for key in found:
        if key not in ("name", *CONDENSERS[kind]):
            raise place.at(key).error(
                f"the condenser {kind} takes {', '.join(CONDENSERS[kind])}, not {key}."
            )
    if kind == "pipeline" and not found.get("condensers"):
        raise place.error("a pipeline has condensers, a list of them.")


class _Condenser(NamedTuple):
    """The shape of a shipped condenser or a part."""

    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return _NONEMPTY.read(value, place)
        if isinstance(value, Map):
            return (_PART if "use" in value else _SHIPPED).read(value, place)
        raise place.error(
            "it takes window, tool_output or llm, a mapping with that as name, 'module:qualname',"
            " or {use, parameters}."
        )

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [shape.schema(defs) for shape in (_NONEMPTY, _SHIPPED, _PART)]}


_SHIPPED = Record(
    "condenser",
    "a condenser",
    {
        "name": Key(Choice(tuple(CONDENSERS)), "Which one.", required=True),
        "at": Key(
            Number("a number above 0", above=True, high=1e18),
            "The request size at which it runs: tokens, or a share of the window.",
            null=True,
        ),
        "to": Key(
            Number("a number above 0", above=True, high=1),
            "The share of `at` that the request shrinks to.",
        ),
        "keep": Key(
            _INTEGER,
            "Maximum number of messages that stay; of tool_output, the characters of each output.",
            null=True,
        ),
        "over": Key(_INTEGER, "tool_output: outputs of more characters are cut."),
        "model": Key(
            _ONE_MODEL, "llm: the model that writes the summary; the agent's own by default."
        ),
        "condensers": Key(ListOf(_Condenser()), "pipeline: its condensers, in order."),
    },
    _check_condenser,
)


_VERDICTS = ("allow", "ask", "deny")
_POLICY = Either(
    text=Choice(("never", "always", "risky")),
    list=ListOf(_NONEMPTY),
    map=MapOf(Choice(_VERDICTS)),
    what=(
        "never, always, risky, a list of tools, a mapping of tools to allow, ask or deny, {above:"
        " low or medium}, {strictest: policies}, or {use, parameters}"
    ),
)


class PartKeys(NamedTuple):
    """A part that imported code makes."""

    use: str
    parameters: dict[str, Any] | None = None


_ABOVE = Record(
    "above",
    "calls above a risk",
    {
        "above": Key(
            Choice(("low", "medium")),
            "The highest risk that runs without an approval.",
            required=True,
        ),
        "verdict": Key(
            Choice(("ask", "deny")),
            "ask (the default) waits for an approval; deny refuses.",
        ),
    },
)


class AboveRiskKeys(NamedTuple):
    """An `AboveRisk` policy."""

    level: Any
    verdict: Any = "ask"


class StrictestKeys(NamedTuple):
    """A `Strictest` policy: its members, each with its place in the document."""

    members: list[tuple[Any, Place]]


class _Confirm(NamedTuple):
    """The shape of `Agent(confirm=)`.

    A tool may be named "use", "above" or "strictest": its value is then a verdict.
    """

    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, Map) and "above" in value and value["above"] not in _VERDICTS:
            found = _ABOVE.read(value, place)
            return AboveRiskKeys(found["above"], found.get("verdict", "ask"))
        if isinstance(value, Map) and isinstance(value.get("strictest"), Seq):
            if len(value) > 1:
                raise place.error("strictest stands alone; put other policies into its list.")
            members = value["strictest"]
            return StrictestKeys(
                [(self.read(one, at), at) for one, at in zip(members, members.places, strict=True)]
            )
        if (
            isinstance(value, Map)
            and isinstance(value.get("use"), str)
            and value["use"] not in _VERDICTS
        ):
            return PartKeys(**_PART.read(value, place))
        return _POLICY.read(value, place)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        strictest = {"strictest": {"type": "array"}}
        several = {
            "type": "object",
            "properties": strictest,
            "required": ["strictest"],
            "additionalProperties": False,
        }
        part = {**_PART.schema(defs), "properties": {"use": {"not": {"enum": list(_VERDICTS)}}}}
        return {"anyOf": [_POLICY.schema(defs), _ABOVE.schema(defs), several, part]}


ANALYZERS = {
    "standard": ("hosts",),
    "rules": ("hosts", "writable", "commands"),
    "annotations": ("leave",),
    "judge": ("model",),
}


def _check_analyzer(found: dict[str, Any], place: Place) -> None:
    kind = found["name"]
    for key in found:
        if key not in ("name", *ANALYZERS[kind]):
            raise place.at(key).error(
                f"the analyzer {kind} takes {', '.join(ANALYZERS[kind])}, not {key}."
            )


_ANALYZER = Record(
    "analyzer",
    "a security analyzer",
    {
        "name": Key(Choice(tuple(ANALYZERS)), "Which one.", required=True),
        "hosts": Key(
            ListOf(_NONEMPTY),
            "standard, rules: hosts that may be fetched from, such as *.example.com.",
        ),
        "writable": Key(
            ListOf(_NONEMPTY), "rules: folders beside the working directory that may be written to."
        ),
        "commands": Key(
            MapOf(_NONEMPTY, "a mapping of tools to their arguments"),
            "rules: the argument of a tool that is a shell command, by tool.",
        ),
        "leave": Key(ListOf(_NONEMPTY), "annotations: tools that are not assessed."),
        "model": Key(_ONE_MODEL, "judge: the model that assesses; the agent's own by default."),
    },
    _check_analyzer,
)


class _Security(NamedTuple):
    """The shape of a shipped analyzer or a part."""

    def read(self, value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return _NONEMPTY.read(value, place)
        if isinstance(value, Map):
            return (_PART if "use" in value else _ANALYZER).read(value, place)
        raise place.error(
            "it takes standard, rules, annotations or judge, a mapping with that as name,"
            " 'module:qualname', or {use, parameters}."
        )

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [shape.schema(defs) for shape in (_NONEMPTY, _ANALYZER, _PART)]}


class _Tools(NamedTuple):
    """The shape of a tool configuration, which `tools.config` reads."""

    def read(self, value: Any, place: Place) -> Any:
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return TOOLS.schema(defs)


class _OtherAgent(NamedTuple):
    """The shape of another agent: a file's path, a sub-agent (it has a `prompt`), or a whole agent.

    `load_agent` reads whole agents. null is allowed with `or_none`.
    """

    or_none: bool = False

    def read(self, value: Any, place: Place) -> Any:
        if value is None and self.or_none:
            return None
        if isinstance(value, str):
            return _NONEMPTY.read(value, place)
        if isinstance(value, Map):
            return SubAgentKeys(_SUB_AGENT.read(value, place)) if "prompt" in value else value
        more = ", or null for one that the conversation knows" if self.or_none else ""
        raise place.error(
            f"it takes the path of a file, a mapping with prompt, or an agent's mapping{more}."
        )

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            _NONEMPTY.schema(defs),
            _SUB_AGENT.schema(defs),
            {"$ref": "#"},
        ]
        return {"anyOf": [*found, {"type": "null"}] if self.or_none else found}


class SubAgentKeys(NamedTuple):
    """The keys of a mapping that describes a sub-agent."""

    found: dict[str, Any]


_BOUND = Number("a number above 0", above=True, high=1e18)
_STEPS = Number("a whole number from 1", 1, 1e18, whole=True)
_SIZE = Number("a number of characters from 0", 0, 1e18, whole=True)
_SKILL = Record(
    "skill",
    "a skill as text",
    {
        "name": Key(_NONEMPTY, "Its name.", required=True),
        "description": Key(_TEXT, "Its purpose."),
        "text": Key(_TEXT, "Its instructions.", required=True),
        "triggers": Key(ListOf(_NONEMPTY), "Words of a user that show it."),
        "paths": Key(ListOf(_NONEMPTY), "Globs of files that show it."),
        "always": Key(Flag(), "True puts it into the system prompt."),
        "files": Key(MapOf(_TEXT, "a mapping of names to texts"), "Its other files."),
    },
)
SKILL = tuple(name for name in _SKILL.keys)
_SKILLS = Record(
    "skills",
    "skills",
    {
        "folders": Key(
            ListOf(_NONEMPTY, "a list of folders"),
            "Folders of skills; earlier ones take precedence.",
        ),
        "list": Key(ListOf(_SKILL), "Skills as text."),
        "each": Key(_SIZE, "Maximum number of characters shown of one skill."),
        "total": Key(
            _SIZE,
            "Maximum number of characters shown of all skills, in the prompt and added later.",
        ),
    },
)
_INSTRUCTIONS = Record(
    "instructions",
    "instructions",
    {
        "folder": Key(_NONEMPTY, "The folder whose files, and those above and below, are read."),
        "names": Key(
            ListOf(_NONEMPTY),
            "Names of the files; AGENTS.md by default. Of each folder, the first existing one is"
            " read.",
        ),
        "texts": Key(
            MapOf(_TEXT, "a mapping of paths to texts"),
            "Their texts, by path relative to the working directory.",
        ),
    },
)


_SUB_AGENT = Record(
    "subAgent",
    "an agent that uses its owner's tools and model",
    {
        "prompt": Key(_NONEMPTY, "Its system prompt.", required=True),
        "description": Key(_TEXT, "Its purpose."),
        "tools": Key(
            Either(text=_NONEMPTY, list=ListOf(_NONEMPTY), what="a list of names of tools, or '*'"),
            "Names of the owner's tools; all by default.",
        ),
        "without": Key(ListOf(_NONEMPTY), "Names of tools to leave out."),
        "model": Key(_NONEMPTY, "The name of its model; the owner's by default."),
        "limits": Key(
            Record(
                "subAgentLimits",
                "bounds of one run",
                {
                    "steps": Key(_STEPS, "Model calls.", null=True),
                    "tokens": Key(_STEPS, "Tokens in and out.", null=True),
                    "cost": Key(_BOUND, "US dollars.", null=True),
                    "seconds": Key(_BOUND, "Seconds at work.", null=True),
                },
            ),
            "Limits of one run.",
        ),
        "delegates": Key(Flag(), "True lets it delegate too."),
    },
)
AGENT = Record(
    "agent",
    "an agent",
    {
        "$schema": Key(_NONEMPTY, "For editors; not read."),
        "model": Key(
            Either(
                text=_NONEMPTY,
                map=_MODEL,
                list=ListOf(_ONE_MODEL),
                what="a model's name, a mapping, or a list of these",
            ),
            "A model's name, a mapping with name and settings, or a list of these, of which the"
            " next is called when one fails.",
            required=True,
        ),
        "system_prompt": Key(_PROMPT, "The base of the system prompt; by default Holdfast's own."),
        "system_prompt_extensions": Key(
            ListOf(_PROMPT, "a list of texts"), "Texts that follow the base."
        ),
        "microagents": Key(
            ListOf(_PROMPT, "a list of texts"),
            "Texts, files or folders of microagents whose text is in the prompt.",
        ),
        "tools": Key(
            Either(text=_NONEMPTY, map=_Tools(), what="a tool config, or the path of one"),
            "A tool config, or the path of one.",
        ),  # see tools.config
        "skills": Key(
            Either(
                list=ListOf(_NONEMPTY, "a list of folders"),
                map=_SKILLS,
                what="a list of folders, or a mapping",
            ),
            "Folders of skills; earlier ones take precedence.",
        ),
        "instructions": Key(
            Either(text=_NONEMPTY, map=_INSTRUCTIONS, what="a folder, or a mapping"),
            "The folder whose AGENTS.md, and those above and below, are read.",
        ),
        "limits": Key(
            Record(
                "limits",
                "bounds of one run",
                {
                    "steps": Key(_STEPS, "Model calls.", null=True),
                    "tokens": Key(_STEPS, "Tokens in and out.", null=True),
                    "cost": Key(_BOUND, "US dollars.", null=True),
                    "seconds": Key(_BOUND, "Seconds at work.", null=True),
                },
            ),
            "Limits of one run.",
        ),
        "tree_limits": Key(
            Record(
                "treeLimits",
                "bounds of a tree",
                {
                    "steps": Key(_STEPS, "Model calls.", null=True),
                    "tokens": Key(_STEPS, "Tokens in and out.", null=True),
                    "cost": Key(_BOUND, "US dollars.", null=True),
                    "seconds": Key(_BOUND, "Seconds at work.", null=True),
                },
            ),
            "A budget of a conversation together with those that its calls spawn.",
        ),
        "confirm": Key(_Confirm(), "Calls that need an approval."),
        "security": Key(
            Either(
                text=_NONEMPTY,
                list=ListOf(_Security()),
                map=_Security(),
                what=(
                    "standard, rules, annotations or judge, a mapping with that as name, a list of"
                    " these, 'module:qualname', or {use, parameters}"
                ),
            ),
            "The analyzer of risks: standard, rules, annotations or judge, a mapping with"
            " that as its name, or a list of these, of which the highest counts.",
        ),
        "describe_images": Key(
            _ONE_MODEL, "The model that describes pictures for a model without image input."
        ),
        "condenser": Key(
            Either(
                text=_NONEMPTY,
                list=ListOf(_Condenser()),
                map=_Condenser(),
                what=(
                    "window, tool_output or llm, a mapping with that as name, a list of these,"
                    " 'module:qualname', or {use, parameters}"
                ),
            ),
            "The condenser of long conversations: window, tool_output or llm, a mapping with"
            " that as"
            " its name, or a list of these, one after the other.",
        ),
        "planning": Key(
            Choice(("tool", "first")),
            "tool: the agent keeps a plan; first: the user approves the plan before any change.",
            null=True,
        ),
        "output_type": Key(
            Either(
                text=_NONEMPTY,
                map=_PARAMETERS,
                what="'module:qualname' of a type, a JSON Schema, or {file: path}",
            ),
            "The result of a run: 'module:qualname' of a type, a JSON Schema, or {file: path} of"
            " one.",
        ),
        "output_rounds": Key(
            _STEPS, "Invalid results after which a run with an output type fails."
        ),
        "stuck": Key(
            Record(
                "stuck",
                "thresholds of stuck detection",
                {
                    "repeat": Key(
                        Number("a whole number from 2", 2, 1e9, whole=True),
                        "Steps with the same calls and results.",
                        null=True,
                    ),
                    "ping_pong": Key(
                        Number("a whole number from 4", 4, 1e9, whole=True),
                        "Steps in which two steps alternate.",
                        null=True,
                    ),
                    "errors": Key(
                        Number("a whole number from 2", 2, 1e9, whole=True),
                        "Steps that fail in the same way.",
                        null=True,
                    ),
                    "monologue": Key(
                        Number("a whole number from 2", 2, 1e9, whole=True),
                        "Answers without a call.",
                        null=True,
                    ),
                    "after_nudge": Key(
                        Number("a whole number from 1", 1, 1e9, whole=True),
                        "Further steps after the message to the model.",
                    ),
                },
            ),
            "Thresholds of stuck detection; null turns it off.",
            null=True,
        ),
        "hooks": Key(
            ListOf(AGENT_HOOK, "a list of hooks"),
            "Hooks of calls, model calls, messages, ends and condensations, in calling order.",
        ),
        "delegates": Key(
            MapOf(_OtherAgent(), "a mapping of names to agents"),
            "Agents that it may delegate to: files, mappings with prompt, or agents.",
        ),
        "delegation": Key(
            Record(
                "delegation",
                "bounds of delegation",
                {
                    "max_depth": Key(
                        _STEPS,
                        "Levels of children below the first conversation; 3 by default.",
                    ),
                    "max_running": Key(
                        _STEPS,
                        "Children of one conversation that work at the same time; 8 by default.",
                    ),
                    "max_messages": Key(
                        _STEPS,
                        "Messages that a conversation sends to others until the user says"
                        " something; 50 by default.",
                    ),
                    "detached": Key(
                        Flag(), "True lets background children go on when their parent is closed."
                    ),
                },
            ),
            "Bounds of delegation.",
        ),
        "handoffs": Key(
            MapOf(_OtherAgent(True), "a mapping of names to agents"),
            "Agents that can take over; null: an agent that the conversation knows by that name.",
        ),
        "parallel_calls": Key(
            Number("a whole number from 1", 1, 1e18, whole=True),
            "Maximum number of calls of one answer that run at the same time.",
        ),
        "output_limit": Key(
            Number("a number of characters from 1000", 1000, 1e18, whole=True),
            "Maximum number of characters of an output that a model is shown.",
        ),
    },
)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of `load_agent`'s input.

    The schema does not cover the constraints that `LLM` puts on its settings.
    """
    defs: dict[str, Any] = {}
    body = AGENT.body(defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Holdfast agent",
        **body,
        "$defs": defs,
    }
