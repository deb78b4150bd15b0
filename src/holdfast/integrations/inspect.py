"""Holdfast agents in inspect-ai: a solver for its tasks, and a scorer from a judge.

Needs `pip install inspect-ai`. The agent's conversation runs on a separate thread. Its model is by
default the one that inspect evaluates. The limits, the transcript, the usage and the cache of
inspect then hold for each of its requests.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.content import TextContent, ToolCall, ToolResult, Usage
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.errors import (
    BadResponse,
    Cancelled,
    ConfigurationError,
    GoalMissed,
    LimitExceeded,
    OutputInvalid,
    ToolError,
)
from holdfast.evals.cases import Case
from holdfast.evals.scorers import Scorer, with_model
from holdfast.evals.scoring import ScoredWork, scores_of, scoring_agent
from holdfast.llm.base import BaseModel, CompletionCall
from holdfast.llm.completion import Completion
from holdfast.llm.request import RequestTarget, make_request
from holdfast.llm.wires import openai_chat
from holdfast.nesting import decode_json
from holdfast.object_struct import ObjectStruct
from holdfast.store import Store
from holdfast.tools import Tool, ToolContext
from holdfast.tools.arguments import wrong

_S = ConversationStatus
_OWN_ENDS = (LimitExceeded.__name__, GoalMissed.__name__, OutputInvalid.__name__)
_STOP_REASONS = {"max_tokens": "length", "model_length": "length"}  # the differing ones
_CLOSE_SECONDS = 10.0
STORE_KEY = "holdfast"
"""The key of a sample's store with the `id`, `status`, `steps` and `cost` of the conversation."""

AgentLike = Agent | Callable[..., Agent]


