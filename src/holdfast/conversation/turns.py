"""The items of a turn: a conversation's events with the transient pieces between them."""

from __future__ import annotations

from typing import Literal

from holdfast import events as ev
from holdfast.content import Data
from holdfast.conversation.rests import Rest
from holdfast.llm.completion import Delta


class CallProgress(Data, frozen=True):
    """A message of a running call about its progress, which is not journaled."""

    call_id: str
    message: str


class Silence(Data, frozen=True):
    """The sign that no item has come for a while, for doors that keep a connection alive."""


TurnItem = ev.AnyEvent | Delta | CallProgress | Silence | Rest


class AnswerPieces:
    """The text of answers in pieces, each sent once, from deltas and the later events. `take`
    returns the text to send now, and True if it begins a new answer."""

    def __init__(self, kind: Literal["text", "reasoning"] = "text") -> None:
        self._kind = kind
        self._streamed = ""

    def take(self, item: TurnItem) -> tuple[str, bool]:
        """Return the text of an item that was not sent yet, and whether a new answer begins."""
        begins = not self._streamed
        if isinstance(item, Delta):
            if item.kind == "restart":
                self._streamed = ""
            elif item.kind == self._kind:
                self._streamed += item.text
                return item.text, begins and bool(item.text)
        elif isinstance(item, ev.AssistantReplied):
            text = item.text if self._kind == "text" else item.reasoning
            streamed, self._streamed = self._streamed, ""
            if text.startswith(streamed):
                return text[len(streamed) :], not streamed and bool(text)
            if text.strip().startswith(streamed.strip()):  # the whole text was stripped
                return text.strip()[len(streamed.strip()) :], False
            return text, True  # an answer in place of one that broke off: no text is taken back
        return "", False
