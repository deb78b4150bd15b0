"""Questions to the user of this program: of calls on the server, and of the client's own calls."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast import events as ev
from holdfast.conversation.questions import DECLINED, MISFIT, OnQuestion
from holdfast.conversation.run_context import inside
from holdfast.errors import ConfigurationError, HoldfastError, NotPending
from holdfast.remote.journal_copy import JournalCopy
from holdfast.remote.server_client import send_until_answered
from holdfast.tools import Cancellation
from holdfast.tools.context import CallQuestion
from holdfast.tools.question_forms import check_form, complete_answer
from holdfast.tools.results import clean

_log = logging.getLogger("holdfast.remote")


class ClientQuestions:
    """Answers questions with the program's function, each on its own thread;
    `answer(question_id, values, reason)` sends the answer to the server."""

    def __init__(
        self, copy: JournalCopy, on_question: OnQuestion, answer: Callable[[str, Any, str], None]
    ) -> None:
        self._copy = copy
        self._function = on_question if callable(on_question) else None
        self._answer = answer
        self._question_ids: set[str] = set()
        self._own_questions = 0
        self._ended = Cancellation()
        self.context = contextvars.copy_context()

    def update(self) -> None:
        """Ask the new questions in the journal. Does not block."""
        if self._function is None:
            return
        with self._copy.lock:
            for item in self._copy.fold.open.values():
                for question in item.questions:
                    if question.id not in self._question_ids:
                        self._question_ids.add(question.id)
                        run, name = self.context.copy().run, f"holdfast-question-{question.id}"
                        args = (self._ask_user, self._function, question)
                        threading.Thread(target=run, args=args, name=name, daemon=True).start()

    def _ask_user(self, function: Callable[[ev.Question], Any], question: ev.Question) -> None:
        inside.set((*inside.get(), self._copy.mark))
        values, reason = self._call(function, question)
        try:
            self._send(question.id, values, reason)
        except NotPending as error:  # another answer was first
            _log.info("conversation %s: %s", self._copy.id, error)
        except HoldfastError as error:
            what = "conversation %s: the agent server refused the answer to question %s: %s"
            _log.warning(what, self._copy.id, question.id, error)
            if values is not None:  # the call must not wait for an answer that never comes
                with suppress(HoldfastError):
                    self._send(question.id, None, "the agent server refused on_question's answer")

    def _call(
        self, function: Callable[[ev.Question], Any], question: ev.Question
    ) -> tuple[dict[str, Any] | None, str]:
        """Return the function's completed answer, or None and the reason."""
        what = f"conversation {self._copy.id}: "
        try:
            values = complete_answer("on_question", question.schema, function(question))
        except ConfigurationError as error:
            _log.warning("%sthe answer to question %s was dropped: %s", what, question.id, error)
            return None, MISFIT
        except BaseException as error:  # sys.exit in the function
            _log.exception(
                "%son_question raised, so that question %s has no answer", what, question.id
            )
            return None, f"on_question raised {type(error).__name__}"
        return values, DECLINED if values is None else ""

    def _send(self, question_id: str, values: dict[str, Any] | None, reason: str) -> None:
        """Send an answer until the server takes or refuses it, so that the user is not asked
        again."""
        answer = partial(self._answer, question_id, values, reason)
        send_until_answered(answer, self._ended, lambda: False)

    def close(self) -> None:
        """Send no further answer."""
        self._ended.cancel()

    @property
    def reachable(self) -> bool:
        """True if this program has a function that asks its user."""
        return self._function is not None

    def ask(self, question: CallQuestion) -> dict[str, Any] | None:
        """Ask this program's user for a call that runs here (`ToolContext.ask`). Not journaled."""
        schema = None if question.schema is None else check_form(question.schema)
        if self._function is None:
            return None
        with self._copy.lock:
            self._own_questions += 1
            id = f"{question.call_id}?{self._own_questions}"
        texts = clean(question.message), schema, clean(question.url), clean(question.asker)
        return self._call(self._function, ev.Question(id, *texts))[0]
