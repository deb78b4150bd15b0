"""Conversations on a server that calls of one have spawned and that ask its user something."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf

from holdfast.cli.call_prompt import WAITING
from holdfast.cli.server import PendingItem, ServerConversations
from holdfast.errors import HoldfastError
from holdfast.events import Question
from holdfast.remote import RemoteConversation

_POLL_SECONDS = 0.5
_REQUEST_SECONDS = 2.0  # the user's Ctrl-C waits for it
# An answer is posted: it takes effect a moment later. What still waits then is asked again.
_EFFECT_SECONDS = 5.0


class ServerChildren:
    """The conversations below one that ask its user something. Polls the server while used."""

    def __init__(self, server: ServerConversations, id: str) -> None:
        self._server = server
        self._id = id
        self._due = 0.0
        self._items: Sequence[PendingItem] = ()
        self._open: dict[str, RemoteConversation] = {}
        # The time from which each item is asked again, by mark; infinite while its prompt is shown.
        self._ask_times: dict[str, float] = {}

    def waiting(self) -> RemoteConversation | None:
        """Return a conversation whose call waits for an approval, None if there is none."""
        for child in self._asking(questions=False):
            first = child.state.pending_confirmations[:1]
            if child.status is WAITING and first and self._ask(f"{child.id}:{first[0].call.id}"):
                return child
        return None

    def question(self) -> tuple[RemoteConversation, Question] | None:
        """Return a conversation and a question that it asks, or None."""
        for child in self._asking(questions=True):
            live = {one.question.id for one in self._items if one.question is not None}
            for _, question in child.state.pending_questions:
                if question.id in live and self._ask(f"{child.id}:{question.id}"):
                    return child, question
        return None

    def close(self) -> None:
        """Detach from all conversations. Idempotent."""
        while self._open:
            self._open.popitem()[1].detach(timeout=0.5)

    def _asking(self, questions: bool) -> Iterator[RemoteConversation]:
        now = time.monotonic()
        for mark, again in self._ask_times.items():
            if again == inf:  # its prompt is over
                self._ask_times[mark] = now + _EFFECT_SECONDS
        if now >= self._due:
            self._items = ()
            with suppress(HoldfastError):
                self._items = self._server.pending(self._id, _REQUEST_SECONDS)
            self._due = time.monotonic() + _POLL_SECONDS
        ids = [one.conversation for one in self._items if (one.question is not None) == questions]
        for id in dict.fromkeys(ids):
            if id != self._id:
                with suppress(HoldfastError):
                    if id not in self._open:
                        workspace = self._server.workspace
                        self._open[id] = RemoteConversation(None, workspace, id)
                    yield self._open[id]

    def _ask(self, mark: str) -> bool:
        """Return True if an item is to be asked now, which is noted."""
        if time.monotonic() < self._ask_times.get(mark, 0.0):
            return False
        self._ask_times[mark] = inf
        return True
