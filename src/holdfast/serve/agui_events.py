"""The events of AG-UI: a turn as a run, and a conversation as the messages of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast import events as ev
from holdfast.content import Usage, text_of
from holdfast.conversation.fold import Fold
from holdfast.conversation.rests import (
    ApprovalRequest,
    ClientCallRequest,
    PendingItem,
    QuestionRequest,
    Rest,
)
from holdfast.conversation.turns import AnswerPieces, TurnItem
from holdfast.llm.completion import Delta
from holdfast.serve.door import item_name
from holdfast.server.openai import wire_id

Json = dict[str, Any]

_APPROVAL: Json = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "arguments": {"type": "object", "description": "In place of the call's arguments."},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
}


class AguiEvents:
    """The events of one run, fed with the items of its turn. `state` is the front end's; a state
    that is not an object stays unchanged."""

    def __init__(self, thread_id: str, run_id: str, state: Any, folded: Fold) -> None:
        self._about = {"threadId": thread_id, "runId": run_id}
        self._run_id = run_id
        self._state: Json | None = None
        if state is None or isinstance(state, dict):
            self._state = {**cast("Json", state or {})}
        self._fold = folded.copy()
        self._texts = 0
        self._open: tuple[str, str] | None = None  # the kind and id of the message that streams
        self._parent = ""  # the id of the last message of the answer
        self._pieces = {"reasoning": AnswerPieces("reasoning"), "text": AnswerPieces("text")}
        self._usage = Usage()
        self._model = ""

    def start(self, snapshot: list[Json] | None) -> list[Json]:
        """Return the state, and the thread's messages if the front end has lost them."""
        events: list[Json] = []
        if self._state is not None:
            state = {**self._state, "plan": self._plan()}
            events.append({"type": "STATE_SNAPSHOT", "snapshot": state})
        if snapshot is not None:
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": snapshot})
        return events

    def feed(self, item: TurnItem) -> list[Json]:
        """Return the events of an item."""
        match item:
            case Delta(kind="text" | "reasoning"):
                return self._text(item)
            case ev.AssistantReplied():
                self._usage += item.usage
                self._model = item.model
                events = [*self._text(item), *self._end()]
                parent = self._parent or self._new_id()
                for call in item.calls:
                    events += tool_call(wire_id(call.id), call.name, call.raw_arguments, parent)
                self._parent = ""
                return [*events, *self._apply(item)]
            case ev.CodeCallsMade():
                events = self._end()
                for call in item.calls:
                    events += tool_call(wire_id(call.id), call.name, call.raw_arguments, item.id)
                return [*events, *self._apply(item)]
            case ev.ToolCallFinished() if item.call_id in self._fold.open:
                result = {"messageId": item.id, "toolCallId": wire_id(item.call_id)}
                text = text_of(item.result.content)
                tool_result = {
                    "type": "TOOL_CALL_RESULT",
                    **result,
                    "content": text,
                    "role": "tool",
                }
                return [tool_result, *self._apply(item)]
            case ev.Event():
                return self._apply(item)
            case Rest():
                return [*self._end(), self._outcome(item)]
            case _:
                return []

    def _apply(self, event: ev.AnyEvent) -> list[Json]:
        """Apply an event, and return the change of the state."""
        before = self._fold.plan
        self._fold.apply(event)
        if self._fold.plan == before or self._state is None:
            return []
        change = {"op": "replace", "path": "/plan", "value": self._plan()}
        return [{"type": "STATE_DELTA", "delta": [change]}]

    def _plan(self) -> list[Json]:
        return [{"step": one.step, "state": one.state} for one in self._fold.plan]

    def _new_id(self) -> str:
        self._texts += 1
        return f"{self._run_id}-{self._texts}"

    def _text(self, item: Delta | ev.AssistantReplied) -> list[Json]:
        events: list[Json] = []
        for kind, pieces in self._pieces.items():
            text, begins = pieces.take(item)
            if not text:
                continue
            if begins or self._open is None or self._open[0] != kind:
                events += self._end()
                id = self._new_id()
                self._open = kind, id
                events += [{"type": type, "messageId": id, **more} for type, more in _BEGIN[kind]]
                self._parent = id if kind == "text" else self._parent
            assert self._open is not None
            events.append({"type": _CONTENT[kind], "messageId": self._open[1], "delta": text})
        return events

    def _end(self) -> list[Json]:
        if self._open is None:
            return []
        (kind, id), self._open = self._open, None
        return [{"type": type, "messageId": id} for type in _END[kind]]

    def _outcome(self, rest: Rest) -> Json:
        outcome: Json
        match rest.reason:
            case "error" | "stuck" | "ended":
                error = rest.error
                code = rest.reason if error is None else error.error
                message = _ENDS[rest.reason] if error is None else error.message
                return {"type": "RUN_ERROR", "message": message, "code": code}
            case "approval" | "question":
                questions = [one for one in rest.pending if not isinstance(one, ClientCallRequest)]
                outcome = {"type": "interrupt", "interrupts": [*map(_interrupt, questions)]}
            case "paused":
                outcome = {"type": "cancelled"}
            case _:
                pending = [
                    wire_id(item.call.id)
                    for item in rest.pending
                    if isinstance(item, ClientCallRequest)
                ]
                outcome = {"type": "success"}
                if pending:
                    outcome["pendingToolCallIds"] = pending
        event: Json = {"type": "RUN_FINISHED", **self._about, "outcome": outcome}
        if rest.output is not None and rest.reason == "finished":
            event["result"] = rest.output
        usage = self._usage
        if usage != Usage():
            tokens = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}
            event["usage"] = [{"model": self._model, **tokens}]
        return event


