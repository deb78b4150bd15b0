"""Pictures in a conversation, for which a model's sight matters."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.conversation.facts.reducer import FoldBefore, Reducer
from holdfast.llm.vision import has_picture


class PictureFacts(Reducer, frozen=True):
    """`any` is True if a message or result read so far contains a picture."""

    events = (ev.MessageAdded, ev.ToolCallFinished)
    any: bool = False

    def feed(self, event: Any, fold: FoldBefore) -> PictureFacts:
        if self.any:
            return self
        content = event.result.content if type(event) is ev.ToolCallFinished else event.content
        return PictureFacts(True) if has_picture(content) else self