def _part(name: str) -> Any:
    """Return a module of inspect-ai. Raises `ConfigurationError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"holdfast.integrations.inspect needs {error.name}: pip install inspect-ai."
        ) from None


def holdfast_solver(
    agent: AgentLike, *, model: Literal["inspect", "own"] = "inspect", store: Store | None = None
) -> Any:
    """Return a solver of inspect-ai that lets an agent work on each sample:
    `eval(task, solver=holdfast_solver(agent), model="openai/gpt-5")`.

    The sample's user messages are sent in turn, and its system messages are added to the prompt.
    The agent has its own tools and those of `state.tools`, which inspect runs with its approvals.
    Messages, calls and results are in `state.messages` and the transcript, the last answer and the
    usage in `state.output`. Limits of inspect end the run as limits of inspect.

    Args:
        agent: An `Agent`, or a function of the `TaskState`, or of nothing, that makes one for each
            sample.
        model: With `inspect`, the agent asks the evaluated model. With `own`, it keeps its own
            model, whose usage is in `state.output` alone. A token limit is then a limit of the
            agent, and a message limit has no effect.
        store: Keeps the conversations; None keeps them in memory.

    Raises `ConfigurationError` without inspect-ai, or if `agent` is neither an agent nor callable.
    """
    if not isinstance(agent, Agent) and not callable(agent):
        raise wrong("holdfast_solver: agent", "an Agent, or a function of one", agent)
    if model not in ("inspect", "own"):
        raise wrong("holdfast_solver: model", '"inspect" or "own"', model)
    solvers = _part("inspect_ai.solver")

    def holdfast(model: str) -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            sample = _Sample(_Bridge.here(), state, agent, model == "own", store)
            await sample.solve()
            return state

        return solve

    return solvers.solver(name="holdfast")(holdfast)(model)


def judge_scorer(
    judge: Scorer, *, runtime: object | None = None, timeout: float = 600.0, metrics: Any = None
) -> Any:
    """Return a scorer of inspect-ai that asks a judge of goals, or a scorer of `holdfast.evals`. A
    sample that the judge calls done is correct.

    The judge's review has the sample's input, target (`review.case.expected`), messages and last
    answer, whichever solver made them. A `RubricJudge` without a model asks inspect's model of the
    role `grader`, else the one that is evaluated.

    Args:
        judge: A function of a review and a `ToolContext`, `RubricJudge`, `CommandJudge`, ...
        runtime: A runtime for judges that run commands.
        timeout: Seconds after which the judgement fails, which is an error of the sample.
        metrics: Metrics of inspect; None takes the accuracy and its standard error.
    """
    if not callable(judge):
        raise wrong("judge_scorer: judge", "a function of a review and a ToolContext", judge)
    scorers = _part("inspect_ai.scorer")

    def holdfast_judge() -> Any:
        async def score(state: Any, target: Any) -> Any:
            judgement = await _judged(_Bridge.here(), judge, state, list(target), runtime, timeout)
            return scorers.Score(
                value=scorers.CORRECT if judgement.passed else scorers.INCORRECT,
                answer=state.output.completion,
                explanation=judgement.reason or None,
                metadata=None if judgement.score is None else {"score": judgement.score},
            )

        return score

    chosen = [scorers.accuracy(), scorers.stderr()] if metrics is None else metrics
    return scorers.scorer(metrics=chosen, name="holdfast_judge")(holdfast_judge)()


class _Bridge(msgspec.Struct, frozen=True):
    """The way from a conversation's threads to inspect's event loop, with the sample's context
    variables."""

    token: Any
    context: Context
    from_thread: Any

    @classmethod
    def here(cls) -> _Bridge:
        """Return the bridge to the loop and the sample that run now."""
        lowlevel = _part("anyio.lowlevel")
        return cls(lowlevel.current_token(), copy_context(), _part("anyio.from_thread"))

    def call(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Run an async function in the loop, and return its result here."""
        run = self.from_thread.run
        # Several threads may call, and a context can be entered once.
        return self.context.copy().run(run, function, *arguments, token=self.token)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run a function in the loop."""
        self.from_thread.run_sync(function, token=self.token)

    async def work(self, function: Callable[[], Any], abandon: bool = False) -> Any:
        """Run a function on a thread of its own, and wait for it."""
        anyio = _part("anyio")
        return await anyio.to_thread.run_sync(
            function, abandon_on_cancel=abandon, limiter=anyio.CapacityLimiter(1)
        )


class InspectModel(BaseModel):
    """A model of inspect-ai as a model of Holdfast. Made by `holdfast_solver` and `judge_scorer`.

    `before` is called in the loop before each request. `limit` is the limit of inspect that ended a
    request; further ones fail at once.
    """

    def __init__(
        self, bridge: _Bridge, model: Any, before: Callable[[], object] = lambda: None
    ) -> None:
        self.model = str(model)
        self.limit: Exception | None = None
        self._bridge, self._model, self._before = bridge, model, before

    def parameters(self) -> dict[str, Any]:
        """Return the wire in which the journal describes requests."""
        return {"wire": openai_chat.name, "host": "inspect"}

    def cost(self, usage: Usage) -> float | None:
        """Return None: inspect knows the price."""
        return None

    def close(self) -> None:
        """Do nothing: inspect keeps the model's connections."""

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer of inspect's model."""
        if self.limit is not None:
            raise BadResponse(str(self.limit))
        parameters = self.parameters() if call.head is None else call.head.parameters
        request = make_request(RequestTarget(openai_chat, self.model, parameters), call)
        body = msgspec.json.decode(request.body)
        limits = _part("inspect_ai.util").LimitExceededError
        try:
            output = self._bridge.call(self._generate, body, call)
        except limits as error:
            self.limit = error
            raise BadResponse(str(error)) from error
        if output is None:
            raise Cancelled("The model call was cancelled.")
        return request.with_canonical_names(_completion(output, self.model))

    async def _generate(self, body: dict[str, Any], call: CompletionCall) -> Any:
        self._before()
        with _part("anyio").CancelScope() as scope:
            forget = None
            if call.cancelled is not None:
                forget = call.cancelled.add_callback(lambda: self._bridge.call_soon(scope.cancel))
            try:
                tools = [_tool_info(one["function"]) for one in body.get("tools", ())]
                return await self._model.generate(_messages(body["messages"]), tools)
            finally:
                if forget is not None:
                    forget()
        return None


class _InspectTool(Tool):
    """A tool of the task, which inspect runs."""

    def __init__(self, bridge: _Bridge, tool: Any) -> None:
        definition = _part("inspect_ai.tool").ToolDef(tool)
        schema = definition.parameters.model_dump(exclude_none=True, by_alias=True)
        super().__init__(definition.name, definition.description, input_schema=schema)
        self._bridge, self._definition = bridge, definition

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool in inspect's loop."""
        models, tools = _part("inspect_ai.model"), _part("inspect_ai.tool")
        call = tools.ToolCall(context.call_id, self.name, arguments)
        request = models.ChatMessageAssistant(content="", tool_calls=[call])
        result = self._bridge.call(models.execute_tools, [request], [self._definition])
        [message, *_] = result.messages
        if message.error is not None:
            raise ToolError(message.error.message, retryable=False)
        return ToolResult((TextContent(message.text),))


