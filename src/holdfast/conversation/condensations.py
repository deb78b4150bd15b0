"""Condensations of the history: the agent's condenser is asked, and its answer is journaled."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.condenser import Condensed, ask, trigger_of
from holdfast.agent.planning import plan_tokens
from holdfast.conversation.budget import CONDENSATION_NOTE, token_count
from holdfast.conversation.hook_points import HookPoints
from holdfast.conversation.lent_model import LentModel, ModelSpending
from holdfast.conversation.request_view import RequestView
from holdfast.conversation.run_context import RunContext
from holdfast.error_text import describe_error
from holdfast.errors import ContextTooLong, ConversationClosed, StoreError, UnreadableEvent
from holdfast.llm.wires.answers import holds_compaction
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.agent.condensers.condenser_input import CondenserInput

DEFAULT_SHARE = 0.5  # of the present tokens that a condensation aims at


class Condensations(ObjectStruct):
    """The condensations of one conversation. `trigger` is the number of tokens of a request from
    which it is condensed, None for never. The driving thread uses it."""

    _context: RunContext
    _hooks: HookPoints
    _view: RequestView
    trigger: int | None = None

    def serve(self) -> None:
        """Condense by the settings of the agent that answers now."""
        agent = self._context.agent
        self.trigger = None if agent.condenser is None else trigger_of(agent)

    def condense(self, request: str | None, tokens: int) -> None:
        """Write one `HistoryCondensed`, also if nothing can be left out; otherwise `next_action`
        would ask for it again.

        Args:
            request: The instructions of a requested condensation; None if the request is too long.
            tokens: The tokens of that request.
        """
        with self._context.journal.lock:
            token = self._context.token
        reason = ContextTooLong(
            "A condensation of the conversation was requested."
            if request is not None
            else f"The request has {tokens:,} tokens; it is condensed from {self.trigger:,} on."
        )
        calls: list[ModelSpending] = []
        failed = self._attempt(reason, token, request, calls)
        if failed and not token:
            with self._context.journal as journal:
                if request is None or journal.fold.condensation.request is not None:
                    journal.condense((), "", failed=failed, **_fields(calls))
                    calls = []
        self._note(calls)

    def shorten(self, reason: ContextTooLong, token: Cancellation) -> str:
        """Have the condenser leave something out; return "" if it did, else the reason why not."""
        calls: list[ModelSpending] = []
        failed = self._attempt(reason, token, None, calls)
        self._note(calls)
        return failed

    def _note(self, calls: Sequence[ModelSpending]) -> None:
        """Count the calls of a condensation that wrote no event."""
        text = "A condensation asked the model, and its result was not used."
        _sum(calls).note(self._context.journal, CONDENSATION_NOTE, text)

    def _attempt(
        self,
        reason: ContextTooLong,
        token: Cancellation,
        request: str | None,
        calls: list[ModelSpending],
    ) -> str:
        """Have the condenser leave something out; return "" if it did, else the reason why not.
        `calls` receives the model calls that no event has yet."""
        try:
            return self._shorten(reason, token, request, calls)
        except (ConversationClosed, StoreError):
            raise
        except Exception as error:  # of the condenser, or of its result
            if not token:
                self._context.journal.log("the condenser failed", logging.ERROR, traceback=True)
            return clean(describe_error(error))

    def _shorten(
        self,
        reason: ContextTooLong,
        token: Cancellation,
        request: str | None,
        calls: list[ModelSpending],
    ) -> str:
        context, journal = self._context, self._context.journal
        condenser = context.agent.condenser
        if condenser is None:
            return "the agent has no condenser"
        refusal, instructions = self._hooks.before_condensation(str(reason), request or "", token)
        if refusal:
            return refusal
        with journal.lock:
            work = self._work(reason, token, instructions, calls)
            based_on = journal.fold.last_seq
        answer = partial(ask, condenser, work)
        condensation = answer() if journal.observed is None else journal.observed.condense(answer)
        if condensation is None:
            return "nothing can be left out"
        with journal.lock:
            if not self._is_valid(condensation, work):
                problem = "the condenser named no messages or answers that are still shown"
                journal.log(problem, logging.ERROR)
                return "the condenser named nothing that is still shown"
            compaction = condensation.compaction and ev.Compaction(
                condensation.compaction.native,
                based_on,
                condensation.compaction.wire,
                condensation.compaction.host,
            )
            lent = list(calls)
            calls[:] = _model_calls(condensation, lent)
            try:
                with journal:
                    is_due = request is None or journal.fold.condensation.request is not None
                    if is_due and not (token or context.closing):
                        journal.condense(
                            sorted(condensation.hidden),
                            condensation.summary,
                            condensation.replaced,
                            trimmed=condensation.trimmed,
                            compaction=compaction,
                            **_fields(calls),
                        )
                        calls.clear()
            except UnreadableEvent as error:
                calls[:] = lent
                problem = f"the condenser's result cannot be stored: {error.problem}"
                journal.log(problem, logging.ERROR)
                return problem
        return ""

    def _work(
        self,
        reason: ContextTooLong,
        token: Cancellation,
        instructions: str,
        calls: list[ModelSpending],
    ) -> CondenserInput:
        from holdfast.agent.condensers.condenser_input import (  # few agents have a condenser
            CondenserInput,
            pieces_of,
        )

        journal, agent = self._context.journal, self._context.agent
        if journal.spending is not None:
            journal.spending.begin_condensation()
        sizes = journal.fold.measure(journal.tail)
        transcript = self._view.transcript()
        summaries = {
            event.id
            for event in journal.tail
            if type(event) is ev.HistoryCondensed and event.hidden
        }
        limit = sizes.tokens if self.trigger is None else min(sizes.tokens, self.trigger)
        share = float(getattr(agent.condenser, "to", DEFAULT_SHARE))
        last = journal.fold.last_seq
        return CondenserInput(
            pieces_of(transcript.items, sizes, summaries),
            sizes.tokens,
            limit,
            max(1, int(limit * share) - plan_tokens(journal.fold.planning.plan)),
            LentModel(agent.llm, journal, calls),
            instructions,
            reason,
            token,
            lambda: journal.events_until(last),
            transcript,
            journal.fold.agent,
            lambda llm: LentModel(llm, journal, calls, False),
        )

    def _is_valid(self, condensation: Condensed, work: CondenserInput) -> bool:
        """Return True if something shown is hidden or compacted, and nothing hidden that never was
        shown. Needs the lock."""
        visible = {piece.seq for piece in work.pieces if not piece.summary}
        hidden = set(condensation.hidden)
        calls = {call.id for piece in work.pieces for call, _ in piece.results}
        compaction = condensation.compaction
        if compaction is not None and not holds_compaction(compaction.native):
            return False
        if (
            not (hidden & visible or condensation.trimmed or compaction is not None)
            or not calls.issuperset(condensation.trimmed)
            or any(size < 0 for size in condensation.trimmed.values())
        ):
            return False
        rest = hidden - visible - {piece.seq for piece in work.summaries}
        if rest:  # reading all events is the dearest check, so it comes last
            rest -= {
                seq
                for event in self._context.journal.events
                if type(event) is ev.HistoryCondensed
                for seq in event.hidden
            }
        return not rest


def _model_calls(condensation: Condensed, lent: Sequence[ModelSpending]) -> list[ModelSpending]:
    """Return the model calls of a condensation: the ones that the condenser reports, or those of
    its lent models if these used more tokens."""
    reported = ModelSpending(condensation.usage, condensation.cost, condensation.model)
    lent_tokens = sum(token_count(one.usage) for one in lent)
    return [reported] if token_count(reported.usage) >= lent_tokens else list(lent)


def _sum(calls: Sequence[ModelSpending]) -> ModelSpending:
    return sum(calls, ModelSpending())


def _fields(calls: Sequence[ModelSpending]) -> dict[str, Any]:
    return msgspec.structs.asdict(_sum(calls))
