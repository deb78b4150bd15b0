"""Skills of A2A agents as tools: `A2AClient` reads their cards and makes each skill a `Tool`.

The protocol (1.0 and 0.3, over JSON-RPC and HTTP+JSON) is the a2a-sdk package's, which is async; it
lives on one private thread. Nothing of it is imported before the first connection. Needs `pip
install 'holdfast[a2a]'`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Literal

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.a2a.config import Remote, read_agents
from holdfast.tools.a2a.link import Card, Hub
from holdfast.tools.a2a.parts import Answer, Skill, parts_of, result_of, schema_of
from holdfast.tools.context import ToolContext
from holdfast.tools.names import wire_name
from holdfast.tools.sources import Health
from holdfast.tools.tool import Tool

_log = logging.getLogger(__name__)
_REMEMBERED = (
    1000  # conversations for each agent; the one that was quiet longest is forgotten first
)


# --- tools ---


class A2ATool(Tool):
    """A skill of an A2A agent, `agent.skill`. Made by `A2AClient`.

    Calls of one conversation share the agent's context, and one that follows a question of the
    agent goes on with the same task. The result's `meta` has `taskId`, `contextId` and `state`.
    `remote_name` is the skill's id.
    """

    tool_type = "a2a_tool"

    def __init__(self, source: A2ASource, skill: Skill) -> None:
        super().__init__(
            f"{source.id}.{skill.tool}", skill.description, None, schema_of(skill), category="a2a"
        )
        self.remote_name = skill.id
        self._source = source

    def call(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Ask the agent. Raises `ToolError`; a task that the agent itself reports as failed is
        returned, with `is_error`."""
        return self._source._call(self.name, self.remote_name, arguments, context)  # pyright: ignore[reportPrivateUsage]: one room


# --- what is kept of a conversation ---


class Pending(msgspec.Struct, frozen=True):
    """A task that waits for us: for an answer, or (`auth-required`) for the user."""

    task_id: str
    state: str
    question: str


