"""`RemoteConversation`: an agent at work on an agent server, like a `Conversation`."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import find_agent
from holdfast.agent.output import typed_output
from holdfast.agent.prompt import without_secrets
from holdfast.agent.serial_form import all_tools, form_of, tools_of
from holdfast.content import ContentLike, Message, ToolResult
from holdfast.conversation.aside_answers import AsideAnswer, wait_for_answer
from holdfast.conversation.callbacks import Callback, Subscription
from holdfast.conversation.interface import ConversationInterface
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.rewound import PutBack, Rewound
from holdfast.conversation.run_context import inside
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.conversation.stream import EventStream
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    HoldfastError,
    NotPending,
    StoreError,
)
from holdfast.llm.completion import Delta
from holdfast.llm.named import NamedModel
from holdfast.remote.calls import ClientCalls
from holdfast.remote.follower import StreamFollower
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.questions import ClientQuestions
from holdfast.remote.server_client import conversation_path
from holdfast.remote.workspace import BUILTIN, RemoteTool, RemoteWorkspace
from holdfast.tools import Cancellation
from holdfast.tools.arguments import refuse_async
from holdfast.tools.secrets import Secrets, SecretsByName

if TYPE_CHECKING:
    from holdfast.conversation.questions import OnQuestion

_log = logging.getLogger("holdfast.remote")

ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

RUNNING = ConversationStatus.RUNNING
_HOW = "RemoteConversation(agent, workspace, id=...)"  # opens an existing conversation
# The routes of commands that are sent in their own JSON.
_PATHS: dict[type, str] = {
    cmd.Schedule: "/timers",
    cmd.CancelTimer: "/timers/cancel",
    cmd.Label: "/labels",
    cmd.Ask: "/ask",
}
_CAMEL = {"call_id": "callId", "question_id": "questionId", "arguments_hash": "argumentsHash"}
_STATUS_POLL_SECONDS = 15.0  # seconds of silence after which the server is asked for its status


class ToolPlacement(msgspec.Struct, rename="camel"):
    """The place where a tool runs: `server`, `client` or `unavailable`."""

    name: str
    executor: str = "server"
    module: str = ""
    warning: str = ""


class CreateReply(msgspec.Struct, rename="camel"):
    """The server's description of a new or existing conversation."""

    id: str
    status: str = ""
    workspace: str = ""
    tools: list[ToolPlacement] = []
    warnings: list[str] = []
    started: bool = False
    busy: bool = False
    open: bool = False
    driven: bool | None = None  # None from a server that does not report it
    error: str = ""
    sandboxed: bool = False

    @property
    def clients(self) -> bool:
        return any(tool.executor == "client" for tool in self.tools)