def interrupt_id(item: PendingItem) -> str:
    """Return the id that names a pending item, also after it was asked anew."""
    match item:
        case ApprovalRequest():
            return f"approve_call_{item_name(item)}"
        case QuestionRequest():
            return f"answer_call_{item_name(item)}"
        case ClientCallRequest(call=call):
            return wire_id(call.id)


def tool_call(id: str, name: str, arguments: str, parent: str) -> list[Json]:
    """Return the events of a call that is known whole."""
    about = {"toolCallId": id}
    begin = {"toolCallName": name, "parentMessageId": parent}
    events: list[Json] = [{"type": "TOOL_CALL_START", **about, **begin}]
    if arguments:
        events.append({"type": "TOOL_CALL_ARGS", **about, "delta": arguments})
    return [*events, {"type": "TOOL_CALL_END", **about}]


def thread(events: Sequence[ev.AnyEvent]) -> list[Json]:
    """Return the messages of a conversation, as a front end has them."""
    messages: list[Json] = []
    for event in events:
        match event:
            case ev.MessageAdded(sender="user"):
                messages.append({"id": event.id, "role": "user", "content": event.text})
            case ev.AssistantReplied():
                if event.reasoning:
                    about = {"id": f"{event.id}-reasoning", "role": "reasoning"}
                    messages.append({**about, "content": event.reasoning})
                messages.append(_message(event, event.text))
            case ev.CodeCallsMade():
                messages.append(_message(event, ""))
            case ev.ToolCallFinished():
                about = {"id": event.id, "role": "tool", "toolCallId": wire_id(event.call_id)}
                messages.append({**about, "content": text_of(event.result.content)})
            case _:
                pass
    return messages


def _message(event: ev.AssistantReplied | ev.CodeCallsMade, text: str) -> Json:
    message: Json = {"id": event.id, "role": "assistant", "content": text}
    calls = [
        {
            "id": wire_id(call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": call.raw_arguments},
        }
        for call in event.calls
    ]
    return message | ({"toolCalls": calls} if calls else {})


def _interrupt(item: ApprovalRequest | QuestionRequest) -> Json:
    interrupt: Json = {"id": interrupt_id(item)}
    match item:
        case ApprovalRequest(call=call):
            interrupt |= {"reason": "approval", "message": item.reason}
            about = {"toolCallName": call.name, "arguments": call.arguments, "risk": item.risk}
            if not item.conversation:  # else the call is not in this thread
                interrupt["toolCallId"] = wire_id(call.id)
            return interrupt | {"responseSchema": _APPROVAL, "metadata": about}
        case QuestionRequest(question=question):
            interrupt |= {"reason": "question", "message": question.message}
            interrupt["metadata"] = {"asker": question.asker}
            if not item.conversation:
                interrupt["toolCallId"] = wire_id(item.call_id)
            if question.url:
                interrupt["metadata"]["url"] = question.url
            return interrupt | {"responseSchema": question.schema or {"type": "boolean"}}


_CONTENT = {"text": "TEXT_MESSAGE_CONTENT", "reasoning": "REASONING_MESSAGE_CONTENT"}
_BEGIN: dict[str, list[tuple[str, Json]]] = {
    "text": [("TEXT_MESSAGE_START", {"role": "assistant"})],
    "reasoning": [("REASONING_START", {}), ("REASONING_MESSAGE_START", {"role": "reasoning"})],
}
_END = {
    "text": ["TEXT_MESSAGE_END"],
    "reasoning": ["REASONING_MESSAGE_END", "REASONING_END"],
}
_ENDS = {
    "error": "The run failed.",
    "stuck": "The agent got stuck.",
    "ended": "The server shuts down, or the conversation was removed. Send the request again.",
}
