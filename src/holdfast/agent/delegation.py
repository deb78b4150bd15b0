"""Delegation: tools with which an agent gives work to other agents in conversations of their
own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, Protocol, cast

from holdfast.agent.agents_files import SubAgent
from holdfast.agent.directory import AgentDirectory, parameter, parameters
from holdfast.content import ToolResult
from holdfast.errors import ToolError
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.arguments import is_whole, wrong
from holdfast.tools.policy import LOCAL_READ

CHILD = "holdfast/child"
"""The key of the child's data in a result's meta.

The data are `id`, `agent`, `status`, `steps`, `cost`, `inputTokens` and `outputTokens`. `seq` is
the child's last event that the result covers; `background` is true if the child runs beside the
call.
"""
CHILDREN = "holdfast/children"
"""The key of a list of such data, for results about several children."""

Isolation = Literal["worktree", "copy"]
ISOLATIONS: tuple[Isolation, ...] = ("worktree", "copy")
"""The kinds of a child's own folder."""

LONGEST_WAIT = 3600.0  # the maximum of delegate_collect's timeout


class Delegates(AgentDirectory):
    """The agents that an agent may delegate to, by name, with bounds.

    A plain mapping of agents gets the default bounds.

    Args:
        agents: Agents, `SubAgent` objects or paths of sub-agent files, by name.
        max_depth: Levels of children below the first conversation.
        max_running: Children of one conversation that work at the same time.
        detached: True lets background children go on when their parent is closed.
        send_to: Ids of conversations outside the tree that `send_to` may address.
        max_messages: Messages that a conversation may send to others until the user speaks again.
        isolation: The folder in which each child works: "worktree" has what git tracks, "copy" all
            of the parent's, None is the parent's own. A sub-agent's own setting goes before.
    """

    def __init__(
        self,
        agents: Any,
        max_depth: int = 3,
        max_running: int = 8,
        *,
        detached: bool = False,
        send_to: Sequence[str] = (),
        max_messages: int = 50,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__("delegates", agents)
        if isolation not in (None, *ISOLATIONS):
            raise wrong("Delegates: isolation", '"worktree", "copy" or None', isolation)
        self.isolation: Isolation | None = isolation
        self.max_depth = max_depth
        self.max_running = max_running
        self.max_messages = max_messages
        for name in ("max_depth", "max_running", "max_messages"):
            if not is_whole(value := getattr(self, name), 1):
                raise wrong(f"Delegates: {name}", "a whole number from 1", value)
        ids: Sequence[Any] = send_to
        if isinstance(ids, str) or not all(isinstance(id, str) and id for id in ids):
            raise wrong("Delegates: send_to", "a list of ids of conversations", ids)
        self.detached = bool(detached)
        self.send_to = tuple(send_to)

    def for_other_owner(self) -> Delegates:
        """Return a copy with the same agents and bounds, for another owner."""
        return self.with_agents(self.entries)

    def with_agents(self, agents: Any) -> Delegates:
        """Return a copy with these agents and the same settings, without an owner."""
        team = copy(self)
        AgentDirectory.__init__(team, self.argument, agents)
        return team

    def isolation_of(self, name: str) -> Isolation | None:
        """Return the kind of folder in which a child of that agent works."""
        one = self.by_name.get(name)
        own = one.isolation if isinstance(one, SubAgent) else None
        return own or self.isolation


class ChildManager(Protocol):
    """The keeper of one conversation's children; the delegation tools call its methods."""

    def give(
        self,
        context: ToolContext,
        delegates: Delegates,
        agent: str,
        task: str,
        background: bool,
        resume: str,
    ) -> ToolResult: ...
    def poll(self, delegates: Delegates, ids: Sequence[str]) -> ToolResult: ...
    def collect(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], timeout: float
    ) -> ToolResult: ...
    def cancel(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str]
    ) -> ToolResult: ...
    def tell(
        self, context: ToolContext, delegates: Delegates, conversation: str, text: str
    ) -> ToolResult: ...
    def settle(
        self, context: ToolContext, delegates: Delegates, ids: Sequence[str], applies: bool
    ) -> ToolResult: ...


def _children_of(context: ToolContext) -> ChildManager:
    if context.team is None:
        raise ToolError(
            "This call belongs to no conversation, so no work can be delegated.", retryable=False
        )
    return cast("ChildManager", context.team())


