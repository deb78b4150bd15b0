"""Streamed answers of the Responses API."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import BadResponse
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires import answers, responses_plain
from holdfast.llm.wires import responses_answers as plain
from holdfast.llm.wires.lenient_json import clean_texts, join_surrogates
from holdfast.llm.wires.plain import as_json
from holdfast.llm.wires.responses_calls import CLIENT_CALLS, is_for_client
from holdfast.llm.wires.sse import EventReader
from holdfast.llm.wires.streams import StreamParser

_json = msgspec.json.Encoder().encode

_TEXT = "response.output_text.delta"
_ARGUMENTS = "response.function_call_arguments.delta"
_REFUSAL = "response.refusal.delta"
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


class ResponseStream(StreamParser):
    """A parser of one streamed answer.

    The answer's items are those of the `response.output_item.done` events, which all servers
    send. OpenAI's encrypted items are taken from there, as its own client does; the last event
    has them encrypted anew. The items of the last event are used only if there are more of them.
    """

    _piece_decoder = responses_plain.events

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[tuple[int, str], dict[str, Any]] = {}  # (place, id) -> item
        self._calls: dict[Any, int] = {}  # place -> the call's number
        self._places_with_deltas: set[Any] = set()  # places for which deltas arrived
        self._reasoning_place: Any = None  # place of the last piece of reasoning
        self._text_place: Any = None  # place of the last piece of text
        self._model = ""  # as the first event names it
        self.response_id = ""  # as the first event names it
        self.sequence_number = -1  # of the last event
        self._response: dict[str, Any] = {}  # the response of the last event

    def _answer(self) -> Completion:
        get = self._response.get
        response = clean_texts(self._response)
        answer = plain.answer_of(response)
        plain.check_status(answer)
        items = [item for _, item in sorted(self._items.items(), key=lambda entry: entry[0][0])]
        last = answers.as_list(get("output"))
        if len(last) > len(items):
            items = last
        places = self._places_with_deltas
        missing = [place for place in places if isinstance(place, int) and place >= len(items)]
        if len(items) < len(places) and missing:
            raise BadResponse("The stream ended without an item whose pieces it had sent.")
        items = clean_texts(items)
        plain_answer = responses_plain.read(as_json({**response, "output": items}), plain.NAME)
        return plain_answer or plain.completion(answer, items)

    def resume(self) -> None:
        """Go on with another stream of the same answer, which begins after the last event."""
        self._events = EventReader()

    def _add_piece(self, event: responses_plain.ResponsesEvent) -> Delta | None:
        text, place = event.delta, event.output_index
        if type(text) is not str or not text or place is None:
            return None
        if event.error or event.object == "error":
            return None
        if event.type == _TEXT and place == self._text_place:
            delta = Delta("text", text)
        elif event.type == _ARGUMENTS and place in self._calls:
            self._places_with_deltas.add(place)
            delta = Delta("tool", text, self._calls[place])
        else:
            return None
        if type(event.sequence_number) is int:
            self.sequence_number = event.sequence_number
        return delta

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        number = event.get("sequence_number")
        if type(number) is int:
            self.sequence_number = number
        if kind == _TEXT:
            if _text(event):
                self._begin_text(event.get("output_index"), event.get("item_id"))
            self._piece("text", event)
        elif kind == _REFUSAL:  # details have it; it is no text of the answer
            self._places_with_deltas.add(event.get("output_index"))
        elif kind == _ARGUMENTS:
            place = event.get("output_index")
            if place in self._calls:  # otherwise the whole item will carry the arguments
                self._places_with_deltas.add(place)
                self._emit("tool", _text(event), self._calls[place])
        elif kind in _REASONING:
            indexes = ("output_index", "summary_index", "content_index")
            self._begin_reasoning(*[event.get(index) for index in indexes])
            self._piece("reasoning", event)
        elif kind == "response.output_item.added":
            if event["item"].get("type") == "function_call":
                self._begin_call(event.get("output_index"), event["item"])
        elif kind == "response.output_item.done":
            self._finish_item(event)
        elif kind == "response.created":
            response = answers.as_dict(event.get("response"))
            self._model = str(response.get("model"))
            self.response_id = str(response.get("id") or "")
        elif kind in _ENDS:
            response, status = event["response"], _ENDS[kind]
            own_status: Any = response.get("status")
            if status == "completed" and own_status in _ENDS.values():
                status = own_status  # vLLM names every end "completed"
            self._response = {**response, "status": status}
            self.finished = self.done = True

    def _piece(self, kind: Any, event: dict[str, Any]) -> None:
        text = _text(event)
        self._places_with_deltas.add(event.get("output_index"))
        if text:
            self._emit(kind, text)

    def _begin_text(self, index: Any, id: Any) -> None:
        """Separate the texts of two messages as the answer does."""
        place = id if index is None else index
        if self._text_place not in (None, place):
            self._emit("text", answers.GAP)
        self._text_place = place

    def _begin_reasoning(self, *place: Any) -> None:
        if self._reasoning_place not in (None, place):
            self._emit("reasoning", answers.GAP)
        self._reasoning_place = place

    def _begin_call(self, place: Any, item: dict[str, Any]) -> None:
        """Emit a delta for a call that begins, with the arguments that are already present."""
        number = self._calls[place] = len(self._calls)
        arguments = _arguments(item)
        if arguments:
            self._places_with_deltas.add(place)
        self._emit("tool", arguments, number, join_surrogates(str(item.get("name") or "")))

    def _finish_item(self, event: dict[str, Any]) -> None:
        """Keep a whole item, and emit deltas for content that no earlier delta carried."""
        item = cast("dict[str, Any]", event["item"])
        index = event.get("output_index")
        place = index if isinstance(index, int) else len(self._items)
        self._items[place, str(item.get("id") or len(self._items))] = item
        kind = item.get("type")
        if kind == "function_call":
            if index not in self._calls:
                self._begin_call(index, item)
            elif index not in self._places_with_deltas and _arguments(item):
                self._emit("tool", _arguments(item), self._calls[index])
        elif index not in self._places_with_deltas:
            if kind == "message" and (text := "".join(plain.message_texts(item))):
                self._begin_text(index, item.get("id"))
                self._emit("text", text)
            if kind == "reasoning" and (thought := answers.GAP.join(plain.thoughts_of(item))):
                self._begin_reasoning(index, None, None)
                self._emit("reasoning", thought)
            if is_for_client(item, set(), self._model):
                self._emit_client_call(index, item)
        self._places_with_deltas.add(index)

    def _emit_client_call(self, place: Any, item: dict[str, Any]) -> None:
        number = self._calls[place] = len(self._calls)
        kind = CLIENT_CALLS[item["type"]]
        arguments = _json(clean_texts(kind.arguments(item))).decode()
        name = kind.tool or str(item.get("name") or "")
        self._emit("tool", arguments, number, join_surrogates(name))


def _text(event: dict[str, Any]) -> str:
    text = event["delta"]
    if not isinstance(text, str):
        raise TypeError("a delta that is not text")
    return text


def _arguments(item: dict[str, Any]) -> str:
    arguments: Any = item.get("arguments")
    return arguments if isinstance(arguments, str) else ""
