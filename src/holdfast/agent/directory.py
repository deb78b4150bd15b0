"""The other agents that an agent can reach: its delegates and the targets of its handoffs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable
from urllib.parse import urlsplit

from holdfast.agent.agents_files import EDITORS, NAME_PATTERN, SubAgent, read_sub_agent
from holdfast.agent.limits import Limits
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool, ToolManager
from holdfast.tools.arguments import wrong
from holdfast.tools.patterns import name_fits

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent

_log = logging.getLogger("holdfast")


# Characters of an agent's description that another agent's model is shown.
_MAX_DESCRIPTION_CHARS = 300


@runtime_checkable
class WholeAgent(Protocol):
    """An `Agent`, as opposed to a `SubAgent`."""

    def replace(self, **changes: Any) -> Agent: ...
    def with_planning_first(self) -> Agent: ...


def parameter(type: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the schema of a tool's parameter."""
    return {"type": type, **more, "description": description}


def parameters(required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's parameters."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


class AgentDirectory:
    """A mapping of names to agents: each is an `Agent`, a `SubAgent`, or the path of a sub-agent
    file.

    Agents of sub-agent files are built on first use, with the tools and model of the `owner`.
    None as a value stands for an agent that the conversation already knows by that name. A tuple
    of an agent and a text describes it in other words than its own. Thread-safe.
    """

    def __init__(self, argument: str, agents: Any, known_names: tuple[str, ...] = ()) -> None:
        if not isinstance(agents, Mapping):
            raise wrong(f"Agent: {argument}", "a mapping of names to agents", agents)
        self.argument = argument
        self.by_name: dict[str, Agent | SubAgent | None] = {}
        self.descriptions: dict[str, str] = {}
        """The descriptions of agents that were given with one."""
        self.owner: Agent | None = None
        """The agent whose tools and model the sub-agents of files use."""
        self._built: dict[str, Agent] = {}
        self._lock = threading.Lock()
        for name, one in cast("Mapping[Any, Any]", agents).items():
            if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
                raise ConfigurationError(
                    f"Agent: {argument} has the name {name!r}; a name has letters, digits, - and _,"
                    " at most 64."
                )
            where = f"{argument}[{name!r}]"
            if isinstance(one, tuple):
                one, self.descriptions[name] = _described(where, cast("tuple[Any, ...]", one))
            self.by_name[name] = _checked_entry(
                where, one, argument == "handoffs", name in known_names
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def entries(self) -> dict[str, Any]:
        """The mapping that makes an equal directory."""
        texts = self.descriptions
        return {
            name: (one, texts[name]) if name in texts else one for name, one in self.by_name.items()
        }

    def agent(self, name: str) -> Agent | None:
        """Return the agent with that name; None if the name is unknown or the conversation has to
        resolve it. If the owner has planning="first", handoff targets get planning="first" too."""
        one = self.by_name.get(name)
        plans = (
            self.argument == "handoffs"
            and self.owner is not None
            and self.owner.planning == "first"
        )
        if one is None or (not isinstance(one, SubAgent) and not plans):
            return one
        with self._lock:
            agent = self._built.get(name)
            if agent is None:
                assert self.owner is not None
                agent = make_sub_agent(one, self.owner) if isinstance(one, SubAgent) else one
                if plans:  # the user is asked under either agent
                    agent = agent.with_planning_first()
                self._built[name] = agent
            return agent

    def full_agents(self) -> list[Agent]:
        """Return the entries that were passed as `Agent` objects. The other entries use the tools
        and the model of their owner."""
        return [one for one in self.by_name.values() if one and not isinstance(one, SubAgent)]

    def listing(self) -> str:
        """Return one line per agent, with its name and its description or the first line of its
        prompt, for a tool's description."""
        lines: list[str] = []
        for name, one in self.by_name.items():
            if one is None:
                line = "the first agent of the conversation" if name == "main" else ""
            else:
                text = self.descriptions.get(name) or one.description
                text = text or str(getattr(one, "system_prompt", ""))
                line = next((line.strip() for line in text.splitlines() if line.strip()), "")
            if len(line) > _MAX_DESCRIPTION_CHARS:
                line = line[: _MAX_DESCRIPTION_CHARS - 1] + "…"
            lines.append(f"- {name}: {line}" if line else f"- {name}")
        return "\n".join(lines)


def _described(where: str, pair: tuple[Any, ...]) -> tuple[Any, str]:
    """Return an agent and its description."""
    if len(pair) != 2 or not isinstance(pair[1], str) or pair[0] is None:
        raise wrong(f"Agent: {where}", "an agent, or a tuple of an agent and a description", pair)
    return pair[0], pair[1]


def _checked_entry(where: str, one: Any, may_be_none: bool, elsewhere: bool) -> Any:
    if elsewhere and one is not None:
        raise ConfigurationError(
            f"Agent: {where} is the name of a conversation's first agent; give None, or another"
            " name."
        )
    if isinstance(one, SubAgent | WholeAgent) or (one is None and may_be_none):
        return one
    if isinstance(one, str | Path):
        try:
            return read_sub_agent(one)
        except OSError as error:
            raise ConfigurationError(
                f"Agent: {where} has the path {str(one)!r}, which cannot be read: {error.strerror}."
            ) from None
    more = ", or None for one that the conversation knows" if may_be_none else ""
    form = f"an Agent, a SubAgent, or the path of a sub-agent file{more}"
    raise wrong(f"Agent: {where}", form, one)


def make_sub_agent(sub: SubAgent, owner: Agent) -> Agent:
    """Build the agent of a sub-agent file, with the owner's tools and model where the file allows.
    The settings that guard the owner's calls and decide how they run apply to the sub-agent too.
    Raises `ConfigurationError`."""
    # Tools that act on their owner stay with it.
    excluded = {"find_tools", *(tool.name for tool in owner.feature_tools)}
    theirs = [tool for tool in owner.tools.list_tools() if tool.name not in excluded]
    rules = owner.tools.rules
    tools = ToolManager(
        _chosen_tools(sub, theirs), hooks=rules.hooks, concurrency=rules.concurrency or None
    )
    return owner.replace(
        llm=_model_of(sub, owner),
        tools=tools,
        mcp_servers=None,
        system_prompt=sub.prompt,
        system_prompt_extensions=(),
        microagents=(),
        skills=None,
        instructions=owner.knowledge.instructions,
        limits=sub.limits or Limits(),
        tree_limits=None,
        delegates=owner.delegates if sub.delegates else None,
        handoffs=None,
        planning=None,
        output_type=None,
        description=sub.description,
    )


def _chosen_tools(sub: SubAgent, tools: list[Tool]) -> list[Tool]:
    def fits(tool: Tool, name: str) -> bool:
        return tool.name == name or name_fits(tool.name, name)

    editor = any(tool.name in EDITORS for tool in tools)
    for name in sub.tools:
        if name == "*" or (editor and name in EDITORS):  # an owner has one of the editors
            continue
        if not any(fits(tool, name) for tool in tools):
            text = "The sub-agent %s does not get the tool %r: its owner has no tool of that name."
            _log.warning(text, sub.name, name)
    return [
        tool
        for tool in tools
        if any(fits(tool, name) for name in sub.tools)
        and not any(name_fits(tool.name, name) for name in sub.without)
    ]


def _model_of(sub: SubAgent, owner: Agent) -> Any:
    if not sub.model:
        return owner.llm
    replace: Any = getattr(owner.llm, "replace", None)
    if replace is None:
        raise ConfigurationError(
            f"The sub-agent {sub.name!r} has the model {sub.model!r}, which does not fit"
            f" {owner.llm.model!r}; give inherit, or an Agent of its own."
        )
    model = replace(model=sub.model)
    if _origin(model) != _origin(owner.llm):  # the key would go to another provider
        raise ConfigurationError(
            f"The sub-agent {sub.name!r} has the model {sub.model!r}, which is at another address"
            f" than {owner.llm.model!r} and needs a key of its own; give an Agent of its own."
        )
    return model


def _origin(llm: Any) -> tuple[str, str]:
    parts = urlsplit(getattr(llm, "base_url", ""))
    return parts.scheme, parts.netloc
