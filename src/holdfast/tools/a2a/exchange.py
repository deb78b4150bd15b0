"""One message to an A2A agent and what comes of it: a stream, or a task that is asked after until
it has settled."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import ToolError
from holdfast.tools.a2a.errors import reason_of
from holdfast.tools.a2a.parts import Answer, text_of

if TYPE_CHECKING:
    from a2a.client import Client
    from a2a.client.client import ClientCallContext
    from a2a.types import Artifact, Message, StreamResponse, Task, TaskStatus

TERMINAL = frozenset({"completed", "failed", "canceled", "rejected"})
SETTLED = TERMINAL | {
    "input-required",
    "auth-required",
}  # nothing more comes before we say something
_FIRST_WAIT, _LONGEST_WAIT = (
    0.2,
    5.0,
)  # seconds between two questions after a task; each waits half as long again as the one before
# questions in a row that may fail before a task counts as lost: a proxy that restarts, a lost
# packet
_PATIENCE = 3
_PASSING = ("network", "timeout", "rate_limit")


class Exchange:
    """Follows one message. `task_id` is known as soon as the agent has told it, which `known`
    tells.

    `tell` gets what the agent says while it works. Everything runs on the loop thread.
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

        # the question that this message answers: an agent may show the task as it was before
        self._answered = answered

        self._client = client
        self._message = message
        self._timeout = timeout
        self._tell = tell
        self._told = ""
        self._artifacts: dict[str, Artifact] = {}
        self._words: Message | None = None  # what came with the state
        self._last: Message | None = None  # the newest message of the task's history
        self._reply: Message | None = None  # an answer without a task
        self.known = asyncio.Event()
        self.state = ""
        self.question = ""
        self.task_id = str(message.get("taskId", ""))
        self.context_id = str(message.get("contextId", ""))
        if self.task_id:
            self.known.set()

    async def run(self, look_first: bool) -> Answer:
        """Send the message and follow its task until it has settled. `look_first`: the task may
        have gone on by itself meanwhile, as one that waited for an authorisation does; then the
        message is only sent if it still waits."""
        if look_first:
            answered, self._answered = self._answered, ""
            await self._ask()
            self._answered = answered if self.question == answered else self.question
        if not look_first or self.state in SETTLED - TERMINAL:
            await self._send()
        if self._reply is None:
            await self._wait()
        return self._answer()

    # --- sending ---

    async def _send(self) -> None:
        from a2a.types import SendMessageConfiguration, SendMessageRequest
        from google.protobuf.json_format import ParseDict

        request = SendMessageRequest(
            configuration=SendMessageConfiguration(return_immediately=True)
        )
        ParseDict(self._message, request.message)
        heard = False
        self.state = ""
        try:
            sent = cast("AsyncGenerator[StreamResponse]", self._client.send_message(request))
            async with contextlib.aclosing(sent) as events:
                async for event in events:
                    self._take(event)
                    heard = True
                    if self._reply is not None or self.state in SETTLED:
                        return
        except Exception as error:
            # The line broke, but the task may well go on; if it has ended, asking after it will
            # tell.
            if not (heard and self.task_id and reason_of(error)[1] in _PASSING):
                raise
        if not self.task_id:
            raise ToolError(
                "it answered with neither a task nor a message; its effect may have happened.",
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
                known = self._artifacts.get(update.artifact.artifact_id)
                if known is not None and update.append:
                    _append(known, update.artifact)
                else:
                    self._artifacts[update.artifact.artifact_id] = update.artifact
            case _:  # of a later protocol
                pass

    def _take_task(self, task: Task) -> None:
        self._identify(task.id, task.context_id)
        self._artifacts = {artifact.artifact_id: artifact for artifact in task.artifacts}
        self._last = task.history[-1] if task.history else None
        self._take_status(task.status)

    def _identify(self, task_id: str, context_id: str) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id
        if self.task_id:
            self.known.set()

    def _take_status(self, status: TaskStatus) -> None:
        self.question = _question_of(status)
        self.state = (
            "submitted" if self._answered and self.question == self._answered else _state_of(status)
        )
        self._words = status.message if status.HasField("message") else None
        if self.state not in SETTLED:
            text = (text_of(self._words.parts) if self._words is not None else "") or self.state
            if text and text != self._told:
                self._told = text
                self._tell(text)

    # --- asking after it ---

    async def _wait(self) -> None:
        import asyncio

        wait, failures = _FIRST_WAIT, 0
        while self.state not in SETTLED:
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT)
            try:
                await self._ask()
                failures = 0
            except Exception as error:
                failures += 1
                if failures >= _PATIENCE or reason_of(error)[1] not in _PASSING:
                    raise

    async def _ask(self) -> None:
        import asyncio

        from a2a.types import GetTaskRequest

        async with asyncio.timeout(self._timeout):
            self._take_task(
                await self._client.get_task(
                    GetTaskRequest(id=self.task_id, history_length=1),
                    context=limited(self._timeout),
                )
            )

    async def cancel_task(self) -> None:
        """Ask the agent to stop the task, if there is one that has not ended."""
        from a2a.types import CancelTaskRequest

        if self.task_id and self.state not in TERMINAL:
            await self._client.cancel_task(
                CancelTaskRequest(id=self.task_id), context=limited(self._timeout)
            )

    # --- the answer ---

    def _answer(self) -> Answer:
        if self._reply is not None:
            return Answer("", "", self.context_id, "", list(self._reply.parts))
        parts = [part for artifact in self._artifacts.values() for part in artifact.parts]
        words = list(self._words.parts) if self._words is not None else []
        if not parts and not words and self._last is not None and _from_agent(self._last):
            words = list(self._last.parts)  # some agents answer in the history alone
        return Answer(self.state, self.task_id, self.context_id, self.question, parts, words)


def _append(artifact: Artifact, more: Artifact) -> None:
    """The next piece of an artifact. A text that comes in pieces is one text."""
    pieces = list(more.parts)
    if (
        pieces
        and artifact.parts
        and all(part.WhichOneof("content") == "text" for part in (artifact.parts[-1], pieces[0]))
    ):
        artifact.parts[-1].text += pieces.pop(0).text
    artifact.parts.extend(pieces)


def _question_of(status: TaskStatus) -> str:
    """What tells one question of a task from the next; "" if nothing does."""
    stamp = status.timestamp.ToJsonString() if status.HasField("timestamp") else ""
    return f"{stamp} {status.message.message_id}".strip()


def limited(timeout: float) -> ClientCallContext:
    """The context of a request that is answered within `timeout` seconds or not at all."""
    from a2a.client.client import ClientCallContext

    return ClientCallContext(timeout=timeout)


def _state_of(status: TaskStatus) -> str:
    from a2a.types import TaskState

    try:
        return TaskState.Name(status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")
    except ValueError:  # a state of a later protocol: it has not settled as far as we know
        return "unknown"


def _from_agent(message: Message) -> bool:
    from a2a.types import Role

    return message.role == Role.ROLE_AGENT