class _DelegationCallbacks(NamedTuple):
    """The callbacks of the delegation tools."""

    delegates: Delegates

    def delegate(
        self,
        context: ToolContext,
        agent: str,
        task: str,
        background: bool = False,
        resume: str = "",
    ) -> ToolResult:
        if not task.strip():
            raise ToolError("task is empty; describe the work.", "validation")
        children = _children_of(context)
        return children.give(context, self.delegates, agent, task, background, resume)

    def delegate_poll(self, context: ToolContext, ids: Sequence[str] = ()) -> ToolResult:
        return _children_of(context).poll(self.delegates, ids)

    def delegate_collect(
        self, context: ToolContext, ids: Sequence[str] = (), timeout: float = 600.0
    ) -> ToolResult:
        return _children_of(context).collect(context, self.delegates, ids, timeout)

    def delegate_cancel(self, context: ToolContext, ids: list[str]) -> ToolResult:
        return _children_of(context).cancel(context, self.delegates, ids)

    def send_to(self, context: ToolContext, conversation: str, text: str) -> ToolResult:
        if not text.strip():
            raise ToolError("text is empty; write the message.", "validation")
        return _children_of(context).tell(context, self.delegates, conversation, text)

    def delegate_apply(self, context: ToolContext, ids: list[str]) -> ToolResult:
        return _children_of(context).settle(context, self.delegates, ids, True)

    def delegate_drop(self, context: ToolContext, ids: list[str]) -> ToolResult:
        return _children_of(context).settle(context, self.delegates, ids, False)


# All calls may be repeated: a child's id is derived from the call, so a repeated call finds the
# existing child.
_REPEATABLE = ToolAnnotations(destructive=False, idempotent=True, open_world=False)
_WRITES = ToolAnnotations(destructive=True, idempotent=True, open_world=False)
_IDS = parameter("array", "Ids of conversations; none for all.", items={"type": "string"})
_SOME_IDS = {**_IDS, "description": "Ids of conversations.", "minItems": 1}


def _tool(
    callback: Any,
    about: str,
    required: Sequence[str] = (),
    annotations: ToolAnnotations = _REPEATABLE,
    **properties: dict[str, Any],
) -> Tool:
    # Calls of `delegate` run in parallel. The other calls depend on the calls before them, so they
    # keep their order.
    return Tool(
        callback.__name__,
        about,
        callback,
        parameters(required, **properties),
        annotations=annotations,
        category="delegation",
        parallel=callback.__name__ == "delegate",
    )


def make_delegation(delegates: Delegates) -> tuple[Tool, ...]:
    """Return the delegation tools for these agents."""
    callbacks = _DelegationCallbacks(delegates)
    tools = [
        _tool(
            callbacks.delegate,
            "Give a task to another agent, who works on it in a conversation of its own, and get"
            " its answer. It knows nothing of this conversation: say all that it needs. Several"
            " calls in one answer are worked on at the same time. With background, go on meanwhile:"
            " its answer is sent to you as a message. An answer ends with the id of the agent's"
            " conversation; with resume it goes on there, and knows what it did.\n\nAgents:\n"
            + delegates.listing(),
            ("agent", "task"),
            agent=parameter("string", "The agent that does the work.", enum=list(delegates)),
            task=parameter("string", "The work, and what the answer must contain."),
            background=parameter("boolean", "Do not wait for the answer.", default=False),
            resume=parameter(
                "string",
                "The id of the conversation to go on with; empty for a new one.",
                default="",
            ),
        ),
        _tool(
            callbacks.delegate_poll,
            "Report the progress of agents that work in the background. Does not wait.",
            annotations=LOCAL_READ,
            ids=_IDS,
        ),
        _tool(
            callbacks.delegate_collect,
            "Wait for agents that work in the background, and get their answers, which are then"
            " not sent as messages.",
            ids=_IDS,
            timeout=parameter(
                "number", "Seconds to wait at most.", minimum=0, maximum=LONGEST_WAIT, default=600
            ),
        ),
        _tool(
            callbacks.delegate_cancel,
            "Stop agents that work in the background. What they have done stays done.",
            ("ids",),
            ids=_SOME_IDS,
        ),
        _tool(
            callbacks.send_to,
            "Send a message to another conversation: to an agent that you gave work, or to the one"
            " that gave you this work. An answer, if there is one, comes as a message.",
            ("conversation", "text"),
            conversation=parameter(
                "string", "Its id, or parent for the one that gave you this work."
            ),
            text={"type": "string"},
        ),
    ]
    if any(delegates.isolation_of(name) for name in delegates):
        tools += [
            _tool(
                callbacks.delegate_apply,
                "Take the changes that agents made in folders of their own over into your folder.",
                ("ids",),
                _WRITES,
                ids=_SOME_IDS,
            ),
            _tool(
                callbacks.delegate_drop,
                "Throw away the changes that agents made in folders of their own, with these"
                " folders.",
                ("ids",),
                _WRITES,
                ids=_SOME_IDS,
            ),
        ]
    return tuple(tools)
