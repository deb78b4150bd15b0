"""`Agent`: what an agent is: a model, its tools, all prompt text, its limits. It holds no conversation and can serve many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast import events as ev
from holdfast.agent import prompt
from holdfast.agent.additions import Contributor
from holdfast.agent.condenser import is_condenser
from holdfast.agent.confirmation import ByTool, Confirm, ConfirmationPolicy, policy
from holdfast.agent.connections import Connections
from holdfast.agent.limits import Limits
from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, ConfigurationError
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.model import Model
from holdfast.llm.transcript import Transcript
from holdfast.tools import Cancellation, Tool, ToolManager
from holdfast.tools.manager import ToolLike

if TYPE_CHECKING:
    from holdfast.agent.form import Origin
    from holdfast.runtime.microagents import Microagent


class Agent:
    """A model with tools, a prompt and limits. Frozen; shared by any number of conversations.

    `tools` are `Tool` objects or plain functions, or a `ToolManager`. `mcp_servers` is a configuration as `MCPClient` takes it: they
    are connected to when the first conversation starts, their tools come behind the others, and they end with the last.

    The system prompt is `system_prompt` (None: a default one), then each of `system_prompt_extensions`, then each microagent: a str
    is its text, a `Path` a file or a folder, or what `LocalRuntime.load_microagents` returned. `parallel_calls` bounds how many calls
    of one answer run at once.

    `confirm` says which calls wait for `Conversation.approve`: "never", "always", a list of tool names, a mapping of names to allow, ask
    or deny, or a `ConfirmationPolicy`. Of a text that a tool returned the model is shown at most `output_limit` characters; the store
    keeps the whole (`Conversation.get_output`).

    `condenser` says what to leave out of requests before they do not fit the model's context window any more, such as
    `Pipeline([ToolOutputCondenser(), LLMCondenser()])` of `holdfast.agent.condensers`, or one of your own (`agent.condenser.Condenser`). Without one, or
    if it finds nothing, a run ends with the provider's error.

    Raises `ConfigurationError` (a `ValueError`) naming the argument that does not fit.
    """

    __slots__ = (
        "condenser", "confirm", "connections", "contributors", "limits", "llm", "mcp_servers", "origins", "output_limit", "parallel_calls", "system_prompt",
        "tools",
    )  # fmt: skip

    connections: Connections
    llm: Model
    tools: ToolManager
    system_prompt: str
    limits: Limits
    parallel_calls: int
    confirm: ConfirmationPolicy | None
    output_limit: int
    condenser: Any
    mcp_servers: Mapping[str, Any]
    contributors: tuple[Contributor, ...]
    """What adds messages before a model call, in their order (`agent.additions`)."""
    origins: tuple[Origin, ...]
    """How those parts were made that `load_agent` had code make."""

    def __init__(
        self,
        llm: Model,
        tools: Iterable[ToolLike] | ToolManager = (),
        mcp_servers: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        system_prompt_extensions: Sequence[str] = (),
        microagents: Iterable[str | Path | Microagent] = (),
        limits: Limits = Limits(),
        parallel_calls: int = 8,
        confirm: Confirm = "never",
        output_limit: int = 50_000,
        condenser: Any = None,
    ) -> None:
        if condenser is not None and (isinstance(condenser, type) or not is_condenser(condenser)):
            raise ConfigurationError(f"Agent: condenser takes an object with a method condense, not {condenser!r}.")
        _check(llm, tools, system_prompt, system_prompt_extensions, limits, parallel_calls, output_limit)
        if limits.cost is not None and llm.cost(Usage(1, 1)) is None:
            raise ConfigurationError(f"Agent: limits has a cost, but the price of {llm.model!r} is not known; use steps or tokens.")
        manager = tools if isinstance(tools, ToolManager) else ToolManager(tools)
        _add(manager, getattr(condenser, "tools", ()))
        found: dict[str, Any] = {
            "llm": llm,
            "tools": manager,
            "system_prompt": prompt.compose(system_prompt, system_prompt_extensions, _microagents(microagents)),
            "limits": limits,
            "parallel_calls": parallel_calls,
            "confirm": policy(confirm),
            "output_limit": output_limit,
            "condenser": condenser,
            "connections": Connections(llm, manager, mcp_servers),
            "mcp_servers": dict(mcp_servers or {}),
            "contributors": (),
            "origins": (),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if isinstance(self.confirm, ByTool) and not mcp_servers:
            self.confirm.look_for_typos([tool.name for tool in manager.list_tools()])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Agent is frozen; make a new one to change {name!r}.")

    def __repr__(self) -> str:
        return f"Agent(model={self.llm.model!r}, tools={[tool.name for tool in self.tools.list_tools()]})"

    def to_json(self) -> bytes:
        """The agent as JSON that `from_json` and `load_agent` read: no secrets (`${secret_1}` stands for the first), of its own tools the names.

        `agent.form.form_of` gives the secrets too. Raises `ConfigurationError` naming the part that no other process could make.
        """
        from holdfast.agent.form import form_of

        return form_of(self).to_json()

    @staticmethod
    def from_json(data: bytes | str, *, variables: Mapping[str, Any] | None = None, builtins: Any = None) -> Agent:
        """The inverse of `to_json`. `variables` are the secrets by name, `builtins` the tools by name (or a list of them). Raises
        `ConfigurationError`."""
        from holdfast.agent.form import agent_of

        return agent_of(data, variables, builtins)

    def step(
        self,
        transcript: Transcript,
        head: ev.Agent,
        *,
        on_delta: Callable[[Delta], object] | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """One model call, no tool run: the request is `head` (prompt, tools, parameters) and the transcript. Raises `LLMError`."""
        answer: Any = self.llm.completion(transcript, head=head, on_delta=on_delta, cancelled=cancelled)
        if not isinstance(answer, Completion):  # a model may be anybody's class
            raise BadResponse(f"{self.llm.model!r} answered with {type(answer).__name__}; completion returns a Completion.")
        for call in cast("tuple[Any, ...]", answer.calls):
            if not isinstance(call, ToolCall):
                raise BadResponse(f"{self.llm.model!r} answered with {type(call).__name__} among its calls; those are ToolCall objects.")
        return answer

    def definitions(self, last: ev.Agent | None) -> tuple[ev.ToolDefinition, ...]:
        """The tool definitions, in the order that keeps a provider's cached prefix: unchanged ones as in `last`, others behind them."""
        now = self.tools.definitions()
        if last is None or not last.tools:
            return now
        kept = [definition for definition in last.tools if definition in now]
        return (*kept, *(definition for definition in now if definition not in kept))


