"""`RemoteConversation`: an agent at work on an agent server, with the methods of a
`Conversation`."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.output import made
from holdfast.content import ContentLike, Message, ToolResult
from holdfast.conversation import orders
from holdfast.conversation.callbacks import Callback, Subscription, guarded
from holdfast.conversation.driver import inside
from holdfast.conversation.message_content import checked_content, content_of
from holdfast.conversation.set_once import SetOnce
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    HoldfastError,
    StoreError,
)
from holdfast.llm.completion import Delta
from holdfast.remote.calls import ClientCalls
from holdfast.remote.copy import Copy
from holdfast.remote.follower import Follower
from holdfast.remote.questions import Questions
from holdfast.remote.shapes import (
    ID,
    Created,
    agent_request,
    created,
    needs_workspace,
    tools_request,
)
from holdfast.remote.workspace import RemoteWorkspace
from holdfast.tools.callables import refuse_async

if TYPE_CHECKING:
    from holdfast.conversation.questions import OnQuestion
    from holdfast.conversation.replay import Replay

_log = logging.getLogger("holdfast.remote")

RUNNING = ConversationStatus.RUNNING
_STATUS_POLL_SECONDS = 15.0  # seconds of silence after which the server is asked for its status


class RemoteConversation(SetOnce):
    """One conversation with an agent on the agent server of `workspace`.

    The server holds its journal and runs its loop, even without this program. The methods, their
    arguments, results and errors are those of `Conversation`.

    The agent is sent in its serial form. Its tools run on the server if the server has them or may
    import their module. With `client_tools`, all others run here while this object is open:
    functions of `__main__`, closures, methods of objects, clients of MCP and A2A.

    An `id` that the server knows continues where it stopped. Then `agent` may be None (no tool runs
    here); an agent that differs from the conversation's is a `ConfigurationError`. `on_delta`,
    `on_progress` and `on_question` are as in `Conversation`. The pieces of a streamed answer and
    the progress of the server's tools arrive over the network, so some may be missing.

    `detach` leaves the conversation running; `close` and `with` stop it, as they do a
    `Conversation`. Thread-safe. The constructor sends a request. It raises the server's error,
    or `StoreError` if the server cannot be reached.
    """

    set_once = {
        "agent": (
            "To continue with another agent use conversation.fork(agent=...); other tools are"
            " registered with agent.tools."
        ),
        "workspace": (
            "Open the conversation anew with RemoteConversation(agent, workspace, id=...)."
        ),
        "id": (
            "Give the id to RemoteConversation(agent, workspace, id=...), or fork the conversation"
            " under another one."
        ),
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
        on_delta: Callable[[Delta], object] | None = None,
        on_progress: Callable[[str, str], object] | None = None,
        on_question: OnQuestion = None,
        _made: Created | None = None,
    ) -> None:
        _check(agent, workspace, id, on_delta, on_progress, on_question)
        assert workspace is not None
        self.agent = agent
        self.workspace = workspace
        self.client = os.urandom(16).hex()
        self._link = workspace.link
        self._client_tools = client_tools
        self._options: dict[str, Any] = {
            "client_tools": client_tools,
            "on_delta": on_delta,
            "on_progress": on_progress,
            "on_question": on_question,
        }
        self._sent_tools = None if agent is None else agent.tools.definitions()
        found = _made if _made is not None else self._create(id)
        self.id = found.id
        self.warnings = tuple(found.warnings)
        for warning in found.warnings:
            _log.warning("conversation %s: %s", self.id, warning)
        workspace.adopt(found.workspace)
        self._mark = hash((self._link.address, self.id))
        self._copy = Copy(self.id, self._link, self.client)
        if agent is not None and id is not None and _made is None:
            self._copy.catch_up()
            _same_agent(agent, self._copy.fold.agent, self.id)
        self._questions = Questions(self._copy, on_question, self._answer, self._mark)
        self._calls: ClientCalls | None = None
        if agent is not None and client_tools:
            self._calls = ClientCalls(
                agent,
                self._copy,
                self._link,
                self.client,
                workspace,
                on_progress,
                self._mark,
                self._calls_idle,
                self._questions,
            )
        self._on_delta = None if on_delta is None else guarded(on_delta)
        self._on_progress = None if on_progress is None else guarded(on_progress)
        self._follower = Follower(
            self._copy, self._link, self.client, self._look, self._note, self._mark
        )
        self._subscriptions: list[Subscription] = []
        self._lock = threading.RLock()
        # The server does not say who runs the tools of a parked conversation.
        self._clients = self._calls is not None and (
            found.clients or (_made is None and not found.tools)
        )
        self._started = found.started
        self._drives = False  # True if this object started the loop
        self._runner: threading.Thread | None = None
        self._closing = self._closed = self._close_from_within = self._stop = False
        self._link.opened()
        if agent is not None:
            agent.connections.opened()

    def _create(self, id: str | None) -> Created:
        agent = self.agent
        if agent is None:
            assert id is not None
            return self._info(id)
        tools = tools_request(agent, self.workspace, self._client_tools)
        body: dict[str, Any] = {**agent_request(agent), **tools}
        body |= {
            "questions": self._options["on_question"] is not None,
            "deltas": self._options["on_delta"] is not None,
        }
        if id is not None:
            body["id"] = id
            with suppress(ConversationNotFound):
                return self._info(id)
        if self.workspace.id is not None or needs_workspace(tools):
            body["workspace"] = self.workspace.made()
        return self._link.read(created, "POST", "/api/conversations", body, client=self.client)

    def _info(self, id: str) -> Created:
        return self._link.read(
            created, "GET", f"/api/conversations/{quote(id, safe='')}", client=self.client
        )

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
        sent with it. Raises `ConfigurationError` if `id` has events already.
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
                self._link.request(
                    "PUT",
                    f"{self._copy.path}/state",
                    msgspec.Raw(state.to_json()),
                    client=self.client,
                )
            elif state.events:
                raise Conflict("It has events.")
            self._catch_up()
        except Conflict as error:
            raise ConfigurationError(
                f"from_state: conversation {self.id!r} has events already; give another id."
            ) from error
        except ConfigurationError:
            if new:
                with suppress(HoldfastError):
                    self._link.request("DELETE", self._copy.path, client=self.client)
            raise

    def fork(
        self,
        seq: int | None = None,
        agent: Agent | None = None,
        id: str | None = None,
        **options: Any,
    ) -> RemoteConversation:
        """Return a new conversation on the same server that begins with this one's events up to
        `seq` (None: all), like `Conversation.fork`."""
        self._catch_up()
        last = self._copy.fold.last_seq
        if seq is not None and (not isinstance(seq, int) or not 0 <= seq <= last):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"fork takes a seq from 0 to {last}, not {seq!r}.")
        given = {**self._options, **options}
        body: dict[str, Any] = {"seq": last if seq is None else seq}
        if id is not None:
            body["id"] = id
        if agent is not None:
            body |= {
                **agent_request(agent),
                **tools_request(agent, self.workspace, given["client_tools"]),
            }
        try:
            found = self._link.read(
                created, "POST", f"{self._copy.path}/fork", body, client=self.client
            )
        except Conflict as error:  # the error of a local store
            raise StoreError(str(error)) from error
        return RemoteConversation(
            agent or self.agent, self.workspace, found.id, **given, _made=found
        )

    # --- state ---

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same. The server's stream
        keeps it up to date, so reading it often is cheap."""
        self._follow()
        copy = self._copy
        with copy.changed:
            return ConversationState.of(self.id, self._status(), copy.fold.copy(), copy.until)

    def get_state(self) -> ConversationState:
        """Return a snapshot of everything so far, as `state`."""
        return self.state

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        self._follow()
        return self._status()

    def _status(self) -> ConversationStatus:
        if self._closing:
            return ConversationStatus.CLOSED
        return (
            ConversationStatus.ERROR if self._follower.lost is not None else self._copy.fold.status
        )

    @property
    def failure(self) -> Exception | None:
        """The error that ended following (it was deleted, or the key is no longer valid); None
        if there is none."""
        return self._follower.lost

    @property
    def output(self) -> Any:
        """The output as an object of the local agent's `output_type`, like
        `Conversation.output`. Without an agent, the JSON value."""
        self._follow()
        with self._copy.changed:
            seq, value = self._copy.fold.output_seq, self._copy.fold.output
        return made(None if self.agent is None else self.agent.output, value) if seq else None

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        self._follow()
        return list(self._copy.until(self._copy.fold.last_seq))

    def get_output(self, call_id: str) -> ToolResult:
        """Return the whole result of a call, even if the journal holds only its beginning and
        end. Raises `ConfigurationError` if the call has no result."""
        if not call_id or "/" in call_id or call_id in (".", ".."):  # not possible in a path
            raise ConfigurationError(f"get_output: call {call_id!r} has no result.")
        return self._link.read(
            ToolResult.from_json,
            "GET",
            f"{self._copy.path}/outputs/{quote(call_id, safe='')}",
            client=self.client,
        )

    def replay(self, agent: Agent | None = None) -> Replay:
        """Replay the journal on this machine, like `Conversation.replay`."""
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"replay takes an Agent or None, not {agent!r}.")
        from holdfast.conversation.replay import replay

        return replay(self.get_history(), agent)

    def __repr__(self) -> str:
        status, fold = self._status(), self._copy.fold
        return (
            f"RemoteConversation(id={self.id!r}, status={status.value!r}, events={fold.last_seq},"
            f" url={self._link.address!r})"
        )

    # --- operations ---

    def send_message(self, message: str | Message | ContentLike) -> ev.Message:
        """Send the agent a message from the user, like `Conversation.send_message`. Returns the
        journaled event."""
        content = checked_content(content_of(message))
        self._check_open()
        self._send_tools()
        event_id, before = os.urandom(16).hex(), self._copy.fold.last_seq
        self._post("POST", "messages", {"content": content, "eventId": event_id})
        deadline, number = time.monotonic() + self._link.timeout, 0
        while True:
            self._catch_up()
            found = self._copy.find(event_id, before)
            if isinstance(found, ev.Message):
                return found
            number += 1
            if time.monotonic() > deadline:
                raise StoreError(
                    f"Conversation {self.id!r}: the agent server took the message, but did not"
                    f" journal it within {self._link.timeout:g} s."
                )
            time.sleep(min(0.01 * number, 0.5))

    def start_thread(self) -> None:
        """Have the server drive the loop until `close`. Continues an unfinished run. Idempotent."""
        self._check_open()
        with self._lock:
            if self._runner is not None:
                raise ConversationBusy(
                    f"Conversation {self.id!r} is being run by {self._runner.name!r}; start_thread"
                    " after that."
                )
            if self._started and self._drives:
                return
            self._prepare()
            self._send_tools()
            self._post("POST", "start")
            self._started = True
        self._catch_up()

    def run(self) -> ConversationState:
        """Have the server drive the loop until the conversation rests, wait for that, and return
        its state, like `Conversation.run`."""
        self._check_open()
        self._not_inside("run")
        with self._lock:
            if self._started or self._runner is not None:
                raise ConversationBusy(
                    f"Conversation {self.id!r} is driven by the agent server; use wait()."
                )
            self._runner = threading.current_thread()
        try:
            self._prepare()
            self._send_tools()
            self._follow()
            self._post("POST", "run")
            self._catch_up()
            self._wait(None)
        except KeyboardInterrupt:
            with suppress(HoldfastError):
                self.interrupt()
            raise
        finally:
            self._runner = None
        return self.state

    def pause(self) -> None:
        """Stop after the current model call or the calls that have begun. Survives a restart;
        `resume` ends it."""
        self._order("pause")

    def resume(self) -> None:
        """Continue after a pause or an interrupt; try again after ERROR or STUCK. Otherwise does
        nothing."""
        self._order("resume")

    def interrupt(self) -> None:
        """Pause at once, like `Conversation.interrupt`; cancels the calls that run here, too."""
        self._order("interrupt")

    def condense(self, instructions: str | None = None) -> None:
        """Have the agent's condenser shorten the history that the model is shown, like
        `Conversation.condense`; the server does it when it can."""
        self._order("condense", {"instructions": instructions})

    def approve(
        self,
        call_id: str | None = None,
        *,
        arguments: dict[str, Any] | None = None,
        arguments_hash: str | None = None,
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Approve a call that waits for confirmation, like `Conversation.approve`; without
        `call_id` all that wait now."""
        if call_id is None and (arguments is not None or arguments_hash is not None):
            raise ConfigurationError(
                "approve takes arguments and arguments_hash with a call_id alone."
            )
        if arguments is not None:
            arguments = orders.json_arguments(arguments)
        given = {
            "callId": call_id,
            "arguments": arguments,
            "argumentsHash": arguments_hash,
            "by": by,
            "reason": reason,
        }
        self._order("approve", given)

    def reject(self, call_id: str | None = None, reason: str = "", *, by: str = "user") -> None:
        """Answer a call that waits for confirmation as not run, like `Conversation.reject`;
        without `call_id` all that wait now."""
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"reject: reason takes a str, not {reason!r}.")
        self._order("reject", {"callId": call_id, "reason": reason, "by": by})

    def answer(
        self,
        question_id: str | None = None,
        values: dict[str, Any] | bool | None = True,
        *,
        by: str = "user",
    ) -> None:
        """Answer a running call's question, like `Conversation.answer`; without `question_id`
        the only one."""
        self._order(
            "answer",
            {"questionId": self._question(question_id), "values": values, "by": by},
            keep=("values",),
        )

    def decline(
        self, question_id: str | None = None, reason: str = "", *, by: str = "user"
    ) -> None:
        """Decline a running call's question, like `Conversation.decline`; without `question_id`
        the only one."""
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"decline: reason takes a str, not {reason!r}.")
        given = {
            "questionId": self._question(question_id),
            "values": None,
            "reason": reason,
            "by": by,
        }
        self._order("answer", given, keep=("values",))

    def _question(self, question_id: str | None) -> str:
        if question_id is not None:
            return question_id
        self._check_open()
        self._catch_up()
        waiting = [
            question.id for item in self._copy.fold.open.values() for question in item.questions
        ]
        if len(waiting) != 1:
            raise ConfigurationError(
                "No question waits for an answer."
                if not waiting
                else f"Several questions wait for an answer; say which: {', '.join(waiting)}."
            )
        return waiting[0]

    def _answer(self, question_id: str, values: Any, reason: str) -> None:
        given = {"questionId": question_id, "values": values, "reason": reason, "by": "on_question"}
        self._order("answer", given, keep=("values",), once=f"{self.client}-{question_id}")

    def drain_inbox(self) -> None:
        """Read the events that other clients' commands caused. A followed conversation does this
        by itself."""
        if not self._closing:
            self._catch_up()

    def wait(self, timeout: float | None = None) -> ConversationStatus:
        """Block until nothing runs any more, at most `timeout` seconds; return the status.
        Raises `ConversationBusy` if called from within the conversation."""
        self._not_inside("wait")
        self._follow()
        if not self._started and self._runner is None and not self._closing:
            self._copy.catch_up()
            if not self._driven():
                return self._status()
        self._wait(timeout)
        return self._status()

    def _wait(self, timeout: float | None) -> None:
        copy = self._copy
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with copy.changed:
                seq, until = copy.fold.last_seq, time.monotonic() + _STATUS_POLL_SECONDS
                while not self._at_rest():
                    left = (
                        until - time.monotonic()
                        if deadline is None
                        else min(deadline, until) - time.monotonic()
                    )
                    if left <= 0:
                        break
                    copy.changed.wait(left)
                else:
                    return
            if deadline is not None and time.monotonic() >= deadline:
                return
            if copy.fold.last_seq == seq:
                with suppress(StoreError):
                    if not self._driven():  # another client closed it
                        return

    def _at_rest(self) -> bool:
        fold = self._copy.fold
        if self._closing or self._follower.lost is not None:
            return True
        if fold.status is RUNNING or fold.asked:
            return False
        # a pause lets calls that have begun end first
        return not any(item.attempt and item.asked is None for item in fold.open.values())

    def _driven(self) -> bool:
        """Return True if the server drives the conversation, whichever client started it."""
        found = self._info(self.id)
        if found.error:
            _log.warning(
                "conversation %s: the agent server cannot drive it now: %s", self.id, found.error
            )
        driven = found.open if found.driven is None else found.driven
        return (
            found.started
            or found.busy
            or driven
            or any(item.offered for item in self._copy.fold.open.values())
        )

    def _not_inside(self, method: str) -> None:
        if self._mark in inside.get():
            raise ConversationBusy(
                f"Conversation {self.id!r}: its own model, tool or listener called {method}(),"
                " which would wait for itself forever."
            )

    # --- callbacks ---

    def register_event_callback(
        self, callback: Callback, after_seq: int | None = None
    ) -> Subscription:
        """Call `callback(event)` for every event from now on (or after `after_seq`), like
        `Conversation.register_event_callback`.

        Events come in order, each once despite network failures, on a thread of its own.
        """
        if not callable(callback):
            raise ConfigurationError(
                "register_event_callback: callback takes a function of one event, not"
                f" {callback!r}."
            )
        refuse_async("register_event_callback: callback", callback)
        if after_seq is not None and (not isinstance(after_seq, int) or after_seq < 0):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                "register_event_callback: after_seq takes a seq, 0 for all events, not"
                f" {after_seq!r}."
            )
        self._check_open()
        self._follow()
        with self._copy.changed:
            after = self._copy.fold.last_seq if after_seq is None else after_seq
            subscription = Subscription(cast("Any", self._copy), callback, after)
            self._subscriptions.append(subscription)
        return subscription

    register_callback = register_event_callback

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
        if not self.workspace.link.owner.here:  # a forked child process owns nothing here
            return
        deadline = time.monotonic() + min(timeout, threading.TIMEOUT_MAX)
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._stop = stop and self._drives
        with self._copy.changed:
            self._copy.changed.notify_all()
        self._questions.close()
        if not stop:
            self.workspace.keep()
        if self._calls is not None and self._mark in inside.get() and self._calls.working:
            self._close_from_within = True  # done when the call returns
            self._calls.closing = True
            self._stop_on_server(deadline)
            self._calls.cancel()
            return
        self._finish(deadline)

    def _calls_idle(self) -> None:
        if self._close_from_within:
            self._finish(time.monotonic() + 5.0)

    def _finish(self, deadline: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop_on_server(deadline)
        left = [] if self._calls is None else self._calls.close(deadline)
        if left:
            _log.warning(
                "conversation %s closed while calls that ignore their cancellation still run: %s",
                self.id,
                ", ".join(left),
            )
        if self._follower.started and self._follower.lost is None:
            with suppress(HoldfastError):  # callbacks also get the last events
                self._copy.catch_up(timeout=max(0.5, deadline - time.monotonic()))
        self._follower.stop(max(0.1, deadline - time.monotonic()))
        with self._copy.changed:
            subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close(max(0.1, deadline - time.monotonic()))
        if self.agent is not None:
            self.agent.connections.closed()
        self._link.closed()

    def _stop_on_server(self, deadline: float) -> None:
        """Stop the conversation on the server, once, before calls end here; their results would
        otherwise make the server ask the model."""
        stop, self._stop = self._stop, False
        if stop and self._follower.lost is None:
            try:
                self._link.request(
                    "POST",
                    f"{self._copy.path}/close",
                    client=self.client,
                    timeout=max(1.0, deadline - time.monotonic()),
                )
            except HoldfastError as error:
                _log.warning(
                    "conversation %s: the request to stop it on the agent server failed: %s",
                    self.id,
                    error,
                )

    def __enter__(self) -> RemoteConversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "A RemoteConversation is not pickled; open it there with RemoteConversation(agent,"
            " workspace, id=...)."
        )

    # --- requests to the server ---

    def _check_open(self) -> None:
        if self._closing:
            raise ConversationClosed(
                f"Conversation {self.id!r} is closed. Open it again with RemoteConversation(agent,"
                " workspace, id=...)."
            )
        if self._follower.lost is not None:
            raise self._follower.lost.with_traceback(None)

    def _post(
        self, method: str, what: str, body: dict[str, Any] | None = None, once: str | None = None
    ) -> None:
        self._link.request(method, f"{self._copy.path}/{what}", body, client=self.client, once=once)

    def _order(
        self,
        what: str,
        given: dict[str, Any] | None = None,
        keep: tuple[str, ...] = (),
        once: str | None = None,
    ) -> None:
        """Send a command to the server, and read the resulting events."""
        self._check_open()
        body = {
            name: value
            for name, value in (given or {}).items()
            if value is not None or name in keep
        }
        try:
            json.dumps(body.get("values"))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{what}: values must be valid JSON: {error}.") from error
        self._post("POST", what, body, once)
        self._catch_up()

    def _prepare(self) -> None:
        """Give the caller's context to calls and questions, so that no tool waits for a
        conversation that waits for it."""
        self._drives = True
        context = contextvars.copy_context()
        self._questions.context = context
        if self._calls is not None:
            self._calls.context = context
        if (
            self._clients
            or callable(self._options["on_question"])
            or self._on_delta is not None
            or self._on_progress is not None
        ):
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
                body = tools_request(agent, self.workspace, self._client_tools)
                found = self._link.read(
                    created, "PUT", f"{self._copy.path}/tools", body, client=self.client
                )
                for warning in found.warnings:
                    _log.warning("conversation %s: %s", self.id, warning)
                self._clients = found.clients and self._calls is not None
            self._sent_tools = now
            if self._clients and self._drives:
                self._follow()

    def _catch_up(self) -> None:
        """Bring the copy up to date with the server."""
        self._copy.catch_up()
        self._look()

    def _follow(self) -> None:
        """Follow the event stream from now on."""
        if not self._follower.started and not self._closing:
            self._copy.catch_up()
            self._follower.start()
            self._look()

    def _look(self) -> None:
        if self._closing:
            return
        if self._calls is not None and self._clients:
            self._calls.look()
        self._questions.look()

    def _note(self, kind: str, data: bytes) -> None:
        """Deliver data that is not journaled: a piece of an answer, a tool's progress."""
        try:
            if kind == "delta" and self._on_delta is not None:
                self._on_delta(msgspec.json.decode(data, type=Delta))
            elif kind == "progress" and self._on_progress is not None:
                said = msgspec.json.decode(data, type=_Progress)
                self._on_progress(said.call_id, said.message)
        except ValueError:
            _log.debug("conversation %s: a %s that cannot be read was dropped", self.id, kind)


class _Progress(msgspec.Struct, rename="camel"):
    call_id: str
    message: str


def _same_agent(agent: Agent, head: ev.Agent | None, id: str) -> None:
    """Raise `ConfigurationError` if the journal of an existing conversation shows another agent."""
    if head is None:
        return
    theirs = {tool.name: tool for tool in head.tools}
    other: list[str] = []
    if agent.system_prompt != head.system_prompt:
        other.append("another system prompt")
    if agent.llm.model != head.model:
        other.append(f"the model {head.model!r}, not {agent.llm.model!r}")
    for tool in agent.tools.definitions():
        if tool.name not in theirs:
            other.append(f"no tool {tool.name!r}")
        elif (tool.description, tool.input_schema) != (
            theirs[tool.name].description,
            theirs[tool.name].input_schema,
        ):
            other.append(f"another tool {tool.name!r}")
    if other:
        raise ConfigurationError(
            f"RemoteConversation: agent differs from the agent of conversation {id!r}, which has"
            f" {', '.join(other)}. Leave agent out to continue with that one, or fork the"
            " conversation with another agent."
        )


def _check(
    agent: Any, workspace: Any, id: Any, on_delta: Any, on_progress: Any, on_question: Any
) -> None:
    if not isinstance(workspace, RemoteWorkspace):
        raise ConfigurationError(
            f"RemoteConversation: workspace takes a RemoteWorkspace(url, key), not {workspace!r}."
        )
    if agent is None and id is None:
        raise ConfigurationError(
            "RemoteConversation: agent takes an Agent; only an existing conversation (id=...) needs"
            " none."
        )
    if agent is not None and not isinstance(agent, Agent):
        raise ConfigurationError(f"RemoteConversation: agent takes an Agent, not {agent!r}.")
    if id is not None and (not isinstance(id, str) or not ID.fullmatch(id)):
        raise ConfigurationError(
            "RemoteConversation: id takes 1 to 128 letters, digits, '.', '_' or '-', or None, not"
            f" {id!r}."
        )
    for name, value in (("on_delta", on_delta), ("on_progress", on_progress)):
        if value is not None and not callable(value):
            raise ConfigurationError(
                f"RemoteConversation: {name} takes a function or None, not {value!r}."
            )
        refuse_async(f"RemoteConversation: {name}", value)
    refuse_async("RemoteConversation: on_question", on_question)
    if on_question not in (None, "wait") and not callable(on_question):
        raise ConfigurationError(
            "RemoteConversation: on_question takes a function of a Question, 'wait' or None, not"
            f" {on_question!r}."
        )