class _Sample(ObjectStruct):
    """The work of an agent on one sample."""

    bridge: _Bridge
    state: Any
    agent: AgentLike
    own_model: bool
    store: Store | None
    conversation: Conversation | None = None
    model: InspectModel | None = None
    _reported: int = 0  # events whose tool calls are in the transcript
    _theirs: frozenset[str] = frozenset()  # names of the tools that inspect runs and records

    async def solve(self) -> None:
        """Run the conversation, and put its results into the sample, also if it is cancelled."""
        try:
            await self.bridge.work(self._work, abandon=True)
        finally:
            state = await self._closed()
        assert state is not None
        if self.model is not None and self.model.limit is not None:
            raise self.model.limit
        own_end = state.error is not None and state.error.error in _OWN_ENDS
        if state.status is not _S.STUCK and not own_end:
            state.raise_for_status()

    async def _closed(self) -> ConversationState | None:
        """Close the conversation, and return its state from before."""
        with _part("anyio").CancelScope(shield=True):
            if (opened := self.conversation) is None:
                return None
            state = opened.state
            await self.bridge.work(lambda: opened.close(_CLOSE_SECONDS))
            self._finish(state)
            return state

    def _work(self) -> None:
        """Run the conversation; on a thread of its own."""
        state = self.state
        kinds = [message.role for message in state.messages]
        if "assistant" in kinds or "tool" in kinds or "user" not in kinds:
            raise ConfigurationError(
                "holdfast_solver: a sample begins with messages of the user and the system, not"
                f" {', '.join(kinds) or 'none'}."
            )
        agent = self._make_agent()
        self.conversation = conversation = Conversation(
            agent, self.store, f"{state.sample_id}-{state.epoch}-{state.uuid}".replace("/", "-")
        )
        for message in state.messages:
            if message.role == "user":
                conversation.send_message(message.text)
                if conversation.run().status is not _S.FINISHED:
                    return

    def _make_agent(self) -> Agent:
        agent: Any = self.agent
        if not isinstance(agent, Agent):
            agent = agent(self.state) if inspect.signature(agent).parameters else agent()
        if not isinstance(agent, Agent):
            raise wrong("holdfast_solver: agent", "an Agent, or a function of one", agent)
        changes: dict[str, Any] = {}
        if not self.own_model:
            active = _part("inspect_ai.model").get_model
            self.model = InspectModel(
                self.bridge, self.bridge.context.copy().run(active), self._report
            )
            changes["llm"] = self.model
        elif (tokens := self.state.token_limit) is not None:
            least = min(tokens, agent.limits.tokens or tokens)
            changes["limits"] = msgspec.structs.replace(agent.limits, tokens=least)
        theirs = [_InspectTool(self.bridge, tool) for tool in self.state.tools]
        self._theirs = frozenset(tool.name for tool in theirs)
        if theirs:
            changes["tools"] = [*agent.tools.list_tools(), *theirs]
        system = [one.text for one in self.state.messages if one.role == "system"]
        if system:
            extensions = [*agent.system_prompt_extensions, *system]
            changes["system_prompt_extensions"] = extensions
        return agent.replace(**changes) if changes else agent

    def _report(self) -> None:
        """Add the calls that Holdfast ran to the transcript; in the loop."""
        assert self.conversation is not None
        events = self.conversation.get_history()
        calls = _calls(events)
        transcript = _part("inspect_ai.log").transcript()
        tool_event = _part("inspect_ai.event").ToolEvent
        for event in events[self._reported :]:
            if isinstance(event, ev.ToolCallFinished) and event.call_id in calls:
                call, result = calls[event.call_id], event.result
                if call.name in self._theirs:
                    continue
                began = event.timestamp.timestamp() - event.duration
                # inspect has no public way to add an event of its own kinds.
                getattr(transcript, "_event")(  # noqa: B009
                    tool_event(
                        id=_id(call),
                        function=call.name,
                        arguments=call.arguments,
                        result=result.text,
                        error=_error(result),
                        timestamp=datetime.fromtimestamp(began, UTC),
                        completed=event.timestamp,
                        working_time=event.duration,
                    )
                )
        self._reported = len(events)

    def _finish(self, conversation: ConversationState) -> None:
        """Put the conversation into the sample's state; in the loop."""
        self._report()
        models, state = _part("inspect_ai.model"), self.state
        head = next(
            (one for one in conversation.events if isinstance(one, ev.AgentConfigured)), None
        )
        messages = _chat(conversation.events)
        if head is not None and head.system_prompt:
            messages.insert(0, models.ChatMessageSystem(content=head.system_prompt))
        with _part("inspect_ai.util").message_limit(None):  # it was checked at each request
            state.messages = messages
        usage = conversation.usage
        last = [one for one in messages if one.role == "assistant"]
        state.output = models.ModelOutput(
            model="" if head is None else head.model,
            choices=[models.ChatCompletionChoice(message=last[-1])] if last else [],
            usage=models.ModelUsage(
                input_tokens=usage.input_tokens
                - usage.cached_input_tokens
                - usage.cache_write_tokens,
                output_tokens=usage.output_tokens,
                total_tokens=usage.input_tokens + usage.output_tokens,
                input_tokens_cache_read=usage.cached_input_tokens,
                input_tokens_cache_write=usage.cache_write_tokens,
            ),
        )
        about = {
            "id": conversation.id,
            "status": conversation.status.value,
            "steps": conversation.steps,
        }
        state.store.set(STORE_KEY, {**about, "cost": conversation.cost})
        state.completed = True