def _add(manager: ToolManager, tools: Iterable[Tool]) -> None:
    """Give the agent the tools that come with its condenser."""
    for tool in tools:
        if not manager.exists(tool.name):
            manager.register(tool)
        elif manager.get(tool.name) is not tool:
            raise ConfigurationError(
                f"Agent: its condenser comes with a tool {tool.name!r}, and tools has another one of that name. Rename it."
            )


def _check(llm: Any, tools: Any, system_prompt: Any, extensions: Any, limits: Any, parallel_calls: Any, output_limit: Any) -> None:
    if isinstance(llm, type) or not callable(getattr(llm, "completion", None)):
        raise ConfigurationError(f"Agent: llm takes an LLM (or ScriptedLLM), not {llm!r}.")
    if isinstance(tools, str | bytes | dict | Tool) or not isinstance(tools, Iterable | ToolManager):
        raise ConfigurationError(f"Agent: tools takes a list of Tool objects or functions, or a ToolManager, not {tools!r}.")
    if system_prompt is not None and not isinstance(system_prompt, str):
        raise ConfigurationError(f"Agent: system_prompt takes a str or None, not {system_prompt!r}.")
    if isinstance(extensions, str) or not all(isinstance(item, str) for item in extensions):
        raise ConfigurationError(f"Agent: system_prompt_extensions takes a list of str, not {extensions!r}.")
    if not isinstance(limits, Limits):
        raise ConfigurationError(f"Agent: limits takes Limits(...), not {limits!r}.")
    if not isinstance(parallel_calls, int) or parallel_calls < 1:
        raise ConfigurationError(f"Agent: parallel_calls takes a whole number from 1, not {parallel_calls!r}.")
    if not isinstance(output_limit, int) or output_limit < 1000:
        raise ConfigurationError(f"Agent: output_limit takes a number of characters from 1,000, not {output_limit!r}.")


def _microagents(given: Any) -> list[tuple[str, str]]:
    if isinstance(given, str | Path):
        raise ConfigurationError(f"Agent: microagents takes a list of texts, paths or Microagent objects, not {given!r}.")
    if not given:
        return []
    from holdfast.runtime.microagents import Microagent, load_microagents, read_microagent

    found: list[tuple[str, str]] = []
    for number, item in enumerate(given, 1):
        if isinstance(item, str):
            found.append((f"Note {number}", item))
        elif isinstance(item, Path):
            if not item.exists():
                raise ConfigurationError(f"Agent: microagents has the path {str(item)!r}, which does not exist.")
            read = load_microagents(item) if item.is_dir() else [read_microagent(item)]
            found += [(agent.name, agent.content) for agent in read]
        elif isinstance(item, Microagent):
            found.append((item.name, item.content))
        else:
            raise ConfigurationError(f"Agent: microagents takes texts, paths or Microagent objects, not {item!r}.")
    return found
