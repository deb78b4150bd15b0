"""Conversion of an agent to `load_agent`'s mapping: plain data with variables in place of
secrets."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.agent.agent import Agent
from holdfast.agent.condensers import SHIPPED
from holdfast.agent.confirmation import AboveRisk, ByTool, Strictest
from holdfast.agent.form import Origin
from holdfast.agent.load_keys import SKILL
from holdfast.agent.naming import (
    constructor_arguments,
    describe_object,
    name_of_definition,
    name_of_object,
)
from holdfast.agent.stuck import StuckDetector
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, LLMError, ToolError
from holdfast.llm import LLM, FallbackLLM, LiteLLM, RouterLLM, ScriptedLLM
from holdfast.tools.hooks import Hook
from holdfast.tools.manager import Rules
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.agent.agents_files import SubAgent
    from holdfast.agent.directory import AgentDirectory

# Keys that are named like secrets. `max_tokens` and similar keys do not match.
_SECRET = re.compile(
    r"key|token(?!s)|secret|password|credential|header|authorization", re.IGNORECASE
)
# A value that is not a secret but a reference to one that the reader of the form knows; also
# `Bearer ${TOKEN}`.
_REFERENCE = re.compile(r"(?:[A-Za-z]+ )?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OWN_NAME = re.compile(r"secret_[0-9]+")
_PUBLIC_QUERY = ("alt", "api-version")


class Writer:
    """A writer of one agent's serial form, which collects the agent's secrets.

    `origins` are records of the parts that `load_agent` had imported code make.
    """

    def __init__(self, origins: Sequence[Origin]) -> None:
        self._origins = origins
        self._names: dict[str, str] = {}

    @property
    def secrets(self) -> dict[str, str]:
        """The secrets by variable name."""
        return {name: value for value, name in self._names.items()}

    def agent(
        self, agent: Agent, tools: Sequence[Tool], servers: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the mapping. Raises `ConfigurationError` that names the argument without a
        serial form."""
        found: dict[str, Any] = {
            "model": self.model("llm", agent.llm),
            **self.prompt(agent),
            "limits": msgspec.structs.asdict(agent.limits),
            "parallel_calls": agent.parallel_calls,
            "output_limit": agent.output_limit,
        }
        if agent.tree_limits is not None:
            found["tree_limits"] = msgspec.structs.asdict(agent.tree_limits)
        if agent.confirm is not None:
            found["confirm"] = self.confirm("confirm", agent.confirm)
        if agent.security is not None:
            found["security"] = self.security("security", agent.security)
        if agent.describe_images is not None:
            found["describe_images"] = self.model("describe_images", agent.describe_images)
        if agent.condenser is not None:
            found["condenser"] = self.condenser("condenser", agent.condenser)
        if agent.output is not None:
            found["output_type"] = self.data("output_type", agent.output.form)
            found["output_rounds"] = agent.output_rounds
        if agent.stuck != StuckDetector():
            found["stuck"] = None if agent.stuck is None else msgspec.structs.asdict(agent.stuck)
        if agent.planning is not None:
            found["planning"] = agent.planning
        for key in ("delegates", "handoffs"):
            others: AgentDirectory | None = getattr(agent, key)
            if others is not None:
                found[key] = {
                    name: self.other(f"{key}.{name}", one) for name, one in others.given.items()
                }
        if agent.delegates is not None:
            if agent.delegates.send_to:
                raise _error(
                    "delegates.send_to",
                    "has ids of conversations of this process, which a serial form cannot contain",
                )
            found["delegation"] = {
                name: getattr(agent.delegates, name)
                for name in ("max_depth", "max_running", "max_messages", "detached")
            }
        if agent.hooks:
            found["hooks"] = [
                self.hook(f"hooks[{number}]", hook) for number, hook in enumerate(agent.hooks)
            ]
        if section := self.tools(agent.tools.rules, tools, servers):
            found["tools"] = section
        return found

    def prompt(self, agent: Agent) -> dict[str, Any]:
        """Return the keys of the system prompt; the contents of files are included as texts."""
        from holdfast.agent.prompt import without_heading
        from holdfast.tools.skills import as_text

        known = agent.known
        by_argument = {
            kind: [part.text for part in known.parts if part.of == kind]
            for kind in ("system_prompt", "system_prompt_extensions")
        }
        found: dict[str, Any] = {
            "system_prompt": self.text("system_prompt", "".join(by_argument["system_prompt"]))
        }
        if texts := by_argument["system_prompt_extensions"]:
            found["system_prompt_extensions"] = [
                self.text(f"system_prompt_extensions[{n}]", text) for n, text in enumerate(texts)
            ]
        if notes := [
            without_heading(part.text) for part in known.parts if part.of == "microagents"
        ]:
            found["microagents"] = [
                self.text(f"microagents[{n}]", text) for n, text in enumerate(notes)
            ]
        if known.skills is not None:
            entries: list[dict[str, Any]] = []
            for skill in known.skills.list():
                try:
                    sent = as_text(skill)
                except ToolError as error:
                    raise _error(f"skills: {skill.name}", f"cannot be read: {error}") from error
                entry = {
                    name: value
                    for name in SKILL
                    if (value := getattr(sent, name)) or name == "text"
                }
                entries.append(self.data(f"skills.{skill.name}", msgspec.to_builtins(entry)))
            found["skills"] = {
                "list": entries,
                "each": known.skills.each,
                "total": known.skills.total,
            }
        if known.instructions is not None:
            found["instructions"] = {"texts": self.data("instructions", known.instructions.texts)}
        return found

    def other(self, where: str, one: Agent | SubAgent | None) -> dict[str, Any] | None:
        """Return a delegate or handoff target: a sub-agent as its settings, an agent as a whole
        mapping."""
        if one is None:
            return None
        if isinstance(one, Agent):
            from holdfast.agent.form import own_tools, servers_of

            self._origins = (*self._origins, *one.origins)
            try:
                return self.agent(one, own_tools(one), servers_of(one))
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"Agent: {where}: {str(error).removeprefix('Agent: ')}"
                ) from error
        found: dict[str, Any] = {
            "prompt": self.text(f"{where}.prompt", one.prompt),
            "tools": list(one.tools),
        }
        if one.description:
            found["description"] = self.text(f"{where}.description", one.description)
        found |= {
            key: value
            for key, value in (
                ("without", list(one.without)),
                ("model", one.model),
                ("delegates", one.delegates),
            )
            if value
        }
        if one.limits is not None:
            found["limits"] = msgspec.structs.asdict(one.limits)
        return found

    # --- values ---

    def text(self, where: str, value: str) -> str:
        """Return a text with `${` escaped, so that no variable begins in it."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _error(
                where,
                "holds half a character (a lone surrogate), which JSON cannot represent; leave"
                " it out",
            ) from None
        return value.replace("${", "$${")

    def secret(self, where: str, value: str) -> str:
        """Return the variable in place of a secret. A value that is itself a variable reference
        stays."""
        reference = _REFERENCE.fullmatch(value)
        if reference is not None:
            if _OWN_NAME.fullmatch(reference[1]):
                raise _error(
                    where,
                    f"names the variable {reference[1]!r}, but such names are reserved for"
                    " secrets; give that"
                    " variable another one",
                )
            return value
        self.text(where, value)
        return (
            f"${{{self._names.setdefault(value, f'secret_{len(self._names) + 1}')}}}"
            if value
            else ""
        )

    def url(self, where: str, value: str) -> str:
        """Return an address with variables in place of user, password and query values."""
        scheme, mark, rest = value.partition("://")
        if not mark:
            return self.text(where, value)
        # Split at the last @ of the whole rest: a password that should have been percent-encoded
        # may contain / or ?.
        user, at, rest = rest.rpartition("@")
        rest, fragment, end = rest.partition("#")
        path, query, values = rest.partition("?")

        def part(given: str) -> str:
            name, equals, value = given.partition("=")
            if not given or name in _PUBLIC_QUERY:
                return self.text(where, given)
            return (
                f"{self.text(where, name)}={self.secret(where, value)}"
                if equals
                else self.secret(where, given)
            )

        begin = f"{self.text(where, scheme)}{mark}{self.secret(where, user)}{at}"
        begin += f"{self.text(where, path)}{query}"
        return begin + "&".join(map(part, values.split("&"))) + fragment + self.text(where, end)

    def data(
        self, where: str, value: Any, hidden: frozenset[str] | None = None, secret: bool = False
    ) -> Any:
        """Return plain data.

        With `hidden`, a text that contains one of these, and each value under a key that is
        named like a secret, becomes a variable.
        """
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _error(where, f"is {value}, which JSON cannot represent")
            return value
        if isinstance(value, str):
            covered = secret or (hidden is not None and any(text in value for text in hidden))
            return self.secret(where, str(value)) if covered else self.text(where, str(value))
        if isinstance(value, Mapping):
            found: dict[str, Any] = {}
            for key, member in cast("Mapping[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise _error(where, f"has the key {key!r}; JSON has texts for keys")
                inner = secret or (hidden is not None and bool(_SECRET.search(key)))
                found[key] = self.data(f"{where}.{key}", member, hidden, inner)
            return found
        if isinstance(value, list | tuple):
            return [
                self.data(f"{where}[{i}]", member, hidden, secret)
                for i, member in enumerate(cast("list[Any]", value))
            ]
        raise _error(where, f"is a {type(value).__name__}, which JSON cannot represent")

    # --- models ---

    def model(self, where: str, llm: Any) -> dict[str, Any]:
        kind = cast("type[Any]", type(llm))
        if kind is LLM:
            return self.llm(where, cast("LLM", llm))
        if kind is FallbackLLM:
            fallback = cast("FallbackLLM", llm)
            found: dict[str, Any] = {
                "fallback": self.models(where, fallback.models),
                "sticky": fallback.sticky,
            }
            return (
                found
                if fallback.on is None
                else {**found, "on": self.on(f"{where}.on", fallback.on)}
            )
        if kind is RouterLLM:
            router = cast("RouterLLM", llm)
            return {
                "router": self.models(where, router.models),
                "pick": self.function(f"{where}.pick", router.pick),
            }
        if kind is ScriptedLLM:
            return self.scripted(where, cast("ScriptedLLM", llm))
        if kind is LiteLLM:
            return {
                "use": "litellm",
                "parameters": self.data(where, cast("LiteLLM", llm).arguments(), frozenset()),
            }
        return self.part(where, llm)

    def models(self, where: str, models: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self.model(f"{where}.models[{name!r}]", model) for name, model in models.items()
        }

    def llm(self, where: str, llm: LLM) -> dict[str, Any]:
        given: dict[str, Any] = llm.arguments()
        if given.pop("ssl_context") is not None:
            raise _error(
                f"{where}.ssl_context",
                "is an object of this process; the agent server uses the certificates of its own"
                " system",
            )
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(type(llm)).parameters.items()
        }
        found: dict[str, Any] = {"name": self.text(where, given.pop("model"))}
        for name in given:
            at, value = f"{where}.{name}", given[name]
            if (
                value is None
                or value == defaults[name]
                or (name in ("base_url", "proxy") and not value)
            ):
                continue
            match name:
                case "api_key":
                    found[name] = self.secret(at, value)
                case "base_url" | "proxy":
                    found[name] = self.url(at, value)
                case "headers":
                    found[name] = {key: self.secret(at, header) for key, header in value.items()}
                case _:
                    found[name] = self.data(at, value)
        return found

    def on(self, where: str, on: Any) -> str | list[str]:
        kinds: list[Any] = (
            [on]
            if isinstance(on, type)
            else list(cast("tuple[Any, ...]", on))
            if isinstance(on, tuple)
            else []
        )
        return [self.failure(where, kind) for kind in kinds] if kinds else self.function(where, on)

    def failure(self, where: str, kind: type[LLMError]) -> str:
        return (
            kind.__name__
            if getattr(errors, kind.__name__, None) is kind
            else self.function(where, kind)
        )

    def scripted(self, where: str, llm: ScriptedLLM) -> dict[str, Any]:
        given: Any = llm.script
        if not isinstance(given, list | tuple):
            return self.part(
                where,
                llm,
                "is a ScriptedLLM whose script is code; give it a list of texts and calls, or make"
                " it at the top of a module",
            )
        if llm.requests:
            raise _error(
                where,
                "is a ScriptedLLM whose script has already begun; make a new one",
            )
        script = [
            self.answer(f"{where}.script[{i}]", one)
            for i, one in enumerate(cast("list[Any]", given))
        ]
        found: dict[str, Any] = {"script": script, "model": self.text(where, llm.model)}
        found |= {
            name: value for name, value in (("delay", llm.delay), ("stream", llm.stream)) if value
        }
        if llm.sees is not None:
            found["images"] = llm.sees
        return {"use": "scripted", "parameters": found}

    def answer(self, where: str, answer: Any) -> Any:
        kind = cast("type[Any]", type(answer)).__name__
        if isinstance(answer, str):
            return self.text(where, answer)
        if isinstance(answer, list):
            return [self.answer(where, one) for one in cast("list[Any]", answer)]
        call: dict[str, Any] | None = None
        if isinstance(answer, ToolCall):
            if answer.raw or answer.invalid:
                raise _error(
                    where,
                    "is a call whose arguments are not a JSON object, which a serial form"
                    " cannot contain",
                )
            call = {"name": answer.name, "arguments": answer.arguments}
            if id := answer.provider_id or answer.id:
                call["id"] = id
        elif isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == 2:
            call = dict(zip(("name", "arguments"), cast("tuple[Any, Any]", answer), strict=True))
        elif isinstance(answer, Mapping):
            call = dict(cast("Mapping[str, Any]", answer))
        if call is None:
            raise _error(
                where, f"is a {kind}; a script in a serial form has texts, calls and lists of them"
            )
        return self.data(where, call)

    # --- condensers ---

    def condenser(self, where: str, made: Any) -> dict[str, Any]:
        """Return a shipped condenser as `{name, ...}`, any other as a part."""
        name = next((name for name, kind in SHIPPED.items() if type(made) is kind), "")
        if not name:
            return self.part(where, made)
        found: dict[str, Any] = {"name": name}
        for field in msgspec.structs.fields(made):
            value = getattr(made, field.name)
            if field.name == "condensers":
                found["condensers"] = [
                    self.condenser(f"{where}.condensers[{number}]", one)
                    for number, one in enumerate(value)
                ]
            elif field.name == "llm":
                if value is not None:
                    found["model"] = self.model(f"{where}.llm", value)
            elif value != field.default:
                found[field.name] = self.data(f"{where}.{field.name}", value)
        return found

    # --- policies and analyzers ---

    def confirm(self, where: str, policy: Any) -> Any:
        """Return a shipped policy as its mapping, any other as a part."""
        if type(policy) is ByTool:
            return policy.verdicts
        if type(policy) is AboveRisk:
            return {"above": policy.level, "verdict": policy.verdict}
        if type(policy) is Strictest:
            return {
                "strictest": [
                    self.confirm(f"{where}.policies[{number}]", one)
                    for number, one in enumerate(policy.policies)
                ]
            }
        return self.part(where, policy)

    def security(self, where: str, made: Any) -> Any:
        """Return a shipped analyzer as `{name, ...}`, several as a list, any other as a part."""
        from holdfast.agent import security

        if type(made) is security.Highest:
            return [
                self.security(f"{where}.analyzers[{number}]", one)
                for number, one in enumerate(made.analyzers)
            ]
        name = next((name for name, kind in security.SHIPPED.items() if type(made) is kind), "")
        if not name:
            return self.part(where, made)
        found: dict[str, Any] = {"name": name}
        for field in msgspec.structs.fields(made):
            value = getattr(made, field.name)
            if field.name == "llm":
                if value is not None:
                    found["model"] = self.model(f"{where}.llm", value)
            else:
                found[field.name] = self.data(f"{where}.{field.name}", value)
        return found

    # --- parts made by imported code ---

    def part(self, where: str, made: Any, why: str = "") -> dict[str, Any]:
        """Return an object as `{use, parameters}`.

        The origin of `load_agent` is used if there is one, then the object's name in a module,
        then its class with its state as parameters.
        """
        for origin in self._origins:
            if origin.made is made:
                use: dict[str, Any] = {"use": self.text(where, origin.use)}
                return (
                    use
                    if origin.parameters is None
                    else {**use, "parameters": self.data(where, origin.parameters, origin.hidden)}
                )
        kind = cast("type[Any]", type(made))
        # `use` would call a class or a function.
        if not (inspect.isclass(made) or inspect.isroutine(made)):
            if name := name_of_object(made):
                return {"use": name}
            parameters = None if why else constructor_arguments(made)
            if parameters is not None and (name := name_of_definition(kind)):
                found = self.data(f"{where}: {kind.__name__}", parameters, frozenset())
                return {"use": name, "parameters": found} if found else {"use": name}
        raise _error(
            where,
            why
            or (
                f"is {describe_object(made)}, which another process could not make; give an object"
                " at the top of a module (not of the program's own file), or one whose class"
                " stands in a module and is a dataclass or a msgspec.Struct of plain values"
            ),
        )

    def function(self, where: str, function: Any) -> str:
        for origin in self._origins:
            if origin.made is function and origin.parameters is None:
                return self.text(where, origin.use)
        name = name_of_definition(function) or name_of_object(function)
        if not name:
            raise _error(
                where,
                f"is {describe_object(function)}, which another process could not import; give a"
                " function at the top of a module (not of the program's own file)",
            )
        return name

    # --- tools ---

    def tools(
        self, rules: Rules, tools: Sequence[Tool], given: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        if rules.pinned:
            raise _error(
                "tools", "has pins, a file of this machine, which a serial form cannot contain"
            )
        entries: dict[str, dict[str, Any]] = {tool.name: {"name": tool.name} for tool in tools}
        servers = {id: self.server(f"mcp_servers.{id}", server) for id, server in given.items()}
        found: dict[str, Any] = {}
        for rule, limits in (
            ("concurrency", rules.concurrency),
            ("result_limit", rules.result_limit),
        ):
            for pattern, limit in limits.items():
                at = found if pattern == "*" else entries.get(pattern)
                if at is None:
                    at = servers.get(pattern.removesuffix(".*")) if pattern.endswith(".*") else None
                if at is None:
                    raise _error(
                        f"tools.{rule}",
                        f"is for {pattern!r}; give it for '*', a tool's name, or a server of"
                        " mcp_servers ('id.*')",
                    )
                at[rule] = limit
        if rules.hooks:
            found["hooks"] = [
                self.hook(f"tools.hooks[{number}]", hook) for number, hook in enumerate(rules.hooks)
            ]
        if entries:
            found["builtin"] = [
                name if len(entry) == 1 else entry for name, entry in entries.items()
            ]
        if servers:
            found["mcp_servers"] = servers
        return found

    def hook(self, where: str, hook: Hook) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: given if isinstance(given, str) else self.function(f"{where}.{name}", given)
            for name, given in (("before", hook.before), ("after", hook.after))
            if given is not None
        }
        if hook.command:
            found |= {
                "command": [self.text(where, one) for one in hook.command],
                "when": hook.when,
                "timeout": hook.timeout,
            }
            if hook.env:
                found["env"] = {
                    name: self.secret(f"{where}.env", value) for name, value in hook.env.items()
                }
        if hook.name:
            found["name"] = self.text(where, hook.name)
        if hook.on != "tool":
            return {**found, "on": hook.on}
        return {**found, "tools": self.text(where, hook.tools)}

    def server(self, where: str, server: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in server.items():
            at = f"{where}.{key}"
            if key in ("env", "headers"):
                found[key] = {name: self.secret(at, text) for name, text in value.items()}
            elif key == "url":
                found[key] = self.url(at, value)
            elif key == "args":
                found[key] = [self.url(at, text) for text in value]
            else:
                found[key] = self.data(at, value)
        return found


def _error(where: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"Agent: {where} {what}.")
