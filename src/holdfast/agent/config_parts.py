"""The settings of an agent's parts: models, condensers, analyzers and confirmation policies, and
objects that code makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.agent import security
from holdfast.agent.condensers import SHIPPED as CONDENSER_CLASSES
from holdfast.agent.condensers import Pipeline
from holdfast.agent.confirmation import AboveRisk, ByTool, Strictest
from holdfast.agent.goal import JUDGES, AllJudges, Goal
from holdfast.content import ToolCall
from holdfast.llm import LLM, FallbackLLM, LiteLLM, NamedModel, RouterLLM, ScriptedLLM
from holdfast.tools import config as tool_config
from holdfast.tools.config.dumper import Dumper, Origin, dump_error
from holdfast.tools.config.shapes import (
    Anything,
    Choice,
    Defs,
    Either,
    Flag,
    Key,
    Later,
    ListOf,
    MapOf,
    Number,
    ObjectShape,
    Section,
    Shape,
    Text,
    Unbuilt,
    Variants,
    WrongKey,
    describe_value,
    shared_schema,
    struct_shape,
)
from holdfast.tools.config.structs import keys_of, section_of
from holdfast.tools.document import Map, Seq, SourceLocation, did_you_mean
from holdfast.tools.skills_files import with_home

TEXT, NONEMPTY, ANY, FLAG = Text(empty=True), Text(), Anything(), Flag()
_SECRET, _URL = Text(secret=True, empty=True), Text(secret=True, url=True)
_INTEGER = Number("a whole number", -(2**63), 2**63, whole=True)
_NUMBER = Number("a number", -1e18, 1e18)
BOUND = Number("a number above 0", above=True, high=1e18)
COUNT = Number("a whole number from 1", 1, 1e18, whole=True)
SIZE = Number("a number of characters from 0", 0, 1e18, whole=True)
NAMES = ListOf(NONEMPTY)
PARAMETERS = MapOf(ANY, "a mapping")


class AgentLoader(msgspec.Struct, frozen=True):
    """The surroundings of one load: the folder of relative paths, the host's builtins, and the
    records of what imported code made.

    Attributes:
        root: The folder at which relative paths start.
        modules: The folder whose modules may be imported; None for no such folder.
        known: The host's builtins by name.
        variables: The values of variables, which a serial form must not show.
        agent: The class of agents.
        origins: The objects that imported code made.
        sources: The documents that were read.
    """

    root: Path
    modules: Path | None
    objects: Mapping[str, Any]
    variables: Mapping[str, Any]
    agent: Callable[..., Any]
    origins: list[Origin] = []
    sources: set[str] = set()

    def __repr__(self) -> str:
        return f"AgentLoader({str(self.root)!r})"  # the variables are secrets

    def is_placed(self, error: Exception) -> bool:
        """Return True if the error's message begins with a place in a document."""
        return str(error).startswith(tuple(self.sources))

    def path(self, path: str) -> Path:
        """Return a path of the document; `~` is the home folder."""
        return self.root / with_home(path)

    def read_file(self, path: str) -> str:
        """Return the text of a file."""
        file = self.path(path)
        try:
            return file.read_bytes().decode("utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise WrongKey("file", f"{str(file)!r} cannot be read: {reason}.") from None

    def use(
        self, part: Mapping[str, Any], place: SourceLocation, more: Mapping[str, Any] = {}
    ) -> Any:
        """Return the object that `use` names; a class or function is called with the parameters."""
        name, parameters = part["use"], part.get("parameters")
        target = self._find(name, place, more)
        if inspect.isclass(target) or inspect.isroutine(target):
            target = tool_config.call_with(target, parameters, name, place)
        elif parameters is not None:
            raise place.error(
                f"{name!r} is an object, not a class or function; it takes no parameters."
            )
        texts = [value for value in self.variables.values() if isinstance(value, str) and value]
        self.origins.append(Origin(target, name, parameters, frozenset(texts)))
        return target

    def function(self, name: str, place: SourceLocation) -> Any:
        """Return the named function or class itself."""
        target = self._find(name, place, {})
        self.origins.append(Origin(target, name))
        return target

    def _find(self, name: str, place: SourceLocation, more: Mapping[str, Any]) -> Any:
        objects = {**more, **self.objects}
        if name in objects:
            return objects[name]
        if ":" in name:
            return tool_config.load_object(name, place)
        raise place.error(
            f"no builtin is named {name!r}.{did_you_mean(name, objects)} It takes"
            f" 'module:qualname', or a name of builtins: {', '.join(objects) or 'none given'}."
        )


def _part_keys(what: str) -> dict[str, Key]:
    return {
        "use": Key(NONEMPTY, f"{what}: 'module:qualname', or a builtin's name.", required=True),
        "parameters": Key(PARAMETERS, "The arguments of `use`, if it is a class or a function."),
    }


_PART = Section("part", "an object that code makes", _part_keys("The object"))


class Shipped(Shape, frozen=True):
    """A shipped part by name or as `{name, ...}`, one that code makes as `{use, parameters}`, or a
    list of these.

    `classes` are the classes by name and `kinds` their keys. A list is made into `several`, whose
    attribute `members` has its parts.
    """

    what: str
    classes: Mapping[str, Callable[..., Any]]
    kinds: Mapping[str, Section]
    several: type[Any]
    members: str

    def read(self, value: Any, place: SourceLocation) -> Any:
        if isinstance(value, Seq):
            inner = [self.read(one, at) for one, at in value.members()]
            return Unbuilt(self._make_several, inner, place, {})
        if isinstance(value, str):
            return Unbuilt(self._make, NONEMPTY.read(value, place), place, {})
        if not isinstance(value, Map):
            raise place.error(
                f"it takes {', '.join(self.kinds)}, a mapping with that as name, a list of these,"
                f" 'module:qualname', or {{use, parameters}}, not {describe_value(value)}."
            )
        if "use" not in value and "name" not in value:
            raise place.error(f"name is missing: one of {', '.join(self.kinds)}; or give use.")
        if "use" in value:
            return Unbuilt(self._make, _PART.read(value, place), place, value.places)
        name = Choice(tuple(self.kinds)).read(value.get("name"), value.places.get("name", place))
        keys = self.kinds[name].keys
        for key in value:
            if key not in keys and any(key in one.keys for one in self.kinds.values()):
                takes = ", ".join(one for one in keys if one != "name")
                raise value.places[key].error(f"the {self.what} {name} takes {takes}, not {key}.")
        return Unbuilt(self._make, self.kinds[name].read(value, place), place, value.places)

    def _make_several(self, data: list[Any], place: SourceLocation, loader: AgentLoader) -> Any:
        return self.several(tuple(data))

    def _make(self, data: Any, place: SourceLocation, loader: AgentLoader) -> Any:
        if isinstance(data, str):
            is_class_name = data in self.classes and data not in loader.objects
            data = {"name": data} if is_class_name else {"use": data}
        if "use" in data:
            return loader.use(data, place, self.classes)
        arguments = {key: value for key, value in data.items() if key != "name"}
        name = data["name"]
        return self.classes[name](**self.kinds[name].arguments(arguments))

    def schema(self, defs: Defs) -> dict[str, Any]:
        def any_of() -> dict[str, Any]:
            kinds = [kind.body(defs) for kind in self.kinds.values()]
            several = ListOf(self).schema(defs)
            return {"anyOf": [NONEMPTY.schema(defs), *kinds, _PART.schema(defs), several]}

        return shared_schema(self.what, defs, any_of)

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        name = next((name for name, kind in self.classes.items() if type(value) is kind), "")
        if name:
            return {"name": name, **self.kinds[name].dump(value, where, dumper)}
        if type(value) is self.several:
            members = getattr(value, self.members)
            return ListOf(self).dump(members, f"{where}.{self.members}", dumper)
        return dumper.part(where, value)


# --- models ---


def _make_model(data: Any, place: SourceLocation, loader: AgentLoader) -> Any:
    if isinstance(data, str):
        return LLM(data)
    if "use" in data:
        model = loader.use(data, place, {"scripted": ScriptedLLM, "litellm": LiteLLM})
        if not callable(getattr(model, "completion", None)):
            raise place.error(
                f"{data['use']!r} gives {type(model).__name__}, which is not a model: it has no"
                " method completion."
            )
        return model
    if "fallback" in data:
        on = _failures(data["on"], place.at("on"), loader) if "on" in data else None
        return FallbackLLM(data["fallback"], on=on, sticky=data.get("sticky", True))
    if "router" in data:
        return RouterLLM(loader.function(data["pick"], place.at("pick")), data["router"])
    if "named" in data:
        return NamedModel(data["named"])
    settings = {key: value for key, value in data.items() if key != "name"}
    return LLM(data["name"], **settings)


def _failures(data: str | list[str], place: SourceLocation, loader: AgentLoader) -> Any:
    """Return the value of `FallbackLLM(on=)` for names of errors or of a function."""
    if isinstance(data, str) and (":" in data or data in loader.objects):
        return loader.function(data, place)
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.LLMError)
    }
    classes: list[Any] = []
    for name in [data] if isinstance(data, str) else data:
        if name not in kinds and ":" not in name:
            raise place.error(
                f"no model error is named {name!r}.{did_you_mean(name, kinds)} It takes:"
                f" {', '.join(kinds)}, or 'module:qualname'."
            )
        classes.append(kinds[name] if name in kinds else loader.function(name, place))
    return tuple(classes)


