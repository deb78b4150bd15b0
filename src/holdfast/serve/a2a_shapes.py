"""A2A's messages, tasks and cards, as the JSON of protocol 1.0.

Messages become content blocks or decisions, and the items of a turn become updates of a task. The
functions here know nothing of transports.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any, cast

from holdfast import __version__
from holdfast import events as ev
from holdfast.content import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
)
from holdfast.conversation import ConversationStatus
from holdfast.conversation.rests import (
    ApprovalRequest,
    PendingItem,
    QuestionRequest,
    Rest,
    TurnCommand,
)
from holdfast.conversation.turns import AnswerPieces, CallProgress, TurnItem
from holdfast.errors import ConfigurationError
from holdfast.server.forms import builtin_names
from holdfast.server.openai import Published
from holdfast.tools.preset.offering import OFFER_FILE
from holdfast.tools.preset.replying import REPLY_ONLY

Json = dict[str, Any]
Keep = Callable[[str, bytes], str]

WORKING = "TASK_STATE_WORKING"
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
COMPLETED = "TASK_STATE_COMPLETED"
CANCELED = "TASK_STATE_CANCELED"
TERMINAL = (COMPLETED, "TASK_STATE_FAILED", CANCELED, "TASK_STATE_REJECTED")

# The statuses of conversations whose tasks may be in a state.
STATUSES = {
    "TASK_STATE_SUBMITTED": ("idle",),
    WORKING: ("running",),
    INPUT_REQUIRED: ("running", "waiting_for_confirmation", "paused"),
    COMPLETED: ("finished",),
    CANCELED: ("paused",),
    "TASK_STATE_FAILED": ("error", "stuck"),
}

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
INPUT_MODES = ("text/plain", "application/json", "application/pdf", *_IMAGES, "audio/*")
_OUTPUT_MODES = ("text/plain", "application/json", "application/octet-stream")
_TEXT_TYPES = re.compile(r"text/[\w.+-]+|application/(json|xml|yaml|[\w.-]+\+(json|xml))")
# Exact words alone approve: a sentence that begins with "yes" may go on with "but".
_YES, _NO = ("approve", "approved", "yes", "y"), ("reject", "rejected", "no", "n")
HOW_TO_APPROVE = (
    "Answer `approve`, or anything else to reject, or a data part"
    ' {"callId": ..., "approve": true | false, "arguments": {...}, "reason": "..."}.'
)


class UnsupportedMediaType(ConfigurationError):
    """A part has a media type that agents do not accept."""


# --- messages of the client ---


def content_of(parts: Iterable[Json], keep: Keep | None) -> tuple[Content, ...]:
    """Return the parts of a message as content. `keep` stores a file of a type that no model reads,
    and returns its path. Raises `UnsupportedMediaType`, `ConfigurationError`."""
    return tuple([_block(part, keep) for part in parts])


def _block(part: Json, keep: Keep | None) -> Content:
    kind, name = str(part.get("mediaType", "")).partition(";")[0].lower(), part.get("filename", "")
    is_text = not kind or bool(_TEXT_TYPES.fullmatch(kind))
    is_media = kind in _IMAGES or kind == "application/pdf" or kind.startswith("audio/")
    if not is_text and not is_media:
        if keep is None or "raw" not in part:
            raise UnsupportedMediaType(
                f"A part has the type {kind[:100]!r}. This agent takes {', '.join(INPUT_MODES)}."
            )
        path = keep(name, b64decode(part["raw"]))
        return TextContent(f"The user sent the file {path} ({kind}).")
    if "text" in part:
        return TextContent(part["text"])
    if "data" in part:
        return TextContent(json.dumps(_whole_numbers(part["data"]), ensure_ascii=False))
    if "url" in part:
        return FileContent(url=part["url"], mime_type=kind, name=name)
    data = b64decode(part.get("raw", ""))
    if not data:
        raise ConfigurationError("A part takes one of text, data, raw and url, and it has none.")
    if kind in _IMAGES:
        return ImageContent(data, kind)
    if kind.startswith("audio/"):
        return AudioContent(data, kind)
    if kind == "application/pdf":
        return FileContent(data, kind, name=name or "document.pdf")
    heading = f"File {name}:\n" if name else ""
    return TextContent(heading + data.decode("utf-8", "replace"))


def decisions_of(parts: Sequence[Json], pending: Sequence[PendingItem]) -> list[TurnCommand]:
    """Return the commands by which a message decides about what a task waits for. Raises
    `ConfigurationError` for a message that does not fit it."""
    data = [_whole_numbers(part["data"]) for part in parts if "data" in part]
    texts = [part["text"] for part in parts if "text" in part]
    if len(data) + len(texts) < len(parts):
        raise ConfigurationError("The task waits for an answer: text, or data parts.")
    if data:
        return [_decision(value, pending) for value in data]
    text = "\n".join(texts).strip()
    if len(pending) > 1 and not all(isinstance(item, ApprovalRequest) for item in pending):
        raise ConfigurationError(
            "The task waits for several answers. Give each in a data part with its callId or"
            " questionId."
        )
    return [_by_text(item, text) for item in pending]


def _by_text(item: PendingItem, text: str) -> TurnCommand:
    word = text.lower().rstrip(".!")
    if isinstance(item, ApprovalRequest):
        if word in _YES:
            return item.approve()
        return item.reject("" if word in _NO else text)
    question = cast("QuestionRequest", item)
    fields = (question.question.schema or {}).get("properties", {})
    if not fields:
        return question.answer(True) if word in _YES else question.decline(text)
    if len(fields) > 1:
        raise ConfigurationError(
            f"The question has the fields {', '.join(fields)}. Answer with a data part"
            ' {"questionId": ..., "answer": {...}}.'
        )
    ((name, shape),) = fields.items()
    kind, value = shape.get("type"), cast("Any", text)
    if kind == "boolean":
        value = word in (*_YES, "true")
    elif kind in ("integer", "number"):
        try:
            value = int(text) if kind == "integer" else float(text)
        except ValueError:
            raise ConfigurationError(f"{name} takes a number, not {text[:80]!r}.") from None
    return question.answer({name: value})


def _decision(value: Any, pending: Sequence[PendingItem]) -> TurnCommand:
    reply: Json = cast("Json", value) if isinstance(value, dict) else {}
    answers = "answer" in reply
    id = reply.get("questionId" if answers else "callId")
    for item in pending:
        if answers and isinstance(item, QuestionRequest) and id in (None, _id(item)):
            answer = reply["answer"]
            if answer is None or answer is False:
                return item.decline(str(reply.get("reason", "")))
            if not isinstance(answer, dict) and answer is not True:
                raise ConfigurationError("answer takes an object, true, or null to decline.")
            return item.answer(cast("Any", answer))
        if not answers and isinstance(item, ApprovalRequest) and id in (None, _id(item)):
            if id is None and len(pending) > 1:
                raise ConfigurationError("Several calls wait. Name one with callId.")
            if reply.get("approve") is True:
                return item.approve(_object(reply.get("arguments")))
            if reply.get("approve") is False:
                return item.reject(str(reply.get("reason", "")))
    raise ConfigurationError(
        'A decision is a data part {"callId": ..., "approve": true | false}, an answer'
        ' {"questionId": ..., "answer": {...}}. The task waits for: '
        + ", ".join(_id(item) for item in pending)
    )


def _whole_numbers(value: Any) -> Any:
    """Return a JSON value with its whole numbers as integers. The SDK reads all as floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(one) for key, one in cast("Json", value).items()}
    if isinstance(value, list):
        return [_whole_numbers(one) for one in cast("list[Any]", value)]
    return value


