"""Builds a conversation's agent from its record: loads the tools, decrypts the secrets and reads
the agent's serial form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.serial_form import RUNTIME, ToolForm
from holdfast.errors import ConfigurationError
from holdfast.server.forms import builtin_names, names_of_others, own_variables
from holdfast.server.policy import Policy
from holdfast.server.records import DEFAULT, ConversationOptions
from holdfast.server.shapes import ToolStanding
from holdfast.server.tool_resolution import import_parts, resolve_tools

if TYPE_CHECKING:
    from holdfast.tools import Tool


class AgentParts(NamedTuple):
    """The parts from which an agent is built."""

    tenant: str
    form: dict[str, Any]
    secrets: Mapping[str, str]
    tools: Sequence[ToolForm]
    options: ConversationOptions

    def __repr__(self) -> str:
        return f"Wanted({self.tenant!r})"


class ToolRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored description of a conversation's tools: the client's declarations and where each
    runs."""

    forms: list[ToolForm] = []
    standings: list[ToolStanding] = []
    warnings: list[str] = []


class BuiltAgent(NamedTuple):
    """An agent, its tools by name, the place where each tool runs, and warnings about the parts
    that could not be built as requested."""

    agent: Agent
    tools: dict[str, Tool]
    standings: list[ToolStanding]
    warnings: list[str]


def build(
    wanted: AgentParts, runtime_tools: Sequence[Tool], policy: Policy, variables: Mapping[str, str]
) -> BuiltAgent:
    """Return the agent of a conversation. Imports modules, so do not call it on an event loop.
    Raises `ConfigurationError` if a key is missing or a part cannot be built."""
    form, known = wanted.form, dict(variables)
    if wanted.tenant != DEFAULT:
        form, known = own_variables(form, variables)
    builtins = {tool.name: tool for tool in runtime_tools}
    learned = resolve_tools(
        wanted.tools, wanted.options.modules, builtins, policy, wanted.options.client_tools
    )
    tools: dict[str, Tool] = {}
    standings: list[ToolStanding] = []
    theirs = names_of_others(form)
    for name in [*builtin_names(form), *theirs]:
        # An older client names its builtin tools without declaring them.
        tool = learned.tools.get(name) or builtins.get(name)
        if tool is None:
            raise ConfigurationError(
                f"agent.tools.builtin: {name!r} is neither declared in `tools` nor a builtin tool"
                " of this server."
            )
        standing = learned.standings.get(name) or ToolStanding(name, "server", RUNTIME)
        if name in theirs and standing.executor == "client":
            raise ConfigurationError(
                f"agent: {name!r}, a tool of a delegate or handoff, exists only in the client's"
                " process. Calls of delegates and handoffs run on the server. Declare the tool in"
                " a module that the server may import."
            )
        tools[name] = tool
        standings.append(standing)
    import_parts(form, policy)
    variables = {**known, **wanted.secrets}
    agent = Agent.from_json(msgspec.json.encode(form), variables=variables, builtins=tools)
    return BuiltAgent(agent, tools, standings, learned.warnings)