class Memory:
    """Which context of one agent belongs to which conversation, and which of its tasks wait there.
    Thread-safe, bounded. It outlives connections and conversations, for a conversation that is
    opened again goes on with what waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: OrderedDict[str, str] = OrderedDict()
        self._pending: dict[str, dict[str, Pending]] = {}

    def take(self, conversation: str, skill: str) -> tuple[str, Pending | None]:
        """The conversation's context ("": none yet), and the task of that skill that waits: only
        one call goes on with it."""
        with self._lock:
            return self._contexts.get(conversation, ""), self._pending.get(conversation, {}).pop(
                skill, None
            )

    def keep(self, conversation: str, skill: str, context_id: str, pending: Pending | None) -> None:
        if not conversation or not context_id:
            return
        with self._lock:
            self._contexts[conversation] = context_id
            self._contexts.move_to_end(conversation)
            if pending is not None:
                self._pending.setdefault(conversation, {})[skill] = pending
            while len(self._contexts) > _REMEMBERED:
                self._pending.pop(self._contexts.popitem(last=False)[0], None)


# --- one agent ---


class A2ASource:
    """One A2A agent as a `Source` (see `holdfast.tools.sources`). Made by `A2AClient`. Works again
    after `close`."""

    kind: Literal["a2a"] = "a2a"

    def __init__(self, id: str, remote: Remote, hub: Hub) -> None:
        self.id = id
        self.lazy = remote.lazy
        self.left_out: dict[str, str] = {}
        self._remote = remote
        self._hub = hub
        self._memory = Memory()

    def discover(self) -> list[Tool]:
        """Fetch the agent's card, within its `timeout`, and make each skill a tool. Raises
        `ToolError`. A skill that cannot be a tool is left out: `left_out` then says why, by tool
        name, and a warning is logged."""
        return self._usable(self._begin().result())

    def _begin(self) -> Future[Card]:
        return self._hub.submit(self.id, self._remote, lambda link: link.discover())

    def _usable(self, card: Card) -> list[Tool]:
        tools: dict[str, Tool] = {}
        left_out: dict[str, str] = {}
        for skill in card.skills:
            name = f"{self.id}.{skill.tool}"
            try:
                if not skill.id:
                    raise ConfigurationError("It has no id.")
                tool = A2ATool(self, skill)
            except ConfigurationError as error:
                left_out[name] = f"A2A agent {self.id!r} has a skill that cannot be used. {error}"
                continue
            if (
                wire_name(name) in tools
            ):  # an agent would refuse all of them for the sake of this one
                left_out[name] = (
                    f"A2A agent {self.id!r}: {name!r} is left out: its name is taken by another"
                    " skill."
                )
                continue
            tools[wire_name(name)] = tool
        if not card.skills:
            left_out[self.id] = (
                f"A2A agent {self.id!r} names no skill in its card, so it has no tools."
            )
        for why in left_out.values():
            _log.warning("%s", why)
        self.left_out = left_out
        return list(tools.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """An A2A agent has no way of saying that its skills have changed: `changed` is never
        called."""

    def health(self, timeout: float) -> Health:
        """Ask for the card, within `timeout` seconds. Does not raise."""
        started = time.monotonic()
        future: Future[Card] | None = None
        try:
            future = self._begin()
            card = future.result(timeout)
        except (Exception, CancelledError) as error:
            detail = str(error) or f"A2A agent {self.id!r} did not answer within {timeout:g} s."
            return Health(self.id, False, time.monotonic() - started, detail)
        finally:
            if future is not None:
                future.cancel()
        return Health(
            self.id,
            True,
            time.monotonic() - started,
            f"{card.name} {card.version}, {card.spoken}".strip(),
        )

    def close(self) -> None:
        """Cancel the calls under way and close the connections. Idempotent; takes some seconds at
        most. The conversations' contexts and what waits in them are kept."""
        self._hub.leave(self.id)

    def _call(
        self, name: str, skill: str, arguments: dict[str, Any], context: ToolContext
    ) -> ToolResult:
        context.cancelled.raise_if_set()
        conversation = context.conversation_id
        parts = parts_of(name, arguments)
        context_id, pending = self._memory.take(conversation, skill)
        known = conversation and context.call_id
        message = {
            # The same for every attempt of one call, so that an agent that minds can tell a
            # repetition.
            "messageId": str(
                uuid.uuid5(uuid.NAMESPACE_OID, context.idempotency_key) if known else uuid.uuid4()
            ),
            "role": "ROLE_USER",
            "parts": parts,
            "metadata": {"skillId": skill},  # A2A 1.0 has no field for it
        }
        if context_id:
            message["contextId"] = context_id
        if pending is not None:
            message["taskId"] = pending.task_id
        try:
            answer = self._follow(name, message, pending, context)
        except ToolError as error:
            if pending is not None and error.error_type not in (
                "not_found",
                "validation",
                "timeout",
                "cancelled",
            ):
                self._memory.keep(conversation, skill, context_id, pending)  # it still waits
            raise
        waits = answer.state in ("input-required", "auth-required")
        still = (
            Pending(answer.task_id, answer.state, answer.question)
            if waits and answer.context_id
            else None
        )
        self._memory.keep(conversation, skill, answer.context_id, still)
        return result_of(self.id, name, answer, bool(conversation) and still is not None)

    def _follow(
        self, name: str, message: dict[str, Any], pending: Pending | None, context: ToolContext
    ) -> Answer:
        """On the caller's thread: wait for the answer, telling what comes before it."""
        answered, look_first = (
            (pending.question, pending.state == "auth-required")
            if pending is not None
            else ("", False)
        )
        limit = self._remote.call_timeout
        deadline = None if limit is None else time.monotonic() + limit
        heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        future = self._hub.submit(
            self.id, self._remote, lambda link: link.call(message, answered, look_first, heard.put)
        )
        future.add_done_callback(lambda _: heard.put(None))
        forget = context.cancelled.add_callback(lambda: future.cancel() and None)
        try:
            while (
                text := heard.get(
                    timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0)
                )
            ) is not None:
                try:
                    context.report_progress(text)
                except Exception:
                    _log.exception("progress of %r could not be reported", name)
            return future.result()
        except queue.Empty:
            raise ToolTimeout(
                f"{name!r} did not answer within {limit:g} s; the agent was told to cancel. Its"
                " effect may have happened."
            ) from None
        except CancelledError:
            if context.cancelled:
                raise ToolCancelled(
                    f"{name!r} was cancelled; its effect may have happened."
                ) from None
            raise ToolError(
                f"{name!r}: the client was closed during the call, whose effect may have happened.",
                "network",
            ) from None
        finally:
            forget()
            # also when the wait was interrupted; nothing to do for one that is done
            future.cancel()

    def __repr__(self) -> str:
        return f"A2ASource({self.id!r})"


