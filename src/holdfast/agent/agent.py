"""`Agent`: a model, its tools, all prompt text and limits. An agent can serve many conversations
and holds none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast import events as ev
from holdfast.agent import planning as plans
from holdfast.agent import prompt
from holdfast.agent.additions import Contributor
from holdfast.agent.condenser import is_condenser
from holdfast.agent.confirmation import ByTool, Confirm, ConfirmationPolicy, policy
from holdfast.agent.connections import Connections
from holdfast.agent.limits import Limits, check_tree
from holdfast.agent.output import Output, output_of, with_prompt
from holdfast.agent.planning import Planning
from holdfast.agent.risk import SecurityAnalyzer
from holdfast.agent.stepping import HasEvents, request_of
from holdfast.agent.stuck import StuckDetector
from holdfast.content import ToolCall, Usage
from holdfast.errors import BadResponse, ConfigurationError
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.model import Model
from holdfast.llm.transcript import Transcript
from holdfast.tools import Cancellation, Tool, ToolManager
from holdfast.tools.brought import with_brought, without_brought
from holdfast.tools.manager import ToolLike

if TYPE_CHECKING:
    from holdfast.agent.agents_files import SubAgent
    from holdfast.agent.delegation import Delegates
    from holdfast.agent.directory import AgentDirectory
    from holdfast.agent.form import Origin
    from holdfast.agent.hooks import AgentHooks
    from holdfast.agent.instructions import Instructions
    from holdfast.agent.prompt_parts import Knowledge
    from holdfast.runtime.microagents import Microagent
    from holdfast.tools.hooks import Hook
    from holdfast.tools.skills import Skills
    from holdfast.tools.skills_files import Skill


class Agent:
    """A model with tools, a prompt and limits. Frozen; shared by any number of conversations.

    The system prompt is `system_prompt`, then each of `system_prompt_extensions`, then each
    microagent, then skills and instructions (`prompt_parts`).

    Raises `ConfigurationError` (a `ValueError`) that names the invalid argument.

    Args:
        llm: The model: an `LLM`, a composite, or a `ScriptedLLM`.
        tools: `Tool` objects, plain functions, or a `ToolManager`. Several agents may share a
            manager: tools that come with other arguments (`brought`) are added to `Agent.tools`,
            not to that manager.
        mcp_servers: A configuration as `MCPClient` takes it. Servers are connected when the
            first conversation starts and disconnected when the last one ends. Their tools follow
            the other tools.
        system_prompt: The base of the system prompt; None for the default one.
        system_prompt_extensions: Texts that are appended to the system prompt.
        microagents: A str is a text, a `Path` a file or folder; results of
            `LocalRuntime.load_microagents` are accepted too. Microagents with triggers become
            skills.
        limits: Limits of one run of a conversation.
        parallel_calls: The maximum number of calls of one answer that run at the same time.
        confirm: The calls that wait for `Conversation.approve`: "never", "always", "risky"
            (`AboveRisk("medium")`), a list of tool names, a mapping of names to allow, ask or
            deny, or a `ConfirmationPolicy`.
        output_limit: The maximum number of characters of a tool's text result that the model is
            shown. The store keeps the whole result (`Conversation.get_output`).
        condenser: Shortens requests before they exceed the context window, such as
            `Pipeline([ToolOutputCondenser(), LLMCondenser()])` of `holdfast.agent.condensers`,
            or your own `agent.condenser.Condenser`. Without a condenser, or if it finds nothing
            to leave out, a run ends with the provider's error.
        delegates: Agents by name that receive work through the tools `delegate`,
            `delegate_poll`, `delegate_collect`, `delegate_cancel` and `send_to`. Each is an
            `Agent`, a `SubAgent`, or the path of a sub-agent file (`agent.agents_files`).
        handoffs: Agents by name that can take over the conversation through the tool `handoff`,
            in the same forms. None as a value is the agent that the conversation knows by that
            name; `main` is the first agent.
        security: A `SecurityAnalyzer` that assesses the risk of each call for the policies; each
            decision records the risk in the journal. None: a policy that needs one gets
            `holdfast.agent.security.standard()`.
        planning: "tool" adds the tool `plan` and prompt lines about its use. "first" also denies
            every call that does not only read until the user has approved the plan
            (`ConversationState.plan`).
        output_type: A pydantic model, a `msgspec.Struct`, any type that pydantic supports, or a
            JSON Schema. A run then ends with a valid call of the tool `finish`, whose arguments
            are the result (`Conversation.output`).
        output_rounds: The number of invalid results after which a run fails with `OutputInvalid`.
        stuck: Detects an agent that repeats itself without progress; None turns the detection off.
        skills: Skills of `holdfast.tools.skills.discover`, folders, or `Skill` objects. The
            model is shown a skill when the user's words or a file of a call match, always, or
            when it calls `read_skill`.
        instructions: The `AGENTS.md` files for a folder, or for the runtime's working directory
            (`agent.instructions`).
        hooks: Called around calls, model calls, messages, ends of runs and condensations, and
            when a conversation begins and ends (`holdfast.tools.hooks.Hook`,
            `docs/how-to/hooks.md`).
        describe_images: A model that accepts images. It describes each picture once, before the
            next model call, for an `llm` that does not (`LLM.sees`); without it such an `llm`
            gets each picture's kind and size (`docs/how-to/interaction.md`).
        tree_limits: A lifetime budget of a conversation together with those that its calls
            spawned (`ToolContext.spawn`). Each model call reserves its share before it is made
            (`docs/how-to/limits.md`).
    """

    __slots__ = (
        "brought",
        "condenser",
        "confirm",
        "connections",
        "contributors",
        "delegates",
        "describe_images",
        "forms",
        "handoffs",
        "hooked",
        "hooks",
        "known",
        "limits",
        "llm",
        "mcp_servers",
        "origins",
        "output",
        "output_limit",
        "output_rounds",
        "parallel_calls",
        "planning",
        "security",
        "stuck",
        "system_prompt",
        "tools",
        "tree_limits",
    )

    connections: Connections
    llm: Model
    tools: ToolManager
    system_prompt: str
    limits: Limits
    tree_limits: Limits | None
    parallel_calls: int
    confirm: ConfirmationPolicy | None
    output_limit: int
    output: Output | None
    output_rounds: int
    """The number of failed rounds after which a run ends; 0 without an output type."""
    stuck: StuckDetector | None
    condenser: Any
    delegates: Delegates | None
    handoffs: AgentDirectory | None
    hooks: tuple[Hook, ...]
    hooked: AgentHooks | None
    """The hooks grouped by the point at which they are called; None without hooks."""
    brought: tuple[Tool, ...]
    """Tools that come with other arguments of the agent, such as `planning` or `condenser`."""
    security: SecurityAnalyzer | None
    planning: Planning
    describe_images: Model | None
    mcp_servers: Mapping[str, Any]
    known: Knowledge
    """The parts of the prompt, the skills and the instructions."""
    contributors: tuple[Contributor, ...]
    """Functions that add messages before a model call, in order (`agent.additions`)."""
    forms: dict[str, Agent]
    """Variants of this agent that other agents use, such as "planned"; made on first use."""
    origins: tuple[Origin, ...]
    """Records of the parts that `load_agent` had imported code make."""

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
        delegates: Mapping[str, Agent | SubAgent | str | Path] | Delegates | None = None,
        handoffs: Mapping[str, Agent | SubAgent | str | Path | None] | None = None,
        security: SecurityAnalyzer | None = None,
        planning: Planning = None,
        output_type: Any = None,
        output_rounds: int = 3,
        stuck: StuckDetector | None = StuckDetector(),
        skills: Skills | Iterable[str | os.PathLike[str] | Skill] | None = None,
        instructions: Instructions | str | os.PathLike[str] | None = None,
        hooks: Sequence[Hook] = (),
        describe_images: Model | None = None,
        tree_limits: Limits | None = None,
    ) -> None:
        if condenser is not None and (isinstance(condenser, type) or not is_condenser(condenser)):
            raise ConfigurationError(
                f"Agent: condenser takes an object with a method condense, not {condenser!r}."
            )
        _check_servers(mcp_servers)
        _check(
            llm,
            tools,
            system_prompt,
            system_prompt_extensions,
            limits,
            parallel_calls,
            output_limit,
        )
        plans.check(planning)
        _check_ends(output_rounds, stuck)
        system_prompt_extensions = plans.with_prompt(
            system_prompt, system_prompt_extensions, planning
        )
        if limits.cost is not None and llm.cost(Usage(1, 1)) is None:
            raise ConfigurationError(
                f"Agent: limits has a cost, but the price of {llm.model!r} is not known; use steps"
                " or tokens."
            )
        if tree_limits is not None:
            if not isinstance(tree_limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise ConfigurationError(
                    f"Agent: tree_limits takes Limits(...) or None, not {tree_limits!r}."
                )
            check_tree(
                "Agent: tree_limits has",
                llm,
                tree_limits.tokens is not None,
                tree_limits.cost is not None,
            )
        guard = policy(confirm)
        given = without_brought(tools) if isinstance(tools, ToolManager) else ToolManager(tools)
        output = output_of(output_type, given)
        system_prompt_extensions = with_prompt(system_prompt, system_prompt_extensions, output)
        others = _others(delegates, handoffs)
        known = prompt.knowledge(
            system_prompt, system_prompt_extensions, microagents, skills, instructions
        )
        brought: tuple[Tool, ...] = (
            *getattr(condenser, "tools", ()),
            *others[2],
            *plans.tools_for(planning, given),
            *(() if output is None else (output.tool,)),
            *known.tools,
        )
        manager = with_brought(given, brought)
        found: dict[str, Any] = {
            "llm": llm,
            "tools": manager,
            "system_prompt": prompt.join_parts(known.parts),
            "known": known,
            "limits": limits,
            "tree_limits": tree_limits,
            "parallel_calls": parallel_calls,
            "confirm": guard,
            "security": _security(security, guard),
            "output_limit": output_limit,
            "output": output,
            "output_rounds": 0 if output is None else output_rounds,
            "stuck": stuck,
            "condenser": condenser,
            "planning": planning,
            "delegates": others[0],
            "handoffs": others[1],
            "hooked": _hooked(hooks, manager, llm),
            "hooks": tuple(hooks),
            "brought": brought,
            "describe_images": describe_images,
            "connections": Connections(
                llm, given, mcp_servers, *(() if describe_images is None else (describe_images,))
            ),
            "mcp_servers": dict(mcp_servers or {}),
            "contributors": (
                *known.contributors,
                *_describers(describe_images),
            ),
            "origins": (),
            "forms": {},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        for other in others[:2]:
            if other is not None:
                other.set_owner(self)
        if others[1] is not None:
            _check_handoffs(self)
        if isinstance(self.confirm, ByTool) and not mcp_servers:
            self.confirm.look_for_typos([tool.name for tool in manager.list_tools()])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Agent is frozen; make a new one to change {name!r}.")

    def __repr__(self) -> str:
        return (
            f"Agent(model={self.llm.model!r},"
            f" tools={[tool.name for tool in self.tools.list_tools()]})"
        )

    def prompt_parts(self) -> tuple[prompt.Part, ...]:
        """Return the parts of `system_prompt`, in order."""
        return self.known.parts

    def to_json(self) -> bytes:
        """Return the agent as JSON for `from_json` and `load_agent`.

        The JSON contains no secrets (`${secret_1}` stands for the first) and only the names of
        the agent's own tools. `agent.form.form_of` returns the secrets too. Raises
        `ConfigurationError` that names the part that no other process could make.
        """
        from holdfast.agent.form import form_of

        return form_of(self).to_json()

    @staticmethod
    def from_json(
        data: bytes | str, *, variables: Mapping[str, Any] | None = None, builtins: Any = None
    ) -> Agent:
        """Make an agent from the JSON of `to_json`.

        `variables` are the secrets by name, `builtins` the tools by name (or a list of them).
        Raises `ConfigurationError`.
        """
        from holdfast.agent.form import agent_of

        return agent_of(data, variables, builtins)

    def step(
        self,
        state: HasEvents | Transcript,
        head: ev.Agent | None = None,
        *,
        on_delta: Callable[[Delta], object] | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """Make one model call and return its answer: text and tool calls.

        No tool runs and nothing is written to the journal. With a `ConversationState` the
        request is the view of that state, with the agent's current prompt and tools; connections
        to services are opened for the call if no conversation has them open. With a
        `Transcript`, as the loop calls this method, the request is the transcript under `head`
        (prompt, tools, parameters). Raises `LLMError`; raises `ConfigurationError` for a state
        without a message or with a call that has no result.
        """
        if head is None:
            if isinstance(state, Transcript):
                raise ConfigurationError(
                    "Agent.step: a transcript needs its head, the Agent event; or give a"
                    " ConversationState alone."
                )
            with self.connections.held():
                transcript, made = request_of(self, state)
                return self.step(transcript, made, on_delta=on_delta, cancelled=cancelled)
        if not isinstance(state, Transcript):
            raise ConfigurationError(
                "Agent.step: head goes with a transcript; a ConversationState is given alone."
            )
        answer: Any = self.llm.completion(state, head=head, on_delta=on_delta, cancelled=cancelled)
        if not isinstance(answer, Completion):  # a model may be any class
            raise BadResponse(
                f"{self.llm.model!r} answered with {type(answer).__name__}; completion returns a"
                " Completion."
            )
        if not isinstance(cast(Any, answer.usage), Usage):
            raise BadResponse(
                f"{self.llm.model!r} answered with {type(answer.usage).__name__} as its usage; that"
                " is a Usage."
            )
        for call in cast("tuple[Any, ...]", answer.calls):
            if not isinstance(call, ToolCall):
                raise BadResponse(
                    f"{self.llm.model!r} answered with {type(call).__name__} among its calls; those"
                    " are ToolCall objects."
                )
        return answer

    def definitions(self, last: ev.Agent | None) -> tuple[ev.ToolDefinition, ...]:
        """Return the tool definitions in the order that preserves a provider's cached prefix.

        Unchanged definitions keep their order in `last`; new and changed ones follow.
        """
        now = self.tools.definitions()
        if last is None or not last.tools:
            return now
        kept = [definition for definition in last.tools if definition in now]
        return (*kept, *(definition for definition in now if definition not in kept))


def _security(given: Any, guard: ConfirmationPolicy | None) -> SecurityAnalyzer | None:
    """Return the given analyzer, or the standard one if the policy needs one."""
    if given is None:
        if not getattr(guard, "needs_risk", False):
            return None
        from holdfast.agent.security import standard

        return standard()
    if isinstance(given, type) or not callable(getattr(given, "assess", None)):
        raise ConfigurationError(
            "Agent: security takes an object with a method assess, such as"
            f" holdfast.agent.security.standard(), or None, not {given!r}."
        )
    return given


def _hooked(hooks: Any, manager: ToolManager, llm: Any) -> AgentHooks | None:
    if hooks == () or hooks == []:
        return None
    from holdfast.agent.hooks import AgentHooks

    return AgentHooks(hooks, manager.rules.hooks, llm)


def _others(
    delegates: Any, handoffs: Any
) -> tuple[Delegates | None, AgentDirectory | None, tuple[Tool, ...]]:
    """Return the delegates, the handoffs, and the tools that reach them."""
    if not delegates and not handoffs:
        return None, None, ()
    from holdfast.agent.delegation import Delegates, make_delegation
    from holdfast.agent.directory import AgentDirectory
    from holdfast.agent.handoffs import MAIN, make_handoff

    team = (
        None
        if not delegates
        else delegates.for_other_owner()
        if isinstance(delegates, Delegates)
        else Delegates(delegates)
    )
    others = None if not handoffs else AgentDirectory("handoffs", handoffs, (MAIN,))
    return (
        team,
        others,
        (
            *(() if team is None else make_delegation(team)),
            *(() if others is None else (make_handoff(others),)),
        ),
    )


def _check_handoffs(agent: Agent) -> None:
    """Raise `ConfigurationError` if a handoff target does not fit the agent's limits or
    planning."""
    from holdfast.agent.handoffs import check_budget, family

    bounds = agent.tree_limits
    if bounds is not None:
        check_budget(
            "Agent: tree_limits has", agent, bounds.tokens is not None, bounds.cost is not None
        )
    if agent.planning == "first":
        family(agent)


def _describers(llm: Model | None) -> tuple[Contributor, ...]:
    if llm is None:
        return ()
    from holdfast.agent.images import Describer, check

    return (Describer(check(llm)),)


def _check(
    llm: Any,
    tools: Any,
    system_prompt: Any,
    extensions: Any,
    limits: Any,
    parallel_calls: Any,
    output_limit: Any,
) -> None:
    if isinstance(llm, type) or not callable(getattr(llm, "completion", None)):
        hint = f" Give LLM({llm!r})." if isinstance(llm, str) else ""
        raise ConfigurationError(f"Agent: llm takes an LLM (or ScriptedLLM), not {llm!r}.{hint}")
    if isinstance(tools, str | bytes | dict | Tool) or not isinstance(
        tools, Iterable | ToolManager
    ):
        hint = (
            " Give its tools: tools=runtime.tools."
            if hasattr(cast("object", tools), "get_tools")
            else ""
        )
        raise ConfigurationError(
            "Agent: tools takes a list of Tool objects or functions, or a ToolManager, not"
            f" {tools!r}.{hint}"
        )
    if system_prompt is not None and not isinstance(system_prompt, str):
        raise ConfigurationError(
            f"Agent: system_prompt takes a str or None, not {system_prompt!r}."
        )
    if isinstance(extensions, str) or not all(isinstance(item, str) for item in extensions):
        raise ConfigurationError(
            f"Agent: system_prompt_extensions takes a list of str, not {extensions!r}."
        )
    if not isinstance(limits, Limits):
        raise ConfigurationError(f"Agent: limits takes Limits(...), not {limits!r}.")
    if not isinstance(parallel_calls, int) or parallel_calls < 1:
        raise ConfigurationError(
            f"Agent: parallel_calls takes a whole number from 1, not {parallel_calls!r}."
        )
    if not isinstance(output_limit, int) or output_limit < 1000:
        raise ConfigurationError(
            f"Agent: output_limit takes a number of characters from 1,000, not {output_limit!r}."
        )


def _check_servers(mcp_servers: Any) -> None:
    if mcp_servers is None or isinstance(mcp_servers, Mapping):
        return
    hint, _kind = "", type(cast(object, mcp_servers)).__name__
    if isinstance(mcp_servers, str | os.PathLike):
        hint = " A file is read by the caller: mcp_servers=json.loads(Path(...).read_text())."
    raise ConfigurationError(
        "Agent: mcp_servers takes a mapping of server ids to servers, not a"
        f" {type(cast('object', mcp_servers)).__name__}.{hint}"
    )


def _check_ends(output_rounds: Any, stuck: Any) -> None:
    if not isinstance(output_rounds, int) or isinstance(output_rounds, bool) or output_rounds < 1:
        raise ConfigurationError(
            f"Agent: output_rounds takes a whole number from 1, not {output_rounds!r}."
        )
    if stuck is not None and not isinstance(stuck, StuckDetector):
        raise ConfigurationError(f"Agent: stuck takes StuckDetector(...) or None, not {stuck!r}.")