class RemoteConversation(ConversationInterface):
    """One conversation with an agent on the agent server of `workspace`.

    The server holds its journal and runs its loop, even without this program. The methods, their
    arguments, results and errors are those of `Conversation`.

    The agent is sent in its serial form. Its tools run on the server if the server has them or may
    import their module. With `client_tools`, all others run here while this object is open:
    functions of `__main__`, closures, methods of objects, clients of MCP and A2A.

    An `id` that the server knows continues where it stopped. Then `agent` may be None (no tool runs
    here); an agent that differs from the conversation's is a `ConfigurationError`.

    `detach` leaves the conversation running; `close` and `with` stop it, as they do a
    `Conversation`. Thread-safe. The constructor sends a request. It raises the server's error,
    or `StoreError` if the server cannot be reached.

    Args:
        deltas: True has the server send the pieces of streamed answers, for `stream`; `on_delta`
            implies it. Settled when the conversation is created.
        on_delta: As in `Conversation`. Pieces arrive over the network, so some may be missing.
        on_progress: As in `Conversation`, also for tools that run on the server.
        on_question: As in `Conversation`.
        secrets: As in `Conversation`. They are sent to the server, which keeps them encrypted until
            the conversation is removed; functions are called when they are sent. Tools that run
            here ask for them here.
        undo: True has the server keep snapshots of the workspace's files, for `rewind`. Settled
            when the conversation is created.
        sandbox: True has the server run the conversation's commands in a sandbox, also if it runs
            those of others without one. Settled when the conversation is created. Raises
            `ConfigurationError` if the server can make none, or the conversation exists without.
    """

    fixed = {
        "agent": (
            "To continue with another agent call conversation.use(agent); for a copy with another"
            " agent call conversation.fork(agent=...)."
        ),
        "workspace": f"Open the conversation anew with {_HOW}.",
        "id": f"Give the id to {_HOW}, or fork the conversation under another one.",
        "client": "The agent server knows this object by that name.",
        "warnings": "They come from the agent server.",
    }

    def __init__(
        self,
        agent: Agent | None = None,
        workspace: RemoteWorkspace | None = None,
        id: str | None = None,
        *,
        client_tools: bool = True,
        deltas: bool = False,
        on_delta: Callable[[Delta], object] | None = None,
        on_progress: Callable[[str, str], object] | None = None,
        on_question: OnQuestion = None,
        secrets: SecretsByName | Secrets | None = None,
        undo: bool = False,
        sandbox: bool = False,
        _made: CreateReply | None = None,
    ) -> None:
        listeners = {"on_delta": on_delta, "on_progress": on_progress, "on_question": on_question}
        self._options: dict[str, Any] = {
            "client_tools": client_tools,
            "deltas": deltas,
            "secrets": Secrets.of(secrets),
            "undo": undo,
            "sandbox": sandbox,
            **listeners,
        }
        _check(agent, workspace, id, listeners)
        assert workspace is not None
        self.agent = agent
        self.workspace = workspace
        self.client = os.urandom(16).hex()
        self._server = workspace.link
        self._sent_tools = None if agent is None else agent.tools.definitions()
        found = self._create(id) if _made is None else _made
        self.id = found.id
        self._title = f"Conversation {found.id!r}"
        self.warnings = tuple(found.warnings)
        self._log_warnings(found)
        workspace.adopt(found.workspace)
        self._copy = JournalCopy(self.id, self._server, self.client)
        if agent is not None and id is not None and _made is None:
            self._copy.catch_up()
            _check_same_agent(agent, self._copy.fold.agent, self.id)
        self._questions = ClientQuestions(self._copy, on_question, self._send_answer)
        self._calls: ClientCalls | None = None
        if agent is not None and client_tools:
            self._calls = self._client_calls(agent)
        self._follower = StreamFollower(self._copy, self._on_events, on_delta, on_progress)
        self._subscriptions: list[Subscription] = []
        self._lock = threading.RLock()
        # The server does not say who runs the tools of a parked conversation.
        self._has_client_tools = self._calls is not None and (
            found.clients or (_made is None and not found.tools)
        )
        self._started = found.started
        self._drives = False  # True if this object started the loop
        # the threads whose requests to start the loop have no answer yet
        self._beginning: set[threading.Thread] = set()
        self._not_begun = Cancellation()  # ends those requests
        self._runner: threading.Thread | None = None
        self._closing = self._closed = self._stops_server = False
        if self._options["secrets"] is not None:
            self._send_secrets(self._options["secrets"])
        self._server.opened()
        if agent is not None:
            agent.connections.opened()

    def use(self, agent: Agent | str) -> None:
        """Continue with another agent from the next step on, like `Conversation.use`. A str may
        also name an agent that the server publishes: its tools run there.

        The server keeps it: whoever opens the conversation later continues with this agent. Raises
        the server's `ConfigurationError`, also for tools that need a workspace if the conversation
        has none.
        """
        if isinstance(agent, str):
            self._use_by_name(cmd.Use(agent).agent)
            return
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"use: agent takes an Agent or a name, not {agent!r}.")
        with self._lock:
            self._catch_up()
            head, before = self._copy.fold.agent, self.agent
            tools = tools_request(agent, self.workspace, self._options["client_tools"])
            sent = agent.tools.definitions()
            calls = self._calls
            if calls is not None:  # before the request: the server may offer calls at once
                calls.use(agent, 0 if head is None else head.seq)
            try:
                found = self._copy.read(created, "PUT", "/agent", agent_request(agent) | tools)
            except BaseException:
                if calls is not None:
                    calls.undo_use()
                raise
            self._log_warnings(found)
            agent.connections.opened()
            object.__setattr__(self, "agent", agent)
            self._sent_tools = sent
            if calls is None and self._options["client_tools"]:
                self._calls = self._client_calls(agent)
            self._has_client_tools = found.clients and self._calls is not None
            if before is not None:
                before.connections.closed()
        if self._has_client_tools:
            self._follow()

    def _use_by_name(self, name: str) -> None:
        self._check_open()
        with self._lock:
            found = self._copy.read(_chosen, "POST", "/use", {"agent": name})
            if found.replaced and (before := self.agent) is not None:
                object.__setattr__(self, "agent", None)  # no tool runs here any more
                self._has_client_tools = False
                before.connections.closed()
        self._catch_up()

    def set_secrets(self, secrets: SecretsByName | Secrets) -> None:
        """Replace the conversation's secrets on the server, from its next call on; see the
        constructor. Raises `ConfigurationError`, and what a function raises."""
        found = Secrets.of(secrets)
        assert found is not None
        self._send_secrets(found)
        self._options["secrets"] = found
        if self._calls is not None:
            self._calls.secrets = found

    def _send_secrets(self, secrets: Secrets) -> None:
        given = {
            name: {"value": secrets.get(name), "description": secrets.description(name)}
            for name in secrets.names
        }
        self._copy.request("PUT", "/secrets", {"secrets": given})

    def _client_calls(self, agent: Agent) -> ClientCalls:
        parts = self._copy, agent, self.workspace, self._questions, self._options["on_progress"]
        return ClientCalls(*parts, self._options["secrets"])

    def _create(self, id: str | None) -> CreateReply:
        agent, options = self.agent, self._options
        if agent is None:
            assert id is not None
            return self._info(id)
        tools = tools_request(agent, self.workspace, options["client_tools"])
        body = agent_request(agent) | tools
        body["questions"] = options["on_question"] is not None
        body["deltas"] = options["deltas"] or options["on_delta"] is not None
        # an older server refuses these fields
        body |= {"undo": True} if options["undo"] else {}
        body |= {"sandbox": "require"} if options["sandbox"] else {}
        if id is not None:
            body["id"] = id
            with suppress(ConversationNotFound):
                return self._info(id)
        if self.workspace.id is not None or needs_workspace(tools):
            body["workspace"] = self.workspace.made()
        return self._server.read(created, "POST", "/api/conversations", body, client=self.client)

    def _info(self, id: str) -> CreateReply:
        found = self._server.read(created, "GET", conversation_path(id), client=self.client)
        if self._options["sandbox"] and not found.sandboxed:
            raise ConfigurationError(
                f"sandbox: conversation {id!r} exists, and its commands run without a sandbox. Give"
                " another id, or leave sandbox out."
            )
        return found

    def _log_warnings(self, found: CreateReply) -> None:
        for warning in found.warnings:
            _log.warning("conversation %s: %s", self.id, warning)

    @classmethod
    def from_state(
        cls,
        state: ConversationState,
        agent: Agent,
        workspace: RemoteWorkspace,
        id: str | None = None,
        **options: Any,
    ) -> RemoteConversation:
        """Return a new conversation on the agent server of `workspace` that continues from `state`;
        `options` as in the constructor.

        The state may be of a local or a remote conversation. Its pending calls are treated as in
        `Conversation.from_state`. The server takes states of up to 32 MB; large outputs are not
        sent with it. Raises `Conflict` if `id` has events already.
        """
        if not isinstance(state, ConversationState):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"from_state: state takes a ConversationState, not {state!r}.")
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"from_state: agent takes an Agent, not {agent!r}.")
        conversation = cls(agent, workspace, id, **options)
        try:
            conversation._import_state(state)
        except BaseException:
            conversation.detach()
            raise
        return conversation

    def _import_state(self, state: ConversationState) -> None:
        new = not self._copy.fold.last_seq
        try:
            if new and state.events:
                self._copy.request("PUT", "/state", msgspec.Raw(state.to_json()))
            elif state.events:
                raise Conflict("It has events.")
            self._catch_up()
        except Conflict as error:
            text = f"conversation {self.id!r} has events already; give another id"
            raise Conflict(f"from_state: {text}.") from error
        except ConfigurationError:
            if new:
                with suppress(HoldfastError):
                    self._copy.request("DELETE")
            raise

    def fork(
        self,
        seq: int | None = None,
        agent: Agent | None = None,
        id: str | None = None,
        *,
        title: str | None = None,
        **options: Any,
    ) -> RemoteConversation:
        """Return a new conversation on the same server that begins with this one's events up to
        `seq` (None: all), like `Conversation.fork`."""
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork: agent takes an Agent or None, not {agent!r}.")
        self._catch_up()
        last = self._copy.fold.last_seq
        if seq is not None and (not isinstance(seq, int) or not 0 <= seq <= last):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork takes a seq from 0 to {last}, not {seq!r}.")
        options = {**self._options, **options}
        body: dict[str, Any] = {"seq": last if seq is None else seq}
        if id is not None:
            body["id"] = id
        if title is not None:
            body["title"] = title
        if agent is not None:
            body |= agent_request(agent)
            body |= tools_request(agent, self.workspace, options["client_tools"])
        made = self._copy.read(created, "POST", "/fork", body)
        agent = agent or self.agent
        return RemoteConversation(agent, self.workspace, made.id, **options, _made=made)

    def rewind(
        self, seq: int, id: str | None = None, **options: Any
    ) -> Rewound[RemoteConversation]:
        """Return a fork of this conversation at `seq`, after the server has put the files of the
        workspace back to their content of that time, like `Conversation.rewind`. The conversation
        must have been created with `undo`; `options` as in the constructor."""
        body = {"seq": seq} if id is None else {"seq": seq, "id": id}
        found = self._copy.read(_rewound, "POST", "/rewind", body)
        options = {**self._options, **options}
        made = found.conversation
        fork = RemoteConversation(self.agent, self.workspace, made.id, **options, _made=made)
        return Rewound(fork, found.files)

    def write_title(self) -> str:
        """Have the server write a title from the first message with `Agent.title`, or else the
        agent's model, and return it, like `Conversation.write_title`."""
        return self._copy.read(_title, "POST", "/title").title

    # --- state ---

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same. The server's stream
        keeps it up to date, so reading it often is cheap."""
        self._follow()
        copy = self._copy
        with copy.changed:
            return ConversationState.of(self.id, self._status(), copy.fold.copy(), copy.until)

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        self._follow()
        return self._status()

    def _status(self) -> ConversationStatus:
        if self._closing:
            return ConversationStatus.CLOSED
        lost = self._follower.lost is not None
        return ConversationStatus.ERROR if lost else self._copy.fold.status

    @property
    def failure(self) -> Exception | None:
        """The error that ended following (deleted, or the key is invalid), or None."""
        return self._follower.lost

    @property
    def output(self) -> Any:
        """The output as an object of the local agent's `output_type`, like
        `Conversation.output`. Without an agent, the JSON value."""
        self._follow()
        with self._copy.changed:
            seq, value = self._copy.fold.output.seq, self._copy.fold.output.value
        return (
            typed_output(None if self.agent is None else self.agent.output, value) if seq else None
        )

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        self._follow()
        return list(self._copy.until(self._copy.fold.last_seq))

    def get_output(self, call_id: str) -> ToolResult:
        """Return the whole result of a call, even if the journal holds only its beginning and
        end. Raises `NotFound` if the call has no result."""
        return self._copy.output(call_id)

    def __repr__(self) -> str:
        return (
            f"RemoteConversation(id={self.id!r}, status={self._status().value!r},"
            f" events={self._copy.fold.last_seq}, url={self._server.address!r})"
        )

    # --- operations ---

    def send_message(
        self, message: str | Message | ContentLike, *, sender: str = "user"
    ) -> ev.MessageAdded:
        """Send a message, like `Conversation.send_message`. An agent server takes messages from
        the user alone: another `sender` is a `ConfigurationError`."""
        content = checked_content(content_of(message))
        if sender != "user":
            cmd.check_sender("send_message", sender)
            text = "an agent server takes messages from 'user' alone"
            raise ConfigurationError(f"send_message: sender: {text}, not from {sender!r}.")
        self._check_open()
        event_id, before = os.urandom(16).hex(), self._copy.fold.last_seq
        # refused here as by a local journal: the request would change it without a word
        now = datetime.now(UTC)
        ev.record(ev.MessageAdded(seq=before + 1, id=event_id, timestamp=now, content=content))
        self._send_tools()
        self._copy.request("POST", "/messages", {"content": content, "eventId": event_id})
        deadline, number = time.monotonic() + self._server.timeout, 0
        while True:
            self._catch_up()
            found = self._copy.find(event_id, before)
            if isinstance(found, ev.MessageAdded):
                return found
            number += 1
            if time.monotonic() > deadline:
                took = f"{self._title}: the agent server took the message, but did not journal it"
                raise StoreError(f"{took} within {self._server.timeout:g} s.")
            time.sleep(min(0.01 * number, 0.5))

    def start_thread(self) -> None:
        """Have the server drive the loop until `close`. Continues an unfinished run. Idempotent."""
        self._check_open()
        with self._lock:
            if self._runner is not None:
                busy = f"{self._title} is being run by {self._runner.name!r}"
                raise ConversationBusy(f"{busy}; start_thread after that.")
            if not (self._started and self._drives):
                self._send_tools()
                self._prepare()
            # Sent each time, because another client may have closed the conversation since.
            if not self._begin("/start"):
                self._check_open()
            self._started = True
        if self._follower.thread is not None:  # otherwise the first to read the copy catches up
            self._catch_up()

    def run(self) -> ConversationState:
        """Have the server drive the loop until the conversation rests, wait for that, and return
        its state, like `Conversation.run`."""
        self._check_open()
        self._not_inside("run")
        with self._lock:
            if self._started or self._runner is not None:
                raise ConversationBusy(f"{self._title} is driven by the agent server; use wait().")
            self._runner = threading.current_thread()
        try:
            self._send_tools()
            self._prepare()
            self._follow()
            if self._begin("/run"):
                self._catch_up()
                self._wait(None)
        except KeyboardInterrupt:
            with suppress(HoldfastError):
                self.interrupt()
            raise
        finally:
            with self._copy.changed:
                self._runner = None
                self._copy.changed.notify_all()
        return self.state

    def _begin(self, path: str) -> bool:
        """Ask the server to start the loop; return False if `close` or `detach` came first.

        `close` sends its own request after the answer, since the server may carry out two requests
        at once in any order.
        """
        changed, thread = self._copy.changed, threading.current_thread()
        with changed:
            if self._closing:
                return False
            self._drives = True
            self._beginning.add(thread)
        try:
            self._copy.request("POST", path, cancelled=self._not_begun)
            return True
        except HoldfastError:
            if not self._closing:
                raise
            return False
        finally:
            with changed:
                self._beginning.discard(thread)
                changed.notify_all()

    def stream(self, message: str | Message | ContentLike | None = None) -> EventStream:
        """Send `message`, if one is given, and run; return an iterator of the events and deltas as
        they come, on the caller's thread, until the conversation rests, like
        `Conversation.stream`.

        Deltas come if the conversation was created with `deltas` or `on_delta`.
        """
        self._check_open()
        self._not_inside("stream")
        self._follow()
        self._catch_up()
        after_seq = self._copy.fold.last_seq
        return EventStream(
            self._copy,
            self._follower,
            after_seq,
            lambda: None if message is None else self.send_message(message),
            self._run_or_wait,
            lambda: True,  # `_run_or_wait` has waited for the end
            self.interrupt,
        )

    def _run_or_wait(self) -> None:
        try:
            self.run()
        except ConversationBusy:
            self._wait(None)
        if self._follower.lost is not None:
            raise self._follower.lost.with_traceback(None)

    def drain_inbox(self) -> None:
        """Read the events that other clients' commands caused, if not followed already."""
        if not self._closing:
            self._catch_up()

    def wait(self, timeout: float | None = None) -> ConversationStatus:
        """Block until nothing runs any more, at most `timeout` seconds; return the status.
        Raises `ConversationBusy` if called from within the conversation."""
        self._not_inside("wait")
        with self._copy.changed:
            resting = self._at_rest()
        # The stream brings the end of a run. The end in an old copy may be that of another run.
        self._follow(catch_up=resting)
        if not self._started and self._runner is None and not self._closing:
            self._copy.catch_up()
            if not self._driven():
                return self._status()
        self._wait(timeout)
        return self._status()

    def _wait(self, timeout: float | None) -> None:
        copy = self._copy
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            with copy.changed:
                seq, poll = copy.fold.last_seq, time.monotonic() + _STATUS_POLL_SECONDS
                while not self._at_rest():
                    seconds = min(deadline, poll) - time.monotonic()
                    if seconds <= 0:
                        break
                    copy.changed.wait(seconds)
                else:
                    return
            if time.monotonic() >= deadline:
                return
            if copy.fold.last_seq == seq:
                with suppress(StoreError):
                    if not self._driven():  # another client closed it
                        return

    def _at_rest(self) -> bool:
        fold = self._copy.fold
        if self._closing or self._follower.lost is not None:
            return True
        if fold.status is RUNNING or fold.has_new_message:
            return False
        # a pause lets calls that have begun end first
        return not any(
            item.attempt and item.ask_reason is None and not item.script
            for item in fold.open.values()
        )

    def _driven(self) -> bool:
        """Return True if the server drives the conversation, whichever client started it."""
        found = self._info(self.id)
        if found.error:
            what = "conversation %s: the agent server cannot drive it now: %s"
            _log.warning(what, self.id, found.error)
        driven = found.open if found.driven is None else found.driven
        offered = any(item.offered for item in self._copy.fold.open.values())
        return found.started or found.busy or driven or offered

    def _not_inside(self, method: str) -> None:
        if self._copy.mark in inside.get():
            own = f"{self._title}: its own model, tool or listener called {method}()"
            raise ConversationBusy(f"{own}, which would wait for itself forever.")

    def _subscribe(self, callback: Callback, after_seq: int | None) -> Subscription:
        self._check_open()
        self._follow()
        with self._copy.changed:
            after = self._copy.fold.last_seq if after_seq is None else after_seq
            subscription = Subscription(cast("Any", self._copy), callback, after)
            self._subscriptions.append(subscription)
        return subscription

    # --- closing ---

    def close(self, timeout: float = 5.0) -> None:
        """Stop and park the conversation on the server, if this object started it, like
        `Conversation.close`.

        Releases threads and connections within about `timeout` seconds. Idempotent. The
        conversation stays on the server, and continues when it is opened and started again.
        """
        self._end(timeout, stop=True)

    def detach(self, timeout: float = 5.0) -> None:
        """Release threads and connections like `close`, but leave the server running. Calls that
        run here are cancelled; the workspace stays."""
        self._end(timeout, stop=False)

    def _end(self, timeout: float, stop: bool) -> None:
        if not self._server.owner.here:  # a forked child process owns nothing here
            return
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        with self._copy.changed:
            if self._closing:
                return
            self._closing = True
            self._stops_server = stop and self._drives
            self._copy.closed = True
            self._copy.changed.notify_all()
        self._questions.close()
        if not stop:
            self.workspace.keep()
        if (
            self._calls is not None
            and self._copy.mark in inside.get()
            # one of the calls may be the caller: the rest is done when it returns
            and self._calls.close_when_idle(lambda: self._finish(time.monotonic() + 5.0))
        ):
            self._stop_on_server(deadline)
            self._calls.cancel()
            return
        self._finish(deadline)

    def _finish(self, deadline: float) -> None:
        with self._copy.changed:
            if self._closed:
                return
            self._closed = True
        self._stop_on_server(deadline)
        running = [] if self._calls is None else self._calls.close(deadline)
        if running:
            what = "conversation %s closed while calls that ignore their cancellation still run: %s"
            _log.warning(what, self.id, ", ".join(running))
        if self._follower.thread is not None and self._follower.lost is None:
            with suppress(HoldfastError):  # callbacks also get the last events
                self._copy.catch_up(timeout=max(0.5, deadline - time.monotonic()))
        self._follower.stop(max(0.1, deadline - time.monotonic()))
        with self._copy.changed:
            subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close(max(0.1, deadline - time.monotonic()))
        self._await(lambda: self._runner in (None, threading.current_thread()), deadline)
        if self.agent is not None:
            self.agent.connections.closed()
        self._server.closed()

    def _stop_on_server(self, deadline: float) -> None:
        """Stop the server's run once, before results of calls that end here reach the model."""
        self._await(lambda: self._beginning <= {threading.current_thread()}, deadline)
        self._not_begun.cancel()
        stop, self._stops_server = self._stops_server, False
        if stop and self._follower.lost is None:
            try:
                timeout = max(1.0, deadline - time.monotonic())
                self._copy.request("POST", "/close", timeout=timeout)
            except HoldfastError as error:
                what = "conversation %s: the request to stop it on the agent server failed: %s"
                _log.warning(what, self.id, error)

    def _await(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait for a condition of this object's own threads until the deadline."""
        with self._copy.changed:
            while not condition() and (seconds := deadline - time.monotonic()) > 0:
                self._copy.changed.wait(seconds)

    def __reduce__(self) -> Any:
        raise TypeError(f"A RemoteConversation is not pickled; open it there with {_HOW}.")

    # --- requests to the server ---

    def _check_open(self) -> None:
        if self._closing:
            raise ConversationClosed(f"{self._title} is closed. Open it again with {_HOW}.")
        if self._follower.lost is not None:
            raise self._follower.lost.with_traceback(None)

    def _command(self, name: str, once: str | None = None, **fields: Any) -> None:
        """Send a command to the server, and read the resulting events."""
        self._check_open()
        if (command := fields.get("command")) is not None:
            path = _PATHS[type(command)]
            body = cast("dict[str, Any]", msgspec.to_builtins(command))
            del body["command"]
            self._copy.request("POST", path, body, once=once)
            self._catch_up()
            return
        body = {
            _CAMEL.get(field, field): value
            for field, value in fields.items()
            if value is not None or field == "values"
        }
        try:  # fails for half of a surrogate pair, which has no UTF-8 bytes
            json.dumps(body.get("values"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{name}: values must be valid JSON: {error}.") from error
        self._copy.request("POST", f"/{name}", body, once=once)
        self._catch_up()

    def _ask(self, command: cmd.Ask, timeout: float | None) -> AsideAnswer:
        def ended() -> HoldfastError | None:
            if self._follower.lost is not None:
                return self._follower.lost.with_traceback(None)
            if self._closing:
                return ConversationClosed(f"{self._title} is closed. Open it again with {_HOW}.")
            return None

        self._check_open()
        self._follow()
        seq = self._copy.fold.last_seq
        self._command("ask", command=command)
        return wait_for_answer(self._copy, command.aside, seq, ended, timeout)

    def _now(self) -> datetime:
        return datetime.now(UTC)

    def _only_question(self) -> str:
        self._check_open()
        self._catch_up()
        ids = [question.id for item in self._copy.fold.open.values() for question in item.questions]
        if not ids:
            raise NotPending("No question waits for an answer.")
        if len(ids) > 1:
            several = "Several questions wait for an answer; say which"
            raise ConfigurationError(f"{several}: {', '.join(ids)}.")
        return ids[0]

    def _send_answer(self, question_id: str, values: Any, reason: str) -> None:
        # a decline may follow an answer that the server refused
        once = f"{self.client}-{question_id}{'-declined' if values is None else ''}"
        by = "on_question"
        answer = {"question_id": question_id, "values": values, "reason": reason, "by": by}
        self._command("answer", once=once, **answer)

    def _prepare(self) -> None:
        """Give the caller's context to calls and questions, so that none waits for itself."""
        context = contextvars.copy_context()
        self._questions.context = context
        if self._calls is not None:
            self._calls.context = context
        if self._has_client_tools or self._questions.reachable or self._follower.has_listeners:
            self._follow()

    def _send_tools(self) -> None:
        """Send the server the tools if they changed since they were last sent."""
        agent = self.agent
        if agent is None:
            return
        now = agent.tools.definitions()
        if now is self._sent_tools:
            return
        with self._lock:
            if now != self._sent_tools:
                body = tools_request(agent, self.workspace, self._options["client_tools"])
                found = self._copy.read(created, "PUT", "/tools", body)
                self._log_warnings(found)
                self._has_client_tools = found.clients and self._calls is not None
            self._sent_tools = now
            if self._has_client_tools and self._drives:
                self._follow()

    def _catch_up(self) -> None:
        self._copy.catch_up()
        self._on_events()

    def _follow(self, catch_up: bool = True) -> None:
        """Follow the event stream from now on, and read the events before first, if `catch_up`."""
        if self._follower.thread is None and not self._closing:
            if catch_up:
                self._copy.catch_up()
            self._follower.start()
            self._on_events()

    def _on_events(self) -> None:
        if self._closing:
            return
        if self._calls is not None and self._has_client_tools:
            self._calls.update()
        self._questions.update()


def _check_same_agent(agent: Agent, head: ev.AgentConfigured | None, id: str) -> None:
    """Raise `ConfigurationError` if the journal of an existing conversation shows another agent."""
    if head is None:
        return
    agent = find_agent(agent, head.name) or agent  # another of its models, or of its handoffs
    known = {tool.name: tool for tool in head.tools}
    other: list[str] = []
    if agent.system_prompt != without_secrets(head):
        other.append("another system prompt")
    if type(agent.llm) is not NamedModel and agent.llm.model != head.model:
        other.append(f"the model {head.model!r}, not {agent.llm.model!r}")
    for tool in agent.tools.definitions():
        if (same := known.get(tool.name)) is None:
            other.append(f"no tool {tool.name!r}")
        elif (tool.description, tool.input_schema) != (same.description, same.input_schema):
            other.append(f"another tool {tool.name!r}")
    if other:
        raise ConfigurationError(
            f"RemoteConversation: agent differs from the agent of conversation {id!r}, which has"
            f" {', '.join(other)}. Leave agent out to continue with that one, or fork the"
            " conversation with another agent."
        )


def _check(agent: Any, workspace: Any, id: Any, listeners: dict[str, Any]) -> None:
    def refuse(what: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"RemoteConversation: {what}, not {value!r}.")

    if not isinstance(workspace, RemoteWorkspace):
        raise refuse("workspace takes a RemoteWorkspace(url, key)", workspace)
    if agent is None and id is None:
        needs = "only an existing conversation (id=...) needs none"
        raise ConfigurationError(f"RemoteConversation: agent takes an Agent; {needs}.")
    if agent is not None and not isinstance(agent, Agent):
        raise refuse("agent takes an Agent", agent)
    if id is not None and (not isinstance(id, str) or not ID.fullmatch(id)):
        raise refuse("id takes 1 to 128 letters, digits, '.', '_' or '-', or None", id)
    for name, value in listeners.items():
        refuse_async(f"RemoteConversation: {name}", value)
        if value is None or callable(value) or (name, value) == ("on_question", "wait"):
            continue
        kinds = "a function of a Question, 'wait'" if name == "on_question" else "a function"
        raise refuse(f"{name} takes {kinds} or None", value)


class _RewindReply(msgspec.Struct):
    conversation: CreateReply
    files: PutBack


def _rewound(data: bytes) -> _RewindReply:
    return msgspec.json.decode(data, type=_RewindReply)


class _TitleReply(msgspec.Struct):
    title: str


def _title(data: bytes) -> _TitleReply:
    return msgspec.json.decode(data, type=_TitleReply)


class _Chosen(msgspec.Struct):
    replaced: bool = False


def _chosen(data: bytes) -> _Chosen:
    return msgspec.json.decode(data, type=_Chosen)


def created(data: bytes) -> CreateReply:
    """Decode a `Created`. Raises `ValueError`, also for an invalid id."""
    found = msgspec.json.decode(data, type=CreateReply)
    if not ID.fullmatch(found.id):
        raise ValueError(f"the id {found.id[:80]!r}")
    return found


def tools_request(agent: Agent, workspace: RemoteWorkspace, client_tools: bool) -> dict[str, Any]:
    """Return an agent's tools as sent to the server, with the modules that may hold them."""
    forms = tools_of(agent)
    for index, (form, tool) in enumerate(zip(forms, all_tools(agent), strict=True)):
        if isinstance(tool, RemoteTool):  # a tool of another workspace is an HTTP call from here
            forms[index] = msgspec.structs.replace(
                form, module=BUILTIN if tool.workspace is workspace else ""
            )
    return {
        "tools": forms,
        "tool_module_qualnames": {form.name: form.module for form in forms if form.module},
        "client_tools": client_tools,
    }


def agent_request(agent: Agent) -> dict[str, Any]:
    """Return an agent's serial form with its secrets apart."""
    form = form_of(agent)
    return {"agent": form.mapping, "secrets": form.secrets}


def needs_workspace(request: dict[str, Any]) -> bool:
    """Return True if the server may run a tool of the request, and so needs a workspace."""
    return bool(request["tool_module_qualnames"])
