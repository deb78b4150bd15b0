"""Skills of A2A agents as tools. `A2AClient` reads the agents' cards and makes each skill a `Tool`.

The a2a-sdk package implements the protocol (1.0 and 0.3, over JSON-RPC and HTTP+JSON). The package
is async, runs on one private thread, and is imported at the first connection.
Needs `pip install 'holdfast[a2a]'`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.a2a.config import RemoteAgent, read_agents
from holdfast.tools.a2a.connection import A2AConnections, AgentCardSummary
from holdfast.tools.a2a.parts import AgentAnswer, AgentSkill, parts_of, result_of, schema_of
from holdfast.tools.context import ToolContext
from holdfast.tools.service_client import (
    Discovered,
    ServiceClient,
    ServiceSource,
    add_distinct,
)
from holdfast.tools.tool import Tool

_log = logging.getLogger(__name__)
# Per agent. The conversation whose last call is the oldest is forgotten first.
_MAX_REMEMBERED_CONVERSATIONS = 1000
# The errors after which a task no longer waits for an answer.
_ENDS_TASK = ("not_found", "validation", "timeout", "cancelled")


class A2ATool(Tool):
    """A skill of an A2A agent, named `agent.skill`. Made by `A2AClient`. `remote_name` is the
    skill's id.

    Calls of one conversation share a context at the agent. After a question of the agent, the
    next call continues the same task. The result's `meta` has `taskId`, `contextId` and `state`.
    """

    tool_type = "a2a_tool"

    def __init__(self, source: A2ASource, skill: AgentSkill) -> None:
        super().__init__(
            f"{source.id}.{skill.tool}", skill.description, None, schema_of(skill), category="a2a"
        )
        self.remote_name = skill.id
        self._source = source

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Send the arguments to the agent and return its answer. A task that the agent itself
        reports as failed is returned with `is_error`. Raises `ToolError`."""
        return self._source.call(self.name, self.remote_name, arguments, context)


class WaitingTask(msgspec.Struct, frozen=True):
    """A task that waits for an answer, or (`auth-required`) for an authorization by the user."""

    task_id: str
    state: str
    question: str


class AgentMemory:
    """The contexts and waiting tasks of one agent, by conversation. Thread-safe and bounded.

    The memory outlives connections and conversations, so that a reopened conversation continues a
    waiting task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: OrderedDict[str, str] = OrderedDict()
        self._pending: dict[str, dict[str, WaitingTask]] = {}

    def take(self, conversation: str, skill: str) -> tuple[str, WaitingTask | None]:
        """Return the conversation's context ("" if it has none) and remove and return the
        skill's waiting task, which only one call may continue."""
        with self._lock:
            waiting = self._pending.get(conversation, {}).pop(skill, None)
            return self._contexts.get(conversation, ""), waiting

    def keep(
        self, conversation: str, skill: str, context_id: str, pending: WaitingTask | None
    ) -> None:
        if not conversation or not context_id:
            return
        with self._lock:
            self._contexts[conversation] = context_id
            self._contexts.move_to_end(conversation)
            if pending is not None:
                self._pending.setdefault(conversation, {})[skill] = pending
            while len(self._contexts) > _MAX_REMEMBERED_CONVERSATIONS:
                self._pending.pop(self._contexts.popitem(last=False)[0], None)


