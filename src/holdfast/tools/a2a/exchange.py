"""One message to an A2A agent and its outcome: a stream, a task that is polled, or a failure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, cast

from holdfast.error_text import describe_error
from holdfast.errors import ToolError
from holdfast.tools.a2a.parts import AgentAnswer, text_of
from holdfast.tools.json_values import as_object
from holdfast.tools.results import clip
from holdfast.tools.running import ERROR_TYPE_OF_STATUS

if TYPE_CHECKING:
    from a2a.client import Client
    from a2a.client.client import ClientCallContext
    from a2a.types import Artifact, Message, Part, StreamResponse, Task, TaskStatus

TERMINAL = frozenset({"completed", "failed", "canceled", "rejected"})
# In these states the agent sends nothing more before the next message of the client.
SETTLED = TERMINAL | {"input-required", "auth-required"}
# Pause between two polls of a task; each pause is half as long again as the one before.
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.2, 5.0
# Consecutive failures of polls at which a task counts as lost. A proxy that restarts or a lost
# packet causes fewer.
_MAX_POLL_FAILURES = 3
_TRANSIENT_ERROR_TYPES = ("network", "timeout", "rate_limit")


class Exchange:
    """The exchange of one message, entirely on the loop thread.

    Args:
        client: The connection to the agent.
        message: The message, in the JSON of A2A 1.0.
        answered: The question that this message answers; "" if none. An agent may first show the
            task in its old state, with that question.
        timeout: Seconds for one request.
        tell: A function that gets the agent's status texts while it works.

    `task_known` is set as soon as the agent has sent the task's id, which is then in `task_id`.
    """

    def __init__(
        self,
        client: Client,
        message: dict[str, Any],
        answered: str,
        timeout: float,
        tell: Callable[[str], None],
    ) -> None:
        import asyncio

        self._answered = answered
        self._client = client
        self._message = message
        self._timeout = timeout
        self._tell = tell
        self._last_progress = ""
        self._artifacts: dict[str, Artifact] = {}
        self._status_message: Message | None = None  # the message that came with the state
        self._last_message: Message | None = None  # the newest message of the task's history
        self._reply: Message | None = None  # an answer without a task
        self.task_known = asyncio.Event()
        self.state = ""
        self.question = ""
        self.task_id = str(message.get("taskId", ""))
        self.context_id = str(message.get("contextId", ""))
        if self.task_id:
            self.task_known.set()

    async def run(self, look_first: bool) -> AgentAnswer:
        """Send the message and follow its task until it has settled.

        With `look_first`, the task may have continued by itself, as a task that waited for an
        authorization does. Then the message is sent only if the task still waits.
        """
        if look_first:
            answered, self._answered = self._answered, ""
            await self._poll()
            self._answered = answered if self.question == answered else self.question
        if not look_first or self.state in SETTLED - TERMINAL:
            await self._send()
        if self._reply is None:
            await self._poll_until_settled()
        return self._answer()

    # --- sending ---

    async def _send(self) -> None:
        from a2a.types import SendMessageConfiguration, SendMessageRequest
        from google.protobuf.json_format import ParseDict

        configuration = SendMessageConfiguration(return_immediately=True)
        request = SendMessageRequest(configuration=configuration)
        ParseDict(self._message, request.message)
        got_event = False
        self.state = ""
        try:
            stream = cast("AsyncGenerator[StreamResponse]", self._client.send_message(request))
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    self._take(event)
                    got_event = True
                    if self._reply is not None or self.state in SETTLED:
                        return
        except Exception as error:
            # The stream broke, but the task may go on. Polling finds out.
            if not (got_event and self.task_id and reason_of(error)[1] in _TRANSIENT_ERROR_TYPES):
                raise
        if not self.task_id:
            raise ToolError(
                "the agent answered with neither a task nor a message; its effect may have"
                " happened.",
                retryable=False,
            )

    def _take(self, event: StreamResponse) -> None:
        match event.WhichOneof("payload"):
            case "message":
                self._reply = event.message
                self.context_id = event.message.context_id or self.context_id
            case "task":
                self._take_task(event.task)
            case "status_update":
                self._identify(event.status_update.task_id, event.status_update.context_id)
                self._take_status(event.status_update.status)
            case "artifact_update":
                update = event.artifact_update
                self._identify(update.task_id, update.context_id)
                artifact = self._artifacts.get(update.artifact.artifact_id)
                if artifact is not None and update.append:
                    _append(artifact, update.artifact)
                else:
                    self._artifacts[update.artifact.artifact_id] = update.artifact
            case _:  # an event of a later protocol version
                pass

    def _take_task(self, task: Task) -> None:
        self._identify(task.id, task.context_id)
        self._artifacts = {artifact.artifact_id: artifact for artifact in task.artifacts}
        self._last_message = task.history[-1] if task.history else None
        self._take_status(task.status)

    def _identify(self, task_id: str, context_id: str) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id
        if self.task_id:
            self.task_known.set()

    def _take_status(self, status: TaskStatus) -> None:
        self.question = _question_of(status)
        still_asks = self._answered and self.question == self._answered
        self.state = "submitted" if still_asks else _state_of(status)
        self._status_message = status.message if status.HasField("message") else None
        if self.state not in SETTLED:
            message = self._status_message
            text = (text_of(message.parts) if message is not None else "") or self.state
            if text and text != self._last_progress:
                self._last_progress = text
                self._tell(text)

    # --- polling ---

    async def _poll_until_settled(self) -> None:
        import asyncio

        wait, failures = _FIRST_POLL_SECONDS, 0
        while self.state not in SETTLED:
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _MAX_POLL_SECONDS)
            try:
                await self._poll()
                failures = 0
            except Exception as error:
                failures += 1
                transient = reason_of(error)[1] in _TRANSIENT_ERROR_TYPES
                if not transient or failures >= _MAX_POLL_FAILURES:
                    raise

    async def _poll(self) -> None:
        import asyncio

        from a2a.types import GetTaskRequest

        request = GetTaskRequest(id=self.task_id, history_length=1)
        async with asyncio.timeout(self._timeout):
            self._take_task(
                await self._client.get_task(request, context=request_context(self._timeout))
            )

    async def cancel_task(self) -> None:
        """Ask the agent to cancel the task, if there is one that has not ended."""
        from a2a.types import CancelTaskRequest

        if self.task_id and self.state not in TERMINAL:
            request = CancelTaskRequest(id=self.task_id)
            await self._client.cancel_task(request, context=request_context(self._timeout))

    # --- the answer ---

    def _answer(self) -> AgentAnswer:
        if self._reply is not None:
            return AgentAnswer("", "", self.context_id, "", list(self._reply.parts))
        parts = [part for artifact in self._artifacts.values() for part in artifact.parts]
        status_parts = list(self._status_message.parts) if self._status_message is not None else []
        if not parts and not status_parts:
            status_parts = self._last_answer()
        return AgentAnswer(
            self.state, self.task_id, self.context_id, self.question, parts, status_parts
        )

    def _last_answer(self) -> list[Part]:
        """Return the parts of the history's last message: some agents answer only there."""
        from a2a.types import Role

        last = self._last_message
        return list(last.parts) if last is not None and last.role == Role.ROLE_AGENT else []


