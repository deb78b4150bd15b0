"""The tool `handoff`, which passes a conversation to another agent, the tool `switch_model`, and
the agents that a conversation can reach by them.

An agent with another of its `models` is a variant of that agent. The journal knows the variant
`fast` of the agent `billing` as `billing#fast`, that of the first agent as `#fast`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.agent.agents_files import NAME_PATTERN
from holdfast.agent.directory import AgentDirectory, parameter, parameters
from holdfast.agent.limits import check_tree
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError
from holdfast.tools import Tool
from holdfast.tools.arguments import is_model, wrong
from holdfast.tools.policy import LOCAL_READ

if TYPE_CHECKING:
    from holdfast.agent.agent import Agent
    from holdfast.llm.model import Model

TOOL = "handoff"
SWITCH = "switch_model"
DEFAULT = "default"
"""The name of an agent's own model for `switch_model`, unless `models` has a name for it."""
MAIN = "main"
"""The name under which models know a conversation's first agent, whose
`events.AgentConfigured.name` is ""."""
META = "holdfast/handoff"

SECOND_HANDOFF = "Not done: an answer can hand over only once, and its first handoff counts."
ITSELF = "Not done: you are {name!r}, so nothing is handed over. Go on yourself."
SAME_MODEL = "Not done: {name!r} is your model already. Go on."
UNPLANNED = (
    "Not done: make a plan first. Once the user has approved it, hand over; {name!r} would not ask"
    " for that."
)


def handoff_target(result: ToolResult) -> str | None:
    """Return the `events.AgentConfigured.name` of a handoff result's target; None if the handoff
    failed."""
    if result.is_error:
        return None
    to = result.meta.get(META)
    return None if not isinstance(to, str) else "" if to == MAIN else to


def resolve_target(target: str, name: str) -> str:
    """Return the `events.AgentConfigured.name` of a target that the agent `name` gave. `#fast` is
    its own variant with that model, `#` the agent without another model, and `main` the first
    agent."""
    agent, mark, model = target.partition("#")
    if mark and not agent:
        agent = name.partition("#")[0]
    elif agent == MAIN:
        agent = ""
    return f"{agent}#{model}" if model else agent


class ModelChoice:
    """The models by name that an agent may switch to. Shared by the agent and its variants.
    Thread-safe."""

    def __init__(self, models: object, llm: Model) -> None:
        if not isinstance(models, Mapping):
            raise wrong("Agent: models", "a mapping of names to models", models)
        self.by_name: dict[str, Model] = dict(models)  # pyright: ignore[reportUnknownArgumentType]
        for name, model in self.by_name.items():
            if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(
                    f"Agent: models has the name {name!r}; a name has letters, digits, - and _,"
                    " at most 64."
                )
            if not is_model(model):
                raise wrong(f"Agent: models[{name!r}]", "a model such as LLM(...)", model)
        own = next((name for name, model in self.by_name.items() if model is llm), None)
        if own is None and DEFAULT in self.by_name:
            raise ConfigurationError(
                f"Agent: models has the name {DEFAULT!r}, which is that of the agent's own model;"
                " give another one."
            )
        self.own = DEFAULT if own is None else own
        """The name of the agent's own model."""
        self.llm = llm
        self.owner: Agent | None = None
        self._variants: dict[str, Agent] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the variants, without that of the agent's own model."""
        return (name for name in self.by_name if name != self.own)

    def models(self) -> dict[str, Model]:
        """Return all models by name, the agent's own first if `by_name` does not have it."""
        return self.by_name if self.own in self.by_name else {self.own: self.llm, **self.by_name}

    def variant(self, name: str) -> Agent:
        """Return the agent with another model; the same object each time."""
        with self._lock:
            if name not in self._variants:
                assert self.owner is not None
                model = self.by_name[name]
                self._variants[name] = self.owner.replace(llm=model, models=self)
            return self._variants[name]