async def _judged(
    bridge: _Bridge,
    judge: Scorer,
    state: Any,
    target: Sequence[str],
    runtime: object | None,
    timeout: float,
) -> Any:
    grader = InspectModel(bridge, _part("inspect_ai.model").get_model(role="grader"))
    expected = target[0] if len(target) == 1 else tuple(target)
    case = Case(str(state.sample_id), state.input_text or " ", expected, metadata=state.metadata)
    work = ScoredWork(case, ConversationState(case.id, _events(state.messages)))

    def ask() -> Any:
        agent = scoring_agent({"judge": with_model(judge, grader)}, work, ["judge"], timeout)
        with Conversation(agent, runtime=runtime) as conversation:
            conversation.send_message("Score a sample.")
            return scores_of(conversation.run().raise_for_status().events)["judge"]

    judgement = await bridge.work(ask, abandon=True)
    if grader.limit is not None:
        raise grader.limit
    if judgement.error:
        raise ToolError(f"The judge failed: {judgement.error}")
    return judgement


# --- messages, both ways ---


def _calls(events: Sequence[ev.AnyEvent]) -> dict[str, ToolCall]:
    answers = [one for one in events if isinstance(one, ev.AssistantReplied | ev.CodeCallsMade)]
    return {call.id: call for answer in answers for call in answer.calls}


def _id(call: ToolCall) -> str:
    return call.provider_id or call.id


def _error(result: ToolResult) -> Any:
    if not result.is_error:
        return None
    return _part("inspect_ai.tool").ToolCallError("unknown", result.text)


def _chat(events: Sequence[ev.AnyEvent]) -> list[Any]:
    """Return a conversation as messages of inspect; nested calls of scripts are left out, as for
    the model."""
    models, tools = _part("inspect_ai.model"), _part("inspect_ai.tool")
    calls = _calls([one for one in events if isinstance(one, ev.AssistantReplied)])
    messages: list[Any] = []
    for event in events:
        match event:
            case ev.MessageAdded():
                messages.append(models.ChatMessageUser(content=event.text))
            case ev.AssistantReplied():
                content: Any = event.text
                if event.reasoning:
                    content = [models.ContentReasoning(reasoning=event.reasoning)]
                    content += [models.ContentText(text=event.text)] if event.text else []
                tool_calls = [
                    tools.ToolCall(_id(one), one.name, one.arguments) for one in event.calls
                ]
                messages.append(
                    models.ChatMessageAssistant(
                        content=content,
                        tool_calls=tool_calls or None,
                        model=event.model or None,
                        source="generate",
                    )
                )
            case ev.ToolCallFinished() if event.call_id in calls:
                call = calls[event.call_id]
                messages.append(
                    models.ChatMessageTool(
                        content=event.result.text,
                        tool_call_id=_id(call),
                        function=call.name,
                        error=_error(event.result),
                    )
                )
            case _:
                pass
    return messages


