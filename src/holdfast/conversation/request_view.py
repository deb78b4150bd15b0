"""The view of a conversation that its model requests are made from, kept up to date with the
journal."""

from __future__ import annotations

from holdfast import events as ev
from holdfast.agent.view import View
from holdfast.conversation.journal import Journal
from holdfast.llm.transcript import Transcript
from holdfast.object_struct import ObjectStruct

# A conversation at rest keeps the bytes of its view only if it has more items than this. A shorter
# one is rebuilt in 0.2 ms, and most open conversations are short and at rest.
MIN_CACHED_ITEMS = 64


class RequestView(ObjectStruct):
    """The view of a journal. The driving thread uses it, under the journal's lock."""

    _journal: Journal
    _view: View | None = None
    _seq: int = 0  # number of events that the view was fed

    def transcript(self) -> Transcript:
        """Return the next request's transcript, at the cost of the new events. Needs the lock."""
        journal, view = self._journal, self._view
        outdated = view is None
        if view is not None:
            for event in journal.after(self._seq):
                if outdated := type(event) is ev.HistoryCondensed and event.changes:
                    break
                view.feed(event)
        if view is None or outdated:
            view = self._view = View.of(journal.tail)
        self._seq = journal.fold.last_seq
        transcript = view.ready()
        transcript.last_answer = journal.fold.assistant  # even if a condensation hides it
        return transcript

    def drop(self) -> None:
        """Forget the view: it may have been fed partly."""
        self._view = None

    def rest(self) -> None:
        """Forget a short view while the conversation rests."""
        if self._view is not None and len(self._view.transcript) <= MIN_CACHED_ITEMS:
            self._view = None