def make_switch(choice: ModelChoice) -> Tool:
    """Return the tool `switch_model`. The conversation switches after all calls of the answer have
    results."""

    def switch_model(model: str, reason: str = "") -> ToolResult:
        target = "#" if model == choice.own else f"#{model}"
        return _handover(target, f"From here on the model {model} answers.", reason)

    models = choice.models()
    schema = parameters(
        ("model",),
        model=parameter("string", "The model that answers from here on.", enum=list(models)),
        reason=parameter("string", "The reason, in one sentence."),
    )
    listing = "\n".join(f"- {name}: {model.model}" for name, model in models.items())
    about = (
        "Continue with another model: a stronger one for a hard part, a cheaper one for routine"
        " work. It knows all of this conversation. Say nothing more after that; switch"
        f" once.\n\nModels:\n{listing}"
    )
    return Tool(SWITCH, about, switch_model, schema, None, LOCAL_READ, "delegation", parallel=False)


def make_handoff(others: AgentDirectory) -> Tool:
    """Return the tool `handoff` for these agents. The conversation performs the handoff after all
    calls of the answer have results."""

    def handoff(agent: str, reason: str = "") -> ToolResult:
        text = f"The conversation is handed over to {agent}, who answers from here on."
        return _handover(agent, text, reason)

    schema = parameters(
        ("agent",),
        agent=parameter("string", "Who takes over.", enum=list(others)),
        reason=parameter("string", "The reason and the work to do, in one sentence."),
    )
    about = (
        "Hand this conversation over to another agent: it has read all of it, and answers the user"
        " from here on. Say nothing more after that; hand over"
        f" once.\n\nAgents:\n{others.listing()}"
    )
    return Tool(TOOL, about, handoff, schema, None, LOCAL_READ, "delegation", parallel=False)


def _handover(target: str, text: str, reason: str) -> ToolResult:
    why = f" Reason: {reason.strip()}" if reason.strip() else ""
    return ToolResult((TextContent(text + why),), meta={META: target})


def refused_handoffs(
    calls: tuple[ToolCall, ...], refusal: Callable[[str], str], choice: ModelChoice | None
) -> dict[int, ToolResult]:
    """Return the results of the answer's handoffs and switches that are refused, by the position of
    the call. `refusal` maps a target (see `resolve_target`) to the reason of a refusal, or "". Only
    the first other one is done; all later ones are refused."""
    results: dict[int, ToolResult] = {}
    first = True
    for index, call in enumerate(calls):
        if call.name == TOOL:
            to = call.arguments.get("agent")
            to = "" if to == MAIN else to
        elif call.name == SWITCH and choice is not None:
            to = call.arguments.get("model")
            to = "#" if to == choice.own else f"#{to}" if isinstance(to, str) else None
        else:
            continue
        why = refusal(to) if isinstance(to, str) else ""
        if why or not first:
            results[index] = ToolResult.failure(why or SECOND_HANDOFF, "cancelled")
        else:
            first = False
    return results


def check_budget(who: str, agent: Agent, tokens: bool, cost: bool) -> None:
    """Apply `check_tree` to an agent and all agents that may take over from it. Raises
    `ConfigurationError`."""
    if tokens or cost:
        for one in (agent, *reachable_agents(agent).values()):
            check_tree(who, one.llm, tokens, cost)


def find_agent(agent: Agent, name: str) -> Agent | None:
    """Return the agent with that name among those that `agent` reaches through handoffs; None if
    unknown. "" is `agent` itself."""
    return reachable_agents(agent).get(name) if name else agent


def reachable_agents(agent: Agent) -> dict[str, Agent]:
    """Return all agents that a conversation of `agent` can reach through handoffs and switches of
    model, by name. Raises `ConfigurationError` if two agents have one name."""
    agents: dict[str, Agent] = {}
    pending, visited = [("", agent)], {id(agent)}
    while pending:
        own, one = pending.pop(0)
        if one.models is not None:
            agents |= {f"{own}#{name}": one.models.variant(name) for name in one.models}
        if one.handoffs is None:
            continue
        for name in one.handoffs:
            other = one.handoffs.agent(name)
            if other is None:
                continue
            if agents.setdefault(name, other) is not other:
                raise ConfigurationError(
                    f"Agent: handoffs lead to two agents named {name!r}. Names are unique within a"
                    " conversation."
                )
            if id(other) not in visited:
                visited.add(id(other))
                pending.append((name, other))
    return agents