def _dump_model(model: Any, where: str, dumper: Dumper) -> dict[str, Any]:
    kind = cast("type[Any]", type(model))
    if kind is LLM:
        return _dump_llm(model, where, dumper)
    if kind is FallbackLLM:
        models = _dump_models(model.models, where, dumper)
        entry = {"fallback": models, "sticky": model.sticky}
        return entry if model.on is None else {**entry, "on": _dump_on(model.on, where, dumper)}
    if kind is RouterLLM:
        pick = dumper.function(f"{where}.pick", model.pick)
        return {"router": _dump_models(model.models, where, dumper), "pick": pick}
    if kind is ScriptedLLM:
        return _dump_scripted(model, where, dumper)
    if kind is NamedModel:
        return {"named": dumper.text(where, model.name)}
    if kind is LiteLLM:
        return {"use": "litellm", "parameters": dumper.data(where, model.arguments(), frozenset())}
    return dumper.part(where, model)


def _dump_models(models: Mapping[str, Any], where: str, dumper: Dumper) -> dict[str, Any]:
    at = f"{where}.models"
    return {name: _dump_model(one, f"{at}[{name!r}]", dumper) for name, one in models.items()}


def _dump_llm(llm: LLM, where: str, dumper: Dumper) -> dict[str, Any]:
    arguments: dict[str, Any] = llm.arguments()
    if arguments.pop("ssl_context") is not None:
        own = "the agent server uses the certificates of its own system"
        raise dump_error(f"{where}.ssl_context", f"is an object of this process; {own}")
    if not isinstance(arguments["wire"], str | None):
        raise dump_error(
            f"{where}.wire", "is an object of this process; the agent server knows Holdfast's wires"
        )
    arguments["name"] = arguments.pop("model")
    defaults = inspect.signature(LLM).parameters
    settings = {
        name: value
        for name, value in arguments.items()
        if name == "name" or (value != defaults[name].default and (value or value != ""))
    }
    return _SETTINGS.dump(settings, where, dumper)


