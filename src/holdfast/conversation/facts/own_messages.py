"""Holdfast's own messages that a model is still shown."""

from __future__ import annotations

from typing import Any

from holdfast import events as ev
from holdfast.conversation.facts.reducer import FoldBefore, Reducer


class OwnMessages(Reducer, frozen=True):
    """The seqs of these messages, by `Message.about`."""

    events = (ev.MessageAdded, ev.HistoryCondensed)
    seqs: dict[str, int] = {}

    def feed(self, event: Any, fold: FoldBefore) -> OwnMessages:
        if type(event) is ev.MessageAdded:
            return OwnMessages({**self.seqs, event.about: event.seq}) if event.about else self
        if not self.seqs or not event.hidden:
            return self
        hidden = frozenset(event.hidden)
        return OwnMessages({about: seq for about, seq in self.seqs.items() if seq not in hidden})
