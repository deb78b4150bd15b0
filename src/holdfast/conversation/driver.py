"""The loop: it asks `next_action`, does that, and journals the outcome. One driver per open
conversation."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.additions import Remark, Situation
from holdfast.agent.agent import Agent
from holdfast.agent.condenser import Condensed, ask, trigger_of
from holdfast.agent.handoffs import not_done
from holdfast.agent.planning import room
from holdfast.agent.prompt import lengths
from holdfast.agent.view import View
from holdfast.content import TextContent, ToolCall
from holdfast.conversation import hooking as hooks
from holdfast.conversation.actions import (
    Action,
    Call,
    Condense,
    HandOver,
    Nudge,
    Recover,
    Step,
    Stop,
    Wait,
    limit_error,
    next_action,
    nudge_for,
    output_error,
)
from holdfast.conversation.budget import fair, spending_of
from holdfast.conversation.callbacks import guarded
from holdfast.conversation.calls import Calls
from holdfast.conversation.handoff import givers, hand_over, in_force, refusal, settle
from holdfast.conversation.journal import Journal
from holdfast.conversation.questions import OnQuestion
from holdfast.conversation.state import ConversationStatus, turn
from holdfast.errors import (
    BadResponse,
    ConfigurationError,
    ContextTooLong,
    ConversationClosed,
    HoldfastError,
    HookDenied,
    LimitExceeded,
    LLMError,
    OutputInvalid,
    StoreError,
    UnreadableEvent,
)
from holdfast.llm.completion import Completion, Delta, Told
from holdfast.llm.pictures import says_sight, with_sight
from holdfast.llm.transcript import Transcript
from holdfast.store.budgets import Amount
from holdfast.tools import Cancellation
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.agent.condensers.work import Work
    from holdfast.conversation.conversation import Conversation
    from holdfast.conversation.delegating import Team

_log = logging.getLogger("holdfast")

RUNNING = ConversationStatus.RUNNING

# The ids of the drivers whose loops led to this thread's work, outermost first. None of them may
# wait for itself.
inside: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar(
    "holdfast_inside", default=()
)

# A conversation at rest keeps the bytes of its view only if it has more items than this. A shorter
# one is rebuilt in 0.2 ms, and most open conversations are short and at rest.
MIN_CACHED_VIEW_ITEMS = 64

MAX_CONDENSATIONS = 3  # times that the request for one answer may turn out too long


class CommandOutcome:
    """The outcome of an inbox command, for the `waiting` callers that posted it."""

    __slots__ = ("done", "error", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.done = False
        self.error: ConfigurationError | None = None


class Driver:
    """The driver of one conversation. `drive` runs on one thread at a time; the rest is
    thread-safe."""

    __slots__ = (
        "_condensations",
        "_condense_trigger",
        "_contributed_seq",
        "_delta_listeners",
        "_just_taken_over",
        "_last_head",
        "_new_team",
        "_on_delta",
        "_sight_checked",
        "_view",
        "_view_seq",
        "above",
        "agent",
        "agent_name",
        "calls",
        "failure",
        "guests",
        "hands_over",
        "hooking",
        "hosted",
        "journal",
        "obeyed",
        "own_agent",
        "resting",
        "taken",
        "team_made",
        "thread",
    )

    def __init__(
        self,
        agent: Agent,
        journal: Journal,
        runtime: object | None,
        on_delta: Callable[[Delta], object] | None,
        on_progress: Callable[[str, str], object] | None,
        on_question: OnQuestion,
        new_conversation: Callable[..., Conversation],
        new_team: Callable[[Driver], Team],
    ) -> None:
        self.own_agent = agent
        # the agent in force: another one after a handoff
        self.agent_name, self.agent = in_force(agent, journal.fold)
        self.guests: list[Agent] = []  # other agents whose connections are open here
        self.journal = journal
        # the journal of the spawning conversation, if that is open here
        self.above: Journal | None = None
        self.calls = Calls(self.agent, journal, runtime, on_progress, on_question, new_conversation)
        self.thread: threading.Thread | None = None  # the driving thread
        self.resting = True  # True if it waits for something to do
        self.failure: Exception | None = None  # the error after which nothing can be journaled
        self.hooking: hooks.HookState | None = None  # None unless the agent has hooks
        self.taken = 0  # the number of the last inbox command that was done
        self.hosted = False  # True if a host drives it as soon as there is work
        # called between steps: True if `drive` must return
        self.hands_over: Callable[[], bool] | None = None
        # outcomes of posted commands by key, for the callers that wait for them
        self.obeyed: dict[str, CommandOutcome] | None = None
        self.team_made: Team | None = None
        self._delta_listeners: tuple[Callable[[Delta], None], ...] = ()
        self._on_delta: Told | None = None
        if on_delta is not None:
            self.add_delta_listener(guarded(on_delta))
        self._new_team = new_team
        self._condensations = 0  # since the last answer
        self._contributed_seq = 0  # the last seq that the agent's contributors saw
        self._just_taken_over = False  # True if the agent has just taken over
        # the tokens of a request from which it is condensed
        self._condense_trigger: int | None = None
        self._view: View | None = None
        self._view_seq = 0  # number of events that the view was fed
        self._sight_checked = (
            False  # True if the last Agent event was made when there was a picture
        )
        self._last_head: tuple[ev.Agent | None, object] = (
            None,
            None,
        )  # the last Agent event, and the tool definitions that it matches

    # --- the loop ---

    def add_delta_listener(self, listener: Callable[[Delta], None]) -> None:
        """Pass the deltas of model calls that begin from now on to `listener` as well."""
        self._delta_listeners += (listener,)
        if self._on_delta is None:
            self._on_delta = Told(self._pass_delta)

    def remove_delta_listener(self, listener: Callable[[Delta], None]) -> None:
        """End what `add_delta_listener` began. Without listeners, answers are not streamed."""
        self._delta_listeners = tuple(one for one in self._delta_listeners if one != listener)
        if not self._delta_listeners:
            self._on_delta = None

    def _pass_delta(self, delta: Delta) -> None:
        for listener in self._delta_listeners:
            listener(delta)

    def drive(self, until_rest: bool) -> None:
        """Run the loop until the conversation rests (`until_rest`) or closes. Raises the store's
        errors.

        Call it in its own context, which ends with it: after Ctrl-C this thread must not stay
        marked as inside the loop.
        """
        inside.set((*inside.get(), id(self)))
        try:
            settle(self)
            journal, above = self.journal, self.above
            journal.spending = spending_of(
                journal, self.own_agent.tree_limits, None if above is None else above.spending
            )
            self._begin_serving()
            if self.agent.hooked is not None:
                hooks.start(self)
            while (action := self._next(until_rest)) is not None:
                try:
                    self._do(action)
                except (ConversationClosed, StoreError):
                    raise
                except BaseException as error:
                    self._view = None  # it may have been fed partly
                    if (
                        until_rest
                        and not isinstance(error, Exception)
                        and not (self.hosted and isinstance(error, SystemExit))
                    ):
                        # Ctrl-C or sys.exit, for the caller of `run`; a host's thread serves others
                        # as well
                        raise
                    with self.journal:
                        self._write_error(error)
        except ConversationClosed:
            pass
        except Exception as error:
            self.fail(error)
            if until_rest:
                raise
        finally:
            with suppress(HoldfastError):  # the lease is lost, or the store is gone
                if self.journal.spending is not None:
                    self.journal.spending.give_back()
            self.leave()

    def serve(self, agent: Agent, name: str) -> None:
        """Let another agent answer from the next request on."""
        self.agent, self.agent_name = agent, name
        self.calls.serve(agent)
        self._last_head = (None, None)
        if self.thread is threading.current_thread():
            # its skills have not seen the user's messages
            self._contributed_seq = 0
            self._just_taken_over = True
            self._begin_serving()

    def _begin_serving(self) -> None:
        agent, head = self.agent, self.journal.fold.agent
        if agent is not self.own_agent and not any(guest is agent for guest in self.guests):
            agent.connections.opened(self.calls.runtime)
            self.guests.append(agent)
        self._condense_trigger = None if agent.condenser is None else trigger_of(agent)
        if agent.delegates is not None:
            self.calls.team = self.team
        if self.journal.fold.assistant is not None:
            for giver in givers(agent, self.own_agent):
                # the agent in force may not be the one that delegated
                if giver.delegates is not None:
                    self.team().attach(giver.delegates)
        agent.connections.connect(
            ()
            if head is None or head.name != self.agent_name
            else [tool.name for tool in head.tools]
        )

    def team(self) -> Team:
        """Return the conversation's team of delegates, created at the first delegation."""
        with self.journal.changed:
            if self.team_made is None:
                self.team_made = self._new_team(self)
            return self.team_made

    def let_guests_go(self) -> None:
        """Close the connections of agents that the conversation was handed to."""
        guests, self.guests = self.guests, []
        for guest in guests:
            guest.connections.closed(self.calls.runtime)

    def fail(self, error: Exception) -> None:
        """Stop for good: events can no longer be journaled, so nothing further may happen."""
        with self.journal.changed:
            first = self.failure is None
            self.failure = self.failure or error
            self.journal.changed.notify_all()
        self.calls.cancel()
        if self.calls.children is not None:  # the lease's new owner now has the children too
            self.calls.children.stop()
        if first:
            _log.error("conversation %s stopped: %s", self.journal.id, error)

    def _next(self, until_rest: bool) -> Action | None:
        """Wait for the next action and return it; None if this thread must stop driving."""
        journal = self.journal
        if journal.observed is not None:
            journal.observed.tell()
        with journal.changed:
            while not self.calls.closing:
                if self.failure is not None:  # draining the inbox found that the lease was lost
                    raise self.failure.with_traceback(None)
                if journal.stale:
                    journal.acquire()
                if self._condense_trigger is not None and journal.fold.sizes is None:
                    journal.fold.measure(journal.tail)
                action = self._decide(self._condense_trigger)
                if journal.spending is not None and not isinstance(action, Step):
                    journal.spending.give_back()
                if not isinstance(action, Wait):
                    if until_rest and self.hands_over is not None and self.hands_over():
                        break
                    self.resting = False
                    return action
                if until_rest:
                    break
                self.resting = True
                journal.changed.notify_all()
                journal.changed.wait()
            # before the lock is released; else a message would count on a driver that has decided
            # to leave
            self.leave()
        return None

    def leave(self) -> None:
        """Stop driving on this thread, if it is the driving one."""
        with self.journal.changed:
            if self.thread is threading.current_thread():
                self.thread = None
                self.resting = True
                self.journal.changed.notify_all()

    def _do(self, action: Action) -> None:
        match action:
            case Step():
                self._step()
            case Call(calls):
                self.calls.run(calls)
            case Recover(calls):
                self.calls.recover(calls)
            case HandOver(name):
                hand_over(self, name)
            case Nudge():
                self._nudge(action)
            case Condense(asked):
                self._condense_now(asked, action.tokens)
            case Stop():
                self._stop(action)
            case Wait():
                pass

    def _decide(self, trigger: int | None = None) -> Action:
        """Return `next_action` for the agent in force. Holds the journal's lock."""
        agent = self.agent
        return next_action(
            self.journal.fold, agent.limits, trigger, agent.stuck, agent.output_rounds
        )

    def _nudge(self, action: Nudge) -> None:
        with self.journal as journal:
            if self._decide() == action:
                journal.add(
                    ev.Message,
                    content=(TextContent(clean(action.text)),),
                    sender="holdfast",
                    about=action.about,
                )

    def _stop(self, action: Stop) -> None:
        stopped = (
            hooks.end_objection(self)
            if self.agent.hooked is not None and action.status is ConversationStatus.FINISHED
            else None
        )
        with self.journal as journal:
            if self._decide() != action:
                return  # a message arrived in between
            if stopped is not None and hooks.journal_objection(self, stopped):
                return
            if action.limit is not None:
                self._write_error(limit_error(action.limit, journal.id))
            elif action.output:
                self._write_error(output_error(action, journal.fold))
            else:
                journal.add(ev.Status, status=action.status.value, reason=action.reason)
        if self._view is not None and len(self._view.transcript) <= MIN_CACHED_VIEW_ITEMS:
            self._view = None

    def write_error(self, error: BaseException) -> None:
        """Stop the run on `error`, for other modules of the loop. Within a transaction."""
        self._write_error(error)

    def _write_error(self, error: BaseException) -> None:
        """Stop the run on `error`, unless something else stopped it first. Within a transaction."""
        if self.journal.fold.status is not RUNNING:
            return
        details: dict[str, Any] = {}
        if isinstance(error, LLMError):
            details = {
                "status": error.status,
                "code": error.code,
                "requestId": error.request_id,
                "retryAfter": error.retry_after,
            }
        elif isinstance(error, LimitExceeded):
            details = {
                "type": error.type,
                "value": error.value,
                "limit": error.limit,
                "source": error.source,
            }
        elif isinstance(error, HookDenied):
            details = {"hook": error.hook, "on": error.on, "failed": error.failed}
        elif isinstance(error, OutputInvalid):
            details = {"problem": error.problem, "rounds": error.rounds}
        details = {key: value for key, value in details.items() if value}
        fields: dict[str, Any] = {"error": type(error).__name__, "message": clean(str(error))}
        try:
            self.journal.add(ev.Error, **fields, details=details)
        except UnreadableEvent:  # a custom error's details may hold anything
            self.journal.add(ev.Error, **fields)
        self.journal.add(
            ev.Status, status=ConversationStatus.ERROR.value, reason=type(error).__name__
        )
        _log.warning(
            "conversation %s stopped: %s: %s", self.journal.id, type(error).__name__, error
        )

    # --- one model call ---

    def _step(self) -> None:
        journal = self.journal
        contributed = bool(self.agent.contributors) or hooks.wants_additions(self)
        if contributed and not self._contribute():
            return
        news = self._changed_head()
        with journal.changed:
            with journal:
                if journal.fold.status is not RUNNING or self.calls.closing:
                    return
                if self._must_reconsider(contributed):
                    return
                if news is not None:
                    journal.add(ev.Agent, **news)
            token = self.calls.token
        spending = journal.spending
        held = None if spending is None else spending.begin(self.agent.llm, token, self._may_ask)
        if spending is not None and held is None:
            return  # paused, or an event arrived while it waited for room
        with journal.changed:
            head = journal.fold.agent
            assert head is not None
            # An event since the lock was released may have stopped the run, too.
            transcript = (
                None
                if self._must_reconsider(contributed) or not self._may_ask()
                else self._catch_up()
            )
            based_on = journal.fold.last_seq
        if transcript is None:
            if spending is not None and held is not None:
                spending.settle(held, Amount())
            return
        on_delta = self._on_delta
        if on_delta is not None:
            on_delta.restart()  # an interrupt or an error may have cut off the last deltas
        began = time.monotonic()
        try:
            ask = partial(self.agent.step, transcript, head, on_delta=on_delta, cancelled=token)
            if journal.observed is not None:
                ask = partial(journal.observed.asked, head, ask)
            completion = (
                ask()
                if spending is None or held is None
                else spending.ask(held, self.agent.llm, ask)
            )
        except ContextTooLong as error:
            if not token and (
                self._condensations >= MAX_CONDENSATIONS or self._condense(error, token)
            ):
                with journal:
                    self._write_error(error)
            self._condensations += 1
            return
        except Exception as error:
            if not token:  # else the cancelling caller has set the status
                with journal:
                    self._write_error(error)
            return
        self._condensations = 0
        duration = time.monotonic() - began
        notes: Sequence[hooks.HookNote] = ()
        if self.agent.hooked is not None and self.agent.hooked.after_model:
            found = hooks.apply_answer_hooks(self, completion, based_on, duration, token)
            if found is None:
                return  # hooks held the answer back
            completion, notes = found
        if on_delta is not None:
            on_delta.whole()
        self._write_answer(completion, based_on, duration, token, notes)

    def _must_reconsider(self, contributed: bool) -> bool:
        """Return True if something arrived that must be handled before the model is asked.

        That is a message since the contributors were asked, or the first picture since the
        model's sight was looked up. Holds the journal's lock.
        """
        fold = self.journal.fold
        return (contributed and fold.message_seq > self._contributed_seq) or (
            fold.pictures and not self._sight_checked
        )

    def _may_ask(self) -> bool:
        """Return True if the run may still call the model."""
        return self.journal.fold.status is RUNNING and not self.calls.closing

    def _contribute(self) -> bool:
        """Add the contributions of the agent's parts before the next model call; return False if
        that failed, and the run with it."""
        journal = self.journal
        with journal.changed:
            news = journal.after(self._contributed_seq) if self._contributed_seq else journal.tail
            token, last = self.calls.token, journal.fold.last_seq
            # contributors are asked before every answer
            seen = 0 if self._just_taken_over else self._contributed_seq or journal.fold.based_on
            self._just_taken_over = False
            situation = Situation(
                journal.id,
                news,
                dict(journal.fold.abouts),
                self.calls.llm(),
                self.calls.runtime,
                token,
                seen,
            )
        try:
            found = [
                addition
                for contributor in self.agent.contributors
                for addition in contributor(situation)
            ]
            found += hooks.additions(self, situation)
        except Exception as error:
            if not token:
                with journal:
                    self._write_error(error)
            return False
        with journal if found else journal.changed:
            if journal.fold.status is not RUNNING or self.calls.closing or token:
                return False
            # contributors are asked again about events that arrived meanwhile
            alone = journal.fold.last_seq == last
            for addition in found:
                if isinstance(addition, Remark):
                    journal.add(
                        ev.Note,
                        about=addition.about,
                        text=clean(addition.text),
                        details=addition.details,
                    )
                elif addition.about not in journal.fold.abouts:
                    content = tuple(
                        [
                            (
                                TextContent(clean(block.text))
                                if isinstance(block, TextContent)
                                else block
                            )
                            for block in addition.content
                        ]
                    )
                    journal.add(
                        ev.Message,
                        content=content,
                        sender="holdfast",
                        about=addition.about,
                        usage=addition.usage,
                        cost=addition.cost,
                        model=addition.model,
                    )
            self._contributed_seq = (journal.next_seq - 1 if found else last) if alone else last
        return True

    def _condense_now(self, asked: str | None, tokens: int) -> None:
        """Write one `Condensation`, also if nothing can be left out; otherwise `next_action`
        would ask for it again."""
        with self.journal.changed:
            token = self.calls.token
        if asked is not None:
            reason = ContextTooLong("A condensation of the conversation was requested.")
        else:
            reason = ContextTooLong(
                f"The request has {tokens:,} tokens; it is condensed from"
                f" {self._condense_trigger:,} on."
            )
        failed = self._condense(reason, token, asked)
        if failed and not token:
            with self.journal as journal:
                if asked is None or journal.fold.wanted is not None:
                    journal.condense((), "", failed=failed)

    def _condense(
        self, reason: ContextTooLong, token: Cancellation, asked: str | None = None
    ) -> str:
        """Have the agent's condenser leave something out; return "" if it did, else the reason
        why not."""
        journal, condenser = self.journal, self.agent.condenser
        if condenser is None:
            return "the agent has no condenser"
        refusal, instructions = hooks.apply_condensation_hooks(
            self, str(reason), asked or "", token
        )
        if refusal:
            return refusal
        with journal.changed:
            work = self._work(reason, token, instructions)
        try:
            observed = journal.observed
            found = (
                ask(condenser, work)
                if observed is None
                else observed.condensed(partial(ask, condenser, work))
            )
        except Exception as error:
            if not token:
                _log.exception("conversation %s: the condenser failed", journal.id)
            return f"{type(error).__name__}: {clean(str(error))}"
        if found is None:
            return "nothing can be left out"
        with journal.changed:
            if not self._fits(found, work):
                _log.error(
                    "conversation %s: the condenser named no messages or answers that are still"
                    " shown",
                    journal.id,
                )
                return "the condenser named nothing that is still shown"
            try:
                with journal:
                    if (
                        not token
                        and not self.calls.closing
                        and (asked is None or journal.fold.wanted is not None)
                    ):
                        more = {
                            name: getattr(found, name)
                            for name in ("trimmed", "usage", "cost", "model")
                        }
                        journal.condense(
                            sorted(found.hidden), found.summary, found.replaced, **more
                        )
            except UnreadableEvent as error:
                _log.error(
                    "conversation %s: the condenser's result cannot be stored: %s",
                    journal.id,
                    error.problem,
                )
                return f"the condenser's result cannot be stored: {error.problem}"
        return ""

    def _work(self, reason: ContextTooLong, token: Cancellation, instructions: str) -> Work:
        """Return the input of the condenser. Holds the journal's lock."""
        from holdfast.agent.condensers.work import Work, pieces_of

        journal = self.journal
        sizes = journal.fold.measure(journal.tail)
        items = self._catch_up().items
        summaries = {
            event.id for event in journal.tail if type(event) is ev.Condensation and event.hidden
        }
        limit = (
            sizes.tokens
            if self._condense_trigger is None
            else min(sizes.tokens, self._condense_trigger)
        )
        target = max(
            1,
            int(limit * float(getattr(self.agent.condenser, "to", 0.5)))
            - room(journal.fold.planned),
        )
        last = journal.fold.last_seq
        return Work(
            pieces_of(items, sizes, summaries),
            sizes.tokens,
            limit,
            target,
            self.calls.llm(told=True),
            instructions,
            reason,
            token,
            lambda: journal.events_until(last),
        )

    def _fits(self, found: Condensed, work: Work) -> bool:
        """Return True if the condenser hides something that is shown, and nothing that never
        was. Holds the journal's lock."""
        shown = {piece.seq for piece in work.pieces if not piece.summary}
        hidden = set(found.hidden)
        calls = {call.id for piece in work.pieces for call, _ in piece.results}
        if (
            not (hidden & shown or found.trimmed)
            or not calls.issuperset(found.trimmed)
            or any(kept < 0 for kept in found.trimmed.values())
        ):
            return False
        left = hidden - shown
        if left:
            left -= {piece.seq for piece in work.summaries}
        if left:
            left -= {
                seq
                for event in self.journal.events
                if type(event) is ev.Condensation
                for seq in event.hidden
            }
        return not left

    def _changed_head(self) -> dict[str, Any] | None:
        """Return the fields of a new `Agent` event if the parts of requests have changed since the
        last one.

        Runs user code, so the caller must not hold the lock.
        """
        agent, last = self.agent, self.journal.fold.agent
        definitions = agent.tools.definitions()
        sighted = self.journal.fold.pictures
        if (
            last is not None
            and self._last_head[0] is last
            and self._last_head[1] is definitions
            and sighted is self._sight_checked
        ):
            # an agent is frozen: only its tools may have changed, and then in a new tuple
            return None
        tools, parameters = agent.definitions(last), agent.llm.parameters()
        # without a picture the model's sight does not matter
        if sighted or (last is not None and says_sight(last.parameters)):
            parameters = with_sight(agent.llm, parameters)
        self._sight_checked = sighted
        now: dict[str, Any] = {
            "system_prompt": agent.system_prompt,
            "tools": tools,
            "model": agent.llm.model,
            "parameters": parameters,
        }
        now["name"] = self.agent_name
        if last is None and self.journal.spawned_by:
            return {
                **now,
                "spawned_by": self.journal.spawned_by,
                "prompt_parts": lengths(agent.prompt_parts()),
            }
        if last is None or any(getattr(last, name) != value for name, value in now.items()):
            return {**now, "prompt_parts": lengths(agent.prompt_parts())}
        self._last_head = (last, definitions)
        return None

    def head(self) -> dict[str, Any]:
        """Return the fields of an `Agent` event for the agent that answers now. Runs user code,
        so the caller must not hold the lock."""
        self._last_head = (None, None)
        found = self._changed_head()
        assert found is not None, "another agent has another name"
        return found

    def _catch_up(self) -> Transcript:
        """Return the next request's transcript. Its cost is that of the events since the last
        one. Holds the journal's lock."""
        journal = self.journal
        new = journal.after(self._view_seq) if self._view is not None else ()
        if self._view is None or any(
            type(event) is ev.Condensation and event.changes for event in new
        ):
            self._view = View.of(journal.tail)
        else:
            for event in new:
                self._view.feed(event)
        self._view_seq = journal.fold.last_seq
        transcript = self._view.ready()
        transcript.last_answer = journal.fold.assistant  # even if a condensation hides it
        return transcript

    def _write_answer(
        self,
        answer: Completion,
        based_on: int,
        duration: float,
        token: Cancellation,
        notes: Sequence[hooks.HookNote] = (),
    ) -> None:
        """Append the answer, the reply to an empty one, the decisions, and the starts of the
        calls whose turn it is; then run those calls."""
        usage, cost = fair(answer.usage, answer.cost)
        if cost is None and self.agent.limits.cost is not None:
            cost = self.agent.llm.cost(usage)
        asked = answer.calls
        if asked:
            # a model may use a wire name of an earlier request; guards know the canonical one
            tools = self.agent.tools
            asked = tuple(
                [
                    (
                        call
                        if (name := tools.canonical(call.name)) == call.name
                        else msgspec.structs.replace(call, name=name)
                    )
                    for call in asked
                ]
            )
        verdicts = self.calls.decide(asked, token) if asked else []
        refused = self.calls.refuse_client_calls(asked, verdicts) if asked else {}
        if self.agent.handoffs is not None and asked:
            refused |= not_done(asked, partial(refusal, self))
        allowed: tuple[ToolCall, ...] = ()
        started: tuple[ToolCall, ...] = ()
        with self.journal as journal:
            for note in notes:
                note.write(journal)
            seq = journal.next_seq
            calls = tuple(
                [
                    msgspec.structs.replace(call, id=f"{seq}.{index}")
                    for index, call in enumerate(asked)
                ]
            )
            try:
                journal.add(
                    ev.Assistant,
                    text=answer.text,
                    reasoning=answer.reasoning,
                    calls=calls,
                    usage=usage,
                    based_on=based_on,
                    stop_reason=answer.stop_reason,
                    model=answer.model,
                    wire=answer.wire,
                    native=answer.native,
                    response_id=answer.response_id,
                    duration=duration,
                    cost=cost,
                    request_hash=answer.request_hash,
                    route=answer.route,
                    notes=answer.notes,
                    host=answer.host,
                )
            except UnreadableEvent as error:  # a custom model may return anything
                raise BadResponse(
                    f"The model's answer cannot be stored: {error.problem}"
                ) from error
            for index, (call, verdict) in enumerate(zip(calls, verdicts, strict=False)):
                if index not in refused:  # no decision is needed for a call that is not run
                    self.calls.write_decision(call, verdict)
            for index, result in refused.items():
                self.calls.write_start(calls[index], 1)
                self.calls.write_result(calls[index], result)
            if not calls:
                if (nudge := nudge_for(answer)) is not None:
                    journal.add(ev.Message, content=(TextContent(nudge),), sender="holdfast")
            elif token and not self.calls.closing:  # an interrupt that came before this answer
                denied = {
                    call.id
                    for call, verdict in zip(calls, verdicts, strict=False)
                    if verdict.decision == "deny"
                }
                for index, call in enumerate(calls):
                    if call.id not in denied and index not in refused:
                        self.calls.write_refusal(call)
            elif journal.fold.status is RUNNING and not self.calls.closing:
                open = journal.fold.opened(calls)
                for call, verdict in zip(calls, verdicts, strict=False):
                    if verdict.decision == "deny":
                        del open[call.id]
                    elif verdict.decision == "ask":
                        open[call.id].asked = verdict.reason
                for index in refused:
                    open.pop(calls[index].id, None)
                allowed = tuple([item.call for item in turn(open.values()) if item.ready])
                started = allowed[: self.agent.parallel_calls]
                for call in started:
                    self.calls.write_start(call, 1)
        if started:
            self.calls.run(allowed, {call.id for call in started}, token)
