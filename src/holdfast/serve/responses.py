"""The responses of OpenAI's Responses API: a turn as a response and its events.

| journal | response |
|---|---|
| an answer's text, reasoning | `message`, `reasoning` (its summary) |
| a call that the agent runs | `mcp_call`, with its result |
| a call that the client runs | `function_call`, answered by a `function_call_output` |
| a call that waits for approval | `mcp_approval_request`, answered by a `mcp_approval_response` |
| a call's question to the user | a `function_call` of `ask_user`, answered likewise |

A response is a part of a journal, from an event on. Each reader of that part gets the same items
with the same numbers. The `sequence_number` of an event counts the events before it. Each character
of a delta counts as one, so the pieces of the model's stream do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.agent.output import is_output
from holdfast.content import ToolCall, Usage, text_of
from holdfast.conversation.rests import ApprovalRequest, ClientCallRequest, QuestionRequest, Rest
from holdfast.conversation.turns import AnswerPieces, TurnItem
from holdfast.llm.completion import Delta
from holdfast.serve.door import item_name
from holdfast.serve.responses_input import Json

ASK = "ask_user"

_STATUSES = {"paused": "cancelled", "error": "failed", "stuck": "failed"}


class StoredRequest(msgspec.Struct, omit_defaults=True):
    """The parts of a request that its response repeats, and that the journal does not hold.
    `system` are the system messages of this request and of those before it."""

    model: str
    created: int
    instructions: str | None = None
    previous: str | None = None
    system: list[str] = []
    tools: list[Json] = []
    tool_choice: Any = "auto"
    parallel: bool = True
    background: bool = False
    store: bool = True
    metadata: dict[str, str] = {}
    structured: bool = False  # True if the answer is only the agent's output, as JSON


class ResponseTurn:
    """A response, fed with the items of its turn. Each method returns the events to send.

    Args:
        calls: The calls that were open before the turn.
    """

    def __init__(self, id: str, request: StoredRequest, calls: Mapping[str, ToolCall]) -> None:
        self.id = id
        self.request = request
        self.output: list[Json] = []
        self.status = "in_progress"
        self.rest: Rest | None = None
        self._calls = dict(calls)
        self._structured = request.structured
        self._usage = Usage()
        self._number = -1
        self._last: ev.AnyEvent | None = None
        self._open: tuple[int, Json] | None = None  # the message or reasoning that streams
        self._running: dict[str, tuple[int, Json]] = {}
        self._cut = False  # True if the model's last answer reached its limit of tokens
        self._pieces = {"reasoning": AnswerPieces("reasoning"), "message": AnswerPieces("text")}

    def start(self) -> list[Json]:
        return [self._event(f"response.{name}", response=self.resource()) for name in _STARTS]

    def feed(self, item: TurnItem) -> list[Json]:
        """Return the events of an item."""
        match item:
            case Delta(kind="text" | "reasoning") if not self._structured:
                return [*self._text("reasoning", item), *self._text("message", item)]
            case ev.AssistantReplied():
                self._last = item
                self._usage += item.usage
                self._cut = item.stop_reason == "length"
                self._calls |= {call.id: call for call in item.calls}
                if self._structured:
                    return []
                events = [*self._text("reasoning", item), *self._text("message", item)]
                if self._open is None and (item.refusal or item.citations):
                    events += self._begin("message")
                return [*events, *self._end(item)]
            case ev.CodeCallsMade():
                self._last = item
                self._calls |= {call.id: call for call in item.calls}
                return []
            case ev.ToolCallStarted(runner="") if item.call_id in self._calls:
                self._last = item
                return [*self._end(), *self._begin_call(self._calls[item.call_id])]
            case ev.ToolCallFinished():
                self._last = item
                return self._end_call(item)
            case ev.Event():
                self._last = item
                return []
            case Rest():
                return self._finish(item)
            case _:
                return []

    def resource(self) -> Json:
        """Return the present response."""
        request, status, usage = self.request, self.status, self._usage
        done = self._last.timestamp if self._last is not None and status == "completed" else None
        error = None
        if status == "failed" and self.rest is not None:
            cause = self.rest.error
            message = "The agent got stuck." if cause is None else cause.message
            error = {"code": "server_error", "message": message}
        return {
            "id": self.id,
            "object": "response",
            "created_at": request.created,
            "completed_at": None if done is None else int(done.timestamp()),
            "status": status,
            "background": request.background,
            "error": error,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": request.instructions,
            "metadata": request.metadata,
            "model": request.model,
            "output": self.output,
            "parallel_tool_calls": request.parallel,
            "previous_response_id": request.previous,
            "store": request.store,
            "text": {"format": {"type": "text"}},
            "tool_choice": request.tool_choice,
            "tools": request.tools,
            "usage": None if status == "in_progress" else _tokens(usage),
            **_DEFAULTS,
        }

    # --- events ---

    def _event(self, type: str, size: int = 1, **fields: Any) -> Json:
        self._number += size
        return {"type": type, "sequence_number": self._number, **fields}

    def _about(self, index: int, item: Json) -> Json:
        return {"item_id": item["id"], "output_index": index}

    def _add(self, item: Json) -> tuple[int, Json]:
        self.output.append(item)
        return len(self.output) - 1, item

    def _add_whole(self, item: Json) -> list[Json]:
        """Add an item that comes whole, in an event for its begin and one for its end."""
        index, _ = self._add(item)
        added = {**item, "status": "in_progress"} if "status" in item else item
        return [
            self._event("response.output_item.added", output_index=index, item=added),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _begin(self, kind: str) -> list[Json]:
        events = self._end()
        item: Json = {"id": "", "type": kind, "status": "in_progress", **_EMPTY[kind]()}
        item["id"] = f"{_PREFIXES[kind]}_{self.id.removeprefix('resp_')}_{len(self.output)}"
        self._open = index, _ = self._add(item)
        part = _part(kind, "")
        events.append(self._event("response.output_item.added", output_index=index, item={**item}))
        where = {**self._about(index, item), _INDEXES[kind]: 0}
        return [*events, self._event(f"response.{_PARTS[kind]}.added", **where, part=part)]

    def _text(self, kind: str, item: Delta | ev.AssistantReplied) -> list[Json]:
        text, begins = self._pieces[kind].take(item)
        if not text:
            return []
        events: list[Json] = []
        if begins or self._open is None or self._open[1]["type"] != kind:
            events = self._begin(kind)
        assert self._open is not None
        index, open = self._open
        (part,) = open[_LISTS[kind]] or [_part(kind, "")]
        open[_LISTS[kind]] = [_part(kind, part["text"] + text)]
        where = {**self._about(index, open), _INDEXES[kind]: 0}
        more: Json = {"logprobs": []} if kind == "message" else {}
        name = f"response.{_TEXTS[kind]}.delta"
        return [*events, self._event(name, len(text), delta=text, **where, **more)]

    def _end(self, answer: ev.AssistantReplied | None = None) -> list[Json]:
        """End the message or reasoning that streams."""
        if self._open is None:
            return []
        (index, item), self._open = self._open, None
        kind = item["type"]
        (part,) = item[_LISTS[kind]] or [_part(kind, "")]
        if kind == "message" and answer is not None:
            part["annotations"] = _citations(answer)
        item[_LISTS[kind]], item["status"] = [part], "completed"
        where = {**self._about(index, item), _INDEXES[kind]: 0}
        more: Json = {"logprobs": []} if kind == "message" else {}
        events = [
            self._event(f"response.{_TEXTS[kind]}.done", **where, text=part["text"], **more),
            self._event(f"response.{_PARTS[kind]}.done", **where, part=part),
        ]
        if kind == "message" and answer is not None and answer.refusal:
            refused = {"type": "refusal", "refusal": answer.refusal}
            item["content"] = [*([part] if part["text"] else []), refused]
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _begin_call(self, call: ToolCall) -> list[Json]:
        if call.id in self._running:
            return []  # another attempt
        item = {
            "id": f"mcp_{call.id.replace('.', '_')}",
            "type": "mcp_call",
            "status": "in_progress",
            "name": call.name,
            "arguments": call.raw_arguments,
            "server_label": self.request.model,
            "output": None,
            "error": None,
        }
        index, _ = self._running[call.id] = self._add(item)
        about = self._about(index, item)
        arguments = call.raw_arguments
        return [
            self._event("response.output_item.added", output_index=index, item={**item}),
            self._event("response.mcp_call.in_progress", **about),
            self._event("response.mcp_call_arguments.done", **about, arguments=arguments),
        ]

    def _end_call(self, event: ev.ToolCallFinished) -> list[Json]:
        call, running = self._calls.get(event.call_id), self._running.pop(event.call_id, None)
        if call is None or running is None:
            return []
        (index, item), result = running, event.result
        ends = "failed" if result.is_error else "completed"
        text = text_of(result.content)
        item["status"] = ends
        if result.is_error:
            item["error"] = {
                "type": "mcp_tool_execution_error",
                "content": [{"type": "text", "text": text}],
            }
        else:
            item["output"] = text
        events = [
            self._event(f"response.mcp_call.{ends}", **self._about(index, item)),
            self._event("response.output_item.done", output_index=index, item={**item}),
        ]
        if self._structured and is_output(call.name, result):
            text = msgspec.json.encode(result.structured_content).decode()
            events += [*self._text("message", Delta("text", text)), *self._end()]
        return events

    def _finish(self, rest: Rest) -> list[Json]:
        events = self._end()
        if rest.reason == "ended":
            text = "The server shuts down, or the conversation was removed. Retrieve the response."
            return [*events, self._event("error", code="server_error", message=text, param=None)]
        for item in rest.pending if rest.reason != "paused" else ():
            name = item_name(item)
            match item:
                case ClientCallRequest(call=call):
                    events += self._function(name, call.name, call.raw_arguments)
                case QuestionRequest(question=question):
                    question_form = {"question": question.message, "schema": question.schema}
                    question_form |= {"url": question.url} if question.url else {}
                    arguments = msgspec.json.encode(question_form).decode()
                    events += self._function(name, ASK, arguments)
                case ApprovalRequest(call=call):
                    events += self._add_whole(
                        {
                            "id": f"mcpr_{name}",
                            "type": "mcp_approval_request",
                            "name": call.name,
                            "arguments": call.raw_arguments,
                            "server_label": self.request.model,
                        }
                    )
        self.rest, ends = rest, _STATUSES.get(rest.reason, "completed")
        self.status = "incomplete" if ends == "completed" and self._cut else ends
        name = "incomplete" if self.status == "cancelled" else self.status
        return [*events, self._event(f"response.{name}", response=self.resource())]

    def _function(self, id: str, name: str, arguments: str) -> list[Json]:
        item: Json = {"id": f"fc_{id}", "type": "function_call", "status": "in_progress"}
        item |= {"call_id": f"call_{id}", "name": name, "arguments": ""}
        index, _ = self._add(item)
        about = self._about(index, item)
        added = self._event("response.output_item.added", output_index=index, item={**item})
        item |= {"arguments": arguments, "status": "completed"}
        call, size = "response.function_call_arguments", len(arguments) or 1
        return [
            added,
            self._event(f"{call}.delta", size, **about, delta=arguments),
            self._event(f"{call}.done", **about, arguments=arguments, name=name),
            self._event("response.output_item.done", output_index=index, item=item),
        ]


def after(events: Sequence[Json], number: int) -> Iterator[Json]:
    """Yield the events after a sequence number, with the rest of a delta that it cuts."""
    for event in events:
        extra = event["sequence_number"] - number
        if extra <= 0:
            continue
        delta = event.get("delta")
        yield {**event, "delta": delta[-extra:]} if delta and extra < len(delta) else event


def _part(kind: str, text: str) -> Json:
    if kind == "reasoning":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _citations(answer: ev.AssistantReplied) -> list[Json]:
    size = len(answer.text)
    return [
        {
            "type": "url_citation",
            "url": one.url,
            "title": one.title,
            "start_index": one.start or 0,
            "end_index": size if one.end is None else one.end,
        }
        for one in answer.citations
        if one.url
    ]


def _tokens(usage: Usage) -> Json:
    cached = {"cached_tokens": usage.cached_input_tokens, "cache_write_tokens": 0}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": cached,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


_STARTS = ("created", "in_progress")
_EMPTY: dict[str, Callable[[], Json]] = {
    "message": lambda: {"role": "assistant", "content": []},
    "reasoning": lambda: {"summary": []},
}
_PREFIXES = {"message": "msg", "reasoning": "rs"}
_LISTS = {"message": "content", "reasoning": "summary"}
_INDEXES = {"message": "content_index", "reasoning": "summary_index"}
_PARTS = {"message": "content_part", "reasoning": "reasoning_summary_part"}
_TEXTS = {"message": "output_text", "reasoning": "reasoning_summary_text"}
# Fields of the API that the agent decides about.
_DEFAULTS: Json = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "truncation": "disabled",
    "user": None,
}
