"""`RemoteConversation`: an agent at work on an agent server, like a `Conversation`."""

from __future__ import annotations

import json
import logging
import os
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
from holdfast.agent.output import typed_output
from holdfast.content import ContentLike, Message, ToolResult
from holdfast.conversation.aside_answers import AsideAnswer, wait_for_answer
from holdfast.conversation.callbacks import Callback, Subscription
from holdfast.conversation.interface import ConversationInterface
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.rewound import Rewound
from holdfast.conversation.run_context import inside
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.conversation.stream import EventStream
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    HoldfastError,
    NotPending,
)
from holdfast.llm.completion import Delta
from holdfast.remote.agent_requests import (
    ChosenReply,
    CreateReply,
    RewindReply,
    WrittenTitle,
    agent_request,
    check_arguments,
    check_same_agent,
    create,
    created,
    info,
    tools_request,
)
from holdfast.remote.client_side import ClientSide
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.remote_run import RemoteRun
from holdfast.remote.workspace import RemoteWorkspace
from holdfast.tools.secrets import Secrets, SecretsByName

if TYPE_CHECKING:
    from holdfast.conversation.questions import OnQuestion

_log = logging.getLogger("holdfast.remote")

_HOW = "RemoteConversation(agent, workspace, id=...)"  # opens an existing conversation
_CHOSEN = msgspec.json.Decoder(ChosenReply)
_REWOUND = msgspec.json.Decoder(RewindReply)
_TITLE = msgspec.json.Decoder(WrittenTitle)
# The routes of commands that are sent in their own JSON.
_PATHS: dict[type, str] = {
    cmd.Schedule: "/timers",
    cmd.CancelTimer: "/timers/cancel",
    cmd.Label: "/labels",
    cmd.Ask: "/ask",
}
_CAMEL = {"call_id": "callId", "question_id": "questionId", "arguments_hash": "argumentsHash"}


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
    `Conversation`. Thread-safe. The constructor sends a request, and raises the server's error, or
    `StoreError` if the server cannot be reached.

    Args:
        deltas: True makes the server send the pieces of streamed answers, for `stream`; `on_delta`
            implies it. Fixed when the conversation is created.
        on_delta: As in `Conversation`. Pieces arrive over the network, so some may be missing.
        on_progress: As in `Conversation`, also for tools that run on the server.
        on_question: As in `Conversation`.
        secrets: As in `Conversation`. Their values are sent to the server, which keeps them
            encrypted until the conversation is removed; functions are called at that time. Tools
            that run here ask for them here.
        undo: True makes the server keep snapshots of the workspace's files, for `rewind`. Fixed
            when the conversation is created.
        sandbox: True makes the server run the conversation's commands in a sandbox, even if it runs
            those of others without one. Fixed when the conversation is created. Raises
            `ConfigurationError` if the server cannot make one, or the conversation exists without
            one.
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
        check_arguments(agent, workspace, id, listeners)
        assert workspace is not None
        self.agent = agent
        self.workspace = workspace
        self.client = os.urandom(16).hex()
        self._server = workspace.link
        definitions = None if agent is None else agent.tools.definitions()
        reply = _made
        if reply is None:
            reply = create(self._server, self.client, agent, workspace, id, self._options)
        self.id = reply.id
        self._title = f"Conversation {reply.id!r}"
        self.warnings = tuple(reply.warnings)
        reply.log_warnings()
        workspace.adopt(reply.workspace)
        self._copy = JournalCopy(self.id, self._server, self.client)
        if agent is not None and id is not None and _made is None:
            self._copy.catch_up()
            check_same_agent(agent, self._copy.fold.agent, self.id)
        self._here = ClientSide(self._copy, workspace, self._options, self._send_answer)
        # The server does not say who runs the tools of a parked conversation.
        may_have_tools = reply.clients or (_made is None and not reply.tools)
        if agent is not None:
            self._here.adopt(agent, definitions, may_have_tools)
        self._lock = threading.RLock()
        self._run = RemoteRun(self._copy, self._here, self._info, self._lock, reply.started)
        self._subscriptions: list[Subscription] = []
        self._closed = False
        if self._options["secrets"] is not None:
            self._here.send_secrets(self._options["secrets"])
        self._server.opened()
        if agent is not None:
            agent.connections.opened()

    def use(self, agent: Agent | str) -> None:
        """Continue with another agent from the next step on, like `Conversation.use`. A str may
        also name an agent that the server publishes: its tools run there.

        The server keeps the agent, so a later opening of the conversation continues with it. Raises
        the server's `ConfigurationError`, also for tools that need a workspace if the conversation
        has none.
        """
        if isinstance(agent, str):
            self._use_by_name(cmd.Use(agent).agent)
            return
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"use: agent takes an Agent or a name, not {agent!r}.")
        with self._lock:
            self._here.catch_up()
            before, definitions = self.agent, agent.tools.definitions()
            reply = self._here.send_agent(agent)
            reply.log_warnings()
            agent.connections.opened()
            object.__setattr__(self, "agent", agent)
            self._here.adopt(agent, definitions, reply.clients)
            if before is not None:
                before.connections.closed()
        if self._here.has_tools:
            self._here.follow()

    def _use_by_name(self, name: str) -> None:
        self._check_open()
        with self._lock:
            reply = self._copy.read(_CHOSEN.decode, "POST", "/use", {"agent": name})
            if reply.replaced and (before := self.agent) is not None:
                object.__setattr__(self, "agent", None)  # no tool runs here any more
                self._here.has_tools = False
                before.connections.closed()
        self._here.catch_up()

    def set_secrets(self, secrets: SecretsByName | Secrets) -> None:
        """Replace the conversation's secrets on the server, from its next call on; see the
        constructor. Raises `ConfigurationError`, and what a function raises."""
        values = Secrets.of(secrets)
        assert values is not None
        self._here.send_secrets(values)
        self._options["secrets"] = values

    def _info(self) -> CreateReply:
        return info(self._server, self.client, self.id, self._options["sandbox"])

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
            self._here.catch_up()
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
        self._here.catch_up()
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
        reply = self._copy.read(created, "POST", "/fork", body)
        agent = agent or self.agent
        return RemoteConversation(agent, self.workspace, reply.id, **options, _made=reply)

    def rewind(
        self, seq: int, id: str | None = None, **options: Any
    ) -> Rewound[RemoteConversation]:
        """Put the files of the workspace back to their content at `seq`, and return a fork of this
        conversation there, like `Conversation.rewind`. The conversation must have been created with
        `undo`; `options` as in the constructor."""
        body = {"seq": seq} if id is None else {"seq": seq, "id": id}
        reply = self._copy.read(_REWOUND.decode, "POST", "/rewind", body)
        options = {**self._options, **options}
        fork_reply = reply.conversation
        fork = RemoteConversation(
            self.agent, self.workspace, fork_reply.id, **options, _made=fork_reply
        )
        return Rewound(fork, reply.files)

    def write_title(self) -> str:
        """Have the server write a title from the first message with `Agent.title`, or else the
        agent's model, and return it, like `Conversation.write_title`."""
        return self._copy.read(_TITLE.decode, "POST", "/title").title

    # --- state ---

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same. The server's stream
        keeps it up to date, so reading it often is cheap."""
        self._here.follow()
        copy = self._copy
        with copy.lock:
            return ConversationState.of(self.id, self._status(), copy.fold.copy(), copy.until)

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        self._here.follow()
        return self._status()

    def _status(self) -> ConversationStatus:
        if self._copy.closed:
            return ConversationStatus.CLOSED
        failed = self.failure is not None
        return ConversationStatus.ERROR if failed else self._copy.fold.status

    @property
    def failure(self) -> Exception | None:
        """The error that ended following (deleted, or the key is invalid), or None."""
        return self._here.follower.error

    @property
    def output(self) -> Any:
        """The output as an object of the local agent's `output_type`, like
        `Conversation.output`. Without an agent, the JSON value."""
        self._here.follow()
        with self._copy.lock:
            seq, value = self._copy.fold.output.seq, self._copy.fold.output.value
        return (
            typed_output(None if self.agent is None else self.agent.output, value) if seq else None
        )

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        self._here.follow()
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
        return self._here.wait_for_message(event_id, before)

    def start_thread(self) -> None:
        """Have the server drive the loop until `close`. Continues an unfinished run. Idempotent."""
        self._check_open()
        if not self._run.start(self._send_tools):
            self._check_open()

    def run(self) -> ConversationState:
        """Let the server drive the loop until the conversation rests, and return its state, like
        `Conversation.run`."""
        self._check_open()
        self._run.run(self._send_tools, self.interrupt)
        return self.state

    def stream(self, message: str | Message | ContentLike | None = None) -> EventStream:
        """Send `message`, if given, and run. Return an iterator that yields events and deltas on
        the caller's thread until the conversation rests, like `Conversation.stream`.

        Deltas come if the conversation was created with `deltas` or `on_delta`.
        """
        self._check_open()
        self._run.check_not_inside("stream")
        self._here.follow()
        self._here.catch_up()
        after_seq = self._copy.fold.last_seq
        return EventStream(
            self._copy,
            self._here.follower,
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
            self._run.wait(None)
        if self._here.follower.error is not None:
            raise self._here.follower.error.with_traceback(None)

    def drain_inbox(self) -> None:
        """Read the events that other clients' commands caused, if not followed already."""
        if not self._copy.closed:
            self._here.catch_up()

    def wait(self, timeout: float | None = None) -> ConversationStatus:
        """Block until nothing runs any more, at most `timeout` seconds; return the status.
        Raises `ConversationBusy` if called from within the conversation."""
        self._run.join(timeout)
        return self._status()

    def _subscribe(self, callback: Callback, after_seq: int | None) -> Subscription:
        self._check_open()
        self._here.follow()
        with self._copy.lock:
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
        if not self._run.end(stop):
            return
        self._here.questions.close()
        if not stop:
            self.workspace.keep()
        calls = self._here.calls
        if (
            calls is not None
            and self._copy.mark in inside.get()
            # one of the calls may be the caller: the rest is done when it returns
            and calls.close_when_idle(lambda: self._finish(time.monotonic() + 5.0))
        ):
            self._run.stop_once(deadline)
            calls.cancel()
            return
        self._finish(deadline)

    def _finish(self, deadline: float) -> None:
        with self._copy.lock:
            if self._closed:
                return
            self._closed = True
        self._run.stop_once(deadline)
        self._here.close(deadline)
        with self._copy.lock:
            subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close(max(0.1, deadline - time.monotonic()))
        self._run.wait_for_runner(deadline)
        if self.agent is not None:
            self.agent.connections.closed()
        self._server.closed()

    def __reduce__(self) -> Any:
        raise TypeError(f"A RemoteConversation is not pickled; open it there with {_HOW}.")

    # --- requests to the server ---

    def _end_error(self) -> HoldfastError | None:
        """Return the error for requests after the end, None before it."""
        if self._copy.closed:
            return ConversationClosed(f"{self._title} is closed. Open it again with {_HOW}.")
        error = self._here.follower.error
        return None if error is None else error.with_traceback(None)

    def _check_open(self) -> None:
        if (error := self._end_error()) is not None:
            raise error

    def _command(self, name: str, idempotency_key: str | None = None, **fields: Any) -> None:
        """Send a command to the server, and read the resulting events."""
        self._check_open()
        if (command := fields.get("command")) is not None:
            path = _PATHS[type(command)]
            body = cast("dict[str, Any]", msgspec.to_builtins(command))
            del body["command"]
        else:
            path = f"/{name}"
            body = {
                _CAMEL.get(field, field): value
                for field, value in fields.items()
                if value is not None or field == "values"
            }
        try:  # fails for half of a surrogate pair, which has no UTF-8 bytes
            json.dumps(body.get("values"), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{name}: values must be valid JSON: {error}.") from error
        self._copy.request("POST", path, body, idempotency_key=idempotency_key)
        self._here.catch_up()

    def _ask(self, command: cmd.Ask, timeout: float | None) -> AsideAnswer:
        self._check_open()
        self._here.follow()
        seq = self._copy.fold.last_seq
        self._command("ask", command=command)
        return wait_for_answer(self._copy, command.aside, seq, self._end_error, timeout)

    def _now(self) -> datetime:
        return datetime.now(UTC)

    def _only_question(self) -> str:
        self._check_open()
        self._here.catch_up()
        ids = [question.id for item in self._copy.fold.open.values() for question in item.questions]
        if not ids:
            raise NotPending("No question waits for an answer.")
        if len(ids) > 1:
            several = "Several questions wait for an answer; say which"
            raise ConfigurationError(f"{several}: {', '.join(ids)}.")
        return ids[0]

    def _send_answer(self, question_id: str, values: Any, reason: str) -> None:
        # a decline may follow an answer that the server refused
        idempotency_key = f"{self.client}-{question_id}{'-declined' if values is None else ''}"
        by = "on_question"
        answer = {"question_id": question_id, "values": values, "reason": reason, "by": by}
        self._command("answer", idempotency_key=idempotency_key, **answer)

    def _send_tools(self) -> None:
        """Send the server the tools if they changed since they were last sent."""
        agent = self.agent
        if agent is not None and not self._here.has_sent(definitions := agent.tools.definitions()):
            with self._lock:
                self._here.send_tools(agent, definitions)
                if self._here.has_tools and self._run.drives:
                    self._here.follow()
