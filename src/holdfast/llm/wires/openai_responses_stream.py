"""The OpenAI Responses wire, streamed. The result equals that of a plain answer."""

from __future__ import annotations

from typing import Any, cast

from holdfast.errors import BadResponse
from holdfast.llm.completion import Completion, Delta
from holdfast.llm.wires.lenient import whole
from holdfast.llm.wires.openai_responses_answer import (
    check_status,
    completion_of,
    message_text,
    thoughts,
)
from holdfast.llm.wires.streams import StreamParser

_TEXT = {"response.output_text.delta", "response.refusal.delta"}
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

    __slots__ = (
        "_calls",
        "_items",
        "_places_with_deltas",
        "_reasoning_place",
        "_response",
        "_status",
    )

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[tuple[int, str], dict[str, Any]] = {}  # (place, id) -> item
        self._calls: dict[Any, int] = {}  # place -> the call's number
        self._places_with_deltas: set[Any] = set()  # places for which deltas arrived
        self._reasoning_place: Any = None  # place of the last piece of reasoning
        self._response: dict[str, Any] | None = None
        self._status = ""

    @property
    def finished(self) -> bool:
        """True if the answer is complete or failed."""
        return self._response is not None

    def _answer(self) -> Completion:
        response = self._response or {}
        check_status(self._status, response.get("error"))
        items = [item for _, item in sorted(self._items.items(), key=lambda entry: entry[0][0])]
        last: Any = response.get("output")
        if isinstance(last, list) and len(cast("list[Any]", last)) > len(items):
            items = cast("list[dict[str, Any]]", last)
        missing = {
            place
            for place in self._places_with_deltas
            if isinstance(place, int) and place >= len(items)
        }
        if missing and len(items) < len(self._places_with_deltas):
            raise BadResponse("The stream ended without an item whose pieces it had sent.")
        details = response.get("incomplete_details")
        return completion_of(
            items,
            self._status,
            details,
            response.get("usage"),
            response.get("id"),
            response.get("model"),
        )

    def _process(self, name: bytes, event: dict[str, Any]) -> None:
        kind = event.get("type") or name.decode("utf-8", "replace")
        if kind in _TEXT:
            self._piece("text", event)
        elif kind == "response.function_call_arguments.delta":
            place = event.get("output_index")
            if place in self._calls:  # otherwise the whole item will carry the arguments
                self._places_with_deltas.add(place)
                self._deltas.append(Delta("tool", _text(event), self._calls[place]))
        elif kind in _REASONING:
            place = (
                event.get("output_index"),
                event.get("summary_index"),
                event.get("content_index"),
            )
            if self._reasoning_place not in (None, place):
                self._deltas.append(Delta("reasoning", "\n\n"))
            self._reasoning_place = place
            self._piece("reasoning", event)
        elif kind == "response.output_item.added":
            if event["item"].get("type") == "function_call":
                self._begin_call(event.get("output_index"), event["item"])
        elif kind == "response.output_item.done":
            self._finish_item(event)
        elif kind in _ENDS:
            self._end(_ENDS[kind], event["response"])

    def _piece(self, kind: Any, event: dict[str, Any]) -> None:
        text = _text(event)
        self._places_with_deltas.add(event.get("output_index"))
        if text:
            self._deltas.append(Delta(kind, text))

    def _begin_call(self, place: Any, item: dict[str, Any]) -> None:
        """Emit a delta for a call that begins, with the arguments that are already present."""
        number = self._calls[place] = len(self._calls)
        arguments = _arguments(item)
        if arguments:
            self._places_with_deltas.add(place)
        self._deltas.append(Delta("tool", arguments, number, whole(str(item.get("name") or ""))))

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
                self._deltas.append(Delta("tool", _arguments(item), self._calls[index]))
        elif index not in self._places_with_deltas:
            text = message_text(item) if kind == "message" else ""
            thought = "\n\n".join(thoughts(item)) if kind == "reasoning" else ""
            if text:
                self._deltas.append(Delta("text", whole(text)))
            if thought:
                if self._reasoning_place is not None:
                    self._deltas.append(Delta("reasoning", "\n\n"))
                self._reasoning_place = (index, None, None)
                self._deltas.append(Delta("reasoning", whole(thought)))
        self._places_with_deltas.add(index)

    def _end(self, status: str, response: dict[str, Any]) -> None:
        status_reported: Any = response.get("status")
        if (
            status == "completed" and status_reported in _ENDS.values()
        ):  # vLLM names every end "completed"
            status = status_reported
        self._status = status
        self._response = response
        self.done = True


def _text(event: dict[str, Any]) -> str:
    text = event["delta"]
    if not isinstance(text, str):
        raise TypeError("a delta that is not text")
    return whole(text)


def _arguments(item: dict[str, Any]) -> str:
    arguments: Any = item.get("arguments")
    return whole(arguments) if isinstance(arguments, str) else ""
