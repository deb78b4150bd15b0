"""Questions of running calls to the user. Each question is journaled before it is asked, and its
answer when it is given."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from holdfast import events as ev
from holdfast.conversation.journal import Journal
from holdfast.errors import ConfigurationError, ConversationClosed, NotPending, StoreError
from holdfast.object_struct import ObjectStruct
from holdfast.tools.context import CallQuestion
from holdfast.tools.question_forms import check_form, complete_answer, mask_secrets
from holdfast.tools.results import clean

OnQuestion = (
    Callable[[ev.Question], dict[str, Any] | bool | None] | Literal["wait", "wait_all"] | None
)

_MAX_QUESTION_CHARS = 10_000  # characters of a question
_HANDOVER_SECONDS = 5.0  # seconds from an answer's append to its effect
_MAX_QUESTIONS = 100  # questions of one call; an endlessly asking server must not fill the journal

DECLINED = "the user declined"
MISFIT = "on_question's answer does not fit the form"
LATE = "no answer within {timeout:g} s"
TAKEN_BACK = "the question was withdrawn before it was answered"


class _WaitingQuestion(ObjectStruct):
    """A question that a call waits for. `values` are valid once `settled`; None declines."""

    question: ev.Question
    # set when the question is settled or cancelled
    woken: threading.Event = msgspec.field(default_factory=threading.Event)
    settled: bool = False
    values: dict[str, Any] | None = None

    def settle(self, values: dict[str, Any] | None) -> None:
        if not self.settled:
            self.values, self.settled = values, True
        self.woken.set()


class UserQuestions(ObjectStruct):
    """The questions of one conversation's calls. `ask` blocks a call's thread. Thread-safe."""

    _journal: Journal
    _on_question: OnQuestion
    _live: dict[str, _WaitingQuestion] | None = None  # guarded by the journal's lock

    @property
    def reachable(self) -> bool:
        """True if questions can be answered: the conversation has an `on_question`."""
        return self._on_question is not None

    def ask(self, question: CallQuestion) -> dict[str, Any] | None:
        """Ask the user; see `ToolContext.ask`."""
        if question.schema is not None:
            question = question._replace(schema=check_form(question.schema))
        on_question = self._on_question
        if on_question is None or any(question.flags):
            return None
        waiting = self._begin(question)
        if waiting is None:
            return None
        forget = [flag.add_callback(waiting.woken.set) for flag in question.flags]
        try:
            if isinstance(on_question, str):
                self._end(waiting, self._wait(waiting, question))
            else:
                self._end(waiting, self._call(on_question, waiting), "on_question")
        except BaseException:
            self._end(waiting, TAKEN_BACK)  # Ctrl-C
            raise
        finally:
            for one in forget:
                one()
            with self._journal.lock:
                (self._live or {}).pop(waiting.question.id, None)
        return waiting.values

    def _begin(self, request: CallQuestion) -> _WaitingQuestion | None:
        """Journal a question; return None if its call may not ask."""
        call_id, message = request.call_id, clean(request.message)[:_MAX_QUESTION_CHARS]
        with self._journal as journal:
            item = journal.fold.open.get(call_id)
            if item is None:  # answered meanwhile; the asking call was left behind
                return None
            if item.questioned >= _MAX_QUESTIONS:
                count = f"{_MAX_QUESTIONS} questions"
                journal.log(f"call {call_id} has asked {count}; further ones are declined")
                return None
            id, asker = f"{call_id}?{item.questioned + 1}", clean(request.asker) or item.call.name
            question = ev.Question(id, message, request.schema, clean(request.url), asker)
            journal.add(
                ev.DecisionMade,
                call_id=call_id,
                decision="ask",
                by=question.asker,
                reason=message,
                question=question,
            )
            waiting = _WaitingQuestion(question)
            # before it is written: a reader may answer at once
            self._live = {**(self._live or {}), question.id: waiting}
        return waiting

    def _wait(self, waiting: _WaitingQuestion, request: CallQuestion) -> str:
        """Wait for an answer through `answer`; return the reason if none came."""
        timeout = request.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        while not waiting.settled and not any(request.flags):
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return LATE.format(timeout=timeout)
            waiting.woken.wait(None if remaining is None else min(remaining, threading.TIMEOUT_MAX))
            waiting.woken.clear()
        return TAKEN_BACK

    def _call(
        self,
        callback: Callable[[ev.Question], dict[str, Any] | bool | None],
        waiting: _WaitingQuestion,
    ) -> str:
        """Journal the answer of `on_question`, or return the reason for its absence."""
        question = waiting.question
        try:
            answer = callback(question)
            values = complete_answer("on_question", question.schema, answer)
        except ConfigurationError as error:
            self._journal.log(f"the answer to question {question.id} was dropped: {error}")
            return MISFIT
        except Exception as error:
            problem = f"on_question raised, so that question {question.id} has no answer"
            self._journal.log(problem, logging.ERROR, traceback=True)
            return f"on_question raised {type(error).__name__}"
        if values is not None:
            with self._journal:
                waits = self._pending(question.id)
                if waits:
                    self._write(question, values, "on_question", "")
            if waits:  # otherwise another answer was first
                waiting.settle(values)
        return DECLINED

    def _end(self, waiting: _WaitingQuestion, reason: str, by: str = "holdfast") -> None:
        """Journal that there is no answer, unless there is one."""
        with self._journal.lock:
            if waiting.settled:
                return
            answered = False
            # suppressed, since its result cannot be stored either
            with suppress(ConversationClosed, StoreError), self._journal as journal:
                if self._pending(waiting.question.id):
                    self._write(waiting.question, None, by, reason)
                else:
                    answered = waiting.question.id.rpartition("?")[0] in journal.fold.open
            if not answered:
                waiting.settle(None)
        # the thread that journaled the answer is about to hand it over
        while not waiting.settled and waiting.woken.wait(_HANDOVER_SECONDS):
            waiting.woken.clear()
        waiting.settle(None)

    # --- answers ---

    def awaits(self, question_id: str) -> bool:
        """Return True if a call of this process waits for the answer to a question."""
        return question_id in (self._live or {})

    def waiting(self, question_id: str | None) -> ev.Question:
        """Return the waiting question with that id; None means the only one. Raises
        `NotPending`, `ConfigurationError` if there are several."""
        with self._journal.lock:
            return self._waiting_question(question_id).question

    def answer(
        self, question_id: str, values: dict[str, Any] | None, by: str, reason: str
    ) -> Callable[[], None]:
        """Journal an answer within a transaction: the filled-in `values`, or None if the user
        declines.

        The returned effect hands it to the call. Raises `NotPending` if the call no longer
        waits for it.
        """
        waiting = self._waiting_question(question_id)
        self._write(waiting.question, values, by, reason)
        return lambda: waiting.settle(values)

    def withdraw(self) -> Callable[[], None]:
        """Journal within a transaction that the waiting questions have no answer.

        The returned effect wakes their calls.
        """
        withdrawn = [one for one in (self._live or {}).values() if self._pending(one.question.id)]
        for waiting in withdrawn:
            self._write(waiting.question, None, "holdfast", TAKEN_BACK)

        def wake() -> None:
            for waiting in withdrawn:
                waiting.settle(None)

        return wake

    def _waiting_question(self, question_id: str | None) -> _WaitingQuestion:
        live = {id: waiting for id, waiting in (self._live or {}).items() if self._pending(id)}
        if question_id is None and len(live) == 1:
            return next(iter(live.values()))
        if question_id in live:
            return live[question_id]
        hint = f" These do: {', '.join(live)}." if live else " None does."
        if question_id is None and live:
            raise ConfigurationError(f"Several questions wait for an answer; say which.{hint}")
        if question_id is None:
            raise NotPending("No question waits for an answer.")
        raise NotPending(f"Question {question_id!r} does not wait for an answer.{hint}")

    def _pending(self, question_id: str) -> bool:
        item = self._journal.fold.open.get(question_id.rpartition("?")[0])
        return item is not None and any(question.id == question_id for question in item.questions)

    def _write(
        self, question: ev.Question, values: dict[str, Any] | None, by: str, reason: str
    ) -> None:
        self._journal.add(
            ev.DecisionMade,
            call_id=question.id.rpartition("?")[0],
            decision="reject" if values is None else "approve",
            by=by,
            reason=reason,
            arguments=None if values is None else mask_secrets(question.schema, values),
            question_id=question.id,
        )