class A2ASource(ServiceSource):
    """One A2A agent as a `Source`. Made by `A2AClient`. Works again after `close`.

    `left_out` has the reasons of skills that cannot be tools, by tool name.
    """

    label = "A2A agent"
    kind = "a2a"

    def __init__(self, id: str, remote: RemoteAgent, connections: A2AConnections) -> None:
        self.id = id
        self.lazy = remote.lazy
        self.left_out: dict[str, str] = {}
        self._remote = remote
        self._connections = connections
        self._memory = AgentMemory()

    def begin_discovery(self) -> Future[AgentCardSummary]:
        """Start to fetch the card without waiting for it. Raises `ToolError`."""
        return self._connections.submit(
            self.id, self._remote, lambda connection: connection.discover()
        )

    def discovered(self, future: Future[AgentCardSummary]) -> Discovered:
        """Wait for the card. Return its skills as tools, and the reasons of unusable skills."""
        agent = f"A2A agent {self.id!r}"
        try:
            card = future.result()
        except CancelledError:
            problem = f"{agent}: the client was closed before it was asked."
            raise ToolError(problem, "network") from None
        tools: list[Tool] = []
        left_out: dict[str, str] = {}
        for skill in card.skills:
            try:
                if not skill.id:
                    raise ConfigurationError("It has no id.")
                tools.append(A2ATool(self, skill))
            except ConfigurationError as error:
                left_out[f"{self.id}.{skill.tool}"] = (
                    f"{agent} has a skill that cannot be used. {error}"
                )
        distinct: dict[str, Tool] = {}
        left_out |= add_distinct(distinct, tools, agent)
        if not card.skills:
            left_out[self.id] = f"{agent} names no skill in its card, so it has no tools."
        self.left_out = left_out
        return list(distinct.values()), left_out

    def watch(self, on_change: Callable[[], None]) -> None:
        """Do nothing: A2A agents cannot report that their skills changed."""

    def begin_check(self) -> Future[str]:
        """Start to fetch the card. Raises `ToolError`."""
        return self._connections.submit(
            self.id, self._remote, lambda connection: connection.greet()
        )

    def close(self) -> None:
        """Cancel running calls and close the connections, within some seconds. Idempotent. The
        conversations' contexts and waiting tasks are kept."""
        self._connections.leave(self.id)

    def call(
        self, name: str, skill: str, arguments: dict[str, Any], context: ToolContext
    ) -> ToolResult:
        """Send the arguments of the tool `name` to a skill. Raises `ToolError`."""
        context.cancelled.raise_if_set()
        conversation = context.conversation_id
        parts = parts_of(name, arguments)
        context_id, pending = self._memory.take(conversation, skill)
        # The same id for every attempt of one call, so that the agent can detect a repetition.
        id = uuid.uuid4()
        if conversation and context.call_id:
            id = uuid.uuid5(uuid.NAMESPACE_OID, context.idempotency_key)
        message = {
            "messageId": str(id),
            "role": "ROLE_USER",
            "parts": parts,
            "metadata": {"skillId": skill},  # A2A 1.0 has no field for the skill
        }
        if context_id:
            message["contextId"] = context_id
        if pending is not None:
            message["taskId"] = pending.task_id
        try:
            answer = self._follow(name, message, pending, context)
        except ToolError as error:
            if pending is not None and error.error_type not in _ENDS_TASK:
                self._memory.keep(conversation, skill, context_id, pending)  # it still waits
            raise
        waiting = None
        if answer.state in ("input-required", "auth-required") and answer.context_id:
            waiting = WaitingTask(answer.task_id, answer.state, answer.question)
        self._memory.keep(conversation, skill, answer.context_id, waiting)
        return result_of(self.id, name, answer, bool(conversation) and waiting is not None)

    def _follow(
        self, name: str, message: dict[str, Any], pending: WaitingTask | None, context: ToolContext
    ) -> AgentAnswer:
        """Wait on the caller's thread for the answer, and report progress meanwhile."""
        answered = "" if pending is None else pending.question
        look_first = pending is not None and pending.state == "auth-required"
        limit = self._remote.call_timeout
        deadline = None if limit is None else time.monotonic() + limit
        progress: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: the call is over
        future = self._connections.submit(
            self.id,
            self._remote,
            lambda connection: connection.call(message, answered, look_first, progress.put),
        )
        future.add_done_callback(lambda _: progress.put(None))
        remove_callback = context.cancelled.add_callback(lambda: future.cancel() and None)
        try:
            while True:
                seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                text = progress.get(timeout=seconds)
                if text is None:
                    return future.result()
                try:
                    context.report_progress(text)
                except Exception:
                    _log.exception("progress of %r could not be reported", name)
        except queue.Empty:
            raise ToolTimeout(
                f"{name!r} did not answer within {limit:g} s; the agent was told to cancel. Its"
                " effect may have happened."
            ) from None
        except CancelledError:
            if context.cancelled:
                problem = f"{name!r} was cancelled; its effect may have happened."
                raise ToolCancelled(problem) from None
            raise ToolError(
                f"{name!r}: the client was closed during the call, whose effect may have happened.",
                "network",
            ) from None
        finally:
            remove_callback()
            # Needed when the wait was interrupted; a finished future ignores it.
            future.cancel()


class A2AClient(ServiceClient[A2ASource]):
    """A client of A2A agents that offers each of their skills as a `Tool` named `agent.skill`.

    Use `tools += A2AClient(config)` or `client.tools()`. Thread-safe.

    The first use fetches all cards at once. If an agent fails, only its own tools are missing:
    `errors` has the reason by agent id, and a warning is logged. An unusable skill has its reason
    under its tool's name. The client tries a failed agent again after `close`.

    A call honours `context.cancelled`. After a cancel or a timeout the client asks the agent to
    cancel the task.

    Keys of one agent in `config`:

        url: The agent's address, below which its card is at `/.well-known/agent-card.json`, or
            the address of the card, if it ends in `.json`.
        token: A bearer token.
        headers: Headers of every request.
        origins: Further origins that may get the token and the headers, such as
            `["https://host:8443"]`.
        timeout: Seconds to fetch the card, instead of the client's `timeout`.
        call_timeout: Seconds for one call, instead of the client's `call_timeout`.
        lazy: True if a `ToolManager` fetches the card only when one of the agent's skills is named.

    Token and headers go only to the scheme, host and port of `url` and of `origins`. A card without
    an endpoint there is refused, because requests without credentials would be useless. Redirects
    are not followed. Proxies and credentials from the environment are not used.

    The client object remembers the context and the waiting task of each conversation, also after
    `close`. For each agent these are the 1000 conversations that called last. Another process does
    not have this memory. There a conversation begins a new context, and the answer to an earlier
    question starts a new task without the question.

    Args:
        config: `{id: agent}`; None or an empty mapping gives no tools.
        timeout: Seconds to fetch the card of one agent.
        call_timeout: Seconds for one call; None for no limit.

    Raises `ConfigurationError`, which names the agent and the wrong key.
    """

    label = A2ASource.label

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30.0,
        call_timeout: float | None = 600.0,
    ) -> None:
        agents = read_agents(config, timeout, call_timeout)
        connections = self._connections = A2AConnections()
        super().__init__({id: A2ASource(id, agent, connections) for id, agent in agents.items()})

    def _disconnect(self) -> None:
        self._connections.close()
