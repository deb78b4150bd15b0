"""The turns of an agent as tasks of MCP: the extension `io.modelcontextprotocol/tasks` of
2026-07-28.

A client that declares the extension gets a task for a call of `ask_{name}` at once, and asks for
its state. A task is a turn of a conversation. Its id is that of the conversation with the seq of
the turn's message. Its state follows from the journal, so that a later process knows it too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import TextContent
from holdfast.conversation.fold import fold
from holdfast.conversation.rests import (
    ApprovalRequest,
    PendingItem,
    QuestionRequest,
    Rest,
    TurnCommand,
    rest_of,
)
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    NotPending,
    ToolValidationError,
)
from holdfast.serve import shapes
from holdfast.serve.agent_tool import APPROVAL, agent_tool, describe, outcome, session_of, tag_of
from holdfast.serve.door import LocalDoor, LocalSession
from holdfast.serve.elicitation import form_request
from holdfast.tools.running import start_thread
from holdfast.tools.tool import Tool

if TYPE_CHECKING:
    from mcp.server import Server, ServerRequestContext

_log = logging.getLogger("holdfast.serve")

EXTENSION = "io.modelcontextprotocol/tasks"
_POLL_MS = 500  # between two requests for a task's state, as announced to clients
_BEGIN_SECONDS = 60.0  # for a turn to begin, which takes milliseconds
_TERMINAL = ("completed", "cancelled")


class AgentTasks:
    """The tasks of one agent, and its tool `ask_{name}`, which clients without tasks call.
    Thread-safe. Give it to a server together with a manager of the tool:
    `MCPEndpoint(ToolManager([tasks.tool]), tasks=tasks)`."""

    def __init__(self, door: LocalDoor, name: str, description: str = "") -> None:
        self.tool: Tool = agent_tool(door, name, description)
        self._door = door
        self._tag = tag_of(name)
        self._driven: set[str] = set()  # conversations that a thread of this process drives
        self._lock = threading.Lock()

    # --- the wire ---

    def add_to(self, server: Server[Any]) -> None:
        """Add the extension and its methods to a server."""
        import mcp_types

        class TaskParams(mcp_types.RequestParams):
            task_id: str
            input_responses: dict[str, dict[str, Any]] = {}

        methods = {"tasks/get": self._get, "tasks/update": self._update, "tasks/cancel": self._stop}
        for method, work in methods.items():
            server.add_request_handler(method, TaskParams, partial(self._handle, method, work))
        server.extensions[EXTENSION] = {}

    async def _handle(
        self,
        method: str,
        work: Callable[[Any, bool], dict[str, Any]],
        context: ServerRequestContext[Any],
        params: Any,
    ) -> dict[str, Any]:
        from mcp.shared.exceptions import MCPError
        from mcp_types import (
            HEADER_MISMATCH,
            INTERNAL_ERROR,
            INVALID_PARAMS,
            METHOD_NOT_FOUND,
            MISSING_REQUIRED_CLIENT_CAPABILITY,
        )

        request: Any = context.request
        if context.protocol_version < "2026-07-28":
            raise MCPError(METHOD_NOT_FOUND, f"{method} needs MCP 2026-07-28.")
        if not _supports_tasks(context):
            needed: Any = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            text = f"{method} needs the extension {EXTENSION}."
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, needed)
        # Over HTTP the header routes the request, so it must say the same (SEP-2243).
        if request is not None and request.headers.get("mcp-name") != params.task_id:
            raise MCPError(HEADER_MISMATCH, "The header Mcp-Name is not the task's id.")
        try:
            return await asyncio.to_thread(work, params, _can_ask(context))
        except HoldfastError as error:
            wrong = isinstance(error, ToolValidationError | ConfigurationError)
            code = INVALID_PARAMS if wrong else INTERNAL_ERROR
            raise MCPError(code, str(error)) from error

    async def begin(
        self, context: ServerRequestContext[Any], arguments: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Begin a turn, and return its working task. Return None for a client that knows no tasks,
        and if no turn begins; the call of the tool then returns the error."""
        if context.protocol_version < "2026-07-28" or not _supports_tasks(context):
            return None
        try:
            return await asyncio.to_thread(self._begin_task, arguments)
        except HoldfastError:
            return None

    # --- tasks ---

    def _begin_task(self, arguments: dict[str, Any]) -> dict[str, Any]:
        values = self.tool.validate(arguments)
        message, id = values.get("message", ""), values.get("conversation_id", "")
        session = session_of(self._door, message, id, self._tag)
        last = session.state().last_seq
        if message.strip():
            self._drive(session, last, cmd.Send((TextContent(message),)))
        events = session.conversation.get_history()
        seq = _message_seq(events, last if message.strip() else 0)
        if not seq:
            raise ToolValidationError("The conversation has no message.")
        return {**_head(session.id, events, seq), "resultType": "task", "status": "working"}

    def _find(self, id: str) -> tuple[LocalSession, int]:
        """Return a task's conversation and the seq of its message. Raises `ToolValidationError`."""
        conversation, _, number = id.rpartition(".")
        if not conversation or not number.isdecimal() or len(number) > 15:
            raise ToolValidationError(f"There is no task {id[:200]!r}.")
        session, seq = session_of(self._door, "", conversation, self._tag), int(number)
        if not 0 < seq <= session.state().last_seq or not _is_message(
            session.conversation.get_history()[seq - 1]
        ):
            raise ToolValidationError(f"There is no task {id[:200]!r}.")
        return session, seq

    def _get(self, params: Any, asks: bool) -> dict[str, Any]:
        session, seq = self._find(params.task_id)
        task = self._task(session, seq, asks)
        if task["status"] == "working":  # after the end of an earlier process, for example
            self._drive(session, session.state().last_seq)
        return task

    def _update(self, params: Any, asks: bool) -> dict[str, Any]:
        """Carry out the answers of the client's user. Answers to items that no longer wait are
        ignored."""
        session, _ = self._find(params.task_id)
        rest = session.rest()
        answers = [
            answer
            for item in rest.pending
            if (response := params.input_responses.get(_key(item))) is not None
            and (answer := _answer(item, response)) is not None
        ]
        if answers:
            with suppress(NotPending):  # decided elsewhere meanwhile
                self._drive(session, rest.seq, *answers)
        return {}

    def _stop(self, params: Any, asks: bool) -> dict[str, Any]:
        session, seq = self._find(params.task_id)
        if self._task(session, seq, asks)["status"] not in _TERMINAL:
            session.execute(cmd.Interrupt())
        return {}

    def _task(self, session: LocalSession, seq: int, asks: bool) -> dict[str, Any]:
        """Return the state of a task; `asks` says whether the client can ask its user."""
        events = session.conversation.get_history()
        rest = session.rest()
        status = _status(rest, events)
        if later := _message_seq(events, seq, first=True):
            before = events[: later - 1]
            ended = rest_of(fold(before), later - 1)
            # A message to a turn that is not over is a part of it.
            if (then := _status(ended, before)) in _TERMINAL:
                events, rest, status = before, ended, then
        task = _head(session.id, events, seq)
        if status == "input_required" and asks:
            task["statusMessage"] = "\n".join(describe(item) for item in rest.pending)
            task["inputRequests"] = {_key(item): _request(item) for item in rest.pending}
        elif status in ("completed", "input_required"):
            status = "completed"
            task["result"] = shapes.result(outcome(session, rest), None, True)
        return {**task, "status": status}

    # --- runs ---

    def _drive(self, session: LocalSession, seq: int, *commands: TurnCommand) -> None:
        """Carry out commands and go on on a thread. Returns when the commands are journaled.
        Raises their errors."""
        with self._lock:
            if not commands and session.id in self._driven:
                return
            self._driven.add(session.id)
        started: Future[None] = Future()

        def work() -> None:
            try:
                for _ in session.turn(seq, *commands):
                    if not started.done():
                        started.set_result(None)
            except Exception as error:
                if not started.done():
                    started.set_exception(error)
                elif not isinstance(error, HoldfastError):
                    _log.exception("a task's run failed")
            finally:
                with self._lock:
                    self._driven.discard(session.id)

        start_thread(work, f"holdfast-task-{session.id}")
        if commands:
            started.result(_BEGIN_SECONDS)


