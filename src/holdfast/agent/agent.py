"""`Agent`: a model, its tools, all prompt text and limits. An agent can serve many conversations
and holds none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from holdfast import events as ev
from holdfast.agent import planning as plans
from holdfast.agent import prompt
from holdfast.agent.additions import Contributor, Knowledge
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.checks import analyzer_of, check_arguments
from holdfast.agent.confirmation import ByTool, Confirm, ConfirmationPolicy, policy
from holdfast.agent.connections import Connections
from holdfast.agent.delegation import Delegates, make_delegation
from holdfast.agent.directory import AgentDirectory
from holdfast.agent.handoffs import (
    MAIN,
    ModelChoice,
    check_budget,
    make_handoff,
    make_switch,
    reachable_agents,
)
from holdfast.agent.hooks import AgentHooks
from holdfast.agent.limits import Limits, check_models, check_price
from holdfast.agent.output import PROMPT as FINISH_PROMPT
from holdfast.agent.output import Output, output_of
from holdfast.agent.planning import Planning
from holdfast.agent.provenance import Provenance
from holdfast.agent.risk import SecurityAnalyzer
from holdfast.agent.serial_form import form_of
from holdfast.agent.stuck import StuckDetector
from holdfast.agent.titles import Titler, check_titler
from holdfast.agent.view import View
from holdfast.content import ContentLike, Message, ToolCall, Usage
from holdfast.errors import BadResponse, ConfigurationError
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.model import Model
from holdfast.llm.transcript import Transcript
from holdfast.llm.vision import with_vision
from holdfast.store.base import Store
from holdfast.tools import Cancellation, Tool, ToolManager
from holdfast.tools.arguments import is_model
from holdfast.tools.manager import ToolLike
from holdfast.tools.mcp_spellings import normalize_servers

if TYPE_CHECKING:
    import holdfast
    from holdfast.agent.code import CodeMode, CodeTools
    from holdfast.agent.goal import Goal
    from holdfast.agent.instructions import Instructions
    from holdfast.agent.plugins import Plugin
    from holdfast.runtime.microagents import Microagent
    from holdfast.tools.hooks import Hook
    from holdfast.tools.skills import Skills
    from holdfast.tools.skills_files import Skill


AgentEntry: TypeAlias = "Agent | SubAgent | str | Path | tuple[Agent | SubAgent | str | Path, str]"
"""An agent that another one can reach: as such or as a file, and perhaps its description."""


class HasEvents(Protocol):
    """An object with a journal's events in order, such as a `ConversationState`."""

    @property
    def events(self) -> Sequence[ev.AnyEvent]: ...