def _dump_on(on: Any, where: str, dumper: Dumper) -> str | list[str]:
    where = f"{where}.on"
    kinds: Any = (on,) if isinstance(on, type) else on
    if not isinstance(kinds, tuple) or not kinds:
        return dumper.function(where, on)
    return [
        kind.__name__
        if getattr(errors, kind.__name__, None) is kind
        else dumper.function(where, kind)
        for kind in cast("tuple[type[Any], ...]", kinds)
    ]


def _dump_scripted(llm: ScriptedLLM, where: str, dumper: Dumper) -> dict[str, Any]:
    script: Any = llm.script
    if not isinstance(script, list | tuple):
        return dumper.part(
            where,
            llm,
            "is a ScriptedLLM whose script is code; give it a list of texts and calls, or make it"
            " at the top of a module",
        )
    if llm.requests:
        raise dump_error(where, "is a ScriptedLLM whose script has already begun; make a new one")
    answers = [
        _dump_answer(one, f"{where}.script[{i}]", dumper)
        for i, one in enumerate(cast("list[Any]", script))
    ]
    more = {"delay": llm.delay or None, "stream": llm.stream or None, "images": llm.sees}
    parameters = {"script": answers, "model": dumper.text(where, llm.model), **more}
    settings = {name: value for name, value in parameters.items() if value is not None}
    return {"use": "scripted", "parameters": settings}


def _dump_answer(answer: Any, where: str, dumper: Dumper) -> Any:
    """Return one answer of a script: a text, a call, or a list of them."""
    match answer:
        case list():
            return [_dump_answer(one, where, dumper) for one in cast("list[Any]", answer)]
        case ToolCall() if answer.raw or answer.invalid:
            what = "a call whose arguments are not a JSON object"
            raise dump_error(where, f"is {what}, which a serial form cannot contain")
        case ToolCall():
            id = answer.provider_id or answer.id
            call: Any = {"name": answer.name, "arguments": answer.arguments}
            return dumper.data(where, {**call, "id": id} if id else call)
        case (name, arguments):
            return dumper.data(where, {"name": name, "arguments": arguments})
        case str() | Mapping():
            return dumper.data(where, answer)
        case _:
            raise dump_error(
                where,
                f"is a {type(answer).__name__}; a script in a serial form has texts, calls and"
                " lists of them",
            )