# --- the client ---


class A2AClient:
    """The skills of A2A agents, each as a tool `agent.skill`: `tools += A2AClient(config)`, or
    `client.tools()`. Thread-safe.

    `config` is `{id: agent}`; None or an empty one gives no tools. An agent is `{"url"}`: its
    address, below which its card stands at `/.well-known/agent-card.json`, or the card's own
    address, if that ends in `.json`. Further keys: `token` (sent as a Bearer token), `headers`,
    `origins`, `timeout` and `call_timeout` (in place of the client's), `lazy` (for a `ToolManager`:
    ask only when named).

    Token and headers go to the url's scheme, host and port alone, and to those of `origins`
    (`["https://host:8443"]`). A card that names no endpoint there is refused, since nothing could
    be sent there without them. Redirects are not followed; no proxy or credential is taken from the
    environment.

    The first use fetches all cards at once, each within `timeout` seconds. An agent that fails
    harms only itself: `errors` then says why, by agent id (or tool name, for a skill that cannot be
    used), and a warning is logged; it is tried again after `close`. A call takes at most
    `call_timeout` seconds (None: no limit) and heeds `context.cancelled`; either way the agent is
    told to cancel the task.

    Which context and which waiting task belong to a conversation is known as long as this object
    lives, also over `close` and for a conversation that is opened again, for the 1000 conversations
    of each agent that called last. Another process does not know it: there a conversation begins a
    new context, and the answer to a question that was asked before goes to a new task, without the
    question.

    Raises `ConfigurationError` naming the agent and the key that does not fit.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30.0,
        call_timeout: float | None = 600.0,
    ) -> None:
        self._hub = Hub()
        self._sources = [
            A2ASource(name, agent, self._hub)
            for name, agent in read_agents(config, timeout, call_timeout).items()
        ]
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()  # for the two below
        self._tools: list[Tool] | None = None
        self._closed = 0  # how often: what was found before a close is not kept after it
        self._discovery = threading.Lock()  # one thread discovers, the others wait for it

    def sources(self) -> list[A2ASource]:
        """Each agent by itself, in the order of the config: for `ToolManager.add_source`. Connects
        to none."""
        return list(self._sources)

    def tools(self) -> list[Tool]:
        """The tools of all agents that could be asked, in the order of the config, lazy ones
        included. Connects at the first use."""
        with self._discovery:
            with self._lock:
                found, closed = self._tools, self._closed
            if found is None:
                found, errors = self._discover()
                with self._lock:
                    self.errors = errors
                    if self._closed == closed:
                        self._tools = found
            return list(found)

    def _discover(self) -> tuple[list[Tool], dict[str, str]]:
        tools: list[Tool] = []
        errors: dict[str, str] = {}
        begun: list[tuple[A2ASource, Future[Card] | ToolError]] = []
        for source in self._sources:
            try:
                begun.append((source, source._begin()))  # pyright: ignore[reportPrivateUsage]: one room
            except ToolError as error:
                begun.append((source, error))
        for source, card in begun:
            try:
                if isinstance(card, ToolError):
                    raise card
                tools += source._usable(card.result())  # pyright: ignore[reportPrivateUsage]: one room
                errors |= source.left_out
            except (ToolError, CancelledError) as error:
                errors[source.id] = (
                    str(error)
                    or f"A2A agent {source.id!r}: the client was closed before it was asked."
                )
                _log.warning("%s", errors[source.id])
        return tools, errors

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools())

    def close(self) -> None:
        """End all calls and connections, within some seconds. Idempotent; the next use connects
        again."""
        with self._lock:
            self._tools = None
            self._closed += 1
        self._hub.close()

    def __enter__(self) -> A2AClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"A2AClient({', '.join(source.id for source in self._sources)})"