def _append(artifact: Artifact, more: Artifact) -> None:
    """Append the next chunk to an artifact. Text that arrives in chunks becomes one text."""
    chunks = list(more.parts)
    seam = [*artifact.parts[-1:], *chunks[:1]]
    if len(seam) == 2 and all(part.WhichOneof("content") == "text" for part in seam):
        artifact.parts[-1].text += chunks.pop(0).text
    artifact.parts.extend(chunks)


def _question_of(status: TaskStatus) -> str:
    """Return a text that identifies a task's question; "" if the status has none."""
    stamp = status.timestamp.ToJsonString() if status.HasField("timestamp") else ""
    return f"{stamp} {status.message.message_id}".strip()


def request_context(timeout: float) -> ClientCallContext:
    """Return the context of a request that must be answered within `timeout` seconds."""
    from a2a.client.client import ClientCallContext

    return ClientCallContext(timeout=timeout)


def _state_of(status: TaskStatus) -> str:
    from a2a.types import TaskState

    try:
        return TaskState.Name(status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    except ValueError:  # a state of a later protocol version; it counts as not settled
        return "unknown"


# --- failures ---

_KIND_OF_STATUS = {
    **ERROR_TYPE_OF_STATUS,
    400: "validation",
    413: "validation",
    422: "validation",
}

# The protocol's errors (A2A 1.0, section 3.3.2), by their classes in the SDK, which maps codes and
# reasons to them.
_KIND_OF_ERROR = {
    "TaskNotFoundError": "not_found",
    "MethodNotFoundError": "not_found",
    "InvalidParamsError": "validation",
    "InvalidRequestError": "validation",
    "ContentTypeNotSupportedError": "validation",
    "UnsupportedOperationError": "validation",
    "TaskNotCancelableError": "validation",
    "JSONParseError": "internal",
    "VersionNotSupportedError": "internal",
    "ExtensionSupportRequiredError": "internal",
    "InternalError": "internal",
    "InvalidAgentResponseError": "internal",
}


def reason_of(error: BaseException, limit: float = 0.0) -> tuple[str, str]:
    """Return a short reason, which ends in a full stop, and its error type. `limit` is the
    timeout in seconds that a timeout error mentions."""
    import httpx
    from a2a.utils.errors import A2AError

    chain = _chain(error)
    for one in chain:
        if isinstance(one, httpx.HTTPStatusError):
            status = one.response.status_code
            kind = _KIND_OF_ERROR.get(type(error).__name__) or _KIND_OF_STATUS.get(
                status, "internal"
            )
            message = _error_message(one.response)
            hint = " Check its token." if kind == "authentication" else ""
            if 300 <= status < 400:
                hint = (
                    " This client does not follow redirects; configure the address that the"
                    " redirect names."
                )
            return _sentence(f"HTTP {status}{': ' * bool(message)}{message}") + hint, kind
        if isinstance(one, TimeoutError | httpx.TimeoutException):
            return f"it did not answer within {limit:g} s.", "timeout"
        if isinstance(one, httpx.RequestError | OSError):
            return _sentence(describe_error(one)), "network"
    last = chain[-1]
    if isinstance(error, A2AError):
        kind = _KIND_OF_ERROR.get(type(error).__name__) or "internal"
        return _sentence(str(error) or describe_error(error)), kind
    return _sentence(describe_error(last)), "internal"


def _error_message(response: Any) -> str:
    """Return the message of a JSON error in either version of the protocol, or ""."""
    try:
        body: Any = json.loads(response.content)
    except (ValueError, RuntimeError):  # httpx raises RuntimeError for a body that was not read
        return ""
    top = as_object(body)
    texts = (top.get("message"), as_object(top.get("error")).get("message"))
    return next((text for text in texts if isinstance(text, str)), "")


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _sentence(text: str) -> str:
    text = clip(text)
    return text if text.endswith((".", "!", "?")) else text + "."