_SETTING_SHAPES: dict[str, Any] = {
    "api_key": _SECRET,
    "base_url": _URL,
    "proxy": _URL,
    "headers": MapOf(_SECRET, "a mapping of texts to texts"),
    "prices": MapOf(_NUMBER, "a mapping of kinds of tokens to prices"),
    **dict.fromkeys(("stop", "response_format", "extra_body", "send_reasoning"), ANY),
    **dict.fromkeys(("reasoning_effort", "tool_calls", "wire"), NONEMPTY),
    **dict.fromkeys(("parallel_tool_calls", "images", "stream", "think_tags", "background"), FLAG),
    "prompt_caching": Either(other=FLAG, text=NONEMPTY, what="true, false, '5m' or '1h'"),
    **dict.fromkeys(("max_output_tokens", "reasoning_budget", "seed", "max_retries"), _INTEGER),
    **dict.fromkeys(("temperature", "top_p", "timeout", "connect_timeout", "deadline"), _NUMBER),
}
_SETTINGS = Section(
    "llm",
    "a model by name, with its settings",
    {
        "name": Key(NONEMPTY, "Its name, as LLM takes it.", required=True),
        **{name: Key(shape, "As LLM takes it.") for name, shape in _SETTING_SHAPES.items()},
    },
)
_INNER_MODEL = Later(lambda: ONE_MODEL)
MODELS_BY_NAME = MapOf(_INNER_MODEL, "a mapping of names to models")
_FALLBACK = {
    "fallback": Key(
        Either(
            list=ListOf(_INNER_MODEL),
            map=MODELS_BY_NAME,
            what="a list of models, or a mapping of names to models",
        ),
        "Models in order; the next one is called when one fails. Names are optional.",
        required=True,
    ),
    "sticky": Key(FLAG, "True keeps a conversation with the model that answered. Default: true."),
    "on": Key(
        Either(
            text=NONEMPTY, list=NAMES, what="names of errors, or a function as 'module:qualname'"
        ),
        "Failures that lead to the next model: names of LLM errors, or a function of the error.",
    ),
}
_PICK = "The function that picks: 'module:qualname', or a builtin's name."
_ROUTER = {
    "router": Key(
        MODELS_BY_NAME, "Models by name; a function picks one for each request.", required=True
    ),
    "pick": Key(NONEMPTY, _PICK, required=True),
}
_NAMED_MODEL = {"named": Key(NONEMPTY, "The name of a model of an agent server.", required=True)}
_MODEL_KINDS = {
    "name": _SETTINGS,
    "use": Section("usedModel", "a model that code makes", _part_keys("The model")),
    "fallback": Section("fallback", "models in order", _FALLBACK),
    "router": Section("router", "models by name", _ROUTER),
    "named": Section("namedModel", "a model of an agent server", _NAMED_MODEL),
}
_MODEL = Variants("model", "a model", _MODEL_KINDS)
_MODEL_FORM = Either(text=NONEMPTY, map=_MODEL, what="a model's name or a mapping")
ONE_MODEL = ObjectShape(_MODEL_FORM, _make_model, _dump_model)
MODELS = Either(
    text=ONE_MODEL,
    map=ONE_MODEL,
    list=ObjectShape(
        ListOf(ONE_MODEL),
        lambda data, place, loader: data[0] if len(data) == 1 else FallbackLLM(data),
    ),
    other=ONE_MODEL,
    what="a model's name, a mapping, or a list of these",
)

# --- condensers, analyzers and policies ---

# Shapes that do not follow from the types of the classes' fields.
_FIELDS: dict[str, Shape | Key] = {
    "at": BOUND,
    "to": Number("a number above 0", above=True, high=1),
    "keep": _INTEGER,
    "over": _INTEGER,
    "model": Key(ONE_MODEL, "The model to ask; the agent's own by default.", attribute="llm"),
    "condensers": Key(
        ListOf(Later(lambda: CONDENSER)),
        "A list: a pipeline has condensers, in order.",
        required=True,
    ),
    "otherwise": Key(
        Later(lambda: CONDENSER), "The condenser for a model without compaction; llm by default."
    ),
    "commands": MapOf(NONEMPTY),
    "policy": TEXT,
}


