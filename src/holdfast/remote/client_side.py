"""The parts of a remote conversation that run in this program."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.errors import HoldfastError, StoreError
from holdfast.events import ToolDefinition
from holdfast.remote.agent_requests import CreateReply, agent_request, created, tools_request
from holdfast.remote.calls import ClientCalls
from holdfast.remote.follower import StreamFollower
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.questions import ClientQuestions
from holdfast.remote.workspace import RemoteWorkspace
from holdfast.tools.secrets import Secrets

_log = logging.getLogger("holdfast.remote")

Definitions = tuple[ToolDefinition, ...] | None


class ClientSide:
    """The thread that follows a conversation's events, the calls of the client's tools, and the
    questions to its user. `options` are those of the `RemoteConversation`; `answer` sends the
    answer to a question."""

    def __init__(
        self,
        copy: JournalCopy,
        workspace: RemoteWorkspace,
        options: dict[str, Any],
        answer: Callable[[str, Any, str], None],
    ) -> None:
        self._copy = copy
        self._workspace = workspace
        self._options = options
        self.has_tools = False
        """True if the client runs tools of the conversation."""
        self.calls: ClientCalls | None = None
        self._server_definitions: Definitions = None
        self.questions = ClientQuestions(copy, options["on_question"], answer)
        self.follower = StreamFollower(
            copy, self.update, options["on_delta"], options["on_progress"]
        )

    def send_agent(self, agent: Agent) -> CreateReply:
        """Send another agent, with which the conversation continues. `adopt` it next."""
        head = self._copy.fold.agent
        tools = tools_request(agent, self._workspace, self._options["client_tools"])
        if self.calls is not None:  # before the request: the server may offer calls at once
            self.calls.use(agent, 0 if head is None else head.seq)
        try:
            return self._copy.read(created, "PUT", "/agent", agent_request(agent) | tools)
        except BaseException:
            if self.calls is not None:
                self.calls.undo_use()
            raise

    def adopt(self, agent: Agent, definitions: Definitions, clients: bool) -> None:
        """Run the calls of an agent's tools, if the conversation lets the client do that.
        `definitions` are those of the server; `clients` is True if it leaves some calls to
        clients."""
        self._server_definitions = definitions
        if self.calls is None and self._options["client_tools"]:
            parts = self._copy, agent, self._workspace, self.questions
            self.calls = ClientCalls(*parts, self._options["on_progress"], self._options["secrets"])
        self.has_tools = clients and self.calls is not None

    def has_sent(self, definitions: Definitions) -> bool:
        """Return True if the server has these definitions of tools."""
        return definitions is self._server_definitions

    def send_tools(self, agent: Agent, definitions: Definitions) -> None:
        """Send the tools of the agent, unless the server has these definitions."""
        if definitions != self._server_definitions:
            body = tools_request(agent, self._workspace, self._options["client_tools"])
            reply = self._copy.read(created, "PUT", "/tools", body)
            reply.log_warnings()
            self.has_tools = reply.clients and self.calls is not None
        self._server_definitions = definitions

    def send_secrets(self, secrets: Secrets) -> None:
        """Send the secrets, and use them in calls that run here."""
        values = {
            name: {"value": secrets.get(name), "description": secrets.description(name)}
            for name in secrets.names
        }
        self._copy.request("PUT", "/secrets", {"secrets": values})
        if self.calls is not None:
            self.calls.secrets = secrets

    def prepare(self) -> None:
        """Give the caller's context to calls and questions, so that none waits for itself."""
        context = contextvars.copy_context()
        self.questions.context = context
        if self.calls is not None:
            self.calls.context = context
        if self.has_tools or self.questions.reachable or self.follower.has_listeners:
            self.follow()

    def follow(self, catch_up: bool = True) -> None:
        """Follow the event stream from now on, and read the events before first, if `catch_up`."""
        if self.follower.thread is None and not self._copy.closed:
            if catch_up:
                self._copy.catch_up()
            self.follower.start()
            self.update()

    def catch_up(self) -> None:
        """Read the events so far."""
        self._copy.catch_up()
        self.update()

    def wait_for_message(self, event_id: str, after: int) -> ev.MessageAdded:
        """Return the event of a message that the server took. Raises `StoreError`."""
        timeout = self._copy.server.timeout
        deadline, number = time.monotonic() + timeout, 0
        while True:
            self.catch_up()
            event = self._copy.find(event_id, after)
            if isinstance(event, ev.MessageAdded):
                return event
            number += 1
            if time.monotonic() > deadline:
                took = "the agent server took the message, but did not journal it"
                text = f"Conversation {self._copy.id!r}: {took} within {timeout:g} s."
                raise StoreError(text)
            time.sleep(min(0.01 * number, 0.5))

    def update(self) -> None:
        """Look for calls and questions in new events."""
        if self._copy.closed:
            return
        if self.calls is not None and self.has_tools:
            self.calls.update()
        self.questions.update()

    def close(self, deadline: float) -> None:
        """End the calls, and stop following."""
        running = [] if self.calls is None else self.calls.close(deadline)
        if running:
            what = "conversation %s closed while calls that ignore their cancellation still run: %s"
            _log.warning(what, self._copy.id, ", ".join(running))
        if self.follower.thread is not None and self.follower.error is None:
            with suppress(HoldfastError):  # callbacks also get the last events
                self._copy.catch_up(timeout=max(0.5, deadline - time.monotonic()))
        self.follower.stop(max(0.1, deadline - time.monotonic()))