class Agent:
    """A model with tools, a prompt and limits. Frozen; shared by any number of conversations.

    Each argument is described at the attribute of its name. The system prompt is `system_prompt`,
    then each of `system_prompt_extensions`, then each microagent, then skills and instructions
    (`prompt_parts`).

    A copy of an agent (`copy.copy`, `copy.deepcopy`) is the agent itself, because nothing in it
    can change. `replace` makes another one. Raises `ConfigurationError` (a `ValueError`) that
    names the invalid argument.
    """

    # --- model and tools ---

    llm: Model
    """The model: an `LLM`, a composite, or a `ScriptedLLM`."""
    tools: ToolManager
    """The tools. The argument takes `Tool` objects, plain functions, or a `ToolManager`. Several
    agents may share a manager: tools that come with other arguments (`feature_tools`) are not
    added to it."""
    mcp_servers: Mapping[str, Any]
    """A configuration as `MCPClient` takes it. Servers are connected when the first conversation
    starts and disconnected when the last one ends. Their tools follow the other tools."""
    describe_images: Model | None
    """A model that accepts images, and describes each picture once, before the next model call, for
    an `llm` that does not (`LLM.sees`). Without such a model the `llm` gets each picture's kind and
    size (`docs/how-to/interaction.md`)."""

    models: ModelChoice | None
    """Models by name that the agent may switch to with the tool `switch_model`. From the next step
    on that model answers, with the same prompt and tools. The mapping may have a name for `llm`
    itself, which is `default` otherwise."""

    code: CodeTools | None
    """Shows the model one tool, `run_code`, whose scripts call the other tools as functions
    (`docs/how-to/code-mode.md`). The argument takes True, or a `agent.code.CodeMode` with limits.
    Tools that come with other arguments, such as `finish`, stay tools of the model."""

    # --- the prompt ---

    system_prompt: str
    """The whole system prompt. The argument is its base; None for the default one."""
    system_prompt_extensions: Sequence[str]
    """Texts that are appended to the system prompt."""
    microagents: Iterable[str | Path | Microagent]
    """A str is a text, a `Path` a file or folder; results of `LocalRuntime.load_microagents` are
    accepted too. Microagents with triggers become skills."""
    skills: Skills | Iterable[str | os.PathLike[str] | Skill] | None
    """Skills of `holdfast.tools.skills.discover`, folders, or `Skill` objects. The model is shown a
    skill when the user's words or a file of a call match, always, or when it calls `read_skill`."""
    instructions: Instructions | str | os.PathLike[str] | None
    """The `AGENTS.md` files for a folder, or for the runtime's working directory
    (`agent.instructions`)."""

    plugins: Iterable[Plugin | str | os.PathLike[str]]
    """Plugins of `agent.plugins.load_plugin`, or their folders. Their skills, commands, sub-agents,
    MCP servers and hooks are added to `skills`, `delegates`, `mcp_servers` and `hooks`."""

    # --- limits of a run ---

    limits: Limits
    """Limits of one run of a conversation."""
    tree_limits: Limits | None
    """A lifetime budget of a conversation and its descendants (`ToolContext.spawn`). Each model
    call reserves its share before it is made (`docs/how-to/limits.md`)."""
    parallel_calls: int
    """The maximum number of calls of one answer that run at the same time."""
    output_limit: int
    """The maximum number of characters of a tool's text result that the model is shown. The store
    keeps the whole result (`Conversation.get_output`)."""
    condenser: Any
    """Shortens requests before they exceed the context window, such as
    `Pipeline([ToolOutputCondenser(), LLMCondenser()])` of `holdfast.agent.condensers`, or your own
    `agent.condenser.Condenser`. Without a condenser, or if it finds nothing to leave out, a run
    ends with the provider's error."""
    stuck: StuckDetector | None
    """Detects an agent that repeats itself without progress; None turns the detection off."""

    # --- guards ---

    confirm: ConfirmationPolicy | None
    """The policy of calls that wait for `Conversation.approve`. The argument takes "never",
    "always", "risky" (`AboveRisk("medium")`), a list of tool names, a mapping of names to allow,
    ask or deny, or a `ConfirmationPolicy`."""
    security: SecurityAnalyzer | None
    """A `SecurityAnalyzer` that assesses the risk of each call for the policies; each decision
    records the risk in the journal. None: a policy that needs one gets
    `holdfast.agent.security.standard()`."""
    goal: Goal | None
    """The goal of a run. When the agent stops, a judge decides whether it is reached. If not, the
    agent is shown the unmet part and continues (`agent.goal.Goal`, `docs/how-to/goals.md`)."""
    stop_denials: int
    """The number of times in a row that hooks on `stop` may deny the end of a run; then it ends
    anyway."""
    hooks: tuple[Hook, ...]
    """Called around calls, model calls, messages, ends of runs and condensations, and when a
    conversation begins and ends (`holdfast.tools.hooks.Hook`, `docs/how-to/hooks.md`)."""

    # --- the way of working ---

    planning: Planning
    """"tool" adds the tool `plan` and prompt lines about its use. "first" also denies every call
    that is not read-only until the user has approved the plan (`ConversationState.plan`)."""
    output_type: Any
    """A pydantic model, a `msgspec.Struct`, any type that pydantic supports, or a JSON Schema. A
    run then ends with a valid call of the tool `finish`, whose arguments are the result
    (`Conversation.output`)."""
    output_rounds: int
    """The number of invalid results after which a run fails with `OutputInvalid`; 0 without an
    output type."""
    delegates: Delegates | None
    """Agents by name that receive work through the tools `delegate`, `delegate_poll`,
    `delegate_collect`, `delegate_cancel` and `send_to`. Each is an `Agent`, a `SubAgent`, or the
    path of a sub-agent file (`agent.agents_files`), or a tuple of one of these and a
    description."""
    handoffs: AgentDirectory | None
    """Agents by name that can take over the conversation through the tool `handoff`, in the same
    forms. None as a value is the agent that the conversation knows by that name; `main` is the
    first agent."""
    description: str
    """The purpose of this agent, for the models of agents that delegate or hand over to it. The
    default is the first line of its prompt."""
    provenance: Provenance
    """Records that `load_agent` and `replace` keep."""

    title: Titler | None
    """Writes the title of each conversation from its first message, beside its steps: a model
    (`LLM("gpt-5-nano")`), or a function of the message's text. None: the title is the message's
    first line. Written once, after the run has begun; `close` waits for it up to its deadline."""

    # --- made of the arguments ---

    connections: Connections
    knowledge: Knowledge
    """The parts of the prompt, the skills and the instructions."""
    output: Output | None
    hooked: AgentHooks | None
    """The hooks grouped by the point at which they are called; None without hooks."""
    feature_tools: tuple[Tool, ...]
    """Tools that come with other arguments of the agent, such as `planning` or `condenser`."""
    contributors: tuple[Contributor, ...]
    """Functions that add messages before a model call, in order (`agent.additions`)."""

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
        delegates: Mapping[str, AgentEntry] | Delegates | None = None,
        handoffs: Mapping[str, AgentEntry | None] | None = None,
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
        provenance: Provenance = Provenance(),
        models: Mapping[str, Model] | ModelChoice | None = None,
        title: Titler | None = None,
        plugins: Iterable[Plugin | str | os.PathLike[str]] = (),
        description: str = "",
        goal: Goal | None = None,
        stop_denials: int = 3,
        code: bool | CodeMode = False,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        if plugins:
            Agent.__init__(self, **{**arguments, **_with_plugins(plugins, arguments)})
            return
        check_arguments(arguments)
        budget = tree_limits or Limits()
        check_models([llm], limits, budget)
        guard = policy(confirm)
        manager = tools.shared if isinstance(tools, ToolManager) else ToolManager(tools)
        output = output_of(output_type, manager)
        extensions = system_prompt_extensions
        if planning is not None:
            lines = plans.FIRST_PROMPT if planning == "first" else plans.TOOL_PROMPT
            extensions = prompt.with_lines(system_prompt, extensions, lines)
        if output is not None:
            extensions = prompt.with_lines(system_prompt, extensions, FINISH_PROMPT)
        if goal is not None:
            extensions = prompt.with_lines(system_prompt, extensions, goal.prompt)
        knowledge = prompt.knowledge(system_prompt, extensions, microagents, skills, instructions)
        team = None
        if delegates:
            own = isinstance(delegates, Delegates)
            team = delegates.for_other_owner() if own else Delegates(delegates)
        successors = AgentDirectory("handoffs", handoffs, (MAIN,)) if handoffs else None
        choice = models if isinstance(models, ModelChoice) else None
        if models and choice is None:
            choice = ModelChoice(models, llm)
        if choice is not None and choice.owner is None:
            check_models(choice.by_name.values(), limits, budget)
        scripts = None if code is False else _code_tools(code)
        feature_tools: tuple[Tool, ...] = (
            *getattr(condenser, "tools", ()),
            *(() if team is None else make_delegation(team)),
            *(() if successors is None else (make_handoff(successors),)),
            *(() if choice is None else (make_switch(choice),)),
            *plans.tools_for(planning, manager),
            *(() if output is None else (output.tool,)),
            *knowledge.tools,
        )
        if scripts is not None:
            feature_tools = scripts.beside(feature_tools)
        with_parts = manager.with_own_tools(feature_tools)
        servers = dict(normalize_servers(mcp_servers or {}))
        hooked = AgentHooks(hooks, with_parts.rules.hooks, llm) if hooks else None
        judges = () if hooked is None else hooked.models
        for model in judges:
            if limits.cost is not None or budget.cost is not None:
                check_price("Agent: its limits have", model)
        connected, describers = [llm, *judges], list[Contributor]()
        if describe_images is not None:
            from holdfast.agent.images import Describer  # few agents describe images

            connected.append(describe_images)
            describers.append(Describer(describe_images))
        if title is not None:
            check_titler("Agent: title", title)
            if is_model(title):
                connected.append(cast(Model, title))
        attributes = {
            "tools": with_parts,
            "mcp_servers": servers,
            "system_prompt": prompt.join_parts(knowledge.parts),
            "knowledge": knowledge,
            "confirm": guard,
            "security": analyzer_of(security, guard),
            "output": output,
            "output_rounds": 0 if output is None else output_rounds,
            "delegates": team,
            "handoffs": successors,
            "models": choice,
            "code": scripts,
            "hooked": hooked,
            "hooks": tuple(hooks),
            "feature_tools": feature_tools,
            "connections": Connections(connected, manager, {} if provenance.connected else servers),
            "contributors": (*knowledge.contributors, *describers),
            # What makes an equal agent. Sub-agent files and the argument `tools` are read once.
            "_arguments": {
                **arguments,
                "tools": manager,
                "confirm": "never" if guard is None else guard,
                "delegates": team,
                "handoffs": None if successors is None else successors.entries,
                # those of an agent with another model of its own are made anew
                "models": None if choice is None else choice.by_name,
            },
            "_variants": {},
        }
        vars(self).update(arguments, **attributes)
        for directory in (team, successors):
            if directory is not None:
                directory.owner = self
        if choice is not None and choice.owner is None:
            choice.owner = self
        if successors is not None:
            counted = (budget.tokens is not None, budget.cost is not None)
            check_budget("Agent: tree_limits has", self, *counted)
            if planning == "first":
                reachable_agents(self)
        if isinstance(guard, ByTool) and not mcp_servers:
            guard.look_for_typos([tool.name for tool in with_parts.list_tools()])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Agent is frozen; use replace({name}=...) to make a new one.")

    def __copy__(self) -> Agent:
        return self

    def __deepcopy__(self, memo: object) -> Agent:
        return self

    def __repr__(self) -> str:
        tools = [tool.name for tool in self.tools.list_tools()]
        return f"Agent(model={self.llm.model!r}, tools={tools})"

    def replace(self, **changes: Any) -> Agent:
        """Return an agent with other values of some arguments: `agent.replace(limits=...)`.

        The new agent shares the model and the tools that are not replaced. Files of skills,
        microagents and instructions are not read again, unless one of these three is replaced.
        Raises `ConfigurationError` as the class does, and for other `mcp_servers` without other
        `tools`, because the present tools contain those of the present servers.
        """
        if changes.get("plugins"):
            all_arguments = {**vars(self)["_arguments"], **changes}
            changes = {**changes, **_with_plugins(changes["plugins"], all_arguments)}
        arguments: dict[str, Any] = {**vars(self)["_arguments"], **changes}
        if not changes.keys() & {"microagents", "skills", "instructions"}:
            notes = [part.text for part in self.knowledge.parts if part.of == "microagents"]
            arguments["microagents"] = [prompt.without_heading(text) for text in notes]
            arguments["skills"] = self.knowledge.skills
            arguments["instructions"] = self.knowledge.instructions
        keeps_tools = "tools" not in changes
        if keeps_tools and self.mcp_servers and "mcp_servers" in changes:
            raise ConfigurationError(
                "Agent.replace: other mcp_servers need other tools, because the present tools"
                " contain those of the present servers; give tools too."
            )
        connected = keeps_tools and "mcp_servers" not in changes
        arguments["provenance"] = arguments["provenance"]._replace(connected=connected)
        return Agent(**arguments)

    def with_planning_first(self) -> Agent:
        """Return this agent with planning="first"; the same object each time."""
        if self.planning == "first":
            return self
        variants: dict[str, Agent] = vars(self)["_variants"]
        return variants.get("first") or variants.setdefault("first", self.replace(planning="first"))

    def prompt_parts(self) -> tuple[prompt.PromptSection, ...]:
        """Return the parts of `system_prompt`, in order."""
        return self.knowledge.parts

    def own_tools(self) -> list[Tool]:
        """Return the tools, except those of `mcp_servers` and of other arguments."""
        lazy = any(server.get("lazy") for server in self.mcp_servers.values())

        def is_of_server(tool: Tool) -> bool:
            if tool.tool_type == "mcp_tool" and tool.name.partition(".")[0] in self.mcp_servers:
                return True
            return lazy and tool.name == "find_tools" and tool.category == "builtin"

        feature_ids = {id(tool) for tool in self.feature_tools}
        tools = self.tools.list_tools()
        return [tool for tool in tools if id(tool) not in feature_ids and not is_of_server(tool)]

    def to_json(self) -> bytes:
        """Return the agent as JSON for `from_json` and `load_agent`.

        The JSON contains no secrets (`${secret_1}` stands for the first) and only the names of
        the agent's own tools. `agent.serial_form.form_of` returns the secrets too. Raises
        `ConfigurationError` that names the part that no other process could make.
        """
        return form_of(self).to_json()

    @staticmethod
    def from_json(
        data: bytes | str, *, variables: Mapping[str, Any] | None = None, builtins: Any = None
    ) -> Agent:
        """Make an agent from the JSON of `to_json`. `variables` are the secrets by name, `builtins`
        the tools by name (or a list of them). Raises `ConfigurationError`."""
        from holdfast.agent.config import read_agent_json  # only programs that load agents need it

        return read_agent_json(data, Agent, variables, builtins)

    def run(
        self,
        message: str | Message | ContentLike,
        store: Store | None = None,
        id: str | None = None,
        *,
        runtime: object | None = None,
        on_delta: Callable[[Delta], object] | None = None,
        on_progress: Callable[[str, str], object] | None = None,
        on_question: Callable[[ev.Question], dict[str, Any] | bool | None] | None = None,
        observer: Any = None,
    ) -> holdfast.ConversationState:
        """Send `message` to a conversation with this agent, run it to its end, and return its
        finished state: `agent.run("Say hello.").answer`.

        Equivalent to opening a `Conversation` with these arguments, `send_message`, `run`,
        `raise_for_status` and `close`. An `id` that the store knows continues that conversation.

        Raises `RunFailed` if the run does not finish, with the reason; `ConfigurationError`,
        `LeaseHeld` and `StoreError` as `Conversation` does.
        """
        # The package's front door: this room is inside the one that it opens. `tests/test_house.py`
        # allows it here alone.
        import holdfast

        with holdfast.Conversation(
            self,
            store,
            id,
            runtime=runtime,
            on_delta=on_delta,
            on_progress=on_progress,
            on_question=on_question,
            observer=observer,
        ) as conversation:
            conversation.send_message(message)
            return conversation.run().raise_for_status()

    def step(
        self,
        state: HasEvents | Transcript,
        head: ev.AgentConfigured | None = None,
        *,
        on_delta: Callable[[Delta], object] | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """Make one model call and return its answer: text and tool calls.

        No tool runs and nothing is written to the journal. Raises `LLMError`. Raises
        `ConfigurationError` for a state without a message or with a call that has no result.

        | `state` | request |
        |---|---|
        | a `ConversationState` | its view, with the agent's current prompt and tools |
        | a `Transcript` (as in the loop) | it, under `head` (prompt, tools, parameters) |

        For a state, connections to services are opened if no conversation has them open.
        """
        if head is None:
            if isinstance(state, Transcript):
                raise ConfigurationError(
                    "Agent.step: a transcript needs its head, the AgentConfigured event; or give a"
                    " ConversationState alone."
                )
            with self.connections.keep_open():
                transcript, request_head = self._request(state)
                return self.step(transcript, request_head, on_delta=on_delta, cancelled=cancelled)
        if not isinstance(state, Transcript):
            raise ConfigurationError(
                "Agent.step: head goes with a transcript; a ConversationState is given alone."
            )
        answer: Any = self.llm.completion(state, head=head, on_delta=on_delta, cancelled=cancelled)
        if problem := _problem_of(answer):
            raise BadResponse(f"{self.llm.model!r} answered with {problem}.")
        return answer

    def _request(self, state: HasEvents) -> tuple[Transcript, ev.AgentConfigured]:
        """Return the transcript that the state shows a model, and the present head. Raises
        `ConfigurationError` if there is no message, or if a call has no result."""
        view = View.of(state.events)
        if view.open_calls:
            raise ConfigurationError(
                f"Agent.step: the calls {', '.join(view.open_calls)} have no result yet; run them"
                " first."
            )
        transcript = view.ready()
        if not len(transcript):
            raise ConfigurationError(
                "Agent.step: the state has no message that the agent could answer."
            )
        heads = (event for event in reversed(state.events) if type(event) is ev.AgentConfigured)
        parameters = self.llm.parameters()
        head = ev.AgentConfigured(
            seq=state.events[-1].seq + 1,
            id="",
            timestamp=datetime.now(UTC),
            system_prompt=self.system_prompt,
            tools=self.definitions(next(heads, None)),
            model=self.llm.model,
            parameters=with_vision(self.llm, parameters) if transcript.pictures else parameters,
        )
        return transcript, head

    def tool_definitions(self) -> tuple[ev.ToolDefinition, ...]:
        """Return the definitions that a model is shown: the same object until the tools change."""
        return self.tools.definitions() if self.code is None else self.code.definitions(self.tools)

    def definitions(self, last: ev.AgentConfigured | None) -> tuple[ev.ToolDefinition, ...]:
        """Return the tool definitions in the order that preserves a provider's cached prefix.
        Unchanged definitions keep their order in `last`; new and changed ones follow."""
        now = self.tool_definitions()
        if last is None or not last.tools:
            return now
        common = [definition for definition in last.tools if definition in now]
        return (*common, *[definition for definition in now if definition not in common])


def _code_tools(code: Any) -> CodeTools:
    from holdfast.agent.code import code_tools  # few agents write code

    return code_tools(code)


def _with_plugins(plugins: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from holdfast.agent.plugins import with_plugins  # few agents have plugins

    return with_plugins(plugins, arguments)


def _problem_of(answer: Any) -> str:
    """Return the way in which a model's answer is no `Completion`, or ""; a model may be any
    class."""
    if not isinstance(answer, Completion):
        return f"{type(answer).__name__}; completion returns a Completion"
    if not isinstance(cast(Any, answer.usage), Usage):
        return f"{type(answer.usage).__name__} as its usage; that is a Usage"
    for call in cast("tuple[Any, ...]", answer.calls):
        if not isinstance(call, ToolCall):
            return f"{type(call).__name__} among its calls; those are ToolCall objects"
    return ""
