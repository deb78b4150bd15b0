"""One model call: what precedes it, the request, what wraps the request, and the answer.

`step` makes one call from begin to end:

1. `_contribute`: the agent's parts and hooks add messages, such as a skill that fits.
2. `_write_head`: an `AgentConfigured` event, if prompt, tools, model or parameters have changed.
3. `_request`: room in the budgets of the tree is reserved, and the view is updated.
4. `_ask`: the agent is asked, within what this conversation has: observers and budgets. An error
   stops the run. Then hooks may change the answer or hold it back.
5. `_write_answer`: one append of the answer, the decisions on its calls, and the starts of the
   calls whose turn it is; then those calls run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import events as ev
from holdfast.agent.additions import Addition, PromptSection, Remark, Situation
from holdfast.agent.handoffs import refused_handoffs
from holdfast.agent.prompt import SECRETS, join_parts, part_lengths
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.actions import nudge_for
from holdfast.conversation.background_notes import BackgroundNotes
from holdfast.conversation.calls import Calls
from holdfast.conversation.condensations import Condensations
from holdfast.conversation.deltas import Deltas
from holdfast.conversation.facts import excess_tokens
from holdfast.conversation.fold import turn
from holdfast.conversation.handoff import refusal
from holdfast.conversation.hook_points import HookPoints, ModelAnswer
from holdfast.conversation.message_content import cleaned
from holdfast.conversation.request_view import RequestView
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.verdicts import CallVerdict, decide
from holdfast.errors import BadResponse, ContextTooLong, HoldfastError, UnreadableEvent
from holdfast.llm.background import background_record
from holdfast.llm.completion import Completion
from holdfast.llm.transcript import Transcript
from holdfast.llm.vision import names_blind_model, with_vision
from holdfast.llm.wires.calls import limit_calls
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation
from holdfast.tools.results import clean
from holdfast.tools.secrets import Secrets

MAX_CONDENSATIONS = 3  # times that the request for one answer may turn out too long


class _Request(msgspec.Struct, frozen=True):
    head: ev.AgentConfigured
    transcript: Transcript
    based_on: int
    token: Cancellation
    reservation: str | None  # the key of the reservation in the tree's budgets


class ModelCall(ObjectStruct):
    """The model calls of one conversation, one at a time, on the driving thread."""

    _context: RunContext
    _calls: Calls
    _hooks: HookPoints
    _condensing: Condensations
    _view: RequestView
    _deltas: Deltas
    _condensations: int = 0  # since the last answer
    _contributed_seq: int = 0  # the last seq that the agent's contributors saw
    _just_taken_over: bool = False  # True if the agent has just taken over
    # True if the last `AgentConfigured` event was made when there was a picture
    _sight_checked: bool = False
    # the last `AgentConfigured` event that was compared, and the tool definitions that it matches
    _known_head: ev.AgentConfigured | None = None
    _known_definitions: object = None

    def step(self) -> None:
        """Ask the model once, journal its answer, and run the calls whose turn it is."""
        contributes = bool(self._context.agent.contributors) or self._hooks.adds
        if contributes and not self._contribute():
            return
        if (token := self._write_head(contributes)) is None:
            return
        if (request := self._request(contributes, token)) is None:
            return
        answer = self._ask(request)
        if answer is not None and (answer := self._hooks.after_model(answer)) is not None:
            self._deltas.accept()
            self._write_answer(answer)

    def take_over(self) -> None:
        """Forget the facts about the previous agent: another one answers from here on."""
        self._known_head = None
        self._contributed_seq = 0  # its skills have not seen the user's messages
        self._just_taken_over = True

    # --- before the request ---

    def _must_reconsider(self, contributes: bool) -> bool:
        """Return True if there is a message since the contributors were asked, or the first picture
        since the model's sight was looked up. Both must be handled before the model is asked. Holds
        the journal's lock.
        """
        fold = self._context.journal.fold
        return (contributes and fold.message_seq > self._contributed_seq) or (
            fold.pictures.any and not self._sight_checked
        )

    def _contribute(self) -> bool:
        """Add the contributions of the agent's parts; return False if the model must not be
        asked now."""
        context, journal = self._context, self._context.journal
        with journal.lock:
            contributed = self._contributed_seq
            token, last = context.token, journal.fold.last_seq
            # contributors are asked before every answer
            seen_seq = 0 if self._just_taken_over else contributed or journal.fold.based_on
            self._just_taken_over = False
            situation = Situation(
                journal.id,
                journal.after(contributed) if contributed else journal.tail,
                dict(journal.fold.own_messages.seqs),
                context.llm(),
                context.runtime,
                token,
                seen_seq,
            )
        try:
            additions = [one for part in context.agent.contributors for one in part(situation)]
            additions += self._hooks.before_model(situation)
        except Exception as error:
            if not token:
                self._stop_on(error)
            return False
        with journal if additions else journal.lock:
            if not context.may_ask or token:
                return False
            # contributors are asked again about events that arrived meanwhile
            alone = journal.fold.last_seq == last
            for addition in additions:
                self._write_addition(addition)
            self._contributed_seq = journal.next_seq - 1 if additions and alone else last
        return True

    def _write_addition(self, addition: Addition | Remark) -> None:
        journal = self._context.journal
        if isinstance(addition, Remark):
            journal.add(
                ev.NoteRecorded,
                about=addition.about,
                text=clean(addition.text),
                details=addition.details,
                usage=addition.usage,
                cost=addition.cost,
                model=addition.model,
            )
        elif addition.about not in journal.fold.own_messages.seqs:
            journal.add(
                ev.MessageAdded,
                content=cleaned(addition.content),
                sender="holdfast",
                about=addition.about,
                usage=addition.usage,
                cost=addition.cost,
                model=addition.model,
            )

    def _write_head(self, contributes: bool) -> Cancellation | None:
        """Journal changed parts of requests; return the call's cancellation, or None to stop it."""
        context, journal = self._context, self._context.journal
        new_head = self._changed_head()
        with journal.lock:
            with journal:
                if not context.may_ask or self._must_reconsider(contributes):
                    return None
                if new_head is not None:
                    journal.add(ev.AgentConfigured, **new_head)
            if new_head is not None and self._has_lost_compaction():
                return None  # the whole history may have to be condensed first
            return context.token

    def _has_lost_compaction(self) -> bool:
        """Return True if a request is too long because another model cannot read the compaction
        of the last one's provider. Holds the journal's lock."""
        sizes, trigger = self._context.journal.fold.sizes, self._condensing.trigger
        if sizes is None or trigger is None or not sizes.compactions:
            return False
        return excess_tokens(sizes, trigger) > 0

    def head(self) -> dict[str, Any] | None:
        """Return the fields of an `AgentConfigured` event for the agent that has just taken over;
        None if they are those of the last event."""
        self._known_head = None
        return self._changed_head()

    def _changed_head(self) -> dict[str, Any] | None:
        """Return the fields of a new `AgentConfigured` event if the parts of requests have changed
        since the last one. Runs user code, so the caller must not hold the lock."""
        context, journal = self._context, self._context.journal
        agent, last, pictures = context.agent, journal.fold.agent, journal.fold.pictures.any
        definitions = agent.tool_definitions()
        if (
            last is not None
            and self._known_head is last
            and self._known_definitions is definitions
            and pictures is self._sight_checked
        ):
            # an agent is frozen: only its tools may have changed, and then in a new tuple
            return None
        tools, parameters = agent.definitions(last), agent.llm.parameters()
        # without a picture the model's sight does not matter
        if pictures or (last is not None and names_blind_model(last.parameters)):
            parameters = with_vision(agent.llm, parameters)
        self._sight_checked = pictures
        parts = agent.prompt_parts()
        if journal.secrets is not None and (text := journal.secrets.describe()):
            parts = (*parts, PromptSection(SECRETS, text))
        prompt = join_parts(parts)
        if journal.secrets is not None:
            prompt = journal.secrets.mask(prompt)
        now: dict[str, Any] = {
            "system_prompt": prompt,
            "tools": tools,
            "model": agent.llm.model,
            "parameters": parameters,
            "name": context.agent_name,
        }
        if last is not None and all(getattr(last, name) == value for name, value in now.items()):
            self._known_head, self._known_definitions = last, definitions
            return None
        if last is None and journal.spawned_by:
            now["spawned_by"] = journal.spawned_by
        return {**now, "prompt_parts": part_lengths(parts)}

    def _request(self, contributes: bool, token: Cancellation) -> _Request | None:
        """Return the request, with its amount reserved; None if the loop must decide anew."""
        context, journal, reservation = self._context, self._context.journal, None
        spending = journal.spending
        if spending is not None:
            reservation = spending.begin(context.agent.llm, token, lambda: context.may_ask)
            if reservation is None:
                return None  # paused, or an event arrived while it waited for room
        with journal.lock:
            head = journal.fold.agent
            assert head is not None
            # An event since the lock was released may have stopped the run, too.
            if context.may_ask and not self._must_reconsider(contributes):
                transcript = self._view.transcript()
                return _Request(head, transcript, journal.fold.last_seq, token, reservation)
        if spending is not None and reservation is not None:
            spending.cancel(reservation)
        return None

    # --- the request and what wraps it ---

    def _wrapped(self, request: _Request) -> Callable[[], Completion]:
        """Return the request with what wraps it, the innermost first."""
        context, journal = self._context, self._context.journal
        on_delta, token = self._deltas.restarted(), request.token

        def complete() -> Completion:
            step = context.agent.step
            return limit_calls(
                step(request.transcript, request.head, on_delta=on_delta, cancelled=token)
            )

        if journal.secrets is not None:
            complete = partial(_masked, journal.secrets, complete)
        if journal.observed is not None:
            complete = partial(journal.observed.ask_model, request.head, complete)
        if journal.spending is not None and request.reservation is not None:
            key, llm = request.reservation, context.agent.llm
            complete = partial(journal.spending.ask, key, llm, complete)
        return complete

    def _ask(self, request: _Request) -> ModelAnswer | None:
        """Ask the model; return None if there is no answer to journal, so that the loop decides
        anew. An error stops the run; a request that is too long is condensed."""
        token, complete, began = request.token, self._wrapped(request), time.monotonic()
        record = background_record.set(BackgroundNotes(self._context))
        try:
            completion = complete()
        except ContextTooLong as error:
            if not token and (
                self._condensations >= MAX_CONDENSATIONS or self._condensing.shorten(error, token)
            ):
                self._stop_on(error)
            self._condensations += 1
            return None
        except Exception as error:
            if not token:  # else the cancelling caller has set the status
                self._stop_on(error)
            return None
        finally:
            background_record.reset(record)
        self._condensations = 0
        return ModelAnswer(completion, request.based_on, time.monotonic() - began, token)

    def _stop_on(self, error: Exception) -> None:
        with self._context.journal:
            self._context.write_error(error)

    # --- the answer ---

    def _write_answer(self, answer: ModelAnswer) -> None:
        """Append the answer, the reply to an empty one, the decisions, and the starts of the
        calls whose turn it is; then run those calls."""
        context, token = self._context, answer.token
        fields = answer.fields(context.agent)
        calls, verdicts, early_results = self._judge(answer.completion.calls, token)
        runnable: tuple[ToolCall, ...] = ()
        with context.journal as journal:
            for note in answer.notes:
                note.write(journal)
            seq = journal.next_seq
            calls = tuple([replace(call, id=f"{seq}.{index}") for index, call in enumerate(calls)])
            try:
                journal.add(ev.AssistantReplied, calls=calls, **fields)
            except UnreadableEvent as error:  # a custom model may return anything
                raise BadResponse(
                    f"The model's answer cannot be stored: {error.problem}"
                ) from error
            open_calls, ask_reasons = self._write_decisions(calls, verdicts, early_results)
            if not calls:
                if (nudge := nudge_for(answer.completion)) is not None:
                    journal.tell_model(nudge)
            elif token and not context.closing:  # an interrupt that came before this answer
                for call in open_calls:
                    self._calls.write_refusal(call)
            elif context.may_ask:
                runnable = self._write_starts(open_calls, ask_reasons)
        if runnable:
            started = runnable[: context.agent.parallel_calls]
            self._calls.run(runnable, {call.id for call in started}, token)

    def _judge(
        self, calls: tuple[ToolCall, ...], token: Cancellation
    ) -> tuple[tuple[ToolCall, ...], list[CallVerdict], dict[int, ToolResult]]:
        """Return the calls with canonical names, a verdict on each (if anything judges calls), and
        by index the results of calls that do not run."""
        context = self._context
        if not calls:
            return calls, [], {}
        calls = context.agent.tools.with_canonical_names(calls)
        verdicts = decide(context, calls, token)
        early_results = self._calls.refuse_client_calls(
            calls, verdicts, context.journal.fold.call_kinds.clients
        )
        choice = context.agent.models
        if choice is not None or context.agent.handoffs is not None:
            early_results |= refused_handoffs(calls, partial(refusal, context), choice)
        return calls, verdicts, early_results

    def _write_decisions(
        self,
        calls: tuple[ToolCall, ...],
        verdicts: list[CallVerdict],
        early_results: dict[int, ToolResult],
    ) -> tuple[list[ToolCall], dict[str, str]]:
        """Append the decisions and the early results. Returns the calls that stay open, and the
        reason for each one that waits for the user's decision, by its id."""
        open_calls: list[ToolCall] = []
        ask_reasons: dict[str, str] = {}
        for index, call in enumerate(calls):
            if index in early_results:  # no decision is needed for a call that is not run
                continue
            if verdicts:
                verdict = verdicts[index]
                self._calls.write_decision(call, verdict)
                if verdict.decision == "deny":
                    continue
                if verdict.decision == "ask":
                    ask_reasons[call.id] = verdict.reason
            open_calls.append(call)
        for index, result in early_results.items():
            self._calls.write_start(calls[index], 1)
            self._calls.write_result(calls[index], result)
        return open_calls, ask_reasons

    def _write_starts(
        self, open_calls: list[ToolCall], ask_reasons: dict[str, str]
    ) -> tuple[ToolCall, ...]:
        """Append the starts of the calls that may run now. Returns these calls, and behind them the
        calls that follow as soon as there is a thread for them."""
        context = self._context
        opened = context.journal.fold.opened(open_calls)
        for call_id, reason in ask_reasons.items():
            if call_id in opened:
                opened[call_id].ask_reason = reason
        runnable = tuple([item.call for item in turn(opened.values()) if item.ready])
        for call in runnable[: context.agent.parallel_calls]:
            self._calls.write_start(call, 1)
        return runnable


def _masked(secrets: Secrets, complete: Callable[[], Completion]) -> Completion:
    """Return the answer, or raise its error, with the conversation's secrets masked."""
    try:
        return secrets.mask_value(complete())
    except HoldfastError as error:
        text = str(error)
        if (masked_text := secrets.mask(text)) != text:
            error.args = (masked_text, *error.args[1:])
            error.__cause__ = error.__context__ = None
        raise