def _kinds(classes: Mapping[str, type[Any]], whole: bool = False) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for name, kind in classes.items():
        name_key = {"name": Key(Choice((name,)), "The kind.", required=True)}
        keys = {**name_key, **keys_of(kind, _FIELDS)}
        sections[name] = Section(name, f"the settings of {name}", keys, whole=whole)
    return sections


_CONDENSERS = _kinds(CONDENSER_CLASSES)
CONDENSER = Shipped("condenser", CONDENSER_CLASSES, _CONDENSERS, Pipeline, "condensers")
_ANALYZERS = _kinds(security.SHIPPED, whole=True)
_STANDARD = {
    "name": Key(Choice(("standard",)), "Rules, then annotations.", required=True),
    "hosts": _ANALYZERS["rules"].keys["hosts"],
}
ANALYZER = Shipped(
    "analyzer",
    {"standard": security.standard, **security.SHIPPED},
    {"standard": Section("standard", "the settings of standard", _STANDARD), **_ANALYZERS},
    security.Highest,
    "analyzers",
)
JUDGE = Shipped("judge", JUDGES, _kinds(JUDGES), AllJudges, "judges")
_GOAL_KEYS = {"judge": Key(JUDGE, "rubric, command, a list of these, or one that code makes.")}
GOAL = struct_shape(section_of(Goal, "goal", "the goal of a run", _GOAL_KEYS), Goal)
_VERDICTS = ("allow", "ask", "deny")


class Confirmation(Shape, frozen=True):
    """The shape of `Agent(confirm=)`.

    A tool may be named "use", "above", "judge" or "strictest": its value is then a verdict.
    """

    def read(self, value: Any, place: SourceLocation) -> Any:
        if isinstance(value, Map):
            if "above" in value and value["above"] not in _VERDICTS:
                return struct_shape(_ABOVE, AboveRisk).read(value, place)
            if isinstance(value.get("strictest"), Seq):
                if len(value) > 1:
                    raise place.error("strictest stands alone; put other policies into its list.")
                members = ObjectShape(ListOf(self), lambda data, at, loader: Strictest(data))
                return members.read(value["strictest"], value.places["strictest"])
            if "judge" in value and value["judge"] not in _VERDICTS:
                return struct_shape(_JUDGE, security.LLMJudge).read(value, place)
            if isinstance(value.get("use"), str) and value["use"] not in _VERDICTS:
                used = ObjectShape(_PART, lambda data, at, loader: loader.use(data, at))
                return used.read(value, place)
        return _POLICY.read(value, place)

    def schema(self, defs: Defs) -> dict[str, Any]:
        several = {
            "type": "object",
            "properties": {"strictest": {"type": "array"}},
            "required": ["strictest"],
            "additionalProperties": False,
        }
        part = {**_PART.schema(defs), "properties": {"use": {"not": {"enum": list(_VERDICTS)}}}}
        shapes = [_POLICY.schema(defs), _ABOVE.schema(defs), _JUDGE.schema(defs)]
        return {"anyOf": [*shapes, several, part]}

    def dump(self, value: Any, where: str, dumper: Dumper) -> Any:
        if type(value) is ByTool:
            return value.verdicts
        if type(value) is AboveRisk:
            return {"above": value.level, "verdict": value.verdict}
        if type(value) is security.LLMJudge:
            return _JUDGE.dump(value, where, dumper)
        if type(value) is Strictest:
            return {"strictest": ListOf(self).dump(value.policies, f"{where}.policies", dumper)}
        return dumper.part(where, value)


_POLICY = Either(
    text=Choice(("never", "always", "risky")),
    list=NAMES,
    map=MapOf(Choice(_VERDICTS)),
    what=(
        "never, always, risky, a list of tools, a mapping of tools to allow, ask or deny, {above:"
        " low or medium}, {judge: a policy in words}, {strictest: policies}, or {use, parameters}"
    ),
)
_ABOVE_KEYS = {
    "above": Key(
        Choice(("low", "medium")),
        "The highest risk that runs without an approval.",
        required=True,
        attribute="level",
    ),
    "verdict": Key(Choice(("ask", "deny")), "ask waits for an approval, deny refuses."),
}
_ABOVE = Section("above", "calls above a risk", _ABOVE_KEYS)
_JUDGE_KEYS = {
    "judge": Key(
        NONEMPTY,
        "The policy in words, by which a model allows, asks about or denies each call.",
        required=True,
        attribute="policy",
    ),
    "model": Key(ONE_MODEL, "The model to ask; the agent's own by default.", attribute="llm"),
}
_JUDGE = Section("judgedCalls", "calls judged by a model", _JUDGE_KEYS)