def _events(messages: Sequence[Any]) -> list[ev.AnyEvent]:
    """Return messages of inspect as the events of a finished conversation, for judges."""
    events: list[ev.AnyEvent] = []
    ids: dict[str, str] = {}
    for message in messages:
        seq = len(events) + 1
        same: dict[str, Any] = {"seq": seq, "id": f"{seq}", "timestamp": datetime.now(UTC)}
        if message.role == "user":
            events.append(ev.MessageAdded(content=(TextContent(message.text),), **same))
        elif message.role == "assistant":
            calls = tuple(
                ToolCall(f"{seq}.{at}", one.function, dict(one.arguments), one.id)
                for at, one in enumerate(message.tool_calls or ())
            )
            ids.update({call.provider_id: call.id for call in calls})
            events.append(ev.AssistantReplied(text=message.text, calls=calls, based_on=seq, **same))
        elif message.role == "tool" and message.tool_call_id in ids:
            text = message.text if message.error is None else message.error.message
            result = ToolResult((TextContent(text),), is_error=message.error is not None)
            id = ids[message.tool_call_id]
            events.append(ev.ToolCallFinished(call_id=id, result=result, **same))
    return events


def _messages(request_messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the messages of a Chat Completions request as messages of inspect."""
    models, tools = _part("inspect_ai.model"), _part("inspect_ai.tool")
    messages: list[Any] = []
    names: dict[str, str] = {}
    for message in request_messages:
        content = _content(message.get("content"))
        match message["role"]:
            case "assistant":
                calls: list[Any] = []
                for one in message.get("tool_calls") or ():
                    name, text = one["function"]["name"], one["function"]["arguments"]
                    names[one["id"]] = name
                    try:
                        arguments: Any = decode_json(text)
                    except ValueError:
                        arguments = {}
                    calls.append(tools.ToolCall(one["id"], name, arguments))
                messages.append(
                    models.ChatMessageAssistant(content=content, tool_calls=calls or None)
                )
            case "tool":
                id = message["tool_call_id"]
                name = names.get(id)
                messages.append(
                    models.ChatMessageTool(content=content, tool_call_id=id, function=name)
                )
            case "system" | "developer":
                messages.append(models.ChatMessageSystem(content=content))
            case _:
                messages.append(models.ChatMessageUser(content=content))
    return messages


def _content(content: Any) -> Any:
    """Return the content of a message: a text, or a list of texts and pictures."""
    if not isinstance(content, list):
        return content or ""
    models = _part("inspect_ai.model")
    blocks: list[Any] = []
    for part in cast("list[dict[str, Any]]", content):
        if part["type"] == "text":
            blocks.append(models.ContentText(text=part["text"]))
        elif part["type"] == "image_url":
            blocks.append(models.ContentImage(image=part["image_url"]["url"]))
        else:
            raise BadResponse(f"inspect's models take no {part['type']} from a Holdfast agent.")
    return blocks


def _tool_info(function: dict[str, Any]) -> Any:
    tools = _part("inspect_ai.tool")
    schema: dict[str, Any] = {"type": "object", **function.get("parameters", {})}
    return tools.ToolInfo(
        name=function["name"],
        description=function.get("description", ""),
        parameters=tools.ToolParams.model_validate(schema),
    )


def _completion(output: Any, model: str) -> Completion:
    """Return an answer of inspect's model. Raises `BadResponse`."""
    if output.error or not output.choices:
        raise BadResponse(f"inspect's model failed: {output.error or 'no answer'}")
    choice, usage = output.choices[0], output.usage
    message = choice.message
    content: Any = message.content
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    thoughts = [one.reasoning for one in parts if one.type == "reasoning" and one.reasoning]
    calls = tuple(
        ToolCall("", one.function, dict(one.arguments), one.id, invalid=one.parse_error or "")
        for one in message.tool_calls or ()
    )
    used = Usage()
    if usage is not None:
        cache_read, cache_write = (
            usage.input_tokens_cache_read or 0,
            usage.input_tokens_cache_write or 0,
        )
        used = Usage(
            usage.input_tokens + cache_read + cache_write,
            usage.output_tokens,
            cache_read,
            cache_write,
        )
    return Completion(
        message.text,
        "\n".join(thoughts),
        calls,
        used,
        _STOP_REASONS.get(choice.stop_reason) or choice.stop_reason or "stop",
        output.model or model,
        openai_chat.name,
    )
