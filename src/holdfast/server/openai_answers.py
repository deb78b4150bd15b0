"""The outcome of a turn as a completion of OpenAI's Chat Completions API, whole or in chunks."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.output import is_output
from holdfast.content import ToolCall, Usage
from holdfast.conversation.rests import Rest
from holdfast.conversation.state import Fold
from holdfast.conversation.turns import AnswerPieces, TurnItem
from holdfast.llm.completion import Delta
from holdfast.server.openai import (
    CalledFunction,
    ChatMessage,
    ChatTurn,
    ClientToolCall,
    Published,
    wire_id,
)

_RESTS = ("paused", "idle", "waiting_for_confirmation")  # statuses before a turn


class TurnProgress:
    """The outcome of a turn so far, which is fed the turn's items. Statuses up to `since` are
    ignored, because the conversation may have been paused before the turn.

    `text` is exactly the text that the client received, because the client sends it back.
    """

    def __init__(self, agent: Published, turn: ChatTurn, since: int = 0) -> None:
        self.text = ""
        self.usage = Usage()
        self.calls: list[ToolCall] = []  # calls that the client must run
        self.status = ""
        self.error: ev.ErrorRecorded | None = None
        self.stop_reason = ""
        self.refusal = ""
        self.annotations: list[dict[str, Any]] = []  # the sources in the API's form
        self.seq = 0  # the seq of the last event
        self.since = since
        # True if the answer is only the structured output, as JSON.
        self.structured = agent.form.mapping.get("output_type") is not None
        self._pieces = AnswerPieces()
        self._offers = {tool.name for tool in turn.offers}
        self._fold = Fold()
        self._earlier_ids: set[str] = set()  # calls that the client received in an earlier turn

    def begin(self, folded: Fold, since: int) -> None:
        """Start from the fold before the first event. Statuses up to `since` are of earlier
        turns."""
        self._fold = folded
        self._earlier_ids = {item.call.id for item in self._fold.turn}
        self.since = since

    def feed(self, item: TurnItem) -> str:
        """Process an item of the turn. Return the text to send."""
        match item:
            case Delta():
                return "" if self.structured else self._piece(item)
            case Rest() if not self.done and item.reason != "ended":
                # approvals of spawned conversations: the run continues without a status
                waits = item.reason in ("approval", "question")
                self.status = "waiting_for_confirmation" if waits else item.status.value
                return ""
            case ev.Event():
                return self._event(item)
            case _:
                return ""

    def _event(self, event: ev.AnyEvent) -> str:
        self.seq = event.seq
        open = self._fold.open
        closed = open.get(event.call_id) if isinstance(event, ev.ToolCallFinished) else None
        if closed is not None and closed.parent:
            closed = None  # a script's call, which the client was not shown
        self._fold.apply(event)
        match event:
            case ev.AssistantReplied():
                self.usage += event.usage
                self.stop_reason, self.refusal = event.stop_reason, event.refusal
                if self.structured:
                    return ""
                text = self._piece(event)
                self._annotate(event, len(self.text) - len(event.text))
                return text
            case ev.ToolCallFinished(result=result) if self.structured and closed is not None:
                if is_output(closed.call.name, result):
                    self.text = ""
                    return self._send(msgspec.json.encode(result.structured_content).decode())
            case ev.StatusChanged():
                if event.seq > self.since or event.status not in _RESTS:
                    self.status = event.status
            case ev.ErrorRecorded():
                self.error = event
            case _:
                pass
        return ""

    def _annotate(self, event: ev.AssistantReplied, begin: int) -> None:
        """Add the sources of an answer whose text begins at `begin`. The API's have an address and
        a place in the text."""
        for one in event.citations:
            if one.url:
                start = begin + (one.start or 0)
                end = begin + (len(event.text) if one.end is None else one.end)
                about = {"url": one.url, "title": one.title, "start_index": max(0, start)}
                about["end_index"] = max(0, end)
                self.annotations.append({"type": "url_citation", "url_citation": about})

    def _piece(self, item: TurnItem) -> str:
        """Return the text of an item to send. Each answer is a paragraph."""
        text, begins = self._pieces.take(item)
        return self._send(f"\n\n{text}" if begins and self.text else text)

    def _send(self, text: str) -> str:
        self.text += text
        return text

    @property
    def done(self) -> bool:
        """True if the conversation rests, or the client must run the next calls."""
        if self.status not in ("", "running"):
            return True
        now = self._fold.turn
        new = any(item.call.id not in self._earlier_ids for item in now)
        if new and all(item.held_by_client and item.call.name in self._offers for item in now):
            self.calls = [item.call for item in now]
            return True
        self.calls = []
        return False

    @property
    def finish_reason(self) -> str:
        """The reason for the end in the API's terms."""
        return "tool_calls" if self.calls else "length" if self.stop_reason == "length" else "stop"

    def message(self) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "role": "assistant",
            "content": self.text or (None if self.calls or self.refusal else ""),
            "refusal": self.refusal or None,
            "annotations": self.annotations,
        }
        if self.calls:
            reply["tool_calls"] = [wire_call(call) for call in self.calls]
        return reply

    def as_sent_back(self) -> ChatMessage:
        """Return the answer in the form in which the client will send it with its next request."""
        calls = [
            ClientToolCall(wire_id(call.id), CalledFunction(call.name, call.raw_arguments))
            for call in self.calls
        ]
        return ChatMessage("assistant", self.text, calls or None)

    def tokens(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_input_tokens,
                "audio_tokens": usage.input_audio_tokens,
            },
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens,
                "audio_tokens": usage.output_audio_tokens,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


def wire_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": wire_id(call.id),
        "type": "function",
        "function": {"name": call.name, "arguments": call.raw_arguments},
    }


def completion(id: str, created: int, model: str, progress: TurnProgress) -> dict[str, Any]:
    choice = _choice("message", progress.message(), progress.finish_reason)
    envelope = _envelope("chat.completion", id, created, model, [choice])
    return {**envelope, "usage": progress.tokens()}


def chunk(
    id: str,
    created: int,
    model: str,
    delta: dict[str, Any] | None,
    finish_reason: str | None = None,
    **more: Any,
) -> bytes:
    """Return one `chat.completion.chunk` as a server-sent event. Without a delta it holds only
    the usage. `more` are further fields."""
    choices = [] if delta is None else [_choice("delta", delta, finish_reason)]
    envelope = _envelope("chat.completion.chunk", id, created, model, choices)
    return b"data: %b\n\n" % msgspec.json.encode({**envelope, **more})


def _choice(name: str, content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, name: content, "logprobs": None, "finish_reason": finish_reason}


def _envelope(kind: str, id: str, created: int, model: str, choices: list[Any]) -> dict[str, Any]:
    return {"id": id, "object": kind, "created": created, "model": model, "choices": choices}


def failure(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
