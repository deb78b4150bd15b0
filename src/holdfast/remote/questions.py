"""Questions to the user of this program: those of calls on the server, through the journal, and
those of the client's own calls."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

from holdfast import events as ev
from holdfast.conversation.driver import inside
from holdfast.conversation.questions import OnQuestion
from holdfast.errors import HoldfastError, StoreError
from holdfast.remote.copy import Copy
from holdfast.remote.link import pause
from holdfast.tools import Cancellation
from holdfast.tools.forms import check_form, filled
from holdfast.tools.results import clean

_log = logging.getLogger("holdfast.remote")


class Questions:
    """Answers questions with the program's function, each on its own thread;
    `answer(question_id, values, reason)` sends the answer to the server."""

    def __init__(
        self,
        copy: Copy,
        on_question: OnQuestion,
        answer: Callable[[str, Any, str], None],
        mark: int,
    ) -> None:
        self._copy = copy
        self._on_question = on_question
        self._answer = answer
        self._mark = mark
        self._seen: set[str] = set()
        self._threads: set[threading.Thread] = set()
        self._asked = 0
        self._ended = Cancellation()
        self.context = contextvars.copy_context()

    def look(self) -> None:
        """Ask the new questions in the journal. Does not block."""
        if not callable(self._on_question):
            return
        with self._copy.changed:
            new = [
                one
                for item in self._copy.fold.open.values()
                for one in item.questions
                if one.id not in self._seen
            ]
            for question in new:
                self._seen.add(question.id)
                context = self.context.copy()
                thread = threading.Thread(
                    target=context.run,
                    args=(self._ask_user, question),
                    name=f"holdfast-question-{question.id}",
                    daemon=True,
                )
                self._threads.add(thread)
                thread.start()

    def _ask_user(self, question: ev.Question) -> None:
        inside.set((*inside.get(), self._mark))
        values, reason = None, "the user declined"
        try:
            assert callable(self._on_question)
            values = self._on_question(question)
        except Exception as error:
            _log.exception(
                "conversation %s: on_question raised, so that question %s has no answer",
                self._copy.id,
                question.id,
            )
            reason = f"on_question raised {type(error).__name__}"
        try:
            self._send_answer(question.id, values, "" if values not in (None, False) else reason)
        finally:
            with self._copy.changed:
                self._threads.discard(threading.current_thread())

    def _send_answer(self, id: str, values: Any, reason: str) -> None:
        """Send an answer until the server takes or refuses it, so that the user is not asked
        again."""
        number = 0
        while True:
            try:
                self._answer(id, values, reason)
                return
            except HoldfastError as error:
                if type(error) is StoreError and not self._ended:
                    # the server cannot be reached now
                    self._ended.wait(pause(number))
                    number += 1
                    continue
                _log.warning(
                    "conversation %s: the agent server refused the answer to question %s: %s",
                    self._copy.id,
                    id,
                    error,
                )
                return

    def close(self) -> None:
        """Send no further answer."""
        self._ended.cancel()

    @property
    def reachable(self) -> bool:
        """True if this program has a function that asks its user."""
        return callable(self._on_question)

    def ask(
        self,
        call_id: str,
        message: str,
        schema: dict[str, Any] | None,
        url: str,
        asker: str,
        timeout: float | None,
        flags: list[Cancellation],
    ) -> dict[str, Any] | None:
        """Ask this program's user for a call that runs here (`ToolContext.ask`). Not journaled."""
        if schema is not None:
            schema = check_form(schema)
        if not callable(self._on_question):
            return None
        with self._copy.changed:
            self._asked += 1
            number = self._asked
        found = self._on_question(
            ev.Question(f"{call_id}?{number}", clean(message), schema, clean(url), clean(asker))
        )
        return filled("on_question", schema, found)