def _head(id: str, events: Sequence[ev.AnyEvent], seq: int) -> dict[str, Any]:
    return {
        "taskId": f"{id}.{seq}",
        "createdAt": events[seq - 1].timestamp.isoformat(),
        "lastUpdatedAt": events[-1].timestamp.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }


def _supports_tasks(context: ServerRequestContext[Any]) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


def _can_ask(context: ServerRequestContext[Any]) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _is_message(event: ev.AnyEvent) -> bool:
    return isinstance(event, ev.MessageAdded) and event.sender == "user"


def _message_seq(events: Sequence[ev.AnyEvent], after: int, *, first: bool = False) -> int:
    """Return the seq of the last user's message after a seq, or of the first; 0 without any."""
    seqs = [event.seq for event in events[after:] if _is_message(event)]
    return 0 if not seqs else seqs[0 if first else -1]


def _status(rest: Rest, events: Sequence[ev.AnyEvent]) -> str:
    """Return the status of a turn that is at a rest after these events."""
    match rest.reason:
        case "finished" | "error" | "stuck":
            return "completed"
        case "approval" | "question":
            return "input_required"
        case "paused":
            changes = [event for event in events if isinstance(event, ev.StatusChanged)]
            return "cancelled" if changes[-1].reason == "interrupted" else "working"
        case _:
            return "working"


def _key(item: PendingItem) -> str:
    """Return the id of a request to the user. A question that is asked anew has another one."""
    return item.call.id if not isinstance(item, ApprovalRequest | QuestionRequest) else item.mark


def _request(item: PendingItem) -> dict[str, Any]:
    if isinstance(item, QuestionRequest):
        question = item.question
        return form_request(f"{question.message} {question.url}".strip(), question.schema)
    return form_request(describe(item), APPROVAL)


def _answer(item: PendingItem, response: dict[str, Any]) -> TurnCommand | None:
    """Return the command for a response of the client. One that was dismissed decides nothing."""
    values = cast("dict[str, Any]", response.get("content") or {})
    match response.get("action"), item:
        case "accept", ApprovalRequest() if values.get("approve") is True:
            return item.approve()
        case "accept", ApprovalRequest():
            return item.reject(str(values.get("reason") or ""))
        case "decline", ApprovalRequest():
            return item.reject("The user declined.")
        case "accept", QuestionRequest():
            return item.answer(values or True)
        case "decline", QuestionRequest():
            return item.decline()
        case _:
            return None
