"""Questions aside: the model is asked about the present conversation, and is never shown the
question or the answer again.

`Asides` journals the question (`AsideAsked`), asks the model on a new thread, and journals the
outcome (`AsideAnswered`). An `AsideAsked` whose process ended is settled by the next owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent import tokens
from holdfast.agent.agent import Agent
from holdfast.agent.view import View
from holdfast.commands import Ask
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.budget import ESTIMATE_FACTOR, fair
from holdfast.conversation.fold import Fold
from holdfast.conversation.journal import Journal
from holdfast.conversation.lent_model import ModelSpending
from holdfast.conversation.loop import Loop
from holdfast.conversation.run_context import RunContext
from holdfast.errors import BadResponse, Conflict, ConversationClosed, HoldfastError, LimitExceeded
from holdfast.llm.completion import Completion
from holdfast.llm.transcript import Transcript
from holdfast.object_struct import ObjectStruct
from holdfast.store.budgets import DOLLAR
from holdfast.tools import Cancellation
from holdfast.tools.results import clean

MAX_PENDING = 8  # questions aside of one conversation that are being answered at the same time
MAX_ROUNDS = 2  # requests of one question: a model that calls a tool is asked once more
MAX_CALL_CHARACTERS = 500  # of an open call's arguments, in the question
_CALLS_TITLE = "Your last answer is not shown here. Its calls have no result yet:"
_ASKED = (
    "[A question aside, while your work goes on. Answer it from what you know, in text. Call no"
    " tool: none is run. This question and your answer will not be shown to you again.]"
)
_NOT_RUN = "Not run: this is a question aside. Answer it in text."
LOST = "The process that asked ended before the answer came. The cost of the question is unknown."
CLOSED = "The conversation was closed before the answer came. The cost of the question is unknown."


class Asides(ObjectStruct):
    """The questions aside of one open conversation. Thread-safe."""

    _context: RunContext
    _loop: Loop
    _running: dict[str, tuple[Cancellation, threading.Thread]] = {}

    @property
    def busy(self) -> bool:
        """True if a question is being answered."""
        return bool(self._running)

    def prepare(self) -> None:
        """Apply the tree limits of a conversation that was not driven yet. Takes the lock."""
        if self._context.journal.spending is None:
            self._loop.bind_budgets()

    def begin(self, command: Ask) -> Callable[[], None]:
        """Journal a question, within a transaction; return the effect that has it answered.

        Raises `Conflict` if the model was never asked, or if too many questions are being
        answered.
        """
        journal, agent = self._context.journal, self._context.agent
        fold = journal.fold
        head, pending = fold.agent, fold.asides.pending
        if head is None:
            raise Conflict(
                f"ask: the model of conversation {journal.id!r} was not asked anything yet, so"
                " there is nothing to ask about. Send a message and run it first."
            )
        if len(pending) >= MAX_PENDING or command.aside in pending:
            problem = "this one is" if command.aside in pending else f"{MAX_PENDING} are"
            raise Conflict(f"ask: {problem} being answered already; ask when an answer has come.")
        until = _settled_until(journal.tail, fold)
        text = f"{_open_calls(fold)}{_ASKED}\n\n"
        reservation: dict[str, Any] = {}
        request_tokens = 0
        if (spending := journal.spending) is not None and spending.counts_amounts:
            sizes = fold.measure(journal.tail)
            request_tokens = int(sizes.tokens * ESTIMATE_FACTOR) + tokens.text(
                text + command.question
            )
            most = spending.beside(request_tokens, agent.llm)
            cost = most.cost / DOLLAR
            reservation = {"reserved_tokens": most.tokens, "reserved_cost": cost}
        event = journal.add(
            ev.AsideAsked,
            aside=command.aside or journal.new_id(),
            question=clean(command.question),
            head=head.seq,
            based_on=until,
            **reservation,
        )
        text += event.question
        last = fold.assistant if fold.assistant and fold.assistant.seq <= until else None
        question = _Question(event, head, agent, request_tokens, text, list(journal.tail), last)
        return partial(self._start, question)

    def _start(self, question: _Question) -> None:
        token, id = Cancellation(), question.event.aside
        thread = threading.Thread(
            target=self._answer, args=(question, token), name=f"holdfast-aside-{id}", daemon=True
        )
        try:
            with self._context.journal.lock:
                if self._context.closing:
                    return  # `close` settles it
                thread.start()
                self._running[id] = token, thread
        except RuntimeError as error:  # the system has no further thread
            self._write(question, {"error": Conflict.__name__, "failed": str(error)})

    def _answer(self, question: _Question, token: Cancellation) -> None:
        began = time.monotonic()
        model_calls: list[ModelSpending] = []
        ignored_tools: list[str] = []
        fields: dict[str, Any]
        try:
            fields = {"text": clean(self._ask(question, token, model_calls, ignored_tools))}
        except BaseException as error:  # also a SystemExit of a custom model: the thread ends here
            kind = type(error).__name__ if isinstance(error, HoldfastError) else "HoldfastError"
            failed = clean(str(error)) or type(error).__name__
            if token and self._context.closing:
                kind, failed = ConversationClosed.__name__, CLOSED
            fields = {"error": kind, "failed": failed}
        total = sum(model_calls, ModelSpending())
        usage, cost = fair(total.usage, total.cost)
        fields |= {
            "usage": usage,
            "cost": cost,
            "model": total.model,
            "ignored": tuple(ignored_tools),
        }
        self._write(question, {**fields, "duration": time.monotonic() - began})

    def _write(self, question: _Question, fields: dict[str, Any]) -> None:
        """Journal the outcome, unless the conversation's close has done so."""
        journal, aside = self._context.journal, question.event.aside
        try:
            with suppress(HoldfastError), journal:  # the lease may be lost, or the store gone
                if aside in journal.fold.asides.pending:
                    journal.add(ev.AsideAnswered, aside=aside, **fields)
        finally:
            with journal.lock:
                self._running.pop(aside, None)
                journal.lock.notify_all()

    def _ask(
        self,
        question: _Question,
        token: Cancellation,
        model_calls: list[ModelSpending],
        ignored_tools: list[str],
    ) -> str:
        """Return the text of the answer. A call of a tool is refused, and the model asked once
        more. `model_calls` receives the model calls, `ignored_tools` the tools that it called."""
        self._check_limits(question.agent)
        transcript, prefix = question.transcript(), f"{question.event.seq}."
        for _ in range(MAX_ROUNDS):
            answer = self._complete(question, transcript, token)
            cost = answer.cost
            if cost is None:
                with suppress(Exception):  # of a custom model class
                    cost = question.agent.llm.cost(answer.usage)
            model_calls.append(
                ModelSpending(answer.usage, cost, answer.model or question.head.model)
            )
            if answer.text.strip():
                ignored_tools += [call.name for call in answer.calls]
                return answer.text
            if not answer.calls:
                break
            # the ids that the wire needs to pair these calls with their results
            calls = [
                replace(call, id=f"{prefix}{len(ignored_tools) + n}")
                for n, call in enumerate(answer.calls)
            ]
            ignored_tools += [call.name for call in calls]
            transcript.append(replace(answer, calls=tuple(calls)))
            for call in calls:
                transcript.append((call, ToolResult.failure(_NOT_RUN, "cancelled")))
        what = "called tools in place of an answer" if ignored_tools else "gave an empty answer"
        raise BadResponse(f"The model {what} to the question aside.")

    def _check_limits(self, agent: Agent) -> None:
        limits = replace(agent.limits, steps=None, seconds=None)
        journal = self._context.journal
        with journal.lock:
            reached = journal.fold.run.reached(limits, None)
        if reached is not None:
            raise LimitExceeded(*reached, f"Conversation {journal.id!r}")

    def _complete(
        self, question: _Question, transcript: Transcript, token: Cancellation
    ) -> Completion:
        journal, agent = self._context.journal, question.agent
        complete = partial(agent.step, transcript, question.head, cancelled=token)
        spending = journal.spending
        if spending is None or not spending.counts_amounts:
            return complete()
        return spending.ask_beside(question.request_tokens, agent.llm, token, complete, False)

    # --- the end ---

    def settle_lost(self) -> None:
        """Journal that the questions of an earlier owner have no answer."""
        if self._context.journal.fold.asides.pending:
            with self._context.journal as journal:
                self._settle(journal, journal.fold.asides.pending, LOST)

    def cancel(self, id: str = "") -> None:
        """Cancel the question of that id, "" for all, if it is still being answered."""
        with self._context.journal.lock:
            tokens = [token for one, (token, _) in self._running.items() if id in ("", one)]
        for token in tokens:
            token.cancel()

    def close(self, deadline: float) -> list[str]:
        """Cancel all questions and wait for their threads until `deadline` (monotonic seconds);
        return the names of the threads that a model keeps."""
        journal = self._context.journal
        self.cancel()
        with journal.lock:
            running = [thread for _, thread in self._running.values()]
        threads = [one for one in running if one is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if journal.lease is not None and journal.fold.asides.pending:
            with suppress(HoldfastError), journal:
                self._settle(journal, journal.fold.asides.pending, CLOSED)
        return [thread.name for thread in threads if thread.is_alive()]

    def _settle(self, journal: Journal, ids: Sequence[str], failed: str) -> None:
        for id in ids:
            error = ConversationClosed.__name__
            journal.add(ev.AsideAnswered, aside=id, error=error, failed=failed, cost=None)


class _Question(msgspec.Struct, frozen=True, eq=False):
    """A journaled question and the parts of its request, which has `request_tokens` tokens.

    `text` is the question in the model's form. `events` are those that a model is still shown, and
    later ones. `last` is the last answer among them.
    """

    event: ev.AsideAsked
    head: ev.AgentConfigured
    agent: Agent
    request_tokens: int
    text: str
    events: list[ev.AnyEvent]
    last: ev.AssistantReplied | None

    def transcript(self) -> Transcript:
        """Return the request: the view up to `based_on`, and the question."""
        until = self.event.based_on
        transcript = View.of([event for event in self.events if event.seq <= until]).ready()
        transcript.last_answer = self.last  # even if a condensation hides it
        transcript.say(self.text)
        return transcript


# --- the request ---


def _settled_until(events: Sequence[ev.AnyEvent], fold: Fold) -> int:
    """Return the seq up to which a request may go: before the last answer if its calls are open or
    its provider has paused it."""
    last = fold.assistant
    if last is None or not (fold.open or last.stop_reason == "pause"):
        return fold.last_seq
    until = last.seq - 1
    for event in reversed(events):
        if type(event) is ev.AssistantReplied and event.seq <= until:
            if event.stop_reason != "pause":
                break
            until = event.seq - 1
    return until


def _open_calls(fold: Fold) -> str:
    """Return the lines about the calls of the last answer that are not settled; "" for none."""
    calls = [item.effective for item in fold.open.values()]
    if not calls:
        return ""
    return "\n".join([_CALLS_TITLE, *[f"- {_described(call)}" for call in calls], "\n"])


def _described(call: ToolCall) -> str:
    text = call.raw_arguments
    cut = text if len(text) <= MAX_CALL_CHARACTERS else f"{text[:MAX_CALL_CHARACTERS]} [...]"
    return f"{call.name} {cut}"