def _object(value: Any) -> Json | None:
    if value is not None and not isinstance(value, dict):
        raise ConfigurationError("arguments takes an object.")
    return cast("Json | None", value)


def _id(item: PendingItem) -> str:
    if isinstance(item, QuestionRequest):
        return f"{item.conversation}:{item.question.id}".removeprefix(":")
    return item.key if isinstance(item, ApprovalRequest) else item.call.id


# --- tasks ---


class TaskView:
    """The state of a task, which follows from the events of its conversation.

    Feed it the items of a turn, or all events. `take` yields the updates for a client that reads a
    stream. `base` is the address of the workspace's files, "" without one.
    """

    def __init__(self, id: str, context_id: str, base: str = "") -> None:
        self.id = id
        self.context_id = context_id
        self._base = base
        self._pieces = AnswerPieces()
        self._history: list[Json] = []
        self._files: list[Json] = []
        self._offers: set[str] = set()  # ids of calls that offer a file
        self._open_questions: dict[str, str] = {}  # open questions by id
        self._interrupted = False
        self._replies = False  # the agent found that the last message asks for no work
        self._working = False
        self._time = datetime.now(UTC)

    def copy(self) -> TaskView:
        """Return a view, between two answers, that continues independently."""
        view = copy(self)
        view._pieces = AnswerPieces()
        view._history, view._files = [*self._history], [*self._files]
        view._offers, view._open_questions = {*self._offers}, {**self._open_questions}
        return view

    def take(self, item: TurnItem) -> Generator[Json]:
        """Take one item, and yield the updates that follow from it, but for the end of a turn."""
        if isinstance(item, ev.Event):
            self._time = item.timestamp
        if isinstance(item, CallProgress):
            yield self._update(WORKING, self._message(item.message, f"{item.call_id}-progress"))
        text, begins = self._pieces.take(item)
        if text:
            last = isinstance(item, ev.AssistantReplied)
            update = {"artifact": _answer(text), "append": not begins, "lastChunk": last}
            yield {"artifactUpdate": {**self._ids, **update}}
        if isinstance(item, ev.AssistantReplied | ev.CodeCallsMade):
            self._offers |= {call.id for call in item.calls if call.name == OFFER_FILE}
            if item.calls:
                self._replies = all(call.name == REPLY_ONLY for call in item.calls)
        match item:
            case ev.MessageAdded(sender="user"):
                self._replies = False
                self._history.append(self._message(item.text, item.id, "ROLE_USER"))
            case ev.AssistantReplied():
                if item.text:
                    self._history.append(self._message(item.text, item.id))
            case ev.DecisionMade():
                self._history += self._exchange(item)
            case ev.ToolCallFinished() if item.call_id in self._offers:
                for block in item.result.content:
                    if isinstance(block, ResourceLink):
                        self._files.append(self._file(block))
                        yield {"artifactUpdate": {**self._ids, "artifact": self._files[-1]}}
            case ev.StatusChanged():
                self._interrupted = item.reason == "interrupted"
                if item.status == "running" and not self._working:
                    self._working = True
                    yield self._update(WORKING)
            case _:
                pass

    def _exchange(self, event: ev.DecisionMade) -> Generator[Json]:
        """Yield a question that is answered now with the answer, or the decision about a call."""
        if event.question is not None:
            self._open_questions[event.question.id] = event.question.message
        elif event.decision in ("approve", "reject"):
            if question := self._open_questions.pop(event.question_id, ""):
                yield self._message(question, f"{event.id}-question")
            answer = list((event.arguments or {}).values()) if event.question_id else []
            text = event.reason or event.decision
            if event.decision == "approve" and answer:
                one = answer[0] if len(answer) == 1 else event.arguments
                text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            yield self._message(text, event.id, "ROLE_USER")

    def end(self, rest: Rest) -> Generator[Json]:
        """Yield the updates at the end of a turn."""
        if rest.output is not None:
            yield {"artifactUpdate": {**self._ids, "artifact": _output(rest.output)}}
        yield {"statusUpdate": {**self._ids, "status": self.status(rest)}}

    def task(self, rest: Rest) -> Json:
        """Return the whole task."""
        artifacts = list(self._files)
        if rest.output is not None:
            artifacts.append(_output(rest.output))
        if rest.answer and rest.reason == "finished":
            artifacts.append(_answer(rest.answer))
        status = self.status(rest)
        return {
            "id": self.id,
            "contextId": self.context_id,
            "status": status,
            "artifacts": artifacts,
            "history": self._history,
        }

    def reply(self, rest: Rest) -> Json | None:
        """Return the answer as a message without a task, if the agent found no work to do."""
        if not self._replies or rest.reason != "finished" or rest.output is not None:
            return None
        message = self._message(rest.answer, f"{self.id}-{rest.seq}")
        del message["taskId"]
        return message

    def status(self, rest: Rest) -> Json:
        """Return the status at a rest."""
        text = ""
        match rest.reason:
            case "finished":
                submitted = rest.status is ConversationStatus.IDLE
                state = "TASK_STATE_SUBMITTED" if submitted else COMPLETED
            case "approval" | "question" | "call":
                state = INPUT_REQUIRED
            case "paused" if self._interrupted:
                state = CANCELED
            case "paused":
                state, text = INPUT_REQUIRED, "The task is paused. A message continues it."
            case "error" | "stuck":
                state, error = "TASK_STATE_FAILED", rest.error
                text = "The agent got stuck." if error is None else error.message
            case "ended":
                state = WORKING
        message = self._message(text, f"{self.id}-{rest.seq}") if text else None
        if state == INPUT_REQUIRED and rest.pending:
            # It says what the task waits for, in words and as data.
            message = self._message("", f"{self.id}-{rest.seq}")
            message["parts"] = [part for item in rest.pending for part in _request_parts(item)]
        return self._status(state, message)

    @property
    def _ids(self) -> Json:
        return {"taskId": self.id, "contextId": self.context_id}

    def _status(self, state: str, message: Json | None = None) -> Json:
        status: Json = {"state": state, "timestamp": _time(self._time)}
        return status if message is None else {**status, "message": message}

    def _update(self, state: str, message: Json | None = None) -> Json:
        return {"statusUpdate": {**self._ids, "status": self._status(state, message)}}

    def _message(self, text: str, id: str, role: str = "ROLE_AGENT") -> Json:
        return {"messageId": id, "role": role, "parts": [{"text": text}], **self._ids}

    def _file(self, link: ResourceLink) -> Json:
        part = {"url": link.uri, "filename": link.name}
        if self._base and link.uri.startswith("file:"):
            part["url"] = self._base + link.uri.removeprefix("file:///")
        if link.mime_type:
            part["mediaType"] = link.mime_type
        return {"artifactId": f"file-{link.uri}", "name": link.name, "parts": [part]}


