"""The title that `Agent(title=...)` writes once for a conversation, beside its steps."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast import events as ev
from holdfast.agent.titles import make_title
from holdfast.conversation.facts import TITLE
from holdfast.conversation.lent_model import LentModel
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.tools import Cancellation
from holdfast.tools.arguments import is_model
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.conversation.run_context import RunContext

_CANCEL_SECONDS = 0.5  # for a cancelled model call to return
_PURPOSE = "The model wrote the conversation's title."


class Titling:
    """A thread that writes the title of a conversation, and journals it unless a title was set
    meanwhile. A failure is journaled as a note; neither is tried again."""

    def __init__(self, context: RunContext, titler: Any) -> None:
        self._context = context
        self._titler = titler
        self._cancelled = Cancellation()
        name = f"holdfast-title-{context.journal.id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, deadline: float) -> None:
        """Wait for the title until `deadline`, then cancel its model call."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._cancelled.cancel()
            self._thread.join(_CANCEL_SECONDS)

    def _run(self) -> None:
        context, journal = self._context, self._context.journal
        try:
            title, by = generate_title(context, self._titler, self._cancelled)
        except BaseException as error:  # also a SystemExit of a custom model: the thread ends here
            if self._cancelled:
                return  # the next process tries again
            text = clean(f"No title was written: {describe_error(error)}")
            with suppress(HoldfastError), journal:
                journal.add(ev.NoteRecorded, about=TITLE, text=text)
            return
        with suppress(HoldfastError), journal:
            if not journal.fold.labelled.tried:
                journal.add(ev.ConversationLabelled, title=title, by=by)


def generate_title(
    context: RunContext, titler: Any, cancelled: Cancellation | None = None
) -> tuple[str, str]:
    """Return a title by the first message, and the name of its model or function. The calls of a
    model are counted. Raises `ConfigurationError` without a message, and the errors of
    `make_title`."""
    journal = context.journal
    with journal.lock:
        events = list(journal.events)
    texts = (
        event.text
        for event in events
        if type(event) is ev.MessageAdded and event.sender != "holdfast"
    )
    text = next(texts, None)
    if text is None:
        raise ConfigurationError(
            "A title is written from the first message, and the conversation has none."
        )
    if is_model(titler):
        own = titler is context.agent.llm
        titler = LentModel(titler, journal, None, own, _PURPOSE)
    return make_title(titler, text, cancelled)
