"""Notes on answers that a provider makes in the background: after a kill the same answer is
fetched, instead of being asked for again."""

from __future__ import annotations

import msgspec

from holdfast import events as ev
from holdfast.conversation.run_context import RunContext

ABOUT = "background"
"""The `about` of a note on an answer that is being made. Its details are `responseId` and
`request`."""


class BackgroundNotes(msgspec.Struct, frozen=True, eq=False):
    """The answers in the background that a journal knows of."""

    _context: RunContext

    def pending(self, request: str) -> str:
        """Return the id of the answer to this request that was begun since the last answer; "" for
        none."""
        journal = self._context.journal
        with journal.lock:
            last = journal.fold.assistant
            after = journal.after(0 if last is None else last.seq)
        for event in reversed(after):
            if type(event) is ev.NoteRecorded and event.about == ABOUT:
                details = event.details
                if details.get("request") == request:
                    return str(details["responseId"])
        return ""

    def record_start(self, request: str, response_id: str) -> None:
        """Append a note on an answer."""
        with self._context.journal as journal:
            journal.add(
                ev.NoteRecorded,
                about=ABOUT,
                text="The provider makes the answer in the background.",
                details={"responseId": response_id, "request": request},
            )

    def closing(self) -> bool:
        """Return True if the conversation is being closed."""
        return self._context.closing