def _answer(text: str) -> Json:
    return {"artifactId": "answer", "name": "answer", "parts": [{"text": text}]}


def _output(value: Any) -> Json:
    part = {"data": value, "mediaType": "application/json"}
    return {"artifactId": "output", "name": "output", "parts": [part]}


def _request_parts(item: PendingItem) -> Generator[Json]:
    if isinstance(item, QuestionRequest):
        question = item.question
        request: Json = {"questionId": _id(item), "message": question.message}
        if question.schema is not None:
            request["schema"] = question.schema
        yield {"text": f"{question.message} {question.url}".strip()}
        yield {"data": request, "mediaType": "application/json"}
        return
    call = item.call
    request = {"callId": _id(item), "tool": call.name, "arguments": call.arguments}
    if isinstance(item, ApprovalRequest):
        request |= {"reason": item.reason, "risk": item.risk}
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    yield {"text": f"The agent wants to call {call.name} with {arguments}. {HOW_TO_APPROVE}"}
    yield {"data": request, "mediaType": "application/json"}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- cards ---


def card_of(agent: Published, url: str) -> Json:
    """Return the card of an agent that is served at a URL. One with a workspace takes all files."""
    modes = [*INPUT_MODES, *(["*/*"] if builtin_names(agent.form.mapping) else [])]
    described = str(agent.form.mapping.get("description", "") or f"The agent {agent.name}.")
    skill = {
        "id": agent.name,
        "name": agent.name,
        "description": described,
        "tags": ["agent"],
        "inputModes": modes,
    }
    bindings = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"))
    return {
        "name": agent.name,
        "description": described,
        "version": __version__,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": version}
            for binding, version in bindings
        ],
        "capabilities": {"streaming": True, "pushNotifications": True},
        "defaultInputModes": modes,
        "defaultOutputModes": list(_OUTPUT_MODES),
        "skills": [skill],
        "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
    }
